"""What a client sends, read: what is new in it, what was said before, and what answers a pause."""

import hashlib
from collections.abc import Mapping
from typing import Any, get_args

from ag_ui import core
from msgspec import Struct

from tealagents.api import bodies, items, setups
from tealagents.api.decisions import CallAnswer, answer
from tealagents.api.names import parsed
from tealagents.api.transcripts import Kept
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Item
from tealagents.state.audit_chain import canonical
from tealagents.state.new_message import MOST_EARLIER, Earlier, NewMessage

#: characters of the ids that a client makes up
LONGEST_ID = 255
_TALK = core.UserMessage | core.AssistantMessage | core.ToolMessage


class Given(Struct, frozen=True, kw_only=True):
    """One input."""

    body: core.RunAgentInput
    #: the user's messages at its end, which may be new, by marks: the same for the same message sent again
    last: Mapping[str, tuple[Item, ...]]
    #: the marks of those whose ids a snapshot gave them, by their requests
    issued: Mapping[str | None, str]
    #: what goes with them, and what was said before
    message: NewMessage
    #: what frontend tools returned, by call; of the tool messages at its end
    outputs: Mapping[str, CallAnswer]
    #: answers to interrupts by their ids; None cancels
    resume: Mapping[str, CallAnswer | None]
    #: the request and the number that each of the assistant's messages shows, oldest first
    shown: tuple[tuple[str | None, str], ...]
    #: the request whose answer the client has seen last, and its text there: none while it only calls tools
    seen: str | None
    answer: str
    #: what the client has, oldest first
    kept: tuple[Kept, ...]

    @property
    def run(self) -> dict[str, str]:
        return {"threadId": self.body.thread_id, "runId": self.body.run_id}

    @property
    def is_old(self) -> bool:
        """Whether the client is from before 1.0: it sends no version, and its outcomes are only two."""
        return self.body.protocol_version is None


def read(value: Any) -> Given:
    """An input, from its JSON. `InvalidRequest`."""
    body = bodies.validated(core.RunAgentInput, items.known(value, get_args(core.Role)))
    for name, given in (("threadId", body.thread_id), ("runId", body.run_id)):
        if not 1 <= len(given) <= LONGEST_ID:
            raise InvalidRequest(name, f"must have 1 to {LONGEST_ID} characters")
    instructions = [m for m in body.messages if isinstance(m, core.SystemMessage | core.DeveloperMessage)]
    talk = [m for m in body.messages if isinstance(m, _TALK)]
    kept = tuple(Kept(m.id, m.role, () if isinstance(m, core.ToolMessage) else _items(m)) for m in talk)
    start = max((n for n, m in enumerate(talk, 1) if isinstance(m, core.AssistantMessage)), default=0)
    users = [(_mark(each), each) for each in kept[start:] if each.role == "user"]
    last = {mark: each.items for mark, each in users}
    said = [Earlier(m.role, m.items) for m in kept[:start] if m.role != "tool" and m.items]
    context: dict[str, list[str]] = {}
    for each in body.context or ():
        context.setdefault(each.description, []).extend(filter(None, [each.value]))
    told = {name: "\n".join(values) for name, values in context.items()}
    answers = [m for m in talk if isinstance(m, core.AssistantMessage)]
    shown = tuple(parsed(m.id, "msg") for m in answers)
    return Given(
        body=body,
        last=last,
        issued={parsed(each.name, "msg")[0]: mark for mark, each in users},
        message=NewMessage(
            items=(),
            earlier=tuple(said[-MOST_EARLIER:]),
            setup=setups.setup((m.content for m in instructions), body.tools or (), user_context=told),
        ),
        outputs={m.tool_call_id: _output(m) for m in talk[start:] if isinstance(m, core.ToolMessage)},
        resume=_resume(body),
        shown=shown,
        seen=shown[-1][0] if shown else None,
        answer="".join(m.content or "" for m in answers[-1:] if not m.tool_calls),
        kept=kept,
    )


def _items(message: Any) -> tuple[Item, ...]:
    """The parts that an agent can use; others are passed over, as the protocol asks. Nothing is fetched."""
    return items.read(message.content or "", "messages.content", _item)


def _item(part: core.ContentPart, _: str) -> Item | None:
    match part:
        case core.TextPart():
            return Item("text", part.text)
        case core.ImagePart(source=core.DataSource(value=value, mime_type=mime_type)):
            return items.usable_image(f"data:{mime_type.partition(';')[0].strip()};base64,{value}")
        case core.ImagePart(source=core.UrlSource(value=uri)):
            return items.usable_image(uri)
    return None


def _mark(message: Kept) -> str:
    said = [message.name, *([item.content_type, item.content] for item in message.items)]
    return hashlib.sha256(canonical(said)).hexdigest()[:32]


def _output(sent: core.ToolMessage) -> CallAnswer:
    text = "".join(item.content for item in _items(sent) if item.content_type == "text")
    return CallAnswer(output="\n".join(filter(None, (text, sent.error))), is_error=sent.error is not None)


def _resume(body: core.RunAgentInput) -> dict[str, CallAnswer | None]:
    bodies.check_count(body.resume, bodies.MISTAKES, "resume")  # each may be looked up
    found: dict[str, CallAnswer | None] = {}
    for n, entry in enumerate(body.resume or ()):
        if entry.interrupt_id in found:
            raise InvalidRequest(f"resume.{n}.interruptId", "is answered twice")
        resolved = entry.status == "resolved"
        found[entry.interrupt_id] = answer(entry.payload, f"resume.{n}.payload") if resolved else None
    return found
