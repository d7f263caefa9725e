"""A model that wants back what it sends with its calls, which configs name as `thinking_model:Thinking`."""

from collections.abc import AsyncGenerator, Sequence

import msgspec

from tealagents.domain.events import ModelDone, ModelEvent
from tealagents.domain.models import Json, Message, ToolCall
from tealagents.domain.ports import ModelCall
from tealagents.llm.options import ModelOptions
from tealagents.testing.models import ScriptedModel

#: what it sends along, and no one may be shown
SECRET = "canary-of-thoughts"


def _say(messages: list[Json]) -> Sequence[ToolCall] | str:
    """Calls the tool that a message names by its first word, and answers with what came of it."""
    last = messages[-1]
    if last["role"] == "tool":
        return f"It says: {last['content']}"
    return [ToolCall("call_1", str(last["content"]).partition(" ")[0], '{"path": "/x"}')]


class Thinking(ScriptedModel):
    """Fails where a call comes back without what was sent along with it."""

    Options = ModelOptions

    def __init__(self, options: ModelOptions) -> None:
        super().__init__(_say, name=options.model)

    def encode(self, message: Message) -> bytes:
        document = msgspec.json.decode(super().encode(message))
        return msgspec.json.encode({**document, "native": message.native})

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        sent = [msgspec.json.decode(part) for part in call.prompt]
        lacking = [each for each in sent if each.get("tool_calls") and each["native"] != SECRET]
        assert not lacking, "a call came back alone"
        async for events in super().stream(call):
            yield [
                msgspec.structs.replace(event, native=SECRET) if isinstance(event, ModelDone) else event
                for event in events
            ]
