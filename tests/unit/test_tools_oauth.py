"""A user's own authorization: the SDK's authorization server, a browser that agrees, servers that lie."""

import asyncio
import dataclasses
import json
import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import config_files
import httpx2
import pytest
from engine_setup import Scripted
from oauth_setup import CALLBACK, Pretender, Provider, SecretStore, pretending, protected, visited
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tools_setup import Context, by_name, mcp_route, served

from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import InvalidRequest, NeedsAuthorization, PersistenceUnavailable, ToolFailed
from tealagents.domain.models import PENDING_CONSENTS, ToolCall, User
from tealagents.domain.ports import Governance, Record, Tool, ToolContext, ToolSpec
from tealagents.engine.toolbox import Toolbox, ToolOutput
from tealagents.state import secret_store as state
from tealagents.state.records import RecordStore
from tealagents.stores.memory import MemoryStore
from tealagents.testing.clock import advance
from tealagents.testing.signing_in import self_signed
from tealagents.tooling import Tooling
from tealagents.tools import mcp, oauth_clients, oauth_grants, oauth_pending, oauth_tokens
from tealagents.tools.catalogue import Catalogue, govern
from tealagents.tools.errors import ToolsetError
from tealagents.tools.mcp import MCPServer
from tealagents.tools.mcp_connection import MCPConnection
from tealagents.tools.oauth import Consents
from tealagents.tools.oauth_servers import (
    ANSWER_SECONDS,
    Challenge,
    Endpoints,
    ProtectedServer,
    resource_metadata,
    token_request,
)
from tealagents.tools.options import MCPServerOptions
from tealagents.tools.user_tokens import TOKEN_SECONDS

Json = dict[str, Any]


@asynccontextmanager
async def opened(url: str, consents: Consents | None, **options: Any) -> AsyncIterator[MCPServer]:
    entry = MCPServerOptions(name="secure", url=url, trust_level="trusted", **options)
    async with MCPServer(entry, consents) as server:
        yield server


async def agreed(provider: Provider, consents: Consents, user: str, asked: NeedsAuthorization) -> str:
    brought = await visited(provider, user, asked.url)
    return await consents.complete(brought["state"], brought["code"], iss=brought.get("iss"))


async def call(server: MCPServer, context: ToolContext, name: str = "secure-whoami") -> str:
    tool = server.find(name)
    assert tool is not None
    return await tool.call(context, {})


async def asked_by(
    server: MCPServer, context: ToolContext, name: str = "secure-whoami"
) -> NeedsAuthorization:
    with pytest.raises(NeedsAuthorization) as asked:
        await call(server, context, name)
    return asked.value


# --- the way through -----------------------------------------------------------------------------


async def test_user_is_asked_and_then_served() -> None:
    """A server that wants a token for all is used once the user has agreed, with it. covers: HITL-3"""
    provider = Provider()
    consents = Consents(CALLBACK)
    with protected(provider) as url:
        async with opened(url, consents) as server:
            assert set(by_name(server)) == {"secure-connect"}
            asked = await asked_by(server, Context("alice"))
            assert asked.server == "secure"
            assert asked.scopes == ("notes",)
            query = parse_qs(urlsplit(asked.url).query)
            assert query["code_challenge_method"] == ["S256"]
            assert query["resource"] == [url]
            assert query["redirect_uri"] == [CALLBACK]
            assert await agreed(provider, consents, "Alice", asked) == "secure"
            assert await call(server, Context("alice")) == "Alice"
            assert set(by_name(server)) == {"secure-connect"}
            mine = server.tools_of(User("contoso", "alice"))
            assert [tool.spec.name for tool in mine] == ["secure-whoami"]


async def test_each_user_has_his_own_token_and_connection() -> None:
    """One user's consent is not another's; nor is that of the same object id in another tenant."""
    provider = Provider()
    consents = Consents(CALLBACK)
    with protected(provider) as url:
        async with opened(url, consents) as server:
            for user in ("alice", "bob"):
                await agreed(provider, consents, user.title(), await asked_by(server, Context(user)))
            answers = await asyncio.gather(
                *(call(server, Context(user)) for user in ("alice", "bob") for _ in range(10))
            )
            assert answers == ["Alice"] * 10 + ["Bob"] * 10
            await asked_by(server, Context("alice", tenant_id="fabrikam"))
    assert provider.granted == ["code", "code"]


async def test_connecting_shows_what_can_be_called() -> None:
    """The stand-in tool asks, and then returns the names of the server's tools."""
    provider = Provider()
    consents = Consents(CALLBACK)
    with protected(provider) as url:
        async with opened(url, consents) as server:
            asked = await asked_by(server, Context(), "secure-connect")
            await agreed(provider, consents, "Alice", asked)
            answer = await call(server, Context(), "secure-connect")
            assert answer == (
                "Connected. These tools can be called now:\n- secure-whoami: Tell whose token it is."
            )


async def test_round_of_calls_asks_once() -> None:
    """Calls of one request, made at once, show one link; another request has one of its own."""
    provider = Provider()
    consents = Consents(CALLBACK)
    with protected(provider) as url:
        async with opened(url, consents) as server:
            asked = await asyncio.gather(
                *(asked_by(server, Context(request_id=request)) for request in ("1", "1", "1", "2"))
            )
            assert len({one.url for one in asked[:3]}) == 1
            assert asked[3].url != asked[0].url
    assert len(provider.clients) == 1


async def test_without_anyone_to_ask_it_is_reported() -> None:
    """Where no consent can be asked for, start or call say so."""
    with protected(Provider()) as url:
        with pytest.raises(ToolsetError, match="cannot be used: 401 Unauthorized"):
            async with opened(url, None):
                pass
        async with opened(url, Consents(None)) as server:
            with pytest.raises(ToolFailed, match="this service has no public URL"):
                await call(server, Context())


@pytest.mark.parametrize(
    ("api_version", "remedy", "other"),
    [
        ("tealagents/v1alpha1", "The operator has to set TA_PUBLIC_URL", "migrate"),
        ("skagents/v1", "An agent of skagents/v1 has none: the operator has to migrate it", "TA_PUBLIC_URL"),
    ],
)
async def test_without_a_public_url_the_operator_learns_what_helps_this_agent(
    tmp_path: Path, api_version: str, remedy: str, other: str
) -> None:
    """A URL, or migrating an agent of the earlier platform; no one reads of what is not theirs."""
    with protected(Provider()) as url:
        servers = f"mcp_servers: [{{name: secure, url: '{url}', trust_level: trusted}}]"
        config = config_files.read(tmp_path, config_files.with_agent(servers))
        tooling = Tooling(dataclasses.replace(config, api_version=api_version), None, SystemClock())
        try:
            [server] = await tooling.open(lambda: None)
            with pytest.raises(ToolFailed, match="this service has no public URL") as raised:
                await by_name(server)["secure-connect"].call(Context(), {})
        finally:
            await tooling.close()
    assert remedy in str(raised.value)
    assert other not in str(raised.value)


@contextmanager
def listing_for_all(*statuses: int) -> Iterator[tuple[str, Pretender]]:
    """An MCP server that lists its tool for all, and answers calls without a token with these statuses; and
    the authorization server that it is once it publishes its metadata."""
    status, pretender = iter(statuses), Pretender()

    async def called(request: Request, message: Json) -> Response | None:
        if message.get("method") != "tools/call":
            return None
        sent = request.headers.get("authorization", "no token")
        if sent == "no token" and (code := next(status)) != 200:
            return Response(status_code=code)
        result = {"content": [{"type": "text", "text": sent}]}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})

    routes = [
        mcp_route("whoami", called),
        Route("/token", pretender.token, methods=["POST"]),
        Route("/{path:path}", pretender.document, methods=["GET"]),
    ]
    with served(Starlette(routes=routes)) as pretender.url:
        yield f"{pretender.url}/mcp", pretender


@pytest.mark.parametrize("callback", [CALLBACK, None])
async def test_a_401_that_passes_costs_no_later_call(callback: str | None) -> None:
    """The server leads to no authorization server, or no user could come back from there: it is called
    again without a token, by each user."""
    with listing_for_all(200, 401, 200, 200) as (url, _):
        async with opened(url, Consents(callback)) as server:
            assert await call(server, Context()) == "no token"
            reported = (
                r"^secure refused the call: 401 Unauthorized\. Nothing was done\. The user cannot be asked"
            )
            with pytest.raises(ToolFailed, match=reported):
                await call(server, Context())
            assert [await call(server, Context(user)) for user in ("alice", "bob")] == ["no token"] * 2


async def test_after_a_401_the_wait_for_a_token_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that lists for all: where no token comes in time, the call was not made, and says so."""

    async def no_token(*_: object) -> str:
        return await asyncio.Event().wait() and ""

    with listing_for_all(401, 200) as (url, _):
        async with opened(url, Consents(CALLBACK)) as server:
            monkeypatch.setattr(mcp, "TOKEN_SECONDS", 0.05)
            monkeypatch.setattr(server, "_token", no_token)
            async with asyncio.timeout(30):
                with pytest.raises(
                    ToolFailed, match=r"Nothing was done\. The user cannot be asked"
                ) as called:
                    await call(server, Context())
            assert not called.value.unknown
            assert await call(server, Context()) == "no token"


async def test_a_server_that_lists_for_all_may_want_a_token_for_calls() -> None:
    """Once that is known, from a user who is asked or has agreed already, no call is made without one."""
    consents = Consents(CALLBACK)
    with listing_for_all(401, 401) as (url, pretender):
        pretender.publish()
        async with opened(url, consents, oauth_client_id="me") as server:
            asked = await asked_by(server, Context())
            await asked_by(server, Context("bob"))
            await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
            assert await call(server, Context()) == "Bearer granted"
        async with opened(url, consents, oauth_client_id="me") as server:
            assert await call(server, Context()) == "Bearer granted"
            await asked_by(server, Context("bob"))


# --- the state -----------------------------------------------------------------------------------


async def test_state_is_used_once_and_expires() -> None:
    """A link that was used, forged, or is too old gives no token."""
    provider = Provider()
    now = [1000.0]
    consents = Consents(CALLBACK, now=lambda: now[0])
    with protected(provider) as url:
        async with opened(url, consents) as server:
            brought = await visited(provider, "Alice", (await asked_by(server, Context())).url)
            with pytest.raises(InvalidRequest, match="this link has been used, or is too old"):
                await consents.complete("forged", brought["code"])
            await consents.complete(brought["state"], brought["code"], iss=brought.get("iss"))
            with pytest.raises(InvalidRequest, match="this link has been used"):
                await consents.complete(brought["state"], brought["code"])
            link = (await asked_by(server, Context("bob"))).url
            old = await visited(provider, "Bob", link)
            now[0] += 3601
            assert (await asked_by(server, Context("bob"))).url != link
            with pytest.raises(InvalidRequest, match="too old"):
                await consents.complete(old["state"], old["code"])
            refused = await asked_by(server, Context("bob"))
            state = parse_qs(urlsplit(refused.url).query)["state"][0]
            assert await consents.refuse(state, "access_denied", "") == "Nothing was granted."
            with pytest.raises(InvalidRequest, match="this link has been used"):
                await consents.complete(state, "code")


class _Meeting(MemoryStore):
    """Answers each read of a pending authorization once two have asked for one."""

    def __init__(self) -> None:
        super().__init__()
        self.both = asyncio.Barrier(2)

    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]:
        found = await super().read(partition, keys)
        if partition.endswith(PENDING_CONSENTS):
            await self.both.wait()
        return found


async def test_a_state_that_comes_back_twice_at_once_is_used_once(pretender: Pretender) -> None:
    """By two replicas as by one: a code that is sent twice has its tokens revoked (RFC 6749, 4.1.2)."""
    pretender.publish()
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    async with _Meeting() as store:
        secrets = state.SecretStore(RecordStore(store, "Tester", SystemClock()))
        one, two = Consents(CALLBACK, secret_store=secrets), Consents(CALLBACK, secret_store=secrets)
        link = parse_qs(urlsplit((await one.need(Context(), server)).url).query)["state"][0]
        came = await asyncio.gather(
            one.complete(link, "code"), two.complete(link, "code"), return_exceptions=True
        )
    assert [type(each) for each in came if each != "x"] == [InvalidRequest]
    assert len(pretender.forms) == 1


async def test_a_link_that_another_replica_used_is_not_shown_again(pretender: Pretender) -> None:
    """The user declined there: resuming the request here makes a new link."""
    pretender.publish()
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = SecretStore()
    here, there = Consents(CALLBACK, secret_store=secrets), Consents(CALLBACK, secret_store=secrets)
    link = (await here.need(Context(), server)).url
    assert (await here.need(Context(), server)).url == link
    await there.refuse(parse_qs(urlsplit(link).query)["state"][0], "access_denied", "")
    assert (await here.need(Context(), server)).url != link


async def test_a_user_is_asked_anew_where_another_link_was_used(pretender: Pretender) -> None:
    """Of two requests that wait for one server: the link of the second would grant nothing any more."""
    pretender.publish()
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    for secrets in (None, SecretStore()):
        consents = Consents(CALLBACK, secret_store=secrets)
        wider = Challenge(scopes=("more",))
        first, second = [await consents.need(Context(request_id=n), server, wider) for n in ("1", "2")]
        await consents.complete(parse_qs(urlsplit(first.url).query)["state"][0], "code")
        again = await consents.need(Context(request_id="2"), server, wider)
        assert again.url != second.url
        with pytest.raises(InvalidRequest, match="by another link since"):
            await consents.complete(parse_qs(urlsplit(second.url).query)["state"][0], "code")
        await consents.complete(parse_qs(urlsplit(again.url).query)["state"][0], "code")


async def test_many_links_of_one_user_end_no_other_users_link(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They replace that user's own, the oldest first."""
    monkeypatch.setattr(oauth_pending, "MAX_PENDING", 4)
    monkeypatch.setattr(oauth_pending, "MAX_OF_USER", 2)
    pretender.publish()
    server, consents = ProtectedServer(name="x", issuer=pretender.url, client_id="me"), Consents(CALLBACK)
    ada = await consents.need(Context(user_id="ada"), server)
    eves = [await consents.need(Context(user_id="eve", request_id=str(n)), server) for n in range(5)]
    states = [parse_qs(urlsplit(asked.url).query)["state"][0] for asked in (ada, *eves)]
    assert await consents.complete(states[0], "code") == "x"
    for old in states[1:4]:
        with pytest.raises(InvalidRequest, match="too old"):
            await consents.complete(old, "code")
    assert await consents.complete(states[5], "code") == "x"


async def test_code_is_bound_to_its_state() -> None:
    """A code that was issued for another link is refused, by PKCE: its verifier is another."""
    provider = Provider()
    consents = Consents(CALLBACK)
    with protected(provider) as url:
        async with opened(url, consents) as server:
            alice = await visited(provider, "Alice", (await asked_by(server, Context("alice"))).url)
            mallory = await visited(provider, "Mallory", (await asked_by(server, Context("mallory"))).url)
            with pytest.raises(InvalidRequest, match=r"refused it .* Resume the request for a new link"):
                await consents.complete(mallory["state"], alice["code"], iss=alice.get("iss"))
            await asked_by(server, Context("mallory"))


async def test_answer_of_another_server_is_refused() -> None:
    """A callback that names another issuer than was asked gives no token (RFC 9207)."""
    provider = Provider()
    consents = Consents(CALLBACK)
    with protected(provider) as url:
        async with opened(url, consents) as server:
            brought = await visited(provider, "Alice", (await asked_by(server, Context())).url)
            with pytest.raises(
                InvalidRequest, match="a different authorization server than the one that was asked"
            ):
                await consents.complete(brought["state"], brought["code"], iss="https://evil.example")


@pytest.mark.parametrize("store", [None, SecretStore()], ids=["memory", "store"])
async def test_an_answer_of_another_server_does_not_spend_the_link(
    pretender: Pretender, store: SecretStore | None
) -> None:
    """Nor does one without the server's promised name; an error is checked as a code is (RFC 9207, 2.4)."""
    pretender.publish(authorization_response_iss_parameter_supported=True)
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    consents = Consents(CALLBACK, secret_store=store)
    state = parse_qs(urlsplit((await consents.need(Context(), server)).url).query)["state"][0]
    for iss, problem in (("https://evil.example", "different authorization"), (None, "has to name itself")):
        with pytest.raises(InvalidRequest, match=problem):
            await consents.refuse(state, "access_denied", "", iss=iss)
        with pytest.raises(InvalidRequest, match=problem):
            await consents.complete(state, "code", iss=iss)
    assert await consents.complete(state, "code", iss=pretender.url) == "x"


# --- renewal -------------------------------------------------------------------------------------


async def test_token_is_renewed_where_there_is_a_secret_store() -> None:
    """An access token that ends is renewed with the stored refresh token, by one of many calls."""
    provider, secrets, now = Provider(), SecretStore(), [1000.0]
    consents = Consents(CALLBACK, secret_store=secrets, now=lambda: now[0])
    with protected(provider) as url:
        async with opened(url, consents) as server:
            await agreed(provider, consents, "Alice", await asked_by(server, Context()))
            now[0] += 3590
            assert await asyncio.gather(*(call(server, Context()) for _ in range(8))) == ["Alice"] * 8
            assert provider.granted == ["code", "refresh"]
            now[0] += 3590
            assert await call(server, Context()) == "Alice"
            assert provider.granted == ["code", "refresh", "refresh"]


async def test_a_token_is_forgotten_a_minute_after_its_grant_was_deleted() -> None:
    """As it is with its user, by another process."""
    provider, secrets, now = Provider(), SecretStore(), [1000.0]
    consents = Consents(CALLBACK, secret_store=secrets, now=lambda: now[0])
    with protected(provider) as url:
        async with opened(url, consents) as server:
            await agreed(provider, consents, "Alice", await asked_by(server, Context()))
            for _ in range(3):  # it is there
                now[0] += 90
                assert await call(server, Context()) == "Alice"
            secrets.secrets.clear()
            now[0] += 59
            assert await call(server, Context()) == "Alice"
            now[0] += 2
            await asked_by(server, Context())
            await agreed(provider, consents, "Alice", await asked_by(server, Context()))
            assert await call(server, Context()) == "Alice"


async def test_token_is_asked_for_again_where_there_is_no_secret_store() -> None:
    """Without an encrypted store no refresh token is kept, not even in memory."""
    provider, now = Provider(), [1000.0]
    consents = Consents(CALLBACK, now=lambda: now[0])
    with protected(provider) as url:
        async with opened(url, consents) as server:
            await agreed(provider, consents, "Alice", await asked_by(server, Context()))
            assert not [name for name in provider.refresh if name in repr(vars(consents))]
            now[0] += 3590
            await asked_by(server, Context())


async def test_restart_and_replicas_share_the_secret_store() -> None:
    """A link made by one process is completed by another, once; a third needs no consent."""
    provider, secrets = Provider(), SecretStore()
    one, two, three = (Consents(CALLBACK, secret_store=secrets) for _ in range(3))
    with protected(provider) as url:
        async with opened(url, one) as server:
            brought = await visited(provider, "Alice", (await asked_by(server, Context())).url)
        assert await two.complete(brought["state"], brought["code"], iss=brought.get("iss")) == "secure"
        with pytest.raises(InvalidRequest, match="this link has been used"):
            await one.complete(brought["state"], brought["code"], iss=brought.get("iss"))
        async with opened(url, three) as server:
            assert await call(server, Context()) == "Alice"
    assert provider.granted == ["code", "refresh"]
    assert [key for key, _ in secrets.secrets] == ["contoso.alice"]


async def test_token_that_was_revoked_is_renewed_or_asked_for() -> None:
    """A 401 for a token that should hold: renewed if it can be, else the user is asked again."""
    provider, secrets = Provider(), SecretStore()
    consents = Consents(CALLBACK, secret_store=secrets)
    with protected(provider) as url:
        async with opened(url, consents) as server:
            await agreed(provider, consents, "Alice", await asked_by(server, Context()))
            assert await call(server, Context()) == "Alice"
            provider.access.clear()
            assert await call(server, Context()) == "Alice"
            assert provider.granted == ["code", "refresh"]
            provider.access.clear()
            provider.refresh.clear()
            await asked_by(server, Context())
            assert "contoso.alice" not in {user for user, _ in secrets.secrets}


async def test_a_token_that_is_refused_while_its_session_is_made_again_is_renewed_or_asked_for() -> None:
    """Calls do not wait for a session that no token of theirs can make."""
    provider, secrets = Provider(), SecretStore()
    consents = Consents(CALLBACK, secret_store=secrets)
    with protected(provider) as url:
        async with opened(url, consents, timeout=10) as server:
            await agreed(provider, consents, "Alice", await asked_by(server, Context()))
            assert await call(server, Context()) == "Alice"
            server._users._open["contoso.alice"]._lose()
            provider.access.clear()
            assert await call(server, Context()) == "Alice"
            server._users._open["contoso.alice"]._lose()
            provider.access.clear()
            provider.refresh.clear()
            await agreed(provider, consents, "Alice", await asked_by(server, Context()))
            assert await call(server, Context()) == "Alice"
    assert provider.granted == ["code", "refresh", "code"]


@pytest.mark.parametrize("ended", [True, False])
async def test_a_session_that_hangs_after_a_late_token_is_waited_for_until_the_limit(
    monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """Whether it is a new connection's or an old one's: the call was not made, and says so."""
    provider, consents, loop = Provider(), Consents(CALLBACK), asyncio.get_running_loop()
    refused, renewed, hanging = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def late(*_: object) -> str:
        refused.set()
        await renewed.wait()
        return "another"

    async def hangs(*_: object) -> None:
        hanging.set()
        await asyncio.Event().wait()

    with protected(provider) as url:
        async with opened(url, consents, timeout=10, request_timeout=5) as server:
            await agreed(provider, consents, "Alice", await asked_by(server, Context()))
            assert await call(server, Context()) == "Alice"
            monkeypatch.setattr(server, "_other_token", late)
            provider.access.clear()
            box = Toolbox(Scripted(), 120)
            box.load([server])
            made = asyncio.create_task(box.call(ToolCall("1", "secure-whoami", "{}"), cast("Any", Context())))
            await asyncio.wait_for(refused.wait(), 30)
            (connection,) = server._users._open.values()
            if ended:
                await connection.close()
                monkeypatch.setattr(MCPConnection, "start", hangs)
            else:
                connection._lose()
                monkeypatch.setattr(connection._up, "wait", hangs)
            advance(loop, 40)
            renewed.set()
            await asyncio.wait_for(hanging.wait(), 30)
            advance(loop, 7)
            result = await asyncio.wait_for(made, 30)
    assert isinstance(result, ToolOutput)
    assert result.output.startswith("Error: secure cannot be reached: ")
    assert result.output.endswith(". Nothing was done.")
    assert not result.unknown


async def test_a_renewal_that_failed_for_now_costs_no_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An authorization server that is away, or busy, is asked again later. covers: HITL-3"""
    provider, secrets, now = Provider(), SecretStore(), [1000.0]
    consents = Consents(CALLBACK, secret_store=secrets, now=lambda: now[0])

    async def away(*_: object) -> tuple[int, Json]:
        return 503, {"error": "temporarily_unavailable"}

    with protected(provider) as url:
        async with opened(url, consents) as server:
            await agreed(provider, consents, "Alice", await asked_by(server, Context()))
            now[0] += 3590
            with monkeypatch.context() as patch:
                patch.setattr(oauth_clients, "token_request", away)
                with pytest.raises(ToolFailed, match="did not renew the user's authorization now"):
                    await call(server, Context())
            assert await call(server, Context()) == "Alice"
    assert provider.granted == ["code", "refresh"]


async def stored_grant(pretender: Pretender, server: ProtectedServer) -> SecretStore:
    """What is left of a user's consent after a restart."""
    pretender.publish()
    secrets = SecretStore()
    consents = Consents(CALLBACK, secret_store=secrets)
    asked = await consents.need(Context(), server)
    await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    return secrets


async def test_users_outlive_a_new_client_secret(pretender: Pretender) -> None:
    """Once the operator has renewed it, what users granted before is renewed with the new one."""
    entry: Json = {"name": "x", "issuer": pretender.url, "client_id": "me"}
    secrets = await stored_grant(pretender, ProtectedServer(**entry, client_secret="old"))
    server = ProtectedServer(**entry, client_secret="new")
    assert await Consents(CALLBACK, secret_store=secrets).tokens.get(Context(), server) == "granted"
    assert pretender.headers[-1]["authorization"] == f"Basic {b64encode(b'me:new').decode()}"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, "interaction_required"),
        (400, "invalid_scope"),
        (200, "bad_refresh_token"),
        (401, "invalid_client"),
        (404, None),
    ],
)
async def test_a_refused_renewal_asks_the_user_and_keeps_the_grant(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch, status: int, error: str | None
) -> None:
    """The user is not locked out, and need not agree again where the operator can mend it."""
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = await stored_grant(pretender, server)
    consents = Consents(CALLBACK, secret_store=secrets)

    async def refused(*_: object) -> tuple[int, Json]:
        return status, {"error": error} if error else {}

    with monkeypatch.context() as patch:
        patch.setattr(oauth_clients, "token_request", refused)
        assert await consents.tokens.get(Context(), server) is None
    assert await consents.tokens.get(Context(), server) == "granted"


@pytest.mark.parametrize("old", ["{url}/old", "http://127.0.0.1:9/token"])
async def test_a_token_endpoint_that_has_moved_is_found_again(pretender: Pretender, old: str) -> None:
    """The metadata of the authorization server names it; it is stored with the grant."""
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = await stored_grant(pretender, server)
    [(key, stored)] = secrets.secrets.items()
    secrets.secrets[key] = stored.replace(f"{pretender.url}/token", old.format(url=pretender.url))
    assert await Consents(CALLBACK, secret_store=secrets).tokens.get(Context(), server) == "granted"
    assert [form["grant_type"] for form in pretender.forms] == ["authorization_code", "refresh_token"]
    assert json.loads(secrets.secrets[key])["at"]["token_endpoint"] == f"{pretender.url}/token"


async def test_a_server_that_names_another_authorization_server_asks_anew(pretender: Pretender) -> None:
    """Where the old one is gone; its tokens never go to the new one."""
    server = ProtectedServer(name="x", resource=f"{pretender.url}/mcp", client_id="me")
    secrets = await stored_grant(pretender, server)
    [(key, stored)] = secrets.secrets.items()
    secrets.secrets[key] = stored.replace(f"{pretender.url}/token", "http://127.0.0.1:9/token")
    consents = Consents(CALLBACK, secret_store=secrets)
    pretender.documents.clear()
    with pytest.raises(ToolFailed, match="cannot be used for authorization"):  # all of it may be away for now
        await consents.tokens.get(Context(), server)
    pretender.documents["/.well-known/oauth-protected-resource"] = {
        "resource": pretender.url,
        "authorization_servers": ["https://elsewhere.example"],
    }
    assert await consents.tokens.get(Context(), server) is None
    assert len(pretender.forms) == 1


async def test_a_caller_who_is_canceled_loses_no_authorization(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refresh token that a renewal brings is kept, though the one that asked for it has left."""
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = await stored_grant(pretender, server)
    consents = Consents(CALLBACK, secret_store=secrets)
    pretender.answered = {"access_token": "second", "refresh_token": "r2"}
    came, left = asyncio.Event(), asyncio.Event()

    async def slow(at: Endpoints, form: Json) -> tuple[int, Json]:
        answer = await token_request(at, form)
        came.set()
        await left.wait()
        return answer

    monkeypatch.setattr(oauth_clients, "token_request", slow)
    call = asyncio.create_task(consents.tokens.get(Context(), server))
    await asyncio.wait_for(came.wait(), 30)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    left.set()
    await consents.tokens.settled()
    assert await consents.tokens.get(Context(), server) == "second"
    assert '"r2"' in secrets.secrets["contoso.alice", server.key]
    assert [form["grant_type"] for form in pretender.forms] == ["authorization_code", "refresh_token"]


class Renewing:
    """A renewal of a stored grant, which the authorization server has answered, as long as it is held up."""

    def __init__(self, pretender: Pretender, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pretender = pretender
        self._left = asyncio.Event()
        self._came = asyncio.Event()
        self.server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
        monkeypatch.setattr(oauth_clients, "token_request", self._held_up)

    async def _held_up(self, at: Endpoints, form: Json) -> tuple[int, Json]:
        answer = await token_request(at, form)
        if form["grant_type"] == "refresh_token":
            self._came.set()
            await self._left.wait()
        return answer

    async def begin(self) -> SecretStore:
        """The store with the grant that is being renewed."""
        self.secrets = await stored_grant(self._pretender, self.server)
        self.here, self.there = (Consents(CALLBACK, secret_store=self.secrets) for _ in range(2))
        self._pretender.answered = {"access_token": "renewed", "refresh_token": "r2"}
        self._renewal = asyncio.create_task(self.here.tokens.get(Context(), self.server))
        await asyncio.wait_for(self._came.wait(), 30)
        return self.secrets

    async def end(self) -> str | None:
        """The token that the call gets for which the grant was renewed."""
        self._left.set()
        return await asyncio.wait_for(self._renewal, 30)


@pytest.mark.parametrize("replica", ["this one", "another one"])
async def test_a_consent_that_is_given_during_a_renewal_is_kept(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch, replica: str
) -> None:
    """The renewal is stored last; what the user has granted meanwhile is newer, and may be more."""
    renewing = Renewing(pretender, monkeypatch)
    secrets = await renewing.begin()
    pretender.answered = {"access_token": "wider", "refresh_token": "r3"}
    consents = renewing.here if replica == "this one" else renewing.there
    asked = await consents.need(Context(), renewing.server)
    await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    assert await renewing.end() == "wider"
    assert '"r3"' in secrets.secrets["contoso.alice", renewing.server.key]
    for each in (renewing.here, renewing.there):
        assert await each.tokens.get(Context(), renewing.server) == "wider"


async def test_a_consent_that_cannot_be_stored_is_kept_if_it_is_given_during_a_renewal(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some servers send a refresh token with the first consent alone. The newer one may be another account's:
    the renewal of the older one, which ends later, does not take its place."""
    renewing = Renewing(pretender, monkeypatch)
    secrets = await renewing.begin()
    pretender.answered = {"access_token": "wider", "refresh_token": ""}
    asked = await renewing.here.need(Context(), renewing.server)
    await renewing.here.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    assert await renewing.end() == "wider"
    assert await renewing.here.tokens.get(Context(), renewing.server) == "wider"
    stored = secrets.secrets["contoso.alice", renewing.server.key]
    assert '"wider"' in stored
    assert '"r2"' not in stored


async def test_a_grant_whose_user_is_deleted_during_its_renewal_is_not_stored_again(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is deleted stays deleted, and the call has nothing to go by any more."""
    renewing = Renewing(pretender, monkeypatch)
    secrets = await renewing.begin()
    secrets.secrets.clear()
    assert await renewing.end() is None
    assert await renewing.here.tokens.get(Context(), renewing.server) is None
    assert not secrets.secrets


class Fickle(SecretStore):
    """Takes nothing while it is away."""

    away = False

    def __init__(self) -> None:
        super().__init__()
        #: something was put
        self.taken = asyncio.Event()
        #: nothing was put, as the store was away
        self.refused = asyncio.Event()

    async def put(self, user_key: str, server: str, secret: str, *, ttl: float | None = None) -> None:
        if self.away:
            self.refused.set()
            raise PersistenceUnavailable("The store is away.")
        await super().put(user_key, server, secret, ttl=ttl)
        self.taken.set()


async def test_a_renewed_token_that_could_not_be_stored_costs_no_consent() -> None:
    """It is used, and renewed and stored with what renewed it, though the stored one is good no more."""
    provider, secrets, now = Provider(), Fickle(), [1000.0]
    one, other = (Consents(CALLBACK, secret_store=secrets, now=lambda: now[0]) for _ in range(2))
    with protected(provider) as url:
        async with opened(url, one) as server, opened(url, other) as restarted:
            await agreed(provider, one, "Alice", await asked_by(server, Context()))
            secrets.away = True
            for _ in range(2):
                now[0] += 3590
                assert await call(server, Context()) == "Alice"
            secrets.away = False
            now[0] += 3590
            assert await call(server, Context()) == "Alice"
            assert await call(restarted, Context()) == "Alice"
    assert provider.granted == ["code", *["refresh"] * 4]


@pytest.mark.parametrize("stops", [False, True])
async def test_a_renewed_grant_is_stored_once_the_store_is_back(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    """Another replica needs no consent, and neither does a process that starts where this one stopped."""
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = Fickle()
    secrets.secrets = (await stored_grant(pretender, server)).secrets
    # a stop does not wait for the next try
    monkeypatch.setattr(oauth_grants, "SAVE_SECONDS", 3600 if stops else 0.01)
    secrets.away = True
    pretender.answered = {"access_token": "second", "refresh_token": "r2"}
    consents = Consents(CALLBACK, secret_store=secrets)
    assert await consents.tokens.get(Context(), server) == "second"
    secrets.away = False
    if stops:
        await consents.tokens.settled()
    await asyncio.wait_for(secrets.taken.wait(), 30)
    assert await Consents(CALLBACK, secret_store=secrets).tokens.get(Context(), server) == "second"
    assert pretender.forms[-1]["refresh_token"] == "r2"


async def renewed_while_away(pretender: Pretender) -> tuple[Consents, Fickle]:
    """Consents that have renewed a grant which the store has not taken yet, and the store."""
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = Fickle()
    secrets.secrets = (await stored_grant(pretender, server)).secrets
    secrets.away = True
    consents = Consents(CALLBACK, secret_store=secrets)
    await consents.tokens.get(Context(), server)
    return consents, secrets


async def test_a_stop_does_not_wait_for_a_store_that_stays_away(
    pretender: Pretender, caplog: pytest.LogCaptureFixture
) -> None:
    """What could not be stored is tried once more, and the log names the loss."""
    consents, _ = await renewed_while_away(pretender)
    await asyncio.wait_for(consents.tokens.settled(), 30)
    assert "could not be stored: the user may be asked again" in caplog.text


async def test_a_renewed_grant_that_could_not_be_stored_is_not_stored_after_its_user_was_deleted(
    pretender: Pretender,
) -> None:
    """What is deleted stays deleted."""
    consents, secrets = await renewed_while_away(pretender)
    secrets.away = False
    secrets.secrets.clear()
    await consents.tokens.settled()
    assert not secrets.secrets


async def test_a_new_consent_comes_before_a_renewal_that_could_not_be_stored(pretender: Pretender) -> None:
    """What is stored by then, such as by another replica, is newer."""
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets, now = Fickle(), [1000.0]
    secrets.secrets = (await stored_grant(pretender, server)).secrets
    one, other = (Consents(CALLBACK, secret_store=secrets, now=lambda: now[0]) for _ in range(2))
    secrets.away = True
    pretender.answered = {"access_token": "second", "refresh_token": "r2"}
    assert await one.tokens.get(Context(), server) == "second"
    secrets.away = False
    pretender.answered = {"access_token": "third", "refresh_token": "r3"}
    asked = await other.need(Context(), server)
    await other.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    now[0] += 3590
    await one.tokens.get(Context(), server)
    assert pretender.forms[-1]["refresh_token"] == "r3"


class Late(SecretStore):
    """Gives what it had before, as often as there is any."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[str] = []

    async def get(self, user_key: str, server: str) -> str | None:
        return self.before.pop() if self.before else await super().get(user_key, server)


async def test_a_grant_that_another_replica_renewed_is_taken_up() -> None:
    """A refresh token that was good for one use is refused; the newer stored one is kept."""
    provider, secrets, now = Provider(), Late(), [1000.0]
    one, other = (Consents(CALLBACK, secret_store=secrets, now=lambda: now[0]) for _ in range(2))
    with protected(provider) as url:
        async with opened(url, one) as first, opened(url, other) as second:
            await agreed(provider, one, "Alice", await asked_by(first, Context()))
            now[0] += 3590
            stale = next(iter(secrets.secrets.values()))
            assert await call(first, Context()) == "Alice"
            secrets.before = [stale]
            assert await call(second, Context()) == "Alice"
    assert provider.granted == ["code", "refresh", "refresh"]


async def test_a_grant_that_another_replica_is_renewing_is_not_deleted() -> None:
    """It stores the newer one just before this replica, which was refused, forgets the old one."""
    provider, secrets, now = Provider(), Late(), [1000.0]
    one, other, third = (Consents(CALLBACK, secret_store=secrets, now=lambda: now[0]) for _ in range(3))
    with protected(provider) as url:
        async with opened(url, one) as first, opened(url, other) as second, opened(url, third) as last:
            await agreed(provider, one, "Alice", await asked_by(first, Context()))
            now[0] += 3590
            stale = next(iter(secrets.secrets.values()))
            assert await call(first, Context()) == "Alice"
            secrets.before = [stale] * 3
            await asked_by(second, Context())
            assert await call(last, Context()) == "Alice"


async def test_replicas_renew_a_grant_one_after_the_other(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh token that is used twice may cost the user's consent (OAuth 2.1, 4.3.1)."""
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    granted = await stored_grant(pretender, server)
    used: list[str] = []

    async def rotating(_: Endpoints, form: Json) -> tuple[int, Json]:
        used.append(form["refresh_token"])
        await asyncio.sleep(0.05)
        return 200, {"access_token": f"access-{len(used)}", "refresh_token": f"r{len(used)}"}

    monkeypatch.setattr(oauth_clients, "token_request", rotating)
    async with MemoryStore() as store:
        secrets = state.SecretStore(RecordStore(store, "Tester", SystemClock()))
        for (user, name), secret in granted.secrets.items():
            await secrets.put(user, name, secret)
        replicas = [Consents(CALLBACK, secret_store=secrets) for _ in range(3)]
        tokens = await asyncio.gather(*(each.tokens.get(Context(), server) for each in replicas))
        assert len(set(tokens)) == 3
        assert used == ["r", "r1", "r2"]


async def test_a_replica_that_died_while_it_renewed_holds_up_no_other(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had claimed expires."""
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = await stored_grant(pretender, server)
    lasted: list[float] = []

    async def expired(user_key: str, name: str, secret: str, *, ttl: float) -> bool:
        lasted.append(ttl)
        return len(lasted) > 1

    monkeypatch.setattr(secrets, "claim", expired)
    assert await Consents(CALLBACK, secret_store=secrets).tokens.get(Context(), server) == "granted"
    assert TOKEN_SECONDS > lasted[0] > ANSWER_SECONDS


async def test_nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Tokens, codes and verifiers are in no log line, at debug."""
    provider, secrets = Provider(), SecretStore()
    consents = Consents(CALLBACK, secret_store=secrets)
    with caplog.at_level(logging.DEBUG), protected(provider) as url:
        async with opened(url, consents) as server:
            asked = await asked_by(server, Context())
            pending = next(iter(consents._pending._pending.values()))
            brought = await visited(provider, "Alice", asked.url)
            caplog.clear()
            await consents.complete(brought["state"], brought["code"], iss=brought.get("iss"))
            await call(server, Context())
            canaries = [*provider.access, *provider.refresh, brought["code"], pending.verifier]
    assert "a user authorized secure" in caplog.text
    assert [canary for canary in canaries if canary in caplog.text] == []


# --- scopes and clients, and servers that lie ----------------------------------------------------


@pytest.fixture
def pretender() -> Iterator[Pretender]:
    with pretending() as pretender:
        yield pretender


@pytest.mark.parametrize(
    ("lifetime", "used", "ended"), [(3600, 3569, 3571), (20, 9, 11), ("20", 9, 11), ("900", 869, 871)]
)
async def test_a_token_is_used_however_short_it_lives(
    pretender: Pretender, lifetime: int | str, used: int, ended: int
) -> None:
    """The user's consent is good for a call where tokens live for seconds, too; text counts as a number."""
    pretender.publish()
    pretender.answered = {"expires_in": lifetime}
    now = [1000.0]
    consents = Consents(CALLBACK, now=lambda: now[0])
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me", scopes=("a",))
    asked = await consents.need(Context(), server)
    await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    now[0] = 1000 + used
    assert await consents.tokens.get(Context(), server) == "granted"
    now[0] = 1000 + ended
    assert await consents.tokens.get(Context(), server) is None


async def test_configured_client_identifies_itself(pretender: Pretender) -> None:
    """A configured client with a secret sends it the way the server wants, and registers nowhere."""
    for methods, sent in ((["client_secret_basic"], "basic"), (["client_secret_post"], "post")):
        pretender.publish(token_endpoint_auth_methods_supported=methods)
        server = ProtectedServer(
            name="x", issuer=pretender.url, scopes=("a",), client_id="me", client_secret="s3 cret"
        )
        consents = Consents(CALLBACK)
        asked = await consents.need(Context(), server)
        state = parse_qs(urlsplit(asked.url).query)["state"][0]
        await consents.complete(state, "code")
        form, headers = pretender.forms[-1], pretender.headers[-1]
        assert (form["client_id"], form["code"], form["redirect_uri"]) == ("me", "code", CALLBACK)
        if sent == "basic":
            assert headers["authorization"] == "Basic bWU6czMrY3JldA=="
            assert "client_secret" not in form
        else:
            assert form["client_secret"] == "s3 cret"
        assert await consents.tokens.get(Context(), server) == "granted"


async def test_a_public_client_sends_no_secret(pretender: Pretender) -> None:
    """Nor one that it was given when it registered as a public client."""
    pretender.publish(registration_endpoint=f"{pretender.url}/register")
    pretender.registered = {"client_secret": "s", "token_endpoint_auth_method": "none"}
    consents = Consents(CALLBACK)
    asked = await consents.need(Context(), ProtectedServer(name="x", issuer=pretender.url, scopes=("a",)))
    await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    assert "client_secret" not in pretender.forms[-1]
    assert "authorization" not in pretender.headers[-1]


async def test_a_registration_that_was_forgotten_is_made_again(pretender: Pretender) -> None:
    """By the next link: it ended, or the authorization server has lost it (`invalid_client`)."""
    pretender.publish(registration_endpoint=f"{pretender.url}/register")
    server = ProtectedServer(name="x", issuer=pretender.url)
    consents = Consents(CALLBACK)
    pretender.known = "registered-2"
    for known in (False, True):
        link = parse_qs(urlsplit((await consents.need(Context(), server)).url).query)["state"][0]
        with nullcontext() if known else pytest.raises(InvalidRequest, match="invalid_client"):
            assert await consents.complete(link, "code") == "x"
    assert len(pretender.clients) == 2


async def test_a_link_is_renewed_where_the_registration_was_forgotten(pretender: Pretender) -> None:
    """The authorization server would show the user an error. A round of calls asks it once."""
    pretender.publish(registration_endpoint=f"{pretender.url}/register")
    server, now = ProtectedServer(name="x", issuer=pretender.url), [1000.0]
    consents = Consents(CALLBACK, now=lambda: now[0])

    async def asked(request_id: str = "1") -> str:
        return (await consents.need(Context(request_id=request_id), server)).url

    first = await asked()
    assert await asked() == first
    assert pretender.forms == []
    now[0] += 11
    assert await asked() == await asked() == first
    assert len(pretender.forms) == 1
    now[0] += 11
    pretender.known = "registered-2"
    assert "client_id=registered-2" in await asked("2")
    assert "client_id=registered-2" in await asked()
    assert len(pretender.clients) == 2


async def test_a_link_stays_where_the_registration_cannot_be_looked_at(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authorization server may be back by the time the user visits it."""
    pretender.publish(registration_endpoint=f"{pretender.url}/register")
    server, now = ProtectedServer(name="x", issuer=pretender.url), [1000.0]
    consents = Consents(CALLBACK, now=lambda: now[0])
    first = (await consents.need(Context(), server)).url
    now[0] += 11

    looked = 0

    async def away(*_: object) -> tuple[int, Json]:
        nonlocal looked
        looked += 1
        raise ToolFailed("It is away.")

    monkeypatch.setattr(oauth_clients, "token_request", away)
    for _ in range(3):  # each look would cost the user a while
        assert (await consents.need(Context(), server)).url == first
    assert looked == 1


async def test_a_consent_without_a_refresh_token_ends_other_links_too(pretender: Pretender) -> None:
    """A link of before would replace it."""
    pretender.publish()
    pretender.answered = {"refresh_token": ""}
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    consents = Consents(CALLBACK, secret_store=SecretStore())
    asked = [await consents.need(Context(request_id=each), server) for each in ("1", "2")]
    first, second = (parse_qs(urlsplit(each.url).query)["state"][0] for each in asked)
    assert await consents.complete(first, "code") == "x"
    with pytest.raises(InvalidRequest, match="another link"):
        await consents.complete(second, "code")


class Shared:
    """Two replicas over one store that is asked at the same clock, and an authorization server without
    refresh tokens, whose tokens live for ten minutes."""

    def __init__(self, pretender: Pretender, store: MemoryStore) -> None:
        pretender.publish()
        self.now = 1000.0
        store.clock = lambda: self.now
        self.secrets = state.SecretStore(RecordStore(store, "Tester", SystemClock()))
        self.here, self.there = self.replica(), self.replica()
        self.server = ProtectedServer(name="x", issuer=pretender.url, scopes=("a",), client_id="me")
        self._pretender = pretender
        self.answers("first")

    def replica(self) -> Consents:
        return Consents(CALLBACK, secret_store=self.secrets, now=lambda: self.now)

    def answers(self, token: str, refresh_token: str = "") -> None:
        """What the user's next consent brings."""
        self._pretender.answered = {
            "access_token": token,
            "refresh_token": refresh_token,
            "expires_in": 600,
        }

    async def asked(self, consents: Consents, request_id: str = "1", *scopes: str) -> str:
        """The state of the link for a request."""
        asked = await consents.need(Context(request_id=request_id), self.server, Challenge(scopes=scopes))
        return parse_qs(urlsplit(asked.url).query)["state"][0]

    async def token(self, consents: Consents) -> str | None:
        return await consents.tokens.get(Context(), self.server)


@pytest.fixture
async def shared(pretender: Pretender) -> AsyncIterator[Shared]:
    async with MemoryStore() as store:
        yield Shared(pretender, store)


async def test_a_token_without_a_refresh_token_is_known_to_replicas_and_after_a_restart(
    shared: Shared, pretender: Pretender
) -> None:
    """Until it expires: then the user is asked again, and nothing of it is stored any more."""
    link = await shared.asked(shared.here)
    assert await shared.there.complete(link, "code") == "x"
    shared.now += 500
    for consents in (shared.here, shared.there, shared.replica()):
        assert await shared.token(consents) == "first"
    shared.now += 71  # it is used until half a minute before its end
    for consents in (shared.here, shared.there, shared.replica()):
        assert await shared.token(consents) is None
    assert await shared.secrets.get(User("contoso", "alice").key, shared.server.key) is None
    assert [form["grant_type"] for form in pretender.forms] == ["authorization_code"]


async def test_a_link_is_refused_for_another_only_while_that_ones_token_can_be_used(shared: Shared) -> None:
    """By every replica: a token that one of them remembers, or that has expired, shuts no user out."""
    links = [await shared.asked(shared.here, str(n)) for n in range(4)]
    assert await shared.there.complete(links[0], "code") == "x"
    for consents, link in ((shared.here, links[1]), (shared.there, links[2])):
        with pytest.raises(InvalidRequest, match="by another link since"):
            await consents.complete(link, "code")
    shared.now += 571
    assert await shared.there.complete(links[3], "code") == "x"
    assert await shared.token(shared.here) == "first"


async def test_a_consent_without_an_encrypted_store_ends_other_links_until_its_token_expires(
    pretender: Pretender,
) -> None:
    """A user who was asked meanwhile need not resume the request for a new link."""
    pretender.publish()
    pretender.answered = {"expires_in": 600}
    now = [1000.0]
    consents = Consents(CALLBACK, now=lambda: now[0])
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    asked = [await consents.need(Context(request_id=str(n)), server) for n in range(3)]
    links = [parse_qs(urlsplit(each.url).query)["state"][0] for each in asked]
    await consents.complete(links[0], "code")
    with pytest.raises(InvalidRequest, match="by another link since"):
        await consents.complete(links[1], "code")
    now[0] += 571
    assert await consents.complete(links[2], "code") == "x"


async def test_further_scopes_without_a_refresh_token_are_known_to_the_replica_that_wanted_them(
    shared: Shared,
) -> None:
    """Some servers send a refresh token with the first consent alone."""
    shared.answers("first", "r")
    await shared.here.complete(await shared.asked(shared.here), "code")
    shared.answers("wider")
    await shared.there.complete(await shared.asked(shared.here, "1", "write"), "code")
    assert await shared.here.tokens.wider(Context(), shared.server, "first") == "wider"
    assert await shared.token(shared.there) == "wider"


async def test_a_consent_without_a_refresh_token_replaces_the_one_before(
    shared: Shared, pretender: Pretender
) -> None:
    """Which may have been given for another account: nothing is renewed from it, and its links are dead."""
    shared.answers("first", "r")
    await shared.here.complete(await shared.asked(shared.here), "code")
    shared.answers("second")
    links = [await shared.asked(shared.here, str(n), "write") for n in range(2)]
    await shared.here.complete(links[0], "code")
    with pytest.raises(InvalidRequest, match="by another link since"):
        await shared.here.complete(links[1], "code")
    assert await shared.token(shared.replica()) == "second"
    shared.now += 571
    for consents in (shared.here, shared.replica()):
        assert await shared.token(consents) is None
    assert "refresh_token" not in [form["grant_type"] for form in pretender.forms]


@pytest.mark.parametrize(
    ("answered", "reason"),
    [
        ({"token_type": "DPoP"}, "another type than Bearer"),
        ({"token_type": 5}, "another type than Bearer"),
        ({"access_token": "tok\u00e9n"}, "characters that cannot be sent"),
        ({"access_token": "a\n"}, "characters that cannot be sent"),
        ({"access_token": "a "}, "characters that cannot be sent"),
    ],
    ids=["dpop", "a number", "not ASCII", "a line break", "a blank"],
)
async def test_a_token_that_cannot_be_sent_is_refused(
    pretender: Pretender, answered: Json, reason: str
) -> None:
    """Where the user comes back, and by a renewal: it would fail every call until it expires."""
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = await stored_grant(pretender, server)
    pretender.answered = answered
    consents = Consents(CALLBACK, secret_store=secrets)
    assert await consents.tokens.get(Context(), server) is None
    asked = await consents.need(Context(), server)
    with pytest.raises(InvalidRequest, match=f"refused it .*{reason}.* Resume the request for a new link"):
        await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    assert await consents.tokens.get(Context(), server) is None


@pytest.mark.parametrize("kind", ["bearer", "BEARER", None])
async def test_a_token_is_a_bearer_token_in_any_case(pretender: Pretender, kind: str | None) -> None:
    """Also one whose type the authorization server does not name."""
    pretender.answered = {"token_type": kind}
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = await stored_grant(pretender, server)
    assert await Consents(CALLBACK, secret_store=secrets).tokens.get(Context(), server) == "granted"


async def test_a_refused_code_quotes_the_beginning_of_a_long_reason(pretender: Pretender) -> None:
    """An authorization server does not fill the user's page."""
    pretender.publish()
    pretender.answered = {"access_token": None, "error": "invalid_grant", "error_description": "Z" * 30_000}
    server, consents = ProtectedServer(name="x", issuer=pretender.url, client_id="me"), Consents(CALLBACK)
    asked = await consents.need(Context(), server)
    with pytest.raises(InvalidRequest, match="refused it") as refused:
        await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    assert refused.value.detail.count("Z") == 500


async def test_a_store_that_is_away_spends_no_link(pretender: Pretender) -> None:
    """Whether the link is still wanted is looked up before it is used up."""
    pretender.publish()
    server, consents = ProtectedServer(name="x", issuer=pretender.url, client_id="me"), Consents(CALLBACK)
    state = parse_qs(urlsplit((await consents.need(Context(), server)).url).query)["state"][0]
    answers: list[bool | Exception] = [PersistenceUnavailable("away"), True]

    async def still_asks(*_: str) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    consents.still_asks = still_asks
    with pytest.raises(PersistenceUnavailable):
        await consents.complete(state, "code")
    assert await consents.complete(state, "code") == "x"


async def link_visited_while_away(
    pretender: Pretender, secrets: Fickle
) -> tuple[Consents, ProtectedServer, str]:
    """Consents that asked for a grant, its server, and the state of the link: the store has gone since."""
    pretender.publish()
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    consents = Consents(CALLBACK, secret_store=secrets)
    state = parse_qs(urlsplit((await consents.need(Context(), server)).url).query)["state"][0]
    secrets.away = True
    return consents, server, state


async def test_a_consent_waits_for_a_store_that_is_away_for_a_moment(pretender: Pretender) -> None:
    """The code is used up by then. Another replica and a restart find what was granted."""
    secrets = Fickle()
    consents, server, state = await link_visited_while_away(pretender, secrets)
    visit = asyncio.create_task(consents.complete(state, "code"))
    await asyncio.wait_for(secrets.refused.wait(), 30)
    secrets.away = False
    assert await asyncio.wait_for(visit, 30) == "x"
    assert await consents.tokens.get(Context(), server) == "granted"
    assert await Consents(CALLBACK, secret_store=secrets).tokens.get(Context(), server) == "granted"
    assert [form["grant_type"] for form in pretender.forms] == ["authorization_code", "refresh_token"]


async def test_a_consent_that_cannot_be_stored_is_not_kept_and_says_so(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token for this replica alone would be gone with the process. The user reads what to do."""
    monkeypatch.setattr(oauth_grants, "STORE_SECONDS", 0.0)
    secrets = Fickle()
    consents, server, state = await link_visited_while_away(pretender, secrets)
    with pytest.raises(PersistenceUnavailable) as lost:
        await consents.complete(state, "code")
    assert "store is unavailable" in lost.value.detail
    assert "Resume the request for a new link" in lost.value.detail
    assert await consents.tokens.get(Context(), server) is None
    secrets.away = False
    state = parse_qs(urlsplit((await consents.need(Context(), server)).url).query)["state"][0]
    assert await consents.complete(state, "code") == "x"
    assert await consents.tokens.get(Context(), server) == "granted"


class Lossy(Fickle):
    """While it is away, it takes what is put, and its reply is lost; perhaps it cannot be read either."""

    unreadable = False

    async def get(self, user_key: str, server: str) -> str | None:
        if self.away and self.unreadable and self.taken.is_set():
            raise PersistenceUnavailable("The store is away.")
        return await super().get(user_key, server)

    async def put(self, user_key: str, server: str, secret: str, *, ttl: float | None = None) -> None:
        self.secrets[user_key, server] = secret
        self.taken.set()
        if self.away:
            raise PersistenceUnavailable("The store did not say whether a write was applied.")


@pytest.mark.parametrize("unreadable", [False, True])
async def test_a_consent_whose_storing_is_in_doubt_is_not_said_to_be_lost(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch, unreadable: bool
) -> None:
    """It is looked for. What was stored after all is used, and the user is not asked again."""
    monkeypatch.setattr(oauth_grants, "STORE_SECONDS", 0.0)
    secrets = Lossy()
    consents, server, state = await link_visited_while_away(pretender, secrets)
    secrets.taken.clear()
    secrets.unreadable = unreadable
    if unreadable:
        with pytest.raises(PersistenceUnavailable) as doubted:
            await consents.complete(state, "code")
        assert "may not have been kept" in doubted.value.detail
        assert "was not kept" not in doubted.value.detail
    else:
        assert await consents.complete(state, "code") == "x"
    secrets.away = False
    assert await consents.tokens.get(Context(), server) == "granted"


async def test_an_endpoint_that_does_not_answer_in_time_is_not_looked_for(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, and may have taken the refresh token: the user reads which one it is."""
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = await stored_grant(pretender, server)

    async def slow(*_: object) -> tuple[int, Json]:
        raise ToolFailed("slow is slow") from httpx2.ReadTimeout("slow")

    async def found(*_: object) -> str:
        raise AssertionError("it was looked for")

    monkeypatch.setattr(oauth_clients, "token_request", slow)
    monkeypatch.setattr(oauth_tokens, "_token_endpoint", found)
    with pytest.raises(ToolFailed, match="slow is slow"):
        await Consents(CALLBACK, secret_store=secrets).tokens.get(Context(), server)


async def test_a_client_registers_for_the_scopes_that_it_asks_for(pretender: Pretender) -> None:
    """Some servers grant no others: it registers anew for others, and once for the same."""
    pretender.publish(registration_endpoint=f"{pretender.url}/register")
    server = ProtectedServer(name="x", issuer=pretender.url)
    consents = Consents(CALLBACK)
    for request, wanted in enumerate(("", "a b", "b a", "c", "")):
        challenge = Challenge.of(f'Bearer scope="{wanted}"')
        await consents.need(Context(request_id=str(request)), server, challenge)
    assert [client.get("scope") for client in pretender.clients] == [None, "a b", "c"]


async def test_a_client_whose_scopes_are_refused_registers_without_and_displaces_no_other(
    pretender: Pretender,
) -> None:
    """The server grants them all the same, or says in the browser that it does not."""
    pretender.publish(registration_endpoint=f"{pretender.url}/register")
    consents, server, used = Consents(CALLBACK), ProtectedServer(name="x", issuer=pretender.url), []
    for request, (wanted, takes) in enumerate([("a", True), ("b", False), ("a", False)]):
        pretender.takes_scopes = takes
        challenge = Challenge.of(f'Bearer scope="{wanted}"')
        asked = await consents.need(Context(request_id=str(request)), server, challenge)
        assert asked.scopes == (wanted,)
        used += parse_qs(urlsplit(asked.url).query)["client_id"]
    assert used == ["registered-1", "registered-2", "registered-1"]
    assert ["scope" in client for client in pretender.clients] == [True, False]


async def test_scopes_asked_for_first_are_those_that_the_server_wants(pretender: Pretender) -> None:
    """With its first refusal, which may want fewer than the server knows of."""
    provider = Provider()
    with protected(provider, challenge='Bearer error="invalid_token", scope="more"') as url:
        async with opened(url, Consents(CALLBACK)) as server:
            assert (await asked_by(server, Context())).scopes == ("more",)


@pytest.mark.parametrize(
    ("header", "scopes"),
    [
        (r'Bearer scope="write", error_description="the scope \"scope=admin\" is missing"', ("write",)),
        (r'Bearer error_description="the scope \"scope=admin\" is missing", scope="write"', ("write",)),
        (r'Bearer error_description="a\\", scope="write"', ("write",)),
        (r'Bearer scope="re\ad \"a\" b\\c"', ("read", '"a"', r"b\c")),
        ('Bearer scope="write", scope="admin"', ("write",)),
    ],
)
def test_a_challenge_is_read_as_it_is_quoted(header: str, scopes: tuple[str, ...]) -> None:
    """What a field quotes is no field, and the first field of a name counts."""
    assert Challenge.of(header).scopes == scopes


async def test_unknown_client_is_reported(pretender: Pretender) -> None:
    """If this service is not known and cannot register, the error says what to set."""
    pretender.publish()
    with pytest.raises(ToolFailed, match="has to register it and set oauth_client_id"):
        await Consents(CALLBACK).need(Context(), ProtectedServer(name="x", issuer=pretender.url))


async def test_a_registration_endpoint_of_null_counts_as_none(pretender: Pretender) -> None:
    """A client that the config names needs none; any other reads that it has to be registered."""
    pretender.publish(registration_endpoint=None)
    configured = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    assert "client_id=me" in (await Consents(CALLBACK).need(Context(), configured)).url
    with pytest.raises(ToolFailed, match="has to register it and set oauth_client_id"):
        await Consents(CALLBACK).need(Context(), ProtectedServer(name="x", issuer=pretender.url))


async def test_scopes_asked_for_are_those_configured_and_those_wanted(pretender: Pretender) -> None:
    """A server that wants more scopes than the token has leads to a link for all of them."""
    pretender.publish(scopes_supported=["a", "b", "offline_access"])
    server = ProtectedServer(name="x", issuer=pretender.url, scopes=("a",), client_id="me")
    assert (await Consents(CALLBACK).need(Context(), server)).scopes == ("a",)
    challenge = Challenge.of('Bearer error="insufficient_scope", scope="b c"')
    assert (await Consents(CALLBACK).need(Context(), server, challenge)).scopes == ("a", "b", "c")
    with_vault = await Consents(CALLBACK, secret_store=SecretStore()).need(Context(), server)
    assert with_vault.scopes == ("a", "offline_access")


async def test_more_scopes_are_asked_for_besides_those_granted(pretender: Pretender) -> None:
    """The new token replaces the old one: it has to do for the calls before as well, after a restart too."""
    pretender.publish()
    pretender.answered = {"scope": "default"}
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = SecretStore()
    consents = Consents(CALLBACK, secret_store=secrets)
    for wanted, expected in (
        ("", ()),
        ("write", ("default", "write")),
        ("read", ("default", "write", "read")),
    ):
        challenge = Challenge.of(f'Bearer error="insufficient_scope", scope="{wanted}"')
        asked = await consents.need(Context(), server, challenge)
        assert asked.scopes == expected
        await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
        consents = Consents(CALLBACK, secret_store=secrets)
        assert await consents.tokens.get(Context(), server) == "granted"


async def test_further_scopes_that_were_granted_at_another_replica_are_taken_up(pretender: Pretender) -> None:
    """The call that wanted them is not asked about again."""
    pretender.publish()
    pretender.answered = {"scope": "default"}
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = SecretStore()
    here, there = (Consents(CALLBACK, secret_store=secrets) for _ in range(2))
    first = await here.need(Context(), server)
    await here.complete(parse_qs(urlsplit(first.url).query)["state"][0], "code")
    assert await here.tokens.wider(Context(), server, "granted") is None
    challenge = Challenge.of('Bearer error="insufficient_scope", scope="write"')
    further = await here.need(Context(), server, challenge)
    await there.complete(parse_qs(urlsplit(further.url).query)["state"][0], "code")
    pretender.answered = {"access_token": "wider"}
    assert await here.tokens.wider(Context(), server, "granted") == "wider"
    assert await here.tokens.get(Context(), server) == "wider"
    assert await here.tokens.wider(Context(), server, "wider") is None


async def test_scopes_left_out_at_first_and_granted_at_another_replica_are_taken_up(
    pretender: Pretender,
) -> None:
    """The scopes that are asked for are the same both times; users may untick some."""
    pretender.publish()
    server = ProtectedServer(name="x", issuer=pretender.url, scopes=("read", "write"), client_id="me")
    secrets = SecretStore()
    here, there = (Consents(CALLBACK, secret_store=secrets) for _ in range(2))
    for consents, refresh_token in ((here, "first"), (there, "second")):
        pretender.answered = {"refresh_token": refresh_token}
        asked = await consents.need(Context(), server)
        await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    pretender.answered = {"access_token": "wider"}
    assert await here.tokens.wider(Context(), server, "granted") == "wider"
    assert await here.tokens.wider(Context(), server, "wider") is None


async def test_a_grant_that_another_replica_has_renewed_is_no_new_consent(pretender: Pretender) -> None:
    """Though its refresh token is another: the user is asked for a further scope, and keeps the token."""
    pretender.publish()
    server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
    secrets = SecretStore()
    here, there = (Consents(CALLBACK, secret_store=secrets) for _ in range(2))
    asked = await here.need(Context(), server)
    await here.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    pretender.answered = {"access_token": "renewed", "refresh_token": "next"}
    assert await there.tokens.get(Context(), server) == "renewed"
    assert await here.tokens.wider(Context(), server, "granted") is None
    assert await here.tokens.get(Context(), server) == "granted"


async def test_a_stored_grant_does_not_displace_a_wider_one_that_cannot_be_stored(
    pretender: Pretender,
) -> None:
    """Some servers send a refresh token with the first consent alone."""
    pretender.publish()
    secrets = SecretStore()
    consents = Consents(CALLBACK, secret_store=secrets)
    server = ProtectedServer(name="x", issuer=pretender.url, scopes=("read",), client_id="me")
    further = Challenge.of('Bearer error="insufficient_scope", scope="write"')
    for token, challenge in (("first", None), ("second", further)):
        pretender.answered = {"access_token": token, "refresh_token": "once" if challenge is None else ""}
        asked = await consents.need(Context(), server, challenge)
        await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    assert await consents.tokens.wider(Context(), server, "second") is None
    assert await consents.tokens.get(Context(), server) == "second"


async def test_a_token_that_lacks_a_scope_serves_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 403 asks the user, and forgets no token: without an encrypted store it could not be renewed."""
    provider = Provider()
    consents = Consents(CALLBACK)
    with protected(provider) as url:
        async with opened(url, consents) as server:
            await agreed(provider, consents, "Alice", await asked_by(server, Context()))
            assert await call(server, Context()) == "Alice"
            for access in provider.access.values():
                monkeypatch.setattr(access, "scopes", [])
            asked = await asked_by(server, Context())
            assert asked.scopes == ("notes",)
            monkeypatch.undo()
            assert await call(server, Context()) == "Alice"


@pytest.mark.parametrize("scope", ["a", "https://api.example/a", ""])
async def test_a_token_whose_scopes_are_worded_otherwise_is_used(pretender: Pretender, scope: str) -> None:
    """What the authorization server calls the scopes that it granted, and then renewed, does not matter."""
    pretender.publish()
    pretender.answered = {"scope": scope}
    server = ProtectedServer(name="x", issuer=pretender.url, scopes=("a", "b"), client_id="me")
    secrets = SecretStore()
    consents = Consents(CALLBACK, secret_store=secrets)
    asked = await consents.need(Context(), server)
    await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    assert await consents.tokens.get(Context(), server) == "granted"
    for _ in range(2):
        assert await Consents(CALLBACK, secret_store=secrets).tokens.get(Context(), server) == "granted"
    assert [form["grant_type"] for form in pretender.forms] == [
        "authorization_code",
        "refresh_token",
        "refresh_token",
    ]


async def test_entries_with_other_scopes_have_tokens_of_their_own(pretender: Pretender) -> None:
    """Two entries for one URL do not take each other's token away."""
    pretender.publish()
    consents = Consents(CALLBACK)
    reading, writing = (
        ProtectedServer(
            name=scope, resource=f"{pretender.url}/mcp", issuer=pretender.url, scopes=(scope,), client_id="me"
        )
        for scope in ("read", "write")
    )
    for server in (reading, writing):
        assert await consents.tokens.get(Context(), server) is None
        asked = await consents.need(Context(), server)
        await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    for server in (reading, writing):
        assert await consents.tokens.get(Context(), server) == "granted"


async def test_resource_names_its_authorization_server(pretender: Pretender) -> None:
    """The resource's document, at its own origin, says where to authorize, and for what."""
    pretender.publish()
    pretender.documents["/.well-known/oauth-protected-resource/mcp"] = {
        "resource": f"{pretender.url}/mcp",
        "authorization_servers": [pretender.url],
        "scopes_supported": ["s"],
    }
    server = ProtectedServer(name="x", resource=f"{pretender.url}/mcp", client_id="me")
    # a document elsewhere is not even asked for: a server must not make us call others
    challenge = Challenge.of('Bearer resource_metadata="http://127.0.0.1:1/evil"')
    asked = await Consents(CALLBACK).need(Context(), server, challenge)
    assert asked.url.startswith(f"{pretender.url}/authorize?")
    assert asked.scopes == ("s",)


@pytest.mark.parametrize("named", ["{url}/mcp", "{url}", "https://logical.invalid/mcp"])
@pytest.mark.parametrize("configured", [False, True], ids=["discovered", "auth_server"])
async def test_a_canonical_uri_is_what_tokens_are_for_and_need_not_be_reachable(
    pretender: Pretender, named: str, configured: bool
) -> None:
    """The metadata is that of the server itself, which says where to authorize. It does not say for what."""
    pretender.publish(registration_endpoint=f"{pretender.url}/register")
    pretender.documents["/.well-known/oauth-protected-resource/mcp"] = {
        "resource": named.format(url=pretender.url),
        "scopes_supported": ["s"],
    }
    consents, logical = Consents(CALLBACK), "https://logical.invalid/mcp"
    entry: Json = {"canonical_uri": logical, **({"auth_server": pretender.url} if configured else {})}
    server = MCPServer(MCPServerOptions(name="x", url=f"{pretender.url}/mcp", **entry), consents)
    asked = await asked_by(server, Context(), "x-connect")
    query = parse_qs(urlsplit(asked.url).query)
    assert (query["resource"], asked.scopes) == ([logical], ("s",))
    await consents.complete(query["state"][0], "code")
    assert pretender.forms[-1]["resource"] == logical


@pytest.mark.parametrize("challenged", [False, True], ids=["well known", "challenge"])
async def test_metadata_may_be_at_the_canonical_uri_alone(pretender: Pretender, challenged: bool) -> None:
    """RFC 9728 puts it there; this service may reach the server at an inner address, which publishes none."""
    pretender.publish()
    place = "/inner/metadata" if challenged else "/.well-known/oauth-protected-resource/mcp"
    resource = f"{pretender.url}/mcp"
    pretender.documents[place] = {"resource": resource, "scopes_supported": ["s"]}
    server = ProtectedServer(name="x", url="http://127.0.0.1:1/mcp", resource=resource, client_id="me")
    header = f'Bearer resource_metadata="{pretender.url}{place}"' if challenged else ""
    found = await resource_metadata(server, Challenge.of(header))
    assert (found["resource"], found["scopes_supported"]) == (resource, ["s"])


async def test_metadata_that_would_decide_nothing_may_be_out_of_reach(pretender: Pretender) -> None:
    """Where the config names both the authorization server and what tokens are for."""
    pretender.publish()
    entry: Json = {"name": "x", "url": "http://127.0.0.1:1/mcp", "client_id": "me", "resource": pretender.url}
    asked = await Consents(CALLBACK).need(Context(), ProtectedServer(**entry, issuer=pretender.url))
    assert parse_qs(urlsplit(asked.url).query)["resource"] == [pretender.url]
    with pytest.raises(ToolFailed, match="cannot be used for authorization"):
        await Consents(CALLBACK).need(Context(), ProtectedServer(**entry))


@pytest.mark.parametrize("named", [False, True], ids=["discovered", "auth_server"])
async def test_certificates_are_left_unchecked_at_the_tool_servers_own_origin(
    tmp_path: Path, named: bool
) -> None:
    """With `verify_ssl: false`, from its metadata to the renewal of tokens, as the config says then."""
    with pretending(self_signed(tmp_path / "own.pem")) as own:
        own.publish(registration_endpoint=f"{own.url}/register")
        checked = ProtectedServer(
            name="x", resource=f"{own.url}/mcp", issuer=own.url if named else None, scopes=("a",)
        )
        unchecked, secrets = dataclasses.replace(checked, verify_ssl=False), SecretStore()
        consents = Consents(CALLBACK, secret_store=secrets)
        with pytest.raises(ToolFailed, match="cannot be used for authorization"):
            await consents.need(Context(), checked)
        asked = await consents.need(Context(), unchecked)
        await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
        restarted = Consents(CALLBACK, secret_store=secrets)
        with pytest.raises(ToolFailed, match="cannot be used for authorization"):
            await restarted.tokens.get(Context(), checked)
        assert await restarted.tokens.get(Context(), unchecked) == "granted"
        assert [form["grant_type"] for form in own.forms] == ["authorization_code", "refresh_token"]


async def test_certificates_are_checked_at_every_other_origin(pretender: Pretender, tmp_path: Path) -> None:
    """Whatever the entry of a tool server says of its own."""
    with pretending(self_signed(tmp_path / "other.pem")) as other:
        other.publish()
        server = ProtectedServer(
            name="x", resource=f"{pretender.url}/mcp", issuer=other.url, client_id="me", verify_ssl=False
        )
        with pytest.raises(ToolFailed, match="cannot be used for authorization"):
            await Consents(CALLBACK).need(Context(), server)
        assert other.fetched == []


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"issuer": "https://other.example"}, "names a different issuer"),
        ({"token_endpoint": "http://evil.example/token"}, "cannot be used for authorization"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "cannot be used for authorization"),
        ({"token_endpoint": "https://user:pw@x.example/"}, "cannot be used for authorization"),
        ({"token_endpoint": "https://x.example/token#t"}, "cannot be used for authorization"),
        ({"authorization_endpoint": "https://x.example/a#x"}, "cannot be used for authorization"),
        ({"authorization_endpoint": "https://x.example/a b"}, "cannot be used for authorization"),
        ({"authorization_endpoint": "https://x.example/\u202ea"}, "cannot be used for authorization"),
        ({"authorization_endpoint": "https://x.example/" + "a" * 8_000}, "cannot be used for authorization"),
    ],
)
async def test_metadata_that_lies_is_not_believed(pretender: Pretender, metadata: Json, error: str) -> None:
    """Another issuer, plain HTTP to others, and URLs of other kinds are refused."""
    pretender.publish(**metadata)
    with pytest.raises(ToolFailed, match=error):
        await Consents(CALLBACK).need(
            Context(), ProtectedServer(name="x", issuer=pretender.url, client_id="me")
        )


async def test_metadata_of_another_resource_is_not_believed(pretender: Pretender) -> None:
    """A document that speaks for another resource is refused."""
    pretender.publish()
    pretender.documents["/.well-known/oauth-protected-resource"] = {
        "resource": "https://other.example",
        "authorization_servers": [pretender.url],
    }
    server = ProtectedServer(name="x", resource=f"{pretender.url}/mcp", client_id="me")
    with pytest.raises(ToolFailed, match="is that of another resource"):
        await Consents(CALLBACK).need(Context(), server)


async def test_missing_metadata_and_dead_servers_are_reported(pretender: Pretender) -> None:
    """An authorization server without metadata, or without an answer, is named."""
    with pytest.raises(ToolFailed, match="publishes no metadata"):
        await Consents(CALLBACK).need(Context(), ProtectedServer(name="x", issuer=pretender.url))
    with pytest.raises(ToolFailed, match="cannot be used for authorization"):
        await Consents(CALLBACK).need(Context(), ProtectedServer(name="x", issuer="http://127.0.0.1:1"))


async def test_tokens_do_not_follow_a_server_to_another_place(pretender: Pretender) -> None:
    """A server that is configured with another URL or authorization server starts without tokens."""
    pretender.publish()
    secrets = SecretStore()
    consents = Consents(CALLBACK, secret_store=secrets)
    server = ProtectedServer(
        name="x", resource="http://127.0.0.1:1/mcp", issuer=pretender.url, client_id="me"
    )
    with pytest.raises(ToolFailed, match="cannot be used for authorization"):
        await consents.need(Context(), server)
    plain = ProtectedServer(name="x", issuer=pretender.url, scopes=("a",), client_id="me")
    asked = await consents.need(Context(), plain)
    await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")
    fresh = Consents(CALLBACK, secret_store=secrets)
    assert await fresh.tokens.get(Context(), plain) == "granted"
    for other in (
        ProtectedServer(name="x", issuer="https://other.example", scopes=("a",), client_id="me"),
        ProtectedServer(name="x", issuer=pretender.url, scopes=("a", "b"), client_id="me"),
    ):
        assert await fresh.tokens.get(Context(), other) is None


# --- the catalogue's auth ------------------------------------------------------------------------


class Asking:
    """A tool that returns its token."""

    spec = ToolSpec(name="A-b", description="", parameters={}, governance=Governance())

    async def call(self, context: ToolContext, arguments: Json) -> str:
        return f"{await context.user_token(['a'])} {await context.user_token(['other'])}"


async def test_catalogue_can_protect_any_tool(pretender: Pretender) -> None:
    """A tool whose entry has `auth` asks the user, and then finds the token in its context."""
    pretender.publish(registration_endpoint=f"{pretender.url}/register")
    entry = {
        "tool_id": "A-b",
        "governance": {},
        "auth": {"auth_type": "oauth2", "auth_server": pretender.url, "scopes": ["a"]},
    }
    catalogue = Catalogue.model_validate({"plugins": [{"plugin_id": "A", "tools": [entry]}]})
    consents = Consents(CALLBACK)
    tool: Tool = govern([Asking()], catalogue, consents)[0]
    assert tool.spec.auth == entry["auth"]
    with pytest.raises(NeedsAuthorization) as asked:
        await tool.call(Context(), {})
    assert (asked.value.server, asked.value.scopes) == (pretender.url, ("a",))
    await consents.complete(parse_qs(urlsplit(asked.value.url).query)["state"][0], "code")
    assert await tool.call(Context(), {}) == "granted token-of-alice-for-other"


async def test_catalogue_asks_at_a_server_that_does_not_mention_pkce(pretender: Pretender) -> None:
    """As Entra's metadata does not. Without S256 among what it does mention, there is nothing to ask for."""
    auth = {"auth_type": "oauth2", "auth_server": pretender.url, "oauth_client_id": "me"}
    entry = {"tool_id": "A-b", "governance": {}, "auth": auth}
    catalogue = Catalogue.model_validate({"plugins": [{"plugin_id": "A", "tools": [entry]}]})
    tool: Tool = govern([Asking()], catalogue, Consents(CALLBACK))[0]
    pretender.publish(code_challenge_methods_supported=None)
    with pytest.raises(NeedsAuthorization):
        await tool.call(Context(), {})
    pretender.publish(code_challenge_methods_supported=["plain"])
    with pytest.raises(ToolFailed, match="does not name S256"):
        await tool.call(Context("bob"), {})


async def test_catalogue_can_name_the_client_of_a_server_that_registers_none(
    pretender: Pretender, tmp_path: Path
) -> None:
    """Its secret comes from the environment, is sent to that server, and is no part of what is approved."""
    pretender.publish(token_endpoint_auth_methods_supported=["client_secret_post"])
    client = {"oauth_client_id": "me", "oauth_client_secret": "${CATALOGUE_SECRET}"}
    auth = {"auth_type": "oauth2", "auth_server": pretender.url, "scopes": ["a"]}
    entry = {"tool_id": "A-b", "governance": {}, "auth": auth | client}
    file = tmp_path / "catalogue.json"
    file.write_text(json.dumps({"plugins": [{"plugin_id": "A", "tools": [entry]}]}))
    with pytest.raises(ToolsetError, match=r"catalogue\.json: A-b: .* 'CATALOGUE_SECRET' is not set"):
        Catalogue.load(file, {})
    catalogue = Catalogue.load(file, {"CATALOGUE_SECRET": "s3cret"})
    consents = Consents(CALLBACK)
    tool: Tool = govern([Asking()], catalogue, consents)[0]
    assert tool.spec.auth == auth | {"oauth_client_id": "me"}
    with pytest.raises(NeedsAuthorization) as asked:
        await tool.call(Context(), {})
    await consents.complete(parse_qs(urlsplit(asked.value.url).query)["state"][0], "code")
    assert (pretender.forms[-1]["client_id"], pretender.forms[-1]["client_secret"]) == ("me", "s3cret")
    assert await tool.call(Context(), {}) == "granted token-of-alice-for-other"
