"""Ids in the format of the real service."""

import secrets
from itertools import count


class IdSource:
    """Makes ids that are also unique across restarts: an id that a client has stored must not be reused."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(6)
        self._count = count(1)

    def new(self, prefix: str) -> str:
        return f"{prefix}{self._run}{next(self._count):012x}"
