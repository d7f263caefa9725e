"""Changes of a task by its user, other than messages: metadata, expiry, the current checkpoint."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from msgspec.structs import replace

from tealagents.domain.errors import InvalidRequest
from tealagents.domain.json_limits import TOO_SLOW, too_slow
from tealagents.domain.models import ENDED, Head, Json, Note, User
from tealagents.state.codec import encode_json
from tealagents.state.new_message import Earlier, check_earlier
from tealagents.state.new_task import resent
from tealagents.state.records import Stored, no_checkpoint
from tealagents.state.tasks import Tasks, occupied
from tealagents.state.transitions import Transition, changed

#: the largest metadata of a task, in bytes of JSON: it is written with every turn
MOST_METADATA = 64 * 1024
UNSET: Any = object()


class Changes:
    """Changes heads, each change with an entry in the audit."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._records = tasks.records

    async def patch(
        self,
        partition: str,
        task_id: str,
        actor: User,
        *,
        metadata: Json | None = UNSET,
        merges: bool = True,
        expires_at: datetime | None = UNSET,
    ) -> Head:
        """Merges `metadata` into the task's (RFC 7396: null removes a key, or all) and sets its expiry.

        Unless it `merges`, the metadata takes the place of all that the task has.
        """
        given = {"metadata": metadata is not UNSET, "expires_at": expires_at is not UNSET}
        fields = [name for name, is_given in given.items() if is_given]

        def patched(head: Head) -> Head:
            if metadata is not UNSET:
                before = head.metadata if merges and metadata is not None else {}
                head = replace(head, metadata=merged(before, metadata or {}))
            return head if expires_at is UNSET else replace(head, expires_at=expires_at)

        note = Note("changed", {"fields": fields})
        return await self._change(partition, task_id, actor, "task.patched", note, patched)

    async def add(
        self, partition: str, task_id: str, actor: User, said: Sequence[Earlier], *, remote: bool = False
    ) -> Head:
        """Appends earlier messages that a client supplies. Raises `TaskBusy`, `ApprovalPending`.

        `remote`: the model service keeps conversations. `InvalidRequest` if it keeps this one, as it would
        lack the messages.
        """
        check_earlier(said)
        tasks = self._tasks
        if not said:
            return (await tasks.head(partition, task_id)).value

        async def decide(found: Stored[Head]) -> Transition:
            head, now = _free(found.value), self._records.clock.now()
            if remote and head.remote_id is not None:
                kept = "cannot be added: the model service keeps this conversation (`thread.kind: remote`)"
                raise InvalidRequest("items", kept)
            context = await self._records.context_of(partition, head)
            return resent(head, said, actor.key, context, source=tasks.source, now=now)

        return (await tasks.heads.transact(partition, partial(tasks.head, partition, task_id), decide)).head

    async def rollback(self, partition: str, task_id: str, actor: User, checkpoint_id: str) -> Head:
        """Makes an earlier (or later) checkpoint the current one. Nothing is erased."""
        target = await self._tasks.request_of(partition, task_id, checkpoint_id)
        if target is None or target.status != "Completed":
            # a running or paused request may still become this checkpoint: then the task is busy
            head = _free((await self._tasks.head(partition, task_id)).value)
            if target is not None and target.status not in ENDED and head.idle:
                await self._tasks.request(partition, checkpoint_id)  # has ended meanwhile, or is damaged
                return await self.rollback(partition, task_id, actor, checkpoint_id)
            raise no_checkpoint(task_id, checkpoint_id)

        def moved(head: Head) -> Head:
            path, remote_id = target.path, target.remote_id
            return replace(_free(head), checkpoint_id=checkpoint_id, path=path, remote_id=remote_id)

        note = Note("rolled back", {"checkpoint_id": checkpoint_id})
        return await self._change(partition, task_id, actor, "task.rolled_back", note, moved)

    async def _change(
        self,
        partition: str,
        task_id: str,
        actor: User,
        action: str,
        note: Note,
        change: Callable[[Head], Head],
    ) -> Head:
        async def decide(found: Stored[Head]) -> Transition:
            head = change(found.value)
            check_metadata(head.metadata)
            return changed(head, actor.key, action, note, self._records.clock.now())

        look = partial(self._tasks.head, partition, task_id)
        return (await self._tasks.heads.transact(partition, look, decide)).head


def _free(head: Head) -> Head:
    """The head of a task in which nothing runs or waits for a human. `TaskBusy`, `ApprovalPending`."""
    if head.occupant is not None:
        raise occupied(head, head.occupant)
    return head


def merged(old: Json, patch: Json) -> Json:
    """JSON merge patch (RFC 7396) of one object."""
    result = dict(old)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = value
    return result


def check_metadata(metadata: Json) -> None:
    encoded = encode_json(metadata)
    if len(encoded) > MOST_METADATA:
        raise InvalidRequest("metadata", f"is larger than {MOST_METADATA} bytes of JSON")
    if too_slow(encoded):  # each list parses it again; patches in several bodies may add up to this
        raise InvalidRequest("metadata", TOO_SLOW)
