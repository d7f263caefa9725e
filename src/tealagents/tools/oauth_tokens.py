"""The tokens that users granted: in memory, and what outlives the process in a `Secrets`, if there is one."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

import httpx2
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import PersistenceUnavailable, ToolFailed
from tealagents.domain.models import Json, User
from tealagents.domain.ports import ToolContext
from tealagents.tools.oauth_clients import Registrations
from tealagents.tools.oauth_pending import PendingConsent, Secrets
from tealagents.tools.oauth_servers import (
    ANSWER_SECONDS,
    Challenge,
    Endpoints,
    ProtectedServer,
    issuer_of,
    resource_metadata,
    same_issuer,
    server_metadata,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: seconds allowed for getting a token, on top of the tool call's own time limit
TOKEN_SECONDS = 30.0
#: an access token is renewed this long before it expires, but not before half its lifetime has passed
LEEWAY_SECONDS = 30
#: lifetime of an access token if the authorization server names none
DEFAULT_LIFETIME_SECONDS = 3600
#: how long before a stored grant is looked up again: deleting its user deletes it from the store
SEEN_SECONDS = 60.0
#: lifetime of the claim to renew a grant, so that a replica that dies does not block the others for long: it
#: is longer than one request takes. Second: how often a waiting replica retries the claim
RENEWAL_SECONDS, RENEWAL_PAUSE = ANSWER_SECONDS + 5, 0.2
#: seconds between two attempts to store a renewed grant while the store is unavailable
SAVE_SECONDS = 1.0
#: how long storing a new grant is retried while the user's browser waits, and the pause between two attempts
STORE_SECONDS, STORE_PAUSE = 2.0, 0.1
#: transient errors of a token endpoint (names of RFC 6749, section 4.1.2.1)
_TRANSIENT_ERRORS = ("server_error", "temporarily_unavailable")
#: statuses that suggest that the token endpoint has moved
_MOVED_STATUSES = (404, 405, 410)


class _Grant(Struct, frozen=True, kw_only=True):
    """A user's grant: everything needed to renew its access token. Stored as JSON in a `Secrets`."""

    at: Endpoints
    #: empty if the authorization server issued none
    refresh_token: str
    #: without a refresh token, the access token and when it stops being used: other replicas need them, too
    access_token: str = ""
    usable_until: float = 0
    #: the scopes that the user was asked for; if none, those that were granted
    scopes: tuple[str, ...] = ()
    #: id of the consent that produced this grant; renewals keep it
    consent: str = ""


@dataclass
class _Access:
    token: str
    expires_at: float
    #: from this time on, the token is renewed before use
    usable_until: float
    scopes: tuple[str, ...]
    #: the grant's `consent`
    consent: str
    #: when the grant was last seen in the store; None: the grant is not stored
    seen_at: float | None


class Tokens:
    """Keeps, renews and forgets the users' tokens.

    Access tokens are in memory, and refresh tokens in `secret_store`, with the access tokens that come
    without one. Without a store, a user has to consent again when an access token expires.
    """

    def __init__(
        self, secret_store: Secrets | None, registrations: Registrations, now: Callable[[], float]
    ) -> None:
        self._secret_store = secret_store
        self._registrations = registrations
        self._now = now
        self._access: dict[tuple[str, str], _Access] = {}
        #: renewed grants that are not stored yet, by the outdated JSON that the store still holds
        self._unsaved: dict[str, _Grant] = {}
        #: background tasks that retry storing the grants of `_unsaved`
        self._saving: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._renewals: dict[tuple[str, str], asyncio.Task[str | None]] = {}
        #: one renewal at a time for a user and a server
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def accept(self, pending: PendingConsent, answer: Json) -> None:
        """Keeps the tokens that a token endpoint issued for the code of a user's consent.

        Raises `PersistenceUnavailable` if the store stays unavailable; then the grant is kept only if the
        store has taken it after all. A token known only to this process would be lost when it ends, and other
        replicas would ask the user again.
        """
        times, refresh_token = self._times(answer), answer.get("refresh_token") or ""
        grant = _Grant(
            at=pending.at,
            refresh_token=refresh_token,
            access_token="" if refresh_token else answer["access_token"],
            usable_until=0 if refresh_token else times[1],
            # if no scopes were asked for, the answer names the granted ones (RFC 6749, section 3.3)
            scopes=pending.scopes or tuple(answer.get("scope", "").split()),
            consent=secrets.token_urlsafe(8),
        )
        await self._store_new(pending.user_key, pending.server_key, grant)
        self._remember(pending.user_key, pending.server_key, answer["access_token"], times, grant)

    def granted_scopes(self, user_key: str, server_key: str) -> tuple[str, ...]:
        """The scopes of the access token in memory; empty if there is none."""
        access = self._access.get((user_key, server_key))
        return access.scopes if access else ()

    async def get(self, context: ToolContext, server: ProtectedServer) -> str | None:
        """The owner's valid access token for `server`, renewed if need be; None if the owner has to consent.

        Raises `NeedsOwner` if another user runs the call, `ToolFailed` if a renewal fails for the moment.
        """
        context.require_owner()
        key = (user_key_of(context), server.key)
        access = self._access.get(key)
        if access and access.usable_until > self._now() and await self._is_granted(key, access):
            return access.token
        # one renewal at a time: a refresh token may be single-use
        renewal = self._renewals.get(key)
        if renewal is None:
            renewal = asyncio.create_task(self._renew(key[0], server), name="renew a user's token")
            self._renewals[key] = renewal
            renewal.add_done_callback(lambda done: self._renewal_ended(key, done))
        # canceling the caller must not cancel the renewal: its answer may hold the only valid refresh token
        return await asyncio.shield(renewal)

    async def settled(self) -> None:
        """Waits for running renewals and stores renewed grants; call it before the store is closed.

        Grants that could not be stored so far are tried once more.
        """
        await asyncio.gather(*self._renewals.values(), return_exceptions=True)
        self._closing.set()
        await asyncio.gather(*self._saving, return_exceptions=True)
        self._closing.clear()

    async def forget(self, context: ToolContext, server: ProtectedServer, token: str) -> None:
        """Forgets an access token that the server refused, unless another has replaced it."""
        key = (user_key_of(context), server.key)
        access = self._access.get(key)
        if access is not None and access.token == token:
            del self._access[key]

    async def wider(self, context: ToolContext, server: ProtectedServer, token: str) -> str | None:
        """Another token in place of `token`, whose scopes the server found insufficient.

        None if the user has not consented again since, on this replica or another.
        """
        key = (user_key_of(context), server.key)
        access = self._access.get(key)
        if access is not None and access.token == token:
            grant = self._grant_of(await self._stored(key[0], server), server)
            if grant is None or grant.consent == access.consent:
                return None
            await self.forget(context, server, token)
        return await self.get(context, server)

    async def last_consent(self, user_key: str, server_key: str) -> str:
        """The id of the user's last consent, or "" if there is none, or its token has expired for good.

        Where there is a store, only the store counts: what one replica remembers, the others do not know.
        """
        if self._secret_store:
            stored = await self._secret_store.get(user_key, server_key)
            grant = msgspec.json.decode(stored, type=_Grant) if stored else None
            return grant.consent if grant and (grant.refresh_token or self._is_usable(grant)) else ""
        access = self._access.get((user_key, server_key))
        return access.consent if access and access.usable_until > self._now() else ""

    async def _is_granted(self, key: tuple[str, str], access: _Access) -> bool:
        """Whether the grant of an access token still exists; if not, the token is forgotten.

        The store is asked once in `SEEN_SECONDS`. True for a grant that is not stored, or if the store is
        unavailable.
        """
        if access.seen_at is None or access.seen_at + SEEN_SECONDS > self._now():
            return True
        with suppress(PersistenceUnavailable):
            if self._secret_store and await self._secret_store.get(*key) is None:
                if self._access.get(key) is access:
                    del self._access[key]
                return False
            access.seen_at = self._now()
        return True

    def _renewal_ended(self, key: tuple[str, str], renewal: asyncio.Task[str | None]) -> None:
        del self._renewals[key]
        if not renewal.cancelled():
            # retrieved, so that asyncio does not log a failure whose callers have all left
            renewal.exception()

    async def _renew(self, user_key: str, server: ProtectedServer) -> str | None:
        async with self._locks.setdefault((user_key, server.key), asyncio.Lock()):
            if self._secret_store is None or await self._stored(user_key, server) is None:
                return None
            async with _renewing(self._secret_store, user_key, server):
                # another replica may have renewed it meanwhile
                return await self._renew_claimed(user_key, server, await self._stored(user_key, server))

    async def _stored(self, user_key: str, server: ProtectedServer) -> str | None:
        return await self._secret_store.get(user_key, server.key) if self._secret_store else None

    def _grant_of(self, stored: str | None, server: ProtectedServer) -> _Grant | None:
        """The stored grant with the client and the server of today's configuration; None if there is none for
        its authorization server."""
        if stored is None:
            return None
        grant = self._unsaved.get(stored) or msgspec.json.decode(stored, type=_Grant)
        # a token must never be sent to another authorization server
        if server.issuer is not None and not same_issuer(server.issuer, grant.at.issuer):
            return None
        client = grant.at.client
        if server.issuer is not None and server.client_id == client.id:
            # use the secret configured now: secrets are rotated, and the grant belongs to the client
            client = replace(client, secret=server.client_secret)
        at = replace(grant.at, client=client, url=server.url, verify_ssl=server.verify_ssl)
        return replace(grant, at=at)

    def _is_usable(self, grant: _Grant) -> bool:
        """Whether the grant holds an access token that can still be used."""
        return grant.usable_until > self._now()

    async def _renew_claimed(self, user_key: str, server: ProtectedServer, stored: str | None) -> str | None:
        grant = self._grant_of(stored, server)
        if stored is None or grant is None:
            return None
        if not grant.refresh_token:
            if not self._is_usable(grant):
                return None
            times = (grant.usable_until, grant.usable_until)
            return self._remember(user_key, server.key, grant.access_token, times, grant).token
        before = self._access.get((user_key, server.key))
        try:
            # stop before the claim expires: another replica would then send the same refresh token
            async with asyncio.timeout(RENEWAL_SECONDS - 1):
                grant, status, answer = await self._request_renewal(server, grant)
        except TimeoutError:
            raise _not_now(grant) from None
        if status != 200 or "access_token" not in answer:
            error = answer.get("error", "")
            logger.info("%s did not renew a user's token: %s", grant.at.issuer, error or status)
            if status >= 500 or status in (408, 429) or error in _TRANSIENT_ERRORS:
                raise _not_now(grant)
            current = await self._stored(user_key, server)
            newer = self._grant_of(current, server)
            if newer is not None and newer.refresh_token != grant.refresh_token:
                return await self._renew_claimed(user_key, server, current)  # another replica was first
            # only invalid_grant means that the grant is dead; after other errors it stays until a new one
            # replaces it
            if error == "invalid_grant" and self._secret_store and current is not None:
                await self._secret_store.delete(user_key, server.key, current)
            return None
        grant = replace(grant, refresh_token=answer.get("refresh_token") or grant.refresh_token)
        access = self._access.get((user_key, server.key))
        if access is before or access is None:  # else the user has consented meanwhile, which is newer
            times = self._times(answer)
            access = self._remember(user_key, server.key, answer["access_token"], times, grant)
        if await self._store_renewed(user_key, server, stored, grant) or access.consent != grant.consent:
            return access.token
        if self._access.get((user_key, server.key)) is access:
            del self._access[user_key, server.key]
        return await self._renew_claimed(user_key, server, await self._stored(user_key, server))

    async def _store_renewed(
        self, user_key: str, server: ProtectedServer, stored: str, grant: _Grant
    ) -> bool:
        """Stores a renewed grant in place of the text `stored`: now, or once the store is available again.

        False if the user has consented anew, or was deleted, so that nothing is stored.
        """
        # the stored refresh token may have been single-use, so the new one must not be lost
        self._unsaved[stored] = grant
        try:
            kept = await self._replace_stored(user_key, server, stored, grant)
        except PersistenceUnavailable as error:
            logger.warning("a user's renewed authorization is stored once the store takes it: %s", error)
            saving = asyncio.create_task(self._save(user_key, server, stored, grant), name="store a grant")
            self._saving.add(saving)
            saving.add_done_callback(self._saving.discard)
            return True
        del self._unsaved[stored]
        return kept

    async def _replace_stored(
        self, user_key: str, server: ProtectedServer, stored: str, grant: _Grant
    ) -> bool:
        """Stores a renewed grant in place of the text `stored`, or of what another replica has renewed."""
        assert self._secret_store is not None, "the grant was stored"
        while not await self._secret_store.replace(user_key, server.key, stored, _text_of(grant)):
            newer = await self._stored(user_key, server)
            if newer is None or msgspec.json.decode(newer, type=_Grant).consent != grant.consent:
                return False
            stored = newer
        return True

    async def _request_renewal(self, server: ProtectedServer, grant: _Grant) -> tuple[_Grant, int, Json]:
        """The grant, and the status and answer of its token endpoint.

        If the endpoint has moved, the request is sent to the new one, which the returned grant names.
        """
        form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token}
        failed: ToolFailed | None = None
        try:
            status, answer = await self._registrations.request_token(grant.at, form)
        except ToolFailed as error:
            # neither a failed connection nor a refused address, so the endpoint has not moved
            if not isinstance(error.__cause__, httpx2.ConnectError | None):
                raise
            failed, status, answer = error, 404, {}
        if status not in _MOVED_STATUSES:
            return grant, status, answer
        endpoint: str | None = grant.at.token_endpoint
        with suppress(ToolFailed):
            endpoint = await _token_endpoint(server, grant.at)
        if endpoint not in (None, grant.at.token_endpoint):
            at = replace(grant.at, token_endpoint=endpoint)
            return replace(grant, at=at), *await self._registrations.request_token(at, form)
        if failed is not None and endpoint is not None:
            raise failed
        return grant, status, answer

    async def _save(self, user_key: str, server: ProtectedServer, stored: str, grant: _Grant) -> None:
        """Retries replacing the text `stored` by a renewed grant, until the store is available again.

        Until then the user has to consent again if this process restarts or another replica uses the stored
        token. If the stored text has changed (a newer consent) or is gone (the user was deleted), nothing is
        written.
        """
        while not self._closing.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), SAVE_SECONDS)
            async with self._locks.setdefault((user_key, server.key), asyncio.Lock()):
                if self._unsaved.get(stored) is not grant:
                    return
                with suppress(PersistenceUnavailable):
                    if self._secret_store:
                        await self._secret_store.replace(user_key, server.key, stored, _text_of(grant))
                    del self._unsaved[stored]
                    return
        logger.warning("a user's renewed authorization could not be stored: the user may be asked again")

    def _times(self, answer: Json) -> tuple[float, float]:
        """When the access token of an answer expires, and from when on it is renewed before use."""
        lifetime: float = answer.get("expires_in") or DEFAULT_LIFETIME_SECONDS
        ends = self._now() + lifetime
        return ends, ends - min(LEEWAY_SECONDS, lifetime / 2)

    def _remember(
        self, user_key: str, server_key: str, token: str, times: tuple[float, float], grant: _Grant
    ) -> _Access:
        now = self._now()
        self._access = {key: access for key, access in self._access.items() if access.expires_at > now}
        access = _Access(token, *times, grant.scopes, grant.consent, now if self._secret_store else None)
        self._access[user_key, server_key] = access
        return access

    async def _store_new(self, user_key: str, server_key: str, grant: _Grant) -> None:
        """Stores a new grant, retrying for `STORE_SECONDS` while the store is unavailable.

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


def _text_of(grant: _Grant) -> str:
    return msgspec.json.encode(grant).decode()


async def _token_endpoint(server: ProtectedServer, at: Endpoints) -> str | None:
    """The current token endpoint of the grant's issuer, or None if the server now names another issuer."""
    issuer = at.server
    if server.issuer is None:
        named = issuer_of(server, await resource_metadata(server, Challenge()))
        if not same_issuer(named.url, issuer.url):
            return None
    endpoint: str = (await server_metadata(server, issuer))["token_endpoint"]
    return endpoint


def _not_now(grant: _Grant) -> ToolFailed:
    return ToolFailed(f"{grant.at.issuer} did not renew the user's authorization now. Try again later.")


@asynccontextmanager
async def _renewing(secret_store: Secrets, user_key: str, server: ProtectedServer) -> AsyncIterator[None]:
    """Holds the claim to renew a grant, so that only one replica renews it at a time.

    An authorization server may take a refresh token that is used twice for stolen, and revoke the whole grant
    (OAuth 2.1, section 4.3.1).
    """
    place, mine = f"renewal of {server.key}", secrets.token_urlsafe(8)
    # if the store is unavailable, renew without the claim: the caller needs the token now
    with suppress(PersistenceUnavailable):
        while not await secret_store.claim(user_key, place, mine, ttl=RENEWAL_SECONDS):  # noqa: ASYNC110
            await asyncio.sleep(RENEWAL_PAUSE)
    try:
        yield
    finally:
        with suppress(PersistenceUnavailable):  # if it cannot be deleted, the claim expires
            await secret_store.delete(user_key, place, mine)


async def in_time(token: Awaitable[T]) -> T:
    """The token, or what carries it. `ToolFailed` if the call is canceled meanwhile: nothing was sent."""
    try:
        return await token
    except asyncio.CancelledError:
        raise ToolFailed("The user's token did not come in time. Nothing was done.") from None


def user_key_of(context: ToolContext) -> str:
    """The key (`User.key`) of the call's owner."""
    return User(context.tenant_id, context.user_id).key
