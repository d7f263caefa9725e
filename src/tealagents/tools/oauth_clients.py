"""Who this service is to authorization servers: as the config says, or by dynamic registration (RFC 7591)."""

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

#: registrations that are remembered; beyond it the oldest is forgotten
MAX_REGISTRATIONS = 1_000
#: for how long a server that has answered a client is believed to know it
KNOWN_SECONDS = 10.0
#: seconds for an authorization server to say whether it knows this service, which a user waits for
PROBE_SECONDS = 5.0

#: an authorization server, the id of its callback, and the scopes it is asked for
_Asking = tuple[str, str, frozenset[str]]


class Registrations:
    """The clients that this service is, one for each authorization server and set of scopes."""

    def __init__(
        self, callback_url: str | None, now: Callable[[], float], *, own_callbacks: bool = False
    ) -> None:
        #: where browsers come back to
        self.callback_url = callback_url
        self._own_callbacks = own_callbacks
        self._now = now
        #: the clients we registered as, oldest first
        self._registered: dict[_Asking, OAuthClient] = {}
        #: until when each is believed to be known
        self._known_until: dict[OAuthClient, float] = {}
        #: one registration at a time, by issuer
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def callback_id(self, server: ProtectedServer, issuer: str) -> str:
        """What the callback has in its parameter `server`, so that no authorization server is sent a code of
        another (RFC 9700, 4.4.2.2). Empty for those that the operator knows: one URL is registered there."""
        if server.issuer is not None or server.client_id or not self._own_callbacks:
            return ""
        return hashlib.sha256(issuer.encode()).hexdigest()[:32]

    def redirect_uri(self, callback_id: str) -> str:
        """Where browsers come back to from an authorization server."""
        return (self.callback_url or "") + (f"?server={callback_id}" if callback_id else "")

    async def client(
        self, server: ProtectedServer, asked: Issuer, metadata: Json, scopes: Iterable[str]
    ) -> OAuthClient:
        """The client that the config names, or else the one this service is registered as. `ToolFailed`.

        Some servers let a client ask only for the scopes that it named when it registered: each set of them
        has a client of its own.
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
        """Whether the authorization server knows this service, as far as is known: some forget clients that
        registered, and show an error to the user who visits the link."""
        if server.client_id:
            return True
        if self._known_until.get(at.client, 0) < self._now():
            form = {"grant_type": "authorization_code", "code": "none", "code_verifier": "none" * 11}
            form["redirect_uri"] = self.redirect_uri(self.callback_id(server, at.issuer))
            self._seen(at.client)  # without an answer, too, it is not asked again at once
            with suppress(ToolFailed, TimeoutError):  # it may be back when the user visits the link
                async with asyncio.timeout(PROBE_SECONDS):
                    await self.request_token(at, form)
        return at.client in self._known_until

    async def request_token(self, at: Endpoints, form: Json) -> tuple[int, Json]:
        """As `token_request`. A registration that the server no longer knows is made again, next time."""
        status, answer = await token_request(at, form)
        if answer.get("error") == "invalid_client":
            self._forget(at.issuer, at.client)
        else:
            self._seen(at.client)
        return status, answer

    def _seen(self, client: OAuthClient) -> None:
        """The server knows it."""
        if client in self._known_until:
            self._known_until[client] = self._now() + KNOWN_SECONDS

    def _forget(self, issuer: str, client: OAuthClient) -> None:
        """The server does not know this client; one that we registered is registered anew, next time."""
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
        if "scope" in body and status in (400, 403):  # some let no client say its scopes, and grant them
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
    """Whether it can be part of a link (RFC 6749, A.1)."""
    return is_text(value, LONGEST_LINK) and value != "" and value.isprintable()
