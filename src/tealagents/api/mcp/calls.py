"""Carries a call out: its progress, its pauses, and its end where the host gives it up."""

import asyncio
from collections.abc import Coroutine, Hashable
from functools import partial
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec.structs import replace
from pydantic import ValidationError
from starlette.requests import Request

from tealagents.api import gate, questions, requests, sse
from tealagents.api.exchange import RequestView
from tealagents.api.mcp import documents, tools
from tealagents.api.open_calls import OpenCalls, awaited, unless_decided
from tealagents.domain.errors import InvalidRequest, NotFound
from tealagents.domain.models import Approval, Json
from tealagents.engine.approvals import Command

Context = ServerRequestContext[Any, Request]
#: a `CallToolResult`, or what the user is to be asked before there is one
Result = Json | types.InputRequiredResult


def named(call: gate.AdmittedCall, rpc_id: object) -> Hashable:
    """The name by which a host before 2026-07-28 cancels a call. The SDK takes 8 and "8" for the same id."""
    return call.caller.user.key, call.request.headers.get("mcp-session-id"), str(rpc_id)


async def answer(calls: OpenCalls, context: Context, params: types.CallToolRequestParams) -> Result:
    """Answers a call. What is refused and what fails are results, which the host's model can read."""
    if params.name not in (tools.ASK, tools.DECIDE):
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
    try:
        return await _Call(calls, context, params).result()
    except Exception as error:  # noqa: BLE001 — logged; the SDK would show its text
        return documents.of_error(calls.exchange.refused(error))


class _Call:
    """One call of a tool."""

    def __init__(self, calls: OpenCalls, context: Context, params: types.CallToolRequestParams) -> None:
        assert context.request is not None
        self._calls, self._exchange, self._params = calls, calls.exchange, params
        self._call: gate.AdmittedCall = context.request.scope[gate.SCOPE]
        self._modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        self._name = None if self._modern else named(self._call, context.request_id)
        self._say: Any = context.request.scope.get(sse.SAY)  # none is needed in 2026-07-28
        able = context.session.client_capabilities
        self._elicits = documents.elicits(able) if self._modern else documents.how_of(self._call)
        self._streamed = bool(context.meta and context.meta.get("progress_token") is not None)
        report = partial(context.session.report_progress, total=None) if self._streamed else None
        self._own = partial(requests.own, calls.exchange, self._call.caller)
        self._decide = partial(calls.exchange.decide, self._call.caller, streamed=self._streamed)
        self._settled = partial(awaited, calls.exchange, receive=self._call.request.receive, report=report)

    async def result(self) -> Result:
        exchange, caller, arguments = self._exchange, self._call.caller, self._params.arguments or {}
        if self._params.request_state is not None:
            # the call again, with the user's answers; its state names what the caller may name anyway
            request_id, _, approval_id = self._params.request_state.partition("/")
            view = await self._own(request_id)
            if approval_id not in view.record.approvals:
                raise NotFound("`requestState` names no pause of this request.").with_ids(**view.record.ids)
            pause = await exchange.catalog.approval(view.partition, view.record.request_id, approval_id)
            answers, asked = self._params.input_responses or {}, documents.questions(pause, self._elicits)
            actions = {getattr(answers.get(name), "action", None) for name in asked}
            if not answers or actions in ({None}, {None, "accept"}):  # the user is asked again
                return await self._concluded(await self._settled(view))
            return await self._answered(pause, documents.command(pause, answers))
        if self._params.name == tools.DECIDE:
            request_id, command = tools.decided(arguments)
            view = await self._own(request_id)
            return await self._waited(self._decide(view.record.request_id, command))
        message, key = tools.message(caller, arguments)
        return await self._waited(requests.submitted(exchange, caller, message, key, streamed=self._streamed))

    async def _answered(self, pause: Approval, command: Command | None) -> Result:
        """The request after the user's decision; without one as it is, unless it was decided elsewhere."""
        if command is not None:
            return await self._waited(self._decide(pause.request_id, command))
        view = await self._own(pause.request_id)
        if view.record.pause is not None and view.record.pause.approval_id == pause.approval_id:
            return documents.of_request(view.record)
        return await self._concluded(await self._settled(replace(view, after=pause.event_id)))

    async def _waited(self, beginning: Coroutine[Any, Any, RequestView]) -> Result:
        """What comes of the request that this call begins; canceled where the host gives the call up."""
        with self._calls.begun(beginning, self._name) as sent:
            view = await self._settled(await asyncio.shield(sent))
        return await self._concluded(view)

    async def _concluded(self, view: RequestView) -> Result:
        """The request at its end, or in a pause that this call cannot get decided."""
        pause = view.record.pause
        asked = documents.questions(pause, self._elicits) if pause else {}
        if pause is None or not asked:
            return documents.of_request(view.record)
        if self._modern:
            state = f"{pause.request_id}/{pause.approval_id}"
            return types.InputRequiredResult(input_requests={**asked}, request_state=state)
        waited = await self._calls.unless_given_up(self._ask(view, pause, asked), self._name)
        return waited or documents.of_request((await self._own(pause.request_id)).record)

    async def _ask(self, view: RequestView, pause: Approval, asked: dict[str, types.ElicitRequest]) -> Result:
        """The request after the user was asked in the call, or the pause has ended before."""
        asking = self._elicited(pause, asked)
        return await self._answered(pause, await unless_decided(self._exchange, view, pause, asking))

    async def _elicited(self, pause: Approval, asked: dict[str, types.ElicitRequest]) -> Command | None:
        """What the user decides while the call waits; None where they don't, and the pause stays."""
        answers = dict[str, types.ElicitResult]()
        try:
            for name, request in asked.items():
                response = await questions.ask(self._exchange, pause, request, self._say)
                answers[name] = types.ElicitResult.model_validate(response.get("result"), by_name=False)
                if answers[name].action != "accept":
                    break
            return documents.command(pause, answers)
        except (InvalidRequest, ValidationError):  # the host could not ask, or its answer decides nothing
            return None
