"""Query parameters, and the pages of lists that they select."""

import re
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from starlette.requests import Request

from tealagents.api.names import unknown
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Json
from tealagents.state.history import PAGE_BYTES

_INTEGER = re.compile(r"-?\d{1,15}", re.ASCII)


def once(request: Request, name: str) -> str | None:
    """The value of a parameter; None where it is not there."""
    given = request.query_params.getlist(name)
    if len(given) > 1:
        raise InvalidRequest(name, "is given twice")
    return given[0] if given else None


def flag(request: Request, name: str) -> bool:
    given = once(request, name)
    if given not in (None, "true", "false"):
        raise InvalidRequest(name, "must be true or false")
    return given == "true"


async def window(request: Request, newest_first: AsyncGenerator[Json]) -> tuple[list[Json], bool]:
    """The documents of a list that `limit`, `after` and `order` ask for; and whether more follow.

    Newest first, unless `order` is `asc`, for which everything newer is read as well. Only the page is held
    in memory; if its documents are large, it ends before `limit`, at `PAGE_BYTES`. `NotFound` if no document
    has the id `after`.
    """
    limit = number(request, "limit", 20, lowest=1, highest=100)
    after, order = once(request, "after"), once(request, "order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidRequest("order", "must be asc or desc")
    oldest_first, met, more = order == "asc", after is None, False
    found, sizes = deque[Json](), deque[int]()
    drop = deque.popleft if oldest_first else deque.pop
    async with aclosing(newest_first):
        async for each in newest_first:
            if each["id"] == after:
                met = True
                if oldest_first:
                    break
            elif oldest_first or met:
                found.append(each)
                sizes.append(len(msgspec.json.encode(each)))
                while len(found) > limit or (len(found) > 1 and sum(sizes) > PAGE_BYTES):
                    more = True
                    drop(found)
                    drop(sizes)
                if more and not oldest_first:
                    break
    if not met:
        raise unknown("item", after or "")
    return list(reversed(found) if oldest_first else found), more


async def newest(count: int, newest_first: AsyncGenerator[Json]) -> list[Json]:
    """The first documents of a list that has so many."""
    async with aclosing(newest_first):
        return [await anext(newest_first) for _ in range(count)]


async def named(name: str, newest_first: AsyncGenerator[Json]) -> Json:
    """The document of a list that has this id. `NotFound`."""
    async with aclosing(newest_first):
        async for each in newest_first:
            if each["id"] == name:
                return each
    raise unknown("item", name)


async def backwards(items: Sequence[Json]) -> AsyncGenerator[Json]:
    """A list that is there already, newest first, for `window`."""
    for each in reversed(items):
        yield each


def number(request: Request, name: str, default: int, *, lowest: int, highest: int) -> int:
    """An integer within bounds; `default` where it is not there."""
    given = once(request, name)
    if given is None:
        return default
    try:
        value = integer(given)
    except ValueError:
        value = lowest - 1
    if not lowest <= value <= highest:
        raise InvalidRequest(name, f"must be an integer from {lowest} to {highest}")
    return value


def integer(text: str) -> int:
    """A plain decimal number; `ValueError` for what `int` and pydantic take besides, as `1_0` and ` 1`."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("must be an integer")
    return int(text)
