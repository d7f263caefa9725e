"""Whose a session, task or request is, on every path of every protocol: tried for each route there is.

For each the owner succeeds first, then a stranger sends the very same call and is refused, and then what
is stored for either is byte for byte what it was. A route without a recipe in `estates` fails the tests.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a_talk import VERSION
from agui_talk import refusal
from estates import A2A, AG_UI, APPROVE, OPENAI, OWN, RECIPES, SECRET, Estate
from served_routes import PROTOCOLS, PUBLIC, places
from wire import NOBODYS, Event, Json, events, operations, problem, records_of_each, store_of, text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.authority import OTHER_TENANT, TENANT, LocalAuthority, object_id
from tealagents.testing.service import ServiceThread, agent_config

HERE = Path(__file__).parent


class Town:
    """A service with the people who call it."""

    def __init__(
        self, service: ServiceThread, authority: LocalAuthority, model: OfflineModel, clients: ExitStack
    ) -> None:
        self.service = service
        self.model = model
        self._authority = authority
        self._clients = clients
        self.document: Json = httpx.get(service.url + "/openapi.json").json()
        self.alice = self.client("alice")
        self.mallory = self.client("mallory")
        self.approver = self.client("carol", roles=["Approver"])
        self.auditor = self.client("dave", roles=["Auditor"])
        self.both = self.client("erin", roles=["Approver", "Auditor"])
        #: the same object id in another tenant is another user
        self.namesake = self.client("alice", tid=OTHER_TENANT)
        self.foreign_approver = self.client("carol", tid=OTHER_TENANT, roles=["Approver"])
        self.foreign_auditor = self.client("dave", tid=OTHER_TENANT, roles=["Auditor"])

    def client(self, user: str, **claims: Any) -> httpx.Client:
        # no connection is used again that the service may just be closing
        limits, token = httpx.Limits(keepalive_expiry=2), self._authority.token(user, **claims)
        return self._clients.enter_context(self.service.client(token, limits=limits))

    @property
    def officers(self) -> Mapping[str, httpx.Client]:
        """Those who may read or decide for others over v1alpha1, and over nothing else."""
        return {"an approver": self.approver, "an auditor": self.auditor, "who is both": self.both}

    @property
    def strangers(self) -> Mapping[str, httpx.Client]:
        """Those who may not touch what is alice's, by any of their roles."""
        return {
            "mallory": self.mallory,
            "a namesake of another tenant": self.namesake,
            "an approver of another tenant": self.foreign_approver,
            "an auditor of another tenant": self.foreign_auditor,
        }

    def stored(self) -> Json:
        """All that is stored for the owner, and for every user who might have received some of it."""
        store, agent = store_of(self.service), self.service.prefix.split("/")[1]
        users = [(TENANT, name) for name in ("alice", "mallory", "carol", "dave", "erin")]
        users += [(OTHER_TENANT, name) for name in ("alice", "carol", "dave")]
        places = [f"{agent}/user/{tid}.{object_id(name)}" for tid, name in users]
        return dict(zip(places, records_of_each(store, places), strict=True))


@pytest.fixture(scope="module")
def town() -> Iterator[Town]:
    with LocalAuthority() as authority, OfflineModel() as model:
        env = authority.environment(
            TA_ENTRA_TENANT_ID="organizations",
            TA_ENTRA_ALLOWED_TENANTS=f"{TENANT} {OTHER_TENANT}",
            TA_ENTRA_APPROVER_ROLE="Approver",
            TA_ENTRA_AUDITOR_ROLE="Auditor",
            TA_BASE_URL=model.base_url,
            TA_API_KEY="offline-key",
            TA_PLUGIN_MODULE=str(HERE / "custom_plugins.py"),
            TA_PLUGIN_CATALOG_FILE=str(HERE / "catalogue.json"),
        )
        config = agent_config(agent={"plugins": ["Shell"]}, protocols=list(PROTOCOLS))
        with ServiceThread(config, env) as service, ExitStack() as clients:
            yield Town(service, authority, model, clients)


CASES = [(name, n) for name, recipes in RECIPES.items() for n in range(len(recipes))]
#: those of v1alpha1, whose roles of auditor and approver are known nowhere else
OWN_CASES = [case for case in CASES if case[0] in OWN]
#: what an approver is shown of another's: the calls that wait for a decision
SHOWN = {"GET /requests/{request_id}/approvals/{approval_id}"}
#: routes that name nothing with an owner: all callers see what is theirs
OWN_LISTS = {"GET /sessions", "GET /tasks", "GET /approvals", "GET /a2a/tasks"}
#: routes that refuse every method but one for every caller
NEVER = {f"{method} /tasks/import" for method in ("GET", "PATCH", "DELETE")}
NAMELESS = (
    OWN_LISTS
    | NEVER
    | {
        "GET /me",
        # for auditors, which `test_an_auditor_finds_the_tasks_of_the_tenant` is about
        "GET /tenant/tasks",
        "GET /openai/v1/models",
        "GET /openai/v1/models/{model}",
        "POST /openai/v1/conversations",
        "GET /a2a/extendedAgentCard",
        # not supported for anyone
        *(f"{method} /a2a/tasks/{{id}}/pushNotificationConfigs" for method in ("GET", "POST")),
        *(f"{method} /a2a/tasks/{{id}}/pushNotificationConfigs/{{push_id}}" for method in ("GET", "DELETE")),
        # sessions, which `test_a_session_is_its_users` is about
        *(f"{method} {path}" for method in ("GET", "DELETE") for path in ("/mcp", "/mcp/")),
    }
)


def reads(route: str) -> bool:
    return route.startswith("GET ")


def decides(route: str) -> bool:
    """Whether an approver may make the call for another."""
    return "resume" in route


def refuse(route: str, answer: httpx.Response) -> None:
    """The refusal of what is another's: `not_owner` in v1alpha1, elsewhere the protocol's own not found."""
    if route in OWN:
        problem(answer, 401, "not_owner")
        assert answer.headers["www-authenticate"] == "Bearer"
    elif route in OPENAI:
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), answer.text
    elif route in A2A:
        error = answer.json()["error"]
        assert error.get("data", error.get("details"))[0]["reason"] == "TASK_NOT_FOUND", answer.text
    elif route in AG_UI:
        refusal(answer, 404, "not_found")
    else:
        assert answer.json()["result"]["structuredContent"]["error"]["code"] == "not_found", answer.text


def succeeded(answer: httpx.Response) -> bool:
    """An answer that is no error: of JSON-RPC, of a tool, of a run neither."""
    if answer.status_code not in (200, 201, 204) or not answer.is_stream_consumed:
        return answer.status_code == 200
    if not answer.headers.get("content-type", "").startswith("application/json"):
        return "RUN_ERROR" not in answer.text
    document = answer.json()
    return "jsonrpc" not in document or not document.get("result", {"isError": True}).get("isError")


# --- the tests ---------------------------------------------------------------------------------------


def test_every_route_has_a_recipe(town: Town) -> None:
    """A new one cannot be forgotten: the tables name the routes of the applications, and no others."""
    found = {place.name for place in places(town.service)}
    assert found == RECIPES.keys() | NAMELESS | PUBLIC
    assert not NAMELESS & PUBLIC


def test_every_route_asks_for_a_token_but_the_public_ones(town: Town) -> None:
    """The OpenAPI document says so, too. covers: AUTH-1"""
    with town.service.client(None) as anonymous:
        for place in places(town.service):
            if place.name in PUBLIC:
                assert anonymous.get(place.path).status_code != 401, place
            elif place.name not in NEVER:
                answer = anonymous.request(place.method, place.path, json={})
                assert answer.status_code == 401, place
                assert answer.headers["www-authenticate"].startswith("Bearer "), place
    for method, path, operation in operations(town.document):
        name = f"{method} {path.removeprefix(town.service.prefix)}"
        assert (operation.get("security") == []) is (name in PUBLIC), path


@pytest.mark.parametrize(("route", "n"), CASES, ids=str)
def test_a_stranger_is_refused_where_the_owner_succeeds(town: Town, route: str, n: int) -> None:
    """The same call, the same ids: refused, and not a byte has changed. covers: AUTH-3, FLOW-2"""
    call = RECIPES[route][n](Estate.of(town.alice))
    owned = call.by(town.alice)
    assert succeeded(owned), owned.text
    if call.restore is not None:
        call.restore(town.alice)
    before = town.stored()
    strangers = town.strangers if route in OWN else {**town.strangers, **town.officers}
    for stranger in strangers.values():
        refused = call.by(stranger)
        refuse(route, refused)
        assert SECRET not in refused.text
    assert town.stored() == before
    if call.again:
        assert succeeded(call.by(town.alice))


@pytest.mark.parametrize(("route", "n"), OWN_CASES, ids=str)
def test_an_auditor_reads_everything_of_the_tenant_and_changes_nothing(
    town: Town, route: str, n: int
) -> None:
    """What is read is what the owner reads; whatever would change something is refused. covers: AUTH-3"""
    call = RECIPES[route][n](Estate.of(town.alice))
    before = town.stored()
    answer = call.by(town.auditor)
    if reads(route):
        assert answer.status_code == 200, answer.text
        assert answer.text == call.by(town.alice).text
    else:
        problem(answer, 401, "not_owner")
    assert town.stored() == before


@pytest.mark.parametrize(("route", "n"), [case for case in OWN_CASES if case[0] not in SHOWN], ids=str)
def test_an_approver_may_decide_and_nothing_else(town: Town, route: str, n: int) -> None:
    """A decision is answered with ids and status, never with content. covers: AUTH-3, HITL-1"""
    call = RECIPES[route][n](Estate.of(town.alice))
    before = town.stored()
    answer = call.by(town.approver)
    assert SECRET not in answer.text
    if not decides(route):
        problem(answer, 401, "not_owner")
        assert town.stored() == before
        return
    assert answer.status_code == 200
    if answer.headers["content-type"].startswith("text/event-stream"):
        shown = list(events(answer.text))
        assert [event.name for event in shown] == ["request", "final-response"]
        document = shown[-1].data
    else:
        document = answer.json()
    assert document.keys() == {"session_id", "task_id", "request_id", "status", "content"}
    assert document["status"] == "Completed"
    assert document["content"] is None


@pytest.mark.parametrize(("route", "n"), [case for case in OWN_CASES if case[0] in SHOWN], ids=str)
def test_an_approver_reads_the_calls_that_wait(town: Town, route: str, n: int) -> None:
    """With their tools, and nothing else of the conversation; nothing of the calls that a client runs."""
    estate = Estate.of(town.alice)
    call = RECIPES[route][n](estate)
    before = town.stored()
    answer = call.by(town.approver)
    if estate.asked in call.path:
        problem(answer, 401, "not_owner")
        assert SECRET not in answer.text
        return
    assert answer.json() == call.by(town.alice).json()
    (shown,) = answer.json().pop("tool_calls")
    assert SECRET in shown["arguments"]
    assert SECRET not in str({**answer.json(), "tool_calls": None})
    assert town.stored() == before


def test_a_refusal_names_the_id_that_it_is_about(town: Town) -> None:
    """Wherever it stood: also in the body or the query."""
    estate = Estate.of(town.alice)
    grace = town.client("grace")  # of others than the strangers, whose lists other tests find empty
    own = Estate.of(grace)

    def refused(body: Json, status: int, code: str, path: str = "") -> Json:
        found = problem(grace.post(path, json=body), status, code)
        return {name: value for name, value in found.items() if name.endswith("_id")}

    unknown, task, session = {"task_id": NOBODYS}, {"task_id": estate.task}, {"session_id": estate.session}
    assert refused(text("hi", **unknown), 404, "not_found") == unknown
    assert refused(text("hi", **task), 401, "not_owner") == task
    assert refused(text("hi", **session), 401, "not_owner") == session
    both = {"task_id": own.task, **session}
    assert refused(text("hi", **both), 401, "not_owner") == both
    assert refused(estate.document, 401, "not_owner", "/tasks/import") == task
    listed = problem(grace.get("/tasks", params=session), 401, "not_owner")
    assert listed["session_id"] == estate.session
    # a document that says to be the sender's own, with another's ids
    owner = own.document["task"]["owner"]
    document = {**estate.document, "task": {**estate.document["task"], "owner": owner}}
    assert refused(document, 401, "not_owner", "/tasks/import") == task


def test_a_document_without_an_id_is_refused_as_anothers(town: Town) -> None:
    """What it names instead is not repeated."""
    document = Estate.of(town.alice).document
    for named in (5, None, "x", {"a": 1}):
        sent = {**document, "task": {**document["task"], "task_id": named}}
        found = problem(town.mallory.post("/tasks/import", json=sent), 401, "not_owner")
        assert "task_id" not in found


def test_an_auditor_finds_the_tasks_of_the_tenant(town: Town) -> None:
    """Of all its owners, as each of them lists them, and of no other tenant; no one else gets the list."""
    # of others than the strangers, whose own lists other tests find empty
    frank, namesake = town.client("frank"), town.client("frank", tid=OTHER_TENANT)
    for client in (town.alice, frank):
        Estate.of(client)
    namesake.post("", json=text("hi")).raise_for_status()  # and nothing that its tenant's approver would find
    found: list[Json] = []
    query = {"limit": "3"}
    while True:
        page = town.auditor.get("/tenant/tasks", params=query).raise_for_status().json()
        assert len(page["items"]) <= 3
        found += page["items"]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    owned = [
        task
        for client in (town.alice, frank)
        for task in client.get("/tasks", params={"limit": "200"}).json()["items"]
    ]
    by_id = {str(task["task_id"]): task for task in found}
    assert len(by_id) == len(found)
    assert {str(task["task_id"]): task for task in owned}.items() <= by_id.items()
    assert {task["owner"]["tid"] for task in found} == {TENANT}
    for client in (town.alice, town.approver):
        answer = client.get("/tenant/tasks")
        problem(answer, 403, "insufficient_scope")
        assert answer.headers["www-authenticate"].endswith('error="insufficient_scope", scope="Auditor"')
    elsewhere = town.foreign_auditor.get("/tenant/tasks").json()["items"]
    assert {task["owner"]["tid"] for task in elsewhere} == {OTHER_TENANT}


def test_each_caller_is_shown_who_they_are(town: Town) -> None:
    """By the ids that own what they make, and by the roles that the service grants."""
    people = {
        town.alice: ("alice", TENANT, []),
        town.approver: ("carol", TENANT, ["approver"]),
        town.auditor: ("dave", TENANT, ["auditor"]),
        town.foreign_auditor: ("dave", OTHER_TENANT, ["auditor"]),
    }
    for client, (name, tid, roles) in people.items():
        user = {"tid": tid, "oid": object_id(name)}
        assert client.get("/me").json() == {"user": user, "roles": roles}


@pytest.mark.parametrize("route", sorted(OWN_LISTS))
def test_a_list_shows_what_is_the_callers_own(town: Town, route: str) -> None:
    """No one finds another user's things in a list of their own, not even an auditor."""
    Estate.of(town.alice)
    path, name = route.removeprefix("GET "), "tasks" if "/a2a/" in route else "items"
    assert town.alice.get(path, headers=VERSION).json()[name]
    for who, client in {**town.strangers, "an auditor": town.auditor}.items():
        answer = client.get(path, headers=VERSION).raise_for_status()
        assert answer.json()[name] == [], who


def test_an_approver_finds_what_waits_for_a_decision(town: Town) -> None:
    """With the calls as they would run, and nothing else of the conversation; in their tenant only."""
    estate = Estate.of(town.alice)
    found = town.approver.get("/approvals", params={"status": "pending", "limit": "200"}).json()["items"]
    (shown,) = [item for item in found if item["request_id"] == estate.paused]
    assert shown["tool_calls"][0]["arguments"] == f'{{"path": "/{SECRET}"}}'
    assert "shy" not in str(found)
    town.approver.post(f"/requests/{estate.paused}/resume", json=APPROVE).raise_for_status()
    found = town.approver.get("/approvals", params={"status": "pending", "limit": "200"}).json()["items"]
    assert estate.paused not in [item["request_id"] for item in found]


def test_an_approver_is_not_shown_why_a_request_failed(town: Town) -> None:
    """What the model service said may quote the conversation; its owner reads it, JSON and SSE alike."""
    for way in ("", "/sse"):
        estate = Estate.of(town.alice)
        error = {"status": 400, "message": f"cannot speak of {SECRET}"}
        town.model.script({"rules": [{"when": {"tool_result": True}, "reply": {"error": error}}]})
        try:
            answer = town.approver.post(f"/requests/{estate.paused}/resume{way}", json=APPROVE)
        finally:
            town.model.script(None)
        ended = list(events(answer.text))[-1].data if way else answer.json()
        assert ended["code"] == "model_error"
        assert ended["request_id"] == estate.paused
        assert SECRET not in answer.text
        assert SECRET in town.alice.get(f"/requests/{estate.paused}").json()["error"]["detail"]


def test_an_approver_follows_a_second_pause_without_its_content(town: Town) -> None:
    """Over SSE a further pause is reported by ids and status; its calls are in the inbox."""
    estate = Estate.of(town.alice)
    again = {"tool_calls": [{"name": "Shell-delete", "arguments": {"path": f"/{SECRET}/2"}}]}
    town.model.script({"rules": [{"when": {"tool_result": True}, "reply": again, "times": 1}]})
    try:
        answer = town.approver.post(f"/requests/{estate.paused}/resume/sse", json=APPROVE)
    finally:
        town.model.script(None)
    shown: list[Event] = list(events(answer.text))
    assert [event.name for event in shown] == ["request", "approval-required"]
    assert shown[-1].data["content"] is None
    assert SECRET not in answer.text


def test_calls_that_a_client_runs_wait_for_their_owner_alone(town: Town) -> None:
    """No approver is asked about them, so none reads or decides them. covers: AUTH-3, HITL-1"""
    function = {"type": "function", "name": "save_diary", "parameters": {"type": "object"}}
    body = {"input": 'call save_diary {"text": "my secret diary"}', "tools": [function]}
    answer = town.alice.post("/openai/v1/responses", json=body).raise_for_status().json()
    owner_too = town.client("alice", roles=["Approver"])

    def listed(client: httpx.Client, status: str) -> list[Json]:
        found = client.get("/approvals", params={"status": status, "limit": "200"}).json()["items"]
        return [item for item in found if "diary" in str(item["tool_calls"])]

    (pause,) = listed(town.alice, "pending")
    assert listed(owner_too, "pending") == [pause]
    where = f"/requests/{pause['request_id']}"
    shown = f"{where}/approvals/{pause['approval_id']}"

    def check_refusals() -> None:
        problem(town.approver.get(shown), 401, "not_owner")
        for path in ("/resume", "/resume/sse", f"/resume?approval_id={pause['approval_id']}"):
            problem(town.approver.post(where + path, json={"action": "reject"}), 401, "not_owner")

    assert listed(town.approver, "pending") == []
    check_refusals()
    assert town.auditor.get(shown).json() == town.alice.get(shown).json()
    (called,) = [item for item in answer["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": called["call_id"], "output": "saved"}
    again = {"previous_response_id": answer["id"], "input": [output]}
    assert town.alice.post("/openai/v1/responses", json=again).json()["status"] == "completed"
    assert (listed(town.approver, "decided"), len(listed(town.alice, "decided"))) == ([], 1)
    check_refusals()


def test_unknown_ids_are_not_found_by_anyone(town: Town) -> None:
    """404, for the owner, a stranger and an auditor alike. covers: AUTH-3"""
    nowhere = Estate.nowhere(NOBODYS)
    sends = ("POST ", "POST /", "POST /sse")
    for route, n in OWN_CASES:
        if route == "POST /tasks/import":
            continue
        call = RECIPES[route][n](nowhere)
        if route in sends and "task_id" not in (call.json or {}):
            continue
        for client in (town.alice, town.mallory, town.auditor, town.approver):
            problem(call.by(client), 404, "not_found")


def test_a_strangers_session_id_is_not_taken_over(town: Town) -> None:
    """A session id that a client brought is claimed by the first who uses it. covers: SESSION-1, AUTH-3"""
    session = str(uuid.uuid4())
    town.alice.post("", json=text("hi", session_id=session)).raise_for_status()
    problem(town.mallory.post("", json=text("hi", session_id=session)), 401, "not_owner")
    problem(town.mallory.get(f"/sessions/{session}"), 401, "not_owner")
    assert len(town.alice.get(f"/sessions/{session}").json()["tasks"]) == 1


def test_an_equal_idempotency_key_of_another_user_is_another_key(town: Town) -> None:
    """Keys are scoped to their user: no one is answered with another's outcome."""
    headers = {"idempotency-key": f"key-{uuid.uuid4()}"}
    first = town.alice.post("", json=text("hi"), headers=headers).json()
    second = town.client("grace").post("", json=text("hi"), headers=headers)
    assert "idempotent-replayed" not in second.headers
    assert second.json()["request_id"] != first["request_id"]
    again = town.alice.post("", json=text("hi"), headers=headers)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first


def test_task_and_session_of_different_owners_are_refused(town: Town) -> None:
    """A task of one's own with another's session is `not_owner`, with one's own other session a mismatch."""
    frank = town.client("frank")
    hers, his = Estate.of(town.alice), Estate.of(frank)
    answer = frank.post("", json=text("hi", task_id=his.task, session_id=hers.session))
    problem(answer, 401, "not_owner")
    other = frank.post("", json=text("hi")).json()["session_id"]
    answer = frank.post("", json=text("hi", task_id=his.task, session_id=other))
    problem(answer, 409, "session_mismatch")
