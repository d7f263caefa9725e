"""Who this service is to authorization servers: as the config says, or by dynamic registration (RFC 7591)."""

import asyncio
from collections.abc import Iterable
from weakref import WeakValueDictionary

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json
from tealagents.tools.oauth_servers import Issuer, OAuthClient, ProtectedServer, secret_method


class Registrations:
    """The clients that this service is, one for each authorization server."""

    def __init__(self, callback_url: str | None) -> None:
        self._callback_url = callback_url
        #: by issuer: the client we registered as
        self._registered: dict[str, OAuthClient] = {}
        #: by issuer: the scopes that it may ask for, where it said so
        self._scopes: dict[str, frozenset[str]] = {}
        #: one registration at a time, by issuer
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def forget(self, issuer: str, client: OAuthClient) -> None:
        """The server does not know this client; one that we registered is registered anew, next time."""
        if self._registered.get(issuer) == client:
            del self._registered[issuer]

    async def client(
        self, server: ProtectedServer, asked: Issuer, metadata: Json, scopes: Iterable[str]
    ) -> OAuthClient:
        """The client that the config names, or else the one this service is registered as. `ToolFailed`.

        Some servers let a client ask only for the scopes that it named when it registered: for others it
        registers anew, and what was granted to the earlier client stays with that.
        """
        if server.client_id:
            if server.client_secret and server.issuer is None:
                raise ToolFailed(f"{server.name}: a client secret is only sent to a configured auth_server.")
            method = secret_method(metadata) if server.client_secret else "none"
            return OAuthClient(server.client_id, server.client_secret, method)
        issuer = metadata["issuer"]
        endpoint = metadata.get("registration_endpoint")
        async with self._locks.setdefault(issuer, asyncio.Lock()):
            known = self._scopes.get(issuer, frozenset())
            if issuer not in self._registered or not known.issuperset(scopes):
                if not server.register or not endpoint:
                    raise ToolFailed(
                        f"{server.name} needs the user's authorization at {issuer}, where this service is "
                        "not known. Its operator has to register it and set oauth_client_id."
                    )
                known = known.union(scopes)
                self._registered[issuer] = await self._register(asked, str(endpoint), known)
                self._scopes[issuer] = known
            return self._registered[issuer]

    async def _register(self, issuer: Issuer, endpoint: str, scopes: Iterable[str]) -> OAuthClient:
        body: Json = {
            "client_name": "tealagents",
            "redirect_uris": [self._callback_url],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "application_type": "web",
        }
        if named := " ".join(sorted(scopes)):
            body["scope"] = named
        status, answer = await issuer.call("POST", endpoint, json=body)
        if "scope" in body and 400 <= status < 500:  # some let no client say its scopes, and grant them
            del body["scope"]
            status, answer = await issuer.call("POST", endpoint, json=body)
        if status not in (200, 201) or not isinstance(answer.get("client_id"), str):
            raise ToolFailed(f"{endpoint} did not register this service as a client (status {status}).")
        secret = answer.get("client_secret")
        method = answer.get("token_endpoint_auth_method") or ("client_secret_basic" if secret else "none")
        if method not in ("none", "client_secret_basic", "client_secret_post"):
            raise ToolFailed(f"{endpoint} wants clients to identify by {method}, which is not supported.")
        return OAuthClient(answer["client_id"], secret, method)
