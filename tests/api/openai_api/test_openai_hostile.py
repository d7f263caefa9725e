"""Strangers, hostile tokens and broken bodies on every route of OpenAI's API."""

import copy
import http.client
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hostile_tokens import HOSTILE, Forge
from openai_talk import SPEC, WEATHER, Json, call, create, raw
from wire import NOBODYS, records, store_of

from tealagents.llm.offline import OfflineModel
from tealagents.testing.authority import TENANT, LocalAuthority, object_id
from tealagents.testing.service import ServiceThread, agent_config

PLUGINS = str(Path(__file__).parents[1] / "working" / "custom_plugins.py")
SENDABLE = [hostile for hostile in HOSTILE if hostile.sendable]
#: broken bodies in all
BODIES = 10_000
SECRET = "the blue heron"
Route = tuple[str, str]


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[ServiceThread, Forge]]:
    """A service with real tokens."""
    with LocalAuthority() as authority, OfflineModel() as model:
        env = authority.environment(
            TA_BASE_URL=model.base_url,
            TA_API_KEY="offline-key",
            TA_PLUGIN_MODULE=PLUGINS,
            TA_ENTRA_APPROVER_ROLE="Approver",
            TA_ENTRA_AUDITOR_ROLE="Auditor",
        )
        with ServiceThread(agent_config(**SPEC), env) as service:
            yield service, Forge(authority)


def routes(service: ServiceThread) -> list[Route]:
    """Method and template of every route there is, below `base_url`."""
    (served,) = [each for each in service.app._others if each.path.endswith("/openai/v1")]
    found = [(route.methods - {"HEAD"}, route.path) for route in served.app.routes]
    return [(method, path.removeprefix(served.path)) for methods, path in found for method in methods]


class Estate:
    """What alice has: a conversation with a response, and one that waits for a decision."""

    def __init__(self, alice: httpx.Client) -> None:
        first = create(alice, input=f"Remember that {SECRET} is shy.")
        paused = create(alice, input=call("Work-write", file="/dev/null", line=SECRET))
        asked = create(alice, input=call("get_weather", place=SECRET), tools=[WEATHER])
        self.response, self.conversation = first["id"], first["conversation"]["id"]
        self.item = first["output"][0]["id"]
        self.paused, self.request = paused["id"], paused["output"][0]["id"]
        self.called = asked["output"][0]["call_id"]

    def filled(self, path: str) -> str:
        names = {
            "response_id": self.response,
            "conversation_id": self.conversation,
            "item_id": self.item,
            "model": "Tester",
        }
        for name, value in names.items():
            path = path.replace(f"{{{name}}}", value)
        return path


def approval(estate: Estate) -> Json:
    answer = {"type": "mcp_approval_response", "approval_request_id": estate.request, "approve": True}
    return {"input": [answer]}


def output(estate: Estate) -> Json:
    return {"input": [{"type": "function_call_output", "call_id": estate.called, "output": "x"}]}


def said(**fields: Any) -> Json:
    return {"input": "hi", **fields}


#: what a stranger tries on each route that names something of the owner's, besides the path itself
RECIPES: dict[Route, list[Callable[[Estate], Json]]] = {
    ("POST", "/responses"): [
        lambda e: said(previous_response_id=e.response),
        lambda e: said(previous_response_id=e.response, stream=True),
        lambda e: said(conversation=e.conversation),
        approval,
        output,
    ],
    ("GET", "/responses/{response_id}"): [lambda _: {}],
    ("DELETE", "/responses/{response_id}"): [lambda _: {}],
    ("POST", "/responses/{response_id}/cancel"): [lambda _: {}],
    ("GET", "/responses/{response_id}/input_items"): [lambda _: {}],
    ("GET", "/conversations/{conversation_id}"): [lambda _: {}],
    ("POST", "/conversations/{conversation_id}"): [lambda _: {"metadata": {"seen": "yes"}}],
    ("DELETE", "/conversations/{conversation_id}"): [lambda _: {}],
    ("GET", "/conversations/{conversation_id}/items"): [lambda _: {}],
    ("POST", "/conversations/{conversation_id}/items"): [
        lambda _: {"items": [{"role": "user", "content": "x"}]}
    ],
    ("GET", "/conversations/{conversation_id}/items/{item_id}"): [lambda _: {}],
    ("POST", "/chat/completions"): [
        lambda e: {"messages": [{"role": "tool", "tool_call_id": e.called, "content": "x"}]}
    ],
}
#: routes that name nothing of anybody's
OWN = {("GET", "/models"), ("GET", "/models/{model}"), ("POST", "/conversations")}


def test_every_route_has_a_recipe(guarded: tuple[ServiceThread, Forge]) -> None:
    """A new route cannot be forgotten."""
    found = routes(guarded[0])
    assert len(found) == len(set(found))
    assert set(found) == RECIPES.keys() | OWN


@pytest.mark.parametrize("roles", [[], ["Approver"], ["Auditor"]])
def test_a_stranger_finds_nothing(guarded: tuple[ServiceThread, Forge], roles: list[str]) -> None:
    """What is another's is as unknown as what never was, whatever their role; not a byte of it changes."""
    service, forge = guarded
    with (
        raw(service, forge.authority.token("alice")) as alice,
        raw(service, forge.authority.token("mallory", roles=roles)) as mallory,
    ):
        estate = Estate(alice)
        partition = f"Tester/user/{TENANT}.{object_id('alice')}"
        before = records(store_of(service), partition)
        assert before
        for (method, path), bodies in RECIPES.items():
            for body in bodies:
                given = body(estate) if method == "POST" else None
                refused = mallory.request(method, estate.filled(path), json=given)
                assert refused.status_code == 404, (method, path, refused.text)
                assert SECRET not in refused.text
                unknown = refused.json()["error"]
                assert unknown["code"] == "not_found"
        header = {"x-conversation-id": estate.conversation}
        hello = {"messages": [{"role": "user", "content": "hi"}]}
        assert mallory.post("/chat/completions", json=hello, headers=header).status_code == 404
        assert records(store_of(service), partition) == before


def test_every_hostile_token_is_refused_on_every_route(guarded: tuple[ServiceThread, Forge]) -> None:
    """With the right status and challenge, in OpenAI's form."""
    service, forge = guarded
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    metadata = f"{service.root}/.well-known/oauth-protected-resource{service.prefix}/openai/v1"
    assert httpx.get(metadata).json()["resource"] == f"{service.url}/openai/v1"
    for hostile in SENDABLE:
        token = hostile.make(forge)
        for method, path in routes(service):
            where = f"{service.prefix}/openai/v1{path}".replace("{", "").replace("}", "")
            headers = {"authorization": b"Bearer " + token.encode()}
            connection.request(method, where, headers=headers)
            answer = connection.getresponse()
            document = json.loads(answer.read())
            assert answer.status == (401 if not token.strip() else hostile.status), (method, path, hostile)
            assert answer.headers["www-authenticate"].startswith(f'Bearer resource_metadata="{metadata}"')
            assert document["error"]["code"] in ("unauthenticated", "insufficient_scope")
    connection.close()


# --- broken bodies -------------------------------------------------------------------------------

#: bodies that are right, to be broken
RIGHT: dict[str, list[Json]] = {
    "/responses": [
        {
            "model": "Tester",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "call_id": f"call_{NOBODYS}_0", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": f"call_{NOBODYS}_0", "output": "x"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}],
                },
            ],
            "tools": [WEATHER],
            "metadata": {"a": "b"},
            "text": {"format": {"type": "text"}},
            "previous_response_id": f"resp_{NOBODYS}_1",
        },
        {
            "input": [
                {"type": "mcp_approval_response", "approval_request_id": f"mcpr_{NOBODYS}_0", "approve": True}
            ]
        },
        {"input": "hi", "conversation": {"id": f"conv_{NOBODYS}"}, "stream": True, "store": False},
    ],
    "/conversations": [{"items": [{"role": "user", "content": "x"}], "metadata": {"a": "b"}}],
    f"/conversations/conv_{NOBODYS}": [{"metadata": {"a": "b"}}],
    f"/conversations/conv_{NOBODYS}/items": [{"items": [{"role": "user", "content": "x"}]}],
    "/chat/completions": [
        {
            "model": "Tester",
            "messages": [
                {"role": "system", "content": "x"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                    ],
                },
                {"role": "tool", "tool_call_id": f"call_{NOBODYS}_0", "content": "x"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            "stream_options": {"include_usage": True},
        }
    ],
}
JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    1e308,
    2**63,
    "",
    "x",
    "\0",
    "\ud800",
    [],
    {},
    [[]],
    {"a": []},
    "é" * 300,
]
KINDS = ["message", "mcp_call", "reasoning", "item_reference", "function_call", "input_file", "tool", "user"]


def broken(rng: random.Random, right: Json) -> bytes:
    """A right body with some of it replaced, removed, doubled; or not JSON at all."""
    body = copy.deepcopy(right)
    for _ in range(rng.randint(1, 3)):
        mutate(rng, body)
    written = json.dumps(body).encode()
    match rng.randrange(12):
        case 0:
            return written[: rng.randrange(len(written))]
        case 1:
            position = rng.randrange(len(written))
            return written[:position] + bytes([rng.randrange(256)]) + written[position + 1 :]
        case 2:
            return rng.choice([b"", b"[]", b"null", b"\xff\xfe", b"[" * 5000, b'"x"', b"{}"])
    return written


def mutate(rng: random.Random, value: Any) -> None:
    """Changes one place within an object or an array."""
    places = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not places:
        return
    place = rng.choice(places)
    inner = value[place]
    if isinstance(inner, dict | list) and inner and rng.random() < 0.75:
        mutate(rng, inner)
    elif rng.random() < 0.2:
        del value[place]
    elif rng.random() < 0.2 and isinstance(value, list):
        value.append(copy.deepcopy(inner))
    else:
        value[place] = copy.deepcopy(rng.choice([*JUNK, *KINDS]))


@pytest.mark.parametrize("path", RIGHT)
def test_no_body_is_our_fault(service: ServiceThread, path: str) -> None:
    """Whatever comes is answered, with an error in OpenAI's form where it is wrong, and never with a 5xx."""
    rng = random.Random(path)
    where = f"{service.prefix}/openai/v1{path}"
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    headers = {"authorization": "Bearer fuzz", "content-type": "application/json"}
    for _ in range(BODIES // len(RIGHT)):
        body = broken(rng, rng.choice(RIGHT[path]))
        connection.request("POST", where, body=body, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status < 500, (body, text)
        if answer.status >= 400:
            error = json.loads(text)["error"]
            assert error["message"], body
            assert error["type"] == "invalid_request_error", body
            assert len(text) < 4000
    connection.close()
