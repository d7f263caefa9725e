"""Alarms: each is looked at once it is time, by one timer of the event loop."""

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, cast

import pytest

from tealagents.alarms import APART, Alarms, alarms

whose = ContextVar("whose", default="no one's")


class Timer:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call = call
        self.canceled = False

    def cancel(self) -> None:
        self.canceled = True


class Loop:
    """An event loop whose clock is set by the test."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []
        self.alarms = Alarms(cast(asyncio.AbstractEventLoop, self))

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None], *, context: Context) -> Timer:
        timer = Timer(when, call)
        self.timers.append(timer)
        return timer

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self.timers.append(Timer(self.now, lambda: call(*arguments)))

    @property
    def standing(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.canceled]

    def pass_until(self, when: float) -> None:
        while due := [timer for timer in self.standing if timer.when <= when]:
            first = min(due, key=lambda timer: timer.when)
            self.timers.remove(first)
            self.now = max(self.now, first.when)
            first.call()
        self.now = when


class Lamp:
    """Notes when it was looked at."""

    def __init__(self, loop: Loop, then: Callable[[], None] = lambda: None) -> None:
        self.loop = loop
        self.then = then
        self.seen: list[float] = []

    def look(self) -> None:
        self.seen.append(self.loop.now)
        self.then()


def test_each_is_looked_at_once_when_it_is_time() -> None:
    """Those that are not due yet stay."""
    loop = Loop()
    soon, later = Lamp(loop), Lamp(loop)
    loop.alarms.set(later, 109)
    loop.alarms.set(soon, 103)
    loop.pass_until(108)
    assert (soon.seen, later.seen) == ([103], [])
    loop.pass_until(1000)
    assert (soon.seen, later.seen) == ([103], [109])
    assert loop.standing == []


def test_one_that_is_unset_or_put_off_is_not_looked_at_before() -> None:
    """Also where that happens between the round and its look."""
    loop = Loop()
    unset, put_off = Lamp(loop), Lamp(loop)

    def change_both() -> None:
        loop.alarms.unset(unset)
        loop.alarms.set(put_off, 120)

    loop.alarms.set(Lamp(loop, change_both), 103)
    loop.alarms.set(unset, 103)
    loop.alarms.set(put_off, 103)
    loop.pass_until(1000)
    assert (unset.seen, put_off.seen) == ([], [120])


def test_one_may_be_brought_forward() -> None:
    """Its first time does not count any more."""
    loop = Loop()
    lamp = Lamp(loop)
    loop.alarms.set(lamp, 109)
    loop.alarms.set(lamp, 103)
    loop.pass_until(1000)
    assert lamp.seen == [103]


def test_any_number_have_one_timer_and_rounds_are_apart() -> None:
    """What comes due shortly after a round is looked at with the next, and none is looked at early."""
    loop = Loop()
    lamps = [Lamp(loop) for _ in range(1000)]
    for n, lamp in enumerate(lamps):
        loop.alarms.set(lamp, 103 + n / 1000)
        assert len(loop.standing) == 1
    loop.pass_until(1000)
    late = [lamp.seen[0] - 103 - n / 1000 for n, lamp in enumerate(lamps)]
    assert -1e-9 <= min(late) <= max(late) <= APART + 1e-9
    assert len({lamp.seen[0] for lamp in lamps}) <= 1 / APART + 2


def test_one_that_asks_again_at_once_does_not_spin() -> None:
    """Rounds are apart, whatever is asked for."""
    loop = Loop()
    lamp = Lamp(loop, lambda: loop.alarms.set(lamp, loop.now))
    loop.alarms.set(lamp, 100)
    loop.pass_until(101)
    assert 1 / APART - 1 <= len(lamp.seen) <= 1 / APART + 2


async def test_an_error_of_one_is_reported_and_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are looked at in the context of no request, so that no log line names a wrong one."""
    done = asyncio.Event()
    seen: list[str] = []

    class Broken:
        def look(self) -> None:
            raise RuntimeError("broken lamp")

    class Sound:
        def look(self) -> None:
            seen.append(whose.get())
            done.set()

    whose.set("someone's")
    own = alarms()
    assert own is alarms()
    own.set(Broken(), own.loop.time())
    own.set(Sound(), own.loop.time())
    async with asyncio.timeout(30):
        await done.wait()
    assert seen == ["no one's"]
    assert "broken lamp" in caplog.text


def test_each_event_loop_has_its_own() -> None:
    """Those of a loop that has ended are never rung."""

    async def its() -> Alarms:
        return alarms()

    assert asyncio.run(its()) is not asyncio.run(its())
