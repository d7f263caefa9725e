"""The store: whether it can be reached and written, and read with the configured keys."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from tealagents.cli.doctor.diagnosis import Diagnosis, clock_skew
from tealagents.cli.loading import absent, warn
from tealagents.config import ServiceConfig
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import CorruptState, PersistenceUnavailable, StoreError, TealError
from tealagents.domain.ports import Commit, Put, Store
from tealagents.mistakes import file_reason

if TYPE_CHECKING:
    from tealagents.state.audit import BadEntry
    from tealagents.state.inventory import Inventory
    from tealagents.state.records import RecordStore
    from tealagents.stores.base import BaseStore

#: seconds; a shorter lease is lost by a busy process or with a slow store
SHORTEST_LEASE = 3.0
#: the number of tasks whose audits are verified
TASKS_VERIFIED = 5
#: the size of the file that is written where a store will be created
_PROBE_BYTES = 65536
#: the stores that need no server
_FILE_STORES = ("sqlite", "files")


async def check_store(config: ServiceConfig) -> AsyncIterator[Diagnosis]:
    from tealagents.parts import store_of
    from tealagents.stores import StoreConfigError, plain_store
    from tealagents.stores.base import AccessDenied

    plain = plain_store(config.persistence)
    try:
        if not await plain.exists():
            if obstacle := _obstacle(plain, await plain.obstacle()):
                yield obstacle
            else:
                warn(f"There is no store at {plain.where} yet: the next start creates one, without any tasks")
            return
        async with store_of(config) as store:
            async for diagnosis in _examine_store(config, store):
                yield diagnosis
    except (StoreConfigError, CorruptState, AccessDenied) as error:
        yield Diagnosis(f"the store cannot be used: {error}")
    except (PersistenceUnavailable, OSError) as error:
        yield _unreachable_store(plain, error)


def _unreachable_store(store: "BaseStore", error: Exception) -> Diagnosis:
    if store.name in _FILE_STORES:
        return Diagnosis(
            f"the store cannot be opened: {error}",
            "Run this as the service's user, let it write to the store and its folder, free space on its "
            "disk, or stop the process that locks it.",
        )
    return Diagnosis(
        f"the store cannot be reached: {error}",
        "Start it, or correct TA_PERSISTENCE or spec.persistence; check that this machine can connect to it, "
        "and that its user may read and write the store.",
    )


def _obstacle(store: "BaseStore", known: str | None) -> Diagnosis | None:
    """What keeps the first start from creating a store; `known` is what the store itself says. A mistyped
    path shows by its missing folder."""
    if known is not None:
        right = "" if store.name in _FILE_STORES else ", or grant its user that right"
        if right and hasattr(store, "migrate"):
            right += ", or run `tealagents migrate` as the owner of the database"
        return Diagnosis(
            f"the store cannot be created: {known}", f"Correct TA_PERSISTENCE or spec.persistence{right}."
        )
    if store.name not in _FILE_STORES:
        return None
    there = Path(store.where)
    folder = there if there.is_dir() else there.parent
    if not folder.is_dir():
        return Diagnosis(
            absent(store), "The service creates a new store and its folder when it first starts."
        )
    try:
        with TemporaryFile(dir=folder) as file:  # one that has no name
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Diagnosis(
            f"the store cannot be created: {folder} cannot be written to: {file_reason(error)}",
            "Grant this user the right to write to it, or free space on its disk.",
        )
    return None


async def _examine_store(config: ServiceConfig, store: Store) -> AsyncIterator[Diagnosis]:
    from tealagents.stores.base import AccessDenied

    seconds = 0.0
    try:
        seconds = await _write_probe(config, store)
    except AccessDenied as error:
        yield Diagnosis(f"the store cannot be written to: {error}")
        return  # reading may need the same right, and would only report the same problem again
    except (TealError, StoreError, OSError) as error:
        yield Diagnosis(
            f"the store cannot be written to: {error}",
            "Free space on its disk or memory, let this user write to it, or stop the "
            "process that locks its tables.",
        )
    if config.limits.lease_seconds < max(SHORTEST_LEASE, 20 * seconds):
        yield Diagnosis(
            f"limits.lease_seconds is {config.limits.lease_seconds:g}, and a write takes {seconds:.3f} s: a "
            "busy process loses its lease, and its requests with it",
            "Raise limits.lease_seconds; 15 is the default.",
        )
    if skew := clock_skew("the store", await store.now()):
        yield skew
    async for diagnosis in _examine_content(config, store):
        yield diagnosis


async def _write_probe(config: ServiceConfig, store: Store) -> float:
    """Writes a record and deletes it. Returns the seconds that the quicker of the two commits took."""
    from tealagents.domain import ids

    partition, keys = _probe(config)
    began = time.perf_counter()
    put = dict.fromkeys(keys, Put(b"{}", 60))
    await store.commit(partition, Commit(operation=ids.operation_id(), put=put))
    written = time.perf_counter()
    await store.commit(partition, Commit(operation=ids.operation_id(), delete=keys))
    return min(written - began, time.perf_counter() - written)


def _probe(config: ServiceConfig) -> tuple[str, list[str]]:
    """The partition and the keys of the record that is written as a probe.

    The partition is one that every service writes to: a store of files keeps the folder of an empty one.
    """
    from tealagents.state import keys

    return keys.workers(config.name), ["probe"]


async def _examine_content(config: ServiceConfig, store: Store) -> AsyncIterator[Diagnosis]:
    """Checks whether stored records can be read, and audits verified, with the configured keys."""
    from tealagents.parts import record_store_of
    from tealagents.state.inventory import Inventory

    # reading by key may need a right of its own, and an empty store would only be scanned
    await store.read(*_probe(config))
    records = record_store_of(config, store, SystemClock())
    inventory = Inventory(records)
    try:
        await inventory.check_key(keyed=config.encryption_key is not None)
    except CorruptState as error:
        yield _other_key(config, error)
        return
    try:
        fault = await _audit_fault(inventory, records)
    except CorruptState as error:
        inventory.damaged.append(str(error))
        fault = None
    for damage in inventory.damaged[:1]:
        remedy = "Restore a backup: `tealagents state export` names every damaged record that it exports."
        if "is sealed with the key" in damage:
            remedy = f"If that is an earlier key, add it to TA_ENCRYPTION_OLD_KEYS. Otherwise: {remedy}"
        yield Diagnosis(f"a stored record cannot be read: {damage}", remedy)
    if fault is not None:
        yield Diagnosis(
            f"an audit does not verify: {fault}",
            "If TA_AUDIT_KEY was changed, set the earlier one, or unset it if there was none; otherwise run "
            "`tealagents state verify-audit`.",
        )


def _other_key(config: ServiceConfig, error: CorruptState) -> Diagnosis:
    """The finding for a record that was stored with another encryption key, or without one."""
    remedy = (
        "Set TA_ENCRYPTION_KEY to the key that it was stored with, and list earlier keys in "
        "TA_ENCRYPTION_OLD_KEYS."
    )
    if config.encryption_key is None:
        return Diagnosis(
            f"the store is encrypted, and TA_ENCRYPTION_KEY is not set: the record {error.key!r} cannot be "
            "read",
            remedy,
        )
    if "is not encrypted" in error.reason:
        remedy = (
            "Unset TA_ENCRYPTION_KEY; or, to encrypt the state, run `tealagents state export` without the "
            "key, and `import` with it, into an empty store."
        )
    return Diagnosis(
        f"TA_ENCRYPTION_KEY is not the key of the store: the record {error.key!r} {error.reason}", remedy
    )


async def _audit_fault(inventory: "Inventory", records: "RecordStore") -> "BadEntry | None":
    """The first bad entry in the audits of the first `TASKS_VERIFIED` tasks, if there is one."""
    from tealagents.state.audit import verify

    left = TASKS_VERIFIED
    for owner in await inventory.owners():
        async with aclosing(inventory.tasks(owner)) as tasks:
            async for task in tasks:
                if task.damage is not None:
                    raise task.damage
                verified = await verify(records, task.partition, task.task_id)
                if verified is not None and verified.fault is not None:
                    return verified.fault
                left -= 1
                if not left:
                    return None
    return None
