"""The HTTP reference names every route, event, error code and header there is, and no other."""

import inspect
import re
from pathlib import Path
from typing import get_args, get_type_hints

import httpx
import pytest

import tealagents.client
from tealagents.api.http import RETRY_AFTER, STATUSES
from tealagents.api.v1alpha1.openapi import EVENTS
from tealagents.client import StreamEvent
from tealagents.client.events import parse_event
from tealagents.client.operations import Operations
from tealagents.client.rules import Position
from tealagents.client.sse import ServerSentEvent
from tealagents.domain.models import ENDED, FinishReason, Json, StepKind, ToolOutcome
from tealagents.testing.service import ServiceThread, agent_config
from tealagents.threads.views import Report

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text()


def section(title: str) -> str:
    """What stands under a heading of the second level."""
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> list[str]:
    """What the first cells of tables hold as code."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


@pytest.fixture(scope="module")
def paths() -> Json:
    """The operations of the OpenAPI document, by path and method; paths as the page writes them."""
    with ServiceThread(agent_config(), {"TA_API_KEY": "none", "TA_AUTH": "mock"}) as service:
        found = httpx.get(service.url + "/openapi.json").raise_for_status().json()["paths"]
        return {path.replace(service.prefix, "…", 1): operations for path, operations in found.items()}


@pytest.fixture(scope="module")
def routes(paths: Json) -> set[str]:
    return {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}


def test_every_route_is_documented(routes: set[str]) -> None:
    """A route that the page does not name, or that is not there, fails. covers: APP-6"""
    listed = first_cells(section("Calls"))
    assert len(listed) == len(set(listed))
    assert set(listed) == routes


def test_probes_have_the_same_paths_on_every_page(routes: set[str]) -> None:
    """No page names a probe that is not there, such as `/readyz`."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    probe = re.compile(r"((?:/health)?/(?:health|live|ready)z?)`")
    named = {found for page in pages for found in probe.findall(page.read_text())}
    served = {route.removeprefix("GET …") for route in routes}
    assert "/health/ready" in named
    assert named <= served


def test_every_event_is_documented() -> None:
    """And no event that is never sent."""
    assert set(first_cells(section("Streams"))) == EVENTS.keys()


#: routes for others than clients: an orchestrator's probes, and the earlier platform's path of a decision
NOT_CALLED = {
    "GET …/health/live",
    "GET …/health/ready",
    "POST …/tealagents/v1alpha1/resume/{}",
    "POST …/tealagents/v1alpha1/resume/{}/sse",
}
#: what a client's operation is called with for an id, and for what is none
ID = "00000000-0000-4000-8000-000000000000"
ARGUMENTS: Json = {
    "content": "hello",
    "options": {},
    "action": "approve",
    "changes": {},
    "document": {},
    "parents": False,
    "timeout": None,
    "budget": None,
}


def methods_of_python_client() -> set[str]:
    return {name for name in dir(tealagents.client.Client) if not name.startswith("_")} - {"close"}


def called(method: str) -> str:
    """The route that a method of the Python client calls first."""
    operation = getattr(Operations(), method)
    given = {name: ARGUMENTS.get(name, ID) for name in inspect.signature(operation).parameters}
    if "position" in given:
        given["position"] = Position()
    call = next(operation(**given)).call
    return f"{call.method} …{call.path.replace(ID, '{}')}"


def test_python_client_calls_every_route(routes: set[str]) -> None:
    """By a method of its own."""
    served = {re.sub(r"{\w+}", "{}", route) for route in routes}
    assert served == {called(method) for method in methods_of_python_client()} | NOT_CALLED


def test_javascript_client_has_the_methods_of_the_python_client() -> None:
    """Under the same names, as they are written there; it holds no connection that is to be closed."""
    types = (ROOT / "clients/js/src/index.d.ts").read_text().split("\nexport class Client ", 1)[1]
    methods = set(re.findall(r"^  (\w+)[(<]", types.split("\n}", 1)[0], re.MULTILINE))
    names = methods_of_python_client()
    assert methods - {"constructor"} == {re.sub(r"_(\w)", lambda at: at[1].upper(), name) for name in names}


def test_python_client_has_every_event() -> None:
    """It reads each by its name, exports the class of each, and its page names the class."""
    ids = '{"session_id": "s", "task_id": "t", "request_id": "r"}'
    assert all(parse_event(ServerSentEvent(name=name, data=ids)) for name in EVENTS)
    classes = {event.__name__ for event in get_args(StreamEvent)}
    assert classes <= set(tealagents.client.__all__)
    assert classes <= set(re.findall(r"`(\w+)`", (ROOT / "docs/client.md").read_text()))


def test_javascript_client_has_every_event() -> None:
    """It knows the name of each, its types have the data of each, and its page names each."""
    code = (ROOT / "clients/js/src/stream.js").read_text()
    known = "".join(re.findall(r"^const (?:ENDS|KNOWN) = (.+)$", code, re.MULTILINE))
    assert set(re.findall(r'"([\w-]+)"', known)) == EVENTS.keys()
    types = (ROOT / "clients/js/src/documents.d.ts").read_text()
    assert set(re.findall(r'StreamEventOf<\s*"([\w-]+)"', types)) == EVENTS.keys()
    assert EVENTS.keys() <= set(re.findall(r"`([\w-]+)`", (ROOT / "docs/client-js.md").read_text()))


def test_every_error_code_is_documented_with_its_status() -> None:
    """And says what to do. covers: STATE-5"""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", section("Errors"), re.MULTILINE)
    assert {code for code, _, _ in rows} == STATUSES.keys()
    for code, statuses, advice in rows:
        assert str(STATUSES[code]) in statuses, code
        assert advice.strip(), code


def test_every_kind_of_step_and_every_action_of_the_audit_is_documented() -> None:
    """With no other; tool calls and model calls with their outcomes."""
    kinds, actions = section("Trace and audit").split("| `action` |")
    assert set(first_cells(kinds)) == {"kind", *get_args(StepKind)}
    outcomes = {*get_args(FinishReason), *get_args(get_type_hints(ToolOutcome)["outcome"])}
    assert outcomes <= set(re.findall(r"`(\w+)`", kinds))
    listed = re.findall(r"`([\w.]+)`", "".join(re.findall(r"^(\|[^|]+\|)", actions, re.MULTILINE)))
    assert sorted(listed) == sorted(written_actions())


def written_actions() -> set[str]:
    """What is appended to logs: by name, by the status of a request, by the kind of a report."""
    rooms = (ROOT / "src/tealagents" / name for name in ("state", "engine"))
    code = "".join(file.read_text() for room in rooms for file in room.rglob("*.py"))
    named = re.findall(r'\b(?:draft|record|_change)\([^()"]*"([\w.]+)"', code)
    ended = {f"request.{status.lower()}" for status in ENDED}
    return {*named, *ended, *(f"{kind}.noted" for kind in get_args(get_type_hints(Report)["kind"]))}


def test_every_header_of_an_answer_is_documented() -> None:
    """Those that carry something of this protocol."""
    listed = {name.lower() for name in first_cells(section("Headers"))}
    assert {"www-authenticate", "location", "idempotent-replayed", "preference-applied", "allow"} <= listed
    assert not RETRY_AFTER or "retry-after" in listed
