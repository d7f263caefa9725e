"""The client of MCP's own SDK, unmodified, as a host of the agent: python demos/mcp-server/client.py URL"""

import asyncio
import sys

import httpx2
from mcp.client import Client, ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestParams, ElicitResult


async def human(context: ClientRequestContext, asked: ElicitRequestParams) -> ElicitResult:
    """A user who reads what is asked, and agrees."""
    print("asked:", asked.message)
    return ElicitResult(action="accept", content={"action": "approve"})


async def progress(progress: float, total: float | None, message: str | None) -> None:
    """The answer, as it comes."""
    print(message, end="", flush=True)


async def main(url: str, mode: str) -> None:
    async with httpx2.AsyncClient(headers={"authorization": "Bearer ada"}, timeout=60) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, elicitation_callback=human, mode=mode) as host:
            print(host.protocol_version, [tool.name for tool in (await host.list_tools()).tools])

            first = await host.call_tool("ask", {"message": "My name is Ada."})
            known = {"conversation": first.structured_content["conversation"]}
            again = {"message": "What is my name?", **known}
            await host.call_tool("ask", again, progress_callback=progress)
            print()

            # a call that needs approval, in the middle of the call of `ask`
            words = 'call Files-delete {"path": "notes.txt"}'
            done = await host.call_tool("ask", {"message": words, **known})
            print("done:", done.content[0].text)


asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "auto"))
