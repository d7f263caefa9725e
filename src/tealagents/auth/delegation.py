"""Tokens to act for the calling user downstream: the on-behalf-of flow of Entra ID, by msal.

The authority exchanges the user's token for one that calls another service in the user's name. The new token
is cached in memory until shortly before it expires, under a digest of the user's token. The user's token
itself and refresh tokens are never kept, and nothing is written to disk.
"""

import asyncio
import hashlib
import logging
import re
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import httpx2
from msal.exceptions import MsalError

from tealagents.auth.compact import Malformed, take_apart
from tealagents.auth.msal_http import Transport, application, credential
from tealagents.auth.options import EntraOptions
from tealagents.domain.errors import NeedsAuthorization, NeedsOwner, ToolFailed
from tealagents.domain.models import Json, User
from tealagents.domain.ports import Clock

__all__ = ["EntraDelegation", "NoDelegation", "open_delegation"]

log = logging.getLogger("tealagents.auth")

#: seconds before its end from which a token is no longer handed out
_EARLY_SECONDS = 300.0
_KEPT_TOKENS = 1000
_KEPT_TENANTS = 32
#: calls of the authority under way at once; others wait
_THREADS = 4

#: what the authority says when the user has to do something first (OpenID Connect Core, section 3.1.2.6)
_USER_IS_NEEDED = frozenset({"interaction_required", "consent_required", "login_required"})
#: the same, where Entra says `invalid_grant`: by the suberror, for whatever signing in again resolves …
_RESOLVED_BY_USER = frozenset({"basic_action", "additional_action"})
#: … and by numbers: a second factor is wanted, has to be set up, or is checked by another provider
_SECOND_FACTOR_NUMBERS = frozenset({50076, 50079, 50158})
#: consent has never been given, or not for all of the scopes
_CONSENT_NUMBERS = frozenset({65001, 65004})


class NoDelegation:
    """Implements the port `Delegation` where this service has no credential of its own."""

    async def token_for(self, user: User, assertion: str, scopes: Sequence[str]) -> str:
        raise ToolFailed(
            "This service cannot act for its users: it has no client id with a secret or a certificate."
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class _Kept(NamedTuple):
    token: str
    #: seconds since the epoch until which it is handed out
    until: float


_Key = tuple[bytes, str, tuple[str, ...]]


class EntraDelegation:
    """Implements the port `Delegation` for Entra ID. Opened by entering its async context."""

    def __init__(self, options: EntraOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._proof = credential(options)
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._asking: dict[_Key, asyncio.Task[_Kept]] = {}
        self._applications: OrderedDict[str, Any] = OrderedDict()
        self._threads: ThreadPoolExecutor | None = None
        self._transport: Transport | None = None

    async def __aenter__(self) -> Self:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="on-behalf-of")
        self._transport = Transport(self._options.authority)
        return self

    async def __aexit__(self, *exc: object) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        self._kept.clear()
        if self._transport is not None:
            await self._transport.aclose()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def token_for(self, user: User, assertion: str, scopes: Sequence[str]) -> str:
        """A token for `scopes`, all of one downstream service, in the name of `user`.

        Raises `NeedsOwner` where `assertion` is another user's token, `NeedsAuthorization` where the user
        has to consent or sign in again first, `ToolFailed` otherwise.
        """
        if not scopes:
            raise ToolFailed("No scopes were asked for: say which permission of which service is needed.")
        if not _is_of(assertion, user):
            raise NeedsOwner(f"A token of user {user.oid} is needed to act for them.")
        key = (hashlib.sha256(assertion.encode()).digest(), user.key, tuple(sorted(set(scopes))))
        kept = self._kept.get(key)
        if kept is None or kept.until <= self._clock.now().timestamp():
            kept = await self._ask_together(key, user, assertion)
        return kept.token

    async def _ask_together(self, key: _Key, user: User, assertion: str) -> _Kept:
        """Asks the authority; callers that want the same at the same time share one answer."""
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.create_task(self._ask(key, user, assertion), name="on behalf of")
            self._asking[key] = asking
            asking.add_done_callback(lambda done: self._asked(key, done))
        # A caller who leaves must not end it for the others.
        return await asyncio.shield(asking)

    def _asked(self, key: _Key, done: asyncio.Task[_Kept]) -> None:
        del self._asking[key]
        # Looked at, so that a failure whose callers have all left is not reported as lost.
        if done.cancelled() or done.exception() is not None:
            return
        now = self._clock.now().timestamp()
        for old in [each for each, kept in self._kept.items() if kept.until <= now]:
            del self._kept[old]
        self._kept[key] = done.result()
        self._kept.move_to_end(key)
        if len(self._kept) > _KEPT_TOKENS:
            self._kept.popitem(last=False)

    async def _ask(self, key: _Key, user: User, assertion: str) -> _Kept:
        scopes = list(key[2])
        before = self._clock.now().timestamp()
        loop = asyncio.get_running_loop()
        if self._threads is None:
            raise RuntimeError("enter the delegation's async context before using it")
        try:
            answer, url = await loop.run_in_executor(
                self._threads, self._exchange, user.tid, assertion, scopes
            )
        except (httpx2.HTTPError, MsalError, ValueError) as error:
            # Not chained, and not quoted: what msal says may hold what it was given.
            log.warning("The authority did not answer an on-behalf-of request: %s", type(error).__name__)
            raise ToolFailed("The authority did not answer when asked for a token for the user.") from None
        token, lifetime = answer.get("access_token"), answer.get("expires_in")
        if isinstance(token, str) and isinstance(lifetime, int):
            return _Kept(token, before + max(lifetime - _EARLY_SECONDS, 0))
        raise self._refusal(answer, url, scopes)

    def _exchange(self, tid: str, assertion: str, scopes: list[str]) -> tuple[Json, str]:
        """In a thread: the authority's answer, and where its users consent."""
        client = self._application(tid)
        answer: Json = client.acquire_token_on_behalf_of(assertion, scopes)
        return answer, str(client.authority.authorization_endpoint)

    def _application(self, tid: str) -> Any:
        # Two threads may both make one; then the later one stays. They hold no state worth a lock.
        client = self._applications.get(tid)
        if client is None:
            assert self._transport is not None
            options = self._options
            client = application(options.client_id, self._proof, options.authority, tid, self._transport)
            self._applications[tid] = client
            if len(self._applications) > _KEPT_TENANTS:
                self._applications.popitem(last=False)
        return client

    def _refusal(self, answer: Json, endpoint: str, scopes: list[str]) -> NeedsAuthorization | ToolFailed:
        error, suberror = _word(answer.get("error")), _word(answer.get("suberror"))
        numbers = [number for number in answer.get("error_codes") or () if isinstance(number, int)]
        consent = "consent_required" in (error, suberror) or not _CONSENT_NUMBERS.isdisjoint(numbers)
        # Not by `claims`, which also come with refusals that no user can resolve (53003).
        needed = error in _USER_IS_NEEDED or suberror in _RESOLVED_BY_USER
        if consent or needed or not _SECOND_FACTOR_NUMBERS.isdisjoint(numbers):
            return self._authorization(endpoint, scopes, consent=consent, claims=answer.get("claims"))
        reasons = ", ".join([error, *(f"AADSTS{number}" for number in numbers)])
        log.warning("The authority refused an on-behalf-of request: %s", reasons)
        return ToolFailed(f"The authority gave no token for the user ({reasons}).")

    def _authorization(
        self, endpoint: str, scopes: list[str], *, consent: bool, claims: object
    ) -> NeedsAuthorization:
        """Where the user grants the scopes or, for a claims challenge, signs in as the tenant demands."""
        asked = {
            "client_id": self._options.client_id,
            "response_type": "code",
            "scope": " ".join(["openid", *scopes]),
            "prompt": "consent" if consent else None,
            "claims": claims if isinstance(claims, str) else None,
            "redirect_uri": self._options.consent_redirect_uri,
        }
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        if self._options.authority.startswith("http://"):
            endpoint = endpoint.replace("https://", "http://", 1)
        server = scopes[0].rpartition("/")[0] or self._options.authority
        return NeedsAuthorization(server, f"{endpoint}?{query}", tuple(scopes))


def open_delegation(options: EntraOptions, clock: Clock) -> EntraDelegation | NoDelegation:
    """What can act for users with these options; enter its async context to open it."""
    if options.client_secret is None and options.certificate is None:
        return NoDelegation()
    return EntraDelegation(options, clock)


def _is_of(assertion: str, user: User) -> bool:
    """Whether a token names the user. It has been checked when the request began."""
    try:
        claims = take_apart(assertion).claims
    except Malformed:
        return False
    return (claims.get("tid"), claims.get("oid")) == (user.tid, user.oid)


def _word(value: object) -> str:
    """An error's name as the authority wrote it, or `error` where it is not a name."""
    return value if isinstance(value, str) and re.fullmatch(r"[a-z_]{1,64}", value) else "error"
