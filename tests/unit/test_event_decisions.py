"""Each place that shows events decides about each of them: one that was forgotten is shown to no one."""

import re
from collections.abc import Callable
from typing import Any, get_args

import pytest
from msgspec import Struct

from tealagents.agent.answering import _updates
from tealagents.api.folding import EventFold, in_words
from tealagents.api.v1alpha1.fold import Frames
from tealagents.api.v1alpha1.openapi import EVENTS
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
    redacted,
)
from tealagents.domain.models import Failure, ToolCall


class Forgotten(Struct, frozen=True, array_like=True, tag="forgotten"):
    """An event that no one has decided about."""

    content: str


EVENT: Any = Forgotten("the blue heron")

#: one event of each class
EXAMPLES: tuple[Event, ...] = (
    Started(),
    TextDelta("hello"),
    ToolCalled(ToolCall("c", "Shell-look", "{}")),
    ToolReturned("c", "Shell-look", "a file", False, 1.0),
    Paused(None),
    Completed(None),
    Failed(Failure("model_error", "The model failed.")),
    Canceled(Failure("request_canceled", "The request was canceled.")),
)


@pytest.mark.parametrize(
    "show",
    [
        lambda: redacted(EVENT),
        lambda: EventFold()(Recorded(1, EVENT)),
        lambda: Frames({}, "Tester", "/Tester/1")(Recorded(1, EVENT)),
        lambda: in_words(EVENT),
        lambda: _updates(EVENT, {}),
    ],
    ids=["redacted", "common fold", "v1alpha1", "in words", "library"],
)
def test_forgotten_event_is_shown_to_no_one(show: Callable[[], object]) -> None:
    """An event that a place does not decide about is an error there. It is neither shown nor left out."""
    with pytest.raises(AssertionError):
        show()


def test_every_event_of_v1alpha1_is_described() -> None:
    """Its name is in `EVENTS`, with which the OpenAPI document, the clients and the pages are compared."""
    assert {type(event) for event in EXAMPLES} == set(get_args(Event)), "EXAMPLES: one of each event"
    frames = Frames({}, "Tester", "/Tester/1")
    sent = b"".join(frames(Recorded(n, event)) for n, event in enumerate(EXAMPLES, start=1)).decode()
    assert set(re.findall(r"^event: (.+)$", sent, re.MULTILINE)) == EVENTS.keys()
