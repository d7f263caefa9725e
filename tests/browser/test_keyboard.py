"""The keyboard keeps its place: whatever is done, the next key does not begin at the top of the page."""

from pathlib import Path

import pytest
from agents import talk
from playwright.sync_api import Locator, expect
from tabs import Tab, Tabs

from tealagents.testing.service import ServiceThread


@pytest.fixture(autouse=True)
def closed(gate: Path) -> None:
    gate.unlink(missing_ok=True)


def _press(found: Locator) -> None:
    found.focus()
    found.press("Enter")


def _message(tab: Tab) -> Locator:
    return tab.page.get_by_role("textbox", name="Message", exact=True).last


def test_from_signing_in_to_the_second_message(tabs: Tabs, service: ServiceThread) -> None:
    """One types on: the field is where the next message is written."""
    tab = tabs.open(f"{service.url}/console/")
    tab.page.goto(tab.console)
    expect(tab.page.get_by_label("Your name")).to_be_focused()
    tab.page.keyboard.type("max")
    tab.page.keyboard.press("Enter")
    expect(_message(tab)).to_be_focused()
    tab.page.keyboard.type("My name is Max.")
    tab.page.keyboard.press("Enter")
    expect(tab.text("Nice to meet you, Max.")).to_be_visible()
    expect(_message(tab)).to_be_focused()
    _message(tab).fill("hello")
    _press(tab.button("Send"))
    expect(tab.page.locator(".turn-footer")).to_have_count(2)
    expect(_message(tab)).to_be_focused()
    _press(tab.button("Sign out"))
    expect(tab.page.get_by_label("Your name")).to_be_focused()


def test_in_a_narrow_window(tabs: Tabs, service: ServiceThread) -> None:
    """What has the focus is hidden with the list: one goes on in the conversation, and back where one was."""
    talk(service, "My name is Nora.", "hello", user="nora")
    tab = tabs.open(f"{service.url}/console/", viewport={"width": 640, "height": 450})
    tab.page.goto(tab.console)
    tab.page.get_by_label("Your name").fill("nora")
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("navigation", name="Console")).to_be_focused()
    expect(tab.link("Skip to the content")).to_have_count(0)
    conversation = tab.page.locator(".task", has_text="My name is Nora.")
    _press(conversation)
    expect(_message(tab)).to_be_focused()
    _press(tab.link("Conversations"))
    expect(conversation).to_be_focused()
    _press(tab.page.get_by_role("link", name="Approvals"))
    expect(tab.page.get_by_role("main")).to_be_focused()


def test_a_phone_does_not_cover_the_answer_with_its_keyboard(tabs: Tabs, service: ServiceThread) -> None:
    """Who taps has to tap the field to write."""
    phone = tabs.signed_in(f"{service.url}/console/", "ada", has_touch=True, is_mobile=True).open("new")
    _message(phone).fill("My name is Ada.")
    phone.button("Send").tap()
    expect(phone.text("Nice to meet you, Ada.")).to_be_visible()
    expect(_message(phone)).not_to_be_focused()


def test_the_enter_that_ends_a_composition_sends_nothing(ada: Tab) -> None:
    """Safari has ended it by then: what is left to know the key by is its code."""
    _message(ada).fill("My name")
    ended = {"key": "Enter", "keyCode": 229, "bubbles": True, "cancelable": True}
    _message(ada).evaluate("(field, how) => field.dispatchEvent(new KeyboardEvent('keydown', how))", ended)
    _message(ada).press_sequentially(" is Ada.")
    _message(ada).press("Enter")
    expect(ada.page.locator(".bubble")).to_have_text("You said:My name is Ada.")


def test_an_answer_is_stopped(ada: Tab) -> None:
    """What is said instead is written at once."""
    ada.say("Please wait at the gate.")
    expect(ada.page.locator("[data-live] strong")).to_be_visible()
    _press(ada.button("Stop the answer"))
    expect(ada.text("Stopped")).to_be_visible()
    expect(_message(ada)).to_be_focused()


def test_a_message_is_edited(ada: Tab, service: ServiceThread) -> None:
    """The text is changed at once, and who gives up is where they were."""
    first, _ = talk(service, "My name is Ada.", "hello")
    ada.open("tasks", first["task_id"])
    edit = ada.button("Edit and send again").last
    _press(edit)
    expect(ada.page.locator(".editing textarea")).to_be_focused()
    _press(ada.button("Cancel"))
    expect(edit).to_be_focused()
    _press(edit)
    ada.page.keyboard.type("What is my name?")
    ada.page.keyboard.press("Enter")
    expect(ada.page.locator(".origin")).to_be_visible()
    expect(_message(ada)).to_be_focused()


def test_a_call_is_decided(ada: Tab, service: ServiceThread) -> None:
    """Where the buttons were is the pause; after it, the conversation."""
    (pause,) = talk(service, 'call Files-delete {"path": "notes.txt"}')
    ada.open("tasks", pause["task_id"])
    _press(ada.button("Approve"))
    expect(ada.text("Files-delete said: notes.txt is deleted")).to_be_visible()
    expect(ada.page.locator("[data-live]")).to_have_count(0)
    expect(ada.page.get_by_role("region", name="Messages")).to_be_focused()
    talk(service, 'call Files-delete {"path": "focus.txt"}')
    card = ada.open("approvals").page.locator(".card", has_text="focus.txt")
    _press(card.get_by_role("button", name="Approve"))
    expect(card.get_by_role("status")).to_contain_text("Completed")
    expect(card.locator(":focus")).to_have_count(1)


def test_an_argument_is_added_and_left_out(ada: Tab, service: ServiceThread) -> None:
    """One writes in the new field at once; where it was is the button that adds it again."""
    (pause,) = talk(service, 'call Files-rotate {"path": "log"}')
    ada.open("tasks", pause["task_id"])
    _press(ada.button("Edit the arguments"))
    for name in ("keep", "how", "quietly"):
        _press(ada.button(f"Add {name}"))
        field = ada.page.locator(".fields").get_by_label(name, exact=True)
        expect(field).to_be_focused()
        _press(ada.button(f"Leave out {name}"))
        expect(ada.button(f"Add {name}")).to_be_focused()
    ada.button("Reject").click()


def test_the_whole_list_is_shown(tabs: Tabs, service: ServiceThread) -> None:
    """The button goes with its last use, by the mouse, too: one goes on in the list."""
    for n in range(3):
        talk(service, f"number {n}", user="pia")
    pia = tabs.signed_in(f"{service.url}/console/", "pia")
    pia.page.route(
        "**/tasks?**", lambda route: route.continue_(url=route.request.url.replace("limit=50", "limit=1"))
    )
    pia.page.reload()
    for n in (2, 3):
        pia.button("Older conversations").click()
        expect(pia.page.locator(".tasks .title")).to_have_count(n)
    expect(pia.button("Older conversations")).to_have_count(0)
    expect(pia.page.locator("body")).not_to_be_focused()


def test_a_dialog_gives_the_focus_back(ada: Tab, service: ServiceThread) -> None:
    """To the menu that it was opened from; and so does the menu itself."""
    (answer,) = talk(service, "hello")
    ada.open("tasks", answer["task_id"])
    menu = ada.page.locator("summary[aria-label=Actions]")
    _press(menu)
    ada.page.keyboard.press("Tab")
    ada.page.keyboard.press("Escape")
    expect(menu).to_be_focused()
    _press(menu)
    _press(ada.button("Rename …"))
    expect(ada.page.get_by_label("Title", exact=True)).to_be_focused()
    ada.page.keyboard.press("Escape")
    expect(ada.page.get_by_role("dialog")).to_have_count(0)
    expect(menu).to_be_focused()


def test_a_menu_that_is_left_closes(ada: Tab, service: ServiceThread) -> None:
    """With the last Tab, and with the first one back: what has the focus then is seen."""
    (answer,) = talk(service, "hello")
    ada.open("tasks", answer["task_id"])
    menu = ada.page.locator("summary[aria-label=Actions]")
    for key, steps, place in (("Tab", 5, "Conversation"), ("Shift+Tab", 1, None)):
        _press(menu)
        expect(ada.button("Export")).to_be_visible()
        for _ in range(steps):
            ada.page.keyboard.press(key)
        if place:
            expect(ada.link(place)).to_be_focused()
        expect(menu).not_to_be_focused()
        expect(ada.button("Export")).to_be_hidden()


def test_a_point_is_gone_back_to(ada: Tab, service: ServiceThread) -> None:
    """The button is gone, its row is not."""
    first, _ = talk(service, "My name is Ada.", "hello")
    node = ada.open("tasks", first["task_id"], "travel").page.locator(".node", has_text="My name is Ada.")
    _press(node.get_by_role("button", name="Roll back"))
    expect(node).to_contain_text("Current")
    expect(node).to_be_focused()
