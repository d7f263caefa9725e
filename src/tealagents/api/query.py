"""Query parameters, and the pages of lists that they select."""

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec
from starlette.requests import Request

from tealagents.api.names import unknown
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Json
from tealagents.state.history import PAGE_BYTES

#: the documents of a list from the one with this id on, or from an earlier one; oldest first if that is true,
#: else newest first
Listed = Callable[[str | None, bool], AsyncGenerator[Json]]
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


async def window(request: Request, listed: Listed) -> tuple[list[Json], bool]:
    """The documents of a list that `limit`, `after` and `order` ask for; and whether more follow.

    Newest first, unless `order` is `asc`. If documents are large, the page ends before `limit`, at
    `PAGE_BYTES`. `NotFound` if no document has the id `after`.
    """
    limit = number(request, "limit", 20, lowest=1, highest=100)
    after, order = once(request, "after"), once(request, "order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidRequest("order", "must be asc or desc")
    for start in dict.fromkeys((after, None)):  # an item of an imported task may have an id that misleads
        async with aclosing(listed(start, order == "asc")) as documents:
            if (page := await _page(documents, after, limit)) is not None:
                return page
    raise unknown("item", after or "")


async def _page(
    documents: AsyncGenerator[Json], after: str | None, limit: int
) -> tuple[list[Json], bool] | None:
    """The documents behind `after`, and whether more follow; None if it is not among them."""
    met, size, found = after is None, 0, list[Json]()
    async for each in documents:
        if met:
            size += len(msgspec.json.encode(each))
            if len(found) == limit or (found and size > PAGE_BYTES):
                return found, True
            found.append(each)
        met = met or each["id"] == after
    return (found, False) if met else None


async def newest(count: int, listed: Listed) -> list[Json]:
    """The newest documents of a list that has so many, newest first."""
    async with aclosing(listed(None, False)) as newest_first:
        return [await anext(newest_first) for _ in range(count)]


async def named(name: str, listed: Listed) -> Json:
    """The document of a list that has this id. `NotFound`."""
    for start in (name, None):
        async with aclosing(listed(start, False)) as newest_first:
            async for each in newest_first:
                if each["id"] == name:
                    return each
    raise unknown("item", name)


def backwards(items: Sequence[Json]) -> Listed:
    """A list that is there already, and begins with the oldest, for `window`."""

    async def listed(_: str | None, oldest_first: bool) -> AsyncGenerator[Json]:
        for each in items if oldest_first else reversed(items):
            yield each

    return listed


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
