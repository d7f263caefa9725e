"""A process that dies at a chosen point of a turn: after any await on its store, its model or its tools.

::

    TA_PERSISTENCE=tealagents.testing.killing:KillingStore?url=sqlite%3A%2F%2F%2Fstate.db
    KILL_LOG=/path     # every point that is passed is written there, a line each
    KILL_AT='commit log+request+task 2'     # the process kills itself (SIGKILL) there

with ``client: tealagents.testing.killing:KillingModel`` in the config's agent.

A point is named by what has just been awaited and how often that has been by now: `model done 2` is the
moment when the second answer of the model was whole. A tool passes points of its own by calling `passed`.
What a process does besides (its lease, its probes, its look at the store's key, deletions that others
have left) has no points.
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

#: seconds that the model takes before it answers and before it ends, so that the stream's log, which is
#: written behind, is written by then: the points come in the same order each time
MODEL_TAKES = 0.12

_times: Counter[str] = Counter()


# points are counted in one process and met in another: a first batch of events that is gathered for a moment
# only would be there in one and not in the other
publishing.FIRST_GATHER_SECONDS = publishing.GATHER_SECONDS


def passed(what: str) -> None:
    """The process is at a point; it dies there if that is the chosen one."""
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
    #: of the store underneath
    url: str


class KillingStore(WrappedStore, BaseStore):
    """Any store, with a point after each of its calls that belongs to what a client has asked for."""

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
            return []  # deletions that others have left: their points would be counted with its own
        found = await self.store.scan(partition, prefix, **page)
        if _kind(partition) in ("owners", "locators"):
            return found  # only a process that starts scans these
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
    """The client for chat completions, with points while it answers."""

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        await asyncio.sleep(MODEL_TAKES)
        passed("model asked")
        begun = False
        async with aclosing(super().stream(call)) as batches:
            async for batch in batches:
                if isinstance(batch[-1], ModelDone):
                    await asyncio.sleep(MODEL_TAKES)
                    passed("model done")
                elif not begun:
                    begun = True
                    passed("model begun")
                yield batch
