"""A provider is found by its name, its settings are checked at start, and the mock is what it says."""

from typing import Any

import pytest
from auth_setup import ALICE

from tealagents.auth import PROVIDERS, AuthConfigError, open_auth
from tealagents.auth.entra import EntraAuthenticator, EntraOptions
from tealagents.auth.mock import MockAuthenticator
from tealagents.domain.errors import Unauthenticated
from tealagents.domain.models import Caller, User
from tealagents.domain.ports import Clock
from tealagents.testing.authority import TENANT
from tealagents.testing.clock import FakeClock

ENTRA = {"tenant_id": TENANT, "audience": "api://tealagents"}


class Everybody:
    """A third party's provider: every caller is Alice."""

    def __init__(self, options: dict[str, Any], clock: Clock) -> None:
        self.options = options

    async def authenticate(self, token: str) -> Caller:
        return Caller(ALICE, token=token)

    def resource_metadata(self, resource: str) -> None:
        return None

    async def __aenter__(self) -> "Everybody":
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


#: named as a provider by mistake
not_a_class = "neither"


# --- finding -----------------------------------------------------------------------------------------


def test_the_providers_are_found_by_name() -> None:
    """`entra` and `mock` are known. covers: AUTH-4"""
    assert {"entra", "mock"} <= set(PROVIDERS.known())
    assert isinstance(open_auth("entra", ENTRA, FakeClock()), EntraAuthenticator)
    assert isinstance(open_auth("mock", {}, FakeClock()), MockAuthenticator)


async def test_a_provider_of_ones_own() -> None:
    """A third party's class gets its options as they are, and the clock. covers: AUTH-4"""
    opened = open_auth(f"{__name__}:Everybody", {"colour": "blue"}, FakeClock())
    assert isinstance(opened, Everybody)
    assert opened.options == {"colour": "blue"}
    async with opened as provider:
        assert (await provider.authenticate("any")).user == ALICE


def test_an_unknown_provider_lists_the_known_ones() -> None:
    """An unknown name fails, and the error lists the known ones."""
    with pytest.raises(AuthConfigError, match=r"'okta'.*entra.*mock.*module:Class"):
        open_auth("okta", {}, FakeClock())


@pytest.mark.parametrize(
    ("provider", "reported"),
    [
        ("no_such_module:Class", "no_such_module"),
        (f"{__name__}:Nobody", "no 'Nobody'"),
        (f"{__name__}:not_a_class", "not a class"),
        ("json:JSONEncoder", "has no authenticate, resource_metadata"),
    ],
)
def test_a_provider_that_is_none(provider: str, reported: str) -> None:
    """A module, a class or a kind of thing that is wrong is named."""
    with pytest.raises(AuthConfigError, match=reported):
        open_auth(provider, {}, FakeClock())


# --- settings ----------------------------------------------------------------------------------------


def test_lists_may_be_texts() -> None:
    """Several words may be one text, separated by spaces."""
    options = EntraOptions(tenant_id=TENANT, audience="a b", scopes=["c"])
    assert (options.audience, options.scopes) == (("a", "b"), ("c",))


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        ({"tenant_id": ""}, "tenant_id"),
        ({"tenant_id": "../common"}, "tenant_id"),
        ({"audience": ""}, "audience"),
        ({"audience": "https://graph.microsoft.com"}, "Microsoft Graph"),
        ({"tenant_id": "common"}, "allowed_tenants"),
        ({"tenant_id": "Organizations"}, "allowed_tenants"),
        ({"allowed_tenants": "contoso.com"}, "ids of tenants"),
        ({"allow_app_tokens": True}, "app_roles"),
        ({"authority": "http://login.example"}, "https"),
        ({"authority": "ftp://127.0.0.1"}, "URL"),
        ({"authority": "https://user:pass@login.example"}, "credentials"),
        ({"authority": "login.microsoftonline.com"}, "URL"),
        ({"leeway": 3600}, "leeway"),
        ({"client_id": "x", "client_secret": "s", "certificate": "c.pem"}, "either"),
        ({"client_secret": "s"}, "client_id"),
        ({"scope": "access_as_user"}, "scope"),
    ],
)
def test_wrong_settings_are_named_at_start(wrong: dict[str, Any], reported: str) -> None:
    """A setting that cannot be meant fails the start and is named."""
    with pytest.raises(AuthConfigError, match=reported):
        open_auth("entra", ENTRA | wrong, FakeClock())


def test_a_question_is_the_end_of_its_sentence() -> None:
    """An option that is misspelt is asked about, with one mark at the end."""
    with pytest.raises(AuthConfigError, match=r"did you mean 'approver_users'\?$"):
        open_auth("mock", {"aprover_users": "carol"}, FakeClock())


def test_no_secret_is_quoted() -> None:
    """A complaint about the settings, and the settings printed, show no secret."""
    with pytest.raises(AuthConfigError) as wrong:
        open_auth("entra", {**ENTRA, "client_secret": "canary-secret"}, FakeClock())
    assert "canary" not in str(wrong.value)
    assert wrong.value.__cause__ is None
    options = EntraOptions(**ENTRA, client_id="x", client_secret="canary-secret")
    assert "canary" not in repr(options)


# --- the mock ----------------------------------------------------------------------------------------


async def test_the_mock_takes_the_token_for_the_user() -> None:
    """With the mock the bearer token is the user's id, in a tenant of that name. covers: AUTH-4"""
    async with open_auth("mock", {}, FakeClock()) as mock:
        for name in ("alice", "bob+1@example.com", "Zoë", "a/b=="):
            assert await mock.authenticate(name) == Caller(User("mock", name), token=name)
        assert mock.resource_metadata("https://x") is None


@pytest.mark.parametrize("token", ["", " ", "a b", "x" * 201, "a\nb", "a\0", "\u202ealice", "\udce4"])
async def test_the_mock_refuses_what_is_no_name(token: str) -> None:
    """Nothing, too much, spaces and what cannot be printed are not a user's name."""
    async with open_auth("mock", {}, FakeClock()) as mock:
        with pytest.raises(Unauthenticated):
            await mock.authenticate(token)


async def test_the_mock_knows_approvers_and_auditors() -> None:
    """Users listed as approvers or auditors are such, no one else."""
    options = {"approver_users": "carol dave", "auditor_users": ["dave"]}
    async with open_auth("mock", options, FakeClock()) as mock:
        callers = [await mock.authenticate(name) for name in ("alice", "carol", "dave")]
    assert [(caller.approver, caller.auditor) for caller in callers] == [
        (False, False),
        (True, False),
        (True, True),
    ]
