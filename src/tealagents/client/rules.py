"""The rules of the conversation with the service: what an answer means, when to repeat a call. No I/O.

Each method of `Rules` is a flow (see `wire`), which the two drivers, `aio` and `sync`, carry out.
`Position` is how far a stream has been read: it decides what an event, or the end of a connection, means.
"""

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeGuard, TypeVar

from tealagents.client import calls
from tealagents.client.documents import Accepted, Answer, Health, Json, RequestDocument, each, required, text
from tealagents.client.errors import (
    ClientError,
    ConnectionLost,
    NotFound,
    NotOwner,
    ProblemError,
    RequestInProgress,
    StillRunning,
    UnexpectedAnswer,
)
from tealagents.client.events import (
    ApprovalRequired,
    Failed,
    StreamEvent,
    Terminal,
    ending,
    event_number,
    failure,
    parse_event,
)
from tealagents.client.retry import Budget, Retry
from tealagents.client.sse import EventParser, EventTooLong, ServerSentEvent
from tealagents.client.wire import (
    Call,
    Close,
    Emit,
    Flow,
    Lost,
    Reply,
    Stream,
    Timeouts,
    fetch,
    open_stream,
    receive,
    segment,
    sleep,
)

T = TypeVar("T")
F = TypeVar("F", bound=ClientError)

#: why a call, or a connection, has to be repeated
Trouble = Lost | ProblemError

#: rejected before anything happened, so that any call can be repeated
REFUSED = frozenset({"overloaded", "draining", "auth_unavailable"})
#: what a gateway answers while the service is away
GATEWAY = frozenset({502, 503, 504})
UNFINISHED = frozenset({"Running", "Queued"})

FIRST_POLL, LONGEST_POLL = 0.1, 2.0
#: seconds that a call may take however little time is left
LEAST_ATTEMPT = 1.0


@dataclass(kw_only=True)
class Position:
    """How far a stream has been read."""

    session_id: str | None = None
    task_id: str | None = None
    request_id: str | None = None
    #: the highest event id so far
    last_event_id: int = 0
    #: the service is known to have the message: its events can be followed
    located: bool = False
    ended: bool = False
    #: the stream is that of an earlier request under the same idempotency key
    replayed: bool = False
    #: of the message that the stream began with
    idempotency_key: str | None = None
    #: a pause that ends the stream, unless it has been decided in the meantime and events follow
    _pause: ApprovalRequired | None = None

    def locate(self, found: Answer | ProblemError | StreamEvent) -> None:
        self.session_id = found.session_id or self.session_id
        self.task_id = found.task_id or self.task_id
        self.request_id = found.request_id or self.request_id
        self.located = self.request_id is not None

    def take(self, message: ServerSentEvent) -> StreamEvent | None:
        """The event to yield, if any: none unknown, none twice, no pause before it is known to be the end."""
        number = event_number(message)
        if number is not None and number <= self.last_event_id:
            return None
        event = parse_event(message)
        if isinstance(event, ApprovalRequired):
            self._pause = event
            return None
        self._pause = None
        self._pass(number, event)
        return event

    def close(self) -> StreamEvent | None:
        """The connection was closed cleanly: a pause that came last is the end."""
        pause, self._pause = self._pause, None
        if pause is not None:
            self._pass(pause.id, pause)
        return pause

    def lose(self) -> None:
        """The connection broke: whether a pause came last is unknown, so it is read again."""
        self._pause = None

    def closed_early(self) -> ClientError:
        """What reading on raises after the stream was closed, or an error was raised, before its end."""
        rest = f"; follow({self.request_id!r}, after={self.last_event_id}) continues it"
        closed = "this stream was closed before its end"
        return self.keyed(ClientError(closed + (rest if self.request_id else "")))

    def keyed(self, error: F) -> F:
        """The error, which knows the key of the message."""
        error.idempotency_key = error.idempotency_key or self.idempotency_key
        return error

    def _pass(self, number: int | None, event: StreamEvent | None) -> None:
        self.last_event_id = max(self.last_event_id, number or 0)
        if event is not None:
            self.locate(event)
            self.ended = isinstance(event, Terminal)


class Positioned:
    """What a stream's caller may know of its position."""

    _position: Position

    @property
    def session_id(self) -> str | None:
        return self._position.session_id

    @property
    def task_id(self) -> str | None:
        return self._position.task_id

    @property
    def request_id(self) -> str | None:
        return self._position.request_id

    @property
    def last_event_id(self) -> int:
        """The highest id so far: another process can `follow` the request from here."""
        return self._position.last_event_id


@dataclass(frozen=True, kw_only=True)
class Rules:
    retry: Retry = field(default_factory=Retry)
    timeouts: Timeouts = field(default_factory=Timeouts)
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random

    # --- one answer -----------------------------------------------------------------------------------

    def answer(self, call: Call) -> Flow[Answer]:
        """The answer to a message or a decision."""
        budget = self._budget()
        while True:
            reply = yield from self._exchange(call, budget)
            if reply.ok:
                answer = Answer.parse(reply.document())
                if answer.status not in UNFINISHED:
                    return answer
                return (yield from self._outcome(call, answer.request_id))
            problem = reply.problem()
            if not isinstance(problem, RequestInProgress):
                raise problem
            if problem.request_id is not None:
                return (yield from self._outcome(call, problem.request_id))
            yield from self._hold_on(problem, budget, call)

    def accepted(self, call: Call) -> Flow[Accepted]:
        """The ids of the request under the call's idempotency key."""
        reply = yield from self._exchange(call)
        if reply.ok:
            return Accepted.parse(reply.document())
        problem = reply.problem()
        if problem.request_id is None or not (problem.replayed or isinstance(problem, RequestInProgress)):
            raise problem
        found = yield from self.request(problem.request_id)
        return Accepted.parse(found.raw)

    def waited(self, request_id: str, timeout: float) -> Flow[Answer]:
        """Poll the request until it has ended or paused."""

        def look(budget: Budget) -> Flow[Answer | None]:
            request = yield from self.request(request_id, budget)
            return None if request.status in UNFINISHED else request.answer()

        return self._polled(look, request_id, timeout)

    def _outcome(self, call: Call, request_id: str) -> Flow[Answer]:
        """The answer of a request that runs, to the message or the decision that `call` is."""
        until = self.clock() + self.timeouts.answer
        try:
            return (yield from self.waited(request_id, self.timeouts.answer))
        except NotOwner:
            if _is_message(call):
                raise

        # an approver may not read the request: the decision, sent again, is answered with its outcome
        def look(budget: Budget) -> Flow[Answer | None]:
            answer = yield from self.document(call, Answer.parse, budget)
            return None if answer.status in UNFINISHED else answer

        return (yield from self._polled(look, request_id, until - self.clock()))

    def _polled(
        self, look: Callable[[Budget], Flow[Answer | None]], request_id: str, timeout: float
    ) -> Flow[Answer]:
        """Look until there is an answer."""
        until, pause = self.clock() + timeout, FIRST_POLL
        while True:
            answer = yield from look(self._budget(until))
            if answer is not None:
                return answer
            left = until - self.clock()
            if left <= 0:
                raise StillRunning(request_id, timeout)
            yield from sleep(min(pause, left))
            pause = min(LONGEST_POLL, pause * 1.5)

    def request(self, request_id: str, budget: Budget | None = None) -> Flow[RequestDocument]:
        call = calls.read(f"/requests/{segment(request_id)}")
        return self.document(call, RequestDocument.parse, budget)

    def document(self, call: Call, parse: Callable[[Json], T], budget: Budget | None = None) -> Flow[T]:
        """The document that answers `call`."""
        reply = yield from self._exchange(call, budget)
        if not reply.ok:
            raise reply.problem()
        return parse(reply.document())

    def named(self, id: str, call: Call, parse: Callable[[Json], T]) -> Flow[T]:
        """As `document`, but `UnexpectedAnswer` if the document lacks the field `id`.

        Lists do not check this, because a damaged record in a list may have no id.
        """

        def parsed(document: Json) -> T:
            required(document, id)
            return parse(document)

        return self.document(call, parsed)

    def erased(self, call: Call) -> Flow[None]:
        budget = self._budget()
        reply = yield from self._exchange(call, budget)
        if reply.status == 204:
            return
        if reply.ok:
            raise UnexpectedAnswer(f"HTTP {reply.status} in answer to a deletion")
        problem = reply.problem()
        # an earlier attempt may have deleted it, and its answer was lost
        if not (isinstance(problem, NotFound) and budget.in_doubt):
            raise problem

    def health(self) -> Flow[Health]:
        """The state of the service: one attempt, where a 503 with a state is an answer, too."""
        call = replace(calls.read("/health"), anonymous=True)
        outcome = yield from fetch(call)
        if isinstance(outcome, Lost):
            raise self._given_up(outcome, call) from outcome.error
        if outcome.ok:
            return Health.parse(outcome.document())
        problem = outcome.problem()
        if not isinstance(problem.raw.get("status"), str):
            raise problem
        return Health.parse(problem.raw)

    # --- lists ----------------------------------------------------------------------------------------

    def listed(self, path: str, parse: Callable[[Json], T], **query: str | None) -> Stream[T, None]:
        """All items of a list, page after page."""
        cursor: str | None = None
        while True:
            items, following = yield from self.document(calls.read(path, **query, cursor=cursor), _page)
            for item in items:
                yield Emit(parse(item))
            if following is None:
                return
            if following == cursor:
                raise UnexpectedAnswer(f"the list {path} names the same page as the next one")
            cursor = following

    # --- streams --------------------------------------------------------------------------------------

    def followed(self, start: Call, position: Position) -> Stream[StreamEvent, None]:
        """Events to the end, through any number of connections.

        `start` is repeated until the service is known to have it; after that the request's log is followed
        from the last event on.
        """
        budget = self._budget()
        while not position.ended:
            call = (
                calls.follow(position.request_id or "", position.last_event_id) if position.located else start
            )
            outcome = yield from open_stream(call)
            if isinstance(outcome, Lost):
                trouble: Trouble | None = outcome
            elif outcome.is_stream:
                position.replayed = position.replayed or outcome.replayed
                trouble = yield from self._read(position, budget)
            else:
                trouble = yield from self._without_stream(start, call, outcome, position)
            if trouble is not None:
                yield from self._hold_on(trouble, budget, start, position)

    def _read(self, position: Position, budget: Budget) -> Stream[StreamEvent, Trouble | None]:
        """Yield the events of the open connection. None: the stream has ended; else why it broke."""
        parser, opened, received = EventParser(), self.clock(), False
        while True:
            chunk = yield from receive()
            if isinstance(chunk, Lost) or not chunk:
                break
            received = True
            for event in _taken(parser, chunk, position):
                if _of_the_way(event):
                    position.ended = False
                    return event.error
                budget.renew()
                yield from _emitted(event, position)
                if position.ended:
                    return None
        if received and self.clock() - opened > self.retry.longest_delay:
            # a connection that lasted, perhaps with nothing but keepalives, is progress too
            budget.renew()
        if isinstance(chunk, Lost):
            position.lose()
            return chunk
        pause = position.close()
        if pause is None:
            return Lost(EOFError("the stream broke off before its last event"))
        yield from _emitted(pause, position)
        return None

    def _without_stream(
        self, start: Call, call: Call, reply: Reply, position: Position
    ) -> Stream[StreamEvent, ProblemError | None]:
        """Handle an answer that is no stream. None: connect again, unless the stream has ended."""
        if reply.status == 204 and position.request_id is not None:
            return (yield from self._settle(position))
        if reply.ok:
            answer = Answer.parse(reply.document())
            position.locate(answer)
            if answer.status not in UNFINISHED:
                yield from _end(ending(answer), position)
            return None
        problem = reply.problem()
        if isinstance(problem, RequestInProgress) and problem.request_id is not None:
            position.locate(problem)
            return None
        if position.located and isinstance(problem, NotFound):
            return (yield from self._settle(position))
        if isinstance(problem, NotOwner) and call.method != start.method and not _is_message(start):
            # an approver may not follow a request: the decision, sent again, gets the same stream as answer.
            # A message is not sent again: with a token that is another user's by now, it would be theirs
            position.located = False
            return problem
        if isinstance(problem, RequestInProgress) or may_repeat(call, problem):
            return problem
        raise problem

    def _settle(self, position: Position) -> Stream[StreamEvent, ProblemError | None]:
        """The log has no more events: the end is read from the request itself."""
        request = yield from self.request(position.request_id or "")
        if request.status in UNFINISHED:
            return RequestInProgress("the request is still running, but its event log has ended", status=409)
        if request.error is not None:
            yield from _end(failure(None, request.error.raw), position)
        else:
            yield from _end(ending(request.answer()), position)
        return None

    # --- repeating ---------------------------------------------------------------------------------

    def _exchange(self, call: Call, budget: Budget | None = None) -> Flow[Reply]:
        """The service's answer to `call`, repeated while that is safe and the budget lasts."""
        budget = budget or self._budget()
        while True:
            # no longer than the time that is left, but long enough for a service that is there
            most_seconds = max(LEAST_ATTEMPT, budget.until - self.clock())
            outcome = yield from fetch(replace(call, most_seconds=most_seconds))
            trouble = outcome if isinstance(outcome, Lost) or outcome.ok else outcome.problem()
            if isinstance(trouble, Reply):
                return trouble
            if not may_repeat(call, trouble):
                if isinstance(outcome, Lost):
                    raise self._given_up(outcome, call) from outcome.error
                if not call.repeatable and _of_gateway(trouble):
                    trouble.in_doubt = True
                    raise trouble
                return outcome
            yield from self._hold_on(trouble, budget, call)

    def _hold_on(
        self, trouble: Trouble, budget: Budget, call: Call, position: Position | None = None
    ) -> Flow[None]:
        """Wait before the next attempt; raise the trouble when none is left."""
        budget.in_doubt = budget.in_doubt or not _refused(trouble)
        asked = trouble.retry_after if isinstance(trouble, ProblemError) else None
        delay, left = budget.delay(asked), budget.until - self.clock()
        if delay is not None and left > (asked or 0):
            yield from sleep(min(delay, left))
        elif isinstance(trouble, ProblemError):
            raise trouble
        else:
            raise self._given_up(trouble, call, position) from trouble.error

    def _given_up(self, lost: Lost, call: Call, position: Position | None = None) -> ConnectionLost:
        reason = str(lost.error) or type(lost.error).__name__
        in_doubt = lost.sent and not call.repeatable
        look = "; what was asked may have been done: look before you repeat the call" if in_doubt else ""
        position = position or Position()
        return ConnectionLost(
            f"no answer from the service: {reason}{look}",
            in_doubt=in_doubt,
            request_id=position.request_id,
            last_event_id=position.last_event_id,
            idempotency_key=call.headers.get(calls.IDEMPOTENCY_KEY),
        )

    def _budget(self, until: float = math.inf) -> Budget:
        return Budget(self.retry, self.jitter, until=until)


def _is_message(call: Call) -> bool:
    return calls.IDEMPOTENCY_KEY in call.headers


def may_repeat(call: Call, trouble: Trouble) -> bool:
    """Whether repeating the call can succeed, and cannot execute it twice."""
    if _refused(trouble):
        return True
    if isinstance(trouble, Lost):
        return call.repeatable
    # a replayed failure is the outcome of the request, and stays so; `interrupted` is one, too
    if not call.repeatable or trouble.replayed or trouble.code == "interrupted":
        return False
    return trouble.status == 503 or _of_gateway(trouble)


def _refused(trouble: Trouble) -> bool:
    """Whether the call was not executed: it did not arrive, or was rejected before anything happened."""
    if isinstance(trouble, Lost):
        return not trouble.sent
    return trouble.status == 503 and trouble.code in REFUSED


def _of_gateway(trouble: Trouble) -> TypeGuard[ProblemError]:
    """Whether a gateway answered: the status is a gateway's, and the code is none of the service's."""
    return isinstance(trouble, ProblemError) and trouble.stands_for is None and trouble.status in GATEWAY


def _taken(parser: EventParser, chunk: bytes, position: Position) -> Iterator[StreamEvent]:
    try:
        messages = parser.feed(chunk)
    except EventTooLong as error:
        raise UnexpectedAnswer(str(error)) from error
    for message in messages:
        if (event := position.take(message)) is not None:
            yield event


def _of_the_way(event: StreamEvent) -> TypeGuard[Failed]:
    """Whether this is an error of reading the log (it has no id), rather than the end of the request."""
    return isinstance(event, Failed) and event.id is None and event.error.status == 503


def _emitted(event: StreamEvent, position: Position) -> Stream[StreamEvent, None]:
    if isinstance(event, Failed):
        position.keyed(event.error).replayed = position.replayed
    if position.ended:
        # before the last event is returned, since most callers stop reading there
        yield Close()
    yield Emit(event)


def _end(event: StreamEvent, position: Position) -> Stream[StreamEvent, None]:
    position.ended = True
    yield from _emitted(event, position)


def _page(document: Json) -> tuple[tuple[Json, ...], str | None]:
    if not isinstance(document.get("items"), list):
        raise UnexpectedAnswer("a list without `items`")
    return each(document, "items", lambda item: item), text(document, "next_cursor") or None
