"""The one route, and what refuses an input: an HTTP error whose body has the form of RUN_ERROR.

The protocol asks for that: an input that is refused has no run, and so no stream of events.
"""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api.ag_ui import inputs, runs
from tealagents.api.applications import application, kept_alive, routes
from tealagents.api.exchange import Exchange
from tealagents.api.http import json_response, status_of, worded
from tealagents.api.protocols import Served
from tealagents.domain.errors import TealError
from tealagents.domain.models import Caller

_LATE = "Send a message to continue the thread. Cancel the interrupt in `resume` instead if this answers one."
#: what to do about an error, where this protocol has a way of its own
_ADVICE: Mapping[str, str] = {
    "task_busy": "Wait for the run to end, or follow it: run the thread without a new message.",
    "idempotency_key_reused": "The runId stands for a run with other messages. Send a new one.",
    "approval_pending": "Run the thread without a new message to see what it asks, then answer all at once: "
    "interrupts in `resume`, calls of frontend tools with tool messages.",
    "approval_expired": _LATE,
    "request_canceled": _LATE,
    "already_decided": "Cancel all interrupts of that run in `resume` to see what came of them.",
}


def build(exchange: Exchange, path: str) -> Served:
    """AG-UI over an exchange: clients take `path` as the URL of the agent."""
    table = [("POST", below, _run) for below in ("", "/")]
    return application(exchange, path, routes(exchange, path, table), _refuse, urls={"url": path})


async def _run(exchange: Exchange, caller: Caller, request: Request) -> Response:
    """One run of a thread. It may wait for its turn, or for the effect of the answers that it brings."""
    given = inputs.read(await exchange.body(request))
    return await kept_alive(exchange, runs.carried_out(exchange, caller, given, request.receive), _refuse)


def _refuse(error: TealError, headers: Mapping[str, str]) -> Response:
    body = {"type": "RUN_ERROR", "message": worded(error, _ADVICE), "code": error.code}
    return json_response(body, status=status_of(error), headers=headers)
