"""Every hostile token is refused, with the right refusal and nothing said of what was in it."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from auth_setup import entra
from hostile_tokens import HOSTILE, Forge, Hostile

from tealagents.domain.errors import InsufficientScope, Refusal, Unauthenticated
from tealagents.domain.ports import Authenticator
from tealagents.testing.authority import LocalAuthority
from tealagents.testing.clock import FakeClock

# One authenticator for the whole table: making its HTTP client costs more than refusing ten tokens.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="module")
def forge(clock: FakeClock) -> Iterator[Forge]:
    with LocalAuthority(clock=clock) as authority:
        yield Forge(authority)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(forge: Forge, clock: FakeClock) -> AsyncIterator[Authenticator]:
    roles = {"approver_role": "Approver", "auditor_role": "Auditor"}
    async with entra(forge.authority, clock, **roles) as opened:
        yield opened


async def test_the_forge_can_make_a_good_token(forge: Forge, service: Authenticator) -> None:
    """Without a flaw the forge's tokens are taken, so each entry is refused for what its name says."""
    assert (await service.authenticate(forge.saying())).token
    assert (await service.authenticate(forge.headed())).token


async def test_the_table_is_large_enough() -> None:
    """There are at least 56 hostile tokens of six families, and each is named once. covers: AUTH-2"""
    assert len({str(hostile) for hostile in HOSTILE}) == len(HOSTILE) >= 56
    families = {hostile.family for hostile in HOSTILE}
    assert families >= {"shape", "crypto", "time", "issuer and tenant", "audience and type", "identity"}


@pytest.mark.parametrize("hostile", HOSTILE, ids=str)
async def test_a_hostile_token_is_refused(hostile: Hostile, forge: Forge, service: Authenticator) -> None:
    """No hostile token is taken, also when it comes again, and no refusal quotes it. covers: AUTH-2"""
    token = hostile.make(forge)
    refusals = []
    for _ in range(2):
        with pytest.raises(Refusal) as refused:
            await service.authenticate(token)
        refusals.append(refused.value)
    expected = InsufficientScope if hostile.status == 403 else Unauthenticated
    assert {type(refusal) for refusal in refusals} == {expected}
    for refusal in refusals:
        assert not any(len(part) > 3 and part in refusal.detail for part in token.split("."))
        assert refusal.__cause__ is None
        assert "mallory" not in refusal.detail


async def test_no_hostile_token_uses_up_the_keys(forge: Forge, service: Authenticator) -> None:
    """All hostile tokens together cost one reading of keys, and a good one is taken after them."""
    await service.authenticate(forge.saying())
    before = forge.authority.hits["keys"]
    for hostile in HOSTILE:
        with pytest.raises(Refusal):
            await service.authenticate(hostile.make(forge))
    # One for version 2.0, one for 1.0, which this service had not read before.
    assert forge.authority.hits["keys"] - before <= 2
    await service.authenticate(forge.saying())
