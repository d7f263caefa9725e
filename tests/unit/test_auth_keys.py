"""Signing keys: read seldom, never waited for without need, and kept through an outage."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from auth_setup import ALICE, KEY, entra
from hostile_tokens import b64

from tealagents.auth.jwks import KeysUnreadable, PublishedKeys, _as_safe_as, read_key_set
from tealagents.domain.errors import AuthUnavailable, Unauthenticated
from tealagents.domain.ports import Authenticator
from tealagents.outbound.reading import BoundedClient
from tealagents.testing.authority import AuthorityKey, LocalAuthority, Mode
from tealagents.testing.clock import FakeClock
from tealagents.testing.waits import eventually

DAY = 24 * 3600


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


async def refused(service: Authenticator, token: str) -> bool:
    """Whether the token is refused for a signature that no known key made."""
    try:
        await service.authenticate(token)
    except Unauthenticated:
        return True
    return False


async def pass_time(clock: FakeClock, seconds: float) -> None:
    """Moves the clock once the refresher, the only one who sleeps by it, has fallen asleep."""
    await eventually(lambda: clock.sleepers == 1)
    clock.advance(seconds)
    await asyncio.sleep(0)


# --- unknown key ids ---------------------------------------------------------------------------------


async def test_a_flood_of_key_ids_costs_one_reading(
    service: Authenticator, authority: LocalAuthority, clock: FakeClock
) -> None:
    """10,000 tokens with invented key ids lead to one reading of keys in five minutes."""
    await service.authenticate(authority.token())
    assert authority.hits["keys"] == 1
    stranger = AuthorityKey.generate()
    claims = authority.claims("mallory")
    _, body, signature = authority.sign(claims, key=stranger).split(".")
    for _ in range(100):
        flood = (f"{invented_header()}.{body}.{signature}" for _ in range(100))
        assert all(await asyncio.gather(*(refused(service, token) for token in flood)))
    assert authority.hits["keys"] == 2
    clock.advance(299)
    assert await refused(service, f"{invented_header()}.{body}.{signature}")
    assert authority.hits["keys"] == 2
    clock.advance(1)
    assert await refused(service, f"{invented_header()}.{body}.{signature}")
    assert authority.hits["keys"] == 3
    assert (await service.authenticate(authority.token())).user == ALICE


def invented_header() -> str:
    return b64(f'{{"alg":"RS256","typ":"JWT","kid":"{secrets.token_hex(8)}"}}'.encode())


async def test_a_new_key_is_taken_after_one_reading(
    service: Authenticator, authority: LocalAuthority
) -> None:
    """The first token signed by a new key is taken, at the price of one reading, the next ones for free."""
    await service.authenticate(authority.token())
    authority.rotate()
    assert (await service.authenticate(authority.token())).user == ALICE
    assert (await service.authenticate(authority.token())).user == ALICE
    assert authority.hits["keys"] == 2


async def test_the_first_reading_is_not_counted(service: Authenticator, authority: LocalAuthority) -> None:
    """A first token under an unknown key reads keys once; a rotation right after it is noticed still."""
    assert await refused(service, authority.sign(authority.claims(), key=AuthorityKey.generate()))
    assert authority.hits["keys"] == 1
    authority.rotate()
    assert (await service.authenticate(authority.token())).user == ALICE
    assert authority.hits["keys"] == 2


async def test_an_unknown_key_waits_with_others_for_one_reading(
    service: Authenticator, authority: LocalAuthority
) -> None:
    """Many first tokens of a new key at once are all taken after one reading."""
    await service.authenticate(authority.token())
    authority.rotate()
    tokens = [authority.token(f"user {number}") for number in range(50)]
    assert len(await asyncio.gather(*map(service.authenticate, tokens))) == 50
    assert authority.hits["keys"] == 2


async def test_a_caller_who_leaves_does_not_end_the_reading(
    service: Authenticator, authority: LocalAuthority
) -> None:
    """The caller who started a reading of keys may leave; another who waits for it gets its result."""
    authority.behave("slow")
    first = asyncio.create_task(service.authenticate(authority.token("bob")))
    await eventually(lambda: authority.hits["metadata"] == 1)
    second = asyncio.create_task(service.authenticate(authority.token("alice")))
    await asyncio.sleep(0)
    first.cancel()
    authority.behave("ok")
    assert (await second).user == ALICE
    assert authority.hits["metadata"] == 1


# --- outages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("outage", ["down", "failing", "garbage", "empty", "redirecting"])
async def test_no_valid_token_is_refused_in_an_outage(
    service: Authenticator, authority: LocalAuthority, clock: FakeClock, outage: Mode
) -> None:
    """For three days of a dead or senseless authority every valid token is taken."""
    await service.authenticate(authority.token())
    authority.behave(outage)
    for _ in range(18):
        await pass_time(clock, 4 * 3600)
        assert (await service.authenticate(authority.token())).user == ALICE
    authority.behave("ok")
    authority.rotate(retire=True)
    assert (await service.authenticate(authority.token())).user == ALICE


async def test_keys_are_read_again_every_day(
    service: Authenticator, authority: LocalAuthority, clock: FakeClock
) -> None:
    """After 24 hours keys are read again in the background, whether tokens come or not."""
    await service.authenticate(authority.token())
    old = authority.token(lifetime=40 * 3600)
    authority.rotate(retire=True)
    await pass_time(clock, DAY - 1)
    assert (await service.authenticate(old)).user == ALICE
    await pass_time(clock, 1)
    await eventually(lambda: clock.sleepers == 1)
    assert authority.hits["keys"] == 2
    assert await refused(service, old)
    await pass_time(clock, DAY)
    await eventually(lambda: authority.hits["keys"] == 3)


async def test_a_failed_refresh_is_tried_again_after_five_minutes(
    service: Authenticator, authority: LocalAuthority, clock: FakeClock
) -> None:
    """While refreshing fails it is tried every five minutes, not more often."""
    await service.authenticate(authority.token())
    authority.behave("failing")
    await pass_time(clock, DAY)
    await pass_time(clock, 299)
    assert (clock.sleepers, authority.hits["metadata"]) == (1, 2)
    await pass_time(clock, 1)
    await eventually(lambda: clock.sleepers == 1)
    assert authority.hits["metadata"] == 3


async def test_keys_are_refreshed_after_any_failure(authority: LocalAuthority, clock: FakeClock) -> None:
    """Also after one that no one foresaw."""
    url = f"{authority.url}/x/v2.0/.well-known/openid-configuration"
    failures: list[Exception] = []

    async def fail(_: httpx2.Request) -> None:
        if failures:
            raise failures.pop()

    async with BoundedClient(url, seconds=5, event_hooks={"request": [fail]}) as client:
        published = PublishedKeys(client, url, clock)
        first = await published.key_set(KEY.kid)
        failures.append(OverflowError("a number of the metadata is too large"))
        await pass_time(clock, DAY)
        await eventually(lambda: clock.sleepers == 1)
        assert (failures, published.newest) == ([], first)
        await pass_time(clock, 300)
        await eventually(lambda: published.newest is not first)
        await published.aclose()


@pytest.mark.parametrize(
    "outage", ["down", "failing", "garbage", "empty", "redirecting", "plain_http", "endless"]
)
async def test_without_any_keys_no_caller_can_be_identified(
    service: Authenticator, authority: LocalAuthority, clock: FakeClock, outage: Mode
) -> None:
    """No keys ever read: 503 with a time to come again, at which it works once the authority is back."""
    authority.behave(outage)
    with pytest.raises(AuthUnavailable) as unavailable:
        await service.authenticate(authority.token())
    assert unavailable.value.retry_after is not None
    asked = authority.hits["metadata"]
    authority.behave("ok")
    with pytest.raises(AuthUnavailable):
        await service.authenticate(authority.token())
    assert authority.hits["metadata"] == asked
    clock.advance(unavailable.value.retry_after)
    assert (await service.authenticate(authority.token())).user == ALICE


async def test_another_issuers_metadata_lets_no_one_in(
    service: Authenticator, authority: LocalAuthority
) -> None:
    """Where metadata names another issuer, this authority's tokens are refused."""
    authority.behave("impostor")
    assert await refused(service, authority.token())


async def test_another_issuers_metadata_is_given_up_with_the_next_reading(
    service: Authenticator, authority: LocalAuthority, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the authority is itself again, its tokens are taken within five minutes. The log names the issuer
    that was read; no token's text is in it."""
    authority.behave("impostor")
    with caplog.at_level("INFO", "tealagents.auth"):
        for _ in range(2):
            assert await refused(service, authority.token())
        assert "whose issuer is 'https://login.example.net/impostor/v2.0'" in caplog.text
        authority.behave("ok")
        assert await refused(service, authority.token(iss="https://forged.example"))
        assert authority.hits["metadata"] == 2
        clock.advance(301)
        assert (await service.authenticate(authority.token())).user == ALICE
    assert authority.hits["metadata"] == 3
    assert "forged" not in caplog.text


async def test_unknown_issuers_and_key_ids_together_cost_one_reading(
    service: Authenticator, authority: LocalAuthority, clock: FakeClock
) -> None:
    """In five minutes, whichever comes first."""
    await service.authenticate(authority.token())
    strange = authority.token(iss="https://forged.example")
    stranger = authority.sign(authority.claims(), key=AuthorityKey.generate())
    for readings, tokens in enumerate(([strange, stranger], [stranger, strange]), start=2):
        for token in tokens * 2:
            assert await refused(service, token)
            assert authority.hits["metadata"] == readings
        clock.advance(300)
    assert (await service.authenticate(authority.token())).user == ALICE
    assert authority.hits["metadata"] == 3


async def test_a_hanging_authority_does_not_stall_the_loop(
    service: Authenticator, authority: LocalAuthority
) -> None:
    """While an authority hangs, the event loop turns, and tokens of known keys are taken at once."""
    await service.authenticate(authority.token())
    authority.behave("hanging")
    stranger = authority.sign(authority.claims(), key=AuthorityKey.generate())
    waiting = [asyncio.create_task(refused(service, stranger)) for _ in range(20)]
    longest = 0.0
    for _ in range(50):
        began = time.thread_time()
        await asyncio.sleep(0.001)
        assert (await service.authenticate(authority.token())).user == ALICE
        longest = max(longest, time.thread_time() - began)
    # a loop that waited for the authority, which answers no one before the test says so, would have stood
    # still until its patience was over, and have turned the stranger away
    assert not any(task.done() for task in waiting)
    # 50 ms is what is promised, of this thread's own time: what else the machine does is not the loop's
    assert longest < 0.5
    authority.behave("ok")
    assert all(await asyncio.gather(*waiting))


# --- one reading -------------------------------------------------------------------------------------


@pytest.fixture
async def client() -> AsyncIterator[BoundedClient]:
    async with BoundedClient("http://localhost", seconds=5) as opened:
        yield opened


@pytest.mark.parametrize(
    ("metadata", "keys", "read"),
    [
        ("https://login.example", "https://keys.example/keys", True),
        ("https://login.example", "http://login.example/keys", False),
        ("https://login.example", "http://127.0.0.1:9/keys", False),
        ("http://127.0.0.1:9", "http://127.0.0.1:9/keys", True),
        ("http://127.0.0.1:9", "http://keys.example/keys", False),
        ("https://login.example", "https://login.example:65536/keys", False),
        ("http://127.0.0.1:9", "http://127.0.0.1:99999/keys", False),
        ("https://login.example", "ftp://login.example/keys", False),
        ("https://login.example", "http://[::", False),
    ],
)
def test_keys_are_read_over_https_or_where_all_is_on_this_machine(
    metadata: str, keys: str, read: bool
) -> None:
    """Who could change them on the way could sign any token."""
    assert _as_safe_as(f"{metadata}/.well-known/openid-configuration", keys) is read


async def test_a_reading_takes_bounded_time(authority: LocalAuthority, client: BoundedClient) -> None:
    """An authority that never answers is given up."""
    authority.behave("hanging")
    with pytest.raises(KeysUnreadable, match="seconds"):
        await read_key_set(client, f"{authority.url}/x/.well-known/openid-configuration", seconds=0.05)


@pytest.mark.parametrize(
    "jwk",
    [
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "RSA", "use": "enc"},
        {"kty": "RSA", "alg": "RS512"},
        {"kty": "RSA", "n": "AQAB"},
        {"kty": "RSA", "n": 5, "e": 3},
        {"kty": "RSA", "n": "!!", "e": "AQAB"},
        {"kty": "RSA", "issuer": 5},
        "a text",
        None,
    ],
)
async def test_other_keys_may_stand_beside_signing_keys(
    authority: LocalAuthority, client: BoundedClient, jwk: object
) -> None:
    """Keys that cannot check an RS256 signature are passed over; the others are read."""

    class Strange(AuthorityKey):
        def jwk(self, issuer: str | None) -> dict[str, object]:
            good = super().jwk(issuer)
            return {**good, **jwk, "kid": "strange"} if isinstance(jwk, dict) else jwk  # type: ignore[return-value]

    authority.keys.insert(0, Strange("strange", authority.signing_key.private))
    found = await read_key_set(client, f"{authority.url}/x/v2.0/.well-known/openid-configuration")
    assert set(found.keys) == {authority.signing_key.kid}


async def test_one_key_id_for_two_issuers(authority: LocalAuthority, client: BoundedClient) -> None:
    """Entra may list a key id for several issuers: all are kept."""
    key = authority.signing_key
    authority.keys.append(AuthorityKey(key.kid, key.private, issuer="https://login.example/x/v2.0"))
    found = await read_key_set(client, f"{authority.url}/common/v2.0/.well-known/openid-configuration")
    assert [published.issuer for published in found.keys[key.kid]] == [
        f"{authority.url}/{{tenantid}}/v2.0",
        "https://login.example/x/v2.0",
    ]
