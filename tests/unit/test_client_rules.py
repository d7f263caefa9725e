"""The client's rules without a network: cuts at every byte, and what may be asked again."""

import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tealagents import client
from tealagents.api.http import STATUSES
from tealagents.client import (
    Answer,
    Approval,
    ApprovalRequired,
    ClientError,
    ConnectionLost,
    CorruptState,
    Delta,
    Failed,
    Final,
    Interrupted,
    ModelError,
    NotFound,
    NotOwner,
    Overloaded,
    PersistenceUnavailable,
    ProblemError,
    Request,
    Retry,
    StillRunning,
    StreamEvent,
    TaskBusy,
    UnexpectedAnswer,
    calls,
)
from tealagents.client.calls import MessageOptions
from tealagents.client.documents import Accepted, RequestDocument
from tealagents.client.errors import problem_from_body, problem_from_document
from tealagents.client.operations import Operations
from tealagents.client.retry import Budget
from tealagents.client.rules import Position
from tealagents.client.wire import (
    Call,
    Close,
    Effect,
    Emit,
    Fetch,
    Flow,
    Lost,
    Open,
    Outcome,
    Receive,
    Reply,
    Sleep,
    Stream,
    Timeouts,
    build_request,
    retry_after_seconds,
)

IDS: dict[str, Any] = {
    name: str(uuid.UUID(int=n)) for n, name in enumerate(("session_id", "task_id", "request_id"), 1)
}
REQUEST = IDS["request_id"]
ANSWER = {**IDS, "status": "Completed", "content": {**IDS, "output": "a€b"}}
PAUSE = {**IDS, "status": "Paused", "content": {**IDS, "approval_id": "ap-1", "tool_calls": []}}
STREAM = {"content-type": "text/event-stream; charset=utf-8"}
LOST = Lost(httpx.ReadError("gone"))
UNSENT = Lost(httpx.ConnectError("refused"), sent=False)


def event(number: int, name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\nid: {number}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


LOG = [
    event(1, "request", {**IDS, "status": "Running"}),
    event(2, "partial-response", {**IDS, "output_partial": "a€"}),
    event(3, "tool-call", {**IDS, "call_id": "c", "tool": "S-t", "arguments": "{}"}),
    event(4, "partial-response", {**IDS, "output_partial": "b"}),
    event(5, "final-response", ANSWER),
]


def problem(status: int, code: str | None = None, *, headers: Mapping[str, str] = {}, **more: Any) -> Reply:
    document = {"status": status, "detail": "because", "code": code, **more}
    return Reply(status=status, headers=headers, body=json.dumps(document).encode())


def document(body: dict[str, Any], status: int = 200) -> Reply:
    return Reply(status=status, body=json.dumps(body).encode())


@dataclass
class Network:
    """Carries out effects against the answers of `serve`; the n-th connection breaks after cuts[n] bytes."""

    serve: Callable[[Call], Reply | Lost | list[bytes]]
    cuts: list[int] = field(default_factory=list)
    chunk: int = 61
    in_good_order: bool = False
    calls: list[Call] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    time: float = 0.0
    _open: Iterator[bytes | Lost] | None = None

    def perform(self, effect: Effect) -> Outcome:
        match effect:
            case Fetch(call):
                return self._answer(call)
            case Open(call):
                return self._opened(call)
            case Receive():
                assert self._open is not None
                return next(self._open, b"")
            case Sleep(seconds):
                self.slept.append(seconds)
                self.time += seconds
            case Close():
                self._open = None
        return None

    def _answer(self, call: Call) -> Reply | Lost:
        self.calls.append(call)
        answer = self.serve(call)
        assert not isinstance(answer, list)
        return answer

    def _opened(self, call: Call) -> Reply | Lost:
        self.calls.append(call)
        answer = self.serve(call)
        if not isinstance(answer, list):
            return answer
        self._open = self._bytes(b"".join(answer), self.cuts.pop(0) if self.cuts else None)
        return Reply(status=200, headers=STREAM)

    def _bytes(self, body: bytes, cut: int | None) -> Iterator[bytes | Lost]:
        for start in range(0, len(body[:cut]), self.chunk):
            yield body[:cut][start : start + self.chunk]
        if cut is not None and not self.in_good_order:
            yield LOST

    def operations(self, retry: Retry | None = None) -> Operations:
        return Operations(retry=retry or Retry(), clock=lambda: self.time, jitter=lambda: 0.0)

    def run(self, flow: Flow[Any]) -> Any:
        outcome: Outcome = None
        while True:
            try:
                outcome = self.perform(flow.send(outcome))
            except StopIteration as end:
                return end.value

    def read(self, stream: Stream[StreamEvent, None]) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        outcome: Outcome = None
        while True:
            try:
                step = stream.send(outcome)
            except StopIteration:
                return events
            outcome = None
            if isinstance(step, Emit):
                events.append(step.item)
            else:
                outcome = self.perform(step)

    def stream(self, position: Position | None = None) -> list[StreamEvent]:
        return self.read(self.operations().stream("hello", {}, position or Position()))


def after(call: Call) -> int:
    return int(call.headers.get("Last-Event-ID", 0))


def sending(*answers: Reply | Lost | list[bytes]) -> Callable[[Call], Reply | Lost | list[bytes]]:
    """These answers, one after the other; the last one for ever."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def log_service(again: Reply | None = None) -> Callable[[Call], Reply | Lost | list[bytes]]:
    """A service that has LOG; a message that comes again is answered with `again`, or the log replayed."""
    sent = itertools.count()

    def serve(call: Call) -> Reply | list[bytes]:
        if call.method == "GET":
            left = LOG[after(call) :]
            return left or Reply(status=204)
        return LOG if next(sent) == 0 or again is None else again

    return serve


IN_PROGRESS = problem(409, "request_in_progress", **IDS)


def shown(events: list[StreamEvent]) -> list[tuple[int | None, type[StreamEvent]]]:
    return [(event.id, type(event)) for event in events]


@pytest.mark.parametrize("again", [None, IN_PROGRESS], ids=["replayed", "in progress"])
@pytest.mark.parametrize("in_good_order", [False, True], ids=["reset", "closed"])
def test_a_cut_at_every_byte(again: Reply | None, in_good_order: bool) -> None:
    """Wherever the first connection breaks, the caller sees what an unbroken one would have shown."""
    whole = Network(log_service()).stream()
    assert [event.id for event in whole] == [1, 2, 3, 4, 5]
    for cut in range(len(b"".join(LOG)) + 1):
        network = Network(log_service(again), cuts=[cut], in_good_order=in_good_order)
        assert network.stream() == whole, cut
        keys = {call.headers.get("Idempotency-Key") for call in network.calls if call.method == "POST"}
        assert len(keys) == 1


@given(st.lists(st.integers(0, 1500), max_size=8), st.integers(1, 400), st.booleans())
def test_many_cuts(cuts: list[int], chunk: int, in_good_order: bool) -> None:
    """Any number of cuts, anywhere: no event is lost, none comes twice, one ends the stream."""
    network = Network(log_service(IN_PROGRESS), cuts=cuts, chunk=chunk, in_good_order=in_good_order)
    assert network.stream() == Network(log_service()).stream()


def test_progress_renews_the_budget() -> None:
    """A stream may break more often than the budget allows, as long as each connection brings something."""
    many = [event(n, "partial-response", {**IDS, "output_partial": "x"}) for n in range(1, 200)]
    log = [*many, event(200, "final-response", ANSWER)]
    network = Network(lambda call: log[after(call) :], cuts=[len(many[0]) + 10] * 150)
    assert len(network.stream()) == 200
    assert len(network.slept) == 150


def test_a_long_connection_is_progress() -> None:
    """A request that waits its turn for long, on connections that bring only keepalives, is waited for."""
    network = Network(sending([b": keepalive\n\n"]))
    minutes = iter(range(0, 6000, 30))
    keeping_alive = network.serve
    network.serve = lambda call: keeping_alive(call) if next(minutes) < 3000 else LOG[after(call) :]
    operations = Operations(clock=lambda: float(next(minutes)), jitter=lambda: 0.0)
    assert isinstance(network.read(operations.stream("hello", {}, Position()))[-1], Final)


@pytest.mark.parametrize("in_good_order", [False, True])
def test_a_connection_without_a_byte_is_no_progress(in_good_order: bool) -> None:
    """However long it lasts: a gateway that begins streams and passes nothing on is given up."""
    network = Network(sending(*[[b""]] * 30, LOG), cuts=[0] * 30, in_good_order=in_good_order)
    minutes = itertools.count(0.0, 60.0)
    operations = Operations(clock=lambda: next(minutes), jitter=lambda: 0.0)
    with pytest.raises(ConnectionLost):
        network.read(operations.stream("hello", {}, Position()))
    assert len(network.calls) == 11


def test_giving_up() -> None:
    """A service that is away for good ends in an error that knows where the stream can be taken up."""
    calls_made: list[Call] = []

    def serve(call: Call) -> Lost | list[bytes]:
        calls_made.append(call)
        return LOG if len(calls_made) == 1 else UNSENT

    network, position = Network(serve, cuts=[len(LOG[0] + LOG[1])]), Position()
    with pytest.raises(ConnectionLost, match="refused") as lost:
        network.stream(position)
    assert (lost.value.request_id, lost.value.last_event_id) == (REQUEST, 2)
    assert lost.value.idempotency_key == calls_made[0].headers["Idempotency-Key"]
    assert len(calls_made) == 11
    assert network.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0, 4.0, 4.0]


def test_refused_stream() -> None:
    """A refusal of the message is raised, and not tried again."""
    network = Network(sending(problem(409, "task_busy", headers={"retry-after": "3"}, **IDS)))
    with pytest.raises(TaskBusy) as busy:
        network.stream()
    assert (busy.value.request_id, busy.value.retry_after, len(network.calls)) == (REQUEST, 3.0, 1)


def test_failed_request() -> None:
    """A request that fails ends its stream with `Failed`; its jump of ids is no repeat."""
    end = event(1003, "error", {**IDS, "code": "interrupted", "status": 503, "detail": "It died."})
    events = Network(sending([LOG[0], LOG[1], end])).stream()
    assert shown(events) == [(1, Request), (2, Delta), (1003, Failed)]
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, Interrupted)


def test_pause_ends_a_stream() -> None:
    """A pause that is the last thing said is the end."""
    events = Network(sending([LOG[0], event(2, "approval-required", PAUSE)])).stream()
    assert shown(events) == [(1, Request), (2, ApprovalRequired)]
    assert isinstance(events[-1], ApprovalRequired)
    assert events[-1].approval.approval_id == "ap-1"


def test_decided_pause_is_passed_over() -> None:
    """A pause in a replay, decided meanwhile, is no end, wherever the connection breaks."""
    log = [LOG[0], event(2, "approval-required", PAUSE), event(3, "final-response", ANSWER)]
    for cut in range(len(b"".join(log))):
        network = Network(lambda call: log[after(call) :], cuts=[cut])
        assert shown(network.stream()) == [(1, Request), (3, Final)], cut


def test_unknown_events_and_bad_ones() -> None:
    """An event of a later version is passed over; data that is no JSON object is an error."""
    log = [LOG[0], event(2, "weather", {"rain": True}), event(3, "final-response", ANSWER)]
    assert shown(Network(sending(log)).stream()) == [(1, Request), (3, Final)]
    for data in (b"[]", b"{", b"7"):
        with pytest.raises(UnexpectedAnswer):
            Network(sending([b"event: request\nid: 1\ndata: " + data + b"\n\n"])).stream()


def test_trouble_with_the_log_is_not_the_end() -> None:
    """An error without an id, of a store that is away, is not the end of the request: reading continues."""
    away = json.dumps(
        {**IDS, "code": "persistence_unavailable", "status": 503, "detail": "The store is away."}
    )
    trouble = f"event: error\ndata: {away}\n\n".encode()
    network = Network(sending([*LOG[:2], trouble], [trouble], LOG[2:]))
    assert [event.id for event in network.stream()] == [1, 2, 3, 4, 5]
    network = Network(sending([LOG[0], trouble], [trouble]))
    with pytest.raises(PersistenceUnavailable):
        network.stream()
    corrupt = b'event: error\ndata: {"code": "corrupt_state", "status": 500}\n\n'
    assert shown(Network(sending([LOG[0], corrupt])).stream()) == [(1, Request), (None, Failed)]


@pytest.mark.parametrize(
    ("request_document", "kind"),
    [
        (ANSWER, Final),
        (PAUSE, ApprovalRequired),
        ({**IDS, "status": "Failed", "error": {"code": "model_error", "status": 502}}, Failed),
        ({**IDS, "status": "Canceled"}, Failed),
    ],
)
@pytest.mark.parametrize("empty", [Reply(status=204), problem(404, "not_found")], ids=["204", "404"])
def test_log_without_an_end(empty: Reply, request_document: dict[str, Any], kind: type[StreamEvent]) -> None:
    """If the log ends early, the request itself shows the end."""
    network = Network(lambda call: empty if call.path.endswith("/events") else document(request_document))
    position = Position(request_id=REQUEST, last_event_id=5, located=True)
    events = network.read(network.operations().follow(REQUEST, position))
    assert shown(events) == [(None, kind)]
    assert events[0].request_id == REQUEST


def test_follow_of_nothing() -> None:
    """A request that does not exist is an error, not an endless search."""
    network = Network(sending(problem(404, "not_found")))
    with pytest.raises(ProblemError, match="because"):
        network.read(network.operations().follow(REQUEST, Position(request_id=REQUEST, located=True)))


def test_resume_stream_starts_behind_the_pause() -> None:
    """What came before the pause is not shown again, even if the service sends it again."""
    log = [
        *LOG[:2],
        event(3, "tool-result", {**IDS, "call_id": "c", "tool": "t"}),
        event(4, "final-response", ANSWER),
    ]
    for cut in (0, 30, len(b"".join(log[:3]))):
        network = Network(lambda call: log[after(call) :], cuts=[cut])
        position = Position(request_id=REQUEST, last_event_id=2)
        events = network.read(network.operations().resume_stream(REQUEST, "approve", {}, position))
        assert [event.id for event in events] == [3, 4]


def test_an_approver_decides_again_instead_of_following() -> None:
    """One who may decide and not read gets the outcome all the same, and no event twice."""

    def serve(call: Call) -> Reply | list[bytes]:
        return problem(401, "not_owner") if call.method == "GET" else [LOG[0], LOG[4]]

    network = Network(serve, cuts=[len(LOG[0])])
    events = network.read(network.operations().resume_stream(REQUEST, "approve", {}, Position()))
    assert [event.id for event in events] == [1, 5]
    assert [call.method for call in network.calls] == ["POST", "GET", "POST"]
    for of_another in (serve, sending(problem(401, "not_owner"))):
        network = Network(of_another)
        with pytest.raises(NotOwner):
            network.read(network.operations().follow(REQUEST, Position(request_id=REQUEST, located=True)))
        assert len(network.calls) == 1
    network = Network(sending(problem(401, "not_owner")))
    with pytest.raises(NotOwner):
        network.read(network.operations().resume_stream(REQUEST, "approve", {}, Position()))
    assert len(network.calls) == 1


def test_a_message_whose_stream_may_not_be_followed_is_not_sent_again() -> None:
    """The token may be another user's by now, for whom it would be a new request."""

    def serve(call: Call) -> Reply | list[bytes]:
        return problem(401, "not_owner") if call.method == "GET" else [LOG[0]]

    network = Network(serve)
    with pytest.raises(NotOwner):
        network.stream()
    assert [call.method for call in network.calls] == ["POST", "GET"]


def test_a_message_that_is_answered_with_nothing_is_an_unexpected_answer() -> None:
    """An empty 204 is the answer of another server: no request is known whose end could be read."""
    network = Network(sending(Reply(status=204)))
    with pytest.raises(UnexpectedAnswer, match="HTTP 204"):
        network.stream()


def test_a_stream_answered_without_one() -> None:
    """An outcome sent as JSON, by a service or a proxy that does so, ends the stream as well."""
    assert shown(Network(sending(document(ANSWER))).stream()) == [(None, Final)]


# --- single answers -----------------------------------------------------------------------------------


def send(network: Network, options: MessageOptions | None = None) -> Answer:
    answer: Answer = network.run(network.operations().send("hello", options or {}))
    return answer


@pytest.mark.parametrize(
    "trouble",
    [
        LOST,
        UNSENT,
        problem(503, "overloaded", headers={"retry-after": "2"}),
        problem(503, "draining", headers={"retry-after": "2"}),
        problem(503, "persistence_unavailable", **IDS),
        problem(502),
        problem(502, "UPSTREAM_DOWN"),
        Reply(status=503, body=b"<html>nginx</html>"),
    ],
)
def test_sending_again(trouble: Reply | Lost) -> None:
    """Trouble on the way, or a service that is away, is overcome under one idempotency key."""
    network = Network(sending(trouble, trouble, document(ANSWER)))
    assert send(network).output == "a€b"
    assert len({call.headers["Idempotency-Key"] for call in network.calls}) == 1
    assert len(network.calls) == 3
    asked = 2.0 if isinstance(trouble, Reply) and trouble.headers else 0.0
    assert network.slept == [asked + 0.1, asked + 0.2]


def test_every_attempt_sends_the_same_message() -> None:
    """The program may change what it has passed: under the same key, another message would be refused."""
    sent: list[bytes] = []

    def serve(call: Call) -> Reply | Lost:
        sent.append(build_request(httpx.Client(), "http://host/A/1", call, "", Timeouts()).content)
        message["content"] = metadata["channel"] = "two"
        return LOST if len(sent) == 1 else document(ANSWER)

    for how in ("send", "background"):
        sent.clear()
        message, metadata = {"content_type": "text", "content": "one"}, {"channel": "one"}
        network = Network(serve)
        network.run(getattr(network.operations(), how)([message], {"metadata": metadata}))
        assert sent[0] == sent[1]
        assert b"two" not in sent[0]


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        (problem(429, "overloaded", headers={"retry-after": "1"}), Overloaded),
        (problem(409, "task_busy"), TaskBusy),
        (problem(502, "model_error"), ModelError),
        (problem(503, "interrupted"), Interrupted),
        (problem(503, "persistence_unavailable", headers={"idempotent-replayed": "true"}), ProblemError),
        (problem(503, "draining", headers={"retry-after": "7200"}), ProblemError),
        (problem(422, "invalid_request"), ProblemError),
        (Reply(status=404, body=b"<html>"), ProblemError),
        (Reply(status=307, headers={"location": "http://elsewhere/"}), ProblemError),
    ],
)
def test_not_sending_again(trouble: Reply, error: type[ClientError]) -> None:
    """A refusal, an outcome, and a `Retry-After` of hours are for the caller to decide."""
    network = Network(sending(trouble))
    with pytest.raises(error):
        send(network)
    assert len(network.calls) == 1


GATEWAY_TIMEOUT = Reply(status=504, body=b"<html>nginx</html>")
AWAY = problem(503, "persistence_unavailable")


def talk(network: Network, how: str) -> Any:
    return network.run(getattr(network.operations(), how)("hello", {}))


@pytest.mark.parametrize("how", ["send", "stream", "background"])
@pytest.mark.parametrize(
    "answers",
    [
        [GATEWAY_TIMEOUT],
        [IN_PROGRESS, GATEWAY_TIMEOUT],
        [IN_PROGRESS, UNSENT],
        [Reply(status=200, body=b"<html>")],
        [AWAY],
    ],
)
def test_what_is_raised_for_a_message_knows_its_key(how: str, answers: list[Reply | Lost]) -> None:
    """With another key it might run twice: an answer of a gateway does not say whether it runs."""
    network = Network(sending(*answers))
    ask = network.stream if how == "stream" else partial(talk, network, how)
    with pytest.raises(ClientError) as raised:
        ask()
    assert raised.value.idempotency_key == network.calls[0].headers["Idempotency-Key"]


def test_what_is_raised_for_another_call_has_no_key() -> None:
    """There is none to send it again with."""
    network = Network(sending(GATEWAY_TIMEOUT))
    with pytest.raises(ProblemError) as raised:
        network.run(network.operations().task("t"))
    assert raised.value.idempotency_key is None


def test_request_in_progress() -> None:
    """When the first attempt still runs its outcome is waited for, not made again."""
    running: dict[str, Any] = {**IDS, "status": "Running"}
    polls = iter([running, running, ANSWER])
    network = Network(lambda call: IN_PROGRESS if call.method == "POST" else document(next(polls)))
    assert send(network).output == "a€b"
    assert [call.method for call in network.calls] == ["POST", "GET", "GET", "GET"]


RUNNING = {**IDS, "status": "Running"}


def test_an_approver_decides_again_instead_of_waiting_for_what_they_may_not_read() -> None:
    """A decision whose answer was lost has its outcome all the same; a message is not sent again."""
    hidden = {**IDS, "status": "Completed", "content": None}
    decided = sending(LOST, *[document(RUNNING)] * 3, document(hidden))
    network = Network(lambda call: problem(401, "not_owner") if call.method == "GET" else decided(call))
    answer: Answer = network.run(network.operations().resume(REQUEST, "approve", {}))
    assert (answer.status, answer.output) == ("Completed", None)
    assert [call.method for call in network.calls] == ["POST", "POST", "GET", "POST", "POST", "POST"]
    assert network.slept == [0.1, 0.1, pytest.approx(0.15)]
    network = Network(lambda call: problem(401, "not_owner") if call.method == "GET" else document(RUNNING))
    with pytest.raises(NotOwner):
        send(network)
    assert [call.method for call in network.calls] == ["POST", "GET"]


def test_a_decision_is_not_repeated_for_longer_than_its_answer_is_waited_for() -> None:
    """The approver learns which request still runs."""
    network = Network(lambda call: problem(401, "not_owner") if call.method == "GET" else document(RUNNING))
    with pytest.raises(StillRunning) as still:
        network.run(network.operations().resume(REQUEST, "approve", {}))
    assert still.value.request_id == REQUEST
    assert network.time == pytest.approx(network.operations().timeouts.answer)


def test_request_in_progress_without_ids() -> None:
    """Where it is not said which request runs, the message is sent again."""
    network = Network(sending(problem(409, "request_in_progress"), document(ANSWER)))
    assert send(network).output == "a€b"


def test_waiting_has_a_limit() -> None:
    """Waiting ends at its timeout, and not a pause before it; the request continues."""
    network = Network(sending(document({**IDS, "status": "Running"})))
    with pytest.raises(StillRunning) as still:
        network.run(network.operations().wait(REQUEST, 10.0))
    assert isinstance(still.value, TimeoutError)
    assert still.value.request_id == REQUEST
    assert network.time == pytest.approx(10)


def test_waiting_for_a_service_that_is_away_ends_at_its_timeout() -> None:
    """The retries end with it; one that succeeds before that returns the answer."""
    network = Network(sending(document({**IDS, "status": "Running"}), LOST))
    with pytest.raises(ConnectionLost):
        network.run(network.operations().wait(REQUEST, 2.0))
    assert network.time == pytest.approx(2)
    network = Network(sending(LOST, document(ANSWER)))
    assert network.run(network.operations().wait(REQUEST, 2.0)).output == "a€b"


def test_waiting_asks_no_service_before_the_time_that_it_has_named() -> None:
    """Where that is behind the end of the wait, the trouble is raised at once."""
    network = Network(sending(problem(503, "overloaded", headers={"retry-after": "8"})))
    with pytest.raises(Overloaded):
        network.run(network.operations().wait(REQUEST, 3.0))
    assert (len(network.calls), network.time) == (1, 0)


def test_waiting_for_a_failure() -> None:
    """A request that failed raises its problem when it is waited for."""
    failed = {**IDS, "status": "Failed", "error": {"code": "model_error", "status": 502, "detail": "no"}}
    network = Network(sending(document(failed)))
    with pytest.raises(ModelError) as error:
        network.run(network.operations().wait(REQUEST, None))
    assert (error.value.status, error.value.detail, error.value.request_id) == (502, "no", REQUEST)


@pytest.mark.parametrize(
    "answer", [document({**IDS, "status": "Queued"}, 202), IN_PROGRESS, document(ANSWER)]
)
def test_background(answer: Reply) -> None:
    """The ids of a background request come back whether it was just begun, still runs, or has ended."""
    network = Network(sending(LOST, answer, document({**IDS, "status": "Queued"})))
    accepted: Accepted = network.run(network.operations().background("hello", {}))
    assert accepted.request_id == REQUEST
    assert accepted.status == ("Completed" if answer.ok and answer.status == 200 else "Queued")
    assert network.calls[0].headers["Prefer"] == "respond-async"


@pytest.mark.parametrize(
    ("status", "code", "ended"), [(502, "model_error", "Failed"), (409, "request_canceled", "Canceled")]
)
def test_background_of_one_that_has_ended(status: int, code: str, ended: str) -> None:
    """A request that was lost on the way is named as it stands, if it has failed or was canceled by now."""
    replayed = problem(status, code, headers={"idempotent-replayed": "true"}, **IDS)
    network = Network(sending(replayed, document({**IDS, "status": ended})))
    accepted: Accepted = network.run(network.operations().background("hello", {}))
    assert (accepted.request_id, accepted.status) == (REQUEST, ended)
    busy = Network(sending(problem(409, "task_busy", **IDS)))
    with pytest.raises(TaskBusy):
        busy.run(busy.operations().background("hello", {}))


def test_what_cannot_be_repeated() -> None:
    """A fork whose answer was lost is not made twice; one that never left, or was refused, is made again."""
    network = Network(sending(LOST))
    with pytest.raises(ConnectionLost):
        network.run(network.operations().fork("t", None, None))
    assert len(network.calls) == 1
    made = document({"task_id": "t2"}, 201)
    network = Network(sending(UNSENT, problem(503, "draining"), made))
    assert network.run(network.operations().fork("t", None, None)).task_id == "t2"
    network = Network(sending(problem(503, "persistence_unavailable")))
    with pytest.raises(ProblemError):
        network.run(network.operations().fork("t", None, None))


@pytest.mark.parametrize("what", ["delete_session", "rollback"])
def test_what_others_did_in_between_is_not_undone(what: str) -> None:
    """Repeated, a rollback would undo a later message, and a deletion a new task of the session."""

    def call(network: Network) -> Any:
        ask = network.operations()
        return network.run(ask.delete_session("s") if what == "delete_session" else ask.rollback("t", "c"))

    done = document({"task_id": "t"}) if what == "rollback" else Reply(status=204)
    for trouble, error in ((LOST, ConnectionLost), (problem(502), ProblemError), (AWAY, ProblemError)):
        network = Network(sending(trouble, done))
        with pytest.raises(error):
            call(network)
        assert len(network.calls) == 1
    network = Network(sending(UNSENT, problem(503, "draining"), done))
    call(network)
    assert len(network.calls) == 3
    with pytest.raises(NotFound):
        call(Network(sending(UNSENT, problem(404, "not_found"))))


@pytest.mark.parametrize(
    ("call", "in_doubt"),
    [
        (lambda ask: ask.fork("t", None, None), True),
        (lambda ask: ask.import_task({}), True),
        (lambda ask: ask.rollback("t", "c"), True),
        (lambda ask: ask.delete_session("s"), True),
        (lambda ask: ask.delete_task("t"), False),
        (lambda ask: ask.task("t"), False),
        (lambda ask: ask.health(), False),
    ],
)
def test_a_call_that_may_have_been_carried_out_is_in_doubt(
    call: Callable[[Operations], Any], in_doubt: bool
) -> None:
    """Its error says to look first; of one that was repeated, or that never left, it says nothing of this."""
    for answer, doubtful in ((LOST, in_doubt), (UNSENT, False)):
        network = Network(sending(*[answer] * 11))
        with pytest.raises(ConnectionLost) as lost:
            network.run(call(network.operations()))
        assert lost.value.in_doubt is doubtful
        assert str(lost.value).endswith("look before you repeat the call") is doubtful
    for status in (502, 503, 504):
        network = Network(sending(*[problem(status)] * 11))
        with pytest.raises(ProblemError) as away:
            network.run(call(network.operations()))
        assert away.value.in_doubt is in_doubt


@pytest.mark.parametrize("refusal", [problem(500), problem(403), AWAY, problem(503, "overloaded")])
def test_what_was_refused_is_not_in_doubt(refusal: Reply) -> None:
    """Nor is what the service says of itself: only a gateway does not know."""
    network = Network(sending(*[refusal] * 11))
    with pytest.raises(ProblemError) as refused:
        network.run(network.operations().fork("t", None, None))
    assert not refused.value.in_doubt


def test_deleted_already() -> None:
    """A delete whose answer was lost, and which finds nothing the second time, has worked."""
    network = Network(sending(LOST, problem(404, "not_found")))
    assert network.run(network.operations().delete_task("t")) is None
    with pytest.raises(ProblemError):
        network.run(network.operations().delete_task("t"))


@pytest.mark.parametrize("first", [problem(503, "draining"), UNSENT], ids=["refused", "not sent"])
def test_what_only_a_refused_attempt_could_have_deleted_is_not_found(first: Reply | Lost) -> None:
    """Nothing was deleted: the id is wrong, and saying that the deletion worked would hide it."""
    network = Network(sending(first, problem(404, "not_found")))
    with pytest.raises(NotFound):
        network.run(network.operations().delete_task("t"))
    network = Network(sending(LOST, first, problem(404, "not_found")))
    assert network.run(network.operations().delete_task("t")) is None


def test_a_page_in_answer_to_a_deletion() -> None:
    """What a proxy says with success has deleted nothing."""
    network = Network(sending(Reply(status=200, body=b"<html>sign in</html>")))
    with pytest.raises(UnexpectedAnswer, match="HTTP 200 in answer to a deletion"):
        network.run(network.operations().delete_task("t"))


@pytest.mark.parametrize(
    "body", [b"{}", b'{"status": "ok"}', b'{"request_id": "../me", "user": {"oid": ""}}']
)
def test_a_document_without_its_ids_did_not_come_from_this_service(body: bytes) -> None:
    """What a proxy or another service says with success is no task, request, session, pause or user."""
    network = Network(sending(Reply(status=200, body=body)))
    ask = network.operations()
    for flow in (
        *(ask.request("r"), ask.wait("r", None), ask.cancel("r"), ask.background("hello", {})),
        *(ask.task("t"), ask.patch_task("t", {}), ask.rollback("t", "c"), ask.fork("t", None, None)),
        *(ask.import_task({}), ask.session("s"), ask.approval("r", "a"), ask.me()),
    ):
        with pytest.raises(UnexpectedAnswer, match="is this the URL of an agent"):
            network.run(flow)


def test_a_pause_that_is_not_shown_still_ends_a_stream() -> None:
    """An approver who does not own the task learns that it pauses again, and not of what."""
    hidden = event(5, "approval-required", {**IDS, "status": "Paused", "content": None})
    *_, end = Network(sending([event(4, "request", IDS), hidden])).stream()
    assert isinstance(end, ApprovalRequired)
    shown_of_it = (end.approval.approval_id, end.approval.request_id, end.approval.status)
    assert shown_of_it == ("", REQUEST, "pending")


def test_a_list_shows_records_that_are_damaged() -> None:
    """They may have no id, say what is wrong with them, and hold up no other. covers: STATE-4"""
    damaged = {"error": {"code": "corrupt_state", "detail": "It cannot be read."}}
    network = Network(sending(document({"items": [damaged, IDS]})))
    ask = network.operations()
    for items in (ask.tasks(None, None), ask.sessions(), ask.approvals(None)):
        broken, whole = cast(list[Any], network.read(items))  # type: ignore[arg-type]
        assert [broken.raw, whole.raw] == [damaged, IDS]
        assert isinstance(broken.error, CorruptState)
        assert broken.error.detail == "It cannot be read."
        assert whole.error is None
        assert getattr(broken, "status", "") == ""


def test_a_session_shows_which_of_its_tasks_is_damaged() -> None:
    """Beside those that are whole."""
    damaged = {"task_id": "t1", "error": {"code": "corrupt_state"}}
    network = Network(sending(document({**IDS, "tasks": [damaged, {**IDS, "status": "Paused"}]})))
    broken, whole = network.run(network.operations().session("s")).tasks
    assert isinstance(broken.error, CorruptState)
    assert (broken.task_id, whole.error, whole.status) == ("t1", None, "Paused")


def test_the_pause_of_an_answer_is_pending() -> None:
    """Only the inbox says so of a pause; an answer ends with one that waits."""
    assert Answer.parse(PAUSE).approval == Approval.parse({**PAUSE["content"], "status": "pending"})


def test_lists_that_never_end() -> None:
    """A list that names itself as its next page is an error."""
    network = Network(sending(document({"items": [{"task_id": "a"}, 7], "next_cursor": "x"})))
    with pytest.raises(UnexpectedAnswer):
        network.read(network.operations().tasks(None, None))  # type: ignore[arg-type]
    network = Network(sending(document({"tasks": []})))
    with pytest.raises(UnexpectedAnswer):
        network.read(network.operations().tasks(None, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("id", ["..", "", ".", "a/b", "a?b", "a%2fb", "x" * 300])
def test_ids_stay_within_their_segment(id: str) -> None:
    """What is not an id never becomes another path."""
    with pytest.raises(ValueError, match="not an id"):
        Operations().task(id)
    with pytest.raises(ValueError, match="not an id"):
        calls.follow(id, 0)


# --- values -------------------------------------------------------------------------------------------


def test_problems_in_every_form() -> None:
    """A problem document, another JSON object, HTML, nothing: each is an error with its status."""
    known = problem_from_body(b'{"code": "not_owner", "detail": "no", "task_id": "t"}', status=401)
    assert (type(known).__name__, known.task_id, str(known)) == ("NotOwner", "t", "no (not_owner, HTTP 401)")
    new = problem_from_document({"code": "brand_new", "title": "New", "status": 418})
    assert (type(new), new.code, new.status, new.detail) == (ProblemError, "brand_new", 418, "New")
    html = problem_from_body(b"<html>\n <b>Bad</b> \xff gateway</html>", status=502)
    assert (html.code, html.status) == (None, 502)
    assert "<b>Bad</b>" in html.detail
    assert "no body" in str(problem_from_body(b"", status=500))
    assert problem_from_body(b"[1]", status=400).raw == {}


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "RBAC: access denied"}}',
        b'{"detail": [{"loc": ["body"], "msg": "RBAC: access denied"}]}',
        b'{"message": "RBAC: access denied", "title": 7}',
    ],
)
def test_what_a_gateway_says_in_json_of_its_own_is_quoted(body: bytes) -> None:
    """As a page of it is: a number alone does not say what to do."""
    error = problem_from_body(body, status=403)
    assert error.detail == f"HTTP 403 without a problem document, body: {body.decode()}"
    assert error.raw == json.loads(body)


def test_a_redirection_says_what_to_do() -> None:
    """No call follows it: the address is to be corrected."""
    for status in (301, 302, 307, 308):
        error = problem_from_body(b"<html>moved</html>", status=status)
        said = f"HTTP {status}: the address redirects elsewhere; use the address it redirects to"
        assert (error.detail, error.status) == (said, status)


@pytest.mark.parametrize("code", STATUSES)
def test_every_code_has_a_class(code: str) -> None:
    """What the service answers with can be caught by a name of its own."""
    error = problem_from_document({"code": code, "detail": "no"})
    assert type(error) is getattr(client, "".join(map(str.capitalize, code.split("_"))))


def test_retry_after() -> None:
    """`Retry-After` is seconds or a date; nonsense is as if it were absent."""
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    assert retry_after_seconds("7", None) == 7
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:30 GMT", date) == 30
    assert retry_after_seconds(date, None) == 0
    assert [retry_after_seconds(text, date) for text in (None, "", "soon", "-1", "²")] == [None] * 5


@given(st.integers(0, 20), st.floats(0, 1), st.one_of(st.none(), st.floats(0, 60)))
def test_delays_are_bounded(failures: int, jitter: float, retry_after: float | None) -> None:
    """Each delay is at least what the service asked for, and at most that and the longest delay."""
    budget = Budget(Retry(attempts=100), lambda: jitter)
    for _ in range(failures):
        budget.delay()
    delay = budget.delay(retry_after)
    assert delay is not None
    assert (retry_after or 0) + 0.1 <= delay <= (retry_after or 0) + 8


def test_after_thousands_of_failures_the_delay_is_still_the_longest_one() -> None:
    """A program that is to outlive any outage does."""
    budget = Budget(Retry(attempts=10_000), lambda: 1.0)
    assert [budget.delay() for _ in range(3_000)][-1] == 8.0


def test_tolerant_documents() -> None:
    """Unknown fields are kept in `raw`, absent ones and wrong types are as if they were not there."""
    request = RequestDocument.parse({**IDS, "status": "Completed", "created_at": 7, "new": 1, "content": []})
    assert (request.created_at, request.content, request.raw["new"]) == (None, None, 1)
    with pytest.raises(UnexpectedAnswer):
        Answer.parse({"status": "Completed"})
