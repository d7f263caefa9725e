"""Message stores for local threads of the library: in memory, in a file, in Redis.

A store belongs to one thread and has its own key; a factory makes one for each thread. Tasks of the service
have no message store, since their messages are in the log; nor have remote threads, whose messages the model
service keeps.
"""

import asyncio
import fcntl
import os
import sys
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from inspect import iscoroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from tealagents.disk import make_folders, private, sync
from tealagents.domain import ids
from tealagents.domain.errors import CorruptState, PersistenceUnavailable
from tealagents.domain.models import Item, Json, Message
from tealagents.domain.ports import SEALED
from tealagents.threads.errors import ThreadConfigError

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Message).decode


class MessageStore(Protocol):
    """The messages of one thread."""

    @property
    def key(self) -> str:
        """The name that distinguishes this store from those of other threads; part of `serialize`."""
        ...

    async def add_messages(self, messages: Sequence[Message]) -> None:
        """Appends messages. When this returns, they are as durable as the store can make them."""
        ...

    async def list_messages(self) -> list[Message]:
        """All messages, oldest first."""
        ...

    def serialize(self) -> Json:
        """The store's part of a thread's JSON, for `update_from_state` of a store from the same factory.

        It identifies the messages, or contains them. A user may have written it: it must not be able to
        choose the folder or server that is read or written.
        """
        ...

    def update_from_state(self, state: Json) -> None:
        """Reconnects to the messages that `serialize` described. `KeyError` or `CorruptState` for other
        JSON."""
        ...

    async def clear(self) -> None:
        """Erases all messages: the thread is deleted."""
        ...


#: makes the store of a new thread
MessageStoreFactory = Callable[[], MessageStore]


_METHODS = ("add_messages", "list_messages", "serialize", "update_from_state", "clear")


def checked_store(store: MessageStore) -> MessageStore:
    """The store. `ThreadConfigError` if it is none, or lacks something: it may be third-party code, and a
    function that forgets to return its store would leave a thread without one."""
    given: object = store
    if given is None:
        raise ThreadConfigError("The function that makes message stores returned None instead of one.")
    lacking = [name for name in _METHODS if not callable(getattr(store, name, None))]
    lacking += [] if hasattr(store, "key") else ["key"]
    if lacking:
        raise ThreadConfigError(f"The message store {type(store).__name__} has no {', '.join(lacking)}.")
    return store


def serialized(store: MessageStore) -> Json:
    """What the store serializes to. `ThreadConfigError` if no thread could be opened with it again."""
    state: object = store.serialize()
    if isinstance(state, dict):
        return state
    if iscoroutine(state):
        state.close()
    raise ThreadConfigError(
        f"The message store {type(store).__name__} is faulty: serialize() returned {type(state).__name__}, "
        "not a dictionary."
    )


class MemoryMessages:
    """Keeps messages in the process; a thread's JSON holds them all."""

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self.key = ids.random_id()
        self._messages = list(messages)

    async def add_messages(self, messages: Sequence[Message]) -> None:
        self._messages += messages

    async def list_messages(self) -> list[Message]:
        return list(self._messages)

    def serialize(self) -> Json:
        return {"key": self.key, "messages": msgspec.to_builtins(self._messages)}

    def update_from_state(self, state: Json) -> None:
        self.key = _checked_key(state["key"])
        self._messages = msgspec.convert(state["messages"], list[Message])

    async def clear(self) -> None:
        self._messages = []


class _Keyed:
    """A store of which a thread's JSON has only the key. The factory sets everything else: a user may have
    written the JSON, and a URL may hold a password."""

    def __init__(self, key: str | None) -> None:
        if key is not None and not _is_key(key):
            raise ValueError("a key has letters, digits and - _ . : @, and begins with a letter or digit")
        self.key = key or ids.random_id()

    def serialize(self) -> Json:
        return {"key": self.key}

    def update_from_state(self, state: Json) -> None:
        self.key = _checked_key(state["key"])


class FileMessages(_Keyed):
    """Keeps messages in a file, a line of JSON each: `{folder}/{key}.jsonl`.

    A line is on the disk before `add_messages` returns. A line that a crash cut short is ignored, and removed
    by the next write.
    """

    def __init__(self, folder: str | Path, key: str | None = None) -> None:
        super().__init__(key)
        self._folder = Path(folder)
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        return self._folder / f"{self.key}.jsonl"

    async def add_messages(self, messages: Sequence[Message]) -> None:
        lines = b"".join(_encode(each) + b"\n" for each in messages)
        await self._in_thread(lambda: self._append(lines))

    async def list_messages(self) -> list[Message]:
        return await self._in_thread(self._read)

    async def clear(self) -> None:
        await self._in_thread(lambda: self.path.unlink(missing_ok=True))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """One access at a time. An access that still waits when its caller is canceled is dropped: a write
        must not bring back a file that has been cleared in the meantime."""
        canceled = threading.Event()

        def alone() -> T:
            with self._lock:
                if canceled.is_set():
                    raise asyncio.CancelledError
                return work()

        try:
            return await asyncio.to_thread(alone)
        except asyncio.CancelledError:
            canceled.set()
            raise
        except OSError as error:
            raise PersistenceUnavailable(f"{self.path}: {error.strerror or error}") from error

    def _append(self, lines: bytes) -> None:
        make_folders(str(self._folder))
        with open(self.path, "ab+", buffering=0, opener=private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            whole = _whole(file)
            file.truncate(whole)
            try:
                _write(file, lines)
            except OSError:  # some lines may have been written: a round is kept as a whole or not at all
                file.truncate(whole)
                raise
            if whole == 0:  # the file may be new: its folder entry has to be on the disk as well
                sync(str(self._folder))

    def _read(self) -> list[Message]:
        try:
            with open(self.path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)  # a round may be being written, or taken back
                data = file.read()
        except FileNotFoundError:
            return []
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        try:
            return [_decode(line) for line in lines]
        except msgspec.DecodeError as error:
            raise CorruptState(str(self.path), f"holds a line that is not a message ({error})") from error


def _write(file: Any, data: bytes) -> None:
    """Writes all of `data`, since a single write may be partial, and waits until it is on the disk."""
    while data:
        data = data[file.write(data) :]
    os.fsync(file.fileno())


def _whole(file: Any) -> int:
    """The length of a file without an incomplete last line."""
    at: int = file.seek(0, os.SEEK_END)
    while at > 0:
        start = max(0, at - 4096)
        file.seek(start)
        found: int = file.read(at - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        at = start
    return 0


def _checked_key(key: object) -> str:
    if not _is_key(key):
        raise CorruptState(str(key), "is not a key of a message store")
    return str(key)


def _is_key(key: object) -> bool:
    """Whether `key` is safe as a part of a file name and of a Redis key."""
    return (
        isinstance(key, str) and key[:1].isalnum() and all(each.isalnum() or each in "-_.:@" for each in key)
    )


class Sealer(Protocol):
    """Encrypts values for a partition and key; `open` raises `CorruptState` for a value sealed for others."""

    def seal(self, partition: str, key: str, value: bytes) -> bytes: ...
    def open(self, partition: str, key: str, value: bytes) -> bytes: ...


class SealedMessages:
    """Any message store, with encrypted content. Ids, roles and times stay readable.

    A message can be decrypted only in the store of its own thread: in another one it raises `CorruptState`.
    """

    def __init__(self, store: MessageStore, cipher: Sealer) -> None:
        self._store = checked_store(store)
        self._cipher = cipher
        self.update_from_state = store.update_from_state
        self.clear = store.clear

    @property
    def key(self) -> str:
        return self._store.key

    @property
    def _partition(self) -> str:
        return f"messages/{self.key}"

    def serialize(self) -> Json:
        return {**serialized(self._store), "sealed": True}

    async def add_messages(self, messages: Sequence[Message]) -> None:
        await self._store.add_messages([self._sealed(each) for each in messages])

    async def list_messages(self) -> list[Message]:
        return [self._opened(each) for each in await self._store.list_messages()]

    def _sealed(self, message: Message) -> Message:
        sealed = self._cipher.seal(self._partition, message.message_id, _encode(message))
        return Message(
            message_id=message.message_id,
            request_id=message.request_id,
            role=message.role,
            created_at=message.created_at,
            items=(Item("text", b64encode(sealed).decode()),),
        )

    def _opened(self, message: Message) -> Message:
        try:
            sealed = b64decode(message.text, validate=True)
        except ValueError:
            sealed = b""
        if not sealed.startswith(SEALED):
            raise CorruptState(
                message.message_id,
                "is not encrypted, but TA_ENCRYPTION_KEY is set. If it was not set when the thread began, "
                "open the thread without it, and add its messages to a new thread that has it",
            )
        return _decode(self._cipher.open(self._partition, message.message_id, sealed))


#: Adds messages once, however often it is sent, and drops the oldest beyond the limit: a call with all its
#: results, so that the first one left is no result. An element is its role's letter and the message.
_ADD = """
if redis.call('SET', KEYS[2], '1', 'NX', 'EX', 3600) then
  for i = 3, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end
  local most, extra = tonumber(ARGV[1]), 0
  if most > 0 then extra = redis.call('LLEN', KEYS[1]) - most end
  while extra > 0 or string.sub(redis.call('LINDEX', KEYS[1], 0) or '', 1, 1) == 't' do
    redis.call('LPOP', KEYS[1])
    extra = extra - 1
  end
end
if tonumber(ARGV[2]) > 0 then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
"""


class RedisMessages(_Keyed):
    """Keeps messages in a list in Redis; with `max_messages`, at most the last so many.

    Messages are added by one script: atomically, idempotently, and without separating a tool call from its
    results. The URL may name any node of a cluster. Needs the extra `redis`.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        max_messages: int | None = None,
        ttl_seconds: int | None = None,
        prefix: str = "tealagents:messages",
    ) -> None:
        if sys.modules.get("redis") is None and find_spec("redis") is None:
            raise ThreadConfigError("RedisMessages needs redis: pip install 'tealagents[redis]'")
        if max_messages is not None and max_messages < 1:
            raise ValueError("max_messages must be at least 1")
        super().__init__(key)
        self._url = url
        self._prefix = prefix
        self._most = max_messages
        self._ttl = ttl_seconds

    @property
    def _list(self) -> str:
        return f"{self._prefix}:{{{self.key}}}"

    async def add_messages(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        once = f"{self._list}:{ids.operation_id()}"
        elements = [message.role[:1].encode() + _encode(message) for message in messages]
        await self._ask("EVAL", _ADD, 2, self._list, once, self._most or 0, self._ttl or 0, *elements)

    async def list_messages(self) -> list[Message]:
        found = await self._ask("LRANGE", self._list, 0, -1)
        try:
            return [_decode(element[1:]) for element in found]
        except msgspec.DecodeError as error:
            raise CorruptState(self._list, f"holds what is not a message ({error})") from error

    async def clear(self) -> None:
        await self._ask("DEL", self._list)

    async def _ask(self, *command: Any) -> Any:
        """Sends a command, and repeats it if the reply was lost: all commands here are idempotent.

        Follows the redirects of a cluster to the node that serves the thread's slot.
        """
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import AskError, MovedError, RedisError
        from redis.exceptions import ConnectionError as Lost
        from redis.exceptions import TimeoutError as TooSlow

        failure: Exception | None = None
        node: dict[str, Any] = {}
        asking = False
        for attempt in range(3):
            client = Redis.from_url(
                self._url, single_connection_client=True, retry=Retry(NoBackoff(), 0), socket_timeout=5
            )
            client.connection_pool.connection_kwargs.update(node)
            try:
                if asking:  # ASKING applies to the connection's next command
                    await client.execute_command("ASKING")  # type: ignore[no-untyped-call]
                return await client.execute_command(*command)  # type: ignore[no-untyped-call]
            except (Lost, TooSlow, OSError) as error:
                failure = error
                await asyncio.sleep(0.1 * attempt)
            except AskError as error:  # MovedError is one; an empty host is that of the node that was asked
                failure, asking = error, not isinstance(error, MovedError)
                node |= {"host": error.host, "port": error.port} if error.host else {"port": error.port}
            except RedisError as error:
                raise PersistenceUnavailable(f"Redis refuses: {error}") from error
            finally:
                await client.aclose()
        raise PersistenceUnavailable(
            "Redis cannot be reached; the thread's messages are not stored."
        ) from failure
