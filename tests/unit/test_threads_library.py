"""The library: an agent and its threads, without the service."""

import asyncio
import base64
import json
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from earlier_agents import AGENT, CHAT, SEQUENTIAL, TYPES, write
from llm_setup import RawConnection, RawService, sse
from msgspec.structs import replace
from threads_setup import exchange, said, tool_round

from tealagents import Agent
from tealagents.agent import Update
from tealagents.agent.opening import LoopLock
from tealagents.config import ConfigError
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import (
    CorruptState,
    InvalidRequest,
    ModelFailed,
    NotFound,
    RemoteThreadLost,
    RequestTimeout,
    TaskBusy,
)
from tealagents.domain.models import Item, Message, ToolCall
from tealagents.llm.credentials import AzureCredential
from tealagents.llm.offline import OfflineModel
from tealagents.registry import import_from
from tealagents.stores import StoreConfigError, open_store
from tealagents.stores.memory import MemoryStore
from tealagents.testing.service import agent_config
from tealagents.testing.waits import eventually
from tealagents.threads import (
    AgentThread,
    Context,
    ContextProvider,
    FileMessages,
    Invocation,
    LocalThread,
    NotForkable,
    Part,
    ProviderOptions,
    RemoteThread,
    RemoteUnsupported,
    ThreadDeleted,
    ThreadMismatch,
    ThreadStore,
    Upcoming,
    WorkflowThread,
)
from tealagents.threads.errors import ThreadConfigError
from tealagents.threads.message_stores import MemoryMessages
from tealagents.threads.reducers import TokenBudget, TokenBudgetOptions
from tealagents.threads.summaries import Summarize, SummarizeOptions
from tealagents.tools import ToolsetError

PLUGINS = '''
from tealagents.domain.errors import NeedsAuthorization
from tealagents.plugins import Plugin, ToolContext, tool


class Shell(Plugin):
    @tool
    async def look(self, context: ToolContext, path: str) -> str:
        """Look at one file."""
        context.add_extra_data("user", context.user_id)
        return f"{path} is empty"

    @tool(requires_hitl=True)
    async def delete(self, path: str) -> str:
        """Delete one file."""
        return f"deleted {path}"

    @tool
    async def mail(self, to: str) -> str:
        """Send one mail."""
        raise NeedsAuthorization("mail", f"https://{to}.example/consent")


class Fragile(Plugin):
    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        raise ConnectionError("the pool is gone")

    @tool
    async def use(self) -> str:
        """Use it."""
'''

MakeAgent = Callable[..., Agent]


@pytest.fixture
async def service() -> AsyncIterator[OfflineModel]:
    async with OfflineModel() as running:
        yield running


@pytest.fixture
def make(service: OfflineModel, tmp_path: Path) -> MakeAgent:
    """Makes the agent of a config; keywords of the agent are passed on, others go into the config."""
    (tmp_path / "custom_plugins.py").write_text(PLUGINS)
    env = {"TA_BASE_URL": service.base_url, "TA_API_KEY": "key"}

    def make(**options: Any) -> Agent:
        own = {
            name: options.pop(name)
            for name in ("approve", "message_stores", "reducers", "context_providers", "user")
            if name in options
        }
        path = tmp_path / "config.yaml"
        secrets = options.pop("secrets", {})
        path.write_text(yaml.safe_dump(agent_config(**options)))
        return Agent.from_config(path, env=env | secrets, dotenv=None, **own)

    return make


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


# --- running --------------------------------------------------------------------------------------


async def test_an_agent_remembers_its_thread(make: MakeAgent) -> None:
    """The caller sends and receives only what is new. covers: THREAD-4"""
    async with make() as agent:
        thread = agent.new_thread()
        first = await agent.run("My name is Ada.", thread)
        assert first.text == "Nice to meet you, Ada."
        assert texts(first.messages) == [first.text]
        assert first.usage.total_tokens > 0
        answer = await agent.run("What is my name?", thread)
        assert answer.text == "Your name is Ada."
        assert answer.request_id != first.request_id
        assert texts(thread.messages) == ["My name is Ada.", first.text, "What is my name?", answer.text]
        assert (await agent.run("What is my name?")).text == "You have not told me your name."


async def test_an_answer_can_be_followed(make: MakeAgent) -> None:
    """Delta by delta; the answer itself is there at the end."""
    async with make() as agent:
        thread = agent.new_thread()
        stream = agent.run_stream("My name is Ada.", thread)
        with pytest.raises(RuntimeError, match="when the stream has been read to its end"):
            _ = stream.answer
        pieces = [piece.text async for piece in stream]
        assert len(pieces) > 1
        assert stream.answer.text == "".join(pieces) == "Nice to meet you, Ada."
        assert len(thread.messages) == 2


async def test_who_leaves_before_the_end_has_not_asked(make: MakeAgent) -> None:
    """The thread stays as it was, and free."""
    async with make() as agent:
        thread = agent.new_thread()
        async with agent.run_stream("pieces-50", thread) as stream:
            async for _ in stream:
                break
        assert thread.messages == []
        await agent.run("hello", thread)


async def test_an_argument_that_is_none_is_named(make: MakeAgent, tmp_path: Path) -> None:
    """An id in a thread's place, text in that of a mapping or a list, and nothing in that of a text."""
    agent: Any = make()
    thread: Any = agent.new_thread()
    nothing: Any = None
    number: Any = 3
    with pytest.raises(InvalidRequest, match=r"thread: must be a thread, as agent\.new_thread\(\) makes one"):
        await agent.run("hi", thread.thread_id)
    with pytest.raises(InvalidRequest, match="user_context: must be a mapping, not str"):
        await agent.run("hi", thread, user_context="sunny")
    await agent.run("hi", thread)
    with pytest.raises(InvalidRequest, match="text: must be text, not NoneType"):
        await thread.edit(thread.messages[0].message_id, None)
    with pytest.raises(InvalidRequest, match="messages: must be a list of Message, not of str"):
        agent.get_local_thread(["hello"])
    with pytest.raises(InvalidRequest, match="text: must be what `to_json` returned, not dict"):
        agent.open_thread(thread.document())
    with pytest.raises(InvalidRequest, match="thread_id: must be the id of a thread, not NoneType"):
        await ThreadStore(MemoryStore(), "Tester").load(nothing)
    with pytest.raises(InvalidRequest, match="remote_id: must be the id of a conversation, not int"):
        RemoteThread(number)
    with pytest.raises(InvalidRequest, match=r"next_steps: must be a list of steps, such as \['draft'\]"):
        WorkflowThread("draft")
    for wrong in (ContextProvider, [ContextProvider]):
        with pytest.raises(ThreadConfigError, match="is an object whose class extends ContextProvider"):
            make(context_providers=wrong)
    (tmp_path / ".env").write_text("TA_API_KEY=from the file")
    agent = Agent.from_config(tmp_path / "config.yaml", env={}, dotenv=str(tmp_path / ".env"))
    assert agent.config.api_key.get_secret_value() == "from the file"


def test_an_option_of_another_kind_is_named(make: MakeAgent, tmp_path: Path) -> None:
    """When the agent is made, not by a `TypeError` of the first message that needs it."""

    async def kept(parts: Any, upcoming: Any) -> AsyncIterator[Any]:
        async for part in parts:
            yield part

    given: Any
    for given in ({"approve": True}, {"message_stores": MemoryMessages()}):
        [(option, value)] = given.items()
        with pytest.raises(InvalidRequest, match=f"{option}: must be a function, not {type(value).__name__}"):
            make(**given)
    given = {"approve": lambda: True}
    with pytest.raises(InvalidRequest, match=r"approve: must take the call; this one takes \(\)"):
        make(**given)
    given = {"message_stores": lambda key: MemoryMessages()}
    with pytest.raises(
        InvalidRequest, match=r"message_stores: must take no arguments; this one takes \(key\)"
    ):
        make(**given)
    with pytest.raises(ThreadConfigError, match="reducers must be a list of reducers, not a function"):
        make(reducers=kept)
    make()
    given = {"TA_LOG_LEVEL": 1}
    with pytest.raises(InvalidRequest, match="env: TA_LOG_LEVEL must be text, not int"):
        Agent.from_config(tmp_path / "config.yaml", env=given, dotenv=None)
    for given in ({"path": {}}, {"path": "config.yaml", "dotenv": True}):
        with pytest.raises(InvalidRequest, match=r"(path|dotenv): must be the path of a file, not"):
            Agent.from_config(**given)
    given = "TA_LOG_LEVEL=INFO"
    with pytest.raises(InvalidRequest, match="env: must be a mapping, not str"):
        Agent.from_config(tmp_path / "config.yaml", env=given)
    given = "config.yaml"
    with pytest.raises(InvalidRequest, match=r"config: .* not str: use Agent\.from_config\(path\)"):
        Agent(given)


async def test_an_agent_needs_no_context_manager(make: MakeAgent) -> None:
    """Then each call opens and closes what it needs, without a warning."""
    agent = make()
    thread = agent.new_thread()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await agent.run("My name is Ada.", thread)
        pieces = [piece.text async for piece in agent.run_stream("What is my name?", thread)]
    assert "".join(pieces) == "Your name is Ada."


async def test_the_file_of_plugins_is_executed_once_for_an_agent(make: MakeAgent, tmp_path: Path) -> None:
    """What it holds outlasts a call that opens the agent for itself; the next agent has its own."""
    (tmp_path / "custom_plugins.py").write_text(
        "from tealagents.plugins import Plugin, tool\n\n"
        "PATHS = []\n\n"
        "class Shell(Plugin):\n"
        "    @tool\n"
        "    async def look(self, path: str) -> int:\n"
        "        PATHS.append(path)\n"
        "        return len(PATHS)\n"
    )
    agent = make(agent={"plugins": ["Shell"]})
    message = 'call Shell-look {"path": "/a"}'
    assert [(await agent.run(message)).text for _ in range(2)] == ["Shell-look said: 1", "Shell-look said: 2"]
    async with agent:
        assert (await agent.run(message)).text == "Shell-look said: 3"
    other = make(agent={"plugins": ["Shell"]})
    assert (await other.run(message)).text == "Shell-look said: 1"


async def test_of_the_earlier_platform_a_conversation_is_taken_and_no_sequence(
    service: OfflineModel, tmp_path: Path
) -> None:
    """Tasks and typed answers are the service's: without them the answer would be another one."""
    env = {"TA_BASE_URL": service.base_url, "TA_API_KEY": "key"}
    for text in (CHAT, AGENT):
        agent = Agent.from_config(write(tmp_path, text), env=env, dotenv=None)
        assert (await agent.run("hello")).text
    typed = CHAT + "output_type: Report\n"
    for text, key in ((SEQUENTIAL, "spec.tasks"), (typed, "output_type")):
        file = write(tmp_path, text, custom_types=TYPES)
        with pytest.raises(ConfigError, match=rf"yaml:\d+: {key}: .*tealagents serve"):
            Agent.from_config(file, env=env, dotenv=None)


async def test_what_fails_to_close_does_not_take_the_answer_away(
    make: MakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread has it, and its tools have run: a second try would run them again."""
    agent = make(agent={"plugins": ["Shell", "Fragile"]})
    thread = agent.new_thread()
    answer = await agent.run('call Shell-look {"path": "/x"}', thread)
    assert answer.text == "Shell-look said: /x is empty"
    assert len(thread.messages) == 4
    assert "the pool is gone" in caplog.text


async def test_what_fails_to_close_takes_the_place_of_no_error(
    make: MakeAgent, service: OfflineModel
) -> None:
    """What the request failed with says what to do; a stream that is left early ends without one."""
    agent = make(agent={"plugins": ["Fragile"]})
    async with agent.run_stream("pieces-5") as stream:
        await anext(stream)
    service.script({"rules": [{"reply": {"error": {"status": 400, "message": "no"}}}]})
    with pytest.raises(ModelFailed):
        await agent.run("hello")


async def test_a_failed_request_leaves_the_thread_as_it_was(make: MakeAgent, service: OfflineModel) -> None:
    """Nothing is added, nothing is lost. covers: THREAD-6"""
    async with make() as agent:
        thread = agent.new_thread()
        await agent.run("My name is Ada.", thread)
        before = thread.to_json()
        service.script({"rules": [{"reply": {"error": {"status": 400, "message": "no"}}}]})
        with pytest.raises(ModelFailed):
            await agent.run("What is my name?", thread)
        assert thread.to_json() == before


async def test_a_thread_has_one_writer(make: MakeAgent, service: OfflineModel) -> None:
    """A second message while the first is answered is refused; on another thread it is not."""
    async with make() as agent:
        thread = agent.new_thread()
        stream = agent.run_stream("pieces-3", thread)
        await anext(stream)
        with pytest.raises(TaskBusy):
            await agent.run("hello", thread)
        with pytest.raises(TaskBusy):
            thread.rewind()
        with pytest.raises(TaskBusy):
            await thread.delete()
        await agent.run("hello", agent.new_thread())
        async for _ in stream:
            pass
        await agent.run("hello", thread)


async def test_tools_are_called(make: MakeAgent) -> None:
    """As in the service, and reported as they are; what a tool adds is with the answer."""
    async with make(agent={"plugins": ["Shell"]}, user="ada") as agent:
        thread = agent.new_thread()
        updates = []
        stream = agent.run_stream('call Shell-look {"path": "/x"}', thread)
        async for update in stream:
            updates.append(update)
        assert stream.answer.text == "Shell-look said: /x is empty"
        assert [u for u in updates if u.tool_call] == [
            Update(tool_call=updates[0].tool_call),
            Update(tool_call=updates[0].tool_call, tool_result="/x is empty"),
        ]
        assert [message.role for message in stream.answer.messages] == ["assistant", "tool", "assistant"]
        assert stream.answer.extra_data == {"user": "ada"}
        assert [step.kind for step in stream.answer.steps] == ["model", "tool", "model"]


@pytest.mark.parametrize("approves", [None, False, True])
async def test_a_governed_call_is_asked_about(make: MakeAgent, approves: bool | None) -> None:
    """The approver decides; without one the call is not made, and the model gets that as the result."""
    asked: list[ToolCall] = []

    async def approve(call: ToolCall) -> bool:
        asked.append(call)
        return bool(approves)

    options = {} if approves is None else {"approve": approve}
    async with make(agent={"plugins": ["Shell"]}, **options) as agent:
        thread = agent.new_thread()
        answer = await agent.run(
            'call Shell-delete {"path": "/x"} and call Shell-look {"path": "/y"}', thread
        )
    result = "Shell-delete said: deleted /x" if approves else "Shell-delete said: The call was not approved"
    assert result in answer.text
    assert "Shell-look said: /y is empty" in answer.text
    assert [call.tool for call in asked] == ([] if approves is None else ["Shell-delete"])
    asked_for, *results, _ = answer.messages
    assert {call.id for call in asked_for.tool_calls} == {each.tool_call_id for each in results}


@pytest.mark.parametrize("answer", ["reject", "no", 1])
async def test_only_true_approves(make: MakeAgent, answer: Any) -> None:
    """Whatever else an approver returns does not: the words of the service are truthy, too."""
    async with make(agent={"plugins": ["Shell"]}, approve=lambda call: answer) as agent:
        said = await agent.run('call Shell-delete {"path": "/x"}')
    assert "The call was not approved" in said.text


async def test_a_stream_shows_an_approved_call_before_its_result(make: MakeAgent) -> None:
    """As it shows any other; one that was not approved is not made, and not shown."""
    wanted = " and ".join(f'call Shell-delete {{"path": "/{name}"}}' for name in "xy")
    async with make(agent={"plugins": ["Shell"]}, approve=lambda call: "/x" in call.arguments) as agent:
        updates = [update async for update in agent.run_stream(wanted)]
    shown = [(u.tool_call and u.tool_call.arguments, u.tool_result) for u in updates if not u.text]
    assert shown == [('{"path": "/x"}', None), ('{"path": "/x"}', "deleted /x")]


async def test_consent_to_one_call_is_no_answer_to_another(make: MakeAgent) -> None:
    """Of a round that waits for both, the governed call is asked about, and each other has its own URL."""
    asked: list[str] = []

    def approve(call: ToolCall) -> bool:
        asked.append(call.tool)
        return True

    mails = " and ".join(f'call Shell-mail {{"to": "{to}"}}' for to in ("ada", "eve"))
    async with make(agent={"plugins": ["Shell"]}, approve=approve) as agent:
        answer = await agent.run(f'call Shell-delete {{"path": "/x"}} and {mails}')
    assert asked == ["Shell-delete"]
    assert "Shell-delete said: deleted /x" in answer.text
    results = [each.text for each in answer.messages if each.tool == "Shell-mail"]
    assert [text.partition("can at ")[2].partition(" ")[0] for text in results] == [
        "https://ada.example/consent.",
        "https://eve.example/consent.",
    ]


async def test_the_model_is_told_that_a_call_had_begun(make: MakeAgent) -> None:
    """It would repeat what it believes was not made; the step says the same."""
    async with make(agent={"plugins": ["Shell"]}) as agent:
        answer = await agent.run('call Shell-mail {"to": "ada"}')
    assert answer.messages[1].text == (
        "The user has not authorized this yet; they can at https://ada.example/consent. "
        "The call had begun, and its outcome is unknown."
    )
    assert [step.outcome for step in answer.steps if step.kind == "tool"] == ["unknown"]


class Thinker(ContextProvider):
    """Never comes to an end."""

    async def invoking(self, invocation: Invocation) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("slow", ["provider", "model"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_request_has_a_time_limit(
    make: MakeAgent, service: OfflineModel, slow: str, streamed: bool
) -> None:
    """The thread is as it was, and free."""
    service.script({"otherwise": {"text": "late", "headers_delay_ms": 120_000 if slow == "model" else 0}})
    providers = Thinker(ProviderOptions(timeout_seconds=120)) if slow == "provider" else None
    limits = {"request_timeout_seconds": 0.2}
    async with make(limits=limits, context_providers=providers) as agent:
        thread = agent.new_thread()
        before = thread.to_json()
        updates = agent.run_stream("hello", thread)
        asked = anext(updates) if streamed else agent.run("hello", thread)
        with pytest.raises(RequestTimeout, match=r"longer than 0\.2 seconds"):
            await asked
    assert json.loads(thread.to_json()) == {**json.loads(before), "fingerprint": agent.fingerprint}
    with thread.taken():
        pass


class Hasty(SystemClock):
    """The machine's clock, set forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


async def test_who_approves_or_reads_takes_none_of_a_requests_time(make: MakeAgent) -> None:
    """They may think for longer than a request may take."""
    clock = Hasty()

    def approve(call: ToolCall) -> bool:
        clock.ahead += 1e6
        return True

    config = make(agent={"plugins": ["Shell"]}).config
    async with Agent(config, approve=approve, clock=clock) as agent:
        stream = agent.run_stream('call Shell-delete {"path": "/x"}')
        async for _ in stream:
            clock.ahead += 1e6
    assert stream.answer.text == "Shell-delete said: deleted /x"


class Wisher(ContextProvider):
    """Remembers what was wished for in this thread, and in all of them."""

    name = "wisher"

    async def invoking(self, invocation: Invocation) -> Context | None:
        known = [each.text for each in await invocation.memory.recall()]
        return Context(instructions=f"here {invocation.state.get('wishes', 0)}, ever {len(known)}")

    async def invoked(self, invocation: Invocation, response: Any, error: BaseException | None) -> None:
        invocation.state["wishes"] = invocation.state.get("wishes", 0) + 1
        await invocation.memory.remember(invocation.text)


@pytest.mark.parametrize("entered", [True, False])
async def test_context_providers_serve_the_library(
    make: MakeAgent, service: OfflineModel, entered: bool
) -> None:
    """State in the thread, memory of the user; by code or by config. covers: THREAD-10"""
    agent = make(context_providers=Wisher())
    if entered:
        await agent.__aenter__()
    thread = agent.new_thread()
    for n in range(2):
        await agent.run(f"wish {n}", thread)
        assert service.requests[-1]["body"]["messages"][-2]["content"] == f"here {n}, ever {n}"
    await agent.run("wish", agent.new_thread())
    assert service.requests[-1]["body"]["messages"][-2]["content"] == "here 0, ever 2"
    assert thread.state == {"wisher": {"wishes": 2}}
    opened = agent.open_thread(thread.to_json())
    await agent.run("wish 3", opened)
    assert service.requests[-1]["body"]["messages"][-2]["content"] == "here 2, ever 3"
    if entered:
        await agent.__aexit__(None, None, None)


@pytest.mark.parametrize("others", [None, ContextProvider()], ids=["no providers", "another provider"])
async def test_an_agent_without_the_provider_leaves_its_state_in_the_thread(
    make: MakeAgent, others: ContextProvider | None
) -> None:
    """Also in a fork, and when it answers again. covers: THREAD-10"""
    agent, other = make(context_providers=Wisher()), make(context_providers=others)
    thread = agent.new_thread()
    await agent.run("wish", thread)
    await other.run("hello", thread)
    assert thread.state["wisher"] == {"wishes": 1}
    assert thread.fork().state["wisher"] == {"wishes": 1}
    await agent.run("wish", thread)
    assert thread.state["wisher"] == {"wishes": 2}


async def test_a_summary_outlasts_an_answer_by_an_agent_without_reducers(
    make: MakeAgent, service: OfflineModel
) -> None:
    """It still stands for the same messages. covers: THREAD-8"""
    agent = make(reducers=[Summarize(SummarizeOptions(max_messages=6, keep_messages=2))])
    thread = agent.new_thread()
    for n in range(5):
        await agent.run(f"turn {n}", thread)
    kept = thread.context["view"]
    other = make(reducers=[])
    other.adopt(thread)
    await other.run("plain", thread)
    assert thread.context["view"] == kept
    agent.adopt(thread)
    await agent.run("last", thread)
    sent = service.requests[-1]["body"]["messages"]
    assert kept["summarize"]["text"] in json.dumps(sent)
    assert [each["content"] for each in sent if each["role"] == "user"] == [
        "turn 3",
        "turn 4",
        "plain",
        "last",
    ]


class Listener(ContextProvider):
    """Hears how requests end."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    async def invoked(
        self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
    ) -> None:
        self.heard.append(type(error).__name__)


async def test_providers_hear_of_every_end(make: MakeAgent, service: OfflineModel) -> None:
    """If the caller stops reading, if it is canceled, if `approve` raises. covers: THREAD-10"""

    async def raising(_: Any) -> bool:
        raise ZeroDivisionError

    listener = Listener()
    plugins = {"agent": {"plugins": ["Shell"]}}
    async with make(context_providers=listener, approve=raising, **plugins) as agent:
        stream = agent.run_stream("pieces-30", agent.new_thread())
        async for _ in stream:
            break
        await stream.aclose()
        service.clear()
        running = asyncio.create_task(agent.run("pieces-500", agent.new_thread()))
        await eventually(lambda: service.requests, every=0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(ZeroDivisionError):
            await agent.run("call Shell-delete {}", agent.new_thread())
    assert listener.heard == ["GeneratorExit", "CancelledError", "ZeroDivisionError"]


@pytest.mark.parametrize("user", [5, "", "ad\0", "\ud83d"])
def test_the_user_is_one_that_can_be_stored(make: MakeAgent, user: Any) -> None:
    """An id that no record could be kept and read under is refused before anything is stored."""
    with pytest.raises(InvalidRequest, match=r"user: must (be text|not be empty)"):
        make(user=user)


async def test_memories_are_not_kept_in_the_clear_beside_sealed_ones(make: MakeAgent, tmp_path: Path) -> None:
    """Without the key of a store, or with another, nothing is written, whichever user has sealed it.

    covers: THREAD-10
    """
    path = tmp_path / "memory.db"
    options: Any = {"persistence": f"sqlite:///{path}", "context_providers": Wisher()}
    async with make(**options, user="ada", secrets={"TA_ENCRYPTION_KEY": "correct horse battery"}) as agent:
        await agent.run("wish")
    for secrets in ({}, {"TA_ENCRYPTION_KEY": "another staple"}):
        with pytest.raises(StoreConfigError, match="TA_ENCRYPTION_KEY is not the key of this store"):
            await make(**options, user="eve", secrets=secrets).run("swordfish")
    assert b"swordfish" not in b"".join(each.read_bytes() for each in tmp_path.glob("memory.db*"))
    async with make(**options, user="eve", secrets={"TA_ENCRYPTION_KEY": "correct horse battery"}) as agent:
        await agent.run("wish")


async def test_calls_at_once_share_what_is_remembered(make: MakeAgent, tmp_path: Path) -> None:
    """Of an agent that is not opened the first opens the store and the last closes it. covers: THREAD-10"""
    agent = make(persistence=f"sqlite:///{tmp_path}/memory.db", context_providers=Wisher())
    await asyncio.gather(*(agent.run(f"wish {n}", agent.new_thread()) for n in range(6)))
    answer = await agent.run("wish", agent.new_thread())
    assert [step.output for step in answer.steps if step.is_error] == []
    [context] = [step for step in answer.steps if step.kind == "context"]
    assert "ever 6" in str(context.output)


class Vault(ContextProvider):
    """Serves only while it is open; a message `wait` has it wait within."""

    def __init__(self) -> None:
        super().__init__(ProviderOptions(required=True, timeout_seconds=60))
        self.uses = 0
        self.waits, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> Self:
        self.uses += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.uses -= 1

    async def invoking(self, invocation: Invocation) -> None:
        if invocation.text == "wait":
            self.waits.set()
            await self.may_go_on.wait()
        if self.uses != 1:
            raise RuntimeError(f"It is opened {self.uses} times.")


async def test_calls_at_once_share_their_providers(make: MakeAgent) -> None:
    """Of an agent that is not opened the first opens them and the last closes them. covers: THREAD-10"""
    vault = Vault()
    agent = make(context_providers=vault)
    waiting = asyncio.create_task(agent.run("wait"))
    await vault.waits.wait()
    await agent.run("hello")
    vault.may_go_on.set()
    await waiting
    assert vault.uses == 0


async def test_an_agent_stays_open_until_the_last_has_left_it(make: MakeAgent) -> None:
    """It may be entered by several at once, or once more inside. covers: THREAD-10"""
    vault = Vault()
    agent = make(context_providers=vault)

    async def use(text: str) -> None:
        async with agent:
            await agent.run(text)

    waiting = asyncio.create_task(use("wait"))
    await vault.waits.wait()
    await use("hello")
    vault.may_go_on.set()
    await waiting
    assert vault.uses == 0
    async with agent:
        await use("hello")
        assert vault.uses == 1
    assert vault.uses == 0


def test_an_agent_may_be_entered_by_several_in_one_event_loop_after_another() -> None:
    """As a worker does that calls `asyncio.run` for each job."""
    lock = LoopLock()

    async def use() -> None:
        async with lock():
            await asyncio.sleep(0)

    async def several() -> None:
        await asyncio.gather(use(), use())

    for _ in range(2):
        asyncio.run(several())


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """What each returns in a thread of its own, or the `RuntimeError` it raises."""

    def outcome(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except RuntimeError as error:
            return error

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(outcome, works, timeout=60))


@pytest.mark.parametrize("way", ["async with", "run"])
def test_an_agent_is_used_in_one_event_loop_at_a_time(make: MakeAgent, tmp_path: Path, way: str) -> None:
    """A second loop is refused while the first works with what belongs to it: it hung for ever."""
    opened, may_end = threading.Event(), threading.Event()

    class Waiting(ContextProvider):
        async def invoked(self, invocation: Invocation, response: Any, error: BaseException | None) -> None:
            await invocation.memory.remember(invocation.text)
            opened.set()
            await asyncio.to_thread(may_end.wait, 30)

    agent = make(
        context_providers=Waiting(ProviderOptions(timeout_seconds=60)) if way == "run" else None,
        secrets={"TA_PERSISTENCE": f"sqlite:///{tmp_path}/memory.db"},
    )

    async def first() -> str:
        async with agent if way == "async with" else nullcontext():
            if way == "async with":
                opened.set()
                await asyncio.to_thread(may_end.wait, 30)
            return (await agent.run("hello")).text

    def second() -> str:
        opened.wait(30)
        try:
            return asyncio.run(agent.run("hello")).text
        finally:
            may_end.set()

    answered, refused = in_threads(partial(asyncio.run, first()), second)
    assert isinstance(answered, str)
    assert isinstance(refused, RuntimeError)
    assert "one event loop at a time" in str(refused)
    assert asyncio.run(agent.run("hello")).text


def test_an_agent_without_context_providers_answers_in_several_event_loops(make: MakeAgent) -> None:
    """Where it is not entered, each call opens what it needs."""
    agent = make()
    answers = in_threads(*[lambda: asyncio.run(agent.run("My name is Ada.")).text] * 4)
    assert answers == ["Nice to meet you, Ada."] * 4


async def test_views_serve_the_library(make: MakeAgent, service: OfflineModel) -> None:
    """The reducers of the config; what is stored stays whole. covers: THREAD-8"""
    async with make(thread={"reducers": [{"name": "message_count", "max_messages": 3}]}) as agent:
        thread = agent.new_thread()
        for n in range(4):
            answer = await agent.run(f"turn {n}", thread)
        assert len(service.requests[-1]["body"]["messages"]) == 4
        assert len(thread.messages) == 8
        assert [step.kind for step in answer.steps] == ["reduction", "model"]


#: texts that were counted
COUNTED: list[str] = []


def counted(text: str) -> int:
    """Counts the words of a text, and keeps what it has counted."""
    COUNTED.append(text)
    return len(text.split())


async def test_a_message_is_counted_once_in_a_request(make: MakeAgent) -> None:
    """However often the model is called for it. covers: THREAD-8"""
    budget = {"name": "token_budget", "max_tokens": 1000, "tokenizer": f"{__name__}:counted"}
    async with make(thread={"reducers": [budget]}, agent={"plugins": ["Shell"]}) as agent:
        thread = agent.get_local_thread(exchange("earlier", "noted"))
        COUNTED.clear()
        answer = await agent.run('call Shell-look {"path": "/x"}', thread)
    assert [step.kind for step in answer.steps] == ["model", "tool", "model"]
    assert COUNTED.count("earlier") == 1


@pytest.mark.parametrize("kept", [7, ["a", 1], "text", object()])
async def test_a_thread_opens_again_whatever_its_reducers_keep(make: MakeAgent, kept: Any) -> None:
    """JSON of any kind is kept; what is none is not, and a step says so. covers: THREAD-8"""

    async def keeps(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
        seen.append(upcoming.memory.get("keeps"))
        upcoming.memory["keeps"] = kept
        async for part in parts:
            yield part

    seen: list[Any] = []
    agent = make(reducers=[keeps])
    thread = agent.new_thread()
    answer = await agent.run("hello", thread)
    await agent.run("hello", agent.open_thread(thread.to_json()))
    is_json = type(kept) is not object
    assert seen == [None, kept if is_json else None]
    assert [step.name for step in answer.steps if step.is_error] == ([] if is_json else ["keeps"])


async def test_reducers_given_in_code_are_prepared_and_checked_like_those_of_a_config(
    make: MakeAgent,
) -> None:
    """At once, not at the first message. covers: THREAD-8"""
    prepared: list[str] = []

    class Noting:
        def prepare(self, model: str) -> None:
            prepared.append(model)

        async def __call__(self, parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
            async for part in parts:
                yield part

    agent = make(reducers=[Noting()])
    assert prepared == [agent.config.agent.model]
    await agent.run("hello")
    unusable: list[Any] = [
        Noting,
        "message_count",
        TokenBudget(TokenBudgetOptions(max_tokens=10, reserve=20)),
    ]
    for reducer in unusable:
        with pytest.raises(ThreadConfigError):
            make(reducers=[reducer])


async def test_what_others_add_is_not_taken_for_summarised(make: MakeAgent, service: OfflineModel) -> None:
    """A thread of a shared store is continued elsewhere: what is not sent has been in a summary."""
    folder = make().config.source.parent / "threads"
    reducers = [{"name": "summarize", "max_messages": 4, "keep_messages": 2}]
    stores = partial(FileMessages, folder, "shared")
    async with make(thread={"reducers": reducers}, message_stores=stores) as agent:
        thread = agent.new_thread()
        for n in range(4):
            await agent.run(f"turn {n}", thread)
        await stores().add_messages([*exchange("another", "noted"), *exchange("one more", "noted")])
        await agent.run("last", thread)
        bodies = [json.dumps(request["body"]["messages"]) for request in service.requests]
        read = [body for body in bodies[:-1] if "Summarise the conversation" in body] + bodies[-1:]
        for text in ("turn 0", "turn 1", "turn 2", "turn 3", "another", "one more", "last"):
            assert any(text in body for body in read), text


# --- kinds ----------------------------------------------------------------------------------------


async def test_a_remote_thread_is_only_an_id(make: MakeAgent, service: OfflineModel) -> None:
    """Sent as `previous_response_id`; the messages are the service's, and listed by its client.
    covers: THREAD-1, THREAD-4, THREAD-5"""
    async with make(thread={"kind": "remote"}) as agent:
        thread = agent.new_thread()
        assert isinstance(thread, RemoteThread)
        assert await agent.list_messages(thread) == []
        await agent.run("My name is Ada.", thread)
        last = thread.remote_id
        assert last is not None
        assert (await agent.run("What is my name?", thread)).text == "Your name is Ada."
        body = service.requests[-1]["body"]
        assert body["previous_response_id"] == last
        assert len(body["input"]) == 1
        assert body["store"] is True
        with pytest.raises(RemoteUnsupported, match=r"agent\.list_messages"):
            _ = thread.messages
        assert texts(await agent.list_messages(thread))[::2] == ["My name is Ada.", "What is my name?"]
        resumed = agent.open_thread(thread.to_json())
        assert isinstance(resumed, RemoteThread)
        assert (await agent.run("What is my name?", resumed)).text == "Your name is Ada."
        assert "Ada" not in thread.to_json()


async def test_tools_and_approvals_work_on_remote_threads(make: MakeAgent) -> None:
    """Results continue the response that asked for them. covers: THREAD-4"""
    async with make(
        thread={"kind": "remote"}, agent={"plugins": ["Shell"]}, approve=lambda call: True
    ) as agent:
        thread = agent.new_thread()
        answer = await agent.run(
            'call Shell-delete {"path": "/x"} and call Shell-look {"path": "/y"}', thread
        )
        assert answer.text == "Shell-delete said: deleted /x\nShell-look said: /y is empty"
        roles = [message.role for message in await agent.list_messages(thread)]
        assert roles == ["user", "assistant", "tool", "tool", "assistant"]


async def test_a_conversation_is_continued_by_its_id(make: MakeAgent, service: OfflineModel) -> None:
    """An id that another program has made will do. covers: THREAD-1"""
    import httpx

    async with httpx.AsyncClient(verify=False) as http:
        made = (await http.post(f"{service.base_url}/conversations", json={})).json()["id"]
    async with make(thread={"kind": "remote"}) as agent:
        thread = agent.get_remote_thread(made)
        await agent.run("My name is Ada.", thread)
        assert service.requests[-1]["body"]["conversation"] == made
        assert (await agent.run("What is my name?", thread)).text == "Your name is Ada."
        assert thread.remote_id == made
        with pytest.raises(NotForkable, match="cannot fork a conversation"):
            thread.fork()
        with pytest.raises(NotForkable, match="no earlier states"):
            thread.rollback(thread.checkpoints[0].checkpoint_id)


async def test_a_conversation_can_be_continued_after_a_request_that_failed_in_a_round(
    make: MakeAgent, service: OfflineModel
) -> None:
    """The call that the service has kept without a result does not stand in the way of the next message."""
    import httpx

    async with httpx.AsyncClient(verify=False) as http:
        made = (await http.post(f"{service.base_url}/conversations", json={})).json()["id"]
    call = {"name": "Shell-look", "arguments": {"path": "/x"}, "id": "call_1"}
    service.script(
        {
            "rules": [
                {"reply": {"tool_calls": [call]}, "times": 1},
                {"reply": {"error": {"status": 400, "message": "down"}}, "times": 1},
            ],
            "otherwise": {"text": "Here I am."},
        }
    )
    async with make(thread={"kind": "remote"}, agent={"plugins": ["Shell"]}) as agent:
        thread = agent.get_remote_thread(made)
        with pytest.raises(ModelFailed, match="down"):
            await agent.run("look at /x", thread)
        for _ in range(2):
            assert (await agent.run("hello?", thread)).text == "Here I am."


async def test_what_a_failed_request_leaves_at_the_service_is_deleted(
    make: MakeAgent, service: OfflineModel
) -> None:
    """With its thread, also when that was opened from JSON. covers: THREAD-6"""
    async with make(thread={"kind": "remote"}, agent={"plugins": ["Shell"]}) as agent:
        thread = agent.new_thread()
        assert isinstance(thread, RemoteThread)
        call = {"name": "Shell-look", "arguments": {"path": "/x"}, "id": "call_1"}
        failure = {"error": {"status": 400, "message": "down"}}
        service.script({"rules": [{"reply": {"tool_calls": [call]}, "times": 1}], "otherwise": failure})
        with pytest.raises(ModelFailed, match="down"):
            await agent.run("look at /x", thread)
        assert thread.remote_id is None
        [left] = thread.abandoned
        assert texts(await agent.list_messages(agent.get_remote_thread(left)))[0] == "look at /x"
        await agent.open_thread(thread.to_json()).delete()
        with pytest.raises(RemoteThreadLost):
            await agent.list_messages(agent.get_remote_thread(left))


@pytest.mark.parametrize(
    ("reply", "streamed"),
    [
        ({"text": "one two", "fault": {"kind": "error", "code": "no", "after_pieces": 1}}, True),
        ({"text": "one two", "fault": {"kind": "error", "code": "no"}}, False),
        ({"text": "one two", "fault": {"kind": "cut", "after_pieces": 1}}, True),
        ({"text": "", "finish_reason": "content_filter"}, True),
        ({"text": "", "finish_reason": "content_filter"}, False),
        ({"text": "one two"}, True),
    ],
    ids=["failed", "failed whole", "cut", "filtered", "filtered whole", "left early"],
)
async def test_a_response_that_came_to_nothing_is_deleted_with_its_thread(
    make: MakeAgent, service: OfflineModel, reply: dict[str, Any], streamed: bool
) -> None:
    """Of a call that failed or whose stream was left, by the id that the service gave it. covers: THREAD-6"""
    service.script({"rules": [{"reply": {"text": "hello"}, "times": 1}], "otherwise": reply})
    async with make(thread={"kind": "remote"}) as agent:
        thread = agent.new_thread()
        assert isinstance(thread, RemoteThread)
        await agent.run("hello", thread)
        kept = thread.remote_id
        with pytest.raises(ModelFailed) if reply != {"text": "one two"} else nullcontext():
            if not streamed:
                await agent.run("tell me", thread)
            async with agent.run_stream("tell me", thread) as stream:
                await anext(stream)
                if "fault" in reply:
                    await anext(stream)
        assert thread.remote_id == kept
        [left] = thread.abandoned
        service.clear()
        await agent.open_thread(thread.to_json()).delete()
        looked_for = [request["path"] for request in service.requests]
        assert {f"/v1/responses/{kept}", f"/v1/responses/{left}"} <= set(looked_for)


async def test_a_response_that_broke_off_before_it_was_made_again_is_deleted_with_its_thread(
    make: MakeAgent,
) -> None:
    """The request succeeded; the service may have what it began first all the same."""
    names = iter(["resp_cut", "resp_kept"])

    async def handler(connection: RawConnection) -> None:
        await connection.request()
        name = next(names)
        await connection.begin_stream()
        begun = {"type": "response.created", "response": {"id": name, "status": "in_progress"}}
        await connection.chunk(sse(begun))
        if name == "resp_kept":
            said = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "hi"}]}
            response = {"id": name, "status": "completed", "output": [said]}
            await connection.chunk(sse({"type": "response.completed", "response": response}))

    raw = RawService(handler)
    async with raw.running(), make(thread={"kind": "remote"}, secrets={"TA_BASE_URL": raw.base_url}) as agent:
        thread = agent.new_thread()
        assert isinstance(thread, RemoteThread)
        async with agent.run_stream("hello", thread) as stream:
            assert [update.text async for update in stream] == ["hi"]
    assert (thread.remote_id, thread.abandoned) == ("resp_kept", ("resp_cut",))


@pytest.mark.parametrize("kind", ["local", "remote"])
async def test_without_a_thread_nothing_is_kept(
    make: MakeAgent, service: OfflineModel, tmp_path: Path, kind: str
) -> None:
    """Neither in a message store nor at the service. covers: THREAD-3"""
    stores = partial(FileMessages, tmp_path / "kept")
    client = {"client": "openai-responses"} if kind == "local" else {}
    async with make(thread={"kind": kind}, agent=client, message_stores=stores) as agent:
        assert (await agent.run("hello")).text == "Hello! How can I help?"
        assert service.requests[-1]["path"] == "/v1/responses"
        assert service.requests[-1]["body"]["store"] is False
        with pytest.raises(InvalidRequest, match="store: is True, but without a thread nothing is kept"):
            await agent.run("hello", store=True)
    assert not list(tmp_path.glob("kept/*"))


@pytest.mark.parametrize("kind", ["local", "remote"])
async def test_the_main_thread_of_a_workflow_is_as_its_agents_others(
    make: MakeAgent, tmp_path: Path, kind: str
) -> None:
    """Of the agent's kind, and with a store of its factory, also where it is read first. covers: THREAD-9"""
    stores = partial(FileMessages, tmp_path / "kept")
    async with make(thread={"kind": kind}, message_stores=stores) as agent:
        for inner in (WorkflowThread(), None):
            workflow = WorkflowThread()
            if inner is not None:
                workflow.create_sub_thread(thread=inner)
            assert await agent.list_messages(workflow) == []
            await agent.run("hello", workflow)
            main = (inner or workflow).get_sub_thread()
            assert main.kind == kind
            assert texts(await agent.list_messages(workflow)) == ["hello", "Hello! How can I help?"]
    assert len(list(tmp_path.glob("kept/*"))) == (2 if kind == "local" else 0)


class SetStore(MemoryMessages):
    def serialize(self) -> Any:
        return {self.key}


class AsyncStore(MemoryMessages):
    async def serialize(self) -> Any:  # type: ignore[override]
        return {"key": self.key}


class MuteStore:
    key = "mute"

    async def add_messages(self, messages: object) -> None: ...


async def test_a_thread_that_could_not_be_opened_again_is_not_written(make: MakeAgent) -> None:
    """For a message store of one's own that says in another shape how to reconnect. covers: THREAD-1"""
    for stores, given in ((SetStore, "set"), (AsyncStore, "coroutine")):
        async with make(message_stores=stores) as agent:
            thread = agent.new_thread()
            await agent.run("hello", thread)
            with pytest.raises(
                ThreadConfigError, match=rf"{stores.__name__} .* returned {given}, not a dict"
            ):
                thread.to_json()
    async with make(message_stores=MuteStore) as agent:
        with pytest.raises(
            ThreadConfigError, match=r"MuteStore has no list_messages, serialize, update_from_"
        ):
            agent.new_thread()


class Keyless(MemoryMessages):
    def __init__(self) -> None:
        super().__init__()
        del self.key


@pytest.mark.parametrize("secrets", [{}, {"TA_ENCRYPTION_KEY": "correct horse battery"}], ids=["", "sealed"])
async def test_a_function_that_makes_no_message_store_makes_no_thread(
    make: MakeAgent, secrets: dict[str, str]
) -> None:
    """One that forgets to return its store: what is said would be kept nowhere. covers: THREAD-1"""

    def forgetful() -> None:
        MemoryMessages()

    opened = LocalThread().to_json()
    for stores, error in ((forgetful, "returned None instead of one"), (Keyless, "Keyless has no key")):
        async with make(message_stores=stores, secrets=secrets) as agent:
            with pytest.raises(ThreadConfigError, match=error):
                agent.new_thread()
            with pytest.raises(ThreadConfigError, match=error):
                agent.open_thread(opened)


async def test_an_identity_is_enough_for_a_remote_thread(
    make: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At Azure, where there is no key; the agent closes it. covers: THREAD-1"""
    secrets = {
        "TA_API_KEY": "",
        "TA_BASE_URL": "https://mine.openai.azure.com",
        "TA_AZURE_CREDENTIAL": "managed_identity",
    }
    closed: list[AzureCredential] = []

    async def closing(credential: AzureCredential, *exc: object) -> None:
        closed.append(credential)

    monkeypatch.setattr(AzureCredential, "__aexit__", closing)
    async with make(thread={"kind": "remote"}, secrets=secrets) as agent:
        assert isinstance(agent.new_thread(), RemoteThread)
        assert isinstance(agent.to_remote(agent.get_local_thread()), RemoteThread)
    assert len(closed) == 1


async def test_a_lost_conversation_is_a_clear_error(make: MakeAgent) -> None:
    """From answering and from listing; deleting what is gone is fine. covers: THREAD-1"""
    async with make(thread={"kind": "remote"}) as agent:
        thread = agent.get_remote_thread("resp_gone")
        with pytest.raises(RemoteThreadLost, match="no longer has the conversation"):
            await agent.run("hello", thread)
        with pytest.raises(RemoteThreadLost):
            await agent.list_messages(thread)
        await thread.delete()


async def test_local_always_works_and_remote_where_it_is_supported(make: MakeAgent) -> None:
    """The client says what it supports; the default thread is of the configured kind. covers: THREAD-2"""
    chat = make(agent={"client": "openai-chat"})
    assert isinstance(chat.new_thread(), LocalThread)
    assert chat.get_local_thread().messages == []
    with pytest.raises(RemoteUnsupported, match="openai-chat"):
        chat.get_remote_thread()
    with pytest.raises(RemoteUnsupported):
        chat.to_remote(chat.get_local_thread())
    remote = make(thread={"kind": "remote"})
    assert isinstance(remote.new_thread(), RemoteThread)
    assert isinstance(remote.get_local_thread([said("user", "hi")]), LocalThread)


async def test_the_kind_decides_where_it_is_kept(make: MakeAgent, service: OfflineModel) -> None:
    """A local thread is not stored at the service, whatever the client; `store` that contradicts is refused.
    covers: THREAD-3"""
    async with make(agent={"client": "openai-responses"}) as agent:
        local, remote = agent.get_local_thread(), agent.get_remote_thread()
        await agent.run("hello", local, store=False)
        assert service.requests[-1]["body"]["store"] is False
        await agent.run("hello", local)
        assert len(service.requests[-1]["body"]["input"]) == 3
        await agent.run("hello", remote, store=True)
        assert service.requests[-1]["body"]["store"] is True
        with pytest.raises(InvalidRequest, match="store: is True, but the thread is local"):
            await agent.run("hello", local, store=True)
        with pytest.raises(InvalidRequest, match="store: is False, but the thread is remote"):
            await agent.run("hello", remote, store=False)


async def test_a_thread_is_of_a_kind_from_its_making() -> None:
    """There is no uninitialised one, and none that is both. covers: THREAD-2"""
    with pytest.raises(TypeError, match="abstract"):
        AgentThread()  # type: ignore[abstract]
    assert LocalThread().kind == "local"
    assert RemoteThread().kind == "remote"
    with pytest.raises(InvalidRequest, match="beginning"):
        RemoteThread("resp_1", beginning=[said("user", "hi")])


async def test_earlier_messages_are_taken_as_they_are(make: MakeAgent) -> None:
    """A local thread is made of any; ids that come again are replaced, nothing is lost. covers: THREAD-2"""
    message = said("user", "hi")
    for count, thread in ((2, make().get_local_thread([message, message])), (1, LocalThread([message]))):
        await thread.on_new_messages([message, *(m for m in thread.messages[1:])])
        assert len(thread.messages) == 2 * count
        assert len({each.message_id for each in thread.messages}) == len(thread.messages)
        assert set(texts(thread.messages)) == {"hi"}
        assert LocalThread.from_json(thread.to_json()).messages == thread.messages


async def test_local_becomes_remote_on_request(make: MakeAgent, service: OfflineModel) -> None:
    """What was said is sent once, with the first new message; and back again. covers: THREAD-1"""
    async with make(thread={"kind": "remote"}) as agent:
        local = agent.get_local_thread()
        await agent.run("My name is Ada.", local)
        remote = agent.to_remote(local)
        assert texts(await agent.list_messages(remote)) == texts(local.messages)
        remote = agent.open_thread(remote.to_json())  # type: ignore[assignment]
        assert (await agent.run("What is my name?", remote)).text == "Your name is Ada."
        assert len(service.requests[-1]["body"]["input"]) == 3
        await agent.run("And now?", remote)
        assert len(service.requests[-1]["body"]["input"]) == 1
        back = await agent.to_local(remote)
        assert texts(back.messages)[:3] == ["My name is Ada.", "Nice to meet you, Ada.", "What is my name?"]
        remote.rewind()
        assert texts(await agent.list_messages(remote)) == texts(local.messages)
        assert (await agent.run("What is my name?", remote)).text == "Your name is Ada."


async def test_what_context_providers_keep_is_handed_over(make: MakeAgent) -> None:
    """To the service and back, as a copy: what one thread learns later the other does not have.
    covers: THREAD-1, THREAD-10"""
    async with make(thread={"kind": "remote"}, context_providers=Wisher()) as agent:
        local = agent.get_local_thread()
        for n in range(2):
            await agent.run(f"wish {n}", local)
        remote = agent.to_remote(local)
        await agent.run("wish", remote)
        back = await agent.to_local(remote)
        await agent.run("wish", back)
        kept = [thread.state["wisher"]["wishes"] for thread in (local, remote, back)]
        assert kept == [2, 3, 4]


async def test_before_a_thread_was_remote_is_what_providers_kept_by_then(make: MakeAgent) -> None:
    """As are its messages, also once it was stored. covers: THREAD-1, THREAD-6, THREAD-10"""
    async with make(thread={"kind": "remote"}, context_providers=Wisher()) as agent:
        local = agent.get_local_thread()
        await agent.run("wish", local)
        opened = agent.open_thread(agent.to_remote(local).to_json())
        for thread in (opened, opened.copy()):
            await agent.run("wish", thread)
            thread.rewind()
            assert thread.state["wisher"]["wishes"] == 1
            await agent.run("wish", thread)
            assert thread.state["wisher"]["wishes"] == 2


async def test_a_rewound_local_thread_has_what_it_was_begun_with(make: MakeAgent) -> None:
    """The messages that it was given, and what providers had kept of a remote one; in copies, forks and JSON,
    and behind a checkpoint on another way, too. covers: THREAD-1, THREAD-6, THREAD-10"""
    async with make(thread={"kind": "remote"}, context_providers=Wisher()) as agent:
        remote = agent.get_remote_thread()
        await agent.run("My name is Ada.", remote)
        local = await agent.to_local(remote)
        begun = texts(local.messages)
        await agent.run("hello", local)
        first = local.checkpoints[0].checkpoint_id
        for thread in (local, local.copy(), agent.open_thread(local.to_json())):
            assert isinstance(thread, LocalThread)
            for _ in range(2):
                thread.rewind()
                assert (texts(thread.messages), thread.state["wisher"]["wishes"]) == (begun, 1)
                assert (await agent.run("What is my name?", thread)).text == "Your name is Ada."
                assert thread.state["wisher"]["wishes"] == 2
            thread.rollback(first)
            assert texts(thread.messages)[:3] == [*begun, "hello"]
            thread.rewind()
            assert texts(thread.messages) == begun


async def test_a_rewound_fork_has_what_it_keeps_of_what_its_origin_was_begun_with() -> None:
    """A fork within the given messages begins with those up to there. covers: THREAD-6, THREAD-7"""
    given = LocalThread([*exchange("q0", "a0"), *exchange("q1", "a1")])
    bare = given.checkpoint()
    await given.on_new_messages(exchange("q2", "a2"))
    given.checkpoint()
    whole, within = given.fork(), given.fork(given.messages[1].message_id)
    assert (texts(whole.messages), texts(within.messages)) == (
        ["q0", "a0", "q1", "a1", "q2", "a2"],
        ["q0", "a0"],
    )
    assert [each.checkpoint_id for each in whole.checkpoints] == [
        each.checkpoint_id for each in given.checkpoints
    ]
    assert not within.checkpoints
    whole.rollback(bare)
    assert texts(whole.messages) == ["q0", "a0", "q1", "a1"]
    for thread, begun in ((whole, ["q0", "a0", "q1", "a1"]), (within, ["q0", "a0"])):
        await thread.on_new_messages(exchange("more", "words"))
        thread.rewind()
        assert texts(thread.messages) == begun


async def test_what_a_failed_call_left_under_an_unknown_id_keeps_no_thread(make: MakeAgent) -> None:
    """A gateway that names responses in its own way; what was answered has to be deleted. covers: THREAD-6"""
    asked: list[bytes] = []

    async def handler(connection: RawConnection) -> None:
        asked.append(await connection.request())
        unknown = b"/resp_gateways " in asked[-1]
        status, found = (b"404 Not Found", b'{"detail":""}') if unknown else (b"200 OK", b'{"id":"resp_k"}')
        await connection.send(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(found), found))
        connection.close()

    raw = RawService(handler)
    async with raw.running(), make(thread={"kind": "remote"}, secrets={"TA_BASE_URL": raw.base_url}) as agent:
        thread = agent.get_remote_thread("resp_k")
        thread.abandon("resp_gateways")
        await agent.open_thread(thread.to_json()).delete()
        lines = [each.partition(b" HTTP")[0] for each in asked]
        assert lines[1:] == [b"DELETE /v1/responses/resp_k", b"GET /v1/responses/resp_gateways"]
        with pytest.raises(ModelFailed, match="404"):
            await agent.get_remote_thread("resp_gateways").delete()


async def test_a_result_without_its_call_is_not_handed_over(make: MakeAgent) -> None:
    """Messages of another program may begin in the middle of a round; the model service takes no such
    result. covers: THREAD-1"""
    async with make(thread={"kind": "remote"}) as agent:
        result = said("tool", "empty", tool_call_id="c", tool="Shell-look")
        remote = agent.to_remote(agent.get_local_thread([result, *exchange("My name is Ada.", "Hello.")]))
        assert (await agent.run("What is my name?", remote)).text == "Your name is Ada."


# --- forks, copies, editing -----------------------------------------------------------------------


async def test_a_fork_is_the_prefix_up_to_and_including_a_message(make: MakeAgent) -> None:
    """Independent of its origin, also when that is deleted; an unknown id is an error. covers: THREAD-6"""
    async with make() as agent:
        thread = agent.get_local_thread()
        await agent.run("My name is Ada.", thread)
        await agent.run("My name is Eve.", thread)
        early, whole = thread.fork(thread.messages[1].message_id), thread.fork()
        assert texts(early.messages) == texts(thread.messages)[:2]
        assert texts(whole.messages) == texts(thread.messages)
        assert early.thread_id != thread.thread_id
        origin = early.messages[0].origin
        assert origin is not None
        assert (origin.task_id, origin.message_id) == (thread.thread_id, thread.messages[0].message_id)
        with pytest.raises(NotFound, match="has no message nothing"):
            thread.fork("nothing")
        await thread.delete()
        assert (await agent.run("What is my name?", early)).text == "Your name is Ada."
        assert (await agent.run("What is my name?", whole)).text == "Your name is Eve."


def test_no_fork_between_a_call_and_its_result() -> None:
    """Before or after both; with several results after the last. covers: THREAD-6"""
    asked, first, second = tool_round("r1", "r2")
    thread = LocalThread([said("user", "go"), asked, first, second, said("assistant", "done")])
    for message in (asked, first):
        with pytest.raises(InvalidRequest, match="between a tool call and its result"):
            thread.fork(message.message_id)
    assert len(thread.fork(second.message_id).messages) == 4


async def test_a_fork_of_a_remote_thread_shares_what_was_said(make: MakeAgent) -> None:
    """A response can be continued twice; a place in its middle cannot be named. covers: THREAD-6"""
    async with make(thread={"kind": "remote"}) as agent:
        thread = agent.get_remote_thread()
        await agent.run("My name is Ada.", thread)
        fork = thread.fork()
        await agent.run("My name is Eve.", thread)
        assert (await agent.run("What is my name?", fork)).text == "Your name is Ada."
        assert (await agent.run("What is my name?", thread)).text == "Your name is Eve."
        with pytest.raises(NotForkable, match="at its end only"):
            thread.fork("some-message")


async def test_a_copy_is_the_same_once_more(make: MakeAgent) -> None:
    """With the same message ids and checkpoints; what is done to one is not done to the other.

    covers: THREAD-6
    """
    async with make() as agent:
        for thread in (agent.get_local_thread(), agent.get_remote_thread()):
            await agent.run("My name is Ada.", thread)
            copy = thread.copy()
            assert copy.thread_id != thread.thread_id
            assert copy.checkpoints == thread.checkpoints
            assert await agent.list_messages(copy) == await agent.list_messages(thread)
            await agent.run("My name is Eve.", copy)
            assert (await agent.run("What is my name?", thread)).text == "Your name is Ada."


async def test_messages_can_be_read_and_edited(make: MakeAgent) -> None:
    """The model is then sent what they say now. covers: THREAD-9"""
    async with make() as agent:
        thread = agent.get_local_thread()
        await agent.run("My name is Ada.", thread)
        await thread.edit(thread.messages[0].message_id, "My name is Eve.")
        assert (await agent.run("What is my name?", thread)).text == "Your name is Eve."
        with pytest.raises(NotFound):
            await thread.edit("nothing", "x")


async def test_an_edit_keeps_the_images_of_a_message() -> None:
    """They follow the new text, wherever they stood in the old one."""
    first, second = Item("image", "data:image/png;base64,AAAA"), Item("image", "data:image/png;base64,BBBB")
    asked, answer = exchange("", "a cat")
    items = (first, Item("text", "What is"), second, Item("text", "this?"))
    thread = LocalThread([replace(asked, items=items), answer])
    edited = await thread.edit(asked.message_id, "Which animal is this?")
    assert edited.items == (Item("text", "Which animal is this?"), first, second)
    assert edited == thread.messages[0]


async def test_a_summary_does_not_repeat_what_an_edit_has_replaced(
    make: MakeAgent, service: OfflineModel
) -> None:
    """It is made anew, of what the messages say now; also where a fork takes an edit to an earlier place."""
    summarize = {"name": "summarize", "max_messages": 4, "keep_messages": 2}
    async with make(thread={"reducers": [summarize]}) as agent:
        thread = agent.get_local_thread()
        for text in ("My PIN is 1234.", "two", "three", "four"):
            await agent.run(text, thread)
        assert "1234" in str(service.requests[-1]["body"]["messages"])
        await thread.edit(thread.messages[0].message_id, "My PIN is secret.")
        await agent.run("five", thread)
        for each in (thread, thread.fork(thread.messages[7].message_id)):
            await agent.run("six", each)
            assert "1234" not in str(service.requests[-1]["body"]["messages"])


@pytest.mark.parametrize("stored", [False, True])
async def test_an_answer_that_is_added_behind_a_summary_is_sent(
    make: MakeAgent, service: OfflineModel, stored: bool
) -> None:
    """Also to a fork, and after a rollback: it is newer than the summary. covers: THREAD-7, THREAD-8"""
    options = {"max_messages": 2, "keep_messages": 0, "trigger": "after_message_added"}
    given: dict[str, Any] = {"message_stores": MemoryMessages} if stored else {}
    async with make(thread={"reducers": [{"name": "summarize", **options}]}, **given) as agent:
        thread = agent.get_local_thread()
        for text in ("one", "two"):
            await agent.run(text, thread)
        before = thread.checkpoints[-1].checkpoint_id
        _, reminder = exchange("", "The train leaves at 9.")
        await thread.on_new_messages([reminder])
        assert [part.turn for part in thread.parts()] == [1, 1, 2, 2, 3]
        fork = thread.fork()
        await agent.run("three", thread)
        await agent.run("three", fork)
        after = thread.checkpoints[-1].checkpoint_id
        thread.rollback(before)
        thread.rollback(after)
        await agent.run("four", thread)
    sent = [request["body"]["messages"] for request in service.requests]
    shown = [[message["content"] for message in messages[2:]] for messages in sent]
    assert shown.count(["The train leaves at 9.", "three"]) == 2
    assert shown[-1] == ["four"]


async def test_results_that_are_added_after_a_checkpoint_stay_with_their_calls() -> None:
    """The model is sent both or neither, and they are one round. covers: THREAD-8"""
    asked, result = tool_round("done")
    thread = LocalThread()
    await thread.on_new_messages([*exchange("one", "yes"), *exchange("two", "yes")[:1], asked])
    thread.checkpoint()
    await thread.on_new_messages([result, *exchange("", "It is done.")[1:]])
    assert [part.turn for part in thread.parts()] == [1, 1, 2, 2, 2]
    assert thread.parts()[-2].messages == (asked, result)


async def test_an_edit_changes_the_present_only() -> None:
    """A rollback shows what a checkpoint marked, with the edits before it; so do forks and copies.

    covers: THREAD-7, THREAD-9
    """
    thread = LocalThread(exchange("q0", "a0"))
    first = thread.checkpoint()
    name = thread.messages[0].message_id
    await thread.edit(name, "once")
    second = thread.checkpoint()
    await thread.on_new_messages(exchange("q1", "a1"))
    await thread.edit(name, "twice")
    copy, fork = thread.copy(), thread.fork(thread.messages[2].message_id)
    for each in (copy, fork, LocalThread.from_json(thread.to_json()), thread):
        assert texts(each.messages)[:3] == ["twice", "a0", "q1"]
        each.rollback(first)
        assert texts(each.messages) == ["q0", "a0"]
        each.rollback(second)
        assert texts(each.messages) == ["once", "a0"]
        assert texts(each.parts()[0].messages) == ["once"]


async def test_deleting_is_for_ever(make: MakeAgent) -> None:
    """Nothing can be done with the thread any more; the service forgets a remote one. covers: THREAD-6"""
    async with make(thread={"kind": "remote"}) as agent:
        local, remote = agent.get_local_thread(), agent.get_remote_thread()
        await agent.run("hello", local)
        await agent.run("hello", remote)
        gone = remote.remote_id
        for thread in (local, remote):
            await thread.delete()
            for use in (thread.to_json, thread.fork, thread.copy, lambda t=thread: t.messages):
                with pytest.raises(ThreadDeleted):
                    use()
            with pytest.raises(ThreadDeleted):
                await agent.run("hello", thread)
        with pytest.raises(RemoteThreadLost):
            await agent.list_messages(agent.get_remote_thread(gone))


async def test_a_rollback_leaves_nothing_behind_that_a_deletion_does_not_find(make: MakeAgent) -> None:
    """The service forgets every answer that a checkpoint has marked. covers: THREAD-6"""
    async with make(thread={"kind": "remote"}) as agent:
        thread = agent.get_remote_thread()
        await agent.run("hello", thread)
        await agent.run("hello", thread)
        thread.rollback(thread.checkpoints[0].checkpoint_id)
        await agent.run("hello", thread)
        thread.rewind()
        await agent.run("hello", thread)
        made = {each.remote_id for each in thread.checkpoints}
        thread.rewind()
        await thread.delete()
        assert len(made) == 4
        for gone in made:
            with pytest.raises(RemoteThreadLost):
                await agent.list_messages(agent.get_remote_thread(gone))


async def test_a_conversation_that_was_opened_by_its_id_is_rewound_to_there(make: MakeAgent) -> None:
    """Also from JSON and as a copy: nothing else leads to it, for the next message and for a deletion.

    covers: THREAD-6
    """
    async with make(thread={"kind": "remote"}) as agent:
        first = agent.get_remote_thread()
        await agent.run("My name is Ada.", first)
        thread = agent.get_remote_thread(first.remote_id)
        await agent.run("hello", thread)
        for each in (thread, thread.copy(), agent.open_thread(thread.to_json())):
            each.rewind()
            assert (await agent.run("What is my name?", each)).text == "Your name is Ada."
        thread.rewind()
        await thread.delete()
        with pytest.raises(RemoteThreadLost):
            await agent.list_messages(agent.get_remote_thread(first.remote_id))


@pytest.mark.parametrize("way", ["fork", "copy", "workflow"])
async def test_a_branch_that_went_another_way_is_deleted_alone(make: MakeAgent, way: str) -> None:
    """Also when it was opened from JSON: the original goes on. covers: THREAD-6"""
    async with make(thread={"kind": "remote"}) as agent:
        thread: AgentThread = agent.get_remote_thread()
        if way == "workflow":
            thread = WorkflowThread()
            thread.create_sub_thread(thread=agent.get_remote_thread())
        await agent.run("My name is Ada.", thread)
        thread.checkpoint()
        branch = agent.open_thread((thread.fork() if way == "fork" else thread.copy()).to_json())
        branch.rewind()
        await agent.run("hello", branch)
        kept = branch.get_sub_thread() if isinstance(branch, WorkflowThread) else branch
        assert isinstance(kept, RemoteThread)
        own = kept.remote_id
        await branch.delete()
        assert (await agent.run("What is my name?", thread)).text == "Your name is Ada."
        with pytest.raises(RemoteThreadLost):
            await agent.list_messages(agent.get_remote_thread(own))


async def test_message_stores_of_an_agent_are_sealed_where_a_key_is_set(
    make: MakeAgent, tmp_path: Path
) -> None:
    """The agent seals what is said; a message opens in its own place only. covers: THREAD-9"""
    folder = tmp_path / "messages"
    secrets = {"TA_ENCRYPTION_KEY": "correct horse battery"}
    async with make(message_stores=lambda: FileMessages(folder), secrets=secrets) as agent:
        thread = agent.get_local_thread()
        for n in range(2):
            await agent.run(f"My name is Adalovelace{n}.", thread)
        opened = agent.open_thread(thread.to_json())
        assert (await agent.run("What is my name?", opened)).text == "Your name is Adalovelace1."
        async with open_store(f"sqlite:///{tmp_path}/threads.db", dotenv=None) as store:
            threads = ThreadStore(store, "Tester")
            await threads.save(thread)
            loaded = await threads.load(thread.thread_id, stores=agent.message_stores)
            assert (await agent.run("What is my name?", loaded)).text == "Your name is Adalovelace1."
            with pytest.raises(InvalidRequest, match="its agent's `message_stores`"):
                await threads.load(thread.thread_id, stores=lambda: FileMessages(folder))
        assert (await agent.run("What is my name?", opened.copy())).text == "Your name is Adalovelace1."
        written = b"".join(path.read_bytes() for path in folder.iterdir())
        # neither as it is nor in Base64, at whatever place of a group it begins
        shown = [base64.b64encode(b" " * shift + b"Adalovelace")[4:12] for shift in range(3)]
        assert not any(text in written for text in (b"lovelace", *shown))
        [path] = (path for path in folder.iterdir() if path.stem in thread.to_json())
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[0]["items"], lines[2]["items"] = lines[2]["items"], lines[0]["items"]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with pytest.raises(CorruptState, match="does not open"):
            await agent.open_thread(thread.to_json()).create()
        lines[0]["items"] = [{"content_type": "text", "content": "hello"}]
        path.write_text(json.dumps(lines[0]) + "\n")
        with pytest.raises(CorruptState, match="is not encrypted"):
            await agent.open_thread(thread.to_json()).create()


# --- JSON and fingerprints ------------------------------------------------------------------------


async def test_a_thread_survives_as_json(make: MakeAgent) -> None:
    """Messages, checkpoints, what providers keep: the same text again. covers: THREAD-6"""
    async with make(context_providers=[Wisher()]) as agent:
        thread = agent.get_local_thread()
        await agent.run([Item("text", "look"), Item("image", "data:image/png;base64,iVBORw0KGgo=")], thread)
        first = thread.checkpoint_id
        await agent.run("hello", thread)
        text = thread.to_json()
        for again in (LocalThread.from_json(text), agent.open_thread(text)):
            assert again.to_json() == text
            assert list(again.messages) == list(thread.messages)
            again.rollback(str(first))
            assert len(again.messages) == 2
            assert again.state == {"wisher": {"wishes": 1}}


async def test_another_configuration_is_detected(make: MakeAgent) -> None:
    """By opening and by running, unless the thread is adopted. covers: THREAD-6"""
    one = make()
    thread = one.get_local_thread()
    await one.run("My name is Ada.", thread)
    text = thread.to_json()
    other = make(agent={"system_prompt": "You are somebody else."})
    assert one.fingerprint != other.fingerprint
    assert make().fingerprint == one.fingerprint
    with pytest.raises(ThreadMismatch, match="a different configuration"):
        other.open_thread(text)
    unbound = LocalThread.from_json(text)
    with pytest.raises(ThreadMismatch):
        await other.run("hello", unbound)
    adopted = other.open_thread(text, adopt=True)
    assert (await other.run("What is my name?", adopted)).text == "Your name is Ada."
    with pytest.raises(ThreadMismatch):
        await one.run("hello", adopted)
    nobodys = LocalThread()
    await one.run("hello", nobodys)
    assert nobodys.fingerprint == one.fingerprint


@pytest.mark.parametrize(
    "changed",
    [{"temperature": 1.5}, {"max_tokens": 5}, {"role": "critic"}, {"reasoning_effort": "low"}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_configuration_is_all_that_answers_depend_on(make: MakeAgent, changed: dict[str, Any]) -> None:
    """How the model answers, not only what it is sent. covers: THREAD-6"""
    assert make(agent=changed).fingerprint != make().fingerprint


async def test_another_configuration_is_detected_in_a_workflow(make: MakeAgent) -> None:
    """When it is opened, by the main sub-thread and those that the agent has used; `adopt` takes all of them,
    and leaves those of other agents. covers: THREAD-6, WORKFLOW-1"""
    one, stranger = make(), make(name="Stranger")
    other = make(agent={"system_prompt": "You are another."})
    workflow = WorkflowThread()
    for key in ("main", "writer"):
        await one.run("My name is Ada.", workflow.sub_thread(key))
    inner = WorkflowThread()
    workflow.create_sub_thread("inner", inner)
    await one.run("My name is Ada.", inner)
    await stranger.run("My name is Eve.", workflow.sub_thread("stranger"))
    text = workflow.to_json()
    one.open_thread(text)
    for gone in ("main", "writer", "inner"):
        with pytest.raises(ThreadMismatch, match="a different configuration"):
            other.open_thread(workflow.to_json())
        await workflow.delete_sub_thread(gone)
    other.open_thread(workflow.to_json())
    adopted = other.open_thread(text, adopt=True)
    assert isinstance(adopted, WorkflowThread)
    for thread in (adopted, *(adopted.get_sub_thread(key) for key in ("main", "writer", "inner"))):
        assert (await other.run("What is my name?", thread)).text == "Your name is Ada."
    with pytest.raises(ThreadMismatch):
        await other.run("What is my name?", adopted.get_sub_thread("stranger"))
    assert (await stranger.run("What is my name?", adopted.get_sub_thread("stranger"))).text[-4:] == "Eve."


async def test_remote_sub_threads_of_an_opened_workflow_can_be_deleted(make: MakeAgent) -> None:
    """The agent that opens it brings the client. covers: THREAD-6"""
    async with make(thread={"kind": "remote"}) as agent:
        workflow = WorkflowThread()
        workflow.create_sub_thread("main", agent.get_remote_thread())
        await agent.run("hello", workflow)
        await agent.open_thread(workflow.to_json()).delete()


def changed(thread: AgentThread, **parts: Any) -> str:
    """A thread's JSON, with other parts."""
    return json.dumps({**json.loads(thread.to_json()), **parts})


def mark(checkpoint_id: str, parent: str | None = None, **parts: Any) -> Any:
    return {"checkpoint_id": checkpoint_id, "parent": parent, "created_at": "2026-01-01T00:00:00Z", **parts}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense", "not JSON"),
        ("\ud800", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "format"),
        ('{"format": "tealagents/thread/v1", "kind": "quantum"}', "must be one of local, remote, workflow"),
        ('{"format": "tealagents/thread/v1", "kind": "local"}', "not a thread.*`thread_id`"),
        (changed(LocalThread(), current="x"), "checkpoints: lack the current one"),
        (changed(LocalThread(), current=["x"]), "not a thread.*current"),
        (
            changed(LocalThread(), checkpoints=[mark("a", "b"), mark("b", "a")], current="a"),
            "lack 'b' before",
        ),
        (changed(LocalThread(), checkpoints=[mark("a", "a")], current="a"), "lack 'a' before"),
        (changed(LocalThread(), checkpoints=[mark("a"), mark("a")]), "an id of their own"),
        (changed(LocalThread(), created_at="2026-01-01"), "not a thread.*created_at"),
        (changed(LocalThread(), created_at="2026-01-01T00:00:00"), "not a thread.*created_at"),
        (changed(LocalThread(), fingerprint=[1]), "not a thread.*fingerprint"),
        (changed(LocalThread(), thread_id=""), "not a thread.*thread_id"),
        (changed(LocalThread(), context={"turn": "x"}), "not a thread.*turn"),
        (changed(LocalThread(), context={"providers": {"p": 1}}), "not a thread.*providers"),
        (changed(LocalThread(), checkpoints=[mark("a", context={"turn": []})]), "not a thread.*turn"),
        (changed(LocalThread(), messages=[{"role": 1}]), "not a thread.*messages"),
        (changed(LocalThread(), pending=[["x"]]), "not a thread.*pending"),
        (changed(LocalThread(), pending=["x", "x"]), "same message_id"),
        (changed(LocalThread(), store=[]), "not a thread.*store"),
        (changed(RemoteThread(), remote_id=1), "not a thread.*remote_id"),
        (changed(WorkflowThread(), threads={"main": 1}), "not a thread.*threads"),
        (changed(WorkflowThread(), execution={"next_steps": 1}), "not a thread.*next_steps"),
        (
            changed(WorkflowThread(), checkpoints=[mark("a", execution={"next_steps": 1})]),
            "not a thread.*next",
        ),
        (changed(WorkflowThread(), threads={"main": {"kind": ["local"]}}), "must be one of"),
    ],
)
def test_what_is_no_thread_is_refused(make: MakeAgent, text: str, complaint: str) -> None:
    """With what is wrong about it."""
    with pytest.raises(InvalidRequest, match=complaint):
        make().open_thread(text)


def test_a_thread_is_opened_as_what_it_is() -> None:
    """A remote one is not a local one."""
    with pytest.raises(InvalidRequest, match="kind: must be local, not 'remote'"):
        LocalThread.from_json(RemoteThread("resp_1").to_json())


# --- checkpoints ----------------------------------------------------------------------------------


async def test_back_and_forward_again(make: MakeAgent) -> None:
    """Each answer marks a place; nothing is erased by going back, and another way can be taken.

    covers: THREAD-7
    """
    async with make() as agent:
        for thread in (agent.get_local_thread(), agent.get_remote_thread()):
            marks = []
            for name in ("Ada", "Eve", "Joe"):
                await agent.run(f"My name is {name}.", thread)
                marks.append(str(thread.checkpoint_id))
            thread.rollback(marks[0])
            assert (await agent.run("What is my name?", thread)).text == "Your name is Ada."
            thread.rollback(marks[2])
            assert (await agent.run("What is my name?", thread)).text == "Your name is Joe."
            thread.rollback(marks[1])
            assert len(await agent.list_messages(thread)) == 4
            assert len(thread.checkpoints) == 5
            with pytest.raises(NotFound, match="no checkpoint"):
                thread.rollback("nowhere")
            assert thread.checkpoint_id == marks[1]


async def test_a_fork_keeps_the_way_back(make: MakeAgent) -> None:
    """Checkpoints that lie within it."""
    async with make() as agent:
        thread = agent.get_local_thread()
        for name in ("Ada", "Eve"):
            await agent.run(f"My name is {name}.", thread)
        fork = thread.fork(thread.messages[2].message_id)
        assert [each.checkpoint_id for each in fork.checkpoints] == [thread.checkpoints[0].checkpoint_id]
        fork.rollback(fork.checkpoints[0].checkpoint_id)
        assert texts(fork.messages) == ["My name is Ada.", "Nice to meet you, Ada."]


# --- the package ----------------------------------------------------------------------------------


def test_importing_the_package_is_cheap() -> None:
    """Nothing is imported along that is not asked for."""
    code = (
        "import sys, tealagents; heavy = {'fastapi', 'openai', 'pydantic', 'msgspec', 'httpx', 'yaml'}; "
        "sys.exit(', '.join(heavy & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.strip() == ""


@pytest.mark.parametrize("package", ["tealagents", "tealagents.threads"])
def test_names_that_are_imported_late_are_listed(package: str) -> None:
    """By `dir`, as a shell does that completes them, before one of them is used."""
    code = f"import {package} as p; assert {{*p.__all__, '__file__'}} <= {{*dir(p)}}, dir(p)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    """What the package says it offers can be imported."""
    import tealagents
    import tealagents.threads

    for package in (tealagents, tealagents.threads):
        assert all(getattr(package, name) is not None for name in package.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
            _ = package.Nothing


async def test_a_message_needs_content(make: MakeAgent) -> None:
    """An empty one is refused before anything is asked."""
    async with make() as agent:
        with pytest.raises(InvalidRequest, match="message: is empty"):
            await agent.run([], agent.new_thread())


@pytest.mark.parametrize("message", ["a\ud800", [Item("text", "a"), Item("text", "\udc00")]])
async def test_half_a_character_is_refused(make: MakeAgent, message: Any) -> None:
    """No encoding has it, so neither the model nor a store can be sent it."""
    with pytest.raises(InvalidRequest, match="message: holds a lone surrogate"):
        await make().run(message)


async def test_a_context_may_hold_numbers(make: MakeAgent, service: OfflineModel) -> None:
    """They are sent as they are written."""
    async with make() as agent:
        await agent.run("hello", user_context={"seats": 3})  # type: ignore[dict-item]
    assert "seats: 3" in str(service.requests[-1]["body"]["messages"])


async def test_an_edit_and_a_context_with_half_a_character_are_refused(make: MakeAgent) -> None:
    """The thread could not be saved any more."""
    async with make() as agent:
        thread = agent.get_local_thread()
        await agent.run("hello", thread)
        with pytest.raises(InvalidRequest, match="text: holds a lone surrogate"):
            await thread.edit(thread.messages[0].message_id, "half \ud83d")
        with pytest.raises(InvalidRequest, match="user_context: holds a lone surrogate"):
            await agent.run("hello", thread, user_context={"name": "\ud83d"})
        assert texts(LocalThread.from_json(thread.to_json()).messages) == texts(thread.messages)


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (Item("image", "http://169.254.169.254/x"), "message.0.content: must be a data URI"),
        (Item("image", "data:image/png;base64,?"), "message.0.content: is not valid base64"),
        (Item("audio", "AAAA"), "message.0.content_type: must be text or image"),  # type: ignore[arg-type]
    ],
)
async def test_an_item_that_the_service_refuses_is_refused(make: MakeAgent, item: Item, problem: str) -> None:
    """Neither here nor at the model service is anything fetched that a message names."""
    with pytest.raises(InvalidRequest, match=problem):
        await make().run([item])


async def test_the_kind_of_an_image_is_kept_in_lower_case(make: MakeAgent) -> None:
    """As the service keeps it."""
    async with make() as agent:
        thread = agent.get_local_thread()
        await agent.run([Item("image", "DATA:IMAGE/PNG;BASE64,iVBORw0KGgo=")], thread)
    assert thread.messages[0].items == (Item("image", "data:image/png;base64,iVBORw0KGgo="),)


@pytest.mark.parametrize("message", [None, 3, [""], [None], {"type": "text"}, b"hello"])
async def test_a_message_is_text_or_items(make: MakeAgent, message: Any) -> None:
    """Anything else is refused with what to pass instead, before anything is asked."""
    async with make() as agent:
        with pytest.raises(InvalidRequest, match="message: pass a text or a list of Item"):
            await agent.run(message)


async def test_a_subclass_hears_of_new_messages(make: MakeAgent) -> None:
    """`on_new_messages` is where a thread of one's own begins. covers: THREAD-6"""
    heard: list[str] = []

    class Diary(LocalThread):
        async def on_new_messages(self, messages: Any) -> None:
            heard.extend(texts(messages))
            await super().on_new_messages(messages)

    async with make() as agent:
        await agent.run("hello", Diary())
    assert heard == ["hello", "Hello! How can I help?"]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("context_provider", {"thread": {"context_providers": [{"name": "own_context_provider:Own"}]}}),
        ("reducer", {"thread": {"reducers": [{"name": "own_reducer:Own"}]}}),
        ("toolset", {"agent": {"toolsets": [{"name": "own_toolset:Own"}]}}),
        ("model_client", {"agent": {"client": "own_model_client:Own"}}),
    ],
)
@pytest.mark.parametrize("file", ["{}.py", "{}/__init__.py"])
async def test_a_module_of_another_agent_is_not_taken_for_ones_own(
    tmp_path: Path, kind: str, fields: dict[str, Any], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python has one module of each name: an agent whose module another one's hides is refused."""
    module = f"own_{kind}"
    for folder in (tmp_path / "draft", tmp_path / "review"):
        (own := folder / file.format(module)).parent.mkdir(parents=True)
        own.write_text("class Own:\n    pass\n")
        (folder / "config.yaml").write_text(yaml.safe_dump(agent_config(**fields)))
    monkeypatch.syspath_prepend(tmp_path / "draft")
    sys.modules.pop(module, None)
    import_module(module)
    env = {"TA_BASE_URL": "http://127.0.0.1:9/v1", "TA_API_KEY": "key"}
    for agent, is_hidden in (("draft", False), ("review", True)):
        with pytest.raises((ValueError, ToolsetError), match=f"{module}:Own") as refused:
            await Agent.from_config(tmp_path / agent / "config.yaml", env=env, dotenv=None).run("hello")
        hidden = (
            f"cannot be imported from {tmp_path / 'review'}: Python has the module {module} from {tmp_path}"
        )
        assert (hidden in str(refused.value)) is is_hidden


async def test_a_copy_of_a_module_that_is_installed_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image that installs a project beside whose sources its config lies."""
    for folder in (tmp_path / "installed", tmp_path / "sources"):
        folder.mkdir()
        (folder / "own_copy.py").write_text("class Own:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    config = tmp_path / "sources" / "config.yaml"
    config.write_text(yaml.safe_dump(agent_config(agent={"client": "own_copy:Own"})))
    env = {"TA_BASE_URL": "http://127.0.0.1:9/v1", "TA_API_KEY": "key"}
    with pytest.raises(ValueError, match="own_copy:Own") as refused:
        await Agent.from_config(config, env=env, dotenv=None).run("hello")
    assert "cannot be imported" not in str(refused.value)


async def test_a_module_beside_a_config_that_is_a_link_is_ones_own(tmp_path: Path) -> None:
    """As in a folder that Kubernetes mounts, where each file is a link into another folder."""
    (mounted := tmp_path / "mounted").mkdir()
    (data := mounted / "..data").mkdir()
    (data / "own_link.py").write_text("class Own:\n    pass\n")
    (data / "config.yaml").write_text(yaml.safe_dump(agent_config(agent={"client": "own_link:Own"})))
    for file in data.iterdir():
        (mounted / file.name).symlink_to(Path("..data") / file.name)
    import_from(data.resolve())  # as the file of plugins does, whose links are followed
    env = {"TA_BASE_URL": "http://127.0.0.1:9/v1", "TA_API_KEY": "key"}
    with pytest.raises(ValueError, match="own_link:Own") as refused:
        await Agent.from_config(mounted / "config.yaml", env=env, dotenv=None).run("hello")
    assert "cannot be imported" not in str(refused.value)
