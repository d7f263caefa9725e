"""Whatever is done to threads, in any order: they hold what a simple model of them holds.

The model knows lists of texts and copies of them; no parents, message stores, or JSON.
"""

import asyncio
import os
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from threads_setup import exchange

from tealagents.testing.servers import RedisServer
from tealagents.threads import (
    FileMessages,
    LocalThread,
    MemoryMessages,
    RedisMessages,
    ThreadDeleted,
    WorkflowThread,
)
from tealagents.threads.message_stores import MessageStoreFactory

pytest_plugins = ["tealagents.testing.pytest_servers"]

SETTINGS = settings(
    max_examples=400 if os.environ.get("THOROUGH") else 60,
    stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
)
#: messages that the bounded store keeps
MOST = 5
#: threads that one example may have at a time
THREADS = 4

places = st.integers(0, 1000)


class Machine(RuleBasedStateMachine):
    """A machine whose rules await."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.numbers = count(1)

    def teardown(self) -> None:
        self.runner.close()

    def do(self, awaitable: Any) -> Any:
        return self.runner.run(awaitable)


# --- local threads --------------------------------------------------------------------------------


@dataclass
class State:
    """What a thread holds at one time: texts by the numbers of their messages, and what is remembered."""

    texts: dict[int, str] = field(default_factory=dict)
    remembered: int = 0


@dataclass
class LocalModel:
    """A thread, and what of its messages there is."""

    most: int | None = None
    #: what it was begun with
    begun: State = field(default_factory=State)
    now: State = field(default_factory=State)
    #: numbers of messages that its store keeps, oldest first
    kept: list[int] = field(default_factory=list)
    #: of these, what was rolled back unmarked
    dropped: set[int] = field(default_factory=set)
    #: whether its store has them yet: that of a fork or a copy is filled on first use
    stored: bool = True
    marks: dict[str, State] = field(default_factory=dict)
    #: the checkpoints that led here
    line: list[str] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=dict)

    @property
    def shown(self) -> dict[int, str]:
        return {number: text for number, text in self.now.texts.items() if number in self.kept}

    def store(self) -> None:
        """What was rolled back before never gets into the store, and takes no one's place there."""
        if not self.stored:
            self.kept = [number for number in self.kept if number not in self.dropped]
            self.stored = True

    def say(self, number: int, text: str) -> None:
        self.now.texts[number] = text
        self.kept = [*self.kept, number][-(self.most or 0) :]

    def mark(self, checkpoint_id: str) -> None:
        self.line = [*self.line, checkpoint_id]
        self.lines[checkpoint_id] = self.line
        self.marks[checkpoint_id] = deepcopy(self.now)

    def roll_back(self, checkpoint_id: str | None) -> None:
        marked = {number for state in self.marks.values() for number in state.texts}
        self.dropped |= self.now.texts.keys() - marked - self.begun.texts.keys()
        self.now = deepcopy(self.marks[checkpoint_id] if checkpoint_id else self.begun)
        self.line = self.lines[checkpoint_id] if checkpoint_id else []

    def fork(self, length: int) -> "LocalModel":
        """Of the messages that are shown the first, and the checkpoints that hold no later one."""
        texts = dict(list(self.shown.items())[:length])

        def within(checkpoint_id: str) -> bool:
            return (self.marks[checkpoint_id].texts.keys() & set(self.kept)) <= texts.keys()

        line = list(takewhile(within, self.line))
        at = self.now if line == self.line else self.marks[line[-1]] if line else State()
        return LocalModel(
            most=self.most,
            begun=State({number: text for number, text in self.begun.texts.items() if number in texts}),
            now=State(texts, at.remembered),
            kept=list(texts),
            stored=False,
            marks={each: deepcopy(self.marks[each]) for each in line},
            line=line,
            lines={each: self.lines[each] for each in line},
        )

    def copy(self) -> "LocalModel":
        copied = deepcopy(self)
        copied.kept = [number for number in self.kept if number not in self.dropped]
        copied.stored = False
        return copied


class LocalThreads(Machine):
    """Threads, some of them forks and copies of others, each with its model."""

    def __init__(self, stores: MessageStoreFactory | None, most: int | None) -> None:
        super().__init__()
        self.stores = stores
        given = [message for n in range(2) for message in exchange(f"given {n}", f"given {n}")]
        begun = State({next(self.numbers): message.text for message in given})
        model = LocalModel(most, begun, deepcopy(begun), [*begun.texts][-(most or 0) :])
        self.pairs = [(LocalThread(given, stores=stores), model)]
        self.do(self.pairs[0][0].create())

    def pair(self, place: int) -> tuple[LocalThread, LocalModel]:
        return self.pairs[place % len(self.pairs)]

    @rule(place=places, rounds=st.integers(1, 2))
    def say(self, place: int, rounds: int) -> None:
        thread, model = self.pair(place)
        model.store()
        messages = []
        for _ in range(rounds):
            for message in exchange(f"text {next(self.numbers)}", f"text {next(self.numbers)}"):
                model.say(number := next(self.numbers), message.text)
                messages.append(message)
        self.do(thread.on_new_messages(messages))
        thread.context["providers"] = {"p": {"n": number}}
        model.now.remembered = number

    @rule(place=places, which=places)
    def edit(self, place: int, which: int) -> None:
        thread, model = self.pair(place)
        if shown := list(model.shown):
            model.store()
            which %= len(shown)
            model.now.texts[shown[which]] = text = f"edit {next(self.numbers)}"
            edited = self.do(thread.edit(thread.messages[which].message_id, text))
            assert edited == thread.messages[which]

    @rule(place=places)
    def mark(self, place: int) -> None:
        thread, model = self.pair(place)
        model.mark(thread.checkpoint())

    @rule(place=places, which=places)
    def roll_back(self, place: int, which: int) -> None:
        thread, model = self.pair(place)
        at = [None, *model.marks][which % (len(model.marks) + 1)]
        if at is None:
            thread.rewind()
        else:
            thread.rollback(at)
        model.roll_back(at)

    @precondition(lambda self: len(self.pairs) < THREADS)
    @rule(place=places, length=places)
    def fork(self, place: int, length: int) -> None:
        thread, model = self.pair(place)
        length = 1 + length % len(model.shown) if model.shown else 0
        fork = thread.fork(thread.messages[length - 1].message_id if length else None)
        self.pairs.append((fork, model.fork(length)))

    @precondition(lambda self: len(self.pairs) < THREADS)
    @rule(place=places)
    def copy(self, place: int) -> None:
        thread, model = self.pair(place)
        self.pairs.append((thread.copy(), model.copy()))

    @rule(place=places, read=st.booleans())
    def reopen(self, place: int, read: bool) -> None:
        thread, model = self.pair(place)
        if read:
            self.do(thread.create())
        again = LocalThread.from_json(thread.to_json(), stores=self.stores)
        assert again.to_json() == thread.to_json()
        model.store()
        self.do(again.create())
        self.pairs[place % len(self.pairs)] = (again, model)

    @precondition(lambda self: len(self.pairs) > 1)
    @rule(place=places)
    def delete(self, place: int) -> None:
        thread, _ = self.pairs.pop(place % len(self.pairs))
        self.do(thread.delete())
        for use in (lambda: thread.messages, thread.to_json, thread.checkpoint, thread.rewind):
            with pytest.raises(ThreadDeleted):
                use()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        for thread, model in self.pairs:
            texts = list(model.shown.values())
            assert [message.text for message in thread.messages] == texts
            assert [m.text for part in thread.parts() for m in part.messages] == texts
            assert len({message.message_id for message in thread.messages}) == len(texts)
            assert thread.state.get("p", {}).get("n", 0) == model.now.remembered
            assert thread.checkpoint_id == (model.line[-1] if model.line else None)
            assert {each.checkpoint_id for each in thread.checkpoints} == model.marks.keys()


@pytest.mark.parametrize("kind", ["none", "memory", "file", "redis", "bounded"])
def test_local_threads_hold_what_their_model_holds(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With every message store: said, edited, marked, rolled back, forked, copied, reopened, deleted.

    covers: THREAD-6, THREAD-7, THREAD-9
    """
    url = ""
    if kind in ("redis", "bounded"):
        server: RedisServer = request.getfixturevalue("redis_server")
        url = server.url
    made: dict[str, MessageStoreFactory] = {
        "memory": MemoryMessages,
        "file": lambda: FileMessages(tmp_path),
        "redis": lambda: RedisMessages(url),
        "bounded": lambda: RedisMessages(url, max_messages=MOST),
    }
    most = MOST if kind == "bounded" else None
    few = settings(SETTINGS, max_examples=SETTINGS.max_examples // 12) if url else SETTINGS

    class Threads(LocalThreads):
        def __init__(self) -> None:
            super().__init__(made.get(kind), most)

    run_state_machine_as_test(Threads, settings=few)


# --- workflows ------------------------------------------------------------------------------------


@dataclass
class Work:
    """What a workflow holds at one time: what was said in each sub-thread, and its execution."""

    #: by key and number: a sub-thread that was deleted and made anew is another one
    said: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    current: list[str] = field(default_factory=list)
    planned: list[str] = field(default_factory=list)


keys = st.sampled_from(["main", "writer", "reader"])
steps = st.sampled_from(["draft", "review", "publish"])


class Workflows(Machine):
    """One workflow and its model; a fork or copy takes its place."""

    def __init__(self) -> None:
        super().__init__()
        self.workflow = WorkflowThread()
        self.now = Work()
        self.beginning: list[str] = []
        self.marks: dict[str, Work] = {}
        self.line: list[str] = []
        self.lines: dict[str, list[str]] = {}

    def _key(self, key: str) -> tuple[str, int]:
        """The sub-thread of this key that is there, or a new one."""
        for known in self.now.said:
            if known[0] == key:
                return known
        self.now.said[key, next(self.numbers)] = []
        return self._key(key)

    def _marked(self) -> None:
        at = str(self.workflow.checkpoint_id)
        self.line = [*self.line, at]
        self.lines[at] = self.line
        self.marks[at] = deepcopy(self.now)

    @rule(key=keys)
    def say(self, key: str) -> None:
        messages = exchange(f"text {next(self.numbers)}", "ok")
        self.do(self.workflow.sub_thread(key).on_new_messages(messages))
        self.now.said[self._key(key)] += [message.text for message in messages]

    @rule(planned=st.lists(steps, max_size=3))
    def plan(self, planned: list[str]) -> None:
        self.workflow.plan(*planned)
        self.now.planned = list(planned)
        if not (self.marks or self.now.current or self.now.taken):
            self.beginning = list(planned)

    @rule(names=st.lists(steps, min_size=1, max_size=3, unique=True), failing=st.sets(steps))
    def work(self, names: list[str], failing: Iterable[str]) -> None:
        """Steps begin side by side; one after the other ends, or fails."""

        async def run() -> None:
            opened = []
            for name in names:
                await (step := self.workflow.step(name)).__aenter__()
                opened.append((name, step))
                if name not in self.now.current:
                    self.now.current.append(name)
                    if name in self.now.planned:
                        self.now.planned.remove(name)
            for name, step in opened:
                if name in failing:
                    failure = InterruptedError()
                    assert not await step.__aexit__(InterruptedError, failure, None)
                else:
                    await step.__aexit__(None, None, None)
                    self.now.current.remove(name)
                    self.now.taken.append(name)
                    self._marked()

        self.do(run())

    @rule()
    def mark(self) -> None:
        self.workflow.checkpoint()
        self._marked()

    @rule(which=places)
    def roll_back(self, which: int) -> None:
        at = [None, *self.marks][which % (len(self.marks) + 1)]
        if at is None:
            self.workflow.rewind()
        else:
            self.workflow.rollback(at)
        then = deepcopy(self.marks[at]) if at else Work(planned=list(self.beginning))
        there = {known: then.said.get(known, []) for known in self.now.said}
        self.now = Work(there, then.taken, then.current, then.planned)
        self.line = self.lines[at] if at else []

    @rule(key=keys)
    def delete_sub_thread(self, key: str) -> None:
        if key in self.workflow.sub_threads:
            del self.now.said[self._key(key)]
            self.do(self.workflow.delete_sub_thread(key))

    @rule(key=keys, length=places)
    def fork(self, key: str, length: int) -> None:
        if key not in self.workflow.sub_threads or not self.now.said[self._key(key)]:
            self.workflow = self.workflow.fork()
        else:
            known = self._key(key)
            length %= len(self.now.said[known])
            messages = self.workflow.get_sub_thread(key).messages
            self.workflow = self.workflow.fork(messages[length].message_id)
            del self.now.said[known][length + 1 :]
            self.line = list(
                takewhile(lambda at: len(self.marks[at].said.get(known, [])) <= length + 1, self.line)
            )
        self.marks = {at: self.marks[at] for at in self.line}

    @rule()
    def copy(self) -> None:
        self.workflow = self.workflow.copy()

    @rule()
    def reopen(self) -> None:
        text = self.workflow.to_json()
        self.workflow = WorkflowThread.from_json(text)
        assert self.workflow.to_json() == text

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        workflow, execution = self.workflow, self.workflow.execution
        assert {
            key: [message.text for message in thread.messages] for key, thread in workflow.sub_threads.items()
        } == {key: texts for (key, _), texts in self.now.said.items()}
        assert [step.name for step in execution.steps_taken] == self.now.taken
        assert execution.current_steps == self.now.current
        assert execution.next_steps == self.now.planned
        assert workflow.checkpoint_id == (self.line[-1] if self.line else None)
        assert {each.checkpoint_id for each in workflow.checkpoints} == self.marks.keys()


def test_workflows_hold_what_their_model_holds() -> None:
    """Sub-threads and execution: worked on, marked, rolled back, forked, copied, reopened.

    covers: WORKFLOW-1, WORKFLOW-2, WORKFLOW-3
    """
    run_state_machine_as_test(Workflows, settings=SETTINGS)
