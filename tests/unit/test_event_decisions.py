"""Each place that shows events decides about each of them: one that was forgotten is shown to no one."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from tealagents.agent.answering import _updates
from tealagents.api.folding import EventFold, in_words
from tealagents.api.v1alpha1.fold import Frames
from tealagents.domain.events import Recorded, redacted


class Forgotten(Struct, frozen=True, array_like=True, tag="forgotten"):
    """An event that no one has decided about."""

    content: str


EVENT: Any = Forgotten("the blue heron")


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
