"""What others wrote is text: wherever it is shown it runs nothing and loads nothing."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from agents import ENVIRONMENT, agent
from hostile import EVIL, TEXTS
from playwright.sync_api import Locator, expect
from tabs import Tab, Tabs

from tealagents.testing.service import ServiceThread, offline_service

#: texts that can be a user's id, which the provider `mock` takes from the token
#: one more user, whose name is the token
NO_TEXT = "a-token-like-no-other"
USERS = [
    text.replace(" ", "/") for text in TEXTS if len(text) < 200 and text.isascii() and text.isprintable()
]

#: elements and attributes that are only there if a text became more than text
_BECAME_MORE = """() => {
  const made = [...document.querySelectorAll(
    "script:not([src$='/app/main.js']), iframe, object, embed, link[href*='evil'], base, meta[http-equiv],"
    + "video, audio, form[action], template, style, img[src^='http'], img[srcset], [srcdoc],"
    + "#document, [name=config]")];
  const handlers = [...document.querySelectorAll("*")].filter((element) =>
    [...element.attributes].some(({name}) => /^on/i.test(name)));
  const links = [...document.links].filter((link) => !/^(https?|mailto):/.test(link.protocol));
  return [...made, ...handlers, ...links].map((element) => element.outerHTML.slice(0, 200));
}"""


def _script() -> dict[str, Any]:
    """The model says each text before a call of a tool with it, and after."""
    rules: list[dict[str, Any]] = []
    for number, text in enumerate(TEXTS):
        call = {"name": "Files-echo", "arguments": {"text": text}}
        when = {"text": f"case {number}:"}
        rules.append({"when": {**when, "tool_result": True}, "reply": {"text": text}})
        rules.append({"when": when, "reply": {"text": text, "tool_calls": [call]}})
    calls = [{"name": "Files-delete", "arguments": {"path": text, text[:200]: True}} for text in TEXTS]
    rules.append({"when": "delete it all", "reply": {"tool_calls": calls}})
    asked = [{"name": "Hostile-consent", "arguments": {"number": number}} for number in range(len(TEXTS))]
    rules.append({"when": "consent", "reply": {"tool_calls": asked}})
    rules.append({"when": "fill in", "reply": {"tool_calls": [{"name": "Hostile-form", "arguments": {}}]}})
    rules.append({"when": "fail", "reply": {"error": {"status": 400, "message": TEXTS[0] + TEXTS[8]}}})
    return {"rules": rules}


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceThread]:
    # the model needs the last message alone: to send it all the others each time would take most of the time
    last = {"reducers": [{"name": "message_count", "max_messages": 4}]}
    spec = agent(thread=last)
    spec["agent"]["toolsets"] = ["hostile_tools:Toolset"]
    with offline_service(_script(), ENVIRONMENT, **spec) as (running, _):
        yield running


def _said(text: str, **more: Any) -> dict[str, Any]:
    return {"items": [{"content_type": "text", "content": text}], **more}


@pytest.fixture(scope="module")
def client(service: ServiceThread) -> Iterator[httpx.Client]:
    with service.client("ada") as client:
        yield client


# each test makes what it looks at, and no more: the texts are long, and many processes run tests of one file


@pytest.fixture(scope="module")
def talk(client: httpx.Client) -> str:
    """A task with the texts as messages, answers, arguments and results."""
    talk: str = client.post("", json=_said(f"case 0: {TEXTS[0]}", metadata={"title": "All of it"})).json()[
        "task_id"
    ]
    for number, text in list(enumerate(TEXTS))[1:]:
        answer = client.post("", json=_said(f"case {number}: {text}", task_id=talk)).json()
        assert answer["status"] == "Completed", answer
    return talk


@pytest.fixture(scope="module")
def fork(client: httpx.Client, talk: str) -> str:
    """The first half of that, as a task of its own."""
    points = client.get(f"/tasks/{talk}/checkpoints", params={"limit": 60}).json()["items"]
    forked = client.post(f"/tasks/{talk}/fork", json={"checkpoint_id": points[30]["checkpoint_id"]})
    made: str = forked.json()["task_id"]
    return made


@pytest.fixture(scope="module")
def paused(client: httpx.Client) -> dict[str, str]:
    """Tasks that wait for an approval: of a call for each text, and of one whose schema is made of them."""
    asked = {name: client.post("", json=_said(name)).json() for name in ("delete it all", "fill in")}
    return {name: answer["task_id"] for name, answer in asked.items()}


@pytest.fixture(scope="module")
def consent(client: httpx.Client) -> str:
    """A task whose calls, once approved, wait for consents."""
    asked = client.post("", json=_said("consent")).json()
    approved = client.post(f"/requests/{asked['request_id']}/resume", json={"action": "approve"}).json()
    assert len(approved["content"]["authorizations"]) == 60
    task: str = approved["task_id"]
    return task


@pytest.fixture(scope="module")
def ended(client: httpx.Client) -> dict[str, str]:
    """Tasks with the texts as what the model service says of its failure, and as the reason of a decision."""
    failed = client.post("", json=_said("fail", metadata={"title": "Failed"})).json()
    decided = client.post("", json=_said("delete it all", metadata={"title": "Decided"})).json()
    where = f"/requests/{decided['request_id']}/resume"
    reason = "".join(TEXTS[:40])[:4000]
    client.post(where, json={"action": "reject", "reason": reason}).raise_for_status()
    return {"failed": failed["task_id"], "decided": decided["task_id"]}


@pytest.fixture(scope="module")
def titled(client: httpx.Client) -> int:
    """How many tasks have a text as their title, and as the key of their metadata."""

    def begin(text: str) -> None:
        short = text[:20_000]
        client.post("", json=_said("hello", metadata={"title": short, short[:200]: short})).raise_for_status()

    with ThreadPoolExecutor(4) as pool:
        return len(list(pool.map(begin, TEXTS)))


@pytest.fixture(scope="module")
def users(service: ServiceThread) -> set[str]:
    """Users with a task, who are called by a text."""
    for name in USERS:
        with service.client(name) as client:
            client.post("", json=_said("hello")).raise_for_status()
    return set(USERS)


def _harmless(tab: Tab) -> None:
    assert tab.strangers() == []
    assert tab.page.evaluate("typeof hacked") == "undefined"
    assert tab.page.evaluate(_BECAME_MORE) == []
    assert tab.unexpected == []


def _open_all(tab: Tab, selector: str) -> None:
    tab.page.evaluate("(s) => document.querySelectorAll(s).forEach((each) => each.click())", selector)


def _open_in_steps(closed: Locator, opened: Locator, count: int) -> None:
    """Clicks what is closed, 20 at once: to lay out all of it takes a slow machine longer than any wait."""
    expect(closed).to_have_count(count)
    for shown in range(20, count + 1, 20):
        closed.evaluate_all("(all) => all.slice(0, 20).forEach((each) => each.click())")
        expect(opened).to_have_count(shown)


def _scrolled_up(tab: Tab) -> set[str]:
    """Scrolls to the first message, unfolding every call; the places of what was drawn on the way."""
    seen: set[str] = set()
    turns = tab.page.get_by_role("region", name="Messages").get_by_role("article")
    while True:
        _open_all(tab, ".call:not([open]) summary")
        # at one moment: more is drawn between two
        drawn = turns.evaluate_all("(all) => all.map((each) => each.getAttribute('aria-posinset'))")
        seen |= set(drawn)
        if "1" in drawn:
            return seen
        tab.page.locator(".scroller").evaluate("(box) => { box.scrollTop = 0; }")
        expect(turns.first).not_to_have_attribute("aria-posinset", drawn[0])


def _all_listed(tab: Tab, least: int) -> None:
    """Shows the whole list: other tests may have begun some of it."""
    shown, older = tab.page.locator(".task"), tab.button("Older conversations")
    expect(shown.nth(49)).to_be_visible()
    while (count := shown.count()) < least or older.count():
        older.click()
        expect(shown.nth(count)).to_be_visible()


@pytest.fixture
def ada(tabs: Tabs, service: ServiceThread) -> Tab:
    return _signed_in(tabs, service, "ada")


def _signed_in(tabs: Tabs, service: ServiceThread, user: str) -> Tab:
    wide = {"width": 1280, "height": 900}
    return tabs.signed_in(f"{service.url}/console/", user, recorded=True, viewport=wide)


def test_in_messages_answers_arguments_and_results(ada: Tab, talk: str) -> None:
    """In messages, answers, and the arguments and results of tools."""
    assert len(TEXTS) == 60
    ada.open("tasks", talk)
    expect(ada.page.locator(".turn").last).to_contain_text("constructor.constructor")
    seen = _scrolled_up(ada)
    assert len(seen) == 60
    _harmless(ada)
    first = ada.page.locator(".turn").first
    expect(first.locator(".bubble")).to_contain_text("<script>hacked=1")
    expect(first.locator(".markdown").first).to_contain_text("<script>hacked=1")


def test_in_the_trace_the_tree_and_the_audit(ada: Tab, talk: str) -> None:
    """As inputs and outputs of steps, as labels of the tree, as actors and actions."""
    ada.open("tasks", talk, "trace")
    expect(ada.page.locator(".waterfall")).to_have_count(60)
    steps = ada.page.locator(".step:not([data-kind=reduction])")
    _open_in_steps(steps.locator("[aria-expanded=false]"), steps.locator(".step-details"), 180)
    _open_all(ada, ".step-line[aria-expanded=false]")
    _harmless(ada)
    ada.open("tasks", talk, "travel")
    expect(ada.page.locator(".node")).to_have_count(60)
    _harmless(ada)
    ada.open("tasks", talk, "audit")
    expect(ada.page.locator(".verdict[data-state=verified]")).to_be_visible()
    _open_all(ada, "td button")
    _harmless(ada)


def test_in_what_the_model_was_sent(ada: Tab, talk: str) -> None:
    """As parts of the prompts of all requests: the messages of both sides, calls and results."""
    ada.open("tasks", talk, "trace")
    expect(ada.page.locator(".waterfall")).to_have_count(60)
    _open_all(ada, ".step[data-kind=model] .step-line")
    _open_in_steps(ada.page.locator(".sent > p button"), ada.page.locator(".sent-parts"), 120)
    for origin in ("history", "request"):
        expect(ada.page.locator(f".sent-part[data-origin={origin}]").first).to_be_visible()
    _harmless(ada)


def test_in_two_branches(ada: Tab, talk: str, fork: str) -> None:
    """As the messages of both sides of a comparison, and as their titles."""
    ada.open("compare", talk, "current", fork, "current")
    expect(ada.page.locator(".common .turn")).to_have_count(30)
    expect(ada.page.locator(".branch").first.locator(".turn")).to_have_count(30)
    _open_all(ada, ".common > summary")
    _open_all(ada, ".call:not([open]) summary")
    _harmless(ada)
    # what leads nowhere does not look as if it did
    expect(ada.page.locator(".markdown", has_text="click")).not_to_have_count(0)
    expect(ada.page.locator(".markdown a:not([href])")).to_have_count(0)


def test_in_a_form_made_of_a_schema(ada: Tab, paused: dict[str, str]) -> None:
    """As names, descriptions and choices of arguments, those that can be added, too."""
    ada.open("tasks", paused["fill in"])
    ada.button("Edit the arguments").click()
    expect(ada.page.locator(".field")).to_have_count(60)
    expect(ada.page.get_by_role("button", name="Add optional")).to_have_count(60)
    expect(ada.page.locator(".field .about")).to_have_count(60)
    expect(ada.page.locator(".field option", has_text="<script>hacked=1").first).to_be_attached()
    _harmless(ada)


def test_in_requests_for_consent(ada: Tab, consent: str) -> None:
    """As servers, addresses and scopes. Only addresses of the web are links; none is followed by itself."""
    ada.open("tasks", consent)
    expect(ada.page.locator(".authorizations li")).to_have_count(60)
    links = ada.page.locator(".authorizations a")
    expect(links).to_have_count(30)
    assert all(href.startswith(EVIL) for href in links.evaluate_all("(all) => all.map((each) => each.href)"))
    assert set(links.evaluate_all("(all) => all.map((each) => each.rel)")) == {"noopener noreferrer"}
    _harmless(ada)


def test_in_the_list_of_the_tenant(tabs: Tabs, service: ServiceThread, titled: int, users: set[str]) -> None:
    """As titles and as names of users: what an auditor is shown of all."""
    dave = _signed_in(tabs, service, "dave")
    dave.button("Whole tenant").click()
    _all_listed(dave, titled + len(users))
    assert set(dave.page.locator(".task .owner").all_inner_texts()) - {NO_TEXT} == {"ada", *users}
    _harmless(dave)
    dave.button("Mine").click()


def test_in_metadata(titled: int, ada: Tab) -> None:
    """As titles in the list and above a conversation, and as keys and values."""
    _all_listed(ada, titled)
    _harmless(ada)
    for beginning in ("<script>", "<svg onload", "invoice_"):
        ada.page.locator(".task", has_text=beginning).first.click()
        ada.link("Details").click()
        expect(ada.page.get_by_label("Metadata as JSON")).to_be_visible()
        _harmless(ada)


def test_in_pauses_and_errors(ada: Tab, paused: dict[str, str], ended: dict[str, str]) -> None:
    """As arguments that are shown, or edited, as reasons, and as what a model service says of its failure."""
    ada.open("approvals")
    ada.page.reload()  # a tab that was open before may have seen the decided one wait, and keep it in view
    files = ada.page.locator(".card", has_text="Files-delete")
    expect(files.locator(".shown-call")).to_have_count(60)
    edit = files.get_by_role("button", name="Edit the arguments")
    _open_in_steps(edit, files.locator(".fields"), 60)
    _harmless(ada)
    ada.button("Decided").click()
    expect(files.get_by_text("Decided by ada")).to_be_visible()
    ada.open("tasks", ended["decided"], "trace")
    expect(ada.page.locator(".step-line")).not_to_have_count(0)
    _open_all(ada, ".step-line")
    _harmless(ada)
    ada.open("tasks", ended["failed"])
    expect(ada.page.locator(".ended")).to_contain_text("<script>hacked=1")
    _harmless(ada)


def test_arguments_hide_nothing(ada: Tab, paused: dict[str, str]) -> None:
    """What would reorder or vanish is shown as its code point: an approver sees what would run."""
    ada.open("approvals")
    call = ada.page.locator(".shown-call", has_text="invoice_")
    for hidden in ("U+202E", "U+2066", "U+200B", "U+FEFF", "U+E0041"):
        expect(call).to_contain_text(f"⟨{hidden}⟩")


def test_the_policy_stands_behind(ada: Tab, service: ServiceThread) -> None:
    """Were there a hole, the page's policy would stop what came through it."""
    stopped = ada.page.evaluate(
        """async (evil) => {
          const stopped = [];
          addEventListener("securitypolicyviolation", (event) => stopped.push(event.effectiveDirective));
          const script = document.createElement("script");
          try { script.text = "hacked = 1"; } catch { stopped.push("trusted-types"); }
          try { document.body.innerHTML = "<p>"; } catch { stopped.push("trusted-types"); }
          await fetch(evil).catch(() => null);
          const image = Object.assign(new Image(), {src: evil});
          await new Promise((done) => { image.onerror = done; });
          return [stopped, typeof hacked];
        }""",
        EVIL,
    )
    assert set(stopped[0]) >= {"trusted-types", "connect-src", "img-src"}
    assert stopped[1] == "undefined"
    assert any("POLICY" in error for error in ada.errors)
    ada.errors.clear()
    with service.client(None) as client:
        headers = client.get("/console/").headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


def test_no_token_in_addresses_or_logs(
    tabs: Tabs, service: ServiceThread, caplog: pytest.LogCaptureFixture
) -> None:
    """The token is in headers alone."""
    tab = tabs.signed_in(f"{service.url}/console/", NO_TEXT, recorded=True)
    tab.say("hello")
    expect(tab.page.locator(".turn-footer")).to_be_visible()
    assert tab.with_token(NO_TEXT) == []
    assert NO_TEXT not in tab.page.url
    assert NO_TEXT not in caplog.text
