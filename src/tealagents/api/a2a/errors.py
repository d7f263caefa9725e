"""Domain errors as both bindings say them: a JSON-RPC error, or a `google.rpc.Status` (AIP-193)."""

from collections.abc import Mapping

from a2a.utils import errors as a2a
from a2a.utils.error_handlers import A2A_DOMAIN, ERROR_INFO_TYPE
from starlette.responses import Response

from tealagents.api import sse
from tealagents.api.gate import AdmittedCall
from tealagents.api.http import OF_TRANSPORT, json_response, status_of, worded
from tealagents.domain.errors import InvalidRequest, TealError
from tealagents.domain.models import Json

#: the codes of errors that A2A has a class for
_CLASSES: dict[type[a2a.A2AError], tuple[str, ...]] = {
    a2a.InvalidParamsError: ("invalid_request", "idempotency_key_reused"),
    # what is another user's is reported as if it did not exist
    a2a.TaskNotFoundError: ("not_found", "not_owner"),
    a2a.UnsupportedOperationError: ("already_decided", "approval_expired", "request_canceled"),
    a2a.InternalError: ("corrupt_state", "internal_error"),
}
_NOT_FOUND = "There is no such task, context or path. Check the id; it may have been deleted or have expired."
#: HTTP status → google.rpc.Code
_NAMES = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 409: "ABORTED", 413: "INVALID_ARGUMENT"}
_NAMES |= {405: "UNIMPLEMENTED", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
#: methods of 0.3 whose clients take nothing but a stream; those of 1.0 take JSON too
_STREAMS = ("message/stream", "tasks/resubscribe")
#: id of the domain → its name in A2A
_IDS = {"request_id": "taskId", "task_id": "contextId", "approval_id": "approvalId"}
_ADVICE = {
    "idempotency_key_reused": "The messageId stands for another message. Send a new one.",
    "task_busy": "Wait for its task, or cancel it.",
    "approval_pending": 'Send its taskId with a data part, {"action": "approve", "approval_id": "…"}. '
    "A call that another client runs can only be rejected.",
}


def _kind(error: TealError) -> tuple[int, int, str, str]:
    """The HTTP status, the JSON-RPC code, the google.rpc.Code and A2A's reason."""
    if isinstance(error, InvalidRequest) and error.field == "Content-Type":
        return 415, -32005, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED"
    if isinstance(error, InvalidRequest) and error.field == "body":
        return 400, -32700 if error.malformed else -32600, "INVALID_ARGUMENT", "INVALID_REQUEST"
    kind = next((kind for kind, codes in _CLASSES.items() if error.code in codes), None)
    if isinstance(error, InvalidRequest) and error.field == "A2A-Version":
        kind = a2a.VersionNotSupportedError
    if kind is None:
        status = status_of(error)
        return status, -32000, _NAMES.get(status, "INTERNAL"), error.code.upper()
    status, name, reason = a2a.A2A_ERROR_MAPPING[kind]
    return status, a2a.JSON_RPC_ERROR_CODE_MAP[kind], name, reason


def document(error: TealError, call: AdmittedCall) -> Json:
    """The body of an error, in the binding of the call."""
    status, code, name, reason = _kind(error)
    unknown = reason == "TASK_NOT_FOUND"
    text = _NOT_FOUND if unknown else worded(error, _ADVICE)
    ids = {} if unknown else {_IDS[key]: value for key, value in error.ids.items() if key in _IDS}
    info = {"@type": ERROR_INFO_TYPE, "reason": reason, "domain": A2A_DOMAIN, "metadata": ids}
    if call.is_rpc:
        return {"jsonrpc": "2.0", "id": call.rpc_id, "error": {"code": code, "message": text, "data": [info]}}
    return {"error": {"code": status, "status": name, "message": text, "details": [info]}}


def respond(call: AdmittedCall, error: TealError, headers: Mapping[str, str]) -> Response:
    status, said = _kind(error)[0], document(error, call)
    if not call.is_rpc or status in OF_TRANSPORT:
        return json_response(said, status=status, headers=headers)
    return (sse.event_response if call.rpc_method in _STREAMS else json_response)(said, headers=headers)
