"""Every demo does what its README shows."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo_processes import NODE_MODULES, ROOT, Origin, Terminal
from demo_readme import Block, Normal, answers_in_chat, blocks
from rich.console import Console

from tealagents.cli.chat import chat
from tealagents.testing.pytest_servers import missing

DEMOS = ROOT / "demos"
READMES = sorted(DEMOS.glob("*/README.md"))


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as origin:
        yield origin


@pytest.mark.parametrize("readme", READMES, ids=lambda readme: readme.parent.name)
def test_demo(readme: Path, origin: Origin) -> None:
    """What is typed as a README says shows what the README shows; covers: APP-6, FLOW-1, FLOW-2."""
    seen, shown = Normal(), Normal()
    found = blocks(readme)
    assert any(block.kind in ("console", "chat") for block in found), "the README shows no transcript"
    if "curl" in readme.read_text() and shutil.which("curl") is None:
        missing("curl: `apt install curl`")
    if "npm ci" in readme.read_text() and not (ROOT / "clients/js/node_modules").exists():
        missing("the JavaScript client: `npm ci --prefix clients/js`, with Node.js")
    if "npm install @ag-ui/client" in readme.read_text() and not (NODE_MODULES / "@ag-ui").exists():
        missing("AG-UI's client: tests/fixtures/tools/install.sh, with Node.js")
    with Terminal(origin, readme.parent) as terminal:
        for block in found:
            if block.kind == "sh":
                for command in block.commands:
                    terminal.serve(command)
            elif block.kind == "console":
                printed = terminal.run([typed.command for typed in block.typed])
                for typed, output in zip(block.typed, printed, strict=True):
                    assert seen(output) == shown(typed.output), typed.command
            elif block.kind == "chat":
                assert seen(talk(block, terminal)) == shown(block.text.partition("\n")[2])


def test_first_conversation(origin: Origin) -> None:
    """The README's first conversation, with what `make run` serves, goes as it is shown there."""
    seen, shown = Normal(), Normal()
    if shutil.which("curl") is None:
        missing("curl: `apt install curl`")
    (conversation,) = [block for block in blocks(ROOT / "README.md") if block.kind == "console"]
    with Terminal(origin, ROOT / "configs") as terminal:
        terminal.serve("tealagents serve configs/hello.yaml --offline")
        printed = terminal.run([typed.command for typed in conversation.typed])
    for typed, output in zip(conversation.typed, printed, strict=True):
        assert seen(output) == shown(typed.output), typed.command


def talk(block: Block, terminal: Terminal) -> str:
    """What the screen shows of a conversation, the questions and what was typed included."""
    command, *lines = block.text.splitlines()
    typed = iter(answers_in_chat(lines))
    screen = io.StringIO()

    def answer(prompt: str) -> str:
        text = next(typed, None)
        if text is None:
            raise EOFError
        screen.write(f"{prompt}{text}\n")
        return text

    url = terminal.local(command.split()[3])
    console = Console(file=screen, width=100, highlight=False)
    chat(url, "ada", None, None, console=console, input=answer)
    return terminal.documented(screen.getvalue())


def test_every_demo_has_a_readme() -> None:
    """A folder of demos/ says what it is and how to run it."""
    folders = {path for path in DEMOS.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))}
    assert folders == {readme.parent for readme in READMES}
