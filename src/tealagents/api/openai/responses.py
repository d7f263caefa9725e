"""The routes of Responses: create, read, stream, cancel, delete."""

from collections.abc import AsyncIterator, Mapping, Sequence

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tealagents.api.exchange import Exchange, RequestView
from tealagents.api.http import json_response
from tealagents.api.openai import documents, errors, inputs, names, sending, stretches
from tealagents.api.openai.fold import Fold
from tealagents.api.openai.parameters import flag, number, page
from tealagents.api.openai.stretches import Stretch
from tealagents.domain.errors import AlreadyExists, InvalidRequest, NotFound
from tealagents.domain.events import Recorded
from tealagents.state import keys


class Responses:
    """Responses over one exchange."""

    def __init__(self, exchange: Exchange, path: str) -> None:
        self._exchange = exchange
        self._path = f"{path}/responses"

    def routes(self) -> list[Route]:
        one = self._path + "/{response_id}"
        return [
            Route(self._path, self.create, methods=["POST"]),
            Route(one, self.retrieve, methods=["GET"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(one + "/cancel", self.cancel, methods=["POST"]),
            Route(one + "/input_items", self.input_items, methods=["GET"]),
        ]

    # --- creating --------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        exchange = self._exchange
        caller = await exchange.identify(request)
        value = await exchange.body(request)
        body = inputs.create(value)
        given = inputs.read(body.input)
        way = sending.Way(streamed=bool(body.stream or body.background), key=sending.key(request, value))
        begun = await sending.send(exchange, caller, body, given, way)
        view, stretch = begun.view, await stretches.cut(exchange, begun.view, begun.number)
        if body.stream:
            return self._stream(stretch, after=-1, forgotten=begun if begun.unstored else None)
        headers = answer_headers(stretch)
        if body.background and not view.replayed:
            return json_response(await stretches.document(exchange, stretch), headers=headers)
        record = await exchange.outcome(view, request.receive)
        answer = await self._answer(replace(view, record=record), stretch.number, headers)
        if begun.unstored:
            await sending.forget(exchange, begun)
        return answer

    async def _answer(self, view: RequestView, number: int, headers: Mapping[str, str]) -> Response:
        """The response of a stretch that is over."""
        stretch = await stretches.cut(self._exchange, view, number)
        if stretch.status == "failed" and view.record.error is not None:
            return errors.respond_failure(view.record.error, headers)
        return json_response(await stretches.document(self._exchange, stretch), headers=headers)

    def _stream(self, stretch: Stretch, *, after: int, forgotten: sending.Begun | None = None) -> Response:
        exchange = self._exchange
        fold = Fold(stretch.about(exchange), after=after)
        events = stretches.recorded(exchange, stretch)
        return exchange.stream(
            stretch.view,
            fold,
            fold.failed,
            events=events if forgotten is None else self._then_forgotten(events, forgotten),
            headers=answer_headers(stretch),
        )

    async def _then_forgotten(
        self, events: AsyncIterator[Sequence[Recorded]], begun: sending.Begun
    ) -> AsyncIterator[Sequence[Recorded]]:
        try:
            async for batch in events:
                yield batch
        finally:
            self._exchange.in_background(sending.forget(self._exchange, begun))

    # --- reading ---------------------------------------------------------------------------------

    async def retrieve(self, request: Request) -> Response:
        stretch = await self._found(request)
        if not flag(request, "stream"):
            return json_response(await stretches.document(self._exchange, stretch))
        after = number(request, "starting_after", lowest=0)
        try:
            self._exchange.replay(stretch.view, after=0)
        except NotFound:
            raise InvalidRequest(
                "stream",
                "is no longer possible: events are kept for 24 hours after the end. Retrieve it as JSON",
            ) from None
        return self._stream(stretch, after=-1 if after is None else after)

    async def input_items(self, request: Request) -> Response:
        query = page(request)
        items = await stretches.inputs(self._exchange, await self._found(request))
        return json_response(documents.page(items, query))

    async def _found(self, request: Request) -> Stretch:
        caller = await self._exchange.identify(request)
        return await stretches.find(self._exchange, caller, request.path_params["response_id"])

    # --- ending ----------------------------------------------------------------------------------

    async def cancel(self, request: Request) -> Response:
        exchange = self._exchange
        caller = await exchange.identify(request)
        stretch = await stretches.find(exchange, caller, request.path_params["response_id"])
        record = stretch.record
        if stretch.status in ("queued", "in_progress") or (
            stretch.pause and stretch.pause.status == "pending"
        ):
            record = await exchange.cancel(caller, record.request_id)
        view = replace(stretch.view, record=record)
        ended = await stretches.cut(exchange, view, stretch.number)
        return json_response(await stretches.document(exchange, ended))

    async def delete(self, request: Request) -> Response:
        """Erases the conversation of a response that is its only one."""
        exchange = self._exchange
        caller = await exchange.identify(request)
        identifier = request.path_params["response_id"]
        stretch = await stretches.find(exchange, caller, identifier)
        view = stretch.view
        task_id = view.record.task_id
        partition = await exchange.locate(caller, keys.task, task_id)
        head = (await exchange.tasks.head(partition, task_id)).value
        if head.tail_seq > view.record.last_seq > 0 or view.record.first_seq > 1:
            raise AlreadyExists(
                f"{identifier} is part of {names.conversation(task_id)}, which holds other responses. Delete "
                "the conversation to erase them all."
            )
        await exchange.eraser.delete_task(partition, task_id)
        return json_response(documents.deleted(identifier, "response"))


def answer_headers(stretch: Stretch) -> dict[str, str]:
    """What the SDKs show as a response's request id; and whether it is an earlier outcome."""
    headers = {"x-request-id": stretch.record.request_id}
    if stretch.view.replayed:
        headers["idempotent-replayed"] = "true"
    return headers
