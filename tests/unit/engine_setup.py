"""What the tests of state and engine share: processes on one store, a store that fails, a small model."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, cast

from tealagents.api.exchange import Exchange
from tealagents.api.settings import ApiSettings
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import ModelFailed, PersistenceUnavailable, Unknown
from tealagents.domain.events import ModelDone, ModelEvent, Recorded, TextDelta
from tealagents.domain.ids import operation_id
from tealagents.domain.models import Caller, Head, Item, Json, Message, RequestRecord, ToolCall, User
from tealagents.domain.ports import (
    Clock,
    Commit,
    Governance,
    ModelCall,
    Put,
    Record,
    Store,
    Tool,
    ToolContext,
    ToolSpec,
    WrappedStore,
)
from tealagents.engine.agent import AgentSpec
from tealagents.engine.approvals import Approvals
from tealagents.engine.observer import Observer
from tealagents.engine.service import Service, Submitted
from tealagents.engine.toolbox import Toolbox
from tealagents.limits import Limits
from tealagents.serving import background
from tealagents.state.catalog import Catalog
from tealagents.state.changes import Changes
from tealagents.state.endings import Stop
from tealagents.state.erasing import Eraser
from tealagents.state.importing import TaskImporter
from tealagents.state.new_message import Key, NewMessage
from tealagents.state.records import RecordStore
from tealagents.state.tasks import TaskRules, Tasks
from tealagents.state.workers import Lease
from tealagents.stores.memory import MemoryStore

AGENT = "Tester"
ADA = Caller(User("mock", "ada"))
EVE = Caller(User("mock", "eve"))

#: what one model call yields; it may wait for something on the way
Answer = Callable[[ModelCall], AsyncGenerator[ModelEvent, None]]


class Shared(MemoryStore):
    """Memory that several processes of a test share."""

    shared = True


class Faulty(WrappedStore):
    """A store whose commits fail as `fault` says, which is called before and after each."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        #: "away": nothing is done; "lost": it is done and its reply is lost; None: all is well
        self.fault: Callable[[str, Commit], str | None] = lambda _, __: None
        self.unreadable = False
        #: how many reads have failed so
        self.refused = 0
        self.commits: list[tuple[str, Commit]] = []

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        self._refuse_unreadable()
        return await self.store.read(partition, keys)

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        self._refuse_unreadable()
        return await self.store.scan(partition, prefix, **page)

    def _refuse_unreadable(self) -> None:
        if self.unreadable:
            self.refused += 1
            raise PersistenceUnavailable("The store is away.")

    async def commit(self, partition: str, commit: Commit) -> None:
        verdict = self.fault(partition, commit)
        if verdict == "away":
            raise PersistenceUnavailable("The store is away.")
        if verdict == "unheard":
            raise Unknown
        await self.store.commit(partition, commit)
        self.commits.append((partition, commit))
        if verdict == "lost":
            raise Unknown


class Watched(Faulty):
    """Asks `there` after each of its calls: others get their turn, or the process dies."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.points = 0
        self.there: Callable[[int], Awaitable[None]] = nothing

    async def _passed(self) -> None:
        self.points += 1
        await self.there(self.points)

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        records = await super().read(partition, keys)
        await self._passed()
        return records

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        found = await super().scan(partition, prefix, **page)
        await self._passed()
        return found

    async def commit(self, partition: str, commit: Commit) -> None:
        await super().commit(partition, commit)
        await self._passed()

    async def now(self) -> float:
        time = await super().now()
        await self._passed()
        return time


async def nothing(point: int) -> None: ...


class Scripted:
    """A model that gives the answers of a test, one `Answer` a call; the last one again and again."""

    name = "scripted"
    provider = "test"
    supports_remote_threads = False

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers) or [says("hello")]
        self.calls: list[ModelCall] = []

    def encode_system(self, text: str) -> bytes:
        return b"system: " + text.encode()

    def encode(self, message: Message) -> bytes:
        calls = "".join(f"<{call.tool} {call.arguments}>" for call in message.tool_calls)
        return f"{message.role}: {message.text}{calls}".encode()

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        return b",".join(spec.name.encode() for spec in tools)

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        self.calls.append(call)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        async for event in answer(call):
            yield [event]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...


def says(*pieces: str) -> Answer:
    async def answer(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        for piece in pieces:
            yield TextDelta(piece)
        yield ModelDone(finish_reason="stop", model="scripted")

    return answer


def calls(*wanted: ToolCall) -> Answer:
    async def answer(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        yield ModelDone(finish_reason="tool_calls", tool_calls=wanted, model="scripted")

    return answer


def waits(event: asyncio.Event, *pieces: str) -> Answer:
    """Says its pieces once `event` is set; the first of them before."""

    async def answer(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        first, *rest = pieces or ("hello",)
        yield TextDelta(first)
        await event.wait()
        for piece in rest:
            yield TextDelta(piece)
        yield ModelDone(finish_reason="stop", model="scripted")

    return answer


async def fails(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
    """Is not there."""
    raise ModelFailed("The model is away.")
    yield


class Function:
    """A tool made of a function."""

    def __init__(
        self, name: str, does: Callable[[Json], Any], *, governed: bool = False, **spec: Any
    ) -> None:
        self.spec = ToolSpec(
            name=name,
            description=name,
            parameters={"type": "object"},
            governance=Governance(requires_hitl=governed),
            **spec,
        )
        self._does = does

    async def call(self, context: ToolContext, arguments: Json) -> str:
        result = self._does(arguments)
        return str(await result if asyncio.iscoroutine(result) else result)


def noting(ran: list[Json], name: str = "Shell-delete", *, governed: bool = False) -> Function:
    """A tool that notes what it was called with."""

    def does(arguments: Json) -> str:
        ran.append(arguments)
        return "ok"

    return Function(name, does, governed=governed)


class Tools:
    """A toolset of such tools."""

    def __init__(self, *tools: Tool) -> None:
        self._tools = tools

    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...


class Importer(TaskImporter):
    """Imports documents that were not sent."""

    async def import_(self, caller: Caller, value: Any, digest: str = "0" * 64) -> Head:
        return await super().import_(caller, value, digest)


class Process:
    """One process of the service, without its wire."""

    def __init__(
        self,
        store: Store,
        model: Scripted,
        *tools: Tool,
        clock: Clock | None = None,
        lease_seconds: float | None = None,
        limits: Mapping[str, Any] | None = None,
        agent: Mapping[str, Any] | None = None,
        **rules: Any,
    ) -> None:
        self.store = store
        self.model = model
        self.records = RecordStore(store, AGENT, clock or SystemClock())
        # by the machine's clock, a busy one may not come to a beat for longer than a service's lease
        self.lease = Lease(self.records, lease_seconds or (15 if clock else 3600))
        given = dict(agent or {})
        report = given.setdefault("observer", Observer()).ended_outside
        self.tasks = Tasks(self.records, self.lease, TaskRules(**rules), f"{AGENT}:0.1", report)
        toolbox = Toolbox(model, 120)
        toolbox.load([Tools(*tools)])
        self.service = Service(
            AgentSpec(
                name=AGENT,
                version="0.1",
                system_prompt="",
                model=model,
                toolbox=toolbox,
                limits=Limits(**(limits or {})),
                **given,
            ),
            self.tasks,
        )
        self.approvals = Approvals(self.service)
        self.catalog = Catalog(self.tasks)
        self.changes = Changes(self.tasks)
        self.eraser = Eraser(self.tasks)
        self.importer = Importer(self.tasks)

    def partition(self, caller: Caller = ADA) -> str:
        return self.records.partition(caller.user)

    async def send(
        self,
        text: str = "hello",
        task_id: str | None = None,
        *,
        caller: Caller = ADA,
        streamed: bool = False,
        key: Key | None = None,
        **fields: Any,
    ) -> Submitted:
        message = NewMessage(items=(Item("text", text),), task_id=task_id, **fields)
        return await self.service.submit(caller, message, key, streamed=streamed)

    async def ask(self, text: str = "hello", task_id: str | None = None, **more: Any) -> RequestRecord:
        """The outcome of a message."""
        return await self.service.outcome(await self.send(text, task_id, **more))

    async def request(self, request_id: str, caller: Caller = ADA) -> RequestRecord:
        return (await self.tasks.request(self.partition(caller), request_id)).value

    async def followed(self, request_id: str, after: int = 0, caller: Caller = ADA) -> list[Recorded]:
        found: list[Recorded] = []
        async for events in self.service.follow(self.partition(caller), request_id, after):
            found += events
        return found


@asynccontextmanager
async def process(
    store: Store | None = None, model: Scripted | None = None, *tools: Tool, **options: Any
) -> AsyncIterator[Process]:
    """A process that runs; leaving it stops it without draining, as a crash would leave the store."""
    made = Process(store or MemoryStore(), model or Scripted(), *tools, **options)
    await made.lease.start()
    try:
        async with background(made.service.attend):
            yield made
    finally:
        for run in list(made.service._runs.values()):
            run.stop(Stop(None))
        made.tasks.begun.close()
        await asyncio.sleep(0)
        await made.lease.stop()


def exchange_of(here: Process) -> Exchange:
    """A process, as protocols talk to it."""
    settings = ApiSettings(
        prefix="/x",
        description="",
        max_body_bytes=100,
        max_items=9,
        keepalive_seconds=15,
        idle_connection_seconds=75,
    )
    return Exchange(here.service, cast("Any", None), settings)


async def damage(store: Store, partition: str, key: str) -> None:
    """Overwrites a record with one that is not sealed."""
    await store.commit(partition, Commit(operation=operation_id(), put={key: Put(b'{"sha256":"')}))


async def names(store: Store, partition: str, prefix: str = "") -> list[str]:
    """The keys of a partition."""
    found: list[str] = []
    while page := await store.scan(partition, prefix, after=found[-1] if found else None, limit=500):
        found += [key for key, _ in page]
    return found
