"""What the tests of several stores need."""

import pytest

from tealagents.stores import local_link, postgres_link, redis_link


@pytest.fixture(autouse=True)
def no_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch of a local store is woken by a notification or not at all: by no later look for a lost one."""
    monkeypatch.setattr(local_link, "RECHECK_SECONDS", 3600.0)


@pytest.fixture
def patient_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link is lost where it breaks, and not because a busy machine takes a second to answer: all watches
    would be woken, and a warning logged."""
    for link in (postgres_link, redis_link):
        monkeypatch.setattr(link, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(postgres_link, "_TIMEOUTS", {"timeout": 240.0, "command_timeout": 60.0})
