"""Forks: new tasks with the history of another one up to a point."""

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain import ids, paths
from tealagents.domain.errors import Conflict, NotFound
from tealagents.domain.models import (
    Effects,
    Head,
    Json,
    Message,
    MessageBody,
    Note,
    Origin,
    Path,
    RequestEnd,
    RequestRecord,
    Session,
    Status,
    ToolCall,
    ToolIntent,
    User,
)
from tealagents.state import keys
from tealagents.state.audit_chain import draft
from tealagents.state.copying import Copy
from tealagents.state.history import History, in_call_order, in_rounds, up_to
from tealagents.state.records import Stored, no_session, no_task
from tealagents.state.tasks import Tasks
from tealagents.state.transitions import SERVICE


async def fork(
    tasks: Tasks,
    partition: str,
    task_id: str,
    actor: User,
    *,
    checkpoint_id: str | None = None,
    message_id: str | None = None,
    failed: RequestRecord | None = None,
    expires_at: datetime | None = None,
) -> Head:
    """A new task with the history up to and including a checkpoint or a message.

    The cost grows with the length of that history.

    A fork at a request that `failed` begins at the checkpoint that it continued, if any. The fork remembers
    the tool calls of that request, and of other requests that were tried after the checkpoint.

    `NotFound` for an unknown point, `InvalidRequest` for one between a tool call and its result.
    """
    source = (await tasks.head(partition, task_id)).value
    if failed is not None:
        checkpoint_id = failed.parent
    elif message_id is None:
        checkpoint_id = checkpoint_id or source.checkpoint_id
    path, remote_id = await _path(tasks, partition, source, checkpoint_id, message_id)
    head = replace(
        _empty(source, tasks.records.clock.now()),
        expires_at=expires_at or source.expires_at,
        origin=_origin(source, checkpoint_id, message_id),
        remote_id=remote_id,
    )
    copy = Copy(tasks, partition, head)
    tried = _tried(source, path, failed) if failed is not None else ()
    try:
        await copy.begin()
        return await _Fork(tasks, partition, source, path, message_id, tried, copy).write(actor)
    except Conflict:  # the copy took too long and was erased, or all of its user was
        raise no_task(head.task_id) from None
    except BaseException:
        await copy.discard()
        raise


def _empty(source: Head, now: datetime) -> Head:
    """The head of an empty task in the source's session."""
    return Head(
        task_id=ids.new_id(source.owner.key),
        session_id=source.session_id,
        owner=source.owner,
        status="Completed",
        created_at=now,
        updated_at=now,
        metadata=source.metadata,
    )


def _origin(source: Head, checkpoint_id: str | None, message_id: str | None) -> Json:
    """The `origin` of a fork's head."""
    point: Json = {"task_id": source.task_id}
    if checkpoint_id:
        point["checkpoint_id"] = checkpoint_id
    if message_id:
        point["message_id"] = message_id
    return point


async def _path(
    tasks: Tasks, partition: str, source: Head, checkpoint_id: str | None, message_id: str | None
) -> tuple[Path, str | None]:
    """The source's path up to the point or beyond, and the remote conversation to continue."""
    if message_id is not None:
        return paths.current_path(source), None
    if checkpoint_id is None:
        return (), None
    found = await tasks.checkpoint(partition, source.task_id, checkpoint_id)
    return found.path, found.remote_id


def _tried(source: Head, path: Path, failed: RequestRecord) -> Path:
    """The entries up to the end of a failed request, whose tool calls the fork has to remember.

    If the task was rolled back to before that request, or the request was withdrawn, its history is unknown.
    Then all entries after `path` count, so that no tool call is forgotten.
    """
    end = failed.last_seq
    if paths.holds(source.path, end):
        return paths.split(source.path, end)[0]
    return ((path[-1][1] + 1 if path else 1, end),)


class _Fork(Struct, frozen=True):
    """One fork being written."""

    tasks: Tasks
    partition: str
    source: Head
    path: Path
    #: the message to end with; None: copy the whole path
    message_id: str | None
    #: entries that are not copied, but whose tool calls are remembered
    tried: Path
    copy: Copy
    #: for each copied request: its last entry in the source, and its first in the copy
    starts: list[tuple[int, int]] = []

    async def write(self, actor: User) -> Head:
        source, copy, point = self.source, self.copy, self.copy.head.origin or {}
        await copy.add(draft("task.forked", actor.key, None, Note("forked", point), **point))
        last, end, status = await self._copy_requests()
        await copy.flush()
        path, _ = paths.split(self.path, end)
        effects = tuple(self._effects(replace(source, path=(*path, *self.tried))))
        copied: Path = ((1, copy.head.tail_seq),)
        done = replace(copy.head, status=status, checkpoint_id=last, path=copied, effects=effects)
        session_id = source.session_id
        session: Stored[Session] | None = None
        while True:
            before = session
            session = await self.tasks.records.get(self.partition, keys.session(session_id), Session)
            if session is None or session.value.erased:
                raise no_session(session_id)
            if session == before:  # the last commit was applied unnoticed, and the fork deleted since
                raise no_task(done.task_id)
            with suppress(Conflict):  # a deletion of the session that is refused changes it, too
                return await copy.finish(done, session)

    def _effects(self, past: Head) -> Iterator[Effects]:
        """The tool calls of unanswered requests in `past`. Each counts from its request's place in the copy,
        so a rollback to before that leaves it out."""
        for effects in past.effects:
            alone = replace(past, effects=(effects,))
            tools, cut = paths.effects_on_path(alone), paths.effects_cut(alone)
            if tools or cut:
                yield Effects(
                    self._place(effects.first_seq), tools, cut=self._place(effects.cut) if cut else 0
                )

    def _place(self, seq: int) -> int:
        """The first entry, in the copy, of an entry's request, or else of the next copied one, or the end."""
        n = bisect_left(self.starts, seq, key=itemgetter(0))
        return self.starts[n][1] if n < len(self.starts) else self.copy.head.tail_seq

    async def _copy_requests(self) -> tuple[str | None, int, Status]:
        """Copies the ended requests of the path, up to the message if there is one.

        Returns the new id of the last completed request, the number of the last entry read, and the status of
        the last copied request.
        """
        source, message_id = self.source, self.message_id
        last: str | None = None
        end = 0
        context: Json | None = None
        requests = _source_requests(self.tasks.history, self.partition, source.task_id, self.path)
        async for each in requests:
            messages, ending, end = each.messages, each.ending, each.end
            # in the order in which the owner is shown messages
            found = up_to(in_call_order(messages), message_id) if message_id is not None else None
            ends = found is not None
            if ending is None and not ends:
                continue  # it has not ended
            kept = messages if found is None else found
            if ending is not None and ending.status != "Completed":
                failed = await self._copied(each, kept, ending)
                output = _said(kept[-1]) if ends else failed.output
                await self.copy.add_request(replace(failed, parent=last, output=output))
            else:
                whole = ending is not None and len(kept) == len(messages)
                record = await self._copied(each, kept, ending if whole else None)
                # the context of a request is that of its end: it does not hold if the copy ends within it
                context = record.context if whole else paths.count_rounds(context, len(in_rounds(kept)))
                await self.copy.add_request(replace(record, parent=last, context=context))
                last = record.request_id
            if ends:
                return last, end, "Completed" if ending is None else ending.status
        if message_id is not None:
            raise NotFound(
                f"The task {source.task_id} has no message {message_id} on its current path. Check "
                "the id; to fork at a message of another path, roll back to its checkpoint first.",
                task_id=source.task_id,
            )
        return last, self.path[-1][1] if self.path else 0, "Completed"

    async def _copied(
        self, of: "_SourceRequest", messages: Sequence[Message], ending: RequestEnd | None
    ) -> RequestRecord:
        """Adds a request's entries to the copy; returns its record, to be added as well.

        `messages` are those to copy. `ending` is the request's end; None if the copy ends within the request.
        """
        source, copy = self.source, self.copy
        found = await self.tasks.records.request(self.partition, source.task_id, of.request_id)
        new_id, first = ids.new_id(source.owner.key), copy.next_seq
        self.starts.append((of.end, first))
        for message in messages:
            copied = replace(
                message,
                message_id=ids.message_id_of(new_id),
                request_id=new_id,
                origin=Origin(source.task_id, message.message_id),
            )
            asked = dict.fromkeys(call.id for call in message.tool_calls)
            made = tuple(of.made[call_id] for call_id in asked if call_id in of.made)
            await copy.add(draft("message.copied", SERVICE, new_id, MessageBody(copied, made)))
        record = replace(
            _ended(found.value, messages[-1], ending),
            request_id=new_id,
            task_id=copy.head.task_id,
            source=self.tasks.source,
            first_seq=first,
            last_seq=copy.next_seq,
            path=((1, copy.next_seq),),
        )
        await copy.add(draft("request.copied", SERVICE, new_id, _end(record, ending)))
        return record


def _ended(old: RequestRecord, last: Message, ending: RequestEnd | None) -> RequestRecord:
    """The record of a copied request: as it ended, or completed with the last message that was copied."""
    whole = ending is not None
    return replace(
        old,
        status=ending.status if ending is not None else "Completed",
        worker_id=None,
        ended_at=old.ended_at or last.created_at,
        remote_id=old.remote_id if whole else None,
        output=old.output if whole else _said(last),
        finish_reason=old.finish_reason if whole else None,
        extra_data=old.extra_data if whole else None,
        error=old.error if whole else None,
        approvals=(),
        pause=None,
        idempotency=None,
        last_event=2,
        copied=True,
    )


def _end(record: RequestRecord, ending: RequestEnd | None) -> RequestEnd:
    """The last entry of a copied request; `ending` is the source's, as in `_copied`."""
    return RequestEnd(
        request_id=record.request_id,
        status=record.status,
        first_seq=record.first_seq,
        ended_at=record.ended_at or record.created_at,
        code=record.error.code if record.error else None,
        remote_id=record.remote_id,
        finish_reason=ending.finish_reason if ending is not None else None,
    )


def _said(message: Message) -> str:
    return message.text if message.role == "assistant" else ""


class _SourceRequest(Struct):
    """A request of a path, as far as it was read."""

    request_id: str
    #: the number of the last entry read
    end: int
    messages: list[Message] = []
    #: by id, the calls that were made, with the arguments that were used
    made: dict[str, ToolCall] = {}
    #: how it ended, if it has
    ending: RequestEnd | None = None


async def _source_requests(
    history: History, partition: str, task_id: str, path: Path
) -> AsyncIterator[_SourceRequest]:
    """The requests of a path, oldest first."""
    current: _SourceRequest | None = None
    async for logged in history.forwards(partition, task_id, path):
        body = logged.body
        if current is not None:
            current.end = logged.seq
        if isinstance(body, MessageBody):
            if current is not None and body.message.request_id != current.request_id:
                yield current
                current = None
            current = current or _SourceRequest(body.message.request_id, logged.seq)
            current.messages.append(body.message)
            current.made |= {call.id: call for call in body.made}
        elif isinstance(body, ToolIntent) and current is not None:
            current.made |= {call.id: call for call in body.calls}
        elif isinstance(body, RequestEnd) and current is not None:
            current.ending = body
            yield current
            current = None
    if current is not None:
        yield current
