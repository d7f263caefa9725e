"""Reducers: the steps that shorten a view. Each is a callable of the shape `views.Reducer`.

====================  ====================================================================================
`message_count`       the last `max_messages` messages
`sliding_window`      the last `max_rounds` rounds: a user's message and all that followed
`token_budget`        as many messages as fit into the model's window, or into `max_tokens`
`trim_tool_results`   tool results, the long ones shortened, except the last few
`summarize`           a summary of older messages, written by the model
====================  ====================================================================================

All count what is always sent, too: the running round, and (tokens) system prompt, notes and tools. The first
three end the reading: in the last place they bound what is read. `summarize` belongs in the first place,
where it receives what the others leave out.

Third parties add others by the entry-point group `tealagents.reducers`, or as `module:Class` (made with its
`Options`) or `module:function`.
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
    """The options of every reducer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: when it works: as messages are read for a call of the model, or as they are added
    trigger: Trigger = "before_retrieval"


class MessageCountOptions(ReducerOptions):
    #: messages besides the system prompt, those of the running round included
    max_messages: int = Field(ge=1)


class MessageCount:
    """Shows the last messages, as many as fit beside the running round."""

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
    """Shows whole rounds only: each begins with a user's message."""

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
    #: windows of models, by the beginning of their names; they win over the built-in table
    windows: dict[str, int] = {}
    #: `o200k_base`, `cl100k_base`, `estimate` or `module:function`; None: the model's
    tokenizer: str | None = None
    #: tokens of an image; services count by its size
    image_tokens: int = Field(default=1200, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _reserve_of_a_window(cls, data: Any) -> Any:
        """A model's whole window must leave room for the answer."""
        if isinstance(data, dict) and data.get("max_tokens") is None and "reserve" not in data:
            return data | {"reserve": 4096}
        return data


class TokenBudget:
    """Shows as many messages as fit beside what is always sent."""

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
        room = (self._budget or 0) - self._always_sent(upcoming)
        async for part in parts:
            room -= self.weigh(part)
            if part.messages and room < 0:
                return
            yield part

    def weigh(self, part: Part) -> int:
        """The tokens of a part, counted once."""
        name = self._counter.name
        known = part.weights.get(name)
        if known is None:
            count, images = self._counter.count, self._options.image_tokens
            known = sum(message_tokens(message, count, images) for message in part.messages)
            if part.standing:
                known += message_tokens(_text_message("user", part.standing), count, images)
            part.weights[name] = known
        return known

    def _always_sent(self, upcoming: Upcoming) -> int:
        tokens = sum(self.weigh(part) for part in upcoming.running)
        tokens += sum(MESSAGE_TOKENS + self._fixed_tokens(text) for text in upcoming.system)
        return tokens + self._fixed_tokens(upcoming.tools)

    def _fixed_tokens(self, text: str | bytes) -> int:
        """The tokens of prompts and tools, which rarely change. The latest few counts are cached."""
        known = self._fixed.get(text)
        if known is None:
            known = self._counter.count(text.decode() if isinstance(text, bytes) else text)
            if len(self._fixed) >= 8:
                self._fixed.clear()
            self._fixed[text] = known
        return known


class TrimToolResultsOptions(ReducerOptions):
    #: characters that are left of a result, without the remark on what was cut
    max_characters: int = Field(default=500, ge=0)
    #: results, counted from the newest, that are shown whole; those of the running round always are
    keep_last: int = Field(default=0, ge=0)


class TrimToolResults:
    """Shortens long tool results; the call and the beginning of its result stay."""

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
    "Summarise the conversation for the assistant who continues it. Keep names, numbers, decisions, "
    "preferences, open questions and what tools have done. Use at most {max_words} words."
)

_REQUEST = "Summarise the conversation above."

_SUMMARY = "Summary of the earlier conversation, which is not shown:\n"


class SummarizeOptions(ReducerOptions):
    #: messages since the last summary beyond which a new one is made
    max_messages: int = Field(default=40, ge=2)
    #: messages that are not summarised: at least so many, in whole rounds
    keep_messages: int = Field(default=10, ge=0)
    #: the instructions for the model
    instructions: str = _INSTRUCTIONS
    #: longest summary, in words; `{max_words}` in `instructions`
    max_words: int = Field(default=200, ge=1)
    #: characters of one message that the model is sent
    max_characters: int = Field(default=4000, ge=1)
    #: messages that are read for one summary; older ones are not in it
    max_read: int = Field(default=400, ge=2)

    @model_validator(mode="after")
    def _leaves_something_to_summarise(self) -> "SummarizeOptions":
        if self.keep_messages >= self.max_messages:
            raise ValueError("keep_messages must be less than max_messages")
        return self


class Summarize:
    """Replaces older messages by a summary.

    A summary is made once there are `max_messages` since the last one: of that one and the messages since,
    except the last `keep_messages`. It is kept with the checkpoint and reused until the next one. Where the
    model fails to make one, the messages stay, and the next call tries again.
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
            yield Part(standing=_SUMMARY + str(known["text"]))
        for part in fresh:
            yield part

    async def _since(self, parts: AsyncIterator[Part], upto: int | None) -> tuple[list[Part], list[Part]]:
        """The parts since the last summary, newest first, and standing ones."""
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
        """The number of the newest parts, in whole rounds, that have at least `keep_messages`."""
        kept = 0
        for n, part in enumerate(fresh):
            if kept >= self._options.keep_messages and (n == 0 or fresh[n - 1].turn != part.turn):
                return n
            kept += len(part.messages)
        return len(fresh)

    async def _summary(self, older: Sequence[Part], before: str, upcoming: Upcoming) -> str | None:
        """The model's summary, or None where it fails; a step of the trace either way."""
        options, watch = self._options, Stopwatch()
        messages = [message for part in reversed(older) for message in part.messages]
        lines = [_line(message, options.max_characters) for message in messages]
        instructions = options.instructions.replace("{max_words}", str(options.max_words))
        if before:
            instructions += f"\n\nSummary so far, to be continued:\n{before}"
        usage = Usage()
        try:
            text, usage = await ask(upcoming.model, instructions, "\n".join(lines), _REQUEST)
            failed = "" if text else "the model returned no text"
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
    """One call of the model, outside of any conversation, and its usage."""
    messages = (model.encode(_text_message("user", text)) for text in texts)
    call = ModelCall(prompt=(model.encode_system(instructions), *messages))
    answer: list[str] = []
    usage = Usage()
    async with aclosing(model.stream(call)) as events:
        async for event in events:
            if isinstance(event, ModelDone):
                usage = event.usage
            else:
                answer.append(event.text)
    return "".join(answer).strip(), usage


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
    """The view of a config's reducers; None without any. `ThreadConfigError` for a wrong one."""
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
