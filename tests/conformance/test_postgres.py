"""PostgreSQL: the contract of stores, and what is this store's own."""

import asyncio
import datetime
import gc
import ipaddress
import math
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, nullcontext, suppress
from pathlib import Path

import asyncpg
import pytest
from asyncpg.exceptions import ProtocolViolationError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tealagents.domain.errors import Conflict, PersistenceUnavailable, Unknown
from tealagents.domain.ids import operation_id
from tealagents.domain.ports import Commit, Put, Store
from tealagents.stores import StoreConfigError, postgres
from tealagents.stores import plain_store as store_of
from tealagents.stores.base import AccessDenied
from tealagents.stores.postgres import SWEEP_RECORDS, PostgresStore
from tealagents.stores.postgres_link import Hosts
from tealagents.stores.sql import statements
from tealagents.testing.clock import advance, overdue
from tealagents.testing.faults import FaultProxy, Faults
from tealagents.testing.pytest_servers import running
from tealagents.testing.servers import PostgresServer
from tealagents.testing.store_links import LinkContract
from tealagents.testing.store_steps import OpenStore, erase_expired, found_again, lost_reply, ticks
from tealagents.testing.stores import StoreContract
from tealagents.testing.waits import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
#: seconds for an answer or a connection, which no busy machine takes: a test that needs them moves time
PATIENCE = 600
PATIENT = f"&command_timeout={PATIENCE}&connect_timeout={PATIENCE}"


@pytest.mark.usefixtures("patient_link")
class TestPostgres(StoreContract):
    @pytest.fixture
    def open_store(self, postgres_server: PostgresServer) -> OpenStore:
        return lambda: store_of(f"{postgres_server.url}?schema=contract")


@pytest.mark.usefixtures("patient_link")
class TestWithoutPreparedStatements(StoreContract):
    """As through a pgbouncer that does not keep them."""

    examples = 20

    @pytest.fixture
    def open_store(self, postgres_server: PostgresServer) -> OpenStore:
        return lambda: store_of(f"{postgres_server.url}?schema=contract&statement_cache_size=0")


class TestThePostgresLink(LinkContract):
    @pytest.fixture
    def server(
        self, postgres_server: PostgresServer, postgres_url: str
    ) -> Iterator[tuple[FaultProxy, OpenStore, OpenStore]]:
        with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
            yield proxy, lambda: store_of(proxy.url_for(postgres_url)), lambda: store_of(postgres_url)


@asynccontextmanager
async def each_notification_to_its_sender(server: PostgresServer) -> AsyncIterator[str]:
    """The host and port of a proxy that notifies as a pgbouncer in transaction mode does: between its
    transactions a client has no connection to the server, so that it hears only what it sends itself."""

    async def forward(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        replies, there = await asyncio.open_connection(server.host, server.port)
        requests = asyncio.create_task(forward_requests(client, there))
        process = b""
        with suppress(OSError, asyncio.IncompleteReadError), closing(back), closing(there):
            while True:
                head = await replies.readexactly(5)
                body = await replies.readexactly(int.from_bytes(head[1:]) - 4)
                if head[:1] == b"K":  # BackendKeyData
                    process = body[:4]
                if head[:1] != b"A" or body[:4] == process:  # NotificationResponse
                    back.write(head + body)
        requests.cancel()

    async def forward_requests(client: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
        while chunk := await client.read(65_536):
            there.write(chunk)
        there.close()

    async with await asyncio.start_server(forward, "127.0.0.1") as proxy:
        yield "{}:{}".format(*proxy.sockets[0].getsockname())


async def test_processes_poll_where_notifications_reach_only_their_sender(
    postgres_server: PostgresServer, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So it is through a pgbouncer in transaction mode, which accepts LISTEN; the log says so."""
    caplog.set_level(
        "DEBUG", logger="tealagents.stores.links"
    )  # a slow machine may report something else first
    async with each_notification_to_its_sender(postgres_server) as place:
        through = postgres_url.replace(f"{postgres_server.host}:{postgres_server.port}", place)
        async with (
            store_of(f"{through}&sslmode=disable") as store,
            store_of(postgres_url) as other,
            store.watch("p", "topic") as watch,
        ):
            for _ in range(3):
                await other.commit(
                    "p", Commit(operation=operation_id(), put={"key": Put(b"")}, notify={"topic"})
                )
                assert await watch.wait(30)
            await eventually(lambda: "a pgbouncer in transaction mode delivers none" in caplog.text)


async def test_a_connection_that_is_given_up_while_it_is_made_is_no_error(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Whenever it is: what the driver leaves unread then is not reported."""
    async with store_of(postgres_server.url) as store:
        assert isinstance(store, PostgresStore)
        for steps in range(40):
            connecting = asyncio.create_task(store._connect())
            for _ in range(steps):
                await asyncio.sleep(0)
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            if not connecting.cancelled():
                connecting.result().terminate()
            await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)
    assert caplog.messages == []


@pytest.fixture
async def sql(postgres_server: PostgresServer) -> AsyncIterator["asyncpg.Connection"]:
    connection = await asyncpg.connect(postgres_server.url)
    yield connection
    await connection.close()


def schema_of(url: str) -> str:
    return url.partition("schema=")[2]


def put(key: str, value: bytes, *, expect: dict[str, str | None] | None = None) -> Commit:
    return Commit(operation=operation_id(), expect=expect or {}, put={key: Put(value)})


# --- the schema -----------------------------------------------------------------------------------


async def test_many_start_at_once(postgres_url: str) -> None:
    """Replicas that start together on an empty database make its schema once. covers: STATE-1"""

    async def start(number: int) -> None:
        async with store_of(postgres_url) as store:
            await store.commit("p", put(f"key/{number}", b"here"))

    await asyncio.gather(*(start(number) for number in range(8)))
    async with store_of(postgres_url) as store:
        assert len(await store.scan("p", "key/")) == 8


async def test_an_older_schema_asks_for_migrate(postgres_url: str, sql: "asyncpg.Connection") -> None:
    """A schema that is behind refuses to start, saying what to run; `migrate` brings it up, once."""
    store = store_of(postgres_url)
    assert isinstance(store, PostgresStore)
    schema = schema_of(postgres_url)
    assert await store.migrate() == ["0001_records"]
    assert await store.migrate() == []
    await sql.execute(f"DELETE FROM {schema}.migrations")
    with pytest.raises(StoreConfigError, match="is at 0, this version needs 1: run `tealagents migrate`"):
        await store.open()
    await sql.execute(f"DROP TABLE {schema}.records CASCADE; DROP FUNCTION {schema}.commit_records")
    assert await store.migrate() == ["0001_records"]
    async with store:
        await store.commit("p", put("key", b"1"))


async def test_a_newer_schema_is_left_alone(postgres_url: str, sql: "asyncpg.Connection") -> None:
    """A schema that a later version has migrated is not touched by this one."""
    async with store_of(postgres_url):
        await sql.execute(f"INSERT INTO {schema_of(postgres_url)}.migrations VALUES (99, '0099_later')")
    store = store_of(postgres_url)
    assert isinstance(store, PostgresStore)
    for use in (store.open, store.migrate):
        with pytest.raises(StoreConfigError, match="is at 99, this version knows 1"):
            await use()


@pytest.mark.parametrize("table", ["migrations (id int, name text)", "records (id int)"])
async def test_tables_of_another_application(
    postgres_url: str, sql: "asyncpg.Connection", table: str
) -> None:
    """A schema in which tables of the store's names are another's is refused, and nothing is added to it."""
    schema = schema_of(postgres_url)
    await sql.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.{table}")
    store = store_of(postgres_url)
    assert isinstance(store, PostgresStore)
    said = f"schema {schema} has tables of another application: set"
    for use in (store.exists, store.open, store.migrate):
        with pytest.raises(StoreConfigError, match=said):
            await use()
    tables = "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace($1)"
    assert await sql.fetchval(tables, schema) == 1


async def test_a_schema_may_have_other_tables_too(postgres_url: str, sql: "asyncpg.Connection") -> None:
    """They are no obstacle, and neither are the store's own with them."""
    schema = schema_of(postgres_url)
    await sql.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.customers (name text)")
    for _ in range(2):
        async with store_of(postgres_url) as store:
            await store.commit("p", put("key", b"1"))


async def test_keys_are_in_order_whatever_the_collation(
    postgres_server: PostgresServer, sql: "asyncpg.Connection"
) -> None:
    """In a database that sorts as people do, keys are still in the order of code points."""
    await sql.execute(
        "CREATE DATABASE sorted TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'"
    )
    async with store_of(postgres_server.url.replace("/postgres", "/sorted")) as store:
        keys = ["-a", "0", "B", "_", "a", "a-b", "aA", "ab", "~"]
        await store.commit("p", Commit(operation=operation_id(), put={key: Put(b"") for key in keys}))
        assert [key for key, _ in await store.scan("p", "")] == sorted(keys)
        assert [key for key, _ in await store.scan("p", "a", after="a-b")] == ["aA", "ab"]


# --- concurrent commits ---------------------------------------------------------------------------


@asynccontextmanager
async def holding(sql: "asyncpg.Connection", url: str, key: str) -> AsyncIterator[None]:
    """Another process's commit that has put `key` and is not through yet, until the block ends."""
    async with sql.transaction():
        commit = f"SELECT {schema_of(url)}.commit_records('p', $1, '{{}}', '{{}}', $2, $3, $4, '{{}}', false)"
        await sql.execute(commit, "f" * 24, [key], [b"other"], [None])
        yield


@pytest.mark.parametrize("kind", ["put", "deleted", "expected"])
async def test_absence_is_locked(postgres_url: str, sql: "asyncpg.Connection", kind: str) -> None:
    """Who expects a key absent waits for a commit under way that writes it, and then conflicts.

    That holds where the key is only expected, too. covers: TASK-5
    """
    change = Commit(
        operation=operation_id(),
        expect={"key": None},
        put={"key" if kind == "put" else "other": Put(b"1")},
        delete=["key"] if kind == "deleted" else [],
    )
    async with store_of(postgres_url) as store:
        async with holding(sql, postgres_url, "key"):
            waiting = asyncio.create_task(store.commit("p", change))
            await blocked(sql)
        with pytest.raises(Conflict):
            await waiting
        assert [record and record.value for record in await store.read("p", ["key", "other"])] == [
            b"other",
            None,
        ]


async def test_no_commits_wait_for_each_other(postgres_url: str, sql: "asyncpg.Connection") -> None:
    """Commits that touch the same records in any order take turns: none is rolled back."""
    async with store_of(postgres_url + "&pool=16") as store:
        keys = [f"key/{n}" for n in range(6)]

        async def write(number: int) -> None:
            turned = keys[number % 6 :] + keys[: number % 6]
            puts = {key: Put(b"%d" % number) for key in turned[:4]}
            await store.commit("p", Commit(operation=operation_id(), put=puts, delete=turned[4:]))

        before = await sql.fetchval("SELECT sum(deadlocks) FROM pg_stat_database")
        for _ in range(5):
            await asyncio.gather(*(write(number) for number in range(32)))
        assert len(await store.scan("p", "key/")) == 4
        assert await sql.fetchval("SELECT sum(deadlocks) FROM pg_stat_database") == before


async def test_another_isolation_level(postgres_server: PostgresServer, sql: "asyncpg.Connection") -> None:
    """Where a role's default would let commits see the past, they are refused with what to do about it."""
    await sql.execute("CREATE ROLE careful LOGIN SUPERUSER")
    await sql.execute("ALTER ROLE careful SET default_transaction_isolation = 'repeatable read'")
    async with store_of(postgres_server.url.replace("tealagents:", "careful:") + "?schema=careful") as store:
        with pytest.raises(PersistenceUnavailable, match="ALTER ROLE careful SET") as refused:
            await store.commit("p", put("key", b"1"))
    assert "Check that it is running" not in str(refused.value)


async def blocked(sql: "asyncpg.Connection") -> None:
    """Returns when some statement waits for a lock."""
    await eventually(
        lambda: sql.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    )


@pytest.mark.parametrize("ends", ["read", "commit", "canceled"])
async def test_a_statement_that_no_one_waits_for_is_canceled(
    postgres_url: str, sql: "asyncpg.Connection", ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long something locks the tables, the server has no more processes than the pool connections."""
    monkeypatch.setattr("tealagents.stores.postgres.CANCEL_SECONDS", 60)
    async with store_of(postgres_url + PATIENT) as store, sql.transaction():
        await sql.execute(f"LOCK TABLE {schema_of(postgres_url)}.records IN ACCESS EXCLUSIVE MODE")
        asked = store.commit("p", put("key", b"1")) if ends == "commit" else store.read("p", ["key"])
        waiting = asyncio.create_task(asked)
        await blocked(sql)
        if ends == "canceled":
            waiting.cancel()
        else:
            advance(asyncio.get_running_loop(), PATIENCE)
        with pytest.raises((Unknown, PersistenceUnavailable, asyncio.CancelledError)):
            await waiting
        locks = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        assert await sql.fetchval(locks) == 0


# --- what survives a crash of the server ----------------------------------------------------------


async def test_an_unsynced_commit_is_made_safe_by_the_next() -> None:
    """What is acknowledged after it survives a server that dies at once, and it with that. covers: STATE-4"""
    with PostgresServer(durable=True) as server:
        async with store_of(f"{server.url}?schema=s") as store:
            for n in range(20):
                puts = {f"begun/{n}": Put(b"1")}
                await store.commit("p", Commit(operation=operation_id(), put=puts, unsynced=True))
                assert (await store.read("p", [f"begun/{n}"]))[0] is not None
                await store.commit("p", put(f"acknowledged/{n}", b"1"))
            server.kill()
            server.restart()
            assert len(await store.scan("p", "begun/")) == 20
            assert len(await store.scan("p", "acknowledged/")) == 20


# --- what expires ---------------------------------------------------------------------------------


async def test_expired_records_are_erased(
    postgres_url: str, sql: "asyncpg.Connection", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside its commits the store erases what has expired, in every partition."""
    monkeypatch.setattr("tealagents.stores.postgres.SWEEP_SECONDS", 0)
    async with store_of(postgres_url) as store:
        gone = Commit(
            operation=operation_id(), put={"a": Put(b"", 0.001), "b": Put(b"", 1000), "c": Put(b"")}
        )
        await store.commit("p", gone)
        await asyncio.sleep(0.01)
        await store.commit("q", put("d", b""))
        stored = f"SELECT string_agg(key, '' ORDER BY key) FROM {schema_of(postgres_url)}.records"

        async def is_erased() -> bool:
            return bool(await sql.fetchval(stored) == "bcd")

        await eventually(is_erased)


async def test_what_expired_is_erased_by_name(postgres_url: str, sql: "asyncpg.Connection") -> None:
    """Not before a process has run for a minute only: one that erases a user does not. covers: STATE-2"""
    async with store_of(postgres_url) as store:
        await expire(sql, postgres_url, 25, -1)
        assert len(await erase_expired(store, "p")) == 25
    assert await sql.fetchval(f"SELECT count(*) FROM {schema_of(postgres_url)}.records") == 0


async def expire(sql: "asyncpg.Connection", url: str, records: int, seconds: int) -> None:
    """Writes records that expire in so many seconds, or have expired."""
    await sql.execute(
        f"INSERT INTO {schema_of(url)}.records"
        " SELECT 'p', 'expiring/' || n, '', '', now() + $2 * interval '1 second'"
        " FROM generate_series(1, $1) AS n",
        records,
        seconds,
    )


async def test_the_sweep_finds_what_has_expired_by_the_index_alone(
    postgres_url: str, sql: "asyncpg.Connection"
) -> None:
    """What will expire some day is not even looked at, however much it is."""
    async with store_of(postgres_url):
        pass  # its tables are made
    schema = schema_of(postgres_url)
    await expire(sql, postgres_url, 20_000, 86_400)
    await sql.execute(f"ANALYZE {schema}.records")
    sweep = statements("postgres.sql")["sweep"].replace("{schema}", schema)
    plan = "\n".join(row[0] for row in await sql.fetch(f"EXPLAIN {sweep}", SWEEP_RECORDS))
    assert "Index Cond: (expires_at <= " in plan, plan


async def test_closing_does_not_wait_until_all_that_has_expired_is_erased(
    postgres_url: str, sql: "asyncpg.Connection", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep with much to do is canceled; the next one continues."""
    monkeypatch.setattr("tealagents.stores.postgres.SWEEP_SECONDS", 0)
    monkeypatch.setattr("tealagents.stores.postgres.SWEEP_RECORDS", 1)
    left = f"SELECT count(*) FROM {schema_of(postgres_url)}.records WHERE key LIKE 'expiring/%'"
    async with store_of(postgres_url) as store:
        await expire(sql, postgres_url, 1_000, -1)
        await store.commit("p", put("key", b""))
    assert await sql.fetchval(left) > 0


# --- when the server is away ----------------------------------------------------------------------


@pytest.mark.parametrize("options", ["", "&pool=1"])
async def test_a_restarted_server_is_found_again(options: str) -> None:
    """Once a killed server is back all works, and what was acknowledged is there. covers: STATE-4"""
    with PostgresServer(durable=True) as server:
        async with store_of(f"{server.url}?schema=s{options}") as store:
            await found_again(server, store)


async def test_a_host_that_says_nothing_does_not_keep_a_process_from_the_next(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """As after a failover from a machine that is gone; notifications come from the next one, too."""
    async with (
        FaultProxy(postgres_server.host, postgres_server.port) as silent,
        store_of(postgres_url) as other,
    ):
        silent.faults = Faults(blackhole=True)
        hosts = f"{silent.host}:{silent.port},{postgres_server.host}:{postgres_server.port}"
        url = postgres_url.replace(f"{postgres_server.host}:{postgres_server.port}", hosts)
        async with AsyncExitStack() as stack:
            opening = asyncio.create_task(stack.enter_async_context(store_of(url + PATIENT)))
            await eventually(lambda: silent.connections)
            advance(asyncio.get_running_loop(), PATIENCE / 2)
            store = await opening
            assert isinstance(store, PostgresStore)
            watch = await stack.enter_async_context(store.watch("p", "topic"))
            await eventually(lambda: store._watches.live)
            await other.commit("p", Commit(operation=operation_id(), put={"key": Put(b"")}, notify={"topic"}))
            assert await watch.wait(30)


async def test_a_refused_connection_names_no_password() -> None:
    """A server that is not there is an error at start, which names the place and no credentials."""
    url = "postgresql://ann:hunter2@127.0.0.1:1/db"
    with pytest.raises(PersistenceUnavailable) as failed:
        await store_of(url).open()
    assert "127.0.0.1" in str(failed.value)
    assert "hunter2" not in str(failed.value)
    assert "hunter2" not in repr(store_of(url).options)


@pytest.mark.parametrize("password", ["pwd/ash", "pwd@at/x", "pwd:on/x", "pwd@at"])
def test_a_password_that_breaks_the_url_is_not_shown(password: str) -> None:
    """Characters that must be written otherwise in a URL are an error that says so without quoting them."""
    with pytest.raises(StoreConfigError, match="write the characters") as refused:
        store_of(f"postgresql://ann:{password}@host/db")
    assert password[:3] not in str(refused.value)


async def test_a_server_with_few_connections(
    postgres_server: PostgresServer, sql: "asyncpg.Connection"
) -> None:
    """What it takes is shared where it refuses another one: nothing fails, and nothing waits for the pool."""
    await sql.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 2")
    await sql.execute("GRANT CREATE ON DATABASE postgres TO few")
    url = postgres_server.url.replace("tealagents:", "few:")
    async with store_of(f"{url}?schema=few&pool=10") as store:
        await asyncio.gather(*(store.commit(f"p{n}", put("key", b"1")) for n in range(20)))
        assert all([(await store.read(f"p{n}", ["key"]))[0] for n in range(20)])
    await sql.execute("ALTER ROLE few CONNECTION LIMIT 0")
    with pytest.raises(PersistenceUnavailable, match="too many connections"):
        await store_of(f"{url}?schema=few").open()


@pytest.mark.parametrize(
    "words",
    [
        "no more connections allowed (max_client_conn)",
        "client connections exceeded (max_db_client_connections)",
    ],
)
async def test_a_pgbouncer_with_few_connections(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """It refuses another one in words of its own, and what it takes is shared all the same."""
    connect, places = Hosts.connect, iter(range(2))

    async def limited(hosts: Hosts) -> "asyncpg.Connection":
        if next(places, None) is None:
            raise ProtocolViolationError(words)
        return await connect(hosts)

    async with store_of(postgres_url):
        pass  # its tables are made
    monkeypatch.setattr(Hosts, "connect", limited)
    async with store_of(f"{postgres_url}&pool=10") as store:
        await asyncio.gather(*(store.commit(f"p{n}", put("key", b"1")) for n in range(20)))


@pytest.mark.parametrize("granted", [True, False])
async def test_a_role_with_the_grants_of_the_page_serves_what_another_role_has_made(
    postgres_server: PostgresServer, sql: "asyncpg.Connection", granted: bool
) -> None:
    """It owns nothing and makes nothing."""
    schema = f"tealagents_{granted}".lower()
    async with store_of(f"{postgres_server.url}?schema={schema}"):
        await sql.execute(f"CREATE ROLE {schema} LOGIN")
        if granted:
            [grants] = re.findall(r"^```sql\n(GRANT USAGE.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
            await sql.execute(grants.replace("tealagents", schema).replace("TO app", f"TO {schema}"))
    url = postgres_server.url.replace("tealagents:", f"{schema}:")
    with nullcontext() if granted else pytest.raises(PersistenceUnavailable, match="denied"):
        async with store_of(f"{url}?schema={schema}") as store:
            await store.commit("p", put("key", b"1"))
            await store.commit("p", Commit(operation=operation_id(), expect={"other": None}, delete=["key"]))
            assert await store.read("p", ["key"]) == [None]


@pytest.mark.parametrize(
    ("name", "grants", "denied"),
    [
        ("half_0", "", "schema half_0"),
        ("half_1", "GRANT USAGE ON SCHEMA half_1 TO half_1", "table migrations"),
        (
            "half_2",
            "GRANT USAGE ON SCHEMA half_2 TO half_2; GRANT SELECT ON half_2.migrations TO half_2",
            "table records",
        ),
    ],
)
async def test_a_role_that_lacks_a_right_is_refused_with_what_to_grant(
    postgres_server: PostgresServer, sql: "asyncpg.Connection", name: str, grants: str, denied: str
) -> None:
    """The server runs and its address is right: neither is to be looked at."""
    async with store_of(f"{postgres_server.url}?schema={name}"):
        await sql.execute(f"CREATE ROLE {name} LOGIN; {grants}")
    url = postgres_server.url.replace("tealagents:", f"{name}:")
    with pytest.raises(AccessDenied, match=f"permission denied for {denied}") as refused:
        async with store_of(f"{url}?schema={name}") as store:
            await store.read("p", ["key"])
    said = str(refused.value)
    [page] = re.findall(r"^```sql\nGRANT USAGE.*?^```$", PAGE, re.DOTALL | re.MULTILINE)
    for rights in re.findall("GRANT (.*?) ON", page):
        assert rights in said
    assert "`tealagents migrate`" in said
    assert "is running" not in said


async def test_a_refused_login_is_reported_with_what_to_correct(postgres_server: PostgresServer) -> None:
    """The server runs and its address is right: neither is to be looked at."""
    url = postgres_server.url.replace("tealagents:", "stranger:")
    said = r'role "stranger" does not exist\. Correct the user or its password in TA_PERSISTENCE'
    with pytest.raises(AccessDenied, match=said) as refused:
        await store_of(url).open()
    assert "is running" not in str(refused.value)


async def test_a_database_that_does_not_exist_is_reported_with_what_to_do(
    postgres_server: PostgresServer,
) -> None:
    """The server runs: `migrate` creates a schema and its tables, but no database."""
    url = postgres_server.url.rpartition("/")[0] + "/nowhere"
    said = r'database "nowhere" does not exist\. Create it, or correct its name in TA_PERSISTENCE'
    with pytest.raises(AccessDenied, match=said) as refused:
        await store_of(url).open()
    assert "is running" not in str(refused.value)


async def test_a_role_that_may_create_nothing_is_an_obstacle(
    postgres_server: PostgresServer, sql: "asyncpg.Connection"
) -> None:
    """`obstacle` says before the first start what `open` would fail with, and makes nothing. `migrate` says
    that a right is lacking, not that the server may not run."""
    await sql.execute("CREATE ROLE visitor LOGIN; CREATE SCHEMA closed")
    await sql.execute("CREATE SCHEMA lent; GRANT CREATE, USAGE ON SCHEMA lent TO visitor")
    url = postgres_server.url.replace("tealagents:", "visitor:")
    for schema, may_not in (("closed", "tables in the schema closed"), ("none", "the schema none")):
        store = store_of(f"{url}?schema={schema}")
        said = await store.obstacle()
        assert said is not None
        assert f"schema {schema}: its user may not create {may_not}" in said
        with pytest.raises(PersistenceUnavailable, match="denied"):
            await store.open()
        assert isinstance(store, PostgresStore)
        with pytest.raises(StoreConfigError, match=r"lacks a right: permission denied for .* as the owner"):
            await store.migrate()
    assert not await sql.fetchval("SELECT to_regnamespace('none') IS NOT NULL")
    for each in (f"{url}?schema=lent", f"{postgres_server.url}?schema=none"):
        assert await store_of(each).obstacle() is None
    async with store_of(f"{url}?schema=lent"):
        pass


async def test_a_database_of_another_encoding(
    postgres_server: PostgresServer, sql: "asyncpg.Connection"
) -> None:
    """The tables are made in one that is not UTF-8, too: what is stored is bytes."""
    await sql.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    url = postgres_server.url.removesuffix("postgres") + "latin"
    async with store_of(url) as store:
        await store.commit("p", put("key", "…".encode()))
        (record,) = await store.read("p", ["key"])
        assert record is not None
        assert record.value == "…".encode()


async def test_a_server_that_takes_no_writes(
    postgres_server: PostgresServer, sql: "asyncpg.Connection"
) -> None:
    """A server that only reads, as a standby does, is refused at the start."""
    await sql.execute("CREATE ROLE reader LOGIN SUPERUSER")
    await sql.execute("ALTER ROLE reader SET default_transaction_read_only = on")
    with pytest.raises(PersistenceUnavailable, match="TargetServerAttributeNotMatched: it is read-only"):
        await store_of(postgres_server.url.replace("tealagents:", "reader:")).open()


async def test_a_running_server_that_takes_no_writes_is_not_to_be_started(
    postgres_server: PostgresServer, sql: "asyncpg.Connection"
) -> None:
    """The error says what helps with a server that is running, but read-only."""
    await sql.execute("CREATE ROLE careless LOGIN SUPERUSER")
    await sql.execute("ALTER ROLE careless SET default_transaction_read_only = on")
    with pytest.raises(PersistenceUnavailable, match="Name the primary in TA_PERSISTENCE") as refused:
        await store_of(postgres_server.url.replace("tealagents:", "careless:")).open()
    assert "Check that it is running" not in str(refused.value)


@pytest.mark.parametrize("error", ["DuplicatePreparedStatementError", "InvalidSQLStatementNameError"])
async def test_a_pgbouncer_without_prepared_statements_is_not_to_be_started(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """The error names the option to set, and nothing to check."""

    async def refuse(*args: object, **options: object) -> None:
        raise getattr(asyncpg.exceptions, error)("prepared statement")

    async with store_of(postgres_server.url) as store:
        with monkeypatch.context() as patched:
            patched.setattr(asyncpg.Connection, "fetch", refuse)
            with pytest.raises(PersistenceUnavailable, match=r"Set \?statement_cache_size=0 in") as refused:
                await store.read("p", ["key"])
    assert "Check that it is running" not in str(refused.value)


async def idle_pair(store: Store, sql: str) -> None:
    """Leaves two connections idle, after a statement on each."""
    assert isinstance(store, PostgresStore)
    lent = [await store._pool.borrow() for _ in range(2)]
    for connection in lent:
        await connection.execute(sql)
        store._pool.give_back(connection)


async def test_connections_to_a_server_that_has_become_read_only_are_not_used_again(
    postgres_url: str,
) -> None:
    """Through a pgbouncer they outlive the server's demotion; what they read may be stale."""
    async with store_of(postgres_url) as store:
        await idle_pair(store, "SET default_transaction_read_only = on")
        with pytest.raises(PersistenceUnavailable, match="read-only transaction"):
            await store.commit("p", put("key", b"1"))
        await store.commit("p", put("key", b"1"))


async def test_a_server_that_has_become_a_standby_is_not_ready(
    postgres_url: str, sql: "asyncpg.Connection"
) -> None:
    """Through a pgbouncer connections to it stay open; none of them is used again."""
    schema = schema_of(postgres_url)
    async with store_of(postgres_url) as store:
        made = f"CREATE FUNCTION {schema}.pg_is_in_recovery() RETURNS bool LANGUAGE sql AS 'SELECT true'"
        await sql.execute(made)
        await idle_pair(store, f"SET search_path = {schema}, pg_catalog")  # as if the server said so
        with pytest.raises(PersistenceUnavailable, match="it is read-only: a standby"):
            await store.ping()
        await store.ping()


async def test_wrong_options_are_reported(postgres_server: PostgresServer) -> None:
    """An unknown option, or a schema name that is none, is a clear error."""
    for wrong in ("poool=3", "schema=a;drop", "pool=0", "sslmode=banana"):
        with pytest.raises(StoreConfigError, match=wrong.partition("=")[0]):
            store_of(f"{postgres_server.url}?{wrong}")


class TlsServer(PostgresServer):
    """PostgreSQL with a certificate for its address, which vouches for itself."""

    def prepare(self) -> None:
        super().prepare()
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "store")])
        began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        ended = began + datetime.timedelta(days=30)
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(self.host))])
        made = x509.CertificateBuilder(name, name, key.public_key(), 1, began, ended)
        made = made.add_extension(address, critical=False)
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        self.certificate.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        secret = self.directory / "data" / "server.key"
        secret.touch(mode=0o600)
        secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
        if account := self.account():
            shutil.chown(secret, account)
        with (self.directory / "data" / "postgresql.conf").open("a") as settings:
            settings.write("ssl = on\n")

    @property
    def certificate(self) -> Path:
        return self.directory / "data" / "server.crt"


async def test_the_certificate_of_a_server_is_verified(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the authority that the URL names, or by those of the system; without either the error says so."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with running(TlsServer) as server:
        url = f"{server.url}?sslmode=verify-full"
        with pytest.raises(PersistenceUnavailable, match=r"root\.crt.*; set \?sslrootcert=… to .*=system"):
            await store_of(url).open()
        with pytest.raises(PersistenceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await store_of(f"{url}&sslrootcert=system").open()
        monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
        for authority in ("system", server.certificate):
            async with store_of(f"{url}&sslrootcert={authority}") as store:
                assert await store.read("p", ["key"]) == [None]


async def test_a_lost_reply_is_unknown(postgres_server: PostgresServer, postgres_url: str) -> None:
    """Where the answer to a commit is lost its outcome is unknown, and a read reveals it. covers: STATE-4"""
    proxy = FaultProxy(postgres_server.host, postgres_server.port)
    await lost_reply(proxy, store_of, postgres_url, Faults(drop_replies=True))


async def three_connections(proxy: FaultProxy, store: Store) -> None:
    """Leaves three connections idle, each of which brings nothing from now on."""
    await asyncio.gather(*(store.read("p", ["key"]) for _ in range(3)))
    assert len(proxy.connections) == 3
    for connection in proxy.connections:
        connection.faults = Faults(blackhole=True)


async def test_a_notification_on_a_mute_connection_is_given_up_before_other_statements_are(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Later notifications wait for it, and with them all other processes."""
    async with (
        FaultProxy(postgres_server.host, postgres_server.port) as proxy,
        store_of(proxy.url_for(postgres_url) + "&command_timeout=600") as store,
        asyncio.timeout(60),
    ):
        assert isinstance(store, PostgresStore)
        await three_connections(proxy, store)
        with pytest.raises(PersistenceUnavailable, match="no answer in time"):
            await store._notify("tealagents_test_", ["00payload"])


async def test_a_notification_waits_for_a_connection_as_long_as_other_statements(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the pool is busy it comes late, and is not given up."""
    monkeypatch.setattr(postgres, "ANSWER_SECONDS", 60.0)
    async with store_of(f"{postgres_url}{PATIENT}&pool=1") as store:
        assert isinstance(store, PostgresStore)
        only = await store._pool.borrow()
        notifying = asyncio.create_task(store._notify("tealagents_test_", ["00payload"]))
        await ticks(3)
        advance(asyncio.get_running_loop(), 61)
        await ticks(3)
        store._pool.give_back(only)
        await notifying


async def test_of_idle_connections_that_have_gone_mute_only_the_first_costs_a_timeout(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was idle beside the one that did not answer is not tried."""
    monkeypatch.setattr("tealagents.stores.pool.IDLE_SECONDS", math.inf)
    async with (
        FaultProxy(postgres_server.host, postgres_server.port) as proxy,
        store_of(proxy.url_for(postgres_url) + PATIENT) as store,
    ):
        await three_connections(proxy, store)
        with pytest.raises(PersistenceUnavailable, match="no answer in time"):
            await overdue(store.read("p", ["key"]), PATIENCE, lambda: True)
        async with asyncio.timeout(60):
            assert await store.read("p", ["key"]) == [None]


async def test_a_connection_that_was_idle_for_minutes_is_not_tried(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall may have forgotten it and told no one."""
    async with (
        FaultProxy(postgres_server.host, postgres_server.port) as proxy,
        store_of(proxy.url_for(postgres_url) + "&command_timeout=600") as store,
    ):
        await three_connections(proxy, store)
        monkeypatch.setattr("tealagents.stores.pool.IDLE_SECONDS", 0)
        async with asyncio.timeout(60):
            assert await store.read("p", ["key"]) == [None]


async def test_closing_does_not_wait_for_a_server_that_is_away(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost by what other processes are not notified of: they look by themselves."""
    monkeypatch.setattr("tealagents.stores.pool.IDLE_SECONDS", math.inf)
    async with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        store = await store_of(proxy.url_for(postgres_url) + PATIENT).__aenter__()
        proxy.faults = Faults(blackhole=True)
        change = Commit(operation=operation_id(), put={"a": Put(b"")}, notify={"topic"})
        with pytest.raises(Unknown):
            await overdue(store.commit("p", change), PATIENCE, lambda: True)
        async with asyncio.timeout(60):
            await store.close()


async def test_a_canceled_commit_leaves_no_half(postgres_url: str, sql: "asyncpg.Connection") -> None:
    """A caller that is canceled while its commit waits leaves all of it or nothing, and the store usable."""
    async with store_of(postgres_url) as store:
        await store.commit("p", put("a", b"0"))
        schema = schema_of(postgres_url)
        async with holding(sql, postgres_url, "a"):
            change = Commit(operation=operation_id(), put={"a": Put(b"1"), "b": Put(b"1")})
            waiting = asyncio.create_task(store.commit("p", change))
            await blocked(sql)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await store.commit("p", put("c", b"1"))
        a, b = await store.read("p", ["a", "b"])
        assert (a is not None and a.value == b"1") == (b is not None)
        assert await sql.fetchval(f"SELECT count(*) FROM {schema}.records WHERE key = 'c'") == 1
