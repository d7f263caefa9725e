"""The file: YAML whose every value knows its line."""

from pathlib import Path

import pytest
from config_files import SMALLEST, complaints, problems, read, with_agent, with_spec

from tealagents.config import ConfigError, load


@pytest.mark.parametrize("version", ["0.10", "1", "1.0", "1.0.0", "2024-01-01", "1e3", "0x10", "yes", "v1"])
def test_version_keeps_its_spelling(tmp_path: Path, version: str) -> None:
    """A version is what was written, never a number or a date. covers: APP-1"""
    config = read(tmp_path, SMALLEST.replace("0.10", version))
    assert config.version == version
    assert config.prefix == f"/Wiki/{version}"


def test_quoted_version_is_the_same(tmp_path: Path) -> None:
    """Quotes around a version change nothing."""
    assert read(tmp_path, SMALLEST.replace("0.10", '"0.10"')).version == "0.10"


@pytest.mark.parametrize("version", ["a/b", '".."', "1 2", '""'])
def test_version_is_a_segment_of_the_path(tmp_path: Path, version: str) -> None:
    """A version that cannot stand in a URL is refused."""
    [complaint] = complaints(tmp_path, SMALLEST.replace("0.10", version))
    assert complaint.startswith("3: version: is part of the service's URL")


def test_name_that_is_no_segment_gets_a_proposal(tmp_path: Path) -> None:
    """A name with a space is refused, and one that would do is shown."""
    [complaint] = complaints(tmp_path, SMALLEST.replace("Wiki", "Wiki Agent"))
    assert complaint.startswith("2: name: is part of the service's URL")
    assert complaint.endswith("for example Wiki-Agent")


def test_duplicate_keys_are_an_error(tmp_path: Path) -> None:
    """A key that is written twice is no riddle about which one counts: it is refused."""
    assert complaints(tmp_path, with_agent("model: gpt-4o")) == [
        "8: spec.agent.model: is written twice; first on line 6"
    ]


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    """YAML's own way to repeat oneself works, and what a mapping says itself wins."""
    config = read(
        tmp_path,
        with_agent(
            """
            mcp_servers:
              - &one {name: one, command: run, timeout: 7, trust_level: trusted}
              - <<: *one
                name: two
                timeout: 8
            """
        ),
    )
    first, second = config.agent.mcp_servers
    assert (first.name, first.timeout, first.trust_level) == ("one", 7, "trusted")
    assert (second.name, second.timeout, second.trust_level) == ("two", 8, "trusted")


def test_key_without_value_counts_as_not_written(tmp_path: Path) -> None:
    """`plugins:` with nothing after it is the default, as older files have it. covers: APP-3"""
    config = read(tmp_path, with_agent("plugins:\ntemperature: null\nmcp_servers: ~"))
    assert config.agent.plugins == ()
    assert config.agent.temperature is None


def test_times_and_leading_zeros_stay_text(tmp_path: Path) -> None:
    """Nothing becomes a date, a base-60 or an octal number behind the user's back."""
    config = read(tmp_path, with_agent("role: 12:30\nplugins: [007, 2024-01-01]"))
    assert config.agent.role == "12:30"
    assert config.agent.plugins == ("007", "2024-01-01")


def test_numbers_in_scientific_notation_are_numbers(tmp_path: Path) -> None:
    """`1e-1` is a tenth."""
    assert read(tmp_path, with_agent("temperature: 1e-1")).agent.temperature == 0.1


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "9" * 5000, "0x1" + "0" * 16, str(2**64)])
@pytest.mark.parametrize("key", ["role", "temperature", "api_key"])
def test_number_of_more_than_64_bits_is_said_at_its_line(tmp_path: Path, key: str, number: str) -> None:
    """Whatever base it is written in, and whatever the key takes."""
    found = complaints(tmp_path, with_agent(f"{key}: {number}"))
    assert f"8: spec.agent.{key}: cannot be read as int of 64 bits; a text needs quotes" in found


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("- a\n- b", "must be a mapping"),
        ("a: b: c", "is not YAML"),
        ("a: 'b", "is not YAML"),
        ("a: \x07", "the character U+0007 is not allowed"),
        ("a: 1\n---\nb: 2", "is not YAML"),
        ("a: !!python/object:os.system {}", "cannot be read as"),
        ("a: !!binary aGk=", "cannot be read as binary"),
        ("a: !!int x", "cannot be read as int"),
        ("? [a]\n: b", "a key must be plain text"),
        ('a: "\\ud800"', "an invalid character"),
        ('a: "\\0"', "an invalid character"),
        ("a: &a [*a]", "contains itself"),
        ("<<: 5", "<< needs a mapping"),
        ("[" * 1000, "nested too deeply"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1]"
            + "".join(f"\n{x}: &{x} [{f'*{y},' * 9}]" for x, y in zip("bcdefgh", "abcdefg", strict=True)),
            "more than 100000 values",
        ),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, text: str, complaint: str) -> None:
    """Whatever is no config gives a sentence with the file's name, never a traceback."""
    first = problems(tmp_path, text)[0]
    assert first.file == str(tmp_path / "agent.yaml")
    assert complaint in str(first)


def test_syntax_error_names_its_line(tmp_path: Path) -> None:
    """A mistake of syntax is found on its line, and variables within braces get a hint."""
    [complaint] = complaints(tmp_path, with_spec("limits: {max_items: ${N}}"))
    assert complaint.startswith("8: is not YAML")
    assert complaint.endswith('write "${NAME}" in quotes')


def test_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file, a folder and bytes that are no text are distinguished."""
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    for name, message in (
        ("nope.yaml", "no such file or directory"),
        (".", "is a directory"),
        ("latin.yaml", "it is not UTF-8 text"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(tmp_path / name, env={}, dotenv=None)


def test_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    """A file saved by an editor that puts a byte order mark first is read."""
    assert read(tmp_path, "\ufeff" + SMALLEST).name == "Wiki"
