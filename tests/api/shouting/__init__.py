"""A protocol written for a test: an agent that shouts. Documents, events, errors and routes of its own.

====================  ==================================================================
`POST /`              `{"words": …, "talk": …}`: the answer, or with `?aloud` its events
`GET /{id}`           the events of an answer, behind `Last-Event-ID`
`POST /{id}/verdict`  decides what an answer waits for
====================  ==================================================================
"""

from collections.abc import Mapping
from typing import assert_never

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tealagents.api import sse
from tealagents.api.applications import application
from tealagents.api.decisions import decision
from tealagents.api.exchange import Exchange, RequestView
from tealagents.api.http import json_response, status_of
from tealagents.api.protocols import Served
from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, TealError
from tealagents.domain.events import (
    Canceled,
    Completed,
    Event,
    Failed,
    Paused,
    Recorded,
    Started,
    TextDelta,
    ToolCalled,
    ToolReturned,
    ending,
    redacted,
)
from tealagents.domain.models import Failure, Item, Json
from tealagents.state.new_message import NewMessage


def build(exchange: Exchange, path: str) -> Served:
    """The protocol over an exchange, at `path`."""
    shouter = Shouter(exchange)
    routes = [
        Route(path, shouter.hear, methods=["POST"]),
        Route(path + "/{id}", shouter.again),
        Route(path + "/{id}/verdict", shouter.verdict, methods=["POST"]),
    ]
    return application(exchange, path, routes, _refuse, urls={"url": path})


class Shouter:
    """The routes."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def hear(self, request: Request) -> Response:
        """A message, in a new talk or an earlier one."""
        caller = await self._exchange.identify(request)
        message = _message(await self._exchange.body(request))
        aloud = "aloud" in request.query_params
        return await self._answer(request, await self._exchange.submit(caller, message, None, streamed=aloud))

    async def again(self, request: Request) -> Response:
        """What was shouted, from an event on; nothing where there is no more."""
        caller = await self._exchange.identify(request)
        heard = request.headers.get("last-event-id", "0")
        if not heard.isdecimal():
            raise InvalidRequest("Last-Event-ID", "must be a number")
        view = await self._exchange.request(caller, ids.canonical(request.path_params["id"], "id"))
        rest = self._exchange.rest(view, after=int(heard))
        return Response(status_code=204) if rest is None else self._aloud(rest)

    async def verdict(self, request: Request) -> Response:
        """A decision on a pause, and the rest of the answer."""
        caller = await self._exchange.identify(request)
        command = decision(await self._exchange.body(request))
        aloud = "aloud" in request.query_params
        name = ids.canonical(request.path_params["id"], "id")
        return await self._answer(request, await self._exchange.decide(caller, name, command, streamed=aloud))

    async def _answer(self, request: Request, view: RequestView) -> Response:
        if "aloud" in request.query_params:
            return self._aloud(view)
        record = await self._exchange.outcome(view, request.receive)
        last = ending(record)
        shown = said(last if view.own else redacted(last))
        return json_response({"id": record.request_id, "talk": record.task_id, "last": shown})

    def _aloud(self, view: RequestView) -> Response:
        return self._exchange.stream(view, Shouts(), headers={"shout-id": view.record.request_id})


def _message(body: object) -> NewMessage:
    match body:
        case {"words": str(words), **rest} if words and rest.keys() <= {"talk"}:
            talk = rest.get("talk")
            task_id = None if talk is None else ids.canonical(str(talk), "talk")
            return NewMessage(items=(Item("text", words),), task_id=task_id)
    raise InvalidRequest("words", "must be what you want to say")


def said(event: Event | None) -> tuple[str, Json] | None:
    """The name and the content of what is shown of an event; None: nothing."""
    match event:
        case Started(status):
            return "AHEM", {"busy": status == "Queued"}
        case TextDelta(text):
            return "SHOUT", {"shout": text.upper()}
        case Paused(pause):
            return "MAY-I", {"calls": [call.tool for call in pause.calls] if pause else []}
        case Completed(outcome):
            return "PHEW", {"shout": outcome.output.upper() if outcome else ""}
        case Failed(error) | Canceled(error):
            return "OUCH", _ouch(error)
        case ToolCalled() | ToolReturned() | None:
            return None
    assert_never(event)


class Shouts:
    """Recorded events as frames."""

    def __call__(self, recorded: Recorded) -> bytes:
        shown = said(recorded.event)
        return b"" if shown is None else sse.frame(recorded.id, *shown)

    def failed(self, error: TealError) -> bytes:
        """The frame of an end that is unknown."""
        return sse.frame(None, "OUCH", _ouch(Failure(error.code, error.detail)))


def _ouch(error: Failure) -> Json:
    return {"ouch": error.code.upper(), "why": error.detail}


def _refuse(error: TealError, headers: Mapping[str, str]) -> Response:
    said = _ouch(Failure(error.code, error.detail))
    return json_response(said, status=status_of(error), headers=headers)
