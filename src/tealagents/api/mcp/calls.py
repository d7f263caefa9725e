"""Carries a call out: its progress, its pauses, and its end where the host gives it up."""

import asyncio
from typing import Any, assert_never

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from tealagents.api import gate, requests
from tealagents.api.exchange import Exchange, RequestView
from tealagents.api.mcp import documents, tools
from tealagents.domain.errors import InvalidRequest, TealError
from tealagents.domain.events import Event, Started, Terminal, TextDelta, ToolCalled, ToolReturned
from tealagents.domain.models import Approval, Json
from tealagents.engine.approvals import Command

Context = ServerRequestContext[Any, Request]
#: what comes within this time is one notification: a host is not to be flooded with progress
GATHER_SECONDS = 0.05
#: a `CallToolResult`, or what the user is to be asked before there is one
Result = Json | types.InputRequiredResult


async def answer(exchange: Exchange, context: Context, params: types.CallToolRequestParams) -> Result:
    """Answers a call. What is refused and what fails are results, which the host's model can read."""
    if params.name not in (tools.ASK, tools.DECIDE):
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
    try:
        return await _Call(exchange, context, params).result()
    except TealError as error:
        exchange.refused(error)
        return documents.of_error(error)


class _Call:
    """One call of a tool."""

    def __init__(self, exchange: Exchange, context: Context, params: types.CallToolRequestParams) -> None:
        assert context.request is not None
        self._exchange, self._context, self._params = exchange, context, params
        self._call: gate.AdmittedCall = context.request.scope[gate.SCOPE]
        self._streamed = bool(context.meta and context.meta.get("progress_token") is not None)

    async def result(self) -> Result:
        exchange, user, arguments = self._exchange, self._call.user, self._params.arguments or {}
        if self._params.request_state is not None:
            # the call again, with the user's answers; its state names what the caller may name anyway
            request_id, _, approval_id = self._params.request_state.partition("/")
            view = await requests.own(exchange, user, request_id)
            pause = await requests.pause(exchange, view, approval_id)
            if not (answers := self._params.input_responses):  # the user is asked again
                return await self._concluded(view)
            return await self._answered(view, documents.command(pause, answers))
        if self._params.name == tools.DECIDE:
            request_id, command = tools.decided(arguments)
            return await self._answered(await requests.own(exchange, user, request_id), command)
        message, key = tools.message(arguments)
        sending = requests.submitted(exchange, user, message, key, streamed=self._streamed)
        return await self._concluded(await requests.begun(exchange, sending))

    async def _answered(self, view: RequestView, command: Command | None) -> Result:
        """The request after a decision; as it stands where the user has not decided."""
        if command is None:
            return documents.of_request(view.record)
        user, name = self._call.user, view.record.request_id
        deciding = self._exchange.decide(user, name, command, streamed=self._streamed)
        return await self._concluded(await requests.begun(self._exchange, deciding))

    async def _concluded(self, view: RequestView) -> Result:
        """The request at its end, or in a pause that this call cannot get decided."""
        view = await self._settled(view)
        pause = view.record.pause
        asked = documents.questions(pause, self._context.session.client_capabilities) if pause else {}
        if pause is None or not asked:
            return documents.of_request(view.record)
        if self._context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            state = f"{pause.request_id}/{pause.approval_id}"
            return types.InputRequiredResult(input_requests={**asked}, request_state=state)
        return await self._answered(view, await self._elicited(pause, asked))

    async def _settled(self, view: RequestView) -> RequestView:
        """The request as it ended or paused; canceled where the host gives the call up."""
        with requests.canceled_with(self._exchange, view):
            settled = requests.settled(self._exchange, view, self._call.request.receive)
            if not self._streamed:
                return await settled
            ended = asyncio.ensure_future(settled)
            _, fault = await asyncio.gather(ended, self._report(view, ended), return_exceptions=True)
            if fault is None or isinstance(fault, TealError):  # what cannot be followed has its end
                return await ended
            raise fault

    async def _report(self, view: RequestView, ended: "asyncio.Future[RequestView]") -> None:
        """Progress, for a host that asks for it: the text as it comes, and the tools as they run."""
        async for batch in self._exchange.follow(view):
            if text := "".join(_progress(each.event) for each in batch):
                await self._context.session.report_progress(batch[-1].id, None, text)
                await asyncio.wait([ended], timeout=GATHER_SECONDS)

    async def _elicited(self, pause: Approval, asked: dict[str, types.ElicitRequest]) -> Command | None:
        """What the user decides while the call waits; None where they don't, and the pause stays."""
        answers: dict[str, types.ElicitResult] = {}
        left = (pause.expires_at - self._exchange.tasks.records.clock.now()).total_seconds()
        about = ServerMessageMetadata(related_request_id=self._context.request_id)
        try:
            for name, request in asked.items():
                answers[name] = await self._context.session.send_request(
                    request, types.ElicitResult, request_read_timeout_seconds=max(1.0, left), metadata=about
                )
                if answers[name].action != "accept":
                    break
            return documents.command(pause, answers)
        except (MCPError, InvalidRequest):  # the host could not ask, or its answer decides nothing
            return None


def _progress(event: Event) -> str:
    if isinstance(event, TextDelta):  # most are
        return event.text
    if isinstance(event, ToolCalled):
        return f"\n[calling {event.call.tool}]\n"
    if isinstance(event, ToolReturned):
        return f"\n[{event.tool} {'failed' if event.is_error else 'returned'}]\n"
    if isinstance(event, Started | Terminal):
        return ""
    assert_never(event)
