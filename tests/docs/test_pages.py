"""What every page promises: links that lead somewhere, blocks that are what they say they are."""

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from tealagents.cli.main import COMMANDS, command_line
from tealagents.config import load

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "demos").rglob("*.md"),
        *(ROOT / "clients").glob("*/*.md"),
    ],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)
_BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
_ELSEWHERE = ("http://", "https://", "mailto:")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, *kinds: str) -> Iterator[str]:
    for indent, kind, text in _BLOCK.findall(page.read_text()):
        if kind in kinds:
            yield re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)


def prose(page: Path) -> str:
    """The page without its blocks and code."""
    return re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made on GitHub."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#+ (.+)$", _BLOCK.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        again = found.setdefault(slug, 0)
        found[slug] += 1
        names.add(f"{slug}-{again}" if again else slug)
    return names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page: Path) -> None:
    """Every relative link of a page leads to a file that is there, and to a heading that it has."""
    broken = []
    for link in _LINK.findall(prose(page)):
        if link.startswith(_ELSEWHERE):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_of_code(page: Path) -> None:
    """What a page shows as Python, YAML or JSON is that; a whole config is one that would be served."""
    for text in blocks(page, "python"):
        compile(text, name_of(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for text in blocks(page, "json"):
        json.loads(text)
    for text in blocks(page, "yaml"):
        yaml.safe_load(text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_whole_configs(page: Path, tmp_path: Path) -> None:
    """A whole config that a page shows is one that would be served."""
    for text in blocks(page, "yaml"):
        if text.startswith("apiVersion:"):
            path = tmp_path / "config.yaml"
            path.write_text(text)
            assert load(path, env={}, dotenv=None).api_version == "tealagents/v1alpha1"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_for_the_shell(page: Path) -> None:
    """What a page shows to be typed into a shell is something that a shell can read."""
    for text in blocks(page, "sh", "console"):
        lines = "\n".join(_typed(text)) if "\n$ " in f"\n{text}" else text
        if re.search(r"<[a-z ]+>", lines):
            continue  # something is left for the reader to fill in
        checked = subprocess.run(["sh", "-n"], input=lines, text=True, capture_output=True)
        assert checked.returncode == 0, f"{lines}\n{checked.stderr}"


def _typed(text: str) -> Iterator[str]:
    """The commands of a transcript, without the prompt and what is printed."""
    continued = False
    for line in text.splitlines():
        if line.startswith("$ ") or continued:
            yield line.removeprefix("$ ")
            continued = line.endswith("\\")


def test_commands() -> None:
    """Each command of the command line is named in the documentation's index, and no other."""
    index = (ROOT / "docs/index.md").read_text()
    named = {found[1] for found in re.finditer(r"^\| `tealagents ([a-z-]+)", index, re.MULTILINE)}
    assert named == set(COMMANDS)


def test_arguments_of_the_commands() -> None:
    """The index shows the argument that each command takes, in brackets where it may be omitted."""
    index = (ROOT / "docs/index.md").read_text()
    shown = dict(re.findall(r"^\| `tealagents ([a-z-]+)(?: ([A-Z]+|\[[A-Z]+\]))?", index, re.MULTILINE))
    commands = get_command(command_line(*COMMANDS)).commands  # type: ignore[attr-defined]
    arguments = {
        name: (each.name.upper() if each.required else f"[{each.name.upper()}]")
        for name, command in commands.items()
        for each in command.params
        if each.param_type_name == "argument"
    }
    assert shown == {name: arguments.get(name, "") for name in COMMANDS}


def test_options_that_may_be_repeated_say_so() -> None:
    """`--help` shows them like any other option, so their text has to."""
    commands = get_command(command_line(*COMMANDS)).commands  # type: ignore[attr-defined]
    repeated = {
        f"{name} --{each.name}": each.help
        for name, command in commands.items()
        for each in command.params
        if getattr(each, "multiple", False)
    }
    assert "token --role" in repeated
    assert [name for name, text in repeated.items() if "May be repeated" not in text] == []


def test_variables_of_make_are_those_of_the_makefile() -> None:
    """What a page says of `make run` works; the README names its port, which another process may have."""
    known = set(re.findall(r"^(\w+) *\?=", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {page: set(re.findall(r"\bmake \w+ (\w+)=", page.read_text())) for page in PAGES}
    assert "PORT" in named[ROOT / "README.md"]
    assert set().union(*named.values()) <= known


def test_what_pages_import_is_public() -> None:
    """A program that was written by a guide needs no module that may change in any version."""
    page = (ROOT / "docs/architecture.md").read_text()
    sentence = page.partition("These modules are public, too:")[2].partition("Everything else")[0]
    public = set(re.findall(r"`([a-z_.]+)`", sentence))
    imported = {
        module
        for each in PAGES
        for block in blocks(each, "python")
        for module in re.findall(r"^\s*from tealagents\.([a-z_.]+) import", block, re.MULTILINE)
    }
    assert {each for each in imported if not each.startswith("testing.")} <= public


def test_every_page_is_in_the_index() -> None:
    """The index links to every page of the documentation."""
    index = (ROOT / "docs/index.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=name_of)
def test_long_page_begins_with_links_to_its_sections(page: Path) -> None:
    """A reader who comes for one thing need not scroll through 200 lines to see whether it is there."""
    if len(page.read_text().splitlines()) < 200:
        return
    beginning = page.read_text().partition("\n## ")[0]
    sections = re.findall(r"^## (.+)$", _BLOCK.sub("", page.read_text()), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", section.lower()).replace(" ", "-") for section in sections}
    assert slugs <= set(re.findall(r"\]\(#([\w-]+)\)", beginning))


def test_the_threat_model_names_tests_that_exist() -> None:
    """A promise is as good as its test: each is there under this name."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/security.md").read_text())
    assert len(named) > 30
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not re.search(rf"^(?:async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert missing == []
