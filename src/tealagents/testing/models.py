"""A model in this process, for tests of code that uses models: no service, no network.

    model = ScriptedModel(lambda sent: f"You sent {len(sent)} messages.")
    model.calls[-1]        # what it was sent: a `Sent` with the messages as dictionaries

To test the wire format as well, use `tealagents.llm.offline`.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Self

import msgspec
from msgspec import Struct

from tealagents.domain.errors import TealError
from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.domain.models import Json, Message, TokenUsage, ToolCall
from tealagents.domain.ports import ModelCall, ToolSpec

__all__ = ["ScriptedModel", "Sent"]

#: the model's reply: a text, tool calls, or an error to raise
Reply = str | Sequence[ToolCall] | TealError


class Sent(Struct, frozen=True):
    """What the model was sent in one call."""

    messages: list[Json]
    #: `{"name", "description"}` of each tool
    tools: list[Json]
    #: the remote conversation that the call continues
    remote_id: str | None


class ScriptedModel:
    """Implements the port `Model`. Its reply is what `say` returns for the messages that it was sent.

    Messages are `{"role", "content"}`, with `tool_calls` (a list of `{"id", "tool", "arguments"}`) or
    `tool_call_id` if they have any. A word counts as one token. The last `keep` calls are kept in `calls`.
    """

    provider = "scripted"
    supports_remote_threads = False

    def __init__(
        self, say: Callable[[list[Json]], Reply] = lambda _: "ok", *, name: str = "scripted", keep: int = 1000
    ) -> None:
        self.name = name
        self._say = say
        self._keep = keep
        #: the last calls, oldest first
        self.calls: list[Sent] = []

    def encode_system(self, text: str) -> bytes:
        return msgspec.json.encode({"role": "system", "content": text})

    def encode(self, message: Message) -> bytes:
        document: Json = {"role": message.role, "content": message.text}
        if message.tool_calls:
            document["tool_calls"] = msgspec.to_builtins(message.tool_calls)
        if message.tool_call_id is not None:
            document["tool_call_id"] = message.tool_call_id
        return msgspec.json.encode(document)

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        listed = [{"name": tool.name, "description": tool.description} for tool in tools]
        return msgspec.json.encode(listed) if tools else b""

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        messages: list[Json] = [msgspec.json.decode(part) for part in call.prompt]
        tools: list[Any] = msgspec.json.decode(call.tools) if call.tools else []
        self.calls = [*self.calls[-self._keep + 1 :], Sent(messages, tools, call.remote_id)]
        reply = self._say(messages)
        if isinstance(reply, TealError):
            raise reply
        prompt = sum(len(str(message["content"]).split()) for message in messages)
        if isinstance(reply, str):
            if reply:
                yield [TextDelta(reply)]
            spoken = len(reply.split())
            yield [ModelDone(finish_reason="stop", usage=TokenUsage(prompt, spoken, prompt + spoken))]
        else:
            usage = TokenUsage(prompt, len(reply), prompt + len(reply))
            yield [ModelDone(finish_reason="tool_calls", tool_calls=tuple(reply), usage=usage)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None
