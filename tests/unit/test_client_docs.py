"""The examples of docs/client.md work as they are printed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract_server import ContractServer

import tealagents.client

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text("utf-8")
ADDRESS = "http://127.0.0.1:8000/WikipediaAgent/0.1"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
#: a word that each example prints, in order
PRINTS = [
    "What is my name?",
    "Ada Lovelace? \n",
    "Final",
    "deleted /data/older.txt",
    "assistant two",
    "404 not_found",
]


@pytest.fixture
def service() -> Iterator[ContractServer]:
    with ContractServer() as server:
        yield server


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples(number: int, service: ContractServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example runs against a service, and prints what it is about."""
    assert ADDRESS in EXAMPLES[number]
    example = EXAMPLES[number].replace(ADDRESS, service.url)
    exec(compile(example, f"docs/client.md, example {number}", "exec"), {"__name__": "__main__"})
    assert PRINTS[number] in capsys.readouterr().out


def test_every_method_is_named() -> None:
    """The page names every method of the client."""
    methods = {name for name in dir(tealagents.client.Client) if not name.startswith("_")}
    assert {name for name in methods - {"close", "base_url"} if not re.search(rf"\b{name}\b", PAGE)} == set()
