"""Access tokens of Microsoft Entra ID, checked by the rules of the version that each one names.

A token is believed when all of this holds, and only then:

- three strict base64url segments, RS256, a known key id, no header that brings a key or changes the rules;
- the signature, by a key of the key set that the metadata of the token's version and tenant names;
- the issuer is exactly the metadata's (its `{tenantid}` being the token's), and the key's own if it has one;
- the audience is one text, and this service; the tenant may call; the client application may call;
- it is valid now, within the leeway, and not for longer than 48 hours;
- it is an access token: a user's with the scopes, or where that is allowed an application's with the roles.

Who calls is the pair (`tid`, `oid`). Names, addresses and `sub` are never read.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple, Self

import httpx2
from jwt.algorithms import RSAAlgorithm

from tealagents.auth.compact import CompactToken, Malformed, take_apart
from tealagents.auth.jwks import (
    MAX_BYTES,
    READ_SECONDS,
    TENANT_PLACEHOLDER,
    KeySet,
    PublishedKeys,
    SigningKey,
)
from tealagents.auth.options import GRAPH_AUDIENCES, UUID, EntraOptions
from tealagents.domain.errors import InsufficientScope, Unauthenticated
from tealagents.domain.models import Caller, Json, User
from tealagents.domain.ports import Clock
from tealagents.outbound.reading import BoundedClient

__all__ = ["MAX_LIFETIME_SECONDS", "EntraAuthenticator", "EntraOptions"]

#: Entra's longest access tokens live 28 hours
MAX_LIFETIME_SECONDS = 48 * 3600
#: tokens whose signature is remembered; one record is about half a kilobyte
_REMEMBERED = 4096
_MAX_KID_CHARACTERS = 256

#: RFC 7515, 7516 and 7797: headers that bring a key along, or that change how the token is to be read
_REFUSED_HEADERS = frozenset({"jwk", "jku", "x5u", "x5c", "crit", "b64", "enc", "zip"})
_TOKEN_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
#: Entra writes these into ID tokens only (its ID token claims reference), never into access tokens
_ID_TOKEN_CLAIMS = frozenset({"nonce", "c_hash", "at_hash"})
#: the path of the metadata, and the claim that names the client application, by the token's version
_METADATA_PATHS: Final = {"1.0": "", "2.0": "/v2.0"}
_CLIENT_CLAIMS: Final = {"1.0": "appid", "2.0": "azp"}

_RS256 = RSAAlgorithm(RSAAlgorithm.SHA256)


class _Times(NamedTuple):
    not_before: int
    expires: int


class _Remembered(NamedTuple):
    """What one signature has proved, for as long as its key set is the newest."""

    published: PublishedKeys
    key_set: KeySet
    times: _Times
    user: User
    approver: bool
    auditor: bool


class EntraAuthenticator:
    """Implements the port `Authenticator` for Entra ID."""

    Options: ClassVar[type[EntraOptions]] = EntraOptions

    def __init__(self, options: EntraOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._home_is_id = UUID.fullmatch(options.tenant_id) is not None
        self._client: BoundedClient | None = None
        self._published: dict[str, PublishedKeys] = {}
        self._remembered: OrderedDict[bytes, _Remembered] = OrderedDict()

    async def __aenter__(self) -> Self:
        self._client = BoundedClient(
            self._options.authority,
            seconds=READ_SECONDS,
            limit=MAX_BYTES,
            timeout=httpx2.Timeout(READ_SECONDS, connect=2.0),
            limits=httpx2.Limits(max_connections=4, keepalive_expiry=30),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        for published in self._published.values():
            await published.aclose()
        self._published.clear()
        self._remembered.clear()
        if self._client is not None:
            await self._client.aclose()

    async def authenticate(self, token: str) -> Caller:
        # Of a token only its digest is kept. A digest stands for exactly one token, and what a token says
        # never changes; what can change, the time and the keys, is asked again.
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._remembered.get(digest)
        if known is not None and known.published.newest is known.key_set:
            self._check_times(known.times)
        else:
            known = await self._check(token)
            self._remember(digest, known)
        return Caller(known.user, approver=known.approver, auditor=known.auditor, token=token)

    def _remember(self, digest: bytes, known: _Remembered) -> None:
        self._remembered[digest] = known
        self._remembered.move_to_end(digest)
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)

    async def _check(self, token: str) -> _Remembered:
        """All checks. The costly ones, and those that may ask the authority, come last."""
        try:
            parts = take_apart(token)
        except Malformed as error:
            raise Unauthenticated(f"The bearer token {error}. Send it as it was issued.") from None
        kid = _key_id(parts.header)
        claims = parts.claims
        version = _version(claims)
        user = User(_uuid(claims, "tid"), _uuid(claims, "oid"))
        times = _times(claims)
        self._check_times(times)
        self._check_audience(claims)
        self._check_tenant(user.tid)
        published = self._keys_of(user.tid, version)
        key_set = await published.key_set(kid, claims.get("iss"))
        self._check_issuer(claims, user.tid, key_set)
        self._check_signature(parts, kid, key_set)
        roles = _roles(claims)
        human = self._check_kind(claims, version)
        self._check_client(claims, version)
        self._check_permissions(claims, roles, human=human)
        return _Remembered(
            published,
            key_set,
            times,
            user,
            approver=human and self._options.approver_role in roles,
            auditor=self._options.auditor_role in roles,
        )

    def _check_times(self, times: _Times) -> None:
        now = self._clock.now().timestamp()
        if now >= times.expires + self._options.leeway:
            raise Unauthenticated("The bearer token has expired. Get a new one and send it instead.")
        if now < times.not_before - self._options.leeway:
            raise Unauthenticated("The bearer token is not valid yet. Check that the clocks are right.")

    def _check_audience(self, claims: Json) -> None:
        audience = claims.get("aud")
        if audience not in self._options.audience:
            is_graph = isinstance(audience, str) and audience in GRAPH_AUDIENCES
            hint = "Microsoft Graph" if is_graph else "another audience"
            raise Unauthenticated(f"The bearer token is for {hint}. Ask for one that is for this service.")

    def _check_tenant(self, tid: str) -> None:
        home, allowed = self._options.tenant_id, self._options.allowed_tenants
        if not (tid in allowed if allowed else tid == home or not self._home_is_id):
            raise Unauthenticated("The bearer token is from a tenant that may not call this service.")

    def _keys_of(self, tid: str, version: str) -> PublishedKeys:
        """The keys for tokens of a tenant that may call: so there are never more than the settings name."""
        home = self._options.tenant_id
        # A tenant listed beside a home tenant is its own authority; under a domain or `organizations`
        # all are found in one place, and the issuer says whether the token's tenant is one of them.
        tenant = tid if self._home_is_id else home
        url = f"{self._options.authority}/{tenant}{_METADATA_PATHS[version]}/.well-known/openid-configuration"
        if url not in self._published:
            if self._client is None:
                raise RuntimeError("enter the authenticator's async context before using it")
            self._published[url] = PublishedKeys(self._client, url, self._clock)
        return self._published[url]

    def _check_issuer(self, claims: Json, tid: str, key_set: KeySet) -> None:
        issuer = key_set.issuer.replace(TENANT_PLACEHOLDER, tid)
        # Metadata found under a tenant's own id vouches for that tenant; found under a domain it says by
        # the id in the issuer's path whose it is.
        vouched = self._home_is_id or TENANT_PLACEHOLDER in key_set.issuer or tid in issuer.split("/")
        if claims.get("iss") != issuer or not vouched:
            raise Unauthenticated("The bearer token was not issued by this service's authority.")

    def _check_signature(self, parts: CompactToken, kid: str, key_set: KeySet) -> None:
        tid, issuer = parts.claims["tid"], parts.claims["iss"]
        for key in key_set.keys.get(kid, ()):
            if self._may_sign(key, tid, issuer) and _RS256.verify(parts.signed, key.public, parts.signature):
                return
        raise Unauthenticated("The bearer token's signature is not one of this service's authority.")

    def _may_sign(self, key: SigningKey, tid: str, issuer: str) -> bool:
        """Whether the key's own issuer is the token's.

        Entra's v1 keys have none; where one is published for v1 tokens, it is written as v2 issuers are.
        """
        if key.issuer is None:
            return True
        own = key.issuer.replace(TENANT_PLACEHOLDER, tid)
        return own in (issuer, f"{self._options.authority}/{tid}/v2.0")

    def _check_kind(self, claims: Json, version: str) -> bool:
        """True for a user's access token, False for an application's own where that is allowed.

        Only access tokens of users have `scp`, and every one has it. Without it, a token is an application's
        when it says so (`idtyp`, an optional claim), or says nothing and names its client, which ID tokens
        do not.
        """
        scp, kind = claims.get("scp"), claims.get("idtyp")
        if not _ID_TOKEN_CLAIMS.isdisjoint(claims):
            raise Unauthenticated("The bearer token is an ID token. Send an access token for this service.")
        if isinstance(scp, str) and kind in (None, "user"):
            return True
        names_client = isinstance(claims.get(_CLIENT_CLAIMS[version]), str)
        if scp is None and (kind == "app" or (kind is None and names_client)):
            if self._options.allow_app_tokens:
                return False
            raise Unauthenticated("The bearer token is an application's own. This service wants a user's.")
        raise Unauthenticated("The bearer token is not a user's access token. Send one that has scopes.")

    def _check_client(self, claims: Json, version: str) -> None:
        allowed = self._options.allowed_clients
        if allowed and claims.get(_CLIENT_CLAIMS[version]) not in allowed:
            raise Unauthenticated(
                "The bearer token was issued to an application that may not call this service."
            )

    def _check_permissions(self, claims: Json, roles: frozenset[str], *, human: bool) -> None:
        options = self._options
        if human and not frozenset(claims["scp"].split(" ")).issuperset(options.scopes):
            scope = " ".join(self._scopes())
            raise InsufficientScope(
                f"The token lacks a scope. Ask the authority for all of: {scope}.",
                required=" ".join(options.scopes),
                scope=scope,
            )
        if not human and not roles.issuperset(options.app_roles):
            required = " ".join(options.app_roles)
            raise InsufficientScope(
                f"The application lacks a role. Have an administrator assign all of: {required}.",
                required=required,
                scope="",
            )

    def _scopes(self) -> list[str]:
        """The scopes as one asks Entra for them."""
        audiences = self._options.audience
        uri = next((audience for audience in audiences if "://" in audience), audiences[0])
        return [f"{uri.rstrip('/')}/{scope}" for scope in self._options.scopes]

    def resource_metadata(self, resource: str) -> Json:
        """RFC 9728: where tokens for `resource` come from, the home tenant first, and the scopes to ask for.

        `organizations` is no issuer: what its metadata names is a template, which clients refuse.
        """
        options = self._options
        tenants = sorted(options.allowed_tenants, key=options.tenant_id.__ne__) or [options.tenant_id]
        return {
            "resource": resource,
            "authorization_servers": [f"{options.authority}/{each}/v2.0" for each in tenants],
            "scopes_supported": self._scopes(),
            "bearer_methods_supported": ["header"],
        }


# --- one claim at a time ----------------------------------------------------------------------------


def _key_id(header: Mapping[str, Any]) -> str:
    if header.get("alg") != "RS256":
        raise Unauthenticated("The bearer token is not signed with RS256.")
    if not _REFUSED_HEADERS.isdisjoint(header):
        raise Unauthenticated(
            "The bearer token's header asks for features that this service does not support."
        )
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TOKEN_TYPES:
        raise Unauthenticated("The bearer token's type is not that of an access token.")
    kid = header.get("kid")
    if not isinstance(kid, str) or not 0 < len(kid) <= _MAX_KID_CHARACTERS:
        raise Unauthenticated("The bearer token does not say which key signed it.")
    return kid


def _version(claims: Json) -> str:
    version = claims.get("ver")
    if not isinstance(version, str) or version not in _METADATA_PATHS:
        raise Unauthenticated("The bearer token's version is neither 1.0 nor 2.0.")
    return version


def _uuid(claims: Json, name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not UUID.fullmatch(value) or value.strip("0-") == "":
        raise Unauthenticated(f"The bearer token has no {name} that is a canonical UUID.")
    return value


def _times(claims: Json) -> _Times:
    expires, issued, not_before = (_seconds(claims, name) for name in ("exp", "iat", "nbf"))
    begins = min(issued, not_before)
    if not begins < expires <= begins + MAX_LIFETIME_SECONDS:
        raise Unauthenticated("The bearer token's lifetime is not one that this service accepts.")
    # `iat` in the future is as wrong as `nbf` in the future.
    return _Times(max(issued, not_before), expires)


def _seconds(claims: Json, name: str) -> int:
    """Seconds since the epoch. Entra writes whole numbers; text, fractions and booleans are refused."""
    value = claims.get(name)
    if type(value) is not int or not 0 < value < 2**53:
        raise Unauthenticated(f"The bearer token has no {name} in whole seconds.")
    return value


def _roles(claims: Json) -> frozenset[str]:
    roles: Any = claims.get("roles", [])
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
        raise Unauthenticated("The bearer token's roles are not a list of texts.")
    return frozenset(roles)
