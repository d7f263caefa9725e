"""What stands in the query of a request."""

import re

from starlette.requests import Request

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


def number(request: Request, name: str, default: int, *, lowest: int, highest: int) -> int:
    """An integer within bounds; `default` where it is not there."""
    given = once(request, name)
    if given is None:
        return default
    value = int(given) if _INTEGER.fullmatch(given) else lowest - 1
    if not lowest <= value <= highest:
        raise InvalidRequest(name, f"must be an integer from {lowest} to {highest}")
    return value
