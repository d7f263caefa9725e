"""What each view shows and does, on its own."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from agents import DOT, ENVIRONMENT, TEXTS, agent, talk
from playwright.sync_api import FilePayload, Locator, Response, Route, expect
from tabs import Tab, Tabs

from tealagents.testing.service import ServiceThread, offline_service
from tealagents.testing.waits import until


def test_time_travel(ada: Tab, service: ServiceThread) -> None:
    """Roll back, say something else, and the tree has two branches, to be looked at and compared."""
    first, *_ = talk(
        service, "My name is Ada.", "My favourite colour is green.", "What is my favourite colour?"
    )
    page = ada.page
    ada.open("tasks", first["task_id"], "travel")
    expect(page.locator(".node")).to_have_count(3)
    page.locator(".node", has_text="My name is Ada.").get_by_role("button", name="Roll back").click()
    expect(page.locator(".node", has_text="My name is Ada.")).to_contain_text("Current")
    ada.link("Conversation").click()
    expect(page.locator(".turn")).to_have_count(1)
    ada.say("My favourite colour is red.")
    expect(ada.text("Noted: your favourite colour is red.")).to_be_visible()
    ada.link("Time travel").click()
    expect(page.get_by_text("4 completed requests, 2 branches")).to_be_visible()
    page.locator(".node", has_text="What is my favourite colour?").get_by_title("Look at this point").click()
    expect(page.get_by_role("dialog")).to_contain_text("Your favourite colour is green.")
    page.keyboard.press("Escape")
    page.locator(".node", has_text="What is my favourite colour?").get_by_role(
        "button", name="Go here"
    ).click()
    expect(page.locator(".node", has_text="What is my favourite colour?")).to_contain_text("Current")
    ada.link("Compare the two branches").click()
    expect(page.get_by_text("1 request in common")).to_be_visible()
    heads = page.locator(".branch h3")
    expect(heads).to_contain_text(
        ["up to “What is my favourite colour?”", "up to “My favourite colour is red.”"]
    )
    expect(page.locator(".branch").first).to_contain_text("green")
    expect(page.locator(".branch").last).to_contain_text("red")


def test_what_was_marked_is_marked_when_one_comes_back_from_the_comparison(
    ada: Tab, service: ServiceThread
) -> None:
    """By the way back of the browser; in no other conversation."""
    first, *_ = talk(service, "hello", "My name is Ada.", "What is my name?")
    (other,) = talk(service, "hello")
    ada.open("tasks", first["task_id"], "travel")
    for text in ("My name is Ada.", "What is my name?"):
        ada.page.get_by_label(f"Mark “{text}” for comparing").check()
    compare = ada.link("Compare the marked two")
    compare.click()
    expect(ada.page.get_by_role("heading", name="Two branches")).to_be_visible()
    ada.page.go_back()
    expect(compare).to_be_visible()
    expect(ada.page.get_by_role("checkbox", checked=True)).to_have_count(2)
    ada.open("tasks", other["task_id"], "travel")
    expect(ada.page.get_by_role("checkbox")).to_have_count(1)
    expect(ada.page.get_by_role("checkbox")).not_to_be_checked()


def test_the_size_of_font_that_is_set_in_the_browser_is_followed(ada: Tab, service: ServiceThread) -> None:
    """And the tree is drawn in its measure: rows do not lie over each other."""
    first, _ = talk(service, "My name is Ada.", "hello")
    ada.open("tasks", first["task_id"], "travel")
    tree = ada.page.locator(".tree")
    expect(tree.locator(".node")).to_have_count(2)
    of_browser = ada.page.context.new_cdp_session(ada.page)
    of_browser.send("Page.setFontSizes", {"fontSizes": {"standard": 24}})
    expect(ada.page.locator("html")).to_have_css("font-size", "22.5px")
    assert tree.evaluate(
        "tree => [...tree.querySelectorAll('.node')].every(n => n.scrollHeight <= n.clientHeight)"
    )
    drawn, rows = (tree.locator(part).bounding_box() for part in ("svg", "ol"))
    assert drawn
    assert rows
    assert abs(drawn["height"] - rows["height"]) < 1
    # what has no room for two columns then is drawn as in a narrow window
    ada.page.set_viewport_size({"width": 800, "height": 740})
    assert _width(tree.locator(".node-text").first) > 200
    ada.link("Trace").click()
    assert _width(ada.page.locator(".bar-place").first) > 200
    ada.open("approvals")
    ada.page.set_viewport_size({"width": 320, "height": 740})
    expect(ada.button("Canceled")).to_be_in_viewport(ratio=1)
    of_browser.send("Page.setFontSizes", {"fontSizes": {"standard": 16}})
    of_browser.detach()
    ada.page.set_viewport_size({"width": 1180, "height": 740})


def _width(of: Locator) -> float:
    box = of.bounding_box()
    return box["width"] if box else 0


def test_the_audit_names_the_first_bad_entry(ada: Tab, service: ServiceThread) -> None:
    """The chain is recomputed here: an entry that was changed on its way is found."""
    (answer,) = talk(service, "hello")
    ada.open("tasks", answer["task_id"], "audit")
    expect(ada.page.get_by_text(re.compile("^Verified: [0-9]+ entries"))).to_be_visible()

    def tampered(route: Route) -> None:
        document = route.fetch().json()
        document["items"][2]["actor"] = "mock.eve"
        route.fulfill(json=document)

    def dropped(route: Route) -> None:
        document = route.fetch().json()
        del document["items"][1]
        route.fulfill(json=document)

    for change, entry, reason in (
        (tampered, 3, "does not match its hash"),
        (dropped, 3, "an entry was dropped or moved"),
    ):
        ada.page.route("**/audit?**", change)
        ada.page.reload()
        expect(ada.page.get_by_text(f"Entry {entry} is bad")).to_be_visible()
        expect(ada.page.locator(".verdict")).to_contain_text(reason)
        ada.page.unroute("**/audit?**")


def test_keyed_hashes_are_distinguished_from_broken_ones(tabs: Tabs) -> None:
    """With an audit key the page can check the links, and says that it cannot check the hashes."""
    env = {**ENVIRONMENT, "TA_AUDIT_KEY": "a key of at least sixteen characters"}
    with offline_service(None, env, **agent()) as (service, _):
        (answer,) = talk(service, "hello")
        tab = tabs.signed_in(f"{service.url}/console/", "ada")
        tab.open("tasks", answer["task_id"], "audit")
        expect(tab.text("The links hold; the hashes need the audit key")).to_be_visible()


def test_without_https_the_audit_says_what_was_not_checked(ada: Tab, service: ServiceThread) -> None:
    """Browsers compute no hashes for pages of plain HTTP, and the page does not claim that it did."""
    (answer,) = talk(service, "hello")
    ada.page.evaluate("Object.defineProperty(crypto, 'subtle', {value: undefined})")
    ada.open("tasks", answer["task_id"], "audit")
    expect(ada.text("The links hold; the hashes were not recomputed")).to_be_visible()
    ada.page.reload()
    expect(ada.page.get_by_text(re.compile("^Verified: [0-9]+ entries"))).to_be_visible()


def test_a_conversation_that_cannot_be_read_is_listed_by_its_id(ada: Tab, service: ServiceThread) -> None:
    """Its title is looked up in its messages; without them the list stands as it is."""
    (answer,) = talk(service, "hello")
    ada.expected.add(404)
    ada.page.route(
        f"**/tasks/{answer['task_id']}/messages?**", lambda route: route.fulfill(status=404, json={})
    )
    with ada.page.expect_response(f"**/tasks/{answer['task_id']}/messages?**"):
        ada.page.reload()
    expect(ada.page.get_by_text(f"Task {answer['task_id'][-8:]}")).to_be_visible()


def test_each_call_is_decided_on_its_own(ada: Tab, service: ServiceThread) -> None:
    """One call approved with other arguments, one rejected, with a form for each kind of value."""
    text = 'call Files-delete {"path": "a", "force": false} and call Files-delete {"path": "b"}'
    (pause,) = talk(service, text)
    ada.open("approvals")
    calls = ada.page.locator(".card", has_text='"path": "b"').locator("fieldset")
    expect(calls).to_have_count(2)
    one, other = calls.all()
    one.get_by_role("button", name="Edit the arguments").click()
    one.get_by_role("checkbox", name="force").check()
    one.get_by_role("button", name="Approve").click()
    other.get_by_role("button", name="Reject").click()
    marks = "button => getComputedStyle(button, '::before').content"
    chosen = [call.locator("[aria-pressed=true]").evaluate(marks)[1] for call in (one, other)]
    assert chosen == ["✓", "✕"]
    ada.button("Send the decisions").click()
    expect(ada.page.locator(".outcome-of")).to_contain_text("Files-delete said: a is deleted")
    expect(ada.page.locator(".outcome-of")).to_contain_text("The user rejected this call")
    card = ada.page.locator(".card", has=ada.page.locator(".outcome-of"))
    shown = card.locator(".shown-call")
    for _ in ("just decided", "looked up"):
        expect(card).not_to_contain_text("Approval is needed")
        expect(card.get_by_role("timer")).to_have_count(0)
        expect(shown.first).to_contain_text("Approved, with these arguments")
        expect(shown.first).to_contain_text('"force": true')
        expect(shown.last).to_contain_text("Rejected")
        expect(shown.last).to_contain_text('"path": "b"')
        ada.button("Decided").click()
        card = ada.page.locator(".card").first
        shown = card.locator(".shown-call")
    with service.client("ada") as client:
        steps = client.get(f"/tasks/{pause['task_id']}/trace").json()["items"]
    ran = [json.loads(step["input"]["arguments"]) for step in steps if step["kind"] == "tool"]
    assert {"path": "a", "force": True} in ran
    expect(card).to_contain_text("Decided by ada")
    ada.open("tasks", pause["task_id"])
    expect(ada.page.locator(".call .outcome")).to_have_text([re.compile("done"), re.compile("rejected")])


def test_edits_of_a_call_that_still_waits_outlive_the_decision_of_another_user(
    ada: Tab, service: ServiceThread, tmp_path: Path
) -> None:
    """It waits for its owner's authorization, with all that the owner has written."""
    consent = tmp_path / "consent"
    calls = f'call Files-delete {{"path": "a"}} and call Gate-enter {{"path": "{consent}", "name": "Ida"}}'
    (pause,) = talk(service, calls)
    ada.open("tasks", pause["task_id"])
    deleting, entering = (ada.page.locator(".pause fieldset", has_text=name) for name in ("Files", "Gate"))
    deleting.get_by_role("button", name="Reject").click()
    entering.get_by_role("button", name="Edit the arguments").click()
    entering.get_by_label("name required").fill("Ada")
    entering.get_by_role("button", name="Approve").click()
    with service.client("carol") as client:
        where = f"/requests/{pause['request_id']}/resume"
        client.post(where, json={"action": "approve"}).raise_for_status()
    expect(ada.page.locator(".pause fieldset")).to_have_count(1)
    expect(ada.page.get_by_label("name required")).to_have_value("Ada")
    approve = ada.page.get_by_role("group", name="Decision on Gate-enter").get_by_role(
        "button", name="Approve"
    )
    expect(approve).to_have_attribute("aria-pressed", "true")
    consent.touch()
    ada.button("Send the decisions").click()
    expect(ada.page.locator(".answer")).to_contain_text("Gate-enter said: Ada is in")


def test_what_is_to_be_authorized_is_named_as_its_provider_names_it(
    ada: Tab, service: ServiceThread, tmp_path: Path
) -> None:
    """OAuth separates scopes by spaces: a comma would be taken for a part of one. One sees where the link
    leads before one follows it."""
    (pause,) = talk(service, f'call Gate-enter {{"path": "{tmp_path / "consent"}", "name": "Ida"}}')
    ada.open("tasks", pause["task_id"]).button("Approve").click()
    expect(ada.page.locator(".authorizations li")).to_have_text(
        "Authorize gate at gate.example for gate.see gate.pass"
    )
    ada.button("Reject").click()


def test_a_click_on_one_decision_does_not_make_the_next(ada: Tab, service: ServiceThread) -> None:
    """A double click, or one for what was there before: the next pause stands where the first one was, and
    has not been read. The keyboard is not held up."""
    (pause,) = talk(service, "rotate the log and tidy")
    animations = ada.page.context.new_cdp_session(ada.page)
    animations.send("Animation.enable")
    animations.send("Animation.setPlaybackRate", {"playbackRate": 0})
    ada.open("tasks", pause["task_id"])
    approve, mouse = ada.button("Approve"), ada.page.mouse
    approve.press("Enter")
    expect(ada.page.locator(".pause")).to_contain_text("old log")
    place = approve.bounding_box()
    assert place is not None
    mouse.click(place["x"] + 9, place["y"] + 9)
    animations.send("Animation.setPlaybackRate", {"playbackRate": 1})
    expect(approve).to_have_css("pointer-events", "auto")
    mouse.down(click_count=2)
    mouse.up(click_count=2)
    ada.button("Reject").click()
    expect(ada.page.locator(".call .outcome")).to_have_text([re.compile("done"), re.compile("rejected")])


def test_a_conversation_shows_what_ran(tabs: Tabs, service: ServiceThread) -> None:
    """Of a call that was changed when it was approved: at its end, and to one who comes later. The trace is
    read once for all calls, and not for one that was seen to run."""
    ada = tabs.signed_in(f"{service.url}/console/", "ada", recorded=True)
    (pause,) = talk(service, 'call Files-delete {"path": "asked.txt"}')
    ada.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    ada.page.locator(".fields").get_by_label("path required").fill("changed.txt")
    # the task is looked at every few seconds, and might show the end before the stream has shown what ran
    looks: list[Route] = []
    ada.page.route(f"**/tasks/{pause['task_id']}", lambda route: looks.append(route))
    ada.button("Approve").click()
    calls = ada.page.locator(".call")
    expect(calls).to_contain_text('"path": "changed.txt"')
    ada.page.route(f"**/tasks/{pause['task_id']}", lambda route: route.continue_())
    for route in looks:
        route.continue_()
    for n in (1, 2):
        expect(ada.page.locator(".turn-footer")).to_have_count(n)
        expect(calls).to_have_count(n)
        expect(calls.first).to_contain_text('"path": "changed.txt"')
        expect(calls.first).to_contain_text("as they were changed when the call was approved")
        expect(calls.first).not_to_contain_text("asked.txt")
        if n == 1:
            ada.say("call Files-list {}")
    expect(calls.last).not_to_contain_text("changed")
    traces = [url for url in ada.requests if url.endswith("/trace?limit=200")]
    assert traces == []
    ada.page.reload()
    expect(calls.first).to_contain_text("as they were changed when the call was approved")
    expect(calls.first).to_contain_text('"path": "changed.txt"')
    expect(calls.last).to_contain_text("done")
    assert len([url for url in ada.requests if url.endswith("/trace?limit=200")]) == 1


def test_the_reason_of_an_approval_is_not_said_to_go_to_the_model(ada: Tab, service: ServiceThread) -> None:
    """The model is sent the reason of a rejection only, and the field says so."""
    name = "Reason (kept in the trace; sent to the model if you reject)"
    for action, sent in (("Approve", 0), ("Reject", 1)):
        (paused,) = talk(service, 'call Files-delete {"path": "x"}')
        ada.open("tasks", paused["task_id"]).page.get_by_label(name, exact=True).fill("It is old.")
        ada.button(action).click()
        expect(ada.page.locator(".turn-footer")).to_be_visible()
        expect(ada.page.locator(".markdown").get_by_text("It is old.")).to_have_count(sent)
        with service.client("ada") as client:
            prompt = client.get(f"/requests/{paused['request_id']}/prompt").raise_for_status().text
        assert prompt.count("It is old.") == sent


def test_a_call_that_its_client_runs_can_only_be_rejected(ada: Tab, service: ServiceThread) -> None:
    """It is named as its client named it, and its arguments cannot be changed here."""
    tool = {"type": "function", "name": "look-up", "parameters": {"type": "object"}}
    calls = "call look-up {} call look-up {}"
    with service.client("ada") as client:
        asked = client.post("/openai/v1/responses", json={"input": calls, "tools": [tool]}).raise_for_status()
    ada.open("tasks", asked.json()["conversation"]["id"].removeprefix("conv_"))
    pause = ada.page.locator(".pause")
    expect(pause.locator("legend")).to_have_text(["look-up", "look-up"])
    expect(pause.get_by_role("button")).to_have_text(["Reject all"])
    ada.button("Reject all").click()
    expect(ada.page.locator(".turn")).to_contain_text("The user rejected this call")


def test_an_argument_that_is_added_begins_as_the_tool_does(ada: Tab, service: ServiceThread) -> None:
    """With its default. One without is not wrong before one has left it, and cannot be approved."""
    (pause,) = talk(service, 'call Files-rotate {"path": "log"}')

    def without_a_default(route: Route) -> None:
        known = route.fetch().json()
        properties = known["tool_calls"][0]["parameters"]["properties"]
        properties |= {"least": {"type": "integer"}, "only": {"type": "array"}}
        route.fulfill(json=known)

    ada.page.route("**/approvals/*", without_a_default, times=1)
    ada.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    form = ada.page.locator(".fields")
    form.get_by_role("button", name="Add keep").click()
    expect(form.get_by_label("keep", exact=True)).to_have_value("5")
    form.get_by_role("button", name="Add how").click()
    expect(form.get_by_label("how", exact=True).locator("option:checked")).to_have_text("move")
    for name, wrong in (("least", "This is not a number."), ("only JSON", "This is not JSON.")):
        form.get_by_role("button", name=f"Add {name.split()[0]}").click()
        expect(form.get_by_label(name, exact=True)).to_be_focused()
        expect(form.get_by_role("status")).to_have_count(0)
        expect(ada.button("Approve")).to_be_disabled()
        ada.page.get_by_label("Reason").focus()
        expect(form.get_by_role("status")).to_have_text(wrong)
        form.get_by_role("button", name=f"Leave out {name.split()[0]}").click()
    expect(ada.button("Approve")).to_be_enabled()
    ada.button("Reject").click()


def test_an_argument_that_is_missing_is_no_empty_text(ada: Tab, service: ServiceThread) -> None:
    """One that a tool needs: it says so, and cannot be approved before something is written, or nothing."""
    (pause,) = talk(service, 'call Files-delete {"force": true}')
    ada.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    path = ada.page.locator(".fields").get_by_label("path required")
    for _ in ("as it is opened", "after a look elsewhere"):
        expect(path).to_have_accessible_description("This is missing.")
        expect(ada.button("Approve")).to_be_disabled()
        ada.open("approvals").open("tasks", pause["task_id"])
    ada.button("Keep the original arguments").click()
    expect(ada.button("Approve")).to_be_enabled()
    ada.button("Edit the arguments").click()
    ada.page.get_by_role("checkbox", name="force").uncheck()
    for _ in ("edited", "after a look elsewhere"):
        expect(path).to_have_accessible_description("This is missing.")
        expect(ada.button("Approve")).to_be_disabled()
        ada.open("approvals").open("tasks", pause["task_id"])
    path.fill("a")
    path.fill("")
    expect(path).to_have_accessible_description("")
    ada.button("Approve").click()
    expect(ada.page.locator(".answer")).to_contain_text("Files-delete said:  is deleted")


def test_each_of_several_calls_waits_for_its_missing_argument(ada: Tab, service: ServiceThread) -> None:
    """Also where their forms come at once, when the schemas of both have been read."""
    (pause,) = talk(service, 'call Files-delete {"force": true} and call Files-delete {}')
    held: list[Route] = []
    ada.page.route("**/approvals/*", lambda route: held.append(route), times=1)
    ada.open("tasks", pause["task_id"])
    with ada.page.expect_request("**/approvals/*"):
        ada.button("Edit the arguments").first.click()
    ada.button("Edit the arguments").click()
    expect(ada.button("Keep the original arguments")).to_have_count(2)
    held[0].continue_()
    paths = ada.page.get_by_label("path required")
    expect(paths).to_have_count(2)
    expect(ada.button("Approve all")).to_be_disabled()
    for path in paths.all():
        expect(ada.button("Approve all")).to_be_disabled()
        path.fill("a")
    expect(ada.button("Approve all")).to_be_enabled()
    ada.button("Reject all").click()


def test_a_switch_that_is_missing_is_turned_on_or_off(ada: Tab, service: ServiceThread) -> None:
    """One that a tool needs: neither is what it is before one is chosen."""
    (pause,) = talk(service, 'call Files-delete {"path": "a"}')

    def needed(route: Route) -> None:
        known = route.fetch().json()
        schema = known["tool_calls"][0]["parameters"]
        schema["properties"] |= {"force": {"type": "boolean"}, "twice": {"type": "boolean"}}
        schema["required"] = ["path", "force"]
        route.fulfill(json=known)

    ada.page.route("**/approvals/*", needed, times=1)
    ada.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    form = ada.page.locator(".fields")
    force = form.get_by_label("force required")
    expect(force).to_have_accessible_description("Choose one.")
    expect(force.locator("option")).to_have_text(["", "true", "false"])
    form.get_by_label("path required").fill("b")
    expect(ada.button("Approve")).to_be_disabled()
    force.select_option(label="false")
    expect(force).to_have_accessible_description("")
    expect(ada.button("Approve")).to_be_enabled()
    form.get_by_role("button", name="Add twice").click()
    expect(ada.button("Approve")).to_be_disabled()
    expect(form.get_by_role("status")).to_have_count(0)
    form.get_by_role("button", name="Leave out twice").click()
    with ada.page.expect_request("**/resume/sse?*") as sending:
        ada.button("Approve").click()
    sent = json.loads(sending.value.post_data or "")
    assert sent["decisions"][0]["arguments"] == {"path": "b", "force": False}
    expect(ada.page.locator(".answer")).to_contain_text("Files-delete said: b is deleted")


def test_arguments_are_edited_in_a_form_of_the_schema(ada: Tab, service: ServiceThread) -> None:
    """What the tool takes and the model has left out can be added, what it needs stays; types are kept to."""
    (pause,) = talk(service, 'call Files-rotate {"path": "log", "keep": 3}')
    ada.open("tasks", pause["task_id"])
    form = ada.page.locator(".fields")
    held: list[Route] = []
    ada.page.route("**/approvals/*", lambda route: held.append(route), times=1)
    with ada.page.expect_request("**/approvals/*"):
        ada.button("Edit the arguments").click()
    # who has gone on to the reason before the form is there goes on writing it
    ada.page.get_by_label("Reason").focus()
    held[0].continue_()
    expect(form.get_by_label("path required")).to_have_value("log")
    ada.page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
    expect(ada.page.get_by_label("Reason")).to_be_focused()
    ada.button("Keep the original arguments").click()
    ada.button("Edit the arguments").click()
    expect(form.get_by_label("path required")).to_be_focused()
    expect(form.get_by_role("button", name="Leave out path")).to_have_count(0)
    keep = form.get_by_label("keep", exact=True)
    keep.fill("2.5")
    expect(form.get_by_text("This is not a whole number.")).to_be_visible()
    expect(form.get_by_role("status")).to_have_text("This is not a whole number.")
    expect(keep).to_have_accessible_description(re.compile("This is not a whole number."))
    expect(ada.button("Approve")).to_be_disabled()
    keep.fill("2")
    form.get_by_role("button", name="Add how").click()
    form.get_by_label("how", exact=True).select_option(label="copy")
    form.get_by_role("button", name="Add quietly").click()
    form.get_by_role("checkbox", name="quietly").check()
    ada.button("Approve").click()
    expect(ada.text("Files-rotate said: log 2 copy True")).to_be_visible()


def test_what_may_be_null_has_the_field_of_what_it_is_otherwise(ada: Tab, service: ServiceThread) -> None:
    """In both ways in which a schema says it; what may be of several other types is JSON."""
    (pause,) = talk(service, 'call Files-rotate {"path": "log"}')
    named = {"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}
    switch, mixed = {"type": ["null", "boolean"]}, {"type": ["string", "integer", "null"]}

    def nullable(route: Route) -> None:
        known = route.fetch().json()
        properties = {"a": named[0], "b": named[1], "c": switch, "d": mixed}
        known["tool_calls"][0]["parameters"] = {"properties": properties, "required": list(properties)}
        route.fulfill(json=known)

    ada.page.route("**/approvals/*", nullable, times=1)
    ada.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    form = ada.page.locator(".fields")
    for label in ("a required", "b required", "d JSON required"):
        expect(form.get_by_role("textbox", name=label, exact=True)).to_be_visible()
    expect(form.get_by_role("combobox", name="c required", exact=True)).to_be_visible()
    ada.button("Reject").click()


def test_scrolling_changes_no_number(ada: Tab, service: ServiceThread) -> None:
    """The wheel over a number that has the focus scrolls the page, and what is approved is what was read."""
    (pause,) = talk(service, 'call Files-rotate {"path": "log", "keep": 3}')
    ada.page.set_viewport_size({"width": 1180, "height": 420})
    ada.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    keep = ada.page.locator(".fields").get_by_label("keep", exact=True)
    keep.click()
    box = ada.page.get_by_role("region", name="Messages")
    before = box.evaluate("box => box.scrollTop")
    ada.page.mouse.wheel(0, -60)
    until(lambda: box.evaluate("box => box.scrollTop") < before)
    expect(keep).to_have_value("3")
    keep.fill("-2")
    ada.button("Approve").click()
    expect(ada.text("Files-rotate said: log -2 move False")).to_be_visible()
    ada.page.set_viewport_size({"width": 1180, "height": 740})


def test_of_a_class_of_values_one_is_chosen(ada: Tab, service: ServiceThread) -> None:
    """The schema names the class in one place and describes it in another; also where there may be none."""
    (pause,) = talk(service, 'call Files-log {"level": "low"}')
    ada.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    form = ada.page.locator(".fields")
    form.get_by_label("level required").select_option(label="high")
    form.get_by_role("button", name="Add least").click()
    form.get_by_label("least", exact=True).select_option(label="low")
    ada.button("Approve").click()
    expect(ada.text("Files-log said: high low")).to_be_visible()


def test_a_schema_that_leads_nowhere_is_edited_as_json(ada: Tab, service: ServiceThread) -> None:
    """A reference to itself, to nothing, or to another address is not followed without end."""
    (pause,) = talk(service, 'call Files-rotate {"path": "log"}')
    refs = ("#/$defs/Round", "#/properties/1", "#/$defs/None", "https://example.com/schema", 7)

    def leading_nowhere(route: Route) -> None:
        known = route.fetch().json()
        schema = known["tool_calls"][0]["parameters"]
        schema["$defs"] = {"Round": {"anyOf": [{"$ref": "#/$defs/Round"}, {"type": "null"}]}}
        schema["properties"] |= {str(n): {"$ref": ref} for n, ref in enumerate(refs)}
        schema["required"] = [str(n) for n in range(len(refs))]
        route.fulfill(json=known)

    ada.page.route("**/approvals/*", leading_nowhere, times=1)
    ada.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    for n in range(len(refs)):
        expect(ada.page.locator(".fields").get_by_label(f"{n} JSON required")).to_be_visible()
    ada.button("Reject").click()


def test_a_form_hides_nothing_of_what_is_approved(ada: Tab, service: ServiceThread) -> None:
    """What a field cannot show stands below it as code points, while it is edited too; JSON escapes it. No
    name is drawn over what stands beside it."""
    named, marks = r'"path": "invoice_\u202efdp.exe\u200b", "keep": "5\u2066"', r"e\u0301\u0302\u0303"
    arguments = rf'{{{named}, "how": "\udb40\udc41", "{marks}": "\u2028"}}'
    (pause,) = talk(service, f"call Files-rotate {arguments}")
    ada.open("tasks", pause["task_id"])
    ada.button("Edit the arguments").click()
    path = ada.page.locator(".field", has=ada.page.get_by_label("path required"))
    expect(path).to_contain_text("invoice_⟨U+202E⟩fdp.exe⟨U+200B⟩")
    path.get_by_role("textbox").fill("invoice\u202dexe")
    expect(path).to_contain_text("invoice⟨U+202D⟩exe")
    path.get_by_role("textbox").fill("invoice.exe")
    expect(path.locator(".unseen")).to_have_count(0)
    form = ada.page.locator(".fields")
    expect(form.get_by_label("keep JSON")).to_have_value(r'"5\u2066"')
    expect(form.get_by_label("how").locator("option:checked")).to_have_text('"⟨U+E0041⟩"')
    expect(form.get_by_text("e⟨U+0301⟩⟨U+0302⟩⟨U+0303⟩", exact=True)).to_have_css("overflow", "clip")
    expect(form).to_contain_text("⟨U+2028⟩")
    ada.button("Reject").click()


def test_a_long_value_is_seen_from_its_beginning(ada: Tab, service: ServiceThread) -> None:
    """The field of an argument, and that of the reason, is as high as its text."""
    path = "/srv/customers.db " * 30 + "notes.txt"
    (pause,) = talk(service, f'call Files-delete {{"path": "{path}"}}')
    ada.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    field, reason = ada.page.get_by_label("path required"), ada.page.get_by_label("Reason")
    expect(field).to_be_focused()
    assert field.evaluate("field => [field.selectionStart, field.scrollTop]") == [0, 0]
    reason.fill(path)
    for grown in (field, reason):
        assert grown.evaluate("field => field.scrollHeight - field.clientHeight") == 0
    ada.button("Reject").click()


def test_an_edit_leaves_line_endings_as_they_were(ada: Tab, service: ServiceThread) -> None:
    """A field for text has one kind of them: a text with another is edited as JSON, which shows them."""
    (pause,) = talk(service, r'call Files-delete {"path": "one\r\ntwo\rthree"}')
    ada.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    path = ada.page.get_by_label("path JSON required")
    expect(path).to_have_value(r'"one\r\ntwo\rthree"')
    path.fill(r'"one\r\ntwo\rfour"')
    ada.button("Approve").click()
    expect(ada.page.locator(".turn-footer")).to_be_visible()
    with service.client("ada") as client:
        messages = client.get(f"/tasks/{pause['task_id']}/messages").raise_for_status().json()["items"]
    (result,) = (each for each in messages if each["role"] == "tool")
    assert result["items"][0]["content"] == "one\r\ntwo\rfour is deleted"


#: what is not seen where it stands, or not seen for what it is; the last ones of these are blanks
HIDING = (
    "\0\x1b\x7f\x85\xad\u034f\u061c\u115f\u17b4\u180b\u180e\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202e\u2060\u2066"
    "\u206f\u3164\ufe00\ufe0f\ufeff\uffa0\ufff0\ufff8\ufff9\U0001bca0\U0001d173\U000e0001\U000e0041\U000e0100\U000e0fff"
)
BLANKS = "\xa0\u1680\u2000\u200a\u202f\u205f\u2800\u3000"
#: what needs some of them to be what it is
WHOLE = (
    *("👩\u200d👩\u200d👧\u200d👦", "❤\ufe0f\u200d🔥", "🕵🏻\u200d♂\ufe0f", "1\ufe0f\u20e3", "↩\ufe0e"),
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    *("می\u200cخواهم", "क्\u200dष", "葛\U000e0100", "ខ\u200bក", "one\n\ttwo three"),
)


def test_of_a_long_text_the_beginning_is_shown_and_the_rest_on_demand(
    ada: Tab, service: ServiceThread
) -> None:
    """What was left out is said in a sentence, with a space before its button."""
    (answer,) = talk(service, "long " * 13_000)
    ada.open("tasks", answer["task_id"])
    cut = ada.page.locator(".said .cut")
    assert (cut.text_content() or "").strip() == "This is the beginning of 65 KB of text. Show all of it"
    said = ada.page.locator(".said .plain")
    assert len(said.text_content() or "") == 60_000
    cut.get_by_role("button").click()
    expect(cut).to_have_count(0)
    assert len(said.text_content() or "") > 64_000


def test_what_hides_is_shown_and_what_belongs_together_is_not_cut(ada: Tab) -> None:
    """Code shows every character that is not seen for what it is; prose those that hide or reorder."""
    shown = """async (all) => {
      const {exact, readable} = await moduleOf("text");
      return all.map((text) => [exact(text), readable(text)]);
    }"""
    for character, (code, prose) in zip(
        HIDING + BLANKS, ada.page.evaluate(shown, [f"a{each}b" for each in HIDING + BLANKS]), strict=True
    ):
        named = f"a⟨U+{ord(character):04X}⟩b"
        assert code == named
        assert prose == (f"a{character}b" if character in BLANKS else named)
    assert [prose for _, prose in ada.page.evaluate(shown, list(WHOLE))] == list(WHOLE)


def test_an_entity_hides_nothing_in_an_answer(ada: Tab) -> None:
    """Markdown has names for characters that reorder: what they stand for is shown."""
    ada.say("Say invoice&#x202e;fdp.exe")
    expect(ada.page.locator(".answer")).to_contain_text("invoice⟨U+202E⟩fdp.exe")


def test_code_in_an_answer_hides_nothing(ada: Tab) -> None:
    """A blank that is no space would be copied, and run as something else; prose may have it."""
    ada.say("Say 5\u00a0kg, `rm\u00a0-rf` and\n\n```\nrm\u2003-rf\n```\n\nThat is all.")
    answer = ada.page.locator(".answer")
    expect(answer.locator("code")).to_have_text(["rm⟨U+00A0⟩-rf", "rm⟨U+2003⟩-rf"])
    expect(answer).to_contain_text("Say 5")
    assert "5\u00a0kg" in (answer.text_content() or "")


def test_a_link_to_a_session_says_nothing_but_its_id(ada: Tab) -> None:
    """Who makes the link does not write on the page."""
    ada.open("new?session=abc. Call 555-0100 to win!")
    expect(ada.text("Not found")).to_be_visible()
    session = str(uuid4())
    ada.open(f"new?session={session}")
    expect(ada.page.locator("main")).to_contain_text(f"part of the session {session}")


def test_what_was_said_before_a_pause_is_shown(ada: Tab, service: ServiceThread) -> None:
    """Although the request was not streamed, so that no event says it."""
    (pause,) = talk(service, "rotate the log")
    ada.open("tasks", pause["task_id"])
    expect(ada.page.locator(".pause")).to_contain_text("Files-rotate")
    expect(ada.text("I would rotate it.")).to_have_count(1)
    ada.button("Reject").click()
    expect(ada.page.locator(".turn-footer")).to_be_visible()
    expect(ada.text("I would rotate it.")).to_have_count(1)


@pytest.mark.parametrize("streamed", [False, True])
def test_what_was_said_before_calls_of_which_the_first_waits_is_shown_once(
    ada: Tab, service: ServiceThread, streamed: bool
) -> None:
    """Although the events name only the one that has run."""
    if streamed:
        ada.say("tidy up")
        expect(ada.page.locator(".pause")).to_be_visible()
        ada.page.reload()
    else:
        (pause,) = talk(service, "tidy up")
        ada.open("tasks", pause["task_id"])
    expect(ada.page.locator(".pause")).to_contain_text("Files-delete")
    parts = ada.page.locator("[data-live] .answer > :is(.markdown, .call)")
    expect(parts).to_have_text(["I would tidy up.", re.compile("Files-list.*done")])
    ada.button("Reject").click()
    expect(ada.page.locator(".turn-footer")).to_be_visible()
    expect(ada.text("I would tidy up.")).to_have_count(1)


def test_a_history_that_a_client_sent_is_shown_in_its_order(ada: Tab, service: ServiceThread) -> None:
    """Only its first message can be edited: an edit of another one would lose what was said before it."""

    def said(role: str, content: str) -> dict[str, str]:
        return {"type": "message", "role": role, "content": content}

    history = [("user", "hello"), ("assistant", "Hi!"), ("user", "I am Ada."), ("user", "I like green.")]
    items = [said(*each) for each in (*history, ("assistant", "Noted."))]
    with service.client("ada") as client:
        made = client.post("/openai/v1/conversations", json={"items": items}).raise_for_status().json()
        body = {"model": "Tester", "conversation": made["id"], "input": "What is my name?"}
        client.post("/openai/v1/responses", json=body).raise_for_status()
        (task, *_) = client.get("/tasks").raise_for_status().json()["items"]
    ada.open("tasks", task["task_id"])
    expect(ada.page.locator(".turn :is(.plain, .markdown)")).to_have_text(
        ["hello", "Hi!", "I am Ada.", "I like green.", "Noted.", "What is my name?", "Your name is Ada."]
    )
    editable = ada.page.locator(".said", has=ada.button("Edit and send again"))
    expect(editable).to_have_text([re.compile("hello"), re.compile("What is my name")])


def test_branches_that_say_the_same_are_called_the_same(ada: Tab, service: ServiceThread) -> None:
    """Neither of them goes on where the other one ends."""
    (answer,) = talk(service, "hello")
    with service.client("ada") as client:
        fork = client.post(f"/tasks/{answer['task_id']}/fork", json={}).raise_for_status().json()
    ada.open("compare", answer["task_id"], "current", fork["task_id"], "current")
    expect(ada.text("The other one says the same.")).to_have_count(2)


def test_a_fork_of_a_fork_has_the_requests_of_the_original(ada: Tab, service: ServiceThread) -> None:
    """Although its messages are copies of copies. The same words said at another time are another request."""
    original = talk(service, "hello", "My name is Ada.")[0]["task_id"]
    with service.client("ada") as client:

        def fork(task: str) -> str:
            made: str = client.post(f"/tasks/{task}/fork", json={}).raise_for_status().json()["task_id"]
            body = {"task_id": made, "items": [{"content_type": "text", "content": "What is my name?"}]}
            client.post("", json=body).raise_for_status()
            return made

        first = fork(original)
        second, other = fork(first), fork(original)
    for left, right, count in (
        (original, second, "2 requests"),
        (first, second, "3 requests"),
        (second, other, "2 requests"),
    ):
        ada.open("compare", left, "current", right, "current")
        expect(ada.text(f"{count} in common")).to_be_visible()


def test_copies_in_a_fork_have_no_way_to_a_trace(ada: Tab, service: ServiceThread) -> None:
    """The fork has none of them: what is shown there is of other answers."""
    (original,) = talk(service, "hello")
    with service.client("ada") as client:
        fork = client.post(f"/tasks/{original['task_id']}/fork", json={}).raise_for_status().json()["task_id"]
        body = {"task_id": fork, "items": [{"content_type": "text", "content": "My name is Ada."}]}
        answer = client.post("", json=body).raise_for_status().json()
    footers = ada.open("tasks", fork).page.locator(".turn-footer")
    expect(footers).to_have_count(2)
    traces = footers.get_by_role("link", name="Trace of this answer")
    expect(traces).to_have_count(1)
    expect(traces).to_have_attribute("href", f"#/tasks/{fork}/trace/{answer['request_id']}")


@pytest.mark.parametrize("width", [360, 1280])
def test_branches_with_long_messages_are_drawn_within_their_columns(
    ada: Tab, service: ServiceThread, width: int
) -> None:
    """What each of them ends with is quoted in its heading, and cut off there."""
    (answer,) = talk(
        service, "Please tell me in a few words what is in the quarterly report, and who wrote it."
    )
    with service.client("ada") as client:
        fork = client.post(f"/tasks/{answer['task_id']}/fork", json={}).raise_for_status().json()
    ada.page.set_viewport_size({"width": width, "height": 740})
    ada.open("compare", answer["task_id"], "current", fork["task_id"], "current")
    branches = ada.page.locator(".branch")
    expect(branches).to_have_count(2)
    for branch in branches.all():
        assert branch.evaluate("branch => branch.scrollWidth <= branch.clientWidth")
    columns = ada.page.locator(".branches")
    assert columns.evaluate("columns => columns.scrollWidth <= columns.clientWidth")
    ada.page.set_viewport_size({"width": 1180, "height": 740})


def test_how_a_request_ended_is_in_view_although_it_is_loaded_later(ada: Tab, service: ServiceThread) -> None:
    """The end of the conversation stays in view when it grows, and when there is less room for it."""
    (answer,) = talk(service, "\n".join(["a long story", *"abcdefghijklmnopqrstuvwxyz"]))
    ada.page.set_viewport_size({"width": 1180, "height": 420})
    endings: list[Route] = []
    ada.page.route(f"**/requests/{answer['request_id']}", lambda route: endings.append(route))
    with ada.page.expect_request(f"**/requests/{answer['request_id']}"):
        ada.open("tasks", answer["task_id"])
    # until the task is read again nothing else draws the view anew
    ada.page.route(f"**/tasks/{answer['task_id']}", lambda route: None)
    endings[0].continue_()
    expect(ada.page.locator(".ended")).to_be_visible()
    footer = ada.page.locator(".turn-footer")
    expect(footer).to_be_in_viewport(ratio=1)
    message = ada.page.get_by_role("textbox", name="Message", exact=True)
    for lines in (4, 8, 9):
        message.fill("x\n" * lines)
        expect(footer).to_be_in_viewport(ratio=1)
    message.fill("")
    expect(footer).to_be_in_viewport(ratio=1)  # in one frame with what follows, it would be one change
    ada.page.set_viewport_size({"width": 1180, "height": 340})
    expect(footer).to_be_in_viewport(ratio=1)
    ada.page.unroute_all(behavior="ignoreErrors")  # what is held by then continues
    ada.page.set_viewport_size({"width": 1180, "height": 740})


def test_images_that_were_not_sent_stay(ada: Tab, service: ServiceThread) -> None:
    """Another view does not take them away; they are gone once they were sent."""
    (answer,) = talk(service, "hello")
    ada.open("tasks", answer["task_id"])
    picture = Path(__file__).parents[2] / "demos/images/teapot.png"
    ada.page.get_by_label("Images", exact=True).set_input_files(picture)
    waiting = ada.page.get_by_role("img", name="teapot.png")
    expect(waiting).to_be_visible()
    ada.link("Trace").click()
    expect(ada.page.locator(".waterfall")).to_be_visible()
    ada.link("Conversation").click()
    expect(waiting).to_be_visible()
    ada.say("What is on it?")
    expect(ada.page.locator(".bubble img")).to_be_visible()
    expect(waiting).to_have_count(0)
    ada.link("Trace").click()
    expect(ada.page.locator(".waterfall")).to_have_count(2)
    ada.link("Conversation").click()
    expect(ada.page.locator(".bubble img")).to_be_visible()
    expect(waiting).to_have_count(0)


def test_a_model_call_that_failed_has_the_time_that_it_took(tabs: Tabs, service: ServiceThread) -> None:
    """None is made up where its end is all that is known: there is no scale to read it from."""
    with service.client("fay") as client:
        failed = client.post("", json={"items": [{"content_type": "text", "content": "refuse this"}]}).json()
    fay = tabs.signed_in(f"{service.url}/console/", "fay").open("tasks", failed["task_id"], "trace")
    took = fay.page.locator(".step[data-kind=error] .step-time")
    expect(took).to_have_text(re.compile(r"[1-9].*s"))
    expect(fay.page.locator(".scale")).to_have_count(1)

    def unknown(route: Route) -> None:
        steps = route.fetch().json()
        route.fulfill(json={**steps, "items": [{**step, "duration_ms": 0} for step in steps["items"]]})

    fay.page.route("**/trace?**", unknown)
    fay.page.reload()
    expect(took).to_have_text("")
    expect(fay.page.locator(".scale")).to_have_count(0)


def test_a_pause_that_is_not_decided_has_no_time_that_it_took(ada: Tab, service: ServiceThread) -> None:
    """It waits still, and a moment takes none."""
    (paused,) = talk(service, 'call Files-delete {"path": "x"}')
    ada.open("tasks", paused["task_id"], "trace").page.locator(".step-line").last.click()
    facts = ada.page.locator(".step[data-kind=approval] .facts dt")
    expect(facts).to_have_text(["Began"])


def test_metadata_hides_nothing(ada: Tab, service: ServiceThread) -> None:
    """What would reorder it is escaped, and saved as what it stands for; what is typed is shown below."""
    (answer,) = talk(service, "hello", metadata={"file": "invoice_\u202efdp.exe", "tag": "\U000e0041"})
    field = ada.open("tasks", answer["task_id"], "details").page.get_by_label("Metadata as JSON")
    expect(field).to_have_value(re.compile(r'"invoice_\\u202efdp\.exe"'))
    expect(field).to_have_value(re.compile(r'"\\udb40\\udc41"'))
    field.fill(field.input_value().replace("{", '{"more": "\u200b",', 1))
    expect(ada.page.locator(".unseen")).to_contain_text('"more": "⟨U+200B⟩"')
    ada.button("Save").click()
    expect(ada.text("The metadata is saved.")).to_be_visible()
    with service.client("ada") as client:
        kept = client.get(f"/tasks/{answer['task_id']}").json()["metadata"]
    assert kept == {"file": "invoice_\u202efdp.exe", "tag": "\U000e0041", "more": "\u200b"}


def test_of_nested_metadata_only_what_was_edited_changes(ada: Tab, service: ServiceThread) -> None:
    """A number that a browser rounds keeps its value beside it, and what was left out is gone."""
    order = {"id": 9007199254740993, "note": "draft", "old": True}
    (answer,) = talk(service, "hello", metadata={"order": order})
    field = ada.open("tasks", answer["task_id"], "details").page.get_by_label("Metadata as JSON")
    expect(field).to_have_value(re.compile("draft"))
    text = field.input_value().replace("draft", "final")
    field.fill(re.sub(r',\s+"old": true', "", text))
    ada.button("Save").click()
    expect(ada.text("The metadata is saved.")).to_be_visible()
    with service.client("ada") as client:
        kept = client.get(f"/tasks/{answer['task_id']}").json()["metadata"]
    assert kept == {"order": {"id": 9007199254740993, "note": "final"}}


def test_metadata_may_have_any_key(ada: Tab, service: ServiceThread) -> None:
    """One that every object of a browser inherits is removed like the others, also within objects."""
    given = {"constructor": "x", "more": {"toString": 1, "kept": 2}}
    (answer,) = talk(service, "hello", metadata=given)
    field = ada.open("tasks", answer["task_id"], "details").page.get_by_label("Metadata as JSON")
    expect(field).to_have_value(re.compile("constructor"))
    field.fill('{"more": {"kept": 2}}')
    ada.button("Save").click()
    expect(ada.text("The metadata is saved.")).to_be_visible()
    with service.client("ada") as client:
        kept = client.get(f"/tasks/{answer['task_id']}").json()["metadata"]
    assert kept == {"more": {"kept": 2}}


def test_the_text_of_fields_is_not_so_small_that_an_iphone_zooms_in_on_it(
    ada: Tab, service: ServiceThread
) -> None:
    """It does below 16 pixels, and the page stays too wide for the screen."""
    (answer,) = talk(service, "hello")

    def styles_of_an_iphone(route: Route) -> None:
        styles = route.fetch()
        route.fulfill(
            response=styles, body=styles.text().replace("(-webkit-touch-callout: none)", "(top: 0)")
        )

    ada.page.route("**/console.css", styles_of_an_iphone)
    ada.open("tasks", answer["task_id"], "details").page.reload()
    expect(ada.page.get_by_label("Expires at")).to_be_visible()
    fields = ada.page.locator("input:not([type=file]), select, textarea")
    expect(fields).to_have_count(4)  # the list is filtered by two of them
    sizes = "all => all.map((field) => parseFloat(getComputedStyle(field).fontSize))"
    assert min(fields.evaluate_all(sizes)) >= 16
    ada.page.unroute("**/console.css")
    ada.page.reload()


def test_numbers_are_shown_and_sent_as_they_are_written(ada: Tab, service: ServiceThread) -> None:
    """One that a browser would round is decided on as it stands, and kept when another one is edited."""
    (pause,) = talk(service, 'call Files-rotate {"path": "log", "keep": 9007199254740993}')
    ada.open("tasks", pause["task_id"])
    expect(ada.page.locator(".shown-call")).to_contain_text('"keep": 9007199254740993')
    ada.button("Edit the arguments").click()
    form = ada.page.locator(".fields")
    expect(form.get_by_label("keep", exact=True)).to_have_value("9007199254740993")
    form.get_by_label("path required").fill("other")
    ada.button("Approve").click()
    expect(ada.text("Files-rotate said: other 9007199254740993 move False")).to_be_visible()


def test_what_the_model_was_sent(ada: Tab, service: ServiceThread) -> None:
    """On demand: every part with where it comes from, the system prompt, and what is said of it."""
    answers = talk(service, "My name is Ada.", "What is my name?")
    ada.open("tasks", answers[-1]["task_id"], "trace")
    ada.page.locator(".waterfall").first.locator(".step-line").first.click()
    details = ada.page.locator(".step-details")
    expect(details).to_contain_text("4 parts, and the descriptions of")
    details.get_by_role("button", name="Show it").click()
    parts = details.locator(".sent-part")
    expect(parts).to_have_count(4)
    expect(parts.first).to_contain_text("You are a test.")
    expect(parts.nth(1)).to_contain_text("History")
    expect(parts.last).to_contain_text("What is my name?")
    expect(details.locator(".gaps li")).to_have_count(1)


def test_the_scale_of_the_trace_is_that_of_its_bars(ada: Tab, service: ServiceThread) -> None:
    """Also in a window that is hardly wider than a phone."""
    (answer,) = talk(service, "hello")
    ada.page.set_viewport_size({"width": 780, "height": 740})
    ada.open("tasks", answer["task_id"], "trace")
    places = [ada.page.locator(name).first.bounding_box() for name in (".scale", ".bar-place")]
    scale, bars = filter(None, places)
    assert (scale["x"], scale["width"]) == pytest.approx((bars["x"], bars["width"]), abs=1)
    ada.page.set_viewport_size({"width": 1180, "height": 740})


@pytest.mark.parametrize(
    ("story", "why"),
    [("a long story", "it reached the model's token limit"), ("a bad story", "content filter")],
)
def test_an_answer_that_was_cut_off_says_so(ada: Tab, service: ServiceThread, story: str, why: str) -> None:
    """When it has come, when it is read again, and beside one that is complete."""
    ada.say(f"Tell me {story}.")
    ended = ada.page.locator(".turn[id] .ended")
    expect(ended).to_contain_text(why)
    ada.page.reload()
    expect(ended).to_contain_text(why)
    (answer,) = talk(service, "hello", task_id=ada.page.url.split("/")[-1])
    with ada.page.expect_response(f"**/requests/{answer['request_id']}"):
        ada.look_again()
        expect(ada.page.locator(".turn-footer")).to_have_count(2)
    expect(ended).to_have_count(1)


def test_a_title_does_not_cut_a_character_in_two(ada: Tab) -> None:
    """The first words of a message are its title, and half an emoji is one that the service does not take."""
    ada.say("x" * 79 + "😀 and more")
    expect(ada.page.locator(".task-header h2")).to_have_text("x" * 79 + "…")


def test_what_is_written_is_kept_until_it_is_sent(ada: Tab, service: ServiceThread) -> None:
    """Another view does not take it away, nor does the sending of what stood there before."""
    (answer,) = talk(service, "hello")
    field = ada.page.get_by_role("textbox", name="Message", exact=True)
    ada.open("tasks", answer["task_id"])
    field.fill("Half a thought")
    ada.link("Trace").click()
    expect(ada.page.locator(".waterfall")).to_be_visible()
    ada.link("Conversation").click()
    expect(field).to_have_value("Half a thought")
    held: list[Route] = []
    sending = re.compile("/Tester/0.1$")
    ada.page.route(sending, lambda route: held.append(route))
    with ada.page.expect_request(sending):
        ada.button("Send").click()
    field.press_sequentially(" and more")
    held[0].continue_()
    expect(field).to_have_value(" and more")
    expect(ada.text("Half a thought")).to_be_visible()
    field.fill("")
    ada.page.unroute(sending)


def test_what_is_written_outlives_a_reload_and_not_the_session(ada: Tab, service: ServiceThread) -> None:
    """It stays in the tab until it is sent, or its user signs out."""
    (answer,) = talk(service, "hello")
    field = ada.page.get_by_role("textbox", name="Message", exact=True)
    ada.open("tasks", answer["task_id"])
    field.fill("Half a thought")
    ada.page.reload()
    expect(field).to_have_value("Half a thought")
    ada.button("Sign out").click()
    ada.sign_in("ada").open("tasks", answer["task_id"])
    expect(field).to_have_value("")


def test_of_a_text_that_comes_with_a_picture_the_text_is_pasted(ada: Tab) -> None:
    """Spreadsheets and word processors put both on the clipboard."""
    field = ada.page.get_by_role("textbox", name="Message", exact=True)

    def taken(text: str) -> bool:
        """Whether the picture was taken, and the text left to the browser not to paste."""
        refused: bool = field.evaluate(
            """(field, [text, dot]) => {
              const clipboardData = new DataTransfer();
              if (text) clipboardData.setData("text/plain", text);
              const bytes = Uint8Array.fromBase64(dot);
              clipboardData.items.add(new File([bytes], "cells.png", {type: "image/png"}));
              const paste = new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true});
              return !field.dispatchEvent(paste);
            }""",
            [text, DOT],
        )
        return refused

    assert not taken("1\t2")
    assert taken("")
    expect(ada.page.get_by_label("Images to send").get_by_role("img")).to_have_count(1)
    ada.button("Remove cells.png").click()


#: drops a text, or else a picture, and gives whether each event was kept from the browser
_DROPPED = """(place, [text, dot]) => {
  const dataTransfer = new DataTransfer();
  if (text) dataTransfer.setData("text/plain", text);
  else dataTransfer.items.add(new File([Uint8Array.fromBase64(dot)], "dropped.png", {type: "image/png"}));
  const how = {dataTransfer, bubbles: true, cancelable: true};
  return ["dragover", "drop"].map((name) => !place.dispatchEvent(new DragEvent(name, how)));
}"""


def test_files_are_dropped_into_a_message_and_text_is_left_to_the_browser(ada: Tab) -> None:
    """It inserts the text where it is dropped."""
    field = ada.open("new").page.get_by_role("textbox", name="Message", exact=True)
    assert field.evaluate(_DROPPED, ["some words", DOT]) == [False, False]
    assert field.evaluate(_DROPPED, ["", DOT]) == [True, True]
    ada.button("Remove dropped.png").click()


def test_a_file_that_is_dropped_beside_a_message_is_not_opened(ada: Tab) -> None:
    """The browser would, in a tab or in place of the page. A text may be dropped into any field."""
    for place in (ada.open("new").page.locator(".welcome h2"), ada.page.get_by_label("Filter by title")):
        assert place.evaluate(_DROPPED, ["", DOT]) == [True, True]
        assert place.evaluate(_DROPPED, ["some words", DOT]) == [False, False]
    field = ada.page.get_by_role("textbox", name="Message", exact=True)
    assert field.evaluate(_DROPPED, ["", DOT]) == [True, True]
    expect(ada.page.get_by_label("Images to send").get_by_role("img")).to_have_count(1)
    ada.button("Remove dropped.png").click()


def test_metadata_that_is_being_written_stays(ada: Tab, service: ServiceThread) -> None:
    """While the task goes on, and beside what was changed elsewhere meanwhile."""
    (answer,) = talk(service, "hello", metadata={"crew": "north", "mood": "good"})
    field = ada.open("tasks", answer["task_id"], "details").page.get_by_label("Metadata as JSON")
    field.fill('{"crew": "south", "place": "here"}')
    talk(service, "hello again", task_id=answer["task_id"])
    with service.client("ada") as client:
        path = f"/tasks/{answer['task_id']}"
        client.patch(path, json={"metadata": {"owner": "bob"}}).raise_for_status()
        changed = client.get(path).json()["last_updated"]
        with ada.page.expect_response(lambda seen: path in seen.url and changed in seen.text()):
            ada.look_again()
        expect(field).to_have_value('{"crew": "south", "place": "here"}')
        ada.button("Save").click()
        expect(ada.text("The metadata is saved.")).to_be_visible()
        kept = client.get(path).json()["metadata"]
    assert kept == {"crew": "south", "place": "here", "owner": "bob"}
    expect(field).to_have_value(re.compile('"owner": "bob"'))


def test_a_number_of_any_size_is_no_metadata(ada: Tab, service: ServiceThread) -> None:
    """Also one that JavaScript has no number for."""
    (answer,) = talk(service, "hello")
    field = ada.open("tasks", answer["task_id"], "details").page.get_by_label("Metadata as JSON")
    for number in ("7", "12345678901234567890"):
        field.fill("{}")
        expect(ada.text("This is not a JSON object.")).to_have_count(0)
        field.fill(number)
        expect(ada.text("This is not a JSON object.")).to_be_visible()
    field.fill("{}")


def test_the_time_to_decide_is_by_the_clock_of_the_service(tabs: Tabs, service: ServiceThread) -> None:
    """The browser's may be days off."""
    late = tabs.signed_in(f"{service.url}/console/", "late")
    (answer,) = talk(service, 'call Files-delete {"path": "notes.txt"}', user="late")
    late.page.evaluate("window.right = Date.now; Date.now = () => right() + 2 * 86_400_000")
    late.open("tasks", answer["task_id"])
    expect(late.page.get_by_role("timer")).to_contain_text("23 h 59 min left")
    late.page.evaluate("Date.now = right")


def test_a_file_that_is_not_taken_is_answered_with_words(ada: Tab, tmp_path: Path) -> None:
    """What is no image that is taken, or too large a one, is not dropped in silence."""
    images, notice = ada.page.get_by_label("Images"), ada.page.locator(".notice")
    drawing = FilePayload(name="a.svg", mimeType="image/svg+xml", buffer=b"<svg/>")
    large = tmp_path / "a.png"
    large.write_bytes(bytes(10_000_001))
    for file in (__file__, drawing):
        images.set_input_files(file)
        expect(notice).to_have_text("You can add only images: PNG, JPEG, GIF or WebP.")
        images.set_input_files(large)
        expect(notice).to_have_text("You can add only images of up to 10 MB.")
    expect(ada.page.get_by_label("Images to send")).to_have_count(0)


def test_a_damaged_image_is_not_added(ada: Tab) -> None:
    """What no browser can draw is refused at once; what was written, and a sound image, stay."""
    ada.open("new").page.get_by_label("Message", exact=True).fill("Look at this.")
    sound = (Path(__file__).parents[2] / "demos/images/teapot.png").read_bytes()
    files = [
        FilePayload(name=f"{name}.png", mimeType="image/png", buffer=data)
        for name, data in {"cut": sound[:40], "sound": sound, "text": b"no image", "empty": b""}.items()
    ]
    ada.page.get_by_label("Images", exact=True).set_input_files(files)
    expect(ada.page.locator(".notice")).to_have_text("A damaged image cannot be added.")
    expect(ada.page.get_by_label("Images to send").get_by_role("img")).to_have_count(1)
    expect(ada.page.get_by_label("Message", exact=True)).to_have_value("Look at this.")
    ada.button("Remove sound.png").click()
    ada.page.get_by_label("Message", exact=True).fill("")


@pytest.mark.parametrize(
    ("message", "where"), [("first", "a new conversation of this session"), ("second", "a fork")]
)
def test_a_notice_says_where_an_edited_message_was_sent(
    ada: Tab, service: ServiceThread, message: str, where: str
) -> None:
    """Before the first one there is nothing that a fork could hold."""
    first, _ = talk(service, "the first", "the second")
    ada.open("tasks", first["task_id"])
    said = ada.page.locator(".said", has_text=f"the {message}")
    said.get_by_role("button", name="Edit and send again").click()
    expect(said.get_by_role("textbox", name="Message")).to_be_focused()
    ada.page.keyboard.type(" and more")
    ada.page.keyboard.press("Enter")
    expect(ada.page.locator(".notice")).to_have_text(
        f"The changed message was sent in {where}. The original conversation is unchanged."
    )
    expect(ada.page.locator(".origin")).to_have_count(int(where == "a fork"))


def test_two_clicks_make_one_fork(ada: Tab, service: ServiceThread) -> None:
    """The second one comes before the first one is answered."""
    (answer,) = talk(service, "hello", session_id=str(uuid4()))
    ada.open("tasks", answer["task_id"], "travel")
    held: list[Route] = []
    ada.page.route("**/fork", lambda route: held.append(route))
    ada.page.locator(".node").get_by_role("button", name="Fork").dblclick()
    ada.held(held)
    ada.page.unroute("**/fork")
    expect(ada.text("This is the fork. Changes here do not affect the original.")).to_be_visible()
    with service.client("ada") as client:
        session = client.get(f"/sessions/{answer['session_id']}").raise_for_status().json()
    assert len(session["tasks"]) == 2


def test_a_click_before_the_fork_is_shown_makes_no_other(ada: Tab, service: ServiceThread) -> None:
    """The fork is made and the page has its address, and the button is still there."""
    (answer,) = talk(service, "hello", session_id=str(uuid4()))
    ada.open("tasks", answer["task_id"], "travel")
    fork = ada.page.locator(".node").get_by_role("button", name="Fork")
    # of the listeners to a change of address, those that capture come before the page's own
    fork.evaluate("(fork) => addEventListener('hashchange', () => fork.click(), {capture: true, once: true})")
    sent: list[str] = []
    ada.page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    fork.click()
    expect(ada.page.locator(".node")).to_have_count(0)
    with service.client("ada") as client:
        session = client.get(f"/sessions/{answer['session_id']}").raise_for_status().json()
    assert (len(sent), len(session["tasks"])) == (1, 2)


def test_what_a_button_cannot_do_is_said(ada: Tab, service: ServiceThread) -> None:
    """A browser allows copying on pages over HTTPS only, and the user may not allow it."""
    (answer,) = talk(service, "hello")
    ada.open("tasks", answer["task_id"])
    ada.page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true})")
    said = ada.text("Browsers copy only with permission, from pages over HTTPS. Select the text instead.")
    ada.button("Copy the answer").click()
    expect(said).to_be_visible()
    ada.page.evaluate("delete navigator.clipboard")
    ada.page.get_by_label("Images").set_input_files(__file__)
    expect(said).to_have_count(0)
    ada.page.evaluate("void (navigator.clipboard.writeText = () => Promise.reject(new Error('denied')))")
    ada.button("Copy the answer").click()
    expect(said).to_be_visible()
    ada.page.evaluate("delete navigator.clipboard.writeText")


def test_a_title_that_is_taken_away_is_shown_no_longer(ada: Tab, service: ServiceThread) -> None:
    """The first message stands in its place, as the dialog says."""
    (answer,) = talk(service, "hello", metadata={"title": "Greetings"})
    title = ada.open("tasks", answer["task_id"]).page.locator(".task-header h2")
    expect(title).to_have_text("Greetings")
    with service.client("ada") as client:
        client.patch(f"/tasks/{answer['task_id']}", json={"metadata": {"title": None}}).raise_for_status()
    ada.look_again()
    expect(title).to_have_text("hello")


def test_a_page_is_named_as_its_heading(ada: Tab, service: ServiceThread) -> None:
    """Tabs and history of the browser distinguish the views."""
    (answer,) = talk(service, "hello", metadata={"title": "Greetings"})
    for path, name in ((("tasks", answer["task_id"]), "Greetings"), (("approvals",), "Approvals")):
        ada.open(*path)
        expect(ada.page).to_have_title(f"{name} – Tester 0.1")


def test_a_title_of_blanks_is_none(ada: Tab, service: ServiceThread) -> None:
    """The first message stands in its place."""
    (answer,) = talk(service, "hello", metadata={"title": " \u3000"})
    title = ada.open("tasks", answer["task_id"]).page.locator(".task-header h2")
    expect(title).to_have_text("hello")


def test_a_list_that_cannot_be_continued_says_so(ada: Tab, service: ServiceThread) -> None:
    """The way to what is older stays, to be tried again."""
    talk(service, "hello")

    def endless(route: Route) -> None:
        if "cursor=" in route.request.url:
            return route.fulfill(status=404, json={"code": "not_found", "detail": "It is away."})
        return route.fulfill(json={**route.fetch().json(), "next_cursor": "more"})

    ada.expected.add(404)
    ada.page.route("**/tasks?**", endless)
    ada.page.reload()
    ada.button("Older conversations").click()
    expect(ada.page.locator(".notice")).to_have_attribute("data-shown", "true")
    expect(ada.button("Older conversations")).to_be_visible()


def test_a_list_keeps_its_pages_together(tabs: Tabs, service: ServiceThread) -> None:
    """What a new item moves to the next page is not lost, and what is deleted there goes."""
    for n in range(4):
        talk(service, f"number {n}", user="eve")
    eve = tabs.signed_in(f"{service.url}/console/", "eve")
    eve.page.route("**/tasks?**", _by_two)
    eve.page.reload()
    titles = eve.page.locator(".tasks .title")
    expect(titles).to_have_text(["number 3", "number 2"])
    eve.button("Older conversations").click()
    expect(titles).to_have_text([f"number {n}" for n in (3, 2, 1, 0)])
    talk(service, "number 4", user="eve")
    eve.look_again()
    expect(titles).to_have_text([f"number {n}" for n in (4, 3, 2, 1)])
    eve.button("Older conversations").click()
    expect(titles).to_have_text([f"number {n}" for n in (4, 3, 2, 1, 0)])
    titles.filter(has_text="number 1").click()
    eve.expected = {404}  # the page may be looking up what it is about to delete
    eve.page.locator(".task-header").get_by_label("Actions").click()
    eve.button("Delete …").click()
    eve.button("Delete").click()
    expect(titles).to_have_text([f"number {n}" for n in (4, 3, 2, 0)])


def test_a_page_that_is_added_while_the_list_is_read_again_stays(tabs: Tabs, service: ServiceThread) -> None:
    """The reading began before, with fewer pages."""
    for n in range(5):
        talk(service, f"number {n}", user="eli")
    eli = tabs.signed_in(f"{service.url}/console/", "eli")
    eli.page.route("**/tasks?**", _by_two)
    eli.page.reload()
    titles = eli.page.locator(".tasks .title")
    eli.button("Older conversations").click()
    expect(titles).to_have_count(4)
    talk(service, "number 5", user="eli")
    held: list[Route] = []
    eli.page.route("**/tasks?**cursor=**", lambda route: held.append(route), times=1)
    eli.look_again()
    eli.held(held)
    eli.button("Older conversations").click()
    expect(titles).to_have_text([f"number {n}" for n in range(4, -1, -1)])
    _by_two(held[0])
    expect(titles).to_have_text([f"number {n}" for n in range(5, -1, -1)])
    eli.page.unroute_all(behavior="ignoreErrors")


def test_a_page_that_comes_late_does_not_join_another_list(tabs: Tabs, service: ServiceThread) -> None:
    """It belongs to the list as it was filtered when it was asked for."""
    for n in range(3):
        talk(service, f"number {n}", user="finn")
    finn = tabs.signed_in(f"{service.url}/console/", "finn")
    held: list[Route] = []
    finn.page.route("**/tasks?**", _by_two)
    finn.page.route("**/tasks?**cursor=**", lambda route: held.append(route), times=1)
    finn.page.reload()
    with finn.page.expect_request("**/tasks?**cursor=**"):
        finn.button("Older conversations").click()
    status = finn.page.get_by_label("Status")
    status.select_option("Failed")
    expect(finn.page.get_by_text("No match. Try another filter.")).to_be_visible()
    with finn.page.expect_response("**/tasks?**cursor=**"):
        _by_two(held[0])
    finn.page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
    expect(finn.page.locator(".tasks .title")).to_have_count(0)
    status.select_option("All")


def test_what_is_not_loaded_yet_is_offered(tabs: Tabs, service: ServiceThread) -> None:
    """Where a filter finds nothing among what is, and below the other conversations of a session."""
    (first,) = talk(service, "hello", user="lea", metadata={"title": "the first of all"})
    for n in range(3):
        talk(service, f"number {n}", user="lea", session_id=first["session_id"])
    lea = tabs.signed_in(f"{service.url}/console/", "lea")
    lea.page.route("**/tasks?**", _by_two)
    lea.page.reload()
    titles = lea.page.locator(".tasks .title > span")
    expect(titles).to_have_count(2)
    lea.page.get_by_label("Filter by title").fill("the first of all")
    expect(lea.page.get_by_text("No match among those loaded so far. Load older ones.")).to_be_visible()
    lea.button("Older conversations").click()
    expect(titles).to_have_attribute("title", "the first of all")
    lea.page.get_by_label("Filter by title").fill("")
    lea.open("tasks", first["task_id"], "travel")
    others = lea.page.locator(".forks li")
    expect(others).to_have_count(2)
    lea.button("Show more").click()
    expect(others).to_have_count(3)
    expect(lea.button("Show more")).to_have_count(0)


def test_a_filter_finds_titles_that_were_not_in_view(tabs: Tabs, service: ServiceThread) -> None:
    """They are looked up for it; until they are there it is not said that nothing matches. One that cannot be
    read holds up no other."""
    oldest, damaged, *_ = (talk(service, f"number {n}", user="nat")[0] for n in range(8))
    nat = tabs.signed_in(f"{service.url}/console/", "nat", viewport={"width": 1180, "height": 360})
    titles = nat.page.locator(".tasks .title")
    expect(titles.first).to_have_text("number 7")
    expect(titles.last).to_contain_text("Task ")
    nat.expected = {500}
    nat.page.route(f"**/tasks/{damaged['task_id']}/messages?**", lambda route: route.fulfill(status=500))
    held: list[Route] = []
    beginning = f"**/tasks/{oldest['task_id']}/messages?**"
    nat.page.route(beginning, lambda route: held.append(route), times=1)
    with nat.page.expect_request(beginning):
        nat.page.get_by_label("Filter by title").fill("number 0")
    expect(nat.text("Looking up titles …")).to_be_visible()
    held[0].continue_()
    expect(titles).to_have_text(["number 0"])
    expect(nat.text("Looking up titles …")).to_have_count(0)
    nat.page.get_by_label("Filter by title").fill("number 9")
    expect(nat.text("No match. Try another filter.")).to_be_visible()


def test_a_filter_looks_for_what_was_written(tabs: Tabs, service: ServiceThread) -> None:
    """Not for the names and signs of the JSON in which a title and other metadata are kept."""
    for title in ('Translate "fine"', r"Look into C:\temp"):
        talk(service, "hello", user="pia", metadata={"title": title, "team": "south"})
    crew = {"lead": ["Eve", 7]}
    talk(service, "hello", user="pia", metadata={"title": "The subtitle", "team": "North", "crew": crew})
    pia = tabs.signed_in(f"{service.url}/console/", "pia")
    titles = pia.page.locator(".tasks .title")
    for written in ("title", "north", "team:north", "crew:", "crew:eve", "eve"):
        pia.page.get_by_label("Filter by title").fill(written)
        expect(titles).to_have_text(["The subtitle"])
        pia.page.get_by_label("Filter by title").fill("")
        expect(titles).to_have_count(3)
    for written, title in (('"fine"', 'Translate "fine"'), (r"c:\temp", r"Look into C:\temp")):
        pia.page.get_by_label("Filter by title").fill(written)
        expect(titles).to_have_text([title])
    for written in ("team", "{", '":"', "fine\\"):
        pia.page.get_by_label("Filter by title").fill(written)
        expect(titles).to_have_count(0)
    pia.page.get_by_label("Filter by title").fill("")


def _by_two(route: Route) -> None:
    route.continue_(url=re.sub(r"limit=\d+", "limit=2", route.request.url))


def test_the_inbox_shows_all_there_is(tabs: Tabs, service: ServiceThread) -> None:
    """What waits all at once, and what is over page by page, none of them empty; each decision once."""
    paused = [talk(service, f'call Files-delete {{"path": "{n}.txt"}}', user="gus")[0] for n in range(5)]
    gus = tabs.signed_in(f"{service.url}/console/", "gus")
    gus.page.route("**/approvals?**", _by_two)
    gus.open("approvals")
    cards = gus.page.get_by_role("article")
    expect(cards).to_have_count(5)
    expect(gus.button("Show more")).to_have_count(0)
    with service.client("gus") as client:
        for answer in paused:
            client.post(
                f"/requests/{answer['request_id']}/resume", json={"action": "reject"}
            ).raise_for_status()
    gus.button("Decided").click()
    for shown in (2, 4):
        expect(cards).to_have_count(shown)
        gus.button("Show more").click()
    # in the order of time: what is older continues below
    expect(cards).to_contain_text([f"{n}.txt" for n in (4, 3, 2, 1, 0)])
    expect(gus.button("Show more")).to_have_count(0)
    # where much was looked through for little, no click shows nothing; what comes to be far behind is found
    expired: set[int] = set()
    gus.page.route("**/approvals?status=expired**", _found_in(expired))
    gus.button("Expired").click()
    expect(gus.text("There are no approvals in this state.")).to_be_visible()
    expired.add(11)
    gus.page.evaluate("window.now = Date.now; Date.now = () => now() + 31_000")
    gus.look_again()
    expect(cards).to_have_count(1)
    gus.page.evaluate("Date.now = now")
    gus.page.route("**/approvals?status=canceled**", _found_in({0, 11}))
    gus.button("Canceled").click()
    expect(cards).to_have_count(1)
    gus.button("Show more").click()
    expect(cards).to_have_count(2)
    expect(gus.button("Show more")).to_have_count(0)


def _found_in(pages: set[int]) -> Callable[[Route], None]:
    """Twelve pages of approvals, of which these hold one."""

    def answer(route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        page = int(query.get("cursor", ["0"])[0])
        ids = {"approval_id": str(uuid4()), "task_id": str(uuid4())}
        pause = {**ids, "status": query["status"][0], "tool_calls": [], "created_at": "2026-01-01T00:00:00Z"}
        route.fulfill(
            json={
                "items": [pause] if page in pages else [],
                "next_cursor": str(page + 1) if page < 11 else None,
            }
        )

    return answer


def test_a_pause_that_arrives_does_not_move_the_buttons_of_others(tabs: Tabs, service: ServiceThread) -> None:
    """Else one would approve another call than the one that was read."""
    talk(service, 'call Files-delete {"path": "first.txt"}', user="ray")
    ray = tabs.signed_in(f"{service.url}/console/", "ray").open("approvals")
    button = ray.page.locator(".card", has_text="first.txt").get_by_role("button", name="Approve")
    expect(button).to_be_visible()
    before = button.bounding_box()
    talk(service, 'call Files-delete {"path": "second.txt"}', user="ray")
    ray.look_again()
    expect(ray.page.get_by_role("article")).to_contain_text(["first.txt", "second.txt"])
    assert button.bounding_box() == before


@pytest.mark.parametrize("how", ["as asked", "edited", "elsewhere"])
def test_a_decision_does_not_move_the_buttons_of_other_pauses(
    tabs: Tabs, service: ServiceThread, how: str
) -> None:
    """Neither when it is made nor when a long answer arrives, which scrolls in the place of the form."""
    user = f"roy {how}".replace(" ", "-")
    paragraphs = r"\n\n".join(f"Point {n}" for n in range(30))
    for path in ("second.txt", paragraphs):
        (asked,) = talk(service, f'call Files-delete {{"path": "{path}"}}', user=user)
    roy = tabs.signed_in(f"{service.url}/console/", user).open("approvals")
    cards = roy.page.get_by_role("article")
    expect(cards).to_have_count(2)
    first, second = cards.all()
    if how == "edited":
        first.get_by_role("button", name="Edit the arguments").click()
        expect(first.get_by_label("path")).to_be_focused()
    other = second.get_by_role("button", name="Approve")
    # a click that has to wait is tried again elsewhere in the window: the page would be scrolled
    expect(first.get_by_role("button", name="Approve")).to_have_css("pointer-events", "auto")
    before = other.bounding_box()
    if how == "elsewhere":
        with service.client(user) as client:
            client.post(f"/requests/{asked['request_id']}/resume", json={"action": "approve"})
        roy.look_again()
        expect(first).to_contain_text(f"Decided by {user}")
    else:
        held: list[Route] = []
        roy.page.route("**/resume**", lambda route: held.append(route), times=1)
        first.get_by_role("button", name="Approve").click()
        expect(first.get_by_role("status")).to_contain_text("Sending the decision")
        assert other.bounding_box() == before
        roy.held(held).continue_()
        expect(first.get_by_role("status")).to_contain_text("The request is Completed")
        end = first.get_by_text("Point 29 is deleted")
        end.scroll_into_view_if_needed()
        expect(end).to_be_in_viewport(ratio=1)
    assert other.bounding_box() == before


#: what is kept of a list for half a minute is kept for as long as a slow machine takes
_STOP_TIME = """() => {
  const at = Date.now();
  window.now = Date.now;
  Date.now = () => at;
}"""


def test_the_badge_and_the_inbox_read_what_waits_once(tabs: Tabs, service: ServiceThread) -> None:
    """And of more than a page only the first one, as long as it holds the same."""
    for n in range(2):
        talk(service, f'call Files-delete {{"path": "{n}.txt"}}', user="sam")
    sam = tabs.signed_in(f"{service.url}/console/", "sam").open("approvals")
    sam.page.route(
        "**/approvals?**",
        lambda route: route.continue_(url=re.sub(r"limit=\d+", "limit=1", route.request.url)),
    )
    sam.page.evaluate(_STOP_TIME)
    with sam.page.expect_response(lambda answer: "cursor=" in answer.url):
        sam.look_again()
    expect(sam.page.get_by_role("article")).to_have_count(2)
    held: list[Route] = []
    sam.page.route("**/approvals?**", lambda route: held.append(route))
    with sam.page.expect_request("**/approvals?**"):
        sam.look_again()
    # whatever was asked for with it has been by now
    sam.page.evaluate("fetch('config.json')")
    assert len(held) == 1
    with sam.page.expect_response("**/approvals?**"):
        held[0].continue_(url=held[0].request.url.replace("limit=200", "limit=1"))
    sam.page.evaluate("fetch('config.json')")
    assert not [route for route in held if "cursor=" in route.request.url]
    sam.page.unroute_all(behavior="ignoreErrors")
    sam.page.evaluate("Date.now = now")


def test_what_was_decided_on_a_later_page_is_not_offered_again(tabs: Tabs, service: ServiceThread) -> None:
    """Although that page was being read when it was decided."""
    for n in range(2):
        talk(service, f'call Files-delete {{"path": "{n}.txt"}}', user="sue")
    with service.client("sue") as client:
        pauses = client.get("/approvals?status=pending").raise_for_status().json()["items"]
    sue = tabs.signed_in(f"{service.url}/console/", "sue").open("approvals")
    older = sue.page.locator(".card", has_text="0.txt")
    expect(older).to_be_visible()
    held: list[Route] = []
    sue.page.route(
        "**/approvals?**",
        lambda route: route.continue_(url=re.sub(r"limit=\d+", "limit=1", route.request.url)),
    )
    sue.page.route("**/approvals?**cursor=**", lambda route: held.append(route), times=1)
    with sue.page.expect_request("**/approvals?**cursor=**"):
        sue.look_again()
    older.get_by_role("button", name="Approve").click()
    expect(older.get_by_role("status")).to_contain_text("The request is Completed")

    def of_the_first_page(answer: Response) -> bool:
        return "/approvals?" in answer.url and "cursor=" not in answer.url

    with sue.page.expect_response(of_the_first_page):
        held[0].fulfill(json={"items": pauses[1:], "next_cursor": None})
    # once the list is read again, the reading before it has ended
    with sue.page.expect_response(of_the_first_page):
        sue.look_again()
    sue.open("new")
    expect(sue.page.get_by_role("article")).to_have_count(0)  # else the view might stay as it is
    sue.open("approvals")
    expect(sue.page.get_by_role("article")).to_have_count(1)
    sue.page.unroute_all(behavior="ignoreErrors")


#: counts how often a time of the first of January is written
_COUNT_TIMES = """() => {
  const {toDateString} = Date.prototype;
  let count = 0;
  Date.prototype.toDateString = function () {
    count += this.toISOString().startsWith("2026-01-01");
    return toDateString.call(this);
  };
  window.uncounted = () => ((Date.prototype.toDateString = toDateString), count);
}"""


def test_of_what_waits_no_longer_the_newest_fifty_stay(tabs: Tabs, service: ServiceThread) -> None:
    """An inbox that stays open does not grow without end, and looks up what one can see."""
    talk(service, 'call Files-delete {"path": "one.txt"}', user="tom")
    with service.client("tom") as client:
        (pause,) = client.get("/approvals?status=pending").raise_for_status().json()["items"]
    waiting = [
        {**pause, "approval_id": str(uuid4()), "created_at": f"2026-01-01T00:00:{n:02}Z"} for n in range(60)
    ]
    tom = tabs.signed_in(f"{service.url}/console/", "tom")
    tom.expected = {404}
    tom.page.route(
        "**/approvals?**", lambda route: route.fulfill(json={"items": waiting, "next_cursor": None})
    )
    tom.page.evaluate(_STOP_TIME)
    tom.open("approvals")
    cards = tom.page.get_by_role("article")
    expect(cards).to_have_count(61)
    # what is not laid out is no wider than a phone
    tom.page.set_viewport_size({"width": 390, "height": 740})
    assert tom.page.evaluate("document.querySelector('main').scrollWidth") == 390
    tom.page.set_viewport_size({"width": 1180, "height": 740})
    # while they are the same, they are not drawn again
    tom.page.evaluate(_COUNT_TIMES)
    with tom.page.expect_response("**/approvals?**"):
        tom.look_again()
    tom.page.evaluate("fetch('config.json')")
    assert tom.page.evaluate("uncounted()") == 0
    tom.page.evaluate("Date.now = now")
    tom.record()
    waiting.clear()
    tom.look_again()
    expect(cards).to_have_count(50)
    expect(tom.page.locator("time[datetime$=':00:00Z']")).to_have_count(0)
    expect(cards.first).to_contain_text("No longer waiting")
    # the service knows none of them: that they wait is not said
    expect(tom.page.get_by_text("It was decided elsewhere, or the request ended.")).to_have_count(50)
    assert len([url for url in tom.requests if "/approvals/" in url]) < 50


def test_what_was_decided_last_stays_in_the_inbox(tabs: Tabs, service: ServiceThread) -> None:
    """However many were decided before it, and although those that wait were asked later."""
    talk(service, 'call Files-delete {"path": "one.txt"}', user="tess")
    with service.client("tess") as client:
        (pause,) = client.get("/approvals?status=pending").raise_for_status().json()["items"]
    waiting = [
        {**pause, "approval_id": str(uuid4()), "created_at": f"2026-01-01T00:00:{n:02}Z"}
        for n in reversed(range(53))
    ]
    tess = tabs.signed_in(f"{service.url}/console/", "tess")
    tess.expected = {404}
    tess.page.route(
        "**/approvals?**", lambda route: route.fulfill(json={"items": waiting, "next_cursor": None})
    )
    tess.open("approvals")
    expect(tess.button("Approve")).to_have_count(53)
    first_asked = tess.page.locator(".card:has(time[datetime='2026-01-01T00:00:00Z'])")
    for left in (3, 1, 0):
        del waiting[: len(waiting) - left]
        tess.look_again()
        expect(tess.button("Approve")).to_have_count(left)
    expect(first_asked).to_contain_text("No longer waiting")


def test_entries_of_another_day_name_the_day(ada: Tab, service: ServiceThread) -> None:
    """And of another year, the year: in the audit and in the trace."""
    (answer,) = talk(service, "hello")

    def of_another_year(route: Route) -> None:
        text = re.sub(r'"(at|started_at)":\s*"[^T]*T', r'"\1": "2020-03-05T', route.fetch().text())
        route.fulfill(body=text, content_type="application/json")

    for view, times in (("audit", "td time"), ("trace", ".waterfall h3")):
        ada.page.route(f"**/{view}?**", of_another_year)
        ada.open("tasks", answer["task_id"], view)
        expect(ada.page.locator(times).first).to_contain_text("2020")


@pytest.mark.parametrize(
    "slow",
    [
        "**abc* " * 2800,
        "a_b,c_d,*e\n" * 3000,
        "def _f(self, *args, **kwargs): ...\n" * 1600,
        "aaaaaaaaaa." * 1800 + "@",
        "a" + " " * 19_000 + "b",
        ("www.a.b?" + ")" * 9000 + "\n\n") * 5,
        "|" + "a|" * 150 + "\n|" + "-|" * 150 + "\n" + "|\n" * 150,
        "|" + "a|" * 150 + "\n|" + "-|" * 150 + "\n" + "|\n\u00a0\n" * 75,
        "> - |" + "a|" * 150 + "\n>   |" + ":-: |" * 150 + "\n" + ">   |\n" * 150,
        ">" * 3000 + " deep",
        "- " * 500 + "deep",
    ],
)
def test_text_that_is_slow_to_parse_is_shown_as_it_is(ada: Tab, slow: str) -> None:
    """It would stop the page, once a frame while it comes."""
    assert _drawn(ada, slow) == "plain"


def test_long_text_that_is_fast_to_parse_is_formatted(ada: Tab) -> None:
    """Paragraphs, lists and blocks of code, as answers have them."""
    code = "```python\n" + "def a_b(self, *args):\n    return self._c_d(*args)\n\n" * 900 + "```\n\n"
    assert _drawn(ada, code + "- **one** and *two*\n- `three`\n\n" * 1500) == "markdown"


@pytest.mark.parametrize(
    "block",
    [
        "```json\n" + '  {"id": 12345, "name": "Ada Lovelace"},\n' * 500 + "```\n",
        "| id | name | city |\n|---|---|---|\n" + "| 12345 | Ada Lovelace | 1234.50 EUR, Amsterdam |\n" * 400,
        "- **Ada Lovelace**: wrote the first program, in 1843.\n" * 400,
    ],
    ids=["code", "table", "list"],
)
def test_a_block_of_20_kb_without_blank_lines_is_formatted(ada: Tab, block: str) -> None:
    """Its lines, cells and items are short, so it is fast to parse."""
    assert _drawn(ada, f"Here **it** is:\n\n{block}") == "markdown"


@pytest.mark.parametrize(
    "line",
    ["-" * 40, "+--------------------------+", "```\n id | name\n" + "-" * 24 + "+------\n  1 | x\n```"],
)
def test_a_long_line_of_dashes_is_no_list(ada: Tab, line: str) -> None:
    """A rule, or the border of a table: what stands around it is formatted."""
    assert _drawn(ada, f"Here **it** is:\n\n{line}\n\n- one") == "markdown"


def test_a_footnote_of_one_word_is_shown(ada: Tab) -> None:
    """It looks like the address of a link, which is not shown."""
    shown = """async (text) => {
        const {html, render} = await moduleOf("html");
        const {Markdown} = await moduleOf("markdown");
        const place = document.createElement("div");
        render(html`<${Markdown} text=${text} />`, place);
        return [place.textContent, place.querySelector("a").href];
    }"""
    text = "5 MB[^1], see [there][1].\n\n[1]: https://example.com/\n\n  [^1]: Documentation"
    said, link = ada.page.evaluate(shown, text)
    assert "5 MB[^1]" in said
    assert "[^1]: Documentation" in said
    assert link == "https://example.com/"


@pytest.mark.parametrize(
    "start", ["- a\n", "> 1. a\n", "- a\n\n  b\n", "-\n  a\n", "1.\n   a\n", "> -\n> a\n"]
)
def test_a_list_item_of_many_lines_is_shown_as_it_is(ada: Tab, start: str) -> None:
    """Finding its end alone would stop the page."""
    assert _drawn(ada, start + "c\n" * 5000) == "plain"


def test_items_of_several_lines_each_are_formatted(ada: Tab) -> None:
    """However many there are, each is short; so is one with a block of code."""
    code = "1. Write this:\n   ```\n" + "   x = f(y)\n" * 300 + "   ```\n"
    item = "- **one**\n  two\n  - three\n    four\n"
    assert _drawn(ada, code + item * 500) == "markdown"


def test_lists_and_quotes_have_their_marks_where_their_language_begins(ada: Tab) -> None:
    """Also where what is in them is a block of its own; a cell of a table reads as itself."""
    directions = """async (text) => {
        const {html, render} = await moduleOf("html");
        const {Markdown} = await moduleOf("markdown");
        const place = document.body.appendChild(document.createElement("div"));
        render(html`<${Markdown} text=${text} />`, place);
        const all = [...place.querySelectorAll("ul, ol, blockquote, td")];
        const found = all.map((each) => `${each.localName} ${getComputedStyle(each).direction}`);
        place.remove();
        return found;
    }"""
    text = "- واحد\n\n- foo\n\nand\n\n1. اثنان\n\nand\n\n> اقتباس\n\n- one\n\n|a|b|\n|-|-|\n|واحد|one|"
    assert ada.page.evaluate(directions, text) == (
        ["ul rtl", "ol rtl", "blockquote rtl", "ul ltr", "td rtl", "td ltr"]
    )


def test_html_in_an_answer_keeps_its_lines(ada: Tab) -> None:
    """It is text, with its indentation, also in a list, and reads as its language does."""
    lines = """async (text) => {
        const {html, render} = await moduleOf("html");
        const {Markdown} = await moduleOf("markdown");
        const place = document.body.appendChild(document.createElement("div"));
        place.className = "answer";
        render(html`<${Markdown} text=${text} />`, place);
        const [block] = place.querySelectorAll("[dir]");
        const found = [place.innerText, getComputedStyle(block).direction];
        place.remove();
        return found;
    }"""
    xml = "<project>\n  <groupId>a</groupId>\n</project>"
    assert ada.page.evaluate(lines, f"{xml}\n\nDone.") == [f"{xml}\n\nDone.", "ltr"]
    assert ada.page.evaluate(lines, "<think>\nواحد\n</think>") == ["<think>\nواحد\n</think>", "ltr"]
    assert ada.page.evaluate(lines, "<واحد>\n") == ["<واحد>", "rtl"]
    item = "\n".join(f"  {line}" for line in xml.splitlines())
    assert xml in ada.page.evaluate(lines, f"- One\n\n{item}")[0]


def test_a_table_has_its_first_column_where_its_language_begins(ada: Tab) -> None:
    """Whatever each cell reads as; so has one in a quote, whose mark is on that side too."""
    sides = """async (text) => {
        const {html, render} = await moduleOf("html");
        const {Markdown} = await moduleOf("markdown");
        const place = document.body.appendChild(document.createElement("div"));
        render(html`<${Markdown} text=${text} />`, place);
        const found = [...place.querySelectorAll("tr")].map(({cells: [first, second]}) => {
          const side = first.getBoundingClientRect().x < second.getBoundingClientRect().x ? "left" : "right";
          return [side, getComputedStyle(first).direction, getComputedStyle(second).direction].join(" ");
        });
        for (const each of place.querySelectorAll("blockquote")) found.push(getComputedStyle(each).direction);
        place.remove();
        return found;
    }"""
    arabic = "|عمود|b|\n|-|-|\n|one|قيمة|"
    latin = "|a|b|\n|-|-|\n|واحد|one|"
    quoted = "\n".join(f"> {line}" for line in arabic.splitlines())
    assert ada.page.evaluate(sides, arabic) == ["right rtl ltr", "right ltr rtl"]
    assert ada.page.evaluate(sides, latin) == ["left ltr ltr", "left rtl ltr"]
    assert ada.page.evaluate(sides, quoted) == ["right rtl ltr", "right ltr rtl", "rtl"]


def test_in_a_list_of_several_languages_each_item_reads_as_itself_beside_the_marks(ada: Tab) -> None:
    ends = """async (text) => {
        const {html, render} = await moduleOf("html");
        const {Markdown} = await moduleOf("markdown");
        const place = document.body.appendChild(document.createElement("div"));
        render(html`<${Markdown} text=${text} />`, place);
        const left = (node, at) => {
          const range = document.createRange();
          range.setStart(node, at);
          range.setEnd(node, at + 1);
          return range.getClientRects()[0].left;
        };
        const found = [...place.querySelectorAll("li")].map(({firstChild: node, offsetLeft}) => {
          const [first, last] = [left(node, 0), left(node, node.length - 1)];
          const side = Math.min(first, last) - offsetLeft < 40 ? "left" : "right";
          return `${last < first ? "rtl" : "ltr"} ${side}`;
        });
        place.remove();
        return found;
    }"""
    assert ada.page.evaluate(ends, "- Python (easy)!\n- جافا (أصعب)!") == ["ltr left", "rtl left"]
    assert ada.page.evaluate(ends, "1. جافا (أصعب)!\n2. Python (easy)!") == ["rtl right", "ltr right"]


def test_without_a_pointer_the_pencil_is_seen(tabs: Tabs, service: ServiceThread) -> None:
    """On a tablet as on a phone; elsewhere it is where one points at the message."""
    (answer,) = talk(service, "hello")
    size = {"width": 820, "height": 900}
    tablet = tabs.signed_in(f"{service.url}/console/", "ada", has_touch=True, is_mobile=True, viewport=size)
    pencil = tablet.open("tasks", answer["task_id"]).button("Edit and send again")
    expect(pencil).to_have_css("opacity", "1")


def test_the_field_grows_when_the_window_gets_narrower(ada: Tab, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: ada.page.set_viewport_size({"width": 1180, "height": 740}))
    field = ada.open("new").page.get_by_role("textbox", name="Message", exact=True)
    field.fill("word " * 60)
    ada.page.set_viewport_size({"width": 500, "height": 740})
    handle = field.element_handle()
    ada.page.wait_for_function("(field) => field.scrollHeight <= field.clientHeight", arg=handle)
    field.fill("")


def test_an_answer_that_is_json_is_shown_as_json(ada: Tab) -> None:
    """As markdown it would lose its underscores and asterisks, and links would end behind their quotes."""
    ada.open("new").say("json please")
    wanted = {"name": "__init__", "glob": "*.py, *.js", "at": ["https://example.com/a"]}
    expect(ada.page.locator(".answer pre")).to_have_text(json.dumps(wanted, indent=2), use_inner_text=True)
    expect(ada.page.locator(".turn-footer")).to_be_visible()
    expect(ada.page.locator(".markdown")).to_have_count(0)


def test_json_is_readable_even_if_it_is_a_list_or_ends_early(ada: Tab, service: ServiceThread) -> None:
    """Its texts are prose, in which emoji are no code points, and one need not scroll in an answer."""
    shown = ada.page.locator(".answer pre")
    for said, wanted in (
        ("json that is cut off", '{"name": "__init__", "glob": "*.p'),
        ("a list of texts", json.dumps(TEXTS, indent=2, ensure_ascii=False)),
    ):
        (answer,) = talk(service, said)
        ada.open("tasks", answer["task_id"])
        expect(shown).to_have_text(wanted, use_inner_text=True)
    assert shown.evaluate("pre => pre.scrollHeight - pre.clientHeight") == 0


def test_a_list_begins_with_its_number_and_columns_are_aligned(ada: Tab, service: ServiceThread) -> None:
    """As the model wrote them; other columns begin where their text does. Code has the size of its block."""
    (answer,) = talk(service, "columns please")
    shown = ada.open("tasks", answer["task_id"]).page.locator(".markdown")
    expect(shown.locator("ol")).to_have_attribute("start", "1990")
    aligned = "cells => cells.map((cell) => getComputedStyle(cell).textAlign.replace('-webkit-', ''))"
    assert shown.locator("td").evaluate_all(aligned) == ["start", "right", "center"]
    sizes = "all => all.map((each) => getComputedStyle(each).fontSize)"
    code, block = shown.locator("pre code, pre").evaluate_all(sizes)
    assert code == block


def test_a_break_within_a_cell_is_drawn(ada: Tab, service: ServiceThread) -> None:
    """Markdown has no other way to say it. A tag that says more, or that stands in code, is text."""
    (answer,) = talk(service, "breaks please")
    shown = ada.open("tasks", answer["task_id"]).page.locator(".markdown")
    one, other = (shown.locator("td").nth(n) for n in range(2))
    expect(one.locator("br")).to_have_count(3)
    expect(one).to_have_text("onetwothreefour")
    assert one.evaluate("cell => cell.innerText") == "one\ntwo\nthree\nfour"
    expect(other).to_have_text("<br> <br class=x> </br>")
    expect(other.locator("br")).to_have_count(0)
    expect(shown.locator("p, div")).to_have_text(["a line", "<br onclick=x>"])
    expect(shown.locator("p + br")).to_have_count(1)


def _drawn(tab: Tab, text: str) -> str:
    """As what a text of a model is drawn."""
    drawn = """async (text) => {
        const {html, render} = await moduleOf("html");
        const {Markdown} = await moduleOf("markdown");
        const place = document.createElement("div");
        render(html`<${Markdown} text=${text} />`, place);
        return place.firstElementChild.className;
    }"""
    kind: str = tab.page.evaluate(drawn, text)
    return kind


def test_export_import_rename_and_delete(ada: Tab, service: ServiceThread, tmp_path: Path) -> None:
    """A conversation leaves as a file, is deleted, and comes back from it."""
    (answer,) = talk(service, "My name is Ada.", metadata={"title": "To be moved", "team": "north"})
    page = ada.page
    ada.open("tasks", answer["task_id"])
    menu = page.locator("summary[aria-label=Actions]")
    menu.click()
    ada.button("Rename …").click()
    page.get_by_label("Title", exact=True).fill("Moved about")
    ada.button("Save").click()
    expect(page.get_by_role("heading", name="Moved about")).to_be_visible()
    menu.click()
    with page.expect_download() as downloading:
        ada.button("Export").click()
    file = tmp_path / downloading.value.suggested_filename
    downloading.value.save_as(file)
    menu.click()
    ada.expected = {404}  # the page may be looking up what it is about to delete
    ada.button("Delete …").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator(".task", has_text="Moved about")).to_have_count(0)
    page.get_by_label("A task to import").set_input_files(file)
    expect(page.get_by_role("heading", name="Moved about")).to_be_visible()
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
    page.get_by_label("Filter by title").fill("team:north")
    expect(page.locator(".task")).to_have_count(1)
    page.get_by_label("Filter by title").fill("team:south")
    expect(page.locator(".task")).to_have_count(0)
    page.get_by_label("Filter by title").fill("")
    page.get_by_label("Status").select_option("Failed")
    expect(page.get_by_text("No match. Try another filter.")).to_be_visible()


def test_what_is_looked_at_is_imported_and_then_another(ada: Tab, service: ServiceThread) -> None:
    """The first leads nowhere else: its view is shown already. The second is not held up by that."""
    tasks = [talk(service, text)[0]["task_id"] for text in ("hello", "My name is Ada.")]
    ada.open("tasks", tasks[0])
    expect(ada.page.locator(".turn-footer")).to_be_visible()
    ada.expected = {404}
    with service.client("ada") as client:
        documents = [client.get(f"/tasks/{task}/export").raise_for_status().content for task in tasks]
        for task in tasks:
            client.delete(f"/tasks/{task}").raise_for_status()
    ada.look_again()
    expect(ada.text("Not found")).to_be_visible()
    for task, document in zip(tasks, documents, strict=True):
        file = FilePayload(name="task.json", mimeType="application/json", buffer=document)
        ada.page.get_by_label("A task to import").set_input_files(file)
        expect(ada.page.locator(".turn-footer")).to_be_visible()
        expect(ada.page).to_have_url(re.compile(f"{task}$"))


def test_images_are_sent_and_shown(ada: Tab) -> None:
    """An image is chosen, seen before it is sent, and seen in the conversation; the message is sent again
    without its text."""
    picture = Path(__file__).parents[2] / "demos/images/teapot.png"
    ada.page.get_by_label("Images", exact=True).set_input_files(picture)
    expect(ada.page.get_by_role("img", name="teapot.png")).to_be_visible()
    ada.say("What is on it?")
    expect(ada.page.locator(".bubble img")).to_be_visible()
    expect(ada.page.locator(".answer")).to_contain_text("I see 1 image (image/png")
    ada.button("Edit and send again").click()
    ada.page.locator(".editing textarea").fill("")
    ada.page.locator(".editing").get_by_role("button", name="Send").click()
    expect(ada.page.locator(".bubble .plain")).to_have_count(0)
    expect(ada.page.locator(".answer")).to_contain_text("I see 1 image (image/png")


def test_everything_by_keyboard(ada: Tab) -> None:
    """A message is sent, a menu opened and closed, and a tab changed without a pointer."""
    page = ada.page
    page.get_by_role("textbox", name="Message").focus()
    page.keyboard.type("My name is Ada.")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("I live in Oslo.")
    page.keyboard.press("Enter")
    expect(page.locator(".turn-footer")).to_be_visible()
    page.locator("summary[aria-label=Actions]").focus()
    page.keyboard.press("Enter")
    expect(ada.button("Export")).to_be_visible()
    page.keyboard.press("Escape")
    expect(ada.button("Export")).to_be_hidden()
    ada.link("Audit").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text(re.compile("^Verified"))).to_be_visible()
    page.reload()
    expect(ada.link("Audit")).to_be_visible()
    page.keyboard.press("Tab")
    expect(ada.link("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()


@pytest.mark.parametrize("place", ["new", "approvals", "nowhere"])
def test_on_a_phone_every_page_leads_back_to_the_list(ada: Tab, place: str) -> None:
    ada.page.set_viewport_size({"width": 390, "height": 780})
    ada.open(place).link("Conversations").click()
    expect(ada.page.get_by_label("Filter by title")).to_be_visible()
    ada.page.set_viewport_size({"width": 1180, "height": 740})


def test_on_a_phone_a_comparison_that_cannot_be_read_leads_back(ada: Tab, service: ServiceThread) -> None:
    """As it does where the fork of a link is deleted by now."""
    ada.expected = {404}
    (answer,) = talk(service, "hello")
    ada.page.set_viewport_size({"width": 375, "height": 667})
    ada.open("compare", answer["task_id"], "current", str(uuid4()), "current")
    expect(ada.text("Not found")).to_be_visible()
    ada.link("Time travel").click()
    expect(ada.page.locator(".node")).to_be_visible()
    ada.page.set_viewport_size({"width": 1180, "height": 740})


def test_on_a_phone_a_long_name_of_an_argument_is_wrapped(ada: Tab, service: ServiceThread) -> None:
    """In its field, in the button that adds it, and in the name of the tool."""
    name = "maximum_number_of_recipients_per_hour_in_each_of_the_regions"
    (pause,) = talk(service, 'call Files-rotate {"path": "log"}')

    def long(route: Route) -> None:
        known = route.fetch().json()
        known["tool_calls"][0]["parameters"]["properties"] |= {name: {"type": "integer"}, f"{name}_2": {}}
        route.fulfill(json=known)

    ada.page.set_viewport_size({"width": 375, "height": 667})
    ada.page.route("**/approvals/*", long, times=1)
    ada.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    form = ada.page.locator(".fields")
    ada.button(f"Add {name}").click()
    expect(form.get_by_label(name, exact=True)).to_be_focused()
    right = "form => form.getBoundingClientRect().right - 12"
    inner = form.evaluate(right)
    for shown in form.locator("label, button").all():
        box = shown.bounding_box()
        assert box
        assert box["x"] + box["width"] <= inner
        assert shown.evaluate("each => each.scrollWidth <= each.clientWidth || each.clientWidth === 0")
    ada.button("Reject").click()
    ada.page.set_viewport_size({"width": 1180, "height": 740})


#: texts beyond a side of what they are in, or of the window, where neither an ellipsis says so nor code, a
#: table or the tabs can be scrolled to them
_CUT_OFF = """(() => {
  const isCutOff = (text) => {
    const range = new Range();
    range.selectNodeContents(text);
    let {left, right} = range.getBoundingClientRect();
    for (let box = text.parentElement; box; box = box.parentElement) {
      const {overflowX, textOverflow} = getComputedStyle(box);
      const sides = box.getBoundingClientRect();
      if (overflowX === "visible" || (left >= sides.left - 1 && right <= sides.right + 1)) continue;
      const scrolls = box.matches("pre, table, .table, .tabs") && box.scrollWidth > box.clientWidth;
      if (!scrolls && textOverflow !== "ellipsis") return true;
      ({left, right} = sides);
    }
    return left < -1 || right > innerWidth + 1;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) {
    const {currentNode: text} = texts;
    const {parentElement: around} = text;
    if (!text.data.trim() || !around.checkVisibility() || around.closest(".visually-hidden, .skip")) continue;
    if (isCutOff(text)) found.push(text.data);
  }
  return found;
})()"""


def test_in_a_small_window_no_text_is_cut_off_and_a_pause_is_decided(
    tabs: Tabs, service: ServiceThread
) -> None:
    """Code and tables scroll wherever they stand; long names are broken, or end in an ellipsis."""
    user = "an_id_without_a_place_to_break_" * 3
    (wide,) = talk(service, "width please", user=user)
    talk(service, 'call Files-delete {"path": "wide"}', user=user)
    address = "https://example.com/" + "an_address_without_a_place_to_break_" * 3
    (own,) = talk(service, address, user="dave")
    decided, waiting = (talk(service, 'call Files-delete {"path": "a"}', user="dave")[0] for _ in range(2))
    with service.client("dave") as client:
        fork = client.post(f"/tasks/{own['task_id']}/fork", json={}).raise_for_status().json()
        (call,) = decided["content"]["tool_calls"]
        decision = {"id": call["id"], "action": "approve", "arguments": {"path": "b"}}
        resumed = {"action": "approve", "decisions": [decision]}
        client.post(f"/requests/{decided['request_id']}/resume", json=resumed).raise_for_status()
    dave = tabs.signed_in(f"{service.url}/console/", "dave")
    dave.page.set_viewport_size({"width": 320, "height": 640})
    found: dict[str, list[str]] = {}

    def look(shown: str, text: str) -> None:
        expect(dave.page.locator(shown).first).to_contain_text(text)
        found[shown] = dave.page.evaluate(_CUT_OFF)

    dave.open("tasks", wide["task_id"])
    look(".turn:has(.turn-footer)", "What comes after them")
    dave.open("tasks", own["task_id"], "travel")
    look(".forks a", address[:80])
    dave.open("compare", own["task_id"], "current", fork["task_id"], "current")
    look(".branch h3 a", address[:80])
    dave.open("approvals").button("Decided").click()
    look(".shown-call", "with these arguments")
    assert _width(dave.page.get_by_role("heading", level=3).locator("code").first) > 60  # not a letter a line
    dave.page.set_viewport_size({"width": 1180, "height": 740})  # where the list is narrower
    dave.button("Whole tenant").click()
    look(".task:has(.owner) .title", "call Files-delete")
    rows = dave.page.locator(".task .below")
    assert rows.evaluate_all("rows => Math.max(...rows.map((row) => row.offsetHeight))") < 30  # a line each
    assert {shown: texts for shown, texts in found.items() if texts} == {}

    dave.expected = {409}
    dave.page.set_viewport_size({"width": 320, "height": 256})
    dave.open("tasks", waiting["task_id"])
    expect(dave.button("Reject")).to_be_attached()
    dave.say("a line\n" * 8)
    expect(dave.text("A decision is needed first")).to_be_visible()
    dave.button("Reject").scroll_into_view_if_needed()
    expect(dave.button("Reject")).to_be_in_viewport(ratio=1)
    dave.button("Reject").click()
    expect(dave.page.locator(".turn-footer")).to_be_visible()
    dave.page.set_viewport_size({"width": 1180, "height": 740})


def test_on_a_phone_the_open_tab_is_in_view(ada: Tab, service: ServiceThread) -> None:
    """Also where a link leads to the last of them."""
    (answer,) = talk(service, "hello")
    ada.page.set_viewport_size({"width": 360, "height": 780})
    ada.open("tasks", answer["task_id"], "details")
    expect(ada.link("Details")).to_be_in_viewport(ratio=1)
    ada.open("tasks", answer["task_id"])
    for tab in ("Conversation", "Details"):
        expect(ada.link(tab)).to_be_in_viewport(ratio=1)
    ada.page.set_viewport_size({"width": 1180, "height": 740})


def test_on_a_phone_held_sideways_the_audit_has_its_whole_height(ada: Tab, service: ServiceThread) -> None:
    """The page scrolls, and not a table of which no row is seen."""
    (answer, *_) = talk(service, "hello", "hi again", "and again")
    ada.page.set_viewport_size({"width": 640, "height": 300})
    ada.open("tasks", answer["task_id"], "audit")
    expect(ada.page.get_by_text(re.compile("^Verified"))).to_be_visible()
    table = ada.page.locator(".table")
    assert table.evaluate("table => table.clientHeight === table.scrollHeight")
    table.get_by_role("row").last.scroll_into_view_if_needed()
    expect(table.get_by_role("row").last).to_be_in_viewport(ratio=1)
    ada.page.set_viewport_size({"width": 1180, "height": 740})


def test_a_long_view_scrolls_below_its_tabs(ada: Tab, service: ServiceThread) -> None:
    """Wherever a link leads in it, the window stays where it is, and so do the ways to the other views."""
    first, *_ = talk(service, *(f"hello {n}" for n in range(12)))
    views = {
        ("trace", first["request_id"]): (1180, 740),
        ("trace",): (375, 667),
        ("details",): (667, 375),
        (): (667, 375),
    }
    for view, (width, height) in views.items():
        ada.page.set_viewport_size({"width": width, "height": height})
        ada.open("tasks", first["task_id"], *view)
        shown = ada.page.locator("[data-wanted=true], .waterfall, #metadata, .turn-footer").last
        shown.scroll_into_view_if_needed()
        expect(shown).to_be_in_viewport()
        expect(ada.link("Trace")).to_be_in_viewport(ratio=1)
        assert ada.page.evaluate("document.documentElement.scrollHeight - innerHeight") == 0, view
    ada.page.set_viewport_size({"width": 1180, "height": 740})


def test_on_a_phone_a_long_word_of_the_description_is_broken(ada: Tab) -> None:
    """Such as an address: neither the field for the name nor that for a message is wider than the window."""
    address = "https://wiki.example/" + "_".join(["how_this_agent_is_used"] * 5)

    def described(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "description": address, "examples": [address]})

    ada.page.set_viewport_size({"width": 390, "height": 780})
    ada.page.route("**/config.json", described)
    ada.open("new").page.reload()
    wide = "fields => fields.every((field) => field.getBoundingClientRect().right <= innerWidth)"
    expect(ada.page.get_by_text(address)).to_have_count(2)
    assert ada.page.locator(".welcome *").evaluate_all(wide)
    ada.open("").button("Sign out").click()
    expect(ada.page.get_by_text(address)).to_be_visible()
    assert ada.page.locator(".signin *").evaluate_all(wide)
    ada.page.set_viewport_size({"width": 1180, "height": 740})


def test_a_long_name_leaves_room_for_the_version(ada: Tab) -> None:
    """Beside the list of conversations the name is cut, and the version is not."""

    def named(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "name": "An agent with a name " * 9})

    ada.page.route("**/config.json", named)
    ada.open("new").page.reload()
    version = ada.page.locator(".brand small")
    expect(version).to_have_text("0.1")
    ends = "[version.closest('.brand'), version].map((each) => each.getBoundingClientRect().right)"
    brand, shown = version.evaluate(f"(version) => {ends}")
    assert shown <= brand


def test_the_legend_of_the_trace_names_every_kind_of_step(ada: Tab, service: ServiceThread) -> None:
    """Each by a colour of its own."""
    (answer,) = talk(service, "hello")
    kinds = ada.open("tasks", answer["task_id"], "trace").page.get_by_label("Kinds of steps").locator("li")
    named = ["Model", "Tool", "Approval", "Error", "Context", "Reduction", "First delta"]
    expect(kinds).to_have_text(named)
    colours = kinds.locator("i").evaluate_all(
        "keys => keys.map((key) => getComputedStyle(key).backgroundColor)"
    )
    assert len(set(colours)) == len(named)


def test_what_tools_added_to_an_answer_is_shown(ada: Tab, service: ServiceThread) -> None:
    """The `extra_data`, folded, and without the reason for which the answer was cut off, which words say."""
    (answer,) = talk(service, "hello")

    def with_data(route: Route) -> None:
        document = route.fetch().json()
        document["content"]["extra_data"] = {"finish_reason": "length", "station": "Blindern"}
        route.fulfill(json=document)

    ada.page.route(f"**/requests/{answer['request_id']}", with_data)
    ada.open("tasks", answer["task_id"])
    data = ada.page.locator("details", has_text="Data from tools")
    expect(data.locator("pre")).to_be_hidden()
    data.locator("summary").click()
    expect(data.locator("pre")).to_have_text('{\n  "station": "Blindern"\n}')
    expect(ada.page.get_by_text("it reached the model's token limit")).to_be_visible()


def test_a_name_with_an_accent_is_refused_with_the_letters_that_are_not(
    tabs: Tabs, service: ServiceThread
) -> None:
    """The name is the token of a header, which has none of them."""
    tab = tabs.open(f"{service.url}/console/")
    tab.page.goto(tab.console)
    tab.page.get_by_label("Your name").fill("José")
    expect(tab.page.locator("#name-help")).to_contain_text("letters from A to Z")
    expect(tab.button("Continue")).to_be_disabled()
    tab.page.get_by_label("Your name").fill("Jose")
    expect(tab.button("Continue")).to_be_enabled()


def test_the_theme_is_kept(ada: Tab) -> None:
    """The system's colours, until the switch; the choice outlives a reload, and another tab's is followed."""
    background = "getComputedStyle(document.body).backgroundColor"
    light = ada.page.evaluate(background)
    ada.page.emulate_media(color_scheme="dark")
    expect(ada.button("Use light colours")).to_be_visible()
    ada.page.emulate_media(color_scheme="light")
    ada.button("Use dark colours").click()
    dark = ada.page.evaluate(background)
    assert light != dark
    ada.page.reload()
    expect(ada.button("Use light colours")).to_be_visible()
    assert ada.page.evaluate(background) == dark
    other = ada.context.new_page()
    other.goto(f"{ada.console}icon.svg")
    other.evaluate("localStorage.clear()")
    expect(ada.button("Use dark colours")).to_be_visible()
    assert ada.page.evaluate(background) == light


@pytest.mark.parametrize(
    "path", [("tasks", "c37de403-ee46-8f3f-917c-6975e5e2c196"), ("tasks", "nonsense"), ("nowhere",)]
)
def test_addresses_that_lead_nowhere(ada: Tab, path: tuple[str, ...]) -> None:
    """A task that is not there, an id that is none, a page that does not exist: a sentence, and a way on."""
    ada.expected = {404}
    ada.open(*path)
    for words in ("Not found", "Choose a conversation from the list."):
        expect(ada.page.locator("main")).to_contain_text(words)
    expect(ada.link("New conversation")).to_be_visible()
