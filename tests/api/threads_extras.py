"""Reducers and context providers that tests name in a config as `threads_extras:…`."""

from collections.abc import AsyncIterator

from tealagents.threads import Context, ContextProvider, Invocation, Part, Upcoming


async def forgetful(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    """Shows nothing of what was said before."""
    return
    yield


async def broken(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    """Keeps calls and drops their results."""
    async for part in parts:
        yield part.changed(part.messages[:1])


class Failing(ContextProvider):
    """Cannot be asked."""

    async def invoking(self, invocation: Invocation) -> Context | None:
        raise RuntimeError("no pencil")
