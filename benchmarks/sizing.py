"""From what things cost to how many replicas, and how large a store, so many users need: `docs/scale.md`.

Nothing is measured here. `python -m benchmarks.sizing` prints the tables of that page, and a test compares.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from msgspec import Struct

from benchmarks.operations import Asked, count, count_protocols
from tealagents.state.tasks import TaskRules


class Assumed(Struct, frozen=True, kw_only=True):
    """How an agent is used."""

    #: of all users, those of one day
    active: float = 0.2
    #: the turns that each of them sends
    turns: int = 10
    #: of a day's turns, the part of the busiest hour
    busiest_hour: float = 0.15
    #: a streamed answer: its deltas, and how many seconds they take
    deltas: int = 250
    seconds: float = 5
    #: seconds that deltas are gathered for before they are written
    batch_seconds: float = 0.05
    #: how busy a core of a replica may be in the busiest hour, and how few replicas there should be
    utilisation: float = 0.6
    fewest: int = 2
    #: days that a task is kept
    kept_days: int = 90
    #: days that an event is stored
    event_days: float = TaskRules().event_seconds / 86_400


class Cost(Struct, frozen=True, kw_only=True):
    """What `python -m benchmarks --only costs` measured, of one store."""

    #: milliseconds of CPU of a turn, and of one of its deltas: of the service, and of the store's server
    turn: float
    turn_server: float
    delta: float
    delta_server: float
    #: bytes that a turn and a delta write to the server's log, and that a stored turn takes
    turn_written: int
    delta_written: int
    turn_stored: int
    #: connections of each replica
    connections: int


class Size(Struct, frozen=True, kw_only=True):
    """What so many users need."""

    users: int
    turns_a_second: float
    streams: float
    replicas: int
    commits_a_second: float
    server_cores: float
    log_megabytes_a_second: float
    stored_gigabytes: float
    events_gigabytes: float
    connections: int


USERS = (1_000, 100_000, 10_000_000)
#: the least of three runs on a small machine with other work
COSTS: Mapping[str, Cost] = {
    "PostgreSQL": Cost(
        turn=2.8,
        turn_server=1.5,
        delta=0.25,
        delta_server=0.18,
        turn_written=6300,
        delta_written=290,
        turn_stored=6900,
        connections=11,
    ),
    "Redis": Cost(
        turn=3.1,
        turn_server=0.8,
        delta=0.24,
        delta_server=0.064,
        turn_written=6400,
        delta_written=250,
        turn_stored=8100,
        connections=33,
    ),
}


def size(users: int, cost: Cost, assumed: Assumed) -> Size:
    """What is needed in the busiest hour, and for what is kept."""
    a_day = users * assumed.active * assumed.turns
    rate = a_day * assumed.busiest_hour / 3600
    batches = assumed.seconds / assumed.batch_seconds
    service = rate * (cost.turn + assumed.deltas * cost.delta) / 1000
    server = rate * (cost.turn_server + assumed.deltas * cost.delta_server) / 1000
    replicas = max(assumed.fewest, ceil(service / assumed.utilisation))
    written = rate * (cost.turn_written + assumed.deltas * cost.delta_written)
    return Size(
        users=users,
        turns_a_second=rate,
        streams=rate * assumed.seconds,
        replicas=replicas,
        commits_a_second=rate * (2 + batches),
        server_cores=server,
        log_megabytes_a_second=written / 1e6,
        stored_gigabytes=a_day * assumed.kept_days * cost.turn_stored / 1e9,
        events_gigabytes=a_day * assumed.event_days * assumed.deltas * cost.delta_written / 1e9,
        connections=replicas * cost.connections,
    )


# --- the tables of the page ---------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def operations_table(counted: Mapping[str, Asked]) -> str:
    return table(
        ("", "reads", "scans", "commits"),
        [(name, str(each.reads), str(each.scans), str(each.commits)) for name, each in counted.items()],
    )


def costs_table() -> str:
    def row(name: str, field: str, unit: str = "") -> list[str]:
        return [name, *(f"{getattr(cost, field):,g}{unit}" for cost in COSTS.values())]

    return table(
        ("", *COSTS),
        [
            row("a turn: CPU of the service", "turn", " ms"),
            row("a turn: CPU of the server", "turn_server", " ms"),
            row("a delta: CPU of the service", "delta", " ms"),
            row("a delta: CPU of the server", "delta_server", " ms"),
            row("a turn: written to the server's log", "turn_written", " bytes"),
            row("a delta: written to the server's log", "delta_written", " bytes"),
            row("a stored turn", "turn_stored", " bytes"),
            row("connections of a replica", "connections"),
        ],
    )


def sizes_table(cost: Cost, assumed: Assumed) -> str:
    sizes = [size(users, cost, assumed) for users in USERS]

    def row(name: str, field: str) -> list[str]:
        return [name, *(shown(getattr(each, field)) for each in sizes)]

    return table(
        ("users", *(f"{users:,}" for users in USERS)),
        [
            row("turns a second in the busiest hour", "turns_a_second"),
            row("answers that are streamed at once", "streams"),
            row("replicas of one core", "replicas"),
            row("connections to the store, at most", "connections"),
            row("commits a second", "commits_a_second"),
            row("cores of the store's servers", "server_cores"),
            row("log of the store, MB a second", "log_megabytes_a_second"),
            row("event logs, GB", "events_gigabytes"),
            row("turns of 90 days, GB", "stored_gigabytes"),
        ],
    )


def shown(value: float) -> str:
    """Two significant digits, or more where they stand before the point."""
    return f"{value:,.0f}" if value >= 10 else f"{float(f'{value:.2g}'):g}"


def main() -> None:
    asked = [operations_table(asyncio.run(counting())) for counting in (count, count_protocols)]
    print(*asked, costs_table(), sep="\n\n")
    for name, cost in COSTS.items():
        print(f"\n{name}\n\n{sizes_table(cost, Assumed())}")


if __name__ == "__main__":
    main()
