"""The package as it is shipped: what the wheel holds, and that it needs no extra to be imported."""

import ast
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]

#: modules that are the extra's own
NEED_AN_EXTRA = {
    *(f"tealagents.api.a2a.{name}" for name in ("app", "documents", "errors", "fold", "handler")),
    *(f"tealagents.api.ag_ui.{name}" for name in ("app", "fold", "inputs", "runs")),
    *(f"tealagents.api.mcp.{name}" for name in ("app", "calls", "documents", "tools")),
    "tealagents.stores.dynamodb",
    "tealagents.stores.dynamodb_service",
    "tealagents.stores.postgres",
    "tealagents.stores.postgres_link",
    "tealagents.stores.redis",
    "tealagents.stores.redis_link",
    "tealagents.stores.redis_nodes",
    "tealagents.testing.pytest_stores",
    "tealagents.testing.pytest_servers",
    "tealagents.testing.store_histories",
    "tealagents.testing.store_links",
    "tealagents.testing.stores",
    "tealagents.tools.mcp",
    "tealagents.tools.mcp_connection",
    "tealagents.tools.mcp_listing",
    "tealagents.tools.mcp_results",
    "tealagents.tools.mcp_transport",
}
_IMPORT_ALL = """
import importlib, json, pkgutil, sys
absent = set(json.loads(sys.argv[1]))

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.path.insert(0, sys.argv[2])
import tealagents
assert tealagents.__file__.startswith(sys.argv[2]), tealagents.__file__
failed = {}
for module in pkgutil.walk_packages(tealagents.__path__, "tealagents."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            failed[module.name] = str(error.name)
print(json.dumps(failed))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as `pip wheel` and the Dockerfile make it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = f"import hatchling.build; print(hatchling.build.build_wheel({str(folder)!r}))"
    made = subprocess.run(
        [sys.executable, "-c", build], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    return folder / made.stdout.split()[-1]


def test_what_the_wheel_holds(wheel: Path) -> None:
    """The wheel holds the package with its SQL, its scripts and its mark of being typed, and no tests."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    package = ROOT / "src/tealagents"
    kept = {path for path in package.rglob("*") if path.suffix in (".py", ".sql", ".lua", ".typed")}
    assert {f"tealagents/{path.relative_to(package).as_posix()}" for path in kept} <= held
    assert {"tealagents/py.typed", "tealagents/stores/redis.lua", "tealagents/stores/sqlite.sql"} <= held
    assert {name for name in held if "/" in name and name.split("/")[0] != "tealagents"} == {
        name for name in held if ".dist-info/" in name
    }


def test_wheel_imports_without_extras(wheel: Path, tmp_path: Path) -> None:
    """Without any extra installed every module of the wheel imports, but those that are the extra's own."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    absent = only_with_an_extra()
    ended = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, json.dumps(absent), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    failed: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    assert set(failed) == NEED_AN_EXTRA, failed
    assert {name.partition(".")[0] for name in failed.values()} <= set(absent)


def only_with_an_extra() -> list[str]:
    """The packages that are installed for an extra, and not for tealagents without any."""
    without = installed_for(PYPROJECT["project"]["dependencies"])
    extra = installed_for(text for name in EXTRAS if name != "all" for text in EXTRAS[name])
    return [
        package
        for package, distributions in packages_distributions().items()
        if set(map(canonicalize_name, distributions)) <= extra - without
    ]


def installed_for(requirements: Iterable[str]) -> set[str]:
    """The distributions that requirements name, and those that these require in turn.

    Each is installed here: the absence of one that never can be imported proves nothing.
    """
    found = set()
    waiting = list(map(Requirement, requirements))
    while waiting:
        requirement = waiting.pop()
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) not in found:
                found.add((requirement.name, extra))
                needed = map(Requirement, requires(requirement.name) or ())
                waiting += (
                    each for each in needed if not each.marker or each.marker.evaluate({"extra": extra})
                )
    return {canonicalize_name(name) for name, _ in found}


def test_extras_are_all_known_here() -> None:
    """`all` holds every extra for running; the README has a line for each."""
    (everything,) = EXTRAS["all"]
    named = set(everything.partition("[")[2].rstrip("]").split(","))
    assert named == set(EXTRAS) - {"all", "testing"}
    table = re.findall(r"^\| (`.+?`) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(EXTRAS) <= {name for cell in table for name in re.findall(r"`(.+?)`", cell)}


def test_version_is_said_once() -> None:
    """The version in the package is that of the distribution."""
    from tealagents import __version__

    assert __version__ == PYPROJECT["project"]["version"]


def test_image_holds_every_extra_for_running() -> None:
    """The image's lock is made for every extra for running but `mem0`, and holds what each requires."""
    [named] = re.findall(r"^IMAGE_EXTRAS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(named.split()) == set(EXTRAS) - {"all", "testing", "mem0"}
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements-image.lock").read_text(), re.MULTILINE))
    for name in named.split():
        assert {re.split(r"[\[>]", requirement)[0] for requirement in EXTRAS[name]} <= locked


def test_no_message_names_a_file_that_is_not_installed() -> None:
    """The pages of `docs` are not in the wheel: what a reader of a message needs is in the message."""
    named = []
    for module in (ROOT / "src/tealagents").rglob("*.py"):
        if "docs/" not in (source := module.read_text()):
            continue
        tree = ast.parse(source)
        documentation = {
            id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
        }  # docstrings, which are read beside the pages
        named += [
            f"{module.name}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documentation
            if re.search(r"docs/[\w-]+\.md", node.value)
        ]
    assert named == []
