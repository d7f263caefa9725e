"""Agents of the earlier platform, served from files in a folder, with the offline model behind them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = f"data:image/png;base64,{PIXEL}"

CHAT = """
apiVersion: skagents/v1
kind: Chat
description: Talks about the weather.
service_name: WeatherBot
version: 0.1
input_type: BaseInputWithUserContext
spec:
  agent:
    name: default
    role: Default Agent
    model: gpt-4o
    system_prompt: You are a helpful assistant.
"""

AGENT = """
apiVersion: skagents/v2alpha1
kind: Agent
name: Painter
version: 0.2
metadata:
  description: Looks at pictures.
  skills: []
spec:
  agent:
    name: default
    model: gpt-4o
    system_prompt: You look at pictures.
"""

SEQUENTIAL = """
apiVersion: skagents/v1
kind: Sequential
description: Writes a report.
service_name: Reporter
version: 1.0
input_type: ReportInput
output_type: Report
spec:
  agents:
    - name: reader
      role: Reader
      model: gpt-4o
      system_prompt: You read.
    - name: writer
      role: Writer
      model: gpt-4o-mini
      system_prompt: You write.
  tasks:
    - name: outline
      task_no: 2
      description: Outlines
      instructions: "Outline {{ topic|upper }} after: {{ _look }}"
      agent: writer
    - name: look
      task_no: 1
      description: Looks
      instructions: Look at the picture of {{ topic }} by {{ author.name }}.
      agent: reader
    - name: check
      task_no: 3
      description: Checks
      instructions: |
        {% for point in points %}{{ loop.index }}. {{ point }}
        {% endfor %}Check {{ _outline }}.
      agent: reader
    - name: write
      task_no: 4
      description: Writes
      instructions: "{% if points %}Write it: {{ _look }}, {{ _outline }}, {{ _check }}{% endif %}"
      agent: writer
"""

TYPES = """
from pydantic import BaseModel
from semantic_kernel.kernel_pydantic import KernelBaseModel
from sk_agents.ska_types import EmbeddedImage, HistoryMessage


class Author(BaseModel):
    name: str


class ReportInput(KernelBaseModel):
    chat_history: list[HistoryMessage] | None = None
    topic: str
    author: Author
    points: list[str] = []
    picture: EmbeddedImage | None = None


class Report(KernelBaseModel):
    title: str
    pages: int | None = None
"""


def write(folder: Path, config: str, **files: str) -> Path:
    """The config file in a folder, with the other files beside it."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    path = folder / "config.yaml"
    path.write_text(config)
    return path


@contextmanager
def served(
    config: Path, script: Any = None, env: Mapping[str, str] | None = None, *, moved: bool = False
) -> Iterator[tuple[ServiceThread, OfflineModel]]:
    """The agent of a file behind a gateway that sets no secret."""
    with OfflineModel(script) as model:
        given = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "offline-key", "TA_AUTH": "gateway"}
        with ServiceThread(config, {**given, **(env or {})}, moved=moved) as service:
            yield service, model


def sent(model: OfflineModel) -> list[list[dict[str, Any]]]:
    """What the model was sent, call by call."""
    return [request["body"]["messages"] for request in model.requests]
