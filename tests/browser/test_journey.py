"""What a new user does with the console, from the first message to two branches side by side."""

from pathlib import Path

import pytest
from playwright.sync_api import expect
from tabs import Tab, Tabs

from tealagents.testing.service import ServiceThread


@pytest.fixture(autouse=True)
def closed(gate: Path) -> None:
    gate.unlink(missing_ok=True)


def test_from_the_first_message_to_two_branches(tabs: Tabs, gate: Path, service: ServiceThread) -> None:
    """Send, see it stream, reload in the middle, approve a call, look at its waterfall, edit an earlier
    message and compare the two branches."""
    ada = tabs.signed_in(f"{service.url}/console/", "ada", recorded=True)
    page = ada.page
    ada.say("My name is Ada.")
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
    turns = page.locator(".turn-footer")
    expect(turns).to_have_count(1)  # until a request has ended, the next message is refused

    ada.say("Please wait at the first gate.")
    expect(page.locator(".answer strong", has_text="see")).to_be_visible()
    page.reload()
    expect(page.locator("[data-live] strong", has_text="see")).to_be_visible()
    expect(ada.text("Please wait at the first gate.")).to_be_visible()
    expect(page.locator("[data-live] details", has_text="Gate-wait")).to_contain_text("no result yet")
    gate.touch()
    expect(ada.text("The gate is open now.")).to_be_visible()
    expect(turns).to_have_count(2)

    ada.say('call Files-delete {"path": "notes.txt"}')
    pause = page.get_by_role("region", name="A decision is needed")
    expect(pause).to_contain_text('"path": "notes.txt"')
    expect(pause.get_by_role("timer")).to_contain_text("23 h 59 min left")
    ada.button("Edit the arguments").click()
    pause.get_by_label("path", exact=False).first.fill("draft.md")
    ada.button("Approve").click()
    expect(ada.text("Files-delete said: draft.md is deleted")).to_be_visible()

    ada.link("Trace").click()
    newest = page.locator(".waterfall").first
    expect(newest.locator(".step")).to_have_count(5)
    expect(newest).to_contain_text("Approval requested")
    newest.get_by_role("button", name="Files-delete").click()
    expect(newest).to_contain_text('"path": "draft.md"')

    ada.link("Conversation").click()
    before = page.url
    said = page.locator(".said", has_text="Please wait at the first gate.")
    said.hover()
    said.get_by_role("button", name="Edit and send again").click()
    field = said.get_by_role("textbox", name="Message")
    field.fill("What is my name?")
    field.press("Enter")
    expect(ada.text("Your name is Ada.")).to_be_visible()
    assert page.url != before

    ada.link("Compare the two").click()
    expect(page.get_by_text("1 request in common")).to_be_visible()
    one, other = page.locator(".branch").all()
    expect(one).to_contain_text("The gate is open now.")
    expect(one).not_to_contain_text("Your name is Ada.")
    expect(other).to_contain_text("Your name is Ada.")
    assert ada.strangers() == []
    assert service.log() == ""


def test_a_second_tab_follows_live(tabs: Tabs, ada: Tab, gate: Path) -> None:
    """Another tab of the same user shows the answer while it comes, and its end."""
    ada.say("Please wait at the second gate.")
    expect(ada.page.locator("[data-live] strong")).to_be_visible()
    other = tabs.signed_in(ada.console, "ada")
    other.page.goto(ada.page.url)
    expect(other.page.locator("[data-live] strong", has_text="see")).to_be_visible()
    gate.touch()
    for tab in (ada, other):
        expect(tab.text("The gate is open now.")).to_be_visible()
        expect(tab.page.locator("[data-live]")).to_have_count(0)


def test_nothing_moves_when_an_answer_ends(ada: Tab, gate: Path) -> None:
    """It stands where it stood, and a call that was unfolded stays so."""
    ada.say("Please wait at the gate.")
    call = ada.page.locator(".call")
    call.locator("summary").click()
    expect(call).to_have_attribute("open", "")
    before = call.bounding_box()
    gate.touch()
    expect(ada.page.locator(".turn-footer")).to_be_visible()
    expect(call).to_have_attribute("open", "")
    after = call.bounding_box()
    assert before
    assert after
    assert after["y"] == before["y"]


def test_one_who_scrolls_up_a_little_stays_there(
    ada: Tab, gate: Path, request: pytest.FixtureRequest
) -> None:
    """The answer that comes does not lead back to its end."""
    gate.unlink(missing_ok=True)
    ada.page.set_viewport_size({"width": 1180, "height": 420})
    request.addfinalizer(lambda: ada.page.set_viewport_size({"width": 1180, "height": 740}))
    ada.say("\n".join([*"abcdefghijklmnopqrstuvwxyz", "Please wait at the gate."]))
    expect(ada.page.locator("[data-live] .call")).to_be_in_viewport()
    box = ada.page.get_by_role("region", name="Messages")
    top = "box => box.scrollTop"
    at_end = box.evaluate(top)
    box.hover()
    ada.page.mouse.wheel(0, -20)
    ada.page.wait_for_function("(end) => document.querySelector('.scroller').scrollTop < end", arg=at_end)
    left = box.evaluate(top)
    gate.touch()
    expect(ada.text("The gate is open now.")).to_be_attached()
    expect(ada.page.locator("[data-live]")).to_have_count(0)
    assert box.evaluate(top) <= left  # what was thought is folded by then


def test_an_answer_continues_after_the_network_was_gone(ada: Tab, gate: Path) -> None:
    """Offline the page says so and keeps what it has; online again, it continues from there."""
    ada.may_be_cut = True
    ada.say("Please wait at the third gate.")
    expect(ada.page.locator("[data-live] strong")).to_be_visible()
    ada.context.set_offline(True)
    expect(ada.page.get_by_text("The service cannot be reached").first).to_be_visible()
    expect(ada.page.locator("[data-live] strong", has_text="see")).to_be_visible()
    gate.touch()
    ada.context.set_offline(False)
    expect(ada.text("The gate is open now.")).to_be_visible()
    expect(ada.page.locator(".answer strong", has_text="see")).to_have_count(1)


def test_an_answer_is_stopped_whatever_is_typed(ada: Tab, gate: Path) -> None:
    """The next message, begun meanwhile, does not take the button away; once the answer has ended, it can be
    sent, and nothing says any longer that it cannot. The second click of two on Send does not stop it."""
    ada.expected = {409}
    for stopped in (False, True):
        gate.unlink(missing_ok=True)
        ada.open("new")
        ada.say("Please wait at the fifth gate.")
        expect(ada.page.locator("[data-live] strong")).to_be_visible()
        ada.say("My name is Ada.")
        busy = ada.page.get_by_role("main").get_by_role("alert")
        expect(busy).to_contain_text("The agent is still answering")
        if stopped:
            ada.button("Stop the answer").click()
            expect(ada.text("Stopped")).to_be_visible()
        else:
            ada.button("Stop the answer").dispatch_event("click", {"detail": 2})
            gate.touch()
            expect(ada.text("The gate is open now.")).to_be_visible()
        expect(busy).to_have_count(0)
        ada.button("Send").click()
        expect(ada.text("Nice to meet you, Ada.")).to_be_visible()


def test_an_answer_is_stopped(ada: Tab) -> None:
    """Stopping ends the request; what had been said stays, marked as stopped. Reduced motion is none."""
    ada.say("Please wait at the fourth gate.")
    expect(ada.page.locator("[data-live] strong")).to_be_visible()
    expect(ada.page.locator(".status[data-status=Running]").first).to_be_visible()
    assert ada.page.evaluate("document.getAnimations().length") == 0
    ada.button("Stop the answer").click()
    expect(ada.text("Stopped")).to_be_visible()
    expect(ada.page.locator(".answer", has_text="Let me see first.")).to_be_visible()
    ada.say("My name is Ada.")
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
