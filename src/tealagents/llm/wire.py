"""Sends calls and receives responses: the `openai` SDK's client on an HTTP client of our own.

The SDK adds the URL and the authorization to a request that is already encoded, and returns the response
unread. With a fixed key it does so only for the first call of each path: later calls reuse its URL and
headers, and differ only in the body and in the caller's headers. With a token provider, it is used for each
call. Importing the SDK takes most of a second, so this module is imported while the service starts (see
`service`).

The HTTP client is `aiohttp`, without the overhead of `httpx2`. It does not follow redirects (a model service
that has moved is reported, and gets neither the conversation nor the key), keeps no cookies (calls of
different users share this client), and uses the call's own deadlines. CPU milliseconds on one core for a
whole answer, and for 64 deltas in a burst: the SDK's `create()` 2.5 and 16; the same bytes through the SDK
over `httpx2` 1.4 and 2.1; through the SDK over `aiohttp` 0.7 and 1.1; 0.3 less once the address is known.
"""

import asyncio
import io
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp
import httpx2
from aiohttp.client_proto import ResponseHandler
from aiohttp.payload import TOO_LARGE_BYTES_BODY
from multidict import CIMultiDict
from yarl import URL

from tealagents.alarms import alarms
from tealagents.domain.errors import ModelFailed, ModelTimeout
from tealagents.llm.addressing import own_authorization, sdk_client
from tealagents.llm.credentials import provided_token
from tealagents.llm.deadlines import Deadlines
from tealagents.llm.failures import AttemptFailed, complaint_of_body, cut, quoted, refused, too_much
from tealagents.llm.frames import EventFrames, FrameTooLong
from tealagents.llm.options import OpenAIOptions
from tealagents.llm.retries import seconds_of
from tealagents.outbound.reading import refusal

_log = logging.getLogger(__name__)

#: the most bytes of an answer that is not streamed; far above any model's answer
MAX_ANSWER_BYTES = 8 * 1024 * 1024
#: the most bytes of a stream, in which each delta takes about 300 bytes of JSON
MAX_STREAM_BYTES = 64 * 1024 * 1024
#: the most bytes of a page of a conversation, which contains the images of its messages
MAX_PAGE_BYTES = 64 * 1024 * 1024
#: the most bytes of the body of a refusal
MAX_REFUSAL_BYTES = 64 * 1024
#: seconds to wait for the end of a response after its last event, so that its connection can be reused
LINGER = 0.25

#: a response of the SDK or of aiohttp
Response = TypeVar("Response")

_NO_TIMEOUTS = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)


class _Queue(list[Any]):
    """Replaces a `deque`, which takes at least 0.7 KB; aiohttp has three of them per stream."""

    def popleft(self) -> Any:
        return self.pop(0)

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


class _Protocol(ResponseHandler):
    """Resumes reading only if it was paused. Aiohttp's own protocol does so after every read, and calls its
    parser without data: 6 % of the CPU time of a slow stream."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._buffer = _Queue()  # type: ignore[assignment]

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused:
            super().resume_reading(resume_parser)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        protocol: type[ResponseHandler] = _Protocol
        self._factory = partial(protocol, loop=self._loop)


class Wire(httpx2.AsyncClient):
    """The HTTP client for the SDK: a connection pool for one service.

    Raises `AttemptFailed` for everything except a 2xx response, whose body is not read yet.
    """

    def __init__(self, base_url: str, proxy: str | None, secrets: tuple[str, ...]) -> None:
        # a transport that is never used: the default one would create a TLS context and a connection pool
        super().__init__(transport=httpx2.AsyncBaseTransport(), trust_env=False)
        self._root = base_url
        self._secrets = (*secrets, *_credentials_of(proxy))
        tls = httpx2.create_ssl_context() if base_url.startswith("https:") else True
        self._session = aiohttp.ClientSession(
            # the engine limits the number of concurrent calls
            connector=_Connector(limit=0, ssl=tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            # compression on the way would delay deltas, and compressed answers are not unpacked: a few bytes
            # may unpack to gigabytes
            headers={"accept-encoding": "identity"},
            auto_decompress=False,
            timeout=_NO_TIMEOUTS,
            proxy=proxy,
        )

    def build_request(self, method: str, url: httpx2.URL | str, **parts: Any) -> httpx2.Request:
        """The SDK's request, without the headers that describe this machine.

        This client has no headers or parameters of its own to add.
        """
        headers = httpx2.Headers(parts.get("headers"))
        for name in [name for name in headers if name.startswith("x-stainless-")]:
            del headers[name]
        return httpx2.Request(
            method,
            _parsed(url),
            content=parts.get("content"),
            headers=headers,
            params=parts.get("params"),
        )

    async def send(self, request: httpx2.Request, **_how: Any) -> httpx2.Response:
        """Sends a request that the SDK has completed."""
        headers = CIMultiDict(request.headers.multi_items())
        response = await self.deliver(request.method, _sendable(request.url), headers, request.content)
        return httpx2.Response(response.status, stream=ResponseBody(response), request=request)

    async def deliver(
        self, method: str, url: URL, headers: CIMultiDict[str], content: bytes
    ) -> aiohttp.ClientResponse:
        """Sends a request as it is. Returns once the headers of a 2xx response have arrived."""
        try:
            response = await self._session.request(
                method, url, headers=headers, data=_payload(content), allow_redirects=False
            )
        except (aiohttp.ClientError, OSError, ValueError) as failure:
            raise self._unreachable(failure) from None
        unreadable = refusal(response.raw_headers, response.headers.getall("content-encoding", ()))
        if response.status < 300 and unreadable is None:
            return response
        try:
            if response.status < 300:
                raise AttemptFailed(ModelFailed(f"The model service at {self._root}: {unreadable}."))
            # its status and headers decide, even if its body must not be read
            body = f"({unreadable})".encode() if unreadable else await _explanation(response)
            raise self._refusal(response, body)
        finally:
            response.close()

    async def aclose(self) -> None:
        await super().aclose()
        await self._session.close()

    def _unreachable(self, failure: Exception) -> AttemptFailed:
        trust = isinstance(failure, aiohttp.ClientSSLError)
        untrusted = isinstance(failure, aiohttp.ClientConnectorCertificateError)
        authority = (
            ", or name the authority in SSL_CERT_FILE, with all others that are needed" if untrusted else ""
        )
        why = quoted(f"{type(failure).__name__}: {failure}", self._secrets)
        return AttemptFailed(
            ModelFailed(
                f"The model service at {self._root} cannot be reached ({why}); check TA_BASE_URL{authority}."
            ),
            # a retry does not make a certificate or a URL valid
            passing=not trust and isinstance(failure, aiohttp.ClientConnectionError | OSError),
            reason=f"it cannot be reached ({type(failure).__name__})",
            not_taken=isinstance(failure, aiohttp.ClientConnectorError),
        )

    def _refusal(self, response: aiohttp.ClientResponse, body: bytes) -> AttemptFailed:
        headers = response.headers
        if response.status < 400:
            where = quoted(headers.get("location", ""), self._secrets)
            return AttemptFailed(
                ModelFailed(f"The model service redirects to {where}; set TA_BASE_URL to where it is."),
                reason=f"HTTP status {response.status}, a redirect",
            )
        return refused(
            complaint_of_body(
                body,
                status=response.status,
                content_type=headers.get("content-type", ""),
                request_id=headers.get("x-request-id") or headers.get("apim-request-id") or "",
            ),
            self._secrets,
            url=self._root,
            advice=headers.get("x-should-retry"),
            retry_after=seconds_of(headers.get("retry-after-ms"), headers.get("retry-after"), time.time()),
        )


class ResponseBody(httpx2.AsyncByteStream):
    """The body of a response that has not been read yet."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def aclose(self) -> None:
        self.response.close()


class ModelResponse:
    """A response that is being read within its call's deadlines. It must be closed."""

    def __init__(self, response: aiohttp.ClientResponse, deadlines: Deadlines) -> None:
        self.content_type = response.headers.get("content-type", "").lower()
        self._response = response
        if type(content := response.content) is aiohttp.StreamReader:  # not the one of all empty bodies
            content._buffer = _Queue(content._buffer)  # type: ignore[assignment]
            content._http_chunk_splits = _Queue(content._http_chunk_splits or ())  # type: ignore[assignment]
        self._deadlines = deadlines
        self._frames = EventFrames()
        self._received = 0
        self._alarms = alarms()
        #: the time since which the reader has been waiting for data; None while it is not waiting
        self._waiting_since: float | None = None
        self._look_at(deadlines.due(self._now()))

    def is_stream(self, *, asked: bool) -> bool:
        """Whether the response is a stream of events. Some services stream without being asked to, some do
        not although they were `asked`, and some declare the wrong content type for a stream."""
        if "event-stream" in self.content_type:
            return True
        return asked and not any(word in self.content_type for word in ("json", "html"))

    async def frames(self) -> list[bytes]:
        """Waits for events, and returns the data of one or more; an empty list at the end of the response.

        Only a complete event ends the wait: a service that sends single bytes, or comments, counts as silent.
        """
        self._wait()
        try:
            while data := await self._response.content.readany():
                self._received += len(data)
                if self._received > MAX_STREAM_BYTES:
                    raise too_much(f"its stream is longer than {MAX_STREAM_BYTES:,} bytes")
                if frames := self._frames.feed(data):
                    return frames
            return self._frames.rest()
        except FrameTooLong:
            raise AttemptFailed(ModelFailed("The model service sent an event that has no end.")) from None
        except (aiohttp.ClientError, OSError) as failure:
            failure.__traceback__ = None  # the response keeps it, and it would keep all who have waited
            raise _broken_off(failure) from None
        finally:
            self._waiting_since = None

    async def whole(self, most_bytes: int = MAX_ANSWER_BYTES) -> bytes:
        """Reads the whole body."""
        self._wait()
        parts = []
        size = 0
        while data := await self._read():
            parts.append(data)
            size += len(data)
            if size > most_bytes:
                raise too_much(f"it is larger than {most_bytes:,} bytes")
        return b"".join(parts)

    async def linger(self) -> None:
        """Waits up to `LINGER` seconds for the end of the response, so that its connection can be reused."""
        if not self._response.content.is_eof():
            with suppress(TimeoutError, AttemptFailed, ModelTimeout):
                async with asyncio.timeout(LINGER):
                    while await self._read():
                        pass

    def close(self) -> None:
        """Returns the connection to the pool if the response is at its end; otherwise, closes it."""
        self._alarms.unset(self)
        self._response.release() if self._response.content.is_eof() else self._response.close()

    async def _read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as failure:
            failure.__traceback__ = None  # as in `frames`
            raise _broken_off(failure) from None

    def _now(self) -> float:
        return self._alarms.loop.time()

    def _wait(self) -> None:
        """Begins a wait. Moves the next check forward if this wait is due before it, as after the first
        delta, when other deadlines apply."""
        self._waiting_since = now = self._now()
        due = self._deadlines.due(now)
        if due < self._looks_at:
            self._look_at(due)

    def _look_at(self, when: float) -> None:
        self._looks_at = when
        self._alarms.set(self, when)

    def look(self) -> None:
        """Ends the wait with an error if it is overdue. One alarm serves all waits of a response: a timer for
        each delta took a sixth of the CPU time of a slow stream."""
        now = self._now()
        if self._waiting_since is None:
            again = self._deadlines.recheck(now)
        else:
            again = self._deadlines.due(self._waiting_since)
            if now >= again:
                self._response.content.set_exception(self._deadlines.overdue(now))
                return
        self._look_at(again)


class Address(NamedTuple):
    """The URL of a path, and the headers that the SDK sends to it."""

    url: URL
    headers: CIMultiDict[str]

    @classmethod
    def of(cls, request: httpx2.Request, *, without: Mapping[str, str]) -> "Address":
        """The parts of a request that all requests to the same path share: everything except the caller's
        headers (`without`) and the length of the body."""
        headers = CIMultiDict(request.headers.multi_items())
        for name in (*without, "content-length"):
            headers.popall(name, None)
        return cls(_sendable(request.url), headers)

    def with_headers(self, more: Mapping[str, str]) -> CIMultiDict[str]:
        headers = self.headers.copy()
        headers.update(more)
        return headers


class ServiceConnection:
    """A connection to one service, through one client of the SDK.

    `deployment` is the deployment in the path of Azure's dated chat completions API.
    """

    def __init__(self, options: OpenAIOptions, proxy: str | None, deployment: str | None) -> None:
        if (provider := options.token_provider) is not None:
            options = options.model_copy(update={"token_provider": partial(provided_token, provider)})
        self._wire = Wire(options.base_url, proxy, options.secrets())
        self._client = sdk_client(options, self._wire, deployment)
        #: for absolute URLs: the SDK parses and joins relative paths again for each request
        self._root = str(self._client.base_url).rstrip("/")
        self._headers = own_authorization(options)
        self._signs_each = options.token_provider is not None
        self._defaults = {name.lower() for name in options.headers}
        self._addresses: dict[str, Address] = {}

    async def ask(
        self, path: str, body: bytes, headers: Mapping[str, str], deadlines: Deadlines
    ) -> ModelResponse:
        """Posts the body. Returns once an answer begins. Raises `AttemptFailed` or `ModelTimeout`."""
        address = self._addresses.get(path)
        if address is None:
            return ModelResponse(await _in_time(self._post(path, body, headers), deadlines), deadlines)
        sending = self._wire.deliver("POST", address.url, address.with_headers(headers), body)
        return ModelResponse(await _in_time(sending, deadlines), deadlines)

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Posts the body through the SDK, and caches the address if later calls can use it."""
        response = await self._client.post(
            self._root + path,
            cast_to=httpx2.Response,
            content=body,
            options={"headers": {**self._headers, **headers}},
        )
        # not if the caller's headers replaced configured ones, which the address would then lack
        if not self._signs_each and self._defaults.isdisjoint(name.lower() for name in headers):
            self._addresses[path] = Address.of(response.request, without=headers)
        return _response(response)

    async def get(self, path: str, deadlines: Deadlines) -> bytes:
        """The body at the path. Raises `AttemptFailed` or `ModelTimeout`."""
        return await self._whole(self._client.get, path, deadlines, MAX_PAGE_BYTES)

    async def delete(self, path: str, deadlines: Deadlines) -> bytes:
        """Deletes the resource at the path. Raises `AttemptFailed` or `ModelTimeout`."""
        return await self._whole(self._client.delete, path, deadlines, MAX_ANSWER_BYTES)

    async def _whole(
        self,
        send: Callable[..., Awaitable[httpx2.Response]],
        path: str,
        deadlines: Deadlines,
        most_bytes: int,
    ) -> bytes:
        """The body of the answer to a call without a body."""
        options = {"headers": self._headers}
        sending = send(self._root + path, cast_to=httpx2.Response, options=options)
        answer = ModelResponse(_response(await _in_time(sending, deadlines)), deadlines)
        try:
            return await answer.whole(most_bytes)
        finally:
            answer.close()

    async def aclose(self) -> None:
        await self._client.close()


async def _explanation(response: aiohttp.ClientResponse) -> bytes:
    """The body of a refusal, up to `MAX_REFUSAL_BYTES` and a little more."""
    try:
        body = await response.content.read(MAX_REFUSAL_BYTES)
        while len(body) < MAX_REFUSAL_BYTES and (more := await response.content.readany()):
            body += more
    except (aiohttp.ClientError, OSError):
        return b"(its explanation broke off)"
    return body


async def _in_time(response: Awaitable[Response], deadlines: Deadlines) -> Response:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout_at(deadlines.due(loop.time())):
            return await response
    except TimeoutError:
        raise deadlines.overdue(loop.time()) from None


def _broken_off(failure: Exception) -> AttemptFailed:
    return cut(f"the connection broke off ({quoted(str(failure))})")


def _response(response: httpx2.Response) -> aiohttp.ClientResponse:
    assert isinstance(response.stream, ResponseBody)  # made by `Wire.send`
    return response.stream.response


def _sendable(url: httpx2.URL) -> URL:
    return URL(str(url), encoded=True)


def _credentials_of(proxy: str | None) -> tuple[str, ...]:
    """The secret parts of a proxy's URL."""
    password = urlsplit(proxy).password if proxy is not None else None
    return (password,) if password else ()


def _payload(content: bytes) -> bytes | io.BytesIO | None:
    """A large body is sent in chunks, so that other requests are served in between."""
    return io.BytesIO(content) if len(content) > TOO_LARGE_BYTES_BODY else content or None


@lru_cache(maxsize=64)
def _parsed(url: httpx2.URL | str) -> httpx2.URL:
    """Cached, because parsing a URL takes as long as the rest of a request, and a service has few URLs."""
    return httpx2.URL(url)
