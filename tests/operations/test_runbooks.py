"""Each runbook of `docs/operations.md`: its situation is made, and mended by the page's own words."""

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from runbook import Operator, section

from tealagents.client import AsyncClient, Retry
from tealagents.llm.offline import OfflineModel
from tealagents.testing.faults import FaultProxy, full_disk
from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.pytest_servers import running
from tealagents.testing.servers import PostgresServer, RedisServer
from tealagents.testing.service import ServiceThread, agent_config
from tealagents.testing.waits import until

SCRIPT = {"rules": [{"when": "think", "reply": {"fault": "silence"}}]}
KEY = "first-key-" * 5


class Site:
    """A folder with a config, the variables of its service, and a model behind it."""

    def __init__(self, folder: Path, model: OfflineModel, commands: Path) -> None:
        self.folder = folder
        self.commands = commands
        self.config = folder / "agent.yaml"
        self.env = {
            "TA_SERVICE_CONFIG": str(self.config),
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_AUTH": "mock",
            "TA_PERSISTENCE": f"sqlite:///{folder}/state.db",
        }
        self.configured()

    def configured(self, **spec: Any) -> None:
        self.config.write_text(yaml.safe_dump(agent_config(**spec)))

    def service(self, **env: str) -> ServiceThread:
        return ServiceThread(self.config, {**self.env, **env})

    def operator(self, title: str, **env: str) -> Operator:
        return Operator(title, self.folder, {**self.env, **env}, self.commands)


@pytest.fixture
def site(tmp_path: Path, nursery: Nursery) -> Iterator[Site]:
    with OfflineModel(SCRIPT) as model:
        yield Site(tmp_path, model, nursery.folder)


def message(words: str, **fields: Any) -> dict[str, Any]:
    return {"items": [{"content_type": "text", "content": words}], **fields}


def say(client: httpx.Client, words: str, key: str = "", **fields: Any) -> httpx.Response:
    headers = {"idempotency-key": key} if key else {}
    return client.post("", json=message(words, **fields), headers=headers)


def in_background(client: httpx.Client, words: str, **fields: Any) -> str:
    """The id of a request that is left to run."""
    answer = client.post("", json=message(words, **fields), headers={"prefer": "respond-async"})
    assert answer.status_code == 202
    request_id: str = answer.json()["request_id"]
    return request_id


def said(client: httpx.Client, words: str, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = say(client, words, **fields).raise_for_status().json()
    return answer


def ready(client: httpx.Client) -> bool:
    return client.get("/health/ready").status_code == 200


def test_every_runbook_is_tried() -> None:
    """Whatever is added to the page gets a test here."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    section = page.partition("\n## Runbooks\n")[2].partition("\n## ")[0]
    titles = [line.removeprefix("### ") for line in section.splitlines() if line.startswith("### ")]
    here = Path(__file__).read_text()
    assert titles
    assert [title for title in titles if f'operator("{title}"' not in here] == []


# --- the store --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RedisServer, PostgresServer])
def test_the_store_is_away(site: Site, kind: type[RedisServer | PostgresServer]) -> None:
    """The server dies and comes back: doctor says so, nothing is restarted, nothing is done twice."""
    with running(lambda: kind(durable=True)) as server:
        site.env["TA_PERSISTENCE"] = server.url
        with site.service() as service, service.client() as ada:
            task = said(ada, "My name is Ada.")["task_id"]
            operator = site.operator("The store is unavailable", AGENT=service.url)
            server.kill()
            refused = say(ada, "What is my name?", key="again", task_id=task)
            assert (refused.status_code, refused.json()["code"]) == (503, "persistence_unavailable")
            assert not ready(ada)
            assert ada.get("/health/live").status_code == 200
            assert "the store cannot be reached" in operator.does(1, status=1)
            server.restart()
            operator.does(2)
            assert "no problems found" in operator.does(1)
            first = say(ada, "What is my name?", key="again", task_id=task).raise_for_status().json()
            assert "Ada" in first["content"]["output"]
            again = say(ada, "What is my name?", key="again", task_id=task).raise_for_status().json()
            assert again == first
            assert len(ada.get(f"/tasks/{task}/messages").json()["items"]) == 4


def test_the_disk_is_full(site: Site) -> None:
    """No message is taken until there is room; then what has expired is erased beside the running service."""
    operator = site.operator("The disk is full")
    with site.service() as service, service.client() as ada:
        task = said(ada, "hello")["task_id"]
        with full_disk(max(each.stat().st_size for each in site.folder.glob("state.db*"))):
            while say(ada, "word " * 2_000).status_code == 200:
                pass
            assert not ready(ada)
            assert ada.get(f"/tasks/{task}").status_code == 200
            assert "the store cannot be" in operator.does(1, status=1)
        until(lambda: ready(ada))
        ada.patch(f"/tasks/{task}", json={"expires_at": "2020-01-01T00:00:00Z"}).raise_for_status()
        seen = operator.does(3)
        assert "1 task and 0 sessions would be erased" in seen
        assert "1 task and 0 sessions erased" in seen
        assert say(ada, "hello").status_code == 200


def test_the_memory_of_redis_is_full(site: Site) -> None:
    """Writes are refused until the limit is raised; reads continue, and nothing is restarted.

    The service's user may not raise it.
    """
    with running(lambda: RedisServer(durable=True)) as redis:
        redis.ask("ACL", "SETUSER", "agent", "on", ">secret", "~*", "&*", "+@all", "-config", "+config|get")
        site.env["TA_PERSISTENCE"] = redis.url.replace("://", "://agent:secret@") + "?pool=5"
        operator = site.operator("The disk is full", ADMIN_URL=redis.url)
        with site.service() as service, service.client() as ada:
            task = said(ada, "hello")["task_id"]
            redis.ask("CONFIG", "SET", "maxmemory", "1mb")
            assert say(ada, "hello").status_code == 503
            assert not ready(ada)
            assert ada.get(f"/tasks/{task}").status_code == 200
            assert "the store cannot be written" in operator.does(1, status=1)
            operator.does(2)
            until(lambda: ready(ada))
            assert say(ada, "hello").status_code == 200


# --- load -------------------------------------------------------------------------------------------


def test_a_hot_owner(site: Site, nursery: Nursery) -> None:
    """The log shows who sends the most, and a limit keeps the places of others free."""
    with nursery.service(site.config, site.env) as service:
        for user, messages in (("ada", 2), ("application", 9), ("eve", 1)):
            with service.client(user) as client:
                for _ in range(messages):
                    said(client, "hello")
        (site.folder / "service.log").write_text(service.log())
        operator = site.operator("A hot owner")
        most = operator.does(1).splitlines()[0].split()
        assert most[0] == "9"
        operator.env["REQUEST"] = most[1].split('"')[3]
        assert operator.does(2) == "mock.application\n"
        operator.does(3)
        limit = int(operator.env["TA_LIMITS__MAX_REQUESTS_PER_USER"])
    with (
        site.service(TA_LIMITS__MAX_REQUESTS_PER_USER=str(limit)) as limited,
        limited.client("application") as application,
        limited.client("eve") as eve,
    ):
        for _ in range(limit):
            in_background(application, "think")
        refused = say(application, "hello")
        assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
        assert say(eve, "hello").status_code == 200


# --- a task -----------------------------------------------------------------------------------------


def test_a_stuck_task_is_canceled(site: Site) -> None:
    """The owner cancels the request that the refusal names, and the task takes the next message."""
    with site.service() as service, service.client("ada") as ada:
        task = said(ada, "hello")["task_id"]
        in_background(ada, "think", task_id=task)
        busy = say(ada, "hello?", task_id=task)
        assert (busy.status_code, busy.json()["code"]) == (409, "task_busy")
        request = busy.json()["request_id"]
        operator = site.operator("A stuck task", AGENT=service.url, TOKEN="ada", REQUEST=request)
        assert json.loads(operator.does(1))["status"] == "Canceled"
        assert said(ada, "hello?", task_id=task)["status"] == "Completed"


def test_a_task_that_waits_for_an_approval_is_found_in_the_runbook_and_canceled(site: Site) -> None:
    """By the code of the refusal: it is another one than that of a task whose request runs."""
    demo = Path(__file__).parents[2] / "demos" / "approval"
    site.configured(agent={"plugins": ["Files"]})
    site.env["TA_PLUGIN_MODULE"] = str(demo / "custom_plugins.py")
    site.env["TA_PLUGIN_CATALOG_FILE"] = str(demo / "catalogue.json")
    with site.service() as service, service.client("ada") as ada:
        task = said(ada, 'call Files-delete {"path": "notes.txt"}')["task_id"]
        waiting = say(ada, "hello?", task_id=task)
        assert f"`{waiting.status_code} {waiting.json()['code']}`" in section("A stuck task")
        request = waiting.json()["request_id"]
        operator = site.operator("A stuck task", AGENT=service.url, TOKEN="ada", REQUEST=request)
        assert json.loads(operator.does(1))["status"] == "Canceled"
        assert said(ada, "hello?", task_id=task)["status"] == "Completed"


def test_a_process_that_hangs_is_killed(site: Site, nursery: Nursery) -> None:
    """Two leases later its request is interrupted on every other process, and the task continues."""
    site.configured(limits={"lease_seconds": 3})
    with nursery.service(site.config, site.env) as hanging, nursery.service(site.config, site.env) as other:
        with hanging.client() as ada:
            task = said(ada, "hello")["task_id"]
            request = in_background(ada, "think", task_id=task)
        hanging.stop()
        hanging.kill()
        with other.client() as ada:
            until(lambda: ada.get(f"/requests/{request}").json()["status"] == "Failed")
            assert ada.get(f"/requests/{request}").json()["error"]["code"] == "interrupted"
            assert said(ada, "hello?", task_id=task)["status"] == "Completed"


# --- keys, backups, upgrades ------------------------------------------------------------------------


def test_the_encryption_key_is_rotated(site: Site, nursery: Nursery) -> None:
    """At no moment of two rolling restarts does a replica meet what it cannot read; then the old key goes."""
    site.env["TA_ENCRYPTION_KEY"] = KEY
    operator = site.operator("Rotating the encryption key", NEW_STORE=f"sqlite:///{site.folder}/new.db")
    with contextlib.ExitStack() as stack:
        replicas = [stack.enter_context(nursery.service(site.config, site.env)) for _ in range(2)]
        with replicas[0].client() as ada:
            task = said(ada, "My name is Ada.")["task_id"]
        for step in (1, 2):
            operator.does(step)
            for n in range(2):
                assert replicas[n].terminate() == 0
                replicas[n] = stack.enter_context(nursery.service(site.config, variables(operator)))
                for replica in replicas:
                    with replica.client() as ada:
                        assert "Ada" in said(ada, "What is my name?", task_id=task)["content"]["output"]
    assert operator.env["TA_ENCRYPTION_OLD_KEYS"] == KEY
    operator.does(3)
    assert not (site.folder / "state.jsonl").exists()
    assert "TA_ENCRYPTION_OLD_KEYS" not in operator.env
    with nursery.service(site.config, variables(operator)) as moved, moved.client() as ada:
        assert "Ada" in said(ada, "What is my name?", task_id=task)["content"]["output"]


def test_the_encryption_key_is_rotated_twice(site: Site) -> None:
    """What was not written since the first rotation is still read after the second, and moves with the rest.

    Where a key is missing nothing is moved.
    """
    site.env["TA_ENCRYPTION_KEY"] = KEY
    operator = site.operator("Rotating the encryption key", NEW_STORE=f"sqlite:///{site.folder}/new.db")
    with site.service() as service, service.client() as ada:
        task = said(ada, "My name is Ada.")["task_id"]
    for step in (1, 2, 1, 2):
        operator.does(step)
        with ServiceThread(site.config, variables(operator)) as service, service.client() as ada:
            assert "Ada" in ada.get(f"/tasks/{task}/messages").raise_for_status().text
    kept = operator.env["TA_ENCRYPTION_OLD_KEYS"]
    second, first = kept.split()
    assert first == KEY
    operator.env["TA_ENCRYPTION_OLD_KEYS"] = second
    operator.does(3, status=2)
    assert operator.env["TA_PERSISTENCE"] == site.env["TA_PERSISTENCE"]
    operator.env["TA_ENCRYPTION_OLD_KEYS"] = kept
    operator.does(3)
    with ServiceThread(site.config, variables(operator)) as service, service.client() as ada:
        assert "Ada" in ada.get(f"/tasks/{task}/messages").raise_for_status().text


def variables(operator: Operator) -> dict[str, str]:
    """What the operator's shell has set of the service's variables."""
    return {name: value for name, value in operator.env.items() if name.startswith("TA_")}


def test_a_backup_of_sqlite_is_restored(site: Site) -> None:
    """Made beside a running service, it brings back what was there, whatever became of the file since."""
    operator = site.operator("Restoring a backup")
    with site.service() as service, service.client() as ada:
        task = said(ada, "My name is Ada.")["task_id"]
        operator.does(1)
        said(ada, "My name is Eve.", task_id=task)
        with closing(sqlite3.connect(site.folder / "state.db")) as database, database:
            database.execute("DELETE FROM records")
    operator.does(3)
    checked = operator.does(5)
    assert "no problems found" in checked
    assert "0 tasks with a bad one" in checked
    with site.service() as service, service.client() as ada:
        assert "Ada" in said(ada, "What is my name?", task_id=task)["content"]["output"]


def test_a_backup_of_postgres_is_restored(site: Site) -> None:
    """As that of SQLite, with PostgreSQL's own tools."""
    with running(PostgresServer) as postgres:
        site.env["TA_PERSISTENCE"] = postgres.url
        operator = site.operator("Restoring a backup", DATABASE=postgres.url)
        with site.service() as service, service.client() as ada:
            task = said(ada, "My name is Ada.")["task_id"]
            operator.does(2)
            said(ada, "My name is Eve.", task_id=task)
        subprocess.run(["psql", "-q", postgres.url, "-c", "TRUNCATE tealagents.records"], check=True)
        operator.does(4)
        assert "0 tasks with a bad one" in operator.does(5)
        with site.service() as service, service.client() as ada:
            assert "Ada" in said(ada, "What is my name?", task_id=task)["content"]["output"]


def test_a_backup_of_postgres_is_restored_by_the_owner_alone(site: Site) -> None:
    """A role that owns nothing fails, and changes nothing: not a part of the backup is there afterwards."""
    with running(PostgresServer) as postgres:
        app = postgres.url.replace("tealagents:secret@", "app:secret@")
        site.env["TA_PERSISTENCE"] = postgres.url
        with site.service() as service, service.client() as ada:
            task = said(ada, "My name is Ada.")["task_id"]
        role = [
            "CREATE ROLE app LOGIN PASSWORD 'secret'",
            "GRANT USAGE ON SCHEMA tealagents TO app",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tealagents TO app",
            "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tealagents TO app",
        ]
        psql = ["psql", "-q", "-t", "-v", "ON_ERROR_STOP=1"]
        subprocess.run([*psql, postgres.url, *[each for one in role for each in ("-c", one)]], check=True)
        operator = site.operator("Restoring a backup", DATABASE=app)
        operator.does(2)
        subprocess.run([*psql, app, "-c", "DELETE FROM tealagents.records"], check=True)
        operator.does(4, status=1)
        count = [*psql, app, "-c", "SELECT count(*) FROM tealagents.records"]
        assert subprocess.run(count, check=True, capture_output=True, text=True).stdout.strip() == "0"
        operator.env["DATABASE"] = postgres.url
        operator.does(4)
        site.env["TA_PERSISTENCE"] = app
        with site.service() as service, service.client() as ada:
            assert "Ada" in said(ada, "What is my name?", task_id=task)["content"]["output"]


async def test_an_upgrade_without_downtime(site: Site, nursery: Nursery) -> None:
    """Both processes are replaced under load; every message of clients that try again is answered once."""
    replicas = [await asyncio.to_thread(nursery.service(site.config, site.env).__enter__) for _ in range(2)]
    over = asyncio.Event()
    try:
        async with FaultProxy("127.0.0.1", replicas[0].port) as proxy:
            url = proxy.url_for(replicas[0].url)
            talking = [asyncio.create_task(talk(url, f"user-{n}", over)) for n in range(4)]
            for replica, other in (replicas, replicas[::-1]):
                proxy.upstream = ("127.0.0.1", other.port)
                await asyncio.to_thread(replace, site, replica)
            over.set()
            turns = await asyncio.gather(*talking)
        assert min(turns) > 0
    finally:
        for replica in replicas:
            replica.__exit__()


def replace(site: Site, replica: ForkedService) -> None:
    """As the runbook says: ends a process, starts another in its place, and waits for this one.

    It does not ask the load balancer, where a process that is already ready would answer.
    """
    operator = site.operator("Upgrading without downtime", PID=str(replica.process.pid), REPLICA=replica.url)
    waiting = threading.Thread(target=replica.process.wait, args=(60,))
    waiting.start()
    operator.does(1)
    waiting.join()
    assert replica.process.poll() == 0
    replica.start()
    operator.does(2)


async def talk(url: str, user: str, over: asyncio.Event) -> int:
    """A conversation of one task until it is over; how many turns it had."""
    retry = Retry(attempts=40, first_delay=0.05, longest_delay=0.5)
    async with AsyncClient(url, user, retry=retry) as client:
        task = (await client.send("hello")).task_id
        turns = 1
        while not over.is_set():
            assert (await client.send(f"turn {turns}", task_id=task)).output == f"You said: “turn {turns}”"
            turns += 1
        messages = [message async for message in client.messages(task)]
        assert [message.role for message in messages] == ["user", "assistant"] * turns
        return turns
