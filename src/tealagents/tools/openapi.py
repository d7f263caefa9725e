"""OpenAPI plugins: each operation of a service's document is a tool.

Requests go to the plugin's `server_url` and nowhere else: neither the document nor an argument can name
another host, redirects out of its base path are not followed, cookies are not kept (they would be one user's
on another's request).
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Self
from urllib.parse import urljoin

import httpx2

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json
from tealagents.domain.ports import Governance, Tool, ToolContext, ToolSpec
from tealagents.domain.texts import bounded
from tealagents.outbound.addresses import is_http_url, same_origin, shown
from tealagents.outbound.reading import BoundedClient, Fetched, Unsendable, fetch
from tealagents.tools.errors import ToolsetError, may_be_done
from tealagents.tools.naming import excerpt, listed, plugin_of, tool_names
from tealagents.tools.oauth_context import AuthorizedContext
from tealagents.tools.openapi_document import ApiOperation, cookie_names, leaves_base, operations, server_of
from tealagents.tools.openapi_parsing import parsed
from tealagents.tools.openapi_request import ApiRequest, request_of
from tealagents.tools.options import RemotePluginOptions
from tealagents.tools.results import described_bytes
from tealagents.tools.schema_check import check_against
from tealagents.tools.user_tokens import TOKEN_SECONDS, in_time

logger = logging.getLogger(__name__)

#: bytes of a document, and of an answer that are read
MAX_DOCUMENT, MAX_ANSWER = 20_000_000, 4_000_000
#: characters of an error's body, and of a description, that the model is sent
MAX_REASON, MAX_DESCRIPTION = 4_000, 4_000
MAX_REDIRECTS = 5
#: seconds that fetching a document may take
DOCUMENT_TIMEOUT = 30.0
#: methods that change nothing, so that a lost answer loses nothing
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_UNKNOWN = "Whether it was carried out is unknown; find out before it is repeated."
#: seconds or a date
_DELAY = re.compile(r"[\w ,:+-]{1,40}", re.ASCII)
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_TEXTUAL = ("json", "xml", "yaml", "javascript", "x-www-form-urlencoded", "csv")


class _Unauthorized(ToolFailed):
    """The service refused the credentials (401): nothing was done."""


class OpenAPIPlugin:
    """The operations of one document, and their calls. Entering it reads the document."""

    def __init__(
        self,
        options: RemotePluginOptions,
        *,
        authorized: bool = False,
        trace_headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`authorized`: its calls may carry tokens that the catalogue's `auth` asked users for.
        `trace_headers`: those that continue the trace of the current call at the service."""
        self.options = options
        self._trace_headers = trace_headers
        self._secret = authorized or bool(
            options.headers or options.pass_user_token or options.on_behalf_of_scopes
        )
        self._tools: tuple[Tool, ...] = ()

    @property
    def is_at_hand(self) -> bool:
        """Whether it is opened without asking a server: its document is a file."""
        return not is_http_url(self.options.openapi_json_path)

    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def __aenter__(self) -> Self:
        content = await _content(self.options.openapi_json_path)
        where = shown(self.options.openapi_json_path)
        # large documents take their time
        document = await asyncio.to_thread(parsed, content, where)
        chosen = await asyncio.to_thread(
            operations, document, where, self.options.operations, self.options.headers
        )
        #: where requests go
        self._url = _server(self.options, document, where, secret=self._secret)
        _warn_of_other_servers(self.options, chosen, self._url, where)
        self._client = _client(self.options, self._url)  # which connects with the first call
        names = tool_names(self.options.plugin_name, [one.function for one in chosen])
        self._tools = tuple(
            OpenAPITool(self, operation, name) for operation, name in zip(chosen, names, strict=True)
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()

    # --- calls ---

    async def answer(self, context: ToolContext, operation: ApiOperation, request: ApiRequest) -> str:
        """The answer's text. Raises `NeedsAuthorization` if the service refuses the user's token, and
        `ToolFailed` for every other failure."""
        try:
            return await self._answer(context, operation, request)
        except _Unauthorized:
            if not isinstance(context, AuthorizedContext) or self._has_credentials():
                raise
            # one more attempt, with another token
            await in_time(context.renew())
        return await self._answer(context, operation, request)

    def _has_credentials(self) -> bool:
        """Whether the plugin's entry, which overrides the catalogue, sets the credentials."""
        fixed = any(header.lower() == "authorization" for header in self.options.headers)
        return fixed or self.options.pass_user_token or bool(self.options.on_behalf_of_scopes)

    async def _answer(self, context: ToolContext, operation: ApiOperation, request: ApiRequest) -> str:
        authorization = await in_time(self._authorization(context))
        headers = _one_of_each(request.headers, authorization, self.options.headers)
        trace = self._trace_headers()
        if trace.keys().isdisjoint(headers):  # else the operation continues a trace of its own
            headers.update(trace)
        url = self._target(operation, request)
        try:
            async with asyncio.timeout(self.options.timeout):
                return await self._sent(operation, url, headers, request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            raise ToolFailed(
                f"{shown(self._url)} cannot be reached: {error or type(error).__name__}. Nothing was done."
            ) from error
        except Unsendable as error:
            raise ToolFailed(f"{operation}: {error}. Nothing was done.") from error
        except (httpx2.HTTPError, TimeoutError) as error:
            reason = (
                f"no answer within {self.options.timeout:g} s"
                if isinstance(error, TimeoutError | httpx2.TimeoutException)
                else str(error) or type(error).__name__
            )
            unknown = operation.method not in _SAFE
            said = f"{operation}: {reason}." + (f" {_UNKNOWN}" if unknown else "")
            raise ToolFailed(said, unknown=unknown) from error

    def _target(self, operation: ApiOperation, request: ApiRequest) -> httpx2.URL:
        """The URL of a request, which must have the server's origin and lie within its base. `ToolFailed`."""
        base = httpx2.URL(self._url)
        try:
            url = httpx2.URL(self._url + request.target)
        except httpx2.InvalidURL as error:
            raise ToolFailed(f"{operation} cannot be called: {error}. Nothing was done.") from error
        same_userinfo = url.userinfo == base.userinfo
        if not (same_userinfo and _is_within(base, url) and not leaves_base(request.target)):
            raise ToolFailed(f"{operation} cannot be called: its path would leave {shown(self._url)}.")
        return url

    async def _authorization(self, context: ToolContext) -> dict[str, str]:
        """The user's token, if the plugin's entry or the catalogue asks for it."""
        if self.options.pass_user_token:
            token = await context.user_token(())
        elif self.options.on_behalf_of_scopes:
            token = await context.user_token(self.options.on_behalf_of_scopes)
        elif isinstance(context, AuthorizedContext):
            token = context.granted_token
        else:
            return {}
        return {"authorization": f"Bearer {token}"}

    async def _sent(
        self, operation: ApiOperation, url: httpx2.URL, headers: httpx2.Headers, request: ApiRequest
    ) -> str:
        for _ in range(1 + MAX_REDIRECTS):
            answer = await fetch(
                self._client, operation.method, url, cut=True, headers=headers, **request.body
            )
            if not _is_redirect(answer):
                return _answer_text(answer, url, operation)
            url = _next(httpx2.URL(self._url), url, answer, operation)
        raise ToolFailed(f"{operation} was redirected more than {MAX_REDIRECTS} times.")


class OpenAPITool:
    """One operation."""

    def __init__(self, plugin: OpenAPIPlugin, operation: ApiOperation, name: str) -> None:
        self._plugin = plugin
        self._operation = operation
        self.spec = ToolSpec(
            name=name,
            description=bounded(operation.description or str(operation), MAX_DESCRIPTION),
            parameters=operation.schema,
            governance=Governance(),
            timeout=plugin.options.timeout,
            waits=TOKEN_SECONDS,
            plugin=plugin_of(plugin.options.plugin_name),
        )

    def check(self, arguments: Json) -> None:
        """`ToolFailed` if no request can be made from the arguments, or if they violate the schema.

        Only edits of approvers are checked against the schema, since an approver has to know what will run.
        The model's arguments are left to the service, which may convert them.
        """
        request_of(self._operation, arguments)
        schema = self.spec.parameters
        # as in a request, null means absent
        absent = {name for name, value in arguments.items() if value is None} - {*schema.get("required", ())}
        check_against(schema, {name: one for name, one in arguments.items() if name not in absent})

    async def call(self, context: ToolContext, arguments: Json) -> str:
        request = request_of(self._operation, arguments)
        return await self._plugin.answer(context, self._operation, request)


def _one_of_each(*sources: Mapping[str, str]) -> httpx2.Headers:
    """The headers and cookies of all sources; a later source overrides an earlier one."""
    headers: dict[str, str] = {}
    for name, value in (header for source in sources for header in source.items()):
        key = name.lower()
        headers[key] = _cookies(headers[key], value) if key == "cookie" and key in headers else value
    return httpx2.Headers(headers, encoding="latin-1")  # by itself it takes ASCII only


def _cookies(former: str, latter: str) -> str:
    """The cookies of two headers; of those with one name, the latter's."""
    names = cookie_names(latter)
    kept = [cookie for cookie in former.split("; ") if cookie_names(cookie).isdisjoint(names)]
    return "; ".join([latter.rstrip("; "), *kept])


def _is_redirect(answer: Fetched) -> bool:
    return answer.status in (301, 302, 303, 307, 308) and "location" in answer.headers


def _is_within(base: httpx2.URL, url: httpx2.URL) -> bool:
    """Whether a URL has the origin of a base and lies below its path."""
    same_origin = (url.scheme, url.host, url.port) == (base.scheme, base.host, base.port)
    below = url.path.startswith(base.path.rstrip("/") + "/")
    return same_origin and below and not leaves_base(url.raw_path.decode())


def _next(base: httpx2.URL, url: httpx2.URL, answer: Fetched, operation: ApiOperation) -> httpx2.URL:
    """The target of a redirect that stays within the server's base. `ToolFailed` for any other."""
    location = answer.headers["location"]
    try:
        target = url.join(location)
    except httpx2.InvalidURL:
        raise ToolFailed(f"{operation} was redirected to what is not a URL: not followed.") from None
    keeps_method = operation.method in ("GET", "HEAD") or answer.status in (307, 308)
    if keeps_method and _is_within(base, target) and not target.userinfo:
        return target
    where = f"{operation} was redirected to {shown(str(target))}: not followed."
    if keeps_method:
        raise ToolFailed(where)
    raise ToolFailed(f"{where} {_UNKNOWN}", unknown=True)  # many services redirect when they are done


def _answer_text(answer: Fetched, url: httpx2.URL, operation: ApiOperation) -> str:
    status, content = f"{answer.status} {answer.reason}".strip() + _hints(answer, url), answer.content
    if answer.status >= 300:
        given = content.decode(answer.charset, "replace") or "no reason given"
        reason = bounded(given, MAX_REASON, more=answer.cut)
        said = f"{operation} answered {status}: {reason}"
        redirected = answer.status < 400 and answer.status not in (307, 308)  # these want it repeated
        if operation.method not in _SAFE and (redirected or may_be_done(answer.status, answer.headers)):
            raise ToolFailed(f"{said}\n{_UNKNOWN}", unknown=True)
        if answer.status == 401:
            raise _Unauthorized(said)
        raise ToolFailed(said)
    if not content:
        return f"Done ({status}); the answer has no content."
    text = _decoded(content, answer.media_type, answer.charset)
    if text is None:
        return described_bytes(content, answer.media_type or "application/octet-stream", more=answer.cut)
    return bounded(text, more=answer.cut)


def _hints(answer: Fetched, url: httpx2.URL) -> str:
    """When to call again, and where what was created or accepted can be found, if within the origin."""
    hints = ""
    again = answer.headers.get("retry-after", "")
    if _DELAY.fullmatch(again):
        hints += f", Retry-After: {again}"
    if answer.status in (201, 202) and "location" in answer.headers:
        place = _joined(str(url), answer.headers["location"])
        if same_origin(place, str(url)):
            hints += f", Location: {excerpt(shown(place), MAX_REASON)}"
    return hints


def _joined(base: str, url: str) -> str:
    """The absolute form of a URL that may be relative to the base; a malformed one as it is."""
    try:
        return urljoin(base, url)
    except ValueError:
        return url


def _decoded(content: bytes, media_type: str, charset: str) -> str | None:
    """The content as text; None if it is not text. Content of an unknown type has to look like text."""
    is_text = media_type.startswith("text/") or media_type.endswith(_TEXTUAL)
    if not is_text and media_type and not media_type.startswith("application/"):
        return None
    try:
        text = content.decode(charset, "replace" if is_text else "strict")
    except (LookupError, UnicodeDecodeError):
        return None
    return text if is_text or not _CONTROLS.search(text) else None


def _client(options: RemotePluginOptions, url: str) -> BoundedClient:
    return BoundedClient(
        url,
        seconds=options.timeout,
        limit=MAX_ANSWER,
        headers={"Accept": "application/json, text/*;q=0.9, */*;q=0.5"},
        verify=options.verify_ssl,
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),
    )


def _server(options: RemotePluginOptions, document: Json, where: str, *, secret: bool) -> str:
    """The URL that requests go to. A fetched document may name its own origin only, and no document may
    choose a server that is sent secrets."""
    if options.server_url is not None:
        return _base(options.server_url)
    named = server_of(document, where)
    if named is None:
        raise ToolsetError(f"{where} names no absolute server URL. Set server_url.")
    if is_http_url(options.openapi_json_path):
        if not same_origin(named, options.openapi_json_path):
            raise ToolsetError(f"{where} names a server elsewhere, {shown(named)}. Set server_url to use it.")
    elif secret:
        raise ToolsetError(f"{where} must not choose who is sent credentials. Set server_url.")
    return _base(named)


def _warn_of_other_servers(
    options: RemotePluginOptions, chosen: Sequence[ApiOperation], server: str, where: str
) -> None:
    """Warns of operations that belong to another server than requests go to."""
    if options.server_url is not None and len({one.servers for one in chosen}) == 1:
        return  # the operator chose a server for these
    others = [
        f"{one.function} ({shown(one.servers[0])})"
        for one in chosen
        if one.servers and server not in [_joined(f"{server}/", url).rstrip("/") for url in one.servers]
    ]
    if others:
        logger.warning(
            "%s names other servers for %s, and requests go to %s all the same. Put the operations of each "
            "server in an entry of its own, with server_url.",
            where,
            listed(others),
            shown(server),
        )


def _base(url: str) -> str:
    """The URL in the form that paths are appended to."""
    try:
        parts = httpx2.URL(url)
        port_exists = parts.port is None or 0 < parts.port < 65_536
        if parts.scheme in ("http", "https") and port_exists and not (parts.query or parts.fragment):
            return url.rstrip("/")
    except httpx2.InvalidURL:
        pass
    raise ToolsetError(
        f"{shown(url)} cannot be a server's URL: it needs a port that exists, and no query or fragment. Set "
        "server_url."
    )


# --- the document --------------------------------------------------------------------------------


async def _content(place: str) -> bytes:
    """The document's bytes: of a file, or fetched once."""
    if not is_http_url(place):
        return await asyncio.to_thread(_file_content, Path(place))
    try:
        async with BoundedClient(place, seconds=DOCUMENT_TIMEOUT, limit=MAX_DOCUMENT) as client:
            answer = await fetch(client, "GET", place)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise _unreadable(place, str(error) or type(error).__name__) from error
    if answer.status != 200:
        # in words of our own: those of the library quote the whole URL
        reason = f"{answer.status} {answer.reason}".strip()
        where = shown(answer.headers["location"]) if _is_redirect(answer) else ""
        raise _unreadable(place, f"{reason}, to {where}: name that URL" if where else reason)
    return answer.content


def _file_content(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_DOCUMENT:
            raise _unreadable(str(path), f"it is larger than {MAX_DOCUMENT:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(str(path), str(error)) from error


def _unreadable(place: str, reason: str) -> ToolsetError:
    return ToolsetError(f"The OpenAPI document {shown(place)} cannot be read: {reason}.")
