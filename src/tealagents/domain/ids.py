"""Ids: UUIDs in the canonical form.

The ids of tool calls are no UUIDs: model services choose them.

The UUIDs made here are version 8 (RFC 9562, section 5.8): the first 48 bits are the owner's *tag*, a digest
of the owner's key; 74 bits are random. If an id is not in the caller's partition, the tag tells which user
it may belong to, without an index entry for every request. A tag is a hint, believed only if the record
exists there; it grants nothing.
"""

import hashlib
import os
import re
from functools import lru_cache

from tealagents.domain.errors import InvalidRequest

_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
_NIL = "00000000-0000-0000-0000-000000000000"
#: the canonical form, as a pattern for JSON Schema; and the ids that are accepted, in lower or upper case
CANONICAL = r"^(?!0{8}-0{4}-0{4}-0{4}-0{12}$)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
PATTERN = CANONICAL.replace("a-f", "a-fA-F")
EXAMPLE = "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"
#: characters of a call's id that clients see; they see a digest of a longer one
LONGEST_CALL_ID = 200


def canonical(text: object, field: str) -> str:
    """The id in canonical form (lower case); `InvalidRequest` naming `field` if it is none.

    Rejects forms that `uuid.UUID` accepts: braces, `urn:uuid:`, missing hyphens, and the nil UUID.
    """
    if isinstance(text, str):
        lowered = text.lower()
        if _CANONICAL.fullmatch(lowered) and lowered != _NIL:
            return lowered
    raise InvalidRequest(field, "must be a UUID in the canonical form, such as " + EXAMPLE)


@lru_cache(10_000)
def owner_tag(owner: str) -> str:
    """The 12 hexadecimal digits that begin every id made for `owner`."""
    return hashlib.sha256(b"tealagents owner\0" + owner.encode()).hexdigest()[:12]


def tag_of(identifier: str) -> str:
    """The owner's tag in an id; meaningless if the id was not made here."""
    return identifier[:8] + identifier[9:13]


def is_made_for(owner: str, identifier: str) -> bool:
    """Whether an id carries the owner's tag."""
    return tag_of(identifier) == owner_tag(owner)


def new_id(owner: str) -> str:
    """A fresh UUID (version 8) that carries the owner's tag."""
    return _tagged(owner_tag(owner), os.urandom(10).hex())


def named_id(owner: str, name: str) -> str:
    """The UUID (version 8) that always stands for this name of the owner's; it carries the owner's tag."""
    return _tagged(owner_tag(owner), hashlib.sha256(f"tealagents name\0{owner}\0{name}".encode()).hexdigest())


def _tagged(tag: str, r: str) -> str:
    variant = "89ab"[int(r[3], 16) & 3]
    return f"{tag[:8]}-{tag[8:12]}-8{r[:3]}-{variant}{r[4:7]}-{r[7:19]}"


def random_id() -> str:
    """A fresh random UUID (version 4), for things that are never looked up by id alone."""
    r = os.urandom(16).hex()
    variant = "89ab"[int(r[16], 16) & 3]
    return f"{r[:8]}-{r[8:12]}-4{r[13:16]}-{variant}{r[17:20]}-{r[20:]}"


def shown_call_id(native_id: str) -> str:
    """The id of a call for clients and decisions: the model service's own, unless that is too long."""
    if len(native_id) > LONGEST_CALL_ID:
        return "call_" + hashlib.sha256(native_id.encode()).hexdigest()[:24]
    return native_id or "call"


def message_id_of(request_id: str) -> str:
    """A fresh UUID for a message of a request, with 48 random bits in place of the tag."""
    r = os.urandom(6).hex()
    return f"{r[:8]}-{r[8:]}-{request_id[14:]}"


def request_id_of(owner: str, message_id: str) -> str:
    """The owner's request whose message has this id, if `message_id_of` made it. A hint, as the tag is."""
    tag = owner_tag(owner)
    return f"{tag[:8]}-{tag[8:]}-{message_id[14:]}"


def operation_id() -> str:
    """A fresh id for one commit; it becomes the version of every record the commit writes."""
    return os.urandom(12).hex()
