"""Sign-in with a browser at the local authority: codes with PKCE, refresh tokens, a certificate for https."""

import base64
import datetime
import hashlib
import ipaddress
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tealagents.domain.models import Json

__all__ = ["Grant", "SignIns", "client_info", "self_signed"]


@dataclass(frozen=True)
class Grant:
    """The sign-in that a code or a refresh token was issued for."""

    user: str
    client_id: str
    redirect_uri: str
    challenge: str
    nonce: str | None


class SignIns:
    """The codes and refresh tokens that were issued. Each can be redeemed once."""

    def __init__(self) -> None:
        self._codes: dict[str, Grant] = {}
        self._refresh: dict[str, Grant] = {}

    def redirection(self, query: Json, user: str) -> str:
        """The address to which a browser returns after `user` has signed in, with a new code.

        As with Entra ID, the code is in the query, or in the fragment if `response_mode` asks for that.
        """
        code = secrets.token_urlsafe(16)
        self._codes[code] = Grant(
            user, query["client_id"], query["redirect_uri"], query["code_challenge"], query.get("nonce")
        )
        answer = {"code": code, **({"state": query["state"]} if "state" in query else {})}
        back = query["redirect_uri"]
        mark = "#" if query.get("response_mode") == "fragment" else "&" if "?" in back else "?"
        return f"{back}{mark}{urlencode(answer)}"

    def redeem(self, form: Json) -> Grant | None:
        """The grant of the code or refresh token in a form, which is used up; None if it is not valid."""
        if form.get("grant_type") == "refresh_token":
            return self._refresh.pop(form.get("refresh_token", ""), None)
        grant = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if grant is None or challenge != grant.challenge or form.get("redirect_uri") != grant.redirect_uri:
            return None
        return grant

    def refresh_token(self, grant: Grant) -> str:
        """Issues a refresh token."""
        token = secrets.token_urlsafe(24)
        self._refresh[token] = grant
        return token


def client_info(oid: str, tid: str) -> str:
    """The user who signed in, as MSAL expects it in `client_info`."""
    claims = json.dumps({"uid": oid, "utid": tid}).encode()
    return base64.urlsafe_b64encode(claims).rstrip(b"=").decode()


def self_signed(path: Path, *, host: str = "127.0.0.1", days: float = 1) -> Path:
    """Writes a key and its certificate for an address to one PEM file. Returns `path`.

    It is valid for so many days; a negative number is for how long it has expired.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address(host))
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path
