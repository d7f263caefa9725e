"""Tokens that must be refused: a table for `authenticate()` and for every route that takes a bearer token.

Each entry makes its token with a `Forge`, which holds a local authority that the service trusts, and keys
that it does not. Unless the entry says otherwise, the token is perfect but for the one thing its name says:
signed by the authority's key, for this service, for a user, with the scope. `status` is what the service must
answer: 401 for what is no valid access token, 403 for a valid one that lacks the scope.

Make the `Forge` before the service reads keys for the first time: it publishes a weak key and withdraws one.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding

from tealagents.testing.authority import (
    APP_ID_URI,
    OTHER_TENANT,
    TENANT,
    AuthorityKey,
    LocalAuthority,
    compact,
)

Json = dict[str, Any]
Family = Literal[
    "shape", "crypto", "time", "issuer and tenant", "audience and type", "identity", "permission"
]


class Forge:
    """Makes tokens that differ from good ones in one thing."""

    def __init__(self, authority: LocalAuthority) -> None:
        self.authority = authority
        #: signs well, and is published nowhere
        self.stranger = AuthorityKey.generate()
        #: was published until a moment ago
        self.retired = authority.signing_key
        authority.rotate(retire=True)
        #: is published, and too short to be trusted
        self.weak = AuthorityKey.generate(bits=1024)
        authority.keys.append(self.weak)

    @property
    def key(self) -> AuthorityKey:
        return self.authority.signing_key

    def claims(self, **changed: Any) -> Json:
        """Good claims, with these set as they are; even None."""
        return self.authority.claims("mallory") | changed

    def saying(self, **changed: Any) -> str:
        return self.authority.sign(self.claims(**changed))

    def lacking(self, name: str) -> str:
        claims = self.claims()
        del claims[name]
        return self.authority.sign(claims)

    def header(self, **changed: Any) -> Json:
        return {"typ": "JWT", "alg": "RS256", "kid": self.key.kid} | changed

    def headed(self, **changed: Any) -> str:
        """Signed with RS256 by the authority's key, whatever the header says."""
        return compact(self.header(**changed), self.claims(), self.key.private)

    def raw(self, claims: str | bytes, header: str | bytes | None = None) -> str:
        """Signed, though header or claims are not what they should be."""
        made = header if header is not None else json.dumps(self.header())
        return compact(_bytes(made), _bytes(claims), self.key.private)

    def by(self, key: AuthorityKey, **header: Any) -> str:
        return self.authority.sign(self.claims(), key=key, header=header)

    def now(self) -> int:
        return int(self.claims()["iat"])

    def public_pem(self) -> bytes:
        return self.key.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )


Make = Callable[[Forge], str]


@dataclass(frozen=True)
class Hostile:
    """One token to refuse. `sendable` is False for what cannot stand in a header at all."""

    family: Family
    name: str
    make: Make
    status: Literal[401, 403] = 401
    sendable: bool = True

    def __str__(self) -> str:
        return f"{self.family}: {self.name}"


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _segments(token: str) -> list[str]:
    return token.split(".")


def _good(forge: Forge) -> str:
    return forge.saying()


# --- shape -------------------------------------------------------------------------------------------


def _five_segments(forge: Forge) -> str:
    return ".".join([*_segments(_good(forge)), "AAAA", "AAAA"])


def _padded(forge: Forge) -> str:
    return ".".join(segment + "=" * (-len(segment) % 4) for segment in _segments(_good(forge))) + "="


def _standard_alphabet(forge: Forge) -> str:
    header, claims, signature = _segments(_good(forge))
    return f"{header}.{claims}.{signature[:-4]}+/+/"


def _stray_bits(forge: Forge) -> str:
    """256 bytes are 342 characters; the last one has four bits that decoders drop."""
    token = _good(forge)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + alphabet[alphabet.index(token[-1]) + 1]


def _too_long(forge: Forge) -> str:
    return forge.saying(padding="x" * 16_384)


def _twice(forge: Forge, name: str, first: Any) -> str:
    """A claim named twice: the good value last, where most parsers would find it."""
    return forge.raw("{" + f'"{name}":{json.dumps(first)},' + json.dumps(forge.claims())[1:])


def _twice_inside(forge: Forge) -> str:
    return forge.raw(json.dumps(forge.claims())[:-1] + ',"more":{"a":1,"a":2}}')


def _kid_twice(forge: Forge) -> str:
    return forge.raw(json.dumps(forge.claims()), '{"kid":"x",' + json.dumps(forge.header())[1:])


def _with(forge: Forge, literal: str) -> str:
    """Good claims, and one more whose value is written as it is."""
    return forge.raw(json.dumps(forge.claims())[:-1] + f',"more":{literal}}}')


_SHAPE: dict[str, Make] = {
    "nothing at all": lambda f: "",
    "a word": lambda f: "letmein",
    "one segment": lambda f: _segments(_good(f))[1],
    "two segments": lambda f: ".".join(_segments(_good(f))[:2]),
    "four segments": lambda f: _good(f) + ".AAAA",
    "five segments, as an encrypted token has": _five_segments,
    "only dots": lambda f: "..",
    "no claims": lambda f: "..".join(_segments(_good(f))[::2]),
    "padded": _padded,
    "the standard base64 alphabet": _standard_alphabet,
    "bits in the signature that nobody reads": _stray_bits,
    "a space within": lambda f: _good(f).replace(".", " .", 1),
    "a line break at the end": lambda f: _good(f) + "\n",
    "a zero byte within": lambda f: _good(f) + "\0",
    "letters outside ASCII": lambda f: "ä" + _good(f),
    "a lone surrogate": lambda f: "\udce4" + _good(f),
    "over 16 KB": _too_long,
    "a header that is no JSON": lambda f: f.raw(json.dumps(f.claims()), "RS256"),
    "a header that is a list": lambda f: f.raw(json.dumps(f.claims()), "[1]"),
    "claims that are no JSON": lambda f: f.raw("oid=mallory"),
    "claims that are a list": lambda f: f.raw(json.dumps([f.claims()])),
    "claims that are a text": lambda f: f.raw(json.dumps(json.dumps(f.claims()))),
    "claims nested 4,000 deep": lambda f: _with(f, "[" * 4000 + "]" * 4000),
    "claims nested 70 deep": lambda f: _with(f, "[" * 70 + "]" * 70),
    "claims nested without end": lambda f: f.raw('{"a":' * 2000),
    "a header nested deep": lambda f: f.raw("{}", '{"alg":' + "[" * 9000),
    "a claim named twice": lambda f: _twice(f, "oid", "0" * 36),
    "an audience named twice": lambda f: _twice(f, "aud", "somebody else"),
    "a name twice in a nested object": _twice_inside,
    "a key id named twice": _kid_twice,
    "claims that are not UTF-8": lambda f: f.raw(b'{"name":"\xff\xfe"}'),
    "claims in UTF-16": lambda f: f.raw(json.dumps(f.claims()).encode("utf-16")),
    "a byte order mark": lambda f: f.raw("\ufeff" + json.dumps(f.claims())),
    "NaN among the claims": lambda f: _with(f, "NaN"),
    "a number of 5,000 digits": lambda f: _with(f, "9" * 5000),
}


# --- crypto ------------------------------------------------------------------------------------------


def _unsigned(alg: str) -> Make:
    def make(forge: Forge) -> str:
        parts = (forge.header(alg=alg), forge.claims())
        return ".".join(b64(json.dumps(part).encode()) for part in parts) + "."

    return make


def _mac(secret: Callable[[Forge], bytes]) -> Make:
    """HS256 with something public as the secret: the public key."""

    def make(forge: Forge) -> str:
        parts = (forge.header(alg="HS256"), forge.claims())
        signed = ".".join(b64(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{b64(hmac.digest(secret(forge), signed.encode(), 'sha256'))}"

    return make


def _public_modulus(forge: Forge) -> bytes:
    number = forge.key.private.public_key().public_numbers().n
    return number.to_bytes(256, "big")


def _rs384(forge: Forge) -> str:
    signed = ".".join(_segments(forge.headed(alg="RS384"))[:2])
    signature = forge.key.private.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA384())
    return f"{signed}.{b64(signature)}"


def _ps256(forge: Forge) -> str:
    signed = ".".join(_segments(forge.headed(alg="PS256"))[:2])
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
    return f"{signed}.{b64(forge.key.private.sign(signed.encode(), pss, hashes.SHA256()))}"


def _es256(forge: Forge) -> str:
    signed = ".".join(_segments(forge.headed(alg="ES256"))[:2])
    signature = ec.generate_private_key(ec.SECP256R1()).sign(signed.encode(), ec.ECDSA(hashes.SHA256()))
    return f"{signed}.{b64(signature)}"


def _lacking_header(name: str) -> Make:
    def make(forge: Forge) -> str:
        header = forge.header()
        del header[name]
        return compact(header, forge.claims(), forge.key.private)

    return make


def _own_jwk(forge: Forge) -> str:
    return forge.by(forge.stranger, jwk=forge.stranger.jwk(None))


def _own_jwk_known_kid(forge: Forge) -> str:
    return forge.by(forge.stranger, jwk=forge.stranger.jwk(None), kid=forge.key.kid)


def _changed_after_signing(forge: Forge) -> str:
    header, claims, signature = _segments(_good(forge))
    said = json.loads(base64.urlsafe_b64decode(claims + "=="))
    said["oid"] = "deadbeef-0000-4000-8000-000000000000"
    return f"{header}.{b64(json.dumps(said).encode())}.{signature}"


def _others_signature(forge: Forge) -> str:
    return ".".join([*_segments(forge.saying(uti="one"))[:2], _segments(forge.saying(uti="two"))[2]])


def _signature(change: Callable[[bytes], bytes]) -> Make:
    def make(forge: Forge) -> str:
        header, claims, signature = _segments(_good(forge))
        return f"{header}.{claims}.{b64(change(base64.urlsafe_b64decode(signature + '==')))}"

    return make


def _digest_for_signature(forge: Forge) -> str:
    signed = ".".join(_segments(_good(forge))[:2])
    return f"{signed}.{b64(hashlib.sha256(signed.encode()).digest())}"


_CRYPTO: dict[str, Make] = {
    "alg none, no signature": _unsigned("none"),
    "alg nOnE, no signature": _unsigned("nOnE"),
    "alg RS256, no signature": _unsigned("RS256"),
    "alg none, signed": lambda f: f.headed(alg="none"),
    "HS256 with the public key's PEM": _mac(Forge.public_pem),
    "HS256 with the public modulus": _mac(_public_modulus),
    "HS256 with an empty secret": _mac(lambda f: b""),
    "RS384 by the right key": _rs384,
    "PS256 by the right key": _ps256,
    "ES256": _es256,
    "alg in lower case": lambda f: f.headed(alg="rs256"),
    "a list of algs": lambda f: f.headed(alg=["RS256"]),
    "no alg": _lacking_header("alg"),
    "its own key in jwk": _own_jwk,
    "its own key in jwk, under a known key id": _own_jwk_known_kid,
    "jku": lambda f: f.by(f.stranger, jku="http://127.0.0.1:9/keys"),
    "x5u": lambda f: f.by(f.stranger, x5u="http://127.0.0.1:9/cert"),
    "x5c": lambda f: f.by(f.stranger, x5c=["MIIB"]),
    "jku beside a good signature": lambda f: f.headed(jku="https://keys.example"),
    "a critical extension": lambda f: f.headed(crit=["exp"], exp=0),
    "an empty list of critical extensions": lambda f: f.headed(crit=[]),
    "b64 false": lambda f: f.headed(b64=False, crit=["b64"]),
    "b64 without crit": lambda f: f.headed(b64=False),
    "compressed": lambda f: f.headed(zip="DEF"),
    "no key id": _lacking_header("kid"),
    "an empty key id": lambda f: f.headed(kid=""),
    "a number for a key id": lambda f: f.headed(kid=1),
    "a list for a key id": lambda f: f.headed(kid=[f.key.kid]),
    "a path for a key id": lambda f: f.headed(kid="../../../../dev/null"),
    "a URL for a key id": lambda f: f.headed(kid="http://127.0.0.1:9/key"),
    "a query for a key id": lambda f: f.headed(kid="' UNION SELECT 'a' --"),
    "a key id of 9,000 characters": lambda f: f.headed(kid="k" * 9000),
    "an unknown key": lambda f: f.by(f.stranger),
    "an unknown key under a known key id": lambda f: f.by(f.stranger, kid=f.key.kid),
    "a retired key": lambda f: f.by(f.retired),
    "a published key of 1024 bits": lambda f: f.by(f.weak),
    "claims changed after signing": _changed_after_signing,
    "the signature of another token": _others_signature,
    "half a signature": _signature(lambda signature: signature[:128]),
    "a signature with a zero before it": _signature(lambda signature: b"\0" + signature),
    "a signature of zeros": _signature(lambda signature: bytes(256)),
    "a digest for a signature": _digest_for_signature,
    "the type of a logout token": lambda f: f.headed(typ="logout+jwt"),
    "a number for a type": lambda f: f.headed(typ=1),
}


# --- time --------------------------------------------------------------------------------------------


def _life(before: int, after: int) -> Make:
    """Issued `before` seconds ago, expiring in `after`."""

    def make(forge: Forge) -> str:
        now = forge.now()
        return forge.saying(iat=now - before, nbf=now - before, exp=now + after)

    return make


def _written(name: str, literal: str) -> Make:
    """A claim whose value is written as it is."""

    def make(forge: Forge) -> str:
        claims = forge.claims()
        del claims[name]
        return forge.raw(json.dumps(claims)[:-1] + f',"{name}":{literal}}}')

    return make


_YEAR = 365 * 86_400

_TIME: dict[str, Make] = {
    "expired beyond the leeway": _life(3600, -61),
    "expired a year ago": _life(_YEAR, -_YEAR + 3600),
    "not valid yet": lambda f: f.saying(nbf=f.now() + 120),
    "issued in the future": lambda f: f.saying(iat=f.now() + 120),
    "a life of ten years": _life(0, 10 * _YEAR),
    "a life of 49 hours": _life(3600, 48 * 3600),
    "valid since ten years ago": lambda f: f.saying(nbf=f.now() - 10 * _YEAR),
    "expires before it was issued": lambda f: f.saying(exp=f.now() - 1),
    "no exp": lambda f: f.lacking("exp"),
    "no iat": lambda f: f.lacking("iat"),
    "no nbf": lambda f: f.lacking("nbf"),
    "exp is null": lambda f: f.saying(exp=None),
    "exp is a text": lambda f: f.saying(exp=str(f.now() + 60)),
    "exp is infinite": _written("exp", "1e999"),
    "exp is Infinity": _written("exp", "Infinity"),
    "exp is a fraction": lambda f: f.saying(exp=f.now() + 60.5),
    "exp is true": lambda f: f.saying(exp=True),
    "exp is a list": lambda f: f.saying(exp=[f.now() + 60]),
    "exp of 400 digits": _written("exp", "9" * 400),
    "exp is negative": lambda f: f.saying(exp=-1),
    "iat is a text": lambda f: f.saying(iat="now"),
    "nbf is a text": lambda f: f.saying(nbf="0"),
    "nbf is false": lambda f: f.saying(nbf=False),
}


# --- issuer and tenant -------------------------------------------------------------------------------


def _of_version(said: str, shaped: str) -> Make:
    """A token shaped as one version that says to be the other."""

    def make(forge: Forge) -> str:
        return forge.authority.sign(forge.authority.claims("mallory", ver=shaped) | {"ver": said})

    return make


def _issued_by(issuer: Callable[[LocalAuthority], Any]) -> Make:
    return lambda f: f.saying(iss=issuer(f.authority))


_ISSUER: dict[str, Make] = {
    "of another tenant": lambda f: f.authority.token("mallory", tid=OTHER_TENANT),
    "another tenant's issuer": _issued_by(lambda it: it.issuer(OTHER_TENANT)),
    "another tenant's id": lambda f: f.saying(tid=OTHER_TENANT),
    "a lookalike host": _issued_by(lambda it: f"https://login.microsoftonline.com.example/{TENANT}/v2.0"),
    "the right path on another host": _issued_by(lambda it: f"https://login.example/{TENANT}/v2.0"),
    "the issuer as user information": _issued_by(lambda it: it.issuer().replace("//", "//login.example@")),
    "the literal {tenantid} in the issuer": _issued_by(lambda it: it.issuer("{tenantid}")),
    "the literal {tenantid} everywhere": lambda f: f.saying(
        iss=f.authority.issuer("{tenantid}"), tid="{tenantid}"
    ),
    "an issuer with a slash more": _issued_by(lambda it: it.issuer() + "/"),
    "an issuer with a path more": _issued_by(lambda it: it.issuer() + "/v2.0"),
    "an issuer in upper case": _issued_by(lambda it: it.issuer().upper()),
    "a list of issuers": _issued_by(lambda it: [it.issuer()]),
    "no issuer": lambda f: f.lacking("iss"),
    "an empty issuer": _issued_by(lambda it: ""),
    "version 1.0 that says 2.0": _of_version("2.0", "1.0"),
    "version 2.0 that says 1.0": _of_version("1.0", "2.0"),
    "no version": lambda f: f.lacking("ver"),
    "version 3.0": lambda f: f.saying(ver="3.0"),
    "a number for a version": lambda f: f.saying(ver=2.0),
    "a path for a version": lambda f: f.saying(ver="../2.0"),
    "no tenant": lambda f: f.lacking("tid"),
    "a tenant in upper case": lambda f: f.saying(tid="ABCDEF00-2222-4333-8444-555555555555"),
    "a tenant in braces": lambda f: f.saying(tid=f"{{{TENANT}}}"),
    "a path for a tenant": lambda f: f.saying(tid="../" + TENANT),
    "a list of tenants": lambda f: f.saying(tid=[TENANT]),
}


# --- audience and type -------------------------------------------------------------------------------

_AUDIENCE: dict[str, Make] = {
    "another audience": lambda f: f.saying(aud="api://somebody-else"),
    "Microsoft Graph's id": lambda f: f.saying(aud="00000003-0000-0000-c000-000000000000"),
    "Microsoft Graph's URL": lambda f: f.saying(aud="https://graph.microsoft.com"),
    "a list with this audience": lambda f: f.saying(aud=[APP_ID_URI]),
    "a list of audiences": lambda f: f.saying(aud=[APP_ID_URI, "api://x"]),
    "an audience with a slash more": lambda f: f.saying(aud=APP_ID_URI + "/"),
    "an audience that begins like this": lambda f: f.saying(aud=APP_ID_URI + "-admin"),
    "this audience in upper case": lambda f: f.saying(aud=APP_ID_URI.upper()),
    "both audiences in one text": lambda f: f.saying(aud=" ".join(f.authority.audiences)),
    "an empty audience": lambda f: f.saying(aud=""),
    "no audience": lambda f: f.lacking("aud"),
    "an ID token": lambda f: f.authority.id_token("mallory"),
    "an ID token without a nonce": lambda f: f.authority.id_token("mallory", nonce=None),
    "an ID token of version 1.0": lambda f: f.authority.id_token("mallory", ver="1.0"),
    "an ID token with roles": lambda f: f.authority.id_token("mallory", roles=["Approver"]),
    "an ID token that names its client": lambda f: f.saying(nonce="n"),
    "an ID token with a code's hash": lambda f: f.saying(c_hash="x"),
    "an application's own, as it says": lambda f: f.authority.app_token(roles=["Run"]),
    "an application's own, without saying so": lambda f: f.authority.app_token(roles=["Run"], idtyp=None),
    "an application's own, with a scope": lambda f: f.saying(idtyp="app"),
    "a device's": lambda f: f.saying(idtyp="device"),
    "without scopes": lambda f: f.lacking("scp"),
    "a list of scopes": lambda f: f.saying(scp=["access_as_user"]),
    "scopes are null": lambda f: f.saying(scp=None),
}


# --- permission --------------------------------------------------------------------------------------


def _scoped(scp: str) -> Make:
    return lambda f: f.saying(scp=scp)


_PERMISSION: dict[str, Make] = {
    "another scope": _scoped("Files.Read"),
    "no scope in the text of scopes": _scoped(""),
    "a scope that begins like the right one": _scoped("access_as_user_admin"),
    "a scope that ends like the right one": _scoped("no_access_as_user"),
    "the right scope in another case": _scoped("Access_As_User"),
    "the right scope behind a tab": _scoped("Files.Read\taccess_as_user"),
    "the right scope behind a comma": _scoped("Files.Read,access_as_user"),
    "the right scope with its audience": _scoped(f"{APP_ID_URI}/access_as_user"),
}


# --- identity ----------------------------------------------------------------------------------------


def _called(oid: Any) -> Make:
    return lambda f: f.saying(oid=oid)


_OID = "a1b2c3d4-1111-4222-8333-abcdefabcdef"

_IDENTITY: dict[str, Make] = {
    "no oid": lambda f: f.lacking("oid"),
    "oid is null": _called(None),
    "oid is empty": _called(""),
    "oid is a number": _called(7),
    "oid is a list": _called([_OID]),
    "oid is an address": _called("alice@contoso.example"),
    "oid in upper case": _called(_OID.upper()),
    "oid in braces": _called(f"{{{_OID}}}"),
    "oid as a URN": _called(f"urn:uuid:{_OID}"),
    "oid without hyphens": _called(_OID.replace("-", "")),
    "oid with a line break": _called(_OID + "\n"),
    "oid with a zero byte": _called(_OID + "\0"),
    "oid in other digits": _called(_OID.replace("1", "\u0661")),
    "the nil oid": _called("00000000-0000-0000-0000-000000000000"),
    "oid with another tenant before it": _called(f"{OTHER_TENANT}.{_OID}"),
    "an owner's oid in another tenant": lambda f: f.authority.token("alice", tid=OTHER_TENANT),
    "roles in one text": lambda f: f.saying(roles="Approver"),
    "roles that are not texts": lambda f: f.saying(roles=[{"name": "Approver"}]),
}

_TABLE: dict[Family, dict[str, Make]] = {
    "shape": _SHAPE,
    "crypto": _CRYPTO,
    "time": _TIME,
    "issuer and tenant": _ISSUER,
    "audience and type": _AUDIENCE,
    "permission": _PERMISSION,
    "identity": _IDENTITY,
}

_NOT_SENDABLE = frozenset(
    {
        "nothing at all",
        "a line break at the end",
        "a zero byte within",
        "letters outside ASCII",
        "a lone surrogate",
    }
)

HOSTILE: tuple[Hostile, ...] = tuple(
    Hostile(
        family,
        name,
        make,
        status=403 if family == "permission" else 401,
        sendable=name not in _NOT_SENDABLE,
    )
    for family, makers in _TABLE.items()
    for name, make in makers.items()
)
