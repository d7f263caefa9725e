"""What clients of Responses and Conversations send, as messages and decisions of ours."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from tealagents.api import bodies, items, resent
from tealagents.api.decisions import CallAnswer, StrictDocument, approved
from tealagents.api.resent import AnsweredCall, Entry, Instruction, Made, Resent
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Item, Json
from tealagents.state.new_message import Earlier

#: parameters that the agent's config decides here: accepted, but without effect
_IGNORED = (
    *("access_programs", "frequency_penalty", "image", "include", "max_output_tokens", "model"),
    *("parallel_tool_calls", "presence_penalty", "prompt_cache_key", "prompt_cache_options", "reasoning"),
    *("prompt_cache_retention", "safety_identifier", "service_tier", "stream_options", "temperature"),
    *("top_p", "truncation", "user"),
)
#: parameters that would change what comes back, of Responses and Chat Completions, and what they may ask for
ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("audio", "background_options", "max_tool_calls", "moderation", "prompt"), (None,)),
    **dict.fromkeys(("context_management", "functions", "stop"), (None, [])),
    **dict.fromkeys(("logprobs", "top_logprobs"), (None, False)),
    "function_call": (None, "auto"),
    "logit_bias": (None, {}),
    "modalities": (None, ["text"]),
    "n": (None, 1),
    "web_search_options": (None,),
}
#: parameters that a response repeats and the agent does not need
KEPT = ("background", "metadata", "previous_response_id", "store")
#: what an entry of `tools` may say that names one of the agent's own, without effect; why no others are taken
_OWN = ("type", "server_label", "server_description", "require_approval", "defer_loading")
_CONFIGURED = "is not possible: the agent's tools and servers are those of its config, and your own functions"
#: within OpenAI's own bounds
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], bodies.at_most(16)
]


class FunctionTool(BaseModel):
    """A tool that the client runs."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class CreateResponse(StrictDocument):
    """The body of a new response."""

    input: Any = None
    instructions: str | None = None
    metadata: Metadata | None = None
    previous_response_id: str | None = None
    conversation: str | None = None
    tools: bodies.Entries[int, FunctionTool] | None = None
    text: dict[str, Any] | None = None
    tool_choice: Any = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None


class NewConversation(StrictDocument):
    items: bodies.Several[Json] | None = None
    metadata: Metadata | None = None


class ChangedConversation(StrictDocument):
    metadata: Metadata | None


class MoreItems(StrictDocument):
    items: bodies.Several[Json] = Field(min_length=1)


def create(value: Any) -> CreateResponse:
    """The body of a new response; `InvalidRequest` names the parameter that cannot be served."""
    bodies.refuse_unless(value, ONLY)
    value = {name: each for name, each in value.items() if name not in _IGNORED and name not in ONLY}
    if isinstance(named := value.get("conversation"), dict):
        value["conversation"] = bodies.string(named, "id", "conversation")
    body = bodies.validated(CreateResponse, {**value, "tools": tools(value.get("tools"))})
    if body.conversation is not None and body.previous_response_id is not None:
        raise InvalidRequest("previous_response_id", "cannot be combined with `conversation`")
    return body


def tools(given: Any) -> dict[int, Json] | None:
    """The tools that the client runs, in either API's form, by their indexes. `InvalidRequest` for others."""
    if given is None:
        return None
    listed = [bodies.flat(each, "function") for each in bodies.objects(given, "tools")]
    for n, each in enumerate(listed):
        possible = {"function": each, "mcp": _OWN}.get(str(each.get("type")), ())
        for name in ("type", *each):
            if name not in possible and (name == "type" or each.get(name) is not None):
                raise InvalidRequest(f"tools.{n}.{name}", _CONFIGURED)
    return {n: each for n, each in enumerate(listed) if each.get("type") != "mcp"}


def read(given: Any) -> Resent:
    """The input of a response."""
    if given and isinstance(given, str):
        return Resent((), (Earlier("user", (Item("text", given),)),), "")
    sent = bodies.objects([] if given in (None, "") else given, "input", "a string or an array of objects")
    return resent.taken_apart([_entry(each, f"input.{n}") for n, each in enumerate(sent)], "input")


def messages(given: Sequence[Json]) -> list[Earlier]:
    """Items for a conversation: what the user and the assistant said, and in words what came of calls."""
    entries = [_entry(each, f"items.{n}") for n, each in enumerate(given)]
    for n, each in enumerate(entries):
        if isinstance(each, Instruction) or (isinstance(each, Earlier) and not each.items):
            raise InvalidRequest(f"items.{n}", "must be a user or assistant message with content")
    return resent.in_words(entries)


def _entry(each: Json, where: str) -> Entry:
    match "item_reference" if items.referred(each) else each.get("type") or "message":
        case "message":
            return message(each, where)
        case "function_call":
            return made(bodies.string(each, "call_id", where), each)
        case "function_call_output":
            return returned(each, where, "call_id", "output")
        case "mcp_approval_response":
            return AnsweredCall(bodies.string(each, "approval_request_id", where), approved(each, where))
        case "mcp_call":
            said = resent.said_of(each.get("output"), each.get("error"))
            return Made() if said is None else resent.outcome(made("", each).text, said)
        case "mcp_approval_request" | "mcp_list_tools" | "reasoning":  # nothing that the history needs
            return Made()
        case "item_reference":
            return resent.unresolved(each, where)
        case kind:
            raise InvalidRequest(f"{where}.type", f"{bodies.short(str(kind))} is not supported as input here")


def message(each: Json, where: str) -> Earlier | Instruction:
    """A message in any role but a tool's."""
    role, content = each.get("role"), each.get("content")
    if content is None and role == "assistant":  # a refusal, or an empty answer
        content = each.get("refusal") or ""
    said = items.read(content, f"{where}.content", _part)
    if role == "user":
        return Earlier(role, said)
    if role not in ("assistant", "system", "developer"):
        raise InvalidRequest(f"{where}.role", "must be user, assistant, system or developer")
    text = items.text(said, f"{where}.content", "must be text for this role")
    return Earlier("assistant", said) if role == "assistant" else Instruction(text)


def made(call_id: str, call: Json) -> Made:
    """A call that comes again."""
    return Made(call_id, f"{call.get('name')}({call.get('arguments') or ''})")


def returned(each: Json, where: str, call: str, output: str) -> AnsweredCall:
    """What a client's tool returned, as text; `call` and `output` are the fields that say it."""
    field = f"{where}.{output}"
    text = items.text(items.read(each.get(output), field, _part), field, "must be text")
    return AnsweredCall(bodies.string(each, call, where), CallAnswer(output=text, field=where))


def _part(each: Any, where: str) -> Item:
    match each.get("type") if isinstance(each, dict) else None:
        case "input_text" | "output_text" | "text" | "refusal" as kind:
            return Item("text", bodies.string(each, "refusal" if kind == "refusal" else "text", where))
        case "input_image" | "image_url":
            given = each.get("image_url")
            return items.image(given.get("url") if isinstance(given, dict) else given, f"{where}.image_url")
    raise InvalidRequest(f"{where}.type", "must be a text, or an image as a data URI")
