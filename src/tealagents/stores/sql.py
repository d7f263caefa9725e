"""The files beside the stores: named statements of SQL and Lua, and numbered migrations of SQL."""

from collections.abc import Mapping
from importlib.resources import files

from tealagents.stores.base import StoreConfigError

__all__ = ["check_schema", "migrations", "statements"]

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


def check_schema(dialect: str, place: str, number: int) -> None:
    """`StoreConfigError` unless the schema at a place has the newest number that this version knows."""
    newest = max(migrations(dialect))
    if number < newest:
        raise StoreConfigError(f"{place} at {number}, this version needs {newest}: run `tealagents migrate`.")
    if number > newest:
        advice = "run the version that migrated it"
        raise StoreConfigError(f"{place} at {number}, this version knows {newest}: {advice}.")
