"""When a call is tried again: rules without a wire."""

import time

import pytest

from tealagents.llm.failures import Complaint, refused
from tealagents.llm.retries import Retries, can_help, seconds_of

NOW = 1_700_000_000.0


def retries(*, limit: int = 2, burst: int = 10, ratio: float = 0.1, delay: float = 0.25) -> Retries:
    return Retries(limit=limit, delay=delay, ratio=ratio, burst=burst)


def test_a_call_is_tried_again_twice() -> None:
    """And not a third time."""
    policy = retries()
    pauses = [policy.pause(retry, asked=None, remaining=60) for retry in (1, 2, 3)]
    assert [pause is not None for pause in pauses] == [True, True, False]


def test_pauses_double() -> None:
    """With some chance in them, so that clients do not knock together."""
    policy = retries(limit=4)
    for retry, full in ((1, 0.25), (2, 0.5), (3, 1.0)):
        pause = policy.pause(retry, asked=None, remaining=60)
        assert pause is not None
        assert 0.75 * full <= pause <= full


def test_the_budget_is_everybodys() -> None:
    """A burst, and then one retry for ten calls."""
    policy = retries(burst=2)
    assert [policy.pause(1, asked=None, remaining=60) is not None for _ in range(3)] == [True, True, False]
    for _ in range(9):
        policy.begin()
    assert policy.pause(1, asked=None, remaining=60) is None
    for _ in range(2):
        policy.begin()
    assert policy.pause(1, asked=None, remaining=60) is not None


def test_a_quiet_time_saves_no_more_than_the_burst() -> None:
    """A thousand calls that went well do not allow a hundred retries at once."""
    policy = retries(burst=3)
    for _ in range(1000):
        policy.begin()
    assert sum(policy.pause(1, asked=None, remaining=60) is not None for _ in range(50)) == 3


def test_no_pause_outlasts_the_deadline() -> None:
    """And what is not begun costs nothing of the budget."""
    policy = retries(burst=1)
    assert policy.pause(1, asked=30, remaining=30) is None
    assert policy.pause(1, asked=30, remaining=31) == 30


@pytest.mark.parametrize(
    ("milliseconds", "seconds", "expected"),
    [
        (None, None, None),
        (None, "3", 3.0),
        (None, "1.5", 1.5),
        ("250", "3", 0.25),
        ("soon", "3", 3.0),
        (None, "-1", 0.0),
        (None, "inf", None),
        (None, "nan", None),
        (None, "soon", None),
        (None, "Tue, 14 Nov 2023 22:13:30 GMT", 10.0),
        (None, "Tue, 14 Nov 2023 22:13:10 GMT", 0.0),
        (None, "Tue, 99 Nov 2023 22:13:10 GMT", None),
    ],
)
def test_what_the_service_asks_for_is_understood(
    milliseconds: str | None, seconds: str | None, expected: float | None
) -> None:
    """Milliseconds, seconds, or a date; nonsense asks for nothing."""
    assert seconds_of(milliseconds, seconds, NOW) == expected


def test_a_date_without_a_zone_is_in_universal_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the service runs (RFC 9110, 5.6.7: the form of `asctime`)."""
    try:
        with monkeypatch.context() as here:
            here.setenv("TZ", "America/New_York")
            time.tzset()
            assert seconds_of(None, "Tue Nov 14 22:13:30 2023", NOW) == 10.0
    finally:
        time.tzset()


@pytest.mark.parametrize(
    ("status", "code", "advice", "helps"),
    [
        (500, "", None, True),
        (529, "", None, True),
        (409, "", None, False),
        (400, "", None, False),
        (501, "", None, False),
        (429, "rate_limit_exceeded", None, True),
        (429, "insufficient_quota", None, False),
        (400, "", "true", True),
        (503, "", "false", False),
        (503, "", "maybe", True),
        (400, "conversation_locked", None, True),
        (400, "conversation_locked", "false", False),
    ],
)
def test_only_what_may_pass_is_tried_again(status: int, code: str, advice: str | None, helps: bool) -> None:
    """By status, by code, and by the service's own advice, which wins."""
    assert can_help(status, code, advice) is helps


@pytest.mark.parametrize(("asked", "pause"), [(None, 2.0), (0.5, 0.5)])
def test_a_conversation_that_is_busy_is_given_seconds(asked: float | None, pause: float) -> None:
    """The usual pause would be over before the response that runs there; what the service asks for wins."""
    said = Complaint(status=400, code="conversation_locked", message="Please retry in a few seconds.")
    assert refused(said, (), url="", retry_after=asked).retry_after == pause


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (None, ""),
        (0.0, ""),
        (0.2, " (it asks to wait 1 s)"),
        (120.0, " (it asks to wait 120 s)"),
        (34_559_998.2, " (it asks to wait 34559999 s)"),
        (1e300, " (it asks to wait 1e+300 s)"),
    ],
)
def test_an_error_names_the_seconds_that_the_service_asks_for(asked: float | None, named: str) -> None:
    """Whole ones, and in few characters whatever the number."""
    said = Complaint(status=503, message="Overloaded.")
    detail = refused(said, (), url="", retry_after=asked).error.detail
    assert detail == f"The model service answered with HTTP 503: Overloaded.{named}"
