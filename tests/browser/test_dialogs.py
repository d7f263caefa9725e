"""What is asked before something is done: in dialogs of the page, with the keyboard, too."""

from functools import partial

import pytest
from agents import talk
from playwright.sync_api import FilePayload, Locator, Route, expect
from tabs import Tab

from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until


@pytest.fixture
def ada(ada: Tab) -> Tab:
    """A page that may look up what a test deletes, until its list has been read again."""
    ada.expected = {404}
    return ada


@pytest.fixture
def session(service: ServiceThread) -> str:
    """A session of two conversations; its id."""
    with service.client("ada") as client:
        body = {"items": [{"content_type": "text", "content": "My name is Ada."}]}
        first = client.post("", json=body).raise_for_status().json()
        client.post("", json={**body, "session_id": first["session_id"]}).raise_for_status()
    return str(first["session_id"])


def _breaks(route: Route) -> None:
    """Fails a change; what is read again meanwhile passes."""
    if route.request.method == "GET":
        route.fallback()
    else:
        route.fulfill(status=500, json={"code": "internal_error", "detail": "It broke."})


def _asked(tab: Tab, menu: str, action: str) -> Locator:
    tab.page.locator(f"summary[aria-label='{menu}']").click()
    tab.button(action).click()
    return tab.page.get_by_role("dialog")


def _asked_to_delete(tab: Tab, session: str) -> Locator:
    """The dialog of this session, once the list has it: until then it may show another test's."""
    tab.look_again()
    listed = tab.page.get_by_role("region", name=f"Session {session[-8:]}")
    listed.locator("summary[aria-label=Session]").click()
    listed.get_by_role("button", name="Delete session").click()
    return tab.page.get_by_role("dialog")


def test_a_session_is_deleted_after_a_question(ada: Tab, service: ServiceThread, session: str) -> None:
    """Escape keeps it, and so does the button that has the focus; the other one deletes all of it."""
    dialog = _asked_to_delete(ada, session)
    expect(dialog).to_contain_text("Its 2 conversations will be erased")
    ada.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    _asked_to_delete(ada, session)
    expect(dialog.get_by_role("button", name="Keep it")).to_be_focused()
    ada.page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    dialog = _asked_to_delete(ada, session)
    delete = dialog.get_by_role("button", name="Delete", exact=True)
    expect(delete).to_be_enabled()
    delete.hover()
    # from green to red is the second of the three numbers
    mixed = delete.evaluate("button => getComputedStyle(button).backgroundColor")
    assert float(mixed.removeprefix("oklab(").split()[1]) > 0
    delete.click()
    expect(ada.text("The session is deleted.")).to_be_visible()
    with service.client("ada") as client:
        assert client.get(f"/sessions/{session}").status_code == 404


def test_deleting_a_session_counts_what_the_list_does_not_show(
    ada: Tab, service: ServiceThread, session: str
) -> None:
    """A filter leaves conversations out of the list, and the deletion takes them too."""
    with service.client("ada") as client:
        for fruit in ("apple", "apple", "pear"):
            body = {"items": [{"content_type": "text", "content": "hello"}], "metadata": {"title": fruit}}
            client.post("", json={**body, "session_id": session}).raise_for_status()
    ada.page.get_by_role("searchbox").fill("apple")
    expect(ada.page.locator(".task")).to_have_count(2)
    dialog = _asked_to_delete(ada, session)
    expect(dialog).to_contain_text("Its 5 conversations (3 of them not in the list now) will be erased")
    ada.page.keyboard.press("Escape")
    ada.page.get_by_role("searchbox").fill("")


@pytest.mark.parametrize("shown", ["listed", "filtered out"])
def test_who_deletes_the_session_that_they_look_at_is_led_to_the_first_page(
    ada: Tab, service: ServiceThread, session: str, shown: str
) -> None:
    """As by deleting the conversation, also where the list does not show it."""
    with service.client("ada") as client:
        task = client.get("/tasks", params={"session_id": session}).json()["items"][0]["task_id"]
        for _ in range(2):
            body = {"items": [{"content_type": "text", "content": "hello"}], "metadata": {"title": "apple"}}
            client.post("", json={**body, "session_id": session}).raise_for_status()
    ada.open("tasks", task)
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
    ada.look_again()
    expect(ada.page.locator(".session").first).to_have_accessible_name(f"Session {session[-8:]}")
    if shown == "filtered out":
        ada.page.get_by_role("searchbox").fill("apple")
        expect(ada.page.locator(".task[aria-current]")).to_have_count(0)
    dialog = _asked_to_delete(ada, session)
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(ada.text("The session is deleted.")).to_be_visible()
    expect(ada.page.get_by_placeholder("Say something to begin")).to_be_visible()
    ada.page.get_by_role("searchbox").fill("")


@pytest.mark.parametrize("text", ["[]", '{"name": "tealagents"}', "title,team"])
def test_only_an_exported_conversation_is_imported(ada: Tab, text: str) -> None:
    """Any other file is refused in words about the file, not about the request."""
    file: FilePayload = {"name": "other.json", "mimeType": "application/json", "buffer": text.encode()}
    ada.page.get_by_label("A task to import").set_input_files(file)
    expect(ada.page.locator(".notice")).to_contain_text("This is not an exported conversation.")


def test_the_way_back_does_not_lead_to_what_was_deleted(ada: Tab, service: ServiceThread) -> None:
    """It leads to what was looked at before."""
    (answer,) = talk(service, "hello")
    ada.open("approvals").open("tasks", answer["task_id"])
    _asked(ada, "Actions", "Delete …").get_by_role("button", name="Delete", exact=True).click()
    expect(ada.page.get_by_placeholder("Say something to begin")).to_be_visible()
    ada.page.go_back()
    expect(ada.page.get_by_role("heading", name="Approvals")).to_be_visible()


def test_the_way_back_to_another_view_of_what_was_deleted_says_what_to_do(
    ada: Tab, service: ServiceThread
) -> None:
    """Only the last view is left out of the way."""
    ada.expected = {404}
    (answer,) = talk(service, "hello")
    ada.open("tasks", answer["task_id"]).link("Details").click()
    expect(ada.page.get_by_label("Metadata as JSON")).to_be_visible()
    _asked(ada, "Actions", "Delete …").get_by_role("button", name="Delete", exact=True).click()
    expect(ada.page.get_by_placeholder("Say something to begin")).to_be_visible()
    ada.page.go_back()
    expect(ada.page.get_by_role("alert")).to_contain_text("Not found")
    expect(ada.page.get_by_role("alert")).to_contain_text(
        "It may have been deleted or expired. Choose a conversation from the list."
    )


def test_the_way_back_does_not_lead_to_a_deleted_session(
    ada: Tab, service: ServiceThread, session: str
) -> None:
    """When one of its conversations was looked at."""
    with service.client("ada") as client:
        listed = client.get("/tasks", params={"session_id": session}).raise_for_status().json()
    ada.open("approvals").open("tasks", listed["items"][0]["task_id"])
    _asked_to_delete(ada, session).get_by_role("button", name="Delete", exact=True).click()
    expect(ada.page.get_by_placeholder("Say something to begin")).to_be_visible()
    ada.page.go_back()
    expect(ada.page.get_by_role("heading", name="Approvals")).to_be_visible()


#: at what time a notice is shown or goes, with its text
_NOTE_WHEN_IT_CHANGES = """(notice) => {
  window.changes = [];
  const seen = new MutationObserver(() => changes.push([Date.now(), notice.textContent]));
  seen.observe(notice, {subtree: true, childList: true, attributeFilter: ["data-shown"]});
}"""


def _shown(tab: Tab, times: int) -> bool:
    return bool(tab.page.evaluate("changes.filter(([, text]) => text).length") == times)


def test_the_same_notice_again_is_shown_as_long_as_the_first(ada: Tab, service: ServiceThread) -> None:
    """The time of the first one is not the second one's."""
    ada.take_time()
    notice = ada.page.locator(".notice")
    notice.evaluate(_NOTE_WHEN_IT_CHANGES)
    for shown in (1, 2):
        (answer,) = talk(service, "hello")
        ada.open("tasks", answer["task_id"])
        _asked(ada, "Actions", "Delete …").get_by_role("button", name="Delete", exact=True).click()
        expect(ada.page.get_by_placeholder("Say something to begin")).to_be_visible()
        until(partial(_shown, ada, shown))
        ada.page.clock.run_for(4_000)
    ada.page.clock.run_for(4_000)
    expect(notice).to_have_attribute("data-shown", "false")
    # that clock also goes by itself: how long it was is known to the page only
    (second, said), (end, _) = ada.page.evaluate("changes.slice(-2)")
    assert said == "The conversation is deleted."
    assert end - second >= 6_000


def test_a_notice_stays_while_one_points_at_it_or_has_the_focus_in_it(
    ada: Tab, service: ServiceThread
) -> None:
    """Who reads it, or is about to follow a link in it, is not hurried."""
    page, notice = ada.page, ada.page.locator(".notice")
    ada.take_time()
    (answer,) = talk(service, "hello")
    ada.open("tasks", answer["task_id"])
    _asked(ada, "Actions", "Delete …").get_by_role("button", name="Delete", exact=True).click()
    expect(notice).to_have_attribute("data-shown", "true")
    notice.hover()
    page.clock.run_for(60_000)
    expect(notice).to_have_attribute("data-shown", "true")
    notice.evaluate("notice => { notice.tabIndex = -1; notice.focus(); }")
    page.mouse.move(0, 0)
    page.clock.run_for(60_000)
    expect(notice).to_have_attribute("data-shown", "true")
    notice.evaluate("notice => { notice.removeAttribute('tabindex'); notice.blur(); }")
    page.clock.run_for(60_000)
    expect(notice).to_have_attribute("data-shown", "false")


def test_a_conversation_is_opened_by_its_id(ada: Tab, service: ServiceThread, session: str) -> None:
    """The id is typed into a dialog."""
    with service.client("ada") as client:
        task = client.get("/tasks", params={"session_id": session}).json()["items"][0]["task_id"]
    dialog = _asked(ada, "More", "Open by id …")
    field = dialog.get_by_role("textbox")
    expect(field).to_be_focused()
    field.fill(f" {task} ")
    ada.page.keyboard.press("Enter")
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
    expect(dialog).to_have_count(0)


@pytest.mark.parametrize("view", [None, "trace"])
def test_a_conversation_is_opened_by_its_link(
    ada: Tab, service: ServiceThread, session: str, view: str | None
) -> None:
    """One from the address bar is what is at hand."""
    with service.client("ada") as client:
        task = client.get("/tasks", params={"session_id": session}).json()["items"][0]["task_id"]
    dialog = _asked(ada, "More", "Open by id …")
    dialog.get_by_role("textbox").fill("/".join(filter(None, (f"{ada.console}#/tasks/{task}", view))))
    ada.page.keyboard.press("Enter")
    shown = ada.text("Nice to meet you, Ada.") if view is None else ada.page.locator(".waterfall")
    expect(shown).to_be_visible()


def test_a_dialog_closes_with_the_view_that_it_was_opened_in(ada: Tab, service: ServiceThread) -> None:
    """The browser's way back leads to another one, which a dialog would cover."""
    (answer,) = talk(service, "hello")
    ada.open("tasks", answer["task_id"])
    ada.link("Trace").click()
    dialog = _asked(ada, "Actions", "Rename …")
    expect(dialog).to_be_visible()
    ada.page.go_back()
    expect(ada.link("Conversation")).to_have_attribute("aria-current", "page")
    expect(dialog).to_have_count(0)
    expect(_asked(ada, "Actions", "Rename …")).to_be_visible()
    ada.page.keyboard.press("Escape")


def test_a_failure_is_said_in_the_dialog(ada: Tab, service: ServiceThread) -> None:
    """A notice would lie behind it."""
    (answer,) = talk(service, "hello")
    ada.expected |= {500}
    ada.open("tasks", answer["task_id"])
    dialog = _asked(ada, "Actions", "Rename …")
    ada.page.route("**/tasks/*", _breaks)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("It broke.")
    ada.page.unroute("**/tasks/*")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)


def test_a_conversation_does_not_expire_in_the_past(ada: Tab, service: ServiceThread) -> None:
    """A mistyped year would make it unreachable at once."""
    (answer,) = talk(service, "hello")
    ada.open("tasks", answer["task_id"], "details")
    ada.page.get_by_label("Expires at").fill("2020-01-01T00:00")
    expect(ada.text("This time is past. To erase the conversation now, delete it.")).to_be_visible()
    expect(ada.button("Set")).to_be_disabled()
    ada.page.get_by_label("Expires at").fill("2999-01-01T00:00")
    ada.button("Set").click()
    expect(ada.page.get_by_text("The conversation expires")).to_be_visible()


def test_the_year_in_which_a_conversation_expires_has_four_digits(ada: Tab, service: ServiceThread) -> None:
    """One who types on comes to the time, not to a year that no clock reaches."""
    (answer,) = talk(service, "hello")
    field = ada.open("tasks", answer["task_id"], "details").page.get_by_label("Expires at")
    field.press_sequentially("123120301000AM")
    expect(field).to_have_value("2030-12-31T10:00")
