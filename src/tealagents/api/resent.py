"""Histories that clients keep and send again, taken apart: what is new in one, and what was said before."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tealagents.api.decisions import CallAnswer
from tealagents.api.names import is_message
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Item, Json
from tealagents.state.new_message import Earlier

#: why a message is refused that comes with answers
ADDS_A_MESSAGE = "answers calls and adds a message: send the answers first, alone"


class Instruction(Struct, frozen=True):
    """A system or developer message: for this request only."""

    text: str


class Made(Struct, frozen=True):
    """An item that the service produced and the client resends: a call, or a request to approve one."""

    call_id: str = ""
    #: the call, in words
    text: str = ""


class AnsweredCall(Struct, frozen=True):
    """The output of a call, or the decision on it."""

    call_id: str
    answer: CallAnswer


Entry = Earlier | Instruction | Made | AnsweredCall


class Resent(Struct, frozen=True):
    """A resent history, split after the last thing that the assistant said or did."""

    before: Sequence[Entry]
    new: Sequence[Entry]
    #: the instructions in it, wherever they stand
    instructions: str
    #: the answers in `before`: some clients put each right behind its call, and a pause may have several
    answered: Sequence[AnsweredCall] = ()

    @property
    def items(self) -> tuple[Item, ...]:
        """What the user says last."""
        return tuple(item for each in self.new if isinstance(each, Earlier) for item in each.items)

    @property
    def answers(self) -> list[AnsweredCall]:
        return [each for each in self.new if isinstance(each, AnsweredCall)]

    @property
    def calls(self) -> set[str]:
        """The ids of the calls that are in it."""
        return {each.call_id for each in self.before if isinstance(each, Made)}

    @property
    def calls_only(self) -> "Resent":
        """The same for a conversation that has its own history: of what was said before, only the calls."""
        return replace(self, before=[each for each in self.before if isinstance(each, Made)])

    @property
    def holds_calls(self) -> bool:
        """Whether it holds calls. If so, the client keeps the whole history itself."""
        return any(isinstance(each, Made) for each in self.before)


def taken_apart(entries: Sequence[Entry], field: str) -> Resent:
    """Splits a history: everything after the last thing that the assistant said or did is new.

    Answers to calls of this history count as history if a user message follows them. A user message before
    answers is the one that led to the calls, sent again. `InvalidRequest`, naming `field`, if nothing new is
    a message or an answer, or if a message follows new answers.
    """
    split = max((n for n, each in enumerate(entries, 1) if _is_ours(each)), default=0)
    if any(isinstance(each, Earlier) for each in entries[split:]):
        made = {each.call_id for each in entries[:split] if isinstance(each, Made)}
        while isinstance(each := entries[split], AnsweredCall) and each.call_id in made:
            split += 1
    instructions = (each.text for each in entries if isinstance(each, Instruction))
    answered = [each for each in entries[:split] if isinstance(each, AnsweredCall)]
    found = Resent(entries[:split], entries[split:], "\n\n".join(filter(None, instructions)), answered)
    kinds = [type(each) for each in found.new if isinstance(each, Earlier | AnsweredCall)]
    if AnsweredCall in kinds and Earlier in kinds[kinds.index(AnsweredCall) :]:
        raise InvalidRequest(field, ADDS_A_MESSAGE)
    if not found.answers and not found.items:
        raise InvalidRequest(field, "must end with a user message that has text or an image")
    return found


def _is_ours(entry: Entry) -> bool:
    return isinstance(entry, Made) or (isinstance(entry, Earlier) and entry.role == "assistant")


def in_words(entries: Sequence[Entry]) -> list[Earlier]:
    """The messages of a history. The output of each call becomes a message in words, once."""
    said, calls = list[Earlier](), dict[str, str]()
    for each in entries:
        if isinstance(each, Made):
            calls[each.call_id] = each.text
        elif isinstance(each, Earlier) and each.items:
            said.append(each)
        elif isinstance(each, AnsweredCall) and each.answer.output is not None:
            said.append(outcome(calls.pop(each.call_id, "A call"), each.answer.output))
    return said


def unresolved(reference: Json, where: str) -> Earlier | Made:
    """What stands for an item that is referred to and was not looked up: a call, or an empty message.

    `InvalidRequest` if the reference can name no item.
    """
    name = reference.get("id")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{where}.id", "must be the id of an item of a response")
    if is_message(name.lower()):
        raise InvalidRequest(f"{where}.id", "names a message that was sent: send the message itself")
    if name[:3].lower() == "fc_":
        return Made(f"call{name[2:]}")
    return Earlier("assistant", ())


def said_of(output: Any, error: Any) -> str | None:
    """What came of a call whose result is an output or an error, in words; None where there is neither."""
    of = output or error or output
    if of is None or isinstance(of, str):
        return of
    known = of if isinstance(of, dict) else {}
    content = known.get("content")
    parts = [*(content if isinstance(content, list) else [{"text": content}]), {"text": known.get("message")}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str)) or json.dumps(of, ensure_ascii=False)


def outcome(call: str, returned: object) -> Earlier:
    """What a call returned, as the assistant may have said it."""
    return Earlier("assistant", (Item("text", f"{call} returned: {returned}"),))
