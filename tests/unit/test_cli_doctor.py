"""`tealagents doctor`: each planted fault is found with what to do, and nothing on a sound service."""

import itertools
import json
import os
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import httpx
import pytest
from auth_setup import KEY as SIGNING_KEY
from typer.testing import CliRunner

from tealagents.cli.chat import finding
from tealagents.cli.doctor import servers
from tealagents.cli.main import command_line
from tealagents.domain.ports import Commit
from tealagents.llm.offline import OfflineModel
from tealagents.stores.base import AccessDenied
from tealagents.stores.memory import MemoryStore
from tealagents.testing.authority import OTHER_TENANT, LocalAuthority
from tealagents.testing.counting import CountingOptions, CountingStore, StoreOperation
from tealagents.testing.forking import Nursery
from tealagents.testing.servers import RedisServer, free_port
from tealagents.testing.service import ServiceThread
from tealagents.testing.signing_in import self_signed

CONFIG = """\
apiVersion: tealagents/v1alpha1
name: Patient
version: 1
spec:
  agent:
    model: offline
    system_prompt: Be brief.
    plugins: [Clock]
"""
PLUGIN = """\
from tealagents.plugins import Plugin, tool

class Clock(Plugin):
    @tool
    def now(self) -> str:
        "Tell the time."
        return "now"
"""
SEQUENCE = """\
apiVersion: skagents/v1
kind: Sequential
service_name: Pair
version: 1
input_type: BaseInput
spec:
  agents:
    - {name: first, model: offline, system_prompt: Be brief.}
    - {name: second, model: gone, system_prompt: Be brief.}
  tasks:
    - {name: greet, task_no: 1, instructions: hello, agent: first}
    - {name: ask, task_no: 2, instructions: hello, agent: second}
"""
LOCKED = """
from tealagents.domain.errors import Unknown
from tealagents.stores.memory import MemoryStore

class LockedStore(MemoryStore):
    async def commit(self, partition, commit):
        raise Unknown("no answer in time")
"""
ODD = """
from tealagents.threads.context import ContextProvider

class Odd(ContextProvider):
    async def __aenter__(self):
        return 1 / 0
"""
KEY, OTHER_KEY = "first-key-" * 5, "other-key-" * 5


class Patient:
    """A config in a folder, the services that it needs, and state that was made with it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.config = folder / "config.yaml"
        self.config.write_text(CONFIG)
        (folder / "custom_plugins.py").write_text(PLUGIN)
        model = stack.enter_context(OfflineModel())
        self.authority = stack.enter_context(LocalAuthority(signing_key=SIGNING_KEY))
        self.env = {
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "any",
            "TA_PERSISTENCE": f"sqlite:///{folder / 'state.db'}",
            "TA_ENCRYPTION_KEY": KEY,
            "TA_AUDIT_KEY": "audit-key-" * 3,
            "TA_LIMITS__LEASE_SECONDS": "3600",  # a busy machine's disk is no fault of the service
            "TA_ENTRA_AUTHORITY": self.authority.url,
            "TA_ENTRA_TENANT_ID": str(self.authority.options()["tenant_id"]),
            "TA_ENTRA_AUDIENCE": " ".join(self.authority.options()["audience"]),
            "TA_ENTRA_SCOPES": " ".join(self.authority.options()["scopes"]),
        }
        with ServiceThread(self.config, self.env) as service:
            self.send(service.url)

    def send(self, url: str, user: str = "alice") -> None:
        token = self.authority.token(user)
        body = {"items": [{"content_type": "text", "content": "My name is Ada."}]}
        httpx.post(
            url, json=body, headers={"Authorization": f"Bearer {token}"}, timeout=60
        ).raise_for_status()

    @property
    def database(self) -> Path:
        return self.folder / "state.db"

    def examined(self, *arguments: str) -> tuple[int, str]:
        command = ["doctor", "--config", str(self.config), *arguments]
        result = CliRunner().invoke(command_line("doctor"), command, env={**self.env, "COLUMNS": "500"})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    for module in (servers, finding):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(servers, "COLLECTOR_SECONDS", 60.0)
    with ExitStack() as stack:
        yield Patient(tmp_path, stack)


@contextmanager
def answering(
    status: int,
    body: Any = None,
    date: float | None = None,
    answers: int | None = None,
    kind: str = "application/json",
) -> Iterator[str]:
    """A server that gives one answer to everything, so often, and then none."""
    left = itertools.repeat(True, answers) if answers is not None else itertools.repeat(True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not next(left, False):
                self.close_connection = True
                return
            text = json.dumps(body).replace("SELF", url).encode()
            self.send_response_only(status)
            self.send_header("date", formatdate(date, usegmt=True))
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_CONNECT = do_GET

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield url
        finally:
            server.shutdown()


def test_a_sound_service_has_nothing(patient: Patient) -> None:
    """Neither its config, nor what it depends on, nor the service that runs: all on loopback, to which no
    proxy leads."""
    with ServiceThread(patient.config, patient.env) as service, answering(200, {}) as collector:
        patient.env.update(TA_OTEL_ENDPOINT=collector, TA_METRICS_PORT=str(free_port()))
        patient.env.update(http_proxy=f"http://{NOWHERE}", no_proxy="")
        code, said = patient.examined(service.url, "--port", str(free_port()))
    assert (code, said) == (0, "✓ no problems found\n")


def wrong_key_of_the_model(patient: Patient) -> None:
    error = {"error": {"message": "Incorrect API key", "type": "invalid_request_error"}}
    patient.env["TA_BASE_URL"] = patient.stack.enter_context(answering(401, error)) + "/v1"


def identity_that_is_refused(patient: Patient) -> None:
    """It gets a token, which the model service does not take."""
    wrong_key_of_the_model(patient)
    secret = patient.authority.client_secret
    patient.env.update(AN_IDENTITY, TA_AZURE_AUTHORITY=patient.authority.url, TA_AZURE_CLIENT_SECRET=secret)


def unknown_model(patient: Patient) -> None:
    error = {"error": {"message": "There is no model 401", "code": "model_not_found"}}
    patient.env["TA_BASE_URL"] = patient.stack.enter_context(answering(404, error)) + "/v1"


def model_that_speaks_no_tls(patient: Patient) -> None:
    patient.env["TA_BASE_URL"] = patient.env["TA_BASE_URL"].replace("http:", "https:")


def model_that(**reply: Any) -> Callable[[Patient], None]:
    """One that is reached, and gives no answer."""

    def plant(patient: Patient) -> None:
        model = patient.stack.enter_context(OfflineModel({"rules": [{"reply": reply}]}))
        patient.env["TA_BASE_URL"] = model.base_url

    return plant


def schema_of_another_version(patient: Patient) -> None:
    with closing(sqlite3.connect(patient.database)) as database, database:
        database.execute("INSERT INTO schema_version VALUES (99, 'of tomorrow', 'then')")


def authority_of(
    patient: Patient, tenant: str, date: float | None = None, answers: int | None = None
) -> None:
    """Another authority, which says that it is the issuer of a tenant."""
    document = {
        "issuer": f"https://sts.example/{tenant}/v2.0",
        "jwks_uri": "SELF/keys",
        "keys": [patient.authority.signing_key.jwk(None)],
    }
    url = patient.stack.enter_context(answering(200, document, date, answers))
    patient.env["TA_ENTRA_AUTHORITY"] = url


def other_issuer(patient: Patient) -> None:
    authority_of(patient, OTHER_TENANT)


def authority_that_hangs_up(patient: Patient) -> None:
    """Once it has said who it is and what its keys are."""
    authority_of(patient, patient.env["TA_ENTRA_TENANT_ID"], answers=2)


def over_tls(patient: Patient, **certificate: Any) -> str:
    """The address of an authority with a certificate of its own."""
    file = self_signed(patient.folder / "authority.pem", **certificate)
    return patient.stack.enter_context(LocalAuthority(certificate=file, signing_key=SIGNING_KEY)).url


def untrusted_authority(patient: Patient) -> None:
    patient.env["TA_ENTRA_AUTHORITY"] = over_tls(patient)


def model_with_a_certificate(**certificate: Any) -> Callable[[Patient], None]:
    """One that is trusted, and still not valid for the model's address or time."""

    def plant(patient: Patient) -> None:
        patient.env["TA_BASE_URL"] = over_tls(patient, **certificate)
        patient.env["SSL_CERT_FILE"] = str(patient.folder / "authority.pem")

    return plant


def collector_with_a_certificate(patient: Patient) -> None:
    patient.env["TA_OTEL_ENDPOINT"] = over_tls(patient)


def clock_of_the_authority(patient: Patient) -> None:
    authority_of(patient, patient.env["TA_ENTRA_TENANT_ID"], date=1e9)


def setting(**env: str) -> Callable[[Patient], None]:
    return lambda patient: patient.env.update(env)


def editing(before: str, after: str) -> Callable[[Patient], object]:
    return lambda patient: patient.config.write_text(CONFIG.replace(before, after))


def store_whose_tables_are_locked(patient: Patient) -> None:
    """It reads, and no commit is answered in time."""
    (patient.folder / "locked_store.py").write_text(LOCKED)
    patient.env["TA_PERSISTENCE"] = "locked_store:LockedStore"


def database_that_cannot_be_opened(patient: Patient) -> None:
    """As one of another user, which root could open: there is something else in place of its log."""
    (patient.folder / f"{patient.database.name}-wal").mkdir()


def file_in_place_of_a_store(patient: Patient) -> None:
    (patient.folder / "notes.txt").write_text("mine")
    patient.env["TA_PERSISTENCE"] = f"file://{patient.folder}/notes.txt"


def store_in_the_clear(patient: Patient) -> None:
    """It was made before there was a key."""
    patient.env["TA_PERSISTENCE"] = f"sqlite:///{patient.folder}/clear.db"
    with ServiceThread(patient.config, {**patient.env, "TA_ENCRYPTION_KEY": ""}) as service:
        patient.send(service.url)


def database_of_another_application(patient: Patient) -> None:
    patient.env["TA_PERSISTENCE"] = f"sqlite:///{patient.folder}/customers.db"
    with closing(sqlite3.connect(patient.folder / "customers.db")) as connection:
        connection.execute("CREATE TABLE customers (name)")


class ClosedStore(MemoryStore):
    """One whose user may not make it."""

    async def exists(self) -> bool:
        return False

    async def obstacle(self) -> str:
        return "its user may not create tables"


class ClosedDatabase(ClosedStore):
    """One that its owner may make."""

    async def migrate(self) -> list[str]:
        return []


class StoreWithoutRights(MemoryStore):
    """One that runs, and lets its user do nothing."""

    async def exists(self) -> bool:
        raise AccessDenied("permission denied for schema closed. Grant USAGE on it.")


class StoreToBeRead(MemoryStore):
    """One that lets its user write nothing."""

    async def commit(self, partition: str, commit: Commit) -> None:
        raise AccessDenied("permission denied for table records. Grant INSERT on it.")


def provider_that_fails(patient: Patient) -> None:
    (patient.folder / "odd_provider.py").write_text(ODD)
    editing("spec:", "spec:\n  thread: {context_providers: ['odd_provider:Odd']}")(patient)


def certificate_that_is_none(patient: Patient) -> None:
    file = patient.folder / "service.pem"
    file.write_text("no certificate")
    patient.env.update(TA_ENTRA_CLIENT_ID="c", TA_ENTRA_CERTIFICATE=str(file))


def collector_that_knows_no_traces(patient: Patient) -> None:
    patient.env["TA_OTEL_ENDPOINT"] = patient.stack.enter_context(answering(404, {}))


#: where no server listens
NOWHERE = "127.0.0.1:1"
#: of the service, for a model at Azure
AN_IDENTITY = {
    "TA_AZURE_CREDENTIAL": "client_secret",
    "TA_AZURE_TENANT_ID": "example.com",
    "TA_AZURE_CLIENT_ID": "service",
    "TA_AZURE_CLIENT_SECRET": "s3cret",
}


OF_QUOTA = "→ Wait, raise the limit at the service, or set TA_API_KEY to another key."
OF_SERVICE = "→ Try again. If it persists, see the log of the service, or of the proxy in front of it."


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (editing("model:", "modle:"), "spec.agent.model: is missing; is 'modle' a misspelling of it?"),
        (editing("[Clock]", "[Calendar]"), "Calendar"),
        (
            lambda patient: (patient.folder / "custom_plugins.py").write_text("import nothing_like_it"),
            "custom_plugins.py, line 1",
        ),
        (setting(TA_PLUGIN_CATALOG_FILE="catalogues/none.json"), "there is no such file"),
        (setting(TA_API_KEY="", TA_BASE_URL=""), "set TA_API_KEY"),
        (wrong_key_of_the_model, "set TA_API_KEY to one that is valid"),
        (identity_that_is_refused, "→ The service refuses the identity: grant it its role"),
        (
            setting(**AN_IDENTITY, TA_AZURE_AUTHORITY=f"http://{NOWHERE}"),
            "→ Correct the TA_AZURE_… variable that the error is about; check that this machine can connect",
        ),
        (unknown_model, "Correct spec.agent.model (offline)"),
        (setting(TA_BASE_URL=f"http://{NOWHERE}/v1"), "Check that TA_BASE_URL is right"),
        (
            model_that_speaks_no_tls,
            "It speaks no TLS there: write http:// in place of https://, or correct the port.",
        ),
        (
            model_with_a_certificate(host="127.0.0.9"),
            "→ Its certificate is for another name: correct the",
        ),
        (model_with_a_certificate(days=-1), "→ Its certificate is not valid at this time: renew it"),
        (model_that(error={"status": 429, "message": "slow down"}), OF_QUOTA),
        (model_that(error={"status": 402, "message": "no balance"}), OF_QUOTA),
        (model_that(fault={"kind": "error", "code": "insufficient_quota"}), OF_QUOTA),
        (model_that(error={"status": 500, "message": "oops"}), OF_SERVICE),
        (model_that(error={"status": 503, "message": "oops"}), OF_SERVICE),
        (model_that(text="one two", fault={"kind": "cut", "after_pieces": 1}), OF_SERVICE),
        (model_that(fault={"kind": "error", "message": "it broke"}), OF_SERVICE),
        (model_that(error={"status": 400, "message": "no such effort"}), "Correct what the service refuses"),
        (setting(TA_PERSISTENCE=f"redis://{NOWHERE}"), "the store cannot be reached"),
        (
            lambda patient: patient.database.write_text("garbage"),
            "damaged database (file is not a database)",
        ),
        (database_that_cannot_be_opened, "let it write to the store and its folder"),
        (file_in_place_of_a_store, "the store cannot be opened"),
        (database_of_another_application, "customers.db is the database of another application"),
        (setting(TA_PERSISTENCE=f"{__name__}:ClosedStore"), "its user may not create tables"),
        (
            setting(TA_PERSISTENCE=f"{__name__}:ClosedDatabase"),
            "or grant its user that right, or run `tealagents migrate` as the owner of the database.",
        ),
        (store_whose_tables_are_locked, "or stop the process that locks its tables"),
        (schema_of_another_version, "run the version that migrated it"),
        (setting(TA_ENCRYPTION_KEY=""), "the store is encrypted, and TA_ENCRYPTION_KEY is not set"),
        (setting(TA_ENCRYPTION_KEY=""), "→ Set TA_ENCRYPTION_KEY"),
        (store_in_the_clear, "→ Unset TA_ENCRYPTION_KEY; or, to encrypt the state, run"),
        (setting(TA_ENCRYPTION_KEY=OTHER_KEY), "TA_ENCRYPTION_OLD_KEYS"),
        (setting(TA_AUDIT_KEY="another-key-" * 3), "set the earlier one, or unset it if there was none"),
        (setting(TA_ENTRA_AUTHORITY=f"http://{NOWHERE}"), "the authority's keys cannot be read"),
        (other_issuer, "every token will be refused"),
        (setting(TA_ENTRA_AUDIENCE=""), "or TA_ENTRA_AUDIENCE in the environment"),
        (clock_of_the_authority, "Synchronize both with NTP"),
        (setting(TA_LIMITS__LEASE_SECONDS="0.5"), "Raise limits.lease_seconds"),
        (setting(SSL_CERT_FILE="/nowhere.pem"), "SSL_CERT_FILE: /nowhere.pem"),
        (authority_that_hangs_up, "the authority's keys cannot be read"),
        (untrusted_authority, "Its certificate is not trusted"),
        (untrusted_authority, "set SSL_CERT_FILE to the certificate of its CA, in a file with those of all"),
        (
            editing("plugins: [Clock]", "mcp_servers: [{name: far, command: ./none}]"),
            "the tools cannot be opened: {config}:8: spec.agent.mcp_servers[0]: MCP server far: the command",
        ),
        pytest.param(
            editing("spec:", "spec:\n  thread: {context_providers: [mem0]}"),
            "the context providers cannot be opened: The context provider mem0 needs",
            marks=pytest.mark.skipif(
                find_spec("mem0") is None, reason="needs pip install 'tealagents[mem0]'"
            ),
        ),
        (
            provider_that_fails,
            "The context provider Odd cannot be opened: odd_provider.py, line 6: ZeroDivisionError: division",
        ),
        (certificate_that_is_none, "the tools cannot be opened: "),
        (setting(TA_OTEL_ENDPOINT=f"http://{NOWHERE}"), "or set TA_OTEL_ENDPOINT to the address"),
        (
            collector_with_a_certificate,
            "→ Its certificate is not trusted: set OTEL_EXPORTER_OTLP_CERTIFICATE to the certificate of",
        ),
        (collector_that_knows_no_traces, "/v1/traces: Failed to export spans batch code: 404"),
        (setting(TA_OTEL_ENDPOINT=f"http://{NOWHERE}/v1/traces"), "TA_OTEL_ENDPOINT: must be without /v1/"),
    ],
)
def test_a_planted_fault_is_found(patient: Patient, plant: Callable[[Patient], Any], said: str) -> None:
    """That one, with what to do, and no other."""
    plant(patient)
    code, found = patient.examined()
    assert code == 1, found
    assert said.format(config=patient.config) in found
    assert found.count("✗") == 1, found


@pytest.mark.parametrize("plant", [database_that_cannot_be_opened, file_in_place_of_a_store])
def test_for_a_store_of_files_nothing_has_to_run(patient: Patient, plant: Callable[[Patient], None]) -> None:
    """What to check is its path, who may write to it, and its disk."""
    plant(patient)
    _, found = patient.examined()
    assert "Check that TA_PERSISTENCE or spec.persistence names it, that this user may write to it" in found
    assert "is running" not in found


def test_the_store_is_left_as_it_was(patient: Patient) -> None:
    """In a store of files, not even an empty folder stays."""
    store = patient.folder / "files"
    patient.env["TA_PERSISTENCE"] = f"file://{store}"
    with ServiceThread(patient.config, patient.env) as service:
        patient.send(service.url)
    before = sorted(store.rglob("*"))
    code, found = patient.examined()
    assert code == 0, found
    assert sorted(store.rglob("*")) == before


def test_what_was_probably_not_meant_is_told_without_being_a_problem(patient: Patient) -> None:
    """A variable that is mistyped leaves a service with what it has by default: here with another lease."""
    patient.env["TA_LIMITS__LEASE_SECOND"] = "5"
    code, found = patient.examined()
    assert code == 0
    assert (
        "TA_LIMITS__LEASE_SECOND: unknown variable, ignored; did you mean 'TA_LIMITS__LEASE_SECONDS'?"
        in found
    )
    assert "✓ no problems found" in found


def none_yet(place: Path) -> str:
    """What is said of a store that there is not, and that can be created."""
    told = f"There is no store at {place} yet: the next start creates one, without any tasks"
    return f"! {told}\n✓ no problems found\n"


def test_a_store_that_the_next_start_will_create_is_told(patient: Patient) -> None:
    """Before the first start that is right; later a volume is not mounted, or the file was deleted."""
    patient.database.unlink()
    assert patient.examined() == (0, none_yet(patient.database))


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (
            StoreWithoutRights,
            "the store cannot be used: permission denied for schema closed. Grant USAGE on it.",
        ),
        (
            StoreToBeRead,
            "the store cannot be written to: permission denied for table records. Grant INSERT on it.",
        ),
    ],
)
def test_a_right_that_the_store_denies_is_said_as_the_store_says_it(
    patient: Patient, store: type[MemoryStore], said: str
) -> None:
    """What to grant is in its words; that it may not run, or that its disk is full, is not."""
    patient.env["TA_PERSISTENCE"] = f"{__name__}:{store.__name__}"
    code, found = patient.examined()
    assert code == 1
    assert f"✗ {said}" in found
    assert found.count("✗") == 1, found
    assert "Start it" not in found
    assert "Free space" not in found


@pytest.mark.parametrize("command", ["evalsha", "mget", "time", "del"])
def test_a_command_that_redis_denies_its_user_is_found_before_anything_is_stored(
    patient: Patient, redis_server: RedisServer, command: str
) -> None:
    """Once, with what to grant, although more than one operation of the store needs it."""
    rules = ("on", ">pw", "~*", "&*", "+@all", f"-{command}")
    redis_server.ask("ACL", "SETUSER", command, *rules)
    patient.env["TA_PERSISTENCE"] = redis_server.url.replace("//", f"//{command}:pw@")
    code, found = patient.examined()
    assert code == 1
    assert command in found.lower()
    assert "With ACL SETUSER, give this user `~tealagents:*" in found
    assert found.count("✗") == 1, found
    assert "Start it" not in found


def test_a_redis_that_can_lose_records_is_a_warning(patient: Patient, redis_server: RedisServer) -> None:
    """Once, as the service warns at its start."""
    patient.env["TA_PERSISTENCE"] = redis_server.url
    with ServiceThread(patient.config, patient.env):
        code, found = patient.examined()
    assert code == 0
    where = redis_server.url.removeprefix("redis://")
    assert f"! redis at {where} keeps no append-only file: " in found, found
    assert found.count("append-only file") == 1
    assert found.endswith("✓ no problems found\n")


class KeptStore(CountingStore):
    """Its counts can be looked at when the command has ended."""

    opened: ClassVar[list[CountingStore]] = []

    def __init__(self, options: CountingOptions) -> None:
        super().__init__(options)
        self.opened.append(self)


def test_some_tasks_are_enough(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read of tasks does not grow with their number."""
    monkeypatch.setattr("tealagents.cli.doctor.store.TASKS_VERIFIED", 1)
    store = {"TA_PERSISTENCE": f"{__name__}:KeptStore?{urlencode({'url': patient.env['TA_PERSISTENCE']})}"}

    def read() -> list[int]:
        code, found = patient.examined()
        assert code == 0, found
        operations = KeptStore.opened[-1].operations
        return [operations[StoreOperation(name, "user")] for name in ("read", "scan")]

    with ServiceThread(patient.config, patient.env) as service:
        patient.env.update(store)
        before = read()
        for user in ("bob", "carol", "dave"):
            patient.send(service.url, user)
    assert read() == before
    assert min(before) > 0


def test_a_missing_secret_hides_nothing_of_the_store(patient: Patient) -> None:
    """What needs the secret is not tried; all else is examined."""
    patient.env.update(TA_API_KEY="", TA_BASE_URL="", TA_PERSISTENCE=f"redis://{NOWHERE}")
    code, found = patient.examined()
    assert code == 1
    assert "set TA_API_KEY" in found
    assert "the store cannot be reached" in found
    assert found.count("✗") == 2, found


def test_each_agent_of_a_sequence_is_asked(patient: Patient) -> None:
    """The model of the second one does not exist, which the first one's does not show."""
    error = {"error": {"status": 404, "message": "The model does not exist"}}
    model = patient.stack.enter_context(
        OfflineModel({"rules": [{"when": {"model": "gone"}, "reply": error}]})
    )
    patient.config.write_text(SEQUENCE)
    patient.env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "any", "TA_AUTH": "gateway"}
    code, found = patient.examined()
    assert code == 1
    assert "Correct spec.agents[1].model (gone)" in found
    assert found.count("✗") == 1, found


def test_each_tool_server_that_cannot_be_used_is_found(patient: Patient) -> None:
    """At its own entry, with what to do about this one; one that works is no problem."""
    secure = patient.env["TA_BASE_URL"].replace("http:", "https:")
    servers = f"[{{name: far, command: ./none}}, {{name: near, transport: http, url: '{secure}'}}]"
    editing("[Clock]", f"[Clock]\n    mcp_servers: {servers}")(patient)
    code, found = patient.examined()
    assert code == 1
    assert found.count("✗ the tools cannot be opened") == found.count("✗") == 2, found
    far, near = found.split("✗")[1:]
    assert f"{patient.config}:9: spec.agent.mcp_servers[0]: MCP server far: the command" in far
    assert "→ Correct the config, or start the server that it names" in far
    assert f"{patient.config}:9: spec.agent.mcp_servers[1]: MCP server near" in near
    assert "→ It speaks no TLS there: write http:// in place of https://, or correct the port." in near


def test_of_an_agent_without_state_no_store_and_no_lease_is_examined(patient: Patient) -> None:
    """Both are of agents that keep state."""
    patient.config.write_text(SEQUENCE)
    names = ("TA_BASE_URL", "TA_API_KEY")
    patient.env = {name: patient.env[name] for name in names}
    patient.env |= {"TA_AUTH": "gateway", "TA_GATEWAY_SECRET": "s3cret", "TA_LIMITS__LEASE_SECONDS": "1"}
    remark = "! TA_AUTH=gateway: a gateway checks the callers; it proves itself by the secret in taAgwKey\n"
    assert patient.examined() == (0, f"{remark}✓ no problems found\n")


@pytest.mark.parametrize(("used", "mark"), [("127.0.0.1", "✗"), ("127.0.0.2", "!")])
def test_a_used_port_is_found(patient: Patient, used: str, mark: str) -> None:
    """Where it is asked for. In use at another address, it is one that only `serve --host 0.0.0.0` needs."""
    with socket.create_server((used, 0)) as taken:
        port = taken.getsockname()[1]
        code, found = patient.examined("--port", str(port))
    assert code == (mark == "✗")
    assert f"{mark} port {port} on " in found
    assert found.count("✗") == code, found


def test_a_used_port_of_the_metrics_is_found(patient: Patient) -> None:
    """As `serve` refuses it, where the port of the service is asked for; else the service itself may run."""
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        used = taken.getsockname()[1]
        for metrics, said in (
            (used, f"the metrics cannot be offered at 127.0.0.1:{used}"),
            (port, f"TA_METRICS_PORT: {port} is the port of the service"),
        ):
            patient.env["TA_METRICS_PORT"] = str(metrics)
            code, found = patient.examined("--port", str(port))
            assert code == 1
            assert said in found
            assert found.count("✗") == 1, found
        patient.env["TA_METRICS_PORT"] = str(used)
        assert patient.examined() == (0, "✓ no problems found\n")


def examined_on_a_full_disk(patient: Patient, nursery: Nursery) -> str:
    """What is found where no file can grow."""
    command = [nursery.program, "doctor", "-c", str(patient.config)]
    examined = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *command],
        env={**os.environ, **patient.env, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert examined.returncode == 1, examined
    return examined.stdout


def test_a_store_that_cannot_grow_is_found(patient: Patient, nursery: Nursery) -> None:
    """A full disk: reading works, and no message would be taken."""
    assert "the store cannot be" in examined_on_a_full_disk(patient, nursery)


@pytest.mark.parametrize(
    ("url", "name"), [("sqlite:///{0}/new.db", "new.db"), ("file://{0}/new", "new"), ("file://{0}", "")]
)
def test_a_store_that_could_not_be_made_is_found(
    patient: Patient, nursery: Nursery, tmp_path: Path, url: str, name: str
) -> None:
    """Its disk is full before the first start; looking leaves nothing in the folder."""
    folder = tmp_path / "volume"
    folder.mkdir()
    patient.env["TA_PERSISTENCE"] = url.format(folder)
    found = " ".join(examined_on_a_full_disk(patient, nursery).split())
    assert f"✗ the store cannot be created: {folder} cannot be written to: file too large" in found
    assert "→ Grant this user the right to write to it, or free space on its disk." in found
    assert patient.examined() == (0, none_yet(folder / name))
    assert list(folder.iterdir()) == []


def test_a_model_that_does_not_answer_is_said_once(patient: Patient, nursery: Nursery) -> None:
    """As what was found, and not by a line of the log as well."""
    command = [nursery.program, "doctor", "-c", str(patient.config)]
    env = {**os.environ, **patient.env, "TA_BASE_URL": f"http://{NOWHERE}"}
    examined = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert "the model service does not answer" in examined.stdout
    assert examined.stderr == ""


@pytest.mark.parametrize(
    ("status", "date", "said"),
    [
        (503, None, "the service is not ready: 503"),
        (200, 1e9, "the clocks of this machine and of the service"),
    ],
)
def test_a_running_service_is_looked_at_from_outside(status: int, date: float | None, said: str) -> None:
    """Whether it is ready, and what its clock says; no config is needed."""
    with answering(status, {}, date) as url:
        result = CliRunner().invoke(command_line("doctor"), ["doctor", f"{url}/Patient/1"])
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())


def test_a_page_of_the_proxy_in_front_of_a_service_is_not_printed() -> None:
    """The service is away or draining: what to look at is said, in a line."""
    with answering(502, "<html><center><h1>502 Bad Gateway</h1>", kind="text/html") as url:
        result = CliRunner().invoke(command_line("doctor"), ["doctor", f"{url}/Patient/1"])
    said = " ".join(result.output.split())
    assert "✗ the service is not live: 502 Bad Gateway, which a proxy in front of it answers" in said
    assert "the log of the proxy" in said
    assert "<" not in said


def test_a_store_that_is_not_there_is_not_made(patient: Patient) -> None:
    """What is looked for at a mistyped path is found missing by the next command as well."""
    mistyped = patient.folder / "no such folder"
    patient.env["TA_PERSISTENCE"] = f"sqlite:///{mistyped}/state.db"
    code, found = patient.examined()
    assert code == 1
    assert f"There is no store at {mistyped}/state.db" in found
    assert not mistyped.exists()
    patient.env["TA_PERSISTENCE"] = f"sqlite:///{patient.folder}/before-the-first-start.db"
    assert patient.examined() == (0, none_yet(patient.folder / "before-the-first-start.db"))
    assert not (patient.folder / "before-the-first-start.db").exists()


@pytest.mark.parametrize("status", [403, 407])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_refuses_is_named(patient: Patient, scheme: str, status: int) -> None:
    """By its variable, wherever it is what was asked, and without its password; what it says of plain HTTP
    looks like an answer of the service."""
    proxy = patient.stack.enter_context(answering(status, {})).removeprefix("http://")
    variable = f"{scheme}_proxy"
    patient.env |= {variable: f"http://ann:canary@{proxy}", "no_proxy": ""}
    patient.env |= {
        "TA_BASE_URL": f"{scheme}://model.example/v1",
        "TA_OTEL_ENDPOINT": f"{scheme}://collector.example:4318",
    }
    hosts = ["model.example", "collector.example", "agents.example"]
    if scheme == "https":
        patient.env["TA_ENTRA_AUTHORITY"] = "https://login.example"
        hosts.append("login.example")
    code, found = patient.examined(f"{scheme}://agents.example/Patient/1")
    assert code == 1
    for host in hosts:
        said = f"The call went through the proxy http://{proxy}, which {variable} names: if it is the proxy "
        assert f"{said}that refuses, correct that variable, or name {host} in NO_PROXY." in found
    assert "canary" not in found
    assert ("A proxy asks for credentials" in found) == ((scheme, status) == ("http", 407))


def test_another_service_and_none_are_distinguished(patient: Patient) -> None:
    """An address at which another agent answers, and one at which nothing does."""
    with answering(200, {"agents": [{"url": "/Other/2"}]}) as url:
        assert "is not the agent of this config" in patient.examined(url)[1]
    assert "Nothing answers at" in patient.examined(f"http://{NOWHERE}")[1]


def test_an_address_without_an_agent_is_one_problem(patient: Patient) -> None:
    """With what to write in its place, where that is known."""
    with answering(404, {"code": "not_found"}) as url:
        code, found = patient.examined(f"{url}/Patient/2")
        alone = CliRunner().invoke(command_line("doctor"), ["doctor", f"{url}/Patient/2"])
    assert code == alone.exit_code == 1
    for said in (found, alone.output):
        assert f"✗ there is no agent at {url}/Patient/2" in said
        assert said.count("✗") == 1, said
    assert "→ Correct the address: the agent of this config is served at /Patient/1." in found
    assert "→ Correct the address: it is of the form http://127.0.0.1:8000/Name/version." in alone.output


def test_a_config_that_the_env_file_names_is_examined_with_a_url(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where no URL is given."""
    monkeypatch.chdir(patient.folder)
    (patient.folder / ".env").write_text("TA_SERVICE_CONFIG=config.yaml\n")
    with answering(200, {"agents": [{"url": "/Other/2"}]}) as url:
        result = CliRunner().invoke(command_line("doctor"), ["doctor", url], env=patient.env)
    assert "is not the agent of this config" in " ".join(result.output.split())


def test_a_config_file_where_a_url_belongs() -> None:
    """`check` and `serve` take the file by itself, `doctor` by its option, and says so."""
    result = CliRunner().invoke(command_line("doctor"), ["doctor", "agent.yaml"])
    assert result.exit_code == 1
    assert "agent.yaml is not a URL" in result.output
    assert "--config" in result.output


def test_an_address_that_cannot_be_read_is_one_problem() -> None:
    """Like any other at which nothing answers; that it has no host hides nothing else."""
    result = CliRunner().invoke(command_line("doctor"), ["doctor", "http://[::1/Patient/1"])
    assert result.exit_code == 1
    assert "✗ Nothing answers at http://[::1/Patient/1" in result.output


@pytest.mark.parametrize("path", ["", "/Patient/1", "/Other/2", "/Patient/1?x=1"])
def test_a_password_in_the_address_is_not_shown(patient: Patient, path: str) -> None:
    """Neither where nothing answers nor where the wrong agent does: what is printed ends up in logs of CI."""
    with answering(404, {"code": "not_found"}) as url:
        for place in (url, f"http://{NOWHERE}"):
            code, found = patient.examined(f"{place.replace('//', '//ann:canary@')}{path}")
            assert code == 1
            assert place in found
            assert "canary" not in found
