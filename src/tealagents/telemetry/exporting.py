"""OpenTelemetry's SDK: its OTLP exporters, and its reader for Prometheus."""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import requests
from opentelemetry import metrics, trace
from opentelemetry._logs import Logger, SeverityNumber, set_logger_provider
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.environment_variables import OTEL_TRACES_SAMPLER
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from prometheus_client import CollectorRegistry, ProcessCollector

from tealagents.config import TelemetryOptions
from tealagents.engine.observer import current_ids
from tealagents.outbound.addresses import is_loopback
from tealagents.telemetry.logs import JsonLines, named_facts, named_ids, said
from tealagents.telemetry.scraping import offered

#: most seconds for exporting the remaining data at shutdown
LAST_EXPORTS_SECONDS = 2.0

_EVERY_CALL = ParentBased(ALWAYS_ON, remote_parent_not_sampled=ALWAYS_ON)

_SEVERITIES = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
    (logging.NOTSET, SeverityNumber.DEBUG),
)


def _unquoted(record: logging.LogRecord) -> bool:
    """Replaces what OpenTelemetry logs of a header that it cannot read: it quotes the header, which is mostly
    a credential."""
    record.msg, record.args = _UNREADABLE_HEADER, ()
    return True


_UNREADABLE_HEADER = (
    "a header in OTEL_EXPORTER_OTLP_HEADERS, or in one of its variants, is left out: it must be name=value, "
    "percent-encoded"
)
logging.getLogger("opentelemetry.util.re").addFilter(_unquoted)


class Exported(logging.Handler):
    """Hands log records to OpenTelemetry; the span they belong to is the current one."""

    def __init__(self, logger: Logger, *, content: bool) -> None:
        super().__init__()
        self._logger = logger
        self._content = content
        self._lines = JsonLines(content=content)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("opentelemetry"):
            return  # the log of a failing exporter must not be exported in turn
        try:
            self._export(record)
        except Exception:  # noqa: BLE001 - as in every handler: a wrong log call must not fail its caller
            self.handleError(record)

    def _export(self, record: logging.LogRecord) -> None:
        severity = next(number for level, number in _SEVERITIES if record.levelno >= level)
        attributes = {
            "logger": record.name,
            **named_ids(current_ids.get()),
            **named_facts(getattr(record, "facts", {})),
        }
        if record.exc_info and record.exc_info[0] is not None:
            attributes["exception.type"] = record.exc_info[0].__name__
            attributes["exception.stacktrace"] = self._lines.formatException(record.exc_info)
        self._logger.emit(
            timestamp=int(record.created * 1e9),
            severity_number=severity,
            severity_text=record.levelname,
            body=_sendable(said(record, content=self._content)),
            attributes={name: _sendable(value) for name, value in attributes.items()},
        )


def _sendable(value: object) -> str | float:
    """The value as a number or valid Unicode: an invalid text would lose all records exported with it."""
    if isinstance(value, int | float):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


class OwnTraces(TracerProvider):
    """Records our own spans only. Spans of libraries could export content, such as the text of an MCP
    server's error. The calls that libraries make continue the trace from our span around them."""

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **options: Any) -> trace.Tracer:
        if instrumenting_module_name != "tealagents":
            return trace.NoOpTracer()
        return super().get_tracer(instrumenting_module_name, *args, **options)


@contextmanager
def exporting(options: TelemetryOptions, name: str, version: str) -> Iterator[None]:
    """Exports while the context is entered; at the end, exports the remaining data."""
    resource = Resource.create(
        {
            "service.name": name,
            "service.version": version,
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        }
    )
    base = options.endpoint.rstrip("/") if options.endpoint else None
    registry = CollectorRegistry()
    metering = _metering(options, base, resource, registry)
    providers: list[MeterProvider | TracerProvider | LoggerProvider] = [metering]
    with ExitStack() as stack:
        stack.callback(_shut_down, providers)
        if base is not None:
            tracing, logs = _tracing(base, resource), _logging(base, resource)
            providers += [tracing, logs]
            stack.enter_context(_exported(logs, content=options.log_content))
        if options.metrics_port is not None:
            stack.enter_context(offered(registry, options.metrics_host, options.metrics_port))
        yield


def refused_export(endpoint: str, seconds: float) -> str | None:
    """The first error of the exporter when it sends a trace to the collector; None if the collector accepts
    it."""
    said: list[str] = []
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=seconds, session=_session(endpoint))

    def noted(record: logging.LogRecord) -> bool:
        said.append(record.getMessage().partition(" encountered while exporting")[0])
        if len(said) == 1:
            exporter.shutdown()  # type: ignore[no-untyped-call]  # it would try again
        return False

    log = logging.getLogger(OTLPSpanExporter.__module__)
    log.addFilter(noted)
    try:
        taken = exporter.export([]) is SpanExportResult.SUCCESS
    finally:
        log.removeFilter(noted)
    return None if taken else next(iter(said), "the export failed")


def _shut_down(providers: Iterable[MeterProvider | TracerProvider | LoggerProvider]) -> None:
    """Exports the remaining data concurrently: a collector that does not answer must not keep the process."""
    threads = [threading.Thread(target=each.shutdown, daemon=True, name="last exports") for each in providers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LAST_EXPORTS_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _session(endpoint: str) -> requests.Session | None:
    """A session without the environment's proxy if the collector is on loopback; None: the exporter's own."""
    if not is_loopback(endpoint):
        return None
    session = requests.Session()
    session.trust_env = False
    return session


def _tracing(base: str, resource: Resource) -> TracerProvider:
    # calls are recorded even if the caller does not record its own trace
    sampler = None if os.environ.get(OTEL_TRACES_SAMPLER) else _EVERY_CALL
    tracing = OwnTraces(sampler, resource=resource, shutdown_on_exit=False)
    tracing.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{base}/v1/traces", session=_session(base)))
    )
    trace.set_tracer_provider(tracing)
    return tracing


def _logging(base: str, resource: Resource) -> LoggerProvider:
    logs = LoggerProvider(resource=resource, shutdown_on_exit=False)
    logs.add_log_record_processor(
        BatchLogRecordProcessor(OTLPLogExporter(endpoint=f"{base}/v1/logs", session=_session(base)))
    )
    set_logger_provider(logs)
    return logs


@contextmanager
def _exported(logs: LoggerProvider, *, content: bool) -> Iterator[None]:
    """Exports log records while the context is entered."""
    handler = Exported(logs.get_logger("tealagents"), content=content)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _metering(
    options: TelemetryOptions, base: str | None, resource: Resource, registry: CollectorRegistry
) -> MeterProvider:
    """The provider of metrics, which are pushed to the endpoint, offered at the port, or both."""
    readers: list[MetricReader] = []
    if base is not None:
        readers.append(
            PeriodicExportingMetricReader(
                OTLPMetricExporter(endpoint=f"{base}/v1/metrics", session=_session(base))
            )
        )
    if options.metrics_port is not None:
        readers.append(_reader(registry))
        ProcessCollector(registry=registry)
    metering = MeterProvider(resource=resource, metric_readers=readers, shutdown_on_exit=False)
    metrics.set_meter_provider(metering)
    return metering


def _reader(registry: CollectorRegistry) -> PrometheusMetricReader:
    """Puts the agent's name on each metric, so that several agents can be distinguished."""
    return PrometheusMetricReader(
        scope_info_enabled=False,
        resource_attribute_filter=lambda name: name == "service.name",
        registry=registry,
    )
