"""The decision of a pause as a flat form, and what is answered in it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tealagents.api.decisions import fields, of_fields
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Approval, ToolCall, User
from tealagents.engine.approvals import CallDecision
from tealagents.state.decisions import digest_of, shown_calls

PAUSE = Approval(
    approval_id="6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f",
    request_id="request",
    task_id="task",
    session_id="session",
    owner=User(tid="tenant", oid="ada"),
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    expires_at=datetime(2026, 1, 2, tzinfo=UTC),
    calls=tuple(ToolCall(id=each, tool=f"Files-{each}", arguments="{}") for each in ("read", "delete")),
)


def test_what_a_decision_is_bound_to_stays_the_same() -> None:
    """Of a call that another version of the service has shown, also one to a client's tool with a hyphen."""
    call = ToolCall(id="c1", tool="get-weather", arguments="{}", by_client=True)
    assert digest_of([call]) == "faad8812fe60a82c31618abf0ce4230a57732dd2929264877266edfb7b5fd53c"
    (shown,) = shown_calls([call])
    assert (shown["plugin_name"], shown["function_name"]) == ("", "get-weather")


def test_what_may_be_left_out_has_a_default_that_its_field_allows() -> None:
    """Clients make types of the form, whose optional fields would be null without one."""
    schema = fields(PAUSE)
    assert schema["required"] == ["action"]
    for name, field in schema["properties"].items():
        if name != "action":
            assert isinstance(field["default"], str)
            assert field["default"] in field.get("enum", [field["default"]])


@pytest.mark.parametrize(
    ("given", "decided"),
    [
        ({"call_1": "same", "call_2": "same", "reason": ""}, ()),
        ({"call_1": None, "call_2": None, "reason": None}, ()),
        ({"call_2": "reject"}, (CallDecision("delete", "reject"),)),
    ],
)
def test_a_call_that_the_form_leaves_is_decided_as_all_are(given: Any, decided: Any) -> None:
    """Its default says the same as an absent field."""
    command = of_fields(PAUSE, {"action": "approve", **given})
    assert command is not None
    assert (command.action, command.reason, command.decisions) == ("approve", None, decided)
    assert command.approval_id == PAUSE.approval_id


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"action": None},
        {"call_1": "same", "reason": "because"},
        {"call_1": "approve", "call_2": "approve"},
    ],
)
def test_a_form_without_its_action_decides_nothing(given: Any) -> None:
    """Some hosts have a button to accept, and no form; the action is required, whatever else is chosen."""
    assert of_fields(PAUSE, given) is None


@pytest.mark.parametrize(
    "given", [{"action": "same"}, {"action": "perhaps"}, {"call_1": 5}, {"reason": ["x"]}]
)
def test_what_no_field_allows_is_refused(given: Any) -> None:
    """Whatever else is decided."""
    with pytest.raises(InvalidRequest):
        of_fields(PAUSE, {"action": "approve", **given})
