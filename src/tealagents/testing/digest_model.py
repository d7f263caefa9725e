"""A model whose answer is a digest of the user's messages that it was sent, so that a test can check them.

Name it in a config as `client: tealagents.testing.digest_model:DigestModel`. It runs in the service's process
and needs no network. In a conversation in which the user has said `one`, `two` and `three`, it answers::

    3 messages, 61d034473102d7dac305902770471fd5 (three)

which is ``digest_answer(["one", "two", "three"])``. With the model name `digest-20ms` it waits for 20
milliseconds before each answer.
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

__all__ = ["DigestModel", "digest_answer"]

_DELAY = re.compile(r"-(\d+)ms$")


def digest_answer(said: Sequence[str]) -> str:
    """The model's answer to these messages of the user, oldest first."""
    digest = hashlib.sha256("\n".join(said).encode()).hexdigest()[:32]
    return f"{len(said)} messages, {digest} ({said[-1] if said else ''})"


class DigestModel(ScriptedModel):
    """Implements the port `Model`. Name it in a config; see the module."""

    provider = "tealagents.testing"

    class Options(ModelOptions):
        pass

    def __init__(self, options: Options) -> None:
        super().__init__(name=options.model)
        delay = _DELAY.search(options.model)
        self._seconds = int(delay[1]) / 1000 if delay else 0.0

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        parts = [msgspec.json.decode(part) for part in call.prompt]
        answer = digest_answer([part["content"] for part in parts if part["role"] == "user"])
        await asyncio.sleep(self._seconds)
        words = answer.split(" ")
        for n, word in enumerate(words):
            yield [TextDelta(word if n == 0 else " " + word)]
        usage = TokenUsage(len(parts), len(words), len(parts) + len(words))
        yield [ModelDone(finish_reason="stop", usage=usage, model=self.name)]
