"""A history checker: compares the answers that clients received with the final state of the service.

Every message is a different word, and the model is `digest_model.DigestModel`, whose answer shows which words
it was sent. While processes are killed and connections are cut, `Correspondent`s send messages, read tasks,
and record the answers. Afterwards `check` reads every task over HTTP and reports these faults:

========  ====================================================================================
lost      a message was answered, or seen by a read, and is missing or stored with another outcome
doubled   a message is stored twice, or has two answers
phantom   a message was never sent, was refused, or was sent to another task
stale     an answer or a read omits earlier messages, or an answer is based on others
stuck     a request or a task has not ended
========  ====================================================================================

The outcome of a message is `ok` (its answer was received), `failed` (it was refused, or its end without an
answer was received) or `unknown` (the connection broke, or the service did not know the outcome). After
`unknown`, the message may be stored or not; only the rules for stored messages apply.
"""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import msgspec

from tealagents.domain.models import Entry, Json
from tealagents.state.audit_chain import GENESIS, AuditChain
from tealagents.testing.digest_model import digest_answer

__all__ = [
    "ClientHistory",
    "Correspondent",
    "Operation",
    "Verdict",
    "audit_fault",
    "check",
    "everything",
    "reader",
]

Outcome = Literal["ok", "failed", "unknown"]
#: reads a document, from a path below the agent's prefix and a query
Read = Callable[..., Awaitable[Json]]

#: codes of refusals, after which nothing is stored
REFUSALS = frozenset({"task_busy", "overloaded", "draining", "invalid_request"})
#: codes after which only the request's record shows its outcome
UNCERTAIN = frozenset({"persistence_unavailable", "interrupted", "request_in_progress"})
#: those of `UNCERTAIN` that are certain in a replay: the request has ended with them
ENDS = frozenset({"interrupted"})
#: seconds between two attempts with the same idempotency key
PAUSE = 0.05


@dataclass(kw_only=True)
class Operation:
    """One message, and the answer that its sender received."""

    word: str
    task_id: str | None
    began: float
    ended: float = 0.0
    outcome: Outcome = "unknown"
    #: None if the service named none, or if nothing was stored
    request_id: str | None = None
    #: why it failed
    code: str | None = None
    detail: str | None = None
    answer: str | None = None
    #: whether the answer was requested as a stream
    streamed: bool = False


@dataclass(frozen=True)
class Look:
    """The user's messages in a task, as one read returned them."""

    task_id: str
    began: float
    words: frozenset[str]


@dataclass
class ClientHistory:
    """The operations and reads of all correspondents."""

    operations: dict[str, Operation] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)
    #: answers that are wrong whatever faults there were
    wrong: list[str] = field(default_factory=list)

    def begin(self, task_id: str | None, *, streamed: bool) -> Operation:
        """Adds an operation, with a word that no other has."""
        word = f"word-{len(self.operations) + 1}"
        operation = Operation(word=word, task_id=task_id, began=time.monotonic(), streamed=streamed)
        self.operations[word] = operation
        return operation

    @property
    def tasks(self) -> list[str]:
        """The ids of all tasks, in the order of their first message."""
        return list(dict.fromkeys(op.task_id for op in self.operations.values() if op.task_id))

    def count(self, outcome: Outcome) -> int:
        return sum(op.outcome == outcome for op in self.operations.values())


class Correspondent:
    """One client. It sends to random replicas, and repeats an unanswered message with the same key."""

    def __init__(
        self,
        history: ClientHistory,
        http: httpx.AsyncClient,
        replicas: Sequence[str],
        rng: random.Random,
        *,
        deadline: float = 5.0,
    ) -> None:
        """`replicas` are URLs with the agent's prefix. `http` sends the user's token. `deadline`: seconds."""
        self._history = history
        self.http = http
        self._replicas = replicas
        self._rng = rng
        self._deadline = deadline

    async def send(self, task_id: str | None, *, attempts: int = 1, streamed: bool = False) -> Operation:
        """Sends one message, with up to `attempts` attempts; with more than one, under an idempotency key."""
        operation = self._history.begin(task_id, streamed=streamed)
        headers = {"idempotency-key": operation.word} if attempts > 1 else {}
        body: Json = {"items": [{"content_type": "text", "content": operation.word}]}
        if task_id:
            body["task_id"] = task_id
        certain = True
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(PAUSE)
            outcome = await self._attempt(operation, body, headers)
            if outcome == "answered":
                break
            if outcome == "refused":
                # an earlier attempt may still be under way
                operation.outcome = "failed" if certain else "unknown"
                break
            certain = certain and outcome == "never sent"
        else:
            operation.outcome = "unknown" if not certain else "failed"
        operation.ended = time.monotonic()
        return operation

    async def _attempt(
        self, operation: Operation, body: Json, headers: Mapping[str, str]
    ) -> Literal["answered", "refused", "never sent", "uncertain"]:
        url = self._rng.choice(self._replicas)
        try:
            async with asyncio.timeout(self._deadline):
                if operation.streamed:
                    status, replayed, document = await self._stream(operation, url, body, headers)
                else:
                    response = await self.http.post(url, json=body, headers=dict(headers))
                    status, document = response.status_code, response.json()
                    replayed = "idempotent-replayed" in response.headers
        except httpx.ConnectError:
            return "never sent"
        except (httpx.TransportError, TimeoutError, BrokenStream):
            return "uncertain"
        return self._judge(operation, status, document, replayed=replayed)

    def _judge(
        self, operation: Operation, status: int, document: Json, *, replayed: bool
    ) -> Literal["answered", "refused", "uncertain"]:
        if status == 200:
            operation.outcome = "ok"
            operation.request_id, operation.task_id = document["request_id"], document["task_id"]
            operation.answer = document["content"]["output"]
            return "answered"
        code = document.get("code", "")
        if code in REFUSALS:
            return "refused"
        if status == 500:
            self._history.wrong.append(f"{operation.word} was answered {document}")
        if code in UNCERTAIN and (not replayed or code not in ENDS):
            return "uncertain"
        operation.outcome, operation.code, operation.detail = "failed", code, document.get("detail")
        operation.request_id = document.get("request_id")
        operation.task_id = operation.task_id or document.get("task_id")  # a first message created it
        return "answered"

    async def _stream(
        self, operation: Operation, url: str, body: Json, headers: Mapping[str, str]
    ) -> tuple[int, bool, Json]:
        async with self.http.stream("POST", url + "/sse", json=body, headers=dict(headers)) as response:
            replayed = "idempotent-replayed" in response.headers
            if response.status_code != 200:
                return response.status_code, replayed, msgspec.json.decode(await response.aread())
            heard = [event async for event in events_of(response)]
        if not heard or heard[-1].name not in ("final-response", "error"):
            raise BrokenStream
        document = heard[-1].data
        if heard[-1].name == "final-response":
            self._history.wrong += gaps(heard, operation.word)
            return 200, replayed, document
        return int(document["status"]), replayed, document

    async def look(self, task_id: str) -> None:
        """Reads a task's messages from one replica, and records them."""
        began = time.monotonic()
        read = reader(self.http, self._rng.choice(self._replicas))
        try:
            async with asyncio.timeout(self._deadline):
                messages = await everything(read, f"/tasks/{task_id}/messages")
        except (httpx.TransportError, httpx.HTTPStatusError, TimeoutError):
            return
        words = frozenset(_text(message) for message in messages if message["role"] == "user")
        self._history.looks.append(Look(task_id, began, words))


# --- streams ----------------------------------------------------------------------------------------


class BrokenStream(Exception):
    """A stream that ended before its last event."""


@dataclass(frozen=True)
class Heard:
    """One event."""

    id: int
    name: str
    data: Json


async def events_of(response: httpx.Response) -> AsyncIterator[Heard]:
    """Yields the events of a stream as they arrive."""
    name, number = "", 0
    async for line in response.aiter_lines():
        kind, _, value = line.partition(": ")
        if kind == "event":
            name = value
        elif kind == "id":
            number = int(value)
        elif kind == "data":
            yield Heard(number, name, msgspec.json.decode(value))


def gaps(heard: Sequence[Heard], word: str) -> list[str]:
    """What is wrong with a stream that ended in an answer: missing numbers, or deltas that differ from it."""
    found = []
    if [event.id for event in heard] != list(range(1, len(heard) + 1)):
        found.append(f"the stream of {word} has the numbers {[event.id for event in heard]}")
    streamed = "".join(event.data["output_partial"] for event in heard if event.name == "partial-response")
    if streamed != heard[-1].data["content"]["output"]:
        found.append(f"the text of {word} is {streamed!r}")
    return found


# --- the verdict ------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """The faults that were found, by kind. Each is a sentence that names the message."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    phantom: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    #: answers with status 500, streams with gaps, audits that do not verify
    wrong: list[str] = field(default_factory=list)

    @property
    def faults(self) -> dict[str, list[str]]:
        """The faults by kind, without empty kinds. It must be empty."""
        return {name: found for name, found in vars(self).items() if found}


async def check(history: ClientHistory, http: httpx.AsyncClient, replicas: Sequence[str]) -> Verdict:
    """Reads every task, from the replicas in turn, and compares. Call it when all disturbances have ended."""
    verdict = Verdict(wrong=list(history.wrong))
    places: Counter[str] = Counter()

    async def check_tasks(place: int) -> None:
        read = reader(http, replicas[place])
        for task_id in history.tasks[place :: len(replicas)]:
            await _TaskCheck(history, verdict, places, read, task_id).run()
            if fault := audit_fault(await everything(read, f"/tasks/{task_id}/audit")):
                verdict.wrong.append(f"the audit of {task_id}: {fault}")

    await asyncio.gather(*map(check_tasks, range(len(replicas))))
    verdict.doubled += [f"{word} is there {count} times" for word, count in places.items() if count > 1]
    for n, operation in enumerate(history.operations.values()):
        if operation.request_id is not None and not places[operation.word]:
            await _check_absent(verdict, reader(http, replicas[n % len(replicas)]), operation)
    streamed = [op for op in history.operations.values() if op.streamed and op.outcome == "ok"]
    for n, operation in enumerate(streamed):
        await _check_replay(verdict, http, replicas[n % len(replicas)], operation)
    return verdict


class _TaskCheck:
    """Checks one task, message by message."""

    def __init__(
        self, history: ClientHistory, verdict: Verdict, places: Counter[str], read: Read, task_id: str
    ) -> None:
        self._history = history
        self._verdict = verdict
        self._places = places
        self._read = read
        self._task_id = task_id
        #: the words of the completed requests so far, which the model must have been sent
        self._completed: list[str] = []
        self._order: list[Operation] = []

    async def run(self) -> None:
        task = await self._read(f"/tasks/{self._task_id}")
        if task["status"] not in ("Completed", "Failed", "Canceled"):
            self._verdict.stuck.append(f"the task {self._task_id} is {task['status']}")
        by_request: dict[str, list[Json]] = defaultdict(list)
        for message in await everything(self._read, f"/tasks/{self._task_id}/messages"):
            by_request[message["request_id"]].append(message)
        for request_id, messages in by_request.items():
            await self._request(request_id, messages)
        self._check_order()
        self._check_looks()

    async def _request(self, request_id: str, messages: Sequence[Json]) -> None:
        verdict, request = self._verdict, await self._read(f"/requests/{request_id}")
        asked = [_text(message) for message in messages if message["role"] == "user"]
        answers = [_text(message) for message in messages if message["role"] == "assistant"]
        self._places.update(asked)
        if len(asked) != 1:
            verdict.doubled.append(f"the request {request_id} holds the messages {asked}")
            return
        word, status = asked[0], request["status"]
        operation = self._history.operations.get(word)
        if operation is None or operation.task_id not in (None, self._task_id):
            verdict.phantom.append(f"{word} is in the task {self._task_id}: {operation}")
            return
        if operation.outcome == "failed" and operation.request_id is None:
            verdict.phantom.append(f"{word} was refused, and is there: {operation}")
        if status == "Completed":
            self._completed_request(operation, request, answers)
        elif status in ("Failed", "Canceled"):
            self._ended_request(operation, request, answers)
        else:
            verdict.stuck.append(f"the request {request_id} of {word} is {status}")
        if operation.outcome == "ok":
            self._order.append(operation)

    def _completed_request(self, operation: Operation, request: Json, answers: list[str]) -> None:
        word, verdict = operation.word, self._verdict
        self._completed.append(word)
        if len(answers) != 1:
            (verdict.doubled if answers else verdict.lost).append(f"{word} has the answers {answers}")
            return
        if answers[0] != digest_answer(self._completed):
            verdict.stale.append(f"{word} was answered {answers[0]!r} after {self._completed}")
        if request["content"]["output"] != answers[0]:
            verdict.lost.append(f"{word} was answered {answers[0]!r}, and its request shows {request}")
        if operation.outcome == "failed":
            verdict.lost.append(f"{word} was reported as failed, and is completed: {operation}")
        if operation.outcome == "ok":
            answered = (operation.request_id, operation.answer)
            if answered != (request["request_id"], answers[0]):
                verdict.lost.append(
                    f"{word} was answered {answered}, and {request['request_id']} has {answers}"
                )

    def _ended_request(self, operation: Operation, request: Json, answers: list[str]) -> None:
        word, verdict = operation.word, self._verdict
        if answers:
            verdict.phantom.append(f"{word} is {request['status']} and has the answers {answers}")
        if operation.outcome == "ok":
            verdict.lost.append(f"{word} was answered, and is {request['status']}: {request['error']}")
        if operation.outcome == "failed" and operation.code != request["error"]["code"]:
            verdict.lost.append(f"{word} was reported {operation.code}, and ended {request['error']}")

    def _check_order(self) -> None:
        """A message that was answered before another was sent must come before it."""
        latest: Operation | None = None
        for operation in self._order:
            if latest is not None and operation.ended < latest.began:
                self._verdict.stale.append(f"{operation.word} was answered before {latest.word} was sent")
            if latest is None or operation.began > latest.began:
                latest = operation

    def _check_looks(self) -> None:
        mine = [op for op in self._history.operations.values() if op.task_id == self._task_id]
        for look in self._history.looks:
            if look.task_id != self._task_id:
                continue
            for operation in mine:
                answered = operation.outcome == "ok" and operation.ended < look.began
                if answered and operation.word not in look.words:
                    self._verdict.stale.append(f"a look did not see {operation.word}")
            for word in look.words:
                if not self._places[word]:
                    self._verdict.lost.append(f"a look saw {word}, which is not there")


async def _check_absent(verdict: Verdict, read: Read, operation: Operation) -> None:
    """A message may be missing only if its request ended while it was waiting for its turn."""
    request = await read(f"/requests/{operation.request_id}")
    ended = request["status"] in ("Failed", "Canceled") and request["started_at"] is None
    if not ended or operation.outcome == "ok" or operation.code not in (None, request["error"]["code"]):
        verdict.lost.append(f"{operation.word} is not there, and its sender was answered {operation}")


def audit_fault(entries: Sequence[Json]) -> str | None:
    """Why a task's audit is not an unbroken chain; None if it is."""
    chain, before = AuditChain(), GENESIS
    for seq, document in enumerate(entries, 1):
        entry = msgspec.convert(document, Entry)
        if fault := chain.fault(entry, seq, before):
            return f"entry {seq} {fault}"
        before = entry.hash
    return None


async def _check_replay(verdict: Verdict, http: httpx.AsyncClient, url: str, operation: Operation) -> None:
    """The event log of an answered stream must replay completely."""
    async with http.stream("GET", f"{url}/requests/{operation.request_id}/events") as response:
        heard = [event async for event in events_of(response)]
    if not heard or heard[-1].name != "final-response":
        verdict.lost.append(f"the stream of {operation.word} replays as {[event.name for event in heard]}")
        return
    verdict.wrong += gaps(heard, operation.word)
    if heard[-1].data["content"]["output"] != operation.answer:
        verdict.lost.append(f"the stream of {operation.word} replays as {heard[-1].data}")


# --- reading ----------------------------------------------------------------------------------------


def reader(http: httpx.AsyncClient, url: str) -> Read:
    """A function that reads documents from the replica at `url`. It raises `httpx.HTTPStatusError`."""

    async def read(path: str, **query: Any) -> Json:
        response = await http.get(url + path, params=query)
        response.raise_for_status()
        document: Json = response.json()
        return document

    return read


async def everything(read: Read, path: str, **query: Any) -> list[Json]:
    """The items of all pages of a list."""
    items: list[Json] = []
    query = {"limit": 200, **query}
    while True:
        page = await read(path, **query)
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        query["cursor"] = page["next_cursor"]


def _text(message: Json) -> str:
    items: Iterable[Json] = message["items"]
    return "".join(item["content"] for item in items)
