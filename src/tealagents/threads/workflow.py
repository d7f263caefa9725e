"""Threads of workflows: a thread for each agent that takes part, and how far the work has come."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from datetime import UTC, datetime
from typing import ClassVar, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import AlreadyExists, InvalidRequest, NotFound
from tealagents.domain.models import Json, Message
from tealagents.threads.base import AgentThread, Checkpoint
from tealagents.threads.local import LocalThread
from tealagents.threads.message_stores import MessageStoreFactory
from tealagents.threads.remote import RemoteThread

#: the sub-thread that is meant where none is named
MAIN = "main"


class TakenStep(Struct, frozen=True, kw_only=True):
    """A step of the workflow that was taken."""

    name: str
    started_at: datetime
    ended_at: datetime
    #: what it has left for later steps
    result: Json | None = None


class Execution(Struct, kw_only=True):
    """How far a workflow has come."""

    steps_taken: list[TakenStep] = []
    #: begun and not ended: taken again when the work is resumed
    current_step: str | None = None
    next_steps: list[str] = []

    @property
    def remaining(self) -> list[str]:
        """What is still to be done, the step that was left in its middle first."""
        return ([self.current_step] if self.current_step is not None else []) + self.next_steps


class WorkflowThread(AgentThread):
    """Sub-threads by name, and the state of execution.

        workflow = WorkflowThread(["draft", "review"])
        async for step in workflow.steps():
            async with workflow.step(step) as result:
                answer = await agents[step].run("Go on.", workflow.sub_thread(step))
                result["text"] = answer.text

    A step that raises stays the current one; `steps` begins with it when the work is resumed, after a restart
    or a rollback as well. Agents may run side by side on different sub-threads.
    """

    kind: ClassVar = "workflow"

    def __init__(self, next_steps: Sequence[str] = (), *, thread_id: str | None = None) -> None:
        super().__init__(thread_id=thread_id)
        self.execution = Execution(next_steps=list(next_steps))
        self._threads: dict[str, AgentThread] = {}

    # --- sub-threads -----------------------------------------------------------------------------

    @property
    def sub_threads(self) -> Mapping[str, AgentThread]:
        """All there are, by their keys."""
        return self._threads

    def create_sub_thread(self, key: str = MAIN, thread: AgentThread | None = None) -> AgentThread:
        """Adds a sub-thread: `thread`, or a new local one. `AlreadyExists` where the key is taken."""
        self._check_there()
        if key in self._threads:
            raise AlreadyExists(f"The workflow has a sub-thread {key!r} already.")
        if thread is self:
            raise InvalidRequest("thread", "a workflow cannot be its own sub-thread")
        self._threads[key] = thread if thread is not None else LocalThread()
        return self._threads[key]

    def get_sub_thread(self, key: str = MAIN) -> AgentThread:
        """`NotFound` where there is none."""
        self._check_there()
        try:
            return self._threads[key]
        except KeyError:
            raise NotFound(f"The workflow has no sub-thread {key!r}.") from None

    def sub_thread(self, key: str = MAIN) -> AgentThread:
        """The sub-thread of this key; a new local one where there is none yet."""
        return self._threads.get(key) or self.create_sub_thread(key)

    async def delete_sub_thread(self, key: str = MAIN) -> None:
        """Erases a sub-thread. This cannot be undone; checkpoints come back without it."""
        await self.get_sub_thread(key).delete()
        del self._threads[key]

    # --- execution -------------------------------------------------------------------------------

    async def steps(self) -> AsyncIterator[str]:
        """The steps that remain, one by one; those that are added meanwhile as well."""
        while self.execution.remaining:
            step, taken = self.execution.remaining[0], len(self.execution.steps_taken)
            yield step
            if self.execution.remaining[:1] == [step] and len(self.execution.steps_taken) == taken:
                raise InvalidRequest(
                    "step", f"{step!r} was not taken: use `async with workflow.step({step!r})`"
                )

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[Json]:
        """Takes a step; what is put into the result is kept with it, and a checkpoint made.

        Where it raises, the step stays the current one.
        """
        self._check_there()
        execution = self.execution
        if execution.current_step not in (None, name):
            raise InvalidRequest("step", f"{execution.current_step!r} has not ended yet")
        if execution.current_step is None and name in execution.next_steps:
            execution.next_steps.remove(name)
        execution.current_step = name
        started = datetime.now(UTC)
        result: Json = {}
        yield result
        taken = TakenStep(name=name, started_at=started, ended_at=datetime.now(UTC), result=result or None)
        execution.steps_taken.append(taken)
        execution.current_step = None
        self.checkpoint()

    def plan(self, *steps: str) -> None:
        """Replaces what is still to be done."""
        self.execution.next_steps = list(steps)

    # --- the whole -------------------------------------------------------------------------------

    async def create(self) -> None:
        await super().create()
        for thread in self._threads.values():
            await thread.create()

    async def on_new_messages(self, messages: Sequence[Message]) -> None:
        """Adds them to the main sub-thread."""
        await self.sub_thread().on_new_messages(messages)

    @property
    def messages(self) -> Sequence[Message]:
        """Those of the main sub-thread."""
        return self.get_sub_thread().messages if MAIN in self._threads else []

    def fork(self, message_id: str | None = None) -> Self:
        """Forks all sub-threads; the one that has the message at the message."""
        self._check_there()
        holder = None if message_id is None else self._holder(message_id)
        fork = type(self)()
        fork._like(self)
        fork._checkpoints.clear()
        fork._current = None
        fork.execution = deepcopy(self.execution)
        fork._threads = {
            key: thread.fork(message_id if key == holder else None) for key, thread in self._threads.items()
        }
        return fork

    def _holder(self, message_id: str) -> str:
        for key, thread in self._threads.items():
            if isinstance(thread, LocalThread) and any(m.message_id == message_id for m in thread.messages):
                return key
        raise NotFound(f"The workflow {self.thread_id} has no message {message_id}.")

    def copy(self) -> Self:
        self._check_there()
        copied = type(self)()
        copied._like(self)
        copied.execution = deepcopy(self.execution)
        copied._threads = {key: thread.copy() for key, thread in self._threads.items()}
        return copied

    async def delete(self) -> None:
        self._check_free()
        for key in list(self._threads):
            await self.delete_sub_thread(key)
        await super().delete()

    def _marked(self, checkpoint: Checkpoint) -> Checkpoint:
        return replace(
            checkpoint,
            threads={key: thread.checkpoint() for key, thread in self._threads.items()},
            execution=msgspec.to_builtins(self.execution),
        )

    def check_way_back(self) -> None:
        super().check_way_back()
        for thread in self._threads.values():
            thread.check_way_back()

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Sub-threads that are younger than the checkpoint stay, without anything in them."""
        for key, thread in self._threads.items():
            marked = {each.checkpoint_id for each in thread.checkpoints}
            at = checkpoint.threads.get(key)
            if at in marked:
                thread.rollback(at)
            else:  # it is younger than the checkpoint, or another of its name was there then
                thread.rewind()
        self.execution = msgspec.convert(checkpoint.execution or {}, Execution)

    def _parts(self) -> Json:
        return {
            "execution": msgspec.to_builtins(self.execution),
            "threads": {key: thread.document() for key, thread in self._threads.items()},
        }

    @classmethod
    def _opened(cls, document: Json, stores: MessageStoreFactory | None) -> Self:
        workflow = cls()
        workflow.execution = msgspec.convert(document["execution"], Execution)
        threads = msgspec.convert(document["threads"], dict[str, Json])
        workflow._threads = {key: opened(each, stores=stores) for key, each in threads.items()}
        return workflow


_KINDS: Mapping[str, type[AgentThread]] = {
    each.kind: each for each in (LocalThread, RemoteThread, WorkflowThread)
}


def opened(document: Json, *, stores: MessageStoreFactory | None = None) -> AgentThread:
    """The thread of a document, of whatever kind. `InvalidRequest` for an unknown one."""
    kind = document.get("kind")
    found = _KINDS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise InvalidRequest("kind", f"must be one of {', '.join(_KINDS)}")
    return found.from_document(document, stores=stores)
