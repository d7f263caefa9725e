"""The tools `ask` and `decide`: as they are listed, and what was sent with a call."""

from typing import Annotated, get_args

from mcp_types import ListToolsResult, Tool, ToolAnnotations
from pydantic import BaseModel, Field

from tealagents.api import bodies
from tealagents.api.decisions import DecisionDocument, StrictDocument, decision
from tealagents.api.exchange import key_of
from tealagents.domain import ids
from tealagents.domain.models import Caller, Item, Json, Status
from tealagents.engine.approvals import Command
from tealagents.state.new_message import Key, NewMessage

ASK, DECIDE = "ask", "decide"
_CONVERSATION = "The `conversation` of an earlier answer. Omit it to start a new conversation."
_KEY = "A unique key for this message. Sent again with the same key, it returns the first outcome."


class Ask(StrictDocument):
    message: Annotated[str, Field(min_length=1, description="What to say to the agent.")]
    conversation: Annotated[str | None, Field(description=_CONVERSATION)] = None
    idempotency_key: Annotated[str | None, Field(min_length=1, max_length=255, description=_KEY)] = None


class Decide(DecisionDocument):
    request_id: Annotated[str, Field(description="The request that is paused.")]


def message(caller: Caller, arguments: Json) -> tuple[NewMessage, Key | None]:
    """The message that a call of `ask` sends, and its idempotency key. `InvalidRequest`."""
    given = bodies.validated(Ask, arguments)
    task_id = ids.canonical(given.conversation, "conversation") if given.conversation else None  # "" is none
    same = given.model_copy(update={"conversation": task_id}).model_dump(exclude_none=True)
    key = None if (own := given.idempotency_key) is None else key_of(caller, f"mcp\n{own}", same)
    return NewMessage(items=(Item("text", given.message),), task_id=task_id), key


def decided(arguments: Json) -> tuple[str, Command]:
    """The request that a call of `decide` is about, and what it decides. `InvalidRequest`."""
    given = bodies.validated(Decide, arguments)
    return given.request_id, decision(given.model_dump(exclude={"request_id"}))


async def listed(agent: str, description: str, *_: object) -> ListToolsResult:
    """The tools as hosts see them."""
    ask = (
        f"Sends a message to the agent {agent} and returns its answer. {description} The answer names its "
        "conversation, in which the agent remembers what was said: pass it to continue."
    )
    decide = (
        "Approves or rejects the tool calls that an answer with status Paused waits for, and returns "
        "the outcome. `action` is for every call that `decisions` does not name. Ask the user."
    )
    decides = _tool(DECIDE, f"Decide what {agent} may do", decide, Decide, destructive_hint=True)
    return ListToolsResult(tools=[_tool(ASK, f"Ask {agent}", ask, Ask, open_world_hint=True), decides])


def _tool(name: str, title: str, about: str, takes: type[BaseModel], **hints: bool) -> Tool:
    schemas = {"input_schema": takes.model_json_schema(), "output_schema": _RESULT}
    annotations = ToolAnnotations(read_only_hint=False, **hints)
    return Tool(name=name, title=title, description=about, annotations=annotations, **schemas)


_RESULT: Json = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "enum": [*get_args(Status), "Refused"]},
        "conversation": {"type": "string", "description": "Pass it to `ask` to continue."},
        "request_id": {"type": "string", "description": "Quote it to the operator."},
        "output": {"type": "string", "description": "The answer."},
        "usage": {"type": "object", "description": "The tokens that it used."},
        "extra_data": {"type": "object", "description": "What the agent's tools add to the answer."},
        "approval": {"type": "object", "description": "Which calls wait, and until when."},
        "error": {"type": "object", "description": "Its code, and its message."},
    },
    "required": ["status"],
}
