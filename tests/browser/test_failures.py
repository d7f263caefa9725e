"""What goes wrong around a page does not mislead, and loses nothing of what was written."""

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from agents import talk
from playwright.sync_api import FilePayload, Locator, Route, expect
from tabs import Tab, Tabs

from tealagents.testing.service import ServiceThread


@pytest.fixture
def closed(gate: Path) -> None:
    gate.unlink(missing_ok=True)


def _once(tab: Tab, url: str, **answer: Any) -> None:
    """The next call of that address is answered with this."""
    tab.page.route(url, lambda route: route.fulfill(**answer), times=1)


def _always(tab: Tab, url: str, **answer: Any) -> None:
    tab.page.route(url, lambda route: route.fulfill(**answer))


def _cut_once(tab: Tab, **answer: Any) -> None:
    """The first reading of events is answered with this; the others wait until `**/events` has no route.

    The page would read them again after a second or two, and what it says until then might not be seen.
    """
    tab.page.route("**/events", lambda route: None)
    _once(tab, "**/events", **answer)


def _words(tab: Tab, error: dict[str, Any]) -> str:
    """How an error is worded."""
    worded = """async (error) => {
        const {inWords} = await moduleOf("ui");
        return Object.values(inWords(error)).join(" ");
    }"""
    return str(tab.page.evaluate(worded, error))


def test_arguments_that_could_not_be_sent_stay_as_they_were_edited(ada: Tab, service: ServiceThread) -> None:
    """What is shown is what runs, at the second attempt too."""
    (pause,) = talk(service, 'call Files-delete {"path": "first.txt"}')
    ada.expected = {500}
    ada.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    path = ada.page.locator(".fields").get_by_label("path required")
    path.fill("second.txt")
    _once(ada, "**/resume/sse**", status=500, json={"code": "internal_error", "detail": "It broke."})
    ada.button("Approve").click()
    expect(ada.page.get_by_role("alert")).to_contain_text("It broke.")
    expect(path).to_have_value("second.txt")
    ada.button("Keep the original arguments").click()
    ada.button("Edit the arguments").click()
    expect(path).to_have_value("first.txt")
    ada.button("Approve").click()
    expect(ada.text("Files-delete said: first.txt is deleted")).to_be_visible()


def test_what_cannot_be_sent_yet_is_still_there_after_a_look_elsewhere(
    tabs: Tabs, service: ServiceThread
) -> None:
    """One field is invalid: the others keep what was written, and the unedited call cannot be approved."""
    talk(service, 'call Files-rotate {"path": "first log", "keep": 3}', user="kay")
    kay = tabs.signed_in(f"{service.url}/console/", "kay").open("approvals")
    card = kay.page.locator(".card")
    card.get_by_role("button", name="Edit the arguments").click()
    card.get_by_label("path required").fill("second log")
    card.get_by_role("textbox", name="keep").fill("")
    for reload in (False, True):
        kay.open("new")
        expect(card).to_have_count(0)
        if reload:
            kay.page.reload()
        kay.open("approvals")
        expect(card.get_by_label("path required")).to_have_value("second log")
        expect(card.get_by_text("This is not a number.")).to_be_visible()
        expect(card.get_by_role("button", name="Approve")).to_be_disabled()
    card.get_by_role("textbox", name="keep").fill("4")
    card.get_by_role("button", name="Approve").click()
    expect(card.get_by_role("status")).to_contain_text("second log 4 move False")


def test_an_approver_whose_connection_broke_sees_the_outcome(tabs: Tabs, service: ServiceThread) -> None:
    """They may not follow another user's request, and what they decided stays decided."""
    talk(service, 'call Files-delete {"path": "broke.txt"}')
    carol = tabs.signed_in(f"{service.url}/console/", "carol")
    carol.expected = {401}

    def cut(route: Route) -> None:
        answer = route.fetch()
        begun, blank, _ = answer.text().partition("\n\n")
        assert "event: request" in begun
        route.fulfill(response=answer, body=begun + blank)

    carol.page.route("**/resume/sse**", cut, times=1)
    card = carol.open("approvals").page.locator(".card", has_text="broke.txt")
    with carol.page.expect_response(lambda seen: seen.url.endswith("/events") and seen.status == 401):
        card.get_by_role("button", name="Approve").click()
    expect(card.get_by_role("status")).to_contain_text("Completed")
    expect(card.get_by_role("alert")).to_have_count(0)


def test_while_the_service_is_away_the_inbox_does_not_say_that_nothing_waits(
    tabs: Tabs, service: ServiceThread
) -> None:
    ned = tabs.signed_in(f"{service.url}/console/", "ned").open("approvals")
    nothing = ned.text("Nothing is waiting for you")
    expect(nothing).to_be_visible()
    expect(ned.page.get_by_role("feed")).to_have_count(0)  # it would have to hold something
    ned.expected = {502}
    ned.page.route("**/approvals?**", lambda route: route.fulfill(status=502))
    ned.look_again()
    expect(ned.text("The service cannot be reached")).to_be_visible()
    expect(nothing).to_have_count(0)


def test_a_page_that_cannot_be_drawn_says_so(tabs: Tabs, service: ServiceThread) -> None:
    """A module that is lost, and a browser that keeps nothing for the page: neither leaves it blank."""
    tab = tabs.open(f"{service.url}/console/")
    tab.may_be_cut = True
    tab.page.route("**/app/text.js", lambda route: route.abort())
    tab.page.goto(tab.console)
    expect(tab.page.get_by_text("If it does not appear, reload the page.")).to_be_visible()
    tab.page.unroute("**/app/text.js")
    refusal = "throw new DOMException('Access is denied.', 'SecurityError')"
    tab.page.add_init_script(f"Object.defineProperty(window, 'localStorage', {{get() {{ {refusal} }}}})")
    tab.page.reload()
    expect(tab.page.get_by_role("alert")).to_contain_text("Something went wrong")
    expect(tab.page.get_by_role("alert")).to_contain_text("Access is denied.")
    expect(tab.page.get_by_text("If it does not appear")).to_have_count(0)
    tab.page.close()  # no other test can have it


def test_a_message_that_cannot_be_shown_leaves_the_others(ada: Tab, service: ServiceThread) -> None:
    """The page says so in its place."""
    first, _ = talk(service, "hello", "My name is Ada.")

    def broken(route: Route) -> None:
        document = route.fetch().json()
        document["items"][0]["items"][0]["content"] = None
        route.fulfill(json=document)

    ada.page.route("**/messages?**", broken)
    ada.open("tasks", first["task_id"])
    expect(ada.page.get_by_role("alert")).to_contain_text("This cannot be shown")
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
    expect(ada.link("New conversation")).to_be_visible()
    assert ada.errors, "it was not reported"
    ada.errors.clear()


@pytest.mark.parametrize("status", [429, 500])
def test_an_answer_is_followed_although_one_reading_was_refused(ada: Tab, status: int) -> None:
    """It did not fail, and runs still."""
    ada.expected = {status}
    refusal = {"code": "overloaded", "detail": "Too many requests."}
    _cut_once(ada, status=status, headers={"retry-after": "1"}, json=refusal)
    with ada.page.expect_response(lambda seen: seen.url.endswith("/events") and seen.status == status):
        ada.say('call Files-delete {"path": "notes.txt"}')
    expect(ada.text("The connection was lost")).to_be_visible()
    ada.page.unroute("**/events")
    expect(ada.button("Approve")).to_be_visible()
    expect(ada.page.locator(".ended")).to_have_count(0)


@pytest.mark.usefixtures("closed")
def test_what_could_not_be_read_when_it_was_due_is_shown_once_the_service_answers_again(
    ada: Tab, service: ServiceThread, gate: Path
) -> None:
    """The answer that has ended, why a request failed, and the tree after going back."""
    ada.expected = {503}
    away = {"code": "persistence_unavailable", "detail": "The store cannot be reached."}

    def until_given_up(url: str, readings: int = 1) -> Any:
        """Each of them tries three times."""
        calls = 3 * readings
        ada.page.route(url, lambda route: route.fulfill(status=503, json=away), times=calls)
        seen = iter(range(1, calls + 1))
        return ada.page.expect_request(lambda call: fnmatch(call.url, url) and next(seen) == calls)

    ada.say("Please wait at the gate.")
    expect(ada.text("Let me see first.")).to_be_visible()
    # the end of a request is reason enough for up to three
    with until_given_up("**/messages?**", readings=4):
        gate.touch()
    expect(ada.text("The gate is open now.")).to_be_visible()

    with service.client("ada") as client:
        items = [{"content_type": "text", "content": "refuse this"}]
        refused = client.post("", json={"items": items}).json()
    with until_given_up("**/requests/*"):
        ada.open("tasks", refused["task_id"])
    expect(ada.page.locator(".ended")).to_be_visible()

    *_, last = talk(service, "hello", "My name is Ada.")
    ada.open("tasks", last["task_id"], "travel")
    with until_given_up("**/checkpoints?**"):
        ada.button("Roll back").click()
    expect(ada.page.locator(".node", has_text="hello")).to_contain_text("Current")


#: counts how often a text that was in view goes out of it
COUNTING = """text => {
  let seen = false;
  window.gone = 0;
  const look = () => {
    const now = document.body.innerText.includes(text);
    window.gone += seen && !now;
    seen = now;
  };
  new MutationObserver(look).observe(document.body, {childList: true, characterData: true, subtree: true});
}"""


@pytest.mark.usefixtures("closed")
def test_an_answer_that_has_ended_stays_in_view_while_its_messages_are_read(
    ada: Tab, service: ServiceThread, gate: Path
) -> None:
    """However long that takes."""
    page, text = ada.page, "The gate is open now."
    (first,) = talk(service, "hello")
    ada.open("tasks", first["task_id"]).say("Please wait at the gate.")
    expect(ada.text("Let me see first.")).to_be_visible()
    page.evaluate(COUNTING, text)
    held: list[Route] = []
    release: list[bool] = []

    def hold(route: Route) -> None:
        if release:
            route.continue_()
        else:
            held.append(route)

    page.route("**/messages?**", hold)
    gate.touch()
    expect(ada.text(text)).to_be_visible()
    expect(page.locator(".headline")).to_contain_text("Completed")
    expect(ada.text(text)).to_be_visible()
    release.append(True)
    for route in held:
        route.continue_()
    expect(ada.button("Stop")).to_have_count(0)
    expect(ada.text(text)).to_be_visible()
    assert page.evaluate("window.gone") == 0
    page.unroute("**/messages?**", hold)


@pytest.mark.parametrize("code", ["corrupt_state", "internal_error"])
def test_what_is_damaged_is_read_once(ada: Tab, service: ServiceThread, code: str) -> None:
    """It is no matter of time, unlike a fault of the service."""
    ada.expected = {500}
    (answer,) = talk(service, "hello")
    reads: list[str] = []

    def refuse(route: Route) -> None:
        reads.append(route.request.url)
        route.fulfill(status=500, json={"code": code, "detail": "It went wrong."})

    ada.page.route("**/checkpoints?**", refuse)
    ada.take_time()
    ada.open("tasks", answer["task_id"], "travel")
    expect(ada.text("It went wrong.")).to_be_visible()
    before = len(reads)
    if code == "corrupt_state":
        ada.page.clock.run_for(60_000)
        expect(ada.text("It went wrong.")).to_be_visible()
        assert len(reads) == before
    else:
        with ada.page.expect_request("**/checkpoints?**"):
            ada.page.clock.run_for(60_000)


def test_what_is_gone_is_not_asked_for_until_there_may_be_something_again(
    ada: Tab, service: ServiceThread
) -> None:
    """A page that was left at a conversation which was deleted elsewhere; it can be imported again there."""
    ada.expected = {404}
    (answer,) = talk(service, "My name is Ada.")
    with service.client("ada") as client:
        exported = client.get(f"/tasks/{answer['task_id']}/export").content
        ada.take_time()
        ada.record()
        ada.open("tasks", answer["task_id"])
        expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
        client.delete(f"/tasks/{answer['task_id']}").raise_for_status()
    ada.page.clock.run_for(5_000)
    expect(ada.page.locator("main")).to_contain_text("Not found")
    before = ada.requests.count(f"{service.url}/tasks/{answer['task_id']}")
    ada.page.clock.run_for(60_000)
    expect(ada.page.locator("main")).to_contain_text("Not found")
    assert ada.requests.count(f"{service.url}/tasks/{answer['task_id']}") == before > 0
    file: FilePayload = {"name": "task.json", "mimeType": "application/json", "buffer": exported}
    ada.page.get_by_label("A task to import").set_input_files(file)
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()


def test_what_was_being_written_can_be_read_where_the_conversation_is_gone(
    ada: Tab, service: ServiceThread
) -> None:
    """It was deleted elsewhere before the message was sent."""
    ada.expected = {404}
    (answer,) = talk(service, "hello")
    ada.open("tasks", answer["task_id"])
    ada.page.get_by_role("textbox", name="Message").fill("A long letter.")
    with service.client("ada") as client:
        client.delete(f"/tasks/{answer['task_id']}").raise_for_status()
    expect(ada.text("Not found")).to_be_visible()
    expect(ada.page.locator("main")).to_contain_text("What you wrote")
    expect(ada.text("A long letter.")).to_be_visible()


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 404, "content_type": "text/html", "body": "<h1>default backend - 404</h1>"},
        {"status": 302, "headers": {"location": "/login"}},
        {"status": 200, "content_type": "text/html", "body": "<h1>Maintenance</h1>"},
    ],
    ids=["404", "302", "200"],
)
def test_an_answer_is_followed_although_a_gateway_answered_in_the_place_of_the_service(
    ada: Tab, answer: dict[str, Any]
) -> None:
    """Its pause is shown once the service can be reached again."""
    ada.expected = {404}
    _cut_once(ada, **answer)
    ada.say('call Files-delete {"path": "notes.txt"}')
    expect(ada.text("The connection was lost")).to_be_visible()
    ada.page.unroute("**/events")
    expect(ada.button("Approve")).to_be_visible()
    expect(ada.page.locator(".ended")).to_have_count(0)


#: what a browser does when another tab is looked at, and when this one is again
_HIDE = """Object.defineProperty(document, "hidden", {value: true, configurable: true});
Object.defineProperty(document, "visibilityState", {value: "hidden", configurable: true});
document.dispatchEvent(new Event("visibilitychange"))"""
_NOTE_WHAT_IS_SAID = """() => {
  window.said = new Set();
  const note = () =>
    document.querySelectorAll("[data-live] .ended").forEach((each) => said.add(each.textContent));
  new MutationObserver(note).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""
_SHOW = """delete document.hidden; delete document.visibilityState;
document.dispatchEvent(new Event("visibilitychange"))"""


@pytest.mark.usefixtures("closed")
def test_of_two_branches_that_run_the_end_is_shown(ada: Tab, service: ServiceThread, gate: Path) -> None:
    """Of one that is answered, and of one that is stopped, while they are compared."""
    waiting = {"items": [{"content_type": "text", "content": "Please wait at the gate."}]}
    with service.client("ada") as client:
        answered, stopped = (
            client.post("", json=waiting, headers={"prefer": "respond-async"}).raise_for_status().json()
            for _ in range(2)
        )
        ada.open("compare", answered["task_id"], "current", stopped["task_id"], "current")
        running = ada.page.locator(".branch .status")
        expect(running).to_have_text(["Running", "Running"])
        assert running.first.evaluate("(status) => status.offsetWidth < status.parentElement.offsetWidth / 2")
        client.post(f"/requests/{stopped['request_id']}/cancel").raise_for_status()
        gate.touch()
        for request in (answered, stopped):
            client.get(f"/requests/{request['request_id']}/events").raise_for_status()
    ada.look_again()
    expect(ada.text("The gate is open now.")).to_be_visible()
    expect(ada.text("Stopped")).to_be_visible()
    expect(running).to_have_count(0)


def test_of_two_branches_the_current_end_is_compared_after_more_was_said(
    ada: Tab, service: ServiceThread
) -> None:
    """Both had been answered when they were opened."""
    (one,), (other,) = talk(service, "hello"), talk(service, "hello")
    ada.open("compare", one["task_id"], "current", other["task_id"], "current")
    expect(ada.page.locator(".branch .turn-footer")).to_have_count(2)
    with service.client("ada") as client:
        more = {"items": [{"content_type": "text", "content": "My name is Ada."}], "task_id": one["task_id"]}
        client.post("", json=more).raise_for_status()
    ada.look_again()
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()


@pytest.mark.usefixtures("closed")
def test_a_connection_that_is_back_is_not_called_lost(ada: Tab, gate: Path) -> None:
    """Although it brings nothing for as long as the agent waits. What was lost is announced once."""
    ada.say("Please wait at the gate.")
    expect(ada.text("Let me see first.")).to_be_visible()
    ada.page.evaluate(_HIDE)
    ada.may_be_cut = True
    behind: list[Route] = []
    is_back: list[bool] = []

    def two_lost(route: Route) -> None:
        if is_back:
            return route.continue_()
        behind.append(route)
        return route.abort() if len(behind) <= 2 else None

    ada.page.route("**/events", two_lost)
    ada.page.evaluate(_NOTE_WHAT_IS_SAID)
    with ada.page.expect_request(lambda request: "/events" in request.url and len(behind) == 2):
        ada.page.evaluate(_SHOW)
    expect(ada.text("The connection was lost")).to_be_visible()
    assert len(ada.page.evaluate("[...said]")) == 1
    is_back.append(True)
    for route in behind[2:]:
        route.continue_()
    expect(ada.text("The connection was lost")).to_have_count(0)
    gate.touch()
    expect(ada.text("The gate is open now.")).to_be_visible()


@pytest.mark.usefixtures("closed")
def test_a_hidden_tab_follows_nothing_and_shows_the_answer_once_it_is_looked_at(
    ada: Tab, service: ServiceThread, gate: Path
) -> None:
    """A browser has six connections to a host, for all its tabs."""
    ada.may_be_cut = True
    ada.say("Please wait at the gate.")
    expect(ada.text("Let me see first.")).to_be_visible()
    task = ada.page.url.rpartition("/")[2]
    # the task is looked at every few seconds, once at a time: a look that has begun would bring the answer
    looks: list[Route] = []
    ada.page.route(f"**/tasks/{task}", lambda route: looks.append(route))
    look = ada.held(looks)
    with ada.page.expect_event("requestfailed", lambda seen: seen.url.endswith("/events")):
        ada.page.evaluate(_HIDE)
    with ada.page.expect_event("requestfinished", lambda seen: seen.url.endswith(task)):
        look.continue_()
    assert len(looks) == 1
    ada.page.unroute(f"**/tasks/{task}")
    gate.touch()
    with service.client("ada") as client:
        request = client.get(f"/tasks/{task}").raise_for_status().json()["request_id"]
        if request:
            client.get(f"/requests/{request}/events").raise_for_status()
    expect(ada.text("The gate is open now.")).to_have_count(0)
    ada.page.evaluate(_SHOW)
    expect(ada.text("The gate is open now.")).to_be_visible()


def test_seven_tabs_of_one_browser_that_look_at_pauses_can_each_decide(
    tabs: Tabs, service: ServiceThread
) -> None:
    """A pause brings nothing until it is decided: it takes none of the six connections to a host."""
    wes = tabs.signed_in(f"{service.url}/console/", "wes")
    several = [wes, *(Tab(wes.context, wes.console).sign_in("wes") for _ in range(6))]
    for number, tab in enumerate(several):
        (pause,) = talk(service, f'call Files-delete {{"path": "{number}.txt"}}', user="wes")
        expect(tab.open("tasks", pause["task_id"]).button("Approve")).to_be_visible()
    for number, tab in enumerate(several):
        tab.button("Approve").click()
        expect(tab.text(f"Files-delete said: {number}.txt is deleted")).to_be_visible()


def test_the_answer_after_a_decision_that_was_made_elsewhere_is_shown(
    ada: Tab, service: ServiceThread
) -> None:
    """Nothing is followed while a request waits: its task says when it no longer does."""
    (pause,) = talk(service, "rotate the log")
    ada.open("tasks", pause["task_id"])
    expect(ada.button("Approve")).to_be_visible()
    with service.client("ada") as client:
        client.post(f"/requests/{pause['request_id']}/resume", json={"action": "approve"}).raise_for_status()
    expect(ada.button("Approve")).to_have_count(0)
    expect(ada.page.get_by_text("Files-rotate said")).to_be_visible()


def test_messages_of_another_client_that_failed_are_shown(ada: Tab, service: ServiceThread) -> None:
    """They leave the task as it was: failed, at the same checkpoint, and with no request that runs."""
    (first,) = talk(service, "hello")
    items = [{"content_type": "text", "content": "refuse this"}]
    failed = ada.open("tasks", first["task_id"]).page.locator(".ended")
    with service.client("ada") as client:
        for sent, count in ((1, 1), (4, 5)):
            for _ in range(sent):
                client.post("", json={"items": items, "task_id": first["task_id"]})
            ada.look_again()
            expect(failed).to_have_count(count)


def test_a_message_of_another_client_that_ran_when_it_was_read_shows_how_it_ended(
    ada: Tab, service: ServiceThread
) -> None:
    """It failed a moment later, and nothing else in the conversation has changed since."""
    (first,) = talk(service, "hello")
    read = set[str]()

    def runs_at_first(route: Route) -> None:
        found = route.fetch().json()
        if route.request.url not in read:
            found["status"] = "Running"
        read.add(route.request.url)
        route.fulfill(json=found)

    ada.page.route("**/requests/*", runs_at_first)
    failed = ada.open("tasks", first["task_id"]).page.locator(".ended")
    with service.client("ada") as client:
        items = [{"content_type": "text", "content": "refuse this"}]
        client.post("", json={"items": items, "task_id": first["task_id"]})
    ada.look_again()
    expect(failed).to_have_count(1)


def test_what_is_written_outlives_a_token_that_has_expired(tabs: Tabs, service: ServiceThread) -> None:
    """One signs in again, and finds it where it was."""
    hal = tabs.signed_in(f"{service.url}/console/", "hal")
    hal.expected = {401}
    field = hal.page.get_by_role("textbox", name="Message", exact=True)
    field.fill("Half a thought")
    refused = {"www-authenticate": 'Bearer error="invalid_token"'}
    _once(hal, "**/tasks?**", status=401, headers=refused, json={"code": "unauthenticated"})
    hal.look_again()
    expect(hal.page.get_by_role("alert")).to_contain_text("Sign in again")
    hal.sign_in("hal")
    expect(field).to_have_value("Half a thought")


def test_images_outlive_a_token_that_has_expired_for_their_user_only(
    tabs: Tabs, service: ServiceThread
) -> None:
    """Until the page is reloaded, the user signs out, or another one signs in."""
    tab = tabs.signed_in(f"{service.url}/console/", "hal")
    tab.expected = {401}
    picture = Path(__file__).parents[2] / "demos/images/teapot.png"
    waiting = tab.page.get_by_role("img", name="teapot.png")
    for user, lapses, found in (("hal", True, 1), ("gus", True, 0), ("hal", True, 0), ("hal", False, 0)):
        tab.page.get_by_label("Images", exact=True).set_input_files(picture)
        expect(waiting).not_to_have_count(0)
        _sign_in_again(tab, user, lapses)
        expect(waiting).to_have_count(found)


def _sign_in_again(tab: Tab, user: str, lapses: bool) -> None:
    """In the same page: the token has expired, or its user signs out."""
    refused = {"www-authenticate": 'Bearer error="invalid_token"'}
    if lapses:
        _once(tab, "**/tasks?**", status=401, headers=refused, json={"code": "unauthenticated"})
        tab.look_again()
    else:
        tab.button("Sign out").click()
    tab.page.get_by_label("Your name").fill(user)
    tab.button("Continue").click()
    expect(tab.link("New conversation")).to_be_visible()
    tab.user = user


def test_a_text_for_which_there_is_no_room_leaves_room_for_others(ada: Tab, service: ServiceThread) -> None:
    """It lasts as long as the page; a shorter one, also one that was kept before, outlives a reload."""
    (one,), (other,) = talk(service, "hello"), talk(service, "hello")
    field = ada.page.get_by_role("textbox", name="Message", exact=True)
    ada.open("tasks", one["task_id"])
    field.fill("Half a")
    ada.open("tasks", other["task_id"])
    expect(field).to_have_value("")
    ada.page.evaluate(_FULL, 1000)
    field.fill("x" * 2000)
    ada.open("tasks", one["task_id"])
    expect(field).to_have_value("Half a")
    ada.open("tasks", other["task_id"])
    expect(field).to_have_value("x" * 2000)
    ada.open("tasks", one["task_id"])
    field.fill("Half a thought")
    ada.page.reload()
    expect(field).to_have_value("Half a thought")
    field.fill("")
    ada.page.evaluate(_FULL_NO_MORE)


def test_with_a_full_storage_one_can_sign_in_and_choose_the_colours(
    tabs: Tabs, service: ServiceThread
) -> None:
    """Both last until the page is reloaded. Other pages of the same origin fill its storage, too."""
    tab = tabs.open(f"{service.url}/console/")
    tab.page.goto(tab.console)
    for storage in ("sessionStorage", "localStorage"):
        tab.page.evaluate(_FULL.replace("sessionStorage", storage), 0)
    tab.sign_in("ada")
    tab.button("Use dark colours").click()
    expect(tab.button("Use light colours")).to_be_visible()
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "dark")
    tab.page.reload()
    expect(tab.page.get_by_label("Your name")).to_be_visible()
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "")


#: fills what the browser keeps of this page, up to about so many characters: with ever shorter texts, each
#: tried once
_FULL = """(room) => {
    sessionStorage.setItem("room", "x".repeat(room));
    for (let length = 8_388_608; length >= 1; length /= 2) {
        try {
            sessionStorage.setItem(`filler ${length}`, "x".repeat(length));
        } catch {}
    }
    sessionStorage.removeItem("room");
}"""
_FULL_NO_MORE = """() => Object.keys(sessionStorage)
    .filter((key) => key.startsWith("filler "))
    .forEach((key) => sessionStorage.removeItem(key))"""


def test_a_page_whose_user_is_gone_keeps_nothing_of_them(tabs: Tabs, service: ServiceThread) -> None:
    """Neither what tools were called with nor titles that were looked up."""
    tab = tabs.signed_in(f"{service.url}/console/", "mia")
    tab.say('call Files-echo {"text": "a secret"}')
    expect(tab.page.locator(".turn-footer")).to_be_visible()
    talk(service, "a secret of another task", user="mia")
    tab.look_again()
    expect(tab.page.locator(".task", has_text="a secret of another")).to_be_visible()
    tab.page.locator(".call summary").click()
    assert "a secret" in tab.page.evaluate(_KEPT)
    tab.button("Sign out").click()
    expect(tab.page.get_by_label("Your name")).to_be_visible()
    tab.page.wait_for_function(f"async () => await ({_KEPT})() === '[]'")


#: what modules keep of the session
_KEPT = """async () => {
    const [{ran}, {titles}, {traces}, {unfolded}] = await Promise.all(
        ["live", "sidebar", "data", "turn"].map(moduleOf),
    );
    return JSON.stringify([ran, titles.values, traces, unfolded].flatMap((each) => [...each]));
}"""


def test_a_decision_and_edits_outlive_a_token_that_has_expired(tabs: Tabs, service: ServiceThread) -> None:
    """Arguments, a reason, an edited message and metadata are where they were."""
    (pause,) = talk(service, 'call Files-delete {"path": "first.txt"}', user="jo")
    (answer,) = talk(service, "hello", user="jo")
    jo = tabs.signed_in(f"{service.url}/console/", "jo")
    jo.expected = {401}
    jo.open("tasks", answer["task_id"]).button("Edit and send again").click()
    edited = jo.page.locator(".editing textarea")
    edited.fill("hello again")
    jo.open("tasks", answer["task_id"], "details")
    metadata = jo.page.get_by_label("Metadata as JSON")
    metadata.fill('{"a": 1}')
    jo.open("tasks", pause["task_id"]).button("Edit the arguments").click()
    path = jo.page.locator(".fields").get_by_label("path required")
    path.fill("second.txt")
    jo.page.get_by_label("Reason").fill("It is old.")
    refused = {"www-authenticate": 'Bearer error="invalid_token"'}
    _once(jo, "**/resume/sse**", status=401, headers=refused, json={"code": "unauthenticated"})
    jo.button("Approve").click()
    expect(jo.page.get_by_role("alert")).to_contain_text("Sign in again")
    jo.sign_in("jo").open("tasks", pause["task_id"])
    expect(path).to_have_value("second.txt")
    expect(jo.page.get_by_label("Reason")).to_have_value("It is old.")
    jo.button("Approve").click()
    expect(jo.text("Files-delete said: second.txt is deleted")).to_be_visible()
    jo.open("tasks", answer["task_id"])
    expect(edited).to_have_value("hello again")
    jo.open("tasks", answer["task_id"], "details")
    expect(metadata).to_have_value('{"a": 1}')
    assert "second.txt" not in jo.page.evaluate("JSON.stringify({...sessionStorage})")


@pytest.mark.parametrize("asked", ["Your name", "Bearer token"])
def test_what_is_written_is_shown_to_its_user_only(tabs: Tabs, service: ServiceThread, asked: str) -> None:
    """Another user who signs in in the same tab finds nothing, and its writer finds nothing after that. The
    service is asked whose a pasted token is."""
    tab = tabs.open(f"{service.url}/console/")
    tab.expected = {401}
    if asked == "Bearer token":
        tab.page.route("**/config.json", _asks_for_a_token)
    tab.page.goto(tab.console)
    field = tab.page.get_by_role("textbox", name="Message", exact=True)
    for user, found in (("fay", ""), ("fay", "a secret"), ("gus", ""), ("fay", "")):
        tab.page.get_by_label(asked).fill(user)
        tab.button("Continue").click()
        expect(field).to_have_value(found)
        if user == "fay":
            field.fill("a secret")
        refused = {"www-authenticate": 'Bearer error="invalid_token"'}
        _once(tab, "**/tasks?**", status=401, headers=refused, json={"code": "unauthenticated"})
        tab.look_again()
        expect(tab.page.get_by_role("alert")).to_contain_text("Sign in again")


def test_another_agent_on_the_same_host_has_a_session_of_its_own(tabs: Tabs, service: ServiceThread) -> None:
    """In the same tab, too, no token is sent to an agent that it was not meant for."""
    tab = tabs.signed_in(f"{service.url}/console/", "ada")
    field = tab.page.get_by_role("textbox", name="Message", exact=True)
    field.fill("a secret")
    sent: list[str | None] = []

    def other(route: Route) -> None:
        sent.append(route.request.headers.get("authorization"))
        route.fulfill(response=route.fetch(url=route.request.url.replace("/Other/", "/Tester/")))

    tab.page.route("**/Other/**", other)
    tab.page.goto(tab.console.replace("/Tester/", "/Other/"))
    tab.page.get_by_label("Your name").fill("ada")
    assert set(sent) == {None}
    tab.button("Continue").click()
    expect(field).to_have_value("")
    tab.page.goto(tab.console)
    expect(field).to_have_value("a secret")
    field.fill("")


def test_a_token_that_no_header_can_hold_is_not_taken(tabs: Tabs, service: ServiceThread) -> None:
    """Such as a long one that a terminal has cut: calls with it would fail as if the service were away."""
    tab = tabs.open(f"{service.url}/console/")
    tab.page.route("**/config.json", _asks_for_a_token)
    tab.page.goto(tab.console)
    tab.page.get_by_label("Bearer token").fill(f" {'x' * 2000}… ")
    expect(tab.button("Continue")).to_be_disabled()
    tab.page.get_by_label("Bearer token").fill(f" {'x' * 2000} ")
    expect(tab.button("Continue")).to_be_enabled()


def test_a_token_is_pasted_as_it_stands_in_a_header(tabs: Tabs, service: ServiceThread) -> None:
    """The word before it is no part of it."""
    tab = tabs.open(f"{service.url}/console/")
    tab.page.route("**/config.json", _asks_for_a_token)
    tab.page.goto(tab.console)
    tab.page.get_by_label("Bearer token").fill(" bearer  hal ")
    with tab.page.expect_request("**/me") as asking:
        tab.button("Continue").click()
    assert asking.value.headers["authorization"] == "Bearer hal"
    expect(tab.link("New conversation")).to_be_visible()


def test_why_a_pasted_token_is_refused_is_said(tabs: Tabs, service: ServiceThread) -> None:
    """In the service's words: another token of the same kind would not help."""
    tab = tabs.open(f"{service.url}/console/")
    tab.expected = {401}
    tab.page.route("**/config.json", _asks_for_a_token)
    reason = "The bearer token is for another audience. Ask for one that is for this service."
    refused = {"www-authenticate": 'Bearer error="invalid_token"'}
    body = {"code": "unauthenticated", "detail": reason}
    _always(tab, f"{service.url}/*", status=401, headers=refused, json=body)
    tab.page.goto(tab.console)
    tab.page.get_by_label("Bearer token").fill("x")
    tab.button("Continue").click()
    expect(tab.page.get_by_role("alert")).to_contain_text(reason)
    expect(tab.page.get_by_label("Bearer token")).to_be_visible()


def _asks_for_a_token(route: Route) -> None:
    route.fulfill(json={**route.fetch().json(), "sign_in": {"kind": "token"}})


def test_a_gateway_that_cannot_reach_the_service_is_not_quoted(ada: Tab, service: ServiceThread) -> None:
    """Its page is no sentence for a user; of what may have been done this is said."""
    (answer,) = talk(service, "hello")
    ada.expected = {502}
    _once(ada, "**/fork", status=502, content_type="text/html", body="<html><h1>Bad Gateway</h1>")
    ada.open("tasks", answer["task_id"], "travel").button("Fork").last.click()
    expect(ada.page.locator(".notice")).to_contain_text("Check before you try again.")
    said = _words(ada, {"status": 502, "code": None, "detail": "HTTP 502, body: <html>"})
    assert said.startswith("The service cannot be reached Check that the service is running")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "A gateway answered in place of the service Reload the page; you may have to sign in there."),
        (403, "A gateway answered in place of the service Reload the page; you may have to sign in there."),
        (413, "Too large It is too large for this service. Shorten it, or use fewer or smaller images."),
        (429, "Too many requests Try again in a moment."),
    ],
)
def test_a_refusal_of_a_gateway_is_not_quoted(ada: Tab, status: int, said: str) -> None:
    """What to do is said, as for the service's own refusals."""
    words = _words(ada, {"status": status, "code": None, "detail": f"HTTP {status}, body: <html>"})
    assert words == said


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 302, "headers": {"location": "/console/"}},
        {"status": 200, "content_type": "text/html", "body": "<html>Sign in"},
    ],
)
def test_a_sign_in_of_a_gateway_says_to_reload_the_page(
    ada: Tab, service: ServiceThread, answer: dict[str, Any]
) -> None:
    """A gateway whose session has expired redirects calls to its page, or answers with it."""
    _always(ada, service.url, **answer)
    ada.open("new").say("hello")
    alert = ada.page.get_by_role("main").get_by_role("alert")
    expect(alert).to_contain_text("Reload the page; you may have to sign in there.")
    expect(alert).not_to_contain_text("html")


def test_a_message_that_takes_its_time_is_shown_to_be_on_its_way(ada: Tab, service: ServiceThread) -> None:
    """A network that is half open says nothing for a minute and a half."""
    calls = list[Route]()
    ada.take_time()
    ada.page.route(service.url, lambda route: calls.append(route))
    ada.open("new").say("My name is Ada.")
    expect(ada.button("Send")).to_be_disabled()
    sending = ada.page.get_by_role("status").filter(has_text="Sending …")
    ada.page.clock.run_for(1_000)
    expect(sending).to_be_visible()
    ada.held(calls).continue_()
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
    expect(sending).to_have_count(0)


def test_that_an_edit_may_have_been_done_is_said_until_it_is_tried_again(
    ada: Tab, service: ServiceThread
) -> None:
    """That the service is well is no answer to it."""
    *_, last = talk(service, "hello", "My name is Ada.")
    ada.may_be_cut = True
    ada.take_time()
    ada.open("tasks", last["task_id"]).button("Edit and send again").last.click()
    editing = ada.page.locator(".editing")
    editing.locator("textarea").fill("My name is Eda.")
    ada.page.route("**/fork", _lost)
    editing.get_by_role("button", name="Send").click()
    warning = editing.get_by_role("alert")
    expect(warning).to_contain_text("No answer came")
    asked = list[str]()
    ada.page.on("request", lambda request: asked.append(request.url))
    ada.page.clock.run_for(10_000)
    expect(warning).to_contain_text("Check before you try again.")
    assert not any(url.endswith("/health") for url in asked)


def test_that_the_service_is_shutting_down_is_said_until_it_is_back(ada: Tab, service: ServiceThread) -> None:
    """In words for people; the message is still there to be sent."""
    ada.expected = {503}
    draining = {"code": "draining", "title": "Shutting down", "detail": "Another process takes it."}
    for url, body in (("**/health", {"status": "draining", "dependencies": {}}), (service.url, draining)):
        _always(ada, url, status=503, json=body, headers={"retry-after": "600"})
    with ada.page.expect_response("**/health"):
        ada.open("new").say("My name is Ada.")
    said = ada.page.get_by_role("main").get_by_role("alert")
    expect(said).to_have_text("Shutting downTry again in a moment.")
    ada.page.unroute("**/health")
    expect(said).to_have_count(0)
    ada.page.unroute(service.url)
    ada.button("Send").click()
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()


def test_why_a_message_found_no_room_is_said_until_it_is_changed(ada: Tab, service: ServiceThread) -> None:
    """That the service is well says nothing of a queue that is full."""
    ada.expected = {503}
    ada.take_time()
    full = {"code": "overloaded", "title": "Overloaded", "detail": "Too many messages wait on this task."}
    _always(ada, service.url, status=503, json=full, headers={"retry-after": "600"})
    ada.open("new").say("My name is Ada.")
    said = ada.page.get_by_role("main").get_by_role("alert")
    expect(said).to_have_text("OverloadedToo many messages wait on this task.")
    asked = list[str]()
    ada.page.on("request", lambda request: asked.append(request.url))
    with ada.page.expect_response("**/tasks?**"):  # which is asked for less often
        ada.page.clock.run_for(10_000)
    expect(said).to_be_visible()
    assert not any(url.endswith("/health") for url in asked)
    ada.page.get_by_role("textbox", name="Message", exact=True).fill("")
    expect(said).to_have_count(0)


@pytest.mark.parametrize(
    "code",
    [
        "already_decided",
        "approval_expired",
        "approval_pending",
        "interrupted",
        "persistence_unavailable",
        "request_timeout",
        "draining",
        "too_large",
    ],
)
def test_what_clients_are_told_is_said_in_words_for_people(ada: Tab, code: str) -> None:
    """Who chats has no idempotency key, and who approves has no message to send."""
    assert "key" not in _words(ada, {"code": code, "detail": "Send it again, under a new idempotency key."})


@pytest.mark.parametrize("path", [("tasks", "a b"), ("compare", "a", "b"), ("compare",)])
def test_an_address_that_is_none_is_no_lost_connection(ada: Tab, path: tuple[str, ...]) -> None:
    ada.open(*path)
    expect(ada.text("Not found")).to_be_visible()


def test_on_a_phone_a_notice_has_the_width_of_the_page(ada: Tab, service: ServiceThread) -> None:
    """It lies neither over what one writes nor over the way back, and who has read it closes it."""
    (answer,) = talk(service, "hello")
    ada.page.set_viewport_size({"width": 390, "height": 780})
    ada.open("tasks", answer["task_id"])
    ada.page.get_by_label("Images").set_input_files(__file__)
    notice = ada.page.locator(".notice")
    expect(notice).to_have_text("You can add only images: PNG, JPEG, GIF or WebP.")
    assert notice.evaluate("notice => notice.offsetWidth") > 260
    message = ada.page.get_by_role("textbox", name="Message").bounding_box()
    shown = notice.bounding_box()
    assert message
    assert shown
    assert shown["y"] + shown["height"] < message["y"]
    header = ada.page.locator(".task-header").bounding_box()
    assert header
    assert header["y"] + header["height"] < shown["y"]
    notice.click()
    expect(notice).to_have_attribute("data-shown", "false")
    ada.page.set_viewport_size({"width": 1180, "height": 740})


COVERED = """() => [...document.querySelectorAll(".frame :is(a, button, input, select, textarea, summary)")]
  .filter((each) => each.checkVisibility())
  .filter((each) => {
    const [own, over] = [each, document.querySelector(".notice")].map((part) => part.getBoundingClientRect());
    return own.left < over.right && over.left < own.right && own.top < over.bottom && over.top < own.bottom;
  })
  .map((each) => each.ariaLabel ?? each.textContent)
"""


@pytest.mark.parametrize("width", [360, 800, 1180])
def test_a_notice_covers_no_control(ada: Tab, service: ServiceThread, width: int) -> None:
    """While it is shown, the views, the list and what one writes can be used."""
    first, _ = talk(service, "My name is Ada.", "hello")
    ada.page.set_viewport_size({"width": width, "height": 740})
    notice = ada.page.locator(".notice[data-shown=true]")
    ada.open("tasks", first["task_id"]).page.get_by_label("Images").set_input_files(__file__)
    expect(notice).to_have_text("You can add only images: PNG, JPEG, GIF or WebP.")
    assert ada.page.evaluate(COVERED) == []
    ada.open("tasks", first["task_id"], "travel").button("Roll back").click()
    expect(notice).to_contain_text("This is now the current point.")
    assert ada.page.evaluate(COVERED) == []
    ada.page.set_viewport_size({"width": 1180, "height": 740})


@pytest.mark.parametrize("width", [360, 800, 1180])
def test_a_long_notice_covers_no_button_of_a_pause(ada: Tab, service: ServiceThread, width: int) -> None:
    """However many lines it has, and at any time: an approver may be about to decide."""
    (pause,) = talk(service, 'call Files-delete {"path": "a"} and call Files-delete {"path": "b"}')
    ada.page.set_viewport_size({"width": width, "height": 640})
    ada.expected = {500}
    words = {"code": "internal_error", "title": "It broke", "detail": "This is what went wrong. " * 8}
    _once(ada, "**/cancel", status=500, json=words)
    ada.open("tasks", pause["task_id"])
    expect(ada.button("Approve all")).to_be_in_viewport()
    ada.button("Stop the answer").click()
    expect(ada.page.locator(".notice[data-shown=true]")).to_contain_text("This is what went wrong.")
    assert ada.page.evaluate(COVERED.replace(".frame", ":is(.pause .actions, .dock)")) == []
    ada.button("Reject all").click()
    expect(ada.page.locator(".turn-footer")).to_be_visible()
    ada.page.set_viewport_size({"width": 1180, "height": 740})


def test_in_the_inbox_one_can_scroll_the_last_buttons_clear_of_a_notice(
    tabs: Tabs, service: ServiceThread
) -> None:
    """On a phone, where it has the most lines."""
    talk(service, 'call Files-delete {"path": "a"}', user="ivy")
    ivy = tabs.signed_in(f"{service.url}/console/", "ivy").open("approvals")
    ivy.page.set_viewport_size({"width": 360, "height": 640})
    ivy.expected = {409}
    _once(ivy, "**/resume/sse**", status=409, json={"code": "approval_expired", "detail": "Too late."})
    ivy.button("Reject").click()
    expect(ivy.page.locator(".notice[data-shown=true]")).to_contain_text("must be sent again")
    ivy.page.get_by_role("main").evaluate("main => main.scrollTo(0, main.scrollHeight)")
    assert ivy.page.evaluate(COVERED.replace(".frame", ".pause .actions")) == []
    ivy.page.set_viewport_size({"width": 1180, "height": 740})


def _lost(route: Route) -> None:
    """The service answers, and nothing of it arrives."""
    route.fetch()
    route.abort()


@pytest.mark.parametrize("reloaded", [False, True])
def test_a_message_whose_answer_was_lost_is_not_sent_twice(
    tabs: Tabs, service: ServiceThread, reloaded: bool
) -> None:
    """The service had taken it; one who sends it again continues with what is there."""
    user = f"ivy-{reloaded}"
    ivy = tabs.signed_in(f"{service.url}/console/", user)
    ivy.may_be_cut = True
    ivy.page.route(service.url, _lost)
    ivy.say("My name is Ivy.")
    expect(ivy.page.get_by_role("main").get_by_role("alert")).to_contain_text("cannot be reached")
    ivy.page.unroute(service.url)
    if reloaded:
        ivy.page.reload()
    ivy.button("Send").click()
    expect(ivy.text("Nice to meet you, Ivy.")).to_be_visible()
    with service.client(user) as client:
        assert len(client.get("/tasks").raise_for_status().json()["items"]) == 1
    expect(ivy.page.locator(".turn-footer")).to_have_count(1)
    # what was taken is over: the same words again are another message
    ivy.say("My name is Ivy.")
    expect(ivy.text("Nice to meet you, Ivy.")).to_have_count(2)


def test_an_example_whose_answer_was_lost_is_not_sent_twice(tabs: Tabs, service: ServiceThread) -> None:
    """It is not written anywhere; one who chooses it again continues with what is there."""
    jim = tabs.open(f"{service.url}/console/")

    def with_an_example(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "examples": ["My name is Jim."]})

    jim.page.route("**/config.json", with_an_example)
    jim.sign_in("jim").may_be_cut = True
    example = jim.page.get_by_label("Examples").get_by_role("button").first
    jim.page.route(service.url, _lost)
    example.click()
    expect(jim.page.locator(".notice")).to_have_attribute("data-shown", "true")
    jim.page.unroute(service.url)
    example.click()
    expect(jim.text("Nice to meet you, Jim.")).to_be_visible()
    with service.client("jim") as client:
        assert len(client.get("/tasks").raise_for_status().json()["items"]) == 1


def test_a_rollback_or_a_fork_whose_answer_was_lost_is_shown(ada: Tab, service: ServiceThread) -> None:
    """It is not tried again, may have been done, and what it made is there to be seen."""
    *_, last = talk(service, "hello", "My name is Ada.")
    ada.may_be_cut = True
    ada.open("tasks", last["task_id"], "travel")
    first = ada.page.locator(".node", has_text="hello")
    in_doubt = ada.page.locator(".notice", has_text="It may have been done. Check before you try again.")
    ada.page.route("**/rollback", _lost)
    first.get_by_role("button", name="Roll back").click()
    expect(in_doubt).to_have_attribute("data-shown", "true")
    expect(first).to_contain_text("Current")
    in_doubt.click()
    conversations = ada.page.locator(f".session:has(a[href*='{last['task_id']}']) a")
    expect(conversations).to_have_count(0)
    ada.page.route("**/fork", _lost)
    first.get_by_role("button", name="Fork").click()
    expect(in_doubt).to_have_attribute("data-shown", "true")
    expect(conversations).to_have_count(2)


@pytest.mark.parametrize("reloaded", [False, True])
def test_an_edited_message_whose_answer_was_lost_is_sent_once(
    tabs: Tabs, service: ServiceThread, reloaded: bool
) -> None:
    """The second attempt continues in the fork of the first one."""
    user = f"kay-{reloaded}"
    *_, last = talk(service, "hello", "My name is Ivy.", user=user)
    kay = tabs.signed_in(f"{service.url}/console/", user)
    kay.may_be_cut = True
    kay.open("tasks", last["task_id"]).button("Edit and send again").last.click()
    kay.page.locator(".editing textarea").fill("My name is Kay.")
    kay.page.route(service.url, _lost)
    editing = kay.page.locator(".editing")
    editing.get_by_role("button", name="Send").click()
    expect(editing.get_by_role("alert")).to_contain_text("cannot be reached")
    kay.page.unroute(service.url)
    if reloaded:
        kay.page.reload()
    editing.get_by_role("button", name="Send").click()
    expect(kay.text("Nice to meet you, Kay.")).to_be_visible()
    with service.client(user) as client:
        assert len(client.get("/tasks").raise_for_status().json()["items"]) == 2


def test_an_address_that_changes_while_the_page_is_drawn_is_followed(
    tabs: Tabs, service: ServiceThread
) -> None:
    """Before anything could listen for it, as by one who clicks early."""
    (answer,) = talk(service, "hello", user="kim")
    kim = tabs.open(f"{service.url}/console/")
    kim.page.goto(kim.console)
    kim.page.get_by_label("Your name").fill("kim")
    kim.page.evaluate(
        """(hash) => new MutationObserver((_, seen) => {
            if (document.querySelector("#main")) (seen.disconnect(), (location.hash = hash));
        }).observe(document.body, {childList: true, subtree: true})""",
        f"#/tasks/{answer['task_id']}",
    )
    kim.button("Continue").click()
    expect(kim.link("Time travel")).to_be_visible()


def _approved_in_vain(ada: Tab, service: ServiceThread, path: str) -> Locator:
    """A card of the inbox whose approval does not arrive until its route is free again."""
    talk(service, f'call Files-delete {{"path": "{path}"}}')
    ada.may_be_cut = True
    card = ada.open("approvals").page.locator(".card", has_text=path)
    ada.page.route("**/resume/sse**", lambda route: route.abort())
    card.get_by_role("button", name="Approve").click()
    expect(card.get_by_role("status")).to_contain_text("keep this page open")
    return card


def test_a_decision_that_has_not_arrived_is_not_called_decided(ada: Tab, service: ServiceThread) -> None:
    """It is sent until it has, and the page says that it has to stay open for it."""
    card = _approved_in_vain(ada, service, "away.txt")
    expect(card).not_to_contain_text("Decided")
    expect(card).not_to_contain_text("Approved")
    ada.page.unroute("**/resume/sse**")
    expect(card.get_by_role("status")).to_contain_text("Decided. The request is Completed")


def test_a_decision_on_its_way_is_shown_after_one_has_looked_elsewhere(
    ada: Tab, service: ServiceThread
) -> None:
    """It cannot be decided again, and once it has arrived the page says so."""
    card = _approved_in_vain(ada, service, "on-its-way.txt")
    ada.open("new")
    expect(card).to_have_count(0)
    ada.open("approvals")
    expect(card.get_by_role("status")).to_contain_text("keep this page open")
    expect(card.get_by_role("button", name="Reject")).to_have_count(0)
    ada.page.unroute("**/resume/sse**")
    expect(card.get_by_role("status")).to_contain_text("Decided. Its conversation shows the outcome")


#: counts streams of decisions, which bring their first event and nothing more
_ENDLESS = """({session_id, task_id, request_id}) => {
    window.served = fetch;
    window.open_streams = 0;
    window.fetch = async (url, how) => {
        if (!url.includes("/resume/sse")) return served(url, how);
        open_streams += 1;
        const event = JSON.stringify({session_id, task_id, request_id, status: "Running"});
        const start = (stream) => {
            stream.enqueue(new TextEncoder().encode(`event: request\\nid: 1\\ndata: ${event}\\n\\n`));
            const end = () => ((open_streams -= 1), stream.error(how.signal.reason));
            how.signal.addEventListener("abort", end);
        };
        return new Response(new ReadableStream({start}), {headers: {"content-type": "text/event-stream"}});
    };
}"""


def test_what_was_decided_is_not_offered_again_while_its_request_works(
    tabs: Tabs, service: ServiceThread
) -> None:
    """To one who has looked elsewhere, until the inbox holds it no longer."""
    (pause,) = talk(service, 'call Files-delete {"path": "works.txt"}', user="una")
    una = tabs.signed_in(f"{service.url}/console/", "una").open("approvals")
    card = una.page.get_by_role("article")
    una.page.evaluate(_ENDLESS, pause)
    card.get_by_role("button", name="Approve").click()
    expect(card.get_by_role("status")).to_contain_text("The request continues")
    una.open("new")
    expect(card).to_have_count(0)
    una.open("approvals")
    expect(card.get_by_role("status")).to_contain_text("Decided. Its conversation shows the outcome")
    expect(card.get_by_role("button", name="Reject")).to_have_count(0)
    una.page.evaluate("void (window.fetch = served)")


def test_what_was_decided_in_a_conversation_leaves_the_inbox_at_once(
    tabs: Tabs, service: ServiceThread
) -> None:
    """Not only when it is looked at again, which it never is while the page cannot be seen."""
    (pause,) = talk(service, 'call Files-delete {"path": "counted.txt"}', user="udo")
    udo = tabs.signed_in(f"{service.url}/console/", "udo").open("tasks", pause["task_id"])
    badge = udo.page.locator(".badge")
    expect(badge).to_have_text("1")
    hide = "Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true})"
    udo.page.evaluate(hide)
    udo.button("Approve").click()
    expect(udo.text("Files-delete said: counted.txt is deleted")).to_be_visible()
    expect(badge).to_have_count(0)
    udo.page.evaluate("delete document.visibilityState")


def test_streams_of_decisions_do_not_use_up_the_connections(tabs: Tabs, service: ServiceThread) -> None:
    """A browser has six to a host: three are followed at once, no fourth, and none that is not looked at."""
    pauses = [talk(service, f'call Files-delete {{"path": "{n}.txt"}}', user="uma")[0] for n in range(4)]
    uma = tabs.signed_in(f"{service.url}/console/", "uma").open("approvals")
    cards = uma.page.get_by_role("article")
    expect(cards).to_have_count(4)
    uma.page.evaluate(_ENDLESS, pauses[0])
    for card, said in zip(cards.all(), [*["The request continues"] * 3, "conversation shows"], strict=True):
        card.get_by_role("button", name="Approve").click()
        expect(card.get_by_role("status")).to_contain_text(said)
    uma.page.wait_for_function("() => open_streams === 3")
    uma.open("new")
    uma.page.wait_for_function("() => open_streams === 0")
    uma.page.evaluate("void (window.fetch = served)")


def test_a_refusal_of_who_has_signed_out_does_not_sign_the_next_one_out(
    tabs: Tabs, service: ServiceThread
) -> None:
    """It comes late, and is not of their token."""
    tab = tabs.signed_in(f"{service.url}/console/", "vic")
    tab.expected = {401}
    late: list[Route] = []
    tab.page.route("**/tasks?**", lambda route: late.append(route), times=1)
    with tab.page.expect_request("**/tasks?**"):
        tab.look_again()
    tab.button("Sign out").click()
    # in the same page: what was asked for before is on its way still
    tab.page.get_by_label("Your name").fill("wim")
    tab.button("Continue").click()
    expect(tab.link("New conversation")).to_be_visible()
    tab.user = "wim"
    refused = {"www-authenticate": 'Bearer error="invalid_token"'}
    with tab.page.expect_response(lambda seen: seen.status == 401):
        late[0].fulfill(status=401, headers=refused, json={"code": "unauthenticated"})
    tab.say("My name is Wim.")
    expect(tab.text("Nice to meet you, Wim.")).to_be_visible()


def test_a_message_that_was_begun_before_a_pause_does_not_cancel_it(ada: Tab, service: ServiceThread) -> None:
    """What it would do is said, and done once it is sent again."""
    (pause,) = talk(service, 'call Files-delete {"path": "begun.txt"}')
    ada.expected = {409}
    ada.open("tasks", pause["task_id"]).say("My name is Ada.")
    expect(ada.page.get_by_role("main").get_by_role("alert")).to_contain_text("to cancel the waiting request")
    expect(ada.button("Approve")).to_be_visible()
    ada.button("Send").click()
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
    expect(ada.button("Approve")).to_have_count(0)


@pytest.mark.parametrize("reloaded", [False, True])
def test_a_message_that_was_refused_meanwhile_does_not_cancel_what_waits_afterwards(
    ada: Tab, service: ServiceThread, reloaded: bool
) -> None:
    """The warning was of another pause: the agent has worked since."""
    (pause,) = talk(service, 'call Files-delete {"path": "again.txt"}')
    ada.expected = {409}
    alert = ada.page.get_by_role("main").get_by_role("alert")
    ada.open("tasks", pause["task_id"]).say("My name is Ada.")
    expect(alert).to_contain_text("to cancel the waiting request")
    busy = {"code": "task_busy", "detail": "The agent is still answering."}
    ada.page.route(service.url, lambda route: route.fulfill(status=409, json=busy), times=1)
    ada.button("Send").click()
    expect(alert).to_contain_text("still answering")
    if reloaded:
        ada.page.reload()
    ada.button("Send").click()
    expect(alert).to_contain_text("to cancel the waiting request")
    expect(ada.button("Approve")).to_be_visible()


@pytest.mark.parametrize("reloaded", [False, True])
def test_a_message_that_ended_a_pause_and_whose_answer_was_lost_is_not_sent_twice(
    ada: Tab, service: ServiceThread, reloaded: bool
) -> None:
    """The service had taken it; sent again, it is the same message although nothing waits any more."""
    (pause,) = talk(service, 'call Files-delete {"path": "lost.txt"}')
    ada.expected, ada.may_be_cut = {409}, True
    alert = ada.page.get_by_role("main").get_by_role("alert")
    ada.open("tasks", pause["task_id"]).say("My name is Ada.")
    expect(alert).to_contain_text("to cancel the waiting request")
    ada.page.route(service.url, _lost)
    ada.context.set_offline(True)  # what it heard of the request's end would end the alert
    ada.button("Send").click()
    expect(alert).to_contain_text("cannot be reached")
    ada.page.unroute(service.url)
    ada.context.set_offline(False)
    if reloaded:
        ada.page.reload()
    expect(ada.text("Nice to meet you, Ada.")).to_be_visible()
    ada.button("Send").click()
    expect(ada.page.get_by_role("textbox", name="Message", exact=True)).to_have_value("")
    expect(ada.text("Nice to meet you, Ada.")).to_have_count(1)
    expect(alert).to_have_count(0)


def test_roles_are_learned_once_the_service_is_back(tabs: Tabs, service: ServiceThread) -> None:
    """The page was opened while it was away."""
    dave = tabs.open(f"{service.url}/console/")
    dave.expected = {503}
    # a reading tries three times
    dave.page.route("**/me", lambda route: route.fulfill(status=503, json={"code": "draining"}), times=3)
    dave.sign_in("dave")
    expect(dave.button("Whole tenant")).to_be_visible()


def test_what_was_written_before_the_user_was_known_stays(tabs: Tabs, service: ServiceThread) -> None:
    """The service was away when the page was opened, and says later whose the pasted token is."""
    dave = tabs.open(f"{service.url}/console/")
    dave.expected = {503}
    dave.page.route("**/config.json", _asks_for_a_token)
    dave.page.route("**/me", lambda route: route.fulfill(status=503, json={"code": "draining"}))
    dave.page.goto(dave.console)
    dave.page.get_by_label("Bearer token").fill("dave")
    dave.button("Continue").click()
    field = dave.page.get_by_role("textbox", name="Message", exact=True)
    field.fill("Half a thought")
    picture = Path(__file__).parents[2] / "demos/images/teapot.png"
    pictures = dave.page.get_by_label("Images", exact=True)
    pictures.set_input_files(picture)
    waiting = dave.page.get_by_role("img", name="teapot.png")
    expect(waiting).to_have_count(1)
    dave.page.unroute("**/me")
    expect(dave.button("Whole tenant")).to_be_visible()
    pictures.set_input_files(picture)
    expect(waiting).to_have_count(2)
    dave.open("approvals")
    expect(field).to_have_count(0)
    dave.open("new")
    expect(field).to_have_value("Half a thought")
    expect(waiting).to_have_count(2)
