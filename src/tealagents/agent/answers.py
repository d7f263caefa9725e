"""An agent's answer: whole, or as a stream."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Self

from msgspec import Struct

from tealagents.domain.models import Json, Message, Step, TokenUsage, ToolCall


class AgentAnswer(Struct, frozen=True, kw_only=True):
    """An agent's answer to one message."""

    text: str
    #: all messages after the user's, including tool calls and their results
    messages: tuple[Message, ...]
    #: the tokens of all model calls
    usage: TokenUsage
    request_id: str
    #: the execution trace, in order
    steps: tuple[Step, ...]
    extra_data: Json


class Update(Struct, frozen=True, kw_only=True):
    """A part of a streamed answer: some text, a tool call, or a tool call with its result."""

    text: str = ""
    tool_call: ToolCall | None = None
    tool_result: str | None = None


class AnswerStream:
    """The deltas of an answer, and the answer itself once they have ended."""

    def __init__(self, updates: AsyncGenerator[Update | AgentAnswer, None]) -> None:
        self._updates = updates
        self._answer: AgentAnswer | None = None

    @property
    def answer(self) -> AgentAnswer:
        if self._answer is None:
            raise RuntimeError("the answer is complete only when the stream has been read to its end")
        return self._answer

    def __aiter__(self) -> AsyncIterator[Update]:
        return self

    async def __anext__(self) -> Update:
        update = await anext(self._updates)
        if isinstance(update, AgentAnswer):
            self._answer = update
            await self._updates.aclose()
            raise StopAsyncIteration
        return update

    async def aclose(self) -> None:
        """Abandons the answer; the thread stays unchanged."""
        await self._updates.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
