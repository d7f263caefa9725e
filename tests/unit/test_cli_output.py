"""Standard output that cannot be written: a full disk, or a reader that has enough."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from earlier_agents import CHAT, write

from tealagents.testing.forking import Nursery
from tealagents.testing.service import offline_service

#: as it is installed; where its start is not in question, the forked one stands for it
PROGRAM = str(Path(sys.executable).with_name("tealagents"))
HELLO = str(Path(__file__).parents[2] / "configs" / "hello.yaml")
SENTENCE = (
    "✗ standard output cannot be written: no space left on device; free some space, or send it elsewhere"
)
CLOSED = SENTENCE.replace("no space left on device", "bad file descriptor")
#: a device that is always full
FULL = Path("/dev/full")
COMMANDS = {
    "help": ["--help"],
    "version": ["--version"],
    "check": ["check", HELLO],
    "schema": ["schema"],
    "doctor": ["doctor", "http://127.0.0.1:9"],
    "authority": ["authority", "--port", "0"],
}
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def full(program: str, *command: str, input: str = "", unbuffered: str = "") -> tuple[int, list[str]]:
    """The exit status of a command whose output goes to a full disk, and the lines of its errors."""
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with FULL.open("w") as output:
        ended = subprocess.run(
            [program, *command],
            stdout=output,
            stderr=subprocess.PIPE,
            input=input,
            env=env,
            text=True,
            timeout=60,
        )
    return ended.returncode, [line for line in ended.stderr.splitlines() if line and line[0] != "!"]


def closed(*command: str) -> tuple[int, list[str]]:
    """The same of a command whose output is closed."""
    script = ["sh", "-c", 'exec "$@" >&-', "sh", PROGRAM, *command]
    ended = subprocess.run(script, stderr=subprocess.PIPE, text=True, timeout=60)
    return ended.returncode, [line for line in ended.stderr.splitlines() if line.startswith(("✗", "Trace"))]


@pytest.mark.parametrize("name", ["version", "check", "schema", "doctor"])
def test_a_closed_output_is_one_that_cannot_be_written(name: str) -> None:
    """A script that checks the exit status does not take what it has not got for an answer."""
    assert closed(*COMMANDS[name]) == (1, [CLOSED])


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_ends_a_command_with_one_sentence(nursery: Nursery, name: str, unbuffered: str) -> None:
    """Exit status 1, and no traceback."""
    program = PROGRAM if name == "version" else nursery.program
    status, lines = full(program, *COMMANDS[name], unbuffered=unbuffered)
    assert status == 1
    assert lines == [SENTENCE]


def test_what_prints_after_its_work_reports_it_too(nursery: Nursery, tmp_path: Path) -> None:
    """The work is done."""
    file = write(tmp_path, CHAT)
    status, lines = full(nursery.program, "upgrade", str(file))
    assert (status, lines) == (1, [SENTENCE])
    assert file.with_suffix(f".v1alpha1{file.suffix}").exists()


def test_an_export_to_standard_output_reports_it_and_ends_silently_where_no_one_reads(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are no other output than text."""
    monkeypatch.setenv("TA_PERSISTENCE", f"sqlite:///{tmp_path / 'state.db'}")
    with offline_service(env={"TA_PERSISTENCE": os.environ["TA_PERSISTENCE"]}) as (service, _):
        with service.client() as ada:
            ada.post("", json={"items": [{"content_type": "text", "content": "hello"}]}).raise_for_status()
        command = [nursery.program, "state", "export", "-", "--config", str(service.config_path)]
        assert full(*command) == (1, [SENTENCE])
        reading, writing = os.pipe()
        os.close(reading)
        ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60)
        os.close(writing)
        assert (ended.returncode, ended.stderr.strip()) == (1, b"")
        assert closed(*command[1:]) == (1, [CLOSED])


def test_an_answer_that_cannot_be_printed_ends_the_chat(nursery: Nursery) -> None:
    """Piped, as a script does it."""
    with offline_service() as (service, _):
        assert full(nursery.program, "chat", service.url, "--token", "ada", input="hello") == (1, [SENTENCE])
        closed = ["sh", "-c", 'exec "$@" <&-', "sh", PROGRAM, "chat", service.url]
        ended = subprocess.run(closed, capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stderr) == (2, "There is nothing to send: standard input is empty.\n")


def test_what_the_terminals_encoding_lacks_is_replaced(nursery: Nursery) -> None:
    """Of a finding all else is shown."""
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(
        [nursery.program, "doctor", "http://127.0.0.1:9"], capture_output=True, env=env, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert ended.stdout.startswith("? ")
    assert "127.0.0.1:9" in ended.stdout


def test_the_code_of_an_emoji_is_shown_as_it_is(nursery: Nursery, tmp_path: Path) -> None:
    """In a message, and in what `upgrade` would change."""
    earlier = write(tmp_path, CHAT.replace("WeatherBot", "WeatherBot  # a :smile:"))
    commands = (["check", ":smile:.yaml"], ["upgrade", str(earlier)], ["doctor", "http://:smile:"])
    for command in commands:
        ended = subprocess.run([nursery.program, *command], capture_output=True, text=True, timeout=60)
        assert ":smile:" in ended.stdout + ended.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_enough_ends_a_command_silently(nursery: Nursery, unbuffered: str) -> None:
    """As `| head -1` does, whether the output is short or long."""
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    program = nursery.program
    commands = (["schema"], ["check", HELLO], COMMANDS["authority"])
    for command in ([PROGRAM, "--version"], *([program, *each] for each in commands)):
        reading, writing = os.pipe()
        os.close(reading)
        ended = subprocess.run(
            command, stdout=writing, stderr=subprocess.PIPE, env=env, text=True, timeout=60
        )
        os.close(writing)
        assert ended.returncode == 1
        assert [line for line in ended.stderr.splitlines() if not line.startswith("!")] == []
