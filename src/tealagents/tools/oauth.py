"""A user's own authorization at another service: OAuth 2.1 with PKCE, by way of the user's browser.

A tool that lacks the user's token raises the `NeedsAuthorization` that `Consents.ask` makes. The user visits
its URL; the authorization server sends the browser back to `GET …/oauth/callback`, which hands state and
code to `Consents.complete`. The next call of the tool finds the token.

What is kept: access tokens in memory; refresh tokens, and what is needed to complete a pending
authorization on another replica or after a restart, only in a `Secrets`, if there is one.

Followed: RFC 6749 and 7636 (code and PKCE, S256 only), 8414 (server metadata, its issuer compared
exactly), 7591 (dynamic registration), 8707 (resource indicators), 9207 (`iss` in the callback), 9700
(section 4.4.2.2: a redirect URI for each authorization server that registers us), 9728 (metadata of the
protected resource).
"""

import asyncio
import base64
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlencode
from weakref import WeakValueDictionary

import httpx2
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import InvalidRequest, NeedsAuthorization, PersistenceUnavailable, ToolFailed
from tealagents.domain.models import Json, User
from tealagents.domain.ports import ToolContext
from tealagents.tools.oauth_clients import Registrations
from tealagents.tools.oauth_pending import PENDING_SECONDS, PendingConsent, PendingConsents, Secrets
from tealagents.tools.oauth_servers import (
    ANSWER_SECONDS,
    Challenge,
    Endpoints,
    Issuer,
    ProtectedServer,
    issuer_of,
    require_pkce,
    resource_metadata,
    same_issuer,
    scopes_to_ask,
    server_metadata,
    token_request,
)

logger = logging.getLogger(__name__)

#: seconds that getting a token may take besides the call, which ends by itself and says what is known of it
TOKEN_SECONDS = 30.0
#: an access token that expires this soon is renewed before it is used; at most half its life is given up so
LEEWAY_SECONDS = 30
#: what is assumed where the authorization server does not say when an access token expires
DEFAULT_LIFETIME_SECONDS = 3600
#: for how long a grant that was seen in the store is believed to be there: it is deleted with its user
SEEN_SECONDS = 60.0
#: for how long a replica that dies while it renews a grant holds up the others: longer than an answer takes;
#: and how often the others look
RENEWAL_SECONDS, RENEWAL_PAUSE = ANSWER_SECONDS + 5, 0.2
#: seconds for an authorization server to say whether it knows this service, which a user waits for
PROBE_SECONDS = 5.0
#: between two tries to store a renewed grant, while the store is away
SAVE_SECONDS = 1.0
#: characters that are shown of why an authorization server refused
MAX_REASON = 500
#: errors of a token endpoint that pass by themselves (names of RFC 6749, 4.1.2.1)
_FOR_NOW = ("server_error", "temporarily_unavailable")
#: answers of a place that is no token endpoint (any more)
_GONE = (404, 405, 410)


class _Grant(Struct, frozen=True, kw_only=True):
    """What is needed to renew a user's access token."""

    at: Endpoints
    refresh_token: str
    #: what the user was asked for
    scopes: tuple[str, ...] = ()
    #: the consent that it comes from, whose refresh tokens replace one another
    consent: str = ""


@dataclass
class _Access:
    token: str
    expires_at: float
    #: from when on it is renewed before it is used
    stale_at: float
    scopes: tuple[str, ...]
    #: that of its grant
    consent: str
    #: when its grant was last seen in the store; None: it is not stored
    seen_at: float | None


class Consents:
    """What users have consented to, and are being asked to consent to.

    `callback_url` is the absolute URL of `GET …/oauth/callback` as browsers reach it. Where it is None, a
    call that has to ask fails, and says `without_url`: what the operator can do about it. With
    `own_callbacks`, authorization servers that only a tool server names send browsers to a URL of their own.
    """

    def __init__(
        self,
        callback_url: str | None,
        *,
        without_url: str = "",
        own_callbacks: bool = False,
        secrets: Secrets | None = None,
        now: Callable[[], float] = time.time,
        pending_seconds: float = PENDING_SECONDS,
    ) -> None:
        self._without_url = without_url
        #: whether a user's request may still need what it asked for; None: all do
        self.still_asks: Callable[[str, str], Awaitable[bool]] | None = None
        self._secrets = secrets
        self._now = now
        self._pending = PendingConsents(secrets, now, pending_seconds)
        self._registrations = Registrations(callback_url, now, own_callbacks=own_callbacks)
        self._access: dict[tuple[str, str], _Access] = {}
        #: renewed grants that could not be stored, by what is stored in their place
        self._unsaved: dict[str, _Grant] = {}
        #: try to store them, each until it is stored or another is
        self._saving: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._renewals: dict[tuple[str, str], asyncio.Task[str | None]] = {}
        #: one link at a time for a user, a server and a request; one renewal for the first two
        self._locks: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()

    # --- tokens ---

    async def token(self, context: ToolContext, server: ProtectedServer) -> str | None:
        """A valid access token of the owner for `server`, renewed if need be, or None: then `ask`.

        `NeedsOwner` where another user runs the call.
        """
        context.require_owner()
        key = (owner_key(context), server.key)
        access = self._access.get(key)
        if access and access.stale_at > self._now() and await self._is_granted(key, access):
            return access.token
        # one at a time: a refresh token may be good for one use only
        renewal = self._renewals.get(key)
        if renewal is None:
            renewal = asyncio.create_task(self._from_stored(key[0], server), name="renew a user's token")
            self._renewals[key] = renewal
            renewal.add_done_callback(lambda done: self._renewal_ended(key, done))
        # a caller who is canceled must not lose the answer, which may hold the only refresh token still good
        return await asyncio.shield(renewal)

    async def _is_granted(self, key: tuple[str, str], access: _Access) -> bool:
        """Whether the grant is still stored, as far as is known. Without it the token is forgotten, too."""
        if access.seen_at is None or access.seen_at + SEEN_SECONDS > self._now():
            return True
        with suppress(PersistenceUnavailable):
            if self._secrets and await self._secrets.get(*key) is None:
                if self._access.get(key) is access:
                    del self._access[key]
                return False
            access.seen_at = self._now()
        return True

    def _renewal_ended(self, key: tuple[str, str], renewal: asyncio.Task[str | None]) -> None:
        del self._renewals[key]
        if not renewal.cancelled():
            # looked at, so that a failure whose callers have all left is not reported as lost
            renewal.exception()

    async def settled(self) -> None:
        """Waits for the renewals under way: what they bring has to be stored before the store is closed.

        What could not be stored is tried once more.
        """
        await asyncio.gather(*self._renewals.values(), return_exceptions=True)
        self._closing.set()
        await asyncio.gather(*self._saving, return_exceptions=True)
        self._closing.clear()

    async def refused(self, context: ToolContext, server: ProtectedServer, token: str) -> None:
        """The server did not take this token: it is forgotten, unless another has replaced it."""
        key = (owner_key(context), server.key)
        access = self._access.get(key)
        if access is not None and access.token == token:
            del self._access[key]

    async def wider(self, context: ToolContext, server: ProtectedServer, token: str) -> str | None:
        """A token in place of one that is not good for enough; None if the user has agreed to no more since,
        here or at another replica."""
        key = (owner_key(context), server.key)
        access = self._access.get(key)
        if access is not None and access.token == token:
            grant = self._usable(await self._stored(key[0], server), server)
            if grant is None or grant.consent == access.consent:
                return None
            # a user may grant less than was asked for, and all of it later: the scopes are the same then.
            # Fewer are of an older grant: nothing is stored of one without a refresh token
            if set(grant.scopes) < set(access.scopes):
                return None
            await self.refused(context, server, token)
        return await self.token(context, server)

    async def _from_stored(self, user_key: str, server: ProtectedServer) -> str | None:
        async with self._locks.setdefault((user_key, server.key), asyncio.Lock()):
            if self._secrets is None or await self._stored(user_key, server) is None:
                return None
            async with _renewing(self._secrets, user_key, server):
                # another replica may have renewed it meanwhile
                return await self._renewed(user_key, server, await self._stored(user_key, server))

    async def _stored(self, user_key: str, server: ProtectedServer) -> str | None:
        return await self._secrets.get(user_key, server.key) if self._secrets else None

    def _usable(self, stored: str | None, server: ProtectedServer) -> _Grant | None:
        if stored is None:
            return None
        grant = self._unsaved.get(stored) or msgspec.json.decode(stored, type=_Grant)
        # the configuration may have changed since: a token never goes to another authorization server
        if server.issuer is not None and not same_issuer(server.issuer, grant.at.issuer):
            return None
        if server.issuer is not None and server.client_id == grant.at.client.id:
            # the secret as it is now: it is replaced from time to time, and the grant is the client's
            client = replace(grant.at.client, secret=server.client_secret)
            return replace(grant, at=replace(grant.at, client=client))
        return grant

    async def _renewed(self, user_key: str, server: ProtectedServer, stored: str | None) -> str | None:
        grant = self._usable(stored, server)
        if stored is None or grant is None:
            return None
        try:
            # beyond that another replica renews it, with the same token
            async with asyncio.timeout(RENEWAL_SECONDS - 1):
                grant, status, answer = await self._asked_to_renew(server, grant)
        except TimeoutError:
            raise _not_now(grant) from None
        if status != 200 or "access_token" not in answer:
            error = answer.get("error", "")
            logger.info("%s did not renew a user's token: %s", grant.at.issuer, error or status)
            if status >= 500 or status in (408, 429) or error in _FOR_NOW:
                raise _not_now(grant)
            current = await self._stored(user_key, server)
            newer = self._usable(current, server)
            if newer is not None and newer.refresh_token != grant.refresh_token:
                return await self._renewed(user_key, server, current)  # another replica was first
            # of other refusals the grant may be innocent; a new one replaces it once the user has agreed
            if error == "invalid_grant" and self._secrets and current is not None:
                await self._secrets.delete(user_key, server.key, current)
            return None
        grant = replace(grant, refresh_token=answer.get("refresh_token") or grant.refresh_token)
        # the refresh token that is stored may have been good for this one use
        self._unsaved[stored] = grant
        try:
            await self._keep(user_key, server.key, answer, grant)
            del self._unsaved[stored]
        except PersistenceUnavailable as error:
            logger.warning("a user's renewed authorization is stored once the store takes it: %s", error)
            saving = asyncio.create_task(self._save(user_key, server, stored, grant), name="store a grant")
            self._saving.add(saving)
            saving.add_done_callback(self._saving.discard)
        token: str = answer["access_token"]
        return token

    async def _asked_to_renew(self, server: ProtectedServer, grant: _Grant) -> tuple[_Grant, int, Json]:
        """The answer of the token endpoint, and the grant with that endpoint: it may have moved meanwhile."""
        form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token}
        failed: ToolFailed | None = None
        try:
            status, answer = await self._asked_for_token(grant.at, form)
        except ToolFailed as error:
            if not isinstance(error.__cause__, httpx2.ConnectError | None):  # it is there
                raise
            failed, status, answer = error, 404, {}
        if status not in _GONE:
            return grant, status, answer
        endpoint: str | None = grant.at.token_endpoint
        with suppress(ToolFailed):
            endpoint = await _token_endpoint(server, grant.at)
        if endpoint not in (None, grant.at.token_endpoint):
            at = replace(grant.at, token_endpoint=endpoint)
            return replace(grant, at=at), *await self._asked_for_token(at, form)
        if failed is not None and endpoint is not None:
            raise failed
        return grant, status, answer

    async def _save(self, user_key: str, server: ProtectedServer, stored: str, grant: _Grant) -> None:
        """Stores a renewed grant in place of `stored` once the store takes it.

        Until then a restart costs the user's consent, as does another replica that uses what is stored.
        A new consent that has replaced it by then stays; what was deleted with its user stays deleted.
        """
        while not self._closing.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), SAVE_SECONDS)
            async with self._locks.setdefault((user_key, server.key), asyncio.Lock()):
                if self._unsaved.get(stored) is not grant:
                    return
                with suppress(PersistenceUnavailable):
                    if await self._stored(user_key, server) == stored:
                        await self._put(user_key, server.key, grant)
                    del self._unsaved[stored]
                    return
        logger.warning("a user's renewed authorization could not be stored: the user may be asked again")

    async def _asked_for_token(self, at: Endpoints, form: Json) -> tuple[int, Json]:
        """As `token_request`. A registration that the server no longer knows is made again, next time."""
        status, answer = await token_request(at, form)
        if answer.get("error") == "invalid_client":
            self._registrations.forget(at.issuer, at.client)
        else:
            self._registrations.seen(at.client)
        return status, answer

    async def _keep(self, user_key: str, server_key: str, answer: Json, grant: _Grant) -> None:
        token: str = answer["access_token"]
        lifetime: float = answer.get("expires_in") or DEFAULT_LIFETIME_SECONDS
        now = self._now()
        ends, stale = now + lifetime, now + lifetime - min(LEEWAY_SECONDS, lifetime / 2)
        self._access = {key: access for key, access in self._access.items() if access.expires_at > now}
        seen = now if self._secrets and grant.refresh_token else None
        self._access[user_key, server_key] = _Access(token, ends, stale, grant.scopes, grant.consent, seen)
        await self._put(user_key, server_key, grant)

    async def _put(self, user_key: str, server_key: str, grant: _Grant) -> None:
        if self._secrets and grant.refresh_token:
            await self._secrets.put(user_key, server_key, msgspec.json.encode(grant).decode())

    # --- asking ---

    async def ask(
        self, context: ToolContext, server: ProtectedServer, challenge: Challenge | None = None
    ) -> NeedsAuthorization:
        """The exception that asks the owner to consent, with a URL made for this owner and request.

        The same URL again while it can be used: a round of several calls asks once. Raises
        `ToolFailed` where no one can be asked, `NeedsOwner` where another user runs the call: a
        visit of the link by that user would authorize this service as the owner.
        """
        context.require_owner()
        challenge = challenge or Challenge()
        asked = (owner_key(context), server.key, context.request_id)
        if self._registrations.callback_url is None:
            raise ToolFailed(
                f"{server.name} needs the user's authorization, and this service has no public URL that "
                f"the user could be sent back to. {self._without_url}".rstrip()
            )
        access = self._access.get(asked[:2])
        if access is not None and challenge.scopes:
            # the challenge names what one call needs (RFC 6750, 3.1), and the new token has to do for all
            scopes = (*access.scopes, *challenge.scopes)
            challenge = Challenge(resource_metadata=challenge.resource_metadata, scopes=scopes)
        async with self._locks.setdefault(asked, asyncio.Lock()):
            consent = await self._last_consent(*asked[:2])
            known = await self._pending.asked(asked, consent)
            is_enough = known is not None and set(challenge.scopes) <= set(known[0].scopes)
            if known is not None and is_enough and await self._is_client(server, known[0].at):
                return known[1]
            state, pending, url = await self._begun(context, server, challenge, consent)
            authorization = NeedsAuthorization(server.name, url, pending.scopes)
            await self._pending.remember(state, pending, asked, authorization)
            return authorization

    async def _begun(
        self, context: ToolContext, server: ProtectedServer, challenge: Challenge, consent: str
    ) -> tuple[str, PendingConsent, str]:
        resource = await resource_metadata(server, challenge)
        issuer = issuer_of(server, resource)
        metadata = await server_metadata(server, issuer)
        require_pkce(server, metadata)
        scopes = scopes_to_ask(server, challenge, resource, metadata, renewable=self._secrets is not None)
        client = await self._registrations.client(server, issuer, metadata, scopes)
        at = Endpoints(
            issuer=metadata["issuer"],
            token_endpoint=metadata["token_endpoint"],
            client=client,
            resource=resource.get("resource") or server.resource,
            named=issuer.named,
        )
        if not await self._is_client(server, at):
            at = replace(at, client=await self._registrations.client(server, issuer, metadata, scopes))
        state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(64)
        pending = PendingConsent(
            user_key=owner_key(context),
            request_id=context.request_id,
            server_name=server.name,
            server_key=server.key,
            at=at,
            scopes=scopes,
            verifier=verifier,
            expires_at=self._pending.until(),
            consent=consent,
            mark=self._registrations.mark(server, at.issuer),
            must_name_issuer=metadata.get("authorization_response_iss_parameter_supported") is True,
        )
        return state, pending, self._url(metadata["authorization_endpoint"], state, pending)

    async def _is_client(self, server: ProtectedServer, at: Endpoints) -> bool:
        """Whether the authorization server knows this service, as far as is known: some forget clients that
        registered, and show an error to the user who visits the link."""
        if server.client_id:
            return True
        if self._registrations.may_be_forgotten(at.client):
            form = {"grant_type": "authorization_code", "code": "none", "code_verifier": "none" * 11}
            mark = self._registrations.mark(server, at.issuer)
            form["redirect_uri"] = self._registrations.redirect_uri(mark)
            self._registrations.seen(at.client)  # without an answer, too, it is not asked again at once
            with suppress(ToolFailed, TimeoutError):  # it may be back when the user visits the link
                async with asyncio.timeout(PROBE_SECONDS):
                    await self._asked_for_token(at, form)
        return self._registrations.has(at.client)

    def _url(self, endpoint: str, state: str, pending: PendingConsent) -> str:
        challenge = base64.urlsafe_b64encode(hashlib.sha256(pending.verifier.encode()).digest()).rstrip(b"=")
        query = {
            "response_type": "code",
            "client_id": pending.at.client.id,
            "redirect_uri": self._registrations.redirect_uri(pending.mark),
            "state": state,
            "code_challenge": challenge.decode(),
            "code_challenge_method": "S256",
        }
        if pending.scopes:
            query["scope"] = " ".join(pending.scopes)
        if "offline_access" in pending.scopes:
            # OpenID Connect Core, section 11
            query["prompt"] = "consent"
        if pending.at.resource:
            query["resource"] = pending.at.resource
        return endpoint + ("&" if "?" in endpoint else "?") + urlencode(query)

    # --- the way back ---

    async def complete(self, state: str, code: str, *, iss: str | None = None, server: str = "") -> str:
        """Turns the code that the browser brought back into the owner's token.

        Returns the name of the server it is for. A state can be used once. `iss` and `server` are the
        callback's parameters of these names, if it has them. Raises `InvalidRequest` that says what to do.
        """
        asked = await self._pending.known(state, iss, server)
        try:  # before it is used up: the store may be away
            if asked is not None:
                await self._check_wanted(asked)
        except InvalidRequest:
            await self._pending.take(state)
            raise
        pending = await self._pending.take(state)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._registrations.redirect_uri(pending.mark),
            "code_verifier": pending.verifier,
        }
        try:
            status, answer = await self._asked_for_token(pending.at, form)
        except ToolFailed as error:
            raise InvalidRequest("code", f"{error} Resume the request for a new link.") from error
        if status not in (200, 201) or not answer.get("access_token"):
            reason = answer.get("error_description") or answer.get("error") or f"status {status}"
            raise InvalidRequest(
                "code", f"{pending.at.issuer} refused it ({reason}). Resume the request for a new link."
            )
        grant = _Grant(
            at=pending.at,
            refresh_token=answer.get("refresh_token") or "",
            # where none were asked for, the answer names those granted (RFC 6749, 3.3)
            scopes=pending.scopes or tuple(answer.get("scope", "").split()),
            consent=secrets.token_urlsafe(8),
        )
        await self._keep(pending.user_key, pending.server_key, answer, grant)
        logger.info("a user authorized %s (request %s)", pending.server_name, pending.request_id)
        return pending.server_name

    async def _check_wanted(self, pending: PendingConsent) -> None:
        """Refuses what would grant something that no request waits for, or replace what the user granted."""
        name, asked = pending.server_name, (pending.user_key, pending.request_id)
        if self.still_asks is not None and not await self.still_asks(*asked):
            raise InvalidRequest(
                "state",
                f"the request that asked to authorize {name} has ended. Send the message again "
                "for a new link",
            )
        if await self._last_consent(pending.user_key, pending.server_key) not in ("", pending.consent):
            raise InvalidRequest(
                "state",
                f"{name} was authorized by another link since. Go back to the conversation and approve the "
                "request",
            )

    async def _last_consent(self, user_key: str, server_key: str) -> str:
        """Empty where there is none. Of one without a refresh token, nothing is stored."""
        if self._secrets and (stored := await self._secrets.get(user_key, server_key)):
            return msgspec.json.decode(stored, type=_Grant).consent
        access = self._access.get((user_key, server_key))
        return access.consent if access else ""

    async def refuse(
        self, state: str, error: str, description: str, *, iss: str | None = None, server: str = ""
    ) -> str:
        """The browser came back with an error in place of a code. The state is used up.

        Returns what the user is shown: that nothing was granted, or what the server says is wrong.
        """
        await self._pending.known(state, iss, server)
        pending = await self._pending.take(state)
        said = ": ".join(filter(None, (error, description)))[:MAX_REASON]
        denied = error == "access_denied"
        logger.log(
            logging.INFO if denied else logging.WARNING,
            "%s granted nothing of %s: %r (request %s)",
            pending.at.issuer,
            pending.server_name,
            said,
            pending.request_id,
        )
        if denied:
            return "Nothing was granted."
        return f"{pending.server_name} was not authorized ({said}). Nothing was granted."


async def _token_endpoint(server: ProtectedServer, at: Endpoints) -> str | None:
    """Where the issuer of a grant has its token endpoint now; None: the server has another issuer by now."""
    issuer = Issuer(at.issuer, at.named, at.resource)
    if server.issuer is None:
        named = issuer_of(server, await resource_metadata(server, Challenge()))
        if not same_issuer(named.url, issuer.url):
            return None
    endpoint: str = (await server_metadata(server, issuer))["token_endpoint"]
    return endpoint


def _not_now(grant: _Grant) -> ToolFailed:
    return ToolFailed(f"{grant.at.issuer} did not renew the user's authorization now. Try again later.")


@asynccontextmanager
async def _renewing(kept: Secrets, user_key: str, server: ProtectedServer) -> AsyncIterator[None]:
    """Only one replica renews a grant at a time: a server may take a refresh token that is used twice for a
    stolen one, and revoke all that was granted with it (OAuth 2.1, 4.3.1)."""
    place, mine = f"renewal of {server.key}", secrets.token_urlsafe(8)
    # a store that takes nothing costs no renewal: the token is needed now
    with suppress(PersistenceUnavailable):
        while not await kept.claim(user_key, place, mine, ttl=RENEWAL_SECONDS):  # noqa: ASYNC110
            await asyncio.sleep(RENEWAL_PAUSE)
    try:
        yield
    finally:
        with suppress(PersistenceUnavailable):  # it expires
            await kept.delete(user_key, place, mine)


def owner_key(context: ToolContext) -> str:
    """The one text that names the owner everywhere (`User.key`)."""
    return User(context.tenant_id, context.user_id).key
