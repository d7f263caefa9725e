"""What the architecture page and the contribution guide say of the folders, beside the folders."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from tealagents.api.protocols import PROTOCOLS
from tealagents.domain.events import Event

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/tealagents"


def folders(of: Path = PACKAGE) -> set[str]:
    return {path.parent.name for path in of.glob("*/*") if path.name != "__pycache__"} - {"__pycache__"}


def modules() -> set[str]:
    return {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}


def test_map_of_the_architecture() -> None:
    """The table of folders names each folder of the package, and no other."""
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("| folder of `src/tealagents` |")[2].partition("\n\n")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    named = {name for cell in first_cells for name in re.findall(r"`([a-z]+)`", cell)}
    assert named == folders()


def test_single_modules_of_the_architecture() -> None:
    """The modules that stand alone in the package are each explained."""
    page = (ROOT / "docs/architecture.md").read_text()
    paragraph = page.partition("Single modules:")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z]+)`", paragraph)) == modules()


def test_vocabulary_of_the_architecture() -> None:
    """The page shows the events of the core as the core has them."""
    page = (ROOT / "docs/architecture.md").read_text()
    assert f"```text\n{' | '.join(event.__name__ for event in get_args(Event))}\n```" in page


def test_map_of_who_owns_what() -> None:
    """The contribution guide says of each folder of the package what to know before changing it."""
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"^\| `src/tealagents/([a-z]+)` \|", guide, re.MULTILINE))
    assert named == folders()


def test_rows_of_the_modules_and_the_tests() -> None:
    """The contribution guide names each module that stands alone in the package, and each folder of tests."""
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    for row, there in (("src/tealagents/*.py", modules()), ("tests", folders(ROOT / "tests"))):
        cell = guide.partition(f"| `{row}` |")[2].partition("\n")[0]
        assert there <= set(re.findall(r"`([a-z]+)`", cell)), row


def test_map_of_the_api() -> None:
    """The table of the api names each of its modules and protocols, and no other."""
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("| module of `api` |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    api = PACKAGE / "api"
    modules = folders(api) | {path.stem for path in api.glob("*.py")} - {"__init__"}
    assert named == modules, "the table of the api's modules in docs/architecture.md names each of them"


def test_every_folder_opens_with_its_map() -> None:
    """Each folder with modules is a package, and names in its docstring every module that lives in it."""
    packages = [path for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    with_modules = {path.parent for path in PACKAGE.rglob("*.py")}
    assert with_modules - {path.parent for path in packages} == {PACKAGE}
    for package in packages:
        map_of_it = ast.get_docstring(ast.parse(package.read_text())) or ""
        there = {path.stem for path in package.parent.glob("*.py")} - {"__init__", "__main__"}
        there |= {path.parent.name for path in package.parent.glob("*/__init__.py")}
        assert map_of_it, package
        assert there <= set(re.findall(r"`(\w+)`", map_of_it)), package


def test_every_folder_of_tests_is_run() -> None:
    """`testpaths` puts the folders in an order, and omits none of them."""
    paths = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
    there = {path.relative_to(ROOT).parts[:2] for path in ROOT.glob("tests/**/test_*.py")}
    assert set(paths) == {"/".join(parts) for parts in there}


def test_files_that_are_begun_first_are_there(pytestconfig: pytest.Config) -> None:
    """One that was renamed would be begun anywhere, and end last."""
    schedule = pytestconfig.pluginmanager.get_plugin("tests.schedule")
    assert schedule is not None
    assert [name for name in schedule.LONGEST if not (ROOT / "tests" / name).is_file()] == []


def test_contracts_name_each_layer_and_adapter() -> None:
    """The arrows that import-linter holds are those between folders that exist."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named: set[str] = set()
    for contract in contracts:
        for key in ("layers", "modules", "source_modules", "forbidden_modules"):
            named |= {name.split(".")[1] for name in contract.get(key, ())}
    assert named - folders() <= modules()
    assert {"domain", "state", "threads", "engine", "api", "stores", "llm", "auth", "tools"} <= named


def test_no_wire_words_below_the_api() -> None:
    """What only a protocol says, its event names, headers and keys of its documents, is not in the core."""
    words = re.compile(
        r"output_partial|approval_url|partial-response|final-response|supersede\"|Idempotency-Key|problem\+json"
    )
    found = [
        str(path.relative_to(PACKAGE))
        for layer in ("domain", "state", "threads", "engine")
        for path in (PACKAGE / layer).rglob("*.py")
        if words.search(path.read_text())
    ]
    assert found == []


def test_protocols_are_independent() -> None:
    """Each folder of a protocol is among those that import-linter keeps apart. covers: APP-2"""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [apart] = [each for each in contracts if each["name"] == "protocols know nothing of each other"]
    kept = {name.rpartition(".")[2] for name in apart["modules"]}
    folders_of_protocols = {path.parent.name for path in (PACKAGE / "api").glob("*/__init__.py")}
    assert kept == folders_of_protocols, f"pyproject.toml: `modules` of the contract {apart['name']!r}"


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """The package's source."""
    return {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def definitions(trees: dict[Path, ast.Module]) -> Iterator[ast.AST]:
    """All that the package's source holds, apart from the offline model and what tests use."""
    for path, tree in trees.items():
        if not {"testing", "offline"} & set(path.relative_to(PACKAGE).parts):
            yield from ast.walk(tree)


def attributes(of: ast.ClassDef) -> set[str]:
    """The attributes that a class sets on its instances."""
    return {
        node.attr
        for node in ast.walk(of)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_functions_and_classes_stay_small(trees: dict[Path, ast.Module]) -> None:
    """Five functions, at most, have more than 40 lines; no class has more than 12 attributes of its own."""
    found = list(definitions(trees))
    functions = [node for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [each.name for each in functions if (each.end_lineno or 0) - each.lineno >= 40]
    assert len(long) <= 5, long
    assert [
        node.name for node in found if isinstance(node, ast.ClassDef) and len(attributes(node)) > 12
    ] == []


def is_mirrored(modules: set[str]) -> bool:
    """Whether one of two classes is the client's, for the same error, document or event on the wire: it
    shares no code with the service."""
    client = {name for name in modules if name.startswith("client.")}
    return len(modules) == 2 and any(
        client == {ours} and modules - client <= theirs
        for ours, theirs in (
            ("client.errors", {"domain.errors"}),
            ("client.documents", {"domain.models", "api.v1alpha1.schemas"}),
            ("client.items", {"domain.models"}),
            ("client.events", {"domain.models", "domain.events"}),
        )
    )


def test_one_class_for_one_name(trees: dict[Path, ast.Module]) -> None:
    """A name of a public class opens one file. Only the client's mirrors have the service's names."""
    homes: dict[str, set[str]] = {}
    for path, tree in trees.items():
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(module)
    shared = {name: sorted(modules) for name, modules in homes.items() if len(modules) > 1}
    assert {name: modules for name, modules in shared.items() if not is_mirrored(set(modules))} == {}


def test_protocols_stay_small() -> None:
    """A protocol of `spec.protocols` has at most 500 lines, OpenAI's three APIs 1,000."""
    for name in PROTOCOLS:
        if "/" not in name:  # the service's own protocol is none of those
            sources = (PACKAGE / "api" / name.replace("-", "_")).rglob("*.py")
            lines = sum(len(path.read_text().splitlines()) for path in sources)
            assert lines <= (1000 if name == "openai" else 500), name
