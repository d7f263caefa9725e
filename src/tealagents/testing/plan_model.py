"""A model that does what the message says: rounds of tool calls, and at last a digest of what it was sent.

Name it in a config as `client: tealagents.testing.plan_model:PlanModel`. A message is a JSON document::

    {"word": "word-7", "file": "/lines", "rounds": [["a", "b?"], ["c?"]]}

Each round calls tools side by side: `Work-write`, which needs approval, for a line that ends in `?`,
`CLIENTS_TOOL`, which the client has to offer, for one that ends in `!`, and `Work-note` for any other. Work's
append the line to the file. After the last round the model answers
``recount(words)``, with the words of all messages of the conversation, word by word.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from tealagents.domain.events import ModelEvent, TextDelta
from tealagents.domain.models import Json, ToolCall
from tealagents.domain.ports import ModelCall
from tealagents.llm.options import ModelOptions
from tealagents.testing.digest_model import recount
from tealagents.testing.models import Reply, ScriptedModel

__all__ = ["CLIENTS_TOOL", "PlanModel", "plan"]

#: the tool that a client offers and runs
CLIENTS_TOOL = "write_at_client"

#: seconds before each word
PIECE_SECONDS = 0.02

#: by the last character of a line
_TOOLS = {"?": "Work-write", "!": CLIENTS_TOOL}


def plan(word: str, file: str, rounds: list[list[str]]) -> str:
    """The message that makes the model call these tools."""
    return json.dumps({"word": word, "file": file, "rounds": rounds})


class PlanModel(ScriptedModel):
    """Implements `tealagents.domain.ports.Model`."""

    class Options(ModelOptions):
        pass

    def __init__(self, options: Options) -> None:
        super().__init__(_next, name=options.model, keep=1)

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        async with aclosing(super().stream(call)) as reply:
            async for events in reply:
                for event in events:
                    if isinstance(event, TextDelta):
                        for piece in re.findall(r" ?[^ ]+", event.text):
                            await asyncio.sleep(PIECE_SECONDS)
                            yield [TextDelta(piece)]
                    else:
                        yield [event]


def _next(messages: list[Json]) -> Reply:
    """The next round of calls that the last message asks for, or the answer."""
    asked = [(at, json.loads(each["content"])) for at, each in enumerate(messages) if each["role"] == "user"]
    place, wanted = asked[-1]
    done = sum("tool_calls" in message for message in messages[place:])
    if done == len(wanted["rounds"]):
        return recount([message["word"] for _, message in asked])
    return [
        ToolCall(line, _TOOLS.get(line[-1], "Work-note"), _arguments(wanted["file"], line))
        for line in wanted["rounds"][done]
    ]


def _arguments(file: str, line: str) -> str:
    return json.dumps({"file": file, "line": line})
