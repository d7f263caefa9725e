"""A document of a task that was tampered with is refused by name, or becomes a task that works."""

import copy
import json
import random
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from wire import JSON, NOBODYS, Json, problem, text

from tealagents.api import bodies
from tealagents.domain.json_limits import DEEPEST, MOST_EXTREMES
from tealagents.domain.texts import storable_json
from tealagents.state import importing
from tealagents.testing.service import ServiceThread, offline_service

SCRIPT = {"rules": [{"when": "fail", "reply": {"error": {"status": 400, "message": "not that"}}}]}
#: what a value of a document is replaced by
NASTY: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**63 - 1, 1.5, "", "x", "\u2028", "é" * 300, [], [[]], {}, {"a": {}}),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-01T00:00:00"),
    *("00000000-0000-0000-0000-000000000000", "../../etc/passwd", str(uuid.UUID(int=7, version=4))),
    *("Running", "Completed", "Failed", "message", "end", "tool", '{"blob":', "data:image/png;base64,"),
)


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceThread]:
    """What its view remembers of a conversation is in its documents, too."""
    view = [{"name": "summarize", "max_messages": 3, "keep_messages": 1}]
    limits = {"max_concurrent_requests": 5000}
    with offline_service(SCRIPT, limits=limits, thread={"reducers": view}) as (running, _):
        yield running


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a document are, the containers too."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            yield from leaves(inner, (*path, n))


def tampered(document: Json, rng: random.Random) -> Json:
    """The document, with up to three values replaced, left out, doubled or put elsewhere."""
    made = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 2, 3))):
        path = rng.choice([path for path in leaves(made) if path])
        parent: Any = made
        for part in path[:-1]:
            parent = parent[part]
        match rng.randrange(6):
            case 0:
                del parent[path[-1]]
            case 1 if isinstance(parent, list):
                parent.insert(path[-1], copy.deepcopy(parent[path[-1]]))
            case 2 if isinstance(parent, list):
                rng.shuffle(parent)
            case 3:
                parent[path[-1]] = copy.deepcopy(rng.choice(NASTY))
            case _:
                alike = [value for value in NASTY if type(value) is type(parent[path[-1]])]
                parent[path[-1]] = copy.deepcopy(rng.choice(alike or NASTY))
    return made


def renamed(document: Json) -> Json:
    """The document with new ids, so that it can be imported beside the original."""
    written = json.dumps(document)
    task = document["task"]
    for known in {task["task_id"], task["session_id"], *(r["request_id"] for r in document["requests"])}:
        written = written.replace(known, str(uuid.uuid4()))
    made: Json = json.loads(written)
    return made


def exported(client: httpx.Client) -> Json:
    """A task with completed requests, a failed one, a rollback, a fork point and a summary."""
    first = client.post("", json=text("My name is Ada.", metadata={"a": 1})).json()
    task = first["task_id"]
    client.post("", json=text("What is my name?", task_id=task)).raise_for_status()
    assert client.post("", json=text("fail", task_id=task)).status_code == 502
    client.post(f"/tasks/{task}/rollback", json={"checkpoint_id": first["request_id"]}).raise_for_status()
    for said in ("And now?", "And then?"):
        client.post("", json=text(said, task_id=task)).raise_for_status()
    document: Json = client.get(f"/tasks/{task}/export").raise_for_status().json()
    return document


def test_an_untouched_document_becomes_the_same_task(service: ServiceThread) -> None:
    """The original of the tampering below is fine: imported under new ids it reads the same."""
    with service.client("ada") as ada:
        document = renamed(exported(ada))
        task = ada.post("/tasks/import", json=document).raise_for_status().json()["task_id"]
        assert ada.get(f"/tasks/{task}/messages").json()["items"]
        assert [ask(ada, method, path, task).status_code < 300 for method, path in READS]


@pytest.mark.parametrize(("module", "step"), [(bodies, "parse"), (importing, "read")])
def test_other_callers_do_not_wait_until_a_document_is_read(
    service: ServiceThread, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    """The largest one takes half a second."""
    begun, answered, reads = threading.Event(), threading.Event(), getattr(module, step)

    def reads_slowly(*args: Any, **fields: Any) -> Any:
        begun.set()
        assert answered.wait(30)
        return reads(*args, **fields)

    with service.client("ada") as ada, service.client("eve") as eve, ThreadPoolExecutor() as pool:
        document = renamed(exported(ada))
        monkeypatch.setattr(module, step, reads_slowly)
        imported = pool.submit(ada.post, "/tasks/import", json=document)
        assert begun.wait(30)
        assert eve.get("/me", timeout=25).status_code == 200
        answered.set()
        assert imported.result().status_code == 201


def test_what_requests_brought_one_by_one_a_document_may_bring_at_once(service: ServiceThread) -> None:
    """Such as bounds in the schemas of tools that are near the end of what a float can hold."""
    with service.client("ada") as ada:
        task = ada.post("", json=text("x" * 100_000)).json()["task_id"]
        for _ in range(2):
            ada.post("", json=text("x" * 100_000, task_id=task)).raise_for_status()
        document = renamed(ada.get(f"/tasks/{task}/export").json())
        for most, status in ((MOST_EXTREMES - 10, 201), (MOST_EXTREMES + 10, 422)):
            tool = {"name": "t", "description": "", "parameters": {"enum": [1e308] * most}}
            for request in document["requests"]:
                request["setup"] = {"client_tools": [tool]}
            answer = ada.post("/tasks/import", json=document)
            assert answer.status_code == status, answer.text
            document = renamed(document)
        problem(answer, 422, "invalid_request", "requests.0")


def test_a_document_whose_requests_claim_the_whole_log_is_refused(service: ServiceThread) -> None:
    """A list of many such requests would read all of it for each of them."""
    with service.client("ada") as ada:
        task = ada.post("", json=text("hello")).json()["task_id"]
        for _ in range(9):
            ada.post("", json=text("more", task_id=task)).raise_for_status()
        document = renamed(ada.get(f"/tasks/{task}/export").json())
        assert ada.post("/tasks/import", json=document).status_code == 201
        document = renamed(document)
        for request in document["requests"]:
            request |= {"first_seq": 1, "last_seq": document["task"]["tail_seq"]}
        problem(ada.post("/tasks/import", json=document), 422, "invalid_request", "requests")


@pytest.mark.parametrize("field", ["parent", "retries"])
@pytest.mark.parametrize("value", ["x y", "", "../../etc/passwd", str(uuid.UUID(int=10, version=4)).upper()])
def test_a_request_names_others_by_their_ids(service: ServiceThread, field: str, value: str) -> None:
    """The names of records are made of them: a reader of the request would fail on anything else."""
    with service.client("ada") as ada:
        document = renamed(exported(ada))
        document["requests"][1][field] = value
        refused = ada.post("/tasks/import", json=document)
        problem(refused, 422, "invalid_request", f"requests.1.{field}")


def put(document: Json, path: tuple[Any, ...], value: Any) -> Json:
    """The document under new ids, with the value at the path."""
    made = renamed(document)
    parent: Any = made
    for part in path[:-1]:
        parent = parent[part]
    parent[path[-1]] = value
    return made


def test_an_import_accepts_the_ids_times_and_statuses_that_are_described(service: ServiceThread) -> None:
    """And no other; of a fork, whose messages also have the ids of others."""
    schema = {"$ref": "#/components/schemas/ExportedTask"}
    schema |= {"components": httpx.get(service.url + "/openapi.json").json()["components"]}
    described = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    with service.client("ada") as ada:
        task = ada.post("", json=text("My name is Ada.")).json()["task_id"]
        task = ada.post(f"/tasks/{task}/fork").raise_for_status().json()["task_id"]
        assert ada.post("", json=text("fail", task_id=task)).status_code == 502
        document = ada.get(f"/tasks/{task}/export").raise_for_status().json()
        described.validate(document)
        named = {path: path[-1] for path in leaves(document) if path and isinstance(path[-1], str)}
        for path, name in named.items():
            if name.endswith(("_id", "_at")) or name in ("id", "at", "parent", "status"):
                for value in ("x", NOBODYS.upper(), "Running"):
                    made = put(document, path, value)
                    answer = ada.post("/tasks/import", json=made)
                    assert answer.status_code in (201, 422), answer.text
                    assert described.is_valid(made) == (answer.status_code == 201), (path, answer.text)


@pytest.mark.parametrize(
    "kept",
    [
        {"upto": "x"},
        {"upto": 1.5},
        {"upto": True},
        {"upto": []},
        {"text": None},
        {"text": {}},
        5,
        ["upto"],
        "x",
    ],
)
def test_a_summary_that_was_tampered_with_is_made_anew(service: ServiceThread, kept: Any) -> None:
    """What a document says that the view remembers is the view's to judge: later messages are answered."""
    with service.client("ada") as ada:
        document = renamed(exported(ada))
        view = document["requests"][-1]["context"]["view"]
        assert view["summarize"]["text"]
        view["summarize"] = view["summarize"] | kept if isinstance(kept, dict) else kept
        task = ada.post("/tasks/import", json=document).raise_for_status().json()["task_id"]
        answer = ada.post("", json=text("go on", task_id=task)).raise_for_status().json()
        steps = ada.get(f"/tasks/{task}/trace").json()["items"]
        own = [step["kind"] for step in steps if step["request_id"] == answer["request_id"]]
        assert "reduction" in own


VIEWS = ("", "/messages", "/trace", "/checkpoints", "/audit", "/export")
READS = [
    *(("GET", f"/tasks/{{}}{view}") for view in VIEWS),
    ("POST", "/tasks/{}/fork"),
    ("PATCH", "/tasks/{}"),
    ("GET", "/tasks"),
    ("GET", "/sessions"),
]


def ask(client: httpx.Client, method: str, path: str, task: str) -> httpx.Response:
    return client.request(method, path.format(task), json={} if method != "GET" else None)


@pytest.mark.parametrize("seed", range(4))
def test_a_tampered_document_is_refused_or_works(service: ServiceThread, seed: int) -> None:
    """Whatever was changed: no answer is a fault of the service, and no list of the user breaks."""
    tamper(service, seed, rounds=30)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 108))
def test_many_tampered_documents_are_refused_or_work(service: ServiceThread, seed: int) -> None:
    """The same, a thousand times each."""
    tamper(service, seed, rounds=1000)


def tamper(service: ServiceThread, seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    taken = 0
    with service.client(f"user{seed}") as client:
        original = exported(client)
        for _ in range(rounds):
            document = tampered(renamed(original), rng)
            answer = client.post("/tasks/import", content=json.dumps(document), headers=JSON)
            if answer.status_code != 201:
                assert answer.status_code in (401, 409, 422), (answer.text, document)
                if answer.status_code == 422:
                    assert answer.json()["field"], answer.text
                continue
            taken += 1
            task = answer.json()["task_id"]
            for method, path in READS:
                found = ask(client, method, path, task)
                assert found.status_code < 500, (method, path, found.text, document)
            for request in document["requests"]:
                for view in ("", "/events", "/prompt"):
                    path = f"/requests/{request['request_id']}{view}"
                    assert client.get(path).status_code < 500, (path, document)
            said = client.post("", json=text("go on", task_id=task))
            assert said.status_code in (200, 404, 422, 502), (said.text, document)
            client.delete(f"/tasks/{task}")
    assert taken


def test_a_document_of_another_user_is_refused(service: ServiceThread) -> None:
    """Neither as it is nor under a changed owner can a task be taken from its owner. covers: AUTH-3"""
    with service.client("ada") as ada, service.client("eve") as eve:
        document = exported(ada)
        problem(eve.post("/tasks/import", json=document), 401, "not_owner")
        document["task"]["owner"]["oid"] = "eve"
        problem(eve.post("/tasks/import", json=document), 401, "not_owner")
        problem(ada.post("/tasks/import", json=document), 401, "not_owner")
        document["task"]["owner"]["oid"] = "ada"
        problem(ada.post("/tasks/import", json=document), 409, "already_exists")


def test_the_id_of_a_deleted_task_is_still_its_owners(service: ServiceThread) -> None:
    """No one else can give it to a task or session of their own, so the owner's export can come back."""
    with service.client("ada") as ada, service.client("eve") as eve:
        document = exported(ada)
        task, session = document["task"]["task_id"], document["task"]["session_id"]
        ada.delete(f"/sessions/{session}").raise_for_status()
        problem(eve.post("", json=text("mine", session_id=session)), 401, "not_owner")
        said = {"role": "ROLE_USER", "messageId": "m", "contextId": task, "parts": [{"text": "mine"}]}
        sent = eve.post("/a2a/message:send", json={"message": said}, headers={"A2A-Version": "1.0"})
        assert sent.status_code == 404, sent.text
        for key in ("task_id", "request_id"):
            of_eve = renamed(json.loads(json.dumps(document).replace('"ada"', '"eve"')))
            new, old = (
                (of["task"] if key == "task_id" else of["requests"][0])[key] for of in (of_eve, document)
            )
            assert eve.post("/tasks/import", json=of_eve).status_code == 201
            eve.delete(f"/tasks/{of_eve['task']['task_id']}").raise_for_status()
            taken = json.loads(json.dumps(of_eve).replace(new, old))
            problem(eve.post("/tasks/import", json=taken), 401, "not_owner")
        assert ada.post("/tasks/import", json=document).raise_for_status().json()["task_id"] == task


def nested(levels: int) -> Json:
    value: Json = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def test_what_was_exported_can_be_imported() -> None:
    """However deeply metadata was nested."""
    with offline_service() as (service, _), service.client() as ada:
        sent = {**text("hello"), "metadata": nested(DEEPEST - 1)}
        task = ada.post("", json=sent).raise_for_status().json()
        exported = ada.get(f"/tasks/{task['task_id']}/export").raise_for_status().json()
        ada.delete(f"/tasks/{task['task_id']}").raise_for_status()
        assert ada.post("/tasks/import", json=exported).status_code == 201
        assert ada.get(f"/tasks/{task['task_id']}").json()["metadata"] == nested(DEEPEST - 1)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("a\0b", "a\ufffdb"), ({"\0": ["\0"]}, {"\ufffd": ["\ufffd"]}), (2**63 - 1, 2**63 - 1)],
)
def test_what_tools_add_can_be_stored_anywhere(given: object, kept: object) -> None:
    assert storable_json(given) == kept


@pytest.mark.parametrize("given", [2**63, {"a": [-(2**63) - 1]}, nested(DEEPEST + 2)])
def test_what_tools_add_has_bounds(given: object) -> None:
    """The tool fails, rather than the import of the task one day."""
    with pytest.raises(ValueError, match=r"nested deeper than 64 levels|more than 64 bits"):
        storable_json(given)
