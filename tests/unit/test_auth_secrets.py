"""No token and no secret is ever written to a log, whatever happens, at any level."""

import asyncio
import gc
import logging
from collections.abc import Iterator

import pytest
from auth_setup import ALICE, KEY, MachineClock, entra
from hostile_tokens import HOSTILE, Forge

from tealagents.auth.delegation import open_delegation
from tealagents.auth.options import EntraOptions
from tealagents.domain.errors import AuthUnavailable, NeedsAuthorization, Refusal, ToolFailed
from tealagents.testing.authority import SERVICE_ID, LocalAuthority, Mode
from tealagents.testing.waits import eventually

SECRET = "canary-client-secret"
OUTAGES: tuple[Mode, ...] = ("failing", "garbage", "down", "ok")


@pytest.fixture
def clock() -> MachineClock:
    return MachineClock()


@pytest.fixture
def authority(clock: MachineClock) -> Iterator[LocalAuthority]:
    with LocalAuthority(clock=clock, signing_key=KEY, client_secret=SECRET) as running:
        yield running


@pytest.fixture
def everything(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """All that any library logs, at every level."""
    for name in (None, "msal", "httpx", "httpcore"):  # other tests may have configured some before
        caplog.set_level(logging.DEBUG, name)
    return caplog


def leaked(log: pytest.LogCaptureFixture, *secrets: str) -> list[str]:
    """WaitQueues of the log, tracebacks included, that hold a secret or one of a token's segments."""
    parts = {part for secret in secrets for part in (secret, *secret.split(".")) if len(part) > 8}
    return [line for line in log.text.splitlines() if any(part in line for part in parts)]


async def test_a_planted_leak_is_found(everything: pytest.LogCaptureFixture) -> None:
    """The search for leaks finds one: a token's claims within a line at DEBUG."""
    token = "eyJhbGciOi.eyJjYW5hcnkiOjF9.c2lnbmF0dXJl"
    logging.getLogger("some.library").debug("received %s", {"claims": token.split(".")[1]})
    assert len(leaked(everything, token)) == 1


async def test_checking_tokens_logs_none(
    authority: LocalAuthority, clock: MachineClock, everything: pytest.LogCaptureFixture
) -> None:
    """Good and hostile tokens, seen and unseen keys, outages: no token in the log."""
    forge = Forge(authority)
    tokens = [authority.token("alice"), *(hostile.make(forge) for hostile in HOSTILE if hostile.sendable)]
    async with entra(authority, clock) as service:
        for outage in OUTAGES:
            authority.behave(outage)
            for token in tokens:
                try:
                    await service.authenticate(token)
                except (Refusal, AuthUnavailable):
                    continue
            clock.advance(300)
    assert everything.text
    assert not leaked(everything, *tokens)


async def test_acting_for_a_user_logs_nothing_secret(
    authority: LocalAuthority, clock: MachineClock, everything: pytest.LogCaptureFixture
) -> None:
    """Neither the user's token, nor the one for downstream, nor the service's secret is logged."""
    assertion = authority.token("alice")
    given = ["a refresh token that nobody should keep"]
    options = EntraOptions(**authority.options(client_id=SERVICE_ID, client_secret=SECRET))
    async with open_delegation(options, clock) as delegation:
        given.append(await delegation.token_for(ALICE, assertion, ["https://graph.example/Read"]))
        authority.ask_for_consent()
        for number, outage in enumerate(OUTAGES):
            authority.behave(outage)
            with pytest.raises((ToolFailed, NeedsAuthorization)):
                await delegation.token_for(ALICE, assertion, [f"https://graph.example/Read{number}"])
    assert "msal" in everything.text
    assert not leaked(everything, assertion, SECRET, *given)


async def test_a_failure_no_one_waits_for_is_not_reported_with_its_token(
    authority: LocalAuthority, clock: MachineClock, everything: pytest.LogCaptureFixture
) -> None:
    """A caller who leaves while the authority hangs leaves no token in asyncio's complaints."""
    assertion = authority.token("alice")
    options = EntraOptions(**authority.options(client_id=SERVICE_ID, client_secret=SECRET))
    async with open_delegation(options, clock) as delegation:
        authority.behave("hanging")
        waiting = asyncio.create_task(delegation.token_for(ALICE, assertion, ["https://graph.example/Read"]))
        await eventually(lambda: authority.hits.total())
        asking = [task for task in asyncio.all_tasks() if task.get_name() == "on behalf of"]
        waiting.cancel()
        authority.behave("failing")
        assert asking
        await asyncio.wait(asking)
    del waiting, asking
    gc.collect()
    assert not leaked(everything, assertion, SECRET)
    assert "never retrieved" not in everything.text
