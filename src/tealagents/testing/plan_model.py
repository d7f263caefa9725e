"""A model that makes the tool calls that a message describes, and then answers with a digest.

Name it in a config as `client: tealagents.testing.plan_model:PlanModel`. A message is a JSON document::

    {"word": "word-7", "file": "/lines", "rounds": [["a", "b?"], ["c?"]]}

Each list in `rounds` is one tool round, with a call for each line: to `Work-write`, which needs approval, for
a line that ends in `?`; to `CLIENTS_TOOL`, which the client has to offer, for one that ends in `!`; otherwise
to `Work-note`. The tools of `Work` append the line to the file. After the last round the model answers
``digest_answer(words)``, with the words of all messages in the conversation, streamed word by word.
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
from tealagents.testing.digest_model import digest_answer
from tealagents.testing.models import Reply, ScriptedModel

__all__ = ["CLIENTS_TOOL", "PlanModel", "plan"]

#: the name of the tool that the client offers and runs
CLIENTS_TOOL = "write_at_client"

#: seconds before each word
DELTA_SECONDS = 0.02

#: the tool by the last character of a line
_TOOLS = {"?": "Work-write", "!": CLIENTS_TOOL}


def plan(word: str, file: str, rounds: list[list[str]]) -> str:
    """The message that makes the model call these tools, as JSON text."""
    return json.dumps({"word": word, "file": file, "rounds": rounds})


class PlanModel(ScriptedModel):
    """Implements the port `Model`. Name it in a config; see the module."""

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
                            await asyncio.sleep(DELTA_SECONDS)
                            yield [TextDelta(piece)]
                    else:
                        yield [event]


def _next(messages: list[Json]) -> Reply:
    """The next round of calls of the last message's plan, or the answer."""
    asked = [(at, json.loads(each["content"])) for at, each in enumerate(messages) if each["role"] == "user"]
    place, wanted = asked[-1]
    done = sum("tool_calls" in message for message in messages[place:])
    if done == len(wanted["rounds"]):
        return digest_answer([message["word"] for _, message in asked])
    return [
        ToolCall(line, _TOOLS.get(line[-1], "Work-note"), _arguments(wanted["file"], line))
        for line in wanted["rounds"][done]
    ]


def _arguments(file: str, line: str) -> str:
    return json.dumps({"file": file, "line": line})
