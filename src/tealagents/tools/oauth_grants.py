"""What users granted, as it outlives the process: in a `Secrets`, if there is one."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import PersistenceUnavailable
from tealagents.tools.oauth_pending import Secrets
from tealagents.tools.oauth_servers import ANSWER_SECONDS, Endpoints, ProtectedServer, same_issuer

logger = logging.getLogger(__name__)

#: lifetime of the claim to renew a grant, so that a replica that dies does not block the others for long: it
#: is longer than one request takes. Second: how often a waiting replica retries the claim
RENEWAL_SECONDS, RENEWAL_PAUSE = ANSWER_SECONDS + 5, 0.2
#: seconds between two attempts to store a renewed grant while the store is unavailable
SAVE_SECONDS = 1.0
#: how long storing a new grant is retried while the user's browser waits, and the pause between two attempts
STORE_SECONDS, STORE_PAUSE = 2.0, 0.1


class StoredGrant(Struct, frozen=True, kw_only=True):
    """A user's grant: everything needed to renew its access token. Stored as JSON in a `Secrets`."""

    at: Endpoints
    #: empty if the authorization server issued none
    refresh_token: str
    #: without a refresh token, the access token and when it stops being used (seconds since the epoch): other
    #: replicas need them, too
    access_token: str = ""
    usable_until: float = 0
    #: the scopes that the user was asked for; if none, those that were granted
    scopes: tuple[str, ...] = ()
    #: id of the consent that produced this grant; renewals keep it
    consent: str = ""


class Grants:
    """The users' grants in the store. Each is a text there, which changes when the grant is renewed.

    Without a store, none is kept.
    """

    def __init__(self, secret_store: Secrets | None, now: Callable[[], float]) -> None:
        self._secret_store = secret_store
        self._now = now
        #: renewed grants that are not stored yet, by the outdated text that the store still holds
        self._unsaved: dict[str, StoredGrant] = {}
        #: background tasks that retry storing the grants of `_unsaved`
        self._saving: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        #: one renewal at a time for a user and a server
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    @property
    def are_kept(self) -> bool:
        return self._secret_store is not None

    async def text(self, user_key: str, server_key: str) -> str | None:
        """The stored text of a grant; None if there is none. `PersistenceUnavailable`."""
        return await self._secret_store.get(user_key, server_key) if self._secret_store else None

    def of(self, text: str | None, server: ProtectedServer) -> StoredGrant | None:
        """The grant of a text with the client and the server of today's configuration; None if there is none
        for its authorization server."""
        if text is None:
            return None
        grant = self._unsaved.get(text) or _grant_in(text)
        # a token must never be sent to another authorization server
        if server.issuer is not None and not same_issuer(server.issuer, grant.at.issuer):
            return None
        client = grant.at.client
        if server.issuer is not None and server.client_id == client.id:
            # use the secret configured now: secrets are rotated, and the grant belongs to the client
            client = replace(client, secret=server.client_secret)
        at = replace(grant.at, client=client, url=server.url, verify_ssl=server.verify_ssl)
        return replace(grant, at=at)

    async def consent(self, user_key: str, server_key: str) -> str:
        """The id of the consent that a stored grant comes from; "" if there is none, or its token has expired
        for good."""
        text = await self.text(user_key, server_key)
        grant = _grant_in(text) if text else None
        return grant.consent if grant and (grant.refresh_token or self.is_usable(grant)) else ""

    def is_usable(self, grant: StoredGrant) -> bool:
        """Whether the grant holds an access token that can still be used."""
        return grant.usable_until > self._now()

    async def add(self, user_key: str, server_key: str, grant: StoredGrant) -> None:
        """Stores a new grant, retrying for `STORE_SECONDS` while the store is unavailable; then raises
        `PersistenceUnavailable`.

        One that is then found in the store counts as stored: only the reply was lost.
        """
        if self._secret_store is None:
            return
        clock = asyncio.get_running_loop().time
        deadline, text = clock() + STORE_SECONDS, _text_of(grant)
        while True:
            ttl = None if grant.refresh_token else max(1.0, grant.usable_until - self._now())
            try:
                await self._secret_store.put(user_key, server_key, text, ttl=ttl)
                return
            except PersistenceUnavailable:
                if clock() >= deadline:
                    with suppress(PersistenceUnavailable):
                        if await self._secret_store.get(user_key, server_key) == text:
                            return
                    raise
            await asyncio.sleep(STORE_PAUSE)

    async def renew(self, user_key: str, server_key: str, text: str, grant: StoredGrant) -> bool:
        """Stores a renewed grant in place of `text`: now, or once the store is available again.

        False if the user has consented anew, or was deleted, so that nothing is stored.
        """
        # the stored refresh token may have been single-use, so the new one must not be lost
        self._unsaved[text] = grant
        try:
            kept = await self._replace(user_key, server_key, text, grant)
        except PersistenceUnavailable as error:
            logger.warning("a user's renewed authorization is stored once the store takes it: %s", error)
            saving = asyncio.create_task(self._save(user_key, server_key, text, grant), name="store a grant")
            self._saving.add(saving)
            saving.add_done_callback(self._saving.discard)
            return True
        del self._unsaved[text]
        return kept

    async def _replace(self, user_key: str, server_key: str, text: str, grant: StoredGrant) -> bool:
        """Stores a renewed grant in place of `text`, or of what another replica has renewed."""
        assert self._secret_store is not None, "the grant was stored"
        while not await self._secret_store.replace(user_key, server_key, text, _text_of(grant)):
            newer = await self.text(user_key, server_key)
            if newer is None or _grant_in(newer).consent != grant.consent:
                return False
            text = newer
        return True

    async def _save(self, user_key: str, server_key: str, text: str, grant: StoredGrant) -> None:
        """Retries replacing `text` by a renewed grant, until the store is available again.

        Until then the user has to consent again if this process restarts or another replica uses the stored
        token. If the stored text has changed (a newer consent) or is gone (the user was deleted), nothing is
        written.
        """
        while not self._closing.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), SAVE_SECONDS)
            async with self._lock(user_key, server_key):
                if self._unsaved.get(text) is not grant:
                    return
                with suppress(PersistenceUnavailable):
                    if self._secret_store:
                        await self._secret_store.replace(user_key, server_key, text, _text_of(grant))
                    del self._unsaved[text]
                    return
        logger.warning("a user's renewed authorization could not be stored: the user may be asked again")

    async def settled(self) -> None:
        """Tries grants that could not be stored so far once more; call it before the store is closed."""
        self._closing.set()
        await asyncio.gather(*self._saving, return_exceptions=True)
        self._closing.clear()

    async def remove(self, user_key: str, server_key: str, text: str) -> None:
        """Removes a dead grant, unless another text has replaced it."""
        if self._secret_store:
            await self._secret_store.delete(user_key, server_key, text)

    @asynccontextmanager
    async def renewing(self, user_key: str, server_key: str) -> AsyncIterator[str | None]:
        """Only one task of one replica at a time is within, for a user and a server. Yields the stored text;
        None if there is none.

        An authorization server may take a refresh token that is used twice for stolen, and revoke the whole
        grant (OAuth 2.1, section 4.3.1).
        """
        async with self._lock(user_key, server_key):
            if self._secret_store is None or await self.text(user_key, server_key) is None:
                yield None
                return
            async with _claimed(self._secret_store, user_key, server_key):
                yield await self.text(user_key, server_key)  # another replica may have renewed it meanwhile

    def _lock(self, user_key: str, server_key: str) -> asyncio.Lock:
        return self._locks.setdefault((user_key, server_key), asyncio.Lock())


@asynccontextmanager
async def _claimed(secret_store: Secrets, user_key: str, server_key: str) -> AsyncIterator[None]:
    """Holds the claim to renew a grant, so that only one replica renews it at a time."""
    place, mine = f"renewal of {server_key}", secrets.token_urlsafe(8)
    # if the store is unavailable, renew without the claim: the caller needs the token now
    with suppress(PersistenceUnavailable):
        while not await secret_store.claim(user_key, place, mine, ttl=RENEWAL_SECONDS):  # noqa: ASYNC110
            await asyncio.sleep(RENEWAL_PAUSE)
    try:
        yield
    finally:
        with suppress(PersistenceUnavailable):  # if it cannot be deleted, the claim expires
            await secret_store.delete(user_key, place, mine)


def _grant_in(text: str) -> StoredGrant:
    return msgspec.json.decode(text, type=StoredGrant)


def _text_of(grant: StoredGrant) -> str:
    return msgspec.json.encode(grant).decode()
