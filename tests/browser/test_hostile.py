"""What others wrote is text: wherever it is shown it runs nothing and loads nothing."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agents import ENVIRONMENT, agent
from hostile import EVIL, TEXTS
from playwright.sync_api import expect
from tabs import Tab, Tabs

from tealagents.testing.service import ServiceThread, offline_service

#: elements and attributes that are only there if a text became more than text
_BECAME_MORE = """() => {
  const made = [...document.querySelectorAll(
    "script:not([src^='app/']), iframe, object, embed, link[href*='evil'], base, meta[http-equiv], video,"
    + "audio, form[action], template, style, img[src^='http'], img[srcset], [srcdoc],"
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
    rules.append({"when": "fail", "reply": {"error": {"status": 400, "message": TEXTS[0] + TEXTS[8]}}})
    return {"rules": rules}


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceThread]:
    # the model needs the last message alone: to send it all the others each time would take most of the time
    last = {"reducers": [{"name": "message_count", "max_messages": 4}]}
    with offline_service(_script(), ENVIRONMENT, **agent(thread=last)) as (running, _):
        yield running


def _said(text: str, **more: Any) -> dict[str, Any]:
    return {"items": [{"content_type": "text", "content": text}], **more}


@pytest.fixture(scope="module")
def everywhere(service: ServiceThread) -> dict[str, str]:
    """Tasks that hold the texts: as messages, answers, arguments, results, metadata, reasons, errors."""

    def as_title(text: str) -> None:
        short = text[:20_000]
        client.post("", json=_said("hello", metadata={"title": short, short[:200]: short})).raise_for_status()

    with service.client("ada") as client:
        talk = client.post("", json=_said(f"case 0: {TEXTS[0]}", metadata={"title": "All of it"})).json()
        for number, text in list(enumerate(TEXTS))[1:]:
            answer = client.post("", json=_said(f"case {number}: {text}", task_id=talk["task_id"])).json()
            assert answer["status"] == "Completed", answer
        failed = client.post("", json=_said("fail", metadata={"title": "Failed"}))
        pause = client.post("", json=_said("delete it all", metadata={"title": "Paused"})).json()
        decided = client.post("", json=_said("delete it all", metadata={"title": "Decided"})).json()
        reason = "".join(TEXTS[:40])[:4000]
        where = f"/requests/{decided['request_id']}/resume"
        client.post(where, json={"action": "reject", "reason": reason}).raise_for_status()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(as_title, TEXTS))
    return {
        "talk": talk["task_id"],
        "failed": failed.json()["task_id"],
        "pause": pause["task_id"],
        "decided": decided["task_id"],
    }


def _harmless(tab: Tab) -> None:
    assert tab.strangers() == []
    assert tab.page.evaluate("typeof hacked") == "undefined"
    assert tab.page.evaluate(_BECAME_MORE) == []
    assert tab.unexpected == []


def _open_all(tab: Tab, selector: str) -> None:
    tab.page.evaluate("(s) => document.querySelectorAll(s).forEach((each) => each.click())", selector)


def _scrolled_up(tab: Tab) -> set[str]:
    """Scrolls to the first message, unfolding every call; the turns that were drawn on the way."""
    seen: set[str] = set()
    while True:
        _open_all(tab, ".call:not([open]) summary")
        turns = tab.page.locator(".turn[id]")
        seen |= set(turns.evaluate_all("(all) => all.map((each) => each.id)"))
        first = turns.first.get_attribute("id")
        if tab.page.locator("[aria-posinset='1']").count():
            return seen
        tab.page.locator(".scroller").evaluate("(box) => { box.scrollTop = 0; }")
        expect(turns.first).not_to_have_id(first or "")


@pytest.fixture
def ada(tabs: Tabs, service: ServiceThread) -> Tab:
    return tabs.signed_in(f"{service.url}/console/", "ada", viewport={"width": 1280, "height": 900})


def test_in_messages_answers_arguments_and_results(ada: Tab, everywhere: dict[str, str]) -> None:
    """As what was said, answered, asked of tools and told by them."""
    assert len(TEXTS) == 60
    ada.open("tasks", everywhere["talk"])
    expect(ada.page.locator(".turn").last).to_contain_text("constructor.constructor")
    seen = _scrolled_up(ada)
    assert len(seen) == 60
    _harmless(ada)
    first = ada.page.locator(".turn").first
    expect(first.locator(".bubble")).to_contain_text("<script>hacked=1")
    expect(first.locator(".markdown").first).to_contain_text("<script>hacked=1")


def test_in_the_trace_the_tree_and_the_audit(ada: Tab, everywhere: dict[str, str]) -> None:
    """As inputs and outputs of steps, as labels of the tree, as actors and actions."""
    ada.open("tasks", everywhere["talk"], "trace")
    expect(ada.page.locator(".waterfall")).to_have_count(60)
    _open_all(ada, ".step-line")
    expect(ada.page.locator(".step:not([data-kind=reduction]) .step-details")).to_have_count(180)
    _harmless(ada)
    ada.button("Show it").first.click()
    expect(ada.page.locator(".sent-part").last).to_contain_text("This request")
    _harmless(ada)
    ada.open("tasks", everywhere["talk"], "travel")
    expect(ada.page.locator(".node")).to_have_count(60)
    _harmless(ada)
    ada.open("tasks", everywhere["talk"], "audit")
    expect(ada.page.locator(".verdict[data-state=verified]")).to_be_visible()
    _open_all(ada, "td button")
    _harmless(ada)


def test_in_metadata(ada: Tab, everywhere: dict[str, str]) -> None:
    """As titles in the list and above a conversation, and as keys and values."""
    ada.button("Older conversations").click()
    expect(ada.page.locator(".task")).to_have_count(64)
    _harmless(ada)
    for beginning in ("<script>", "<svg onload", "invoice_"):
        ada.page.locator(".task", has_text=beginning).first.click()
        ada.link("Details").click()
        expect(ada.page.get_by_label("Metadata as JSON")).to_be_visible()
        _harmless(ada)


def test_in_pauses_and_errors(ada: Tab, everywhere: dict[str, str]) -> None:
    """As arguments that are shown, or edited, as reasons, and as what a model service says of its failure."""
    ada.open("approvals")
    expect(ada.page.locator(".shown-call")).to_have_count(60)
    _open_all(ada, ".shown-call .quiet")
    expect(ada.page.locator(".fields")).to_have_count(60)
    _harmless(ada)
    ada.button("Decided").click()
    expect(ada.page.get_by_text("Decided by ada")).to_be_visible()
    ada.open("tasks", everywhere["decided"], "trace")
    _open_all(ada, ".step-line")
    _harmless(ada)
    ada.open("tasks", everywhere["failed"])
    expect(ada.page.locator(".ended")).to_contain_text("<script>hacked=1")
    _harmless(ada)


def test_arguments_hide_nothing(ada: Tab, everywhere: dict[str, str]) -> None:
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
    tab = tabs.signed_in(f"{service.url}/console/", "a-token-like-no-other")
    tab.say("hello")
    expect(tab.page.locator(".turn-footer")).to_be_visible()
    assert tab.with_token("a-token-like-no-other") == []
    assert "a-token-like-no-other" not in tab.page.url
    assert "a-token-like-no-other" not in caplog.text
