"""A small service that keeps the contract's promises in memory.

For tests of the client: real HTTP on loopback, served by uvicorn in a thread. What a message says
decides what the model does:

==================  ==================================================================
`count N`           N pieces: "0 ", "1 ", …
`hold NAME`         one piece, then nothing until `ContractServer.release(NAME)`
`delete PATH`       asks for approval of the tool call `Shell-delete`, then answers
`delete twice`      the same, and asks a second time after the first approval
`fail`              one piece, then `model_error`
anything else       echoes it, a piece a word
==================  ==================================================================
"""

import asyncio
import contextlib
import hashlib
import json
import socket
import threading
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tealagents.testing.waits import until

PREFIX = "/Echo/0.1"
Json = dict[str, Any]


class Problem(Exception):
    def __init__(
        self, status: int, code: str, detail: str, retry_after: int | None = None, **ids: Any
    ) -> None:
        super().__init__(detail)
        self.document = {
            "type": "about:blank",
            "title": code.replace("_", " "),
            "status": status,
            "detail": detail,
            "code": code,
            **ids,
        }
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}

    def response(self) -> Response:
        return JSONResponse(
            self.document,
            self.document["status"],
            headers=self.headers,
            media_type="application/problem+json",
        )


@dataclass
class Task:
    owner: str
    session_id: str
    task_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    metadata: Json = field(default_factory=dict)
    expires_at: str | None = None
    created_at: str = field(default_factory=lambda: now())
    #: request ids of the current path
    path: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    status: str = "Running"

    def document(self) -> Json:
        return {
            "task_id": self.task_id,
            "session_id": self.session_id,
            "status": self.status,
            "created_at": self.created_at,
            "last_updated": now(),
            "expires_at": self.expires_at,
            "metadata": self.metadata,
        }


class Run:
    """One request: its events, and the task that makes them."""

    def __init__(self, task: Task, text: str) -> None:
        self.request_id = str(uuid.uuid4())
        self.task = task
        self.text = text
        self.status = "Running"
        self.log: list[tuple[int, str, Json]] = []
        self.changed = asyncio.Event()
        self.output = ""
        self.content: Json | None = None
        self.error: Json | None = None
        self.created_at = now()
        #: approval id to the body that decided it, or None
        self.decisions: dict[str, Json | None] = {}
        self.producer: asyncio.Task[None] | None = None
        self.tool_runs: list[str] = []

    @property
    def ids(self) -> Json:
        return {
            "session_id": self.task.session_id,
            "task_id": self.task.task_id,
            "request_id": self.request_id,
        }

    @property
    def pending(self) -> str | None:
        return next((id for id, decision in self.decisions.items() if decision is None), None)

    def publish(self, name: str, data: Json) -> None:
        self.log.append((len(self.log) + 1, name, data))
        self.wake()

    def wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def set_status(self, status: str) -> None:
        self.status = self.task.status = status

    def answer(self) -> Json:
        return {**self.ids, "status": self.status, "content": self.content}

    def document(self) -> Json:
        return {
            **self.answer(),
            "created_at": self.created_at,
            "started_at": self.created_at,
            "ended_at": now() if self.status in ("Completed", "Failed", "Canceled") else None,
            "token_usage": (self.content or {}).get("token_usage"),
            "error": self.error,
        }

    # --- what the model does ------------------------------------------------------------------------

    async def begin(self, gate: Callable[[str], asyncio.Event]) -> None:
        self.publish("request", {**self.ids, "status": "Running"})
        verb, _, rest = self.text.partition(" ")
        if verb == "delete":
            return self.pause(rest)
        if verb == "hold":
            self.piece("held ")
            await gate(rest).wait()
        if verb == "fail":
            self.piece("half an ")
            return self.end_badly("Failed", 502, "model_error", "The model service broke off.")
        if verb == "count":
            for number in range(int(rest)):
                self.piece(f"{number} ")
                if number % 50 == 49:
                    await asyncio.sleep(0)
        elif verb != "hold":
            for word in self.text.split():
                self.piece(word + " ")
        return self.complete()

    async def go_on(self, decision: Json) -> None:
        """After a decision."""
        approval, path = list(self.decisions)[-1], self.text.partition(" ")[2]
        verdicts = {d["id"]: d for d in decision.get("decisions") or []}
        verdict = verdicts.get(f"call_{len(self.decisions)}", {"action": decision["action"]})
        if verdict["action"] == "reject":
            self.piece(f"I was told not to: {decision.get('reason')}")
            return self.complete()
        arguments = verdict.get("arguments") or {"path": path}
        call = {"call_id": f"call_{approval[:4]}", "tool": "Shell-delete"}
        self.publish("tool-call", {**self.ids, **call, "arguments": json.dumps(arguments)})
        self.tool_runs.append(arguments["path"])
        result = {"output": "deleted", "is_error": False, "duration_ms": 1.5}
        self.publish("tool-result", {**self.ids, **call, **result})
        if path == "twice" and len(self.decisions) == 1:
            return self.pause("again")
        self.piece(f"deleted {arguments['path']}")
        return self.complete()

    def piece(self, text: str) -> None:
        self.output += text
        self.publish("partial-response", {**self.ids, "source": "Echo:0.1", "output_partial": text})

    def pause(self, path: str) -> None:
        approval = str(uuid.uuid4())
        self.decisions[approval] = None
        url = f"{PREFIX}/requests/{self.request_id}/resume?approval_id={approval}"
        call = {
            "id": f"call_{len(self.decisions)}",
            "plugin_name": "Shell",
            "function_name": "delete",
            "arguments": json.dumps({"path": path}),
        }
        self.content = {
            **self.ids,
            "approval_id": approval,
            "message": "Shell-delete needs approval",
            "approval_url": url,
            "rejection_url": url,
            "expires_at": now(),
            "authorizations": [],
            "tool_calls": [call],
        }
        self.set_status("Paused")
        self.publish("approval-required", self.answer())

    def complete(self) -> None:
        pieces = sum(name == "partial-response" for _, name, _ in self.log)
        usage = {"prompt_tokens": 3, "completion_tokens": pieces, "total_tokens": 3 + pieces}
        self.content = {
            **self.ids,
            "output": self.output,
            "source": "Echo:0.1",
            "token_usage": usage,
            "extra_data": None,
        }
        self.set_status("Completed")
        self.task.path.append(self.request_id)
        self.task.completed.append(self.request_id)
        self.publish("final-response", self.answer())

    def end_badly(self, status: str, http_status: int, code: str, detail: str) -> None:
        self.content = {**self.ids, "output": self.output}
        self.error = Problem(http_status, code, detail, **self.ids).document
        self.set_status(status)
        self.publish("error", self.error)


TERMINAL = ("approval-required", "final-response", "error")


class ContractServer:
    """Start it with `with`. `faults` are answers given, in order, instead of handling a call."""

    def __init__(self, keepalive: float = 15.0) -> None:
        self.keepalive = keepalive
        self.tasks: dict[str, Task] = {}
        self.runs: dict[str, Run] = {}
        self.keys: dict[tuple[str, str], tuple[str, str]] = {}
        #: `(method, path below the prefix)` of every call that came
        self.calls: list[tuple[str, str]] = []
        self.faults: list[Problem | Response] = []
        self.page_size = 50
        #: event logs are gone, as they are 24 h after the end
        self.logs_gone = False
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self._app(), log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, kwargs={"sockets": [self._socket]})
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return self.root + PREFIX

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self._uvicorn.started)
        return self

    def __exit__(self, *_: object) -> None:
        self._uvicorn.should_exit = True
        for name in list(self._gates):
            self.release(name)
        self._thread.join()
        self._socket.close()

    def release(self, name: str) -> None:
        """Let `hold NAME` go on."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._gates[name].set)

    @property
    def model_calls(self) -> int:
        return len(self.runs)

    # --- HTTP ---------------------------------------------------------------------------------------

    def _app(self) -> Starlette:
        def route(
            path: str, method: str, handle: Callable[[Request, str], Any], public: bool = False
        ) -> Route:
            async def endpoint(request: Request) -> Response:
                self._loop = asyncio.get_running_loop()
                self.calls.append((request.method, request.url.path.removeprefix(PREFIX)))
                try:
                    if self.faults:
                        fault = self.faults.pop(0)
                        if isinstance(fault, Problem):
                            raise fault
                        return fault
                    answer: Response = await handle(request, "" if public else user_of(request))
                    return answer
                except Problem as problem:
                    return problem.response()

            return Route(path, endpoint, methods=[method])

        routes = [
            route("/", "GET", self._agents, public=True),
            route(PREFIX, "POST", self._message),
            route(PREFIX + "/sse", "POST", self._message),
            route(PREFIX + "/health", "GET", self._health, public=True),
            Route(PREFIX + "/console/", lambda _: HTMLResponse("<!doctype html>")),
            route(PREFIX + "/sessions", "GET", self._sessions),
            route(PREFIX + "/sessions/{id}", "GET", self._session),
            route(PREFIX + "/sessions/{id}", "DELETE", self._delete_session),
            route(PREFIX + "/tasks", "GET", self._tasks),
            route(PREFIX + "/tasks/import", "POST", self._import),
            route(PREFIX + "/tasks/{id}", "GET", self._task),
            route(PREFIX + "/tasks/{id}", "PATCH", self._patch),
            route(PREFIX + "/tasks/{id}", "DELETE", self._delete_task),
            route(PREFIX + "/tasks/{id}/rollback", "POST", self._rollback),
            route(PREFIX + "/tasks/{id}/fork", "POST", self._fork),
            route(PREFIX + "/tasks/{id}/export", "GET", self._export),
            route(PREFIX + "/tasks/{id}/{what}", "GET", self._part),
            route(PREFIX + "/approvals", "GET", self._approvals),
            route(PREFIX + "/requests/{id}", "GET", self._request),
            route(PREFIX + "/requests/{id}/events", "GET", self._events),
            route(PREFIX + "/requests/{id}/cancel", "POST", self._cancel),
            route(PREFIX + "/requests/{id}/resume", "POST", self._resume),
            route(PREFIX + "/requests/{id}/resume/sse", "POST", self._resume),
        ]
        return Starlette(routes=routes)

    async def _agents(self, _: Request, __: str) -> Response:
        agent = {"name": "Echo", "version": "0.1", "url": PREFIX, "docs": f"{PREFIX}/docs"}
        return JSONResponse({"agents": [agent]})

    async def _health(self, _: Request, __: str) -> Response:
        return JSONResponse({"status": "ok", "version": "0.1", "uptime": 1, "dependencies": {"store": "ok"}})

    async def _message(self, request: Request, user: str) -> Response:
        body = await request.json()
        if not body.get("items") or set(body) - MESSAGE_FIELDS:
            raise Problem(422, "invalid_request", "items: at least one is needed")
        key, digest = request.headers.get("idempotency-key"), digest_of(body)
        streams = request.url.path.endswith("/sse")
        if key is not None and (user, key) in self.keys:
            return await self._again(self.keys[user, key], digest, streams)
        run = self._start(body, user)
        if key is not None:
            self.keys[user, key] = (run.request_id, digest)
        if streams:
            return self._stream(run, 0)
        if request.headers.get("prefer") == "respond-async":
            location = {"Location": f"{PREFIX}/requests/{run.request_id}"}
            return JSONResponse({**run.ids, "status": "Running"}, 202, headers=location)
        return await self._whole(run)

    async def _again(self, first: tuple[str, str], digest: str, streams: bool) -> Response:
        run, replayed = self.runs[first[0]], {"Idempotent-Replayed": "true"}
        if first[1] != digest:
            raise Problem(422, "idempotency_key_reused", "This key came with another message.")
        if run.status == "Running":
            raise Problem(409, "request_in_progress", "The first request still runs.", 1, **run.ids)
        if streams:
            return self._stream(run, 0, replayed)
        return await self._whole(run, replayed)

    def _start(self, body: Json, user: str) -> Run:
        text = "".join(item["content"] for item in body["items"] if item["content_type"] == "text")
        if body.get("task_id"):
            task = self._owned(body["task_id"], user)
            running = next((r for r in self.runs.values() if r.task is task and r.status == "Running"), None)
            if running is not None:
                raise Problem(409, "task_busy", "Wait for the running one.", 1, **running.ids)
            paused = next((r for r in self.runs.values() if r.task is task and r.status == "Paused"), None)
            if paused is not None and not body.get("supersede"):
                raise Problem(
                    409, "approval_pending", "Decide first.", **paused.ids, approval_id=paused.pending
                )
            if paused is not None:
                paused.end_badly("Canceled", 409, "request_canceled", "Superseded.")
        else:
            session = body.get("session_id") or str(uuid.uuid4())
            task = Task(owner=user, session_id=session, metadata=body.get("metadata") or {})
            self.tasks[task.task_id] = task
        run = Run(task, text)
        run.set_status("Running")
        self.runs[run.request_id] = run
        run.producer = asyncio.create_task(run.begin(self._gates.__getitem__))
        return run

    async def _whole(self, run: Run, headers: dict[str, str] | None = None) -> Response:
        while run.status == "Running":
            await run.changed.wait()
        if run.error is not None:
            return JSONResponse(
                run.error, run.error["status"], headers=headers, media_type="application/problem+json"
            )
        return JSONResponse(run.answer(), headers=headers)

    def _stream(self, run: Run, after: int, headers: dict[str, str] | None = None) -> Response:
        return StreamingResponse(
            self._encoded(run, after), headers=headers, media_type="text/event-stream; charset=utf-8"
        )

    async def _encoded(self, run: Run, after: int) -> AsyncIterator[bytes]:
        """The log from `after` on, following; decided pauses are passed over."""
        while True:
            changed = run.changed
            for number, name, data in run.log[after:]:
                after = number
                yield f"event: {name}\nid: {number}\ndata: {json.dumps(data)}\n\n".encode()
                if name in TERMINAL and number == len(run.log) and run.status != "Running":
                    return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), self.keepalive)
                continue
            yield b": keepalive\n\n"

    async def _request(self, request: Request, user: str) -> Response:
        return JSONResponse(self._run(request, user).document())

    async def _events(self, request: Request, user: str) -> Response:
        run = self._run(request, user)
        after = int(request.headers.get("last-event-id") or request.query_params.get("after") or 0)
        if self.logs_gone or (after >= len(run.log) and run.status not in ("Running", "Paused")):
            return Response(status_code=204)
        return self._stream(run, after)

    async def _cancel(self, request: Request, user: str) -> Response:
        run = self._run(request, user)
        if run.status in ("Running", "Paused"):
            if run.producer is not None:
                run.producer.cancel()
            run.end_badly("Canceled", 409, "request_canceled", "The request was canceled.")
        return JSONResponse(run.document())

    async def _resume(self, request: Request, user: str) -> Response:
        run, body = self._run(request, user), await request.json()
        if body.get("action") not in ("approve", "reject"):
            raise Problem(422, "invalid_request", "action: approve or reject")
        approval = request.query_params.get("approval_id") or next(iter(run.decisions))
        before = len(run.log)
        if approval != run.pending and run.decisions.get(approval) != body:
            if run.pending is not None:
                raise Problem(409, "approval_pending", "Name the pause.", **run.ids, approval_id=run.pending)
            raise Problem(409, "already_decided", "It was decided otherwise.", **run.ids)
        if approval == run.pending:
            run.decisions[approval] = body
            run.set_status("Running")
            run.producer = asyncio.create_task(run.go_on(body))
        else:
            before = next(n for n, name, _ in run.log if name == "approval-required")
        if request.url.path.endswith("/sse"):
            return self._stream(run, before)
        return await self._whole(run)

    async def _sessions(self, request: Request, user: str) -> Response:
        ids = dict.fromkeys(task.session_id for task in reversed(self._tasks_of(user)))
        return self._page(request, [self._session_document(id, user) for id in ids])

    async def _session(self, request: Request, user: str) -> Response:
        return JSONResponse(self._session_document(request.path_params["id"], user))

    async def _delete_session(self, request: Request, user: str) -> Response:
        for task in self._tasks_of(user):
            if task.session_id == request.path_params["id"]:
                del self.tasks[task.task_id]
        return Response(status_code=204)

    async def _tasks(self, request: Request, user: str) -> Response:
        tasks = [task.document() for task in reversed(self._tasks_of(user))]
        for name in ("session_id", "status"):
            wanted = request.query_params.get(name)
            tasks = [task for task in tasks if wanted in (None, task[name])]
        return self._page(request, tasks)

    async def _task(self, request: Request, user: str) -> Response:
        return JSONResponse(self._owned(request.path_params["id"], user).document())

    async def _patch(self, request: Request, user: str) -> Response:
        task = self._owned(request.path_params["id"], user)
        for name, value in (await request.json()).items():
            setattr(task, name, value)
        return JSONResponse(task.document())

    async def _delete_task(self, request: Request, user: str) -> Response:
        del self.tasks[self._owned(request.path_params["id"], user).task_id]
        return Response(status_code=204)

    async def _rollback(self, request: Request, user: str) -> Response:
        task = self._owned(request.path_params["id"], user)
        checkpoint = (await request.json())["checkpoint_id"]
        if checkpoint not in task.completed:
            raise Problem(404, "not_found", "No such checkpoint.")
        task.path = task.completed[: task.completed.index(checkpoint) + 1]
        return JSONResponse(task.document())

    async def _fork(self, request: Request, user: str) -> Response:
        task, body = self._owned(request.path_params["id"], user), await request.json()
        end = task.path.index(body["checkpoint_id"]) + 1 if "checkpoint_id" in body else None
        fork = Task(owner=user, session_id=task.session_id, path=task.path[:end], status=task.status)
        fork.completed = list(fork.path)
        self.tasks[fork.task_id] = fork
        return JSONResponse(fork.document(), 201)

    async def _export(self, request: Request, user: str) -> Response:
        task = self._owned(request.path_params["id"], user)
        return JSONResponse({"task": task.document(), "path": task.path})

    async def _import(self, request: Request, user: str) -> Response:
        document = await request.json()
        if document["task"]["task_id"] in self.tasks:
            raise Problem(409, "already_exists", "This task exists.")
        ids = {name: document["task"][name] for name in ("task_id", "session_id")}
        task = Task(owner=user, **ids, path=document["path"], status="Completed")
        self.tasks[task.task_id] = task
        return JSONResponse(task.document(), 201)

    async def _part(self, request: Request, user: str) -> Response:
        task = self._owned(request.path_params["id"], user)
        match request.path_params["what"]:
            case "messages":
                return self._page(request, [m for id in task.path for m in messages_of(self.runs[id])])
            case "checkpoints":
                documents = [
                    {
                        "checkpoint_id": id,
                        "request_id": id,
                        "created_at": now(),
                        "current": id == task.path[-1],
                    }
                    for id in reversed(task.completed)
                ]
                return self._page(request, documents)
            case "trace":
                steps = [{"request_id": id, "kind": "model", "name": "echo"} for id in task.path]
                return self._page(request, steps)
            case "audit":
                entry = {"seq": 1, "at": now(), "actor": user, "action": "begin", "request_id": None}
                chain = {"details": {}, "prev_hash": "", "hash": "00"}
                return self._page(request, [entry | chain])
        raise Problem(404, "not_found", "No such page.")

    async def _approvals(self, request: Request, user: str) -> Response:
        paused = [run for run in self.runs.values() if run.task.owner == user and run.pending]
        return self._page(request, [{**(run.content or {}), "status": "pending"} for run in paused])

    # --- what is kept ---------------------------------------------------------------------------------

    def _run(self, request: Request, user: str) -> Run:
        run = self.runs.get(request.path_params["id"])
        if run is None:
            raise Problem(404, "not_found", "No such request.")
        if run.task.owner != user:
            raise Problem(401, "not_owner", "This request belongs to somebody else.")
        return run

    def _owned(self, task_id: str, user: str) -> Task:
        task = self.tasks.get(task_id)
        if task is None:
            raise Problem(404, "not_found", "No such task.")
        if task.owner != user:
            raise Problem(401, "not_owner", "This task belongs to somebody else.")
        return task

    def _tasks_of(self, user: str) -> list[Task]:
        return [task for task in self.tasks.values() if task.owner == user]

    def _session_document(self, session_id: str, user: str) -> Json:
        tasks = [task for task in self._tasks_of(user) if task.session_id == session_id]
        if not tasks:
            raise Problem(404, "not_found", "No such session.")
        documents = [task.document() for task in tasks]
        return {"session_id": session_id, "created_at": tasks[0].created_at, "tasks": documents}

    def _page(self, request: Request, items: list[Json]) -> Response:
        start = int(request.query_params.get("cursor") or 0)
        end = start + self.page_size
        cursor = str(end) if end < len(items) else None
        return JSONResponse({"items": items[start:end], "next_cursor": cursor})


MESSAGE_FIELDS = {"session_id", "task_id", "items", "user_context", "metadata", "supersede"}


def now() -> str:
    return datetime.now(UTC).isoformat()


def digest_of(body: Json) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def user_of(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme != "Bearer" or not token:
        raise Problem(401, "unauthenticated", "Send a bearer token.")
    return token


def messages_of(run: Run) -> list[Json]:
    def message(role: str, text: str) -> Json:
        return {
            "message_id": str(uuid.uuid4()),
            "request_id": run.request_id,
            "role": role,
            "items": [{"content_type": "text", "content": text}],
            "created_at": run.created_at,
        }

    return [message("user", run.text), message("assistant", run.output)]
