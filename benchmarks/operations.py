"""What is asked of the store by each thing that a service does, counted.

The service runs in this process, without its wire and with a model that answers at once. The counts are exact
and the same on every machine and every store: `docs/scale.md` holds them, and a test compares.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count as count_up
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import yaml
from httpx import ASGITransport, AsyncClient, Response
from msgspec import Struct

from benchmarks.figures import Figure
from benchmarks.measures import Scale
from tealagents.bootstrap import application
from tealagents.config import load
from tealagents.domain.models import Caller, Item, RequestRecord, User
from tealagents.domain.ports import Clock
from tealagents.engine.approvals import Command
from tealagents.state.new_message import Key, NewMessage
from tealagents.testing.counting import CountingStore, StoreOperation, counting_url
from tealagents.testing.service import agent_config

ADA = User("mock", "ada")
#: partitions of what a process does besides its requests: its lease with word from others, pending deletions
OF_THE_PROCESS = ("workers", "erasing")
#: how often is counted what the machine may add to
TRIES = 3
#: what is said over each protocol: the model answers only once its client waits for it, as real ones do
SAID = "deltas 1@20ms"
PLUGIN = """
from tealagents.plugins import Plugin, tool

class Work(Plugin):
    @tool
    async def look(self) -> str:
        "Look."
        return "nothing"

    @tool(requires_hitl=True)
    async def write(self) -> str:
        "Write."
        return "written"
"""


class Asked(Struct, frozen=True):
    """What was asked of a store."""

    reads: int = 0
    scans: int = 0
    commits: int = 0

    @property
    def total(self) -> int:
        return self.reads + self.scans + self.commits

    def __sub__(self, other: "Asked") -> "Asked":
        return Asked(self.reads - other.reads, self.scans - other.scans, self.commits - other.commits)

    @classmethod
    def of(cls, operations: Mapping[StoreOperation, int]) -> "Asked":
        named: Counter[str] = Counter()
        for operation, times in operations.items():
            if operation.partition not in OF_THE_PROCESS:
                named[operation.name] += times
        return cls(named["read"], named["scan"], named["commit"])


class InProcess:
    """A service without its wire, and the store it counts on."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.exchange = app.exchange
        self.store: CountingStore = self.exchange.service.records.store

    async def turn(
        self,
        text: str = "hello",
        task_id: str | None = None,
        *,
        user: User = ADA,
        key: Key | None = None,
        streamed: bool = False,
    ) -> RequestRecord:
        """A message and its answer."""
        message = NewMessage(items=(Item("text", text),), task_id=task_id)
        sent = await self.exchange.submit(Caller(user), message, key, streamed=streamed)
        request: RequestRecord = await self.exchange.outcome(sent)
        return request

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        """A client of the service's wire, as Ada, that needs no socket."""
        auth = {"authorization": "Bearer ada"}
        url = f"http://service{self.exchange.prefix}"
        async with AsyncClient(transport=ASGITransport(self.app), base_url=url, headers=auth) as client:
            yield client

    async def asked(self, work: Callable[[], Awaitable[object]]) -> Asked:
        """What `work` asks of the store for its requests."""
        before = self.store.operations.copy()
        await work()
        return Asked.of(self.store.operations - before)


@asynccontextmanager
async def in_process(
    folder: Path, store: str = "memory://", clock: Clock | None = None, **spec: Any
) -> AsyncIterator[InProcess]:
    """A service in this process on a store that counts."""
    (folder / "custom_plugins.py").write_text(PLUGIN)
    (folder / "config.yaml").write_text(
        yaml.safe_dump(
            agent_config(
                agent={"client": "benchmarks.echo:EchoModel", "plugins": ["Work"]},
                **spec,
            )
        )
    )
    env = {
        "TA_AUTH": "mock",
        "TA_API_KEY": "none",
        "TA_PERSISTENCE": counting_url(store),
        "TA_PLUGIN_MODULE": str(folder / "custom_plugins.py"),
        "TA_LOG_LEVEL": "ERROR",
    }
    app = application(load(folder / "config.yaml", env=env, dotenv=None), clock=clock)
    async with app.lifespan(app):
        yield InProcess(app)


# --- the protocols ----------------------------------------------------------------------------------


class Talk:
    """A conversation over a protocol: each turn continues the one before."""

    def __init__(self, client: AsyncClient, name: str = "") -> None:
        self._client = client
        self._name = name or f"thread {uuid4()}"
        #: what the client must send to continue
        self._known: Any = None

    async def _post(self, path: str, body: Any, **headers: str) -> Response:
        return (await self._client.post(path, json=body, headers=headers)).raise_for_status()


class Own(Talk):
    async def turn(self) -> None:
        body = {"items": [{"content_type": "text", "content": SAID}], "task_id": self._known}
        self._known = (await self._post("", body)).json()["task_id"]


class Conversation(Talk):
    async def turn(self) -> None:
        self._known = self._known or (await self._post("/openai/v1/conversations", {})).json()["id"]
        body = {"model": "Tester", "input": SAID, "conversation": self._known}
        await self._post("/openai/v1/responses", body)


class Chain(Talk):
    async def turn(self) -> None:
        body = {"model": "Tester", "input": SAID, "previous_response_id": self._known}
        self._known = (await self._post("/openai/v1/responses", body)).json()["id"]


class Chat(Talk):
    async def turn(self) -> None:
        said = [*(self._known or ()), {"role": "user", "content": SAID}]
        body = {"model": "Tester", "messages": said, "store": True}
        answer = (await self._post("/openai/v1/chat/completions", body)).json()["choices"][0]["message"]
        self._known = [*said, {"role": "assistant", "content": answer["content"]}]


class A2A(Talk):
    async def turn(self) -> None:
        message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": SAID}]}
        body = {"message": {**message, **(self._known or {})}}
        task = (await self._post("/a2a/message:send", body, **{"a2a-version": "1.0"})).json()["task"]
        self._known = {"contextId": task["contextId"]}


class AgUi(Talk):
    async def turn(self) -> None:
        said = [*(self._known or ()), {"id": str(uuid4()), "role": "user", "content": SAID}]
        body = {"threadId": self._name, "runId": str(uuid4()), "messages": said}
        lines = (await self._post("/ag-ui", body)).text.splitlines()
        events = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
        texts = [event for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"]
        text = "".join(event["delta"] for event in texts)
        self._known = [*said, {"id": texts[0]["messageId"], "role": "assistant", "content": text}]


class Mcp(Talk):
    async def turn(self) -> None:
        meta = {f"io.modelcontextprotocol/{name}": value for name, value in _OF_MCP.items()}
        params = {"name": "ask", "arguments": {"message": SAID, **(self._known or {})}, "_meta": meta}
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": _OF_MCP["protocolVersion"],
            "mcp-method": "tools/call",
            "mcp-name": "ask",
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        result = (await self._post("/mcp", body, **headers)).json()["result"]
        self._known = {"conversation": result["structuredContent"]["conversation"]}


_OF_MCP: dict[str, Any] = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}


# --- what is counted --------------------------------------------------------------------------------


async def count() -> dict[str, Asked]:
    """What each thing asks of the store, by the name that `docs/scale.md` has for it."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        store = f"sqlite:///{folder}/state.db"
        replica = await stack.enter_async_context(in_process(folder, store))
        other = await stack.enter_async_context(in_process(folder, store))
        here = await stack.enter_async_context(in_process(folder))
        found = {"a user's first message": await here.asked(here.turn)}
        found["first turn of a task"] = await here.asked(here.turn)
        task = (await here.turn()).task_id
        found["follow-up turn"] = await here.asked(lambda: here.turn(task_id=task))
        task = (await replica.turn()).task_id
        await other.turn()
        found["follow-up turn on another replica"] = await other.asked(lambda: other.turn(task_id=task))
        names = map(str, count_up())
        found["idempotency key, in addition"] = await _more(
            here, lambda: here.turn(key=Key(next(names), "digest"))
        )
        found["tool round, in addition"] = await _more(here, lambda: here.turn("call Work-look"))
        found["pause and approval, in addition"] = await _more(here, lambda: _pause_and_approve(here))
        # the first delta has been written behind when the second comes, with which the request ends
        two = "deltas 2@300ms"
        found["batch of deltas, in addition"] = await _more(here, lambda: here.turn(two, streamed=True))
        return found


async def count_protocols() -> dict[str, Asked]:
    """What a turn over each protocol asks of the store, by the name that `docs/scale.md` has for it."""
    protocols = ["openai", "a2a", "ag-ui", "mcp"]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        here = await stack.enter_async_context(in_process(folder, protocols=protocols))
        client = await stack.enter_async_context(here.client())
        turns: dict[str, Callable[[], Awaitable[object]]] = {
            "v1alpha1": Own(client).turn,
            "Responses, with `conversation`": Conversation(client).turn,
            "Responses, with `previous_response_id`": Chain(client).turn,
            "Chat Completions, with `store`": Chat(client).turn,
            "A2A": A2A(client).turn,
            "AG-UI": AgUi(client).turn,
            "MCP": Mcp(client).turn,
        }
        found = {}
        for name, turn in turns.items():
            await turn()
            await turn()
            found[name] = await here.asked(turn)
        found["A2A, first turn"] = await here.asked(A2A(client).turn)
        found["AG-UI, first turn"] = await here.asked(AgUi(client).turn)
        chosen = AgUi(client, str(uuid4()))
        found["AG-UI, first turn of a thread whose id is a UUID"] = await here.asked(chosen.turn)
        return found


async def _more(here: InProcess, work: Callable[[], Awaitable[object]]) -> Asked:
    """What `work` asks for beyond a plain turn.

    The least of some tries: where the machine holds this process up for longer than deltas and steps are
    gathered, there is a batch more.
    """
    tries = [await here.asked(work) for _ in range(TRIES)]
    return min(tries, key=lambda asked: asked.total) - await here.asked(here.turn)


async def _pause_and_approve(here: InProcess) -> None:
    paused = await here.turn("call Work-write")
    command = Command(action="approve")
    view = await here.exchange.decide(Caller(ADA), paused.request_id, command, streamed=False)
    await here.exchange.outcome(view)


async def operations(scale: Scale) -> list[Figure]:
    """The counts as figures: commits, with reads and scans beside them."""
    return [
        Figure(
            measure="operations",
            name=name,
            unit=f"commits, {asked.reads} reads, {asked.scans} scans",
            ours=asked.commits,
        )
        for name, asked in (await count() | await count_protocols()).items()
    ]
