"""Finds the owner of an id.

A caller's own records are found in the caller's partition, without any index. Only if an id is not there, its
possible owners are looked up: by the tag in the id (`ids.owner_tag`), or, for an id that was not made here (a
client's session, an imported task), by a locator. Both are hints: an owner is believed only if the record
exists in their partition.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.errors import Conflict, CorruptState, NotFound, NotOwner, TealError
from tealagents.domain.models import Caller, User
from tealagents.state import keys
from tealagents.state.codec import unseal
from tealagents.state.records import RecordStore

log = logging.getLogger(__name__)

#: seconds after which a locator may be taken over if no record with its id exists
CLAIM_SECONDS = 60.0
#: seconds for which a process does not check again that a user is listed
KNOWN_SECONDS = 60.0


class Owners(Struct, frozen=True):
    """`owner/{tag}`: the users with one tag; more than one only if digests collide."""

    users: tuple[User, ...]


class Locator(Struct, frozen=True):
    """`locator/{id}`: the owner of an id that was not made here."""

    owner: User
    #: the kinds of records with the id that exist, or are about to: "session", "task", "request"
    kinds: tuple[str, ...]
    #: seconds since the epoch, by the store's clock
    claimed_at: float


class Directory:
    """Finds owners, and lists new ones in the index."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._known: dict[str, float] = {}

    async def introduce(self, user: User) -> None:
        """Lists `user` in the index, if that has not been done yet."""
        now = self._records.clock.monotonic()
        if now - self._known.get(user.key, float("-inf")) < KNOWN_SECONDS:
            return
        tag = ids.owner_tag(user.key)
        partition, key = keys.owners(self._records.agent, tag), keys.owner(tag)
        while True:
            try:
                found = await self._records.get(partition, key, Owners)
            except CorruptState as error:
                log.error("the index of owners is damaged, so answers to others may be wrong: %s", error)
                return
            users = found.value.users if found else ()
            if user not in users:
                try:
                    await self._records.commit(
                        partition,
                        marker=key,
                        expect={key: found.version if found else None},
                        put={key: Owners((*users, user))},
                    )
                except Conflict:
                    continue
            if len(self._known) > 100_000:
                self._known.clear()
            self._known[user.key] = now
            return

    async def claim(self, kind: "Kind", identifier: str, user: User) -> None:
        """Makes `user` the owner of an id that was not made here; `NotOwner` if it is another user's."""
        if ids.is_made_for(user.key, identifier):  # its tag names the user already
            return
        partition, key = keys.locators(self._records.agent, identifier), keys.locator(identifier)
        word = WORDS[kind]
        while True:
            found = await self._records.get(partition, key, Locator)
            now = await self._records.store.now()
            own = found.value.kinds if found and found.value.owner == user else ()
            # an old claim is made anew: another user could take it over before the record is written
            if found and word in own and now - found.value.claimed_at < CLAIM_SECONDS / 2:
                return
            if found and not own and not await self._lapsed(found.value, identifier, now):
                raise anothers(kind, identifier)
            with suppress(Conflict):
                await self._records.commit(
                    partition,
                    marker=key,
                    expect={key: found.version if found else None},
                    put={key: Locator(user, tuple(dict.fromkeys((*own, word))), now)},
                )
                return

    async def claim_new(self, kind: "Kind", identifier: str, user: User) -> None:
        """Like `claim`, for an id that a client has chosen: another user may have a record with it."""
        await self.check_new(kind, identifier, user)
        await self.claim(kind, identifier, user)

    async def check_new(self, kind: "Kind", identifier: str, user: User) -> None:
        """`NotOwner` if an id from `user` was made for another user, or names one of that user's records.

        An id with the user's own tag is the user's, whatever others have, and even if its record is gone.
        """
        if ids.is_made_for(user.key, identifier):
            return
        key = kind(identifier)
        for other in await self.candidates(identifier):
            if other != user and (ids.is_made_for(other.key, identifier) or await self._has(other, key)):
                raise anothers(kind, identifier)

    async def release(
        self, kind: "Kind", identifier: str, user: User, *, unless: Callable[[], Awaitable[bool]]
    ) -> None:
        """Removes the claim on an id that was not made here, once the record of this `kind` is gone.

        The id stays the user's while it names a record of another kind, such as a session besides a task.
        `unless` is called after the locator was read, and returns whether a new record of this kind may exist
        by now; then the claim stays. A damaged locator is deleted: it was the user's, and no one else could
        claim the id while it exists.
        """
        if ids.is_made_for(user.key, identifier):
            return
        partition, key = keys.locators(self._records.agent, identifier), keys.locator(identifier)
        put = {}
        try:
            found = await self._records.get(partition, key, Locator)
            if found is None or found.value.owner != user:
                return
            version = found.version
            if left := tuple(each for each in found.value.kinds if each != WORDS[kind]):
                put[key] = replace(found.value, kinds=left)
        except CorruptState:
            damaged = await self._version_of_damaged(partition, key)
            if damaged is None:
                return
            version = damaged
        if await unless():
            return
        with suppress(Conflict):
            gone = [] if put else [key]
            await self._records.commit(partition, marker=key, expect={key: version}, put=put, delete=gone)

    async def _version_of_damaged(self, partition: str, key: str) -> str | None:
        """The version of a damaged record, to delete it; None if it is gone."""
        log.error("the record %r is damaged, and is deleted", key)
        page = await self._records.store.scan(partition, key, limit=1)  # which damage does not fail
        return page[0][1].version if page and page[0][0] == key else None

    async def _lapsed(self, locator: Locator, identifier: str, now: float) -> bool:
        if now - locator.claimed_at < CLAIM_SECONDS:
            return False
        partition = self._records.partition(locator.owner)
        names = [keys.session(identifier), keys.task(identifier), keys.request(identifier)]
        return not any(await self._records.store.read(partition, names))

    async def candidates(self, identifier: str) -> list[User]:
        """The users who may own the id, according to its tag and its locator."""
        tag = ids.tag_of(identifier)
        agent = self._records.agent
        listed = await self._records.get(keys.owners(agent, tag), keys.owner(tag), Owners)
        located = await self._records.get(keys.locators(agent, identifier), keys.locator(identifier), Locator)
        users = list(listed.value.users) if listed else []
        if located and located.value.owner not in users:
            users.append(located.value.owner)
        return users

    async def owner_of(self, identifier: str, key: str) -> User | None:
        """The user in whose partition the record `key` exists; None if there is none."""
        for user in await self.candidates(identifier):
            if await self._has(user, key):
                return user
        return None

    async def _has(self, user: User, key: str) -> bool:
        return await self._records.version(self._records.partition(user), key) is not None

    async def locate(
        self, caller: Caller, kind: "Kind", identifier: str, *, reading: bool = False, deciding: bool = False
    ) -> str:
        """The partition that holds a record the caller may use.

        `kind` is the key function of the record (`keys.task`, …). With `reading`, an auditor may use records
        of other users in the tenant; with `deciding`, an approver may. Raises `NotOwner` for another user's
        record and `NotFound` if there is none.
        """
        own = self._records.partition(caller.user)
        if await self._records.version(own, kind(identifier)) is not None:
            return own
        return await self.foreign(caller, kind, identifier, reading=reading, deciding=deciding)

    async def foreign(
        self, caller: Caller, kind: "Kind", identifier: str, *, reading: bool = False, deciding: bool = False
    ) -> str:
        """Like `locate`, for an id that is not in the caller's own partition."""
        owner = await self.owner_of(identifier, kind(identifier))
        if owner is None or owner == caller.user:
            word = WORDS[kind]
            raise NotFound(
                f"There is no {word} {identifier}. Check the id; it may have been deleted or expired."
            ).with_ids(**{f"{word}_id": identifier})
        allowed = (reading and caller.auditor) or (deciding and caller.approver)
        if allowed and owner.tid == caller.user.tid:
            return self._records.partition(owner)
        raise anothers(kind, identifier)

    async def knows(self, user: User) -> bool:
        """Whether the user is listed in the index; True if the index record is damaged."""
        tag = ids.owner_tag(user.key)
        try:
            found = await self._records.get(keys.owners(self._records.agent, tag), keys.owner(tag), Owners)
        except CorruptState:
            return True
        return found is not None and user in found.value.users

    async def forget(self, user: User) -> int:
        """Removes a user from the index, with all locators; returns how many records named the user."""
        forgotten = int(await self._forget_owner(user))
        for digit in keys.DIGITS:
            partition = keys.locators(self._records.agent, digit)
            async for key, record in self._records.every(partition, keys.locator("")):
                if self._is_of(partition, key, record.value, user):
                    await self._records.delete(partition, [key])
                    forgotten += 1
        self._known.pop(user.key, None)
        return forgotten

    @staticmethod
    def _is_of(partition: str, key: str, stored: bytes, user: User) -> bool:
        try:
            return unseal(partition, key, stored, Locator).owner == user
        except CorruptState as error:
            log.error("whose an id is cannot be read: %s", error)
            return False

    async def _forget_owner(self, user: User) -> bool:
        """Removes a user from the list; returns whether there was one to change.

        A damaged record is deleted. It may have listed other users with the same tag: they are listed again
        with their next request.
        """
        tag = ids.owner_tag(user.key)
        partition, key = keys.owners(self._records.agent, tag), keys.owner(tag)
        while True:
            left: tuple[User, ...] = ()
            version: str | None = None
            try:
                if (found := await self._records.get(partition, key, Owners)) is not None:
                    left = tuple(known for known in found.value.users if known != user)
                    version = found.version if left != found.value.users else None
            except CorruptState:
                version = await self._version_of_damaged(partition, key)
            if version is None:
                return False
            with suppress(Conflict):
                await self._records.commit(
                    partition,
                    marker=key,
                    expect={key: version},
                    put={key: Owners(left)} if left else {},
                    delete=[] if left else [key],
                )
                return True


Kind = Callable[[str], str]

#: each kind's word: in errors, in names like `task_id`, and in the locators that are stored
WORDS = {keys.task: "task", keys.session: "session", keys.request: "request", keys.approval: "approval"}


def anothers(kind: Kind, identifier: str) -> TealError:
    """The error for an id that belongs to another user."""
    word = WORDS[kind]
    return NotOwner(f"The {word} {identifier} belongs to another user. Check the id.").with_ids(
        **{f"{word}_id": identifier}
    )
