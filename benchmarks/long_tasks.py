"""A task of ten thousand turns, of which the model is shown what its budget holds: what its turns cost."""

from contextlib import ExitStack

from benchmarks.figures import Figure
from benchmarks.load import Service, task_of
from benchmarks.measures import TEXT, Scale, Spent, warm
from benchmarks.processes import ModelProcess, ServiceProcess
from benchmarks.servers import SERVED, on_each, store_server

#: turns of the task that the long one is held against
YOUNG = 50
#: turns that are measured: so many times so many of each task
ROUNDS, EACH = 20, 5
#: the model is shown no more than a budget of tokens
BUDGETED = {"thread": {"reducers": [{"name": "token_budget", "max_tokens": 400, "tokenizer": "estimate"}]}}


async def long_tasks(scale: Scale) -> list[Figure]:
    """CPU of the service a turn, on an old task beside one on a young one."""

    async def measured(name: str) -> list[Figure]:
        with ExitStack() as stack:
            served = name in SERVED
            url = stack.enter_context(store_server(name)).url if served else "sqlite:///state.db"
            model = stack.enter_context(ModelProcess())
            service = stack.enter_context(ServiceProcess(model, url, BUDGETED))
            return [await _figure(name, service, scale.of(10_000, 400))]

    return await on_each(("sqlite", "redis"), measured)


async def _figure(name: str, process: ServiceProcess, turns: int) -> Figure:
    """Two tasks by turns, the one old and the other young: what else the machine does strikes both."""
    target = Service(process)
    await warm(target)
    old, young = Spent(process), Spent(process)
    async with target.connections(1) as (connection,):

        async def new_task() -> str:
            return task_of(await target.ask(connection, TEXT))

        async def grow(task: str, count: int) -> None:
            for _ in range(count):
                await target.ask(connection, TEXT, task_id=task)

        long_one, short_one = await new_task(), await new_task()
        await grow(long_one, turns - ROUNDS * EACH)
        await grow(short_one, YOUNG)
        for _ in range(ROUNDS):
            await old.on(EACH, lambda: grow(long_one, EACH))
            await young.on(EACH, lambda: grow(short_one, EACH))
    return Figure(
        measure="long-tasks",
        name=f"{name}, turn {turns:,}, floor: turn {YOUNG}",
        unit="ms CPU",
        ours=old.each,
        base=young.each,
        bound=1.3,
    )
