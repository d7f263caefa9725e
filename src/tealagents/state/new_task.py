"""A task before its first message: its ids, its session, and the earlier messages that it begins with."""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from tealagents.domain import ids, paths
from tealagents.domain.errors import AlreadyExists, NotFound
from tealagents.domain.models import (
    Head,
    Json,
    MessageBody,
    RequestEnd,
    RequestRecord,
    Session,
    User,
)
from tealagents.state import keys
from tealagents.state.audit_chain import draft
from tealagents.state.history import in_rounds
from tealagents.state.new_message import Earlier, NewMessage, message_of
from tealagents.state.owner_directory import Directory
from tealagents.state.records import Stored, no_session
from tealagents.state.tasks import Tasks
from tealagents.state.transitions import SERVICE, Transition


async def new_task(
    tasks: Tasks,
    message: NewMessage,
    owner: User,
    session: Stored[Session] | None,
    taken: Stored[Head] | None,
) -> Transition:
    """The new task for a message, with the earlier messages, but without the message itself.

    `session` is the one that the message names, `taken` a task that already has the wanted id.
    Raises `NotFound`, `AlreadyExists`, `NotOwner`.
    """
    now = tasks.records.clock.now()
    session_id, put, expect = await _session(tasks.directory, message.session_id, owner, session, now)
    task_id = await _task_id(tasks.directory, message.new_task_id, owner, taken)
    head = Head(
        task_id=task_id,
        session_id=session_id,
        owner=owner,
        status="Running",
        created_at=now,
        updated_at=now,
        expires_at=message.expires_at,
        metadata=message.metadata,
        log_id=ids.operation_id() if message.new_task_id else "",
    )
    put |= dict.fromkeys(keys.listings(head), task_id)
    new = Transition(head=head, put=put, expect=expect)
    if not message.earlier:
        return new
    said = resent(head, message.earlier, owner.key, None, source=tasks.source, now=now)
    return replace(new, head=said.head, entries=said.entries, put={**put, **said.put})


async def _session(
    directory: Directory, wanted: str | None, owner: User, session: Stored[Session] | None, now: datetime
) -> tuple[str, dict[str, object], dict[str, str | None]]:
    """The session's id, the records to put if it is new, and the versions to expect."""
    session_id = wanted or ids.new_id(owner.key)
    key = keys.session(session_id)
    if session is not None:
        if session.value.erased:
            raise no_session(session_id)
        return session_id, {}, {key: session.version}
    if wanted:
        await directory.claim_new(keys.session, session_id, owner)
    return session_id, new_session(session_id, owner, now), {key: None}


def new_session(session_id: str, owner: User, now: datetime) -> dict[str, object]:
    """The records of a session that begins now."""
    return {
        keys.session(session_id): Session(session_id=session_id, owner=owner, created_at=now),
        keys.session_by_creation(now, session_id): session_id,
    }


async def _task_id(directory: Directory, wanted: str | None, owner: User, taken: Stored[Head] | None) -> str:
    if wanted is None:
        return ids.new_id(owner.key)
    if taken is not None and not taken.value.making:
        if taken.value.erased:
            raise NotFound(f"There is no task {wanted}. It was deleted.", task_id=wanted)
        raise AlreadyExists(f"The task {wanted} exists. Continue it by its task_id.", task_id=wanted)
    await directory.claim_new(keys.task, wanted, owner)
    return wanted


def resent(
    head: Head, said: Sequence[Earlier], actor: str, context: Json | None, *, source: str, now: datetime
) -> Transition:
    """Appends earlier messages that a client supplies, as one completed request.

    `context` is that of the task's current checkpoint.
    """
    request_id = ids.new_id(head.owner.key)
    first_seq, last_seq = head.tail_seq + 1, head.tail_seq + len(said) + 1
    messages = [message_of(request_id, each.role, each.items, now) for each in said]
    entries = [draft("message.copied", actor, request_id, MessageBody(each)) for each in messages]
    end = RequestEnd(request_id=request_id, status="Completed", first_seq=first_seq, ended_at=now)
    entries.append(draft("request.copied", SERVICE, request_id, end))
    path = paths.extend(head.path, first_seq, last_seq)
    record = RequestRecord(
        request_id=request_id,
        task_id=head.task_id,
        session_id=head.session_id,
        status="Completed",
        created_at=now,
        started_at=now,
        ended_at=now,
        parent=head.checkpoint_id,
        first_seq=first_seq,
        last_seq=last_seq,
        path=path,
        source=source,
        last_event=2,
        context=paths.count_rounds(context, len(in_rounds(messages))),
        imported=True,
        resent=True,
    )
    return Transition(
        head=replace(head, checkpoint_id=request_id, path=path, remote_id=None, updated_at=now),
        entries=entries,
        put={keys.request(request_id): record},
        fresh=True,
    )
