"""The tokens that users granted: in memory, renewed by what `Grants` keeps."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import httpx2
from msgspec.structs import replace

from tealagents.domain.errors import PersistenceUnavailable, ToolFailed
from tealagents.domain.models import Json
from tealagents.domain.ports import ToolContext
from tealagents.tools.oauth_clients import Registrations
from tealagents.tools.oauth_grants import RENEWAL_SECONDS, Grants, StoredGrant
from tealagents.tools.oauth_pending import PendingConsent, Secrets
from tealagents.tools.oauth_servers import (
    Challenge,
    Endpoints,
    ProtectedServer,
    issuer_of,
    resource_metadata,
    same_issuer,
    server_metadata,
)
from tealagents.tools.user_tokens import user_key_of

logger = logging.getLogger(__name__)

#: an access token is renewed this long before it expires, but not before half its lifetime has passed
LEEWAY_SECONDS = 30
#: lifetime of an access token if the authorization server names none
DEFAULT_LIFETIME_SECONDS = 3600
#: how long before a stored grant is looked up again: deleting its user deletes it from the store
SEEN_SECONDS = 60.0
#: transient errors of a token endpoint (names of RFC 6749, section 4.1.2.1)
_TRANSIENT_ERRORS = ("server_error", "temporarily_unavailable")
#: statuses that suggest that the token endpoint has moved
_MOVED_STATUSES = (404, 405, 410)


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
        self._grants = Grants(secret_store, now)
        self._registrations = registrations
        self._now = now
        self._access: dict[tuple[str, str], _Access] = {}
        self._renewals: dict[tuple[str, str], asyncio.Task[str | None]] = {}

    async def accept(self, pending: PendingConsent, answer: Json) -> None:
        """Keeps the tokens that a token endpoint issued for the code of a user's consent.

        Raises `PersistenceUnavailable` if the store stays unavailable; then the grant is kept only if the
        store has taken it after all. A token known only to this process would be lost when it ends, and other
        replicas would ask the user again.
        """
        times, refresh_token = self._times(answer), answer.get("refresh_token") or ""
        grant = StoredGrant(
            at=pending.at,
            refresh_token=refresh_token,
            access_token="" if refresh_token else answer["access_token"],
            usable_until=0 if refresh_token else times[1],
            # if no scopes were asked for, the answer names the granted ones (RFC 6749, section 3.3)
            scopes=pending.scopes or tuple(answer.get("scope", "").split()),
            consent=secrets.token_urlsafe(8),
        )
        await self._grants.add(pending.user_key, pending.server_key, grant)
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
        await self._grants.settled()

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
            grant = self._grants.of(await self._grants.text(*key), server)
            if grant is None or grant.consent == access.consent:
                return None
            await self.forget(context, server, token)
        return await self.get(context, server)

    async def last_consent(self, user_key: str, server_key: str) -> str:
        """The id of the user's last consent, or "" if there is none, or its token has expired for good.

        Where there is a store, only the store counts: what one replica remembers, the others do not know.
        """
        if self._grants.are_kept:
            return await self._grants.consent(user_key, server_key)
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
            if self._grants.are_kept and await self._grants.text(*key) is None:
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
        async with self._grants.renewing(user_key, server.key) as text:
            return await self._renew_claimed(user_key, server, text)

    async def _renew_claimed(self, user_key: str, server: ProtectedServer, text: str | None) -> str | None:
        grant = self._grants.of(text, server)
        if text is None or grant is None:
            return None
        if not grant.refresh_token:
            if not self._grants.is_usable(grant):
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
            current = await self._grants.text(user_key, server.key)
            newer = self._grants.of(current, server)
            if newer is not None and newer.refresh_token != grant.refresh_token:
                return await self._renew_claimed(user_key, server, current)  # another replica was first
            # only invalid_grant means that the grant is dead; after other errors it stays until a new one
            # replaces it
            if error == "invalid_grant" and current is not None:
                await self._grants.remove(user_key, server.key, current)
            return None
        grant = replace(grant, refresh_token=answer.get("refresh_token") or grant.refresh_token)
        access = self._access.get((user_key, server.key))
        if access is before or access is None:  # else the user has consented meanwhile, which is newer
            times = self._times(answer)
            access = self._remember(user_key, server.key, answer["access_token"], times, grant)
        if await self._grants.renew(user_key, server.key, text, grant) or access.consent != grant.consent:
            return access.token
        if self._access.get((user_key, server.key)) is access:
            del self._access[user_key, server.key]
        return await self._renew_claimed(user_key, server, await self._grants.text(user_key, server.key))

    async def _request_renewal(
        self, server: ProtectedServer, grant: StoredGrant
    ) -> tuple[StoredGrant, int, Json]:
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

    def _times(self, answer: Json) -> tuple[float, float]:
        """When the access token of an answer expires, and from when on it is renewed before use."""
        lifetime: float = answer.get("expires_in") or DEFAULT_LIFETIME_SECONDS
        ends = self._now() + lifetime
        return ends, ends - min(LEEWAY_SECONDS, lifetime / 2)

    def _remember(
        self, user_key: str, server_key: str, token: str, times: tuple[float, float], grant: StoredGrant
    ) -> _Access:
        now = self._now()
        self._access = {key: access for key, access in self._access.items() if access.expires_at > now}
        access = _Access(token, *times, grant.scopes, grant.consent, now if self._grants.are_kept else None)
        self._access[user_key, server_key] = access
        return access


async def _token_endpoint(server: ProtectedServer, at: Endpoints) -> str | None:
    """The current token endpoint of the grant's issuer, or None if the server now names another issuer."""
    issuer = at.server
    if server.issuer is None:
        named = issuer_of(server, await resource_metadata(server, Challenge()))
        if not same_issuer(named.url, issuer.url):
            return None
    endpoint: str = (await server_metadata(server, issuer))["token_endpoint"]
    return endpoint


def _not_now(grant: StoredGrant) -> ToolFailed:
    return ToolFailed(f"{grant.at.issuer} did not renew the user's authorization now. Try again later.")
