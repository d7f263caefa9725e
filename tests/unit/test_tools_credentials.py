"""Whose credentials a call may use: each one a tool can be given, against owner, approver and stranger."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest
from engine_setup import Scripted, Tools
from oauth_setup import CALLBACK, Pretender, Provider, SecretStore, pretending, protected, visited
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tools_setup import FIXTURES, Context, by_name, served

from tealagents.domain.errors import NeedsAuthorization, ToolFailed
from tealagents.domain.models import Deferred, Json, ToolCall, User
from tealagents.domain.ports import Delegation, Governance, Tool, ToolContext, ToolSpec
from tealagents.engine.toolbox import CallContext, Toolbox, ToolOutput
from tealagents.testing.clock import advance
from tealagents.testing.waits import eventually
from tealagents.tools.catalogue import Catalogue, govern
from tealagents.tools.code import load_plugins
from tealagents.tools.mcp import MCPServer
from tealagents.tools.oauth import Consents
from tealagents.tools.openapi import OpenAPIPlugin
from tealagents.tools.options import MCPServerOptions, RemotePluginOptions

OWNER = User("contoso", "alice")
#: everyone else who could ever run a call: an approver, and strangers, one with the owner's own object id
OTHERS = (User("contoso", "boss"), User("fabrikam", "eve"), User("fabrikam", "alice"))


class Delegating:
    """Tokens that say whose they are (`ports.Delegation`)."""

    async def token_for(self, user: User, assertion: str, scopes: Sequence[str]) -> str:
        return f"delegated-{user.oid}"


def context_of(actor: User, delegation: Delegation | None = None, *, token: str | None = None) -> CallContext:
    """A call's context in a request that `actor` sent or resumed, by default with a token that names them."""
    return CallContext(
        session_id="session",
        task_id="task",
        request_id="request",
        owner=OWNER,
        actor=actor,
        token=f"own-{actor.oid}" if token is None else token,
        headers={"authorization": f"Bearer passed-{actor.oid}"},
        delegation=delegation or Delegating(),
        extra_data={},
    )


class Code:
    """A tool in this process that says which credential it found."""

    spec = ToolSpec(name="Code-look", description="", parameters={}, governance=Governance())

    def __init__(self, look: Callable[[ToolContext], Any]) -> None:
        self._look = look

    async def call(self, context: ToolContext, arguments: Json) -> str:
        found = self._look(context)
        return str(found if isinstance(found, str) else await found)


class Downstream:
    """A service that notes the credentials it is sent."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        #: credentials that are not good any more
        self.ended: set[str] = set()

    async def look(self, request: Request) -> PlainTextResponse:
        self.seen.append(request.headers.get("authorization", "none"))
        return PlainTextResponse(self.seen[-1], 401 if self.seen[-1] in self.ended else 200)

    @contextmanager
    def served(self) -> Iterator[str]:
        with served(Starlette(routes=[Route("/look", self.look)])) as url:
            yield url


def catalogue_of(tool_id: str, issuer: str) -> Catalogue:
    auth = {"auth_type": "oauth2", "auth_server": issuer, "scopes": ["a"]}
    entry = {"tool_id": tool_id, "governance": {"requires_hitl": True}, "auth": auth}
    return Catalogue.model_validate({"plugins": [{"plugin_id": "x", "tools": [entry]}]})


# --- one for each credential: a tool that uses it, and what it says when it has it ---------------

Case = AsyncGenerator[tuple[Tool, str], None]


async def own_token(folder: Path) -> Case:
    """The owner's own token, as it came."""
    yield Code(lambda context: context.user_token(())), "own-alice"


async def delegated_token(folder: Path) -> Case:
    """A token to act for the owner (on-behalf-of)."""
    yield Code(lambda context: context.user_token(["x"])), "delegated-alice"


async def passed_on_headers(folder: Path) -> Case:
    yield Code(lambda context: context.headers["authorization"]), "Bearer passed-alice"


async def earlier_plugin(folder: Path) -> Case:
    """The header that plugins of the earlier platform are made with."""
    plugins = load_plugins(FIXTURES / "earlier" / "custom_plugins.py", ["HeaderPlugin"])
    yield by_name(plugins)["HeaderPlugin-authorization_header"], "Bearer passed-alice"


@asynccontextmanager
async def openapi(folder: Path, downstream: Downstream | None = None, **options: Any) -> AsyncIterator[Tool]:
    with (downstream or Downstream()).served() as url:
        document = {"openapi": "3.0.3", "paths": {"/look": {"get": {"operationId": "look"}}}}
        file = folder / "openapi.json"
        file.write_bytes(orjson.dumps(document))
        entry = RemotePluginOptions(plugin_name="Api", openapi_json_path=str(file), server_url=url, **options)
        async with OpenAPIPlugin(entry) as plugin:
            yield by_name(plugin)["Api-look"]


async def openapi_own_token(folder: Path) -> Case:
    async with openapi(folder, pass_user_token=True) as tool:
        yield tool, "Bearer own-alice"


async def openapi_delegated_token(folder: Path) -> Case:
    async with openapi(folder, on_behalf_of_scopes=["x"]) as tool:
        yield tool, "Bearer delegated-alice"


async def consented(pretender: Pretender, tool: Tool, consents: Consents) -> None:
    """The owner authorizes the server that the tool asks for."""
    with pytest.raises(NeedsAuthorization) as asked:
        await tool.call(Context("alice", tenant_id="contoso"), {})
    await consents.complete(parse_qs(urlsplit(asked.value.url).query)["state"][0], "code")


@contextmanager
def registering() -> Iterator[Pretender]:
    with pretending() as pretender:
        pretender.publish(registration_endpoint=f"{pretender.url}/register")
        yield pretender


async def catalogue_auth(folder: Path) -> Case:
    """The catalogue's `auth`, on a tool in this process."""
    with registering() as pretender:
        consents = Consents(CALLBACK)
        code = Code(lambda context: context.user_token(["a"]))
        (tool,) = govern([code], catalogue_of("Code-look", pretender.url), consents)
        await consented(pretender, tool, consents)
        yield tool, "granted"


async def catalogue_auth_of_openapi(folder: Path) -> Case:
    """The same on an OpenAPI operation, which sends it by itself."""
    with registering() as pretender:
        consents = Consents(CALLBACK)
        async with openapi(folder) as operation:
            (tool,) = govern([operation], catalogue_of("Api-look", pretender.url), consents)
            await consented(pretender, tool, consents)
            yield tool, "Bearer granted"


@asynccontextmanager
async def authorized_server(*, restarted: bool) -> AsyncIterator[Tool]:
    """An MCP server that the owner has authorized before."""
    provider, secrets = Provider(), SecretStore()
    with protected(provider) as url:
        options = MCPServerOptions(name="secure", url=url)
        consents = Consents(CALLBACK, secret_store=secrets)
        async with MCPServer(options, consents) as server:
            tool = server.find("secure-whoami")
            assert tool is not None
            with pytest.raises(NeedsAuthorization) as asked:
                await tool.call(Context("alice", tenant_id="contoso"), {})
            brought = await visited(provider, "Alice", asked.value.url)
            await consents.complete(brought["state"], brought["code"], iss=brought.get("iss"))
            if not restarted:
                yield tool
                return
        async with MCPServer(options, Consents(CALLBACK, secret_store=secrets)) as server:
            tool = server.find("secure-whoami")
            assert tool is not None
            yield tool
        assert provider.granted == ["code", "refresh"]


async def oauth_grant(folder: Path) -> Case:
    """An access token that is kept in memory."""
    async with authorized_server(restarted=False) as tool:
        yield tool, "Alice"


async def stored_oauth_grant(folder: Path) -> Case:
    """A refresh token in the secret store, after a restart or on another replica."""
    async with authorized_server(restarted=True) as tool:
        yield tool, "Alice"


CREDENTIALS = (
    own_token,
    delegated_token,
    passed_on_headers,
    earlier_plugin,
    openapi_own_token,
    openapi_delegated_token,
    catalogue_auth,
    catalogue_auth_of_openapi,
    oauth_grant,
    stored_oauth_grant,
)


async def called(tool: Tool, actor: User) -> ToolOutput | Deferred:
    toolbox = Toolbox(Scripted(), 30)
    toolbox.load([Tools(tool)])
    return await toolbox.call(ToolCall("c1", tool.spec.name, "{}"), context_of(actor))


@pytest.mark.parametrize("credential", CREDENTIALS, ids=lambda case: case.__name__)
async def test_only_the_owner_spends_the_owners_credentials(
    credential: Callable[[Path], Case], tmp_path: Path
) -> None:
    """For everyone else the call waits for the owner, before and after the owner's own. covers: HITL-3"""
    cases = credential(tmp_path)
    async for tool, expected in cases:
        for other in OTHERS:
            assert await called(tool, other) == Deferred(ToolCall("c1", tool.spec.name, "{}"), None)
        result = await called(tool, OWNER)
        assert isinstance(result, ToolOutput)
        assert (result.output, result.is_error) == (expected, False)
        for other in OTHERS:
            assert isinstance(await called(tool, other), Deferred)


async def test_only_the_owner_is_shown_where_to_authorize() -> None:
    """An approver who visited the link would authorize the server as the owner."""
    with protected(Provider()) as url:
        async with MCPServer(MCPServerOptions(name="secure", url=url), Consents(CALLBACK)) as server:
            tool = server.find("secure-whoami")
            assert tool is not None
            for other in OTHERS:
                assert await called(tool, other) == Deferred(ToolCall("c1", tool.spec.name, "{}"), None)
            asked = await called(tool, OWNER)
            assert isinstance(asked, Deferred)
            assert asked.authorization is not None


async def test_a_token_that_the_service_refuses_is_replaced(tmp_path: Path) -> None:
    """The catalogue's `auth` renews a token that has ended early, and then asks the owner again."""
    downstream = Downstream()
    with registering() as pretender:
        consents = Consents(CALLBACK, secret_store=SecretStore())
        async with openapi(tmp_path, downstream) as operation:
            (tool,) = govern([operation], catalogue_of("Api-look", pretender.url), consents)
            await consented(pretender, tool, consents)
            downstream.ended.add("Bearer granted")
            pretender.answered = {"access_token": "second"}
            assert await tool.call(Context("alice"), {}) == "Bearer second"
            downstream.ended.add("Bearer second")
            with pytest.raises(NeedsAuthorization):
                await tool.call(Context("alice"), {})
            pretender.answered = {"access_token": "third"}
            downstream.ended.add("Bearer third")
            with pytest.raises(ToolFailed, match="answered 401"):
                await tool.call(Context("alice"), {})
    assert downstream.seen[-2:] == ["Bearer second", "Bearer third"]


class SilentSecrets(SecretStore):
    """A store of secrets that answers nothing any more, once it has been told to be silent."""

    silent = False
    asked = 0

    async def get(self, user_key: str, server: str) -> str | None:
        if self.silent:
            self.asked += 1
            await asyncio.Event().wait()
        return await super().get(user_key, server)


async def failed_in_wait(tool: Tool, secrets: SilentSecrets) -> ToolOutput:
    """The result of a call that waits for its token until its time is over."""
    asked, loop = secrets.asked, asyncio.get_running_loop()
    calling = asyncio.create_task(called(tool, OWNER))
    await eventually(lambda: secrets.asked > asked)
    advance(loop, 120)
    result = await calling
    assert isinstance(result, ToolOutput)
    assert result.is_error
    return result


async def test_a_call_whose_token_never_comes_was_not_made(tmp_path: Path) -> None:
    """It says so: the model may make it again. Whether the tool runs here or elsewhere."""
    secrets, looked, downstream = SilentSecrets(), list[ToolContext](), Downstream()
    secrets.silent = True
    with registering() as pretender:
        async with openapi(tmp_path, downstream, timeout=5) as operation:
            for tool in (Code(looked.append), operation):
                consents = Consents(CALLBACK, secret_store=secrets)
                (governed,) = govern([tool], catalogue_of(tool.spec.name, pretender.url), consents)
                result = await failed_in_wait(governed, secrets)
                assert "The user's token did not come in time. Nothing was done." in result.output
                assert not result.unknown
    assert (looked, downstream.seen) == ([], [])


class Unanswering:
    """An authority that never gives a token to act for a user (`ports.Delegation`)."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def token_for(self, user: User, assertion: str, scopes: Sequence[str]) -> str:
        self.asked.set()
        await asyncio.Event().wait()
        return "never"


@pytest.mark.parametrize(
    ("file", "name", "arguments"),
    [
        ("custom_plugins.py", "Aware-by_name", '{"text": "hello"}'),
        ("earlier/custom_plugins.py", "DelegatingPlugin-authorization_header", "{}"),
    ],
)
async def test_a_call_of_a_plugin_whose_token_never_comes_was_not_made(
    file: str, name: str, arguments: str
) -> None:
    """Its `on_behalf_of_scopes` are asked for before the method runs."""
    delegation, loop = Unanswering(), asyncio.get_running_loop()
    plugins = load_plugins(FIXTURES / file, [name.partition("-")[0]])
    toolbox = Toolbox(Scripted(), 30)
    toolbox.load([Tools(by_name(plugins)[name])])
    context = context_of(OWNER, delegation)
    calling = asyncio.create_task(toolbox.call(ToolCall("c1", name, arguments), context))
    await asyncio.wait_for(delegation.asked.wait(), 30)
    advance(loop, 120)
    result = await calling
    assert isinstance(result, ToolOutput)
    assert result.output == "Error: The user's token did not come in time. Nothing was done."
    assert not result.unknown


async def test_a_refused_call_whose_other_token_never_comes_was_not_made(tmp_path: Path) -> None:
    """The service has turned it away, and was sent nothing since."""
    secrets, downstream = SilentSecrets(), Downstream()
    with registering() as pretender:
        consents = Consents(CALLBACK, secret_store=secrets)
        async with openapi(tmp_path, downstream, timeout=5) as operation:
            (tool,) = govern([operation], catalogue_of("Api-look", pretender.url), consents)
            await consented(pretender, tool, consents)
            downstream.ended.add("Bearer granted")
            secrets.silent = True
            result = await failed_in_wait(tool, secrets)
    assert "Nothing was done." in result.output
    assert not result.unknown
    assert downstream.seen == ["Bearer granted"]


async def test_a_call_that_an_mcp_server_refused_was_not_made_while_it_waits_for_a_token() -> None:
    """A call that waits for another one was turned away, and has not been made again."""
    provider, secrets = Provider(), SilentSecrets()
    with protected(provider) as url:
        options = MCPServerOptions(name="secure", url=url)
        consents = Consents(CALLBACK, secret_store=secrets)
        async with MCPServer(options, consents) as server:
            tool = server.find("secure-whoami")
            assert tool is not None
            with pytest.raises(NeedsAuthorization) as asked:
                await tool.call(Context("alice", tenant_id="contoso"), {})
            brought = await visited(provider, "Alice", asked.value.url)
            await consents.complete(brought["state"], brought["code"], iss=brought.get("iss"))
            provider.access.clear()
            secrets.silent = True
            result = await failed_in_wait(tool, secrets)
    assert "Nothing was done." in result.output
    assert not result.unknown
    assert provider.calls == []


async def test_a_text_is_no_list_of_scopes() -> None:
    """It would be asked for letter by letter."""
    with pytest.raises(ToolFailed, match="takes a list of scopes"):
        await context_of(OWNER).user_token("api://down/read")


@pytest.mark.parametrize("scopes", [(), ("a",)], ids=["the user's own", "on behalf of"])
async def test_a_request_without_a_token_has_none_to_pass_on(tmp_path: Path, scopes: tuple[str, ...]) -> None:
    """Behind a gateway, or in the library, no user's token is known: a tool is not given an empty one, and a
    call that needs one is not made."""
    downstream, context = Downstream(), context_of(OWNER, token="")
    options = {"on_behalf_of_scopes": list(scopes)} if scopes else {"pass_user_token": True}
    async with openapi(tmp_path, downstream, **options) as tool:
        for needing in (tool, Code(lambda context: context.user_token(scopes))):
            with pytest.raises(
                ToolFailed, match="none came with this request; with TA_AUTH=gateway none does"
            ):
                await needing.call(context, {})
    assert downstream.seen == []
