"""A disk that loses what was not synced, made from what a traced process asked of the file system.

It is the worst that POSIX allows: the content of a file is kept as of its last sync, and its name as of the
last sync of its folder. What came later is lost, kept, or kept in part and in any order.
"""

import os
import random
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: a process leaves a mark by asking for the status of a file in this folder, named like the mark
MARKS = "/marks/"
#: the calls that are understood, and those that would have to be if a process made them
_NAMING = {"rename", "link", "unlink", "mkdir", "rmdir"}
_SYNCING = {"fsync", "fdatasync"}
_CALLS = _NAMING | _SYNCING | {"openat", "close", "read", "write", "pwrite64", "lseek", "ftruncate"}
_UNKNOWN = {"pwritev", "pwritev2", "renameat", "renameat2", "linkat", "mkdirat", "truncate", "sendfile"}
_STATUS = "newfstatat"

_CALL = re.compile(r"\d+ +(\w+)\((.*)\) += (-?\d+)", re.DOTALL)
_BEGUN = re.compile(r"(\d+ +)(.*) <unfinished \.\.\.>\n", re.DOTALL)
_RESUMED = re.compile(r"(\d+ +)<\.\.\. \w+ resumed>(.*)", re.DOTALL)
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')

Change = Callable[[bytearray], None]


def trace(command: Sequence[str], log: Path) -> None:
    """Runs a command, and writes its calls of the file system to `log`."""
    names = ",".join({*_CALLS, *_UNKNOWN, _STATUS})
    strace = ["strace", "-f", "-qq", "-xx", "-s", "10000000", "-o", str(log), "-e", f"trace={names}"]
    subprocess.run([*strace, *command], check=True, timeout=600)


def _calls(log: Path) -> Iterator[tuple[str, str, int]]:
    """The calls that succeeded, and all of `_STATUS`: name, arguments, result."""
    with log.open(errors="replace") as lines:
        for line in _whole(lines):
            if call := _CALL.match(line):
                name, arguments, result = call[1], call[2], int(call[3])
                if result >= 0 or name == _STATUS:
                    yield name, arguments, result


def _whole(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a log, with those together that belong to one call, which counts from its end.

    But `close` counts from its beginning: another thread may be given the descriptor before it returns.
    """
    begun: dict[str, str] = {}
    for line in lines:
        if part := _BEGUN.match(line):
            begun[part[1]] = part[2]
            if part[2].startswith("close("):
                yield f"{part[1]}{begun.pop(part[1])}) = 0"
        elif part := _RESUMED.match(line):
            yield part[1] + begun.pop(part[1], "") + part[2]
        else:
            yield line


def _text(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


def _paths(arguments: str) -> list[str]:
    return [os.fsdecode(_text(each)) for each in _TEXT.findall(arguments)]


@dataclass(eq=False)
class File:
    """The content of a file as it was synced, and what was done to it since."""

    size: int = 0
    synced: bytes = b""
    since: list[Change] = field(default_factory=list)

    def write(self, at: int, content: bytes) -> None:
        def change(data: bytearray) -> None:
            data.extend(bytes(max(0, at - len(data))))
            data[at : at + len(content)] = content

        self.since.append(change)
        self.size = max(self.size, at + len(content))

    def cut_off(self, size: int) -> None:
        def change(data: bytearray) -> None:
            data[size:] = bytes(max(0, size - len(data)))

        self.since.append(change)
        self.size = size

    def sync(self) -> None:
        self.synced, self.since = self.content(self.since), []

    def content(self, done: Iterable[Change]) -> bytes:
        data = bytearray(self.synced)
        for change in done:
            change(data)
        return bytes(data)


@dataclass
class Opened:
    """A descriptor: of a file, or of a folder by its name."""

    what: File | str
    at: int = 0
    appends: bool = False


class Disk:
    """What is below a folder: files, and folders (None), by name, as they are and as they were synced."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.names: dict[str, File | None] = {self._root: None}
        self._synced = dict(self.names)
        self._opened: dict[int, Opened] = {}

    def replay(self, log: Path) -> Iterator[str | None]:
        """Does what the process did. Yields each mark, and None before each call that syncs or names."""
        for name, arguments, result in _calls(log):
            if name == _STATUS:
                if (asked := _paths(arguments)) and asked[0].startswith(MARKS):
                    yield asked[0].removeprefix(MARKS)
                continue
            assert name in _CALLS, f"the disk does not know the call {name}"
            if name in _NAMING | _SYNCING:
                yield None
            if name == "openat":
                self._open(_paths(arguments)[0], arguments, result)
            elif name in _NAMING:
                self._name(name, *_paths(arguments))
            elif opened := self._opened.get(int(arguments.split(",")[0])):
                self._use(name, opened, arguments, result)

    def _open(self, path: str, arguments: str, descriptor: int) -> None:
        self._opened.pop(descriptor, None)
        if not self._holds(path):
            return
        if path not in self.names:
            self.names[path] = File()
        what = self.names[path]
        if what is None:
            self._opened[descriptor] = Opened(path)
            return
        if "O_TRUNC" in arguments:
            what.cut_off(0)
        self._opened[descriptor] = Opened(what, appends="O_APPEND" in arguments)

    def _holds(self, path: str) -> bool:
        return path == self._root or path.startswith(f"{self._root}/")

    def _name(self, call: str, path: str, new: str = "") -> None:
        if not self._holds(path):
            return
        if call == "mkdir":
            self.names[path] = None
        elif call == "link":
            self.names[new] = self.names[path]
        else:
            gone = self.names.pop(path)
            if call == "rename":
                self.names[new] = gone

    def _use(self, call: str, opened: Opened, arguments: str, result: int) -> None:
        what = opened.what
        if call == "close":
            del self._opened[int(arguments)]
        elif isinstance(what, str):
            if call in _SYNCING:
                self._sync_names(what)
        elif call in _SYNCING:
            what.sync()
        elif call == "ftruncate":
            what.cut_off(int(arguments.split(", ")[1]))
        elif call == "lseek":
            opened.at = result
        elif call == "read":
            opened.at += result
        else:
            self._write(what, opened, arguments, result)

    def _write(self, file: File, opened: Opened, arguments: str, written: int) -> None:
        text = _TEXT.search(arguments)
        assert text is not None
        content = _text(text[1])[:written]
        if ", " in (rest := arguments[text.end() :].removeprefix(", ")):  # `pwrite64`, which says where
            file.write(int(rest.split(", ")[1]), content)
            return
        at = file.size if opened.appends else opened.at
        file.write(at, content)
        opened.at = at + written

    def _sync_names(self, folder: str) -> None:
        for name in {*self.names, *self._synced}:
            if os.path.dirname(name) == folder and name != self._root:
                _take_over(name, self.names, self._synced)

    def cut(self, to: Path, chance: random.Random | None = None) -> None:
        """Writes what a power cut now would leave. By `chance`, some of what was not synced is there, too."""
        names = dict(self._synced)
        if chance is not None:
            for name in sorted({*self.names, *names}):
                if chance.random() < 0.5:
                    _take_over(name, self.names, names)
        for name in sorted(names):  # a folder before what is in it
            place, file = Path(f"{to}{name.removeprefix(self._root)}"), names[name]
            if not (name == self._root or place.parent.is_dir()):
                continue  # the name of its folder is lost
            if file is None:
                place.mkdir()
            else:
                share = chance.choice((0, 0.5, 1)) if chance is not None else 0
                kept = [each for each in file.since if chance is not None and chance.random() < share]
                place.write_bytes(file.content(kept))


def _take_over(name: str, source: dict[str, File | None], target: dict[str, File | None]) -> None:
    if name in source:
        target[name] = source[name]
    else:
        target.pop(name, None)
