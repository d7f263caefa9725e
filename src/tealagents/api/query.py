"""What stands in the query of a request."""

import re
from collections.abc import Sequence

from starlette.requests import Request

from tealagents.api.names import unknown
from tealagents.domain.errors import InvalidRequest

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


def window(request: Request, names: Sequence[str]) -> tuple[range, bool]:
    """The places in a list, oldest first, that `limit`, `after` and `order` ask for; and whether more follow.

    The newest come first, unless `order` says otherwise. `NotFound` for an `after` that is none of the names.
    """
    limit = number(request, "limit", 20, lowest=1, highest=100)
    after, order = once(request, "after"), once(request, "order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidRequest("order", "must be asc or desc")
    places = range(len(names)) if order == "asc" else range(len(names))[::-1]
    if after is not None:
        start = next((n for n, place in enumerate(places, 1) if names[place] == after), None)
        if start is None:
            raise unknown("item", after)
        places = places[start:]
    return places[:limit], len(places) > limit


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
