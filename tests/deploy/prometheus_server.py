"""A private Prometheus that scrapes one address once a second, and runs queries."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import Any, Self

import httpx
import yaml

from tealagents.testing.servers import Server, ServerMissing

JOB = "tealagents"


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`."""
    if found := which(name):
        return found
    raise ServerMissing(f"{name}: `apt install prometheus`, `brew install prometheus`")


class Promtool:
    """Checks rules, and tries them over invented time."""

    def __enter__(self) -> Self:
        self._program = program("promtool")
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def run(self, *arguments: str, within: Path) -> str:
        """What it says, in the folder `within`; fails where it finds something wrong."""
        done = subprocess.run([self._program, *arguments], cwd=within, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class PrometheusServer(Server):
    """`prometheus`, with rules where a file of them is given."""

    name = "prometheus"

    def __init__(self, target: str, rules: Path) -> None:
        super().__init__()
        self._target = target
        self._rules = rules

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def prepare(self) -> None:
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(self._rules)],
            "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": [self._target]}]}],
        }
        (self.directory / "prometheus.yaml").write_text(yaml.safe_dump(config))

    def command(self) -> Sequence[str]:
        return [
            program("prometheus"),
            "--config.file=prometheus.yaml",
            "--storage.tsdb.path=data",
            f"--web.listen-address={self.host}:{self.port}",
        ]

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=60).status_code == 200
        except httpx.TransportError as error:
            raise ConnectionError from error

    def query(self, expression: str) -> list[Any]:
        """The samples of an instant query, as Prometheus sees it now."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=60)
        assert answer.status_code == 200, f"{expression}: {answer.text}"
        found: list[Any] = answer.json()["data"]["result"]
        return found

    def rules(self) -> list[Any]:
        """All alerts, as they were last evaluated."""
        groups = httpx.get(f"{self.url}/api/v1/rules", timeout=60).json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def names(self) -> set[str]:
        """The names of all metrics that were scraped."""
        return set(httpx.get(f"{self.url}/api/v1/label/__name__/values", timeout=60).json()["data"])
