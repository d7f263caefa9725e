"""Recorded events as the server-sent events of `tealagents/v1alpha1`.

A frame of text is made of what was encoded once; nothing of a delta is parsed or validated again.
"""

from collections.abc import Mapping
from typing import assert_never

import msgspec

from tealagents.api import sse
from tealagents.api.v1alpha1 import documents, problems
from tealagents.domain.errors import TealError
from tealagents.domain.events import (
    Canceled,
    Completed,
    Failed,
    Paused,
    Recorded,
    Started,
    Terminal,
    TextDelta,
    ToolCalled,
    ToolReturned,
)
from tealagents.domain.models import Json
from tealagents.state.codec import encode_json


class Frames:
    """The fold of one request's events."""

    def __init__(self, ids: Mapping[str, str], source: str, prefix: str) -> None:
        self._ids = dict(ids)
        self._prefix = prefix
        constant: Json = {**ids, "source": source}
        self._middle = b"\ndata: " + encode_json(constant)[:-1] + b',"output_partial":'

    def __call__(self, recorded: Recorded) -> bytes:
        event = recorded.event
        if isinstance(event, TextDelta):
            return b"event: partial-response\nid: %d%b%b}\n\n" % (
                recorded.id,
                self._middle,
                encode_json(event.text),
            )
        name, data = self._document(event)
        return sse.frame(recorded.id, name, data)

    def failed(self, error: TealError) -> bytes:
        """The frame of an error that is no part of the request's log."""
        return sse.frame(None, "error", problems.document(error))

    def _document(self, event: Started | ToolCalled | ToolReturned | Terminal) -> tuple[str, Json]:
        ids = self._ids
        match event:
            case Started(status):
                return "request", {**ids, "status": status}
            case ToolCalled(call):
                shown = {"call_id": call.id, "tool": call.tool, "arguments": call.arguments}
                return "tool-call", {**ids, **shown}
            case ToolReturned():
                return "tool-result", {**ids, **msgspec.structs.asdict(event)}
            case Completed(outcome):
                content = documents.content(outcome, ids) if outcome is not None else None
                return "final-response", documents.answer(ids, "Completed", content)
            case Paused(approval):
                content = documents.pause(approval, self._prefix) if approval is not None else None
                return "approval-required", documents.answer(ids, "Paused", content)
            case Failed(error) | Canceled(error):
                return "error", problems.of_failure(error, ids)
        assert_never(event)
