"""What the tests of several stores need."""

import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tealagents.stores import local_link


@pytest.fixture(autouse=True)
def no_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch of a local store is woken by a notification or not at all: by no later look for a lost one."""
    monkeypatch.setattr(local_link, "RECHECK_SECONDS", 3600.0)


@pytest.fixture
def small_disk() -> Callable[[], AbstractContextManager[None]]:
    """Within it no file of this process grows beyond 100,000 bytes: as a disk that is full."""

    @contextmanager
    def limited() -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited
