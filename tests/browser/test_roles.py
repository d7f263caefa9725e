"""Who sees what: two users see nothing of each other, an approver decides and an auditor reads."""

import re

from playwright.sync_api import Route, expect
from tabs import Tab, Tabs

from tealagents.testing.service import ServiceThread


def _paused(service: ServiceThread, user: str, path: str) -> dict[str, str]:
    body = {
        "items": [{"content_type": "text", "content": f'call Files-delete {{"path": "{path}"}}'}],
        "metadata": {"title": f"A secret of {user}"},
    }
    with service.client(user) as client:
        answer: dict[str, str] = client.post("", json=body).json()
    assert answer["status"] == "Paused"
    return answer


def _console(service: ServiceThread) -> str:
    return f"{service.url}/console/"


VIEWS = ((), ("trace",), ("travel",), ("audit",), ("details",))


def test_two_users_see_nothing_of_each_other(tabs: Tabs, service: ServiceThread) -> None:
    """Neither by a list nor by a guessed address; an approver in a third browser decides for the first."""
    ann, ben, carol = (
        tabs.signed_in(_console(service), user, recorded=True) for user in ("ann", "ben", "carol")
    )
    of_ann = _paused(service, "ann", "ann.txt")
    of_ben = _paused(service, "ben", "ben.txt")

    for tab, own, other, stranger in ((ann, of_ann, of_ben, "ben"), (ben, of_ben, of_ann, "ann")):
        tab.expected = {401}
        expect(tab.link("Approvals").or_(tab.page.get_by_role("link", name="Approvals 1"))).to_be_visible()
        tab.open("tasks", own["task_id"])
        expect(tab.page.get_by_role("region", name="A decision is needed")).to_be_visible()
        for view in VIEWS:
            tab.open("tasks", other["task_id"], *view)
            expect(tab.text("This belongs to another user")).to_be_visible()
        tab.open("compare", other["task_id"], "current", own["task_id"], "current")
        expect(tab.text("This belongs to another user")).to_be_visible()
        tab.open("approvals")
        expect(tab.page.locator(".card")).to_have_count(1)
        expect(tab.page.locator("body")).not_to_contain_text(f"secret of {stranger}")
        expect(tab.page.locator("body")).not_to_contain_text(f"{stranger}.txt")

    carol.open("approvals")
    of_others = carol.page.locator(".card", has_text=re.compile(r"\b(ann|ben)\.txt"))
    expect(of_others).to_have_count(2)
    expect(carol.page.locator("body")).not_to_contain_text("secret of ann")
    card = carol.page.locator(".card", has_text="ann.txt")
    card.get_by_label("Reason").fill("It is old.")
    card.get_by_role("button", name="Approve").click()
    expect(card.get_by_role("status")).to_contain_text("Completed")
    expect(card).not_to_contain_text("ann.txt is deleted")
    carol.button("Decided").click()
    expect(card).to_contain_text("Decided by carol")
    expect(of_others.get_by_role("link", name="Conversation")).to_have_count(0)

    ann.open("tasks", of_ann["task_id"])
    expect(ann.text("Files-delete said: ann.txt is deleted")).to_be_visible()
    ann.open("tasks", of_ann["task_id"], "trace")
    ann.page.get_by_role("button", name="Approval decided").click()
    expect(ann.page.locator(".step-details")).to_contain_text('"oid": "carol"')
    assert [tab.strangers() for tab in (ann, ben, carol)] == [[], [], []]


def test_an_approver_is_led_to_their_own_conversations_only(tabs: Tabs, service: ServiceThread) -> None:
    """Of what they decide for others they may not read the rest."""
    for user in ("ada", "carol"):
        _paused(service, user, f"led-{user}.txt")
    carol = tabs.signed_in(_console(service), "carol").open("approvals")
    cards = carol.page.locator(".card")
    expect(cards.filter(has_text="led-carol.txt").get_by_role("link", name="Conversation")).to_be_visible()
    expect(cards.filter(has_text="led-ada.txt")).to_be_visible()
    expect(cards.filter(has_text="led-ada.txt").get_by_role("link")).to_have_count(0)
    for user in ("ada", "carol"):
        cards.filter(has_text=f"led-{user}.txt").get_by_role("button", name="Reject").click()


def test_an_approver_is_led_to_no_conversation_before_their_roles_are_known(
    tabs: Tabs, service: ServiceThread
) -> None:
    """What they may read for others is not guessed."""
    _paused(service, "ada", "early.txt")
    calls: list[Route] = []
    carol = tabs.open(_console(service))
    carol.page.route("**/me", lambda route: calls.append(route))
    carol.sign_in("carol").open("approvals")
    card = carol.page.locator(".card", has_text="early.txt")
    expect(card.get_by_role("button", name="Reject")).to_be_visible()
    expect(card.get_by_role("link")).to_have_count(0)
    carol.held(calls).continue_()
    card.get_by_role("button", name="Reject").click()
    expect(card.get_by_role("status")).to_contain_text("Completed")


def test_a_decision_that_came_too_late_says_so(tabs: Tabs, service: ServiceThread) -> None:
    """Two approvers of one pause: the second one is shown that it was decided."""
    of_ada = _paused(service, "ada", "late.txt")
    first, second = (tabs.signed_in(_console(service), user) for user in ("ada", "carol"))
    second.expected = {409}
    first.open("tasks", of_ada["task_id"])
    second.open("approvals")
    card = second.page.locator(".card", has_text="late.txt")
    expect(card).to_have_accessible_name("Approval is needed before Files-delete can run.")
    second.page.route("**/approvals?**", lambda route: route.abort())
    second.may_be_cut = True
    first.button("Reject").click()
    expect(first.page.locator(".answer", has_text="The user rejected this call")).to_be_visible()
    card.get_by_role("button", name="Approve").click()
    expect(card.get_by_role("alert")).to_contain_text("This has already been decided")
    # to press them again would change nothing
    for name in ("Approve", "Reject"):
        expect(card.get_by_role("button", name=name)).to_be_disabled()


def test_a_decision_that_came_too_late_is_known_after_its_card_has_changed(
    tabs: Tabs, service: ServiceThread
) -> None:
    """The card shows the other decision at once; a notice says that this one changed nothing."""
    of_carol = _paused(service, "carol", "slower.txt")
    carol = tabs.signed_in(_console(service), "carol")
    _rejected_first(carol, service, of_carol)
    carol.open("approvals")
    card = carol.page.locator(".card", has_text="slower.txt")
    card.get_by_role("button", name="Approve").click()
    expect(card).to_contain_text("Decided by carol")
    expect(card.locator(".status")).to_have_text("Rejected")
    notice = carol.page.locator(".notice", has_text="This has already been decided")
    expect(notice).to_contain_text("Another decision came first")


def _rejected_first(tab: Tab, service: ServiceThread, pause: dict[str, str]) -> None:
    """The user's rejection from elsewhere is quicker than any decision that the page sends."""
    tab.expected = {409}

    def second(route: Route) -> None:
        with service.client(tab.user) as client:
            rejected = client.post(f"/requests/{pause['request_id']}/resume", json={"action": "reject"})
            rejected.raise_for_status()
        route.continue_()

    tab.page.route("**/resume**", second)


def test_in_a_conversation_a_decision_that_came_too_late_says_so(tabs: Tabs, service: ServiceThread) -> None:
    """The outcome of the other one takes the place of the pause, and with it of what is wrong."""
    pause = _paused(service, "ada", "too late.txt")
    ada = tabs.signed_in(_console(service), "ada")
    _rejected_first(ada, service, pause)
    ada.open("tasks", pause["task_id"]).button("Approve").click()
    expect(ada.page.locator(".answer", has_text="The user rejected this call")).to_be_visible()
    notice = ada.page.locator(".notice", has_text="This has already been decided")
    expect(notice).to_contain_text("Another decision came first")


def test_a_long_name_stays_within_the_card(tabs: Tabs, service: ServiceThread) -> None:
    """Of the user who decided."""
    name = "b" * 200
    pause = _paused(service, name, "long.txt")
    with service.client(name) as client:
        client.post(f"/requests/{pause['request_id']}/resume", json={"action": "reject"}).raise_for_status()
    tab = tabs.signed_in(_console(service), name).open("approvals")
    tab.button("Decided").click()
    expect(tab.page.get_by_text(f"Decided by {name}")).to_be_visible()
    assert tab.page.locator(".page").evaluate("page => page.scrollWidth <= page.clientWidth")


def test_what_was_decided_elsewhere_stays_with_what_became_of_it(tabs: Tabs, service: ServiceThread) -> None:
    """On the inbox of one who was about to decide it: which call it was, and who decided."""
    of_ada = _paused(service, "ada", "gone.txt")
    carol = tabs.signed_in(_console(service), "carol").open("approvals")
    card = carol.page.locator(".card", has_text="gone.txt")
    expect(card.get_by_role("button", name="Approve")).to_be_visible()
    with service.client("ada") as client:
        where = f"/requests/{of_ada['request_id']}/resume"
        client.post(where, json={"action": "reject"}).raise_for_status()
    carol.look_again()
    expect(card).to_contain_text("Decided by ada")
    expect(card).to_have_accessible_name("Decided")
    expect(card).to_contain_text("Files-delete")
    expect(card.get_by_role("button")).to_have_count(0)


def test_what_waits_is_shown_behind_pages_of_what_was_decided(tabs: Tabs, service: ServiceThread) -> None:
    """However much was asked for since, the badge counts it and the inbox offers it, open or opened anew."""
    frank = tabs.signed_in(_console(service), "frank").open("approvals")
    frank.page.route(
        "**/approvals?**",
        lambda route: route.continue_(url=re.sub(r"limit=\d+", "limit=1", route.request.url)),
    )
    _paused(service, "frank", "waits.txt")
    frank.look_again()
    card = frank.page.locator(".card", has_text="waits.txt")
    expect(card.get_by_role("button", name="Approve")).to_be_visible()
    later = _paused(service, "frank", "decided.txt")
    with service.client("frank") as client:
        client.post(f"/requests/{later['request_id']}/resume", json={"action": "reject"}).raise_for_status()
    with frank.page.expect_response(lambda answer: "cursor=" in answer.url):
        frank.look_again()
    expect(frank.page.get_by_role("link", name="Approvals 1")).to_be_visible()
    expect(card.get_by_role("button", name="Approve")).to_be_visible()
    frank.open("new").open("approvals")
    expect(card.get_by_role("button", name="Approve")).to_be_visible()
    expect(frank.text("Nothing is waiting for you")).to_have_count(0)
    card.get_by_role("button", name="Reject").click()
    expect(card.get_by_role("status")).to_contain_text("Completed")


def test_an_auditor_reads_and_changes_nothing(tabs: Tabs, service: ServiceThread) -> None:
    """Everything of a task is there, and nothing that would change it."""
    task = _paused(service, "ada", "audited.txt")["task_id"]
    dave = tabs.signed_in(_console(service), "dave")
    dave.open("tasks", task)
    expect(dave.page.get_by_text("This is another user's conversation (ada)")).to_be_visible()
    expect(dave.page.get_by_role("region", name="A decision is needed")).to_contain_text("audited.txt")
    for name in ("Approve", "Reject", "Send", "Edit and send again"):
        expect(dave.button(name)).to_have_count(0)
    for view, shown in (
        ("trace", "Approval requested"),
        ("audit", "Verified"),
        ("details", "A secret of ada"),
    ):
        dave.open("tasks", task, view)
        expect(dave.page.locator("main")).to_contain_text(shown)
    expect(dave.button("Save")).to_have_count(0)
    dave.page.locator("summary[aria-label=Actions]").click()
    for name, count in (("Export", 1), ("Rename …", 0), ("Fork", 0), ("Delete …", 0)):
        expect(dave.button(name)).to_have_count(count)


def test_an_auditor_is_not_asked_to_write(tabs: Tabs, service: ServiceThread) -> None:
    """Where a conversation is empty, such as after its only message was taken back, there is no field."""
    with service.client("ada") as client:
        body = {"items": [{"content_type": "text", "content": "hello"}]}
        task = client.post("", json=body).raise_for_status().json()["task_id"]
    dave = tabs.signed_in(_console(service), "dave")
    dave.page.route("**/messages?**", lambda route: route.fulfill(json={"items": [], "next_cursor": None}))
    dave.open("tasks", task)
    expect(dave.text("There are no messages on this path.")).to_be_visible()


def test_an_auditor_finds_the_conversations_of_the_tenant(tabs: Tabs, service: ServiceThread) -> None:
    """Of all users, with their names; who is no auditor has no such list."""
    for user in ("ada", "bob"):
        _paused(service, user, f"found-{user}.txt")
    dave = tabs.signed_in(_console(service), "dave")
    expect(dave.page.locator(".task")).to_have_count(0)
    dave.button("Whole tenant").click()
    for user in ("ada", "bob"):
        expect(dave.page.locator(".task", has_text=f"A secret of {user}").first).to_contain_text(user)
    dave.page.get_by_label("Status").select_option("Failed")
    expect(dave.page.get_by_text("No match. Try another filter.")).to_be_visible()
    dave.page.get_by_label("Status").select_option("Paused")
    dave.page.locator(".task", has_text="A secret of bob").first.click()
    expect(dave.page.get_by_text("This is another user's conversation (bob)")).to_be_visible()
    ada = tabs.signed_in(_console(service), "ada")
    expect(ada.page.locator(".task").first).to_be_visible()
    expect(ada.button("Whole tenant")).to_have_count(0)


def test_signing_out_leaves_nothing_behind(ada: Tab) -> None:
    """The next user of the tab finds neither a name nor a token, and begins at the first page."""
    ada.open("approvals").button("Sign out").click()
    expect(ada.page.get_by_label("Your name")).to_be_visible()
    kept = ada.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "ada" not in kept
    assert ada.page.url == f"{ada.console}#/"
