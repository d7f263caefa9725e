"""What protocols share to send messages, where others do the same at once, or the client leaves."""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from engine_setup import ADA, EVE, Process, Scripted, exchange_of, process, waits
from starlette.requests import Request

from tealagents.api import requests
from tealagents.api.bearer import LONGEST, Bearer
from tealagents.api.exchange import key_of
from tealagents.api.open_calls import OpenCalls
from tealagents.auth import open_auth
from tealagents.domain.errors import InvalidRequest, NotFound, Unauthenticated, let_go_of_frames
from tealagents.domain.models import ClientTool, Item, RequestSetup
from tealagents.state.new_message import Key, NewMessage
from tealagents.testing.clock import FakeClock
from tealagents.testing.waits import eventually

HI = NewMessage(items=(Item("text", "hi"),))
KEY = Key("k" * 64, "d" * 64)


async def tasks_of(here: Process) -> list[Any]:
    page = await here.catalog.tasks(here.partition(), session_id=None, status=None, cursor=None, limit=50)
    return list(page.items)


# --- who asks ---------------------------------------------------------------------------------------


async def test_tools_may_see_those_headers_of_a_caller_that_the_config_names_and_no_others() -> None:
    """Whatever else came with the call, as cookies, is no tool's to read. covers: AUTH-4"""
    sent = {"authorization": "Bearer ada", "X-Team": "north", "cookie": "session=1", "x-other": "2"}
    lines = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
    request = Request({"type": "http", "headers": lines})
    mock = open_auth("mock", {}, FakeClock())
    assert (await Bearer(mock, ["X-Team", "x-absent"]).caller(request)).headers == {"x-team": "north"}
    assert not (await Bearer(mock).caller(request)).headers


def test_equal_idempotency_keys_of_two_users_have_different_names() -> None:
    """The names of records are not encrypted: they show no one that the keys are equal."""
    again, other = key_of(ADA, "one", {"n": 1.0}), key_of(EVE, "one", {"n": 1})
    assert key_of(ADA, "one", {"n": 1}) == again
    assert (other.name == again.name, other.digest == again.digest) == (False, True)


def test_a_token_has_at_most_16_kb() -> None:
    """Whatever stands around it in its header."""
    for size in (LONGEST, LONGEST + 1):
        header = (b"authorization", b"Bearer   " + b"x" * size + b"  ")
        with nullcontext() if size == LONGEST else pytest.raises(Unauthenticated, match="too long"):
            assert Bearer.token(Request({"type": "http", "headers": [header]})) == "x" * size


# --- given up ---------------------------------------------------------------------------------------


async def test_who_gives_up_a_repeated_call_leaves_the_first_one_its_request() -> None:
    """Only the call that has sent a message cancels its request. covers: REQUEST-8"""
    async with process(model=Scripted(waits(asyncio.Event()))) as here:
        exchange = exchange_of(here)
        calls = OpenCalls(exchange)
        first = await requests.submitted(exchange, ADA, HI, KEY, streamed=True)
        again = requests.submitted(exchange, ADA, HI, KEY, streamed=True)
        with calls.begun(again, "again") as sent:
            assert (await sent).record.request_id == first.record.request_id
            calls.give_up("again")
            await eventually(lambda: not exchange._background)
        assert (await here.request(first.record.request_id)).status == "Running"
        with calls.begun(asyncio.sleep(0, first), "first"):
            calls.give_up("first")
            await eventually(lambda: not exchange._background)
        assert (await here.request(first.record.request_id)).status == "Canceled"


# --- a message from an earlier point ----------------------------------------------------------------


async def test_a_message_that_is_refused_leaves_no_fork_behind() -> None:
    """It was made for that message alone. covers: TASK-5"""
    bad = RequestSetup(client_tools=(ClientTool("with space", "", {}),))
    async with process() as here:
        exchange = exchange_of(here)
        first = await here.ask("one")
        await here.ask("two", first.task_id)
        message = NewMessage(items=HI.items, setup=bad)
        with pytest.raises(InvalidRequest):
            await exchange.branch(ADA, first, message, None, streamed=False)
        assert [task.task_id for task in await tasks_of(here)] == [first.task_id]


async def test_a_message_that_came_twice_at_once_leaves_no_second_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other has taken the key once this one has its fork. covers: SESSION-7"""

    async def unused(*_: object) -> None: ...

    async with process() as here:
        exchange = exchange_of(here)
        first = await here.ask("one")
        await here.ask("two", first.task_id)
        quicker = await exchange.branch(ADA, first, HI, KEY, streamed=False)
        await exchange.outcome(quicker)
        monkeypatch.setattr(here.service.submission, "first_use", unused)
        late = await exchange.branch(ADA, first, HI, KEY, streamed=False)
        assert (late.replayed, late.record.request_id) == (True, quicker.record.request_id)
        listed = {task.task_id for task in await tasks_of(here)}
        assert listed == {first.task_id, quicker.record.task_id}


@dataclass(frozen=True)
class Frozen(Exception):
    """An error as a third party may write it."""

    reason: str


def test_frames_of_errors_are_let_go_of_whatever_their_classes_refuse() -> None:
    """An error that led to one that is answered must not become the answer."""

    def refused() -> None:
        try:
            raise Frozen("not this badge")
        except Frozen:
            raise NotFound("There is no such badge.") from None

    with pytest.raises(NotFound) as raised:
        refused()
    error = raised.value
    assert isinstance(error.__context__, Frozen)
    let_go_of_frames(error)
    assert (error.__traceback__, error.__context__.__traceback__) == (None, None)


# --- in the background ------------------------------------------------------------------------------


async def test_what_fails_in_the_background_is_logged_without_the_text_of_a_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may quote a message. The error of our own says why, and a fault where it was raised."""
    async with process() as here:
        exchange = exchange_of(here)

        async def fails(error: Exception) -> None:
            raise error

        exchange.in_background(fails(ValueError("what a user said")))
        exchange.in_background(fails(NotFound("There is no task.")))
        await eventually(lambda: len(caplog.records) == 2)
    fault, refusal = caplog.records
    assert (fault.getMessage(), bool(fault.exc_info)) == ("background work failed", True)
    assert refusal.getMessage() == "background work failed: There is no task."
    assert not refusal.exc_info
