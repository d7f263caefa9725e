"""The task that a thread is, the ids that clients see, and a thread's messages as documents."""

import re
import uuid
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from tealagents.api.exchange import Exchange
from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, NotFound
from tealagents.domain.models import Approval, Caller, Head, Item, Json, Message
from tealagents.state import keys

_NAMESPACE = uuid.UUID("5b0f7a4e-6a3c-4c53-9d5e-2f8f1f0c7a11")
_MESSAGE = re.compile(r"msg_([0-9a-f-]{36})_(.+)", re.ASCII)


class Thread(Struct, frozen=True, kw_only=True):
    """A conversation under the name that its owner's client gave it; `head` is None before its first run."""

    exchange: Exchange
    caller: Caller
    thread_id: str
    task_id: str
    partition: str
    head: Head | None

    async def pause(self, approval_id: str) -> Approval | None:
        """A pause of this thread."""
        key = keys.approval(approval_id)
        found = await self.exchange.service.records.get(self.partition, key, Approval)
        return found.value if found and found.value.task_id == self.task_id else None


async def find(exchange: Exchange, caller: Caller, thread_id: str) -> Thread:
    """The caller's thread of this name as it stands: a UUID names the task, any other text stands for one."""
    try:
        task_id = ids.canonical(thread_id, "threadId")
    except InvalidRequest:
        task_id = str(uuid.uuid5(_NAMESPACE, f"{caller.user.key}\0{thread_id}"))
    partition, head = exchange.service.records.partition(caller.user), None
    with suppress(NotFound):
        head = (await exchange.tasks.head(partition, task_id)).value
    return Thread(
        exchange=exchange, caller=caller, thread_id=thread_id, task_id=task_id, partition=partition, head=head
    )


# --- ids: each shows the request's; models use those of calls again and again ------------------------


def message_id(request_id: str, place: object) -> str:
    return f"msg_{request_id}_{place}"


def call_id(request_id: str, call: str | None) -> str:
    return f"call_{request_id}_{call}"


def result_id(request_id: str, call: str | None) -> str:
    return f"res_{request_id}_{call}"


def interrupt_id(approval_id: str, n: int) -> str:
    return f"int_{approval_id}_{n}"


def request_of(message: str) -> tuple[str | None, str]:
    """The request that the id of a message shows, and its place there; None where it is none of ours."""
    found = _MESSAGE.fullmatch(message)
    return (found[1], found[2]) if found else (None, "")


# --- documents -----------------------------------------------------------------------------------


def documents(messages: Sequence[Message]) -> list[Json]:
    return [_document(message) for message in messages]


def _document(message: Message) -> Json:
    request_id, text = message.request_id, message.text
    if message.role == "tool":
        call = message.tool_call_id
        answered = {"id": result_id(request_id, call), "toolCallId": call_id(request_id, call)}
        return {"role": "tool", **answered, "content": text, **({"error": text} if message.is_error else {})}
    said: Json = {"id": message_id(request_id, message.message_id), "role": message.role}
    if message.role == "user":
        return {
            **said,
            "content": text if len(message.items) < 2 and text else list(map(_part, message.items)),
        }
    if text:
        said["content"] = text
    if message.tool_calls:
        said["toolCalls"] = [
            {
                "id": call_id(request_id, each.id),
                "type": "function",
                "function": {"name": each.tool, "arguments": each.arguments},
            }
            for each in message.tool_calls
        ]
    return said


def _part(item: Item) -> Json:
    if item.content_type == "text":
        return {"type": "text", "text": item.content}
    mime, _, value = item.content.removeprefix("data:").partition(";base64,")
    return {"type": "image", "source": {"type": "data", "value": value, "mimeType": mime}}
