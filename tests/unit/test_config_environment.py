"""The environment: what wins over the file, and what a `${NAME}` of the file stands for."""

from pathlib import Path

import pytest
from config_files import SMALLEST, complaints, read, with_agent, with_spec

from tealagents.config import ConfigError, ConfigProblem, load
from tealagents.config.settings import variables
from tealagents.limits import Limits

TENANT = "11111111-2222-3333-4444-555555555555"


def test_variables_win_over_the_file(tmp_path: Path) -> None:
    """What the environment says goes before what the file says."""
    text = with_spec(
        """
        persistence: file:///tmp/there
        auth: mock
        concurrency: reject
        on_disconnect: continue
        cors_origins: [https://a.example.com]
        limits: {max_tool_rounds: 3, max_items: 4}
        """
    )
    config = read(
        tmp_path,
        text,
        TA_PERSISTENCE="memory://",
        TA_AUTH="entra",
        TA_ENTRA_TENANT_ID=TENANT,
        TA_ENTRA_AUDIENCE="api://one two",
        TA_CONCURRENCY="enqueue",
        TA_ON_DISCONNECT="cancel",
        TA_CORS_ORIGINS="https://b.example.com https://c.example.com",
        TA_THREAD__KIND="remote",
        TA_LIMITS__MAX_TOOL_ROUNDS="7",
        TA_LIMITS__LEASE_SECONDS="0.5",
    )
    assert config.persistence == "memory://"
    assert (config.auth.provider, config.auth.chosen) == ("entra", True)
    assert config.auth.entra is not None
    assert config.auth.entra.tenant_id == TENANT
    assert config.auth.entra.audience == ("api://one", "two")
    assert (config.concurrency, config.on_disconnect) == ("enqueue", "cancel")
    assert config.cors_origins == ("https://b.example.com", "https://c.example.com")
    assert config.thread.kind == "remote"
    assert config.limits == Limits(max_tool_rounds=7, max_items=4, lease_seconds=0.5)


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("https://App.Example.com", "https://app.example.com"),
        ("https://app.example.com:443", "https://app.example.com"),
        ("http://app.example.com:80", "http://app.example.com"),
        ("https://[2001:DB8::80]:80", "https://[2001:db8::80]:80"),
        ("*", "*"),
    ],
)
def test_an_origin_is_allowed_however_it_is_written(tmp_path: Path, written: str, sent: str) -> None:
    """Browsers send it in one way only."""
    assert read(tmp_path, TA_CORS_ORIGINS=written).cors_origins == (sent,)


@pytest.mark.parametrize("name", Limits.model_fields)
def test_every_limit_has_a_variable(tmp_path: Path, name: str) -> None:
    """Each limit can be set, and set wrongly, from the environment."""
    variable = f"TA_LIMITS__{name.upper()}"
    assert getattr(read(tmp_path, **{variable: "5"}).limits, name) == 5
    [complaint] = complaints(tmp_path, **{variable: "many"})
    assert complaint.startswith(f"{variable}: must be a")


def test_dotenv_is_below_the_environment(tmp_path: Path) -> None:
    """`.env` wins over the file, the environment over `.env`; what is empty counts as unset."""
    file, dotenv = tmp_path / "agent.yaml", tmp_path / ".env"
    file.write_text(with_spec("limits: {max_items: 1, max_tool_rounds: 1, tool_timeout_seconds: 1}\n"))
    dotenv.write_text(
        f"# a comment\nexport TA_SERVICE_CONFIG='{file}'\nTA_LIMITS__MAX_ITEMS=2\n"
        'TA_LIMITS__MAX_TOOL_ROUNDS="2"  # another\nTA_LIMITS__TOOL_TIMEOUT_SECONDS=\nTA_API_KEY=a$b${c}\n'
    )
    config = load(env={"TA_LIMITS__MAX_ITEMS": "3", "TA_LIMITS__MAX_TOOL_ROUNDS": ""}, dotenv=dotenv)
    assert config.limits.max_items == 3
    assert config.limits.max_tool_rounds == 2
    assert config.limits.tool_timeout_seconds == 1
    assert config.api_key is not None
    assert config.api_key.get_secret_value() == "a$b${c}"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("my #1", "my"),
        ("'my #1'", "my #1"),
        ('"my #1"  # mine', "my #1"),
        ("my#1", "my#1"),
        ("' my 1 '", "my 1"),
        (r'"a\tb\\"', "a\tb\\"),
        (r"'a\tb\\'", r"a\tb" + "\\"),
        (r"a\tb", r"a\tb"),
        ('say "hi"', 'say "hi"'),
        ("a$b${NAME}", "a$b${NAME}"),
    ],
)
def test_quotes_and_comments_of_dotenv_are_read_as_documented(
    tmp_path: Path, written: str, value: str
) -> None:
    """Those of python-dotenv."""
    (tmp_path / "agent.yaml").write_text(SMALLEST)
    (tmp_path / ".env").write_text(f"NAME={written}\n")
    assert load(tmp_path / "agent.yaml", env={}, dotenv=tmp_path / ".env").environment == {"NAME": value}


def test_what_earlier_versions_of_python_dotenv_read_otherwise(tmp_path: Path) -> None:
    """A comment is no value, and an editor's byte order mark no part of a name."""
    (tmp_path / "agent.yaml").write_text(SMALLEST)
    (tmp_path / ".env").write_text("\ufeffONE=1\nTWO= # comment\n", encoding="utf-8")
    config = load(tmp_path / "agent.yaml", env={}, dotenv=tmp_path / ".env")
    assert config.environment == {"ONE": "1"}


def test_mistakes_in_dotenv_have_lines(tmp_path: Path) -> None:
    """What is wrong in `.env` is reported with its line there."""
    (tmp_path / "agent.yaml").write_text(SMALLEST)
    dotenv = tmp_path / ".env"
    dotenv.write_text("\n\nthis is no assignment\n\nTA_CONCURRENCY=rejct\nTA_COLOUR=red\nTA_PERSISTENCE\n")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "agent.yaml", env={}, dotenv=dotenv)
    assert [str(problem) for problem in caught.value.problems] == [
        f"{dotenv}:3: this is not NAME=value",
        f"{dotenv}:5: TA_CONCURRENCY: must be 'reject', 'enqueue', 'interrupt' or 'rollback'; "
        "did you mean 'reject'?",
        f"{dotenv}:7: this is not NAME=value",
    ]


def test_unreadable_dotenv_is_an_error(tmp_path: Path) -> None:
    """A `.env` that is there and cannot be read is not passed over."""
    (tmp_path / "agent.yaml").write_text(SMALLEST)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "agent.yaml", env={}, dotenv=tmp_path)


def test_a_working_directory_that_is_gone_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths of variables, and `.env`, are looked for there."""
    (tmp_path / "agent.yaml").write_text(SMALLEST)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match=r"the working directory cannot be used: .*; start in another one"):
        load(tmp_path / "agent.yaml", env={})


def test_no_config_named(tmp_path: Path) -> None:
    """Without a path and without the variable, the variable is named."""
    with pytest.raises(ConfigError, match="TA_SERVICE_CONFIG: is not set"):
        load(env={}, dotenv=None)


def test_config_named_by_variable(tmp_path: Path) -> None:
    """TA_SERVICE_CONFIG names the file; a path that is given goes before it."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(SMALLEST.replace("Wiki", name))
    env = {"TA_SERVICE_CONFIG": str(tmp_path / "one")}
    assert load(env=env, dotenv=None).name == "one"
    assert load(tmp_path / "two", env=env, dotenv=None).name == "two"


def test_unknown_variable_is_a_warning(tmp_path: Path) -> None:
    """A slip in a variable's name does not stop the service, but is pointed out; others' are none of ours."""
    config = read(
        tmp_path,
        TA_LIMITS__MAX_TOOL_ROUND="3",
        TA_AUTHH="mock",
        ta_auth="x",
        TAXI="1",
        TA_TOKEN="t",
        TA_X_Y_Z="1",
    )
    assert [warning for warning in config.warnings if warning.startswith("TA")] == [
        "TA_AUTHH: unknown variable, ignored; did you mean 'TA_AUTH'?",
        "TA_LIMITS__MAX_TOOL_ROUND: unknown variable, ignored; did you mean 'TA_LIMITS__MAX_TOOL_ROUNDS'?",
        "TA_X_Y_Z: unknown variable, ignored",
    ]


@pytest.mark.parametrize(
    ("mistyped", "meant", "env"),
    [
        ("TA_SERVICE_CONFG", "TA_SERVICE_CONFIG", {}),
        ("TA_ENTRA_TENENT_ID", "TA_ENTRA_TENANT_ID", {"TA_AUTH": "entra"}),
    ],
)
def test_a_mistyped_variable_is_named_beside_what_is_missing(
    tmp_path: Path, mistyped: str, meant: str, env: dict[str, str]
) -> None:
    """That the right one is not set says nothing new to a user who sees it in `.env`."""
    file = tmp_path / "agent.yaml"
    file.write_text(SMALLEST)
    with pytest.raises(ConfigError) as caught:
        load(file if env else None, env={mistyped: "x", **env}, dotenv=None)
    assert any(meant in str(each) for each in caught.value.problems)
    hint = f"{mistyped}: unknown variable, ignored; did you mean '{meant}'?"
    assert caught.value.warnings == [hint]


def test_an_identity_that_gets_no_tokens_is_a_warning(tmp_path: Path) -> None:
    """Which of the four kinds it is has to be said, too."""
    config = read(tmp_path, TA_AZURE_TENANT_ID="contoso.com", TA_AZURE_SCOPE="https://example.com/.default")
    without = "no effect without TA_AZURE_CREDENTIAL, the kind of identity"
    assert f"TA_AZURE_TENANT_ID, TA_AZURE_SCOPE: {without}" in config.warnings
    chosen = read(tmp_path, TA_AZURE_TENANT_ID="contoso.com", TA_AZURE_CREDENTIAL="managed_identity")
    assert not any("TA_AZURE" in warning for warning in chosen.warnings)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("TA_AUTH", "a b", "must be a name, or module:Class"),
        ("TA_BASE_URL", "localhost:8000", "must be an http:// or https:// URL"),
        ("TA_CORS_ORIGINS", "https://a.example.com/", "must be an origin"),
        ("TA_ENCRYPTION_KEY", "seven77", "must have at least 8 characters"),
        ("TA_ENCRYPTION_OLD_KEYS", "long-enough seven77", "must have at least 8 characters"),
        ("TA_ENTRA_ALLOW_APP_TOKENS", "perhaps", "must be true or false"),
        ("TA_ENTRA_ALLOWED_TENANTS", "example.com", "must be the ids of tenants"),
        ("TA_ENTRA_AUTHORITY", "http://login.example.com", "must be https://"),
        ("TA_ENTRA_TENANT_ID", "../..", "must be a tenant's id"),
        ("TA_FORWARD_HEADERS", "X-A: b", "must be the names of headers"),
        ("TA_LOG_LEVEL", "LOUD", "must be 'DEBUG', 'INFO'"),
        ("TA_ON_DISCONNECT", "cancle", "did you mean 'cancel'?"),
        ("TA_OTEL_ENDPOINT", "collector", "must be an http:// or https:// URL"),
        ("TA_OTEL_ENDPOINT", "http://collector:4318/v1/logs/", "must be without /v1/logs"),
        ("TA_OTEL_ENDPOINT", "http://collector:4318/?key=k", "put keys into OTEL_EXPORTER_OTLP_HEADERS"),
        ("TA_PERSISTENCE", "memory", "must be the URL of a store"),
        ("TA_PERSISTENCE", "sqlite://state.db", "three slashes"),
        ("TA_PLUGIN_MODULE", "nowhere.py", "there is no such file"),
        ("TA_PUBLIC_URL", "agents.example", "must be an http:// or https:// URL"),
        ("TA_PUBLIC_URL", "https://me:canary@agents.example", "must not have credentials, a query or"),
        ("TA_PUBLIC_URL", "https://agents.example/v1?a=1", "must not have credentials, a query or"),
        ("TA_PUBLIC_URL", "https://agents.example/v1#", "must not have credentials, a query or"),
        ("TA_PUBLIC_URL", 'https://agents".example', "must be a URL in ASCII"),
        ("TA_PUBLIC_URL", 'https://agents.example/"', "must be a URL in ASCII"),
        ("TA_PUBLIC_URL", "https://bücher.example", "a host name in Punycode"),
        ("TA_TELEMETRY_ENABLED", "maybe", "must be true or false"),
        ("TA_THREAD__KIND", "remot", "did you mean 'remote'?"),
        ("TA_API_KEY", "\udcff", "is not valid text"),
        ("TA_API_KEY", "\u201csk-1\u201d", "must be one line of ASCII characters"),
    ],
)
def test_malformed_variable_is_named(tmp_path: Path, name: str, value: str, complaint: str) -> None:
    """A variable that is wrong stops the start, by name."""
    found = [each for each in complaints(tmp_path, **{name: value}) if each.startswith(f"{name}: ")]
    assert complaint in found[0]
    assert "canary" not in found[0]


@pytest.mark.parametrize(
    "url",
    [
        "https://agents.example.com",
        "HTTPS://Agents.Example:443/x",
        "http://127.0.0.1:8000/",
        "http://[::1]:8000/my_agents/a(b),c/%C3%BC~;v=1",
        "https://xn--bcher-kva.example",
    ],
)
def test_a_public_url_may_have_a_port_and_a_path(tmp_path: Path, url: str) -> None:
    """Paths are added to it, so a slash at its end is removed."""
    assert read(tmp_path, TA_PUBLIC_URL=url).public_url == url.rstrip("/")


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    """No secret appears in the config's repr or text, nor in an error about it."""
    secrets = {
        "TA_API_KEY": "canary-1",
        "TA_ENCRYPTION_KEY": "canary-2",
        "TA_ENCRYPTION_OLD_KEYS": "canary-3 canary-4",
        "TA_AUDIT_KEY": "canary-5",
        "TA_PERSISTENCE": "postgresql://user:canary-6@db.example.com/state",
        "TA_BASE_URL": "https://user:canary-7@llm.example.com/v1",
        "TA_ENTRA_CLIENT_ID": "app",
        "TA_ENTRA_CLIENT_SECRET": "canary-8",
        "STREAM": "canary-9",
    }
    text = with_agent(
        """
        mcp_servers:
          - name: a
            url: https://a.example.com/${STREAM}
            headers: {Authorization: "Bearer ${STREAM}"}
            env: {KEY: "${STREAM}"}
            args: [--token, "${STREAM}"]
        """
    )
    text += '  thread: {reducers: [{name: summary, api_key: "${STREAM}"}]}\n'
    config = read(tmp_path, text, **secrets)
    assert "canary" not in repr(config)
    assert config.encryption_old_keys[1].get_secret_value() == "canary-4"
    assert config.agent.mcp_servers[0].headers == {"Authorization": "Bearer canary-9"}
    wrong = {name: f"{value}\udcff" for name, value in secrets.items()}
    assert "canary" not in "\n".join(complaints(tmp_path, text, **wrong))


def test_expansion(tmp_path: Path) -> None:
    """`${NAME}` is the variable, once; `$${NAME}` and what is no name stay as they are."""
    config = read(
        tmp_path,
        with_agent("role: a ${ONE}${TWO} $${ONE} ${not a name} $ONE ${a.b}"),
        ONE="1 ${TWO}",
        TWO="2",
    )
    assert config.agent.role == "a 1 ${TWO}2 ${ONE} ${not a name} $ONE ${a.b}"


def test_expansion_gives_numbers_where_numbers_are_wanted(tmp_path: Path) -> None:
    """A limit, a switch and a version may come from variables, each read as what the key wants."""
    text = with_agent('temperature: ${T}\nmcp_servers:\n  - {name: a, command: b, verify_ssl: "${F}"}')
    config = read(
        tmp_path, text.replace("0.10", "${V}").replace("Wiki", "${N}"), T="0.5", F="false", V="1.0", N="42"
    )
    assert config.agent.temperature == 0.5
    assert config.agent.mcp_servers[0].verify_ssl is False
    assert (config.name, config.version) == ("42", "1.0")


def test_missing_variable_is_an_error(tmp_path: Path) -> None:
    """A variable that is not set, or empty, is named with file, line and key."""
    complaint = "8: spec.agent.role: the variable NAME is not set; for the text ${NAME} itself write $${NAME}"
    assert complaints(tmp_path, with_agent("role: ${NAME}")) == [complaint]
    assert complaints(tmp_path, with_agent("role: ${NAME}"), NAME="") == [complaint]


def test_defaults_of_a_shell_are_refused(tmp_path: Path) -> None:
    """`${NAME:-default}` is not silently taken as text."""
    [complaint] = complaints(tmp_path, with_agent("role: ${NAME:-x}"))
    assert complaint.startswith("8: spec.agent.role: a default within ${NAME} is not supported")


def test_overridden_keys_need_no_variables(tmp_path: Path) -> None:
    """What a variable overrides need not be expandable: the environment wins."""
    text = with_spec('persistence: ${DATABASE_URL}\nauth: {provider: entra, tenant_id: "${TENANT}"}')
    config = read(tmp_path, text, TA_PERSISTENCE="memory://", TA_AUTH="mock", TA_ENTRA_TENANT_ID=TENANT)
    assert config.persistence == "memory://"
    assert config.auth.provider == "mock"


def test_relative_paths_of_the_file_are_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths in the file start where the file is, wherever the process was started."""
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (folder / "proof.pem").touch()
    text = (
        with_spec(
            """
        persistence: sqlite:///state.db
        auth: {tenant_id: t, audience: a, client_id: app, certificate: ./proof.pem}
        """
        )
        + "    \n"
    )
    config = read(folder, text)
    assert config.persistence == f"sqlite:///{folder}/state.db"
    assert config.auth.entra is not None
    assert config.auth.entra.certificate == folder / "proof.pem"
    assert config.source == folder / "agent.yaml"
    servers = "mcp_servers: [{name: a, command: ./run}, {name: b, command: npx}, {name: c, command: /bin/x}]"
    programs = read(folder, with_agent(servers)).agent.mcp_servers
    assert [program.command for program in programs] == [str(folder / "run"), "npx", "/bin/x"]
    assert {program.cwd for program in programs} == {str(folder)}


def test_relative_paths_of_variables_are_relative_to_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths in variables start in the working directory."""
    folder, here = tmp_path / "folder", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    for name in ("catalogue.json", "remote.yaml", "script.yaml", "proof.pem"):
        (here / name).touch()
    config = read(
        folder,
        TA_PERSISTENCE="sqlite:///state.db",
        TA_PLUGIN_CATALOG_FILE="catalogue.json",
        TA_REMOTE_PLUGIN_PATH="./remote.yaml",
        TA_OFFLINE_SCRIPT="script.yaml",
        TA_ENTRA_CLIENT_ID="app",
        TA_ENTRA_CERTIFICATE="proof.pem",
        TA_ENTRA_TENANT_ID="t",
        TA_ENTRA_AUDIENCE="a",
    )
    assert config.persistence == f"sqlite:///{here}/state.db"
    assert config.plugin_catalog_file == here / "catalogue.json"
    assert config.remote_plugin_path == here / "remote.yaml"
    assert config.offline_script == here / "script.yaml"
    assert config.auth.entra is not None
    assert config.auth.entra.certificate == here / "proof.pem"


def test_a_certificate_that_is_not_there(tmp_path: Path) -> None:
    """A certificate's file is looked for at the start, not at the first call that needs it."""
    [complaint] = complaints(tmp_path, with_spec("auth: {client_id: app, certificate: proof.pem}"))
    assert complaint.startswith("8: spec.auth.certificate: there is no such file")
    text = with_spec("auth: {provider: entra, options: {client_id: app, certificate: proof.pem}}")
    assert f"8: spec.auth.options.certificate: there is no such file: {tmp_path / 'proof.pem'}" in (
        complaints(tmp_path, text)
    )


def test_a_certificate_among_the_options_is_beside_the_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the service is started, and also where a variable chooses Entra."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "proof.pem").touch()
    text = with_spec("auth: {options: {client_id: app, tenant_id: t, audience: a, certificate: proof.pem}}")
    entra = read(tmp_path, text, TA_AUTH="entra").auth.entra
    assert entra is not None
    assert entra.certificate == tmp_path / "proof.pem"
    unset: list[ConfigProblem] = []
    (tmp_path / "agent.yaml").write_text(text.replace("proof.pem", "'${PROOF}'"))
    load(tmp_path / "agent.yaml", env={"TA_AUTH": "entra"}, dotenv=None, unset=unset)
    assert [each.key for each in unset] == ["spec.auth.options.certificate"]


def test_telemetry_is_off_until_there_is_an_endpoint(tmp_path: Path) -> None:
    """An endpoint switches telemetry on; the switch alone does nothing but warn. covers: APP-5"""
    endpoint = {"TA_OTEL_ENDPOINT": "http://127.0.0.1:4318"}
    assert read(tmp_path).telemetry.traced is False
    assert read(tmp_path, **endpoint).telemetry.traced is True
    assert read(tmp_path, TA_TELEMETRY_ENABLED="false", **endpoint).telemetry.traced is False
    config = read(tmp_path, TA_TELEMETRY_ENABLED="true", TA_LOG_LEVEL="debug")
    assert config.telemetry.traced is False
    assert config.telemetry.log_level == "DEBUG"
    assert config.telemetry.log_content is False
    assert any("TA_OTEL_ENDPOINT" in warning for warning in config.warnings)


@pytest.mark.parametrize(("port", "warned"), [("", True), ("9464", False)])
def test_an_address_of_the_metrics_without_a_port_is_a_warning(
    tmp_path: Path, port: str, warned: bool
) -> None:
    """Prometheus would find nothing there, and nothing else would say why."""
    config = read(tmp_path, TA_METRICS_HOST="0.0.0.0", TA_METRICS_PORT=port)
    assert any("TA_METRICS_PORT" in warning for warning in config.warnings) == warned


@pytest.mark.parametrize(("port", "warned"), [(4317, True), (4318, False)])
def test_a_collectors_port_for_grpc_is_a_warning(tmp_path: Path, port: int, warned: bool) -> None:
    """Export is over HTTP, so nothing would arrive there."""
    config = read(tmp_path, TA_OTEL_ENDPOINT=f"http://collector:{port}")
    assert any("port for HTTP, usually 4318" in warning for warning in config.warnings) == warned


def test_headers_are_lower_case(tmp_path: Path) -> None:
    """Names of headers are compared without their case."""
    assert read(tmp_path, TA_FORWARD_HEADERS="X-Team  accept-language").forward_headers == (
        "x-team",
        "accept-language",
    )


def test_variables_are_listed() -> None:
    """The list of variables has the contract's."""
    assert {
        *("TA_SERVICE_CONFIG", "TA_API_KEY", "TA_BASE_URL", "TA_PERSISTENCE", "TA_AUTH", "TA_CONCURRENCY"),
        *("TA_ON_DISCONNECT", "TA_LIMITS__MAX_TOOL_ROUNDS", "TA_PLUGIN_MODULE", "TA_PLUGIN_CATALOG_FILE"),
        *("TA_REMOTE_PLUGIN_PATH", "TA_ENCRYPTION_KEY", "TA_AUDIT_KEY", "TA_TELEMETRY_ENABLED"),
        *("TA_OTEL_ENDPOINT", "TA_LOG_LEVEL", "TA_LOG_CONTENT", "TA_ENTRA_TENANT_ID", "TA_ENTRA_AUDIENCE"),
        *("TA_ENTRA_SCOPES", "TA_ENTRA_ALLOWED_TENANTS", "TA_ENTRA_ALLOWED_CLIENTS"),
        *("TA_ENTRA_APPROVER_ROLE", "TA_ENTRA_AUDITOR_ROLE", "TA_ENTRA_ALLOW_APP_TOKENS"),
        *("TA_ENTRA_APP_ROLES", "TA_ENTRA_AUTHORITY", "TA_THREAD__KIND", "TA_CORS_ORIGINS"),
    } <= set(variables())
