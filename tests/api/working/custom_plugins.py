"""The tools of the agents whose pauses, loops and streams are tested. What they do, they write into files."""

import asyncio
import time
from pathlib import Path

from tealagents.domain.errors import NeedsAuthorization, ToolFailed
from tealagents.plugins import Plugin, ToolContext, tool


def _append(file: str, line: str) -> None:
    with open(file, "a") as out:
        out.write(line + "\n")


class Work(Plugin):
    """Tools that every user may call, and some that need approval."""

    def __init__(self) -> None:
        self._here: dict[str, int] = {}
        self._all: dict[str, asyncio.Event] = {}

    @tool(requires_hitl=True)
    async def write(self, context: ToolContext, file: str, line: str) -> str:
        """Write a line, once a human has agreed."""
        _append(file, line)
        context.add_extra_data("wrote", line)
        return f"wrote {line}"

    @tool(requires_hitl=True)
    async def linger(self, file: str, line: str, seconds: float) -> str:
        """Write a line, then take a while; a human has to agree."""
        _append(file, line)
        await asyncio.sleep(seconds)
        return f"lingered over {line}"

    @tool(requires_hitl=True)
    async def act_for_owner(self, context: ToolContext, file: str) -> str:
        """Write down whose token there is; a human has to agree."""
        token = await context.user_token()
        _append(file, f"token of {token}")
        return f"acted with the token of {token}"

    @tool(requires_hitl=True)
    async def enter(self, file: str, consent: str) -> str:
        """Enter a place that asks for the user's consent; a human has to agree, too."""
        if not Path(consent).exists():
            raise NeedsAuthorization("secrets", "https://secrets.example/consent", ("secrets.open",))
        _append(file, "entered")
        return "entered"

    @tool
    async def peek(self, file: str, consent: str) -> str:
        """Look into a place that asks for the user's consent; no human has to agree."""
        if not Path(consent).exists():
            raise NeedsAuthorization("secrets", "https://secrets.example/consent", ("secrets.open",))
        _append(file, "peeked")
        return "peeked"

    @tool
    async def note(self, file: str, line: str) -> str:
        """Write a line."""
        _append(file, line)
        return f"noted {line}"

    @tool
    async def rest(self, file: str, seconds: float) -> str:
        """Write when it begins and when it ends, and sleep between; or that it was stopped."""
        _append(file, "rest begins")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            _append(file, "rest is stopped")
            raise
        _append(file, "rest ends")
        return "rested"

    @tool
    def block(self, file: str, until: str) -> str:
        """Hold a thread until a file appears."""
        _append(file, "block begins")
        while not Path(until).exists():
            time.sleep(0.01)
        return "unblocked"

    @tool
    async def meet(self, place: str, parties: int) -> str:
        """Wait at a place until everyone is there."""
        everybody = self._all.setdefault(place, asyncio.Event())
        self._here[place] = self._here.get(place, 0) + 1
        number = self._here[place]
        if number >= parties:
            everybody.set()
        await everybody.wait()
        return f"met as number {number}"

    @tool(timeout=0.05)
    async def hesitate(self, file: str) -> str:
        """Write a line, and then take longer than its own timeout."""
        _append(file, "hesitated")
        await asyncio.sleep(60)
        return "never said"

    @tool
    async def slip(self) -> str:
        """Raise what a timeout inside a tool raises."""
        raise TimeoutError("the printer gave no answer")

    @tool
    async def refuse(self, file: str) -> str:
        """Write a line and say that it did not work."""
        _append(file, "refused")
        raise ToolFailed("it is closed on Mondays")

    @tool
    async def repeat(self, text: str, times: int) -> str:
        """Say a text many times."""
        return text * times

    @tool
    async def tell(self, context: ToolContext, key: str, value: str) -> str:
        """Add to the answer's extra data; return the ids it serves."""
        context.add_extra_data(key, value)
        return f"{context.session_id} {context.task_id} {context.request_id} {context.user_id}"
