"""The built-in answers: short, deterministic, and based only on the messages that were sent.

The functions in `ANSWERS` are tried in order; the first that returns an answer wins. docs/offline-model.md
shows each.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from tealagents.llm.offline.answer import FunctionCall, ModelAnswer, Pacing, saying
from tealagents.llm.offline.facts import Statement, facts_in, known
from tealagents.llm.offline.prompt import ModelPrompt, PromptImage
from tealagents.llm.offline.shapes import fitting

#: The most characters that are quoted of a user's message, and of a tool's result.
_QUOTED = 200
_RESULT_QUOTED = 1_000
_MOST_PIECES = 100_000

_PIECES = re.compile(r"\bpieces-(\d{1,6})(?:@(\d{1,6})ms)?(?!\w)")
_CALL = re.compile(r"\bcall\s+(?P<tool>[\w.-]+)[ \t]*(?P<arguments>\{)?", re.IGNORECASE)
_QUESTION = re.compile(
    r"\b(?:what(?:'s|’s|s| is| was| are| were)|tell me|do you (?:know|remember)|say)\s+my\s+"
    r"(?P<thing>[^?.!\n]{1,80}?)(?:\s+again)?\s*(?:[?.!\n]|$)",
    re.IGNORECASE,
)
_WHO = re.compile(r"\bwho am i\b", re.IGNORECASE)
_WHERE = re.compile(r"\bwhere do i (?P<thing>live|work)\b", re.IGNORECASE)
_EVERYTHING = re.compile(
    r"\bwhat (?:do|can) you (?:remember|know)(?: about me)?\b"
    r"|\bwhat did i (?:ask|tell) you(?: to remember)?\s*\?",
    re.IGNORECASE,
)
_SUMMARY = re.compile(r"^\s*(?:please\s+)?summari[sz]e\b", re.IGNORECASE)
_FIRST = re.compile(
    r"\bwhat (?:did i (?:say|ask|write|tell you) first|was my first (?:message|question))\b", re.IGNORECASE
)
_PREVIOUS = re.compile(
    r"\bwhat (?:did i (?:just )?(?:say|ask|write) (?:before|last|previously)"
    r"|was my (?:last|previous) (?:message|question))\b",
    re.IGNORECASE,
)
_HOW_MANY = re.compile(r"\bhow many (?:messages|questions) (?:have|did) i\b", re.IGNORECASE)
_GREETING = re.compile(r"^\s*(?:hi|hello|hey|good (?:morning|evening|day)|greetings)\b", re.IGNORECASE)
_THANKS = re.compile(r"^\s*(?:thanks|thank you|cheers)\b", re.IGNORECASE)
_FAREWELL = re.compile(r"^\s*(?:good)?bye\b|^\s*see you\b", re.IGNORECASE)


def built_in_answer(prompt: ModelPrompt) -> ModelAnswer:
    """The built-in answer to a prompt, as a call of the forced tool or as structured output if asked for."""
    answer = next(answer for say in ANSWERS if (answer := say(prompt)) is not None)
    if answer.tool_calls:
        return answer
    if prompt.forced is not None:
        arguments = json.dumps(fitting(prompt.forced.parameters, answer.text), ensure_ascii=False)
        return ModelAnswer(tool_calls=(FunctionCall(None, prompt.forced.name, arguments),))
    if prompt.shape is None:
        return answer
    return saying(json.dumps(fitting(prompt.shape, answer.text), ensure_ascii=False))


def counted_pieces(prompt: ModelPrompt) -> ModelAnswer | None:
    """For `pieces-64` or `pieces-64@5ms` in the model's name or the text: the numbers from 1 to 64."""
    asked = _PIECES.search(prompt.model) or _PIECES.search(prompt.text)
    if asked is None:
        return None
    return _numbers(min(int(asked[1]), _MOST_PIECES), int(asked[2] or 0) / 1000)


@lru_cache(maxsize=16)
def _numbers(count: int, gap: float) -> ModelAnswer:
    pieces = tuple(f" {n}" if n > 1 else "1" for n in range(1, count + 1))
    return ModelAnswer(pieces=pieces, pacing=Pacing(piece=gap))


def results_of_tools(prompt: ModelPrompt) -> ModelAnswer | None:
    if not prompt.tool_results:
        return None
    said = (f"{r.tool} said: {_shortened(r.output, _RESULT_QUOTED)}" for r in prompt.tool_results)
    return saying("\n".join(said))


def requested_calls(prompt: ModelPrompt) -> ModelAnswer | None:
    """For `call Shell-delete {"path": "/data/x"}`, once or several times: calls to tools that are offered."""
    asked = list(_calls_in(prompt.text))
    calls = tuple(call for call in asked if call.name in prompt.tools)
    if calls:
        return ModelAnswer(tool_calls=calls)
    if any(call.arguments != "{}" for call in asked):
        offered = ", ".join(prompt.tools) or "none at all"
        return saying(f"There is no tool {asked[0].name}. What I may call: {offered}.")
    return None


def _calls_in(text: str) -> Iterator[FunctionCall]:
    position = 0
    while found := _CALL.search(text, position):
        position = found.end()
        arguments = "{}"
        if found["arguments"]:
            arguments, position = _arguments_at(text, found.start("arguments"))
        yield FunctionCall(None, found["tool"].rstrip("."), arguments)


def _arguments_at(text: str, start: int) -> tuple[str, int]:
    """The JSON object at `start` and its end; if it is invalid, the rest of the line."""
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        end = len(text) if (newline := text.find("\n", start)) < 0 else newline
    return text[start:end], end


def sight(prompt: ModelPrompt) -> ModelAnswer | None:
    if not prompt.images:
        return None
    count = len(prompt.images)
    seen = "; ".join(map(_described, prompt.images))
    said = f" You said: “{_shortened(prompt.text, _QUOTED)}”" if prompt.text else ""
    return saying(f"I see {count} image{'s' if count > 1 else ''} ({seen}).{said}")


def _described(image: PromptImage) -> str:
    return (
        "a link, which I do not open" if image.mime_type is None else f"{image.mime_type}, {image.size} bytes"
    )


def looking_back(prompt: ModelPrompt) -> ModelAnswer | None:
    """Answers questions about the first message, the previous one, and their number."""
    if _FIRST.search(prompt.text):
        return saying(f"You first said: “{_shortened(prompt.user_texts[0], _QUOTED)}”")
    if _PREVIOUS.search(prompt.text):
        earlier = prompt.user_texts[:-1]
        if not earlier:
            return saying("This is the first thing you say to me.")
        return saying(f"Before that you said: “{_shortened(earlier[-1], _QUOTED)}”")
    if _HOW_MANY.search(prompt.text):
        count = len(prompt.user_texts)
        return saying(f"You have sent {count} message{'s' if count > 1 else ''}.")
    return None


def recollection(prompt: ModelPrompt) -> ModelAnswer | None:
    """Answers questions about facts in earlier messages."""
    if _EVERYTHING.search(prompt.text):
        facts = facts_in(prompt.statements)
        said = "; ".join(fact.to_user for fact in facts)
        return saying(f"You told me: {said}." if facts else "You have told me nothing yet.")
    thing = _asked_for(prompt.text)
    if thing is None:
        return None
    fact = known(thing, prompt.statements)
    return saying(f"{_capitalised(fact)}." if fact else f"You have not told me {_unknown(thing)}.")


def _asked_for(text: str) -> str | None:
    if _WHO.search(text):
        return "name"
    if found := _WHERE.search(text):
        return found["thing"].lower()
    found = _QUESTION.search(text)
    return found["thing"] if found else None


def _unknown(thing: str) -> str:
    return f"where you {thing}" if thing in ("live", "work") else f"your {thing}"


def summary(prompt: ModelPrompt) -> ModelAnswer | None:
    """Summarizes the facts, in sentences in which `facts_in` finds them again."""
    if not _SUMMARY.search(prompt.text):
        return None
    known_facts = "; ".join(fact.of_user for fact in facts_in(prompt.statements))
    return saying(f"{_capitalised(known_facts)}." if known_facts else "Nothing to remember was said.")


def acknowledgement(prompt: ModelPrompt) -> ModelAnswer | None:
    """Acknowledges a message that states facts."""
    facts = facts_in([Statement(prompt.text, by_user=True)])
    if not facts:
        return None
    if [fact.about for fact in facts] == ["name"]:
        return saying(f"Nice to meet you, {_bare_name(facts[0].to_user)}.")
    return saying(f"Noted: {'; '.join(fact.to_user for fact in facts)}.")


def _bare_name(sentence: str) -> str:
    return sentence.removeprefix("your name is ")


def courtesy(prompt: ModelPrompt) -> ModelAnswer | None:
    if _GREETING.match(prompt.text):
        name = known("name", prompt.statements)
        called = f", {_bare_name(name)}" if name else ""
        return saying(f"Hello{called}! How can I help?")
    if _THANKS.match(prompt.text):
        return saying("You are welcome.")
    if _FAREWELL.match(prompt.text):
        return saying("Goodbye!")
    return None


def echo(prompt: ModelPrompt) -> ModelAnswer:
    if not prompt.text.strip():
        return saying("You said nothing, and I agree.")
    return saying(f"You said: “{_shortened(prompt.text, _QUOTED)}”")


ANSWERS: Sequence[Callable[[ModelPrompt], ModelAnswer | None]] = (
    results_of_tools,
    counted_pieces,
    requested_calls,
    sight,
    looking_back,
    summary,
    recollection,
    acknowledgement,
    courtesy,
    echo,
)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
