"""Whose a session, task or request is, on every path: tried for each operation of the OpenAPI document.

For each the owner succeeds first, then a stranger sends the very same call and is refused, and then what
is stored for either is byte for byte what it was. An operation without a recipe here fails the tests.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from wire import NOBODYS, Event, Json, events, operations, problem, records, store_of, text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.authority import OTHER_TENANT, TENANT, LocalAuthority, object_id
from tealagents.testing.service import ServiceThread, agent_config

HERE = Path(__file__).parent
#: said by the owner, asked of tools, answered by tools: never to be read by an approver
SECRET = "the blue heron"


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
        #: the same object id in another tenant is another user
        self.namesake = self.client("alice", tid=OTHER_TENANT)
        self.foreign_approver = self.client("carol", tid=OTHER_TENANT, roles=["Approver"])
        self.foreign_auditor = self.client("dave", tid=OTHER_TENANT, roles=["Auditor"])

    def client(self, user: str, **claims: Any) -> httpx.Client:
        return self._clients.enter_context(self.service.client(self._authority.token(user, **claims)))

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
        """All that is stored for the owner, and for whoever might have got something of it."""
        store, agent = store_of(self.service), self.service.prefix.split("/")[1]
        users = [(TENANT, name) for name in ("alice", "mallory", "carol", "dave")]
        users += [(OTHER_TENANT, name) for name in ("alice", "carol", "dave")]
        return {
            f"{tid} {name}": records(store, f"{agent}/user/{tid}.{object_id(name)}") for tid, name in users
        }


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
        config = agent_config(agent={"plugins": ["Shell"]})
        with ServiceThread(config, env) as service, ExitStack() as clients:
            yield Town(service, authority, model, clients)


# --- what there is to touch --------------------------------------------------------------------------


@dataclass
class Call:
    """One call, and how its target is brought back when the call itself has removed it."""

    method: str
    path: str
    json: Json | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    restore: Callable[[httpx.Client], None] | None = None

    def by(self, client: httpx.Client) -> httpx.Response:
        return client.request(self.method, self.path, json=self.json, params=self.query)


@dataclass
class Estate:
    """What alice has: a session with a task of two completed requests, and one that waits for a decision."""

    session: str
    task: str
    first: str
    last: str
    paused_task: str
    paused: str
    message: str
    document: Json

    @classmethod
    def of(cls, alice: httpx.Client) -> "Estate":
        first = alice.post("", json=text(f"Remember that {SECRET} is shy.")).raise_for_status().json()
        last = alice.post("", json=text("And now?", task_id=first["task_id"])).raise_for_status().json()
        asked = f'call Shell-delete {{"path": "/{SECRET}"}}'
        paused = alice.post("", json=text(asked)).raise_for_status().json()
        assert paused["status"] == "Paused"
        task = first["task_id"]
        return cls(
            session=first["session_id"],
            task=task,
            first=first["request_id"],
            last=last["request_id"],
            paused_task=paused["task_id"],
            paused=paused["request_id"],
            message=alice.get(f"/tasks/{task}/messages").json()["items"][0]["message_id"],
            document=alice.get(f"/tasks/{task}/export").json(),
        )

    def put_back(self, alice: httpx.Client) -> None:
        """The deleted task, with all its ids."""
        alice.post("/tasks/import", json=self.document).raise_for_status()

    def moved(self) -> Json:
        """The task's document under other ids."""
        written = json.dumps(self.document)
        for known in (self.session, self.task, self.first, self.last):
            written = written.replace(known, str(uuid.uuid4()))
        moved: Json = json.loads(written)
        return moved


Recipe = Callable[[Estate], Call]
APPROVE = {"action": "approve"}

#: operation → the calls that name something of the owner's
RECIPES: dict[str, list[Recipe]] = {
    "send_message": [
        lambda e: Call("POST", "", text("hi", task_id=e.task)),
        lambda e: Call("POST", "", text("hi", session_id=e.session)),
        lambda e: Call("POST", "", text("hi", session_id=e.session, task_id=e.task)),
        lambda e: Call("POST", "", text("hi", task_id=e.paused_task, supersede=True)),
    ],
    "stream_message": [
        lambda e: Call("POST", "/sse", text("hi", task_id=e.task)),
        lambda e: Call("POST", "/sse", text("hi", session_id=e.session)),
    ],
    "resume_request": [lambda e: Call("POST", f"/requests/{e.paused}/resume", APPROVE)],
    "resume_request_stream": [lambda e: Call("POST", f"/requests/{e.paused}/resume/sse", APPROVE)],
    "resume_request_older": [lambda e: Call("POST", f"/tealagents/v1alpha1/resume/{e.paused}", APPROVE)],
    "resume_request_stream_older": [
        lambda e: Call("POST", f"/tealagents/v1alpha1/resume/{e.paused}/sse", {"action": "reject"})
    ],
    "get_session": [lambda e: Call("GET", f"/sessions/{e.session}")],
    "delete_session": [lambda e: Call("DELETE", f"/sessions/{e.session}", restore=e.put_back)],
    "list_tasks": [lambda e: Call("GET", "/tasks", query={"session_id": e.session})],
    "get_task": [
        lambda e: Call("GET", f"/tasks/{e.task}"),
        lambda e: Call("GET", f"/tasks/{e.paused_task}"),
    ],
    "patch_task": [lambda e: Call("PATCH", f"/tasks/{e.task}", {"metadata": {"seen": True}})],
    "delete_task": [lambda e: Call("DELETE", f"/tasks/{e.task}", restore=e.put_back)],
    "list_messages": [
        lambda e: Call("GET", f"/tasks/{e.task}/messages"),
        lambda e: Call("GET", f"/tasks/{e.task}/messages", query={"checkpoint_id": e.first}),
    ],
    "list_steps": [lambda e: Call("GET", f"/tasks/{e.task}/trace")],
    "list_audit": [lambda e: Call("GET", f"/tasks/{e.task}/audit")],
    "list_checkpoints": [lambda e: Call("GET", f"/tasks/{e.task}/checkpoints")],
    "rollback_task": [lambda e: Call("POST", f"/tasks/{e.task}/rollback", {"checkpoint_id": e.first})],
    "fork_task": [
        lambda e: Call("POST", f"/tasks/{e.task}/fork", {}),
        lambda e: Call("POST", f"/tasks/{e.task}/fork", {"checkpoint_id": e.first}),
        lambda e: Call("POST", f"/tasks/{e.task}/fork", {"message_id": e.message}),
    ],
    "export_task": [lambda e: Call("GET", f"/tasks/{e.task}/export")],
    "import_task": [lambda e: Call("POST", "/tasks/import", e.moved())],
    "get_request": [
        lambda e: Call("GET", f"/requests/{e.last}"),
        lambda e: Call("GET", f"/requests/{e.paused}"),
    ],
    "follow_request": [
        lambda e: Call("GET", f"/requests/{e.last}/events"),
        lambda e: Call("GET", f"/requests/{e.paused}/events", query={"after": "1"}),
    ],
    "cancel_request": [
        lambda e: Call("POST", f"/requests/{e.paused}/cancel"),
        lambda e: Call("POST", f"/requests/{e.last}/cancel"),
    ],
}
#: operations that name nothing of anybody's: each caller sees what is theirs
OWN_LISTS = {"list_sessions": "/sessions", "list_tasks": "/tasks", "list_approvals": "/approvals"}
#: operations that need no token
PUBLIC = {"health", "live", "ready"}
#: operations that an approver may call on another's request
DECIDING = {name for name in RECIPES if name.startswith("resume_request")}

CASES = [(name, n) for name, recipes in RECIPES.items() for n in range(len(recipes))]


def reads(operation: str) -> bool:
    return operation.startswith(("get_", "list_", "export_", "follow_"))


@pytest.fixture(scope="module")
def described(town: Town) -> set[str]:
    return {operation["operationId"] for _, _, operation in operations(town.document)}


# --- the tests ---------------------------------------------------------------------------------------


def test_every_operation_has_a_recipe(described: set[str]) -> None:
    """A new route cannot be forgotten: the table and the OpenAPI document name the same operations."""
    assert described == RECIPES.keys() | OWN_LISTS.keys() | PUBLIC


def test_every_operation_but_the_probes_asks_for_a_token(town: Town) -> None:
    """The document says so, and so does the service. covers: AUTH-1"""
    with town.service.client(None) as nobody:
        for method, path, operation in operations(town.document):
            public = operation["operationId"] in PUBLIC
            assert (operation.get("security") == []) is public, path
            filled = path.removeprefix(town.service.prefix)
            for name in ("session_id", "task_id", "request_id"):
                filled = filled.replace(f"{{{name}}}", NOBODYS)
            answer = nobody.request(method, filled, json={} if method in ("POST", "PATCH") else None)
            if public:
                assert answer.status_code == 200
            else:
                problem(answer, 401, "unauthenticated")


@pytest.mark.parametrize(("operation", "n"), CASES, ids=lambda value: str(value))
def test_a_stranger_is_refused_where_the_owner_succeeds(town: Town, operation: str, n: int) -> None:
    """The same call, the same ids: `401 not_owner`, and not a byte has changed. covers: AUTH-3, FLOW-2"""
    estate = Estate.of(town.alice)
    call = RECIPES[operation][n](estate)
    owned = call.by(town.alice)
    assert owned.status_code in (200, 201, 204), owned.text
    if call.restore is not None:
        call.restore(town.alice)
    before = town.stored()
    for name, stranger in town.strangers.items():
        refused = call.by(stranger)
        problem(refused, 401, "not_owner")
        assert refused.headers["www-authenticate"] == "Bearer", name
        assert SECRET not in refused.text
    assert town.stored() == before
    if operation != "import_task":
        assert call.by(town.alice).status_code < 300


@pytest.mark.parametrize(("operation", "n"), CASES, ids=lambda value: str(value))
def test_an_auditor_reads_everything_of_the_tenant_and_changes_nothing(
    town: Town, operation: str, n: int
) -> None:
    """What is read is what the owner reads; whatever would change something is refused. covers: AUTH-3"""
    call = RECIPES[operation][n](Estate.of(town.alice))
    before = town.stored()
    answer = call.by(town.auditor)
    if reads(operation):
        assert answer.status_code == 200, answer.text
        assert answer.text == call.by(town.alice).text
    else:
        problem(answer, 401, "not_owner")
    assert town.stored() == before


@pytest.mark.parametrize(("operation", "n"), CASES, ids=lambda value: str(value))
def test_an_approver_may_decide_and_nothing_else(town: Town, operation: str, n: int) -> None:
    """A decision is answered with ids and status, never with content. covers: AUTH-3, HITL-1"""
    call = RECIPES[operation][n](Estate.of(town.alice))
    before = town.stored()
    answer = call.by(town.approver)
    assert SECRET not in answer.text
    if operation not in DECIDING:
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


@pytest.mark.parametrize("path", OWN_LISTS.values())
def test_a_list_shows_what_is_the_callers_own(town: Town, path: str) -> None:
    """Nobody finds another's things in a list of their own; an auditor neither."""
    Estate.of(town.alice)
    assert town.alice.get(path).json()["items"]
    for name, client in {**town.strangers, "an auditor": town.auditor}.items():
        answer = client.get(path).raise_for_status()
        assert answer.json() == {"items": [], "next_cursor": None}, name


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


def test_an_approver_is_not_told_why_a_request_failed(town: Town) -> None:
    """What the model service said may quote the conversation; its owner reads it, JSON and SSE alike."""
    for way in ("", "/sse"):
        estate = Estate.of(town.alice)
        error = {"status": 400, "message": f"cannot speak of {SECRET}"}
        town.model.script({"rules": [{"when": {"tool_result": True}, "reply": {"error": error}}]})
        try:
            answer = town.approver.post(f"/requests/{estate.paused}/resume{way}", json=APPROVE)
        finally:
            town.model.script(None)
        told = list(events(answer.text))[-1].data if way else answer.json()
        assert told["code"] == "model_error"
        assert told["request_id"] == estate.paused
        assert SECRET not in answer.text
        assert SECRET in town.alice.get(f"/requests/{estate.paused}").json()["error"]["detail"]


def test_an_approver_follows_a_second_pause_without_its_content(town: Town) -> None:
    """Over SSE a further pause is told by ids and status; its calls are in the inbox."""
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


def test_unknown_ids_are_not_found_by_anybody(town: Town) -> None:
    """404, for the owner, a stranger and an auditor alike. covers: AUTH-3"""
    ids = ("session", "task", "first", "last", "paused_task", "paused", "message")
    nowhere = Estate(document={}, **dict.fromkeys(ids, NOBODYS))
    for operation, n in CASES:
        if operation == "import_task":
            continue
        call = RECIPES[operation][n](nowhere)
        if operation in ("send_message", "stream_message") and "task_id" not in (call.json or {}):
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
    second = town.mallory.post("", json=text("hi"), headers=headers)
    assert "idempotent-replayed" not in second.headers
    assert second.json()["request_id"] != first["request_id"]
    again = town.alice.post("", json=text("hi"), headers=headers)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first


def test_task_and_session_of_different_owners_are_refused(town: Town) -> None:
    """A task of one's own with another's session is `not_owner`, with one's own other session a mismatch."""
    hers, his = Estate.of(town.alice), Estate.of(town.mallory)
    answer = town.mallory.post("", json=text("hi", task_id=his.task, session_id=hers.session))
    problem(answer, 401, "not_owner")
    other = town.mallory.post("", json=text("hi")).json()["session_id"]
    answer = town.mallory.post("", json=text("hi", task_id=his.task, session_id=other))
    problem(answer, 409, "session_mismatch")
