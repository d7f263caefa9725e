"""Opens an agent's state for a command."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from tealagents.cli.loading import absent, fail, load_or_exit, warn_of_new
from tealagents.cli.output import OutputLost
from tealagents.config import ServiceConfig
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import CorruptState, PersistenceUnavailable
from tealagents.mistakes import file_reason
from tealagents.state.dump import NoTemporaryFile
from tealagents.state.dump_import import Refused
from tealagents.state.erasing import Eraser
from tealagents.state.records import RecordStore
from tealagents.state.tasks import TaskRules, Tasks
from tealagents.state.workers import Lease
from tealagents.stores import StoreConfigError, plain_store

T = TypeVar("T")


class OpenedState:
    """An agent's state, with the objects that commands need to work on it."""

    def __init__(self, config: ServiceConfig, records: RecordStore, rules: TaskRules) -> None:
        self.records = records
        lease = Lease(records, config.limits.lease_seconds)
        tasks = Tasks(records, lease, rules, f"{config.name}:{config.version}")
        self.directory = tasks.directory
        self.eraser = Eraser(tasks)
        #: how long the idempotency key of a request that has not ended is kept, in seconds
        self.key_seconds = tasks.rules.event_seconds
        #: whether Mem0 is a context provider: its memories are not part of this state
        self.has_mem0 = any(each.name == "mem0" for each in config.thread.context_providers)


def load_checked(path: Path | None) -> ServiceConfig:
    from tealagents.parts import weak_keys

    config = load_or_exit(path)
    if config.stateless:
        raise fail(f"{config.source}: an agent of the earlier platform keeps no state")
    if weak := weak_keys(config):
        raise fail(*weak)
    if config.persistence.startswith("memory:"):
        raise fail(
            "state in memory is visible only to the process that holds it; set TA_PERSISTENCE or "
            "spec.persistence"
        )
    return config


def run(config: Path | None, work: Callable[[OpenedState], Awaitable[T]]) -> T:
    return run_on(load_checked(config), work)


def run_on(
    config: ServiceConfig,
    work: Callable[[OpenedState], Awaitable[T]],
    *,
    missing: Literal["refused", "empty", "created"] = "refused",
) -> T:
    """Opens a config's state and runs `work` on it. An error is printed in one line, with exit status 2.

    A `missing` store is an error, stands for an `empty` one without being created, or is created with a
    warning.
    """

    async def do() -> T:
        from tealagents.parts import check_key, record_store_of, rules_of, store_of
        from tealagents.stores.memory import MemoryStore

        plain = plain_store(config.persistence)
        exists = await plain.exists()
        if not exists and missing == "refused":
            raise StoreConfigError(absent(plain))
        async with store_of(config) if exists or missing == "created" else MemoryStore() as store:
            if not exists and missing == "created":
                warn_of_new(plain)
            records = record_store_of(config, store, SystemClock())
            await check_key(config, records, writes=False)
            return await work(OpenedState(config, records, rules_of(config)))

    try:
        with _interrupted_by_signals():
            return asyncio.run(do())
    except (OutputLost, BrokenPipeError):
        raise
    except OSError as error:
        raise fail(f"{error.filename}: {file_reason(error)}" if error.filename else str(error)) from None
    except (PersistenceUnavailable, StoreConfigError, CorruptState, Refused, NoTemporaryFile) as error:
        raise fail(str(error)) from None


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP interrupt the command like Ctrl-C, so that it removes incomplete files."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    heard = [each for each in before if before[each] is not signal.SIG_IGN]  # `nohup` ignores one
    for each in heard:
        signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each in heard:
            signal.signal(each, before[each])
