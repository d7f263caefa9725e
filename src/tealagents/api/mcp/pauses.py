"""What a human is asked about a pause, and what the answers decide: one form, and links to authorizations."""

from collections.abc import Mapping

import mcp_types as types

from tealagents.api.decisions import decision
from tealagents.api.mcp.documents import question
from tealagents.domain.models import Approval, Json
from tealagents.engine.approvals import Command

_FORM = "decision"


def questions(pause: Approval, client: types.ClientCapabilities | None) -> dict[str, types.ElicitRequest]:
    """What the user is asked, by name; nothing where the host cannot ask it, and `decide` is the way."""
    able = client.elicitation if client is not None else None
    if able is None or any(call.by_client for call in pause.calls):
        return {}
    forms, links = able.form is not None or able.url is None, able.url is not None
    if not (links if pause.authorizations else forms):
        return {}
    asked = {f"authorization_{n}": _link(pause, n) for n in range(len(pause.authorizations))}
    return {**asked, _FORM: _form(pause)} if forms else asked


def command(pause: Approval, answers: Mapping[str, object]) -> Command | None:
    """What the answers decide; None where the user has not decided. `InvalidRequest`."""
    names = [f"authorization_{n}" for n in range(len(pause.authorizations))]
    if not names or _FORM in answers:
        names.append(_FORM)
    given = [each for name in names if isinstance(each := answers.get(name), types.ElicitResult)]
    if any(each.action == "decline" for each in given):
        return _decision(pause, "reject")
    if len(given) < len(names) or any(each.action == "cancel" for each in given):
        return None
    if _FORM not in names:  # the host shows links only: having been there is consent
        return _decision(pause, "approve")
    content = given[-1].content or {}
    each = [{"id": call.id, "action": content.get(f"call_{n}")} for n, call in enumerate(pause.calls, 1)]
    decided = [one for one in each if one["action"] is not None]
    return _decision(pause, content.get("action"), reason=content.get("reason") or None, decisions=decided)


def _decision(pause: Approval, action: object, **more: object) -> Command:
    return decision({"action": action, "approval_id": pause.approval_id, **more})


def _link(pause: Approval, n: int) -> types.ElicitRequest:
    server, url = pause.authorizations[n]["server"], pause.authorizations[n]["url"]
    text = f"The agent needs your authorization at {server}."
    asked = types.ElicitRequestURLParams(message=text, url=url, elicitation_id=f"{pause.approval_id}/{n}")
    return types.ElicitRequest(params=asked)


def _form(pause: Approval) -> types.ElicitRequest:
    """The decision document as a form; forms are flat."""
    servers = ", ".join(each["server"] for each in pause.authorizations)
    text = question(pause) + (f"\nApprove when you have authorized {servers}." if servers else "")
    action: Json = {"type": "string", "enum": ["approve", "reject"]}
    fields: Json = {"action": {**action, "title": "Decision"}}
    for n, call in enumerate(pause.calls if len(pause.calls) > 1 else (), 1):
        fields[f"call_{n}"] = {**action, "title": call.tool, "description": call.arguments}
    fields["reason"] = {"type": "string", "title": "Reason", "maxLength": 4000}
    schema = {"type": "object", "properties": fields, "required": ["action"]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=text, requested_schema=schema))
