"""Good tokens are taken, each by the rules of its version, and exactly as long as they hold."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from auth_setup import ALICE, KEY, entra

from tealagents.domain.errors import InsufficientScope, Unauthenticated
from tealagents.domain.models import Caller, User
from tealagents.domain.ports import Authenticator
from tealagents.testing.authority import (
    APP_ID_URI,
    OTHER_TENANT,
    SERVICE_ID,
    TENANT,
    USER_CLIENT,
    LocalAuthority,
    object_id,
)
from tealagents.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def authority(clock: FakeClock) -> Iterator[LocalAuthority]:
    with LocalAuthority(clock=clock, signing_key=KEY) as running:
        yield running


@pytest.fixture
async def service(authority: LocalAuthority, clock: FakeClock) -> AsyncIterator[Authenticator]:
    async with entra(authority, clock) as opened:
        yield opened


# --- who calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ver", ["1.0", "2.0"])
async def test_a_users_token_names_the_user(
    service: Authenticator, authority: LocalAuthority, ver: str
) -> None:
    """The caller of a v1 or v2 token is its tenant and object id, without any role. covers: AUTH-2"""
    token = authority.token("alice", ver=ver)
    assert await service.authenticate(token) == Caller(ALICE, token=token)


async def test_names_and_addresses_do_not_matter(service: Authenticator, authority: LocalAuthority) -> None:
    """Two tokens with one oid are one user, whatever name, address or subject they carry. covers: AUTH-2"""
    renamed = {"name": "Bob", "preferred_username": "bob@contoso.example", "sub": "another", "email": "b@x"}
    first = await service.authenticate(authority.token("alice"))
    second = await service.authenticate(authority.token("alice", **renamed))
    assert first.user == second.user


async def test_a_caller_does_not_show_its_token(service: Authenticator, authority: LocalAuthority) -> None:
    """Printing a caller shows who it is and not the token."""
    token = authority.token("alice")
    assert token not in repr(await service.authenticate(token))


async def test_both_audiences_are_this_service(service: Authenticator, authority: LocalAuthority) -> None:
    """The client id and the App ID URI both stand for the service, in either version."""
    for ver in ("1.0", "2.0"):
        for audience in (SERVICE_ID, APP_ID_URI):
            assert (await service.authenticate(authority.token(ver=ver, aud=audience))).user == ALICE


async def test_versions_have_their_own_metadata(authority: LocalAuthority, service: Authenticator) -> None:
    """Each version's metadata is read once, when its first token comes, and not for the other's tokens."""
    await service.authenticate(authority.token(ver="2.0"))
    await service.authenticate(authority.token(ver="2.0"))
    assert authority.hits["metadata"] == 1
    await service.authenticate(authority.token(ver="1.0"))
    assert authority.hits["metadata"] == 2


# --- time --------------------------------------------------------------------------------------------


async def test_a_token_holds_until_its_end_and_the_leeway(
    service: Authenticator, authority: LocalAuthority, clock: FakeClock
) -> None:
    """A token is good until 60 seconds after its end, to the second, also when it has been seen before."""
    token, unseen = authority.token(lifetime=600), authority.token(lifetime=600)
    await service.authenticate(token)
    clock.advance(659)
    await service.authenticate(token)
    await service.authenticate(unseen)
    clock.advance(1)
    for late in (token, unseen):
        with pytest.raises(Unauthenticated, match="expired"):
            await service.authenticate(late)


async def test_a_token_is_good_a_leeway_before_its_beginning(
    service: Authenticator, authority: LocalAuthority, clock: FakeClock
) -> None:
    """A token that begins in 60 seconds is good, one that begins later is not yet."""
    begins = int(clock.now().timestamp()) + 61
    token = authority.token(nbf=begins)
    with pytest.raises(Unauthenticated, match="not valid yet"):
        await service.authenticate(token)
    clock.advance(1)
    assert (await service.authenticate(token)).user == ALICE


async def test_the_leeway_can_be_set(authority: LocalAuthority, clock: FakeClock) -> None:
    """Without leeway a token ends when it says so."""
    async with entra(authority, clock, leeway=0) as service:
        token = authority.token(lifetime=600)
        clock.advance(599)
        await service.authenticate(token)
        clock.advance(1)
        with pytest.raises(Unauthenticated):
            await service.authenticate(token)


async def test_the_longest_life_is_48_hours(service: Authenticator, authority: LocalAuthority) -> None:
    """A token may live 48 hours, and not a second longer."""
    await service.authenticate(authority.token(lifetime=48 * 3600))
    with pytest.raises(Unauthenticated, match="lifetime"):
        await service.authenticate(authority.token(lifetime=48 * 3600 + 1))


# --- permissions -------------------------------------------------------------------------------------


async def test_all_scopes_are_needed(authority: LocalAuthority, clock: FakeClock) -> None:
    """A token needs every configured scope; what is missing is named, for the challenge. covers: AUTH-2"""
    async with entra(authority, clock, scopes="Ask Tell") as service:
        await service.authenticate(authority.token(scopes=["More", "Tell", "Ask"]))
        with pytest.raises(InsufficientScope) as refused:
            await service.authenticate(authority.token(scopes=["Ask"]))
    assert refused.value.required == "Ask Tell"
    assert refused.value.scope == f"{APP_ID_URI}/Ask {APP_ID_URI}/Tell"


async def test_a_forged_token_is_not_answered_with_scopes(
    service: Authenticator, authority: LocalAuthority
) -> None:
    """A token that lacks the scope and is forged besides is invalid, not insufficient."""
    token = authority.token(scopes=["Nothing"])
    with pytest.raises(Unauthenticated):
        await service.authenticate(token[:-8] + "AAAAAAAA")


async def test_roles_make_approvers_and_auditors(authority: LocalAuthority, clock: FakeClock) -> None:
    """A role counts where it is configured, as a whole word among the token's roles."""
    async with entra(authority, clock, approver_role="Approver", auditor_role="Auditor") as service:
        approver = await service.authenticate(authority.token(roles=["Reader", "Approver"]))
        auditor = await service.authenticate(authority.token(roles=["Auditor"]))
        other = await service.authenticate(authority.token(roles=["Approver2", "auditor"]))
    assert (approver.approver, approver.auditor) == (True, False)
    assert (auditor.approver, auditor.auditor) == (False, True)
    assert (other.approver, other.auditor) == (False, False)


async def test_roles_are_off_by_default(service: Authenticator, authority: LocalAuthority) -> None:
    """Without configured roles no one is an approver or an auditor."""
    caller = await service.authenticate(authority.token(roles=["Approver", "Auditor", "None", ""]))
    assert (caller.approver, caller.auditor) == (False, False)


async def test_only_listed_clients_may_call(authority: LocalAuthority, clock: FakeClock) -> None:
    """With a list of clients, a token of another client is refused: by azp in v2, by appid in v1."""
    async with entra(authority, clock, allowed_clients=[USER_CLIENT]) as service:
        for ver, claim in (("2.0", "azp"), ("1.0", "appid")):
            await service.authenticate(authority.token(ver=ver))
            for client in ("c11e7700-0000-4000-8000-000000000002", None, USER_CLIENT.upper()):
                with pytest.raises(Unauthenticated, match="application"):
                    await service.authenticate(authority.sign(authority.claims(ver=ver) | {claim: client}))
        with pytest.raises(Unauthenticated):
            await service.authenticate(authority.token(ver="2.0", azp=None, appid=USER_CLIENT))


# --- applications ------------------------------------------------------------------------------------


async def test_an_application_with_the_roles_may_call(authority: LocalAuthority, clock: FakeClock) -> None:
    """Where application tokens are allowed, one with all roles is taken; another lacks a role."""
    options = {"allow_app_tokens": True, "app_roles": "Run LoopState"}
    async with entra(authority, clock, **options) as service:
        caller = await service.authenticate(authority.app_token("a daemon", roles=["Run", "LoopState"]))
        assert caller.user == User(TENANT, object_id("a daemon"))
        unsaid = authority.app_token("a daemon", roles=["Run", "LoopState"], idtyp=None)
        assert (await service.authenticate(unsaid)).user == caller.user
        with pytest.raises(InsufficientScope) as refused:
            await service.authenticate(authority.app_token(roles=["Run"]))
        assert refused.value.required == "Run LoopState"
        assert (await service.authenticate(authority.token("alice"))).user == ALICE


async def test_an_application_is_no_human_in_the_loop(authority: LocalAuthority, clock: FakeClock) -> None:
    """An application with the approver's role cannot approve; it may audit."""
    options = {"allow_app_tokens": True, "app_roles": "Run", "approver_role": "OK", "auditor_role": "Look"}
    async with entra(authority, clock, **options) as service:
        caller = await service.authenticate(authority.app_token(roles=["Run", "OK", "Look"]))
    assert (caller.approver, caller.auditor) == (False, True)


async def test_an_id_token_is_never_an_applications(authority: LocalAuthority, clock: FakeClock) -> None:
    """Where application tokens are allowed, an ID token with the roles is still refused."""
    async with entra(authority, clock, allow_app_tokens=True, app_roles="Run") as service:
        for ver in ("1.0", "2.0"):
            for nonce in ("n", None):
                with pytest.raises(Unauthenticated):
                    await service.authenticate(authority.id_token(ver=ver, roles=["Run"], nonce=nonce))


# --- tenants -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tenant", ["organizations", "common"])
@pytest.mark.parametrize("ver", ["1.0", "2.0"])
async def test_many_tenants_by_one_authority(
    authority: LocalAuthority, clock: FakeClock, tenant: str, ver: str
) -> None:
    """Under a multi-tenant authority the listed tenants may call, each by its own issuer."""
    third = "77777777-8888-4777-8666-555555555555"
    async with entra(authority, clock, tenant_id=tenant, allowed_tenants=[TENANT, OTHER_TENANT]) as service:
        mine = await service.authenticate(authority.token("alice", ver=ver))
        theirs = await service.authenticate(authority.token("alice", ver=ver, tid=OTHER_TENANT))
        assert (mine.user.tid, theirs.user.tid) == (TENANT, OTHER_TENANT)
        assert mine.user.oid == theirs.user.oid
        assert mine.user.key != theirs.user.key
        for tid, issuer in ((third, third), (TENANT, OTHER_TENANT), (TENANT, "{tenantid}")):
            with pytest.raises(Unauthenticated):
                await service.authenticate(
                    authority.token(ver=ver, tid=tid, iss=authority.issuer(issuer, ver))
                )
    assert authority.hits["metadata"] == 1


async def test_a_key_of_one_tenant_signs_for_no_other(authority: LocalAuthority, clock: FakeClock) -> None:
    """A published key that names its own issuer signs tokens of that issuer only."""
    authority.rotate(issuer=authority.issuer(OTHER_TENANT))
    async with entra(authority, clock, tenant_id="common", allowed_tenants=[TENANT, OTHER_TENANT]) as service:
        assert (await service.authenticate(authority.token(tid=OTHER_TENANT))).user.tid == OTHER_TENANT
        with pytest.raises(Unauthenticated, match="signature"):
            await service.authenticate(authority.token(tid=TENANT))


async def test_a_tenant_by_its_domain(authority: LocalAuthority, clock: FakeClock) -> None:
    """A tenant may be named by a domain: its metadata says by the issuer which tenant that is."""
    async with entra(authority, clock, tenant_id="contoso.example") as service:
        assert (await service.authenticate(authority.token())).user == ALICE
        for flaw in ({"tid": OTHER_TENANT}, {"tid": OTHER_TENANT, "iss": authority.issuer(TENANT)}):
            with pytest.raises(Unauthenticated):
                await service.authenticate(authority.token(**flaw))


async def test_a_domain_admits_no_tenant_beside_its_own(authority: LocalAuthority, clock: FakeClock) -> None:
    """Even if the list of tenants has others."""
    listed = f"{TENANT} {OTHER_TENANT}"
    async with entra(authority, clock, tenant_id="contoso.example", allowed_tenants=listed) as service:
        assert (await service.authenticate(authority.token())).user == ALICE
        with pytest.raises(Unauthenticated):
            await service.authenticate(authority.token(tid=OTHER_TENANT))


async def test_tenants_beside_the_home_tenant(authority: LocalAuthority, clock: FakeClock) -> None:
    """Tenants listed beside the home tenant are checked by their own metadata, and others not at all."""
    async with entra(authority, clock, allowed_tenants=f"{TENANT} {OTHER_TENANT}") as service:
        assert (await service.authenticate(authority.token())).user.tid == TENANT
        assert (await service.authenticate(authority.token(tid=OTHER_TENANT))).user.tid == OTHER_TENANT
        assert authority.hits["metadata"] == 2
        with pytest.raises(Unauthenticated):
            await service.authenticate(authority.token(tid=OTHER_TENANT, iss=authority.issuer(TENANT)))


async def test_the_list_of_tenants_implies_nothing(authority: LocalAuthority, clock: FakeClock) -> None:
    """A home tenant that the list of tenants leaves out may not call."""
    async with entra(authority, clock, allowed_tenants=OTHER_TENANT) as service:
        with pytest.raises(Unauthenticated, match="tenant"):
            await service.authenticate(authority.token())


# --- what is remembered ------------------------------------------------------------------------------


async def test_a_remembered_token_ends_with_its_key(
    service: Authenticator, authority: LocalAuthority, clock: FakeClock
) -> None:
    """A token seen before is refused once its key is no longer published."""
    token = authority.token(lifetime=30 * 3600)
    await service.authenticate(token)
    authority.rotate(retire=True)
    await service.authenticate(authority.token())  # an unknown key: the keys are read again
    with pytest.raises(Unauthenticated, match="signature"):
        await service.authenticate(token)


async def test_a_remembered_token_is_that_very_token(
    service: Authenticator, authority: LocalAuthority
) -> None:
    """A token that differs from a remembered one in a single character is checked anew, and refused."""
    token = authority.token()
    await service.authenticate(token)
    for place in range(0, len(token), 97):
        other = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with pytest.raises(Unauthenticated):
            await service.authenticate(other)


async def test_many_tokens_at_once(service: Authenticator, authority: LocalAuthority) -> None:
    """A hundred callers at once, before any key is known, are identified after one fetch of the keys."""
    users = [f"user {number}" for number in range(100)]
    callers = await asyncio.gather(*(service.authenticate(authority.token(user)) for user in users))
    assert [caller.user.oid for caller in callers] == [object_id(user) for user in users]
    assert authority.hits == {"metadata": 1, "keys": 1}


# --- what is reported --------------------------------------------------------------------------------


async def test_the_resource_document(service: Authenticator, authority: LocalAuthority) -> None:
    """The RFC 9728 document names the resource, its authority, and the scope as one asks Entra for it."""
    assert service.resource_metadata("https://agents.example/Wiki/0.1") == {
        "resource": "https://agents.example/Wiki/0.1",
        "authorization_servers": [f"{authority.url}/{TENANT}/v2.0"],
        "scopes_supported": [f"{APP_ID_URI}/access_as_user"],
        "bearer_methods_supported": ["header"],
    }


@pytest.mark.parametrize("home", [TENANT, "organizations", "common"])
async def test_the_resource_document_names_each_tenants_issuer(
    authority: LocalAuthority, clock: FakeClock, home: str
) -> None:
    """The home tenant's first; each is what its metadata says of itself, which MCP clients compare."""
    tenants = [OTHER_TENANT, TENANT] if home == TENANT else [TENANT, OTHER_TENANT]
    async with entra(authority, clock, tenant_id=home, allowed_tenants=tenants) as service:
        document = service.resource_metadata("https://agents.example/Wiki/0.1")
    assert document is not None
    issuers = document["authorization_servers"]
    assert issuers == [authority.issuer(TENANT), authority.issuer(OTHER_TENANT)]
    async with httpx.AsyncClient(trust_env=False) as client:
        for issuer in issuers:
            published = await client.get(f"{issuer}/.well-known/openid-configuration")
            assert published.json()["issuer"] == issuer
