"""Redis: the contract of stores, and what is this store's own."""

import asyncio
import hashlib
import logging
import math
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from msgspec.structs import replace
from redis.asyncio.connection import Connection

from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import Conflict, CorruptState, PersistenceUnavailable, Unknown
from tealagents.domain.ids import operation_id
from tealagents.domain.ports import Commit, Put, Record, Store
from tealagents.state.inventory import Inventory
from tealagents.state.records import RecordStore
from tealagents.stores import StoreConfigError, redis, redis_nodes
from tealagents.stores import plain_store as store_of
from tealagents.stores.base import AccessDenied
from tealagents.stores.redis_nodes import Nodes
from tealagents.testing.clock import overdue
from tealagents.testing.faults import FaultProxy, Faults
from tealagents.testing.pytest_servers import running
from tealagents.testing.servers import RedisServer, free_port
from tealagents.testing.signing_in import self_signed
from tealagents.testing.store_links import LinkContract, until_pushed
from tealagents.testing.store_steps import OpenStore, erase_expired, found_again, lost_reply, ticks
from tealagents.testing.store_watches import MISSING, notify
from tealagents.testing.stores import StoreContract


@pytest.mark.usefixtures("patient_link")
class TestRedis(StoreContract):
    @pytest.fixture
    def open_store(self, redis_url: str) -> OpenStore:
        return lambda: store_of(redis_url)


#: seconds for an answer or a connection, which no busy machine takes: a test that needs them moves time
PATIENCE = 600
PATIENT = f"?command_timeout={PATIENCE}&connect_timeout={PATIENCE}"

#: what docs/stores.md has the operator type for a user that may do no more than it has to
PAGE = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
[RIGHTS] = re.findall(r"^ACL SETUSER agent (.+)$", PAGE, re.MULTILINE)


@pytest.mark.usefixtures("patient_link")
class TestWithTheRightsOfThePage(StoreContract):
    """As a user with the access list that the page on stores shows."""

    examples = 20

    @pytest.fixture
    def open_store(self, redis_server: RedisServer) -> OpenStore:
        url = with_the_rights_of_the_page(redis_server)
        return lambda: store_of(f"{url}?prefix=tealagents:")


def with_the_rights_of_the_page(server: RedisServer) -> str:
    """The server's URL for a user that has them."""
    assert server.ask("ACL", "SETUSER", "agent", *RIGHTS.split()) == "+OK"
    return server.url.replace("//", "//agent:PASSWORD@")


class TestTheRedisLink(LinkContract):
    @pytest.fixture
    def server(
        self, redis_server: RedisServer, redis_url: str
    ) -> Iterator[tuple[FaultProxy, OpenStore, OpenStore]]:
        with FaultProxy("127.0.0.1", redis_server.port) as proxy:
            yield proxy, lambda: store_of(proxy.url_for(redis_url)), lambda: store_of(redis_url)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """One that the test may change and kill."""
    with running(lambda: RedisServer(durable=True)) as server:
        yield server


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[Store]:
    async with store_of(server.url) as store:
        yield store


def put(key: str, value: bytes, *, expect: dict[str, str | None] | None = None) -> Commit:
    return Commit(operation=operation_id(), expect=expect or {}, put={key: Put(value)})


# --- at the start ---------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_is_refused(server: RedisServer, policy: str) -> None:
    """A server that would throw records away when its memory is full is refused, with what to do about it."""
    server.ask("CONFIG", "SET", "maxmemory-policy", policy)
    with pytest.raises(StoreConfigError, match=f"{policy}.*CONFIG SET maxmemory-policy noeviction"):
        await store_of(server.url).open()


@pytest.mark.parametrize(
    ("version", "refused"),
    [("5.0.7", True), ("6.0.16", True), ("6.2.0", False), ("10.0.1", False), ("unstable", False)],
)
async def test_a_server_that_is_too_old_is_refused(
    server: RedisServer, version: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks an option of a command, and a commit that uses it would be made in part."""

    async def info(connection: Connection) -> dict[str, str]:
        return {"redis_version": version, "maxmemory_policy": "noeviction"}

    monkeypatch.setattr(redis_nodes, "_info", info)
    if not refused:
        async with store_of(server.url):
            return
    with pytest.raises(StoreConfigError, match=f"is version {version}: use 6.2 or later"):
        await store_of(server.url).open()


@pytest.mark.parametrize(
    ("setting", "value", "warned"),
    [
        ("appendfsync", "always", ""),
        ("appendfsync", "everysec", "in the last moments can be lost"),
        ("appendonly", "no", "since its last snapshot is lost"),
    ],
)
async def test_weak_durability_is_reported(
    server: RedisServer, setting: str, value: str, warned: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that may lose what it acknowledged is used, with a warning that says what to set."""
    server.ask("CONFIG", "SET", setting, value)
    with caplog.at_level(logging.WARNING):
        async with store_of(server.url):
            pass
    assert (warned in caplog.text) if warned else not caplog.text


async def test_a_service_that_forbids_questions(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A managed service that answers neither CONFIG nor INFO is used, with a warning."""
    server.ask("ACL", "SETUSER", "ann", "on", ">pw", "~*", "+@all", "-config", "-info")
    with caplog.at_level(logging.WARNING):
        async with store_of(server.url.replace("//", "//ann:pw@")) as store:
            await store.commit("p", put("key", b"1"))
    assert "it must be noeviction" in caplog.text


@pytest.mark.usefixtures("patient_link")
async def test_the_rights_of_the_page_are_enough_to_start(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """And to check the server's settings: nothing is warned of, and a watch is woken."""
    server.ask("CONFIG", "SET", "appendfsync", "always")
    url = with_the_rights_of_the_page(server)
    with caplog.at_level(logging.WARNING):
        async with store_of(url) as store, store_of(url) as other, store.watch("p", "topic") as watch:
            async with store.watch("p", "another"):
                pass
            await other.commit("p", Commit(operation=operation_id(), put={"a": Put(b"")}, notify={"topic"}))
            assert await watch.wait(MISSING)
    assert not caplog.text
    assert server.ask("ACL", "LOG").split("\n").count("username") <= 1  # that it is no cluster


@pytest.mark.parametrize(
    ("rule", "number", "denied"),
    [
        ("-evalsha", 0, "'evalsha'"),
        ("-eval", 0, "'eval'"),
        ("-mget", 0, "'mget'"),
        ("-time", 0, "'TIME'"),
        ("-set", 0, "'SET'"),
        ("-del", 0, "'DEL'"),
        ("-zrangebylex", 0, "'ZRANGEBYLEX'"),
        ("resetkeys", 0, "keys"),
        ("-select", 1, "'select'"),
    ],
)
async def test_a_user_who_lacks_a_right_is_refused_with_what_to_grant(
    server: RedisServer, rule: str, number: int, denied: str
) -> None:
    """The server runs and its address is right: neither is to be looked at."""
    url = with_the_rights_of_the_page(server).replace("/0", f"/{number}")
    server.ask("ACL", "SETUSER", "agent", "+select", rule)

    async def use() -> None:
        async with store_of(url) as store:
            await store.commit("p", put("key", b"1"))
            assert await store.scan("p", "") == [("key", ANY)]
            assert await store.read("p", ["key"]) == [ANY]
            await store.commit("p", Commit(operation=operation_id(), delete=["key"]))

    with pytest.raises(AccessDenied, match=f"(?i){denied}") as refused:
        await use()
    said = str(refused.value)
    granted = said.split("`")[-2].split()
    about = re.compile(r"[~&+]|resetchannels")
    assert granted == [right for right in RIGHTS.split() if about.match(right)] + ["+select"] * number
    assert "is running" not in said


async def test_the_rights_of_the_page_are_accepted_where_users_begin_with_all_channels() -> None:
    """As those of Redis 6.2 do, which then takes no pattern of channels."""
    with running(lambda: RedisServer(options=["--acl-pubsub-default", "allchannels"])) as server:
        with_the_rights_of_the_page(server)


@pytest.mark.parametrize("version", ["7.0", "6.2"])
@pytest.mark.parametrize("forbidden", ["del", "zrem", "zrangebyscore"])
async def test_no_commit_is_made_in_part_for_the_want_of_a_right(
    server: RedisServer, forbidden: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service does not start without it. Redis 6.2 has no command that says so."""
    if version == "6.2":
        scripts = redis._scripts()
        text = scripts["rights"].text.replace("redis.acl_check_cmd", "redis.unknown")
        monkeypatch.setattr(redis, "_scripts", lambda: {**scripts, "rights": redis._Script(text, "")})
    async with store_of(server.url) as other:
        await other.commit("p", put("old", b"1"))
    server.ask("ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", f"-{forbidden}")
    change = Commit(operation=operation_id(), put={"new": Put(b"2")}, delete=["old"])
    with pytest.raises(AccessDenied, match=f"(?i)'{forbidden}'"):
        async with store_of(server.url.replace("//", "//ann:pw@")) as store:
            await store.commit("p", change)
    async with store_of(server.url) as other:
        assert await other.scan("p", "") == [("old", ANY)]
    assert server.ask("DBSIZE") == ":2"


@pytest.mark.parametrize("ttl", [None, 60.0])
@pytest.mark.parametrize("revoked", ["time", "getrange", "zadd", "zrem", "zrangebyscore", "set", "del"])
async def test_no_commit_is_made_in_part_when_a_right_is_revoked(
    server: RedisServer, revoked: str, ttl: float | None
) -> None:
    """While the service runs: nothing undoes what a script has written before a command is denied."""
    first = Commit(operation=operation_id(), put={"a": Put(b"1", ttl), "b": Put(b"1")})
    expect: dict[str, str | None] = {"a": first.operation}
    puts = {"a": Put(b"2", ttl), "new": Put(b"2", ttl)}
    both = Commit(operation=operation_id(), expect=expect, put=puts, delete=["b"])
    other = replace(both, put={}, delete=["a", "b"])
    async with store_of(with_the_rights_of_the_page(server)) as store:
        await store.commit("p", first)
        before = await store.scan("p", "")
        server.ask("ACL", "SETUSER", "agent", f"-{revoked}")
        for change in [both] if revoked in ("set", "zadd") else [both, other]:
            with pytest.raises(AccessDenied, match=f"(?i){revoked}"):
                await store.commit("p", change)
            assert await store.scan("p", "") == before
        server.ask("ACL", "SETUSER", "agent", f"+{revoked}")
        await store.commit("p", both)
        assert [key for key, _ in await store.scan("p", "")] == ["a", "new"]


async def test_a_right_that_redis_6_2_denies_is_named(
    server: RedisServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not name the command itself, and words the place in a script otherwise than later versions."""
    scripts = redis._scripts()
    lines = scripts["commit"].text.splitlines()
    [line] = [number for number, text in enumerate(lines, 1) if "'TIME'" in text]
    said = (
        f"ERR Error running script (call to f_{scripts['commit'].digest}): @user_script:{line}: "
        f"@user_script: {line}: The user executing the script can't run this command or subcommand"
    )
    text = f'return redis.error_reply("{said}")'
    denying = redis._Script(text, hashlib.sha1(text.encode()).hexdigest())
    changed = {**scripts, "commit": denying, "as it is": scripts["commit"]}
    monkeypatch.setattr(redis, "_scripts", lambda: changed)
    with pytest.raises(AccessDenied, match=r"subcommand: `local time = redis.call\('TIME'\)`\. With ACL SET"):
        await store.commit("p", put("key", b"1"))


async def test_a_user_whose_keys_are_only_those_that_there_are_is_not_refused(server: RedisServer) -> None:
    """The names of records and of indexes, as they are; the service needs no others."""
    keys = ("~tealagents:{*}:*", "~tealagents:{*}#index", "~tealagents:{*}#expiring")
    server.ask("ACL", "SETUSER", "ann", "on", ">pw", *keys, "&*", "+@all")
    async with store_of(server.url.replace("//", "//ann:pw@")) as store:
        await store.commit("p", put("key", b"1"))
        assert await store.scan("p", "") == [("key", ANY)]


async def test_the_rights_of_the_page_are_enough_for_another_database(server: RedisServer) -> None:
    """With the one that the page adds for it."""
    url = with_the_rights_of_the_page(server).replace("/0", "/1")
    [right] = re.findall(r"database other than 0.*?`(\+.+?)`", PAGE)
    server.ask("ACL", "SETUSER", "agent", right)
    async with store_of(url) as store:
        await store.commit("p", put("key", b"1"))


async def test_a_replica_is_refused(server: RedisServer) -> None:
    """A server that only follows another one takes no writes, and its reads would be stale."""
    following = ["--replicaof", server.host, str(server.port)]
    with (
        running(lambda: RedisServer(options=following)) as replica,
        pytest.raises(PersistenceUnavailable, match="replica"),
    ):
        await store_of(replica.url).open()


@pytest.mark.parametrize("password", ["pwd/ash", "pwd@at/x", "pwd:on"])
def test_a_password_that_breaks_the_url_is_not_shown(password: str) -> None:
    """Characters that must be written otherwise in a URL are an error that says so without quoting them."""
    with pytest.raises(StoreConfigError, match="write the characters") as refused:
        store_of(f"redis://ann:{password}@host:x/0")
    assert password[:3] not in str(refused.value)


@pytest.mark.parametrize(
    ("login", "said", "remedy"),
    [
        ("ann:hunter2@", "invalid username-password pair", "Correct the user ann or its password in TA_PERS"),
        ("bob:right@", "invalid username-password pair", "Correct the user bob or its password in TA_PERS"),
        (":hunter2@", "invalid username-password pair", "Correct the user or its password in TA_PERS"),
        ("hunter2@", "invalid username-password pair", "Correct the user or its password in TA_PERS"),
        ("", "Authentication required", "Add a user and its password to TA_PERS"),
    ],
)
async def test_a_refused_login_is_reported_with_what_to_correct(
    server: RedisServer, login: str, said: str, remedy: str
) -> None:
    """The server runs and its address is right: neither is to be looked at. No password is quoted."""
    server.ask("ACL", "SETUSER", "ann", "on", ">right", "~*", "+@all")
    async with store_of(server.url.replace("//", "//ann:right@")) as opened:
        server.ask("CONFIG", "SET", "requirepass", "other")
        await opened.read("p", ["key"])
    url = server.url.replace("//", f"//{login}")
    with pytest.raises(AccessDenied, match=f"127.0.0.1.*{said}.*{remedy}") as failed:
        await store_of(url).open()
    assert "is running" not in str(failed.value)
    assert "hunter2" not in str(failed.value) + repr(store_of(url).options)


async def test_a_password_that_a_server_does_not_have_is_reported(server: RedisServer) -> None:
    """The default user of a new server has none, and older clients' URLs name no other user."""
    with pytest.raises(AccessDenied, match=r"without any password configured.*Correct the user") as failed:
        await store_of(server.url.replace("//", "//:hunter2@")).open()
    assert "hunter2" not in str(failed.value)


async def test_a_database_that_a_server_does_not_have_is_reported(server: RedisServer) -> None:
    """The server runs: its databases are numbered from 0, by default to 15."""
    said = r"DB index is out of range\. Correct the number at the end of the URL in TA_PERSISTENCE"
    with pytest.raises(AccessDenied, match=said) as failed:
        await store_of(server.url.rpartition("/")[0] + "/99").open()
    assert "is running" not in str(failed.value)


async def test_an_unreachable_server_is_reported_without_a_password() -> None:
    with pytest.raises(PersistenceUnavailable, match=r"127\.0\.0\.1:1.* is running") as failed:
        await store_of("redis://ann:hunter2@127.0.0.1:1").open()
    assert "hunter2" not in str(failed.value)


async def test_tls(tmp_path: Path) -> None:
    """`rediss://` speaks TLS, and only to a server whose certificate is trusted."""
    port, certificate = free_port(), self_signed(tmp_path / "server.pem")
    keys = ["--tls-cert-file", str(certificate), "--tls-key-file", str(certificate)]
    options = ["--tls-port", str(port), *keys, "--tls-auth-clients", "no"]
    with running(lambda: RedisServer(options=options)):
        url = f"rediss://127.0.0.1:{port}"
        async with store_of(f"{url}?ssl_ca_certs={certificate}") as store:
            await store.commit("p", put("key", b"1" * 100_000))
            assert (await store.read("p", ["key"]))[0] is not None
        with pytest.raises(PersistenceUnavailable, match="certificate"):
            await store_of(url).open()
        with pytest.raises(PersistenceUnavailable, match="rediss:// where it speaks TLS, by redis:// where"):
            await store_of(f"redis://127.0.0.1:{port}").open()


# --- what a partition looks like ------------------------------------------------------------------


async def test_what_expires_leaves_the_index(server: RedisServer, store: Store) -> None:
    """Records that expire are gone by themselves, and their entries with a later commit of the partition."""
    expiring = {f"events/{n}": Put(b"x", 1000) for n in range(8)}
    await store.commit("p", Commit(operation=operation_id(), put={**expiring, "stays": Put(b"y")}))
    await store.commit("p", put("events/0", b"for ever now"))
    soon = {f"events/{n}": Put(b"x", 0.01) for n in range(1, 8)}
    await store.commit("p", Commit(operation=operation_id(), put=soon))  # the last one until they are gone
    await asyncio.sleep(0.05)
    assert [key for key, _ in await store.scan("p", "", limit=2)] == ["events/0", "stays"]
    assert server.ask("ZCARD", "tealagents:{p}#index") == ":9"
    await asyncio.sleep(1.1)
    await store.commit("p", put("another", b"z"))
    assert server.ask("ZCARD", "tealagents:{p}#index") == ":3"
    assert server.ask("ZCARD", "tealagents:{p}#expiring") == ":0"


async def test_what_expired_leaves_no_key(server: RedisServer, store: Store) -> None:
    """Where no later commit of the partition comes, as of a user who is erased. covers: STATE-2"""
    for part in range(6):
        expiring = {f"events/{part}{n}": Put(b"x", 0.01) for n in range(8)}
        await store.commit("p", Commit(operation=operation_id(), put=expiring))
    await asyncio.sleep(0.05)
    assert len(await erase_expired(store, "p")) == 48
    assert server.ask("DBSIZE") == ":0"


async def test_scanning_while_it_changes(store: Store) -> None:
    """A scan sees one moment: of two records that take turns, always exactly one."""
    here, there = "a", "z"
    await store.commit("p", put(here, b""))

    async def swap() -> None:
        nonlocal here, there
        for _ in range(200):
            await store.commit("p", Commit(operation=operation_id(), put={there: Put(b"")}, delete=[here]))
            here, there = there, here

    swapping = asyncio.create_task(swap())
    while not swapping.done():
        assert len(await store.scan("p", "")) == 1
    await swapping


async def test_what_is_no_record_is_corrupt(server: RedisServer, store: Store) -> None:
    """A value that does not begin with a version is corrupt state, left as it is; a scan returns it as it is
    stored, and it can be deleted. covers: STATE-4"""
    await store.commit("p", put("good", b"1"))
    await store.commit("p", put("bad", b"2"))
    server.ask("SET", "tealagents:{p}:bad", "garbage")
    with pytest.raises(CorruptState, match="bad"):
        await store.read("p", ["bad"])
    (good,) = await store.read("p", ["good"])
    assert good is not None
    assert await store.scan("p", "") == [("bad", Record(b"garbage", "")), ("good", good)]
    assert server.ask("STRLEN", "tealagents:{p}:bad") == ":7"
    await store.commit("p", Commit(operation=operation_id(), delete=["bad"]))
    assert await store.scan("p", "") == [("good", good)]


async def test_prefixes_are_apart(server: RedisServer) -> None:
    """Two prefixes on one server are two states."""
    async with store_of(f"{server.url}?prefix=a:") as a, store_of(f"{server.url}?prefix=b:") as b:
        await a.commit("p", put("key", b"1"))
        assert await b.read("p", ["key"]) == [None]
    with pytest.raises(StoreConfigError, match="prefix"):
        store_of(f"{server.url}?prefix={{}}")


async def test_a_prefix_may_have_any_letters(server: RedisServer) -> None:
    """What is written under one that is not ASCII is listed and removed, and conflicts name their keys."""
    async with store_of(f"{server.url}?prefix=für:") as store:
        await store.commit("p", Commit(operation=operation_id(), put={"a": Put(b""), "b": Put(b"")}))
        assert [key for key, _ in await store.scan("p", "")] == ["a", "b"]
        with pytest.raises(Conflict) as conflict:
            await store.commit("p", put("a", b"", expect={"a": None}))
        assert conflict.value.keys == ("a",)
        await store.commit("p", Commit(operation=operation_id(), delete=["a"]))
        assert [key for key, _ in await store.scan("p", "")] == ["b"]


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_scan_passes_over_a_thousand_expired_records_in_a_few_trips(
    server: RedisServer, store: Store, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    """However few are wanted, and no more than these are returned."""
    there = [f"{'a' if reverse else 'z'}/{n:02}" for n in range(20)]
    for first in (0, 10):
        puts = {key: Put(b"") for key in there[first : first + 10]}
        await store.commit("p", Commit(operation=operation_id(), put=puts))
    expired = (part for n in range(1000) for part in ("0", f"events/{n:04}"))
    server.ask("ZADD", "tealagents:{p}#index", *expired)
    trips, run = 0, Nodes.run

    async def counting(*arguments: Any, **options: Any) -> Any:
        nonlocal trips
        trips += 1
        return await run(*arguments, **options)

    monkeypatch.setattr(Nodes, "run", counting)
    found = await store.scan("p", "", limit=3, reverse=reverse)
    assert [key for key, _ in found] == (there[::-1] if reverse else there)[:3]
    assert trips < 20


# --- when the server is away, or refuses ----------------------------------------------------------


async def test_a_restarted_server_is_found_again(server: RedisServer, store: Store) -> None:
    """Once a killed server is back all works, and what was acknowledged is there. covers: STATE-4"""
    await found_again(server, store)


async def test_an_idle_connection_that_died(server: RedisServer, store: Store) -> None:
    """A commit on a connection that died while it was idle is not in doubt: it goes over a new one."""
    await store.commit("p", put("key", b"1"))
    server.ask("CLIENT", "KILL", "TYPE", "normal")
    await asyncio.sleep(0.05)
    await store.commit("p", put("key", b"2"))


async def test_of_idle_connections_that_have_gone_mute_only_the_first_costs_a_timeout(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was idle beside the one that did not answer is not tried."""
    monkeypatch.setattr("tealagents.stores.pool.IDLE_SECONDS", math.inf)
    async with (
        FaultProxy(server.host, server.port) as proxy,
        store_of(proxy.url_for(server.url) + PATIENT) as store,
    ):
        await asyncio.gather(*(store.read("p", ["key"]) for _ in range(3)))
        assert len(proxy.connections) == 3
        for connection in proxy.connections:
            connection.faults = Faults(blackhole=True)
        with pytest.raises(PersistenceUnavailable, match="no answer in time"):
            await overdue(store.read("p", ["key"]), PATIENCE, lambda: True)
        async with asyncio.timeout(60):
            assert await store.read("p", ["key"]) == [None]


@pytest.mark.parametrize("forbidden", ["publish", "subscribe"])
async def test_a_user_who_may_not_publish_or_subscribe_polls(server: RedisServer, forbidden: str) -> None:
    """Commits work, and what they notify is seen, though later."""
    server.ask("ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", f"-{forbidden}")
    url = server.url.replace("//", "//ann:pw@")
    async with store_of(url) as store, store_of(url) as other, store.watch("p", "topic") as watch:
        await other.commit("p", Commit(operation=operation_id(), put={"a": Put(b"")}, notify={"topic"}))
        assert await watch.wait(MISSING)


@pytest.mark.parametrize("loss", ["a right", "its role"])
async def test_a_watch_is_woken_that_no_commit_can_wake_any_more(server: RedisServer, loss: str) -> None:
    """The connection that listens is as it was: it is the commits that are notified nowhere, or elsewhere."""
    url = with_the_rights_of_the_page(server)
    async with store_of(url) as store, store_of(url) as other, store.watch("p", "topic") as watch:
        await until_pushed(other, watch, "p", "topic")
        if loss == "a right":
            server.ask("ACL", "SETUSER", "agent", "-publish")
            await notify(other, "p", "topic")
        else:
            server.ask("REPLICAOF", "127.0.0.1", str(free_port()))
            with pytest.raises(PersistenceUnavailable):  # as every few seconds, for the lease of its process
                await store.commit("p", put("lease", b""))
        assert await watch.wait(MISSING)
        server.ask("ACL", "SETUSER", "agent", "+publish")
        server.ask("REPLICAOF", "NO", "ONE")
        await until_pushed(other, watch, "p", "topic")


@pytest.mark.usefixtures("patient_link")
async def test_a_watch_is_woken_where_a_new_connection_finds_a_replica(server: RedisServer) -> None:
    """The connection that a commit opens while the idle one is lent is refused before it is sent anything."""
    async with (
        FaultProxy(server.host, server.port) as proxy,
        store_of(proxy.url_for(server.url) + PATIENT) as store,
        store.watch("p", "topic") as watch,
    ):
        [lent, _link] = proxy.connections
        lent.faults = Faults(blackhole=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(store.read("p", ["key"]))
            await ticks(3)
            server.ask("REPLICAOF", "127.0.0.1", str(free_port()))
            with pytest.raises(PersistenceUnavailable, match="the server is a replica"):
                await store.commit("p", put("lease", b""))
            lent.faults = None
        assert await watch.wait(MISSING)


async def test_a_lost_reply_is_unknown(server: RedisServer) -> None:
    """Where the reply to a commit is lost its outcome is unknown, and a read reveals it. covers: STATE-4"""
    proxy = FaultProxy(server.host, server.port)
    await lost_reply(proxy, store_of, server.url, Faults(drop_replies=True))


async def test_a_stopped_server(server: RedisServer) -> None:
    """A server that holds its connections and says nothing: reads fail in time, commits are in doubt."""
    url = server.url + PATIENT
    async with store_of(url) as store, store_of(url) as other:
        await other.commit("p", put("key", b"1"))
        server.stop()
        with pytest.raises(PersistenceUnavailable):
            await overdue(store.read("p", ["key"]), PATIENCE, lambda: True)
        with pytest.raises((PersistenceUnavailable, Unknown)):
            await overdue(store.commit("p", put("key", b"2")), PATIENCE, lambda: True)
        server.cont()
        assert (await other.read("p", ["key"]))[0] is not None


async def test_scripts_are_sent_again(server: RedisServer, store: Store) -> None:
    """A server that has forgotten the scripts is given them, and the commit goes through once."""
    await store.commit("p", put("key", b"1"))
    server.ask("SCRIPT", "FLUSH")
    await store.commit("p", put("key", b"2"))
    assert len(await store.scan("p", "")) == 1


async def test_full_memory_writes_nothing(server: RedisServer, store: Store) -> None:
    """A server whose memory is full refuses a commit whole, and reads continue. covers: STATE-4"""
    await store.commit("p", put("key", b"1"))
    server.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(PersistenceUnavailable, match="maxmemory"):
        await store.commit("p", Commit(operation=operation_id(), put={"a": Put(b"1"), "key": Put(b"2")}))
    with pytest.raises(PersistenceUnavailable, match="maxmemory"):
        await store.commit("p", Commit(operation=operation_id(), put={"a": Put(b"1")}, delete=["key"]))
    assert [(key, record.value) for key, record in await store.scan("p", "")] == [("key", b"1")]
    server.ask("CONFIG", "SET", "maxmemory", "0")
    await store.commit("p", put("key", b"2"))


async def test_a_running_server_that_refuses_is_not_to_be_started(server: RedisServer, store: Store) -> None:
    """The error of a full server, and of a replica, says what helps there: both are running."""
    await store.commit("p", put("key", b"1"))
    server.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(PersistenceUnavailable, match="Raise its maxmemory") as full:
        await store.commit("p", put("key", b"2"))
    server.ask("CONFIG", "SET", "maxmemory", "0")
    server.ask("REPLICAOF", "127.0.0.1", str(free_port()))
    with pytest.raises(PersistenceUnavailable, match="Name the master in TA_PERSISTENCE") as demoted:
        await store.commit("p", put("key", b"2"))
    server.ask("REPLICAOF", "NO", "ONE")
    assert "Check that it is running" not in f"{full.value} {demoted.value}"


#: what Redis 6.2 makes of a refusal inside a script
READONLY_IN_A_SCRIPT_OF_6_2 = (
    "ERR Error running script (call to f_cd87614ffc6888adb8181328e920608aae958c8c): @user_script:18: "
    "@user_script: 18: -READONLY You can't write against a read only replica."
)


@pytest.mark.parametrize("refusal", ["READONLY", "READONLY of Redis 6.2", "MASTERDOWN"])
async def test_a_demoted_master(
    server: RedisServer, store: Store, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover the old master refuses writes; once the place has a master again all works."""
    await store.commit("p", put("key", b"1"))
    if refusal == "MASTERDOWN":
        server.ask("CONFIG", "SET", "replica-serve-stale-data", "no")
    elif refusal != "READONLY":
        scripts = redis._scripts()
        text = f'return redis.error_reply("{READONLY_IN_A_SCRIPT_OF_6_2}")'
        commit = redis._Script(text, hashlib.sha1(text.encode()).hexdigest())
        monkeypatch.setattr(redis, "_scripts", lambda: {**scripts, "commit": commit})
    server.ask("REPLICAOF", "127.0.0.1", str(free_port()))
    for _ in range(2):
        with pytest.raises(PersistenceUnavailable):
            await store.commit("p", put("key", b"2"))
    with pytest.raises(PersistenceUnavailable, match="the server is a replica"):
        await store.read("p", ["key"])
    server.ask("REPLICAOF", "NO", "ONE")
    monkeypatch.undo()
    await store.commit("p", put("key", b"3"))


async def test_an_old_master_that_is_only_read_is_noticed(server: RedisServer, store: Store) -> None:
    """By the probe of readiness: what it reads is stale, and its connections may stay. After that, none of
    them is used for the next read."""
    await asyncio.gather(*(store.read("p", ["key"]) for _ in range(3)))
    server.ask("REPLICAOF", "127.0.0.1", str(free_port()))
    for ask in (store.ping, lambda: store.read("p", ["key"])):
        with pytest.raises(PersistenceUnavailable, match="the server is a replica"):
            await ask()
    server.ask("REPLICAOF", "NO", "ONE")
    await store.ping()


async def test_more_callers_than_connections(server: RedisServer) -> None:
    """Callers wait for a connection; none of them fails."""
    async with store_of(server.url + "?pool=2") as store:
        await asyncio.gather(*(store.commit("p", put(f"key/{n}", b"")) for n in range(50)))
        assert len(await store.scan("p", "", limit=100)) == 50


async def test_a_server_with_few_connections(server: RedisServer) -> None:
    """What it takes is shared where it refuses another one; who gets none at all reads what to set."""
    server.ask("CONFIG", "SET", "maxclients", "4")
    async with store_of(server.url) as store:
        await asyncio.gather(*(store.commit(f"p{n}", put("key", b"1")) for n in range(20)))
        with pytest.raises(PersistenceUnavailable, match=r"max number of clients.*maxclients.*\?pool="):
            await store_of(server.url).open()


async def test_processes_start_beside_each_other_at_a_server_with_few_connections(
    server: RedisServer,
) -> None:
    """A start looks at many partitions, and takes no more than a handful of connections for it."""
    server.ask("CONFIG", "SET", "maxclients", "16")
    async with AsyncExitStack() as stores:
        for _ in range(3):
            store = await stores.enter_async_context(store_of(server.url))
            await Inventory(RecordStore(store, "Agent", SystemClock())).check_key(keyed=False)
