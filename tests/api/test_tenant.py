"""What auditors see of their tenant: the tasks of all owners, page by page."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from wire import Json, problem, records, store_of, text

from tealagents.client import Client, InsufficientScope
from tealagents.domain import ids
from tealagents.domain.models import User
from tealagents.domain.ports import Commit, Put
from tealagents.testing.pytest_stores import DURABLE, Place
from tealagents.testing.service import ServiceThread, offline_service

PEOPLE = {"provider": "mock", "options": {"auditor_users": ["eye"]}}
OWNERS = [f"user-{n}" for n in range(9)]


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceThread]:
    """Nine users with one to three tasks each."""
    with offline_service(auth=PEOPLE) as (running, _):
        for n, owner in enumerate(OWNERS):
            with running.client(owner) as client:
                for m in range(n % 3 + 1):
                    body = text("hi", metadata={"team": "north" if m else "south", "n": m})
                    client.post("", json=body).raise_for_status()
        yield running


@pytest.fixture
def eye(service: ServiceThread) -> Iterator[httpx.Client]:
    with service.client("eye") as client:
        yield client


def pages(client: httpx.Client, limit: int, **query: str) -> list[Json]:
    found: list[Json] = []
    cursor: str | None = None
    while True:
        more = {"cursor": cursor} if cursor else {}
        answer = client.get("/tenant/tasks", params={"limit": limit, **query, **more})
        page = answer.raise_for_status().json()
        assert len(page["items"]) <= limit
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def own(service: ServiceThread, owner: str) -> list[Json]:
    with service.client(owner) as client:
        found: list[Json] = client.get("/tasks").json()["items"]
        return found


@pytest.mark.parametrize("place", DURABLE, indirect=True)
def test_every_store_lists_them(place: Place) -> None:
    """What is kept outside the process is listed as what is kept in it."""
    with offline_service(None, place.env, auth=PEOPLE) as (running, _), running.client("eye") as eye:
        for owner in OWNERS[:3]:
            with running.client(owner) as client:
                client.post("", json=text("hi", metadata={"team": "north"})).raise_for_status()
        in_order = sorted(OWNERS[:3], key=lambda owner: ids.owner_tag(User("mock", owner).key))
        assert pages(eye, 1, metadata="team:north") == [
            task for each in in_order for task in own(running, each)
        ]


@pytest.mark.parametrize("limit", [1, 2, 5, 200])
def test_pages_join_to_the_whole(service: ServiceThread, eye: httpx.Client, limit: int) -> None:
    """Owner by owner, of each what and as the owner lists it, whatever a page holds."""
    found = pages(eye, limit)
    in_order = sorted(OWNERS, key=lambda owner: ids.owner_tag(User("mock", owner).key))
    assert found == [task for owner in in_order for task in own(service, owner)]


def test_a_filter_leaves_out_what_does_not_match(service: ServiceThread, eye: httpx.Client) -> None:
    """By owner, by status, by a value of the metadata: a text as it is, any other as JSON."""
    everything = pages(eye, 200)
    for limit in (1, 200):
        assert pages(eye, limit, oid="user-5") == own(service, "user-5")
        assert pages(eye, limit, oid="nobody") == []
        assert pages(eye, limit, status="Failed") == []
        assert pages(eye, limit, status="Completed") == everything
        north = [task for task in everything if task["metadata"]["team"] == "north"]
        assert pages(eye, limit, metadata="team:north") == north
        assert pages(eye, limit, metadata="n:2") == [t for t in everything if t["metadata"]["n"] == 2]
        assert pages(eye, limit, metadata="other:north") == []


def test_a_page_costs_what_it_shows(
    service: ServiceThread, eye: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing writes nothing, and reads the indexes of the owners on the page only."""
    store = store_of(service)
    before = [records(store, f"Tester/user/mock.{owner}") for owner in OWNERS]
    seen: list[str] = []

    def noting(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        def noted(partition: str, *arguments: Any, **more: Any) -> Awaitable[Any]:
            seen.append(partition)
            return real(partition, *arguments, **more)

        return noted

    for name in ("read", "scan"):
        monkeypatch.setattr(store, name, noting(getattr(store, name)))
    shown = eye.get("/tenant/tasks", params={"limit": 2}).json()["items"]
    assert len(shown) == 2
    looked_at = {partition for partition in seen if "/user/" in partition}
    assert looked_at == {f"Tester/user/mock.{task['owner']['oid']}" for task in shown}
    monkeypatch.undo()
    assert [records(store, f"Tester/user/mock.{owner}") for owner in OWNERS] == before


@pytest.mark.parametrize("cursor", ["x", "0123456789ab", "0123456789ab.0/x", "0123456789ab.0/../..", ""])
def test_a_cursor_is_one_of_an_earlier_page(eye: httpx.Client, cursor: str) -> None:
    """Any other is refused, and named."""
    problem(eye.get("/tenant/tasks", params={"cursor": cursor}), 422, "invalid_request", "cursor")
    problem(eye.get("/tenant/tasks", params={"metadata": "team"}), 422, "invalid_request", "metadata")


def test_damage_of_one_owner_never_fails_the_list(service: ServiceThread, eye: httpx.Client) -> None:
    """In its place stands what is wrong; all others are there."""
    whole = pages(eye, 200)
    user = User("mock", "user-4")
    tag = ids.owner_tag(user.key)
    partition, key = f"Tester/owners/{tag[0]}", f"owner/{tag}"
    store = store_of(service)

    async def put(value: bytes) -> None:
        await store.commit(partition, Commit(operation=ids.operation_id(), put={key: Put(value)}))

    left = records(store, partition)[key].value
    asyncio.run(put(left[:-8]))
    try:
        for limit in (1, 200):
            found = pages(eye, limit)
            (damaged,) = [item for item in found if "task_id" not in item]
            assert damaged["error"]["code"] == "corrupt_state"
            assert [item for item in found if item != damaged] == [
                task for task in whole if task["owner"]["oid"] != "user-4"
            ]
    finally:
        asyncio.run(put(left))


def test_the_python_client_lists_them(service: ServiceThread) -> None:
    """For an auditor, filtered as over HTTP; for another caller the error says that the role is missing."""
    with Client(service.url, "eye") as eye:
        assert (eye.me().oid, eye.me().roles) == ("eye", ("auditor",))
        found = list(eye.tenant_tasks(oid="user-2", metadata="team:north"))
        assert [(task.owner, task.metadata["n"]) for task in found] == [("user-2", 2), ("user-2", 1)]
        assert list(eye.tenant_tasks(status="Failed")) == []
    with Client(service.url, "user-2") as other:
        assert other.me().roles == ()
        with pytest.raises(InsufficientScope):
            list(other.tenant_tasks())
