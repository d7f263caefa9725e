"""Calls that stay open while a request runs: given up by name, sent progress, ended from elsewhere."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace
from starlette.types import Receive

from tealagents.api.exchange import Exchange, RequestView
from tealagents.api.folding import in_words
from tealagents.api.requests import settled
from tealagents.domain.errors import NotFound, PersistenceUnavailable, TealError
from tealagents.domain.models import Approval
from tealagents.engine.following import CHECK_SECONDS
from tealagents.unwinding import unwound

T = TypeVar("T")

#: events within this time are reported together, so that a client is not flooded
GATHER_SECONDS = 0.05


class OpenCalls:
    """The calls that wait here for the requests that they began, and can be given up."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        #: name of a call → what gives it up, for each of its stages; only the last is called
        self._named: dict[Hashable, list[Callable[[], object]]] = {}

    @contextmanager
    def begun(
        self, beginning: Coroutine[Any, Any, RequestView], name: Hashable | None
    ) -> Iterator[asyncio.Future[RequestView]]:
        """The request that a message or a decision begins, while the call waits for it to end.

        A call with a name is given up by `give_up`. If the wait itself is canceled, the request is canceled
        when the call has no name or the agent cancels on disconnect. Either way the request's first commit
        is awaited: if it were abandoned midway, the request would end as a failure.
        """
        sent = asyncio.ensure_future(beginning)
        try:
            with self.known(name, lambda: self.exchange.in_background(self._given_up(sent))):
                yield sent
        except asyncio.CancelledError:
            gives_up = name is None or self.exchange.agent.on_disconnect == "cancel"
            self.exchange.in_background(self._given_up(sent) if gives_up else asyncio.wait([sent]))
            raise

    async def unless_given_up(self, waiting: Coroutine[Any, Any, T], name: Hashable | None) -> T | None:
        """The result of `waiting`; None if the call of this name is given up, which cancels only the wait.

        While a request begun under the same name meanwhile runs, giving up cancels that request instead.
        """
        waited = asyncio.ensure_future(waiting)
        try:
            with self.known(name, waited.cancel):
                await asyncio.wait([waited])
            return None if waited.cancelled() else waited.result()
        finally:
            await unwound((waited,))

    def __contains__(self, name: Hashable) -> bool:
        """Whether a call of this name is open. It may be one whose client has left."""
        return name in self._named

    @contextmanager
    def known(self, name: Hashable | None, give_up: Callable[[], object] = lambda: None) -> Iterator[None]:
        """The call of this name, if it has one, is open for as long as the block lasts."""
        if name is None:
            yield
            return
        known = self._named.setdefault(name, [])
        known.append(give_up)
        try:
            yield
        finally:
            known.remove(give_up)
            if not known:
                del self._named[name]

    def give_up(self, name: Hashable) -> None:
        """Cancels the request that the call of this name has begun, or ends its waiting, if it waits here."""
        for give_up in self._named.get(name, ())[-1:]:
            give_up()

    async def _given_up(self, sent: asyncio.Future[RequestView]) -> None:
        with suppress(TealError):  # what was refused has begun nothing
            view = await sent
            if view.sender and not self.exchange.service.admission.draining:
                await self.exchange.cancel(view.caller, view.record.request_id)


class ReportProgress(Protocol):
    """Takes what a request has come to: the number of the last event, and in words what was added."""

    async def __call__(self, number: int, *, message: str) -> None: ...


async def awaited(
    exchange: Exchange, view: RequestView, receive: Receive, report: ReportProgress | None
) -> RequestView:
    """The request once it has ended or paused, as `requests.settled`; what it does until then is reported."""
    if report is None:
        return await settled(exchange, view, receive)
    ended = asyncio.ensure_future(settled(exchange, view, receive))
    reports = _reports(exchange, view, report, ended)
    _, fault = await asyncio.gather(ended, reports, return_exceptions=True)
    if fault is None or isinstance(fault, TealError):  # the outcome is known without the events
        return await ended
    raise fault


async def _reports(
    exchange: Exchange, view: RequestView, report: ReportProgress, ended: asyncio.Future[RequestView]
) -> None:
    async for batch in exchange.follow(view):
        if text := "".join(in_words(each.event) for each in batch):
            await report(batch[-1].id, message=text)
            await asyncio.wait([ended], timeout=GATHER_SECONDS)


async def unless_decided(
    exchange: Exchange, view: RequestView, pause: Approval, asking: Coroutine[Any, Any, T]
) -> T | None:
    """The user's answer about a pause; None if the pause ends first, which withdraws the question."""
    asked = asyncio.ensure_future(asking)
    elsewhere = asyncio.ensure_future(_continued(exchange, replace(view, after=pause.event_id)))
    try:
        await asyncio.wait([asked, elsewhere], return_when=asyncio.FIRST_COMPLETED)
        if asked.done() or elsewhere.exception() is not None:  # what cannot be followed is asked all the same
            return await asked
        return None
    finally:
        await unwound((asked, elsewhere))


async def _continued(exchange: Exchange, view: RequestView) -> None:
    """Returns once there is an event behind `view.after`, or the request is gone; waits for the store."""
    with suppress(NotFound):
        while True:
            with suppress(PersistenceUnavailable):
                async with aclosing(exchange.follow(view)) as events:
                    await anext(events, None)
                return
            await asyncio.sleep(CHECK_SECONDS)
