"""`tealagents new`: creates the files of a new agent."""

import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from tealagents.cli.loading import fail, plain_console

__all__ = ["new_command"]

#: file of a new agent → its template
FILES: Final = {
    "config.yaml": "config.yaml",
    "custom_plugins.py": "custom_plugins.py.txt",
    "test_agent.py": "test_agent.py.txt",
    ".env.example": "env.example",
    ".gitignore": "gitignore",
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")


def new_command(
    name: Annotated[str, typer.Argument(help="Name of the agent, and of the folder to create.")],
) -> None:
    """Create a folder for a new agent: a config, a plugin with one tool, and a test that needs no key."""
    if not _NAME.fullmatch(name):
        raise fail(
            f"{name!r} cannot be the name of an agent: use letters, digits, '-' and '_', with a letter first"
        )
    folder = Path(name)
    try:
        folder.mkdir()
    except OSError as error:
        reason = "it exists already" if isinstance(error, FileExistsError) else error.strerror
        raise fail(f"the folder {name} cannot be created: {reason}") from None
    templates = files(__package__) / "template"
    try:
        for file, template in FILES.items():
            text = (templates / template).read_text("utf-8")
            (folder / file).write_text(text.replace("NAME", name), "utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # otherwise the next attempt would fail because it exists
        raise fail(f"the folder {name} cannot be written: {error.strerror}") from None
    out = plain_console()
    out.print(f"Created [bold]{name}[/]: {', '.join(FILES)}. Next:\n")
    for command in (f"cd {name}", "python -m unittest", "tealagents serve config.yaml --offline"):
        out.print(f"  {command}", markup=False)
    out.print(
        "\nFor a real model, copy .env.example to .env, set TA_API_KEY there, and serve without --offline."
    )
