"""Signing in with Entra's own library, against the local authority: code with PKCE, roles, renewal."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import ENVIRONMENT, agent
from playwright.sync_api import Route, expect
from tabs import Tab, Tabs

from tealagents.llm.offline import OfflineModel
from tealagents.testing.authority import USER_CLIENT, LocalAuthority
from tealagents.testing.forking import Nursery
from tealagents.testing.service import ServiceProcess, agent_config
from tealagents.testing.signing_in import self_signed


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("authority") / "authority.pem")


@pytest.fixture(scope="module")
def authority(certificate: Path) -> Iterator[LocalAuthority]:
    with LocalAuthority(certificate=certificate) as running:
        yield running


@pytest.fixture(scope="module")
def protected(nursery: Nursery, authority: LocalAuthority, certificate: Path) -> Iterator[ServiceProcess]:
    """A service that trusts the authority, and its certificate."""
    spec = agent(console={"enabled": True, "client_id": USER_CLIENT}, auth={})
    with OfflineModel() as model:
        env = {
            **ENVIRONMENT,
            **authority.environment(),
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "key",
            "SSL_CERT_FILE": str(certificate),
        }
        with nursery.service(agent_config(**spec), env) as running:
            yield running


def _signed_in(tabs: Tabs, service: ServiceProcess, *, recorded: bool = False) -> Tab:
    tab = tabs.open(f"{service.url}/console/", recorded=recorded, ignore_https_errors=True)
    tab.page.goto(tab.console)
    tab.button("Sign in with Microsoft").click()
    tab.link("New conversation").wait_for()
    return tab


def test_signing_in_and_talking(tabs: Tabs, authority: LocalAuthority, protected: ServiceProcess) -> None:
    """The page goes to the authority and comes back with a token, which is in no address."""
    before = len(authority.forms)
    tab = _signed_in(tabs, protected, recorded=True)
    expect(tab.text("alice@contoso.example")).to_be_visible()
    tab.say("My name is Alice.")
    expect(tab.text("Nice to meet you, Alice.")).to_be_visible()
    tab.page.reload()
    expect(tab.text("Nice to meet you, Alice.")).to_be_visible()
    assert {url.split("/")[2] for url in tab.strangers()} == {authority.url.removeprefix("https://")}
    assert not [url for url in tab.requests if re.search(r"eyJ[\w-]+\.eyJ", url)]
    (form,) = authority.forms[before:]
    assert form["grant_type"] == "authorization_code"
    assert "code_verifier" in form


def test_the_way_back_does_not_lead_to_the_answer_of_the_authority(
    tabs: Tabs, protected: ServiceProcess
) -> None:
    """Its code is not left in the history: one step back is the page from which the user signed in."""
    tab = _signed_in(tabs, protected)
    tab.page.go_back()
    expect(tab.page).to_have_url(tab.console)
    expect(tab.link("New conversation")).to_be_visible()


def test_one_who_comes_back_from_the_authority_without_signing_in_is_not_shown_an_error(
    tabs: Tabs, protected: ServiceProcess
) -> None:
    """The browser brings the page back as it was left, and the library calls that an error."""
    tab = tabs.open(f"{protected.url}/console/", ignore_https_errors=True)
    tab.page.goto(tab.console)
    left: list[Route] = []

    def leave(route: Route) -> None:
        left.append(route)
        route.fulfill(status=204)  # the page stays, as one that the browser keeps to come back to

    tab.page.route("**/authorize*", leave)
    tab.button("Sign in with Microsoft").click()
    tab.held(left)
    expect(tab.page.get_by_role("button")).to_have_text("Going to the sign-in page …")
    tab.page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")
    expect(tab.button("Sign in with Microsoft")).to_be_enabled()
    expect(tab.page.get_by_role("alert")).to_have_count(0)


def test_a_token_is_renewed(tabs: Tabs, authority: LocalAuthority, protected: ServiceProcess) -> None:
    """A token that has run out is renewed without a word to the user."""
    authority.lifetime = 30  # less than the five minutes before its end at which the library renews
    tab = _signed_in(tabs, protected)
    tab.say("My name is Alice.")
    expect(tab.text("Nice to meet you, Alice.")).to_be_visible()
    authority.lifetime = 3600
    assert "refresh_token" in [form["grant_type"] for form in authority.forms]


def test_signing_out_forgets_the_tokens(tabs: Tabs, protected: ServiceProcess) -> None:
    """Nothing of the session is left in the tab."""
    tab = _signed_in(tabs, protected)
    tab.button("Sign out").click()
    expect(tab.button("Sign in with Microsoft")).to_be_visible()
    kept = tab.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "accesstoken" not in kept.lower()
    assert "refreshtoken" not in kept.lower()


def test_a_fresh_token_that_is_refused_leads_to_the_sign_in_with_the_reason(
    tabs: Tabs, authority: LocalAuthority, protected: ServiceProcess
) -> None:
    """Such as one of an application that the service does not allow: no renewal would help."""
    tab = _signed_in(tabs, protected)
    tab.expected = {401}
    authority.forms.clear()
    reason = "The bearer token was issued to an application that may not call this service."
    tab.page.route(
        f"{protected.url}/*",
        lambda route: route.fulfill(
            status=401,
            headers={"www-authenticate": 'Bearer error="invalid_token"'},
            json={"code": "unauthenticated", "detail": reason},
        ),
    )
    tab.look_again()
    expect(tab.page.get_by_role("alert")).to_contain_text(reason)
    expect(tab.button("Sign in with Microsoft")).to_be_visible()


def test_that_the_service_is_shutting_down_is_said_until_it_is_back(
    tabs: Tabs, protected: ServiceProcess
) -> None:
    """The page asks for the service's health, which takes no token."""
    tab = _signed_in(tabs, protected)
    tab.expected = {503}
    draining = {"code": "draining", "title": "Shutting down", "detail": "Another process takes it."}
    later = {"retry-after": "600"}
    tab.page.route(
        protected.url, lambda route: route.fulfill(status=503, json=draining, headers=later), times=1
    )
    tab.page.route("**/health", lambda route: None)  # until it has been said: it is back already
    tab.say("My name is Alice.")
    said = tab.page.get_by_role("main").get_by_role("alert")
    expect(said).to_contain_text("Shutting down")
    tab.page.unroute("**/health")
    expect(said).to_have_count(0)


@pytest.mark.parametrize("refusal", ["invalid_grant", "interaction_required"])
def test_a_refresh_token_that_is_refused_leads_to_the_sign_in(
    tabs: Tabs, authority: LocalAuthority, protected: ServiceProcess, refusal: str
) -> None:
    """The user signs in again, and finds what they had written."""
    authority.lifetime = 30
    tab = _signed_in(tabs, protected)
    tab.expected = {400}
    field = tab.page.get_by_role("textbox", name="Message", exact=True)
    field.fill("Half a thought")
    cors = {"access-control-allow-origin": "*"}
    answer = {"error": refusal, "error_description": "AADSTS50076: sign in again"}
    tokens = "**/oauth2/v2.0/token*"
    tab.page.route(tokens, lambda route: route.fulfill(status=400, headers=cors, json=answer))
    tab.look_again()
    expect(tab.page.get_by_role("alert")).to_contain_text("Sign in again")
    authority.lifetime = 3600
    tab.page.unroute(tokens)
    tab.button("Sign in with Microsoft").click()
    expect(field).to_have_value("Half a thought")


def test_an_answer_is_followed_and_a_decision_sent_although_the_token_ran_out_without_a_network(
    tabs: Tabs, authority: LocalAuthority, protected: ServiceProcess
) -> None:
    """Once the network is back, as when a laptop wakes up."""
    authority.lifetime = 30
    tab = _signed_in(tabs, protected)
    tab.may_be_cut = True
    tokens = "**/oauth2/v2.0/token*"

    def offline(route: Route) -> None:
        tab.page.route(tokens, lambda renewal: renewal.abort("internetdisconnected"))
        route.abort("internetdisconnected")

    tab.page.route("**/events", offline, times=1)
    tab.say('call Files-delete {"path": "notes.txt"}')
    expect(tab.text("The connection was lost")).to_be_visible()
    tab.page.unroute(tokens)
    expect(tab.button("Approve")).to_be_visible()
    tab.page.route(tokens, lambda renewal: renewal.abort("internetdisconnected"))
    tab.button("Approve").click()
    expect(tab.page.get_by_text("The decision has not arrived. Trying again")).to_be_visible()
    authority.lifetime = 3600
    tab.page.unroute(tokens)
    expect(tab.text("Files-delete said: notes.txt is deleted")).to_be_visible()
