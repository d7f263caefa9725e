"""OpenAPI plugins: each operation of a service's document is a tool.

Requests go to the plugin's `server_url` and nowhere else: no argument can name another host, redirects to
other origins are not followed, cookies are not kept (they would be one user's on another's request).
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Self

import httpx

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json
from tealagents.domain.ports import Governance, Tool, ToolContext, ToolSpec
from tealagents.tools.errors import ToolsetError
from tealagents.tools.naming import plugin_of, suggestion, tool_names
from tealagents.tools.oauth import AuthorizedContext
from tealagents.tools.openapi_document import Operation, operations, parsed, server_of
from tealagents.tools.openapi_request import Request, request_of
from tealagents.tools.options import RemotePluginOptions, is_http_url, shown
from tealagents.tools.results import bounded, described

logger = logging.getLogger(__name__)

#: bytes of a document, and of an answer that are read
MAX_DOCUMENT, MAX_ANSWER = 20_000_000, 4_000_000
#: characters of an error's body, and of a description, that the model is told
MAX_REASON, MAX_DESCRIPTION = 4_000, 4_000
MAX_REDIRECTS = 5
#: seconds that fetching a document may take
DOCUMENT_TIMEOUT = 30.0
#: methods that change nothing, so that a lost answer loses nothing
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_TEXTUAL = ("json", "xml", "yaml", "javascript", "x-www-form-urlencoded", "csv")


class OpenAPIPlugin:
    """The operations of one document. Entering it reads the document and opens the client."""

    def __init__(self, options: RemotePluginOptions) -> None:
        self._options = options
        self._tools: tuple[Tool, ...] = ()
        self._open = AsyncExitStack()

    @property
    def is_at_hand(self) -> bool:
        """Whether it is opened without asking a server: its document is a file."""
        return not is_http_url(self._options.openapi_json_path)

    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def __aenter__(self) -> Self:
        content = await _content(self._options.openapi_json_path)
        where = shown(self._options.openapi_json_path)
        # large documents take their time
        document = await asyncio.to_thread(parsed, content, where)
        found = await asyncio.to_thread(operations, document, where)
        chosen = _chosen(found, self._options, where)
        server = self._options.server_url or server_of(document)
        if server is None:
            raise ToolsetError(f"{where} names no absolute server URL. Set server_url.")
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(_client(self._options))
            service = _Service(self._options, server.rstrip("/"), client)
            names = tool_names(self._options.plugin_name, [one.function for one in chosen])
            self._tools = tuple(
                OpenAPITool(service, operation, name) for operation, name in zip(chosen, names, strict=True)
            )
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._open.aclose()


class OpenAPITool:
    """One operation."""

    def __init__(self, service: "_Service", operation: Operation, name: str) -> None:
        self._service = service
        self._operation = operation
        description = operation.description or f"{operation.method} {operation.path}"
        self.spec = ToolSpec(
            name=name,
            description=bounded(description, MAX_DESCRIPTION),
            parameters=operation.schema,
            governance=Governance(),
            timeout=service.options.timeout,
            plugin=plugin_of(service.options.plugin_name),
        )

    def check(self, arguments: Json) -> None:
        """`ToolFailed` where a call with these arguments would be refused before it does anything."""
        request_of(self._operation, arguments)

    async def call(self, context: ToolContext, arguments: Json) -> str:
        request = request_of(self._operation, arguments)
        return await self._service.answer(context, self._operation, request)


class _Service:
    """Sends requests to one server."""

    def __init__(self, options: RemotePluginOptions, url: str, client: httpx.AsyncClient) -> None:
        self.options = options
        self._url = url
        self._client = client

    async def answer(self, context: ToolContext, operation: Operation, request: Request) -> str:
        """The answer's text. `ToolFailed` for every other end."""
        authorization = await self._authorization(context)
        headers = _one_of_each(request.headers, authorization, self.options.headers)
        url = httpx.URL(self._url + request.target)
        place = f"{operation.method} {operation.path}"
        try:
            async with asyncio.timeout(self.options.timeout):
                return await self._sent(operation.method, url, headers, request, place)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise ToolFailed(
                f"{shown(self._url)} cannot be reached: {error or type(error).__name__}. Nothing was done."
            ) from error
        except (httpx.HTTPError, TimeoutError) as error:
            unknown = operation.method not in _SAFE
            raise ToolFailed(self._lost(operation.method, place, error), unknown=unknown) from error

    async def _authorization(self, context: ToolContext) -> dict[str, str]:
        """The user's token, only where the plugin's entry, or the catalogue, says so."""
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
        self, method: str, url: httpx.URL, headers: dict[str, str], request: Request, place: str
    ) -> str:
        for _ in range(MAX_REDIRECTS):
            async with self._client.stream(method, url, headers=headers, **request.body) as response:
                if not response.has_redirect_location:
                    return await _answer_text(response, place)
                url = _next(response, method, place)
        raise ToolFailed(f"{place} was redirected more than {MAX_REDIRECTS} times.")

    def _lost(self, method: str, place: str, error: Exception) -> str:
        reason = (
            f"no answer within {self.options.timeout:g} s"
            if isinstance(error, TimeoutError | httpx.TimeoutException)
            else str(error) or type(error).__name__
        )
        if method in _SAFE:
            return f"{place}: {reason}."
        return f"{place}: {reason}. Whether it was carried out is unknown; find out before it is repeated."


def _one_of_each(*sources: Mapping[str, str]) -> dict[str, str]:
    """The headers of all sources; of one that several give, the last."""
    return {name.lower(): value for source in sources for name, value in source.items()}


def _next(response: httpx.Response, method: str, place: str) -> httpx.URL:
    """Where a redirect within the origin leads."""
    target = response.url.join(response.headers["location"])
    same_origin = (target.scheme, target.host, target.port) == (
        response.url.scheme,
        response.url.host,
        response.url.port,
    )
    keeps_method = method in ("GET", "HEAD") or response.status_code in (307, 308)
    if not same_origin or not keeps_method:
        raise ToolFailed(f"{place} was redirected to {shown(str(target))}: not followed.")
    return target


async def _answer_text(response: httpx.Response, place: str) -> str:
    content, _ = await _read(response, MAX_ANSWER)
    status = f"{response.status_code} {response.reason_phrase}".strip()
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code >= 400:
        reason = bounded(content.decode(errors="replace"), MAX_REASON) if content else "no reason given"
        raise ToolFailed(f"{place} answered {status}: {reason}")
    if not content:
        return f"Done ({status}); the answer has no content."
    text = _decoded(content, media_type, response.charset_encoding)
    if text is None:
        return described(content, media_type or "application/octet-stream")
    return bounded(text)


def _decoded(content: bytes, media_type: str, charset: str | None) -> str | None:
    """The content as text, None where it is none."""
    if media_type.startswith("text/") or media_type.endswith(_TEXTUAL) or not media_type:
        try:
            return content.decode(charset or "utf-8", "replace" if media_type else "strict")
        except (LookupError, UnicodeDecodeError):
            return None
    return None


async def _read(response: httpx.Response, limit: int) -> tuple[bytes, bool]:
    """Up to `limit` bytes, and whether there were more."""
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > limit:
            return bytes(content[:limit]), True
    return bytes(content), False


def _client(options: RemotePluginOptions) -> httpx.AsyncClient:
    no_cookies = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
    return httpx.AsyncClient(
        headers={"Accept": "application/json, text/*;q=0.9, */*;q=0.5"},
        timeout=options.timeout,
        verify=options.verify_ssl,
        cookies=no_cookies,
        follow_redirects=False,
        limits=httpx.Limits(max_connections=100, max_keepalive_connections=20),
    )


def _chosen(found: list[Operation], options: RemotePluginOptions, where: str) -> list[Operation]:
    if options.operations is None:
        chosen = found
    else:
        there = {one.function: one for one in found}
        for name in options.operations:
            if name not in there:
                raise ToolsetError(f"{where} has no operation {name!r}.{suggestion(name, list(there))}")
        chosen = [there[name] for name in options.operations]
    if not chosen:
        raise ToolsetError(f"{where} has no operation.")
    return chosen


# --- the document --------------------------------------------------------------------------------


async def _content(place: str) -> bytes:
    """The document's bytes: of a file, or fetched once."""
    try:
        if not is_http_url(place):
            return await asyncio.to_thread(_file_content, Path(place))
        async with (
            asyncio.timeout(DOCUMENT_TIMEOUT),
            httpx.AsyncClient(follow_redirects=True, max_redirects=MAX_REDIRECTS) as client,
            client.stream("GET", place) as response,
        ):
            response.raise_for_status()
            content, cut = await _read(response, MAX_DOCUMENT)
    except (OSError, httpx.HTTPError) as error:
        raise ToolsetError(f"The OpenAPI document {shown(place)} cannot be read: {_reason(error)}") from error
    if cut:
        raise ToolsetError(f"The OpenAPI document {shown(place)} is larger than {MAX_DOCUMENT:,} bytes.")
    return content


def _reason(error: Exception) -> str:
    """An HTTP status in words of our own: those of the library quote the whole URL."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"{error.response.status_code} {error.response.reason_phrase}".strip()
    return str(error) or type(error).__name__


def _file_content(path: Path) -> bytes:
    if path.stat().st_size > MAX_DOCUMENT:
        raise ToolsetError(f"The OpenAPI document {path} is larger than {MAX_DOCUMENT:,} bytes.")
    return path.read_bytes()
