"""State in one SQLite file, shared by the processes of one machine. `sqlite:///relative.db`, `sqlite:////abs.db`

The SQL is in `sqlite.sql`, the table in `migrations/sqlite`. The file is in WAL mode with `synchronous=FULL`:
what was acknowledged survives a power cut, and readers never wait for writers.

One thread owns the connection that writes, another one the connection that scans. Commits that wait while
another is being synced share the next transaction, and so one sync; each still conflicts on its own. Reads of
a few keys, and unsynced commits while nothing else writes, are made on the event loop itself: they touch a
few pages, do not wait, and would cost several times as much in a thread. The next synced commit makes earlier
unsynced ones survive a power cut, too, since all share one write-ahead log. (The first write after the log
was restarted syncs its header: once in 16 MB.)
"""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Any, Final, TypeVar

from pydantic import Field

from tealagents.disk import make_folders, sync
from tealagents.domain.errors import Conflict, CorruptState, PersistenceUnavailable, Unknown
from tealagents.domain.ports import Commit, Record
from tealagents.stores.base import (
    ADVICE_ON_FILES,
    BaseStore,
    StoreConfigError,
    StoreOptions,
    StoreUrl,
    check_commit,
    check_key,
    check_keys,
    check_scan,
    scan_bounds,
)
from tealagents.stores.local_link import LocalWatches
from tealagents.stores.sql import check_schema, migrations, statements
from tealagents.stores.sqlite_threads import ConnectionThread, Job, fail, one_by_one

__all__ = ["SqliteOptions", "SqliteStore"]

log = logging.getLogger(__name__)

T = TypeVar("T")

#: up to this many keys are read on the event loop
FEW: Final = 8
#: pages in the log after which it is copied into the database: 16 MB, mostly versions of the same few pages
LOG_PAGES: Final = 4000
#: seconds between two erasures of what has expired, and how many records each erases at most
SWEEP_SECONDS: Final = 60.0
SWEEP_RECORDS: Final = 500
#: seconds after a deletion until the log is emptied, unless readers prevent it
ERASE_SECONDS: Final = 1.0
#: seconds for which emptying the log waits for its readers; no one else can write meanwhile
BUSY_LOG_SECONDS: Final = 0.1

#: errors of COMMIT that leave nothing in the log; others, such as a failed sync, may leave the commit in it
_NOT_COMMITTED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})
_CORRUPT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class SqliteOptions(StoreOptions):
    path: Path
    #: seconds to wait for another process that writes before the store counts as unavailable
    busy_seconds: float = Field(default=10, gt=0)

    @classmethod
    def location(cls, url: StoreUrl) -> dict[str, Any]:
        """What follows the third slash is the path: `sqlite:///state.db`, `sqlite:////var/lib/state.db`"""
        if url.netloc:
            raise StoreConfigError(
                f"{url.safe}: write three slashes, as in sqlite:///{url.netloc}{url.path}, or four before an "
                "absolute path."
            )
        if not (path := url.path.removeprefix("/")):
            raise StoreConfigError("sqlite://: name the file, as in sqlite:///state.db.")
        return {"path": url.relative_to / path}


class SqliteStore(BaseStore):
    """One file and three connections: a writing thread's, a scanning thread's and the event loop's."""

    name = "sqlite"
    shared = True
    durable = True
    advice = ADVICE_ON_FILES
    pushes = True
    options_type = SqliteOptions
    options: SqliteOptions
    _watches: LocalWatches

    def __init__(self, options: SqliteOptions, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(options, clock=clock)
        self._sql = statements("sqlite.sql")
        self._path = options.path.absolute()
        # beside the file itself, as its log is: other processes may name it by another symbolic link, or none
        self._watches = LocalWatches(options.watch_seconds, Path(f"{os.path.realpath(self._path)}-notify"))
        #: empties the log; None if it holds no deleted records
        self._erasing: asyncio.Task[None] | None = None
        #: records were deleted since the last attempt to empty the log
        self._deleted = False
        self._next_sweep = 0.0
        #: a sync has failed: the log's content may not be on the disk, even if the next sync succeeds
        self._doubtful = False

    @property
    def where(self) -> str:
        return str(self._path)

    async def exists(self) -> bool:
        return await self._in_thread(lambda: self._at_rest("is_made"))

    async def obstacle(self) -> str | None:
        return await self._in_thread(self._foreign)

    async def open(self) -> None:
        writing, scanning, self._at_hand = await self._in_thread(self._connect_all)
        self._files = self._identities()
        self._writer = ConnectionThread(writing, self._in_one_transaction)
        self._scanner = ConnectionThread(scanning, one_by_one)

    async def close(self) -> None:
        self._files.clear()  # the last connection deletes the log
        await self._writer.close()  # first: deletions by canceled callers have to be erased from the log, too
        self._watches.close()
        await self._erase_before_closing()
        self._at_hand.close()
        await self._scanner.close()

    async def migrate(self) -> list[str]:
        """Brings the schema up to this version; returns the names of the migrations that were applied.

        May be called before `open`. `StoreConfigError` if a later version has migrated the file.
        """
        return await self._in_thread(self._migrate)

    # --- the primitives ---------------------------------------------------------------------------

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        check_keys(partition, keys)
        statement, arguments = self._about(keys, "read", partition)
        rows = self._rows_at_once(statement, arguments) if len(keys) <= FEW else None
        if rows is None:
            rows = await self._rows(statement, arguments)
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
        statement = self._sql["scan_reverse" if reverse else "scan"]
        arguments = (partition, *scan_bounds(prefix, after, reverse), self.clock(), limit)
        rows = await self._rows(statement, arguments)
        return [(key, Record(value, version)) for key, value, version in rows]

    async def expired(self, partition: str, *, limit: int = 100) -> list[str]:
        check_key(partition)
        rows = await self._rows(self._sql["expired"], (partition, self.clock(), limit))
        return [key for (key,) in rows]

    async def commit(self, partition: str, commit: Commit) -> None:
        """See `Store.commit`. Once it is queued, it is carried out even if the caller is canceled."""
        check_commit(partition, commit)
        self._check_files()

        def write(connection: sqlite3.Connection) -> None:
            self._write(connection, partition, commit)

        def written() -> None:
            if commit.delete:
                self._erase_soon()
            if commit.notify:
                self._watches.announce(partition, commit.notify)

        try:
            if commit.unsynced and self._done_at_once(write):
                written()
            else:
                await self._writer.do(write, written)
        except sqlite3.Error as error:
            raise self._refused(error) from error

    async def answer(self) -> None:
        self._check_files()
        await self._rows(self._sql["schema_number"], ())

    def _identities(self) -> list[tuple[str, Path, os.stat_result]]:
        """The file and its log, which is there while a connection is open."""
        log_file = Path(f"{os.path.realpath(self._path)}-wal")
        return [(name, path, path.stat()) for name, path in (("file", self._path), ("log", log_file))]

    def _check_files(self) -> None:
        """`PersistenceUnavailable` if the file or its log was deleted or replaced: writes would be lost."""
        for name, path, opened in self._files:
            try:
                found = os.stat(path)
            except OSError as error:
                raise self.unavailable(f"its {name} is gone ({error.strerror}): {path}") from None
            if not os.path.samestat(found, opened):
                advice = "restart the service to open that"
                raise self.unavailable(f"its {name} was replaced by another; {advice}")

    # --- erasing what was deleted -----------------------------------------------------------------

    def _erase_soon(self) -> None:
        """Schedules emptying the log, which still holds deleted records until then."""
        self._deleted = True
        if self._erasing is None:
            self._erasing = asyncio.create_task(self._erase(), name="sqlite-erase")

    async def _erase(self) -> None:
        """Empties the log, retrying while readers prevent it."""
        while self._deleted:
            await asyncio.sleep(ERASE_SECONDS)
            self._deleted = False
            try:
                await self._scanner.do(self._empty_log)
            except sqlite3.Error as error:
                log.debug("deleted records are still in the log: %s", error)
                self._deleted = True
        self._erasing = None

    async def _erase_before_closing(self) -> None:
        """Empties the log, so that `state delete-user` has erased everything when it returns, even while a
        service is running."""
        erasing, self._erasing = self._erasing, None
        if erasing is None:
            return
        erasing.cancel()
        try:
            async with asyncio.timeout(self.options.busy_seconds):
                await self._empty_log_at_last()
        except TimeoutError:
            log.warning("deleted records can be read in %s-wal until its users have stopped", self._path)

    async def _empty_log_at_last(self) -> None:
        while True:
            try:
                return await self._scanner.do(self._empty_log)
            except sqlite3.Error:
                await asyncio.sleep(BUSY_LOG_SECONDS)

    def _rows_at_once(self, statement: str, arguments: Sequence[object]) -> list[Any] | None:
        """The rows; None on any error, such as a locked file: the thread then waits, or reports the error."""
        try:
            return self._at_hand.execute(statement, arguments).fetchall()
        except sqlite3.Error:
            return None

    def _done_at_once(self, work: Callable[[sqlite3.Connection], None]) -> bool:
        """Commits without a sync; False if another connection is writing: the thread then waits for it."""
        if self._doubtful:
            return False
        try:
            self._at_hand.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            return False
        job = Job(work)
        self._finish(self._at_hand, [job])
        if job.error is not None:
            raise job.error
        return True

    async def _rows(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        try:
            return await self._scanner.do(
                lambda connection: connection.execute(statement, arguments).fetchall()
            )
        except sqlite3.Error as error:
            raise self._refused(error) from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except (sqlite3.Error, OSError) as error:
            raise self._refused(error) from error

    def _refused(self, error: sqlite3.Error | OSError) -> CorruptState | PersistenceUnavailable:
        if _code(error) & 0xFF in _CORRUPT:
            return CorruptState(str(self._path), f"is a damaged database ({error})")
        return self.unavailable(error)

    # --- in the threads ---------------------------------------------------------------------------

    def _about(self, keys: Sequence[str], name: str, partition: str) -> tuple[str, Sequence[object]]:
        """A statement about `keys`, and its arguments."""
        statement = self._sql[name].replace("{keys}", ",".join("?" * len(keys)))
        return statement, (partition, self.clock(), *keys)

    def _write(self, connection: sqlite3.Connection, partition: str, commit: Commit) -> None:
        """Writes a commit within a transaction that others may share: raises `Conflict` before it writes."""
        if commit.expect:
            found = dict(connection.execute(*self._about(list(commit.expect), "versions", partition)))
            if differing := [key for key, version in commit.expect.items() if found.get(key) != version]:
                raise Conflict(*differing)
        if commit.put:
            now = self.clock()
            rows = [
                (partition, key, commit.operation, value, None if ttl is None else now + ttl)
                for key, (value, ttl) in commit.put.items()
            ]
            connection.executemany(self._sql["put"], rows)
        if commit.delete:
            connection.executemany(self._sql["delete"], [(partition, key) for key in commit.delete])

    def _in_one_transaction(self, connection: sqlite3.Connection, jobs: Sequence["Job"]) -> None:
        """Does all jobs and syncs once."""
        try:
            if self._doubtful:
                self._empty_log(connection, "a sync has failed, and the log is in use")
                self._doubtful = False
            connection.execute("BEGIN IMMEDIATE")
            self._sweep(connection)
        except BaseException as error:  # noqa: BLE001 — raised where each commit is awaited
            _roll_back(connection)
            fail(jobs, error)
        else:
            self._finish(connection, jobs)

    def _finish(self, connection: sqlite3.Connection, jobs: Sequence["Job"]) -> None:
        """Does all jobs in the open transaction, and commits it. A `Conflict` fails its own job only; any
        other error fails them all."""
        try:
            for job in jobs:
                job.do(connection)
        except BaseException as error:  # noqa: BLE001 — raised where each commit is awaited
            _roll_back(connection)
            return fail(jobs, error)
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            _roll_back(connection)
            surely_not = _code(error) in _NOT_COMMITTED
            self._doubtful = self._doubtful or not surely_not
            fail(jobs, error if surely_not else Unknown(f"the sync failed: {error}"))

    def _empty_log(self, connection: sqlite3.Connection, trouble: str = "the log is in use") -> None:
        """Copies the log into the database and truncates it.

        This is done after a deletion, because the log still holds deleted records; and after a failed sync,
        because the system counts pages as written that may be lost, and SQLite reads a log only up to the
        first invalid page.
        """
        connection.execute(f"PRAGMA busy_timeout = {BUSY_LOG_SECONDS * 1000:.0f}")
        try:
            (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {self.options.busy_seconds * 1000:.0f}")
        if busy:
            raise sqlite3.OperationalError(trouble)

    def _sweep(self, connection: sqlite3.Connection) -> None:
        """Erases expired records every `SWEEP_SECONDS`, at most `SWEEP_RECORDS` at a time."""
        if time.monotonic() < self._next_sweep:
            return
        erased = connection.execute(self._sql["sweep"], (self.clock(), SWEEP_RECORDS)).rowcount
        self._next_sweep = time.monotonic() + (SWEEP_SECONDS if erased < SWEEP_RECORDS else 0)

    # --- opening ----------------------------------------------------------------------------------

    def _connect_all(self) -> list[sqlite3.Connection]:
        self._refuse_foreign()
        with ExitStack() as opened:
            writing, scanning, at_hand = (opened.enter_context(closing(self._connect())) for _ in range(3))
            with _transaction(writing):
                if not self._schema_number(writing):
                    self._apply_migrations(writing)
            self._check_schema(writing)
            writing.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            scanning.execute("PRAGMA query_only = ON")
            at_hand.execute("PRAGMA busy_timeout = 0")
            # the writing connection syncs what this one writes, and copies the log into the database
            at_hand.execute("PRAGMA synchronous = NORMAL")
            at_hand.execute("PRAGMA wal_autocheckpoint = 0")
            opened.pop_all()
        return [writing, scanning, at_hand]

    def _connect(self) -> sqlite3.Connection:
        _make_private(self._path)
        connection = sqlite3.connect(
            self._path, timeout=self.options.busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
            if self._journal_mode(connection) != "wal":
                raise sqlite3.OperationalError("its file system does not allow WAL mode; use a local disk")
        except BaseException:
            connection.close()
            raise
        return connection

    def _journal_mode(self, connection: sqlite3.Connection) -> str:
        """Switches to WAL; retries, as SQLite's busy timeout does not apply while another connection does."""
        deadline = time.monotonic() + self.options.busy_seconds
        while True:
            try:
                return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
            except sqlite3.OperationalError as error:
                if _code(error) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)

    def _at_rest(self, question: str) -> bool:
        """The answer to a question about the file, without changing it; False if there is no file."""
        if not self._path.exists():
            return False
        place = f"{self._path.as_uri()}?mode=rw"  # opens what is there only; `ro` would leave a log beside it
        with closing(sqlite3.connect(place, uri=True, timeout=self.options.busy_seconds)) as connection:
            return bool(connection.execute(self._sql[question]).fetchone()[0])

    def _foreign(self) -> str | None:
        """The error message for a database with tables, but no store; None for any other file."""
        if not self._at_rest("is_foreign"):
            return None
        return f"{self._path} is the database of another application: no store is in it."

    def _refuse_foreign(self) -> None:
        """`StoreConfigError` for another application's database. Called before `_connect`, which changes its
        journal mode."""
        if foreign := self._foreign():
            raise StoreConfigError(foreign)

    def _migrate(self) -> list[str]:
        self._refuse_foreign()
        with closing(self._connect()) as connection, _transaction(connection):
            applied = self._apply_migrations(connection)
            self._check_schema(connection)
        return applied

    def _apply_migrations(self, connection: sqlite3.Connection) -> list[str]:
        present, applied = self._schema_number(connection), []
        for number, (name, text) in migrations("sqlite").items():
            if number > present:
                for statement in _split(text):
                    connection.execute(statement)
                connection.execute(self._sql["migrated"], (number, name))
                applied.append(name)
        return applied

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        check_schema("sqlite", f"{self._path}: the schema is", self._schema_number(connection))

    def _schema_number(self, connection: sqlite3.Connection) -> int:
        connection.execute(self._sql["create_schema_version"])
        return int(connection.execute(self._sql["schema_number"]).fetchone()[0])


# --- helpers ----------------------------------------------------------------------------------------


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise


def _make_private(path: Path) -> None:
    """Creates the file, if there is none, readable by its owner alone.

    An existing file is not even opened: by POSIX, closing it would drop every lock that this process has on
    it, and another process that closes the database would then delete the log.
    """
    path = Path(os.path.realpath(path))  # SQLite creates what a symbolic link leads to, for others to read
    make_folders(str(path.parent))
    if path.exists():
        return
    made, name = mkstemp(prefix=f"{path.name}-", dir=path.parent)
    os.close(made)
    try:
        os.link(name, path)
    except FileExistsError:
        pass  # another process was quicker
    finally:
        os.unlink(name)
    sync(str(path.parent))


def _roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):  # some errors have ended the transaction already
        connection.execute("ROLLBACK")


def _code(error: BaseException) -> int:
    """SQLite's extended error code; 0 if the error is not SQLite's."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code


def _split(script: str) -> Iterator[str]:
    """The statements of a script: `executescript` would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
