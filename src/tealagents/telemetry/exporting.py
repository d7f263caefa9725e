"""OpenTelemetry's SDK: its OTLP exporters, and its reader for Prometheus."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from opentelemetry import metrics, trace
from opentelemetry._logs import Logger, SeverityNumber, set_logger_provider
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry, ProcessCollector

from tealagents.config import TelemetryOptions
from tealagents.telemetry.logs import Ids
from tealagents.telemetry.scraping import offered

_SEVERITIES = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
    (logging.NOTSET, SeverityNumber.DEBUG),
)


class Exported(logging.Handler):
    """Hands log records to OpenTelemetry; the span they belong to is the current one."""

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("opentelemetry"):
            return  # an exporter that fails must not feed itself
        severity = next(number for level, number in _SEVERITIES if record.levelno >= level)
        attributes = {"logger": record.name}
        attributes |= {f"tealagents.{name}": value for name, value in getattr(record, "ids", {}).items()}
        if record.exc_info and record.exc_info[0] is not None:
            attributes["exception.type"] = record.exc_info[0].__name__
        self._logger.emit(
            timestamp=int(record.created * 1e9),
            severity_number=severity,
            severity_text=record.levelname,
            body=record.getMessage(),
            attributes=attributes,
        )


class WithoutQueries(SpanProcessor):
    """Masks the queries of URLs: an authorization comes back with its code and state in one."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if span.attributes and "url.query" in span.attributes:
            span.set_attribute("url.query", "REDACTED")


@contextmanager
def exporting(options: TelemetryOptions, name: str, version: str) -> Iterator[None]:
    """Exports for as long as it is entered, and what is left at the end."""
    resource = Resource.create(
        {
            "service.name": name,
            "service.version": version,
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        }
    )
    base = options.endpoint.rstrip("/") if options.endpoint else None
    with ExitStack() as stack:
        if base is not None:
            stack.enter_context(_traces_and_logs(base, resource))
        stack.enter_context(_metrics(options, base, resource))
        yield


@contextmanager
def _traces_and_logs(base: str, resource: Resource) -> Iterator[None]:
    tracing = TracerProvider(resource=resource)
    tracing.add_span_processor(WithoutQueries())
    tracing.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{base}/v1/traces")))
    logs = LoggerProvider(resource=resource)
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(endpoint=f"{base}/v1/logs")))
    trace.set_tracer_provider(tracing)
    set_logger_provider(logs)
    handler = Exported(logs.get_logger("tealagents"))
    handler.addFilter(Ids())
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        tracing.shutdown()
        logs.shutdown()


@contextmanager
def _metrics(options: TelemetryOptions, base: str | None, resource: Resource) -> Iterator[None]:
    """The same metrics for both: pushed to the endpoint, read at the port."""
    readers: list[MetricReader] = []
    registry = CollectorRegistry()
    if base is not None:
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{base}/v1/metrics")))
    if options.metrics_port is not None:
        readers.append(_reader(registry))
        ProcessCollector(registry=registry)
    metering = MeterProvider(resource=resource, metric_readers=readers)
    metrics.set_meter_provider(metering)
    with ExitStack() as stack:
        stack.callback(metering.shutdown)
        if options.metrics_port is not None:
            stack.enter_context(offered(registry, options.metrics_host, options.metrics_port))
        yield


def _reader(registry: CollectorRegistry) -> PrometheusMetricReader:
    """Puts the agent's name on each metric, so that several agents can be distinguished."""
    return PrometheusMetricReader(
        scope_info_enabled=False,
        resource_attribute_filter=lambda name: name == "service.name",
        registry=registry,
    )
