"""Answers calls: each task of the config is one turn of the engine's loop. Nothing is stored."""

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, ValidationError

from tealagents.api import bodies
from tealagents.api.skagents import documents
from tealagents.api.skagents.inputs import Input, Said
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
from tealagents.engine.turn import TurnDone, TurnInput, TurnLoop, TurnPaused, open_turn
from tealagents.limits import Limits
from tealagents.state.memories import Memory
from tealagents.state.new_message import message_of
from tealagents.threads.views import Part

log = logging.getLogger(__name__)

#: why an answer is not of its type, where the model has not finished it
_ENDED_EARLY = {
    "length": "it was cut off at the model's token limit",
    "content_filter": "it was stopped by the model service's content filter",
    "refusal": "the model refused",
}
#: what a model service's refusal to answer by type names, and its HTTP statuses
_FORMAT, _FORMAT_REFUSED = re.compile(r"response_format|json_schema|text\.format"), (400, 422)


class TaskStep(Struct, frozen=True, kw_only=True):
    """One task of the config; or, without instructions, an agent that is given the conversation."""

    agent: AgentSpec
    name: str = ""
    instructions: Instructions | None = None


class Plan(Struct, frozen=True, kw_only=True):
    """What a config says is done in a call."""

    source: str
    steps: Sequence[TaskStep]
    limits: Limits
    #: what the answer of the last task is to be; None: text
    output_type: type[BaseModel] | None = None


class StepPiece(Struct, frozen=True):
    """Some text of the answer to the call with these ids."""

    call: documents.Call
    text: str


class StepDone(Struct, frozen=True):
    """A task has its answer; it is not the last."""

    #: its place in the sequence, from 1, whatever its number is in the file
    task_no: int
    name: str
    response: Json


class Done(Struct, frozen=True):
    """The call has its answer."""

    response: Json


CallEvent = StepPiece | StepDone | Done
CallEvents = AsyncGenerator[CallEvent, None]


class GivenConversation:
    """A conversation that came with its call (`engine.turn.Conversation`)."""

    remote_id: str | None = None

    def __init__(self, model: Model, messages: Sequence[Message]) -> None:
        self._model = model
        self._messages = messages

    async def remembered(self) -> Json:
        return {}

    async def encoded(self) -> Sequence[bytes]:
        return [self._model.encode(message) for message in self._messages]

    async def earlier(self) -> AsyncIterator[Part]:
        raise NotImplementedError("no view shortens what came with the call")
        yield

    def looked(self) -> None:
        """Nothing is left to be asked for."""

    def memory(self, provider: str) -> Memory:
        raise NotImplementedError("nothing is remembered")


class StepContext(CallContext):
    """A tool's view of a call; extra data is a list of texts, in which a key may come twice."""

    def __init__(self, *, items: list[Json], **given: Any) -> None:
        super().__init__(**given, extra_data={})
        self._items = items

    def add_extra_data(self, key: str, value: Any) -> None:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        self._items.append({"key": storable(key), "value": storable(text)})


class Turns:
    """Answers calls of one config."""

    def __init__(self, plan: Plan, clock: Clock, *, users: bool) -> None:
        """`users`: each caller is one; else a gateway stands for all."""
        self._plan = plan
        self._clock = clock
        limits = plan.limits
        self.admission = Admission(
            per_process=limits.max_concurrent_requests,
            per_user=limits.max_requests_per_user,
            # all that a gateway lets through is one caller here, and not bounded as one user
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
        """What happens in a call that was admitted; the last event is its answer.

        `headers` are those that tools may see.
        """
        plan = self._plan
        call = _Call(plan, self._clock, caller, given, headers)
        observer = plan.steps[0].agent.observer
        with observer.request(call.record) as watch:
            self._running.add(call)
            self._streams += streamed
            try:
                async with aclosing(call.events(streamed=streamed)) as events:
                    while (event := await self._next(call, events)) is not None:
                        yield event
            except BaseException as error:
                reported = self._as_ended(error) if call.deadline.expired() else error
                watch.ended(call.ended(reported))
                if reported is error:
                    raise
                raise reported from None
            finally:
                self._running.discard(call)
                self._streams -= streamed
            watch.ended(call.ended(None))

    async def _next(self, call: "_Call", events: CallEvents) -> CallEvent | None:
        """What happens next in a call, for as long as it has time; None: it is done.

        The deadline bounds the wait for an event, not its consumer, whom it would cancel in mid-send.
        """
        call.deadline = asyncio.timeout_at(0 if self._interrupted else call.until)
        async with call.deadline:
            return await anext(events, None)

    def load(self) -> Load:
        """How busy this process is. No call waits for another, and there is no lease to lose."""
        return Load(
            in_flight=self.admission.in_flight,
            queued=0,
            followers=self._streams,
            lease_used=0.0,
            leases_lost=0,
        )

    def _as_ended(self, error: BaseException) -> BaseException:
        """What the end of a call's time is to its client."""
        if not isinstance(error, TimeoutError):
            return error
        if self._interrupted:
            return Interrupted("The process is shutting down. Send the message again.", retry_after=1)
        return RequestTimeout(
            f"The request took longer than {self._plan.limits.request_timeout_seconds:g} seconds."
        )

    async def drain(self, seconds: float) -> None:
        """Refuses new calls, and gives those under way so long."""
        self.admission.draining = True
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._running and loop.time() < until:  # noqa: ASYNC110 - the calls of several connections
            await asyncio.sleep(0.05)
        self._interrupted = True
        for call in self._running:
            with suppress(RuntimeError):  # it waits for nothing now, and its next wait ends at once
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
        #: when its time is over, and the end of what it now waits for
        self.until = asyncio.get_running_loop().time() + plan.limits.request_timeout_seconds
        self.deadline = asyncio.timeout_at(self.until)
        #: of each task that was begun
        self._recorders: list[Recorder] = []
        #: why the model ended its last answer
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
        given, steps = self._given, self._plan.steps
        values = dict(given.values)
        conversation = [given.context] if given.context and steps[0].instructions is None else []
        history = [self._message(each) for each in (*conversation, *given.said)]
        text = ""
        for n, step in enumerate(steps):
            if step.instructions is not None:
                asked = Item("text", self._filled(step, step.instructions, values))
                history.append(self._message(Said("user", (asked, *given.images) if n == 0 else (asked,))))
            if not history:
                raise InvalidRequest("chat_history", "is empty, so there is nothing to answer")
            last = n == len(steps) - 1
            recorder = Recorder(self.record.request_id, self._clock, history[-1], TokenUsage())
            self._recorders.append(recorder)
            before = len(self._extra_data)
            async with aclosing(self._turn(step.agent, history, recorder, streamed and last)) as events:
                async for event in events:
                    if last:
                        yield StepPiece(self._call, event.text)
            text = "".join(recorder.output)
            self._finish_reason = recorder.finish_reason
            history.append(self._message(Said("assistant", (Item("text", text),))))
            values[f"_{step.name}"] = text
            if not last:
                added = self._extra_data[before:]
                yield StepDone(n + 1, step.name, documents.answer(self._call, text, recorder.usage, added))
        yield Done(self._answer(text))

    async def _turn(
        self, agent: AgentSpec, history: Sequence[Message], recorder: Recorder, streamed: bool
    ) -> AsyncGenerator[TextDelta, None]:
        """The agent's answer to the last message, gathered in the recorder."""
        given = TurnInput(
            session_id=self.record.session_id,
            task_id=self.record.request_id,
            request_id=self.record.request_id,
            owner=self._caller.user,
            said=recorder.messages,
        )
        turn = await open_turn(agent, GivenConversation(agent.model, history[:-1]), given)
        loop = TurnLoop(agent, turn, recorder, self._context(agent), streamed=streamed)
        resumption: Resumption | None = None
        try:
            while True:
                async with aclosing(loop.events(resumption)) as events:
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
            raise _explained(error, agent) from error

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
        """No one can be asked during a stateless call, so the results say that the calls were not made."""
        why = "The call needs a decision or an authorization, which cannot be given here; "
        request_id, now = self.record.request_id, self._clock.now()
        rejected = [
            tool_message(request_id, call, why + not_to_its_end(call), now, is_error=True)
            for call in needed.calls
        ]
        return Resumption((), tuple(rejected))

    def _filled(self, step: TaskStep, instructions: Instructions, values: Json) -> str:
        try:
            return storable(instructions.render(values))
        except TemplateRefused as error:
            raise InvalidRequest(f"instructions of the task {step.name}", str(error)) from None

    def _message(self, said: Said) -> Message:
        return message_of(self.record.request_id, said.role, said.items, self._clock.now())

    def _answer(self, text: str) -> Json:
        typed = _typed(text, self._plan.output_type, self._finish_reason)
        return documents.answer(self._call, text, self._usage, self._extra_data, typed=typed)

    @property
    def _usage(self) -> TokenUsage:
        return sum((each.usage for each in self._recorders), TokenUsage())

    def ended(self, error: BaseException | None) -> RequestRecord:
        """The call as it ended, for its observer."""
        if error is None:
            return replace(self.record, status="Completed", usage=self._usage)
        if isinstance(error, TealError):
            return replace(
                self.record, status="Failed", usage=self._usage, error=Failure(error.code, error.detail)
            )
        status = "Canceled" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "Failed"
        return replace(self.record, status=status, usage=self._usage)


# --- structured output ---------------------------------------------------------------------------


def _typed(text: str, kind: type[BaseModel] | None, ended: FinishReason | None) -> Any:
    """The answer as the type's schema describes it."""
    if kind is None:
        return None
    try:
        return kind.model_validate_json(text).model_dump(mode="json", by_alias=True)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False)
        early = _ENDED_EARLY.get(ended or "")
        reason = early or bodies.refusal(mistakes).detail.removeprefix("body: ")
        cause = early or mistakes[0]["type"]  # the reason may quote the answer
        log.warning("The model's answer is not of the type %s: %s.", kind.__name__, cause)
    except Exception as error:  # whatever the code of a config's own type raises
        log.exception("the type %s raised", kind.__name__)
        reason = f"the type raised {type(error).__name__}"
    raise ModelFailed(f"The model's answer is not of the type {kind.__name__}: {reason}.")


def _explained(error: ModelFailed, agent: AgentSpec) -> ModelFailed:
    """Says that a type was asked for, where the model service may have refused just that."""
    wanted = agent.response_format
    refused = error.http_status in _FORMAT_REFUSED and _FORMAT.search(error.detail)
    if wanted is None or not refused:
        return error
    return ModelFailed(
        f"{error.detail} The model was asked for structured output (response_format) of the type "
        f"{wanted.name}: use a model that supports it, or leave out output_type.",
        retry_after=error.retry_after,
        http_status=error.http_status,
    )
