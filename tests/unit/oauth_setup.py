"""Authorization servers: one whose user always agrees, an MCP server that it protects, and a pretender."""

import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer as SDKServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tools_setup import served

Json = dict[str, Any]
CALLBACK = "http://127.0.0.1:8000/Agent/1/oauth/callback"


class SecretStore:
    """Secrets in memory, shared by all that hold it."""

    def __init__(self) -> None:
        self.secrets: dict[tuple[str, str], str] = {}

    async def get(self, user_key: str, server: str) -> str | None:
        return self.secrets.get((user_key, server))

    async def put(self, user_key: str, server: str, secret: str, *, ttl: float | None = None) -> None:
        self.secrets[user_key, server] = secret

    async def claim(self, user_key: str, server: str, secret: str, *, ttl: float) -> bool:
        if (user_key, server) in self.secrets:
            return False
        await self.put(user_key, server, secret, ttl=ttl)
        return True

    async def replace(self, user_key: str, server: str, old: str, secret: str) -> bool:
        if self.secrets.get((user_key, server)) != old:
            return False
        await self.put(user_key, server, secret)
        return True

    async def take(self, user_key: str, server: str) -> str | None:
        return self.secrets.pop((user_key, server), None)

    async def delete(self, user_key: str, server: str, secret: str) -> None:
        if self.secrets.get((user_key, server)) == secret:
            del self.secrets[user_key, server]


class Provider(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """An authorization server whose user is the one that `user` names, and who always agrees."""

    def __init__(self) -> None:
        self.user = "nobody"
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.granted: list[str] = []
        #: whose tokens `whoami` was called with
        self.calls: list[str] = []

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = secrets.token_urlsafe(16)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
            subject=self.user,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        self.granted.append("code")
        return self._issue(
            client, authorization_code.scopes, authorization_code.subject, authorization_code.resource
        )

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[refresh_token.token]
        self.granted.append("refresh")
        return self._issue(client, scopes, refresh_token.subject, refresh_token.resource)

    def _issue(
        self, client: OAuthClientInformationFull, scopes: list[str], subject: str | None, resource: str | None
    ) -> OAuthToken:
        access, refresh = f"access-{secrets.token_hex(8)}", f"refresh-{secrets.token_hex(8)}"
        known: Json = {"client_id": client.client_id, "scopes": scopes, "subject": subject}
        self.access[access] = AccessToken(token=access, resource=resource, **known)
        self.refresh[refresh] = RefreshToken(token=refresh, resource=resource, **known)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=3600, scope=" ".join(scopes))

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)


@contextmanager
def protected(provider: Provider, *, per_user: bool = False, challenge: str | None = None) -> Iterator[str]:
    """An MCP server that wants a token for everything, with its authorization server.

    `challenge` is what it says with a 401, in place of what the SDK does.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    settings = AuthSettings.model_validate(
        {
            "issuer_url": url,
            "resource_server_url": f"{url}/mcp",
            "required_scopes": ["notes"],
            "client_registration_options": ClientRegistrationOptions(
                enabled=True, valid_scopes=["notes", "more"]
            ),
            "validate_token_resource": True,
        }
    )
    sdk: SDKServer[Any] = SDKServer("secure", auth_server_provider=provider, auth=settings)

    @sdk.tool()
    async def whoami() -> str:
        """Tell whose token it is."""
        token = get_access_token()
        provider.calls.append(str(token.subject if token else None))
        return provider.calls[-1]

    app: Any = sdk.streamable_http_app()
    if challenge is not None:
        app = _Challenging(app, challenge)
    with served(_PerUser(provider, app) if per_user else app, port):
        yield f"{url}/mcp"


class _Challenging:
    """The same server with another challenge."""

    def __init__(self, app: Any, challenge: str) -> None:
        self._app = app
        self._challenge = challenge.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def challenged(message: Any) -> None:
            if message.get("status") == 401:
                kept = [header for header in message["headers"] if header[0] != b"www-authenticate"]
                message["headers"] = [*kept, (b"www-authenticate", self._challenge)]
            await send(message)

        await self._app(scope, receive, challenged)


class _PerUser:
    """The same server, but that it lists each user tools that speak of that user."""

    def __init__(self, provider: Provider, app: Any) -> None:
        self._provider = provider
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        token = dict(scope.get("headers", ())).get(b"authorization", b"").decode().removeprefix("Bearer ")
        access = self._provider.access.get(token)
        if scope.get("path") != "/mcp" or access is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        message = await request.json() if request.method == "POST" else {}
        result = self._result(str(access.subject), message)
        answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": result}
        response = JSONResponse(answer) if result else Response(status_code=202 if message else 405)
        await response(scope, receive, send)

    def _result(self, user: str, message: Json) -> Json | None:
        text = {"type": "text", "text": f"the notes of {user}"}
        tool = {"description": f"Private to {user}. Say {user}.", "inputSchema": {"type": "object"}}
        results: dict[str, Json] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "private", "version": "1"},
            },
            "tools/list": {"tools": [{"name": f"notes_of_{user}", **tool}, {"name": "notes", **tool}]},
            "tools/call": {"content": [text]},
        }
        return results.get(message.get("method", ""))


async def visited(provider: Provider, user: str, url: str) -> dict[str, str]:
    """What the browser brings to the callback after this user has agreed."""
    provider.user = user
    async with httpx.AsyncClient() as browser:
        response = await browser.get(url)
    assert response.status_code == 302, response.text
    target = response.headers["location"]
    assert target.startswith(CALLBACK)
    return {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}


class Pretender:
    """Documents and a token endpoint, as a test writes them."""

    def __init__(self) -> None:
        self.documents: dict[str, Json] = {}
        self.forms: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.fetched: list[str] = []
        #: what the clients that registered so far said of themselves
        self.clients: list[Json] = []
        #: whether a client may say which scopes it will ask for
        self.takes_scopes = True
        #: the one that the token endpoint knows; None: any
        self.known: str | None = None
        #: what its answers say besides the tokens
        self.answered: Json = {}
        #: what a client that registers is answered besides its id, or in place of it
        self.registered: Json = {}
        self.url = ""

    def publish(self, **metadata: Any) -> None:
        self.documents["/.well-known/oauth-authorization-server"] = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "code_challenge_methods_supported": ["S256"],
            **metadata,
        }

    async def document(self, request: Request) -> Response:
        self.fetched.append(request.url.path)
        found = self.documents.get(request.url.path)
        return JSONResponse(found) if found is not None else Response(status_code=404)

    async def token(self, request: Request) -> Response:
        form = await request.form()
        self.forms.append({name: str(value) for name, value in form.items()})
        self.headers.append(dict(request.headers))
        if self.known not in (None, form["client_id"]):
            return JSONResponse({"error": "invalid_client"}, status_code=401)
        answer = {"access_token": "granted", "token_type": "Bearer", "refresh_token": "r"}
        return JSONResponse({**answer, **self.answered})

    async def register(self, request: Request) -> Response:
        body = await request.json()
        if "scope" in body and not self.takes_scopes:
            return JSONResponse({"error": "invalid_client_metadata"}, status_code=400)
        self.clients.append(body)
        answer = {"client_id": f"registered-{len(self.clients)}", **self.registered}
        return JSONResponse(answer, status_code=201)


@contextmanager
def pretending(certificate: Path | None = None) -> Iterator[Pretender]:
    pretender = Pretender()
    routes = [
        Route("/token", pretender.token, methods=["POST"]),
        Route("/register", pretender.register, methods=["POST"]),
        Route("/{path:path}", pretender.document, methods=["GET"]),
    ]
    with served(Starlette(routes=routes), certificate=certificate) as url:
        pretender.url = url
        yield pretender
