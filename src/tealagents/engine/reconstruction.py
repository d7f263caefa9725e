"""Reconstructs the prompt of an earlier model call.

Prompts are not stored; they are reconstructed from what is. The log has the history on the path of that time
and the request's own messages; its trace says what context providers added and what reducers left out. The
request's record and its pauses have the context and instructions from its client. Three things are not
stored: the agent's system prompt, which is shown as it is configured now, messages as a reducer rewrote them,
and what context providers' messages have besides their text.
`ReconstructedPrompt.gaps` says where the result may differ from what was sent; the model call's step has the
number of parts that were sent.
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
from tealagents.threads.summaries import Summarize, intact_summary, standing_text

#: `system_prompt`: the agent's; `summary`: of messages that were left out; `note`: from context providers,
#: the client or the service; `context`: messages added for this request; `history`: of earlier requests;
#: `request`: the request's own messages
PartOrigin = Literal["system_prompt", "summary", "note", "context", "history", "request"]

#: `altered`: some messages were not sent in the stored form; `agent`: another version of the agent answered;
#: `path`: the path that the request continued is unknown; `count`: more or fewer parts were sent
Gap = Literal["altered", "agent", "path", "count"]


class SentPart(Struct, frozen=True, kw_only=True):
    """A message that was sent, or a text, such as the system prompt."""

    origin: PartOrigin
    role: Literal["system", "user", "assistant", "tool"] = "system"
    text: str = ""
    #: the stored message; None for a text
    message: Message | None = None
    #: it was not sent in the stored form: a reducer rewrote it, or it had more than the text that is stored
    altered: bool = False


class ReconstructedPrompt(Struct, frozen=True):
    """The prompt of one model call, oldest part first."""

    step: Step
    parts: tuple[SentPart, ...]
    gaps: tuple[Gap, ...]

    @property
    def parts_sent(self) -> int:
        """How many parts were sent, according to the trace."""
        return _parts_sent(self.step)


class _Call(Struct, frozen=True):
    """One model call, and the log of its request before it."""

    step: Step
    messages: tuple[Message, ...]
    #: those since the request's start or the last decision on a pause
    steps: tuple[Step, ...]
    #: how many pauses were decided before the call
    pauses: int
    #: the messages before the request's first model call: its own, and those repeated from a failed request
    given: tuple[Message, ...]


class _View(Struct, frozen=True):
    """The part of the history that reducers left in the prompt, according to the trace.

    If it is not `whole` and has no `first` message, nothing of the history was sent.
    """

    whole: bool = True
    #: id of the oldest message that was sent
    first: str | None = None
    left_out: frozenset[str] = frozenset()
    altered: frozenset[str] = frozenset()


class Reconstruction:
    """Reconstructs prompts from the records of one agent."""

    def __init__(self, agent: AgentSpec, tasks: Tasks) -> None:
        self._agent = agent
        self._tasks = tasks

    async def prompt(self, partition: str, record: RequestRecord, step_id: str | None) -> ReconstructedPrompt:
        """The prompt of the model call with this step, or of the request's last call. Raises `NotFound`."""
        head = (await self._tasks.head(partition, record.task_id, reading=True)).value
        logged = await self._tasks.history.entries_of(partition, record, head.tail_seq)
        call = _found(logged, step_id, record.request_id)
        parent = await self._tasks.request_of(partition, record.task_id, record.parent)
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

    async def _setup(self, partition: str, record: RequestRecord, pauses: int) -> RequestSetup:
        """The request's setup after `pauses` decisions, until the next one."""
        for approval_id in record.approvals[pauses : pauses + 1]:
            found = await self._tasks.records.get(partition, keys.approval(approval_id), Approval)
            if found is not None and found.value.setup is not None:
                return found.value.setup
        return record.setup

    async def _history(self, partition: str, task_id: str, path: Path, view: _View) -> list[SentPart]:
        """The messages of earlier requests that the view let through, oldest first."""
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
        """The system prompt, and the summary of messages that were left out."""
        system = self._agent.system_prompt
        found = [SentPart(origin="system_prompt", text=system)] if system else []
        reducers = self._agent.view.reducers if self._agent.view is not None else ()
        for each in reducers:
            if not isinstance(each, Summarize):
                continue
            summary = next(_summaries(steps, each.name), None) or _kept_summary(parent, each.name)
            if summary:
                found.append(SentPart(origin="summary", text=standing_text(summary)))
        return found

    def _added(
        self, call: _Call, record: RequestRecord, setup: RequestSetup, head: Head, path: Path
    ) -> tuple[list[SentPart], list[SentPart]]:
        """The notes and the context messages that were sent in this request only."""
        notes: list[str] = []
        messages: list[SentPart] = []
        for step in call.steps:
            if step.kind == "context" and not step.is_error and (step.input or {}).get("call") == "invoking":
                added = step.output or {}
                notes += filter(None, _texts([added.get("instructions")]))
                messages += _context_messages(added.get("messages"))
        earlier = tuple(known for known in head.effects if known.first_seq < record.first_seq)
        effects = effects_note(replace(head, path=path, effects=earlier))
        notes += [text for text in (setup.instructions, effects) if text]
        if setup.user_context:
            text = context_note(setup.user_context)
            if self._agent.thread_kind == "remote":
                notes.append(text)
            else:
                messages.append(SentPart(origin="context", role="user", text=text))
        return [SentPart(origin="note", text=text) for text in notes], messages

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
    """The model call of a step, or the last one, with what was logged before it."""
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
            steps, pauses = [], pauses + 1  # after a decision, the prompt is composed anew
        elif isinstance(body, StepBody):
            steps.append(body.step)
    if found is None:
        named = f"model call {step_id}" if step_id else "model call"
        raise NotFound(f"The request {request_id} has no {named}. Its trace lists those it has.")
    return found


def _path_before(record: RequestRecord, head: Head) -> Path | None:
    """The path that the request continued; None if the request is on no known path."""
    if head.is_occupied_by(record.request_id):
        return head.path
    begins = record.first_seq
    for path in (record.path, head.path):
        if paths.holds(path, begins):
            return paths.split(path, begins - 1)[0]
    return None


def _view(steps: Sequence[Step]) -> _View:
    """The view according to the trace's last report on it."""
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


def _summaries(steps: Sequence[Step], name: str) -> Iterator[str]:
    """The summaries that the reducer `name` made for this call, newest first."""
    for step in reversed(steps):
        if (step.kind, step.name) == ("reduction", name):
            yield from _texts([(step.output or {}).get("summary")])


def _kept_summary(parent: RequestRecord | None, name: str) -> str | None:
    """The summary of the reducer `name` that a checkpoint's context holds."""
    context = (parent.context if parent is not None else None) or {}
    return intact_summary((context.get("view") or {}).get(name)).get("text")


def _context_messages(found: object) -> Iterator[SentPart]:
    """The messages in the step of a context provider, as `threads.context` recorded them."""
    for each in found if isinstance(found, list) else ():
        match each:
            case str(text):
                yield SentPart(origin="context", role="user", text=text)
            case {"role": "user" | "assistant" | "tool" as role, "text": str(text)}:
                yield SentPart(origin="context", role=role, text=text, altered=each.get("text_only") is True)


def _of_remote(
    call: _Call, standing: Sequence[SentPart], said: Sequence[SentPart]
) -> tuple[list[SentPart], bool]:
    """The parts sent to a service that keeps the conversation, and whether their number is wrong.

    All standing texts were sent as one. Of the messages, only the newest were sent, and none that the model
    itself wrote in this request. After a pause that was made while the agent was local, everything was sent.
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
    """The texts of a list in a step. It may be anything, as a user may have written the imported document."""
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
