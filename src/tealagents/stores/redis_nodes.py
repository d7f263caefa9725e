"""Sends commands to Redis, or to the node of a cluster that serves them, and reports their outcome.

Connections are redis-py's, which handle login and TLS. Commands are sent by this module, because redis-py's
clients repeat a command whose reply was lost: here a command is sent again only if the server has said that
it did not run it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from hiredis import pack_command
from redis.asyncio.connection import Connection, SSLConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from tealagents.domain.errors import PersistenceUnavailable, Unknown
from tealagents.stores.base import in_a_line
from tealagents.stores.pool import Pool

__all__ = [
    "NO_SUCH_DATABASE",
    "Address",
    "ConnectionBroke",
    "NodeUnreachable",
    "Nodes",
    "pack",
    "reason",
    "send_packed",
]

log = logging.getLogger(__name__)

#: how often a cluster may redirect a command, or ask to retry it, before it is given up
REDIRECTIONS: Final = 40

#: how the refusal of SELECT begins, by a server that has fewer databases or is a node of a cluster
NO_SUCH_DATABASE: Final = ("DB index is out of range", "SELECT is not allowed in cluster mode")

Address = tuple[str, int]


class Nodes:
    """The server, or the nodes of a cluster: a command goes to the node that serves its slot."""

    def __init__(
        self,
        url: str,
        unavailable: Callable[[object], PersistenceUnavailable],
        refusal: Callable[[RedisError], PersistenceUnavailable],
        *,
        size: int,
        connect_timeout: float,
        command_timeout: float,
        tls: Mapping[str, str | None],
    ) -> None:
        parts = urlsplit(url)
        self._seed: Address = (parts.hostname or "localhost", parts.port or 6379)
        self._unavailable = unavailable
        #: the error for a command that a server does not run, or for a login that it refuses
        self._refusal = refusal
        self._size = size
        self._connect_timeout = connect_timeout
        self._command_timeout = command_timeout
        self._class = SSLConnection if parts.scheme == "rediss" else Connection
        self._arguments: dict[str, Any] = {
            "db": int(parts.path.strip("/") or 0),
            "username": unquote(parts.username) if parts.username else None,
            "password": unquote(parts.password) if parts.password else None,
            "protocol": 2,
            "driver_info": None,
            "socket_timeout": None,  # the deadline is set around a command and its reply
            "socket_connect_timeout": connect_timeout,
            **(tls if parts.scheme == "rediss" else {}),
        }
        self._pools: dict[Address, Pool[Connection]] = {}
        #: of a cluster: the node that serves each slot
        self._slot_map: dict[int, Address] = {}
        #: how often a server was found that is no master
        self.demotions = 0

    async def run(self, slot: int, command: tuple[Any, ...], *, raw_errors: bool = False) -> Any:
        """The reply to a command from the node that serves its slot.

        Raises `NoScriptError` as it is; with `raw_errors`, every error reply except that the slot has moved
        (`MovedError`), or that the node has no cluster (`ClusterDownError`). `PersistenceUnavailable` if the
        command certainly did not run, `Unknown` if it may have.
        """
        packed = pack(*command)
        address, asking = self.node_of(slot), False
        moves, failed = 0, set[Address]()
        for _ in range(REDIRECTIONS):
            try:
                return await self._send(address, packed, asking)
            except MovedError as moved:
                moves += 1
                if moves > len(self._pools):  # nodes name each other while a slot changes hands
                    await asyncio.sleep(self._command_timeout / REDIRECTIONS)
                address, asking = await self._moved(moved, address), False
            except NodeUnreachable as error:
                successor = None if address in failed else await self._successor(slot, address)
                if successor is None:
                    raise self._unavailable(error) from None
                failed.add(address)
                address, asking = successor, False
            except ResponseError as error:
                if raw_errors or isinstance(error, NoScriptError):
                    raise
                if isinstance(error, AskError):
                    address, asking = _named(error, address), True
                elif isinstance(error, TryAgainError):  # some keys are here and some already there
                    await asyncio.sleep(self._command_timeout / REDIRECTIONS)
                else:
                    raise self._refusal(error) from None
        raise self._unavailable("its slot is being moved")

    async def survey(self) -> dict[Address, dict[str, str]]:
        """The INFO of the server, or of each node of a cluster that serves slots, by its address."""
        try:
            try:
                await self._learn(self._seed)
            except ResponseError:  # a server on its own, or one that forbids the question
                info = await self._about(self._seed)
                if _in_cluster(info):
                    raise
                return {self._seed: info}
            return {node: await self._about(node) for node in sorted(set(self._slot_map.values()))}
        except ResponseError as error:
            raise self._refusal(error) from None
        except (NodeUnreachable, Unknown) as error:
            raise self._unavailable(error) from None

    async def ask(self, address: Address, *command: str | bytes | int) -> Any:
        """The reply of one node to a command without keys. Raises `PersistenceUnavailable`."""
        try:
            return await self._send(address, pack(*command))
        except ResponseError as error:
            raise self._refusal(error) from None
        except (NodeUnreachable, Unknown) as error:
            raise self._unavailable(error) from None

    @property
    def clustered(self) -> bool:
        """Whether it is a cluster; False until its map was read."""
        return bool(self._slot_map)

    def node_of(self, slot: int) -> Address:
        """The node that serves a slot, by the last map; the server itself if there is no map."""
        return self._slot_map.get(slot, self._seed)

    async def look_around(self) -> None:
        """Reads the map of a cluster anew, from any node that answers."""
        for address in sorted(set(self._slot_map.values())):
            with suppress(*_NO_ANSWER):
                await self._learn(address)
                return

    async def check_role(self) -> None:
        """Raises `PersistenceUnavailable` if the server on its own follows another one by now.

        Its connections to those that read may stay, and what they read is stale; they are not used again.
        Nodes of a cluster say so themselves, with `MovedError`.
        """
        if self.clustered:
            return
        try:
            text: bytes = await self.run(0, ("INFO", "replication"), raw_errors=True)
        except ResponseError:  # forbidden, as it may be when connecting
            return
        if b"role:slave" in text:
            raise await self._demoted(self._pool(self._seed), _replica())

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.clear()

    # --- one node ---------------------------------------------------------------------------------

    async def _send(self, address: Address, packed: bytes, asking: bool = False) -> Any:
        """The reply of one node; `ResponseError` if it refuses the command, which then has not run."""
        pool = self._pool(address)
        connection = await self._borrow(pool)
        try:
            async with asyncio.timeout(self._command_timeout):
                await send_packed(connection, _ASKING + packed if asking else packed)
                if asking:
                    await connection.read_response(disable_decoding=True)
                reply = await connection.read_response(disable_decoding=True)
        except (ResponseError, BusyLoadingError, AuthenticationError) as error:
            if not _is_no_master(error):
                pool.give_back(connection)
                if isinstance(error, ClusterDownError):  # perhaps it alone: it restarted empty
                    raise NodeUnreachable(reason(error)) from None
                raise
            await pool.drop(connection)
            raise await self._demoted(pool, error) from None
        except TimeoutError as error:
            await pool.drop(connection, mute=True)
            raise Unknown(reason(error)) from None
        except (RedisError, OSError) as error:
            await pool.drop(connection)
            await pool.clear()
            raise ConnectionBroke(reason(error)) from None
        except BaseException:  # the caller was canceled: the server may have run the command
            await pool.drop(connection)
            raise
        pool.give_back(connection)
        return reply

    async def _demoted(self, pool: Pool[Connection], error: RedisError) -> PersistenceUnavailable:
        """Lets go of the connections to a server that is no master: its place may lead to another by now."""
        self.demotions += 1
        await pool.clear()
        return self._refusal(error)

    async def _borrow(self, pool: Pool[Connection]) -> Connection:
        try:
            return await pool.borrow()
        except (AuthenticationError, NoPermissionError) as error:  # of what a connection begins with
            raise self._refusal(error) from None
        except ReadOnlyError as error:  # what `connect` raises of a replica
            raise await self._demoted(pool, error) from None
        except (RedisError, OSError, TimeoutError) as error:
            if isinstance(error, ResponseError) and str(error).startswith(NO_SUCH_DATABASE):
                raise self._refusal(error) from None
            raise NodeUnreachable(reason(error)) from None

    def _pool(self, address: Address) -> Pool[Connection]:
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = Pool(
                connect=lambda: self.connect(address),
                usable=_is_quiet,
                discard=_abort,
                full=_is_full,
                size=self._size,
                timeout=self._connect_timeout,
            )
        return pool

    async def connect(self, address: Address) -> Connection:
        """A connection to a server that accepts writes: after a failover, a name may lead to the old one."""
        connection = self._class(host=address[0], port=address[1], **self._arguments)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            info = await _info(connection)
            if info.get("role") == "slave" and not _in_cluster(info):
                raise _replica()
        except BaseException:
            await _abort(connection)
            raise
        return connection

    async def _about(self, address: Address) -> dict[str, str]:
        pool = self._pool(address)
        connection = await self._borrow(pool)
        try:
            async with asyncio.timeout(self._command_timeout):
                info = await _info(connection)
                info["appendfsync"] = await _setting(connection, "appendfsync")
        except (RedisError, OSError, TimeoutError) as error:
            await pool.drop(connection)
            raise NodeUnreachable(reason(error)) from None
        except BaseException:
            await pool.drop(connection)
            raise
        pool.give_back(connection)
        return info

    # --- a cluster --------------------------------------------------------------------------------

    async def _moved(self, moved: MovedError, asked: Address) -> Address:
        """The new node of a slot. Other slots have probably moved, too, so the whole map is read again."""
        address = _named(moved, asked)
        try:
            await self._learn(address)
        except _NO_ANSWER as error:
            log.warning("the map of the redis cluster could not be read: %s", error)
        self._slot_map[moved.slot_id] = address
        return address

    async def _successor(self, slot: int, gone: Address) -> Address | None:
        """The node that serves a slot instead of an unreachable one; None if no other node knows one.

        All nodes are asked in turn, since some may not know of the failover yet.
        """
        for address in sorted(set(self._slot_map.values()) - {gone}):
            try:
                await self._learn(address)
            except _NO_ANSWER:
                continue
            if (successor := self._slot_map.get(slot, gone)) != gone:
                return successor
        return None

    async def _learn(self, address: Address) -> None:
        """Reads the map of slots from a node, unless it has none, as after a restart without its data."""
        ranges = await self._send(address, _CLUSTER_SLOTS)
        if not ranges:
            raise NodeUnreachable("it knows no node of its cluster that serves slots")
        self._slot_map = {
            slot: ((host or b"").decode() or address[0], port)
            for first, last, (host, port, *_), *_ in ranges
            for slot in range(first, last + 1)
        }


class ConnectionBroke(Unknown):
    """The connection broke before the reply to a command, which may have run."""


class NodeUnreachable(Exception):
    """A node could not be connected to, or knows no node that serves the slot: nothing has run."""


_NO_ANSWER: Final = (PersistenceUnavailable, Unknown, NodeUnreachable, ResponseError)


def pack(*parts: str | bytes | int) -> bytes:
    """A command as it is sent."""
    packed: bytes = pack_command(parts)  # type: ignore[arg-type]  # any number of parts
    return packed


_ASKING: Final = pack("ASKING")
_CLUSTER_SLOTS: Final = pack("CLUSTER", "SLOTS")


def _named(redirection: AskError, asked: Address) -> Address:
    """The node that a redirection names; an empty host means the one that was asked."""
    return redirection.host or asked[0], redirection.port


def _is_no_master(error: RedisError) -> bool:
    """Whether the server is not, or not yet, the primary, so that the next command needs a new connection.

    Redis 6.2 wraps the refusal of a command within a script in an error of the script.
    """
    refusals = (ReadOnlyError, MasterDownError, BusyLoadingError, AuthenticationError)
    return isinstance(error, refusals) or " -READONLY " in str(error)


def _replica() -> ReadOnlyError:
    return ReadOnlyError("the server is a replica")


def _is_full(error: BaseException) -> bool:
    """Whether a server refused a connection because it takes no more. (Over TLS it drops it silently.)"""
    return "max number of clients" in str(error)


async def _is_quiet(connection: Connection) -> bool:
    """Whether it is open and has nothing unread."""
    return connection.is_connected and not await connection.can_read()


async def send_packed(connection: Connection, packed: bytes) -> None:
    """Writes a command; ConnectionError to a closed connection.

    uvloop reports that as RuntimeError, and asyncio of Python 3.12 and 3.13 up to 3.13.5 as AttributeError.
    """
    try:
        await connection.send_packed_command(packed, check_health=False)
    except (RuntimeError, AttributeError) as error:
        raise ConnectionError(*error.args) from error


async def _abort(connection: Connection) -> None:
    await connection.disconnect(nowait=True)


async def _info(connection: Connection) -> dict[str, str]:
    """The server's INFO; empty where the service does not allow it."""
    await send_packed(connection, pack("INFO"))
    try:
        text: bytes = await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        if _is_full(error):  # of a cluster's node; that of a server on its own is a ConnectionError
            raise
        return {}
    pairs = (line.partition(":") for line in text.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}


def _in_cluster(info: Mapping[str, str]) -> bool:
    """Whether a server says that it is a node of a cluster: `redis_mode`, or `server_mode` since Valkey 8."""
    return "cluster" in (info.get("redis_mode"), info.get("server_mode"))


async def _setting(connection: Connection, name: str) -> str:
    """A configuration parameter; empty where the service does not allow it."""
    await send_packed(connection, pack("CONFIG", "GET", name))
    try:
        reply: list[bytes] = await connection.read_response(disable_decoding=True)
    except ResponseError:
        return ""
    return reply[1].decode() if reply else ""


def reason(error: BaseException) -> str:
    """What went wrong, in a line. Neither the driver nor the server quotes a password."""
    if isinstance(error, TimeoutError) and not error.args:
        return "no answer in time"
    if _is_full(error):
        return in_a_line(error, f"{error}; raise its maxclients, or set a smaller ?pool= for each process")
    return in_a_line(error)
