"""A store that refuses what a test asks it to, for services that run in this process.

::

    persistence: refusing_store:RefusingStore
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from tealagents.domain.ports import Commit, Record
from tealagents.stores.memory import MemoryStore

Refuses = Callable[[str, Commit], bool]


class RefusingStore(MemoryStore):
    """State in memory. Says of itself, as stores of other machines do, what no client may learn."""

    where = "postgres.internal:5432/agents"
    refuses: ClassVar[Refuses] = staticmethod(lambda partition, commit: False)

    #: nothing can be read
    unreadable: ClassVar[bool] = False

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        if type(self).unreadable:
            raise self.unavailable("it does not answer (/var/lib/agents)")
        return await super().read(partition, keys)

    async def commit(self, partition: str, commit: Commit) -> None:
        if type(self).refuses(partition, commit):
            raise self.unavailable("it is read-only (/var/lib/agents)")
        await super().commit(partition, commit)


@contextmanager
def refusing(refuses: Refuses) -> Iterator[None]:
    """Within it such commits are refused."""
    before = RefusingStore.refuses
    RefusingStore.refuses = staticmethod(refuses)
    try:
        yield
    finally:
        RefusingStore.refuses = before


@contextmanager
def unreadable() -> Iterator[None]:
    """Within it nothing is read."""
    RefusingStore.unreadable = True
    try:
        yield
    finally:
        RefusingStore.unreadable = False
