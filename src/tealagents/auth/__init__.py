"""Who is asking, and acting for them: adapters for the ports `Authenticator` and `Delegation`.

=============  =====================================================================================
`entra`        access tokens of Microsoft Entra ID, really checked
`mock`         for development: the bearer token is the user's id
`options`      the settings of both, and what is refused at start
`compact`      takes a token apart, before anything in it is believed
`jwks`         the authority's signing keys, kept fresh, through its outages too
`delegation`   tokens to act for a user downstream (on-behalf-of)
`msal_http`    how msal talks to the authority: bounded, unlogged, and nothing kept
=============  =====================================================================================

Imports `tealagents.domain` only. Bootstrap opens one provider a process; nobody else imports this package.
A provider is a class that is called with its options and a `Clock` and then fills `Authenticator`. Where it
has an attribute `Options`, a pydantic model, that checks its options; else they come as a dictionary. Those
of third parties come by the entry-point group `tealagents.auth`, or as ``module:Class``.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tealagents.auth.options import AuthConfigError
from tealagents.domain.ports import Authenticator, Clock

__all__ = ["PROVIDERS", "AuthConfigError", "known_providers", "open_auth"]

#: the providers that come with the project, and what fills them
PROVIDERS = {
    "entra": "tealagents.auth.entra:EntraAuthenticator",
    "mock": "tealagents.auth.mock:MockAuthenticator",
}


def open_auth(provider: str, options: Mapping[str, Any], clock: Clock) -> Authenticator:
    """The provider of this name, or this ``module:Class``; enter its async context to open it.

    AuthConfigError where the provider is unknown or an option is wrong; the text says what to do.
    """
    found = _provider_class(provider)
    opened: Authenticator = found(_checked(provider, found, options), clock)
    return opened


def known_providers() -> list[str]:
    return sorted({*PROVIDERS, *(point.name for point in entry_points(group="tealagents.auth"))})


def _checked(provider: str, found: type[Any], options: Mapping[str, Any]) -> Any:
    model = getattr(found, "Options", None)
    if model is None:
        return dict(options)
    try:
        return model(**options)
    except ValidationError as error:
        problems = "; ".join(
            _told(problem) for problem in error.errors(include_url=False, include_input=False)
        )
        # Not chained: what was given may be a secret.
        raise AuthConfigError(f"Options of the auth provider {provider!r}: {problems}") from None


def _told(problem: ErrorDetails) -> str:
    place = ".".join(map(str, problem["loc"]))
    reason = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {reason}" if place else reason


def _provider_class(provider: str) -> type[Any]:
    module, _, name = _reference(provider).partition(":")
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        raise AuthConfigError(f"The auth provider {provider!r} cannot be imported: {missing}") from missing
    except AttributeError:
        raise AuthConfigError(
            f"The auth provider {provider!r} does not exist: {module} has no {name!r}."
        ) from None
    if not isinstance(found, type):
        raise AuthConfigError(f"The auth provider {provider!r} is not a class.")
    return found


def _reference(provider: str) -> str:
    if provider in PROVIDERS:
        return PROVIDERS[provider]
    for point in entry_points(group="tealagents.auth", name=provider):
        return point.value
    if ":" in provider:
        return provider
    known = ", ".join(known_providers())
    raise AuthConfigError(
        f"Unknown auth provider {provider!r}. Known: {known}; or name a class as module:Class."
    )
