"""Imports tasks from their documents."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids, paths
from tealagents.domain.errors import (
    AlreadyExists,
    Conflict,
    InvalidRequest,
    NotFound,
    PersistenceUnavailable,
)
from tealagents.domain.images import lowered
from tealagents.domain.models import (
    Body,
    Caller,
    Effects,
    Head,
    Item,
    MessageBody,
    Note,
    Path,
    RequestEnd,
    RequestRecord,
    Session,
    StepBody,
)
from tealagents.state import keys
from tealagents.state.audit_chain import draft
from tealagents.state.copying import Copy
from tealagents.state.document_paths import WholePaths
from tealagents.state.owner_directory import WORDS, Kind
from tealagents.state.records import Stored, no_session
from tealagents.state.removal import MAKING_SECONDS, give_up
from tealagents.state.task_document import ExportedTask, check_size, read
from tealagents.state.tasks import Tasks

log = logging.getLogger(__name__)

#: entries of an imported task before those of its document: the one that records the import
SHIFT = 1


class Importing(Struct, frozen=True):
    """`importing/{task_id}`: the worker that is writing an imported task, which no one can see yet."""

    worker_id: str


class TaskImporter:
    """Imports tasks."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        #: the tasks that are being imported in this process
        self._importing: set[str] = set()

    async def import_(self, caller: Caller, value: Any, digest: str) -> Head:
        """Imports a task from its document. Keeps ids, messages and times; marks the trace as imported.

        `digest` is that of the document as it was sent; the first entry of the task's audit has it.

        Raises `InvalidRequest`, `NotOwner`, `AlreadyExists`, `NotFound` (a deleted session).
        """
        document = await asyncio.to_thread(read, value, caller.user)
        task_id = document.task.task_id
        if task_id in self._importing:
            raise _exists(task_id)
        self._importing.add(task_id)
        try:
            return await Import(self._tasks, caller, document, digest).run()
        except Conflict:
            raise _exists(task_id) from None
        finally:
            self._importing.discard(task_id)


class Import:
    """One import of one task."""

    def __init__(self, tasks: Tasks, caller: Caller, document: ExportedTask, digest: str) -> None:
        self._tasks = tasks
        self._records = tasks.records
        self._caller = caller
        self._document = document
        self._digest = digest
        self._partition = tasks.records.partition(caller.user)
        #: key and version of the `Importing` record, the right to write the task; every commit expects it
        self._guard: dict[str, str | None] = {}

    async def run(self) -> Head:
        """Imports the task. `Conflict` if another process has taken the right to write it."""
        task = self._document.task
        await self._tasks.directory.introduce(self._caller.user)
        await self._check_new()
        # no one could read an expired task, but its id would be taken
        if task.is_expired(self._records.clock.now()):
            raise InvalidRequest("task.expires_at", "has passed: remove it, or set a later time")
        await self._take_guard()
        try:
            await self._clear()
            if await self._is_there(keys.task(task.task_id)):
                raise _exists(task.task_id)
            for kind, identifier in self._made_elsewhere():
                await self._tasks.directory.claim(kind, identifier, self._caller.user)
            return await self._write()
        except Exception:
            await self._give_up()
            raise

    # --- the right to write the task -------------------------------------------------------------

    async def _take_guard(self) -> None:
        task_id, lease = self._document.task.task_id, self._tasks.lease
        key = keys.importing(task_id)
        found = await self._records.get(self._partition, key, Importing)
        await lease.ensure()
        writer = found.value.worker_id if found else lease.worker_id
        if writer != lease.worker_id and not await self._tasks.peers.dead(writer):
            raise _exists(task_id)
        await self._guard_again({key: found.version if found else None})

    async def _guard_again(self, expect: Mapping[str, str | None]) -> None:
        (key,) = expect
        version = await self._records.commit(
            self._partition,
            marker=key,
            expect=expect,
            put={key: Importing(self._tasks.lease.worker_id)},
            ttl={key: MAKING_SECONDS},  # an import that takes longer is given up in any case
        )
        self._guard = {key: version}

    async def _give_up(self) -> None:
        """Removes what a failed import has written, so that any process can import the task again.

        The guard is taken anew first, so that a commit of the import that is still under way fails.
        """
        task_id = self._document.task.task_id
        try:
            await self._guard_again(self._guard)
            await self._clear()
            if not await self._is_there(keys.task(task_id)):
                for kind, identifier in self._made_elsewhere():
                    there = partial(self._is_there, kind(identifier))
                    await self._tasks.directory.release(kind, identifier, self._caller.user, unless=there)
            (key,) = self._guard
            await self._records.commit(self._partition, marker=key, expect=self._guard, delete=[key])
        except (Conflict, PersistenceUnavailable) as error:
            # another process has taken over, or will once this worker is gone
            log.info("the interrupted import of task %s could not be removed: %s", task_id, error)

    async def _clear(self) -> None:
        """Removes what an earlier import has left of the task. `Conflict` if another process does."""
        left = await self._records.get(self._partition, keys.task(self._document.task.task_id), Head)
        if left is not None and left.value.making:
            await give_up(self._records, self._tasks.directory, self._partition, left)

    # --- existing records ------------------------------------------------------------------------

    async def _check_new(self) -> None:
        task_id = self._document.task.task_id
        for kind, identifier in _ids_of(self._document):
            if await self._taken(kind(identifier)):
                which = "it" if kind is keys.task else "the task that it belongs to"
                advice = f"Delete {which}, and import it again."
                found = await self._records.get(self._partition, keys.task(task_id), Head)
                if found is not None and found.value.erased:
                    advice = "It is being erased: import it again in a minute."
                elif found is not None and found.value.is_expired(self._records.clock.now()):
                    advice = (
                        "It has expired: its id is free once the operator has run `tealagents state prune`."
                    )
                raise AlreadyExists(
                    f"The {WORDS[kind]} {identifier} exists already. {advice}", task_id=task_id
                )
        for kind, identifier in self._made_elsewhere():
            await self._tasks.directory.check_new(kind, identifier, self._caller.user)

    async def _taken(self, key: str) -> bool:
        """Whether a record exists; one left by an interrupted import of the same task does not count."""
        task_id = self._document.task.task_id
        (record,) = await self._records.store.read(self._partition, [key])
        if record is None:
            return False
        if key == keys.task(task_id):
            task = self._records.open(self._partition, key, record, Head)
            return task is None or not task.value.making
        if not await self._is_there(keys.importing(task_id)):
            return True
        left = await self._records.get(self._partition, key, RequestRecord)
        return left is not None and left.value.task_id != task_id

    async def _is_there(self, key: str) -> bool:
        return await self._records.version(self._partition, key) is not None

    def _made_elsewhere(self) -> list[tuple[Kind, str]]:
        """The ids that were not made here for the caller, and so have to be claimed."""
        owner = self._caller.user.key
        return [(kind, name) for kind, name in _ids_of(self._document) if not ids.is_made_for(owner, name)]

    # --- writing ---------------------------------------------------------------------------------

    async def _write(self) -> Head:
        task, session = self._document.task, await self._session()
        copy = Copy(self._tasks, self._partition, _blank(task), self._guard)
        await copy.begin()
        note = Note("imported", {"document_sha256": self._digest})
        actor = self._caller.user.key
        await copy.add(draft("task.imported", actor, None, note, document_sha256=self._digest))
        for entry in self._document.entries:
            body = _marked(entry.body)
            await copy.add(
                draft(entry.action, entry.actor, entry.request_id, body, imported=True, at=entry.at)
            )
        await copy.flush()
        await self._add_requests(copy)
        head = replace(
            copy.head,
            status=task.status,
            checkpoint_id=task.checkpoint_id,
            path=_shifted(task.path),
            effects=_effects(self._document),
        )
        while True:
            try:
                return await copy.finish(head, session)
            except Conflict:
                known, session = session, await self._session()
                if session == known:
                    raise
                if session is None:
                    gone = f"The session {task.session_id} was deleted."
                    raise NotFound(gone, session_id=task.session_id) from None

    async def _add_requests(self, copy: Copy) -> None:
        requests = [_imported(request) for request in self._document.requests]
        paths = WholePaths(requests)
        for n, request in enumerate(requests):
            path = paths.whole(request)
            check_size(path, f"requests.{n}.path")
            await copy.add_request(replace(request, path=path))

    async def _session(self) -> Stored[Session] | None:
        session_id = self._document.task.session_id
        found = await self._records.get(self._partition, keys.session(session_id), Session)
        if found is None:
            await self._tasks.directory.claim_new(keys.session, session_id, self._caller.user)
        elif found.value.erased:
            raise no_session(session_id)
        return found


def _ids_of(document: ExportedTask) -> list[tuple[Kind, str]]:
    """The ids of the task and its requests, each with its key function."""
    requests = [(keys.request, request.request_id) for request in document.requests]
    return [(keys.task, document.task.task_id), *requests]


def _exists(task_id: str) -> AlreadyExists:
    return AlreadyExists(f"The task {task_id} exists already, or is just being imported.", task_id=task_id)


def _blank(task: Head) -> Head:
    """The head of an imported task before its first entry."""
    return replace(
        task,
        log_id=ids.operation_id(),
        tail_seq=0,
        tail_hash="",
        tail_seal="",
        tail_key=0,
        path=(),
        checkpoint_id=None,
        effects=(),
        remote_id=None,  # the document may name another user's conversation
    )


def _effects(document: ExportedTask) -> tuple[Effects, ...]:
    """The tool calls of unanswered requests, according to the document."""
    # of a withdrawn request, only the end is on the path: its effects have the end's number
    by_end = {effects.first_seq for effects in document.task.effects}
    ends = [
        entry.body
        for entry in document.entries
        if isinstance(entry.body, RequestEnd) and entry.body.tools and entry.seq not in by_end
    ]
    logged = {end.first_seq for end in ends}
    # a fork has its source's tool calls, and the `cut`, only in its head, and not in its log
    cut = next((effects.cut + SHIFT for effects in document.task.effects if effects.cut), 0)
    effects = [
        Effects(known.first_seq + SHIFT, known.tools)
        for known in document.task.effects
        if known.first_seq not in logged
    ]
    effects += [Effects(end.first_seq + SHIFT, end.tools) for end in ends if end.status != "Completed"]
    if not effects:
        return ()
    effects.sort(key=attrgetter("first_seq"))  # `remembering` keeps the newest, which come last
    effects[0] = replace(effects[0], cut=cut)
    return paths.remembering(tuple(effects[:-1]), effects[-1])


def _marked(body: Body) -> Body:
    """An entry's body as it is written to the new log."""
    if isinstance(body, StepBody):
        return StepBody(replace(body.step, imported=True))
    if isinstance(body, RequestEnd):
        return replace(body, first_seq=body.first_seq + SHIFT, remote_id=None)
    if isinstance(body, MessageBody):
        return replace(body, message=replace(body.message, items=tuple(map(_lowered, body.message.items))))
    return body


def _lowered(item: Item) -> Item:
    return Item("image", lowered(item.content)) if item.content_type == "image" else item


def _shifted(path: Path) -> Path:
    return tuple((first + SHIFT, last + SHIFT) for first, last in path)


def _imported(request: RequestRecord) -> RequestRecord:
    return replace(
        request,
        first_seq=request.first_seq + SHIFT if request.first_seq else 0,
        last_seq=request.last_seq + SHIFT,
        path=_shifted(request.path),
        remote_id=None,
        worker_id=None,
        approvals=(),
        imported_pauses=len(request.approvals) + request.imported_pauses,
        idempotency=None,
        waiting=None,
        last_event=max(2, request.last_event),
        imported=True,
    )
