"""The operator's commands, on what a running service has left behind."""

import asyncio
import errno
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner, Result
from wire import Json, problem, text

from tealagents.cli.main import command_line
from tealagents.domain import ids
from tealagents.domain.models import Caller, Head, User
from tealagents.domain.ports import Commit, Put
from tealagents.llm.offline import OfflineModel
from tealagents.state import codec, dump, keys
from tealagents.state.removal import PendingDeletion
from tealagents.stores import open_store
from tealagents.testing.faults import full_disk
from tealagents.testing.pytest_stores import DURABLE, Place
from tealagents.testing.service import ServiceThread, agent_config
from tealagents.testing.waits import until

PLUGINS = Path(__file__).parent / "custom_plugins.py"
#: what a message says that is stored out of line, and the answer that quotes it, too
LARGE = "word " * 60_000


class Domains:
    """An auth provider of one's own, whose tokens are `OID|TID`."""

    def __init__(self, options: object, clock: object) -> None: ...

    async def authenticate(self, token: str) -> Caller:
        oid, _, tid = token.partition("|")
        return Caller(User(tid, oid), token=token)

    def resource_metadata(self, resource: str) -> None:
        return None

    async def __aenter__(self) -> "Domains":
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class Agent:
    """One agent's config, on one store after the other: served, and looked at by commands."""

    def __init__(self, folder: Path, model: OfflineModel) -> None:
        self.folder = folder
        self._config = folder / "config.yaml"
        self.configure(agent={"plugins": ["Shell"]})
        (folder / "catalogue.json").write_text(json.dumps({"plugins": []}))
        self.env = {
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_AUTH": "mock",
            "TA_PLUGIN_MODULE": str(PLUGINS),
            "TA_PLUGIN_CATALOG_FILE": str(folder / "catalogue.json"),
            "TA_PERSISTENCE": self.url,
        }

    def configure(self, **spec: Any) -> None:
        self._config.write_text(yaml.safe_dump(agent_config(**spec)))

    @property
    def database(self) -> Path:
        return self.folder / "state.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}"

    def served(self, **env: str) -> ServiceThread:
        return ServiceThread(self._config, {**self.env, **env})

    def run(self, *arguments: str, **env: str) -> Result:
        variables = {**self.env, "TA_SERVICE_CONFIG": str(self._config), **env}
        cli = command_line("state", "migrate", "doctor")
        return CliRunner().invoke(cli, list(arguments), env=variables, catch_exceptions=False)

    def exported(self, name: str = "export", **env: str) -> bytes:
        file = self.folder / name
        file.unlink(missing_ok=True)
        result = self.run("state", "export", str(file), **env)
        assert result.exit_code == 0, result.output
        return file.read_bytes()

    def stats(self, **env: str) -> Json:
        result = self.run("state", "stats", "--json", **env)
        assert result.exit_code == 0, result.output
        found: Json = json.loads(result.stdout.splitlines()[0])
        return found


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with OfflineModel() as model:
        yield Agent(tmp_path, model)


def say(client: httpx.Client, words: str, key: str = "", **fields: Any) -> Json:
    headers = {"idempotency-key": key} if key else {}
    answer: Json = client.post("", json=text(words, **fields), headers=headers).raise_for_status().json()
    return answer


def life(client: httpx.Client) -> dict[str, Json]:
    """A bit of everything: turns, something large, a fork, a pause, a request that was canceled."""
    first = say(client, "My name is Ada.", key="first", metadata={"project": "x"})
    large = say(client, LARGE)
    say(client, "What is my name?", task_id=first["task_id"])
    fork = client.post(f"/tasks/{first['task_id']}/fork", json={}).raise_for_status().json()
    pause = say(client, 'call Shell-look {"path": "/x"}', key="paused")
    dropped = say(client, 'call Shell-look {"path": "/y"}')
    client.post(f"/requests/{dropped['request_id']}/cancel").raise_for_status()
    return {"first": first, "large": large, "fork": fork, "pause": pause, "dropped": dropped}


# --- moving -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", DURABLE, indirect=True)
def test_all_state_moves_to_any_store(agent: Agent, place: Place) -> None:
    """Exported again it is the same, byte for byte, and the task continues. covers: STATE-1, STATE-3"""
    with agent.served() as service, service.client("ada") as ada, service.client("eve") as eve:
        made, hers = life(ada), say(eve, "hello")
        before = ada.get(f"/tasks/{made['first']['task_id']}/messages").json()
    exported = agent.exported()
    there = {name: value for name, value in place.env.items() if name != "TA_AUTH"}
    result = agent.run("state", "import", str(agent.folder / "export"), **there)
    assert result.exit_code == 0, result.output
    assert agent.exported("again", **there) == exported
    assert agent.run("state", "verify-audit", **there).exit_code == 0
    with agent.served(**there) as service, service.client("ada") as ada, service.client("eve") as eve:
        assert ada.get(f"/tasks/{made['first']['task_id']}/messages").json() == before
        assert len(ada.get("/tasks").json()["items"]) == 5
        assert len(ada.get("/sessions").json()["items"]) == 4
        assert say(ada, "My name is Ada.", key="first", metadata={"project": "x"}) == made["first"]
        again = say(ada, "What is my name?", task_id=made["first"]["task_id"])
        assert "Ada" in again["content"]["output"]
        large = ada.get(f"/tasks/{made['large']['task_id']}/messages").json()["items"]
        assert large[0]["items"][0]["content"] == LARGE
        assert [pause["request_id"] for pause in ada.get("/approvals?status=pending").json()["items"]] == [
            made["pause"]["request_id"]
        ]
        decided = ada.post(f"/requests/{made['pause']['request_id']}/resume", json={"action": "approve"})
        assert decided.json()["status"] == "Completed"
        problem(ada.get(f"/tasks/{hers['task_id']}"), 401, "not_owner")
        assert say(eve, "hello again", task_id=hers["task_id"])["status"] == "Completed"


def test_an_import_can_be_repeated(agent: Agent) -> None:
    """What is there already is left alone; a dry run writes nothing."""
    with agent.served() as service, service.client() as client:
        life(client)
    file, lines = agent.folder / "export", agent.exported().count(b"\n") - 2
    there = {"TA_PERSISTENCE": f"file://{agent.folder}/moved"}
    dry = agent.run("state", "import", str(file), "--dry-run", **there)
    assert f"{lines} records would be written" in dry.output
    assert not (agent.folder / "moved").exists()
    half = agent.folder / "half"
    first = file.read_bytes().splitlines(keepends=True)[: lines // 2]
    half.write_bytes(b"".join([*first, b'{"records":%d}\n' % (lines // 2 - 1)]))
    assert agent.run("state", "import", str(half), **there).exit_code == 0
    whole = agent.run("state", "import", str(file), **there)
    assert f"{lines - (lines // 2 - 1)} records written, {lines // 2 - 1} already there" in whole.output
    assert agent.exported("again", **there) == file.read_bytes()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_an_export_is_imported_from_a_pipe(agent: Agent) -> None:
    """As `<(zcat …)` is in a shell: it is read once, and not from its beginning again."""
    with agent.served() as service, service.client() as client:
        say(client, "hello")
    exported = agent.exported()
    pipe = agent.folder / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(exported,), daemon=True)
    writer.start()
    there = {"TA_PERSISTENCE": f"sqlite:///{agent.folder}/moved.db"}
    result = agent.run("state", "import", str(pipe), **there)
    assert result.exit_code == 0, result.output
    assert agent.exported(**there) == exported


@pytest.mark.parametrize(
    "wrong",
    [
        "no export",
        "another agent",
        "changed",
        "cut",
        "cut between lines",
        "a line missing",
        "two exports",
        "not ours",
        "another state",
    ],
)
def test_an_import_that_cannot_be_is_refused_before_it_begins(agent: Agent, wrong: str) -> None:
    """The line is named, and the store is as it was. covers: STATE-4"""
    with agent.served() as service, service.client() as client:
        task = say(client, "hello there")["task_id"]
    lines = agent.exported().splitlines(keepends=True)
    there = {"TA_PERSISTENCE": f"file://{agent.folder}/moved"}
    assert agent.run("state", "import", str(agent.folder / "export"), **there).exit_code == 0
    if wrong == "no export":
        lines = [b"once upon a time\n"]
    elif wrong == "another agent":
        lines[0] = lines[0].replace(b"Tester", b"Other")
    elif wrong == "changed":
        lines[-3] = lines[-3].replace(b"Completed", b"Canceled")
    elif wrong == "cut":
        lines[-2:] = [lines[-2][:-20]]
    elif wrong == "cut between lines":
        lines = lines[:-1]
    elif wrong == "a line missing":
        lines = [*lines[:-2], lines[-1]]
    elif wrong == "two exports":
        lines += lines[1:]
    elif wrong == "not ours":
        lines[-2] = lines[-2].replace(b"Tester/user", b"Others/user")
    else:
        with agent.served(**there) as service, service.client() as client:
            say(client, "and on", task_id=task)
    (agent.folder / "wrong").write_bytes(b"".join(lines))
    before = agent.exported("before", **there)
    result = agent.run("state", "import", str(agent.folder / "wrong"), **there)
    assert result.exit_code == 2
    assert ("line " if wrong != "another state" else "already exists") in result.output
    assert agent.exported("after", **there) == before


def test_a_file_that_is_not_as_it_was_exported_is_to_be_exported_again(agent: Agent) -> None:
    """Cut within a line, between two, or changed: the store is not damaged, and no backup of it helps."""
    with agent.served() as service, service.client() as client:
        say(client, "hello there")
    lines = agent.exported().splitlines(keepends=True)
    changed = [line.replace(b"Completed", b"Canceled") for line in lines]
    wrong = {
        f"the export is incomplete: it ends within line {len(lines) - 1}": [*lines[:-2], lines[-2][:-20]],
        f"the export is incomplete: it ends within line {len(lines)}": [*lines[:-1], lines[-1][:-4]],
        f"the export is incomplete: it ends after line {len(lines) - 1}": lines[:-1],
        "does not match its checksum": changed,
    }
    for said, written in wrong.items():
        (agent.folder / "wrong").write_bytes(b"".join(written))
        refused = agent.run("state", "import", str(agent.folder / "wrong"), "--dry-run")
        assert refused.exit_code == 2
        assert f"{said}. Export again." in refused.stderr
        assert "backup" not in refused.stderr


@pytest.mark.parametrize(
    ("before", "now"),
    [("a key " * 8, ""), ("", "a key " * 8), ("a key " * 8, "another key " * 4)],
    ids=["without its key", "with a key", "with another key"],
)
def test_nothing_is_imported_beside_what_another_key_sealed(agent: Agent, before: str, now: str) -> None:
    """One store has one key: else a part of it could be read by no one."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, "hello")
    agent.exported()
    full = {"TA_PERSISTENCE": f"sqlite:///{agent.folder}/full.db"}
    with agent.served(**full, TA_ENCRYPTION_KEY=before) as service, service.client("eve") as eve:
        say(eve, "hello")
    refused = agent.run("state", "import", str(agent.folder / "export"), **full, TA_ENCRYPTION_KEY=now)
    assert (refused.exit_code, "TA_ENCRYPTION_" in refused.output or "state export" in refused.output) == (
        2,
        True,
    )
    assert agent.stats(**full, TA_ENCRYPTION_KEY=before)["users"] == 1
    taken = agent.run("state", "import", str(agent.folder / "export"), **full, TA_ENCRYPTION_KEY=before)
    assert taken.exit_code == 0
    assert agent.stats(**full, TA_ENCRYPTION_KEY=before)["users"] == 2


def test_what_is_damaged_is_moved_as_it_was_found(agent: Agent) -> None:
    """The export reports it; at its new place the task is as damaged as before. covers: STATE-4"""
    with agent.served() as service, service.client() as client:
        good, bad = say(client, "good")["task_id"], say(client, "bad")["task_id"]
    damage(agent.database, keys.log(bad, 1))
    result = agent.run("state", "export", str(agent.folder / "export"))
    assert result.exit_code == 1
    assert keys.log(bad, 1) in result.output.replace("\n", "")
    there = {"TA_PERSISTENCE": f"sqlite:///{agent.folder}/moved.db"}
    assert agent.run("state", "import", str(agent.folder / "export"), **there).exit_code == 0
    with agent.served(**there) as service, service.client() as client:
        problem(client.get(f"/tasks/{bad}/messages"), 500, "corrupt_state")
        assert client.get(f"/tasks/{good}/messages").status_code == 200
        assert len(client.get("/tasks").json()["items"]) == 2


def test_an_export_is_its_owners_alone_and_replaces_nothing(agent: Agent) -> None:
    """It holds what users said."""
    with agent.served():
        pass
    agent.exported()
    assert (agent.folder / "export").stat().st_mode & 0o777 == 0o600
    assert agent.run("state", "export", str(agent.folder / "export")).exit_code == 2


# --- pruning ----------------------------------------------------------------------------------------


def test_pruning_erases_what_is_expired_or_old(agent: Agent) -> None:
    """Only on request, and nothing that is paused; a dry run erases nothing. covers: STATE-2"""
    with agent.served() as service, service.client() as client:
        made = life(client)
        expired = made["first"]["task_id"]
        client.patch(f"/tasks/{expired}", json={"expires_at": "2020-01-01T00:00:00Z"}).raise_for_status()
    with agent.served() as service, service.client() as client:
        problem(client.get(f"/tasks/{expired}"), 404, "not_found")
    before = agent.exported()
    assert expired.encode() in before
    assert "1 task and 0 sessions would be erased" in agent.run("state", "prune", "--dry-run").output
    assert "0 sessions would be" in agent.run("state", "prune", "--older-than", "30d", "--dry-run").output
    assert agent.exported() == before
    assert "1 task and 0 sessions erased" in agent.run("state", "prune", "--older-than", "30d").output
    assert keys.task(expired).encode() not in agent.exported()
    dry = agent.run("state", "prune", "--older-than", "0s", "--dry-run").output
    wet = agent.run("state", "prune", "--older-than", "0s").output
    assert "3 tasks and 3 sessions erased" in wet
    assert dry.replace("would be erased", "erased") == wet
    assert "due, but kept while in use: 1 task" in wet
    assert agent.stats()["tasks"] == {"Paused": 1}


def test_pruning_spares_what_a_process_works_on(agent: Agent) -> None:
    """However old it is."""
    script = {"rules": [{"reply": {"text": "never", "headers_delay_ms": 600_000}}]}
    with (
        OfflineModel(script) as slow,
        agent.served(TA_BASE_URL=slow.base_url) as service,
        service.client() as client,
    ):
        sent = client.post("", json=text("hello"), headers={"prefer": "respond-async"}).json()
        result = agent.run("state", "prune", "--older-than", "0s")
        assert "0 tasks and 0 sessions erased" in result.output
        assert "due, but kept while in use: 1 task" in result.output
        canceled = client.post(f"/requests/{sent['request_id']}/cancel").json()
        assert canceled["status"] == "Canceled"
        assert "1 task and 1 session erased" in agent.run("state", "prune", "--older-than", "0s").output


def test_pruning_finishes_deletions_that_were_cut_short(agent: Agent) -> None:
    """A tombstone was put, and then the process died. covers: STATE-3"""
    with agent.served() as service, service.client() as client:
        task = say(client, "hello")["task_id"]
    asyncio.run(bury(agent.url, task))
    assert agent.stats()["pending_deletions"] == 1
    result = agent.run("state", "prune")
    assert "finished: 1 interrupted deletion" in result.output
    assert agent.stats()["pending_deletions"] == 0
    assert not [key for key, _ in rows(agent.database) if task in key]


@pytest.mark.parametrize("damaged", ["deleting", "lease", "deletion", "session's deletion"])
def test_one_damaged_record_does_not_keep_the_rest_from_being_pruned(agent: Agent, damaged: str) -> None:
    """A list of deleted sessions, a lease, a pending deletion: it is named. covers: STATE-4"""
    with agent.served() as service, service.client("ada") as ada, service.client("zoe") as zoe:
        hers, his = say(ada, "hello"), say(zoe, "hello")
        emptied = say(ada, "hello")["task_id"]
        ada.delete(f"/tasks/{emptied}").raise_for_status()  # its session stays
    places = {
        "deleting": (keys.user("Tester", "mock.ada"), keys.DELETING),
        "lease": (keys.workers("Tester"), keys.worker("dead")),
        "deletion": (keys.erasing("Tester"), f"{keys.task(str(uuid.uuid4()))}/"),
        "session's deletion": (keys.erasing("Tester"), f"{keys.SESSIONS}2026/{uuid.uuid4()}"),
    }
    if damaged == "lease":
        running = {"request_id": hers["request_id"], "worker_id": "dead", "first_seq": 1}
        asyncio.run(change(agent.url, "mock.ada", keys.task(hers["task_id"]), running=running))
    # one is whole, but says something else
    wrong, said = b'{"half', "does not have the form"
    if damaged == "session's deletion":
        wrong, said = codec.seal(*places[damaged], {"owner": 1}), "is not a valid PendingSessionDeletion"
    asyncio.run(put(agent.url, *places[damaged], wrong))
    result = agent.run("state", "prune", "--older-than", "0s")
    assert result.exit_code == 1
    assert result.output.count("! Tester/") == 1
    assert f"'{places[damaged][1]}' {said}" in result.output.replace("\n", "")
    left = {key for name, _ in rows(agent.database) if (key := name.split()[1]).startswith("task/")}
    assert keys.task(his["task_id"]) not in left
    assert (keys.task(hers["task_id"]) in left) is (damaged == "lease")  # its process may yet write it again


@pytest.mark.parametrize(
    "age", ["30", "d", "-3d", "1.5h", "30y", "200000w", "9999999999999999w", "9" * 5000 + "d"]
)
def test_a_duration_that_is_none_is_refused(agent: Agent, age: str) -> None:
    """With what it should look like, or because the calendar does not go back as far."""
    agent.run("migrate")
    assert agent.run("state", "prune", f"--older-than={age}").exit_code == 2


def test_months_are_not_taken_for_minutes(agent: Agent) -> None:
    """Nothing is erased by a unit that can be misunderstood; the error names those that there are."""
    with agent.served() as service, service.client() as client:
        task = say(client, "hello")["task_id"]
    old = "2026-01-01T00:00:00.000000Z"
    asyncio.run(change(agent.url, "mock.ada", keys.task(task), updated_at=old))
    result = agent.run("state", "prune", "--older-than", "6m")
    assert result.exit_code == 2
    assert "s, h, d, w" in result.output
    assert agent.stats()["tasks"] == {"Completed": 1}


# --- one user ---------------------------------------------------------------------------------------


def test_nothing_of_a_deleted_user_is_left(agent: Agent) -> None:
    """No record, no index, no mention; other users keep everything. covers: STATE-2"""
    with agent.served() as service, service.client("ada") as ada, service.client("eve") as eve:
        life(ada)
        say(ada, "in my own session", session_id="6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f")
        hers = say(eve, "hello")
    assert any("ada" in key or b"ada" in value for key, value in rows(agent.database))
    dry = agent.run("state", "delete-user", "mock.ada", "--dry-run")
    assert "would be erased" in dry.output
    assert agent.stats()["users"] == 2
    assert agent.run("state", "delete-user", "mock.ada", "--yes").exit_code == 0
    assert not [key for key, value in rows(agent.database) if ".ada" in key or b'"ada"' in value]
    with agent.served() as service, service.client("ada") as ada, service.client("eve") as eve:
        assert ada.get("/tasks").json()["items"] == []
        assert say(eve, "still here", task_id=hers["task_id"])["status"] == "Completed"
        answer = say(eve, "hello", session_id="6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f")
        assert answer["status"] == "Completed"


def test_memories_that_mem0_keeps_are_not_promised_to_be_erased(agent: Agent) -> None:
    """They stay there, and would be used again: the command says so, and under which id they are."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, "hello")
    warning = "Mem0 keeps memories of its own"
    assert warning not in agent.run("state", "delete-user", "mock.ada", "--dry-run").output
    agent.configure(thread={"context_providers": [{"name": "mem0"}]})
    for user, name in (("mock.ada", "'mock.ada'"), ("mock.a lovelace", "'%mock.a%20lovelace'")):
        for option in ("--dry-run", "--yes", "--yes"):  # of a user who is erased here they may be there yet
            there = agent.stats()["users"] == 1
            result = agent.run("state", "delete-user", user, option)
            assert result.exit_code == (0 if there and user == "mock.ada" else 1)
            said = " ".join(result.output.split())
            assert warning in said
            assert name in said


def test_a_user_is_deleted_beside_a_running_service(agent: Agent) -> None:
    """What the user wrote can be read in no file of the state any more, though the service has it open."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, "the planted secret")
        assert agent.run("state", "delete-user", "mock.ada", "--yes").exit_code == 0
        files = list(agent.database.parent.glob(agent.database.name + "*"))
        assert len(files) > 1
        assert not [path.name for path in files if b"the planted secret" in path.read_bytes()]


def test_what_is_only_tried_makes_no_store(agent: Agent) -> None:
    """Nor does a file that is not there: a mistyped TA_PERSISTENCE would have a store from then on."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, "hello")
    (agent.folder / "export").write_bytes(agent.exported())
    elsewhere = agent.folder / "elsewhere.db"
    there = {"TA_PERSISTENCE": f"sqlite:///{elsewhere}"}
    tried = agent.run("state", "import", str(agent.folder / "export"), "--dry-run", **there)
    assert tried.exit_code == 0
    assert "records would be written, 0 already there" in tried.output
    missing = agent.run("state", "import", str(agent.folder / "nowhere"), **there)
    assert missing.exit_code == 2
    assert not elsewhere.exists()
    assert "There is no store" in agent.run("state", "stats", **there).output


def test_a_store_without_the_agent_that_is_asked_for_is_not_called_sound(agent: Agent) -> None:
    """A scheduled check whose config has a mistyped name would report for ever that all is well."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, "hello")
    for command in (["stats"], ["verify-audit"], ["export", str(agent.folder / "export")]):
        assert "no tasks" not in agent.run("state", *command).output
    agent.configure(name="Testre")
    for command in (["stats"], ["verify-audit"], ["export", str(agent.folder / "nothing")]):
        result = agent.run("state", *command)
        assert result.exit_code == 0
        assert "This store has no tasks of an agent 'Testre'." in result.stderr


def test_nothing_found_for_an_agent_without_users_is_not_put_down_to_the_user_alone(agent: Agent) -> None:
    """With a mistyped name, or on another store, `prune` finds nothing due, and no user is found: a user
    would be believed to be erased. A user who is not found among others is no reason to doubt the name."""
    with agent.served() as service, service.client("ada") as ada:
        hers = say(ada, "hello")["task_id"]
    commands = (["prune"], ["delete-user", "mock.eve", "--yes"], ["owner", str(uuid.uuid4())])
    for command in commands:
        assert "no users" not in agent.run("state", *command).output
    agent.configure(name="Testre")
    for command in (["prune"], ["delete-user", "mock.ada", "--yes"], ["owner", hers]):
        result = agent.run("state", *command)
        assert "This store has no users of an agent 'Testre'. Check the agent's name" in result.stderr
        assert result.exit_code == {"prune": 0, "delete-user": 1, "owner": 2}[command[0]]


def test_only_an_import_that_is_written_makes_a_store_and_says_so(agent: Agent) -> None:
    """One that is refused leaves none behind, which the next start would take for the one that was meant."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, "hello")
    agent.exported()
    (agent.folder / "wrong").write_bytes(b"once upon a time\n")
    elsewhere = agent.folder / "elsewhere.db"
    there = {"TA_PERSISTENCE": f"sqlite:///{elsewhere}"}
    refused = agent.run("state", "import", str(agent.folder / "wrong"), **there)
    assert refused.exit_code == 2
    assert "line 1" in refused.output
    assert not elsewhere.exists()
    warning = f"There was no store at {elsewhere}: a new one was created."
    for warned in (True, False):
        done = agent.run("state", "import", str(agent.folder / "export"), **there)
        assert done.exit_code == 0
        assert (warning in " ".join(done.output.split())) is warned


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_export_that_a_signal_ends_leaves_no_file(agent: Agent, number: signal.Signals) -> None:
    """What users said does not lie about under a name that no one knows."""
    with agent.served() as service, service.client("ada") as ada:
        for _ in range(40):
            say(ada, "x" * 20_000)
    with subprocess.Popen(
        [sys.executable, "-m", "tealagents", "state", "export", str(agent.folder / "out.jsonl")],
        env={**os.environ, **agent.env, "TA_SERVICE_CONFIG": str(agent.folder / "config.yaml")},
        stderr=subprocess.PIPE,
    ) as process:
        until(lambda: process.poll() is not None or [*agent.folder.glob(".out.jsonl.*")])
        process.send_signal(number)
        process.communicate(timeout=60)
    assert not [*agent.folder.glob(".out.jsonl.*")]


def test_a_user_is_not_deleted_without_being_asked(agent: Agent) -> None:
    """It cannot be undone."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, "hello")
    assert agent.run("state", "delete-user", "mock.ada").exit_code == 1
    assert agent.stats()["users"] == 1
    unclear = agent.run("state", "delete-user", "ada", "--yes")
    assert unclear.exit_code == 2
    assert "is not a tenant and an object id" in unclear.output


@pytest.mark.parametrize("user", ["MOCK.ADA", "mock.eve"])
def test_a_user_of_whom_nothing_is_stored_is_not_reported_as_erased(agent: Agent, user: str) -> None:
    """Not where the id is mistyped, and not where another deletion was first; it can be repeated."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, "hello")
    for option in ("--dry-run", "--yes"):
        result = agent.run("state", "delete-user", user, option)
        assert result.exit_code == 1
        assert f"nothing is stored for {user}" in result.output
        assert "erased" not in result.output
    erased = agent.run("state", "delete-user", "mock.ada", "--yes")
    assert erased.exit_code == 0
    assert "mock.ada (tenant 'mock', object id 'ada') is erased" in erased.output
    again = agent.run("state", "delete-user", "mock.ada", "--yes")
    assert again.exit_code == 1
    assert "nothing is stored for mock.ada" in again.output


def test_a_user_of_whom_all_was_pruned_is_still_erased(agent: Agent) -> None:
    """That there was such a user is a record, too."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, "hello")
    assert "1 task and 1 session erased" in agent.run("state", "prune", "--older-than", "0s").output
    assert agent.stats()["users"] == 1
    for option, said in (("--dry-run", "1 record of mock.ada"), ("--yes", "'ada') is erased")):
        result = agent.run("state", "delete-user", "mock.ada", option)
        assert result.exit_code == 0, result.output
        assert said in result.output
    assert agent.stats()["users"] == 0
    assert agent.run("state", "delete-user", "mock.ada", "--yes").exit_code == 1


@pytest.mark.parametrize(
    ("tid", "oid", "printed"),
    [
        ("", "alice", ".alice"),
        ("", "alice@corp.example", ".alice@corp.example"),
        ("corp.example", "alice", "corp~1example.alice"),
        ("corp~example", ".alice.", "corp~0example..alice."),
    ],
)
@pytest.mark.parametrize("plainly", [False, True])
def test_a_user_of_any_tenant_is_deleted(
    agent: Agent, tid: str, oid: str, printed: str, plainly: bool
) -> None:
    """One of none, too: by what `state owner` prints, or by both ids as they are. Exports have such users.

    covers: STATE-2
    """
    with agent.served(TA_AUTH=f"{__name__}:Domains") as service, service.client(f"{oid}|{tid}") as client:
        said = say(client, "the planted secret", session_id=str(uuid.uuid4()))
        with service.client("eve|elsewhere") as eve:
            say(eve, "hello")
    assert agent.run("state", "owner", said["session_id"]).stdout == f"{printed}\n"
    exported = agent.exported()
    there = {"TA_PERSISTENCE": f"file://{agent.folder / 'files'}"}
    assert agent.run("state", "import", str(agent.folder / "export"), **there).exit_code == 0
    assert agent.exported("again", **there) == exported
    named = [f"--tid={tid}", f"--oid={oid}"] if plainly else [printed]
    for place in ({}, there):
        assert agent.stats(**place)["users"] == 2
        dry = agent.run("state", "delete-user", *named, "--dry-run", **place)
        assert dry.exit_code == 0
        assert f"of {printed} (tenant {tid!r}, object id {oid!r}) would be erased" in dry.output
        assert agent.run("state", "delete-user", *named, "--yes", **place).exit_code == 0
        assert agent.stats(**place)["users"] == 1
        assert agent.run("state", "owner", said["session_id"], **place).exit_code == 2
        assert b"the planted secret" not in agent.exported(**place)
        assert agent.run("state", "delete-user", *named, "--yes", **place).exit_code == 1


def test_no_user_is_erased_for_another_whose_tenant_has_dots(agent: Agent) -> None:
    """What can be read as either of two users is refused, whether or not both are there."""
    with agent.served(TA_AUTH=f"{__name__}:Domains") as service:
        for token in ("example.alice|corp", "alice|corp.example", "alice|other.example"):
            with service.client(token) as client:
                say(client, "hello")
    for typed, other in (("corp.example.alice", "corp~1example"), ("other.example.alice", "other~1example")):
        result = agent.run("state", "delete-user", typed, "--yes")
        assert result.exit_code == 2
        assert f"may also mean {other}.alice" in " ".join(result.output.split())
    assert agent.stats()["users"] == 3
    for tid, oid in (("corp.example", "alice"), ("corp", "example.alice"), ("other.example", "alice")):
        assert agent.run("state", "delete-user", "--tid", tid, "--oid", oid, "--yes").exit_code == 0
    assert agent.stats()["users"] == 0


@pytest.mark.parametrize(
    "named",
    [
        [],
        ["--oid=ada"],
        ["--tid=mock"],
        ["--tid=mock", "--oid="],
        ["mock.ada", "--oid=ada"],
        ["mock."],
        ["."],
        ["mock.\udcff"],
        ["--tid=\udcff", "--oid=ada"],
    ],
)
def test_a_user_who_is_half_named_is_asked_for(agent: Agent, named: list[str]) -> None:
    """Nothing is added to what was typed."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, "hello")
    refused = agent.run("state", "delete-user", *named, "--yes")
    assert refused.exit_code == 2
    assert ("--oid is empty" in refused.output) is ("--oid=" in named)
    assert agent.stats()["users"] == 1


# --- verifying, counting, migrating -----------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "an audit key of some length"], ids=["without a key", "with a key"])
def test_a_bad_entry_is_named(agent: Agent, key: str) -> None:
    """By its task and its number; exit status 1. covers: TASK-8"""
    if key:
        agent.env["TA_AUDIT_KEY"] = key
    with agent.served() as service, service.client() as client:
        good, bad = say(client, "good")["task_id"], say(client, "bad")["task_id"]
        say(client, "more", task_id=bad)
    assert agent.run("state", "verify-audit").exit_code == 0
    drop(agent.database, sorted(key for key, _ in rows(agent.database) if f"log/{bad}/" in key)[-1])
    result = agent.run("state", "verify-audit")
    assert result.exit_code == 1
    assert f"task {bad}, entry 6: is missing" in result.output
    assert good not in result.output
    assert agent.run("state", "verify-audit", good).exit_code == 0
    assert agent.run("state", "verify-audit", bad.upper()).exit_code == 1
    assert agent.run("state", "verify-audit", "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f").exit_code == 2
    weak = agent.run("state", "verify-audit", TA_AUDIT_KEY="short")
    assert (weak.exit_code, "TA_AUDIT_KEY is shorter than 16 characters" in weak.output) == (2, True)
    if key:
        for other, said in (("another key of some length", False), ("", True)):
            result = agent.run("state", "verify-audit", good, TA_AUDIT_KEY=other)
            assert result.exit_code == 1
            assert ("TA_AUDIT_KEY is not set" in result.output) is said


@pytest.mark.parametrize("key", ["", "an audit key of some length"], ids=["without a key", "with a key"])
def test_audits_of_which_no_entry_is_good_are_suspected_of_another_key(agent: Agent, key: str) -> None:
    """A changed TA_AUDIT_KEY makes every audit look forged; one bad one among good ones does not."""
    agent.env |= {"TA_AUDIT_KEY": key} if key else {}
    with agent.served() as service, service.client() as client:
        for words in ("hello", "hello again"):
            bad = say(client, words)["task_id"]
    suspicion = "TA_AUDIT_KEY may not be the one"
    other = agent.run("state", "verify-audit", TA_AUDIT_KEY="another key of some length")
    assert (other.exit_code, suspicion in other.output) == (1, True)
    drop(agent.database, sorted(key for key, _ in rows(agent.database) if f"log/{bad}/" in key)[-1])
    forged = agent.run("state", "verify-audit")
    assert (forged.exit_code, suspicion in forged.output) == (1, False)


def test_damage_that_may_hide_a_task_is_shown_with_what_is_found(agent: Agent) -> None:
    """The record of its owner: no one's tasks are found without it. covers: STATE-4"""
    with agent.served() as service, service.client() as client:
        task = say(client, "hello")["task_id"]
    [name] = [name for name, _ in rows(agent.database) if " owner/" in name]
    partition, key = name.split()
    asyncio.run(put(agent.url, partition, key, b'{"half'))
    result = agent.run("state", "verify-audit", task)
    assert result.exit_code == 2
    assert f"'{key}' does not have the form" in result.output.replace("\n", "")
    assert "in the records that can be read" in result.output.replace("\n", " ")


def test_what_there_is_is_counted(agent: Agent) -> None:
    """For a person, and as JSON for machines."""
    with agent.served() as service, service.client("ada") as ada, service.client("eve") as eve:
        life(ada)
        say(eve, "hello")
        found = agent.stats()
        assert found["live_processes"] == 1
    assert found["users"] == 2
    assert found["sessions"] == 5
    assert found["tasks"] == {"Canceled": 1, "Completed": 4, "Paused": 1}
    assert found["damaged_records"] == 0
    assert agent.stats()["live_processes"] == 0
    assert "4 Completed" in agent.run("state", "stats").output


def test_state_in_memory_cannot_be_looked_at(agent: Agent) -> None:
    """It is in another process, or nowhere."""
    result = agent.run("state", "stats", TA_PERSISTENCE="memory://")
    assert result.exit_code == 2
    assert "TA_PERSISTENCE" in result.output


def test_an_agent_of_the_earlier_platform_has_no_state_to_look_at(agent: Agent) -> None:
    """The advice is not to set TA_PERSISTENCE, which has no effect there."""
    file = agent.folder / "earlier.yaml"
    file.write_text(
        "apiVersion: skagents/v1\nkind: Sequential\nservice_name: Old\nversion: 1\ninput_type: BaseInput\n"
        "spec:\n  agents: [{name: first, model: offline, system_prompt: Be brief.}]\n"
        "  tasks: [{name: greet, task_no: 1, instructions: hello, agent: first}]\n"
    )
    result = agent.run("state", "stats", "--config", str(file))
    assert result.exit_code == 2
    assert "keeps no state" in result.output.replace("\n", " ")
    assert "TA_PERSISTENCE" not in result.output


@pytest.mark.parametrize("command", ["stats", "export", "prune", "verify-audit"])
@pytest.mark.parametrize("scheme", ["sqlite:///", "file://"])
def test_a_mistyped_path_is_no_empty_store(agent: Agent, scheme: str, command: str) -> None:
    """It is named, and nothing is made there."""
    there = agent.folder / "typo"
    arguments = ["-"] if command == "export" else []
    result = agent.run("state", command, *arguments, TA_PERSISTENCE=f"{scheme}{there}")
    assert result.exit_code == 2
    assert f"There is no store at {there}: check TA_PERSISTENCE or spec.persistence." in result.output
    assert not there.exists()


@pytest.mark.parametrize("name", ["of another application", "empty", "folder"])
def test_a_file_or_folder_of_another_application_is_no_empty_store(agent: Agent, name: str) -> None:
    """It is named, no user is said to be erased from it, and nothing is written to it."""
    there = agent.folder / name
    if name == "folder":
        there.mkdir()
    else:
        there.touch()
    if name == "of another application":
        with closing(sqlite3.connect(there)) as connection:
            connection.execute("CREATE TABLE schema_version (a)")
    before = there.read_bytes() if there.is_file() else None
    url = f"file://{there}" if before is None else f"sqlite:///{there}"
    examined = agent.run("doctor", TA_PERSISTENCE=url)
    if name == "of another application":  # which `serve` refuses
        assert examined.exit_code == 1
        assert f"the store cannot be created: {there} is the database of another" in examined.output
    else:
        assert examined.exit_code == 0  # as before the first start
    for command in (["stats"], ["delete-user", "t.ada", "--yes"]):
        result = agent.run("state", *command, TA_PERSISTENCE=url)
        assert result.exit_code == 2
        assert f"There is no store at {there}: check TA_PERSISTENCE or spec.persistence." in result.output
    assert (there.read_bytes() if there.is_file() else None) == before
    assert not there.is_dir() or list(there.iterdir()) == []


@pytest.mark.parametrize("place", ["postgres", "dynamodb"], indirect=True)
def test_a_mistyped_schema_or_table_is_no_empty_store(agent: Agent, place: Place) -> None:
    """It is named, and nothing is made there: the next command does not find it either."""
    there = {name: value for name, value in place.env.items() if name != "TA_AUTH"}
    for command in (
        ["state", "stats"],
        ["state", "delete-user", "t.ada", "--yes"],
        ["state", "stats"],
    ):
        assert agent.run("doctor", **there).exit_code == 0  # as before the first start, which will make it
        result = agent.run(*command, **there)
        assert result.exit_code == 2, result.output
        assert "There is no store at" in result.output
        assert re.findall("t[0-9a-f]{16}", place.url)[0] in result.output
    with agent.served(**there):
        pass
    assert agent.stats(**there)["users"] == 0
    assert agent.run("doctor", **there).exit_code == 0


def test_without_its_key_a_store_is_not_counted_as_damaged(agent: Agent) -> None:
    """The key is asked for: nothing has to be restored."""
    with agent.served(TA_ENCRYPTION_KEY="first-key-" * 5) as service, service.client() as client:
        say(client, "hello")
    result = agent.run("state", "stats")
    assert result.exit_code == 2
    assert "TA_ENCRYPTION_KEY is not the key of this store" in result.output
    assert agent.stats(TA_ENCRYPTION_KEY="first-key-" * 5)["damaged_records"] == 0


def test_why_a_sealed_record_does_not_open_is_said_as_by_the_service(agent: Agent) -> None:
    """With the right key, which opens everything else: the key is not to blame."""
    sealed = {"TA_ENCRYPTION_KEY": "first-key-" * 5}
    with agent.served(**sealed) as service, service.client() as client:
        bad = say(client, "bad")["task_id"]
        say(client, "good")
    with closing(sqlite3.connect(agent.database)) as connection, connection:
        at = "FROM records WHERE key = ?", (keys.task(bad),)
        [(value,)] = connection.execute(f"SELECT value {at[0]}", at[1])
        changed = value[:-1] + bytes([value[-1] ^ 1])
        connection.execute("UPDATE records SET value = ? WHERE key = ?", (changed, *at[1]))
    why = f"{keys.task(bad)!r} does not open: it was changed, or moved"
    for command in ("stats", "prune"):
        result = agent.run("state", command, **sealed)
        assert result.exit_code == 1
        assert why in " ".join(result.output.split())
        assert "ENCRYPTION_KEY" not in result.output
    doctor = agent.run("doctor", **sealed).output
    assert why in " ".join(doctor.split())
    assert "→ Restore a backup" in doctor
    assert "_KEY was changed" not in doctor
    exported = agent.run("state", "export", str(agent.folder / "export"), **sealed)
    assert keys.task(bad) in exported.output.replace("\n", "")


def test_an_export_appears_also_where_there_are_no_hard_links(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on exFAT and many network drives; what appears there meanwhile is not overwritten either."""
    agent.run("migrate")
    exported = agent.exported("linked")

    def refuse(source: Path, _: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(source))

    monkeypatch.setattr(os, "link", refuse)
    assert agent.exported("copied") == exported
    assert (agent.folder / "copied").stat().st_mode & 0o777 == 0o600

    def late(source: Path, target: Path) -> None:
        target.write_text("of another")
        refuse(source, target)

    monkeypatch.setattr(os, "link", late)
    file = agent.folder / "taken"
    result = agent.run("state", "export", str(file))
    assert result.exit_code == 2
    assert f"{file}: file exists" in result.output
    assert file.read_text() == "of another"
    assert not list(agent.folder.glob(".taken*"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "missing.jsonl"], "missing.jsonl: no such file or directory"),
        (["export", "/dev/null/export"], "/dev/null/export: cannot be written: not a directory"),
        (["export", "x" * 300], "cannot be written: file name too long"),
    ],
)
def test_a_file_that_cannot_be_had_is_reported_in_a_line(
    agent: Agent, arguments: list[str], said: str
) -> None:
    """With its name as it was given."""
    with agent.served():
        pass
    result = agent.run("state", *arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert "Errno" not in result.output


def test_an_export_for_which_there_is_no_room_is_reported_in_a_line(agent: Agent) -> None:
    """With its name, and without a part of it left."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, LARGE)
    file = agent.folder / "export"
    with full_disk(100_000):
        result = agent.run("state", "export", str(file))
    assert result.exit_code == 2
    assert f"{file}: cannot be written: file too large" in result.output
    assert not [each for each in agent.folder.iterdir() if "export" in each.name]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("command", ["export", "import"])
def test_a_full_temporary_folder_is_not_reported_as_the_file_that_was_named(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A large task is held there before it is exported, and a pipe is copied there before it is imported."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, LARGE)
    file = agent.folder / "pipe"
    if command == "import":
        exported = agent.exported()
        os.mkfifo(file)

        def feed() -> None:
            with suppress(BrokenPipeError):  # the command gives up in the middle
                file.write_bytes(exported)

        threading.Thread(target=feed, daemon=True).start()
    monkeypatch.setattr(dump, "IN_MEMORY", 1000)
    with full_disk(100_000):
        result = agent.run("state", command, str(file))
    assert result.exit_code == 2
    folder = tempfile.gettempdir()
    assert f"No temporary file can be written in {folder}: File too large. Set TMPDIR" in result.output
    assert str(file) not in result.output


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["import", "-"], "there is nothing to import: standard input is closed"),
        (["delete-user", "mock.ada"], "standard input is closed, so nothing can be confirmed: give --yes"),
    ],
    ids=["import", "delete-user"],
)
def test_a_closed_input_is_reported_in_a_line(agent: Agent, command: list[str], said: str) -> None:
    """There is none to read from."""
    with agent.served() as service, service.client("ada") as ada:
        say(ada, "hello")
    program = str(Path(sys.executable).with_name("tealagents"))
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", program, "state", *command]
    env = {**os.environ, **agent.env, "TA_SERVICE_CONFIG": str(agent.folder / "config.yaml")}
    ended = subprocess.run(closed, env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == f"✗ {said}"
    assert "Traceback" not in ended.stderr
    assert agent.stats()["users"] == 1


def test_an_import_looks_at_its_config_before_it_reads_its_input(agent: Agent) -> None:
    """A large input is not copied for nothing."""
    with subprocess.Popen(
        [sys.executable, "-m", "tealagents", "state", "import", "-", "--config", "none.yaml"],
        env={**os.environ, **agent.env},
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.wait(60) == 2
        finally:
            process.kill()


def test_an_import_that_waits_for_its_input_ends_at_ctrl_c(agent: Agent) -> None:
    """A reader that blocks within the event loop would not."""
    with subprocess.Popen(
        [sys.executable, "-m", "tealagents", "state", "import", "-"],
        env={**os.environ, **agent.env, "TA_SERVICE_CONFIG": str(agent.folder / "config.yaml")},
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(bytes(1 << 20))  # more than a pipe holds: it is being read
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 128 + signal.SIGINT
        finally:
            process.kill()
    assert not agent.database.exists()


def test_a_store_is_migrated(agent: Agent) -> None:
    """A new one is made, one that is up to date stays, and one without tables needs nothing."""
    assert "applied" in agent.run("migrate").output
    assert agent.run("migrate").output == "sqlite is up to date\n"
    assert "nothing to migrate" in agent.run("migrate", TA_PERSISTENCE=f"file://{agent.folder}/f").output


def test_migrating_a_store_of_a_later_version_is_refused(agent: Agent) -> None:
    """It is not called up to date: no other command, nor the service, would open it."""
    agent.run("migrate")
    with closing(sqlite3.connect(agent.database)) as connection, connection:
        connection.execute("INSERT INTO schema_version VALUES (2, '0002_future', 'then')")
    result = agent.run("migrate")
    assert result.exit_code == 2
    refusal = "is at 2, this version knows 1: run the version that migrated it"
    assert refusal in " ".join(result.output.split())


def test_migrating_no_store_says_that_a_new_one_was_made(agent: Agent) -> None:
    """A mistyped name is noticed: the store that was meant is not migrated."""
    url = f"sqlite:///{agent.folder}/mistyped.db"
    warning = f"There was no store at {agent.folder}/mistyped.db: a new one was created. "
    warning += "Check TA_PERSISTENCE or spec.persistence."
    assert warning in " ".join(agent.run("migrate", TA_PERSISTENCE=url).output.split())
    assert agent.run("migrate", TA_PERSISTENCE=url).output == "sqlite is up to date\n"


def test_migrating_leaves_the_database_of_another_application_as_it_is(agent: Agent) -> None:
    """No store is made in it, and it is named."""
    file = agent.folder / "customers.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE customers (name)")
    before = file.read_bytes()
    result = agent.run("migrate", TA_PERSISTENCE=f"sqlite:///{file}")
    assert result.exit_code == 2
    assert f"{file} is the database of another application" in " ".join(result.output.split())
    assert file.read_bytes() == before


@pytest.mark.parametrize("persistence", ["sqlite:///${PLACE}", "${PLACE}"])
def test_migrating_needs_no_variable_but_that_of_the_store(agent: Agent, persistence: str) -> None:
    """A job that migrates has none of the secrets with which the service calls its tools."""
    servers = [{"name": "far", "url": "${FAR_URL}", "headers": {"Authorization": "Bearer ${FAR}"}}]
    agent.configure(persistence=persistence, agent={"mcp_servers": servers})
    assert "applied" in agent.run("migrate").output
    refused = agent.run("migrate", TA_PERSISTENCE="")
    assert refused.exit_code == 2
    assert "PLACE" in refused.output
    assert "FAR" not in refused.output


@pytest.mark.parametrize(
    ("url", "reported"),
    [
        ("shoebox:///f", "Unknown store 'shoebox'"),
        ("sqlite:///{file}?colour=red", "colour"),
        ("sqlite:///{file}", "damaged database"),
    ],
)
def test_a_store_that_cannot_be_migrated_is_reported_in_a_line(agent: Agent, url: str, reported: str) -> None:
    """A mistake in the URL and a file that is no database end `migrate` with a sentence, not a traceback."""
    file = agent.folder / "thesis.tex"
    file.write_text("no database " * 100)
    result = agent.run("migrate", TA_PERSISTENCE=url.format(file=file))
    assert result.exit_code == 2
    assert reported in " ".join(result.output.split())


# --- behind the service's back ----------------------------------------------------------------------


def rows(database: Path) -> list[tuple[str, bytes]]:
    """Partition and key, and the value, of every record."""
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT partition || ' ' || key, value FROM records").fetchall()
    return [(str(key), bytes(value)) for key, value in found]


def damage(database: Path, key: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE records SET value = replace(value, 'bad', 'BAD') WHERE key = ?", (key,))


def drop(database: Path, name: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        done = connection.execute("DELETE FROM records WHERE partition || ' ' || key = ?", (name,))
        assert done.rowcount == 1


async def put(url: str, partition: str, key: str, stored: bytes) -> None:
    async with open_store(url) as store:
        await store.commit(partition, Commit(operation=ids.operation_id(), put={key: Put(stored)}))


async def change(url: str, user: str, key: str, **fields: object) -> None:
    """Changes some fields of a user's record, which stays in order."""
    partition = keys.user("Tester", user)
    async with open_store(url) as store:
        [record] = await store.read(partition, [key])
    assert record is not None
    value: dict[str, object] = codec.unseal(partition, key, record.value, dict)
    await put(url, partition, key, codec.seal(partition, key, {**value, **fields}))


async def bury(url: str, task_id: str) -> None:
    """What a process that died in the middle of a deletion leaves behind."""
    owner, key = User("mock", "ada"), keys.task(task_id)
    partition, erasing, noted = keys.user("Tester", owner.key), keys.erasing("Tester"), f"{key}/"
    async with open_store(url) as store:
        [record] = await store.read(partition, [key])
        assert record is not None
        head = codec.unseal(partition, key, record.value, Head)
        erased = codec.seal(partition, key, {**json.loads(codec.encode_json(head)), "erased": True})
        note = codec.seal(erasing, noted, PendingDeletion(owner, task_id, 0.0))
        for place, name, value in ((erasing, noted, note), (partition, key, erased)):
            await store.commit(place, Commit(operation=ids.operation_id(), put={name: Put(value)}))


# --- whose an id is -----------------------------------------------------------------------------------


def test_an_id_leads_to_its_owner(agent: Agent) -> None:
    """Ids of every kind name the user; one that no one's could be, and what is no id, are refused."""
    with agent.served() as service, service.client("ada") as ada, service.client("eve") as eve:
        hers, his = say(ada, "hello"), say(eve, "hello", session_id=str(uuid.uuid4()))
    for name in ("session_id", "task_id", "request_id"):
        assert agent.run("state", "owner", hers[name]).stdout == "mock.ada\n"
        assert agent.run("state", "owner", his[name].upper()).stdout == "mock.eve\n"
    unknown = agent.run("state", "owner", str(uuid.uuid4()))
    assert unknown.exit_code != 0
    assert "no user has the id" in unknown.output
    assert agent.run("state", "owner", "hello").exit_code == 2
