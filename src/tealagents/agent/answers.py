"""What an agent answers: whole, or as it is made."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Self

from msgspec import Struct

from tealagents.domain.models import Json, Message, Step, TokenUsage, ToolCall


class AgentAnswer(Struct, frozen=True, kw_only=True):
    """What an agent has answered."""

    text: str
    #: what was said in answer, tool calls and results included; the user's message is not among them
    messages: tuple[Message, ...]
    #: of all calls of the model that it took
    usage: TokenUsage
    request_id: str
    #: what the model was asked and what was done, in order
    steps: tuple[Step, ...]
    extra_data: Json


class Update(Struct, frozen=True, kw_only=True):
    """Something of an answer, as it is made: some text, or a tool call and its outcome."""

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
        """Gives the answer up; the thread stays as it was."""
        await self._updates.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
