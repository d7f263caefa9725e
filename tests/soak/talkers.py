"""Clients that send, decide, follow, cancel, go back and delete at random, and note what they were answered.

Everything is drawn from one seed for each client, so that a seed gives the same calls; when they arrive, and
what has happened to the processes by then, is not the same.
"""

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from tealagents.testing.plan_model import CLIENTS_TOOL, plan

Json = dict[str, Any]
#: an event of a stream: its name and its data as they came
Event = tuple[str, str]

#: seconds that a client waits for an answer, and between two attempts
PATIENCE, PAUSE = 8.0, 0.1
#: what may be the matter with any call while processes come and go
ALWAYS = frozenset({"draining", "persistence_unavailable", "interrupted", "overloaded", "not_found"})
SENT = ALWAYS | {
    "approval_expired",  # sent again under its key, when no one had decided
    "task_busy",
    "approval_pending",
    "request_canceled",
    "request_in_progress",
    "request_timeout",
}
DECIDED = SENT | {"already_decided"}
REUSED = ALWAYS | {"idempotency_key_reused", "request_in_progress"}
CHANGED = ALWAYS | {"task_busy", "approval_pending", "invalid_request"}
#: the way of OpenAI to offer a tool
OFFERED: Json = {
    "type": "function",
    "name": CLIENTS_TOOL,
    "parameters": {
        "type": "object",
        "properties": {"file": {"type": "string"}, "line": {"type": "string"}},
    },
}
#: seconds after which a client gives up on an answer that it asks for again under its key
HASTE = 0.15
#: the server's own answer, of status 500, to what still waits for the store three seconds after the drain
CUT_OFF = b"Internal Server Error"
#: with these ids may be named of what was never stored
UNCERTAIN = frozenset({"persistence_unavailable"})
#: after these the same call is made again
AGAIN = frozenset({"draining", "persistence_unavailable", "request_in_progress"})


@dataclass
class Noted:
    """A request, as far as clients have heard of it."""

    task_id: str
    #: the answer that first named it
    named_by: Json
    #: by number; a number that came twice came alike
    events: dict[int, Event] = field(default_factory=dict)
    #: what it ended with, as it was answered: a status, and the text or the code of the error
    ended: tuple[str, str] | None = None


@dataclass
class Notes:
    """What all clients did and were answered."""

    file: str
    tasks: list[str] = field(default_factory=list)
    requests: dict[str, Noted] = field(default_factory=dict)
    #: pauses that were shown: where they are decided, and the ids of the calls
    pauses: dict[str, Json] = field(default_factory=dict)
    #: of each pause, the decisions that were answered as taken
    taken: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: the tasks that may have been deleted
    deleted: set[str] = field(default_factory=set)
    #: the session of each task, and those that may have been deleted with all their tasks
    sessions: dict[str, str] = field(default_factory=dict)
    deleted_sessions: set[str] = field(default_factory=set)
    #: the tasks whose deletion was acknowledged
    gone: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    #: the words of messages that have the client's own tool called
    tool_words: set[str] = field(default_factory=set)
    #: what no fault excuses
    wrong: list[str] = field(default_factory=list)
    _words: int = 0

    def word(self) -> str:
        self._words += 1
        return f"word-{self._words}"

    def may_be_gone(self, task_id: str) -> bool:
        return task_id in self.deleted or self.sessions.get(task_id) in self.deleted_sessions

    def see(self, document: Json) -> None:
        """An answer, or the last event of a stream."""
        if document.get("request_id") is None or document.get("task_id") is None:
            return
        noted = self.requests.setdefault(document["request_id"], Noted(document["task_id"], document))
        if session_id := document.get("session_id"):
            self.sessions[noted.task_id] = session_id
        if noted.task_id not in self.tasks:
            self.tasks.append(noted.task_id)
        status = document.get("status")
        if status == "Paused" and document.get("content"):
            self.pauses[document["content"]["approval_id"]] = document["content"]
        if status == "Completed":
            self._end(document["request_id"], ("Completed", document["content"]["output"]))

    def _end(self, request_id: str, end: tuple[str, str]) -> None:
        noted = self.requests[request_id]
        if noted.ended not in (None, end):
            self.wrong.append(f"{request_id} was answered {noted.ended}, then {end}")
        noted.ended = end

    def hear(self, request_id: str, number: int, event: Event) -> None:
        before = self.requests[request_id].events.setdefault(number, event)
        if before != event:
            self.wrong.append(f"event {number} of {request_id} was {before}, then {event}")

    def skipped(self, request_id: str, last: int, number: int) -> bool:
        """Whether a follower that has seen `last` missed anything; decided pauses are passed over."""
        events = self.requests[request_id].events
        missed = [events[n] for n in range(last + 1, number) if n in events]
        return any(name != "approval-required" for name, _ in missed)


class Talker:
    """One client of several replicas."""

    def __init__(self, notes: Notes, http: httpx.AsyncClient, replicas: Sequence[str], seed: int) -> None:
        """`replicas` are URLs with the agent's prefix; `http` brings the user's token."""
        self._notes = notes
        self._http = http
        self._replicas = replicas
        self._rng = random.Random(seed)

    async def act(self) -> None:
        """The next thing that this client does."""
        acts = {
            self._send: 50,
            self._decide: 30,
            self._follow: 15,
            self._cancel: 5,
            self._go_back: 4,
            self._fork: 3,
            self._delete: 1,
            self._delete_session: 1,
            self._expire: 1,
            self._run_tool: 5,
        }
        [act] = self._rng.choices(list(acts), list(acts.values()))
        await act()

    # --- what clients do ----------------------------------------------------------------------------

    async def _send(self) -> None:
        """A message, sent again under its key where no answer came."""
        word, rng = self._notes.word(), self._rng
        rounds = [
            [f"{word}.{n}.{m}{rng.choice(['?', '?', ''])}" for m in range(rng.choice((1, 1, 2)))]
            for n in range(rng.choice((0, 0, 1, 1, 2, 3)))
        ]
        body: Json = {"items": [{"content_type": "text", "content": plan(word, self._notes.file, rounds)}]}
        if self._notes.tasks and rng.random() < 0.8:
            body["task_id"] = rng.choice(self._notes.tasks)
            if rng.random() < 0.3:
                body["supersede"] = True
        way = rng.choice(({}, {"prefer": "respond-async"}, {"accept": "text/event-stream"}))
        headers = {**way, "idempotency-key": word} if rng.random() < 0.7 else way
        for _ in range(8 if "idempotency-key" in headers else 1):
            patience = rng.choice((HASTE, PATIENCE, PATIENCE)) if "idempotency-key" in headers else PATIENCE
            if answered := await self._call("send", "POST", "", SENT, body, headers, patience=patience):
                if answered < 300 and "idempotency-key" in headers and rng.random() < 0.1:
                    await self._send_otherwise(headers["idempotency-key"])
                return
            await asyncio.sleep(PAUSE)

    async def _send_otherwise(self, key: str) -> None:
        """Another message under a key that is taken."""
        text = plan(self._notes.word(), self._notes.file, [])
        body = {"items": [{"content_type": "text", "content": text}]}
        answered = await self._call("reuse", "POST", "", REUSED, body, {"idempotency-key": key})
        if answered is not None and answered < 300:
            self._notes.wrong.append(f"another message was taken under the key {key}")

    async def _decide(self) -> None:
        """A decision on a pause, or two that differ, on two replicas at once."""
        if not self._notes.pauses:
            return
        shown = self._notes.pauses[self._rng.choice(list(self._notes.pauses)[-8:])]
        decisions = [self._decision(shown)]
        if self._rng.random() < 0.3:
            decisions.append(self._rng.choice([decisions[0], self._decision(shown)]))
        await asyncio.gather(*(self._decided(shown, decision) for decision in decisions))

    def _decision(self, shown: Json) -> Json:
        """Each call is approved, approved with another line, or rejected."""
        decisions: list[Json] = []
        for call in shown["tool_calls"]:
            action = self._rng.choice(("approve", "approve", "edit", "reject"))
            decision = {"id": call["id"], "action": "reject" if action == "reject" else "approve"}
            if action == "edit":
                line = json.loads(call["arguments"])["line"]
                decision["arguments"] = {"file": self._notes.file, "line": f"{line} edited"}
            decisions.append(decision)
        return {"action": "approve", "decisions": decisions}

    async def _decided(self, shown: Json, decision: Json) -> None:
        way = self._rng.choice(({}, {"accept": "text/event-stream"}, {"prefer": "respond-async"}))
        path = f"/requests/{shown['request_id']}/resume?approval_id={shown['approval_id']}"
        for _ in range(self._rng.choice((1, 4))):
            if answered := await self._call("decide", "POST", path, DECIDED, decision, way):
                if answered < 300:
                    taken = self._notes.taken[shown["approval_id"]]
                    taken.add(json.dumps(decision["decisions"], sort_keys=True))
                    if len(taken) > 1:
                        self._notes.wrong.append(f"{shown['approval_id']} took two decisions: {taken}")
                return
            await asyncio.sleep(PAUSE)

    async def _follow(self) -> None:
        """The events of a request from somewhere on, for a while."""
        if self._notes.requests:
            request_id = self._rng.choice(list(self._notes.requests)[-12:])
            most = max(self._notes.requests[request_id].events, default=0)
            after = {"last-event-id": str(self._rng.randint(0, most))}
            await self._call("follow", "GET", f"/requests/{request_id}/events", ALWAYS, None, after)

    async def _cancel(self) -> None:
        if self._notes.requests:
            request_id = self._rng.choice(list(self._notes.requests)[-8:])
            await self._call("cancel", "POST", f"/requests/{request_id}/cancel", ALWAYS, {})

    async def _go_back(self) -> None:
        if checkpoint := await self._checkpoint():
            task_id, checkpoint_id = checkpoint
            body = {"checkpoint_id": checkpoint_id}
            await self._call("go back", "POST", f"/tasks/{task_id}/rollback", CHANGED, body)

    async def _fork(self) -> None:
        if checkpoint := await self._checkpoint():
            task_id, checkpoint_id = checkpoint
            body = {"checkpoint_id": checkpoint_id}
            await self._call("fork", "POST", f"/tasks/{task_id}/fork", CHANGED, body)

    async def _checkpoint(self) -> tuple[str, str] | None:
        """One of a task's checkpoints."""
        if not self._notes.tasks:
            return None
        task_id = self._rng.choice(self._notes.tasks)
        try:
            url = f"{self._rng.choice(self._replicas)}/tasks/{task_id}/checkpoints"
            answer = await self._http.get(url, timeout=PATIENCE)
        except httpx.TransportError:
            return None
        found = answer.json().get("items") or []
        return (task_id, self._rng.choice(found)["checkpoint_id"]) if found else None

    async def _delete(self) -> None:
        if self._notes.tasks:
            task_id = self._rng.choice(self._notes.tasks)
            self._notes.deleted.add(task_id)  # the answer may be lost
            if await self._call("delete", "DELETE", f"/tasks/{task_id}", CHANGED) == 204:
                self._notes.gone.add(task_id)

    async def _delete_session(self) -> None:
        """A session with all of its tasks, forks among them."""
        if not self._notes.sessions:
            return
        session_id = self._rng.choice(list(self._notes.sessions.values())[-12:])
        known = {task_id for task_id, session in self._notes.sessions.items() if session == session_id}
        self._notes.deleted_sessions.add(session_id)
        if await self._call("delete session", "DELETE", f"/sessions/{session_id}", CHANGED) == 204:
            self._notes.gone |= known

    async def _expire(self) -> None:
        """A task that is soon no longer there, and erased when it is pruned."""
        if self._notes.tasks:
            task_id = self._rng.choice(self._notes.tasks)
            self._notes.deleted.add(task_id)
            at = datetime.now(UTC) + timedelta(seconds=self._rng.uniform(0.1, 3))
            body = {"expires_at": at.isoformat()}
            await self._call("expire", "PATCH", f"/tasks/{task_id}", CHANGED, body)

    async def _run_tool(self) -> None:
        """A call of the client's own tool, its output sent to the replicas, now and then two that differ."""
        word, same = self._notes.word(), self._rng.random() < 0.6
        self._notes.tool_words.add(word)
        asked = plan(word, self._notes.file, [[f"{word}.0.0!"]])
        outputs = ["sunny", "sunny" if same else "rain"]
        made = await self._respond({"input": asked, "tools": [OFFERED]})
        calls = [item for item in (made or {}).get("output", ()) if item["type"] == "function_call"]
        answers = await asyncio.gather(
            *(
                self._respond({"input": [{**item, "call_id": call["call_id"], "output": output}]})
                for call in calls
                for item in [{"type": "function_call_output"}]
                for output in outputs
            )
        )
        ids = [answer["id"] for answer in answers if answer is not None]
        if len(ids) == 2 and (not same or ids[0] != ids[1]):
            self._notes.wrong.append(f"{word}: the outputs {outputs} were answered {answers}")

    async def _respond(self, body: Json) -> Json | None:
        """A response of OpenAI's API; None where there was none."""
        url = self._rng.choice(self._replicas) + "/openai/v1/responses"
        self._notes.done["respond"] += 1
        try:
            answer = await self._http.post(url, json=body, timeout=PATIENCE)
        except httpx.TransportError:
            self._notes.done["respond: lost"] += 1
            return None
        if answer.status_code == 500:
            self._notes.wrong.append(f"respond {body} was answered {answer.text}")
        if answer.status_code != 200:
            self._notes.done[f"respond: {answer.status_code}"] += 1
            return None
        document: Json = answer.json()
        return document

    # --- how they call ------------------------------------------------------------------------------

    async def _call(
        self,
        what: str,
        method: str,
        path: str,
        allowed: frozenset[str],
        body: Json | None = None,
        headers: dict[str, str] | None = None,
        *,
        patience: float = PATIENCE,
    ) -> int | None:
        """Calls one of the replicas and notes the answer; its status, or None where it may be tried again."""
        url = self._rng.choice(self._replicas) + path
        self._notes.done[what] += 1
        try:
            async with (
                asyncio.timeout(patience),
                self._http.stream(method, url, json=body, headers=headers) as answer,
            ):
                if answer.headers.get("content-type", "").startswith("text/event-stream"):
                    return await self._listen(what, answer)
                content = await answer.aread()
        except (httpx.TransportError, TimeoutError):
            self._notes.done[f"{what}: lost"] += 1
            return None
        if content == CUT_OFF:
            self._notes.done[f"{what}: cut off"] += 1
            return None
        document = json.loads(content) if content else {}
        if answer.status_code < 300:
            self._notes.see(document)
            if what == "fork":
                self._notes.tasks.append(document["task_id"])
                self._notes.sessions[document["task_id"]] = document["session_id"]
                if document["expires_at"] is not None:
                    self._notes.deleted.add(document["task_id"])
            return answer.status_code
        code = document.get("code", "")
        self._notes.done[f"{what}: {code}"] += 1
        if code not in allowed:
            self._notes.wrong.append(f"{what} {path} was answered {document}")
        if code not in UNCERTAIN:
            self._notes.see({**document, "status": None})
        return None if code in AGAIN else answer.status_code

    async def _listen(self, what: str, answer: httpx.Response) -> int | None:
        """Notes the events of a stream; None where it broke off."""
        name, number, request_id = "", 0, ""
        last = int(answer.request.headers.get("last-event-id", 0))
        async for line in answer.aiter_lines():
            kind, _, value = line.partition(": ")
            if kind == "event":
                name, number = value, 0
            elif kind == "id":
                number = int(value)
            elif kind == "data":
                document = json.loads(value)
                request_id = document["request_id"]
                if number == 0 and name == "error":
                    continue  # how the request ends is not known here, nor whether it is stored
                self._notes.see({**document, "status": None} if name == "error" else document)
                self._notes.hear(request_id, number, (name, value))
                if what == "decide" and not last:
                    last = number - 1  # the answer to a decision begins behind the pause
                if number <= last or (name != "error" and self._notes.skipped(request_id, last, number)):
                    self._notes.wrong.append(f"{what}: event {number} of {request_id} came after {last}")
                last = number
        if name in ("final-response", "approval-required", "error"):
            return 200
        if answer.request.method == "POST" or name:
            self._notes.done[f"{what}: broke off"] += 1
        return None
