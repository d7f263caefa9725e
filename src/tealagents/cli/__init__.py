"""The command line `tealagents`: one module a command. Nothing imports this package."""

from tealagents.cli.main import main

__all__ = ["main"]
