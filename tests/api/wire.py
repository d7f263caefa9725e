"""What the tests of the wire share: bodies, problem documents, streams, and what the store holds."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpx
import msgspec

from tealagents.domain.errors import Conflict
from tealagents.domain.ids import operation_id
from tealagents.domain.models import Worker
from tealagents.domain.ports import Commit, Put, Record, Store
from tealagents.state import keys
from tealagents.state.codec import seal, unseal
from tealagents.stores import plain_store
from tealagents.testing.service import ServiceThread

Json = dict[str, Any]

JSON = {"content-type": "application/json"}
#: a UUID that nothing has
NOBODYS = "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"


def text(words: str, **fields: Any) -> Json:
    """A message of one piece of text."""
    return {"items": [{"content_type": "text", "content": words}], **fields}


def problem(answer: httpx.Response, status: int, code: str, field: str | None = None) -> Json:
    """The problem document of an answer, which must be this one, and whole (RFC 9457)."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: Json = answer.json()
    assert document["code"] == code, document
    assert document["status"] == status
    assert document["type"] == f"urn:tealagents:problem:{code}"
    assert document["title"]
    assert document["detail"].strip()
    assert len(answer.content) < 4000
    if field is not None:
        assert document["field"] == field, document
    return document


class Event:
    """One server-sent event."""

    def __init__(self, name: str, number: int | None, data: Json) -> None:
        self.name = name
        self.number = number
        self.data = data

    def __repr__(self) -> str:
        return f"{self.number}:{self.name}"


def events(stream: str | Iterator[str]) -> Iterator[Event]:
    """The events of a stream, or of the lines of one; each `data` is one line of JSON."""
    fields: dict[str, str] = {}
    for line in stream.split("\n") if isinstance(stream, str) else stream:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            assert name not in fields, line
            fields[name] = value
        elif fields:
            number = int(fields["id"]) if "id" in fields else None
            yield Event(fields["event"], number, json.loads(fields["data"]))
            fields = {}


def streamed(client: httpx.Client, path: str, body: Json, **headers: str) -> list[Event]:
    """The events of a message or a decision."""
    answer = client.post(path, json=body, headers={"accept": "text/event-stream", **headers})
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    return list(events(answer.text))


def store_of(service: ServiceThread) -> Store:
    """The store of a service in this process."""
    store: Store = service.app.exchange.service.records.store
    return store


def records(store: Store, partition: str, prefix: str = "") -> dict[str, Record]:
    """All records of a partition. Stores of this process may be read from any event loop while idle."""
    return asyncio.run(_records(store, partition, prefix))


def records_of_each(store: Store, partitions: Iterable[str]) -> list[dict[str, Record]]:
    """All records of each partition. An event loop for each would take longer than reading."""

    async def read() -> list[dict[str, Record]]:
        return [await _records(store, partition, "") for partition in partitions]

    return asyncio.run(read())


async def _records(store: Store, partition: str, prefix: str) -> dict[str, Record]:
    found: dict[str, Record] = {}
    after = None
    while page := await store.scan(partition, prefix, after=after, limit=500):
        found |= dict(page)
        if len(page) < 500:
            break
        after = page[-1][0]
    return found


def lapse(url: str) -> None:
    """The leases of killed processes lapse at once: the beats of all are made to be long ago."""
    asyncio.run(lapsed(url))


async def lapsed(url: str) -> None:
    """As `lapse`. One process at most may live: another would take it for dead, too, until its next beat."""
    workers = keys.workers("Tester")
    async with plain_store(url) as store:
        found = await store.scan(workers, keys.worker(""))
        assert found, "no process has a lease"
        for key, record in found:
            worker = msgspec.structs.replace(unseal(workers, key, record.value, Worker), beat_at=0.0)
            put, expected = {key: Put(seal(workers, key, worker), 3600)}, {key: record.version}
            with suppress(Conflict):
                await store.commit(workers, Commit(operation=operation_id(), expect=expected, put=put))


def partition(service: ServiceThread, user: str, tid: str = "mock") -> str:
    """The partition of a user's records."""
    agent = service.prefix.split("/")[1]
    return f"{agent}/user/{tid}.{user}"


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Json]]:
    """Method, path template and description of every operation of an OpenAPI document."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method in ("get", "post", "put", "patch", "delete"):
                yield method.upper(), path, operation
