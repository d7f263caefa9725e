"""This service as a client of authorization servers: configured, or registered dynamically (RFC 7591)."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeGuard
from weakref import WeakValueDictionary

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json
from tealagents.tools.oauth_servers import (
    LONGEST_LINK,
    MAX_TOKEN,
    Endpoints,
    Issuer,
    OAuthClient,
    ProtectedServer,
    is_text,
    secret_method,
    token_request,
)

#: most registrations that are remembered; one more replaces the oldest
MAX_REGISTRATIONS = 1_000
#: how long after its last answer to a client an authorization server is assumed to know that client
KNOWN_SECONDS = 10.0
#: seconds for an authorization server to say whether it knows a client; a user is waiting meanwhile
PROBE_SECONDS = 5.0

#: an authorization server's issuer, its `callback_id`, and the scopes it is asked for
_Asking = tuple[str, str, frozenset[str]]


class Registrations:
    """This service's client registrations, one per authorization server and set of scopes."""

    def __init__(
        self, callback_url: str | None, now: Callable[[], float], *, own_callbacks: bool = False
    ) -> None:
        #: the absolute URL of the callback; None: users cannot be sent back
        self.callback_url = callback_url
        self._own_callbacks = own_callbacks
        self._now = now
        #: the clients we registered as, oldest first
        self._registered: dict[_Asking, OAuthClient] = {}
        #: until when each registered client is assumed to be known to its server
        self._known_until: dict[OAuthClient, float] = {}
        #: one registration at a time, by issuer
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def callback_id(self, server: ProtectedServer, issuer: str) -> str:
        """The `server` parameter of the callback URL, one per authorization server: a code that one of them
        issued is never sent to another (RFC 9700, section 4.4.2.2).

        Empty where the config names the server or the client: there the operator registered the shared URL.
        """
        if server.issuer is not None or server.client_id or not self._own_callbacks:
            return ""
        return hashlib.sha256(issuer.encode()).hexdigest()[:32]

    def redirect_uri(self, callback_id: str) -> str:
        """The callback URL with this `callback_id`."""
        return (self.callback_url or "") + (f"?server={callback_id}" if callback_id else "")

    async def client(
        self, server: ProtectedServer, asked: Issuer, metadata: Json, scopes: Iterable[str]
    ) -> OAuthClient:
        """The client that the config names, or else one that this service registers and remembers.

        Some servers let a client ask only for the scopes that it named when it registered, so each set of
        scopes has its own client. Raises `ToolFailed` if there is no client for this service.
        """
        if server.client_id:
            if server.client_secret and server.issuer is None:
                raise ToolFailed(f"{server.name}: a client secret is only sent to a configured auth_server.")
            method = secret_method(metadata) if server.client_secret else "none"
            return OAuthClient(server.client_id, server.client_secret, method)
        issuer = metadata["issuer"]
        endpoint = metadata.get("registration_endpoint")
        async with self._locks.setdefault(issuer, asyncio.Lock()):
            callback_id = self.callback_id(server, issuer)
            key = (issuer, callback_id, frozenset(scopes))
            if key not in self._registered:
                if not server.register or not endpoint:
                    raise ToolFailed(
                        f"{server.name} needs the user's authorization at {issuer}, where this service is "
                        "not known. Its operator has to register it and set oauth_client_id."
                    )
                if len(self._registered) >= MAX_REGISTRATIONS:
                    oldest = next(iter(self._registered))
                    self._forget(oldest[0], self._registered[oldest])
                uri = self.redirect_uri(callback_id)
                client = self._registered[key] = await self._register(asked, str(endpoint), uri, scopes)
                self._known_until[client] = self._now() + KNOWN_SECONDS
            return self._registered[key]

    async def is_client(self, server: ProtectedServer, at: Endpoints) -> bool:
        """Whether the authorization server still knows our client; the server is asked if it has not answered
        the client lately.

        Some servers forget registered clients, and show an error to the user who opens the link. True for a
        configured client, and if the server does not answer.
        """
        if server.client_id:
            return True
        if self._known_until.get(at.client, 0) < self._now():
            form = {"grant_type": "authorization_code", "code": "none", "code_verifier": "none" * 11}
            form["redirect_uri"] = self.redirect_uri(self.callback_id(server, at.issuer))
            self._seen(at.client)  # even if the probe fails, do not repeat it at once
            with suppress(ToolFailed, TimeoutError):  # the server may be back when the user opens the link
                async with asyncio.timeout(PROBE_SECONDS):
                    await self.request_token(at, form)
        return at.client in self._known_until

    async def request_token(self, at: Endpoints, form: Json) -> tuple[int, Json]:
        """Calls `token_request`, and forgets our registration if the server rejects it (`invalid_client`)."""
        status, answer = await token_request(at, form)
        if answer.get("error") == "invalid_client":
            self._forget(at.issuer, at.client)
        else:
            self._seen(at.client)
        return status, answer

    def _seen(self, client: OAuthClient) -> None:
        """Notes that the server has just answered this client."""
        if client in self._known_until:
            self._known_until[client] = self._now() + KNOWN_SECONDS

    def _forget(self, issuer: str, client: OAuthClient) -> None:
        """Forgets a client that its server no longer knows; the next call of `client` registers a new one."""
        for key in [key for key, known in self._registered.items() if (key[0], known) == (issuer, client)]:
            del self._registered[key]
        self._known_until.pop(client, None)

    async def _register(
        self, issuer: Issuer, endpoint: str, redirect_uri: str, scopes: Iterable[str]
    ) -> OAuthClient:
        body: Json = {
            "client_name": "tealagents",
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "application_type": "web",
        }
        if named := " ".join(sorted(scopes)):
            body["scope"] = named
        status, answer = await issuer.call("POST", endpoint, json=body)
        if "scope" in body and status in (400, 403):  # some servers refuse scopes here, and grant them later
            del body["scope"]
            status, answer = await issuer.call("POST", endpoint, json=body)
        client_id, secret = answer.get("client_id"), answer.get("client_secret") or ""
        if status not in (200, 201) or not _is_client_id(client_id) or not is_text(secret, MAX_TOKEN):
            raise ToolFailed(f"{endpoint} did not register this service as a client (status {status}).")
        method = answer.get("token_endpoint_auth_method") or ("client_secret_basic" if secret else "none")
        if method not in ("none", "client_secret_basic", "client_secret_post"):
            raise ToolFailed(
                f"{endpoint} requires clients to authenticate with {str(method)[:100]}, "
                "which is not supported."
            )
        return OAuthClient(client_id, secret or None, method)


def _is_client_id(value: object) -> TypeGuard[str]:
    """Whether `value` can be a client id in a link (RFC 6749, appendix A.1)."""
    return is_text(value, LONGEST_LINK) and value != "" and value.isprintable()
