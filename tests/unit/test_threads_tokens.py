"""Counting tokens without a network."""

import re
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threads_setup import call, said

from tealagents.domain.models import Item
from tealagents.threads.tokens import (
    COUNTED,
    TokensUnknown,
    counter_for,
    estimate,
    message_tokens,
    window_of,
)

HERE = Path(__file__)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> socket.socket:
        raise AssertionError("a tokenizer asked for the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize(
    ("model", "table"),
    [
        ("gpt-4o-mini", "o200k_base"),
        ("gpt-4.1", "o200k_base"),
        ("gpt-5-nano", "o200k_base"),
        ("openai/gpt-4-0613", "cl100k_base"),
        ("gpt-3.5-turbo", "cl100k_base"),
        ("claude-3-5-sonnet", "o200k_base"),
    ],
)
@pytest.mark.usefixtures("no_network")
def test_the_models_own_tables_come_with_the_package(model: str, table: str) -> None:
    """They are loaded without any network. covers: THREAD-8"""
    counter = counter_for(model)
    assert counter.name == table
    assert counter.count("Hello world") == 2
    assert counter.count("") == 0
    assert counter.count("<|endoftext|>") > 1
    assert counter.count("half \ud83d a character") > 2


def test_without_the_package_it_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a table was asked for: then the text says what to install."""
    monkeypatch.setitem(sys.modules, "rs_bpe.bpe", None)
    assert counter_for("gpt-4o").count is estimate
    with pytest.raises(TokensUnknown, match=r"pip install 'tealagents\[tokens\]'"):
        counter_for("gpt-4o", "o200k_base")


@pytest.mark.parametrize(
    "text",
    [
        HERE.read_text(),
        (HERE.parents[2] / "docs" / "config.md").read_text(),
        (HERE.parents[2] / "configs" / "reference.yaml").read_text(),
        "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
        "Übermäßige Geschwindigkeitsüberschreitung führt zu Bußgeldern.",
        '{"path": "/data/x", "n": 12345, "ok": true}',
    ],
)
def test_the_estimate_errs_on_the_side_of_too_many(text: str) -> None:
    """For prose, code, JSON and other scripts; and not by more than a factor of three."""
    exact = counter_for("gpt-4o").count(text)
    assert exact <= estimate(text) <= 3 * exact


@given(st.text(max_size=200), st.text(max_size=200))
def test_the_estimate_grows_with_the_text(one: str, two: str) -> None:
    """More text never counts less."""
    assert 0 <= estimate(one) <= estimate(one + two)


def test_of_a_long_text_the_beginning_is_counted() -> None:
    """The rest is taken to be like it: counting 20 MB would hold up every other request for seconds."""
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return len(text) // 2

    assert message_tokens(said("user", "ab" * COUNTED), count, 0) == 4 + COUNTED
    assert counted == [COUNTED]


def test_images_and_calls_are_counted() -> None:
    """An image by a fixed number, a call by its name and arguments."""
    bare = message_tokens(said("user", "hi"), len, 0)
    image = said("user", "hi")
    image = type(image)(
        message_id="m",
        request_id="r",
        role="user",
        created_at=image.created_at,
        items=(Item("text", "hi"), Item("image", "data:image/png;base64,AAAA")),
    )
    assert message_tokens(image, len, 700) == bare + 700
    called = said("assistant", tool_calls=(call("c", "Shell-run", '{"a":1}'),))
    assert message_tokens(called, len, 0) == 4 + 8 + len("Shell-run") + len('{"a":1}')


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-4o-2024-08-06", 128_000),
        ("gpt-4", 8_192),
        ("gpt-4-32k-0613", 32_768),
        ("gpt-5-chat-latest", 128_000),
        ("gpt-5.1-chat-latest", 128_000),
        ("gpt-5.1-2025-11-13", 400_000),
        ("gpt-4-0613", 8_192),
        ("gpt-4-1106-preview", 128_000),
        ("gpt-4-0125-preview", 128_000),
        ("gpt-4-turbo-2024-04-09", 128_000),
        ("gpt-4.5-preview-2025-02-27", 128_000),
        ("gpt-3.5-turbo-0125", 16_385),
        ("gpt-3.5-turbo-0613", 4_096),
        ("openai/gpt-oss-120b", 131_072),
    ],
)
def test_windows_are_found_by_the_models_name(model: str, window: int) -> None:
    """With or without a date. The operator's table comes before the built-in one. covers: THREAD-8"""
    assert window_of(model, {}) == window
    assert window_of(model, {"gpt": 5, "openai/gpt": 5}) == 5


@pytest.mark.parametrize("model", ["gpt-4-2000-preview", "gpt-4o-next", "gpt-5.1-tiny", "gpt-50", "o1-2"])
def test_a_name_that_only_begins_like_a_known_one_is_unknown(model: str) -> None:
    """Its window may be a tenth of the other's, or ten times as large."""
    with pytest.raises(TokensUnknown, match=f"windows: {{{model}: 128000}}"):
        window_of(model, {})


def test_the_longest_of_the_operators_names_counts() -> None:
    """So that an entry for a family can have exceptions."""
    own = {"mine-": 1_000, "mine-large": 2_000}
    assert (window_of("mine-large-v2", own), window_of("mine-small", own)) == (2_000, 1_000)


def own_counter(text: str) -> int:
    """One token a character."""
    return len(text)


def test_a_counter_of_ones_own_is_named() -> None:
    """As `module:function`."""
    assert counter_for("any", f"{__name__}:own_counter").count("four") == 4


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("raise RuntimeError('no table')", "cannot be imported: own_counter.py, line 1: RuntimeError: no"),
        ("count = 5", "is not a function"),
        ("def count(text): return text[0]", "failed with an empty text: own_counter.py, line 1: IndexE"),
        ("def count(text): return text.split()", "must return a number of tokens, not list"),
        ("", "does not exist: own_counter has no 'count'"),
    ],
)
def test_a_counter_that_cannot_count_is_refused_at_start(
    code: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the file and the line that are at fault. covers: THREAD-8"""
    (tmp_path / "own_counter.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("own_counter", None)
    with pytest.raises(TokensUnknown, match=re.escape(f"'own_counter:count' {complaint}")):
        counter_for("any", "own_counter:count")


def test_a_counter_may_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the characters, say: not all estimates are whole numbers. covers: THREAD-8"""
    (tmp_path / "own_counter.py").write_text("def count(text): return len(text) / 4")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("own_counter", None)
    assert counter_for("any", "own_counter:count").count("abcde") == 1.25


def test_a_counter_without_a_module_is_refused() -> None:
    """As a mistake in the config, not as one of the program."""
    with pytest.raises(TokensUnknown, match="tokenizer ':count' cannot be imported"):
        counter_for("any", ":count")
