"""`tealagents check`: what would be served, or what is wrong, before anything is started."""

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from tealagents.api.protocols import PROTOCOLS
from tealagents.cli.findings import find
from tealagents.cli.main import command_line
from tealagents.testing.authority import TENANT
from tealagents.testing.service import agent_config

OWN_MODEL = """
class Parrot:
    name = provider = "parrot"

    def __init__(self, options): ...
    def stream(self, call): ...

    encode = encode_system = encode_tools = __aenter__ = __aexit__ = stream
"""
DEMO = Path(__file__).parents[2] / "demos" / "approval"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.yaml", "custom_plugins.py", "catalogue.json"):
        shutil.copy(DEMO / name, tmp_path)
    return tmp_path


def check(folder: Path, **environment: str) -> Result:
    env = {"TA_API_KEY": "any", "COLUMNS": "200", **environment}
    return CliRunner().invoke(command_line("check"), ["check", str(folder / "config.yaml")], env=env)


def test_the_tools_are_named_and_those_that_ask(folder: Path) -> None:
    """The plugin file is loaded, and the catalogue says which calls need approval."""
    checked = check(folder, TA_PLUGIN_CATALOG_FILE=str(folder / "catalogue.json"))
    assert checked.exit_code == 0, checked.output
    assert "Files-list, Files-delete (needs approval)" in checked.output
    assert "(needs approval)" not in check(folder).output


def test_a_mistyped_variable_is_shown_beside_what_is_missing(folder: Path) -> None:
    """It is the reason, and comes before it."""
    checked = check(folder, TA_AUTH="entra", TA_ENTRA_TENENT_ID="contoso.com")
    assert checked.exit_code == 2
    hint, missing = "did you mean 'TA_ENTRA_TENANT_ID'", "or TA_ENTRA_TENANT_ID in the environment"
    assert -1 < checked.output.find(hint) < checked.output.find(missing)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("custom_plugins.py", "import nothing_of_this_name", "custom_plugins.py, line 1"),
        ("custom_plugins.py", "", "Files"),
        ("catalogue.json", '{"plugins": 7}', "catalogue.json"),
        ("catalogue.json", "", "catalogue.json"),
    ],
)
def test_what_is_wrong_with_the_tools_is_said(folder: Path, name: str, text: str, said: str) -> None:
    """By file and place, with exit status 2: what `serve` would stumble over is found before."""
    (folder / name).write_text(text)
    checked = check(folder, TA_PLUGIN_CATALOG_FILE=str(folder / "catalogue.json"))
    assert checked.exit_code == 2, checked.output
    assert said in checked.output
    assert "Traceback" not in checked.output


@pytest.mark.parametrize(
    ("below", "document", "placed"),
    [
        ("remote_plugins: [Shop]", '{"openapi": "3.1.0"}', "spec.agent.remote_plugins: {}/shop.json"),
        ("remote_plugins: [Shop]", None, "spec.agent.remote_plugins: The OpenAPI document"),
        ("remote_plugins: [Shopp]", None, "spec.agent.remote_plugins: {}/remote.yaml: there is no remote"),
        ("toolsets: ['${AWAY}', 'fractions:no']", None, "spec.agent.toolsets[1]: "),
        ("plugins: []", "catalogue", "TA_PLUGIN_CATALOG_FILE: The catalogue {}/shop.json is not JSON"),
    ],
)
def test_a_mistake_in_a_tool_is_placed_at_a_key_that_the_file_has(
    folder: Path, below: str, document: str | None, placed: str
) -> None:
    """Or at the variable that names the catalogue. It was `plugins`, whether the file had that or not."""
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("plugins: [Files]", below))
    (folder / "remote.yaml").write_text("remote_plugins: [{plugin_name: Shop, openapi_json_path: shop.json}]")
    variables = {"TA_REMOTE_PLUGIN_PATH": str(folder / "remote.yaml")}
    if document is not None:
        (folder / "shop.json").write_text(document)
    if document == "catalogue":
        variables["TA_PLUGIN_CATALOG_FILE"] = str(folder / "shop.json")
    checked = check(folder, **variables)
    assert checked.exit_code == 2, checked.output
    assert placed.format(folder) in checked.output


def test_a_plugin_is_made_as_it_is_when_the_service_starts(folder: Path) -> None:
    """Within an event loop, of which it may take hold."""
    plugins = folder / "custom_plugins.py"
    takes_hold = "\n    import asyncio\n\n    def __init__(self):\n        self.asyncio.get_running_loop()\n"
    plugins.write_text(plugins.read_text() + takes_hold)  # the class is the file's last
    checked = check(folder)
    assert checked.exit_code == 0, checked.output


def test_what_would_hinder_the_start_is_said(folder: Path) -> None:
    """Before it is tried."""
    checked = check(folder, TA_AUDIT_KEY="short")
    assert checked.exit_code == 2, checked.output
    assert "TA_AUDIT_KEY is shorter than 16 characters" in checked.output
    assert "make one with `openssl rand -base64 32`" in checked.output


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (
            [],
            "TA_SERVICE_CONFIG: is not set, and no config file was named; `tealagents new NAME` creates one",
        ),
        (["."], ".: cannot be read: is a directory; name the config file in it"),
    ],
)
def test_a_config_file_has_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: list[str], said: str
) -> None:
    """Itself, not its folder."""
    monkeypatch.chdir(tmp_path)
    checked = CliRunner().invoke(command_line("check"), ["check", *named], env={"TA_SERVICE_CONFIG": ""})
    assert (checked.exit_code, checked.output) == (2, f"✗ {said}\n")


def test_servers_are_not_asked(folder: Path) -> None:
    """An MCP server that cannot be started is no mistake of the file."""
    config = folder / "config.yaml"
    server = "    mcp_servers: [{name: away, transport: stdio, command: /does/not/exist}]\n"
    config.write_text(config.read_text().replace("  agent:\n", "  agent:\n" + server))
    checked = check(folder)
    assert checked.exit_code == 0, checked.output
    assert "away: /does/not/exist" in checked.output


def test_what_the_config_names_may_lie_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the config's folder is found, wherever the command is given."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    config = folder / "config.yaml"
    config.write_text(
        config.read_text().replace("    plugins:", "    toolsets: ['drawer_tools:Drawer']\n    plugins:")
    )
    missing = check(folder)
    assert missing.exit_code == 2, missing.output
    assert "toolset 'drawer_tools:Drawer' cannot be imported" in missing.output
    (folder / "drawer_tools.py").write_text(
        "class Drawer:\n    tools = __aenter__ = __aexit__ = print\n    def __init__(self, options): ...\n"
    )
    found = check(folder)
    assert found.exit_code == 0, found.output
    assert "drawer_tools:Drawer" in found.output


BARE = """
from tealagents.threads import ContextProvider

class Bare:
    encode_system = encode = encode_tools = stream = tools = __aenter__ = __aexit__ = print

class BareProvider(ContextProvider):
    def __init__(self): ...

class BareAuth:
    def __init__(self): ...
    def authenticate(self): ...
    def resource_metadata(self): ...
    def __aenter__(self): ...
    def __aexit__(self): ...
"""


@pytest.mark.parametrize(
    ("key", "named", "below"),
    [
        ("spec.agent.client", "bare:Bare", "    client: 'bare:Bare'\n"),
        ("spec.agent.toolsets[0]", "bare:Bare", "    toolsets: ['bare:Bare']\n"),
        ("spec.thread.reducers[0]", "bare:Bare", "  thread: {reducers: ['bare:Bare']}\n"),
        (
            "spec.thread.context_providers[0]",
            "bare:BareProvider",
            "  thread: {context_providers: ['bare:BareProvider']}\n",
        ),
        ("spec.auth.provider", "bare:BareAuth", "  auth: 'bare:BareAuth'\n"),
    ],
)
def test_a_class_that_takes_no_options_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, key: str, named: str, below: str
) -> None:
    """With the key that names it; each is called with its options."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "bare", raising=False)
    (folder / "bare.py").write_text(BARE)
    config = folder / "config.yaml"
    config.write_text(f"{config.read_text()}\n{below}")
    checked = check(folder)
    assert checked.exit_code == 2, checked.output
    assert f"{key}: " in checked.output
    assert f"{named!r} cannot be made with its options" in checked.output


def test_a_context_provider_whose_package_is_missing_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the extra that brings it: the service would not start."""
    monkeypatch.setitem(sys.modules, "mem0", None)
    config = folder / "config.yaml"
    config.write_text(f"{config.read_text()}\n  thread: {{context_providers: [mem0]}}\n")
    checked = check(folder)
    assert checked.exit_code == 2, checked.output
    assert "spec.thread.context_providers[0]: " in checked.output
    assert "pip install 'tealagents[mem0]'" in checked.output


PARTS = {
    "client": "agent.client",
    "toolset": "agent.toolsets[0]",
    "reducer": "thread.reducers[0]",
    "provider": "thread.context_providers[0]",
    "auth": "auth.provider",
    "store": "persistence",
}

RAISING = """
from tealagents.stores.memory import MemoryStore
from tealagents.threads import ContextProvider

class Raising:
    encode_system = encode = encode_tools = stream = tools = __aenter__ = __aexit__ = print
    authenticate = resource_metadata = print

    def __init__(self, *given):
        raise RuntimeError("no shelf")  # line 10

class RaisingProvider(Raising, ContextProvider): ...

class RaisingStore(Raising, MemoryStore): ...
"""


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RAISING, "cannot be made with its options: own.py, line 10: RuntimeError: no shelf."),
        ("x = 1\ny = x / 0\n", "cannot be imported: own.py, line 2: ZeroDivisionError: division by zero."),
        ("x = 1\n\nraise SystemExit('off')\n", "cannot be imported: own.py, line 3: SystemExit: off."),
        ("class Raising\n", "cannot be imported: own.py, line 1: SyntaxError: expected ':'"),
    ],
)
def test_what_a_class_of_ones_own_raises_is_placed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, part: str, text: str, said: str
) -> None:
    """With the key that names it, its file and its line, as of the plugin file; never as a traceback."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    (folder / "own.py").write_text(text)
    name = "own:Raising" + {"provider": "Provider", "store": "Store"}.get(part, "")
    config = folder / "config.yaml"
    document = yaml.safe_load(config.read_text())
    section, _, key = PARTS[part].removesuffix("[0]").rpartition(".")
    below = document["spec"].setdefault(section, {}) if section else document["spec"]
    below[key] = [name] if PARTS[part].endswith("[0]") else name
    config.write_text(yaml.safe_dump(document))
    checked = check(folder)
    assert checked.exit_code == 2, checked.output
    assert f"spec.{PARTS[part]}: " in checked.output
    assert said in checked.output


def test_documents_that_are_files_are_read(folder: Path) -> None:
    """A document's operations are named, or what is wrong with it is reported; a server's is left alone."""
    config, remote, document = folder / "config.yaml", folder / "remote.yaml", folder / "shop.json"
    config.write_text(
        config.read_text().replace("    plugins:", "    remote_plugins: [Shop, Far]\n    plugins:")
    )
    remote.write_text(
        "remote_plugins:\n"
        "  - {plugin_name: Shop, openapi_json_path: shop.json, server_url: http://127.0.0.1:1}\n"
        "  - {plugin_name: Far, openapi_json_path: http://127.0.0.1:1/api.json, server_url: http://127.0.0.1:1}\n"
    )
    paths = {"/orders": {"get": {"operationId": "orders", "responses": {}}}}
    document.write_text(
        json.dumps({"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths})
    )
    checked = check(folder, TA_REMOTE_PLUGIN_PATH=str(remote))
    assert checked.exit_code == 0, checked.output
    assert "Shop-orders" in checked.output
    document.write_text('{"swagger": "2.0"}')
    checked = check(folder, TA_REMOTE_PLUGIN_PATH=str(remote))
    assert checked.exit_code == 2, checked.output
    assert "shop.json" in checked.output


def test_every_finding_is_listed_with_its_place(folder: Path) -> None:
    """Unknown names of a store, a provider, reducers and toolsets: all at once, by file, line and key."""
    config = folder / "config.yaml"
    text = (
        config.read_text().rstrip()
        + """
  persistence: mongo://somewhere
  auth: okta
  thread:
    reducers: [message_count, shorten]
    context_providers: [horoscope]
"""
    )
    config.write_text(text)
    checked = check(folder)
    assert checked.exit_code == 2, checked.output

    def line(start: str) -> int:
        return next(n for n, each in enumerate(text.splitlines(), 1) if each.strip().startswith(start))

    for place, said in (
        (f"{line('persistence')}: spec.persistence: ", "Unknown store 'mongo'"),
        (f"{line('auth')}: spec.auth.provider: ", "Unknown auth provider 'okta'"),
        (f"{line('reducers')}: spec.thread.reducers[1]: ", "Unknown reducer 'shorten'"),
        (f"{line('context_providers')}: spec.thread.context_providers[0]: ", "Unknown context provider"),
    ):
        assert any(f"{config}:{place}{said}" in each for each in checked.output.splitlines()), checked.output
    named = check(folder, TA_PERSISTENCE="mongo://elsewhere")
    assert "TA_PERSISTENCE: Unknown store 'mongo'" in named.output


@pytest.mark.parametrize(
    ("model", "found"),
    [("my-deployment", "context window of the model 'my-deployment' is not known"), ("${OPEN}", None)],
)
def test_a_budget_of_tokens_is_checked_for_the_model(folder: Path, model: str, found: str | None) -> None:
    """As `serve` does it, unless the model's name is left open."""
    config = folder / "config.yaml"
    document = yaml.safe_load(config.read_text())
    document["spec"]["thread"] = {"reducers": ["token_budget"]}
    document["spec"]["agent"]["model"] = model
    config.write_text(yaml.safe_dump(document))
    checked = check(folder)
    assert checked.exit_code == (2 if found else 0), checked.output
    assert found is None or f"spec.thread.reducers[0]: The {found}" in checked.output


def test_two_providers_of_one_name_are_found(folder: Path) -> None:
    """At the second of them, as `serve` refuses them."""
    config = folder / "config.yaml"
    config.write_text(f"{config.read_text()}  thread: {{context_providers: [facts, facts, facts]}}\n")
    checked = check(folder)
    assert checked.exit_code == 2, checked.output
    assert "spec.thread.context_providers[1]: Two context providers are called facts" in checked.output


@pytest.mark.parametrize("base_url", ["", "https://api.openai.com/v1", "https://API.openai.com"])
@pytest.mark.parametrize("key", ["", "sk-key"])
def test_an_identity_of_azure_is_not_shown_to_openai(folder: Path, base_url: str, key: str) -> None:
    """Its tokens are for a resource of Azure, whose address is missing; no matter whether there is a key."""
    variables = {"TA_BASE_URL": base_url, "TA_API_KEY": key, "TA_AZURE_CREDENTIAL": "managed_identity"}
    checked = check(folder, **variables)
    assert checked.exit_code == 2
    assert "TA_AZURE_CREDENTIAL needs TA_BASE_URL, the address of the Azure resource" in checked.output


def test_a_model_client_need_not_say_that_it_keeps_no_conversations(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is served local threads, and a remote one is refused as for a client that says so."""
    (folder / "own_models.py").write_text(OWN_MODEL)
    monkeypatch.syspath_prepend(folder)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("  agent:\n", "  agent:\n    client: own_models:Parrot\n"))
    assert check(folder).exit_code == 0
    config.write_text(config.read_text().replace("spec:\n", "spec:\n  thread: {kind: remote}\n"))
    checked = check(folder)
    assert checked.exit_code == 2
    assert "The model client 'own_models:Parrot' keeps no conversations" in checked.output


def test_a_file_can_be_checked_without_secrets(folder: Path) -> None:
    """What is not set here is what `serve` will need; everything else is checked and shown."""
    config = folder / "config.yaml"
    server = "    mcp_servers: [{name: far, url: 'http://127.0.0.1:1', headers: {X: '${FAR_TOKEN}'}}]\n"
    config.write_text(config.read_text().replace("  agent:\n", "  agent:\n" + server))
    checked = check(folder, TA_API_KEY="")
    assert checked.exit_code == 0, checked.output
    assert "serve will need: TA_API_KEY, or TA_BASE_URL for a service without a key\n" in checked.output
    assert "serve will need: " + str(config) in checked.output
    assert "the variable FAR_TOKEN is not set" in checked.output
    assert "Files-list" in checked.output
    with_mistake = check(folder, TA_API_KEY="", TA_AUDIT_KEY="short")
    assert with_mistake.exit_code == 2
    assert "TA_AUDIT_KEY is shorter" in with_mistake.output
    assert "TA_API_KEY" in with_mistake.output


@pytest.mark.parametrize("key", ["", "any"])
def test_an_identity_that_is_incomplete_is_a_mistake(folder: Path, key: str) -> None:
    """With the names of the variables that it needs; a key is not among them, whether or not there is one."""
    azure = {"TA_BASE_URL": "https://desk.openai.azure.com", "TA_AZURE_CREDENTIAL": "client_secret"}
    checked = check(folder, TA_API_KEY=key, **azure, TA_AZURE_TENANT_ID="example.com")
    assert checked.exit_code == 2, checked.output
    assert "TA_AZURE_CREDENTIAL=client_secret also needs TA_AZURE_CLIENT_ID, TA_AZURE_CLIENT_SECRET" in (
        checked.output
    )
    assert "TA_API_KEY" not in checked.output


@pytest.mark.parametrize("key", ["", "any"])
@pytest.mark.parametrize(
    ("url", "reported"),
    [
        ("https://me:canary@model.example/v1", "must not contain credentials"),
        ("https://model.example/v1?api-version=1", "must have no query"),
    ],
)
def test_a_mistake_in_the_model_services_url_is_placed_at_its_variable(
    folder: Path, key: str, url: str, reported: str
) -> None:
    """The file has no key for it."""
    checked = check(folder, TA_API_KEY=key, TA_BASE_URL=url)
    assert checked.exit_code == 2, checked.output
    [mistake] = [each for each in checked.output.splitlines() if reported in each]
    assert mistake.startswith("✗ TA_BASE_URL: The model client ")
    assert "spec.agent.client" not in checked.output
    assert "canary" not in checked.output


def test_files_that_describe_tools_can_be_checked_without_secrets(folder: Path) -> None:
    """In the file of remote plugins, and in the catalogue: everything else that they say is checked."""
    config, remote, catalogue = folder / "config.yaml", folder / "remote.yaml", folder / "catalogue.json"
    config.write_text(config.read_text().replace("plugins: [Files]", "remote_plugins: [Shop]"))
    operation = {"operationId": "list", "responses": {}}
    document = {"openapi": "3.1.0", "info": {}, "paths": {"/": {"get": operation}}}
    (folder / "shop.json").write_text(json.dumps(document))
    shop = {"plugin_name": "Shop", "openapi_json_path": "shop.json", "server_url": "https://shop.example"}
    remote.write_text(json.dumps({"remote_plugins": [shop | {"headers": {"X-Key": "key ${SHOP_KEY}"}}]}))
    auth = {"auth_type": "oauth2", "auth_server": "https://auth.example", "scopes": ["a"]}
    auth |= {"oauth_client_id": "me", "oauth_client_secret": "${SHOP_SECRET}"}
    tool = {"tool_id": "Shop-list", "governance": {"requires_hitl": True}, "auth": auth}
    catalogue.write_text(json.dumps({"plugins": [{"plugin_id": "Shop", "tools": [tool]}]}))
    files = {"TA_REMOTE_PLUGIN_PATH": str(remote), "TA_PLUGIN_CATALOG_FILE": str(catalogue)}
    checked = check(folder, **files)
    assert checked.exit_code == 0, checked.output
    output = " ".join(checked.output.split())
    for place, name in (
        (f"{remote}: Shop", "SHOP_KEY"),
        (f"The catalogue {catalogue}: Shop-list", "SHOP_SECRET"),
    ):
        assert f"serve will need: {place}: the environment variable '{name}' is not set" in output, output
    assert "Shop-list (needs approval)" in output
    remote.write_text(remote.read_text().replace("SHOP_KEY}", "SHOP_KEY:-none}"))
    assert check(folder, **files).exit_code == 2  # no variable has such a name


def test_a_number_from_a_variable_that_is_not_set_is_left_open(folder: Path) -> None:
    """What it will be is not known, so it is no mistake of the file."""
    config = folder / "config.yaml"
    config.write_text(config.read_text().rstrip() + "\n  limits: {max_items: '${MOST}'}\n")
    checked = check(folder)
    assert checked.exit_code == 0, checked.output
    assert "MOST is not set" in checked.output


@pytest.mark.parametrize("url", ["${STORE}", "redis://here:${STORE}/0"])
def test_a_store_from_a_variable_that_is_not_set_is_left_open(folder: Path, url: str) -> None:
    """It is shown as it stands there."""
    config = folder / "config.yaml"
    config.write_text(config.read_text().rstrip() + f"\n  persistence: {url}\n")
    checked = check(folder)
    assert checked.exit_code == 0, checked.output
    assert "STORE is not set" in checked.output
    assert url in checked.output
    assert check(folder, STORE="anywhere").exit_code == 2


@pytest.mark.parametrize(
    ("below", "text"),
    [
        ("spec", "auth: ${OPEN}"),
        ("spec", "auth: {provider: entra, tenant_id: '${OPEN}', audience: '${OPEN}'}"),
        ("spec", "auth: {provider: entra, tenant_id: t, audience: a, client_id: c, certificate: '${OPEN}'}"),
        ("spec", "auth: {provider: entra, tenant_id: common, audience: a, allowed_tenants: '${OPEN}'}"),
        (
            "spec",
            f"auth: {{provider: entra, tenant_id: {TENANT}, audience: a, allowed_tenants: '${{OPEN}}'}}",
        ),
        (
            "spec",
            f"auth: {{provider: entra, tenant_id: '${{OPEN}}', audience: a, allowed_tenants: {TENANT}}}",
        ),
        ("spec", "protocols: ${OPEN}"),
        ("spec", "protocols: ['${OPEN}', openai]"),
        ("spec", "cors_origins: ['${OPEN}']"),
        ("spec", "cors_origins: ${OPEN}"),
        ("spec", "thread: {reducers: ['${OPEN}']}"),
        ("spec", "thread: {reducers: [{name: message_count, max_messages: '${OPEN}'}]}"),
        ("spec", "thread: {context_providers: ['${OPEN}']}"),
        ("agent", "mcp_servers: [{name: far, transport: http, url: '${OPEN}'}]"),
        ("agent", "mcp_servers: [{name: far, url: '${OPEN}', timeout: '${OPEN}'}]"),
        ("agent", "toolsets: ['${OPEN}']"),
        ("agent", "plugins: [Files, '${OPEN}']"),
        ("agent", "client: ${OPEN}"),
    ],
)
def test_what_a_variable_that_is_not_set_stands_for_is_left_open(folder: Path, below: str, text: str) -> None:
    """A server's URL, a tenant, a reducer: none is judged, and the file is shown with all else it says."""
    config = folder / "config.yaml"
    document = yaml.safe_load(config.read_text())
    section = document["spec"] if below == "spec" else document["spec"]["agent"]
    section |= yaml.safe_load(text)
    config.write_text(yaml.safe_dump(document))
    checked = check(folder)
    assert checked.exit_code == 0, checked.output
    assert "OPEN is not set" in checked.output
    assert "Files-list" in checked.output


@pytest.mark.parametrize("key", ["name", "version"])
def test_a_name_from_a_variable_that_is_not_set_is_left_open(folder: Path, key: str) -> None:
    """Although a service has to have one."""
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {key: "${OPEN}"}))
    checked = check(folder)
    assert checked.exit_code == 0, checked.output
    assert "OPEN is not set" in checked.output


def test_a_variable_where_a_mapping_belongs_is_a_mistake(folder: Path) -> None:
    """No value that it might have would fit."""
    config = folder / "config.yaml"
    document = yaml.safe_load(config.read_text())
    document["spec"]["agent"]["mcp_servers"] = ["${OPEN}"]
    config.write_text(yaml.safe_dump(document))
    checked = check(folder)
    assert checked.exit_code == 2, checked.output
    assert "must be a mapping" in checked.output


def test_an_unknown_protocol_is_said_with_those_there_are(folder: Path) -> None:
    """By its key; the API that is always served is no further protocol."""
    checked = check(folder, TA_PROTOCOLS="opanai")
    assert checked.exit_code == 2, checked.output
    known = ", ".join(sorted(PROTOCOLS.keys() - {"tealagents/v1alpha1"}))
    assert f"TA_PROTOCOLS: Unknown protocol 'opanai'. Known: {known}." in checked.output
    assert check(folder, TA_PROTOCOLS="tealagents/v1alpha1").exit_code == 2


def test_names_of_protocols_are_separated_by_spaces(folder: Path) -> None:
    """Commas, as other programs want them, are no name that is unknown."""
    checked = check(folder, TA_PROTOCOLS="a2a,mcp")
    assert checked.exit_code == 2, checked.output
    assert "TA_PROTOCOLS: must be the names of protocols, separated by spaces, such as" in checked.output


def test_brackets_are_shown_as_they_are(folder: Path) -> None:
    """Of values, of warnings and of what is wrong: none is taken for markup of the terminal."""
    config = folder / "\\[old] x" / "config.yaml"
    config.parent.mkdir()
    shutil.copy(folder / "custom_plugins.py", config.parent)
    text = (folder / "config.yaml").read_text()
    config.write_text(text.replace("  agent:\n", '  agent:\n    "[/x]": y\n    "[bold]role": z\n'))
    checked = check(config.parent)
    assert checked.exit_code == 0, checked.output
    assert str(config) in checked.output
    assert '"[/x]"' in checked.output
    assert '"[bold]role"' in checked.output
    config.write_text(f"{text}\n[bold")
    checked = check(config.parent)
    assert checked.exit_code == 2, checked.output
    assert f"{config}:" in checked.output


def test_ctrl_c_ends_the_import_of_a_plugin(tmp_path: Path) -> None:
    """The first one: asyncio would cancel what is awaited, which an import is not."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(agent_config(agent={"plugins": ["Files"]})))
    (tmp_path / "custom_plugins.py").write_text(
        "import os, signal\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        f"open({str(tmp_path / 'further')!r}, 'w').close()\n"
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            find(tmp_path / "config.yaml")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert not (tmp_path / "further").exists()
