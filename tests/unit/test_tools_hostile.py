"""Documents and servers that mean harm: where requests go, and what of a text is looked at."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from hostile_server import HostileServer
from oauth_setup import CALLBACK, Pretender, Provider, SecretStore, pretending, protected, visited
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tools_setup import Context, by_name, served

from tealagents.domain.errors import InvalidRequest, NeedsAuthorization, ToolFailed
from tealagents.domain.ports import Checking, Tool
from tealagents.llm.failures import complaint_of_body, explained, page
from tealagents.outbound import addresses
from tealagents.tools import Sources, tools_at_hand
from tealagents.tools.code import load_plugins
from tealagents.tools.errors import ToolsetError
from tealagents.tools.mcp import MCPServer
from tealagents.tools.oauth import Consents
from tealagents.tools.oauth_clients import Registrations
from tealagents.tools.oauth_servers import (
    Challenge,
    Issuer,
    ProtectedServer,
    issuer_of,
    resource_metadata,
    server_metadata,
)
from tealagents.tools.openapi import OpenAPIPlugin
from tealagents.tools.openapi_document import MAX_SCHEMA, operations
from tealagents.tools.openapi_parsing import parsed
from tealagents.tools.options import MCPServerOptions, RemotePluginOptions

Json = dict[str, Any]


class Seen:
    """A service that notes what it is asked for."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.url = ""

    async def answer(self, request: Request) -> PlainTextResponse:
        self.paths.append(request.scope["raw_path"].decode())
        return PlainTextResponse("fine")


@contextmanager
def seeing() -> Iterator[Seen]:
    seen = Seen()
    with served(Starlette(routes=[Route("/{path:path}", seen.answer, methods=["GET", "POST"])])) as url:
        seen.url = url
        yield seen


@asynccontextmanager
async def within_the_network() -> AsyncIterator[tuple[int, list[bytes]]]:
    """The port of a listener on loopback, and what has reached it."""
    reached: list[bytes] = []

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(1))
        writer.close()

    async with await asyncio.start_server(accepted, "127.0.0.1", 0) as listener:
        yield listener.sockets[0].getsockname()[1], reached


def document(path: str = "/x", **more: Any) -> Json:
    return {"openapi": "3.0.3", "paths": {path: {"get": {"operationId": "run", **more}}}}


async def call(folder: Path, paths: Json, server: str | None, arguments: Json) -> str:
    """What a tool answers whose document is a file; with a key that must not go astray."""
    file = folder / "openapi.json"
    file.write_text(json.dumps(paths))
    entry = RemotePluginOptions(
        plugin_name="Api",
        openapi_json_path=str(file),
        server_url=server,
        headers={"x-key": "secret"},
    )
    async with OpenAPIPlugin(entry) as plugin:
        return await by_name(plugin)["Api-run"].call(Context(), arguments)


# --- where requests go ---------------------------------------------------------------------------

#: `ELSEWHERE` stands for a listener on another port, `PORT` for that port
PATHS = (
    "@ELSEWHERE/x",
    ":PORT/x",
    ".evil.example/x",
    "x",
    "",
    "?a=@ELSEWHERE",
    "#@ELSEWHERE",
    "http://ELSEWHERE/x",
    "https:ELSEWHERE",
    "\\@ELSEWHERE/x",
    "\t@ELSEWHERE/x",
    " @ELSEWHERE/x",
    "%40ELSEWHERE/x",
    "user:pw@ELSEWHERE/x",
    "/../../admin",
    "/..",
    "/.",
    "/./x",
    "/x/../../admin",
    "/x/..",
    "/%2e%2e/admin",
    "/%2E%2e/admin",
    "/.%2e/admin",
    "/..%2fadmin",
    "/..%5cadmin",
    "/..\\admin",
    "/\\..\\admin",
    "/x;a=b/..;/admin",
    "/..;x=y/admin",
    "/ .. /admin",
    "/x\n/../admin",
    "/x\r\nHost: ELSEWHERE",
    "/x\0",
)


@pytest.mark.parametrize("path", PATHS)
async def test_a_path_that_leaves_its_server_is_refused_at_start(tmp_path: Path, path: str) -> None:
    """Neither another origin nor what lies beside the base is ever asked."""
    with seeing() as here, seeing() as elsewhere:
        there = elsewhere.url.removeprefix("http://")
        path = path.replace("ELSEWHERE", there).replace("PORT", there.rpartition(":")[2])
        with pytest.raises(ToolsetError, match="a path must begin with /"):
            await call(tmp_path, document(path), f"{here.url}/base", {})
        assert (here.paths, elsewhere.paths) == ([], [])


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("//ELSEWHERE/x", "/base//ELSEWHERE/x"),
        ("/@ELSEWHERE/x", "/base/@ELSEWHERE/x"),
        ("/x:PORT", "/base/x:PORT"),
        ("/%2F%2FELSEWHERE", "/base/%2F%2FELSEWHERE"),
        ("/...", "/base/..."),
        ("/x..y/z", "/base/x..y/z"),
    ],
)
async def test_a_path_that_only_looks_like_one_stays_there(tmp_path: Path, path: str, asked: str) -> None:
    """Behind the base, an at sign, a colon and slashes are parts of a path."""
    with seeing() as here, seeing() as elsewhere:
        there = elsewhere.url.removeprefix("http://")
        await call(tmp_path, document(path.replace("ELSEWHERE", there)), f"{here.url}/base", {})
        assert here.paths == [asked.replace("ELSEWHERE", there)]
        assert elsewhere.paths == []


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("/{a}{b}/x", {"a": ".", "b": "."}),
        ("/{a}./x", {"a": "."}),
        ("/.{a}/x", {"a": "."}),
        ("/%2e{a}/x", {"a": "."}),
    ],
)
async def test_arguments_do_not_make_a_step_together(tmp_path: Path, path: str, arguments: Json) -> None:
    """A value that is none by itself is looked at where it stands, before anything is sent."""
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in arguments
    ]
    with seeing() as here:
        with pytest.raises(ToolFailed, match="cannot be"):
            await call(tmp_path, document(path, parameters=parameters), f"{here.url}/base", arguments)
        assert here.paths == []


@pytest.mark.parametrize(
    "secret", [{"headers": {"x": "y"}}, {"pass_user_token": True}, {"on_behalf_of_scopes": ["s"]}]
)
async def test_a_document_does_not_choose_who_is_sent_credentials(tmp_path: Path, secret: Json) -> None:
    """Where a key or a user's token is sent along, the operator names the server."""
    with seeing() as elsewhere:
        file = tmp_path / "openapi.json"
        file.write_text(json.dumps({**document(), "servers": [{"url": elsewhere.url}]}))
        entry = RemotePluginOptions(plugin_name="Api", openapi_json_path=str(file), **secret)
        with pytest.raises(ToolsetError, match="Set server_url"):
            await OpenAPIPlugin(entry).__aenter__()
        assert elsewhere.paths == []


async def test_a_document_does_not_choose_who_is_sent_what_a_user_authorized(tmp_path: Path) -> None:
    """Nor where the catalogue makes a tool wait for a user's own authorization, and send its token."""
    names = ("openapi.json", "catalogue.json", "plugins.yaml")
    file, catalogue, plugins = (tmp_path / name for name in names)
    file.write_text(json.dumps({**document(), "servers": [{"url": "https://elsewhere.example"}]}))
    plugins.write_text("remote_plugins: [{plugin_name: Api, openapi_json_path: openapi.json}]")
    auth = {"auth_type": "oauth2", "auth_server": "https://login.example", "scopes": ["a"]}
    for said, refused in ((None, False), (auth, True)):
        tool = {"tool_id": "Api-run", "governance": {}, "auth": said}
        catalogue.write_text(json.dumps({"plugins": [{"plugin_id": "Api", "tools": [tool]}]}))
        with pytest.raises(ToolsetError, match="Set server_url") if refused else nullcontext():
            await tools_at_hand(Sources(remote=["Api"], remote_plugin_file=plugins, catalogue_file=catalogue))


async def test_a_fetched_document_names_no_server_elsewhere() -> None:
    """One that a server hands out is believed for that server alone."""
    with seeing() as elsewhere:

        async def spec(request: Request) -> PlainTextResponse:
            return PlainTextResponse(json.dumps({**document(), "servers": [{"url": elsewhere.url}]}))

        with served(Starlette(routes=[Route("/spec.json", spec)])) as url:
            entry = RemotePluginOptions(plugin_name="Api", openapi_json_path=f"{url}/spec.json")
            with pytest.raises(ToolsetError, match="names a server elsewhere"):
                await OpenAPIPlugin(entry).__aenter__()
        assert elsewhere.paths == []


# --- documents that grow -------------------------------------------------------------------------


def test_aliases_are_counted_as_what_they_stand_for() -> None:
    """Two kilobytes of aliases of aliases are refused at once."""
    lines = ["openapi: 3.0.3", "a0: &a0 {type: string}"]
    lines += [f"a{n}: &a{n} {{anyOf: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 9)]
    with pytest.raises(ToolsetError, match="more than 1,000,000 values"):
        parsed("\n".join(lines).encode(), "x.yaml")
    with pytest.raises(ToolsetError, match="more than 1,000,000 values"):
        parsed(b"openapi: 3.0.3\na: &a [*a]\n", "x.yaml")


def test_schemas_put_together_of_each_other_end() -> None:
    """Forty levels of `allOf`, each naming the next twice, are a billion parts; reading stops long before."""
    schemas: Json = {f"S{n}": {"allOf": [{"$ref": f"#/components/schemas/S{n + 1}"}] * 2} for n in range(40)}
    schemas["S40"] = {"type": "object", "properties": {"a": {"type": "string"}}}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
    whole = {**document(requestBody=body), "components": {"schemas": schemas}}
    (operation,) = operations(whole, "x")
    assert list(operation.schema["properties"]) == ["body"]


def test_a_tools_arguments_are_bounded() -> None:
    """What the model is sent of one tool with every call stays of a sane size."""
    parameters = [
        {"name": f"p{n}", "in": "query", "schema": {"type": "string", "description": "x" * 1000}}
        for n in range(1000)
    ]
    (operation,) = operations(document(parameters=parameters), "x")
    assert len(json.dumps(operation.schema)) < 2 * MAX_SCHEMA
    assert len(operation.parameters) == 1000


# --- authorization servers -----------------------------------------------------------------------


@pytest.fixture
def pretender() -> Iterator[Pretender]:
    with pretending() as pretender:
        yield pretender


def state_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["state"][0]


def parameters(asked: NeedsAuthorization) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(asked.url).query).items()}


def resource_of(pretender: Pretender, issuer: str) -> ProtectedServer:
    """An MCP server that names its authorization server."""
    pretender.documents["/.well-known/oauth-protected-resource"] = {
        "resource": f"{pretender.url}/mcp",
        "authorization_servers": [issuer],
    }
    return ProtectedServer(name="x", resource=f"{pretender.url}/mcp", client_id="me")


def registering(pretender: Pretender) -> ProtectedServer:
    """An MCP server that is its own authorization server, where this service registers itself."""
    pretender.publish(registration_endpoint=f"{pretender.url}/register")
    return ProtectedServer(name="x", resource=f"{pretender.url}/mcp")


async def agreed(consents: Consents, server: ProtectedServer) -> None:
    """The user visits the link and agrees."""
    asked = await consents.need(Context(), server)
    await consents.complete(state_of(asked.url), "code")


def test_a_secret_needs_its_authorization_server() -> None:
    """Otherwise the tool server would name who is sent it: the config is refused."""
    given = {"name": "a", "url": "https://a.example/mcp", "oauth_client_id": "me", "oauth_client_secret": "s"}
    with pytest.raises(ValidationError, match="oauth_client_secret needs auth_server"):
        MCPServerOptions.model_validate(given)
    MCPServerOptions.model_validate({**given, "auth_server": "https://login.example"})


def test_a_service_that_may_not_register_itself_needs_its_client_id() -> None:
    """Otherwise each call would wait for a consent that no user can give."""
    given = {
        "name": "a",
        "url": "https://a.example/mcp",
        "auth_server": "https://login.example",
        "enable_dynamic_registration": False,
    }
    with pytest.raises(
        ValidationError, match="needs oauth_client_id if enable_dynamic_registration is false"
    ):
        MCPServerOptions.model_validate(given)
    MCPServerOptions.model_validate({**given, "oauth_client_id": "me"})


@pytest.mark.parametrize("assumed", [False, True])
@pytest.mark.parametrize("methods", [None, [], ["plain"], "S256", {"S256": True}])
async def test_no_user_is_sent_to_a_server_that_does_not_say_it_supports_pkce(
    pretender: Pretender, methods: object, assumed: bool
) -> None:
    """MCP: without S256 in the metadata, clients must refuse. They do not register there either.

    The config can say what the metadata leaves out; it does not overrule what the metadata says.
    """
    pretender.publish(registration_endpoint=f"{pretender.url}/register")
    published = pretender.documents["/.well-known/oauth-authorization-server"]
    del published["code_challenge_methods_supported"]
    if methods is not None:
        published["code_challenge_methods_supported"] = methods
    given = {"url": f"{pretender.url}/mcp", "auth_server": pretender.url, "assume_pkce": assumed}
    server = MCPServer(MCPServerOptions.model_validate({"name": "x", **given}), Consents(CALLBACK))
    connect = server.find("x-connect")
    assert connect is not None
    refused = methods is not None or not assumed
    with pytest.raises(ToolFailed if refused else NeedsAuthorization) as raised:
        await connect.call(Context(), {})
    assert ("code_challenge_methods_supported" in str(raised.value)) == refused
    assert len(pretender.clients) == (not refused)


def test_a_server_that_is_assumed_to_support_pkce_is_named_in_the_config() -> None:
    """Otherwise the tool server would choose which one that is: the config is refused."""
    given = {"name": "a", "url": "https://a.example/mcp", "assume_pkce": True}
    with pytest.raises(ValidationError, match="assume_pkce needs auth_server"):
        MCPServerOptions.model_validate(given)
    MCPServerOptions.model_validate({**given, "auth_server": "https://login.example"})


async def test_a_secret_goes_to_no_server_that_was_discovered(pretender: Pretender) -> None:
    """Without an authorization server in the config nothing is sent, for any caller."""
    pretender.publish()
    server = ProtectedServer(
        name="x", resource=f"{pretender.url}/mcp", client_id="me", client_secret="s3cret"
    )
    with pytest.raises(ToolFailed, match="only sent to a configured auth_server"):
        await Consents(CALLBACK).need(Context(), server)
    assert pretender.forms == []


async def test_addresses_within_the_network_are_not_called_for_a_tool_server(pretender: Pretender) -> None:
    """An authorization server that the config does not name is at a public address, or it is not called; a
    refused address reads as one that does not answer."""
    with seeing() as inside:
        port = urlsplit(inside.url).port
        said = set()
        for issuer in (
            *(f"http://127.0.0.1:{port}", f"https://127.0.0.1:{port}", f"https://localhost:{port}"),
            *(f"https://[::ffff:127.0.0.1]:{port}", "https://169.254.169.254", "https://127.0.0.1:1"),
            *(f"https://0.0.0.0:{port}", f"https://2130706433:{port}", f"https://127.1:{port}"),
        ):
            with pytest.raises(ToolFailed, match="cannot be used for authorization") as raised:
                await Consents(CALLBACK).need(Context(), resource_of(pretender, issuer))
            said.add(str(raised.value).partition(" cannot")[2])
        assert len(said) == 1
        assert inside.paths == []


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("endpoint", ["registration_endpoint", "token_endpoint"])
async def test_addresses_within_the_network_are_not_called_for_a_tool_servers_own_authorization_server(
    pretender: Pretender, endpoint: str, scheme: str
) -> None:
    """The config names the tool server, and with it an authorization server at its origin, but not what that
    one's metadata names elsewhere."""
    async with within_the_network() as (port, reached):
        server = registering(pretender)
        metadata = pretender.documents["/.well-known/oauth-authorization-server"]
        metadata[endpoint] = f"{scheme}://127.0.0.1:{port}/x"
        with pytest.raises((ToolFailed, InvalidRequest), match="cannot be used for authorization"):
            await agreed(Consents(CALLBACK), server)
        assert reached == []


@pytest.mark.parametrize("scopes", [5, "read", {"read": 1}, [5, ["read"], None]], ids=str)
async def test_scopes_that_are_not_a_list_of_texts_are_not_asked_for(
    pretender: Pretender, scopes: object
) -> None:
    """Neither those of the tool server nor those of its authorization server are taken for others."""
    server = registering(pretender)
    pretender.documents["/.well-known/oauth-protected-resource"] = {
        "resource": f"{pretender.url}/mcp",
        "scopes_supported": scopes,
    }
    pretender.documents["/.well-known/oauth-authorization-server"].update(
        scopes_supported=scopes, token_endpoint_auth_methods_supported=scopes
    )
    assert (await Consents(CALLBACK).need(Context(), server)).scopes == ()
    challenge = Challenge(scopes=("write",))
    keeping = Consents(CALLBACK, secret_store=SecretStore())
    assert (await keeping.need(Context(), server, challenge)).scopes == ("write",)


@pytest.mark.parametrize(
    "resource",
    [
        {"scopes_supported": [f"scope-{n}" for n in range(5_000)]},
        {"scopes_supported": ["a" * 200_000]},
        {"resource": "{url}/mcp?" + "a" * 200_000},
    ],
    ids=["many scopes", "a long scope", "a long name"],
)
async def test_a_link_has_no_more_characters_than_servers_read(pretender: Pretender, resource: Json) -> None:
    """Whatever a tool server asks for; the service registers itself for none of it."""
    server = registering(pretender)
    named = resource.get("resource", "{url}/mcp").format(url=pretender.url)
    pretender.documents["/.well-known/oauth-protected-resource"] = {**resource, "resource": named}
    with pytest.raises(ToolFailed, match=r"^x"):
        await Consents(CALLBACK).need(Context(), server)
    assert pretender.clients == []


@pytest.mark.parametrize(
    "registered",
    [
        {"client_id": 5},
        {"client_id": ""},
        {"client_id": "a" * 200_000},
        {"client_id": "a\r\nb"},
        {"client_secret": 5},
        {"client_secret": ["s"]},
        {"client_secret": "s" * 200_000},
    ],
    ids=lambda registered: str(registered)[:30],
)
async def test_a_client_is_registered_under_texts_of_a_sane_length(
    pretender: Pretender, registered: Json
) -> None:
    """Another answer is a failure of the call; nothing is kept that could not be read again."""
    server, secrets = registering(pretender), SecretStore()
    pretender.registered = registered
    with pytest.raises(ToolFailed, match="did not register this service"):
        await Consents(CALLBACK, secret_store=secrets).need(Context(), server)
    assert secrets.secrets == {}


async def test_a_tool_server_gets_no_code_of_another_authorization_server(pretender: Pretender) -> None:
    """Not by sending the user on to it (mix-up, RFC 9700, 4.4): that one knows our client under a callback
    URL of its own, and a code that comes back there is for no one else. It does not name itself in `iss`."""
    honest = Provider()
    with protected(honest) as url:
        server = ProtectedServer(name="honest", resource=url)
        consents = Consents(CALLBACK, own_callbacks=True)
        asked = parameters(await consents.need(Context(), server))
        theirs = await consents.need(Context(), registering(pretender))
        link = {**parameters(theirs), "client_id": asked["client_id"], "resource": url}
        at = url.removesuffix("/mcp") + "/authorize?"
        async with httpx.AsyncClient() as browser:
            assert (await browser.get(at + urlencode(link))).status_code == 400
        link["redirect_uri"] = asked["redirect_uri"]
        brought = await visited(honest, "ada", at + urlencode(link))
        with pytest.raises(InvalidRequest, match="different authorization server"):
            await consents.complete(**brought)
        with pytest.raises(InvalidRequest, match="different authorization server"):
            await consents.refuse(brought["state"], "access_denied", "", server=brought["server"])
        assert pretender.forms == []
        # what the user began at the honest one is not disturbed
        brought = await visited(honest, "ada", at + urlencode(asked))
        assert await consents.complete(**brought) == "honest"


def test_what_the_operator_registered_keeps_its_callback() -> None:
    """The authorization servers that the config names, and those where it names our client."""
    registrations = Registrations(CALLBACK, time.time, own_callbacks=True)
    issuer = "https://login.example"
    discovered = ProtectedServer(name="x", resource="https://x.example/mcp")
    for known in (replace(discovered, issuer=issuer), replace(discovered, client_id="me")):
        assert registrations.redirect_uri(registrations.callback_id(known, issuer)) == CALLBACK
    assert registrations.redirect_uri(registrations.callback_id(discovered, issuer)) != CALLBACK


@pytest.mark.parametrize("endpoint", ["registration_endpoint", "token_endpoint", "authorization_endpoint"])
@pytest.mark.parametrize(
    "url", ["http://127.evil.example/x", "http://localhost.evil.example/x", "ftp://x/y", 5]
)
async def test_every_endpoint_is_held_to_one_rule(pretender: Pretender, endpoint: str, url: object) -> None:
    """A name that begins like loopback is not loopback, for registration as for its siblings."""
    pretender.publish(**{endpoint: url})
    with pytest.raises(ToolFailed, match="cannot be used for authorization"):
        await Consents(CALLBACK).need(Context(), ProtectedServer(name="x", issuer=pretender.url))
    assert pretender.forms == []


async def test_a_name_is_connected_to_where_it_was_found_to_be(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that stood for a public address when it was looked at, and now stands for this machine, leads
    nowhere (DNS rebinding)."""
    looked_up: list[str] = []

    def rebound(host: Any, port: Any, *more: Any, **options: Any) -> list[Any]:
        looked_up.append(host)
        address = "93.184.215.14" if host == "rebinding.example" and len(looked_up) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port or 0))]

    with seeing() as inside:
        server = resource_of(pretender, f"https://rebinding.example:{urlsplit(inside.url).port}")
        resource = await resource_metadata(server, Challenge())
        monkeypatch.setattr("tealagents.tools.oauth_servers.ANSWER_SECONDS", 0.2)
        monkeypatch.setattr("socket.getaddrinfo", rebound)
        with pytest.raises(ToolFailed, match="cannot be used for authorization"):
            await server_metadata(server, issuer_of(server, resource))
        assert looked_up.count("rebinding.example") == 1
        assert inside.paths == []


@pytest.mark.parametrize("exempt", ["", "within.example", "*.example", "a.within.example:{port}"])
async def test_no_exemption_from_the_proxy_leads_within_the_network(
    monkeypatch: pytest.MonkeyPatch, exempt: str
) -> None:
    """Whatever `NO_PROXY` says, a name that is called directly was looked up, and its address is public."""

    def within(host: Any, port: Any, *more: Any, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port or 0))]

    async with within_the_network() as (port, reached):
        for name in ("https_proxy", "no_proxy"):
            monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", exempt.format(port=port))
        monkeypatch.setattr("socket.getaddrinfo", within)
        issuer = f"https://a.within.example:{port}"
        with pytest.raises(ToolFailed, match="cannot be used for authorization"):
            await Issuer(issuer, named=False).call("GET", f"{issuer}/x")
        assert reached == []


async def test_no_proxy_answers_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, pretender: Pretender
) -> None:
    """With `HTTP_PROXY` set, services on loopback are called directly: the proxy would read their keys."""
    pretender.publish()
    with HostileServer("html") as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        server = ProtectedServer(name="x", issuer=pretender.url, client_id="me")
        asked = await Consents(CALLBACK).need(Context(), server)
        assert asked.url.startswith(pretender.url)
        assert addresses.proxy_for("http://127.0.0.2:1/x") is None
        assert addresses.proxy_for("http://example.com/x") == proxy.url
        assert proxy.asked == []


# --- patterns that meet foreign text -------------------------------------------------------------


def test_no_text_stalls_a_pattern() -> None:
    """Texts made to be searched again and again from each of their characters take a moment, not minutes."""
    began = time.process_time()
    for header in ("a" * 60_000, "_" * 60_000, 'a="' * 20_000, "=" * 60_000, 'a="' + "b" * 60_000):
        assert Challenge.of(header).scopes == ()
    assert Challenge.of('Bearer scope="a b", resource_metadata="https://x.example/y"') == Challenge(
        resource_metadata="https://x.example/y", scopes=("a", "b")
    )
    for text in (
        "<title" * 12_000,
        "<title>" * 9_000,
        "-eyJ" * 16_000,
        "bearer" + " " * 64_000,
        "sk-" * 20_000,
    ):
        body = text.encode()
        refusal = complaint_of_body(body, status=400, content_type="text/html", request_id="")
        assert len(explained(refusal, (), url="http://x")) < 1_000
        assert len(page(text)) < 20_000
    assert time.process_time() - began < 10


@pytest.mark.parametrize("kind", ["code", "openapi"])
async def test_a_name_of_megabytes_is_neither_echoed_nor_compared(tmp_path: Path, kind: str) -> None:
    """Edited arguments come from a client: what is wrong with them is reported in a sentence."""
    if kind == "code":
        (tmp_path / "custom_plugins.py").write_text(
            "from tealagents.plugins import Plugin, tool\n"
            "class P(Plugin):\n    @tool\n    def run(self, path: int) -> None: 'Run.'\n"
        )
        tool = by_name(load_plugins(tmp_path / "custom_plugins.py", ["P"]))["P-run"]
        await check_refusals(tool)
    else:
        file = tmp_path / "openapi.json"
        parameters = [{"name": "path", "in": "query", "schema": {"type": "string"}}]
        file.write_text(json.dumps(document(parameters=parameters)))
        entry = RemotePluginOptions(
            plugin_name="P", openapi_json_path=str(file), server_url="http://127.0.0.1:1"
        )
        async with OpenAPIPlugin(entry) as plugin:
            await check_refusals(by_name(plugin)["P-run"])


async def check_refusals(tool: Tool) -> None:
    assert isinstance(tool, Checking)
    began = time.process_time()
    many = {f"x{n}": n for n in range(200_000)}
    for arguments in ({"p" * 19_000_000: 1}, {"path": 1, "p" * 19_000_000: 1}, many):
        with pytest.raises(ToolFailed) as raised:
            tool.check(arguments)
        assert len(str(raised.value)) < 3_000
    assert time.process_time() - began < 20
