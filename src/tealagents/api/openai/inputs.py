"""What clients of Responses and Conversations send, as messages and decisions of ours."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from tealagents.api import bodies
from tealagents.api.openai import names
from tealagents.domain.errors import InvalidRequest, NotFound
from tealagents.domain.models import ClientTool, Item, Json
from tealagents.state.submission import Earlier

#: parameters with which OpenAI's clients tune what the agent's config decides here: taken, without effect
_IGNORED = (
    *("access_programs", "frequency_penalty", "image", "include", "max_output_tokens", "model"),
    *("parallel_tool_calls", "presence_penalty", "prompt_cache_key", "prompt_cache_options", "reasoning"),
    *("prompt_cache_retention", "safety_identifier", "service_tier", "stream_options", "temperature"),
    *("top_p", "truncation", "user"),
)
#: parameters that would change what comes back, and what they may ask for
_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("background_options", "max_tool_calls", "moderation", "prompt"), (None,)),
    "context_management": (None, []),
    "tool_choice": (None, "auto"),
    "top_logprobs": (None, 0),
}
#: within OpenAI's own bounds
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
Items = list[dict[str, Any]]


class Incoming(BaseModel):
    """What comes in: no unknown parameters, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True)


class FunctionTool(BaseModel):
    """A tool that the client runs."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def declared(self) -> ClientTool:
        schema = self.parameters or {"type": "object", "properties": {}}
        return ClientTool(self.name, self.description or "", schema)


class ConversationRef(BaseModel):
    id: str


class TextFormat(BaseModel):
    type: Literal["text"] = "text"


class TextOptions(BaseModel):
    format: TextFormat | None = None


class CreateResponse(Incoming):
    """The body of a new response."""

    input: str | Items | None = None
    instructions: str | None = None
    metadata: Metadata | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    tools: list[FunctionTool] | None = None
    text: TextOptions | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None

    @property
    def conversation_id(self) -> str | None:
        given = self.conversation
        return given.id if isinstance(given, ConversationRef) else given


class NewConversation(Incoming):
    items: Items | None = None
    metadata: Metadata | None = None


class ChangedConversation(Incoming):
    metadata: Metadata | None


class MoreItems(Incoming):
    items: Items = Field(min_length=1)


class CallAnswer(Struct, frozen=True):
    """What a client answers one call of a pause."""

    #: whether a call of ours may run; None where the client made the call
    approve: bool | None = None
    reason: str | None = None
    output: str | None = None


class Told(Struct, frozen=True):
    """A system or developer message: for this response only."""

    text: str


class Made(Struct, frozen=True):
    """Something of ours that comes again from clients that keep the history: a call, a request to approve."""

    call_id: str = ""
    #: the call, in words
    text: str = ""


class CallAnswered(Struct, frozen=True):
    """What came of a call, or may come of it."""

    call_id: str
    answer: CallAnswer
    where: str


Entry = Earlier | Told | Made | CallAnswered


class Input(Struct, frozen=True, kw_only=True):
    """The input, taken apart."""

    #: the message itself: what the user says last
    items: tuple[Item, ...] = ()
    #: what was said before it
    earlier: tuple[Earlier, ...] = ()
    instructions: tuple[str, ...] = ()
    #: the pause that is answered, and the answers by the places of its calls
    approval_id: str = ""
    answers: Mapping[int, CallAnswer] = {}


def create(value: Any) -> CreateResponse:
    """The body of a new response; `InvalidRequest` names the parameter that cannot be served."""
    if isinstance(value, dict):
        check_only(value, _ONLY)
        value = {name: each for name, each in value.items() if name not in _IGNORED and name not in _ONLY}
    body = bodies.validated(CreateResponse, value)
    if body.store is False and body.background:
        raise InvalidRequest("background", "needs the response to be stored: leave `store` out")
    if body.conversation is not None and body.previous_response_id is not None:
        raise InvalidRequest("previous_response_id", "cannot be combined with `conversation`")
    if body.conversation is not None and body.store is False:
        raise InvalidRequest("store", "cannot be false in a conversation, which keeps what is said")
    return body


def check_only(value: Json, only: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuses parameters that ask for what this service does not do, by name."""
    for name, possible in only.items():
        if value.get(name) not in possible:
            raise InvalidRequest(name, "is not supported by this service")


def read(given: str | list[dict[str, Any]] | None) -> Input:
    """The input of a response."""
    if given is None or isinstance(given, str):
        given = [{"role": "user", "content": given or ""}]
    return combine([_entry(each, f"input.{n}") for n, each in enumerate(given)], "input")


def combine(entries: Sequence[Entry], param: str) -> Input:
    """What is new in an input: all behind the last thing that the assistant said or did.

    That is either a message, or the answers to the calls of one pause. What comes before it is the history
    of a client that keeps it.
    """
    spoken = [n for n, each in enumerate(entries) if isinstance(each, Made) or _is_by(each, "assistant")]
    split = spoken[-1] + 1 if spoken else 0
    instructions = tuple(each.text for each in entries if isinstance(each, Told))
    items = tuple(item for each in entries[split:] if isinstance(each, Earlier) for item in each.items)
    answers = [each for each in entries[split:] if isinstance(each, CallAnswered)]
    if answers and items:
        raise InvalidRequest(param, "answers calls and adds a message: send the answers first, alone")
    if answers:
        return _answering(answers)
    if not items:
        raise InvalidRequest(param, "needs a message of the user at its end")
    return Input(items=items, earlier=_earlier(entries[:split]), instructions=instructions)


def _is_by(entry: Entry, role: str) -> bool:
    return isinstance(entry, Earlier) and entry.role == role


def _answering(given: Sequence[CallAnswered]) -> Input:
    answers: dict[int, CallAnswer] = {}
    pause = ""
    for each in given:
        try:
            named, place = names.read("call", each.call_id, *names.CALLS)
        except NotFound as unknown:
            raise InvalidRequest(each.where, unknown.detail) from None
        if place in answers or pause not in ("", named):
            raise InvalidRequest(each.where, "answers a call twice, or one of another response")
        answers[place], pause = each.answer, named
    return Input(approval_id=pause, answers=answers)


def _earlier(entries: Sequence[Entry]) -> tuple[Earlier, ...]:
    """The history: calls are put into words."""
    calls = {each.call_id: each.text for each in entries if isinstance(each, Made)}
    said: list[Earlier] = []
    for each in entries:
        if isinstance(each, Earlier) and each.items:
            said.append(each)
        elif isinstance(each, CallAnswered) and each.answer.output is not None:
            text = f"{calls.get(each.call_id, 'A call')} returned: {each.answer.output}"
            said.append(Earlier("assistant", (Item("text", text),)))
    return tuple(said)


def messages(given: Sequence[Json]) -> list[Earlier]:
    """Items for a conversation: messages of the user and the assistant, which are what it keeps."""
    said: list[Earlier] = []
    for n, each in enumerate(given):
        entry = _entry(each, f"items.{n}")
        if not isinstance(entry, Earlier) or not entry.items:
            raise InvalidRequest(f"items.{n}", "must be a message of the user or the assistant, with content")
        said.append(entry)
    return said


# --- items ---------------------------------------------------------------------------------------

#: output of ours that may come again, and says nothing that the history needs
_SILENT = ("mcp_approval_request", "mcp_list_tools", "reasoning")


def _entry(each: Json, where: str) -> Entry:
    kind = each.get("type") or "message"
    match kind:
        case "message":
            return message(each, where)
        case "function_call":
            return made(_str(each, "call_id", where), each)
        case "function_call_output":
            output = output_of(each.get("output"), f"{where}.output")
            return CallAnswered(_str(each, "call_id", where), CallAnswer(output=output), where)
        case "mcp_approval_response":
            if not isinstance(each.get("approve"), bool):
                raise InvalidRequest(f"{where}.approve", "must be true or false")
            reason = each.get("reason")
            answer = CallAnswer(approve=each["approve"], reason=reason if isinstance(reason, str) else None)
            return CallAnswered(_str(each, "approval_request_id", where), answer, where)
        case "mcp_call":
            text = f"{made('', each).text} returned: {each.get('output') or each.get('error')}"
            return Earlier("assistant", (Item("text", text),))
    if kind in _SILENT:
        return Made()
    raise InvalidRequest(f"{where}.type", f"{bodies.short(str(kind))} is no input that this service takes")


def message(each: Json, where: str) -> Earlier | Told:
    """A message in any role but a tool's."""
    role = each.get("role")
    items = _content(each.get("content"), f"{where}.content")
    if role in ("system", "developer"):
        if any(item.content_type != "text" for item in items):
            raise InvalidRequest(f"{where}.content", "must be text in this role")
        return Told("".join(item.content for item in items))
    if role == "user" or role == "assistant":
        return Earlier(role, items)
    raise InvalidRequest(f"{where}.role", "must be user, assistant, system or developer")


def made(call_id: str, call: Json) -> Made:
    """A call that comes again."""
    return Made(call_id, f"{call.get('name')}({call.get('arguments') or ''})")


def _content(given: Any, where: str) -> tuple[Item, ...]:
    if isinstance(given, str):
        return (Item("text", given),) if given else ()
    if not isinstance(given, list):
        raise InvalidRequest(where, "must be a string or an array of parts")
    parts = [_part(each, f"{where}.{n}") for n, each in enumerate(given)]
    return tuple(part for part in parts if part.content)


def _part(each: Any, where: str) -> Item:
    kind = each.get("type") if isinstance(each, dict) else None
    match kind:
        case "input_text" | "output_text" | "text":
            return Item("text", _str(each, "text", where))
        case "refusal":
            return Item("text", _str(each, "refusal", where))
        case "input_image" | "image_url":
            given = each.get("image_url")
            url = given.get("url") if isinstance(given, dict) else given
            return Item("image", _image(url, f"{where}.image_url"))
    raise InvalidRequest(f"{where}.type", "must be a text, or an image as a data URI")


def _image(url: Any, where: str) -> str:
    """An image that is sent along: this service fetches nothing that a user's text names."""
    if not isinstance(url, str):
        raise InvalidRequest(where, "must be a data URI, data:image/png;base64,…, with the image in it")
    if (problem := bodies.image_problem(url)) is not None:
        raise InvalidRequest(where, problem)
    return url


def output_of(given: Any, where: str) -> str:
    """What a client's tool returned, as text."""
    items = _content(given, where)
    if any(item.content_type != "text" for item in items):
        raise InvalidRequest(where, "must be text")
    return "".join(item.content for item in items)


def _str(each: Json, name: str, where: str) -> str:
    value = each.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}.{name}", "must be a string")
    return value
