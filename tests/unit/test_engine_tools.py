"""Tools and models that misbehave: it is reported to the model, or kept as far as it can be kept."""

import asyncio
import json
import sys
import traceback
from contextlib import suppress

import msgspec
import pytest
from engine_setup import ADA, Function, Scripted, Tools, Watched, calls, noting, process, says

from tealagents.api import bodies
from tealagents.api.v1alpha1.time_travel import AROUND
from tealagents.domain.errors import (
    NeedsAuthorization,
    NeedsOwner,
    ToolFailed,
    described,
    ends_task,
    ungrouped,
)
from tealagents.domain.events import Recorded, ToolReturned
from tealagents.domain.models import Json, ToolCall
from tealagents.domain.ports import Commit, ToolContext
from tealagents.engine.approvals import Command
from tealagents.engine.toolbox import Toolbox
from tealagents.state.exporting import export
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import advance
from tealagents.testing.waits import eventually
from tealagents.unwinding import UNWIND_SECONDS


def returned(recorded: list[Recorded]) -> ToolReturned:
    """The result of the one tool call in a stream."""
    (result,) = [each.event for each in recorded if isinstance(each.event, ToolReturned)]
    return result


async def canceled(_: Json) -> str:
    raise asyncio.CancelledError


async def canceled_below(_: Json) -> str:
    inner = asyncio.ensure_future(asyncio.sleep(60))
    inner.cancel()
    await inner
    return "never"


def leaves(_: Json) -> str:
    sys.exit(3)


class Panic(BaseException):
    """As extensions that are written in Rust raise it."""


async def panics(_: Json) -> str:
    raise Panic("index out of bounds")


def loses_itself(_: Json) -> str:
    return loses_itself(_)


async def gives_up(_: Json) -> str:
    raise GeneratorExit("no more")


async def in_a_group(*failures: Exception) -> str:
    """A tool that asks several servers at once, each of which fails."""

    async def fail(failure: Exception) -> None:
        raise failure

    async with asyncio.TaskGroup() as group:
        async with asyncio.TaskGroup() as inner:
            for failure in failures:
                inner.create_task(fail(failure))
        group.create_task(asyncio.sleep(60))
    return "never"


async def fails_in_a_group(_: Json) -> str:
    return await in_a_group(LookupError("no such city"))


async def says_why_in_a_group(_: Json) -> str:
    return await in_a_group(ConnectionError("reset"), ToolFailed("the river is closed"))


async def fails_twice_in_a_group(_: Json) -> str:
    return await in_a_group(ConnectionError("reset"), ConnectionError("refused"))


def wants_no_authorization(_: Json) -> str:
    raise NeedsAuthorization("files", None, None)  # type: ignore[arg-type]


class Speechless(Exception):
    def __str__(self) -> str:
        sys.exit(9)


def is_speechless(_: Json) -> str:
    raise Speechless


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (canceled, "canceled from within"),
        (canceled_below, "canceled from within"),
        (leaves, "tried to end the process"),
        (loses_itself, "RecursionError"),
        (panics, "Panic: index out of bounds"),
        (gives_up, "Error: GeneratorExit: no more"),
        (fails_in_a_group, "Error: LookupError: no such city"),
        (says_why_in_a_group, "Error: the river is closed"),
        (fails_twice_in_a_group, "Error: ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)"),
        (wants_no_authorization, "Error: the authorization that it needs is wrong"),
        (is_speechless, "Error: Speechless"),
    ],
)
async def test_a_tool_that_ends_oddly_is_an_error_reported_to_the_model(does: object, words: str) -> None:
    """The request continues to its answer, and the process keeps running. covers: HITL-1"""
    model = Scripted(calls(ToolCall("c1", "Odd-tool", "{}")), says("I see."))
    async with process(None, model, Function("Odd-tool", does)) as here:  # type: ignore[arg-type]
        request = await here.ask(streamed=True)
        assert request.status == "Completed"
        result = returned(await here.followed(request.request_id))
        assert result.is_error is True
        assert words in result.output


@pytest.mark.parametrize("stated", [True, False], ids=["stated", "implied"])
async def test_what_led_to_a_failure_in_a_group_is_logged(
    stated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is often the reason; that the failure was one of a group says nothing."""

    async def load(_: Json) -> str:
        try:
            raise OSError("no file of rivers")
        except OSError as error:
            failure = ValueError("cannot load the table")
            if stated:
                raise failure from error
            raise failure  # noqa: B904

    async def loads(_: Json) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(load(_))
        return "never"

    model = Scripted(calls(ToolCall("c1", "Odd-tool", "{}")), says("I see."))
    async with process(None, model, Function("Odd-tool", loads)) as here:
        await here.ask()
    assert "OSError: no file of rivers" in caplog.text
    assert "ValueError: cannot load the table" in caplog.text
    assert "ExceptionGroup" not in caplog.text


@pytest.mark.parametrize(
    "others", [[ValueError("x")], [ToolFailed("x")], [ExceptionGroup("y", [NeedsOwner(), OSError("x")])]]
)
def test_an_interrupt_of_the_process_is_not_lost_in_a_group(others: list[Exception]) -> None:
    """Some libraries group it with what failed as they were interrupted; it is no failure of the tool."""
    with pytest.raises(KeyboardInterrupt) as interrupted, ungrouped():
        raise BaseExceptionGroup("two tasks", [*others, BaseExceptionGroup("one", [KeyboardInterrupt()])])
    assert ends_task(interrupted.value)


def test_what_else_has_failed_in_a_group_stays_behind_what_is_meant() -> None:
    """A log shows it as what led to the failure."""
    with pytest.raises(ToolFailed) as failed, ungrouped():
        raise ExceptionGroup("two tasks", [ToolFailed("the river is closed"), ConnectionError("reset")])
    assert "ConnectionError: reset" in "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize(
    ("kind", "start"), [(ToolFailed, "Error: xx"), (ValueError, "Error: ValueError: xx")]
)
async def test_a_failure_without_end_is_cut(kind: type[Exception], start: str) -> None:
    """Libraries quote what a service answered; each later message of the task would hold all of it."""

    def fails(_: Json) -> str:
        raise kind("x" * 300_000)

    model = Scripted(calls(ToolCall("c1", "Odd-tool", "{}")), says("I see."))
    async with process(None, model, Function("Odd-tool", fails)) as here:
        request = await here.ask(streamed=True)
        output = returned(await here.followed(request.request_id)).output
    assert output.startswith(start)
    assert "[Cut here: 200,000 of 300,0" in output
    assert len(output) < 201_000


def test_an_error_without_a_text_is_its_name() -> None:
    """No colon stands before nothing, as with the `TimeoutError` of a connection."""
    assert described(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(("given", "words"), [(None, "gave back NoneType"), (b"bytes", "gave back bytes")])
async def test_a_tool_that_gives_back_no_text_is_an_error_reported_to_the_model(
    given: object, words: str
) -> None:
    """A third party's tool may; it has run, and the request continues."""

    class Careless(Function):
        async def call(self, context: ToolContext, arguments: Json) -> str:
            return given  # type: ignore[return-value]

    model = Scripted(calls(ToolCall("c1", "Careless-tool", "{}")), says("I see."))
    async with process(None, model, Careless("Careless-tool", str)) as here:
        request = await here.ask(streamed=True)
        assert request.status == "Completed"
        result = returned(await here.followed(request.request_id))
        assert result.is_error is True
        assert f"has run, but {words} instead of text" in result.output


async def test_a_canceled_tool_lets_go_before_its_request_has_ended() -> None:
    """It hears of the cancel, and what it uses may be closed once the request has ended. covers: HITL-1"""
    started, ended = asyncio.Event(), asyncio.Event()

    async def works(_: Json) -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.set()
        return "done"

    model = Scripted(calls(ToolCall("c1", "Odd-tool", "{}")), says("never"))
    async with process(None, model, Function("Odd-tool", works)) as here:
        sent = await here.send()
        await started.wait()
        request = await here.service.cancel(here.partition(), sent.request.request_id, "ada")
        assert ended.is_set()
        assert request.status == "Canceled"
        assert len(here.model.calls) == 1


async def test_a_request_that_ends_between_two_results_waits_for_the_tools_that_still_run() -> None:
    """One result of a round is there, and being stored, when the request is canceled. covers: HITL-1"""
    storing, held, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def works(_: Json) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.set()
        return "done"

    class Holding(Watched):
        async def commit(self, partition: str, commit: Commit) -> None:
            if any(b'"tool.called"' in value for value, _ in commit.put.values()):
                storing.set()
                await held.wait()
            await super().commit(partition, commit)

    wanted = (ToolCall("c1", "Quick-tool", "{}"), ToolCall("c2", "Odd-tool", "{}"))
    model = Scripted(calls(*wanted), says("never"))
    tools = (noting([], "Quick-tool"), Function("Odd-tool", works))
    async with process(Holding(MemoryStore()), model, *tools) as here:
        request_id = (await here.send()).request.request_id
        await storing.wait()
        run = here.service.run_of(request_id)
        canceling = asyncio.ensure_future(here.service.cancel(here.partition(), request_id, "ada"))
        await eventually(lambda: run and run._scope and run._scope.expired())
        held.set()
        assert (await canceling).status == "Canceled"
        assert ended.is_set()


async def test_a_tool_that_ignores_that_its_time_is_up_is_left_behind_and_the_model_informed() -> None:
    """It costs a request the tool's own time, not the request's. covers: HITL-1"""
    called, heard, released = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def lingers(_: Json) -> str:
        while not released.is_set():
            called.set()
            with suppress(asyncio.CancelledError):
                await released.wait()
            heard.set()
        return "too late"

    model = Scripted(calls(ToolCall("c1", "Odd-tool", "{}")), says("I see."))
    async with process(None, model, Function("Odd-tool", lingers, timeout=5)) as here:
        asking = asyncio.ensure_future(here.ask(streamed=True))
        await called.wait()
        advance(asyncio.get_running_loop(), 5)
        await heard.wait()
        await asyncio.sleep(0)
        advance(asyncio.get_running_loop(), UNWIND_SECONDS)
        ended, _ = await asyncio.wait({asking}, timeout=30)
        released.set()
        assert ended
        request = await asking
        assert request.status == "Completed"
        assert "gave no result within 5 seconds" in returned(await here.followed(request.request_id)).output


@pytest.mark.parametrize("raised", [TimeoutError("the bank did not answer"), OSError("cut off")])
async def test_a_tool_that_raises_because_its_time_is_up_is_in_doubt(raised: Exception) -> None:
    """The model is not told that it failed: it might call it again, and pay twice. covers: HITL-1"""
    called = asyncio.Event()

    async def pays(_: Json) -> str:
        called.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            raise raised from None
        return "paid"

    model = Scripted(calls(ToolCall("c1", "Odd-tool", "{}")), says("I see."))
    async with process(None, model, Function("Odd-tool", pays, timeout=5)) as here:
        asking = asyncio.ensure_future(here.ask(streamed=True))
        await called.wait()
        advance(asyncio.get_running_loop(), 5)
        request = await asyncio.wait_for(asking, 30)
        assert "whether it took effect is unknown" in returned(await here.followed(request.request_id)).output


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ('"",' + "1e308," * 1000, "numbers with three-digit exponents"),
        ("[]," * 60_000, "holds more than 100,000 JSON values"),
        ('{"":0},' * 60_000, "holds more than 100,000 JSON values"),
    ],
)
async def test_arguments_that_take_long_to_read_are_not_read(values: str, why: str) -> None:
    """All other requests would wait meanwhile; the result says why. covers: HITL-1"""
    slow = f'{{"a": [{values}1]}}'
    model = Scripted(calls(ToolCall("c1", "Odd-tool", slow)), says("I see."))
    ran: list[Json] = []
    async with process(None, model, noting(ran, "Odd-tool")) as here:
        request = await here.ask(streamed=True)
        events = await here.followed(request.request_id)
    assert why in returned(events).output
    assert ran == []


async def test_commas_within_a_text_are_no_values() -> None:
    """A model may write a table into a file."""
    table = json.dumps({"text": '1,"[{\n' * 60_000})
    model = Scripted(calls(ToolCall("c1", "Odd-tool", table)), says("I see."))
    ran: list[Json] = []
    async with process(None, model, noting(ran, "Odd-tool")) as here:
        assert (await here.ask()).status == "Completed"
    assert ran == [json.loads(table)]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("caf\udce9", "caf\ufffd"),
        ({"names": ("caf\udce9", 1), "\ud83d\ude00": float("nan")}, {"names": ["caf\ufffd", 1], "😀": None}),
    ],
)
async def test_half_a_character_in_extra_data_is_replaced(value: object, kept: object) -> None:
    """As in a result: the name of a file that is not UTF-8 may be in it."""

    class Adding(Function):
        async def call(self, context: ToolContext, arguments: Json) -> str:
            context.add_extra_data("file", value)
            return "added"

    model = Scripted(calls(ToolCall("c1", "Files-add", "{}")), says("It is there."))
    async with process(None, model, Adding("Files-add", str)) as here:
        request = await here.ask()
    assert request.status == "Completed"
    assert request.extra_data == {"file": kept}


async def test_a_key_of_extra_data_is_text() -> None:
    """A tool that gives another one fails, and the result says why."""

    class Adding(Function):
        async def call(self, context: ToolContext, arguments: Json) -> str:
            context.add_extra_data(1, "a value")  # type: ignore[arg-type]
            return "added"

    model = Scripted(calls(ToolCall("c1", "Files-add", "{}")), says("It failed."))
    async with process(None, model, Adding("Files-add", str)) as here:
        request = await here.ask(streamed=True)
        failed = returned(await here.followed(request.request_id))
    assert (failed.is_error, request.extra_data) == (True, None)
    assert "the key of extra data must be text, not int" in failed.output


@pytest.mark.parametrize(
    ("value", "why"),
    [([1.5e-101] * 60, "three-digit exponents"), ([1] * 60_000, "more than 100,000 JSON values")],
)
async def test_what_tools_add_to_an_answer_together_can_be_imported(value: object, why: str) -> None:
    """What would be too much fails its tool, also after a pause; a value that takes the place of another
    adds nothing."""

    class Adding(Function):
        async def call(self, context: ToolContext, arguments: Json) -> str:
            context.add_extra_data(arguments["key"], value)
            return "added"

    rounds = [("Files-add", "a"), ("Files-more", "b"), ("Files-add", "a")]
    asked = [calls(ToolCall(f"c{n}", tool, json.dumps({"key": key}))) for n, (tool, key) in enumerate(rounds)]
    tools = Adding("Files-add", str), Adding("Files-more", str, governed=True)
    async with process(None, Scripted(*asked, says("It is there.")), *tools) as here:
        request = await here.ask(streamed=True)
        approve = Command(action="approve")
        decided = await here.approvals.resume(ADA, request.request_id, approve, streamed=True)
        request = await here.service.outcome(decided)
        results = [
            each.event
            for each in await here.followed(request.request_id)
            if isinstance(each.event, ToolReturned)
        ]
        assert [each.is_error for each in results] == [False, True, False]
        assert why in results[1].output
        assert (request.status, request.extra_data) == ("Completed", {"a": value})
        document = await export(here.tasks, here.partition(), request.task_id)
        await here.eraser.delete_task(here.partition(), request.task_id)
        sent = bodies.parse(msgspec.json.encode(document), around=AROUND)
        assert (await here.importer.import_(ADA, sent)).task_id == request.task_id


async def test_text_that_no_encoding_has_is_kept_as_far_as_it_can_be() -> None:
    """A lone surrogate or a NUL, from a file's name or a model's slip, fails nothing, and the task can be
    exported and imported. covers: STATE-4"""
    model = Scripted(
        calls(ToolCall("c\ud800", "Odd-tool", '{"a": "\udc80"}')), says("so:\0 ", "\udc80\ud83d\ude00")
    )
    async with process(None, model, Function("Odd-tool", lambda _: "caf\udce9\0.txt")) as here:
        request = await here.ask(streamed=True)
        assert request.status == "Completed"
        assert request.output == "so:\ufffd \ufffd\U0001f600"
        assert returned(await here.followed(request.request_id)).output == "caf\ufffd\ufffd.txt"
        assert (await here.ask("again", request.task_id)).status == "Completed"
        document = await export(here.tasks, here.partition(), request.task_id)
        await here.eraser.delete_task(here.partition(), request.task_id)
        assert (await here.importer.import_(ADA, document)).task_id == request.task_id


@pytest.mark.parametrize("governed", [False, True])
@pytest.mark.parametrize(
    "arguments", ["[" * 100_000, "[1]", "{", "\x00", *('{"a":' * n + "1" + "}" * n for n in (65, 5000))]
)
async def test_invalid_arguments_are_reported_to_the_model(arguments: str, governed: bool) -> None:
    """Whatever a model writes as arguments: no approver is asked, nothing runs, and it may try again."""
    ran: list[Json] = []
    model = Scripted(calls(ToolCall("c1", "Odd-tool", arguments)), says("sorry"))
    async with process(None, model, noting(ran, "Odd-tool", governed=governed)) as here:
        request = await here.ask(streamed=True)
        assert request.status == "Completed"
        assert returned(await here.followed(request.request_id)).is_error is True
        assert ran == []


async def test_names_and_ids_without_end_are_cut() -> None:
    """A model that makes up a name of a megabyte gets the error that there is no such tool."""
    model = Scripted(calls(ToolCall("i" * 1_000_000, "N" * 1_000_000, "{}")), says("sorry"))
    async with process(None, model) as here:
        request = await here.ask(streamed=True)
        assert request.status == "Completed"
        assert "there is no tool" in returned(await here.followed(request.request_id)).output
        head = (await here.tasks.head(here.partition(), request.task_id)).value
        entries, _ = await here.tasks.history.entries(
            here.partition(), request.task_id, head.tail_seq, limit=50
        )
        assert max(len(str(entry.details)) for entry in entries) < 2000


async def test_a_server_with_a_hyphen_in_its_name_is_shown_by_its_name() -> None:
    """A pause names plugin and function as the tool does, not as the first hyphen parts them.

    covers: HITL-1
    """
    ran: list[Json] = []
    tool = noting(ran, "my-server-delete-all", governed=True)
    named = Function("my-server-delete-all", tool._does, governed=True, plugin="my-server")
    model = Scripted(calls(ToolCall("c1", "my-server-delete-all", "{}")), says("done"))
    async with process(None, model, named) as here:
        request = await here.ask()
        assert request.pause is not None
        (shown,) = request.pause.calls
        assert (shown.plugin_name, shown.function_name) == ("my-server", "delete-all")
        approve = Command(action="approve")
        sent = await here.approvals.resume(ADA, request.request_id, approve, streamed=False)
        assert (await here.service.outcome(sent)).status == "Completed"
        assert len(ran) == 1


@pytest.mark.parametrize(
    ("name", "plugin", "shown"),
    [
        ("Shell-delete", "", ("Shell", "delete")),
        ("Shell-delete", "Shell", ("Shell", "delete")),
        ("lonely", "", ("", "lonely")),
        ("a-b-c", "a-b", ("a-b", "c")),
    ],
)
def test_what_a_call_shows_of_its_tool(name: str, plugin: str, shown: tuple[str, str]) -> None:
    """Plugin and function together are the tool's name."""
    call = ToolCall("c1", name, "{}", plugin)
    assert (call.plugin_name, call.function_name) == shown


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("kind", [KeyError, Panic, SystemExit])
def test_whatever_a_tool_makes_of_edited_arguments_is_a_refusal(
    kind: type[BaseException], grouped: bool
) -> None:
    """As in a call: a validator of its own may raise anything."""

    class Picky(Function):
        def check(self, arguments: Json) -> None:
            failure = kind(next(iter(arguments)))
            raise BaseExceptionGroup("one task", [failure]) if grouped else failure

    toolbox = Toolbox(Scripted(), 1)
    toolbox.load([Tools(Picky("Picky-eat", lambda _: "ok"), Function("Plain-eat", lambda _: "ok"))])
    with pytest.raises(ToolFailed, match=f"{kind.__name__}: '?peas'?"):
        toolbox.check("Picky-eat", {"peas": 1})
    for name in ("Plain-eat", "Nobody-eats"):
        toolbox.check(name, {"peas": 1})
