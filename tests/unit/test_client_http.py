"""Both drivers over real HTTP, against a service that keeps the contract and connections that break."""

import asyncio
import gc
import inspect
import math
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import httpx
import pytest
from contract_server import ContractServer, Problem
from starlette.responses import Response

import tealagents.client
from tealagents.client import (
    NO_RETRY,
    AlreadyDecided,
    AlreadyExists,
    ApprovalPending,
    ApprovalRequired,
    AsyncClient,
    AsyncItems,
    Client,
    ClientError,
    ConnectionLost,
    Decision,
    Delta,
    Failed,
    Final,
    IdempotencyKeyReused,
    Image,
    InvalidRequest,
    ModelError,
    NotFound,
    NotOwner,
    Overloaded,
    ProblemError,
    Request,
    RequestCanceled,
    Retry,
    StreamEvent,
    TaskBusy,
    Text,
    Timeouts,
    ToolCall,
    ToolResult,
    Unauthenticated,
    UnexpectedAnswer,
)
from tealagents.testing.faults import FaultProxy, Faults

QUICK = Retry(first_delay=0.005, longest_delay=0.02)

#: a client for a URL, whichever driver it runs on
Connect = Callable[..., Client]


class Blocking:
    """An `AsyncClient`, or an iterator it made, with the calls of its synchronous twin."""

    def __init__(self, made: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._made = made
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._made, {"close": "aclose"}.get(name, name))
        return self._called(attribute) if callable(attribute) else attribute

    def _called(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            if inspect.iscoroutine(result):
                return self._loop.run_until_complete(result)
            return Blocking(result, self._loop) if isinstance(result, AsyncItems) else result

        return call

    def __iter__(self) -> "Blocking":
        return self

    def __next__(self) -> Any:
        try:
            return self._loop.run_until_complete(anext(self._made))
        except StopAsyncIteration:
            raise StopIteration from None


@pytest.fixture(scope="module")
def service() -> Iterator[ContractServer]:
    with ContractServer(keepalive=0.05) as server:
        yield server


@pytest.fixture(autouse=True)
def calm(service: ContractServer) -> None:
    service.faults.clear()
    service.calls.clear()
    service.page_size = 50
    service.logs_gone = False


@pytest.fixture(params=["async", "sync"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes clients of one user, and closes them."""
    user, loop, opened = str(uuid.uuid4()), asyncio.new_event_loop(), []

    def make(url: str, token: Any = user, **options: Any) -> Client:
        options.setdefault("retry", QUICK)
        kind: Any = Client if request.param == "sync" else AsyncClient
        made = kind(url, token, **options)
        client = made if request.param == "sync" else cast(Client, Blocking(made, loop))
        opened.append(client)
        return client

    yield make
    for client in opened:
        client.close()
    loop.run_until_complete(loop.shutdown_asyncgens())  # those of `httpx`, whose streams were left
    loop.close()


@pytest.fixture
def client(service: ContractServer, connect: Connect) -> Client:
    return connect(service.url)


def streamed_text(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


# --- messages -----------------------------------------------------------------------------------------


def test_send_and_follow_up(client: Client) -> None:
    """A message is answered with its ids, output and usage; a second one continues the task."""
    first = client.send("hello there", metadata={"origin": "test"})
    assert (first.status, first.output, first.source) == ("Completed", "hello there ", "Echo:0.1")
    assert first.usage.total_tokens == 5
    second = client.send([Text("and "), Image.of_bytes(b"\x89PNG")], task_id=first.task_id)
    assert (second.task_id, second.session_id) == (first.task_id, first.session_id)
    assert second.request_id != first.request_id
    assert [message.text for message in client.messages(first.task_id)][:2] == ["hello there", "hello there "]
    assert client.task(first.task_id).metadata == {"origin": "test"}


def test_stream(client: Client) -> None:
    """A stream is the request, each piece, and the whole answer."""
    events = list(client.stream("count 5"))
    assert isinstance(events[0], Request)
    assert [event.id for event in events] == list(range(1, 8))
    assert streamed_text(events) == "0 1 2 3 4 "
    assert isinstance(events[-1], Final)
    assert events[-1].answer.output == "0 1 2 3 4 "
    assert events[-1].answer == client.request(events[0].request_id).answer()


def test_stream_as_one_answer(client: Client) -> None:
    """A stream can be read as the answer `send` would give, and knows its ids."""
    stream = client.stream("hello")
    assert stream.answer().output == "hello "
    assert stream.last_event_id == 3
    assert stream.request_id is not None
    assert client.task(stream.task_id or "").session_id == stream.session_id
    with pytest.raises(UnexpectedAnswer):
        stream.answer()


def test_a_stream_that_was_closed_before_its_last_event_says_so(client: Client) -> None:
    """It does not end as if it were complete; another one continues where it was left."""
    stream = client.stream("count 5")
    assert next(stream).id == 1
    stream.close()
    for read in (lambda: next(stream), stream.answer):
        with pytest.raises(ClientError, match="closed before its end; follow"):
            read()
    rest = client.follow(stream.request_id or "", after=stream.last_event_id)
    assert [event.id for event in rest] == [2, 3, 4, 5, 6, 7]


def test_failure(client: Client) -> None:
    """A failed request raises where one answer is awaited, and ends a stream; its half answer stays."""
    with pytest.raises(ModelError) as failed:
        client.send("fail")
    assert failed.value.request_id is not None
    assert client.request(failed.value.request_id).output == "half an "
    events = list(client.stream("fail"))
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, ModelError)
    with pytest.raises(ModelError):
        client.stream("fail").answer()


def test_what_a_stream_raises_knows_the_key_of_its_message(client: Client) -> None:
    """A key that the client made would be lost with the stream, and with it the message's outcome."""
    with pytest.raises(ModelError) as failed:
        client.stream("fail", idempotency_key="key-1").answer()
    assert failed.value.idempotency_key == "key-1"
    *_, end = client.stream("fail", idempotency_key="key-2")
    assert isinstance(end, Failed)
    assert end.error.idempotency_key == "key-2"
    stream = client.stream("hello")
    stream.close()
    with pytest.raises(ClientError, match="closed before its end") as closed:
        next(stream)
    assert closed.value.idempotency_key


def test_idempotency(client: Client, service: ContractServer) -> None:
    """The same key gives the same answer without another model call; another message is refused."""
    key, before = str(uuid.uuid4()), service.model_calls
    first = client.send("once", idempotency_key=key)
    assert client.send("once", idempotency_key=key).request_id == first.request_id
    assert streamed_text(list(client.stream("once", idempotency_key=key))) == "once "
    assert service.model_calls == before + 1
    with pytest.raises(IdempotencyKeyReused):
        client.send("twice", idempotency_key=key)


def test_a_replayed_failure_is_known_as_one(service: ContractServer, connect: Connect) -> None:
    """Also where it comes as a stream, and where that stream breaks off and the log is followed."""
    with proxied(service) as (proxy, url):
        client = connect(url)
        for replayed in (False, True):
            with pytest.raises(ModelError) as failed:
                client.stream("fail", idempotency_key="key").answer()
            assert failed.value.replayed is replayed
        calls = len(service.calls)
        proxy.upcoming.append(Faults(cut_replies_after=400))
        *_, end = client.stream("fail", idempotency_key="key")
        assert isinstance(end, Failed)
        assert end.error.replayed
        assert len(service.calls) > calls + 1


def test_background_wait_and_follow(client: Client, service: ContractServer) -> None:
    """A background request can be polled, followed from any event, and waited for."""
    accepted = client.background("count 30")
    assert accepted.status == "Running"
    answer = client.wait(accepted.request_id, timeout=60)
    assert answer.output is not None
    assert answer.output.startswith("0 1 2")
    all_events = list(client.follow(accepted.request_id))
    assert len(all_events) == 32
    assert list(client.follow(accepted.request_id, after=20)) == all_events[20:]
    (end,) = client.follow(accepted.request_id, after=32)
    assert isinstance(end, Final)
    assert (end.id, end.answer) == (None, answer)
    service.logs_gone = True
    (end,) = client.follow(accepted.request_id)
    assert isinstance(end, Final)


def test_cancel(client: Client, service: ContractServer) -> None:
    """A canceled request ends its stream so, and keeps what there was of an answer."""
    stream = client.stream("hold on")
    events = [next(stream), next(stream)]
    with pytest.raises(TaskBusy) as busy:
        client.send("me too", task_id=stream.task_id)
    assert (busy.value.request_id, busy.value.retry_after) == (stream.request_id, 1)
    document = client.cancel(stream.request_id or "")
    assert (document.status, document.output, document.ended) == ("Canceled", "held ", True)
    events += list(stream)
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, RequestCanceled)
    with pytest.raises(RequestCanceled):
        client.wait(stream.request_id or "")


# --- approvals ----------------------------------------------------------------------------------------


def test_approve(client: Client, service: ContractServer) -> None:
    """A pause names its calls; approving runs them once, however often the same is said."""
    paused = client.send("delete /data/x")
    assert paused.status == "Paused"
    assert paused.approval is not None
    (call,) = paused.approval.tool_calls
    assert (call.tool, call.arguments) == ("Shell-delete", '{"path": "/data/x"}')
    (listed,) = client.approvals()
    assert listed.approval_id == paused.approval.approval_id
    with pytest.raises(ApprovalPending) as pending:
        client.send("go on", task_id=paused.task_id)
    assert pending.value.approval_id == paused.approval.approval_id
    for _ in range(2):
        assert client.resume(paused.approval, "approve").output == "deleted /data/x"
    with pytest.raises(AlreadyDecided):
        client.resume(paused.request_id, "reject", approval_id=paused.approval.approval_id)
    assert service.runs[paused.request_id].tool_runs == ["/data/x"]


def test_approve_as_a_stream(client: Client) -> None:
    """Calls can be decided one by one, with other arguments; the stream continues after the pause."""
    events = list(client.stream("delete /data/x"))
    assert isinstance(events[-1], ApprovalRequired)
    approval = events[-1].approval
    decision = Decision(approval.tool_calls[0].id, "approve", {"path": "/tmp/y"})
    more = list(client.resume_stream(approval, "reject", decisions=[decision], after=events[-1].id or 0))
    assert [type(event) for event in more] == [ToolCall, ToolResult, Delta, Final]
    assert [event.id for event in more] == [3, 4, 5, 6]
    assert streamed_text(more) == "deleted /tmp/y"


def test_reject_and_supersede(client: Client) -> None:
    """A rejection reaches the model with its reason; a message can take a pause's place."""
    paused = client.send("delete /data/x")
    answer = client.resume(paused.request_id, "reject", reason="too dangerous")
    assert answer.output == "I was told not to: too dangerous"
    again = client.send("delete /data/y", task_id=paused.task_id)
    assert client.send("never mind", task_id=paused.task_id, supersede=True).output == "never mind "
    assert client.request(again.request_id).status == "Canceled"


def test_second_pause(client: Client) -> None:
    """A decision meant for the first pause never decides the second."""
    first = client.send("delete twice")
    second = client.resume(first.request_id, "approve")
    assert second.paused
    with pytest.raises(ApprovalPending):
        client.resume(first.request_id, "reject")
    assert second.approval is not None
    assert client.resume(second.approval, "approve").status == "Completed"


# --- reading and changing state -----------------------------------------------------------------------


def test_lists_page_by_themselves(client: Client, service: ContractServer) -> None:
    """A list is read to its end, however short its pages are, and no further than it is asked for."""
    service.page_size = 2
    answers = [client.send(f"message {n}") for n in range(5)]
    client.send("delete it")
    assert [task.task_id for task in client.tasks()][1:] == [answer.task_id for answer in reversed(answers)]
    assert [task.status for task in client.tasks(status="Paused")] == ["Paused"]
    (task,) = client.tasks(session_id=answers[0].session_id)
    assert task.task_id == answers[0].task_id
    assert len(list(client.sessions())) == 6
    service.calls.clear()
    assert next(client.tasks()) is not None
    assert len(service.calls) == 1


def test_a_list_that_was_closed_before_its_end_says_so(service: ContractServer, connect: Connect) -> None:
    """It does not end as if it were complete, be it closed by an error or by its reader."""
    service.page_size = 1
    client = connect(service.url, retry=NO_RETRY)
    client.send("one")
    client.send("two")
    tasks = client.tasks()
    next(tasks)
    service.faults.append(Problem(503, "overloaded", "later"))
    with pytest.raises(Overloaded):
        next(tasks)
    left = client.tasks()
    next(left)
    left.close()
    for items in (tasks, left):
        with pytest.raises(ClientError, match="closed before its end"):
            next(items)
    whole = client.tasks()
    assert len(list(whole)) == 2
    whole.close()
    assert list(whole) == []


async def test_a_list_whose_reader_was_canceled_says_so(service: ContractServer) -> None:
    """As by `asyncio.wait_for` around a page that takes long."""

    async def token() -> str:
        await asyncio.sleep(60)
        return "alice"

    async with AsyncClient(service.url, token) as client:
        tasks = client.tasks()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(tasks), 0.01)
        with pytest.raises(ClientError, match="closed before its end"):
            await anext(tasks)


def test_history(client: Client) -> None:
    """A task can be rolled back and forked at a checkpoint, traced and audited."""
    first = client.send("one")
    task_id = first.task_id
    client.send("two", task_id=task_id)
    newest, oldest = client.checkpoints(task_id)
    assert (newest.current, oldest.current, oldest.checkpoint_id) == (True, False, first.request_id)
    fork = client.fork(task_id, checkpoint_id=oldest.checkpoint_id)
    assert [message.text for message in client.messages(fork.task_id)] == ["one", "one "]
    assert client.fork(task_id).task_id != task_id
    assert client.rollback(task_id, oldest.checkpoint_id).task_id == task_id
    assert len(list(client.messages(task_id))) == 2
    assert [step.kind for step in client.trace(task_id)] == ["model"]
    assert [entry.seq for entry in client.audit(task_id)] == [1]


def test_changing_and_deleting(client: Client) -> None:
    """A task's metadata and expiry change; exported, deleted and imported it is back."""
    task_id = client.send("one").task_id
    expiry = datetime.now(UTC) + timedelta(days=1)
    changed = client.patch_task(task_id, metadata={"a": 1}, expires_at=expiry)
    assert (changed.metadata, changed.expires_at) == ({"a": 1}, expiry)
    assert client.patch_task(task_id, expires_at=None).metadata == {"a": 1}
    exported = client.export_task(task_id)
    with pytest.raises(AlreadyExists):
        client.import_task(exported)
    client.delete_task(task_id)
    with pytest.raises(NotFound):
        client.task(task_id)
    assert client.import_task(exported).task_id == task_id
    session = client.session(client.task(task_id).session_id)
    assert [task.task_id for task in session.tasks] == [task_id]
    client.delete_session(session.session_id)
    with pytest.raises(NotFound):
        client.task(task_id)


def test_refusals(service: ContractServer, connect: Connect, client: Client) -> None:
    """No token, another user's task, nonsense: each is an error of its own class with the status."""
    task_id = client.send("mine").task_id
    with pytest.raises(Unauthenticated):
        connect(service.url, "").send("hello")
    with pytest.raises(NotOwner) as error:
        connect(service.url, "somebody else").send("hello", task_id=task_id)
    assert (error.value.status, error.value.code) == (401, "not_owner")
    with pytest.raises(InvalidRequest, match="at least one"):
        client.send([])


def test_health(service: ContractServer, connect: Connect) -> None:
    """Health needs no token; a service that is not well says so, one that is away is an error."""
    client = connect(service.url, "")
    assert client.health().dependencies == {"store": "ok"}
    service.faults.append(Response('{"status": "draining"}', 503, media_type="application/json"))
    assert client.health().status == "draining"
    service.faults.append(Problem(503, "overloaded", "no"))
    with pytest.raises(ProblemError):
        client.health()
    with pytest.raises(ConnectionLost):
        connect("http://127.0.0.1:9/A/1").health()

    def no_token() -> str:
        raise OSError("the authority is away")

    assert connect(service.url, no_token).health().dependencies == {"store": "ok"}


# --- tokens and connections ---------------------------------------------------------------------------


def test_token_function(service: ContractServer, connect: Connect) -> None:
    """The token is asked for anew with every call."""
    tokens = iter(["", "alice"])
    client = connect(service.url, lambda: next(tokens))
    with pytest.raises(Unauthenticated):
        client.send("hello")
    assert client.send("hello").output == "hello "


def test_a_token_function_that_is_used_up_is_no_end_of_a_call(
    service: ContractServer, connect: Connect
) -> None:
    """Nothing is sent, and nothing returned as if it had been."""
    client = connect(service.url, lambda: next(iter(())))
    for call in (lambda: client.delete_task(str(uuid.uuid4())), lambda: list(client.tasks())):
        with pytest.raises(RuntimeError, match="StopIteration"):
            call()
    assert service.calls == []


async def test_an_async_token_function_that_is_used_up_is_no_end_of_a_list(service: ContractServer) -> None:
    """A list that ended with it would pass for a complete one."""

    async def token() -> str:
        raise StopAsyncIteration

    async with AsyncClient(service.url, token) as client:
        with pytest.raises(RuntimeError, match="StopAsyncIteration"):
            await anext(client.tasks())
    assert service.calls == []


async def test_async_token_function(service: ContractServer) -> None:
    """The asynchronous client awaits a token that takes time."""

    async def token() -> str:
        await asyncio.sleep(0)
        return "alice"

    given: Callable[[], Awaitable[str]] = token
    async with AsyncClient(service.url, given) as client:
        assert (await client.send("hello")).status == "Completed"


@pytest.mark.parametrize("token", ["hunter\n2", "hunter2é", "hunter2\ud800"])
def test_a_token_that_no_header_can_hold_is_not_shown(
    service: ContractServer, connect: Connect, token: str
) -> None:
    """The error says what is wrong with the token, without the token: errors are logged."""
    with pytest.raises(ValueError, match="printable ASCII") as error:
        connect(service.url, token).send("hello")
    assert "hunter" not in str(error.value)
    assert not service.calls


@pytest.mark.parametrize("given", [None, 5, b"alice"])
def test_a_token_function_that_returns_no_text_is_named(
    service: ContractServer, connect: Connect, given: Any
) -> None:
    """What it returned is a mistake in the program; nothing is sent in its place."""
    with pytest.raises(TypeError, match="token function returned"):
        connect(service.url, lambda: given).send("hello")
    assert not service.calls


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda client: client.send(["a", "b"]), "mappings, not str"),
        (lambda client: client.send(b"x"), "mappings, not int"),
        (
            lambda client: client.send("hello", taskId="t"),
            "unknown option taskId; the options are session_id",
        ),
        (lambda client: next(client.stream("hello", taskId="t")), "unknown option taskId"),
        (
            lambda client: client.resume("r", "approve", decision=[]),
            "unknown option decision; the options are reason",
        ),
        (
            lambda client: client.patch_task("t", expire_at=None),
            "unknown option expire_at; the options are metadata, expires_at",
        ),
        (lambda client: client.import_task("{}"), "imported from what export_task returned"),
        (lambda client: client.resume(None, "approve"), "is None: nothing waits for a decision"),
        (lambda client: client.resume({"request_id": "r"}, "approve"), "is of the type dict"),
    ],
)
def test_what_cannot_be_meant_is_not_sent(
    service: ContractServer, client: Client, call: Callable[[Any], object], said: str
) -> None:
    """An option that is misspelt would begin a new task, or decide calls that it was not meant for."""
    with pytest.raises(TypeError, match=said):
        call(client)
    assert not service.calls


def test_a_time_without_a_zone_is_not_sent(service: ContractServer, client: Client) -> None:
    """The client cannot know which moment it stands for."""
    with pytest.raises(ValueError, match="expires_at has no time zone: 2100-01-01T00:00:00"):
        client.patch_task("t", expires_at=datetime(2100, 1, 1))
    assert not service.calls


def test_metadata_that_is_nested_too_deeply_is_not_sent(service: ContractServer, client: Client) -> None:
    """It is a mistake in the program, as any other value that JSON cannot hold."""
    metadata: dict[str, Any] = {}
    for _ in range(100_000):
        metadata = {"a": metadata}
    with pytest.raises(ValueError, match="nested too deeply"):
        client.send("hello", metadata=metadata)
    assert not service.calls


def test_a_token_is_text_or_a_function(connect: Connect) -> None:
    """Anything else, such as a variable that is not set, is refused when the client is made."""
    with pytest.raises(
        TypeError, match="the token is a string, or a function that returns one, not NoneType"
    ):
        connect("http://127.0.0.1:1/A/1", None)


@pytest.mark.parametrize("token", [" ", "\n"])
def test_a_token_of_blanks_is_none(service: ContractServer, connect: Connect, token: str) -> None:
    """A token file that holds only a line break is a mistake, and no wish to call without a token."""
    with pytest.raises(ValueError, match="printable ASCII"):
        connect(service.url, lambda: token).send("hello")
    assert not service.calls


def test_blanks_around_a_token_are_none_of_it(service: ContractServer, connect: Connect) -> None:
    """A token that was read from a file with its line break is used without it."""
    assert connect(service.url, "alice\n").send("hello").status == "Completed"


def test_tokens_stay_with_the_service(service: ContractServer, client: Client) -> None:
    """A redirection is an error and is not followed with the user's token."""
    service.faults.append(Response("", 307, headers={"Location": service.url + "/tasks"}))
    with pytest.raises(ProblemError) as error:
        client.send("hello")
    assert (error.value.status, len(service.calls)) == (307, 1)


@pytest.mark.parametrize("target", ["https://xn--a/", "https://host:port/", "mailto:a@b"])
def test_a_redirect_to_anything_is_an_error(service: ContractServer, client: Client, target: str) -> None:
    """Also to what is no URL: it is neither an error of another library nor a lost connection."""
    service.faults.append(Response("", 302, headers={"Location": target}))
    with pytest.raises(ProblemError, match="the address redirects elsewhere"):
        client.send("hello")
    assert len(service.calls) == 1


def test_cookies_are_not_kept(service: ContractServer, client: Client) -> None:
    """A gateway may set one that no header can hold, which would fail every later call."""
    cookie = "city=Z\u00fcrich; Path=/"
    service.faults.append(Response("{}", 404, headers={"Set-Cookie": cookie}))
    with pytest.raises(ProblemError):
        client.send("hello")
    assert client.send("hello").output == "hello "


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:1/A/1",
        "ftp://host/A/1",
        "http://",
        "http://a\nb/A/1",
        "http://h/A/1?b=c",
        "http://h/A/1?",
        "http://h/A/1#",
        "http://h:65536/",
    ],
)
def test_a_url_that_is_none_is_refused_at_once(connect: Connect, url: str) -> None:
    """A mistake in the program is said where it is made, and not after half a minute of attempts."""
    with pytest.raises(ValueError, match="is not"):
        connect(url)


@pytest.mark.parametrize("key", ["né", "a\nb", "", " ", "k ", " k"])
def test_a_key_that_no_header_can_hold_is_not_sent(service: ContractServer, client: Client, key: str) -> None:
    """It is a mistake in the program, and the error names the key. An empty one is not made anew."""
    with pytest.raises(ValueError, match="printable ASCII"):
        client.send("hello", idempotency_key=key)
    assert not service.calls


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@pytest.mark.parametrize(
    "answer",
    [
        Response(DEEP, 200),
        Response(DEEP, 500),
        Response(b"event: request\ndata: " + DEEP + b"\n\n", 200, media_type="text/event-stream"),
        Response(b"retry: " + b"9" * 5000 + b"\n\n", 200, media_type="text/event-stream"),
        Response("{}", 429, headers={"Retry-After": "\u00b2"}),
        Response("{}", 429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 +" + "9" * 20}),
        Response('{"code": "request_in_progress", "request_id": "../me"}', 409),
    ],
    ids=["deep document", "deep problem", "deep event", "long retry", "no number", "no date", "no id"],
)
def test_whatever_a_server_sends_is_a_client_error(
    service: ContractServer, connect: Connect, answer: Response
) -> None:
    """Also what no JSON parser reads, a number that is none, and an id that would lead to another path."""
    client = connect(service.url, retry=NO_RETRY)
    service.faults.append(answer)
    with pytest.raises(ClientError):
        client.stream("hello").answer()
    service.faults.append(answer)
    with pytest.raises(ClientError):
        client.send("hello")


def test_a_body_that_takes_longer_than_the_timeout_to_be_sent_is_no_silence() -> None:
    """httpx may bound the whole upload by its timeout: the bytes of a large message have the time to flow."""
    given = []

    def answer(request: httpx.Request) -> httpx.Response:
        given.append(request.extensions["timeout"]["write"])
        return httpx.Response(200, json={"session_id": "s", "task_id": "t", "request_id": "r"})

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as http,
        Client("http://host/A/1", "ada", http=http, timeouts=Timeouts(call=5)) as client,
    ):
        client.send("hello")
        client.send("x" * 8_000_000)
    assert 5 <= given[0] < 6
    assert given[1] > 500


def test_a_timeout_of_infinity_is_none(service: ContractServer, connect: Connect) -> None:
    """Who wants to wait for ever can say so."""
    endless = Timeouts(connect=math.inf, call=math.inf, answer=math.inf, keepalive=math.inf)
    client = connect(service.url, timeouts=endless)
    answer = client.send("hello")
    assert client.wait(answer.request_id, timeout=math.inf) == answer
    assert streamed_text(list(client.stream("hello"))) == "hello "


def test_waiting_for_a_service_that_is_mute_ends_at_its_timeout(connect: Connect) -> None:
    """A process that is stopped takes connections and says nothing; a call may wait minutes for it."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = connect(f"http://127.0.0.1:{mute.getsockname()[1]}/A/1", timeouts=Timeouts(call=600))
        began = time.monotonic()
        with pytest.raises(ConnectionLost):
            client.wait(str(uuid.uuid4()), timeout=1)
        assert time.monotonic() - began < 60


class _LosingTheConnection(httpx.BaseTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.LocalProtocolError("the connection was closed by the other side")


def test_a_connection_in_a_state_that_allows_nothing_is_lost() -> None:
    """httpx says so of HTTP/2 connections that the server has closed."""
    with (
        httpx.Client(transport=_LosingTheConnection()) as http,
        Client("http://host/A/1", "ada", http=http, retry=NO_RETRY) as client,
        pytest.raises(ConnectionLost),
    ):
        client.me()


def test_a_service_on_loopback_is_called_through_no_proxy(
    service: ContractServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would read the token, and has another loopback."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    for host in ("127.0.0.1", "localhost"):
        assert connect(service.url.replace("127.0.0.1", host)).send("hello").output == "hello "


class _RefusingProxy(BaseHTTPRequestHandler):
    def do_CONNECT(self) -> None:
        self.send_error(503)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_what_a_proxy_refuses_to_connect_was_not_done(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service cannot have received the call, so nothing has to be looked up before it is repeated."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _RefusingProxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.setenv("no_proxy", "")
        client = connect("https://agents.example.com/A/1", retry=NO_RETRY)
        with pytest.raises(ConnectionLost, match="503") as lost:
            client.fork(str(uuid.uuid4()))
        proxy.shutdown()
    assert not lost.value.in_doubt


def test_given_http_client_is_left_open(service: ContractServer) -> None:
    """A client that was given is used, with its own settings, and not closed."""
    with httpx.Client(headers={"X-Trace": "1"}) as http:
        with Client(service.url + "/", "alice", http=http) as client:
            assert client.send("hello").output == "hello "
        assert not http.is_closed


# no loop is left that could close the first connection
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_async_client_serves_one_event_loop_after_another(service: ContractServer) -> None:
    """As in a program that calls `asyncio.run` for each job; a closed one serves none."""
    client = AsyncClient(service.url, token="alice")

    async def streamed() -> str | None:
        return (await client.stream("hello").answer()).output

    said = [asyncio.run(client.send("hello")).output, asyncio.run(streamed())]
    assert len({*said, asyncio.run(client.send("hello")).output}) == 1
    asyncio.run(client.aclose())
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(client.health())
    gc.collect()


async def test_an_async_client_is_used_in_one_event_loop_at_a_time(service: ContractServer) -> None:
    """Another one is refused while the first runs: connections belong to a loop."""
    async with AsyncClient(service.url, token="alice") as client:
        await client.health()
        with pytest.raises(RuntimeError, match="one event loop at a time"):
            await asyncio.to_thread(lambda: asyncio.run(client.health()))
        await client.health()


#: writes whether a forked process and its parent have connections of their own: the service answers with the
#: caller's port. The child closes its client, with which the parent's has to stay usable
FORKED = {
    "sync": """
import os, sys
from tealagents.client import NO_RETRY, Client
with Client(sys.argv[1], retry=NO_RETRY) as client:
    before = client.health().status
    if (child := os.fork()) == 0:
        with client:
            print("new" if client.health().status != before else "shared", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    client.health()
""",
    "async": """
import asyncio, os, sys
from tealagents.client import NO_RETRY, AsyncClient
async def forked(client, before):
    async with client:
        print("new" if (await client.health()).status != before else "shared", flush=True)
async def main():
    async with AsyncClient(sys.argv[1], retry=NO_RETRY) as client:
        before = (await client.health()).status
        if (child := os.fork()) == 0:
            asyncio.run(forked(client, before))
            os._exit(0)
        os.waitpid(child, 0)
        await client.health()
asyncio.run(main())
""",
}


class _Ports(BaseHTTPRequestHandler):
    """Answers with the port of the caller's connection, which it keeps open."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b'{"status": "%d"}' % self.client_address[1]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("driver", FORKED)
def test_a_forked_process_calls_on_connections_of_its_own(driver: str) -> None:
    """On its parent's, each would read the other's answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Ports) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [sys.executable, "-c", FORKED[driver], f"http://127.0.0.1:{server.server_port}/A/1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        server.shutdown()
    assert (done.stdout, done.returncode) == ("new\n", 0), done.stderr


async def test_a_stream_is_read_by_one_task_at_a_time(service: ContractServer) -> None:
    """Another one is refused, as is closing it under the reader, which reads on."""
    asked, may = asyncio.Event(), asyncio.Event()

    async def token() -> str:
        asked.set()
        await may.wait()
        return "alice"

    async with AsyncClient(service.url, token) as client, client.stream("hello") as stream:
        first = asyncio.create_task(anext(stream))
        await asked.wait()
        for refused in (stream.__anext__, stream.answer, stream.aclose):
            with pytest.raises(RuntimeError, match="one reader at a time"):
                await refused()
        may.set()
        await first
        assert (await stream.answer()).output == "hello "


def test_a_stream_is_read_by_one_thread_at_a_time(service: ContractServer) -> None:
    """Another one is refused, as is closing it under the reader, which reads on."""
    asked, may = threading.Event(), threading.Event()

    def token() -> str:
        asked.set()
        may.wait(60)
        return "alice"

    with Client(service.url, token) as client, client.stream("hello") as stream:
        first = threading.Thread(target=lambda: next(stream))
        first.start()
        assert asked.wait(60)
        for refused in (stream.__next__, stream.answer, stream.close):
            with pytest.raises(RuntimeError, match="one reader at a time"):
                refused()
        may.set()
        first.join()
        assert stream.answer().output == "hello "


async def test_canceled_caller_frees_its_connection(service: ContractServer) -> None:
    """A task that is canceled in the middle of a stream leaves no connection half read."""
    limits = httpx.Limits(max_connections=1)
    async with (
        httpx.AsyncClient(limits=limits) as http,
        AsyncClient(service.url, "alice", http=http, retry=NO_RETRY) as client,
    ):
        stream = client.stream("hold")
        assert isinstance(await anext(stream), Request)
        assert isinstance(await anext(stream), Delta)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.05)
        assert (await client.cancel(stream.request_id or "")).status == "Canceled"
        async for event in client.stream("hello"):
            if isinstance(event, Final):
                break
        assert (await client.health()).status == "ok"


@pytest.mark.parametrize("what", ["call", "stream"])
async def test_no_moment_of_a_cancellation_keeps_a_connection(service: ContractServer, what: str) -> None:
    """Between two bytes, or while a connection is given back: the next call has the whole pool."""
    moments = random.Random(7)
    limits = httpx.Limits(max_connections=2)
    async with (
        httpx.AsyncClient(limits=limits) as http,
        AsyncClient(service.url, "alice", http=http, retry=NO_RETRY, timeouts=Timeouts(call=10)) as client,
    ):

        async def called() -> None:
            await (client.health() if what == "call" else client.stream("hello").answer())

        await called()
        began = time.monotonic()
        await called()
        took = time.monotonic() - began
        for _ in range(200):
            with suppress(TimeoutError):
                async with asyncio.timeout(moments.random() * took):
                    await called()
        assert (await client.health()).status == "ok"
        assert (await client.send("hello")).output == "hello "


# --- broken connections -------------------------------------------------------------------------------


@contextmanager
def proxied(service: ContractServer) -> Iterator[tuple[FaultProxy, str]]:
    with FaultProxy("127.0.0.1", service.port) as proxy:
        yield proxy, proxy.url_for(service.url)


def answer_length(service: ContractServer, connect: Connect) -> int:
    """How many bytes the answer to `count 3` takes on the wire."""
    with proxied(service) as (proxy, url):
        stream = connect(url).stream("count 3")
        next(stream)
        (connection,) = proxy.connections
        list(stream)
        return connection.passed["reply"]


@pytest.mark.parametrize("in_good_order", [False, True], ids=["reset", "half closed"])
def test_streams_survive_cuts(service: ContractServer, connect: Connect, in_good_order: bool) -> None:
    """Cut anywhere, in a head, in an event, in the last byte: each event comes once, and all do."""
    length = answer_length(service, connect)
    with proxied(service) as (proxy, url):
        before = service.model_calls
        cuts = [*range(60 * in_good_order, length, 120), length - 1]
        for cut in cuts:
            proxy.upcoming += [
                Faults(cut_replies_after=cut, cut_in_good_order=in_good_order),
                Faults(cut_replies_after=cut // 2),
            ]
            events = list(connect(url).stream("count 3"))
            assert [event.id for event in events] == [1, 2, 3, 4, 5], cut
            assert streamed_text(events) == "0 1 2 "
            proxy.upcoming.clear()
        assert service.model_calls == before + len(cuts)


def test_sends_survive_cuts(service: ContractServer, connect: Connect) -> None:
    """A JSON answer that breaks off, or a request that never arrives whole, is asked for again, once done."""
    with proxied(service) as (proxy, url):
        before = service.model_calls
        for fault in (
            *(Faults(cut_replies_after=cut) for cut in range(0, 600, 100)),
            Faults(cut_requests_after=40),
            Faults(refuse=True),
        ):
            proxy.upcoming.append(fault)
            assert connect(url).send("hello").output == "hello "
        assert service.model_calls == before + 8


def test_decisions_survive_cuts(service: ContractServer, connect: Connect) -> None:
    """A decision whose stream breaks is made again, and runs its calls once."""
    with proxied(service) as (proxy, url):
        for cut in range(0, 1200, 150):
            paused = list(connect(url).stream("delete /x"))[-1]
            assert isinstance(paused, ApprovalRequired)
            proxy.upcoming.append(Faults(cut_replies_after=cut))
            resumed = connect(url).resume_stream(paused.approval, "approve", after=paused.id or 0)
            assert [event.id for event in resumed] == [3, 4, 5, 6]
            assert service.runs[paused.request_id].tool_runs == ["/x"]


def test_send_while_the_first_attempt_runs(service: ContractServer, connect: Connect) -> None:
    """An answer lost while the request still runs is waited for; the message is not sent twice."""
    before, name = service.model_calls, str(uuid.uuid4())
    with proxied(service) as (proxy, url):
        proxy.upcoming.append(Faults(drop_replies=True))
        _in_turn(
            (lambda: service.model_calls > before, proxy.reset_all),
            (lambda: _reads(service), lambda: service.release(name)),
        )
        assert connect(url).send(f"hold {name}").output == "held "
    assert service.model_calls == before + 1
    assert [method for method, _ in service.calls][:2] == ["POST", "POST"]
    assert _reads(service)


def _reads(service: ContractServer) -> list[str]:
    """The requests that were asked for by their ids."""
    return [path for _, path in service.calls if path.startswith("/requests/")]


def _in_turn(*steps: tuple[Callable[[], object], Callable[[], object]]) -> None:
    """Does, beside the test, each thing once something is true."""

    def work() -> None:
        deadline = time.monotonic() + 60
        for true, then in steps:
            while not true() and time.monotonic() < deadline:
                time.sleep(0.01)
            then()

    threading.Thread(target=work, daemon=True).start()


@contextmanager
def trickling(head: bytes, body: bytes) -> Iterator[tuple[str, threading.Event]]:
    """The URL of an agent whose bodies come byte by byte, over two minutes; and whether a caller left."""
    over, left = threading.Event(), threading.Event()

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=trickle, args=[connection], daemon=True).start()

    def trickle(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(head)
                for byte in body:
                    connection.sendall(bytes([byte]))
                    if over.wait(120 / len(body)):
                        return
            except OSError:
                left.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=[listener], daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/A/1", left
        finally:
            over.set()


def test_the_end_of_a_wait_bounds_a_body_that_trickles(connect: Connect) -> None:
    """Each of its bytes comes in time, and all of them much too late: the client closes the connection."""
    with trickling(b"HTTP/1.1 200 OK\r\nContent-Length: 600\r\n\r\n", b" " * 600) as (url, left):
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="seconds"):
            connect(url).wait("r", timeout=5)  # longer than a busy machine holds up a byte
        assert time.monotonic() - began < 60
        assert left.wait(60)


def test_what_waits_runs_in_the_thread_of_its_caller(service: ContractServer) -> None:
    """A given HTTP client may be bound to it, as one whose hooks write to SQLite is."""
    threads = []
    hooks = {"request": [lambda _: threads.append(threading.current_thread())]}
    with httpx.Client(event_hooks=hooks) as http, Client(service.url, "ada", http=http) as client:
        answer = client.send("hello")
        assert client.wait(answer.request_id, timeout=60) == answer
    assert set(threads) == {threading.current_thread()}


def test_a_timeout_error_of_the_caller_s_own_transport_reaches_the_caller() -> None:
    """It says nothing of the service's answer, and no call is repeated after it."""
    calls = []

    def failing(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        raise TimeoutError("the application's own")

    with (
        httpx.Client(transport=httpx.MockTransport(failing)) as http,
        Client("http://host/A/1", "ada", http=http, retry=QUICK) as client,
        pytest.raises(TimeoutError, match="the application's own"),
    ):
        client.wait("r", timeout=60)
    assert len(calls) == 1


def test_dead_connections_are_noticed(service: ContractServer, connect: Connect) -> None:
    """A stream whose connection says nothing for three keepalives is taken up on another one."""
    with proxied(service) as (proxy, url):
        name = str(uuid.uuid4())
        proxy.upcoming.append(Faults(blackhole=True))
        client = connect(url, timeouts=Timeouts(keepalive=0.1))
        assert streamed_text(list(client.stream("count 3"))) == "0 1 2 "
        stream = client.stream(f"hold {name}")
        assert [next(stream).id, next(stream).id] == [1, 2]
        for connection in list(proxy.connections):
            connection.faults = Faults(blackhole=True)
        service.release(name)
        assert [event.id for event in stream] == [3]


@pytest.mark.parametrize("code", ["overloaded", "draining"])
def test_a_service_that_is_busy(service: ContractServer, client: Client, code: str) -> None:
    """Refused with 503, a message or a stream comes back when the service said."""
    service.faults += [Problem(503, code, "later", 0), Response("<html>", 502)]
    assert client.send("hello").output == "hello "
    service.faults += [Problem(503, code, "later", 0), Response("<html>", 502)]
    assert streamed_text(list(client.stream("hello"))) == "hello "


def test_a_service_that_is_away(connect: Connect) -> None:
    """No server there: an error that names the key, not an endless search."""
    client = connect("http://127.0.0.1:9/A/1", retry=Retry(attempts=2, first_delay=0.001))
    with pytest.raises(ConnectionLost) as lost:
        client.send("hello", idempotency_key="k-1")
    assert lost.value.idempotency_key == "k-1"
    with pytest.raises(ConnectionLost):
        list(client.stream("hello"))
    with pytest.raises(ClientError):
        next(client.tasks())


# --- the package --------------------------------------------------------------------------------------


def public(kind: type) -> dict[str, list[str]]:
    members = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {
        name.removeprefix("a") if name == "aclose" else name: list(inspect.signature(member).parameters)
        for name, member in members.items()
        if callable(member)
    }


def test_the_twins_are_twins() -> None:
    """Both clients have the same methods with the same parameters, all of them described."""
    assert public(AsyncClient) == public(Client)
    assert public(tealagents.client.AsyncEventStream) == public(tealagents.client.EventStream)
    for kind in (AsyncClient, Client):
        undescribed = [
            name for name in public(kind) if "close" not in name and not getattr(kind, name).__doc__
        ]
        assert undescribed == []


def test_everything_exported_is_there() -> None:
    """`__all__` is complete and names only what exists."""
    exported = set(tealagents.client.__all__)
    assert exported <= set(vars(tealagents.client))
    assert {kind.__name__ for kind in ProblemError.__subclasses__()} <= exported


def test_it_stands_alone() -> None:
    """The client brings nothing of the service along, nor what the service is built on."""
    code = """
import sys, tealagents.client
heavy = {"fastapi", "starlette", "openai", "pydantic", "msgspec", "typer"} & set(sys.modules)
ours = {name for name in sys.modules if name.startswith("tealagents.") and ".client" not in name}
print(heavy | ours or "alone")
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "alone"
