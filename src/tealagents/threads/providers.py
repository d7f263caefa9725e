"""Context providers that come along, for every agent to use or to copy.

`UserPreferences` is the example: forty lines that remember what the user prefers. `Facts` remembers what
users say about themselves and finds it again.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import Json, Message
from tealagents.domain.ports import Governance, Tool, ToolContext, ToolSpec
from tealagents.state.memories import Remembered
from tealagents.threads.context import (
    Context,
    ContextProvider,
    Invocation,
    ProviderOptions,
    UserMemory,
)

# --- preferences ----------------------------------------------------------------------------------

_PREFERS = re.compile(r"\bI(?: (?:really|generally|usually|always|would))? prefer ([^.!?;\n]{1,200})", re.I)
_FORGET = re.compile(r"\bforget (?:all )?my preferences\b", re.I)


class UserPreferences(ContextProvider):
    """Remembers every “I prefer …” of a user, and tells the model in all their sessions.

    “Forget my preferences” is done, too. In the thread it keeps what was learned in it.
    """

    name = "user_preferences"

    async def invoking(self, invocation: Invocation) -> Context | None:
        known = await invocation.memory.recall()
        if not known:
            return None
        listed = "\n".join(f"- {each.text}" for each in known)
        return Context(
            instructions=f"What the user prefers, as told earlier; the later counts more:\n{listed}"
        )

    async def invoked(
        self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
    ) -> None:
        if error is not None:
            return
        if _FORGET.search(invocation.text):
            await invocation.memory.forget([each.memory_id for each in await invocation.memory.recall()])
            invocation.state.clear()
        for wish in _PREFERS.findall(invocation.text):
            await invocation.memory.remember(wish.strip())
            invocation.state.setdefault("learned", []).append(wish.strip())


# --- facts ----------------------------------------------------------------------------------------

_SENTENCES = re.compile(r"[^.!?\n]+[.!?]?")
#: how people speak of themselves, and how they ask for something to be kept
_ABOUT = re.compile(
    r"\b(?:remember(?: that)?|my \w+(?: \w+)? (?:is|are|was)|I am|I'm|I was born|I live|I work|I have|I like"
    r"|I love|I hate|I need|I use|call me)\b",
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
    #: how many facts the model is told by itself
    top_k: int = 5
    #: characters of one fact
    max_characters: int = 300
    #: the model may look for facts, and note some, by tools
    tools: bool = True


class Facts(ContextProvider):
    """Remembers what users say about themselves, and finds what bears on what they ask.

    A sentence such as “My cat is called Tom.” or “Remember that …” is kept as it was said. The model is told
    the facts that share words with the new message, or the latest where none does; it can search for others,
    and note some by itself.
    """

    Options: ClassVar = FactsOptions
    name = "facts"

    def __init__(self, options: FactsOptions | None = None) -> None:
        super().__init__(options)
        self._own = options or FactsOptions()

    async def invoking(self, invocation: Invocation) -> Context | None:
        known = [each for each in await invocation.memory.recall() if each.task_id != invocation.task_id]
        found = search(known, invocation.text, self._own.top_k) or known[-self._own.top_k :]
        listed = "\n".join(f"- {told(each, invocation.messages[0].created_at)}" for each in found)
        return Context(
            instructions=f"Facts the user has told in earlier conversations:\n{listed}" if found else "",
            tools=tools_of(invocation.memory, self._own) if self._own.tools else (),
        )

    async def invoked(
        self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
    ) -> None:
        if error is not None:
            return
        for sentence in statements(invocation.text):
            await invocation.memory.remember(sentence[: self._own.max_characters])


def statements(text: str) -> list[str]:
    """The sentences in which somebody speaks of themselves; questions are none."""
    sentences = (sentence.strip() for sentence in _SENTENCES.findall(text))
    return [each for each in sentences if _ABOUT.search(each) and not each.endswith("?")]


#: how what somebody says of themselves is said of them
_OF_THE_USER = [
    (re.compile(r"^\W*remember(?: that)?\b", re.I), "the user asked to remember that"),
    (re.compile(r"\b(?:I am|I'm)\b", re.I), "the user is"),
    (re.compile(r"\bI was\b", re.I), "the user was"),
    (re.compile(r"\bI have\b", re.I), "the user has"),
    (re.compile(r"\bI (live|work|like|love|hate|need|use)\b", re.I), r"the user \1s"),
    (re.compile(r"\bcall me\b", re.I), "the user is called"),
    (re.compile(r"\bmy\b", re.I), "the user's"),
]


def told(fact: Remembered, now: datetime) -> str:
    """A fact for the model: of the user, who may not be the one it talks about as I; and how old it is."""
    text = fact.text
    for own, of_the_user in _OF_THE_USER:
        text = own.sub(of_the_user, text)
    days = (now - fact.at).days
    when = "today" if days < 1 else "yesterday" if days == 1 else f"{days} days ago"
    return f"{text[:1].upper()}{text[1:]} ({when})"


def search(facts: Sequence[Remembered], query: str, most: int) -> list[Remembered]:
    """The facts that share words with the query, best first: rare words count more, then later facts."""
    wanted = _terms(query)
    terms = [_terms(fact.text) for fact in facts]
    spread = Counter(term for each in terms for term in set(each))
    scores = [
        (sum(math.log(1 + len(facts) / spread[term]) for term in set(each) & set(wanted)), n)
        for n, each in enumerate(terms)
    ]
    ranked = sorted((score for score in scores if score[0] > 0), reverse=True)
    return [facts[n] for _, n in ranked[:most]]


def _terms(text: str) -> list[str]:
    """Words without their endings, the most common ones left out."""
    words = (word for word in _WORDS.findall(text.lower()) if word not in _COMMON)
    return [re.sub(r"(?:ies|es|s|ing|ed|e)$", "", word) if len(word) > 4 else word for word in words]


class FactTool:
    """One of the tools with which the model uses the memory of the user it serves."""

    def __init__(self, spec: ToolSpec, memory: UserMemory, options: FactsOptions) -> None:
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
        return "\n".join(told(each, now) for each in found) or "Nothing is known of that."


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
    "Look for facts that the user told in earlier conversations.",
    "query",
    "Words to look for",
)
_REMEMBER = _spec(
    "facts-remember",
    "Note a fact about the user, for later conversations.",
    "fact",
    "The fact, in one sentence",
)


def tools_of(memory: UserMemory, options: FactsOptions) -> tuple[Tool, ...]:
    return (FactTool(_SEARCH, memory, options), FactTool(_REMEMBER, memory, options))
