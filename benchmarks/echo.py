"""A model within the service's process, for counting: it says and calls what its user asks for.

deltas 40@25ms     forty text deltas, 25 ms apart
call Work-look     one call of a tool without arguments; then an answer
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence

import msgspec

from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.domain.models import TokenUsage, ToolCall
from tealagents.domain.ports import ModelCall
from tealagents.llm.options import ModelOptions
from tealagents.testing.models import ScriptedModel

_DELTAS = re.compile(r"deltas (\d+)@(\d+)ms")
_CALL = re.compile(r"call ([\w-]+)")


class EchoModel(ScriptedModel):
    """Implements `tealagents.domain.ports.Model`."""

    provider = "benchmarks"

    class Options(ModelOptions):
        pass

    def __init__(self, options: Options) -> None:
        super().__init__(name=options.model)

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        last = msgspec.json.decode(call.prompt[-1])
        role, text = last["role"], last["content"]
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
