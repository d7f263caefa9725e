"""The options of the providers, checked once at startup."""

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tealagents.mistakes import Misconfigured
from tealagents.options import (
    Authority,
    Flag,
    HttpUrl,
    Leeway,
    Options,
    Permission,
    Permissions,
    Tenant,
    TenantIds,
    Text,
    Words,
)

__all__ = [
    "GRAPH_AUDIENCES",
    "MULTI_TENANT",
    "UUID",
    "AuthConfigError",
    "EntraOptions",
    "MockOptions",
]

#: names that stand for many tenants; the metadata under them has `{tenantid}` for an issuer's tenant
MULTI_TENANT = frozenset({"common", "organizations"})
#: an id as Entra writes it
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
#: Microsoft Graph, by its URLs and its application id: a token for it is accepted by Graph alone
GRAPH_AUDIENCES = frozenset(
    {
        "00000003-0000-0000-c000-000000000000",
        *("https://graph.microsoft.com", "https://graph.microsoft.com/"),
        *("https://graph.microsoft.us", "https://graph.microsoft.us/"),
        *("https://microsoftgraph.chinacloudapi.cn", "https://microsoftgraph.chinacloudapi.cn/"),
    }
)


class AuthConfigError(Misconfigured):
    """The settings of a provider cannot be used. The text says what to do and holds no secret."""


def _own_audience(audiences: tuple[str, ...]) -> tuple[str, ...]:
    if GRAPH_AUDIENCES.intersection(audiences):
        raise ValueError("must not be Microsoft Graph: use this service's own client id or App ID URI")
    return audiences


class EntraOptions(Options):
    """How tokens of Entra ID are checked. Texts are compared exactly, and nothing is implied."""

    tenant_id: Tenant
    """The Entra tenant that issues the tokens."""
    audience: Annotated[Words, Field(min_length=1), AfterValidator(_own_audience)]
    """Accepted audiences, one of which a token must name: the service's client id or App ID URI."""
    scopes: Permissions = ()
    """Required scopes: a user's token must have all of them."""
    allowed_tenants: TenantIds = ()
    """Ids of the tenants whose users may call. Required if `tenant_id` stands for many tenants, as
    `organizations` does."""
    allowed_clients: Words = ()
    """Client applications that may call. Empty: all."""
    approver_role: Permission | None = None
    """Role of users who may decide on the tool calls of others in their tenant. If omitted: no one."""
    auditor_role: Permission | None = None
    """Role of users and applications that may read everything in their tenant. If omitted: no one."""
    allow_app_tokens: Flag = False
    """Whether applications may call without a user. Needs `app_roles`."""
    app_roles: Permissions = ()
    """Required roles: an application's token must have all of them."""
    authority: Authority = "https://login.microsoftonline.com"
    """Where tokens come from; national clouds have their own."""
    leeway: Leeway = 60
    """Seconds by which this machine's clock and the authority's may differ."""
    client_id: Text | None = None
    """This service's own application id, to act for users downstream (on-behalf-of)."""
    client_secret: SecretStr | None = None
    """The credential that the service presents to downstream services. Written here only as `${NAME}`."""
    certificate: Path | None = None
    """Instead of a secret: a PEM file with the private key and the certificate, relative to this file."""
    certificate_password: SecretStr | None = None
    """Password of the private key. Written here only as `${NAME}`."""
    consent_redirect_uri: HttpUrl | None = None
    """Where the browser goes after a user's consent. If omitted, the application's first redirect URI."""

    @model_validator(mode="after")
    def _no_tenant_is_implied(self) -> Self:
        if self.tenant_id in MULTI_TENANT and not self.allowed_tenants:
            raise ValueError(
                f"tenant_id {self.tenant_id!r} stands for all tenants: list those whose users may call in "
                "allowed_tenants"
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


class MockOptions(Options):
    """Development without an authority: the bearer token is the user's id."""

    approver_users: Words = ()
    """Users who may decide on the tool calls of others."""
    auditor_users: Words = ()
    """Users who may read everything."""
