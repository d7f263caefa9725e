"""Results of calls, as text for the host's model and as structured content; questions on pauses; errors."""

from collections import defaultdict
from collections.abc import Mapping

import mcp_types as types
from mcp.server.connection import Connection
from msgspec.structs import asdict
from starlette.responses import Response

from tealagents.api.decisions import decision, fields, of_fields, pending, question
from tealagents.api.gate import AdmittedCall
from tealagents.api.http import retry_after, rpc_response, status_of
from tealagents.domain.errors import InvalidRequest, NotFound, NotOwner, TealError
from tealagents.domain.models import Approval, Json, RequestRecord
from tealagents.domain.texts import enumerated
from tealagents.engine.approvals import Command

#: id of the domain → its name in the tools' results
_IDS = {"task_id": "conversation", "request_id": "request_id", "approval_id": "approval_id"}
#: what to do about an error, where this protocol has a way of its own
_ADVICE = {
    "task_busy": " Call again once its answer has arrived, or start a new conversation.",
    "idempotency_key_reused": " Use a new idempotency_key for other arguments.",
    "already_decided": " To see it, call `decide` with the action that was taken: nothing runs again.",
    "approval_pending": " Ask the user, then call `decide` with these ids: {request_id}, {approval_id}.",
}
_FORM = "decision"
_UNKNOWN = NotFound("There is nothing with this id or key. Check it, or start a new conversation without it.")


def of_request(record: RequestRecord) -> Json:
    """A request that has ended or paused; the text of a pause is for hosts that cannot ask in the call."""
    found: Json = {**_ids(record.ids), "status": record.status}
    if (pause := record.pause) is not None:
        links = "".join(f"\nTo authorize {each['server']}: {each['url']}" for each in pause.authorizations)
        what_to_do = (
            f"Ask the user; do not decide for them. Then call `decide` with request_id {pause.request_id}, "
            f"approval_id {pause.approval_id}, and the action approve or reject."
        )
        asked = {**pending(pause), "message": pause.message, "what_to_do": what_to_do}
        return _result(f"{question(pause)}{links}\n{what_to_do}", {**found, "approval": asked})
    if record.error is not None:
        error = {"code": record.error.code, "message": record.error.detail}
        return _result(record.error.detail, {**found, "error": error}, is_error=True)
    extra = {"extra_data": record.extra_data} if record.extra_data else {}
    return _result(record.output, {**found, "output": record.output, "usage": asdict(record.usage), **extra})


def of_error(error: TealError) -> Json:
    """A call that was refused, or whose end cannot be reported: the model can read what is wrong with it."""
    found = error.ids.keys() >= {"request_id", "task_id"}  # the caller's own, which lacks something
    error = _UNKNOWN if isinstance(error, NotOwner) or (isinstance(error, NotFound) and not found) else error
    text = error.detail + _ADVICE.get(error.code, "").format_map(defaultdict(str, error.ids))
    wait = {"retry_after_seconds": int(seconds)} if (seconds := retry_after(error)) is not None else {}
    said = {"code": error.code, "message": text, **wait}
    return _result(text, {**_ids(error.ids), "status": "Refused", "error": said}, is_error=True)


def _result(text: str, said: Json, *, is_error: bool = False) -> Json:
    """A `CallToolResult`. The conversation is text as well: most hosts show their model nothing else."""
    named = [f"conversation: {said['conversation']}"] if "conversation" in said else []
    content = [{"type": "text", "text": each} for each in (text, *named)]
    return {"resultType": "complete", "content": content, "structuredContent": said, "isError": is_error}


def _ids(known: Mapping[str, str]) -> Json:
    return {_IDS[name]: value for name, value in known.items() if name in _IDS}


def elicits(client: types.ClientCapabilities | None) -> str:
    """How a host can ask its user: `f` with forms, `u` with links."""
    if (able := client.elicitation if client is not None else None) is None:
        return ""
    return "f" * (able.form is not None or able.url is None) + "u" * (able.url is not None)


def how_of(call: AdmittedCall) -> str:
    """What `elicits` says of an older host: first its `initialize`, then the middle of its session's id."""
    if call.rpc_method != "initialize":
        return "".join(call.request.headers.get("mcp-session-id", "").split(".")[1:-1])
    return elicits(Connection.from_envelope("", None, call.params.get("capabilities")).client_capabilities)


def questions(pause: Approval, how: str) -> dict[str, types.ElicitRequest]:
    """What the user is asked, by name; nothing where the host cannot ask it, and `decide` is the way."""
    if any(call.by_client for call in pause.calls):
        return {}
    if "f" in how and ("u" in how or not pause.authorizations):
        return {**_links(pause), _FORM: _form(pause)}
    return _links(pause) if "u" in how and pause.consent_only else {}


def command(pause: Approval, answers: Mapping[str, object]) -> Command | None:
    """What the answers decide; None where the user has not decided. `InvalidRequest`."""
    form = _FORM in answers or not pause.consent_only
    names = [*_links(pause), *([_FORM] if form else [])]
    given = [each for name in names if isinstance(each := answers.get(name), types.ElicitResult)]
    if any(each.action == "decline" for each in given):
        return decision({"approval_id": pause.approval_id, "action": "reject"})
    if len(given) < len(names) or any(each.action == "cancel" for each in given):
        return None
    # a host that shows links only has no form: having been there is consent
    return of_fields(pause, (given[-1].content or {}) if form else {"action": "approve"})


def _links(pause: Approval) -> dict[str, types.ElicitRequest]:
    """The authorizations that come before the decision."""
    asked: dict[str, types.ElicitRequest] = {}
    for n, each in enumerate(pause.authorizations):
        text, name = f"The agent needs your authorization at {each['server']}.", f"{pause.approval_id}/{n}"
        params = types.ElicitRequestURLParams(message=text, url=each["url"], elicitation_id=name)
        asked[f"authorization_{n}"] = types.ElicitRequest(params=params)
    return asked


def _form(pause: Approval) -> types.ElicitRequest:
    """The decision as a form; forms are flat."""
    servers = enumerated([each["server"] for each in pause.authorizations])
    text = question(pause) + (f"\nApprove when you have authorized {servers}." if servers else "")
    params = types.ElicitRequestFormParams(message=text, requested_schema=fields(pause))
    return types.ElicitRequest(params=params)


def respond(call: AdmittedCall, error: TealError, headers: Mapping[str, str]) -> Response:
    """The response for a request that the gate has refused; a tool's bad arguments are a result."""
    status, rpc_id = status_of(error), call.rpc_id if call.rpc_method else None
    code = types.INVALID_REQUEST if status < 500 else types.INTERNAL_ERROR
    if isinstance(error, InvalidRequest):
        status = {"Content-Type": 415, "Accept": 406}.get(error.field, 400)
        if status == 400 and call.rpc_method == "tools/call" and rpc_id is not None:
            wrong = InvalidRequest(error.field.removeprefix("params.arguments."), error.reason)
            return rpc_response(rpc_id, result=of_error(wrong))
        code = types.INVALID_PARAMS if error.field.startswith("params") else code
        code = types.PARSE_ERROR if error.malformed and error.field == "body" else code
    return rpc_response(rpc_id, status=status, headers=headers, error={"code": code, "message": error.detail})
