"""What one has begun, and left for another view before the service answered."""

import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pytest
from agents import DOT, talk
from playwright.sync_api import FilePayload, Route, expect
from tabs import Tab, Tabs

from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until

#: a message, a fork, an import
_MAKES = re.compile(r"/Tester/0\.1(/tasks/([^/]+/fork|import))?$")


def _held(tab: Tab, begin: Callable[[], None]) -> Route:
    """The call that `begin` makes, which has not reached the service."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        if route.request.method == "POST":
            held.append(route)
        else:
            route.fallback()

    tab.page.route(_MAKES, hold)
    begin()
    return tab.held(held)


def _begin(tab: Tab, service: ServiceThread, what: str) -> None:
    (answer,) = talk(service, "hello")
    task = answer["task_id"]
    if what == "message":
        tab.open("new").say("My name is Ida.")
    elif what == "edit":
        tab.open("tasks", task).button("Edit and send again").click()
        tab.page.locator(".editing textarea").fill("My name is Ida.")
        tab.page.locator(".editing").get_by_role("button", name="Send").click()
    elif what == "fork":
        tab.open("tasks", task, "travel").button("Fork").last.click()
    else:
        tab.open("tasks", task)
        with service.client("ada") as client:
            exported = client.get(f"/tasks/{task}/export").content
            client.delete(f"/tasks/{task}").raise_for_status()
        file: FilePayload = {"name": "task.json", "mimeType": "application/json", "buffer": exported}
        tab.page.get_by_label("A task to import").set_input_files(file)


@pytest.mark.parametrize("what", ["message", "edit", "fork", "import"])
def test_who_writes_elsewhere_by_then_stays_there(ada: Tab, service: ServiceThread, what: str) -> None:
    """A notice leads to the conversation that was made, and nothing that is written gets into it."""
    (there,) = talk(service, "My name is Ada.")
    ada.expected = {404}  # what is imported was deleted before
    held = _held(ada, lambda: _begin(ada, service, what))
    ada.open("tasks", there["task_id"])
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
    field = ada.page.get_by_role("textbox", name="Message", exact=True)
    field.fill("Half a")
    held.continue_()
    made = ada.page.locator(".notice").get_by_role("link", name="Open it")
    expect(made).to_be_visible()
    field.press_sequentially(" thought")
    expect(field).to_have_value("Half a thought")
    assert ada.page.url.endswith(there["task_id"])
    field.fill("")
    made.click()
    expect(ada.page.get_by_text("Nice to meet you, Ada.")).to_have_count(0)
    expect(ada.page.locator(".answer").first).to_be_visible()


def test_a_message_that_is_refused_after_one_has_left_it_is_mentioned(
    ada: Tab, service: ServiceThread
) -> None:
    """It is still where it was written."""
    (here,), (there,) = talk(service, "hello"), talk(service, "My name is Ada.")
    ada.expected = {429}
    ada.open("tasks", here["task_id"])
    held = _held(ada, lambda: ada.say("Important."))
    ada.open("tasks", there["task_id"])
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
    held.fulfill(status=429, json=_OVERLOADED, headers={"retry-after": "600"})
    expect(ada.page.locator(".notice")).to_have_text(
        "Your message is still where you wrote it. Too many requests."
    )
    field = ada.open("tasks", here["task_id"]).page.get_by_role("textbox", name="Message", exact=True)
    expect(field).to_have_value("Important.")
    field.fill("")


@pytest.mark.parametrize("picture", [False, True])
def test_a_message_that_arrives_once_one_is_back_is_not_there_to_be_sent_again(
    ada: Tab, service: ServiceThread, picture: bool
) -> None:
    """Nor is its picture, also where the view is not drawn anew before."""
    (here,), (there,) = talk(service, "hello"), talk(service, "My name is Ada.")
    ada.open("tasks", here["task_id"])
    if picture:
        ada.page.get_by_label("Images", exact=True).set_input_files(_PICTURE)
        expect(ada.page.get_by_label("Images to send").get_by_role("img")).to_have_count(1)
    held = _held(ada, lambda: ada.say("My name is Ida."))
    ada.open("tasks", there["task_id"])
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
    field = ada.open("tasks", here["task_id"]).page.get_by_role("textbox", name="Message", exact=True)
    expect(field).to_have_value("My name is Ida.")
    stale: list[Route] = []
    ada.page.route("**/tasks/*", lambda route: stale.append(route))
    held.continue_()
    until(lambda: _asked(service, here["task_id"]) == ["hello", "My name is Ida."])
    field.press("Enter")
    expect(field).to_have_value("")
    ada.page.unroute("**/tasks/*")
    for route in stale:
        route.continue_()
    expect(ada.page.locator(".answer")).to_have_count(2)
    expect(ada.page.get_by_label("Images to send")).to_have_count(0)
    assert _asked(service, here["task_id"]) == ["hello", "My name is Ida."]


_PICTURE: FilePayload = {
    "name": "dot.png",
    "mimeType": "image/png",
    "buffer": b64decode(DOT),
}


def _asked(service: ServiceThread, task: str) -> list[str]:
    """What the user said in a task."""
    with service.client("ada") as client:
        items = client.get(f"/tasks/{task}/messages").raise_for_status().json()["items"]
    return [each["items"][0]["content"] for each in items if each["role"] == "user"]


_OVERLOADED = {"code": "overloaded", "detail": "Too many requests."}


def _tasks(service: ServiceThread, user: str) -> list[dict[str, Any]]:
    with service.client(user) as client:
        found: list[dict[str, Any]] = client.get("/tasks").raise_for_status().json()["items"]
        return found


def test_edits_that_are_refused_share_one_fork_which_has_their_title_once_one_is_taken(
    tabs: Tabs, service: ServiceThread
) -> None:
    """Who gives up leaves none."""
    *_, last = talk(service, "hello", "My name is Ida.", user="lea", metadata={"title": "Names"})
    lea = tabs.signed_in(f"{service.url}/console/", "lea")
    lea.expected = {429}
    lea.open("tasks", last["task_id"])
    editing = lea.page.locator(".editing")

    def refused(*texts: str) -> None:
        headers = {"retry-after": "600"}
        lea.page.route(
            service.url, lambda route: route.fulfill(status=429, json=_OVERLOADED, headers=headers)
        )
        lea.button("Edit and send again").last.click()
        for text in texts:
            editing.locator("textarea").fill(text)
            editing.get_by_role("button", name="Send").click()
            expect(editing.get_by_role("alert")).to_contain_text("Too many requests.")
        lea.page.unroute(service.url)

    refused("My name is Eva.", "My name is Uma.")
    assert [task["metadata"].get("title") for task in _tasks(service, "lea")] == ["Names", "Names"]
    editing.get_by_role("button", name="Cancel").click()
    until(lambda: len(_tasks(service, "lea")) == 1)
    refused("My name is Eva.")
    editing.locator("textarea").fill("My name is Lea.")
    editing.get_by_role("button", name="Send").click()
    expect(lea.text("Nice to meet you, Lea.")).to_be_visible()
    expect(lea.page.locator(".task-header h2")).to_have_text("My name is Lea.")
    assert {task["metadata"].get("title") for task in _tasks(service, "lea")} == {"Names", "My name is Lea."}
