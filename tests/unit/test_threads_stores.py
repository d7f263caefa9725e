"""Where threads of the library keep their messages, and where whole threads are saved."""

import asyncio
import fcntl
import logging
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.crc import key_slot
from threads_setup import exchange, rounds, said, tool_round

from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import CorruptState, InvalidRequest, NotFound, PersistenceUnavailable
from tealagents.domain.models import Message, User
from tealagents.domain.ports import Commit, WrappedStore
from tealagents.state import keys
from tealagents.state.inventory import Inventory
from tealagents.state.owner_directory import Directory
from tealagents.state.records import RecordStore
from tealagents.stores import StoreConfigError, open_store, sealed
from tealagents.stores.encrypted import Cipher, EncryptedStore
from tealagents.stores.memory import MemoryStore
from tealagents.testing.faults import FaultProxy, Faults, full_disk
from tealagents.testing.pytest_servers import running
from tealagents.testing.servers import RedisCluster, RedisServer
from tealagents.testing.waits import eventually
from tealagents.threads import (
    FileMessages,
    LocalThread,
    MemoryMessages,
    RedisMessages,
    RemoteThread,
    ThreadStore,
    WorkflowThread,
    message_stores,
)
from tealagents.threads.errors import ThreadConfigError
from tealagents.threads.message_stores import MessageStoreFactory, SealedMessages

pytest_plugins = ["tealagents.testing.pytest_servers"]


@pytest.fixture(params=["memory", "file", "redis"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> MessageStoreFactory:
    """A factory of each kind."""
    if request.param == "memory":
        return MemoryMessages
    if request.param == "file":
        return lambda: FileMessages(tmp_path)
    server: RedisServer = request.getfixturevalue("redis_server")
    return lambda: RedisMessages(server.url)


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


# --- the protocol ---------------------------------------------------------------------------------


async def test_messages_are_kept_in_order(stores: MessageStoreFactory) -> None:
    """All of each, whatever is in them. covers: THREAD-9"""
    store = stores()
    assert await store.list_messages() == []
    first = [said("user", "hé\n\x00 漢"), *tool_round("r1", "r2")]
    await store.add_messages(first)
    await store.add_messages([])
    second = exchange("q", "a")
    await store.add_messages(second)
    assert await store.list_messages() == [*first, *second]


async def test_each_thread_has_a_store_of_its_own(stores: MessageStoreFactory) -> None:
    """Made by the factory, with a key of its own. covers: THREAD-9"""
    one, other = LocalThread(stores=stores), LocalThread(stores=stores)
    await one.on_new_messages(exchange("q", "a"))
    await other.create()
    assert other.messages == []


async def test_a_store_is_found_again(stores: MessageStoreFactory) -> None:
    """From what the thread's JSON holds of it. covers: THREAD-9"""
    thread = LocalThread(stores=stores)
    await thread.on_new_messages(exchange("q0", "a0"))
    early = thread.checkpoint()
    await thread.on_new_messages(exchange("q1", "a1"))
    text = thread.to_json()
    again = LocalThread.from_json(text, stores=stores)
    await again.create()
    assert texts(list(again.messages)) == ["q0", "a0", "q1", "a1"]
    again.rollback(early)
    assert texts(list(again.messages)) == ["q0", "a0"]


async def test_a_fork_has_a_store_of_its_own(stores: MessageStoreFactory) -> None:
    """Filled with the prefix; its origin may be deleted. covers: THREAD-6, THREAD-9"""
    thread = LocalThread(stores=stores)
    await thread.on_new_messages([*exchange("q0", "a0"), *exchange("q1", "a1")])
    fork = thread.fork(thread.messages[1].message_id)
    await fork.on_new_messages(exchange("other", "way"))
    await thread.delete()
    again = LocalThread.from_json(fork.to_json(), stores=stores)
    await again.create()
    assert texts(list(again.messages)) == ["q0", "a0", "other", "way"]


async def test_deleting_a_thread_empties_its_store(stores: MessageStoreFactory) -> None:
    """For ever. covers: THREAD-6"""
    store = stores()
    thread = LocalThread(store=store)
    await thread.create()
    await thread.on_new_messages(exchange("q", "a"))
    await thread.delete()
    assert await store.list_messages() == []


async def test_the_names_of_a_new_file_and_its_folders_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lines are of no use where a crash of the machine forgets the file."""
    synced: list[str] = []
    real = os.fsync

    def noting(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", noting)
    store = FileMessages(tmp_path / "a" / "b")
    await store.add_messages(exchange("hello", "hi"))
    assert sorted(synced) == sorted(map(str, (tmp_path, tmp_path / "a", tmp_path / "a" / "b", store.path)))
    synced.clear()
    await store.add_messages(exchange("again", "hi"))
    assert synced == [str(store.path)]


async def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    """No other user of the machine reads what was said, as with every other store on it."""
    store = FileMessages(tmp_path / "threads")
    await store.add_messages([said("user", "for us alone")])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (store.path.parent, store.path)] == [0o700, 0o600]


async def test_a_thread_with_a_store_must_be_read_first(tmp_path: Path) -> None:
    """What is in the store is not known before; nothing is made up."""
    thread = LocalThread(stores=lambda: FileMessages(tmp_path))
    await thread.on_new_messages(exchange("q", "a"))
    again = LocalThread.from_json(thread.to_json(), stores=lambda: FileMessages(tmp_path))
    with pytest.raises(InvalidRequest, match=r"await thread\.create\(\) first"):
        _ = again.messages
    with pytest.raises(InvalidRequest, match="give `stores`"):
        LocalThread.from_json(thread.to_json())


async def test_what_others_have_added_is_at_the_end(tmp_path: Path) -> None:
    """Another process has continued with the same store."""
    thread = LocalThread(stores=lambda: FileMessages(tmp_path))
    await thread.on_new_messages(exchange("q0", "a0"))
    thread.checkpoint()
    text = thread.to_json()
    await thread.on_new_messages(exchange("q1", "a1"))
    again = LocalThread.from_json(text, stores=lambda: FileMessages(tmp_path))
    await again.create()
    assert texts(list(again.messages)) == ["q0", "a0", "q1", "a1"]


async def test_rounds_keep_their_numbers_when_others_add(tmp_path: Path) -> None:
    """A summary says by the number of a round how far it reaches: no message falls behind it unread."""
    thread = LocalThread(store=FileMessages(tmp_path, "shared"))
    await thread.on_new_messages(exchange("q0", "a0"))
    before = thread.parts()[0].turn
    others = FileMessages(tmp_path, "shared")
    await others.add_messages([*exchange("q1", "a1"), *exchange("q2", "a2")])
    await thread.create()
    assert [part.turn - before for part in thread.parts() if part.begins] == [0, 1, 2]
    await others.add_messages(exchange("q3", "a3"))
    await thread.on_new_messages(exchange("q4", "a4"))
    again = LocalThread.from_json(thread.to_json(), stores=lambda: FileMessages(tmp_path))
    await again.create()
    assert [part.turn - before for part in again.parts() if part.begins] == [0, 1, 2, 3, 4]


async def test_messages_in_a_store_can_be_edited(stores: MessageStoreFactory) -> None:
    """In any store: the edit is the thread's, which has it again from JSON. covers: THREAD-9"""
    thread = LocalThread(stores=stores)
    await thread.on_new_messages(exchange("q", "a"))
    early = thread.checkpoint()
    await thread.edit(thread.messages[0].message_id, "edited")
    again = LocalThread.from_json(thread.to_json(), stores=stores)
    await again.create()
    assert texts(list(again.messages)) == ["edited", "a"]
    again.rollback(early)
    assert texts(list(again.messages)) == ["q", "a"]


async def test_what_was_rolled_back_does_not_come_back(stores: MessageStoreFactory) -> None:
    """Messages without a checkpoint are gone, also when the thread is opened again.

    covers: THREAD-7, THREAD-9
    """
    thread = LocalThread(stores=stores)
    await thread.on_new_messages(exchange("q0", "a0"))
    early = thread.checkpoint()
    await thread.on_new_messages(exchange("q1", "a1"))
    thread.rollback(early)
    unread = LocalThread.from_json(thread.to_json(), stores=stores)
    unread.rollback(early)
    for each in (thread, thread.copy(), unread, LocalThread.from_json(thread.to_json(), stores=stores)):
        await each.create()
        assert texts(list(each.messages)) == ["q0", "a0"]
    await thread.on_new_messages(exchange("q2", "a2"))
    again = LocalThread.from_json(thread.to_json(), stores=stores)
    await again.create()
    assert texts(list(again.messages)) == ["q0", "a0", "q2", "a2"]


async def test_unstored_messages_that_were_rolled_back_are_not_stored() -> None:
    """Nor written into JSON, with a store or without. covers: THREAD-7"""
    store = MemoryMessages()
    stores = iter([MemoryMessages(), store])
    for origin in (LocalThread(stores=lambda: next(stores)), LocalThread()):
        await origin.on_new_messages(exchange("q", "a"))
        thread = origin.fork()
        thread.rewind()
        await thread.create()
        assert thread.messages == []
        assert "assistant" not in thread.to_json()
    assert await store.list_messages() == []


async def test_a_bounded_store_bounds_the_thread_in_use(redis_server: RedisServer) -> None:
    """What the store lets go is not sent to the model either; forks and copies have it no more.
    covers: THREAD-9"""
    thread = LocalThread(stores=lambda: RedisMessages(redis_server.url, max_messages=5))
    for n in range(6):
        await thread.on_new_messages(exchange(f"q{n}", f"a{n}"))
        if n % 2:
            thread.checkpoint()
        assert len(thread.messages) == min(2 * n + 2, 5)
    for each in (thread, thread.fork(), thread.copy()):
        assert texts(list(each.messages)) == ["a3", "q4", "a4", "q5", "a5"]
        assert sum(len(part.messages) for part in each.parts()) == 5


async def test_what_others_add_is_seen_before_the_next_use(tmp_path: Path) -> None:
    """By a thread that is open already. covers: THREAD-9"""
    thread = LocalThread(store=(store := FileMessages(tmp_path)))
    await thread.on_new_messages(exchange("q0", "a0"))
    await store.add_messages(exchange("q1", "a1"))
    await thread.create()
    assert texts(list(thread.messages)) == ["q0", "a0", "q1", "a1"]


async def test_a_round_that_another_process_is_writing_is_read_as_a_whole(tmp_path: Path) -> None:
    """A call of a tool without its result would be refused by the model service."""
    store = FileMessages(tmp_path)
    await store.add_messages(exchange("q0", "a0"))
    first, second = (msgspec.json.encode(message) + b"\n" for message in exchange("q1", "a1"))
    with open(store.path, "ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(first)
        reading = asyncio.create_task(store.list_messages())
        await asyncio.wait([reading], timeout=0.2)
        file.write(second)
    assert texts(await reading) == ["q0", "a0", "q1", "a1"]


def test_remote_threads_use_no_message_store(caplog: pytest.LogCaptureFixture) -> None:
    """It is ignored, with a warning. covers: THREAD-9"""
    text = RemoteThread("resp_1").to_json()
    with caplog.at_level(logging.WARNING):
        assert RemoteThread.from_json(text, stores=MemoryMessages).remote_id == "resp_1"
    assert "a remote thread uses no message store" in caplog.text


class Failing(MemoryMessages):
    """Refuses the next so many calls that change it, perhaps after it has done what it was asked."""

    late = False

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("no")

    async def add_messages(self, messages: Sequence[Message]) -> None:
        if self.late:
            await super().add_messages(messages)
        self._fail()
        if not self.late:
            await super().add_messages(messages)

    async def clear(self) -> None:
        self._fail()
        await super().clear()


async def test_what_a_store_refused_is_stored_the_next_time() -> None:
    """A store that fails once costs no message."""
    store = Failing(1)
    thread = LocalThread(exchange("q", "a"), store=store)
    with pytest.raises(OSError, match="no"):
        await thread.create()
    await thread.on_new_messages(exchange("q1", "a1"))
    assert texts(await store.list_messages()) == ["q", "a", "q1", "a1"]


@pytest.mark.parametrize("late", [False, True])
async def test_messages_that_failed_to_be_added_are_no_part_of_the_thread(late: bool) -> None:
    """Whether the store has them or not; added again they are there once. covers: THREAD-9"""
    store = Failing(0)
    thread = LocalThread(store=store)
    await thread.on_new_messages(exchange("q", "a"))
    store.failures, store.late = 1, late
    lost = exchange("q1", "a1")
    with pytest.raises(OSError, match="no"):
        await thread.on_new_messages(lost)
    store.late = False
    await thread.create()
    assert texts(list(thread.messages)) == ["q", "a"]
    await thread.on_new_messages(lost)
    await thread.create()
    assert texts(list(thread.messages)) == ["q", "a", "q1", "a1"]


async def test_messages_that_arrive_after_their_write_was_canceled_are_no_part_of_the_thread() -> None:
    """A store may still be writing when its caller is canceled, and be read before it has written.

    covers: THREAD-9
    """

    class Slow(MemoryMessages):
        async def add_messages(self, messages: Sequence[Message]) -> None:
            self.written = messages
            await asyncio.Event().wait()

    store = Slow()
    thread = LocalThread(store=store)
    adding = asyncio.create_task(thread.on_new_messages(exchange("q", "a")))
    await eventually(lambda: hasattr(store, "written"), every=0)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    await thread.create()
    again = LocalThread.from_json(thread.to_json(), stores=MemoryMessages)
    assert again._stored is not None
    for each, there in ((thread, store), (again, again._stored.store)):
        await MemoryMessages.add_messages(cast(MemoryMessages, there), store.written)
        await each.create()
        assert not each.messages


async def test_a_delete_that_failed_can_be_repeated() -> None:
    """The thread is there until its messages are gone. covers: THREAD-6"""
    store = Failing(0)
    thread = LocalThread(exchange("q", "a"), store=store)
    await thread.create()
    store.failures = 1
    with pytest.raises(OSError, match="no"):
        await thread.delete()
    await thread.delete()
    assert await store.list_messages() == []


# --- files ----------------------------------------------------------------------------------------


async def test_a_file_that_was_cleared_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write whose caller was canceled may still be under way when its thread is deleted.

    covers: THREAD-6
    """
    started, unblocked = threading.Event(), threading.Event()

    def blocked(_: str) -> None:
        started.set()
        unblocked.wait(10)

    monkeypatch.setattr(message_stores, "make_folders", blocked)
    store = FileMessages(tmp_path)
    adding = asyncio.create_task(store.add_messages(exchange("q", "a")))
    await eventually(started.is_set)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    clearing = asyncio.create_task(store.clear())
    await asyncio.wait([clearing], timeout=0.2)
    unblocked.set()
    await clearing
    await asyncio.get_running_loop().shutdown_default_executor()
    assert not store.path.exists()


async def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    """What a crash left is cut off by the next message; a line that is damaged is reported."""
    store = FileMessages(tmp_path, "k")
    await store.add_messages(exchange("q0", "a0"))
    whole = store.path.read_bytes()
    for cut in (1, 20, len(whole) // 4):
        store.path.write_bytes(whole + whole[:cut])
        assert texts(await store.list_messages()) == ["q0", "a0"]
        await store.add_messages(exchange("q1", "a1"))
        assert texts(await store.list_messages()) == ["q0", "a0", "q1", "a1"]
        store.path.write_bytes(whole)
    store.path.write_bytes(b"{}\n" + whole)
    with pytest.raises(CorruptState):
        await store.list_messages()


async def test_messages_that_do_not_fit_on_the_disk_leave_nothing(tmp_path: Path) -> None:
    """A round of which only a part could be written is not there; the next one is."""
    store = FileMessages(tmp_path, "k")
    await store.add_messages(exchange("q0", "a0"))
    with full_disk(100_000), pytest.raises(PersistenceUnavailable, match=r"k\.jsonl: File too large"):
        await store.add_messages(exchange("q1", "a" * 200_000))
    assert texts(await store.list_messages()) == ["q0", "a0"]
    await store.add_messages(exchange("q2", "a2"))
    assert texts(await store.list_messages()) == ["q0", "a0", "q2", "a2"]


async def test_a_folder_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    """It is the error of every store that cannot be reached."""
    (tmp_path / "taken").touch()
    store = FileMessages(tmp_path / "taken", "k")
    with pytest.raises(PersistenceUnavailable, match=r"taken/k\.jsonl: Not a directory"):
        await store.add_messages(exchange("q", "a"))
    with pytest.raises(PersistenceUnavailable, match=r"taken/k\.jsonl: Not a directory"):
        await store.list_messages()


async def test_messages_added_to_a_file_at_once_are_all_kept(tmp_path: Path) -> None:
    """Nothing is cut off that another has just written."""
    store = FileMessages(tmp_path, "k")
    first = said("user", "first")
    await store.add_messages([first])
    for _ in range(5):
        adding = [store.add_messages(exchange("q", "a")) for _ in range(20)]
        await asyncio.gather(*adding)
    assert texts(await store.list_messages()) == ["first", *(["q", "a"] * 100)]


def test_a_key_that_can_be_written_can_be_read(tmp_path: Path) -> None:
    """And one that could not is refused at once."""
    for key in ("user_42", "user:1", "ada@example.com", "é"):
        store = FileMessages(tmp_path, key)
        again = FileMessages(tmp_path)
        again.update_from_state(store.serialize())
        assert again.path == store.path
    for key in ("a/b", "../a", ".a", "a b"):
        with pytest.raises(ValueError, match="a key has letters"):
            FileMessages(tmp_path, key)


def test_a_key_is_no_path(tmp_path: Path) -> None:
    """What a document says of a store cannot name files elsewhere."""
    with pytest.raises(CorruptState):
        FileMessages(tmp_path).update_from_state({"key": "../etc/passwd"})


@pytest.mark.parametrize(
    "store", [{}, {"key": 5}, {"key": "../a"}, {"key": "k"}, {"key": "k", "messages": 5}]
)
def test_what_no_message_store_wrote_is_refused(store: dict[str, object]) -> None:
    """As anything else in a thread's JSON that is not as it was written. covers: THREAD-5"""
    document = {**LocalThread(stores=MemoryMessages).document(), "store": store}
    with pytest.raises(InvalidRequest):
        LocalThread.from_json(msgspec.json.encode(document), stores=MemoryMessages)


def test_a_document_does_not_choose_the_folder(tmp_path: Path) -> None:
    """The factory names it, also where it is another one than when the thread was saved."""
    written = LocalThread(stores=lambda: FileMessages(tmp_path / "old")).to_json()
    opened = LocalThread.from_json(written, stores=lambda: FileMessages(tmp_path / "new"))
    assert opened._stored is not None
    assert isinstance(opened._stored.store, FileMessages)
    assert opened._stored.store.path.parent == tmp_path / "new"
    assert str(tmp_path) not in str(written)


# --- redis ----------------------------------------------------------------------------------------


async def test_redis_keeps_the_last_messages(redis_server: RedisServer) -> None:
    """As many as `max_messages` says, the oldest go first. covers: THREAD-9"""
    store = RedisMessages(redis_server.url, max_messages=3)
    for n in range(4):
        await store.add_messages(exchange(f"q{n}", f"a{n}"))
    assert texts(await store.list_messages()) == ["a2", "q3", "a3"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversation=st.lists(rounds(), min_size=1, max_size=6), most=st.integers(1, 12))
async def test_redis_never_separates_a_call_from_its_result(
    redis_server: RedisServer, conversation: list[list[Message]], most: int
) -> None:
    """Whatever the limit: what is left is the end of the conversation, and begins with no result.
    covers: THREAD-9"""
    store = RedisMessages(redis_server.url, max_messages=most)
    everything: list[Message] = []
    for messages in conversation:
        await store.add_messages(messages)
        everything += messages
        kept = await store.list_messages()
        assert len(kept) <= most
        assert not kept or kept == everything[-len(kept) :]
        assert not kept or kept[0].role != "tool"
        dropped = everything[: len(everything) - len(kept)]
        called = {call.id for message in dropped for call in message.tool_calls}
        assert not called & {message.tool_call_id for message in kept}


async def test_messages_added_at_once_are_all_kept(redis_server: RedisServer) -> None:
    """Each addition in one piece. covers: THREAD-9"""
    store = RedisMessages(redis_server.url)
    await asyncio.gather(*(store.add_messages(exchange(f"q{n}", f"a{n}")) for n in range(20)))
    kept = texts(await store.list_messages())
    assert len(kept) == 40
    assert all(kept[n + 1] == "a" + kept[n][1:] for n in range(0, 40, 2))


async def test_a_lost_reply_adds_nothing_twice(redis_server: RedisServer) -> None:
    """The connection breaks at any byte of the answer: it is sent again, and done once. covers: THREAD-9"""
    async with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        store = RedisMessages(proxy.url_for(redis_server.url))

        async def added(cut: int) -> bool:
            """Whether the connection lived until the answer had come."""
            proxy.upcoming[:] = [Faults(cut_replies_after=cut), Faults()]
            sent.append(f"cut after {cut}")
            await store.add_messages([said("user", sent[-1])])
            return len(proxy.upcoming) == 1

        sent: list[str] = []
        low, high = 1, 4096
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if await added(middle) else (middle + 1, high)
        for cut in range(low - 8, low + 1):
            await added(cut)
        proxy.upcoming.clear()
        assert texts(await store.list_messages()) == sent


async def test_each_node_of_a_cluster_keeps_messages_of_threads(redis_cluster: RedisCluster) -> None:
    """Whichever node the URL names. covers: THREAD-9"""
    one, another, _ = redis_cluster.nodes
    for n in range(12):
        await RedisMessages(one.url, f"thread-{n}").add_messages([said("user", f"q{n}")])
        assert texts(await RedisMessages(another.url, f"thread-{n}").list_messages()) == [f"q{n}"]
    assert all(node.ask("DBSIZE") != ":0" for node in redis_cluster.nodes)


async def test_messages_can_be_read_while_a_cluster_moves_them() -> None:
    """They are at the node that their slot moves to, which the other one names. covers: THREAD-9"""
    with running(RedisCluster) as cluster:
        source, target, _ = cluster.nodes
        key = next(key for key in map(str, range(99)) if key_slot(key.encode()) < 5461)
        store = RedisMessages(source.url, key)
        await store.add_messages([said("user", "q")])
        slot = str(key_slot(key.encode()))
        target.expect_ok("CLUSTER", "SETSLOT", slot, "IMPORTING", source.ask("CLUSTER", "MYID"))
        source.expect_ok("CLUSTER", "SETSLOT", slot, "MIGRATING", target.ask("CLUSTER", "MYID"))
        for name in source.ask("CLUSTER", "GETKEYSINSLOT", slot, "9").splitlines():
            source.expect_ok("MIGRATE", target.host, str(target.port), name, "0", "2000")
        assert texts(await store.list_messages()) == ["q"]


async def test_redis_away_is_a_clear_error(redis_server: RedisServer) -> None:
    """Without the password that the URL may hold."""
    store = RedisMessages("redis://:secret@127.0.0.1:1")
    with pytest.raises(PersistenceUnavailable, match="Redis cannot be reached") as away:
        await store.add_messages(exchange("q", "a"))
    assert "secret" not in str(away.value)
    assert "secret" not in msgspec.json.encode(store.serialize()).decode()
    with pytest.raises(ValueError, match="at least 1"):
        RedisMessages(redis_server.url, max_messages=0)


# --- whole threads --------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", "file", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "redis":
        yield request.getfixturevalue("redis_url")
    else:
        yield {
            "memory": "memory://",
            "sqlite": f"sqlite:///{tmp_path}/threads.db",
            "file": f"file:///{tmp_path}/threads",
        }[request.param]


def small() -> LocalThread:
    return LocalThread(exchange("q", "a"))


def large() -> LocalThread:
    return LocalThread([said("user", "word " * 200_000)])


@pytest.mark.parametrize(
    "make", [small, large, lambda: RemoteThread("resp_1"), lambda: WorkflowThread(["one"])]
)
async def test_one_abstraction_keeps_every_kind(url: str, make: Callable[[], LocalThread]) -> None:
    """Local, remote, of workflows, small and large; saved again, and deleted. covers: THREAD-1, THREAD-5"""
    async with open_store(url) as store:
        threads = ThreadStore(store, "Tester")
        thread = make()
        thread.checkpoint()
        await threads.save(thread)
        assert [each async for each in threads.list()] == [thread.thread_id]
        again = await threads.load(thread.thread_id)
        assert type(again) is type(thread)
        assert again.to_json() == thread.to_json()
        again.checkpoint()
        await threads.save(again)
        assert len((await threads.load(thread.thread_id)).checkpoints) == 2
        if not isinstance(again, RemoteThread):
            await threads.delete(again)
            with pytest.raises(NotFound):
                await threads.load(thread.thread_id)
            assert [each async for each in threads.list()] == []


async def test_what_is_no_thread_or_no_name_is_reported(url: str) -> None:
    """An agent in the place of its name, and an id in the place of a thread, as `load` takes it."""
    given: Any = LocalThread()
    async with open_store(url) as store:
        with pytest.raises(InvalidRequest, match="agent: must be the agent's name, not LocalThread"):
            ThreadStore(store, given)
        threads, given = ThreadStore(store, "Tester"), given.thread_id
        for call in (threads.save, threads.delete):
            with pytest.raises(InvalidRequest, match=r"thread: must be a thread, .* not str"):
                await call(given)


@pytest.mark.parametrize("make", [small, large])
async def test_threads_are_told_apart_by_any_ids(url: str, make: Callable[[], LocalThread]) -> None:
    """Deleting one leaves those whose ids begin with its own; each is loaded by what is listed.

    covers: THREAD-5
    """
    names = ["team", "team/7", "user 42", "user:42", "ü", "x" * 300]
    async with open_store(url) as store:
        threads = ThreadStore(store, "Tester")
        for name in names:
            thread = make()
            thread.thread_id = name
            await threads.save(thread)
        assert sorted([each async for each in threads.list()]) == sorted(names)
        while names:
            await threads.delete(await threads.load(names.pop(0)))
            assert [(await threads.load(name)).thread_id for name in names] == names
            assert sorted([each async for each in threads.list()]) == sorted(names)
        assert await store.scan(keys.threads("Tester"), "", limit=1) == []


async def test_the_last_of_two_savers_wins(url: str) -> None:
    """Each save of a large thread is whole, whatever others save of it, and so is what is read meanwhile."""
    async with open_store(url) as store:
        threads = ThreadStore(store, "Tester")
        thread = large()
        copies = [LocalThread.from_json(thread.to_json()) for _ in range(2)]
        for number, copied in enumerate(copies):
            await copied.on_new_messages([said("user", f"by {number}")])
        await threads.save(thread)
        for _ in range(4):
            reading = asyncio.create_task(threads.load(thread.thread_id))
            await asyncio.gather(*map(threads.save, copies))
            assert texts(list((await reading).messages))[1:] in ([], ["by 0"], ["by 1"])
            found = await threads.load(thread.thread_id)
            assert texts(list(found.messages))[1:] in (["by 0"], ["by 1"])
        await threads.delete(found)
        assert await store.scan(keys.threads("Tester"), "", limit=1) == []


class Interrupted(WrappedStore):
    """Another process does something once, before or after the first commit that `meets` says."""

    meets: Callable[[Commit], bool] | None = None
    after = False

    async def other(self) -> None:
        raise NotImplementedError

    async def commit(self, partition: str, commit: Commit) -> None:
        now = self.meets is not None and self.meets(commit)
        if now:
            self.meets = None
        if now and not self.after:
            await self.other()
        await self.store.commit(partition, commit)
        if now and self.after:
            await self.other()


@pytest.mark.parametrize("make", [small, large])
@pytest.mark.parametrize("written", ["thread/", "blob/", "more than blob/"])
@pytest.mark.parametrize("again", [True, False], ids=["saved before", "saved first"])
async def test_a_save_that_meets_a_deletion_is_there_whole(
    make: Callable[[], LocalThread], written: str, again: bool
) -> None:
    """Whether its record was not yet written, or nothing of it, or a part: the last save wins."""
    async with Interrupted(MemoryStore()) as store:
        threads, others = ThreadStore(store, "Tester"), ThreadStore(store.store, "Tester")
        thread = make()
        if again:
            await threads.save(thread)
        copied = LocalThread.from_json(thread.to_json())
        store.meets = lambda commit: any(key.startswith(written.split()[-1]) for key in commit.put)
        store.after = written == "more than blob/"
        store.other = lambda: others.delete(copied)  # type: ignore[method-assign]
        await threads.save(thread)
        assert (await others.load(thread.thread_id)).to_json() == thread.to_json()
        await threads.delete(thread)
        assert await store.scan(keys.threads("Tester"), "", limit=1) == []


@pytest.mark.parametrize("make", [small, large])
async def test_a_save_in_the_middle_of_a_deletion_is_there_whole(make: Callable[[], LocalThread]) -> None:
    """The deletion has erased the record, and goes on to what is out of line: not to what was saved since."""
    async with Interrupted(MemoryStore()) as store:
        threads, others = ThreadStore(store, "Tester"), ThreadStore(store.store, "Tester")
        thread = make()
        await threads.save(thread)
        copied = await others.load(thread.thread_id)
        store.meets, store.after = lambda commit: bool(commit.delete), True
        store.other = lambda: others.save(copied)  # type: ignore[method-assign]
        await threads.delete(thread)
        assert (await others.load(copied.thread_id)).to_json() == copied.to_json()


async def test_a_first_save_that_ends_in_the_middle_of_a_deletion_leaves_no_half_of_it() -> None:
    """The deletion found no record, but what the save had written out of line, and is to erase that."""
    async with MemoryStore() as kept:
        saving, deleting, saved = Interrupted(kept), Interrupted(kept), asyncio.Event()
        threads, others = ThreadStore(saving, "Tester"), ThreadStore(deleting, "Tester")
        thread, found = large(), asyncio.Event()
        deletion: list[asyncio.Task[None]] = []

        async def is_deleted() -> None:
            deletion.append(asyncio.create_task(others.delete(LocalThread.from_json(thread.to_json()))))
            await asyncio.wait_for(found.wait(), 30)

        async def is_saved() -> None:
            found.set()
            await asyncio.wait_for(saved.wait(), 30)

        saving.meets = lambda commit: any(key.startswith("thread/") for key in commit.put)
        deleting.meets, deleting.after = lambda commit: bool(commit.delete), True
        saving.other, deleting.other = is_deleted, is_saved  # type: ignore[method-assign]
        await threads.save(thread)
        saved.set()
        await deletion[0]
        assert await kept.scan(keys.threads("Tester"), "", limit=1) == []


@pytest.mark.parametrize("make", [small, large])
async def test_a_save_right_before_a_deletion_leaves_nothing_behind(make: Callable[[], LocalThread]) -> None:
    """The deletion has seen what is out of line by then, and looks again."""
    async with Interrupted(MemoryStore()) as store:
        threads, others = ThreadStore(store, "Tester"), ThreadStore(store.store, "Tester")
        thread = make()
        await threads.save(thread)
        copied = await others.load(thread.thread_id)
        store.meets = lambda commit: bool(commit.delete)
        store.other = lambda: others.save(copied)  # type: ignore[method-assign]
        await threads.delete(thread)
        assert await store.scan(keys.threads("Tester"), "", limit=1) == []


async def test_a_sealed_message_opens_only_in_its_own_thread(stores: MessageStoreFactory) -> None:
    """Who can write to the store cannot show one user what another has said. covers: THREAD-5"""
    cipher, made = Cipher("correct horse battery"), []

    def sealed() -> SealedMessages:
        made.append(stores())
        return SealedMessages(made[-1], cipher)

    one, other = LocalThread(stores=sealed), LocalThread(stores=sealed)
    await one.on_new_messages(exchange("swordfish", "a"))
    await other.on_new_messages(exchange("q", "a"))
    again = LocalThread.from_json(one.to_json(), stores=sealed)
    await again.create()
    assert texts(list(again.messages)) == ["swordfish", "a"]
    await made[1].add_messages(await made[0].list_messages())
    with pytest.raises(CorruptState, match="moved from another record"):
        await other.create()
    with pytest.raises(InvalidRequest, match="its agent's `message_stores`"):
        LocalThread.from_json(one.to_json(), stores=stores)


async def test_messages_that_were_never_sealed_can_be_moved_to_a_sealed_thread(
    stores: MessageStoreFactory,
) -> None:
    """Where the key was set later, the error says so and what to do, which works. covers: THREAD-5"""

    def sealing() -> SealedMessages:
        return SealedMessages(stores(), Cipher("correct horse battery"))

    thread = LocalThread(stores=stores)
    await thread.on_new_messages(exchange("q", "a"))
    with pytest.raises(CorruptState, match="open the thread without it, and add its messages to a new"):
        await LocalThread.from_json(thread.to_json(), stores=sealing).create()
    before = LocalThread.from_json(thread.to_json(), stores=stores)
    await before.create()
    moved = LocalThread(stores=sealing)
    await moved.on_new_messages(before.messages)
    again = LocalThread.from_json(moved.to_json(), stores=sealing)
    await again.create()
    assert texts(list(again.messages)) == ["q", "a"]


@pytest.mark.parametrize("named", ["environment", "dotenv"])
async def test_threads_are_sealed_where_a_key_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Small and large ones; without the key nothing is read, and nothing saved in the clear.

    covers: THREAD-5
    """
    monkeypatch.chdir(tmp_path)
    if named == "environment":
        monkeypatch.setenv("TA_ENCRYPTION_KEY", "correct horse battery")
    else:
        (tmp_path / ".env").write_text("TA_ENCRYPTION_KEY=correct horse battery\n")
    url = f"file:///{tmp_path}/threads"
    kept = [LocalThread(exchange("swordfish", "a")), LocalThread([said("user", "swordfish " * 100_000)])]
    async with open_store(url) as store:
        threads = ThreadStore(store, "Tester")
        for thread in kept:
            await threads.save(thread)
            assert (await threads.load(thread.thread_id)).to_json() == thread.to_json()
    files = [path.read_bytes() for path in (tmp_path / "threads").rglob("*") if path.is_file()]
    assert len(files) > 2
    assert not [data for data in files if b"swordfish" in data or b"c3dvcmRmaXNo" in data]
    monkeypatch.delenv("TA_ENCRYPTION_KEY", raising=False)
    async with open_store(url, dotenv=None) as store:
        threads = ThreadStore(store, "Tester")
        with pytest.raises(CorruptState, match="set TA_ENCRYPTION_KEY"):
            await threads.load(kept[0].thread_id)
        with pytest.raises(CorruptState, match="set TA_ENCRYPTION_KEY"):
            await threads.save(LocalThread(exchange("new", "thread")))


@pytest.mark.parametrize("empty", ["", "  "])
@pytest.mark.parametrize("later", ["", "TA_ENCRYPTION_KEY=\n"])
def test_an_empty_variable_does_not_switch_off_the_key_of_the_dotenv_file(
    tmp_path: Path, empty: str, later: str
) -> None:
    """An agent would encrypt: docker compose sets a variable to nothing where it is not set.

    covers: THREAD-5
    """
    (tmp_path / ".env").write_text(f"TA_ENCRYPTION_KEY=correct horse battery\n{later}")
    env = {"TA_ENCRYPTION_KEY": empty}
    assert isinstance(open_store("memory://", env=env, dotenv=tmp_path / ".env"), EncryptedStore)


def test_a_dotenv_file_that_an_agent_refuses_opens_no_store(tmp_path: Path) -> None:
    """The line that is wrong may be that of the key: what is saved would not be encrypted.

    covers: THREAD-5
    """
    (tmp_path / ".env").write_text("A=1\nTA_ENCRYPTION_KEY: correct horse battery\n")
    with pytest.raises(StoreConfigError, match=r"/\.env:2: this is not NAME=value\.$"):
        open_store("memory://", env={}, dotenv=tmp_path / ".env")
    (tmp_path / ".env").write_bytes(b"TA_ENCRYPTION_KEY=\xff\n")
    with pytest.raises(StoreConfigError, match=r"/\.env: cannot be read: "):
        open_store("memory://", env={}, dotenv=tmp_path / ".env")


async def test_a_store_of_sealed_threads_is_opened_with_their_key_alone() -> None:
    """By a service and an operator's command, too; beside tasks of another key only that one counts.

    covers: THREAD-5
    """
    plain, first, second = MemoryStore(), "correct-horse-battery", "another-staple"

    async def check(key: str | None, agent: str = "Tester") -> None:
        records = RecordStore(sealed(plain, key), agent, SystemClock())
        await Inventory(records).check_key(keyed=key is not None)

    await ThreadStore(sealed(plain, first), "Tester").save(small())
    for key, advice in ((None, "set TA_ENCRYPTION_KEY"), (second, "none of those given")):
        with pytest.raises(CorruptState, match=advice):
            await check(key)
    await check(first)
    await check(None, "Other")
    services = RecordStore(sealed(plain, second), "Tester", SystemClock())
    await Directory(services).introduce(User("t", "ada"))
    await check(second)
    for key in (None, first):
        with pytest.raises(CorruptState):
            await check(key)


async def test_a_thread_that_does_not_open_keeps_no_other_from_being_saved(tmp_path: Path) -> None:
    """Such as the one that sorts last, under an old key that is no longer given."""
    url, first, second = f"sqlite:///{tmp_path}/threads.db", "correct-horse-battery", "another-staple"
    lost, kept, new = small(), small(), small()
    lost.thread_id, kept.thread_id = "last", "first"
    async with open_store(url, env={"TA_ENCRYPTION_KEY": first}) as store:
        await ThreadStore(store, "Tester").save(lost)
    rotating = {"TA_ENCRYPTION_KEY": second, "TA_ENCRYPTION_OLD_KEYS": first}
    async with open_store(url, env=rotating) as store:
        await ThreadStore(store, "Tester").save(kept)
    async with open_store(url, env={"TA_ENCRYPTION_KEY": second}) as store:
        threads = ThreadStore(store, "Tester")
        for thread in (new, kept):
            await threads.save(thread)
            assert (await threads.load(thread.thread_id)).to_json() == thread.to_json()
        with pytest.raises(CorruptState, match="none of those given"):
            await threads.load("last")


async def test_old_keys_open_stored_threads(tmp_path: Path) -> None:
    """After a rotation what was saved before can be read. covers: THREAD-5"""
    url, first, second = f"sqlite:///{tmp_path}/threads.db", "correct-horse-battery", "another-staple"
    thread = small()
    async with open_store(url, env={"TA_ENCRYPTION_KEY": first}) as store:
        await ThreadStore(store, "Tester").save(thread)
    rotated = {"TA_ENCRYPTION_KEY": second, "TA_ENCRYPTION_OLD_KEYS": f"earliest-of-all {first}"}
    async with open_store(url, env=rotated) as store:
        assert (await ThreadStore(store, "Tester").load(thread.thread_id)).to_json() == thread.to_json()
    async with open_store(url, env={"TA_ENCRYPTION_KEY": second}) as store:
        with pytest.raises(CorruptState, match="none of those given"):
            await ThreadStore(store, "Tester").load(thread.thread_id)


def test_messages_in_redis_need_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said where the store is made, and not with the first message."""
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ThreadConfigError, match=r"pip install 'tealagents\[redis\]'"):
        RedisMessages("redis://127.0.0.1:1")
