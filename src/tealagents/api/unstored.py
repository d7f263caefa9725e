"""Requests that are not to be stored: their tasks are erased when they have ended, or expire."""

from contextlib import suppress
from datetime import datetime, timedelta

from tealagents.api import requests
from tealagents.api.exchange import Exchange, RequestView
from tealagents.domain.errors import NotFound, TaskBusy
from tealagents.domain.models import ENDED, Head
from tealagents.state.records import Stored

#: how long a task that was not to be stored may be there at most
KEPT = timedelta(days=1)
#: more than its expiry can be later than that because of rounding
_ROUNDED = timedelta(seconds=1)
#: seconds for which the records of an erased task stay, so that other processes that follow or cancel the
#: request, and are a second behind at most, still read its end
FOLLOWED_SECONDS = 3.0


def until(exchange: Exchange) -> datetime:
    """When an unstored task expires, in case the process dies before it can erase the task."""
    return exchange.tasks.records.clock.now() + KEPT


async def forget(exchange: Exchange, view: RequestView) -> None:
    """Erases the task of a request that was not to be stored, once the request has ended.

    It is gone at once, its records a moment later. Not a task that its owner has decided to keep for longer.
    """
    with suppress(NotFound, TaskBusy):  # erased by another, or left to its expiry by what else runs there
        record = (await requests.settled(exchange, view)).record
        while record.status in ENDED:
            stored = await exchange.tasks.head(view.partition, record.task_id)
            expires_at = stored.value.expires_at
            kept = expires_at is None or expires_at > record.created_at + KEPT + _ROUNDED
            if kept:
                return
            if (buried := await exchange.eraser.bury(view.partition, stored)) is not None:
                exchange.in_background(_erase(exchange, view.partition, buried))
                return


async def _erase(exchange: Exchange, partition: str, buried: Stored[Head]) -> None:
    await exchange.records.clock.sleep(FOLLOWED_SECONDS)
    await exchange.eraser.erase(partition, buried)
