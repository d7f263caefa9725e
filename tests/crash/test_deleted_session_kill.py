"""`kill -9` after every await of a session's deletion, with a service beside it on the same store.

`tests/unit/test_deleted_sessions.py` does so within one process, with readers and writers at every await.
"""

import asyncio
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from test_kill_points import Json, World, entered, in_lanes, text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.history import everything, reader
from tealagents.testing.pytest_stores import Place

#: seconds within which what a killed process has left is erased: a sweep, its age, and a busy machine
ERASED_WITHIN = 60.0


class Doomed(NamedTuple):
    """A session with an answered task and a paused one."""

    user: str
    session_id: str
    requests: list[Json]

    @property
    def reads(self) -> list[str]:
        """All that can be read of it."""
        paths = [f"/sessions/{self.session_id}", f"/tasks?session_id={self.session_id}"]
        for request in self.requests:
            task = f"/tasks/{request['task_id']}"
            views = ("", "/messages", "/trace", "/checkpoints", "/audit")
            paths += [task + view for view in views] + [f"/requests/{request['request_id']}"]
        paths.append(f"/tasks/{self.requests[0]['task_id']}/export")
        return [*paths, f"/requests/{self.requests[0]['request_id']}/events"]


@pytest.mark.skipif(os.environ.get("THOROUGH") != "1", reason="only with THOROUGH=1, as in CI")
@pytest.mark.parametrize("place", ["sqlite", pytest.param("files", marks=pytest.mark.soak)], indirect=True)
async def test_killed_after_any_await_of_a_deletion(place: Place, nursery: Nursery, tmp_path: Path) -> None:
    """The session is whole, or gone for every reader and writer and erased by the process beside, which is
    not restarted. covers: STATE-2"""
    with OfflineModel() as model:
        world = World(place, nursery, model, tmp_path)
        async with entered(world.marker()) as beside:
            points = await points_of_a_deletion(world, beside, tmp_path)
            assert len(points) > 30
            killed = await in_lanes(killed_at(point, world, beside) for point in points)
            await asyncio.gather(
                *(erased(beside, session, point) for point, (session, _) in zip(points, killed, strict=True))
            )
        there = [whole for _, whole in killed]
        assert set(there) == {True, False}
        assert there == sorted(there, reverse=True)
    print(f"\n{place.name}: killed at {len(points)} points")


async def points_of_a_deletion(world: World, beside: ForkedService, folder: Path) -> list[str]:
    log = folder / "points"
    async with entered(world.mortal(KILL_LOG=str(log))) as service:
        session = await prepared(beside, "recorder")
        async with service.async_client(session.user) as client:
            (await client.delete(f"/sessions/{session.session_id}")).raise_for_status()
    return log.read_text().splitlines()


async def killed_at(point: str, world: World, beside: ForkedService) -> tuple[Doomed, bool]:
    """A session, and whether it is still there after a process died at this point of its deletion."""
    session = await prepared(beside, point.replace(" ", "-"))
    async with entered(world.mortal(KILL_AT=point)) as service:
        deletion = asyncio.create_task(deleted(service, session))
        async with beside.async_client(session.user) as client:
            await looks(client, session, deletion)
        await deletion
        assert await asyncio.to_thread(service.process.wait, 60) == -9, f"{point}\n{service.log()}"
    async with beside.async_client(session.user) as client:
        there = await is_there(client, session, point)
        answers = [await answered(client, session, request) for request in session.requests]
        assert answers == [there] * len(answers), point
        if there:
            (await client.delete(f"/sessions/{session.session_id}")).raise_for_status()
    return session, there


async def prepared(service: ForkedService, user: str) -> Doomed:
    session = str(uuid.uuid4())
    async with service.async_client(user) as client:
        requests = []
        for words in ("My name is Ada.", 'call Shell-delete {"path": "a"}'):
            answer = await client.post("", json=text(words, session_id=session))
            requests.append(answer.raise_for_status().json())
        assert [request["status"] for request in requests] == ["Completed", "Paused"]
    return Doomed(user, session, requests)


async def deleted(service: ForkedService, session: Doomed) -> None:
    async with service.async_client(session.user) as client:
        with suppress(httpx.TransportError):
            await client.delete(f"/sessions/{session.session_id}")


async def looks(client: httpx.AsyncClient, session: Doomed, deletion: asyncio.Task[None]) -> None:
    """Reads in turn while the deletion runs: once something of the session is gone, all of it is."""
    gone = False
    while not deletion.done():
        for path in session.reads:
            status = (await client.get(path)).status_code
            assert status in ((404,) if gone else (200, 404)), path
            gone = status == 404


async def is_there(client: httpx.AsyncClient, session: Doomed, point: str) -> bool:
    statuses = {path: (await client.get(path)).status_code for path in session.reads}
    assert set(statuses.values()) in ({200}, {404}), f"{point}: {statuses}"
    there = 200 in statuses.values()
    read = reader(client, "")
    for path in ("/sessions", "/tasks", "/approvals"):
        listed = await everything(read, path)
        assert (session.session_id in {each["session_id"] for each in listed}) == there, f"{point}: {path}"
    return there


async def answered(client: httpx.AsyncClient, session: Doomed, request: Json) -> bool:
    """Whether the task takes a message; one that is answered is in the history afterwards."""
    words = "And now?"
    answer = await client.post("", json=text(words, task_id=request["task_id"], supersede=True))
    assert answer.status_code in (200, 404), answer.text
    if answer.status_code == 200:
        messages = await everything(reader(client, ""), f"/tasks/{request['task_id']}/messages")
        assert words in [item["content"] for message in messages for item in message["items"]]
    return answer.status_code == 200


async def erased(service: ForkedService, session: Doomed, point: str) -> None:
    """The session's id is free as soon as nothing of it is left."""
    deadline = time.monotonic() + ERASED_WITHIN
    async with service.async_client(session.user) as client:
        while (await client.post("", json=text("Hi", session_id=session.session_id))).status_code == 404:
            assert time.monotonic() < deadline, f"{point}: not erased"
            await asyncio.sleep(0.2)
        tasks = await everything(reader(client, ""), "/tasks")
    assert len(tasks) == 1, f"{point}: {tasks}"
