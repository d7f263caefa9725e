"""Reducers and context providers that tests name in a config as `threads_extras:…`."""

from collections.abc import AsyncIterator

from msgspec.structs import replace

from tealagents.domain.models import Item
from tealagents.threads import Context, ContextProvider, Invocation, Part, Upcoming


async def forgetful(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    """Shows nothing of what was said before."""
    return
    yield


async def broken(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    """Keeps calls and drops their results."""
    async for part in parts:
        yield part.changed(part.messages[:1])


async def hesitant(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    """Shows everything only once tools have answered; keeps something that is no summary."""
    upcoming.memory["hesitant"] = {"text": "a note of my own", "upto": 0}
    if any(part.messages[0].tool_calls for part in upcoming.running):
        async for part in parts:
            yield part


class Examples(ContextProvider):
    """Shows the model how to answer."""

    async def invoking(self, invocation: Invocation) -> Context | None:
        asked = invocation.message("What is the capital of Norway?")
        return Context(messages=(asked, replace(invocation.message("Oslo."), role="assistant")))


class Pictures(ContextProvider):
    """Shows the model what it is asked about."""

    async def invoking(self, invocation: Invocation) -> Context | None:
        picture = Item("image", "data:image/png;base64,iVBORw0KGgo=")
        asked = invocation.message("This is Oslo.")
        return Context(messages=(replace(asked, items=(*asked.items, picture)),))


class Failing(ContextProvider):
    """Cannot be asked."""

    async def invoking(self, invocation: Invocation) -> Context | None:
        raise RuntimeError("no pencil")
