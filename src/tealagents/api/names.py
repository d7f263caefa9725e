"""Ids as clients see them: each shows the UUID of the task, request or pause that it stands for.

`{kind}_{uuid}` is one of these itself, `{kind}_{uuid}_{place}` a part of it.
"""

import re

_NAME = re.compile(r"([a-z]+)_([0-9a-fA-F-]{36})(?:_(.+))?", re.ASCII)


def made(kind: str, uuid: str, *places: object) -> str:
    return "_".join((kind, uuid, *map(str, places)))


def parsed(name: str, *kinds: str) -> tuple[str | None, str]:
    """The UUID and the place that a name of one of these kinds shows; None where it is no such name."""
    found = _NAME.fullmatch(name)
    return (found[2], found[3] or "") if found and found[1] in kinds else (None, "")
