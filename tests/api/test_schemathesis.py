"""What the OpenAPI document says, held against the service: random calls, valid and not, of every operation.

Ids in paths and bodies are those of real resources, tokens are valid, keys are fresh. Each answer must be one
that the document declares, with the schema, headers and type it declares; what the document allows must be
taken, and what it forbids refused.
"""

import itertools
import json
import random
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from schemathesis.checks import CHECKS
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from wire import Json, operations, text

from tealagents.domain import ids
from tealagents.domain.json_limits import LARGEST_INTEGER
from tealagents.testing.service import ServiceThread, offline_service

HERE = Path(__file__).parent
UUID = re.compile(ids.PATTERN)
KEY = re.compile("[!-~]([ -~]*[!-~])?")
#: cases of each operation, valid and hostile, in `make test`
VALID, HOSTILE = 7, 4
#: an exported task is a large document to make up
IMPORTS = 3
#: operations whose target may be gone, expired, or changed for good after each call
CONSUMING = {"delete_task", "delete_session", "import_task", "cancel_request", "patch_task"}


class World:
    """Real resources for the cases to name."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self._rng = random.Random(7)
        task = self._new()
        self.document: Json = client.get(f"/tasks/{task['task_id']}/export").json()
        self._tasks = [self._new() for _ in range(4)]
        self._paused: list[Json] = []

    def _new(self, words: str = "My name is Ada.") -> Json:
        answer: Json = self.client.post("", json=text(words)).raise_for_status().json()
        message = self.client.get(f"/tasks/{answer['task_id']}/messages").json()["items"][0]
        return {**answer, "message_id": message["message_id"]}

    def target(self, operation: str) -> Json:
        """What an operation is about: something of its own where it will not be there any more."""
        if operation.startswith("resume_") or operation == "get_approval":
            if not self._paused or self._rng.random() < 0.5:
                self._paused.append(self._new('call Shell-delete {"path": "/x"}'))
            return self._paused[-1]
        return self._new() if operation in CONSUMING else self._rng.choice(self._tasks)

    def moved(self) -> Json:
        """An exported task under new ids."""
        written = json.dumps(self.document)
        task = self.document["task"]
        for known in (task["task_id"], task["session_id"], self.document["requests"][0]["request_id"]):
            written = written.replace(known, str(uuid.uuid4()))
        made: Json = json.loads(written)
        return made

    def fill(self, case: Any, mode: GenerationMode) -> None:
        """Puts ids of real resources where the case names any, and a fresh key where it names one.

        What is wrong on purpose stays as it is.
        """
        operation = case.operation.definition.raw["operationId"]
        target = self.target(operation)
        for name, value in (case.path_parameters or {}).items():
            if _is_id(value):
                case.path_parameters[name] = self._named(target, name)
        for name in ("session_id", "checkpoint_id", "approval_id"):
            if _is_id((case.query or {}).get(name)):
                case.query[name] = self._named(target, name)
        if mode is GenerationMode.POSITIVE and isinstance((case.query or {}).get("cursor"), str):
            # the cursors of a tenant's inbox are an approver's, which the caller is not
            case.query["cursor"] = case.query["cursor"].removeprefix("inbox/")
        for name in list(case.headers or {}):
            if name.lower() == "idempotency-key" and KEY.fullmatch(case.headers[name]):
                case.headers[name] = str(uuid.uuid4())
        if isinstance(case.body, dict) and mode is GenerationMode.POSITIVE:
            self._fill_body(operation, case.body, target)

    @staticmethod
    def _named(target: Json, name: str) -> str:
        content = target.get("content") or {}
        named = {"checkpoint_id": target["request_id"], "approval_id": content.get("approval_id")}
        return str(named.get(name) or target[name] if name in target else named.get(name) or uuid.uuid4())

    def _fill_body(self, operation: str, body: Json, target: Json) -> None:
        for name in ("task_id", "checkpoint_id", "message_id"):
            if _is_id(body.get(name)):
                body[name] = self._named(target, name)
        if _is_id(body.get("task_id")):
            body.pop("session_id", None)
        if operation == "import_task" and _is_document(body) and self._rng.random() < 0.7:
            body.clear()
            body.update(self.moved())
        if operation.startswith("resume_") and isinstance(body.get("decisions"), list):
            self._name_calls(body, target)

    @staticmethod
    def _name_calls(body: Json, target: Json) -> None:
        """Decisions name each call of the pause once, and are whole."""
        calls = target["content"].get("tool_calls", [])
        kept = []
        for call, decision in zip(calls, body["decisions"], strict=False):
            if not isinstance(decision, dict) or not isinstance(decision.get("id"), str):
                return
            decision["id"] = call["id"]
            if decision.get("action", body.get("action")) != "approve":
                decision.pop("arguments", None)
            elif isinstance(decision.get("arguments"), dict):
                decision["arguments"] = {"path": "/edited"}  # the tool has one, and refuses others
            kept.append(decision)
        if all(decision.get("action") or body.get("action") for decision in kept):
            body["decisions"] = kept


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and UUID.fullmatch(value) is not None


def _is_document(body: Json) -> bool:
    return {"format", "agent", "task", "requests", "entries"} == body.keys() and isinstance(
        body["task"], dict
    )


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceThread]:
    tools = {
        "TA_PLUGIN_MODULE": str(HERE / "custom_plugins.py"),
        "TA_PLUGIN_CATALOG_FILE": str(HERE / "catalogue.json"),
    }
    people = {"provider": "mock", "options": {"auditor_users": ["ada"]}}
    with offline_service(env=tools, agent={"plugins": ["Shell"]}, auth=people) as (running, _):
        yield running


@pytest.fixture(scope="module")
def document(service: ServiceThread) -> Json:
    made: Json = httpx.get(service.url + "/openapi.json").raise_for_status().json()
    return made


class Explorer:
    """Calls operations at random, and counts how each was answered."""

    def __init__(self, service: ServiceThread, document: Json, client: httpx.Client, number: int) -> None:
        self.found: Counter[tuple[str, int]] = Counter()
        self._root = service.root
        self._world = World(client)
        self._session = requests.Session()
        self._number = number
        self._described = schemathesis.openapi.from_dict(document)
        # unknown queries are passed over, and the token is ours
        self._described.config.generation.with_security_parameters = False
        self._described.config.generation.allow_extra_parameters = False
        # the mock provider takes any token: that a wrong one is refused is tested with real ones
        self._excluded = CHECKS.get_by_names(["ignored_auth"])

    def explore(self, *, valid: int, hostile: int) -> None:
        with self._session:
            for result in self._described.get_all_operations():
                assert isinstance(result, Ok), result
                operation = result.ok()
                large = operation.definition.raw["operationId"] == "import_task"
                self._calls(operation, GenerationMode.POSITIVE, IMPORTS if large else valid)
                if _can_be_wrong(operation):
                    self._calls(operation, GenerationMode.NEGATIVE, hostile)

    def _calls(self, operation: Any, mode: GenerationMode, cases: int) -> None:
        @seed(self._number)
        @settings(
            max_examples=cases,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def call(case: Any) -> None:
            assume(not _rounded(case.body))
            self._world.fill(case, mode)
            token = {"authorization": "Bearer ada"}
            answer = case.call(self._root, session=self._session, headers=token, timeout=60)
            self.found[operation.definition.raw["operationId"], answer.status_code] += 1
            case.validate_response(answer, excluded_checks=self._excluded)

        call()


def explored(
    service: ServiceThread, document: Json, *, valid: int, hostile: int, number: int = 1
) -> Counter[tuple[str, int]]:
    """Calls every operation so often; returns how often each was answered with which status."""
    with service.client("ada") as client:
        explorer = Explorer(service, document, client, number)
        explorer.explore(valid=valid, hostile=hostile)
        return explorer.found


def _rounded(value: Any) -> bool:
    """Whether it holds a float that JSON Schema takes for an integer beyond 64 bits, as 6e23 is."""
    if isinstance(value, dict):
        return any(map(_rounded, value.values()))
    if isinstance(value, list):
        return any(map(_rounded, value))
    return isinstance(value, float) and abs(value) > LARGEST_INTEGER


def _can_be_wrong(operation: Any) -> bool:
    """Whether there is anything in a call that could be other than it should."""
    return bool(operation.body or operation.path_parameters or operation.query)


def judge(found: Counter[Any], document: Json) -> None:
    """Every operation was reached and succeeded, and enough of all calls did."""
    succeeded = {operation for operation, status in found if status < 300}
    assert succeeded == {operation["operationId"] for _, _, operation in operations(document)}
    well = sum(count for (_, status), count in found.items() if status < 300)
    assert well >= 0.3 * found.total(), found


def test_random_calls_find_nothing(service: ServiceThread, document: Json) -> None:
    """Whatever is sent, the answer is one that the document declares. covers: APP-6, MODEL-4"""
    judge(explored(service, document, valid=VALID, hostile=HOSTILE), document)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10))
def test_ten_thousand_random_calls_find_nothing(service: ServiceThread, document: Json, number: int) -> None:
    """The same, a thousand calls and more each."""
    found = explored(service, document, valid=30, hostile=12, number=number + 100)
    assert found.total() >= 1000
    judge(found, document)


# --- the document itself -----------------------------------------------------------------------------


def test_the_first_path_is_the_message_route(service: ServiceThread, document: Json) -> None:
    """Orchestrators read what the agent does from its description. covers: APP-6, APP-7"""
    path, item = next(iter(document["paths"].items()))
    assert path == service.prefix
    assert item["post"]["description"].strip()
    assert document["openapi"].startswith("3.1")


def test_every_operation_is_described_with_its_answers(document: Json) -> None:
    """A summary, a description, an answer that succeeds, and its errors with examples. covers: APP-6"""
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"], where
        assert operation["tags"], where
        answers = operation["responses"]
        assert any(status.startswith("2") for status in answers), where
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), (where, parameter["name"])
        if operation.get("security") == []:
            continue
        assert {"401", "403", "500", "503"} <= answers.keys(), where
        for status, answer in answers.items():
            assert answer["description"], (where, status)
            if status >= "400":
                examples = answer["content"]["application/problem+json"]["examples"]
                assert all(example["value"]["status"] == int(status) for example in examples.values())


def test_every_schema_and_reference_is_there(document: Json) -> None:
    """No reference leads nowhere, no schema is there for nothing, and each says what it is."""
    named = document["components"]["schemas"]
    used = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert used == named.keys()
    for name, schema in named.items():
        assert schema.get("description") or name.startswith("Exported"), name


def test_links_lead_to_operations_that_exist(document: Json) -> None:
    """What an answer's ids can be used for is said by links, with the right parameters."""
    known = {operation["operationId"]: operation for _, _, operation in operations(document)}
    links = [
        link
        for operation in known.values()
        for answer in operation["responses"].values()
        for link in answer.get("links", {}).values()
    ]
    assert len(links) > 20
    for link in links:
        target = known[link["operationId"]]
        assert link["parameters"].keys() <= {parameter["name"] for parameter in target["parameters"]}
        assert link["description"]


def test_examples_are_what_they_stand_for(service: ServiceThread, document: Json) -> None:
    """Each example of a body is taken, or refused only because of what it names."""
    with service.client("ada") as client:
        for _, path, operation in operations(document):
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for name, example in content.get("examples", {}).items():
                for part in ("task_id", "request_id"):
                    path = path.replace(f"{{{part}}}", str(uuid.uuid4()))
                answer = client.request(
                    "PATCH" if operation["operationId"] == "patch_task" else "POST",
                    service.root + path,
                    json=example["value"],
                )
                assert answer.status_code in (200, 201, 404), (path, name, answer.text)


def test_the_docs_page_is_served(service: ServiceThread) -> None:
    """For people, without a token; it loads nothing from another site."""
    page = httpx.URL(service.url + "/docs")
    answer = httpx.get(page)
    assert answer.status_code == 200
    loaded = re.findall(r"""(?:src|href)="([^"]+)"|url: '([^']+)'""", answer.text)
    names = [one or other for one, other in loaded if not one.startswith("data:")]
    assert len(names) == 3
    for name in names:
        part = httpx.get(page.join(name))
        assert (part.status_code, part.url.host, part.url.port) == (200, page.host, page.port), name
    assert httpx.get(page.join("docs/nothing.js")).status_code == 404


def test_the_root_lists_the_agent(service: ServiceThread) -> None:
    """The address of the service leads to its documents."""
    (agent,) = httpx.get(service.root).json()["agents"]
    for name in ("docs", "openapi"):
        assert httpx.get(service.root + agent[name]).status_code == 200
    assert list(itertools.islice(agent, 2)) == ["name", "version"]
