"""Between the rules, which do no I/O, and the two drivers, which do nothing else.

A *flow* is a generator that yields effects and is sent their outcomes. Each effect is a request to
the driver in one word; the functions below yield it and give its outcome the right type.

=========  =====================================================  ======================
effect     the driver                                             outcome
=========  =====================================================  ======================
`Fetch`    makes the call and reads the whole answer              `Reply` or `Lost`
`Open`     makes the call; an event stream is left open to read   `Reply` or `Lost`
`Receive`  waits for the next bytes of the open stream            bytes (none: its end) or `Lost`
`Close`    closes the open stream, if there is one                nothing
`Sleep`    waits                                                  nothing
`Emit`     hands one item to the caller                           nothing
=========  =====================================================  ======================
"""

import json
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, Literal, TypeVar

import httpx

from tealagents.client.errors import ProblemError, UnexpectedAnswer, problem_from_body

T = TypeVar("T")
E = TypeVar("E")

EVENT_STREAM = "text/event-stream"
#: as many streams at once as the caller opens; idle connections are left before a server that drops
#: them after five seconds, as many do, can do so under a call
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=2.0)

_ID = re.compile(r"[A-Za-z0-9_-]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds. `keepalive` is the service's `keepalive_seconds`."""

    connect: float = 5.0
    #: for the answer of a read or a small change
    call: float = 30.0
    #: for the JSON answer of a message, which comes whole when the model is done
    answer: float = 660.0
    #: how often the service says that a silent stream lives
    keepalive: float = 15.0

    @property
    def silence(self) -> float:
        """After so long without a byte a stream's connection is dead."""
        return 3 * self.keepalive


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request below the agent's prefix."""

    method: str
    path: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: which of the timeouts bounds the wait for bytes
    deadlines: Literal["call", "answer", "silence"] = "call"
    #: making it again does no harm even if the first was carried out
    repeatable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP answer. Of an event stream only the head: its body is received."""

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
            document = json.loads(self.body)
        except ValueError as error:
            raise UnexpectedAnswer(f"HTTP {self.status} with a body that is not JSON") from error
        if not isinstance(document, dict):
            raise UnexpectedAnswer(f"HTTP {self.status} with a body that is no JSON object")
        return document

    def problem(self) -> ProblemError:
        """The error that an answer outside 2xx stands for."""
        return problem_from_body(
            self.body,
            status=self.status,
            retry_after=seconds(self.headers.get("retry-after"), self.headers.get("date")),
            replayed=self.replayed,
        )


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer, or no end of one. `sent` is False where the service cannot have seen the call."""

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

#: rules that come to a result
Flow = Generator[Effect, Any, T]
#: rules that hand items to the caller on their way
Stream = Generator[Effect | Emit[E], Any, T]


def advance(flow: Stream[E, None], outcome: Outcome) -> Effect | Emit[E] | None:
    """Tell a flow what came of its last effect; its next one, or None when it has come to its end."""
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
    if token:
        headers["Authorization"] = f"Bearer {token}"
    content = None
    if call.body is not None:
        headers["Content-Type"] = "application/json"
        # ASCII, so that what no UTF-8 can hold reaches the service, which says what is wrong with it
        content = json.dumps(call.body, separators=(",", ":"), allow_nan=False).encode("ascii")
    return http.build_request(
        call.method,
        base_url + call.path,
        params=dict(call.query) or None,
        headers=headers,
        content=content,
        timeout=httpx.Timeout(
            timeouts.call, connect=timeouts.connect, read=getattr(timeouts, call.deadlines)
        ),
    )


def lost(error: httpx.RequestError) -> Lost:
    """What a failed exchange means. Raises it again where it is the caller's mistake, not the network's."""
    if isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol | httpx.TooManyRedirects):
        raise error
    unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return Lost(error, sent=not unsent)


def is_event_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == EVENT_STREAM


def seconds(retry_after: str | None, date: str | None) -> float | None:
    """What a `Retry-After` means in seconds: it is a number, or a time, measured from the answer's `Date`."""
    if not retry_after:
        return None
    if retry_after.strip().isdigit():
        return float(retry_after)
    try:
        then = parsedate_to_datetime(retry_after)
        now = parsedate_to_datetime(date) if date else datetime.now(then.tzinfo)
        return max(0.0, (then - now).total_seconds())
    except (ValueError, TypeError):
        return None


def segment(id: str) -> str:
    """`id` as one segment of a path; what could be read as more than one is refused."""
    if not _ID.fullmatch(id):
        raise ValueError(f"{id!r} is not an id of this service")
    return id
