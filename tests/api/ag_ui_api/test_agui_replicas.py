"""Runs on several processes over one store, at the same time, and runs that their pages leave."""

import asyncio
import gc
import json
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from uuid import uuid4

import httpx
import pytest
from ag_ui import core
from agui_talk import (
    SPEC,
    WEATHER,
    Json,
    Page,
    events,
    interrupts,
    kinds,
    resume,
    run_input,
    serving,
    streamed_text,
    unreadable_once_running,
    user,
)
from replicas import replicas
from talk import PLUGINS, call
from wire import lapse

from tealagents.api import requests, task_names, transcripts
from tealagents.api.ag_ui import inputs
from tealagents.api.exchange import Exchange
from tealagents.api.stretches import Stretch
from tealagents.domain.models import Head, RequestRecord
from tealagents.llm.offline import OfflineModel
from tealagents.testing.forking import Nursery
from tealagents.testing.pytest_stores import Place
from tealagents.testing.waits import until

DRIPS = ("drip " * 20).strip()
#: the last of which falls when the model is released
DRIPPING: Json = {"pieces": ["drip", *([" drip"] * 18), {"text": " drip", "delay_ms": 10**9}]}
SCRIPT: Json = {
    "rules": [
        {"when": {"text": "dripping"}, "reply": DRIPPING},
        {"when": {"text": "for ever"}, "reply": {"text": "never", "headers_delay_ms": 600_000}},
    ]
}
APPROVE = {"action": "approve"}


def begin(page: Page, text: str, **fields: Any) -> None:
    """Sends a message, and leaves when the run has begun."""
    page.messages.append(user(text))
    body = run_input(page.thread, *page.messages, **fields)
    with page.client.stream("POST", "/ag-ui", json=body) as answer:
        assert answer.status_code == 200
        for _ in answer.iter_raw():
            break


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_a_thread_is_continued_joined_and_resumed_elsewhere(
    place: Place, nursery: Nursery, tmp_path: Path
) -> None:
    """Whatever one process began, another replays, joins, resumes and continues."""
    env = {"TA_PERSISTENCE": place.url, "TA_PLUGIN_MODULE": str(PLUGINS)}
    file = tmp_path / "written"
    with (
        replicas(nursery, tmp_path, env=env, script=SCRIPT, **SPEC) as pair,
        pair.first.client() as one,
        pair.second.client() as two,
    ):
        here = Page(one)
        first = run_input(here.thread, user("My name is Ada."))
        text = one.post("/ag-ui", json=first).text
        assert two.post("/ag-ui", json=first).text == text
        begin(here, "dripping", runId="r")
        joined, again = Page(two, here.thread), Page(two, here.thread)
        assert streamed_text(joined.run(begun=pair.model.release)) == DRIPS
        again.messages = list(here.messages)
        assert streamed_text(again.run(runId="r")) == DRIPS
        assert joined.said("user") == ["My name is Ada.", "dripping"]
        asked = joined.say(call("Work-write", file=str(file), line="one"))
        here.messages = list(joined.messages)
        answers = resume(asked, APPROVE)
        texts = [each.post(resume=answers, runId="a").text for each in (here, joined)]
        assert texts[0] == texts[1]
        assert file.read_text() == "one\n"


def test_a_pause_survives_a_kill_and_a_run_that_was_under_way_is_an_error(
    nursery: Nursery, tmp_path: Path
) -> None:
    """After `kill -9` an interrupt is answered; a run that had no answer has failed, and is asked again."""
    env = {"TA_PLUGIN_MODULE": str(PLUGINS)}
    file = tmp_path / "written"
    with replicas(nursery, tmp_path, 1, env=env, script=SCRIPT, **SPEC) as alone, alone.first.client() as ada:
        waits, lost = Page(ada), Page(ada)
        asked = waits.say(call("Work-write", file=str(file), line="one"))
        begin(lost, "for ever", runId="r")
        alone.first.kill()
        lapse(f"sqlite:///{tmp_path}/state.db")
        alone.first.start()
        assert waits.answer(asked, APPROVE)[-1]["outcome"] == {"type": "success"}
        assert file.read_text() == "one\n"
        assert lost.run(runId="r")[-1]["code"] == "interrupted"
        lost.messages[-1] = user("hello")
        assert lost.run()[-1]["outcome"] == {"type": "success"}


def test_a_run_that_its_page_leaves_continues(ada: httpx.Client) -> None:
    """So does one whose page is closed; with `on_disconnect: cancel` it is canceled."""
    with serving(SCRIPT, on_disconnect="cancel") as (service, _), service.client() as client:
        page = Page(client)
        begin(page, "for ever", runId="r")

        def ended() -> list[Json] | None:
            found = page.run(runId="r")
            return found if found[-1]["type"] == "RUN_FINISHED" else None

        assert until(ended)[-1]["outcome"] == {"type": "cancelled"}
        # one from before versions does not know this outcome, and success would be wrong
        assert page.run(runId="r", protocolVersion=None)[-1]["code"] == "request_canceled"
        late = Page(client, page.thread)  # the page is reloaded: what was canceled is not sent again
        late.run()
        assert late.said("user") == ["for ever"]
        assert late.say("hello")[-1]["outcome"] == {"type": "success"}
        page.messages.append(user("hello"))
        assert page.run()[-1]["outcome"] == {"type": "success"}
    with serving(SCRIPT) as (service, model), service.client() as client:
        page = Page(client)
        begin(page, "dripping")
        assert streamed_text(Page(client, page.thread).run(begun=model.release)) == DRIPS


def test_a_stream_keeps_nothing_of_the_history_that_came_with_it() -> None:
    """Neither the first of a run, nor that of a page that joins it: in memory it is twenty times as large."""

    def histories() -> int:
        gc.collect()
        return sum(type(each) in (core.AssistantMessage, inputs.Given) for each in gc.get_objects())

    with serving(SCRIPT) as (service, model), service.client() as client:
        before = histories()
        old = [{"id": f"o{n}", "role": "assistant", "content": "said"} for n in range(50)]
        body = run_input(str(uuid4()), *old, user("dripping"))
        with client.stream("POST", "/ag-ui", json=body) as first:
            assert "RUN_STARTED" in next(first.iter_text())
            with client.stream("POST", "/ag-ui", json={**body, "runId": "another"}) as joined:
                texts = joined.iter_text()
                assert "RUN_STARTED" in next(texts)
                until(lambda: histories() <= before)
                model.release()
                assert "RUN_FINISHED" in "".join(texts)


@pytest.mark.parametrize("on_disconnect", ["cancel", "continue"])
def test_a_page_leaves_while_its_answers_are_carried_out(tmp_path: Path, on_disconnect: str) -> None:
    """Its stream is kept alive until then. Where leaving cancels, what it has said besides is not taken."""
    told = {"rules": [{"when": {"tool_result": True}, "reply": DRIPPING}]}
    spec: Json = {"on_disconnect": on_disconnect, "limits": {"keepalive_seconds": 1}}
    with serving(told, **spec) as (service, model), service.client() as client:
        page = Page(client)
        asked = page.say(call("Work-write", file=str(tmp_path / "written"), line="one"))
        given = run_input(page.thread, *page.messages, user("and now?"), resume=resume(asked, APPROVE))
        with client.stream("POST", "/ag-ui", json=given) as answer:
            assert next(answer.iter_raw()) == b": keepalive\n"
        task = f"/tasks/{page.thread}"
        if on_disconnect == "cancel":
            until(lambda: client.get(task).json()["status"] == "Canceled")
        model.release()
        if on_disconnect == "continue":
            until(lambda: "and now?" in client.get(task + "/messages").text)
        page.run()
        assert page.say("hello")[-1]["outcome"] == {"type": "success"}
        said = ["and now?"] if on_disconnect == "continue" else []
        assert page.said("user")[1:] == [*said, "hello"]


def test_answers_that_come_again_after_a_cancellation_begin_nothing_anew(tmp_path: Path) -> None:
    """The same events come, although the message that they belong to was left without an answer."""
    told = {"rules": [{"when": {"tool_result": True}, "reply": DRIPPING}]}
    with serving(told) as (service, model), service.client() as client:
        page = Page(client)
        page.messages.append(user(call("Work-write", file=str(tmp_path / "written"), line="one")))
        asked = events(page.post().text)
        request = asked[0]["metadata"]["tealagents"]["request_id"]
        given = run_input(page.thread, *page.messages, resume=resume(asked, APPROVE))
        with client.stream("POST", "/ag-ui", json=given) as answer:
            chunks = answer.iter_text()
            text = next(chunks)
            until(lambda: len(model.requests) == 2)  # for the call, and with its result
            client.post(f"/requests/{request}/cancel").raise_for_status()
            text += "".join(chunks)
        assert events(text)[-1]["outcome"] == {"type": "cancelled"}
        assert client.post("/ag-ui", json=given).text == text
        other = resume(asked, {"action": "reject"})
        assert page.post(resume=other).json()["code"] == "already_decided"
        assert len(model.requests) == 2
        assert page.run()[-1]["outcome"] == {"type": "interrupt", "interrupts": ANY}  # without them


AUDIO: Json = {"type": "audio", "source": {"type": "data", "value": "AAAA", "mimeType": "audio/wav"}}


@pytest.mark.parametrize(
    ("content", "first", "last"),
    [("and now?", "RUN_STARTED", "RUN_FINISHED"), ([AUDIO], "RUN_ERROR", "RUN_ERROR")],
)
def test_a_run_is_kept_alive_while_its_answers_are_carried_out(
    tmp_path: Path, content: Any, first: str, last: str
) -> None:
    """Then come the events of the message that was sent with them, or the error with which it is refused."""
    told = {"rules": [{"when": {"tool_result": True}, "reply": DRIPPING}]}
    with serving(told, limits={"keepalive_seconds": 1}) as (service, model), service.client() as client:
        page = Page(client)
        asked = page.say(call("Work-write", file=str(tmp_path / "written"), line="one"))
        given = run_input(page.thread, *page.messages, user(content), resume=resume(asked, APPROVE))
        with client.stream("POST", "/ag-ui", json=given) as answer:
            chunks = answer.iter_raw()
            assert next(chunks) == b": keepalive\n"
            model.release()
            text = b"".join(chunks).decode().replace(": keepalive\n", "")
    found = [json.loads(each.removeprefix("data: ")) for each in text.split("\n\n") if each]
    assert (found[0]["type"], found[-1]["type"]) == (first, last)


@pytest.mark.parametrize(
    ("thread", "run", "fault", "code"),
    [
        ("its own", "used", None, "idempotency_key_reused"),
        ("another user's", "new", None, "not_found"),
        ("its own", "new", ZeroDivisionError("boom"), "internal_error"),
    ],
)
def test_a_refusal_says_the_same_whether_or_not_the_stream_has_begun(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    thread: str,
    run: str,
    fault: Exception | None,
    code: str,
) -> None:
    """What is another user's is not found, and a fault is logged."""
    begun, named = threading.Event(), task_names.named
    begun.set()

    async def waiting(*args: Any) -> Any:
        await asyncio.to_thread(begun.wait, 30)
        if fault is not None:
            raise fault
        return await named(*args)

    monkeypatch.setattr(task_names, "named", waiting)
    with serving(limits={"keepalive_seconds": 600}) as (service, _), service.client() as client:
        page = Page(client)
        given = run_input(page.thread, user("two"), runId=run)
        with monkeypatch.context() as patches, service.client("bob") as bob:
            patches.setattr(task_names, "named", named)
            page.say("one", runId="used")
            other = Page(bob)
            other.say("one")
        if thread == "another user's":
            given["threadId"] = other.thread
        with service.client() as another:  # a fault ends its connection
            quick = another.post("/ag-ui", json=given)
        caplog.clear()
        begun.clear()
        exchange = service.app.exchange
        monkeypatch.setattr(exchange, "settings", replace(exchange.settings, keepalive_seconds=0.05))
        with client.stream("POST", "/ag-ui", json=given) as answer:
            chunks = answer.iter_text()
            assert next(chunks) == ": keepalive\n"
            begun.set()
            text = "".join(chunks).replace(": keepalive\n", "")
    assert quick.json()["code"] == code
    assert text == f"data: {quick.text}\n\n"
    assert ("ZeroDivisionError" in caplog.text) == (fault is not None)


async def test_runs_at_the_same_time(ada: httpx.Client) -> None:
    """The same run sent twice at once is one; another meets a busy thread, or waits its turn."""
    with serving(SCRIPT, concurrency="enqueue") as (service, model):
        async with service.async_client() as client:
            bodies = [run_input("t", user(f"pieces-{n}"), runId=str(n)) for n in (3, 4)] * 2
            answers = await asyncio.gather(*(client.post("/ag-ui", json=body) for body in bodies))
            found = [events(answer.text) for answer in answers]
            assert [streamed_text(each) for each in found] == ["1 2 3", "1 2 3 4"] * 2
            assert len(model.requests) == 2
            page = Page(service.client(), "t")
            page.run()
            assert sorted(page.said("user")) == ["pieces-3", "pieces-4"]
            page.client.close()


def test_a_page_whose_message_waited_its_turn_is_shown_what_came_before_it() -> None:
    """The messages of another page, for which it waited, and one of another client that failed."""
    told = {"rules": [*SCRIPT["rules"], {"when": {"text": "broken"}, "reply": {"error": {"status": 400}}}]}
    with serving(told, concurrency="enqueue") as (service, model), service.client() as client:
        one = Page(client)
        one.say("My name is Ada.")
        two = Page(client, one.thread)
        two.run()
        begin(one, "dripping")
        waiting = threading.Thread(target=lambda: two.say("What is my name?"))
        waiting.start()
        until(lambda: client.get(f"/tasks/{one.thread}").json()["queued"])
        model.release()
        waiting.join()
        assert two.said("user") == ["My name is Ada.", "dripping", "What is my name?"]
        assert two.said()[1] == DRIPS
        assert "MESSAGES_SNAPSHOT" not in kinds(two.say("hello"))
        broken = {"items": [{"content_type": "text", "content": "broken"}], "task_id": one.thread}
        client.post("", json=broken)
        two.say("and now?")
        assert two.said("user")[-2:] == ["broken", "and now?"]


def test_a_run_that_waited_its_turn_begins_when_that_has_come() -> None:
    """Before the model has said anything: its page has the id by which to cancel it."""
    with serving(SCRIPT, concurrency="enqueue") as (service, _), service.client() as client:
        page = Page(client)
        begin(page, "for ever")

        def end_the_first() -> None:
            until(lambda: client.get(f"/tasks/{page.thread}").json()["queued"])
            running = client.get(f"/tasks/{page.thread}").json()["request_id"]
            client.post(f"/requests/{running}/cancel").raise_for_status()

        ending = threading.Thread(target=end_the_first)
        ending.start()
        body = run_input(page.thread, user("for ever and ever"))
        with client.stream("POST", "/ag-ui", json=body) as answer:
            chunks = answer.iter_text()
            text = next(chunks)
            ids = json.loads(text.split("\n")[0].removeprefix("data: "))["metadata"]["tealagents"]
            client.post(f"/requests/{ids['request_id']}/cancel").raise_for_status()
            found = events(text + "".join(chunks))
        ending.join()
        assert found[0]["type"] == "RUN_STARTED"
        assert found[-1]["outcome"] == {"type": "cancelled"}


def test_a_message_that_waited_its_turn_is_streamed_although_the_store_cannot_be_read() -> None:
    """From when its turn has come: only what came before it is not shown then."""
    with serving(SCRIPT, concurrency="enqueue") as (service, model), service.client() as client:
        one = Page(client)
        begin(one, "dripping")
        two, found = Page(client, one.thread), list[Json]()
        two.messages.append(user("hello"))
        body = run_input(two.thread, *two.messages)
        waiting = threading.Thread(target=lambda: found.extend(events(client.post("/ag-ui", json=body).text)))
        waiting.start()
        until(lambda: client.get(f"/tasks/{one.thread}").json()["queued"])
        with unreadable_once_running(service, one.thread):
            model.release()
            waiting.join()
        assert kinds(found)[:2] == ["RUN_STARTED", "TEXT_MESSAGE_START"]
        assert found[-1]["outcome"] == {"type": "success"}


def test_a_page_that_leaves_while_its_message_waits_its_turn_cancels_it() -> None:
    """At once, where leaving cancels, and not only when its turn has come."""
    spec: Json = {"concurrency": "enqueue", "limits": {"keepalive_seconds": 1}}
    with serving(SCRIPT, on_disconnect="cancel", **spec) as (service, model), service.client() as client:
        page = Page(client)
        page.messages.append(user("dripping"))
        running = run_input(page.thread, *page.messages)
        with client.stream("POST", "/ag-ui", json=running) as answer:
            chunks = answer.iter_raw()
            next(chunks)
            begin(Page(client, page.thread), "hello")
            until(lambda: not client.get(f"/tasks/{page.thread}").json()["queued"])
            model.release()
            for _ in chunks:
                pass
        page.run()
        assert page.said() == [DRIPS]


async def test_a_busy_thread_is_refused_and_can_be_followed() -> None:
    """While a run is under way another message is a conflict; without one the page follows the run."""
    with serving({"otherwise": DRIPPING}) as (service, model), service.client() as client:
        page = Page(client)
        begin(page, "dripping")
        other = Page(client, page.thread)
        other.messages = [user("me, too")]
        answer = other.post()
        assert (answer.status_code, answer.json()["code"]) == (409, "task_busy")
        assert answer.headers["retry-after"]
        other.messages = []
        found = other.run(begun=model.release)
        assert kinds(found)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
        assert other.said() == [DRIPS]


@pytest.mark.parametrize("concurrency", ["reject", "interrupt"])
def test_a_page_whose_message_failed_joins_the_answer_to_a_newer_one(concurrency: str) -> None:
    """It is not sent again: that would be refused, or end what another page is being answered."""
    broken = {"when": {"text": "broken"}, "reply": {"error": {"status": 400}}}
    script: Json = {"rules": [broken, *SCRIPT["rules"]]}
    with serving(script, concurrency=concurrency) as (service, model), service.client() as client:
        page = Page(client)
        page.say("broken")
        begin(Page(client, page.thread), "dripping")
        assert streamed_text(page.run(begun=model.release)) == DRIPS
        assert page.said("user") == ["broken", "dripping"]


def posted_twice(
    monkeypatch: pytest.MonkeyPatch, page: Page, model: OfflineModel, **given: Any
) -> list[httpx.Response]:
    """The answers to one input, which comes again while the first is under way."""
    reading, read = inputs.read, list[object]()

    def counted(document: Any) -> inputs.Given:
        read.append(document)
        return reading(document)

    monkeypatch.setattr(inputs, "read", counted)
    before, answers = len(model.requests), list[httpx.Response]()
    runs = [threading.Thread(target=lambda: answers.append(page.post(**given))) for _ in range(2)]
    runs[0].start()
    until(lambda: len(model.requests) > before)
    runs[1].start()
    until(lambda: len(read) == 2)
    page.client.get("/tasks")  # by now the second has seen that the first is under way
    model.release()
    for run in runs:
        run.join()
    return answers


@pytest.mark.parametrize("answered", ["interrupt", "tool of the page"])
def test_a_run_that_comes_again_while_its_answers_are_carried_out_waits_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answered: str
) -> None:
    """Both times the same events come: those of the message that was sent with the answers."""
    told = {"rules": [{"when": {"tool_result": True}, "reply": DRIPPING}]}
    with serving(told) as (service, model), service.client() as client:
        page = Page(client)
        if answered == "interrupt":
            asked = page.say(call("Work-write", file=str(tmp_path / "written"), line="one"))
            given: Json = {"resume": resume(asked, APPROVE)}
        else:
            page.say(call("get_weather", place="Rome"), tools=[WEATHER])
            (shown,) = page.messages[-1]["toolCalls"]
            page.messages.append({"id": "t", "role": "tool", "toolCallId": shown["id"], "content": "sunny"})
            given = {"tools": [WEATHER]}
        page.messages.append(user("and now?"))
        answers = posted_twice(monkeypatch, page, model, runId="r", **given)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].text == answers[1].text
    assert events(answers[0].text)[-1]["outcome"] == {"type": "success"}


@pytest.mark.parametrize("concurrency", ["reject", "enqueue", "interrupt"])
def test_answers_and_a_message_that_come_again_under_another_run_are_stored_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, concurrency: str
) -> None:
    """Clients make a new `runId` for every call: the second waits for the answers, and follows the first."""
    told = {"rules": [{"when": {"tool_result": True}, "reply": DRIPPING}]}
    with serving(told, concurrency=concurrency) as (service, model), service.client() as client:
        page = Page(client)
        asked = page.say(call("Work-write", file=str(tmp_path / "written"), line="one"))
        page.messages.append(user("pieces-3"))
        answers = posted_twice(monkeypatch, page, model, resume=resume(asked, APPROVE))
        for answer in answers:
            assert answer.status_code == 200, answer.text
            assert events(answer.text)[-1]["outcome"] == {"type": "success"}
            assert '"1 2 3"' in answer.text or streamed_text(events(answer.text)) == "1 2 3"
        late = Page(client, page.thread)
        late.run()
        assert late.said("user")[1:] == ["pieces-3"]


@pytest.mark.parametrize("concurrency", ["reject", "enqueue", "interrupt"])
def test_a_message_that_comes_again_as_it_is_answered_is_stored_once(
    monkeypatch: pytest.MonkeyPatch, concurrency: str
) -> None:
    """The second run finds it running, and the answer is complete before it has read more."""
    of_task = requests.of_task

    async def later(
        exchange: Exchange, partition: str, head: Head, *most: int
    ) -> AsyncGenerator[RequestRecord]:
        if head.running is not None:
            model.release()
            while (
                await exchange.tasks.request(partition, head.running.request_id)
            ).value.status == "Running":
                await asyncio.sleep(0.01)
        async with aclosing(of_task(exchange, partition, head, *most)) as newest_first:
            async for record in newest_first:
                yield record

    monkeypatch.setattr(requests, "of_task", later)
    told = {"rules": [{"when": {"text": "dripping"}, "reply": DRIPPING}]}
    with serving(told, concurrency=concurrency) as (service, model), service.client() as client:
        page = Page(client)
        begin(page, "dripping")
        assert streamed_text(events(page.post().text)) in ("", DRIPS)
        assert len(model.requests) == 1
        late = Page(client, page.thread)
        late.run()
        assert late.said("user") == ["dripping"]


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("concurrency", ["reject", "enqueue", "interrupt"])
def test_a_message_that_comes_twice_at_the_same_time_is_stored_once(
    monkeypatch: pytest.MonkeyPatch, concurrency: str, begun: bool
) -> None:
    """Under two runs, both of which find it new: the one that comes later follows the other."""
    submitted, both = requests.submitted, list[asyncio.Event]()

    async def at_once(*args: Any, **fields: Any) -> Any:
        both.append(asyncio.Event())
        if len(both) > 1:
            for each in both:
                each.set()
        await asyncio.wait_for(both[-1].wait(), 30)
        return await submitted(*args, **fields)

    with serving(concurrency=concurrency) as (service, model), service.client() as client:
        page = Page(client)
        if begun:
            page.say("hello")
        page.messages.append(user("pieces-3"))
        asked = len(model.requests)
        monkeypatch.setattr(requests, "submitted", at_once)
        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(lambda _: page.post(), range(2)))
        assert [events(answer.text)[-1]["outcome"] for answer in answers] == [{"type": "success"}] * 2
        assert len(model.requests) == asked + 1
        late = Page(client, page.thread)
        late.run()
        assert late.said("user")[begun:] == ["pieces-3"]


@pytest.mark.parametrize("begun", ["hello", "broken"])
@pytest.mark.parametrize("concurrency", ["reject", "enqueue", "interrupt"])
def test_a_message_that_fails_while_it_comes_again_is_stored_once(
    monkeypatch: pytest.MonkeyPatch, concurrency: str, begun: str
) -> None:
    """The second run finds it new, and is stored when the first has failed: it repeats that."""
    submitted, firsts = requests.submitted, list[str]()

    async def later(*args: Any, **fields: Any) -> Any:
        if not firsts:
            firsts.append("under way")
            firsts.append((await asyncio.to_thread(page.post)).text)
        return await submitted(*args, **fields)

    broken = {"when": {"text": "broken"}, "reply": {"error": {"status": 400}}}
    script: Json = {"rules": [broken, *SCRIPT["rules"]]}
    with serving(script, concurrency=concurrency) as (service, _), service.client() as client:
        page = Page(client)
        page.say(begun)
        page.messages.append(user("broken too"))
        monkeypatch.setattr(requests, "submitted", later)
        assert kinds(events(page.post().text))[-1] == kinds(events(firsts[-1]))[-1] == "RUN_ERROR"
        late = Page(client, page.thread)
        late.run()
        assert late.said("user") == [begun, "broken too"]


@pytest.mark.parametrize("concurrency", ["enqueue", "interrupt"])
def test_a_message_that_comes_twice_to_a_busy_thread_is_stored_once(
    monkeypatch: pytest.MonkeyPatch, concurrency: str
) -> None:
    """Under two runs, both of which find another one under way: they wait behind that, or end it, once."""
    submitted, both = requests.submitted, list[asyncio.Event]()

    async def at_once(*args: Any, **fields: Any) -> Any:
        both.append(asyncio.Event())
        if len(both) > 1:
            for each in both:
                each.set()
        await asyncio.wait_for(both[-1].wait(), 30)
        return await submitted(*args, **fields)

    told = {"rules": [{"when": {"text": "dripping"}, "reply": DRIPPING}]}
    with serving(told, concurrency=concurrency) as (service, model), service.client() as client:
        page = Page(client)
        begin(page, "dripping")
        until(lambda: model.requests)
        page.messages.append(user("pieces-3"))
        monkeypatch.setattr(requests, "submitted", at_once)
        with ThreadPoolExecutor() as pool:
            posts = [pool.submit(page.post) for _ in range(2)]
            until(lambda: len(both) > 1)
            model.release()
            answers = [events(each.result().text) for each in posts]
        assert [found[-1]["outcome"] for found in answers] == [{"type": "success"}] * 2
        assert len(model.requests) == 2
        late = Page(client, page.thread)
        late.run()
        assert late.said("user") == ["dripping", "pieces-3"]


@pytest.mark.parametrize("end", ["completes", "is canceled"])
def test_what_a_run_continues_is_shown_although_it_ends_and_is_rolled_back_meanwhile(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The page that joins it has read it while it ran, and its thread once an earlier answer is the last."""
    before = transcripts.before

    async def later(exchange: Exchange, stretch: Stretch, *, needed: bool) -> Any:
        record, owner = stretch.record, stretch.view.caller.user
        if end == "is canceled":
            await exchange.cancel(stretch.view.caller, record.request_id)
        model.release()
        await exchange.outcome(stretch.view)
        await exchange.changes.rollback(stretch.view.partition, record.task_id, owner, first)
        return await before(exchange, stretch, needed=needed)

    told = {"rules": [{"when": {"text": "dripping"}, "reply": DRIPPING}]}
    with serving(told) as (service, model), service.client() as client:
        page = Page(client)
        page.say("one")
        first = client.get(f"/tasks/{page.thread}/checkpoints").json()["items"][0]["checkpoint_id"]
        page.say("two")
        begin(page, "dripping")
        monkeypatch.setattr(transcripts, "before", later)
        late = Page(client, page.thread)
        late.run()
        assert late.said("user") == ["one", "two", "dripping"]


def test_a_stretch_that_is_joined_begins_behind_its_pause(tmp_path: Path) -> None:
    """A page that joins during the answer after an approved call is shown what came before, then the rest."""
    file = tmp_path / "written"
    told = {"rules": [{"when": {"tool_result": True}, "reply": DRIPPING}]}
    with serving(told) as (service, model), service.client() as client:
        page = Page(client)
        asked = page.say(call("Work-write", file=str(file), line="one"))
        assert interrupts(asked)
        body = run_input(page.thread, *page.messages, resume=resume(asked, APPROVE))
        with client.stream("POST", "/ag-ui", json=body) as answer:
            for _ in answer.iter_raw():
                break
            late = Page(client, page.thread)
            found = late.run(begun=model.release)
        assert kinds(found)[:3] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STEP_STARTED"]
        assert [m["role"] for m in late.messages] == ["user", "assistant", "tool", "assistant"]
        assert file.read_text() == "one\n"
