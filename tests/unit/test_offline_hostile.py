"""Whatever a client sends, the offline model answers or refuses; it never fails."""

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tealagents.llm.offline import Script
from tealagents.llm.offline.errors import ServiceError
from tealagents.llm.offline.service import OfflineService

JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1.5,
        "",
        "x",
        "call x {",
        [],
        {},
        [None],
        [[]],
        {"x": 1},
        "data:,",
        {"type": "message"},
    ]
)

CHAT: dict[str, Any] = {
    "model": "offline",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": "data:a/b;base64,AA=="}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "a", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "done"},
        {"role": "assistant", "content": "Fine.", "refusal": None},
        {"role": "user", "content": "call a {}"},
    ],
    "tools": [{"type": "function", "function": {"name": "a", "parameters": {}}}],
    "tool_choice": "auto",
    "max_tokens": 5,
    "n": 1,
    "stream": True,
    "stream_options": {"include_usage": True},
}
RESPONSES: dict[str, Any] = {
    "model": "offline",
    "instructions": "Be kind.",
    "input": [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "hi"},
                {"type": "input_image", "image_url": "data:a/b,x"},
            ],
        },
        {"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
        {"role": "user", "content": "what is my name?"},
    ],
    "tools": [{"type": "function", "name": "a", "parameters": {}}],
    "max_output_tokens": 5,
    "metadata": {"a": "b"},
    "conversation": None,
    "previous_response_id": None,
    "store": True,
    "stream": False,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "format": "date"},
        "kind": {"enum": ["x"]},
        "count": {"type": ["integer", "null"], "minimum": 2},
        "parts": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/part"}, {"type": "null"}]}},
        "also": {"allOf": [{"const": 1}], "examples": [1]},
    },
    "$defs": {"part": {"type": "object", "properties": {"part": {"oneOf": [{"type": "boolean"}]}}}},
}
TYPED_CHAT: dict[str, Any] = {
    "model": "offline",
    "messages": [{"role": "user", "content": "hi"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
}
TYPED_RESPONSES: dict[str, Any] = {
    "model": "offline",
    "input": "hi",
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
}
ITEMS: dict[str, Any] = {"items": RESPONSES["input"], "metadata": {"a": "b"}}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a document."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


def replaced(document: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    changed = copy.deepcopy(document)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = junk
    return changed


def status(method: str, path: str, query: str, body: bytes) -> int:
    try:
        return OfflineService(Script()).answer(method, path, query, body).status
    except ServiceError as refused:
        return refused.status


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", RESPONSES),
        ("/v1/conversations", ITEMS),
        ("/v1/chat/completions", TYPED_CHAT),
        ("/v1/responses", TYPED_RESPONSES),
    ],
)
@settings(max_examples=300)
@given(data=st.data())
def test_a_disturbed_request_is_answered_or_refused(path: str, document: Any, data: st.DataObject) -> None:
    """Any value of a good request, replaced by any other, gives an answer or an error object."""
    disturbed = document
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(places(disturbed)))
        disturbed = replaced(disturbed, place, data.draw(JUNK))
    assert status("POST", path, "", orjson.dumps(disturbed)) in (200, 400, 404)


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", RESPONSES),
        ("/v1/chat/completions", TYPED_CHAT),
        ("/v1/responses", TYPED_RESPONSES),
    ],
)
def test_the_undisturbed_requests_are_answered(path: str, document: Any) -> None:
    """The requests that the test above disturbs are good ones."""
    assert status("POST", path, "", orjson.dumps(document)) == 200


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": "x"},
        {"type": "object", "properties": {"a": {"type": "object", "properties": ["a"]}}},
        {"enum": {"a": 1}},
        {"anyOf": "ab"},
        {"type": "string", "format": ["date"]},
        {"$ref": "#/$defs/a", "$defs": [1]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    """As the real service does, by 400; so is a type that holds itself without an end."""
    format_ = {"type": "json_schema", "name": "n", "schema": schema}
    body = orjson.dumps({"model": "offline", "input": "hi", "text": {"format": format_}})
    assert status("POST", "/v1/responses", "", body) == 400


@settings(max_examples=200)
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD"]),
    parts=st.lists(
        st.sampled_from(
            [
                "v1",
                "openai",
                "responses",
                "conversations",
                "items",
                "chat",
                "completions",
                "models",
                "deployments",
                "x",
                "",
            ]
        ),
        max_size=6,
    ),
    query=st.sampled_from(["", "limit=x", "limit=-1", "after=", "api-version=1", "order=up&limit=5"]),
)
def test_any_path_is_answered_or_refused(method: str, parts: list[str], query: str) -> None:
    """Paths that are none give an error object."""
    assert status(method, "/" + "/".join(parts), query, b"{}") in (200, 400, 404, 405)
