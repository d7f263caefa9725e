"""Conversations for the tests of threads."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

from hypothesis import strategies as st

from tealagents.domain.clock import SystemClock
from tealagents.domain.models import (
    Caller,
    Item,
    Json,
    Message,
    RequestRecord,
    Role,
    Step,
    ToolCall,
    User,
)
from tealagents.domain.ports import Commit, Model, Record, Store, WrappedStore
from tealagents.engine.agent import AgentSpec
from tealagents.engine.prompt import ViewedPrompt
from tealagents.engine.service import Service
from tealagents.engine.toolbox import Toolbox
from tealagents.state.new_message import NewMessage
from tealagents.state.records import RecordStore
from tealagents.state.tasks import TaskRules, Tasks
from tealagents.state.workers import Lease
from tealagents.testing.models import ScriptedModel
from tealagents.threads.views import Part, Upcoming, View, newest_first, parts_of

AT = datetime(2026, 1, 1, tzinfo=UTC)
SYSTEM = "Be brief."
_numbers = count(1)


def said(role: Role, text: str = "", **fields: Any) -> Message:
    """A message with an id of its own."""
    items = (Item("text", text),) if text or not fields.get("tool_calls") else ()
    name = f"m{next(_numbers)}"
    return Message(message_id=name, request_id="r", role=role, created_at=AT, items=items, **fields)


def call(call_id: str, tool: str = "Shell-run", arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id, tool, arguments)


def tool_round(*results: str, text: str = "") -> list[Message]:
    """An assistant's message with a call for each result, and the results."""
    calls = tuple(call(f"c{next(_numbers)}") for _ in results)
    asked = said("assistant", text, tool_calls=calls)
    return [
        asked,
        *(
            said("tool", result, tool_call_id=each.id, tool=each.tool)
            for each, result in zip(calls, results, strict=True)
        ),
    ]


def exchange(user: str, answer: str) -> list[Message]:
    return [said("user", user), said("assistant", answer)]


def parts(rounds: Sequence[Sequence[Message]]) -> list[Part]:
    """Rounds in parts, oldest first."""
    return [part for turn, messages in enumerate(rounds) for part in parts_of(messages, turn)]


def prompt_of(
    view: View,
    rounds: Sequence[Sequence[Message]],
    running: Sequence[Message],
    *,
    model: ScriptedModel | None = None,
    memory: dict[str, Json] | None = None,
    looked: list[Part] | None = None,
) -> ViewedPrompt:
    """What the engine sends of a conversation; `looked` gets the parts that were asked for."""
    earlier = parts(rounds)

    async def asked_for() -> Any:
        async for part in newest_first(earlier):
            if looked is not None:
                looked.append(part)
            yield part

    return ViewedPrompt(
        view,
        asked_for,
        Upcoming(model=model or ScriptedModel(), memory={} if memory is None else memory),
        system=SYSTEM,
        notes=(),
        running=running,
        number=len(rounds),
    )


# --- random conversations -------------------------------------------------------------------------

texts = st.text(alphabet="ab é漢\n", max_size=60)


@st.composite
def tool_rounds(draw: st.DrawFn) -> list[Message]:
    results = draw(st.lists(st.text(alphabet="xyz ", max_size=120), min_size=1, max_size=3))
    return tool_round(*results, text=draw(texts))


@st.composite
def rounds(draw: st.DrawFn) -> list[Message]:
    """One finished round: a user's message, perhaps some rounds of tools, an answer."""
    called = draw(st.lists(tool_rounds(), max_size=2))
    return [
        said("user", draw(texts)),
        *(message for each in called for message in each),
        said("assistant", draw(texts)),
    ]


@st.composite
def running_rounds(draw: st.DrawFn) -> list[Message]:
    """A round that the model is about to be asked in."""
    called = draw(st.lists(tool_rounds(), max_size=2))
    return [said("user", draw(texts)), *(message for each in called for message in each)]


conversations = st.tuples(st.lists(rounds(), max_size=12), running_rounds())


# --- the engine on a store, without HTTP ----------------------------------------------------------


class CountedStore(WrappedStore):
    """A store whose reads are counted."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.log_batches = 0
        self.trips = 0

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        self.trips += 1
        self.log_batches += sum(key.startswith("log/") for key in keys)
        return await self.store.read(partition, keys)

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        self.trips += 1
        found = await self.store.scan(partition, prefix, **page)
        self.log_batches += len(found) if prefix.startswith("log/") else 0
        return found

    async def commit(self, partition: str, commit: Commit) -> None:
        self.trips += 1
        await self.store.commit(partition, commit)


class Engine:
    """One process's engine over a store that is open, for one user."""

    def __init__(self, store: Store, model: Model, **agent: Any) -> None:
        records = RecordStore(store, "Tester", SystemClock())
        self.lease = Lease(records, 3600)  # a busy machine may not come to a beat for long
        self.tasks = Tasks(records, self.lease, TaskRules(), "Tester:0.1")
        toolbox = Toolbox(model, 120)
        self.service = Service(
            AgentSpec(
                name="Tester", version="0.1", system_prompt=SYSTEM, model=model, toolbox=toolbox, **agent
            ),
            self.tasks,
        )
        self.caller = Caller(user=User("t", "ada"))
        self.partition = records.partition(self.caller.user)

    async def __aenter__(self) -> "Engine":
        await self.lease.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.service.drain(5)
        await self.lease.stop()

    async def say(
        self, text: str, task_id: str | None = None, session_id: str | None = None, **fields: Any
    ) -> RequestRecord:
        """Sends a message and waits for what comes of it."""
        message = NewMessage(items=(Item("text", text),), task_id=task_id, session_id=session_id, **fields)
        sent = await self.service.submit(self.caller, message, None, streamed=False)
        return await self.service.outcome(sent)

    async def steps(self, task_id: str) -> list[Step]:
        head = (await self.tasks.head(self.partition, task_id)).value
        found, _ = await self.tasks.history.steps(self.partition, task_id, head.tail_seq, limit=10_000)
        return found
