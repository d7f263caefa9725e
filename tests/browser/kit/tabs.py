"""A tab of a real browser that is signed in, and the witness of all it asked for and complained of."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

#: what Chromium says of an answer that is no success; the page says it in words
_REFUSED = re.compile(r"Failed to load resource: the server responded with a status of (\d+)")
_CUT = re.compile(r"Failed to load resource: net::|net::ERR_")
#: told by the page itself, so that a report of the policy cannot go unseen
_WATCH_POLICY = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`POLICY ${event.effectiveDirective} ${event.blockedURI} ${event.sample}`));
"""


class Tab:
    """One page, its errors and its requests. Whatever was not expected fails the test that ends with it."""

    def __init__(self, context: BrowserContext, console: str) -> None:
        self.console = console
        self.context = context
        self.page = context.new_page()
        #: statuses of answers that the test provokes
        self.expected: set[int] = set()
        #: whether the test cuts connections
        self.may_be_cut = False
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.errors.append(f"{error.name}: {error.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.add_init_script(_WATCH_POLICY)

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.errors.append(said.text)

    def sign_in(self, user: str) -> "Tab":
        self.page.goto(self.console)
        self.page.get_by_label("Your name").fill(user)
        self.page.get_by_role("button", name="Continue").click()
        self.page.get_by_role("link", name="New conversation").wait_for()
        return self

    def open(self, *path: str) -> "Tab":
        self.page.goto(f"{self.console}#/{'/'.join(path)}")
        return self

    def say(self, text: str) -> None:
        self.page.get_by_role("textbox", name="Message", exact=True).last.fill(text)
        self.page.get_by_role("button", name="Send", exact=True).last.click()

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def link(self, name: str) -> Locator:
        return self.page.get_by_role("link", name=name, exact=True)

    def text(self, text: str) -> Locator:
        return self.page.get_by_text(text, exact=True)

    @property
    def unexpected(self) -> list[str]:
        return [error for error in self.errors if not self._is_expected(error)]

    def _is_expected(self, error: str) -> bool:
        refused = _REFUSED.search(error)
        if refused:
            return int(refused[1]) in self.expected
        return self.may_be_cut and bool(_CUT.search(error))

    def strangers(self) -> list[str]:
        """What was asked of anybody but the service."""
        own = urlsplit(self.console).netloc
        return [
            url
            for url in self.requests
            if not url.startswith(("data:", "blob:")) and urlsplit(url).netloc != own
        ]

    def with_token(self, token: str) -> list[str]:
        """Addresses that the token is part of."""
        return [url for url in self.requests if token in url]


class Tabs:
    """Opens tabs, each in a browser profile of its own, and looks back at them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.opened: list[Tab] = []

    def open(self, console: str, **options: Any) -> Tab:
        context = self._browser.new_context(**options)
        context.set_default_timeout(15_000)
        return self.beside(Tab(context, console))

    def beside(self, tab: Tab) -> Tab:
        self.opened.append(tab)
        return tab

    def second(self, tab: Tab) -> Tab:
        """Another tab of the same profile."""
        return self.beside(Tab(tab.context, tab.console))

    def close(self) -> None:
        for tab in self.opened:
            tab.context.close()

    def unexpected(self) -> Mapping[str, list[str]]:
        return {tab.page.url: tab.unexpected for tab in self.opened if tab.unexpected}


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--lang=en-US"]
        )
        try:
            yield browser
        finally:
            browser.close()


def axe(node_modules: Path) -> str:
    """The source of axe-core, or the test skipped where it is not installed."""
    source = node_modules / "axe-core/axe.min.js"
    if not source.exists():
        pytest.skip("axe-core is not installed; `make test` installs it where there is npm")
    return source.read_text()
