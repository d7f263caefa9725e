"""Questions that a call asks its user while it waits. The answer may arrive at any process.

The name of a question contains the id of its pause. The process that receives the answer stores it in the
user's partition, where the process that asked reads it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec import Struct
from pydantic import BaseModel
from starlette.responses import Response

from tealagents.api.exchange import Exchange
from tealagents.api.gate import AdmittedCall
from tealagents.api.names import made, parsed
from tealagents.domain import ids
from tealagents.domain.errors import Conflict, InvalidRequest, NotFound, PersistenceUnavailable
from tealagents.domain.models import Approval, Json
from tealagents.engine.following import CHECK_SECONDS
from tealagents.state import keys
from tealagents.state.codec import encode_json

#: seconds for which an answer waits for the call that asked: it is there, or it has ended; and for the store.
#: A call that cannot read the store for as long ends, as its answer may be lost
KEPT_SECONDS = 60.0
#: seconds between two attempts to leave an answer
RETRY_SECONDS = 0.5
#: bytes of an answer
LARGEST_ANSWER = 64 * 1024

_KIND = "question"
_PART = re.compile(r"[0-9a-f]{24}", re.ASCII)
_WITHDRAWN = "Nothing waits for this answer. Its question may have been withdrawn."


class GivenAnswer(Struct, frozen=True):
    """`answer/{approval_id}/{name}`: what a client has answered."""

    document: Json


async def taken(exchange: Exchange, call: AdmittedCall, *, all_of_them: bool) -> bool:
    """Whether a call answers a question (any answer, if `all_of_them`). If so, it has its response.

    The answer is stored for the call that asked, unless it comes too late. While the store is unavailable,
    this keeps trying, because most hosts send an answer only once.
    """
    if call.body is None or "method" in call.body:
        return False
    approval_id, part = parsed(str(call.rpc_id), _KIND)
    if approval_id is None and not all_of_them:
        return False
    with call.refusing():
        until = asyncio.get_running_loop().time() + KEPT_SECONDS
        while call.response is None:
            try:
                await _leave(exchange, call, approval_id if _PART.fullmatch(part) else None)
                call.response = Response(status_code=202)
            except Conflict:  # the pause was decided or erased meanwhile
                continue
            except PersistenceUnavailable:
                if asyncio.get_running_loop().time() > until:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
    return True


async def _leave(exchange: Exchange, call: AdmittedCall, approval_id: str | None) -> None:
    """`NotFound` where no pause of the caller's is asked about; `InvalidRequest` for a large answer."""
    if len(encode_json(call.body)) > LARGEST_ANSWER:
        raise InvalidRequest("result", f"may have at most {LARGEST_ANSWER} bytes")
    partition, records = exchange.partition(call.caller), exchange.records
    if approval_id is None:
        raise NotFound(_WITHDRAWN)
    paused = keys.approval(approval_id)
    if (pause := await records.get(partition, paused, Approval)) is None:
        raise NotFound(_WITHDRAWN)
    if pause.value.status == "pending":
        key = keys.answer(approval_id, str(call.rpc_id))
        put, ttl = {key: GivenAnswer(call.body or {})}, {key: KEPT_SECONDS}
        expect = {paused: pause.version}  # no answer is stored behind the removal of its pause
        await records.commit(partition, marker=key, expect=expect, put=put, ttl=ttl, notify=(key,))


async def ask(
    exchange: Exchange, pause: Approval, question: BaseModel, say: Callable[[Json], Awaitable[None]]
) -> Json:
    """The response to a request of JSON-RPC that asks about a pause; one that is given up is withdrawn.

    `say` sends the request, and MCP's notification that it is withdrawn. `PersistenceUnavailable` where the
    response may be lost.
    """
    name = made(_KIND, pause.approval_id, ids.operation_id())
    try:
        asked = question.model_dump(mode="json", by_alias=True, exclude_none=True)
        await say({"jsonrpc": "2.0", "id": name, **asked})
        return await _answered(exchange, pause, keys.answer(pause.approval_id, name))
    except (asyncio.CancelledError, PersistenceUnavailable):
        await say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": name}})
        raise


async def _answered(exchange: Exchange, pause: Approval, key: str) -> Json:
    records, partition = exchange.records, exchange.records.partition(pause.owner)
    try:
        async with asyncio.timeout(KEPT_SECONDS) as away, records.store.watch(partition, key) as watch:
            while True:
                with suppress(PersistenceUnavailable):
                    if (found := await records.get(partition, key, GivenAnswer)) is not None:
                        break
                    away.reschedule(asyncio.get_running_loop().time() + KEPT_SECONDS)
                await watch.wait(CHECK_SECONDS, found=False)
    except TimeoutError:
        raise PersistenceUnavailable(
            "it was away for longer than an answer waits",
            task_id=pause.task_id,
            request_id=pause.request_id,
            approval_id=pause.approval_id,
        ) from None
    with suppress(PersistenceUnavailable):
        await records.delete(partition, (key,))
    return found.value.document
