"""The examples of docs/client.md and docs/openai.md, run as printed, with the service that the page names."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tealagents.client
from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread

ROOT = Path(__file__).parents[2]
SERVED = re.compile(r"^TA_PLUGIN_CATALOG_FILE=(\S+) tealagents serve (\S+) --offline$", re.MULTILINE)
ADDRESS = "http://127.0.0.1:8000/Janitor/0.1"
#: what each example prints, or a part of it, in order
PRINTS = {
    "client.md": [
        "Your name is Ada.",
        "You said: “Who was Ada Lovelace?”\n20 tokens",
        "Final",
        "Files-delete said: older.txt is deleted",
        "assistant You said: “two”",
        "404 not_found",
    ],
    "openai.md": ["Your name is Ada.", "Files-delete said: notes.txt is deleted", "Hello! How can I help?"],
}


@pytest.fixture
def service(page: str) -> Iterator[ServiceThread]:
    [(catalogue, config)] = SERVED.findall((ROOT / "docs" / page).read_text("utf-8"))
    with OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_PLUGIN_CATALOG_FILE": str(ROOT / catalogue)}
        with ServiceThread(ROOT / config, env) as service:
            yield service


@pytest.mark.parametrize("page", PRINTS)
def test_examples(page: str, service: ServiceThread, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example runs against the service, and prints what it is about."""
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), flags=re.DOTALL)
    for number, (example, printed) in enumerate(zip(examples, PRINTS[page], strict=True)):
        assert ADDRESS in example
        code = compile(example.replace(ADDRESS, service.url), f"docs/{page}, example {number}", "exec")
        exec(code, {"__name__": "__main__"})
        assert printed in capsys.readouterr().out


def test_every_method_is_named() -> None:
    """The page names every method of the client."""
    text = (ROOT / "docs/client.md").read_text("utf-8")
    methods = {name for name in dir(tealagents.client.Client) if not name.startswith("_")}
    assert {name for name in methods - {"close", "base_url"} if not re.search(rf"\b{name}\b", text)} == set()
