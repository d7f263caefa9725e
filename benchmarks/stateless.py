"""What a turn of the earlier platform's stateless agents costs beside the floor."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.figures import Figure
from benchmarks.load import Floor, Target
from benchmarks.measures import Scale, first_turn, warm
from benchmarks.processes import FloorProcess, ModelProcess, ServiceProcess

#: the most that a turn may cost of the floor's
BOUND = 0.45


class EarlierProcess(ServiceProcess):
    """`tealagents serve` with a file of `skagents/v2alpha1`."""

    def _config(self) -> dict[str, Any]:
        agent = {"name": "default", "model": "offline", "system_prompt": "You are measured."}
        return {
            "apiVersion": "skagents/v2alpha1",
            "kind": "Agent",
            "name": "Bench",
            "version": "0.1",
            "metadata": {"description": "Is measured."},
            "spec": {"agent": agent},
        }

    def environment(self) -> Mapping[str, str]:
        return {name: text for name, text in super().environment().items() if name != "TA_PERSISTENCE"}


class Earlier(Target):
    mark = b"event: partial-response"
    path, stream_path = ServiceProcess.prefix, f"{ServiceProcess.prefix}/sse"

    def body(self, text: str, task_id: str | None = None, *, stream: bool = False) -> bytes:
        items = [{"content_type": "text", "content": text}]
        return json.dumps({"chat_history": [{"role": "user", "items": items}]}).encode()


async def stateless(scale: Scale) -> Sequence[Figure]:
    """CPU of a JSON request without state, in turns with the floor."""
    with ExitStack() as stack:
        model = stack.enter_context(ModelProcess())
        floor = Floor(stack.enter_context(FloorProcess(model)))
        service = Earlier(stack.enter_context(EarlierProcess(model)))
        for target in (floor, service):
            await warm(target)
        name = "JSON request of skagents/v2alpha1"
        return [await first_turn(service, floor, scale, measure="stateless", name=name, bound=BOUND)]
