"""The token of a call's owner, as tools wait for it."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tealagents.domain.errors import ToolFailed
from tealagents.domain.models import User
from tealagents.domain.ports import ToolContext

T = TypeVar("T")

#: seconds allowed for getting a token, on top of the tool call's own time limit
TOKEN_SECONDS = 30.0


async def in_time(token: Awaitable[T]) -> T:
    """The token, or what carries it. `ToolFailed` if the call is canceled meanwhile: nothing was sent."""
    try:
        return await token
    except asyncio.CancelledError:
        raise ToolFailed("The user's token did not come in time. Nothing was done.") from None


def user_key_of(context: ToolContext) -> str:
    """The key (`User.key`) of the call's owner."""
    return User(context.tenant_id, context.user_id).key
