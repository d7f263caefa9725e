"""The tasks of a whole tenant, for its auditors: owner by owner, each owner's newest tasks first.

The list needs no index of its own: the owner directory lists the users, and each user's partition has an
index of the user's tasks. So tasks are not in order of creation across users, and the cost of a page does not
depend on the number of users and tasks.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import Struct

from tealagents.domain import ids
from tealagents.domain.errors import CorruptState, InvalidRequest
from tealagents.domain.models import Head, Status, User
from tealagents.state import keys
from tealagents.state.catalog import Catalog, CatalogPage, Damaged
from tealagents.state.codec import unseal
from tealagents.state.owner_directory import Owners
from tealagents.state.records import RecordStore

#: users looked at for one page, including those of other tenants
MOST_OWNERS = 500
#: records of users read at a time
PAGE = 100
#: a pattern, also for JSON Schema: the owner's tag, the number among its users, and the last task shown
CURSOR = (
    r"^([0-9a-f]{12})\.([0-9]{1,4})"
    r"(?:/([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z/[0-9a-f-]{36}))?$"
)
_CURSOR = re.compile(CURSOR, re.ASCII)


class TaskFilter(Struct, frozen=True, kw_only=True):
    """Which tasks of a tenant are asked for; None: any."""

    oid: str | None = None
    status: Status | None = None
    #: a key of the metadata, and its value as text
    metadata: tuple[str, str] | None = None

    def takes(self, task: object) -> bool:
        """Whether the task has the metadata. A damaged record always passes: its metadata is unknown."""
        if self.metadata is None or not isinstance(task, Head):
            return True
        name, value = self.metadata
        return name in task.metadata and _as_text(task.metadata[name]) == value


class _Place(Struct, frozen=True):
    """Where a page begins: at user number `number` of a tag, after the task that `after` names."""

    tag: str = ""
    number: int = 0
    after: str | None = None

    def cursor(self) -> str:
        return f"{self.tag}.{self.number}" + (f"/{self.after}" if self.after else "")


class TenantTasks:
    """Reads the list page by page."""

    def __init__(self, records: RecordStore, catalog: Catalog) -> None:
        self._records = records
        self._catalog = catalog

    async def page(self, tid: str, which: TaskFilter, *, cursor: str | None, limit: int) -> CatalogPage:
        """Heads (or `Damaged`). A page may be short, even empty, and still have a cursor."""
        begin = _place(cursor)
        if which.oid is not None:
            user = User(tid, which.oid)
            return await self._of_one(_Place(ids.owner_tag(user.key), 0, begin.after), user, which, limit)
        found: list[object] = []
        looked = 0
        async with aclosing(self._owners(begin)) as owners:
            async for place, owner in owners:
                if len(found) >= limit or looked == MOST_OWNERS:
                    return CatalogPage(found, place.cursor())
                looked += 1
                if isinstance(owner, Damaged):
                    found.append(owner)
                elif owner.tid == tid:
                    page = await self._of_one(place, owner, which, limit - len(found))
                    found += page.items
                    if page.cursor is not None:
                        return CatalogPage(found, page.cursor)
        return CatalogPage(found, None)

    async def _of_one(self, place: _Place, owner: User, which: TaskFilter, limit: int) -> CatalogPage:
        page = await self._catalog.tasks(
            self._records.partition(owner),
            session_id=None,
            status=which.status,
            cursor=place.after,
            limit=limit,
        )
        more = _Place(place.tag, place.number, page.cursor).cursor() if page.cursor else None
        return CatalogPage([task for task in page.items if which.takes(task)], more)

    async def _owners(self, begin: _Place) -> AsyncGenerator[tuple[_Place, User | Damaged]]:
        """The users of all tenants from `begin` on, by their tags, each with its place."""
        agent = self._records.agent
        for digit in keys.DIGITS[keys.DIGITS.index(begin.tag[0]) if begin.tag else 0 :]:
            partition = keys.owners(agent, digit)
            after = _before(begin.tag) if begin.tag.startswith(digit) else None
            while listed := await self._records.store.scan(
                partition, keys.owner(""), after=after, limit=PAGE
            ):
                for key, record in listed:
                    after, tag = key, keys.last_segment(key)
                    try:
                        users = unseal(partition, key, record.value, Owners).users
                    except CorruptState as error:
                        yield _Place(tag), Damaged("", error)
                        continue
                    for number, user in enumerate(users):
                        if (tag, number) == (begin.tag, begin.number):
                            yield begin, user
                        elif (tag, number) > (begin.tag, begin.number):
                            yield _Place(tag, number), user


def _before(tag: str) -> str | None:
    """The key after which a scan begins with `tag` itself; None: at the start."""
    less = int(tag, 16) - 1
    return keys.owner(f"{less:012x}") if less >= 0 else None


def _place(cursor: str | None) -> _Place:
    if cursor is None:
        return _Place()
    parts = _CURSOR.fullmatch(cursor)
    if parts is None:
        raise InvalidRequest("cursor", "must be the next_cursor of an earlier page")
    return _Place(parts[1], int(parts[2]), parts[3])


def _as_text(value: object) -> str:
    """A metadata value as filters write it: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
