"""What is asked of resource and authorization servers, and what of their answers is believed.

Metadata is asked for at a server's own origin only, over https (plain http on loopback), following no
redirect and reading no more than `MAX_ANSWER` bytes: what a server says must not make us call others.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import msgspec
from msgspec import Struct

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json

#: bytes of a metadata document or token answer
MAX_ANSWER = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ProtectedServer:
    """A server that wants a token of the user's, as far as the configuration knows it."""

    #: what the user is told
    name: str
    #: the URL the token is for (RFC 8707), if it is known
    resource: str | None = None
    #: the authorization server; None: the one the resource names
    issuer: str | None = None
    #: scopes to ask for; empty: those the server asks for
    scopes: tuple[str, ...] = ()
    client_id: str | None = None
    client_secret: str | None = None
    #: without a `client_id`: whether to register as a client
    register: bool = True

    @property
    def key(self) -> str:
        """What a token is kept under. A server that moves to another URL does not inherit its tokens."""
        return self.resource or " ".join((self.issuer or self.name, *sorted(self.scopes)))


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """What a server said with its 401 or 403 (`WWW-Authenticate: Bearer …`)."""

    resource_metadata: str | None = None
    scopes: tuple[str, ...] = ()

    @classmethod
    def of(cls, header: str) -> "Challenge":
        fields = {name.lower(): quoted or plain for name, quoted, plain in _CHALLENGE_FIELD.findall(header)}
        return cls(
            resource_metadata=fields.get("resource_metadata"), scopes=tuple(fields.get("scope", "").split())
        )


_CHALLENGE_FIELD = re.compile(r'([A-Za-z_]+)=(?:"([^"]*)"|([^\s,"]+))')


class OAuthClient(Struct, frozen=True):
    """Who we are to an authorization server."""

    id: str
    secret: str | None = None
    #: how the secret is sent: `client_secret_basic` or `client_secret_post`
    method: str = "none"


async def resource_metadata(server: ProtectedServer, challenge: Challenge) -> Json:
    """The protected resource's own document (RFC 9728), or nothing where it has none.

    Only asked for at the resource's own origin: what a server answers must not make us call others.
    """
    if server.resource is None:
        return {}
    parts = urlsplit(server.resource)
    origin = f"{parts.scheme}://{parts.netloc}"
    places = [f"{origin}/.well-known/oauth-protected-resource"]
    if parts.path.strip("/"):
        places.insert(0, places[0] + parts.path)
    if challenge.resource_metadata and _origin(challenge.resource_metadata) == _origin(server.resource):
        places.insert(0, challenge.resource_metadata)
    for place in dict.fromkeys(places):
        status, document = await json_request("GET", checked_url(place))
        if status == 200 and document:
            if not _is_part_of(server.resource, str(document.get("resource", ""))):
                raise ToolFailed(f"{server.name}: the metadata at {place} is that of another resource.")
            return document
    return {}


async def server_metadata(server: ProtectedServer, resource: Json) -> Json:
    """The authorization server's document (RFC 8414, or OpenID Connect's), its issuer checked."""
    offered = resource.get("authorization_servers")
    issuer = server.issuer or (str(offered[0]) if isinstance(offered, list) and offered else None)
    if issuer is None:
        if server.resource is None:
            raise ToolFailed(f"{server.name}: no authorization server is configured.")
        parts = urlsplit(server.resource)
        issuer = f"{parts.scheme}://{parts.netloc}"
    loopback = server.resource is None or _is_loopback(server.resource)
    for place in _metadata_places(checked_url(issuer, loopback=loopback)):
        status, document = await json_request("GET", place)
        if status != 200 or not document:
            continue
        if not same_issuer(str(document.get("issuer")), issuer):
            raise ToolFailed(f"{place} names another issuer than {issuer}: it is not believed.")
        for endpoint in ("authorization_endpoint", "token_endpoint"):
            checked_url(str(document.get(endpoint, "")), loopback=loopback)
        return document
    raise ToolFailed(f"{server.name}: the authorization server {issuer} publishes no metadata.")


def _metadata_places(issuer: str) -> list[str]:
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    places = [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    ]
    return list(dict.fromkeys(places))


def scopes_to_ask(
    server: ProtectedServer, challenge: Challenge, resource: Json, metadata: Json, *, renewable: bool
) -> tuple[str, ...]:
    """Those configured and those the server asked for; without either, all that the resource knows."""
    scopes = [*server.scopes, *challenge.scopes]
    if not scopes:
        scopes = [str(scope) for scope in resource.get("scopes_supported") or ()]
    supported = metadata.get("scopes_supported") or ()
    if scopes and renewable and "offline_access" in supported:
        scopes.append("offline_access")
    return tuple(dict.fromkeys(scopes))


def secret_method(metadata: Json) -> str:
    """RFC 8414: without a list, `client_secret_basic`."""
    methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    return "client_secret_basic" if "client_secret_basic" in methods else "client_secret_post"


async def token_request(
    endpoint: str, client: OAuthClient, form: Mapping[str, str], resource: str | None
) -> tuple[int, Json]:
    body = {**form, "client_id": client.id}
    if resource:
        body["resource"] = resource
    auth = None
    if client.secret and client.method == "client_secret_post":
        body["client_secret"] = client.secret
    elif client.secret:
        # RFC 6749, section 2.3.1: form-encoded before they are joined
        auth = httpx.BasicAuth(_form_encoded(client.id), _form_encoded(client.secret))
    return await json_request("POST", endpoint, data=body, auth=auth)


def _form_encoded(text: str) -> str:
    return urlencode({"": text})[1:]


async def json_request(method: str, url: str, **body: Any) -> tuple[int, Json]:
    """Status and JSON object (empty if it is none). Follows no redirect and reads no more than it must."""
    timeout = httpx.Timeout(10.0)
    try:
        async with (
            httpx.AsyncClient(timeout=timeout, headers={"Accept": "application/json"}) as client,
            asyncio.timeout(20.0),
            client.stream(method, url, follow_redirects=False, **body) as response,
        ):
            content = b""
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > MAX_ANSWER:
                    raise ToolFailed(f"{_without_query(url)} answered with more than {MAX_ANSWER:,} bytes.")
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise ToolFailed(f"{_without_query(url)} cannot be reached: {type(error).__name__}.") from error
    try:
        document = msgspec.json.decode(content)
    except msgspec.DecodeError:
        document = None
    return response.status_code, document if isinstance(document, dict) else {}


def checked_url(url: str, *, loopback: bool = True) -> str:
    """The URL, if it may be called: https, or plain http on loopback (where that is allowed)."""
    parts = urlsplit(url)
    if parts.hostname and not parts.username:
        if parts.scheme == "https":
            return url
        if parts.scheme == "http" and loopback and _is_loopback(url):
            return url
    raise ToolFailed(
        f"{_without_query(url) or 'An empty URL'} is not used for authorization: it is not https."
    )


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


def _is_part_of(resource: str, whole: str) -> bool:
    if _origin(resource) != _origin(whole):
        return False
    return (urlsplit(resource).path.rstrip("/") + "/").startswith(urlsplit(whole).path.rstrip("/") + "/")


def same_issuer(one: str, other: str) -> bool:
    """Exactly the same, but for the slash that ends a bare origin."""
    return one == other or (one.rstrip("/") == other.rstrip("/") and urlsplit(one).path in ("", "/"))


def _without_query(url: str) -> str:
    return url.partition("?")[0]
