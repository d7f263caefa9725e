"""Ids as OpenAI's clients see them: each shows the UUID of the task, request or pause that it stands for.

`resp_{request}_{n}` is the part of a request from its (n-1)th decision on, `msg_{request}_{n}_{i}`, `mcp_…`
the ith item of its output, `conv_{task}` a conversation; `mcpr_{approval}_{i}`, `fc_…` and `call_…` the
ith call of a pause, which waits for approval or is the client's to make.
"""

import re

from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, NotFound

_ID = re.compile(r"([a-z]+)_([0-9a-fA-F-]{36})(?:_(0|[1-9]\d{0,5}))?", re.ASCII)
#: the ids by which a call is answered
CALLS = ("mcpr", "fc", "call")


def made(kind: str, uuid: str, *numbers: int) -> str:
    return "_".join((kind, uuid, *map(str, numbers)))


def unknown(kind: str, identifier: str) -> NotFound:
    """What is said of an id that is unknown, and of one that is another user's: the same."""
    return NotFound(
        f"There is no {kind} with id {identifier[:100]!r}. Check the id; it may have been deleted."
    )


def read(what: str, identifier: str, *kinds: str, numbered: bool = True) -> tuple[str, int]:
    """The UUID and the number that an id shows. `NotFound` for one that is none of ours."""
    found = _ID.fullmatch(identifier)
    if found is None or found[1] not in kinds or (found[3] is not None) is not numbered:
        raise unknown(what, identifier)
    try:
        return ids.canonical(found[2], "id"), int(found[3] or 0)
    except InvalidRequest:
        raise unknown(what, identifier) from None
