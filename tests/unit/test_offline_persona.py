"""The built-in answers: what the user said is remembered, and everything else is short."""

import pytest

from tealagents.llm.offline.answer import in_pieces
from tealagents.llm.offline.persona import built_in_answer
from tealagents.llm.offline.prompt import Message, ModelPrompt, OfferedTool


def answer(*texts: str, system: str | None = None, tools: tuple[str, ...] = ()) -> str:
    """The answer to the last of these user messages."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "I see."}]
    offered = [OfferedTool(name, {}) for name in tools]
    return built_in_answer(ModelPrompt(messages[:-1], model="offline", tools=offered)).text


@pytest.mark.parametrize(
    ("said", "asked", "expected"),
    [
        ("My name is Ada.", "What is my name?", "Your name is Ada."),
        ("I am Ada Lovelace", "what's my name", "Your name is Ada Lovelace."),
        ("Please call me Ada, thanks", "Who am I?", "Your name is Ada."),
        ("my favourite colour is green", "What is my favorite color?", "Your favourite colour is green."),
        ("My dogs are Rex and Fido.", "Tell me my dogs", "Your dogs is Rex and Fido."),
        ("My name is Ada and my cat is Tom.", "do you remember my cat?", "Your cat is Tom."),
        ("I live in Oslo, Norway.", "Where do I live?", "You live in Oslo, Norway."),
        ("I work for the post office", "where do I work?", "You work for the post office."),
        (
            "My site is https://example.com/a?b=1.",
            "What is my site?",
            "Your site is https://example.com/a?b=1.",
        ),
        ("Remember that my code is 42.", "What is my code again?", "Your code is 42."),
        ("remember that tea is hot", "What do you remember?", "You told me: tea is hot."),
        ("I'm tired", "what is my name?", "You have not told me your name."),
        ("Did you know that my name is Ada?", "What is my name?", "You have not told me your name."),
        ("is my name Ada?", "where do I live?", "You have not told me where you live."),
        ("nothing", "what do you know about me?", "You have told me nothing yet."),
        ("good day", "what did I say first?", "You first said: “good day”"),
        ("good day", "what did I say before?", "Before that you said: “good day”"),
        ("good day", "How many messages have I sent?", "You have sent 2 messages."),
    ],
)
def test_it_remembers_what_the_user_said(said: str, asked: str, expected: str) -> None:
    """Facts are found in the messages that are sent, and in nothing else: covers TASK-4."""
    assert answer(said, "something else", asked) == expected.replace("2 messages", "3 messages").replace(
        "Before that you said: “good day”", "Before that you said: “something else”"
    )


def test_the_latest_fact_wins() -> None:
    """What the user says later replaces what was said before."""
    assert answer("my name is Ada", "my name is Grace", "what is my name?") == "Your name is Grace."


@pytest.mark.parametrize(
    "system",
    [
        "You are kind. The user's name is Ada.",
        "Known about the user:\n- name: Ada\n- favourite_colour: green",
        "User's name is Ada. My name is Tea.",
    ],
)
def test_a_memory_in_the_instructions_is_found(system: str) -> None:
    """What instructions say of the user counts; what they say of themselves does not: covers THREAD-10."""
    assert answer("what is my name?", system=system) == "Your name is Ada."


def test_a_summary_keeps_the_facts() -> None:
    """A summary that it was asked for can stand in for the messages."""
    summary = answer(
        "My name is Ada and I live in Oslo. Remember that tea is hot.", "Summarise the conversation."
    )
    assert answer("Who am I?", system=summary) == "Your name is Ada."
    assert answer("Where do I live?", system=summary) == "You live in Oslo."
    assert "tea is hot" in answer("What do you know about me?", system=summary)
    assert answer("Summarize, please") == "Nothing to remember was said."


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Hello!", "Hello! How can I help?"),
        ("my name is Ada", "Nice to meet you, Ada."),
        ("my tea is green", "Noted: your tea is green."),
        ("thanks a lot", "You are welcome."),
        ("bye", "Goodbye!"),
        ("tell me a story", "You said: “tell me a story”"),
        ("what did I say before?", "This is the first thing you say to me."),
        ("  ", "You said nothing, and I agree."),
        ("call Anna tomorrow", "You said: “call Anna tomorrow”"),
    ],
)
def test_it_is_polite(said: str, expected: str) -> None:
    """Greetings, thanks and news are answered as people do, and the rest is quoted."""
    assert answer(said) == expected


def test_a_known_name_is_greeted() -> None:
    """A user who gave a name is greeted by it."""
    assert answer("I am Ada", "hello again") == "Hello, Ada! How can I help?"


def test_a_long_message_is_quoted_in_part() -> None:
    """A quotation is never longer than 200 characters."""
    assert len(answer("word " * 1_000)) < 230


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('call Shell-delete {"path": "/data/x"}', ['{"path": "/data/x"}']),
        ("Please call Shell-delete.", ["{}"]),
        ('call Shell-delete {"path": {"a": 1}} then call Shell-delete', ['{"path": {"a": 1}}', "{}"]),
        ('call Shell-delete {"path": "/da\nnext line', ['{"path": "/da']),
    ],
)
def test_a_call_can_be_asked_for(text: str, arguments: list[str]) -> None:
    """The words `call NAME {…}` make a tool call, with broken arguments as they stand: covers HITL-1."""
    asked = ModelPrompt(
        [{"role": "user", "content": text}], model="m", tools=(OfferedTool("Shell-delete", {}),)
    )
    assert [call.arguments for call in built_in_answer(asked).tool_calls] == arguments


@pytest.mark.parametrize("text", ["", " ", "a", " a  b ", "a\n\nb\n", "é 😀 x", "\ta"])
def test_pieces_are_the_text(text: str) -> None:
    """Nothing is lost or added by cutting into words."""
    assert "".join(in_pieces(text)) == text


def test_hostile_text_costs_little() -> None:
    """Long runs that look like facts are read in part: this test ends at once, or not at all."""
    for text in ("my x is " + "." * 100_000, "my x is a " * 20_000, "my x is a" + " " * 100_000 + "b"):
        assert answer(text)
