"""Which process has the session of a host of 2025-11-25: its id shows it.

What comes for the session of another process, or of one that has ended, is served without a session: calls
work on every replica, and only answers to what was asked in the middle of a call need the process that asked.
"""

from uuid import uuid4

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tealagents.api import gate, sse
from tealagents.domain.errors import NotFound

_SESSION = b"mcp-session-id"


class Sessions:
    """Hands requests to the SDK's application that knows their session, and responses to patient senders."""

    def __init__(self, own: ASGIApp, others: ASGIApp) -> None:
        self._own = own
        self._others = others
        self._mark = f"{uuid4().hex}.".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: gate.Call = scope[gate.SCOPE]
        named = [value for name, value in scope["headers"] if name == _SESSION]
        mine = all(value.startswith(self._mark) for value in named)
        if not mine and call.body is not None and "method" not in call.body:
            call.refused = NotFound("The session in which this was asked has ended, or is another process's.")
            return
        # a session is its user's, whatever token they have got by now
        user = AuthenticatedUser(AccessToken(token="", client_id=call.user.user.key, scopes=[]))
        inner: Scope = {**scope, "user": user, "headers": [self._bare(header) for header in scope["headers"]]}
        if sse.HEAD in scope:
            inner["method"] = "HEAD"  # which the SDK refuses; a stream that was asked for so would never end
        async with sse.patient(scope, send) as patient:
            await (self._own if mine else self._others)(inner, receive, self._marking(patient))

    def _bare(self, header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """A header as the SDK shall see it; space around a value is no part of it (RFC 9110, section 5.5)."""
        name, value = header[0], header[1].strip(b" \t")
        return name, value.removeprefix(self._mark) if name == _SESSION else value

    def _marking(self, send: Send) -> Send:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(n, self._mark + v if n == _SESSION else v) for n, v in message["headers"]]
                message = {**message, "headers": headers}
            await send(message)
            if message["type"] == "http.response.start" and _is_stream(message):
                # the gate holds the start back until something follows
                await send({"type": "http.response.body", "body": b"", "more_body": True})

        return marked


def _is_stream(start: Message) -> bool:
    return any(n == b"content-type" and v.startswith(b"text/event-stream") for n, v in start["headers"])
