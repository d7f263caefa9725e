"""A message's fields are the same wherever they are listed: a client that lacks one does not send it."""

import inspect
import re
from pathlib import Path
from typing import Any

from contract_server import MESSAGE_FIELDS
from right_bodies import RIGHT

from tealagents.agent import Agent
from tealagents.api.v1alpha1.inputs import UserMessage
from tealagents.client import calls
from tealagents.domain.models import PerRequest, RequestRecord, RequestSetup
from tealagents.engine.turn import TurnInput
from tealagents.state.new_message import NewMessage

ROOT = Path(__file__).parents[2]
FIELDS = UserMessage.model_fields.keys()
#: what the clients take beside the fields
NO_FIELDS = {"idempotency_key", "idempotencyKey"}


def names(written: str, after: str, before: str, pattern: str) -> set[str]:
    """The names that a file lists between two texts."""
    return (
        set(re.findall(pattern, written.partition(after)[2].partition(before)[0], re.MULTILINE)) - NO_FIELDS
    )


def test_python_client_sends_every_field() -> None:
    """It takes an option for each field, and what it takes it sends."""
    options: Any = {name: name for name in calls.MessageOptions.__annotations__}
    sent = calls.message("hi", options).body
    assert sent.keys() == FIELDS
    assert {"items", *options} - NO_FIELDS == FIELDS


def test_javascript_client_sends_every_field() -> None:
    """The body that it makes has each field, and its types have an option for each."""
    code = (ROOT / "clients/js/src/client.js").read_text()
    assert names(code.partition("\nfunction message(")[2], "body: {", "}", r"\w+") == FIELDS
    types = (ROOT / "clients/js/src/index.d.ts").read_text()
    options = names(types, "interface MessageOptions extends CallOptions {", "\n}", r"^  (\w+)\?:")
    assert {"items", *options} == FIELDS


def test_http_reference_explains_every_field() -> None:
    """The page has a row for each field, and none that is refused."""
    page = (ROOT / "docs/http.md").read_text()
    assert names(page, "\n## Sending a message\n", "\n\nThere is no", r"^\| `(\w+)` \|") == FIELDS


def test_stand_ins_know_every_field() -> None:
    """The server that the client is tested with takes each field, and the bodies to be broken hold each."""
    assert FIELDS == MESSAGE_FIELDS
    assert {name for body in RIGHT["POST "] for name in body} == FIELDS


def test_a_retry_repeats_every_field_that_the_request_keeps() -> None:
    """A field of a message that its request's record has, too, is one of those that both inherit."""
    kept = set(NewMessage.__struct_fields__) & set(RequestRecord.__struct_fields__)
    assert kept == {*PerRequest.__struct_fields__, "session_id", "task_id"}


def test_library_takes_every_field_that_has_an_effect() -> None:
    """What a message sets for its turn, `Agent.run` can too, except what only other protocols set."""
    assert set(PerRequest.__struct_fields__) & set(TurnInput.__struct_fields__) == {"setup"}
    others = {"instructions", "client_tools", "response_format", "tool_choice"}
    for takes in (Agent.run, Agent.run_stream):
        assert set(RequestSetup.__struct_fields__) - inspect.signature(takes).parameters.keys() == others
