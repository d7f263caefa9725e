"""A collector of telemetry, which keeps what it is sent."""

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

TRACES = b"/v1/traces\n"


class Collector:
    """Takes what is exported by OTLP and keeps the bytes."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                collector.taken.append(self.path.encode() + b"\n" + self.rfile.read(size))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def spans(self) -> list[Span]:
        """Those that were exported."""
        bodies = [each.removeprefix(TRACES) for each in self.taken if each.startswith(TRACES)]
        exports = map(ExportTraceServiceRequest.FromString, bodies)
        resources = [resource for export in exports for resource in export.resource_spans]
        return [span for each in resources for scope in each.scope_spans for span in scope.spans]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "Collector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def attributes(span: Span) -> Mapping[str, str]:
    """Those of a span that are text."""
    return {each.key: each.value.string_value for each in span.attributes}
