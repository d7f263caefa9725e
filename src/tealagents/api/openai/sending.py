"""What ids name; and carrying out what was sent: a message to a conversation, or the answers to a pause.

`resp_{request}_{n}` is the part of a request from its (n-1)th decision on, `msg_{request}_{n}_{i}`, `mcp_…`
the ith item of its output, `conv_{task}` a conversation; `mcpr_{approval}_{i}`, `fc_…` and `call_…` the
ith call of a pause, which waits for approval or is the client's to make.
"""

from datetime import timedelta
from typing import Any

from starlette.requests import Request

from tealagents.api import names, requests, stretches
from tealagents.api.decisions import CallAnswer
from tealagents.api.exchange import Exchange, key_in
from tealagents.api.names import made, unknown, unknown_as
from tealagents.api.openai.inputs import KEPT, CreateResponse
from tealagents.api.resent import AnsweredCall, Resent, in_words
from tealagents.api.stretches import Stretch
from tealagents.domain.errors import InvalidRequest, NotFound
from tealagents.domain.models import Caller, Head
from tealagents.state import keys
from tealagents.state.submission import NewMessage

#: what was not to be stored is gone by then, even if the process dies before it can erase it
UNSTORED_KEPT = timedelta(days=1)


async def response(exchange: Exchange, caller: Caller, name: str) -> Stretch:
    """The response with this id. `NotFound`, also where it is another user's."""
    with unknown_as("response", name):
        request_id, number = names.read("response", name, "resp")
        return await stretches.cut(exchange, await requests.own(exchange, caller, request_id), number)


async def conversation(exchange: Exchange, caller: Caller, name: str) -> tuple[str, Head]:
    """A conversation that the caller may change, and its partition. `NotFound`, also for another user's."""
    with unknown_as("conversation", name):
        task_id, _ = names.read("conversation", name, "conv", numbered=False)
        partition = await exchange.locate(caller, keys.task, task_id)
        return partition, (await exchange.tasks.head(partition, task_id)).value


async def send(
    exchange: Exchange, caller: Caller, request: Request, value: Any, body: CreateResponse, given: Resent
) -> Stretch:
    """Stores what was sent and begins to answer it. `value` is what an idempotency key stands for."""
    streamed = bool(body.stream or body.background)
    if given.answers:
        return await _decide(exchange, caller, given.answers, streamed=streamed)
    message, key = _message(exchange, body, given), key_in(request, value)
    if (previous := body.previous_response_id) is not None:
        before, field = await response(exchange, caller, previous), "previous_response_id"
        view = await stretches.continued(exchange, before, message, key, field=field, streamed=streamed)
    else:
        if body.conversation is not None:
            _, head = await conversation(exchange, caller, body.conversation)
            message = requests.added(message, head.task_id)
        view = await exchange.submit(caller, message, key, streamed=streamed)
    return await stretches.cut(exchange, view, 1)


def _message(exchange: Exchange, body: CreateResponse, given: Resent) -> NewMessage:
    """The message; what this API alone knows of it is kept with its request."""
    now = exchange.tasks.records.clock.now()
    return NewMessage(
        items=given.items,
        earlier=in_words(given.before),
        instructions="\n\n".join(filter(None, (body.instructions, given.instructions))),
        client_tools=tuple(
            requests.client_tool(tool.name, tool.description or "", tool.parameters, "tools")
            for tool in body.tools or ()
        ),
        metadata=dict(body.metadata or {}),
        client={name: value for name in KEPT if (value := getattr(body, name)) is not None},
        expires_at=now + UNSTORED_KEPT if body.store is False else None,
    )


async def _decide(
    exchange: Exchange, caller: Caller, given: list[AnsweredCall], *, streamed: bool
) -> Stretch:
    """Answers the calls of a pause; answered the same before, it is what came of it."""
    answers: dict[int, CallAnswer] = {}
    approval_id = ""
    for each in given:
        try:
            named, place = names.read("call", each.call_id, "mcpr", "fc", "call")
        except NotFound as none:
            raise InvalidRequest(each.where, none.detail) from None
        if place in answers or approval_id not in ("", named):
            raise InvalidRequest(each.where, "answers a call twice, or one of another response")
        answers[place], approval_id = each.answer, named
    with unknown_as("call", approval_id):
        partition = await exchange.locate(caller, keys.approval, approval_id)
        pause = await stretches.pause(exchange, partition, approval_id)
    if max(answers) >= len(pause.calls):
        raise unknown("call", made("call", approval_id, max(answers)))
    for n, call in enumerate(pause.calls):
        if n not in answers:
            raise InvalidRequest("input", f"answers only some of the calls that wait: {call.tool} waits, too")
        if call.by_client is not (answers[n].output is not None):
            kind = "a function_call_output" if call.by_client else "an mcp_approval_response"
            raise InvalidRequest("input", f"must answer {call.tool} with {kind}")
    return await stretches.decided(exchange, caller, pause, answers, streamed=streamed)
