"""Whatever stands in the file and in the environment: a config, or a ConfigError. Never anything else."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_files import SMALLEST
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tealagents.config import ConfigError, ConfigFile, ServiceConfig, json_schema, load, summary
from tealagents.config.settings import variables
from tealagents.mistakes import keys_of

KEYS = sorted(
    {
        "name",
        "x-other",
        *(key for section in json_schema()["$defs"].values() for key in section["properties"]),
        *keys_of(ConfigFile),
    }
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["local", "remote", "entra", "mock", "${HOME}", "${X:-y}", "sqlite:///a", "file:", "a:b", "*"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
AGENT: dict[str, Any] = {"model": "m", "system_prompt": "s"}


def outcome(folder: Path, content: bytes, **env: str) -> ServiceConfig | None:
    """The config, or None for a ConfigError, each line of which says something."""
    file = folder / "agent.yaml"
    file.write_bytes(content)
    return result(file, env, None)


def result(file: Path, env: dict[str, str], dotenv: Path | None) -> ServiceConfig | None:
    try:
        config = load(file, env=env, dotenv=dotenv)
    except ConfigError as error:
        complaints = error
    else:
        assert summary(config)
        return config
    lines = str(complaints).splitlines()
    assert len(lines) == len(complaints.problems) > 0
    assert all(line.encode() for line in lines)
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


quick = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(st.binary(max_size=200))
def test_random_bytes(folder: Path, content: bytes) -> None:
    """Bytes that are no text, no YAML, no mapping."""
    outcome(folder, content)
    outcome(folder, SMALLEST.encode() + content)


@quick
@given(st.text(alphabet="ab01:-&*!?|>'\"%@`{}[],#~<=.$ \n\t\\\x85\u2028\ufeff", max_size=60))
def test_random_syntax(folder: Path, text: str) -> None:
    """Text made of what means something in YAML."""
    outcome(folder, text.encode())
    outcome(folder, (SMALLEST + "  " + text).encode())


@quick
@given(
    top=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3),
    spec=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
    agent=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
)
def test_random_values(folder: Path, top: Any, spec: Any, agent: Any) -> None:
    """Every key with values that do not belong there."""
    data = {
        "apiVersion": "tealagents/v1alpha1",
        "name": "a",
        "version": "1",
        "spec": {"agent": AGENT | agent, **spec},
        **top,
    }
    outcome(folder, yaml.safe_dump(data, allow_unicode=True).encode(errors="surrogatepass"))
    outcome(folder, json.dumps(data).encode())


@quick
@given(st.dictionaries(st.sampled_from(sorted(variables())), st.text(min_size=1, max_size=12), max_size=4))
def test_random_variables(folder: Path, env: dict[str, str]) -> None:
    """Every variable with values that do not belong there."""
    env.pop("TA_SERVICE_CONFIG", None)
    outcome(folder, SMALLEST.encode(), **env)


@quick
@given(st.binary(max_size=120))
def test_random_dotenv(folder: Path, content: bytes) -> None:
    """A `.env` of whatever."""
    (folder / "agent.yaml").write_text(SMALLEST)
    (folder / "env").write_bytes(b"TA_CONCURRENCY=" + content)
    result(folder / "agent.yaml", {}, folder / "env")
