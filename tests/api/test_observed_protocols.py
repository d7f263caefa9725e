"""Each request is one line of the log, one count of each metric and one span, whatever the protocol."""

import json
import os
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from a2a_talk import VERSION, message
from agui_talk import run_input, user
from collecting import Collector, attributes
from mcp_talk import ACCEPT, asking, opened, post
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families
from replicas import SCRIPT, ended
from served_routes import PROTOCOLS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from talk import AGENT, PLUGINS, call
from tools_setup import served
from wire import Json, text

from tealagents.llm.offline import OfflineModel
from tealagents.state import keys
from tealagents.testing.forking import Nursery
from tealagents.testing.servers import free_port
from tealagents.testing.service import ServiceProcess, agent_config

PREFIX = "/Tester/0.1"
IDS = ("session_id", "task_id", "request_id")
ODD_SERVER = Path(__file__).parents[1] / "fixtures" / "tools" / "odd_server.py"
#: protocol → its route for messages, below the agent's prefix, and a message over it
MESSAGES: dict[str, tuple[str, Callable[[httpx.Client], httpx.Response]]] = {
    "v1alpha1": ("", lambda client: client.post("", json=text("hello"))),
    "openai": ("/openai/v1/responses", lambda c: c.post("/openai/v1/responses", json={"input": "hello"})),
    "a2a": (
        "/a2a/message:send",
        lambda c: c.post("/a2a/message:send", json={"message": message()}, headers=VERSION),
    ),
    "ag-ui": ("/ag-ui", lambda client: client.post("/ag-ui", json=run_input("t", user("hello")))),
    "mcp": ("/mcp", lambda client: post(client, asking("hello"))),
}


class Seen(NamedTuple):
    """What a service has logged and exported."""

    lines: list[dict[str, Any]]
    metrics: str
    spans: list[Span]
    records: list[LogRecord]

    def value(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.metrics)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def of(self, route: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("route") == route]


def observed(model: OfflineModel, collector: str) -> dict[str, str]:
    """The environment of a service that exports to this address what it does."""
    return {
        "TA_AUTH": "mock",
        "TA_BASE_URL": model.base_url,
        "TA_API_KEY": "offline-key",
        "TA_OTEL_ENDPOINT": collector,
    }


@pytest.fixture(scope="module")
def seen(nursery: Nursery) -> Iterator[Seen]:
    """A service that was sent one message over each protocol, two within a session of MCP, and some reads."""
    with ExitStack() as stack:
        model, collector = stack.enter_context(OfflineModel()), stack.enter_context(Collector())
        port = free_port()
        env = {**observed(model, collector.url), "TA_METRICS_PORT": str(port)}
        service = stack.enter_context(nursery.service(agent_config(protocols=list(PROTOCOLS)), env))
        with service.client() as ada, service.client("eve") as eve, service.client(None) as anonymous:
            for _, send in MESSAGES.values():
                send(ada).raise_for_status()
            in_session = {"accept": ACCEPT, "mcp-session-id": opened(eve)}
            for n in (2, 3):
                call = {"name": "ask", "arguments": {"message": "hello"}}
                body = {"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": call}
                eve.post("/mcp", json=body, headers=in_session).raise_for_status()
            (newest, *_) = ada.get("/tasks").json()["items"]
            request = newest["checkpoint_id"]
            ada.get(f"/openai/v1/responses/resp_{request}_1").raise_for_status()
            ada.get(f"/a2a/tasks/{request}", headers=VERSION).raise_for_status()
            ada.head("/tasks").raise_for_status()
            anonymous.get(f"/openai/v1/responses/resp_{request}_1")
            anonymous.get(f"/a2a/tasks/{request}", headers=VERSION)
            anonymous.get("/mcp")
            for path in ("/nothing", "/openai/v1/nothing", "/a2a/nothing"):
                ada.get(path, headers=VERSION)
            for path in ("/tasks", "/openai/v1/models", "/a2a/tasks"):
                ada.put(path, headers=VERSION)
            metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        service.terminate()
        lines = [json.loads(line) for line in service.log().splitlines() if line.startswith("{")]
        of_requests = [line for line in lines if line["logger"] == "tealagents.telemetry.requests"]
        yield Seen(of_requests, metrics, collector.spans, collector.records)


#: how many of MCP's three messages came in a session, which is opened by two calls more
IN_SESSION, OPENING = 2, 2


@pytest.mark.parametrize("protocol", ["v1alpha1", *PROTOCOLS])
def test_a_message_is_one_line_one_count_and_one_span(seen: Seen, protocol: str) -> None:
    """With its ids, its route, and how it ended; within a session of MCP as well."""
    route, sent = PREFIX + MESSAGES[protocol][0], 1 + IN_SESSION * (protocol == "mcp")
    lines = seen.of(f"POST {route}")
    completed = [line for line in lines if line["status"] == "Completed"]
    assert len(lines) - len(completed) == OPENING * (protocol == "mcp")
    assert len({line["request_id"] for line in completed}) == len(completed) == sent
    for line in completed:
        assert line["session_id"] != line["task_id"]
        assert line["duration"] >= 0
        assert line["completion_tokens"] > 0
    labels = {"http_request_method": "POST", "http_route": route}
    assert seen.value("http_server_request_duration_seconds_count", **labels) == len(lines)
    spans = [span for span in seen.spans if span.name == f"POST {route}"]
    traces = {span.trace_id for span in spans}
    assert len(spans) == len(traces) == len(lines)
    # whatever was done belongs to the request, which belongs to the call
    for work in ("invoke_agent Tester", "chat "):
        done = [span for span in seen.spans if span.name.startswith(work) and span.trace_id in traces]
        ids = [attributes(span)["tealagents.request_id"] for span in done]
        assert sorted(ids) == sorted(line["request_id"] for line in completed)


def test_a_read_is_logged_with_the_id_of_what_is_read(seen: Seen) -> None:
    """The route is named by its template, also where the call is refused."""
    known = {line["request_id"] for line in seen.lines if line["status"] == "Completed"}
    for route in ("/openai/v1/responses/{response_id}", "/a2a/tasks/{id}"):
        lines = seen.of(f"GET {PREFIX}{route}")
        assert lines[0]["status"] == 200
        assert lines[0]["request_id"] in known
        for status in {line["status"] for line in lines}:
            labels = {"http_route": PREFIX + route, "http_response_status_code": str(status)}
            assert seen.value("http_server_request_duration_seconds_count", **labels) == 1
    for route in ("/openai/v1/responses/{response_id}", "/a2a/tasks/{id}", "/mcp"):
        refused = seen.of(f"GET {PREFIX}{route}")[-1]
        assert (refused["status"], refused["code"]) == (401, "unauthenticated")
    assert seen.value("tealagents_requests_total", status="Completed") == len(MESSAGES) + IN_SESSION


def test_head_is_logged_and_counted_with_the_route_that_answers_it(seen: Seen) -> None:
    """Under its own method, though GET's route answers."""
    assert [line["status"] for line in seen.of(f"HEAD {PREFIX}/tasks")] == [200]
    labels = {"http_request_method": "HEAD", "http_route": f"{PREFIX}/tasks"}
    assert seen.value("http_server_request_duration_seconds_count", **labels) == 1


def test_what_is_not_served_is_counted_as_refused(seen: Seen) -> None:
    """Paths and methods, over every protocol."""
    for code, status in (("not_found", 404), ("method_not_allowed", 405)):
        assert len([line for line in seen.lines if line["status"] == status]) == 3
        assert len([line for line in seen.lines if line.get("code") == code]) == 3
        assert seen.value("tealagents_refusals_total", error_type=code) == 3


def test_why_a_token_is_refused_is_in_the_log(nursery: Nursery) -> None:
    """In the line of the call, over every protocol, without the token. covers: APP-5"""
    canary = "canary-of-a-token" * 20
    with OfflineModel() as model, Collector() as collector:
        env = observed(model, collector.url)
        with nursery.service(agent_config(protocols=list(PROTOCOLS)), env) as service:
            with service.client() as ada, service.client(None) as anonymous:
                for _, send in MESSAGES.values():
                    assert send(anonymous).status_code == 401
                anonymous.headers["authorization"] = f"Bearer {canary}"
                for _, send in MESSAGES.values():
                    assert send(anonymous).status_code == 401
                assert ada.get("/tenant/tasks").status_code == 403
            service.terminate()
            log = service.log()
        assert not any(b"canary" in sent for sent in collector.taken)
        exported = [attributes(record).get("tealagents.reason") for record in collector.records]
    assert "canary" not in log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    refused = [line for line in lines if line["logger"] == "tealagents.telemetry.requests"]
    reasons = [line["reason"] for line in refused]
    assert {each["code"] for each in refused[:-1]} == {"unauthenticated"}
    assert set(reasons[: len(MESSAGES)]) == {
        "Send `Authorization: Bearer …` with an access token for this service."
    }
    assert {each[:52] for each in reasons[len(MESSAGES) : -1]} == {
        "With mock authentication the bearer token is the use"
    }
    assert refused[-1]["code"] == "insufficient_scope"
    assert "auditors only" in reasons[-1]
    assert sorted(filter(None, exported)) == sorted(reasons)


def test_damage_is_logged_with_the_ids_of_what_is_damaged(nursery: Nursery, tmp_path: Path) -> None:
    """In the line of the call and in the one that says what is damaged: as a read or a message names it."""
    database = tmp_path / "state.db"
    with OfflineModel() as model, Collector() as collector:
        env = {**observed(model, collector.url), "TA_PERSISTENCE": f"sqlite:///{database}"}
        with nursery.service(agent_config(protocols=list(PROTOCOLS)), env) as service:
            with service.client() as ada:
                said = ada.post("", json=text("hello")).raise_for_status().json()
                session_id, task_id, request_id = (said[name] for name in IDS)
                with closing(sqlite3.connect(database)) as connection, connection:
                    damaged = (keys.task(task_id), keys.request(request_id), keys.session(session_id))
                    connection.execute("UPDATE records SET value = 'x' WHERE key IN (?, ?, ?)", damaged)
                paths = [
                    *(f"/tasks/{task_id}", f"/openai/v1/conversations/conv_{task_id}"),
                    *(f"/requests/{request_id}", f"/openai/v1/responses/resp_{request_id}_1"),
                    f"/a2a/tasks/{request_id}",
                ]
                for path in paths:
                    assert ada.get(path, headers=VERSION).status_code == 500
                for where in ({"task_id": task_id}, {"session_id": session_id}):
                    assert ada.post("", json=text("more", **where)).status_code == 500
            service.terminate()
            lines = [json.loads(line) for line in service.log().splitlines() if line.startswith("{")]
    about = [line for line in lines if "corrupt_state" in (line.get("code"), line["message"][:13])]
    assert [line["level"] for line in about] == ["WARNING", "INFO"] * 7
    named = [{line[name] for name in IDS if name in line} for line in about]
    assert named == [{task_id}] * 4 + [{request_id}] * 6 + [{task_id}] * 2 + [{session_id}] * 2


def test_each_line_is_exported_within_its_span(seen: Seen) -> None:
    """With its ids, its route and how it ended, whatever was called. covers: APP-5"""
    spans = {span.span_id: span.name for span in seen.spans}
    exported = []
    for record in seen.records:
        about = attributes(record)
        if (route := about.get("tealagents.route")) is not None:
            assert spans[record.span_id] in (route, route.removesuffix(" (no route)"), "invoke_agent Tester")
            named = {name: about[f"tealagents.{name}"] for name in IDS if f"tealagents.{name}" in about}
            exported.append((route, about.get("error.type"), named))
    lines = [(each["route"], each.get("code")) for each in seen.lines]
    assert sorted(map(repr, exported)) == sorted(
        repr((*line, {name: each[name] for name in IDS if name in each}))
        for line, each in zip(lines, seen.lines, strict=True)
    )


def test_a_call_continues_its_callers_trace(nursery: Nursery) -> None:
    """To the model: a message, the decision on it, and a message that waits for its turn. covers: APP-5"""
    with OfflineModel(SCRIPT) as model, Collector() as collector:
        env = {**observed(model, collector.url), "TA_PLUGIN_MODULE": str(PLUGINS)}
        config = agent_config(agent=AGENT, concurrency="enqueue")
        with nursery.service(config, env) as service, service.client() as ada:

            def posted(trace: int, path: str, body: Json, **headers: str) -> Json:
                headers["traceparent"] = f"00-{trace:032x}-b7ad6b7169203331-01"
                answer: Json = ada.post(path, json=body, headers=headers).raise_for_status().json()
                return answer

            pause = posted(1, "", text(call("Work-write", file=os.devnull, line="x")))
            posted(2, f"/requests/{pause['request_id']}/resume", {"action": "approve"})
            running = posted(3, "", text("when released"), prefer="respond-async")
            after = text("hello", task_id=running["task_id"])
            waiting = posted(4, "", after, prefer="respond-async")
            assert waiting["status"] == "Queued"
            model.release()
            assert ended(ada, waiting["request_id"])["status"] == "Completed"
            traces = [int(each["headers"]["traceparent"].split("-")[1], 16) for each in model.requests]
            assert traces == [1, 2, 3, 4]


@pytest.mark.parametrize(("sampler", "traced"), [(None, True), ("parentbased_always_on", False)])
def test_a_caller_does_not_decide_whether_their_call_is_traced(
    nursery: Nursery, sampler: str | None, traced: bool
) -> None:
    """A call whose caller records no trace is in the operator's, unless the operator has a sampler for it."""
    with OfflineModel() as model, Collector() as collector:
        env = {**observed(model, collector.url), **({"OTEL_TRACES_SAMPLER": sampler} if sampler else {})}
        with nursery.service(agent_config(), env) as service, service.client() as ada:
            unrecorded = {"traceparent": f"00-{7:032x}-b7ad6b7169203331-00"}
            ada.post("", json=text("hello"), headers=unrecorded).raise_for_status()
            service.terminate()
        spans = {each.name.split()[0] for each in collector.spans if int.from_bytes(each.trace_id) == 7}
    assert spans == ({"POST", "invoke_agent", "chat"} if traced else set())


def test_why_a_model_call_failed_is_in_the_log_and_on_its_span(nursery: Nursery) -> None:
    """With the request that it belongs to, and nothing of what the service said."""
    refusal = {"status": 401, "code": "invalid_api_key", "message": "Incorrect API key provided"}
    with OfflineModel({"otherwise": {"error": refusal}}) as model, Collector() as collector:
        env = observed(model, collector.url)
        with nursery.service(agent_config(), env) as service:
            with service.client() as ada:
                failed = ada.post("", json=text("hello")).json()
            service.terminate()
            lines = [json.loads(line) for line in service.log().splitlines() if line.startswith("{")]
    [why] = [line for line in lines if "invalid_api_key" in line["message"]]
    assert (why["level"], why["request_id"]) == ("WARNING", failed["request_id"])
    assert "HTTP status 401, code invalid_api_key, request id req_" in why["message"]
    assert "Incorrect" not in json.dumps(lines)
    [chat] = [span for span in collector.spans if span.name.startswith("chat ")]
    statuses = [each.value.int_value for each in chat.attributes if each.key == "http.response.status_code"]
    assert statuses == [401]


def test_a_tool_server_is_called_within_the_trace_and_quoted_nowhere(
    nursery: Nursery, tmp_path: Path
) -> None:
    """It continues the trace from the span of the tool; no span has what its refusal quotes. covers: APP-5"""
    with OfflineModel() as model, Collector() as collector:
        env = observed(model, collector.url)
        server = {"name": "odd", "command": sys.executable, "args": [str(ODD_SERVER), str(tmp_path)]}
        config = agent_config(agent={"mcp_servers": [{**server, "trust_level": "trusted"}]})
        with nursery.service(config, env) as service, service.client() as ada:
            ada.post("", json=text(call("odd-raise", path="canary-argument"))).raise_for_status()
            assert service.terminate() == 0
        [span] = [each for each in collector.spans if each.name == "execute_tool odd-raise"]
        [traceparent] = (tmp_path / "traces").read_text().splitlines()
        assert traceparent.split("-")[1:3] == [span.trace_id.hex(), span.span_id.hex()]
        assert not any(b"canary-argument" in sent for sent in collector.taken)


def test_a_tool_that_the_model_has_made_up_is_named_on_no_span(nursery: Nursery) -> None:
    """Its name is a text of the model, as the arguments are. covers: APP-5"""
    made_up = {"tool_calls": [{"name": "canary-name", "arguments": {}}]}
    rules = [{"when": {"tool_result": True}, "reply": {"text": "done"}}]
    with OfflineModel({"rules": rules, "otherwise": made_up}) as model, Collector() as collector:
        env = observed(model, collector.url)
        with nursery.service(agent_config(), env) as service, service.client() as ada:
            ada.post("", json=text("hello")).raise_for_status()
            service.terminate()
    assert [each.name for each in collector.spans if "tool" in each.name] == ["execute_tool unknown"]
    assert not any(b"canary-name" in sent for sent in collector.taken)


def test_an_openapi_service_is_called_within_the_trace(nursery: Nursery, tmp_path: Path) -> None:
    """It continues the trace from the span of the tool, and gets no baggage of the caller. covers: APP-5"""
    seen: list[Mapping[str, str]] = []

    async def weather(request: Request) -> PlainTextResponse:
        seen.append(request.headers)
        return PlainTextResponse("sunny")

    document = {"openapi": "3.0.3", "paths": {"/weather": {"get": {"operationId": "weather"}}}}
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    with (
        OfflineModel() as model,
        Collector() as collector,
        served(Starlette(routes=[Route("/weather", weather)])) as url,
    ):
        remote = {"plugin_name": "Wx", "openapi_json_path": "openapi.json", "server_url": url}
        (tmp_path / "remote.yaml").write_text(json.dumps({"remote_plugins": [remote]}))
        env = {**observed(model, collector.url), "TA_REMOTE_PLUGIN_PATH": str(tmp_path / "remote.yaml")}
        config = agent_config(agent={"remote_plugins": ["Wx"]})
        with nursery.service(config, env) as service, service.client() as ada:
            trace = {"traceparent": f"00-{7:032x}-b7ad6b7169203331-01", "baggage": "user=ada"}
            ada.post("", json=text(call("Wx-weather")), headers=trace).raise_for_status()
            assert service.terminate() == 0
    [span] = [each for each in collector.spans if each.name == "execute_tool Wx-weather"]
    [headers] = seen
    assert headers["traceparent"] == f"00-{7:032x}-{span.span_id.hex()}-01"
    assert "baggage" not in headers


def test_a_collector_on_loopback_is_called_through_no_proxy(nursery: Nursery) -> None:
    """As nothing there is."""
    with OfflineModel() as model, Collector() as collector:
        env = {**observed(model, collector.url), "http_proxy": "http://127.0.0.1:1", "no_proxy": ""}
        with nursery.service(agent_config(), env) as service, service.client() as ada:
            ada.post("", json=text("hello")).raise_for_status()
            service.terminate()
        called = {each.partition(b"\n")[0] for each in collector.taken}
        assert called == {b"/v1/traces", b"/v1/logs", b"/v1/metrics"}


def test_a_collector_that_never_answers_keeps_no_process() -> None:
    """It ends with 0 and soon: an orchestrator would kill it."""
    with OfflineModel() as model, socket.create_server(("127.0.0.1", 0)) as silent:
        env = {
            **observed(model, f"http://127.0.0.1:{silent.getsockname()[1]}"),
            "OTEL_EXPORTER_OTLP_TIMEOUT": "120",
        }
        with ServiceProcess(agent_config(), env) as service, service.client() as ada:
            ada.post("", json=text("hello")).raise_for_status()
            assert service.terminate(timeout=60) == 0
