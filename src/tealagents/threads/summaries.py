"""The reducer `summarize`: the model writes a summary of older messages, which the checkpoint keeps."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import ClassVar

from pydantic import Field, model_validator

from tealagents.domain.errors import ModelFailed, TealError
from tealagents.domain.events import ModelDone
from tealagents.domain.models import Json, Message, TokenUsage
from tealagents.domain.ports import Model, ModelCall
from tealagents.domain.texts import storable
from tealagents.threads.model_faults import faults_of, stream_of
from tealagents.threads.reducers import ReducerOptions, text_message
from tealagents.threads.views import Part, Report, Stopwatch, Upcoming

_INSTRUCTIONS = (
    "Summarise the conversation for the assistant who continues it. Keep names, numbers, decisions, "
    "preferences, open questions and what tools have done. Use at most {max_words} words."
)

_REQUEST = "Summarise the conversation above."

_SUMMARY = "Summary of the earlier conversation, which is not shown:\n"


class SummarizeOptions(ReducerOptions):
    #: most messages since the last summary; with more of them, a new summary is made
    max_messages: int = Field(default=40, ge=2)
    #: the newest messages are not summarised: at least this many, in whole rounds
    keep_messages: int = Field(default=10, ge=0)
    #: the instructions for the model
    instructions: str = _INSTRUCTIONS
    #: words that the model is asked to use at most; `{max_words}` in `instructions`
    max_words: int = Field(default=200, ge=1)
    #: characters of each message that the model is sent to summarise; the rest is cut
    max_characters: int = Field(default=4000, ge=1)
    #: messages, as whole parts, that are read for one summary; older ones are not in it
    max_read: int = Field(default=400, ge=2)

    @model_validator(mode="after")
    def _leaves_something_to_summarise(self) -> "SummarizeOptions":
        if self.keep_messages >= self.max_messages:
            raise ValueError("keep_messages must be less than max_messages")
        if self.max_messages >= self.max_read:  # no more are read, so that more would never be counted
            raise ValueError("max_messages must be less than max_read")
        return self


class Summarize:
    """Replaces older messages by a summary.

    Once there are more than `max_messages` messages since the last summary, a new one is made from that
    summary and from these messages, except the last `keep_messages`. It is kept with the checkpoint, and
    shown until the next one is made. If the model fails, refuses or is cut short, the messages stay, and the
    next call tries again.
    """

    Options: ClassVar = SummarizeOptions
    name = "summarize"

    def __init__(self, options: SummarizeOptions) -> None:
        self.trigger = options.trigger
        self._options = options

    async def __call__(self, parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
        known = intact_summary(upcoming.memory.get(self.name))
        fresh, standing = await self._since(parts, known.get("upto"))
        for part in standing:
            yield part
        count = sum(len(part.messages) for part in fresh)
        if upcoming.moment == self.trigger and count > self._options.max_messages:
            cut = self._cut(fresh)
            if fresh[cut:]:
                made = await self._summary(fresh[cut:], known.get("text", ""), upcoming)
                if made:
                    known = {"upto": fresh[cut].turn, "text": made}
                    upcoming.memory[self.name] = known
                    fresh = fresh[:cut]
        if known:
            yield Part(standing=standing_text(known["text"]))
        for part in fresh:
            yield part

    async def _since(self, parts: AsyncIterator[Part], upto: int | None) -> tuple[list[Part], list[Part]]:
        """The parts after the round `upto`, which the last summary ends with, newest first; and the standing
        parts."""
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
        """How many of the newest parts are not summarised: whole rounds with `keep_messages` or more."""
        kept = 0
        for n, part in enumerate(fresh):
            if kept >= self._options.keep_messages and (n == 0 or fresh[n - 1].turn != part.turn):
                return n
            kept += len(part.messages)
        return len(fresh)

    async def _summary(self, older: Sequence[Part], before: str, upcoming: Upcoming) -> str | None:
        """The model's summary, or None if it made none; either way, a report for the trace is added."""
        options, watch = self._options, Stopwatch()
        messages = [message for part in reversed(older) for message in part.messages]
        lines = [_line(message, options.max_characters) for message in messages]
        instructions = options.instructions.replace("{max_words}", str(options.max_words))
        if before:
            instructions += f"\n\nSummary so far, to be continued:\n{before}"
        text, usage = "", TokenUsage()
        try:
            text, done = await ask(upcoming.model, instructions, "\n".join(lines), _REQUEST)
            usage, failed = done.usage, "" if text else "the model returned no text"
            if done.finish_reason != "stop":  # a refusal, or a part of a summary, would replace the messages
                failed = f"the model ended with {done.finish_reason}"
        except TealError as error:
            failed = error.detail
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
        return None if failed else text


def intact_summary(known: object) -> Json:
    """The summary that a conversation remembers: `text`, and the round `upto` which it reaches. Empty if
    there is none, or if an imported document had something else in its place."""
    if not isinstance(known, dict):
        return {}
    return known if type(known.get("upto")) is int and isinstance(known.get("text"), str) else {}


def standing_text(summary: str) -> str:
    """A summary as it is sent to the model."""
    return _SUMMARY + summary


def _line(message: Message, most: int) -> str:
    """A message as text to be summarised, with its content and its tool calls cut at `most` characters."""
    said = "".join("[image]" if item.content_type == "image" else item.content for item in message.items)
    if message.role == "tool":
        return f"{message.tool} said: {said[:most]}"
    calls = "; ".join(f"{call.tool} {call.arguments}"[:most] for call in message.tool_calls)
    called = f" (called {calls})" if calls else ""
    return f"{message.role.capitalize()}: {said[:most]}{called}"


async def ask(model: Model, instructions: str, *texts: str) -> tuple[str, ModelDone]:
    """One model call outside any conversation, with each of `texts` as a user's message.

    Returns what the model says, made storable, and how it ended. `ModelFailed` if the call fails,
    whatever the client raises.
    """
    answer: list[str] = []
    done: ModelDone | None = None
    with faults_of(model):
        messages = (model.encode(text_message(text)) for text in texts)
        call = ModelCall(prompt=(model.encode_system(instructions), *messages))
        async with aclosing(stream_of(model, call)) as batches:
            async for batch in batches:
                for event in batch:
                    if isinstance(event, ModelDone):
                        done = event
                    else:
                        answer.append(event.text)
        text = "".join(answer)
    if done is None:
        raise ModelFailed("The model service ended without an answer.")
    return storable(text).strip(), done
