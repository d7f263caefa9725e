"""Requests to resource and authorization servers, and the checks of their answers.

A server's answer must not make this service call arbitrary addresses. A server's metadata is fetched from
its own origin only. An authorization server that the config does not name may be anyone's: it is called only
at public addresses, or at the server's own origin if it is part of that. All URLs are https; plain http is
allowed on loopback only, for servers that the config names and for the endpoints of such an authorization
server.
"""

import logging
import re
from collections.abc import Iterable, Mapping
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

#: most bytes of a metadata document or token answer, and seconds until it must be complete
MAX_ANSWER, ANSWER_SECONDS = 256_000, 20.0
#: most characters of a token, or of another text in a token answer
MAX_TOKEN = 32_768
#: characters of a challenge (`WWW-Authenticate`) that are parsed
MAX_CHALLENGE = 8_192
#: most characters of a server's URL, and of each parameter (scopes, client id) in a link for the user
LONGEST_LINK = 8_000


@dataclass(frozen=True, kw_only=True)
class ProtectedServer:
    """A server that needs the user's token, as configured."""

    #: what the user sees
    name: str
    #: the URL that the token is for (RFC 8707), if known
    resource: str | None = None
    #: where the server itself is, and publishes its metadata, if the config names `resource` besides: that
    #: holds, whatever the metadata names
    url: str | None = None
    #: the authorization server; None: the one that the resource names
    issuer: str | None = None
    #: scopes to ask for, besides those that the server's challenge names
    scopes: tuple[str, ...] = ()
    client_id: str | None = None
    client_secret: str | None = None
    #: without a `client_id`: whether to register as a client
    register: bool = True
    #: whether to trust that the authorization server supports PKCE if its metadata does not say
    assume_pkce: bool = False
    #: whether certificates are checked at the server's own origin
    verify_ssl: bool = True

    @property
    def key(self) -> str:
        """The key that tokens are kept under. A server that moves to another URL does not inherit its tokens.

        The key holds the configured scopes, not the granted ones, which authorization servers word in their
        own ways (RFC 6749, section 3.3): the resource decides whether they suffice.
        """
        return " ".join((self.resource or self.issuer or self.name, *sorted(self.scopes)))

    @property
    def places(self) -> tuple[str, ...]:
        """The URLs that the config names for the server, its own first."""
        return _given(self.url, self.resource)


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """The `WWW-Authenticate: Bearer …` header of a server's 401 or 403."""

    resource_metadata: str | None = None
    scopes: tuple[str, ...] = ()

    @classmethod
    def of(cls, header: str) -> "Challenge":
        fields: dict[str, str] = {}
        for name, quoted, plain in _CHALLENGE_FIELD.findall(header[:MAX_CHALLENGE]):
            fields.setdefault(name.lower(), _ESCAPED.sub(r"\1", quoted) or plain)
        return cls(
            resource_metadata=fields.get("resource_metadata"), scopes=tuple(fields.get("scope", "").split())
        )


# a name is matched from its beginning only, so that a long text without `=` takes linear time
_CHALLENGE_FIELD = re.compile(r'(?<![A-Za-z_])([A-Za-z_]++)=(?:"((?:[^"\\]|\\.)*+)"|([^\s,"]++))')
#: within quotes (RFC 9110, section 5.6.4)
_ESCAPED = re.compile(r"\\(.)")


class OAuthClient(Struct, frozen=True):
    """This service's client id and secret at an authorization server."""

    id: str
    secret: str | None = None
    #: how the secret is sent: `client_secret_basic`, `client_secret_post` or, without a secret, `none`
    method: str = "none"


class Endpoints(Struct, frozen=True, kw_only=True):
    """The source of a user's tokens. It is kept with the grant, which is renewed there and nowhere else."""

    issuer: str
    token_endpoint: str
    client: OAuthClient
    #: what the tokens are for (RFC 8707)
    resource: str | None
    #: whether the config names the issuer; if not, only public addresses and the server's origin are called
    named: bool
    #: the tool server's own URL, if that is not `resource`
    url: str | None = None
    #: whether certificates are checked at the tool server's own origin
    verify_ssl: bool = True

    @property
    def server(self) -> "Issuer":
        return Issuer(self.issuer, self.named, _given(self.url, self.resource), self.verify_ssl)


class Issuer(NamedTuple):
    """An authorization server, and the addresses that this service may call for it."""

    url: str
    #: whether the config names it, and so trusts its metadata
    named: bool
    #: the tool server's `places`; their origins, which the config names, may have this authorization server
    places: tuple[str, ...] = ()
    #: whether certificates are checked at the first of them, the server's own origin
    verify_ssl: bool = True

    async def call(self, method: str, url: str, **body: Any) -> tuple[int, Json]:
        """Calls one of its endpoints; returns the status, and the answer's JSON object ({} if it is none).

        Raises `ToolFailed`, with the same text for a refused address and for one that does not answer, so
        that the errors cannot be used to scan a network.
        """
        self.check(url)
        target, extensions, options = httpx2.URL(url), dict[str, Any](), dict[str, Any]()
        headers = {"accept": "application/json"}
        if not self._is_expected(url):
            address = await public_address(url)
            if address is None:
                raise _unusable(url, "its address is not public, and the config does not name it")
            headers["host"] = target.netloc.decode("ascii")
            extensions["sni_hostname"] = target.host
            target = target.copy_with(host=address)
            options["proxy"] = proxy_for(url)  # the one that `public_address` assumed
        if not self.verify_ssl and any(same_origin(url, own) for own in self.places[:1]):
            options["verify"] = False
        try:
            async with BoundedClient(
                url, seconds=ANSWER_SECONDS, limit=MAX_ANSWER, headers=headers, **options
            ) as client:
                answer = await fetch(client, method, target, extensions=extensions, **body)
        except httpx2.HTTPError as error:
            raise _unusable(url, f"{type(error).__name__}: {error}") from error
        return answer.status, json_object(answer.content) or {}

    def check(self, url: str) -> None:
        """`ToolFailed` unless `url` is https, or http on loopback where the config names the server.

        Also refuses a URL that has a fragment (RFC 6749, section 3.1), blanks or invisible characters, or
        that is too long.
        """
        try:
            parts = urlsplit(url)
            plain_is_fine = self._is_expected(url) and is_loopback(self.url) and is_loopback(url)
            fine = parts.scheme == "https" or (parts.scheme == "http" and plain_is_fine)
            if not fine or not parts.hostname or "@" in parts.netloc or parts.port == 0:
                raise _unusable(url, "it is not https")
            if "#" in url or not is_one_word(url):
                raise _unusable(url, "it has a fragment, blanks or invisible characters, or is too long")
            httpx2.URL(url)
        except (ValueError, httpx2.InvalidURL) as error:
            raise _unusable(url, "it is not a URL") from error

    def _is_expected(self, url: str) -> bool:
        """Whether the config implies calls to this URL, even at a private address: any URL of a named issuer;
        else only an origin of the tool server's, if the issuer is part of it."""
        return self.named or any(
            same_origin(self.url, place) and same_origin(url, place) for place in self.places
        )


def _given(*urls: str | None) -> tuple[str, ...]:
    return tuple(url for url in urls if url is not None)


def is_one_word(url: str) -> bool:
    """Whether a URL can be shown in a sentence: no blanks or invisible characters, and not too long."""
    return len(url) <= LONGEST_LINK and url.isprintable() and " " not in url


def is_text(value: object, longest: int) -> TypeGuard[str]:
    """Whether a value of a server's answer is a text of at most `longest` characters."""
    return isinstance(value, str) and len(value) <= longest


def _texts(value: object) -> list[str]:
    """The texts in `value`; empty if it is not a list."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _unusable(url: str, reason: str) -> ToolFailed:
    """The error for a URL that is not called. `reason` is only logged, for the operator."""
    place = shown(url)[:200] or "An empty URL"
    logger.warning("%r is not used for authorization: %s", place, reason)
    return ToolFailed(f"{place} cannot be used for authorization. The service's log says why.")


async def resource_metadata(server: ProtectedServer, challenge: Challenge) -> Json:
    """The protected resource's metadata (RFC 9728); {} if it publishes none.

    It is fetched from the origins that the config names only, the server's own first: a server's answer must
    not make this service call others. Raises `ToolFailed` if the first cannot be reached and the second has
    none; where the config says what the metadata decides, that counts as none.
    """
    failed: ToolFailed | None = None
    for own in server.places:
        here = Issuer(_origin(own), named=True, places=server.places, verify_ssl=server.verify_ssl)
        for place in _published(own, challenge):
            try:
                status, document = await here.call("GET", place)
            except ToolFailed as error:
                failed = error if own == server.places[0] else failed
                break
            if status == 200 and document:
                named = str(document.get("resource", ""))
                if not is_one_word(named) or not any(_is_part_of(each, named) for each in server.places):
                    raise ToolFailed(f"{server.name}: the metadata at {place} is that of another resource.")
                return document if server.url is None else {**document, "resource": server.resource}
    if failed is not None and (server.url is None or server.issuer is None):
        raise failed
    return {}


def _published(own: str, challenge: Challenge) -> Iterable[str]:
    """Where the metadata of what is at `own` may be: where a challenge names, if that is there, too."""
    place, path = f"{_origin(own)}/.well-known/oauth-protected-resource", urlsplit(own).path
    named = challenge.resource_metadata
    challenged = [named] if named and same_origin(named, own) else []
    return dict.fromkeys([*challenged, *([place + path] if path.strip("/") else []), place])


def issuer_of(server: ProtectedServer, resource: Json) -> Issuer:
    """The authorization server: the configured one, or else the first that the resource's metadata names, or
    else the server's own origin."""
    if server.issuer is not None:
        return Issuer(server.issuer, True, server.places, server.verify_ssl)
    if not server.places:
        raise ToolFailed(f"{server.name}: no authorization server is configured.")
    offered = resource.get("authorization_servers")
    url = str(offered[0]) if isinstance(offered, list) and offered else _origin(server.places[0])
    return Issuer(url, False, server.places, server.verify_ssl)


async def server_metadata(server: ProtectedServer, issuer: Issuer) -> Json:
    """The authorization server's metadata (RFC 8414, or OpenID Connect Discovery), with issuer and endpoint
    URLs checked. Raises `ToolFailed`."""
    issuer.check(issuer.url)
    for place in _metadata_places(issuer.url):
        status, document = await issuer.call("GET", place)
        if status != 200 or not document:
            continue
        if not same_issuer(str(document.get("issuer")), issuer.url):
            raise ToolFailed(f"{place} names a different issuer than {issuer.url}, so it is not trusted.")
        for endpoint in ("authorization_endpoint", "token_endpoint", "registration_endpoint"):
            if document.get(endpoint) is not None or endpoint != "registration_endpoint":
                issuer.check(str(document.get(endpoint, "")))
        return document
    raise ToolFailed(f"{server.name}: the authorization server {issuer.url} publishes no metadata.")


def require_pkce(server: ProtectedServer, metadata: Json) -> None:
    """`ToolFailed` unless the authorization server's metadata says that it supports PKCE with S256.

    MCP 2025-11-25 and 2026-07-28 demand this of OpenID Connect's metadata as well ("Authorization Code
    Protection"): a server that ignores PKCE accepts a stolen code.
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
    origin, path = _origin(issuer), urlsplit(issuer).path.rstrip("/")
    places = [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    ]
    return list(dict.fromkeys(places))


def scopes_to_ask(
    server: ProtectedServer, challenge: Challenge, resource: Json, metadata: Json, *, renewable: bool
) -> tuple[str, ...]:
    """The configured scopes and those of the challenge; without any, all that the resource's metadata names.

    `renewable` adds `offline_access` where the server supports it. `ToolFailed` if they do not fit a link.
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
    """How to send a client secret: `client_secret_basic` where supported, or if the metadata says nothing
    (RFC 8414); else `client_secret_post`."""
    methods = _texts(metadata.get("token_endpoint_auth_methods_supported")) or ["client_secret_basic"]
    return "client_secret_basic" if "client_secret_basic" in methods else "client_secret_post"


async def token_request(at: Endpoints, form: Mapping[str, str]) -> tuple[int, Json]:
    """Sends `form` to the token endpoint; returns its status and the usable fields of its answer.

    Texts longer than `MAX_TOKEN` and fields of other types are dropped; `expires_in` is a number of seconds.
    An answer with a token that cannot be sent is an error. Raises `ToolFailed`.
    """
    client, body = at.client, {**form, "client_id": at.client.id}
    if at.resource:
        body["resource"] = at.resource
    auth = None
    if client.secret and client.method == "client_secret_post":
        body["client_secret"] = client.secret
    elif client.secret and client.method != "none":
        # RFC 6749, section 2.3.1: id and secret are form-encoded before they are joined
        auth = httpx2.BasicAuth(_form_encoded(client.id), _form_encoded(client.secret))
    status, answer = await at.server.call("POST", at.token_endpoint, data=body, auth=auth)
    lifetime = answer.get("expires_in")
    if isinstance(lifetime, str) and lifetime.isdecimal():  # as some servers write it
        answer["expires_in"] = float(lifetime)
    if (reason := _unsendable(answer)) is not None:
        return status, {"error": reason}
    return status, {name: value for name, value in answer.items() if _is_usable(name, value)}


def _unsendable(answer: Json) -> str | None:
    """Why the access token of an answer cannot be sent as a bearer token (RFC 6750); None if it can be, or
    if there is none."""
    token, kind = answer.get("access_token"), answer.get("token_type")
    if token is None:
        return None
    if kind is not None and str(kind).lower() != "bearer":
        return "it issues tokens of another type than Bearer"
    if isinstance(token, str) and not _SENDABLE.fullmatch(token):
        return "its token has characters that cannot be sent"
    return None


_SENDABLE = re.compile(r"[\x21-\x7e]*")


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
    """Whether two issuers are equal, except that a bare origin may end in a slash."""
    return one == other or (one.rstrip("/") == other.rstrip("/") and urlsplit(one).path in ("", "/"))
