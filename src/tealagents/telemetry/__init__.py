"""Traces, metrics and logs.

=============  ==========================================================================
`requests`     one line in the log for each request
`http`         a span and metrics for each HTTP request, which continue the caller's trace context
`logs`         one line per record, with the ids of its request; no content unless it is allowed
`exporting`    OpenTelemetry's SDK and its OTLP exporters, only where an endpoint is given
`scraping`     `/metrics` for Prometheus, on an address of its own, only where a port is given
`observing`    spans and metrics of an agent, its model calls and its tools (GenAI conventions)
`stores`       a store whose operations are measured
=============  ==========================================================================

Traces and metrics are off until an endpoint or a port is given: until then OpenTelemetry's SDK is not
imported, and a turn has no overhead. Used by what puts a service together and by the command line; the engine
knows only `engine.observer.Observer`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tealagents.config import TelemetryOptions
from tealagents.telemetry.logs import configure_logs


@contextmanager
def configured(options: TelemetryOptions, name: str, version: str) -> Iterator[None]:
    """Configures logging, and runs the exporters while the context is entered."""
    configure_logs(options.log_level, content=options.log_content)
    if not options.metered:
        yield
        return
    from tealagents.telemetry.exporting import exporting

    with exporting(options, name, version):
        yield
