"""Followers of requests that run on another process: what they ask of the store while nothing happens, and
how far behind the producer's own client they are.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.figures import Figure
from benchmarks.load import Connection, Service, Target
from benchmarks.measures import Scale, warm
from benchmarks.processes import ModelProcess, ServiceProcess
from benchmarks.servers import SERVED, SETTLE_SECONDS, StoreServer, on_each, store_server

#: deltas of the answers whose followers are timed: the first after a second, then one every 40 ms
DELTAS = 26
SCRIPT: Mapping[str, Any] = {
    "rules": [
        {"when": "wait", "reply": {"pieces": ["0 ", {"text": "1 ", "delay_ms": 3_600_000}]}},
        {
            "when": "talk",
            "reply": {
                "pieces": [
                    {"text": "0 ", "delay_ms": 1000},
                    *({"text": f"{n} ", "delay_ms": 40} for n in range(1, DELTAS)),
                ]
            },
        },
    ]
}
PATIENT = {
    "limits": {
        "request_timeout_seconds": 7200,
        "model_timeout_seconds": 7200,
        "piece_timeout_seconds": 7200,
    }
}
#: connections that are opened at the same moment
AT_ONCE = 50


@dataclass(frozen=True)
class Replicas:
    """Two processes on one store: requests run on the one, and are followed on the other."""

    producer: Target
    other: Target
    server: StoreServer


@contextmanager
def _replicas(name: str) -> Iterator[Replicas]:
    with ExitStack() as stack:
        script = Path(stack.enter_context(TemporaryDirectory())) / "script.json"
        script.write_text(json.dumps(SCRIPT))
        model = stack.enter_context(ModelProcess(script))
        server = stack.enter_context(store_server(name))
        services = [stack.enter_context(ServiceProcess(model, server.url, PATIENT)) for _ in range(2)]
        yield Replicas(Service(services[0]), Service(services[1]), server)


async def followers(scale: Scale) -> list[Figure]:
    """Idle followers' operations a second, and how late deltas reach followers elsewhere."""

    async def measured(name: str) -> list[Figure]:
        with _replicas(name) as replicas:
            for target in (replicas.producer, replicas.other):
                await warm(target)
            return [*await _late(name, replicas, scale), await _idle(name, replicas, scale)]

    return await on_each(SERVED, measured)


# --- idle followers ---------------------------------------------------------------------------------


async def _idle(name: str, replicas: Replicas, scale: Scale) -> Figure:
    requests, each, seconds = scale.of(200, 20), 10, scale.of(20, 5)
    async with AsyncExitStack() as stack:
        running = [
            (f"user-{n}", stream)
            for n, connection in enumerate(await _open(stack, replicas.producer, requests))
            for stream in [_send(replicas.producer, connection, f"user-{n}", "wait")]
        ]
        ids = await _in_portions([_started(stream) for _, stream in running])
        wanted = [
            (user, request_id)
            for (user, _), request_id in zip(running, ids, strict=True)
            for _ in range(each)
        ]
        links = await _open(stack, replicas.other, len(wanted))
        following = [
            _follow(replicas.other, link, user, request_id)
            for link, (user, request_id) in zip(links, wanted, strict=True)
        ]
        await _in_portions([_until(stream, replicas.other.mark) for stream in following])
        await asyncio.sleep(SETTLE_SECONDS)
        before, began = replicas.server.operations(), time.perf_counter()
        await asyncio.sleep(seconds)
        rate = (replicas.server.operations() - before) / (time.perf_counter() - began)
    return Figure(
        measure="followers",
        name=f"{name}: {len(wanted):,} idle followers, {requests} requests",
        unit="operations/s",
        ours=rate,
        bound=6,
        of="value",
    )


async def _open(stack: AsyncExitStack, target: Target, count: int) -> Sequence[Connection]:
    return await stack.enter_async_context(target.connections(count))


async def _in_portions(work: Sequence[Any]) -> list[Any]:
    """Awaits all, some at a time: a server is not asked by thousands in the same moment."""
    found: list[Any] = []
    for start in range(0, len(work), AT_ONCE):
        found += await asyncio.gather(*work[start : start + AT_ONCE])
    return found


# --- how late ---------------------------------------------------------------------------------------


async def _late(name: str, replicas: Replicas, scale: Scale) -> list[Figure]:
    """Milliseconds between a delta at the producer's client and at a follower of the other process."""
    first, later = [], []
    async with AsyncExitStack() as stack:
        (sender,) = await _open(stack, replicas.producer, 1)
        (follower,) = await _open(stack, replicas.other, 1)
        for _ in range(scale.of(40, 4)):
            sent = _send(replicas.producer, sender, "ada", "talk")
            request_id = await _started(sent)
            followed = _follow(replicas.other, follower, "ada", request_id)
            here, there = await asyncio.gather(
                _arrivals(sent, replicas.producer.mark), _arrivals(followed, replicas.other.mark)
            )
            behind = [1000 * (b - a) for a, b in zip(here, there, strict=True)]
            first.append(behind[0])
            later += behind[1:]
    return [
        _lateness(f"{name}: first delta, behind the sender", first, 20),
        _lateness(f"{name}: later deltas", later, 60),
    ]


def _lateness(name: str, late: Sequence[float], bound: float) -> Figure:
    return Figure(measure="followers", name=name, unit="ms", ours=median(late), bound=bound, of="value")


async def _arrivals(stream: AsyncIterator[bytes], mark: bytes) -> list[float]:
    """When each delta of a stream came."""
    times: list[float] = []
    read = b""
    async for data in stream:
        read += data
        times += [time.perf_counter()] * (read.count(mark) - len(times))
    return times


# --- streams ----------------------------------------------------------------------------------------


def _send(target: Target, connection: Connection, user: str, text: str) -> AsyncIterator[bytes]:
    return connection.stream(target.stream_path, user, target.body(text, stream=True))


def _follow(target: Target, connection: Connection, user: str, request_id: str) -> AsyncIterator[bytes]:
    return connection.follow(f"{target.path}/requests/{request_id}/events", user)


async def _started(stream: AsyncIterator[bytes]) -> str:
    """The id of the request, which is in the first event of its stream."""
    read = await _until(stream, b"\n\n")
    line = next(line for line in read.splitlines() if line.startswith(b"data:"))
    request_id: str = json.loads(line.removeprefix(b"data:"))["request_id"]
    return request_id


async def _until(stream: AsyncIterator[bytes], mark: bytes) -> bytes:
    read = b""
    while mark not in read:
        read += await anext(stream)
    return read
