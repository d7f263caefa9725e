"""What is found once all is calm, held against what clients were answered: `talkers.Notes`."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from talkers import Event, Noted, Notes

from tealagents.state import keys
from tealagents.stores import open_store
from tealagents.testing.digest_model import digest_answer
from tealagents.testing.history import Read, audit_fault, everything, reader

Json = dict[str, Any]

ENDED = ("Completed", "Failed", "Canceled")


async def findings(notes: Notes, http: httpx.AsyncClient, replicas: Sequence[str]) -> list[str]:
    """What must not be, each a sentence; empty where every promise was kept."""
    found = list(notes.wrong)
    written = Counter(line.removesuffix(" edited") for line in Path(notes.file).read_text().splitlines())
    found += [f"{line} was written {count} times" for line, count in written.items() if count > 1]
    for request_id, noted in notes.requests.items():
        if not notes.may_be_gone(noted.task_id):
            found += [f"{request_id}: {each}" for each in await _request(request_id, noted, http, replicas)]
    for task_id in notes.tasks:
        found += [f"task {task_id}: {each}" for each in await _task(task_id, notes, http, replicas)]
    return found + await _said_twice(notes, http, replicas)


async def left_over(notes: Notes, url: str) -> list[str]:
    """The records that name a deleted task, or a request of one; its idempotency key is kept for its day."""
    gone = notes.gone | {each for each, noted in notes.requests.items() if noted.task_id in notes.gone}
    found, after = [], None
    async with open_store(url) as store:
        while page := await store.scan(keys.user("Tester", "mock.ada"), "", after=after, limit=500):
            found += [f"{key} is left of what was deleted" for key, _ in page if gone & set(key.split("/"))]
            after = page[-1][0]
    return found


async def _said_twice(notes: Notes, http: httpx.AsyncClient, replicas: Sequence[str]) -> list[str]:
    """All replicas list the same tasks, and no message is answered in two requests, copies aside."""
    listed = [await everything(reader(http, url), "/tasks") for url in replicas]
    kept = [[each for each in tasks if not notes.may_be_gone(each["task_id"])] for tasks in listed]
    found = [f"the tasks are {kept}"] if any(other != kept[0] for other in kept[1:]) else []
    said: dict[str, set[str]] = defaultdict(set)
    for task in kept[0]:
        for message in await everything(reader(http, replicas[-1]), f"/tasks/{task['task_id']}/messages"):
            if message["role"] == "user" and message.get("origin") is None:
                said[json.loads(_text(message))["word"]].add(message["request_id"])
    for word, ids in said.items():
        if len(ids) > 1:
            requests = [(await http.get(f"{replicas[0]}/requests/{each}")).json() for each in ids]
            # where answers to calls come again after their request has failed, another stands in for it
            stood = word in notes.tool_words and sum(each["status"] != "Failed" for each in requests) <= 1
            found += [] if stood else [f"{word} is in {requests}"]
    return found


# --- one request ------------------------------------------------------------------------------------


async def _request(
    request_id: str, noted: Noted, http: httpx.AsyncClient, replicas: Sequence[str]
) -> list[str]:
    answers = [await http.get(f"{url}/requests/{request_id}") for url in replicas]
    if any(answer.status_code != 200 for answer in answers):
        return [f"named by {noted.named_by}, read as {[answer.text for answer in answers]}"]
    request, *others = [answer.json() for answer in answers]
    found = [f"is {request} here and {other} there" for other in others if other != request]
    if request["status"] not in ENDED:
        return [*found, f"never ends: {request}"]
    if noted.ended and noted.ended != (request["status"], request["content"]["output"]):
        found.append(f"was answered {noted.ended}, and is {request}")
    replays = [await _replay(http, url, request_id) for url in replicas]
    if any(other != replays[0] for other in replays[1:]):
        found.append(f"replays as {replays}")
    return found + _stream_faults(request, noted.events, replays[0])


async def _replay(http: httpx.AsyncClient, url: str, request_id: str) -> list[tuple[int, Event]]:
    """All events of a request that has ended."""
    found: list[tuple[int, Event]] = []
    name, number = "", 0
    async with http.stream("GET", f"{url}/requests/{request_id}/events") as answer:
        async for line in answer.aiter_lines():
            kind, _, value = line.partition(": ")
            if kind == "event":
                name = value
            elif kind == "id":
                number = int(value)
            elif kind == "data":
                found.append((number, (name, value)))
    return found


def _stream_faults(request: Json, heard: dict[int, Event], replay: list[tuple[int, Event]]) -> list[str]:
    """What is wrong with a replay from the beginning, after what was heard while the request ran."""
    numbers = [number for number, _ in replay]
    if not replay or numbers[0] != 1 or numbers != sorted(set(numbers)):
        return [f"replays the numbers {numbers}"]
    found = []
    last, (name, data) = replay[-1]
    document = json.loads(data)
    if request["status"] == "Completed":
        if name != "final-response" or document["content"]["output"] != request["content"]["output"]:
            found.append(f"is {request}, and its stream ends in {data}")
    elif name != "error" or document["code"] != request["error"]["code"]:
        found.append(f"is {request}, and its stream ends in {name} {data}")
    there = dict(replay)
    for number, event in heard.items():
        if number in there:
            if there[number] != event:
                found.append(f"event {number} was {event}, and replays as {there[number]}")
        elif number > last or (event[0] != "approval-required" and request["status"] == "Completed"):
            found.append(f"event {number} was {event}, and does not replay")
    return found


# --- one task ---------------------------------------------------------------------------------------


async def _task(task_id: str, notes: Notes, http: httpx.AsyncClient, replicas: Sequence[str]) -> list[str]:
    answers = [await http.get(f"{url}/tasks/{task_id}") for url in replicas]
    if notes.may_be_gone(task_id) and {answer.status_code for answer in answers} == {404}:
        return []
    if len({answer.text for answer in answers}) != 1:
        return [f"reads as {[answer.text for answer in answers]}"]
    try:
        return await _read_task(answers[0].json(), notes, reader(http, replicas[0]))
    except httpx.HTTPStatusError as error:
        if notes.may_be_gone(task_id) and error.response.status_code == 404:
            return []  # a deletion that no one waits for any more was still under way
        return [f"is {answers[0].text}, and {error.request.url} answers {error.response.text}"]


async def _read_task(task: Json, notes: Notes, read: Read) -> list[str]:
    path = f"/tasks/{task['task_id']}"
    found = [] if task["status"] in ENDED else [f"is {task['status']}"]
    found += _history_faults(await everything(read, f"{path}/messages"))
    steps = await everything(read, f"{path}/trace")
    ids = {step["request_id"] for step in steps}
    statuses = {each: (await read(f"/requests/{each}"))["status"] for each in ids}
    found += _calls_faults(steps, statuses, notes)
    found += _tree_faults(await everything(read, f"{path}/checkpoints", parents="true"))
    if fault := audit_fault(await everything(read, f"{path}/audit")):
        found.append(f"audit: {fault}")
    return found


def _history_faults(messages: Sequence[Json]) -> list[str]:
    """Each answer counts the words of the answered messages before it, on the path of the task."""
    found: list[str] = []
    rounds: dict[str, list[Json]] = defaultdict(list)
    for message in messages:
        rounds[message["request_id"]].append(message)
    words: list[str] = []
    for request_id, round_ in rounds.items():
        said = [_text(message) for message in round_ if message["role"] == "user"]
        if len(said) != 1 or round_[0]["role"] != "user":
            found.append(f"{request_id} holds the messages {round_}")
            continue
        answers = [_text(m) for m in round_ if m["role"] == "assistant" and not m.get("tool_calls")]
        if answers:
            words.append(json.loads(said[0])["word"])
            if answers != [digest_answer(words)]:
                found.append(f"{request_id} was answered {answers} after {words}")
    return found


def _tree_faults(checkpoints: Sequence[Json]) -> list[str]:
    """Each checkpoint continues an older one, or begins; at most one is current."""
    older: set[str | None] = {None}
    for each in reversed(checkpoints):
        if each["parent_id"] not in older or each["checkpoint_id"] in older:
            return [f"the checkpoints are no tree: {checkpoints}"]
        older.add(each["checkpoint_id"])
    current = [each for each in checkpoints if each["current"]]
    return [f"has the current checkpoints {current}"] if len(current) > 1 else []


def _calls_faults(steps: Sequence[Json], statuses: Mapping[str, str], notes: Notes) -> list[str]:
    """The decision that was answered as taken is the one on record; a completed request did what it says."""
    found: list[str] = []
    written = Path(notes.file).read_text().splitlines()
    for step in steps:
        if step["kind"] != "approval" or step["name"] != "decided" or not step["output"].get("decisions"):
            continue
        recorded = [each for each in step["output"]["decisions"] if not each["id"].endswith("!")]
        for taken in notes.taken.get(step["input"]["approval_id"], ()):
            if [_decision(each) for each in json.loads(taken)] != [_decision(each) for each in recorded]:
                found.append(f"the decision {taken} was answered as taken, and {recorded} is on record")
        if statuses.get(step["request_id"]) == "Completed":
            lines = [_line(each) for each in recorded if each["action"] == "approve"]
            found += [f"{line} was approved and not written" for line in lines if line not in written]
        lines = [each["id"] for each in recorded if each["action"] == "reject"]
        found += [f"{line} was rejected and written" for line in lines if line in written]
    return found


def _decision(decision: Json) -> tuple[str, str, str]:
    return decision["id"], decision["action"], _line(decision)


def _line(decision: Json) -> str:
    """The line that an approved call writes: the call's id, or what it was edited to."""
    arguments = decision.get("arguments")
    if arguments is None:
        return str(decision["id"])
    return str((json.loads(arguments) if isinstance(arguments, str) else arguments)["line"])


def _text(message: Json) -> str:
    return "".join(item["content"] for item in message["items"])
