"""State in DynamoDB, for any number of processes on any number of machines.

``dynamodb://table?region=eu-west-1`` with the credentials that AWS's own tools find; ``&endpoint=http://…``
for another service that speaks its protocol. The table is created if it is missing: on demand, with expiry.

An item of the table is a record, or a chunk of one whose value exceeds what an item may hold:

=========  ============================  =======================================================
attribute  of a record                   of a chunk
=========  ============================  =======================================================
``p``      the partition                 the partition and ``#``, which no partition contains
``k``      the key                       ``{key}#{version}#{number}``
``v``      the version
``d``      the value, unless in chunks   its part of the value
``n``      how many chunks, if any
``e``      expiry, in milliseconds
``t``      the same in seconds, late     the same: when DynamoDB may delete the item
=========  ============================  =======================================================

A commit of one record is a conditional write, of several a transaction. Chunks are written, and those of a
replaced or deleted record deleted, in the same transaction, so that none is ever missing or left over.
"""

import math
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from botocore.exceptions import ClientError
from pydantic import AfterValidator, Field

from tealagents.domain.errors import Conflict, CorruptState, PersistenceUnavailable, Unknown
from tealagents.domain.ports import Commit, Record
from tealagents.stores.base import (
    BaseStore,
    StoreConfigError,
    StoreOptions,
    StoreUrl,
    check_commit,
    check_key,
    check_keys,
    check_scan,
    is_address,
    scan_bounds,
)
from tealagents.stores.dynamodb_service import (
    ATTEMPTS,
    BUSY,
    DynamoService,
    codes,
    is_about_credentials,
    may_have_run,
    pause,
    reason,
)

__all__ = ["DynamoOptions", "DynamoStore"]

#: bytes of a value in one item; the service allows 400 KB, including names and keys
CHUNK: Final = 350_000
#: items that one call can read
BATCH: Final = 100
#: seconds after which the service is asked for its time again
GLANCE: Final = 10.0

Item = Mapping[str, Any]

_WHOLE: Final[Mapping[str, str]] = {}
_WITHOUT_VALUE: Final[Mapping[str, str]] = {"ProjectionExpression": "k, v, e, n"}

#: the outcome of a write: the keys whose conditions failed, if any; or why nothing was written for now
_Outcome = list[str] | str


def _table(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{3,255}", name):
        raise ValueError("a table's name has 3 to 255 letters, digits, '_', '-' and '.'")
    return name


def _endpoint(url: str) -> str:
    if not re.fullmatch(r"https?://[^@]+", url):
        raise ValueError("must be an http:// or https:// URL, without credentials")
    if not is_address(url.split("/")[2]):
        raise ValueError("its host or port cannot be read")
    return url


class DynamoOptions(StoreOptions):
    table: Annotated[str, AfterValidator(_table)]
    #: needed if AWS's own configuration does not name it
    region: str | None = None
    endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None
    #: the most connections of this process
    pool: int = Field(default=50, ge=1, le=1000)
    connect_timeout: float = Field(default=5, gt=0)
    #: seconds for one call; a commit that takes longer ends with its outcome unknown
    command_timeout: float = Field(default=10, gt=0)

    @classmethod
    def location(cls, url: StoreUrl) -> dict[str, Any]:
        if url.path.strip("/"):
            raise StoreConfigError(f"{url.safe}: it must be dynamodb://table?region=…")
        return {"table": url.netloc}


class _Chunked(NamedTuple):
    """The version and the number of chunks of a stored record, which are deleted with it."""

    version: str
    number: int


class DynamoStore(BaseStore):
    """An item for each record, a conditional transaction for each commit."""

    name = "dynamodb"
    shared = True
    durable = True
    options_type: ClassVar[type[StoreOptions]] = DynamoOptions
    options: DynamoOptions

    def __init__(self, options: DynamoOptions) -> None:
        super().__init__(options)
        self._table = options.table
        self._service = DynamoService(
            options.table,
            self.unavailable,
            self._refusal,
            region=options.region,
            endpoint=options.endpoint,
            size=options.pool,
            connect_timeout=options.connect_timeout,
            command_timeout=options.command_timeout,
        )

    @property
    def where(self) -> str:
        return f"{self.options.endpoint or self.options.region or 'AWS'}, table {self._table}"

    async def exists(self) -> bool:
        try:
            await self._service.connect()
            return await self._service.description() is not None
        finally:
            await self.close()

    async def open(self) -> None:
        try:
            await self._service.connect()
            await self._service.make_table()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._service.close()

    async def now(self) -> float:
        if self._service.clock.age() > GLANCE:
            await self.ping()
        return self._service.clock.now()

    async def answer(self) -> None:
        await self._items("ping", ["ping"])

    # --- reading ----------------------------------------------------------------------------------

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        check_keys(partition, keys)
        items = await self._items(partition, keys)
        return [await self._record(partition, key, items.get(key)) for key in keys]

    async def scan(
        self,
        partition: str,
        prefix: str,
        *,
        after: str | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[tuple[str, Record]]:
        check_scan(partition, prefix, after, limit)
        low, high = scan_bounds(prefix, after, reverse)
        found: list[tuple[str, Record]] = []
        if low >= high:
            return found
        async for item in self._query(partition, low or " ", high, limit, reverse):
            key = item["k"]["S"]
            if key != high and (record := await self._listed(partition, key, item)):
                found.append((key, record))
            if len(found) == limit:
                break
        return found

    async def expired(self, partition: str, *, limit: int = 100) -> list[str]:
        check_key(partition)
        found: list[str] = []
        low, high = scan_bounds("", None, reverse=False)
        async for item in self._query(partition, low or " ", high, limit, reverse=False):
            if self._expired(item):
                found.append(item["k"]["S"])
            if len(found) == limit:
                break
        return found

    async def _query(
        self, partition: str, low: str, high: str, limit: int, reverse: bool
    ) -> AsyncIterator[Item]:
        """The items between two keys, both included, page by page."""
        request: dict[str, Any] = {
            "TableName": self._table,
            "ConsistentRead": True,
            "KeyConditionExpression": "p = :p AND k BETWEEN :low AND :high",
            "ExpressionAttributeValues": {":p": {"S": partition}, ":low": {"S": low}, ":high": {"S": high}},
            "ScanIndexForward": not reverse,
            "Limit": limit + 1,
        }
        while True:
            page = await self._service.ask("query", request)
            for item in page["Items"]:
                yield item
            if "LastEvaluatedKey" not in page:
                return
            # if many items have expired and are not deleted yet, the next page has to skip more of them
            request["Limit"] += sum(map(self._expired, page["Items"]))
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    async def _record(self, partition: str, key: str, item: Item | None) -> Record | None:
        """The record of an item, with its chunks joined; read again if it was replaced meanwhile."""
        for _ in range(ATTEMPTS):
            if item is None or self._expired(item):
                return None
            try:
                version = item["v"]["S"]
                _expiry(item)
                if "n" not in item:
                    return Record(item["d"]["B"], version)
                names = _chunk_names(key, version, int(item["n"]["N"]))
            except (KeyError, ValueError) as error:
                raise CorruptState(key, f"is not a record: {error} is missing or wrong") from None
            chunks = await self._items(partition + "#", names)
            if len(chunks) == len(names):
                return Record(b"".join(chunks[name]["d"]["B"] for name in names), version)
            item = (await self._items(partition, [key])).get(key)
        raise CorruptState(key, "lacks some of its chunks")

    async def _listed(self, partition: str, key: str, item: Item) -> Record | None:
        """A record for `scan`: a damaged one is returned as it is stored."""
        try:
            return await self._record(partition, key, item)
        except CorruptState:
            return Record(item.get("d", {}).get("B", b""), item.get("v", {}).get("S", ""))

    async def _items(
        self, partition: str, keys: Iterable[str], attributes: Mapping[str, str] = _WHOLE
    ) -> dict[str, Item]:
        """The existing items, by key, read consistently."""
        wanted = [{"p": {"S": partition}, "k": {"S": key}} for key in dict.fromkeys(keys)]
        found: dict[str, Item] = {}
        idle = 0
        while wanted:
            request = {self._table: {"Keys": wanted[:BATCH], "ConsistentRead": True, **attributes}}
            reply = await self._service.ask("batch_get_item", {"RequestItems": request})
            items = reply["Responses"].get(self._table, [])
            left = reply.get("UnprocessedKeys", {}).get(self._table, {}).get("Keys", [])
            found.update((item["k"]["S"], item) for item in items)
            wanted = left + wanted[BATCH:]
            # a reply may leave keys out because it was large (they come next), or because of throttling
            idle = idle + 1 if left and not items else 0
            if idle == ATTEMPTS:
                raise self.unavailable(f"it returned none of the requested keys {ATTEMPTS} times")
            if idle:
                await pause(idle)
        return found

    def _expired(self, item: Item) -> bool:
        try:
            return _expiry(item) <= self._service.clock.now() * 1000
        except (KeyError, ValueError):  # a damaged record, which a read reports
            return False

    # --- committing -------------------------------------------------------------------------------

    async def commit(self, partition: str, commit: Commit) -> None:
        check_commit(partition, commit)
        in_chunks: dict[str, _Chunked] = {}
        for attempt in range(1, ATTEMPTS + 1):
            outcome = await self._write(self._actions(partition, commit, in_chunks))
            if not outcome:
                return
            if isinstance(outcome, list):
                in_chunks = await self._what_is_there(partition, commit, outcome)
                outcome = "its records have changed meanwhile"
            await pause(attempt)
        raise self.unavailable(f"a commit was refused {ATTEMPTS} times: {outcome}")

    def _actions(self, partition: str, commit: Commit, in_chunks: Mapping[str, _Chunked]) -> "list[_Action]":
        """The actions of a commit, with their conditions; records not in `in_chunks` must have no chunks."""
        actions = []
        now = int(self._service.clock.now() * 1000)
        for key in {**commit.expect, **commit.put, **dict.fromkeys(commit.delete)}:
            name, old = {"p": {"S": partition}, "k": {"S": key}}, in_chunks.get(key)
            condition = _condition(commit, key, old, now)
            if key in commit.put:
                item, *chunks = _items_of(name, commit.operation, *commit.put[key], now)
                actions.append(_Action(key, "Put", {"Item": item, **condition}))
                actions += [_Action("", "Put", {"Item": chunk}) for chunk in chunks]
            elif key in commit.delete:
                actions.append(_Action(key, "Delete", {"Key": name, **condition}))
            else:
                actions.append(_Action(key, "ConditionCheck", {"Key": name, **condition}))
            if old is not None and old.version != commit.operation:
                names = ({"p": {"S": partition + "#"}, "k": {"S": k}} for k in _chunk_names(key, *old))
                actions += [_Action("", "Delete", {"Key": chunk}) for chunk in names]
        return actions

    async def _write(self, actions: "Sequence[_Action]") -> "_Outcome":
        try:
            if len(actions) == 1 and actions[0].kind != "ConditionCheck":
                await self._service.call(f"{actions[0].kind.lower()}_item", actions[0].on(self._table))
            elif actions:
                items = [{action.kind: action.on(self._table)} for action in actions]
                await self._service.call("transact_write_items", {"TransactItems": items})
        except ClientError as error:
            reasons = codes(error)
            each = zip(actions, reasons, strict=False)  # one for each action, or one for all
            if failed := [action.key for action, code in each if code.startswith("ConditionalCheckFailed")]:
                return failed
            if not BUSY.isdisjoint(reasons):
                return reason(error)
            if may_have_run(error):
                raise Unknown(reason(error)) from None
            raise self._refusal(error) from None
        return []

    def _refusal(self, error: Exception) -> PersistenceUnavailable:
        if is_about_credentials(error):
            return self.denied(
                reason(error),
                "Correct the credentials that AWS's own tools find: AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role. A wrong clock makes them be "
                "refused, too.",
            )
        if not isinstance(error, ClientError) or "AccessDeniedException" not in codes(error):
            return self.unavailable(reason(error))
        return self.denied(
            error.response["Error"].get("Message"),
            "In the user's policy, allow dynamodb:DescribeTable, BatchGetItem, Query, PutItem, DeleteItem, "
            "ConditionCheckItem for this table, and for the first start CreateTable and UpdateTimeToLive.",
        )

    async def _what_is_there(
        self, partition: str, commit: Commit, failed: Sequence[str]
    ) -> dict[str, _Chunked]:
        """The commit's stored records that are in chunks; `Conflict` if an expectation does not hold.

        If all expectations hold and nothing is in chunks, the records have changed since the conditions
        failed, and the commit can be retried.
        """
        found = await self._items(partition, {*failed, *commit.put, *commit.delete}, _WITHOUT_VALUE)
        items = {key: item for key, item in found.items() if "v" in item}  # what has none is no record
        present = {key: item["v"]["S"] for key, item in items.items() if not self._expired(item)}
        expected = {key: commit.expect[key] for key in failed if key in commit.expect}
        if differing := [key for key, version in expected.items() if present.get(key) != version]:
            raise Conflict(*differing)
        return {
            key: _Chunked(item["v"]["S"], int(item["n"]["N"])) for key, item in items.items() if "n" in item
        }


# --- parts of a commit ------------------------------------------------------------------------------


class _Action(NamedTuple):
    """One part of a transaction."""

    #: the record's key; empty for a chunk
    key: str
    kind: Literal["Put", "Delete", "ConditionCheck"]
    request: Mapping[str, Any]

    def on(self, table: str) -> Mapping[str, Any]:
        return {"TableName": table, **self.request}


def _condition(commit: Commit, key: str, known: _Chunked | None, now: int) -> Mapping[str, Any]:
    """The condition on a record under which a commit may touch it.

    One that is replaced or deleted must have no chunks, or exactly the `known` ones, which are deleted, too.
    """
    parts: list[str] = []
    values: dict[str, Any] = {}
    if key in commit.expect:
        values[":now"] = {"N": str(now)}
        if (version := commit.expect[key]) is None:
            parts.append("(attribute_not_exists(v) OR e <= :now)")
        else:
            parts.append("v = :v AND (attribute_not_exists(e) OR e > :now)")
            values[":v"] = {"S": version}
    if key in commit.put or key in commit.delete:
        if known is None:
            parts.append("attribute_not_exists(n)")
        else:
            parts.append("v = :known")
            values[":known"] = {"S": known.version}
    condition = {"ConditionExpression": " AND ".join(parts)}
    return {**condition, "ExpressionAttributeValues": values} if values else condition


def _items_of(name: Item, version: str, value: bytes, ttl: float | None, now: int) -> list[Item]:
    """The item of a record, and its chunks if the value is too large for one item."""
    expiry = {} if ttl is None else {"e": {"N": str(now + math.ceil(ttl * 1000))}}
    # whole seconds, and later than any clock of ours: what DynamoDB deletes is then long forgotten
    later = {} if ttl is None else {"t": {"N": str(now // 1000 + math.ceil(ttl) + 60)}}
    item = {**name, "v": {"S": version}, **expiry, **later}
    if len(value) <= CHUNK:
        return [{**item, "d": {"B": value}}]
    parts = [value[start : start + CHUNK] for start in range(0, len(value), CHUNK)]
    names = _chunk_names(name["k"]["S"], version, len(parts))
    chunks = [
        {"p": {"S": name["p"]["S"] + "#"}, "k": {"S": k}, "d": {"B": part}, **later}
        for k, part in zip(names, parts, strict=True)
    ]
    return [{**item, "n": {"N": str(len(parts))}}, *chunks]


def _expiry(item: Item) -> float:
    """When a record expires, in milliseconds. Raises `KeyError` or `ValueError` for a damaged one."""
    return int(item["e"]["N"]) if "e" in item else math.inf


def _chunk_names(key: str, version: str, count: int) -> list[str]:
    return [f"{key}#{version}#{number}" for number in range(count)]
