"""Calls that wait for the store, a few of them at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Given = TypeVar("Given")
Found = TypeVar("Found")

#: calls at the same time: each takes a connection, and a server may allow only a few
TOGETHER = 4


async def each(call: Callable[[Given], Awaitable[Found]], given: Sequence[Given]) -> list[Found]:
    """What `call` returns for each of `given`, in their order.

    The first error is raised at once; the other calls of its batch still finish.
    """
    found: list[Found] = []
    for start in range(0, len(given), TOGETHER):
        found += await asyncio.gather(*map(call, given[start : start + TOGETHER]))
    return found
