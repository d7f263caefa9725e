"""Tasks from their documents."""

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
from tealagents.state.owner_directory import Kind
from tealagents.state.records import Stored
from tealagents.state.removal import MAKING_SECONDS, give_up
from tealagents.state.task_document import ExportedTask, check_size, read
from tealagents.state.tasks import Tasks, is_expired

log = logging.getLogger(__name__)

#: entries of an imported task before those of its document: that it was imported
SHIFT = 1


class Importing(Struct, frozen=True):
    """`importing/{task_id}`: who is writing an imported task that no one can see yet."""

    worker_id: str


class TaskImporter:
    """Imports tasks."""

    def __init__(self, tasks: Tasks) -> None:
        self._records = tasks.records
        self._tasks = tasks
        #: the tasks that are being imported in this process
        self._importing: set[str] = set()

    async def import_(self, caller: Caller, value: Any, digest: str) -> Head:
        """A task from its document: ids, messages and times kept; trace and decisions marked.

        `digest`, of the document as it was sent, is the first thing in the task's audit.
        """
        document = read(value, caller.user)
        task_id = document.task.task_id
        if task_id in self._importing:
            raise _exists(task_id)
        self._importing.add(task_id)
        try:
            return await self._import(caller, document, digest)
        except Conflict:
            raise _exists(task_id) from None
        finally:
            self._importing.discard(task_id)

    async def _import(self, caller: Caller, document: ExportedTask, digest: str) -> Head:
        partition = self._records.partition(caller.user)
        await self._tasks.directory.introduce(caller.user)
        await self._check_new(caller, partition, document)
        # no one could reach it, and its id would be taken
        if is_expired(document.task, self._records.clock.now()):
            raise InvalidRequest("task.expires_at", "has passed: remove it, or set a later time")
        guard = await self._guarded(partition, document)
        try:
            await self._clear(partition, document.task.task_id)
            if await self._is_there(partition, keys.task(document.task.task_id)):
                raise _exists(document.task.task_id)
            for kind, identifier in _made_elsewhere(caller, document):
                await self._tasks.directory.claim(kind, identifier, caller.user)
            return await self._write(caller, document, digest, partition, guard)
        except Exception:
            await self._give_up(caller, partition, document, guard)
            raise

    async def _is_there(self, partition: str, key: str) -> bool:
        """Whether there is a record: another import may have ended before this one could begin."""
        (record,) = await self._records.store.read(partition, [key])
        return record is not None

    async def _give_up(
        self, caller: Caller, partition: str, document: ExportedTask, guard: Mapping[str, str | None]
    ) -> None:
        """Removes what a failed import has written, so that it can be tried anew, by any replica.

        The guard is taken anew first: then the end of the import, should it still be on its way, fails.
        """
        (key,) = guard
        try:
            version = await self._records.commit(
                partition,
                marker=key,
                expect=guard,
                put={key: Importing(self._tasks.lease.worker_id)},
                ttl={key: MAKING_SECONDS},
            )
            await self._clear(partition, document.task.task_id)
            if not await self._is_there(partition, keys.task(document.task.task_id)):
                for kind, identifier in _made_elsewhere(caller, document):
                    there = partial(self._is_there, partition, kind(identifier))
                    await self._tasks.directory.release(kind, identifier, caller.user, unless=there)
            await self._records.commit(partition, marker=key, expect={key: version}, delete=[key])
        except (Conflict, PersistenceUnavailable) as error:
            # another process has continued it, or will, once this worker is gone
            log.info(
                "the interrupted import of task %s could not be removed: %s", document.task.task_id, error
            )

    async def _clear(self, partition: str, task_id: str) -> None:
        """Removes what is there of a task that no one can see; `Conflict` where another does."""
        left = await self._records.get(partition, keys.task(task_id), Head)
        if left is not None and left.value.making:
            await give_up(self._records, self._tasks.directory, partition, left)

    async def _write(
        self,
        caller: Caller,
        document: ExportedTask,
        digest: str,
        partition: str,
        guard: dict[str, str | None],
    ) -> Head:
        task = document.task
        session = await self._session(caller, partition, task.session_id)
        copy = Copy(self._tasks, partition, _blank(task), guard)
        await copy.begin()
        note = Note("imported", {"document_sha256": digest})
        await copy.add(draft("task.imported", caller.user.key, None, note, document_sha256=digest))
        for entry in document.entries:
            body = _marked(entry.body)
            await copy.add(
                draft(entry.action, entry.actor, entry.request_id, body, imported=True, at=entry.at)
            )
        await copy.flush()
        await self._add_requests(copy, document)
        head = replace(
            copy.head,
            status=task.status,
            checkpoint_id=task.checkpoint_id,
            path=_shifted(task.path),
            effects=_effects(document),
        )
        while True:
            try:
                return await copy.finish(head, session)
            except Conflict:
                known, session = session, await self._session(caller, partition, task.session_id)
                if session == known:
                    raise
                if session is None:
                    gone = f"The session {task.session_id} was deleted."
                    raise NotFound(gone, session_id=task.session_id) from None

    async def _add_requests(self, copy: Copy, document: ExportedTask) -> None:
        requests = [_imported(request) for request in document.requests]
        paths = WholePaths(requests)
        for n, request in enumerate(requests):
            path = paths.whole(request)
            check_size(path, f"requests.{n}.path")
            await copy.add_request(replace(request, path=path))

    async def _guarded(self, partition: str, document: ExportedTask) -> dict[str, str | None]:
        """Takes the right to write the task."""
        task_id = document.task.task_id
        key = keys.importing(task_id)
        found = await self._records.get(partition, key, Importing)
        lease = self._tasks.lease
        await lease.ensure()
        writer = found.value.worker_id if found else lease.worker_id
        if writer != lease.worker_id and not await self._tasks.peers.dead(writer):
            raise _exists(task_id)
        version = await self._records.commit(
            partition,
            marker=key,
            expect={key: found.version if found else None},
            put={key: Importing(lease.worker_id)},
            ttl={key: MAKING_SECONDS},  # an import that takes longer is given up in any case
        )
        return {key: version}

    async def _check_new(self, caller: Caller, partition: str, document: ExportedTask) -> None:
        task_id = document.task.task_id
        for kind, identifier in _ids_of(document):
            if await self._taken(partition, kind(identifier), task_id):
                which = "it" if kind is keys.task else "the task that it belongs to"
                advice = f"Delete {which}, and import it again."
                found = await self._records.get(partition, keys.task(task_id), Head)
                if found is not None and found.value.erased:
                    advice = "It is being erased: import it again in a minute."
                elif found is not None and is_expired(found.value, self._records.clock.now()):
                    advice = (
                        "It has expired: its id is free once the operator has run `tealagents state prune`."
                    )
                raise AlreadyExists(
                    f"The {_word(kind(identifier))} exists already. {advice}", task_id=task_id
                )
        for kind, identifier in _made_elsewhere(caller, document):
            await self._tasks.directory.check_new(kind, identifier, caller.user)

    async def _taken(self, partition: str, key: str, task_id: str) -> bool:
        """Whether a record exists; one that a broken import of the same task has left does not count."""
        (record,) = await self._records.store.read(partition, [key])
        if record is None:
            return False
        if key == keys.task(task_id):
            task = self._records.open(partition, key, record, Head)
            return task is None or not task.value.making
        (begun,) = await self._records.store.read(partition, [keys.importing(task_id)])
        if begun is None:
            return True
        left = await self._records.get(partition, key, RequestRecord)
        return left is not None and left.value.task_id != task_id

    async def _session(self, caller: Caller, partition: str, session_id: str) -> Stored[Session] | None:
        found = await self._records.get(partition, keys.session(session_id), Session)
        if found is None:
            await self._tasks.directory.claim_new(keys.session, session_id, caller.user)
        elif found.value.erased:
            raise NotFound(f"There is no session {session_id}. It was deleted.", session_id=session_id)
        return found


def _ids_of(document: ExportedTask) -> list[tuple[Kind, str]]:
    """The task and its requests."""
    requests = [(keys.request, request.request_id) for request in document.requests]
    return [(keys.task, document.task.task_id), *requests]


def _made_elsewhere(caller: Caller, document: ExportedTask) -> list[tuple[Kind, str]]:
    """Those that were not made here for the caller, and have to be claimed."""
    owner = caller.user.key
    return [(kind, name) for kind, name in _ids_of(document) if not ids.is_made_for(owner, name)]


def _exists(task_id: str) -> AlreadyExists:
    return AlreadyExists(f"The task {task_id} exists already, or is just being imported.", task_id=task_id)


def _blank(task: Head) -> Head:
    """The head of an import before its first entry."""
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
    """What tools have done by the document."""
    # of a withdrawn request the end alone is on the path, under its own number
    by_end = {effects.first_seq for effects in document.task.effects}
    ends = [
        entry.body
        for entry in document.entries
        if isinstance(entry.body, RequestEnd) and entry.body.tools and entry.seq not in by_end
    ]
    logged = {end.first_seq for end in ends}
    # what a fork knows of its source's tools, and that there were more of them, is in its head alone
    cut = next((effects.cut + SHIFT for effects in document.task.effects if effects.cut), 0)
    effects = [
        Effects(known.first_seq + SHIFT, known.tools)
        for known in document.task.effects
        if known.first_seq not in logged
    ]
    effects += [Effects(end.first_seq + SHIFT, end.tools) for end in ends if end.status != "Completed"]
    if not effects:
        return ()
    effects.sort(key=attrgetter("first_seq"))  # the newest are remembered
    effects[0] = replace(effects[0], cut=cut)
    return paths.remembering(tuple(effects[:-1]), effects[-1])


def _marked(body: Body) -> Body:
    """An entry's body in the new log."""
    if isinstance(body, StepBody):
        return StepBody(replace(body.step, imported=True))
    if isinstance(body, RequestEnd):
        return replace(body, first_seq=body.first_seq + SHIFT, remote_id=None)
    if isinstance(body, MessageBody):
        return replace(body, message=replace(body.message, items=tuple(map(_taken, body.message.items))))
    return body


def _taken(item: Item) -> Item:
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


def _word(key: str) -> str:
    """A record as users name it."""
    kind, _, identifier = key.partition("/")
    return f"{kind} {identifier}"
