"""The routes of Conversations: tasks, and what was said and done in them as items."""

from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tealagents.api import bodies
from tealagents.api.exchange import Exchange, RequestView
from tealagents.api.http import json_response
from tealagents.api.openai import documents, inputs, names, sending, stretches
from tealagents.api.openai.parameters import page
from tealagents.domain.models import Caller, Head, Json
from tealagents.state.history import Round


class Conversations:
    """Conversations over one exchange."""

    def __init__(self, exchange: Exchange, path: str) -> None:
        self._exchange = exchange
        self._path = f"{path}/conversations"

    def routes(self) -> list[Route]:
        one = self._path + "/{conversation_id}"
        return [
            Route(self._path, self.create, methods=["POST"]),
            Route(one, self.retrieve, methods=["GET"]),
            Route(one, self.update, methods=["POST"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(one + "/items", self.list_items, methods=["GET"]),
            Route(one + "/items", self.add_items, methods=["POST"]),
            Route(one + "/items/{item_id}", self.retrieve_item, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response:
        caller = await self._exchange.identify(request)
        body = bodies.validated(inputs.NewConversation, await self._exchange.body(request, empty={}))
        said = inputs.messages(body.items or [])
        head = await self._exchange.open(caller, dict(body.metadata or {}), said)
        return json_response(documents.conversation(head))

    async def retrieve(self, request: Request) -> Response:
        _, _, head = await self._found(request)
        return json_response(documents.conversation(head))

    async def update(self, request: Request) -> Response:
        caller, partition, head = await self._found(request)
        body = bodies.validated(inputs.ChangedConversation, await self._exchange.body(request))
        given = dict(body.metadata or {})
        patch: Json = {**dict.fromkeys(head.metadata), **given}
        head = await self._exchange.changes.patch(partition, head.task_id, caller.user, metadata=patch)
        return json_response(documents.conversation(head))

    async def delete(self, request: Request) -> Response:
        _, partition, head = await self._found(request)
        await self._exchange.eraser.delete_task(partition, head.task_id)
        return json_response(documents.deleted(names.conversation(head.task_id), "conversation.deleted"))

    async def _found(self, request: Request) -> tuple[Caller, str, Head]:
        """Who asks, and the conversation that the path names."""
        exchange = self._exchange
        caller = await exchange.identify(request)
        task_id, partition = await sending.task_of(exchange, caller, request.path_params["conversation_id"])
        return caller, partition, (await exchange.tasks.head(partition, task_id)).value

    # --- items -----------------------------------------------------------------------------------

    async def list_items(self, request: Request) -> Response:
        query = page(request)
        return json_response(documents.page(await self._items(*await self._found(request)), query))

    async def retrieve_item(self, request: Request) -> Response:
        wanted = request.path_params["item_id"]
        for item in await self._items(*await self._found(request)):
            if item["id"] == wanted:
                return json_response(item)
        raise names.unknown("item", wanted)

    async def add_items(self, request: Request) -> Response:
        caller, partition, head = await self._found(request)
        body = bodies.validated(inputs.MoreItems, await self._exchange.body(request))
        said = inputs.messages(body.items)
        head = await self._exchange.changes.add(partition, head.task_id, caller.user, said)
        items = await self._items(caller, partition, head)
        return json_response(documents.listed(items[len(items) - len(said) :]))

    async def _items(self, caller: Caller, partition: str, head: Head) -> list[Json]:
        """What a conversation holds: on its current path, and what runs or waits."""
        exchange, found = self._exchange, list[list[Json]]()
        async with aclosing(exchange.history.rounds(partition, head.task_id, head.path)) as rounds:
            async for each in rounds:
                said = _spoken(each)
                found.append(said or await self._of_request(caller, partition, each.request_id))
        items = [item for group in reversed(found) for item in group]
        occupant = head.running or head.pending
        return items + (await self._of_request(caller, partition, occupant.request_id) if occupant else [])

    async def _of_request(self, caller: Caller, partition: str, request_id: str) -> list[Json]:
        """The input and the output of all responses of a request."""
        record = (await self._exchange.tasks.request(partition, request_id)).value
        view = RequestView(record=record, partition=partition, caller=caller, own=True)
        last = await stretches.cut(self._exchange, view)
        items: list[Json] = []
        for number in range(1, last.number + 1):
            stretch = await stretches.cut(self._exchange, view, number)
            items += await stretches.inputs(self._exchange, stretch)
            items += (await stretches.document(self._exchange, stretch))["output"]
        return items


def _spoken(of: Round) -> list[Json] | None:
    """The items of a request that only spoke; None where tools were called."""
    if any(message.tool_calls or message.role == "tool" for message in of.messages):
        return None
    if [message.role for message in of.messages] != ["user", "assistant"]:
        return [documents.user_message(message) for message in of.messages]
    question, reply = of.messages
    answer = documents.message(names.item("msg", of.request_id, 1, 0), "completed")
    answer["content"].append(documents.text_part(reply.text, refusal=False))
    return [documents.user_message(question), *([answer] if reply.text else [])]
