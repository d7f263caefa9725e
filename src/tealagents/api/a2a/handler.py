"""A2A's operations over the exchange."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE as A2A_JSON
from a2a.utils.task import validate_history_length, validate_page_size
from google.protobuf.json_format import ParseDict
from starlette.responses import Response

from tealagents.api import bodies, decisions, requests, task_names
from tealagents.api.a2a import documents
from tealagents.api.a2a.fold import Updates, envelope
from tealagents.api.exchange import Exchange, RequestView, key_of
from tealagents.api.gate import AdmittedCall, Replied
from tealagents.api.items import is_text
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import ENDED, Json, RequestRecord
from tealagents.state.new_message import NewMessage


def _answers(work: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """An operation as the SDK calls it; what it answers goes to the SDK, or was left with the call."""

    async def operation(self: "Handler", params: Any, context: ServerCallContext) -> Any:
        call: AdmittedCall = context.state["call"]
        with call.refusing(own=errors.A2AError):
            if "id" in params.DESCRIPTOR.fields_by_name and not params.id:  # the SDK would look into data
                raise InvalidRequest("id", "is required")
            if (answer := await work(self, params, call)) is not None:
                return answer
        raise Replied

    return operation


class Handler(RequestHandler):
    """Answers the calls that the SDK's dispatchers have read."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @_answers
    async def on_message_send(self, params: pb.SendMessageRequest, call: AdmittedCall) -> None:
        view = await self._begin(params, call, streamed=params.configuration.return_immediately)
        if not params.configuration.return_immediately:
            view = await requests.settled(self._exchange, view, call.request.receive)
        found = envelope(call)({"task": await self._document(view, params.configuration)})
        call.response = Response(found, media_type="application/json" if call.is_rpc else A2A_JSON)

    async def on_message_send_stream(self, params: Any, context: ServerCallContext) -> AsyncGenerator[Any]:
        yield await self._stream(params, context)

    on_subscribe_to_task = on_message_send_stream

    @_answers
    async def _stream(self, params: Any, call: AdmittedCall) -> None:
        """Streams the updates behind the task, which has the user's message unless `historyLength` is 0."""
        if isinstance(params, pb.SendMessageRequest):
            view, events = await self._begin(params, call, streamed=True), None
            limits = params.configuration
            shown = bool(limits.history_length) or not limits.HasField("history_length")
        else:
            view, shown = await requests.own(self._exchange, call.caller, params.id), True
            if view.record.status in ENDED:
                raise errors.UnsupportedOperationError("The task has ended. Read it by its id.")
            events = requests.to_the_end(self._exchange, view)
        said = await requests.user_message(self._exchange, view.partition, view.record) if shown else None
        call.response = self._exchange.stream(view, Updates(view.record, call, said), events=events)

    @bodies.fields_as(items="message.parts", body="message.parts", metadata="message.metadata")
    async def _begin(self, params: pb.SendMessageRequest, call: AdmittedCall, streamed: bool) -> RequestView:
        """Stores a message, or carries out the decision that it is. An empty field of it is absent."""
        validate_history_length(params.configuration)
        message = params.message
        for field, value in (("messageId", message.message_id), ("parts", message.parts)):
            if not value:
                raise InvalidRequest(f"message.{field}", "is required")
        sent: Json = call.params["message"]  # as exactly as it came: to protobuf every number is a float
        for part, given in zip(message.parts, sent["parts"], strict=True):
            if part.HasField("data") and given["data"] is None:  # which hides what stands beside it
                ParseDict({k: v for k, v in given.items() if v is not None}, part, ignore_unknown_fields=True)
        if message.role != pb.Role.ROLE_USER:
            raise InvalidRequest("message.role", "must be the user's")
        if params.configuration.HasField("task_push_notification_config"):
            raise errors.PushNotificationNotSupportedError
        if message.task_id:
            return await self._decide(message, sent, call, streamed=streamed)
        new = NewMessage(items=documents.items(message, sent), metadata=sent.get("metadata") or {})
        key = key_of(call.caller, f"a2a\n{message.message_id}", {k: v for k, v in sent.items() if v})
        where: Json = {"name": message.context_id, "field": "message.contextId"}
        return await task_names.sent_to(self._exchange, call.caller, new, key, **where, streamed=streamed)

    async def _decide(self, message: pb.Message, sent: Json, call: AdmittedCall, **how: bool) -> RequestView:
        """Carries out what a message to a task decides. Text does not: a model may have written it."""
        record = (await requests.own(self._exchange, call.caller, message.task_id)).record
        if message.context_id.lower() not in ("", record.task_id):
            raise InvalidRequest("message.contextId", "is not the context of this task")
        texts = (p.HasField("text") or (p.HasField("raw") and is_text(p.media_type)) for p in message.parts)
        said = () if any(texts) else documents.items(message, sent)
        if (command := decisions.of_message(said, record, "message.parts")) is None:
            raise errors.UnsupportedOperationError("It takes no messages. Send its contextId without taskId.")
        return await self._exchange.decide(call.caller, record.request_id, command, **how)

    @_answers
    async def on_get_task(self, params: pb.GetTaskRequest, call: AdmittedCall) -> pb.Task:
        view = await requests.own(self._exchange, call.caller, params.id)
        return ParseDict(await self._document(view, params, default=None), pb.Task())

    @_answers
    async def on_list_tasks(self, params: pb.ListTasksRequest, call: AdmittedCall) -> pb.ListTasksResponse:
        validate_history_length(params)
        validate_page_size(size := params.page_size if params.HasField("page_size") else 50)
        unset = str(call.query.get("status") or 0) in ("0", "TASK_STATE_UNSPECIFIED", "UNRECOGNIZED")
        if not (params.status or unset) or params.status not in pb.TaskState.values():
            raise InvalidRequest("status", "is not a state of a task")
        since = params.status_timestamp_after.ToMicroseconds() / 1e6

        def wanted(record: RequestRecord) -> bool:
            sent = params.context_id.lower() in ("", record.task_id) and not record.resent  # no history
            state = params.status and pb.TaskState.Value(documents.task(record)["status"]["state"])
            return sent and state == params.status and record.changed_at.timestamp() >= since

        shown = partial(self._document, limits=params)
        page = await requests.page(self._exchange, call.caller, wanted, shown, params.page_token, size)
        tasks, token, total = [ParseDict(each, pb.Task()) for each in page[0]], *page[1:]
        return pb.ListTasksResponse(tasks=tasks, next_page_token=token, page_size=size, total_size=total)

    @_answers
    async def on_cancel_task(self, params: pb.CancelTaskRequest, call: AdmittedCall) -> pb.Task:
        record = (await requests.own(self._exchange, call.caller, params.id)).record
        if record.status not in ENDED:
            record = await self._exchange.cancel(call.caller, record.request_id)
            if record.status == "Canceled":
                return ParseDict(documents.task(record), pb.Task())
        raise errors.TaskNotCancelableError("The task has ended.")

    async def _document(self, view: RequestView, limits: Any, *, default: int | None = 0) -> Json:
        """A task with as many of its last messages as were asked for, else `default` (None: all)."""
        validate_history_length(limits)
        most = limits.history_length if limits.HasField("history_length") else default
        return documents.task(view.record, await requests.messages(self._exchange, view, most))

    async def on_get_extended_agent_card(self, params: Any, context: ServerCallContext) -> NoReturn:
        context.state["call"].refused = None
        raise errors.UnsupportedOperationError("There is no extended agent card.")

    async def _no_push(self, params: Any, context: ServerCallContext) -> NoReturn:
        context.state["call"].refused = None
        raise errors.PushNotificationNotSupportedError("None are sent. Subscribe to the task.")

    on_create_task_push_notification_config = on_get_task_push_notification_config = _no_push
    on_list_task_push_notification_configs = on_delete_task_push_notification_config = _no_push
