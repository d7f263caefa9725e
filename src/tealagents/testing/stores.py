"""The contract suite of stores: one class of tests that every store must pass, also third-party ones.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda: open_store(f"my.module:MyStore://{tmp_path}/state")

`open_store` makes a store that is not opened yet. Each call makes another one on the same state; more than
one is open at a time only if the store is `shared`. Every test uses partitions of its own, so the state may
be on a server that others use.

A Hypothesis state machine compares `examples` random histories with a plain dictionary. They are the same in
each run, unless the environment variable `STORE_EXAMPLES` sets their number, which also makes them random.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tealagents.domain.errors import Conflict
from tealagents.domain.ids import operation_id
from tealagents.domain.ports import Commit, Put, Record, Store
from tealagents.stores.base import MAX_BYTES
from tealagents.testing.store_histories import RandomHistories
from tealagents.testing.store_steps import (
    OpenStore,
    amount,
    batches,
    change_until_done,
    commit,
    erase_expired,
    moved,
    pages,
    put,
    put_all,
    reading,
    scanning,
    ticks,
    two_openings,
    until,
    values,
    winners,
)
from tealagents.testing.store_watches import WatchContract

__all__ = ["AWKWARD_NAMES", "AWKWARD_VALUES", "StoreContract"]

_NAMES = """
    - -rf . .. ... ../../etc/passwd ./a / // /abs/olute a/ a//b a/b 0 A AA Aa aA aa a CON con nul a. a.json
    a.tmp .lock lock redo redo.json a:b a::b a@b user@host ~ ~root ~~ _ a_b a-b axb tid.oid
    log/01234567-89ab-8def-8123-456789abcdef/000000000001
"""
_LONG = ("k" * 254 + "1", "k" * 254 + "2", "K" * 254 + "1", "/" * 255, "~" * 255, "A" * 120, "a" * 120)

#: where the file store cuts a long name: what follows looks like a folder itself, and like the one above it
_CUT = ("A" * 100 + "a", "A" * 100 + "./a", "A" * 100 + "../a")

#: names that are difficult for file systems, SQL patterns, shells and separators
AWKWARD_NAMES = (*_NAMES.split(), *_LONG, *_CUT)

#: values that are difficult for encodings, JSON formatters and terminators
AWKWARD_VALUES = (
    *(b"", b"\x00", b"\xff", b"\n", b" ", bytes(range(256)), b"NaN", b"\\x00", b"eyJhIjoxfQ=="),
    *(b"null", b"0", b'""', b"{}", b"[1,2]", b'{"a":1}', b'"\xc3\x28"', b"\xef\xbb\xbf{}"),
    b'{ "a" :\t1.0,\r\n"a": 1e5 }\n',
    b'{"b":1,"a":{"z":[],"y":null},"long":123456789012345678901234567890,"float":0.1000}',
    '{"text":"é \\u00e9 \u2028 \U0001f600 \\/ </script>"}'.encode(),
    b'{"surrogate":"\\ud800"}',
    b'{"sha256":"' + b"0" * 64 + b'","value":{"role":"user","items":[{"text":"hello"}]}}',
)


class StoreContract(WatchContract):
    """Every sentence of the port `Store`, as tests. Subclass it with a fixture `open_store`."""

    #: the number of random histories; the environment variable `STORE_EXAMPLES` overrides it
    examples: ClassVar[int] = 60
    #: False if a `read` may return only some records of a concurrent commit (see `Store.read`)
    reads_are_snapshots: ClassVar[bool] = True
    #: the bytes of the largest value; a wrapper that adds to it may have `COMMIT_BYTES`
    largest: ClassVar[int] = MAX_BYTES

    @pytest.fixture
    async def store(self, open_store: OpenStore) -> AsyncGenerator[Store]:
        async with open_store() as store:
            yield store

    @pytest.fixture
    def partition(self) -> str:
        """A partition that no other test uses, with each kind of character that its name may contain."""
        return f"Tid.{operation_id()}~/@:-_"

    # --- what a commit does -----------------------------------------------------------------------

    async def test_what_is_put_is_read(self, store: Store, partition: str) -> None:
        """A value put is read at once, with the operation's id as its version."""
        operation = await put(store, partition, {"key": b"value"})
        assert await store.read(partition, ["key"]) == [Record(b"value", operation)]

    async def test_reading_keeps_the_order_asked_for(self, store: Store, partition: str) -> None:
        """Records are in the order of the keys: None for an absent one, twice for a repeated one."""
        version = await put(store, partition, {"a": b"1", "b": b"2"})
        a, b = Record(b"1", version), Record(b"2", version)
        assert await store.read(partition, ["b", "c", "a", "b"]) == [b, None, a, b]
        assert await store.read(partition, []) == []

    async def test_many_records_are_read_at_once(self, store: Store, partition: str) -> None:
        """A read may ask for more keys than a commit may put."""
        written = {f"key/{n:03}": str(n).encode() for n in range(120)}
        await put_all(store, partition, written)
        assert await values(store, partition, list(written)) == list(written.values())

    async def test_values_are_bytes(self, store: Store, partition: str) -> None:
        """Any bytes are returned unchanged: empty, JSON in any layout, invalid UTF-8, every byte value."""
        written = {f"value/{n:02}": value for n, value in enumerate(AWKWARD_VALUES)}
        await put_all(store, partition, written)
        assert await values(store, partition, list(written)) == list(written.values())
        assert [(key, r.value) for key, r in await store.scan(partition, "value/")] == list(written.items())

    @pytest.mark.parametrize("text", [True, False], ids=["text", "bytes"])
    async def test_values_up_to_a_megabyte(self, store: Store, partition: str, text: bool) -> None:
        """The largest value is kept, text or not, and can be replaced and deleted."""
        value = b'{"a":"' + b"x" * (self.largest - 8) + b'"}' if text else os.urandom(self.largest)
        version = await put(store, partition, {"big": value})
        assert await store.read(partition, ["big"]) == [Record(value, version)]
        assert await store.scan(partition, "b") == [("big", Record(value, version))]
        version = await put(store, partition, {"big": b"small"})
        assert await store.read(partition, ["big"]) == [Record(b"small", version)]
        await put(store, partition, {"big": value})
        await store.commit(partition, commit(delete=["big"]))
        assert await store.read(partition, ["big"]) == [None]

    async def test_a_commit_of_ten_records(self, store: Store, partition: str) -> None:
        """One commit may expect, put and delete ten records together, up to a megabyte in all."""
        before = await put(store, partition, {"a": b"1", "b": b"2", "c": b"3"})
        new = {key: key.encode() * 140_000 for key in ("a", "d", "e", "f", "g", "h", "i")}
        change = commit(expect={"a": before, "b": before, "d": None}, put=new, delete=["b", "c", "j"])
        await store.commit(partition, change)
        found = await store.scan(partition, "")
        assert {key: record.value for key, record in found} == new
        assert {record.version for _, record in found} == {change.operation}

    async def test_deleting(self, store: Store, partition: str) -> None:
        """A deleted record is absent, and can be written again; deleting an absent record is no error."""
        await put(store, partition, {"key": b"1"})
        await store.commit(partition, commit(delete=["key", "never-was"]))
        assert await store.read(partition, ["key"]) == [None]
        assert await store.scan(partition, "") == []
        await store.commit(partition, commit(expect={"key": None}, put={"key": b"2"}))
        assert await values(store, partition, ["key"]) == [b"2"]

    async def test_a_commit_may_only_expect(self, store: Store, partition: str) -> None:
        """A commit without writes checks its expectations."""
        version = await put(store, partition, {"key": b"1"})
        await store.commit(partition, commit(expect={"key": version, "other": None}))
        with pytest.raises(Conflict):
            await store.commit(partition, commit(expect={"key": None}))
        assert await store.read(partition, ["key", "other"]) == [Record(b"1", version), None]

    async def test_partitions_are_apart(self, store: Store, partition: str) -> None:
        """The same key in two partitions is two records; a scan sees its own partition alone."""
        others = [partition + "x", partition[:-1], partition.swapcase(), partition + "/key"]
        for other in others:
            await put(store, other, {"key": other.encode()})
        assert await store.read(partition, ["key", "/key"]) == [None, None]
        assert await store.scan(partition, "") == []
        for other in others:
            assert await values(store, other, ["key"]) == [other.encode()]
            assert [key for key, _ in await store.scan(other, "")] == ["key"]

    # --- expectations -----------------------------------------------------------------------------

    async def test_expecting_absence(self, store: Store, partition: str) -> None:
        """If two writers expect a key to be absent, the first one succeeds and the second one conflicts."""
        await store.commit(partition, commit(expect={"key": None}, put={"key": b"first"}))
        with pytest.raises(Conflict):
            await store.commit(partition, commit(expect={"key": None}, put={"key": b"second"}))
        assert await values(store, partition, ["key"]) == [b"first"]

    async def test_expecting_a_version(self, store: Store, partition: str) -> None:
        """Only the current version is accepted: not an earlier one, and none for an absent record."""
        first = await put(store, partition, {"key": b"1"})
        change = commit(expect={"key": first}, put={"key": b"2"})
        await store.commit(partition, change)
        for stale in (first, operation_id()):
            with pytest.raises(Conflict):
                await store.commit(partition, commit(expect={"key": stale}, put={"key": b"3"}))
        with pytest.raises(Conflict):
            await store.commit(partition, commit(expect={"absent": first}, put={"absent": b"3"}))
        assert await store.read(partition, ["key", "absent"]) == [Record(b"2", change.operation), None]

    async def test_a_conflict_writes_nothing(self, store: Store, partition: str) -> None:
        """A single failed expectation, even the last one, leaves everything unchanged."""
        version = await put(store, partition, {"a": b"1", "b": b"2", "z": b"26"})
        before = await store.scan(partition, "")
        new = {"a": b"new", "c": b"3", "z": b"new"}
        for wrong in ({"z": operation_id()}, {"z": None}, {"absent": version}):
            with pytest.raises(Conflict):
                await store.commit(partition, commit(expect={"a": version, **wrong}, put=new, delete=["b"]))
            assert await store.scan(partition, "") == before

    async def test_a_conflict_names_only_keys_that_differ(self, store: Store, partition: str) -> None:
        """The keys that a conflict names, if it names any, are among those whose expectation failed."""
        version = await put(store, partition, {"right": b"1", "wrong": b"2"})
        expect = {"right": version, "wrong": None, "absent": None, "missing": version}
        with pytest.raises(Conflict) as conflict:
            await store.commit(partition, commit(expect=expect))
        assert set(conflict.value.keys) <= {"wrong", "missing"}

    async def test_deleting_needs_its_expectation(self, store: Store, partition: str) -> None:
        """A record is not deleted if it no longer has the expected version."""
        first = await put(store, partition, {"key": b"1"})
        await put(store, partition, {"key": b"2"})
        with pytest.raises(Conflict):
            await store.commit(partition, commit(expect={"key": first}, delete=["key"]))
        assert await values(store, partition, ["key"]) == [b"2"]

    async def test_a_version_is_of_the_last_writer(self, store: Store, partition: str) -> None:
        """The same value written again has the new operation's version; so has a record that was deleted."""
        first = await put(store, partition, {"key": b"same"})
        second = await put(store, partition, {"key": b"same"})
        assert await store.read(partition, ["key"]) == [Record(b"same", second)]
        await store.commit(partition, commit(delete=["key"]))
        third = await put(store, partition, {"key": b"same"})
        assert await store.read(partition, ["key"]) == [Record(b"same", third)]
        for past in (first, second):
            with pytest.raises(Conflict):
                await store.commit(partition, commit(expect={"key": past}, put={"key": b"other"}))

    async def test_an_operation_retried_after_it_was_applied(self, store: Store, partition: str) -> None:
        """A retry under the same operation id conflicts or changes nothing: it never shows up twice."""
        version = await put(store, partition, {"head": b"1"})
        change = commit(expect={"head": version, "log/1": None}, put={"head": b"2", "log/1": b"entry"})
        for _ in range(2):
            with suppress(Conflict):
                await store.commit(partition, change)
            assert await store.scan(partition, "") == [
                ("head", Record(b"2", change.operation)),
                ("log/1", Record(b"entry", change.operation)),
            ]

    async def test_an_operation_retried_after_a_conflict(self, store: Store, partition: str) -> None:
        """A refused operation leaves no trace: it succeeds when it is sent again without a conflict."""
        change = commit(expect={"gate": None}, put={"key": b"value"})
        await put(store, partition, {"gate": b"shut"})
        with pytest.raises(Conflict):
            await store.commit(partition, change)
        await store.commit(partition, commit(delete=["gate"]))
        await store.commit(partition, change)
        assert await store.read(partition, ["key"]) == [Record(b"value", change.operation)]

    async def test_mistakes_are_refused(self, store: Store, partition: str) -> None:
        """What the port does not allow raises ValueError, and nothing is written."""
        mistakes = [
            (partition, Commit(operation="short", put={"key": Put(b"")})),
            (partition, commit(put={"": b""})),
            (partition, commit(put={"ключ": b""})),
            (partition, commit(put={"two\nlines": b""})),
            (partition, commit(put={"line\n": b""})),
            (partition, commit(put={"k" * 256: b""})),
            (partition, commit(expect={"a b": None}, put={"key": b""})),
            (partition, commit(put={"key": b""}, delete=["key"])),
            (partition, commit(put={f"key/{n}": b"" for n in range(11)})),
            (partition, commit(put={"key": b"x" * 1_100_000})),
            ("", commit(put={"key": b""})),
            ("a b", commit(put={"key": b""})),
        ]
        for where, mistake in mistakes:
            with pytest.raises(ValueError):
                await store.commit(where, mistake)
        assert await store.scan(partition, "") == []

    # --- names ------------------------------------------------------------------------------------

    async def test_keys_of_every_kind(self, store: Store, partition: str) -> None:
        """Keys that look like paths, differ only in case, or have 255 characters are separate records."""
        names = sorted(AWKWARD_NAMES)
        await put_all(store, partition, {name: name.encode() for name in names})
        assert await values(store, partition, names) == [name.encode() for name in names]
        assert [key for key, _ in await store.scan(partition, "")] == names
        for some in batches(names[::2]):
            await store.commit(partition, commit(delete=some))
        assert await values(store, partition, names[::2]) == [None] * len(names[::2])
        assert [(key, record.value) for key, record in await store.scan(partition, "")] == [
            (name, name.encode()) for name in names[1::2]
        ]

    async def test_partitions_of_every_kind(self, store: Store) -> None:
        """The name of a partition may be anything that a key may be."""
        mark = operation_id()
        for name in AWKWARD_NAMES:
            await put(store, name, {mark: name.encode()})
        for name in AWKWARD_NAMES:
            assert [record.value for _, record in await store.scan(name, mark)] == [name.encode()]
            await store.commit(name, commit(delete=[mark]))
            assert await store.read(name, [mark]) == [None]

    # --- scans ------------------------------------------------------------------------------------

    async def test_scans_are_ordered_by_code_point(self, store: Store, partition: str) -> None:
        """Keys are in the order of their code points, or in reverse, regardless of the locale."""
        keys = list("-./0129:@AZ_az~")
        await put_all(store, partition, dict.fromkeys(reversed(keys), b""))
        assert [key for key, _ in await store.scan(partition, "")] == keys
        assert [key for key, _ in await store.scan(partition, "", reverse=True)] == keys[::-1]

    async def test_a_scan_finds_its_prefix(self, store: Store, partition: str) -> None:
        """Only keys that begin with the prefix, taken literally, are found."""
        keys = sorted(["a", "a.b", "a/", "a/1", "a/10", "a/2", "a_b", "axb", "a~", "a~~", "A/1", "b", "~"])
        await put_all(store, partition, {key: key.encode() for key in keys})
        for prefix in ("", "a", "a/", "a/1", "a/10", "a/100", "a_", "a.", "a~", "A", "b", "b/", "c", "~"):
            found = await store.scan(partition, prefix)
            assert [(key, record.value) for key, record in found] == [
                (key, key.encode()) for key in keys if key.startswith(prefix)
            ]

    @pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
    async def test_scans_in_pages(self, store: Store, partition: str, reverse: bool) -> None:
        """Pages joined by `after` hold every key once, in order; a short page is the last one."""
        keys = sorted(f"log/{n:02}" for n in range(25))
        await put_all(store, partition, dict.fromkeys([*keys, "log", "log0", "lof/9", "zzz"], b""))
        if reverse:
            keys.reverse()
        for limit, expected in (
            (10, [keys[:10], keys[10:20], keys[20:]]),
            (1, [*([key] for key in keys), []]),
            (25, [keys, []]),
            (26, [keys]),
        ):
            assert [page async for page in pages(store, partition, "log/", limit, reverse)] == expected

    async def test_after_need_not_be_there(self, store: Store, partition: str) -> None:
        """`after` may name an absent key, within the prefix or on either side of it."""
        await put(store, partition, dict.fromkeys(("a", "m/1", "m/3", "m/5", "z"), b""))
        forward = {"0": 0, "a": 0, "m/0": 0, "m/1": 1, "m/2": 1, "m/3": 2, "m/5": 3, "m/9": 3, "z": 3}
        backward = {"a": 0, "m/0": 0, "m/1": 0, "m/3": 1, "m/4": 2, "m/5": 2, "m/9": 3, "z": 3, "zz": 3}
        for after, behind in forward.items():
            found = await store.scan(partition, "m/", after=after)
            assert [key for key, _ in found] == ["m/1", "m/3", "m/5"][behind:], after
        for after, before in backward.items():
            found = await store.scan(partition, "m/", after=after, reverse=True)
            assert [key for key, _ in found] == ["m/1", "m/3", "m/5"][:before][::-1], after

    async def test_a_scan_is_full_however_large_its_records(self, store: Store, partition: str) -> None:
        """Fewer records than the limit are returned only if there are no more, even if they are megabytes."""
        written = {f"big/{n:02}": os.urandom(240_000) for n in range(20)}
        for some in batches(list(written), 4):
            await put(store, partition, {key: written[key] for key in some})
        found = await store.scan(partition, "big/", limit=20)
        assert {key: record.value for key, record in found} == written

    async def test_a_scan_of_a_hundred(self, store: Store, partition: str) -> None:
        """A scan returns up to a hundred records by default, and otherwise up to the limit."""
        keys = [f"key/{n:03}" for n in range(150)]
        await put_all(store, partition, dict.fromkeys(keys, b""))
        assert [key for key, _ in await store.scan(partition, "key/")] == keys[:100]
        assert [key for key, _ in await store.scan(partition, "key/", limit=1000)] == keys

    # --- ttl --------------------------------------------------------------------------------------

    async def test_a_record_expires(self, store: Store, partition: str) -> None:
        """A record past its ttl is absent from reads and scans, and is expected absent."""
        version = await put(store, partition, {"key": b"1"}, ttl=0.02)
        await put(store, partition, {"long": b"2"}, ttl=3600)
        await asyncio.sleep(0.05)
        assert await values(store, partition, ["key", "long"]) == [None, b"2"]
        assert [key for key, _ in await store.scan(partition, "")] == ["long"]
        with pytest.raises(Conflict):
            await store.commit(partition, commit(expect={"key": version}, put={"key": b"3"}))
        await store.commit(partition, commit(expect={"key": None}, put={"key": b"4"}))
        assert await values(store, partition, ["key"]) == [b"4"]

    async def test_writing_again_sets_the_ttl_anew(self, store: Store, partition: str) -> None:
        """The last put decides when a record expires, or that it never does."""
        await put(store, partition, {"kept": b"1"}, ttl=0.02)
        await put(store, partition, {"kept": b"2"})
        await put(store, partition, {"longer": b"1"}, ttl=0.02)
        await put(store, partition, {"longer": b"2"}, ttl=3600)
        await put(store, partition, {"shorter": b"1"})
        await put(store, partition, {"shorter": b"2"}, ttl=0.02)
        await asyncio.sleep(0.05)
        assert await values(store, partition, ["kept", "longer", "shorter"]) == [b"2", b"2", None]

    async def test_expired_records_do_not_fill_a_page(self, store: Store, partition: str) -> None:
        """Expired records are left out before the limit counts."""
        await put(store, partition, {f"key/{n}": b"" for n in range(0, 20, 2)}, ttl=0.02)
        await put(store, partition, {f"key/{n}": b"" for n in range(1, 20, 2)})
        await asyncio.sleep(0.05)
        live = sorted(f"key/{n}" for n in range(1, 20, 2))
        found = await store.scan(partition, "key/", limit=10)
        assert [key for key, _ in found] == live
        found = await store.scan(partition, "key/", limit=3, reverse=True)
        assert [key for key, _ in found] == live[::-1][:3]

    async def test_what_has_expired_is_named_until_it_is_erased(self, store: Store, partition: str) -> None:
        """`expired` names only expired records that are still stored; a commit that deletes one erases it."""
        await put_all(store, partition, {f"kept/{n}": b"" for n in range(12)})
        await put(store, partition, {f"key/{n}": b"1" for n in range(8)}, ttl=0.02)
        await put(store, partition, {"key/0": b"2"})
        await put(store, partition, {"long": b"2"}, ttl=3600)
        await asyncio.sleep(0.05)
        erased = await erase_expired(store, partition, limit=3)
        assert set(erased) <= {f"key/{n}" for n in range(1, 8)}
        assert len(set(erased)) == len(erased)
        kept = {"key/0", "long", *(f"kept/{n}" for n in range(12))}
        assert {key for key, _ in await store.scan(partition, "")} == kept
        assert await store.expired(partition) == []
        assert await store.expired(operation_id()) == []

    # --- concurrency ------------------------------------------------------------------------------

    async def test_of_a_hundred_writers_one_wins(self, store: Store, partition: str) -> None:
        """Of a hundred commits that expect the same version at once, exactly one is applied, each round."""
        version = None
        for _ in range(3):
            changes = [commit(expect={"key": version}, put={"key": str(n).encode()}) for n in range(100)]
            won = await winners(store, partition, changes)
            assert len(won) == 1
            assert await store.read(partition, ["key"]) == [Record(won[0].put["key"].value, won[0].operation)]
            version = won[0].operation

    async def test_no_increment_is_lost(self, store: Store, partition: str) -> None:
        """Writers that read, add one, and try again on a conflict, count exactly."""

        async def count(times: int) -> None:
            for _ in range(times):
                await change_until_done(store, partition, lambda found: {"n": b"%d" % (int(found["n"]) + 1)})

        await put(store, partition, {"n": b"0"})
        await asyncio.gather(*(count(4) for _ in range(10)))
        assert await values(store, partition, ["n"]) == [b"40"]

    async def test_a_commit_is_seen_whole(self, store: Store, partition: str) -> None:
        """While transfers run, what all accounts hold together never changes."""
        accounts = {f"account/{n}": b"100" for n in range(5)}

        async def transfer(source: str, target: str) -> None:
            for _ in range(4):
                await change_until_done(store, partition, lambda found: moved(found, source, target))

        async def watch() -> None:
            while not done:
                found = await values(store, partition, list(accounts))
                assert sum(map(amount, found)) == 500
                await asyncio.sleep(0)

        done = False
        await put(store, partition, accounts)
        watching = asyncio.create_task(watch()) if self.reads_are_snapshots else None
        names = list(accounts)
        await asyncio.gather(*(transfer(names[n], names[(n + 2) % 5]) for n in range(5)))
        done = True
        if watching:
            await watching
        assert sum(map(amount, await values(store, partition, names))) == 500

    async def test_a_commit_of_ten_large_records_is_seen_whole(self, store: Store, partition: str) -> None:
        """Five that are put where five others are deleted: at no moment fewer or more are there."""
        sides = ([f"a/{n}" for n in range(5)], [f"b/{n}" for n in range(5)])
        large = b"x" * 60_000
        await put(store, partition, dict.fromkeys(sides[0], large))

        async def swap() -> None:
            for n in range(8):
                old, new = sides[n % 2], sides[1 - n % 2]
                await store.commit(partition, commit(put=dict.fromkeys(new, large), delete=old))

        async def watch(begin: int) -> None:
            await ticks(begin)
            while not swapping.done():
                found = await values(store, partition, [*sides[0], *sides[1]])
                if self.reads_are_snapshots:
                    assert sum(value is not None for value in found) == 5
                await asyncio.sleep(0)

        swapping = asyncio.create_task(swap())
        await asyncio.gather(swapping, *map(watch, range(4)))

    async def test_ten_records_of_one_commit_have_one_version(self, store: Store, partition: str) -> None:
        """Each commit writes all of them, or none, while others do the same."""
        names = [f"key/{n}" for n in range(10)]

        async def write() -> None:
            for n in range(6):
                await store.commit(partition, commit(put=dict.fromkeys(names, b"%d" % n)))

        async def watch(begin: int) -> None:
            await ticks(begin)
            while not writing.done():
                versions = {record and record.version for record in await store.read(partition, names)}
                assert len(versions) == 1 or not self.reads_are_snapshots
                await asyncio.sleep(0)

        writing = asyncio.gather(write(), write())
        await asyncio.gather(writing, *map(watch, range(4)))
        assert len({record and record.version for record in await store.read(partition, names)}) == 1

    async def test_each_of_ten_expectations_counts(self, store: Store, partition: str) -> None:
        """Whichever does not hold, nothing is written."""
        names = [f"key/{n}" for n in range(10)]
        for wrong in names:
            expect = {**dict.fromkeys(names), wrong: operation_id()}
            with pytest.raises(Conflict):
                await store.commit(partition, commit(expect=expect, put={names[0]: b""}))
        assert await values(store, partition, names) == [None] * 10

    async def test_partitions_do_not_hinder_each_other(self, store: Store, partition: str) -> None:
        """Commits to many partitions at once all go through."""
        names = [f"{partition}/{n}" for n in range(40)]
        await asyncio.gather(*(put(store, name, {"key": name.encode()}) for name in names))
        found = await asyncio.gather(*(values(store, name, ["key"]) for name in names))
        assert found == [[name.encode()] for name in names]

    async def test_a_canceled_commit_is_whole_or_not_there(self, store: Store, partition: str) -> None:
        """A caller canceled at any moment leaves all of its commit or none, and a store that works."""
        changes = [
            commit(put={f"{n}/{part}": operation_id().encode() for part in range(4)}) for n in range(24)
        ]
        for n, change in enumerate(changes):
            task = asyncio.create_task(store.commit(partition, change))
            await (ticks(n) if n < 12 else asyncio.sleep((n - 12) / 2000))
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await self._check_whole(store, partition, change)
        await put(store, partition, {"key": b"still works"})
        assert await values(store, partition, ["key"]) == [b"still works"]
        for change in changes:  # what is applied after its caller has left is applied whole, too
            await self._check_whole(store, partition, change)

    async def _check_whole(self, store: Store, partition: str, change: Commit) -> None:
        """All records of a commit are read, or none; sooner or later where a read is no snapshot."""
        look = partial(values, store, partition, list(change.put))
        states = [[each.value for each in change.put.values()], [None] * len(change.put)]
        if self.reads_are_snapshots:
            assert await look() in states
        else:
            await until(look, states)

    async def test_a_canceled_reader_disturbs_no_other(self, store: Store, partition: str) -> None:
        """Readers and scanners canceled at any moment leave a store that answers the others rightly."""
        written = {f"key/{n}": str(n).encode() for n in range(10)}
        await put(store, partition, written)
        for n in range(16):
            tasks: list[asyncio.Task[Any]] = [
                asyncio.create_task(reading(store, partition, written)),
                asyncio.create_task(scanning(store, partition)),
            ]
            await (ticks(n) if n < 8 else asyncio.sleep((n - 8) / 2000))
            for task in tasks:
                task.cancel()
            assert await values(store, partition, ["key/1", "key/9"]) == [b"1", b"9"]
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- several openings -------------------------------------------------------------------------

    async def test_openings_see_each_other(self, open_store: OpenStore, partition: str) -> None:
        """What one opening of a shared store acknowledged, synced or not, another one reads at once."""
        async with two_openings(open_store) as (one, other):
            for n in range(10):
                writer, reader = (one, other) if n % 2 else (other, one)
                change = commit(put={f"key/{n}": b"value"}, unsynced=n % 4 > 1)
                await writer.commit(partition, change)
                record = Record(b"value", change.operation)
                assert await reader.read(partition, [f"key/{n}"]) == [record]
                assert (f"key/{n}", record) in await reader.scan(partition, "key/")

    async def test_one_winner_among_two_openings(self, open_store: OpenStore, partition: str) -> None:
        """Of many writers on two openings of a shared store exactly one wins."""
        async with two_openings(open_store) as openings:
            version = None
            for _ in range(3):
                changes = [commit(expect={"key": version}, put={"key": b"%d" % n}) for n in range(40)]
                halves = zip(openings, (changes[:20], changes[20:]), strict=True)
                won = await asyncio.gather(*(winners(store, partition, half) for store, half in halves))
                [winner] = [*won[0], *won[1]]
                version = winner.operation
                for store in openings:
                    assert await store.read(partition, ["key"]) == [Record(winner.put["key"].value, version)]

    @pytest.mark.parametrize("there", [True, False], ids=["versions", "absence"])
    async def test_what_is_only_expected_holds(
        self, open_store: OpenStore, partition: str, there: bool
    ) -> None:
        """If two commits each expect what the other one changes, at most one of them is applied."""
        async with two_openings(open_store) as (one, other):
            for n in range(20):
                a, b = f"{n}/a", f"{n}/b"
                version = await put(one, partition, {a: b"", b: b""}) if there else None
                won = await asyncio.gather(
                    winners(one, partition, [commit(expect={a: version}, put={b: b"x"})]),
                    winners(other, partition, [commit(expect={b: version}, put={a: b"x"})]),
                )
                assert len([*won[0], *won[1]]) < 2

    async def test_what_is_durable_outlives_its_opening(self, open_store: OpenStore, partition: str) -> None:
        """A durable store keeps values, versions and ttls when it is closed; another one forgets them.

        The last commit is kept like any other though it is not synced.
        """
        async with open_store() as store:
            version = await put(store, partition, {"a": b"1", "b": b"2"})
            await put(store, partition, {"short": b"3"}, ttl=0.02)
            await put(store, partition, {"long": b"4"}, ttl=3600)
            await store.commit(partition, commit(put={"unsynced": b"5"}, unsynced=True))
            durable = store.durable
        await asyncio.sleep(0.05)
        async with open_store() as store:
            found = await store.read(partition, ["a", "b", "short"])
            kept = [Record(b"1", version), Record(b"2", version), None]
            assert found == (kept if durable else [None] * 3)
            late = await values(store, partition, ["long", "unsynced"])
            assert late == ([b"4", b"5"] if durable else [None] * 2)
            if durable:
                await store.commit(partition, commit(expect={"a": version}, put={"a": b"5"}))
                assert await values(store, partition, ["a"]) == [b"5"]

    async def test_closing_lets_commits_end(self, open_store: OpenStore, partition: str) -> None:
        """A commit whose caller is canceled before the store closes is applied completely or not at all."""
        async with open_store() as store:
            durable = store.durable
            tasks = [
                asyncio.create_task(put(store, partition, {f"{n}/a": b"x", f"{n}/b": b"x"})) for n in range(8)
            ]
            await ticks(4)
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if durable:
            async with open_store() as store:
                keys = [key for key, _ in await store.scan(partition, "")]
                assert {key[:-1] + "a" for key in keys} == {key[:-1] + "a" for key in keys if key[-1] == "b"}
                assert len(keys) % 2 == 0

    # --- clock and health -------------------------------------------------------------------------

    async def test_the_clock_moves_on(self, open_store: OpenStore) -> None:
        """`now` is seconds since the epoch, the same for every opening, and does not run backwards."""
        async with two_openings(open_store) as (one, other):
            first, second, third = await one.now(), await other.now(), await one.now()
        assert 1_700_000_000 < first <= third
        assert abs(second - first) < 60

    async def test_a_store_that_is_there_answers(self, store: Store) -> None:
        """`ping` returns, and the store has a name and its properties."""
        await store.ping()
        assert store.name
        assert isinstance(store.shared, bool)
        assert isinstance(store.durable, bool)

    # --- random histories -------------------------------------------------------------------------

    def test_random_histories(self, open_store: OpenStore) -> None:
        """Whatever is committed, read and scanned in whatever order, a dictionary would answer the same."""
        chosen = "STORE_EXAMPLES" in os.environ
        profile = settings(
            max_examples=int(os.environ.get("STORE_EXAMPLES", self.examples)),
            stateful_step_count=10,
            deadline=None,
            database=None,
            derandomize=not chosen,
            suppress_health_check=list(HealthCheck),
        )
        with asyncio.Runner() as runner:
            store = runner.run(open_store().__aenter__())
            try:
                machine = cast("type[RandomHistories]", partial(RandomHistories, store, runner.run))
                run_state_machine_as_test(machine, settings=profile)
            finally:
                runner.run(store.__aexit__(None, None, None))
