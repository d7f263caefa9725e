"""Watches: by a timer where the store cannot push, and over a link that is asked for a word."""

import asyncio
import gc
from collections.abc import Collection, Sequence
from contextlib import nullcontext

import pytest

from tealagents.domain.errors import PersistenceUnavailable
from tealagents.engine.publishing import GATHER_SECONDS
from tealagents.stores import postgres_link
from tealagents.stores.links import ANSWER_SECONDS, HEARTBEAT_SECONDS, LinkedWatches
from tealagents.stores.watches import LONGEST_PAUSE, Topic, Watches
from tealagents.testing.waits import eventually


async def pauses(watches: Watches, found: list[bool]) -> list[float]:
    """The seconds for which a watch waits, each time after a look that found something or not."""
    slept: list[float] = []
    async with watches.watch("p", "topic") as watch:
        for each in found:
            waiting = asyncio.ensure_future(watch.wait(found=each))
            await asyncio.sleep(0)
            slept.append(watch._pause)
            waiting.cancel()
            await asyncio.wait([waiting])
    return slept


async def test_looks_become_rare_while_nothing_is_found() -> None:
    """Each pause is longer than the one before, up to the longest; what is found makes it short again."""
    slept = await pauses(Watches(0.25, live=False), [True, *[False] * 8, True])
    assert slept[0] == slept[-1] == 0.25
    rising = slept[: slept.index(LONGEST_PAUSE) + 1]
    assert rising == sorted(set(rising))
    assert len(rising) > 4
    assert slept[-2] == LONGEST_PAUSE


async def test_a_timer_wakes() -> None:
    """A wait by a timer says that it is time to look; one that ends before the timer does says no."""
    async with Watches(0.01, live=False).watch("p", "topic") as watch:
        assert await watch.wait(30)
        assert not await watch.wait(0)


async def test_the_loss_of_the_link_wakes_everything() -> None:
    """Watches that waited for commits alone look once when the link goes, and by a timer from then on."""
    watches = Watches(0.01, live=True)
    async with watches.watch("p", "a") as one, watches.watch("q", "b") as other:
        waits = [asyncio.ensure_future(watch.wait()) for watch in (one, other)]
        await asyncio.sleep(0)
        watches.live = False
        watches.wake_all()
        assert all(await asyncio.gather(*waits))
        assert await one.wait(30)


async def test_topics_are_subscribed_to_once() -> None:
    """A topic is let go when its last watch ends, also where that was canceled on its way in."""
    watches = Recorded()
    async with watches.watch("p", "a"), watches.watch("p", "a"):
        assert watches.calls == ["+a", "+a"]
    entering = asyncio.ensure_future(watches.watch("p", "stuck").__aenter__())
    await asyncio.sleep(0)
    entering.cancel()
    await asyncio.wait([entering])
    assert watches.calls == ["+a", "+a", "-a", "+stuck", "-stuck"]
    assert not watches.topics


class Recorded(Watches):
    """Writes down what is subscribed to; the topic `stuck` never comes into effect."""

    def __init__(self) -> None:
        super().__init__(0.25, live=True)
        self.calls: list[str] = []

    async def subscribe(self, topic: Topic) -> None:
        self.calls.append("+" + topic[1])
        if topic[1] == "stuck":
            await asyncio.Event().wait()

    def unsubscribe(self, topic: Topic) -> None:
        self.calls.append("-" + topic[1])


class Chattering:
    """A link that brings other topics all the time, and says how often it was asked for a word."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def subscribe(self, channels: Collection[str]) -> None: ...

    async def unsubscribe(self, channels: Collection[str]) -> None: ...

    async def heartbeat(self) -> None:
        self.asked.set()


async def test_a_link_that_brings_something_is_asked_for_a_word_as_well() -> None:
    """What it brings, and what is newly watched, does not put off the question whether it still works."""
    link = Chattering()
    watches = LinkedWatches(
        0.25, connect=lambda _: nullcontext(link), name=lambda topic: topic[1], channel=str
    )
    async with watches.watch("p", "topic"), asyncio.timeout(30):
        while not link.asked.is_set():
            watches.hear("topic")
            async with watches.watch("p", "another"):
                await asyncio.sleep(0)
    await watches.close()


async def test_what_commits_notify_on_postgres_goes_in_few_statements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first is sent at once; what comes soon after it is sent later, with all that has come since."""
    slept, sent, over = asyncio.Queue[float](), asyncio.Queue[Sequence[str]](), asyncio.Semaphore(0)

    async def sleep(seconds: float) -> None:
        slept.put_nowait(seconds)
        await over.acquire()

    async def send(prefix: str, payloads: Sequence[str]) -> None:
        sent.put_nowait(payloads)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(postgres_link, "INTERVAL_SECONDS", 3600.0)
    watches = postgres_link.PostgresWatches(0.25, schema="tealagents", arguments={}, send=send)
    async with asyncio.timeout(30):
        watches.announce("p", ["a"])
        assert await slept.get() == postgres_link.GATHER_SECONDS
        over.release()
        assert len(await sent.get()) == 1
        watches.announce("p", ["b"])
        assert await slept.get() > 3000
        watches.announce("p", ["b", "c"])
        over.release()
        assert len(await sent.get()) == 2
    await watches.close()


async def test_a_notification_that_fails_once_is_sent_again_at_once() -> None:
    """With all that has come since: what failed may be one connection, and others are waiting."""
    attempts: list[Sequence[str]] = []

    async def send(prefix: str, payloads: Sequence[str]) -> None:
        attempts.append(payloads)
        if len(attempts) < 3:
            watches.announce("p", ["b"])
            raise PersistenceUnavailable("no answer")

    watches = postgres_link.PostgresWatches(0.25, schema="tealagents", arguments={}, send=send)
    watches.announce("p", ["a"])
    await eventually(lambda: len(attempts) == 3)
    assert [len(each) for each in attempts] == [1, 2, 2]
    await watches.close()


async def test_notifications_are_sent_however_long_the_store_was_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Followers in other processes, which can reach it, wait for them. The log names the outage once."""
    monkeypatch.setattr(postgres_link, "RETRY_SECONDS", 0.0)
    attempts: list[Sequence[str]] = []

    async def send(prefix: str, payloads: Sequence[str]) -> None:
        attempts.append(payloads)
        if len(attempts) <= 3 * postgres_link.REPORTED:
            raise PersistenceUnavailable("no answer")

    watches = postgres_link.PostgresWatches(0.25, schema="tealagents", arguments={}, send=send)
    watches.announce("p", ["a"])
    await eventually(lambda: watches._sending is None)
    assert len(attempts) == 3 * postgres_link.REPORTED + 1
    assert attempts[-1] == attempts[0]
    assert [record.getMessage() for record in caplog.records] == [
        "watches of other processes are notified later: no answer"
    ]
    await watches.close()


async def test_what_no_send_expects_does_not_end_notifications() -> None:
    """The next commit begins to notify again."""
    sent: list[Sequence[str]] = []
    loop, unexpected = asyncio.get_running_loop(), list[BaseException]()
    loop.set_exception_handler(lambda _, context: unexpected.append(context["exception"]))

    async def send(prefix: str, payloads: Sequence[str]) -> None:
        sent.append(payloads)
        if len(sent) == 1:
            raise EOFError

    watches = postgres_link.PostgresWatches(0.25, schema="tealagents", arguments={}, send=send)
    watches.announce("p", ["a"])
    await eventually(lambda: watches._sending is None)
    watches.announce("p", ["b"])
    await eventually(lambda: len(sent) == 2)
    await watches.close()
    gc.collect()
    assert [type(each) for each in unexpected] == [EOFError]


def test_a_notification_that_is_lost_costs_two_seconds_at_most() -> None:
    """The loss of the link is noticed by then, and without a link looks are no farther apart."""
    assert HEARTBEAT_SECONDS + ANSWER_SECONDS <= 2
    assert LONGEST_PAUSE <= 2


def test_a_follower_on_a_store_that_is_polled_is_at_most_a_second_behind() -> None:
    """Events reach the store in batches, and then a look finds them."""
    assert LONGEST_PAUSE + GATHER_SECONDS <= 1
