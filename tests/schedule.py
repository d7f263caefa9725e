"""Which worker of pytest-xdist takes which file of tests, and when."""

import zlib
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

#: the files that take longest, longest first: begun last, one would keep a single worker busy at the end
LONGEST = (
    "unit/test_cli_serve.py",
    "browser/test_failures.py",
    "conformance/test_dynamodb.py",
    "browser/test_console_views.py",
    "conformance/test_postgres.py",
    "api/test_state_commands.py",
    "conformance/test_redis_cluster.py",
    "browser/test_hostile.py",
    "demos/test_demos.py",
    "crash/test_drain.py",
    "unit/test_cli_doctor.py",
    "unit/test_tools_mcp.py",
    "conformance/test_redis.py",
    "api/test_ownership.py",
    "api/test_streams.py",
    "api/test_schemathesis.py",
    "api/mcp_protocol/test_mcp_conformance.py",
    "unit/test_outbound.py",
    "browser/test_roles.py",
    "crash/test_store_faults.py",
    "deploy/test_monitoring.py",
    "unit/test_tools_openapi.py",
    "browser/test_accessibility.py",
    "crash/test_kill_points.py",
    "unit/test_threads_model.py",
    "api/test_approvals.py",
    "api/ag_ui_api/test_agui_replicas.py",
    "operations/test_runbooks.py",
    "api/test_limits.py",
    "unit/test_client_http.py",
)


def _turn(item: pytest.Item) -> tuple[int, int]:
    """Long files first; the others mixed, the same way each time: those that wait with those that compute."""
    name = item.path.relative_to(item.config.rootpath / "tests").as_posix()
    return (LONGEST.index(name), 0) if name in LONGEST else (len(LONGEST), zlib.crc32(name.encode()))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In which order workers take the files."""
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


class Schedule(LoadFileScheduling):  # type: ignore[misc]
    """Each worker runs whole files. One that has a browser keeps it for the next file that needs one, so that
    few are started, and half of the workers have none as long as there is anything else to do."""

    def _assign_work_unit(self, node: Any) -> None:
        last = {each: next(reversed(files), "") for each, files in self.assigned_work.items()}
        preferred: bool | None = None
        browsing = sum(map(_has_browser, last.values()))
        if _has_browser(last.get(node, "")):
            preferred = True
        elif browsing >= max(len(last) // 2, 1):
            preferred = False
        for file in self.workqueue:
            if _has_browser(file) is preferred:
                self.workqueue.move_to_end(file, last=False)
                break
        super()._assign_work_unit(node)


def _has_browser(file: str) -> bool:
    return file.startswith("tests/browser/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Schedule | None:
    return Schedule(config, log) if config.getoption("dist") == "loadfile" else None
