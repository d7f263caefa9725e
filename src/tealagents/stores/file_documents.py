"""Records of the file store as documents, and the names of their files."""

import base64
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec
import orjson

from tealagents.domain.ports import Put

#: what has to be escaped in the name of a file or folder: capitals, because some file systems ignore case; a
#: leading dot, and the dot of an extension that has a meaning here
_UNSAFE = re.compile(r"[A-Z]|[^A-Za-z0-9._-]|^\.|\.(?=(?:json|tmp|records)$)", re.ASCII)
_ESCAPED = re.compile(r"\+([a-z])|%([0-9a-f]{2})", re.ASCII)
#: the longest name, in characters; the rest of a longer one is continued in a folder. File systems allow 255
#: bytes
_PART = 200


class DamagedFile(Exception):
    """A file that is not the document of its key."""

    def __init__(self, content: bytes, reason: str) -> None:
        super().__init__(reason)
        self.content, self.reason = content, reason


class _Head(msgspec.Struct):
    """The first line of a document."""

    key: str
    version: str
    expires: float | None


class RecordFile(NamedTuple):
    """A record as a file: its head on the first line, then the value, then a closing brace."""

    value: bytes
    version: str
    expires: float | None

    @classmethod
    def made(cls, put: Put, version: str, now: float) -> "RecordFile":
        return cls(put.value, version, None if put.ttl is None else now + put.ttl)

    def render(self, key: str) -> bytes:
        head = msgspec.json.encode(_Head(key, self.version, self.expires)).removesuffix(b"}")
        if _is_json(self.value):
            return head + b',"value":\n' + self.value + b"\n}\n"
        return head + b',"base64":\n"' + base64.b64encode(self.value) + b'"\n}\n'

    @classmethod
    def parse(cls, key: str, content: bytes) -> "RecordFile":
        first, _, rest = content.partition(b"\n")
        body, brace, tail = rest.rpartition(b"\n}")
        try:
            head = msgspec.json.decode(first + b"null}", type=_Head)
            if not brace or tail.strip() or not _is_json(body):
                raise ValueError("it is cut off or edited")
            if first.endswith(b'"base64":'):
                body = base64.b64decode(body.strip(b'"'), validate=True)
        except ValueError as error:
            raise DamagedFile(content, f"does not parse ({error})") from error
        if head.key != key:
            raise DamagedFile(content, f"is the document of another key, {head.key!r}")
        return cls(body, head.version, head.expires)


def _is_json(value: bytes) -> bool:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True


def _escape(segment: str) -> str:
    escaped = _UNSAFE.sub(lambda m: f"+{m[0].lower()}" if m[0].isalpha() else f"%{ord(m[0]):02x}", segment)
    parts = [escaped[start : start + _PART] for start in range(0, len(escaped), _PART)]
    if parts and parts[-1] in (".", ".."):  # as a folder: the one that it is in, or the one above that
        parts[-1] = parts[-1].replace(".", "%2e")
    return "%+/".join(parts) or "%"


def _unescape(escaped: str) -> str:
    if escaped == "%":
        return ""
    return _ESCAPED.sub(lambda m: m[1].upper() if m[1] else chr(int(m[2], 16)), escaped)


def folders_of(name: str) -> str:
    return "/".join(map(_escape, name.split("/")))


@lru_cache(maxsize=4096)
def partition_path(partition: str) -> str:
    return folders_of(partition) + ".records"


def key_path(key: str) -> str:
    return folders_of(key) + ".json"


def walk(folder: str, above: str, begun: str) -> Iterator[tuple[str, str]]:
    """The files below `folder`, each after the key that its name stands for, which may be another file's.

    The keys begin with `above`, then the unfinished name `begun`.
    """
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            if entry.name.endswith(".json"):
                yield above + _unescape(begun + entry.name.removesuffix(".json")), entry.path
            elif entry.is_dir() and entry.name.endswith("%+"):
                yield from walk(entry.path, above, begun + entry.name.removesuffix("%+"))
            elif entry.is_dir():
                yield from walk(entry.path, f"{above}{_unescape(begun + entry.name)}/", "")
