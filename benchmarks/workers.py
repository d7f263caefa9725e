"""How many turns two workers take beside one: `serve --workers`, on PostgreSQL and on Redis.

On two cores nothing else can have a core of its own, and what the clients and the store need is taken from
the workers. So that both sides give up the same, they are measured with equal shares: one worker, with its
clients and its store, on one core; two workers, with theirs, on both, each worker pinned to one of them.
The model is in the worker's process and answers at once; nothing is synced to the disk, which both share.

What is promised is a matter of wall time, which only an idle machine shows. Beside it stands the CPU of a
turn, of the workers and of all who take part: where two cores are busy with nothing else, two workers take
`2 / ratio` times the turns of one.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure
from benchmarks.load import Service
from benchmarks.measures import Rate, Scale, warm
from benchmarks.processes import ModelProcess, ServiceProcess
from benchmarks.servers import SERVED, StoreServer, on_each, store_server

#: how many times the turns of one worker two of them take, at least
PROMISED = 1.7
#: connections for each worker
CLIENTS_EACH = 16
IN_PROCESS = {"agent": {"client": "tealagents.testing.digest_model:DigestModel"}}


class Workers(ServiceProcess):
    """A service of so many workers."""

    def __init__(self, count: int, store: str, model: ModelProcess) -> None:
        super().__init__(model, store, IN_PROCESS)
        self.count = count

    def command(self) -> Sequence[str]:
        return [*super().command(), "--workers", str(self.count)]

    def workers(self) -> list[int]:
        """The processes that serve: this one where it is alone, else those it has started for it."""
        if self.count == 1:
            return [self.pid]
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def cpu(self) -> float:
        return sum(1000 * time.clock_gettime((~pid << 3) | 2) for pid in self.workers())


async def workers(scale: Scale) -> list[Figure]:
    """Milliseconds a turn, and CPU a turn, of two workers beside those of one."""
    if len(os.sched_getaffinity(0)) < 2:
        raise RuntimeError("two workers need two cores")
    return await on_each(SERVED, lambda name: _compared(name, scale))


async def _compared(name: str, scale: Scale) -> list[Figure]:
    cores = sorted(os.sched_getaffinity(0))[:2]
    with ExitStack() as stack:
        model = stack.enter_context(ModelProcess())
        sides = []
        for count in (1, 2):
            server = stack.enter_context(store_server(name, durable=False))
            service = stack.enter_context(Workers(count, server.url, model))
            sides.append(Side(service, server, cores[:count]))
        for side in sides:
            await side.warm()
        for _ in range(scale.of(6, 1)):
            for side in sides:
                await side.measure(scale.of(10, 2))
    one, two = sides
    return [
        Figure(
            measure="workers",
            name=f"{name}: two workers, floor: one",
            unit=unit,
            ours=median(getattr(two, field)),
            base=median(getattr(one, field)),
            bound=bound,
        )
        for field, unit, bound in (
            ("milliseconds", "ms a turn", 1 / PROMISED),
            ("workers_cpu", "ms CPU a turn", None),
            ("whole_cpu", "ms CPU a turn, of all", 2 / PROMISED),
        )
    ]


class Side:
    """So many workers with their store and clients, on as many cores."""

    def __init__(self, service: Workers, server: StoreServer, cores: Sequence[int]) -> None:
        self._service = service
        self._server = server
        self._target = Service(service)
        self._cores = cores
        #: of a turn, in each round: of wall time
        self.milliseconds: list[float] = []
        #: of the workers' CPU
        self.workers_cpu: list[float] = []
        #: of the CPU of workers, store and clients
        self.whole_cpu: list[float] = []

    async def warm(self) -> None:
        for _ in range(self._service.count):
            await warm(self._target)

    async def measure(self, seconds: float) -> None:
        rate = Rate()
        with self._pinned():
            before = self._others_cpu()
            await rate.measure(self._target, CLIENTS_EACH * self._service.count, seconds)
            others = self._others_cpu() - before
        self.milliseconds.append(1000 / rate.rate)
        self.workers_cpu.append(rate.cpu)
        self.whole_cpu.append(rate.cpu + others / rate.requests)

    def _others_cpu(self) -> float:
        """Milliseconds of the store's server, and of the clients, which are this process."""
        return self._server.cpu() + 1000 * time.process_time()

    @contextmanager
    def _pinned(self) -> Iterator[None]:
        """All on these cores, each worker on one of its own; this process, the clients', comes back."""
        for pid in self._server.server.processes():
            _pin(pid, self._cores)
        for n, pid in enumerate(self._service.workers()):
            _pin(pid, [self._cores[n]])
        usual = os.sched_getaffinity(0)
        _pin(os.getpid(), self._cores)
        try:
            yield
        finally:
            _pin(os.getpid(), sorted(usual))


def _pin(pid: int, cores: Sequence[int]) -> None:
    """All threads of a process to these cores; some may end meanwhile."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)
