"""A console that is served by a real service, and looked at in Debian's Chromium."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import ENVIRONMENT, SCRIPT, agent
from playwright.sync_api import Browser, expect
from tabs import CHROMIUM, PATIENCE, Profiles, Tab, Tabs, chromium

from tealagents.testing.service import ServiceThread, offline_service

HERE = Path(__file__).parent

expect.set_options(timeout=PATIENCE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM is not None:
        return
    missing = "there is no Chromium: apt-get install chromium-headless-shell"
    if os.environ.get("REQUIRE_BACKENDS") == "1":
        pytest.fail(f"REQUIRE_BACKENDS=1, but {missing}", pytrace=False)
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=missing))


# one for all tests of this folder: nothing costs more to start, and each tab has a profile of its own. It is
# closed when the folder is done, because its driver holds this thread's event loop
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def profiles(browser: Browser) -> Profiles:
    return Profiles(browser)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that lets an answer continue once it is there."""
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="module")
def service(gate: Path) -> Iterator[ServiceThread]:
    with offline_service(SCRIPT.replace("GATE", str(gate)), ENVIRONMENT, **agent()) as (running, _):
        yield running


@pytest.fixture
def tabs(profiles: Profiles) -> Iterator[Tabs]:
    """Tabs; at the end none of them has complained of anything."""
    opened = Tabs(profiles)
    try:
        yield opened
        assert opened.unexpected() == {}
    finally:
        opened.close()


@pytest.fixture
def ada(tabs: Tabs, service: ServiceThread) -> Tab:
    return tabs.signed_in(f"{service.url}/console/", "ada")
