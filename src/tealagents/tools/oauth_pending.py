"""Authorizations that wait for the callback from the user's browser.

They are kept in memory and, if there is one, in a `Secrets`: then any replica can complete them, even after a
restart.
"""

import base64
import hashlib
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from tealagents.domain.errors import InvalidRequest, NeedsAuthorization
from tealagents.domain.models import PENDING_CONSENTS
from tealagents.tools.oauth_servers import Endpoints

#: seconds for which the URL of a `NeedsAuthorization` can be used
PENDING_SECONDS = 3600
#: most authorizations pending in memory at once, and those of one user; one more replaces the oldest
MAX_PENDING, MAX_OF_USER = 10_000, 1_000

#: the keys of the user and the server, and the id of the request, that a link is made for
LinkKey = tuple[str, str, str]


class Secrets(Protocol):
    """Secrets that outlive the process: one text per user and server, encrypted at rest, shared by the
    replicas.

    The service provides one only if its store is encrypted.
    """

    async def get(self, user_key: str, server: str) -> str | None: ...

    async def put(self, user_key: str, server: str, secret: str, *, ttl: float | None = None) -> None:
        """Stores `secret` in place of any other. It may be forgotten after `ttl` seconds."""
        ...

    async def replace(self, user_key: str, server: str, old: str, secret: str) -> bool:
        """Stores `secret` in place of `old`; returns whether that was still the stored text."""
        ...

    async def claim(self, user_key: str, server: str, secret: str, *, ttl: float) -> bool:
        """Stores `secret` for `ttl` seconds unless one is stored already; returns whether it did.

        Of concurrent callers, exactly one gets True.
        """
        ...

    async def take(self, user_key: str, server: str) -> str | None:
        """Returns and deletes the secret. Of concurrent callers, only one gets it."""
        ...

    async def delete(self, user_key: str, server: str, secret: str) -> None:
        """Deletes the stored text if it is `secret`; one that has replaced it stays."""
        ...


class PendingConsent(Struct, frozen=True, kw_only=True):
    """An authorization that waits for the callback from the user's browser."""

    user_key: str
    request_id: str
    server_name: str
    server_key: str
    at: Endpoints
    scopes: tuple[str, ...]
    verifier: str
    expires_at: float
    #: id of the user's last consent when this link was made
    consent: str = ""
    #: value of the callback's `server` parameter for this authorization server; empty for the shared callback
    callback_id: str = ""
    #: the server promised to name itself in the callback (RFC 9207)
    must_name_issuer: bool


def authorization_url(endpoint: str, state: str, pending: PendingConsent, redirect_uri: str) -> str:
    """The link that a user visits to consent."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(pending.verifier.encode()).digest()).rstrip(b"=")
    query = {
        "response_type": "code",
        "client_id": pending.at.client.id,
        "redirect_uri": redirect_uri,
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


class PendingConsents:
    """The pending authorizations, by the state that the browser brings back."""

    def __init__(self, secret_store: Secrets | None, now: Callable[[], float]) -> None:
        self._secret_store = secret_store
        self._now = now
        #: oldest first
        self._pending: dict[str, PendingConsent] = {}
        #: the state, and the exception with the URL, that were made for each key
        self._links: dict[LinkKey, tuple[str, NeedsAuthorization]] = {}

    def until(self) -> float:
        """When a link made now stops working."""
        return self._now() + PENDING_SECONDS

    async def link(self, key: LinkKey, consent: str) -> tuple[PendingConsent, NeedsAuthorization] | None:
        """The link already made for this user, server and request, or None if there is none that still works.

        `consent` is the id of the user's last consent, or "": a link made before that consent does not work.
        """
        state, authorization = self._links.get(key, ("", None))
        pending = self._pending.get(state)
        if pending is None or authorization is None or consent not in ("", pending.consent):
            return None
        if pending.expires_at <= self._now():
            return None
        # another replica may have used the state
        if self._secret_store and await self._secret_store.get(PENDING_CONSENTS, _digest(state)) is None:
            return None
        return pending, authorization

    async def remember(
        self, state: str, pending: PendingConsent, key: LinkKey, authorization: NeedsAuthorization
    ) -> None:
        now = self._now()
        for old in [key for key, value in self._pending.items() if value.expires_at <= now]:
            del self._pending[old]
        own = [old for old, value in self._pending.items() if value.user_key == pending.user_key]
        for old in own[: 1 - MAX_OF_USER]:
            del self._pending[old]  # else one user's links would replace those of all the others
        while len(self._pending) >= MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        self._links = {link: made for link, made in self._links.items() if made[0] in self._pending}
        self._pending[state] = pending
        if self._secret_store:
            secret = msgspec.json.encode(pending).decode()
            await self._secret_store.put(PENDING_CONSENTS, _digest(state), secret, ttl=PENDING_SECONDS)
        self._links[key] = (state, authorization)

    async def take(self, state: str) -> PendingConsent:
        """Uses up a state and returns its authorization. `InvalidRequest` if it was used already, or is too
        old."""
        pending = self._pending.pop(state, None)
        if self._secret_store:
            stored = await self._secret_store.take(PENDING_CONSENTS, _digest(state))
            # the store decides: another replica may have used the state
            pending = msgspec.json.decode(stored, type=PendingConsent) if stored else None
        if pending is None or pending.expires_at <= self._now():
            raise InvalidRequest(
                "state", "this link has been used, or is too old. Resume the request for a new one"
            )
        return pending

    async def known(self, state: str, iss: str | None, callback_id: str) -> PendingConsent | None:
        """The authorization of a state, which stays usable; None if it was used already.

        `InvalidRequest` for a callback that names another issuer in `iss` (RFC 9207), lacks a promised `iss`,
        or arrived at another server's callback URL. The state stays valid for the genuine callback.
        """
        if self._secret_store is None:
            pending = self._pending.get(state)
        else:
            stored = await self._secret_store.get(PENDING_CONSENTS, _digest(state))
            pending = msgspec.json.decode(stored, type=PendingConsent) if stored else None
        if pending is not None:
            _check_issuer(pending, iss, callback_id)
        return pending


def _check_issuer(pending: PendingConsent, iss: str | None, callback_id: str) -> None:
    if iss is None and pending.must_name_issuer:
        raise InvalidRequest("iss", f"{pending.at.issuer} has to name itself in this callback and did not")
    if callback_id != pending.callback_id or (iss is not None and iss != pending.at.issuer):
        raise InvalidRequest(
            "server" if callback_id != pending.callback_id else "iss",
            "this answer comes from a different authorization server than the one that was asked",
        )


def _digest(state: str) -> str:
    return hashlib.sha256(state.encode()).hexdigest()
