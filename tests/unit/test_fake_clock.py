"""Time that moves when a test moves it."""

import asyncio
import time

import pytest

from tealagents.testing.clock import FakeClock, advance


async def test_time_stands_still_until_it_is_moved() -> None:
    """Both clocks stand still, and advance together."""
    clock = FakeClock()
    began, counted = clock.now(), clock.monotonic()
    await asyncio.sleep(0.01)
    assert (clock.now(), clock.monotonic()) == (began, counted)
    clock.advance(90.5)
    assert (clock.now() - began).total_seconds() == 90.5
    assert clock.monotonic() - counted == 90.5


async def test_sleepers_wake_in_order() -> None:
    """Sleepers wake when their time has come, the earliest first, and the others sleep on."""
    clock, woken = FakeClock(), list[int]()

    async def sleep(seconds: int) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    sleepers = [asyncio.create_task(sleep(seconds)) for seconds in (30, 10, 20, 0)]
    await asyncio.sleep(0.01)
    assert woken == [0]
    assert clock.sleepers == 3
    clock.advance(20)
    await asyncio.sleep(0.01)
    assert woken == [0, 10, 20]
    clock.advance(10)
    await asyncio.gather(*sleepers)
    assert woken == [0, 10, 20, 30]


async def test_a_canceled_sleeper_is_forgotten() -> None:
    """A sleeper may be canceled; time continues for the others."""
    clock = FakeClock()
    canceled, other = asyncio.create_task(clock.sleep(1)), asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0)
    canceled.cancel()
    await asyncio.sleep(0)
    clock.advance(1)
    await other
    assert canceled.cancelled()


def test_time_does_not_go_back() -> None:
    """A clock is never turned back."""
    with pytest.raises(ValueError, match="back"):
        FakeClock().advance(-1)


async def _never(loop: asyncio.AbstractEventLoop) -> None:
    advance(loop, 7200)
    await asyncio.Event().wait()


async def test_an_event_loop_is_set_forward() -> None:
    """Deadlines pass and sleepers wake at once, also while the loop waits; later ones last as they say."""
    loop, began = asyncio.get_running_loop(), time.monotonic()
    sleeper = asyncio.create_task(asyncio.sleep(3600))
    await asyncio.sleep(0)
    await asyncio.to_thread(advance, loop, 3600)
    await sleeper
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_never(loop), 7200)
    later = asyncio.create_task(asyncio.sleep(3600))
    await asyncio.sleep(0)
    assert not later.done()
    later.cancel()
    assert time.monotonic() - began < 3600
    with pytest.raises(ValueError, match="back"):
        advance(loop, -1)
