"""One turn of a conversation: its prompt, its tools, what it records, and the context that it leaves.

Tasks of the service and threads of the library use the same turn. They differ in the `Conversation`, which
reads the earlier messages and stores the new ones, and in the `Recorder`.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from copy import deepcopy
from typing import Protocol

from msgspec import Struct

from tealagents.domain.events import Event, ToolCalled, ToolReturned
from tealagents.domain.models import (
    AS_CONFIGURED,
    Item,
    Json,
    Message,
    RequestSetup,
)
from tealagents.domain.paths import count_rounds
from tealagents.engine.agent import AgentSpec
from tealagents.engine.loop import (
    Answered,
    Called,
    Calling,
    Finished,
    HumanNeeded,
    LoopState,
    Noted,
    Resumption,
    Speaking,
    converse,
)
from tealagents.engine.prompt import Prompt, RemotePrompt, ViewedPrompt, context_note
from tealagents.engine.recorder import Recorder
from tealagents.engine.toolbox import CallContext, Toolbox, ToolOutput
from tealagents.state.history import open_tool_round
from tealagents.state.memories import Memory
from tealagents.state.new_message import message_of
from tealagents.threads.context import Gathered, Invocation
from tealagents.threads.model_faults import faults_of
from tealagents.threads.states import restore_context, restore_memory
from tealagents.threads.views import Part, Report, Upcoming

#: seconds, in total, that context providers get to handle a failed request
LAST_WORDS_SECONDS = 2.0


#: for agents without providers, as most are
_NOTHING = Gathered()


class TurnInput(Struct, frozen=True, kw_only=True):
    """The input of a turn."""

    #: what the tools see of the request
    context: CallContext
    #: the user's message; after a pause, all messages of the request so far
    said: Sequence[Message]
    resumed: bool = False
    setup: RequestSetup = AS_CONFIGURED
    #: texts sent to the model with every call, such as the tool calls of unanswered requests
    notes: Sequence[str] = ()


class Conversation(Protocol):
    """A turn's access to the earlier messages of its conversation and to what it remembers."""

    @property
    def remote_id(self) -> str | None:
        """Of a remote conversation: the id to continue from; None if the model service has none of it yet."""
        ...

    async def remembered(self) -> Json:
        """The context of the checkpoint: the state of reducers and context providers. A turn never changes
        it, but works on copies."""
        ...

    async def encoded(self) -> Sequence[bytes]:
        """All earlier messages, encoded for the model, oldest first."""
        ...

    def earlier(self) -> AsyncIterator[Part]:
        """The earlier messages in parts, newest first, read as they are asked for."""
        ...

    def looked(self) -> None:
        """The view has read all that it needs from `earlier`."""
        ...

    def memory(self, provider: str) -> Memory:
        """A context provider's memory of the user, the session and the task."""
        ...


class TurnDone(Struct, frozen=True):
    """The model has answered; `context` is to be stored with the new checkpoint."""

    #: of a remote conversation: the id to continue from
    remote_id: str | None
    context: Json | None


class TurnPaused(Struct, frozen=True):
    """The turn waits for decisions, or for the owner."""

    needed: HumanNeeded
    remote_id: str | None


class Turn(Struct, eq=False):
    """One request's part of a conversation, from its message to its end or its pause."""

    agent: AgentSpec
    recorder: Recorder
    state: LoopState
    #: what the context providers have added
    gathered: Gathered
    #: the context of the checkpoint that this turn continues
    remembered: Json
    #: the context to store with the new checkpoint; None: the agent has no reducers and no providers
    context: Json | None
    #: the providers have been told how the turn ended
    reported: bool = False

    async def events(
        self, resumption: Resumption | None = None
    ) -> AsyncGenerator[tuple[Event, ...] | TurnDone | TurnPaused, None]:
        """The turn's events as they happen, those that happen together in one tuple; then the turn's end.

        Every step is recorded before the next one is asked for.
        """
        recorder, state = self.recorder, self.state
        async with aclosing(converse(state, resumption)) as events:
            async for event in events:
                match event:
                    case Speaking():
                        for delta in event.deltas:
                            recorder.output.append(delta.text)
                        yield event.deltas
                    case Noted():
                        recorder.noted(event.reports)
                    case Answered():
                        recorder.answered(event, self.agent.model.name, len(state.toolbox))
                    case Calling():
                        yield tuple(map(ToolCalled, event.calls))
                        await recorder.intend(event.calls)
                    case Called():
                        for result in event.results:
                            recorder.called(result)
                        for message in event.messages:
                            recorder.add(message)
                        if event.results:
                            yield tuple(map(_returned, event.results))
                            await recorder.flush()
                    case HumanNeeded():
                        yield TurnPaused(event, self.remote_id)
                    case Finished():
                        context, reports = await self._completed(recorder.response)
                        recorder.concluded()
                        recorder.noted(reports)
                        yield TurnDone(self.remote_id, context)

    @property
    def remote_id(self) -> str | None:
        """Of a remote conversation: the id to continue from."""
        return self.state.remote_id

    @property
    def left(self) -> Sequence[str]:
        """Ids of responses that the model service has begun in this turn and that the conversation does not
        continue."""
        return self.state.left

    async def _completed(self, response: Sequence[Message]) -> tuple[Json | None, list[Report]]:
        """The model has answered. Returns the context for the new checkpoint, and reports for the trace.

        Raises `ContextProviderFailed` if a required provider fails.
        """
        self.reported = True
        reports = await self.agent.providers.invoked(self.gathered, response, None)
        if self.context is None:
            return count_rounds(self.remembered) or None, reports
        states = self.gathered.states  # the checked copies: a provider that was given up may still write
        before = self.remembered.get("providers") or {}
        absent = {name: state for name, state in before.items() if name not in self.gathered.invocations}
        reports += await self.state.prompt.finish(response[-1])
        reports += restore_memory(self.context["view"], self.remembered.get("view") or {})
        kept = {**self.context, "providers": absent | states}
        reports += restore_context(kept, self.remembered)
        return {name: value for name, value in kept.items() if value}, reports

    async def failed(self, error: BaseException) -> list[Report]:
        """The request ends without an answer. Returns reports for the trace."""
        if self.reported:
            return []
        self.reported = True
        response, providers = self.recorder.response, self.agent.providers
        return await providers.invoked(self.gathered, response, error, most_seconds=LAST_WORDS_SECONDS)


def _returned(result: ToolOutput) -> ToolReturned:
    call = result.call
    return ToolReturned(call.id, call.tool, result.output, result.is_error, result.duration_ms)


# --- opening -------------------------------------------------------------------------------------


async def open_turn(
    agent: AgentSpec,
    conversation: Conversation,
    given: TurnInput,
    recorder: Recorder,
    *,
    streamed: bool,
) -> Turn:
    """Composes a turn: reads the context, asks the context providers, collects prompt and tools."""
    remembered = await conversation.remembered()
    gathered = await _gather(agent, conversation, given, remembered)
    toolbox = _toolbox(agent, given, gathered)
    context: Json | None = None
    if agent.remembers:
        context = {"turn": remembered.get("turn", 0) + 1, "view": deepcopy(remembered.get("view") or {})}
    prompt = await _prompt(agent, conversation, given, gathered, toolbox, context)
    recorder.noted(gathered.reports)
    calls, held = open_tool_round(recorder.messages)
    state = LoopState(
        agent=agent,
        toolbox=toolbox,
        context=given.context,
        clock=recorder.clock,
        request_id=recorder.request_id,
        prompt=prompt,
        stream=streamed,
        response_format=given.setup.response_format or agent.response_format,
        tool_choice=given.setup.tool_choice,
        remote_id=conversation.remote_id,
        rounds=sum(1 for message in recorder.messages if message.tool_calls),
        call_ids={call.id: 1 for message in recorder.messages for call in message.tool_calls} or None,
        round=calls,
        held=held,
    )
    return Turn(agent, recorder, state, gathered, remembered, context)


async def _gather(
    agent: AgentSpec, conversation: Conversation, given: TurnInput, remembered: Json
) -> Gathered:
    if not agent.providers:
        return _NOTHING

    def begin(provider: str, state: Json) -> Invocation:
        return Invocation(
            messages=(given.said[0],),
            user=given.context.owner,
            session_id=given.context.session_id,
            task_id=given.context.task_id,
            request_id=given.context.request_id,
            model=agent.model,
            memory=conversation.memory(provider),
            state=state,
        )

    return await agent.providers.invoking(begin, remembered.get("providers") or {})


def _toolbox(agent: AgentSpec, given: TurnInput, gathered: Gathered) -> Toolbox:
    """The tools of the agent, of the context providers and of the client."""
    toolbox = agent.toolbox.of(given.context.owner)
    if gathered.tools:
        toolbox = toolbox.with_tools(gathered.tools)
    if given.setup.client_tools:
        toolbox = toolbox.with_client_tools(given.setup.client_tools)
    return toolbox


def _added(agent: AgentSpec, given: TurnInput, gathered: Gathered) -> tuple[list[str], list[Message]]:
    """The notes and the messages that are sent in this request only."""
    notes = [*gathered.instructions, *filter(None, [given.setup.instructions]), *given.notes]
    messages = list(gathered.messages)
    if given.setup.user_context:
        note = context_note(given.setup.user_context)
        if agent.thread_kind == "remote":  # the model service keeps every message
            notes.append(note)
        else:
            request_id, at = given.context.request_id, given.said[0].created_at
            messages.append(message_of(request_id, "user", (Item("text", note),), at))
    return notes, messages


async def _prompt(
    agent: AgentSpec,
    conversation: Conversation,
    given: TurnInput,
    gathered: Gathered,
    toolbox: Toolbox,
    context: Json | None,
) -> Prompt:
    model, system, said = agent.model, agent.system_prompt, given.said
    notes, new = _added(agent, given, gathered)
    if agent.thread_kind == "remote":
        instructions = "\n\n".join(filter(None, [system, *notes]))
        known = conversation.remote_id is not None  # the service has the conversation
        earlier = [] if known else await conversation.encoded()
        with faults_of(model):
            standing = [model.encode_system(instructions)] if instructions else []
            unsent = [model.encode(each) for each in (() if known and given.resumed else [*new, *said])]
        return RemotePrompt(model, standing, [*earlier, *unsent])
    if agent.view is not None and context is not None:
        return ViewedPrompt(
            agent.view,
            conversation.earlier,
            Upcoming(model=model, tools=toolbox.encoded, memory=context["view"]),
            system=system,
            notes=notes,
            running=said,
            number=context["turn"],
            transient=new,
            looked=conversation.looked,
        )
    earlier = await conversation.encoded()
    with faults_of(model):
        head = [model.encode_system(system)] if system else []
        rest = [model.encode_system(note) for note in notes]
        rest += [model.encode(message) for message in (*new, *said)]
    return Prompt(model, [*head, *earlier, *rest])
