"""One message and its answer, on a thread of the library."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from inspect import isawaitable

from msgspec import Struct

from tealagents.agent.answers import Answer, Update
from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.events import TextDelta
from tealagents.domain.models import Item, Json, Message, Step, ToolCall, Usage, User
from tealagents.domain.ports import Clock, Model
from tealagents.engine.loop import (
    Answered,
    Called,
    Calling,
    HumanNeeded,
    LoopEvent,
    LoopState,
    Noted,
    Resumption,
    RoundDone,
    converse,
    tool_message,
)
from tealagents.engine.observer import Observer
from tealagents.engine.prompt import Prompt, RemotePrompt, ViewedPrompt, context_note
from tealagents.engine.toolbox import CallContext, Toolbox
from tealagents.engine.turns import Turn, steps_of
from tealagents.state.memories import Memory
from tealagents.state.records import RecordStore
from tealagents.threads.base import AgentThread
from tealagents.threads.context import Gathered, Invocation, Providers
from tealagents.threads.local import LocalThread
from tealagents.threads.remote import RemoteThread
from tealagents.threads.views import Upcoming, View, newest_first

#: asked before a tool call that needs approval is made
Approve = Callable[[ToolCall], bool | Awaitable[bool]]


class Side(Struct):
    """What one kind of thread is served with."""

    model: Model
    toolbox: Toolbox


class Setup(Struct, frozen=True, kw_only=True):
    """What an agent is, for all its answers."""

    system_prompt: str
    user: User
    view: View | None
    approve: Approve | None
    max_tool_rounds: int
    clock: Clock

    async def approves(self, call: ToolCall) -> bool:
        """Whether a call that needs approval may be made. Without anybody to ask it may not."""
        if self.approve is None:
            return False
        decided = self.approve(call)
        return bool(await decided) if isawaitable(decided) else bool(decided)


class Answering:
    """One message and its answer."""

    def __init__(
        self,
        setup: Setup,
        records: RecordStore,
        side: Side,
        providers: Providers,
        thread: AgentThread,
        message: str | Sequence[Item],
        user_context: Mapping[str, str],
    ) -> None:
        self._setup = setup
        self._records = records
        self._side = side
        self._providers = providers
        self._thread = thread
        self._user_context = dict(user_context)
        self._request_id = ids.random_id()
        items = (Item("text", message),) if isinstance(message, str) else tuple(message)
        if not items:
            raise InvalidRequest("message", "is empty")
        self._message = self._said(items)
        self._response: list[Message] = []
        self._steps: list[Step] = []
        self._usage = Usage()
        self._output: list[str] = []
        self._tools = CallContext(
            session_id=thread.thread_id,
            task_id=thread.thread_id,
            request_id=self._request_id,
            owner=setup.user,
            actor=setup.user,
            token="",
            headers=None,
            delegation=None,
            extra_data={},
        )

    def _said(self, items: tuple[Item, ...]) -> Message:
        return Message(
            message_id=ids.random_id(),
            request_id=self._request_id,
            role="user",
            created_at=self._setup.clock.now(),
            items=items,
        )

    async def answering(self, *, streamed: bool) -> AsyncGenerator[Update | Answer, None]:
        turn = await self._turn()
        self._steps += steps_of(turn.reports, self._request_id)
        remote = self._thread if isinstance(self._thread, RemoteThread) else None
        state = LoopState(
            model=self._side.model,
            toolbox=turn.toolbox,
            call_tool=lambda call: turn.toolbox.call(call, self._tools),
            clock=self._setup.clock,
            request_id=self._request_id,
            prompt=turn.prompt,
            stream=streamed,
            max_rounds=self._setup.max_tool_rounds,
            headers={"x-request-id": self._request_id},
            observer=Observer(),
            remote=remote is not None,
            remote_id=remote.remote_id if remote else None,
        )
        try:
            resumption: Resumption | None = None
            while True:
                needed: HumanNeeded | None = None
                async with aclosing(converse(state, resumption)) as events:
                    async for event in events:
                        needed = event if isinstance(event, HumanNeeded) else None
                        for update in self._taken(event):
                            yield update
                if needed is None:
                    break
                resumption = await self._decided(needed)
            context, reports = await turn.completed(self._response)
        except BaseException as error:
            # a cancel, a stream that nobody reads to its end and an `approve` that raised are told of, too
            await turn.failed(self._response, error)
            raise
        self._note(steps_of(reports, self._request_id))
        await self._keep(context or {}, state.remote_id)
        yield self._answer()

    async def _keep(self, context: Json, remote_id: str | None) -> None:
        """The thread takes in what is new, all of it at once, and marks the place."""
        await self._thread.on_new_messages([self._message, *self._response])
        if isinstance(self._thread, RemoteThread):
            self._thread.continued(remote_id)
        self._thread.context = context
        self._thread.checkpoint()

    def _answer(self) -> Answer:
        return Answer(
            text="".join(self._output),
            messages=tuple(self._response),
            usage=self._usage,
            request_id=self._request_id,
            steps=tuple(self._steps),
            extra_data=self._tools.extra_data,
        )

    # --- the turn --------------------------------------------------------------------------------

    async def _turn(self) -> Turn:
        thread, context = self._thread, self._thread.context
        gathered = await self._gather(context)
        toolbox = self._side.toolbox
        toolbox = toolbox.with_tools(gathered.tools) if gathered.tools else toolbox
        kept: Json = {"turn": int(context.get("turn", 0)) + 1, "view": dict(context.get("view") or {})}
        running = [*gathered.messages, *self._told_by_the_application(), self._message]
        prompt = self._prompt(thread, gathered.instructions, running, toolbox, kept)
        return Turn(prompt, toolbox, providers=self._providers, gathered=gathered, context=kept)

    def _prompt(
        self,
        thread: AgentThread,
        notes: Sequence[str],
        running: Sequence[Message],
        toolbox: Toolbox,
        kept: Json,
    ) -> Prompt:
        model, system = self._side.model, self._setup.system_prompt
        new = [model.encode(message) for message in running]
        if isinstance(thread, RemoteThread):
            told = "\n\n".join(filter(None, [system, *notes]))
            standing = [model.encode_system(told)] if told else []
            unsent = thread.beginning if thread.remote_id is None else ()
            return RemotePrompt(model, standing, [*map(model.encode, unsent), *new])
        assert isinstance(thread, LocalThread)
        parts = thread.parts()
        if self._setup.view is not None:
            return ViewedPrompt(
                self._setup.view,
                lambda: newest_first(parts),
                Upcoming(model=model, tools=toolbox.encoded, memory=kept["view"]),
                system=system,
                notes=notes,
                running=running,
                number=kept["turn"],
            )
        head = [model.encode_system(system)] if system else []
        history = [model.encode(message) for part in parts for message in part.messages]
        return Prompt(model, [*head, *history, *map(model.encode_system, notes), *new])

    async def _gather(self, context: Json) -> Gathered:
        user, thread = self._setup.user, self._thread
        if not self._providers:
            return Gathered()
        partition = self._records.partition(user)

        def begin(provider: str, state: Json) -> Invocation:
            return Invocation(
                messages=(self._message,),
                user=user,
                session_id=thread.thread_id,
                task_id=thread.thread_id,
                request_id=self._request_id,
                model=self._side.model,
                memory=Memory(self._records, partition, provider, thread.thread_id, thread.thread_id),
                state=state,
            )

        return await self._providers.invoking(begin, context.get("providers") or {})

    def _told_by_the_application(self) -> list[Message]:
        if not self._user_context:
            return []
        return [self._said((Item("text", context_note(self._user_context)),))]

    # --- events ----------------------------------------------------------------------------------

    def _taken(self, event: LoopEvent) -> list[Update]:
        """What an event adds to the answer, and what is told of it."""
        match event:
            case TextDelta():
                self._output.append(event.text)
                return [Update(text=event.text)]
            case Calling():
                return [Update(tool_call=call) for call in event.calls]
            case Called():
                return [Update(tool_call=result.call, tool_result=result.output) for result in event.results]
            case Noted():
                self._note(steps_of(event.reports, self._request_id))
            case Answered():
                self._answered(event)
            case RoundDone():
                self._response += event.messages
        return []

    def _note(self, steps: Sequence[Step]) -> None:
        self._steps += steps
        for step in steps:
            self._usage = self._usage + (step.usage or Usage())

    def _answered(self, event: Answered) -> None:
        self._response.append(event.message)
        if event.message.tool_calls:
            self._output.clear()  # text that comes with tool calls is no part of the answer
        self._note([_model_step(event, self._request_id, self._side.model.name)])

    async def _decided(self, needed: HumanNeeded) -> Resumption:
        """What becomes of the calls that wait: who approves is asked one by one, in their order."""
        approved = [] if needed.authorizations else [c for c in needed.calls if await self._setup.approves(c)]
        if needed.authorizations:
            urls = ", ".join(str(each["url"]) for each in needed.authorizations)
            why = f"The user has not authorized this yet; they can at {urls}."
        else:
            why = "The call was not approved; it was not made."
        now = self._setup.clock.now()
        rejected = [
            tool_message(self._request_id, each, why, now, is_error=True)
            for each in needed.calls
            if each not in approved
        ]
        return Resumption(tuple(approved), tuple(rejected), tuple(each.id for each in needed.calls))


def _model_step(event: Answered, request_id: str, model: str) -> Step:
    done = event.done
    return Step(
        step_id=ids.random_id(),
        request_id=request_id,
        kind="model",
        name=done.model or model,
        started_at=event.started_at,
        duration_ms=event.duration_ms,
        input={"messages": event.messages_sent},
        output={"text": event.message.text, "tool_calls": [call.tool for call in event.message.tool_calls]},
        usage=done.usage,
        outcome=done.finish_reason,
    )
