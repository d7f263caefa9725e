"""Records as bytes: JSON a person can read, with a checksum bound to the record's key.

``{"sha256":"<64 hex digits>","value":<JSON>}`` — the digest covers partition, key and value, so a
flipped bit and a value moved to another record are both found.
"""

import hashlib
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from tealagents.domain.errors import CorruptState
from tealagents.domain.ports import SEALED

T = TypeVar("T")

_HEAD = b'{"sha256":"'
_MIDDLE = b'","value":'
_START = len(_HEAD) + 64 + len(_MIDDLE)

#: the reason for a record that is still encrypted after it was read, or was stored without the key set now
UNOPENED = (
    "does not open: set TA_ENCRYPTION_KEY to the key it was stored with, or unset it if it was stored without"
    "; where that key opens other records, this one was changed or moved"
)

encode_json = msgspec.json.Encoder(order=None).encode
_decoders: dict[Any, "msgspec.json.Decoder[Any]"] = {}


def _digest(partition: str, key: str, value: bytes) -> bytes:
    return hashlib.sha256(f"{partition}\n{key}\n".encode() + value).hexdigest().encode()


def seal(partition: str, key: str, record: object) -> bytes:
    """A record's bytes, as they are stored under `key`."""
    value = encode_json(record)
    return joined(_digest(partition, key, value), value)


def joined(digest: bytes, value: bytes) -> bytes:
    """The stored form of a checksum and its JSON, which may not match: see `checked`."""
    return b"".join((_HEAD, digest, _MIDDLE, value, b"}"))


def unseal(partition: str, key: str, stored: bytes, kind: type[T]) -> T:
    """The record stored under `key`; `CorruptState` unless it is what `seal` made for that key."""
    return parse(key, checked(partition, key, stored), kind)


def parse(key: str, value: bytes, kind: type[T]) -> T:
    """The record whose JSON is `value`; `CorruptState` if it is not of that kind."""
    try:
        return decoder(kind).decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptState(key, f"is not a valid {getattr(kind, '__name__', kind)} ({error})") from error


def checked(partition: str, key: str, stored: bytes) -> bytes:
    """The JSON of a stored record; `CorruptState` if its form or its checksum is wrong."""
    if (
        stored[: len(_HEAD)] != _HEAD
        or stored[_START - len(_MIDDLE) : _START] != _MIDDLE
        or stored[-1:] != b"}"
    ):
        if stored.startswith(SEALED):
            raise CorruptState(key, UNOPENED)
        raise CorruptState(key, "does not have the form of a stored record")
    value = stored[_START:-1]
    if stored[len(_HEAD) : len(_HEAD) + 64] != _digest(partition, key, value):
        raise CorruptState(key, "does not match its checksum")
    return value


def decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    """The decoder of a type, made once."""
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.json.Decoder(kind)
    return found


def stamp(at: datetime) -> str:
    """RFC 3339 with microseconds and `Z`: of fixed width, so that keys order by it."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"
