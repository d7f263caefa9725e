"""What a call passes before a library that serves a protocol sees it: authentication, limits, a body of JSON.

Such libraries know neither users nor limits, and some crash on bytes that are not text. The gate can replace
a library's response: by an error in the protocol's words, or by a stream that drops slow readers.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Router
from starlette.types import Message, Receive, Scope, Send

from tealagents.api import bodies
from tealagents.api.bearer import refusal_headers
from tealagents.api.exchange import Exchange
from tealagents.api.http import WrongMethod
from tealagents.domain.errors import InvalidRequest, NotFound, TealError
from tealagents.domain.models import Caller, Json
from tealagents.domain.texts import enumerated

#: where a scope holds its call
SCOPE = "tealagents.call"


class Replied(BaseException):
    """Ends the library's work on a call that has its response, or its error, already.

    It is no `Exception`, of which the library would make a response of its own.
    """


@dataclass
class AdmittedCall:
    """One call, as the gate admitted it."""

    request: Request
    #: where the protocol is
    path: str
    #: who calls; None until that is known
    identified: Caller | None = None
    #: the JSON object that was sent; None where there was no body
    body: Json | None = None
    #: bytes of it as it came
    size: int = 0
    #: set by the handler that answers, to be sent instead of the library's response: an error, or a response.
    #: An error that was set before is sent where the library did not come to the handler
    refused: Exception | None = None
    response: Response | None = None

    @property
    def caller(self) -> Caller:
        """Who calls; known once the call is admitted."""
        assert self.identified is not None
        return self.identified

    @contextmanager
    def refusing(self, own: type[Exception] | None = None) -> Iterator[None]:
        """Leaves an error of what is done here, and no earlier one, to be sent instead of the response.

        Where `own` says what the library's errors are, all others are faults: it would show their texts.
        """
        self.refused = None
        try:
            yield
        except Exception as error:
            if not isinstance(error, TealError) and (own is None or isinstance(error, own)):
                raise
            self.refused = error

    def refuse(self, error: TealError) -> NoReturn:
        """Ends the library's work on the call: the error is its response."""
        self.refused = error
        raise Replied

    @property
    def is_rpc(self) -> bool:
        """Whether it came to where the protocol is, as calls of JSON-RPC do; paths below are for others."""
        return str(self.request.scope["path"]).rstrip("/").endswith(self.path)

    @property
    def rpc_id(self) -> str | int | None:
        """The id of a call of JSON-RPC."""
        given = (self.body or {}).get("id")
        return given if isinstance(given, str | int) and not isinstance(given, bool) else None

    @property
    def rpc_method(self) -> str:
        """The method of a call of JSON-RPC; empty where it names none."""
        given = (self.body or {}).get("method")
        return given if isinstance(given, str) else ""

    @property
    def awaits_response(self) -> bool:
        """Whether it is a call of JSON-RPC with an id, even a wrong one; a notification may have null."""
        is_notification = self.rpc_id is None and self.rpc_method.startswith("notifications/")
        return bool(self.rpc_method) and "id" in (self.body or {}) and not is_notification

    def check_id(self) -> None:
        """`InvalidRequest` for a wrong id, with which a library may take the call for a notification."""
        if self.awaits_response and self.rpc_id is None:
            raise InvalidRequest("id", "must be a string or an integer")

    def check_accept(self, *types: str) -> None:
        """`InvalidRequest` unless a call of JSON-RPC accepts responses of all these media types."""
        given = ",".join(self.request.headers.getlist("accept")).lower().split(",")
        accepted = {each.partition(";")[0].strip() for each in given}
        every = all(accepted & {each, f"{each.partition('/')[0]}/*", "*/*"} for each in types)
        if self.rpc_method and not every:
            raise InvalidRequest("Accept", f"must name {enumerated(types)}")

    @property
    def rpc_params(self) -> Json:
        """The parameters of a call of JSON-RPC; empty where they have no names."""
        given = (self.body or {}).get("params")
        return given if isinstance(given, dict) else {}

    @property
    def params(self) -> Json:
        """The parameters of any call: those of JSON-RPC, or the body."""
        return self.rpc_params if self.is_rpc else self.body or {}

    @property
    def query(self) -> Mapping[str, Any]:
        """The parameters of a call that only reads: those of JSON-RPC, or of the URL. `InvalidRequest`."""
        if not self.is_rpc:
            return self.request.query_params
        given = (self.body or {}).get("params") or {}
        if not isinstance(given, dict):
            raise InvalidRequest("params", "must be an object")
        return given


#: the response for an error; the headers say when to come back, and with which token
Respond = Callable[[AdmittedCall, TealError, Mapping[str, str]], Response]
#: refuses a call by a `TealError`; it gets how many items a message may have, too
Check = Callable[[AdmittedCall, int], None]


def bounded(parts: str, models: Iterable[type[BaseModel]]) -> Check:
    """A check of the number of `parts`, such as `message.parts`, and of the calls that there are models of.

    What does not fit its model is refused here: a library may answer with all that is wrong in 50,000 parts.
    """
    by_method = {model.model_fields["method"].default: model for model in models}

    def check(call: AdmittedCall, most: int) -> None:
        found: Any = call.params
        for name in parts.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        bodies.check_count(found, most, parts)
        if call.is_rpc and (model := by_method.get(call.rpc_method)) is not None:
            # what is wrong with the envelope is for the library to say
            bodies.validated(model, {**(call.body or {}), "jsonrpc": "2.0", "id": 0})

    return check


class Gate:
    """Admits calls to an application.

    It `holds` the start of a response back until more follows, where the first event may still be refused.
    """

    def __init__(
        self,
        app: Router,
        exchange: Exchange,
        path: str,
        respond: Respond,
        *,
        check: Check,
        holds: bool = True,
    ) -> None:
        """`check` refuses what the library would read slowly, or keep for long."""
        self._app = app
        self._check = check
        self._holds = holds
        self._exchange = exchange
        self._path = path
        self._resource = exchange.resource(path)
        self._respond = respond

    async def _admit(self, call: AdmittedCall, receive: Receive, send: Send) -> None:
        """Hands the call on, or leaves why it is refused."""
        request, scope = call.request, call.request.scope
        try:
            call.identified = await self._exchange.identify(request)
            body = await self._body(call)
            self._check(call, self._exchange.settings.max_items)
        except TealError as error:
            call.refused = error
            self._name_route(scope)
        else:
            replies = _Replies(call, send) if self._holds else send
            with suppress(Replied):
                await self._app(scope, _read_before(body, receive), replies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SCOPE] = call = AdmittedCall(Request(scope, receive), self._path)
        try:
            await self._serve(call, scope, receive, send)
        finally:
            # the call refers to the scope, and the error, by its traceback, to the call: the body would stay
            # until the garbage collector runs
            del scope[SCOPE]
            call.refused = None

    async def _serve(self, call: AdmittedCall, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._admit(call, receive, noting)
            if not begun and call.refused is None and call.response is None:
                # the library's stream has ended with the process, before its first event
                self._cut_off(call, asyncio.CancelledError())
        except asyncio.CancelledError as canceled:
            self._cut_off(call, canceled)
            if begun or call.refused is None:
                raise
        if call.refused is not None:
            shown = self._exchange.refused(call.refused)
            headers = refusal_headers(shown, self._resource.challenge(call.request))
            call.response = self._respond(call, shown, headers)
        if call.response is not None:
            await call.response(scope, receive, send)

    def _cut_off(self, call: AdmittedCall, canceled: asyncio.CancelledError) -> None:
        """Leaves the error of a call that ends because the process does."""
        cut_off = self._exchange.cut_off(canceled)
        if isinstance(cut_off, TealError):
            call.refused = cut_off
            self._name_route(call.request.scope)

    def _name_route(self, scope: Scope) -> None:
        """Finds the route of a call that is not handed on: the log and the metrics name it."""
        for route in self._app.routes:
            match, found = route.matches(scope)
            if match is not Match.NONE:
                scope.update(found)
                return

    async def _body(self, call: AdmittedCall) -> bytes:
        def parse(body: bytes) -> bytes:
            call.size = len(body)
            if body:
                bodies.require_json(call.request)
                try:
                    parsed = bodies.parse(body)
                except InvalidRequest:
                    call.body = bodies.identified(body)
                    raise
                if not isinstance(parsed, dict):
                    raise InvalidRequest("body", "must be a JSON object")
                call.body = parsed
            return body

        return await self._exchange.read(call.request, parse)


async def nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    """The default route: refuses a path that the library does not serve."""
    scope[SCOPE].refused = NotFound("There is nothing at this path.")


class _Replies:
    """Passes on what the library sends, unless there is something to send instead."""

    def __init__(self, call: AdmittedCall, send: Send) -> None:
        self._call = call
        self._send = send
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message  # held back: a stream may still be refused at its first event
            if message["status"] == 405:
                self._call.refused = WrongMethod(Headers(raw=message["headers"]).get("allow", ""))
        elif self._call.refused is None and self._call.response is None:
            if self._start is not None:
                await self._send(self._start)
                self._start = None
            await self._send(message)


def _read_before(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, then what comes behind it."""
    due = True

    async def again() -> Message:
        nonlocal due
        if due:
            due = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again
