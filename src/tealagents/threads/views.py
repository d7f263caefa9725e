"""Views: the part of a conversation that the model is sent. What is stored is never changed.

A conversation is split into *parts*: messages that must stay together. A view passes the earlier parts,
newest first, through its reducers; each is an async generator that yields some of them. A reducer that
returns ends the reading, so that what is not shown is not read from the log either::

    log ──► newest part, the one before, … ──► reducer ──► reducer ──► shown

The running round never passes through a reducer: it is always sent whole. So a tool call can only be left
out together with its results, and the system prompt not at all.
"""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from datetime import UTC, datetime
from inspect import iscoroutine
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import TealError, ViewFailed, described, ends_task, ungrouped
from tealagents.domain.models import Item, Json, Message, TokenUsage
from tealagents.domain.ports import Model
from tealagents.domain.texts import storable
from tealagents.state.history import grouped

log = logging.getLogger(__name__)

#: when a reducer runs: after messages are added, or when they are read for a call of the model
Trigger = Literal["before_retrieval", "after_message_added"]


class Part(Struct, kw_only=True, eq=False):
    """One message, or an assistant's tool calls with all their results, or a standing text.

    A standing text (a summary) is no message: it is sent after the system prompt. Reducers receive it before
    all messages, and yield it.
    """

    messages: tuple[Message, ...] = ()
    #: the number of its round: rises by one a round, from any first number
    turn: int = 0
    #: whether it is the first part of its round
    begins: bool = False
    standing: str = ""
    #: whether it is known that there is no older part
    first: bool = False
    #: cached counts (by tokenizer) and encodings; a changed part starts without them
    weights: dict[str, int] = {}
    encoded: tuple[bytes, ...] = ()

    def changed(self, messages: Sequence[Message]) -> "Part":
        """The same part of the conversation, with other messages to show."""
        return Part(messages=tuple(messages), turn=self.turn, begins=self.begins, first=self.first)


class Report(Struct, frozen=True, kw_only=True):
    """A step of the trace: something that changed what the model is sent."""

    kind: Literal["reduction", "context"] = "reduction"
    name: str
    started_at: datetime
    duration_ms: float = 0
    input: Json | None = None
    output: Json | None = None
    usage: TokenUsage | None = None
    is_error: bool = False


class Upcoming(Struct, kw_only=True):
    """The upcoming call of the model, for which a view is made."""

    model: Model
    #: texts besides the conversation: system prompt, instructions, notes
    system: Sequence[str] = ()
    #: the tools' description, as it is sent
    tools: bytes = b""
    #: the running round, in parts, oldest first; empty after it has ended
    running: Sequence[Part] = ()
    #: the state of reducers in this conversation, by their names: any JSON, kept with the next checkpoint. A
    #: user may have written it, into a document that was imported
    memory: Json = {}
    moment: Trigger = "before_retrieval"
    reports: list[Report] = []


class Reducer(Protocol):
    """A step of a view: any callable of this shape.

    It receives the earlier parts newest first, standing ones before them, and yields those to show, in the
    same order. It may leave parts out, yield `part.changed(…)`, and add standing ones at the front. When it
    returns, nothing older is read. The parts of `upcoming.running` are always sent, and count.

    Three attributes are optional: `name`; `trigger`, when it works; and `bounds`: it works once more after
    all others, so that parts they enlarged are bounded as well.
    """

    def __call__(self, parts: AsyncIterator[Part], upcoming: Upcoming, /) -> AsyncIterator[Part]: ...


@runtime_checkable
class Preparable(Protocol):
    """A reducer that depends on the model: it gets the name once, at start, and may reject it."""

    def prepare(self, model: str, /) -> None: ...


class Shown(Struct, frozen=True, kw_only=True):
    """The part of the earlier rounds that a view shows."""

    standing: tuple[str, ...]
    #: oldest first
    parts: tuple[Part, ...]
    #: whether anything older than the first part is not shown
    cut: bool
    #: ids of messages after the first part that are not shown, newest first
    left_out: tuple[str, ...] = ()
    #: ids of messages whose shown content differs from the stored one
    altered: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        return not (self.cut or self.left_out or self.altered)

    def omitted(self, upcoming: Upcoming) -> Json:
        """For the trace: the messages that the model is not sent."""
        omitted: Json = {"kept_messages": sum(len(part.messages) for part in self.parts)}
        if self.cut:
            first = next((part for part in (*self.parts, *upcoming.running) if part.messages), None)
            omitted["everything_before"] = first.messages[0].message_id if first else None
        if self.left_out:
            omitted["left_out"] = list(self.left_out)
        if self.altered:
            omitted["altered"] = list(self.altered)
        return omitted


class View:
    """The reducers of an agent, applied in their order."""

    def __init__(self, reducers: Sequence[Reducer]) -> None:
        self.reducers = tuple(reducers)
        self._adding = tuple(each for each in reducers if trigger_of(each) == "after_message_added")
        reading = [each for each in reducers if trigger_of(each) == "before_retrieval"]
        # a later reducer may enlarge a part, so reducers that bound the size run once more at the end
        order = [*self._adding, *reading]
        again = [each for each in order[:-1] if getattr(each, "bounds", False)]
        self._reading = (*reading, *again)

    @property
    def names(self) -> list[str]:
        return [name_of(each) for each in self.reducers]

    @property
    def works_on_adding(self) -> bool:
        """Whether any reducer runs after messages are added."""
        return bool(self._adding)

    async def show(self, earlier: AsyncIterator[Part], upcoming: Upcoming) -> Shown:
        """Applies the reducers to the earlier parts, which are read one by one, newest first.

        Reducers for added messages come first, even if the messages were added elsewhere.
        """
        reducers = self._adding if upcoming.moment == "after_message_added" else self._adding + self._reading
        source = _Counted(earlier)
        streams: list[AsyncGenerator[Part, None]] = [source.parts()]
        failed = _Failed()
        try:
            with ungrouped():
                for reducer in reducers:
                    streams.append(_reduced(reducer, streams[-1], upcoming, failed))
                shown = [part async for part in streams[-1]]
            failed.name = ""  # a later reducer may have caught what an earlier one raised
            for report in upcoming.reports:
                if not isinstance(report, Report):
                    raise TypeError(f"it reported {type(report).__name__}, not a Report")
        except TealError:
            raise
        except BaseException as error:  # a reducer may be third-party code
            if ends_task(error):
                raise
            is_only = len(self.names) == 1
            which = f"{'The reducer' if is_only else 'One of the reducers'} {', '.join(self.names)}"
            blamed = "" if is_only or not failed.name else f"{failed.name}: "
            said = f"{which} failed ({storable(blamed + described(error))})."
            # without the error's text, which may quote a message
            log.error("the reducer %s failed", failed.name or ", ".join(self.names), exc_info=error)
            raise ViewFailed(said) from error
        finally:
            failed.error = None  # its traceback refers to all who have seen it, and so to the messages
            for stream in reversed(streams):
                await stream.aclose()
        return source.shown(shown)


class _Failed(Struct, eq=False):
    """The reducer that has failed, and what it raised."""

    name: str = ""
    error: BaseException | None = None


async def _reduced(
    reducer: Reducer, parts: AsyncIterator[Part], upcoming: Upcoming, failed: _Failed
) -> AsyncGenerator[Part, None]:
    """The parts that a reducer yields. It is noted as `failed` unless its error comes from one before it."""
    made: object = None
    try:
        made = reducer(parts, upcoming)
        if not isinstance(made, AsyncIterable):
            kind = type(made).__name__
            raise TypeError(f"it must be an async generator of (parts, upcoming), but returned {kind}")
        async for part in made:
            yield _checked(part)
    except BaseException as error:
        if error is not failed.error:
            failed.name, failed.error = name_of(reducer), error
        raise
    finally:
        if iscoroutine(made):  # of a reducer without `yield`
            made.close()
        elif isinstance(made, AsyncGenerator):
            await made.aclose()


class _Counted:
    """Records the parts that are read, to report those that were left out."""

    def __init__(self, parts: AsyncIterator[Part]) -> None:
        self._parts = parts
        self._read: list[Part] = []
        self._ended = False

    async def parts(self) -> AsyncGenerator[Part, None]:
        async for part in self._parts:
            self._read.append(part)
            self._ended = part.first
            yield part
        self._ended = True

    def shown(self, passed_on: Sequence[Part]) -> Shown:
        for part in passed_on:
            check_whole(part)
        kept = {message.message_id: message for part in passed_on for message in part.messages}
        read = [message for part in self._read for message in reversed(part.messages)]
        oldest = max((n for n, each in enumerate(read) if each.message_id in kept), default=-1)
        return Shown(
            standing=tuple(part.standing for part in passed_on if part.standing),
            parts=tuple(part for part in reversed(passed_on) if part.messages),
            cut=not self._ended or oldest + 1 < len(read),
            left_out=tuple(each.message_id for each in read[: oldest + 1] if each.message_id not in kept),
            altered=tuple(
                each.message_id for each in read[: oldest + 1] if kept.get(each.message_id, each) is not each
            ),
        )


def _checked(part: object) -> Part:
    """The part that a reducer yielded. `TypeError` if it is no valid `Part`."""
    if not isinstance(part, Part):
        raise TypeError(f"it yielded {type(part).__name__}, not a Part")
    for each in part.messages:
        if not isinstance(each, Message):
            raise TypeError(f"it yielded a Part with a {type(each).__name__} in place of a Message")
        if not all(isinstance(item, Item) for item in each.items):
            raise TypeError("it yielded a Message whose items are not all of the class Item")
    if not isinstance(part.standing, str):
        raise TypeError(f"it yielded a Part whose standing text is {type(part.standing).__name__}")
    return part


def check_whole(part: Part) -> None:
    """`ViewFailed` for a part whose calls and results do not match: the model service would reject it in
    every later turn."""
    called = [call.id for message in part.messages for call in message.tool_calls]
    answered = [message.tool_call_id for message in part.messages if message.role == "tool"]
    if sorted(called) != sorted(str(call_id) for call_id in answered):
        raise ViewFailed("A reducer separated a tool call from its result.")


def name_of(reducer: object) -> str:
    """The name of a reducer in the trace."""
    return str(getattr(reducer, "name", None) or getattr(reducer, "__name__", type(reducer).__name__))


def trigger_of(reducer: object) -> Trigger:
    trigger: Trigger = getattr(reducer, "trigger", "before_retrieval")
    return trigger


# --- a conversation in parts ----------------------------------------------------------------------


def parts_of(messages: Sequence[Message], turn: int = 0) -> list[Part]:
    """A round's messages in parts, oldest first, without calls that have no result and results that have no
    call, which no model service accepts."""
    parts: list[Part] = []
    for group in grouped(messages):
        if group[0].tool_calls:
            group = _answered(group[0], group[1:])
        if group[0].role != "tool" and (group[0].tool_calls or group[0].items):
            parts.append(Part(messages=tuple(group), turn=turn, begins=not parts))
    return parts


def _answered(message: Message, results: Sequence[Message]) -> list[Message]:
    """The calls that have a result, with their results."""
    by_call = {result.tool_call_id: result for result in results}
    calls = tuple(call for call in message.tool_calls if call.id in by_call)
    if len(calls) != len(message.tool_calls):
        message = replace(message, tool_calls=calls)
    wanted = {call.id for call in calls}
    return [message, *(result for call_id, result in by_call.items() if call_id in wanted)]


async def newest_first(parts: Sequence[Part]) -> AsyncIterator[Part]:
    """All parts, from memory."""
    if parts:
        parts[0].first = True
    for part in reversed(parts):
        yield part


class Stopwatch:
    """The start of something, and its duration."""

    def __init__(self) -> None:
        self.started_at = datetime.now(UTC)
        self._started = time.perf_counter()

    @property
    def milliseconds(self) -> float:
        return round((time.perf_counter() - self._started) * 1000, 3)
