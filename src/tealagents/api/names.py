"""Ids as clients see them: each shows the UUID of the task, request or pause that it stands for.

`{kind}_{uuid}` is one of these itself, `{kind}_{uuid}_{part}` a part of it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, NotFound, NotOwner

_NAME = re.compile(r"([a-z]+)_([0-9a-fA-F-]{36})(?:_(.+))?", re.ASCII)
_SHORT = re.compile(
    r"(call_[\da-f]{8})([\da-f]{4})([\da-f]{4})([\da-f]{4})([\da-f]{12}_\d+)", re.ASCII | re.I
)
_NUMBER = re.compile(r"0|[1-9]\d{0,5}", re.ASCII)


def made(kind: str, uuid: str, *parts: object) -> str:
    return "_".join((kind, uuid, *map(str, parts)))


def short(call: str) -> str:
    """The same name of a call without hyphens: in 40 characters, up to the hundredth call of a pause."""
    return call.replace("-", "")


def parsed(name: str, *kinds: str) -> tuple[str | None, str]:
    """The UUID and the part that a name of one of these kinds shows; None where it is no such name."""
    found = _NAME.fullmatch(_SHORT.sub(r"\1-\2-\3-\4-\5", name))
    return (found[2], found[3] or "") if found and found[1] in kinds else (None, "")


def read(what: str, name: str, *kinds: str, numbered: bool = True) -> tuple[str, int]:
    """The UUID and the number in a name of one of these kinds. `NotFound`: no `what` has that id."""
    uuid, part = parsed(name, *kinds)
    if uuid is not None and (_NUMBER.fullmatch(part) if numbered else not part):
        with suppress(InvalidRequest):
            return ids.canonical(uuid, "id"), int(part or 0)
    raise unknown(what, name)


def is_message(name: str) -> bool:
    """Whether this names a message that was sent: one that answers has a number in its response."""
    uuid, part = parsed(name, "msg")
    return uuid is not None and not part


def is_of_answer(name: str) -> bool:
    """Whether this is to be looked up in a response: a message that answers, or a call of the service."""
    return name[:4] in ("msg_", "mcp_") and not is_message(name)


def unknown(kind: str, name: str) -> NotFound:
    """The error for an unknown name. Another user's name gets the same one, so that it reveals nothing."""
    return NotFound(f"There is no {kind} with id {name[:100]!r}. Check the id; it may have been deleted.")


@contextmanager
def unknown_as(kind: str, name: str) -> Iterator[None]:
    """Reports what is not there, or is another user's, by the name that the client has used."""
    try:
        yield
    except (NotFound, NotOwner):
        raise unknown(kind, name) from None
