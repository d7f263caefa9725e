"""The prompts of one request, call by call.

`Prompt` sends everything again with each call, `ViewedPrompt` what a view selects, `RemotePrompt` only what
the model service has not been sent yet.
"""

from collections.abc import AsyncIterator, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import paths
from tealagents.domain.models import Head, Message, ToolEnd
from tealagents.domain.ports import Model
from tealagents.state.history import ARGUMENTS_SHOWN
from tealagents.threads.model_faults import faults_of
from tealagents.threads.views import Part, Report, Shown, Stopwatch, Upcoming, View, newest_first, parts_of


class Composed(Struct, frozen=True):
    """The input of one model call, and the reports for the trace on how it was made."""

    parts: Sequence[bytes]
    reports: Sequence[Report] = ()


class Prompt:
    """System prompt, history, notes and new messages, all of them sent with every call."""

    def __init__(self, model: Model, parts: list[bytes]) -> None:
        self._model = model
        self._parts = parts

    async def compose(self) -> Composed:
        """The input of the next model call."""
        return Composed(tuple(self._parts))

    def add(self, message: Message) -> None:
        """Adds a message of this round, from the model or from a tool."""
        with faults_of(self._model):
            self._parts.append(self._model.encode(message))

    def sent(self) -> None:
        """The last model call has succeeded, so the service has what `compose` returned."""

    async def finish(self, answer: Message) -> Sequence[Report]:
        """The round ends with `answer`. Returns reports, for the trace, of what reducers did then."""
        return ()


class RemotePrompt(Prompt):
    """For a model service that keeps the conversation: only the instructions are sent with every call."""

    def __init__(self, model: Model, standing: Sequence[bytes], new: Sequence[bytes]) -> None:
        super().__init__(model, [*standing, *new])
        self._standing = len(standing)

    def add(self, message: Message) -> None:
        if message.role != "assistant":
            # the service has the call under its own id, even if another call has the same
            super().add(replace(message, tool_call_id=message.native_call_id or message.tool_call_id))

    def sent(self) -> None:
        del self._parts[self._standing :]


class ViewedPrompt(Prompt):
    """The part of the history that a view selects, composed anew for each call, since the round grows."""

    def __init__(
        self,
        view: View,
        earlier: Callable[[], AsyncIterator[Part]],
        upcoming: Upcoming,
        *,
        system: str,
        notes: Sequence[str],
        running: Sequence[Message],
        number: int,
        transient: Sequence[Message] = (),
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        """`earlier` yields the parts before this round, newest first. `running` are this round's messages so
        far, and `number` is its number. `transient` messages are sent at its beginning and never stored.
        `looked` is called once the first call has read what it needs of `earlier`."""
        model = upcoming.model
        super().__init__(model, [])
        self._view = view
        self._earlier = earlier
        self._upcoming = replace(upcoming, system=[text for text in (system, *notes) if text])
        with faults_of(model):
            self._head = [model.encode_system(system)] if system else []
            self._notes = [model.encode_system(note) for note in notes]
        self._transient = transient
        self._running = list(running)
        self._number = number
        self._looked: Callable[[], None] | None = looked
        self._omitted: dict[str, object] | None = None

    async def compose(self) -> Composed:
        upcoming = self._upcoming
        upcoming.running = self._running_parts()
        watch = Stopwatch()
        shown = await self._view.show(self._earlier(), upcoming)
        if self._looked is not None:
            self._looked()
            self._looked = None
        encoded = self._model.encode_system
        with faults_of(self._model):
            parts = [*self._head, *(encoded(text) for text in shown.standing)]
            for part in shown.parts:
                parts += self._encoded(part)
            parts += self._notes
            for part in upcoming.running:
                parts += self._encoded(part)
        return Composed(parts, [*self._drained(), *self._reduction(shown, watch)])

    def add(self, message: Message) -> None:
        self._running.append(message)

    async def finish(self, answer: Message) -> Sequence[Report]:
        """Runs the reducers that work as messages are added."""
        if not self._view.works_on_adding:
            return ()
        self.add(answer)
        finished = replace(self._upcoming, running=(), moment="after_message_added")
        kept = parts_of(self._running, self._number)
        await self._view.show(_chained(kept, self._earlier()), finished)
        return self._drained()

    def _running_parts(self) -> list[Part]:
        """The running round in parts. Unchanged parts are reused, to save counting and encoding them."""
        known = self._upcoming.running
        parts = parts_of([*self._transient, *self._running], self._number)
        for n, (part, before) in enumerate(zip(parts, known, strict=False)):
            if part.messages == before.messages:
                parts[n] = before
        return parts

    def _encoded(self, part: Part) -> Sequence[bytes]:
        if not part.encoded:
            part.encoded = tuple(self._model.encode(message) for message in part.messages)
        return part.encoded

    def _drained(self) -> list[Report]:
        reports = list(self._upcoming.reports)
        self._upcoming.reports.clear()
        return reports

    def _reduction(self, shown: Shown, watch: Stopwatch) -> list[Report]:
        """A report of what the view omits, unless it omits the same as in the last report, or nothing and
        there is none."""
        if shown.whole and self._omitted is None:
            return []
        omitted = shown.omitted(self._upcoming)
        if omitted == self._omitted:
            return []
        self._omitted = omitted
        return [
            Report(
                name="view",
                started_at=watch.started_at,
                duration_ms=watch.milliseconds,
                input={"reducers": self._view.names},
                output=omitted,
            )
        ]


async def _chained(first: Sequence[Part], then: AsyncIterator[Part]) -> AsyncIterator[Part]:
    async for part in newest_first(first):
        part.first = False
        yield part
    async for part in then:
        yield part


def context_note(user_context: dict[str, str]) -> str:
    """A text for the model with the facts that the client's application gave about this request."""
    lines = "\n".join(f"- {name}: {value}" for name, value in user_context.items())
    return f"Context of this request, given by the user's application:\n{lines}"


def effects_note(head: Head) -> str | None:
    """A note for the model with each tool call of unanswered requests and its outcome; None: no calls."""
    words: dict[ToolEnd, str] = {
        "done": "it was done",
        "failed": "it failed",
        "unknown": "its outcome is unknown",
    }
    lines = [
        f"- {_line(tool.tool)} {_line(tool.arguments)} ({_line(tool.call_id)}): {words[tool.outcome]}"
        for tool in paths.effects_on_path(head)
    ]
    if paths.effects_cut(head):
        before = " before these" if lines else ""
        lines.insert(0, f"- more calls{before}, too many to be listed")
    if not lines:
        return None
    return (
        "Earlier requests of this conversation ended without an answer after they had called tools. "
        "Do not repeat these calls unless the user asks for it:\n" + "\n".join(lines)
    )


def _line(text: str) -> str:
    """Text from a model or an imported document, put on one line and cut to `ARGUMENTS_SHOWN` characters."""
    return " ".join(text.split())[:ARGUMENTS_SHOWN]
