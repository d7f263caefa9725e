"""What runs beside a served application: background work, and its graceful shutdown on a signal."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

log = logging.getLogger(__name__)

#: signals that end a service in good order
STOPPING = (signal.SIGTERM, signal.SIGINT)
#: seconds after which background work that has failed is restarted
AGAIN_SECONDS = 1.0


@asynccontextmanager
async def background(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Runs `work`, which never ends by itself, beside the block, and ends it with the block."""
    task = asyncio.create_task(_kept_up(work))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _kept_up(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Restarts the work when it fails: requests depend on it for as long as the process runs."""
    while True:
        try:
            await work()
        except Exception:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # it failed while it was ended
                raise
            log.exception("background work failed and is restarted")
        await asyncio.sleep(AGAIN_SECONDS)


class Drains(Protocol):
    """What can be stopped in good order."""

    async def drain(self, seconds: float) -> None: ...


@contextmanager
def drained_by_signals(service: Drains, seconds: float) -> Iterator[None]:
    """Within it, the first SIGTERM or SIGINT drains `service`; the server stops only then.

    New messages are refused meanwhile; reads, followers and health continue. What is asked for from then on
    is the last on its connection, so that clients move to other processes. A second signal ends what runs
    at once; it is stored and reported as interrupted.
    A signal that is ignored stays so. Outside the main thread signals belong to the host application, and
    nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    servers = {number: signal.getsignal(number) for number in STOPPING}
    heard = [number for number in STOPPING if servers[number] is not signal.SIG_IGN]
    draining: list[asyncio.Task[None]] = []

    def hand_over(number: signal.Signals) -> None:
        for each in heard:
            loop.remove_signal_handler(each)
            signal.signal(each, servers[each])
        signal.raise_signal(number)

    async def drain(number: signal.Signals, seconds: float) -> None:
        try:
            await service.drain(seconds)
        except Exception:
            log.exception("draining failed; stopping anyway")
        hand_over(number)

    def signaled(number: signal.Signals) -> None:
        if len(draining) > 1:
            hand_over(number)
            return
        for before in draining:
            before.cancel()
        draining.append(loop.create_task(drain(number, 0 if draining else seconds)))

    for number in heard:
        loop.add_signal_handler(number, signaled, number)
    try:
        yield
    finally:
        for each in heard:
            if loop.remove_signal_handler(each):
                signal.signal(each, servers[each])
