"""A service process whose metrics can be read, and ways to read them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tealagents.llm.offline import OfflineModel
from tealagents.testing.forking import ForkedService, Nursery
from tealagents.testing.servers import free_port
from tealagents.testing.service import Process, agent_config

PLUGINS = Path(__file__).parents[1] / "api" / "working" / "custom_plugins.py"


class MonitoredService(ForkedService):
    """`tealagents serve` with `/metrics` on a port of its own."""

    def __init__(
        self, nursery: Nursery, folder: Path, model: OfflineModel, *, workers: int = 1, **env: str
    ) -> None:
        self.metrics_port = free_port()
        self._arguments = ["--workers", str(workers)] if workers > 1 else []
        super().__init__(
            nursery,
            agent_config(name="Watched", agent={"plugins": ["Work"]}, concurrency="enqueue"),
            {
                "TA_AUTH": "mock",
                "TA_BASE_URL": model.base_url,
                "TA_API_KEY": "offline-key",
                "TA_PERSISTENCE": f"sqlite:///{folder / 'state.db'}",
                "TA_PLUGIN_MODULE": str(PLUGINS),
                "TA_METRICS_PORT": str(self.metrics_port),
                # a model that is silent stays so for as long as a slow machine takes
                "TA_LIMITS__FIRST_PIECE_TIMEOUT_SECONDS": "600",
                **env,
            },
        )

    def _launch(self, arguments: list[str], env: dict[str, str]) -> Process:
        return super()._launch([*arguments, *self._arguments], env)

    def metrics(self) -> str:
        """The page that Prometheus reads."""
        answer = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return answer.text

    def samples(self) -> list[Sample]:
        return [s for family in text_string_to_metric_families(self.metrics()) for s in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that have these labels; 0 where there are none."""
        return sum(
            sample.value
            for sample in self.samples()
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@contextmanager
def monitored(
    nursery: Nursery, folder: Path, script: Any = None, **options: Any
) -> Iterator[MonitoredService]:
    """A monitored service, and behind it an offline model with a script."""
    with OfflineModel(script) as model, MonitoredService(nursery, folder, model, **options) as service:
        yield service


def message(words: str, **fields: Any) -> Mapping[str, Any]:
    return {"items": [{"content_type": "text", "content": words}], **fields}
