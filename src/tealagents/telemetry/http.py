"""A span and metrics for each HTTP request, with the names of OpenTelemetry's conventions for servers.

A span continues the caller's trace. Metrics have no label that a client could make up: of a path, only the
route. The query is recorded nowhere, since OAuth's callback has the authorization code in it.
"""

import time
from functools import partial
from typing import Any

from opentelemetry import context, metrics, trace
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tealagents.telemetry.requests import logged_within, method_of, route_of, status_in

#: reads the trace context that a caller sends, and writes it for the services that are called. Baggage is
#: neither read nor passed on
TRACE_CONTEXT = TraceContextTextMapPropagator()
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
#: seconds; as the conventions advise
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


def trace_headers() -> dict[str, str]:
    """The headers with which a service continues the current trace."""
    headers: dict[str, str] = {}
    TRACE_CONTEXT.inject(headers)
    return headers


class HttpRequests:
    """ASGI middleware: observes the requests of all protocols, except probes. A WebSocket is one request."""

    def __init__(self, app: ASGIApp, *, probes: str, traced: bool) -> None:
        self._app = app
        #: what the paths of probes begin with
        self._probes = probes
        self._tracer = trace.get_tracer("tealagents") if traced else None
        meter = metrics.get_meter("tealagents")
        self._duration = meter.create_histogram(
            "http.server.request.duration",
            "s",
            "HTTP requests, a stream to its end.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._active = meter.create_up_down_counter(
            "http.server.active_requests", "{request}", "HTTP requests in progress."
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"].startswith(self._probes):
            await self._app(scope, receive, send)
            return
        method = method_of(scope) if method_of(scope) in _METHODS else "_OTHER"
        about: dict[str, str | int] = {
            "http.request.method": method,
            "url.scheme": scope.get("scheme", "http"),
        }
        under_way, began, status = dict(about), time.perf_counter(), 0

        def noting(message: Message) -> Any:
            nonlocal status
            status = status or status_in(message)
            return send(message)

        span, token = self._begun(scope, about)
        self._active.add(1, under_way)
        try:
            await self._app(scope, receive, noting)
        finally:
            if (route := route_of(scope)) is not None:
                about["http.route"] = route
                span.update_name(f"{method} {route}")
            if status:
                about["http.response.status_code"] = status
            if not status or status >= 500:
                about["error.type"] = str(status or "no_response")
                span.set_status(StatusCode.ERROR)
            span.set_attributes(about)
            self._duration.record(time.perf_counter() - began, about)
            self._active.add(-1, under_way)
            span.end()
            if token is not None:
                context.detach(token)

    def _begun(self, scope: Scope, about: dict[str, str | int]) -> tuple[trace.Span, Any]:
        """Starts the span of a request and makes it the current one; without tracing, it is not recorded.

        Returns the span, and what detaches it from the context (None: nothing is attached).
        """
        if self._tracer is None:
            return trace.INVALID_SPAN, None
        parent = TRACE_CONTEXT.extract(Headers(scope=scope))
        name, path = str(about["http.request.method"]), {"url.path": scope["path"]}
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes={**about, **path})
        logged_within(partial(trace.use_span, span))
        return span, context.attach(trace.set_span_in_context(span, parent))
