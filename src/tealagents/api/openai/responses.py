"""Responses: created, read, streamed, cancelled, deleted. A response is a stretch of a request.

`resp_{request}_{n}` is the part of a request from its (n-1)th decision on, `msg_{request}_{n}_{i}`, `mcp_…`
the ith item of its output, `conv_{task}` a conversation; `mcpr_{approval}_{i}`, `fc_…` and `call_…` the
ith call of a pause, which waits for approval or is the client's to make.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import bodies, items, names, query, replay, requests, sending, setups, stretches, unstored
from tealagents.api.exchange import Exchange, key_in
from tealagents.api.http import json_response
from tealagents.api.openai import documents, errors, inputs
from tealagents.api.openai.fold import UNSEEN, ResponseFold
from tealagents.api.openai.inputs import CreateResponse
from tealagents.api.resent import Resent
from tealagents.api.stretches import Stretch
from tealagents.domain.models import Caller, Head, Json
from tealagents.state.history import Round
from tealagents.state.new_message import MOST_EARLIER, Key, NewMessage


@bodies.fields_as(items="input", earlier="input")
async def create(exchange: Exchange, caller: Caller, request: Request) -> Response:
    value = await exchange.body(request)
    body, key = inputs.create(value), key_in(caller, request, value)
    if isinstance(body.input, list) and not await requests.is_repeated(exchange, caller, key):
        earlier, last = body.input[:-MOST_EARLIER], body.input[-MOST_EARLIER:]
        known = await _referred(exchange, caller, list(map(items.referred, last)))
        body.input = [*earlier, *items.resolved(last, known)]
    stretch = await send(exchange, caller, key, body, inputs.read(body.input))
    headers = headers_of(stretch)
    if body.stream:
        fold = ResponseFold(stretch, exchange.agent.name)
        return replay.stream(exchange, stretch, fold, headers, forgets=True)
    if body.background:
        return json_response(await document(exchange, stretch), headers=headers)
    async with stretches.settled(exchange, stretch, request.receive) as stretch:
        if stretch.failure is not None:
            return errors.respond_failure(stretch.failure, headers)
        return json_response(await document(exchange, stretch), headers=headers)


async def _referred(exchange: Exchange, caller: Caller, wanted: list[str]) -> dict[str, Any]:
    """The items of responses that are referred to, each by its id. `NotFound`; `TooLarge` for long ones."""
    found, size = dict[str, Any](), 0
    said = {each: f"resp{each[3:]}".rpartition("_")[0] for each in wanted if names.is_of_answer(each)}
    for of, name in {of: name for name, of in said.items()}.items():
        with names.unknown_as("item", name):
            output = (await document(exchange, stretch := await find(exchange, caller, of)))["output"]
        found |= (named := {each["id"]: each for each in output if each["id"] in wanted})
        exchange.check_size(size := size + len(repr(named)))
        missing = next((each for each in said if said[each] == of and each not in named), None)
        if missing and not stretch.record.imported_pauses:  # else its items have got other numbers
            raise names.unknown("item", missing)
    for name in (each for each in wanted if each[:3] == "fc_" and each not in found):
        pause, n = await requests.find_call(exchange, caller, "item", name, "fc")
        found[name] = documents.waiting(pause, n, exchange.agent.name)
    return found


async def send(
    exchange: Exchange, caller: Caller, key: Key | None, body: CreateResponse, given: Resent
) -> Stretch:
    """Stores what was sent and begins to answer it."""
    streamed, tools = bool(body.stream or body.background), body.tools
    behind: sending.Continued = None
    if body.previous_response_id is not None and not await requests.is_repeated(exchange, caller, key):
        behind = await find(exchange, caller, body.previous_response_id)
    elif body.conversation is not None:
        behind = await conversation(exchange, caller, body.conversation)
    instructions, shape = (body.instructions, given.instructions), (body.text or {}).get("format")
    message = NewMessage(
        items=given.items,
        setup=setups.setup(instructions, (tools or {}).values(), shape, body.tool_choice),
        metadata=dict(body.metadata or {}),
        client={name: each for name in inputs.KEPT if (each := getattr(body, name)) is not None},
        expires_at=unstored.until(exchange) if body.store is False else None,
    )
    return await sending.send(
        exchange, caller, given, message, key, behind, declared=tools, shaped=bool(shape), streamed=streamed
    )


async def find(exchange: Exchange, caller: Caller, name: str) -> Stretch:
    """The response with this id. `NotFound`, also where it is another user's."""
    with names.unknown_as("response", name):
        request_id, number = names.read("response", name, "resp")
        return await stretches.cut(exchange, await requests.own(exchange, caller, request_id), number)


async def conversation(exchange: Exchange, caller: Caller, name: str) -> tuple[str, Head]:
    """A conversation that the caller may change, and its partition. `NotFound`, also for another user's."""
    with names.unknown_as("conversation", name):
        task_id, _ = names.read("conversation", name, "conv", numbered=False)
        return await exchange.task(caller, task_id)


async def retrieve(exchange: Exchange, caller: Caller, request: Request, response_id: str) -> Response:
    stretch = await find(exchange, caller, response_id)
    if not query.flag(request, "stream"):
        return json_response(await document(exchange, stretch), headers=headers_of(stretch))
    after = query.number(request, "starting_after", -1, lowest=0, highest=UNSEEN)
    replay.check_kept(exchange, stretch, "stream")
    fold = ResponseFold(stretch, exchange.agent.name, after=after)
    return replay.stream(exchange, stretch, fold, headers_of(stretch))


async def input_items(exchange: Exchange, caller: Caller, request: Request, response_id: str) -> Response:
    stretch = await find(exchange, caller, response_id)
    resent = await stretches.resent_before(exchange, stretch)
    said = [*await items_of(exchange, resent), *await inputs_of(exchange, stretch)]
    return json_response(await documents.page(query.backwards(said), request))


async def cancel(exchange: Exchange, caller: Caller, request: Request, response_id: str) -> Response:
    stretch = await stretches.canceled(exchange, await find(exchange, caller, response_id))
    answer = json_response(await document(exchange, stretch), headers=headers_of(stretch))
    if stretch.pause is not None and stretch.record.is_unstored and stretch.status == "Canceled":
        await unstored.forget(exchange, stretch.view)  # what was running is erased where it is waited for
    return answer


async def delete(exchange: Exchange, caller: Caller, request: Request, response_id: str) -> Response:
    """Erases the conversation of a response that is its only one."""
    stretch = await find(exchange, caller, response_id)
    await stretches.deleted(exchange, stretch, names.made("conv", stretch.record.task_id))
    return json_response(documents.deleted(response_id, "response"))


def headers_of(stretch: Stretch) -> dict[str, str]:
    """What the SDKs show as a response's request id; and whether it is an earlier outcome."""
    replayed = {"idempotent-replayed": "true"} if stretch.view.replayed else {}
    return {"x-request-id": stretch.record.request_id, **replayed}


async def document(exchange: Exchange, stretch: Stretch) -> Json:
    """The response as it stands, made from the history."""
    fold = ResponseFold(stretch, exchange.agent.name, after=UNSEEN)
    return (await replay.folded(exchange, stretch, fold)).response


async def inputs_of(exchange: Exchange, stretch: Stretch) -> list[Json]:
    """What a response was made upon: a message, or what was decided of a pause."""
    if (before := stretch.before) is None:
        said = await requests.user_message(exchange, stretch.view.partition, stretch.record)
        return [documents.said(said)] if said is not None else []
    return [documents.answer(before, n, each) for n, each in enumerate(before.decisions)]


async def items_of(exchange: Exchange, part: Round | Stretch) -> list[Json]:
    """The items of a part of a conversation: the input and the output of a response."""
    if isinstance(part, Stretch):
        return [*await inputs_of(exchange, part), *(await document(exchange, part))["output"]]
    items = list(map(documents.said, part.messages))
    if [message.role for message in part.messages] == ["user", "assistant"]:
        items[1]["id"] = names.made("msg", part.request_id, 1, 0)
    return items
