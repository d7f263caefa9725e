"""A model within the service's process, for counting: it says and calls what its user asks for.

deltas 40@25ms     forty text deltas, 25 ms apart
call Work-look     one call of a tool without arguments; then an answer
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Self

import msgspec

from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.domain.models import Message, TokenUsage, ToolCall
from tealagents.domain.ports import ModelCall, ToolSpec
from tealagents.llm.options import ModelOptions

_DELTAS = re.compile(r"deltas (\d+)@(\d+)ms")
_CALL = re.compile(r"call ([\w-]+)")


class EchoModel:
    """Fills `tealagents.domain.ports.Model`."""

    provider = "benchmarks"
    supports_remote_threads = False

    class Options(ModelOptions):
        pass

    def __init__(self, options: Options) -> None:
        self.name = options.model

    def encode_system(self, text: str) -> bytes:
        return msgspec.json.encode(["system", text])

    def encode(self, message: Message) -> bytes:
        return msgspec.json.encode([message.role, message.text])

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        return b""

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        role, text = msgspec.json.decode(call.prompt[-1], type=tuple[str, str])
        usage = TokenUsage(len(call.prompt), 1, len(call.prompt) + 1)
        if role == "user" and (asked := _CALL.fullmatch(text)):
            tools = (ToolCall("call-1", asked[1], "{}"),)
            yield [ModelDone(finish_reason="tool_calls", tool_calls=tools, usage=usage, model=self.name)]
            return
        deltas = _DELTAS.fullmatch(text)
        for _ in range(int(deltas[1]) if deltas else 1):
            if deltas:
                await asyncio.sleep(int(deltas[2]) / 1000)
            yield [TextDelta("word ")]
        yield [ModelDone(finish_reason="stop", usage=usage, model=self.name)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None
