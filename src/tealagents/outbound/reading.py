"""HTTP clients with bounded answers: limits on bytes, headers and time.

Every answer, whatever its status and type:

- is requested uncompressed (`Accept-Encoding: identity`). Some services compress all the same: one layer of
  gzip or deflate is unpacked as it is counted. Other encodings, and layers of them, are refused: 3 KB of gzip
  within gzip can expand to gigabytes. An answer that is no success has `ENCODED` in place of such a body,
  since its status says whether the request was carried out;
- is counted as it arrives and as it is unpacked, and abandoned beyond `limit` bytes, or after `seconds`;
- may have at most `MAX_HEADERS` bytes of headers;
- comes from the requested server: no redirect is followed. Loopback is called without a proxy.
"""

import asyncio
import codecs
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import httpx2
import msgspec

from tealagents.domain.json_limits import too_slow
from tealagents.domain.models import Json
from tealagents.outbound.addresses import proxy_for

#: most bytes of an answer's body, unless the caller sets another `limit`
MAX_ANSWER = 4_000_000
#: most bytes of an answer's headers
MAX_HEADERS = 65_536
#: the body of an answer that is no success, if its own is in an encoding that is not read
ENCODED = b"(its explanation is encoded)"


class Unacceptable(httpx2.TransportError):
    """An answer that is not read, or not read to its end. The text says why, without quoting the answer."""


class Unsendable(Unacceptable):
    """The request could not be sent, so there is no answer."""


class AnswerTooLarge(Unacceptable):
    """An answer that has more than `limit` bytes."""


class Fetched(NamedTuple):
    """An answer that has been read."""

    status: int
    reason: str
    headers: httpx2.Headers
    content: bytes
    #: whether `content` is only the beginning, as the answer is too large
    cut: bool = False

    @property
    def media_type(self) -> str:
        """The media type in lower case, without parameters; empty if the server names none."""
        return essence(self.headers.get("content-type", ""))

    @property
    def charset(self) -> str:
        """Python's name of the charset that the server declares; "utf-8" if it declares no known one."""
        return charset_of(self.headers.get("content-type", "")) or "utf-8"


def essence(media_type: str) -> str:
    """Type and subtype of a media type in lower case, without parameters."""
    return media_type.partition(";")[0].strip().lower()


def charset_of(media_type: str) -> str | None:
    """Python's name of the charset that a media type declares; None if it declares none that is known.

    Only names of text encodings count: Python has other codecs, some of which take hours for a megabyte
    (`punycode`).
    """
    named = CHARSET.search(media_type[:500])
    try:
        return codecs.lookup(named[1]).name if named and _TEXT.match(named[1]) else None
    except LookupError:
        return None


#: the parameter of a media type
CHARSET = re.compile(r';\s*charset="?([\w.:-]+)"?', re.IGNORECASE | re.ASCII)
_TEXT = re.compile(r"utf|us|ascii|iso|latin|windows|cp|big5|gb|euc|shift|koi8|mac", re.IGNORECASE)


def refusal(headers: Iterable[tuple[bytes, bytes]], encodings: Iterable[str]) -> str | None:
    """Why an answer with these headers and content encodings must not be read; None if it may be."""
    if sum(len(name) + len(value) for name, value in headers) > MAX_HEADERS:
        return f"the headers of the answer are larger than {MAX_HEADERS:,} bytes"
    if any(encoding.strip().lower() not in ("", "identity") for encoding in encodings):
        return "the answer came in a content encoding, and none was asked for"
    return None


#: Many servers close idle connections after five seconds. These are closed earlier, so that no server closes
#: one just as a call is sent on it: the outcome of that call would be unknown.
_CONNECTIONS = httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=2)


class BoundedClient(httpx2.AsyncClient):
    """A client of the server at `url`.

    - `limit`: bytes of an answer's body
    - `seconds`: from sending a request to the last byte of its answer
    - `streams`: bodies of `text/event-stream` have no limit; their reader must limit each event
    - `proxy`: used in place of the environment's proxy if given, even as None (no proxy)
    """

    def __init__(
        self, url: str, *, seconds: float, limit: int = MAX_ANSWER, streams: bool = False, **options: Any
    ) -> None:
        options.setdefault("timeout", seconds)
        options.setdefault("limits", _CONNECTIONS)
        if options.setdefault("verify", True) is True:
            options["verify"] = _tls()
        if "proxy" not in options:
            options["proxy"] = proxy_for(url)
        super().__init__(trust_env=False, follow_redirects=False, **options)
        self._seconds = seconds
        self._limit = limit
        self._streams = streams

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Sends a request as `httpx2` does; also raises `Unacceptable`."""
        request.headers["accept-encoding"] = "identity"
        due = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(due):
                response = await super().send(request, stream=True, **options)
        except TimeoutError:
            raise _too_slow(self._seconds) from None
        except httpx2.LocalProtocolError:  # its text quotes the header, which may be a key
            raise Unsendable(
                "a header of the request contains a character that cannot be sent, such as a line break"
            ) from None
        try:
            await _leave_encoded(response)
            counted = not (self._streams and is_stream(response))
            packed = _check(response, may_be_packed=counted)
            if counted:
                response.stream = _CountedBody(response.stream, self._limit, due, self._seconds, packed)
            if not stream:
                await response.aread()
        except BaseException:
            await response.aclose()
            raise
        return response


class FromThread:
    """A blocking client for worker threads; requests are sent on the event loop that created it.

    It has the interface that msal expects of an HTTP client.
    """

    def __init__(self, client: BoundedClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()

    def get(self, url: str, **content: Any) -> httpx2.Response:
        return self.request("GET", url, **content)

    def post(self, url: str, **content: Any) -> httpx2.Response:
        return self.request("POST", url, **content)

    def request(self, method: str, url: str, **content: Any) -> httpx2.Response:
        """Blocks until the answer has been read completely. Raises `httpx2.HTTPError`."""
        sending = self._client.request(method, url, **content)
        return asyncio.run_coroutine_threadsafe(sending, self._loop).result()


async def fetch(
    client: BoundedClient, method: str, url: httpx2.URL | str, *, cut: bool = False, **content: Any
) -> Fetched:
    """Sends a request and reads the whole answer. Raises `httpx2.HTTPError` (with `Unacceptable`) and
    `httpx2.InvalidURL`.

    With `cut`, the beginning of an answer that is too large is returned in place of the error.
    """
    body, is_cut = bytearray(), False
    async with client.stream(method, url, **content) as response:
        try:
            async for chunk in response.aiter_raw():
                body += chunk
        except AnswerTooLarge:
            if not cut:
                raise
            is_cut = True
    return Fetched(response.status_code, response.reason_phrase, response.headers, bytes(body), is_cut)


def json_object(content: bytes) -> Json | None:
    """The JSON object in `content`; None if it is none, or one that would take too long to parse."""
    if too_slow(content):
        return None
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@cache
def _tls() -> ssl.SSLContext:
    """One TLS context for all clients: reading the certificates of the authorities takes 20 ms or more."""
    return httpx2.create_ssl_context()


def _check(response: httpx2.Response, *, may_be_packed: bool) -> bool:
    """Whether the answer has to be unpacked; its headers then no longer say so. `Unacceptable` for one that
    must not be read."""
    encodings = _encodings(response)
    packed = may_be_packed and encodings in _UNPACKED
    reason = refusal(response.headers.raw, () if packed else encodings)
    if reason is not None:
        raise Unacceptable(reason)
    if packed:
        del response.headers["content-encoding"]  # else `httpx2` would unpack it again
        response.headers.pop("content-length", None)
    return packed


async def _leave_encoded(response: httpx2.Response) -> None:
    """Puts `ENCODED` in place of the body of an answer that is no success, if it cannot be read."""
    if response.status_code < 300 or _encodings(response) in ([], *_UNPACKED):
        return
    body: Any = response.stream
    await body.aclose()
    response.stream = httpx2.ByteStream(ENCODED)
    for name in ("content-encoding", "content-length", "transfer-encoding"):
        response.headers.pop(name, None)
    response.headers["content-type"] = "text/plain"


def _encodings(response: httpx2.Response) -> list[str]:
    named = response.headers.get_list("content-encoding", split_commas=True)
    return [one for one in map(str.lower, named) if one not in ("", "identity")]


_UNPACKED = (["gzip"], ["x-gzip"], ["deflate"])
#: most bytes that are unpacked at once
_PIECE = 65_536


def is_stream(response: httpx2.Response) -> bool:
    """Whether an answer is a success with a body of server-sent events."""
    kind: str = response.headers.get("content-type", "")
    return response.status_code < 300 and kind.lower().startswith("text/event-stream")


def _too_slow(seconds: float) -> Unacceptable:
    return Unacceptable(f"no whole answer within {seconds:g} s")


class _CountedBody(httpx2.AsyncByteStream):
    """A body that raises `AnswerTooLarge` beyond `limit` bytes, and `Unacceptable` after `due` (loop time).
    If it is `packed`, the bytes before and after unpacking count."""

    def __init__(self, body: Any, limit: int, due: float, seconds: float, packed: bool) -> None:
        self._body: httpx2.AsyncByteStream = body
        self._limit = limit
        self._due = due
        self._seconds = seconds
        #: detects gzip and deflate by their headers
        self._unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32) if packed else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = size = 0
        chunks = aiter(self._body)
        while True:
            try:
                async with asyncio.timeout_at(self._due):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                if received and self._unpacking and not self._unpacking.eof:
                    raise Unacceptable("the compressed answer is incomplete") from None
                return
            except TimeoutError:
                raise _too_slow(self._seconds) from None
            received += len(chunk)
            for piece in self._pieces(chunk):
                size += len(piece)
                if max(size, received) > self._limit:
                    raise AnswerTooLarge(f"the answer is larger than {self._limit:,} bytes")
                yield piece

    def _pieces(self, chunk: bytes) -> Iterator[bytes]:
        """The chunk, or what it unpacks to: at least one piece, each of at most `_PIECE` bytes."""
        if self._unpacking is None:
            yield chunk
            return
        piece = None
        # a full piece may have left some output within zlib, after all input is consumed
        while piece is None or chunk or len(piece) == _PIECE:
            try:
                piece = self._unpacking.decompress(chunk, _PIECE)
            except zlib.error:
                raise Unacceptable("the compressed answer cannot be unpacked") from None
            if self._unpacking.unused_data:
                raise Unacceptable("the compressed answer has more than one part")
            chunk = self._unpacking.unconsumed_tail
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()
