"""Stores of one machine under `kill -9`: every acknowledged commit is there, and none is half there.

Processes commit in a loop and report what was acknowledged; they are killed at random moments, two at a time.
Then, for the files, whose commit takes many steps, a process is killed before each of its steps in turn.

This file is also the program that does it: it forks those processes, so that each begins within milliseconds.
"""

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tealagents.domain.errors import Conflict
from tealagents.domain.ids import operation_id
from tealagents.domain.ports import Commit, Put, Record, Store
from tealagents.stores import plain_store

KILLS = 30 if os.environ.get("THOROUGH") == "1" else 12
PARTITIONS = ("agent/user/alice", "agent/user/bob")
PARTS = ("log", "request", "events")


def run(*arguments: str) -> list[str]:
    """What this program says when it is run with `arguments`; it fails where an assertion of it does."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.split()


def test_sqlite_killed_at_random(tmp_path: Path) -> None:
    """Whenever processes on one SQLite file are killed, what they acknowledged is there. covers: STATE-3"""
    acknowledged, kills = map(int, run("at-random", f"sqlite:///{tmp_path}/state.db"))
    assert acknowledged >= kills == KILLS


def test_files_killed_at_random(tmp_path: Path) -> None:
    """Whenever processes on one folder are killed, what they acknowledged is there. covers: STATE-3"""
    acknowledged, kills = map(int, run("at-random", f"file://{tmp_path}/state"))
    assert acknowledged >= kills == KILLS


def test_files_killed_at_every_step(tmp_path: Path) -> None:
    """Killed before any of its steps, a commit of files is whole or absent. covers: STATE-3"""
    outcomes = run("at-every-step", str(tmp_path))
    assert outcomes[0] == "before"
    assert outcomes[-2:] == ["after", "lived"]
    assert outcomes == sorted(outcomes, key=["before", "after", "lived"].index)
    assert len(outcomes) > 15


# --- killing at random ------------------------------------------------------------------------------


class Turn(NamedTuple):
    """One commit of many records: the head moves from `number - 1` to `number`, and each part is added."""

    partition: str
    number: int
    operation: str

    def commit(self, head: Record | None) -> Commit:
        value = b'{"turn":%d}' % self.number
        parts = {f"{part}/{self.number:06}": Put(value, 3600 if part == "events" else None) for part in PARTS}
        return Commit(
            operation=self.operation,
            expect={"head": head and head.version, **dict.fromkeys(parts)},
            put={"head": Put(value), **parts},
            delete=[f"draft/{self.number - 1:06}"],
        )


def turns(head: Record | None) -> int:
    return int(head.value.removeprefix(b'{"turn":').removesuffix(b"}")) if head else 0


def kill_at_random(url: str) -> None:
    acknowledged: list[Turn] = []
    for _ in range(KILLS // 2):
        acknowledged += killed_after_a_while(url)
        asyncio.run(check(url, acknowledged))
    print(len(acknowledged), KILLS)


def killed_after_a_while(url: str) -> Sequence[Turn]:
    """What two processes had acknowledged when they were killed."""
    reading, writing = os.pipe()
    with open(reading) as said:
        children = [forked(lambda: asyncio.run(work_until_killed(url, writing))) for _ in range(2)]
        os.close(writing)
        # as many commits as are killed: by then one of them works, however long it took to start
        first = [said.readline() for _ in children]
        for child in children:
            time.sleep(random.uniform(0, 0.15))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        lines = [line.split() for line in (*first, *said) if line.endswith("\n")]
    return [Turn(partition, int(number), operation) for partition, number, operation in lines]


def forked(work: Callable[[], None]) -> int:
    if child := os.fork():
        return child
    work()
    os._exit(0)


async def work_until_killed(url: str, report: int) -> None:
    """Two writers a partition; each line is one write, so that it is reported whole or not at all."""
    async with plain_store(url) as store, asyncio.TaskGroup() as group:
        for partition in PARTITIONS * 2:
            group.create_task(work(store, partition, lambda *turn: os.write(report, b"%s %d %s\n" % turn)))


async def work(store: Store, partition: str, acknowledged: Callable[[bytes, int, bytes], object]) -> None:
    """Adds turns as fast as it can, beside the others."""
    while True:
        [head] = await store.read(partition, ["head"])
        turn = Turn(partition, turns(head) + 1, operation_id())
        with suppress(Conflict):
            await store.commit(partition, turn.commit(head))
            acknowledged(partition.encode(), turn.number, turn.operation.encode())


async def check(url: str, acknowledged: Sequence[Turn]) -> None:
    """Each turn up to the head is there, with all its parts, of one commit: the one that was acknowledged."""
    async with plain_store(url) as store:
        for partition in PARTITIONS:
            found = dict(await store.scan(partition, "", limit=1_000_000))
            numbers = range(1, turns(found.pop("head", None)) + 1)
            assert found.keys() == {f"{part}/{number:06}" for part in PARTS for number in numbers}
            for number in numbers:
                assert len({found[f"{part}/{number:06}"].version for part in PARTS}) == 1
            for turn in acknowledged:
                assert turn.partition != partition or found[f"log/{turn.number:06}"].version == turn.operation


# --- killing at every step --------------------------------------------------------------------------

STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
BEFORE = {"head": b"1", "old/deep/key": b"1", "same": b"1"}
AFTER = {"head": b"2", "new/deep/key": b"2", "events/1": b"2", "same": b"1"}


def kill_at_every_step(directory: str) -> None:
    """Kills a process before its first step, one before its second, …, and says what each left behind."""
    for step in itertools.count(1):
        url = f"file://{directory}/{step}"
        child = forked(lambda url=url, step=step: asyncio.run(commit_and_die(url, step)))  # type: ignore[misc]
        _, status = os.waitpid(child, 0)
        print(asyncio.run(left_behind(url)) if status else "lived")
        if not status:
            return


async def commit_and_die(url: str, step: int) -> None:
    """Makes one commit whole, and dies before the step of that number of another."""
    async with plain_store(url) as store:
        await put(store, BEFORE)
        steps = itertools.count(1)

        def die(event: str, arguments: tuple[object, ...]) -> None:
            if event in STEPS and next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(die)
        await put(store, AFTER, delete=["old/deep/key"])
        os._exit(0)


async def left_behind(url: str) -> str:
    """Which of the two commits is there, after a look whether the next one works."""
    async with plain_store(url) as store:
        found = dict(await store.scan("p", ""))
        content = {key: record.value for key, record in found.items()}
        assert content in (BEFORE, AFTER), content
        await put(store, {"head": b"3"}, expect={"head": found["head"].version})
        assert [record and record.value for record in await store.read("p", ["head", "same"])] == [b"3", b"1"]
        return "before" if content == BEFORE else "after"


async def put(store: Store, content: dict[str, bytes], **more: object) -> None:
    puts = {key: Put(value, 3600 if key.startswith("events/") else None) for key, value in content.items()}
    await store.commit("p", Commit(operation=operation_id(), put=puts, **more))  # type: ignore[arg-type]


if __name__ == "__main__":
    {"at-random": kill_at_random, "at-every-step": kill_at_every_step}[sys.argv[1]](sys.argv[2])
