"""Answers one message on a thread of the library."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from functools import cached_property
from inspect import isawaitable
from typing import TypeVar, assert_never

from msgspec import Struct

from tealagents.agent.answers import AgentAnswer, Update
from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, RequestTimeout
from tealagents.domain.events import Event, Started, Terminal, TextDelta, ToolCalled, ToolReturned
from tealagents.domain.images import image_problem, lowered
from tealagents.domain.models import (
    Approval,
    Body,
    Decision,
    Item,
    Json,
    RequestSetup,
    Step,
    StepBody,
    TokenUsage,
    ToolCall,
    User,
)
from tealagents.domain.ports import Clock, Model
from tealagents.domain.texts import check_encodable
from tealagents.engine import turn as turns
from tealagents.engine.agent import AgentSpec
from tealagents.engine.loop import HumanNeeded, Resumption, tool_message
from tealagents.engine.recorder import Recorder
from tealagents.engine.resuming import not_to_its_end
from tealagents.engine.toolbox import CallContext
from tealagents.engine.turn import TurnInput, TurnPaused, open_turn
from tealagents.state.decisions import decision_step
from tealagents.state.history import in_call_order
from tealagents.state.memories import Memory
from tealagents.state.new_message import message_of
from tealagents.state.records import RecordStore
from tealagents.threads.base import AgentThread
from tealagents.threads.local import LocalThread
from tealagents.threads.model_faults import faults_of
from tealagents.threads.remote import RemoteThread
from tealagents.threads.views import Part, newest_first, parts_of

#: called before a tool call that needs approval; only True approves
Approve = Callable[[ToolCall], bool | Awaitable[bool]]

T = TypeVar("T")


class ThreadConversation:
    """A thread's conversation, as a turn reads it (`engine.turn.Conversation`)."""

    def __init__(self, thread: AgentThread, model: Model, records: RecordStore, user: User) -> None:
        self._thread = thread
        self._model = model
        self._records = records
        self._user = user
        self.remote_id = thread.remote_id if isinstance(thread, RemoteThread) else None

    async def remembered(self) -> Json:
        return self._thread.context

    async def encoded(self) -> Sequence[bytes]:
        thread = self._thread
        parts = parts_of(thread.beginning) if isinstance(thread, RemoteThread) else self._parts
        with faults_of(self._model):
            return [self._model.encode(message) for part in parts for message in part.messages]

    def earlier(self) -> AsyncIterator[Part]:
        return newest_first(self._parts)

    @cached_property
    def _parts(self) -> list[Part]:
        """The thread's parts, cached because each keeps its token counts and its encoding."""
        assert isinstance(self._thread, LocalThread)
        return self._thread.parts()

    def looked(self) -> None:
        """Nothing to do: all parts are in memory."""

    def memory(self, provider: str) -> Memory:
        thread_id = self._thread.thread_id
        partition = self._records.partition(self._user)
        return Memory(self._records, partition, provider, thread_id, thread_id, has_head=False)


class ThreadRecorder(Recorder):
    """Keeps the steps for the answer."""

    def __init__(self, message: str | Sequence[Item], clock: Clock) -> None:
        """`InvalidRequest` if `message` is not a valid message."""
        request_id = ids.random_id()
        said = message_of(request_id, "user", _items(message), clock.now())
        super().__init__(request_id, clock, said, TokenUsage())
        self.steps: list[Step] = []

    def record(self, action: str, body: Body, **details: object) -> None:
        if isinstance(body, StepBody):
            self.steps.append(body.step)


class TimeLeft:
    """The rest of a request's time limit. Waiting for an approval or for a reader does not count."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._limit = self._left = seconds
        self._clock = clock

    @asynccontextmanager
    async def spent(self) -> AsyncIterator[None]:
        """Counts the time of the block; `RequestTimeout` if it takes longer than the rest."""
        started = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._left) as deadline:
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
            raise RequestTimeout(
                f"The request took longer than {self._limit:g} seconds (`limits.request_timeout_seconds`)."
            ) from None
        finally:
            self._left -= self._clock.monotonic() - started

    async def next(self, events: AsyncIterator[T]) -> T | None:
        """The next of the events; None after the last."""
        async with self.spent():
            return await anext(events, None)


class Answering(Struct, frozen=True, kw_only=True):
    """Answers one message."""

    agent: AgentSpec
    records: RecordStore
    thread: AgentThread
    user: User
    approve: Approve | None
    recorder: ThreadRecorder
    setup: RequestSetup

    async def answering(self, *, streamed: bool) -> AsyncGenerator[Update | AgentAnswer, None]:
        agent, recorder, context = self.agent, self.recorder, self._call_context()
        conversation = ThreadConversation(self.thread, agent.model, self.records, self.user)
        given = TurnInput(context=context, said=recorder.messages, setup=self.setup)
        time = TimeLeft(agent.limits.request_timeout_seconds, recorder.clock)
        async with time.spent():
            turn = await open_turn(agent, conversation, given, recorder, streamed=streamed)
        last: turns.TurnDone | None = None
        calls: dict[str, ToolCall] = {}
        try:
            resumption: Resumption | None = None
            while last is None:
                async with aclosing(turn.events(resumption)) as events:
                    while (happened := await time.next(events)) is not None:
                        if isinstance(happened, TurnPaused):
                            resumption = await self._decided(happened.needed)
                            happened = tuple(map(ToolCalled, resumption.approved))
                        if isinstance(happened, turns.TurnDone):
                            last = happened
                        else:
                            for event in happened:
                                for update in _updates(event, calls):
                                    yield update
        except BaseException as error:
            # including a cancel, a stream that is not read to its end, and an error from `approve`
            if isinstance(self.thread, RemoteThread):
                self.thread.abandon(turn.remote_id, *turn.left)
            await turn.failed(error)
            raise
        await self._keep(last, turn.left)
        yield AgentAnswer(
            text="".join(recorder.output),
            messages=tuple(in_call_order(recorder.response)),
            usage=recorder.usage,
            request_id=recorder.request_id,
            steps=tuple(recorder.steps),
            extra_data=context.extra_data,
        )

    def _call_context(self) -> CallContext:
        thread_id = self.thread.thread_id
        return CallContext(
            session_id=thread_id,
            task_id=thread_id,
            request_id=self.recorder.request_id,
            owner=self.user,
            actor=self.user,
            token="",
            headers={},
            delegation=None,
            extra_data={},
        )

    async def _keep(self, last: turns.TurnDone, left: Sequence[str]) -> None:
        """Adds the new messages to the thread, all at once, and sets a checkpoint."""
        thread = self.thread
        await thread.on_new_messages(in_call_order(self.recorder.messages))
        if isinstance(thread, RemoteThread):
            thread.continue_from(last.remote_id)
            thread.abandon(*left)
        counted = thread.context.get("turn", 0)  # may include rounds that others have added meanwhile
        thread.context = last.context or {}
        if "turn" in thread.context:
            thread.context["turn"] = max(counted, thread.context["turn"])
        thread.checkpoint()

    # --- approvals -------------------------------------------------------------------------------

    async def _decided(self, needed: HumanNeeded) -> Resumption:
        """Asks `approve` for each waiting call, in order. Calls that need the user's consent elsewhere are
        rejected without asking."""
        approval = self._approval(needed)
        self.recorder.paused(approval)
        urls = {call_id: str(each["url"]) for call_id, each in needed.consents.items()}
        approved = [c for c in needed.calls if c.id not in urls and await self._approves(c)]
        now = self.recorder.clock.now()
        decisions = tuple(
            Decision(id=call.id, action="approve" if call in approved else "reject") for call in needed.calls
        )
        step = decision_step(approval, decisions, None, self.user, now)
        self.recorder.record("approval.decided", StepBody(step))
        self.recorder.intended(approved)
        rejected = [
            (each, _why_not(each, urls.get(each.id))) for each in needed.calls if each not in approved
        ]
        request_id = self.recorder.request_id
        return Resumption(
            tuple(approved),
            tuple(tool_message(request_id, call, why, now, is_error=True) for call, why in rejected),
        )

    async def _approves(self, call: ToolCall) -> bool:
        """Whether a call is approved: only if `approve` is given and returns exactly True, since a text such
        as "reject" is truthy as well."""
        if self.approve is None:
            return False
        decided = self.approve(call)
        return (await decided if isawaitable(decided) else decided) is True

    def _approval(self, needed: HumanNeeded) -> Approval:
        now, thread_id = self.recorder.clock.now(), self.thread.thread_id
        return Approval(
            approval_id=ids.random_id(),
            request_id=self.recorder.request_id,
            task_id=thread_id,
            session_id=thread_id,
            owner=self.user,
            created_at=now,
            expires_at=now + timedelta(seconds=self.agent.limits.approval_expiry_seconds),
            calls=needed.calls,
            authorizations=tuple(needed.consents.values()),
        )


def _why_not(call: ToolCall, consent_url: str | None) -> str:
    """The result, for the model, of a call that is not approved or not authorized."""
    if consent_url is None:
        return f"The call was not approved; {not_to_its_end(call)}"
    begun = f" The call {not_to_its_end(call).removeprefix('it ')}" if call.begun else ""
    return f"The user has not authorized this yet; they can at {consent_url}.{begun}"


def _items(message: object) -> tuple[Item, ...]:
    if isinstance(message, str):
        message = [Item("text", message)]
    if not isinstance(message, Sequence) or not all(
        isinstance(each, Item) and isinstance(each.content, str) for each in message
    ):
        raise InvalidRequest("message", "pass a text or a list of Item")
    if not message:
        raise InvalidRequest("message", "is empty")
    return tuple(_item(item, f"message.{n}") for n, item in enumerate(message))


def _item(given: Item, where: str) -> Item:
    check_encodable(given.content, "message")
    if given.content_type not in ("text", "image"):
        raise InvalidRequest(f"{where}.content_type", "must be text or image")
    if given.content_type == "text":
        return given
    if problem := image_problem(given.content):
        raise InvalidRequest(f"{where}.content", problem)
    return Item("image", lowered(given.content))


def _updates(event: Event, calls: dict[str, ToolCall]) -> list[Update]:
    """The updates for an event; `calls` holds the calls so far, by id."""
    match event:
        case TextDelta():
            return [Update(text=event.text)]
        case ToolCalled():
            calls[event.call.id] = event.call
            return [Update(tool_call=event.call)]
        case ToolReturned():
            return [Update(tool_call=calls.get(event.call_id), tool_result=event.output)]
    if isinstance(event, Started | Terminal):
        return []
    assert_never(event)
