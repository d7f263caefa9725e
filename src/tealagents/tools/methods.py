"""Python methods as tools: what code plugins and those of the earlier platform have in common."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any

from tealagents.domain.errors import NeedsAuthorization, NeedsOwner, ToolFailed, ends_task, ungrouped
from tealagents.domain.models import TOOL_SEPARATOR
from tealagents.domain.ports import ToolContext
from tealagents.domain.tool_specs import NAME_RULE, VALID_NAME
from tealagents.tools.errors import ToolsetError
from tealagents.tools.results import to_text
from tealagents.tools.threads import Threads

#: what the first parameter of a method is called, without underscores, where it has a type hint
_RECEIVERS = frozenset({"self", "cls", "this", ""})


async def run_method(
    method: Callable[..., Any],
    arguments: dict[str, Any],
    context: ToolContext,
    threads: Threads,
    name: str,
    *,
    nothing: str,
) -> str:
    """The text of what a method returns: awaited if it is async, else run in a thread.

    What the method raises is raised, except what would be mistaken for the end of the process or of
    the call: that becomes `ToolFailed`. What it needs its user for is raised as `begun`.
    """
    try:
        with ungrouped():
            if is_async(method):
                return to_text(await method(**arguments), nothing=nothing)
            # turning a large result into text takes time as well, so it is done in the thread
            work = partial(_text_or_awaitable, method, arguments, nothing)
            result = await threads.run(work, name, (context.tenant_id, context.user_id))
            return result if isinstance(result, str) else to_text(await result, nothing=nothing)
    # others who ask for the same may hold the same error: this call's is one of its own
    except NeedsAuthorization as need:
        raise NeedsAuthorization(need.server, need.url, need.scopes, begun=True) from need
    except NeedsOwner as need:
        raise NeedsOwner(*need.args, begun=True) from need
    except (SystemExit, KeyboardInterrupt) as error:
        raise ToolFailed(
            f"The tool tried to end the process ({type(error).__name__}); whether it took effect is unknown.",
            unknown=True,
        ) from error
    except asyncio.CancelledError as error:
        if ends_task(error):
            raise
        raise ToolFailed(
            "The tool gave up: something it waited for was canceled. Whether it took effect is unknown.",
            unknown=True,
        ) from error


def is_async(method: Callable[..., Any]) -> bool:
    """Whether it is awaited on the event loop, also where a decorator has wrapped it."""
    return inspect.iscoroutinefunction(inspect.unwrap(method))


def _text_or_awaitable(
    method: Callable[..., Any], arguments: dict[str, Any], nothing: str
) -> str | Awaitable[Any]:
    """A function that is not async can still return a coroutine; the loop has to await that."""
    result = method(**arguments)
    return result if inspect.isawaitable(result) else to_text(result, nothing=nothing)


def marked(kind: type[Any], mark: str) -> Iterator[tuple[str, Any]]:
    """The attributes of a class that a decorator has marked, in the order of their definition, base classes
    first. With each comes what bears the mark: the function, or the static or class method made of it.

    An override without the decorator is not marked.
    """
    names = dict.fromkeys(name for base in reversed(kind.__mro__) for name in vars(base))
    for name in names:
        attribute = inspect.getattr_static(kind, name)
        function = attribute.__func__ if isinstance(attribute, staticmethod | classmethod) else attribute
        if getattr(function, mark, None):
            yield name, function
        elif getattr(attribute, mark, None):
            yield name, attribute


def check_method(method: Any, where: str) -> None:
    """`ToolsetError` where it is nothing that can be called once for one result."""
    if not inspect.isroutine(method):
        raise ToolsetError(f"{where}: @tool marks methods; this is a {type(method).__name__}.")
    function = inspect.unwrap(method)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolsetError(f"{where}: a tool returns one result; a generator cannot be a tool.")
    if inspect.ismethod(method):
        _check_receiver(method.__func__, where)


def _check_receiver(function: Callable[..., Any], where: str) -> None:
    """`ToolsetError` where `self` was forgotten: what the model should give would be the plugin."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None or first.annotation is first.empty:
        return
    if first.name.strip("_") not in _RECEIVERS:
        raise ToolsetError(
            f"{where}: {first.name!r} would be the plugin itself: the first parameter of a method is self. "
            "A tool without it is marked @staticmethod."
        )


def scopes_of(plugin: object, tool: str) -> tuple[str, ...]:
    """The scopes in which a plugin acts for the user. `ToolsetError` for a text: it would be its letters."""
    scopes = getattr(plugin, "on_behalf_of_scopes", ()) or ()
    if isinstance(scopes, Iterable) and not isinstance(scopes, str):
        named = tuple(scopes)
        if all(isinstance(scope, str) for scope in named):
            return named
    raise ToolsetError(
        f"{tool}: on_behalf_of_scopes must be a list or a tuple of scopes, such as ['User.Read'], "
        f"not {scopes!r}."
    )


def method_name(plugin: str, function: str, where: str) -> str:
    name = f"{plugin}{TOOL_SEPARATOR}{function}"
    if not VALID_NAME.fullmatch(name):
        of_the_class = not VALID_NAME.fullmatch(f"{plugin}{TOOL_SEPARATOR}x")
        remedy = "Rename the class" if of_the_class else "Give the tool another one with @tool(name=…)"
        raise ToolsetError(f"{where}: the name {name!r} {NAME_RULE}. {remedy}.")
    return name
