"""tealagents: one config file becomes a REST service for one stateful AI agent.

`from tealagents import Agent` is the same agent as a library.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tealagents.agent import Agent

__all__ = ["Agent", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports the library when it is first asked for: `import tealagents` alone stays cheap."""
    if name == "Agent":
        from importlib import import_module

        return import_module("tealagents.agent").Agent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Also the names that are imported when they are first asked for."""
    return sorted({*globals(), *__all__})
