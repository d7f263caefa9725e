"""The conversation with the model: call, tool round, call, … until it answers or a human is needed.

One generator, which persists nothing and publishes nothing: its driver stores each event *before* asking for
the next one, so that nothing happens that was not written down first.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime

from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.structs import replace

from tealagents.domain import ids
from tealagents.domain.errors import ModelFailed, TealError, ToolRoundsExceeded, ends_task
from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.domain.models import (
    LONGEST_NATIVE,
    Deferred,
    Item,
    Json,
    Message,
    ResponseFormat,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from tealagents.domain.ports import Clock, ModelCall
from tealagents.domain.texts import enumerated, storable
from tealagents.engine.agent import AgentSpec
from tealagents.engine.prompt import Prompt
from tealagents.engine.toolbox import NAMES_LISTED, CallContext, Toolbox, ToolOutput
from tealagents.threads.model_faults import Unusable, faulty, stream_of
from tealagents.threads.views import Report
from tealagents.unwinding import unwound

#: characters of a tool's name, which a model may make up
LONGEST_NAME = 200
#: characters of a model service's own call id that are kept to be sent back: some services store data in it.
#: If it is longer, the service is sent the id that clients see
LONGEST_NATIVE_ID = 16 * 1024
#: an answer that ends so calls no tools: a call that was cut short must not run, even if it can be parsed
_ENDS_WITHOUT_CALLS = frozenset({"length", "content_filter", "refusal"})


class Speaking(Struct, frozen=True):
    """The model is answering: the text deltas that arrived together."""

    deltas: tuple[TextDelta, ...]


class Answered(Struct, frozen=True, kw_only=True):
    """A model call has ended; `message` holds the model's text and its tool calls."""

    message: Message
    done: ModelDone
    started_at: datetime
    duration_ms: float
    first_piece_ms: float
    messages_sent: int
    refusal: bool


class Calling(Struct, frozen=True):
    """These calls are about to be made: they must be stored as intents first."""

    calls: tuple[ToolCall, ...]


class Called(Struct, frozen=True):
    """These calls have been made, in the order in which they finished.

    The results and messages of one event are stored in one commit. A retry of a failed request continues from
    the messages alone, and repeats no call whose message is stored.
    """

    results: tuple[ToolOutput, ...]
    #: with the last of the calls: the tool messages of all of them, in the order of the calls
    messages: tuple[Message, ...] = ()


class HumanNeeded(Struct, frozen=True):
    """These calls wait for a decision; the conversation continues once it is made."""

    calls: tuple[ToolCall, ...]
    #: call id → `{server, url, scopes}`, for each call that waits for its owner's consent
    consents: Mapping[str, Json]
    #: all these calls are approved already and wait only for the owner's own token
    awaits_owner: bool
    #: names of tools that have changed since their calls were approved
    changed: tuple[str, ...] = ()
    #: calls that had begun and wait for the next pause
    begun: tuple[Deferred, ...] = ()
    #: specs of tools of these calls that came with the request
    brought: tuple[ToolSpec, ...] = ()

    @property
    def message(self) -> str:
        """The text of the pause, for those who decide."""
        approved = [call for call in self.calls if not call.by_client]
        names = _named(approved or self.calls)
        if self.consents:
            consents = _named([call for call in self.calls if call.id in self.consents])
            rest = _named([call for call in approved if call.id not in self.consents])
            also = f", and approval before {rest} can" if rest else ""
            wanted = f"Your authorization is needed before {consents} can run{also}"
            return f"{wanted}: visit the listed URLs, then approve."
        if self.changed:
            changed = list(dict.fromkeys(self.changed))
            have = "has changed since it was" if len(changed) == 1 else "have changed since they were"
            return f"{enumerated(changed)} {have} approved. Approve again before {names} can run."
        if not approved:
            return f"The client has to run {names} and send what it returned, or reject it."
        if self.awaits_owner:
            are = "is approved and waits" if len(self.calls) == 1 else "are approved and wait"
            return f"{names} {are} for the owner of the task to resume it."
        return f"Approval is needed before {names} can run."


def _named(calls: Sequence[ToolCall]) -> str:
    more = len(calls) - NAMES_LISTED
    return enumerated([call.tool for call in calls[:NAMES_LISTED]] + [f"{more:,} more"] * (more > 0))


class Noted(Struct, frozen=True):
    """Reducers or context providers changed the prompt; the trace shows it."""

    reports: tuple[Report, ...]


class Finished(Struct, frozen=True):
    """The model has answered."""


LoopEvent = Speaking | Noted | Answered | Calling | Called | HumanNeeded | Finished


class Resumption(Struct, frozen=True):
    """The decision on a pause; empty if the prompt already ends in tool results."""

    #: calls to be made now; their intents were stored with the decision
    approved: tuple[ToolCall, ...] = ()
    #: tool messages of the other calls: that they were rejected, or the output of the client that ran them
    messages: tuple[Message, ...] = ()
    #: calls that had begun before they needed their owner; they are made again only once they are approved
    begun: tuple[Deferred, ...] = ()


class LoopState(Struct, kw_only=True):
    """The state of one request's conversation with the model."""

    agent: AgentSpec
    #: the tools of the agent and of this request
    toolbox: Toolbox
    #: what the tools see of the request
    context: CallContext
    clock: Clock
    request_id: str
    prompt: Prompt
    stream: bool
    response_format: ResponseFormat | None = None
    tool_choice: ToolChoice | None = None
    remote_id: str | None = None
    #: ids of responses that the model service has begun and that the conversation does not continue
    left: list[str] = []
    #: tool rounds so far, including those before a pause
    rounds: int = 0
    #: the ids of all calls so far (None: no calls), each with the last suffix given to a repetition of it: if
    #: a model uses an id twice, the second call is renamed
    call_ids: dict[str, int] | None = None
    #: the calls of the current round, in the model's order, and their tool messages so far: the model is sent
    #: all of them together, in that order
    round: tuple[ToolCall, ...] = ()
    held: list[Message] = []


async def converse(state: LoopState, resumption: Resumption | None = None) -> AsyncGenerator[LoopEvent, None]:
    """The events of one request, from its message or from the decision of a pause.

    After a pause, the assistant's message and earlier results are in the prompt already. A round that waits
    for the client's outputs and for approvals pauses twice, since different parties may answer: the client
    first, as some clients know of no approvals and answer their own calls alone.
    """
    while True:
        if resumption is None:
            answered: Speaking | Noted | Answered | None = None
            async with aclosing(_ask(state)) as said:
                async for answered in said:
                    yield answered
            assert isinstance(answered, Answered)  # `_ask` raises if there is no answer
            if not answered.message.tool_calls:
                yield Finished()
                return
            _begin_round(state, answered.message)
            resumption = Resumption()
        governed, free = _open_calls(state, resumption)
        if free:
            yield Calling(free)
        deferred = list(resumption.begun)
        due = replace(resumption, approved=(*resumption.approved, *free))
        async with aclosing(_make_calls(state, due, deferred, waits=bool(governed))) as making:
            async for made in making:
                yield made
        if governed or deferred:
            # calls of this round may have changed which tools the servers list
            yield _human_needed(state.toolbox.current(), governed, deferred)
            return
        resumption = None


def _begin_round(state: LoopState, message: Message) -> None:
    state.rounds += 1
    if state.rounds > state.agent.limits.max_tool_rounds:
        raise ToolRoundsExceeded(
            f"The model asked for tools {state.rounds} times in a row without an answer. Raise "
            "`limits.max_tool_rounds` or ask for less at once."
        )
    state.prompt.add(message)
    state.round = message.tool_calls


def _open_calls(state: LoopState, decided: Resumption) -> tuple[tuple[ToolCall, ...], tuple[ToolCall, ...]]:
    """The round's calls without a result or a decision: those that wait for one, and those to make now."""
    known = {message.tool_call_id for message in (*state.held, *decided.messages)}
    known.update(call.id for call in (*decided.approved, *(item.call for item in decided.begun)))
    left = [call for call in state.round if call.id not in known]
    governed = tuple(call for call in left if state.toolbox.governed(call))
    return governed, tuple(call for call in left if call not in governed)


def _human_needed(box: Toolbox, governed: tuple[ToolCall, ...], deferred: Sequence[Deferred]) -> HumanNeeded:
    """The next pause: it shows the calls of the client's tools, if any wait, or else all calls that wait."""
    begun: tuple[Deferred, ...] = ()
    if clients := tuple(call for call in governed if call.by_client):
        begun = tuple(item for item in deferred if item.call.begun)
        governed, deferred = clients, ()
    waiting = (
        item.call if item.call.pinned and not item.changed else box.pinned(item.call) for item in deferred
    )
    calls = (*map(box.pinned, governed), *waiting)
    return HumanNeeded(
        calls,
        {item.call.id: item.authorization for item in deferred if item.authorization is not None},
        awaits_owner=not governed
        and all(item.authorization is None and not item.changed for item in deferred),
        changed=tuple(item.call.tool for item in deferred if item.changed),
        begun=begun,
        brought=box.brought_for(calls),
    )


async def _ask(state: LoopState) -> AsyncGenerator[Speaking | Noted | Answered, None]:
    """One model call."""
    state.toolbox = state.toolbox.current()
    composed = await state.prompt.compose()
    if composed.reports:
        yield Noted(tuple(composed.reports))
    reply = _Reply(state.clock.now(), time.perf_counter())
    model = state.agent.model
    watch = state.agent.observer.model_call(model.name, model.provider, streamed=state.stream)
    call = ModelCall(
        prompt=composed.parts,
        tools=state.toolbox.encoded,
        stream=state.stream,
        remote_id=state.remote_id,
        response_format=state.response_format,
        tool_choice=state.tool_choice if state.toolbox.encoded else None,
        headers=watch.headers({"x-request-id": state.request_id}),
        response_ids=state.left,
    )
    try:
        async with aclosing(stream_of(model, call)) as batches:
            async for batch in batches:
                begun = bool(reply.text)
                deltas = reply.take(batch)
                if deltas:
                    if not begun:
                        reply.first = time.perf_counter() - reply.started
                        watch.first_piece()
                    yield Speaking(tuple(deltas))
        done = _without_forbidden_calls(reply.ended(), state.tool_choice)
    except BaseException as error:
        watch.failed(error)
        if isinstance(error, TealError | GeneratorExit) or ends_task(error):
            raise
        raise faulty(model, error) from error
    watch.done(done, "".join(reply.text))
    state.prompt.sent()
    _continue_from(state, done.response_id)
    yield _answered(state, call, reply, done)


def _continue_from(state: LoopState, response_id: str | None) -> None:
    if state.agent.thread_kind == "remote":
        state.remote_id = response_id
    if response_id in state.left:
        state.left.remove(response_id)


class _Reply(Struct):
    """What one model call has returned so far."""

    started_at: datetime
    #: by `time.perf_counter`
    started: float
    #: seconds until the first text
    first: float = 0.0
    text: list[str] = []
    refusal: bool = False
    #: a high surrogate at the end of a delta; the low one should begin the next delta
    half: TextDelta | None = None
    done: ModelDone | None = None

    def take(self, batch: Sequence[ModelEvent]) -> list[TextDelta]:
        """Takes a batch of events; returns its text deltas, made storable. `Unusable` for other objects."""
        deltas: list[TextDelta] = []
        if type(batch) is not list and not isinstance(batch, Iterable):
            raise Unusable(f"it yielded {type(batch).__name__}, not a list")
        for event in batch:
            if isinstance(event, TextDelta):
                if not isinstance(event.text, str):
                    raise Unusable(f"it yielded a TextDelta of {type(event.text).__name__}")
                if self.half is None and storable(event.text) is event.text:
                    deltas.append(event)
                else:
                    deltas += self._joined(event)
            else:
                deltas += self._lone_half()
                self.done = _checked(event)
        for delta in deltas:
            self.text.append(delta.text)
            self.refusal = self.refusal or delta.refusal
        return deltas

    def _joined(self, event: TextDelta) -> Iterator[TextDelta]:
        """The delta, joined with the half before it, and without a half at its own end."""
        text = event.text
        if self.half is not None and self.half.refusal == event.refusal:
            text, self.half = self.half.text + text, None
        yield from self._lone_half()
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self.half = text[:-1], TextDelta(text[-1], event.refusal)
        if text:
            yield TextDelta(storable(text), event.refusal)

    def _lone_half(self) -> Iterator[TextDelta]:
        """The kept half, made storable by itself: its other half does not follow."""
        if self.half is not None:
            yield TextDelta(storable(self.half.text), self.half.refusal)
            self.half = None

    def ended(self) -> ModelDone:
        """The last event; `ModelFailed` if the call has not led to an answer."""
        if self.done is None:
            raise ModelFailed("The model service ended without an answer.")
        if self.done.finish_reason == "content_filter" and not self.text:
            # stored as answered, the filtered message would be sent, and refused, again with every later turn
            raise ModelFailed("The model service's content filter refused the message. Rephrase it.")
        return self.done


def _checked(event: object) -> ModelDone:
    if not isinstance(event, ModelDone):
        raise Unusable(f"it yielded {type(event).__name__}, not TextDelta or ModelDone")
    try:
        convert(to_builtins(event), ModelDone)
    except (ValidationError, TypeError) as error:
        raise Unusable(f"it yielded a ModelDone that is wrong: {error}") from None
    return event


def _without_forbidden_calls(done: ModelDone, choice: ToolChoice | None) -> ModelDone:
    """The end of an answer without calls that must not run, because the answer was cut short or refused, or
    because the request allows none, which some services ignore."""
    forbidden = choice is not None and choice.mode == "none"
    if not done.tool_calls or not (forbidden or done.finish_reason in _ENDS_WITHOUT_CALLS):
        return done
    reason = "stop" if done.finish_reason == "tool_calls" else done.finish_reason
    return replace(done, finish_reason=reason, tool_calls=(), native="")


def _answered(state: LoopState, call: ModelCall, reply: _Reply, done: ModelDone) -> Answered:
    said = "".join(reply.text)
    if done.tool_calls and state.tool_choice is not None and state.tool_choice.mode == "required":
        state.tool_choice = None  # it has been met; left in place, the model could never answer
    message = Message(
        message_id=ids.random_id(),
        request_id=state.request_id,
        role="assistant",
        created_at=state.clock.now(),
        items=(Item("text", said),) if said or not done.tool_calls else (),
        tool_calls=_with_unique_ids(done.tool_calls, state),
        native=storable(done.native) if done.tool_calls and len(done.native) <= LONGEST_NATIVE else "",
    )
    return Answered(
        message=message,
        done=done,
        started_at=reply.started_at,
        duration_ms=round((time.perf_counter() - reply.started) * 1000, 3),
        first_piece_ms=round(reply.first * 1000, 3),
        messages_sent=len(call.prompt),
        refusal=reply.refusal,
    )


def _with_unique_ids(calls: Sequence[ToolCall], state: LoopState) -> tuple[ToolCall, ...]:
    """The calls with their plugins, and with ids that are short and unique within the request."""
    if not calls:
        return ()
    known = state.call_ids = state.call_ids or {}
    unique = []
    for call in calls:
        native = storable(call.id)
        given = ids.shown_call_id(native)
        name = given
        while name in known:
            known[given] += 1
            name = f"{given}-{known[given]}"
        known[name] = 1
        tool = storable(call.tool[:LONGEST_NAME])
        box = state.toolbox
        # a renamed repetition needs the service's own id only if the service keeps the conversation
        is_sent = name != native and (state.agent.thread_kind == "remote" or name == given)
        unique.append(
            ToolCall(
                name,
                tool,
                # some services send an empty text if there are none; clients parse this as JSON
                storable(call.arguments) if call.arguments.strip() else "{}",
                box.plugin_of(tool),
                box.by_client(tool),
                native_id=native if is_sent and len(native) <= LONGEST_NATIVE_ID else "",
            )
        )
    return tuple(unique)


async def _make_calls(
    state: LoopState, decided: Resumption, deferred: list[Deferred], *, waits: bool
) -> AsyncGenerator[Called, None]:
    """Makes the approved calls concurrently and yields their results as they finish.

    The last event also has the tool messages, in the order of the calls. Calls that cannot be made yet are
    added to `deferred`. The tool messages are added to the prompt once no call of the round waits any more.
    """
    results: list[ToolOutput] = []
    finished: list[ToolOutput] = []
    pending = {asyncio.ensure_future(_call(state, call)) for call in decided.approved}
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            outcomes = [future.result() for future in done]
            deferred += (outcome for outcome in outcomes if isinstance(outcome, Deferred))
            finished = [outcome for outcome in outcomes if isinstance(outcome, ToolOutput)]
            results += finished
            if finished and pending:
                yield Called(tuple(finished))
    finally:
        await unwound(pending)  # they clean up before anything that they use is closed
    order = {call.id: n for n, call in enumerate(state.round)}
    deferred.sort(key=lambda item: order[item.call.id])
    messages = [*decided.messages]
    for each in results:
        at, is_error = state.clock.now(), each.is_error
        messages.append(tool_message(state.request_id, each.call, each.output, at, is_error=is_error))
    messages.sort(key=lambda message: order[message.tool_call_id or ""])
    state.held = sorted([*state.held, *messages], key=lambda message: order[message.tool_call_id or ""])
    if not waits and not deferred:
        for message in state.held:
            state.prompt.add(message)
        state.held = []
    if messages:
        yield Called(tuple(finished), tuple(messages))


async def _call(state: LoopState, call: ToolCall) -> ToolOutput | Deferred:
    known = state.toolbox.find(call.tool) is not None
    with state.agent.observer.tool_call(call, known=known) as watch:
        outcome = await state.toolbox.call(call, state.context)
        if isinstance(outcome, Deferred):
            watch.deferred()
        else:
            watch.done(outcome.output, is_error=outcome.is_error)
    return outcome


def tool_message(request_id: str, call: ToolCall, output: str, at: datetime, *, is_error: bool) -> Message:
    """The message that tells the model the result of one call."""
    return Message(
        message_id=ids.random_id(),
        request_id=request_id,
        role="tool",
        created_at=at,
        items=(Item("text", output),),
        tool_call_id=call.id,
        native_call_id=call.native_id,
        tool=call.tool,
        is_error=is_error,
    )
