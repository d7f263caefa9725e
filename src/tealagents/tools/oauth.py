"""A user's own authorization at another service: OAuth 2.1 with PKCE, through the user's browser.

A tool that lacks the user's token raises the `NeedsAuthorization` that `Consents.need` makes. The user visits
its URL; the authorization server sends the browser back to `GET …/oauth/callback`, which hands state and
code to `Consents.complete`. The next call of the tool finds the token in `Consents.tokens`.

Access tokens are kept in memory. Refresh tokens, access tokens that come without one, and pending
authorizations that another replica may complete or that must survive a restart, are kept only in a `Secrets`,
if there is one.

Followed: RFC 6749 and 7636 (code and PKCE, S256 only), 8414 (server metadata, its issuer compared
exactly), 7591 (dynamic registration), 8707 (resource indicators), 9207 (`iss` in the callback), 9700
(section 4.4.2.2: a redirect URI for each authorization server that registers us), 9728 (metadata of the
protected resource).
"""

import asyncio
import dataclasses
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from msgspec.structs import replace

from tealagents.domain.errors import InvalidRequest, NeedsAuthorization, PersistenceUnavailable, ToolFailed
from tealagents.domain.ports import ToolContext
from tealagents.tools.oauth_clients import Registrations
from tealagents.tools.oauth_pending import (
    LinkKey,
    PendingConsent,
    PendingConsents,
    Secrets,
    authorization_url,
)
from tealagents.tools.oauth_servers import (
    Challenge,
    Endpoints,
    ProtectedServer,
    issuer_of,
    require_pkce,
    resource_metadata,
    scopes_to_ask,
    server_metadata,
)
from tealagents.tools.oauth_tokens import Tokens
from tealagents.tools.user_tokens import user_key_of

logger = logging.getLogger(__name__)

#: characters of an authorization server's error that are shown to the user
MAX_REASON = 500


class Consents:
    """Asks users to consent and handles the callbacks; `tokens` keeps the tokens that users granted.

    `callback_url` is the absolute URL of `GET …/oauth/callback` as browsers reach it. If it is None, a call
    that has to ask the user fails, and its error ends with `without_url`: what the operator can do about it.
    With `own_callbacks`, authorization servers that the config does not name get callback URLs of their own.
    """

    def __init__(
        self,
        callback_url: str | None,
        *,
        without_url: str = "",
        own_callbacks: bool = False,
        secret_store: Secrets | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._without_url = without_url
        #: given a user's key and a request id: whether the request still waits for consent; None: all do
        self.still_asks: Callable[[str, str], Awaitable[bool]] | None = None
        self._secret_store = secret_store
        self._pending = PendingConsents(secret_store, now)
        self._registrations = Registrations(callback_url, now, own_callbacks=own_callbacks)
        self.tokens = Tokens(secret_store, self._registrations, now)
        #: so that one link at a time is made for a user, a server and a request
        self._locks: WeakValueDictionary[LinkKey, asyncio.Lock] = WeakValueDictionary()

    async def need(
        self, context: ToolContext, server: ProtectedServer, challenge: Challenge | None = None
    ) -> NeedsAuthorization:
        """The exception to raise: it asks the owner to consent, at a URL made for this owner and request.

        While that URL can be used, the next call gets the same one: a round of several calls asks once.
        Raises `ToolFailed` if the user cannot be asked, and `NeedsOwner` if another user runs the call: if
        that user opened the link, the owner's token would be for that user's account.
        """
        context.require_owner()
        challenge = challenge or Challenge()
        user_key = user_key_of(context)
        link_key = (user_key, server.key, context.request_id)
        if self._registrations.callback_url is None:
            raise ToolFailed(
                f"{server.name} needs the user's authorization, and this service has no public URL that "
                f"the user could be sent back to. {self._without_url}".rstrip()
            )
        if challenge.scopes:
            # the challenge names the scopes of one call (RFC 6750, section 3.1); the new token must keep
            # those that are granted already
            scopes = (*self.tokens.granted_scopes(user_key, server.key), *challenge.scopes)
            challenge = dataclasses.replace(challenge, scopes=scopes)
        async with self._locks.setdefault(link_key, asyncio.Lock()):
            consent = await self.tokens.last_consent(user_key, server.key)
            if (known := await self._pending.link(link_key, consent)) is not None:
                pending, authorization = known
                is_enough = set(challenge.scopes) <= set(pending.scopes)
                if is_enough and await self._registrations.is_client(server, pending.at):
                    return authorization
            state, pending, url = await self._begin(context, server, challenge, consent)
            authorization = NeedsAuthorization(server.name, url, pending.scopes)
            await self._pending.remember(state, pending, link_key, authorization)
            return authorization

    async def _begin(
        self, context: ToolContext, server: ProtectedServer, challenge: Challenge, consent: str
    ) -> tuple[str, PendingConsent, str]:
        resource = await resource_metadata(server, challenge)
        issuer = issuer_of(server, resource)
        metadata = await server_metadata(server, issuer)
        require_pkce(server, metadata)
        scopes = scopes_to_ask(
            server, challenge, resource, metadata, renewable=self._secret_store is not None
        )
        client = await self._registrations.client(server, issuer, metadata, scopes)
        at = Endpoints(
            issuer=metadata["issuer"],
            token_endpoint=metadata["token_endpoint"],
            client=client,
            resource=resource.get("resource") or server.resource,
            named=issuer.named,
            url=server.url,
            verify_ssl=server.verify_ssl,
        )
        if not await self._registrations.is_client(server, at):
            at = replace(at, client=await self._registrations.client(server, issuer, metadata, scopes))
        state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(64)
        pending = PendingConsent(
            user_key=user_key_of(context),
            request_id=context.request_id,
            server_name=server.name,
            server_key=server.key,
            at=at,
            scopes=scopes,
            verifier=verifier,
            expires_at=self._pending.until(),
            consent=consent,
            callback_id=self._registrations.callback_id(server, at.issuer),
            must_name_issuer=metadata.get("authorization_response_iss_parameter_supported") is True,
        )
        redirect_uri = self._registrations.redirect_uri(pending.callback_id)
        url = authorization_url(metadata["authorization_endpoint"], state, pending, redirect_uri)
        return state, pending, url

    async def complete(self, state: str, code: str, *, iss: str | None = None, server: str = "") -> str:
        """Exchanges the code of a callback for the owner's token; returns the name of the authorized server.

        A state can be used once. `iss` and `server` are the callback's parameters of these names, if it has
        them. Raises `InvalidRequest` or, if the store stays unavailable, `PersistenceUnavailable`; both say
        what to do.
        """
        asked = await self._pending.known(state, iss, server)
        try:  # check before using up the state, so that the link still works if the store is unavailable
            if asked is not None:
                await self._check_wanted(asked)
        except InvalidRequest:
            await self._pending.take(state)
            raise
        pending = await self._pending.take(state)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._registrations.redirect_uri(pending.callback_id),
            "code_verifier": pending.verifier,
        }
        try:
            status, answer = await self._registrations.request_token(pending.at, form)
        except ToolFailed as error:
            raise InvalidRequest("code", f"{error} Resume the request for a new link.") from error
        if status not in (200, 201) or not answer.get("access_token"):
            reason = answer.get("error_description") or answer.get("error") or f"status {status}"
            said = f"{pending.at.issuer} refused it ({reason[:MAX_REASON]})."
            raise InvalidRequest("code", f"{said} Resume the request for a new link.")
        try:
            await self.tokens.accept(pending, answer)
        except PersistenceUnavailable as error:
            advice = (
                "The authorization may not have been kept. Resume the request for a new link, or to continue "
                "if it was kept."
            )
            raise PersistenceUnavailable(str(error), advice=advice) from error
        logger.info("a user authorized %s (request %s)", pending.server_name, pending.request_id)
        return pending.server_name

    async def _check_wanted(self, pending: PendingConsent) -> None:
        """Raises `InvalidRequest` if no request waits for this consent, or if it would replace a newer
        one."""
        name, asked = pending.server_name, (pending.user_key, pending.request_id)
        if self.still_asks is not None and not await self.still_asks(*asked):
            raise InvalidRequest(
                "state",
                f"the request that asked to authorize {name} has ended. Send the message again "
                "for a new link",
            )
        if await self.tokens.last_consent(pending.user_key, pending.server_key) not in ("", pending.consent):
            raise InvalidRequest(
                "state",
                f"{name} was authorized by another link since. Go back to the conversation and approve the "
                "request",
            )

    async def refuse(
        self, state: str, error: str, description: str, *, iss: str | None = None, server: str = ""
    ) -> str:
        """Handles a callback with an error in place of a code; the state is used up.

        Returns the text for the user: that nothing was granted and, unless the user declined, the server's
        error. Raises `InvalidRequest` as `complete` does.
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
