"""Saves whole threads (local, remote and workflow threads) in any store that the service can use."""

import logging
from collections.abc import AsyncIterator
from contextlib import suppress

from msgspec import Struct

from tealagents.domain import ids
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import Conflict, CorruptState, InvalidRequest, NotFound
from tealagents.domain.models import Json
from tealagents.domain.ports import SEALED, Store
from tealagents.state import keys
from tealagents.state.codec import UNOPENED, decoder, encode_json, unseal
from tealagents.state.inventory import LOOKED_AT
from tealagents.state.out_of_line import BLOB_BYTES, BlobRef
from tealagents.state.records import ERASED_AT_ONCE, RecordStore
from tealagents.threads.base import AgentThread, ThreadDeleted
from tealagents.threads.message_stores import MessageStoreFactory
from tealagents.threads.workflow import thread_of

log = logging.getLogger(__name__)


class StoredThread(Struct, frozen=True, kw_only=True):
    """`thread/{name}`: the thread's document, or a reference to it if it is stored out of line."""

    #: for a thread whose name is a digest of its id
    thread_id: str
    document: Json | None = None
    #: the chunks of a document that is stored out of line
    chunks: BlobRef | None = None


class ThreadStore:
    """Saves whole threads in an opened store, under the name of an agent.

        async with open_store("sqlite:///threads.db") as store:
            threads = ThreadStore(store, "WikipediaAgent")
            await threads.save(thread)
            thread = await threads.load(thread_id)

    The last save wins. Nothing is saved in a store whose threads are encrypted with a key that is not set.
    """

    def __init__(self, store: Store, agent: str) -> None:
        """`agent` is its name. `InvalidRequest` if it is something else, such as the agent itself."""
        if not isinstance(agent, str):
            raise InvalidRequest("agent", f"must be the agent's name, not {type(agent).__name__}")
        self._records = RecordStore(store, agent, SystemClock())
        self._partition = keys.threads(agent)
        self._key_checked = False

    async def save(self, thread: AgentThread) -> None:
        """Saves the thread as it is now, including its providers' state.

        `CorruptState` if the stored threads are encrypted and the key is not set.
        """
        _check_thread(thread)
        await self._check_key()
        document = thread.document()
        name = keys.plain(thread.thread_id)
        key = keys.THREADS + name
        kept = StoredThread(thread_id=thread.thread_id, document=document)
        is_large = len(encode_json(document)) > BLOB_BYTES
        while True:
            # read before the chunks are written, so that a deletion, which erases them, causes a conflict
            before = await self._records.get(self._partition, key, StoredThread)
            expect = {key: before.version if before else None}
            if is_large:
                # chunks are named by their digest. A random id makes them differ for each attempt: another
                # save must not share or drop them, and a deletion must not be erasing them already
                data = encode_json({**document, "saved": ids.random_id()})
                chunks = await self._records.put_blob(self._partition, name, data)
                kept = StoredThread(thread_id=thread.thread_id, chunks=chunks)
                # where there is no record yet, a deletion changes none, and is noticed by the chunks alone
                names = chunks.keys(name)[:1]
                (first,) = await self._records.store.read(self._partition, names)
                if first is None:
                    await self._drop(name, chunks)
                    continue
                expect[names[0]] = first.version
            try:
                await self._records.commit(self._partition, marker=key, expect=expect, put={key: kept})
            except Conflict:
                await self._drop(name, kept.chunks)
                continue
            break
        if before is not None:
            await self._drop(name, before.value.chunks)

    async def _check_key(self) -> None:
        """`CorruptState` if the stored threads are encrypted and cannot be read: a new one would be stored
        among them unencrypted."""
        if not self._key_checked:
            found = await self._records.store.scan(
                self._partition, keys.THREADS, limit=LOOKED_AT, reverse=True
            )
            sealed = [key for key, record in found if record.value.startswith(SEALED)]
            if sealed and len(sealed) == len(found):  # a few alone are damaged, or of an old key that is gone
                raise CorruptState(sealed[0], UNOPENED)
            self._key_checked = True

    async def load(self, thread_id: str, *, stores: MessageStoreFactory | None = None) -> AgentThread:
        """The thread as it was last saved; `stores` makes its message store.

        `NotFound` if there is none, `CorruptState` if it cannot be read.
        """
        given: object = thread_id
        if not isinstance(given, str):
            raise InvalidRequest("thread_id", f"must be the id of a thread, not {type(given).__name__}")
        name = keys.plain(thread_id)
        key = keys.THREADS + name
        found = await self._records.get(self._partition, key, StoredThread)
        if found is None:
            raise NotFound(f"There is no thread {thread_id}.")
        if found.value.chunks is None:
            return thread_of(found.value.document or {}, stores=stores)
        try:
            data = await self._records.get_blob(self._partition, name, found.value.chunks)
        except CorruptState:
            again = await self._records.get(self._partition, key, StoredThread)
            if again is not None and again.version == found.version:
                raise
            return await self.load(thread_id, stores=stores)  # another save has replaced the chunks
        return thread_of(decoder(dict).decode(data), stores=stores)

    async def list(self) -> AsyncIterator[str]:
        """The ids of all stored threads. One that cannot be found out is logged and left out."""
        async for key, record in self._records.every(self._partition, keys.THREADS):
            name = keys.last_segment(key)
            if keys.plain(name) != name:  # the name is a digest; the id is in the record
                try:
                    name = unseal(self._partition, key, record.value, StoredThread).thread_id
                except CorruptState as error:
                    log.error("a thread is not listed: %s", error)
                    continue
            yield name

    async def delete(self, thread: AgentThread) -> None:
        """Erases a thread here, and wherever its messages are kept."""
        _check_thread(thread)
        name = keys.plain(thread.thread_id)
        key = keys.THREADS + name
        with suppress(ThreadDeleted):  # by an earlier attempt that got no further
            await thread.delete()
        while True:
            found = await self._records.store.scan(self._partition, key, limit=1)  # reads damaged ones, too
            version = found[0][1].version if found and found[0][0] == key else None
            # listed before the commit: the chunks of a save that begins after it must stay
            chunks = self._records.every(self._partition, keys.blobs(name), page=ERASED_AT_ONCE)
            erased = [chunk async for chunk, _ in chunks]
            try:
                await self._records.commit(self._partition, marker=key, expect={key: version}, delete=[key])
                # without a record, they may be those of a first save under way: all of it goes, or none
                whole = {key: None} if version is None else {}
                await self._records.delete(self._partition, erased, expect=whole)
            except Conflict:  # with a save, whose chunks may not be listed
                continue
            break

    async def _drop(self, name: str, old: BlobRef | None) -> None:
        """Erases the chunks of a version that was not saved or has been replaced."""
        if old is not None:
            await self._records.delete(self._partition, old.keys(name))


def _check_thread(thread: object) -> None:
    """`InvalidRequest` for what is no thread, such as the id of one, which does not say where it is kept."""
    if not isinstance(thread, AgentThread):
        raise InvalidRequest("thread", f"must be a thread, as `load` returns it, not {type(thread).__name__}")
