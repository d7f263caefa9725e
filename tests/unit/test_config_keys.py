"""The keys of the file: what is required, what is refused, and how a mistake is reported."""

from pathlib import Path

import pytest
from config_files import SMALLEST, complaints, problems, read, with_agent, with_spec

from tealagents.config import ConfigProblem, load
from tealagents.limits import Limits

FROM_EARLIER_FRAMEWORK = """\
apiVersion: skagents/v2alpha1
kind: Agent
name: LibraryAgent
version: 0.1
description: >
  Knows the library.
metadata:
  description: >
    Finds books.
  documentation_url: https://library.example.com
  skills:
    - id: find
      name: Find a book
      description: Finds a book by what is remembered of it
      tags: [books, search]
      examples: [A blue book about whales]
      inputModes: [text]
      output_modes: [text]
spec:
  agent:
    name: default
    role: Librarian
    model: gpt-4o-mini
    system_prompt: >
      You are a librarian
      and brief.
    plugins: [Shelves]
    max_history: 4
"""


def test_defaults_are_the_contracts(tmp_path: Path) -> None:
    """What is omitted has the documented default."""
    config = read(tmp_path)
    assert config.persistence == "memory://"
    assert (config.concurrency, config.on_disconnect, config.cors_origins) == ("reject", "continue", ())
    assert (config.thread.kind, config.thread.reducers, config.thread.context_providers) == ("local", (), ())
    assert config.limits.model_dump() == {
        "request_timeout_seconds": 600,
        "model_timeout_seconds": 300,
        "first_piece_timeout_seconds": 60,
        "piece_timeout_seconds": 60,
        "max_tool_rounds": 40,
        "tool_timeout_seconds": 120,
        "max_body_bytes": 20000000,
        "max_items": 100,
        "max_concurrent_requests": 1000,
        "max_requests_per_user": 100,
        "max_queued_requests": 1000,
        "keepalive_seconds": 15,
        "idle_connection_seconds": 75,
        "drain_seconds": 20,
        "approval_expiry_seconds": 86400,
        "lease_seconds": 15,
    }


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """One run names every mistake of the file with file, line, key and, for a slip, what was meant."""
    text = """\
apiVersion: tealagents/v1alpha1
kind: Agnet
name: Wiki
version: 1
spec:
  agent:
    modle: gpt
    system_prompt: [no]
  concurrency: rejct
  limits:
    max_tool_round: 3
    max_items: "7"
    lease_seconds: 0
    drain_seconds: true
    keepalive_seconds: .inf
    max_queued_requests: 1.5
  thread: local
  cors_origins: https://a.example.com/path
  colour: blue
"""
    assert complaints(tmp_path, text) == [
        "2: kind: must be 'Agent' or 'Chat'; did you mean 'Agent'?",
        "6: spec.agent.model: is missing; is 'modle' a misspelling of it?",
        "8: spec.agent.system_prompt: must be text, not a list",
        "9: spec.concurrency: must be 'reject', 'enqueue', 'interrupt' or 'rollback'; did you mean 'reject'?",
        "11: spec.limits.max_tool_round: unknown key; did you mean 'max_tool_rounds'?",
        "12: spec.limits.max_items: must be a number, not text",
        "13: spec.limits.lease_seconds: must be at least 0.1",
        "14: spec.limits.drain_seconds: must be a number, not true or false",
        "15: spec.limits.keepalive_seconds: must be a finite number",
        "16: spec.limits.max_queued_requests: must be a whole number",
        "17: spec.thread: must be a mapping (keys and values), not text",
        "18: spec.cors_origins[0]: must be an origin such as https://app.example.com, without a path, or *",
    ]


def test_a_queue_that_a_task_could_not_hold_is_a_mistake(tmp_path: Path) -> None:
    """At the start, rather than a message refused below the limit that was set."""
    [complaint] = complaints(tmp_path, with_spec("limits: {max_queued_requests: 2001}"))
    assert "max_queued_requests: must be at most 2000: the task" in complaint
    assert read(tmp_path, with_spec("limits: {max_queued_requests: 2000}")).limits.max_queued_requests == 2000


def test_a_bound_is_written_out(tmp_path: Path) -> None:
    """However large it is."""
    [complaint] = complaints(tmp_path, with_spec("limits: {max_items: 99999999999}"))
    assert complaint.endswith("spec.limits.max_items: must be at most 2147483647")


def test_a_problem_is_a_line(tmp_path: Path) -> None:
    """A printed problem begins with file, line and key."""
    [problem] = problems(tmp_path, with_spec("limits: {max_item: 1}"))
    assert (problem.file, problem.line, problem.key) == (
        str(tmp_path / "agent.yaml"),
        8,
        "spec.limits.max_item",
    )
    assert str(problem).startswith(f"{tmp_path / 'agent.yaml'}:8: spec.limits.max_item: unknown key")


@pytest.mark.parametrize("key", ["apiVersion", "name", "version", "spec"])
def test_missing_keys_at_the_top(tmp_path: Path, key: str) -> None:
    """A missing key is named, even if it is all that there is to say."""
    lines = SMALLEST.splitlines(keepends=True)
    keep = [line for line in lines if not line.startswith(key)]
    text = "".join(keep[:3]) if key == "spec" else "".join(keep)
    assert complaints(tmp_path, text) == [f"1: {key}: is missing"]


def test_unknown_api_version_lists_the_known(tmp_path: Path) -> None:
    """The start fails on another version, and the versions there are are named. covers: APP-1"""
    for version in ("tealagents/v2", "agents/v1", "1"):
        [complaint] = complaints(tmp_path, SMALLEST.replace("tealagents/v1alpha1", version))
        assert complaint.startswith(f"1: apiVersion: '{version}' is not known; known: tealagents/v1alpha1")


def test_keys_of_a_missing_section_are_to_be_indented(tmp_path: Path) -> None:
    """`spec.model` without `spec.agent` is one level too high, as is `agent` without `spec`."""
    text = SMALLEST.replace("  agent:\n", "").replace("    ", "  ")
    assert complaints(tmp_path, text)[0] == (
        "4: spec.agent: is missing; write 'agent:' and indent below it: model, system_prompt"
    )
    text = SMALLEST.replace("spec:\n", "").replace("  agent:", "agent:")
    assert complaints(tmp_path, text)[0] == "1: spec: is missing; write 'spec:' and indent below it: agent"


def test_misspelt_api_version_is_recognized(tmp_path: Path) -> None:
    """A slip in the version gets a suggestion."""
    [complaint] = complaints(tmp_path, SMALLEST.replace("v1alpha1", "v1alhpa1"))
    assert complaint.endswith("did you mean 'tealagents/v1alpha1'?")


def test_earlier_file_with_one_line_changed(tmp_path: Path) -> None:
    """A v2alpha1 file is one of ours when its version says so. covers: APP-1, APP-3"""
    config = read(tmp_path, FROM_EARLIER_FRAMEWORK.replace("skagents/v2alpha1", "tealagents/v1alpha1"))
    assert (config.name, config.version, config.kind) == ("LibraryAgent", "0.1", "Agent")
    assert config.description == "Knows the library.\n"
    assert config.metadata.skills[0].input_modes == ("text",)
    assert config.metadata.skills[0].output_modes == ("text",)
    assert config.agent.system_prompt == "You are a librarian and brief.\n"
    assert config.agent.plugins == ("Shelves",)


def test_unknown_keys_of_older_places_are_one_warning(tmp_path: Path) -> None:
    """Keys of older files are ignored with one warning that lists them and hints at slips. covers: APP-3"""
    text = "input_type: BaseInput\n" + with_agent(
        "temprature: 0.5\nmcp_servers: [{name: a, command: b, colour: c}]"
    )
    config = read(tmp_path, text)
    [warning] = [warning for warning in config.warnings if "unknown keys" in warning]
    assert warning == (
        f"{tmp_path / 'agent.yaml'}: unknown keys are ignored: input_type (line 1), "
        "spec.agent.temprature (line 9; did you mean 'temperature'?), "
        "spec.agent.mcp_servers[0].colour (line 10)"
    )


@pytest.mark.parametrize("section", ["auth: {colour: 1}", "thread: {colour: 1}", "limits: {colour: 1}"])
def test_unknown_keys_of_new_sections_are_errors(tmp_path: Path, section: str) -> None:
    """In sections that no older file has, an unknown key is a mistake."""
    [complaint] = complaints(tmp_path, with_spec(section))
    assert "colour: unknown key; the keys here are" in complaint


@pytest.mark.parametrize("kind", ["Agent", "Chat"])
def test_kinds(tmp_path: Path, kind: str) -> None:
    """Both kinds are served, and the kind is kept."""
    assert read(tmp_path, f"kind: {kind}\n{SMALLEST}").kind == kind


def test_fractions_are_fine(tmp_path: Path) -> None:
    """Limits in seconds take fractions, as tests and impatient people need them."""
    limits = read(
        tmp_path, with_spec("limits: {lease_seconds: 0.5, keepalive_seconds: 0.2, drain_seconds: 0}")
    ).limits
    assert (limits.lease_seconds, limits.keepalive_seconds, limits.drain_seconds) == (0.5, 0.2, 0)


@pytest.mark.parametrize("name", Limits.model_fields)
def test_limits_refuse_nonsense(tmp_path: Path, name: str) -> None:
    """No limit is negative, huge beyond reason, text, or nothing that can be counted."""
    for value in ("-1", "1e30", "text", "[1]", "true", ".nan"):
        [complaint] = complaints(tmp_path, with_spec(f"limits: {{{name}: {value}}}"))
        assert complaint.startswith(f"8: spec.limits.{name}: must be")


def test_zero_temperature_is_kept(tmp_path: Path) -> None:
    """0 is a temperature, not the absence of one."""
    assert read(tmp_path, with_agent("temperature: 0")).agent.temperature == 0


def test_mcp_servers_need_what_their_transport_needs(tmp_path: Path) -> None:
    """The error says what each transport lacks; a url alone makes it http."""
    text = """
        mcp_servers:
          - {name: a, transport: stdio}
          - {name: b, transport: http, command: run}
          - {name: c, url: "ftp://x"}
          - {name: d, url: "https://d.example.com/mcp"}
          - {name: e}
          - {name: f, command: run, on_behalf_of_scopes: x}
    """
    assert complaints(tmp_path, with_agent(text)) == [
        "9: spec.agent.mcp_servers[0]: transport stdio needs 'command'",
        "10: spec.agent.mcp_servers[1]: transport http needs 'url'",
        "11: spec.agent.mcp_servers[2].url: must be an http:// or https:// URL",
        "13: spec.agent.mcp_servers[4]: give either 'command' (stdio) or 'url' (http), "
        "or say which in 'transport'",
        "14: spec.agent.mcp_servers[5]: on_behalf_of_scopes needs transport http: a program has no caller",
    ]
    [server] = read(
        tmp_path, with_agent('mcp_servers: [{name: d, url: "https://d.example.com/mcp"}]')
    ).agent.mcp_servers
    assert (server.transport, server.trust_level, server.verify_ssl) == ("http", "untrusted", True)


def test_headers_that_cannot_be_sent_are_found_at_start(tmp_path: Path) -> None:
    """And not by the first call; the value may be secret."""
    text = """
        mcp_servers:
          - {name: a, url: "http://a.example.com", headers: {X-Key: "${KEY}"}}
          - {name: b, url: "http://a.example.com", headers: {"X Key": y}}
        """
    assert complaints(tmp_path, with_agent(text), KEY="canary\u201d") == [
        "9: spec.agent.mcp_servers[0].headers: the value of X-Key cannot be sent in a header: it must be one "
        "line of Latin-1 characters, without spaces at either end",
        "10: spec.agent.mcp_servers[1].headers: 'X Key' cannot be the name of a header",
    ]


def test_mcp_servers_have_names_of_their_own(tmp_path: Path) -> None:
    """Two servers of one name could not be distinguished."""
    [complaint] = complaints(
        tmp_path, with_agent("mcp_servers: [{name: a, command: b}, {name: a, command: c}]")
    )
    assert complaint == "8: spec.agent.mcp_servers: two servers are called a"


def test_mcp_servers_are_opened_with_what_the_config_gives(tmp_path: Path) -> None:
    """What the config resolves is what a server of tools is opened with; older keys stay behind."""
    text = """
        mcp_servers:
          - name: a
            url: https://a.example.com/mcp
            scopes: [read, write]
            auth_server: https://login.example.com
            oauth_client_secret: ${S}
            tool_governance_overrides: {drop: {requires_hitl: true}}
            user_id_header: X-User
          - {name: b, command: uvx, args: [x], cwd: below}
    """
    remote, local = read(tmp_path, with_agent(text), S="secret").agent.mcp_servers
    assert (remote.transport, remote.scopes, remote.oauth_client_secret) == (
        "http",
        ("read", "write"),
        "secret",
    )
    assert remote.tool_governance_overrides["drop"].requires_hitl is True
    assert (local.command, local.args, local.cwd) == ("uvx", ("x",), str(tmp_path / "below"))
    assert local.request_timeout is None


def test_governance_of_mcp_tools(tmp_path: Path) -> None:
    """Overrides are kept by tool, and a slip in one is an error."""
    text = """
        mcp_servers:
          - name: a
            command: b
            tool_governance_overrides: {drop: {requires_hitl: true, cost: %s}}
    """
    override = (
        read(tmp_path, with_agent(text % "high")).agent.mcp_servers[0].tool_governance_overrides["drop"]
    )
    assert (override.requires_hitl, override.cost, override.data_sensitivity) == (True, "high", None)
    [complaint] = complaints(tmp_path, with_agent(text % "hihg"))
    assert complaint.startswith(
        "11: spec.agent.mcp_servers[0].tool_governance_overrides.drop.cost: must be 'low'"
    )


def test_reducers_and_providers_by_name_or_with_options(tmp_path: Path) -> None:
    """A component is a name or module:Class, its options beside it or under `options`. covers: THREAD-8"""
    thread = read(
        tmp_path,
        with_spec(
            """
            thread:
              reducers: [{name: message_count, max_messages: 40}, token_budget]
              context_providers:
                - my.memory:Facts
                - {name: preferences, options: {required: true}}
            """
        ),
    ).thread
    assert [(part.name, part.options) for part in thread.reducers + thread.context_providers] == [
        ("message_count", {"max_messages": 40}),
        ("token_budget", {}),
        ("my.memory:Facts", {}),
        ("preferences", {"required": True}),
    ]


@pytest.mark.parametrize(
    ("component", "complaint"),
    [
        ("{max_messages: 4}", "[0].name: is missing"),
        ("[x]", "[0]: must be a name, or a mapping with a name and options, not a list"),
        ("a b", "[0].name: must be a name, or module:Class"),
        ("5", "[0]: must be a name, or a mapping with a name and options, not a number"),
    ],
)
def test_components_that_are_none(tmp_path: Path, component: str, complaint: str) -> None:
    """What is not a component is reported with its place."""
    [text] = complaints(tmp_path, with_spec(f"thread: {{reducers: [{component}]}}"))
    assert text == f"8: spec.thread.reducers{complaint}"


def test_contradictions_with_the_threads_kind(tmp_path: Path) -> None:
    """Whatever contradicts the thread's kind is an error that says so. covers: THREAD-3"""
    remote = "thread:\n  kind: remote\n"
    [reducers] = complaints(tmp_path, with_spec(remote + "  reducers: [message_count]"))
    assert reducers.startswith("10: spec.thread.reducers: thread.kind is remote, so")
    [store] = complaints(tmp_path, with_spec(remote + "  store: false"))
    assert store.startswith("10: spec.thread.store: remove it: thread.kind alone decides")
    [client] = complaints(tmp_path, with_agent("client: openai-chat").rstrip() + "\n  thread: {kind: remote}")
    assert client.startswith("8: spec.agent.client: thread.kind is remote, but openai-chat")
    assert read(tmp_path, with_spec(remote)).thread.kind == "remote"


def test_contradiction_made_by_a_variable(tmp_path: Path) -> None:
    """A variable can contradict the file, too. covers: THREAD-3"""
    [complaint] = complaints(
        tmp_path, with_spec("thread: {reducers: [message_count]}"), TA_THREAD__KIND="remote"
    )
    assert complaint.startswith("8: spec.thread.reducers: thread.kind is remote")


def test_remote_plugins_need_their_description(tmp_path: Path) -> None:
    """OpenAPI plugins without the file that describes them cannot be served."""
    text = with_agent("remote_plugins: [weather]")
    assert complaints(tmp_path, text) == [
        "8: spec.agent.remote_plugins: needs the file that describes them; set TA_REMOTE_PLUGIN_PATH"
    ]
    catalogue = tmp_path / "remote.yaml"
    [complaint] = complaints(tmp_path, text, TA_REMOTE_PLUGIN_PATH=str(catalogue))
    assert complaint.startswith("TA_REMOTE_PLUGIN_PATH: ")
    catalogue.touch()
    assert read(tmp_path, text, TA_REMOTE_PLUGIN_PATH=str(catalogue)).remote_plugin_path == catalogue


def test_code_plugins_beside_the_file(tmp_path: Path) -> None:
    """custom_plugins.py beside the file is the plugin module, unless a variable names another."""
    assert read(tmp_path).plugin_module is None
    (tmp_path / "custom_plugins.py").touch()
    assert read(tmp_path).plugin_module == tmp_path / "custom_plugins.py"
    other = tmp_path / "mine.py"
    other.touch()
    assert read(tmp_path, TA_PLUGIN_MODULE=str(other)).plugin_module == other


def test_a_protocol_is_listed_once(tmp_path: Path) -> None:
    """In the file and in the variable."""
    twice = with_spec("protocols: [a2a, openai, a2a]")
    assert complaints(tmp_path, twice) == ["8: spec.protocols[2]: is listed twice"]
    assert complaints(tmp_path, TA_PROTOCOLS="mcp mcp") == ["TA_PROTOCOLS: is listed twice"]


def test_ids_of_skills_are_unique(tmp_path: Path) -> None:
    """A skill without an id has its name for one."""
    text = SMALLEST + "metadata: {{skills: [{{id: a, name: A}}, {}, {{name: b}}, {{}}, {{}}]}}\n"
    assert read(tmp_path, text.format("{name: A}")).metadata.skills[1].name == "A"
    for same, key in (("{id: a}", "id"), ("{name: a}", "name")):
        [complaint] = complaints(tmp_path, text.format(same))
        assert complaint.startswith(f"8: metadata.skills[1].{key}: another skill has this id")


def test_names_from_variables_that_are_not_set_are_not_the_same(tmp_path: Path) -> None:
    """So that `check` leaves them open."""
    skills = "metadata: {skills: [{id: '${A}'}, {id: '${B}'}]}\n"
    (tmp_path / "agent.yaml").write_text(skills + with_spec("protocols: ['${ONE}', '${TWO}']"))
    unset: list[ConfigProblem] = []
    load(tmp_path / "agent.yaml", env={}, dotenv=None, unset=unset)
    assert len(unset) == 4
