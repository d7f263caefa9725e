"""A reply of the model service that is nested too deeply to be read."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from wire import text

from tealagents.testing.service import ServiceThread, agent_config

DEEP = b"[" * 5000 + b"]" * 5000
BODY = b'{"choices": [{"message": {"role": "assistant", "content": "hi", "x": ' + DEEP + b"}}]}"


class Nesting(BaseHTTPRequestHandler):
    """Answers every call with the same completion."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def nesting() -> Iterator[str]:
    """The base URL of such a model service."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Nesting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_a_reply_nested_5000_deep_is_the_models_fault(nesting: str) -> None:
    """It is neither an interruption nor an internal error, and the task takes the next message."""
    env = {"TA_AUTH": "mock", "TA_BASE_URL": nesting, "TA_API_KEY": "any"}
    with ServiceThread(agent_config(), env) as service, service.client("ada") as ada:
        first = ada.post("", json=text("hello"))
        assert (first.status_code, first.json()["code"]) == (502, "model_error")
        task = first.json()["task_id"]
        again = ada.post("", json={**text("hello"), "task_id": task})
        assert (again.status_code, again.json()["task_id"]) == (502, task)
