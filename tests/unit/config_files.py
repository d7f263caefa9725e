"""Config files for tests: a smallest one, and the result of adding something to it."""

from pathlib import Path
from textwrap import dedent, indent

import pytest

from tealagents.config import ConfigError, ConfigProblem, ServiceConfig, load

SMALLEST = """\
apiVersion: tealagents/v1alpha1
name: Wiki
version: 0.10
spec:
  agent:
    model: gpt-4o-mini
    system_prompt: Be brief.
"""


def with_spec(text: str) -> str:
    """The smallest file with more keys under `spec`, beginning on line 8."""
    return SMALLEST + indent(dedent(text).lstrip("\n"), "  ")


def with_agent(text: str) -> str:
    """The smallest file with more keys under `spec.agent`, beginning on line 8."""
    return SMALLEST + indent(dedent(text).lstrip("\n"), "    ")


def read(folder: Path, text: str = SMALLEST, **env: str) -> ServiceConfig:
    file = folder / "agent.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    return load(file, env=env, dotenv=None)


def problems(folder: Path, text: str = SMALLEST, **env: str) -> list[ConfigProblem]:
    """What is wrong with the config; fails the test when nothing is."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text, **env)
    return caught.value.problems


def complaints(folder: Path, text: str = SMALLEST, **env: str) -> list[str]:
    """The same as `line: key: message`, the line only where there is one."""
    return [
        str(problem).removeprefix(f"{folder / 'agent.yaml'}:") for problem in problems(folder, text, **env)
    ]
