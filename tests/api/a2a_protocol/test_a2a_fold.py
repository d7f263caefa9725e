"""Recorded events as updates, for what no model of the tests over HTTP does."""

import json
from datetime import UTC, datetime

import pytest
from a2a_talk import state
from starlette.requests import Request

from tealagents.api.a2a.fold import Updates
from tealagents.api.gate import AdmittedCall
from tealagents.domain.events import Completed, Event, Recorded, Started
from tealagents.domain.models import Outcome, RequestRecord, TokenUsage


@pytest.mark.parametrize("text", ["Hello!", ""])
def test_an_answer_without_pieces_comes_once(text: str) -> None:
    """As of a model that does not stream: the artifact is there, even if it is empty, and is sent once."""
    now = datetime(2026, 11, 24, tzinfo=UTC)
    record = RequestRecord(request_id="r", task_id="t", session_id="s", status="Running", created_at=now)
    call = AdmittedCall(Request({"type": "http", "path": "/a2a", "headers": []}), "/a2a", body={"id": 1})
    fold = Updates(record, call)
    events: list[Event] = [Started(), Completed(Outcome(text, TokenUsage()))]
    frames = b"".join(fold(Recorded(n, event)) for n, event in enumerate(events, 1))
    said = [json.loads(line.removeprefix(b"data: "))["result"] for line in frames.splitlines() if line]
    assert [next(iter(each)) for each in said] == ["task", "statusUpdate", "artifactUpdate", "statusUpdate"]
    update = said[2]["artifactUpdate"]
    assert update["artifact"]["parts"] == [{"text": text}]
    assert (update["append"], update["lastChunk"]) == (False, True)
    assert state(said[3]["statusUpdate"]) == "COMPLETED"
