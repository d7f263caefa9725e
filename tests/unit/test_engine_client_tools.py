"""What clients of other protocols bring along: earlier messages, instructions, names, tools of their own."""

import asyncio
from typing import Any

import pytest
from engine_setup import ADA, Function, Process, Scripted, calls, noting, process, says, waits
from msgspec.structs import replace

from tealagents.domain.errors import (
    AlreadyDecided,
    AlreadyExists,
    CheckpointMoved,
    InvalidRequest,
    NeedsAuthorization,
    NotOwner,
)
from tealagents.domain.models import (
    Caller,
    ClientTool,
    Item,
    Json,
    RequestRecord,
    RequestSetup,
    ToolCall,
    User,
)
from tealagents.engine.approvals import CallDecision, Command
from tealagents.state.forking import fork
from tealagents.state.new_message import Earlier, NewMessage
from tealagents.stores.memory import MemoryStore
from tealagents.threads.context import Context, ContextProvider, Invocation, Providers

WEATHER = ClientTool("weather", "The weather here", {"type": "object"})
BOB = Caller(User("mock", "bob"))
NAMED = "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"


def text(said: str) -> tuple[Item, ...]:
    return (Item("text", said),)


async def asked(here: Process, message: NewMessage, caller: Caller = ADA) -> RequestRecord:
    sent = await here.service.submit(caller, message, None, streamed=True)
    return await here.service.outcome(sent)


def prompt(model: Scripted, call: int = -1) -> list[tuple[str, str]]:
    """Role and text of each message of a call of the model."""
    parts = [part.decode().partition(": ") for part in model.calls[call].prompt]
    return [(role, said) for role, _, said in parts]


async def test_a_new_task_may_begin_with_earlier_messages() -> None:
    """They are sent to the model, listed, rolled back to and forked as any others. covers: TASK-3"""
    model = Scripted(says("four"), says("again"))
    earlier = (Earlier("user", text("one")), Earlier("assistant", text("two")))
    async with process(None, model) as here:
        request = await asked(here, NewMessage(items=text("three"), earlier=earlier))
        assert request.status == "Completed"
        prompted = [each for each in prompt(model) if each[0] != "system"]
        assert prompted == [("user", "one"), ("assistant", "two"), ("user", "three")]
        partition, task_id = here.partition(), request.task_id
        head = (await here.tasks.head(partition, task_id)).value
        messages, _ = await here.tasks.history.messages(partition, task_id, head.path, limit=50)
        assert [each.text for each in messages] == ["one", "two", "three", "four"]
        assert request.parent is not None
        resent = await here.request(request.parent)
        assert (resent.status, resent.imported) == ("Completed", True)
        forked = await fork(here.tasks, partition, task_id, ADA.user, checkpoint_id=request.parent)
        await asked(here, NewMessage(items=text("else"), task_id=forked.task_id))
        prompted = [each for each in prompt(model) if each[0] != "system"]
        assert prompted == [("user", "one"), ("assistant", "two"), ("user", "else")]


async def test_instructions_hold_for_one_request() -> None:
    """The next request does not contain them. covers: FLOW-2"""
    model = Scripted(says("oui"), says("yes"))
    async with process(None, model) as here:
        first = await asked(
            here, NewMessage(items=text("hi"), setup=RequestSetup(instructions="Answer in French."))
        )
        assert ("system", "Answer in French.") in prompt(model)
        await asked(here, NewMessage(items=text("hi"), task_id=first.task_id))
        assert "French" not in str(prompt(model))


async def test_a_client_may_name_its_task_once() -> None:
    """The id belongs to who came first with it; then it is continued. covers: AUTH-3"""
    async with process(None, Scripted(says("a"), says("b"))) as here:
        named = NewMessage(items=text("hi"), new_task_id=NAMED)
        assert (await asked(here, named)).task_id == NAMED
        with pytest.raises(AlreadyExists):
            await asked(here, named)
        with pytest.raises(NotOwner):
            await asked(here, named, BOB)
        again = await asked(here, NewMessage(items=text("more"), task_id=NAMED))
        assert again.status == "Completed"


async def test_a_message_may_ask_for_a_checkpoint() -> None:
    """If the task has continued from there, nothing is stored. covers: TASK-5"""
    async with process(None, Scripted(says("a"), says("b"))) as here:
        first = await here.ask()
        second = await asked(
            here,
            NewMessage(items=text("x"), task_id=first.task_id, at_checkpoint=first.request_id),
        )
        assert second.status == "Completed"
        with pytest.raises(CheckpointMoved):
            await asked(
                here,
                NewMessage(items=text("y"), task_id=first.task_id, at_checkpoint=first.request_id),
            )


@pytest.mark.parametrize("concurrency", ["reject", "enqueue", "interrupt", "rollback"])
async def test_a_checkpoint_has_moved_where_the_task_is_busy(concurrency: str) -> None:
    """The message neither waits behind what runs, nor ends it, nor the pause. covers: TASK-5"""
    answer = asyncio.Event()
    model = Scripted(says("a"), waits(answer), calls(ToolCall("c1", "Shell-delete", "{}")))
    async with process(None, model, noting([], governed=True), concurrency=concurrency) as here:
        first = await here.ask()
        late = NewMessage(
            items=text("y"), task_id=first.task_id, at_checkpoint=first.request_id, supersede=True
        )
        running = await here.send("x", first.task_id)
        with pytest.raises(CheckpointMoved):
            await here.service.submit(ADA, late, None, streamed=False)
        answer.set()
        second = await here.service.outcome(running)
        assert second.status == "Completed"
        paused = await here.ask("z", first.task_id)
        late = replace(late, at_checkpoint=second.request_id)
        with pytest.raises(CheckpointMoved):
            await here.service.submit(ADA, late, None, streamed=False)
        assert (await here.request(paused.request_id)).status == "Paused"


async def paused_for(here: Process) -> RequestRecord:
    request = await asked(here, NewMessage(items=text("go"), setup=RequestSetup(client_tools=(WEATHER,))))
    assert request.status == "Paused"
    return request


async def test_a_tool_of_the_client_pauses_the_request_for_its_output() -> None:
    """The model gets the output; sent again it is recognized, another one is refused. covers: HITL-1"""
    model = Scripted(calls(ToolCall("c1", "weather", '{"city": "Rome"}')), says("sunny"))
    async with process(None, model) as here:
        request = await paused_for(here)
        assert request.pause is not None
        (call,) = request.pause.calls
        assert (call.tool, call.by_client) == ("weather", True)
        assert request.pause.message.startswith("The client has to run weather")
        output = Command(decisions=(CallDecision("c1", output="28 degrees"),))
        for _ in range(2):
            sent = await here.approvals.resume(ADA, request.request_id, output, streamed=True)
            assert (await here.service.outcome(sent)).output == "sunny"
        assert prompt(model)[-1] == ("tool", "28 degrees")
        assert len(model.calls) == 2
        other = Command(decisions=(CallDecision("c1", output="5 degrees"),))
        with pytest.raises(AlreadyDecided):
            await here.approvals.resume(ADA, request.request_id, other, streamed=True)


@pytest.mark.parametrize(
    "command",
    [Command(action="approve"), Command(decisions=(CallDecision("c1", "approve"),))],
    ids=["bare", "named"],
)
async def test_a_tool_of_the_client_is_not_approved_without_its_output(command: Command) -> None:
    """The service could not run it; rejected it can be. covers: HITL-1"""
    model = Scripted(calls(ToolCall("c1", "weather", "{}")), says("then not"))
    async with process(None, model) as here:
        request = await paused_for(here)
        with pytest.raises(InvalidRequest, match="the client that declared the tool runs it"):
            await here.approvals.resume(ADA, request.request_id, command, streamed=True)
        reject = Command(action="reject")
        sent = await here.approvals.resume(ADA, request.request_id, reject, streamed=True)
        assert (await here.service.outcome(sent)).output == "then not"


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (CallDecision("c1", "reject", output="28 degrees"), "cannot be given for a call that is rejected"),
        (CallDecision("c1", arguments={}, output="28 degrees"), "cannot be edited for a call that has its"),
    ],
)
async def test_an_output_is_given_for_the_call_as_it_was_made(decision: CallDecision, why: str) -> None:
    """A decision that says two things is not one of them. covers: HITL-1"""
    model = Scripted(calls(ToolCall("c1", "weather", "{}")), says("sunny"))
    async with process(None, model) as here:
        request = await paused_for(here)
        command = Command(decisions=(decision,))
        with pytest.raises(InvalidRequest, match=why):
            await here.approvals.resume(ADA, request.request_id, command, streamed=True)
        assert (await here.request(request.request_id)).status == "Paused"


async def test_the_client_answers_its_calls_before_an_approver_is_asked() -> None:
    """Two pauses, since different parties may answer, also in two processes. covers: HITL-1"""
    ran: list[Json] = []
    asked_for = (ToolCall("c1", "Shell-delete", "{}"), ToolCall("c2", "weather", "{}"))
    model, store = Scripted(calls(*asked_for), says("done")), MemoryStore()
    delete = noting(ran, governed=True)
    async with process(store, model, delete) as here:
        request = await paused_for(here)
        assert waiting(request) == ["weather"]
        request = await resumed(here, request, decisions=(CallDecision("c2", output="fog"),))
        assert (waiting(request), ran) == (["Shell-delete"], [])
    async with process(store, model, delete) as other:
        done = await resumed(other, request, action="approve")
        assert (done.status, len(ran)) == ("Completed", 1)
    # in the order of the calls
    assert [said for role, said in prompt(model) if role == "tool"] == ["ok", "fog"]


async def test_a_call_that_wants_consent_waits_until_the_client_has_answered() -> None:
    """Those that want nothing have run before, once. covers: HITL-1"""
    ran: list[Json] = []
    asks = iter([True, True, False])

    def read(arguments: Json) -> str:
        if next(asks):
            raise NeedsAuthorization("files", "https://login.example", ("read",))
        return "read"

    asked_for = (
        ToolCall("c1", "Files-read", "{}"),
        ToolCall("c2", "weather", "{}"),
        ToolCall("c3", "Shell-delete", "{}"),
    )
    model = Scripted(calls(*asked_for), says("done"))
    async with process(None, model, Function("Files-read", read), noting(ran)) as here:
        request = await paused_for(here)
        assert (waiting(request), len(ran)) == (["weather"], 1)
        request = await resumed(here, request, decisions=(CallDecision("c2", output="fog"),))
        assert waiting(request) == ["Files-read"]
        assert request.pause is not None
        assert request.pause.consent_only
        done = await resumed(here, request, action="approve")
        assert (done.status, len(ran)) == ("Completed", 1)
    assert [said for role, said in prompt(model) if role == "tool"] == ["read", "fog", "ok"]


@pytest.mark.parametrize("way", ["cancel", "answer and cancel"])
async def test_a_call_that_waited_for_consent_behind_the_clients_was_not_made(way: str) -> None:
    """Its request is canceled before its turn: the model is not sent that its outcome is unknown."""

    def read(arguments: Json) -> str:
        raise NeedsAuthorization("files", "https://login.example", ("read",))

    model = Scripted(calls(ToolCall("c1", "Files-read", "{}"), ToolCall("c2", "weather", "{}")), says("on"))
    async with process(None, model, Function("Files-read", read)) as here:
        request = await paused_for(here)
        if way == "answer and cancel":
            request = await resumed(here, request, decisions=(CallDecision("c2", output="fog"),))
        await here.service.cancel(here.partition(), request.request_id, "ada")
        head = (await here.tasks.head(here.partition(), request.task_id)).value
        steps, _ = await here.tasks.history.steps(here.partition(), request.task_id, head.tail_seq, limit=50)
        assert [step.name for step in steps if step.kind == "tool"] == []
        await here.ask("Go on.", request.task_id)
        assert not any(b"Files-read" in part for part in model.calls[-1].prompt)


async def test_a_call_that_had_begun_waits_for_its_user_behind_the_clients() -> None:
    """What it did before it wanted consent is not repeated unasked, in no process. covers: HITL-1"""
    sent: list[str] = []

    def mail(arguments: Json) -> str:
        sent.append("mail")
        if len(sent) == 1:
            raise NeedsAuthorization("mail", "https://login.example", ("send",), begun=True)
        return "sent"

    asked_for = (ToolCall("c1", "Mail-send", "{}"), ToolCall("c2", "weather", "{}"))
    model, store = Scripted(calls(*asked_for), says("done")), MemoryStore()
    async with process(store, model, Function("Mail-send", mail)) as here:
        request = await paused_for(here)
        assert waiting(request) == ["weather"]
    async with process(store, model, Function("Mail-send", mail)) as here:
        request = await resumed(here, request, decisions=(CallDecision("c2", output="fog"),))
        assert (waiting(request), sent) == (["Mail-send"], ["mail"])
        assert request.pause is not None
        assert request.pause.consent_only
        assert request.pause.calls[0].begun
        done = await resumed(here, request, action="approve")
        assert (done.status, sent) == ("Completed", ["mail", "mail"])
        head = (await here.tasks.head(here.partition(), request.task_id)).value
        steps, _ = await here.tasks.history.steps(here.partition(), request.task_id, head.tail_seq, limit=50)
        assert [step.outcome for step in steps if step.kind == "tool"] == ["unknown", "done"]
    assert [said for role, said in prompt(model) if role == "tool"] == ["sent", "fog"]


def waiting(request: RequestRecord) -> list[str]:
    assert request.pause is not None
    return [call.tool for call in request.pause.calls]


async def resumed(here: Process, request: RequestRecord, **command: Any) -> RequestRecord:
    wanted = Command(approval_id=request.approvals[-1], **command)
    sent = await here.approvals.resume(ADA, request.request_id, wanted, streamed=True)
    return await here.service.outcome(sent)


async def test_a_tool_of_the_client_does_not_hide_one_of_a_context_provider() -> None:
    """Of two of one name the service's runs, and the client is asked for nothing. covers: HITL-1"""
    ran: list[Json] = []

    class Station(ContextProvider):
        async def invoking(self, invocation: Invocation) -> Context:
            return Context(tools=(noting(ran, WEATHER.name),))

    model = Scripted(calls(ToolCall("c1", WEATHER.name, "{}")), says("sunny"))
    async with process(None, model, agent={"providers": Providers([Station()])}) as here:
        setup = RequestSetup(client_tools=(WEATHER,))
        request = await asked(here, NewMessage(items=text("go"), setup=setup))
        assert (request.status, request.output) == ("Completed", "sunny")
        assert ran == [{}]
