"""Several processes on one store, with the offline model behind them."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
from wire import Json, text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.service import agent_config
from tealagents.testing.waits import until

T = TypeVar("T")

#: words that take the model a while, and words that take it longer than any test
SCRIPT = {
    "rules": [
        {"when": {"text": "slowly"}, "reply": {"text": "a b c d e f", "headers_delay_ms": 600}},
        {"when": {"text": "dripping"}, "reply": {"text": "drip " * 2000, "piece_delay_ms": 50}},
        {"when": {"text": "when released"}, "reply": {"text": "at last", "headers_delay_ms": 600_000}},
        {"when": {"text": "for ever"}, "reply": {"text": "never", "headers_delay_ms": 600_000}},
    ]
}
#: seconds after which something that must happen has not
LONG = 60.0


class Replicas:
    """Processes of one agent on one store."""

    def __init__(self, services: list[ForkedService], model: OfflineModel) -> None:
        self.services = services
        self.model = model

    @property
    def first(self) -> ForkedService:
        return self.services[0]

    @property
    def second(self) -> ForkedService:
        return self.services[1]

    @contextmanager
    def released(self) -> Iterator[None]:
        """While the model takes no time for what it is asked."""
        self.model.release()
        try:
            yield
        finally:
            self.model.script(SCRIPT)


@contextmanager
def replicas(
    nursery: Nursery,
    folder: Path,
    count: int = 2,
    *,
    env: dict[str, str] | None = None,
    script: Any = SCRIPT,
    **spec: Any,
) -> Iterator[Replicas]:
    """So many processes on one SQLite file, or on what `TA_PERSISTENCE` in `env` says."""
    with ExitStack() as stack:
        model = stack.enter_context(OfflineModel(script))
        variables = {
            "TA_PERSISTENCE": f"sqlite:///{folder}/state.db",
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_AUTH": "mock",
            **(env or {}),
        }
        config = agent_config(**spec)
        services = [stack.enter_context(nursery.service(config, variables)) for _ in range(count)]
        yield Replicas(services, model)


def background(client: httpx.Client, words: str, **fields: Any) -> Json:
    """The 202 of a message that is answered in the background."""
    answer = client.post("", json=text(words, **fields), headers={"prefer": "respond-async"})
    assert answer.status_code == 202, answer.text
    document: Json = answer.json()
    return document


def ended(client: httpx.Client, request_id: str) -> Json:
    """The request once it has ended."""

    def look() -> Json | None:
        request: Json = client.get(f"/requests/{request_id}").raise_for_status().json()
        return request if request["status"] in ("Completed", "Failed", "Canceled") else None

    return until(look)


def said(client: httpx.Client, task_id: str, role: str = "user") -> list[str]:
    """What a task's messages of one role say."""
    page = client.get(f"/tasks/{task_id}/messages", params={"limit": 200}).raise_for_status().json()
    return [
        "".join(item["content"] for item in message["items"])
        for message in page["items"]
        if message["role"] == role
    ]


async def gather(*work: Any) -> list[Any]:
    return list(await asyncio.gather(*work))
