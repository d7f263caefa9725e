"""OpenAPI plugins: documents that become tools, and the requests these make, seen on the wire."""

import asyncio
import importlib.util
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote

import jsonschema
import pytest
import yaml
from engine_setup import ADA, Scripted, Tools
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tools_setup import FIXTURES, Context, by_name, served

from tealagents.domain.errors import NeedsOwner, ToolFailed
from tealagents.domain.models import ToolCall
from tealagents.domain.ports import Checking, Tool
from tealagents.domain.tool_specs import VALID_NAME
from tealagents.engine.toolbox import CallContext, Toolbox, ToolOutput
from tealagents.testing.clock import advance
from tealagents.tools import openapi_schema
from tealagents.tools.errors import ToolsetError
from tealagents.tools.openapi import OpenAPIPlugin
from tealagents.tools.openapi_document import operations
from tealagents.tools.openapi_parsing import parsed
from tealagents.tools.openapi_request import request_of
from tealagents.tools.openapi_schema import MAX_DEFINITIONS
from tealagents.tools.options import RemotePluginOptions, remote_plugins
from tealagents.tools.schema_check import check_against

Json = dict[str, Any]

_spec = importlib.util.spec_from_file_location("library_api", FIXTURES / "library_api.py")
assert _spec is not None
assert _spec.loader is not None
library = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(library)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with served(library.app) as url:
        yield url


@asynccontextmanager
async def opened(
    folder: Path,
    document: Json,
    server: str | None,
    trace_headers: Callable[[], Mapping[str, str]] = dict,
    **more: Any,
) -> AsyncIterator[dict[str, Tool]]:
    file = folder / "openapi.json"
    file.write_text(json.dumps(document))
    options = RemotePluginOptions(
        plugin_name="Library", openapi_json_path=str(file), server_url=server and f"{server}/v1", **more
    )
    async with OpenAPIPlugin(options, trace_headers=trace_headers) as plugin:
        yield by_name(plugin)


async def sent(
    tools: dict[str, Tool], function: str, context: Context | None = None, /, **arguments: Any
) -> Json:
    """What the server saw of a call."""
    answer: Json = json.loads(await tools[f"Library-{function}"].call(context or Context(), arguments))
    return answer


def one_operation(operation: Json, *, version: str = "3.0.3", path: str = "/x", **components: Any) -> Json:
    return {
        "openapi": version,
        "info": {"title": "t", "version": "1"},
        "paths": {path: {"post": operation}},
        "components": {"schemas": components},
    }


def sample(schema: Any, definitions: Json, depth: int = 0) -> Any:
    """A value that fits a schema."""
    if "$ref" in schema:
        return sample(definitions[schema["$ref"].rpartition("/")[2]], definitions, depth + 1)
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return sample(schema[key][0], definitions, depth)
    if "allOf" in schema:
        return {
            name: one for part in schema["allOf"] for name, one in sample(part, definitions, depth).items()
        }
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        wanted = schema.get("properties", {}) if depth < 2 else {}
        required = schema.get("required", [])
        return {
            name: sample(one, definitions, depth + 1)
            for name, one in schema.get("properties", {}).items()
            if name in wanted or name in required
        }
    if kind == "array":
        return [sample(schema.get("items", {}), definitions, depth + 1)]
    return {"integer": 3, "number": 2.5, "boolean": True, "string": "0-1"}[kind]


# --- a whole document ----------------------------------------------------------------------------


async def test_every_operation_of_a_public_api_is_a_tool_that_works(tmp_path: Path, server: str) -> None:
    """Sixty operations: each has a name and a schema model services take, and its call reaches its path."""
    document = library.document()
    async with opened(tmp_path, document, server) as tools:
        assert len(tools) == 60
        paths = {
            f"{method.upper()} {path}"
            for path, item in document["paths"].items()
            for method in item
            if method != "parameters"
        }
        for name, tool in tools.items():
            assert VALID_NAME.fullmatch(name)
            jsonschema.Draft202012Validator.check_schema(tool.spec.parameters)
            arguments = sample(tool.spec.parameters, tool.spec.parameters.get("$defs", {}))
            jsonschema.validate(arguments, tool.spec.parameters)
            seen = json.loads(await tool.call(Context(), arguments))
            template = next(
                one
                for one in sorted(paths)
                if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", one), f"{seen['method']} {seen['path'][3:]}")
            )
            paths.remove(template)
        assert paths == set()


async def test_names_and_descriptions_come_from_the_document(tmp_path: Path, server: str) -> None:
    """The operationId names the tool, method and path do where there is none; the summary describes it."""
    async with opened(tmp_path, library.document(), server) as tools:
        assert tools["Library-listBooks"].spec.description == "List books\n\nReturns books, newest first."
        assert "Library-post_search" in tools
        assert tools["Library-grid"].spec.description == "GET /grid/{simple}/{label}/{matrix}/{exploded}"
        assert not tools["Library-deleteBook"].spec.governance.requires_hitl


async def test_only_chosen_operations(tmp_path: Path, server: str) -> None:
    """An entry may choose operations; of one that is not there the error names those that are."""
    async with opened(tmp_path, library.document(), server, operations=["search", "post_search"]) as tools:
        assert list(tools) == ["Library-search", "Library-post_search"]
    found = r"no operation 'serch'; found: addAnything, .* and 40 more. Did you mean 'search'"
    with pytest.raises(ToolsetError, match=found):
        async with opened(tmp_path, library.document(), server, operations=["serch"]):
            pass
    beds: Json = {"openapi": "3.1.0", "paths": {"/beds": {"get": {"responses": {}}}}}
    with pytest.raises(ToolsetError, match=r"no operation 'GET /beds'; found: get_beds\.$"):
        operations(beds, "it", ["GET /beds"])


async def test_operations_of_one_name_are_named_with_their_places(tmp_path: Path, server: str) -> None:
    """Which of them a decision means could not be said; those that are not chosen may stay."""
    document = one_operation({"operationId": "save"}) | {"servers": []}
    document["paths"] |= {"/y": {"put": {"operationId": "save"}, "get": {"operationId": "read"}}}
    for chosen in (None, ["read", "save"]):
        with pytest.raises(ToolsetError, match=r"two operations 'save': POST /x and PUT /y.*`operations`"):
            async with opened(tmp_path, document, server, operations=chosen):
                pass
    async with opened(tmp_path, document, server, operations=["read"]) as tools:
        assert list(tools) == ["Library-read"]


async def test_long_and_equal_names_stay_apart(tmp_path: Path, server: str) -> None:
    """Names beyond 64 characters, or equal once sanitised, end in a digest of the original."""
    document = library.document()
    document["paths"] = {
        "/a": {"get": {"operationId": "do it"}, "put": {"operationId": "do/it"}},
        "/b": {"get": {"operationId": "x" * 100}},
    }
    async with opened(tmp_path, document, server) as tools:
        assert len(tools) == 3
        assert all(VALID_NAME.fullmatch(name) for name in tools)
        assert not {"Library-do_it"} & set(tools)


# --- parameters ----------------------------------------------------------------------------------


async def test_styles_of_query_header_and_cookie(tmp_path: Path, server: str) -> None:
    """Each style is written as the specification says, with everything percent-encoded."""
    async with opened(tmp_path, library.document(), server) as tools:
        seen = await sent(
            tools,
            "search",
            q="a&b=c d/é",
            filter={"x": 1, "y": 2},
            tags=[1, 2],
            ids=[3, 4],
            words=[5, 6],
            near={"x": 7, "y": 8},
            box={"x": 9, "y": 0},
            page_size=10,
            where={"x": 11},
            **{"X-Trace-Id": "t", "X-Points": {"x": 1, "y": 2}},
            theme="dark blue",
        )
    assert seen["query"].split("&") == [
        "q=a%26b%3Dc%20d%2F%C3%A9",
        "filter[x]=1",
        "filter[y]=2",
        "tags=1",
        "tags=2",
        "ids=3%7C4",
        "words=5%206",
        "near=x,7,y,8",
        "x=9",
        "y=0",
        "page%5Bsize%5D=10",
        "where=%7B%22x%22%3A%2011%7D",
    ]
    assert seen["headers"]["x-trace-id"] == "t"
    assert seen["headers"]["x-points"] == "x=1,y=2"
    assert seen["headers"]["cookie"] == "theme=dark%20blue"


async def test_styles_of_path(tmp_path: Path, server: str) -> None:
    """Path parameters are written in the styles simple, label and matrix."""
    async with opened(tmp_path, library.document(), server) as tools:
        seen = await sent(
            tools, "grid", simple=[1, 2], label=[3, 4], matrix={"x": 5, "y": 6}, exploded={"x": 7, "y": 8}
        )
    assert seen["path"] == "/v1/grid/1,2/.3.4/;x=5;y=6/x=7,y=8"


@pytest.mark.parametrize("value", ["..", ".", "", "../admin", "a/../../b", "a//..", "..\\b", "a\\..\\b"])
async def test_path_cannot_be_left(tmp_path: Path, server: str, value: str) -> None:
    """A value that would be a step in the path is refused before anything is sent."""
    async with opened(tmp_path, library.document(), server) as tools:
        with pytest.raises(ToolFailed, match="Nothing was done"):
            await sent(tools, "getBook", id=value)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("a/b", "a%2Fb"),
        ("docs/", "docs%2F"),
        ("https://example.com/a b?c=d", "https%3A%2F%2Fexample.com%2Fa%20b%3Fc%3Dd"),
        ("?x=1#y", "%3Fx%3D1%23y"),
        ("%2e%2e", "%252e%252e"),
        ("{id}", "%7Bid%7D"),
        ("a@evil.example:80", "a%40evil.example%3A80"),
        ("grün 日", "gr%C3%BCn%20%E6%97%A5"),
    ],
)
async def test_path_values_are_encoded_whole(tmp_path: Path, server: str, value: str, path: str) -> None:
    """Whatever a path value holds, it stays one segment of the path."""
    async with opened(tmp_path, library.document(), server) as tools:
        assert (await sent(tools, "getBook", id=value))["path"] == f"/v1/books/{path}"


async def test_header_cannot_be_broken_out_of(tmp_path: Path, server: str) -> None:
    """A line break in a header's value is refused."""
    async with opened(tmp_path, library.document(), server) as tools:
        with pytest.raises(ToolFailed, match="X-Trace-Id cannot be sent as a header"):
            await sent(tools, "search", q="x", **{"X-Trace-Id": "a\r\nX-Admin: yes"})


async def test_header_takes_latin_letters(tmp_path: Path, server: str) -> None:
    """A header's value can hold the letters of Latin-1, from the model and from the plugin's entry."""
    async with opened(tmp_path, library.document(), server, headers={"X-City": "Köln"}) as tools:
        seen = await sent(tools, "search", q="x", **{"X-Trace-Id": "Zürich"})
    assert (seen["headers"]["x-trace-id"], seen["headers"]["x-city"]) == ("Zürich", "Köln")


async def test_a_header_that_cannot_be_sent_is_no_lost_answer(tmp_path: Path, server: str) -> None:
    """Nothing was sent, so nothing can have been done. Blanks around a value mean nothing in HTTP."""
    header: list[Json] = [{"name": name, "in": "header", "schema": {}} for name in ("X-A", "X B")]
    document = one_operation({"operationId": "a", "parameters": header}, path="/echo/a")
    async with opened(tmp_path, document, server) as tools:
        assert (await sent(tools, "a", **{"X-A": " a b\t"}))["headers"]["x-a"] == "a b"
        with pytest.raises(ToolFailed, match=r"cannot be sent.* Nothing was done\.$") as raised:
            await sent(tools, "a", X_B="b")
        assert not raised.value.unknown


async def test_headers_of_the_client_are_not_arguments(tmp_path: Path, server: str) -> None:
    """`Authorization` and the like are no arguments, whatever the document declares."""
    async with opened(tmp_path, library.document(), server) as tools:
        assert "Authorization" not in tools["Library-search"].spec.parameters["properties"]
        with pytest.raises(ToolFailed, match="There is no argument 'Authorization'"):
            await sent(tools, "search", q="x", Authorization="Bearer mine")


async def test_headers_of_the_entry_are_not_arguments(tmp_path: Path, server: str) -> None:
    """The model need not invent a key that the operator set, even if the document requires it."""
    declared = {"name": "X-Api-Key", "in": "header", "required": True, "schema": {"type": "string"}}
    document = one_operation({"operationId": "a", "parameters": [declared]}, path="/echo/a")
    async with opened(tmp_path, document, server, headers={"x-api-key": "k3y"}) as tools:
        assert tools["Library-a"].spec.parameters["properties"] == {}
        assert (await sent(tools, "a"))["headers"]["x-api-key"] == "k3y"
        with pytest.raises(ToolFailed, match="There is no argument 'X-Api-Key'"):
            await sent(tools, "a", **{"X-Api-Key": "invented"})
    async with opened(tmp_path, document, server) as tools:
        with pytest.raises(ToolFailed, match="Missing: X-Api-Key"):
            await sent(tools, "a")


async def test_cookies_of_the_entry_are_sent_beside_those_of_arguments(tmp_path: Path, server: str) -> None:
    """Those of the entry are no arguments, and no argument replaces them: not even an object's key."""
    declared: list[Json] = [
        {"name": "k[1]", "in": "cookie", "required": True, "schema": {"type": "string"}},
        {"name": "session", "in": "cookie", "required": True, "schema": {"type": "string"}},
        {"name": "more", "in": "cookie", "schema": {"type": "object"}},
    ]
    document = one_operation({"operationId": "a", "parameters": declared}, path="/echo/a")
    async with opened(tmp_path, document, server, headers={"Cookie": "k%5B1%5D=k3y; lang=en;"}) as tools:
        assert list(tools["Library-a"].spec.parameters["properties"]) == ["session", "more"]
        seen = await sent(tools, "a", session="s 1", more={"k[1]": "invented", "lang": "fr", "Lang": "de"})
    assert seen["headers"]["cookie"] == "k%5B1%5D=k3y; lang=en; session=s%201; Lang=de"


async def test_a_trace_of_the_operations_own_is_kept(tmp_path: Path, server: str) -> None:
    """A call continues the current trace, unless an argument fills the header that the document declares."""
    document = library.document()
    declared = {"name": "traceparent", "in": "header", "schema": {"type": "string"}}
    document["paths"]["/search"]["get"]["parameters"].append(declared)
    trace = {"traceparent": "ours", "tracestate": "ours"}
    async with opened(tmp_path, document, server, lambda: trace) as tools:
        continued = (await sent(tools, "search", q="x"))["headers"]
        own = (await sent(tools, "search", q="x", traceparent="its own"))["headers"]
    assert trace.items() <= continued.items()
    assert (own["traceparent"], own.get("tracestate")) == ("its own", None)


async def test_missing_and_null_arguments(tmp_path: Path, server: str) -> None:
    """A required argument is asked for; null means that an optional one is not used."""
    async with opened(tmp_path, library.document(), server) as tools:
        with pytest.raises(ToolFailed, match="Missing: q"):
            await sent(tools, "search", q=None)
        assert (await sent(tools, "listBooks", limit=None, cursor=None))["query"] == ""


async def test_equal_names_in_two_places(tmp_path: Path, server: str) -> None:
    """Parameters of one name in two places are distinguished by their place."""
    document = library.document()
    document["paths"] = {
        "/a/{id}": {
            "get": {
                "operationId": "both",
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "id", "in": "query", "schema": {"type": "string"}},
                ],
            }
        }
    }
    async with opened(tmp_path, document, server) as tools:
        seen = await sent(tools, "both", id="p", id_query="q")
    assert (seen["path"], seen["query"]) == ("/v1/a/p", "id=q")


def test_a_parameter_is_written_as_its_media_type_says() -> None:
    """As JSON, in a path too, or as the text that it is; other values are JSON in any case."""
    media = {"j": "application/json", "t": "text/plain"}
    parameters: list[Json] = [
        {"name": f"{place}-{name}", "in": place, "content": {kind: {"schema": {}}}}
        for place in ("path", "query", "header", "cookie")
        for name, kind in media.items()
    ]
    document = one_operation({"parameters": parameters}, path="/{path-j}/{path-t}")
    [operation] = operations(document, "it")
    names = [str(parameter["name"]) for parameter in parameters]
    seen = request_of(operation, dict.fromkeys(names, 'a"'))
    assert seen.target == "/%22a%5C%22%22/a%22?query-j=%22a%5C%22%22&query-t=a%22"
    assert seen.headers == {
        "header-j": '"a\\""',
        "header-t": 'a"',
        "Cookie": "cookie-j=%22a%5C%22%22; cookie-t=a%22",
    }
    seen = request_of(operation, {name: [1] for name in names})
    assert seen.target == "/%5B1%5D/%5B1%5D?query-j=%5B1%5D&query-t=%5B1%5D"
    assert seen.headers["header-t"] == "[1]"


@pytest.mark.parametrize(
    ("path", "target"),
    [("/x?type=a", "/x?type=a&q=1"), ("/x#one", "/x?q=1"), ("/x?type=a#one", "/x?type=a&q=1")],
)
def test_a_query_follows_what_the_path_has_of_one(path: str, target: str) -> None:
    """Some documents distinguish operations of one path by a query or a fragment, which is not sent."""
    query = {"name": "q", "in": "query", "schema": {"type": "integer"}}
    [operation] = operations(one_operation({"parameters": [query]}, path=path), "it")
    assert request_of(operation, {"q": 1}).target == target
    assert request_of(operation, {}).target == target.replace("&q=1", "").replace("?q=1", "")


# --- bodies --------------------------------------------------------------------------------------


async def test_fields_of_a_body_are_arguments(tmp_path: Path, server: str) -> None:
    """Fields stand beside parameters; what only the server sets is none of them; null is sent if allowed."""
    async with opened(tmp_path, library.document(), server) as tools:
        schema = tools["Library-createMember"].spec.parameters
        assert set(schema["properties"]) == {"name", "email", "level", "address"}
        assert schema["required"] == ["name", "email"]
        seen = await sent(tools, "createMember", name="Ann", email="a@b.c", level=None, address=None)
    assert json.loads(seen["body"]) == {"name": "Ann", "email": "a@b.c", "address": None}
    assert seen["headers"]["content-type"] == "application/json"


async def test_body_whose_fields_clash_is_one_argument(tmp_path: Path, server: str) -> None:
    """Where a field is called like a parameter, the whole body is the argument `body`."""
    async with opened(tmp_path, library.document(), server) as tools:
        assert set(tools["Library-updateBook"].spec.parameters["properties"]) == {"id", "body"}
        seen = await sent(tools, "updateBook", id="7", body={"id": "8", "title": "x"})
    assert seen["path"] == "/v1/books/7"
    assert json.loads(seen["body"]) == {"id": "8", "title": "x"}


async def test_body_that_is_no_plain_object_is_one_argument(tmp_path: Path, server: str) -> None:
    """A body of several forms, or of text, is the argument `body`."""
    async with opened(tmp_path, library.document(), server) as tools:
        assert json.loads((await sent(tools, "post_search", body={"x": 1}))["body"]) == {"x": 1}
        seen = await sent(tools, "setNote", body="plain ü")
        assert (seen["body"], seen["headers"]["content-type"]) == ("plain ü", "text/plain")
        with pytest.raises(ToolFailed, match="Missing: body"):
            await sent(tools, "setNote")
        seen = await sent(tools, "storeScan", body="data:application/octet-stream;base64,/wA=")
        assert seen["body"] == "/wA="


async def test_open_body_takes_other_fields(tmp_path: Path, server: str) -> None:
    """A body that allows other fields takes them; one that does not names what it takes."""
    async with opened(tmp_path, library.document(), server) as tools:
        assert json.loads((await sent(tools, "addAnything", known=1, other=2))["body"]) == {
            "known": 1,
            "other": 2,
        }
        with pytest.raises(ToolFailed, match=r"There is no argument 'titel'; .* Did you mean 'title'"):
            await sent(tools, "createBook", titel="x")


@pytest.mark.parametrize(
    ("others", "is_open"),
    [
        ({"additionalProperties": {}}, True),
        ({"additionalProperties": False, "patternProperties": {"^x-": {"type": "string"}}}, True),
        ({"unevaluatedProperties": {"type": "string"}}, True),
        ({"unevaluatedProperties": False, "patternProperties": {}}, False),
    ],
)
def test_a_body_is_open_however_its_schema_says_so(others: Json, is_open: bool) -> None:
    """Beside a reference as well."""
    plain: Json = {"type": "object", "properties": {"known": {}}}
    for schema in ({**plain, **others}, {"$ref": "#/components/schemas/Plain", **others}):
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        [operation] = operations(one_operation({"requestBody": body}, Plain=plain), "it")
        assert ("additionalProperties" not in operation.schema) is is_open
        arguments = {"known": 1, "x-foo": "q"}
        with nullcontext() if is_open else pytest.raises(ToolFailed, match="There is no argument"):
            assert json.loads(request_of(operation, arguments).body["content"]) == arguments


def test_a_body_that_others_derive_from_takes_their_fields() -> None:
    """Its `discriminator` says so. What is derived itself names what it takes, as does what is closed."""
    pet: Json = {"type": "object", "properties": {"kind": {"type": "string"}}}
    pet["discriminator"] = {"propertyName": "kind"}
    base: Json = {"$ref": "#/components/schemas/Pet"}
    dog: Json = {"allOf": [base, {"properties": {"bark": {"type": "integer"}}}]}
    for schema, is_open in (
        (base, True),
        (pet, True),
        (dog, False),
        ({**pet, "additionalProperties": False}, False),
    ):
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        [operation] = operations(one_operation({"requestBody": body}, Pet=pet, Dog=dog), "it")
        assert ("additionalProperties" not in operation.schema) is is_open
        arguments = {"kind": "Dog", "bark": 1, "tail": 2}
        with nullcontext() if is_open else pytest.raises(ToolFailed, match="There is no argument"):
            assert json.loads(request_of(operation, arguments).body["content"]) == arguments


@pytest.mark.parametrize(
    ("discriminator", "of_pet", "of_dog", "of_cat"),
    [
        ({"mapping": {"dog": "#/components/schemas/Dog", "cat": "Cat"}}, "dog, cat", "dog", "cat"),
        ({"mapping": {"dog": "Dog", "puppy": "Dog"}}, "dog, puppy", "dog, puppy", None),
        ({}, None, None, None),
        ({"mapping": ["dog"]}, None, None, None),
    ],
)
def test_descriptions_say_the_values_of_a_discriminator(
    discriminator: Json, of_pet: str | None, of_dog: str | None, of_cat: str | None
) -> None:
    """Those of its mapping: a model does not know the keyword. The names of schemas may be values that the
    field's schema refuses."""
    discriminator = {"propertyName": "kind", **discriminator}
    named = {name: {"$ref": f"#/components/schemas/{name}"} for name in ("Pet", "Dog", "Cat")}
    kind = {"type": "string", "description": "What it is."}
    schemas: Json = {
        "Pet": {"type": "object", "properties": {"kind": kind}, "discriminator": discriminator},
        "Dog": {"allOf": [named["Pet"], {"properties": {"bark": {"type": "boolean"}}}]},
        "Cat": {"allOf": [named["Pet"]]},
        "Poodle": {"allOf": [named["Dog"]]},
        "One": {"oneOf": [named["Dog"], named["Cat"], {"type": "null"}], "discriminator": discriminator},
    }
    in_pet = {**kind, "description": f"What it is.\nKnown values: {of_pet}"} if of_pet else kind
    for name in ("Pet", "Dog"):
        body = {"content": {"application/json": {"schema": named[name]}}}
        [operation] = operations(one_operation({"requestBody": body}, **schemas), "it")
        assert operation.schema["properties"]["kind"] == in_pet
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/One"}}}}
    [operation] = operations(one_operation({"requestBody": body}, **schemas), "it")
    assert operation.schema["$defs"]["Pet"]["properties"]["kind"] == in_pet
    assert operation.schema["$defs"]["One"]["oneOf"] == [
        {"$ref": "#/$defs/Dog", **({"description": f"kind: {of_dog}"} if of_dog else {})},
        {"$ref": "#/$defs/Cat", **({"description": f"kind: {of_cat}"} if of_cat else {})},
        {"type": "null"},
    ]


@pytest.mark.parametrize("name", ["Referring", "Wrapped", "Derived"])
def test_a_discriminator_whose_field_lists_its_values_is_not_described(name: str) -> None:
    """Itself, in what it refers to, or in a schema that derives from the one with the discriminator."""
    kind: Json = {"$ref": "#/components/schemas/Kind"}
    discriminator = {"propertyName": "kind", "mapping": {"cat": "Cat", "dog": "Dog"}}
    base = {"type": "object", "properties": {"kind": {"type": "string"}}, "discriminator": discriminator}
    schemas: Json = {
        "Kind": {"type": "string", "enum": ["cat"]},
        "Base": base,
        "Referring": {**base, "properties": {"kind": kind}},
        "Wrapped": {**base, "properties": {"kind": {"allOf": [kind]}}},
        "Derived": {
            "allOf": [{"$ref": "#/components/schemas/Base"}, {"properties": {"kind": {"const": "cat"}}}]
        },
    }
    body = {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}
    [operation] = operations(one_operation({"requestBody": body}, **schemas), "it")
    assert "kind" in operation.schema["properties"]
    assert "Known values" not in json.dumps(operation.schema)


def test_a_discriminator_of_many_values_says_the_first() -> None:
    """The number of the others follows. What has a list of values itself needs none."""
    mapping = {f"v{number}": "Any" for number in range(1000)}
    pet: Json = {
        "properties": {"kind": {}, "fixed": {"properties": {"kind": {"enum": ["v1"]}}}},
        "discriminator": {"propertyName": "kind", "mapping": mapping},
    }
    pet["properties"]["fixed"]["discriminator"] = pet["discriminator"]
    body = {"content": {"application/json": {"schema": pet}}}
    [operation] = operations(one_operation({"requestBody": body}), "it")
    assert operation.schema["properties"]["kind"]["description"].endswith(", v49, and 950 more")
    assert operation.schema["properties"]["fixed"] == {"properties": {"kind": {"enum": ["v1"]}}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"allOf": [{"$ref": "#/components/schemas/Base"}, {"required": ["name"]}]}, {"name": "x"}, {}),
        (
            {"allOf": [{"$ref": "#/components/schemas/Base"}], "properties": {"kind": {"enum": ["cat"]}}},
            {"kind": "cat"},
            {"kind": "dog"},
        ),
        (
            {"allOf": [{"properties": {"q": {"type": "integer"}}}, {"properties": {"q": {"title": "Q"}}}]},
            {"q": 1},
            {"q": "no"},
        ),
        (
            {
                "properties": {
                    "pet": {"allOf": [{"$ref": "#/components/schemas/Base"}, {"required": ["id", "name"]}]}
                }
            },
            {"pet": {"name": "x"}},
            {"pet": {}},
        ),
    ],
)
def test_a_body_of_several_parts_has_to_fit_each(schema: Json, good: Json, bad: Json) -> None:
    """Whichever part says what of a field. What only the server sets is required by none."""
    fields = {"id": {"type": "string", "readOnly": True}, "name": {}, "kind": {"type": "string"}}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    document = one_operation({"requestBody": body}, Base={"type": "object", "properties": fields})
    [operation] = operations(document, "it")
    check_against(operation.schema, good)
    with pytest.raises(ToolFailed):
        check_against(operation.schema, bad)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": "#/components/schemas/Derived"}, {"required": ["id", "n"]}]},
        {"allOf": [{"$ref": "#/components/schemas/Plain"}, {"properties": {"id": {"readOnly": True}}}]},
        {"$ref": "#/components/schemas/Plain", "properties": {"id": {"readOnly": True}}},
        {
            "allOf": [{"$ref": "#/components/schemas/Again"}, {"$ref": "#/components/schemas/Plain"}],
            "properties": {"id": {"$ref": "#/components/schemas/Id"}},
        },
        {"oneOf": [{"$ref": "#/components/schemas/Base"}, {"required": ["z"]}], "required": ["id", "n"]},
        {"allOf": [{"$ref": "#/components/schemas/Node"}], "properties": {"id": {"readOnly": True}}},
        {
            "properties": {"id": {"readOnly": True}},
            "oneOf": [{"required": ["id", "n"]}, {"required": ["id", "z"]}],
            "required": ["n"],
        },
        {"properties": {"id": {"readOnly": True}}, "anyOf": [{"$ref": "#/components/schemas/Plain"}]},
        {
            "properties": {"id": {"readOnly": True}},
            "oneOf": [{"required": ["id"]}, {"required": ["n"]}],
            "required": ["n"],
        },
        {
            "allOf": [{"$ref": "#/components/schemas/Either"}],
            "properties": {"id": {"readOnly": True}},
            "required": ["n"],
        },
    ],
)
def test_no_part_of_a_schema_requires_what_only_the_server_sets(schema: Json) -> None:
    """Wherever it is marked: levels above, beside a reference to what requires it, or in an alternative."""
    base: Json = {"type": "object", "properties": {"id": {"readOnly": True}, "n": {}}, "required": ["id"]}
    schemas: Json = {
        "Base": base,
        "Derived": {"allOf": [{"$ref": "#/components/schemas/Between"}]},
        "Between": {"allOf": [{"$ref": "#/components/schemas/Base"}]},
        "Plain": {"type": "object", "properties": {"id": {}, "n": {}}, "required": ["id", "n"]},
        "Again": {"allOf": [{"$ref": "#/components/schemas/Plain"}, {"required": ["id"]}]},
        "Id": {"type": "string", "readOnly": True},
        "Either": {"oneOf": [{"$ref": "#/components/schemas/Plain"}, {"required": ["id", "z"]}]},
        "Loop": {**base, "allOf": [{"$ref": "#/components/schemas/Loop"}]},
    }
    node = {"allOf": [{"$ref": "#/components/schemas/Node"}], "properties": {"id": {"readOnly": True}}}
    schemas["Node"] = {**schemas["Plain"], "properties": {"id": {}, "n": {}, "node": node}}
    fields = {"below": schema, "loop": {"$ref": "#/components/schemas/Loop"}}
    body = {"content": {"application/json": {"schema": {"properties": fields}}}}
    [operation] = operations(one_operation({"requestBody": body}, **schemas), "it")
    jsonschema.Draft202012Validator.check_schema(operation.schema)
    jsonschema.validate({"below": {"n": "x"}}, operation.schema)
    with pytest.raises(jsonschema.ValidationError, match="'n' is a required property"):
        jsonschema.validate({"below": {}}, operation.schema)


async def test_null_is_sent_where_the_schema_has_it(tmp_path: Path, server: str) -> None:
    """In JSON, also by way of references and where nothing else is said; else null means absent."""
    due = {"$ref": "#/components/schemas/Due"}
    fields: Json = {
        "due": due,
        "whole": {"allOf": [due, {"description": "the day"}]},
        "either": {"oneOf": [{"type": "integer"}, due]},
        "any": {},
        "chosen": {"enum": ["a", None]},
        "fixed": {"const": None},
        "plain": {"type": "string"},
        "some": {"enum": ["a", "b"]},
        "both": {"allOf": [due, {"type": "string"}]},
        "object": {"properties": {"a": {}}},
        "loop": {"$ref": "#/components/schemas/Loop"},
    }
    body = {"required": True, "content": {"application/json": {"schema": {"properties": fields}}}}
    form = {"content": {"application/x-www-form-urlencoded": {"schema": {"properties": fields}}}}
    document = one_operation(
        {"operationId": "a", "requestBody": body},
        path="/echo/a",
        Due={"type": "string", "format": "date", "nullable": True},
        Loop={"anyOf": [{"$ref": "#/components/schemas/Loop"}]},
    )
    async with opened(tmp_path, document, server) as tools:
        seen = await sent(tools, "a", **dict.fromkeys(fields))
        assert list(json.loads(seen["body"])) == ["due", "whole", "either", "any", "chosen", "fixed"]
    document["paths"]["/echo/a"]["post"]["requestBody"] = form
    async with opened(tmp_path, document, server) as tools:
        assert (await sent(tools, "a", **dict.fromkeys(fields)))["body"] == ""


@pytest.mark.parametrize(
    ("schema", "media_type", "sent_as"),
    [
        ({"type": ["string", "null"]}, "application/json", {"content": b"null"}),
        ({"type": "object", "nullable": True}, "application/merge-patch+json", {"content": b"null"}),
        ({"type": "string"}, "application/json", None),
        ({"type": ["string", "null"]}, "text/plain", None),
    ],
)
def test_a_required_body_is_null_where_its_schema_allows_it(
    schema: Json, media_type: str, sent_as: Json | None
) -> None:
    """In JSON. It has to be given; and where no body is required, null is none."""
    for required in (True, False):
        body = {"required": required, "content": {media_type: {"schema": schema}}}
        [operation] = operations(one_operation({"requestBody": body}), "it")
        for arguments in ({"body": None}, {}):
            null = sent_as if required and arguments else None
            with nullcontext() if null or not required else pytest.raises(ToolFailed, match="Missing: body"):
                assert request_of(operation, arguments).body == (null or {})


def test_a_null_within_a_value_is_absent_outside_json() -> None:
    """In every place and style, and in the fields of forms; within JSON it stays."""
    parameters: list[Json] = [
        {"name": "list", "in": "path"},
        {"name": "deep", "in": "query", "style": "deepObject"},
        {"name": "many", "in": "query"},
        {"name": "joined", "in": "query", "explode": False},
        {"name": "none", "in": "query"},
        {"name": "json", "in": "query", "content": {"application/json": {}}},
        {"name": "header", "in": "header"},
        {"name": "cookie", "in": "cookie"},
    ]
    values: Json = {
        "list": ["a", None],
        "deep": {"gt": 5, "lt": None, "in": [None, 1, {"x": None}]},
        "many": [1, None],
        "joined": {"a": 1, "b": None},
        "none": [None],
        "json": {"a": None},
        "header": [None, "h"],
        "cookie": [None, "c"],
    }
    fields: Json = {"address": {"line1": "x", "line2": None, "more": [None]}, "tags": [None, "t"], "o": None}
    for media_type, key in (
        ("application/x-www-form-urlencoded", "content"),
        ("multipart/form-data", "files"),
    ):
        # with a field named like a parameter, the whole body is one argument
        schema = {"properties": dict.fromkeys((*fields, "list"), True)}
        body = {"content": {media_type: {"schema": schema}}}
        document = one_operation({"parameters": parameters, "requestBody": body}, path="/{list}")
        [operation] = operations(document, "it")
        seen = request_of(operation, {**values, "body": fields})
        assert unquote(seen.target) == '/a?deep[gt]=5&deep[in][0]=1&many=1&joined=a,1&json={"a": null}'
        assert (seen.headers["header"], seen.headers["Cookie"]) == ("h", "cookie=c")
        if key == "content":
            assert seen.body[key] == b"address[line1]=x&tags=t"
        else:  # an object within a part is JSON
            sent_as = [(name, content) for name, (_, content, _) in seen.body[key]]
            assert sent_as == [("address", json.dumps(fields["address"]).encode()), ("tags", b"t")]
    with pytest.raises(ToolFailed, match=r"cannot be .* in a path"):
        request_of(operation, {"list": [None]})


async def test_form_body(tmp_path: Path, server: str) -> None:
    """A form's fields are encoded, lists repeated, objects written as the document says."""
    async with opened(tmp_path, library.document(), server) as tools:
        seen = await sent(
            tools, "createPayment", cents=5, notes=["a b", "c&d"], meta={"k": "v"}, point={"x": 1}
        )
    assert seen["body"] == "cents=5&notes=a%20b&notes=c%26d&meta[k]=v&point[x]=1"
    assert seen["headers"]["content-type"] == "application/x-www-form-urlencoded"


async def test_multipart_body(tmp_path: Path, server: str) -> None:
    """Files are parts with a name, values plain parts, objects JSON parts."""
    async with opened(tmp_path, library.document(), server) as tools:
        seen = await sent(
            tools, "uploadCover", image="data:image/png;base64,aW1n", caption="ü", sizes=[1, 2], crop={"x": 1}
        )
    assert seen["headers"]["content-type"].startswith("multipart/form-data; boundary=")
    parts = re.split(r"--[0-9a-f]{32}(?:--)?\r\n", seen["body"])[1:-1]
    assert [part.partition("\r\n")[0] for part in parts] == [
        'Content-Disposition: form-data; name="image"; filename="image"',
        'Content-Disposition: form-data; name="caption"',
        'Content-Disposition: form-data; name="sizes"',
        'Content-Disposition: form-data; name="sizes"',
        'Content-Disposition: form-data; name="crop"',
    ]
    assert [part.strip().rpartition("\r\n\r\n")[2] for part in parts] == ["img", "ü", "1", "2", '{"x": 1}']


@pytest.mark.parametrize(
    ("media_type", "sent_as"),
    [
        ("application/x-www-form-urlencoded; charset=utf-8", "application/x-www-form-urlencoded"),
        ("Application/X-WWW-Form-Urlencoded", "application/x-www-form-urlencoded"),
        ("multipart/form-data; charset=utf-8", "multipart/form-data; boundary="),
        ("Multipart/Form-Data", "multipart/form-data; boundary="),
    ],
)
async def test_a_form_is_one_however_its_media_type_is_written(
    tmp_path: Path, server: str, media_type: str, sent_as: str
) -> None:
    """With parameters, or in capitals: its fields are arguments, and files are parts."""
    fields = {"name": {"type": "string"}, "file": {"type": "string", "format": "binary"}}
    body = {"required": True, "content": {media_type: {"schema": {"properties": fields}}}}
    document = one_operation({"operationId": "a", "requestBody": body}, path="/echo/a")
    async with opened(tmp_path, document, server) as tools:
        seen = await sent(tools, "a", name="x", file="data:text/csv,1")
    assert seen["headers"]["content-type"].startswith(sent_as)
    if "boundary" in sent_as:
        assert 'name="name"\r\n' in seen["body"]
        assert 'filename="file"\r\nContent-Type: text/csv\r\n\r\n1\r\n' in seen["body"]
    else:
        assert unquote(seen["body"]) == "name=x&file=data:text/csv,1"


@pytest.mark.parametrize(
    ("field", "key"), [({"type": "string", "format": "binary"}, "files"), ({"type": "string"}, "content")]
)
def test_of_a_form_and_a_multipart_body_the_one_that_carries_files_is_sent(field: Json, key: str) -> None:
    """Without a file, a form is enough."""
    media = {"schema": {"type": "object", "properties": {"x": field}}}
    kinds = ("application/x-www-form-urlencoded", "multipart/form-data; charset=utf-8", "text/plain")
    body = {"required": True, "content": dict.fromkeys(kinds, media)}
    [operation] = operations(one_operation({"requestBody": body}), "it")
    assert list(request_of(operation, {"x": "data:image/png;base64,aW1n"}).body) == [key]


async def test_a_form_writes_a_field_as_its_encoding_says(tmp_path: Path, server: str) -> None:
    """As JSON where it has that media type and no style; its keys never become fields of their own."""
    kinds: Json = {"text": "string", "meta": "object", "tags": "array", "other": "object", "styled": "object"}
    media = {
        "schema": {"type": "object", "properties": {name: {"type": kind} for name, kind in kinds.items()}},
        "encoding": {
            "text": {"contentType": "application/json"},
            "meta": {"contentType": "application/json; charset=utf-8"},
            "tags": {"contentType": "application/json"},
            "other": {"headers": {}},
            "styled": {"contentType": "application/json", "explode": False},
        },
    }
    body = {"required": True, "content": {"application/x-www-form-urlencoded": media}}
    document = one_operation({"operationId": "a", "requestBody": body}, path="/echo/a")
    async with opened(tmp_path, document, server) as tools:
        seen = await sent(
            tools, "a", text="[]", meta={"text": "x"}, tags=["x", 1], other={"text": "x"}, styled={"b": "c"}
        )
    assert unquote(seen["body"]) == 'text=[]&meta={"text": "x"}&tags=["x", 1]&other[text]=x&styled=b,c'


async def test_files_are_found_wherever_a_schema_has_them(tmp_path: Path, server: str) -> None:
    """In lists, as options, by reference; each has the media type of its URI, else that of the document."""
    file = {"type": "string", "contentMediaType": "application/octet-stream"}
    upload = {"$ref": "#/components/schemas/Upload"}
    fields: Json = {
        "many": {"type": "array", "items": upload},
        "option": {"anyOf": [file, {"type": "null"}]},
        "named": {"allOf": [upload]},
        "plain": {"type": "string", "format": "binary"},
        "note": {"type": "string"},
    }
    media = {
        "schema": {"type": "object", "properties": fields},
        "encoding": {"named": {"contentType": "image/png"}, "plain": {"contentType": "image/png, image/gif"}},
    }
    body = {"required": True, "content": {"multipart/form-data": media}}
    document = one_operation({"operationId": "a", "requestBody": body}, path="/echo/a", Upload=file)
    async with opened(tmp_path, document, server) as tools:
        shown = tools["Library-a"].spec.parameters["properties"]
        assert (shown["many"]["type"], shown["many"]["items"]) == ("array", shown["option"])
        seen = await sent(
            tools,
            "a",
            many=["data:text/csv;charset=utf-8;base64,aW1n", "b"],
            option="data:image/gif,c",
            named="d",
            plain="data:a\r\nb/c,e",
            note="data:,f",
        )
        empty = await sent(tools, "a", option=None, many=[])
    parts = re.split(r"--[0-9a-f]{32}(?:--)?\r\n", seen["body"])[1:-1]
    assert [part.split("\r\n", 1)[1].strip() for part in parts] == [
        "Content-Type: text/csv;charset=utf-8\r\n\r\nimg",
        "Content-Type: application/octet-stream\r\n\r\nb",
        "Content-Type: image/gif\r\n\r\nc",
        "Content-Type: image/png\r\n\r\nd",
        "Content-Type: application/octet-stream\r\n\r\ne",
        "Content-Type: text/plain; charset=utf-8\r\n\r\ndata:,f",
    ]
    assert "name=" not in empty["body"]
    assert empty["body"] == f"--{empty['headers']['content-type'].partition('boundary=')[2]}--\r\n"


@pytest.mark.parametrize(
    ("given", "content"),
    [
        ("data:application/pdf;base64,aW1n", b"img"),
        ("data:;base64,aW1n", b"img"),
        ("data:text/csv; charset=utf-8,a,b%20c\n1,2", b"a,b c\n1,2"),
        ("data:image/svg+xml;utf8,<svg/>", b"<svg/>"),
        ("data:,a%20b", b"a b"),
        ('data:image/png;name="my file.png";base64,aW1n', b"img"),
        ("data: image/png;base64,aW1n", b"img"),
        ("data:pdf;base64,aW1n", b"img"),
        ("data:a\r\nb/c;base64,aW1n", b"img"),
        ("data:\n  color: red, blue\n", None),
        ("data:\r\n  color: red, blue\r\n", None),
        ("data: 1, 2, 3", None),
        ("data:yes/no; perhaps, later", None),
        ("data:\n- 1;base64,AAAA", None),
        ("data,value\n1,2\n", None),
    ],
)
def test_only_a_data_uri_is_read_as_one(given: str, content: bytes | None) -> None:
    """Other text, such as YAML with a key `data`, is sent as it is, in a file too; so is a body of text
    that is not marked as a file."""
    file: Json = {"type": "string", "format": "binary"}
    form: Json = {"properties": {"body": file}}
    media = {"application/yaml": {}, "text/plain": {}, "text/csv": file, "multipart/form-data": form}
    for media_type, schema in media.items():
        body = {"required": True, "content": {media_type: {"schema": schema}}}
        [operation] = operations(one_operation({"requestBody": body}), "it")
        [seen] = request_of(operation, {"body": given}).body.values()
        seen = seen[0][1][1] if media_type == "multipart/form-data" else seen
        assert seen == (given.encode() if content is None or media_type == "text/plain" else content)


@pytest.mark.parametrize(
    ("given", "sent_as"), [("data:image/png;base64,aW1n", "image/png"), ("img", "application/octet-stream")]
)
async def test_a_body_of_any_image_has_the_type_of_its_uri(
    tmp_path: Path, server: str, given: str, sent_as: str
) -> None:
    """A media type with `*` is none that a request could have."""
    body = {"required": True, "content": {"image/*": {"schema": {}}}}
    document = one_operation({"operationId": "a", "requestBody": body}, path="/echo/a")
    async with opened(tmp_path, document, server) as tools:
        seen = await sent(tools, "a", body=given)
    assert (seen["headers"]["content-type"], seen["body"]) == (sent_as, "img")


@pytest.mark.parametrize(
    ("media_type", "given", "sent_as", "content"),
    [
        ("application/*+json", "é", "application/json", '"é"'.encode()),
        ("text/*", "é", "text/plain; charset=utf-8", "é".encode()),
        ("text/*", "data:text/csv,1", "text/csv", b"1"),
        ("application/pdf", "data:text/csv,1", "application/pdf", b"1"),
        ("text/plain; charset=iso-8859-1", "é", "text/plain; charset=iso-8859-1", b"\xe9"),
        ('text/csv; charset="ISO-8859-1"; header=present', "é", None, b"\xe9"),
        ('text/csv; charset="latin1"; header=present', "€", "text/csv; charset=utf-8; header=present", None),
        ("text/plain;charset=punycode", "é", "text/plain; charset=utf-8", None),
        ("text/plain;charset=UTF-8", "é", "text/plain;charset=UTF-8", None),
        ("application/yaml; charset=utf-16-le", "é", None, b"\xe9\x00"),
    ],
)
def test_the_media_type_says_what_is_sent(
    media_type: str, given: str, sent_as: str | None, content: bytes | None
) -> None:
    """Of a range, a type within it; the charset is the declared one, or else UTF-8. So do those of parts."""
    expected = (sent_as or media_type, content or given.encode())
    body: Json = {"required": True, "content": {media_type: {"schema": {}}}}
    [operation] = operations(one_operation({"requestBody": body}), "it")
    seen = request_of(operation, {"body": given})
    assert (seen.headers["Content-Type"], seen.body["content"]) == expected
    if "charset" in media_type:
        fields: Json = {"text": {"type": "string"}, "file": {"type": "string", "format": "binary"}}
        media = {
            "schema": {"properties": fields},
            "encoding": {name: {"contentType": media_type} for name in fields},
        }
        body = {"required": True, "content": {"multipart/form-data": media}}
        [operation] = operations(one_operation({"requestBody": body}), "it")
        parts = request_of(operation, dict.fromkeys(fields, given)).body["files"]
        assert [(kind, content) for _, (_, content, kind) in parts] == [expected] * 2


@pytest.mark.parametrize(
    ("media_type", "arguments"),
    [
        ('application/json; x="€"', {"body": 1}),
        ("image/*", {"body": "data:image/png;x=€,a"}),
        ("text/plain", {"body": "a", "uro": "b"}),
    ],
)
async def test_names_that_no_header_can_have_are_refused(
    tmp_path: Path, server: str, media_type: str, arguments: Json
) -> None:
    """Whether the document has them or the model does; other calls of the operation work."""
    body: Json = {"content": {media_type: {"schema": {}}}}
    parameters = [{"name": "€uro", "in": "header"}]
    document = one_operation(
        {"operationId": "a", "parameters": parameters, "requestBody": body}, path="/echo/a"
    )
    async with opened(tmp_path, document, server) as tools:
        with pytest.raises(ToolFailed, match=r"cannot be sent.* Nothing was done\.$"):
            await sent(tools, "a", **arguments)
        assert (await sent(tools, "a"))["body"] == ""


# --- arguments that were edited ------------------------------------------------------------------

EDITED = one_operation(
    {
        "operationId": "a",
        "parameters": [
            {"name": "n", "in": "query", "required": True, "schema": {"type": "integer", "minimum": 1}},
            {
                "name": "kind",
                "in": "query",
                "schema": {"type": "string", "enum": ["a", "b"], "nullable": True},
            },
            {"name": "short", "in": "query", "schema": {"type": "string", "maxLength": 3}},
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}},
        },
    },
    Order={
        "type": "object",
        "required": ["items", "due"],
        "properties": {
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/Item"}, "maxItems": 2},
            "rest": {"oneOf": [{"type": "number"}, {"$ref": "#/components/schemas/Item"}]},
            "on": {"type": "boolean", "enum": [True]},
            "due": {"type": "string", "nullable": True},
        },
    },
    Item={
        "type": "object",
        "additionalProperties": False,
        "required": ["id"],
        "properties": {"id": {"type": "string", "pattern": "^(a+)+$"}, "more": {"type": "integer"}},
    },
)


@pytest.mark.parametrize(
    ("edited", "fault"),
    [
        ({}, None),
        ({"kind": None, "short": None}, None),
        ({"rest": 2.5, "on": True, "n": 2.0}, None),
        ({"rest": {"id": "a" * 40 + "!"}}, None),
        ({"n": "abc"}, "- n: 'abc' is not of type 'integer'"),
        ({"n": True}, "- n: True is not of type 'integer'"),
        ({"n": 0}, "- n: 0 is less than the minimum of 1"),
        ({"kind": "c"}, r"- kind: 'c' is not one of \['a', 'b', None\]"),
        ({"short": "long"}, "- short: 'long' is too long"),
        ({"due": None}, None),
        ({"items": None}, "- items: None is not of type 'array'"),
        ({"items": {"id": "1"}}, "- items: {'id': '1'} is not of type 'array'"),
        ({"items": [{"id": "1"}, {"id": 2}]}, "- items.1.id: 2 is not of type 'string'"),
        ({"items": [{"more": 1}]}, "- items.0: 'id' is a required property"),
        ({"items": [{"id": "1", "less": 1}]}, "- items.0: Additional properties are not allowed"),
        ({"items": [{"id": "1"}] * 3}, "- items: .* is too long"),
        ({"rest": "x"}, "- rest: 'x' is not valid under any of the given schemas"),
        ({"on": 1}, "- on: 1 is not of type 'boolean'"),
    ],
)
async def test_edited_arguments_are_held_against_the_schema(
    tmp_path: Path, edited: Json, fault: str | None
) -> None:
    """What an approver wrote has to be what the model could have sent."""
    async with opened(tmp_path, EDITED, "http://127.0.0.1:1") as tools:
        tool = tools["Library-a"]
        assert isinstance(tool, Checking)
        with nullcontext() if fault is None else pytest.raises(ToolFailed, match=fault):
            tool.check({"n": 1, "items": [{"id": "1"}], "due": "today", **edited})


@pytest.mark.parametrize("hostile", ["loop", "fan"])
async def test_a_hostile_schema_cannot_make_a_check_long(tmp_path: Path, hostile: str) -> None:
    """References in circles, and alternatives that double with each level, are given up."""
    levels: Json = {
        f"L{n}": {"anyOf": [{"$ref": f"#/components/schemas/L{n + 1}"}] * 2, "type": "string"}
        for n in range(40)
    }
    levels["L40"] = {"type": "integer"}
    if hostile == "loop":
        levels["L0"] = {"allOf": [{"$ref": "#/components/schemas/L0"}]}
    schema = {"$ref": "#/components/schemas/L0"}
    operation = {"operationId": "a", "parameters": [{"name": "n", "in": "query", "schema": schema}]}
    async with opened(tmp_path, one_operation(operation, **levels), "http://127.0.0.1:1") as tools:
        tool = tools["Library-a"]
        assert isinstance(tool, Checking)
        with pytest.raises(ToolFailed, match="too large to be checked"):
            tool.check({"n": "x"})


# --- answers -------------------------------------------------------------------------------------


async def test_answers_are_returned_as_they_are(tmp_path: Path, server: str) -> None:
    """Text in its own charset, nothing in words, bytes described, large answers cut."""
    async with opened(tmp_path, library.document(), server) as tools:
        tool = tools["Library-answer"]
        assert await tool.call(Context(), {"kind": "text"}) == "grüße"
        assert (
            await tool.call(Context(), {"kind": "empty"})
            == "Done (204 No Content); the answer has no content."
        )
        described = json.loads(await tool.call(Context(), {"kind": "binary"}))
        assert (described["media_type"], described["size_bytes"]) == ("image/png", 6)
        large = await tool.call(Context(), {"kind": "large"})
        assert large.endswith("\n[Cut here: 200,000 of 300,000 characters are shown.]")
        endless = await tool.call(Context(), {"kind": "endless"})
        assert len(endless) < 201_000
        assert re.search(r"\[Cut here: 200,000 of more than 3,\d{3},\d{3} characters are shown\.\]$", endless)


@pytest.mark.parametrize(
    ("media_type", "content", "is_text"),
    [
        ("application/jsonl", '{"a": "ü"}\n{"b": 2}\n'.encode(), True),
        ("application/toml", b"a = 1\r\n", True),
        ("application/octet-stream", b"a\x00b", False),
        ("application/pdf", b"%PDF-1.7 \xe2\xe3", False),
        ("image/x", b"plain", False),
        ("", b"plain", True),
        ("", b"\x89PNG", False),
    ],
)
async def test_answers_of_other_types_are_text_where_they_look_like_it(
    tmp_path: Path, media_type: str, content: bytes, is_text: bool
) -> None:
    """There are more media types of text than anyone knows."""

    async def answer(request: Any) -> Response:
        return Response(content, headers={"content-type": media_type} if media_type else None)

    document = one_operation({"operationId": "a"})
    with served(Starlette(routes=[Route("/v1/x", answer, methods=["POST"])])) as url:
        async with opened(tmp_path, document, url) as tools:
            text = await tools["Library-a"].call(Context(), {})
    assert (text == content.decode(errors="replace")) is is_text


async def test_errors_are_reported_with_status_and_reason(tmp_path: Path, server: str) -> None:
    """A status of 400 and more is a failure that says what the service said, within bounds."""
    async with opened(tmp_path, library.document(), server) as tools:
        with pytest.raises(
            ToolFailed, match=r'GET /answers/\{kind\} answered 404 Not Found: \{"error":"no such'
        ):
            await sent(tools, "answer", kind="missing")
        with pytest.raises(ToolFailed) as raised:
            await sent(tools, "answer", kind="broken")
        assert len(str(raised.value)) < 4_200


@pytest.mark.parametrize(
    ("headers", "content", "said"),
    [
        ({"content-type": "text/plain; charset=windows-1252"}, "5 € für".encode("cp1252"), "5 € für"),
        ({"content-type": "text/plain; charset=utf-16"}, "5 € für".encode("utf-16"), "5 € für"),
        ({"content-type": "text/plain; charset=punycode"}, "5 € für".encode(), "5 € für"),
        ({"content-encoding": "br"}, b"\x0b\x02\x80fine\x03", "(its explanation is encoded)"),
        ({"content-encoding": "gzip, gzip"}, b"\x1f\x8b", "(its explanation is encoded)"),
    ],
)
async def test_a_refusal_is_one_in_whatever_form_its_explanation_comes(
    tmp_path: Path, headers: Json, content: bytes, said: str
) -> None:
    """It is read in its charset. If it cannot be read, the status still says that nothing was done."""

    async def refuse(request: Request) -> Response:
        return Response(content, status_code=400, headers=headers)

    with served(Starlette(routes=[Route("/v1/x", refuse, methods=["POST"])])) as url:
        async with opened(tmp_path, one_operation({"operationId": "a"}), url) as tools:
            with pytest.raises(ToolFailed) as raised:
                await tools["Library-a"].call(Context(), {})
    assert str(raised.value) == f"POST /x answered 400 Bad Request: {said}"
    assert not raised.value.unknown


@pytest.mark.parametrize(
    ("status", "headers", "content", "said"),
    [
        (
            202,
            {"Location": "/v1/operations/7?sig=s3cret", "Retry-After": "30"},
            "",
            "Done (202 Accepted, Retry-After: 30, Location: {url}/v1/operations/7); the answer has no",
        ),
        (201, {"Location": "things/7"}, "", "Done (201 Created, Location: {url}/v1/things/7); "),
        (201, {"Location": "https://elsewhere.example/7"}, "", "Done (201 Created); the answer has"),
        (201, {"Location": "http://["}, "", "Done (201 Created); the answer has"),
        (202, {"Location": "/v1/7"}, "as it is", "as it is"),
        (
            429,
            {"Retry-After": "17"},
            "slow down",
            "answered 429 Too Many Requests, Retry-After: 17: slow down",
        ),
        (429, {"Retry-After": "<do this>"}, "", "answered 429 Too Many Requests: no reason given"),
    ],
)
async def test_an_answer_says_where_and_when_to_ask_again(
    tmp_path: Path, status: int, headers: Json, content: str, said: str
) -> None:
    """From its headers, where its body does not: a place within the origin only, without its query."""

    async def answer(request: Request) -> Response:
        return Response(content, status_code=status, headers=headers)

    with served(Starlette(routes=[Route("/v1/x", answer, methods=["POST"])])) as url:
        async with opened(tmp_path, one_operation({"operationId": "a"}), url) as tools:
            try:
                text = await tools["Library-a"].call(Context(), {})
            except ToolFailed as failed:
                text = str(failed)
    assert said.format(url=url) in text


async def test_binary_data_that_is_too_large_to_be_read_has_no_size(tmp_path: Path) -> None:
    """What was read of it is less than its size."""

    async def answer(request: Request) -> Response:
        return Response(b"\xff" * 5_000_000, media_type="image/png")

    with served(Starlette(routes=[Route("/v1/x", answer, methods=["POST"])])) as url:
        async with opened(tmp_path, one_operation({"operationId": "a"}), url) as tools:
            described = json.loads(await tools["Library-a"].call(Context(), {}))
    assert described.keys() == {"media_type", "note"}
    assert re.fullmatch(r"too large to be shown: more than 3,\d{3},\d{3} bytes", described["note"])


async def test_as_many_redirects_are_followed_as_the_error_says(tmp_path: Path) -> None:
    """Five; the sixth is one too many."""

    async def answer(request: Request) -> Response:
        left = int(request.path_params["left"])
        return Response(headers={"location": f"{left - 1}"}, status_code=307) if left else Response("here")

    item = {"get": {"operationId": "a"}}
    document = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {"/{left}": item}}
    with served(Starlette(routes=[Route("/v1/{left}", answer)])) as url:
        async with opened(tmp_path, document, url) as tools:
            assert await tools["Library-a"].call(Context(), {"left": 5}) == "here"
            with pytest.raises(ToolFailed, match="redirected more than 5 times"):
                await tools["Library-a"].call(Context(), {"left": 6})


async def test_redirects_stay_within_the_base(tmp_path: Path, server: str) -> None:
    """A redirect within the server's base is followed; one out of it, to elsewhere or in circles is not."""
    async with opened(tmp_path, library.document(), server) as tools:
        seen = await sent(tools, "answer", kind="near")
        assert (seen["path"], seen["query"]) == ("/v1/books", "limit=1")
        with pytest.raises(ToolFailed, match=r"redirected to http://127\.0\.0\.1:1/stolen: not followed"):
            await sent(tools, "postAnswer", kind="far")
        for kind in ("out", "dots"):
            with pytest.raises(ToolFailed, match=r"/v2/books: not followed"):
                await sent(tools, "answer", kind=kind)
        with pytest.raises(ToolFailed, match="redirected more than"):
            await sent(tools, "answer", kind="circle")


async def test_a_redirect_may_say_that_a_call_is_done(tmp_path: Path, server: str) -> None:
    """Many services answer a POST with `302`, or `303`, when it was carried out: it is not to be repeated."""
    async with opened(tmp_path, library.document(), server) as tools:
        with pytest.raises(
            ToolFailed, match=r"not followed\. Whether it was carried out is unknown"
        ) as raised:
            await sent(tools, "postAnswer", kind="near")
        assert raised.value.unknown
        with pytest.raises(ToolFailed, match=r"not followed\.$") as raised:
            await sent(tools, "postAnswer", kind="far")
        assert not raised.value.unknown


@pytest.mark.parametrize(
    ("status", "unknown"), [(300, True), (302, True), (304, True), (307, False), (308, False)]
)
async def test_a_redirect_to_nowhere_is_no_result(tmp_path: Path, status: int, unknown: bool) -> None:
    """Without a `Location` it cannot be followed; a GET has changed nothing."""

    async def answer(request: Request) -> Response:
        return Response("" if status == 304 else "elsewhere", status_code=status)

    item = {"get": {"operationId": "look"}, "post": {"operationId": "order"}}
    document = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {"/x": item}}
    with served(Starlette(routes=[Route("/v1/x", answer, methods=["GET", "POST"])])) as url:
        async with opened(tmp_path, document, url) as tools:
            for name, lost in (("Library-order", unknown), ("Library-look", False)):
                with pytest.raises(ToolFailed, match=f"answered {status} ") as raised:
                    await tools[name].call(Context(), {})
                assert raised.value.unknown is lost


@pytest.mark.parametrize(
    ("status", "headers", "unknown"),
    [
        *((status, {}, True) for status in (408, 500, 502, 503, 504, 520, 522, 524)),
        (501, {}, False),
        (503, {"Retry-After": "5"}, False),
    ],
)
async def test_a_call_that_broke_at_the_service_may_be_done(
    tmp_path: Path, status: int, headers: dict[str, str], unknown: bool
) -> None:
    """A gateway gave up waiting, or the service failed half-way: only a GET has certainly changed nothing."""

    async def answer(request: Request) -> Response:
        return Response("upstream timed out", status_code=status, headers=headers)

    item = {"get": {"operationId": "look"}, "post": {"operationId": "order"}}
    document = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {"/x": item}}
    with served(Starlette(routes=[Route("/v1/x", answer, methods=["GET", "POST"])])) as url:
        async with opened(tmp_path, document, url) as tools:
            for name, lost in (("Library-order", unknown), ("Library-look", False)):
                with pytest.raises(ToolFailed, match="upstream timed out") as raised:
                    await tools[name].call(Context(), {})
                assert raised.value.unknown is lost
                assert ("Whether it was carried out is unknown" in str(raised.value)) is lost


async def test_cookies_of_one_call_are_not_sent_with_another(tmp_path: Path, server: str) -> None:
    """What a service sets for one user never travels with another's call."""
    async with opened(tmp_path, library.document(), server) as tools:
        assert await tools["Library-answer"].call(Context("alice"), {"kind": "cookie"}) == "set"
        assert "cookie" not in (await sent(tools, "listBooks", Context("bob")))["headers"]


async def test_lost_answers_are_reported_honestly(tmp_path: Path, server: str) -> None:
    """A call that was sent and not answered may have been carried out; one not sent was not."""
    async with opened(tmp_path, library.document(), server, timeout=0.2) as tools:
        with pytest.raises(
            ToolFailed, match=r"no answer within 0\.2 s\. Whether it was carried out is unknown"
        ) as raised:
            await sent(tools, "postAnswer", kind="slow")
        assert raised.value.unknown
        with pytest.raises(ToolFailed, match=r"no answer within 0\.2 s\.$") as raised:
            await sent(tools, "answer", kind="slow")
        assert not raised.value.unknown
        # the limit of the engine, which knows nothing of methods, comes later
        box = Toolbox(Scripted(), 30)
        context = CallContext(
            session_id="session",
            task_id="task",
            request_id="request",
            owner=ADA.user,
            actor=ADA.user,
            token="",
            headers=None,
            delegation=None,
            extra_data={},
        )
        box.load([Tools(*tools.values())])
        slow = ToolCall(id="1", tool="Library-answer", arguments='{"kind": "slow"}')
        output = await box.call(slow, context)
        assert isinstance(output, ToolOutput)
        assert (output.output[-25:], output.unknown) == (": no answer within 0.2 s.", False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        closed = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with opened(tmp_path, library.document(), closed) as tools:
        with pytest.raises(ToolFailed, match=r"cannot be reached: .* Nothing was done"):
            await sent(tools, "createBook", title="x")


# --- tokens --------------------------------------------------------------------------------------


async def test_token_is_passed_on_only_where_declared(tmp_path: Path, server: str) -> None:
    """Without a word in its entry a service sees no token; with one, the user's own or a delegated one."""
    document = library.document()
    async with opened(tmp_path, document, server) as tools:
        context = Context(headers={"authorization": "Bearer callers"})
        assert "authorization" not in (await sent(tools, "listBooks", context))["headers"]
        assert context.asked == []
    async with opened(tmp_path, document, server, pass_user_token=True) as tools:
        seen = await sent(tools, "listBooks")
        assert seen["headers"]["authorization"] == "Bearer token-of-alice-for-us"
    async with opened(tmp_path, document, server, on_behalf_of_scopes=["a", "b"]) as tools:
        seen = await sent(tools, "listBooks")
        assert seen["headers"]["authorization"] == "Bearer token-of-alice-for-a+b"
        with pytest.raises(NeedsOwner):
            await sent(tools, "listBooks", Context(owner_is_here=False))


async def test_the_wait_for_a_token_is_limited(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call whose token never comes is given up half a minute behind its own limit: it was not made."""
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    async def never(self: Context, scopes: Sequence[str]) -> str:
        asked.set()
        return await asyncio.Event().wait() and ""

    monkeypatch.setattr(Context, "user_token", never)
    async with opened(tmp_path, library.document(), server, pass_user_token=True, timeout=5) as tools:
        box, context = Toolbox(Scripted(), 120), Context()
        box.load([Tools(*tools.values())])
        called = asyncio.create_task(box.call(ToolCall("1", "Library-listBooks", "{}"), cast("Any", context)))
        await asked.wait()
        advance(loop, 5 + 25)
        done, _ = await asyncio.wait([called], timeout=0.02)
        assert not done
        advance(loop, 5 + 1)
        await asyncio.wait([called], timeout=30)
        assert called.done()
        result = cast("ToolOutput", called.result())
        assert result.output == "Error: The user's token did not come in time. Nothing was done."
        assert not result.unknown


# --- documents -----------------------------------------------------------------------------------


async def test_document_may_be_yaml_or_json_a_file_or_a_url(tmp_path: Path, server: str) -> None:
    """One document, written in JSON or YAML, read from a file or fetched once."""
    text = yaml.safe_dump(library.document())
    (tmp_path / "library.yaml").write_text(text)
    fetched: list[str] = []

    async def document(request: Any) -> PlainTextResponse:
        fetched.append(request.url.path)
        return PlainTextResponse(text)

    with served(Starlette(routes=[Route("/spec/library.yaml", document)])) as url:
        for place in (str(tmp_path / "library.yaml"), f"{url}/spec/library.yaml"):
            options = RemotePluginOptions(
                plugin_name="Library", openapi_json_path=place, server_url=f"{server}/v1"
            )
            async with OpenAPIPlugin(options) as plugin:
                tools = by_name(plugin)
                assert len(tools) == 60
                assert (await sent(tools, "getBook", id="1"))["path"] == "/v1/books/1"
    assert fetched == ["/spec/library.yaml"]


def test_yaml_is_read_with_the_types_of_json() -> None:
    """Dates, times, `on` and `no` are texts, keys are texts."""
    document = parsed(
        b"openapi: 3.0.3\ninfo: {version: 2024-01-01, title: 12:30}\n"
        b"x: {a: on, b: no, c: true, d: 010, e: 1.5, f: ~}\nresponses: {200: ok}\n",
        "it",
    )
    assert document["info"] == {"version": "2024-01-01", "title": "12:30"}
    assert document["x"] == {"a": "on", "b": "no", "c": True, "d": "010", "e": 1.5, "f": None}
    assert document["responses"] == {"200": "ok"}


def test_a_key_that_a_document_has_twice_is_refused() -> None:
    """Nothing says which one counts. What `<<` brings, a mapping may have itself."""
    with pytest.raises(ToolsetError, match="line 3: the key 'get' is written twice"):
        parsed(b"openapi: 3.0.3\nx: {get: 1,\n get: 2}\n", "it")
    merged = b"openapi: 3.0.3\na: {b: &b {c: 1}, d: &d {<<: *b, c: 2}}\ne: {<<: *d, f: 3}\n"
    assert parsed(merged, "it")["e"] == {"c": 2, "f": 3}


def test_of_two_mappings_that_are_merged_the_first_wins() -> None:
    """So says YAML's specification of `<<`; what a mapping has itself wins over both."""
    bases = "openapi: 3.0.3\na: &a {name: first, size: 1}\nb: &b {name: second, hue: 2, size: 2}\n"
    merged = parsed(f"{bases}c: {{<<: [*a, *b], size: 3}}\nd: {{<<: *b, <<: *a}}\n".encode(), "it")
    assert merged["c"] == {"name": "first", "size": 3, "hue": 2}
    assert merged["d"] == {"name": "second", "hue": 2, "size": 2}
    with pytest.raises(ToolsetError, match="line 4: << needs a mapping"):
        parsed(f"{bases}c: {{<<: [*a, text]}}\n".encode(), "it")


def test_merged_mappings_do_not_fill_the_memory() -> None:
    """Neither those that are named twice over and over, nor a mapping that is merged into itself."""
    twice = "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60))
    assert parsed(f"openapi: 3.0.3\na0: &a0 {{k: 1}}\n{twice}".encode(), "it")["a59"] == {"k": 1}
    assert parsed(b"openapi: 3.0.3\na: &a {k: 1, <<: *a}\n", "it")["a"] == {"k": 1}
    growing = "".join(f"a{n}: &a{n} {{k{n}: 1, <<: *a{n - 1}}}\n" for n in range(1, 2000))
    with pytest.raises(ToolsetError, match=r"<< brings more than 1,000,000 keys"):
        parsed(f"openapi: 3.0.3\na0: &a0 {{k: 1}}\n{growing}".encode(), "it")


async def test_server_of_the_document_is_used_where_none_is_configured(tmp_path: Path, server: str) -> None:
    """Without `server_url` requests go to the document's first server, if it is an absolute URL."""
    async with opened(tmp_path, library.document(f"{server}/v1"), None) as tools:
        assert (await sent(tools, "getBook", id="1"))["path"] == "/v1/books/1"
    with pytest.raises(ToolsetError, match=r"names no absolute server URL. Set server_url"):
        async with opened(tmp_path, library.document(None), None):
            pass


@pytest.mark.parametrize(
    ("servers", "options", "warned"),
    [
        ([{"url": "https://files.example?k=s3cret"}], {}, "upload (https://files.example)"),
        ([{"url": "/v2"}], {}, "upload (/v2)"),
        ([{"url": "http://["}], {}, "upload (http://[)"),
        # the server in use, one of the document's, none
        ([{"url": "https://elsewhere.example"}, {"url": "/v1/"}], {}, None),
        ([{"url": "https://{region}.example", "variables": {"region": {"default": "eu"}}}], {}, None),
        ([], {}, None),
        (5, {}, None),
        # the operator chose the server for what is in the entry
        ([{"url": "https://files.example"}], {"operations": ["upload"]}, None),
    ],
)
@pytest.mark.parametrize("level", ["path", "operation"])
async def test_operations_of_other_servers_are_named_at_start(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    level: str,
    servers: Any,
    options: Json,
    warned: str | None,
) -> None:
    """Requests go to the one server all the same."""
    document = one_operation({"operationId": "upload"})
    item = document["paths"]["/x"]
    (item if level == "path" else item["post"])["servers"] = servers
    document["paths"]["/y"] = {"get": {"operationId": "look"}}
    document["servers"] = [{"url": "https://us.example"}, {"url": "https://eu.example"}]
    async with opened(tmp_path, document, "http://127.0.0.1:1", **options):
        pass
    said = f"names other servers for {warned}, and requests go to http://127.0.0.1:1/v1 all the same."
    assert (said in caplog.text) if warned else caplog.text == ""


@pytest.mark.parametrize("wrong", ["?key=s3cret", "#part", ":99999/", ":x/", ":0/"])
async def test_servers_that_no_path_can_be_appended_to_are_refused_at_start(
    tmp_path: Path, wrong: str
) -> None:
    """Configured, or named by the document; and not by the first call."""
    url = f"http://127.0.0.1{wrong}"
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(library.document(url)))
    for server_url in (url, None):
        options = RemotePluginOptions(
            plugin_name="Library", openapi_json_path=str(file), server_url=server_url
        )
        with pytest.raises(ToolsetError, match=r"cannot be a server's URL: .* Set server_url") as raised:
            await OpenAPIPlugin(options).__aenter__()
        assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (b"swagger: '2.0'\n", r"OpenAPI 2\.0 \(Swagger\). Convert it"),
        (b"openapi: 4.0.0\n", "does not say 'openapi: 3"),
        (b"[1, 2]", "is not an OpenAPI document"),
        (b"a: [", "is neither JSON nor YAML"),
        (b"\xff\xfe\x00", "is neither JSON nor YAML"),
        (b'{"openapi": "3.0.0", "a": ', "is neither JSON nor YAML"),
    ],
)
def test_other_documents_are_refused(content: bytes, reported: str) -> None:
    """What is no OpenAPI 3 document is refused with the reason."""
    with pytest.raises(ToolsetError, match=reported):
        parsed(content, "it")


@pytest.mark.parametrize(
    ("operation", "reported"),
    [
        ({"parameters": [{"$ref": "other.yaml#/x"}]}, "leads out of the document. Bundle it"),
        ({"parameters": [{"$ref": "#/components/nowhere"}]}, "leads nowhere"),
        ({"parameters": [{"$ref": "#/paths/~1x/post/parameters/0"}]}, "leads back to itself"),
        ({"parameters": [{"in": "query"}]}, "it: POST /x: name: is missing"),
        ({"parameters": [{"name": "a", "in": "nowhere"}]}, "it: POST /x: in: must be 'path'"),
    ],
)
def test_flaws_are_reported_with_their_operation(operation: Json, reported: str) -> None:
    """What cannot be read is named with the operation it belongs to."""
    with pytest.raises(ToolsetError, match=reported):
        operations(one_operation(operation), "it")


@pytest.mark.parametrize(
    ("part", "reported"),
    [
        (
            {"paths": {"/x": {"parameters": "id", "get": {}}}},
            "openapi.json: GET /x: parameters: must be a list, not text",
        ),
        (
            {"paths": {"/x": {"parameters": [None], "get": {}}}},
            r"openapi.json: GET /x: parameters\[0\]: must be a mapping",
        ),
        ({"paths": {"/x": 5}}, "json: /x: an object is expected in place of 5"),
        ({"paths": ["/x"]}, "json: paths: must be a mapping"),
        ({"servers": "http://127.0.0.1"}, "json: servers: must be a list, not text"),
        (
            {"servers": [{"url": "http://{h}", "variables": {"h": "x"}}]},
            r"servers\[0\]\.variables\.h: must be a mapping",
        ),
    ],
)
async def test_flaws_of_the_documents_frame_are_reported_with_their_key(
    tmp_path: Path, part: Json, reported: str
) -> None:
    """As what is wrong in an operation is, and not as a fault of the service."""
    with pytest.raises(ToolsetError, match=reported):
        async with opened(tmp_path, one_operation({}) | part, None):
            pass


def test_extensions_among_the_paths_are_passed_over() -> None:
    """The specification lets a document hold `x-` anything there."""
    document = one_operation({"operationId": "x"})
    document["paths"] |= {"x-owner": "books", "x-groups": {"get": {}}}
    assert [operation.function for operation in operations(document, "it")] == ["x"]


def test_what_is_left_empty_in_yaml_is_left_out() -> None:
    """A key without a value is null there."""
    document = one_operation({"operationId": "x", "parameters": None, "requestBody": None, "summary": None})
    document["paths"]["/x"]["parameters"] = None
    document["paths"] |= {"/y": None, "/z": {"get": None}}
    [operation] = operations(document, "it")
    assert operation.schema["properties"] == {}
    fields: Json = {"a": None, "b": {"properties": {"c": None}}}
    for media, properties in (
        (None, {"body": {}}),
        ({"schema": {"properties": fields}}, {"a": {}, "b": {"properties": {"c": {}}}}),
    ):
        body = {"content": {"application/json": media}}
        [operation] = operations(one_operation({"requestBody": body}), "it")
        assert operation.schema["properties"] == properties


@pytest.mark.parametrize(
    "flawed",
    [
        {"post": {"operationId": "bad", "parameters": [{"$ref": "common.yaml#/x"}]}},
        {"post": {"operationId": "bad", "requestBody": {"content": {"a/b": {"schema": 5}}}}},
        {"post": {"operationId": 5}, "parameters": "id"},
        {"$ref": "common.yaml#/x"},
        5,
    ],
)
def test_flaws_of_operations_that_are_not_chosen_do_no_harm(flawed: Any) -> None:
    """The user cannot mend a document of others."""
    document = one_operation({"operationId": "ok"})
    document["paths"] |= {"/bad": flawed, "relative": {"get": {"operationId": "worse"}}}
    assert [operation.function for operation in operations(document, "it", ["ok"])] == ["ok"]
    with pytest.raises(ToolsetError, match="it: "):
        operations(document, "it")


def test_keywords_of_another_shape_are_left_out_of_a_schema() -> None:
    """`required: true` beside a property is a common mistake; model services refuse a schema with one."""
    field = {"type": "string", "required": True, "enum": "x", "anyOf": None}
    schema = {"type": None, "required": "a", "properties": {"a": field, "b": {"properties": ["c"]}}}
    odd: list[Any] = ["a", [{}], [["a"], 1]]
    for required in odd:
        body = {
            "required": True,
            "content": {"application/json": {"schema": {**schema, "required": required}}},
        }
        [operation] = operations(one_operation({"requestBody": body}), "it")
        assert operation.schema["properties"] == {"a": {"type": "string"}, "b": {}}
        assert "required" not in operation.schema


def test_values_that_a_keyword_does_not_have_are_left_out_of_a_schema() -> None:
    """`type: date` is a common mistake, too: one in a single operation would fail every request."""
    date, text = {"$ref": "#/components/schemas/Date"}, {"type": "string"}
    fields = {
        "date": date,
        "file": {"type": "file", "description": "the file"},
        "text": {**text, "minLength": -1, "enum": []},
        "step": {"type": "number", "multipleOf": 0, "maximum": 1e400},
        "either": {"oneOf": [], "required": ["a", {}], "properties": {"a": text}},
    }
    body = {"content": {"application/json": {"schema": {"properties": fields}}}}
    [operation] = operations(one_operation({"requestBody": body}, Date={"type": "date"}), "it")
    jsonschema.Draft202012Validator.check_schema(operation.schema)
    assert operation.schema["properties"] == {
        "date": {"$ref": "#/$defs/Date"},
        "file": {"description": "the file"},
        "text": text,
        "step": {"type": "number"},
        "either": {"required": ["a"], "properties": {"a": text}},
    }
    assert operation.schema["$defs"] == {"Date": {}}
    check_against(operation.schema, {"date": "2026-11-26"})


@pytest.mark.parametrize(
    "beyond", [1e400, float("nan"), 10**400, -(10**400)], ids=["1e400", "NaN", "large", "small"]
)
def test_a_number_that_no_service_could_read_is_left_out_of_a_schema(beyond: float) -> None:
    """An integer beyond the largest float, too: it would fail every request."""
    fields = {"step": {"type": "number", "default": beyond, "maximum": 10**300, "enum": [1, beyond]}}
    body = {"content": {"application/json": {"schema": {"properties": fields}}}}
    [operation] = operations(one_operation({"requestBody": body}), "it")
    assert operation.schema["properties"] == {"step": {"type": "number", "maximum": 10**300}}


def test_an_array_without_items_has_any() -> None:
    """Model services refuse a schema that does not say so."""
    parameters: list[Json] = [
        {"name": "tags", "in": "query", "schema": {"type": "array"}},
        {"name": "ids", "in": "query", "schema": {"type": "array", "nullable": True}},
    ]
    [operation] = operations(one_operation({"parameters": parameters}), "it")
    assert operation.schema["properties"] == {
        "tags": {"type": "array", "items": {}},
        "ids": {"type": ["array", "null"], "items": {}},
    }


def test_a_part_of_the_path_that_is_not_declared_is_an_argument() -> None:
    """It has to be given: the braces would be called instead, which is another resource at worst."""
    document = one_operation({"operationId": "echo"}, path="/{shelf}/books/{book}")
    document["paths"]["/{shelf}/books/{book}"]["parameters"] = [
        {"name": "shelf", "in": "path", "required": True, "schema": {"type": "integer"}}
    ]
    [operation] = operations(document, "it")
    assert operation.schema["properties"] == {"shelf": {"type": "integer"}, "book": {"type": "string"}}
    assert operation.schema["required"] == ["shelf", "book"]
    assert request_of(operation, {"shelf": 1, "book": "a b"}).target == "/1/books/a%20b"


def test_a_null_without_quotes_is_the_type_of_that_name() -> None:
    """`type: [string, null]` in YAML; a schema with a JSON null there would be refused by model services."""
    field = yaml.safe_load("type: [string, null]")
    body = {"content": {"application/json": {"schema": {"properties": {"a": field}}}}}
    [operation] = operations(one_operation({"requestBody": body}), "it")
    assert operation.schema["properties"] == {"a": {"type": ["string", "null"]}}


def test_a_reference_within_an_example_is_left_as_it_is() -> None:
    """It is a value, and refers to nothing in the document."""
    field = {"type": "object", "default": {"$ref": "#/nowhere"}}
    body = {"content": {"application/json": {"schema": {"properties": {"a": field}}}}}
    [operation] = operations(one_operation({"requestBody": body}), "it")
    assert operation.schema["properties"] == {"a": field}
    assert "$defs" not in operation.schema


def test_schemas_of_3_0_become_json_schema() -> None:
    """`nullable`, boolean bounds and examples of OpenAPI 3.0 are written as JSON Schema has them."""
    body = {
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "a": {"type": "integer", "nullable": True, "minimum": 1, "exclusiveMinimum": True},
                        "b": {"type": "string", "enum": ["x"], "nullable": True, "example": "x", "xml": {}},
                        "c": {"allOf": [{"$ref": "#/components/schemas/N"}], "nullable": True},
                        "d": {"type": "string", "readOnly": True},
                        "e": {"type": "number", "maximum": 5, "exclusiveMaximum": False, "x-unit": "kg"},
                    },
                }
            }
        }
    }
    [operation] = operations(one_operation({"requestBody": body}, N={"type": "string"}), "it")
    assert operation.schema["properties"] == {
        "a": {"type": ["integer", "null"], "exclusiveMinimum": 1},
        "b": {"type": ["string", "null"], "enum": ["x", None], "examples": ["x"]},
        "c": {"anyOf": [{"allOf": [{"$ref": "#/$defs/N"}]}, {"type": "null"}]},
        "e": {"type": "number", "maximum": 5},
    }


def test_schemas_of_3_1_are_kept() -> None:
    """Boolean schemas, type lists and siblings of references, as OpenAPI 3.1 allows them, stay."""
    schema = {
        "type": ["object", "null"],
        "properties": {
            "a": {"$ref": "#/components/schemas/N", "description": "the a"},
            "b": True,
            "c": {"type": ["string", "null"], "const": None},
        },
        "additionalProperties": False,
    }
    body = {"content": {"application/json": {"schema": schema}}}
    [operation] = operations(
        one_operation({"requestBody": body}, version="3.1.0", N={"prefixItems": [True], "items": False}), "it"
    )
    assert operation.schema["properties"] == {
        "a": {"$ref": "#/$defs/N", "description": "the a"},
        "b": {},
        "c": {"type": ["string", "null"], "const": None},
    }
    assert operation.schema["$defs"] == {"N": {"prefixItems": [{}], "items": False}}


def test_what_stands_beside_the_reference_of_a_body_counts() -> None:
    """In OpenAPI 3.1 it adds to what is referred to. A reference in circles has no fields still."""
    more = {"properties": {"extra": {"type": "string"}}, "required": ["extra"]}
    schemas: Json = {
        "Base": {"type": "object", "properties": {"a": {"type": "string"}}},
        "Loop": {"$ref": "#/components/schemas/Loop", **more},
    }
    for name, arguments in (("Base", {"extra", "a"}), ("Loop", {"body"})):
        schema = {"$ref": f"#/components/schemas/{name}", "description": "it", **more}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        [operation] = operations(one_operation({"requestBody": body}, version="3.1.0", **schemas), "it")
        assert set(operation.schema["properties"]) == arguments
        assert operation.schema["required"] == [*({"extra", "body"} & arguments)]


@pytest.mark.parametrize("choice", ["oneOf", "anyOf"])
def test_a_choice_beside_the_reference_of_a_body_makes_it_one_argument(choice: str) -> None:
    """As without a reference: each of the choices can be sent."""
    schemas: Json = {"Base": {"type": "object", "properties": {"a": {"type": "string"}}}}
    parts = [{"type": "object", "properties": {name: {"type": "string"}}} for name in "bc"]
    schema = {"$ref": "#/components/schemas/Base", choice: parts}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    [operation] = operations(one_operation({"requestBody": body}, version="3.1.0", **schemas), "it")
    assert list(operation.schema["properties"]) == ["body"]


def test_what_is_read_only_by_a_reference_is_left_out() -> None:
    """As what says so itself is, in a body and below; references in circles say nothing."""
    schemas: Json = {
        "Id": {"$ref": "#/components/schemas/Plain"},
        "Plain": {"type": "string", "readOnly": True},
        "Loop": {"$ref": "#/components/schemas/Loop"},
    }
    fields: Json = {"id": {"$ref": "#/components/schemas/Id"}, "n": {"type": "string"}}
    below = {"type": "object", "properties": fields, "required": ["id", "n"]}
    loop = {"$ref": "#/components/schemas/Loop"}
    schema = {**below, "properties": {**fields, "below": below, "loop": loop}}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    [operation] = operations(one_operation({"requestBody": body}, **schemas), "it")
    assert operation.schema["required"] == ["n"]
    assert operation.schema["properties"] == {
        "n": {"type": "string"},
        "below": {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]},
        "loop": {"$ref": "#/$defs/Loop"},
    }


def test_recursive_and_huge_schemas_are_bounded() -> None:
    """A schema that contains itself is defined once; definitions beyond the bound become "anything"."""
    schemas: Json = {
        f"S{number}": {
            "type": "object",
            "description": "d" * 2000,
            "properties": {
                "next": {"$ref": f"#/components/schemas/S{number + 1}"},
                "self": {"$ref": f"#/components/schemas/S{number}"},
            },
        }
        for number in range(100)
    }
    schemas["S100"] = {"type": "string"}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
    [operation] = operations(one_operation({"requestBody": body}, **schemas), "it")
    assert len(json.dumps(operation.schema)) < MAX_DEFINITIONS + 5000
    definitions = operation.schema["$defs"]
    assert definitions["S1"]["properties"]["self"] == {"$ref": "#/$defs/S1"}
    jsonschema.Draft202012Validator.check_schema(operation.schema)
    last = list(definitions)[-1]
    assert definitions[last] == {"description": "any value; its schema is too large to be shown"}


def test_definitions_beyond_the_bound_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be done again for each of a thousand operations."""
    written: list[object] = []

    def noted(value: object, **options: Any) -> str:
        written.append(value)
        return json.dumps(value, **options)

    monkeypatch.setattr(openapi_schema, "json", SimpleNamespace(dumps=noted))
    schemas: Json = {f"S{number}": {"type": "string", "description": "d" * 20_000} for number in range(50)}
    choices = [{"$ref": f"#/components/schemas/{name}"} for name in schemas]
    body = {"content": {"application/json": {"schema": {"anyOf": choices}}}}
    [operation] = operations(one_operation({"requestBody": body}, **schemas), "it")
    assert len(operation.schema["$defs"]) == 50
    assert len(written) <= 4


# --- the file of remote plugins ------------------------------------------------------------------


def test_remote_plugin_file(tmp_path: Path) -> None:
    """Paths are relative to the file, `${NAME}` in headers comes from the environment."""
    file = tmp_path / "remote.yaml"
    file.write_text(
        "remote_plugins:\n"
        "  - plugin_name: Library\n    openapi_json_path: api/library.json\n    server_url: http://x.example\n"
        "    headers: {X-Key: 'key ${LIBRARY_KEY}!'}\n"
        "  - {plugin_name: Other, openapi_json_path: 'https://x.example/o.json', server_url: 'http://y.example'}\n"
    )
    library, other = remote_plugins(file, ["Library", "Other"], {"LIBRARY_KEY": "s3cret"})
    assert library.openapi_json_path == str(tmp_path / "api/library.json")
    assert library.headers == {"X-Key": "key s3cret!"}
    assert other.openapi_json_path == "https://x.example/o.json"
    with pytest.raises(ToolsetError, match="the environment variable 'LIBRARY_KEY' is not set"):
        remote_plugins(file, ["Library"], {})
    with pytest.raises(ToolsetError, match=r"Library: headers: the value of X-Key cannot be sent") as wrong:
        remote_plugins(file, ["Library"], {"LIBRARY_KEY": "s3cret\u201d"})
    assert "s3cret" not in str(wrong.value)
    with pytest.raises(ToolsetError, match=r"no remote plugin 'Libary'; found: Library, Other. Did you mean"):
        remote_plugins(file, ["Libary"], {})


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("remote_plugins: [{plugin_name: A}]", r"remote_plugins\[0\]\.openapi_json_path: is missing"),
        (
            "remote_plugins: [{plugin_name: A, openapi_json_path: a, server_url: 'ftp://x'}]",
            "'server_url' must be an http:// or https:// URL",
        ),
        *(
            (
                f"remote_plugins: [{{plugin_name: A, openapi_json_path: a, {switch}: {unclear}}}]",
                rf"{switch}: must be true or false, not {kind}$",
            )
            for switch in ("verify_ssl", "pass_user_token")
            for unclear, kind in {"no": "text", "'false'": "text", "on": "text", "0": "a number"}.items()
        ),
        (
            "remote_plugins: [{plugin_name: A, openapi_json_path: a, sever_url: x}]",
            "sever_url: unknown key; did you",
        ),
        (
            "remote_plugins: [{plugin_name: A, openapi_json_path: a, headers: {Content-Length: '5'}}]",
            "headers: .*Content-Length cannot be set here: each request gets its own; remove it",
        ),
        ("remote_plugins: {", "cannot be read: line 1: "),
        ("remote_plugins:\n- \ta", "cannot be read: line 2: [^\n]*$"),
        ("x: !!int x", "cannot be read: "),
        (f"x: {'[' * 1000}", "cannot be read: it is nested too deeply"),
        (
            "remote_plugins: [{plugin_name: A, openapi_json_path: a, headers: {X: 2024-02-30}, timeout: 0}]",
            "timeout: ",
        ),
        (
            "remote_plugins:\n- {plugin_name: A, openapi_json_path: a}\n"
            "- {plugin_name: A, openapi_json_path: b}\n",
            " has more than one entry for A",
        ),
        (
            "remote_plugins:\n- plugin_name: A\n  openapi_json_path: a\n  operations: [a]\n  operations: [b]",
            "line 5: the key 'operations' is written twice",
        ),
    ],
)
def test_flaws_in_the_file_are_reported(tmp_path: Path, text: str, reported: str) -> None:
    """A mistake in the file of remote plugins names the file and the key."""
    file = tmp_path / "remote.yaml"
    file.write_text(text)
    with pytest.raises(ToolsetError, match=f"remote.yaml.*{reported}"):
        remote_plugins(file, ["A"], {})


async def test_unreachable_document_is_reported(tmp_path: Path) -> None:
    """A document that is not there is an error that names it."""
    for place in (str(tmp_path / "nowhere.json"), "http://127.0.0.1:1/nowhere.json"):
        options = RemotePluginOptions(
            plugin_name="A", openapi_json_path=place, server_url="http://127.0.0.1:1"
        )
        with pytest.raises(ToolsetError, match=r"nowhere\.json cannot be read"):
            await OpenAPIPlugin(options).__aenter__()


async def test_secrets_in_urls_are_not_shown(server: str) -> None:
    """A key in the URL of a document that cannot be fetched is not in the error."""

    async def refuse(request: Any) -> PlainTextResponse:
        return PlainTextResponse("no", status_code=403)

    with served(Starlette(routes=[Route("/spec.json", refuse)])) as url:
        place = f"{url.replace('//', '//user:hunter2@')}/spec.json?key=s3cret"
        options = RemotePluginOptions(plugin_name="A", openapi_json_path=place, server_url=server)
        with pytest.raises(ToolsetError) as raised:
            await OpenAPIPlugin(options).__aenter__()
    assert str(raised.value) == f"The OpenAPI document {url}/spec.json cannot be read: 403 Forbidden."
