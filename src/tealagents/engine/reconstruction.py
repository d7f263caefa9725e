"""What the model was sent in a call that was made, reconstructed.

A prompt is not stored: it is made of what is. From the log come the history on the path of that time, the
request's own messages, and of the trace what context providers added and what reducers left out; from the
request's record and its pauses the context and instructions that its client sent. Two things are not kept
anywhere: the agent's own system prompt, which is given as it is configured now, and messages in the form that
a reducer gave them. Where what is found cannot be what was sent, `ReconstructedPrompt.gaps` says so; the step
has the number of parts that were sent.
"""

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import paths
from tealagents.domain.errors import NotFound
from tealagents.domain.models import (
    Approval,
    Head,
    Json,
    Message,
    MessageBody,
    Path,
    RequestRecord,
    RequestSetup,
    Step,
    StepBody,
)
from tealagents.engine.agent import AgentSpec
from tealagents.engine.prompt import context_note, effects_note
from tealagents.state import keys
from tealagents.state.decisions import is_decision
from tealagents.state.history import Logged, in_call_order
from tealagents.state.tasks import Tasks
from tealagents.threads.summaries import standing_text

#: `system_prompt`: of the agent; `summary`: of what is not shown; `note`: of context providers, the client or
#: the service; `context`: messages that were added for this request; `history`; `request`: its own messages
PartOrigin = Literal["system_prompt", "summary", "note", "context", "history", "request"]

#: `altered`: a reducer has shown some messages otherwise; `agent`: another version has answered; `path`: what
#: ended without an answer before the request is not known; `count`: more or fewer parts were sent
Gap = Literal["altered", "agent", "path", "count"]


class SentPart(Struct, frozen=True, kw_only=True):
    """A message that was sent, or a text in the place of one."""

    origin: PartOrigin
    role: Literal["system", "user", "assistant", "tool"] = "system"
    text: str = ""
    #: the stored message; None for a text
    message: Message | None = None
    #: it was sent in another form than it is stored in
    altered: bool = False


class ReconstructedPrompt(Struct, frozen=True):
    """What one call of the model was sent, oldest first."""

    step: Step
    parts: tuple[SentPart, ...]
    gaps: tuple[Gap, ...]

    @property
    def parts_sent(self) -> int:
        """How many parts were sent, by the trace."""
        return _parts_sent(self.step)


class _Call(Struct, frozen=True):
    """One call of the model, and what its request had logged before it."""

    step: Step
    messages: tuple[Message, ...]
    #: since the request began, or continued after its last pause
    steps: tuple[Step, ...]
    #: how many pauses were decided before it
    pauses: int
    #: the messages from before the request's first call: its own, and what it repeats of one that failed
    given: tuple[Message, ...]


class _View(Struct, frozen=True):
    """What reducers have left of the history, by the trace."""

    whole: bool = True
    #: nothing older than this message was sent
    first: str | None = None
    left_out: frozenset[str] = frozenset()
    altered: frozenset[str] = frozenset()


class Reconstruction:
    """Puts prompts together from the records of one agent."""

    def __init__(self, agent: AgentSpec, tasks: Tasks) -> None:
        self._agent = agent
        self._tasks = tasks

    async def prompt(self, partition: str, record: RequestRecord, step_id: str | None) -> ReconstructedPrompt:
        """What the call of that step was sent; without a step, the request's last one. Raises `NotFound`."""
        head = (await self._tasks.head(partition, record.task_id, reading=True)).value
        logged = await self._tasks.history.entries_of(partition, record, head.tail_seq)
        call = _found(logged, step_id, record.request_id)
        parent = await self._parent(partition, record)
        path = _path_before(record, head)
        before = path if path is not None else parent.path if parent else ()
        history = await self._history(partition, record.task_id, before, _view(call.steps))
        setup = await self._setup(partition, record, call.pauses)
        notes, context = self._added(call, record, setup, head, before)
        own = [SentPart(origin="request", role=each.role, message=each) for each in call.messages]
        standing = self._standing(call.steps, parent)
        if self._agent.thread_kind == "remote":
            parts, missing = _of_remote(call, [*standing[:1], *notes], [*history, *context, *own])
        else:
            parts = [*standing, *history, *notes, *context, *own]
            missing = len(parts) != _parts_sent(call.step)
        return ReconstructedPrompt(
            call.step, tuple(parts), tuple(self._gaps(record, path, parts, missing=missing))
        )

    async def _parent(self, partition: str, record: RequestRecord) -> RequestRecord | None:
        if record.parent is None:
            return None
        found = await self._tasks.records.get(partition, keys.request(record.parent), RequestRecord)
        return found.value if found is not None and found.value.task_id == record.task_id else None

    async def _setup(self, partition: str, record: RequestRecord, pauses: int) -> RequestSetup:
        """What the request's client had set for it before the next pause was decided."""
        for approval_id in record.approvals[pauses : pauses + 1]:
            found = await self._tasks.records.get(partition, keys.approval(approval_id), Approval)
            if found is not None and found.value.setup is not None:
                return found.value.setup
        return record.setup

    async def _history(self, partition: str, task_id: str, path: Path, view: _View) -> list[SentPart]:
        """The messages of earlier requests, as far back as they were shown."""
        if not view.whole and view.first is None:
            return []
        found: list[Message] = []
        async with aclosing(self._tasks.history.rounds(partition, task_id, path)) as rounds:
            async for each in rounds:
                known = [message.message_id for message in each.messages]
                begins = known.index(view.first) if view.first in known else 0
                found[:0] = each.messages[begins:]
                if view.first in known:
                    break
        return [
            SentPart(
                origin="history",
                role=message.role,
                message=message,
                altered=message.message_id in view.altered,
            )
            for message in found
            if message.message_id not in view.left_out
        ]

    def _standing(self, steps: Sequence[Step], parent: RequestRecord | None) -> list[SentPart]:
        """The system prompt, and the summary that stands for what is not shown."""
        system = self._agent.system_prompt
        found = [SentPart(origin="system_prompt", text=system)] if system else []
        summary = next(_summaries(steps), None) or next(_kept_summaries(parent), None)
        if summary is not None and self._agent.view is not None:
            found.append(SentPart(origin="summary", text=standing_text(summary)))
        return found

    def _added(
        self, call: _Call, record: RequestRecord, setup: RequestSetup, head: Head, path: Path
    ) -> tuple[list[SentPart], list[SentPart]]:
        """Notes, and messages, that were sent in this request alone."""
        notes: list[str] = []
        messages: list[str] = []
        for step in call.steps:
            if step.kind == "context" and not step.is_error and (step.input or {}).get("call") == "invoking":
                added = step.output or {}
                notes += filter(None, _texts([added.get("instructions")]))
                messages += _texts(added.get("messages"))
        earlier = tuple(known for known in head.effects if known.first_seq < record.first_seq)
        effects = effects_note(replace(head, path=path, effects=earlier))
        notes += [text for text in (setup.instructions, effects) if text]
        if setup.user_context:
            (notes if self._agent.thread_kind == "remote" else messages).append(
                context_note(setup.user_context)
            )
        return (
            [SentPart(origin="note", text=text) for text in notes],
            [SentPart(origin="context", role="user", text=text) for text in messages],
        )

    def _gaps(
        self, record: RequestRecord, path: Path | None, parts: Sequence[SentPart], *, missing: bool
    ) -> Iterator[Gap]:
        if any(part.altered for part in parts):
            yield "altered"
        if record.source and record.source != self._agent.source:
            yield "agent"
        if path is None:
            yield "path"
        if missing:
            yield "count"


def _found(logged: Sequence[Logged], step_id: str | None, request_id: str) -> _Call:
    """The call of a step, with what was logged before it."""
    messages: list[Message] = []
    steps: list[Step] = []
    pauses = 0
    given: tuple[Message, ...] | None = None
    found: _Call | None = None
    for body in (each.body for each in logged):
        if isinstance(body, MessageBody):
            messages.append(body.message)
        elif isinstance(body, StepBody) and body.step.kind == "model":
            given = tuple(messages) if given is None else given
            if step_id in (None, body.step.step_id):
                found = _Call(body.step, tuple(in_call_order(messages)), tuple(steps), pauses, given)
        elif is_decision(body):
            steps, pauses = [], pauses + 1  # the prompt is made anew
        elif isinstance(body, StepBody):
            steps.append(body.step)
    if found is None:
        named = f"model call {step_id}" if step_id else "model call"
        raise NotFound(f"The request {request_id} has no {named}. Its trace lists those it has.")
    return found


def _path_before(record: RequestRecord, head: Head) -> Path | None:
    """The path that the request continued; None where it is on none that is known."""
    occupant = head.occupant
    if occupant is not None and occupant.request_id == record.request_id:
        return head.path
    begins = record.first_seq
    for path in (record.path, head.path):
        if paths.holds(path, begins):
            return paths.split(path, begins - 1)[0]
    return None


def _view(steps: Sequence[Step]) -> _View:
    """What the trace says last of what is not sent."""
    reported = [step.output or {} for step in steps if (step.kind, step.name) == ("reduction", "view")]
    if not reported:
        return _View()
    said: Json = reported[-1]
    kept = bool(said.get("kept_messages"))
    cut = "everything_before" in said
    return _View(
        whole=kept and not cut,
        first=next(iter(_texts([said["everything_before"]])), None) if kept and cut else None,
        left_out=frozenset(_texts(said.get("left_out"))),
        altered=frozenset(_texts(said.get("altered"))),
    )


def _summaries(steps: Sequence[Step]) -> Iterator[str]:
    """Those that were made for this call, the newest first."""
    for step in reversed(steps):
        if step.kind == "reduction" and isinstance(text := (step.output or {}).get("summary"), str):
            yield text


def _kept_summaries(parent: RequestRecord | None) -> Iterator[str]:
    """Those that the conversation remembers as of a checkpoint."""
    for kept in ((parent.context or {}) if parent else {}).get("view", {}).values():
        if isinstance(kept, dict) and isinstance(kept.get("text"), str):
            yield kept["text"]


def _of_remote(
    call: _Call, standing: Sequence[SentPart], said: Sequence[SentPart]
) -> tuple[list[SentPart], bool]:
    """The model service keeps what it has: it was sent the newest, and all standing texts as one.

    What it has said in this request it was not sent, unless it was sent everything: after a pause that was
    made while the task was local.
    """
    count = _parts_sent(call.step) - bool(standing)
    if count == len(said):
        return [*standing, *said], False
    unsent = [
        part
        for part in said
        if part.origin != "request" or part.role != "assistant" or part.message in call.given
    ]
    shown = unsent[-count:] if count > 0 else []
    return [*standing, *shown], len(shown) != count


def _parts_sent(step: Step) -> int:
    sent = (step.input or {}).get("messages")
    return sent if isinstance(sent, int) else 0


def _texts(found: object) -> list[str]:
    """The texts of a list in a step, which a user may have written into a document that was imported."""
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
