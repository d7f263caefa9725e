"""How msal talks to the authority: with time limits and bounded answers, and nothing kept.

msal is synchronous and keeps what it gets: tokens in its token cache, refusals for a minute in its HTTP
cache. Here it runs in threads of its own; the token cache forgets, because ours are the only caches, and the
HTTP cache forgets, so that consent given a moment ago counts.

msal insists on https. An authority on a loopback address may be plain http: for that one alone the transport
stands between the two, in both directions.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msal

from tealagents.auth.options import AuthConfigError, EntraOptions
from tealagents.outbound.reading import BoundedClient, FromThread, json_object

__all__ = ["Forgetful", "MsalReply", "NoTokenCache", "Transport", "application", "credential"]

MAX_BYTES = 256 * 1024
SECONDS = 10.0

_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.+?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class MsalReply:
    """What msal reads of an answer."""

    def __init__(self, status_code: int, headers: Mapping[str, str], text: str) -> None:
        self.status_code = status_code
        self.headers = dict(headers)
        self.text = text

    def raise_for_status(self) -> None:
        if self.status_code >= 400:
            raise httpx2.HTTPError(f"the authority answered {self.status_code}")


class Transport:
    """An HTTP client of the shape that msal asks for: called in threads, it sends from the event loop.

    Raises httpx2.HTTPError. To be made in the event loop.
    """

    def __init__(self, authority: str) -> None:
        parts = urlsplit(authority)
        self._translated = parts.scheme == "http"
        self._plain = f"http://{parts.netloc}"
        self._secure = f"https://{parts.netloc}"
        self._client = BoundedClient(authority, seconds=SECONDS, limit=MAX_BYTES)
        self._http = FromThread(self._client)

    def get(
        self, url: str, *, params: Any = None, headers: Mapping[str, str] | None = None, **_: Any
    ) -> MsalReply:
        return self._ask("GET", url, params=params, headers=headers)

    def post(
        self,
        url: str,
        *,
        params: Any = None,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        **_: Any,
    ) -> MsalReply:
        # msal's assertions are bytes, which would be written as Python shows them.
        form = {name: _text(value) for name, value in data.items()} if isinstance(data, dict) else data
        return self._ask("POST", url, params=params, headers=headers, data=form)

    def _ask(self, method: str, url: str, **content: Any) -> MsalReply:
        if self._translated:
            url = url.replace(self._secure, self._plain, 1)
        answer = self._http.request(method, url, **content)
        return MsalReply(answer.status_code, answer.headers, self._text(answer.content))

    def _text(self, body: bytes) -> str:
        # msal writes an answer that is no JSON into the log, whatever it may hold.
        if json_object(body) is None:
            raise httpx2.HTTPError("the authority did not answer JSON")
        text = body.decode("utf-8")
        return text.replace(f'"{self._plain}/', f'"{self._secure}/') if self._translated else text

    async def aclose(self) -> None:
        await self._client.aclose()


def _text(value: Any) -> Any:
    return value.decode("ascii") if isinstance(value, bytes) else value


class NoTokenCache(msal.TokenCache):  # type: ignore[misc]
    """Keeps no token."""

    def add(self, event: Any, now: Any = None) -> None:
        """Nothing."""


class Forgetful(dict[str, Any]):
    """Keeps no answer."""

    def __setitem__(self, key: str, value: Any) -> None:
        """Nothing."""


def credential(options: EntraOptions) -> Any:
    """This service's own credential, as msal wants it, or None. Reads the certificate's file."""
    if options.client_secret is not None:
        return options.client_secret.get_secret_value()
    if options.certificate is None:
        return None
    try:
        pem = options.certificate.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise AuthConfigError(f"The certificate {options.certificate} cannot be read: {error}") from None
    private_key, certificate = _PRIVATE_KEY.search(pem), _CERTIFICATE.search(pem)
    if private_key is None or certificate is None:
        raise AuthConfigError(
            f"{options.certificate} must hold the private key and the certificate, both as PEM."
        )
    password = options.certificate_password
    return {
        "private_key": private_key[0],
        "public_certificate": certificate[0],
        "passphrase": password.get_secret_value() if password else None,
    }


def application(client_id: str | None, proof: Any, authority: str, tenant: str, transport: Transport) -> Any:
    """msal's client for one tenant. Asks the authority for its metadata: call it in a thread."""
    return msal.ConfidentialClientApplication(
        client_id,
        client_credential=proof,
        authority=f"{authority.replace('http://', 'https://', 1)}/{tenant}",
        # The authority is the configured one; no other is asked whether it is known.
        validate_authority=False,
        instance_discovery=False,
        http_client=transport,
        http_cache=Forgetful(),
        token_cache=NoTokenCache(),
        exclude_scopes=["offline_access"],
    )
