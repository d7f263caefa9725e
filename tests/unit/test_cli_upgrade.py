"""`tealagents upgrade`: earlier files become ours, with their comments."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from earlier_agents import AGENT, CHAT, SEQUENTIAL, TYPES, write
from typer.testing import CliRunner

from tealagents.cli.main import command_line
from tealagents.config import load
from tealagents.testing.forking import Nursery

ADDER = """\
# our adder
apiVersion: skagents/v1   # the version
kind: Sequential
service_name: Adder   # its name
version: 0.10
input_type: Numbers # what comes
spec:
  agents:
    - name: default   # the one
      model: gpt-4o
      # told
      system_prompt: You add, ${NAME}.  # short
      plugins:
        - Sums
  tasks:
    - name: tell
      task_no: 2
      instructions: Tell {{ _add }}.
      agent: default
    # first
    - name: add
      task_no: 1
      instructions: >
        Add {{ number.one }} and {{ two }}.
      agent: default
# the end
"""
UPGRADED = """\
# our adder
apiVersion: tealagents/v1alpha1   # the version
kind: Agent
name: Adder   # its name
version: 0.10
# input_type: Numbers # what comes
spec:
  agent:
      name: default   # the one
      model: gpt-4o
      # told
      system_prompt: | # short
        You add, ${NAME}.

        Do these tasks one after the other, and answer with the result of the last:
        1. add: Add (the user's number.one) and (the user's two).
        2. tell: Tell (the result of add).
      plugins:
        - Sums
#   tasks:
#     - name: tell
#       task_no: 2
#       instructions: Tell {{ _add }}.
#       agent: default
#     # first
#     - name: add
#       task_no: 1
#       instructions: >
#         Add {{ number.one }} and {{ two }}.
#       agent: default
# the end
"""
FLOW = "{name: default, model: gpt-4o, system_prompt: You add.}"
TASK = "name: add, task_no: 1, instructions: Add., agent: default"


def upgrade(*arguments: object) -> tuple[int, str]:
    ended = CliRunner().invoke(command_line("upgrade", "check"), ["upgrade", *map(str, arguments)])
    return ended.exit_code, ended.output


def test_sequence_of_one_agent(tmp_path: Path) -> None:
    """Its tasks become part of the prompt; comments stay, and what has no place becomes one."""
    file = write(tmp_path, ADDER)
    code, said = upgrade(file)
    assert code == 0, said
    made = tmp_path / "config.v1alpha1.yaml"
    assert made.read_text() == UPGRADED
    assert file.read_text() == ADDER
    assert "-apiVersion: skagents/v1" in said
    assert "content.output in place of output_raw" in said
    assert "final-response, approval-required or error" in said  # each ends a stream
    assert "input_type Numbers: clients write what its fields held as text" in said
    config = load(made, env={"NAME": "Ada", "TA_API_KEY": "x"}, dotenv=None)
    assert (config.prefix, config.agent.plugins) == ("/Adder/0.10", ("Sums",))


@pytest.mark.parametrize("text", [CHAT, AGENT])
def test_one_agent(tmp_path: Path, text: str) -> None:
    """Files of one agent differ in a line or three."""
    file = write(tmp_path, text)
    assert upgrade(file, "-o", file)[0] == 0
    config = load(file, env={}, dotenv=None)
    assert config.api_version == "tealagents/v1alpha1"
    assert config.agent.system_prompt.startswith("You")


def test_plugins_lose_what_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's Authorization, unless it is passed on: it says so, for agents that have plugins."""
    lost = "plugins are no longer given the caller's Authorization"
    file = write(tmp_path, ADDER)
    assert lost in upgrade(file, "-o", tmp_path / "one.yaml")[1]
    monkeypatch.setenv("TA_FORWARD_HEADERS", "Authorization")
    assert lost not in upgrade(file, "-o", tmp_path / "two.yaml")[1]
    monkeypatch.delenv("TA_FORWARD_HEADERS")
    assert lost not in upgrade(write(tmp_path, CHAT))[1]


@pytest.mark.parametrize("gateway", [False, True])
def test_a_variable_that_is_set_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gateway: bool
) -> None:
    """In the environment or in `.env`. A gateway, which the new file cannot have, is reported once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugins.yaml").touch()
    (tmp_path / ".env").write_text("TA_REMOTE_PLUGIN_PATH=plugins.yaml\nTA_ENTRA_AUDIENCE=api://painter\n")
    monkeypatch.setenv("TA_ENTRA_TENANT_ID", "example.com")
    if gateway:
        monkeypatch.setenv("TA_AUTH", "gateway")
    text = AGENT.replace("spec:", "spec:\n  auth: entra") + "    remote_plugins: [Library]\n"
    file = write(tmp_path, text)
    code, said = upgrade(file)
    assert code == 0, said
    notes = [line for line in said.splitlines() if line.startswith("!")]
    assert notes == ["! TA_AUTH=gateway is for the earlier versions; choose entra"] * gateway


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """One sentence, and no traceback."""
    file = write(tmp_path, CHAT)
    target = tmp_path / "nowhere" / "config.yaml"
    code, said = upgrade(file, "--output", target)
    assert code == 2
    assert f"{target}: cannot be written: no such file or directory" in said.replace("\n", "")


def test_what_only_a_person_can_decide(tmp_path: Path) -> None:
    """Several agents, templates that loop, and files of ours are refused, and nothing is written."""
    sequence = write(tmp_path, SEQUENTIAL, custom_types=TYPES)
    code, said = upgrade(sequence)
    assert code == 2
    assert "its tasks are done by 2 agents" in said
    looping = write(tmp_path, ADDER.replace("Tell {{ _add }}.", '"{% for x in _add %}{% endfor %}"'))
    more = "the instructions of tell do more than name fields, in"
    assert f"{more} {{% for x in _add %}}: write" in upgrade(looping)[1].replace("\n", " ")
    ours = write(tmp_path, UPGRADED)
    assert "is already tealagents/v1alpha1" in upgrade(ours)[1]
    (tmp_path / "config.v1alpha1.yaml").write_text("mine")
    assert "exists; name another" in upgrade(write(tmp_path, CHAT))[1]
    assert (tmp_path / "config.v1alpha1.yaml").read_text() == "mine"
    assert "file name too long" in upgrade(write(tmp_path, CHAT), "--output", "x" * 300)[1]


def test_what_cannot_be_put_into_words_is_quoted(tmp_path: Path) -> None:
    """As it is written; a comment is nothing that would have to be."""
    indexed = '"{# once #} {{ two }}: {{ chat_history[0].content }}, {{ topic }}"'
    said = upgrade(write(tmp_path, ADDER.replace("Tell {{ _add }}.", indexed)))[1].replace("\n", " ")
    assert "do more than name fields, in {{ chat_history[0].content }}: write the system_prompt" in said
    commented = ADDER.replace("Tell {{ _add }}.", '"Tell {{ _add }}{# {{ two }},\\n once #}."')
    assert upgrade(write(tmp_path, commented))[0] == 0
    assert "2. tell: Tell (the result of add).\n" in (tmp_path / "config.v1alpha1.yaml").read_text()


@pytest.mark.parametrize(
    "filled",
    ["topic | default('English')", "topic|truncate(3)", "topic | upper", "two|int", "topic|default('}')"],
)
def test_filters_are_not_dropped(tmp_path: Path, filled: str) -> None:
    """What a template does besides naming a field is left to the user, who is shown it."""
    file = write(tmp_path, ADDER.replace("Tell {{ _add }}.", json.dumps(f"In {{{{ {filled} }}}}.")))
    code, said = upgrade(file)
    assert code == 2, said
    assert f"the instructions of tell do more than name fields, in {{{{ {filled}" in said.replace("\n", " ")
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


STATE = """\
  persistence: sqlite:///state.db
  thread: {kind: local}
  concurrency: enqueue
  on_disconnect: cancel
  protocols: [a2a]
  console: {enabled: false}
"""


@pytest.mark.parametrize(
    ("text", "before"), [(CHAT, "  agent:\n"), (AGENT, "  agent:\n"), (ADDER, "  agents:\n")]
)
def test_keys_that_need_state_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, before: str
) -> None:
    """They, and A2A, are why `check` refuses the earlier file and names this command."""
    monkeypatch.setenv("TA_A2A_ENABLED", "true")
    file = write(tmp_path, text.replace(before, STATE + before))
    checked = CliRunner().invoke(command_line("check", "schema"), ["check", str(file)])
    assert "migrate the agent: tealagents upgrade" in checked.output.replace("\n", " ")
    assert "TA_A2A_ENABLED: skagents/" in checked.output
    code, said = upgrade(file)
    assert code == 0, said
    made = tmp_path / "config.v1alpha1.yaml"
    assert STATE in made.read_text()
    config = load(made, env={"NAME": "Ada", "TA_API_KEY": "x"}, dotenv=None)
    assert config.persistence == f"sqlite:///{tmp_path}/state.db"
    assert (config.protocols, config.on_disconnect) == (("a2a",), "cancel")


def test_what_is_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `check` names it."""
    monkeypatch.chdir(tmp_path)
    for path in (".", "..", "/", "nothing.yaml"):
        checked = CliRunner().invoke(command_line("check", "schema"), ["check", path])
        assert f"{path}: cannot be read: " in checked.output
        assert upgrade(path) == (2, checked.output)


def test_a_file_that_cannot_be_written_anew_stays_as_it_is(nursery: Nursery, tmp_path: Path) -> None:
    """As on a full disk, where --output names the file itself."""
    file = write(tmp_path, CHAT)
    before = file.read_text()
    command = f"ulimit -f 0; exec {shlex.quote(nursery.program)} upgrade {file} -o {file}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (2, f"✗ {file}: cannot be written: file too large\n")
    assert file.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("You add, ${NAME}.  # short", "*prompt"),
            "spec.agents[0].system_prompt is, or ends in, an alias: write it out first",
        ),
        (
            ("system_prompt: You add, ${NAME}.  # short", "<<: *base"),
            "spec.agents[0].system_prompt is merged in with <<: write it out first",
        ),
        (
            (ADDER[ADDER.index("name: default") : ADDER.index("  tasks:")], FLOW + "\n"),
            "spec.agents[0] is written in {…}: write it as a block first",
        ),
        (
            (ADDER[ADDER.index("spec:") :], "spec: {agents: [" + FLOW + "], tasks: [{" + TASK + "}]}"),
            "spec.agents is",
        ),
        (("Tell {{ _add }}.", r'"Ring \x07"'), "the character U+0007 cannot appear in the result"),
        (
            ("Tell {{ _add }}.", r'"One\u2028            Two"'),
            "the result would have another value at spec.agent.system_prompt",
        ),
        (("agents:\n", "agents: &all\n"), "the result would not be YAML, in line"),
    ],
)
def test_what_cannot_be_edited_is_refused(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    """By its place, and nothing is written: the result says what the file said, or there is none."""
    shared = "x-prompt: &prompt You add.\nx-base: &base {system_prompt: You add.}\n"
    assert change[0] in ADDER
    file = write(tmp_path, shared + ADDER.replace(*change))
    code, output = upgrade(file)
    assert code == 2, output
    assert said in output.replace("\n", "")
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    assert upgrade(write(tmp_path, shared + ADDER))[0] == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("service_name:", "name: Other\nservice_name:"),
            "service_name becomes name, and there is already name",
        ),
        (
            ("  agents:", "  agent: {model: gpt-4o}\n  agents:"),
            "agents becomes agent, and there is already spec.agent",
        ),
    ],
)
def test_a_key_is_not_written_twice(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    """Where the file has the new name of a key already, although it means nothing there."""
    file = write(tmp_path, ADDER.replace(*change))
    code, output = upgrade(file)
    assert code == 2, output
    assert said in output.replace("\n", " ")
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("literal", ["5", "true", "False", "none", "None.real"])
def test_a_literal_is_no_field(tmp_path: Path, literal: str) -> None:
    """A template that fills one in does more than name fields."""
    code, said = upgrade(write(tmp_path, ADDER.replace("{{ _add }}", f"{{{{ {literal} }}}}")))
    assert code == 2, said
    assert f"do more than name fields, in {{{{ {literal} }}}}: write" in said.replace("\n", " ")


def test_line_ends_stay_as_they_are(tmp_path: Path) -> None:
    """Those of Windows, also in the lines that are new."""
    file = tmp_path / "config.yaml"
    file.write_bytes(ADDER.replace("\n", "\r\n").encode())
    assert upgrade(file)[0] == 0
    made = (tmp_path / "config.v1alpha1.yaml").read_bytes()
    assert made == UPGRADED.replace("\n", "\r\n").encode()


def test_a_pipe_is_refused(tmp_path: Path, nursery: Nursery) -> None:
    """It can be read only once; what to do is said in a sentence, without a traceback."""
    command = [nursery.program, "upgrade", "/dev/stdin", "-o", str(tmp_path / "new.yaml")]
    ended = subprocess.run(command, input=CHAT, capture_output=True, text=True, timeout=60)
    said = "/dev/stdin: is no regular file, and can be read only once: save it to a file first"
    assert (ended.returncode, ended.stderr) == (2, f"✗ {said}\n")
    assert list(tmp_path.iterdir()) == []


def test_signs_that_look_like_others(tmp_path: Path) -> None:
    """A dash in a comment is no item, and a number sign in a prompt begins no comment."""
    prompt = "|  # long\n        You add.\n        # Output\n"
    text = ADDER.replace("- name: default", "- # first-rate\n      name: default")
    file = write(tmp_path, text.replace("You add, ${NAME}.  # short\n", prompt))
    code, said = upgrade(file)
    assert code == 0, said
    made = (tmp_path / "config.v1alpha1.yaml").read_text()
    assert "agent:\n      # first-rate\n      name: default" in made
    assert "system_prompt: | # long\n" in made
    assert made.count("# Output") == 1
