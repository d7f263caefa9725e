"""A task of ten thousand turns, of which the model is shown what its budget holds: what its turns cost."""

from typing import Any

from benchmarks.figures import Figure
from benchmarks.load import Service, task_of
from benchmarks.measures import TEXT, Scale, Spent, warm
from benchmarks.processes import ModelProcess, ServiceProcess
from tealagents.testing.servers import RedisServer, ServerMissing

#: turns over which the cost is taken
WINDOW = 50
BUDGET = {"name": "token_budget", "max_tokens": 400, "tokenizer": "estimate"}


class BudgetedService(ServiceProcess):
    """A service that shows the model no more than a budget of tokens."""

    def _config(self) -> dict[str, Any]:
        config = super()._config()
        config["spec"]["thread"] = {"reducers": [BUDGET]}
        return config


async def long_tasks(scale: Scale) -> list[Figure]:
    """CPU of the service a turn, at the end of the task beside that from turn 50 on."""
    figures = []
    turns = scale.of(10_000, 400)
    with ModelProcess() as model:
        with BudgetedService(model, "sqlite:///state.db") as service:
            figures.append(await _figure("sqlite", service, turns))
        try:
            with RedisServer(durable=True) as redis, BudgetedService(model, redis.url) as service:
                figures.append(await _figure("redis", service, turns))
        except ServerMissing as missing:
            print(f"redis is left out. {missing}")
    return figures


async def _figure(name: str, process: ServiceProcess, turns: int) -> Figure:
    target = Service(process)
    await warm(target)
    early, late = Spent(process), Spent(process)
    async with target.connections(1) as (connection,):
        task = task_of(await target.ask(connection, TEXT))

        async def grow(count: int) -> None:
            for _ in range(count):
                await target.ask(connection, TEXT, task_id=task)

        await grow(WINDOW - 1)
        await early.on(WINDOW, lambda: grow(WINDOW))
        await grow(turns - 3 * WINDOW)
        await late.on(WINDOW, lambda: grow(WINDOW))
    return Figure(
        measure="long-tasks",
        name=f"{name}, turn {turns:,}, floor: turn {WINDOW}",
        unit="ms CPU",
        ours=late.each,
        base=early.each,
        bound=1.3,
    )
