"""Threads of workflows: sub-threads, one for each participating agent, and the state of execution."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from itertools import takewhile
from typing import ClassVar, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import AlreadyExists, InvalidRequest, NotFound, TaskBusy
from tealagents.domain.models import Json, Message
from tealagents.threads.base import AgentThread, ThreadCheckpoint
from tealagents.threads.local import LocalThread
from tealagents.threads.message_stores import MessageStoreFactory
from tealagents.threads.remote import RemoteThread

#: the key of a sub-thread where none is named
MAIN = "main"


class TakenStep(Struct, frozen=True, kw_only=True):
    """A step that has ended."""

    name: str
    started_at: datetime
    ended_at: datetime
    #: the step's output for later steps; None if it is empty
    result: Json | None = None


class Execution(Struct, kw_only=True):
    """The progress of a workflow."""

    steps_taken: list[TakenStep] = []
    #: begun but not ended; taken again when the workflow is resumed
    current_steps: list[str] = []
    next_steps: list[str] = []

    @property
    def remaining(self) -> list[str]:
        """The steps that have not ended; those already begun come first."""
        return self.current_steps + self.next_steps

    def begin(self, name: str, running: Counter[str]) -> None:
        """Makes a step current: an interrupted one, or else a planned one, or else a new one.

        `running`: how often each step runs now. `InvalidRequest` if all steps of this name are running.
        """
        if self.current_steps.count(name) > running[name]:
            return
        if name in self.next_steps:
            self.next_steps.remove(name)
        elif running[name]:
            raise InvalidRequest("step", f"{name!r} has not ended yet")
        self.current_steps.append(name)


class MarkedExecution(Struct, frozen=True):
    """The execution in a checkpoint of a workflow."""

    execution: Execution | None = None


class WorkflowFields(Struct, frozen=True):
    """The fields of a workflow thread's document besides its header."""

    execution: Execution
    threads: dict[str, Json]
    checkpoints: list[MarkedExecution]
    beginning: list[str] = []


class WorkflowThread(AgentThread):
    """Sub-threads by name, and the state of execution.

        workflow = WorkflowThread(["draft", "review"])
        async for step in workflow.steps():
            async with workflow.step(step) as result:
                answer = await agents[step].run("Continue.", workflow.sub_thread(step))
                result["text"] = answer.text

    A step that raises remains current; `steps` begins with it when the workflow is resumed, also after a
    restart or a rollback. Steps may run side by side, on different sub-threads.
    """

    kind: ClassVar = "workflow"

    def __init__(self, next_steps: Sequence[str] = (), *, thread_id: str | None = None) -> None:
        if isinstance(next_steps, str):
            raise InvalidRequest("next_steps", f"must be a list of steps, such as [{next_steps!r}]")
        super().__init__(thread_id=thread_id)
        self.execution = Execution(next_steps=list(next_steps))
        #: the steps planned before any step was begun and any checkpoint was made
        self._beginning = list(next_steps)
        self._threads: dict[str, AgentThread] = {}
        #: how often each step runs now
        self._running: Counter[str] = Counter()

    # --- sub-threads -----------------------------------------------------------------------------

    @property
    def sub_threads(self) -> Mapping[str, AgentThread]:
        """All sub-threads that were not deleted, by their keys."""
        self._threads = {key: thread for key, thread in self._threads.items() if not thread.deleted}
        return self._threads

    def create_sub_thread(self, key: str = MAIN, thread: AgentThread | None = None) -> AgentThread:
        """Adds a sub-thread: `thread`, or a new local one. `AlreadyExists` if the key is taken."""
        self._check_there()
        if key in self.sub_threads:
            raise AlreadyExists(f"The workflow has a sub-thread {key!r} already.")
        added = thread if thread is not None else LocalThread()
        if self in _all(added):
            raise InvalidRequest("thread", "a workflow cannot be its own sub-thread")
        if not {*_all(self)}.isdisjoint(_all(added)):
            raise InvalidRequest("thread", "is a sub-thread of this workflow already")
        self._threads[key] = added
        return added

    def get_sub_thread(self, key: str = MAIN) -> AgentThread:
        """The sub-thread with this key. `NotFound` if there is none."""
        self._check_there()
        try:
            return self.sub_threads[key]
        except KeyError:
            raise NotFound(f"The workflow has no sub-thread {key!r}.") from None

    def sub_thread(self, key: str = MAIN) -> AgentThread:
        """The sub-thread with this key, which is created as a local one if there is none yet."""
        return self.sub_threads.get(key) or self.create_sub_thread(key)

    async def delete_sub_thread(self, key: str = MAIN) -> None:
        """Erases a sub-thread. This cannot be undone; a rollback does not restore it."""
        await self.get_sub_thread(key).delete()

    # --- execution -------------------------------------------------------------------------------

    async def steps(self) -> AsyncIterator[str]:
        """Yields each remaining step that is not running, including steps planned during the iteration.

        `InvalidRequest` if a yielded step was not taken (`step`) before the next one is asked for.
        """
        while (step := self._next()) is not None:
            taken = len(self.execution.steps_taken)
            yield step
            if self._next() == step and len(self.execution.steps_taken) == taken:
                raise InvalidRequest(
                    "step", f"{step!r} was not taken: use `async with workflow.step({step!r})`"
                )

    def _next(self) -> str | None:
        waiting = Counter(self.execution.current_steps) - self._running
        return next(iter([*waiting.elements(), *self.execution.next_steps]), None)

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[Json]:
        """Takes a step: yields its result, an empty dict to put JSON into, stores it with the step, and makes
        a checkpoint. If the body raises, the step remains current.
        """
        self._check_there()
        self.execution.begin(name, self._running)
        started = datetime.now(UTC)
        result: Json = {}
        self._running[name] += 1
        try:
            yield result
            kept = _as_json(result)
        finally:
            self._running[name] -= 1
        taken = TakenStep(name=name, started_at=started, ended_at=datetime.now(UTC), result=kept or None)
        self.execution.steps_taken.append(taken)
        self.execution.current_steps.remove(name)
        self.checkpoint()

    def plan(self, *steps: str) -> None:
        """Replaces the planned steps."""
        self.execution.next_steps = list(steps)
        if not (self._checkpoints or self.execution.current_steps or self.execution.steps_taken):
            self._beginning = list(steps)

    # --- the whole -------------------------------------------------------------------------------

    async def create(self) -> None:
        await super().create()
        for thread in self.sub_threads.values():
            await thread.create()

    async def on_new_messages(self, messages: Sequence[Message]) -> None:
        """Adds the messages to the main sub-thread."""
        await self.sub_thread().on_new_messages(messages)

    @property
    def messages(self) -> Sequence[Message]:
        """The messages of the main sub-thread."""
        self._check_there()
        return self.get_sub_thread().messages if MAIN in self.sub_threads else []

    def fork(self, message_id: str | None = None) -> Self:
        """Forks all sub-threads: the one with the message at that message, the others at their end.
        Checkpoints that lie within all forks are kept."""
        self._check_there()
        threads = self.sub_threads
        holder = None if message_id is None else self._holder(message_id)
        fork = type(self)()
        fork.fingerprint, fork.context = self.fingerprint, deepcopy(self.context)
        fork.execution, fork._beginning = deepcopy(self.execution), self._beginning
        fork._threads = {
            key: thread.fork(message_id if key == holder else None) for key, thread in threads.items()
        }
        for each in takewhile(lambda each: self._within(each, fork), self._lineage()):
            fork._checkpoints[each.checkpoint_id] = each
            fork._current = each.checkpoint_id
        return fork

    def _within(self, checkpoint: ThreadCheckpoint, fork: "WorkflowThread") -> bool:
        """Whether every sub-thread that the checkpoint can restore can be restored in the fork, too."""
        return all(
            at not in _checkpoints(thread) or at in _checkpoints(fork._threads[key])
            for key, thread in self._threads.items()
            if (at := checkpoint.threads.get(key)) is not None
        )

    def _holds(self, message_id: str) -> bool:
        return any(thread._holds(message_id) for thread in self.sub_threads.values())

    def _holder(self, message_id: str) -> str:
        for key, thread in self.sub_threads.items():
            if thread._holds(message_id):
                return key
        raise NotFound(f"The workflow {self.thread_id} has no message {message_id}.")

    def copy(self) -> Self:
        self._check_there()
        copied = type(self)()
        copied._copy_from(self)
        copied.execution, copied._beginning = deepcopy(self.execution), self._beginning
        copied._threads = {key: thread.copy() for key, thread in self.sub_threads.items()}
        return copied

    def check_deletable(self) -> None:
        super().check_deletable()
        for thread in self.sub_threads.values():
            thread.check_deletable()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Makes the caller the only writer of all sub-threads."""
        with ExitStack() as stack:
            stack.enter_context(super().taken())
            for thread in self.sub_threads.values():
                stack.enter_context(thread.taken())
            yield

    async def _erase(self) -> None:
        for thread in list(self.sub_threads.values()):
            await thread._erase()
        await super()._erase()
        self.execution, self._beginning = Execution(), []

    def check_way_back(self) -> None:
        super().check_way_back()
        for thread in self.sub_threads.values():
            thread.check_way_back()

    def _check_free(self) -> None:
        super()._check_free()
        if running := +self._running:
            raise TaskBusy(f"The step {next(iter(running))!r} has not ended. Wait for it.")

    def _marked(self, checkpoint: ThreadCheckpoint) -> ThreadCheckpoint:
        return replace(
            checkpoint,
            threads={key: thread.checkpoint() for key, thread in self.sub_threads.items()},
            execution=msgspec.to_builtins(self.execution),
        )

    def _restore(self, checkpoint: ThreadCheckpoint) -> None:
        """Rolls each sub-thread back; sub-threads that are newer than the checkpoint are kept, and
        rewound."""
        for key, thread in self.sub_threads.items():
            at = checkpoint.threads.get(key)
            if at is not None and at in _checkpoints(thread):
                thread.rollback(at)
            else:  # the sub-thread is newer than the checkpoint, or replaced another one with its key
                thread.rewind()
        marked = checkpoint.execution or {"next_steps": self._beginning}
        self.execution = msgspec.convert(marked, Execution)

    def _fields(self) -> Json:
        return {
            "execution": msgspec.to_builtins(self.execution),
            "beginning": list(self._beginning),
            "threads": {key: thread.document() for key, thread in self.sub_threads.items()},
        }

    @classmethod
    def _opened(cls, document: Json, stores: MessageStoreFactory | None) -> Self:
        fields = msgspec.convert(document, WorkflowFields)
        workflow = cls()
        workflow.execution, workflow._beginning = fields.execution, fields.beginning
        workflow._threads = {key: thread_of(each, stores=stores) for key, each in fields.threads.items()}
        return workflow


def _all(thread: AgentThread) -> Iterator[AgentThread]:
    """A thread and, recursively, its sub-threads."""
    yield thread
    if isinstance(thread, WorkflowThread):
        for each in thread.sub_threads.values():
            yield from _all(each)


def _checkpoints(thread: AgentThread) -> set[str]:
    return {each.checkpoint_id for each in thread.checkpoints}


def _as_json(result: Json) -> Json:
    try:
        return msgspec.json.decode(msgspec.json.encode(result), type=Json)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest("result", f"cannot be kept as JSON: {error}") from error


_KINDS: Mapping[str, type[AgentThread]] = {
    each.kind: each for each in (LocalThread, RemoteThread, WorkflowThread)
}


def thread_of(document: Json, *, stores: MessageStoreFactory | None = None) -> AgentThread:
    """The thread that a document describes, of any kind. `InvalidRequest` for an unknown kind."""
    kind = document.get("kind")
    found = _KINDS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise InvalidRequest("kind", f"must be one of {', '.join(_KINDS)}")
    return found.from_document(document, stores=stores)
