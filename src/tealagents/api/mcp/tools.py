"""The tools `ask` and `decide`: as they are listed, and what was sent with a call."""

from typing import Annotated

from mcp_types import Tool, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field

from tealagents.api import bodies
from tealagents.api.decisions import Decision
from tealagents.api.exchange import key_of
from tealagents.domain import ids
from tealagents.domain.models import Item, Json
from tealagents.state.submission import Key, NewMessage

ASK, DECIDE = "ask", "decide"


class _Ask(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    message: Annotated[str, Field(min_length=1, description="What to say to the agent.")]
    conversation: Annotated[
        str | None,
        Field(description="That of an earlier answer, to continue it; else a new one begins."),
    ] = None
    idempotency_key: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=255,
            description="Names this message: sent again under it, it is not acted upon again.",
        ),
    ] = None


class _Decide(Decision):
    request_id: Annotated[str, Field(description="The request that is paused.")]


def message(arguments: Json) -> tuple[NewMessage, Key | None]:
    """The message that a call of `ask` sends, and its idempotency key. `InvalidRequest`."""
    given = bodies.validated(_Ask, arguments)
    task_id = None if given.conversation is None else ids.canonical(given.conversation, "conversation")
    key = None if given.idempotency_key is None else key_of(f"mcp\n{given.idempotency_key}", arguments)
    return NewMessage(items=(Item("text", given.message),), task_id=task_id), key


def listed(agent: str, description: str) -> list[Tool]:
    """The tools as hosts see them."""
    ask = (
        f"Sends a message to the agent {agent} and returns its answer. {description} The answer names its "
        "conversation, in which the agent remembers what was said: pass it to continue."
    )
    decide = (
        "Approves or rejects the tool calls that an answer with status Paused waits for, and returns what "
        "came of them. `action` is for every call that `decisions` does not name. The user decides: ask them."
    )
    acts = ToolAnnotations(read_only_hint=False, open_world_hint=True)
    decides = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)
    return [
        _tool(ASK, f"Ask {agent}", ask, _Ask, acts),
        _tool(DECIDE, f"Decide what {agent} may do", decide, _Decide, decides),
    ]


def _tool(name: str, title: str, about: str, takes: type[BaseModel], hints: ToolAnnotations) -> Tool:
    return Tool(
        name=name,
        title=title,
        description=about,
        input_schema=takes.model_json_schema(),
        output_schema=_RESULT,
        annotations=hints,
    )


_TEXT: Json = {"type": "string"}
_OBJECT: Json = {"type": "object"}
_RESULT: Json = {
    "type": "object",
    "properties": {
        "status": {**_TEXT, "enum": ["Completed", "Paused", "Failed", "Canceled", "Refused"]},
        "conversation": {**_TEXT, "description": "Pass it to `ask` to continue."},
        "request_id": {**_TEXT, "description": "Quote it to the operator."},
        "approval_id": _TEXT,
        "output": {**_TEXT, "description": "The answer."},
        "usage": {**_OBJECT, "description": "Tokens, as the model service counts them."},
        "extra_data": {**_OBJECT, "description": "What tools added to the answer."},
        "approval": {**_OBJECT, "description": "Which calls wait, and until when."},
        "error": {
            **_OBJECT,
            "properties": {"code": _TEXT, "message": _TEXT},
            "required": ["code", "message"],
        },
    },
    "required": ["status"],
}
