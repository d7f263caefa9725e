"""Runs over AG-UI: text, tools, threads, history that comes again, runs that are asked for twice."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from agui_talk import (
    WEATHER,
    Json,
    Page,
    events,
    kinds,
    refusal,
    resume,
    run_input,
    serving,
    streamed_text,
    unreadable_once_running,
    user,
)
from msgspec.structs import replace
from talk import call, in_service, lines, send
from threads_setup import CountedStore

from tealagents.api import task_names
from tealagents.domain import ids
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import AlreadyExists
from tealagents.domain.models import Caller, User
from tealagents.llm.offline import OfflineModel
from tealagents.state import keys
from tealagents.state.importing import Importing
from tealagents.state.records import RecordStore
from tealagents.stores import open_store
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until

AUDIO: Json = {"type": "audio", "source": {"type": "data", "value": "AAAA", "mimeType": "audio/wav"}}
PNG: Json = {"type": "image", "source": {"type": "data", "value": "iVBORw0KGgo=", "mimeType": "image/png"}}


def test_a_message_is_answered(page: Page) -> None:
    found = page.say("hello there")
    assert kinds(found) == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    assert found[0]["threadId"] == found[-1]["threadId"] == page.thread
    assert found[0]["protocolVersion"] == "1.0"
    assert found[-1]["outcome"] == {"type": "success"}
    assert streamed_text(found) == page.said()[0] != ""
    assert found[-1]["usage"][0]["totalTokens"] > 0


def test_tools_of_the_service_are_shown_with_their_results(page: Page, file: Path) -> None:
    found = page.say(call("Work-note", file=str(file), line="one"))
    assert kinds(found) == [
        "RUN_STARTED",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "STEP_STARTED",
        "TOOL_CALL_RESULT",
        "STEP_FINISHED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    assert lines(file) == ["one"]


def test_a_tool_that_failed_is_marked_live_and_in_a_snapshot(page: Page) -> None:
    """In the same way; a message also has the protocol's own field, which its events lack."""
    (returned,) = [e for e in page.say(call("Work-note")) if e["type"] == "TOOL_CALL_RESULT"]
    late = Page(page.client, page.thread)
    late.run()
    (shown,) = [message for message in late.messages if message["role"] == "tool"]
    assert shown["metadata"] == returned["metadata"] == {"tealagents": {"is_error": True}}
    assert shown["error"] == shown["content"] == returned["content"]


def test_history_that_comes_again_is_not_stored_twice(page: Page, ada: httpx.Client) -> None:
    page.say("one")
    page.say("two")
    found = page.say("three")
    assert "MESSAGES_SNAPSHOT" not in kinds(found)
    task = found[0]["metadata"]["tealagents"]["task_id"]
    stored = ada.get(f"/tasks/{task}/messages").json()["items"]
    assert [m["items"][0]["content"] for m in stored if m["role"] == "user"] == ["one", "two", "three"]
    assert len(stored) == 6


def test_a_message_reads_no_request_before_it(
    page: Page, service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the page has their answers, and no call of its own to give an output of."""
    page.say("one")
    page.say("two")
    records = service.app.exchange.service.records
    store = CountedStore(records.store)
    monkeypatch.setattr(records, "store", store)
    page.say("three")
    assert store.trips <= 6, "four reads and two commits"


def test_the_same_run_is_replayed(page: Page) -> None:
    """The same runId gives the same bytes, and with another message an error; the model is asked once."""
    page.messages.append(user("one"))
    first = page.post(runId="r1").text
    assert page.post(runId="r1").text == first
    page.messages.append(user("two"))
    refusal(page.post(runId="r1"), 422, "idempotency_key_reused")
    assert page.post(runId="r2").status_code == 200


def test_a_run_is_the_same_under_each_spelling_of_its_threads_name(ada: httpx.Client) -> None:
    """The id of the task in upper case, and that of the task which another name stands for."""
    for name in (None, "spelled twice"):
        page = Page(ada, name)
        first = page.say("one", runId="r")
        task = first[0]["metadata"]["tealagents"]["task_id"]
        for spelling in (task, task.upper()):
            other = Page(ada, spelling)
            other.messages = page.messages[:1]
            assert streamed_text(other.run(runId="r")) == streamed_text(first)
            other.messages = [user("two")]
            refusal(other.post(runId="r"), 422, "idempotency_key_reused")


def test_a_run_is_replayed_to_a_page_that_has_its_message_from_a_snapshot() -> None:
    """One that failed as well, although it was answered when it was sent again; not with other words."""
    flaky = {"when": {"text": "flaky"}, "reply": {"error": {"status": 400}}, "times": 1}
    with serving({"rules": [flaky]}) as (service, model), service.client() as client:
        page, ends = Page(client), dict[str, Json]()
        late = Page(client, page.thread)
        for run in ("failed", "answered"):
            page.messages = page.messages[:1] or [user("flaky")]
            ends[run] = page.run(runId=run)[-1]
        late.run()
        sent = late.messages[:1]
        assert sent != page.messages[:1]
        asked = len(model.requests)
        for run, end in ends.items():
            late.messages = list(sent)
            assert late.run(runId=run)[-1] == end
            late.messages = [{**sent[0], "content": "edited"}]
            refusal(late.post(runId=run), 422, "idempotency_key_reused")
        assert len(model.requests) == asked


def test_a_run_that_was_imported_is_replayed_with_its_calls(
    page: Page, ada: httpx.Client, file: Path
) -> None:
    """Under the same names, with what they returned; the text comes at once."""
    found = page.say(call("Work-note", file=str(file), line="one"), runId="moved")
    shown, task = list(page.messages), f"/tasks/{page.thread}"
    document = ada.get(f"{task}/export").raise_for_status().json()
    ada.delete(task).raise_for_status()
    ada.post("/tasks/import", json=document).raise_for_status()
    del page.messages[1:]
    again = page.run(runId="moved")
    assert [each for each in again if each["type"].startswith("TOOL")] == [
        each for each in found if each["type"].startswith("TOOL")
    ]
    assert streamed_text(again) == streamed_text(found)
    assert page.messages == shown
    assert lines(file) == ["one"]


def test_a_replayed_run_doubles_nothing_on_the_page(page: Page, model: OfflineModel) -> None:
    """A page that has the answer, or a part of it, sees it once: its messages are set back before."""
    page.say("one")
    page.say("two", runId="again")
    shown = page.said()
    page.messages[-1]["content"] = page.messages[-1]["content"][:3]
    found = page.run(runId="again")
    assert kinds(found)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert page.said() == shown
    assert page.said("user") == ["one", "two"]
    assert len(model.requests) == 2


@pytest.mark.parametrize("behind_a_tool", [False, True])
def test_a_page_that_stopped_in_the_midst_of_an_answer_is_shown_the_rest_with_its_next_run(
    page: Page, model: OfflineModel, file: Path, behind_a_tool: bool
) -> None:
    """Before the new answer, and once; the model is not asked for the old one again."""
    page.say(call("Work-note", file=str(file), line="one") if behind_a_tool else "one")
    shown = list(page.messages)
    if behind_a_tool:
        del page.messages[2:]  # it shows the call
    else:
        page.messages[-1] = {**shown[-1], "content": shown[-1]["content"][:3]}
    asked = len(model.requests)
    page.messages.append(user("two"))
    body = run_input(page.thread, *page.messages, runId="r")
    found = page.run(runId="r")
    assert kinds(found)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert page.messages[: len(shown)] == shown
    assert page.said("user")[1:] == ["two"]
    assert events(page.client.post("/ag-ui", json=body).text) == found
    assert "MESSAGES_SNAPSHOT" not in kinds(page.say("three"))
    assert len(model.requests) == asked + 2


@pytest.mark.parametrize("content", ["done", "all done \n", "DONE"])
def test_a_page_that_shows_an_answer_in_its_own_words_keeps_them(content: str) -> None:
    """Without the spaces at its end, or altered: only the beginning of an answer is a part of it."""
    rule = {"when": {"text": "one"}, "reply": {"text": "done \n"}}
    with serving({"rules": [rule]}) as (service, _), service.client() as client:
        page = Page(client)
        page.say("one")
        page.messages[-1]["content"] = content
        assert "MESSAGES_SNAPSHOT" not in kinds(page.say("two"))
        assert page.said()[0] == content


def test_two_pages_that_stopped_in_the_midst_of_an_answer_are_answered_once(
    page: Page, model: OfflineModel
) -> None:
    """Where both send the same message, at once; each shows the whole thread in the end."""
    page.say("one")
    page.messages[-1]["content"] = page.messages[-1]["content"][:3]
    page.messages.append(user("two"))
    pages = [page, Page(page.client, page.thread)]
    pages[1].messages = deepcopy(page.messages)
    asked = len(model.requests)
    with ThreadPoolExecutor() as pool:
        list(pool.map(Page.run, pages))
    late = Page(page.client, page.thread)
    late.run()
    assert len(model.requests) == asked + 1
    assert late.said("user") == ["one", "two"]
    for each in pages:
        each.run()
        assert each.said() == late.said()


def test_the_same_message_under_another_run_is_answered_once(page: Page, model: OfflineModel) -> None:
    """A page that lost the answer, and sends its message again, is shown what there is."""
    page.say("one")
    page.messages = [*page.messages, user("two")]
    sent = list(page.messages)
    page.run()
    shown = page.said()
    page.messages = sent
    found = page.run()
    assert kinds(found) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert page.said() == shown
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "hello"}],
        [{"type": "text", "text": "hello"}, {"type": "text", "text": ""}, AUDIO],
        [{"type": "image", "source": {**PNG["source"], "mimeType": "image/PNG; q=1"}}],
    ],
    ids=["one part", "parts that are ignored", "another spelling"],
)
def test_a_message_that_a_snapshot_has_rewritten_is_not_new(
    page: Page, model: OfflineModel, content: list[Json]
) -> None:
    """A page that drops the answer, and runs again, is shown the answer that there is."""
    asked = len(model.requests)
    page.say(content)
    page.run()
    shown = list(page.messages)
    assert shown[0]["content"] != content
    del page.messages[1:]
    page.run()
    assert page.messages == shown
    assert len(model.requests) == asked + 1


def test_a_message_that_was_answered_long_ago_is_not_answered_again(
    page: Page, ada: httpx.Client, file: Path
) -> None:
    """However much others have said since: a page that is behind is shown all, and no tool runs again."""
    page.say("hi")
    page.say(call("Work-note", file=str(file), line="one"))
    behind = Page(page.client, page.thread)
    behind.messages = deepcopy(page.messages[:3])
    for _ in range(51):
        ada.post("", json={"task_id": page.thread, "items": [{"content_type": "text", "content": "x"}]})
    for has in (behind.messages, [m for m in behind.messages if m["role"] == "user"]):
        late = Page(page.client, page.thread)
        late.messages = has
        assert kinds(late.run()) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert lines(file) == ["one"]


def test_a_new_thread_begins_with_the_history_that_the_page_has(page: Page, model: OfflineModel) -> None:
    """Earlier messages of user and assistant become those of the task; a second run stores none again."""
    page.messages = [user("my name is Ada"), {"id": "a1", "role": "assistant", "content": "Hello, Ada"}]
    found = page.say("and now?")
    assert "MESSAGES_SNAPSHOT" not in kinds(found)
    sent = [
        (m["role"], m["content"]) for m in model.requests[-1]["body"]["messages"] if m["role"] != "system"
    ]
    assert sent == [("user", "my name is Ada"), ("assistant", "Hello, Ada"), ("user", "and now?")]
    page.say("and then?")
    assert [m["content"] for m in model.requests[-1]["body"]["messages"] if m["role"] == "user"] == [
        "my name is Ada",
        "and now?",
        "and then?",
    ]


def test_a_page_that_joins_later_is_given_the_messages(page: Page, ada: httpx.Client, file: Path) -> None:
    """A run without a new message shows what there is, and nothing is stored."""
    page.say(call("Work-note", file=str(file), line="one"))
    page.say("and what else?")
    late = Page(ada, page.thread)
    found = late.run()
    assert kinds(found) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert [m["role"] for m in late.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert late.said() == page.said()
    (shown,) = late.messages[1]["toolCalls"]
    assert shown == page.messages[1]["toolCalls"][0]
    assert late.messages[2]["toolCallId"] == shown["id"]
    assert "MESSAGES_SNAPSHOT" not in kinds(late.say("go on"))
    found = page.say("and here?")  # this page has missed a turn
    assert kinds(found)[1] == "MESSAGES_SNAPSHOT"
    assert page.said("user")[-2:] == ["go on", "and here?"]


def test_instructions_hold_on_when_the_page_was_set_back(
    page: Page, ada: httpx.Client, model: OfflineModel
) -> None:
    """A snapshot has them, since a page drops what it lacks: also one of a thread without messages."""
    page.messages = [{"id": "s", "role": "system", "content": "CALM"}]
    page.run()
    page.say("one")
    page.messages.insert(1, {"id": "d", "role": "developer", "content": "BRIEF"})
    Page(ada, page.thread).say("two")
    assert kinds(page.say("three"))[1] == "MESSAGES_SNAPSHOT"
    page.say("four")
    assert [m["role"] for m in page.messages[:4]] == ["system", "developer", "user", "assistant"]
    assert "CALM\n\nBRIEF" in str(model.requests[-1]["body"]["messages"]).replace("\\n", "\n")


def test_messages_keep_their_ids_and_their_order(page: Page, ada: httpx.Client, file: Path) -> None:
    """Live and in a snapshot; a page that has missed a turn shows it where it was.

    Pages replace what they know where it stands, and append the rest: what the page said last is given
    another id, since it would stand before the turn that was missed.
    """
    page.say(call("Work-note", file=str(file), line="one"))
    page.say("and what else?")
    mine = list(page.messages)
    late = Page(ada, page.thread)
    late.run()
    ours = [m["id"] for m in late.messages if m["role"] != "user"]
    assert ours == [m["id"] for m in mine if m["role"] != "user"]
    theirs = late.say("from elsewhere") and late.messages[-1]["id"]
    found = page.say("and from here")
    assert kinds(found)[1] == "MESSAGES_SNAPSHOT"
    assert [m["id"] for m in page.messages[:6]] == [m["id"] for m in mine]
    assert [m["role"] for m in page.messages] == [
        *("user", "assistant", "tool", "assistant"),
        *("user", "assistant", "user", "assistant", "user", "assistant"),
    ]
    assert page.said("user")[-2:] == ["from elsewhere", "and from here"]
    assert page.messages[7]["id"] == theirs
    assert "MESSAGES_SNAPSHOT" not in kinds(page.say("go on"))


def test_messages_that_were_new_at_once_stay_apart(page: Page, ada: httpx.Client) -> None:
    """They are one message of the task; so do those that the thread began with keep their ids."""
    page.messages = [user("My name is Ada."), {"id": "a1", "role": "assistant", "content": "Hello, Ada"}]
    page.messages.append(user("one"))
    page.say("two")
    known = [m["id"] for m in page.messages]
    late = Page(ada, page.thread)
    late.run()
    late.say("from elsewhere")
    page.say("and from here")
    assert [m["id"] for m in page.messages[:5]] == known
    assert page.said("user") == ["My name is Ada.", "one", "two", "from elsewhere", "and from here"]


def test_a_page_that_keeps_only_its_last_messages_is_shown_all_in_order(page: Page) -> None:
    """What it knows would stand before what it lacks, and is given other ids."""
    for text in ("one", "two"):
        page.say(text)
    short = Page(page.client, page.thread)
    short.messages = page.messages[2:]
    short.client.post("/ag-ui", json=run_input(page.thread, user("three")))  # from elsewhere
    short.say("four")
    assert short.said("user") == ["one", "two", "three", "four"]
    assert [m["role"] for m in short.messages] == ["user", "assistant"] * 4
    assert "MESSAGES_SNAPSHOT" not in kinds(short.say("five"))


def test_a_message_that_was_stored_is_streamed_although_the_store_cannot_be_read_from_then_on() -> None:
    """What was read before tells what the page has seen; the answer comes from memory."""
    late = {"when": {"text": "two"}, "reply": {"text": "late", "headers_delay_ms": 600_000}}
    with serving({"rules": [late]}) as (service, model), service.client() as client:
        page = Page(client)
        page.say("one")
        with unreadable_once_running(service, page.thread) as readable:

            def begun() -> None:
                readable()
                model.release()

            page.messages.append(user("two"))
            found = page.run(begun=begun)
        assert "MESSAGES_SNAPSHOT" not in kinds(found)
        assert streamed_text(found) == "late"


def test_a_message_that_a_rollback_has_taken_away_is_not_shown_any_more() -> None:
    """It was not answered, so that the page has seen the last answer all the same."""
    broken = {"when": {"text": "two"}, "reply": {"error": {"status": 400}}}
    with serving({"rules": [broken]}) as (service, _), service.client() as client:
        page = Page(client)
        page.say("one")
        task = f"/tasks/{page.thread}"
        answered = client.get(task).json()["checkpoint_id"]
        page.messages.append(user("two"))
        assert page.run()[-1]["code"] == "model_error"
        other = Page(client, page.thread)
        other.run()
        other.say("three")
        client.post(f"{task}/rollback", json={"checkpoint_id": answered}).raise_for_status()
        page.say("four")
        assert page.said("user") == ["one", "four"]


@pytest.mark.parametrize("failed", [False, True], ids=["answered", "answered when it was repeated"])
def test_a_message_whose_answer_a_rollback_has_taken_away_is_new_again(failed: bool) -> None:
    """Whether or not others have said more since: the page still shows it, and it is not lost."""
    with serving() as (service, model), service.client() as client:
        for later in ("What is my name?", None):
            page = Page(client)
            page.say("hello")
            task = f"/tasks/{page.thread}"
            answered = client.get(task).json()["checkpoint_id"]
            page.messages.append(user("My name is Ada."))
            if failed:
                model.script({"rules": [{"when": {"text": "Ada"}, "reply": {"error": {"status": 400}}}]})
                page.run()
                model.script({})
            page.run()
            client.post(f"{task}/rollback", json={"checkpoint_id": answered}).raise_for_status()
            del page.messages[3:]
            if later is None:
                Page(client, page.thread).say("Good morning.")
            else:
                page.messages.append(user(later))
            assert page.run()[-1]["outcome"] == {"type": "success"}
            assert "My name is Ada." in page.said("user")
            assert "Ada" in page.said()[-1]


def test_a_change_of_the_tasks_metadata_brings_no_snapshot(page: Page, ada: httpx.Client) -> None:
    """Nothing was said; neither when the run is asked for again."""
    page.say("one")
    ada.patch(f"/tasks/{page.thread}", json={"metadata": {"title": "x"}}).raise_for_status()
    page.messages.append(user("two"))
    first = page.post(runId="r").text
    assert "MESSAGES_SNAPSHOT" not in first
    assert page.post(runId="r").text == first


def test_a_new_thread_without_a_message_has_none(page: Page) -> None:
    """A front end that looks a thread up before it is used finds it empty; nothing is stored."""
    assert kinds(page.run()) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    page.messages = [{"id": "a", "role": "assistant", "content": "Ask me"}]
    refusal(page.post(), 422, "invalid_request")
    assert page.say("hello")[-1]["outcome"] == {"type": "success"}


@pytest.mark.parametrize("name", [None, "support chat"])
def test_a_thread_that_has_expired_is_not_found(ada: httpx.Client, file: Path, name: str | None) -> None:
    """Whether a page brings a message, an answer, what it shows, or nothing."""
    page = Page(ada, name)
    asked = page.say(call("Work-write", file=str(file), line="one"))
    path = f"/tasks/{asked[0]['metadata']['tealagents']['task_id']}"
    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    ada.patch(path, json={"expires_at": soon.isoformat()}).raise_for_status()
    until(lambda: ada.get(path).status_code == 404)
    joins, answers = page.post(), page.post(resume=resume(asked, {"action": "approve"}))
    page.messages.append(user("hello?"))
    for answer in (joins, answers, page.post(), Page(ada, page.thread).post()):
        assert "has expired" in refusal(answer, 404, "not_found")["message"]
    assert not file.exists()


def test_a_thread_that_was_deleted_may_as_well_be_new(page: Page, ada: httpx.Client, file: Path) -> None:
    """A page that shows messages learns that, and its next one begins it again; another finds none."""
    asked = page.say(call("Work-write", file=str(file), line="one"))
    ada.post(f"/requests/{asked[0]['metadata']['tealagents']['request_id']}/cancel").raise_for_status()
    ada.delete(f"/tasks/{page.thread}").raise_for_status()
    for answers in ([], resume(asked, {"action": "approve"})):
        refused = refusal(page.post(resume=answers), 422, "invalid_request")
        assert "is new, or was deleted" in refused["message"]
    assert Page(ada, page.thread).run()[-1]["outcome"] == {"type": "success"}
    assert page.say("hello")[-1]["outcome"] == {"type": "success"}


def test_a_thread_whose_import_ends_while_a_message_is_refused_has_not_expired(
    service: ServiceThread, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not there when it is looked for, and there right after that."""
    page.say("hello")
    exchange, caller = service.app.exchange, Caller(User("mock", "ada"))

    async def looked() -> None:
        thread = await task_names.named(exchange, caller, page.thread)
        assert thread.head is not None

        async def before(*_: object) -> task_names.Named:
            return replace(thread, head=None)

        monkeypatch.setattr(task_names, "named", before)
        await thread.check_taken(AlreadyExists("It is just being imported."))

    with pytest.raises(AlreadyExists, match="imported"):
        in_service(service, looked())


def test_a_thread_that_is_being_imported_is_not_begun(tmp_path: Path) -> None:
    """Its id is taken, until the import ends or is made again: it has not expired."""
    url = f"sqlite:///{tmp_path}/state.db"

    async def begin_import(task_id: str) -> None:
        async with open_store(url) as store:
            records, key = RecordStore(store, "Tester", SystemClock()), keys.importing(task_id)
            partition = records.partition(User("mock", "ada"))
            await records.commit(partition, marker=key, put={key: Importing("gone")})

    with serving(env={"TA_PERSISTENCE": url}) as (service, _), service.client() as client:
        page = Page(client)
        asyncio.run(begin_import(page.thread))
        page.messages = [user("hello")]
        refusal(page.post(), 409, "already_exists")


def test_any_text_names_a_thread_of_its_owner(ada: httpx.Client, eve: httpx.Client) -> None:
    """A UUID is the id of the task; any other name stands for one task of each of its users."""
    tasks = set()
    for client in (ada, eve):
        page = Page(client, "support chat / 7 ü")
        for text in ("one", "two"):
            tasks.add(page.say(text)[0]["metadata"]["tealagents"]["task_id"])
        assert page.said("user") == ["one", "two"]
    assert len(tasks) == 2
    named = Page(ada)
    assert named.say("hi")[0]["metadata"]["tealagents"]["task_id"] == named.thread


def test_a_named_thread_is_its_users_whatever_others_have_made(
    service: ServiceThread, eve: httpx.Client
) -> None:
    """Another user can know what it stands for, and have a task of that id before its user ever came."""
    known = ids.named_id(User("mock", "newcomer").key, "home")
    assert Page(eve, known).say("mine")[0]["metadata"]["tealagents"]["task_id"] == known
    with service.client("newcomer") as newcomer:
        page = Page(newcomer, "home")
        for text in ("one", "two"):
            assert page.say(text)[0]["metadata"]["tealagents"]["task_id"] == known
        assert page.said("user") == ["one", "two"]
        for client, said in ((newcomer, ["one", "two"]), (eve, ["mine"])):
            shown = client.get(f"/tasks/{known}/messages").json()["items"]
            assert [each["items"][0]["content"] for each in shown if each["role"] == "user"] == said
    # from then on no one else gets such an id
    late = Page(eve, ids.named_id(User("mock", "newcomer").key, "work"))
    late.messages.append(user("mine"))
    refusal(late.post(), 404, "not_found")


def test_a_page_edits_a_message_on_a_fork_of_its_thread(page: Page, ada: httpx.Client) -> None:
    """Or has it answered anew: on the thread itself it was answered already, and an edit would come last."""
    kept = page.say("one")[0]["metadata"]["tealagents"]
    page.say("two")
    for content in ("two", "three"):
        fork = {"checkpoint_id": kept["request_id"]}
        made = ada.post(f"/tasks/{kept['task_id']}/fork", json=fork).raise_for_status().json()
        forked = Page(ada, made["task_id"])
        forked.messages = [*deepcopy(page.messages[:2]), {**page.messages[2], "content": content}]
        assert streamed_text(forked.run())
        assert forked.said("user") == ["one", content]
        stored = ada.get(f"/tasks/{made['task_id']}/messages").json()["items"]
        assert [m["items"][0]["content"] for m in stored if m["role"] == "user"] == ["one", content]


def test_a_fork_shows_a_message_once_that_was_sent_again_after_its_run_failed() -> None:
    """As its source does, although its requests have other ids."""
    flaky = {"when": {"text": "flaky"}, "reply": {"error": {"status": 400}}, "times": 1}
    with serving({"rules": [flaky]}) as (service, _), service.client() as client:
        page = Page(client)
        page.say("flaky")
        kept = page.run()[0]["metadata"]["tealagents"]
        fork = {"checkpoint_id": kept["request_id"]}
        made = client.post(f"/tasks/{kept['task_id']}/fork", json=fork).raise_for_status().json()
        for thread in (page.thread, made["task_id"]):
            late = Page(client, thread)
            late.run()
            assert late.said("user") == ["flaky"]


def test_a_conversation_continues_over_another_protocol(page: Page, ada: httpx.Client) -> None:
    """A task of the agent's own API is a thread, and a thread is a task of it."""
    begun = ada.post("", json={"items": [{"content_type": "text", "content": "one"}]}).json()
    other = Page(ada, begun["task_id"])
    other.run()
    assert other.said("user") == ["one"]
    other.say("two")
    items = [{"content_type": "text", "content": "three"}]
    assert ada.post("", json={"items": items, "task_id": begun["task_id"]}).status_code == 200
    assert kinds(other.say("four"))[1] == "MESSAGES_SNAPSHOT"
    assert other.said("user") == ["one", "two", "three", "four"]


def test_a_thread_of_another_user_is_not_found(page: Page, eve: httpx.Client) -> None:
    """To read it, to continue it, to resume it: as if there were none."""
    page.say("secret")
    stranger = Page(eve, page.thread)
    refusal(stranger.post(), 404, "not_found")
    stranger.messages = [user("tell me")]
    refusal(stranger.post(), 404, "not_found")
    assert page.said("user") == ["secret"]


def test_what_the_page_brings_reaches_the_model_in_this_run(page: Page, model: OfflineModel) -> None:
    """System messages, context and images; what cannot be used is passed over, and nothing is fetched."""
    page.messages = [{"id": "s", "role": "system", "content": "Answer in French."}]
    parts = [
        {"type": "text", "text": "look"},
        PNG,
        {"type": "image", "source": {"type": "url", "value": "http://127.0.0.1:1/x.png"}},
        AUDIO,
    ]
    page.say(parts, context=[{"description": "page", "value": "the cart"}])
    sent = str(model.requests[-1]["body"]["messages"])
    assert "Answer in French." in sent
    assert "the cart" in sent
    assert "data:image/png;base64,iVBORw0KGgo=" in sent
    assert "127.0.0.1:1" not in sent
    late = Page(page.client, page.thread)
    late.run()
    assert late.messages[0]["content"] == parts[:2]
    page.messages = page.messages[1:]
    page.say("and now?")
    assert "French" not in str(model.requests[-1]["body"]["messages"])


def test_context_that_is_too_large_is_refused_by_its_name(page: Page) -> None:
    """As the page has sent it."""
    page.messages = [user("hi")]
    refused = page.post(context=[{"description": "page", "value": "x" * 70_000}])
    assert refused.status_code == 422
    assert refused.json()["message"].startswith("context: ")


def test_a_run_that_fails_ends_in_an_error() -> None:
    """Sent again its message is answered, or fails again; beside a new one it is not stored twice."""
    rule = {"when": {"text": "broken"}, "reply": {"error": {"status": 400, "message": "too hot"}}}
    with serving({"rules": [rule]}) as (service, model), service.client() as client:
        page = Page(client)
        for _ in range(2):
            page.messages = page.messages or [user("broken")]
            found = page.run()
            assert (found[-1]["type"], found[-1]["code"]) == ("RUN_ERROR", "model_error")
        assert len(model.requests) == 2
        found = page.say("hello")
        assert found[-1]["outcome"] == {"type": "success"}
        sent = [m["content"] for m in model.requests[-1]["body"]["messages"] if m["role"] == "user"]
        assert sent == ["hello"]
        assert page.say("and now?")[-1]["outcome"] == {"type": "success"}


def test_a_run_that_fails_in_the_midst_of_its_text_ends_the_text_before() -> None:
    """Live and asked for again: replays by CopilotKit hold back what follows an open text."""
    fault = {"kind": "error", "after_pieces": 1, "message": "it broke", "code": "server_error"}
    rule = {"when": {"text": "broken"}, "reply": {"text": "one two three", "fault": fault}}
    with serving({"rules": [rule]}) as (service, _), service.client() as client:
        page = Page(client)
        page.messages.append(user("broken"))
        live = page.post(runId="r").text
        assert page.post(runId="r").text == live
        assert kinds(events(live))[1:] == [
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "RUN_ERROR",
        ]


def test_a_message_that_was_sent_again_after_its_run_failed_is_shown_once() -> None:
    """All keeps its ids: on its page, and on one that was reloaded in between. Said anew it is another."""
    fault = {"kind": "error", "after_pieces": 1, "message": "it broke", "code": "server_error"}
    flaky = {"when": {"text": "flaky"}, "reply": {"text": "one two three", "fault": fault}, "times": 3}
    with serving({"rules": [flaky]}) as (service, model), service.client() as client:

        def again(page: Page) -> str:
            """Without what there was of an answer; how it ends."""
            page.messages = page.messages[:3]
            return str(page.run()[-1]["type"])

        page = Page(client)
        page.say("hello")
        page.messages.append(user("flaky"))
        assert again(page) == again(page) == "RUN_ERROR"
        reloaded = Page(client, page.thread)
        reloaded.run()
        assert reloaded.said("user") == ["hello", "flaky"]
        assert again(reloaded) == "RUN_ERROR"
        assert again(page) == "RUN_FINISHED"
        shown = list(page.messages)
        asked = len(model.requests)
        assert again(page) == again(reloaded) == "RUN_FINISHED"  # the answer is there
        assert len(model.requests) == asked
        assert page.messages == shown
        task = page.say("flaky")[0]["metadata"]["tealagents"]["task_id"]
        reloaded.run()
        assert page.said("user") == reloaded.said("user") == ["hello", "flaky", "flaky"]
        stored = client.get(f"/tasks/{task}/messages").json()["items"]
        assert len([m for m in stored if m["role"] == "user"]) == 6  # over the service's own API, each try


def test_of_messages_that_were_new_at_once_the_one_that_is_sent_again_is_shown_once() -> None:
    """The run that failed had both, and the next one only the last."""
    flaky = {"when": {"text": "flaky"}, "reply": {"error": {"status": 400}}, "times": 1}
    with serving({"rules": [flaky]}) as (service, _), service.client() as client:
        page = Page(client)
        page.messages = [user("this is"), user("flaky")]
        for _ in range(3):  # it fails, is answered, and is shown
            page.run()
        assert page.said("user") == ["this is", "flaky"]
        assert [m["role"] for m in page.messages] == ["user", "user", "assistant"]


@pytest.mark.parametrize("behind", ["", [AUDIO]], ids=["empty", "unusable"])
def test_a_message_that_failed_is_answered_although_one_without_content_came_with_it(behind: Any) -> None:
    """The text is sent again, and the other message passed over, as in the first run."""
    flaky = {"when": {"text": "flaky"}, "reply": {"error": {"status": 400}}, "times": 1}
    with serving({"rules": [flaky]}) as (service, model), service.client() as client:
        page = Page(client)
        page.messages = [user("flaky"), user(behind)]
        assert page.run()[-1]["type"] == "RUN_ERROR"
        assert page.run()[-1]["outcome"] == {"type": "success"}
        assert page.said("user") == ["flaky"]
        sent = model.requests[-1]["body"]["messages"]
        assert [m["content"] for m in sent if m["role"] == "user"] == ["flaky"]


def test_a_page_is_shown_the_failed_message_that_begins_the_thread_of_its_own() -> None:
    """Another page has sent that one. Once this page shows it, no snapshot is needed."""
    rule = {"when": {"text": "broken"}, "reply": {"error": {"status": 400}}}
    with serving({"rules": [rule]}) as (service, _), service.client() as client:
        first = Page(client)
        first.say("broken")
        second = Page(client, first.thread)
        assert kinds(second.say("hello"))[1] == "MESSAGES_SNAPSHOT"
        assert second.said("user") == ["broken", "hello"]
        assert "MESSAGES_SNAPSHOT" not in kinds(second.say("and now?"))


def test_a_failed_message_is_not_sent_again_by_a_page_that_was_reloaded() -> None:
    """A snapshot gives messages other ids than their page did; the service knows those it gave.

    With other words such a message is new, and the id of another thread's message is as any other.
    """
    rule = {"when": {"text": "broken"}, "reply": {"error": {"status": 400, "message": "too hot"}}}
    with serving({"rules": [rule]}) as (service, model), service.client() as client:

        def sent() -> list[str]:
            return [m["content"] for m in model.requests[-1]["body"]["messages"] if m["role"] == "user"]

        first = Page(client)
        first.say("hello")
        first.say("broken")
        late, elsewhere, edited = Page(client, first.thread), Page(client), Page(client, first.thread)
        for page in (late, edited):
            page.run()
            assert page.said("user") == ["hello", "broken"]
        elsewhere.messages = [late.messages[-1]]
        assert elsewhere.say("and this")[-1]["type"] == "RUN_ERROR"
        late.say("and now?")
        assert sent() == ["hello", "and now?"]
        assert len([text for text in late.said() if text]) == 2
        edited.messages[-1]["content"] = "mended"
        edited.run()
        assert sent() == ["hello", "and now?", "mended"]


def test_a_message_that_failed_is_not_answered_again_once_another_has_come(
    page: Page, ada: httpx.Client, model: OfflineModel
) -> None:
    """From wherever that came: a page that is reopened with the first message is shown what there is."""
    said = call("get_weather", place="Rome")
    request = page.say(said, tools=[WEATHER])[0]["metadata"]["tealagents"]
    ada.post(f"/requests/{request['request_id']}/cancel").raise_for_status()
    reopened = Page(ada, page.thread)
    reopened.messages = page.messages[:1]
    send(ada, "My name is Ada.", task_id=page.thread)
    asked = len(model.requests)
    assert kinds(reopened.run()) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert len(model.requests) == asked
    assert reopened.said("user") == [said, "My name is Ada."]


def test_a_message_that_failed_is_not_answered_again_once_the_next_one_has_failed_too() -> None:
    """The page has sent that one behind it; another, which shows only the first, is shown what there is."""
    rule = {"when": {"text": "broken"}, "reply": {"error": {"status": 400, "message": "too hot"}}}
    with serving({"rules": [rule]}) as (service, model), service.client() as client:
        page = Page(client)
        page.say("broken")
        other = Page(client, page.thread)
        other.messages = list(page.messages)
        page.say("broken again")
        asked = len(model.requests)
        assert kinds(other.run()) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
        assert len(model.requests) == asked
        assert other.said("user") == ["broken", "broken again"]


def test_a_run_behind_a_failed_message_is_found_again_after_a_rollback() -> None:
    """Its id is not taken for that of another run, since the same messages come with it."""
    broken = {"when": {"text": "broken"}, "reply": {"error": {"status": 400}}}
    with serving({"rules": [broken]}) as (service, model), service.client() as client:
        page = Page(client)
        page.say("hello")
        task = f"/tasks/{page.thread}"
        answered = client.get(task).json()["checkpoint_id"]
        page.say("broken")
        page.messages.append(user("My name is Ada."))
        sent = list(page.messages)
        first = streamed_text(page.run(runId="r"))
        client.post(f"{task}/rollback", json={"checkpoint_id": answered}).raise_for_status()
        page.messages, asked = sent, len(model.requests)
        assert streamed_text(page.run(runId="r")) == first
        assert len(model.requests) == asked


def test_a_thread_with_a_view_begins_with_history_and_continues() -> None:
    """Where reducers choose what the model is sent, too."""
    thread = {"reducers": [{"name": "message_count", "max_messages": 40}]}
    with serving(thread=thread) as (service, _), service.client() as client:
        page = Page(client)
        page.messages = [user("My name is Ada."), {"id": "a1", "role": "assistant", "content": "Hello, Ada"}]
        for _ in range(3):
            assert "Ada" in streamed_text(page.say("What is my name?"))
