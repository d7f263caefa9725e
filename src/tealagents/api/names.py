"""Ids as clients see them: each shows the UUID of the task, request or pause that it stands for.

`{kind}_{uuid}` is one of these itself, `{kind}_{uuid}_{place}` a part of it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tealagents.domain.errors import NotFound, NotOwner

_NAME = re.compile(r"([a-z]+)_([0-9a-fA-F-]{36})(?:_(.+))?", re.ASCII)


def made(kind: str, uuid: str, *places: object) -> str:
    return "_".join((kind, uuid, *map(str, places)))


def parsed(name: str, *kinds: str) -> tuple[str | None, str]:
    """The UUID and the place that a name of one of these kinds shows; None where it is no such name."""
    found = _NAME.fullmatch(name)
    return (found[2], found[3] or "") if found and found[1] in kinds else (None, "")


def unknown(kind: str, name: str) -> NotFound:
    """What is said of a name that is unknown, and of one that is another user's: the same."""
    return NotFound(f"There is no {kind} with id {name[:100]!r}. Check the id; it may have been deleted.")


@contextmanager
def unknown_as(kind: str, name: str) -> Iterator[None]:
    """Reports what is not there, or is another user's, by the name that the client has used."""
    try:
        yield
    except (NotFound, NotOwner):
        raise unknown(kind, name) from None
