"""Scripts: which rule answers, how often, and what is said about a mistake."""

from pathlib import Path
from typing import Any

import pytest

from tealagents.llm.offline import Script, ScriptError
from tealagents.llm.offline.answer import ModelAnswer
from tealagents.llm.offline.playback import Playback, RefusedCall
from tealagents.llm.offline.prompt import Message, ModelPrompt

TOOL_TURN: list[Message] = [
    {"role": "user", "content": "delete it"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "Shell-delete"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "no such file"},
]


def asking(*texts: str, system: str = "", model: str = "offline") -> ModelPrompt:
    messages = [{"role": "user", "content": text} for text in texts]
    return ModelPrompt([{"role": "system", "content": system}, *messages], model=model)


def played(script: str, *prompts: ModelPrompt) -> list[str]:
    """What a script answers to these prompts, one after the other."""
    playback = Playback(Script.from_text(script))
    return [said(playback.reply_to(prompt)) for prompt in prompts]


def said(reply: ModelAnswer | RefusedCall) -> str:
    return reply.text if isinstance(reply, ModelAnswer) else f"HTTP {reply.error.status}"


def test_the_first_rule_that_holds_answers() -> None:
    """Rules are tried in order; where none holds the built-in answer is given."""
    script = """
    rules:
      - {when: rain, reply: wet}
      - {when: {regex: '^sun\\b'}, reply: dry}
      - {when: sun, reply: warm}
    """
    asked = [asking("Will it RAIN?"), asking("Sun now"), asking("the sun"), asking("thanks")]
    assert played(script, *asked) == ["wet", "dry", "warm", "You are welcome."]


def test_a_rule_is_used_up() -> None:
    """`times` makes a transcript of a script; `otherwise` is for what it does not foresee."""
    script = """
    rules:
      - {reply: one, times: 1}
      - {reply: two, times: 2}
    otherwise: {error: {status: 500}}
    """
    assert played(script, *[asking("x")] * 4) == ["one", "two", "two", "HTTP 500"]


@pytest.mark.parametrize(
    ("when", "prompt", "holds"),
    [
        ("{system: tea house}", asking("x", system="You run a Tea House."), True),
        ("{system_regex: 'tea$'}", asking("x", system="You run a tea house."), False),
        ("{turn: 2}", asking("a", "b"), True),
        ("{turn: 2}", asking("a"), False),
        ("{call: 1}", asking("a"), True),
        ("{call: 2}", asking("a"), False),
        ("{model: gpt}", asking("a", model="gpt"), True),
        ("{model: gpt}", asking("a", model="gpt-5"), False),
        ("{text: a, turn: 2}", asking("a"), False),
        ("{}", ModelPrompt(TOOL_TURN, model="m"), True),
        ("{tool_result: true}", ModelPrompt(TOOL_TURN, model="m"), True),
        ("{tool_result: false}", ModelPrompt(TOOL_TURN, model="m"), False),
        ("{tool_result: true}", asking("a"), False),
        ("{result_of: Shell-delete}", ModelPrompt(TOOL_TURN, model="m"), True),
        ("{result_of: Shell-list}", ModelPrompt(TOOL_TURN, model="m"), False),
        ("{result_text: NO SUCH}", ModelPrompt(TOOL_TURN, model="m"), True),
        ("{result_text: done}", ModelPrompt(TOOL_TURN, model="m"), False),
        ("{text: delete}", ModelPrompt(TOOL_TURN, model="m"), False),
        ("{text: delete, tool_result: true}", ModelPrompt(TOOL_TURN, model="m"), True),
    ],
)
def test_conditions(when: str, prompt: ModelPrompt, holds: bool) -> None:
    """Each condition of a rule holds when it should, and text does not while tool results are waiting."""
    script = f"rules: [{{when: {when}, reply: HELD}}]"
    assert (played(script, prompt) == ["HELD"]) is holds


def test_results_are_found_behind_notes() -> None:
    """A note of the caller after the results does not hide them."""
    noted = [*TOOL_TURN, {"role": "system", "content": "be brief"}]
    assert ModelPrompt(noted, model="m").tool_results == ModelPrompt(TOOL_TURN, model="m").tool_results
    assert ModelPrompt([*TOOL_TURN, {"role": "user", "content": "and?"}], model="m").tool_results == []


def test_a_reply_without_content_is_the_built_in_answer_disturbed() -> None:
    """Delays and faults alone are put on what would have been answered anyway."""
    script = Script.model_validate(
        {"rules": [{"reply": {"first_delay_ms": 50, "fault": {"kind": "cut", "after_pieces": 1}}}]}
    )
    reply = Playback(script).reply_to(asking("hello"))
    assert isinstance(reply, ModelAnswer)
    assert reply.text == "Hello! How can I help?"
    assert reply.pacing.first == 0.05
    assert reply.fault is not None


def test_delays_of_single_pieces_win() -> None:
    """A piece with a delay of its own waits for that; the others wait as all do."""
    script = Script.from_text("""
    rules:
      - reply: {pieces: [a, {text: b, delay_ms: 500}, c], first_delay_ms: 100, piece_delay_ms: 20}
    """)
    reply = Playback(script).reply_to(asking("x"))
    assert isinstance(reply, ModelAnswer)
    assert [reply.pacing.before(n) for n in range(3)] == [0.1, 0.5, 0.02]
    assert reply.duration() == pytest.approx(0.62)


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (
            "rules:\n  - reply:\n      pices: [a]\n",
            "script, line 3: rules[0].reply.pices: there is no such key; ",
        ),
        ("rules:\n  - reply:\n      pices: [a]\n", "did you mean 'pieces'?"),
        ("rules:\n  - reply: {text: 5}\n", "rules[0].reply.text: must be text, not a number"),
        ("rules:\n  - {reply: a, times: 0}\n", "times: must be at least 1"),
        ("rules:\n  - when: a\n", "rules[0].reply: is missing"),
        ("rules:\n  - {when: {regex: '('}, reply: a}\n", "not a regular expression"),
        ("rules:\n  - reply: {text: a, pieces: [b]}\n", "text and pieces exclude each other"),
        ("rules:\n  - reply: {refusal: a, text: b}\n", "a refusal excludes"),
        ("rules:\n  - reply: {error: {status: 500}, text: b}\n", "an error is the whole reply"),
        ("rules:\n  - reply: {error: {status: 99}}\n", "rules[0].reply.error.status"),
        ("rules:\n  - reply: {fault: explode}\n", "must be 'cut', 'end', 'silence' or 'error'"),
        ("rules:\n  - reply: {fault: {kind: cut, after_pieces: 1, after_bytes: 2}}\n", "exclude each other"),
        ("rules:\n  - reply: {fault: {kind: cut, message: x}}\n", "belong to the kind 'error'"),
        ("rules:\n  - reply: {fault: {kind: error, after_bytes: 2}}\n", "use after_pieces"),
        ("rules:\n  - reply: {finish_reason: tired}\n", "rules[0].reply.finish_reason"),
        ("rules:\n  - [", "script, line 2: not YAML"),
        ("description: 2024-02-30\n", "script: not YAML: "),
        ("description: !!int x\n", "script: not YAML: "),
        (f"description: {'[' * 1000}\n", "script: not YAML: "),
        ("kind: Agent\n", "line 1: kind: there is no such key"),
        ("- a\n", "line 1: must be a mapping"),
    ],
)
def test_a_mistake_is_reported_with_its_place(script: str, complaint: str) -> None:
    """An error names the line, the key and what is wrong with it."""
    with pytest.raises(ScriptError) as raised:
        Script.from_text(script)
    assert complaint in str(raised.value)


def test_a_misplaced_key_is_not_proposed_in_its_own_place() -> None:
    """Nor is one that is not like it."""
    with pytest.raises(ScriptError) as raised:
        Script.from_text("kind: Agent\nspec: {}\n")
    assert "did you mean" not in str(raised.value)


def test_every_mistake_is_reported() -> None:
    """All mistakes of a script are reported together, a line each."""
    with pytest.raises(ScriptError) as raised:
        Script.of({"rulez": [], "rules": [{"reply": {"txt": "a"}}]})
    assert len(str(raised.value).splitlines()) == 2


def test_a_file_that_is_no_text_is_a_mistake(tmp_path: Path) -> None:
    """A binary file that was named by accident is reported with its name."""
    path = tmp_path / "script.yaml"
    path.write_bytes(b"\x89PNG\r\n")
    with pytest.raises(ScriptError, match=r"script\.yaml: is not UTF-8 text"):
        Script.from_yaml(path)


def test_a_script_comes_from_wherever(tmp_path: Path) -> None:
    """Text, a path, the name of a file, a mapping and nothing all make a script."""
    text = "rules:\n  - reply: hi\n"
    path = tmp_path / "script.yaml"
    path.write_text(text)
    forms: list[Any] = [text, path, str(path), {"rules": [{"reply": "hi"}]}, Script.from_yaml(text)]
    assert all(Script.of(form) == Script.from_text(text) for form in forms)
    assert Script.of(None) == Script() == Script.from_text("")
    path.write_text("rules: 5\n")
    with pytest.raises(ScriptError, match=str(path)):
        Script.from_yaml(path)
    with pytest.raises(FileNotFoundError):
        Script.from_yaml("nowhere.yaml")
