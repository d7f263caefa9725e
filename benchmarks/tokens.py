"""What it costs to check a token, and whether an authority that hangs delays other requests."""

import asyncio
import time
from statistics import median

from benchmarks.figures import Figure
from benchmarks.measures import Scale
from tealagents.auth import open_auth
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import TealError
from tealagents.domain.ports import Authenticator
from tealagents.testing.authority import AuthorityKey, LocalAuthority

#: tokens of strangers that wait for the authority meanwhile
WAITING = 20


async def tokens(scale: Scale) -> list[Figure]:
    """CPU a token whose key is known, at first sight and again, and the longest stall of the loop."""
    with LocalAuthority() as authority:
        async with open_auth("entra", authority.options(), SystemClock()) as service:
            await service.authenticate(authority.token())
            count = scale.of(2000, 200)
            fresh = [authority.token(f"user-{n}") for n in range(count)]
            first = await _each(service, fresh)
            again = await _each(service, fresh[-50:] * (count // 50))
            stalls = [await _longest_stall(service, authority) for _ in range(scale.of(5, 1))]
    return [
        Figure(
            measure="tokens",
            name="checking one that was not seen before",
            unit="µs CPU",
            ours=first,
            bound=150,
            of="value",
        ),
        Figure(measure="tokens", name="checking it again", unit="µs CPU", ours=again),
        Figure(
            measure="tokens",
            name="longest stall while the authority hangs",
            unit="ms",
            ours=median(stalls),
            bound=50,
            of="value",
        ),
    ]


async def _each(service: Authenticator, given: list[str]) -> float:
    """Microseconds of CPU for each of these tokens."""
    began = time.thread_time()
    for token in given:
        await service.authenticate(token)
    return (time.thread_time() - began) / len(given) * 1e6


async def _longest_stall(service: Authenticator, authority: LocalAuthority) -> float:
    """Milliseconds that the event loop, and a token of a known key, are held up at most."""
    authority.behave("hanging")
    stranger = authority.sign(authority.claims(), key=AuthorityKey.generate())
    known = [authority.token(f"guest-{n}") for n in range(100)]
    waiting = [asyncio.create_task(_refused(service, stranger)) for _ in range(WAITING)]
    longest = 0.0
    for token in known:
        began = time.perf_counter()
        await asyncio.sleep(0)
        await service.authenticate(token)
        longest = max(longest, time.perf_counter() - began)
    authority.behave("ok")
    await asyncio.gather(*waiting)
    return longest * 1000


async def _refused(service: Authenticator, token: str) -> None:
    try:
        await service.authenticate(token)
    except TealError:
        return
    raise RuntimeError("a stranger's token was taken")
