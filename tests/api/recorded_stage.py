"""What the recorded scenarios share: services with the same few tools, and short ways to talk to them.

`SCENARIOS` holds one function per file of `recorded/`. Each starts services of its own, as a user would, and
returns what was said.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recorder import Json, Recording

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread, agent_config

HERE = Path(__file__).parent / "recorded"

#: a UUID that nothing has
NOTHING = "6f1c2a9e-51f0-4c8e-9d53-0a4b7c1d2e3f"
BACKGROUND = {"prefer": "respond-async"}
EVENTS = {"accept": "text/event-stream"}
GOVERNED = 'call Shell-delete {"path": "/x"}'
LOOK = 'call Shell-look {"path": "/y"}'
LONG = "call Shell-wait {}"
PIXEL = "data:image/png;base64,iVBORw0KGgo="

SCENARIOS: dict[str, Callable[[], str]] = {}


def scenario(function: Callable[[], str]) -> Callable[[], str]:
    SCENARIOS[function.__name__] = function
    return function


def text(words: str, **fields: Any) -> Json:
    """A message of one piece of text."""
    return {"items": [{"content_type": "text", "content": words}], **fields}


def key(name: str) -> dict[str, str]:
    return {"idempotency-key": name}


def ids(document: Json) -> tuple[str, str, str]:
    return document["session_id"], document["task_id"], document["request_id"]


@contextmanager
def exchange(
    script: Any = None,
    env: Mapping[str, str] | None = None,
    *,
    wiring: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Iterator[tuple[Recording, OfflineModel]]:
    """A service with tools and the offline model behind it, and what is said to it."""
    with (
        OfflineModel(script) as model,
        ServiceThread(config(**spec), {**environment(model), **(env or {})}, **(wiring or {})) as service,
    ):
        recording = Recording(service)
        yield recording, model
        recording.close()


def config(**spec: Any) -> Json:
    return agent_config(name="Recorded", version="0.10", **{"agent": {"plugins": ["Shell"]}, **spec})


def environment(model: OfflineModel) -> dict[str, str]:
    return {
        "TA_BASE_URL": model.base_url,
        "TA_API_KEY": "offline-key",
        "TA_AUTH": "mock",
        "TA_PLUGIN_MODULE": str(HERE / "custom_plugins.py"),
        "TA_PLUGIN_CATALOG_FILE": str(HERE / "catalogue.json"),
    }


def cancel(at: Recording, request_id: str, user: str = "ada") -> None:
    """Without a trace in the recording."""
    at.quiet(f"/requests/{request_id}/cancel", user, "POST")


def pause(at: Recording, words: str = GOVERNED, **fields: Any) -> Json:
    """The `content` of a pause."""
    content: Json = at.post("", json=text(words, **fields)).json()["content"]
    return content
