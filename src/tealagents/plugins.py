"""Tools written in Python: all that the author of a plugin imports.

::

    from tealagents.plugins import Plugin, ToolContext, tool

    class Shell(Plugin):
        @tool
        async def delete(self, context: ToolContext, path: str) -> str:
            \"""Delete one file.\"""

The file is `custom_plugins.py` beside the config file, or the one `TA_PLUGIN_MODULE` names. A class
becomes a plugin when the config's `plugins` lists it; the model then sees `Shell-delete`. How the
classes are found and called is `tealagents.tools.code`; `docs/tools.md` is the guide.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, overload

from tealagents.domain.errors import ToolFailed
from tealagents.domain.ports import ToolContext

__all__ = ["Plugin", "ToolContext", "ToolFailed", "ToolOptions", "tool"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: the attribute with which `tool` marks a method
TOOL_MARK = "__tealagents_tool__"


class Plugin:
    """Base of a plugin. The name of the class is the plugin's name towards the model.

    One instance is created at startup, without arguments, and serves every call: do not store per-user state
    on it. An instance that is an async context manager is entered at startup and exited at shutdown.
    """

    #: where set, a call begins only once the owner has consented to these scopes, and
    #: `context.user_token(scopes)` then gives the token
    on_behalf_of_scopes: ClassVar[Sequence[str]] = ()


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """What `@tool(…)` was given."""

    #: the function's name towards the model; None: the method's own
    name: str | None = None
    #: what the model is sent; None: the docstring up to its section of arguments
    description: str | None = None
    #: seconds after which a call is given up; None: the config's `tool_timeout_seconds`
    timeout: float | None = None
    #: a human approves each call, unless the catalogue says otherwise
    requires_hitl: bool = False


@overload
def tool(function: _Function, /) -> _Function: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    requires_hitl: bool = False,
) -> Callable[[_Function], _Function]: ...


def tool(
    function: _Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    requires_hitl: bool = False,
) -> _Function | Callable[[_Function], _Function]:
    """Marks a method of a `Plugin` as a tool, with or without options.

    The method may be `async` or not; one that is not runs in a thread. Its type hints become the
    schema the model is given, its docstring the description. A parameter annotated `ToolContext`
    (or named `context`, without annotation) receives the call's context and is hidden from the model.
    """
    options = ToolOptions(name=name, description=description, timeout=timeout, requires_hitl=requires_hitl)

    def mark(function: _Function) -> _Function:
        try:
            setattr(function, TOOL_MARK, options)
        except AttributeError:
            raise TypeError(
                f"@tool marks a function, not {function!r}; its options are named: @tool(description=…)"
            ) from None
        return function

    return mark(function) if function is not None else mark
