"""What the log says of exceptions."""

import json
import logging
import sys

import pytest

from tealagents.telemetry.logs import JsonLines, Readable

SECRET = "canary-argument"


def failing() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise ExceptionGroup(SECRET, [ValueError(SECRET)]) from error


def record() -> logging.LogRecord:
    try:
        failing()
    except ExceptionGroup:
        return logging.LogRecord("tool", logging.ERROR, __file__, 1, "tool %s raised", ("a",), sys.exc_info())
    raise AssertionError


@pytest.mark.parametrize("kind", [JsonLines, Readable])
def test_the_text_of_an_exception_is_not_logged(kind: type[JsonLines | Readable]) -> None:
    """It may quote a user: only type and place are logged, of causes and members, too. covers: APP-5"""
    logged = kind(content=False).format(record())
    assert SECRET not in logged
    for name in ("KeyError", "ExceptionGroup", "ValueError", "in failing", "test_telemetry_logs.py"):
        assert name in logged
    assert SECRET in kind(content=True).format(record())


def test_what_asyncio_says_of_a_lost_exception_is_cut() -> None:
    """Its message quotes the exception."""
    message = f"Task exception was never retrieved\nfuture: <Task exception=ValueError('{SECRET}')>"
    lost = logging.LogRecord("asyncio", logging.ERROR, __file__, 1, message, (), None)
    assert (
        json.loads(JsonLines(content=False).format(lost))["message"] == "Task exception was never retrieved"
    )


def test_what_a_tool_server_says_forges_no_line() -> None:
    """Newlines and escape sequences of a name are shown as they are written, in texts and in tracebacks."""
    name = "evil\n12:00:00 ERROR   forged\x1b[2J\u202e"
    try:
        raise ValueError(name)
    except ValueError:
        raised = logging.LogRecord("tool", logging.INFO, __file__, 1, "called %s", (name,), sys.exc_info())
    for content in (False, True):
        lines = Readable(content=content).format(raised).split("\n")
        assert lines[0].endswith(r"called evil\n12:00:00 ERROR   forged\x1b[2J\u202e")
        assert all(line.isprintable() for line in lines)
        assert all(line.startswith("  ") for line in lines[1:])
