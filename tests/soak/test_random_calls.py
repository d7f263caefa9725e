"""Random clients of two replicas that are killed, stopped and drained, for as long as `SOAK_RANDOM_SECONDS`.

Where the store has a server, the connections to it break as well, one by one or all at once. Beside it all
an operator prunes what expires, and in the end verifies the audits.

Unlike `tests/crash/test_history.py`, which sends messages only, they also decide pauses, follow and replay
streams, run tools of their own, cancel, go back, fork and delete tasks and sessions. `SOAK_SEED` says which
calls are drawn.
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

sys.path.append(str(Path(__file__).parent))

from findings import ENDED, findings, left_over
from talkers import PATIENCE, Notes, Talker

from tealagents.testing.faults import FaultProxy, Faults
from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.history import everything, reader
from tealagents.testing.pytest_stores import Place
from tealagents.testing.service import agent_config
from tealagents.testing.waits import eventually

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("SOAK_RANDOM_SECONDS", "60"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
CLIENTS = 8
LEASE = 1.0
PLUGINS = Path(__file__).parents[1] / "api" / "working" / "custom_plugins.py"


@pytest.mark.parametrize("concurrency", ["reject", "enqueue", "interrupt", "rollback"])
@pytest.mark.parametrize("place", ["files", "sqlite", "postgres", "redis", "dynamodb"], indirect=True)
async def test_every_answer_stays_true(
    place: Place, nursery: Nursery, concurrency: str, tmp_path: Path
) -> None:
    """What was answered is so, on each replica; what was approved ran once; every request ends."""
    notes = Notes(str(tmp_path / "lines"))
    Path(notes.file).touch()
    config = agent_config(
        concurrency=concurrency,
        protocols=["openai"],
        limits={
            "lease_seconds": LEASE,
            "request_timeout_seconds": 20,
            "drain_seconds": 1,
            "approval_expiry_seconds": 4,
        },
        agent={
            "client": "tealagents.testing.plan_model:PlanModel",
            "model": "plan",
            "plugins": ["Work"],
        },
    )
    async with AsyncExitStack() as stack:
        env = {**place.env, "TA_PLUGIN_MODULE": str(PLUGINS)}
        services = [stack.enter_context(nursery.service(config, env)) for _ in range(2)]
        replicas = [service.url for service in services]
        operator = Operator(config, env, tmp_path / "config.yaml")
        http = await stack.enter_async_context(services[0].async_client("ada", timeout=PATIENCE))
        talkers = [Talker(notes, http, replicas, 1000 * SEED + n) for n in range(CLIENTS)]
        faults: Counter[str] = Counter()
        until = time.monotonic() + SECONDS

        async def talk(talker: Talker) -> None:
            while time.monotonic() < until and not notes.wrong:
                await talker.act()

        async with asyncio.TaskGroup() as group:
            for talker in talkers:
                group.create_task(talk(talker))
            for n, service in enumerate(services):
                rng = random.Random(1000 * SEED + 100 + n)
                group.create_task(torment(service, rng, faults, lambda: time.monotonic() < until))
            rng = random.Random(1000 * SEED + 300)
            group.create_task(tend(operator, rng, faults, notes, lambda: time.monotonic() < until))
            if place.proxy is not None:
                rng = random.Random(1000 * SEED + 200)
                group.create_task(strain(place.proxy, rng, faults, lambda: time.monotonic() < until))
        # the first list of tasks ends all that died on its page: that may take longer than a talker waits
        patient = await stack.enter_async_context(services[0].async_client("ada", timeout=60))
        await eventually(lambda: no_request_is_open(patient, replicas[0]), every=0.5)
        found = await findings(notes, patient, replicas)
    found += await left_over(notes, place.url)
    status, said = await operator.run("verify-audit")
    if status or "0 tasks with a bad one" not in said or "damaged" in said:
        found.append(f"the audits: {said}")
    print(f"\n{place.name}, {concurrency}, seed {SEED}: {dict(notes.done)}, faults {dict(faults)}")
    assert not found, f"seed {SEED}:\n" + "\n".join(found[:20])
    assert len(notes.requests) > SECONDS


async def torment(
    service: ForkedService, rng: random.Random, faults: "Counter[str]", during: Callable[[], bool]
) -> None:
    """Kills or drains the process and starts it again, or stops it beyond its lease; it runs in the end."""
    while during():
        await asyncio.sleep(rng.uniform(0.5, 4))
        kind = rng.choice(("kill", "drain", "stop"))
        faults[kind] += 1
        if kind == "stop":
            service.stop()
            await asyncio.sleep(rng.uniform(0.5, 3) * LEASE)
            service.cont()
            continue
        await asyncio.to_thread(service.kill if kind == "kill" else service.terminate)
        await asyncio.sleep(rng.uniform(0, 1.5))
        await asyncio.to_thread(started, service)


class Operator:
    """Runs `tealagents state …` beside the service."""

    def __init__(self, config: Mapping[str, Any], env: Mapping[str, str], file: Path) -> None:
        file.write_text(yaml.safe_dump(config))
        self._env = {**os.environ, **env, "TA_SERVICE_CONFIG": str(file)}

    async def run(self, *arguments: str) -> tuple[int | None, str]:
        """The exit status of a command, and all that it says."""
        command = (sys.executable, "-m", "tealagents", "state", *arguments)
        to = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdout=to, stderr=asyncio.subprocess.STDOUT, env=self._env
        )
        said, _ = await process.communicate()
        return process.returncode, said.decode()


async def tend(
    operator: Operator, rng: random.Random, faults: "Counter[str]", notes: Notes, during: Callable[[], bool]
) -> None:
    """Prunes now and then; without a store that is one line."""
    while during():
        await asyncio.sleep(rng.uniform(1, 5))
        status, said = await operator.run("prune")
        faults["prune" if status == 0 else "prune failed"] += 1
        if "Traceback" in said or "damaged" in said or (status and len(said.splitlines()) > 3):
            notes.wrong.append(f"prune said {said}")


async def strain(
    proxy: FaultProxy, rng: random.Random, faults: "Counter[str]", during: Callable[[], bool]
) -> None:
    """Breaks the connections to the store, or keeps its replies from all of them; in the end it is there."""
    while during():
        await asyncio.sleep(rng.uniform(0.5, 4))
        kind = rng.choice(("chaos", "reset", "mute", "away"))
        faults[kind] += 1
        if kind == "chaos":
            proxy.chaos(seed=rng.randrange(1 << 30), rate=0.02)
        elif kind == "mute":
            proxy.faults = Faults(drop_replies=True)
        else:
            proxy.faults = Faults(refuse=kind == "away")
            proxy.reset_all()
        await asyncio.sleep(rng.uniform(0.2, 2.5))
        proxy.calm()
        if kind == "mute":  # a connection that has lost a reply gets no other
            proxy.reset_all()


def started(service: ForkedService) -> None:
    for _ in range(20):  # the store may be away
        with suppress(RuntimeError):
            return service.start()
        time.sleep(0.25)
    return service.start()


async def no_request_is_open(http: httpx.AsyncClient, url: str) -> bool:
    """Whether every task has ended: pauses expire, and what a killed process ran is interrupted."""
    tasks = await everything(reader(http, url), "/tasks")
    return all(task["status"] in ENDED for task in tasks)
