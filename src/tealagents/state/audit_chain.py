"""The audit's hash chain.

Each entry's `hash` covers its canonical JSON (keys sorted, no spaces, UTF-8, without `hash`), which contains
`prev_hash`, the hash of the entry before. With an audit key the hash is an HMAC, so that no one who can write
to the store, but lacks the key, can make a chain that verifies.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
from msgspec import Struct

from tealagents.domain.models import Body, Entry, Json
from tealagents.state.codec import decoder, encode_json, stamp

#: the `prev_hash` of a task's first entry
GENESIS = "0" * 64
#: with an audit key, in place of the seal of a log that was continued although its end was not sealed with
#: that key: it never verifies, and every later write keeps it
NO_SEAL = "none"

#: canonical JSON: keys sorted at every depth, no spaces, UTF-8
canonical = msgspec.json.Encoder(order="sorted").encode
decode_body: Callable[[bytes], Body] = decoder(cast(Any, Body)).decode


class Draft(Struct, frozen=True):
    """An entry before it has its place in the log."""

    action: str
    actor: str
    request_id: str | None
    body: bytes
    details: Json = {}


def draft(action: str, actor: str, request_id: str | None, body: Body, **details: object) -> Draft:
    """An entry to append. `details` are short values that the audit shows beside the body's digest."""
    return Draft(action, actor, request_id, encode_json(body), details)


class AuditChain:
    """Makes and verifies entries. `key` is the audit key, or empty for plain SHA-256."""

    def __init__(self, key: bytes = b"") -> None:
        self._key = key

    @property
    def keyed(self) -> bool:
        return bool(self._key)

    def hash(self, fields: Json) -> str:
        data = canonical(fields)
        if self._key:
            return hmac.digest(self._key, data, "sha256").hex()
        return hashlib.sha256(data).hexdigest()

    def extend(self, seq: int, prev_hash: str, at: datetime, drafts: Sequence[Draft]) -> tuple[Entry, ...]:
        """The entries of `drafts`, numbered from `seq` + 1 and chained on `prev_hash`."""
        written_at = stamp(at)
        entries = []
        for item in drafts:
            seq += 1
            fields = {
                "seq": seq,
                "at": written_at,
                "actor": item.actor,
                "action": item.action,
                "request_id": item.request_id,
                "details": {**item.details, "sha256": hashlib.sha256(item.body).hexdigest()},
                "prev_hash": prev_hash,
            }
            prev_hash = self.hash(fields)
            entries.append(Entry(hash=prev_hash, **fields))  # type: ignore[arg-type]
        return tuple(entries)

    def seal(self, task_id: str, tail_seq: int, tail_hash: str) -> str:
        """Seals the end of a log, which only a holder of the key can do; empty without a key."""
        if not self._key:
            return ""
        return self.hash({"task_id": task_id, "tail_seq": tail_seq, "tail_hash": tail_hash})

    def fault(self, entry: Entry, seq: int, prev_hash: str) -> str | None:
        """Why `entry` is not a valid entry number `seq` chained on `prev_hash`; None if it is."""
        if entry.seq != seq:
            return f"has number {entry.seq} where {seq} is due: an entry was dropped or moved"
        if entry.prev_hash != prev_hash:
            return "does not continue the entry before it"
        fields = msgspec.structs.asdict(entry)
        del fields["hash"]
        if not hmac.compare_digest(self.hash(fields).encode(), entry.hash.encode()):
            return "does not match its hash"
        return None


def body_fault(entry: Entry, body: bytes | None) -> str | None:
    """What is wrong with an entry's body, or None."""
    if body is None:
        return "has no body"
    if entry.details.get("sha256") != hashlib.sha256(body).hexdigest():
        return "does not have the body that it was written with"
    return None
