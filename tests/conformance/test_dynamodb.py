"""DynamoDB: the contract of stores, on moto's server, and what is this store's own."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.session import get_session
from aiohttp import web

from tealagents.domain.errors import Conflict, CorruptState, PersistenceUnavailable, Unknown
from tealagents.domain.ids import operation_id
from tealagents.domain.ports import Commit, Put, Record
from tealagents.stores import StoreConfigError
from tealagents.stores import plain_store as store_of
from tealagents.stores.base import AccessDenied
from tealagents.stores.dynamodb_service import DynamoService, ServiceClock
from tealagents.testing.faults import FaultProxy, Faults
from tealagents.testing.servers import DynamoServer, free_port
from tealagents.testing.store_steps import OpenStore, erase_expired, lost_reply
from tealagents.testing.stores import StoreContract
from tealagents.testing.waits import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()


class TestDynamo(StoreContract):
    reads_are_snapshots = False

    @pytest.fixture
    def open_store(self, dynamodb_server: DynamoServer) -> OpenStore:
        # the server is slow to accept a hundred connections on a busy machine
        return lambda: store_of(dynamodb_server.url_of("contract") + "&connect_timeout=60&command_timeout=60")


@pytest.fixture
async def client(dynamodb_server: DynamoServer) -> AsyncIterator[Any]:
    """The service itself, past the store."""
    made = get_session().create_client(
        "dynamodb", region_name="us-east-1", endpoint_url=dynamodb_server.endpoint
    )
    async with made as client:
        yield client


def table_of(url: str) -> str:
    return url.partition("://")[2].partition("?")[0]


def put(
    key: str, value: bytes, *, expect: dict[str, str | None] | None = None, ttl: float | None = None
) -> Commit:
    return Commit(operation=operation_id(), expect=expect or {}, put={key: Put(value, ttl)})


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("credentials")
async def test_replies_about_the_table_that_are_lost() -> None:
    """It is asked again; and a table that may have been made by this process is given its expiry."""
    lost: Answer = (200, "close", {})
    missing: Answer = (400, "ResourceNotFoundException", {})
    table = ("DescribeTable", "CreateTable")
    async with answering(lost, missing, lost, to=table) as (url, asked), store_of(url):
        assert asked == ["DescribeTable", "DescribeTable", "CreateTable", "DescribeTable", "UpdateTimeToLive"]


async def test_many_start_at_once(dynamodb_url: str, client: Any) -> None:
    """Replicas that start together make the table once: on demand, and with expiry on. covers: STATE-1"""

    async def start(number: int) -> None:
        async with store_of(dynamodb_url) as store:
            await store.commit("p", put(f"key/{number}", b"here"))

    await asyncio.gather(*(start(number) for number in range(4)))
    async with store_of(dynamodb_url) as store:
        assert len(await store.scan("p", "key/")) == 4
    table = await client.describe_table(TableName=table_of(dynamodb_url))
    assert table["Table"]["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    expiry = await client.describe_time_to_live(TableName=table_of(dynamodb_url))
    assert expiry["TimeToLiveDescription"]["AttributeName"] == "t"


async def test_a_table_that_erases_nothing_is_reported(
    dynamodb_url: str, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that was made by hand, or by a process that died before it came to it; with what to do."""
    table = table_of(dynamodb_url)
    async with store_of(dynamodb_url):
        pass
    off = {"Enabled": False, "AttributeName": "t"}
    await client.update_time_to_live(TableName=table, TimeToLiveSpecification=off)
    caplog.clear()
    async with store_of(dynamodb_url):
        (message,) = caplog.messages
    command = f"aws dynamodb update-time-to-live --table-name {table} --time-to-live-specification"
    assert message.endswith(f"Run `{command} Enabled=true,AttributeName=t`.")
    other = {"Enabled": True, "AttributeName": "expires"}
    await client.update_time_to_live(TableName=table, TimeToLiveSpecification=other)
    caplog.clear()
    async with store_of(dynamodb_url):
        (message,) = caplog.messages
    assert (
        f"Run `{command} Enabled=false,AttributeName=expires`, and an hour later `{command} Enab" in message
    )
    await client.update_time_to_live(TableName=table, TimeToLiveSpecification={**other, "Enabled": False})
    on = {"Enabled": True, "AttributeName": "t"}
    await client.update_time_to_live(TableName=table, TimeToLiveSpecification=on)
    caplog.clear()
    async with store_of(dynamodb_url):
        assert caplog.messages == []


@pytest.mark.usefixtures("credentials")
async def test_a_service_that_does_not_tell_of_expiry() -> None:
    """Nothing is asked again, and nothing fails."""
    answers: list[Answer] = [(400, "AccessDeniedException", {}), (200, "close", {})]
    for answer in answers:
        async with answering(answer, to=("DescribeTimeToLive",)) as (url, asked), store_of(url):
            assert asked == ["DescribeTable", "DescribeTimeToLive"]


@pytest.mark.usefixtures("credentials")
async def test_a_table_that_is_being_changed_is_used() -> None:
    """As after a change of its capacity: it can be read and written meanwhile."""
    async with answering(status_of_table="UPDATING") as (url, asked), store_of(url):
        assert asked == ["DescribeTable", "DescribeTimeToLive"]


@pytest.mark.parametrize(
    ("keys", "type_of_last"), [(["id"], "S"), (["p", "k"], "N")], ids=["other names", "another type"]
)
async def test_a_foreign_table_is_refused(
    dynamodb_url: str, client: Any, keys: list[str], type_of_last: str
) -> None:
    """A table with other keys is not touched."""
    types = dict.fromkeys(keys, "S") | {keys[-1]: type_of_last}
    await client.create_table(
        TableName=table_of(dynamodb_url),
        AttributeDefinitions=[{"AttributeName": k, "AttributeType": t} for k, t in types.items()],
        KeySchema=[
            {"AttributeName": key, "KeyType": kind}
            for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(StoreConfigError, match="its keys are not p and k"):
        await store_of(dynamodb_url).open()


async def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that cannot be one, a path, or no region anywhere: each is an error that says so."""
    for wrong in ("dynamodb://a b?region=r", "dynamodb://table/path?region=r", "dynamodb://table?regin=r"):
        with pytest.raises(StoreConfigError):
            store_of(wrong)
    endpoints = ("http://dynamodb_local:8000", "http://-host", "http:///path")
    for wrong in ("region=eu west", *(f"region=r&endpoint={endpoint}" for endpoint in endpoints)):
        with pytest.raises(StoreConfigError, match=re.escape(wrong.rpartition("=")[2])):
            await store_of(f"dynamodb://table?{wrong}").open()
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreConfigError, match=r"\?region="):
        await store_of("dynamodb://table").open()


# --- values in chunks -----------------------------------------------------------------------------


async def items_of(client: Any, url: str) -> list[str]:
    found = await client.scan(TableName=table_of(url), ConsistentRead=True)
    return sorted(item["k"]["S"] for item in found["Items"])


@pytest.mark.parametrize("known", [True, False], ids=["expected", "unconditional"])
async def test_pieces_go_with_their_record(dynamodb_url: str, client: Any, known: bool) -> None:
    """Replacing or deleting a value in chunks takes all of them along, at once."""
    async with store_of(dynamodb_url) as store:
        first, second = put("big", b"1" * 900_000), put("big", b"2" * 700_001)
        await store.commit("p", first)
        assert await items_of(client, dynamodb_url) == ["big"] + [
            f"big#{first.operation}#{n}" for n in range(3)
        ]
        expect: dict[str, str | None] = {"big": first.operation} if known else {}
        second = Commit(operation=second.operation, expect=expect, put=second.put)
        await store.commit("p", second)
        assert await items_of(client, dynamodb_url) == ["big"] + [
            f"big#{second.operation}#{n}" for n in range(3)
        ]
        (record,) = await store.read("p", ["big"])
        assert record is not None
        assert record.value == b"2" * 700_001
        assert [key for key, _ in await store.scan("p", "")] == ["big"]
        with pytest.raises(Conflict):
            await store.commit("p", Commit(operation=operation_id(), expect={"big": None}, delete=["big"]))
        expect = {"big": second.operation} if known else {}
        await store.commit("p", Commit(operation=operation_id(), expect=expect, delete=["big"]))
        assert await items_of(client, dynamodb_url) == []


async def test_a_retry_keeps_its_pieces(dynamodb_url: str) -> None:
    """A commit that is sent again under the same operation leaves its value whole."""
    async with store_of(dynamodb_url) as store:
        change = put("big", b"1" * 900_000)
        await store.commit("p", change)
        await store.commit("p", change)
        (record,) = await store.read("p", ["big"])
        assert record is not None
        assert len(record.value) == 900_000


async def test_reading_while_pieces_are_replaced(dynamodb_url: str) -> None:
    """A reader sees one value or the other, never parts of both and never none."""
    async with store_of(dynamodb_url) as store:
        await store.commit("p", put("big", b"0" * 360_000))

        async def replace() -> None:
            for number in range(1, 8):
                await store.commit("p", put("big", b"%d" % number * 360_000))

        replacing = asyncio.create_task(replace())
        while not replacing.done():
            (record,) = await store.read("p", ["big"])
            assert record is not None
            assert len(set(record.value)) == 1
            assert len(record.value) == 360_000
        await replacing


async def test_a_lost_piece_is_corrupt(dynamodb_url: str, client: Any) -> None:
    """A value that lacks a chunk, or an item that is no record, is corrupt state; a scan returns what there
    is of it, and it can be deleted. covers: STATE-4"""
    async with store_of(dynamodb_url) as store:
        change = put("big", b"1" * 900_000)
        await store.commit("p", change)
        await store.commit("p", put("good", b"1"))
        name = {"p": {"S": "p#"}, "k": {"S": f"big#{change.operation}#1"}}
        await client.delete_item(TableName=table_of(dynamodb_url), Key=name)
        with pytest.raises(CorruptState, match="big"):
            await store.read("p", ["big"])
        await client.put_item(TableName=table_of(dynamodb_url), Item={"p": {"S": "p"}, "k": {"S": "bad"}})
        with pytest.raises(CorruptState, match="bad"):
            await store.read("p", ["bad"])
        when = {"v": {"S": change.operation}, "d": {"B": b"x"}, "e": {"S": "soon"}}
        await client.put_item(
            TableName=table_of(dynamodb_url), Item={"p": {"S": "p"}, "k": {"S": "e"}, **when}
        )
        with pytest.raises(CorruptState, match="'N' is missing or wrong"):
            await store.read("p", ["e"])
        (good,) = await store.read("p", ["good"])
        assert good is not None
        damaged = [("bad", Record(b"", "")), ("big", Record(b"", change.operation))]
        damaged += [("e", Record(b"x", change.operation))]
        assert await store.scan("p", "") == [*damaged, ("good", good)]
        await store.commit("p", Commit(operation=operation_id(), delete=["bad", "big", "e"]))
        assert await store.scan("p", "") == [("good", good)]


# --- time -----------------------------------------------------------------------------------------


async def test_what_expires_is_absent_before_it_is_erased(dynamodb_url: str, client: Any) -> None:
    """DynamoDB erases late: until then an expired record is there and counts as absent."""
    async with store_of(dynamodb_url) as store:
        await store.commit("p", put("key", b"1" * 400_000, ttl=0.05))
        await asyncio.sleep(0.1)
        assert len(await items_of(client, dynamodb_url)) == 3
        assert await store.read("p", ["key"]) == [None]
        assert await store.scan("p", "") == []
        await store.commit("p", put("key", b"2", expect={"key": None}))
        assert await items_of(client, dynamodb_url) == ["key"]


async def test_what_expired_is_erased_by_name(dynamodb_url: str, client: Any) -> None:
    """With its chunks, and days before DynamoDB would do it. covers: STATE-2"""
    async with store_of(dynamodb_url) as store:
        await store.commit("p", put("large", b"1" * 400_000, ttl=0.05))
        await store.commit("p", put("small", b"1", ttl=0.05))
        await asyncio.sleep(0.1)
        assert sorted(await erase_expired(store, "p")) == ["large", "small"]
        assert await items_of(client, dynamodb_url) == []


@pytest.mark.usefixtures("credentials")
async def test_a_scan_passes_over_hundreds_of_expired_records_in_a_few_calls(
    dynamodb_url: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few are wanted, and no more than these are returned."""
    async with store_of(dynamodb_url) as store:
        for first in range(0, 500, 25):
            items = [
                {"p": {"S": "p"}, "k": {"S": f"events/{n:03}"}, "v": {"S": ""}, "e": {"N": "1"}}
                for n in range(first, first + 25)
            ]
            written = [{"PutRequest": {"Item": item}} for item in items]
            await client.batch_write_item(RequestItems={table_of(dynamodb_url): written})
        for n in range(4):
            await store.commit("p", put(f"log/{n}", b"1"))
        asked, ask = 0, DynamoService.ask

        async def counting(*arguments: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            return await ask(*arguments, **options)

        monkeypatch.setattr(DynamoService, "ask", counting)
        assert [key for key, _ in await store.scan("p", "", limit=3)] == ["log/0", "log/1", "log/2"]
        assert asked < 20


def test_the_services_clock() -> None:
    """Replies narrow down how far its clock is from ours; a clock that was set is followed at once."""
    clock = ServiceClock()
    ours = clock.now()
    clock.observe(0, "no date")
    assert clock.now() == pytest.approx(ours, abs=1)
    for ahead in (0, 3600, -86400, 0):
        clock.observe(time.monotonic(), formatdate(time.time() + ahead, usegmt=True))
        before, now, after = time.time() + ahead, clock.now(), time.time() + ahead
        assert before - 1.1 <= now <= after + 1.1


@pytest.mark.usefixtures("credentials")
async def test_one_clock() -> None:
    """All processes go by the service's clock, which is not that of their machines."""
    async with answering(ahead=3600) as (url, _), store_of(url) as a, store_of(url) as b:
        for store in (a, b):
            before, now = time.time() + 3600, await store.now()
            assert before - 1.1 <= now <= time.time() + 3600 + 1.1


# --- when the service is away, busy, or breaks off --------------------------------------------------


Answer = tuple[int, str, dict[str, Any]]


#: the calls that change something
WRITES = ("PutItem", "TransactWriteItems")


@asynccontextmanager
async def answering(
    *answers: Answer, to: Sequence[str] = WRITES, ahead: float = 0, status_of_table: str = "ACTIVE"
) -> AsyncIterator[tuple[str, list[str]]]:
    """A service that gives these answers, one after the other, and to all other calls "nothing there".

    Its clock is so many seconds `ahead`.
    """
    asked: list[str] = []
    left = list(answers)

    async def answer(request: web.Request) -> web.Response:
        operation = request.headers["X-Amz-Target"].partition(".")[2]
        asked.append(operation)
        body: dict[str, Any] = {}
        status = 200
        if operation in to and left:
            status, kind, body = left.pop(0)
            if kind == "close":
                assert request.transport is not None
                request.transport.close()
            elif kind:
                body = {"__type": f"com.amazonaws.dynamodb.v20120810#{kind}", "message": "as asked", **body}
        elif operation == "DescribeTable":
            schema = [{"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": "k", "KeyType": "RANGE"}]
            types = [{"AttributeName": name, "AttributeType": "S"} for name in ("p", "k")]
            body = {
                "Table": {"TableStatus": status_of_table, "KeySchema": schema, "AttributeDefinitions": types}
            }
        elif operation == "BatchGetItem":
            body = {"Responses": {}}
        elif operation == "Query":
            body = {"Items": []}
        date = formatdate(time.time() + ahead, usegmt=True)
        return web.Response(
            status=status,
            body=json.dumps(body).encode(),
            content_type="application/x-amz-json-1.0",
            headers={"date": date},
        )

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"dynamodb://table?region=us-east-1&endpoint=http://127.0.0.1:{port}", asked
    finally:
        await runner.cleanup()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


ONE = put("a", b"1")
TWO = Commit(operation=operation_id(), put={"a": Put(b"1"), "b": Put(b"2")})


def canceled(*reasons: str) -> Answer:
    return 400, "TransactionCanceledException", {"CancellationReasons": [{"Code": code} for code in reasons]}


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    ("commit", "answer"),
    [
        (ONE, (400, "ProvisionedThroughputExceededException", {})),
        (ONE, (400, "TransactionConflictException", {})),
        (TWO, (400, "ThrottlingException", {})),
        (TWO, canceled("None", "TransactionConflict")),
        (TWO, canceled("ThrottlingError", "None")),
    ],
)
async def test_a_busy_service_is_asked_again(
    commit: Commit, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the service says that it did nothing for now, the commit is sent again. After eight attempts the
    refusal names the reason: a conflict passes, but a table without capacity needs more of it."""
    monkeypatch.setattr("tealagents.stores.dynamodb_service.PAUSE", 0.001)
    async with answering(answer, answer) as (url, asked), store_of(url) as store:
        await store.commit("p", commit)
        assert len([name for name in asked if name in ("PutItem", "TransactWriteItems")]) == 3
    async with answering(*[answer] * 20) as (url, _), store_of(url) as store:
        with pytest.raises(PersistenceUnavailable, match=f"a commit was refused 8 times: {answer[1]}"):
            await store.commit("p", commit)


@pytest.mark.usefixtures("credentials")
async def test_what_a_read_leaves_out_is_asked_for_eight_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that never has room for it does not hold the caller for ever."""
    monkeypatch.setattr("tealagents.stores.dynamodb_service.PAUSE", 0.001)
    key = {"p": {"S": "p"}, "k": {"S": "a"}}
    answer: Answer = (200, "", {"Responses": {}, "UnprocessedKeys": {"table": {"Keys": [key]}}})
    reading = ["BatchGetItem"]
    async with answering(*[answer] * 7, to=reading) as (url, asked), store_of(url) as store:
        assert await store.read("p", ["a"]) == [None]
        assert asked.count("BatchGetItem") == 8
    async with answering(*[answer] * 20, to=reading) as (url, asked), store_of(url) as store:
        with pytest.raises(PersistenceUnavailable, match="returned none of the requested keys 8 times"):
            await store.read("p", ["a"])
        assert asked.count("BatchGetItem") == 8


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize("commit", [ONE, TWO], ids=["item", "transaction"])
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((500, "InternalServerError", {}), Unknown),
        ((503, "ServiceUnavailable", {}), Unknown),
        ((200, "close", {}), Unknown),
        ((400, "AccessDeniedException", {}), PersistenceUnavailable),
        ((400, "ResourceNotFoundException", {}), PersistenceUnavailable),
    ],
)
async def test_a_write_is_sent_once(commit: Commit, answer: Answer, error: type[Exception]) -> None:
    """Where the service breaks off a write is in doubt and not repeated; where it refuses it is not done."""
    async with answering(answer) as (url, asked), store_of(url) as store:
        with pytest.raises(error):
            await store.commit("p", commit)
        assert len([name for name in asked if name in ("PutItem", "TransactWriteItems")]) == 1


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    ("operation", "before"),
    [
        ("DescribeTable", []),
        ("CreateTable", ["DescribeTable"]),
        ("UpdateTimeToLive", ["DescribeTable", "CreateTable"]),
        *((name, []) for name in ("BatchGetItem", "Query", "PutItem", "DeleteItem", "TransactWriteItems")),
    ],
)
async def test_credentials_that_lack_a_right_are_refused_with_what_to_grant(
    operation: str, before: list[str]
) -> None:
    """The service runs and its table is named rightly: neither is to be looked at."""
    first: dict[str, Answer] = {
        "DescribeTable": (400, "ResourceNotFoundException", {}),
        "CreateTable": (200, "", {}),
    }
    why = f"User: arn:aws:iam::1:user/ann is not authorized to perform: dynamodb:{operation}"
    answers = [*map(first.__getitem__, before), (400, "AccessDeniedException", {"message": why})]

    async def use(url: str) -> None:
        async with store_of(url) as store:
            await store.read("p", ["a"])
            await store.scan("p", "")
            await store.commit("p", ONE)
            await store.commit("p", TWO)
            await store.commit("p", Commit(operation=operation_id(), delete=["a"]))

    async with answering(*answers, to=[*before, operation]) as (url, _):
        with pytest.raises(AccessDenied, match=why) as refused:
            await use(url)
    said = str(refused.value)
    [rights] = re.findall(r"They need the rights (.*?)\.", PAGE, re.DOTALL)
    for right in re.findall(r"`(\w+)`", rights):
        assert right in said
    assert "is running" not in said


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    "code",
    [
        "ExpiredTokenException",
        "IncompleteSignatureException",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    ],
)
async def test_refused_credentials_are_reported_with_what_to_correct(code: str) -> None:
    """At the start and later. The service runs and its table is named rightly: neither is to be looked at."""
    said = "The security token included in the request is invalid."

    async def use(url: str) -> None:
        async with store_of(url) as store:
            await store.read("p", ["a"])
            await store.commit("p", ONE)

    for operation in ("DescribeTable", "BatchGetItem", "PutItem"):
        async with answering((400, code, {"message": said}), to=[operation]) as (url, _):
            with pytest.raises(AccessDenied, match=f"{code}: {said} .*AWS_ACCESS_KEY_ID") as failed:
                await use(url)
        assert "is running" not in str(failed.value)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "Unable to locate credentials"),
        ({"AWS_ACCESS_KEY_ID": "testing"}, "Partial credentials found in env"),
        ({"AWS_PROFILE": "nowhere"}, "The config profile .nowhere. could not be found"),
        ({"AWS_ROLE_ARN": "arn:aws:iam::1:role/a", "AWS_WEB_IDENTITY_TOKEN_FILE": "/none"}, "No such file"),
    ],
)
async def test_missing_credentials_are_reported_with_what_to_set(
    variables: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with answering() as (url, asked):
        with pytest.raises(AccessDenied, match=f"{said}.*AWS_ACCESS_KEY_ID") as failed:
            await store_of(url).open()
    assert not asked
    assert "is running" not in str(failed.value)


async def test_credentials_that_cannot_be_renewed_are_reported_until_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a machine's role, which soon expire: nothing was sent, and nothing has to be restarted."""
    given = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c"}
    soon, past = (
        json.dumps({**given, "Expiration": f"{datetime.now(UTC) + timedelta(minutes=minutes):%Y-%m-%dT%XZ}"})
        for minutes in (5, -5)
    )
    (program := tmp_path / "give").symlink_to("/bin/cat")
    (config := tmp_path / "config").write_text(f"[default]\ncredential_process={program} {tmp_path}/given\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    (tmp_path / "given").write_text(soon)
    async with answering() as (url, asked), store_of(url) as store:
        asked.clear()
        (tmp_path / "given").write_text(past)
        with pytest.raises(AccessDenied, match=r"still expired.*AWS_ACCESS_KEY_ID"):
            await store.read("p", ["a"])
        program.unlink()
        with pytest.raises(AccessDenied, match=r"No such file.*AWS_ACCESS_KEY_ID"):
            await store.commit("p", ONE)
        assert not asked
        program.symlink_to("/bin/cat")
        (tmp_path / "given").write_text(soon)
        await store.commit("p", ONE)


@pytest.mark.usefixtures("credentials")
async def test_an_endpoint_of_another_service_is_reported() -> None:
    """It takes any call, and its answers are not DynamoDB's: a web server, or a proxy with its own page."""
    async with answering((200, "", {}), to=["DescribeTable"]) as (url, _):
        with pytest.raises(PersistenceUnavailable, match="does not answer as DynamoDB does"):
            await store_of(url).exists()


@pytest.mark.usefixtures("credentials")
async def test_a_condition_that_held_again(dynamodb_url: str) -> None:
    """A condition that failed and holds when looked at is tried again: things have changed since."""
    failed: Answer = (400, "ConditionalCheckFailedException", {})
    async with answering(failed) as (url, asked), store_of(url) as store:
        await store.commit("p", put("a", b"1", expect={"a": None}))
        assert asked.count("PutItem") == 2


@pytest.mark.usefixtures("credentials")
async def test_a_service_that_is_not_there() -> None:
    """A service that refuses connections is an error at start that names the place and no credentials."""
    url = "dynamodb://table?region=us-east-1&endpoint=http://127.0.0.1:1"
    with pytest.raises(PersistenceUnavailable, match=r"127\.0\.0\.1"):
        await store_of(url).open()


@pytest.mark.parametrize("faults", [Faults(drop_replies=True), Faults(cut_replies_after=10)])
async def test_a_lost_reply_is_unknown(
    dynamodb_server: DynamoServer, dynamodb_url: str, faults: Faults
) -> None:
    """Where the reply to a commit is lost its outcome is unknown, and a read reveals it. covers: STATE-4"""
    proxy = FaultProxy(dynamodb_server.host, dynamodb_server.port)
    await lost_reply(proxy, store_of, dynamodb_url, faults)


async def test_a_reset_while_waiting_is_unknown(dynamodb_server: DynamoServer, dynamodb_url: str) -> None:
    """A connection that is reset after the request was sent is not taken for one that could not be made."""
    async with (
        FaultProxy(dynamodb_server.host, dynamodb_server.port) as proxy,
        store_of(proxy.url_for(dynamodb_url)) as store,
    ):
        proxy.faults = Faults(drop_replies=True)
        waiting = asyncio.create_task(store.commit("p", put("key", b"2")))
        await eventually(lambda: any(connection.passed["request"] for connection in proxy.connections))
        await asyncio.sleep(0.1)
        proxy.reset_all()
        with pytest.raises(Unknown):
            await waiting


async def test_a_canceled_commit(dynamodb_server: DynamoServer, dynamodb_url: str) -> None:
    """A caller that is canceled leaves all of its commit or nothing, and the store usable."""
    async with (
        FaultProxy(dynamodb_server.host, dynamodb_server.port) as proxy,
        store_of(proxy.url_for(dynamodb_url)) as store,
    ):
        change = Commit(operation=operation_id(), put={"a": Put(b"1"), "b": Put(b"1")})
        proxy.faults = Faults(delay=0.05)
        waiting = asyncio.create_task(store.commit("p", change))
        await asyncio.sleep(0.08)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        proxy.calm()
        a, b = await store.read("p", ["a", "b"])
        assert (a is None) == (b is None)
