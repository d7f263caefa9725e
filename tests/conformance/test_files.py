"""The contract suite on the store of JSON files, and what is particular about it."""

import asyncio
import errno
import fcntl
import gc
import json
import os
import re
from collections.abc import AsyncGenerator, Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock
from pathlib import Path
from typing import Any

import pytest

from tealagents.domain.errors import CorruptState, PersistenceUnavailable, Unknown
from tealagents.domain.ports import Store
from tealagents.stores import StoreConfigError, file_folder, plain_store
from tealagents.stores.files import FileOptions, FileStore
from tealagents.testing.faults import full_disk
from tealagents.testing.store_steps import OpenStore, commit, erase_expired, put, values
from tealagents.testing.stores import StoreContract
from tealagents.testing.waits import eventually

VALUE = b'{"sha256":"00","value":{"text":"hello"}}'


class TestFileStore(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: plain_store(f"file://{tmp_path}/state")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with plain_store(f"file://{tmp_path}/state", busy_seconds=0.2) as store:
        yield store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the partition `Agent/user/tid.oid`."""
    return tmp_path / "state/+agent/user/tid.oid.records"


PARTITION = "Agent/user/tid.oid"

# --- readable by a person ---------------------------------------------------------------------------


async def test_a_record_is_a_json_document(store: Store, folder: Path) -> None:
    """A record is a JSON file named after its key, with its version and its value in it. covers: STATE-1"""
    version = await put(store, PARTITION, {"log/6f1c/000000000001": VALUE})
    document = json.loads((folder / "log/6f1c/000000000001.json").read_text())
    assert document == {
        "key": "log/6f1c/000000000001",
        "version": version,
        "expires": None,
        "value": json.loads(VALUE),
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
async def test_what_root_makes_is_the_services(tmp_path: Path) -> None:
    """A command that an operator runs as root leaves nothing that the service's user cannot write."""
    owner = 65534
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    os.chown(folder, owner, owner)
    async with plain_store(f"file://{folder}") as store, store.watch(PARTITION, "topic"):
        await put(store, PARTITION, {"a/b": VALUE, "c": VALUE}, ttl=1000)
    made = [folder, *folder.rglob("*")]
    assert {".notify", ".format", "c.json", ".expiring", ".redo"} < {each.name for each in made}
    assert {(each.stat().st_uid, each.stat().st_gid) for each in made} == {(owner, owner)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
async def test_a_store_that_root_makes_is_its_own(tmp_path: Path) -> None:
    """The folder above may be another user's: what is stored is readable by the service's user alone."""
    above = tmp_path / "above"
    above.mkdir()
    os.chown(above, 65534, 65534)
    async with plain_store(f"file://{above / 'state'}") as store:
        await put(store, PARTITION, {"a/b": VALUE})
    assert {each.stat().st_uid for each in above.rglob("*")} == {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
async def test_root_gives_no_file_away_that_was_there(tmp_path: Path) -> None:
    """A link in the folder may lead to any."""
    folder, other = tmp_path / "state", tmp_path / "other"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    other.touch()
    async with plain_store(f"file://{folder}") as store:
        (folder / ".notify").symlink_to(other)
        async with store.watch(PARTITION, "topic"):
            assert other.stat().st_uid == 0


async def test_other_bytes_are_base64(store: Store, folder: Path) -> None:
    """A value that is no JSON is kept in base64, in a document that is."""
    await put(store, PARTITION, {"blob": b"\xff\x00"})
    assert json.loads((folder / "blob.json").read_text())["base64"] == "/wA="


async def test_no_other_user_can_read_it(store: Store, tmp_path: Path) -> None:
    """Folders and files are the service's own user's alone."""
    await put(store, PARTITION, {"log/1": VALUE})
    await put(store, PARTITION, {"log/2": VALUE}, ttl=60)
    for path in (tmp_path / "state").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


async def test_deleting_leaves_no_empty_folders(store: Store, folder: Path) -> None:
    """What was deleted leaves nothing behind but the partition's lock."""
    await put(store, PARTITION, {"log/6f1c/1": VALUE, "log/6f1c/2": VALUE, "a": VALUE})
    await store.commit(PARTITION, commit(delete=["log/6f1c/1", "log/6f1c/2", "a"]))
    assert [path.name for path in folder.iterdir()] == [".redo"]


# --- damage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-20],
        lambda content: content.replace(b'"key"', b'"kee"'),
        lambda content: content.replace(b"task/1", b"task/2"),
        lambda content: content.replace(b"hello", b'hel"lo'),
        lambda content: json.dumps(json.loads(content), indent=2).encode(),
        lambda content: b"\x00" * len(content),
    ],
    ids=["empty", "half", "no end", "no key", "another key", "no JSON", "laid out anew", "zeros"],
)
async def test_a_damaged_file(store: Store, folder: Path, damage: Callable[[bytes], bytes]) -> None:
    """A file that is no document of its key is corrupt, named, and left; others are read. covers: STATE-4"""
    await put(store, PARTITION, {"task/1": VALUE, "task/2": VALUE})
    file = folder / "task/1.json"
    damaged = damage(file.read_bytes())
    file.write_bytes(damaged)
    with pytest.raises(CorruptState, match=re.escape(str(file))) as damage_found:
        await store.read(PARTITION, ["task/1"])
    assert str(folder) not in damage_found.value.detail, "which clients read"
    with pytest.raises(CorruptState):
        await store.commit(PARTITION, commit(expect={"task/1": None}, put={"task/2": b""}))
    found = await store.scan(PARTITION, "task/")
    assert [(key, record.value) for key, record in found] == [("task/1", damaged), ("task/2", VALUE)]
    assert file.read_bytes() == damaged


def a_folder(file: Path) -> None:
    (file / "within").mkdir(parents=True)


def a_link_to_itself(file: Path) -> None:
    file.symlink_to(file)


def a_file_of_another_user(file: Path) -> None:
    file.touch(mode=0)


not_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may read it")
UNREADABLE = [a_folder, a_link_to_itself, pytest.param(a_file_of_another_user, marks=not_root)]


@pytest.mark.parametrize("instead", UNREADABLE)
async def test_a_file_that_cannot_be_read(
    store: Store, folder: Path, instead: Callable[[Path], None]
) -> None:
    """It is damaged, as one that does not parse: others are read. covers: STATE-4"""
    await put(store, PARTITION, {"task/1": VALUE, "task/2": VALUE})
    (folder / "task/1.json").unlink()
    instead(folder / "task/1.json")
    with pytest.raises(CorruptState, match=r"1\.json cannot be read \("):
        await store.read(PARTITION, ["task/1"])
    with pytest.raises(CorruptState):
        await store.commit(PARTITION, commit(expect={"task/1": None}, put={"task/2": b""}))
    found = await store.scan(PARTITION, "task/")
    assert [(key, record.value) for key, record in found] == [("task/1", b""), ("task/2", VALUE)]


async def test_a_folder_that_cannot_be_read(store: Store, folder: Path) -> None:
    """The records in it are not damaged: reads and lists are refused."""
    await put(store, PARTITION, {"task/1": VALUE})
    (folder / "task").rename(folder / "moved")
    a_link_to_itself(folder / "task")
    for attempt in (store.read(PARTITION, ["task/1"]), store.scan(PARTITION, "task/")):
        with pytest.raises(PersistenceUnavailable, match=re.escape(f"symbolic links: {folder}/task")):
            await attempt


@pytest.mark.parametrize("instead", [lambda file: file.write_bytes(b"{"), *UNREADABLE])
async def test_a_damaged_file_can_be_deleted(
    store: Store, folder: Path, instead: Callable[[Path], None]
) -> None:
    """Erasing a task does not stumble over a damaged record."""
    await put(store, PARTITION, {"task/1": VALUE})
    (folder / "task/1.json").unlink()
    instead(folder / "task/1.json")
    await store.commit(PARTITION, commit(delete=["task/1"]))
    assert await store.read(PARTITION, ["task/1"]) == [None]
    assert await store.scan(PARTITION, "") == []


async def test_an_edited_value_comes_as_it_is(store: Store, folder: Path) -> None:
    """A value edited by hand comes as it was edited, for the layer above to check."""
    await put(store, PARTITION, {"task/1": VALUE})
    file = folder / "task/1.json"
    file.write_bytes(file.read_bytes().replace(b"hello", b"HELLO") + b"\n")
    assert await values(store, PARTITION, ["task/1"]) == [VALUE.replace(b"hello", b"HELLO")]


async def test_files_of_others_are_left_alone(store: Store, folder: Path) -> None:
    """What an editor or a person leaves in the folder is no record, and none that has expired."""
    await put(store, PARTITION, {"task/1": VALUE})
    copies = ["task/Copy of 1.json", "task/1 copy.json", "task/._1.json", "task/%31.json", "task/1%20.json"]
    for name in ("task/notes.txt", "task/.1.json.swp", "%zz.json", f"{'a/' * 100}%00.json", *copies):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    assert [key for key, _ in await store.scan(PARTITION, "")] == ["task/1"]
    assert await store.expired(PARTITION) == []


# --- a commit that its process did not live to finish -----------------------------------------------


async def test_a_commit_that_was_promised_is_made(store: Store, folder: Path) -> None:
    """A commit whose changes cannot be made is unknown, and is made by the next commit or read that can."""
    await put(store, PARTITION, {"a": b"1", "b": b"1"})
    (folder / "b.json").unlink()
    (folder / "b.json/in the way").mkdir(parents=True)
    change = commit(put={"a": b"2", "b": b"2"}, delete=["c"])
    with pytest.raises(Unknown):
        await store.commit(PARTITION, change)
    with pytest.raises(PersistenceUnavailable):
        await store.read(PARTITION, ["a"])
    (folder / "b.json/in the way").rmdir()
    (folder / "b.json").rmdir()
    assert [record and record.version for record in await store.read(PARTITION, ["a", "b"])] == [
        change.operation,
        change.operation,
    ]


async def test_a_redo_that_was_cut_off_is_no_commit(store: Store, folder: Path) -> None:
    """A process killed while it wrote the redo has committed nothing."""
    await put(store, PARTITION, {"a": b"1"})
    (folder / ".redo").write_bytes(b"0" * 64 + b'\n{"put":{"a":"{')
    assert await values(store, PARTITION, ["a"]) == [b"1"]
    assert (folder / ".redo").read_bytes() == b""


# --- what makes it unavailable ----------------------------------------------------------------------


async def test_a_full_disk(store: Store) -> None:
    """Where nothing more can be written a commit is refused whole; reading works. covers: STATE-4"""
    await put(store, PARTITION, {"a": b"1"})
    with full_disk(100_000), pytest.raises(PersistenceUnavailable, match="File too large"):
        await put(store, PARTITION, {"a": b"2", "b": b"x" * 200_000})
    assert await values(store, PARTITION, ["a", "b"]) == [b"1", None]
    await put(store, PARTITION, {"a": b"3"})
    assert await values(store, PARTITION, ["a"]) == [b"3"]


async def test_documents_that_cannot_be_written(store: Store, folder: Path) -> None:
    """Where the redo fits on the disk and the documents do not, nothing is committed; reading works."""
    await put(store, PARTITION, {"a": b"1", "b": b"1", "c": b"1"})
    (folder / "b.json.tmp").mkdir()
    with pytest.raises(PersistenceUnavailable, match=r"b\.json\.tmp"):
        await store.commit(PARTITION, commit(put={"a": b"2", "b": b"2"}, delete=["c"]))
    assert await values(store, PARTITION, ["a", "b", "c"]) == [b"1", b"1", b"1"]
    assert not (folder / "a.json.tmp").exists()
    (folder / "b.json.tmp").rmdir()
    await put(store, PARTITION, {"b": b"3"})
    assert await values(store, PARTITION, ["a", "b", "c"]) == [b"1", b"3", b"1"]


async def test_a_lock_that_is_never_released(store: Store, folder: Path) -> None:
    """A stopped process that holds a partition's lock makes that partition unavailable, and no other."""
    await put(store, PARTITION, {"a": b"1"})
    with open(folder / ".redo", "r+b") as stopped:
        flock(stopped, LOCK_EX)
        for attempt in (put(store, PARTITION, {"a": b"2"}), store.read(PARTITION, ["a"])):
            with pytest.raises(PersistenceUnavailable, match="another process"):
                await attempt
        await put(store, "elsewhere", {"a": b"1"})
    assert await values(store, PARTITION, ["a"]) == [b"1"]


async def test_a_lock_that_is_not_released_costs_other_partitions_nothing(
    tmp_path: Path, folder: Path
) -> None:
    """However many reads and commits wait for one partition, those of others go through, and so do these
    once its lock is free."""
    async with plain_store(f"file://{tmp_path}/state", busy_seconds=60) as store:
        await put(store, PARTITION, {"a": b"1"})
        with open(folder / ".redo", "r+b") as stopped:
            flock(stopped, LOCK_EX)
            waiting = [asyncio.create_task(values(store, PARTITION, ["a"])) for _ in range(40)]
            writing = [asyncio.create_task(put(store, PARTITION, {"b": b"1"})) for _ in range(40)]
            await put(store, "elsewhere", {"a": b"1"})
            assert await values(store, "elsewhere", ["a"]) == [b"1"]
            assert not any(task.done() for task in (*waiting, *writing))
        assert await asyncio.gather(*waiting) == [[b"1"]] * 40
        await asyncio.gather(*writing)


def waits(folder: Path) -> bool:
    """Whether an operation on the partition waits for its lock, and those that come later will see it."""
    return bool((folder / ".redo").stat().st_mode & 0o100)


def gate_is_held(folder: Path, kind: int) -> bool:
    """Whether an operation waits that would keep out another of this kind."""
    gate = os.open(folder, os.O_RDONLY)
    try:
        flock(gate, kind | LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(gate)
    return False


@pytest.fixture
async def two(tmp_path: Path) -> AsyncGenerator[tuple[Store, Store]]:
    """Two processes' stores on the same folder, with a record `a` that is 1."""
    url = f"file://{tmp_path}/state"
    async with plain_store(url, busy_seconds=60) as one, plain_store(url, busy_seconds=60) as other:
        await put(one, PARTITION, {"a": b"1"})
        yield one, other


async def test_reads_do_not_overtake_a_commit(two: tuple[Store, Store], folder: Path) -> None:
    """A commit waits for the reads that began before it, and not for later ones of any process."""
    with open(folder / ".redo", "r+b") as reader:
        flock(reader, LOCK_SH)
        writing = asyncio.create_task(put(two[0], PARTITION, {"a": b"2"}))
        await eventually(lambda: waits(folder))
        reading = [asyncio.create_task(values(store, PARTITION, ["a"])) for store in two * 20]
        await put(two[1], "elsewhere", {"a": b"1"})
        assert not any(task.done() for task in (writing, *reading))
    assert await asyncio.gather(*reading) == [[b"2"]] * 40
    await writing
    assert not waits(folder)


async def test_commits_do_not_overtake_a_read(two: tuple[Store, Store], folder: Path) -> None:
    """A read waits for the commit that began before it, and not for later ones."""
    with open(folder / ".redo", "r+b") as writer:
        flock(writer, LOCK_EX)
        reading = asyncio.create_task(values(two[0], PARTITION, ["a"]))
        await eventually(lambda: waits(folder) and gate_is_held(folder, LOCK_EX))
        writing = asyncio.create_task(put(two[1], PARTITION, {"a": b"2"}))
        await put(two[1], "elsewhere", {"a": b"1"})
        assert not writing.done()
    assert await reading == [b"1"]
    await writing
    assert await values(two[0], PARTITION, ["a"]) == [b"2"]


async def test_an_operation_that_was_killed_while_it_waited(store: Store, folder: Path) -> None:
    """It keeps no other out, and the mark that it left is removed."""
    await put(store, PARTITION, {"a": b"1"})
    for attempt in (lambda: values(store, PARTITION, ["a"]), lambda: put(store, PARTITION, {"a": b"1"})):
        (folder / ".redo").chmod(0o700)
        await attempt()
        assert not waits(folder)


async def test_a_lock_whose_file_is_another_users(
    two: tuple[Store, Store], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that may write the file and not change its mode waits for its turn like others, also where
    a mark was left there."""

    def refused(file: int, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    for mode in (0o600, 0o700):
        (folder / ".redo").chmod(mode)
        with monkeypatch.context() as patch, open(folder / ".redo", "r+b") as writer:
            patch.setattr(os, "fchmod", refused)
            flock(writer, LOCK_EX)
            writing = asyncio.create_task(put(two[0], PARTITION, {"a": b"2"}))
            reading = asyncio.create_task(values(two[1], PARTITION, ["b"]))
            await eventually(lambda: gate_is_held(folder, LOCK_EX))
            assert not any(task.done() for task in (writing, reading))
            flock(writer, LOCK_UN)
            await writing
            assert await reading == [None]
        assert (folder / ".redo").stat().st_mode & 0o777 == mode


async def test_an_error_that_names_no_file(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition's folder is named in its place: the operator learns where to look."""

    def refused(file: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    await put(store, PARTITION, {"a": b"1"})
    monkeypatch.setattr(fcntl, "flock", refused)
    for attempt in (put(store, PARTITION, {"a": b"2"}), values(store, PARTITION, ["a"])):
        with pytest.raises(PersistenceUnavailable, match=re.escape(f"No locks available: {folder}.")):
            await attempt


async def test_an_operation_that_gave_up_waiting(store: Store, folder: Path) -> None:
    """Neither a read nor a commit that found the lock taken for too long keeps others out."""
    await put(store, PARTITION, {"a": b"1"})
    with open(folder / ".redo", "r+b") as stopped:
        flock(stopped, LOCK_EX)
        for attempt in (put(store, PARTITION, {"a": b"2"}), values(store, PARTITION, ["a"])):
            with pytest.raises(PersistenceUnavailable):
                await attempt
            assert not gate_is_held(folder, LOCK_EX)


async def test_a_read_whose_caller_has_left_leaves_the_gate(two: tuple[Store, Store], folder: Path) -> None:
    """It leaves the gate once the lock is free, and keeps no commit waiting."""
    with open(folder / ".redo", "r+b") as writer:
        flock(writer, LOCK_EX)
        reading = asyncio.create_task(values(two[0], PARTITION, ["a"]))
        await eventually(lambda: gate_is_held(folder, LOCK_EX))
        reading.cancel()
    await put(two[1], PARTITION, {"a": b"2"})
    assert not gate_is_held(folder, LOCK_EX)


async def test_an_operation_that_fails_once_its_caller_has_left(tmp_path: Path, folder: Path) -> None:
    """No one waits for its error any more: no traceback of it is logged."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with plain_store(f"file://{tmp_path}/state", busy_seconds=0.2) as store:
        await put(store, PARTITION, {"a": b"1"})
        with open(folder / ".redo", "r+b") as stopped:
            flock(stopped, LOCK_EX)
            writing = asyncio.create_task(put(store, PARTITION, {"a": b"2"}))
            await eventually(lambda: gate_is_held(folder, LOCK_EX))
            writing.cancel()
            await eventually(lambda: not gate_is_held(folder, LOCK_EX))
    assert writing.cancelled()
    del writing
    gc.collect()
    assert reported == []


async def test_a_folder_that_is_gone(store: Store, tmp_path: Path) -> None:
    """A folder that was moved away, or an unmounted disk, is unavailable and not an empty store."""
    (tmp_path / "state").rename(tmp_path / "moved")
    for attempt in (store.read(PARTITION, ["a"]), put(store, PARTITION, {"a": b""}), store.ping()):
        with pytest.raises(PersistenceUnavailable, match="No such file"):
            await attempt
    assert not (tmp_path / "state").exists()


async def test_a_folder_of_something_else(tmp_path: Path) -> None:
    """A folder that holds other files is refused, and nothing is written into it."""
    (tmp_path / "thesis.tex").write_text("…")
    with pytest.raises(PersistenceUnavailable, match="empty folder"):
        async with plain_store(f"file://{tmp_path}"):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("owner", "step"),
    [(Path, "iterdir"), (Path, "exists"), (file_folder, "sync")],
    ids=["before it looks for files", "before it looks for the store", "while it makes the store"],
)
async def test_two_processes_that_make_the_store_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    """Both open it, wherever one is when the other makes it and writes: it is no foreign folder to either."""
    url, stepped = f"file://{tmp_path}/state", getattr(owner, step)

    async def another_process() -> None:
        async with plain_store(url) as store:
            await put(store, PARTITION, {"a": b"1"})

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(owner, step, stepped)
        asyncio.run(another_process())
        return stepped(*args)

    (tmp_path / "state").mkdir()
    monkeypatch.setattr(owner, step, overtaken)
    async with plain_store(url) as store:
        assert getattr(owner, step) is stepped, "the other process came between"
        assert await values(store, PARTITION, ["a"]) == [b"1"]
    assert {path.name for path in (tmp_path / "state").iterdir()} == {".format", "+agent"}


@pytest.mark.parametrize("url", ["file://", "file:///", "file://host/dir", "file:///dir?colour=red"])
def test_urls_that_are_refused(url: str) -> None:
    """A URL that names no folder, or an unknown option, is an error that says what to write."""
    with pytest.raises(StoreConfigError, match=r"file:|colour"):
        plain_store(url)


def test_relative_folders(tmp_path: Path) -> None:
    """A relative folder is relative to what the caller says."""
    assert plain_store("file://./state", relative_to=tmp_path).where == str(tmp_path / "state")
    assert plain_store("file:///state", relative_to=tmp_path).where == "/state"


# --- forgetting -------------------------------------------------------------------------------------


async def test_expired_files_are_removed(tmp_path: Path, folder: Path) -> None:
    """A later commit removes the files of what has expired, and keeps what was written again since."""
    now = 1_000_000.0
    options = FileOptions(path=tmp_path / "state", sweep_seconds=60)
    async with FileStore(options, clock=lambda: now) as store:
        await put(store, PARTITION, {"events/1": b"1", "events/2": b"1"}, ttl=100)
        await put(store, PARTITION, {"events/2": b"2"}, ttl=1000)
        now += 200
        await put(store, PARTITION, {"a": b""})
        assert [path.name for path in (folder / "events").iterdir()] == ["2.json"]
        now += 1000
        await put(store, PARTITION, {"a": b""})
        assert not (folder / "events").exists()
        assert (folder / ".expiring").read_text() == ""


async def test_what_expired_is_erased_by_name(store: Store, folder: Path) -> None:
    """Not with the next hour's sweep only, and where its note was lost. covers: STATE-2"""
    await put(store, PARTITION, {f"events/{n}": b"1" for n in range(9)}, ttl=0.01)
    (folder / ".expiring").unlink()
    await asyncio.sleep(0.02)
    assert len(await erase_expired(store, PARTITION)) == 9
    assert [path.name for path in folder.iterdir()] == [".redo"]


async def test_the_last_deletion_takes_the_notes_along(store: Store, folder: Path) -> None:
    """They name keys, such as digests of what an erased user's client chose. covers: STATE-2"""
    await put(store, PARTITION, {"key/1": b"1", "key/2": b"2"}, ttl=3600)
    await store.commit(PARTITION, commit(delete=["key/1"]))
    assert (folder / ".expiring").exists()
    await store.commit(PARTITION, commit(delete=["key/2"]))
    assert [path.name for path in folder.iterdir()] == [".redo"]
    await put(store, PARTITION, {"key/1": b"1"}, ttl=3600)
    assert "key/1" in (folder / ".expiring").read_text()


async def test_notes_that_a_full_disk_cut_off(tmp_path: Path, folder: Path) -> None:
    """A note of what expires that was cut off is passed over: commits go through, other notes count."""
    now = 1_000_000.0
    options = FileOptions(path=tmp_path / "state", sweep_seconds=60)
    async with FileStore(options, clock=lambda: now) as store:
        await put(store, PARTITION, {"events/1": b"1"}, ttl=100)
        with (folder / ".expiring").open("a") as notes:
            notes.write("1000100.")
        await put(store, PARTITION, {"events/2": b"1"}, ttl=100)
        await put(store, PARTITION, {"events/3": b"1"}, ttl=100)
        now += 200
        await put(store, PARTITION, {"a": b""})
        assert not (folder / "events/1.json").exists()
        assert not (folder / "events/3.json").exists()
        assert (folder / ".expiring").read_text() == ""
