"""A console that is served by a real service, and looked at in Debian's Chromium."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from tabs import CHROMIUM, Tab, Tabs, chromium

from tealagents.testing.service import ServiceThread, offline_service

HERE = Path(__file__).parent

#: what the offline model says besides what it says by itself
SCRIPT = """
rules:
  - when: {text: wait at}
    reply:
      text: "Let me **see** first."
      tool_calls: [{name: Gate-wait, arguments: '{"path": "GATE"}'}]
  - {when: {tool_result: true, result_of: Gate-wait}, reply: The gate is open now.}
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM is not None:
        return
    if os.environ.get("REQUIRE_BACKENDS") == "1":
        pytest.fail("REQUIRE_BACKENDS=1, but there is no Chromium: apt-get install chromium", pytrace=False)
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="there is no Chromium: apt-get install chromium"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that lets an answer go on once it is there."""
    return tmp_path_factory.mktemp("gate") / "open"


def agent(**spec: Any) -> dict[str, Any]:
    return {
        "agent": {"plugins": ["Files", "Gate"]},
        "console": {"enabled": True},
        "auth": {"provider": "mock", "options": {"approver_users": ["carol"], "auditor_users": ["dave"]}},
        **spec,
    }


ENVIRONMENT = {
    "TA_PLUGIN_MODULE": str(HERE / "custom_plugins.py"),
    "TA_PLUGIN_CATALOG_FILE": str(HERE / "catalogue.json"),
}


@pytest.fixture(scope="module")
def service(gate: Path) -> Iterator[ServiceThread]:
    with offline_service(SCRIPT.replace("GATE", str(gate)), ENVIRONMENT, **agent()) as (running, _):
        yield running


@pytest.fixture
def tabs(browser: Browser) -> Iterator[Tabs]:
    """Tabs; at the end none of them has complained of anything."""
    opened = Tabs(browser)
    try:
        yield opened
        assert opened.unexpected() == {}
    finally:
        opened.close()


@pytest.fixture
def ada(tabs: Tabs, service: ServiceThread) -> Tab:
    return tabs.open(f"{service.url}/console/").sign_in("ada")
