"""The contract suite on SQLite, and what is particular about it."""

import asyncio
import signal
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from tealagents.domain.errors import Conflict, CorruptState, PersistenceUnavailable
from tealagents.domain.ports import Store
from tealagents.stores import StoreConfigError, plain_store
from tealagents.stores.sqlite import SqliteOptions, SqliteStore
from tealagents.testing.faults import full_disk
from tealagents.testing.store_steps import OpenStore, batches, commit, erase_expired, put, put_all, values
from tealagents.testing.stores import StoreContract
from tealagents.testing.waits import eventually


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: plain_store(f"sqlite:///{tmp_path}/state.db")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
async def store(file: Path) -> AsyncGenerator[SqliteStore]:
    async with SqliteStore(SqliteOptions(path=file, busy_seconds=0.1)) as store:
        yield store


def by_hand(file: Path, statement: str, *arguments: object) -> list[tuple[object, ...]]:
    """What a person does with the `sqlite3` command."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        return connection.execute(statement, arguments).fetchall()


# --- durability -------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["", "link.db"], ids=["by its name", "through a symbolic link"])
async def test_no_other_user_can_read_it(file: Path, link: str) -> None:
    """The database, its log and its index are the service's own user's alone."""
    if link:
        file.with_name(link).symlink_to(file)
    async with plain_store(f"sqlite:///{file.with_name(link or file.name)}") as store:
        await put(store, "p", {"key": b""})
        assert {path.name for path in file.parent.iterdir()} >= {"state.db", "state.db-wal"}
        for path in file.parent.iterdir():
            assert path.stat().st_mode & 0o077 == 0, path


async def test_processes_that_name_the_file_by_different_links_wake_each_other(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit wakes the watches of a process whose path to the file leads over other links."""
    monkeypatch.setattr("tealagents.stores.local_link.RECHECK_SECONDS", 600)
    link, folder = file.with_name("link.db"), file.with_name("folder")
    link.symlink_to(file)
    folder.symlink_to(file.parent)
    async with plain_store(f"sqlite:///{file}") as store, store.watch("p", "topic") as watch:
        for path in (link, folder / "state.db"):
            async with plain_store(f"sqlite:///{path}") as other:
                await other.commit("p", commit(put={"key": b""}, notify=["topic"]))
                assert await watch.wait(30)


OTHER_PROCESS = """
import asyncio, sys
from tealagents.stores import plain_store
from tealagents.testing.store_steps import put

async def main(url, *keys):
    async with plain_store(url) as store:
        for key in keys:
            await put(store, "p", {key: b""})
        print(*(key for key, _ in await store.scan("p", "")))

asyncio.run(main(*sys.argv[1:]))
"""


async def in_another_process(file: Path, *keys: str) -> list[str]:
    """Opens the store in a process of its own, puts keys, and closes it; the keys that are there then."""
    command = [sys.executable, "-c", OTHER_PROCESS, f"sqlite:///{file}", *keys]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode().split()


async def test_a_process_that_closes_leaves_the_log_to_those_that_have_it_open(
    store: Store, file: Path
) -> None:
    """Processes open and close one file; what each has written is there for the others, and stays."""
    await put(store, "p", {"a": b""})
    log = file.with_name("state.db-wal").stat().st_ino
    assert await in_another_process(file, "b") == ["a", "b"]
    assert file.with_name("state.db-wal").stat().st_ino == log
    await put(store, "p", {"c": b""})
    assert await in_another_process(file, "d") == ["a", "b", "c", "d"]
    assert by_hand(file, "PRAGMA integrity_check") == [("ok",)]


async def test_commits_that_wait_share_a_sync(store: Store, file: Path) -> None:
    """Of commits made at once each conflicts or not on its own, and all that hold are kept."""
    version = await put(store, "p", {"there": b""})
    right, wrong = {"there": version, "absent": None}, {"there": None}
    changes = [commit(expect=wrong if n % 3 else right, put={f"new/{n}": b""}) for n in range(90)]
    outcomes = await asyncio.gather(*(store.commit("p", one) for one in changes), return_exceptions=True)
    assert [outcome is None for outcome in outcomes] == [n % 3 == 0 for n in range(90)]
    assert by_hand(file, "SELECT count(*) FROM records WHERE key LIKE 'new/%'") == [(30,)]


async def test_an_unsynced_commit_is_made_at_once_or_waits_its_turn(file: Path) -> None:
    """It needs no thread while nothing else writes; otherwise it is queued. It conflicts as any other."""
    async with SqliteStore(SqliteOptions(path=file, busy_seconds=60)) as store:
        await check_unsynced(store, file)


async def check_unsynced(store: Store, file: Path) -> None:
    await store.commit("p", commit(put={"a": b"1"}, expect={"a": None}, unsynced=True))
    with pytest.raises(Conflict):
        await store.commit("p", commit(put={"a": b"2"}, expect={"a": None}, unsynced=True))
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(store.commit("p", commit(put={"a": b"3"}, unsynced=True)))
        await asyncio.sleep(0.03)
        assert not waiting.done()
        other.execute("ROLLBACK")
        await waiting
    assert await values(store, "p", ["a"]) == [b"3"]


KILLED = """
import asyncio, os, signal, sys
from tealagents.stores import plain_store
from tealagents.testing.store_steps import commit

async def main(url):
    async with plain_store(url) as store:
        for number in range(20):
            await store.commit("p", commit(put={f"key/{number:02}": b""}, unsynced=True))
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(sys.argv[1]))
"""


async def test_an_unsynced_commit_outlives_its_process(store: Store, file: Path) -> None:
    """A kill loses nothing: what is left to the next sync is safe from everything but a power cut."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, f"sqlite:///{file}")
    assert await process.wait() == -signal.SIGKILL
    assert len(await store.scan("p", "key/")) == 20


class Unsyncable:
    """A connection whose sync fails, as that of a disk does that could not write."""

    def execute(self, statement: str) -> None:
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error


async def test_after_a_failed_sync_nothing_rests_on_the_log(store: SqliteStore, file: Path) -> None:
    """What it may have lost is written anew before anything more is acknowledged. covers: STATE-4"""
    await store.commit("p", commit(put={"a": b"1"}, unsynced=True))
    store._finish(cast("sqlite3.Connection", Unsyncable()), [])
    log = file.with_name("state.db-wal")
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM records").fetchone()
        for unsynced in (False, True):
            with pytest.raises(PersistenceUnavailable, match="sync has failed"):
                await store.commit("p", commit(put={"b": b"2"}, unsynced=unsynced))
    await store.commit("p", commit(put={"b": b"2"}))
    copied = file.with_name("copy.db")
    copied.write_bytes(file.read_bytes())  # without its log
    assert by_hand(copied, "SELECT key FROM records WHERE partition = 'p'") == [("a",)]
    assert log.stat().st_size < 100_000
    await store.commit("p", commit(put={"c": b"3"}, unsynced=True))
    assert await values(store, "p", ["a", "b", "c"]) == [b"1", b"2", b"3"]


async def test_expired_records_are_erased(file: Path) -> None:
    """A later commit erases what has expired."""
    now = 1_000_000.0
    async with SqliteStore(SqliteOptions(path=file), clock=lambda: now) as store:
        await put(store, "p", {"events/1": b"", "events/2": b""}, ttl=10)
        await put(store, "p", {"events/2": b""})
    now += 20
    async with SqliteStore(SqliteOptions(path=file), clock=lambda: now) as store:
        await put(store, "p", {"a": b""})
    assert by_hand(file, "SELECT key FROM records ORDER BY key") == [("a",), ("events/2",)]


async def test_what_expired_is_erased_by_name(file: Path, store: Store) -> None:
    """Not with the next minute's sweep only. covers: STATE-2"""
    await put(store, "p", {f"events/{n}": b"" for n in range(9)}, ttl=0.01)
    await asyncio.sleep(0.02)
    assert len(await erase_expired(store, "p")) == 9
    assert by_hand(file, "SELECT key FROM records") == []


# --- damage and edits -------------------------------------------------------------------------------


async def test_an_edited_value_comes_as_it_is(store: Store, file: Path) -> None:
    """A value that was edited by hand, into text too, comes as its bytes, for the layer above to check."""
    version = await put(store, "p", {"key": b'{"a":1}'})
    by_hand(file, "UPDATE records SET value = ?", '{"a":2}')
    assert await values(store, "p", ["key"]) == [b'{"a":2}']
    [(key, record)] = await store.scan("p", "")
    assert (key, record.value, record.version) == ("key", b'{"a":2}', version)


async def test_a_file_that_is_no_database(file: Path) -> None:
    """A file of something else is corrupt, by name, and is left as it was. covers: STATE-4"""
    file.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(CorruptState, match=r"state\.db.*not a database"):
        async with plain_store(f"sqlite:///{file}"):
            pass
    assert file.read_bytes() == b"Dear diary, " * 1000


async def test_damaged_pages(file: Path) -> None:
    """A database with pages overwritten is corrupt where they are read, with a text that names the file."""
    async with plain_store(f"sqlite:///{file}") as store:
        for n in range(30):
            await put(store, "p", {f"key/{n}": b"x" * 3000})
    content = bytearray(file.read_bytes())
    content[3 * 4096 :] = b"\xff" * (len(content) - 3 * 4096)
    file.write_bytes(content)
    async with plain_store(f"sqlite:///{file}") as store:
        attempts = (store.read("p", ["key/7"]), store.scan("p", ""), put(store, "p", {"key/7": b""}))
        for attempt in attempts:
            with pytest.raises(CorruptState, match=r"state\.db.*damaged database"):
                await attempt


# --- what makes it unavailable ----------------------------------------------------------------------


async def test_a_full_disk(store: Store) -> None:
    """Where nothing more can be written a commit is refused whole; reading works. covers: STATE-4"""
    await put(store, "p", {"a": b"1"})
    for unsynced in (False, True):
        too_much = commit(put={"a": b"2", "b": b"x" * 200_000}, unsynced=unsynced)
        with full_disk(100_000):
            with pytest.raises(PersistenceUnavailable, match="disk"):
                await store.commit("p", too_much)
            with pytest.raises(PersistenceUnavailable, match="disk"):
                await fill(store)
            with pytest.raises(PersistenceUnavailable, match="disk"):
                await store.ping()
        await store.ping()
    assert await values(store, "p", ["a", "b"]) == [b"1", None]
    await put(store, "p", {"a": b"3"})
    assert await values(store, "p", ["a"]) == [b"3"]


async def fill(store: Store) -> None:
    """Writes until there is no room left."""
    for n in range(100):
        await put(store, "filling", {str(n): b"x" * 5_000})


async def test_another_process_that_writes_for_long(store: Store, file: Path) -> None:
    """While another process holds the write lock commits are unavailable, and reading continues."""
    await put(store, "p", {"a": b"1"})
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(PersistenceUnavailable, match="locked"):
            await put(store, "p", {"a": b"2"})
        assert await values(store, "p", ["a"]) == [b"1"]
    await put(store, "p", {"a": b"3"})
    assert await values(store, "p", ["a"]) == [b"3"]


async def test_a_file_that_is_gone(store: Store, file: Path) -> None:
    """Nothing is written into a file that was deleted or replaced: commits and `ping` are refused."""
    await put(store, "p", {"a": b"1"})
    moved = file.rename(file.with_name("moved.db"))
    for attempt in (store.ping(), put(store, "p", {"a": b"2"})):
        with pytest.raises(PersistenceUnavailable, match="gone"):
            await attempt
    file.write_bytes(b"")
    for attempt in (store.ping(), put(store, "p", {"a": b"2"})):
        with pytest.raises(PersistenceUnavailable, match="replaced"):
            await attempt
    moved.rename(file)
    await store.ping()
    await put(store, "p", {"a": b"3"})


async def test_a_log_that_is_gone(file: Path) -> None:
    """Nothing more is written into it; what it holds is in the file once the store is closed."""
    async with plain_store(f"sqlite:///{file}") as store:
        await put(store, "p", {"a": b"1"})
        Path(f"{file}-wal").unlink()
        unsynced = store.commit("p", commit(put={"b": b"2"}, unsynced=True))
        for attempt in (store.ping(), put(store, "p", {"b": b"2"}), unsynced):
            with pytest.raises(PersistenceUnavailable, match=r"its log is gone .*-wal"):
                await attempt
    async with plain_store(f"sqlite:///{file}") as store:
        assert await values(store, "p", ["a", "b"]) == [b"1", None]


async def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A path that cannot be made is unavailable, with the system's reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PersistenceUnavailable, match=r"state\.db"):
        async with plain_store(f"sqlite:///{tmp_path}/file/state.db"):
            pass


async def test_use_after_closing(file: Path) -> None:
    """A commit after the store was closed is refused, and does not wait for ever."""
    async with plain_store(f"sqlite:///{file}") as store:
        await put(store, "p", {"a": b"1"})
    unsynced = store.commit("p", commit(put={"a": b"2"}, unsynced=True))
    for attempt in (put(store, "p", {"a": b"2"}), unsynced, store.read("p", ["a"])):
        with pytest.raises(PersistenceUnavailable, match="closed"):
            await attempt


# --- the schema -------------------------------------------------------------------------------------


async def test_a_schema_of_a_later_version(file: Path) -> None:
    """A database that a later version has migrated is refused, and says so."""
    async with plain_store(f"sqlite:///{file}"):
        pass
    by_hand(file, "INSERT INTO schema_version VALUES (99, '0099_from_tomorrow', '')")
    with pytest.raises(StoreConfigError, match="schema is at 99"):
        async with plain_store(f"sqlite:///{file}"):
            pass
    with pytest.raises(StoreConfigError, match="schema is at 99"):
        await SqliteStore(SqliteOptions(path=file)).migrate()


async def test_a_database_of_another_application(file: Path) -> None:
    """It is refused, and not a byte of it changes."""
    by_hand(file, "CREATE TABLE customers (name)")
    before = file.read_bytes()
    store = SqliteStore(SqliteOptions(path=file))
    for use in (store.open, store.migrate):
        with pytest.raises(StoreConfigError, match=f"{file} is the database of another application"):
            await use()
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


async def test_an_empty_file_becomes_a_store_and_may_get_tables_of_others(file: Path) -> None:
    """Neither is taken for the database of another application."""
    file.touch()
    async with plain_store(f"sqlite:///{file}") as store:
        await put(store, "p", {"a": b"1"})
    by_hand(file, "CREATE TABLE customers (name)")
    async with plain_store(f"sqlite:///{file}") as store:
        assert await values(store, "p", ["a"]) == [b"1"]


async def test_migrating(file: Path) -> None:
    """`migrate` brings a database up to date once, whether it is there or not."""
    store = SqliteStore(SqliteOptions(path=file))
    assert await store.migrate() == ["0001_records"]
    assert await store.migrate() == []
    async with store:
        await put(store, "p", {"a": b"1"})
        assert await values(store, "p", ["a"]) == [b"1"]


async def test_opening_at_once(file: Path) -> None:
    """Many that open an absent database at once all find one schema."""

    async def use(n: int) -> None:
        async with plain_store(f"sqlite:///{file}") as store:
            await put(store, "p", {f"key/{n}": b""})

    await asyncio.gather(*map(use, range(12)))
    assert by_hand(file, "SELECT count(*) FROM records") == [(12,)]
    assert by_hand(file, "SELECT number, name FROM schema_version") == [(1, "0001_records")]


async def test_opening_while_the_database_is_made(file: Path) -> None:
    """Who writes before the database is in WAL mode is waited for, which SQLite itself does not do."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("PRAGMA user_version = 1")  # which makes the database, without a table
        other.execute("BEGIN IMMEDIATE")
        opening = asyncio.create_task(plain_store(f"sqlite:///{file}").__aenter__())
        await asyncio.sleep(0.1)
        other.execute("COMMIT")
    store = await opening
    await put(store, "p", {"key": b""})
    await store.__aexit__(None, None, None)


# --- URLs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://state.db", "sqlite:///a.db?colour=red"])
def test_urls_that_are_refused(url: str) -> None:
    """A URL that names no file, or an unknown option, is an error that says what to write."""
    with pytest.raises(StoreConfigError, match=r"sqlite:|colour"):
        plain_store(url)


def test_relative_and_absolute_paths(tmp_path: Path) -> None:
    """Three slashes and a relative path, or four and an absolute one."""
    assert plain_store("sqlite:///a/b.db", relative_to=tmp_path).where == str(tmp_path / "a/b.db")
    assert plain_store("sqlite:////a/b%20c.db", relative_to=tmp_path).where == "/a/b c.db"


# --- erasing ----------------------------------------------------------------------------------------


def holding(folder: Path, text: bytes) -> list[str]:
    """The files of the folder in which the text can be read."""
    return sorted(path.name for path in folder.iterdir() if text in path.read_bytes())


async def test_what_is_deleted_can_be_read_in_no_file(tmp_path: Path) -> None:
    """What one process deletes is gone from the log and the database when it closes, though others stay open.

    covers: STATE-2
    """
    secret = {f"log/{n}": b"the planted secret " * (1 if n % 2 else 2_000) for n in range(40)}
    async with plain_store(f"sqlite:///{tmp_path}/state.db") as service:
        await put_all(service, "p", {**secret, "kept": b"the kept text"})
        await put(service, "p", {"log/1": b"the planted secret, once more"})
        assert holding(tmp_path, b"the planted secret")
        async with plain_store(f"sqlite:///{tmp_path}/state.db") as command:
            for keys in batches(list(secret)):
                await command.commit("p", commit(delete=keys))
        assert holding(tmp_path, b"the planted secret") == []
        assert await values(service, "p", ["kept"]) == [b"the kept text"]


async def test_what_a_service_deletes_leaves_its_files(tmp_path: Path) -> None:
    """So it is for what a running service deletes, once no reader needs the log any more."""
    async with plain_store(f"sqlite:///{tmp_path}/state.db") as service:
        await put(service, "p", {"key": b"the planted secret"})
        reader = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM records").fetchall()
        await service.commit("p", commit(delete=["key"]))
        await put(service, "p", {"other": b"written meanwhile"})
        assert holding(tmp_path, b"the planted secret")
        reader.close()
        await eventually(lambda: not holding(tmp_path, b"the planted secret"))
        assert await values(service, "p", ["key", "other"]) == [None, b"written meanwhile"]


async def test_an_erasure_that_is_under_way_when_the_store_is_closed_is_finished_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a command deletes beside a service is in no file when it ends, whatever the service was reading.

    covers: STATE-2
    """
    monkeypatch.setattr("tealagents.stores.sqlite.ERASE_SECONDS", 0)
    attempts, empty_log = [], SqliteStore._empty_log

    def noted(*arguments: Any) -> None:
        attempts.append(1)
        empty_log(*arguments)

    monkeypatch.setattr(SqliteStore, "_empty_log", noted)
    url = f"sqlite:///{tmp_path}/state.db?busy_seconds=60"
    async with plain_store(url) as service:
        command = await plain_store(url).__aenter__()
        await put(service, "p", {"key": b"the planted secret"})
        reader = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM records").fetchall()
        await command.commit("p", commit(delete=["key"]))
        await eventually(lambda: attempts)
        asyncio.get_running_loop().call_later(0.3, reader.close)
        await command.close()
        assert holding(tmp_path, b"the planted secret") == []


async def test_a_closed_store_erases_what_a_canceled_caller_has_deleted_and_then_rests(file: Path) -> None:
    """What is queued is done before the log is emptied, and nothing is to be erased any more."""
    async with plain_store(f"sqlite:///{file}") as service:
        async with SqliteStore(SqliteOptions(path=file)) as store:
            await put(store, "p", {"key": b"the planted secret"})
            deleting = asyncio.create_task(store.commit("p", commit(delete=["key"])))
            await asyncio.sleep(0)
            deleting.cancel()
        assert store._erasing is None
        assert holding(file.parent, b"the planted secret") == []
        assert await values(service, "p", ["key"]) == [None]
