"""Reducers: the steps that shorten a view. Each is a callable of the shape `views.Reducer`.

====================  ====================================================================================
`message_count`       the last `max_messages` messages
`sliding_window`      the last `max_rounds` rounds: a user's message and all that followed
`token_budget`        as many messages as fit into the model's window, or into `max_tokens`
`trim_tool_results`   tool results, the long ones shortened, except the last few
`summarize`           a summary of older messages, written by the model
====================  ====================================================================================

All but `summarize` also count what is always sent: the running round, and for `token_budget` system prompt,
notes and tools as well. The first three stop the reading of older messages once enough is shown; they do so
in the last place, too. `summarize` belongs in the first place, so that it receives what the others leave out.

Third parties add others by the entry-point group `tealagents.reducers`, or as `module:Class` (made with its
`Options`) or `module:function`.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, ClassVar

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tealagents.domain import ids
from tealagents.domain.models import Item, Message
from tealagents.domain.ports import Model
from tealagents.threads.errors import ThreadConfigError
from tealagents.threads.model_faults import faults_of
from tealagents.threads.tokens import (
    ESTIMATE,
    MESSAGE_TOKENS,
    TokensUnknown,
    counter_for,
    message_tokens,
    window_of,
)
from tealagents.threads.views import Part, Trigger, Upcoming


class ReducerOptions(BaseModel):
    """The options of every reducer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: when it runs: when messages are read for a call of the model, or after they are added
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
    #: the beginning of a model's name → its window; these come before the built-in table
    windows: dict[str, int] = {}
    #: `o200k_base`, `cl100k_base`, `estimate` or `module:function`; None: the model's
    tokenizer: str | None = None
    #: tokens that each image counts for; services count by the image's size
    image_tokens: int = Field(default=1200, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _reserve_of_a_window(cls, data: Any) -> Any:
        """Without `max_tokens`, the budget is the model's whole window, in which the answer needs room."""
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
        #: counter and budget are the model's once `prepare` has set them
        self._counter = ESTIMATE
        self._budget = 0
        #: a prompt or tools → their tokens
        self._fixed: dict[str | bytes, int] = {}

    def prepare(self, model: str) -> None:
        """Finds the model's tokenizer and window. `ThreadConfigError` if they are unknown, or the window
        leaves no room."""
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
        if not self._budget:
            self.prepare(upcoming.model.name)
        room = self._budget - self._always_sent(upcoming)
        async for part in parts:
            room -= self.weigh(part, upcoming.model)
            if part.messages and room < 0:
                return
            yield part

    def weigh(self, part: Part, model: Model) -> int:
        """The tokens of a part; the part keeps the count."""
        name = self._counter.name
        known = part.weights.get(name)
        if known is None:
            count, images = self._counter.count, self._options.image_tokens
            known = sum(message_tokens(_as_sent(each, model), count, images) for each in part.messages)
            if part.standing:
                known += message_tokens(text_message(part.standing), count, images)
            part.weights[name] = known
        return known

    def _always_sent(self, upcoming: Upcoming) -> int:
        tokens = sum(self.weigh(part, upcoming.model) for part in upcoming.running)
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


def _as_sent(message: Message, model: Model) -> Message:
    """The message, without native data of another model or client, which this model is not sent."""
    if not message.native:
        return message
    without = replace(message, native="")
    with faults_of(model):
        return without if model.encode(message) == model.encode(without) else message


class TrimToolResultsOptions(ReducerOptions):
    #: characters that are left of a result, without the note on what was cut
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


def text_message(text: str) -> Message:
    """A text as a user's message, so that it can be counted or encoded."""
    name = ids.random_id()
    now = datetime.now(UTC)
    return Message(message_id=name, request_id=name, role="user", created_at=now, items=(Item("text", text),))
