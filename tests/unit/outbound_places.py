"""Every place that reads bytes from outside, called against a hostile server.

Run as a program, with the URLs of such servers: each place is tried against each, and a line of JSON says how
it ended, how much memory it took over the idle process, and how long the event loop had no time for others.
With `together`, all places are tried at once: where they do nothing but wait.
"""

import asyncio
import base64
import gc
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tools_setup import Context, by_name

from tealagents.auth import msal_http
from tealagents.auth.delegation import open_delegation
from tealagents.auth.entra import EntraAuthenticator
from tealagents.auth.jwks import read_key_set
from tealagents.auth.options import EntraOptions
from tealagents.domain.models import User
from tealagents.domain.ports import ModelCall
from tealagents.llm import credentials
from tealagents.llm.credentials import AzureCredential, AzureCredentialOptions
from tealagents.llm.openai_chat import OpenAIChat
from tealagents.llm.openai_responses import OpenAIResponses
from tealagents.testing.clock import FakeClock
from tealagents.tools import oauth_servers, openapi
from tealagents.tools.mcp import MCPServer
from tealagents.tools.oauth import Consents
from tealagents.tools.oauth_servers import ProtectedServer
from tealagents.tools.openapi import OpenAPIPlugin
from tealagents.tools.options import MCPServerOptions, RemotePluginOptions

Place = Callable[[str], Awaitable[str]]
PLACES: dict[str, tuple[str, Place]] = {}
CALLBACK = "http://127.0.0.1:1/callback"
TENANT = "11111111-1111-1111-1111-111111111111"


def reads(module: str) -> Callable[[Place], Place]:
    """Enters a place in the table: `module` is where its client is made."""

    def enter(place: Place) -> Place:
        PLACES[place.__name__] = (module, place)
        return place

    return enter


# --- tools ---------------------------------------------------------------------------------------


async def _operation(url: str, method: str) -> str:
    document = {"openapi": "3.0.3", "paths": {"/run": {method: {"operationId": "run"}}}}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(document))
        file.flush()
        options = RemotePluginOptions(
            plugin_name="Api", openapi_json_path=file.name, server_url=url, timeout=SECONDS
        )
        async with OpenAPIPlugin(options) as plugin:
            return await by_name(plugin)["Api-run"].call(Context(), {})


@reads("tools/openapi.py")
async def openapi_get(url: str) -> str:
    return await _operation(url, "get")


@reads("tools/openapi.py")
async def openapi_post(url: str) -> str:
    return await _operation(url, "post")


@reads("tools/openapi.py")
async def openapi_document(url: str) -> str:
    options = RemotePluginOptions(plugin_name="Api", openapi_json_path=f"{url}/openapi.json", server_url=url)
    async with OpenAPIPlugin(options):
        return "opened"


@reads("tools/mcp_transport.py")
async def mcp_start(url: str) -> str:
    options = MCPServerOptions(
        name="hostile", url=f"{url}/mcp", timeout=SECONDS, sse_read_timeout=3 * SECONDS
    )
    async with MCPServer(options):
        return "opened"


@reads("tools/mcp_transport.py")
async def mcp_call(url: str) -> str:
    options = MCPServerOptions(
        name="hostile",
        url=f"{url}/mcp-session",
        timeout=SECONDS,
        sse_read_timeout=SECONDS,
        request_timeout=3 * SECONDS,
        protocol_version="2025-06-18",
    )
    async with MCPServer(options) as server:
        return await by_name(server)["hostile-run"].call(Context(), {})


#: a proper session over stdio, until a tool is called: from then on the hostile server's own bytes
_CHILD = """
import json, shutil, sys, urllib.parse, socket
for line in sys.stdin:
    message = json.loads(line)
    result = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "hostile", "version": "1"}},
        "tools/list": {"tools": [{"name": "run", "inputSchema": {"type": "object"}}]},
    }.get(message["method"])
    if result is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    elif message["method"] == "tools/call":
        url = urllib.parse.urlsplit(sys.argv[1])
        with socket.create_connection((url.hostname, url.port)) as connection:
            connection.sendall(b"GET /stdio HTTP/1.1\\r\\n\\r\\n")
            shutil.copyfileobj(connection.makefile("rb"), sys.stdout.buffer, 65536)
"""


@reads("tools/mcp_transport.py")
async def mcp_stdio(url: str) -> str:
    options = MCPServerOptions(
        name="hostile",
        command=sys.executable,
        args=["-c", _CHILD, url],
        request_timeout=2 * SECONDS,
        protocol_version="2025-06-18",
    )
    async with MCPServer(options) as server:
        return await by_name(server)["hostile-run"].call(Context(), {})


@reads("tools/oauth_servers.py")
async def oauth_resource_metadata(url: str) -> str:
    server = ProtectedServer(name="x", resource=f"{url}/mcp", client_id="me")
    return (await Consents(CALLBACK).need(Context(), server)).url


@reads("tools/oauth_servers.py")
async def oauth_server_metadata(url: str) -> str:
    return (
        await Consents(CALLBACK).need(Context(), ProtectedServer(name="x", issuer=url, client_id="me"))
    ).url


@reads("tools/oauth_servers.py")
async def oauth_registration(url: str) -> str:
    return (await Consents(CALLBACK).need(Context(), ProtectedServer(name="x", issuer=f"{url}/proper"))).url


@reads("tools/oauth_servers.py")
async def oauth_token(url: str) -> str:
    consents = Consents(CALLBACK)
    server = ProtectedServer(name="x", issuer=f"{url}/proper", client_id="me")
    asked = await consents.need(Context(), server)
    return await consents.complete(parse_qs(urlsplit(asked.url).query)["state"][0], "code")


# --- auth ----------------------------------------------------------------------------------------


async def _keys(url: str) -> str:
    clock = FakeClock()
    options = EntraOptions(tenant_id=TENANT, audience=("me",), authority=url)
    async with EntraAuthenticator(options, clock) as authenticator:
        client = authenticator._client
        assert client is not None
        place = f"{url}/.well-known/openid-configuration"
        return str(await read_key_set(client, place, seconds=SECONDS))


@reads("auth/entra.py")
async def authority_metadata(url: str) -> str:
    return await _keys(url)


@reads("auth/entra.py")
async def signing_keys(url: str) -> str:
    return await _keys(f"{url}/keys")


async def _on_behalf_of(url: str, tenant: str) -> str:
    options = EntraOptions.model_validate(
        {
            "tenant_id": TENANT,
            "audience": ["me"],
            "authority": url,
            "client_id": "me",
            "client_secret": "hidden",
        }
    )
    claims = base64.urlsafe_b64encode(json.dumps({"tid": tenant, "oid": "ada"}).encode()).decode().rstrip("=")
    async with open_delegation(options, FakeClock()) as delegation:
        return await delegation.token_for(User(tenant, "ada"), f"e30.{claims}.e30", ["api://x/read"])


@reads("auth/msal_http.py")
async def delegation_metadata(url: str) -> str:
    return await _on_behalf_of(url, "other-tenant")


@reads("auth/msal_http.py")
async def delegation_token(url: str) -> str:
    return await _on_behalf_of(url, "proper-tenant")


# --- the model service ---------------------------------------------------------------------------


async def _model(kind: Any, url: str, *, stream: bool) -> str:
    options = kind.Options.model_validate(
        {
            "model": "m",
            "base_url": f"{url}/v1",
            "api_key": "k",
            "max_retries": 0,
            "model_timeout_seconds": 3 * SECONDS,
            "first_piece_timeout_seconds": SECONDS,
            "piece_timeout_seconds": SECONDS,
        }
    )
    async with kind(options) as model:
        text = []
        async for batch in model.stream(ModelCall(prompt=[b"{}"], stream=stream)):
            text += [getattr(event, "text", "") for event in batch]
        return "".join(text)


@reads("llm/wire.py")
async def chat_whole(url: str) -> str:
    return await _model(OpenAIChat, url, stream=False)


@reads("llm/wire.py")
async def chat_stream(url: str) -> str:
    return await _model(OpenAIChat, url, stream=True)


@reads("llm/wire.py")
async def responses_whole(url: str) -> str:
    return await _model(OpenAIResponses, url, stream=False)


@reads("llm/credentials.py")
async def azure_token(url: str) -> str:
    options = AzureCredentialOptions.model_validate(
        {
            "kind": "client_secret",
            "tenant_id": "t",
            "client_id": "c",
            "client_secret": "hidden",
            "authority": url,
        }
    )
    async with AzureCredential(options) as credential:
        return await credential()


@reads("llm/credentials.py")
async def azure_managed_identity(url: str) -> str:
    os.environ.update(IDENTITY_ENDPOINT=f"{url}/identity", IDENTITY_HEADER="hidden")
    async with AzureCredential(AzureCredentialOptions(kind="managed_identity")) as credential:
        return await credential()


# --- trying them ---------------------------------------------------------------------------------

#: what every limit of time is set to
SECONDS = 0.5


class Ending(NamedTuple):
    place: str
    kind: str
    text: str
    #: megabytes over the idle process
    peak: float
    #: seconds for which the event loop had no time
    longest: float


async def tried(place: str, url: str) -> Ending:
    gc.collect()
    gc.freeze()  # what a place has imported is not gone through again before each of the next
    idle = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    gaps: list[float] = [0.0]
    async with _ticking(gaps):
        try:
            kind, text = "answer", await asyncio.wait_for(PLACES[place][1](url), 60)
        except Exception as error:  # noqa: BLE001 - how it ended is what is asked
            kind, text = type(error).__name__, str(error)
    return Ending(place, kind, text[:300], (_memory("VmHWM") - idle) / 1024, max(gaps))


def _memory(name: str) -> int:
    """Kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


@asynccontextmanager
async def _ticking(gaps: list[float]) -> AsyncIterator[None]:
    async def tick() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.01)
            gaps.append(loop.time() - before - 0.01)

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()


async def main(together: bool, urls: list[str]) -> None:
    oauth_servers.ANSWER_SECONDS = openapi.DOCUMENT_TIMEOUT = credentials.TIMEOUT = SECONDS
    msal_http.SECONDS = SECONDS
    gc.freeze()
    for url in urls:
        trying = [tried(place, url) for place in PLACES]
        endings = await asyncio.gather(*trying) if together else [await one for one in trying]
        print(json.dumps(endings), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] == "together", sys.argv[2:]))
