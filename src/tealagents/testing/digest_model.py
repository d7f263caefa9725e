"""A model whose answer is a digest of what it was sent, so that a test can check that this was right.

Name it in a config as `client: tealagents.testing.digest_model:DigestModel`. It runs within the service's
process and needs no network. To a conversation whose user has said `one`, `two`, `three` it answers::

    3 messages, 61d034473102d7dac305902770471fd5 (three)

which is ``recount(["one", "two", "three"])``. A model called `recount-20ms` thinks that long before it
answers.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Sequence

import msgspec

from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.domain.models import TokenUsage
from tealagents.domain.ports import ModelCall
from tealagents.llm.options import ModelOptions
from tealagents.testing.models import ScriptedModel

__all__ = ["DigestModel", "recount"]

_THINKS = re.compile(r"-(\d+)ms$")


def recount(said: Sequence[str]) -> str:
    """What the model answers when the user has said all that."""
    digest = hashlib.sha256("\n".join(said).encode()).hexdigest()[:32]
    return f"{len(said)} messages, {digest} ({said[-1] if said else ''})"


class DigestModel(ScriptedModel):
    """Implements `tealagents.domain.ports.Model`."""

    provider = "tealagents.testing"

    class Options(ModelOptions):
        pass

    def __init__(self, options: Options) -> None:
        super().__init__(name=options.model)
        thinks = _THINKS.search(options.model)
        self._seconds = int(thinks[1]) / 1000 if thinks else 0.0

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        parts = [msgspec.json.decode(part) for part in call.prompt]
        answer = recount([part["content"] for part in parts if part["role"] == "user"])
        await asyncio.sleep(self._seconds)
        words = answer.split(" ")
        for n, word in enumerate(words):
            yield [TextDelta(word if n == 0 else " " + word)]
        usage = TokenUsage(len(parts), len(words), len(parts) + len(words))
        yield [ModelDone(finish_reason="stop", usage=usage, model=self.name)]
