"""Files and variables of the earlier platform: what is read, what is refused by name, what is translated."""

from pathlib import Path

import pytest
from earlier_agents import AGENT, CHAT, SEQUENTIAL, TYPES, write
from typer.testing import CliRunner

from tealagents.cli.main import command_line
from tealagents.config import ConfigError, ConfigProblem, ServiceConfig, load, summary
from tealagents.config.skagents import EarlierConfig

OURS = """
apiVersion: tealagents/v1alpha1
name: Ours
version: 0.1
spec:
  agent:
    model: gpt-4o
    system_prompt: You help.
"""

#: what the file of types must not give a config
ODD = """
TYPES = 1
import collections.abc
from pydantic import RootModel
class Odd(BaseModel):
    does: collections.abc.Callable
class Names(RootModel[list[str]]): ...
class Nested(RootModel[list["Nested"]]): ...
"""


def read(folder: Path, text: str, **env: str) -> ServiceConfig:
    return load(write(folder, text), env=env, dotenv=None)


def complaints(folder: Path, text: str, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        read(folder, text, **env)
    return [f"{each.key}: {each.message}" for each in refused.value.problems]


@pytest.mark.parametrize(
    ("text", "version", "prefix", "given"),
    [
        (CHAT, "skagents/v1", "/WeatherBot/0.1", "BaseInputWithUserContext"),
        (CHAT.replace("skagents/v1", "skagents/v1beta"), "skagents/v1", "/WeatherBot/0.1", None),
        (AGENT, "skagents/v2alpha1", "/Painter/0.2", "BaseMultiModalInputWithUserContext"),
        (SEQUENTIAL, "skagents/v1", "/Reporter/1.0", "ReportInput"),
    ],
)
def test_every_shape_is_read(tmp_path: Path, text: str, version: str, prefix: str, given: str | None) -> None:
    """Both versions and all kinds; another name behind the slash means the first version."""
    config = read(tmp_path, text)
    assert isinstance(config, EarlierConfig)
    assert (config.api_version, config.prefix) == (version, prefix)
    assert given in (None, config.input_type)
    assert [task.name for task in config.tasks] in ([], ["look", "outline", "check", "write"])


@pytest.mark.parametrize(
    ("text", "version"), [(CHAT, "skagents/v1"), (AGENT, "skagents/v2alpha1"), (OURS, "tealagents/v1alpha1")]
)
def test_the_version_may_come_from_a_variable(tmp_path: Path, text: str, version: str) -> None:
    """Which is an error if it is not set, also for `check`: how the file is read depends on it."""
    text = text.replace(version, "${VERSION}")
    assert read(tmp_path, text, VERSION=version).api_version == version
    file = write(tmp_path, text)
    for unset in (None, list[ConfigProblem]()):
        with pytest.raises(ConfigError) as refused:
            load(file, env={}, dotenv=None, unset=unset)
        [problem] = refused.value.problems
        assert "apiVersion: the variable VERSION is not set" in str(problem)
    assert (
        "'${OTHER}' is not known"
        in complaints(tmp_path, OURS.replace(OURS.split()[1], "${VERSION}"), VERSION="${OTHER}", OTHER="x")[0]
    )


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (CHAT, "kind: Chat"),
        (AGENT, "kind: Agent"),
        (SEQUENTIAL, "kind: Sequential"),
        (SEQUENTIAL, "task_no: 2"),
        (SEQUENTIAL, "agent: writer"),
        (SEQUENTIAL, "agent: reader"),
        (SEQUENTIAL, "name: reader"),
        (SEQUENTIAL, "name: writer"),
    ],
)
def test_what_a_variable_that_is_not_set_says_is_left_open(tmp_path: Path, text: str, written: str) -> None:
    """A kind, a number, an agent's name: something that fits the rest of the file stands in for it."""
    text = text.replace(written, f"{written.partition(':')[0]}: ${{OPEN}}")
    unset: list[ConfigProblem] = []
    config = load(write(tmp_path, text), env={}, dotenv=None, unset=unset)
    assert config.kind == ("Agent" if text is AGENT else read(tmp_path, text, OPEN=written.split()[1]).kind)
    assert {"OPEN is not set" in str(each) for each in unset} == {True}
    wrong = text.replace("model: gpt-4o\n", "modle: gpt-4o\n")
    with pytest.raises(ConfigError, match="modle"):
        load(write(tmp_path, wrong), env={}, dotenv=None, unset=[])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kind: AssistantOrchestrator\napiVersion: skagents/v1", "kind: is a program of its own"),
        (CHAT + "  persistence: redis://x", "spec.persistence: skagents/v1 keeps no state; remove this"),
        (AGENT + "  thread: {kind: remote}", "spec.thread: skagents/v2alpha1 keeps no state"),
        (
            CHAT.replace("  agent:\n", "").replace("    ", "  "),
            "spec.agent: is missing; write 'agent:' and indent",
        ),
        (CHAT.replace("input_type", "input_tpye"), "input_type: is missing; is 'input_tpye' a misspelling"),
        (CHAT.replace("kind: Chat", "kind: Chats"), "kind: must be 'Sequential' or 'Chat'"),
        (SEQUENTIAL.replace("agent: writer", "agent: writre"), "spec.tasks[0].agent: there is no such agent"),
        (SEQUENTIAL.replace("task_no: 2", "task_no: two"), "spec.tasks[0].task_no: must be a number"),
        (SEQUENTIAL.partition("  tasks:")[0], "spec.tasks: is missing"),
        (SEQUENTIAL.partition("  tasks:")[0] + "  tasks: []\n", "spec.tasks: must not be empty"),
    ],
)
def test_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    """What cannot be served says so at its key, with what to do."""
    assert complaints(tmp_path, text)[0].startswith(complaint)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SEQUENTIAL.replace("kind: Sequential", "kind: Parallel"), ["kind: must be 'Sequential' or 'Chat'"]),
        (SEQUENTIAL.replace("kind: Sequential", "kind: [Chat]"), ["kind: must be 'Sequential' or 'Chat'"]),
        (SEQUENTIAL.replace("kind: Sequential\n", ""), ["kind: is missing"]),
        (
            SEQUENTIAL.replace("kind: Sequential", "kind: Parallel").replace("input_type", "input"),
            ["input_type: is missing", "kind: must be 'Sequential' or 'Chat'"],
        ),
    ],
)
def test_a_wrong_kind_is_one_problem(tmp_path: Path, text: str, found: list[str]) -> None:
    """What `spec` has to hold depends on it, so nothing is said of that."""
    assert complaints(tmp_path, text) == found


@pytest.mark.parametrize(
    ("text", "before", "place"),
    [
        (CHAT, "You are a helpful assistant.", "spec.agent"),
        (SEQUENTIAL, "You read.", "spec.agents[0]"),
        (SEQUENTIAL, "You write.", "spec.agents[1]"),
    ],
)
def test_remote_plugins_without_their_file_are_found_at_their_agent(
    tmp_path: Path, text: str, before: str, place: str
) -> None:
    """Whichever of a sequence's agents names them."""
    indent = " " * (6 if text is SEQUENTIAL else 4)
    found = complaints(tmp_path, text.replace(before, f"{before}\n{indent}remote_plugins: [Library]"))
    assert found == [f"{place}.remote_plugins: needs the file that describes them; set TA_REMOTE_PLUGIN_PATH"]


def test_the_summary_names_each_agent_of_a_sequence(tmp_path: Path) -> None:
    """With its model and its tools."""
    text = SEQUENTIAL.replace("You write.", "You write.\n      plugins: [Shell]")
    lines = [line for line in summary(read(tmp_path, text)) if line[0] in ("model", "tools", "plugins")]
    assert lines == [
        ("model", "reader: gpt-4o, by openai-chat"),
        ("model", "writer: gpt-4o-mini, by openai-chat"),
        ("tools", "reader: none"),
        ("plugins", "writer: Shell (from installed packages)"),
    ]


def test_a_mistake_in_an_agent_is_one_problem(tmp_path: Path) -> None:
    """And not a second one, that there are no agents."""
    text = SEQUENTIAL.replace("system_prompt:", "prompt:")
    found = complaints(tmp_path, text)
    keys = [each.partition(":")[0] for each in found]
    assert keys == ["spec.agents[0].system_prompt", "spec.agents[1].system_prompt"], found


def test_variables_of_the_earlier_platform(tmp_path: Path) -> None:
    """A2A is refused; other variables that change meaning are named, with what takes their place."""
    assert complaints(tmp_path, CHAT, TA_A2A_ENABLED="true")[0].startswith(
        "TA_A2A_ENABLED: skagents/v1 is not"
    )
    config = read(
        tmp_path,
        CHAT,
        TA_A2A_ENABLED="false",
        TA_STATE_MANAGEMENT="redis",
        TA_PERSISTENCE="sqlite:///state.db",
        TA_CUSTOM_CHAT_COMPLETION_FACTORY_MODULE="x.py",
        TA_STRUCTURED_OUTPUT_TRANSFORMER_MODEL="gpt-4o",
        TA_AGENT_BASE_URL="http://x",
        TA_ENV_STORE='{"KEY": "value"}',
        TA_OTEL_ENDPOINT="http://collector:4317",
    )
    reported = "\n".join(config.warnings)
    for name, word in {
        "TA_STATE_MANAGEMENT": "keeps no state",
        "TA_PERSISTENCE": "keeps no state",
        "TA_CUSTOM_CHAT_COMPLETION_FACTORY_MODULE": "spec.agent.client",
        "TA_STRUCTURED_OUTPUT_TRANSFORMER_MODEL": "the agent's own model",
        "TA_AGENT_BASE_URL": "TA_PUBLIC_URL",
        "TA_ENV_STORE": "in the environment or in .env",
        "TA_OTEL_ENDPOINT": "usually 4318",
    }.items():
        assert any(name in line and word in line for line in config.warnings), reported


def test_state_in_redis_is_translated(tmp_path: Path) -> None:
    """Their choice of a store becomes ours, with the line that replaces it and no password in it."""
    redis = {
        "TA_STATE_MANAGEMENT": "redis",
        "TA_REDIS_HOST": "cache",
        "TA_REDIS_PORT": "6380",
        "TA_REDIS_DB": "2",
        "TA_REDIS_SSL": "true",
        "TA_REDIS_PWD": "p@ss",
        "TA_REDIS_TTL": "60",
    }
    config = read(tmp_path, OURS, **redis)
    assert config.persistence == "rediss://:p%40ss@cache:6380/2"
    assert any("TA_PERSISTENCE=rediss://" in line for line in config.warnings)
    assert any(line.startswith("TA_REDIS_TTL: has no effect") for line in config.warnings)
    assert "p@ss" not in "".join(config.warnings)
    assert "p%40ss" not in "".join(config.warnings)
    assert read(tmp_path, OURS, TA_STATE_MANAGEMENT="in-memory").persistence == "memory://"
    chosen = read(tmp_path, OURS + "  persistence: sqlite:///state.db", **redis)
    assert chosen.persistence.startswith("sqlite://")
    assert any("has no effect beside spec.persistence" in line for line in chosen.warnings)


def test_redis_is_called_over_tls_unless_it_is_turned_off(tmp_path: Path) -> None:
    """As there: an environment that leaves it out must not begin to send its password in the clear."""
    redis = {"TA_STATE_MANAGEMENT": "redis", "TA_REDIS_HOST": "cache"}
    assert read(tmp_path, OURS, **redis).persistence == "rediss://cache:6379/0"
    for said, scheme in {"false": "redis", "0": "redis", " TRUE ": "rediss", "required": "rediss"}.items():
        assert read(tmp_path, OURS, **redis, TA_REDIS_SSL=said).persistence == f"{scheme}://cache:6379/0"


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_redis_at_an_ipv6_address(tmp_path: Path, host: str) -> None:
    """It is in brackets in a URL, whether or not it is in the variable."""
    redis = {"TA_STATE_MANAGEMENT": "redis", "TA_REDIS_HOST": host}
    assert read(tmp_path, OURS, **redis).persistence == "rediss://[::1]:6379/0"


@pytest.mark.parametrize(("name", "said"), [("PORT", "http"), ("PORT", "70000"), ("DB", "-1"), ("DB", "²")])
def test_a_wrong_number_of_redis_is_reported_under_its_name(tmp_path: Path, name: str, said: str) -> None:
    """And not under that of the variable that replaces it."""
    [complaint] = complaints(tmp_path, OURS, TA_STATE_MANAGEMENT="redis", **{f"TA_REDIS_{name}": said})
    assert complaint.startswith(f"TA_REDIS_{name}: must be a whole number")


def test_gateway_is_for_earlier_files_only(tmp_path: Path) -> None:
    """Elsewhere it is refused; where it is served there is a warning at start."""
    assert complaints(tmp_path, OURS, TA_AUTH="gateway")[0].startswith("TA_AUTH: gateway is for skagents")
    bare = read(tmp_path, CHAT, TA_AUTH="gateway")
    assert any("set TA_GATEWAY_SECRET" in line for line in bare.warnings)
    kept = read(tmp_path, CHAT, TA_AUTH="gateway", TA_GATEWAY_SECRET="s3cret")
    assert not any("set TA_GATEWAY_SECRET" in line for line in kept.warnings)
    assert "s3cret" not in f"{kept}{kept.warnings}"
    assert any("TA_GATEWAY_SECRET" in line for line in read(tmp_path, OURS, TA_GATEWAY_SECRET="x").warnings)


def test_a_gateways_secret_is_one_that_a_header_can_hold(tmp_path: Path) -> None:
    """Gateways would send any other in an encoding of their own, and all their calls be refused."""
    (problem,) = complaints(tmp_path, CHAT, TA_AUTH="gateway", TA_GATEWAY_SECRET="geheimnisträger")
    assert problem.startswith("TA_GATEWAY_SECRET: cannot be sent in a header")
    assert "geheimnis" not in problem


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("topic|upper", "topic.__class__"),
            "spec.tasks[0].instructions: the instructions of",
        ),
        (("input_type: ReportInput", "input_type: Nothing"), "7: input_type: there is no type Nothing"),
        (("output_type: Report", "output_type: Nothing"), "8: output_type: there is no type Nothing"),
        (("output_type: Report", "output_type: TYPES"), "there is no type TYPES"),
        (("output_type: Report", "output_type: Odd"), "the output_type Odd has no JSON schema: Cannot"),
        (("input_type: ReportInput", "input_type: Odd"), "the input_type Odd has no JSON schema: Cannot"),
        (("input_type: ReportInput", "input_type: Names"), "the input_type Names is no object"),
        (("input_type: ReportInput", "input_type: Nested"), "the input_type Nested is no object"),
        (
            ("model: gpt-4o\n", "model: gpt-4o\n      plugins: [Shell]\n"),
            "spec.agents[0].plugins: The plugins",
        ),
    ],
)
def test_check_finds_what_is_wrong(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    """Templates, types and tools are made by `check`, which runs nothing."""
    file = write(tmp_path, SEQUENTIAL.replace(*change), custom_types=TYPES + ODD)
    env = {"TA_API_KEY": "x", "COLUMNS": "400"}
    ended = CliRunner().invoke(command_line("check", "schema"), ["check", str(file)], env=env)
    assert ended.exit_code == 2
    assert said in ended.output


@pytest.mark.parametrize(
    ("kind", "said"),
    [("BaseEmbeddedImage", "has no chat_history"), ("Report", "has no chat_history"), ("Any", "")],
)
def test_a_chat_needs_a_type_with_a_history(tmp_path: Path, kind: str, said: str) -> None:
    """Else no call could be answered."""
    text = CHAT.replace("BaseInputWithUserContext", kind)
    open_type = "\nclass Any(BaseModel):\n    model_config = {'extra': 'allow'}\n"
    file = write(tmp_path, text, custom_types=TYPES + open_type)
    env = {"TA_API_KEY": "x", "COLUMNS": "400"}
    ended = CliRunner().invoke(command_line("check", "schema"), ["check", str(file)], env=env)
    assert (ended.exit_code == 0) == (not said), ended.output
    assert said in ended.output


def test_check_finds_what_is_wrong_with_each_type(tmp_path: Path) -> None:
    """One that is missing hides no other, and a file that cannot be loaded is said once."""
    wrong = SEQUENTIAL.replace("ReportInput", "Nothing").replace("output_type: Report", "output_type: Nobody")
    env = {"TA_API_KEY": "x", "COLUMNS": "400"}
    for types, said in ((TYPES, ["input_type: there", "output_type: there"]), ("x x", ["input_type: "])):
        file = write(tmp_path, wrong, custom_types=types)
        ended = CliRunner().invoke(command_line("check", "schema"), ["check", str(file)], env=env)
        lines = [line for line in ended.output.splitlines() if "put_type: " in line]
        assert len(lines) == len(said)
        assert all(each in line for each, line in zip(said, lines, strict=True))


def test_check_shows_what_would_be_served(tmp_path: Path) -> None:
    """Nothing of what is kept, for nothing is."""
    file = write(tmp_path, SEQUENTIAL, custom_types=TYPES)
    env = {"TA_API_KEY": "x", "COLUMNS": "400"}
    ended = CliRunner().invoke(command_line("check", "schema"), ["check", str(file)], env=env)
    assert ended.exit_code == 0, ended.output
    assert "/Reporter/1.0 (Sequential, skagents/v1)" in ended.output
    assert "none: each call is independent" in ended.output


def test_check_executes_the_file_of_plugins_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever number of agents have its plugins: it may register something that there is once."""
    plugins = "import os\nos.write(2, b'executed')\nfrom tealagents.plugins import Plugin, tool\n"
    plugins += 'class Shell(Plugin):\n    @tool\n    def run(self) -> str:\n        "Run it."\n'
    text = SEQUENTIAL.replace("\n      system_prompt", "\n      plugins: [Shell]\n      system_prompt")
    assert text.count("[Shell]") == 2
    checked(write(tmp_path, text, custom_types=TYPES, custom_plugins=plugins))
    assert capfd.readouterr().err.count("executed") == 1


def checked(file: Path) -> str:
    """What `check` prints of a file in which nothing is wrong."""
    env = {"TA_API_KEY": "x", "COLUMNS": "400"}
    ended = CliRunner().invoke(command_line("check", "schema"), ["check", str(file)], env=env)
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_check_warns_of_names_in_templates_that_nothing_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They have no value: misspelt fields, and results of tasks that come later or nowhere."""
    wrong = SEQUENTIAL.replace("picture of {{ topic }} by", "picture of {{ topik }} after {{ _outline }} by")
    file = write(tmp_path, wrong.replace("Check {{ _outline }}", "Check {{ _outlin }}"), custom_types=TYPES)
    checked(file)
    no = "is neither a field of ReportInput nor the result of an earlier task, and has no value"
    assert caplog.messages == [
        f"{file}:28: spec.tasks[1].instructions: _outline {no}",
        f"{file}:28: spec.tasks[1].instructions: topik {no}; did you mean 'topic'?",
        f"{file}:33: spec.tasks[2].instructions: _outlin {no}; did you mean '_outline'?",
    ]


@pytest.mark.parametrize(
    ("template", "types"),
    [
        ("{% if tone is defined %}{{ tone }}{% endif %}{{ mood|default('plain') }}", TYPES),
        ("{% set n = 1 %}{% for p in points %}{{ loop.index + n }}{{ range(n) }}{% endfor %}", TYPES),
        (
            "{{ tone }}",
            TYPES.replace("    topic: str", "    model_config = {'extra': 'allow'}\n    topic: str"),
        ),
        (
            "{{ tone }}",
            "from pydantic import model_serializer\n"
            + TYPES.replace(
                "    topic: str",
                "    @model_serializer\n    def written(self): return {'tone': 'plain'}\n    topic: str",
            ),
        ),
    ],
)
def test_check_warns_of_no_name_that_a_template_may_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, template: str, types: str
) -> None:
    """It says what to do without it, or sets it, or any field may be sent, or its type writes itself."""
    text = SEQUENTIAL.replace("Look at the picture of {{ topic }} by {{ author.name }}.", f'"{template}"')
    checked(write(tmp_path, text, custom_types=types))
    assert caplog.messages == []


def test_check_warns_of_agents_and_tasks_that_share_a_name(tmp_path: Path) -> None:
    """Which of two is meant by it is said."""
    text = SEQUENTIAL.replace("- name: writer", "- name: reader").replace("agent: writer", "agent: reader")
    file = write(tmp_path, text.replace("- name: check", "- name: outline"), custom_types=TYPES)
    said = checked(file)
    for problem in (
        f"{file}:15: spec.agents[1].name: agents[0] has this name, too, and is the one that is used",
        f"{file}:30: spec.tasks[2].name: tasks[0] has this name, too: _outline is the result of the one that",
    ):
        assert problem in said
