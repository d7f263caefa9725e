"""What the tests of several stores need."""

import pytest

from tealagents.stores import local_link


@pytest.fixture(autouse=True)
def no_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch of a local store is woken by a notification or not at all: by no later look for a lost one."""
    monkeypatch.setattr(local_link, "RECHECK_SECONDS", 3600.0)
