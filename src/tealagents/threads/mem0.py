"""The context provider that keeps memories with Mem0: in this process, or at Mem0's service. Extra: `mem0`.

The package `mem0ai` is imported when the provider is opened, at the service's start. Its telemetry is
switched off before that, so that the import makes no network call.
"""

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, ClassVar
from urllib.parse import quote

from pydantic import Field

from tealagents.disk import make_folders
from tealagents.domain.models import Json, Message, User
from tealagents.domain.texts import bounded
from tealagents.threads.context import Context, ContextProvider, Invocation, ProviderOptions
from tealagents.threads.errors import ThreadConfigError

#: characters of one memory that are added to the instructions
MOST_CHARACTERS = 2000


class Mem0Options(ProviderOptions):
    #: the argument of `mem0.AsyncMemory.from_config`: `llm`, `embedder`, `vector_store`, …; empty: use the
    #: service at `host`, with the key in `MEM0_API_KEY`
    config: Json = Field(default_factory=dict)
    #: the service's URL
    host: str = "https://api.mem0.ai"
    #: most memories that are added to the instructions
    top_k: int = Field(default=5, ge=1)
    #: whether Mem0's model extracts memories; otherwise messages are kept as they are
    infer: bool = True
    #: folder for Mem0's own files, by default `~/.mem0`
    directory: str | None = None


class Mem0Provider(ContextProvider):
    """Adds the memories that Mem0 finds for the user's message, and passes each exchange to Mem0.

    Mem0 knows the user by `mem0_id`. Erasing a task or a user does not erase the memories that Mem0 has made
    from it; each has the `task_id` in its metadata. Mem0's files are not encrypted with the service's key.
    """

    Options: ClassVar = Mem0Options
    options: Mem0Options
    name = "mem0"
    #: the opened client
    _memory: Any = None

    def __init__(self, options: Mem0Options | None = None) -> None:
        super().__init__(options)
        if sys.modules.get("mem0") is None and find_spec("mem0") is None:
            raise _missing("mem0")

    async def __aenter__(self) -> "Mem0Provider":
        self._memory = await asyncio.to_thread(self._opened)
        return self

    def _opened(self) -> Any:
        mem0 = _imported(self.options.directory)
        if self.options.config:
            return mem0.AsyncMemory.from_config(self.options.config)
        if not os.environ.get("MEM0_API_KEY"):
            raise ThreadConfigError(
                "The context provider mem0 needs either `config`, for memories kept here, or the key of "
                "Mem0's service in MEM0_API_KEY."
            )
        return mem0.AsyncMemoryClient(host=self.options.host)

    async def __aexit__(self, *exc: object) -> None:
        memory, self._memory = self._memory, None
        close = getattr(memory, "close", None)
        if close is not None:
            await asyncio.to_thread(close)
        client = getattr(memory, "async_client", None)
        if client is not None:
            await client.aclose()

    async def invoking(self, invocation: Invocation) -> Context | None:
        if not invocation.text.strip():
            return None  # Mem0 refuses to search for a blank text
        found = await self._memory.search(
            invocation.text, filters={"user_id": mem0_id(invocation.user)}, top_k=self.options.top_k
        )
        known = [bounded(str(each["memory"]), MOST_CHARACTERS) for each in found["results"]]
        if not known:
            return None
        listed = "\n".join(f"- {each}" for each in known)
        return Context(instructions=f"Memories from earlier conversations with the user:\n{listed}")

    async def invoked(
        self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
    ) -> None:
        if error is not None or invocation.memory.read_only:
            return
        texts = [("user", invocation.text), *((m.role, m.text) for m in response if m.role == "assistant")]
        said = [{"role": role, "content": text} for role, text in texts if text.strip()]
        if not said:
            return
        await self._memory.add(
            said,
            user_id=mem0_id(invocation.user),
            metadata={"session_id": invocation.session_id, "task_id": invocation.task_id},
            infer=self.options.infer,
        )


def mem0_id(user: User) -> str:
    """The user's id in Mem0: `User.key`, or `%` and the percent-encoded key if that contains whitespace or
    begins with `%`.

    Mem0 refuses whitespace within an id, and strips it at the ends: two users could share their memories.
    """
    key = user.key
    return "%" + quote(key) if key.startswith("%") or re.search(r"\s", key) else key


def _imported(directory: str | None) -> Any:
    """The package `mem0`, with its telemetry off. It reads both environment variables only at import."""
    os.environ["MEM0_TELEMETRY"] = "False"
    if directory is not None:
        os.environ["MEM0_DIR"] = directory
    if "mem0" in sys.modules:
        _silence()
    if find_spec("mem0"):  # the import itself would create the folder readable for all users of the machine
        make_folders(os.environ.get("MEM0_DIR") or os.path.expanduser("~/.mem0"))
    try:
        import mem0
    except ModuleNotFoundError as error:
        raise _missing(error.name) from error
    return mem0


def _missing(package: str | None) -> ThreadConfigError:
    return ThreadConfigError(
        f"The context provider mem0 needs a package that is not installed ({package}): "
        "pip install 'tealagents[mem0]'."
    )


def _silence() -> None:
    """Switches the telemetry off if other code has already imported the package."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mem0.") and getattr(module, "MEM0_TELEMETRY", False):
            module.MEM0_TELEMETRY = False  # type: ignore[attr-defined]
    telemetry: Any = sys.modules.get("mem0.memory.telemetry")
    if telemetry is not None:
        telemetry.client_telemetry.close()
