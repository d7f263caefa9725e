"""A cluster of Redis: the contract of stores, and what is a cluster's own."""

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio.connection import Connection
from redis.crc import key_slot

from tealagents.domain.errors import Conflict, PersistenceUnavailable
from tealagents.domain.ids import operation_id
from tealagents.domain.ports import Commit, Put
from tealagents.stores import StoreConfigError, redis_nodes
from tealagents.stores import plain_store as store_of
from tealagents.stores.base import AccessDenied
from tealagents.testing.pytest_servers import running
from tealagents.testing.servers import ClusterNode, RedisCluster
from tealagents.testing.store_links import SILENCE
from tealagents.testing.store_steps import OpenStore
from tealagents.testing.store_watches import MISSING, notify
from tealagents.testing.stores import StoreContract
from tealagents.testing.waits import eventually


@pytest.mark.usefixtures("patient_link")
class TestRedisCluster(StoreContract):
    examples = 50

    @pytest.fixture
    def open_store(self, redis_cluster_url: str) -> OpenStore:
        return lambda: store_of(redis_cluster_url)


def put(key: str, value: bytes, *, expect: dict[str, str | None] | None = None) -> Commit:
    return Commit(operation=operation_id(), expect=expect or {}, put={key: Put(value)})


async def test_any_node_will_do(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    """Partitions are spread over all nodes, and every node leads to all of them."""
    query = redis_cluster_url.partition("?")[2]
    for number, node in enumerate(redis_cluster.nodes):
        async with store_of(f"{node.url}?{query}") as store:
            for partition in map(str, range(20)):
                expect = (await store.read(partition, ["key"]))[0]
                assert (expect is None) == (number == 0)
                await store.commit(partition, put("key", b"", expect={"key": expect and expect.version}))
    for node in redis_cluster.nodes:
        assert node.ask("DBSIZE") != ":0"


@pytest.fixture
def secretive() -> Iterator[RedisCluster]:
    """A cluster that answers the user `ann` neither INFO nor CONFIG."""
    with running(RedisCluster) as cluster:
        for node in cluster.nodes:
            node.expect_ok("ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", "-info", "-config")
        yield cluster


def for_ann(url: str) -> str:
    return url.replace("//", "//ann:pw@")


async def is_woken(url: str) -> None:
    """Commits of one process to partitions of all nodes wake watches of another."""
    async with store_of(url) as store, store_of(url) as other:
        for partition in map(str, range(6)):
            async with store.watch(partition, "topic") as watch:
                while await watch.wait(SILENCE):
                    pass
                await notify(other, partition, "topic")
                assert await watch.wait(MISSING)


async def test_a_cluster_that_forbids_questions_is_recognized(
    secretive: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its nodes is asked for its policy, and a warning says of which it could not be checked."""
    with caplog.at_level(logging.WARNING):
        async with store_of(for_ann(secretive.url)):
            pass
    assert caplog.text.count("it must be noeviction") == len(secretive.nodes)


async def test_a_watch_of_a_cluster_that_forbids_questions_is_woken(secretive: RedisCluster) -> None:
    """One that was opened before anything was read or written, too."""
    await is_woken(for_ann(secretive.url))


@pytest.mark.usefixtures("patient_link")
async def test_the_rights_of_the_page_are_enough_for_a_cluster(caplog: pytest.LogCaptureFixture) -> None:
    """Commits to all its nodes, watches that are woken, and no warning."""
    page = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
    [rights] = re.findall(r"^ACL SETUSER agent (.+)$", page, re.MULTILINE)
    with running(RedisCluster) as cluster:
        for node in cluster.nodes:
            node.expect_ok("ACL", "SETUSER", "agent", *rights.split(), "+cluster|slots", "+asking")
            node.expect_ok("CONFIG", "SET", "appendfsync", "always")
            node.expect_ok("CONFIG", "SET", "appendonly", "yes")
        with caplog.at_level(logging.WARNING):
            await is_woken(cluster.url.replace("//", "//agent:PASSWORD@"))
        assert not caplog.text
        assert [node.ask("ACL", "LOG") for node in cluster.nodes] == [""] * len(cluster.nodes)


async def test_what_a_user_of_a_cluster_lacks_is_granted_with_what_a_cluster_needs(
    secretive: RedisCluster,
) -> None:
    """A server on its own needs less."""
    for node in secretive.nodes:
        node.expect_ok("ACL", "SETUSER", "ann", "-mget")
    with pytest.raises(AccessDenied, match=r"'MGET'.* \+cluster\|slots \+asking`\.$"):
        await store_of(for_ann(secretive.url)).open()


@pytest.mark.parametrize("right", ["cluster|slots", "asking", "ping"])
async def test_a_right_that_only_a_cluster_needs_is_missed_at_the_start(
    redis_cluster: RedisCluster, right: str
) -> None:
    """It is needed while a slot moves, or by watches: not only then is it named, with what to grant."""
    for node in redis_cluster.nodes:
        node.expect_ok("ACL", "SETUSER", "bob", "on", ">pw", "~*", "&*", "+@all", f"-{right}")
    with pytest.raises(
        AccessDenied, match=rf"(?i)'{re.escape(right)}'.* \+ping .*\+cluster\|slots \+asking`\.$"
    ):
        await store_of(redis_cluster.url.replace("//", "//bob:pw@")).open()
    for node in redis_cluster.nodes:
        node.expect_ok("ACL", "SETUSER", "bob", f"+{right}")


async def test_a_database_beside_that_of_a_cluster_is_refused(redis_cluster: RedisCluster) -> None:
    """A cluster has one, so that a URL for a server on its own may name another."""
    with pytest.raises(AccessDenied, match=r"not allowed in cluster mode.* a cluster has only 0\.$"):
        await store_of(redis_cluster.nodes[0].url.rpartition("/")[0] + "/1").open()


async def test_a_watch_is_woken_where_the_cluster_shows_itself_late(secretive: RedisCluster) -> None:
    """Where CLUSTER is forbidden, too, only a partition of another node shows that it is one."""
    for node in secretive.nodes:
        node.expect_ok("ACL", "SETUSER", "ann", "-cluster")
    url = for_ann(secretive.url)
    named, *_ = secretive.nodes
    elsewhere = next(p for p in map(str, range(9)) if owner_and_another(secretive, p)[0] is not named)
    async with store_of(url) as store, store_of(url) as other, store.watch(elsewhere, "topic") as watch:
        while await watch.wait(SILENCE):
            pass
        assert await store.read(elsewhere, ["key"]) == [None]
        await other.read(elsewhere, ["key"])
        async with asyncio.timeout(MISSING):
            while await watch.wait(SILENCE, found=False):  # woken when the link is lost, and once it is back
                pass
        await notify(other, elsewhere, "topic")
        assert await watch.wait(MISSING)


@pytest.mark.parametrize("field", ["redis_mode", "server_mode"])
async def test_a_replica_of_a_cluster_will_do(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads to the nodes that take writes. Valkey has another name for the mode."""
    ask = redis_nodes._info

    async def info(connection: Connection) -> dict[str, str]:
        answer = await ask(connection)
        return {field if name == "redis_mode" else name: value for name, value in answer.items()}

    monkeypatch.setattr(redis_nodes, "_info", info)
    with running(RedisCluster) as cluster, running(ClusterNode) as replica:
        master = cluster.nodes[0]
        replica.expect_ok("CLUSTER", "MEET", master.host, str(master.port), str(master.bus_port))
        await eventually(lambda: replica.joined(4))
        replica.expect_ok("CLUSTER", "REPLICATE", master.ask("CLUSTER", "MYID"))
        async with store_of(replica.url) as store:
            for partition in map(str, range(6)):
                await store.commit(partition, put("key", b""))


async def test_what_is_wrong_with_one_node_is_said_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """The advice is of no use at the node that the URL names."""
    with running(lambda: RedisCluster(durable=True)) as cluster:
        *others, node = cluster.nodes
        node.expect_ok("CONFIG", "SET", "appendfsync", "everysec")
        with caplog.at_level(logging.WARNING):
            async with store_of(cluster.url):
                pass
        assert f"redis at {node.host}:{node.port} has appendfsync everysec" in caplog.text
        assert not any(f":{other.port}" in caplog.text for other in others)
        node.expect_ok("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreConfigError, match=f"redis at {node.host}:{node.port} has .* 'allkeys-lru'"):
            await store_of(cluster.url).open()


async def test_one_clock(redis_cluster: RedisCluster) -> None:
    """All processes ask the same node for the time, whichever they know."""
    before = [asked_for_time(node) for node in redis_cluster.nodes]
    for node in redis_cluster.nodes:
        async with store_of(node.url) as store:
            await store.now()
    asked = [asked_for_time(node) - n for node, n in zip(redis_cluster.nodes, before, strict=True)]
    assert sorted(asked) == [0, 0, len(redis_cluster.nodes)]


def asked_for_time(node: ClusterNode) -> int:
    """How often it was."""
    found = re.search(r"cmdstat_time:calls=(\d+)", node.ask("INFO", "commandstats"))
    return int(found[1]) if found else 0


async def test_a_slot_on_the_move() -> None:
    """While a slot moves its partitions wait; nothing is lost, seen half or written twice."""
    with running(RedisCluster) as cluster:
        async with store_of(cluster.url + "?command_timeout=20") as store:
            partition = "moving"
            before = put("head", b"1")
            await store.commit(partition, before)
            await store.commit(partition, put("log/1", b"entry"))
            move = Move(key_slot(b"moving"), *owner_and_another(cluster, "moving"))
            move.begin()
            # the record is here, the one to be written would be there: the commit waits
            change = put("log/2", b"entry", expect={"head": before.operation, "log/2": None})
            waiting = asyncio.create_task(store.commit(partition, change))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            move.carry("#index")
            scanning = asyncio.create_task(store.scan(partition, ""))
            await asyncio.sleep(0.2)
            assert not scanning.done()
            move.carry()
            assert [r and r.value for r in await store.read(partition, ["head"])] == [b"1"]
            assert [key for key, _ in await scanning] == ["head", "log/1"]
            move.end()
            await waiting
            assert [key for key, _ in await store.scan(partition, "")] == ["head", "log/1", "log/2"]
            with pytest.raises(Conflict):
                await store.commit(partition, change)


async def test_a_slot_that_two_nodes_say_the_other_serves() -> None:
    """Until they agree its partitions wait, as while it moves."""
    with running(RedisCluster) as cluster:
        async with store_of(cluster.url + "?command_timeout=20") as store:
            await store.commit("moving", put("key", b"1"))
            move = Move(key_slot(b"moving"), *owner_and_another(cluster, "moving"))
            move.begin()
            move.carry()
            move.hand_over(move.source)
            move.target.expect_ok("CLUSTER", "SETSLOT", move.slot, "STABLE")  # it names the source now
            waiting = asyncio.create_task(store.read("moving", ["key"]))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            move.hand_over(move.target)
            (record,) = await waiting
            assert record is not None


async def test_a_watch_follows_its_slot() -> None:
    """Once a slot is served by another node its watches are woken by the commits made there."""
    with running(RedisCluster) as cluster:
        async with store_of(cluster.url) as store, store.watch("moving", "topic") as watch:
            await store.commit("moving", put("key", b"1"))
            move = Move(key_slot(b"moving"), *owner_and_another(cluster, "moving"))
            move.begin()
            move.carry()
            move.end()
            async with asyncio.timeout(MISSING):
                while await watch.wait(SILENCE, found=False):
                    pass
            await notify(store, "moving", "topic")
            assert await watch.wait(MISSING)


async def test_a_node_that_others_have_replaced() -> None:
    """Where a node is gone, the others are asked who serves its slots now. covers: STATE-4"""
    with running(RedisCluster) as cluster:
        async with store_of(cluster.url + "?command_timeout=20") as store:
            await store.commit("moving", put("key", b"1"))
            move = Move(key_slot(b"moving"), *owner_and_another(cluster, "moving"))
            move.begin()
            move.carry()
            move.end()
            move.source.kill()
            assert (await store.read("moving", ["key"]))[0] is not None
            await store.commit("moving", put("key", b"2"))


async def test_a_node_whose_successor_not_all_have_heard_of() -> None:
    """One that still names the node that is gone does not decide: the others are asked, too."""
    with running(RedisCluster) as cluster:
        late, target, source = sorted(cluster.nodes, key=lambda node: node.port)
        partition = next(p for p in map(str, range(1000)) if owner_and_another(cluster, p)[0] is source)
        async with store_of(cluster.url + "?command_timeout=20") as store:
            await store.commit(partition, put("key", b"1"))
            move = Move(key_slot(partition.encode()), source, target)
            move.begin()
            move.carry()
            move.end()
            source.kill()
            late.expect_ok("CLUSTER", "SETSLOT", move.slot, "NODE", move.names[source])
            assert (await store.read(partition, ["key"]))[0] is not None


async def test_a_node_that_restarts_empty_after_it_was_replaced() -> None:
    """It knows no other node, so the others are asked, and what it does not know is not believed."""
    with running(RedisCluster) as cluster:
        source, target, _ = sorted(cluster.nodes, key=lambda node: node.port)
        partition = next(p for p in map(str, range(1000)) if slot_owner(cluster, p) is source)
        async with store_of(source.url) as store, store.watch(partition, "topic") as watch:
            await store.commit(partition, put("key", b"1"))
            move = Move(key_slot(partition.encode()), source, target)
            move.begin()
            move.carry()
            move.hand_over(target)
            source.kill()
            (source.directory / "nodes.conf").unlink()
            source.restart()
            assert await watch.wait(MISSING)
            await notify(store, partition, "topic")
            assert (await store.read(partition, ["key"]))[0] is not None
            assert await watch.wait(MISSING)


def slot_owner(cluster: RedisCluster, partition: str) -> ClusterNode:
    return owner_and_another(cluster, partition)[0]


def owner_and_another(cluster: RedisCluster, partition: str) -> tuple[ClusterNode, ClusterNode]:
    number = next(n for n, end in enumerate((5461, 10923, 16384)) if key_slot(partition.encode()) < end)
    return cluster.nodes[number], cluster.nodes[(number + 1) % 3]


async def test_a_dead_node() -> None:
    """Of a cluster that has lost a node the partitions of the others work on. covers: STATE-4"""
    with running(RedisCluster) as cluster:
        async with store_of(cluster.url + "?command_timeout=20") as store:
            for partition in ("a", "b", "c", "d", "e", "f"):
                await store.commit(partition, put("key", b"1"))
            cluster.nodes[2].kill()
            alive = 0
            for partition in ("a", "b", "c", "d", "e", "f"):
                try:
                    (record,) = await store.read(partition, ["key"])
                except PersistenceUnavailable:
                    assert key_slot(partition.encode()) >= 10923
                else:
                    assert record is not None
                    alive += 1
            assert 0 < alive < 6
            cluster.nodes[2].restart()
            await eventually(lambda: all(node.joined(3) for node in cluster.nodes))


async def test_nodes_with_few_connections() -> None:
    """As of a server on its own, though a node refuses in other words."""
    with running(RedisCluster) as cluster:
        async with store_of(cluster.url) as store:
            for node in cluster.nodes:
                node.expect_ok("CONFIG", "SET", "maxclients", "10")  # those among the nodes count, too
            await asyncio.gather(*(store.commit(f"p{n}", put("key", b"1")) for n in range(60)))
            with pytest.raises(PersistenceUnavailable, match=r"max number of clients.*maxclients.*\?pool="):
                await store_of(cluster.url).open()


async def test_nodes_that_do_not_answer_let_no_watch_sleep() -> None:
    """Watches are woken once the link is lost, however long it takes to learn which node serves them now."""
    with running(RedisCluster) as cluster:
        url = cluster.url + "?connect_timeout=600&command_timeout=600"
        async with store_of(url) as store, store.watch("moving", "topic") as watch:
            for node in cluster.nodes:
                node.stop()
            assert await watch.wait(MISSING)
            for node in cluster.nodes:
                node.cont()


class Move:
    """A slot that goes from one node to another, step by step."""

    def __init__(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        self.slot, self.source, self.target = str(slot), source, target
        self.names = {node: node.ask("CLUSTER", "MYID") for node in (source, target)}

    def begin(self) -> None:
        self.target.expect_ok("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.names[self.source])
        self.source.expect_ok("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.names[self.target])

    def carry(self, suffix: str = "") -> None:
        """The keys that end in `suffix` go."""
        for key in self.source.ask("CLUSTER", "GETKEYSINSLOT", self.slot, "100").splitlines():
            if key.endswith(suffix):
                self.source.expect_ok("MIGRATE", self.target.host, str(self.target.port), key, "0", "2000")

    def end(self) -> None:
        for node in (self.target, self.source):
            self.hand_over(node)

    def hand_over(self, node: ClusterNode) -> None:
        """This node regards the slot as the target's."""
        node.expect_ok("CLUSTER", "SETSLOT", self.slot, "NODE", self.names[self.target])
