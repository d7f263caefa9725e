"""The fold of recorded events, over generated runs."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response
from openai_talk import EVENT, Json

from tealagents.api import sse
from tealagents.api.exchange import RequestView
from tealagents.api.openai.chat import Chunks
from tealagents.api.openai.fold import DONE, UNSEEN, ResponseFold
from tealagents.api.stretches import Stretch
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
    Caller,
    Failure,
    FinishReason,
    Outcome,
    RequestRecord,
    TokenUsage,
    ToolCall,
    User,
)
from tealagents.state.streams import JUMP

NOW = datetime(2026, 11, 22, tzinfo=UTC)
RECORD = RequestRecord(request_id="r", task_id="t", session_id="s", status="Running", created_at=NOW)
VIEW = RequestView(record=RECORD, partition="p", caller=Caller(User("t", "o")), own=True)
STRETCH = Stretch(view=VIEW, number=1, before=None, pause=None)
REASONS: list[FinishReason] = ["stop", "length", "content_filter", "refusal"]


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    """The events of one stretch, in any order in which they can come."""
    events: list[Event] = [Started(draw(st.sampled_from(["Running", "Queued"])))]
    under_way: list[ToolCall] = []
    for n in range(draw(st.integers(0, 12))):
        what = draw(st.sampled_from(["text", "text", "call", "return"]))
        if what == "text":
            events.append(TextDelta(draw(st.text(max_size=4)), draw(st.booleans())))
        elif what == "call":
            under_way.append(ToolCall(f"c{n}", draw(st.sampled_from(["Work-note", "note"])), "{}"))
            events.append(ToolCalled(under_way[-1]))
        elif under_way:
            call = under_way.pop(draw(st.integers(0, len(under_way) - 1)))
            events.append(ToolReturned(call.id, call.tool, draw(st.text()), draw(st.booleans()), 1.0))
    return [*events, draw(ends())]


@st.composite
def ends(draw: st.DrawFn) -> Event:
    match draw(st.sampled_from(["completed", "paused", "failed", "canceled"])):
        case "completed":
            reason = draw(st.sampled_from(REASONS))
            return Completed(Outcome(draw(st.text()), TokenUsage(1, 2, 3), None, reason))
        case "failed":
            return Failed(Failure("model_error", "It broke."))
        case "canceled":
            return Canceled(Failure("request_canceled", "It was canceled."))
    links = [{"server": "s", "url": "https://s.example/", "scopes": ()}]
    return Paused(
        Approval(
            approval_id="a",
            request_id="r",
            task_id="t",
            session_id="s",
            owner=User("t", "o"),
            created_at=NOW,
            expires_at=NOW,
            status=draw(st.sampled_from(["pending", "decided", "canceled"])),
            calls=tuple(
                ToolCall(f"p{n}", "Work-write", "{}", by_client=draw(st.booleans()))
                for n in range(draw(st.integers(1, 3)))
            ),
            message="Approve, please.",
            authorizations=tuple(draw(st.sampled_from([[], links]))),
        )
    )


def frames(events: Sequence[Event], *, after: int = -1) -> bytes:
    fold = ResponseFold(STRETCH, "Tester", after=after)
    return b"".join(fold(Recorded(n + 1, event)) for n, event in enumerate(events))


def parsed(sent: bytes) -> list[Json]:
    assert sent.endswith(DONE)
    parts = sent.removesuffix(DONE).decode().split("\n\n")[:-1]
    return [json.loads(part.partition("\ndata: ")[2]) for part in parts]


@given(runs(), st.integers(-1, 60))
def test_any_tail_is_what_was_sent_before(run: list[Event], n: int) -> None:
    """`fold(all)[n:] == resumed(n)`, byte for byte, and the events are numbered without a gap."""
    whole = parsed(frames(run))
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    assert parsed(frames(run, after=n)) == whole[n + 1 :]


@given(runs(), st.integers(1, 60))
def test_the_end_of_a_dead_process_is_behind_all_that_it_showed(run: list[Event], stored: int) -> None:
    """However much of it was not stored: a client that continues behind what it saw gets all of the end."""
    shown = run[:-1]
    fold = ResponseFold(STRETCH, "Tester")
    seen = b"".join(fold(Recorded(n, event)) for n, event in enumerate(shown, 1))
    last = parsed(seen + DONE)[-1]["sequence_number"]
    resumed = ResponseFold(STRETCH, "Tester", after=last)
    kept = b"".join(resumed(Recorded(n, event)) for n, event in enumerate(shown[:stored], 1))
    ended = resumed(Recorded(min(stored, len(shown)) + JUMP, Failed(Failure("interrupted", "It died."))))
    assert kept == b""
    assert [event["type"] for event in parsed(ended)][:1] == ["error"]
    assert parsed(ended)[-1]["type"] == "response.failed"


@given(runs())
def test_every_event_is_what_the_sdk_takes(run: list[Event]) -> None:
    """Each is valid; items are added, then done, once each, and make the output of the last event."""
    whole = parsed(frames(run))
    for event in whole:
        EVENT.validate_python(event)
    added = [event["output_index"] for event in whole if event["type"] == "response.output_item.added"]
    done = {
        event["output_index"]: event["item"]
        for event in whole
        if event["type"] == "response.output_item.done"
    }
    assert added == list(range(len(added))) == sorted(done)
    final = whole[-1]["response"]
    Response.model_validate(final)
    assert final["output"] == [done[n] for n in added]
    deltas = [event["delta"] for event in whole if event["type"] == "response.output_text.delta"]
    parts = [part for item in final["output"] for part in item.get("content", [])]
    assert "".join(deltas) == "".join(part.get("text", "") for part in parts)


@given(runs())
def test_what_is_read_is_what_was_streamed(run: list[Event]) -> None:
    """The fold that encodes nothing ends with the document that the last event holds."""
    fold = ResponseFold(STRETCH, "Tester", after=UNSEEN)
    for event in run:
        fold.take(event)
    assert fold.response == parsed(frames(run))[-1]["response"]


def test_a_completion_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No delta is added to a copy of the answer so far, which would cost the square of its length."""
    copied = 0

    class Counted(str):
        def __add__(self, other: str) -> "Counted":
            nonlocal copied
            copied += len(self) + len(other)
            return Counted(str(self) + str(other))

        def __radd__(self, other: str) -> "Counted":
            return Counted(other) + self

    # msgspec encodes no subclass of str
    monkeypatch.setattr(sse, "data", lambda document: json.dumps(document).encode())
    fold, call = Chunks(STRETCH, "Tester"), ToolCall("c", "note", "{}")
    deltas: list[Event] = [TextDelta(Counted("word ")) for _ in range(100)]
    for event in (*deltas, ToolCalled(call), *deltas, Completed(Outcome("", TokenUsage(1, 2, 3)))):
        fold.take(event)
    assert fold.completion["choices"][0]["message"]["content"] == "word " * 100 + "\n\n" + "word " * 100
    assert copied <= 2 * 100 * len("word ")
