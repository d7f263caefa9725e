"""Context providers: what the model is sent besides the conversation, and what learns from it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Self

import pytest
from msgspec.structs import asdict, replace
from pydantic import BaseModel
from threads_setup import AT, CountedStore, Engine, call

from tealagents.api import bodies
from tealagents.api.v1alpha1.time_travel import AROUND
from tealagents.domain.errors import ModelFailed, PersistenceUnavailable
from tealagents.domain.models import Item, Json, Message, User
from tealagents.domain.ports import Governance, ToolContext, ToolSpec
from tealagents.state.changes import Changes
from tealagents.state.codec import encode_json
from tealagents.state.erasing import Eraser
from tealagents.state.exporting import export
from tealagents.state.forking import fork
from tealagents.state.importing import TaskImporter
from tealagents.state.memories import MOST_MEMORIES, Memory, Remembered
from tealagents.state.new_message import Earlier
from tealagents.stores.memory import MemoryStore
from tealagents.testing.models import ScriptedModel
from tealagents.threads.components import open_providers, open_view
from tealagents.threads.context import (
    Context,
    ContextProvider,
    Invocation,
    ProviderOptions,
    Providers,
)
from tealagents.threads.errors import ThreadConfigError
from tealagents.threads.providers import (
    SEARCHED,
    Facts,
    FactsOptions,
    UserPreferences,
    phrased,
    search,
    statements,
)
from tealagents.threads.views import Part, Upcoming, View


@pytest.fixture
async def store() -> AsyncIterator[CountedStore]:
    async with CountedStore(MemoryStore()) as opened:
        yield opened


class Clerk(ContextProvider):
    """Counts the turns of each thread, and notes all it is called with."""

    name = "clerk"

    def __init__(self, options: ProviderOptions | None = None) -> None:
        super().__init__(options)
        self.heard: list[tuple[str, list[str], str | None]] = []

    async def invoking(self, invocation: Invocation) -> Context | None:
        turns = invocation.state.get("turns", 0)
        return Context(
            instructions=f"This is turn {turns + 1}.",
            messages=(invocation.message(f"(clerk) {invocation.user.oid} speaks"),),
        )

    async def invoked(
        self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
    ) -> None:
        invocation.state["turns"] = invocation.state.get("turns", 0) + 1
        said = [f"{message.role}: {message.text}" for message in response]
        self.heard.append((invocation.text, said, str(error) if error else None))


def last_sent(model: ScriptedModel) -> list[str]:
    return [str(message["content"]) for message in model.calls[-1].messages]


# --- what it adds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("reducers", [[], [("message_count", {"max_messages": 10})]])
async def test_a_provider_adds_instructions_and_messages(store: CountedStore, reducers: Any) -> None:
    """To this request, not to the conversation; `invoked` sees what came of it. covers: THREAD-10"""
    model, clerk = ScriptedModel(), Clerk()
    view = open_view(reducers, "any")
    async with Engine(store, model, providers=Providers([clerk]), view=view) as engine:
        first = await engine.say("hello")
        await engine.say("again", first.task_id)
        head = (await engine.tasks.head(engine.partition, first.task_id)).value
        stored, _ = await engine.tasks.history.messages(engine.partition, first.task_id, head.path, limit=99)
        steps = await engine.steps(first.task_id)
    assert last_sent(model) == [
        "Be brief.",
        "hello",
        "ok",
        "This is turn 2.",
        "(clerk) ada speaks",
        "again",
    ]
    assert clerk.heard == [("hello", ["assistant: ok"], None), ("again", ["assistant: ok"], None)]
    assert [message.text for message in stored] == ["hello", "ok", "again", "ok"]
    assert [(step.kind, step.name) for step in steps if step.kind == "context"] == [("context", "clerk")] * 2
    assert steps[0].output == {"instructions": "This is turn 1.", "messages": ["(clerk) ada speaks"]}


async def test_what_a_provider_sends_counts(store: CountedStore) -> None:
    """Its messages are part of the running round, which the limits include. covers: THREAD-8, THREAD-10"""
    model = ScriptedModel()
    view = open_view([("message_count", {"max_messages": 3})], "any")
    async with Engine(store, model, providers=Providers([Clerk()]), view=view) as engine:
        task_id = (await engine.say("one")).task_id
        await engine.say("two", task_id)
    spoken = [message for message in model.calls[-1].messages if message["role"] != "system"]
    assert [message["content"] for message in spoken] == ["ok", "(clerk) ada speaks", "two"]


async def test_what_a_provider_sends_is_not_summarised(store: CountedStore) -> None:
    """A summary that is made after the answer is of the conversation alone. covers: THREAD-8, THREAD-10"""
    model = ScriptedModel()
    options = {"max_messages": 2, "keep_messages": 0, "trigger": "after_message_added"}
    view = open_view([("summarize", options)], "any")
    async with Engine(store, model, providers=Providers([Clerk()]), view=view) as engine:
        task_id = (await engine.say("one")).task_id
        await engine.say("two", task_id)
    assert last_sent(model)[1].splitlines() == ["User: one", "Assistant: ok", "User: two", "Assistant: ok"]


class Bell:
    """A tool of a provider."""

    spec = ToolSpec(name="bell-ring", description="Ring.", parameters={}, governance=Governance())

    async def call(self, context: ToolContext, arguments: Json) -> str:
        return f"ding for {context.user_id}"


class Ringing(ContextProvider):
    async def invoking(self, invocation: Invocation) -> Context | None:
        return Context(tools=(Bell(),)) if "bell" in invocation.text else None


async def test_a_provider_adds_tools(store: CountedStore) -> None:
    """For the request that it adds them to, no other. covers: THREAD-10"""

    def say(messages: list[Json]) -> Any:
        return "heard" if messages[-1]["role"] == "tool" else [call("c1", "bell-ring")]

    model = ScriptedModel(say)
    async with Engine(store, model, providers=Providers([Ringing()])) as engine:
        record = await engine.say("ring the bell")
        assert record.output == "heard"
        assert [tool["name"] for tool in model.calls[-1].tools] == ["bell-ring"]
        assert last_sent(model)[-1] == "ding for ada"
        await engine.say("quiet", record.task_id)
        assert model.calls[-1].tools == []
        assert "there is no tool 'bell-ring'" in last_sent(model)[-1]


class Strict(Governance, frozen=True, kw_only=True):
    """Says besides how its provider reports to whom the tool belongs."""

    notify: Any = print


class Handled(ToolSpec, frozen=True, kw_only=True):
    """Says besides how its provider serves it."""

    handler: Any = print


async def test_a_tool_whose_spec_has_fields_of_its_own_can_wait_for_an_approval(store: CountedStore) -> None:
    """They are not stored, whatever they hold. covers: THREAD-10, HITL-1"""
    given = {**asdict(Bell.spec), "governance": Strict(requires_hitl=True)}

    class Asking(ContextProvider):
        async def invoking(self, invocation: Invocation) -> Context | None:
            bell = Bell()
            bell.spec = Handled(**given)
            return Context(tools=(bell,))

    model = ScriptedModel(lambda _: [call("c1", "bell-ring")])
    async with Engine(store, model, providers=Providers([Asking()])) as engine:
        record = await engine.say("ring the bell")
    assert record.status == "Paused"


# --- what it keeps in the thread ------------------------------------------------------------------


async def test_state_is_kept_in_the_thread(store: CountedStore) -> None:
    """By the provider's name: over a restart, apart for each thread, back with a rollback, along with a fork
    and an export. covers: THREAD-7, THREAD-10"""
    model = ScriptedModel()
    async with Engine(store, model, providers=Providers([Clerk()])) as engine:
        task_id = (await engine.say("one")).task_id
        second = await engine.say("two", task_id)
        await engine.say("other")
        assert "This is turn 1." in last_sent(model)
    async with Engine(store, model, providers=Providers([Clerk()])) as engine:
        await engine.say("three", task_id)
        assert "This is turn 3." in last_sent(model)
        user = engine.caller.user
        forked = await fork(engine.tasks, engine.partition, task_id, user)
        await Changes(engine.tasks).rollback(engine.partition, task_id, user, second.request_id)
        await engine.say("three again", task_id)
        assert "This is turn 3." in last_sent(model)
        await engine.say("four", forked.task_id)
        assert "This is turn 4." in last_sent(model)
        document = await export(engine.tasks, engine.partition, forked.task_id)
    assert document["requests"][-1]["context"]["providers"] == {"clerk": {"turns": 4}}


class Usher(Clerk):
    """Another one."""

    name = "usher"


@pytest.mark.parametrize("kind", ["local", "remote"])
@pytest.mark.parametrize("turns", [1, 3])
async def test_state_outlasts_turns_without_its_provider(store: CountedStore, kind: Any, turns: int) -> None:
    """As while the service runs with another provider. What a reducer keeps stays, too. covers: THREAD-10"""
    model, noting, clerk = ScriptedModel(), Noting("a note"), Clerk()
    here: dict[str, Any] = {"providers": Providers([clerk]), "thread_kind": kind}
    if kind == "local":
        here["view"] = View([noting])
    async with Engine(store, model, **here) as engine:
        task_id = (await engine.say("one")).task_id
    async with Engine(store, model, providers=Providers([Usher()]), thread_kind=kind) as engine:
        for n in range(turns):
            await engine.say(f"without {n}", task_id)
    async with Engine(store, model, **here) as engine:
        record = await engine.say("last", task_id)
    assert record.context is not None
    assert record.context["providers"]["clerk"] == {"turns": 2}
    assert record.context["turn"] == turns + 2
    assert noting.seen == ([None, "a note"] if kind == "local" else [])


async def test_messages_that_are_added_leave_the_state_as_it_was(store: CountedStore) -> None:
    """The agent did not answer them. covers: THREAD-10"""
    model = ScriptedModel()
    async with Engine(store, model, providers=Providers([Clerk()])) as engine:
        task_id, user = (await engine.say("one")).task_id, engine.caller.user
        note = Earlier("user", (Item("text", "note"),))
        await Changes(engine.tasks).add(engine.partition, task_id, user, [note])
        await engine.say("two", task_id)
    assert "This is turn 2." in last_sent(model)


async def test_a_failed_request_leaves_the_state_as_it_was(store: CountedStore) -> None:
    """`invoked` sees the exception; what it changes is not kept: there is no checkpoint. covers: THREAD-10"""
    model = ScriptedModel(lambda sent: ModelFailed("away") if sent[-1]["content"] == "fail" else "ok")
    clerk = Clerk()
    async with Engine(store, model, providers=Providers([clerk])) as engine:
        task_id = (await engine.say("one")).task_id
        await engine.say("fail", task_id)
        await engine.say("two", task_id)
    assert clerk.heard[1] == ("fail", [], "away")
    assert "This is turn 2." in last_sent(model)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


#: what a task's document could not bring back
UNFIT: Json = {
    "odd": object(),
    "nul": "a\0b",
    "huge": 2**80,
    "deep": nested(80),
    "inf": float("inf"),
    "nan": [float("nan")],
    "date": AT,
    "numbered": {1: "one"},
    "slow": [1e300] * 200,
}


class Hoarder(Clerk):
    """Keeps more than it may, or what cannot be kept."""

    async def invoked(
        self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
    ) -> None:
        await super().invoked(invocation, response, error)
        if invocation.text != "one":
            things = {"much": "x" * 100_000, "round": invocation.state, **UNFIT}
            invocation.state["things"] = things.get(invocation.text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("much", "100023 bytes"),
        ("odd", "not JSON"),
        ("round", "not JSON"),
        ("nul", "things holds a NUL character"),
        ("huge", "things is an integer beyond 64 bits"),
        ("deep", "it is nested deeper than 64 levels"),
        ("inf", "not JSON"),
        ("nan", "not JSON"),
        ("date", "not JSON"),
        ("numbered", "things has a name that is not a string"),
        ("slow", "it holds too many numbers"),
    ],
)
async def test_state_that_cannot_be_kept_stays_as_it_was(store: CountedStore, text: str, why: str) -> None:
    """With a step that says so; the request is none the worse. covers: THREAD-10"""
    model = ScriptedModel()
    async with Engine(store, model, providers=Providers([Hoarder()])) as engine:
        task_id = (await engine.say("one")).task_id
        assert (await engine.say(text, task_id)).status == "Completed"
        (reported,) = [step for step in await engine.steps(task_id) if step.is_error]
        await engine.say("three", task_id)
    assert "its state in the thread was not changed" in str(reported.output)
    assert why in str(reported.output)
    assert "This is turn 2." in last_sent(model)


class Noting:
    """A reducer that keeps something beside the messages."""

    name = "noting"

    def __init__(self, kept: Any) -> None:
        self.kept = kept
        self.seen: list[Any] = []

    async def __call__(self, parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
        self.seen.append(upcoming.memory.get(self.name))
        if upcoming.running[0].messages[0].text != "last":
            upcoming.memory[self.name] = self.kept
        async for part in parts:
            yield part


@pytest.mark.parametrize("kept", [7, ["a", 1], "text", {"said": [1]}])
async def test_a_reducer_keeps_any_json_in_a_task(store: CountedStore, kept: Any) -> None:
    """Over a restart, and along with an export that is imported again. covers: THREAD-8"""
    noting = Noting(kept)
    async with Engine(store, ScriptedModel(), view=View([noting])) as engine:
        task_id = (await engine.say("one")).task_id
    async with Engine(store, ScriptedModel(), view=View([noting])) as engine:
        document = await export(engine.tasks, engine.partition, task_id)
    async with MemoryStore() as other, Engine(other, ScriptedModel(), view=View([noting])) as engine:
        await TaskImporter(engine.tasks).import_(engine.caller, document, "0" * 64)
        await engine.say("last", task_id)
    assert noting.seen == [None, kept]


@pytest.mark.parametrize("odd", [object(), {("a", "b"): 1}, "\ud800"])
async def test_what_a_reducer_keeps_that_is_no_json_stays_as_it_was(store: CountedStore, odd: Any) -> None:
    """As the state of a context provider, with a step that says so. covers: THREAD-8"""
    noting = Noting(1)
    async with Engine(store, ScriptedModel(), view=View([noting])) as engine:
        task_id = (await engine.say("one")).task_id
        noting.kept = odd
        assert (await engine.say("two", task_id)).status == "Completed"
        (reported,) = [step for step in await engine.steps(task_id) if step.is_error]
        await engine.say("last", task_id)
    assert (reported.kind, reported.name) == ("reduction", "noting")
    assert "its state in the thread was not changed: it is not JSON" in str(reported.output)
    assert noting.seen == [None, 1, 1]


@pytest.mark.parametrize("unfit", [*UNFIT.values(), "x" * 300_000], ids=[*UNFIT, "much"])
async def test_a_task_can_be_imported_whatever_a_reducer_tried_to_keep(
    store: CountedStore, unfit: Any
) -> None:
    """It keeps what it kept before, with a step that says so. covers: THREAD-8, TASK-5"""
    noting = Noting(1)
    async with Engine(store, ScriptedModel(), view=View([noting])) as engine:
        task_id = (await engine.say("one")).task_id
        noting.kept = unfit
        assert (await engine.say("two", task_id)).status == "Completed"
        (reported,) = [step for step in await engine.steps(task_id) if step.is_error]
        await brought_back(engine, task_id)
        await engine.say("last", task_id)
    assert (reported.kind, reported.name) == ("reduction", "noting")
    assert "its state in the thread was not changed" in str(reported.output)
    assert noting.seen == [None, 1, 1]


async def test_a_provider_cannot_change_the_answer(store: CountedStore) -> None:
    """It is handed the messages of the turn, and other providers are as well."""

    class Clearing(ContextProvider):
        async def invoked(
            self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
        ) -> None:
            response.clear()  # type: ignore[attr-defined]

    async with Engine(store, ScriptedModel(), providers=Providers([Clearing()])) as engine:
        record = await engine.say("hello")
        (failed,) = [step for step in await engine.steps(record.task_id) if step.is_error]
    assert record.status == "Completed"
    assert failed.name == "Clearing"


async def test_what_many_keep_is_bounded_in_all(store: CountedStore) -> None:
    """The largest changes are undone; what is as it was stays. covers: THREAD-10, TASK-5"""

    class Large(ContextProvider):
        async def invoked(
            self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
        ) -> None:
            if invocation.text != "one":
                invocation.state["x"] = "x" * (15_000 + int(self.name))

    providers: list[ContextProvider] = []
    for n in range(20):
        providers.append(Large())
        providers[-1].name = str(n)
    noting = Noting("n" * 20_000)
    async with Engine(store, ScriptedModel(), providers=Providers(providers), view=View([noting])) as engine:
        task_id = (await engine.say("one")).task_id
        record = await engine.say("two", task_id)
        reported = [step for step in await engine.steps(task_id) if step.is_error]
        await brought_back(engine, task_id)
    assert [step.name for step in reported] == ["19", "18", "17", "16"]
    assert "what the thread remembers is larger than 262144 bytes" in str(reported[0].output)
    assert record.context is not None
    assert record.context["view"] == {"noting": "n" * 20_000}
    assert len(record.context["providers"]) == 16


async def brought_back(engine: Engine, task_id: str) -> None:
    """Exports, deletes and imports a task, as a client does: what comes back was JSON in between."""
    document = bodies.parse(encode_json(await export(engine.tasks, engine.partition, task_id)), around=AROUND)
    await Eraser(engine.tasks).delete_task(engine.partition, task_id)
    await TaskImporter(engine.tasks).import_(engine.caller, document, "0" * 64)


# --- when it fails --------------------------------------------------------------------------------


class Broken(ContextProvider):
    """Fails where a test asks it to."""

    name = "broken"

    def __init__(self, where: str, **options: Any) -> None:
        super().__init__(ProviderOptions(**options))
        self._where = where

    async def invoking(self, invocation: Invocation) -> Context | None:
        if self._where == "invoking":
            raise RuntimeError("no pencil")
        if self._where == "timeout":
            raise TimeoutError("no pencil")
        if self._where == "slow":
            await asyncio.sleep(60)
        if self._where == "leaving":
            sys.exit(3)
        if self._where == "canceled":
            raise asyncio.CancelledError("its helper")
        if self._where == "giving up":
            raise GeneratorExit("no pencil")
        if self._where == "in a group":
            raise ExceptionGroup("two tasks", [ExceptionGroup("one task", [RuntimeError("no pencil")])])
        return None

    async def invoked(
        self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
    ) -> None:
        if self._where == "invoked":
            raise RuntimeError("no paper")


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("invoking", "RuntimeError: no pencil"),
        ("invoked", "RuntimeError: no paper"),
        ("slow", "took longer than 0.01 seconds"),
        ("timeout", "TimeoutError: no pencil"),
        ("leaving", "SystemExit: 3"),
        ("canceled", "CancelledError: its helper"),
        ("giving up", "GeneratorExit: no pencil"),
        ("in a group", "RuntimeError: no pencil"),
    ],
)
async def test_a_provider_that_fails_is_reported_and_skipped(
    store: CountedStore, where: str, why: str
) -> None:
    """The others are heard, the request continues, the trace has a step. covers: THREAD-10"""
    clerk = Clerk()
    providers = Providers([Broken(where, timeout_seconds=0.01), clerk])
    async with Engine(store, ScriptedModel(), providers=providers) as engine:
        record = await engine.say("hello")
        steps = await engine.steps(record.task_id)
    assert record.status == "Completed"
    assert clerk.heard
    (failed,) = [step for step in steps if step.is_error]
    assert (failed.kind, failed.name) == ("context", "broken")
    assert failed.output == {"error": why}


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            PersistenceUnavailable("db7.internal:5432 does not answer"),
            "PersistenceUnavailable: " + PersistenceUnavailable("").detail,
        ),
        (Wordless(), "Wordless"),
    ],
)
async def test_what_a_failed_provider_says_is_fit_for_clients(
    store: CountedStore, error: Exception, shown: str
) -> None:
    """Not where the store is, and no more than its name where it has no text. covers: THREAD-10"""

    class Failing(ContextProvider):
        async def invoking(self, invocation: Invocation) -> Context | None:
            raise error

    async with Engine(store, ScriptedModel(), providers=Providers([Failing()])) as engine:
        record = await engine.say("hello")
        (failed,) = [step for step in await engine.steps(record.task_id) if step.is_error]
    assert record.status == "Completed"
    assert failed.output == {"error": shown}


@pytest.mark.parametrize("where", ["instructions", "messages", "tools", "invoking", "invoked"])
async def test_what_a_provider_says_is_made_storable(
    store: CountedStore, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A name of a file that is no UTF-8, say; the task can be continued, exported and imported.
    covers: THREAD-10, TASK-5"""
    said = "caf\udce9\0"
    caplog.set_level("CRITICAL", "tealagents.threads")  # pytest could not report what it captured

    class Latin(ContextProvider):
        async def invoking(self, invocation: Invocation) -> Context | None:
            if where == "invoking":
                raise LookupError(said)
            bell = SimpleNamespace(spec=replace(Bell.spec, name="caf\0\0"))
            added = {"instructions": said, "messages": (invocation.message(said),), "tools": (bell,)}
            return Context(**{where: added[where]}) if where in added else None  # type: ignore[arg-type]

        async def invoked(
            self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
        ) -> None:
            if where == "invoked":
                raise LookupError(said)

    model = ScriptedModel()
    async with Engine(store, model, providers=Providers([Latin()])) as engine:
        record = await engine.say("hello")
        (step,) = [step for step in await engine.steps(record.task_id) if step.kind == "context"]
        await brought_back(engine, record.task_id)
        assert (await engine.say("again", record.task_id)).status == "Completed"
    assert record.status == "Completed"
    assert "caf\ufffd\ufffd" in str(step.output)
    assert ("caf\ufffd\ufffd" in last_sent(model)) == (where in ("instructions", "messages"))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("be nice", "invoking returned str"),
        (Context(messages=("hi",)), "messages must all be of the class Message"),  # type: ignore[arg-type]
        (Context(instructions=5), "instructions must be a string"),  # type: ignore[arg-type]
        (Context(tools=("x",)), "tools must all have a ToolSpec"),  # type: ignore[arg-type]
        (
            Context(tools=(SimpleNamespace(spec=replace(Bell.spec, description=None)),)),
            "Expected `str`, got `null` - at `$.description`",
        ),
        (
            Context(tools=(SimpleNamespace(spec=replace(Bell.spec, name="ring the bell")),)),
            "the tool 'ring the bell' cannot be sent to a model: letters, digits, _ and - only",
        ),
        (
            Context(tools=(SimpleNamespace(spec=replace(Bell.spec, description="caf\udce9")),)),
            "surrogates not allowed - at `$.description`",
        ),
    ],
)
async def test_a_provider_that_adds_nonsense_is_one_that_fails(
    store: CountedStore, given: object, why: str
) -> None:
    """What cannot be sent to a model is not part of the request. covers: THREAD-10"""

    class Odd(ContextProvider):
        async def invoking(self, invocation: Invocation) -> Context | None:
            return given  # type: ignore[return-value]

    async with Engine(store, ScriptedModel(), providers=Providers([Odd()])) as engine:
        record = await engine.say("hello")
        (failed,) = [step for step in await engine.steps(record.task_id) if step.is_error]
    assert record.status == "Completed"
    assert why in str(failed.output)


async def test_where_a_required_provider_fails_the_others_have_ended(store: CountedStore) -> None:
    """No provider keeps working for a request that is over."""
    ended = []

    class Slow(ContextProvider):
        async def invoking(self, invocation: Invocation) -> Context | None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(self.name)
            return None

    providers = Providers([Slow(), Broken("invoking", required=True)])
    async with Engine(store, ScriptedModel(), providers=providers) as engine:
        assert (await engine.say("hello")).status == "Failed"
        assert ended == ["Slow"]


@pytest.mark.parametrize("where", ["invoking", "invoked", "slow"])
async def test_a_required_provider_takes_the_request_down(store: CountedStore, where: str) -> None:
    """With a text that names it; the task continues. covers: THREAD-10"""
    providers = Providers([Broken(where, required=True, timeout_seconds=0.01)])
    async with Engine(store, ScriptedModel(), providers=providers) as engine:
        record = await engine.say("hello")
        assert record.status == "Failed"
        assert record.error is not None
        assert record.error.code == "model_error"
        assert "The context provider broken failed in" in record.error.detail
        again = await engine.say("hello", record.task_id)
        assert again.task_id == record.task_id


async def test_a_provider_that_holds_a_task_group_does_not_hide_why_another_cannot_be_opened() -> None:
    """The group is passed the error, and raises one of its own."""

    class Holding(ContextProvider):
        async def __aenter__(self) -> Self:
            self.group = await asyncio.TaskGroup().__aenter__()
            return self

        async def __aexit__(self, *exc: Any) -> None:
            await self.group.__aexit__(*exc)

    class Closed(ContextProvider):
        async def __aenter__(self) -> Self:
            raise ThreadConfigError("there is no pencil: buy one")

    with pytest.raises(ThreadConfigError, match="buy one"):
        async with Providers([Holding(), Closed()]):
            pass


async def test_an_answer_of_a_request_that_fails_after_it_is_no_message(store: CountedStore) -> None:
    """It is in the request's output alone, as any other that was not completed. covers: THREAD-10"""
    providers = Providers([Broken("invoked", required=True)])
    async with Engine(store, ScriptedModel(), providers=providers) as engine:
        record = await engine.say("hello")
        assert record.status == "Failed"
        assert record.output
        tasks, task_id = engine.tasks, record.task_id
        head = (await tasks.head(engine.partition, task_id)).value
        said, _ = await tasks.history.messages(engine.partition, task_id, head.path, limit=10)
        assert [message.text for message in said] == ["hello"]


# --- what it remembers of the user ----------------------------------------------------------------


async def test_preferences_are_remembered_in_new_sessions(store: CountedStore) -> None:
    """Sent to the model in every later session of this user, until they are to be forgotten.

    covers: THREAD-10
    """
    model = ScriptedModel()
    async with Engine(store, model, providers=Providers([UserPreferences()])) as engine:
        await engine.say("I prefer short answers. I would prefer tea!")
        await engine.say("hello")
        assert "- short answers\n- tea" in last_sent(model)[1]
        await engine.say("Forget my preferences.")
        await engine.say("hello")
        assert last_sent(model) == ["Be brief.", "hello"]


async def test_nothing_is_learned_or_forgotten_with_a_request_that_fails(store: CountedStore) -> None:
    """Its message is no part of the conversation. covers: THREAD-10"""
    model = ScriptedModel(lambda sent: ModelFailed("away") if "!" in sent[-1]["content"] else "ok")
    providers = Providers([UserPreferences(), Facts(FactsOptions(tools=False))])
    async with Engine(store, model, providers=providers) as engine:
        await engine.say("I prefer tea.")
        for text in ("I prefer milk!", "Forget my preferences!", "My cat is called Tom!"):
            assert (await engine.say(text)).status == "Failed"
        await engine.say("hello")
    known = "\n".join(last_sent(model))
    assert known.count("- tea") == 1
    assert "milk" not in known
    assert "Tom" not in known


async def test_preferences_that_are_not_to_be_forgotten_are_kept(store: CountedStore) -> None:
    """Asked not to forget them, in whatever words, it does not."""
    model = ScriptedModel()
    async with Engine(store, model, providers=Providers([UserPreferences()])) as engine:
        await engine.say("I prefer tea.")
        plainly = ("Please don't", "Don’t ever", "dont", "Do not", "Never", "Never, ever", "You cannot")
        doubted = ("Do not, please", "Never -- ever --", "Won't you", "Why won't you", "Wouldn't you")
        for asked in (*plainly, *doubted, "Don't you", "Do not ", "Don't, please,", "You should never just"):
            await engine.say(f"{asked} forget my preferences!")
        await engine.say("hello")
        assert last_sent(model)[1].endswith("\n- tea")
        await engine.say("I do not like tea any more, forget all my preferences.")
        await engine.say("hello")
        assert last_sent(model) == ["Be brief.", "hello"]
        await engine.say("I prefer milk. However forget my preferences later on.")
        await engine.say("I prefer beer. I'm not sure about that: forget my preferences")
        await engine.say("I prefer wine. I can't use these any more, so please forget my preferences")
        await engine.say("hello")
    assert last_sent(model)[1].endswith(":\n- wine")


async def test_preferences_are_forgotten_beside_a_not_and_when_a_question_asks_for_it(
    store: CountedStore,
) -> None:
    """The “not” of the clause before counts as little as that of “Can't you …?”; a second one does."""
    model = ScriptedModel()
    async with Engine(store, model, providers=Providers([UserPreferences()])) as engine:
        beside = ("I'd rather not, please", "I'd rather not - please", "Do not use them -- please,")
        for asked in (*beside, "Can't you just", "Couldn’t you please", "Why don't you", "Why not"):
            await engine.say("I prefer tea.")
            await engine.say(f"{asked} forget my preferences?")
            await engine.say("hello")
            assert last_sent(model) == ["Be brief.", "hello"], asked
        await engine.say("I prefer milk.")
        await engine.say("Why can't you just not forget my preferences?")
        await engine.say("hello")
    assert last_sent(model)[1].endswith("\n- milk")


async def test_a_question_or_a_condition_states_no_preference(store: CountedStore) -> None:
    """“Should I prefer …?” asks for one. What is asked beside a preference does not matter."""
    model = ScriptedModel()
    async with Engine(store, model, providers=Providers([UserPreferences()])) as engine:
        for before in (
            "When should",
            "Why do",
            "Should",
            "Did",
            "Why would",
            "If",
            "When",
            "Tell me whether",
        ):
            await engine.say(f"{before} I prefer a list?")
        await engine.say("When I cook I prefer gas. I prefer tea, do you have any?")
        await engine.say("hello")
    assert last_sent(model)[1].endswith(":\n- gas\n- tea, do you have any")


async def test_who_tells_of_forgetting_does_not_ask_for_it(store: CountedStore) -> None:
    """“I forget …” and “Did you forget …?” erase nothing; wishes with a subject do."""
    model = ScriptedModel()
    async with Engine(store, model, providers=Providers([UserPreferences()])) as engine:
        await engine.say("I prefer tea.")
        for told in ("I", "They", "Did you", "Why do you", "If you", "Sorry, when you"):
            await engine.say(f"{told} forget my preferences all the time")
        await engine.say("hello")
        assert last_sent(model)[1].endswith("\n- tea")
        for wish in (
            "Can you",
            "Would you",
            "I want you to",
            "I suggest you",
            "I'd be glad if you",
            "We should",
        ):
            await engine.say("I prefer tea.")
            await engine.say(f"{wish} forget my preferences")
            await engine.say("hello")
            assert last_sent(model) == ["Be brief.", "hello"], wish


async def test_a_preference_with_dots_is_remembered_whole(store: CountedStore) -> None:
    """Those of numbers and names end no sentence; a full stop, a semicolon or the line does."""
    model = ScriptedModel()
    async with Engine(store, model, providers=Providers([UserPreferences()])) as engine:
        await engine.say("I prefer Python 3.12 and Node.js. Thanks! I prefer tea; not milk\nI prefer oats")
        await engine.say("hello")
    assert last_sent(model)[1].endswith("\n- Python 3.12 and Node.js\n- tea\n- oats")


async def test_of_a_long_message_only_the_beginning_is_searched(store: CountedStore) -> None:
    """Its other sentences, of which 20 MB may hold millions, cost no one any time. covers: THREAD-10"""
    model, document = ScriptedModel(), "a " * (SEARCHED // 2)
    providers = Providers([UserPreferences(), Facts(FactsOptions(tools=False))])
    async with Engine(store, model, providers=providers) as engine:
        await engine.say("My cat is Tom.\nI prefer tea.\n")
        await engine.say(f"My dog is Rex.\nI prefer oats.\n{document}.\nMy fish is Bob.\nI prefer milk.")
        await engine.say(f"{document}.\nForget my preferences. What about my cat?")
        await engine.say("hello")
    known = "\n".join(last_sent(model))
    assert "- tea\n- oats" in known
    assert "dog is Rex" in known
    assert "milk" not in known
    assert "Bob" not in known


async def test_what_was_learned_goes_with_its_task(store: CountedStore) -> None:
    """Deleting a task takes along what was remembered of it, nothing else. covers: THREAD-6, THREAD-10"""
    model = ScriptedModel()
    async with Engine(store, model, providers=Providers([UserPreferences()])) as engine:
        tea = await engine.say("I prefer tea.")
        await engine.say("I prefer milk.")
        await Eraser(engine.tasks).delete_task(engine.partition, tea.task_id)
        await engine.say("hello")
    assert last_sent(model)[1].endswith("\n- milk")
    assert "tea" not in last_sent(model)[1]


async def test_no_one_is_shown_another_users_preferences(store: CountedStore) -> None:
    """Memories are their user's. covers: THREAD-10"""
    model = ScriptedModel()
    async with Engine(store, model, providers=Providers([UserPreferences()])) as engine:
        await engine.say("I prefer tea.")
        engine.caller = type(engine.caller)(user=User("t", "eve"))
        await engine.say("hello")
    assert last_sent(model) == ["Be brief.", "hello"]


async def test_facts_are_found_again(store: CountedStore) -> None:
    """What bears on the question first; the model may search and note by tools. covers: THREAD-10"""
    wanted: list[Any] = []
    model = ScriptedModel(lambda sent: wanted.pop() if wanted else "ok")
    async with Engine(store, model, providers=Providers([Facts(FactsOptions(top_k=1))])) as engine:
        for text in (
            "My cat is called Tom. How are you?",
            "Remember that the kettle is loud.",
            "I live in Oslo.",
        ):
            await engine.say(text)
        await engine.say("What should I feed my cat?")
        assert "- The user's cat is called Tom. (today)" in last_sent(model)[1]
        assert "Oslo" not in last_sent(model)[1]
        await engine.say("Hm.")
        assert "Oslo" in last_sent(model)[1]
        wanted[:] = [[call("c", "facts-search", '{"query": "kettles"}')]]
        await engine.say("What is loud?")
        assert last_sent(model)[-1] == "The user asked to remember that the kettle is loud. (today)"
        wanted[:] = [[call("c", "facts-remember", '{"fact": "Ada has a bicycle."}')]]
        await engine.say("Note it.")
        await engine.say("Where is my bicycle?")
        assert "Ada has a bicycle." in last_sent(model)[1]


def test_what_counts_as_a_fact() -> None:
    """Sentences in which users speak of themselves; no questions."""
    text = "Hi! My name is Ada. Is my name Ada? I live in Oslo, and you? The sky is blue.\nremember the milk"
    assert statements(text) == ["My name is Ada.", "remember the milk"]
    assert statements("Call me Ada") == ["Call me Ada"]
    assert statements("I’m a vegetarian. Do I need a visa\nSee what I need") == [
        "I’m a vegetarian.",
        "See what I need",
    ]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Call me Ann.", "The user is called Ann."),
        ("Please call me Ann.", "The user is called Ann."),
        ("Don't call me Bob.", "Don't call the user Bob."),
        ("Friends call me Bo", "Friends call the user Bo"),
        ("I'm ill and I’m tired.", "The user is ill and the user is tired."),
    ],
)
def test_a_fact_is_told_of_the_user(said: str, told: str) -> None:
    """In whole sentences that say the same."""
    now = datetime.now(UTC)
    fact = Remembered(memory_id="m", text=said, at=now, session_id="s", task_id="t")
    assert phrased(fact, now) == f"{told} (today)"


@pytest.mark.parametrize(
    "said",
    [
        "My budget is 1.5 million.",
        "My email is ann.lee@example.com.",
        "My page is https://a.example/x?y=1!z!",
        "I use Node.js.",
    ],
)
def test_a_number_an_address_and_a_name_are_remembered_whole(said: str) -> None:
    """A dot within them ends no sentence, and no word of the next one is taken along."""
    assert statements(f"{said}\nSo it is.") == [said]
    assert statements(f"(It rains. {said}) So it is.")[-1] == said


async def test_memories_are_bounded(store: CountedStore) -> None:
    """The oldest go first, an equal one is made the newest, and texts are cut."""
    async with Engine(store, ScriptedModel()) as engine:
        memory = Memory(engine.tasks.records, engine.partition, "p", "s", "t", has_head=False)
        for n in range(MOST_MEMORIES + 3):
            await memory.remember(f"fact {n}")
        await memory.remember("fact 10")
        await memory.remember("x" * 5000)
        known = await memory.recall()
    assert len(known) == MOST_MEMORIES
    assert [each.text for each in known[:2]] == ["fact 4", "fact 5"]
    assert known[-2].text == "fact 10"
    assert len(known[-1].text) == 500


async def test_what_several_tasks_taught_takes_no_place_of_other_memories(store: CountedStore) -> None:
    """It is erased for all of them at once; the copy that is recalled is the newest."""
    async with Engine(store, ScriptedModel()) as engine:
        one, two = (
            Memory(engine.tasks.records, engine.partition, "p", "s", task_id, has_head=False)
            for task_id in ("one", "two")
        )
        texts = [f"fact {n}" for n in range(MOST_MEMORIES)]
        await one.remember_all(texts)
        await two.remember_all(texts[:50])
        await two.remember("fact 60")
        known = [each.text for each in await one.recall()]
        assert known == [*texts[50:60], *texts[61:], *texts[:50], "fact 60"]
        await one.remember("fact 60")
        newest = (await two.recall())[-1]
        assert (newest.text, newest.task_id) == ("fact 60", "one")
        await two.remember_all(texts[:10])
        await one.forget([each.memory_id for each in await two.recall()])
        assert await two.recall() == ()


@pytest.mark.parametrize(("provider", "said"), [(UserPreferences, "I prefer"), (Facts, "I am")])
async def test_a_message_that_says_much_is_learned_in_one_change(
    store: CountedStore, provider: type[ContextProvider], said: str
) -> None:
    """Of it the latest are kept, each of them once. covers: THREAD-10"""
    async with Engine(store, ScriptedModel(), providers=Providers([provider()])) as engine:
        await engine.say(f"{said} old.")
        trips = store.trips
        await engine.say("".join(f"{said} {n}.\n" for n in (*range(1000), 990)))
        assert store.trips <= 2 * trips
        memory = Memory(engine.tasks.records, engine.partition, provider.name, "s", "t", has_head=False)
        known = [each.text.removeprefix("I am ").rstrip(".") for each in await memory.recall()]
    kept = [str(n) for n in (*range(1000 - MOST_MEMORIES + 1, 990), *range(991, 1000), 990)]
    assert known == ["old", *kept]


async def test_of_many_texts_the_latest_are_remembered(store: CountedStore) -> None:
    """Equal ones count once, as the latest; nothing is read or written for none."""
    async with Engine(store, ScriptedModel()) as engine:
        memory = Memory(engine.tasks.records, engine.partition, "p", "s", "t", has_head=False)
        await memory.remember("fact 1")
        added = await memory.remember_all([f"fact {n}" for n in (*range(300), *[0] * 300)], of="many")
        assert await memory.recall() == added
        before = store.trips
        assert await memory.remember_all([]) == ()
        assert store.trips == before
    assert [each.text for each in added] == [f"fact {n}" for n in (*range(101, 300), 0)]
    assert added[0].data == {"of": "many"}


async def test_memories_added_at_once_are_all_kept(store: CountedStore) -> None:
    """From several requests of one user side by side."""
    async with Engine(store, ScriptedModel()) as engine:
        memory = Memory(engine.tasks.records, engine.partition, "p", "s", "t", has_head=False)
        await asyncio.gather(*(memory.remember(f"fact {n}") for n in range(20)))
        assert len(await memory.recall()) == 20
        assert not search(await memory.recall(), "the of and", 5)


# --- by name --------------------------------------------------------------------------------------


class Guest(ContextProvider):
    """Of a third party."""


class Plain(ContextProvider):
    """Its options lack what those of every provider have."""

    class Options(BaseModel):
        desk: str = "front"


class Alone(ContextProvider):
    """Leaves its base class out."""

    name = "alone"

    def __init__(self, options: ProviderOptions) -> None: ...


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("user_preference", {}, "Unknown context provider .* Known: facts, mem0, user_preferences"),
        ("user_preferences", {"required": "perhaps"}, "required"),
        ("facts", {"top": 5}, "top: unknown key; did you mean 'top_k'"),
        ("facts", {"top_k": 0}, "top_k: must be at least 1"),
        ("facts", {"max_characters": 0}, "max_characters: must be at least 1"),
        ("no.such:Provider", {}, "no module 'no'"),
        (f"{__name__}:Bell", {}, "must extend ContextProvider"),
        (f"{__name__}:Plain", {}, "Plain lacks its options .* must extend ProviderOptions"),
        (f"{__name__}:Alone", {}, r"its __init__ call super\(\).__init__\(options\)"),
    ],
)
def test_a_provider_that_cannot_be_opened_says_why(name: str, options: Json, complaint: str) -> None:
    """In one sentence, with what to do."""
    with pytest.raises(ThreadConfigError, match=complaint):
        open_providers([(name, options)])


@pytest.mark.parametrize("given", [Guest, "Guest"])
def test_a_provider_is_an_object(given: Any) -> None:
    """Its class, or a name, in its place is refused when the agent is made, not in each request."""
    with pytest.raises(ThreadConfigError, match="is an object whose class extends ContextProvider, not"):
        Providers([given])


def test_providers_come_by_name() -> None:
    """One or a list, built in or `module:Class`; two of one name would mix up their states.

    covers: THREAD-10
    """
    opened = open_providers([("user_preferences", {"required": True}), (f"{__name__}:Guest", {})])
    assert opened.names == ["user_preferences", "Guest"]
    with pytest.raises(ThreadConfigError, match="Two context providers are called Guest"):
        open_providers([(f"{__name__}:Guest", {}), (f"{__name__}:Guest", {})])
