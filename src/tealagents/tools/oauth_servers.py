"""What is asked of resource and authorization servers, and what of their answers is believed.

What a server says must not make us call others. Metadata of a resource is asked for at its own origin. An
authorization server that the config does not name may be anyone's: it is called at public addresses only,
and at the origin of the resource where it is part of that. All is https; plain http is for a server on
loopback that the config names, and for what an authorization server that the config names has there.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard
from urllib.parse import urlencode, urlsplit

import httpx2
from msgspec import Struct

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json
from tealagents.outbound.addresses import is_loopback, proxy_for, public_address, same_origin, shown
from tealagents.outbound.reading import BoundedClient, fetch, json_object

logger = logging.getLogger(__name__)

#: bytes of a metadata document or token answer, and seconds until it has come
MAX_ANSWER, ANSWER_SECONDS = 256_000, 20.0
#: characters of a token, or of another text in a token answer
MAX_TOKEN = 32_768
#: characters of a challenge that are looked at
MAX_CHALLENGE = 8_192
#: characters of a URL that a user is sent to, without what is asked for; and of each thing that is asked for
LONGEST_LINK = 8_000


@dataclass(frozen=True, kw_only=True)
class ProtectedServer:
    """A server that wants a token of the user's, as far as the configuration knows it."""

    #: what the user sees
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
    #: an authorization server whose metadata does not speak of PKCE supports it
    assume_pkce: bool = False

    @property
    def key(self) -> str:
        """What a token is kept under. A server that moves to another URL does not inherit its tokens.

        The scopes are those of the configuration. Which of them were granted, authorization servers
        word in their own ways (RFC 6749, 3.3): the resource decides whether they are enough.
        """
        return " ".join((self.resource or self.issuer or self.name, *sorted(self.scopes)))


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """What a server said with its 401 or 403 (`WWW-Authenticate: Bearer …`)."""

    resource_metadata: str | None = None
    scopes: tuple[str, ...] = ()

    @classmethod
    def of(cls, header: str) -> "Challenge":
        fields = {
            name.lower(): quoted or plain
            for name, quoted, plain in _CHALLENGE_FIELD.findall(header[:MAX_CHALLENGE])
        }
        return cls(
            resource_metadata=fields.get("resource_metadata"), scopes=tuple(fields.get("scope", "").split())
        )


# a name is tried from its beginning only: a long text without `=` is looked at once
_CHALLENGE_FIELD = re.compile(r'(?<![A-Za-z_])([A-Za-z_]++)=(?:"([^"]*+)"|([^\s,"]++))')


class OAuthClient(Struct, frozen=True):
    """Who we are to an authorization server."""

    id: str
    secret: str | None = None
    #: how the secret is sent: `client_secret_basic` or `client_secret_post`
    method: str = "none"


class Endpoints(Struct, frozen=True, kw_only=True):
    """Where a user's tokens come from: kept with what was granted, so that it is renewed there and nowhere
    else."""

    issuer: str
    token_endpoint: str
    client: OAuthClient
    #: what the tokens are for (RFC 8707)
    resource: str | None
    #: the config names the issuer; else only public addresses are called, and the resource's own origin
    named: bool


class Issuer(NamedTuple):
    """An authorization server, and what its metadata may make us call."""

    url: str
    #: the config names it, and so trusts its metadata
    named: bool
    #: what its tokens are for: the config names that origin, whose own authorization server this may be
    resource: str | None = None

    async def call(self, method: str, url: str, **body: Any) -> tuple[int, Json]:
        """Status and JSON object (empty where it is none) of one of its endpoints. `ToolFailed`.

        A refused address and one that does not answer fail alike: errors that do not differ cannot be used to
        scan a network.
        """
        self.check(url)
        target, extensions, options = httpx2.URL(url), dict[str, Any](), dict[str, Any]()
        headers = {"accept": "application/json"}
        if not self._is_expected(url):
            address = await public_address(url)
            if address is None:
                raise unusable(url, "its address is not public, and the config does not name it")
            headers["host"] = target.netloc.decode("ascii")
            extensions["sni_hostname"] = target.host
            target = target.copy_with(host=address)
            options["proxy"] = proxy_for(url)  # as the address was judged, whatever else reads NO_PROXY
        try:
            async with BoundedClient(
                url, seconds=ANSWER_SECONDS, limit=MAX_ANSWER, headers=headers, **options
            ) as client:
                answer = await fetch(client, method, target, extensions=extensions, **body)
        except httpx2.HTTPError as error:
            raise unusable(url, f"{type(error).__name__}: {error}") from error
        return answer.status, json_object(answer.content) or {}

    def check(self, url: str) -> None:
        """`ToolFailed` for what is no https URL, or plain http beyond a named server on loopback.

        Also for a URL with a fragment (RFC 6749, 3.1), and for one that users could not read.
        """
        try:
            parts = urlsplit(url)
            plain_is_fine = self._is_expected(url) and is_loopback(self.url) and is_loopback(url)
            fine = parts.scheme == "https" or (parts.scheme == "http" and plain_is_fine)
            if not fine or not parts.hostname or "@" in parts.netloc or parts.port == 0:
                raise unusable(url, "it is not https")
            if "#" in url or not is_one_word(url):
                raise unusable(url, "it has a fragment, blanks or invisible characters, or is too long")
            httpx2.URL(url)
        except (ValueError, httpx2.InvalidURL) as error:
            raise unusable(url, "it is not a URL") from error

    def _is_expected(self, url: str) -> bool:
        """Whether the config has us call this URL, wherever it is: a resource's origin, but not what else is
        named there, which may be anyone's."""
        if self.named or self.resource is None:
            return self.named
        return same_origin(self.url, self.resource) and same_origin(url, self.resource)


def is_one_word(url: str) -> bool:
    """Whether a URL reads as one where it stands in a sentence: no blanks and nothing unseen."""
    return len(url) <= LONGEST_LINK and url.isprintable() and " " not in url


def is_text(value: object, longest: int) -> TypeGuard[str]:
    """Whether what a server says is a text of a sane length."""
    return isinstance(value, str) and len(value) <= longest


def _texts(value: object) -> list[str]:
    """The texts of what should be a list of texts."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def unusable(url: str, reason: str) -> ToolFailed:
    """The reason is for the operator's log."""
    place = shown(url)[:200] or "An empty URL"
    logger.warning("%r is not used for authorization: %s", place, reason)
    return ToolFailed(f"{place} cannot be used for authorization. The service's log says why.")


async def resource_metadata(server: ProtectedServer, challenge: Challenge) -> Json:
    """The protected resource's own document (RFC 9728), or nothing where it has none.

    Only asked for at the resource's own origin: what a server answers must not make us call others.
    """
    if server.resource is None:
        return {}
    here = Issuer(_origin(server.resource), named=True)
    path = urlsplit(server.resource).path
    places = [f"{here.url}/.well-known/oauth-protected-resource"]
    if path.strip("/"):
        places.insert(0, places[0] + path)
    if challenge.resource_metadata and same_origin(challenge.resource_metadata, server.resource):
        places.insert(0, challenge.resource_metadata)
    for place in dict.fromkeys(places):
        status, document = await here.call("GET", place)
        if status == 200 and document:
            named = str(document.get("resource", ""))
            if not is_one_word(named) or not _is_part_of(server.resource, named):
                raise ToolFailed(f"{server.name}: the metadata at {place} is that of another resource.")
            return document
    return {}


def issuer_of(server: ProtectedServer, resource: Json) -> Issuer:
    """The authorization server: the configured one, else the one that the resource names, else itself."""
    if server.issuer is not None:
        return Issuer(server.issuer, named=True)
    if server.resource is None:
        raise ToolFailed(f"{server.name}: no authorization server is configured.")
    offered = resource.get("authorization_servers")
    url = str(offered[0]) if isinstance(offered, list) and offered else _origin(server.resource)
    return Issuer(url, named=False, resource=server.resource)


async def server_metadata(server: ProtectedServer, issuer: Issuer) -> Json:
    """The authorization server's document (RFC 8414, or OpenID Connect's), its issuer checked."""
    issuer.check(issuer.url)
    for place in _metadata_places(issuer.url):
        status, document = await issuer.call("GET", place)
        if status != 200 or not document:
            continue
        if not same_issuer(str(document.get("issuer")), issuer.url):
            raise ToolFailed(f"{place} names a different issuer than {issuer.url}, so it is not trusted.")
        for endpoint in ("authorization_endpoint", "token_endpoint", "registration_endpoint"):
            if endpoint in document or endpoint != "registration_endpoint":
                issuer.check(str(document.get(endpoint, "")))
        return document
    raise ToolFailed(f"{server.name}: the authorization server {issuer.url} publishes no metadata.")


def require_pkce(server: ProtectedServer, metadata: Json) -> None:
    """`ToolFailed` unless the authorization server says that it checks what protects a code (PKCE, S256).

    MCP 2025-11-25 and 2026-07-28 demand this, in OpenID Connect's document as well ("Authorization Code
    Protection"): a server that ignores PKCE takes a stolen code.
    """
    methods = metadata.get("code_challenge_methods_supported")
    if methods is None and server.assume_pkce:
        return
    if not isinstance(methods, list) or "S256" not in methods:
        raise ToolFailed(
            f"{server.name}: the metadata of the authorization server {metadata['issuer']} does not name "
            "S256 in code_challenge_methods_supported, so no user is sent there."
        )


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
    """Those configured and those the server asked for; without either, all that the resource knows.

    `ToolFailed` for more than fit into a link.
    """
    scopes = [*server.scopes, *challenge.scopes] or _texts(resource.get("scopes_supported"))
    if scopes and renewable and "offline_access" in _texts(metadata.get("scopes_supported")):
        scopes.append("offline_access")
    asked = tuple(dict.fromkeys(scopes))
    if len(" ".join(asked)) > LONGEST_LINK:
        raise ToolFailed(
            f"{server.name} wants more scopes than fit into a link ({LONGEST_LINK:,} characters). The "
            "operator has to name those that are needed in scopes."
        )
    return asked


def secret_method(metadata: Json) -> str:
    """RFC 8414: without a list, `client_secret_basic`."""
    methods = _texts(metadata.get("token_endpoint_auth_methods_supported")) or ["client_secret_basic"]
    return "client_secret_basic" if "client_secret_basic" in methods else "client_secret_post"


async def token_request(at: Endpoints, form: Mapping[str, str]) -> tuple[int, Json]:
    """Status and answer of the token endpoint; of a success the token is a text of a sane length."""
    client, body = at.client, {**form, "client_id": at.client.id}
    if at.resource:
        body["resource"] = at.resource
    auth = None
    if client.secret and client.method == "client_secret_post":
        body["client_secret"] = client.secret
    elif client.secret:
        # RFC 6749, section 2.3.1: form-encoded before they are joined
        auth = httpx2.BasicAuth(_form_encoded(client.id), _form_encoded(client.secret))
    issuer = Issuer(at.issuer, at.named, at.resource)
    status, answer = await issuer.call("POST", at.token_endpoint, data=body, auth=auth)
    lifetime = answer.get("expires_in")
    if isinstance(lifetime, str) and lifetime.isdecimal():  # as some servers write it
        answer["expires_in"] = float(lifetime)
    return status, {name: value for name, value in answer.items() if _is_usable(name, value)}


def _is_usable(name: str, value: object) -> bool:
    if name == "expires_in":
        return isinstance(value, int | float) and 0 < value < 2**31
    return is_text(value, MAX_TOKEN)


def _form_encoded(text: str) -> str:
    return urlencode({"": text})[1:]


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _is_part_of(resource: str, whole: str) -> bool:
    if not same_origin(resource, whole):
        return False
    return (urlsplit(resource).path.rstrip("/") + "/").startswith(urlsplit(whole).path.rstrip("/") + "/")


def same_issuer(one: str, other: str) -> bool:
    """Exactly the same, but for the slash that ends a bare origin."""
    return one == other or (one.rstrip("/") == other.rstrip("/") and urlsplit(one).path in ("", "/"))
