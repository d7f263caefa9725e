"""What is over leaves the memory at once: nothing of it is left to the garbage collector."""

import json
from collections.abc import Iterator

import httpx
import pytest
from talk import call, left_to_collector, working_service
from wire import text

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until

SCRIPT = """
rules:
  - {when: begin and hang, reply: {pieces: [one, ' two', {text: ' three', delay_ms: 600000}]}}
  - {when: refuse, reply: {error: {status: 400, message: not that}}}
  - {when: break, reply: {text: one two three, fault: {kind: cut, after_pieces: 2}}}
"""


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with working_service(SCRIPT) as pair:  # of its own: what other tests leave behind may end meanwhile
        yield pair


@pytest.mark.parametrize("path", ["", "/sse"])
@pytest.mark.parametrize("words", ["refuse", "break", call("Work-slip")])
def test_what_has_failed(ada: httpx.Client, words: str, path: str) -> None:
    """The message would stay for hundreds of requests, with all that was said."""
    for first in (True, False):  # what is made once is made
        with left_to_collector() as own:
            ada.post(path, json=text(words))
            ada.get("/health").raise_for_status()
            assert first or own() == set()


def test_what_its_client_has_left(service: ServiceThread) -> None:
    """Neither the stream that it read, nor the request, once that has ended."""
    for first in (True, False):
        with left_to_collector() as own, service.client() as ada, service.client() as other:
            with ada.stream("POST", "/sse", json=text("begin and hang")) as response:
                lines = response.iter_lines()
                head = next(line for line in lines if line.startswith("data: "))
                # a model call that is cut before its answer has begun is left behind by aiohttp itself
                assert any(line == "event: partial-response" for line in lines)
            request_id = json.loads(head.removeprefix("data: "))["request_id"]
            other.post(f"/requests/{request_id}/cancel").raise_for_status()
            until(lambda: not service.app.exchange.service.followers.count)
            other.get("/health").raise_for_status()
            assert first or own() == set()
