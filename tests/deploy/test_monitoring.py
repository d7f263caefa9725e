"""Alerts and dashboard, tried with a real Prometheus that scrapes a running service."""

import itertools
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from monitored import MonitoredService, message, monitored
from prometheus_server import PrometheusServer, Promtool

from tealagents.testing.forking import Nursery
from tealagents.testing.pytest_servers import running

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
BOARD = json.loads((DEPLOY / "grafana" / "tealagents.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
#: names in alerts that are labels
LABELS = ("gen_ai_request", "http_response", "db_operation", "tealagents_plugin")
SCRIPT = """
rules:
  - when: {text: not today}
    reply: {error: {status: 400, message: not today}}
"""


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


@contextmanager
def traffic(service: MonitoredService) -> Iterator[None]:
    """Messages of every kind, again and again: answered, refused, failed, racing for one task.

    Several rounds between two scrapes are enough: more would only keep the machine from all else.
    """
    over = threading.Event()

    def talk(user: str, task_id: str) -> None:
        with service.client(user) as client, service.client(None) as anonymous:
            while not over.wait(0.1):
                client.post("", json=message('call Work-repeat {"text": "a", "times": 2}'))
                client.post("", json=message("hello", task_id=task_id))
                client.post("", json=message("hello"), headers={"accept": "text/event-stream"})
                client.post("", json=message("not today"))
                anonymous.post("", json=message("hello"))

    with service.client("ada") as ada:
        task_id = ada.post("", json=message("hello")).raise_for_status().json()["task_id"]
    with ThreadPoolExecutor() as pool:
        talking = [pool.submit(talk, "ada", task_id) for _ in range(3)]
        try:
            yield
        finally:
            over.set()
    for each in talking:
        each.result()


def test_dashboard_and_alerts_find_what_they_ask_for(nursery: Nursery, tmp_path: Path) -> None:
    """Every query of the dashboard, run as Grafana runs it, finds numbers in what a service of two workers
    reported to a real Prometheus; alerts use metrics that exist, and are evaluated without an error."""
    with (
        monitored(nursery, tmp_path, SCRIPT, workers=2) as service,
        running(lambda: PrometheusServer(f"127.0.0.1:{service.metrics_port}", ALERTS)) as prometheus,
        traffic(service),
    ):
        missing = set(QUERIES)

        def look() -> list[str]:
            missing.difference_update([query for query in missing if finds_numbers(prometheus, query)])
            return sorted(missing)

        assert until(look) == []
        asked = {name for rule in rules() for name in metrics_in(rule["expr"])}
        assert len(asked) >= 12
        assert asked <= prometheus.names()
        assert until(lambda: [each for each in prometheus.rules() if each["health"] == "unknown"]) == []
        assert [each["health"] for each in prometheus.rules()] == ["ok"] * len(rules())


def finds_numbers(prometheus: PrometheusServer, query: str) -> bool:
    filled = query.replace("$__rate_interval", "60s").replace("$agent", "Watched")
    assert "$" not in filled
    return any(not math.isnan(float(sample["value"][1])) for sample in prometheus.query(filled))


def metrics_in(expression: str) -> set[str]:
    """The names of the metrics in an expression."""
    names = re.findall(r"\b(?:tealagents|gen_ai|http|db|process)_\w+(?=[{\[ )]|$)", expression)
    return {name for name in names if not name.startswith(LABELS)}


def until(missing: Callable[[], list[Any]]) -> list[Any]:
    """What is still missing when nothing is, or after three minutes; Prometheus learns more once a second."""
    deadline = time.monotonic() + 180
    while (found := missing()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def test_alerts_are_raised_when_they_should_be() -> None:
    """promtool finds nothing wrong with the rules, nor in how they behave over invented time."""
    with running(Promtool) as tool:
        assert f"{len(rules())} rules found" in tool.run("check", "rules", ALERTS.name, within=ALERTS.parent)
        assert "SUCCESS" in tool.run("test", "rules", "alerts.test.yaml", within=ALERTS.parent)


def test_every_alert_is_tried_and_explained() -> None:
    """None without a test of both: that it is raised, and that it is not. The page on alerts lists all."""
    tests = yaml.safe_load((ALERTS.parent / "alerts.test.yaml").read_text())["tests"]
    tried = [case for test in tests for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in rules()}
    raised = {case["alertname"] for case in tried if case["exp_alerts"]}
    assert raised == names
    page = (DEPLOY.parent / "docs" / "deploying.md").read_text()
    assert set(re.findall(r"^\| `(TealAgents\w+)` \|", page, re.MULTILINE)) == names
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]


def test_the_dashboard_is_in_good_order() -> None:
    """Panels have ids of their own, a unit and an explanation, overlap nowhere, and ask the chosen source."""
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in PANELS:
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        for asking in (panel, *panel["targets"]):
            assert asking["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for one, other in itertools.combinations([panel["gridPos"] for panel in BOARD["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
