"""What operators see of agents without state: metrics, lines of the log, traces."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from collecting import Collector
from earlier_agents import write
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from tealagents.llm.offline import OfflineModel
from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.servers import free_port
from tealagents.testing.waits import until

CONFIG = """
apiVersion: skagents/v1
kind: Sequential
service_name: Pair
version: 1.0
input_type: BaseInput
spec:
  agents:
    - {name: first, model: gpt-4o, system_prompt: You greet.}
    - {name: second, model: gpt-4o, system_prompt: You know the weather., plugins: [WeatherPlugin]}
  tasks:
    - {name: greet, task_no: 1, instructions: hello, agent: first}
    - {name: ask, task_no: 2, instructions: "{{ chat_history[0].content }}", agent: second}
"""
PLUGINS = """
from semantic_kernel.functions.kernel_function_decorator import kernel_function
from sk_agents.ska_types import BasePlugin


class WeatherPlugin(BasePlugin):
    @kernel_function(description="The weather in a city.")
    def weather(self, city: str) -> str:
        return f"It rains in {city}."
"""
CALL = {"name": "WeatherPlugin-weather", "arguments": {"city": "nowhere"}}
GREETING = {"prompt_tokens": 20, "completion_tokens": 700}
ASKING = {"prompt_tokens": 40, "completion_tokens": 1000}
SCRIPT = {
    "rules": [
        {"when": {"text": "think"}, "reply": {"fault": "silence"}},
        {"when": {"text": "hello"}, "reply": {"text": "Hello.", "usage": GREETING}},
        {"when": {"text": "nowhere"}, "reply": {"tool_calls": [CALL], "usage": ASKING}},
        {"when": {"result_text": "nowhere"}, "reply": {"error": {"status": 400, "message": "no"}}},
    ]
}
TRACE = "0af7651916cd43dd8448eb211c80319c"


class Watched(NamedTuple):
    """A service, its offline model, and where it is observed."""

    service: ForkedService
    model: OfflineModel
    collector: Collector
    port: int

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the samples of this name that have these labels; None where there are none."""
        page = httpx.get(f"http://127.0.0.1:{self.port}/metrics").text
        samples = [each for family in text_string_to_metric_families(page) for each in family.samples]
        named = [each for each in samples if each.name == name]
        found = [each.value for each in named if labels.items() <= each.labels.items()]
        return sum(found) if found else None

    def lines(self) -> list[dict[str, object]]:
        """What is logged of requests."""
        lines = [json.loads(line) for line in self.service.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line["logger"] == "tealagents.telemetry.requests"]

    @property
    def stream(self) -> str:
        return self.service.url.replace("http", "ws") + "/stream"


@pytest.fixture
def watched(nursery: Nursery, tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as stack:
        model, collector = stack.enter_context(OfflineModel(SCRIPT)), stack.enter_context(Collector())
        port = free_port()
        env = {
            "TA_AUTH": "gateway",
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_METRICS_PORT": str(port),
            "TA_OTEL_ENDPOINT": collector.url,
        }
        file = write(tmp_path, CONFIG, custom_plugins=PLUGINS)
        yield Watched(stack.enter_context(nursery.service(file, env)), model, collector, port)


def said(text: str) -> dict[str, object]:
    return {"chat_history": [{"role": "user", "content": text}]}


def test_tools_are_counted_by_plugin_whichever_agent_has_it(watched: Watched) -> None:
    """Not only those of the first agent."""
    asked = said('call WeatherPlugin-weather {"city": "Oslo"}')
    httpx.post(watched.service.url, json=asked, timeout=60).raise_for_status()
    counted = "tealagents_tool_duration_seconds_count"
    assert watched.value(counted, tealagents_plugin="WeatherPlugin", outcome="done") == 1


def test_what_a_call_that_failed_has_used_is_logged(watched: Watched) -> None:
    """Also by the task that failed: the round before was paid for."""
    assert httpx.post(watched.service.url, json=said("nowhere"), timeout=60).status_code == 502
    until(lambda: bool(watched.lines()))
    (line,) = watched.lines()
    assert line["code"] == "model_error"
    assert line["completion_tokens"] == 1700


def test_why_a_caller_is_refused_is_logged(nursery: Nursery, tmp_path: Path) -> None:
    """By the gateway's secret or by a token, over HTTP and over WebSockets, without what the caller sent."""
    wrong = {"taAgwKey": "canary-of-a-secret", "Authorization": f"Bearer {'canary' * 40}"}
    file, said_of_it = write(tmp_path, CONFIG, custom_plugins=PLUGINS), list[object]()
    for env in ({"TA_AUTH": "gateway", "TA_GATEWAY_SECRET": "s" * 16}, {"TA_AUTH": "mock"}):
        with OfflineModel(SCRIPT) as model:
            env |= {"TA_BASE_URL": model.base_url, "TA_API_KEY": "offline-key"}
            with nursery.service(file, env) as service:
                assert httpx.post(service.url, json=said("hello"), headers=wrong).status_code == 401
                stream = service.url.replace("http", "ws") + "/stream"
                with pytest.raises(InvalidStatus, match="401"):
                    connect(stream, additional_headers=wrong)
                service.terminate()
                lines = [each for each in service.log().splitlines() if each.startswith("{")]
        assert not any("canary" in each for each in lines)
        said_of_it += [json.loads(each).get("reason") for each in lines if "unauthenticated" in each]
    through_gateway = "Call this agent through its gateway: it sends the secret in taAgwKey."
    assert said_of_it[:2] == [through_gateway] * 2
    assert [str(each)[:24] for each in said_of_it[2:]] == ["With mock authentication"] * 2


TYPED = """
apiVersion: skagents/v1
kind: Chat
service_name: Typed
version: 1.0
input_type: BaseInput
output_type: Title
spec:
  agent: {name: default, model: gpt-4o, system_prompt: You answer.}
"""
TITLE = """
from pydantic import BaseModel, field_validator


class Title(BaseModel):
    title: str

    @field_validator("title")
    def check(cls, value):
        raise ValueError(f"{value} is no title")
"""
QUOTING = {
    "rules": [
        {"when": {"text": "echo"}, "reply": {"error": {"status": 400, "message": "Bad prompt: canary"}}},
        {"reply": '{"title": "canary"}'},
    ]
}


def test_what_a_failed_call_quotes_is_in_no_log(nursery: Nursery, tmp_path: Path) -> None:
    """Neither what the model service repeats of a message nor what a type says of an answer: its client is
    sent that. Operators read with the ids what failed."""
    with ExitStack() as stack:
        model, collector = stack.enter_context(OfflineModel(QUOTING)), stack.enter_context(Collector())
        env = {
            "TA_AUTH": "gateway",
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_LOG_LEVEL": "DEBUG",
            "TA_OTEL_ENDPOINT": collector.url,
        }
        file = write(tmp_path, TYPED, custom_types=TITLE)
        service = stack.enter_context(nursery.service(file, env))
        for text in ("echo canary", "title"):
            for path in ("", "/sse"):
                assert "canary" in httpx.post(service.url + path, json=said(text), timeout=60).text
            with connect(service.url.replace("http", "ws") + "/stream") as socket:
                socket.send(json.dumps(said(text)))
                with pytest.raises(ConnectionClosedError, match="canary"):
                    for _ in socket:
                        pass
        service.process.terminate()
        assert service.process.wait(60) == 0
        log = service.log()
    assert "canary" not in log
    assert b"canary" not in b"".join(collector.taken)
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    for cause in ("HTTP status 400, code invalid_request_error", "is not of the type Title: value_error"):
        found = [line for line in lines if cause in line["message"]]
        assert len(found) == 3, cause
        assert all(line["level"] == "WARNING" and line["request_id"] for line in found)
    ended = [line for line in lines if line.get("status") == "Failed"]
    assert [line["code"] for line in ended] == ["model_error"] * 6


def test_which_limit_a_model_call_exceeded_is_logged(nursery: Nursery, tmp_path: Path) -> None:
    """With the ids of the call: it is stored nowhere."""
    silent = {"otherwise": {"text": "never", "headers_delay_ms": 600_000}}
    with ExitStack() as stack:
        model = stack.enter_context(OfflineModel(silent))
        env = {
            "TA_AUTH": "gateway",
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_LIMITS__FIRST_PIECE_TIMEOUT_SECONDS": "1",
        }
        service = stack.enter_context(nursery.service(write(tmp_path, TYPED, custom_types=TITLE), env))
        assert httpx.post(service.url, json=said("hello"), timeout=60).status_code == 504
        lines = [json.loads(line) for line in service.log().splitlines() if line.startswith("{")]
    (line,) = [each for each in lines if "first_piece_timeout_seconds" in each["message"]]
    assert line["request_id"]


def test_calls_under_way_are_reported(watched: Watched) -> None:
    """Calls in flight and open streams, as for agents with state; and when they are over."""

    def seen() -> tuple[float | None, ...]:
        return tuple(map(watched.value, ("tealagents_requests_in_flight", "tealagents_followers")))

    assert seen() == (0, 0)
    with connect(watched.stream) as socket:
        socket.send(json.dumps(said("think")))
        until(lambda: seen() == (1, 1))
    until(lambda: seen() == (0, 0))


def test_a_websocket_is_observed_as_any_request(watched: Watched) -> None:
    """It continues the caller's trace, is measured by its route, and is one line of the log."""
    with connect(
        watched.stream, additional_headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    ) as socket:
        socket.send(json.dumps(said("hello")))
        assert "".join(map(str, socket))
    assert {each["headers"]["traceparent"].split("-")[1] for each in watched.model.requests} == {TRACE}
    with connect(watched.stream) as socket:
        socket.send("no JSON")
        with pytest.raises(ConnectionClosedError):
            socket.recv()
    until(lambda: len(watched.lines()) == 2)
    with connect(f"{watched.stream}?access_token=canary") as socket:
        socket.send("no JSON")
        with pytest.raises(ConnectionClosedError):
            socket.recv()
    until(lambda: len(watched.lines()) == 3)
    assert "canary" not in watched.service.log()  # pages cannot set headers, and write tokens there
    answered, refused, _ = watched.lines()
    assert (answered["route"], answered["status"]) == ("GET /Pair/1.0/stream", "Completed")
    assert (refused["route"], refused["status"], refused["code"]) == (
        "GET /Pair/1.0/stream",
        101,
        "invalid_request",
    )
    labels = {"http_route": "/Pair/1.0/stream", "http_response_status_code": "101"}
    assert watched.value("http_server_request_duration_seconds_count", **labels) == 3
