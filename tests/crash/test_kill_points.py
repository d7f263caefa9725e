"""`kill -9` after every await of a turn on its store, its model and its tools.

A first process goes through a scenario and notes the points that it passes. Then one process for each point
dies there. Another one on the same store shows what is left: what was acknowledged is there, nothing is there
twice, no tool has run twice, and the task continues, knowing what tools may have done.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from tealagents.llm.offline import OfflineModel
from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.history import events_of, everything, reader
from tealagents.testing.killing import killing_url
from tealagents.testing.pytest_stores import DURABLE, LOCAL, Place
from tealagents.testing.service import agent_config

sys.path.append(str(Path(__file__).parents[1] / "api"))

from wire import lapsed

Json = dict[str, Any]
T = TypeVar("T")

#: what is done at a time
LANES = 3
#: of the points of a scenario, every so manieth is a test; with `THOROUGH=1`, as in CI, every single one
STRIDE = 1 if os.environ.get("THOROUGH") == "1" else 8
#: seconds within which the outcome of a request must be known, on a busy machine
KNOWN_WITHIN = 60.0

PLUGINS = '''
import asyncio
import os

from tealagents.plugins import Plugin, ToolContext, tool
from tealagents.testing.killing import passed


async def effect(context: ToolContext, what: str) -> str:
    """Something that is done to the world, once."""
    await asyncio.sleep(0.12)  # the stream's log is written by then
    with open(os.environ["TOOL_LOG"], "a") as log:
        log.write(f"{context.user_id} {what}\\\\n")
    passed("tool")
    return f"{what} is done"


class Shell(Plugin):
    @tool
    async def touch(self, context: ToolContext, path: str) -> str:
        """Touch a file."""
        return await effect(context, "touch")

    @tool
    async def delete(self, context: ToolContext, path: str) -> str:
        """Delete a file."""
        return await effect(context, "delete")
'''

CATALOGUE = {
    "plugins": [
        {
            "plugin_id": "shell",
            "name": "Shell",
            "description": "Files",
            "version": "1",
            "owner": "tests",
            "plugin_type": {"type_name": "code"},
            "tools": [
                {
                    "tool_id": f"Shell-{name}",
                    "name": name,
                    "description": name,
                    "governance": {
                        "requires_hitl": name == "delete",
                        "cost": "low",
                        "data_sensitivity": "public",
                    },
                    "auth": None,
                }
                for name in ("touch", "delete")
            ],
        }
    ]
}


@dataclass
class Seen:
    """What a client had been answered before the process died."""

    #: message → the answer
    texts: dict[str, str] = field(default_factory=dict)
    #: a pause that was shown: its request
    paused: str | None = None
    #: a decision that was answered
    resumed: bool = False
    #: the highest id of an event that was seen, of which request
    last: tuple[str, int] | None = None


Scenario = Callable[["World", ForkedService, str, Seen], Awaitable[None]]


async def talk(world: "World", service: ForkedService, user: str, seen: Seen) -> None:
    """A first message; then one that calls a tool, taken as a stream."""
    async with service.async_client(user) as client:
        first = (await client.post("", json=text("My name is Ada."))).raise_for_status().json()
        seen.texts["My name is Ada."] = first["content"]["output"]
        await streamed(client, 'call Shell-touch {"path": "a"}', first["task_id"], seen)


async def streamed(client: httpx.AsyncClient, words: str, task_id: str, seen: Seen) -> None:
    async with client.stream("POST", "/sse", json=text(words, task_id=task_id)) as response:
        async for event in events_of(response):
            seen.last = (event.data["request_id"], event.id)
            if event.name == "final-response":
                seen.texts[words] = event.data["content"]["output"]


async def decide(world: "World", service: ForkedService, user: str, seen: Seen) -> None:
    """A message whose tool call must be approved, and the approval."""
    async with service.async_client(user) as client:
        words = 'call Shell-delete {"path": "a"}'
        pause = (await client.post("", json=text(words))).raise_for_status().json()
        assert pause["status"] == "Paused"
        seen.paused = pause["request_id"]
        answer = (await client.post(f"/requests/{seen.paused}/resume", json={"action": "approve"})).json()
        seen.texts[words] = answer["content"]["output"]


@pytest.mark.parametrize("scenario", [talk, decide])
@pytest.mark.parametrize("place", LOCAL, indirect=True)
async def test_killed_after_any_await(
    place: Place, scenario: Scenario, nursery: Nursery, tmp_path: Path
) -> None:
    """Wherever a process dies, nothing acknowledged is lost, nothing done twice.

    covers: FLOW-1, STATE-3, HITL-1
    """
    await kill_everywhere(place, scenario, nursery, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", [talk, decide])
@pytest.mark.parametrize("place", sorted(set(DURABLE) - set(LOCAL)), indirect=True)
async def test_killed_after_any_await_on_a_server(
    place: Place, scenario: Scenario, nursery: Nursery, tmp_path: Path
) -> None:
    """The same with stores that are servers. covers: STATE-3, HITL-1"""
    await kill_everywhere(place, scenario, nursery, tmp_path)


async def kill_everywhere(place: Place, scenario: Scenario, nursery: Nursery, folder: Path) -> None:
    with OfflineModel() as model:
        world = World(place, nursery, model, folder)
        points = await world.points_of(scenario)
        assert len(points) > 12
        points = points[len(place.name) % STRIDE :: STRIDE]
        seen = await in_lanes(world.killed_at(point, scenario, f"user-{n}") for n, point in enumerate(points))
        await lapsed(place.url)
        async with entered(world.marker()) as marker:
            await in_lanes(world.look(point, f"user-{n}", seen[n], marker) for n, point in enumerate(points))
    print(f"\n{place.name}, {scenario.__name__}: killed at {len(points)} points")


async def in_lanes(work: Iterable[Awaitable[T]]) -> list[T]:
    """Does all of it, a few at a time."""
    lanes = asyncio.Semaphore(LANES)

    async def one(each: Awaitable[T]) -> T:
        async with lanes:
            return await each

    return await asyncio.gather(*map(one, work))


class World:
    """A store, a model service, tools whose effects are noted, and processes that come and go."""

    def __init__(self, place: Place, nursery: Nursery, model: OfflineModel, folder: Path) -> None:
        self._nursery = nursery
        self._place = place
        self._model = model
        self._effects = folder / "effects"
        self._effects.touch()
        (folder / "plugins.py").write_text(PLUGINS.replace("\\\\", "\\"))
        (folder / "catalogue.json").write_text(json.dumps(CATALOGUE))
        self._folder = folder
        #: the points at which nothing need be stored yet
        self._before_the_model: list[str] = []
        self._config = agent_config(
            agent={"client": "tealagents.testing.killing:KillingModel", "plugins": ["Shell"]},
        )
        self._env = {
            **place.env,
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_PLUGIN_MODULE": str(folder / "plugins.py"),
            "TA_PLUGIN_CATALOG_FILE": str(folder / "catalogue.json"),
            "TOOL_LOG": str(self._effects),
        }

    def marker(self) -> ForkedService:
        return self._nursery.service(self._config, self._env)

    def mortal(self, **more: str) -> ForkedService:
        url = killing_url(self._place.url)
        return self._nursery.service(self._config, {**self._env, "TA_PERSISTENCE": url, **more})

    async def points_of(self, scenario: Scenario) -> list[str]:
        """The points that a process passes that lives."""
        log = self._folder / f"points-{scenario.__name__}"
        async with entered(self.mortal(KILL_LOG=str(log))) as service:
            await scenario(self, service, "recorder", Seen())
        points = log.read_text().splitlines()
        self._before_the_model = points[: points.index("model asked 1")]
        return points

    async def killed_at(self, point: str, scenario: Scenario, user: str) -> Seen:
        """What a client was answered by a process that died at `point`."""
        seen = Seen()
        async with entered(self.mortal(KILL_AT=point)) as service:
            with suppress(httpx.TransportError):
                await scenario(self, service, user, seen)
            deadline = time.monotonic() + 60
            while service.process.poll() is None and time.monotonic() < deadline:
                await asyncio.sleep(0.02)  # its last point may come after its answer
            later = point.startswith("commit events ") and point != "commit events 1"
            if later and service.process.poll() is None:
                return seen  # at another pace, the same events take fewer commits
            assert service.process.poll() == -9, f"{point} was not reached\n{service.log()}"
        return seen

    async def look(self, point: str, user: str, seen: Seen, marker: ForkedService) -> None:
        """What is left, and that it continues."""
        async with marker.async_client(user) as client:
            await self._look(point, user, seen, client)

    async def _look(self, point: str, user: str, seen: Seen, client: httpx.AsyncClient) -> None:
        read = reader(client, "")
        tasks = await everything(read, "/tasks")
        assert len(tasks) <= 1, f"{point}: {tasks}"
        if not tasks:
            assert seen == Seen(), f"{point}: the task is lost that {seen} speaks of"
            assert point in self._before_the_model, f"{point}: the model was asked, and nothing was stored"
            return
        task_id = tasks[0]["task_id"]
        task = await ended(client, task_id, point)
        if task["status"] == "Paused":
            await self._approve(point, user, task, seen, client)
        requests = await self._requests(point, client, task_id, seen)
        await self._go_on(point, user, client, task_id, requests)
        assert self._effects_of(user) <= 1, f"{point}: a tool ran twice"

    async def _approve(
        self, point: str, user: str, task: Json, seen: Seen, client: httpx.AsyncClient
    ) -> None:
        """The pause has survived, and nothing of it has run."""
        assert self._effects_of(user) == 0, f"{point}: {task}"
        pauses = await everything(reader(client, ""), "/approvals")
        assert len(pauses) == 1, f"{point}: {pauses}"
        seen.paused = pauses[0]["request_id"]
        answer = await client.post(f"/requests/{seen.paused}/resume", json={"action": "approve"})
        assert answer.status_code == 200, f"{point}: {answer.text}"
        assert self._effects_of(user) == 1

    async def _requests(self, point: str, client: httpx.AsyncClient, task_id: str, seen: Seen) -> list[Json]:
        """Every request is there once and has ended; what was answered is there as it was answered."""
        read = reader(client, "")
        messages = await everything(read, f"/tasks/{task_id}/messages")
        asked = Counter(words_of(message) for message in messages if message["role"] == "user")
        assert all(count == 1 for count in asked.values()), f"{point}: {asked}"
        requests = [
            await read(f"/requests/{name}") for name in dict.fromkeys(m["request_id"] for m in messages)
        ]
        for request in requests:
            mine = [message for message in messages if message["request_id"] == request["request_id"]]
            answer = words_of(mine[-1])
            answered = seen.texts.get(words_of(mine[0]))
            if answered is not None or request["status"] == "Completed":
                assert request["status"] == "Completed", f"{point}: {request}"
                assert request["content"]["output"] == answer == (answered or answer), f"{point}: {mine}"
            else:
                assert request["status"] == "Failed", f"{point}: {request}"
                assert request["error"]["code"] == "interrupted", f"{point}: {request}"
            await replays(point, client, request, seen)
        assert set(seen.texts) <= set(asked), f"{point}: {seen} and {asked}"
        return requests

    async def _go_on(
        self, point: str, user: str, client: httpx.AsyncClient, task_id: str, requests: list[Json]
    ) -> None:
        """The task takes the next message, and the model learns what tools of dead requests did."""
        words = f"And now, {user}?"
        answer = await client.post("", json=text(words, task_id=task_id))
        assert answer.status_code == 200, f"{point}: {answer.text}"
        sent = [
            request["body"]["messages"]
            for request in self._model.requests
            if request["body"]["messages"][-1]["content"] == words
        ]
        assert len(sent) == 1, f"{point}: {sent}"
        notes = " ".join(m["content"] for m in sent[0] if m["role"] == "system")
        audit = await everything(reader(client, ""), f"/tasks/{task_id}/audit")
        failed = {request["request_id"] for request in requests if request["status"] == "Failed"}
        actions = {entry["action"] for entry in audit if entry["request_id"] in failed}
        if "tool.called" in actions:
            assert "it was done" in notes, f"{point}: {notes}"
            messages = await everything(reader(client, ""), f"/tasks/{task_id}/messages")
            results = [m for m in messages if m["role"] == "tool" and m["request_id"] in failed]
            assert len(results) == 1, f"{point}: {messages}"
        elif "tool.intent" in actions:
            assert "its outcome is unknown" in notes, f"{point}: {notes}"
            trace = await everything(reader(client, ""), f"/tasks/{task_id}/trace")
            assert "unknown" in {step["outcome"] for step in trace if step["kind"] == "tool"}, (
                f"{point}: {trace}"
            )
        else:
            assert "Shell" not in notes, f"{point}: {notes}"
            if failed:
                assert self._effects_of(user) == 0, f"{point}: a tool ran without an intent"

    def _effects_of(self, user: str) -> int:
        return sum(line.split()[0] == user for line in self._effects.read_text().splitlines())


@asynccontextmanager
async def entered(service: ForkedService) -> AsyncIterator[ForkedService]:
    """The service runs, started and ended beside the event loop."""
    await asyncio.to_thread(service.__enter__)
    try:
        yield service
    finally:
        await asyncio.to_thread(service.__exit__, None, None, None)


async def ended(client: httpx.AsyncClient, task_id: str, point: str) -> Json:
    """The task once nothing runs on it any more."""
    deadline = time.monotonic() + KNOWN_WITHIN
    while True:
        task: Json = (await client.get(f"/tasks/{task_id}")).raise_for_status().json()
        if task["status"] != "Running":
            return task
        assert time.monotonic() < deadline, f"{point}: {task}"
        await asyncio.sleep(0.1)


async def replays(point: str, client: httpx.AsyncClient, request: Json, seen: Seen) -> None:
    """The request's log replays to its end, and its last event comes behind all that were seen."""
    async with client.stream("GET", f"/requests/{request['request_id']}/events") as response:
        heard = [event async for event in events_of(response)]
    numbers = [event.id for event in heard]
    assert numbers == sorted(set(numbers)), f"{point}: {numbers}"
    assert heard[-1].name == ("final-response" if request["status"] == "Completed" else "error"), f"{point}"
    if seen.last is not None and seen.last[0] == request["request_id"] and request["status"] == "Failed":
        assert heard[-1].id > seen.last[1], f"{point}: {numbers} after {seen.last}"


def text(words: str, **fields: object) -> Json:
    return {"items": [{"content_type": "text", "content": words}], **fields}


def words_of(message: Json) -> str:
    return "".join(item["content"] for item in message["items"])
