"""The facts that the built-in model finds in messages: explicit statements of certain forms.

"My name is Ada", "call me Ada", "my favourite colour is green", "I live in Oslo", "remember that …". To find
memories in the instructions as well, also "the user's name is Ada" and lines such as "favourite colour:
green". A later fact replaces an earlier one about the same thing. In instructions, only statements about the
user count.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: A fact ends at a full stop, at the end of its line, or where the next one begins; a longer text is no fact.
_END = r"(?=[.!;,]{0,9}\s{0,9}(?:$|\n|[.!;]\s|,?\s{1,9}(?:and|but)\s{1,9}(?:my|i|call)\b|,\s{1,9}(?:my|i)\b))"
_SENTENCE_END = r"(?=[.!]{0,9}\s{0,9}(?:$|\n|[.!]\s))"
_VALUE = r"\S.{0,200}?"
_THING = r"(?P<thing>[a-z][\w -]{0,40}?)"
_NAME = r"[\w'’-]*(?:[ ](?-i:[A-Z])[\w'’-]*)*"

_STATEMENT = re.compile(
    rf"\b(?:my|(?:the )?user['’]s)\s+{_THING}\s+(?:is|are|=)\s+(?P<value>{_VALUE}){_END}"
    rf"|\b(?:call me|i am called)\s+(?P<name>[^\W\d_]{_NAME})"
    rf"|\b(?:i am|i['’]m)\s+(?P<capital>(?-i:[A-Z]){_NAME})"
    rf"|\b(?:i|the user)\s+(?P<verb>live|work)s?\s+(?P<place>(?:in|at|for|as)\s+{_VALUE}){_END}"
    rf"|\b(?:the user asked to )?remember(?:\s+that|:|,)\s*(?P<note>{_VALUE}){_SENTENCE_END}",
    re.IGNORECASE | re.MULTILINE,
)
_ABOUT_USER = re.compile(r"(?:the )?user\b", re.IGNORECASE)
#: Facts are searched only in the first characters of a message: longer ones are documents, not chat.
_MOST_SEARCHED = 8_000
_SPELLINGS = str.maketrans({"_": " ", "-": " "})


@dataclass(frozen=True, slots=True)
class Fact:
    #: What it is about, in normalized spelling.
    about: str
    #: As a clause to the user ("your …") and about the user ("the user's …").
    to_user: str
    of_user: str


class Statement(NamedTuple):
    """The text of a message, in which facts are searched."""

    text: str
    #: False: it is part of the instructions.
    by_user: bool


def facts_in(statements: Iterable[Statement]) -> list[Fact]:
    """The facts, in the order of their latest statement."""
    facts: dict[str, Fact] = {}
    for text, by_user in statements:
        for fact in _facts(text, by_user):
            facts.pop(fact.about, None)
            facts[fact.about] = fact
    return list(facts.values())


def known(thing: str, statements: Sequence[Statement]) -> str | None:
    """The answer to "what is my {thing}?", without capital and full stop; None if it is unknown."""
    about = _key(thing)
    found = next((fact.to_user for fact in facts_in(statements) if fact.about == about), None)
    return found or _listed(thing, about, statements)


def _facts(text: str, by_user: bool) -> Iterator[Fact]:
    for found in _STATEMENT.finditer(text, 0, _MOST_SEARCHED):
        said = found.group()
        if not said.endswith("?") and (by_user or _ABOUT_USER.match(said)):
            yield _fact(found)
            if found["note"]:
                yield from _facts(found["note"], True)


def _fact(found: re.Match[str]) -> Fact:
    if thing := found["thing"]:
        return Fact(_key(thing), *(f"{whose} {thing} is {found['value']}" for whose in _WHOSE))
    if name := found["name"] or found["capital"]:
        return Fact("name", *(f"{whose} name is {name}" for whose in _WHOSE))
    if found["verb"]:
        verb = found["verb"].lower()
        return Fact(verb, f"you {verb} {found['place']}", f"the user {verb}s {found['place']}")
    return Fact(_key(found["note"]), found["note"], f"the user asked to remember that {found['note']}")


_WHOSE = ("your", "the user's")


def _listed(thing: str, about: str, statements: Sequence[Statement]) -> str | None:
    """The answer from a line of its own, such as `favourite colour: green`."""
    for text, _ in reversed(statements):
        for line in reversed(text.splitlines()):
            key, colon, value = line.partition(":")
            if colon and value.strip() and _key(key.strip(" -*•\"'")) == about:
                return f"your {thing} is {value.strip()}"
    return None


def _key(thing: str) -> str:
    spelled = thing.lower().translate(_SPELLINGS)
    return " ".join(spelled.replace("favourite", "favorite").replace("colour", "color").split())
