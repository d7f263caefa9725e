"""Ids as OpenAI's clients see them. Each shows the UUID of the task, request or pause that it stands for.

=====================================  ==============================================================
`resp_{request}_{n}`                   the part of a request from its (n-1)th decision on
`conv_{task}`                          a conversation
`mcpr_{approval}_{n}`                  the nth call of a pause, which waits for approval
`fc_{approval}_{n}`, `call_…`          the nth call of a pause, which the client makes: item and call
`msg_{request}_{n}_{i}`, `mcp_…`       the ith item of the output of a response
=====================================  ==============================================================
"""

import re

from msgspec import Struct

from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, NotFound

_UUID = r"([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"
_RESPONSE = re.compile(rf"resp_{_UUID}_([1-9]\d{{0,5}})", re.ASCII)
_CONVERSATION = re.compile(rf"conv_{_UUID}", re.ASCII)
_CALL = re.compile(rf"(?:mcpr|fc|call)_{_UUID}_(0|[1-9]\d{{0,5}})", re.ASCII)


class Numbered(Struct, frozen=True):
    """The UUID that an id shows, and the number behind it."""

    uuid: str
    number: int


def response(request_id: str, number: int) -> str:
    return f"resp_{request_id}_{number}"


def conversation(task_id: str) -> str:
    return f"conv_{task_id}"


def item(kind: str, identifier: str, *numbers: int) -> str:
    return "_".join((kind, identifier, *map(str, numbers)))


def unknown(kind: str, identifier: object) -> NotFound:
    """What is said of an id that is unknown, and of one that is another user's: the same."""
    shown = identifier[:100] if isinstance(identifier, str) else str(identifier)[:100]
    return NotFound(f"There is no {kind} with id {shown!r}. Check the id; it may have been deleted.")


def read_response(identifier: str) -> Numbered:
    return _read(_RESPONSE, "response", identifier)


def read_conversation(identifier: str) -> str:
    found = _CONVERSATION.fullmatch(identifier)
    if found is None:
        raise unknown("conversation", identifier)
    return _canonical(found[1], "conversation", identifier)


def read_call(identifier: str) -> Numbered | None:
    """The pause and the place in it that the id of a call names; None where it is none of ours."""
    try:
        return _read(_CALL, "call", identifier)
    except NotFound:
        return None


def _read(pattern: re.Pattern[str], kind: str, identifier: str) -> Numbered:
    found = pattern.fullmatch(identifier)
    if found is None:
        raise unknown(kind, identifier)
    return Numbered(_canonical(found[1], kind, identifier), int(found[2]))


def _canonical(uuid: str, kind: str, identifier: str) -> str:
    try:
        return ids.canonical(uuid, "id")
    except InvalidRequest:
        raise unknown(kind, identifier) from None
