"""Agents without state as a service: who may call, tools, what is imported, how they stop."""

import asyncio
import http.client
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from earlier_agents import AGENT, CHAT, SEQUENTIAL, TYPES, served, write
from hostile_tokens import HOSTILE, Forge
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tealagents.api.skagents.app import StatelessApp
from tealagents.api.skagents.turns import CallDone, CallEvents, Turns
from tealagents.cli.findings import Findings, examine
from tealagents.config import load
from tealagents.config.skagents import EarlierConfig
from tealagents.engine.admission import FREE, LARGEST_PER_PROCESS, LARGEST_PER_USER, LargeBodies
from tealagents.llm.offline import OfflineModel
from tealagents.skagents import application
from tealagents.telemetry.requests import LoggedRequests
from tealagents.testing.authority import LocalAuthority
from tealagents.testing.forking import Nursery
from tealagents.testing.servers import free_port
from tealagents.testing.service import ServiceThread, agent_config
from tealagents.testing.waits import eventually, until
from tealagents.tools.errors import ToolsetError

post = partial(httpx.post, timeout=60)
HELLO = {"chat_history": [{"role": "user", "content": "What is the weather?"}]}
PLUGINS = """
from semantic_kernel.functions.kernel_function_decorator import kernel_function
from semantic_kernel.kernel_pydantic import KernelBaseModel
from sk_agents.extra_data_collector import ExtraData, ExtraDataElement
from sk_agents.ska_types import BasePlugin


class Weather(KernelBaseModel):
    city: str
    caller: str


class WeatherPlugin(BasePlugin):
    @kernel_function(description="The weather in a city.")
    def weather(self, city: str) -> Weather:
        self.extra_data_collector.add_extra_data("station", "Blindern")
        self.extra_data_collector.add_extra_data_items(
            ExtraData(items=[ExtraDataElement(key="station", value="Fornebu")])
        )
        return Weather(city=city, caller=str(self.authorization))
"""
WITH_PLUGIN = CHAT + "    plugins:\n    - WeatherPlugin\n"
CALLING = {
    "rules": [
        {"when": {"tool_result": True}, "reply": "It rains."},
        {"reply": {"tool_calls": [{"name": "WeatherPlugin-weather", "arguments": {"city": "Oslo"}}]}},
    ]
}


def test_plugins_of_the_earlier_platform(tmp_path: Path) -> None:
    """They work without its kernel, are given the caller's raw header, and add data under one key twice."""
    file = write(tmp_path, WITH_PLUGIN, custom_plugins=PLUGINS)
    with served(file, CALLING) as (service, model):
        answer = post(service.url, json=HELLO, headers={"authorization": "Custom anything at all"}).json()
        assert answer["output_raw"] == "It rains."
        assert answer["extra_data"] == {
            "items": [{"key": "station", "value": "Blindern"}, {"key": "station", "value": "Fornebu"}]
        }
        result = model.requests[-1]["body"]["messages"][-1]
        assert json.loads(result["content"]) == {"city": "Oslo", "caller": "Custom anything at all"}
        assert post(service.url, json=HELLO).json()["extra_data"] == answer["extra_data"]


BASKET = """
from semantic_kernel.functions import kernel_function
from sk_agents.ska_types import BasePlugin
from shop_types import ORDERS

ITEMS = []
ORDERS.append("executed")

class Basket(BasePlugin):
    count = 0

    @kernel_function
    def add(self, item: str) -> str:
        ITEMS.append(item)
        Basket.count += 1
        return "added"

    @kernel_function
    def total(self) -> str:
        return f"{ITEMS} {Basket.count} {ORDERS}"
"""
ORDER = """
from sk_agents.ska_types import BaseInput

ORDERS = []

class Order(BaseInput):
    def model_post_init(self, context):
        ORDERS.append("ordered")
"""
SHOP = """
apiVersion: skagents/v1
kind: Sequential
service_name: Shop
version: 1.0
input_type: Order
spec:
  agents:
  - {name: picker, model: m, system_prompt: You pick., plugins: [Basket]}
  - {name: payer, model: m, system_prompt: You pay., plugins: [Basket]}
  tasks:
  - {name: pick, task_no: 1, instructions: 'call Basket-add {"item": "tea"}', agent: picker}
  - {name: pay, task_no: 2, instructions: 'call Basket-total {}', agent: payer}
"""


def test_the_files_of_plugins_and_types_are_executed_once(tmp_path: Path) -> None:
    """All agents share what they hold, and plugins import the types by the name of their file. A service that
    is started again executes them again."""
    file = write(tmp_path, SHOP, custom_plugins=BASKET, shop_types=ORDER)
    env = {"TA_TYPES_MODULE": str(tmp_path / "shop_types.py")}
    for held in ("executed", "executed anew"):
        (tmp_path / "custom_plugins.py").write_text(BASKET.replace("executed", held))
        with served(file, env=env) as (service, _):
            answer = post(service.url, json={}).json()["output_raw"]
        assert answer == f"Basket-total said: ['tea'] 1 ['{held}', 'ordered']"


@pytest.mark.parametrize("make", [application, lambda config: examine(Findings(), config)])
def test_plugins_and_types_find_the_variables_of_dotenv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[EarlierConfig], object]
) -> None:
    """Already when their files are executed, also by `check`. What the environment sets wins, and the
    variables of the service are not theirs."""
    code = "import os\nFOUND = [os.environ.get(name) for name in ('SHOP_KEY', 'SHOP_TOWN', 'TA_API_KEY')]\n"
    file = write(tmp_path, WITH_PLUGIN, custom_plugins=code + PLUGINS, custom_types=code)
    dotenv = tmp_path / ".env"
    dotenv.write_text("SHOP_KEY=of the file\nSHOP_TOWN=of the file\nTA_API_KEY=x\nTA_AUTH=gateway\n")
    for name in ("SHOP_KEY", "TA_API_KEY"):
        monkeypatch.setenv(name, "")  # so that it is removed at the end
        monkeypatch.delenv(name)
    monkeypatch.setenv("SHOP_TOWN", "of the environment")
    config = load(file, env=os.environ, dotenv=dotenv)
    assert isinstance(config, EarlierConfig)
    make(config)
    assert {path.name for path in config.modules} >= {"custom_types.py"}
    for module in config.modules.values():
        assert module.FOUND == ["of the file", "of the environment", None]


def test_extra_data_is_text(tmp_path: Path) -> None:
    """Clients read a text in `value`: what is none is written as JSON."""
    plugins = PLUGINS.replace('"Blindern"', '{"degrees": [7, None]}')
    with served(write(tmp_path, WITH_PLUGIN, custom_plugins=plugins), CALLING) as (service, _):
        items = post(service.url, json=HELLO).json()["extra_data"]["items"]
    assert [each["value"] for each in items] == ['{"degrees":[7,null]}', "Fornebu"]


@pytest.mark.parametrize(
    ("added", "item"),
    [
        ('"k", Weather(city="Oslo", caller="Ada")', ("k", '{"city":"Oslo","caller":"Ada"}')),
        ('"k", [Weather(city="Oslo", caller="Ada"), {1}]', ("k", '[{"city":"Oslo","caller":"Ada"},[1]]')),
        ('"k", {"kind": type("Odd", (), {"__str__": lambda self: "odd"})()}', ("k", '{"kind":"odd"}')),
        ('7, "text"', ("7", "text")),
        ('"k", {("Oslo", 1): True}', ("k", "{('Oslo', 1): True}")),
        ('"k", {None: chr(0xD800)}', ("k", "{None: '\\ud800'}")),
    ],
)
def test_extra_data_of_any_type_fails_no_tool(tmp_path: Path, added: str, item: tuple[str, str]) -> None:
    """The tool may have done its work by then: the model must not read that it failed."""
    plugins = PLUGINS.replace('"station", "Blindern"', added)
    with served(write(tmp_path, WITH_PLUGIN, custom_plugins=plugins), CALLING) as (service, model):
        items = post(service.url, json=HELLO).json()["extra_data"]["items"]
        result = model.requests[-1]["body"]["messages"][-1]
    assert (items[0]["key"], items[0]["value"]) == item
    assert json.loads(result["content"])["city"] == "Oslo"


def test_each_task_reports_the_data_that_it_added(tmp_path: Path) -> None:
    """The event of a task has its place and its own extra data; the last answer has all of it."""
    config = SEQUENTIAL.replace("ReportInput", "BaseInput").replace("output_type: Report\n", "")
    config = config.partition("  tasks:")[0].replace("You read.", "You read.\n      plugins: [WeatherPlugin]")
    config += """  tasks:
    - {name: late, task_no: 30, instructions: Say it., agent: writer}
    - {name: ask, task_no: 10, instructions: Ask., agent: reader}
    - {name: think, task_no: 20, instructions: Think., agent: writer}
"""
    script = {"rules": [{"when": {"text": "Think|Say"}, "reply": "Yes."}, *CALLING["rules"]]}
    with served(write(tmp_path, config, custom_plugins=PLUGINS), script) as (service, _):
        answered = post(service.url + "/sse", json={}).text
    documents = [json.loads(line[6:]) for line in answered.splitlines() if line.startswith("data: ")]
    tasks, final = [each for each in documents if "task_no" in each], documents[-1]
    assert [(each["task_no"], each["task_name"]) for each in tasks] == [(1, "ask"), (2, "think")]
    assert len(final["extra_data"]["items"]) == 2
    assert [each["response"]["extra_data"] for each in tasks] == [final["extra_data"], None]


@pytest.mark.parametrize(
    ("approved", "auth", "said"),
    [
        (True, None, "The tools WeatherPlugin-weather need an approval"),
        (
            False,
            {"auth_type": "oauth2", "auth_server": "https://login.example", "scopes": ["a"]},
            "The tools WeatherPlugin-weather need the user's own authorization (auth)",
        ),
    ],
)
def test_tools_that_wait_for_someone_are_refused(
    nursery: Nursery, tmp_path: Path, approved: bool, auth: Any, said: str
) -> None:
    """Nothing waits here until someone decides: the start says which tools, and what to do."""
    tool = {
        "tool_id": "WeatherPlugin-weather",
        "name": "weather",
        "description": "",
        "governance": {"requires_hitl": approved, "cost": "low", "data_sensitivity": "public"},
        "auth": auth,
    }
    plugin = {
        "plugin_id": "weather",
        "name": "WeatherPlugin",
        "description": "",
        "version": "1",
        "owner": "us",
        "plugin_type": {"type_name": "code"},
        "tools": [tool],
    }
    catalogue = tmp_path / "catalogue.json"
    catalogue.write_text(json.dumps({"plugins": [plugin]}))
    file = write(tmp_path, WITH_PLUGIN, custom_plugins=PLUGINS)
    env = {**_env(), "TA_PLUGIN_CATALOG_FILE": str(catalogue)}
    checked = _run(nursery.program, "check", str(file), env=env)
    assert checked.returncode == 2
    assert said in checked.stderr
    started = _run(nursery.program, "serve", str(file), "--port", str(free_port()), env=env)
    assert started.returncode in (2, 3)
    assert said in started.stderr


def test_gateway_proves_itself(tmp_path: Path) -> None:
    """With a secret only who sends it once is answered, over all ways; without a token of any kind."""
    with served(write(tmp_path, CHAT), env={"TA_GATEWAY_SECRET": "s3cret"}) as (service, model):
        stream = service.url.replace("http", "ws") + "/stream"
        for headers in ([], [("taAgwKey", "wrong")], [("taAgwKey", "s3cret"), ("taAgwKey", "s3cret")]):
            for path in ("", "/sse"):
                refused = post(service.url + path, json=HELLO, headers=headers)
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "taAgwKey")
                assert "s3cret" not in refused.text
            with pytest.raises(InvalidStatus) as denied, connect(stream, additional_headers=headers):
                pass
            assert denied.value.response.status_code == 401
        assert model.requests == []
        right = {"taAgwKey": "s3cret"}
        assert post(service.url, json=HELLO, headers=right).status_code == 200
        with connect(stream, additional_headers=right) as socket:
            socket.send(json.dumps(HELLO))
            assert "".join(map(str, socket))
        assert httpx.get(service.url + "/openapi.json").status_code == 200


def test_blanks_around_the_gateways_secret_are_no_part_of_it(tmp_path: Path) -> None:
    """Neither of the header's value (RFC 9110, 5.5) nor of the variable's."""
    with served(write(tmp_path, CHAT), env={"TA_GATEWAY_SECRET": " s3cret\n"}) as (service, _):
        for sent in ("s3cret", " s3cret", "s3cret \t"):
            client = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
            client.request("POST", service.prefix, json.dumps(HELLO), {"taAgwKey": sent})
            assert client.getresponse().status == 200
            client.close()


def test_a_refused_websocket_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A caller without credentials, or a page of another origin, cannot fill the error log."""
    with served(write(tmp_path, CHAT), env={"TA_GATEWAY_SECRET": "s3cret"}) as (service, _):
        stream = service.url.replace("http", "ws") + "/stream"
        for headers, status in (
            ({}, 401),
            ({"taAgwKey": "s3cret", "origin": "https://evil.example.com"}, 404),
        ):
            with pytest.raises(InvalidStatus) as denied, connect(stream, additional_headers=headers):
                pass
            response = denied.value.response
            assert (response.status_code, json.loads(response.body)["status"]) == (status, status)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_callers_by_token(tmp_path: Path) -> None:
    """`mock` wants a bearer token here as everywhere; unchosen, it answers this machine alone."""
    with served(write(tmp_path, AGENT), env={"TA_AUTH": "mock"}) as (service, _):
        refused = post(service.url, json=HELLO)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    with served(write(tmp_path, CHAT), env={"TA_AUTH": ""}) as (service, _):
        token = {"authorization": "Bearer ada"}
        assert post(service.url, json=HELLO, headers=token).status_code == 200
        led = {**token, "host": "agents.example.com"}
        assert post(service.url, json=HELLO, headers=led).status_code == 400
        stream = service.url.replace("http", "ws") + "/stream"
        proxied = {**token, "x-forwarded-for": "10.0.0.1"}
        with pytest.raises(InvalidStatus), connect(stream, additional_headers=proxied):
            pass


def test_tokens_of_entra(tmp_path: Path) -> None:
    """A user's token is answered over all ways; no hostile one is, and the model hears of none."""
    with LocalAuthority() as authority:
        forge = Forge(authority)
        with (
            served(write(tmp_path, CHAT), env=authority.environment()) as (service, model),
            httpx.Client(timeout=60) as client,
        ):
            stream = service.url.replace("http", "ws") + "/stream"
            for hostile in [each for each in HOSTILE if each.sendable]:
                headers = {b"authorization": b"Bearer " + hostile.make(forge).encode()}
                for path in ("", "/sse"):
                    refused = client.post(service.url + path, json=HELLO, headers=headers)
                    assert refused.status_code in (401, 403), hostile
                    assert refused.headers["www-authenticate"].startswith("Bearer")
            with pytest.raises(InvalidStatus) as denied, connect(stream):
                pass
            assert denied.value.response.status_code == 401
            assert model.requests == []
            lacking = authority.token("bob", scopes=["other"])
            for token, why in (("rubbish", "invalid_token"), (lacking, "insufficient_scope")):
                wrong = {"authorization": f"Bearer {token}"}
                refused = client.post(service.url, json=HELLO, headers=wrong)
                assert f'error="{why}"' in refused.headers["www-authenticate"]
            right = {"authorization": f"Bearer {authority.token('alice')}"}
            assert post(service.url, json=HELLO, headers=right).status_code == 200
            assert "final-response" in post(service.url + "/sse", json=HELLO, headers=right).text
            with connect(stream, additional_headers=right) as socket:
                socket.send(json.dumps(HELLO))
                assert "".join(map(str, socket))


def test_pages_of_other_origins_may_not_call(tmp_path: Path) -> None:
    """A gateway's word is not lent to them by a browser, unless the config names them."""
    config = CHAT + "  cors_origins: [https://app.example.com]\n"
    with served(write(tmp_path, config), env={"TA_FORWARD_HEADERS": "X-Team"}) as (service, _):
        for origin, status in (
            *(("https://evil.example.com", 404), ("https://app.example.com", 200)),
            *(("http://[", 404), ("null", 404), ("", 404)),
        ):
            answer = post(service.url, json=HELLO, headers={"origin": origin})
            assert answer.status_code == status, origin
        nameless = {"origin": "null", "host": ""}  # two that name nothing are not the same
        assert post(service.url, json=HELLO, headers=nameless).status_code == 404
        assert post(service.url, json=HELLO, headers={"origin": service.root}).status_code == 200
        asked = {"origin": "https://app.example.com", "access-control-request-method": "POST"}
        taken = {"access-control-request-headers": "content-type, x-team"}
        assert httpx.options(service.url, headers={**asked, **taken}).status_code == 200


def test_a_name_that_leads_here_makes_no_page_one_of_ours(tmp_path: Path) -> None:
    """Anyone can make a name lead to any address (DNS rebinding).

    A page of the same name is believed where it proves more than that, or where the config names it.
    """
    config = CHAT + "  cors_origins: [http://app.example.com]\n"
    with served(write(tmp_path, config)) as (service, _):
        for host, status in (
            *(("evil.example.com", 404), ("evil.example.com:8000", 404), ("localhost.example.com", 404)),
            *(("localhost:8000", 200), ("[::1]:8000", 200), ("10.0.0.1", 200), ("app.example.com", 200)),
        ):
            same = {"origin": f"http://{host}", "host": host}
            assert post(service.url, json=HELLO, headers=same).status_code == status, host
    with served(write(tmp_path, CHAT), env={"TA_GATEWAY_SECRET": "s3cret"}) as (service, _):
        own = {"origin": "https://named.example.com", "host": "named.example.com", "taAgwKey": "s3cret"}
        assert post(service.url, json=HELLO, headers=own).status_code == 200


def test_a_fault_is_counted_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over every other protocol."""
    codes: list[str] = []

    def fault(_: StatelessApp) -> Any:
        raise RuntimeError("a fault")

    with served(write(tmp_path, CHAT)) as (service, _), service.client() as client:
        monkeypatch.setattr(LoggedRequests, "refused", lambda _, error: codes.append(error.code))
        monkeypatch.setattr(StatelessApp, "_status_document", fault)
        assert client.get("/health").json()["status"] == 500
    assert codes == ["internal_error"]


def test_an_answered_call_is_logged_as_completed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Over all ways: what is logged, and counted, is how the call ended."""
    caplog.set_level("INFO", "tealagents.telemetry.requests")
    with served(write(tmp_path, CHAT)) as (service, _):
        for path in ("", "/sse"):
            post(service.url + path, json=HELLO).raise_for_status()
        with connect(service.url.replace("http", "ws") + "/stream") as socket:
            socket.send(json.dumps(HELLO))
            assert "".join(map(str, socket))
    ended = [each.getMessage() for each in caplog.records if "prompt_tokens" in getattr(each, "facts", {})]
    assert [text.rpartition(" ")[2] for text in ended] == ["Completed"] * 3


def test_relative_paths_of_a_remote_catalogue(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are tried beside the catalogue, then from the working directory."""
    document = {
        "openapi": "3.0.0",
        "info": {"title": "T", "version": "1"},
        "paths": {"/now": {"get": {"operationId": "now", "responses": {"200": {"description": "x"}}}}},
    }
    folder = tmp_path / "conf"
    folder.mkdir()
    (tmp_path / "apis").mkdir()
    (tmp_path / "apis/time.json").write_text(json.dumps(document))
    catalogue = folder / "remote.yaml"
    entry = {
        "plugin_name": "Clock",
        "openapi_json_path": "apis/time.json",
        "server_url": "http://127.0.0.1:9",
    }
    catalogue.write_text(json.dumps({"remote_plugins": [entry]}))
    file = write(folder, CHAT + "    remote_plugins:\n    - Clock\n")
    env = {**_env(), "TA_REMOTE_PLUGIN_PATH": "conf/remote.yaml"}
    found = _run(nursery.program, "check", str(file), env=env, cwd=tmp_path)
    assert (found.returncode, "Clock-now" in found.stdout) == (0, True)
    assert (
        _run(
            nursery.program,
            "check",
            str(file),
            env={**env, "TA_REMOTE_PLUGIN_PATH": str(catalogue)},
            cwd=folder,
        ).returncode
        == 2
    )


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        (CHAT, ("api.v1alpha1", "api.openai", "api.a2a", "api.ag_ui", "api.mcp")),
        (json.dumps(agent_config()), ("skagents", "config.skagents", "api.skagents", "cli.upgrade")),
    ],
)
def test_a_process_imports_what_it_serves(tmp_path: Path, text: str, absent: tuple[str, ...]) -> None:
    """A process imports nothing of other versions, nor what only describes an API. covers: APP-2"""
    file = write(tmp_path, text)
    absent = ("fastapi", *(f"tealagents.{name}" for name in absent))
    code = (
        "import sys, pathlib; from tealagents.config import load; from tealagents.app import create_app\n"
        f"create_app(load(pathlib.Path({str(file)!r}), env={{'TA_API_KEY': 'x'}}, dotenv=None))\n"
        f"found = [name for name in sys.modules if name.startswith({absent!r})]; assert not found, found"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_sigterm_drains(nursery: Nursery, tmp_path: Path) -> None:
    """What runs is finished, what comes is refused, and the process ends with 0."""
    slow = {"rules": [{"reply": {"text": "Late.", "first_delay_ms": 600_000}}]}
    with OfflineModel(slow) as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "x", "TA_AUTH": "gateway"}
        with nursery.service(write(tmp_path, CHAT), env) as service:
            answers: list[httpx.Response] = []
            calling = threading.Thread(target=lambda: answers.append(post(service.url, json=HELLO)))
            calling.start()
            until(lambda: model.requests)
            service.process.terminate()
            until(lambda: _health(service.url) != "ok")
            refused = post(service.url, json=HELLO)
            assert (refused.status_code, refused.json()["code"]) == (503, "draining")
            assert refused.headers["connection"] == "close"
            model.release()
            calling.join(60)
            assert answers[0].json()["output_raw"] == "Late."
            assert service.process.wait(60) == 0


def test_a_websocket_is_closed_to_be_tried_again_by_a_process_that_ends(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Whether its call is interrupted or it has sent nothing yet: another process takes it."""
    slow = {"rules": [{"reply": {"text": "Late.", "first_delay_ms": 600_000}}]}
    config = write(tmp_path, CHAT + "  limits: {drain_seconds: 0}\n")
    with OfflineModel(slow) as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "x", "TA_AUTH": "gateway"}
        with nursery.service(config, env) as service:
            address = service.url.replace("http", "ws") + "/stream"
            with connect(address) as calling, connect(address) as idle:
                calling.send(json.dumps(HELLO))
                until(lambda: model.requests)
                service.process.terminate()
                for each in (calling, idle):
                    with pytest.raises(ConnectionClosed) as closed:
                        each.recv(timeout=60)
                    assert closed.value.rcvd is not None
                    assert closed.value.rcvd.code == 1013
                    assert "process is shutting down. Send the message again" in closed.value.rcvd.reason
            assert service.process.wait(60) == 0


def test_time_of_a_call_is_bounded(tmp_path: Path) -> None:
    """A call that takes longer than it may ends so, over each of the ways."""
    config = CHAT + "  limits: {request_timeout_seconds: 0.2}\n"
    slow = {"rules": [{"reply": {"text": "Late.", "first_delay_ms": 20_000}}]}
    with served(write(tmp_path, config), slow) as (service, _):
        late = post(service.url, json=HELLO)
        assert (late.status_code, late.json()["code"]) == (504, "request_timeout")
        assert '"request_timeout"' in post(service.url + "/sse", json=HELLO).text
        with connect(service.url.replace("http", "ws") + "/stream") as socket:
            socket.send(json.dumps(HELLO))
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1011


def test_the_time_of_a_call_is_not_that_of_its_reader(tmp_path: Path) -> None:
    """A client that is slow to take an answer gets it whole, with its end, though the call's time is over."""
    script = {"rules": [{"reply": {"pieces": ["x" * 3_000_000]}}]}
    with served(write(tmp_path, CHAT), script, moved=True) as (service, _), socket.socket() as slow:
        address = httpx.URL(service.url)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((address.host, address.port))
        body = json.dumps(HELLO)
        head = f"POST {address.path}/sse HTTP/1.1\r\nHost: {address.host}\r\nConnection: close\r\n"
        slow.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        taken = b""
        while b"partial-response" not in taken:
            taken += slow.recv(1000)
        service.advance(601)
        while more := slow.recv(1_000_000):
            taken = taken[-10_000:] + more
    assert taken.endswith(b"\r\n0\r\n\r\n")
    assert b'"output_pydantic":null}' in taken


def test_a_gateway_is_many_users(tmp_path: Path) -> None:
    """What it lets through is bounded by the process, not as the requests of one user."""
    slow = {"rules": [{"reply": {"text": "Late.", "first_delay_ms": 600_000}}]}
    with (
        served(write(tmp_path, CHAT + "  limits: {max_requests_per_user: 1}\n"), slow) as (service, model),
        ThreadPoolExecutor() as pool,
    ):
        answers = [pool.submit(post, service.url, json=HELLO) for _ in range(2)]
        until(lambda: len(model.requests) == 2)
        model.release()
        assert [answer.result().status_code for answer in answers] == [200, 200]
    with (
        served(write(tmp_path, CHAT + "  limits: {max_concurrent_requests: 1}\n"), slow) as (service, model),
        ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(post, service.url, json=HELLO)
        until(lambda: len(model.requests) == 1)
        assert post(service.url, json=HELLO).status_code == 503
        with connect(service.url.replace("http", "ws") + "/stream") as socket:
            socket.send(json.dumps(HELLO))
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        model.release()
        assert first.result().status_code == 200


def test_streams_that_begin_at_the_same_moment_are_refused_with_a_status(tmp_path: Path) -> None:
    """Each takes its place before its answer begins."""
    slow = {"rules": [{"reply": {"text": "Late.", "first_delay_ms": 600_000}}]}
    body = json.dumps(HELLO)
    with (
        served(write(tmp_path, CHAT + "  limits: {max_concurrent_requests: 1}\n"), slow) as (service, model),
        ExitStack() as stack,
    ):
        head = f"POST {service.prefix}/sse HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=60))
            for _ in range(3)
        ]
        assert service._loop is not None
        sent = threading.Event()
        service._loop.call_soon_threadsafe(sent.wait)
        for each in sockets:
            each.sendall((head + body).encode())
        sent.set()
        said = sorted(each.recv(12) for each in sockets)
        assert said == [b"HTTP/1.1 200", b"HTTP/1.1 503", b"HTTP/1.1 503"]
        model.release()


def test_unfinished_bodies_behind_a_gateway_do_not_shut_others_out(tmp_path: Path) -> None:
    """One caller's unfinished bodies leave room for a larger one: only the budget of the process counts."""
    sent = 999_000
    larger = {"chat_history": [{"role": "user", "content": "x" * 500_000}]}

    def unfinished(service: ServiceThread) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", service.port), timeout=60)
        head = f"POST {service.prefix} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {sent + 1}\r\n\r\n"
        connection.sendall(head.encode() + b" " * sent)
        return connection

    config = write(tmp_path, CHAT + "  limits: {max_body_bytes: 1000000}\n")
    with served(config) as (service, _), ExitStack() as stack:

        def hold(bodies_held: int) -> None:
            while len(connections) < bodies_held:
                connections.append(stack.enter_context(unfinished(service)))
            until(lambda: service.app._front.turns.admission.receiving._held == bodies_held * (sent - FREE))

        connections: list[socket.socket] = []
        hold(LARGEST_PER_USER)
        assert post(service.url, json=larger).status_code == 200
        hold(LARGEST_PER_PROCESS + 1)  # what is free of each leaves room for one more
        assert post(service.url, json=larger).status_code == 503
        assert post(service.url, json=HELLO).status_code == 200


def test_client_that_leaves_ends_its_call(tmp_path: Path) -> None:
    """No one can read the answer later, so the model is let go of."""
    slow = {"rules": [{"reply": {"text": "Late.", "first_delay_ms": 20_000}}]}
    with served(write(tmp_path, CHAT), slow) as (service, model):
        for path in ("", "/sse"):
            model.clear()
            address = httpx.URL(service.url)
            client = http.client.HTTPConnection(address.host, address.port)
            sent = {"content-type": "application/json"}
            client.request("POST", address.path + path, json.dumps(HELLO), sent)
            until(lambda: len(model.requests) == 1)
            client.close()
            until(lambda: [each["outcome"] for each in model.requests] == ["left"])


@pytest.mark.parametrize("path", ["", "/sse", "/stream"])
async def test_a_call_that_its_server_cancels_has_its_place_until_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """While it cleans up, it is one of those that the process may have. covers: STATE-4"""
    began, ended = asyncio.Event(), asyncio.Event()
    held: list[int] = []

    async def events(turns: Turns, *_: object, **__: object) -> CallEvents:
        began.set()
        try:
            await asyncio.Event().wait()
            yield CallDone({})
        finally:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)
            held.append(turns.admission.in_flight)
            ended.set()

    monkeypatch.setattr(Turns, "events", events)
    config = load(write(tmp_path, CHAT), env={"TA_API_KEY": "x", "TA_AUTH": "gateway"}, dotenv=None)
    assert isinstance(config, EarlierConfig)
    app = application(config)
    body, kind = json.dumps(HELLO).encode(), "websocket" if path == "/stream" else "http"
    arrived: list[Any] = [{"type": "http.request", "body": body}]
    if kind == "websocket":
        arrived = [{"type": "websocket.connect"}, {"type": "websocket.receive", "bytes": body}]

    async def receive() -> Any:
        return arrived.pop(0) if arrived else await asyncio.Event().wait()

    async def send(_: object) -> None: ...

    where = f"{app._prefix}{path}"
    headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer ada")]
    scope = {"type": kind, "path": where, "raw_path": where.encode(), "query_string": b"", "headers": headers}
    scope |= {"method": "POST", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http"}
    call = asyncio.create_task(app(scope, receive, send))
    await began.wait()
    call.cancel()
    await asyncio.wait([call])
    await ended.wait()
    assert held == [1]
    await eventually(lambda: app._front.turns.admission.in_flight == 0)


def test_client_of_the_websocket_that_leaves(tmp_path: Path) -> None:
    """Its call ends too, though nothing was there to be sent."""
    slow = {"rules": [{"reply": {"text": "Late.", "first_delay_ms": 20_000}}]}
    with served(write(tmp_path, CHAT), slow) as (service, model):
        with connect(service.url.replace("http", "ws") + "/stream") as socket:
            socket.send(json.dumps(HELLO))
            until(lambda: model.requests)
        until(lambda: [each["outcome"] for each in model.requests] == ["left"])


def test_a_client_of_the_websocket_that_leaves_while_its_large_message_waits_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits no longer."""
    happened: list[str] = []

    @asynccontextmanager
    async def never(_: LargeBodies, user: str) -> AsyncIterator[None]:
        happened.append("waits")
        try:
            await asyncio.Event().wait()
            yield
        finally:
            happened.append("has left")

    monkeypatch.setattr(LargeBodies, "turn", never)
    with served(write(tmp_path, CHAT)) as (service, _):
        with connect(service.url.replace("http", "ws") + "/stream") as socket:
            socket.send(json.dumps({"chat_history": [{"role": "user", "content": 5}] * 1000}))
            until(lambda: happened == ["waits"])
        until(lambda: happened == ["waits", "has left"])
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_a_message_of_the_websocket_may_be_as_large_as_a_body(nursery: Nursery, tmp_path: Path) -> None:
    """One limit holds for every way to call: it is not the server's own for WebSockets, 16 MiB."""
    config = write(tmp_path, CHAT + "  limits: {max_body_bytes: 18000000}\n")
    body = {"chat_history": [{"role": "user", "content": "x" * 17_000_000}]}
    with OfflineModel({"rules": [{"reply": "Long."}]}) as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "x", "TA_AUTH": "gateway"}
        with nursery.service(config, env) as service:
            address = service.url.replace("http", "ws") + "/stream"
            with connect(address) as socket:
                socket.send(json.dumps(body))
                assert "".join(map(str, socket)) == "Long."
            with connect(address) as socket:
                socket.send("x" * 18_000_001)
                with pytest.raises(ConnectionClosed) as closed:
                    socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def frame(first: int, content: bytes) -> bytes:
    """A frame from a client, masked with zeros; `first` is its first byte."""
    return bytes([first, 0xFE if len(content) < 65536 else 0xFF]) + (
        len(content).to_bytes(2 if len(content) < 65536 else 8, "big") + bytes(4) + content
    )


def upgraded(service: ServiceThread, user: str) -> socket.socket:
    """A WebSocket whose frames are the caller's to write; compression is offered, and not taken."""
    connection = socket.create_connection(("127.0.0.1", service.port), timeout=60)
    connection.sendall(
        f"GET {service.prefix}/stream HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {user}\r\n"
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        "sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
        "sec-websocket-extensions: permessage-deflate\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    assert head.startswith(b"HTTP/1.1 101")
    assert b"deflate" not in head
    return connection


def closed(connection: socket.socket) -> int | None:
    """The code with which a WebSocket was closed; None while it is open."""
    if not select.select([connection], [], [], 0)[0]:
        return None
    said = connection.recv(4, socket.MSG_PEEK)
    return int.from_bytes(said[2:], "big")


def test_unfinished_messages_of_the_websocket_have_the_budget_of_bodies(tmp_path: Path) -> None:
    """However they are cut: in one frame that does not end, in fragments, in fragments of two bytes.

    Nothing is unpacked, and nothing is read before the caller is known. Others are answered meanwhile.
    """
    text, end = 1, 0x80
    unfinished = (
        frame(text, b"x" * 990_000)[:-1],
        frame(text, b"x" * 500_000) + frame(0, b"x" * 490_000),
        frame(text, b"xx") + frame(0, b"xx") * 15_000,
        frame(text, b"") + frame(0, b"") * 15_000,
    )
    config = write(tmp_path, CHAT + "  limits: {max_body_bytes: 1000000}\n")
    with served(config, env={"TA_AUTH": "mock"}) as (service, _), ExitStack() as stack:
        for sent in unfinished:
            sockets = (upgraded(service, "ada") for _ in range(LARGEST_PER_USER + 1))
            opened = [stack.enter_context(each) for each in sockets]
            for each in opened:
                each.sendall(sent)
            until(lambda: any(closed(each) == 1013 for each in opened))  # noqa: B023
            with upgraded(service, "eve") as eve:
                eve.sendall(frame(text | end, json.dumps(HELLO).encode()))
                assert eve.recv(1) == b"\x81"
            for each in opened:
                each.close()
            until(lambda: service.app._front.turns.admission.receiving._held == 0)
        with upgraded(service, "ada") as ada:
            ada.sendall(frame(text | end, b"no JSON"))
            until(lambda: closed(ada) == 1011)
            ada.sendall(
                unfinished[0]
            )  # the application, which gives back what it has counted, is gone by now
            ada.shutdown(socket.SHUT_WR)
            while ada.recv(65536):
                pass
        assert service.app._front.turns.admission.receiving._held == 0


def test_a_websocket_on_which_nothing_more_arrives_is_closed(tmp_path: Path) -> None:
    """Of a message that goes on arriving, and of an answer, nothing is lost, however long they take."""
    text, end = 1, 0x80
    message = json.dumps(HELLO).encode()
    silences = (b"", frame(text, message), frame(text | end, message)[:-1])
    slow = {"rules": [{"reply": {"text": "Late.", "first_delay_ms": 600_000}}]}
    config = write(tmp_path, CHAT + "  limits: {idle_connection_seconds: 5}\n")
    with served(config, slow, {"TA_AUTH": "mock"}, moved=True) as (service, model), ExitStack() as stack:
        opened = [stack.enter_context(upgraded(service, "ada")) for _ in silences]
        pinging, lasting = (stack.enter_context(upgraded(service, "ada")) for _ in range(2))

        def ping(connection: socket.socket) -> None:
            """What was sent before has been read when it is answered."""
            connection.sendall(frame(0x9 | end, b""))
            assert connection.recv(2) == bytes([0xA | end, 0])

        for each, sent in zip(opened, silences, strict=True):
            each.sendall(sent)
        lasting.sendall(frame(text, b""))
        for step, part in enumerate((message[:30], message[30:60], message[60:])):
            service.advance(2)
            if step == 0:
                ping(pinging)  # which is nothing of a message
            lasting.sendall(frame(0, part))
            ping(lasting)
        lasting.sendall(frame(end, b""))
        until(lambda: all(closed(each) == 1008 for each in (*opened, pinging)))
        assert b"`limits.idle_connection_seconds`" in opened[0].recv(1000)
        until(lambda: model.requests)
        service.advance(6)
        model.release()
        received = b""
        while b"Late." not in received and (more := lasting.recv(1000)):
            received += more
        assert b"Late." in received
        assert received[0] == text | end
    assert service.app._front.turns.admission.receiving._held == 0


def test_hostile_types(tmp_path: Path) -> None:
    """What a type's own code raises is a clear 422, and so is what nests without end."""
    types = (
        TYPES
        + """

from pydantic import model_validator


class Hostile(BaseModel):
    chat_history: list[HistoryMessage] | None = None
    inner: "Hostile | None" = None

    @model_validator(mode="after")
    def check(self):
        if self.inner is None:
            raise RuntimeError("secret")
        return self
"""
    )
    config = CHAT.replace("BaseInputWithUserContext", "Hostile")
    with served(write(tmp_path, config, custom_types=types)) as (service, model):
        refused = post(service.url, json=HELLO)
        assert refused.status_code == 422
        assert refused.json()["detail"] == "body: is refused by Hostile: RuntimeError"
        nested = '{"inner":' * 5000 + "null" + "}" * 5000
        assert post(service.url, content=nested).status_code == 422
        assert model.requests == []


def test_a_type_that_does_not_serialize_to_an_object(tmp_path: Path) -> None:
    """It has no fields to fill in, which is a 422, as is what a type's own code raises."""
    types = """
from pydantic import BaseModel, model_serializer


class Written(BaseModel):
    chat_history: list[dict] = []

    @model_serializer
    def written(self):
        return "text"
"""
    config = CHAT.replace("BaseInputWithUserContext", "Written")
    with served(write(tmp_path, config, custom_types=types)) as (service, _):
        refused = post(service.url, json=HELLO)
    assert refused.status_code == 422
    assert refused.json()["detail"] == "body: is refused by Written: TypeError"


def test_traces_continue_at_the_model(nursery: Nursery, tmp_path: Path) -> None:
    """A call is a part of the caller's trace, and so are the calls of the model, which see no more of it."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    with OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "x", "TA_AUTH": "gateway"}
        env["TA_OTEL_ENDPOINT"] = "http://127.0.0.1:9"
        with nursery.service(write(tmp_path, CHAT), env) as service:
            headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "baggage": "user=ada"}
            assert post(service.url, json=HELLO, headers=headers).status_code == 200
            assert "baggage" not in model.requests[0]["headers"]
            assert model.requests[0]["headers"]["traceparent"].split("-")[1] == trace


def test_types_and_templates_are_loaded_once_at_start(tmp_path: Path) -> None:
    """A type that is not there fails the start with its name; a call never meets it."""
    file = write(tmp_path, SEQUENTIAL.replace("ReportInput", "Nothing"), custom_types=TYPES)
    with pytest.raises(ToolsetError, match="there is no type Nothing"), served(file):
        pass


def _health(url: str) -> str:
    return str(httpx.get(url + "/health").json()["status"])


def _env() -> dict[str, str]:
    return {"TA_API_KEY": "x", "TA_AUTH": "gateway", "PATH": "", "COLUMNS": "400"}


def _run(*command: str, env: dict[str, str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=300)
