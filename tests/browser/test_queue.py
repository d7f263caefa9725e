"""A conversation whose agent takes messages while it answers."""

from pathlib import Path

from agents import ENVIRONMENT, SCRIPT, agent
from playwright.sync_api import expect
from tabs import Tabs

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
