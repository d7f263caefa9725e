"""Identifies callers and acts for them: adapters for the ports `Authenticator` and `Delegation`.

=============  =====================================================================================
`entra`        access tokens of Microsoft Entra ID, really checked
`mock`         for development: the bearer token is the user's id
`options`      the settings of both, and what is refused at startup
`compact`      takes a token apart, before anything in it is believed
`jwks`         the authority's signing keys, kept fresh, through its outages too
`delegation`   tokens to act for a user downstream (on-behalf-of)
`msal_http`    how msal talks to the authority: bounded, unlogged, and nothing kept
=============  =====================================================================================

Imports `domain`, `outbound`, `options` and `registry` only. Bootstrap opens one provider per process.
A provider is a class that is called with its options and a `Clock` and then implements `Authenticator`.
Where it has an attribute `Options`, a pydantic model, that checks its options; else they come as a
dictionary. Those of third parties come by the entry-point group `tealagents.auth`, or as ``module:Class``.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from tealagents.auth.options import AuthConfigError
from tealagents.domain.ports import Authenticator, Clock
from tealagents.registry import Registry

__all__ = ["PROVIDERS", "AuthConfigError", "open_auth"]

PROVIDERS = Registry(
    word="auth provider",
    error=AuthConfigError,
    group="tealagents.auth",
    built_in={
        "entra": "tealagents.auth.entra:EntraAuthenticator",
        "mock": "tealagents.auth.mock:MockAuthenticator",
    },
    methods=("authenticate", "resource_metadata", "__aenter__", "__aexit__"),
)


def open_auth(provider: str, options: Mapping[str, Any] | BaseModel, clock: Clock) -> Authenticator:
    """The provider of this name, or this ``module:Class``; enter its async context to open it.

    AuthConfigError where the provider is unknown or an option is wrong; the text says what to do.
    """
    opened: Authenticator = PROVIDERS.make(provider, PROVIDERS.find(provider), options, clock)
    return opened
