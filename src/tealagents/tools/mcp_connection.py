"""A connection to an MCP server, whose own task makes a new session whenever one is lost."""

import asyncio
import contextvars
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio
import mcp_types as types
from mcp.client import Client, ClientSession, IncomingMessage
from mcp.client._transport import ReadStream, TransportStreams
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT, URL_ELICITATION_REQUIRED
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from tealagents import __version__
from tealagents.domain.models import Json
from tealagents.tools.errors import ToolsetError
from tealagents.tools.mcp_listing import fetch_tools
from tealagents.tools.mcp_transport import (
    LAST_WORDS_SECONDS,
    NOTICE_SECONDS,
    REFUSED_AND_LOST,
    SESSION_LOST,
    TOO_LONG,
    UNAUTHORIZED,
    BearerToken,
    http_transport,
    stdio_transport,
    whole_characters,
)
from tealagents.tools.options import MCPServerOptions

logger = logging.getLogger(__name__)

#: seconds before the first attempt to reconnect, and the longest pause between two attempts
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0
#: most seconds for which a session that was lost is kept for the answers of its other calls: refused as well,
#: they can be made again. At most a quarter of `timeout`, since new calls wait that long for the next session
LAST_ANSWERS_SECONDS = 0.5
#: seconds a call may take if the options set no limit: the caller has a limit of its own
_NO_LIMIT = 86_400.0
#: the codes of a session that the server has forgotten
_LOST = (SESSION_LOST, REFUSED_AND_LOST)
#: prefixes of the SDK's errors for HTTP answers that it cannot parse
UNPARSED = ("Failed to parse JSON response: ", "Failed to parse SSE message: ")
#: lines of standard error that are reported when a child process ends by itself
LAST_WORDS = 8


class Unreachable(Exception):
    """There is no session, so the call was not made. The text says why."""


class ClosedAtProbe(Exception):
    """The child process ended when it was asked for its protocol versions, before `initialize`."""


class Signals:
    """What a session's task waits for: the listing has changed, the session is over, its calls have ended."""

    def __init__(self) -> None:
        self._wake = asyncio.Event()
        #: set once the session is over
        self.over = asyncio.Event()
        #: set once it is closed as well, and the last output of a child process has been read
        self.closed = asyncio.Event()
        #: set while no call is under way
        self.idle = asyncio.Event()
        self.idle.set()
        self._calls = 0

    @contextmanager
    def of_call(self) -> Iterator[None]:
        """Inside this context, a call of the session is under way."""
        self._calls += 1
        self.idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self.idle.set()

    def changed(self) -> None:
        self._wake.set()

    def end(self) -> None:
        self.over.set()
        self._wake.set()

    async def of_change(self) -> bool:
        """Returns once the listing has changed; False once the session is over."""
        await self._wake.wait()
        self._wake.clear()
        return not self.over.is_set()


class MCPConnection:
    """A session with an MCP server that is replaced by a new one whenever it is lost.

    `start` returns once the server's tools are known, and raises the error if that fails. `on_listing` is
    called with each listing, and returns whether it differs from the last one. `call` waits for a session if
    there is none at the moment.
    """

    def __init__(
        self,
        options: MCPServerOptions,
        on_listing: Callable[[Sequence[types.Tool]], bool],
        bearer: BearerToken | None = None,
    ) -> None:
        self._options = options
        self._on_listing = on_listing
        self.bearer = bearer or BearerToken()
        #: calls under way, and when the last one ended
        self.busy = 0
        self.idle_since = time.monotonic()
        self._client: Client | None = None
        self._up = asyncio.Event()
        self._signals = Signals()
        self._failure: Exception | None = None
        self._last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # an empty context, since the session outlives the request whose span and ids are current here
        self._task = asyncio.create_task(
            self._run(started), name=f"mcp {self._options.name}", context=contextvars.Context()
        )
        try:
            await asyncio.shield(started)
        except BaseException:
            await self.close()
            raise

    async def call(self, tool: str, arguments: Json) -> types.CallToolResult:
        """Raises `Unreachable`, or what the SDK raises (`MCPError` with its code, most of the time)."""
        self.busy += 1
        try:
            client, signals = await self._session(), self._signals
            try:
                return await self._call(client, tool, arguments)
            except MCPError as error:
                if _is_closed(error) and await self._wrote_too_much(signals):
                    raise MCPError(error.code, f"{error.message}: {TOO_LONG}", error.data) from error
                if error.code in _LOST and self._client is client:
                    self._lose()
                if error.code != SESSION_LOST:
                    raise
            # the server refused the call since it has forgotten the session: repeating the call is safe
            return await self._call(await self._session(), tool, arguments)
        finally:
            self.busy -= 1
            self.idle_since = time.monotonic()

    async def close(self) -> None:
        """Ends the session and its child process, and waits for both. The server is notified, but not waited
        for longer than `NOTICE_SECONDS`."""
        if self._client is None:
            self._scope.cancel()
        else:
            self._scope.deadline = anyio.current_time() + NOTICE_SECONDS
            self._lose()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _call(self, client: Client, tool: str, arguments: Json) -> types.CallToolResult:
        timeout = self._options.call_seconds or _NO_LIMIT
        with self._signals.of_call():
            return await client.call_tool(tool, arguments, read_timeout_seconds=timeout)

    async def _session(self) -> Client:
        try:
            async with asyncio.timeout(self._options.timeout):
                await self._up.wait()
        except (TimeoutError, asyncio.CancelledError):  # of a caller whose own limit ends sooner
            raise Unreachable(self._why()) from self._failure
        if self._client is None:
            raise self._refusal() or Unreachable("the connection is closed")
        return self._client

    async def _wrote_too_much(self, signals: Signals) -> bool:
        """Whether the process guard ended the session's child process because it wrote too long a line."""
        if self._options.transport != "stdio":
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * LAST_WORDS_SECONDS):
                await signals.closed.wait()
        return bool(self._last_words) and self._last_words[-1] == f"ended: {TOO_LONG}"

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    def _refusal(self) -> MCPError | None:
        """The server's rejection of the user's token, after which it is not reconnected; None if there is
        none."""
        error = self._failure
        if self.bearer.token is not None and isinstance(error, MCPError) and error.code == UNAUTHORIZED:
            return error
        return None

    def _why(self) -> str:
        return error_text(self._failure) if self._failure else "there is no session"

    # --- in the connection's own task ---

    async def _run(self, started: "asyncio.Future[None]") -> None:
        with self._scope:
            pause, is_legacy = FIRST_PAUSE, False
            while True:
                begun, token = time.monotonic(), self.bearer.token
                try:
                    await self._live(started, is_legacy)
                    self._failure = Unreachable("the session was lost")
                except Exception as error:  # noqa: BLE001 - the SDK's groups of errors of all kinds
                    self._failure = cause(error)
                    is_legacy = isinstance(self._failure, ClosedAtProbe)
                    if is_legacy:
                        continue  # some servers end at any request before `initialize`
                    if not started.done():
                        started.set_exception(self._explained_at_start(self._failure))
                        return
                    if self._refusal() and self.bearer.token == token:  # a token renewed since is tried first
                        self._up.set()  # wakes the calls that wait for a session, which are refused as well
                        return
                self._signals.closed.set()
                if self._scope.deadline < math.inf:  # closed
                    return
                name, said = self._options.name, self._last_output()
                logger.warning("MCP server %s: %s; connecting again%s", name, self._why(), said)
                if time.monotonic() - begun > LONGEST_PAUSE:
                    pause = FIRST_PAUSE
                await anyio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _live(self, started: "asyncio.Future[None]", is_legacy: bool) -> None:
        """One session, from connecting to its loss; if `is_legacy`, without asking for protocol versions."""
        self._signals = Signals()
        client = _TimedClient(
            _watched(self._transport(), self._lose),
            mode="legacy" if is_legacy else _mode(self._options),
            read_timeout_seconds=self._options.timeout,
            client_info=types.Implementation(name="tealagents", version=__version__),
            message_handler=self._on_message,
            cache=None,
        )
        async with client:
            # the schema comes from the server: a pattern or references in it could block the loop for hours
            client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]
            self._check_version(client)
            if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                asked = partial(_asked_for_input, client.session.dispatch_input_request)
                client.session.dispatch_input_request = asked  # type: ignore[method-assign]
            self._on_listing(await self._listed(client))
            self._client = client
            self._up.set()
            if not started.done():
                started.set_result(None)
            try:
                async with anyio.create_task_group() as group:
                    if _announces(client):
                        group.start_soon(self._listen, client)
                    group.start_soon(self._watch, client)
                    await self._signals.over.wait()
                    if self._scope.deadline == math.inf:  # lost, not closed
                        with anyio.move_on_after(min(LAST_ANSWERS_SECONDS, self._options.timeout / 4)):
                            await self._signals.idle.wait()
                    group.cancel_scope.cancel()
            finally:
                self._client = None
                self._up.clear()

    def _check_version(self, client: Client) -> None:
        required = self._options.protocol_version
        if required not in (None, client.protocol_version):
            raise ToolsetError(
                f"MCP server {self._options.name}: its session is in protocol version "
                f"{client.protocol_version}, and the config requires protocol_version {required}, which is "
                "checked and not offered: the newest version is offered, and the server chooses."
            )

    def _transport(self) -> AbstractAsyncContextManager[TransportStreams]:
        if self._options.transport == "stdio":
            return stdio_transport(self._options, self._last_words)
        return http_transport(self._options, self.bearer, self._list_again)

    async def _watch(self, client: Client) -> None:
        pause, ended = FIRST_PAUSE, time.monotonic()
        while await self._signals.of_change():
            if time.monotonic() - ended > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            # a server may announce, or even make, a change each time it is asked for the listing
            await anyio.sleep(pause)
            begun = time.monotonic()
            differs = await self._refresh(client)
            ended = time.monotonic()
            if differs or (ended - begun) * 5 > pause:
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _listed(self, client: Client) -> list[types.Tool]:
        try:
            async with asyncio.timeout(self._options.timeout):
                return await fetch_tools(client)
        except TimeoutError:  # of all pages together
            raise MCPError(REQUEST_TIMEOUT, "Request 'tools/list' timed out") from None

    async def _refresh(self, client: Client) -> bool:
        """Fetches and applies the new listing; returns whether it may differ from the last one.

        If the listing fails, running calls continue, unless the session is lost.
        """
        try:
            return self._on_listing(await self._listed(client))
        except MCPError as error:
            if _is_closed(error) or error.code in _LOST:
                self._lose()
            else:
                logger.warning("MCP server %s does not list its tools: %s", self._options.name, error)
                self._list_again()  # the server will not announce the same change again
        except ValidationError as error:
            name = self._options.name
            logger.warning("MCP server %s violates MCP; its last listing stays: %s", name, error_text(error))
        return True

    def _lose(self) -> None:
        """Ends the session; new calls wait for the next one."""
        self._up.clear()
        self._signals.end()

    def _list_again(self) -> None:
        self._signals.changed()

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._list_again()
        elif isinstance(message, ValidationError):
            logger.warning(
                "MCP server %s sent what is not a message of MCP; it is ignored: %s",
                self._options.name,
                error_text(message),
            )

    async def _listen(self, client: Client) -> None:
        """From 2026-07-28 on, servers report changes only to clients that ask for them."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    # changes before the subscription, or between two subscriptions, are not reported
                    self._list_again()
                    async for _ in changes:
                        self._list_again()
            except ListenNotSupportedError:
                return
            except (MCPError, SubscriptionLost, TimeoutError) as error:
                logger.debug("MCP server %s does not report changes: %s", self._options.name, error)
            await anyio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _explained_at_start(self, error: Exception) -> Exception:
        said = self._last_output()
        return error if isinstance(error, ToolsetError) or not said else Unreachable(error_text(error) + said)

    def _last_output(self) -> str:
        """The last lines of a child process's standard error, which usually say why it ended; "" if none."""
        return ". Its last output:\n" + "\n".join(self._last_words) if self._last_words else ""


class _TimedClient(Client):
    """A client that is entered within `read_timeout_seconds`, whatever the SDK does meanwhile."""

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(self.read_timeout_seconds):
                await super().__aenter__()
        except TimeoutError:
            raise Unreachable(f"there is no session within {self.read_timeout_seconds:g} s") from None
        return self

    async def _build_session(self, exit_stack: AsyncExitStack) -> ClientSession:
        session = await super()._build_session(exit_stack)
        probe = partial(_probed, session.send_discover, (self.read_timeout_seconds or _NO_LIMIT) / 2)
        session.send_discover = probe  # type: ignore[method-assign]
        return session


async def _probed(
    probe: Callable[[str], Awaitable[dict[str, Any]]], seconds: float, version: str
) -> dict[str, Any]:
    """Asks for the server's protocol versions, and leaves time for `initialize`: many servers give no
    answer."""
    try:
        async with asyncio.timeout(seconds):
            return await probe(version)
    except TimeoutError:
        raise MCPError(REQUEST_TIMEOUT, "there is no answer to server/discover") from None
    except MCPError as error:
        if _is_closed(error):
            raise ClosedAtProbe(error.message) from error
        raise


def _is_closed(error: MCPError) -> bool:
    """Whether the session has ended. Servers use this code of the SDK for errors of all kinds, so its text
    decides."""
    return error.code == CONNECTION_CLOSED and error.message == "Connection closed"


@asynccontextmanager
async def _watched(
    transport: AbstractAsyncContextManager[TransportStreams], ended: Callable[[], None]
) -> AsyncGenerator[TransportStreams]:
    """Calls `ended` when the transport's incoming stream ends, which means that the session is lost."""
    async with transport as (reading, writing):
        yield _WatchedStream(reading, ended), writing


class _WatchedStream:
    def __init__(self, stream: ReadStream[SessionMessage | Exception], ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> contextvars.Context | None:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            message = await self._stream.__anext__()
        except BaseException:
            self._ended()
            raise
        return _read_again(message) if isinstance(message, ValidationError) else message

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)


def _read_again(error: ValidationError) -> SessionMessage | Exception:
    """Parses a child process's message that the SDK refused, with unpaired surrogates replaced; the error if
    it is still invalid."""
    first = error.errors()[0]
    if first["type"] != "json_invalid":
        return error
    written = whole_characters(first["input"].encode())
    try:
        message = types.jsonrpc_message_adapter.validate_json(written, by_name=False)
    except ValidationError:
        return error
    return SessionMessage(message)


def _mode(options: MCPServerOptions) -> str:
    """The SDK's negotiation mode: "legacy" or "auto". A single modern version is not passed as the mode,
    since the SDK would then not ask the server. `ToolsetError` for an unknown version."""
    version = options.protocol_version
    if version in HANDSHAKE_PROTOCOL_VERSIONS:
        return "legacy"
    if version is not None and version not in MODERN_PROTOCOL_VERSIONS:
        known = ", ".join((*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS))
        raise ToolsetError(
            f"MCP server {options.name}: protocol_version {version!r} is not known; known: {known}."
        )
    return "auto"


async def _unchecked(name: str, result: types.CallToolResult) -> None:
    """Replaces the SDK's check of a result against its tool's `outputSchema` by none."""


async def _asked_for_input(
    answer: Callable[..., Awaitable[Any]], context: object, request: types.InputRequest
) -> Any:
    """Turns a request to send the user to a URL into the error that earlier protocol versions use for it."""
    if isinstance(request.params, types.ElicitRequestURLParams):
        data = {"elicitations": [{"mode": "url", "url": request.params.url}]}
        return types.ErrorData(code=URL_ELICITATION_REQUIRED, message=request.params.message, data=data)
    return await answer(context, request)


def _announces(client: Client) -> bool:
    tools = client.server_capabilities.tools
    return (
        client.protocol_version in MODERN_PROTOCOL_VERSIONS and tools is not None and bool(tools.list_changed)
    )


def cause(error: BaseException) -> Exception:
    """The first error within exception groups, which caused the others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else Unreachable(repr(error))


def error_text(error: Exception) -> str:
    """The error's text, shortened: of a `ValidationError`, which has lines for each form that a message could
    have, only the first error."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    if isinstance(error, MCPError) and error.code == PARSE_ERROR and error.message.startswith(UNPARSED):
        return "what came back is not valid JSON-RPC"
    return str(error) or type(error).__name__
