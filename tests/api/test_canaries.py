"""Secrets stay where they belong: a dozen of them are sent through a service at DEBUG, and looked for.

The service is a process of its own, as in production; its whole log is read, what it exports to
OpenTelemetry, what it answers where something is wrong, and every byte that it stores.
"""

import base64
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import yaml
from a2a_talk import VERSION, message
from collecting import Collector
from earlier_agents import CHAT, write
from mcp_talk import ACCEPT, opened
from websockets.sync.client import connect
from wire import JSON, text

from tealagents.bootstrap import application
from tealagents.config import load
from tealagents.llm.offline import OfflineModel
from tealagents.stores import StoreConfigError
from tealagents.testing.authority import SERVICE_ID, LocalAuthority
from tealagents.testing.forking import Nursery
from tealagents.testing.service import agent_config

HERE = Path(__file__).parent

#: where a secret may turn up
LOG, SPANS, ERRORS, STORE = "log", "spans", "error bodies", "store"
EVERYWHERE = frozenset({LOG, SPANS, ERRORS, STORE})
NOWHERE: frozenset[str] = frozenset()

#: name → text, and the places where it belongs. What users say is kept, and shown to no one else.
CANARIES: dict[str, tuple[str, frozenset[str]]] = {
    "api key": ("sk-canary-api-key-0001", NOWHERE),
    "audit key": ("canary-audit-key-00003", NOWHERE),
    "client secret": ("canary-client-secret-4", NOWHERE),
    "idempotency key": ("canary-idempotency-06", NOWHERE),
    "message": ("canary-message-000007", frozenset({STORE})),
    "user context": ("canary-context-000008", frozenset({STORE})),
    "metadata": ("canary-metadata-00009", frozenset({STORE})),
    "tool argument": ("canary-argument-00010", frozenset({STORE})),
    "reason": ("canary-reason-0000011", frozenset({STORE})),
    "forged token": ("canary-forged-token-12", NOWHERE),
    "query": ("canary-query-00000013", NOWHERE),
    "header": ("canary-header-0000014", NOWHERE),
}
#: what only services with other settings hold
ENCRYPTION_KEY = base64.urlsafe_b64encode(b"canary-encryption-key-000000002!").decode()
STORE_PASSWORD = "canary-password-00005"


@dataclass
class Traces:
    """All that a service has left behind, by place."""

    places: dict[str, bytes] = field(default_factory=lambda: dict.fromkeys(EVERYWHERE, b""))

    def leaks(self, secrets: Mapping[str, tuple[str, frozenset[str]]]) -> list[str]:
        """Where secrets are that do not belong there, written plainly or in base64."""
        return [
            f"{name} in {place}"
            for name, (secret, allowed) in secrets.items()
            for place, left in self.places.items()
            if place not in allowed and any(form in left for form in _forms(secret))
        ]


def _forms(secret: str) -> tuple[bytes, ...]:
    """As it is, and in base64 at whatever place of a group it begins: of that what depends on it alone."""
    plain = secret.encode()
    ends = [(shift, 4 * bool(shift), (shift + len(plain)) // 3 * 4) for shift in range(3)]
    return plain, *(base64.b64encode(b" " * shift + plain)[start:end] for shift, start, end in ends)


def canary(name: str) -> str:
    return CANARIES[name][0]


@dataclass
class Left:
    traces: Traces
    #: each token that was sent: none of them may be kept or shown anywhere
    tokens: list[str]
    #: the names of the spans that were exported
    spans: set[str]


@pytest.fixture(scope="module")
def left(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """What a service has left behind that was sent every secret, in calls that work and calls that do not."""
    folder = tmp_path_factory.mktemp("canaries")
    traces, tokens = Traces(), []
    with ExitStack() as stack:
        authority = stack.enter_context(LocalAuthority())
        model = stack.enter_context(OfflineModel())
        collector = stack.enter_context(Collector())
        env = authority.environment(
            TA_ENTRA_CLIENT_ID=SERVICE_ID,
            TA_ENTRA_CLIENT_SECRET=canary("client secret"),
            TA_BASE_URL=model.base_url,
            TA_API_KEY=canary("api key"),
            TA_AUDIT_KEY=canary("audit key"),
            TA_LOG_LEVEL="DEBUG",
            TA_OTEL_ENDPOINT=collector.url,
            TA_PLUGIN_MODULE=str(HERE / "custom_plugins.py"),
            TA_PLUGIN_CATALOG_FILE=str(HERE / "catalogue.json"),
        )
        config = agent_config(
            agent={"plugins": ["Shell"]}, persistence=f"file://{folder}/state", protocols=["a2a", "mcp"]
        )
        with nursery.service(config, env) as service:
            token = authority.token("alice")
            tokens += [token, authority.token("alice", scopes=["other"])]
            tokens.append(token[:-20] + canary("forged token"))
            with service.client(token) as client:
                traces.places[ERRORS] = b"".join(_conversation(client, model, tokens))
            service.terminate()
            traces.places[LOG] = service.log().encode()
        traces.places[SPANS] = b"".join(collector.taken)
        spans = {span.name for span in collector.spans}
    traces.places[STORE] = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return Left(traces, tokens, spans)


def _conversation(client: httpx.Client, model: OfflineModel, tokens: list[str]) -> Iterator[bytes]:
    """Sends everything; yields the bodies of what was refused or failed."""
    key = {"idempotency-key": canary("idempotency key"), "x-private": canary("header")}
    said = text(
        canary("message"),
        user_context={"about": canary("user context")},
        metadata={"kept": canary("metadata")},
    )
    answer = client.post("", json=said, headers=key).raise_for_status().json()
    client.post("/sse", json=text(canary("message"), task_id=answer["task_id"])).raise_for_status()
    streamed = {"message": message(canary("message"))}
    client.post("/a2a/message:stream", json=streamed, headers=VERSION).raise_for_status()
    asked = {"name": "ask", "arguments": {"message": canary("message")}}
    in_session = {"accept": ACCEPT, "mcp-session-id": opened(client)}
    called = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}
    assert canary("message") in client.post("/mcp", json=called, headers=in_session).raise_for_status().text
    yield client.post("", json=text("another body"), headers=key).content
    call = f'call Shell-delete {{"path": "{canary("tool argument")}"}}'
    paused = client.post("", json=text(call)).raise_for_status().json()
    yield client.post("", json=text(canary("message"), task_id=paused["task_id"])).content
    decision = {"action": "reject", "reason": canary("reason")}
    client.post(f"/requests/{paused['request_id']}/resume", json=decision).raise_for_status()
    yield client.get("/tasks", params={"limit": canary("query")}).content
    yield client.get("/oauth/callback", params={"state": canary("query"), "code": canary("query")}).content
    yield client.post("", content=f'{{"items": "{canary("message")}', headers=JSON).content
    for token in tokens[1:]:
        yield client.get("/tasks", headers={"authorization": f"Bearer {token}"}).content
    error = {"status": 401, "message": f"Incorrect API key provided: {canary('api key')}"}
    model.script({"otherwise": {"error": error}})
    yield client.post("", json=text(canary("message"))).content
    model.script(None)


def test_there_is_something_to_look_at(left: Left) -> None:
    """There is a log, spans and logs were exported, errors were returned, state was stored."""
    places = left.traces.places
    assert places[LOG].count(b"\n") > 5
    assert {"POST /Tester/0.1", "invoke_agent Tester"} <= left.spans
    assert b"POST /Tester/0.1 Completed" in places[SPANS]
    assert b"invalid_request" in places[ERRORS]
    assert b"model_error" in places[ERRORS]
    for name, (secret, allowed) in CANARIES.items():
        assert STORE not in allowed or secret.encode() in places[STORE], name


def test_there_are_a_dozen_secrets() -> None:
    """Tokens, keys, passwords, and what people say."""
    assert len({secret for secret, _ in CANARIES.values()}) == len(CANARIES) >= 12


def test_no_secret_is_where_it_does_not_belong(left: Left) -> None:
    """Not in a log line at DEBUG, not in a span, not in an error, not in a record. covers: AUTH-1, APP-5"""
    assert left.traces.leaks(CANARIES) == []


def test_no_token_is_anywhere(left: Left) -> None:
    """Neither whole nor by its signature, the good ones as little as the refused. covers: AUTH-5"""
    parts = {f"token {n}": token.split(".")[-1][:60] for n, token in enumerate(left.tokens)}
    assert left.traces.leaks({name: (part, NOWHERE) for name, part in parts.items()}) == []


@pytest.mark.parametrize("place", sorted(EVERYWHERE))
def test_a_planted_leak_is_found(left: Left, place: str) -> None:
    """The search would find any of them, in each place, written plainly or in base64."""
    for name, (secret, allowed) in CANARIES.items():
        for form in _forms(secret):
            planted = Traces(left.traces.places | {place: left.traces.places[place] + form})
            assert (f"{name} in {place}" in planted.leaks(CANARIES)) is (place not in allowed)


def test_encrypted_state_holds_nothing_that_can_be_read(nursery: Nursery, tmp_path: Path) -> None:
    """With an encryption key not even what people say is in the store; nor is the key. covers: STATE-1"""
    with OfflineModel() as model:
        env = {
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": canary("api key"),
            "TA_AUTH": "mock",
            "TA_LOG_LEVEL": "DEBUG",
            "TA_ENCRYPTION_KEY": ENCRYPTION_KEY,
        }
        config = agent_config(persistence=f"file://{tmp_path}/state")
        with nursery.service(config, env) as service, service.client("ada") as ada:
            said = text(canary("message"), metadata={"kept": canary("metadata")})
            ada.post("", json=said).raise_for_status()
            service.terminate()
            log = service.log().encode()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert stored
    for secret in (canary("message"), canary("metadata"), ENCRYPTION_KEY, canary("api key")):
        assert not any(form in stored + log for form in _forms(secret)), secret


@pytest.mark.parametrize("content", ["false", "true"])
def test_a_websocket_leaves_no_secret_in_the_log(nursery: Nursery, tmp_path: Path, content: str) -> None:
    """Its handshake holds credentials, its frames hold messages. Allowing content allows no credentials."""
    secrets = {"authorization": f"Bearer {canary('forged token')}", "taagwkey": canary("header")}
    said = {"chat_history": [{"role": "user", "content": canary("message")}]}
    with OfflineModel() as model:
        env = {
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": canary("api key"),
            "TA_AUTH": "gateway",
            "TA_GATEWAY_SECRET": canary("header"),
            "TA_LOG_LEVEL": "DEBUG",
            "TA_LOG_CONTENT": content,
        }
        with nursery.service(write(tmp_path, CHAT), env) as service:
            stream = service.url.replace("http", "ws") + "/stream"
            with connect(stream, additional_headers=secrets) as socket:
                socket.send(json.dumps(said))
                assert canary("message") in "".join(map(str, socket))
            service.terminate()
            left = Traces({LOG: service.log().encode()})
    kept = ("forged token", "header", "api key") if content == "true" else CANARIES
    assert left.leaks({name: CANARIES[name] for name in kept}) == []


async def test_an_encrypted_store_is_not_served_without_its_key(tmp_path: Path) -> None:
    """What is new would lie beside the rest in the clear. covers: STATE-1"""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(agent_config(persistence=f"sqlite:///{tmp_path}/state.db")))
    env = {"TA_BASE_URL": "http://127.0.0.1:1/v1", "TA_API_KEY": "any", "TA_AUTH": "mock"}

    async def start(**more: str) -> None:
        app = application(load(path, env=env | more, dotenv=None))
        async with app.lifespan(app):
            pass

    await start(TA_ENCRYPTION_KEY=ENCRYPTION_KEY)
    with pytest.raises(StoreConfigError, match="set TA_ENCRYPTION_KEY to the key it was stored with"):
        await start()
    await start(TA_ENCRYPTION_KEY=ENCRYPTION_KEY)


ENCRYPTED = {"TA_ENCRYPTION_KEY": ENCRYPTION_KEY}
OTHERWISE = {"TA_ENCRYPTION_KEY": "another key " * 4}


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (ENCRYPTED, {}, "set TA_ENCRYPTION_KEY to the key it was stored with"),
        (ENCRYPTED, OTHERWISE, "name it in TA_ENCRYPTION_OLD_KEYS"),
        ({}, ENCRYPTED, "tealagents state export"),
    ],
    ids=["without its key", "with another key", "with a key that it was written without"],
)
def test_a_store_is_served_with_its_own_key_only(
    nursery: Nursery, tmp_path: Path, before: dict[str, str], now: dict[str, str], said: str
) -> None:
    """What is new would lie beside the rest in the clear, or sealed by another key. covers: STATE-1

    However long the service has not run: the leases of its processes are forgotten then.
    """
    config = agent_config(persistence=f"sqlite:///{tmp_path}/state.db")
    with OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "any", "TA_AUTH": "mock"}
        with nursery.service(config, env | before) as service, service.client("ada") as ada:
            ada.post("", json=text("hello")).raise_for_status()
            service.terminate()
        with closing(sqlite3.connect(tmp_path / "state.db")) as database, database:
            database.execute("DELETE FROM records WHERE partition LIKE '%/workers'")
        refused = nursery.service(config, env | now)
        try:
            with pytest.raises(RuntimeError, match=said):
                refused.start()
        finally:
            refused.__exit__(None, None, None)
        with nursery.service(config, env | before) as service, service.client("ada") as ada:
            assert len(ada.get("/tasks").raise_for_status().json()["items"]) == 1


@pytest.mark.parametrize(("one", "other"), [(ENCRYPTED, OTHERWISE), ({}, ENCRYPTED), (ENCRYPTED, {})])
def test_no_service_with_another_key_starts_beside_one_that_has_no_users_yet(
    nursery: Nursery, tmp_path: Path, one: dict[str, str], other: dict[str, str]
) -> None:
    """Both would seal what their users say, and neither read all of it. covers: STATE-1"""
    config = agent_config(persistence=f"sqlite:///{tmp_path}/state.db")
    with OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "any", "TA_AUTH": "mock"}
        with nursery.service(config, env | one) as service, service.client("ada") as ada:
            refused = nursery.service(config, env | other)
            try:
                with pytest.raises(RuntimeError, match="TA_ENCRYPTION_KEY is not the key of this store"):
                    refused.start()
            finally:
                refused.__exit__(None, None, None)
            ada.post("", json=text("hello")).raise_for_status()


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_the_password_of_a_store_is_not_shown_when_it_is_away(nursery: Nursery, scheme: str) -> None:
    """A store that cannot be reached is named without its credentials."""
    url = f"{scheme}://agent:{STORE_PASSWORD}@127.0.0.1:1/0"
    env = {"TA_API_KEY": "k", "TA_AUTH": "mock", "TA_LOG_LEVEL": "DEBUG", "TA_PERSISTENCE": url}
    service = nursery.service(agent_config(), env)
    try:
        with pytest.raises(RuntimeError) as failed:
            service.start()
    finally:
        service.__exit__(None, None, None)
    reported = str(failed.value)
    assert "127.0.0.1" in reported
    assert STORE_PASSWORD not in reported
