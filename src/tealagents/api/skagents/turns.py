"""Runs calls: each task of the config is one turn of the engine's loop. Nothing is stored."""

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from tealagents.api import bodies
from tealagents.api.skagents import documents
from tealagents.api.skagents.inputs import Input, SentMessage
from tealagents.api.skagents.templates import Instructions, TemplateRefused
from tealagents.domain.errors import (
    Interrupted,
    InvalidRequest,
    ModelFailed,
    RequestTimeout,
    TealError,
)
from tealagents.domain.events import TextDelta
from tealagents.domain.models import (
    Caller,
    Failure,
    FinishReason,
    Item,
    Json,
    Message,
    RequestRecord,
    TokenUsage,
)
from tealagents.domain.ports import Clock, Model
from tealagents.domain.texts import storable
from tealagents.engine.admission import Admission
from tealagents.engine.agent import AgentSpec
from tealagents.engine.loop import HumanNeeded, Resumption, tool_message
from tealagents.engine.observer import Load
from tealagents.engine.recorder import Recorder
from tealagents.engine.resuming import not_to_its_end
from tealagents.engine.toolbox import CallContext
from tealagents.engine.turn import TurnDone, TurnInput, TurnPaused, open_turn
from tealagents.limits import Limits
from tealagents.state.memories import Memory
from tealagents.state.new_message import message_of
from tealagents.threads.model_faults import faults_of
from tealagents.threads.views import Part

log = logging.getLogger(__name__)

#: finish reason → why an incomplete answer is not of the output type
_INCOMPLETE_REASONS = {
    "length": "it was cut off at the model's token limit",
    "content_filter": "it was stopped by the model service's content filter",
    "refusal": "the model refused",
}
#: what a model service names when it refuses structured output, and the HTTP statuses of such a refusal
_FORMAT_NAMES, _FORMAT_STATUSES = re.compile(r"response_format|json_schema|text\.format"), (400, 422)

#: extra data that msgspec cannot encode, such as pydantic models: a tool must not fail for it once it has run
_to_plain = partial(to_jsonable_python, fallback=str)


class TaskStep(Struct, frozen=True, kw_only=True):
    """One task of the config. Without instructions, the agent answers the messages of the call."""

    agent: AgentSpec
    name: str = ""
    instructions: Instructions | None = None


class Plan(Struct, frozen=True, kw_only=True):
    """The tasks that a config runs for each call, in order, and their limits."""

    source: str
    steps: Sequence[TaskStep]
    limits: Limits
    #: the type of the last task's answer; None: text
    output_type: type[BaseModel] | None = None


class StepDelta(Struct, frozen=True):
    """A text delta of the last task's answer."""

    call: documents.Call
    text: str


class StepDone(Struct, frozen=True):
    """A task other than the last one has its answer."""

    #: its position in the sequence, from 1; the file's `task_no` may differ
    task_no: int
    name: str
    response: Json


class CallDone(Struct, frozen=True):
    """The call has its answer. Always the last event."""

    response: Json


CallEvent = StepDelta | StepDone | CallDone
CallEvents = AsyncGenerator[CallEvent, None]


class GivenConversation:
    """The messages that came with a call, as an `engine.turn.Conversation`."""

    remote_id: str | None = None

    def __init__(self, model: Model, messages: Sequence[Message]) -> None:
        self._model = model
        self._messages = messages

    async def remembered(self) -> Json:
        return {}

    async def encoded(self) -> Sequence[bytes]:
        with faults_of(self._model):
            return [self._model.encode(message) for message in self._messages]

    async def earlier(self) -> AsyncIterator[Part]:
        raise NotImplementedError("agents of the earlier platform have no reducers")
        yield

    def looked(self) -> None:
        """Does nothing: `earlier` is never read."""

    def memory(self, provider: str) -> Memory:
        raise NotImplementedError("agents of the earlier platform have no context providers")


class StepContext(CallContext):
    """A tool's view of a call. Extra data is a list of keys and texts; a key may occur more than once."""

    def __init__(self, *, items: list[Json], **given: Any) -> None:
        super().__init__(**given, extra_data={})
        self._items = items

    def add_extra_data(self, key: str, value: Any) -> None:
        name = key if isinstance(key, str) else str(key)
        self._items.append({"key": storable(name), "value": storable(_text_of(value))})


def _text_of(value: Any) -> str:
    """Extra data as text: JSON, or what Python writes where JSON cannot hold it."""
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value, enc_hook=_to_plain).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)


class Turns:
    """Runs the calls of one config."""

    def __init__(self, plan: Plan, clock: Clock, *, users: bool) -> None:
        """`users`: True if each caller is a user, False if a gateway calls for all of them."""
        self._plan = plan
        self._clock = clock
        limits = plan.limits
        self.admission = Admission(
            per_process=limits.max_concurrent_requests,
            per_user=limits.max_requests_per_user,
            # all calls of a gateway have one user, who must not be limited like one
            largest=limits.max_body_bytes,
            bytes_per_user=users,
        )
        #: calls under way
        self._running: set[_Call] = set()
        #: how many of them are streamed
        self._streams = 0
        self._interrupted = False

    async def events(
        self, caller: Caller, given: Input, headers: Mapping[str, str], *, streamed: bool
    ) -> CallEvents:
        """Runs a call, which the caller has admitted. The last event is `CallDone`.

        `headers` are those that tools may read. With `streamed`, the last answer comes in deltas.

        Raises:
            TealError: the call failed, timed out (`RequestTimeout`) or was interrupted by a shutdown.
        """
        plan = self._plan
        call = _Call(plan, self._clock, caller, given, headers)
        observer = plan.steps[0].agent.observer
        with observer.request(call.record) as watch:
            self._running.add(call)
            self._streams += streamed
            try:
                async with aclosing(call.events(streamed=streamed)) as events:
                    while (event := await self._next_event(call, events)) is not None:
                        yield event
            except BaseException as error:
                reported = self._reported_error(error) if call.deadline.expired() else error
                watch.ended(call.ended(reported))
                if reported is error:
                    raise
                raise reported from None
            finally:
                self._running.discard(call)
                self._streams -= streamed
            watch.ended(call.ended(None))

    async def _next_event(self, call: "_Call", events: CallEvents) -> CallEvent | None:
        """The next event of a call, or None at its end. `TimeoutError` after the call's deadline.

        The deadline applies only here, while the call works: between events it would cancel the consumer in
        the middle of sending.
        """
        call.deadline = asyncio.timeout_at(0 if self._interrupted else call.until)
        async with call.deadline:
            return await anext(events, None)

    def load(self) -> Load:
        """How busy this process is. There is no queue and no lease."""
        return Load(
            in_flight=self.admission.in_flight,
            queued=0,
            followers=self._streams,
            lease_used=0.0,
            leases_lost=0,
        )

    def _reported_error(self, error: BaseException) -> BaseException:
        """The error that the client gets; a timeout becomes `Interrupted` or `RequestTimeout`."""
        if not isinstance(error, TimeoutError):
            return error
        if self._interrupted:
            return Interrupted("The process is shutting down. Send the message again.")
        return RequestTimeout(
            f"The request took longer than {self._plan.limits.request_timeout_seconds:g} seconds."
        )

    async def drain(self, seconds: float) -> None:
        """Refuses new calls, and interrupts those that still run after `seconds`."""
        self.admission.draining = True
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._running and loop.time() < until:  # noqa: ASYNC110 - the calls of several connections
            await asyncio.sleep(0.05)
        self._interrupted = True
        for call in self._running:
            # a RuntimeError: it is between two waits, and `_next_event` ends the next one at once
            with suppress(RuntimeError):
                call.deadline.reschedule(loop.time())
        await asyncio.sleep(0)


class _Call:
    """One call: the tasks of the plan over one conversation."""

    def __init__(
        self, plan: Plan, clock: Clock, caller: Caller, given: Input, headers: Mapping[str, str]
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._caller = caller
        self._given = given
        self._headers = headers
        request_id = uuid.uuid4().hex
        session_id = given.session_id or uuid.uuid4().hex
        self._call = {
            "session_id": session_id,
            "source": plan.source,
            "request_id": request_id,
        }
        #: when its time is over, by the event loop's clock; `deadline` is the timeout of the current wait
        self.until = asyncio.get_running_loop().time() + plan.limits.request_timeout_seconds
        self.deadline = asyncio.timeout_at(self.until)
        #: one for each task that was started
        self._recorders: list[Recorder] = []
        #: the finish reason of the latest answer
        self._finish_reason: FinishReason | None = None
        self._extra_data: list[Json] = []
        self.record = RequestRecord(
            request_id=request_id,
            task_id=request_id,
            session_id=session_id,
            status="Running",
            created_at=clock.now(),
        )

    async def events(self, *, streamed: bool) -> CallEvents:
        """Runs the tasks in order; see `Turns.events`."""
        given, steps = self._given, self._plan.steps
        values = dict(given.values)
        conversation = [given.context] if given.context and steps[0].instructions is None else []
        history = [self._message(each) for each in (*conversation, *given.messages)]
        text = ""
        for n, step in enumerate(steps):
            if step.instructions is not None:
                asked = Item("text", self._rendered(step, step.instructions, values))
                history.append(
                    self._message(SentMessage("user", (asked, *given.images) if n == 0 else (asked,)))
                )
            if not history:
                raise InvalidRequest("chat_history", "is empty, so there is nothing to answer")
            last = n == len(steps) - 1
            recorder = Recorder(self.record.request_id, self._clock, history[-1], TokenUsage())
            self._recorders.append(recorder)
            before = len(self._extra_data)
            async with aclosing(self._turn(step.agent, history, recorder, streamed and last)) as events:
                async for event in events:
                    if last:
                        yield StepDelta(self._call, event.text)
            text = "".join(recorder.output)
            self._finish_reason = recorder.finish_reason
            history.append(self._message(SentMessage("assistant", (Item("text", text),))))
            values[f"_{step.name}"] = text
            if not last:
                added = self._extra_data[before:]
                yield StepDone(n + 1, step.name, documents.answer(self._call, text, recorder.usage, added))
        yield CallDone(self._answer(text))

    async def _turn(
        self, agent: AgentSpec, history: Sequence[Message], recorder: Recorder, streamed: bool
    ) -> AsyncGenerator[TextDelta, None]:
        """Runs one turn on the last message. The recorder collects the answer; deltas are yielded."""
        given = TurnInput(context=self._context(agent), said=recorder.messages)
        conversation = GivenConversation(agent.model, history[:-1])
        turn = await open_turn(agent, conversation, given, recorder, streamed=streamed)
        resumption: Resumption | None = None
        try:
            while True:
                async with aclosing(turn.events(resumption)) as events:
                    async for happened in events:
                        if isinstance(happened, TurnPaused):
                            resumption = self._rejected(happened.needed)
                        elif isinstance(happened, TurnDone):
                            return
                        else:
                            for event in happened:
                                if isinstance(event, TextDelta):
                                    yield event
        except ModelFailed as error:
            raise _with_advice(error, agent) from error

    def _context(self, agent: AgentSpec) -> StepContext:
        return StepContext(
            session_id=self.record.session_id,
            task_id=self.record.request_id,
            request_id=self.record.request_id,
            owner=self._caller.user,
            actor=self._caller.user,
            token=self._caller.token,
            headers=self._headers,
            delegation=agent.delegation,
            items=self._extra_data,
        )

    def _rejected(self, needed: HumanNeeded) -> Resumption:
        """Rejects the calls of a pause: a stateless call cannot wait for a decision."""
        why = "The call needs a decision or an authorization, which cannot be given here; "
        request_id, now = self.record.request_id, self._clock.now()
        messages = (
            tool_message(request_id, call, why + not_to_its_end(call), now, is_error=True)
            for call in needed.calls
        )
        return Resumption(messages=tuple(messages))

    def _rendered(self, step: TaskStep, instructions: Instructions, values: Json) -> str:
        try:
            return storable(instructions.render(values))
        except TemplateRefused as error:
            raise InvalidRequest(f"instructions of the task {step.name}", str(error)) from None

    def _message(self, sent: SentMessage) -> Message:
        return message_of(self.record.request_id, sent.role, sent.items, self._clock.now())

    def _answer(self, text: str) -> Json:
        typed = _typed_output(text, self._plan.output_type, self._finish_reason)
        return documents.answer(self._call, text, self._usage, self._extra_data, typed=typed)

    @property
    def _usage(self) -> TokenUsage:
        return sum((each.usage for each in self._recorders), TokenUsage())

    def ended(self, error: BaseException | None) -> RequestRecord:
        """The record of the ended call, for its observer; `error` is None if it completed."""
        if error is None:
            return replace(self.record, status="Completed", usage=self._usage)
        if isinstance(error, TealError):
            return replace(
                self.record, status="Failed", usage=self._usage, error=Failure(error.code, error.detail)
            )
        status = "Canceled" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "Failed"
        return replace(self.record, status=status, usage=self._usage)


# --- structured output ---------------------------------------------------------------------------


def _typed_output(text: str, kind: type[BaseModel] | None, ended: FinishReason | None) -> Any:
    """The answer as JSON data of the type `kind`, or None without a type. Raises `ModelFailed`."""
    if kind is None:
        return None
    try:
        return kind.model_validate_json(text).model_dump(mode="json", by_alias=True)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False)
        early = _INCOMPLETE_REASONS.get(ended or "")
        reason = early or bodies.refusal(mistakes).detail.removeprefix("body: ")
        cause = early or mistakes[0]["type"]  # the reason may quote the answer
        log.warning("The model's answer is not of the type %s: %s.", kind.__name__, cause)
    except Exception as error:  # the config's own types may raise anything
        log.exception("the type %s raised", kind.__name__)
        reason = f"the type raised {type(error).__name__}"
    raise ModelFailed(f"The model's answer is not of the type {kind.__name__}: {reason}.")


def _with_advice(error: ModelFailed, agent: AgentSpec) -> ModelFailed:
    """Adds what to do to the error if the model service seems to have refused structured output."""
    wanted = agent.response_format
    refused = error.http_status in _FORMAT_STATUSES and _FORMAT_NAMES.search(error.detail)
    if wanted is None or not refused:
        return error
    return ModelFailed(
        f"{error.detail} The model was asked for structured output (response_format) of the type "
        f"{wanted.name}: use a model that supports it, or leave out output_type.",
        retry_after=error.retry_after,
        http_status=error.http_status,
    )
