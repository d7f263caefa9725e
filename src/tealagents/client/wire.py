"""Between the rules, which do no I/O, and the two drivers, which do nothing else.

A *flow* is a generator that yields effects and is sent their outcomes. Each effect is an instruction for the
driver; the functions below yield it and return its outcome with the right type.

=========  =====================================================  ======================
effect     the driver                                             outcome
=========  =====================================================  ======================
`Fetch`    makes the call and reads the whole answer              `Reply` or `Lost`
`Open`     makes the call; an event stream is left open to read   `Reply` or `Lost`
`Receive`  waits for the next bytes of the open stream            bytes (none: its end) or `Lost`
`Close`    closes the open stream, if there is one                nothing
`Sleep`    waits                                                  nothing
`Emit`     returns one item to the caller                         nothing
=========  =====================================================  ======================
"""

import json
import math
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, Literal, TypeVar

import httpx

from tealagents.client.errors import ProblemError, UnexpectedAnswer, decoded, is_id, problem_from_body

T = TypeVar("T")
E = TypeVar("E")

EVENT_STREAM = "text/event-stream"
#: any number of streams at once; idle connections are closed before a server that drops them after five
#: seconds, as many do, can do so during a call
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=2.0)
#: `mounts` for httpx: to a proxy, `localhost` is the proxy's own machine, and it would see the token
DIRECT: Mapping[str, None] = {f"all://{host}": None for host in ("localhost", "127.0.0.1", "[::1]")}

#: bytes of the slowest upload that is waited for
UPLOADED_PER_SECOND = 16_000

_PRINTABLE = re.compile(r"[ -~]+")
_SECONDS = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds without a byte; an upload is given one more for every 16,000 bytes. `math.inf` is no limit.

    `keepalive` is the service's `keepalive_seconds`.
    """

    connect: float = 5.0
    #: for the answer of a read or a small change
    call: float = 30.0
    #: for the JSON answer of a message, which comes when the model is done
    answer: float = 660.0
    #: the interval of the service's keepalives on a silent stream
    keepalive: float = 15.0

    @property
    def silence(self) -> float:
        """Seconds without a byte after which a stream's connection counts as dead."""
        return 3 * self.keepalive


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request below the agent's prefix."""

    method: str
    path: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: which of `Timeouts` bounds the wait for the next byte
    timeout: Literal["call", "answer", "silence"] = "call"
    #: seconds that this attempt may take at most
    most_seconds: float = math.inf
    #: repeating it is harmless even if the first was executed
    repeatable: bool = False
    #: it needs no token, and is sent without one
    anonymous: bool = False
    #: `body` as JSON, written once: each attempt sends the same, whatever the program changes meanwhile
    content: bytes | None = None

    def __post_init__(self) -> None:
        if self.content is None and self.body is not None:
            object.__setattr__(self, "content", _encoded(self.body))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP answer. Of an event stream only the head: its body is read by `Receive`."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_stream(self) -> bool:
        return self.status == 200 and is_event_stream(self.headers)

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed", "").lower() == "true"

    def document(self) -> dict[str, Any]:
        """The JSON object of a 2xx answer."""
        try:
            document = decoded(self.body)
        except ValueError as error:
            raise UnexpectedAnswer(f"HTTP {self.status} with a body that is not JSON") from error
        if not isinstance(document, dict):
            raise UnexpectedAnswer(f"HTTP {self.status} with a body that is not a JSON object")
        return document

    def problem(self) -> ProblemError:
        """The error of an answer outside 2xx."""
        return problem_from_body(
            self.body,
            status=self.status,
            retry_after=retry_after_seconds(self.headers.get("retry-after"), self.headers.get("date")),
            replayed=self.replayed,
        )


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer, or an incomplete one. `sent` is False where the service cannot have received the call."""

    error: Exception
    sent: bool = True


@dataclass(frozen=True, slots=True)
class Fetch:
    call: Call


@dataclass(frozen=True, slots=True)
class Open:
    call: Call


@dataclass(frozen=True, slots=True)
class Receive:
    pass


@dataclass(frozen=True, slots=True)
class Close:
    pass


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Emit(Generic[E]):
    item: E


#: what a driver carries out
Effect = Fetch | Open | Receive | Close | Sleep
Outcome = Reply | Lost | bytes | None

#: rules that return a result
Flow = Generator[Effect, Any, T]
#: rules that yield items to the caller
Stream = Generator[Effect | Emit[E], Any, T]


def advance(flow: Stream[E, None], outcome: Outcome) -> Effect | Emit[E] | None:
    """Send a flow the outcome of its last effect; the next effect, or None at its end."""
    try:
        return flow.send(outcome)
    except StopIteration:
        return None


def fetch(call: Call) -> Flow[Reply | Lost]:
    outcome: Reply | Lost = yield Fetch(call)
    return outcome


def open_stream(call: Call) -> Flow[Reply | Lost]:
    outcome: Reply | Lost = yield Open(call)
    return outcome


def receive() -> Flow[bytes | Lost]:
    outcome: bytes | Lost = yield Receive()
    return outcome


def sleep(seconds: float) -> Flow[None]:
    yield Sleep(seconds)


def build_request(
    http: httpx.Client | httpx.AsyncClient, base_url: str, call: Call, token: str, timeouts: Timeouts
) -> httpx.Request:
    """The same bytes for both drivers."""
    headers = {"Accept": "application/json", **call.headers}
    if token != "":
        headers["Authorization"] = _bearer(token)
    if call.content is not None:
        headers["Content-Type"] = "application/json"
    return http.build_request(
        call.method,
        base_url + call.path,
        params=dict(call.query) or None,
        headers=headers,
        content=call.content,
        timeout=httpx.Timeout(
            _finite(timeouts.call),
            connect=_finite(min(timeouts.connect, call.most_seconds)),
            read=_finite(min(getattr(timeouts, call.timeout), call.most_seconds)),
            # the asynchronous client of httpx bounds with it the upload of the whole body
            write=_finite(timeouts.call + len(call.content or b"") / UPLOADED_PER_SECOND),
        ),
    )


def _encoded(body: Any) -> bytes:
    """`ValueError` for what JSON cannot hold, or Python cannot write."""
    try:
        # ASCII: lone surrogates, which UTF-8 cannot hold, reach the service, which rejects them with a reason
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")
    except RecursionError as error:
        raise ValueError("what was to be sent is nested too deeply") from error


def _finite(seconds: float) -> float | None:
    """A timeout as httpx takes it: no socket can be given an infinite one."""
    return None if seconds == math.inf else seconds


def _bearer(token: str) -> str:
    """Checked here, because httpx would quote the token in its errors, or fail obscurely on an awaitable."""
    if not isinstance(token, str):
        raise TypeError(f"the token function returned {type(token).__name__}, not a string")
    if not _PRINTABLE.fullmatch(token.strip()):
        raise ValueError("the token is not one line of printable ASCII characters")
    return f"Bearer {token.strip()}"


def lost(error: httpx.RequestError) -> Lost:
    """The meaning of a failed exchange."""
    # ProxyError: the proxy refused to connect to the service
    unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
    return Lost(error, sent=not isinstance(error, unsent))


def is_event_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == EVENT_STREAM


def retry_after_seconds(retry_after: str | None, date: str | None) -> float | None:
    """A `Retry-After` in seconds: it is a number, or a time, relative to the answer's `Date`."""
    if not retry_after:
        return None
    if _SECONDS.fullmatch(retry_after.strip()):
        return float(retry_after)
    try:
        then = parsedate_to_datetime(retry_after)
        now = parsedate_to_datetime(date) if date else datetime.now(then.tzinfo)
        return max(0.0, (then - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def prefix(base_url: str) -> str:
    """The agent's prefix, without a slash at its end. `ValueError` for anything but an absolute HTTP URL."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{base_url!r} is not a URL: {error}") from None
    extras = url.userinfo or "?" in base_url or "#" in base_url
    if url.scheme not in ("http", "https") or not url.host or (url.port or 0) > 65535 or extras:
        # not quoted: it may hold a password
        raise ValueError(
            "this is not the URL of an agent, which is http(s)://host/name/version, "
            "without a user, a query or a fragment"
        )
    return base_url.rstrip("/")


def printable(text: str) -> str:
    """The value of a header. `ValueError` for what no header can hold, such as blanks at its ends."""
    if not _PRINTABLE.fullmatch(text) or text.strip() != text:
        raise ValueError(f"{text!r} is not one line of printable ASCII characters without blanks at its ends")
    return text


def segment(id: str) -> str:
    """`id` as one segment of a path. `ValueError` for anything that could be more than one."""
    if not is_id(id):
        raise ValueError(f"{id!r} is not an id of this service")
    return id
