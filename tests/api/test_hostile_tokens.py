"""Hostile tokens against every route over HTTP; what is said to whom lacks a token, and where to get one."""

import http.client
import json
import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hostile_tokens import HOSTILE, Forge
from served_routes import PATHS, PROTOCOLS, guarded_places
from wire import Json, events, problem, records, store_of, text

from tealagents.domain.clock import SystemClock
from tealagents.llm.offline import OfflineModel
from tealagents.testing.authority import APP_ID_URI, SCOPE, TENANT, LocalAuthority, object_id
from tealagents.testing.service import ServiceThread, agent_config

HERE = Path(__file__).parent
SENDABLE = [hostile for hostile in HOSTILE if hostile.sendable]
THOROUGH = os.environ.get("THOROUGH") == "1"
#: of the tokens, every so manieth is tried on a route that is not the first of its protocol
STRIDE = 8
CODES = ("unauthenticated", "insufficient_scope")
TYPES = {"": "application/problem+json"}


def _of_a2a(said: Json) -> bool:
    """Either binding's form."""
    error = said["error"]
    return error.get("data", error.get("details"))[0]["reason"].lower() in CODES


#: protocol → whether a body is its refusal of a token
REFUSALS: dict[str, Callable[[Json], bool]] = {
    "": lambda said: said["code"] in CODES,
    "/openai/v1": lambda said: said["error"]["code"] in CODES,
    "/a2a": _of_a2a,
    "/ag-ui": lambda said: said["type"] == "RUN_ERROR" and said["code"] in CODES,
    "/mcp": lambda said: bool(said["error"]["message"]),
}


class ShiftedClock(SystemClock):
    """The machine's clock, set forward by as much as a test says, or stopped by it."""

    shift = timedelta(0)
    stopped: datetime | None = None

    def now(self) -> datetime:
        return (self.stopped or datetime.now(UTC)) + self.shift


class Guarded:
    """A service that trusts a local authority, and a forge of tokens it must not trust."""

    def __init__(self, service: ServiceThread, forge: Forge, clock: ShiftedClock) -> None:
        self.service = service
        self.forge = forge
        self.clock = clock
        self.places = [place for place in guarded_places(service) if "/import" not in place.name]

    def client(self, user: str = "alice", **claims: Any) -> httpx.Client:
        return self.service.client(self.forge.authority.token(user, **claims))


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    clock = ShiftedClock()
    with LocalAuthority(clock=clock) as authority, OfflineModel() as model:
        forge = Forge(authority)
        env = authority.environment(
            TA_BASE_URL=model.base_url,
            TA_API_KEY="offline-key",
            TA_PLUGIN_MODULE=str(HERE / "custom_plugins.py"),
            TA_PLUGIN_CATALOG_FILE=str(HERE / "catalogue.json"),
        )
        config = agent_config(agent={"plugins": ["Shell"]}, protocols=list(PROTOCOLS))
        with ServiceThread(config, env, clock=clock) as service:
            yield Guarded(service, forge, clock)


@pytest.fixture(autouse=True)
def _clock_is_right_again(guarded: Guarded) -> Iterator[None]:
    yield
    guarded.clock.shift, guarded.clock.stopped = timedelta(0), None


def metadata_url(service: ServiceThread, origin: str | None = None, protocol: str = "") -> str:
    return f"{origin or service.root}/.well-known/oauth-protected-resource{service.prefix}{protocol}"


def test_there_are_many_routes_and_tokens(guarded: Guarded) -> None:
    """The table and the applications are what they should be. covers: AUTH-2"""
    assert {place.protocol for place in guarded.places} == set(PATHS) == REFUSALS.keys()
    assert len(guarded.places) >= 60
    assert len(SENDABLE) >= 56


@pytest.mark.parametrize("protocol", PATHS)
def test_every_hostile_token_is_refused_on_every_route(
    guarded: Guarded, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The right status and header each time, nothing worse in the log, and no token in it. covers: AUTH-2"""
    place = f'Bearer resource_metadata="{metadata_url(guarded.service, protocol=protocol)}"'
    invalid = place + ', error="invalid_token", error_description="The access token is not valid here"'
    scope = f"{APP_ID_URI}/{SCOPE}" if protocol else SCOPE  # v1alpha1 keeps its wire
    lacking = place + f', error="insufficient_scope", scope="{scope}"'
    connection = http.client.HTTPConnection("127.0.0.1", guarded.service.port, timeout=30)
    guarded.clock.stopped = guarded.clock.now()  # what is not valid yet stays so, however long this takes
    tokens = [(hostile, hostile.make(guarded.forge)) for hostile in SENDABLE]
    with caplog.at_level(logging.DEBUG):
        for n, where in enumerate(each for each in guarded.places if each.protocol == protocol):
            path = guarded.service.prefix + where.path
            # every token on one route, and every so manieth on the others: it is the same check
            for hostile, token in tokens if THOROUGH or not n else tokens[n % STRIDE :: STRIDE]:
                headers = {"authorization": b"Bearer " + token.encode()}
                connection.request(where.method, path, headers=headers)
                answer = connection.getresponse()
                said = answer.read().decode()
                wanted = 401 if not token.strip() else hostile.status
                assert answer.status == wanted, (where, hostile, said)
                assert answer.headers["content-type"] == TYPES.get(protocol, "application/json")
                assert answer.headers["www-authenticate"] == (lacking if wanted == 403 else invalid), hostile
                assert REFUSALS[protocol](json.loads(said)), said
    connection.close()
    ours = [record for record in caplog.records if record.name.startswith(("tealagents", "uvicorn.error"))]
    assert not [record for record in ours if record.levelno >= logging.WARNING], ours
    logged = "\n".join(record.getMessage() for record in caplog.records)
    parts = [part for _, token in tokens for part in token.split(".") if len(part) > 40]
    assert not [part for part in parts if part in logged]


def test_nothing_was_stored_for_any_of_them(guarded: Guarded) -> None:
    """A refused token makes no user, no session, no task."""
    store, agent = store_of(guarded.service), guarded.service.prefix.split("/")[1]
    partition = f"{agent}/user/{TENANT}.{object_id('mallory')}"
    for hostile in SENDABLE[::STRIDE]:
        with guarded.service.client(hostile.make(guarded.forge)) as client:
            assert client.post("", json=text("hi")).status_code == hostile.status
    assert not records(store, partition)
    with guarded.client("mallory") as client:
        client.post("", json=text("hi")).raise_for_status()
    assert records(store, partition)


HEADERS: dict[str, tuple[list[tuple[bytes, bytes]], bool]] = {
    "none at all": ([], False),
    "empty": ([(b"authorization", b"")], True),
    "no token": ([(b"authorization", b"Bearer")], True),
    "another scheme": ([(b"authorization", b"Basic YTpi")], True),
    "the token alone": ([(b"authorization", b"TOKEN")], True),
    "two tokens": ([(b"authorization", b"Bearer TOKEN TOKEN")], True),
    "a comma": ([(b"authorization", b"Bearer TOKEN, Bearer TOKEN")], True),
    "twice": ([(b"authorization", b"Bearer TOKEN"), (b"authorization", b"Bearer TOKEN")], True),
    "a good and a bad one": ([(b"authorization", b"Bearer TOKEN"), (b"authorization", b"Bearer x")], True),
    "quoted": ([(b"authorization", b'Bearer "TOKEN"')], True),
    "bytes": ([(b"authorization", b"Bearer \xff\xfe")], True),
    "20 KB": ([(b"authorization", b"Bearer " + b"a" * 20_000)], True),
    "in another header": ([(b"x-authorization", b"Bearer TOKEN")], False),
    "in a cookie": ([(b"cookie", b"access_token=TOKEN")], False),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_missing_doubled_or_malformed_header_is_refused(guarded: Guarded, name: str) -> None:
    """RFC 6750: no error code when no credentials came, else `invalid_token`. covers: AUTH-1"""
    headers, given = HEADERS[name]
    token = guarded.forge.authority.token("alice").encode()
    sent = [(key, value.replace(b"TOKEN", token)) for key, value in headers]
    with guarded.service.client(None) as client:
        for where in guarded.places:
            answer = client.request(where.method, where.path, headers=sent)
            assert answer.status_code == 401, (where, answer.text)
            assert REFUSALS[where.protocol](answer.json()), answer.text
            place = f'Bearer resource_metadata="{metadata_url(guarded.service, protocol=where.protocol)}"'
            header = answer.headers["www-authenticate"]
            assert header.startswith(place)
            assert ('error="invalid_token"' in header) is given, header
            assert given or header == place


def test_a_token_in_the_url_or_the_body_is_no_token(guarded: Guarded) -> None:
    """Tokens are read from the header alone: URLs end up in logs."""
    token = guarded.forge.authority.token("alice")
    with guarded.service.client(None) as client:
        problem(client.get("/tasks", params={"access_token": token}), 401, "unauthenticated")
        problem(client.post("", data={"access_token": token}), 401, "unauthenticated")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_a_good_token_is_taken(guarded: Guarded, scheme: str) -> None:
    """In any case of the scheme, and for versions 1.0 and 2.0. covers: AUTH-2"""
    with guarded.service.client(None) as client:
        for ver in ("1.0", "2.0"):
            token = guarded.forge.authority.token("alice", ver=ver)
            answer = client.get("/tasks", headers={"authorization": f"{scheme} {token}"})
            assert answer.status_code == 200


# --- where tokens come from --------------------------------------------------------------------------


def challenged(answer: httpx.Response) -> str:
    """The URL that a challenge names."""
    return answer.headers["www-authenticate"].split('resource_metadata="')[1].split('"')[0]


def test_the_named_document_says_where_tokens_come_from(guarded: Guarded) -> None:
    """The URL in the challenge leads to the document of this very resource (RFC 9728)."""
    with guarded.service.client(None) as client:
        url = challenged(client.get("/tasks"))
        document = client.get(url).raise_for_status().json()
        assert document["resource"] == guarded.service.url
        assert document["authorization_servers"] == [f"{guarded.forge.authority.url}/{TENANT}/v2.0"]
        assert document["scopes_supported"] == [f"{APP_ID_URI}/{SCOPE}"]
        assert client.get(guarded.service.root + "/.well-known/oauth-protected-resource").json() == document
        answer = client.get(guarded.service.root + "/.well-known/oauth-protected-resource/Other/0.1")
        problem(answer, 404, "not_found")


def test_an_application_that_lacks_a_role_is_asked_for_no_scope() -> None:
    """An administrator assigns roles; what a client asks the authority for is a scope. v1alpha1 names it."""
    config = agent_config(protocols=list(PROTOCOLS))
    with LocalAuthority() as authority:
        env = authority.environment(TA_ENTRA_ALLOW_APP_TOKENS="true", TA_ENTRA_APP_ROLES="Run")
        with (
            ServiceThread(config, {**env, "TA_API_KEY": "none"}) as service,
            service.client(authority.app_token()) as client,
        ):
            for path in PATHS:
                where = next(each for each in guarded_places(service) if each.protocol == path)
                refused = client.request(where.method, where.path)
                assert refused.status_code == 403, where
                assert "Run" in refused.text
                named = refused.headers["www-authenticate"].partition('error="insufficient_scope"')[2]
                assert named == ("" if path else ', scope="Run"')


def test_a_page_of_a_named_origin_may_read_where_tokens_come_from() -> None:
    """Over every further protocol, and A2A's card; also with a header that needs a preflight."""
    origin = {"origin": "https://host.example"}
    config = agent_config(protocols=list(PROTOCOLS), cors_origins=[origin["origin"]])
    asked = {"access-control-request-method": "GET", "access-control-request-headers": "mcp-protocol-version"}
    with (
        LocalAuthority() as authority,
        ServiceThread(config, authority.environment(TA_API_KEY="none")) as service,
        service.client(None) as client,
    ):
        card = f"{service.root}/.well-known/agent-card.json"
        for url in (card, *(metadata_url(service, protocol=path) for path in PATHS if path)):
            for answer in (
                client.get(url, headers=origin),
                client.options(url, headers={**origin, **asked}),
            ):
                assert answer.status_code == 200, url
                assert answer.headers["access-control-allow-origin"] == origin["origin"], url


def test_the_challenge_names_the_address_that_was_called(guarded: Guarded) -> None:
    """Behind a proxy that passes host and scheme on; a host that is none is not repeated."""
    with guarded.service.client(None) as client:
        headers = {"host": "agents.example", "x-forwarded-proto": "https"}
        url = challenged(client.get("/tasks", headers=headers))
        assert url == metadata_url(guarded.service, "https://agents.example")
        document = client.get("/.well-known/oauth-protected-resource", headers=headers)
        document = client.get(f"{guarded.service.root}/.well-known/oauth-protected-resource", headers=headers)
        assert document.json()["resource"] == f"https://agents.example{guarded.service.prefix}"
        for host in ('a"b', "a b", "x/y", "user@host", "[", "\xff"):
            answer = client.get("/tasks", headers=[(b"host", host.encode("latin-1"))])
            assert challenged(answer) == metadata_url(guarded.service)


@pytest.mark.parametrize("path", ["", "/agents"])
def test_the_challenge_names_the_public_url_where_one_is_set(path: str) -> None:
    """Whatever the proxy passes on: TA_PUBLIC_URL is where clients see the service."""
    with LocalAuthority() as authority:
        env = authority.environment(TA_PUBLIC_URL=f"https://agents.example{path}/", TA_API_KEY="none")
        with ServiceThread(agent_config(), env) as service, service.client(None) as client:
            answer = client.get("/tasks", headers={"host": "10.0.0.7", "x-forwarded-proto": "http"})
            well_known = "/.well-known/oauth-protected-resource"
            assert challenged(answer) == f"https://agents.example{well_known}{path}{service.prefix}"
            for known in (f"{path}{service.prefix}", service.prefix, ""):
                document = client.get(service.root + well_known + known).raise_for_status().json()
                assert document["resource"] == f"https://agents.example{path}{service.prefix}"


def test_where_there_is_no_authority_none_is_named() -> None:
    """With the mock provider the challenge is bare, and there is no document."""
    env = {"TA_AUTH": "mock", "TA_API_KEY": "none"}
    with ServiceThread(agent_config(), env) as service, service.client(None) as client:
        assert client.get("/tasks").headers["www-authenticate"] == "Bearer"
        problem(client.get(service.root + "/.well-known/oauth-protected-resource"), 404, "not_found")


# --- tokens that expire ------------------------------------------------------------------------------


def expire(guarded: Guarded) -> None:
    """Two hours later every token made so far is too old."""
    guarded.clock.shift += timedelta(hours=2)


def test_a_token_that_expires_in_the_middle_of_a_stream_does_not_end_it(guarded: Guarded) -> None:
    """Who was let in is answered to the end; the next call needs a new token. covers: AUTH-2"""
    with guarded.client() as client:
        said = text("pieces-40@20ms")
        with client.stream("POST", "/sse", json=said) as stream:
            shown = events(stream.iter_lines())
            first = [next(shown), next(shown)]
            expire(guarded)
            problem(client.get("/tasks"), 401, "unauthenticated")
            rest = list(shown)
        assert [event.name for event in first] == ["request", "partial-response"]
        assert rest[-1].name == "final-response"
        assert rest[-1].data["content"]["output"] == " ".join(map(str, range(1, 41)))
        request = first[0].data["request_id"]
        problem(client.get(f"/requests/{request}/events"), 401, "unauthenticated")
    with guarded.client() as again:
        assert list(events(again.get(f"/requests/{request}/events").text))[-1].data == rest[-1].data


def test_a_token_that_expires_before_a_resume_decides_nothing(guarded: Guarded) -> None:
    """The pause stays as it was, and can be decided with a new token. covers: AUTH-2, HITL-1"""
    with guarded.client() as client:
        paused: Json = client.post("", json=text('call Shell-delete {"path": "/x"}')).json()
        assert paused["status"] == "Paused"
        path = paused["content"]["approval_url"]
        expire(guarded)
        for way in (path, path.replace("/resume", "/resume/sse")):
            answer = client.post(guarded.service.root + way, json={"action": "approve"})
            problem(answer, 401, "unauthenticated")
            assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    with guarded.client() as again:
        assert again.get(f"/requests/{paused['request_id']}").json()["status"] == "Paused"
        answer = again.post(guarded.service.root + path, json={"action": "approve"})
        assert answer.json()["status"] == "Completed"


@pytest.mark.parametrize("host", ["[::::]", "[1.2.3.4]", "[:]"])
def test_a_hostile_host_is_refused_for_its_token(guarded: Guarded, host: str) -> None:
    """Where to get one is at the address that was called, which no Host hides."""
    with guarded.service.client(None) as stranger:
        for path in ("/tasks", "/openai/v1/models", "/a2a"):
            answer = stranger.get(path, headers={"host": host})
            assert answer.status_code == 401
            assert f'resource_metadata="{guarded.service.root}/' in answer.headers["www-authenticate"]
