"""A service that is served over A2A as well, with the tools of the tests."""

from collections.abc import Callable, Iterator

import pytest
from a2a_talk import BINDINGS, Wire
from talk import working_service

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread

SCRIPT = """
rules:
  - when: {text: two pauses, tool_result: true, result_text: first}
    reply: {tool_calls: [{id: again, name: Work-write, arguments: '{"file": "/dev/null", "line": "second"}'}]}
  - when: {text: think first, tool_result: true}
    reply: {text: the answer}
  - when: {text: think first}
    reply:
      text: "let me see "
      tool_calls: [{name: Work-note, arguments: '{"file": "/dev/null", "line": "x"}'}]
  - when: {text: for ever}
    reply: {text: never, headers_delay_ms: 600000}
  - when: {text: until released}
    reply: {pieces: [drip, ' drip', {text: ' drip', delay_ms: 600000}]}
  - when: {text: dripping}
    reply: {text: drip drip drip drip drip drip drip drip drip drip, piece_delay_ms: 60}
  - when: {text: broken off}
    reply: {pieces: [half, ' of', ' it'], fault: {kind: error, after_pieces: 2, message: the model broke}}
  - when: {text: break}
    reply: {error: {status: 400, message: the model broke}}
"""


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ServiceThread, OfflineModel]]:
    with working_service(SCRIPT, protocols=["a2a"], concurrency="reject") as pair:
        yield pair


@pytest.fixture
def release(model: OfflineModel) -> Iterator[Callable[[], None]]:
    """Lets the model end what it says "until released"."""
    yield model.release
    model.script(SCRIPT)


@pytest.fixture(params=BINDINGS)
def wire(service: ServiceThread, request: pytest.FixtureRequest) -> Iterator[Wire]:
    """Ada's calls, over each binding in turn."""
    with Wire(service, request.param) as calls:
        yield calls


@pytest.fixture
def eves(service: ServiceThread, wire: Wire) -> Iterator[Wire]:
    """Eve's calls, over the same binding."""
    with Wire(service, BINDINGS[0] if wire.rpc else BINDINGS[1], "eve") as calls:
        yield calls
