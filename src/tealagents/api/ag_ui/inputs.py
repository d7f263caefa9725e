"""What a client sends, read: what is new in it, what was said before, and what answers a pause."""

import hashlib
from collections.abc import Mapping
from typing import Any

from ag_ui import core
from msgspec import Struct

from tealagents.api import bodies
from tealagents.api.decisions import Answer
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import ClientTool, Item
from tealagents.state.audit_chain import canonical
from tealagents.state.submission import MOST_EARLIER, Earlier

#: characters of the ids that a client makes up
LONGEST_ID = 255
_TALK = core.UserMessage | core.AssistantMessage | core.ToolMessage


class Said(Struct, frozen=True):
    """A user's message. `mark` is the same for the same message sent again."""

    items: tuple[Item, ...]
    mark: str


class Given(Struct, frozen=True, kw_only=True):
    """One input."""

    thread_id: str
    run_id: str
    parent_run_id: str | None
    #: the user's messages at its end, which may be new
    last: tuple[Said, ...]
    #: what frontend tools returned, and whether they failed, by call; of the tool messages at its end
    outputs: Mapping[str, tuple[str, bool]]
    #: what was said before these
    earlier: tuple[Earlier, ...]
    #: the ids of the assistant's messages, oldest first
    shown: tuple[str, ...]
    #: answers to interrupts by their ids; None cancels
    resume: Mapping[str, Answer | None]
    instructions: str
    context: dict[str, str]
    tools: tuple[ClientTool, ...]


def read(value: Any) -> Given:
    """An input, from its JSON. `InvalidRequest`."""
    body = bodies.validated(core.RunAgentInput, value)
    for name, given in (("threadId", body.thread_id), ("runId", body.run_id)):
        if not 1 <= len(given) <= LONGEST_ID:
            raise InvalidRequest(name, f"must have 1 to {LONGEST_ID} characters")
    told = [m for m in body.messages if isinstance(m, core.SystemMessage | core.DeveloperMessage)]
    talk = [m for m in body.messages if isinstance(m, _TALK)]
    start = max((n for n, m in enumerate(talk, 1) if isinstance(m, core.AssistantMessage)), default=0)
    before, end = talk[:start], talk[start:]
    context: dict[str, str] = {}
    for each in body.context or ():
        context[each.description] = "\n".join(filter(None, (context.get(each.description), each.value)))
    return Given(
        thread_id=body.thread_id,
        run_id=body.run_id,
        parent_run_id=body.parent_run_id,
        last=tuple(Said(_items(m), _mark(m)) for m in end if isinstance(m, core.UserMessage)),
        outputs={m.tool_call_id: _output(m) for m in end if isinstance(m, core.ToolMessage)},
        earlier=tuple(filter(None, map(_earlier, before)))[-MOST_EARLIER:],
        shown=tuple(m.id for m in before if isinstance(m, core.AssistantMessage)),
        resume=_resume(body),
        instructions="\n\n".join(m.content for m in told if m.content),
        context=context,
        tools=tuple(_tool(n, tool) for n, tool in enumerate(body.tools or ())),
    )


def _items(message: Any) -> tuple[Item, ...]:
    """The parts that an agent can use; others are passed over, as the protocol asks. Nothing is fetched."""
    content = message.content
    if not isinstance(content, list):
        return (Item("text", content),) if content else ()
    found = (_item(part) for part in content)
    return tuple(item for item in found if item is not None and item.content)


def _item(part: core.ContentPart) -> Item | None:
    if isinstance(part, core.TextPart):
        return Item("text", part.text)
    source = part.source
    uri = source.value if isinstance(source, core.UrlSource) else ""
    if isinstance(source, core.DataSource):
        uri = f"data:{source.mime_type};base64,{source.value}"
    if not isinstance(part, core.ImagePart) or not uri.startswith("data:"):
        return None
    if problem := bodies.image_problem(uri):
        raise InvalidRequest("messages.content.source", problem)
    return Item("image", uri)


def _mark(message: core.UserMessage) -> str:
    said = message.model_dump(mode="json", by_alias=True, include={"id", "content"})
    return hashlib.sha256(canonical(said)).hexdigest()[:32]


def _output(message: core.ToolMessage) -> tuple[str, bool]:
    text = "".join(item.content for item in _items(message) if item.content_type == "text")
    return "\n".join(filter(None, (text, message.error))), message.error is not None


def _earlier(message: Any) -> Earlier | None:
    items = () if isinstance(message, core.ToolMessage) else _items(message)
    return Earlier(message.role, items) if items else None


def _resume(body: core.RunAgentInput) -> dict[str, Answer | None]:
    found: dict[str, Answer | None] = {}
    for n, entry in enumerate(body.resume or ()):
        if entry.interrupt_id in found:
            raise InvalidRequest(f"resume.{n}.interruptId", "is answered twice")
        try:
            answer = bodies.validated(Answer, entry.payload) if entry.status == "resolved" else None
        except InvalidRequest as error:
            raise InvalidRequest(f"resume.{n}.payload", error.detail) from None
        found[entry.interrupt_id] = answer
    return found


def _tool(n: int, tool: core.Tool) -> ClientTool:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"tools.{n}.parameters", "must be a JSON Schema, an object")
    return ClientTool(tool.name, tool.description, parameters)
