"""A protocol of one's own is one folder and one entry in the table, and needs nothing of another."""

import ast
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import shouting
from talk import call, lines, working_service
from wire import Event, Json, events

from tealagents.api.protocols import PROTOCOLS
from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread

FOLDER = Path(shouting.__file__).parent

#: the most lines that a protocol may need
MOST_LINES = 150


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with pytest.MonkeyPatch.context() as table:
        table.setitem(PROTOCOLS, "shouting", ("/shouting", "shouting:build"))
        boss = {"provider": "mock", "options": {"approver_users": ["boss"]}}
        with working_service(protocols=["shouting"], auth=boss) as pair:
            yield pair


def shout(client: httpx.Client, words: str, **fields: str) -> Json:
    answer: Json = client.post("/shouting", json={"words": words, **fields}).raise_for_status().json()
    return answer


def aloud(client: httpx.Client, words: str) -> tuple[str, list[Event]]:
    """The id of a streamed answer, and its events."""
    answer = client.post("/shouting?aloud", json={"words": words}).raise_for_status()
    return answer.headers["shout-id"], list(events(answer.text))


def test_it_sends(ada: httpx.Client) -> None:
    """A message is answered, a second one continues the task, and v1alpha1 shows the same task."""
    first = shout(ada, "My name is Ada.")
    name, document = shout(ada, "What is my name?", talk=first["talk"])["last"]
    assert name == "PHEW"
    assert "ADA" in document["shout"]
    assert ada.get(f"/tasks/{first['talk']}").raise_for_status().json()["status"] == "Completed"


def test_it_streams(ada: httpx.Client) -> None:
    """A stream has the protocol's own events, and its deltas make the answer."""
    _, frames = aloud(ada, "echo one two three")
    assert [frames[0].name, frames[-1].name] == ["AHEM", "PHEW"]
    deltas = [event.data["shout"] for event in frames if event.name == "SHOUT"]
    assert len(deltas) == len(frames) - 2
    assert "".join(deltas) == frames[-1].data["shout"]


def test_it_replays(ada: httpx.Client) -> None:
    """From any event on the rest comes again as it was, and behind the last one nothing."""
    name, frames = aloud(ada, "echo one two three")
    for seen, event in enumerate(frames, start=1):
        again = ada.get(f"/shouting/{name}", headers={"last-event-id": str(event.number)})
        rest = [(each.number, each.name, each.data) for each in events(again.text)]
        assert rest == [(each.number, each.name, each.data) for each in frames[seen:]]
    assert again.status_code == 204


def test_it_decides(ada: httpx.Client, tmp_path: Path) -> None:
    """A pause is shown, and its approval runs the call once."""
    file = tmp_path / "written"
    waiting = shout(ada, call("Work-write", file=str(file), line="loud"))
    assert waiting["last"] == ["MAY-I", {"calls": ["Work-write"]}]
    assert lines(file) == []
    verdict = ada.post(f"/shouting/{waiting['id']}/verdict?aloud", json={"action": "approve"})
    frames = list(events(verdict.raise_for_status().text))
    assert frames[-1].name == "PHEW"
    assert lines(file) == ["loud"]


def test_an_approver_hears_only_that_it_has_ended(
    ada: httpx.Client, service: ServiceThread, tmp_path: Path
) -> None:
    """Of an answer in many pieces, of which nothing is shown."""
    waiting = shout(ada, call("Work-write", file=str(tmp_path / "written"), line="loud"))
    with service.client("boss") as boss:
        verdict = boss.post(f"/shouting/{waiting['id']}/verdict?aloud", json={"action": "approve"})
    frames = list(events(verdict.raise_for_status().text))
    assert [frame.name for frame in frames] == ["AHEM", "PHEW"]
    assert frames[-1].data == {"shout": ""}


def test_it_refuses_a_stranger(ada: httpx.Client, eve: httpx.Client, service: ServiceThread) -> None:
    """Another user finds nothing, neither to read nor to decide; without a token there is no answer."""
    name, _ = aloud(ada, "echo mine")
    for answer in (
        eve.get(f"/shouting/{name}"),
        eve.post(f"/shouting/{name}/verdict", json={"action": "approve"}),
    ):
        assert answer.status_code == 404
        assert answer.json()["ouch"] == "NOT_FOUND"
    with service.client(None) as nameless:
        answer = nameless.post("/shouting", json={"words": "hello"})
    assert answer.status_code == 401
    assert answer.json()["ouch"] == "UNAUTHENTICATED"
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_its_errors_are_its_own(ada: httpx.Client) -> None:
    """What is refused, and what is not there, has the form of the protocol."""
    assert ada.post("/shouting", json={"murmur": "hello"}).json()["ouch"] == "INVALID_REQUEST"
    assert ada.put("/shouting").json()["ouch"] == "METHOD_NOT_ALLOWED"
    assert ada.get("/shouting/no/such/place").json()["ouch"] == "NOT_FOUND"


def test_it_is_one_small_folder() -> None:
    """The protocol fits into 150 lines, and imports no other protocol."""
    sources = [path.read_text() for path in FOLDER.rglob("*.py")]
    assert sum(len(source.splitlines()) for source in sources) <= MOST_LINES
    imported = {
        f"{node.module}.{alias.name}"
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = [where.partition(":")[0] for _, where in PROTOCOLS.values()]
    others = tuple(module.rpartition(".")[0] for module in modules if module != "shouting")
    assert "tealagents.api.v1alpha1" in others
    assert not [name for name in imported if name.startswith(others)]
