"""What the log says of exceptions, and what of it is exported."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

from tealagents.engine.observer import current_ids
from tealagents.telemetry.exporting import Exported
from tealagents.telemetry.logs import JsonLines, Readable, configure_logs

SECRET = "canary-argument"


@pytest.fixture
def exported() -> Iterator[InMemoryLogRecordExporter]:
    """What is logged, as it is exported."""
    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    handler = Exported(provider.get_logger("tealagents"), content=False)
    logging.getLogger().addHandler(handler)
    yield exporter
    logging.getLogger().removeHandler(handler)


def bodies(exporter: InMemoryLogRecordExporter) -> list[str]:
    return [str(each.log_record.body) for each in exporter.get_finished_logs()]


@pytest.fixture
def unconfigured() -> Iterator[None]:
    """No logger has a level of its own; afterwards handlers, filters and levels are what they were."""
    root, named = logging.getLogger(), logging.Logger.manager.loggerDict
    before = {name: each.level for name, each in named.items() if isinstance(each, logging.Logger)}
    for name in before:
        logging.getLogger(name).setLevel(logging.NOTSET)
    handlers, level, filters = [*root.handlers], root.level, [*logging.getLogger("uvicorn.error").filters]
    yield
    root.handlers[:], logging.getLogger("uvicorn.error").filters[:] = handlers, filters
    root.setLevel(level)
    for name in named:
        logging.getLogger(name).setLevel(before.get(name, logging.NOTSET))


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


def test_what_asyncio_says_of_a_lost_exception_is_exported_as_it_is_logged(
    exported: InMemoryLogRecordExporter,
) -> None:
    """Cut as well: a collector keeps what it is sent."""
    logging.getLogger("asyncio").error(f"Task exception was never retrieved\nfuture: {SECRET}")
    assert bodies(exported) == ["Task exception was never retrieved"]


def test_a_line_is_exported_with_its_facts_and_ids(exported: InMemoryLogRecordExporter) -> None:
    """Named as on spans; a value that no attribute can have is text."""
    facts = {"route": "GET /A/1", "status": 503, "code": "overloaded", "duration": 0.5, "prompt_tokens": 7}
    logging.getLogger("requests").warning("GET", extra={"facts": {**facts, "task_id": Path("t\udc80")}})
    token = current_ids.set({"request_id": "r"})
    logging.getLogger("requests").warning("ended", extra={"facts": {"status": "Failed"}})
    current_ids.reset(token)
    encode_logs(exported.get_finished_logs())
    call, message = (dict(each.log_record.attributes or {}) for each in exported.get_finished_logs())
    assert call == {
        "logger": "requests",
        "tealagents.route": "GET /A/1",
        "http.response.status_code": 503,
        "error.type": "overloaded",
        "tealagents.duration": 0.5,
        "gen_ai.usage.input_tokens": 7,
        "tealagents.task_id": r"t\udc80",
    }
    assert message == {"logger": "requests", "tealagents.request_id": "r", "tealagents.status": "Failed"}


@pytest.mark.parametrize("content", [False, True])
def test_where_an_exception_was_raised_is_exported(
    exported: InMemoryLogRecordExporter, content: bool
) -> None:
    """As it is logged: without its text, unless content is allowed. covers: APP-5"""
    (handler,) = (each for each in logging.getLogger().handlers if isinstance(each, Exported))
    Exported(handler._logger, content=content).handle(record())
    [raised] = exported.get_finished_logs()
    where = str((raised.log_record.attributes or {})["exception.stacktrace"])
    assert where == JsonLines(content=content).formatException(record().exc_info)
    assert "in failing" in where
    assert (SECRET in where) is content


def test_a_wrong_log_call_fails_no_caller(
    exported: InMemoryLogRecordExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without a collector: Python reports it on standard error."""
    plugin = logging.Logger("plugin")  # a logger apart: pytest's own handlers raise
    plugin.addHandler(next(each for each in logging.getLogger().handlers if isinstance(each, Exported)))
    monkeypatch.setattr(logging, "raiseExceptions", False)
    plugin.warning("two %s %s", 1)
    plugin.warning("one %s", 1)
    assert bodies(exported) == ["one 1"]


def test_half_a_character_costs_no_other_record(exported: InMemoryLogRecordExporter) -> None:
    """Records are exported together: one that cannot be encoded would lose all of them."""
    (handler,) = (each for each in logging.getLogger().handlers if isinstance(each, Exported))
    for message in (
        "tool x\ud800",
        "another",
    ):  # not by a logger: what pytest keeps of it cannot be sent, either
        handler.handle(logging.makeLogRecord({"name": "tool", "msg": message, "levelno": logging.WARNING}))
    sent = encode_logs(exported.get_finished_logs()).SerializeToString()
    assert rb"tool x\ud800" in sent
    assert b"another" in sent


@pytest.mark.usefixtures("unconfigured")
def test_allowing_content_allows_no_credentials(exported: InMemoryLogRecordExporter) -> None:
    """A signed call, as to DynamoDB, logs no session token at DEBUG. covers: APP-5"""
    configure_logs("DEBUG", content=True)
    request = AWSRequest("POST", "https://dynamodb.eu-central-1.amazonaws.com/", data=b"{}")
    signing = SigV4Auth(Credentials("id", "secret", SECRET), "dynamodb", "eu-central-1")
    signing.add_auth(request)
    assert request.headers["x-amz-security-token"] == SECRET
    logging.getLogger("tool").debug("seen")
    assert bodies(exported)[-1] == "seen"
    assert not any(SECRET in body for body in bodies(exported))


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("content", [False, True])
def test_what_mem0_quotes_is_logged_where_content_is(
    exported: InMemoryLogRecordExporter, content: bool
) -> None:
    """Its errors quote what was remembered."""
    configure_logs("INFO", content=content)
    logging.getLogger("mem0.memory.main").error("LLM extraction failed (async): %s", SECRET)
    assert bool(bodies(exported)) is content


def test_a_header_for_the_collector_that_cannot_be_read_is_not_quoted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is mostly a key. The log says which variable to correct. covers: APP-5"""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization: {SECRET}")
    OTLPSpanExporter(endpoint="http://127.0.0.1:1").shutdown()  # type: ignore[no-untyped-call]
    assert "OTEL_EXPORTER_OTLP_HEADERS" in caplog.text
    assert SECRET not in caplog.text


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
