"""What the tests of pauses, tools and streams share: an agent with tools, and short ways to talk to it."""

import asyncio
import gc
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
from wire import Event, Json, text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.service import ServiceThread, agent_config, offline_service

T = TypeVar("T")

PLUGINS = Path(__file__).parent / "working" / "custom_plugins.py"
AGENT = {"plugins": ["Work"]}


@contextmanager
def working_service(
    script: Any = None, env: Mapping[str, str] | None = None, **spec: Any
) -> Iterator[tuple[ServiceThread, OfflineModel]]:
    """A service whose agent has the tools of `working/custom_plugins.py`."""
    spec.setdefault("agent", AGENT)
    with offline_service(script, {"TA_PLUGIN_MODULE": str(PLUGINS), **(env or {})}, **spec) as pair:
        yield pair


@contextmanager
def working_process(
    nursery: Nursery, store: Path, model: OfflineModel, **spec: Any
) -> Iterator[ForkedService]:
    """A service process whose agent has these tools, on an SQLite store."""
    env = {
        "TA_AUTH": "mock",
        "TA_BASE_URL": model.base_url,
        "TA_API_KEY": "offline-key",
        "TA_PERSISTENCE": f"sqlite:///{store}",
        "TA_PLUGIN_MODULE": str(PLUGINS),
    }
    with nursery.service(agent_config(**{"agent": AGENT, **spec}), env) as service:
        yield service


@contextmanager
def left_to_collector() -> Iterator[Callable[[], set[str]]]:
    """The classes of objects of this project, used from here, that only the garbage collector frees."""

    def own() -> set[str]:
        gc.collect()
        return {
            type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("tealagents.")
        }

    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield own
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def call(tool: str, **arguments: Any) -> str:
    """The words that make the offline model call a tool."""
    return f"call {tool} {json.dumps(arguments)}"


def send(client: httpx.Client, words: str, **fields: Any) -> Json:
    """The answer to a message."""
    answer: Json = client.post("", json=text(words, **fields)).raise_for_status().json()
    return answer


def begin(client: httpx.Client, words: str, **fields: Any) -> Json:
    """What is accepted: a message that is left to run in the background."""
    answer = client.post("", json=text(words, **fields), headers={"prefer": "respond-async"})
    assert answer.status_code == 202, answer.text
    accepted: Json = answer.json()
    return accepted


def cancel(client: httpx.Client, accepted: Json) -> Json:
    answer: Json = client.post(f"/requests/{accepted['request_id']}/cancel").raise_for_status().json()
    return answer


def paused(client: httpx.Client, words: str, **fields: Any) -> Json:
    """The `content` of an answer that must be a pause."""
    answer = send(client, words, **fields)
    assert answer["status"] == "Paused", answer
    content: Json = answer["content"]
    return content


def decide(client: httpx.Client, pause: Json, *, bare: bool = False, **decision: Any) -> httpx.Response:
    """What a decision on a pause is answered with; `bare` leaves its `approval_id` out."""
    query = "" if bare else f"?approval_id={pause['approval_id']}"
    return client.post(f"/requests/{pause['request_id']}/resume{query}", json=decision)


def approve(client: httpx.Client, pause: Json) -> Json:
    """The answer to an approval."""
    answer: Json = decide(client, pause, action="approve").raise_for_status().json()
    return answer


def items(client: httpx.Client, path: str, **query: Any) -> list[Json]:
    """The items of the first page of a list."""
    found: list[Json] = client.get(path, params=query).raise_for_status().json()["items"]
    return found


def request(client: httpx.Client, request_id: str) -> Json:
    found: Json = client.get(f"/requests/{request_id}").raise_for_status().json()
    return found


def lines(file: Path) -> list[str]:
    """What tools have written into a file."""
    return file.read_text().splitlines() if file.exists() else []


def numbers(events: list[Event]) -> list[int | None]:
    return [event.number for event in events]


def streamed_text(events: list[Event]) -> str:
    """The text that a stream's pieces make."""
    return "".join(event.data["output_partial"] for event in events if event.name == "partial-response")


def in_service(service: ServiceThread, work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that runs in the event loop of the service."""
    loop = service.app.exchange.service.tasks.lease._task.get_loop()
    return asyncio.run_coroutine_threadsafe(work, loop).result(30)


def connections(service: ServiceThread) -> int:
    """How many connections the service has open."""
    assert service._server is not None
    return len(service._server.server_state.connections)
