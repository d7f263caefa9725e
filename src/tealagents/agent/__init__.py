"""The agent of a config file, without the service: `from tealagents import Agent`.

    async with Agent.from_config("config.yaml") as agent:
        thread = agent.new_thread()
        answer = await agent.run("hi", thread)
        async for delta in agent.run_stream("and now?", thread):
            print(delta.text, end="")

============  ====================================================================================
`answers`     an agent's answer: whole, or as a stream
`answering`   one message and its answer: the turn on a thread, driving `engine.loop`
`opening`     the connections and tools of an open agent
============  ====================================================================================

The library uses the same loop, views, context providers and tools as the service. The thread keeps the
conversation; there is no authentication, no lease and no audit.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from hashlib import sha256
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Self

from tealagents.agent.answering import Answering, Approve, ThreadRecorder
from tealagents.agent.answers import AgentAnswer, AnswerStream, Update
from tealagents.agent.opening import Kind, Opened, Shared, opened, with_kind
from tealagents.config import ConfigError, ServiceConfig, load
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Item, Json, Message, RequestSetup, User
from tealagents.domain.ports import Clock, RemoteConversations
from tealagents.domain.texts import check_encodable, check_user_id
from tealagents.registry import import_from
from tealagents.state.codec import encode_json
from tealagents.state.owner_directory import Directory
from tealagents.threads.base import AgentThread, RemoteUnsupported, ThreadMismatch, decoded
from tealagents.threads.components import prepared_view
from tealagents.threads.context import ContextProvider, Providers
from tealagents.threads.local import LocalThread
from tealagents.threads.message_stores import MessageStoreFactory
from tealagents.threads.remote import RemoteThread
from tealagents.threads.views import Reducer
from tealagents.threads.workflow import MAIN, WorkflowThread, thread_of

log = logging.getLogger(__name__)

__all__ = ["Agent", "AgentAnswer", "AnswerStream", "Update"]


class Agent:
    """One agent, for one user.

    Within `async with`, its connections and tool servers stay open until the block ends (the last one, if
    several overlap); otherwise each call opens and closes them.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        user: str = "local",
        approve: Approve | None = None,
        message_stores: MessageStoreFactory | None = None,
        reducers: Sequence[Reducer] | None = None,
        context_providers: ContextProvider | Sequence[ContextProvider] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`approve` decides on tool calls that need approval; without it they are rejected. `message_stores`
        makes the message store of each new local thread. `reducers` and `context_providers` replace those of
        the config."""
        from tealagents.parts import message_stores_of, providers_of, store_of, view_of

        self.config = _checked(config)
        _check_function("approve", approve, "the call")
        _check_function("message_stores", message_stores)
        #: of the configuration: threads used with another one are not continued
        self.fingerprint = fingerprint_of(config)
        #: makes the message store of each local thread, encrypted if a key is set; None: threads have none
        self.message_stores = message_stores and message_stores_of(config, message_stores)
        self._clock = clock or SystemClock()
        view = view_of(config) if reducers is None else prepared_view(reducers, config.agent.model)
        check_user_id(user, "user")
        self._user = User("local", user)
        self._view = view
        self._approve = approve
        if context_providers is not None and not isinstance(context_providers, Sequence):
            context_providers = [context_providers]
        own = None if context_providers is None else Providers(context_providers)
        there = providers_of(config) if own is None else own  # made once here, to report mistakes now
        #: None: there are none, and the agent may be used in several event loops at once
        self._providers = Shared(lambda: providers_of(self.config) if own is None else own) if there else None
        self._store = store_of(config)
        #: holds providers' memories of the user; a memory store would lose them if it were closed
        self._opened_store = Shared(lambda: self._store, stays=not self._store.durable)
        self._store_checked = False
        self._shared = Shared(self._working)

    @property
    def name(self) -> str:
        return self.config.name

    @classmethod
    def from_config(
        cls,
        path: str | Path,
        *,
        env: Mapping[str, str] | None = None,
        dotenv: str | Path | None = Path(".env"),
        user: str = "local",
        approve: Approve | None = None,
        message_stores: MessageStoreFactory | None = None,
        reducers: Sequence[Reducer] | None = None,
        context_providers: ContextProvider | Sequence[ContextProvider] | None = None,
    ) -> Self:
        """The agent of a config file; `ConfigError` with everything that is wrong in it, `InvalidRequest` or
        `ThreadConfigError` for an argument of another kind."""
        _check_place("path", path)
        if dotenv is not None:
            _check_place("dotenv", dotenv)
        if not isinstance(env, Mapping | None):
            raise InvalidRequest("env", f"must be a mapping, not {type(env).__name__}")
        for name, value in (env or {}).items():
            if not isinstance(value, str):
                raise InvalidRequest("env", f"{name} must be text, not {type(value).__name__}")
        config = load(Path(path), env=env, dotenv=None if dotenv is None else Path(dotenv))
        _check_taken(config)
        import_from(config.source.parent)
        return cls(
            config,
            user=user,
            approve=approve,
            message_stores=message_stores,
            reducers=reducers,
            context_providers=context_providers,
        )

    # --- opening ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._shared.enter()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._shared.leave()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Opened]:
        if self._shared.value is not None:
            self._shared.check_loop()
            yield self._shared.value
            return
        stack = AsyncExitStack()
        working = await stack.enter_async_context(self._working())
        try:
            yield working
        finally:
            try:
                await stack.aclose()
            except Exception:  # the request has succeeded or failed already; a retry would repeat its tools
                log.exception("what the agent works with could not be closed")

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[Opened]:
        async with AsyncExitStack() as stack:
            providers = Providers()
            if self._providers is not None:
                providers = await stack.enter_async_context(self._providers.opened())
                await stack.enter_async_context(self._opened_store.opened())
                await self._check_store()
            yield await stack.enter_async_context(
                opened(self.config, self._store, providers, self._view, self._clock)
            )

    async def _check_store(self) -> None:
        """Refuses a store with another encryption key. Like the service, lists the user in the owner index,
        so that later checks of the key, and exports, find the memories."""
        from tealagents.parts import check_key, record_store_of

        if not self._store_checked:
            records = record_store_of(self.config, self._store, self._clock)
            await check_key(self.config, records)
            await Directory(records).introduce(self._user)
            self._store_checked = True

    # --- threads ---------------------------------------------------------------------------------

    def new_thread(self) -> AgentThread:
        """A thread of the configured kind."""
        return self.get_remote_thread() if self.config.thread.kind == "remote" else self.get_local_thread()

    def get_local_thread(self, messages: Sequence[Message] | None = None) -> LocalThread:
        """A local thread, with these earlier messages, if any. Every model client supports it."""
        thread = LocalThread(messages or (), stores=self.message_stores)
        thread.fingerprint = self.fingerprint
        return thread

    def get_remote_thread(self, thread_id: str | None = None) -> RemoteThread:
        """A conversation at the model service: a new one, or the one with this id (`resp_…`, `conv_…`).

        `RemoteUnsupported` if the model's client does not support remote conversations.
        """
        self._check_remote()
        thread = RemoteThread(thread_id, service=Conversations(self))
        thread.fingerprint = self.fingerprint
        return thread

    def open_thread(self, text: str | bytes, *, adopt: bool = False) -> AgentThread:
        """The thread that `to_json` wrote. `ThreadMismatch` if it was used by another agent, or by this one
        with another configuration; `adopt=True` opens it all the same."""
        thread = thread_of(decoded(text), stores=self.message_stores)
        if adopt:
            self.adopt(thread)
        for each in self._own(thread):
            self._take_on(each)
        return thread

    def adopt(self, thread: AgentThread) -> None:
        """Makes an unchanged thread this agent's. Of a workflow, adopts the main sub-thread and those that
        this agent has used, with any configuration; adopt another agent's sub-thread by itself."""
        for each in self._own(thread):
            each.fingerprint = self.fingerprint

    def _own(self, thread: AgentThread) -> list[AgentThread]:
        """The thread itself; of a workflow, its main sub-thread and those that this agent has used."""
        if not isinstance(thread, WorkflowThread):
            return [thread]
        return [
            own
            for key, each in thread.sub_threads.items()
            if key == MAIN or isinstance(each, WorkflowThread) or self._has_used(each)
            for own in self._own(each)
        ]

    def _has_used(self, thread: AgentThread) -> bool:
        return (thread.fingerprint or "").rpartition(":")[0] == self.name

    def to_remote(self, thread: LocalThread) -> RemoteThread:
        """A remote thread that continues a local one: its messages are sent once, with the first new one.
        The local thread stays."""
        self._check_remote()
        remote = RemoteThread(
            service=Conversations(self), beginning=thread.messages, beginning_state=thread.state
        )
        remote.fingerprint = self.fingerprint
        return remote

    async def to_local(self, thread: RemoteThread) -> LocalThread:
        """A local thread with the messages of a remote one, as the service lists them."""
        local = self.get_local_thread(await self.list_messages(thread))
        local.adopt_state(thread)
        return local

    async def list_messages(self, thread: AgentThread) -> list[Message]:
        """The messages of any thread, oldest first; those of a workflow are its main sub-thread's."""
        if isinstance(thread, WorkflowThread):
            return await self.list_messages(self._main(thread))
        await thread.create()
        if not isinstance(thread, RemoteThread):
            return list(thread.messages)
        if thread.remote_id is None:
            return list(thread.beginning)
        return await Conversations(self).list_remote(thread.remote_id)

    def _main(self, workflow: WorkflowThread) -> AgentThread:
        """The main sub-thread; created, with the configured kind, if there is none yet."""
        return workflow.sub_threads.get(MAIN) or workflow.create_sub_thread(thread=self.new_thread())

    def _take_on(self, thread: AgentThread) -> None:
        """Makes a new thread this agent's. `ThreadMismatch` if another configuration has used it."""
        if thread.fingerprint not in (None, self.fingerprint):
            raise ThreadMismatch(
                f"The thread {thread.thread_id} was used by an agent with a different configuration from the "
                f"one that {self.name} has now. Open it with that one, or adopt it: agent.adopt(thread)."
            )
        thread.fingerprint = self.fingerprint
        if isinstance(thread, RemoteThread) and thread.service is None:
            thread.service = Conversations(self)

    def _check_remote(self) -> None:
        from tealagents.llm import ModelConfigError
        from tealagents.parts import credential_of, model_of

        try:
            model_of(with_kind(self.config, "remote"), credential_of(self.config))
        except ModelConfigError as error:
            raise RemoteUnsupported(str(error)) from None

    # --- answering -------------------------------------------------------------------------------

    async def run(
        self,
        message: str | Sequence[Item],
        thread: AgentThread | None = None,
        *,
        store: bool | None = None,
        user_context: Mapping[str, str] | None = None,
    ) -> AgentAnswer:
        """The agent's answer. It continues the thread; without a thread, nothing is kept.

        `store` can be left out: the thread's kind decides where the conversation is kept, and a contradicting
        `store` is refused (`InvalidRequest`), as is True without a thread. A request that fails leaves the
        thread unchanged, for example with `RequestTimeout` after `limits.request_timeout_seconds`. If it is
        canceled while the tools are being closed, the answer is already in the thread.
        """
        answering = self._answering(message, thread, store, user_context, streamed=False)
        stream = AnswerStream(answering)
        async with stream:
            async for _ in stream:
                pass
        return stream.answer

    def run_stream(
        self,
        message: str | Sequence[Item],
        thread: AgentThread | None = None,
        *,
        store: bool | None = None,
        user_context: Mapping[str, str] | None = None,
    ) -> AnswerStream:
        """Like `run`, as a stream. If the caller stops reading early, the thread stays unchanged."""
        return AnswerStream(self._answering(message, thread, store, user_context, streamed=True))

    async def _answering(
        self,
        message: str | Sequence[Item],
        thread: AgentThread | None,
        store: bool | None,
        user_context: Mapping[str, str] | None,
        *,
        streamed: bool,
    ) -> AsyncGenerator[Update | AgentAnswer, None]:
        _check(thread, user_context)
        if thread is None:
            if store:
                raise InvalidRequest("store", "is True, but without a thread nothing is kept. Pass a thread")
            thread = LocalThread()  # whatever the kind: no one keeps it
        while isinstance(thread, WorkflowThread):
            thread = self._main(thread)
        kind = _kind(thread, store)
        self._take_on(thread)
        with thread.taken():
            async with self._opened() as working:
                await thread.create()
                begun = Answering(
                    agent=await working.agent(kind),
                    records=working.records,
                    thread=thread,
                    user=self._user,
                    approve=self._approve,
                    recorder=ThreadRecorder(message, self._clock),
                    setup=RequestSetup(user_context=dict(user_context or {})),
                )
                async with aclosing(begun.answering(streamed=streamed)) as updates:
                    async for update in updates:
                        yield update


class Conversations:
    """`RemoteConversations` through the model client that the agent has when it is called."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[RemoteConversations]:
        async with self._agent._opened() as working:
            model = (await working.agent("remote")).model
            if not isinstance(model, RemoteConversations):
                raise RemoteUnsupported(f"The client of the model {model.name} keeps no conversations.")
            yield model

    async def list_remote(self, remote_id: str) -> list[Message]:
        async with self._client() as client:
            return await client.list_remote(remote_id)

    async def delete_remote(self, remote_id: str) -> None:
        async with self._client() as client:
            await client.delete_remote(remote_id)


def _checked(config: object) -> ServiceConfig:
    """The config; `InvalidRequest` for anything else, such as the path of its file."""
    if not isinstance(config, ServiceConfig):
        what = type(config).__name__
        raise InvalidRequest("config", f"must be a loaded config, not {what}: use Agent.from_config(path)")
    return config


def _check_place(name: str, value: object) -> None:
    """`InvalidRequest` for what is no path of a file."""
    if not isinstance(value, str | PathLike):
        raise InvalidRequest(name, f"must be the path of a file, not {type(value).__name__}")


def _check_function(option: str, function: object, *arguments: str) -> None:
    """`InvalidRequest` for an option that is given and cannot be called with these arguments."""
    if function is None:
        return
    if not callable(function):
        raise InvalidRequest(option, f"must be a function, not {type(function).__name__}")
    with suppress(ValueError):  # some built-in functions do not say what they take
        parameters = signature(function)
        try:
            parameters.bind(*arguments)
        except TypeError:
            takes = f"must take {', '.join(arguments) or 'no arguments'}"
            raise InvalidRequest(option, f"{takes}; this one takes {parameters}") from None


def _check(thread: object, user_context: object) -> None:
    """`InvalidRequest` for a wrong `thread` or `user_context`."""
    if not isinstance(thread, AgentThread | None):
        what = type(thread).__name__
        raise InvalidRequest("thread", f"must be a thread, as agent.new_thread() makes one, not {what}")
    if not isinstance(user_context, Mapping | None):
        raise InvalidRequest("user_context", f"must be a mapping, not {type(user_context).__name__}")
    for each in (user_context or {}).items():
        check_encodable("{}{}".format(*each), "user_context")


def _kind(thread: AgentThread, store: bool | None) -> Kind:
    """The thread's kind, deciding where the conversation is kept (`InvalidRequest` if `store` differs)."""
    kind: Kind = "remote" if isinstance(thread, RemoteThread) else "local"
    if store is not None and store != (kind == "remote"):
        raise InvalidRequest(
            "store",
            f"is {store}, but the thread is {kind}, and its kind decides where the conversation is kept. "
            "Leave it out, or use a thread of the other kind",
        )
    return kind


def _check_taken(config: ServiceConfig) -> None:
    """`ConfigError` for tasks and output types of the earlier platform, which only the service supports."""
    if not config.stateless:
        return
    from tealagents.config.skagents import EarlierConfig

    if isinstance(config, EarlierConfig) and (config.tasks or config.output_type):
        key = ("spec", "tasks") if config.tasks else ("output_type",)
        why = "has an effect only where the file is served, with `tealagents serve`"
        raise ConfigError([config.document.problem(key, why)])


#: the keys of an agent's own section that affect its answers
_FINGERPRINTED = {
    *("role", "model", "client", "system_prompt", "temperature", "max_tokens", "reasoning_effort"),
    *("plugins", "remote_plugins"),
}


def fingerprint_of(config: ServiceConfig) -> str:
    """The agent's name, and a digest of what affects its answers: model, instructions, tools, reducers and
    the names of context providers.

    Addresses of servers and options of context providers are left out: they may hold keys, which change.
    """
    agent = config.agent
    parts: Json = {
        **agent.model_dump(mode="json", include=_FINGERPRINTED),
        "tools": [each.name for each in agent.mcp_servers + agent.toolsets],
        "reducers": [(each.name, each.options) for each in config.thread.reducers],
        "context_providers": [each.name for each in config.thread.context_providers],
    }
    return f"{config.name}:{sha256(encode_json(parts)).hexdigest()}"
