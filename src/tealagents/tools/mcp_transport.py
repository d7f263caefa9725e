"""The two ways to reach an MCP server: a guarded child process, and HTTP that reports what went wrong."""

import asyncio
import logging
import os
import re
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import anyio
import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import next_request_within_origin, redirect_location

from tealagents.domain.models import Json
from tealagents.outbound.reading import BoundedClient, Unacceptable, is_stream, json_object
from tealagents.tools.errors import ToolsetError, may_be_done
from tealagents.tools.oauth_servers import MAX_CHALLENGE
from tealagents.tools.options import MCPServerOptions

logger = logging.getLogger(__name__)

# Codes of our own for what happened below MCP. They are far from the codes that servers choose for their own
# errors, since the SDK passes on both in the same way. A server that sends one on purpose gains nothing: an
# HTTP status has the same effect.
#: the request did not reach the server
NOT_SENT = 7_341_094_501
#: the request was sent, and its answer was lost
OUTCOME_UNKNOWN = 7_341_094_502
#: the server answered with an HTTP error
REFUSED = 7_341_094_503
#: the server wants a token, another token, or one for more scopes; `data.challenge` is its `WWW-Authenticate`
UNAUTHORIZED = 7_341_094_504
#: the server does not know our session, or no longer does, and refused the request for that reason
SESSION_LOST = 7_341_094_505
#: the same, but the request may have been refused for another reason
REFUSED_AND_LOST = 7_341_094_506

#: most bytes of one answer, and of one event of a stream
MAX_ANSWER = 4_000_000
#: most values in one answer or event: four megabytes of `{},` would take half a gigabyte of memory
MAX_MARKS = 500_000
#: characters of an HTTP error's body that are reported
MAX_REASON = 2_000
#: seconds to wait for the last output of a process that has ended
LAST_WORDS_SECONDS = 1.0
#: seconds before a GET reopens a stream, in addition to the pause that the server asks for, since the server
#: may end each stream at once; and the longest pause, for a stream of notifications that does not stay open
GET_PAUSE, LONGEST_GET_PAUSE = 1.0, 30.0
#: the guard's reason for ending a process, written to standard error after `ended: `
TOO_LONG = "it wrote a line that is too long to be read"
#: most seconds for a server to accept a message that it sends no result for, or to answer probes
NOTICE_SECONDS = 3.0
#: requests that do nothing, to see whether a session is lost; some servers answer a ping without a session
_PROBES = ("ping", "tools/list")
#: transient statuses: a token has expired, or the server has not noticed the end of an earlier stream
_PASSING = frozenset({401, 408, 409, 425, 429})
#: an unpaired UTF-16 surrogate, escaped in JSON
_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_GUARD = Path(__file__).with_name("process_guard.py")


def whole_characters(written: bytes) -> bytes:
    """JSON, or a part of it that cuts no character, with U+FFFD in place of unpaired surrogates.

    Servers that cut text by UTF-16 units write unpaired surrogates, which the SDK's parser refuses.
    """
    if b"\\u" not in written or b"\0" in written:
        return written
    # `\\u` is an escaped backslash and a u, no escape; NUL can mark it, since JSON holds none
    hidden = written.replace(b"\\\\", b"\0\0")
    return _HALF.sub(rb"\\ufffd", hidden).replace(b"\0\0", b"\\\\")


# --- HTTP ----------------------------------------------------------------------------------------


class BearerToken:
    """The token that the requests of a connection carry; it may be replaced while the connection lasts."""

    def __init__(self, token: str | None = None) -> None:
        self.token = token


@asynccontextmanager
async def http_transport(
    options: MCPServerOptions, bearer: BearerToken, listening: Callable[[], None]
) -> AsyncGenerator[TransportStreams]:
    """The SDK's HTTP transport over a `ReportingClient`.

    `listening` is called each time the server's stream of notifications is opened, or refused because the
    server has forgotten the session: the tools have to be listed again, since changes may not have been
    reported.
    """
    url = options.url or ""
    async with (
        ReportingClient(options, bearer, listening) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_ANSWER) as streams,
    ):
        yield streams


class ReportingClient(BoundedClient):
    """Turns each failed request into a JSON-RPC error that says whether the request may have been carried
    out.

    Otherwise one failed request would end the session with all its other calls, and the SDK would lose the
    HTTP status.
    """

    def __init__(self, options: MCPServerOptions, bearer: BearerToken, listening: Callable[[], None]) -> None:
        read = options.sse_read_timeout
        if "sse_read_timeout" not in options.model_fields_set:
            read = max(read, options.request_timeout or 0)
        super().__init__(
            options.url or "",
            seconds=read,
            limit=MAX_ANSWER,
            streams=True,
            headers=httpx2.Headers(options.headers, encoding="latin-1"),  # by itself it takes ASCII only
            timeout=httpx2.Timeout(options.timeout, read=read),
            verify=options.verify_ssl,
        )
        self._bearer = bearer
        self._listening = listening
        self._notice_seconds = min(options.timeout, NOTICE_SECONDS)
        #: POSTs in flight: notifications, and our responses to the server's requests
        self._notices: set[asyncio.Task[None]] = set()
        #: the SDK's tasks that have sent a message; a GET by such a task resumes the stream of its answer
        self._calling: WeakSet[asyncio.Task[Any]] = WeakSet()
        #: whether the server has said that it does not know the session
        self._is_forgotten = False
        #: seconds to pause before the stream of notifications is opened next, and when it was last opened
        self._pause = self._opened = 0.0
        #: the request that follows the redirect of the last request for that stream
        self._redirected: httpx2.Request | None = None

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        listens = self._listens(request)
        if listens:
            await self._rest(request)
        elif request.method == "GET":
            await anyio.sleep(GET_PAUSE)
        if self._bearer.token is not None:
            request.headers["Authorization"] = f"Bearer {self._bearer.token}"
        if request.method == "POST" and (notice := _notice(await request.aread())) is not None:
            await self._notify(request, notice)
            return httpx2.Response(202, request=request)
        if request.method == "DELETE":  # the session is over, whatever the server says
            if not self._is_forgotten:
                await self._delivered(request)
            return httpx2.Response(204, request=request)
        try:
            response = await super().send(request, stream=True, **options)
            response.stream = _WholeCharacters(response.stream)
            if is_stream(response):
                response.stream = _BoundedEvents(response.stream, break_is_end=listens)
            else:
                # read here, so that an answer refused halfway is reported as well
                _check_marks(_marks(await response.aread()))
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError) as error:
            return _ended(request) if listens else _reported(request, NOT_SENT, _reason(error))
        except (httpx2.TransportError, httpx2.StreamError) as error:
            return _ended(request) if listens else _reported(request, OUTCOME_UNKNOWN, _reason(error))
        if listens:
            return self._notifications(request, response)
        if response.status_code >= 400:
            return await self._refused(request, response)
        where = redirect_location(response)
        if where is not None and request.method == "POST" and response.status_code not in (307, 308):
            # many servers redirect after a call is done; 307 and 308 ask to repeat the call
            reason = f"{_status(response)}: a redirect to {where}, which is not followed"
            return _reported(request, OUTCOME_UNKNOWN, reason)
        return response if is_stream(response) or where is not None else _with_id(request, response)

    async def _notify(self, request: httpx2.Request, notice: str) -> None:
        """Sends a message that has no result in the background: the SDK would send no call before the
        answer."""
        if notice == "notifications/initialized":  # servers refuse requests that arrive before it
            await self._delivered(request)
            return
        task = asyncio.create_task(self._delivered(request), name="notify an MCP server")
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def _delivered(self, request: httpx2.Request) -> None:
        following: httpx2.Request | None = request
        with suppress(httpx2.HTTPError, httpx2.StreamError, TimeoutError):
            async with asyncio.timeout(self._notice_seconds):
                while following is not None:
                    response = await super().send(following, stream=True)
                    if not is_stream(response):
                        await response.aread()
                    await response.aclose()
                    following = next_request_within_origin(response)

    async def __aexit__(self, *exc: Any) -> None:
        for task in self._notices:
            task.cancel()
        await super().__aexit__(*exc)

    async def _refused(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        status = _status(response)
        challenge = response.headers.get("www-authenticate", "")[:MAX_CHALLENGE]
        if response.status_code == 401 or (response.status_code == 403 and "insufficient_scope" in challenge):
            return _reported(request, UNAUTHORIZED, status, challenge=challenge)
        text = response.content.decode(errors="replace")
        lost = await self._lost(request, response)
        if lost is not None:
            self._is_forgotten = True
            return _reported(request, lost, f"{status}: {text[:MAX_REASON]}")
        is_in_doubt = may_be_done(response.status_code, response.headers)
        is_json = response.headers.get("content-type", "").startswith("application/json")
        # gateways write JSON-RPC as well, without the id of a request that they gave up on
        if is_json and '"jsonrpc"' in text and (not is_in_doubt or _has_id_of(request, response)):
            return response
        code = OUTCOME_UNKNOWN if is_in_doubt else REFUSED
        return _reported(request, code, f"{status}: {text[:MAX_REASON]}".strip(": "))

    async def _lost(self, request: httpx2.Request, refused: httpx2.Response) -> int | None:
        """`SESSION_LOST` or `REFUSED_AND_LOST` if the session is lost, otherwise None.

        A bare 404 says that it is (MCP, "Session Management"). Any other answer may come from the tool, so a
        probe has to be refused as well. The request was certainly refused for the same reason if it got the
        same answer as the probe; servers may write the time or an id of the request into theirs.
        """
        if "mcp-session-id" not in request.headers or not _is_lost_session(refused.status_code, refused.text):
            return None
        if refused.status_code == 404 and not _has_id_of(request, refused):
            return SESSION_LOST
        headers = request.headers.copy()
        headers.pop("content-length", None)
        asked = (json_object(request.content) or {}).get("method")
        with suppress(httpx2.HTTPError, httpx2.StreamError, TimeoutError):
            async with asyncio.timeout(self._notice_seconds):
                for method in _PROBES:
                    if method == asked:  # which may fail for a reason of its own
                        continue
                    message = {"jsonrpc": "2.0", "id": "probe", "method": method}
                    probe = self.build_request("POST", request.url, headers=headers, json=message)
                    async with aclosing(await super().send(probe, stream=True)) as answer:
                        if answer.status_code not in (400, 404):  # it may be an endless stream
                            continue
                        await answer.aread()
                        if _without_id(answer) == _without_id(refused):
                            return SESSION_LOST
                        is_bare = answer.status_code == 404 and not _has_id_of(probe, answer)
                        if is_bare or "session" in answer.text.lower():
                            return REFUSED_AND_LOST
        return None

    def _notifications(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """The SDK gives up on notifications after two streams that broke or were refused, however far apart.

        Transient refusals are therefore passed to it as a stream that has ended, which it opens again.
        """
        self._redirected = response.next_request
        if response.status_code in _PASSING or (response.status_code >= 500 and response.status_code != 501):
            return _ended(request)
        if is_stream(response) or _is_lost_session(response.status_code, response.text):
            self._listening()
        return response

    async def _rest(self, request: httpx2.Request) -> None:
        """Pauses before the stream of notifications is opened; the pause doubles while streams do not stay
        open."""
        if request is self._redirected:
            return
        if time.monotonic() - self._opened > LONGEST_GET_PAUSE:
            self._pause = 0.0
        await anyio.sleep(self._pause)
        self._pause = min(self._pause * 2 or GET_PAUSE, LONGEST_GET_PAUSE)
        self._opened = time.monotonic()

    def _listens(self, request: httpx2.Request) -> bool:
        """Whether the request opens the stream of notifications: it is a GET by a task that has sent
        nothing."""
        task = asyncio.current_task()
        assert task is not None
        if request.method != "GET":
            self._calling.add(task)
        return task not in self._calling


def _notice(content: bytes) -> str | None:
    """The method of a notification, empty for our response to the server; None if the message is a request,
    or not JSON."""
    message = json_object(content)
    if message is None or {"id", "method"} <= message.keys():
        return None
    return str(message.get("method", ""))


def _marks(content: bytes) -> int:
    """The number of commas and opening brackets, which bounds the values: each may take a hundred bytes."""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


def _check_marks(marks: int) -> None:
    if marks > MAX_MARKS:
        raise httpx2.SSEError(f"the answer holds more than {MAX_MARKS:,} values")


class _WholeCharacters(httpx2.AsyncByteStream):
    """A body of JSON or events with unpaired surrogates replaced. It yields whole lines, which cut no
    escape."""

    def __init__(self, body: Any) -> None:
        self._body: httpx2.AsyncByteStream = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        line = bytearray()
        async for chunk in self._body:
            ended = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
            line += chunk[:ended] if ended else chunk
            # a line beyond the limit is passed on unfinished: its reader refuses it
            if ended or len(line) > MAX_ANSWER:
                yield whole_characters(bytes(line))
                line = bytearray(chunk[ended:] if ended else b"")
        yield whole_characters(bytes(line))

    async def aclose(self) -> None:
        await self._body.aclose()


class _BoundedEvents(httpx2.AsyncByteStream):
    """The body of an event stream; raises `SSEError` for an event with more than `MAX_MARKS` values."""

    def __init__(self, body: Any, *, break_is_end: bool) -> None:
        self._body: httpx2.AsyncByteStream = body
        self._break_is_end = break_is_end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        marks = 0
        async for chunk in self._chunks():
            # an event ends in an empty line; if a chunk splits that line, two events are counted as one
            ended, _, rest = chunk.replace(b"\r\n", b"\n").rpartition(b"\n\n")
            _check_marks(marks + _marks(ended))
            marks = _marks(rest) if ended else marks + _marks(rest)
            _check_marks(marks)
            yield chunk

    async def _chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._body:
                yield chunk
        except httpx2.TransportError:
            if not self._break_is_end:
                raise

    async def aclose(self) -> None:
        await self._body.aclose()


def _status(response: httpx2.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}".strip()


def _is_lost_session(status: int, body: str) -> bool:
    """Whether an answer means that the session is lost: 404 by the specification, 400 from widespread
    servers."""
    return status == 404 or (status == 400 and "session" in body.lower())


def _has_id_of(request: httpx2.Request, response: httpx2.Response) -> bool:
    """Whether this answers the request by its id; a notification has none."""
    asked, answered = json_object(request.content) or {}, json_object(response.content) or {}
    return asked.get("id") is not None and asked["id"] == answered.get("id")


def _with_id(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """The answer to a request. An error without an id, as JSON-RPC has it for a request that could not be
    read, gets the request's own: the SDK would match it with no call, and wait until the call's limit."""
    asked, answered = json_object(request.content) or {}, json_object(response.content) or {}
    if not answered.get("error") or answered.get("id") is not None:
        return response
    body = {**answered, "id": asked.get("id")}
    return httpx2.Response(response.status_code, json=body, request=request)


def _without_id(response: httpx2.Response) -> Json | str:
    """The body, which is the same for two requests that are refused for one reason."""
    body = json_object(response.content)
    return response.text if body is None else {**body, "id": None}


def _ended(request: httpx2.Request) -> httpx2.Response:
    """An empty event stream that has ended, so that the SDK opens the next one."""
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, request=request)


def _reported(request: httpx2.Request, code: int, message: str, **data: str) -> httpx2.Response:
    error = {"code": code, "message": message, "data": data}
    return httpx2.Response(400, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


def _reason(error: Exception) -> str:
    if isinstance(error, Unacceptable | httpx2.SSEError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# --- stdio ---------------------------------------------------------------------------------------


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record of the SDK says more than that a line is no message. `mcp_connection` reports such a
    line with the server's name, and only if it cannot be read with half characters replaced."""
    return record.msg != "Failed to parse JSONRPC message from server"


logging.getLogger("mcp.client.stdio").addFilter(_is_news)


@asynccontextmanager
async def stdio_transport(
    options: MCPServerOptions, last_words: deque[str]
) -> AsyncGenerator[TransportStreams]:
    """Starts the command with a minimal environment, and ends it with its process group.

    Its standard error is logged at debug. The last lines are in `last_words`, which is complete once this
    context is left.
    """
    command = _found(options)
    parameters = StdioServerParameters(
        command=command[0],
        args=command[1:],
        env=options.env,
        cwd=options.cwd,
        encoding_error_handler="replace",
    )
    last_words.clear()  # the lines of the previous process
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as errors:
        reader = threading.Thread(
            target=_log_lines,
            args=(reading, options.name, last_words),
            name=f"stderr {options.name}",
            daemon=True,
        )
        reader.start()
        try:
            async with stdio_client(parameters, errlog=errors) as streams:
                # the child has its own copy by now; ours would keep the pipe open after its end
                errors.close()
                yield streams
        finally:
            errors.close()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(reader.join, LAST_WORDS_SECONDS)


def _found(options: MCPServerOptions) -> list[str]:
    """The command line, run by the process guard where possible. `ToolsetError` if the command is not
    found."""
    command = options.command or ""
    path = options.env.get("PATH") or get_default_environment().get("PATH")
    located = Path(options.cwd or ".", command) if os.sep in command else None
    if not (os.access(located, os.X_OK) if located else shutil.which(command, path=path)):
        raise ToolsetError(
            f"MCP server {options.name}: the command {command!r} was not found. "
            "Install it, or give its full path."
        )
    if os.name != "posix" or not sys.executable:
        # on Windows the SDK's job object does the same
        return [command, *options.args]
    return [sys.executable, "-I", "-S", str(_GUARD), str(MAX_ANSWER), str(MAX_MARKS), command, *options.args]


def _log_lines(descriptor: int, name: str, last_words: deque[str]) -> None:
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
        # a line without an end is cut into several
        for line in iter(lambda: lines.readline(MAX_REASON), ""):
            text = line.rstrip()
            last_words.append(text)
            logger.debug("MCP server %s: %s", name, text)
