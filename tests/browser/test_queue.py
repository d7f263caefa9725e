"""A conversation whose agent takes messages while it answers."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agents import ENVIRONMENT, SCRIPT, agent
from playwright.sync_api import Route, expect
from tabs import Tab, Tabs

from tealagents.testing.service import offline_service


def test_a_message_that_waits_hides_nothing(tabs: Tabs, tmp_path: Path) -> None:
    """The running answer stays, and its stop; what waits is listed with its text, and can be canceled."""
    gate = tmp_path / "open"
    script = SCRIPT.replace("GATE", str(gate))
    with offline_service(script, ENVIRONMENT, **agent(concurrency="enqueue")) as (service, _):
        ada = tabs.signed_in(f"{service.url}/console/", "ada")
        ada.say("wait at the gate")
        expect(ada.page.get_by_text("Let me see first.")).to_be_visible()
        ada.say("My name is Ada.")
        ada.say("hello")
        expect(ada.text("Waiting for its turn.")).to_have_count(2)
        expect(ada.page.get_by_text("Let me see first.")).to_be_visible()
        expect(ada.button("Stop the answer")).to_be_visible()
        ada.button("Cancel this message").last.click()
        expect(ada.text("Waiting for its turn.")).to_have_count(1)
        expect(ada.page.locator(".bubble").last).to_have_text("You said:My name is Ada.")
        gate.touch()
        expect(ada.text("The gate is open now.")).to_be_visible()
        expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
        expect(ada.text("Waiting for its turn.")).to_have_count(0)


def test_each_message_that_waits_is_canceled_although_another_one_is_being_canceled(
    tabs: Tabs, tmp_path: Path
) -> None:
    """And the answer can be stopped meanwhile. What was canceled is never shown as if it ran."""
    script = SCRIPT.replace("GATE", str(tmp_path / "open"))
    with offline_service(script, ENVIRONMENT, **agent(concurrency="enqueue")) as (service, _):
        ada = tabs.signed_in(f"{service.url}/console/", "ada")
        ada.say("wait at the gate")
        expect(ada.page.get_by_text("Let me see first.")).to_be_visible()
        ada.say("My name is Ada.")
        ada.say("hello")
        expect(ada.text("Waiting for its turn.")).to_have_count(2)
        held: list[Route] = []
        ada.page.route("**/cancel", lambda route: held.append(route))
        ada.page.evaluate(_NOTE_WHAT_RUNS)
        buttons = (*ada.button("Cancel this message").all(), ada.button("Stop the answer"))
        for number, button in enumerate(buttons, start=1):
            button.click()
            ada.held(held, number)
        # one after the other: when the answer has been stopped, what waits still begins
        answers = [route.fetch() for route in held]
        for route, answer in zip(held, answers, strict=True):
            route.fulfill(response=answer)
        expect(ada.text("Waiting for its turn.")).to_have_count(0)
        expect(ada.button("Stop the answer")).to_have_count(0)
        expect(ada.page.locator("[data-live]")).to_have_count(0)
        assert ada.page.evaluate("[...ran]") == ["wait at the gate"]
        ada.page.unroute("**/cancel")


#: the messages whose answers are shown as running, in the order in which they are
_NOTE_WHAT_RUNS = """() => {
  window.ran = new Set();
  const look = () => {
    const said = document.querySelector("[data-live] .plain")?.textContent;
    if (said) (ran.delete(said), ran.add(said));
  };
  new MutationObserver(look).observe(document.body, {subtree: true, childList: true});
  look();
}"""


def first_of(tab: Tab, calls: str | re.Pattern[str]) -> list[Route]:
    """Holds the first of such calls, and lets the others pass.

    Without `times=1`: when the last route of a page is gone, Chromium lets go of what was held.
    """
    held: list[Route] = []
    tab.page.route(calls, lambda route: route.fallback() if held else held.append(route))
    return held


@contextmanager
def interrupting(tabs: Tabs, gate: Path) -> Iterator[tuple[Tab, Path]]:
    """A conversation whose messages interrupt each other, and the file that lets an answer continue."""
    script = SCRIPT.replace("GATE", str(gate))
    with offline_service(script, ENVIRONMENT, **agent(concurrency="interrupt")) as (service, _):
        ada = tabs.signed_in(f"{service.url}/console/", "ada")
        ada.say("hello")
        expect(ada.page.locator(".turn-footer")).to_be_visible()
        yield ada, gate


def test_an_answer_stays_in_view_until_the_messages_are_read_that_hold_it(tabs: Tabs, tmp_path: Path) -> None:
    """However long that takes after the task is known to have ended: it disappeared meanwhile."""
    with interrupting(tabs, tmp_path / "open") as (ada, gate):
        ada.say("wait at the gate")
        ada.page.reload()
        expect(ada.page.locator("[data-live]")).to_contain_text("wait at the gate")
        held: list[Route] = []
        ada.page.route("**/messages?**", lambda route: held.append(route))
        gate.touch()
        ada.held(held)
        expect(ada.page.locator(".task-header")).to_contain_text("Completed")
        expect(ada.text("The gate is open now.")).to_be_visible()
        ada.page.unroute("**/messages?**")
        expect(ada.page.locator(".turn-footer")).to_have_count(2)
        expect(ada.page.locator("[data-live]")).to_have_count(0)


def test_a_request_that_was_interrupted_does_not_come_back(tabs: Tabs, tmp_path: Path) -> None:
    """Once the one that interrupted it has been answered."""
    with interrupting(tabs, tmp_path / "open") as (ada, gate):
        unheard = first_of(ada, "**/events")
        ada.say("wait at the gate")
        ada.held(unheard)
        ada.page.evaluate(_NOTE_WHAT_RUNS)
        ada.say("wait at it again")
        expect(ada.page.locator("[data-live]")).to_contain_text("wait at it again")
        gate.touch()
        expect(ada.text("The gate is open now.")).to_be_visible()
        expect(ada.page.locator("[data-live]")).to_have_count(0)
        assert ada.page.evaluate("[...ran]") == ["wait at the gate", "wait at it again"]


def test_an_interrupted_request_whose_end_is_not_heard_of_is_over_once_a_later_one_is_answered(
    tabs: Tabs, tmp_path: Path
) -> None:
    """The later one is answered before the page sees that it runs."""
    with interrupting(tabs, tmp_path / "open") as (ada, _):
        unheard = first_of(ada, "**/events")
        ada.say("wait at the gate")
        ada.held(unheard)
        held = first_of(ada, re.compile("/Tester/0.1$"))
        ada.say("My name is Ada.")
        sent = ada.held(held)
        answer = sent.fetch()
        events = f"{sent.request.url}/requests/{answer.json()['request_id']}/events"
        ada.page.request.get(events, headers={"authorization": sent.request.headers["authorization"]})
        sent.fulfill(response=answer)
        expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
        expect(ada.page.locator("[data-live]")).to_have_count(0)
        expect(ada.button("Send")).to_be_visible()


def test_an_interrupted_request_does_not_come_back_where_the_next_was_seen_before_it_was_answered(
    tabs: Tabs, tmp_path: Path
) -> None:
    """The page reads that the task runs the new message before it hears that this one was taken."""
    with interrupting(tabs, tmp_path / "open") as (ada, gate):
        unheard = first_of(ada, "**/events")
        ada.say("wait at the gate")
        ada.held(unheard)
        ada.page.evaluate(_NOTE_WHAT_RUNS)
        held = first_of(ada, re.compile("/Tester/0.1$"))
        ada.say("wait at it again")
        sent = ada.held(held)
        answer = sent.fetch()
        ada.look_again()
        expect(ada.page.locator("[data-live]")).to_contain_text("wait at it again")
        sent.fulfill(response=answer)
        expect(ada.button("Send")).to_have_count(0)
        gate.touch()
        expect(ada.text("The gate is open now.")).to_be_visible()
        expect(ada.page.locator("[data-live]")).to_have_count(0)
        assert ada.page.evaluate("[...ran]") == ["wait at the gate", "wait at it again"]
