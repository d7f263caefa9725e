"""What we need from the world: the Protocols that adapters implement.

A port can be implemented from its docstrings alone. Adapters live in `stores`, `llm`, `auth`, `tools`,
or with a third party (entry-point groups `tealagents.stores`, `.llm`, `.auth`, `.tools`, …).
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from msgspec import Struct

from tealagents.domain.events import ModelEvent
from tealagents.domain.models import Caller, Json, Message, ResponseFormat, ToolChoice, User
from tealagents.domain.models import Governance as Governance
from tealagents.domain.models import ToolSpec as ToolSpec

# --- clock ---------------------------------------------------------------------------------------


class Clock(Protocol):
    """Time, passed in so that tests can move it."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow."""
        ...

    async def sleep(self, seconds: float) -> None: ...


# --- store ---------------------------------------------------------------------------------------


#: what a value that was sealed at rest begins with
SEALED = b"TEAL1"


class Record(NamedTuple):
    """A stored value and the operation id of the commit that wrote it: its version."""

    value: bytes
    version: str


class Put(NamedTuple):
    """A value to write, and after how many seconds it may be forgotten (None: never)."""

    value: bytes
    ttl: float | None = None


class Commit(Struct, frozen=True, kw_only=True):
    """What one commit expects, writes and deletes, all within one partition.

    At most 10 records are expected, put and deleted together, and their values sum to at most 1 MB.
    """

    #: 24 hexadecimal digits, fresh for each new commit, the same again for a retry of this one
    operation: str
    #: key → the version it must have, or None where the key must be absent (or have expired)
    expect: Mapping[str, str | None] = {}
    put: Mapping[str, Put] = {}
    delete: Collection[str] = ()
    #: True where nothing is acknowledged before a later commit: it must outlive the process like any other,
    #: and can be read at once, but a store may leave it to that later commit to make both outlive a power cut
    unsynced: bool = False
    #: at most 8 topics of the partition whose watches are woken once the commit is applied (`Store.watch`);
    #: a topic is named like a key and needs no record
    notify: Collection[str] = ()


class Watch(Protocol):
    """One watch of a topic, held open by ``async with store.watch(partition, topic)``.

    ::

        async with store.watch(partition, topic) as watch:
            found = await look()
            while await watch.wait(found=found):
                found = await look()
    """

    async def wait(self, timeout: float | None = None, *, found: bool = True) -> bool:
        """True when it is time to look again, False after `timeout` seconds without a reason to.

        Time to look is: a commit that named the topic was applied since the last wait returned True, or
        since the watch was opened. The wake-up is latched and coalesced: one that comes while no one waits
        makes the next wait return at once, and any number of them return one wait. There may be more
        wake-ups than commits.

        Where the store does not push (`Store.pushes`), and while the link to its server is down, waits
        return by a timer: soon where `found` says that the last look found something new, then less and
        less often, at most 0.9 seconds apart. So callers need no timer of their own.

        One caller waits at a time. A canceled wait loses no wake-up.
        """
        ...


class Store(Protocol):
    """Records in partitions: three primitives, what has expired, a clock and notifications.

    A *partition* is a text of 1 to 255 characters from ``A-Za-z0-9._~/@:-``; a *key* is the same, within
    its partition; keys are ordered by their code points. A *value* is any bytes up to 1 MB. Every
    method may be called concurrently, from one event loop.

    Opened by entering its async context (`stores.open_store`), which makes the schema, table or folder
    where there is none, and closed by leaving it. One that a URL opens extends `stores.base.BaseStore`.

    Raises, from every method: `PersistenceUnavailable` when the store cannot be reached or refuses (its text
    names the store without credentials), `CorruptState` when what is stored cannot even be parsed
    into records.
    """

    #: a name for logs and health: `sqlite`, `redis`, …
    name: str
    #: True where other processes can open the same state
    shared: bool
    #: True where acknowledged data outlives the process
    durable: bool
    #: True where commits wake watches by themselves; False where watches wait by a timer (`Watch.wait`)
    pushes: bool

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        """The records of `keys`, in their order, None where absent or expired.

        One round trip, strongly consistent: it sees every commit acknowledged before it was called.
        Records of one commit may be seen apart only where the store cannot read several at once
        (DynamoDB reads them in one transaction-free batch): what is decided upon them is committed only if
        the versions that it expects still hold.
        """
        ...

    async def scan(
        self,
        partition: str,
        prefix: str,
        *,
        after: str | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[tuple[str, Record]]:
        """Up to `limit` records whose keys begin with `prefix`, in key order (or its reverse).

        `after` is a key (present or not): only keys strictly after it in the direction of the scan
        are returned. Expired records are left out. Fewer than `limit` are returned only when there
        are no more. Strongly consistent.

        A record that cannot be parsed, and that `read` refuses with `CorruptState`, comes here with its
        stored bytes as the value (and no version, where it has none): a caller that checks values
        will find it, and one damaged record does not fail a list.
        """
        ...

    async def expired(self, partition: str, *, limit: int = 100) -> list[str]:
        """Up to `limit` keys of expired records that are still stored, at least in part, in no order.

        A commit that deletes such a key erases what is left of the record; it is then no longer returned.
        An empty list is returned only when there are no more. Used for erasing a user; nothing else needs a
        store to have erased what has expired.
        """
        ...

    async def commit(self, partition: str, commit: Commit) -> None:
        """Do all of `commit` or none of it, atomically and durably.

        - Where an expectation does not hold: `Conflict`, and nothing is written.
        - Every record put gets `commit.operation` as its version.
        - An absent key in `delete` is no error. A key is never both put and deleted.
        - When it is unknown whether the commit was applied (the reply was lost): `Unknown`. The
          store itself never sends a commit twice. When it surely was not: `PersistenceUnavailable`.
        - A canceled caller does not leave half a commit; whether it was applied is then unknown.
        """
        ...

    async def now(self) -> float:
        """Seconds since the epoch by the clock that all processes on this store share."""
        ...

    def watch(self, partition: str, topic: str) -> AbstractAsyncContextManager[Watch]:
        """Opens a watch that is woken by every commit to `partition` whose `notify` names `topic`.

        Such commits may come from any process on the store, this one included. The watch is in effect once
        its context is entered: a commit acknowledged later wakes it, so look at the records after entering.
        Leaving the context frees what the watch held. A process may hold tens of thousands of watches; all
        share one connection (in a cluster: one a node), opened by the first of them.

        Notifications are delivered at best effort, in no order, and carry nothing: they say when to look,
        and the records say what happened. A store that loses its link wakes every watch when it notices,
        lets them wait by a timer while there is none, and wakes every watch again once it is back. A link
        that does not answer counts as lost after at most two seconds. Entering and waiting never raise
        because of the link.
        """
        ...

    async def ping(self) -> None:
        """Returns when the store answers and, where it has failed before, takes a write again.

        `PersistenceUnavailable` otherwise: it cannot be reached, its file was deleted or replaced, its disk
        is full. Cheap enough to be called every second.
        """
        ...

    async def __aenter__(self) -> "Store": ...

    async def __aexit__(self, *exc: object) -> None: ...


class WrappedStore(Store):
    """A store around another, to which it forwards every call. A wrapper overrides what it adds to."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.name, self.shared = store.name, store.shared
        self.durable, self.pushes = store.durable, store.pushes

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        return await self.store.read(partition, keys)

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        return await self.store.scan(partition, prefix, **page)

    async def expired(self, partition: str, *, limit: int = 100) -> list[str]:
        return await self.store.expired(partition, limit=limit)

    async def commit(self, partition: str, commit: Commit) -> None:
        await self.store.commit(partition, commit)

    async def now(self) -> float:
        return await self.store.now()

    def watch(self, partition: str, topic: str) -> AbstractAsyncContextManager[Watch]:
        return self.store.watch(partition, topic)

    async def ping(self) -> None:
        await self.store.ping()

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.store.__aexit__(*exc)


# --- model ---------------------------------------------------------------------------------------


class ModelCall(Struct, frozen=True, kw_only=True):
    """One call of the model: what it is sent, in the model client's own encoding."""

    #: the system prompt, the history and what is new, each encoded once by `Model.encode…`, in order
    prompt: Sequence[bytes]
    #: `Model.encode_tools` of the tools that may be called; empty for none
    tools: bytes = b""
    #: True where the answer may be followed while it is made; False: ask for it whole
    stream: bool = False
    #: remote threads: what the model service continues from
    remote_id: str | None = None
    #: None where the answer is free text
    response_format: ResponseFormat | None = None
    #: None where the model chooses by itself
    tool_choice: ToolChoice | None = None
    #: sent to the model service: `x-request-id` and W3C trace context
    headers: Mapping[str, str] = {}
    #: remote threads: the client adds the id of each response that the service begins, as soon as it is
    #: known. A response without an answer is deleted with its thread
    response_ids: list[str] = []


class Model(Protocol):
    """A client of a model service. Opened by entering its async context, one a process.

    `encode_system`, `encode` and `encode_tools` turn messages into the service's own JSON, once; what they
    return is kept and sent again and again by `stream`, so it must not depend on the call.
    """

    #: the model's name, for telemetry and the result
    name: str
    #: the service's name in telemetry (`gen_ai.provider.name`)
    provider: str
    #: True where the service keeps conversations (`kind: remote`)
    supports_remote_threads: bool

    def encode_system(self, text: str) -> bytes:
        """The system prompt as one JSON value, as `encode` gives a message."""
        ...

    def encode(self, message: Message) -> bytes:
        """One message, its tool calls or its result included, as one JSON value.

        `Message.native` is what a `ModelDone` had with the calls, perhaps that of another client or model.
        """
        ...

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        """The JSON array of the tools, or empty bytes for none."""
        ...

    def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        """The events as they arrive, in batches of what is available: `TextDelta`s, and a final `ModelDone`.

        Never ends without it: a service that refuses, breaks off or ends without a finish reason raises
        `ModelFailed` (with what the service said), one that is too slow `ModelTimeout`, one that has
        lost the conversation `RemoteThreadLost`. Closing the iterator closes the connection.
        """
        ...

    async def __aenter__(self) -> "Model": ...

    async def __aexit__(self, *exc: object) -> None: ...


@runtime_checkable
class RemoteConversations(Protocol):
    """What a `Model` with `supports_remote_threads` can do besides."""

    async def list_remote(self, remote_id: str) -> list[Message]:
        """The messages of a remote conversation, oldest first. `RemoteThreadLost` where there is none."""
        ...

    async def delete_remote(self, remote_id: str) -> None:
        """Deletes a conversation, or a response and those it continues. An id that is gone is no error.

        `ModelFailed` where the service refuses.
        """
        ...


# --- tools ---------------------------------------------------------------------------------------


class ToolContext(Protocol):
    """What a tool may know of the call it serves. Never shown to the model."""

    session_id: str
    task_id: str
    request_id: str
    #: the owner's object id
    user_id: str
    #: the owner's tenant: only the two together name one user
    tenant_id: str

    @property
    def headers(self) -> Mapping[str, str]:
        """The owner's headers that the config passes on. `NeedsOwner` as `require_owner` raises it."""
        ...

    def add_extra_data(self, key: str, value: Any) -> None:
        """Adds to the answer's `extra_data`."""
        ...

    def require_owner(self) -> None:
        """`NeedsOwner` unless the owner's own request runs the tool.

        Called before anything is used that the owner has entrusted to this service: tokens, grants,
        passed-on headers. An approver decides a call and never lends the owner's credentials to it.
        """
        ...

    async def user_token(self, scopes: Sequence[str] = ()) -> str:
        """A token to act for the owner downstream (on-behalf-of); without scopes the owner's own, as it came.

        Raises `NeedsAuthorization` where the owner has not consented, `NeedsOwner` where another
        user's request runs the tool, `ToolFailed` where the service cannot act for users.
        """
        ...


class Tool(Protocol):
    """One thing the model can do."""

    spec: ToolSpec

    async def call(self, context: ToolContext, arguments: Json) -> str:
        """What the model is sent.

        Raises `ToolFailed` to report a failure to the model, `NeedsAuthorization` to ask the user,
        `NeedsOwner` where the owner has to resume: the context raises it, let it through.

        Never blocks the event loop. Cancellation must be let through. Any other exception is reported to
        the model by its type and text, and logged.
        """
        ...


@runtime_checkable
class Checking(Protocol):
    """A tool that can check before a call whether its arguments fit, including those an approver edited."""

    def check(self, arguments: Json) -> None:
        """`ToolFailed` where a call with these arguments would be refused before it does anything."""
        ...


class Toolset(Protocol):
    """Tools from one place: the code plugins, an OpenAPI service, an MCP server.

    Opened by entering its async context, which discovers the tools; a server that cannot be
    reached then is a clear error (`ToolFailed` with what to do), not an empty toolset.
    """

    def tools(self) -> Sequence[Tool]:
        """All tools, each with a name that no other of the agent has. Read once, when the toolset is open."""
        ...

    async def __aenter__(self) -> "Toolset": ...

    async def __aexit__(self, *exc: object) -> None: ...


@runtime_checkable
class Finding(Protocol):
    """A toolset that may have tools it cannot list yet."""

    def find(self, name: str) -> Tool | None:
        """The tool of this name, listed or not; None where there can be none. Called again for each call."""
        ...


@runtime_checkable
class PerOwner(Protocol):
    """A toolset whose server lists each owner's tools for that owner alone."""

    def tools_of(self, owner: User) -> Sequence[Tool]:
        """The same list each time until it changes; that of `tools` for an owner without one."""
        ...


@runtime_checkable
class Unlisted(Protocol):
    """Stands for a tool of a server that has not listed its tools for the owner yet."""

    async def list_for(self, context: ToolContext) -> None:
        """Has the server list them. Raises what a call would raise."""
        ...


# --- auth ----------------------------------------------------------------------------------------


class Authenticator(Protocol):
    """Identifies callers. Opened by entering its async context, one a process."""

    async def authenticate(self, token: str) -> Caller:
        """The caller behind a bearer token.

        Raises `Unauthenticated` (never quoting the token), `InsufficientScope`, `AuthUnavailable`.
        """
        ...

    def resource_metadata(self, resource: str) -> Json | None:
        """The protected-resource document (RFC 9728) for the resource's URL, or None where there is none."""
        ...

    async def __aenter__(self) -> "Authenticator": ...

    async def __aexit__(self, *exc: object) -> None: ...


class Delegation(Protocol):
    """Tokens to act for a user downstream (on-behalf-of)."""

    async def token_for(self, user: User, assertion: str, scopes: Sequence[str]) -> str:
        """A token for `scopes`. `NeedsAuthorization` where the user must consent first, else `ToolFailed`."""
        ...
