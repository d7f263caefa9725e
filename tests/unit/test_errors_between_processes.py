"""Errors that are copied, or passed between processes: what a caller catches is what was raised."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from tealagents.client import ConnectionLost, StillRunning
from tealagents.client.errors import problem_from_document
from tealagents.domain.errors import (
    ApprovalPending,
    CorruptState,
    Draining,
    InsufficientScope,
    InvalidRequest,
    ModelFailed,
    NeedsAuthorization,
    NeedsOwner,
    Overloaded,
    PersistenceUnavailable,
    RequestInProgress,
    TaskBusy,
    Unauthenticated,
)
from tealagents.threads import ThreadMismatch

RAISED: list[Exception] = [
    ConnectionLost("cut", request_id="r", last_event_id=3, idempotency_key="k"),
    StillRunning("r", 5),
    problem_from_document({"code": "task_busy", "detail": "busy", "request_id": "r"}, status=409),
    problem_from_document({"title": "Bad Gateway"}, status=502, retry_after=1),
    InvalidRequest("field", "is odd", malformed=True, task_id="t"),
    Unauthenticated("no", credentials_given=False),
    InsufficientScope("no", required="agents.call"),
    TaskBusy(request_id="r"),
    ApprovalPending(again=True, approval_id="a"),
    RequestInProgress(request_id="r"),
    Overloaded("full", per_user=True),
    Draining(),
    ModelFailed("away", retry_after=2, http_status=500),
    CorruptState("log/1", "is cut", place="in /data", task_id="t"),
    PersistenceUnavailable("no host db"),
    NeedsAuthorization("mail", "https://auth.example", ("read",), begun=True),
    NeedsOwner("not yours", begun=True),
    ThreadMismatch("another agent's"),
]


def through_pickle(error: Exception) -> Any:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("copied", [through_pickle, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_a_copied_error_says_the_same(error: Exception, copied: Callable[[Exception], Exception]) -> None:
    """Its class, text and all that it carries, whatever its constructor takes."""
    same = copied(error)
    assert (type(same), str(same), same.args) == (type(error), str(error), error.args)
    assert vars(same) == vars(error)


def fails() -> None:
    raise problem_from_document({"code": "not_found", "detail": "no task"}, status=404)


def test_an_error_leaves_a_process_pool_whole() -> None:
    """One that could not be read broke the pool, and with it all other calls."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for _ in range(2):
            with pytest.raises(Exception, match="no task") as raised:
                pool.submit(fails).result(60)
            assert raised.typename == "NotFound"
