"""The contract suite on encrypted stores, and what encryption promises."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import CorruptState
from tealagents.domain.models import User
from tealagents.domain.ports import COMMIT_BYTES, Store
from tealagents.state import keys
from tealagents.state.codec import seal, unseal
from tealagents.state.dump import Exporter
from tealagents.state.inventory import Inventory
from tealagents.state.owner_directory import Directory
from tealagents.state.records import RecordStore
from tealagents.stores import StoreConfigError, plain_store, sealed
from tealagents.stores.encrypted import EncryptedStore
from tealagents.testing.store_steps import OpenStore, commit, put, values
from tealagents.testing.stores import StoreContract

KEY = "a key of 43 characters, like 32 random bytes"
OLD = "an older key, of forty-three characters, too"
PARTITION = "agent/user/alice"


class TestEncryptedSqliteStore(StoreContract):
    largest = COMMIT_BYTES

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: EncryptedStore(plain_store(f"sqlite:///{tmp_path}/state.db"), KEY)


class TestEncryptedMemoryStore(StoreContract):
    examples = 50
    largest = COMMIT_BYTES

    @pytest.fixture
    def open_store(self) -> OpenStore:
        return lambda: EncryptedStore(plain_store("memory://"), KEY)


@pytest.fixture
async def plain() -> AsyncGenerator[Store]:
    """What an intruder, or a disk, has to do with."""
    async with plain_store("memory://") as store:
        yield store


async def change(plain: Store, key: str, value: bytes) -> None:
    """Writes a stored value past the encryption."""
    await put(plain, PARTITION, {key: value})


async def stored(plain: Store, key: str) -> bytes:
    [value] = await values(plain, PARTITION, [key])
    assert value is not None
    return value


async def test_nothing_of_a_value_is_stored(tmp_path: Path) -> None:
    """No file of a store holds what was put, in any of the forms text takes. covers: STATE-1"""
    for url in (f"sqlite:///{tmp_path}/state.db", f"file://{tmp_path}/files"):
        async with EncryptedStore(plain_store(url), KEY) as store:
            for n in range(40):
                await put(store, PARTITION, {f"key/{n}": b'{"text":"the planted secret"}'})
            assert await values(store, PARTITION, ["key/7"]) == [b'{"text":"the planted secret"}']
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 40
    for file in files:
        content = file.read_bytes()
        assert b"planted" not in content
        assert b"cGxhbnRlZ" not in content
        assert KEY.encode() not in content


async def test_equal_values_look_different(plain: Store) -> None:
    """The same value sealed twice is stored as different bytes."""
    store = EncryptedStore(plain, KEY)
    await put(store, PARTITION, {"a": b"same", "b": b"same"})
    assert await stored(plain, "a") != await stored(plain, "b")


@pytest.mark.parametrize("position", [0, 5, 9, 20, 21, 30, -1])
async def test_a_flipped_bit_is_found(plain: Store, position: int) -> None:
    """A sealed value with one bit changed, wherever, is corrupt, and is left as it was. covers: STATE-4"""
    store = EncryptedStore(plain, KEY)
    await put(store, PARTITION, {"key": b"a value of some length"})
    damaged = bytearray(await stored(plain, "key"))
    damaged[position] ^= 1
    await change(plain, "key", bytes(damaged))
    with pytest.raises(CorruptState, match="'key'"):
        await store.read(PARTITION, ["key"])
    assert await stored(plain, "key") == damaged


async def test_a_value_that_was_cut_short_is_found(plain: Store) -> None:
    """Wherever it ends, by accident or not; a list with it is answered. covers: STATE-4"""
    store = EncryptedStore(plain, KEY)
    await put(store, PARTITION, {"key": b"a value"})
    whole = await stored(plain, "key")
    for length in range(len(whole)):
        await change(plain, "key", whole[:length])
        with pytest.raises(CorruptState, match="'key'"):
            await store.read(PARTITION, ["key"])
        assert [key for key, _ in await store.scan(PARTITION, "")] == ["key"]


async def test_values_cannot_be_swapped(plain: Store) -> None:
    """A value moved to another key, or to its own in another partition, does not open. covers: STATE-4"""
    store = EncryptedStore(plain, KEY)
    await put(store, PARTITION, {"a": b"of a", "b": b"of b"})
    a, b = await stored(plain, "a"), await stored(plain, "b")
    await put(plain, PARTITION, {"a": b, "b": a})
    await put(plain, "agent/user/mallory", {"a": a})
    for partition, key in ((PARTITION, "a"), (PARTITION, "b"), ("agent/user/mallory", "a")):
        with pytest.raises(CorruptState, match="changed, or moved"):
            await store.read(partition, [key])


async def test_one_damaged_record_does_not_fail_a_list(plain: Store) -> None:
    """A scan returns what does not open as it is stored, beside the others. covers: STATE-4"""
    store = EncryptedStore(plain, KEY)
    await put(store, PARTITION, {"a": b"1", "b": b"2"})
    await change(plain, "a", b"TEAL1 damaged")
    found = await store.scan(PARTITION, "")
    assert [(key, record.value) for key, record in found] == [("a", b"TEAL1 damaged"), ("b", b"2")]


async def test_a_list_does_not_believe_what_was_never_sealed(plain: Store) -> None:
    """A well-formed record that was put there without the key is damage to who scans, too, and not called
    encrypted."""
    await change(plain, "key", seal(PARTITION, "key", "planted"))
    [(key, record)] = await EncryptedStore(plain, KEY).scan(PARTITION, "")
    with pytest.raises(CorruptState, match=r"'key' does not open: .* or unset it"):
        unseal(PARTITION, key, record.value, str)


async def test_a_list_says_that_a_record_was_moved(plain: Store) -> None:
    """The key may fit, as that of a service that has started does: the text does not blame it alone."""
    store = EncryptedStore(plain, KEY)
    await put(store, PARTITION, {"a": b"of a"})
    await put(plain, PARTITION, {"b": await stored(plain, "a")})
    [(key, record)] = await store.scan(PARTITION, "", after="a")
    with pytest.raises(CorruptState, match=r"'b' does not open: .* was changed or moved"):
        unseal(PARTITION, key, record.value, str)


async def test_rotation(plain: Store) -> None:
    """Old keys open what they sealed; what is written is sealed with the new one alone."""
    await put(EncryptedStore(plain, OLD), PARTITION, {"old": b"1", "both": b"1"})
    rotated = EncryptedStore(plain, KEY, old_keys=[OLD])
    assert await values(rotated, PARTITION, ["old", "both"]) == [b"1", b"1"]
    await put(rotated, PARTITION, {"both": b"2"})
    only_new = EncryptedStore(plain, KEY)
    assert await values(only_new, PARTITION, ["both"]) == [b"2"]
    with pytest.raises(CorruptState, match="TA_ENCRYPTION_OLD_KEYS"):
        await only_new.read(PARTITION, ["old"])
    await only_new.commit(PARTITION, commit(delete=["old"]))


async def test_a_wrong_key_opens_nothing(plain: Store) -> None:
    """Under another key every record is corrupt, and says which key is missing without naming any secret."""
    await put(EncryptedStore(plain, KEY), PARTITION, {"key": b"1"})
    with pytest.raises(CorruptState) as refused:
        await EncryptedStore(plain, OLD).read(PARTITION, ["key"])
    assert KEY not in str(refused.value)
    assert OLD not in str(refused.value)


async def test_a_store_written_without_a_key(plain: Store) -> None:
    """A value that was never sealed is refused with a text that says what to do."""
    await put(plain, PARTITION, {"key": json.dumps({"plain": True}).encode()})
    with pytest.raises(CorruptState, match=r"is not encrypted.*tealagents state export"):
        await EncryptedStore(plain, KEY).read(PARTITION, ["key"])


@pytest.mark.parametrize("text", ["correct horse battery", " correct horse battery \n", KEY])
async def test_passphrases_and_random_keys(plain: Store, text: str) -> None:
    """Any text of eight characters or more is a key, the same one in every process."""
    await put(EncryptedStore(plain, text), PARTITION, {"key": b"1"})
    assert await values(EncryptedStore(plain, text.strip()), PARTITION, ["key"]) == [b"1"]


def test_a_key_that_is_too_short() -> None:
    """A key of a few characters is refused with a way to make a better one, and is not quoted."""
    with pytest.raises(StoreConfigError, match="openssl rand") as refused:
        EncryptedStore(plain_store("memory://"), "hunter2")
    assert "hunter2" not in str(refused.value)


async def test_a_forgotten_key_is_what_is_reported(plain: Store) -> None:
    """Without its key a sealed record is not called damaged beyond that."""
    await put(EncryptedStore(plain, KEY), PARTITION, {"key": b"{}"})
    with pytest.raises(CorruptState, match="does not open: set TA_ENCRYPTION_KEY"):
        unseal(PARTITION, "key", await stored(plain, "key"), dict)


# --- whose key is the store's ------------------------------------------------------------------------

TWO_KEYS = pytest.mark.parametrize(("one", "other"), [(KEY, OLD), (KEY, None), (None, KEY)])


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncGenerator[Callable[..., Inventory]]:
    """Makes the inventories of processes on one SQLite store, each with a key and perhaps old ones."""
    async with AsyncExitStack() as stores:
        url = f"sqlite:///{tmp_path}/state.db"
        opened = [await stores.enter_async_context(plain_store(url)) for _ in range(2)]

        def made(key: str | None, *old_keys: str, agent: str = "Tester") -> Inventory:
            opened.reverse()
            return Inventory(RecordStore(sealed(opened[0], key, old_keys), agent, SystemClock()))

        yield made


@TWO_KEYS
async def test_an_empty_store_has_the_key_of_the_first_who_starts(
    processes: Callable[..., Inventory], one: str | None, other: str | None
) -> None:
    """Before there is any user; another key is refused then, also by who only reads. covers: STATE-1"""
    await processes(one).claim(keyed=one is not None)
    for _ in range(2):
        for start in (Inventory.claim, Inventory.check_key):
            with pytest.raises(CorruptState, match=r"TA_ENCRYPTION_|tealagents state export"):
                await start(processes(other), keyed=other is not None)
            await start(processes(one), keyed=one is not None)
    assert (await processes(one).count()).users == 0


@TWO_KEYS
async def test_of_two_keys_at_once_an_empty_store_takes_one(
    processes: Callable[..., Inventory], one: str | None, other: str | None
) -> None:
    """No one starts beside a process that seals differently. covers: STATE-1"""
    for agent in (f"Tester-{n}" for n in range(20)):
        starts = [processes(key, agent=agent).claim(keyed=key is not None) for key in (one, other)]
        results = await asyncio.gather(*starts, return_exceptions=True)
        assert set(map(type, results)) == {CorruptState, type(None)}


@TWO_KEYS
async def test_a_key_that_is_taken_while_another_process_looks_is_seen_by_it(
    processes: Callable[..., Inventory], one: str | None, other: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them has one. covers: STATE-1"""
    for agent, slow, quick in (("Tester-1", one, other), ("Tester-2", other, one)):
        starts, quicker = processes(slow, agent=agent), processes(quick, agent=agent)
        check, claims = starts.check_key, [partial(quicker.claim, keyed=quick is not None)]

        async def check_slowly(*, keyed: bool, check: Any = check, claims: Any = claims) -> None:
            await check(keyed=keyed)
            if claims:
                await claims.pop()()

        monkeypatch.setattr(starts, "check_key", check_slowly)
        with pytest.raises(CorruptState):
            await starts.claim(keyed=slow is not None)


async def test_the_key_of_an_empty_store_is_rotated(processes: Callable[..., Inventory]) -> None:
    """It is an old key then. covers: STATE-1"""
    await processes(KEY).claim(keyed=True)
    for rotating in (processes(KEY, OLD), processes(OLD, KEY), processes(KEY, OLD)):
        await rotating.claim(keyed=True)
    with pytest.raises(CorruptState, match="TA_ENCRYPTION_OLD_KEYS"):
        await processes(OLD).claim(keyed=True)


async def test_a_store_with_users_takes_no_other_key_either(processes: Callable[..., Inventory]) -> None:
    """Although no process has started on it, as where an earlier version has written it. covers: STATE-1"""
    await Directory(processes(KEY)._records).introduce(User("t", "ada"))
    for key in (OLD, None):
        with pytest.raises(CorruptState):
            await processes(key).claim(keyed=key is not None)
    await processes(KEY).claim(keyed=True)


async def test_a_key_from_before_the_first_user_is_not_needed_for_good(
    processes: Callable[..., Inventory],
) -> None:
    """Neither once the last user is erased, nor for an export. covers: STATE-1"""
    await processes(KEY).claim(keyed=True)
    await processes(OLD, KEY).claim(keyed=True)
    records = processes(OLD)._records
    await Directory(records).introduce(User("t", "ada"))
    lines = [line async for line in Exporter(records).lines()]
    assert not any(keys.KEY_CHECK.encode() in line or b'"damaged"' in line for line in lines)
    await processes(OLD).claim(keyed=True)
    for partition in Inventory(records).index_partitions():
        found = await records.store.scan(partition, "")
        await records.store.commit(partition, commit(delete=[key for key, _ in found]))
    await processes(OLD).claim(keyed=True)


async def test_what_only_looks_at_an_empty_store_gives_it_no_key(
    processes: Callable[..., Inventory],
) -> None:
    """Such as `tealagents doctor`: the service that starts then may have another. covers: STATE-1"""
    await processes(None).check_key(keyed=False)
    await processes(KEY).claim(keyed=True)
