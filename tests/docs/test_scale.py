"""The tables of `docs/scale.md`, and a simulation that is held against them."""

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import operations, sizing
from benchmarks.operations import Asked
from benchmarks.simulation import FIRST, FOLLOW_UP, NEXT, Simulated, simulate

from tealagents.state.tasks import TaskRules
from tealagents.testing.clock import FakeClock
from tealagents.testing.counting import StoreOperation
from tealagents.testing.service import offline_service
from tealagents.testing.waits import until

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
#: the page in one line, however it is wrapped
PROSE = " ".join(PAGE.split())


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Afterwards it is what it was: what is counted here runs in this process, and logs errors alone."""
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


def stated() -> dict[str, Asked]:
    """What the page says is asked of the store."""
    rows = PAGE.partition("|  | reads | scans | commits |\n")[2].partition("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {name: Asked(*map(int, numbers)) for name, *numbers in cells}


async def test_what_the_page_says_is_asked() -> None:
    """Counted again it is the same; `python -m benchmarks.sizing` prints the table."""
    assert await operations.count() == stated()


async def test_what_the_page_says_of_each_protocol() -> None:
    """The turns of some ask for more than those of others."""
    assert sizing.operations_table(await operations.count_protocols()) in PAGE


async def test_what_an_idle_process_asks(tmp_path: Path) -> None:
    """In a minute: its lease is renewed twelve times, and pending deletions are looked for four times."""
    clock = FakeClock()
    async with operations.in_process(tmp_path, clock=clock) as service:
        for _ in range(2):  # in the first minute, what it does by the clock begins
            before = service.store.operations.copy()
            for _ in range(60):
                clock.advance(1)
                for _ in range(20):
                    await asyncio.sleep(0)
        asked = service.store.operations - before
    assert asked == {
        StoreOperation("commit", "workers"): 12,
        StoreOperation("scan", "erasing"): 4,
        StoreOperation("now", ""): 12 + 4,
    }
    assert "renews its lease every five seconds: one reading of the store's clock and one commit" in PROSE
    assert "looks for pending deletions every 15 seconds: one reading of the clock and one scan" in PROSE


def test_a_background_request_that_no_one_follows_stores_its_deltas() -> None:
    """As a stream does; a request for JSON stores none, as the page says."""
    message = {"items": [{"content_type": "text", "content": "pieces-5"}]}
    stored = {}
    with offline_service() as (service, _), service.client("ada") as client:
        for prefer in ("respond-async", "wait"):
            sent = client.post("", json=message, headers={"prefer": prefer}).raise_for_status()
            path = f"/requests/{sent.json()['request_id']}"
            until(lambda path=path: client.get(path).json()["status"] == "Completed")  # type: ignore[misc]
            stored[prefer] = client.get(f"{path}/events").text.count("event: partial-response")
    assert stored["respond-async"] > stored["wait"] == 0
    assert "JSON answers write none. A background request writes them as a stream does" in PROSE


def test_the_tables_of_costs_and_sizes() -> None:
    """They are what `benchmarks.sizing` makes of the measured costs and the assumptions."""
    assert sizing.costs_table() in PAGE
    for cost in sizing.COSTS.values():
        assert sizing.sizes_table(cost, sizing.Assumed()) in PAGE


def test_the_space_planned_for_event_logs_is_that_of_their_whole_lifetime() -> None:
    """As long as the store keeps them, which is longer than they can be replayed."""
    cost, assumed = sizing.COSTS["Redis"], sizing.Assumed()
    lasting = TaskRules().event_seconds / 86_400
    a_day = 100_000 * assumed.active * assumed.turns * assumed.deltas * cost.delta_written / 1e9
    assert sizing.size(100_000, cost, assumed).events_gigabytes == pytest.approx(a_day * lasting)


def agrees(found: Simulated) -> None:
    """All turns together, and each that was looked at, asked for what the page says."""
    paper = stated()
    assert set(found.turns) == {FIRST, NEXT, FOLLOW_UP}
    for kind, seen in found.seen.items():
        assert set(seen) == {paper[kind]}, kind
    times = found.turns.items()
    assert found.asked == Asked(
        sum(paper[kind].reads * n for kind, n in times),
        sum(paper[kind].scans * n for kind, n in times),
        sum(paper[kind].commits * n for kind, n in times),
    )
    assert f"takes {found.per_turn:.2f} operations" in PAGE


async def test_two_thousand_tasks() -> None:
    """What they ask of the store is what the page says, to the last operation."""
    agrees(await simulate(2_000))


@pytest.mark.soak
async def test_a_million_tasks() -> None:
    """As of two thousand: no turn asks for more because there are many. `SOAK_TASKS` says how many."""
    found = await simulate(int(os.environ.get("SOAK_TASKS", 1_000_000)))
    turns = found.turns.total()
    print(f"\ntasks={found.tasks}  turns={turns}  seconds={found.seconds:.0f}  a turn={found.per_turn:.4f}")
    agrees(found)
