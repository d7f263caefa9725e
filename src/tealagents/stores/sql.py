"""Reads the files beside the stores: named statements of SQL and Lua, and numbered migrations of SQL."""

from collections.abc import Mapping
from importlib.resources import files

__all__ = ["migrations", "statements"]

_HERE = files("tealagents.stores")
_NAME = "-- name: "


def statements(file: str) -> Mapping[str, str]:
    """The statements of a file of this folder, each named by a line `-- name: …` above it."""
    lines = _HERE.joinpath(file).read_text().splitlines()
    text = "\n".join(line for line in lines if line.startswith(_NAME) or not line.startswith("--"))
    blocks = (block.partition("\n") for block in text.split(_NAME)[1:])
    return {name.strip(): sql.strip() for name, _, sql in blocks}


def migrations(dialect: str) -> Mapping[int, tuple[str, str]]:
    """Number → name and text of `migrations/{dialect}/{number}_{name}.sql`, in their order."""
    found = {file.name.removesuffix(".sql"): file for file in _HERE.joinpath("migrations", dialect).iterdir()}
    return {int(name.partition("_")[0]): (name, found[name].read_text()) for name in sorted(found)}
