"""The ports to the outside world: Protocols that adapters implement.

A port can be implemented from its docstrings alone. Adapters live in `stores`, `llm`, `auth`, `tools`,
or with a third party (entry-point groups `tealagents.stores`, `.llm`, `.auth`, `.tools`, …).
"""

import re
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
        """Seconds from an arbitrary start; never decreases."""
        ...

    async def sleep(self, seconds: float) -> None: ...


# --- store ---------------------------------------------------------------------------------------


#: the first bytes of every value that is encrypted at rest
SEALED = b"TEAL1"

#: a partition or a key, and the rule in words
NAME = re.compile(r"[A-Za-z0-9._~/@:\-]{1,255}", re.ASCII)
NAME_RULE = "1 to 255 characters of A-Za-z0-9._~/@:-"
#: the most records of one commit
COMMIT_RECORDS = 10
#: the most bytes of all values of one commit
COMMIT_BYTES = 1_000_000


class Record(NamedTuple):
    """A stored value and the operation id of the commit that wrote it: its version."""

    value: bytes
    version: str


class Put(NamedTuple):
    """A value to write, and the seconds, more than 0, after which it expires (None: never)."""

    value: bytes
    ttl: float | None = None


class Commit(Struct, frozen=True, kw_only=True):
    """What one commit expects, writes and deletes, all within one partition.

    At most `COMMIT_RECORDS` records are expected, put and deleted together, and their values sum to at most
    `COMMIT_BYTES`. A store accepts 1,048,576 bytes, because the wrapper that encrypts adds to each value.
    """

    #: 24 hexadecimal digits in lower case: new for each commit, the same when this one is retried
    operation: str
    #: key → the version it must have, or None where the key must be absent (or have expired)
    expect: Mapping[str, str | None] = {}
    put: Mapping[str, Put] = {}
    delete: Collection[str] = ()
    #: True if no one is sent an acknowledgment before a later commit: this one can be read at once and must
    #: survive a crash of the process, but a store may leave it to the later commit to sync both to disk
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

        It is time when a commit that names the topic was applied since the last wait returned True, or
        since the watch was opened. Wake-ups are latched and coalesced: if any arrive while no one waits, the
        next wait returns at once, and only that one. There may be more wake-ups than commits.

        If the store does not push (`Store.pushes`), and while the link to its server is down, waits
        return by a timer: soon if `found` says that the last look found something new, then less and less
        often, at most 0.9 seconds apart. So callers need no timer of their own.

        One caller waits at a time. A canceled wait loses no wake-up.
        """
        ...


class Store(Protocol):
    """Records in partitions: `read`, `scan` and `commit`, expired records, a clock and notifications.

    A *partition* is a text of 1 to 255 characters from ``A-Za-z0-9._~/@:-``; a *key* is the same, within
    its partition; keys are ordered by their code points. A *value* is any bytes up to 1 MB. Every
    method may be called concurrently, from one event loop.

    Opened by entering its async context (`stores.open_store`), which creates the schema, table or folder if
    there is none, and closed by leaving it. A store that opens from a URL extends `stores.base.BaseStore`.

    Every method raises `PersistenceUnavailable` when the store cannot be reached or refuses (its text names
    the store without credentials), and `CorruptState` when stored data cannot be parsed into records.
    """

    #: a name for logs and health: `sqlite`, `redis`, …
    name: str
    #: True if other processes can open the same state
    shared: bool
    #: True if acknowledged data outlives the process
    durable: bool
    #: True if commits wake watches by themselves; False if watches wait by a timer (`Watch.wait`)
    pushes: bool

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        """The records of `keys`, in their order; None for each that is absent or expired.

        One round trip, strongly consistent: it sees every commit acknowledged before it was called.
        The records need not be one snapshot: a store may return some from before a concurrent commit and
        some from after it (DynamoDB reads them in a batch without a transaction). A commit that is based on
        them therefore expects their versions.
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

        A record that cannot be parsed, for which `read` raises `CorruptState`, is returned with its stored
        bytes as the value (and an empty version if it has none): callers that check values notice it, and
        one damaged record does not fail a list.
        """
        ...

    async def expired(self, partition: str, *, limit: int = 100) -> list[str]:
        """Up to `limit` keys of expired records that are still stored, at least in part, in no order.

        A commit that deletes such a key erases the rest of the record; it is then no longer returned. An
        empty list is returned only when there are no more. Used for erasing a user; nothing else requires
        that a store has erased expired records.
        """
        ...

    async def commit(self, partition: str, commit: Commit) -> None:
        """Applies all of `commit` or none of it, atomically and durably.

        - If an expectation does not hold: raises `Conflict`, and nothing is written.
        - Every record that is put gets `commit.operation` as its version.
        - An absent key in `delete` is no error. A key is never both put and deleted.
        - If it is unknown whether the commit was applied (the reply was lost): raises `Unknown`. The store
          itself never sends a commit twice. If it was certainly not applied: `PersistenceUnavailable`.
        - Canceling the caller never leaves half a commit; whether it was applied is then unknown.
        """
        ...

    async def now(self) -> float:
        """Seconds since the epoch by the clock that all processes on this store share."""
        ...

    def watch(self, partition: str, topic: str) -> AbstractAsyncContextManager[Watch]:
        """Opens a watch that is woken by every commit to `partition` whose `notify` names `topic`.

        Such commits may come from any process on the store, this one included. The watch is in effect once
        its context is entered: a commit acknowledged later wakes it, so look at the records after entering.
        Leaving the context frees the watch. A process may hold tens of thousands of watches; all share one
        connection (in a cluster: one per node), opened by the first of them.

        Notifications are delivered on a best-effort basis, in no particular order, and carry no data: they
        say when to look, and the records say what happened. A store that loses its link wakes every watch
        when it notices, lets them wait by a timer meanwhile, and wakes every watch again once the link is
        back. A link that does not answer counts as lost after at most two seconds. Entering and waiting
        never raise because of the link.
        """
        ...

    async def ping(self) -> None:
        """Returns when the store answers and, if it has failed before, accepts writes again.

        `PersistenceUnavailable` otherwise: it cannot be reached, its file was deleted or replaced, its disk
        is full. Cheap enough to be called every second.
        """
        ...

    async def __aenter__(self) -> "Store": ...

    async def __aexit__(self, *exc: object) -> None: ...


class WrappedStore(Store):
    """Forwards every call to another store. Subclasses override the calls that they add to."""

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
    """One call of the model: its input, in the model client's own encoding."""

    #: the system prompt, the history and the new messages, in order, each as `Model.encode…` returned it
    prompt: Sequence[bytes]
    #: `Model.encode_tools` of the tools that may be called; empty for none
    tools: bytes = b""
    #: True if someone may follow the answer as it is written; False: ask for it whole
    stream: bool = False
    #: remote threads: the response or conversation that the model service continues
    remote_id: str | None = None
    #: None: free text
    response_format: ResponseFormat | None = None
    #: None: the model chooses
    tool_choice: ToolChoice | None = None
    #: sent to the model service: `x-request-id` and W3C trace context
    headers: Mapping[str, str] = {}
    #: remote threads: the client adds the id of each response that the service begins, as soon as it is
    #: known. A response without an answer is deleted with its thread
    response_ids: list[str] = []


class Model(Protocol):
    """A client of a model service, one per process. Opened by entering its async context.

    `encode_system`, `encode` and `encode_tools` turn messages and tools into the service's own JSON. The
    result is cached and sent again with later calls, so it must not depend on the call.
    """

    #: the model's name, for telemetry and the result
    name: str
    #: the service's name in telemetry (`gen_ai.provider.name`)
    provider: str
    #: True if the service keeps conversations (`kind: remote`); a client without it counts as False
    supports_remote_threads: bool

    def encode_system(self, text: str) -> bytes:
        """The system prompt as one JSON value, of the same form as a message from `encode`."""
        ...

    def encode(self, message: Message) -> bytes:
        """One message, including its tool calls or its tool result, as one JSON value.

        `Message.native` comes from the `ModelDone` with the tool calls, perhaps of another client or model.
        """
        ...

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        """The JSON array of the tools, or empty bytes for none."""
        ...

    def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        """The events as they arrive, in batches of those available: `TextDelta`s, and a final `ModelDone`.

        Never ends without a `ModelDone`. Raises `ModelFailed` (quoting the service) if the service refuses,
        breaks off or gives no finish reason, `ModelTimeout` if it is too slow, `RemoteThreadLost` if it no
        longer has the conversation. Closing the iterator closes the connection.
        """
        ...

    async def __aenter__(self) -> "Model": ...

    async def __aexit__(self, *exc: object) -> None: ...


@runtime_checkable
class RemoteConversations(Protocol):
    """The further methods of a `Model` with `supports_remote_threads`."""

    async def list_remote(self, remote_id: str) -> list[Message]:
        """The messages of a remote conversation, oldest first. `RemoteThreadLost` if there is none."""
        ...

    async def delete_remote(self, remote_id: str) -> None:
        """Deletes a conversation, or a response and those that it continues. An unknown id is no error.

        Raises `ModelFailed` if the service refuses.
        """
        ...


# --- tools ---------------------------------------------------------------------------------------


class ToolContext(Protocol):
    """The request that a tool call belongs to, as the tool may see it. Never shown to the model."""

    session_id: str
    task_id: str
    request_id: str
    #: the owner's object id
    user_id: str
    #: the owner's tenant: only tenant and object id together identify a user
    tenant_id: str

    @property
    def headers(self) -> Mapping[str, str]:
        """The owner's headers that the config passes on. `NeedsOwner` as in `require_owner`."""
        ...

    def add_extra_data(self, key: str, value: Any) -> None:
        """Adds to the answer's `extra_data`."""
        ...

    def require_owner(self) -> None:
        """Raises `NeedsOwner` unless the owner's own request runs the tool.

        Called before any of the owner's credentials are used: tokens, grants, passed-on headers. An approver
        decides on a call, but never lends the owner's credentials to it.
        """
        ...

    async def user_token(self, scopes: Sequence[str] = ()) -> str:
        """A token to act for the owner downstream (on-behalf-of); without scopes, the owner's own token.

        Raises `NeedsAuthorization` if the owner has not consented, `NeedsOwner` if another user's request
        runs the tool, `ToolFailed` if the service cannot act for users, or if no token came with the request.
        """
        ...


class Tool(Protocol):
    """One thing the model can do."""

    spec: ToolSpec

    async def call(self, context: ToolContext, arguments: Json) -> str:
        """Makes the call and returns its result for the model.

        Raises `ToolFailed` to report a failure to the model, and `NeedsAuthorization` to ask the user for
        consent. Lets `NeedsOwner`, which the context raises if the owner has to resume, and cancellation
        pass. Any other exception is logged and reported to the model by its type and text.

        Never blocks the event loop.
        """
        ...


@runtime_checkable
class Checking(Protocol):
    """A tool that can check arguments before a call, such as those that an approver has edited."""

    def check(self, arguments: Json) -> None:
        """Raises `ToolFailed` if a call with these arguments would be refused before it does anything."""
        ...


class Toolset(Protocol):
    """Tools from one source: the code plugins, an OpenAPI service, an MCP server.

    Opened by entering its async context, which discovers the tools. If a server cannot be reached then,
    it raises `ToolFailed`, saying what to do; the toolset is never silently empty.
    """

    def tools(self) -> Sequence[Tool]:
        """All tools, with names that are unique within the agent. Called after the toolset was opened."""
        ...

    async def __aenter__(self) -> "Toolset": ...

    async def __aexit__(self, *exc: object) -> None: ...


@runtime_checkable
class Finding(Protocol):
    """A toolset that may have tools it cannot list yet."""

    def find(self, name: str) -> Tool | None:
        """The tool of this name, listed or not; None if there can be none. Looked up anew for each call."""
        ...


@runtime_checkable
class PerOwner(Protocol):
    """A toolset whose server lists each owner's tools for that owner alone."""

    def tools_of(self, owner: User) -> Sequence[Tool]:
        """The owner's list, or that of `tools` if the owner has none; the same object until it changes."""
        ...


@runtime_checkable
class Unlisted(Protocol):
    """A placeholder for a tool of a server that has not listed its tools for the owner yet."""

    async def list_for(self, context: ToolContext) -> None:
        """Has the server list its tools for the owner. Raises what a call would raise."""
        ...


# --- auth ----------------------------------------------------------------------------------------


class Authenticator(Protocol):
    """Identifies callers, one per process. Opened by entering its async context."""

    async def authenticate(self, token: str) -> Caller:
        """The caller behind a bearer token.

        Raises `Unauthenticated` (never quoting the token), `InsufficientScope`, `AuthUnavailable`.
        """
        ...

    def resource_metadata(self, resource: str) -> Json | None:
        """The protected-resource document (RFC 9728) for the resource's URL, or None if there is none."""
        ...

    async def __aenter__(self) -> "Authenticator": ...

    async def __aexit__(self, *exc: object) -> None: ...


class Delegation(Protocol):
    """Tokens to act for a user downstream (on-behalf-of)."""

    async def token_for(self, user: User, assertion: str, scopes: Sequence[str]) -> str:
        """A token for `scopes`. `NeedsAuthorization` if the user must consent first, else `ToolFailed`."""
        ...
