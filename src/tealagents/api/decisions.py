"""The document that decides a pause, in all protocols but ours: `{"action": "approve"}`, and its details."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, get_args

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from tealagents.api import bodies
from tealagents.api.http import timestamp
from tealagents.domain import ids
from tealagents.domain.errors import AlreadyDecided, ApprovalExpired, InvalidRequest, RequestCanceled
from tealagents.domain.models import Action, Approval, Item, Json, RequestRecord
from tealagents.engine.approvals import CallDecision, Command
from tealagents.state.decisions import shown_calls

#: characters of a reason: the model is sent it in this round and every later one
LONGEST_REASON = 4000
Reason = Annotated[str, Field(max_length=LONGEST_REASON)]
#: the errors for a pause that is no longer open, and those of them for one that ended undecided
TOO_LATE = (AlreadyDecided, ApprovalExpired, RequestCanceled)
GONE = (ApprovalExpired, RequestCanceled)
#: the choice in a form that gives a call the decision for all
_SAME = "same"


class StrictDocument(BaseModel):
    """A document without unknown fields, whose values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class OneCall(StrictDocument):
    """What is decided of one call of a pause, and what it returned if the client has made it."""

    id: str = Field(description="The id of the call, as the approval lists it.")
    action: Action | None = Field(None, description="By default, the action for all calls.")
    arguments: Json | None = Field(None, description="Replaces the arguments of the call.")
    output: str | None = Field(None, description="The result, if the client has made the call.")
    is_error: bool = Field(False, description="Whether the result is an error.")


class DecisionDocument(StrictDocument):
    """What is decided of a pause: of every call, or of each."""

    action: Action | None = Field(None, description="For every call that `decisions` does not name.")
    reason: Reason | None = Field(None, description="Why, for the agent's model.")
    decisions: bodies.Several[OneCall] = Field([], description="For single calls.")
    approval_id: str | None = Field(None, description="Which pause this decides; by default, the first.")


class DecisionForm(StrictDocument, title="Answer"):
    """What is decided of one call, where each is asked for by itself. Pages make forms of its schema."""

    action: Action
    reason: Annotated[str, Field(max_length=LONGEST_REASON, description="Why, for the model.")] | None = None
    arguments: Annotated[Json, Field(description="Replaces the arguments of the call.")] | None = None


def decision(value: Any) -> Command:
    """What was decided. `approval_id` says of which pause; a request's first needs none. `InvalidRequest`."""
    if not isinstance(value, dict):
        raise InvalidRequest("decision", 'must be an object, such as {"action": "approve"}')
    given = bodies.validated(DecisionDocument, value)
    approval_id = given.approval_id
    return Command(
        action=given.action,
        reason=given.reason,
        decisions=tuple(CallDecision(**each.model_dump()) for each in given.decisions),
        approval_id=ids.canonical(approval_id, "approval_id") if approval_id is not None else None,
    )


def of_message(items: Sequence[Item], record: RequestRecord, field: str) -> Command | None:
    """What a message to a request decides: it must be one item, all of which is the decision's document.

    None where no pause waits and nothing can have been decided before. `InvalidRequest`, which names `field`
    and says what to send, for anything else that is not a decision of this request.
    """
    value = None
    if len(items) == 1 and items[0].content_type == "text":
        with suppress(InvalidRequest):
            value = bodies.parse(items[0].content.encode())
    if record.status != "Paused" and not (isinstance(value, dict) and record.approvals):
        return None
    wanted = 'must be one data part, a decision such as {"action": "approve"}'
    if not isinstance(value, dict):
        raise InvalidRequest(field, f"{wanted}; to send anything else, cancel the task first")
    try:
        command = decision(value)
    except InvalidRequest as error:
        raise InvalidRequest(field, f"{wanted} ({error.detail})") from None
    if command.approval_id not in (None, *record.approvals):
        raise InvalidRequest(field, "names an approval_id that no pause of this task has")
    return command


def fields(pause: Approval) -> Json:
    """JSON Schema of the decision as a flat form: of all calls, and of each where several wait.

    What may be omitted has a default: types that clients derive from the form would send null.
    """
    names: list[str] = list(get_args(Action))
    asked: Json = {"action": {"type": "string", "title": "Decision", "enum": names}}
    each = {"type": "string", "enum": [_SAME, *names], "default": _SAME}
    for n, call in enumerate(pause.calls if len(pause.calls) > 1 else (), 1):
        asked[f"call_{n}"] = {**each, "title": call.tool, "description": call.arguments}
    asked["reason"] = {"type": "string", "title": "Reason", "maxLength": LONGEST_REASON, "default": ""}
    return {"type": "object", "properties": asked, "required": ["action"]}


def of_fields(pause: Approval, given: Mapping[str, object]) -> Command | None:
    """What the fields of `fields` decide; None without an `action`, which is required. `InvalidRequest`."""
    if (action := given.get("action")) is None:
        return None
    each = [{"id": call.id, "action": given.get(f"call_{n}")} for n, call in enumerate(pause.calls, 1)]
    decided = [of_call for of_call in each if of_call["action"] not in (None, _SAME)]
    said = {"action": action, "reason": given.get("reason") or None, "decisions": decided}
    try:
        return decision({"approval_id": pause.approval_id, **said})
    except InvalidRequest as error:
        found = {"task_id": pause.task_id, "request_id": pause.request_id}
        raise error.with_ids(**found, approval_id=pause.approval_id) from None


class CallAnswer(Struct, frozen=True, kw_only=True):
    """What is decided of one call by itself; `output` is what came of a call that the client made.

    `field` is where the client has sent it.
    """

    action: Action | None = None
    reason: str | None = None
    arguments: Json | None = None
    output: str | None = None
    is_error: bool = False
    field: str = ""


def answer(value: Any, field: str) -> CallAnswer:
    """What was decided of one call, in the form of `DecisionForm`. `InvalidRequest` names `field`."""
    try:
        return CallAnswer(**bodies.validated(DecisionForm, value).model_dump(), field=field)
    except InvalidRequest as error:
        raise InvalidRequest(field, error.detail) from None


def approved(of: Json, where: str) -> CallAnswer:
    """What the item at `where` decides with `approve`, true or false, and `reason`. `InvalidRequest`."""
    action: Action = "approve" if bodies.flag(of, "approve", where) else "reject"
    reason = bodies.string(of, "reason", where) if of.get("reason") is not None else None
    return CallAnswer(action=action, reason=reason, field=where)


def check_reason(given: CallAnswer) -> None:
    """`InvalidRequest` where the reason of what is decided now is too long; one in the history may be."""
    if given.reason is not None and len(given.reason) > LONGEST_REASON:
        raise InvalidRequest(f"{given.field}.reason", f"may have at most {LONGEST_REASON} characters")


def of_calls(pause: Approval, answers: Mapping[int, CallAnswer]) -> Command:
    """What was decided of the calls of a pause, by their indexes."""
    reasons = {each.reason for each in answers.values()}
    for_all = reasons.pop() if len(reasons) == 1 else None
    return Command(
        decisions=tuple(
            CallDecision(
                id=pause.calls[n].id,
                action=each.action,
                arguments=each.arguments,
                output=each.output,
                is_error=each.is_error,
                reason=None if for_all else each.reason,
            )
            for n, each in answers.items()
        ),
        approval_id=pause.approval_id,
        reason=for_all,
    )


def pause_text(pause: Approval) -> str:
    """What a pause asks, with a line for each authorization of the user's own that comes first."""
    links = (f"{each['server']}: {each['url']}" for each in pause.authorizations)
    return "\n".join((pause.message, *links))


def question(pause: Approval) -> str:
    """A pause in words, and the calls that wait."""
    return pause.message + "".join(f"\n- {call.tool} {call.arguments}" for call in pause.calls)


def pending(pause: Approval) -> Json:
    """What a pause waits for, which a decision refers to."""
    return {
        "approval_id": pause.approval_id,
        "expires_at": timestamp(pause.expires_at),
        "tool_calls": shown_calls(pause.calls),
        "authorizations": list(pause.authorizations),
    }
