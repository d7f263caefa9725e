"""What a server lists for one user is that user's alone."""

import asyncio
import gc
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mcp_types as types
import pytest
from engine_setup import Scripted, Tools, noting
from jsonschema import Draft202012Validator
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from mcp.shared.exceptions import MCPError
from oauth_setup import CALLBACK, Provider, SecretStore, protected, visited
from pydantic import ValidationError
from tools_setup import Context, by_name

from tealagents.domain.errors import NeedsAuthorization, ToolFailed
from tealagents.domain.models import Json, ToolCall, User
from tealagents.domain.ports import Tool, ToolContext
from tealagents.engine.toolbox import Toolbox, ToolOutput
from tealagents.llm.encoding import to_json
from tealagents.testing.waits import eventually
from tealagents.tools import mcp as adapter
from tealagents.tools import schema_form
from tealagents.tools.catalogue import Catalogue, GovernedToolset
from tealagents.tools.mcp import MCPServer
from tealagents.tools.mcp_connection import MCPConnection
from tealagents.tools.mcp_listing import Lister
from tealagents.tools.mcp_transport import BearerToken
from tealagents.tools.oauth import Consents
from tealagents.tools.options import MCPServerOptions

ADA, BOB, TWIN = User("contoso", "ada"), User("contoso", "bob"), User("fabrikam", "ada")


def names(of: Toolbox) -> list[str]:
    return [tool.spec.name for tool in of.tools]


def context_of(user: User) -> Context:
    return Context(user.oid, tenant_id=user.tid)


async def authorize(server: MCPServer, provider: Provider, consents: Consents, user: User, name: str) -> str:
    """What connecting answers, once the user has agreed."""
    connect = by_name(server)["private-connect"]
    with pytest.raises(NeedsAuthorization) as asked:
        await connect.call(context_of(user), {})
    brought = await visited(provider, name, asked.value.url)
    await consents.complete(brought["state"], brought["code"], iss=brought.get("iss"))
    return await connect.call(context_of(user), {})


class Speaking(Scripted):
    """A model whose tools are encoded as their texts."""

    def encode_tools(self, tools: object) -> bytes:
        return repr(tools).encode()


async def test_what_one_user_is_listed_no_other_is_shown() -> None:
    """Nor is it found, named in an answer or in an error; after a restart and a reconnect as before."""
    provider, secrets = Provider(), SecretStore()
    options = MCPServerOptions(name="private", url="http://x/mcp", trust_level="trusted")
    with protected(provider, per_user=True) as url:
        options = options.model_copy(update={"url": url})
        consents = Consents(CALLBACK, secret_store=secrets)
        async with MCPServer(options, consents) as server:
            box = Toolbox(Speaking(), 30)
            box.load([GovernedToolset(server, None, consents)])
            everybody = box.encoded
            assert "notes_of_Bob" not in await authorize(server, provider, consents, ADA, "Ada")
            for stranger in (BOB, TWIN):
                assert box.of(stranger).encoded == everybody
            answer = await authorize(server, provider, consents, BOB, "Bob")
            assert ("notes_of_Bob" in answer, "Ada" in answer) == (True, False)
            assert box.of(TWIN).encoded == box.encoded == everybody
            for own, other in ((ADA, b"Bob"), (BOB, b"Ada")):
                assert other not in box.of(own).encoded
                assert f"notes_of_{own.oid.title()}".encode() in box.of(own).encoded
                assert box.of(own) is box.of(own)
            output = await box.of(ADA).of(ADA).find("private-notes").call(context_of(ADA), {})  # type: ignore[union-attr]
            assert output == "the notes of Ada"
            with pytest.raises(Exception, match="There is no tool") as refused:
                await box.find("private-notes_of_Bob").call(context_of(ADA), {})  # type: ignore[union-attr]
            assert "has: private-notes_of_Ada, private-notes." in str(refused.value)
        # another process: it knows no listing, and each user's only once that user has connected
        consents = Consents(CALLBACK, secret_store=secrets)
        async with MCPServer(options, consents) as server:
            box.load([GovernedToolset(server, None, consents)])
            assert box.of(ADA).encoded == box.of(BOB).encoded == everybody
            await by_name(server)["private-connect"].call(context_of(BOB), {})
            assert b"notes_of_Bob" in box.of(BOB).encoded
            assert box.of(ADA).encoded == everybody


async def test_a_turn_sees_what_its_owner_is_listed_meanwhile() -> None:
    """With the tools of the request: connecting in the middle of a turn shows the tools to its next call."""
    provider = Provider()
    with protected(provider, per_user=True) as url:
        consents = Consents(CALLBACK)
        async with MCPServer(MCPServerOptions(name="private", url=url), consents) as server:
            box = Toolbox(Speaking(), 30)
            box.load([GovernedToolset(server, None, consents), Tools(noting([]))])
            extra = noting([], "Extra-tool")
            turn = box.of(ADA).with_tools([extra])
            assert names(turn) == ["Extra-tool", "private-connect", "Shell-delete"]
            await authorize(server, provider, consents, ADA, "Ada")
            assert names(turn.current()) == [
                *("Extra-tool", "private-notes_of_Ada", "private-notes", "Shell-delete")
            ]
            assert turn.current().current().encoded == turn.current().encoded
            assert box.current() is box


async def test_own_tools_are_governed_as_all_others() -> None:
    """The catalogue decides of them too, and of one that stands for what is not listed yet."""
    provider = Provider()
    entry = {"tool_id": "private-notes", "governance": {"requires_hitl": False}}
    catalogue = Catalogue.model_validate({"plugins": [{"plugin_id": "private", "tools": [entry]}]})
    with protected(provider, per_user=True) as url:
        consents = Consents(CALLBACK)
        async with MCPServer(MCPServerOptions(name="private", url=url), consents) as server:
            await authorize(server, provider, consents, ADA, "Ada")
            governed = GovernedToolset(server, catalogue, consents)
            asks = {tool.spec.name: tool.spec.governance.requires_hitl for tool in governed.tools_of(ADA)}
            assert asks == {"private-notes_of_Ada": True, "private-notes": False}
            hidden = governed.find("private-anything")
            assert hidden is not None
            assert hidden.spec.governance.requires_hitl is True


async def never(context: ToolContext, name: str, arguments: object, function: str) -> str:
    raise AssertionError(name)


async def connect(context: ToolContext) -> str:
    raise AssertionError


def lister(**options: object) -> Lister:
    given = {"name": "files", "command": "x", "trust_level": "sandboxed", **options}
    return Lister(MCPServerOptions.model_validate(given), never, connect)


def listed(name: str, *, read_only: bool) -> types.Tool:
    annotations = types.ToolAnnotations(read_only_hint=read_only)
    return types.Tool(name=name, input_schema={"type": "object"}, annotations=annotations)


def asks(tool: Tool | None) -> bool:
    assert tool is not None
    return tool.spec.governance.requires_hitl


def parameters_of(schema: Json) -> Json:
    [tool] = lister().listing([types.Tool(name="x", input_schema=schema)], None).tools
    return tool.spec.parameters


def test_what_model_services_refuse_at_the_root_of_a_schema_is_left_out() -> None:
    """One such tool would fail every request of all users. What can be chosen are optional fields."""
    text, number = {"type": "string"}, {"type": "number"}
    schema = {
        "type": ["object", "null"],
        "properties": {"id": text},
        "required": ["id"],
        "oneOf": [
            {"properties": {"id": number, "name": text}, "required": ["name"]},
            {"$ref": "#/$defs/Size"},
        ],
        "allOf": [{"if": {}, "then": {"properties": {"hidden": text}}}, {"properties": {"limit": number}}],
        "$defs": {"Size": {"type": "object", "properties": {"size": number}}},
        "anyOf": 5,
        "enum": [{}],
        "const": {},
        "not": {},
        "if": {},
        "then": {},
        "else": {},
    }
    assert parameters_of(schema) == {
        "type": "object",
        "properties": {"id": text, "limit": number, "name": text, "size": number, "hidden": text},
        "required": ["id"],
        "$defs": {"Size": {"type": "object", "properties": {"size": number}}},
    }
    assert parameters_of({"oneOf": [True, {"$ref": "#/$defs/None"}, {"properties": 5}]}) == {
        "type": "object",
        "properties": {},
    }


def test_a_field_that_is_described_in_several_ways_may_be_any_of_them() -> None:
    """As the action of a tool that does several things."""
    make, drop, text = {"const": "make"}, {"const": "drop"}, {"type": "string"}
    choices = [{"properties": {"action": make, "title": text}}, {"properties": {"action": drop, "id": text}}]
    for key in ("oneOf", "anyOf"):
        assert parameters_of({key: [*choices, choices[0]]})["properties"] == {
            "action": {"anyOf": [make, drop]},
            "title": text,
            "id": text,
        }
    nested = [{"allOf": [{"properties": {f"n{n}": text}}]} for n in range(30)]
    assert len(parameters_of({"oneOf": nested})["properties"]) == 30


def test_a_schema_of_too_many_parts_is_not_looked_through_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds up all requests of the service for as long as that takes."""
    looked: list[object] = []
    target = schema_form._target

    def noted(schema: Json, branch: object) -> object:
        looked.append(branch)
        return target(schema, branch)

    monkeypatch.setattr(schema_form, "_target", noted)
    itself: Json = {"anyOf": [{"$ref": "#/$defs/Itself"}] * 1000, "required": ["a"] * 1000}
    parameters_of({**itself, "$defs": {"Itself": itself}})
    assert len(looked) <= 1000
    many = [{"properties": {"action": {"const": n}}} for n in range(1000)]
    assert parameters_of({"oneOf": many})["properties"]["action"] == {}


def test_what_all_parts_of_a_schema_require_is_required() -> None:
    """However deep it stands; a schema that refers to itself ends."""
    base: Json = {"properties": {"id": {}}, "required": ["id"]}
    schema = {
        "allOf": [{"$ref": "#/$defs/Item"}, {"properties": {"x": {}}, "required": ["x", "id"]}],
        "$defs": {"Item": {"allOf": [{"$ref": "#/$defs/Base"}, {"$ref": "#/$defs/Item"}]}, "Base": base},
    }
    made = parameters_of(schema)
    assert (sorted(made["properties"]), made["required"]) == (["id", "x"], ["x", "id"])
    for n in range(10):
        base = {"allOf": [base, {"properties": {f"n{n}": {}}, "required": [f"n{n}"]}]}
    made = parameters_of(base)
    assert sorted(made["properties"]) == sorted(made["required"]) == ["id", *(f"n{n}" for n in range(10))]
    base = {"properties": {"id": {}}, "required": ["id"]}
    chosen = parameters_of({"anyOf": [base, {"allOf": [base]}], "then": base})
    assert (chosen["properties"], "required" in chosen) == ({"id": {}}, False)


def test_an_array_of_a_schema_says_what_its_items_are() -> None:
    """Wherever it stands; model services refuse one that does not. What only looks like an array stays."""
    bare, described = {"type": "array"}, {"type": "array", "items": {}}
    fields = {
        "type": bare,
        "list": {"type": ["array", "null"]},
        "nested": {"type": "array", "items": {"anyOf": [bare, {"type": "string"}]}},
        "pair": {"type": "array", "prefixItems": [bare]},
        "value": {"type": "object", "default": bare, "properties": {"array": {}}},
    }
    made = parameters_of({"properties": fields, "$defs": {"one": {"additionalProperties": bare}}})
    assert made["properties"] == {
        "type": described,
        "list": {"type": ["array", "null"], "items": {}},
        "nested": {"type": "array", "items": {"anyOf": [described, {"type": "string"}]}},
        "pair": {"type": "array", "prefixItems": [described]},
        "value": {"type": "object", "default": bare, "properties": {"array": {}}},
    }
    assert made["$defs"] == {"one": {"additionalProperties": described}}


def references_of(schema: object) -> Iterator[str]:
    for key, value in schema.items() if isinstance(schema, dict) else ():
        yield from [value] if key == "$ref" else references_of(value)


def test_what_is_no_json_schema_is_left_out() -> None:
    """Whatever stands in a schema, as draft 2020-12 has it; one such tool would fail every request."""
    vocabularies = [one["$ref"].partition("/")[2] for one in Draft202012Validator.META_SCHEMA["allOf"]]
    base = "https://json-schema.org/draft/2020-12/meta/"
    keywords = {key for name in vocabularies for key in REGISTRY.contents(base + name)["properties"]}
    keywords |= Draft202012Validator.META_SCHEMA["properties"].keys()
    assert len(keywords) > 50
    values: list[Any] = [None, True, 0, -1, 5, 1.5, "", "x", "#/nowhere", [], [None], [5], ["x", "x"], [[]]]
    values += [float("inf"), float("-inf"), float("nan")]
    values += [{}, *({"a": one} for one in values), [{"type": "array"}, 5]]
    odd = {f"{key} {n}": {key: value} for key in keywords for n, value in enumerate(values)}
    nested = {"properties": {**odd, "all": {"items": {"anyOf": [*odd.values()]}}}}
    for schema in (nested, *(dict.fromkeys(keywords, value) for value in values)):
        made = json.loads(to_json(parameters_of(schema)))
        Draft202012Validator.check_schema(made)
        assert list(references_of(made)) == []


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_values_that_cannot_be_written_as_json_are_left_out_with_their_keyword(value: float) -> None:
    """Null would stand for them, which the server does not take; fewer choices would refuse what it takes."""
    number = {"type": "number"}
    said: list[Json] = [{"enum": [1, value]}, {"enum": [value]}, {"const": value}, {"default": value}]
    fields = {f"field {n}": {**number, **one} for n, one in enumerate(said)}
    assert parameters_of({"properties": fields})["properties"] == dict.fromkeys(fields, number)


def test_what_earlier_drafts_say_is_said_in_todays_words() -> None:
    """A tuple, as the TypeScript SDK writes it, and an exclusive bound."""
    text, number = {"type": "string"}, {"type": "number"}
    fields: dict[str, Json] = {
        "pair": {"type": "array", "items": [text, number]},
        "rest": {"type": "array", "items": [text], "additionalItems": False},
        "size": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
        "chosen": {"type": ["string", None, "text"], "enum": None, "default": None, "required": True},
    }
    assert parameters_of({"properties": fields})["properties"] == {
        "pair": {"type": "array", "prefixItems": [text, number], "items": {}},
        "rest": {"type": "array", "prefixItems": [text], "items": False},
        "size": {"type": "number", "exclusiveMinimum": 0},
        "chosen": {"type": ["string", "null"], "default": None},
    }


def test_every_reference_of_a_schema_leads_somewhere() -> None:
    """Those into what may be chosen at the root, which is left out, allow any value."""
    text = {"type": "string"}
    leading = ["#", "#/properties/a", "#/$defs/A~1B", "#/$defs/A%2FB", "#/$defs/A~1B/anyOf/0"]
    fields: Json = {"a": text} | {each: {"$ref": each} for each in leading}
    lost: Json = {
        each: {"$ref": each, "title": each} for each in ("#/anyOf/0", "#name", "x.json#/A", "#/$defs/B")
    }
    made = parameters_of({"anyOf": [{"properties": fields | lost}], "$defs": {"A/B": {"anyOf": [text]}}})
    assert made["properties"] == fields | {each: {"title": each} for each in lost}


_ANCHORS = {
    "Cat": {"$anchor": "cat", "type": "object", "required": ["meow"]},
    "Dog": {"$anchor": "dog", "type": "object", "required": ["bark"]},
}
_WHERE = {"properties": {"where": {"type": "object"}}}
_PART = {"$id": "https://x.example/A", "properties": {"id": {"$ref": "#/$defs/Id"}}}


@pytest.mark.parametrize(
    ("schema", "taken"),
    [
        ({"properties": {"a": {"oneOf": [{"$ref": "#cat"}, {"$ref": "#dog"}]}}}, {"meow": 1}),
        ({"properties": {"a": {"oneOf": [{"items": {"$ref": "#cat"}}, {"type": "array"}]}}}, [{}]),
        ({"properties": {"a": {"not": {"$ref": "#dog"}}}}, {"meow": 1}),
        ({"properties": {"a": {"not": {"type": "file"}}}}, 1),
        ({"properties": {"a": {"not": {"enum": [1, float("inf")]}}}}, 2),
        ({"properties": {"a": {"if": {"$ref": "#dog"}, "then": False}}}, {"meow": 1}),
        ({"properties": {"a": {"contains": {"$ref": "#dog"}, "maxContains": 0, "minContains": 0}}}, [{}]),
        ({"properties": {"a": {"$ref": "#cat", "unevaluatedProperties": False}}}, {"meow": 1}),
        ({"properties": {"a": {"oneOf": [{"$ref": "#/anyOf/0/properties/where"}, {"type": "null"}]}}}, None),
        ({"properties": {"a": {"anyOf": [{"not": {"$ref": "#"}}, {"const": 1}]}}, "not": {"const": {}}}, {}),
        ({"properties": {"a": {"$ref": "#/$defs/Part"}}}, {"id": "x"}),
        ({"anyOf": [{**_PART, "properties": {"a": {"$ref": "#/$defs/Id"}}}]}, "x"),
        ({"properties": {"a": {"items": [None, {"type": "string"}]}}}, [1, "x"]),
        ({"properties": {"a": "string"}, "required": ["a"], "additionalProperties": False}, "x"),
    ],
)
def test_what_a_schema_took_it_still_takes(schema: Json, taken: object) -> None:
    """What is left out below `oneOf` and `not` refuses nothing, nor does a reference that leads elsewhere."""
    definitions: Json = {**_ANCHORS, "Part": {**_PART, "$defs": {"Id": {"type": "string"}}}}
    choices = {"anyOf": [_WHERE, {}]} | schema
    made = parameters_of({**choices, "$defs": {**definitions, "Id": {"type": "integer"}}})
    Draft202012Validator.check_schema(made)
    assert Draft202012Validator(made).is_valid({"a": taken})


def test_a_schema_of_which_nothing_is_lost_keeps_its_rules() -> None:
    """Names, nulls and the words of earlier drafts say nothing about values."""
    rules: Json = {"oneOf": [{"not": {"minimum": 1}}, {"if": {"const": 3}, "then": False}]}
    said = {"$id": "https://x.example/a", "$anchor": "a", "title": None, **rules}
    assert parameters_of({"properties": {"a": said}})["properties"] == {"a": rules}


class Connected:
    """A connection whose server lists one tool, or fails to."""

    fault: Exception | None = None
    ended = False

    def __init__(
        self, options: MCPServerOptions, listed: Callable[[Sequence[types.Tool]], None], bearer: BearerToken
    ) -> None:
        self.listed = listed
        self.bearer = bearer
        self.busy, self.idle_since, self.is_open = 0, 0.0, True

    async def start(self) -> None:
        if self.fault is not None:
            raise self.fault
        self.listed([types.Tool(name="list", input_schema={})])

    async def call(self, name: str, arguments: Json) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=f"{name} is done")])

    async def close(self) -> None:
        self.is_open = False


@pytest.fixture
def issues(monkeypatch: pytest.MonkeyPatch) -> MCPServer:
    """A server with connections of users, of which none is real."""
    monkeypatch.setattr(adapter, "MCPConnection", Connected)
    return MCPServer(MCPServerOptions(name="issues", url="https://x.example/mcp", on_behalf_of_scopes=["a"]))


async def test_who_uses_a_server_keeps_its_tools(issues: MCPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others are listed meanwhile."""
    monkeypatch.setattr(adapter, "MAX_LISTINGS", 2)
    for other in ("bob", "eve", "mallory"):
        assert await issues.call(Context("ada"), "issues-list", {}) == "list is done"
        await issues.call(Context(other), "issues-list", {})
    assert "issues-list" in await issues.connect(Context("ada"))
    await issues.__aexit__()


class Mute(Connected):
    async def start(self) -> None:
        await asyncio.Event().wait()


async def test_calls_at_once_to_a_server_that_says_nothing_are_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait for one connection together; none of them is left to the limit of a call, and so unknown."""
    monkeypatch.setattr(adapter, "MCPConnection", Mute)
    options = MCPServerOptions(
        name="issues", url="https://x.example/mcp", on_behalf_of_scopes=["a"], timeout=0.2
    )
    server = MCPServer(options)
    calls = [server.call(Context(), "issues-list", {}) for _ in range(8)]
    async with asyncio.timeout(30):
        for made in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(made, ToolFailed)
            assert "Nothing was done" in str(made)
            assert not made.unknown
    assert not server._users._open


async def test_a_call_that_waited_for_a_session_until_the_limit_was_not_made() -> None:
    """It says so, also where the limit of all tools is the shorter one."""
    options = MCPServerOptions(name="issues", command="x", trust_level="trusted", timeout=0.05)
    server = MCPServer(options)
    server._take_listing([types.Tool(name="pay", input_schema={})])
    server._shared = MCPConnection(options, server._take_listing)  # and never up
    box = Toolbox(Scripted(), 0.05)
    box.load([server])
    context: Any = context_of(ADA)
    result = await box.call(ToolCall("1", "issues-pay", "{}", "issues", False), context)
    assert isinstance(result, ToolOutput)
    assert (result.output, result.unknown) == (
        "Error: issues cannot be reached: there is no session. Nothing was done.",
        False,
    )


async def test_a_call_that_waited_for_a_token_until_the_limit_was_not_made(
    monkeypatch: pytest.MonkeyPatch, issues: MCPServer
) -> None:
    """The limit of a call allows for both waits, for a token and then for a session."""

    async def no_token(context: ToolContext) -> str:
        return await asyncio.Event().wait() and ""

    monkeypatch.setattr(adapter, "TOKEN_SECONDS", 0.05)
    monkeypatch.setattr(issues, "_token", no_token)
    issues._take_listing([types.Tool(name="pay", input_schema={})])
    [pay] = issues.tools()
    assert pay.spec.waits == 30 + 30 + 1
    async with asyncio.timeout(30):
        with pytest.raises(ToolFailed, match=r"no token within 0\.05 s\. Nothing was done") as called:
            await pay.call(context_of(ADA), {})
    assert not called.value.unknown


async def test_a_connection_that_is_unused_is_closed_though_no_one_calls(
    issues: MCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on asking its server for changes with the user's token; one with a call under way stays."""
    monkeypatch.setattr(adapter, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(adapter, "SWEEP_SECONDS", 0.01)
    busy = await issues._users.of("ada", "token")
    busy.busy = 1
    idle = await issues._users.of("bob", "token")
    assert isinstance(idle, Connected)
    await eventually(lambda: not idle.is_open)
    assert isinstance(busy, Connected)
    assert busy.is_open
    await issues.__aexit__()


@pytest.mark.parametrize("fault", ["a listing that breaks the rules", "an answer that cannot be read"])
async def test_what_was_not_called_was_not_done(
    issues: MCPServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A user's connection that cannot be made is reported as that, whatever is wrong with the server."""
    with pytest.raises(ValidationError) as broken:
        types.ListToolsResult.model_validate({"tools": [{"name": "x"}]})
    unread = MCPError(-32600, "Unexpected content type: text/html")
    monkeypatch.setattr(Connected, "fault", broken.value if fault.startswith("a listing") else unread)
    with pytest.raises(ToolFailed, match=r"issues cannot be reached: .*(?s:.*) Nothing was done") as called:
        await issues.call(Context("ada"), "issues-list", {})
    assert not called.value.unknown
    with pytest.raises(ToolFailed, match="issues cannot be reached: "):
        await issues.connect(Context("ada"))


def test_a_listing_that_is_the_same_as_the_last_one_is_not_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are listed whenever one could have changed: thousands of them would hold up all requests."""
    files = lister()
    before = files.listing([listed("drop", read_only=False)], None)
    monkeypatch.delattr("tealagents.tools.mcp_listing.as_parameters")
    assert files.listing([listed("drop", read_only=False)], before) is before


def test_a_listing_that_differs_in_what_makes_no_tool_is_looked_through_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as a title beside a description. No one is notified: the tools are the same."""
    notified: list[object] = []
    options = MCPServerOptions(name="files", command="x")
    server = MCPServer(options, changed=lambda: notified.append(server))
    tool = types.Tool(name="drop", title="Drop", description="Drops it.", input_schema={})
    other = tool.model_copy(update={"title": "Drop it"})
    server._take_listing([tool])
    before = server.tools()
    server._take_listing([other])
    monkeypatch.delattr("tealagents.tools.mcp_listing.as_parameters")
    server._take_listing([other])
    assert server.tools() is before
    assert notified == []


def test_of_a_listing_only_the_tools_are_remembered() -> None:
    """It is kept for thousands of users: not what else the server sent, which is no less."""
    files = lister()
    schema: Json = json.loads('{"enum": ["\\ud800", NaN]}')
    sent = [types.Tool(name="drop", input_schema=schema, output_schema={"type": "object"})]
    before = files.listing(sent, None)
    referred: list[object] = [before]
    for each in referred:  # which grow meanwhile
        if isinstance(each, tuple | list | dict):
            referred.extend(gc.get_referents(each))
    assert not any(isinstance(each, types.Tool) for each in referred)
    assert files.listing(sent, before) is before


def test_parameters_of_a_tool_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The model would be sent them with each call. It may call the tool with any object, and knows why."""
    small, large = ({"properties": {"a": {"description": "\u00fc" * n}}} for n in (65_000, 66_000))
    tools = [types.Tool(name=name, input_schema=each) for name, each in (("read", small), ("drop", large))]
    read, drop = lister().listing(tools, None).tools
    assert read.spec.parameters == {"type": "object", **small}
    assert drop.spec.parameters == {
        "type": "object",
        "properties": {},
        "description": "any object; its schema is too large to be shown",
    }
    assert "files-drop takes any object: its schema is larger than 65,536 characters" in caplog.text
    assert "files-read" not in caplog.text


def test_a_listing_that_loosens_governance_warns(caplog: pytest.LogCaptureFixture) -> None:
    """A sandboxed server may say that a tool only reads; that it says so now and did not before is logged."""
    files = lister()
    before = files.listing([listed("drop", read_only=False)], None)
    assert files.listing([listed("drop", read_only=False)], before) is before
    with caplog.at_level(logging.WARNING):
        after = files.listing([listed("drop", read_only=True)], before)
    assert [asks(tool) for tool in (*before.tools, *after.tools)] == [True, False]
    assert "now lists files-drop as read-only" in caplog.text


def test_an_override_holds_for_a_tool_that_is_not_listed_yet() -> None:
    """By the server's own name, whatever characters the model's name leaves out of it."""
    files = lister(trust_level="trusted", tool_governance_overrides={"drop.table": {"requires_hitl": True}})
    assert asks(files.unlisted("files-drop_table")) is True
    assert asks(files.unlisted("files-read")) is False
    assert files.unlisted("file-read") is None
