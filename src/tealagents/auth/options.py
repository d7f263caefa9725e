"""What the providers are told: settings, checked once at start."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

__all__ = [
    "GRAPH_AUDIENCES",
    "MULTI_TENANT",
    "UUID",
    "AuthConfigError",
    "EntraOptions",
    "MockOptions",
    "Words",
    "is_loopback",
]

#: names that stand for many tenants; the metadata under them has `{tenantid}` for an issuer's tenant
MULTI_TENANT = frozenset({"common", "organizations"})
#: an id as Entra writes it
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
#: Microsoft Graph, by its URLs and its application id: a token for it is no business of anybody else
GRAPH_AUDIENCES = frozenset(
    {
        "00000003-0000-0000-c000-000000000000",
        *("https://graph.microsoft.com", "https://graph.microsoft.com/"),
        *("https://graph.microsoft.us", "https://graph.microsoft.us/"),
        *("https://microsoftgraph.chinacloudapi.cn", "https://microsoftgraph.chinacloudapi.cn/"),
    }
)


class AuthConfigError(ValueError):
    """The settings of a provider cannot be used. The text says what to do and holds no secret."""


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _words(value: Any) -> Any:
    return tuple(value.split()) if isinstance(value, str) else value


def _authority(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ValueError("must be a URL such as https://login.microsoftonline.com")
    if parts.username or parts.query or parts.fragment:
        raise ValueError("must not have credentials, a query or a fragment")
    if parts.scheme == "http" and not is_loopback(url):
        raise ValueError("must be https; plain http is only for an authority on a loopback address")
    return url.rstrip("/")


def _tenant(tenant: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}", tenant):
        raise ValueError("must be the tenant's id, one of its domains, or `organizations`")
    return tenant.lower()


def _tenant_ids(tenants: tuple[str, ...]) -> tuple[str, ...]:
    if any(not UUID.fullmatch(tenant) for tenant in tenants):
        raise ValueError("must be tenant ids in lower case; a domain is never in a token")
    return tenants


def _own_audience(audiences: tuple[str, ...]) -> tuple[str, ...]:
    if GRAPH_AUDIENCES.intersection(audiences):
        raise ValueError("must not be Microsoft Graph: use this service's own client id or App ID URI")
    return audiences


#: several words; in a text they are separated by spaces
Words = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_words)]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class EntraOptions(_Options):
    """How tokens of Entra ID are checked. Texts are compared exactly, and nothing is implied."""

    #: whose tokens are taken: a tenant's id, one of its domains, or `organizations` with `allowed_tenants`
    tenant_id: Annotated[str, AfterValidator(_tenant)]
    #: this service, as tokens name it: its client id, its App ID URI, or both
    audience: Annotated[Words, Field(min_length=1), AfterValidator(_own_audience)]
    #: scopes that a user's token must all have
    scopes: Words = ()
    #: tenants whose users may call; empty: the one of `tenant_id`
    allowed_tenants: Annotated[Words, AfterValidator(_tenant_ids)] = ()
    #: client applications that may call (`azp`, `appid`); empty: any that has the scopes
    allowed_clients: Words = ()
    #: role of people who may decide pauses of others in their tenant; None: nobody
    approver_role: Annotated[str, Field(min_length=1)] | None = None
    #: role of who may read everything in their tenant; None: nobody
    auditor_role: Annotated[str, Field(min_length=1)] | None = None
    #: whether applications may call without a user; needs `app_roles`
    allow_app_tokens: bool = False
    #: roles that an application's own token must all have
    app_roles: Words = ()
    #: where tokens come from; national clouds have their own
    authority: Annotated[str, AfterValidator(_authority)] = "https://login.microsoftonline.com"
    #: seconds by which this clock and the authority's may differ
    leeway: Annotated[float, Field(ge=0, le=300)] = 60
    #: this service's own application id, to act for users downstream
    client_id: Annotated[str, Field(min_length=1)] | None = None
    #: one way for this service to prove itself …
    client_secret: SecretStr | None = None
    #: … and the other: a PEM file with the private key and the certificate
    certificate: Path | None = None
    certificate_password: SecretStr | None = None
    #: where the browser is sent after consent; None: the application's first registered redirect URI
    consent_redirect_uri: str | None = None

    @model_validator(mode="after")
    def _no_tenant_is_implied(self) -> Self:
        if self.tenant_id in MULTI_TENANT and not self.allowed_tenants:
            raise ValueError(
                f"tenant_id {self.tenant_id!r} stands for every tenant there is: list those that may call "
                "in allowed_tenants"
            )
        return self

    @model_validator(mode="after")
    def _applications_have_roles(self) -> Self:
        if self.allow_app_tokens and not self.app_roles:
            raise ValueError("allow_app_tokens needs app_roles, or any application of the tenant could call")
        return self

    @model_validator(mode="after")
    def _one_credential(self) -> Self:
        if self.client_secret and self.certificate:
            raise ValueError("give either client_secret or certificate")
        if (self.client_secret or self.certificate) and not self.client_id:
            raise ValueError("client_secret and certificate need client_id")
        return self


class MockOptions(_Options):
    """Development without an authority: the bearer token is the user's id."""

    #: users who may decide pauses of others
    approver_users: Words = ()
    #: users who may read everything
    auditor_users: Words = ()
