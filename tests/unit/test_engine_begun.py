"""Calls that found within that they need their user: what they did before is unknown, and not forgotten."""

import asyncio
from collections.abc import Iterator

import pytest
from engine_setup import ADA, Function, Process, Scripted, calls, process, says, waits

from tealagents.domain.errors import NeedsAuthorization
from tealagents.domain.models import Action, Json, RequestRecord, ToolCall
from tealagents.engine.approvals import Command
from tealagents.state.endings import CANCELED, INTERRUPTED, Stop
from tealagents.testing.waits import eventually

BEFORE, WITHIN = False, True

NOTE = b"its outcome is unknown"


def asking(*begun: bool) -> Function:
    """A tool that asks for consent, before its own code or within it, once for each of `begun`; then runs."""
    needs: Iterator[bool] = iter(begun)

    def does(_: Json) -> str:
        for each in needs:
            raise NeedsAuthorization("notes", "https://notes.example", begun=each)
        return "ran"

    return Function("Notes-read", does)


def model() -> Scripted:
    return Scripted(calls(ToolCall("c1", "Notes-read", "{}")), says("I see."))


async def decide(here: Process, request: RequestRecord, action: Action) -> RequestRecord:
    command = Command(action=action, approval_id=request.approvals[-1])
    sent = await here.approvals.resume(ADA, request.request_id, command, streamed=False)
    return await here.service.outcome(sent)


async def tool_steps(here: Process, request: RequestRecord) -> list[str | None]:
    """The outcomes of the tool's steps in the trace."""
    head = (await here.tasks.head(here.partition(), request.task_id)).value
    steps, _ = await here.tasks.history.steps(here.partition(), request.task_id, head.tail_seq, limit=50)
    return [step.outcome for step in steps if step.kind == "tool"]


@pytest.mark.parametrize(
    ("begun", "said", "steps"),
    [
        ([BEFORE], "it was not made.", []),
        ([WITHIN], "it had begun, and its outcome is unknown.", ["unknown"]),
    ],
)
async def test_a_rejection_says_whether_the_call_had_begun(
    begun: list[bool], said: str, steps: list[str]
) -> None:
    """The model would repeat what it believes was not made."""
    async with process(None, model(), asking(*begun)) as here:
        paused = await here.ask()
        assert (paused.status, await tool_steps(here, paused)) == ("Paused", steps)
        assert (await decide(here, paused, "reject")).status == "Completed"
        assert here.model.calls[-1].prompt[-1].decode() == f"tool: The user rejected this call; {said}"


@pytest.mark.parametrize("way", ["cancel", "supersede", "approve and cancel"])
@pytest.mark.parametrize(
    ("begun", "noted"),
    [([BEFORE, BEFORE], False), ([WITHIN, WITHIN], True), ([WITHIN, BEFORE], True)],
)
async def test_a_call_that_had_begun_is_named_once_its_request_has_ended(
    way: str, begun: list[bool], noted: bool
) -> None:
    """However often it asked, and wherever it asked last; one that had not begun is not named."""
    async with process(None, model(), asking(*begun)) as here:
        request = await here.ask()
        if way == "approve and cancel":
            request = await decide(here, request, "approve")
        assert request.status == "Paused"
        if way != "supersede":
            await here.service.cancel(here.partition(), request.request_id, "ada")
        await here.ask("Go on.", request.task_id, supersede=True)
        assert any(NOTE in part for part in here.model.calls[-1].prompt) is noted


@pytest.mark.parametrize(("begun", "noted"), [(BEFORE, False), (WITHIN, True)])
async def test_an_approved_call_that_was_never_begun_is_not_in_doubt(begun: bool, noted: bool) -> None:
    """Its request is canceled before it continues: only what the call had done before is unknown."""
    async with process(None, model(), asking(begun)) as here:
        request = await here.ask()
        command = Command(action="approve")
        sent = await here.approvals.resume(ADA, request.request_id, command, streamed=False)
        run = here.service.run_of(request.request_id)
        assert run is not None
        run.stop(Stop(CANCELED, "ada"))
        assert (await here.service.outcome(sent)).status == "Canceled"
        assert await tool_steps(here, request) == ["unknown"] * noted
        await here.ask("Go on.", request.task_id)
        assert any(NOTE in part for part in here.model.calls[-1].prompt) is noted


async def test_a_call_that_had_begun_runs_once_its_user_has_agreed() -> None:
    """It begins again, and what it returned then is what is known of it."""
    async with process(None, model(), asking(WITHIN)) as here:
        done = await decide(here, await here.ask(), "approve")
        assert (done.status, await tool_steps(here, done)) == ("Completed", ["unknown", "done"])
        assert here.model.calls[-1].prompt[-1] == b"tool: ran"
        await here.ask("Go on.", done.task_id)
        assert not any(NOTE in part for part in here.model.calls[-1].prompt)


@pytest.mark.parametrize("whole", [True, False])
async def test_what_stands_for_a_failed_request_repeats_no_round_that_lacks_a_result(whole: bool) -> None:
    """A model service refuses calls without results: a note says what they may have done. covers: TASK-4"""
    again, never = says("I see."), asyncio.Event()
    made = (ToolCall("c1", "Mail-send", "{}"), ToolCall("c2", "Notes-read", "{}"))
    scripted = Scripted(calls(*made), waits(never) if whole else again, again)
    reading = Function("Notes-read", lambda _: "read" if whole else never.wait())
    async with process(None, scripted, Function("Mail-send", lambda _: "sent"), reading) as here:
        sent = await here.send()
        run = here.service.run_of(sent.request.request_id)
        assert run is not None
        await eventually(
            lambda: {*run._recorder.intents} - {*run._recorder.running} == ({"c1", "c2"} if whole else {"c1"})
        )
        if whole:  # the second answer is the failed request's own
            await eventually(lambda: len(scripted.calls) == 2)
        run.stop(Stop(INTERRUPTED))
        failed = await here.service.outcome(sent)
        assert failed.status == "Failed"
        answered = await here.ask("hello", failed.task_id, retries=failed.request_id)
        assert answered.status == "Completed"
        prompt = b"\n".join(scripted.calls[-1].prompt)
        assert (b"<Mail-send" in prompt, b"tool: sent" in prompt) == (whole, whole)
        assert b"Mail-send" in prompt
