"""A collector of telemetry, which keeps what it is sent."""

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

TRACES, LOGS = b"/v1/traces\n", b"/v1/logs\n"


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
        exports = map(ExportTraceServiceRequest.FromString, self._bodies(TRACES))
        resources = [resource for export in exports for resource in export.resource_spans]
        return [span for each in resources for scope in each.scope_spans for span in scope.spans]

    @property
    def records(self) -> list[LogRecord]:
        """The lines of the log that were exported."""
        exports = map(ExportLogsServiceRequest.FromString, self._bodies(LOGS))
        resources = [resource for export in exports for resource in export.resource_logs]
        return [record for each in resources for scope in each.scope_logs for record in scope.log_records]

    def _bodies(self, path: bytes) -> list[bytes]:
        return [each.removeprefix(path) for each in self.taken if each.startswith(path)]

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


def attributes(of: Span | LogRecord) -> Mapping[str, str]:
    """Those of a span, or of a line of the log, that are text."""
    return {each.key: each.value.string_value for each in of.attributes}
