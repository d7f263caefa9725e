"""No test gives what it waits for less time than a busy machine takes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import tealagents.testing

ROOT = Path(__file__).parents[1]
#: seconds that whatever is waited for is given at least: they pass only where it never comes
PATIENCE = 30
#: what waits for so many seconds at most: the position of the argument, and its name
WAITS = {
    "asyncio.timeout": 0,
    "asyncio.wait_for": 1,
    "subprocess.run": None,
    "communicate": None,
    "create_connection": 1,
    "settimeout": 0,
    "httpx.get": None,
    "httpx.post": None,
    "httpx.Client": None,
    "httpx.AsyncClient": None,
    "client": None,
    "async_client": None,
    "terminate": 0,
    "process.wait": 0,
    "_thread.join": 0,
    "waiting.join": 0,
}


def modules() -> Iterator[Path]:
    """Of all tests but those whose purpose is to measure time."""
    for folder in (ROOT, Path(tealagents.testing.__file__).parent):
        yield from sorted(each for each in folder.rglob("*.py") if "soak" not in each.parts)


#: what the name of a call ends with that may be one of them
LAST_WORDS = {name.rpartition(".")[2] for name in WAITS}


class Haste(ast.NodeVisitor):
    """Finds the waits of a module that are too short; those that are to fail for want of time may be."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def visit_With(self, node: ast.With) -> None:
        if not any("Timeout" in ast.unparse(item.context_expr) for item in node.items):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        last = getattr(node.func, "attr", getattr(node.func, "id", None))
        name = ast.unparse(node.func) if last in LAST_WORDS else ""
        for wait, position in WAITS.items():
            if name == wait or name.endswith(f".{wait}"):
                given = [each.value for each in node.keywords if each.arg == "timeout"]
                if position is not None:
                    given += node.args[position : position + 1]
                self.found += [node.lineno for each in given if _is_short(each)]
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if _is_short(node.right) and ast.unparse(node.left) == "time.monotonic()":
            self.found.append(node.lineno)
        self.generic_visit(node)


def _is_short(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value < PATIENCE


def hasty(module: Path) -> list[str]:
    haste = Haste()
    haste.visit(ast.parse(module.read_text()))
    return [f"{module.relative_to(ROOT.parent)}:{line}" for line in haste.found]


def test_every_wait_is_patient() -> None:
    """A wait that a busy machine can lose is a verdict on the machine. What is to happen is given half a
    minute at least, and where it is to be too late, the test decides when its time is over."""
    assert [place for module in modules() for place in hasty(module)] == []
