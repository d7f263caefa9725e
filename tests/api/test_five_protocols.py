"""One conversation over all five protocols: each asks for a call that needs approval, another one decides it.

Each finds the pause by its own means, and reads what was said over the others.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import a2a_talk
import agui_talk
import httpx
import mcp_talk
import pytest
from agui_talk import Page
from openai import OpenAI
from openai_talk import WEATHER, sdk
from served_routes import PATHS, PROTOCOLS
from talk import approve, call, items, left_to_collector, lines, paused, request, working_service
from wire import Json

from tealagents.domain.events import Recorded
from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until

ADA, SERVICE = "mock.ada", "service"
#: what the audit holds of a request that paused once: what was done, and by whom
AUDITED = [
    ("message.received", ADA),
    ("model.called", SERVICE),
    ("message.added", SERVICE),
    ("approval.requested", SERVICE),
    ("approval.decided", ADA),
    ("tool.intent", ADA),
    ("tool.called", SERVICE),
    ("message.added", SERVICE),
    ("model.called", SERVICE),
    ("message.added", SERVICE),
    ("request.completed", SERVICE),
]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with working_service(protocols=list(PROTOCOLS)) as pair:
        yield pair


class Speaker(Protocol):
    """A client of one protocol."""

    def ask(self, words: str, task: str | None) -> str:
        """Sends a message, which must pause, to a conversation or a new one; returns whose task it is."""

    def decide(self, task: str) -> str:
        """Approves what waits in a conversation; returns the answer."""


class Own:
    """v1alpha1: the task, and the inbox."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def ask(self, words: str, task: str | None) -> str:
        return str(paused(self._client, words, **({"task_id": task} if task else {}))["task_id"])

    def decide(self, task: str) -> str:
        waiting = items(self._client, "/approvals", status="pending", limit=200)
        (pause,) = [each for each in waiting if each["task_id"] == task]
        return str(approve(self._client, pause)["content"]["output"])


class OpenAi:
    """OpenAI's SDK: the conversation, and its items."""

    def __init__(self, client: OpenAI) -> None:
        self._client = client

    def ask(self, words: str, task: str | None) -> str:
        known = {"conversation": f"conv_{task}"} if task else {}
        response = self._client.responses.create(input=words, extra_body=known)
        assert response.output[-1].type == "mcp_approval_request"
        assert response.conversation is not None
        return response.conversation.id.removeprefix("conv_")

    def decide(self, task: str) -> str:
        newest = next(iter(self._client.conversations.items.list(f"conv_{task}", order="desc")))
        assert newest.type == "mcp_approval_request"
        answer = {"type": "mcp_approval_response", "approval_request_id": newest.id, "approve": True}
        return self._client.responses.create(input=[answer]).output_text  # type: ignore[list-item]


class A2A:
    """A2A: the context, and its task that needs input."""

    def __init__(self, wire: a2a_talk.Wire) -> None:
        self._wire = wire

    def ask(self, words: str, task: str | None) -> str:
        sent = self._wire.send(words, **({"contextId": task} if task else {}))
        assert a2a_talk.state(sent) == "INPUT_REQUIRED"
        return str(sent["contextId"])

    def decide(self, task: str) -> str:
        wanted = {"contextId": task, "status": "TASK_STATE_INPUT_REQUIRED"}
        (waiting,) = self._wire.result("ListTasks", wanted)["tasks"]
        decided = self._wire.result("SendMessage", {"message": a2a_talk.decision(waiting)})
        return a2a_talk.answer(decided["task"])


class AgUi:
    """AG-UI: a page that joins the thread, and is shown its interrupt."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def ask(self, words: str, task: str | None) -> str:
        page = Page(self._client, task)
        if task is not None:
            page.run()
        assert page.say(words)[-1]["outcome"]["type"] == "interrupt"
        return page.thread

    def decide(self, task: str) -> str:
        page = Page(self._client, task)
        page.answer(page.run(), {"action": "approve"})
        return str(page.said()[-1])


class Mcp:
    """MCP: a host that cannot ask its user, and is shown what `decide` needs when it asks again."""

    def __init__(self, service: ServiceThread) -> None:
        self._service = service

    def ask(self, words: str, task: str | None) -> str:
        answer = asyncio.run(self._called("ask", message=words, **({"conversation": task} if task else {})))
        assert answer["status"] == "Paused"
        return str(answer["conversation"])

    def decide(self, task: str) -> str:
        refused = asyncio.run(self._called("ask", message="and now?", conversation=task))
        assert mcp_talk.error(refused) == "approval_pending"
        named = {name: refused[name] for name in ("request_id", "approval_id")}
        return str(asyncio.run(self._called("decide", **named, action="approve"))["output"])

    async def _called(self, tool: str, **arguments: str) -> Json:
        async with mcp_talk.host(self._service, "2026-07-28") as client:
            return mcp_talk.structured_result(await client.call_tool(tool, arguments))


@pytest.fixture(scope="module")
def speakers(running: tuple[ServiceThread, OfflineModel]) -> Iterator[list[Speaker]]:
    service = running[0]
    with ExitStack() as stack:
        ada = stack.enter_context(service.client("ada"))
        rpc = stack.enter_context(a2a_talk.Wire(service, a2a_talk.RPC))
        openai = stack.enter_context(sdk(service))
        others: dict[str, Speaker] = {
            "openai": OpenAi(openai),
            "a2a": A2A(rpc),
            "ag-ui": AgUi(ada),
            "mcp": Mcp(service),
        }
        yield [Own(ada), *(others[name] for name in PROTOCOLS)]


@pytest.mark.parametrize("place", range(len(PATHS)), ids=str)
def test_what_was_said_is_not_left_to_the_garbage_collector(
    speakers: list[Speaker], ada: httpx.Client, tmp_path: Path, place: int
) -> None:
    """It would stay for hundreds of requests: megabytes of each, with images."""
    words = call("Work-write", file=str(tmp_path / "written"), line="x")
    for first in (True, False):  # what is made once is made
        with left_to_collector() as own:
            speakers[place].decide(speakers[place].ask(words, None))
            ada.get("/health").raise_for_status()  # what ends after its answer has ended
            assert first or own() == set()


UNKNOWN = "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"
#: messages that are refused
REFUSED: dict[str, tuple[str, Json]] = {
    "v1alpha1": ("", {"items": [{"content_type": "text", "content": "hi"}], "task_id": UNKNOWN}),
    "v1alpha1, body": ("/sse", {"items": [{"content_type": "text", "content": 1}]}),
    "responses": ("/openai/v1/responses", {"input": "hi", "conversation": f"conv_{UNKNOWN}"}),
    "responses, body": ("/openai/v1/responses", {"input": 1}),
    "a2a": ("/a2a/message:send", {"message": a2a_talk.message("hi", taskId=UNKNOWN)}),
    "ag-ui, body": ("/ag-ui", {"threadId": "refused", "messages": 1}),
    "mcp": ("/mcp", mcp_talk.asking("hi", conversation=UNKNOWN)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_was_refused_is_not_left_to_the_garbage_collector(
    name: str, running: tuple[ServiceThread, OfflineModel]
) -> None:
    """Nor is it kept by the error, whose traceback knows all the places that the message came to."""
    path, body = REFUSED[name]
    with running[0].client("ada", headers=a2a_talk.VERSION) as client:
        if name == "mcp":
            client.headers.update(mcp_talk.headers_of(body, "2026-07-28"))
        for first in (True, False):
            with left_to_collector() as own:
                answer = client.post(path, json=body)
                client.get("/health").raise_for_status()
                assert answer.is_error or "not_found" in answer.text
                assert first or own() == set()


@pytest.mark.parametrize("shift", range(len(PATHS)))
def test_one_conversation_over_five_protocols_is_one_history(
    speakers: list[Speaker], model: OfflineModel, ada: httpx.Client, tmp_path: Path, shift: int
) -> None:
    """Whichever protocol starts, asks and decides: all of it is stored once, in order."""
    file, task = tmp_path / "written", None
    names = [f"{shift} {type(each).__name__}" for each in speakers]
    said = [call("Work-write", file=str(file), line=name) for name in names]
    answers = []
    for n, words in enumerate(said):
        task = speakers[(n + shift) % len(speakers)].ask(words, task)
        answers.append(speakers[(n + 2 * shift) % len(speakers)].decide(task))
    assert task is not None
    assert lines(file) == names
    assert all(name in answer for name, answer in zip(names, answers, strict=True))

    messages = items(ada, f"/tasks/{task}/messages")
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"] * len(said)
    assert [message["items"][0]["content"] for message in messages if message["role"] == "user"] == said
    assert [message["items"][0]["content"] for message in messages[3::4]] == answers
    requests = [message["request_id"] for message in messages[::4]]
    assert [message["request_id"] for message in messages] == [each for each in requests for _ in range(4)]
    assert {request(ada, each)["status"] for each in requests} == {"Completed"}
    # the model was sent every message that came before its last answer, and the system prompt
    assert len(model.requests[-1]["body"]["messages"]) == len(messages)

    steps = items(ada, f"/tasks/{task}/trace")
    kinds = ["model", "approval", "approval", "tool", "model"]
    assert [(step["request_id"], step["kind"]) for step in steps] == list(itertools.product(requests, kinds))
    decided = [step["output"]["decided_by"] for step in steps if step["name"] == "decided"]
    assert decided == [{"tid": "mock", "oid": "ada"}] * len(said)

    audit = items(ada, f"/tasks/{task}/audit", limit=200)
    assert [entry["seq"] for entry in audit] == list(range(1, len(audit) + 1))
    assert [entry["prev_hash"] for entry in audit[1:]] == [entry["hash"] for entry in audit[:-1]]
    entries = [(entry["request_id"], entry["action"], entry["actor"]) for entry in audit]
    assert entries == [(of, *each) for of in requests for each in AUDITED]


def test_what_waits_elsewhere_is_refused_with_what_each_protocol_can_do(
    running: tuple[ServiceThread, OfflineModel], ada: httpx.Client
) -> None:
    """Another message to a conversation in which one client's own tool waits, by clients of the others."""
    ask = {"input": call("get_weather", place="Rome"), "tools": [WEATHER]}
    task = ada.post("/openai/v1/responses", json=ask).json()["conversation"]["id"].removeprefix("conv_")
    messages = [{"role": "user", "content": "and now?"}]
    named = {"x-conversation-id": f"conv_{task}"}
    chat = ada.post("/openai/v1/chat/completions", json={"messages": messages}, headers=named)
    with a2a_talk.Wire(running[0], a2a_talk.REST) as rest:
        sent = rest.call("SendMessage", {"message": a2a_talk.message("and now?", contextId=task)})
    page = Page(ada, task)
    page.messages = [agui_talk.user("and now?")]
    shown = agui_talk.refusal(page.post(), 409, "approval_pending")["message"]
    assert {sent.status_code, chat.status_code} == {409}
    assert "Over Responses, send mcp_approval_response" in chat.json()["error"]["message"]
    assert "runs can only be rejected" in sent.json()["error"]["message"]
    assert "Run the thread without a new message to see" in shown


def test_a_history_that_a_conversation_began_with_is_no_task_of_a_list(
    running: tuple[ServiceThread, OfflineModel],
) -> None:
    """Nor are items that were added later: A2A's lists have what the agent was asked."""
    turn: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    with sdk(running[0]) as openai, a2a_talk.Wire(running[0], a2a_talk.RPC) as rpc:
        made = openai.conversations.create(items=turn)
        openai.conversations.items.create(made.id, items=turn)
        context = made.id.removeprefix("conv_")
        assert rpc.result("ListTasks", {"contextId": context})["totalSize"] == 0
        sent = rpc.send(contextId=context)
        listed = rpc.result("ListTasks", {"contextId": context})
    assert [task["id"] for task in listed["tasks"]] == [sent["id"]]
    assert listed["totalSize"] == 1


def test_each_protocol_reads_what_was_said_over_the_others(
    speakers: list[Speaker], running: tuple[ServiceThread, OfflineModel], ada: httpx.Client, tmp_path: Path
) -> None:
    """Items, a snapshot, and the tasks of a context say the same as v1alpha1's messages."""
    task = None
    for speaker in speakers:
        task = speaker.ask(call("Work-write", file=str(tmp_path / "written"), line="x"), task)
        speaker.decide(task)
    assert task is not None
    texts = [message["items"][0]["content"] for message in items(ada, f"/tasks/{task}/messages")[::4]]

    page = Page(ada, task)
    page.run()
    assert page.said("user") == texts
    with sdk(running[0]) as openai:
        listed = openai.conversations.items.list(f"conv_{task}", order="asc", limit=100)
        shown: list[Any] = [item.to_dict() for item in listed]
    assert [each["content"][0]["text"] for each in shown if each.get("role") == "user"] == texts
    assert len([each for each in shown if each["type"] == "mcp_call"]) == len(speakers)
    with a2a_talk.Wire(running[0], a2a_talk.REST) as rest:
        tasks = rest.result("ListTasks", {"contextId": task, "historyLength": 10})["tasks"]
    assert [each["history"][0]["parts"][0]["text"] for each in reversed(tasks)] == texts


CAPITALS = "DATA:IMAGE/PNG;BASE64,iVBORw0KGgo="
_RAW = CAPITALS.partition(",")[2]
_URL = {"type": "image", "source": {"type": "url", "value": CAPITALS}}
_DATA = {"type": "image", "source": {"type": "data", "value": _RAW, "mimeType": "IMAGE/PNG"}}
_PART = {"raw": _RAW, "mediaType": "IMAGE/PNG"}
_CHAT = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": CAPITALS}}]}
_INPUT = {"role": "user", "content": [{"type": "input_image", "image_url": CAPITALS}]}
#: an image as clients can send it
IMAGES: dict[str, tuple[str, Json]] = {
    "v1alpha1": ("", {"items": [{"content_type": "image", "content": CAPITALS}]}),
    "responses": ("/openai/v1/responses", {"input": [_INPUT]}),
    "chat completions": ("/openai/v1/chat/completions", {"model": "any", "messages": [_CHAT]}),
    "a2a": ("/a2a/message:send", {"message": a2a_talk.message(parts=[_PART])}),
    "ag-ui": ("/ag-ui", agui_talk.run_input("image", agui_talk.user([_URL]))),
    "ag-ui, data": ("/ag-ui", agui_talk.run_input("data", agui_talk.user([_DATA]))),
}


@pytest.mark.parametrize("name", IMAGES)
def test_the_kind_of_an_image_is_sent_in_lower_case(
    name: str, running: tuple[ServiceThread, OfflineModel]
) -> None:
    """Case means nothing in it by its standards (RFC 2397, RFC 2045), but not all who read it know that.
    covers: MODEL-2"""
    path, body = IMAGES[name]
    service, model = running
    with service.client("ada", headers=a2a_talk.VERSION) as client:
        client.post(path, json=body).raise_for_status()
    (part,) = model.requests[-1]["body"]["messages"][-1]["content"]
    assert part["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="


#: ends of lines to `str.splitlines`, by which some clients read streams
LINE_ENDS = "one\u0085two\u2028three\u2029four"
#: a page that joins a thread is shown its messages
JOINED = "ag-ui, joined"
STREAMS: dict[str, tuple[str, Json]] = {
    "v1alpha1": ("/sse", {"items": [{"content_type": "text", "content": LINE_ENDS}]}),
    "responses": ("/openai/v1/responses", {"input": LINE_ENDS, "stream": True}),
    "chat completions": (
        "/openai/v1/chat/completions",
        {"model": "any", "messages": [{"role": "user", "content": LINE_ENDS}], "stream": True},
    ),
    "a2a": ("/a2a/message:stream", {"message": a2a_talk.message(LINE_ENDS)}),
    "ag-ui": ("/ag-ui", agui_talk.run_input("lines", agui_talk.user(LINE_ENDS))),
    JOINED: ("/ag-ui", agui_talk.run_input("joined")),
    "mcp": ("/mcp", mcp_talk.asking(LINE_ENDS)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_text_ends_no_line_of_a_stream_whatever_its_reader_takes_for_one(
    name: str, running: tuple[ServiceThread, OfflineModel]
) -> None:
    """The SDKs of A2A and others leave it to httpx, which ends lines at more than the format does."""
    path, body = STREAMS[name]
    with running[0].client("ada", headers=a2a_talk.VERSION) as client:
        if name == "mcp":
            session = {"mcp-session-id": mcp_talk.opened(client)}
            client.headers.update(mcp_talk.headers_of(body, "2025-11-25") | session)
        elif name == JOINED:
            first = agui_talk.run_input("joined", agui_talk.user(LINE_ENDS))
            client.post(path, json=first).raise_for_status()
        stream = client.post(path, json=body)
    assert stream.headers["content-type"].startswith("text/event-stream"), stream.text
    read = stream.text.splitlines()
    assert read == stream.text.replace("\r\n", "\n").split("\n")[:-1]
    sent = [line.removeprefix("data: ") for line in read if line.startswith("data: {")]
    said = json.dumps([json.loads(line) for line in sent], ensure_ascii=False)
    assert all(end in said for end in "\u0085\u2028\u2029")


@pytest.fixture
def counted(running: tuple[ServiceThread, OfflineModel], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The codes of the errors that are counted."""
    codes: list[str] = []
    observer = running[0].app.exchange.agent.observer
    monkeypatch.setattr(type(observer), "refused", lambda _, error: codes.append(error.code))
    return codes


def answer_to_a_fault(name: str, service: ServiceThread, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a client is answered when its message meets a fault, whose text quotes a key."""

    async def fault(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the key is 1234")

    path, body = STREAMS[name]
    with service.client("ada", headers=a2a_talk.VERSION) as client:
        if name == "mcp":
            client.headers.update(mcp_talk.headers_of(body))
        monkeypatch.setattr(service.app.exchange.service, "submit", fault)
        monkeypatch.setattr(type(service.app.exchange.tasks), "head", fault)
        return client.post(path, json=body).text


@pytest.mark.parametrize("name", STREAMS)
def test_a_fault_is_logged_and_shows_none_of_its_text(
    name: str,
    running: tuple[ServiceThread, OfflineModel],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may quote what it was about, such as a key; libraries would show it, or leave it out of the log."""
    answered = answer_to_a_fault(name, running[0], monkeypatch)
    assert "Internal error" in answered
    assert "1234" not in answered
    # the server's own log comes after the response
    until(lambda: [each.levelname for each in caplog.records if each.exc_info] == ["ERROR"])


@pytest.mark.parametrize("name", [name for name in STREAMS if name != JOINED])
def test_a_fault_is_counted_by_its_code_and_logged_once(
    name: str,
    running: tuple[ServiceThread, OfflineModel],
    counted: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whether the gate logs it or the server does: an operator finds one line, with its traceback."""
    assert "Internal error" in answer_to_a_fault(name, running[0], monkeypatch)
    until(lambda: [each for each in caplog.records if each.exc_info])
    assert counted == ["internal_error"]
    assert [each.levelname for each in caplog.records if each.levelname != "INFO"] == ["ERROR"]


# without progress, a call of MCP follows no events
@pytest.mark.parametrize("name", [name for name in STREAMS if name not in (JOINED, "mcp")])
def test_a_fault_within_a_stream_is_counted_by_its_code(
    name: str,
    running: tuple[ServiceThread, OfflineModel],
    counted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its status has been sent, and says nothing of it."""

    async def fault(*_: Any, **__: Any) -> AsyncGenerator[Sequence[Recorded]]:
        raise RuntimeError("a fault")
        yield

    path, body = STREAMS[name]
    with running[0].client("ada", headers=a2a_talk.VERSION) as client:
        monkeypatch.setattr(running[0].app.exchange.service, "follow", fault)
        with suppress(httpx.RemoteProtocolError):
            client.post(path, json=body)
    until(lambda: counted)
    assert counted == ["internal_error"]
