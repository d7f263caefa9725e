"""A service process that kills itself at a chosen point: after an await on its store, its model or its tools.

::

    TA_PERSISTENCE=tealagents.testing.killing:KillingStore?url=sqlite%3A%2F%2F%2Fstate.db
    KILL_LOG=/path                          # the file to which each point is written as a line
    KILL_AT='commit log+request+task 2'     # the point at which the process kills itself (SIGKILL)

with ``client: tealagents.testing.killing:KillingModel`` in the config's agent.

A point is named by what has just been awaited, and how often so far: `model done 2` is the moment at which
the model's second answer was complete. A tool adds points of its own by calling `passed`. Work that does not
belong to a client's request has no points: the lease, health probes, the check of the store's key, and
deletions that other processes have left unfinished.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, ClassVar
from urllib.parse import urlencode

from tealagents.domain.events import ModelDone, ModelEvent
from tealagents.domain.ports import Commit, ModelCall, Record, WrappedStore
from tealagents.engine import publishing
from tealagents.llm.openai_chat import OpenAIChat
from tealagents.stores import plain_store
from tealagents.stores.base import BaseStore, StoreOptions

__all__ = ["KillingModel", "KillingStore", "killing_url", "passed"]

#: seconds that the model waits before its answer and before its end. By then the event log, which is written
#: in the background, has been written, so that the points always come in the same order
MODEL_SECONDS = 0.12

_times: Counter[str] = Counter()


# the points of one process must exist in the next: a first batch of events that is gathered for a shorter
# time would be written in one process and not in the other
publishing.FIRST_GATHER_SECONDS = publishing.GATHER_SECONDS


def passed(what: str) -> None:
    """Marks a point. If it is the one in `KILL_AT`, the process dies here."""
    _times[what] += 1
    point = f"{what} {_times[what]}"
    if path := os.environ.get("KILL_LOG"):
        with open(path, "a") as log:
            log.write(point + "\n")
    if os.environ.get("KILL_AT") == point:
        os.kill(os.getpid(), signal.SIGKILL)


def killing_url(url: str) -> str:
    """The URL of a `KillingStore` over the store at `url`."""
    return f"{__name__}:KillingStore?{urlencode({'url': url})}"


class KillingOptions(StoreOptions):
    #: the URL of the store underneath
    url: str


class KillingStore(WrappedStore, BaseStore):
    """Wraps any store, with a point after each operation that belongs to a client's request."""

    options_type: ClassVar[type[StoreOptions]] = KillingOptions
    options: KillingOptions

    def __init__(self, options: KillingOptions) -> None:
        BaseStore.__init__(self, options)
        WrappedStore.__init__(self, plain_store(options.url))

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        records = await self.store.read(partition, keys)
        _passed("read", partition, keys)
        return records

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        if _kind(partition) == "erasing":
            return []  # deletions that other processes have left: their points would be counted as well
        found = await self.store.scan(partition, prefix, **page)
        if _kind(partition) in ("owners", "locators"):
            return found  # these are scanned only when a process starts
        _passed("scan", partition, [prefix])
        return found

    async def commit(self, partition: str, commit: Commit) -> None:
        await self.store.commit(partition, commit)
        _passed("commit", partition, [*commit.put, *commit.delete])


def _passed(what: str, partition: str, keys: Sequence[str]) -> None:
    if _kind(partition) in ("user", "owners", "locators", "inbox", "erasing"):
        passed(f"{what} {'+'.join(sorted({key.split('/')[0] for key in keys}))}")


def _kind(partition: str) -> str:
    return partition.split("/")[1]


class KillingModel(OpenAIChat):
    """The client `openai-chat`, with points before, during and after each answer."""

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        await asyncio.sleep(MODEL_SECONDS)
        passed("model asked")
        begun = False
        async with aclosing(super().stream(call)) as batches:
            async for batch in batches:
                if isinstance(batch[-1], ModelDone):
                    await asyncio.sleep(MODEL_SECONDS)
                    passed("model done")
                elif not begun:
                    begun = True
                    passed("model begun")
                yield batch
