"""A long conversation: a window of it is drawn, and one gets anywhere with the keyboard."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from agents import talk
from playwright.sync_api import Locator, expect
from tabs import Tab

from tealagents.testing.service import ServiceThread

TURNS = 40
MOST = 24


@pytest.fixture(scope="module")
def task(service: ServiceThread) -> str:
    known: dict[str, str] = {}
    with service.client("ada") as client:
        for number in range(1, TURNS + 1):
            body = {"items": [{"content_type": "text", "content": f"Message {number}."}], **known}
            known = {"task_id": client.post("", json=body).raise_for_status().json()["task_id"]}
    return known["task_id"]


@pytest.fixture
def long(ada: Tab, task: str) -> Tab:
    ada.record()
    ada.open("tasks", task)
    expect(_message(ada, TURNS)).to_be_in_viewport()
    return ada


def _message(tab: Tab, number: int) -> Locator:
    return tab.page.get_by_role("feed").get_by_text(f"Message {number}.", exact=True)


def test_home_and_end(long: Tab) -> None:
    """They lead to the first and the newest message, with only a window of the messages drawn."""
    long.page.get_by_role("region", name="Messages").focus()
    long.page.keyboard.press("Home")
    expect(_message(long, 1)).to_be_in_viewport()
    expect(_message(long, TURNS)).to_have_count(0)
    assert long.page.get_by_role("feed").get_by_role("article").count() <= MOST
    long.page.keyboard.press("End")
    expect(_message(long, TURNS)).to_be_in_viewport()
    expect(_message(long, 1)).to_have_count(0)


def test_what_is_looked_at_in_the_tree_is_in_view(long: Tab) -> None:
    """It is the end of the conversation at that point, not its beginning."""
    long.link("Time travel").click()
    for number in (TURNS - 2, 1):
        long.page.get_by_role("button", name=f"Message {number}.").first.click()
        shown = long.page.get_by_role("dialog")
        expect(shown.get_by_text(f"Message {number}.", exact=True)).to_be_in_viewport()
        expect(shown.get_by_text("Message 1.", exact=True)).to_be_visible()
        long.button("Close").click()


def test_another_view_leads_back_to_what_one_looked_at(long: Tab) -> None:
    """Who looks at the traces of older answers does not begin at the end each time."""
    long.page.get_by_role("region", name="Messages").focus()
    long.page.keyboard.press("Home")
    expect(_message(long, 1)).to_be_in_viewport()
    message = _message(long, 6)
    message.evaluate("message => message.scrollIntoView()")
    before = message.bounding_box()
    long.link("Details").click()
    expect(long.text("This conversation")).to_be_visible()
    long.page.go_back()
    expect(message).to_be_in_viewport()
    after = message.bounding_box()
    assert before
    assert after
    assert abs(before["y"] - after["y"]) < 2
    long.page.get_by_role("region", name="Messages").focus()
    long.page.keyboard.press("End")
    expect(_message(long, TURNS)).to_be_in_viewport()
    long.link("Details").click()
    long.page.go_back()
    expect(_message(long, TURNS)).to_be_in_viewport()


def test_after_one_has_gone_back_the_conversation_is_shown_from_its_new_end(long: Tab) -> None:
    """And not from what one had looked at before."""
    long.page.get_by_role("region", name="Messages").focus()
    long.page.keyboard.press("Home")
    expect(_message(long, 1)).to_be_in_viewport()
    long.link("Time travel").click()
    _go_to(long, TURNS - 1, "Roll back")
    long.link("Conversation").click()
    expect(_message(long, TURNS - 1)).to_be_in_viewport()
    long.link("Time travel").click()
    _go_to(long, TURNS, "Go here")


def _go_to(tab: Tab, number: int, button: str) -> None:
    node = tab.page.locator(".node", has=tab.text(f"Message {number}."))
    node.get_by_role("button", name=button).click()
    expect(node).to_contain_text("Current")


def test_how_a_request_ended_is_read_once(long: Tab, task: str, service: ServiceThread) -> None:
    """Although its turn is drawn again each time one comes back to it."""
    with service.client("ada") as client:
        first = client.get(f"/tasks/{task}/messages?limit=1").json()["items"][0]["request_id"]
    long.page.reload()
    expect(_message(long, TURNS)).to_be_in_viewport()
    with long.page.expect_response(f"**/requests/{first}") as reading:
        _to(long, "Home", 1)
    reading.value.finished()
    for _ in range(2):
        _to(long, "End", TURNS)
        _to(long, "Home", 1)
    assert len([url for url in long.requests if url.endswith(f"/requests/{first}")]) == 1


def _to(tab: Tab, key: str, number: int) -> None:
    tab.page.get_by_role("region", name="Messages").focus()
    tab.page.keyboard.press(key)
    expect(_message(tab, number)).to_be_in_viewport()
    expect(_message(tab, TURNS + 1 - number)).to_have_count(0)
    # what is read of what has come into view is asked for
    tab.page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn, 0)))")


def test_screen_readers_announce_the_place(long: Tab) -> None:
    """Each message says which of how many it is, though not all of them are drawn."""
    newest = long.page.get_by_role("article").last
    expect(newest).to_have_attribute("aria-posinset", str(TURNS))
    expect(newest).to_have_attribute("aria-setsize", str(TURNS))


def test_an_edit_is_kept_while_one_looks_elsewhere(long: Tab) -> None:
    """A text that was begun is not taken away by scrolling."""
    long.page.get_by_role("article").last.get_by_label("Edit and send again").click()
    editor = long.page.locator(".editing textarea")
    editor.fill("Half a thought")
    scroller = long.page.locator(".scroller")
    while _message(long, 1).count() == 0:
        scroller.evaluate("(box) => { box.scrollTop -= box.clientHeight; }")
    expect(editor).to_have_value("Half a thought")


def test_what_is_sent_is_shown(ada: Tab, task: str, service: ServiceThread) -> None:
    """Who sends from far above is led to the message and its answer."""
    with service.client("ada") as client:
        fork = client.post(f"/tasks/{task}/fork", json={}).raise_for_status().json()["task_id"]
    ada.open("tasks", fork)
    expect(_message(ada, TURNS)).to_be_in_viewport()
    ada.page.get_by_role("region", name="Messages").focus()
    ada.page.keyboard.press("Home")
    expect(_message(ada, 1)).to_be_in_viewport()
    ada.say("My name is Ada.")
    expect(ada.text("Nice to meet you, Ada.")).to_be_in_viewport()


def _imported(service: ServiceThread, parents: Sequence[int | None]) -> tuple[str, list[str]]:
    """A task of copies of one request, each with the number of the one that it continues; and their ids."""
    # an open page that lists the first one would look for its title when it may be gone
    (answer,) = talk(service, "Message 0.", metadata={"title": "Copies"})
    with service.client("ada") as client:
        known = client.get(f"/tasks/{answer['task_id']}/export").raise_for_status().json()
        client.delete(f"/tasks/{answer['task_id']}").raise_for_status()
        (one,), entries = known["requests"], json.dumps(known["entries"])
        ids: list[str] = []
        paths: list[list[list[int]]] = []
        document: dict[str, Any] = {**known, "requests": [], "entries": []}
        for number, parent in enumerate(parents):
            text = re.sub("(?<=-[0-9a-f]{8})[0-9a-f]{4}", f"{number:04x}", entries)  # the ends of all ids
            first = len(document["entries"]) + 1
            for entry in json.loads(text.replace("Message 0.", f"Message {number}.")):
                entry["seq"] = len(document["entries"]) + 1
                if entry["body"]["type"] == "end":
                    entry["body"]["first_seq"] = first
                document["entries"].append(entry)
            last = len(document["entries"])
            before = [] if parent is None else paths[parent]
            joins = bool(before) and before[-1][1] == first - 1
            paths.append([*before[:-1], [before[-1][0], last]] if joins else [*before, [first, last]])
            ids.append(document["entries"][-1]["request_id"])
            own = {"request_id": ids[-1], "first_seq": first, "last_seq": last, "path": paths[-1]}
            own["parent"] = None if parent is None else ids[parent]
            document["requests"].append({**one, **own})
        document["task"] |= {"checkpoint_id": ids[-1], "path": paths[-1], "tail_seq": last}
        task: str = client.post("/tasks/import", json=document).raise_for_status().json()["task_id"]
    return task, ids


def test_a_text_without_a_place_to_break_is_laid_out_at_once(ada: Tab, service: ServiceThread) -> None:
    """In a message and in an answer, which the agent repeats: where letters are kerned, a browser would shape
    all that follows anew for each line."""
    with service.client("ada") as client:
        body = {"items": [{"content_type": "text", "content": "W" * 20_000}]}
        task = client.post("", json=body).raise_for_status().json()["task_id"]
    ada.open("tasks", task)
    expect(ada.page.locator(".turn-footer")).to_be_visible()
    kerning = "all => all.filter(e => e.innerText.length > 9999).map(e => getComputedStyle(e).fontKerning)"
    assert ada.page.locator(".plain, .markdown").evaluate_all(kerning) == ["none", "none"]


def test_a_piece_costs_as_much_in_a_long_answer_as_in_a_short_one(ada: Tab) -> None:
    """What has settled is not parsed again, and stays what it was: one can select text in it. All of it is
    shown, as it is once the answer has ended."""
    grow = """async () => {
        const {html, render} = await moduleOf("html");
        const {Markdown} = await moduleOf("markdown");
        const [growing, ended] = [document.createElement("div"), document.createElement("div")];
        const some = (at) => `Line **${at}**.\\n\\n- item\\n- ${at}\\n\\n## Head ${at}`;
        const blocks = Array.from({length: 200}, (_, at) => some(at));
        const text = blocks.join("\\n\\n");
        const {exec} = RegExp.prototype;
        let count = 0;
        RegExp.prototype.exec = function (text) {
            count += 1;
            return exec.call(this, text);
        };
        const costs = [];
        let first;
        for (let at = 100; at < text.length + 100; at += 100) {
            count = 0;
            render(html`<${Markdown} text=${text.slice(0, at)} growing />`, growing);
            costs.push(count);
            first ??= growing.querySelector(".block");
        }
        RegExp.prototype.exec = exec;
        render(html`<${Markdown} text=${text} />`, ended);
        const words = ({textContent}) => textContent.replace(/\\s/g, "");
        return {costs, kept: growing.contains(first), whole: words(growing) === words(ended)};
    }"""
    found = ada.page.evaluate(grow)
    assert found["kept"]
    assert found["whole"]
    assert len(found["costs"]) > 80
    assert max(found["costs"][-30:]) < 2 * max(found["costs"][:30])


def test_of_many_requests_the_newest_are_drawn(ada: Tab, service: ServiceThread) -> None:
    """In the tree and in the trace, with a way to the others; hundreds of old branches are not asked for."""
    task, ids = _imported(service, [None, *[0] * 500, *range(500, 1199)])
    page, more = ada.page, ada.button("Show more")
    ada.record()
    ada.open("tasks", task, "travel")
    expect(page.get_by_text("1,200 completed requests, 500 branches")).to_be_visible()
    nodes = page.locator(".node")
    expect(nodes).to_have_count(500)
    expect(nodes.first).to_contain_text("Message 1199.")
    expect(nodes.first).to_contain_text("Current")
    expect(nodes.last).to_contain_text("Message 700.")
    assert len([url for url in ada.requests if "/messages?" in url]) < 100
    more.click()
    expect(nodes).to_have_count(1000)
    ada.open("tasks", task, "trace")
    requests = page.locator(".waterfall")
    expect(requests).to_have_count(1000)
    ada.open("tasks", task, "trace", ids[0])
    expect(page.locator(".waterfall[data-wanted=true]")).to_be_in_viewport()
    expect(requests).to_have_count(1001)
    more.click()
    expect(requests).to_have_count(1200)
    expect(more).to_have_count(0)


def test_many_branches_leave_room_for_what_was_said(ada: Tab, service: ServiceThread) -> None:
    """Of those that have no lane the points are drawn, and the lines of the others are as long as ever."""
    task, _ = _imported(service, [None, *[0] * 40])
    tree = ada.open("tasks", task, "travel").page.locator(".tree")
    expect(tree.locator("circle")).to_have_count(41)
    expect(tree.locator("path")).to_have_count(12)
    box = tree.locator(".node-text").first.bounding_box()
    assert box
    assert box["width"] > 200
