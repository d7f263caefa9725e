"""A local authority that issues tokens like Entra ID, for tests, demos and experiments with curl.

::

    with LocalAuthority() as authority:
        options = authority.options()             # the options of the provider `entra`
        token = authority.token("alice", roles=["Approver"])
        authority.rotate()                        # a new signing key; the old one stays published
        authority.behave("hanging")               # and "ok" again
        authority.hits["keys"]                    # how often the keys were requested

It listens on loopback, in threads of its own, so that it neither needs nor disturbs an event loop. For any
tenant it serves metadata of versions 1.0 and 2.0, keys, the token endpoint (password, code with PKCE, refresh
token, client credentials, on-behalf-of), the sign-in page, which always signs in the user `signed_in`, and
the consent page. Any client gets any token: never let it listen where others can connect.
"""

import base64
import json
import secrets
import ssl
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from jwt.algorithms import RSAAlgorithm
from jwt.types import Options

from tealagents.domain.models import Json
from tealagents.domain.ports import Clock
from tealagents.testing.signing_in import SignIns, client_info

__all__ = [
    "APP_ID_URI",
    "OTHER_TENANT",
    "SCOPE",
    "SERVICE_ID",
    "TENANT",
    "USER_CLIENT",
    "AuthorityKey",
    "LocalAuthority",
    "Mode",
    "compact",
    "object_id",
]

#: the authority's tenant, and another one
TENANT = "11111111-2222-4333-8444-555555555555"
OTHER_TENANT = "99999999-8888-4777-8666-555555555555"
#: the service under test: its application id, its App ID URI, the scope it exposes
SERVICE_ID = "5e7f1ce0-0000-4000-8000-00000000a9e7"
APP_ID_URI = "api://tealagents"
SCOPE = "access_as_user"
#: the id of the application that users sign in with
USER_CLIENT = "c11e7700-0000-4000-8000-000000000001"

#: how it answers requests for metadata, keys and tokens
Mode = Literal[
    "ok",
    "slow",  # after a second
    "hanging",  # never
    "down",  # nothing listens
    "failing",  # 503
    "garbage",  # 200, but not JSON
    "endless",  # a body that never ends
    "redirecting",  # 302 to itself
    "impostor",  # metadata of another issuer
    "plain_http",  # keys at a plain-http address that is not loopback
    "empty",  # no keys
]


@dataclass(frozen=True)
class AuthorityKey:
    """A signing key, which is one entry of the published keys."""

    kid: str
    private: rsa.RSAPrivateKey = field(repr=False)
    #: the issuer that version 2.0 publishes with the key; None: the template for any tenant (`{tenantid}`)
    issuer: str | None = None

    @classmethod
    def generate(cls, *, bits: int = 2048, issuer: str | None = None) -> Self:
        private = rsa.generate_private_key(public_exponent=65537, key_size=bits)
        return cls(secrets.token_urlsafe(20), private, issuer)

    def jwk(self, issuer: str | None) -> Json:
        public = RSAAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        published = {"kty": "RSA", "use": "sig", "kid": self.kid, "x5t": self.kid, "n": public["n"]}
        return published | {"e": public["e"]} | ({"issuer": issuer} if issuer else {})


class LocalAuthority:
    """Serves from `start` to `stop`, or within its context. It can be started again on the same port."""

    def __init__(
        self,
        *,
        tenant: str = TENANT,
        audiences: Iterable[str] = (SERVICE_ID, APP_ID_URI),
        scopes: Iterable[str] = (SCOPE,),
        client_secret: str = "a secret of the local authority",
        port: int = 0,
        clock: Clock | None = None,
        signing_key: AuthorityKey | None = None,
        certificate: Path | None = None,
    ) -> None:
        """With a `certificate`, a PEM file that also contains its key, it serves https."""
        self.tenant = tenant
        self.domain = "contoso.example"
        self.audiences = tuple(audiences)
        self.scopes = tuple(scopes)
        self.client_secret = client_secret
        #: verifies client assertions: the public key of the service's certificate
        self.client_certificate_key: rsa.RSAPublicKey | None = None
        #: the lifetime of the tokens of the token endpoint, in seconds
        self.lifetime = 3600
        #: the number of requests for `metadata`, `keys`, `token` and `authorize`
        self.hits: Counter[str] = Counter()
        #: the forms that were posted to the token endpoint, oldest first
        self.forms: list[Json] = []
        self.signing_key = signing_key or AuthorityKey.generate()
        self.keys = [self.signing_key]
        #: the user who signs in with a browser
        self.signed_in = "alice"
        self._sign_ins = SignIns()
        self._certificate = certificate
        self._refusal: Json | None = None
        self._now: Callable[[], float] = (lambda: clock.now().timestamp()) if clock else time.time
        self._mode: Mode = "ok"
        self._mode_changed = threading.Event()
        self._port = port
        self._server: ThreadingHTTPServer | None = None

    # --- serving --------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self._port}"

    def start(self) -> None:
        if self._server is not None:
            return
        self._server = _Server(("127.0.0.1", self._port), self)
        self._port = self._server.server_address[1]
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._mode_changed.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def behave(self, mode: Mode) -> None:
        """Sets the mode, also for requests that still hang. Raises `ValueError` for an unknown mode."""
        if mode not in get_args(Mode):
            raise ValueError(f"unknown mode {mode!r}")
        self._mode = mode
        self._mode_changed.set()
        self._mode_changed = threading.Event()
        if mode == "down":
            self.stop()
        else:
            self.start()

    # --- what a service needs -------------------------------------------------------------------

    def options(self, **more: Any) -> Json:
        """The options of a provider `entra` that trusts this authority, with `more`."""
        trusted = {"tenant_id": self.tenant, "audience": self.audiences, "scopes": self.scopes}
        return {**trusted, "authority": self.url, **more}

    def environment(self, **more: str) -> dict[str, str]:
        """The same as the environment variables of a service."""
        return {
            "TA_AUTH": "entra",
            "TA_ENTRA_AUTHORITY": self.url,
            "TA_ENTRA_TENANT_ID": self.tenant,
            "TA_ENTRA_AUDIENCE": " ".join(self.audiences),
            "TA_ENTRA_SCOPES": " ".join(self.scopes),
            **more,
        }

    # --- keys -----------------------------------------------------------------------------------

    def rotate(self, *, retire: bool = False, issuer: str | None = None) -> AuthorityKey:
        """Signs with a new key from now on. With `retire`, the older ones are no longer published."""
        self.signing_key = AuthorityKey.generate(issuer=issuer)
        self.keys = [self.signing_key] if retire else [*self.keys, self.signing_key]
        return self.signing_key

    # --- tokens ---------------------------------------------------------------------------------

    def issuer(self, tid: str | None = None, ver: str = "2.0") -> str:
        tid = tid or self.tenant
        return f"{self.url}/{tid}/v2.0" if ver == "2.0" else f"{self.url}/sts/{tid}/"

    def claims(
        self,
        user: str = "alice",
        *,
        tid: str | None = None,
        ver: str = "2.0",
        scopes: Iterable[str] | None = None,
        roles: Iterable[str] = (),
        lifetime: float | None = None,
        **more: Any,
    ) -> Json:
        """The claims of a user's access token, with `more`. A claim that is None in `more` is omitted."""
        now, v2 = int(self._now()), ver == "2.0"
        times = {"iat": now, "nbf": now, "exp": now + int(self.lifetime if lifetime is None else lifetime)}
        claims = {
            "aud": self.audiences[0] if v2 else self.audiences[-1],
            "iss": self.issuer(tid, ver),
            **times,
            **({"azp": USER_CLIENT, "azpacr": "0"} if v2 else {"appid": USER_CLIENT, "appidacr": "0"}),
            "name": user,
            ("preferred_username" if v2 else "unique_name"): f"{user}@{self.domain}",
            "oid": object_id(user),
            "sub": f"pairwise-{object_id(user)}",
            "tid": tid or self.tenant,
            "scp": " ".join(self.scopes if scopes is None else scopes),
            **({"roles": list(roles)} if roles else {}),
            "uti": secrets.token_urlsafe(16),
            "ver": ver,
        }
        return {name: value for name, value in (claims | more).items() if value is not None}

    def token(self, user: str = "alice", **claims: Any) -> str:
        """A user's access token. The keywords are those of `claims`."""
        return self.sign(self.claims(user, **claims))

    def app_token(self, app: str = "a daemon", *, roles: Iterable[str] = (), **claims: Any) -> str:
        """An application's own access token."""
        payload = self.claims(app, roles=roles, **{"idtyp": "app", "sub": object_id(app), **claims})
        for name in ("scp", "name", "preferred_username", "unique_name"):
            payload.pop(name, None)
        return self.sign(payload)

    def id_token(self, user: str = "alice", **claims: Any) -> str:
        """A user's ID token, for the application in which the user signed in. A service must refuse it."""
        payload = self.claims(user, **{"nonce": secrets.token_urlsafe(8), **claims})
        for name in ("scp", "azp", "azpacr", "appid", "appidacr"):
            payload.pop(name, None)
        return self.sign(payload)

    def sign(
        self, claims: Mapping[str, Any], *, key: AuthorityKey | None = None, header: Mapping[str, Any] = {}
    ) -> str:
        """A token with exactly these claims, signed with the current key or with `key`."""
        key = key or self.signing_key
        legacy = {"x5t": key.kid} if claims.get("ver") == "1.0" else {}
        return compact(
            {"typ": "JWT", "alg": "RS256", "kid": key.kid, **legacy, **header}, claims, key.private
        )

    # --- refusals of the token endpoint ---------------------------------------------------------

    def ask_for_consent(self) -> None:
        """Refuses on-behalf-of requests until the consent page has been visited."""
        self.refuse_delegation("invalid_grant", 65001, suberror="consent_required")

    def refuse_delegation(self, error: str, number: int = 0, **more: str) -> None:
        """Refuses on-behalf-of requests with this error until consent is given."""
        described = f"AADSTS{number}: refused by the local authority. Trace ID: {uuid.uuid4()}"
        self._refusal = {"error": error, "error_description": described, "error_codes": [number], **more}

    def give_consent(self) -> None:
        self._refusal = None

    # --- answers --------------------------------------------------------------------------------

    def _metadata(self, tenant: str, ver: str) -> Json:
        tid = {self.domain: self.tenant, "common": "{tenantid}", "organizations": "{tenantid}"}.get(
            tenant, tenant
        )
        v2 = "/v2.0" if ver == "2.0" else ""
        issuer = self.issuer(tid, ver)
        keys_url = f"{self.url}/{tenant}/discovery{v2}/keys"
        return {
            "issuer": "https://login.example.net/impostor/v2.0" if self._mode == "impostor" else issuer,
            "jwks_uri": "http://keys.example.net/keys" if self._mode == "plain_http" else keys_url,
            "token_endpoint": f"{self.url}/{tenant}/oauth2{v2}/token",
            "authorization_endpoint": f"{self.url}/{tenant}/oauth2{v2}/authorize",
            # only what is served of the values that Entra ID lists
            "response_types_supported": ["code"],
            "response_modes_supported": ["query", "fragment"],
            "subject_types_supported": ["pairwise"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "scopes_supported": sorted(_OPENID_SCOPES),
            "token_endpoint_auth_methods_supported": ["client_secret_post", "private_key_jwt"],
        }

    def _key_document(self, ver: str) -> Json:
        template = self.issuer("{tenantid}", "2.0")
        keys = [] if self._mode == "empty" else self.keys
        return {"keys": [key.jwk((key.issuer or template) if ver == "2.0" else None) for key in keys]}

    def _grant(self, tenant: str, form: Json) -> Json:
        """The answer of the token endpoint. An error has a member `error`."""
        self.forms.append(form)
        tid = self.tenant if tenant in ("common", "organizations", self.domain) else tenant
        grant = form.get("grant_type")
        if grant == "password":
            return self._issued(self._token_for_form(form.get("username", "alice"), tid, form))
        if grant in ("authorization_code", "refresh_token"):
            return self._signed_in(tid, form)
        if not self._knows_client(form):
            return {"error": "invalid_client", "error_description": "AADSTS7000215: wrong client credentials"}
        if grant == "client_credentials":
            audience = form.get("scope", "").removesuffix("/.default")
            name, roles = form.get("client_id", ""), form.get("roles", "").split()
            return self._issued(self.app_token(name, tid=tid, aud=audience, roles=roles, azp=name))
        if grant == "urn:ietf:params:oauth:grant-type:jwt-bearer":
            return self._on_behalf_of(tid, form)
        return {"error": "unsupported_grant_type", "error_description": "AADSTS70003: unknown grant"}

    def _signed_in(self, tid: str, form: Json) -> Json:
        """The answer to a public client's code or refresh token: the tokens, and the user who signed in."""
        grant = self._sign_ins.redeem(form)
        if grant is None:
            return {
                "error": "invalid_grant",
                "error_description": "AADSTS70008: the code or token is not valid",
            }
        claims = {"aud": grant.client_id, "tid": tid, "nonce": grant.nonce}
        return {
            **self._issued(self._token_for_form(grant.user, tid, form)),
            "scope": form.get("scope", ""),
            "id_token": self.id_token(grant.user, **claims),
            "refresh_token": self._sign_ins.refresh_token(grant),
            "client_info": client_info(object_id(grant.user), tid),
        }

    def _token_for_form(self, user: str, tid: str, form: Json) -> str:
        asked = [scope for scope in form.get("scope", "").split() if scope not in _OPENID_SCOPES]
        resource, _, _ = asked[0].rpartition("/") if asked else ("", "", "")
        names = [scope.rpartition("/")[2] for scope in asked] or self.scopes
        known = not resource or resource in self.audiences
        ver = form.get("ver", "2.0")
        more = {} if known else {"aud": resource}
        return self.token(user, tid=tid, ver=ver, scopes=names, roles=form.get("roles", "").split(), **more)

    def _on_behalf_of(self, tid: str, form: Json) -> Json:
        try:
            claims = self._own_claims(form.get("assertion", ""))
        except (jwt.InvalidTokenError, StopIteration):
            return {"error": "invalid_grant", "error_description": "AADSTS50013: assertion failed"}
        if self._refusal is not None:
            return self._refusal
        answer = self._issued(self._token_for_form(claims["oid"], tid, form))
        return answer | {"refresh_token": "a refresh token that must not be kept"}

    def _own_claims(self, assertion: str) -> Json:
        kid = jwt.get_unverified_header(assertion).get("kid")
        key = next(key for key in self.keys if key.kid == kid)
        # times may be wrong by this machine's clock; the service has checked them by its own
        unchecked: Options = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
        claims: Json = jwt.decode(
            assertion, key.private.public_key(), ["RS256"], options=unchecked, audience=self.audiences
        )
        return claims

    def _knows_client(self, form: Json) -> bool:
        if "client_secret" in form:
            return bool(form["client_secret"] == self.client_secret)
        assertion = form.get("client_assertion", "")
        if self.client_certificate_key is None:
            return False
        try:
            # msal names an https address even if the transport is plain http
            here = [f"{scheme}{self.url.removeprefix('http')}{form['path']}" for scheme in ("http", "https")]
            jwt.decode(assertion, self.client_certificate_key, ["PS256", "RS256"], audience=here)
        except jwt.InvalidTokenError:
            return False
        return True

    def _issued(self, token: str) -> Json:
        return {"token_type": "Bearer", "expires_in": self.lifetime, "access_token": token}


_ANY_ORIGIN = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "*",
}
_OPENID_SCOPES = frozenset({"openid", "profile", "offline_access", "email"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], authority: LocalAuthority) -> None:
        super().__init__(address, _Handler)
        self.authority = authority

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Does nothing: some tests disconnect in the middle of a request."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    @property
    def _authority(self) -> LocalAuthority:
        return self.server.authority

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        parts, query = url.path.strip("/").split("/"), _single(url.query)
        match parts:
            case [tenant, ".well-known", "openid-configuration"]:
                self._published("metadata", lambda: self._authority._metadata(tenant, "1.0"))
            case [tenant, "v2.0", ".well-known", "openid-configuration"]:
                self._published("metadata", lambda: self._authority._metadata(tenant, "2.0"))
            case [_, "discovery", "keys"]:
                self._published("keys", lambda: self._authority._key_document("1.0"))
            case [_, "discovery", "v2.0", "keys"]:
                self._published("keys", lambda: self._authority._key_document("2.0"))
            case [_, "oauth2", *_, "authorize"]:
                self._consent(query)
            case _:
                self._json(404, {"error": "not_found"})

    def do_OPTIONS(self) -> None:
        """Allows web pages of other origins to request tokens, as Entra ID does."""
        self.send_response(204)
        for name, value in _ANY_ORIGIN.items():
            self.send_header(name, value)
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        path = urlsplit(self.path).path
        match path.strip("/").split("/"):
            case [tenant, "oauth2", *_, "token"]:
                form = _single(body) | {"path": path}
                self._published("token", lambda: self._authority._grant(tenant, form))
            case _:
                self._json(404, {"error": "not_found"})

    def _published(self, what: str, answer: Callable[[], Json]) -> None:
        authority = self._authority
        authority.hits[what] += 1
        mode, changed = authority._mode, authority._mode_changed
        if mode == "hanging":
            changed.wait()
            return
        if mode == "slow":
            changed.wait(1)
        if mode == "endless":
            self._endless(changed)
        elif mode == "redirecting":
            self._redirect(self.path)
        elif mode == "failing":
            self._json(503, {"error": "temporarily_unavailable"})
        elif mode == "garbage":
            self._send(200, "application/json", b"<html>not what you asked for</html>")
        else:
            document = answer()
            self._json(400 if "error" in document else 200, document)

    def _consent(self, query: Json) -> None:
        self._authority.hits["authorize"] += 1
        if "code_challenge" in query:
            self._redirect(self._authority._sign_ins.redirection(query, self._authority.signed_in))
            return
        self._authority.give_consent()
        if "redirect_uri" in query:
            self._redirect(f"{query['redirect_uri']}?{urlencode({'code': secrets.token_urlsafe(16)})}")
        else:
            self._send(200, "text/plain; charset=utf-8", b"Consent is given. You may close this page.\n")

    def _endless(self, changed: threading.Event) -> None:
        self.send_response(200)
        self.end_headers()
        while not changed.is_set():
            self.wfile.write(b" " * 65536)

    def _redirect(self, location: str) -> None:
        self.send_response(302)
        self.send_header("location", location)
        self.end_headers()

    def _json(self, status: int, document: Json) -> None:
        self._send(status, "application/json", json.dumps(document).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("access-control-allow-origin", "*")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: requests contain secrets."""


def compact(
    header: Mapping[str, Any] | bytes, claims: Mapping[str, Any] | bytes, key: rsa.RSAPrivateKey
) -> str:
    """A compact JWS with an RS256 signature, whatever its header says. Bytes are used as they are."""
    signed = b".".join(
        _base64(part if isinstance(part, bytes) else _dumped(part)) for part in (header, claims)
    )
    signature = key.sign(signed, padding.PKCS1v15(), hashes.SHA256())
    return b".".join((signed, _base64(signature))).decode()


def object_id(user: str) -> str:
    """The object id for a user's name; a UUID is returned as it is."""
    try:
        return str(uuid.UUID(user))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, user))


def _dumped(part: Mapping[str, Any]) -> bytes:
    return json.dumps(part, separators=(",", ":")).encode()


def _base64(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def _single(text: str) -> Json:
    return {name: values[-1] for name, values in parse_qs(text).items()}
