"""What the same turn costs over each protocol, beside v1alpha1 in the same run."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from random import Random
from statistics import median
from typing import Any
from uuid import uuid4

from benchmarks.figures import Figure
from benchmarks.load import Connection, Service, Target
from benchmarks.measures import PIECES, TEXT, Scale, repeat, rounds, warm
from benchmarks.processes import ModelProcess, ServiceProcess

#: the most that a turn may cost of the same one over v1alpha1
BOUNDS = {"openai": 1.1, "a2a": 1.5, "ag-ui": 1.5, "mcp": 1.5}
#: the most that a streamed answer may
STREAMED = 1.3
#: turns and streams of one protocol before the next one's turn
TURNS, STREAMS = 10, 4

Work = Callable[[Connection], Awaitable[object]]


class OpenAI(Target):
    mark = b"event: response.output_text.delta"
    path = stream_path = f"{ServiceProcess.prefix}/openai/v1/responses"

    def body(self, text: str, task_id: str | None = None, *, stream: bool = False) -> bytes:
        return json.dumps({"model": "Bench", "input": text, "stream": stream}).encode()


class A2A(Target):
    mark = b"artifactUpdate"
    path = stream_path = f"{ServiceProcess.prefix}/a2a"
    headers = "a2a-version: 1.0\r\n"

    def body(self, text: str, task_id: str | None = None, *, stream: bool = False) -> bytes:
        message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
        method = "SendStreamingMessage" if stream else "SendMessage"
        return _rpc(method, {"message": message})


class AgUi(Target):
    """Every answer is a stream."""

    mark = b"TEXT_MESSAGE_CONTENT"
    path = stream_path = f"{ServiceProcess.prefix}/ag-ui"

    def body(self, text: str, task_id: str | None = None, *, stream: bool = False) -> bytes:
        message = {"id": str(uuid4()), "role": "user", "content": text}
        return json.dumps({"threadId": str(uuid4()), "runId": str(uuid4()), "messages": [message]}).encode()

    async def ask(
        self, connection: Connection, text: str, *, task_id: str | None = None, user: str = "ada"
    ) -> bytes:
        body = self.body(text)
        return b"".join([data async for data in connection.stream(self.path, user, body)])


class Mcp(Target):
    """Pieces come as progress."""

    mark = b"notifications/progress"
    path = stream_path = f"{ServiceProcess.prefix}/mcp"
    headers = (
        "accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n"
        "mcp-method: tools/call\r\nmcp-name: ask\r\n"
    )

    def body(self, text: str, task_id: str | None = None, *, stream: bool = False) -> bytes:
        meta: dict[str, Any] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            **({"progressToken": "p"} if stream else {}),
        }
        return _rpc("tools/call", {"name": "ask", "arguments": {"message": text}, "_meta": meta})


def _rpc(method: str, params: Mapping[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


class Compared:
    """The protocols of one service, which take turns."""

    def __init__(self, service: ServiceProcess, connection: Connection) -> None:
        self._service = service
        self._connection = connection
        self._own = Service(service)
        self._others: dict[str, Target] = {
            "openai": OpenAI(service),
            "a2a": A2A(service),
            "ag-ui": AgUi(service),
            "mcp": Mcp(service),
        }

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator["Compared"]:
        with ExitStack() as stack:
            model = stack.enter_context(ModelProcess())
            service = stack.enter_context(ServiceProcess(model, spec={"protocols": list(BOUNDS)}))
            async with AsyncExitStack() as connections:
                (connection,) = await connections.enter_async_context(Service(service).connections(1))
                compared = cls(service, connection)
                for target in (compared._own, *compared._others.values()):
                    await warm(target)
                yield compared

    async def figures(self, scale: Scale) -> list[Figure]:
        own, streamed = self._turn(self._own), self._streamed(self._own)
        # AG-UI only streams: its turn stands beside the same turn streamed
        turns = {"v1alpha1": own, "v1alpha1, streamed": self._short(self._own)}
        turns |= {name: self._turn(target) for name, target in self._others.items()}
        spent = await self._alternating(turns, scale.of(60, 2), TURNS)
        figures = []
        for name, bound in BOUNDS.items():
            base = "v1alpha1, streamed" if name == "ag-ui" else "v1alpha1"
            figures.append(_figure(f"a turn over {name}", spent[name], spent[base], bound))
        works = {"v1alpha1": streamed}
        works |= {name: self._streamed(target) for name, target in self._others.items()}
        spent = await self._alternating(works, scale.of(60, 2), STREAMS)
        for name in BOUNDS:
            label = f"{PIECES} pieces streamed over {name}"
            figures.append(_figure(label, spent[name], spent["v1alpha1"], STREAMED))
        return figures

    def _turn(self, target: Target) -> Work:
        return lambda connection: target.ask(connection, TEXT)

    def _short(self, target: Target) -> Work:
        return lambda connection: target.read_stream(connection, TEXT)

    def _streamed(self, target: Target) -> Work:
        return lambda connection: target.read_stream(connection, f"pieces-{PIECES}")

    async def _alternating(self, works: Mapping[str, Work], times: int, size: int) -> dict[str, list[float]]:
        """Milliseconds of CPU of each, by rounds; each round has another order, as a first one is dearer."""
        spent: dict[str, list[float]] = {name: [] for name in works}
        order, dice = list(works.items()), Random(1)
        for _ in rounds(times, 1):
            dice.shuffle(order)
            for name, work in order:
                before = self._service.cpu()
                await repeat(size, lambda work=work: work(self._connection))  # type: ignore[misc]
                spent[name].append((self._service.cpu() - before) / size)
        return spent


def _figure(name: str, ours: Sequence[float], base: Sequence[float], bound: float) -> Figure:
    """What is compared is of one round each: the machine is faster in one than in another."""
    usual = median(base)
    ratio = median(mine / own for mine, own in zip(ours, base, strict=True))
    return Figure(measure="protocols", name=name, unit="ms CPU", ours=usual * ratio, base=usual, bound=bound)


async def protocols(scale: Scale) -> Sequence[Figure]:
    """A turn and a streamed answer over each protocol."""
    async with Compared.running() as compared:
        return await compared.figures(scale)
