"""The section `spec.auth`: the provider, and its options beside it.

What Entra is configured with is declared by its adapter, and imported when a key or a variable of it is set.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError

from tealagents.config.file import Document
from tealagents.config.problems import KeyPath, Mistake
from tealagents.mistakes import explain
from tealagents.options import NameOrClass, Options

if TYPE_CHECKING:
    from tealagents.auth.options import EntraOptions

AUTH: KeyPath = ("spec", "auth")


class ProviderKeys(Options):
    """Who may call."""

    provider: NameOrClass | None = None
    """`entra`, `mock` (the bearer token is the user id; for development) or `module:Class`. If omitted,
    `entra` if a tenant is set, else `mock`, on loopback addresses only."""
    options: dict[str, Any] = Field({}, repr=False)
    """Options of another provider, such as `approver_users` and `auditor_users` of `mock`. Ignored if
    `TA_AUTH` chooses another provider than the file does."""


@dataclass(frozen=True)
class AuthConfig:
    """Who may call, with the provider decided."""

    provider: str = "mock"
    #: whether the provider was named. A `mock` that was not is for loopback addresses only
    chosen: bool = False
    #: what the provider is opened with
    options: "EntraOptions | Mapping[str, Any]" = field(default_factory=dict, repr=False)

    @property
    def entra(self) -> "EntraOptions | None":
        """Its options, where the provider is Entra."""
        return None if isinstance(self.options, Mapping) else self.options


@cache
def entra_section() -> type[BaseModel]:
    """The section with the keys of Entra."""
    from tealagents.auth.options import EntraOptions

    class AuthSection(EntraOptions, ProviderKeys):
        """Who may call. Each key has a variable `TA_ENTRA_…` (the provider: `TA_AUTH`), which wins."""

    return AuthSection


def auth_of(document: Document, mistakes: list[Mistake]) -> AuthConfig | None:
    """What the file says of `spec.auth`, with the variables put over it; None where it is wrong."""
    given = {} if (said := document.get(AUTH)) is None else said
    if not isinstance(given, dict):
        mistakes.append((AUTH, "must be a mapping (keys and values), or a provider's name"))
        return None
    given = {key: value for key, value in given.items() if value != [] or key in ProviderKeys.model_fields}
    others = given.keys() - ProviderKeys.model_fields.keys()
    provider = given.get("provider") or ("entra" if "tenant_id" in others else "mock")
    places: dict[KeyPath, KeyPath] = {}
    found: list[Mistake] = []
    if provider == "entra" and isinstance(options := given.get("options"), dict):
        places = {(key,): (*AUTH, "options") for key in options.keys() - given.keys()}
        given = {**options, **given, "options": {}}
        if ("certificate",) in places and isinstance(certificate := given["certificate"], str):
            given["certificate"] = path = os.path.normpath(document.directory / certificate)
            found += [] if os.path.isfile(path) else [(("certificate",), f"there is no such file: {path}")]
    section = entra_section() if others or provider == "entra" else ProviderKeys
    found += _mistakes(given, provider, section)
    mistakes += (((*places.get(path[:1], AUTH), *path), message) for path, message in found)
    if found:
        return None
    return AuthConfig(provider, given.get("provider") is not None, _options(given, provider))


def _mistakes(given: Mapping[str, Any], provider: str, section: type[BaseModel]) -> Iterator[Mistake]:
    """What is wrong with which key. Keys of Entra are checked for any provider, and required for it only."""
    required = {name for name, each in section.model_fields.items() if each.is_required()}
    if provider == "entra":
        for key in sorted(required - given.keys(), reverse=True):
            variable = f"TA_ENTRA_{key.upper()}"
            yield (key,), f"entra needs it; set it here, or {variable} in the environment"
    try:
        section.model_validate({**dict.fromkeys(required, "left-out"), **given})
    except ValidationError as error:
        for each in error.errors():
            yield each["loc"], explain(each, section, given)


def _options(given: Mapping[str, Any], provider: str) -> "EntraOptions | Mapping[str, Any]":
    if provider != "entra":
        return dict(given.get("options") or {})
    from tealagents.auth.options import EntraOptions

    return EntraOptions.model_validate({key: given[key] for key in EntraOptions.model_fields if key in given})
