"""The prompt of a call, independent of the API: messages in the format of chat completions.

Everything is computed only when it is needed: most answers need only the last message, and a request with
four hundred messages must not cost four hundred times as much.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tealagents.llm.offline.answer import IMAGE_TOKENS, count_tokens
from tealagents.llm.offline.facts import Statement

Message = dict[str, Any]

_DATA_URI = re.compile(r"data:([^;,]*)(;[^,]*)?,")
_INSTRUCTING = ("system", "developer")


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image. `mime_type` is None if it was sent as a URL, which is not opened. `size`: bytes."""

    mime_type: str | None
    size: int


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that the client offers. `parameters` is a JSON Schema."""

    name: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FunctionOutput:
    tool: str
    output: str


class ModelPrompt:
    def __init__(
        self,
        messages: Sequence[Message],
        *,
        model: str,
        tools: Sequence[OfferedTool] = (),
        max_tokens: int | None = None,
        shape: dict[str, Any] | None = None,
        forced: OfferedTool | None = None,
    ) -> None:
        self.messages = messages
        self.model = model
        #: The names of the tools that may be called.
        self.tools = [tool.name for tool in tools]
        self.max_tokens = max_tokens
        #: The JSON Schema of structured output.
        self.shape = shape
        #: The tool that must be called.
        self.forced = forced

    @cached_property
    def last_user(self) -> Message | None:
        return next((m for m in reversed(self.messages) if m.get("role") == "user"), None)

    @cached_property
    def text(self) -> str:
        """The text of the last user message."""
        return text_of(self.last_user)

    @cached_property
    def images(self) -> list[PromptImage]:
        """The images of the last user message."""
        return images_of(self.last_user)

    @cached_property
    def system(self) -> str:
        return "\n".join(text_of(m) for m in self.messages if m.get("role") in _INSTRUCTING)

    @cached_property
    def user_texts(self) -> list[str]:
        return [text_of(m) for m in self.messages if m.get("role") == "user"]

    @cached_property
    def statements(self) -> list[Statement]:
        """The messages of users and the instructions, in order, in which facts are searched."""
        roles = ("user", *_INSTRUCTING)
        said = (m for m in self.messages if m.get("role") in roles)
        return [Statement(text_of(m), by_user=m["role"] == "user") for m in said]

    @cached_property
    def tool_results(self) -> list[FunctionOutput]:
        """The results of the latest tool calls, if the model has to continue from them; otherwise empty."""
        return list(self._trailing_results())[::-1]

    def _trailing_results(self) -> Iterator[FunctionOutput]:
        outputs: list[Message] = []
        for message in reversed(self.messages):
            role = message.get("role")
            if role == "tool":
                outputs.append(message)
            elif role == "assistant":
                names = {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}
                for output in outputs:
                    yield FunctionOutput(names.get(output.get("tool_call_id"), "A tool"), text_of(output))
                return
            elif role not in _INSTRUCTING:
                return

    @cached_property
    def tokens(self) -> int:
        return sum(map(message_tokens, self.messages))


def text_of(message: Message | None) -> str:
    """The text of a message, whether its content is a string or a list of parts."""
    content = message.get("content") if message else None
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(_part_texts(content))


def _part_texts(parts: list[Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, dict):
            text = part.get("text") or part.get("refusal")
            if isinstance(text, str):
                yield text


def images_of(message: Message | None) -> list[PromptImage]:
    content = message.get("content") if message else None
    if not isinstance(content, list):
        return []
    return [_image(part) for part in content if isinstance(part, dict) and part.get("type") in _IMAGE_PARTS]


#: The types of content parts that are images, in chat completions and in responses.
_IMAGE_PARTS = ("image_url", "input_image")


def _image(part: dict[str, Any]) -> PromptImage:
    given = part.get("image_url")
    url = given.get("url", "") if isinstance(given, dict) else given or ""
    found = _DATA_URI.match(url) if isinstance(url, str) else None
    if found is None:
        return PromptImage(None, 0)
    data = url[found.end() :]
    size = len(data) * 3 // 4 - data[-2:].count("=") if "base64" in (found[2] or "") else len(data)
    return PromptImage(found[1] or "text/plain", size)


def message_tokens(message: Message) -> int:
    content = message.get("content")
    if isinstance(content, str):
        counted = count_tokens(content)
    else:
        counted = count_tokens(text_of(message)) + IMAGE_TOKENS * len(images_of(message))
    if (calls := message.get("tool_calls")) and message["role"] == "assistant":
        counted += sum(1 + count_tokens(call["function"]["arguments"]) for call in calls)
    return counted
