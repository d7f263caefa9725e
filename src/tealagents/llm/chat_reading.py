"""Reads the answer of a chat completion, whole or in chunks. No I/O."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from tealagents.domain.events import ModelDone, TextDelta
from tealagents.domain.models import FinishReason, TokenUsage, ToolCall
from tealagents.domain.texts import storable
from tealagents.llm.adjustments import MAX_CALLS
from tealagents.llm.encoding import Shape, argument_text, is_object, parsed, reader, token_usage
from tealagents.llm.failures import complaint, cut, failed_midway, quoted, too_much, unusable
from tealagents.llm.native import ChatReasoning, kept

#: our finish reasons → the names that services use, in any case; a colon and a remark may follow a name
_NAMES: dict[FinishReason | Literal["error"], str] = {
    "stop": "stop eos eos_token end_turn stop_sequence complete tool_calls tool_call tool_use function_call",
    "length": "length model_length max_tokens model_context_window_exceeded",
    "content_filter": "content_filter safety prohibited_content blocklist spii recitation sensitive",
    "refusal": "refusal",
    # the service failed, although it sends a finish reason
    "error": "error abort network_error insufficient_system_resource malformed_function_call "
    "function_call_filter unexpected_tool_call",
}
_REASONS = {name: reason for reason, names in _NAMES.items() for name in names.split()}
#: the characters that decide where a JSON object ends: quotes, braces, and escapes, which may be incomplete
_MARKS = re.compile(r'\\.?|["{}]', re.DOTALL)


class _Function(Struct, gc=False):
    name: str | None = None
    #: a string; an object from services that do not encode it
    arguments: Any = None


class _CallFragment(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    #: Gemini's data that must be sent back with the call
    extra_content: Any = None


class _ContentPart(Struct, gc=False):
    type: str | None = None
    text: Any = None


class _Said(Struct, gc=False):
    """A message, or the delta of one."""

    #: a string; a list of parts from services that separate reasoning from text
    content: str | list[_ContentPart] | None = None
    refusal: str | None = None
    tool_calls: list[_CallFragment] | None = None
    #: reasoning, by the two names that services use
    reasoning_content: Any = None
    reasoning: Any = None
    #: OpenRouter's data that must be sent back with calls
    reasoning_details: Any = None


class _Choice(Struct, gc=False):
    index: int | None = None
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None
    error: Any = None


class _Completion(Struct, gc=False):
    """A completion, or a chunk of one, with the fields that are used."""

    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    #: `error` if a service sends the error object without an envelope
    object: Any = None


_read = reader(_Completion, {"content", "text", "refusal", "arguments", "reasoning_content", "summary"})


class _Assembled:
    """A tool call that is being assembled from fragments."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.extra: Any = None
        #: the state of `is_whole`: the number of fragments it has scanned, and where they end
        self._seen = self._depth = 0
        self._in_string = self._closed = False
        self._escape = ""

    def is_whole(self) -> bool:
        """Whether the arguments so far are a complete JSON object.

        This may be called for every fragment: each fragment is scanned once, and all are parsed at most once.
        """
        marks = _MARKS.findall(self._escape + "".join(self.arguments[self._seen :]))
        self._seen, self._escape = len(self.arguments), ""
        for mark in marks:
            if mark == '"':
                self._in_string = not self._in_string
            elif mark == "\\":
                self._escape = mark
            elif mark in "{}" and not self._in_string:
                self._depth += 1 if mark == "{" else -1
        if self._closed or self._depth or "}" not in marks:
            return False
        self._closed = True  # if it is not an object now, no further fragment makes it one
        return is_object(self.written)

    @property
    def written(self) -> str:
        """The arguments so far."""
        return storable("".join(self.arguments))


class _Calls:
    """Assembles the tool calls of an answer from their fragments."""

    def __init__(self) -> None:
        self.all: list[_Assembled] = []
        #: the number of characters in their ids, names and arguments
        self.size = 0
        #: the latest call with each index
        self._last: dict[int, _Assembled] = {}
        #: (id, name) → the index of the first call with them; with an empty name, of the first with the id
        self._places: dict[tuple[str, str], int] = {}

    def take(self, fragment: _CallFragment) -> None:
        call = self._call_of(fragment)
        known = len(call.id) + len(call.name)
        call.id = call.id or fragment.id or ""
        call.extra = fragment.extra_content or call.extra
        function = fragment.function
        if function is not None:
            call.name = call.name or function.name or ""
            if function.arguments:
                call.arguments.append(argument_text(function.arguments))
                self.size += len(call.arguments[-1])
        self.size += len(call.id) + len(call.name) - known
        for name in ("", call.name):
            self._places.setdefault((call.id, name), call.index)

    def _call_of(self, fragment: _CallFragment) -> _Assembled:
        """The call that a fragment belongs to: the latest one with its index, or a new one.

        Some services do not number calls, or number all of them 0.
        """
        index = fragment.index if fragment.index is not None else self._index_of(fragment)
        call = self._last.get(index)
        if call is not None and not _begins_another(fragment, call):
            return call
        if len(self.all) > MAX_CALLS:
            raise too_much(f"it calls more than {MAX_CALLS:,} tools")
        call = self._last[index] = _Assembled(index)
        self.all.append(call)
        return call

    def distinct(self) -> list[_Assembled]:
        """The calls without those that a gateway repeats under their own id, whole or without arguments."""
        found: dict[tuple[str, ...], _Assembled] = {}
        written = {(call.id, call.name) for call in self.all if call.arguments}
        for place, call in enumerate(self.all):
            if not call.id:
                found[(str(place),)] = call
            elif call.arguments or (call.id, call.name) not in written:
                found.setdefault((call.id, call.name, call.written), call)
        return [*found.values()]

    def _index_of(self, fragment: _CallFragment) -> int:
        """The index for a fragment without one: that of the call with its id, the latest, or a new one."""
        name = (fragment.function and fragment.function.name) or ""
        if fragment.id and (place := self._places.get((fragment.id, name))) is not None:
            return place
        last = self.all[-1].index if self.all else -1
        names_one = bool(name)
        return last + 1 if names_one or last < 0 else last


class ChatReading:
    """Reads one answer, whole or in chunks."""

    def __init__(self, secrets: Sequence[str] = (), source: str = "") -> None:
        """`source` is stored with the model's native data (`native.source_of`)."""
        self.begun = False
        self._secrets = secrets
        self._source = source
        self._reasoning = ChatReasoning()
        self._finish: str | None = None
        self._refused = False
        self._calls = _Calls()
        self._usage = TokenUsage()
        self._model = ""
        self._id: str | None = None

    @property
    def finished(self) -> bool:
        return self._finish is not None

    @property
    def ended(self) -> bool:
        return False  # the usage may follow in a chunk of its own

    @property
    def called(self) -> int:
        return self._calls.size

    def whole(self, body: bytes) -> Sequence[TextDelta]:
        """Reads a completion, which is like a chunk with `message` in place of `delta`."""
        return self.take(body)

    def take(self, data: bytes) -> Sequence[TextDelta]:
        chunk = self._understood(_read, data)
        if chunk.error or chunk.object == "error" or (chunk.choices is None and self._complains(data)):
            raise failed_midway(complaint(self._understood(parsed, data)), self._secrets)
        self._id = self._id or chunk.id
        self._model = self._model or chunk.model or ""
        if chunk.usage:
            self._usage = token_usage(chunk.usage, "prompt_tokens", "completion_tokens")
        deltas: list[TextDelta] = []
        for choice in chunk.choices or ():
            if not choice.index:
                self._take_choice(choice, deltas)
        return deltas

    def _take_choice(self, choice: _Choice, deltas: list[TextDelta]) -> None:
        said = choice.delta or choice.message
        if choice.error:
            raise failed_midway(complaint(choice.error), self._secrets)
        if choice.finish_reason:
            self.begun = True
            self._finish = choice.finish_reason
        if said is None:
            return
        content = said.content
        if content:
            self.begun = True
        if text := content if isinstance(content, str) else _text(content):
            deltas.append(TextDelta(text))
        if said.refusal:
            self.begun = self._refused = True
            deltas.append(TextDelta(said.refusal, refusal=True))
        if said.tool_calls:
            self.begun = True
            for place, fragment in enumerate(said.tool_calls):
                if choice.delta is None:
                    fragment.index = place  # the calls of a whole message are whole; ignore their numbers
                self._calls.take(fragment)
        if said.reasoning_content or said.reasoning:
            self.begun = True
        if said.reasoning_content is not None or said.reasoning_details:
            streamed = choice.delta is not None
            self._reasoning.take(said.reasoning_content, said.reasoning_details, streamed=streamed)

    def _complains(self, data: bytes) -> bool:
        """Whether this is an error that nothing but its fields marks as one."""
        match self._understood(parsed, data):
            case {"message": str(), "code": str(code)} if code:
                return True
            case {"message": str(), "code": int(code)} if code >= 400:
                return True
            case {"message": str(), "type": str(kind)}:
                return kind.endswith("error")
            case _:
                return False

    def _understood(self, read: Callable[[bytes], Shape], data: bytes) -> Shape:
        try:
            return read(data)
        except ValueError:
            raise unusable("what is not a completion", data, self._secrets) from None

    def done(self) -> ModelDone:
        if self._finish is None:
            raise cut("it ended without a finish reason")
        reason = self._finish_reason(self._finish)
        calls = self._calls.distinct() if reason == "tool_calls" else []
        return ModelDone(
            finish_reason=reason,
            tool_calls=tuple(self._tool_calls(calls)),
            usage=self._usage,
            model=self._model,
            response_id=self._id,
            native=self._native(calls) if calls else "",
        )

    def _native(self, calls: Sequence[_Assembled]) -> str:
        of_calls = [{"extra_content": call.extra} if call.extra else {} for call in calls]
        fields = {"of_message": self._reasoning.fields(), "of_calls": of_calls if any(of_calls) else []}
        return kept(self._source, len(of_calls), fields) if any(fields.values()) else ""

    def _finish_reason(self, finish: str) -> FinishReason:
        """The finish reason in our terms. An answer that did not end normally has no calls: one that was cut
        must not run, even if its arguments can be parsed."""
        reason = _REASONS.get(finish.partition(":")[0].strip().lower())
        if reason == "error":
            raise cut(f"the service gave it up ({quoted(finish, self._secrets)})")
        if reason is None and self._calls.all:
            raise cut(f"it calls tools with an unknown finish reason ({quoted(finish, self._secrets)})")
        if reason is None or reason == "stop":
            return "tool_calls" if self._calls.all else "refusal" if self._refused else "stop"
        return reason

    def _tool_calls(self, calls: Sequence[_Assembled]) -> Iterator[ToolCall]:
        for place, call in enumerate(calls):
            written = call.written
            yield ToolCall(call.id or self._made_id(place, call.name, written), call.name, written)

    def _made_id(self, place: int, name: str, written: str) -> str:
        """An id for a call that has none: always the same for one answer, different in other answers."""
        seed = "\0".join((self._id or "", str(place), name, written))
        return "call_" + hashlib.sha256(seed.encode()).hexdigest()[:24]


def _text(content: list[_ContentPart] | None) -> str:
    parts = content or ()
    return "".join(part.text for part in parts if part.type == "text" and isinstance(part.text, str))


def _begins_another(fragment: _CallFragment, call: _Assembled) -> bool:
    """Whether a fragment with the index of `call` begins another call.

    It does if it has a name and another id; with the same id, or without ids, if it has another name, or if
    its arguments begin an object after the complete object of `call`.
    """
    function = fragment.function
    if function is None or not function.name:
        return False
    if fragment.id and call.id and fragment.id != call.id:
        return True
    if not call.name or function.name != call.name:
        return bool(call.name)
    more = argument_text(function.arguments or "")
    return more.lstrip().startswith("{") and call.is_whole()
