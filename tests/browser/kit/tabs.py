"""A tab of a real browser that is signed in, and the witness of all it asked for and complained of."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Request,
    Route,
    sync_playwright,
)

from tealagents.testing.pytest_servers import missing

#: the same engine without a window's parts is the first choice: the tests take a third less CPU time with it
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)
#: milliseconds that a page has to show what is expected; reached only where it never does
PATIENCE = 60_000

#: what Chromium says of an answer that is no success; the page says it in words
_REFUSED = re.compile(r"Failed to load resource: the server responded with a status of (\d+)")
_CUT = re.compile(r"Failed to load resource: net::|net::ERR_")
#: reported by the page itself, so that a report of the policy cannot go unseen
_WATCH_POLICY = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`POLICY ${event.effectiveDirective} ${event.blockedURI} ${event.sample}`));
"""
#: one of the console's own modules, by its name, for tests that look into it
_MODULE_OF = """
window.moduleOf = (name) => import(new URL(`${name}.js`, document.querySelector("script[type=module]").src));
"""
#: a notice goes after six seconds, which a slow machine may take to look for it: here it stays until it is
#: closed, or another one comes, unless a test has taken the page's time
_KEEP_NOTICES = """
const {setInterval: repeated} = window;
window.setInterval = (call, ms, ...given) => (ms === 6000 ? 0 : repeated(call, ms, ...given));
"""
#: whether a user is signed in still, and nothing outside of the view was changed that outlives it
_AS_IT_BEGAN = """(user) => user === JSON.parse(
    sessionStorage.getItem("tealagents.console.session " + new URL("../..", location).pathname))?.name
  && localStorage.length === 0
  && ![...document.querySelectorAll(".filter input, .filter select")].some((each) => each.value)
  && !document.querySelector(".whose button:last-child[aria-pressed=true], dialog[open]")
"""


class Tab:
    """One page, its errors and, if recorded, its requests. What was not expected fails the test."""

    def __init__(self, context: BrowserContext, console: str) -> None:
        self.context = context
        self.page = context.new_page()
        #: who is signed in
        self.user: str | None = None
        self.begin(console)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.errors.append(f"{error.name}: {error.message}"))
        self.page.add_init_script(_WATCH_POLICY + _MODULE_OF + _KEEP_NOTICES)

    def begin(self, console: str) -> None:
        """Gives it to a test, and drops what was reported before."""
        self.console = console
        #: statuses of answers that the test provokes
        self.expected: set[int] = set()
        #: whether the test cuts connections
        self.may_be_cut = False
        self._has_own_time = False
        self.errors: list[str] = []
        self._requests: list[str] | None = None

    def rest(self) -> bool:
        """A test has ended; whether another one can have the tab."""
        if self.may_be_cut or self._has_own_time or self.page.is_closed():
            return False
        for other in self.context.pages:
            if other is not self.page:
                other.close()
        self.page.unroute_all(behavior="ignoreErrors")
        if self._requests is not None:
            self.page.remove_listener("request", self._keep)
        signed_in = self.user is not None and self.page.url.startswith(self.console)
        if signed_in and self.page.evaluate(_AS_IT_BEGAN, self.user):
            self.page.evaluate("document.querySelector('.notice')?.click()")  # the next one may be the same
            self.page.goto(f"{self.console}#/new")
            # until it is drawn a test that opens the same view again would find it as it was left
            self.page.locator('a[href="#/new"][aria-current=page]').wait_for(state="attached")
        else:
            self.forget()
        return True

    def take_time(self) -> None:
        """From now on the page's timers are those of a clock that the test can advance."""
        self.page.clock.install()
        self._has_own_time = True

    def record(self) -> None:
        """From now on the addresses of requests are kept.

        Only where a test looks at them: a page asks for dozens of files, and each request takes five messages
        of Playwright's driver, which would be five in six of all its messages.
        """
        assert self._requests is None
        self._requests = []
        self.page.on("request", self._keep)

    def _keep(self, request: Request) -> None:
        self.requests.append(request.url)

    @property
    def requests(self) -> list[str]:
        assert self._requests is not None, "what the tab asked for was not recorded"
        return self._requests

    def forget(self) -> None:
        """Signed out, without storage, at no page."""
        if self.page.url.startswith("http"):
            self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
            # the page goes there by itself: sent there by the browser, it would get a new process each time
            self.page.evaluate("location = 'about:blank'")
            self.page.wait_for_url("about:blank")
        self.context.clear_cookies()
        self.user = None

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.errors.append(said.text)

    def sign_in(self, user: str) -> "Tab":
        self.page.goto(self.console)
        self.page.get_by_label("Your name").fill(user)
        self.page.get_by_role("button", name="Continue").click()
        self.page.get_by_role("link", name="New conversation").wait_for()
        self.user = user
        return self

    def open(self, *path: str) -> "Tab":
        self.page.goto(f"{self.console}#/{'/'.join(path)}")
        return self

    def say(self, text: str) -> None:
        self.page.get_by_role("textbox", name="Message", exact=True).last.fill(text)
        self.page.get_by_role("button", name="Send", exact=True).last.click()

    def look_again(self) -> None:
        """Lists are read again at once, as they are when the user comes back to the tab."""
        self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def held(self, calls: list[Route], count: int = 1) -> Route:
        """The call that a route appends to `calls` as the `count`-th, once it has."""
        deadline = monotonic() + PATIENCE / 1000
        while len(calls) < count:
            assert monotonic() < deadline, "the page has not made the call"
            self.page.wait_for_timeout(20)
        return calls[count - 1]

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
        """Requests that went anywhere but to the service."""
        own = urlsplit(self.console).netloc
        return [
            url
            for url in self.requests
            if not url.startswith(("data:", "blob:")) and urlsplit(url).netloc != own
        ]

    def with_token(self, token: str) -> list[str]:
        """Addresses that the token is part of."""
        return [url for url in self.requests if token in url]


class Profiles:
    """Browser profiles with a tab in each, for one test after the other.

    To make a profile, and to load the console in it, costs more than most of what tests do there. So a tab is
    given to the next test that wants the same user at the same console, as it is; to any other emptied.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[str, list[Tab]] = {}

    def take(self, console: str, user: str | None, options: Mapping[str, Any]) -> Tab:
        free = self._free.setdefault(repr(sorted(options.items())), [])
        for tab in free:
            if tab.console != console:
                tab.forget()  # its service has ended, or will
        fitting = [tab for tab in free if (tab.console, tab.user) == (console, user)]
        if not free:
            context = self._browser.new_context(reduced_motion="reduce", **options)
            context.set_default_timeout(PATIENCE)
            return Tab(context, console)
        given = fitting[0] if fitting else free[0]
        free.remove(given)
        if not fitting:
            given.forget()
        given.begin(console)
        return given

    def give_back(self, tab: Tab, options: Mapping[str, Any]) -> None:
        if tab.rest():
            self._free[repr(sorted(options.items()))].append(tab)
        else:
            tab.context.close()


class Tabs:
    """Opens the tabs of one test, each in a browser profile of its own, and looks back at them."""

    def __init__(self, profiles: Profiles) -> None:
        self._profiles = profiles
        self._options: list[Mapping[str, Any]] = []
        self.opened: list[Tab] = []

    def open(self, console: str, *, recorded: bool = False, **options: Any) -> Tab:
        """A tab that knows nothing yet."""
        return self._taken(console, None, recorded, options)

    def signed_in(self, console: str, user: str, *, recorded: bool = False, **options: Any) -> Tab:
        """A tab that shows the console to a user of the provider `mock`."""
        tab = self._taken(console, user, recorded, options)
        return tab if tab.user == user else tab.sign_in(user)

    def _taken(self, console: str, user: str | None, recorded: bool, options: Mapping[str, Any]) -> Tab:
        tab = self._profiles.take(console, user, options)
        if recorded:
            tab.record()
        self.opened.append(tab)
        self._options.append(options)
        return tab

    def close(self) -> None:
        for tab, options in zip(self.opened, self._options, strict=True):
            self._profiles.give_back(tab, options)

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
        missing("axe-core: `make test` installs it where there is npm")
    return source.read_text()
