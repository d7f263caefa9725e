"""What is stored out of line because it is large: in chunks, with a reference in its place."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeGuard

import msgspec

from tealagents.domain.models import Approval, RequestRecord
from tealagents.state import keys

#: a body larger than this is stored out of line, in chunks of half as many characters
BLOB_BYTES = 256 * 1024
#: bytes of all bodies in one log record
BATCH_BYTES = 320 * 1024
#: the most bytes that a reference in place of a body takes
REF_BYTES = 128
#: a request's or an approval's record larger than this is stored out of line, too: a commit holds 1 MB in all
RECORD_BYTES = 64 * 1024


class Headless(Exception):
    """A commit has parts to store out of line, but its task has no head yet: no one could find them again."""


#: checked when read, because keys are made of them: a SHA-256 in hex, and a number of chunks
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Pieces = Annotated[int, msgspec.Meta(ge=0, le=9999)]


class BlobRef(msgspec.Struct, frozen=True):
    """Stored in a log record in place of a body that is stored out of line."""

    #: SHA-256 of the body
    blob: Digest
    pieces: Pieces

    def keys(self, task_id: str) -> list[str]:
        """The keys of its chunks."""
        return [keys.blob(task_id, self.blob, n) for n in range(self.pieces)]


class OutOfLine(msgspec.Struct, frozen=True):
    """Stored in place of a record whose content is stored out of line; `apart` is its SHA-256."""

    apart: Digest
    pieces: Pieces
    task_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._~:-]{1,100}\Z")]


#: the first bytes of an `OutOfLine` as JSON, and of no other record
OUT_OF_LINE = b'{"apart":'


def blob_ref(data: bytes) -> BlobRef:
    """The reference to `data` when it is stored out of line."""
    return BlobRef(hashlib.sha256(data).hexdigest(), len(chunks(data)))


def chunks(data: bytes) -> list[str]:
    text, size = data.decode(), BLOB_BYTES // 2
    return [text[i : i + size] for i in range(0, len(text), size)]


def too_large(bodies: Sequence[bytes]) -> Iterator[bool]:
    """For each of the bodies, whether it has to be stored out of line."""
    room = BATCH_BYTES
    for body in bodies:
        large = len(body) > BLOB_BYTES or len(body) > room
        room -= REF_BYTES if large else len(body)
        yield large


def is_large(record: object, value: bytes) -> TypeGuard[RequestRecord | Approval]:
    """Whether a record with these bytes is stored out of line."""
    return len(value) > RECORD_BYTES and isinstance(record, RequestRecord | Approval)
