"""`tealagents state export` and `import`: all state, from one store to another."""

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Annotated

import typer

from tealagents.cli.help import Config
from tealagents.cli.loading import fail, stderr
from tealagents.cli.state.opening import OpenedState, load_checked, run_on
from tealagents.cli.state.reporting import DryRun, count_text, progress, show_problems, warn_if_none
from tealagents.domain import ids
from tealagents.mistakes import file_reason
from tealagents.state.dump import Exporter, NoTemporaryFile
from tealagents.state.dump_import import Importer

#: errors of a file that cannot grow, which reading never reports
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


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
        with progress("users") as report, _output_file(file) as output:
            async for line in exporter.lines(report):
                output.write(line)
        return exporter

    checked = load_checked(config)
    exporter = run_on(checked, work)
    stderr.print(f"{count_text(exporter.tasks, 'task')} exported")
    warn_if_none(checked, exporter.tasks, exporter.problems)
    if exporter.problems:
        show_problems(exporter.problems, "problems")
        raise typer.Exit(1)


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
        with progress("bytes imported" if writes else "bytes checked") as report:
            await take(lines, lambda row: report(lines.tell(), size))
        return importer

    checked = load_checked(config)
    # before a store is created, and before the event loop runs, in which Ctrl-C does not interrupt a read
    with _input_file(file) as lines:
        done = run_on(checked, partial(read, writes=False), missing="empty")
        if not dry_run:
            done = run_on(checked, partial(read, writes=True), missing="created")
    verb = "would be written" if dry_run else "written"
    stderr.print(f"{count_text(done.written, 'record')} {verb}, {done.same} already there")


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


@contextmanager
def _writable(file: Path) -> Iterator[None]:
    """Within, an OSError ends the command with the error that the file cannot be written."""
    try:
        yield
    except OSError as error:
        raise fail(f"{file}: cannot be written: {file_reason(error)}") from None
