"""State in Redis, alone or in a cluster, for any number of processes on any number of machines.

``redis://user:password@host:6379/0?prefix=tealagents:`` or ``rediss://…`` for TLS. A cluster is detected
automatically, and any of its nodes can be the host.

`redis.lua` has the scripts and describes the layout of a partition; `redis_nodes` sends the commands.
"""

import hashlib
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, ClassVar, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr
from redis.crc import key_slot
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from tealagents.domain.errors import Conflict, CorruptState, PersistenceUnavailable, Unknown
from tealagents.domain.ports import Commit, Record
from tealagents.stores.base import (
    BaseStore,
    ReadableFile,
    StoreConfigError,
    StoreOptions,
    StoreUrl,
    check_commit,
    check_key,
    check_keys,
    check_scan,
    is_address,
    scan_bounds,
    unreadable_host,
)
from tealagents.stores.redis_link import RedisWatches, channel_of
from tealagents.stores.redis_nodes import NO_SUCH_DATABASE, ConnectionBroke, Nodes, reason
from tealagents.stores.sql import statements

__all__ = ["RedisOptions", "RedisStore"]

log = logging.getLogger(__name__)

T = TypeVar("T")

#: the length of the version at the beginning of a stored record, in bytes
VERSION: Final = 24
#: the most records that one round trip of a scan fetches
PAGE: Final = 500
#: how often a scan in two round trips is repeated because records came or went in between
LOOKS: Final = 20

#: the oldest version of the server that has all commands of the scripts
OLDEST: Final = (6, 2)

#: credentials, host, port, and the number of a database
_PLACE = re.compile(r"([^@]*@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?[0-9]*", re.ASCII)

#: how servers before 7.2 deny a command within a script; later ones raise `NoPermissionError` for it, too
_DENIED_IN_SCRIPT: Final = "The user executing the script"
#: what failed, the script's digest and the line, as servers from 7.0 on and before word it
_IN_SCRIPT: Final = (
    re.compile(r"(?P<error>.*) script: (?P<digest>[0-9a-f]{40}), on @user_script:(?P<line>\d+)\.?"),
    re.compile(r".*\(call to f_(?P<digest>[0-9a-f]{40})\): @user_script:(?P<line>\d+): .*: (?P<error>.*)"),
)


class RedisOptions(StoreOptions):
    """The options of `redis://` and `rediss://`."""

    #: `redis://user:password@host:port/db`
    address: SecretStr
    #: the prefix of every key
    prefix: str = Field(default="tealagents:", max_length=100, pattern=r"^[^{}]*$")
    #: the most connections of this process to each node
    pool: int = Field(default=32, ge=1, le=10_000)
    connect_timeout: float = Field(default=5, gt=0)
    #: seconds for one command; a commit that takes longer ends with its outcome unknown
    command_timeout: float = Field(default=5, gt=0)
    ssl_ca_certs: ReadableFile | None = None
    ssl_certfile: ReadableFile | None = None
    ssl_keyfile: ReadableFile | None = None

    @classmethod
    def location(cls, url: StoreUrl) -> dict[str, Any]:
        if not _PLACE.fullmatch(url.netloc + url.path):
            raise StoreConfigError(
                f"{url.scheme}://…: it must be {url.scheme}://host:port/number. In a user name or password, "
                "write the characters / @ : ? # % as %2F %40 %3A %3F %23 %25."
            )
        if not is_address(url.netloc):
            raise unreadable_host(url.scheme)
        return {"address": SecretStr(f"{url.scheme}://{url.netloc}{url.path}")}


class RedisStore(BaseStore):
    """A string for each record, an ordered index for each partition, one script per commit."""

    name = "redis"
    shared = True
    durable = True
    pushes = True
    advice = (
        "Check that it is running and that TA_PERSISTENCE or spec.persistence names it, by rediss:// where "
        "it speaks TLS, by redis:// where it does not."
    )
    options_type: ClassVar[type[StoreOptions]] = RedisOptions
    options: RedisOptions
    _watches: RedisWatches

    def __init__(self, options: RedisOptions) -> None:
        super().__init__(options)
        self._nodes = Nodes(
            options.address.get_secret_value(),
            self.unavailable,
            self._refusal,
            size=options.pool,
            connect_timeout=options.connect_timeout,
            command_timeout=options.command_timeout,
            tls={name: getattr(options, name) for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")},
        )
        self._watches = RedisWatches(options.watch_seconds, prefix=options.prefix, nodes=self._nodes)

    @property
    def where(self) -> str:
        return self.options.address.get_secret_value().partition("://")[2].rpartition("@")[2]

    # --- the primitives ---------------------------------------------------------------------------

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        check_keys(partition, keys)
        if not keys:
            return []
        base = self._base(partition)
        command = ("MGET", *(f"{base}:{key}" for key in keys))
        reply = await self._ask(lambda: self._nodes.run(key_slot(base.encode()), command))
        return [value and _record(key, value) for key, value in zip(keys, reply, strict=True)]

    async def scan(
        self,
        partition: str,
        prefix: str,
        *,
        after: str | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[tuple[str, Record]]:
        check_scan(partition, prefix, after, limit)
        low, high = scan_bounds(prefix, after, reverse)
        found: list[tuple[str, Record]] = []
        expired = 0  # in the last page: expired records stay in the index for a while, often many together
        while len(found) < limit and low < high:
            page = min(limit - len(found) + 2 * expired, PAGE)
            keys, values = await self._page(self._base(partition), low, high, page, reverse)
            expired = values.count(None)
            found += [(key, _listed(key, v)) for key, v in zip(keys, values, strict=True) if v is not None]
            if len(keys) < page:
                break
            low, high = (low, keys[-1]) if reverse else (keys[-1] + " ", high)
        return found[:limit]

    async def expired(self, partition: str, *, limit: int = 100) -> list[str]:
        """See `Store.expired`: what is left of an expired record is its entry in the partition's sets."""
        check_key(partition)
        low, high = scan_bounds("", None, reverse=False)
        found: list[str] = []
        while len(found) < limit:
            keys, values = await self._page(self._base(partition), low, high, PAGE, reverse=False)
            found += [key for key, value in zip(keys, values, strict=True) if value is None]
            if len(keys) < PAGE:
                break
            low = keys[-1] + " "
        return found[:limit]

    async def _page(
        self, base: str, low: str, high: str, limit: int, reverse: bool
    ) -> tuple[list[str], list[bytes | None]]:
        """The next keys and their records, as one snapshot."""
        bounds = (f"({high}", f"[{low}") if reverse else (f"[{low}", f"({high}")
        arguments = (*bounds, limit, "1" if reverse else "", f"{base}:")
        index = f"{base}#index"
        try:
            keys, values = await self._ask(
                partial(self._script, "scan", (index,), arguments, raw_errors=True)
            )
        except ResponseError:
            return await self._page_believed(index, arguments)
        return [key.decode() for key in keys], values

    async def _page_believed(
        self, index: str, arguments: Sequence[Any]
    ) -> tuple[list[str], list[bytes | None]]:
        """Like `_page`, for servers where a script must name the records in advance: reads the keys first,
        then keys and records, until the keys are still the same."""
        keys: list[str] = []
        for _ in range(LOOKS):
            names = (index, *(arguments[-1] + key for key in keys))
            reply = await self._ask(partial(self._script, "scan_believed", names, arguments))
            keys = [key.decode() for key in reply[0]]
            if len(reply) > 1:
                return keys, reply[1]
        raise self.unavailable("records come and go faster than they can be read")

    async def commit(self, partition: str, commit: Commit) -> None:
        check_commit(partition, commit)
        base = self._base(partition)
        expect, put = commit.expect, commit.put
        publish = "SPUBLISH" if self._nodes.clustered else "PUBLISH"
        delete = ("", *commit.delete) if put and commit.delete else commit.delete  # see `redis.lua`
        names = (f"{base}:{key}" for keys in (expect, put, delete) for key in keys)
        version = commit.operation.encode()
        values = (
            part
            for value, ttl in put.values()
            for part in (version + value, "" if ttl is None else max(1, math.ceil(ttl * 1000)))
        )
        reply = await self._script(
            "commit",
            (f"{base}#index", f"{base}#expiring", *names),
            (
                *(len(expect), len(put), len(base.encode()) + 2, publish),
                *(v or "" for v in expect.values()),
                *values,
                *(channel_of(base, topic) for topic in commit.notify),
            ),
        )
        if reply:
            raise Conflict(*(key.decode() for key in reply))

    async def now(self) -> float:
        clock = f"{self.options.prefix}{{clock}}"
        if self._nodes.clustered:
            ask = partial(self._script, "now", (clock,), ())
        else:
            ask = partial(self._nodes.run, key_slot(clock.encode()), ("TIME",))
        seconds, microseconds = await self._ask(ask)
        return int(seconds) + int(microseconds) / 1e6

    async def answer(self) -> None:
        await self.now()
        await self._ask(self._nodes.check_role)

    # --- opening ----------------------------------------------------------------------------------

    async def open(self) -> None:
        try:
            for node, info in (await self._nodes.survey()).items():
                clustered = self._nodes.clustered
                where = "{}:{}".format(*node) if clustered else self.where
                _check_version(where, info.get("redis_version", ""))
                rights = _scripts()["rights"].text
                await self._nodes.ask(node, "EVAL", rights, 0, self.options.prefix, int(clustered))
                _check_eviction(where, info.get("maxmemory_policy"))
                _check_durability(where, info)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._watches.close()
        await self._nodes.close()

    # --- asking -----------------------------------------------------------------------------------

    def _base(self, partition: str) -> str:
        return f"{self.options.prefix}{{{partition}}}"

    async def _ask(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Runs a read-only command; retries it once if the connection broke, as an idle one may have."""
        try:
            try:
                return await attempt()
            except ConnectionBroke:
                return await attempt()
        except Unknown as error:
            raise self.unavailable(error) from None

    async def _script(
        self, name: str, keys: Sequence[str], arguments: Sequence[Any], *, raw_errors: bool = False
    ) -> Any:
        """Runs a script by its digest; sends its text if the server does not know it yet."""
        script = _scripts()[name]
        slot = key_slot(keys[0].encode())
        rest = (len(keys), *keys, *arguments)
        try:
            return await self._nodes.run(slot, ("EVALSHA", script.digest, *rest), raw_errors=raw_errors)
        except NoScriptError:
            return await self._nodes.run(slot, ("EVAL", script.text, *rest), raw_errors=raw_errors)

    def _refusal(self, error: RedisError) -> PersistenceUnavailable:
        if isinstance(error, AuthenticationError):
            return self.denied(error, self._remedy_of_login())
        if str(error).startswith(NO_SUCH_DATABASE):
            return self.denied(
                error,
                "Correct the number at the end of the URL in TA_PERSISTENCE or spec.persistence; a cluster "
                "has only 0.",
            )
        if not isinstance(error, NoPermissionError) and _DENIED_IN_SCRIPT not in str(error):
            return self.unavailable(reason(error), _advice_on(error))
        prefix = self.options.prefix
        # users of Redis 6.2 begin with all channels, and then take no pattern
        rights = f"~{prefix}* resetchannels &{prefix}* +@read +@write +@scripting +@pubsub"
        rights += " +ping +time +info +config|get"
        if urlsplit(self.options.address.get_secret_value()).path.strip("/0"):
            rights += " +select"
        if self._nodes.clustered or "'cluster" in str(error):  # which denies what would show that it is one
            rights += " +cluster|slots +asking"
        return self.denied(_with_line(str(error)), f"With ACL SETUSER, give this user `{rights}`.")

    def _remedy_of_login(self) -> str:
        login = urlsplit(self.options.address.get_secret_value())
        form = "TA_PERSISTENCE or spec.persistence (redis://user:password@host, or redis://:password@host)"
        if login.username is None:
            return f"Add a user and its password to {form}."
        # what stands there alone may be meant as the password
        user = f"the user {unquote(login.username)}" if login.username and login.password else "the user"
        return f"Correct {user} or its password in {form}."


def _check_version(where: str, version: str) -> None:
    """An older server refuses PXAT, in the middle of a commit."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise StoreConfigError(f"redis at {where} is version {version}: use 6.2 or later.")


def _check_eviction(where: str, policy: str | None) -> None:
    if policy is None:
        log.warning("redis at %s does not report its maxmemory-policy: it must be noeviction", where)
    elif policy != "noeviction":
        raise StoreConfigError(
            f"redis at {where} has the maxmemory-policy {policy!r}, under which it would throw "
            "records away. Run `redis-cli CONFIG SET maxmemory-policy noeviction` and put it into its "
            "configuration; with a managed service, set it in the parameter group."
        )


def _check_durability(where: str, info: Mapping[str, str]) -> None:
    """Warns if acknowledged commits can be lost."""
    if info.get("aof_enabled") == "0":
        log.warning(
            "redis at %s keeps no append-only file: what was acknowledged since its last snapshot is lost "
            "when it dies. Set `appendonly yes` and `appendfsync always`.",
            where,
        )
    elif (setting := info.get("appendfsync")) != "always":
        log.warning(
            "redis at %s has appendfsync %s: what was acknowledged in the last moments can be lost when it "
            "dies. Set `appendfsync always`.",
            where,
            setting or "(not reported)",
        )


def _with_line(said: str) -> str:
    """An error that quotes the line of a script instead of its number: older servers do not name the command
    that is denied there."""
    for found in filter(None, (form.fullmatch(said) for form in _IN_SCRIPT)):
        for script in _scripts().values():
            if found["digest"] == script.digest:
                return f"{found['error']}: `{script.text.splitlines()[int(found['line']) - 1].strip()}`"
    return said


def _advice_on(error: RedisError) -> str | None:
    """What to do about a server that is running, but refuses to write."""
    if isinstance(error, ReadOnlyError):
        return "Name the master in TA_PERSISTENCE or spec.persistence."
    if "'maxmemory'" in str(error):  # no class of its own within a script, before Redis 7
        return "Raise its maxmemory, in its configuration as well; erasing tasks needs memory, too."
    return None


def _record(key: str, stored: bytes) -> Record:
    try:
        version = stored[:VERSION].decode("ascii")
    except UnicodeDecodeError:
        version = ""
    if len(version) < VERSION:
        raise CorruptState(key, "does not begin with the version of a record")
    return Record(stored[VERSION:], version)


def _listed(key: str, stored: bytes) -> Record:
    """A record for `scan`: a damaged one has the stored bytes and no version."""
    try:
        return _record(key, stored)
    except CorruptState:
        return Record(stored, "")


class _Script(NamedTuple):
    text: str
    digest: str


@cache
def _scripts() -> Mapping[str, _Script]:
    """The scripts of `redis.lua` by name."""
    return {
        name: _Script(text, hashlib.sha1(text.encode()).hexdigest())  # noqa: S324
        for name, text in statements("redis.lua").items()
    }
