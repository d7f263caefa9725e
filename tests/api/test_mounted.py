"""The service within an application of one's own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from tealagents.api.host import Host
from tealagents.bootstrap import application
from tealagents.config import load
from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import agent_config

SAID = {"items": [{"content_type": "text", "content": "hello"}]}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Host]:
    """A service of several protocols, not started."""
    path = tmp_path / "config.yaml"
    spec = agent_config(protocols=["openai", "mcp"], auth="mock", console={"enabled": True})
    path.write_text(yaml.safe_dump(spec))
    async with OfflineModel() as model:
        yield application(load(path, env={"TA_BASE_URL": model.base_url, "TA_API_KEY": "any"}, dotenv=None))


def client(app: Starlette) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", headers={"Authorization": "Bearer ada"}
    )


@asynccontextmanager
async def mounted(service: Host, prefix: str) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A client of an application that mounts a service below a prefix, and the path of its agent there."""
    outer = Starlette(routes=[Mount(prefix or "/", service)], lifespan=service.lifespan)
    async with outer.router.lifespan_context(outer), client(outer) as asking:
        yield asking, prefix + service.exchange.settings.prefix


@pytest.mark.parametrize("prefix", ["", "/agents"])
async def test_every_protocol_of_a_mounted_service_answers(service: Host, prefix: str) -> None:
    """Below a prefix, too: it is no part of the protocols' own paths."""
    async with mounted(service, prefix) as (asking, base):
        for path, body in (
            ("", SAID),
            ("/openai/v1/responses", {"model": "agent", "input": "hello"}),
            ("/console/", None),
            ("/openapi.json", None),
        ):
            answer = await asking.request("POST" if body else "GET", base + path, json=body)
            assert answer.status_code == 200, (path, answer.text)


@pytest.mark.parametrize("prefix", ["", "/agents"])
async def test_a_mounted_service_names_the_methods_of_its_paths(service: Host, prefix: str) -> None:
    """Below a prefix, too, and that a path which clients know is not served."""
    async with mounted(service, prefix) as (asking, base):
        for path, allowed in (
            ("/openai/v1/responses/x", "DELETE, GET, HEAD"),
            ("/tasks/x", "DELETE, GET, PATCH"),
        ):
            refused = await asking.put(base + path, json={})
            assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
        unserved = await asking.post(f"{base}/openai/v1/responses/compact", json={})
        assert unserved.status_code == 404


async def test_addresses_of_a_service_at_the_root_of_an_application_lead_to_it(service: Host) -> None:
    """As the documentation mounts it, behind a route of the application's own."""

    async def own(_: Request) -> PlainTextResponse:
        return PlainTextResponse("mine")

    outer = Starlette(routes=[Route("/mine", own), Mount("/", service)], lifespan=service.lifespan)
    base = service.exchange.settings.prefix
    async with outer.router.lifespan_context(outer), client(outer) as asking:
        assert (await asking.get("/mine")).text == "mine"
        (agent,) = (await asking.get("/")).json()["agents"]
        begun = await asking.post(base, json=SAID, headers={"prefer": "respond-async"})
        redirected = await asking.get(f"{base}/console")
        settings = (await asking.get(f"{base}/console/config.json")).json()
        given = begun.headers["location"], redirected.headers["location"], settings["url"] + "/me"
        for address in (*given, agent["url"] + "/health", agent["docs"], agent["openapi"], agent["console"]):
            assert (await asking.get(address)).status_code == 200, address


async def test_a_service_whose_lifespan_has_not_run_says_so(service: Host) -> None:
    """It is not entered for an application that is mounted, and nothing that a message needs is open."""
    async with client(Starlette(routes=[Mount("/", service)])) as asking:
        with pytest.raises(RuntimeError, match=r"its lifespan has not run.* Starlette\(lifespan="):
            await asking.get(service.exchange.settings.prefix + "/health/ready")


async def test_a_service_that_has_run_is_not_started_again(service: Host) -> None:
    """It would refuse each message as one that shuts down, for as long as it runs."""
    async with mounted(service, ""):
        pass
    with pytest.raises(RuntimeError, match="has been started before"):
        async with mounted(service, ""):
            pass
