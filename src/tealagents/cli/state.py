"""`tealagents state …` and `tealagents migrate`: the operator's commands on stored state."""

import asyncio
import errno
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Literal, TypeVar

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from tealagents.cli.help import CommandWithHelp, Config, GroupWithHelp
from tealagents.cli.loading import absent, fail, load_or_exit, plain_console, stderr, warn
from tealagents.cli.output import OutputLost
from tealagents.config import ServiceConfig
from tealagents.domain import ids
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import CorruptState, InvalidRequest, PersistenceUnavailable
from tealagents.domain.models import User
from tealagents.mistakes import file_reason
from tealagents.state.audit import BadEntry, verify
from tealagents.state.dump import Exporter, Importer, NoTemporaryFile, Refused
from tealagents.state.erasing import Eraser
from tealagents.state.inventory import Inventory
from tealagents.state.pruning import Pruning, UserErasure
from tealagents.state.records import RecordStore
from tealagents.state.tasks import TaskRules, Tasks
from tealagents.state.workers import Lease
from tealagents.stores import StoreConfigError, plain_store
from tealagents.stores.base import BaseStore

T = TypeVar("T")

#: the most problems that are listed
MOST_SHOWN = 20
#: errors of a file that cannot grow, which reading never reports
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
#: no `m`: with `6m` for six months, all but the last six minutes would be erased
_UNITS = {"s": 1, "h": 3600, "d": 86400, "w": 7 * 86400}

state = typer.Typer(
    cls=GroupWithHelp, no_args_is_help=True, help="Inspect, move, prune and verify stored state."
)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, without doing it.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


class OpenedState:
    """An agent's state, with the objects that commands need to work on it."""

    def __init__(self, config: ServiceConfig, records: RecordStore, rules: TaskRules) -> None:
        self.records = records
        lease = Lease(records, config.limits.lease_seconds)
        tasks = Tasks(records, lease, rules, f"{config.name}:{config.version}")
        self.directory = tasks.directory
        self.eraser = Eraser(tasks)
        #: how long the idempotency key of a request that has not ended is kept, in seconds
        self.key_seconds = tasks.rules.event_seconds
        #: whether Mem0 is a context provider: its memories are not part of this state
        self.has_mem0 = any(each.name == "mem0" for each in config.thread.context_providers)


def _load_checked(path: Path | None) -> ServiceConfig:
    from tealagents.parts import weak_keys

    config = load_or_exit(path)
    if config.stateless:
        raise fail(f"{config.source}: an agent of the earlier platform keeps no state")
    if weak := weak_keys(config):
        raise fail(*weak)
    if config.persistence.startswith("memory:"):
        raise fail(
            "state in memory is visible only to the process that holds it; set TA_PERSISTENCE or "
            "spec.persistence"
        )
    return config


def _run(config: Path | None, work: Callable[[OpenedState], Awaitable[T]]) -> T:
    return _run_on(_load_checked(config), work)


def _run_on(
    config: ServiceConfig,
    work: Callable[[OpenedState], Awaitable[T]],
    *,
    missing: Literal["refused", "empty", "created"] = "refused",
) -> T:
    """Opens a config's state and runs `work` on it. An error is printed in one line, with exit status 2.

    A `missing` store is an error, stands for an `empty` one without being created, or is created with a
    warning.
    """

    async def do() -> T:
        from tealagents.parts import check_key, record_store_of, rules_of, store_of
        from tealagents.stores.memory import MemoryStore

        plain = plain_store(config.persistence)
        exists = await plain.exists()
        if not exists and missing == "refused":
            raise StoreConfigError(absent(plain))
        async with store_of(config) if exists or missing == "created" else MemoryStore() as store:
            if not exists and missing == "created":
                _warn_of_new(plain)
            records = record_store_of(config, store, SystemClock())
            await check_key(config, records, writes=False)
            return await work(OpenedState(config, records, rules_of(config)))

    try:
        with _interrupted_by_signals():
            return asyncio.run(do())
    except (OutputLost, BrokenPipeError):
        raise
    except OSError as error:
        raise fail(f"{error.filename}: {file_reason(error)}" if error.filename else str(error)) from None
    except (PersistenceUnavailable, StoreConfigError, CorruptState, Refused, NoTemporaryFile) as error:
        raise fail(str(error)) from None


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP interrupt the command like Ctrl-C, so that it removes incomplete files."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    heard = [each for each in before if before[each] is not signal.SIG_IGN]  # `nohup` ignores one
    for each in heard:
        signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each in heard:
            signal.signal(each, before[each])


@contextmanager
def _writable(file: Path) -> Iterator[None]:
    """Within, an OSError ends the command with the error that the file cannot be written."""
    try:
        yield
    except OSError as error:
        raise fail(f"{file}: cannot be written: {file_reason(error)}") from None


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, on a terminal. Call what it yields with the count done and the total."""
    columns = (SpinnerColumn(), TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def _warn_if_none(config: ServiceConfig, tasks: int, problems: Sequence[object]) -> None:
    """Where nothing was found: another agent's store, or a mistyped name, looks sound and empty."""
    if not (tasks or problems):
        warn(f"This store has no tasks of an agent {config.name!r}. Is this the agent's name?")


def _show_problems(problems: list[str], what: str) -> None:
    warn(*problems[:MOST_SHOWN])
    if len(problems) > MOST_SHOWN:
        warn(f"… and {len(problems) - MOST_SHOWN} more {what}")


# --- stats ------------------------------------------------------------------------------------------


@state.command("stats", cls=CommandWithHelp)
def stats_command(
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count users, sessions, tasks and log entries. Reads every task's head.

    Exit status 1 if something is damaged.
    """
    checked = _load_checked(config)
    found = _run_on(checked, lambda opened: Inventory(opened.records).count())
    counted = {
        "users": found.users,
        "sessions": found.sessions,
        "tasks": dict(sorted(found.tasks.items())),
        "expired_tasks": found.expired,
        "queued_requests": found.queued,
        "log_entries": found.entries,
        "pending_deletions": found.deletions,
        "live_processes": found.workers_alive,
        "damaged_records": len(found.damaged),
    }
    if as_json:
        print(json.dumps(counted))
    else:
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for label, value in counted.items():
            shown = (
                ", ".join(f"{n} {name}" for name, n in value.items()) if isinstance(value, dict) else value
            )
            table.add_row(label.replace("_", " "), str(shown or 0))
        plain_console(soft_wrap=False).print(table)
    _warn_if_none(checked, sum(found.tasks.values()), found.damaged)
    if found.damaged:
        _show_problems(found.damaged, "damaged records")
        raise typer.Exit(1)


# --- export and import ------------------------------------------------------------------------------


@state.command("export", cls=CommandWithHelp)
def export_command(
    file: Annotated[Path, typer.Argument(help="Where to write; it must not exist. `-` is standard output.")],
    config: Config = None,
) -> None:
    """Export all state as JSON Lines.

    The same state exports to the same bytes from every store. Exit status 1 if something was damaged or kept
    changing; everything else is still exported.
    """
    if file != Path("-"):
        with _writable(file):
            if file.exists():
                raise fail(f"{file} exists already; nothing is overwritten")

    async def work(opened: OpenedState) -> Exporter:
        exporter = Exporter(opened.records)
        with _progress("users") as report, _output_file(file) as output:
            async for line in exporter.lines(report):
                output.write(line)
        return exporter

    checked = _load_checked(config)
    exporter = _run_on(checked, work)
    stderr.print(f"{_count_text(exporter.tasks, 'task')} exported")
    _warn_if_none(checked, exporter.tasks, exporter.problems)
    if exporter.problems:
        _show_problems(exporter.problems, "problems")
        raise typer.Exit(1)


def _count_text(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


@contextmanager
def _output_file(file: Path) -> Iterator[IO[bytes]]:
    """Opens a file that only its owner can read, and that appears once it is complete."""
    if file == Path("-"):
        yield sys.stdout.buffer
        return
    partial = file.with_name(f".{file.name}.{ids.random_id()[:8]}")
    try:  # before the file is created, because a signal may arrive at any time
        with _writable(file), open(partial, "xb", opener=_private) as output:
            yield output
            output.flush()
            os.fsync(output.fileno())
        try:
            os.link(partial, file)
        except OSError:  # no hard links here, or the file exists by now: then `x` raises
            file.open("xb").close()
            partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@state.command("import", cls=CommandWithHelp)
def import_command(
    file: Annotated[Path, typer.Argument(help="An export. `-` is standard input.")],
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Import an export into the config's store.

    The store may hold other state, but no different version of the same records. Nothing is overwritten, and
    a store is written with its own TA_ENCRYPTION_KEY only. Every line is checked before the first is written.
    The command can be repeated.
    """

    async def read(opened: OpenedState, *, writes: bool) -> Importer:
        importer, size = Importer(opened.records, key_seconds=opened.key_seconds), _size(lines)
        take = importer.write if writes else importer.compare
        with _progress("bytes imported" if writes else "bytes checked") as report:
            await take(lines, lambda row: report(lines.tell(), size))
        return importer

    checked = _load_checked(config)
    # before a store is created, and before the event loop runs, in which Ctrl-C does not interrupt a read
    with _input_file(file) as lines:
        done = _run_on(checked, partial(read, writes=False), missing="empty")
        if not dry_run:
            done = _run_on(checked, partial(read, writes=True), missing="created")
    verb = "would be written" if dry_run else "written"
    stderr.print(f"{_count_text(done.written, 'record')} {verb}, {done.same} already there")


@contextmanager
def _input_file(file: Path) -> Iterator[IO[bytes]]:
    """Opens a file; or a copy of standard input, or of another pipe, because the input is read twice."""
    if file == Path("-") and sys.stdin is None:
        raise fail("there is nothing to import: standard input is closed")
    with ExitStack() as opened:
        lines: IO[bytes]
        try:
            lines = sys.stdin.buffer if file == Path("-") else opened.enter_context(file.open("rb"))
            if file == Path("-") or not lines.seekable():
                source, lines = lines, opened.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(source, lines)
        except OSError as error:
            if error.errno in _NO_ROOM:  # of the copy
                raise fail(str(NoTemporaryFile(error))) from None
            raise fail(f"{file}: {file_reason(error)}") from None
        yield lines


def _size(lines: IO[bytes]) -> int:
    lines.seek(0, os.SEEK_END)
    size = lines.tell()
    lines.seek(0)
    return size


# --- prune ------------------------------------------------------------------------------------------


@state.command("prune", cls=CommandWithHelp)
def prune_command(
    config: Config = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Also erase tasks that have not changed for this long, and old sessions without tasks: 30d, "
            "12h, 4w.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Erase tasks that are past their `expires_at`, or old; finish deletions that a crash interrupted.

    Nothing is pruned automatically. Tasks that a process works on, or whose pause can still be decided, are
    kept. Exit status 1 if something is damaged, which is left as it was.
    """
    before = _ago(older_than) if older_than is not None else None

    async def work(opened: OpenedState) -> tuple[dict[str, int], Pruning, int]:
        counts = {"task": 0, "session": 0}
        pruning = Pruning(opened.eraser, before=before)
        resumed = 0 if dry_run else await opened.eraser.resume_all()
        with _progress("users") as report:
            async for due in pruning.due(report):
                counts[due.what] += dry_run or await due.erase()
        return counts, pruning, resumed

    counts, pruning, resumed = _run(config, work)
    verb = "would be erased" if dry_run else "erased"
    print(f"{_count_text(counts['task'], 'task')} and {_count_text(counts['session'], 'session')} {verb}")
    if pruning.spared:
        print(f"due, but kept while in use: {_count_text(pruning.spared, 'task')}")
    if resumed:
        print(f"finished: {_count_text(resumed, 'interrupted deletion')}")
    if pruning.damaged:
        _show_problems(pruning.damaged, "damaged records, left as they were")
        raise typer.Exit(1)


def _ago(duration: str) -> datetime:
    """The time that lies `duration` in the past."""
    number, unit = duration[:-1], duration[-1:]
    if unit not in _UNITS or not number.isdecimal():
        raise typer.BadParameter(
            f"{duration!r} is not a duration; write a number and one of {', '.join(_UNITS)} (seconds, hours, "
            "days, weeks)"
        )
    try:
        return datetime.now(UTC) - timedelta(seconds=int(number) * _UNITS[unit])
    except (OverflowError, ValueError):  # ValueError: more digits than Python converts
        raise typer.BadParameter(f"{duration!r} is too long") from None


# --- one user ---------------------------------------------------------------------------------------


Named = Annotated[
    str | None,
    typer.Argument(
        metavar="TID.OID",
        help="Tenant and object id, as `state owner` prints them. Without a tenant: `.OID`.",
        show_default=False,
    ),
]
Tid = Annotated[
    str | None, typer.Option(metavar="TID", help="Instead of TID.OID: the tenant as it is; may be empty.")
]
Oid = Annotated[str | None, typer.Option(metavar="OID", help="Instead of TID.OID: the object id as it is.")]


@state.command("delete-user", cls=CommandWithHelp)
def delete_user_command(
    user: Named = None,
    tid: Tid = None,
    oid: Oid = None,
    config: Config = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Erase everything of one user: sessions, tasks, memories, secrets, and the user's own record.

    What Mem0 keeps is not erased: if Mem0 is a context provider, the command warns about that. Revoke the
    user's access first: a message sent in the meantime creates the user again. The command can be
    repeated. Exit status 1 if nothing is stored for the user.
    """
    whom, others = _named_user(user, tid, oid)
    records, has_mem0 = _run(config, partial(_count_stored, whom=whom, others=others))
    if has_mem0:
        _warn_of_mem0(whom)
    if records:
        print(
            f"{_count_text(records, 'record')} of {_user_text(whom)}"
            + (" would be erased" if dry_run else "")
        )
    if records and not dry_run and not yes:
        if sys.stdin is None:
            raise fail("standard input is closed, so nothing can be confirmed: give --yes")
        typer.confirm("Erase them? This cannot be undone.", abort=True)
    # even without records: the count omits expired ones
    erased = 0 if dry_run else _run(config, partial(_erase, whom=whom))
    if not records and not erased:
        print(
            f"nothing is stored for {_user_text(whom)}: ids are compared exactly, Entra's are in lower case"
        )
        raise typer.Exit(1)
    if not dry_run:
        print(f"{_user_text(whom)} is erased")


def _named_user(user: str | None, tid: str | None, oid: str | None) -> tuple[User, list[User]]:
    """The user that is named, and other users that the operator may have meant.

    A key has `~1` in place of each dot of the tenant, and operators may type the dot. `a.b.c` is the user
    `b.c` of the tenant `a`, and may be meant as `c` of `a.b`. Erasing cannot be undone: nothing is guessed.
    """
    try:
        "".join((user or "", tid or "", oid or "")).encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("the ids are not UTF-8 text") from None
    if user is None and tid is not None and oid is not None:
        if not oid:
            raise typer.BadParameter("--oid is empty; only --tid may be")
        return User(tid, oid), []
    if user is None or tid is not None or oid is not None:
        raise typer.BadParameter("give either TID.OID, or --tid and --oid")
    try:
        whom = User.of(user)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; without a tenant, it is .OID") from None
    splits = [User(user[:at], user[at + 1 :]) for at, each in enumerate(user) if each == "."]
    return whom, [other for other in splits if other.oid and other != whom]


async def _count_stored(opened: OpenedState, whom: User, others: list[User]) -> tuple[int, bool]:
    """The number of the user's records, and whether Mem0 may have memories of the user."""
    for other in others:
        if await UserErasure(opened.eraser, other).count():
            raise fail(f"this may also mean {_user_text(other)}: give --tid and --oid")
    return await UserErasure(opened.eraser, whom).count(), opened.has_mem0


async def _erase(opened: OpenedState, whom: User) -> int:
    with _progress("records") as report:
        return await UserErasure(opened.eraser, whom).erase(lambda done: report(done, done))


def _user_text(user: User) -> str:
    return f"{user.key} (tenant {user.tid!r}, object id {user.oid!r})"


def _warn_of_mem0(user: User) -> None:
    from tealagents.threads.mem0 import mem0_id

    warn(
        "Mem0 keeps memories of its own, which are not erased here: erase those of its user "
        f"{mem0_id(user)!r} there as well, with the method delete_all(user_id=…) of mem0.MemoryClient() (its "
        "service) or of mem0.Memory.from_config(config) (memories kept here), and remove its file "
        "history_db_path. The page Operations of the documentation has the details."
    )


# --- the owner of an id ---------------------------------------------------------------------------------


@state.command("owner", cls=CommandWithHelp)
def owner_command(
    identifier: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a session, a task or a request.")
    ],
    config: Config = None,
) -> None:
    """Show which user an id from a log belongs to, as `TID.OID`."""
    try:
        canonical = ids.canonical(identifier, "the id")
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from None
    users = _run(config, lambda opened: opened.directory.candidates(canonical))
    if not users:
        raise fail(f"no user has the id {canonical}")
    for user in users:
        print(user.key)


# --- the audit --------------------------------------------------------------------------------------


@state.command("verify-audit", cls=CommandWithHelp)
def verify_command(
    task: Annotated[str | None, typer.Argument(help="One task; by default all.")] = None,
    config: Config = None,
) -> None:
    """Verify audits entry by entry, and name the first bad one of each task. Exit status 1 if there is one.

    With the TA_AUDIT_KEY that they were written with, it finds any entry that was changed, dropped, moved or
    recomputed; without one, only accidental damage.
    """

    checked = _load_checked(config)
    tasks, entries, faults, damaged, keyed = _run_on(checked, partial(_verify_all, only=task))
    for fault in faults:
        print(fault)
    if task is not None and not tasks:
        _show_problems(damaged, "damaged records")
        raise fail(f"there is no task {task}{' in the records that can be read' if damaged else ''}")
    print(
        f"{_count_text(tasks, 'task')}, {_count_text(entries, 'good entry', 'good entries')}, "
        f"{_count_text(len(faults), 'task')} with a bad one"
    )
    _warn_if_none(checked, tasks, damaged)
    if faults and not keyed:
        print("TA_AUDIT_KEY is not set: an audit that was written with one does not verify without it")
    _show_problems(damaged, "damaged records")
    if faults or damaged:
        raise typer.Exit(1)


async def _verify_all(
    opened: OpenedState, only: str | None
) -> tuple[int, int, list[BadEntry], list[str], bool]:
    """The number of tasks and good entries, the bad entries, the damaged records, whether a key is set."""
    tasks, entries, faults = 0, 0, list[BadEntry]()
    inventory = Inventory(opened.records)
    owners = await inventory.owners()
    with _progress("users") as report:
        for done, owner in enumerate(owners):
            report(done, len(owners))
            async for found in inventory.tasks(owner):
                if only is not None and found.task_id != only.lower():
                    continue
                verified = await verify(opened.records, found.partition, found.task_id)
                if verified is None:
                    continue
                tasks, entries = tasks + 1, entries + verified.entries
                faults += [verified.fault] if verified.fault else []
    return tasks, entries, faults, inventory.damaged, opened.records.chain.keyed


# --- migrations -------------------------------------------------------------------------------------


def migrate_command(config: Config = None) -> None:
    """Update the store's tables to what this version needs.

    An empty store needs no migration. Stop the service, make a backup, migrate, and start the new version.
    If there is no store yet, one is created, with a warning.
    """
    url = load_or_exit(config, needed="spec.persistence").persistence
    try:
        store = plain_store(url)
        migrate = getattr(store, "migrate", None)
        if migrate is None:
            print(f"{store.name} has no tables; there is nothing to migrate")
            return
        existed, applied = asyncio.run(_migrate(store, migrate))
    except (PersistenceUnavailable, StoreConfigError, CorruptState, OSError) as error:
        raise fail(str(error)) from None
    if not existed:
        _warn_of_new(store)
    for name in applied:
        print(f"applied {name}")
    print(f"{store.name} is up to date")


def _warn_of_new(store: BaseStore) -> None:
    warn(
        f"There was no store at {store.where}: a new one was created. Check TA_PERSISTENCE or "
        "spec.persistence."
    )


async def _migrate(store: BaseStore, migrate: Callable[[], Awaitable[list[str]]]) -> tuple[bool, list[str]]:
    """Whether the store existed before, and the names of the applied migrations."""
    return await store.exists(), await migrate()
