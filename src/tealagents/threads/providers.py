"""The built-in context providers.

`UserPreferences` remembers what the user prefers; it is also the example to copy. `Facts` remembers what
users say about themselves, and finds it again.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import ClassVar

from pydantic import Field

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json, Message
from tealagents.domain.ports import Governance, Tool, ToolContext, ToolSpec
from tealagents.state.memories import MOST_MEMORIES, Memory, Remembered
from tealagents.threads.context import (
    Context,
    ContextProvider,
    Invocation,
    ProviderOptions,
)

#: characters at the beginning of a message that are searched. All of 20 MB would take seconds, in which every
#: other request of the process waits, and gigabytes of memory for its sentences
SEARCHED = 100_000


# --- preferences ----------------------------------------------------------------------------------

#: a character that does not end a sentence: `.`, `!` and `?` right before a letter or a digit are part of a
#: number, a name or an address
_IN_SENTENCE = r"(?:[^.!?\n]|[.!?](?=\w))"
#: “I”, unless the word before it makes it a question or a condition (“do I”, “if I”)
_I = r"\bI" + "".join(
    rf"(?<!\b{word} I)" for word in ("do", "did", "should", "would", "if", "when", "whether")
)
_PREFERENCE = re.compile(
    rf"{_I}(?: (?:really|generally|usually|always|would))? prefer ((?:(?!;){_IN_SENTENCE}){{1,200}})", re.I
)
_FORGET = re.compile(r"(.*?)\bforget\s+(?:all\s+)?my\s+preferences\b", re.I)
#: the end of a clause, as far as a pattern can recognize it
_CLAUSES = re.compile(
    r"[.!?;:—–()\n]"
    r"|(?:(?<=rather not)|(?<!\bnot)(?<!n['’]t)(?<!never)(?<!ever)(?<!please))"
    r"(?:\s-+\s|,(?!\s*(?:ever\b|please\s*,)))",
    re.I,
)
#: a request in the form of a negation: “Can't you …?”, “Why don't you …?”, “Why not …?”
_POLITE_NEGATION = re.compile(
    r"\bwhy\s+(?:not\b|(?:do|ca|could)n['’]t\s+you\b)|\b(?:ca|could)n['’]t\s+you\b", re.I
)
#: a negation, and up to five of these words between it and the verb that it negates
_NEGATED = re.compile(
    r"(?:n['’]t|\b(?:dont|not|cannot|never))"
    r"(?:\W+(?:you|ever|please|just|dare|want|need|think|should|to)){0,5}\W*$",
    re.I,
)
#: before “forget”: the clause is then a statement (“I forget”), a question (“do you forget”) or a condition
#: (“if you forget”), not a request
_NOT_A_REQUEST = re.compile(r"\b(?:I|they|(?:do|did)\s+you)\s+$|^\W*(?:if|when)\s+you\s+$", re.I)


class UserPreferences(ContextProvider):
    """Remembers every “I prefer …” of a user, and adds it to the instructions in all of the user's sessions.

    “Forget my preferences” erases them, unless it is negated or is not a request (“if you forget …”).
    """

    name = "user_preferences"

    async def invoking(self, invocation: Invocation) -> Context | None:
        known = await invocation.memory.recall()
        if not known:
            return None
        listed = "\n".join(f"- {each.text}" for each in known)
        return Context(
            instructions=f"What the user prefers, from earlier messages; later ones count more:\n{listed}"
        )

    async def invoked(
        self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
    ) -> None:
        if error is not None:
            return
        text = invocation.text[:SEARCHED]
        if _asks_to_forget(text):
            await invocation.memory.forget([each.memory_id for each in await invocation.memory.recall()])
        wishes = _PREFERENCE.findall(text)[-MOST_MEMORIES:]
        await invocation.memory.remember_all([wish.strip() for wish in wishes])


def _asks_to_forget(text: str) -> bool:
    """Whether any clause of the text asks to forget the preferences."""
    found = filter(None, map(_FORGET.match, _CLAUSES.split(text)))
    before = (_POLITE_NEGATION.sub("", each[1]) for each in found)
    return any(not _NEGATED.search(each) and not _NOT_A_REQUEST.search(each) for each in before)


# --- facts ----------------------------------------------------------------------------------------

_SENTENCES = re.compile(rf"{_IN_SENTENCE}+[.!?]?")
#: what a sentence contains in which users speak about themselves, or ask to remember something
_ABOUT_THE_USER = re.compile(
    r"\b(?:remember(?: that)?|my \w+(?: \w+)? (?:is|are|was)|call me|I(?<!\bdo I)(?<!\bdid I)"
    r"(?:['’]m| am| was born| live| work| have| like| love| hate| need| use))\b",
    re.I,
)
_WORDS = re.compile(r"\w+")
_COMMON = frozenset(
    _WORDS.findall(
        "a an the and or but i you he she it we they me my your is are was were be been am do does did"
        " have has had what which who when where why how this that these those to of in on at for with"
        " from by about as not no yes can could will would should please tell know"
    )
)


class FactsOptions(ProviderOptions):
    #: most facts that are added to the instructions
    top_k: int = Field(default=5, ge=1)
    #: the most characters of a fact; the rest is cut off
    max_characters: int = Field(default=300, ge=1)
    #: whether the model gets tools to search for facts and to note them
    tools: bool = True


class Facts(ContextProvider):
    """Remembers what users say about themselves, and adds the facts that concern a new message.

    A sentence such as “My cat is called Tom.” or “Remember that …” is kept word for word. The instructions
    get the facts from other tasks that share words with the new message, or the latest ones if none does.
    With the option `tools`, the model can search for further facts and note some itself.
    """

    Options: ClassVar = FactsOptions
    options: FactsOptions
    name = "facts"

    async def invoking(self, invocation: Invocation) -> Context | None:
        known = [each for each in await invocation.memory.recall() if each.task_id != invocation.task_id]
        found = search(known, invocation.text[:SEARCHED], self.options.top_k) or known[-self.options.top_k :]
        listed = "\n".join(f"- {phrased(each, invocation.messages[0].created_at)}" for each in found)
        return Context(
            instructions=f"Facts from earlier conversations with the user:\n{listed}" if found else "",
            tools=tools_of(invocation.memory, self.options) if self.options.tools else (),
        )

    async def invoked(
        self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
    ) -> None:
        if error is not None:
            return
        said = statements(invocation.text[:SEARCHED])
        facts = [sentence[: self.options.max_characters] for sentence in said]
        await invocation.memory.remember_all(facts)


def statements(text: str) -> list[str]:
    """The last `MOST_MEMORIES` sentences in which users speak about themselves, in order; no questions."""
    sentences = (sentence.strip() for sentence in reversed(_SENTENCES.findall(text)))
    found = (each for each in sentences if _ABOUT_THE_USER.search(each) and not each.endswith("?"))
    return [*islice(found, MOST_MEMORIES)][::-1]


#: patterns of the first person, and what replaces them in the third; applied in this order
_OF_THE_USER = [
    (re.compile(r"^\W*remember(?: that)?\b", re.I), "the user asked to remember that"),
    (re.compile(r"\bI(?: am|['’]m)\b", re.I), "the user is"),
    (re.compile(r"\bI was\b", re.I), "the user was"),
    (re.compile(r"\bI have\b", re.I), "the user has"),
    (re.compile(r"\bI (live|work|like|love|hate|need|use)\b", re.I), r"the user \1s"),
    (re.compile(r"^\W*(?:please,? )?call me\b", re.I), "the user is called"),
    (re.compile(r"\bcall me\b", re.I), "call the user"),
    (re.compile(r"\bmy\b", re.I), "the user's"),
]


def phrased(fact: Remembered, now: datetime) -> str:
    """A fact for the model: in the third person, because the model would take “I” for itself, and with its
    age at `now`."""
    text = fact.text
    for own, of_the_user in _OF_THE_USER:
        text = own.sub(of_the_user, text)
    days = (now - fact.at).days
    when = "today" if days < 1 else "yesterday" if days == 1 else f"{days} days ago"
    return f"{text[:1].upper()}{text[1:]} ({when})"


def search(facts: Sequence[Remembered], query: str, most: int) -> list[Remembered]:
    """Up to `most` facts that share words with the query, best first.

    Rare words count more. Of facts that match equally well, the later one comes first.
    """
    wanted = _terms(query)
    terms = [_terms(fact.text) for fact in facts]
    spread = Counter(term for each in terms for term in each)
    scores = [
        (sum(math.log(1 + len(facts) / spread[term]) for term in each & wanted), n)
        for n, each in enumerate(terms)
    ]
    ranked = sorted((score for score in scores if score[0] > 0), reverse=True)
    return [facts[n] for _, n in ranked[:most]]


def _terms(text: str) -> set[str]:
    """The words of a text without their endings, and without the most common words."""
    words = set(_WORDS.findall(text.lower())) - _COMMON
    return {re.sub(r"(?:ies|es|s|ing|ed|e)$", "", word) if len(word) > 4 else word for word in words}


class FactTool:
    """The tool `facts-search` or `facts-remember`."""

    def __init__(self, spec: ToolSpec, memory: Memory, options: FactsOptions) -> None:
        self.spec = spec
        self._memory = memory
        self._options = options

    async def call(self, context: ToolContext, arguments: Json) -> str:
        (wanted,) = self.spec.parameters["required"]
        text = arguments.get(wanted)
        if not isinstance(text, str) or not text.strip():
            raise ToolFailed(f"{wanted} must be a text")
        if self.spec is _REMEMBER:
            await self._memory.remember(text.strip()[: self._options.max_characters])
            return "Noted."
        found = search(await self._memory.recall(), text, max(10, self._options.top_k))
        now = datetime.now(UTC)
        return "\n".join(phrased(each, now) for each in found) or "No facts found."


def _spec(name: str, description: str, argument: str, meaning: str) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": {argument: {"type": "string", "description": meaning}},
            "required": [argument],
        },
        governance=Governance(data_sensitivity="confidential"),
    )


_SEARCH = _spec(
    "facts-search",
    "Search the facts from earlier conversations with the user.",
    "query",
    "Words to search for",
)
_REMEMBER = _spec(
    "facts-remember",
    "Note a fact about the user, for later conversations.",
    "fact",
    "The fact, in one sentence",
)


def tools_of(memory: Memory, options: FactsOptions) -> tuple[Tool, ...]:
    """The tools `facts-search` and, unless the memory is read-only, `facts-remember`."""
    specs = (_SEARCH,) if memory.read_only else (_SEARCH, _REMEMBER)
    return tuple(FactTool(spec, memory, options) for spec in specs)
