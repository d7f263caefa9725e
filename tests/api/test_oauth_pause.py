"""A tool server that wants the user's own authorization: from the pause to the answer, with a browser."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from oauth_setup import Provider, protected
from talk import send
from wire import text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.servers import free_port
from tealagents.testing.service import ServiceThread, agent_config

Json = dict[str, Any]


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def service(provider: Provider) -> Iterator[ServiceThread]:
    with serving(provider) as running:
        yield running


@contextmanager
def serving(
    provider: Provider,
    *,
    protocols: tuple[str, ...] = (),
    limits: Json | None = None,
    beside: tuple[str, ...] = (),
    **options: Any,
) -> Iterator[ServiceThread]:
    """A service with a protected tool server; `boss` is an approver, `clerk` an auditor.

    `beside` are the names of further servers, which are the same one.
    """
    port = free_port()
    with protected(provider) as url, OfflineModel() as model:
        servers = [
            {"name": name, "url": url, "trust_level": "trusted", **options} for name in ("secure", *beside)
        ]
        env = {
            "TA_AUTH": "mock",
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_PUBLIC_URL": f"http://127.0.0.1:{port}",
        }
        auth = {"provider": "mock", "options": {"approver_users": ["boss"], "auditor_users": ["clerk"]}}
        config = agent_config(
            agent={"mcp_servers": servers}, auth=auth, protocols=list(protocols), limits=limits or {}
        )
        with ServiceThread(config, env, port=port) as running:
            yield running


def back_from(provider: Provider, user: str, paused: Json) -> str:
    """Where the browser is sent once this user has agreed."""
    (authorization,) = paused["content"]["authorizations"]
    provider.user = user
    answer = httpx.get(authorization["url"])
    assert answer.status_code == 302, answer.text
    return answer.headers["location"]


def test_a_user_agrees_and_the_tool_runs_as_that_user(service: ServiceThread, provider: Provider) -> None:
    """Paused with the URL to visit; visited, approved, done; the link works once. covers: HITL-3"""
    with service.client("ada") as ada:
        paused = send(ada, "call secure-connect {}")
        assert paused["status"] == "Paused"
        back = back_from(provider, "Ada", paused)
        assert back.startswith(f"{service.url}/oauth/callback?")
        agreed = httpx.get(back)
        assert (agreed.status_code, agreed.text) == (
            200,
            "secure is authorized. Go back to the conversation and approve the request.",
        )
        again = httpx.get(back)
        assert (again.status_code, again.json()["code"]) == (422, "invalid_request")
        connected = ada.post(f"/requests/{paused['request_id']}/resume", json={"action": "approve"}).json()
        assert connected["status"] == "Completed"
        resumed = send(ada, "call secure-whoami {}", task_id=paused["task_id"])
        assert "Ada" in resumed["content"]["output"]


def test_one_of_several_servers_has_a_callback_of_its_own(provider: Provider) -> None:
    """A code that comes to another is refused, and the user's own still counts. covers: HITL-3"""
    with serving(provider, beside=("second",)) as service, service.client("ada") as ada:
        back = httpx.URL(back_from(provider, "Ada", send(ada, "call secure-connect {}")))
        assert str(back).startswith(f"{service.url}/oauth/callback?server=")
        for elsewhere in (back.copy_remove_param("server"), back.copy_set_param("server", "0" * 32)):
            refused = httpx.get(elsewhere)
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
            assert "different authorization server" in refused.json()["detail"]
        assert httpx.get(back).text.startswith("secure is authorized.")


def test_a_user_sees_why_the_authorization_server_refuses(service: ServiceThread) -> None:
    """What is wrong with the service's registration is no decision of the user's."""
    with service.client("finn") as finn:
        (authorization,) = send(finn, "call secure-connect {}")["content"]["authorizations"]
        state = httpx.URL(authorization["url"]).params["state"]
        wrong = {"error": "invalid_scope", "error_description": "not registered with scope a"}
        shown = finn.get("/oauth/callback", params={"state": state, **wrong}).text
        assert "secure was not authorized (invalid_scope: not registered with scope a)" in shown


def test_a_user_who_declines_grants_nothing(service: ServiceThread) -> None:
    """The state is used up; approving without the grant asks again, under a new link. covers: HITL-3"""
    with service.client("eve") as eve:
        paused = send(eve, "call secure-connect {}")
        (authorization,) = paused["content"]["authorizations"]
        state = httpx.URL(authorization["url"]).params["state"]
        answer = {"error": "access_denied", "state": state}
        assert eve.get("/oauth/callback", params={**answer, "iss": "https://evil.example"}).status_code == 422
        declined = eve.get("/oauth/callback", params=answer)
        assert declined.status_code == 200
        assert declined.text.startswith("Nothing was granted.")
        assert eve.get("/oauth/callback", params={"code": "x", "state": state}).status_code == 422
        asked = eve.post(f"/requests/{paused['request_id']}/resume", json={"action": "approve"}).json()
        assert asked["status"] == "Paused"
        assert asked["content"]["authorizations"][0]["url"] != authorization["url"]


@pytest.mark.parametrize("ended", ["canceled", "rejected", "expired"])
def test_a_link_ends_with_the_request_that_asked(provider: Provider, ended: str) -> None:
    """Visited later, it grants nothing, and says what to do; it is used up."""
    limits = {"approval_expiry_seconds": 1 if ended == "expired" else 3600}
    with serving(provider, limits=limits) as service, service.client("ada") as ada:
        paused = send(ada, "call secure-connect {}")
        back, path = back_from(provider, "Mallory", paused), f"/requests/{paused['request_id']}"
        if ended == "canceled":
            ada.post(f"{path}/cancel").raise_for_status()
        elif ended == "rejected":
            ada.post(f"{path}/resume", json={"action": "reject"}).raise_for_status()
        else:
            time.sleep(1.1)
        visited = httpx.get(back)
        assert visited.status_code == 422
        assert "Send the message again for a new link" in visited.json()["detail"]
        assert "has been used" in httpx.get(back).json()["detail"]
        assert provider.granted == []
        assert send(ada, "call secure-connect {}")["status"] == "Paused"


def test_a_link_stays_good_when_an_approver_is_first(service: ServiceThread, provider: Provider) -> None:
    """The pause that waits for the owner names no link; the owner is on the way back with the first one."""
    with service.client("ada") as ada, service.client("boss") as boss:
        paused = send(ada, "call secure-connect {}")
        back = back_from(provider, "Ada", paused)
        resume = f"/requests/{paused['request_id']}/resume"
        assert boss.post(resume, json={"action": "approve"}).json()["status"] == "Paused"
        assert httpx.get(back).status_code == 200
        second = ada.get(f"/requests/{paused['request_id']}").json()["content"]
        which = {"approval_id": second["approval_id"]}
        assert ada.post(resume, params=which, json={"action": "approve"}).json()["status"] == "Completed"


def test_a_link_ends_once_another_has_been_used(service: ServiceThread, provider: Provider) -> None:
    """A link of another request for the same server does not replace what the user granted."""
    with service.client("ada") as ada:
        first, second = (send(ada, "call secure-connect {}") for _ in range(2))
        other = back_from(provider, "Mallory", second)
        assert httpx.get(back_from(provider, "Ada", first)).status_code == 200
        visited = httpx.get(other)
        assert visited.status_code == 422
        assert "approve the request" in visited.json()["detail"]
        resume = f"/requests/{second['request_id']}/resume"
        assert ada.post(resume, json={"action": "approve"}).json()["status"] == "Completed"
        assert "Ada" in send(ada, "call secure-whoami {}")["content"]["output"]
    assert provider.granted == ["code"]


def test_a_look_at_the_link_does_not_spend_it(service: ServiceThread, provider: Provider) -> None:
    """HEAD, as previews and scanners of links send it, changes nothing: the user's own visit counts."""
    with service.client("hal") as hal:
        paused = send(hal, "call secure-connect {}")
        back = back_from(provider, "Hal", paused)
        for link in (back, back.replace("code=", "error=access_denied&was=")):
            looked = httpx.head(link)
            assert (looked.status_code, looked.content) == (200, b"")
        assert httpx.get(back).text.startswith("secure is authorized.")
        assert httpx.head(f"{service.url}/oauth/callback").status_code == 404


def test_a_callback_without_a_link_leads_nowhere(service: ServiceThread) -> None:
    """Neither state nor code, an unknown state: a problem document, and no server is called."""
    with service.client("ada") as ada:
        assert ada.get("/oauth/callback").status_code == 404
        unknown = ada.get("/oauth/callback", params={"error": "access_denied", "state": "forged"})
        assert (unknown.status_code, unknown.json()["code"]) == (422, "invalid_request")
        assert ada.post("", json=text("hello")).status_code == 200


def test_an_approver_does_not_spend_the_owners_authorization(provider: Provider) -> None:
    """A governed call to a server that the owner has authorized earlier: approved by another user it waits,
    a stranger is refused, and the owner's own resume runs it. covers: HITL-3"""
    governed = {"whoami": {"requires_hitl": True}}
    with (
        serving(provider, tool_governance_overrides=governed) as service,
        service.client("ada") as ada,
        service.client("boss") as boss,
        service.client("eve") as eve,
    ):
        connecting = send(ada, "call secure-connect {}")
        httpx.get(back_from(provider, "Ada", connecting)).raise_for_status()
        ada.post(f"/requests/{connecting['request_id']}/resume", json={"action": "approve"})
        paused = send(ada, "call secure-whoami {}")
        assert (paused["status"], paused["content"]["authorizations"]) == ("Paused", [])
        resume = f"/requests/{paused['request_id']}/resume"
        assert eve.post(resume, json={"action": "approve"}).status_code == 401
        approved = boss.post(resume, json={"action": "approve"}).raise_for_status().json()
        assert approved["status"] == "Paused"
        assert provider.calls == []
        waiting = ada.get(f"/requests/{paused['request_id']}").json()["content"]
        assert [call["function_name"] for call in waiting["tool_calls"]] == ["whoami"]
        query = f"?approval_id={waiting['approval_id']}"
        done = ada.post(resume + query, json={"action": "approve"}).raise_for_status().json()
        assert done["status"] == "Completed"
        assert provider.calls == ["Ada"]


def test_only_the_owner_is_shown_the_link(service: ServiceThread, provider: Provider) -> None:
    """An auditor reads the pause without it, as JSON and as an event: the user who visits it decides
    whose account the owner's calls use. covers: HITL-3"""
    with service.client("ada") as ada, service.client("clerk") as clerk, service.client("boss") as boss:
        paused = send(ada, "call secure-connect {}")
        (authorization,) = paused["content"]["authorizations"]
        request = f"/requests/{paused['request_id']}"
        pause = f"{request}/approvals/{paused['content']['approval_id']}"
        for path in (request, f"{request}/events", pause):
            assert authorization["url"] in ada.get(path).raise_for_status().text
            read = clerk.get(path).raise_for_status().text
            assert "connect" in read
            assert httpx.URL(authorization["url"]).params["state"] not in read
        for path in (pause, "/approvals"):
            assert (
                httpx.URL(authorization["url"]).params["state"] not in boss.get(path).raise_for_status().text
            )


def test_users_of_one_server_are_not_shown_each_others_tools(provider: Provider, tmp_path: Path) -> None:
    """What the model is sent for one user holds nothing that the server listed for another: on the replica
    where both connected, on another, and after a restart."""
    with protected(provider, per_user=True) as url, OfflineModel() as model:
        port = free_port()
        server = {"name": "private", "url": url, "trust_level": "trusted"}
        config = agent_config(agent={"mcp_servers": [server]})
        env = {
            "TA_AUTH": "mock",
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_PUBLIC_URL": f"http://127.0.0.1:{port}",
            "TA_PERSISTENCE": f"sqlite:///{tmp_path / 'state.db'}",
            "TA_ENCRYPTION_KEY": base64.b64encode(bytes(range(32))).decode(),
        }

        def tools_sent(service: ServiceThread, user: str) -> str:
            model.clear()
            with service.client(user) as client:
                send(client, "hello")
            return json.dumps(model.requests[-1]["body"]["tools"])

        def connected(service: ServiceThread, user: str) -> None:
            with service.client(user) as client:
                answer = send(client, "call private-connect {}")
                if answer["status"] == "Paused":
                    httpx.get(back_from(provider, user.title(), answer)).raise_for_status()
                    path = f"/requests/{answer['request_id']}/resume"
                    answer = client.post(path, json={"action": "approve"}).json()
                assert answer["status"] == "Completed", answer

        def apart(service: ServiceThread) -> None:
            for user, other in (("ada", "Bob"), ("bob", "Ada")):
                sent = tools_sent(service, user)
                assert f"Private to {user.title()}" in sent
                assert other not in sent
            assert "Private" not in tools_sent(service, "eve")

        with ServiceThread(config, env, port=port) as one:
            connected(one, "ada")
            assert "Private" not in tools_sent(one, "bob")
            connected(one, "bob")
            apart(one)
            with ServiceThread(config, env) as other:
                assert "Private" not in tools_sent(other, "ada")
                connected(other, "ada")
                assert "Private" not in tools_sent(other, "bob")
                connected(other, "bob")
                apart(other)
        with ServiceThread(config, env, port=port) as again:
            for user in ("ada", "bob"):
                assert "Private" not in tools_sent(again, user)
            for user in ("ada", "bob"):
                connected(again, user)
            apart(again)
