"""What a client sets for its own request: its tools, the shape of the answer, what has to be called."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from tealagents.api import bodies
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import ClientTool, Json, RequestSetup, ResponseFormat, ToolChoice
from tealagents.engine.toolbox import Toolbox
from tealagents.state.changes import MOST_METADATA
from tealagents.state.codec import encode_json

#: tools that a client may run in one request
MOST_CLIENT_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_BAD_NAME = "must be 1 to 64 letters, digits, - or _"


class Declared(Protocol):
    """A tool, as a client declares it that runs it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def parameters(self) -> Any: ...


def setup(
    instructions: Iterable[str | None],
    tools: Iterable[Declared],
    answer: Any = None,
    choice: Any = None,
    *,
    user_context: dict[str, str] | None = None,
) -> RequestSetup:
    """Instructions, tools and context; the format of the answer and the choice of a tool in OpenAI's words.

    A tool without `parameters` takes no arguments. `InvalidRequest`, naming OpenAI's parameters.
    """
    own = tuple(_client_tools(tools))
    return RequestSetup(
        instructions="\n\n".join(filter(None, instructions)),
        user_context=user_context or {},
        client_tools=own,
        response_format=_response_format(answer),
        tool_choice=_tool_choice(bodies.flat(choice, "function"), own),
    )


def renewed(held: RequestSetup, brought: RequestSetup) -> RequestSetup:
    """What holds where a client brings something with its answers: what it leaves out stays.

    But for what the model had to call, which it would have to for ever.
    """
    return replace(
        held,
        instructions=brought.instructions or held.instructions,
        user_context=brought.user_context or held.user_context,
        client_tools=brought.client_tools or held.client_tools,
        tool_choice=None,
    )


def _client_tools(declared: Iterable[Declared]) -> Iterator[ClientTool]:
    for n, tool in enumerate(declared):
        schema = tool.parameters or {"type": "object", "properties": {}}
        if not isinstance(schema, dict):
            raise InvalidRequest(f"tools.{n}.parameters", "must be a JSON Schema, an object")
        yield ClientTool(tool.name, tool.description or "", schema)


def _response_format(given: Any) -> ResponseFormat | None:
    if given is None:
        return None
    match given.get("type", "text") if isinstance(given, dict) else None:
        case "text":
            return None
        case "json_object":
            return ResponseFormat()
        case "json_schema":
            schema = given.get("schema")
            if not isinstance(schema, dict):
                raise InvalidRequest("text.format.schema", "must be a JSON Schema, an object")
            if not _NAME.fullmatch(bodies.string(given, "name", "text.format")):
                raise InvalidRequest("text.format.name", _BAD_NAME)
            described, strict = given.get("description") or "", given.get("strict") is True
            if not isinstance(described, str):
                raise InvalidRequest("text.format.description", "must be a string")
            if len(encode_json([schema, described])) > MOST_METADATA:
                raise InvalidRequest("text.format", f"is larger than {MOST_METADATA} bytes of JSON")
            return ResponseFormat(name=given["name"], schema=schema, description=described, strict=strict)
    raise InvalidRequest("text.format.type", "must be text, json_object or json_schema")


def _tool_choice(given: Any, own: Sequence[ClientTool]) -> ToolChoice | None:
    if given is None or given == "auto":
        return None
    if given == "none" or (given == "required" and own):
        return ToolChoice(given)
    name = given.get("name") if isinstance(given, dict) and given.get("type") == "function" else None
    if name in [tool.name for tool in own]:
        return ToolChoice("required", str(name))
    raise InvalidRequest(
        "tool_choice",
        "must be auto, none, required or the name of a function in `tools`; required needs one there, too",
    )


def shown_format(of: ResponseFormat | None) -> Json:
    """A shape, as `response_format` reads it."""
    if of is None or not of.schema:
        return {"type": "json_object" if of else "text"}
    described = {"description": of.description or None, "schema": of.schema, "strict": of.strict}
    return {"type": "json_schema", "name": of.name, **described}


def shown_choice(of: ToolChoice | None) -> Json | str:
    """What the model has to call, as `tool_choice` reads it."""
    if of is None:
        return "auto"
    return {"type": "function", "name": of.name} if of.name else of.mode


def check(setup: RequestSetup, toolbox: Toolbox) -> None:
    """`InvalidRequest` where the agent cannot offer the tools of a client, or its context is too large."""
    if setup.user_context and len(encode_json(setup.user_context)) > MOST_METADATA:
        raise InvalidRequest("user_context", f"is larger than {MOST_METADATA} bytes of JSON")
    tools = setup.client_tools
    if len(tools) > MOST_CLIENT_TOOLS:
        raise InvalidRequest("tools", f"has {len(tools)} tools; at most {MOST_CLIENT_TOOLS} are accepted")
    taken = {tool.spec.name for tool in toolbox.tools} if tools else set()
    for n, tool in enumerate(tools):
        if not _NAME.fullmatch(tool.name):
            raise InvalidRequest(f"tools.{n}.name", _BAD_NAME)
        if tool.name in taken:
            raise InvalidRequest(f"tools.{n}.name", f"{tool.name} is the name of another tool")
        taken.add(tool.name)
    if tools and len(encode_json(tools)) > MOST_METADATA:
        raise InvalidRequest("tools", f"are larger than {MOST_METADATA} bytes of JSON")
