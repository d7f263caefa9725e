"""A caller's tasks, by the names that clients give them."""

import sys
from collections.abc import Mapping, Sequence, Set
from contextlib import aclosing, suppress
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from tealagents.api import requests
from tealagents.api.exchange import Exchange, RequestView
from tealagents.api.names import made, parsed
from tealagents.domain import ids
from tealagents.domain.errors import AlreadyExists, CheckpointMoved, InvalidRequest, NotFound
from tealagents.domain.models import Approval, Caller, Head, Item, RequestRecord
from tealagents.state import keys
from tealagents.state.new_message import Key, NewMessage

R = TypeVar("R")


async def sent_to(
    exchange: Exchange,
    caller: Caller,
    message: NewMessage,
    key: Key | None,
    *,
    name: str,
    field: str,
    streamed: bool,
) -> RequestView:
    """The request of a message, as `requests.submitted`, in the task that its client names; see `_placed`."""
    addressed = await _placed(exchange, caller, message, name, field)
    try:
        return await requests.submitted(exchange, caller, addressed, key, streamed=streamed)
    except AlreadyExists:
        again = await _placed(exchange, caller, message, name, field)
        if again.new_task_id is not None:  # it is being imported; else another message has created it
            raise
        return await requests.submitted(exchange, caller, again, key, streamed=streamed)


async def _placed(
    exchange: Exchange, caller: Caller, message: NewMessage, name: str, field: str
) -> NewMessage:
    """The message, addressed to the task that its client names, which it creates if there is none.

    Without a name the task is new. `InvalidRequest`, naming `field`, if the name is not an id; `NotOwner`.
    `NotFound` for an id that the service made: its task was deleted, and would otherwise start again without
    its history. For an id that a client chose, nothing is kept that could tell these cases apart.
    """
    if not name:
        return message
    task_id = ids.canonical(name, field)
    try:
        await exchange.locate(caller, keys.task, task_id)
    except NotFound:
        if ids.is_made_for(caller.user.key, task_id):
            raise
        return replace(message, new_task_id=task_id)
    return replace(message, task_id=task_id)


class Named(Struct, frozen=True):
    """A task under the name that its owner's client gave it; `head` is None before its first request."""

    exchange: Exchange
    caller: Caller
    task_id: str
    partition: str
    head: Head | None = None

    @property
    def ids(self) -> dict[str, str]:
        """The ids of the task and, once there is one, of its session."""
        return self.head.ids if self.head else {"task_id": self.task_id}

    async def answered_to(self, shown: str) -> int | None:
        """The last entry of its log, where the last message was answered and nothing has come since.

        None as well where `shown`, the text that a client has of the answer, is only its beginning.
        """
        head = self.head
        if head is None or head.checkpoint_id is None or not head.idle or head.status != "Completed":
            return None
        found = await self._request(head.checkpoint_id)
        answer = found.output.rstrip() if found else ""  # some pages leave out spaces at the end
        return None if len(shown) < len(answer) and answer.startswith(shown) else head.tail_seq

    async def pause(self, approval_id: str) -> Approval | None:
        """A pause of this task."""
        found = await requests.find_pause(self.exchange, self.partition, approval_id)
        return found if found is not None and found.task_id == self.task_id else None

    def at_tip(self, message: NewMessage) -> NewMessage:
        """The message for the task as it stands: the first with what was said before, others without.

        `CheckpointMoved` refuses it once another one was quicker, even one that has failed since.
        """
        if self.head is None:
            return replace(message, new_task_id=self.task_id)
        return replace(message, task_id=self.task_id, at_end=self.head.end, earlier=())

    async def check_taken(self, refusal: AlreadyExists | CheckpointMoved) -> None:
        """Returns if the task is there, since another request created it first. Otherwise raises: `refusal`
        if the task is being imported or was deleted, `NotFound` if it has expired."""
        if (await named(self.exchange, self.caller, self.task_id)).head is None:
            raise refusal

    async def fresh(
        self, sent: Mapping[str, tuple[Item, ...]], issued: Mapping[str | None, str], seen: str | None
    ) -> tuple[Sequence[str], str | None]:
        """Those of a client's messages that are new; or the last one once more, where it was not answered.

        Without new ones comes the request of the last: it is repeated only if it is the newest. `sent` are
        the messages since the answer of the request `seen`, by marks: those that began a request are kept in
        `client` there, and which one it repeats. `issued` are the marks of messages whose names are of a
        request.
        """
        head, marks = self.head, list(sent)
        if head is None or (len(marks) < 2 and head.status == "Completed" and head.checkpoint_id == seen):
            return marks, None
        # as far back as what the client has, which nothing says of a single message under a name of its own
        far = len(marks) > 1 or any([await self._request(each) for each in {seen, *issued}])
        most = sys.maxsize if far else requests.MOST_REQUESTS
        # the last request with each of the marks, None where a rollback has taken its answer away; and of
        # each request that was repeated, the last that repeats it
        known, latest, newest = dict[str, str | None](), dict[str, str](), None
        async with aclosing(requests.of_task(self.exchange, self.partition, head, most)) as newest_first:
            async for record in newest_first:
                newest = newest or record
                if record.request_id == seen or known.keys() >= set(marks):
                    break
                last = latest.get(record.request_id, record.request_id)
                if (repeated := requests.kept(record, "repeats", str)) is not None:
                    latest[repeated] = last
                theirs = await self._begun_by(record, sent, issued.get(record.request_id))
                known = {**dict.fromkeys(theirs, None if requests.is_left(record, head) else last), **known}
        fresh = [mark for mark in marks if known.get(mark) is None]
        if fresh or not marks:
            return fresh, None
        of = known[marks[-1]]
        if newest is None or newest.request_id != of or newest.status not in ("Failed", "Canceled"):
            return (), of
        return [mark for mark in marks if sent[mark] and known[mark] == of][-1:], of

    async def is_of(
        self,
        view: RequestView,
        key: Key,
        sent: Mapping[str, tuple[Item, ...]],
        issued: Mapping[str | None, str],
    ) -> bool:
        """Whether a request came with all of the messages, some of which may have come before, as its key
        says; or began with all of them, under the names `issued` for it or others."""
        record = view.record
        if record.idempotency == (key.name, key.digest):
            return True
        return sent.keys() <= set(await self._begun_by(record, sent, issued.get(record.request_id)))

    async def _begun_by(
        self, record: RequestRecord, sent: Mapping[str, tuple[Item, ...]], issued: str | None
    ) -> list[str]:
        """The marks of those of the messages that a request began with; one is `issued` for its message."""
        theirs = [mark for mark in requests.kept(record, "messages", list) or () if isinstance(mark, str)]
        if issued is not None:
            said = await requests.user_message(self.exchange, self.partition, record)
            if said is not None and said.items == sent[issued]:
                theirs.append(issued)
        return [mark for mark in theirs if mark in sent]

    async def last_pauses(self, request_id: str | None) -> tuple[Sequence[str], bool]:
        """The last pause of this task's newest request, as all that there is, and whether that request has
        ended without an answer; none where it is another."""
        if self.head is None or request_id is None:
            return (), False
        async with aclosing(requests.of_task(self.exchange, self.partition, self.head, 1)) as newest_first:
            newest = await anext(newest_first, None)
        if newest is None or newest.request_id != request_id:
            return (), False
        return newest.approvals[-1:], newest.error is not None

    async def of_client(self, returned: Mapping[str, R]) -> dict[str, R]:
        """What tools of one round returned, by the names of their calls, without those of the service."""
        record = await self._request(parsed(next(iter(returned), ""), "call")[0])
        pauses = [await self.pause(each) for each in record.approvals] if record else []
        calls = [(pause.request_id, call) for pause in pauses if pause for call in pause.calls]
        own = {made("call", request_id, call.id) for request_id, call in calls if call.by_client}
        return {name: each for name, each in returned.items() if name in own}

    async def _request(self, request_id: str | None) -> RequestRecord | None:
        """One of this task's requests."""
        return await self.exchange.tasks.request_of(self.partition, self.task_id, request_id)

    async def settled(self, request_ids: Set[str | None]) -> "Named":
        """The task once its running request has ended or paused, where that is one of these."""
        running = self.head.running if self.head else None
        if running is None or running.request_id not in request_ids:
            return self
        view = await self.exchange.request(self.caller, running.request_id)
        for approval_id in view.record.approvals[-1:]:  # behind which it runs
            if (decided := await self.pause(approval_id)) is not None:
                view = replace(view, after=decided.event_id)
        await requests.settled(self.exchange, view)
        return await named(self.exchange, self.caller, self.task_id)


async def named(exchange: Exchange, caller: Caller, name: str) -> Named:
    """The caller's task of this name as it stands: a UUID is its id, any other text stands for one.

    `NotOwner` where it is another user's, `NotFound` once it has expired.
    """
    try:
        task_id, shared = ids.canonical(name, "name"), True
    except InvalidRequest:
        task_id, shared = ids.named_id(caller.user.key, name), False
    exchange.agent.observer.named(task_id=task_id)
    tasks, partition = exchange.tasks, exchange.partition(caller)
    found = Named(exchange, caller, task_id, partition)
    with suppress(NotFound):
        return replace(found, head=(await tasks.head(partition, task_id)).value)
    gone = await tasks.records.get(partition, keys.task(task_id), Head)
    if gone is not None and gone.value.is_expired(tasks.records.clock.now()):
        raise _expired(task_id)
    with suppress(NotFound):
        if shared:  # another user can have the same
            await tasks.directory.foreign(caller, keys.task, task_id)
    return found


def _expired(task_id: str) -> NotFound:
    return NotFound("The thread has expired. Start a new one.", task_id=task_id)
