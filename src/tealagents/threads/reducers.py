"""Reducers: what shortens a view. Each is a callable of the shape `views.Reducer`, in a list.

====================  ====================================================================================
`message_count`       the last `max_messages` messages
`sliding_window`      the last `max_rounds` rounds: a user's message and all that followed from it
`token_budget`        as many messages as fit into the model's window, or into `max_tokens`
`trim_tool_results`   long results of tools, cut; all but the last few
`summarize`           what lies further back, in the model's own words
====================  ====================================================================================

All count what is sent in any case, too: the round now running, and (tokens) system prompt, notes and tools.
The first three end the reading, so that put last they bound what is read; `summarize` belongs first, so
that it sees what the others leave out.

Third parties bring their own by the entry-point group `tealagents.reducers`, or as `module:Class` (made
with its `Options`) or `module:function`.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tealagents.domain import ids
from tealagents.domain.errors import TealError
from tealagents.domain.events import ModelDone
from tealagents.domain.models import Item, Json, Message, Usage
from tealagents.domain.ports import Model, ModelCall
from tealagents.registry import Registry
from tealagents.threads.components import Component, ThreadConfigError
from tealagents.threads.tokens import (
    MESSAGE_TOKENS,
    Counter,
    TokensUnknown,
    counter_for,
    estimate,
    message_tokens,
    window_of,
)
from tealagents.threads.views import (
    Part,
    Prepared,
    Reducer,
    Report,
    Stopwatch,
    Trigger,
    Upcoming,
    View,
)


class ReducerOptions(BaseModel):
    """What every reducer can be told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: when it works: as messages are read for a call of the model, or as they are added
    trigger: Trigger = "before_retrieval"


class MessageCountOptions(ReducerOptions):
    #: messages besides the system prompt, those of the running round included
    max_messages: int = Field(ge=1)


class MessageCount:
    """Shows the last messages, as many as there is room for besides the running round."""

    Options: ClassVar = MessageCountOptions
    name = "message_count"

    def __init__(self, options: MessageCountOptions) -> None:
        self.trigger = options.trigger
        self._most = options.max_messages

    async def __call__(self, parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
        room = self._most - sum(len(part.messages) for part in upcoming.running)
        async for part in parts:
            room -= len(part.messages)
            if part.messages and room < 0:
                return
            yield part
            if part.messages and room == 0:
                return


class SlidingWindowOptions(ReducerOptions):
    #: rounds, the running one included
    max_rounds: int = Field(ge=1)


class SlidingWindow:
    """Shows whole rounds only: each begins with what the user said."""

    Options: ClassVar = SlidingWindowOptions
    name = "sliding_window"

    def __init__(self, options: SlidingWindowOptions) -> None:
        self.trigger = options.trigger
        self._most = options.max_rounds

    async def __call__(self, parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
        room = self._most - (1 if upcoming.running else 0)
        async for part in parts:
            if part.messages and room <= 0:
                return
            yield part
            room -= part.begins
            if part.begins and room == 0:
                return


class TokenBudgetOptions(ReducerOptions):
    #: tokens of all that is sent; None: the model's window
    max_tokens: int | None = Field(default=None, ge=1)
    #: tokens of the window, or of `max_tokens`, that are kept free for the answer
    reserve: int = Field(default=0, ge=0)
    #: windows of models that the built-in table lacks or has otherwise, by the beginning of their names
    windows: dict[str, int] = {}
    #: `o200k_base`, `cl100k_base`, `estimate` or `module:function`; None: the model's
    tokenizer: str | None = None
    #: what an image is taken for; services count by its size
    image_tokens: int = Field(default=1200, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _reserve_of_a_window(cls, data: Any) -> Any:
        """Of a model's whole window something must be left for the answer."""
        if isinstance(data, dict) and data.get("max_tokens") is None and "reserve" not in data:
            return data | {"reserve": 4096}
        return data


class TokenBudget:
    """Shows as many messages as fit, beside all that is sent in any case."""

    Options: ClassVar = TokenBudgetOptions
    name = "token_budget"
    bounds = True

    def __init__(self, options: TokenBudgetOptions) -> None:
        self.trigger = options.trigger
        self._options = options
        self._counter = Counter("estimate", estimate)
        self._budget: int | None = None
        self._fixed: dict[str | bytes, int] = {}

    def prepare(self, model: str) -> None:
        options = self._options
        try:
            self._counter = counter_for(model, options.tokenizer)
            window = options.max_tokens or window_of(model, options.windows)
        except TokensUnknown as unknown:
            raise ThreadConfigError(str(unknown)) from None
        if window <= options.reserve:
            raise ThreadConfigError(
                f"reserve ({options.reserve}) leaves nothing of a window of {window} tokens."
            )
        self._budget = window - options.reserve

    async def __call__(self, parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
        if self._budget is None:
            self.prepare(upcoming.model.name)
        room = (self._budget or 0) - self._in_any_case(upcoming)
        async for part in parts:
            room -= self.weigh(part)
            if part.messages and room < 0:
                return
            yield part

    def weigh(self, part: Part) -> int:
        """The tokens of a part; counted once."""
        name = self._counter.name
        known = part.weights.get(name)
        if known is None:
            count, images = self._counter.count, self._options.image_tokens
            known = sum(message_tokens(message, count, images) for message in part.messages)
            if part.standing:
                known += message_tokens(_text_message("user", part.standing), count, images)
            part.weights[name] = known
        return known

    def _in_any_case(self, upcoming: Upcoming) -> int:
        tokens = sum(self.weigh(part) for part in upcoming.running)
        tokens += sum(MESSAGE_TOKENS + self._fixed_tokens(text) for text in upcoming.system)
        return tokens + self._fixed_tokens(upcoming.tools)

    def _fixed_tokens(self, text: str | bytes) -> int:
        """What is the same from call to call: prompts and tools. The latest few are remembered."""
        known = self._fixed.get(text)
        if known is None:
            known = self._counter.count(text.decode() if isinstance(text, bytes) else text)
            if len(self._fixed) >= 8:
                self._fixed.clear()
            self._fixed[text] = known
        return known


class TrimToolResultsOptions(ReducerOptions):
    #: characters that are left of a result, the remark on what was cut not counted
    max_characters: int = Field(default=500, ge=0)
    #: results, counted from the newest, that are shown whole; those of the running round always are
    keep_last: int = Field(default=0, ge=0)


class TrimToolResults:
    """Cuts long results of tools; the call and the beginning of its result stay."""

    Options: ClassVar = TrimToolResultsOptions
    name = "trim_tool_results"

    def __init__(self, options: TrimToolResultsOptions) -> None:
        self.trigger = options.trigger
        self._most = options.max_characters
        self._keep = options.keep_last

    async def __call__(self, parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
        seen = sum(_results(part) for part in upcoming.running)
        async for part in parts:
            yield self._trimmed(part, self._keep - seen)
            seen += _results(part)

    def _trimmed(self, part: Part, keep: int) -> Part:
        results = _results(part)
        cut = max(0, results - max(0, keep))
        if not cut or all(len(message.text) <= self._most for message in part.messages[1:]):
            return part
        messages = [
            self._cut(message) if message.role == "tool" and n <= cut else message
            for n, message in enumerate(part.messages)
        ]
        return part.changed(messages)

    def _cut(self, message: Message) -> Message:
        text = message.text
        if len(text) <= self._most:
            return message
        shown = f"{text[: self._most]}… [{len(text) - self._most} characters left out]"
        return replace(message, items=(Item("text", shown),))


def _results(part: Part) -> int:
    return sum(message.role == "tool" for message in part.messages)


# --- summaries ------------------------------------------------------------------------------------

_INSTRUCTIONS = (
    "Summarise the conversation for the assistant who goes on with it. Keep names, numbers, decisions, "
    "preferences, open questions and what tools have done. Use at most {max_words} words."
)

_REQUEST = "Summarise the conversation above."

_TOLD = "Summary of the earlier conversation, which is not shown:\n"


class SummarizeOptions(ReducerOptions):
    #: messages since the last summary beyond which a new one is made
    max_messages: int = Field(default=40, ge=2)
    #: messages that are then left as they are: at least so many, in whole rounds
    keep_messages: int = Field(default=10, ge=0)
    #: what the model is told to do
    instructions: str = _INSTRUCTIONS
    #: words it is asked to keep to; may stand in `instructions` as `{max_words}`
    max_words: int = Field(default=200, ge=1)
    #: characters of one message that it is shown
    max_characters: int = Field(default=4000, ge=1)
    #: messages that are read for one summary; what lies further back is not in it
    max_read: int = Field(default=400, ge=2)

    @model_validator(mode="after")
    def _leaves_something_to_summarise(self) -> "SummarizeOptions":
        if self.keep_messages >= self.max_messages:
            raise ValueError("keep_messages must be less than max_messages")
        return self


class Summarize:
    """Puts a summary in the place of what lies further back.

    It is made when `max_messages` have come together since the last one, of that one and what came after,
    but for the last `keep_messages`; it is kept with the checkpoint and reused until then. Where the model
    cannot make one, the messages stay, and it is tried again the next time.
    """

    Options: ClassVar = SummarizeOptions
    name = "summarize"

    def __init__(self, options: SummarizeOptions) -> None:
        self.trigger = options.trigger
        self._options = options

    async def __call__(self, parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
        known = upcoming.memory.get(self.name) or {}
        fresh, standing = await self._since(parts, known.get("upto"))
        for part in standing:
            yield part
        count = sum(len(part.messages) for part in fresh)
        if upcoming.moment == self.trigger and count > self._options.max_messages:
            cut = self._cut(fresh)
            if fresh[cut:]:
                made = await self._summary(fresh[cut:], str(known.get("text", "")), upcoming)
                if made:
                    known = {"upto": fresh[cut].turn, "text": made}
                    upcoming.memory[self.name] = known
                    fresh = fresh[:cut]
        if known:
            yield Part(standing=_TOLD + str(known["text"]))
        for part in fresh:
            yield part

    async def _since(self, parts: AsyncIterator[Part], upto: int | None) -> tuple[list[Part], list[Part]]:
        """The parts that no summary covers, newest first, and standing ones."""
        fresh: list[Part] = []
        standing: list[Part] = []
        count = 0
        async for part in parts:
            if not part.messages:
                standing.append(part)
                continue
            if upto is not None and part.turn <= upto:
                break
            fresh.append(part)
            count += len(part.messages)
            if count >= self._options.max_read or (part.begins and part.turn - 1 == upto):
                break
        return fresh, standing

    def _cut(self, fresh: Sequence[Part]) -> int:
        """Where the newest whole rounds end that have at least `keep_messages`."""
        kept = 0
        for n, part in enumerate(fresh):
            if kept >= self._options.keep_messages and (n == 0 or fresh[n - 1].turn != part.turn):
                return n
            kept += len(part.messages)
        return len(fresh)

    async def _summary(self, older: Sequence[Part], before: str, upcoming: Upcoming) -> str | None:
        """In the model's words, or None where it has none; told to the trace either way."""
        options, watch = self._options, Stopwatch()
        messages = [message for part in reversed(older) for message in part.messages]
        lines = [_line(message, options.max_characters) for message in messages]
        instructions = options.instructions.replace("{max_words}", str(options.max_words))
        if before:
            instructions += f"\n\nSummary so far, to be continued:\n{before}"
        usage = Usage()
        try:
            text, usage = await ask(upcoming.model, instructions, "\n".join(lines), _REQUEST)
            failed = "" if text else "the model said nothing"
        except TealError as error:
            text, failed = "", error.detail
        upcoming.reports.append(
            Report(
                name=self.name,
                started_at=watch.started_at,
                duration_ms=watch.milliseconds,
                input={
                    "messages": len(messages),
                    "first": messages[0].message_id,
                    "last": messages[-1].message_id,
                },
                output={"error": failed} if failed else {"summary": text},
                usage=usage,
                is_error=bool(failed),
            )
        )
        return text or None


def _line(message: Message, most: int) -> str:
    said = "".join("[image]" if item.content_type == "image" else item.content for item in message.items)
    if message.role == "tool":
        return f"{message.tool} said: {said[:most]}"
    calls = "; ".join(f"{call.tool} {call.arguments}"[:most] for call in message.tool_calls)
    called = f" (called {calls})" if calls else ""
    return f"{message.role.capitalize()}: {said[:most]}{called}"


async def ask(model: Model, instructions: str, *texts: str) -> tuple[str, Usage]:
    """One question to the model, outside of any conversation: what is told, and what is asked of it."""
    told = (model.encode(_text_message("user", text)) for text in texts)
    call = ModelCall(prompt=(model.encode_system(instructions), *told))
    said: list[str] = []
    usage = Usage()
    async with aclosing(model.stream(call)) as events:
        async for event in events:
            if isinstance(event, ModelDone):
                usage = event.usage
            else:
                said.append(event.text)
    return "".join(said).strip(), usage


def _text_message(role: Any, text: str) -> Message:
    name = ids.random_id()
    return Message(
        message_id=name,
        request_id=name,
        role=role,
        created_at=Stopwatch().started_at,
        items=(Item("text", text),),
    )


# --- by name --------------------------------------------------------------------------------------

REDUCERS = Registry(
    word="reducer",
    error=ThreadConfigError,
    group="tealagents.reducers",
    built_in={
        "message_count": "tealagents.threads.reducers:MessageCount",
        "sliding_window": "tealagents.threads.reducers:SlidingWindow",
        "token_budget": "tealagents.threads.reducers:TokenBudget",
        "trim_tool_results": "tealagents.threads.reducers:TrimToolResults",
        "summarize": "tealagents.threads.reducers:Summarize",
    },
)


def open_view(components: Sequence[Component], model: str) -> View | None:
    """The view of a config's reducers, or None where there are none. `ThreadConfigError` says what is wrong
    with which."""
    reducers = [open_reducer(name, options) for name, options in components]
    for reducer in reducers:
        if isinstance(reducer, Prepared):
            reducer.prepare(model)
    return View(reducers) if reducers else None


def open_reducer(name: str, options: Json) -> Reducer:
    """The reducer called `name`: one of `REDUCERS.known()`, `module:Class` or `module:function`."""
    found = REDUCERS.find(name)
    if isinstance(found, type):
        made: Reducer = found(REDUCERS.options(name, found, options))
        return made
    if options:
        raise ThreadConfigError(f"The reducer {name!r} is a function and takes no options.")
    function: Reducer = found
    return function
