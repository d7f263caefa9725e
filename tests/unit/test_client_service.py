"""The client and the terminal conversation against the service itself, in processes of their own."""

import asyncio
import io
import itertools
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from tealagents.cli.chat import chat
from tealagents.client import (
    AlreadyDecided,
    ApprovalPending,
    ApprovalRequired,
    AsyncClient,
    Client,
    Decision,
    Delta,
    Failed,
    Final,
    NotFound,
    NotOwner,
    Request,
    RequestCanceled,
    Retry,
    StreamEvent,
    TaskBusy,
    ToolResult,
)
from tealagents.testing.faults import FaultProxy, Faults
from tealagents.testing.forking import Nursery
from tealagents.testing.servers import free_port

CONFIGS = Path(__file__).parents[2] / "configs"
PREFIX = "/Janitor/0.1"
QUICK = Retry(first_delay=0.01, longest_delay=0.05)
DELETE = 'call Files-delete {"path": "draft.md"}'


def serve(nursery: Nursery, store: Path) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    environment = {
        **os.environ,
        "TA_PERSISTENCE": f"sqlite:///{store}",
        "TA_PLUGIN_CATALOG_FILE": str(CONFIGS / "catalogue.json"),
        "TA_AUTH": "mock",
    }
    command = [nursery.program, "serve", str(CONFIGS / "tools.yaml"), "--offline", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return process, port


@pytest.fixture(scope="module")
def ports(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """Two processes of one service, sharing a store."""
    store = tmp_path_factory.mktemp("state") / "state.db"
    started = [serve(nursery, store)]
    try:
        wait_until_ready(*started[0])
        started.append(serve(nursery, store))
        wait_until_ready(*started[1])
        yield [port for _, port in started]
    finally:
        for process, _ in started:
            process.terminate()
        for process, _ in started:
            process.wait(30)


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}{PREFIX}/health/ready").is_success:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError("the service did not start")


@pytest.fixture
def url(ports: list[int]) -> str:
    return f"http://127.0.0.1:{ports[0]}{PREFIX}"


@pytest.fixture
def user() -> str:
    return f"user-{uuid.uuid4()}"


@pytest.fixture
def client(url: str, user: str) -> Iterator[Client]:
    with Client(url, user, retry=QUICK) as client:
        yield client


def streamed_text(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def numbers(count: int) -> str:
    return " ".join(str(number) for number in range(1, count + 1))


def test_conversation(client: Client, url: str) -> None:
    """Messages are answered and remembered; another user's tasks and unknown ones are refused.

    covers: FLOW-1, FLOW-2, AUTH-3
    """
    first = client.send("My name is Ada.", metadata={"origin": "test"})
    second = client.send("What is my name?", task_id=first.task_id)
    assert second.output == "Your name is Ada."
    assert second.usage.total_tokens > 0
    assert client.task(first.task_id).metadata == {"origin": "test"}
    with Client(url, "stranger") as stranger, pytest.raises(NotOwner):
        stranger.send("hello", task_id=first.task_id)
    with pytest.raises(NotFound):
        client.send("hello", task_id=str(uuid.uuid4()))


def test_stream_replay_and_end(client: Client) -> None:
    """A stream, its replay, the request and the recorded outcome of the same key all say the same."""
    key = str(uuid.uuid4())
    events = list(client.stream("pieces-20", idempotency_key=key))
    assert isinstance(events[0], Request)
    assert isinstance(events[-1], Final)
    assert streamed_text(events) == events[-1].answer.output == numbers(20)
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert list(client.follow(events[0].request_id)) == events
    assert list(client.stream("pieces-20", idempotency_key=key)) == events
    assert client.wait(events[0].request_id) == events[-1].answer
    assert client.send("pieces-20", idempotency_key=key) == events[-1].answer
    (end,) = client.follow(events[0].request_id, after=events[-1].id or 0)
    assert isinstance(end, Final)
    assert end.answer == events[-1].answer


@pytest.mark.parametrize("in_good_order", [False, True], ids=["reset", "half closed"])
async def test_streams_survive_cuts(ports: list[int], user: str, in_good_order: bool) -> None:
    """Cut anywhere, and continued in another process: the text is equal to the byte, with one end."""
    cuts = range(0, 9000, 900)

    async def one(cut: int) -> list[StreamEvent]:
        async with FaultProxy("127.0.0.1", ports[0]) as proxy:
            proxy.upcoming = [
                Faults(cut_replies_after=after, cut_in_good_order=in_good_order)
                for after in (cut, cut // 2, cut // 3)
            ]
            url = proxy.url_for(f"http://127.0.0.1:{ports[0]}{PREFIX}")
            async with (
                AsyncClient(url, user, retry=QUICK) as client,
                client.stream("pieces-30@2ms") as stream,
            ):
                events = [await anext(stream)]
                proxy.upstream = ("127.0.0.1", ports[1])
                return [*events, *[event async for event in stream]]

    for events in await asyncio.gather(*(one(cut) for cut in cuts)):
        assert streamed_text(events) == numbers(30)
        assert [isinstance(event, Final) for event in events] == [False] * 31 + [True]


def test_approvals(client: Client) -> None:
    """A pause is decided once; the same again gives the same, another decision is refused.

    covers: SESSION-7, HITL-1
    """
    events = list(client.stream(DELETE))
    pause = events[-1]
    assert isinstance(pause, ApprovalRequired)
    assert [call.tool for call in pause.approval.tool_calls] == ["Files-delete"]
    (pending,) = client.approvals()
    assert pending.approval_id == pause.approval.approval_id
    (call,) = client.approval(pause.request_id, pending.approval_id).tool_calls
    assert call.description == "Delete one file."
    assert call.parameters is not None
    assert call.parameters["required"] == ["path"]
    with pytest.raises(ApprovalPending) as refused:
        client.send("hello", task_id=pause.task_id)
    assert refused.value.approval_id == pending.approval_id
    more = list(client.resume_stream(pending, "approve", after=pause.id or 0))
    assert [event.output for event in more if isinstance(event, ToolResult)] == ["draft.md is deleted"]
    assert isinstance(more[-1], Final)
    assert client.resume(pending, "approve") == more[-1].answer
    with pytest.raises(AlreadyDecided):
        client.resume(pending, "reject")
    assert isinstance(list(client.follow(pause.request_id))[-1], Final)


def test_decisions_survive_cuts(ports: list[int], user: str) -> None:
    """A decision whose stream breaks anywhere is carried out once, and its events come once.

    covers: SESSION-7
    """
    with FaultProxy("127.0.0.1", ports[0]) as proxy:
        url = proxy.url_for(f"http://127.0.0.1:{ports[0]}{PREFIX}")
        for cut in range(0, 1500, 250):
            with Client(url, user, retry=QUICK) as client:
                pause = list(client.stream(DELETE))[-1]
                assert isinstance(pause, ApprovalRequired)
                decision = Decision(pause.approval.tool_calls[0].id, "approve", {"path": f"{cut}"})
            proxy.upcoming.append(Faults(cut_replies_after=cut))
            with Client(url, user, retry=QUICK) as client:
                resumed = client.resume_stream(
                    pause.approval, "reject", decisions=[decision], after=pause.id or 0
                )
                events = list(resumed)
            outputs = [event.output for event in events if isinstance(event, ToolResult)]
            assert outputs == [f"{cut} is deleted"]
            ids = [event.id or 0 for event in events]
            assert ids == list(range((pause.id or 0) + 1, (pause.id or 0) + 1 + len(ids)))


def test_cancel_and_background(client: Client) -> None:
    """A background request is busy, followed, canceled; what there was of its answer stays."""
    accepted = client.background("pieces-2000@50ms")
    with pytest.raises(TaskBusy) as busy:
        client.send("hello", task_id=accepted.task_id)
    assert busy.value.request_id == accepted.request_id
    stream = client.follow(accepted.request_id)
    events = [next(stream), next(stream)]
    assert client.cancel(accepted.request_id).status == "Canceled"
    events += list(stream)
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, RequestCanceled)
    assert (client.request(accepted.request_id).output or "").startswith("1")
    with pytest.raises(RequestCanceled):
        client.wait(accepted.request_id)
    again = client.background("pieces-5", task_id=accepted.task_id)
    assert client.wait(again.request_id, timeout=30).output == numbers(5)


def test_state(client: Client) -> None:
    """Everything that is kept can be listed, changed, moved and deleted.

    covers: SESSION-3, SESSION-8, THREAD-7
    """
    first = client.send("My name is Ada.")
    task_id = first.task_id
    client.send("My name is Bob.", task_id=task_id)
    assert [task.task_id for task in client.tasks(session_id=first.session_id)] == [task_id]
    assert [session.session_id for session in client.sessions()] == [first.session_id]
    assert [message.role for message in client.messages(task_id)] == ["user", "assistant"] * 2
    assert {step.kind for step in client.trace(task_id)} == {"model"}
    newest, oldest = client.checkpoints(task_id)
    assert (newest.current, oldest.checkpoint_id) == (True, first.request_id)
    assert [point.parent_id for point in client.checkpoints(task_id, parents=True)] == [
        oldest.checkpoint_id,
        None,
    ]
    parts = [(part.origin, part.role, part.text) for part in client.prompt(newest.request_id)]
    assert parts[1:] == [
        ("history", "user", "My name is Ada."),
        ("history", "assistant", first.output),
        ("request", "user", "My name is Bob."),
    ]
    fork = client.fork(task_id, checkpoint_id=oldest.checkpoint_id)
    assert client.send("What is my name?", task_id=fork.task_id).output == "Your name is Ada."
    client.rollback(task_id, oldest.checkpoint_id)
    assert client.send("What is my name?", task_id=task_id).output == "Your name is Ada."
    entries = list(client.audit(task_id))
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert all(later.prev_hash == entry.hash for entry, later in itertools.pairwise(entries))
    assert client.patch_task(task_id, metadata={"a": "b"}).metadata == {"a": "b"}
    exported = client.export_task(task_id)
    client.delete_task(task_id)
    with pytest.raises(NotFound):
        client.task(task_id)
    assert client.import_task(exported).task_id == task_id
    client.delete_session(first.session_id)
    assert list(client.tasks()) == []
    assert client.health().status == "ok"


def test_chat(url: str, user: str) -> None:
    """The terminal conversation finds the agent, asks for approval, and shows the history."""
    lines = iter(["My name is Ada.", DELETE, "a", "/history", "/rollback", "2", "/fork", "What is my name?"])
    screen = io.StringIO()
    console = Console(file=screen, width=120)

    def say(_: str) -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    assert chat(url.removesuffix(PREFIX), user, None, None, console=console, input=say) == 0
    shown = screen.getvalue()
    for text in ("Nice to meet you", "→ Files-delete", "← draft.md is deleted", "* 1", "Your name is Ada"):
        assert text in shown
