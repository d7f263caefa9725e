"""What stands in the query of a request."""

import re

from starlette.requests import Request

from tealagents.api.openai.documents import Page
from tealagents.domain.errors import InvalidRequest

_INTEGER = re.compile(r"-?\d{1,15}", re.ASCII)
#: items of the longest page
MOST = 100


def flag(request: Request, name: str) -> bool:
    given = _only(request, name)
    if given not in (None, "true", "false"):
        raise InvalidRequest(name, "must be true or false")
    return given == "true"


def number(request: Request, name: str, *, lowest: int, highest: int | None = None) -> int | None:
    given = _only(request, name)
    if given is None:
        return None
    value = int(given) if _INTEGER.fullmatch(given) else lowest - 1
    if value < lowest or (highest is not None and value > highest):
        bounds = f"from {lowest}" + (f" to {highest}" if highest is not None else "")
        raise InvalidRequest(name, f"must be an integer {bounds}")
    return value


def page(request: Request) -> Page:
    """What part of a list is asked for."""
    limit = number(request, "limit", lowest=1, highest=MOST)
    order = _only(request, "order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidRequest("order", "must be asc or desc")
    return Page(limit=20 if limit is None else limit, order=order, after=_only(request, "after"))


def _only(request: Request, name: str) -> str | None:
    given = request.query_params.getlist(name)
    if len(given) > 1:
        raise InvalidRequest(name, "is given twice")
    return given[0] if given else None
