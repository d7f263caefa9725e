"""Random histories of commits, reads and scans, compared with a plain dictionary."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tealagents.domain.errors import Conflict
from tealagents.domain.ids import operation_id
from tealagents.domain.ports import Commit, Put, Record, Store
from tealagents.testing.store_steps import put

__all__ = ["RandomHistories"]

_KEYS = st.sampled_from(["a", "A", "a/1", "a/10", "a/2", "a_1", "a.1", "b/1", "~"])
_VALUES = st.sampled_from([b"", b"1", b'{"a": 1}', b"\xff\x00"])
_PREFIXES = st.sampled_from(["", "a", "a/", "a/1", "a_", "A", "b", "~", "c"])
_CHANGES = st.dictionaries(_KEYS, st.one_of(st.none(), _VALUES), max_size=5)
_VERSIONS = st.sampled_from(["as it is", "as it is", "as it is", "absent", "past"])
_EXPECTED = st.dictionaries(_KEYS, _VERSIONS, max_size=4)


class RandomHistories(RuleBasedStateMachine):
    """Compares a partition of its own with a dictionary, over random commits, reads and scans."""

    def __init__(self, store: Store, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        super().__init__()
        self.store, self.run = store, run
        self.partition = f"history/{operation_id()}"
        self.model: dict[str, Record] = {}
        self.past = operation_id()

    @rule(expected=_EXPECTED, changes=_CHANGES, keeps=st.booleans(), unsynced=st.booleans())
    def commit(
        self, expected: dict[str, str], changes: dict[str, bytes | None], keeps: bool, unsynced: bool
    ) -> None:
        """`changes` has None for a key to delete; half of the commits put with a (long) ttl."""
        ttl = None if keeps else 3600
        puts = {key: Put(value, ttl) for key, value in changes.items() if value is not None}
        change = Commit(
            operation=operation_id(),
            expect={key: self.version(key, how) for key, how in expected.items()},
            put=puts,
            delete=changes.keys() - puts.keys(),
            unsynced=unsynced,
        )
        if any(self.version(key, "as it is") != version for key, version in change.expect.items()):
            with pytest.raises(Conflict):
                self.run(self.store.commit(self.partition, change))
        else:
            self.run(self.store.commit(self.partition, change))
            self.apply(change)

    @rule(key=_KEYS)
    def expire(self, key: str) -> None:
        """Puts a record that expires before the next operation."""
        self.run(put(self.store, self.partition, {key: b"short-lived"}, ttl=0.001))
        self.model.pop(key, None)
        self.run(asyncio.sleep(0.004))

    @rule(keys=st.lists(_KEYS, max_size=6))
    def read(self, keys: list[str]) -> None:
        assert self.run(self.store.read(self.partition, keys)) == [self.model.get(key) for key in keys]

    @rule(
        prefix=_PREFIXES,
        after=st.one_of(st.none(), _KEYS),
        limit=st.sampled_from([1, 2, 3, 100]),
        reverse=st.booleans(),
    )
    def scan(self, prefix: str, after: str | None, limit: int, reverse: bool) -> None:
        keys = [
            key
            for key in sorted(self.model, reverse=reverse)
            if key.startswith(prefix) and (after is None or (key < after if reverse else key > after))
        ]
        found = self.run(self.store.scan(self.partition, prefix, after=after, limit=limit, reverse=reverse))
        assert found == [(key, self.model[key]) for key in keys[:limit]]

    def teardown(self) -> None:
        assert self.run(self.store.scan(self.partition, "")) == sorted(self.model.items())

    def version(self, key: str, how: str) -> str | None:
        """The current version of `key`, or None, or the version that was overwritten last, of any key."""
        record = self.model.get(key)
        return {"as it is": record.version if record else None, "absent": None, "past": self.past}[how]

    def apply(self, change: Commit) -> None:
        for key in change.delete:
            self.model.pop(key, None)
        for key, (value, _) in change.put.items():
            if key in self.model:
                self.past = self.model[key].version
            self.model[key] = Record(value, change.operation)
