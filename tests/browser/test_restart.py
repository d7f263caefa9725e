"""The service is killed while an answer streams, and started again."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from agents import ENVIRONMENT, SCRIPT, agent
from playwright.sync_api import expect
from tabs import Tabs

from tealagents.llm.offline import OfflineModel
from tealagents.testing.forking import Nursery
from tealagents.testing.service import ServiceProcess, agent_config
from tealagents.testing.waits import until


@pytest.fixture
def killable(nursery: Nursery, gate: Path, tmp_path: Path) -> Iterator[ServiceProcess]:
    # so short that the end is soon noticed, and longer than a busy machine keeps a process waiting
    spec = agent(limits={"lease_seconds": 6}, persistence=f"sqlite:///{tmp_path}/state.db")
    with OfflineModel(SCRIPT.replace("GATE", str(gate))) as model:
        env = {**ENVIRONMENT, "TA_BASE_URL": model.base_url, "TA_API_KEY": "key"}
        with nursery.service(agent_config(**spec), env) as running:
            yield running


def is_stored(text: str, store: Path) -> bool:
    """Whether the events of a stream hold a text. A page may have it before: they are stored in batches."""
    with closing(sqlite3.connect(store)) as db:
        found = db.execute(
            "SELECT 1 FROM records WHERE key LIKE 'events/%' AND instr(value, ?)", [text.encode()]
        )
        return found.fetchone() is not None


def test_the_page_says_what_happened_and_how_the_answer_ended(
    tabs: Tabs, killable: ServiceProcess, tmp_path: Path
) -> None:
    """While it is away the page says so; once it is back, that the answer was interrupted, with what
    there was of it; and the conversation continues."""
    tab = tabs.signed_in(f"{killable.url}/console/", "ada")
    tab.may_be_cut = True
    tab.expected = {503}
    tab.say("Please wait at the gate.")
    expect(tab.page.locator("[data-live] strong", has_text="see")).to_be_visible()
    until(lambda: is_stored("first.", tmp_path / "state.db"))
    killable.kill()
    expect(tab.text("The connection was lost")).to_be_visible()
    # the process is gone, so this would be untrue
    expect(tab.page.locator("[data-live]")).not_to_contain_text("still working")
    expect(tab.page.locator("[data-live] strong", has_text="see")).to_be_visible()
    tab.say("And now?")
    expect(tab.page.locator(".dock").get_by_role("alert")).to_contain_text("The service cannot be reached")
    killable.start()
    ended = tab.page.locator(".ended[data-status=Failed]")
    expect(ended).to_contain_text("The process that was answering stopped")
    expect(tab.page.locator(".answer", has_text="Let me see first.")).to_be_visible()
    expect(tab.page.get_by_role("alert")).to_have_count(0)
    tab.say("My name is Ada.")
    expect(tab.text("Nice to meet you, Ada.")).to_be_visible()
