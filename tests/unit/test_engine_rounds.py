"""The results of a round stand in the order of its calls, whenever each of them was there."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from engine_setup import ADA, Answer, Faulty, Function, Process, Scripted, calls, noting, process, says
from executed_lines import lines_of

from tealagents.domain.errors import AlreadyDecided, ModelFailed
from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.domain.models import (
    LONGEST_NATIVE,
    ClientTool,
    FinishReason,
    Json,
    Message,
    RequestRecord,
    RequestSetup,
    ToolCall,
    ToolChoice,
)
from tealagents.domain.ports import ModelCall, ToolSpec
from tealagents.engine import loop
from tealagents.engine.approvals import Command
from tealagents.engine.toolbox import NAMES_LISTED
from tealagents.state.exporting import export
from tealagents.stores.encrypted import EncryptedStore
from tealagents.stores.memory import MemoryStore
from tealagents.testing.waits import eventually

DELETE, LOOK, AGAIN = (
    ToolCall("c1", "Shell-delete", "{}"),
    ToolCall("c2", "Shell-look", "{}"),
    ToolCall("c3", "Shell-delete", "{}"),
)


async def approved(here: Process, request: RequestRecord) -> RequestRecord:
    command = Command(action="approve", approval_id=request.approvals[-1])
    sent = await here.approvals.resume(ADA, request.request_id, command, streamed=True)
    return await here.service.outcome(sent)


async def test_the_results_of_a_paused_round_are_in_the_order_of_its_calls() -> None:
    """In what the model is sent at once and later, and in the messages, page by page. covers: HITL-1"""
    ran: list[Json] = []
    model = Scripted(calls(DELETE, LOOK, AGAIN), says("done"), says("yes"))
    tools = (noting(ran, governed=True), noting(ran, "Shell-look"))
    async with process(None, model, *tools) as here:
        paused = await here.ask()
        assert paused.status == "Paused"
        ended = await approved(here, paused)
        assert ended.status == "Completed"
        await here.ask("and?", ended.task_id)
        for call in (1, 2):
            sent = [part.decode().partition(": ")[0] for part in model.calls[call].prompt]
            assert sent[:5] == ["user", "assistant", "tool", "tool", "tool"]
        partition, task_id = here.partition(), ended.task_id
        path = (await here.tasks.head(partition, task_id)).value.path
        for limit in (1, 2, 3, 4, 5, 50):
            found: list[Message] = []
            after: int | None = 0
            while after is not None:
                page, after = await here.tasks.history.messages(
                    partition, task_id, path, after=after, limit=limit
                )
                found += page
            assert len(found) == 8
            results = [each.tool_call_id for each in found if each.role == "tool"]
            # a round that is larger than a page comes as it is stored
            assert results == (["c1", "c2", "c3"] if limit >= 4 else ["c2", "c1", "c3"])


async def test_a_round_is_sent_in_the_same_order_after_a_later_pause() -> None:
    """Model services find the beginning of a prompt in their caches only if it is the same. covers: HITL-1"""
    model = Scripted(calls(DELETE, LOOK), calls(AGAIN), says("done"))
    tools = (Function("Shell-delete", str, governed=True), Function("Shell-look", lambda _: "seen"))
    async with process(None, model, *tools) as here:
        await approved(here, await approved(here, await here.ask()))
    before, after = (call.prompt for call in model.calls[1:])
    assert after[: len(before)] == before


class Keeping(Scripted):
    """Shows what it is sent back with a call."""

    def encode(self, message: Message) -> bytes:
        return super().encode(message) + message.native.encode()


@pytest.mark.parametrize(
    ("native", "sent_back"), [("thoughts", b"thoughts"), ("t" * (LONGEST_NATIVE + 1), b"")], ids=len
)
async def test_what_a_model_wants_back_with_its_calls_survives_a_pause(native: str, sent_back: bytes) -> None:
    """Another replica sends it, from a sealed log; what is too large to keep is dropped. covers: HITL-1"""

    async def asks(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        yield ModelDone(finish_reason="tool_calls", tool_calls=(DELETE,), native=native)

    sealed = EncryptedStore(MemoryStore(), "a passphrase that is long enough to be random, 43+")
    async with process(sealed, Keeping(asks), noting([], governed=True)) as one:
        paused = await one.ask()
        assert paused.status == "Paused"
    async with process(sealed, Keeping(says("done")), noting([], governed=True)) as other:
        assert (await approved(other, paused)).status == "Completed"
        assert other.model.calls[0].prompt[1] == b"assistant: <Shell-delete {}>" + sent_back


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_fault_of_the_model_client_is_reported_as_one(streamed: bool) -> None:
    """By the client's name, and without the text, which may quote its key. Not as an interruption: trying
    again does not help. covers: STATE-5"""

    async def broken(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        raise KeyError("a fault")
        yield ModelDone(finish_reason="stop")

    async with process(None, Scripted(broken)) as here:
        ended = await here.ask(streamed=streamed)
        assert ended.error is not None
        assert (ended.status, ended.error.code) == ("Failed", "model_error")
        said = "The model client Scripted is faulty: it raised KeyError. Contact the operator."
        assert ended.error.detail == said


@pytest.mark.parametrize(
    "kind", [asyncio.CancelledError, SystemExit, GeneratorExit, type("Panic", (BaseException,), {})]
)
async def test_whatever_a_model_client_raises_fails_its_request_alone(kind: type[BaseException]) -> None:
    """It ends no process, and the request does not say that one has ended. covers: STATE-5"""

    async def broken(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        raise kind
        yield ModelDone(finish_reason="stop")

    async with process(None, Scripted(broken, says("hello"))) as here:
        ended = await here.ask()
        assert ended.error is not None
        code = (
            "internal_error" if kind is GeneratorExit else "model_error"
        )  # that is how generators are closed
        assert (ended.status, ended.error.code) == ("Failed", code)
        assert (await here.ask(task_id=ended.task_id)).status == "Completed"


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ("hello", "it yielded str, not TextDelta or ModelDone"),
        (TextDelta(b"hello"), "it yielded a TextDelta of bytes"),  # type: ignore[arg-type]
        (ModelDone(finish_reason="odd"), "it yielded a ModelDone that is wrong"),  # type: ignore[arg-type]
        (ModelDone(finish_reason="stop", usage=7), "it yielded a ModelDone that is wrong"),  # type: ignore[arg-type]
        (
            ModelDone(finish_reason="tool_calls", tool_calls=("Shell-delete",)),  # type: ignore[arg-type]
            "it yielded a ModelDone that is wrong",
        ),
    ],
)
async def test_a_model_client_that_yields_what_is_no_event_is_named(event: ModelEvent, why: str) -> None:
    """Nothing of it is stored: it could not be read again."""

    async def odd(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        yield event
        yield ModelDone(finish_reason="stop")

    async with process(None, Scripted(odd, says("hello"))) as here:
        ended = await here.ask()
        assert ended.error is not None
        assert ended.error.code == "model_error"
        assert ended.error.detail.startswith(f"The model client Scripted is faulty: {why}")
        assert (await here.ask(task_id=ended.task_id)).status == "Completed"


class Returning(Scripted):
    """Its stream is a coroutine."""

    async def stream(self, call: ModelCall) -> Any:  # type: ignore[override]
        return []


class Listing(Scripted):
    """Its stream is a list."""

    def stream(self, call: ModelCall) -> Any:
        return []


class Single(Scripted):
    """Yields events one by one."""

    async def stream(self, call: ModelCall) -> AsyncGenerator[Any, None]:
        yield TextDelta("hello")


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Returning, "its stream returned coroutine, not an async generator"),
        (Listing, "its stream returned list, not an async generator"),
        (Single, "it yielded TextDelta, not a list"),
    ],
)
async def test_a_model_client_whose_stream_is_of_another_shape_is_named(
    model: type[Scripted], why: str
) -> None:
    """With what is wrong, instead of what the loop made of it."""
    async with process(None, model()) as here:
        ended = await here.ask()
        assert ended.error is not None
        said = f"The model client {model.__name__} is faulty: {why}. Contact the operator."
        assert (ended.error.code, ended.error.detail) == ("model_error", said)


class Mute(Scripted):
    """Cannot encode what it is given of one role."""

    def __init__(self, role: str, *answers: Any) -> None:
        super().__init__(*answers)
        self.role = role

    def encode_system(self, text: str) -> bytes:
        return self._encoded("system", super().encode_system(text))

    def encode(self, message: Message) -> bytes:
        return self._encoded(message.role, super().encode(message))

    def _encoded(self, role: str, encoded: bytes) -> bytes:
        if role == self.role:
            raise KeyError("a fault")
        return encoded


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
async def test_a_model_client_that_cannot_encode_is_named(role: str) -> None:
    """As for what it raises during a call: not as an internal error of the service."""
    model = Mute(role, calls(LOOK), says("done"))
    async with process(None, model, Function("Shell-look", lambda _: "seen")) as here:
        ended = await here.ask(setup=RequestSetup(instructions="Be kind."))
        assert ended.error is not None
        said = "The model client Mute is faulty: it raised KeyError. Contact the operator."
        assert (ended.error.code, ended.error.detail) == ("model_error", said)


async def test_a_model_client_that_cannot_encode_the_history_is_named() -> None:
    """Another process had encoded it, with another client."""
    store = MemoryStore()
    async with process(store, Scripted(says("hello"))) as here:
        task_id = (await here.ask()).task_id
    async with process(store, Mute("assistant", says("done"))) as other:
        ended = await other.ask("and?", task_id)
        assert ended.error is not None
        assert ended.error.code == "model_error"
        assert ended.error.detail.startswith("The model client Mute is faulty: it raised KeyError.")


class Toolless(Scripted):
    """Cannot encode the tool of a client."""

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        if any(spec.name == "weather" for spec in tools):
            raise KeyError("sk-secret")
        return super().encode_tools(tools)


async def test_a_model_client_that_cannot_encode_tools_is_named() -> None:
    """As one that cannot encode messages."""
    weather = ClientTool("weather", "The weather here", {"type": "object"})
    async with process(None, Toolless()) as here:
        ended = await here.ask(setup=RequestSetup(client_tools=(weather,)))
        assert ended.error is not None
        said = "The model client Toolless is faulty: it raised KeyError. Contact the operator."
        assert (ended.error.code, ended.error.detail) == ("model_error", said)
        assert (await here.ask(task_id=ended.task_id)).status == "Completed"


def also_calls(reason: FinishReason, *pieces: str) -> Answer:
    """Says its pieces, and calls a tool."""

    async def answer(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        for piece in pieces:
            yield TextDelta(piece)
        yield ModelDone(finish_reason=reason, tool_calls=(DELETE,), native="thoughts")

    return answer


@pytest.mark.parametrize("said", ["", "I may not"])
async def test_no_tool_runs_where_the_request_allows_none(said: str) -> None:
    """Some services ignore `tool_choice: none`. The text alone is the answer, and is sent back as such."""
    ran: list[Json] = []
    model = Keeping(also_calls("tool_calls", *[said] * bool(said)), says("yes"))
    async with process(None, model, noting(ran)) as here:
        ended = await here.ask(setup=RequestSetup(tool_choice=ToolChoice("none")))
        assert (ended.status, ended.output, ended.finish_reason, ran) == ("Completed", said, "stop", [])
        assert (await here.ask("and?", ended.task_id)).status == "Completed"
    assert model.calls[1].prompt[1] == b"assistant: " + said.encode()


@pytest.mark.parametrize("reason", ["length", "refusal", "content_filter"])
async def test_an_answer_that_was_cut_short_runs_no_tool(reason: FinishReason) -> None:
    """Whatever the model client, which may pass on a call that can be parsed although it was cut."""
    ran: list[Json] = []
    async with process(None, Scripted(also_calls(reason, "I will")), noting(ran)) as here:
        ended = await here.ask()
        assert (ended.status, ended.output, ended.finish_reason) == ("Completed", "I will", reason)
    assert ran == []


def test_of_very_many_calls_not_each_is_named() -> None:
    """The sentence stands with each of them over some protocols."""
    waiting = tuple(ToolCall(f"c{n}", f"Shell-{n}", "{}") for n in range(NAMES_LISTED + 1_000))
    needed = loop.HumanNeeded(waiting, {}, awaits_owner=False)
    assert needed.message.startswith("Approval is needed before Shell-0, Shell-1, ")
    assert needed.message.endswith(f", Shell-{NAMES_LISTED - 1} and 1,000 more can run.")


@pytest.mark.parametrize(
    ("names", "verbs"),
    [
        ("Shell-0", ("is", "waits", "has")),
        ("Shell-0 and Shell-1", ("are", "wait", "have")),
        ("Shell-0, Shell-1 and Shell-2", ("are", "wait", "have")),
    ],
)
def test_one_call_or_several_wait(names: str, verbs: tuple[str, str, str]) -> None:
    """The sentence that a human reads is right for all of them."""
    tools = tuple(f"Shell-{n}" for n in range(names.count("Shell-")))
    waiting = tuple(ToolCall(tool, tool, "{}") for tool in tools)
    assert (
        loop.HumanNeeded(waiting, {}, awaits_owner=False).message
        == f"Approval is needed before {names} can run."
    )
    owner = loop.HumanNeeded(waiting, {}, awaits_owner=True)
    be, wait, have = verbs
    assert owner.message == f"{names} {be} approved and {wait} for the owner of the task to resume it."
    changed = loop.HumanNeeded(waiting, {}, awaits_owner=False, changed=tools)
    assert changed.message.startswith(
        f"{names} {have} changed since {'it was' if len(tools) == 1 else 'they were'} "
    )


async def test_a_reply_that_is_nested_too_deeply_is_the_models_fault() -> None:
    """It is a `model_error`. covers: STATE-5"""

    async def deep(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        raise RecursionError("maximum recursion depth exceeded")
        yield ModelDone(finish_reason="stop")

    async with process(None, Scripted(deep)) as here:
        ended = await here.ask()
        assert ended.error is not None
        assert ended.error.code == ModelFailed.code


async def test_a_decision_on_an_imported_pause_is_too_late() -> None:
    """It was decided before; the request is not said to be unknown. covers: HITL-1"""
    model = Scripted(calls(DELETE), says("done"))
    async with process(None, model, noting([], governed=True)) as here:
        ended = await approved(here, await here.ask())
        document = await export(here.tasks, here.partition(), ended.task_id)
        await here.eraser.delete_task(here.partition(), ended.task_id)
        await here.importer.import_(ADA, document)
        with pytest.raises(AlreadyDecided):
            await approved(here, ended)


async def test_what_a_round_has_returned_is_stored_before_the_model_is_called_again() -> None:
    """In one commit; a process that dies in that call leaves nothing to be done twice. covers: STATE-3"""
    store, stored = Faulty(MemoryStore()), list[str | None]()
    commits: list[int] = []

    async def looks(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        (request_id,) = here.tasks.begun
        request = await here.request(request_id)
        tail = (await here.tasks.head(here.partition(), request.task_id)).value.tail_seq
        said = await here.tasks.history.messages_of(here.partition(), request, tail)
        stored.extend(message.tool_call_id for message in said if message.role == "tool")
        commits.append(sum(any("log/" in key for key in commit.put) for _, commit in store.commits))
        yield ModelDone(finish_reason="stop")

    model = Scripted(calls(LOOK, AGAIN), looks)
    async with process(store, model, noting([]), noting([], "Shell-look")) as here:
        await here.ask()
    assert stored == ["c2", "c3"]
    assert commits == [3]  # the message, the intents, the results


async def test_a_round_costs_a_commit_for_each_moment_at_which_calls_return() -> None:
    """Those that return together are stored together. covers: STATE-3"""
    store, later = Faulty(MemoryStore()), asyncio.Event()

    def commits() -> int:
        return sum(any("log/" in key for key in commit.put) for _, commit in store.commits)

    async def waits(_: Json) -> str:
        await later.wait()
        return "ok"

    at_once, slow = ("c1", "c2", "c3"), ("c4", "c5")
    wanted = [
        *(ToolCall(each, "Shell-look", "{}") for each in at_once),
        *(ToolCall(each, "Shell-wait", "{}") for each in slow),
    ]
    model = Scripted(calls(*wanted), says("done"))
    async with process(store, model, noting([], "Shell-look"), Function("Shell-wait", waits)) as here:
        asking = asyncio.ensure_future(here.ask())
        await eventually(lambda: commits() == 3)  # the message, the intents, the results that are there
        later.set()
        await asking
    assert commits() == 5  # the other results, and the answer


async def test_calls_that_share_an_id_are_renamed_without_trying_each_number_again() -> None:
    """A model that gives all its calls one id: a later round takes no longer than the first ones."""
    lines = []
    for rounds in (5, 10):
        wanted = calls(*[ToolCall("c", "Shell-look", "{}")] * 30)
        model = Scripted(*[wanted] * rounds, says("done"))
        async with process(None, model, noting([], "Shell-look")) as here:
            with lines_of(loop) as found:
                request = await here.ask()
            head = (await here.tasks.head(here.partition(), request.task_id)).value
            said = await here.tasks.history.messages_of(here.partition(), request, head.tail_seq)
        made = [call.id for message in said for call in message.tool_calls]
        assert made == ["c", *(f"c-{n}" for n in range(2, 30 * rounds + 1))]
        lines.append(found.executed)
    assert lines[1] < 2.5 * lines[0]


HIGH, LOW = "\ud83d", "\ude00"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ((f"a {HIGH}", f"{LOW} b"), ("a ", "\U0001f600 b")),
        ((HIGH, LOW), ("\U0001f600",)),
        ((HIGH, f"{LOW}{HIGH}", f"{LOW}\0"), ("\U0001f600", "\U0001f600\ufffd")),
        ((f"a{HIGH}", "b"), ("a", "\ufffdb")),
        ((LOW, f"a{HIGH}"), ("\ufffd", "a", "\ufffd")),
        ((HIGH, HIGH, LOW), ("\ufffd", "\U0001f600")),
        ((HIGH, ("no", True)), ("\ufffd", "no")),
        (((f"no{HIGH}", True), (LOW, True)), ("no", "\U0001f600")),
    ],
)
async def test_a_character_in_two_deltas_is_kept(
    said: tuple[str | tuple[str, bool], ...], shown: tuple[str, ...]
) -> None:
    """A half is shown with its other half; without one, as U+FFFD. Text and refusal do not mix."""

    async def answer(call: ModelCall) -> AsyncGenerator[ModelEvent, None]:
        for each in said:
            yield TextDelta(each) if isinstance(each, str) else TextDelta(*each)
        yield ModelDone(finish_reason="stop")

    async with process(None, Scripted(answer)) as here:
        request = await here.ask(streamed=True)
        events = [recorded.event for recorded in await here.followed(request.request_id)]
    assert tuple(event.text for event in events if isinstance(event, TextDelta)) == shown
    assert request.output == "".join(shown)
