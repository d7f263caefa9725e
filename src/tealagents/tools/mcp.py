"""Tools of MCP servers: child processes that speak over stdio, and servers over streamable HTTP.

::

    MCPServer (a Toolset) ── MCPConnection, shared                    where the server wants no user
                          └─ MCPConnection, one for each user         where it wants the user's token

A *connection* is one session with the server. The SDK's context managers have to be entered and left in
one task, so each connection has a task of its own, which connects, lists the tools, lists them again when
the server says so, and connects again after the session is lost. Calls come from any task.

A call that was under way when the connection broke is never repeated: whether it was done is unknown, and
the model is sent that. A call that surely never reached the server is reported as not done.
"""

import asyncio
import contextvars
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Self, TypeVar
from weakref import WeakValueDictionary

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    URL_ELICITATION_REQUIRED,
)
from pydantic import ValidationError

from tealagents.domain.errors import NeedsAuthorization, ToolFailed
from tealagents.domain.models import Json, User
from tealagents.domain.ports import Tool, ToolContext
from tealagents.domain.texts import bounded
from tealagents.outbound.addresses import is_http_url, shown
from tealagents.tools.errors import ToolsetError
from tealagents.tools.mcp_connection import UNPARSED, MCPConnection, Unreachable, error_text
from tealagents.tools.mcp_listing import Lister, Listing
from tealagents.tools.mcp_results import result_text
from tealagents.tools.mcp_transport import NOT_SENT, OUTCOME_UNKNOWN, SESSION_LOST, UNAUTHORIZED, BearerToken
from tealagents.tools.oauth import Consents
from tealagents.tools.oauth_servers import Challenge, ProtectedServer, is_one_word
from tealagents.tools.options import MCPServerOptions
from tealagents.tools.user_tokens import TOKEN_SECONDS, in_time, user_key_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: most users with open connections to one server, seconds an unused one is kept, and seconds between two
#: sweeps
MAX_USERS, IDLE_SECONDS, SWEEP_SECONDS = 200, 600.0, 30.0
#: most users whose listings are remembered
MAX_LISTINGS = 2_000
#: how the SDK begins its errors for answers over HTTP that it cannot read, by code; and one that is whole
_UNREADABLE = {
    PARSE_ERROR: UNPARSED,
    INVALID_REQUEST: ("Unexpected content type: ", "server answered a request with 202 Accepted"),
}
_NO_ERROR = (INTERNAL_ERROR, "Server returned an error response")


class MCPServer:
    """The tools of one server. Entering it connects and lists them, or finds that the server wants a user's
    token first."""

    def __init__(
        self,
        options: MCPServerOptions,
        consents: Consents | None = None,
        changed: Callable[[], None] | None = None,
    ) -> None:
        self.options = options
        self._consents = consents
        #: called when the server lists other tools than before
        self._changed = changed
        self._shared: MCPConnection | None = None
        self._users = _UserConnections(options, self._take_own_listing)
        self._lister = Lister(options, self.call, self.connect)
        #: the tools while there is no anonymous listing
        self._connecting = (self._lister.connect_tool(),)
        #: the anonymous listing; None while the server lists its tools for users only
        self._listing: Listing | None = None
        #: the listing of each user, for that user only, by the user's key; least recently used first
        self._own: OrderedDict[str, Listing] = OrderedDict()
        asks = options.auth_server or options.scopes or options.on_behalf_of_scopes
        #: the server's challenge for the user's token; None: it wants no token
        self._challenge = Challenge() if options.transport == "http" and asks else None
        self._protected = ProtectedServer(
            name=options.name,
            resource=options.canonical_uri or options.url,
            url=options.url if options.canonical_uri else None,
            issuer=options.auth_server,
            scopes=tuple(options.scopes),
            client_id=options.oauth_client_id,
            client_secret=options.oauth_client_secret,
            register=options.enable_dynamic_registration,
            assume_pkce=options.assume_pkce,
            verify_ssl=options.verify_ssl,
        )

    def tools(self) -> Sequence[Tool]:
        """The tools for all users: those of the anonymous listing, or the tool that connects a user."""
        return self._connecting if self._listing is None else self._listing.tools

    def tools_of(self, owner: User) -> Sequence[Tool]:
        """The tools that the server listed for this user; those of `tools` if the user is not connected
        yet."""
        own = self._own.get(owner.key)
        return self.tools() if own is None else own.tools

    def find(self, name: str) -> Tool | None:
        """A tool by its name; without an anonymous listing, any name with this server's prefix is tried."""
        if self._listing is not None:
            return self._listing.named(name)
        [connect_tool] = self._connecting
        return connect_tool if name == connect_tool.spec.name else self._lister.unlisted(name)

    async def __aenter__(self) -> Self:
        connection = MCPConnection(self.options, self._take_listing)
        try:
            await connection.start()
        except ToolFailed:
            raise
        except Exception as error:
            if not (isinstance(error, MCPError) and error.code == UNAUTHORIZED and self._can_ask()):
                raise ToolsetError(self._at_start(error_text(error))) from error
            logger.info("MCP server %s lists its tools only for users", self.options.name)
            self._challenge = _challenge_of(error)
        else:
            self._shared = connection
        return self

    async def __aexit__(self, *exc: object) -> None:
        shared = [self._shared.close()] if self._shared is not None else []
        await asyncio.gather(*shared, self._users.close())

    def _at_start(self, reason: str) -> str:
        # the command's arguments may be secret, so they are left out
        where = shown(self.options.url or self.options.command or "")
        return f"MCP server {self.options.name} ({where}) cannot be used: {reason}"

    # --- what is listed ---

    def _take_listing(self, tools: Sequence[types.Tool]) -> bool:
        before = self._listing
        self._listing = self._lister.listing(tools, before)
        if before is None or self._listing.tools is not before.tools:
            self._lister.report(self._listing)
            if before is not None and self._changed:
                self._changed()
        return self._listing is not before

    def _take_own_listing(self, user_key: str, tools: Sequence[types.Tool]) -> bool:
        before = self._own.pop(user_key, None)
        listing = self._own[user_key] = self._lister.listing(tools, before)
        if len(self._own) > MAX_LISTINGS:
            self._own.popitem(last=False)
        return listing is not before

    # --- calls ---

    async def call(self, context: ToolContext, name: str, arguments: Json, function: str = "") -> str:
        """The text that the model is sent for a call of the tool `name`. If `function` is given, only the
        tool of this name at the server is called: its listing may have changed since."""
        try:
            result = await self._called(context, name, arguments, function)
        except Unreachable as error:
            raise ToolFailed(f"{self.options.name} cannot be reached: {error}. Nothing was done.") from error
        except MCPError as error:
            raise self._failure(error) from error
        except (RuntimeError, ValidationError) as error:
            reason = bounded(error_text(error), 1_000)
            raise ToolFailed(
                f"{self.options.name} accepted the call, but its answer violates MCP: {reason}",
                unknown=True,
            ) from error
        text = result_text(result)
        if result.is_error:
            raise ToolFailed(text)
        return text

    async def connect(self, context: ToolContext) -> str:
        """Connects for the owner, who is asked to consent first if need be, and lists the tools."""

        async def own_tools(_: MCPConnection) -> Sequence[Tool]:
            return self._own[user_key_of(context)].tools

        try:
            tools = await self._for_user(context, own_tools)
        except Unreachable as error:
            raise ToolFailed(f"{self.options.name} cannot be reached: {error}.") from error
        except MCPError as error:
            raise self._failure(error) from error
        lines = [f"- {tool.spec.name}: {tool.spec.description.partition(chr(10))[0]}" for tool in tools]
        return bounded("Connected. These tools can be called now:\n" + "\n".join(lines))

    async def _called(
        self, context: ToolContext, name: str, arguments: Json, function: str
    ) -> types.CallToolResult:
        if self._shared is not None and self._challenge is None:
            try:
                return await self._shared.call(self._function(name, function, self._listing), arguments)
            except MCPError as error:
                if error.code != UNAUTHORIZED or not self._can_ask():
                    raise
                await self._learn_challenge(context, error)

        async def called(connection: MCPConnection) -> types.CallToolResult:
            listing = self._own.get(user_key_of(context))
            return await connection.call(self._function(name, function, listing), arguments)

        return await self._for_user(context, called)

    async def _for_user(self, context: ToolContext, use: Callable[[MCPConnection], Awaitable[T]]) -> T:
        """The result of `use`, which is given the connection with the owner's token."""
        try:
            async with asyncio.timeout(TOKEN_SECONDS):
                token = await self._token(context)
        except TimeoutError:
            raise Unreachable(f"there is no token within {TOKEN_SECONDS:g} s") from None
        try:
            return await use(await self._connection(context, token))
        except MCPError as error:
            if error.code != UNAUTHORIZED:
                raise
            # the call was refused, so nothing was done: it is tried once more with a renewed token
            token = await in_time(self._other_token(context, token, error))
        return await use(await self._connection(context, token))

    async def _connection(self, context: ToolContext, token: str) -> MCPConnection:
        user_key = user_key_of(context)
        try:
            # calls made at once wait for one another; what is not sent by then is not sent at all
            async with asyncio.timeout(self.options.timeout):
                connection = await self._users.of(user_key, token)
        except (TimeoutError, asyncio.CancelledError):  # of a caller whose own limit ends sooner
            raise Unreachable("there is no session in time") from None
        if user_key in self._own:
            self._own.move_to_end(user_key)
        return connection

    def _function(self, name: str, function: str, listing: Listing | None) -> str:
        functions = listing.functions if listing is not None else {}
        if name not in functions or function not in ("", functions[name]):
            there = ", ".join(functions) or "none"
            raise ToolFailed(f"There is no tool {name!r} (any more); {self.options.name} has: {there}.")
        return functions[name]

    # --- tokens ---

    def _can_ask(self) -> bool:
        """Whether a 401 can be resolved by a user's token: not if the operator configured the credentials."""
        fixed = any(header.lower() == "authorization" for header in self.options.headers)
        return not fixed and (self._consents is not None or bool(self.options.on_behalf_of_scopes))

    async def _learn_challenge(self, context: ToolContext, refused: MCPError) -> None:
        """Whether a server that lists its tools for all users runs them only with a token.

        One that leads to no authorization server had another reason for its 401, which may pass.
        """
        challenge = _challenge_of(refused)
        try:
            async with asyncio.timeout(TOKEN_SECONDS):
                await self._token(context, challenge)
        except NeedsAuthorization:
            self._challenge = challenge
            raise
        except (ToolFailed, TimeoutError) as error:
            raise ToolFailed(
                f"{self._failure(refused)} The user cannot be asked to authorize it: {error_text(error)}"
            ) from error
        self._challenge = challenge

    async def _token(self, context: ToolContext, challenge: Challenge | None = None) -> str:
        if self.options.on_behalf_of_scopes:
            return await context.user_token(self.options.on_behalf_of_scopes)
        consents = self._asking()
        token = await consents.tokens.get(context, self._protected)
        if token is None:
            raise await consents.need(context, self._protected, challenge or self._challenge)
        return token

    async def _other_token(self, context: ToolContext, token: str, error: MCPError) -> str:
        """A token in place of the refused one. `NeedsAuthorization` if the user has to consent."""
        if self.options.on_behalf_of_scopes:
            raise self._failure(error) from error
        consents = self._asking()
        # 403 means that the token is valid, but that its scopes do not suffice
        if error.message.startswith("403"):
            renewed = await consents.tokens.wider(context, self._protected, token)
        else:
            await consents.tokens.forget(context, self._protected, token)
            renewed = await consents.tokens.get(context, self._protected)
        if renewed is None or renewed == token:
            raise await consents.need(context, self._protected, _challenge_of(error))
        return renewed

    def _asking(self) -> Consents:
        if self._consents is None:
            raise ToolFailed(
                f"{self.options.name} needs the user's authorization, and this service is not set up to ask."
            )
        return self._consents

    def _failure(self, error: MCPError) -> Exception:
        """The error for the model, or for the user."""
        name, message = self.options.name, bounded(error_text(error), 4_000)
        if error.code == URL_ELICITATION_REQUIRED and (url := _elicited(error)):
            return NeedsAuthorization(name, url)
        if error.code == NOT_SENT:
            return ToolFailed(f"{name} cannot be reached: {message}. Nothing was done.")
        if _is_without_answer(error):
            return ToolFailed(
                f"{name} gave no answer: {message}. Whether the call was carried out is unknown; "
                "find out before it is made again.",
                unknown=True,
            )
        if error.code in (UNAUTHORIZED, SESSION_LOST):
            return ToolFailed(f"{name} refused the call: {message}. Nothing was done.")
        return ToolFailed(f"{name}: {message}")


class _UserConnections:
    """One connection per user, closed when it has not been used for `IDLE_SECONDS`."""

    def __init__(
        self, options: MCPServerOptions, on_listing: Callable[[str, Sequence[types.Tool]], bool]
    ) -> None:
        self._options = options
        self._on_listing = on_listing
        #: least recently used first
        self._open: dict[str, MCPConnection] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._closing: set[asyncio.Task[None]] = set()
        #: the timer of the next sweep, which closes unused connections
        self._sweep: asyncio.TimerHandle | None = None

    async def of(self, user_key: str, token: str) -> MCPConnection:
        async with self._locks.setdefault(user_key, asyncio.Lock()):
            connection = self._open.pop(user_key, None)
            if connection is None or connection.ended:
                connection = await self._started(user_key, token)
            connection.bearer.token = token
            connection.idle_since = time.monotonic()
            self._open[user_key] = connection
            self._close_unused(taken=connection)
            return connection

    async def _started(self, user_key: str, token: str) -> MCPConnection:
        """A new connection. Raises `MCPError` if the server refuses it, `Unreachable` for any other
        failure."""
        connection = MCPConnection(self._options, partial(self._on_listing, user_key), BearerToken(token))
        try:
            await connection.start()
        except ToolFailed:
            raise
        except Exception as error:
            if isinstance(error, MCPError) and not _is_without_answer(error):
                raise
            raise Unreachable(bounded(error_text(error), 1_000)) from error
        return connection

    def _close_unused(self, taken: MCPConnection | None = None) -> None:
        """Repeats itself while any is open: each asks its server for changes, with the user's token."""
        now = time.monotonic()
        for user_key, connection in list(self._open.items()):
            old = now - connection.idle_since > IDLE_SECONDS or len(self._open) > MAX_USERS
            if old and connection.busy == 0 and connection is not taken:
                del self._open[user_key]
                task = asyncio.create_task(connection.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        self._cancel_sweep()
        if self._open:
            self._sweep = asyncio.get_running_loop().call_later(
                SWEEP_SECONDS, self._close_unused, context=contextvars.Context()
            )

    def _cancel_sweep(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()

    async def close(self) -> None:
        self._cancel_sweep()
        connections, self._open = list(self._open.values()), {}
        await asyncio.gather(*(connection.close() for connection in connections), *self._closing)


def _challenge_of(error: MCPError) -> Challenge:
    """The challenge of the 401 or 403 that an error was made from; empty if there was none."""
    data = error.data if isinstance(error.data, dict) else {}
    return Challenge.of(str(data.get("challenge", "")))


def _is_without_answer(error: MCPError) -> bool:
    """Whether no answer arrived. The SDK's texts decide, since servers use its codes for their own errors."""
    if error.code == CONNECTION_CLOSED:
        return error.message.startswith(("Connection closed", "SSE stream"))
    if error.code == REQUEST_TIMEOUT:
        return error.message.startswith("Request ") and error.message.endswith("timed out")
    if error.code == OUTCOME_UNKNOWN or (error.code, error.message) == _NO_ERROR:
        return True
    return error.message.startswith(_UNREADABLE.get(error.code, ()))


def _elicited(error: MCPError) -> str | None:
    """The first URL that a server sends the user to before it continues (`URL_ELICITATION_REQUIRED`)."""
    elicitations = error.data.get("elicitations") if isinstance(error.data, dict) else None
    for elicitation in elicitations if isinstance(elicitations, list) else []:
        url = elicitation.get("url") if isinstance(elicitation, dict) else None
        if isinstance(url, str) and is_http_url(url) and is_one_word(url):
            return url
    return None
