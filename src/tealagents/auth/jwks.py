"""The authority's signing keys, kept fresh without a request waiting for it.

Keys once read stay in use until newer ones have been read, however long the authority is gone: an outage of
the authority is not one of this service. They are read

- when the first token comes (its caller waits, and others with it);
- again every 24 hours, in the background, and after a failure every five minutes;
- when a token names a key or an issuer that is not known, at most once in five minutes, whatever comes of
  it: a flood of invented key ids costs one request, and the same five minutes are how long they are not
  asked about.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx2
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import RSAAlgorithm
from jwt.exceptions import InvalidKeyError

from tealagents.domain.errors import AuthUnavailable
from tealagents.domain.models import Json
from tealagents.domain.ports import Clock
from tealagents.outbound.addresses import is_loopback
from tealagents.outbound.reading import BoundedClient, fetch, json_object

__all__ = ["KeySet", "KeysUnreadable", "PublishedKeys", "SigningKey", "read_key_set"]

log = logging.getLogger("tealagents.auth")

#: seconds after which keys are read again
REFRESH_SECONDS = 24 * 3600.0
#: the least seconds between two reads caused by tokens, and between retries of a failed refresh
SPARING_SECONDS = 300.0
#: seconds for which callers are turned away after keys could not be read for the first time
FIRST_RETRY_SECONDS = 2.0

#: seconds that reading metadata and keys may take together
READ_SECONDS = 5.0
#: bytes of metadata, and of a key set
MAX_BYTES = 256 * 1024
_MAX_KEYS = 100
_KEY_BITS = range(2048, 8192 + 1)
#: what stands in multi-tenant metadata in the place of a tenant's id
TENANT_PLACEHOLDER = "{tenantid}"


class SigningKey(NamedTuple):
    public: RSAPublicKey
    #: the issuer that alone may use this key (perhaps with `{tenantid}`); None: any of this key set
    issuer: str | None


@dataclass(frozen=True, eq=False)
class KeySet:
    """What one reading of the metadata brought. Two readings are two sets, even where they say the same."""

    #: exactly as the metadata names it; multi-tenant metadata has `{tenantid}` in it
    issuer: str
    #: by key id; Entra may list one id for several issuers
    keys: Mapping[str, tuple[SigningKey, ...]]

    def knows(self, kid: str, issuer: object) -> bool:
        """Whether it has the key, and names the issuer, for whichever tenant: a token of another tenant, or
        one whose issuer is not text, is wrong whatever the metadata says."""
        before, _, after = self.issuer.partition(TENANT_PLACEHOLDER)
        named = not isinstance(issuer, str) or (issuer.startswith(before) and issuer.endswith(after))
        return named and kid in self.keys


class KeysUnreadable(Exception):
    """The authority did not answer, or not with metadata and keys. The text may be logged."""


class PublishedKeys:
    """The newest key set of one metadata document."""

    def __init__(self, client: BoundedClient, metadata_url: str, clock: Clock) -> None:
        self._client = client
        self._url = metadata_url
        self._clock = clock
        #: None until keys have been read
        self.newest: KeySet | None = None
        self._reading: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._failed_at: float | None = None
        self._asked_at: float | None = None

    async def key_set(self, kid: str, issuer: object = None) -> KeySet:
        """The newest key set, read again first if it does not know the token's key id and issuer, and has not
        been read again recently.

        `AuthUnavailable` if no keys have ever been read.
        """
        if self.newest is None:
            return await self._first_reading()
        if not self.newest.knows(kid, issuer) and self._may_ask():
            await self._read_together()
        return self.newest

    def _may_ask(self) -> bool:
        if self._reading is not None:
            return True
        now = self._clock.monotonic()
        if self._asked_at is not None and now - self._asked_at < SPARING_SECONDS:
            return False
        self._asked_at = now
        return True

    async def _first_reading(self) -> KeySet:
        if self._reading is None and self._failed_at is not None:
            remaining = self._failed_at + FIRST_RETRY_SECONDS - self._clock.monotonic()
            if remaining > 0:
                raise _unavailable(remaining)
        await self._read_together()
        if self.newest is None:
            raise _unavailable(FIRST_RETRY_SECONDS)
        return self.newest

    async def _read_together(self) -> None:
        """Waits for a reading; callers that wait at the same time share one."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="read signing keys")
        # A caller who leaves must not end the reading for the others.
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        try:
            self.newest = await read_key_set(self._client, self._url)
            self._failed_at = None
            log.info(
                "Read %d signing keys named by %s, whose issuer is %.200r",
                len(self.newest.keys),
                self._url,
                self.newest.issuer,
            )
        except KeysUnreadable as error:
            self._failed_at = self._clock.monotonic()
            log.warning("Signing keys of %s could not be read: %s", self._url, error)
        except Exception:
            # whatever is wrong with what the authority says, known keys stay in use and are refreshed
            self._failed_at = self._clock.monotonic()
            log.exception("Signing keys of %s could not be read", self._url)
        finally:
            self._reading = None
        if self._refreshing is None and self.newest is not None:
            self._refreshing = asyncio.create_task(self._keep_fresh(), name="refresh signing keys")

    async def _keep_fresh(self) -> None:
        while True:
            await self._clock.sleep(REFRESH_SECONDS if self._failed_at is None else SPARING_SECONDS)
            await self._read_together()

    async def aclose(self) -> None:
        tasks = [task for task in (self._refreshing, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _unavailable(seconds: float) -> AuthUnavailable:
    return AuthUnavailable(
        "The authority that signs tokens does not answer, so none can be checked. Try again shortly.",
        retry_after=seconds,
    )


async def read_key_set(client: BoundedClient, metadata_url: str, *, seconds: float = READ_SECONDS) -> KeySet:
    """The issuer that the metadata names, and the keys of its `jwks_uri`. KeysUnreadable otherwise."""
    try:
        async with asyncio.timeout(seconds):
            metadata = await _get_object(client, metadata_url)
            issuer, keys_url = metadata.get("issuer"), metadata.get("jwks_uri")
            if not (isinstance(issuer, str) and issuer):
                raise KeysUnreadable("the metadata names no issuer")
            if not (isinstance(keys_url, str) and _as_safe_as(metadata_url, keys_url)):
                raise KeysUnreadable(
                    "the metadata names no jwks_uri that may be read: it must be an https URL"
                )
            document = await _get_object(client, keys_url)
    except TimeoutError:
        raise KeysUnreadable(f"no whole answer within {seconds:g} seconds") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise KeysUnreadable(f"{type(error).__name__}: {error}") from error
    return KeySet(issuer, _signing_keys(document))


def _as_safe_as(metadata_url: str, keys_url: str) -> bool:
    """Whether `keys_url` is https; plain http only on this machine, from an authority that is there too."""
    try:
        parts = urlsplit(keys_url)
        scheme, _ = parts.scheme, parts.port  # the port is a `ValueError` over 65535
    except ValueError:
        return False
    both_here = is_loopback(metadata_url) and is_loopback(keys_url)
    return scheme == "https" or (scheme == "http" and both_here)


async def _get_object(client: BoundedClient, url: str) -> Json:
    answer = await fetch(client, "GET", url)
    if answer.status != 200:
        raise KeysUnreadable(f"{url} answered {answer.status}")
    value = json_object(answer.content)
    if value is None:
        raise KeysUnreadable(f"{url} did not answer a JSON object")
    return value


def _signing_keys(document: Json) -> Mapping[str, tuple[SigningKey, ...]]:
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise KeysUnreadable("the key document has no list of keys")
    keys: dict[str, tuple[SigningKey, ...]] = {}
    for jwk in listed[:_MAX_KEYS]:
        match jwk:
            case {"kid": str(kid)} if (key := _signing_key(jwk)) is not None:
                keys[kid] = (*keys.get(kid, ()), key)
    if not keys:
        raise KeysUnreadable("the key document holds no RSA signing key")
    return keys


def _signing_key(jwk: Json) -> SigningKey | None:
    """The key, or None for one that is not for RS256 signatures: other kinds may stand beside them."""
    if jwk.get("kty") != "RSA" or jwk.get("use", "sig") != "sig" or jwk.get("alg", "RS256") != "RS256":
        return None
    issuer = jwk.get("issuer")
    if issuer is not None and not isinstance(issuer, str):
        return None
    try:
        # Only the public members: whatever else is listed is not read.
        public = RSAAlgorithm.from_jwk({"kty": "RSA", "n": jwk["n"], "e": jwk["e"]})
    except (KeyError, TypeError, ValueError, InvalidKeyError):
        return None
    if not isinstance(public, RSAPublicKey) or public.key_size not in _KEY_BITS:
        return None
    return SigningKey(public, issuer)
