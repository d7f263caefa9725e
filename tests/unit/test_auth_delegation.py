"""On-behalf-of: a token for the calling user, never for another, asked for once and never stored."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from auth_setup import ALICE, KEY, MachineClock
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from tealagents.auth import AuthConfigError
from tealagents.auth.delegation import EntraDelegation, NoDelegation, open_delegation
from tealagents.auth.options import EntraOptions
from tealagents.domain.errors import NeedsAuthorization, NeedsOwner, ToolFailed
from tealagents.domain.models import User
from tealagents.domain.ports import Delegation
from tealagents.testing.authority import OTHER_TENANT, SERVICE_ID, LocalAuthority, Mode, object_id

MAIL = ["https://graph.example/Mail.Read"]


@pytest.fixture
def clock() -> MachineClock:
    return MachineClock()


@pytest.fixture
def authority(clock: MachineClock) -> Iterator[LocalAuthority]:
    with LocalAuthority(clock=clock, signing_key=KEY) as running:
        yield running


@pytest.fixture
async def delegation(authority: LocalAuthority, clock: MachineClock) -> AsyncIterator[Delegation]:
    options = authority.options(client_id=SERVICE_ID, client_secret=authority.client_secret)
    async with open_delegation(EntraOptions(**options), clock) as opened:
        yield opened


def said(token: str) -> dict[str, object]:
    claims: dict[str, object] = jwt.decode(token, options={"verify_signature": False})
    return claims


# --- tokens ------------------------------------------------------------------------------------------


async def test_a_token_for_the_user_downstream(delegation: Delegation, authority: LocalAuthority) -> None:
    """A tool is given a token for another service in the calling user's name. covers: AUTH-5"""
    token = await delegation.token_for(ALICE, authority.token("alice"), MAIL)
    claims = said(token)
    assert (claims["oid"], claims["aud"], claims["scp"]) == (ALICE.oid, "https://graph.example", "Mail.Read")
    form = authority.forms[0]
    assert form["requested_token_use"] == "on_behalf_of"
    assert "offline_access" not in form["scope"]


async def test_the_same_token_is_asked_for_once(delegation: Delegation, authority: LocalAuthority) -> None:
    """Ten tools that want the same at once, and one later, cost one question. covers: AUTH-5"""
    assertion = authority.token("alice")
    asked = (delegation.token_for(ALICE, assertion, MAIL) for _ in range(10))
    tokens = {*await asyncio.gather(*asked), await delegation.token_for(ALICE, assertion, MAIL)}
    assert len(tokens) == 1
    assert authority.hits["token"] == 1


async def test_other_scopes_and_other_assertions_are_asked_for(
    delegation: Delegation, authority: LocalAuthority
) -> None:
    """A token is kept for exactly the scopes and the user's token it was given for."""
    first, second = authority.token("alice"), authority.token("alice")
    await delegation.token_for(ALICE, first, MAIL)
    await delegation.token_for(ALICE, first, ["https://graph.example/Mail.Send"])
    await delegation.token_for(ALICE, second, MAIL)
    assert authority.hits["token"] == 3


async def test_a_token_is_replaced_before_it_ends(
    delegation: Delegation, authority: LocalAuthority, clock: MachineClock
) -> None:
    """From five minutes before its end a token is no longer handed out."""
    assertion = authority.token("alice", lifetime=8 * 3600)
    first = await delegation.token_for(ALICE, assertion, MAIL)
    clock.advance(3600 - 301)
    assert await delegation.token_for(ALICE, assertion, MAIL) == first
    clock.advance(2)
    assert await delegation.token_for(ALICE, assertion, MAIL) != first
    assert authority.hits["token"] == 2


async def test_a_token_that_is_no_longer_handed_out_is_dropped(
    delegation: Delegation, authority: LocalAuthority, clock: MachineClock
) -> None:
    """When the next token is kept, of any user: those of users who never return are not kept either."""
    first = await delegation.token_for(ALICE, authority.token("alice"), MAIL)
    assert first in repr(vars(delegation))
    clock.advance(3600 - 300)
    bob = await delegation.token_for(User(ALICE.tid, object_id("bob")), authority.token("bob"), MAIL)
    held = repr(vars(delegation))
    assert (first in held, bob in held) == (False, True)


async def test_no_one_acts_for_another_user(delegation: Delegation, authority: LocalAuthority) -> None:
    """With another user's token, such as an approver's, the owner's own is requested."""
    elsewhere = User(OTHER_TENANT, ALICE.oid)
    for user, assertion in (
        (ALICE, authority.token("bob")),
        (elsewhere, authority.token("alice")),
        (ALICE, "alice"),
        (ALICE, ""),
        (ALICE, "a.b.c"),
        (ALICE, "a.W10.c"),
    ):
        with pytest.raises(NeedsOwner):
            await delegation.token_for(user, assertion, MAIL)
    assert authority.hits["token"] == 0


async def test_users_of_two_tenants(delegation: Delegation, authority: LocalAuthority) -> None:
    """Each user's token is exchanged in the user's own tenant."""
    theirs = User(OTHER_TENANT, object_id("alice"))
    token = await delegation.token_for(theirs, authority.token("alice", tid=OTHER_TENANT), MAIL)
    assert said(token)["tid"] == OTHER_TENANT


# --- the user is needed ------------------------------------------------------------------------------


async def test_without_consent_the_user_is_asked(delegation: Delegation, authority: LocalAuthority) -> None:
    """Without consent the tool asks for it, with the page; once given, that counts. covers: AUTH-5"""
    assertion = authority.token("alice")
    authority.ask_for_consent()
    with pytest.raises(NeedsAuthorization) as asked:
        await delegation.token_for(ALICE, assertion, MAIL)
    assert asked.value.server == "https://graph.example"
    assert asked.value.scopes == tuple(MAIL)
    query = parse_qs(urlsplit(asked.value.url).query)
    assert query["client_id"] == [SERVICE_ID]
    assert query["prompt"] == ["consent"]
    assert MAIL[0] in query["scope"][0]
    async with httpx.AsyncClient(trust_env=False) as browser:
        assert (await browser.get(asked.value.url)).status_code == 200
    assert said(await delegation.token_for(ALICE, assertion, MAIL))["scp"] == "Mail.Read"


@pytest.mark.parametrize(
    ("error", "number", "more"),
    [
        ("interaction_required", 50079, {"claims": '{"access_token":{"polids":{"essential":true}}}'}),
        ("interaction_required", 50076, {}),
        ("consent_required", 65001, {}),
        ("invalid_grant", 65001, {}),
        ("invalid_grant", 0, {"suberror": "consent_required"}),
        ("login_required", 50058, {}),
        ("invalid_grant", 50076, {"suberror": "basic_action", "claims": '{"access_token":{}}'}),
        ("invalid_grant", 0, {"suberror": "additional_action"}),
        ("invalid_grant", 50076, {}),
        ("invalid_grant", 50079, {}),
        ("invalid_grant", 50158, {}),
    ],
)
async def test_whatever_needs_the_user_asks_the_user(
    delegation: Delegation, authority: LocalAuthority, error: str, number: int, more: dict[str, str]
) -> None:
    """Each way in which the authority says that the user is needed leads to the user, with its challenge."""
    authority.refuse_delegation(error, number, **more)
    with pytest.raises(NeedsAuthorization) as asked:
        await delegation.token_for(ALICE, authority.token("alice"), MAIL)
    query = parse_qs(urlsplit(asked.value.url).query)
    assert query.get("claims") == ([more["claims"]] if "claims" in more else None)


async def test_where_the_browser_goes_after_consent(authority: LocalAuthority, clock: MachineClock) -> None:
    """A configured redirect URI is part of the page's address."""
    options = authority.options(
        client_id=SERVICE_ID,
        client_secret=authority.client_secret,
        consent_redirect_uri="https://agents.example/done",
    )
    authority.ask_for_consent()
    async with open_delegation(EntraOptions(**options), clock) as delegation:
        with pytest.raises(NeedsAuthorization) as asked:
            await delegation.token_for(ALICE, authority.token("alice"), MAIL)
    assert parse_qs(urlsplit(asked.value.url).query)["redirect_uri"] == ["https://agents.example/done"]


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "number", "more"),
    [
        ("invalid_scope", 70011, {}),
        ("invalid_grant", 50013, {}),
        # access is blocked by a policy, whatever the user does
        ("invalid_grant", 53003, {"suberror": "message_only", "claims": '{"access_token":{}}'}),
    ],
)
async def test_a_refusal_is_reported_by_its_number(
    delegation: Delegation, authority: LocalAuthority, error: str, number: int, more: dict[str, str]
) -> None:
    """Another refusal fails the tool, with the error's name and number and not the authority's prose."""
    authority.refuse_delegation(error, number, **more)
    with pytest.raises(ToolFailed, match=rf"{error}, AADSTS{number}") as failed:
        await delegation.token_for(ALICE, authority.token("alice"), MAIL)
    assert "Trace ID" not in str(failed.value)


@pytest.mark.parametrize("outage", ["down", "failing", "garbage", "redirecting"])
async def test_an_outage_fails_the_tool(
    delegation: Delegation, authority: LocalAuthority, outage: Mode
) -> None:
    """An authority that does not answer fails the tool; once it is back the same call works."""
    assertion = authority.token("alice")
    for _ in range(2):
        authority.behave(outage)
        with pytest.raises(ToolFailed, match="did not answer"):
            await delegation.token_for(ALICE, assertion, MAIL)
        authority.behave("ok")
        await delegation.token_for(ALICE, assertion, [*MAIL, "https://graph.example/More"])
    await delegation.token_for(ALICE, assertion, MAIL)


async def test_a_wrong_secret_fails_the_tool(authority: LocalAuthority, clock: MachineClock) -> None:
    """A service whose own secret is wrong cannot act for any user."""
    options = authority.options(client_id=SERVICE_ID, client_secret="wrong")
    async with open_delegation(EntraOptions(**options), clock) as delegation:
        with pytest.raises(ToolFailed, match="invalid_client"):
            await delegation.token_for(ALICE, authority.token("alice"), MAIL)


async def test_no_scopes_is_a_mistake(delegation: Delegation, authority: LocalAuthority) -> None:
    """Asking for nothing fails the tool rather than getting whatever there is."""
    with pytest.raises(ToolFailed, match="scopes"):
        await delegation.token_for(ALICE, authority.token("alice"), [])


async def test_without_a_credential_of_its_own(authority: LocalAuthority, clock: MachineClock) -> None:
    """A service without secret or certificate says that it cannot act for users."""
    async with open_delegation(EntraOptions(**authority.options()), clock) as delegation:
        assert isinstance(delegation, NoDelegation)
        with pytest.raises(ToolFailed, match="cannot act for its users"):
            await delegation.token_for(ALICE, authority.token("alice"), MAIL)


# --- certificates ------------------------------------------------------------------------------------


def certificate(folder: Path, *, password: bytes | None = None) -> tuple[Path, rsa.RSAPublicKey]:
    """A file with a private key and its certificate."""
    key = KEY.private
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tealagents")])
    begins = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, begins, begins + datetime.timedelta(3650))
    sealed = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)
    file = folder / "service.pem"
    file.write_bytes(pem + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return file, key.public_key()


@pytest.mark.parametrize("password", [None, "of the key"])
async def test_a_certificate_proves_the_service(
    authority: LocalAuthority, clock: MachineClock, tmp_path: Path, password: str | None
) -> None:
    """A service may prove itself by a certificate, its key with or without a password. covers: AUTH-5"""
    file, public = certificate(tmp_path, password=password.encode() if password else None)
    authority.client_certificate_key = public
    options = authority.options(client_id=SERVICE_ID, certificate=file, certificate_password=password)
    async with open_delegation(EntraOptions(**options), clock) as delegation:
        assert isinstance(delegation, EntraDelegation)
        token = await delegation.token_for(ALICE, authority.token("alice"), MAIL)
    assert said(token)["oid"] == ALICE.oid
    assert "client_secret" not in authority.forms[0]


@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"])
def test_an_unusable_certificate_fails_the_start(
    authority: LocalAuthority, clock: MachineClock, tmp_path: Path, content: str | None
) -> None:
    """A certificate that is not there, or without its key, fails the start and names the file."""
    file = tmp_path / "service.pem"
    if content is not None:
        file.write_text(content)
    options = authority.options(client_id=SERVICE_ID, certificate=file)
    with pytest.raises(AuthConfigError, match=r"service\.pem"):
        open_delegation(EntraOptions(**options), clock)
