"""The fold of recorded events, over generated runs, and over those that a service has made."""

import json
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from agui_talk import Json, Page, events, run_input, streamed_text, user
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from talk import call

from tealagents.api import sse
from tealagents.api.ag_ui import inputs
from tealagents.api.ag_ui.fold import RunFold, started
from tealagents.api.transcripts import Kept, as_kept
from tealagents.domain.events import (
    Canceled,
    Completed,
    Event,
    Failed,
    Paused,
    Recorded,
    Started,
    TextDelta,
    ToolCalled,
    ToolReturned,
)
from tealagents.domain.models import (
    Approval,
    Decision,
    Failure,
    Item,
    Message,
    Outcome,
    Role,
    TokenUsage,
    ToolCall,
    User,
)

NOW = datetime(2026, 11, 22, tzinfo=UTC)
IDS = {"session_id": "s", "task_id": "t", "request_id": "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"}
GIVEN = inputs.read(run_input("thread", user("hi"), runId="run"))
#: what a client from before 1.0 sends
OLD = inputs.read(run_input("thread", user("hi"), runId="run", protocolVersion=None))
LINK = {"server": "s", "url": "https://s.example/", "scopes": ()}
APPROVALS = st.builds(
    lambda links, clients, actions: Approval(
        approval_id="a",
        request_id=IDS["request_id"],
        task_id="t",
        session_id="s",
        owner=User("t", "o"),
        created_at=NOW,
        expires_at=NOW,
        calls=tuple(ToolCall(f"p{n}", "Work-write", "{}", by_client=each) for n, each in enumerate(clients)),
        decisions=tuple(Decision(id=f"p{n}", action=each) for n, each in enumerate(actions[: len(clients)])),
        message="Approve, please.",
        authorizations=tuple(
            {"server": "s", "url": "https://s.example/", "scopes": ()} for _ in range(links)
        ),
        usage=TokenUsage(1, 1, 2),
    ),
    st.integers(0, 2),
    st.lists(st.booleans(), min_size=1, max_size=3),
    st.lists(st.sampled_from(["approve", "reject"]), min_size=3, max_size=3),
)
ENDS = st.one_of(
    st.builds(lambda text: Completed(Outcome(text, TokenUsage(3, 2, 5), {"a": 1})), st.text()),
    st.just(Failed(Failure("model_error", "It broke."))),
    st.just(Canceled(Failure("request_canceled", "It was canceled."))),
    st.builds(Paused, APPROVALS),
)


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    """The events of one stretch, in any order in which they can come."""
    made: list[Event] = [Started(draw(st.sampled_from(["Running", "Queued"])))]
    under_way: list[ToolCall] = []
    for n in range(draw(st.integers(0, 12))):
        what = draw(st.sampled_from(["text", "text", "call", "return"]))
        if what == "text":
            made.append(TextDelta(draw(st.text(max_size=4)), draw(st.booleans())))
        elif what == "call":
            name = draw(st.sampled_from(["Work-note", "note"]))
            call_id = draw(st.sampled_from([f"c{n}", "p0"]))
            if call_id not in [each.id for each in under_way]:
                under_way.append(ToolCall(call_id, name, "{}"))
                made.append(ToolCalled(under_way[-1]))
        elif under_way:
            ended = under_way.pop(draw(st.integers(0, len(under_way) - 1)))
            made.append(ToolReturned(ended.id, ended.tool, draw(st.text()), draw(st.booleans()), 1.0))
    return [*made, draw(ENDS)]


def folded(run: Sequence[Event], before: Approval | None, sent: inputs.Given = GIVEN) -> bytes:
    fold = RunFold(sent, IDS, before, None)
    return b"".join(fold(Recorded(n + 1, event)) for n, event in enumerate(run))


@given(runs(), st.none() | APPROVALS, st.sampled_from([GIVEN, OLD]))
def test_every_run_is_in_order(run: list[Event], before: Approval | None, sent: inputs.Given) -> None:
    """Each event is what the protocol's models say; what is opened is closed, and nothing is sent twice."""
    found = events(folded(run, before, sent).decode())
    shown = [event["toolCallId"] for event in found if event["type"] == "TOOL_CALL_START"]
    assert len(shown) == len(set(shown))
    if before is not None:
        assert not {f"call_{IDS['request_id']}_{each.id}" for each in before.calls} & set(shown)
    texts = [event.text for event in run if isinstance(event, TextDelta)]
    assert streamed_text(found).startswith("".join(texts))


@given(runs(), st.none() | APPROVALS)
def test_the_same_events_give_the_same_bytes(run: list[Event], before: Approval | None) -> None:
    assert folded(run, before) == folded(run, before)


@pytest.mark.parametrize(("total", "shown"), [(15, (10, 5, 15)), (40, (10, 30, 40)), (0, (10, 5, 15))])
def test_the_tokens_of_a_run_are_what_went_in_and_what_came_out(
    total: int, shown: tuple[int, int, int]
) -> None:
    """The total is their sum, also where the service counts reasoning in the total alone, or counts none."""
    run: list[Event] = [Started(), Completed(Outcome("hi", TokenUsage(10, 5, total)))]
    (usage,) = events(folded(run, None).decode())[-1]["usage"]
    assert (usage["inputTokens"], usage["outputTokens"], usage["totalTokens"]) == shown


ROLES: list[Role] = ["user", "assistant", "tool", "tool", "assistant"]
HISTORY = [
    Message(
        message_id=f"m{n}",
        request_id=IDS["request_id"],
        role=role,
        created_at=NOW,
        items=(Item("text", f"text {n}"),),
        tool_call_id=f"c{n}" if role == "tool" else None,
    )
    for n, role in enumerate(ROLES)
]


_PAIR: tuple[Role, Role] = ("user", "assistant")


def snapshot(*page: Json, history: Sequence[Message] = HISTORY) -> list[Json]:
    """The messages that a page is set back to."""
    begun = started(inputs.read(run_input("thread", *page)), IDS, list(history)).decode()
    shown: list[Json] = json.loads(begun.split("\n\n")[1].removeprefix("data: "))["messages"]
    return shown


@pytest.mark.parametrize("has", [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1, 4], [1, 4], [4], []])
def test_a_page_shows_a_snapshot_in_order(has: list[int]) -> None:
    """Whatever of it the page has, which leaves that in its place; up to what it lacks nothing is renamed."""
    there = snapshot()
    page = Page(httpx.Client())
    page.messages = [there[n] for n in has]
    page._apply({"type": "MESSAGES_SNAPSHOT", "messages": snapshot(*page.messages)})
    assert [m["content"] for m in page.messages] == [m["content"] for m in there]
    kept = next((n for n in range(5) if n not in has), 5)
    assert page.messages[:kept] == there[:kept]
    assert not {m["id"] for m in page.messages[kept:]} & {there[n]["id"] for n in has}


@pytest.mark.parametrize("has", [[0, 1, 2, 3, 4], [0, 1], [4], []])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_snapshot_leaves_a_page_its_own_instructions(has: list[int], place: int) -> None:
    """Unchanged and where they are, also for a page that takes a snapshot as its messages."""
    there = snapshot()
    system: Json = {"id": "s", "role": "system", "content": "Be kind."}
    developer: Json = {"id": "d", "role": "developer", "content": "", "metadata": {"a": 2**70}, "mine": [1.5]}
    page = Page(httpx.Client())
    page.messages = [there[n] for n in has]
    page.messages.insert(place if place >= 0 else len(has), system)
    page.messages.append(developer)
    shown = snapshot(*page.messages)
    page._apply({"type": "MESSAGES_SNAPSHOT", "messages": shown})
    assert shown == page.messages
    assert [each for each in shown if each["id"] in "sd"] == [system, developer]
    assert [each["content"] for each in shown if each["id"] not in "sd"] == [m["content"] for m in there]


def test_a_text_that_was_said_twice_does_not_change_the_order() -> None:
    """Of two equal messages a page has kept the later one, behind an answer to the first."""
    requests = [IDS["request_id"], str(uuid4())]
    history = [
        Message(
            message_id=str(uuid4()),
            request_id=request_id,
            role=role,
            created_at=NOW,
            items=(Item("text", "yes" if role == "user" else f"answer {n}"),),
        )
        for n, request_id in enumerate(requests)
        for role in _PAIR
    ]
    there = snapshot(history=history)
    page = Page(httpx.Client())
    page.messages = [there[1], {"id": "the page's own", "role": "user", "content": "yes"}, there[3]]
    again = snapshot(*page.messages, history=history)
    page._apply({"type": "MESSAGES_SNAPSHOT", "messages": again})
    assert [m["content"] for m in page.messages] == [m["content"] for m in there]


def test_a_message_of_many_parts_is_compared_once_with_each_of_a_pages() -> None:
    """However many of those say what it begins with: comparing takes no time that a user can multiply."""
    compared = 0

    class Counted(Item, frozen=True):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return isinstance(other, Item) and self.content == other.content

        __hash__ = Item.__hash__

    parts = tuple(Counted("text", "a") for _ in range(50))
    said = replace(HISTORY[0], items=(*parts, Counted("text", "b")))
    kept = [Kept(f"m{n}", "user", (Item("text", "a"),)) for n in range(500)]
    assert [name for name, _ in as_kept([said], kept, lambda message, n: "ours")] == ["ours"]
    assert compared <= 52


@given(
    st.lists(st.sampled_from(["", "a", "b", "aa", "ab"]), max_size=12),
    st.text("ab", min_size=1, max_size=5),
    st.integers(0, 3),
)
def test_messages_that_say_together_what_one_says_are_found(page: list[str], text: str, others: int) -> None:
    """The first ones that do, wholly, and only those of its role: each item is a letter here."""
    kept = [
        Kept(f"m{n}", "assistant" if n % 4 < others else "user", tuple(Item("text", c) for c in word))
        for n, word in enumerate(page)
    ]
    said = replace(HISTORY[0], items=tuple(Item("text", c) for c in text))
    spans = [(n, end) for n in range(len(page)) for end in range(n + 1, len(page) + 1)]
    alike = [
        [f"m{place}" for place in range(n, end)]
        for n, end in spans
        if "".join(page[n:end]) == text
        and all(page[n:end])
        and {each.role for each in kept[n:end]} == {"user"}
    ]
    names = [name for name, _ in as_kept([said], kept, lambda message, n: "ours")]
    assert names == (alike[0] if alike else ["ours"])


def test_the_name_of_a_step_is_found_without_comparing_it_with_each_of_those_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model may call one tool a thousand times at once; each step has a name of its own."""
    compared = 0

    class Counted(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    # msgspec encodes no subclass of str
    monkeypatch.setattr(sse, "data", lambda document: f"data: {json.dumps(document)}\n\n".encode())
    fold, count = RunFold(GIVEN, IDS, None, None), 100
    run: list[Event] = [ToolCalled(ToolCall(f"c{n}", Counted("note"), "{}")) for n in range(count)]
    run.append(Completed(Outcome("", TokenUsage(1, 2, 3))))
    found = events(b"".join(fold(Recorded(n, event)) for n, event in enumerate(run, 1)).decode())
    shown = [event["stepName"] for event in found if event["type"] == "STEP_STARTED"]
    assert shown == ["note", *(f"note #{n}" for n in range(2, count + 1))]
    assert compared <= 2 * count


def test_results_keep_their_ids_in_the_order_in_which_they_came() -> None:
    """It need not be that of the calls, in which the history has them."""
    question, calls, first, second, answer = snapshot()
    assert snapshot(question, calls, second, first, answer) == [question, calls, first, second, answer]


TURNS = st.lists(
    st.sampled_from(["hello", "pieces-7", "note", "two notes", "approve", "reject", "abandon"]),
    min_size=1,
    max_size=4,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TURNS)
def test_replay_from_the_log_gives_the_same_events(ada: httpx.Client, turns: list[str]) -> None:
    """Each run of a conversation, asked for again when all is over, is what it was, byte for byte.

    Another page is given the messages under the ids that they had as they came.
    """
    page, sent = Page(ada), list[tuple[Json, str]]()

    def run(body: Json) -> list[Json]:
        answer = ada.post("/ag-ui", json=body)
        sent.append((body, answer.text))
        found = events(answer.text)
        for event in found:
            page._apply(event)
        return found

    with tempfile.TemporaryDirectory() as folder:
        note = call("Work-note", file=str(Path(folder) / "file"), line="x")
        write = call("Work-write", file=str(Path(folder) / "file"), line="x")
        words = {"note": note, "two notes": f"{note} and {note}"}
        for turn in turns:
            text = words.get(turn, write if turn in ("approve", "reject", "abandon") else turn)
            page.messages.append(user(text))
            found = run(run_input(page.thread, *page.messages))
            if (outcome := found[-1]["outcome"])["type"] == "interrupt":
                (asked,) = outcome["interrupts"]
                resolved = {"status": "resolved", "payload": {"action": turn}}
                answer = {"status": "cancelled"} if turn == "abandon" else resolved
                resume = [{"interruptId": asked["id"], **answer}]
                run(run_input(page.thread, *page.messages, resume=resume))
        for body, text in sent:
            assert ada.post("/ag-ui", json=body).text == text
        late = Page(ada, page.thread)
        late.run()
        shown, read = ([(m["role"], m["id"]) for m in each.messages] for each in (page, late))
        theirs = [each for each in read if each[0] != "user"]
        assert sorted(each for each in shown if each[0] != "user") == sorted(
            theirs
        )  # results come in any order
