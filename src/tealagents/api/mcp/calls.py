"""Carries a call out: its progress, its pauses, and its end where the host gives it up."""

import asyncio
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from tealagents.api import gate, requests
from tealagents.api.decisions import decision
from tealagents.api.exchange import Exchange, RequestView
from tealagents.api.mcp import documents, pauses, tools
from tealagents.domain.errors import InvalidRequest, RequestInProgress, TealError
from tealagents.domain.events import Event, TextDelta, ToolCalled, ToolReturned
from tealagents.domain.models import Approval, Json
from tealagents.engine.approvals import Command

Context = ServerRequestContext[Any, Request]
Result = types.CallToolResult | types.InputRequiredResult


class Calls:
    """The agent's tools, as the SDK's server calls them."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._tools = tools.listed(exchange.agent.name, exchange.settings.description)
        #: name of a tool → of its arguments
        self.schemas = {tool.name: tool.input_schema for tool in self._tools}

    async def listed(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self._tools)

    async def call(self, context: Context, params: types.CallToolRequestParams) -> Result:
        """Answers a call. What is refused and what fails are results, which the host's model can read."""
        if params.name not in self.schemas:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
        try:
            return await _Call(self._exchange, context, params).result()
        except TealError as error:
            self._exchange.refused(error)
            return documents.of_error(error)


class _Call:
    """One call of a tool."""

    def __init__(self, exchange: Exchange, context: Context, params: types.CallToolRequestParams) -> None:
        assert context.request is not None
        self._exchange = exchange
        self._context = context
        self._params = params
        self._request = context.request
        self._caller = self._request.scope[gate.SCOPE].user
        #: whether the host is told of progress
        self._streamed = bool(context.meta and context.meta.get("progress_token") is not None)

    async def result(self) -> Result:
        if self._params.request_state is not None:
            return await self._answered(self._params.request_state)
        arguments = self._params.arguments or {}
        return await self._concluded(await self._sent(arguments))

    async def _sent(self, arguments: Json) -> RequestView:
        if self._params.name == tools.DECIDE:
            request_id = arguments.get("request_id")
            if not isinstance(request_id, str):
                raise InvalidRequest("request_id", "is required, and must be a string")
            rest = {name: value for name, value in arguments.items() if name != "request_id"}
            return await self._decided(request_id, decision(rest))
        message, key = tools.message(arguments)
        try:
            return await self._exchange.submit(self._caller, message, key, streamed=self._streamed)
        except RequestInProgress as error:
            return await requests.own(self._exchange, self._caller, error.ids["request_id"])

    async def _answered(self, state: str) -> Result:
        """The call again, with the user's answers; where they decide nothing, it stays paused.

        The state names a request of the caller's and one of its pauses: a forged one grants nothing.
        """
        request_id, _, approval_id = state.partition("/")
        view = await requests.own(self._exchange, self._caller, request_id)
        pause = await requests.pause(self._exchange, view, approval_id)
        command = pauses.command(pause, self._params.input_responses or {})
        if command is None:
            return documents.of_request(view.record)
        return await self._concluded(await self._decided(request_id, command))

    async def _decided(self, request_id: str, command: Command) -> RequestView:
        view = await requests.own(self._exchange, self._caller, request_id)
        name = view.record.request_id
        return await self._exchange.decide(self._caller, name, command, streamed=self._streamed)

    async def _concluded(self, view: RequestView) -> Result:
        """The request at its end, or in a pause that this call cannot get decided."""
        while True:
            view = await self._settled(view)
            pause = view.record.pause
            asked = pauses.questions(pause, self._context.session.client_capabilities) if pause else {}
            if pause is None or not asked:
                return documents.of_request(view.record)
            if self._context.protocol_version in MODERN_PROTOCOL_VERSIONS:
                state = f"{pause.request_id}/{pause.approval_id}"
                return types.InputRequiredResult(input_requests={**asked}, request_state=state)
            command = await self._elicited(pause, asked)
            if command is None:
                return documents.of_request(view.record)
            view = await self._decided(pause.request_id, command)

    async def _settled(self, view: RequestView) -> RequestView:
        """The request as it ended or paused; canceled where the host gives the call up."""
        try:
            settled = requests.settled(self._exchange, view, self._request.receive)
            return (await asyncio.gather(settled, self._report(view)))[0]
        except asyncio.CancelledError:
            if view.sender and not self._exchange.service.admission.draining:
                canceling = self._exchange.cancel(self._caller, view.record.request_id)
                self._exchange.in_background(canceling)
            raise

    async def _report(self, view: RequestView) -> None:
        """Progress, for a host that asks for it: the text as it comes, and the tools as they run."""
        if not self._streamed:
            return
        async for batch in self._exchange.follow(view):
            if text := "".join(_told(each.event) for each in batch):
                await self._context.session.report_progress(batch[-1].id, None, text)

    async def _elicited(self, pause: Approval, asked: dict[str, types.ElicitRequest]) -> Command | None:
        """What the user decides while the call waits; None where they don't, and the pause stays."""
        answers: dict[str, types.ElicitResult] = {}
        left = pause.expires_at - self._exchange.tasks.records.clock.now()
        try:
            for name, request in asked.items():
                answers[name] = await self._context.session.send_request(
                    request,
                    types.ElicitResult,
                    request_read_timeout_seconds=max(1.0, left.total_seconds()),
                    metadata=ServerMessageMetadata(related_request_id=self._context.request_id),
                )
                if answers[name].action != "accept":
                    break
        except MCPError:  # the host could not ask
            return None
        return pauses.command(pause, answers)


def _told(event: Event) -> str:
    match event:
        case TextDelta(text):
            return text
        case ToolCalled(call):
            return f"\n[calling {call.tool}]\n"
        case ToolReturned():
            return f"\n[{event.tool} {'failed' if event.is_error else 'returned'}]\n"
    return ""
