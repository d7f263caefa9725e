"""Azure OpenAI without a key: bearer tokens for the identity that this service runs as.

`TA_AZURE_CREDENTIAL` names one of four kinds: a client secret, a certificate, a managed identity, or a
workload identity (a federated token that Kubernetes mounts). All but the managed identity send one request of
the client credentials grant (RFC 6749, 4.4; the assertions are RFC 7523) to the authority's token endpoint.
The managed identity uses `msal`, which knows the endpoints of the different Azure services.

A token is cached, and renewed in the background from five minutes before its end, by one request for all
calls. While the authority is down, it is used as long as it is valid.
"""

import asyncio
import base64
import hashlib
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from tealagents.domain.errors import ModelFailed, RunFailure
from tealagents.llm.failures import quoted
from tealagents.llm.options import TokenProvider
from tealagents.options import AzureIdentity
from tealagents.outbound.addresses import is_loopback

if TYPE_CHECKING:
    from tealagents.outbound.reading import FromThread

_log = logging.getLogger(__name__)

SCOPE = "https://cognitiveservices.azure.com/.default"
AUTHORITY = "https://login.microsoftonline.com"

#: seconds before a token's end at which its renewal begins
RENEW_BEFORE = 300.0
#: seconds between two attempts to renew a token that is still valid
RETRY_AFTER = 30.0
#: the most seconds that a request to the authority may take
TIMEOUT = 20.0
#: the most bytes of its answer
MAX_ANSWER = 256_000

#: how the error of a call without a token begins
NO_CREDENTIAL = "No token for the model service"

_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

#: option → the environment variables that it is read from; the first one that is set counts
ENVIRONMENT = {
    "tenant_id": ("TA_AZURE_TENANT_ID", "AZURE_TENANT_ID"),
    "client_id": ("TA_AZURE_CLIENT_ID", "AZURE_CLIENT_ID"),
    "client_secret": ("TA_AZURE_CLIENT_SECRET",),
    "certificate_path": ("TA_AZURE_CLIENT_CERTIFICATE",),
    "federated_token_path": ("TA_AZURE_FEDERATED_TOKEN_FILE", "AZURE_FEDERATED_TOKEN_FILE"),
    "authority": ("TA_AZURE_AUTHORITY", "AZURE_AUTHORITY_HOST"),
    "scope": ("TA_AZURE_SCOPE",),
}

_NEEDED: Mapping[AzureIdentity, tuple[str, ...]] = {
    "client_secret": ("tenant_id", "client_id", "client_secret"),
    "certificate": ("tenant_id", "client_id", "certificate_path"),
    "managed_identity": (),
    "workload_identity": ("tenant_id", "client_id", "federated_token_path"),
}


class AzureCredentialOptions(BaseModel):
    """The identity that requests tokens, and the authority."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    kind: AzureIdentity
    tenant_id: str | None = None
    #: of the application, or of a user-assigned managed identity
    client_id: str | None = None
    client_secret: SecretStr | None = None
    #: a PEM file that holds the private key and the certificate
    certificate_path: Path | None = None
    federated_token_path: Path | None = None
    authority: str = AUTHORITY
    scope: str = Field(default=SCOPE, min_length=1)

    @field_validator("authority")
    @classmethod
    def _trusted_authority(cls, url: str) -> str:
        scheme = urlsplit(url).scheme
        if scheme != "https" and not (scheme == "http" and is_loopback(url)):
            raise ValueError("must be an https:// URL (plain http only to loopback)")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = [ENVIRONMENT[name][0] for name in _NEEDED[self.kind] if getattr(self, name) is None]
        if missing:
            raise ValueError(f"TA_AZURE_CREDENTIAL={self.kind} also needs {', '.join(missing)}")
        return self

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """The options in the environment; None if `TA_AZURE_CREDENTIAL` is not set.

        Raises:
            ModelConfigError: an option is missing or invalid. Without the values, which may be secret.
        """
        kind = environment.get("TA_AZURE_CREDENTIAL")
        if not kind:
            return None
        given = {
            option: next((environment[name] for name in names if environment.get(name)), None)
            for option, names in ENVIRONMENT.items()
        }
        known = {option: value for option, value in given.items() if value is not None}
        try:
            return cls.model_validate({"kind": kind, **known})
        except ValidationError as wrong:
            from tealagents.llm import ModelConfigError

            # not chained, and without the values: a secret may be among them
            raise ModelConfigError("; ".join(map(_explained, wrong.errors()))) from None


def _explained(problem: ErrorDetails) -> str:
    option = str(problem["loc"][0]) if problem["loc"] else ""
    name = ENVIRONMENT.get(option, ("TA_AZURE_CREDENTIAL",))[0] if option else ""
    reason = problem["msg"].removeprefix("Value error, ")
    return f"{name}: {reason}" if name else reason


class Token(NamedTuple):
    """A bearer token, and the time of its end in seconds since the epoch."""

    value: str
    expires_at: float


class TokenRefused(Exception):
    """The authority returned no token. The text says why, with secrets masked."""


Acquire = Callable[[], Awaitable[Token]]


async def provided_token(provider: TokenProvider) -> str:
    """A token from a provider, which may be third-party code. Raises `ModelFailed` if it fails in any way."""
    try:
        token: object = await provider()
    except RunFailure:
        raise
    except Exception as error:
        why = quoted(f"{type(error).__name__}: {error}")
        raise ModelFailed(f"{NO_CREDENTIAL}: the token provider failed ({why}).") from error
    if not isinstance(token, str) or not re.fullmatch(r"[\x20-\x7e]+", token):
        raise ModelFailed(f"{NO_CREDENTIAL}: the token provider returned what cannot be sent as a token.")
    return token


class AzureCredential:
    """A `TokenProvider`: call it for a token that is valid now. Leave its async context to close it.

    `acquire` requests a new token; by default, it does so as the options say. `now`: seconds since the epoch.
    """

    def __init__(
        self,
        options: AzureCredentialOptions,
        *,
        acquire: Acquire | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        is_managed = options.kind == "managed_identity"
        request = _managed_identity_token if is_managed else _client_credentials_token
        self._acquire = acquire if acquire is not None else partial(request, options)
        self._now = now
        self._token = Token("", 0)
        self._renewal: asyncio.Task[None] | None = None
        self._tried_at = float("-inf")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)

    async def __call__(self) -> str:
        """A token that is valid now. Raises `ModelFailed` if the authority returns no token."""
        now = self._now()
        left = self._token.expires_at - now
        if left > 0:
            if left < RENEW_BEFORE and now - self._tried_at >= RETRY_AFTER:
                self._renew()
            return self._token.value
        try:
            await asyncio.shield(self._renew())
        except TokenRefused as refused:
            raise ModelFailed(f"{NO_CREDENTIAL}: {refused} Check the TA_AZURE_… settings.") from None
        return self._token.value

    def _renew(self) -> "asyncio.Task[None]":
        if self._renewal is None or self._renewal.done():
            self._tried_at = self._now()
            self._renewal = asyncio.create_task(self._fetch())
            self._renewal.add_done_callback(_report)
        return self._renewal

    async def _fetch(self) -> None:
        self._token = await self._acquire()


def _report(renewal: "asyncio.Task[None]") -> None:
    """Logs a failed renewal, whether or not a caller is waiting for it."""
    if not renewal.cancelled() and (failure := renewal.exception()) is not None:
        _log.warning("The Azure token could not be renewed: %s", quoted(str(failure)))


# --- the client credentials grant -----------------------------------------------------------------


async def _client_credentials_token(options: AzureCredentialOptions) -> Token:
    import httpx2

    from tealagents.outbound.reading import BoundedClient, fetch, json_object

    endpoint = f"{options.authority}/{options.tenant_id}/oauth2/v2.0/token"
    form: dict[str, str | None] = {
        "grant_type": "client_credentials",
        "client_id": options.client_id,
        "scope": options.scope,
    }
    try:
        form.update(await asyncio.to_thread(_proof, options, endpoint))
    except (OSError, ValueError, TypeError) as failure:  # a TypeError: the key needs a password
        raise TokenRefused(f"the credential cannot be read ({failure}).") from None
    try:
        async with BoundedClient(endpoint, seconds=TIMEOUT, limit=MAX_ANSWER) as client:
            answer = await fetch(client, "POST", endpoint, data=form, headers={"accept": "application/json"})
    except httpx2.HTTPError as failure:
        raise TokenRefused(
            f"{options.authority} cannot be reached ({type(failure).__name__}: {failure})."
        ) from None
    said = json_object(answer.content)
    if said is None:
        raise TokenRefused(f"{options.authority} answered {answer.status} with something other than JSON.")
    return _token_of(said, options)


def _proof(options: AzureCredentialOptions, endpoint: str) -> dict[str, str]:
    """The form fields that prove the client's identity. It reads files, so call it in a thread."""
    if options.kind == "client_secret":
        assert options.client_secret is not None  # checked by the options
        return {"client_secret": options.client_secret.get_secret_value()}
    if options.kind == "certificate":
        return _assertion(_certificate_assertion(options, endpoint))
    assert options.federated_token_path is not None
    # read each time, because Kubernetes replaces the file before its token expires
    return _assertion(options.federated_token_path.read_text("ascii").strip())


def _assertion(jwt: str) -> dict[str, str]:
    return {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": jwt}


def _certificate_assertion(options: AzureCredentialOptions, endpoint: str) -> str:
    """A client assertion that is signed with the certificate's key
    (https://learn.microsoft.com/entra/identity-platform/certificate-credentials)."""
    import jwt
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    assert options.certificate_path is not None
    pem = options.certificate_path.read_bytes()
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, RSAPrivateKey):
        raise ValueError("its private key is not an RSA key, and Entra ID accepts no others")
    certificate = x509.load_pem_x509_certificate(pem)
    digest = hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()
    now = int(time.time())
    claims = {
        "aud": endpoint,
        "iss": options.client_id,
        "sub": options.client_id,
        "jti": str(uuid.uuid4()),
        "iat": now,
        "nbf": now,
        "exp": now + 600,
    }
    thumbprint = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return jwt.encode(claims, key, algorithm="PS256", headers={"x5t#S256": thumbprint})


# --- managed identity -------------------------------------------------------------------------------


async def _managed_identity_token(options: AzureCredentialOptions) -> Token:
    """Requests a token from the machine that this service runs on: a virtual machine, App Service, Arc, …"""
    import httpx2

    from tealagents.outbound.reading import BoundedClient, FromThread

    # a loopback URL, so that no proxy is used
    async with BoundedClient("http://localhost", seconds=TIMEOUT, limit=MAX_ANSWER) as client:
        http = FromThread(client)
        try:
            said = await asyncio.to_thread(_ask_machine, options, http)
        except (httpx2.HTTPError, ValueError, RecursionError) as failure:
            raise TokenRefused(f"the managed identity's endpoint does not answer ({failure}).") from None
    return _token_of(said, options)


def _ask_machine(options: AzureCredentialOptions, http: "FromThread") -> Any:
    import msal

    identity = (
        msal.UserAssignedManagedIdentity(client_id=options.client_id)
        if options.client_id
        else msal.SystemAssignedManagedIdentity()
    )
    client = msal.ManagedIdentityClient(identity, http_client=http)
    return client.acquire_token_for_client(resource=options.scope.removesuffix("/.default"))


# --- the answer -------------------------------------------------------------------------------------


#: a number of seconds; some authorities send it as text
_SECONDS = re.compile(r"[0-9]{1,10}(\.[0-9]*)?")


def _token_of(said: Any, options: AzureCredentialOptions) -> Token:
    match said:
        case {"access_token": str(value), "expires_in": lifetime} if value and _SECONDS.fullmatch(
            str(lifetime)
        ):
            return Token(value, time.time() + float(lifetime))
        case {"error": error}:
            secret = options.client_secret.get_secret_value() if options.client_secret else ""
            why = quoted(f"{error}: {said.get('error_description', '')}", [secret] if secret else [])
            raise TokenRefused(f"the authority refuses ({why}).")
        case _:
            raise TokenRefused("the authority's answer holds no token.")
