"""State in PostgreSQL, for any number of processes on any number of machines.

``postgresql://user:password@host:5432/database?schema=tealagents&pool=10``

The SQL is in `postgres.sql`, the tables and the function that commits in `migrations/postgres`. A commit is
one statement and so one round trip and one transaction; it is as durable as the server's `synchronous_commit`
says, and an unsynced one as the next that is not. The clock is the server's. Through pgbouncer in transaction
mode: `statement_cache_size=0`, or a pgbouncer of 1.21 or later that keeps prepared statements.
"""

import asyncio
import logging
import re
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, Final, Literal
from urllib.parse import quote, urlencode, urlsplit

import asyncpg
from asyncpg.exceptions import (
    ClientConfigurationError,
    DiskFullError,
    DuplicatePreparedStatementError,
    InsufficientPrivilegeError,
    InvalidAuthorizationSpecificationError,
    InvalidCatalogNameError,
    InvalidSQLStatementNameError,
    PostgresError,
    ProtocolViolationError,
    RaiseError,
    ReadOnlySQLTransactionError,
    TargetServerAttributeNotMatched,
    TooManyConnectionsError,
)
from pydantic import Field, SecretStr, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

from tealagents.domain.errors import Conflict, PersistenceUnavailable, Unknown
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
    in_a_line,
    is_address,
    scan_bounds,
)
from tealagents.stores.links import ANSWER_SECONDS
from tealagents.stores.pool import Pool
from tealagents.stores.postgres_link import LOST, Hosts, PostgresWatches
from tealagents.stores.sql import check_schema, migrations, statements

__all__ = ["PostgresOptions", "PostgresStore"]

log = logging.getLogger(__name__)

#: raised by `commit_records` if an expectation does not hold
CONFLICT: Final = "TA001"
#: seconds between two sweeps for expired records, in each process that commits
SWEEP_SECONDS: Final = 60.0
SWEEP_RECORDS: Final = 500
#: seconds for the server to end a statement that no one waits for
CANCEL_SECONDS: Final = 1.0

#: the values of `target_session_attrs` that refuse a standby
_WRITABLE: Final = ("read-write", "primary")
_NO_MORE: Final = ("no more connections allowed", "client connections exceeded")
#: for `sslrootcert`, as libpq has it: the authorities that this system trusts
_SYSTEM: Final = "system"

_HOST = re.compile(r"([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?", re.ASCII)


class PostgresOptions(StoreOptions):
    """The options of `postgresql://`: its own, and libpq's for TLS."""

    #: `postgresql://user:password@host:port/database`
    dsn: SecretStr
    #: the schema of the tables; created if it is missing
    schema_name: str = Field(default="tealagents", alias="schema", pattern=r"^[a-z_][a-z0-9_]{0,62}$")
    #: the most connections of this process
    pool: int = Field(default=10, ge=1, le=1000)
    connect_timeout: float = Field(default=10, gt=0)
    #: seconds for one statement; a commit that takes longer ends with its outcome unknown
    command_timeout: float = Field(default=10, gt=0)
    #: prepared statements kept by each connection; 0 through a pgbouncer that does not keep them
    statement_cache_size: int = Field(default=100, ge=0)
    sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] | None = None
    sslrootcert: ReadableFile | None = None
    sslcert: ReadableFile | None = None
    sslkey: ReadableFile | None = None
    #: of one or several hosts (`host1,host2`) only one that takes writes: a standby's reads are stale
    target_session_attrs: str = "read-write"
    #: the directory of a Unix socket
    host: str | None = None
    application_name: str = "tealagents"

    @field_validator("sslrootcert", mode="wrap")
    @classmethod
    def _known(cls, value: Any, readable: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        if value != _SYSTEM:
            return readable(value)
        if info.data.get("sslmode") not in (None, "verify-full"):  # any of their certificates would do
            raise ValueError(f"'{_SYSTEM}' needs sslmode=verify-full")
        return value

    @classmethod
    def location(cls, url: StoreUrl) -> dict[str, Any]:
        hosts = url.netloc.rpartition("@")[2]
        readable = all(_HOST.fullmatch(host) and is_address(host) for host in hosts.split(","))
        if "@" in url.path or url.netloc.count("@") > 1 or not readable:
            raise StoreConfigError(
                f"{url.scheme}://…: the part between the slashes is not a host and a port. In a user name "
                "or password, write the characters / @ : ? # % as %2F %40 %3A %3F %23 %25."
            )
        return {"dsn": SecretStr(f"postgresql://{url.netloc}{quote(url.path)}")}

    def connect_arguments(self) -> dict[str, Any]:
        """The keyword arguments for `asyncpg.connect`."""
        passed_on = ("sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs", "host")
        query = {name: value for name in passed_on if (value := getattr(self, name)) is not None}
        tls = {}
        if self.sslrootcert == _SYSTEM:  # the driver does not know it; a context wins over the names
            tls["ssl"] = context = ssl.create_default_context()
            if self.sslcert is not None:
                try:
                    context.load_cert_chain(self.sslcert, self.sslkey, password="")
                except OSError as error:  # without `password`, an encrypted key would prompt on the terminal
                    raise StoreConfigError(f"sslcert and sslkey cannot be used: {in_a_line(error)}") from None
        return {
            **tls,
            "dsn": self.dsn.get_secret_value() + ("?" + urlencode(query) if query else ""),
            "timeout": self.connect_timeout,
            "command_timeout": self.command_timeout,
            "statement_cache_size": self.statement_cache_size,
            "max_cached_statement_lifetime": 0,
            "server_settings": {"application_name": self.application_name},
        }


class PostgresStore(BaseStore):
    """Records in one table, commits in one function."""

    name = "postgres"
    shared = True
    durable = True
    pushes = True
    options_type: ClassVar[type[StoreOptions]] = PostgresOptions
    options: PostgresOptions
    _watches: PostgresWatches

    def __init__(self, options: PostgresOptions) -> None:
        super().__init__(options)
        logging.getLogger("asyncio").addFilter(_is_awaited)
        schema = f'"{options.schema_name}"'
        self._sql = {
            name: sql.replace("{schema}", schema) for name, sql in statements("postgres.sql").items()
        }
        arguments = options.connect_arguments()
        self._hosts = Hosts(arguments)
        self._pool = Pool(
            connect=self._connect,
            usable=_is_open,
            discard=_abort,
            full=_is_full,
            size=options.pool,
            timeout=options.connect_timeout,
        )
        self._watches = PostgresWatches(
            options.watch_seconds, schema=options.schema_name, arguments=arguments, send=self._notify
        )
        self._next_sweep = time.monotonic() + SWEEP_SECONDS
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def where(self) -> str:
        parts = urlsplit(self.options.dsn.get_secret_value())
        return f"{parts.netloc.rpartition('@')[2]}{parts.path}, schema {self.options.schema_name}"

    # --- the primitives ---------------------------------------------------------------------------

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        check_keys(partition, keys)
        if not keys:
            return []
        rows = await self._ask("read", partition, keys)
        found = {key: Record(value, version) for key, value, version in rows}
        return [found.get(key) for key in keys]

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
        rows = await self._ask("scan_reverse" if reverse else "scan", partition, low, high, limit)
        return [(key, Record(value, version)) for key, value, version in rows]

    async def expired(self, partition: str, *, limit: int = 100) -> list[str]:
        check_key(partition)
        return [key for (key,) in await self._ask("expired", partition, limit)]

    async def commit(self, partition: str, commit: Commit) -> None:
        check_commit(partition, commit)
        puts = commit.put
        arguments = (
            partition,
            commit.operation,
            list(commit.expect),
            list(commit.expect.values()),
            list(puts),
            [put.value for put in puts.values()],
            [put.ttl for put in puts.values()],
            list(commit.delete),
            commit.unsynced,
        )
        try:
            await self._commit(arguments)
        except (Conflict, PersistenceUnavailable):
            raise
        except BaseException:  # the outcome is unknown, and an extra wake-up does no harm
            self._watches.announce(partition, commit.notify)
            raise
        self._watches.announce(partition, commit.notify)
        if time.monotonic() > self._next_sweep:
            self._start_sweep()

    async def now(self) -> float:
        ((seconds,),) = await self._ask("now")
        return float(seconds)

    async def answer(self) -> None:
        """Fails, too, if the server has become a standby: through pgbouncer, connections to it stay open."""
        ((standby,),) = await self._ask("is_standby")
        if standby and self.options.target_session_attrs in _WRITABLE:
            await self._pool.clear()
            raise self.unavailable(_KNOWN[TargetServerAttributeNotMatched], _IF_READ_ONLY)

    # --- opening ----------------------------------------------------------------------------------

    async def exists(self) -> bool:
        try:
            async with self._session() as connection:
                return await self._is_made(connection)
        finally:
            await self.close()

    async def obstacle(self) -> str | None:
        try:
            async with self._session() as connection:
                if await connection.fetchval(self._sql["may_create"]):
                    return None
                there = await connection.fetchval(self._sql["has_schema"])
        finally:
            await self.close()
        name = self.options.schema_name
        what = f"tables in the schema {name}" if there else f"the schema {name}"
        return f"{self.where}: its user may not create {what}"

    async def open(self) -> None:
        try:
            async with self._session() as connection:
                if not await self._is_made(connection):
                    await self._migrate(connection)
                await self._check_schema(connection)
        except BaseException:
            await self.close()
            raise

    async def _check_schema(self, connection: "asyncpg.Connection[Any]") -> None:
        number = await connection.fetchval(self._sql["schema_number"])
        check_schema("postgres", f"{self.where} is", number)

    async def _is_made(self, connection: "asyncpg.Connection[Any]") -> bool:
        await self._refuse_foreign(connection)
        return bool(await connection.fetchval(self._sql["has_migrations"]))

    async def _refuse_foreign(self, connection: "asyncpg.Connection[Any]") -> None:
        """`StoreConfigError` if another application has tables of the store's names."""
        if await connection.fetchval(self._sql["is_foreign"]):
            raise StoreConfigError(
                f"{self.where} has tables of another application: set ?schema=… to another schema."
            )

    async def close(self) -> None:
        if self._sweeping is not None:  # what it leaves is erased by the next sweep of any process
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._watches.close()
        await self._pool.clear()

    async def migrate(self) -> list[str]:
        """Brings the schema up to this version. Returns what was applied. Needs no `open`.

        `StoreConfigError` where a later version has migrated it, or the role lacks a right.
        """
        try:
            async with self._session() as connection:
                await self._refuse_foreign(connection)
                try:
                    return await self._migrate(connection)
                except InsufficientPrivilegeError as error:
                    raise StoreConfigError(
                        f"{self.where}: its user lacks a right: {error.args[0]}. Run `tealagents migrate` as "
                        "the owner of the database, or of the schema if it is there."
                    ) from None
        finally:
            await self.close()

    async def _migrate(self, connection: "asyncpg.Connection[Any]") -> list[str]:
        sql, schema = self._sql, self.options.schema_name
        applied = []
        async with connection.transaction():
            await connection.execute(sql["migration_lock"], schema)
            if not await connection.fetchval(sql["has_schema"]):
                await connection.execute(sql["create_schema"])
            await connection.execute(sql["create_migrations"])
            number = await connection.fetchval(sql["schema_number"])
            for next_number, (name, text) in migrations("postgres").items():
                if next_number > number:
                    await connection.execute(text.replace("{schema}", f'"{schema}"'))
                    await connection.execute(sql["migrated"], next_number, name)
                    applied.append(name)
            await self._check_schema(connection)
        return applied

    # --- talking to the server --------------------------------------------------------------------

    async def _commit(self, arguments: Sequence[object]) -> None:
        connection = await self._borrow()
        try:
            await connection.fetchval(self._sql["commit"], *arguments)
        except PostgresError as error:
            if _session_ended(error):  # before the commit or right after it
                await self._pool.drop(connection)
                raise Unknown(_reason(error)) from None
            if error.sqlstate == CONFLICT:
                self._pool.give_back(connection)
                raise Conflict(*(error.detail or "").split()) from None
            if isinstance(error, ReadOnlySQLTransactionError):  # what is read from it may be stale
                await self._pool.clear()
            await self._pool.drop(connection)
            raise self._refusal(error) from None
        except LOST as error:
            await self._give_up(connection, error)
            raise Unknown(_reason(error)) from None
        except BaseException as error:  # a canceled caller: the server completes it or does not
            await self._give_up(connection, error)
            raise
        self._pool.give_back(connection)

    async def _ask(
        self, name: str, *arguments: object, again: bool = True, seconds: float | None = None
    ) -> list[Any]:
        """The rows of a read-only statement; retried once on a new connection if an idle one had died.

        `seconds` limits the wait for the answer, not for a connection; None: `command_timeout` does.
        """
        connection = await self._borrow()
        try:
            rows: list[Any] = await connection.fetch(self._sql[name], *arguments, timeout=seconds)
        except (PostgresError, *LOST) as error:
            await self._give_up(connection, error)
            if not again or isinstance(error, TimeoutError) or not _session_ended(error):
                raise self._refusal(error) from None
        except BaseException as error:
            await self._give_up(connection, error)
            raise
        else:
            self._pool.give_back(connection)
            return rows
        return await self._ask(name, *arguments, again=False, seconds=seconds)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator["asyncpg.Connection[Any]"]:
        """A connection for several statements; their errors become `PersistenceUnavailable`."""
        connection = await self._borrow()
        try:
            yield connection
        except (PostgresError, *LOST) as error:
            await self._give_up(connection, error)
            raise self._refusal(error) from None
        except BaseException as error:
            await self._give_up(connection, error)
            raise
        self._pool.give_back(connection)

    async def _borrow(self) -> "asyncpg.Connection[Any]":
        try:
            return await self._pool.borrow()
        except (PostgresError, *LOST) as error:
            raise self._refusal(error) from None

    async def _give_up(self, connection: "asyncpg.Connection[Any]", error: BaseException) -> None:
        """Drops a connection and cancels its statement; if it was lost, drops the idle connections, too.

        A server does not notice that its client is gone while a statement waits for a lock: without the
        cancel, each attempt would leave a server process, until no one could connect any more.
        """
        try:
            if _session_ended(error):  # the others may be dead, too: each would cost another timeout
                await self._pool.clear()
            with suppress(PostgresError, *LOST):
                await connection.close(timeout=CANCEL_SECONDS)
        finally:
            await self._pool.drop(connection)

    async def _connect(self) -> "asyncpg.Connection[Any]":
        return await self._hosts.connect()

    async def _notify(self, prefix: str, payloads: Sequence[str]) -> None:
        """A connection that has gone mute is given up soon: later notifications wait for this one."""
        await self._ask("notify", prefix, payloads, seconds=ANSWER_SECONDS)

    def _refusal(self, error: BaseException) -> PersistenceUnavailable:
        if isinstance(error, InvalidAuthorizationSpecificationError):  # a wrong password is one, too
            return self.denied(
                error.args[0],
                "Correct the user or its password in TA_PERSISTENCE or spec.persistence, or the server's "
                "pg_hba.conf.",
            )
        if isinstance(error, InvalidCatalogNameError):
            return self.denied(
                error.args[0], "Create it, or correct its name in TA_PERSISTENCE or spec.persistence."
            )
        if not isinstance(error, InsufficientPrivilegeError):
            return self.unavailable(_reason(error), _advice_on(error))
        return self.denied(
            error.args[0],
            "As the owner of the database, or of the schema if it is there, run `tealagents migrate`, and "
            "grant this user CONNECT on the database, USAGE on the schema, SELECT, INSERT, UPDATE, DELETE on "
            "all its tables, and EXECUTE on all its functions.",
        )

    # --- erasing what has expired -----------------------------------------------------------------

    def _start_sweep(self) -> None:
        """Starts a sweep beside the commits; processes without commits have nothing that expires."""
        self._next_sweep = time.monotonic() + SWEEP_SECONDS
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep(), name="postgres-sweep")

    async def _sweep(self) -> None:
        try:
            async with self._session() as connection:
                full = erased = f"DELETE {SWEEP_RECORDS}"
                while erased == full:
                    erased = await connection.execute(self._sql["sweep"], SWEEP_RECORDS)
        except PersistenceUnavailable as error:
            log.warning("expired records were not erased; the next sweep will: %s", error)


async def _is_open(connection: "asyncpg.Connection[Any]") -> bool:
    return not connection.is_closed()


def _is_full(error: BaseException) -> bool:
    """Whether the server takes no more connections; a pgbouncer says so in words, of any of its limits."""
    if isinstance(error, ProtocolViolationError):
        return any(words in str(error) for words in _NO_MORE)
    return isinstance(error, TooManyConnectionsError)


async def _abort(connection: "asyncpg.Connection[Any]") -> None:
    connection.terminate()


def _is_awaited(record: logging.LogRecord) -> bool:
    """False for the end of a connection that asyncpg was canceled in making: no one is left to read it, and
    the event loop would report it as an error."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, ConnectionError) and error.args == ("unexpected connection_lost() call",))


def _session_ended(error: BaseException) -> bool:
    """Whether the connection was lost or ended; an error ends a statement, and its transaction."""
    if isinstance(error, PostgresError):
        return bool(error.severity_en != "ERROR")
    return isinstance(error, LOST)


_THROUGH_PGBOUNCER: Final = "a pgbouncer in front of it keeps no prepared statements"
#: failures whose own words do not say what to do
_KNOWN: Final[Mapping[type[BaseException], str]] = {
    TargetServerAttributeNotMatched: "it is read-only: a standby, or default_transaction_read_only is on",
    DuplicatePreparedStatementError: _THROUGH_PGBOUNCER,
    InvalidSQLStatementNameError: _THROUGH_PGBOUNCER,
}


_IF_READ_ONLY: Final = (
    "Name the primary in TA_PERSISTENCE or spec.persistence, or make the server accept writes again."
)


def _advice_on(error: BaseException) -> str | None:
    """What to do about a server that is running, but refuses."""
    if isinstance(error, TargetServerAttributeNotMatched | ReadOnlySQLTransactionError):
        return _IF_READ_ONLY
    if isinstance(error, DuplicatePreparedStatementError | InvalidSQLStatementNameError):
        return "Set ?statement_cache_size=0 in TA_PERSISTENCE or spec.persistence."
    if isinstance(error, RaiseError):  # by the function that commits: it says what to set
        return "New connections use what is set."
    if isinstance(error, DiskFullError):
        return "Enlarge the volume, or delete files that do not belong to the database."
    return None


def _reason(error: BaseException) -> str:
    """What went wrong, in a line. The driver's texts name users and databases, never passwords."""
    if isinstance(error, TimeoutError) and not error.args:
        return "no answer in time"
    known = next((says for kind, says in _KNOWN.items() if isinstance(error, kind)), None)
    if isinstance(error, ClientConfigurationError) and "root certificate file" in str(error):
        known = f"{error.args[0]}; set ?sslrootcert=… to another, or ?sslrootcert={_SYSTEM}"
    if known is None and isinstance(error, PostgresError) and error.args:
        known = error.args[0]
    return in_a_line(error, known)
