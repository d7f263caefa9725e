"""Encryption at rest: a wrapper that seals every value before the store sees it.

AES-256-GCM with a random nonce for each value. A value opens only under the partition and the key that it was
sealed for, so a changed, swapped or copied one raises `CorruptState`. A sealed value names the encryption key
by its id: after a rotation, old keys still open what they sealed, and the new one seals what is written.

Not hidden: the names of partitions and keys (ids, times, owners), versions, ttls, the sizes of values, and
when each record is written. An old value put back into its own place is not noticed here; for a task's head
or log, the audit's hash chain notices it.
"""

import hmac
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from msgspec.structs import replace

from tealagents.domain.errors import CorruptState
from tealagents.domain.ports import SEALED, Commit, Put, Record, Store, WrappedStore
from tealagents.options import SHORTEST_ENCRYPTION_KEY
from tealagents.stores.base import StoreConfigError, check_commit

__all__ = ["Cipher", "EncryptedStore"]

#: a sealed value: `SEALED`, the key's id, the nonce, and the output of AES-GCM
_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_HEAD_BYTES: Final = len(SEALED) + _ID_BYTES + _NONCE_BYTES

#: texts this long count as random (32 bytes are 43 characters of base64); shorter ones as passphrases
_RANDOM_CHARACTERS: Final = 43


class Cipher:
    """Seals values for a partition and a key, and opens values that were sealed for the same two."""

    def __init__(self, key: str, old_keys: Sequence[str] = ()) -> None:
        self._key = _Key(key)
        self._keys = {known.id: known for known in (*map(_Key, old_keys), self._key)}

    def seal(self, partition: str, key: str, value: bytes) -> bytes:
        return self._key.seal(partition, key, value)

    def open(self, partition: str, key: str, value: bytes) -> bytes:
        """The value inside a sealed one; `CorruptState` if it does not open."""
        if not value.startswith(SEALED):
            raise CorruptState(
                key,
                "is not encrypted, but a key for encryption is set (existing state is encrypted by "
                "`tealagents state export` without the key and `import` with it, into an empty store)",
            )
        sealed_with = value[len(SEALED) : len(SEALED) + _ID_BYTES]
        if not (known := self._keys.get(sealed_with)):
            raise CorruptState(
                key,
                f"is sealed with the key {sealed_with.hex()}, which is none of those given (name it in "
                "TA_ENCRYPTION_OLD_KEYS)",
            )
        try:
            return known.open(partition, key, value)
        except (InvalidTag, ValueError) as error:  # ValueError: not even the nonce is whole
            raise CorruptState(key, "does not open: it was changed, or moved from another record") from error


class EncryptedStore(WrappedStore):
    """Any store, its values sealed.

    `key` seals and opens; `old_keys` only open. Making one takes a tenth of a second for each passphrase.
    """

    def __init__(self, store: Store, key: str, old_keys: Sequence[str] = ()) -> None:
        super().__init__(store)
        self.name = f"{store.name}, encrypted"
        self._cipher = Cipher(key, old_keys)

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        records = await self.store.read(partition, keys)
        return [
            record and self._open(partition, key, record) for key, record in zip(keys, records, strict=True)
        ]

    async def scan(self, partition: str, prefix: str, **page: Any) -> list[tuple[str, Record]]:
        """See `Store.scan`. A value that does not open, for which `read` raises, is returned as stored. One
        that was never sealed gets the prefix `SEALED`, so as not to look like an opened one.
        """
        found = await self.store.scan(partition, prefix, **page)
        return [(key, self._listed(partition, key, record)) for key, record in found]

    async def commit(self, partition: str, commit: Commit) -> None:
        check_commit(partition, commit)
        sealed = {
            key: Put(self._cipher.seal(partition, key, value), ttl)
            for key, (value, ttl) in commit.put.items()
        }
        await self.store.commit(partition, replace(commit, put=sealed))

    def _open(self, partition: str, key: str, record: Record) -> Record:
        return Record(self._cipher.open(partition, key, record.value), record.version)

    def _listed(self, partition: str, key: str, record: Record) -> Record:
        try:
            return self._open(partition, key, record)
        except CorruptState:
            mark = b"" if record.value.startswith(SEALED) else SEALED
            return Record(mark + record.value, record.version)


class _Key:
    """An encryption key derived from a text. Each partition has a key of its own, derived from it: random
    nonces are safe for 2³² values under one key (NIST SP 800-38D, section 8.3).
    """

    def __init__(self, text: str) -> None:
        secret = _derive(text)
        self.id = hmac.digest(secret, b"key id", "sha256")[:_ID_BYTES]

        @lru_cache(maxsize=4096)
        def cipher(partition: str) -> AESGCM:
            return AESGCM(hmac.digest(secret, b"partition\0" + partition.encode(), "sha256"))

        self._cipher = cipher

    def seal(self, partition: str, key: str, value: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return SEALED + self.id + nonce + self._cipher(partition).encrypt(nonce, value, key.encode())

    def open(self, partition: str, key: str, sealed: bytes) -> bytes:
        nonce = sealed[_HEAD_BYTES - _NONCE_BYTES : _HEAD_BYTES]
        return self._cipher(partition).decrypt(nonce, sealed[_HEAD_BYTES:], key.encode())


def _derive(text: str) -> bytes:
    """32 bytes from the text: by HKDF if it is long enough to be random, else slowly, by scrypt.

    The salt is fixed, because every process must derive the same key from the text alone.
    """
    secret, salt = text.strip().encode(), b"tealagents encryption at rest"
    if len(text.strip()) < SHORTEST_ENCRYPTION_KEY:
        raise StoreConfigError(
            "TA_ENCRYPTION_KEY, or one of TA_ENCRYPTION_OLD_KEYS, is too short; make one with "
            "`openssl rand -base64 32`."
        )
    if len(secret) >= _RANDOM_CHARACTERS:
        return HKDF(algorithm=SHA256(), length=32, salt=salt, info=b"").derive(secret)
    return Scrypt(salt=salt, length=32, n=2**15, r=8, p=1).derive(secret)
