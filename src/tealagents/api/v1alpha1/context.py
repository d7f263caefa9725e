"""What the routes read of a request: ids in the path, cursors, and where a record is."""

import re

from starlette.requests import Request

from tealagents.api.exchange import Exchange
from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Caller
from tealagents.state.owner_directory import WORDS, Kind

_INDEX_CURSOR = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z/[0-9a-f-]{36}", re.ASCII)
_INBOX = "inbox/"
_NUMBER = re.compile(r"\d{1,12}", re.ASCII)

#: what reading a record may be refused with
READ_CODES = ("invalid_request", "not_owner", "not_found", "corrupt_state")


def exchange_of(request: Request) -> Exchange:
    """The exchange of the application that the request came to."""
    exchange: Exchange = request.app.state.exchange
    return exchange


async def identified(request: Request, parameter: str) -> tuple[Exchange, Caller, str]:
    """The exchange, the caller, and the id in the path."""
    exchange = exchange_of(request)
    return exchange, await exchange.identify(request), identifier(request, parameter)


async def place(request: Request, kind: Kind, *, reading: bool = False) -> tuple[Exchange, str, str]:
    """The exchange, the partition and the id of what the path names, which the caller may use."""
    exchange, caller, name = await identified(request, f"{WORDS[kind]}_id")
    return exchange, await exchange.locate(caller, kind, name, reading=reading), name


def identifier(request: Request, name: str) -> str:
    """An id from the path, in canonical form."""
    return ids.canonical(request.path_params[name], name)


def index_cursor(cursor: str | None, *, inbox: bool = False) -> str | None:
    """The cursor of a list by creation; that of a tenant's inbox has a prefix."""
    if cursor is None:
        return None
    if cursor.startswith(_INBOX) != inbox or not _INDEX_CURSOR.fullmatch(cursor.removeprefix(_INBOX)):
        raise InvalidRequest("cursor", "must be the next_cursor of an earlier page")
    return cursor


def number_cursor(cursor: str | None) -> int:
    """The cursor of a view of the log; 0 for the beginning."""
    if cursor is None:
        return 0
    if not _NUMBER.fullmatch(cursor):
        raise InvalidRequest("cursor", "must be the next_cursor of an earlier page")
    return int(cursor)
