"""Ids in the real service's shape."""

import secrets
from itertools import count


class IdSource:
    """Unique over restarts, too: an id that a client has kept must not come to mean something else."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(6)
        self._count = count(1)

    def new(self, prefix: str) -> str:
        return f"{prefix}{self._run}{next(self._count):012x}"
