"""The fold that protocols share: one method for each kind of event, which a protocol overrides.

Pure: the same events give the same frames, live and replayed.
"""

from typing import assert_never

from tealagents.domain.errors import TealError
from tealagents.domain.events import (
    Canceled,
    Completed,
    Event,
    Failed,
    Paused,
    Recorded,
    Started,
    Terminal,
    TextDelta,
    ToolCalled,
    ToolReturned,
)
from tealagents.domain.models import Approval, Failure, Outcome, ToolCall


def in_words(event: Event) -> str:
    """What an event adds to the answer, as plain text: the text as it comes, and the tools as they run."""
    if isinstance(event, TextDelta):  # most are
        return event.text
    if isinstance(event, ToolCalled):
        return f"\n[calling {event.call.tool}]\n"
    if isinstance(event, ToolReturned):
        return f"\n[{event.tool} {'failed' if event.is_error else 'returned'}]\n"
    if isinstance(event, Started | Terminal):
        return ""
    assert_never(event)


class EventFold:
    """Takes the events of a request, or of a part of it, in order; a protocol overrides what it shows.

    A model that does not stream says its answer with the end: it comes as text before `completed`. What the
    viewer may not see is passed over.
    """

    def __init__(self, *opening: bytes, after: int = 0) -> None:
        """`opening` comes before the frames of the first event, which is the one behind number `after`."""
        #: what is sent of the event under way
        self.frames = list(opening)
        #: whether there was text since the last call of a tool, or pause
        self.said = False
        #: whether the message under way is whole: results of its calls have come, or a pause of unknown calls
        self.whole = True
        #: whether the request was still waiting its turn at the last event
        self._queued = False
        #: the number of the last event
        self._last = after

    def __call__(self, recorded: Recorded) -> bytes:
        """The frames of one event."""
        if recorded.id > self._last + 1:
            self.missed(recorded.id - self._last - 1)
        self._last = recorded.id
        self.take(recorded.event)
        frames, self.frames = b"".join(self.frames), []
        return frames

    def failed(self, error: TealError) -> bytes:
        """The frames of an error that is no part of what was recorded: the end cannot be reported."""
        self.ended(Failure(error.code, error.detail), canceled=False)
        return b"".join(self.frames)

    def take(self, event: Event) -> None:
        if self._queued and not isinstance(event, Started | Failed | Canceled):
            self._queued = False
            self.begun()
        if isinstance(event, TextDelta):  # most are
            self.text(event.text, refusal=event.refusal)
            self.said = True
            return
        match event:
            case Started(status):
                self._queued = status == "Queued"
                self.started(status)
            case ToolCalled(call):
                self.end_text()
                self.called(call)
            case ToolReturned():
                self.returned(event)
                self.whole = True
            case Paused(approval):
                self.end_text()
                if approval is not None:
                    self.paused(approval)
                else:
                    self.whole = True
            case Completed(outcome):
                if outcome is not None:
                    self._complete(outcome)
            case Failed(failure) | Canceled(failure):
                self.ended(failure, canceled=isinstance(event, Canceled))
            case _:
                assert_never(event)

    def _complete(self, outcome: Outcome) -> None:
        if outcome.output and not self.said:
            self.say(outcome.output, refusal=outcome.finish_reason == "refusal")
        self.completed(outcome)

    def say(self, text: str, *, refusal: bool = False) -> None:
        self.text(text, refusal=refusal)
        self.said = True

    def end_text(self) -> None:
        """Nothing follows on the text so far: calls, a pause or the end."""
        if self.said:
            self.said = False
            self.text_ended()

    def started(self, status: str) -> None:
        """It has begun, or waits its turn (`Queued`)."""

    def missed(self, events: int) -> None:
        """Up to `events` events were sent live, then lost with their process before they were stored."""

    def begun(self) -> None:
        """Called before the first event after the wait for its turn, since no event marks the beginning."""

    def text(self, text: str, *, refusal: bool) -> None:
        """Some text; `said` is set where it continues what came before it."""

    def text_ended(self) -> None:
        """The text so far is whole."""

    def called(self, call: ToolCall) -> None:
        """A tool of the service is about to run."""

    def returned(self, event: ToolReturned) -> None:
        """A tool has run."""

    def paused(self, approval: Approval) -> None:
        """Decisions are waited for."""

    def completed(self, outcome: Outcome) -> None:
        """The answer is whole."""

    def ended(self, failure: Failure, *, canceled: bool) -> None:
        """There will be no answer."""
