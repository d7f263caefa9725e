"""Python methods as tools: what code plugins and the earlier platform's plugins have in common."""

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
from tealagents.tools.thread_pool import ThreadPool

#: names (without leading and trailing underscores) by which a first parameter with a type hint is still
#: recognised as the instance
_RECEIVERS = frozenset({"self", "cls", "this", ""})


async def run_method(
    method: Callable[..., Any],
    arguments: dict[str, Any],
    context: ToolContext,
    pool: ThreadPool,
    name: str,
    *,
    nothing: str,
) -> str:
    """Calls a method and returns its result as text. An async method is awaited, another runs in a thread.

    `name` is the tool's; `nothing` is the text for None. Raises what the method raises, with two exceptions:
    what it needs its user for is `begun`, and what would end the process or the request is a `ToolFailed`.
    """
    try:
        with ungrouped():
            if is_async(method):
                return to_text(await _result(method, arguments), nothing=nothing)
            # turning a large result into text takes time as well, so it is done in the thread
            work = partial(_text_or_awaitable, method, arguments, nothing)
            result = await pool.run(work, name, (context.tenant_id, context.user_id))
            return result if isinstance(result, str) else to_text(await result, nothing=nothing)
    # a new error: several calls that wait for the same authorization may share the one that was raised
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
    """Whether a method is a coroutine function below its decorators, and so awaited on the event loop."""
    return inspect.iscoroutinefunction(inspect.unwrap(method))


async def _result(method: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """What an async method returns. Of `return helper()`, where `helper` is async, that is its result."""
    result = await method(**arguments)
    return await result if inspect.isawaitable(result) else result


def _text_or_awaitable(
    method: Callable[..., Any], arguments: dict[str, Any], nothing: str
) -> str | Awaitable[Any]:
    """The result as text. An awaitable is returned as it is: a function that is not async can still return a
    coroutine, which only the event loop can await."""
    result = method(**arguments)
    return result if inspect.isawaitable(result) else to_text(result, nothing=nothing)


def marked(kind: type[Any], mark: str) -> Iterator[tuple[str, Any]]:
    """The names of a class's attributes that a decorator has marked, in the order of their definition, base
    classes first; with each comes what bears the mark.

    That is the function, or the `staticmethod` or `classmethod` made of it. An override without the decorator
    is not marked.
    """
    names = dict.fromkeys(name for base in reversed(kind.__mro__) for name in vars(base))
    for name in names:
        attribute = inspect.getattr_static(kind, name)
        function = attribute.__func__ if isinstance(attribute, staticmethod | classmethod) else attribute
        if getattr(function, mark, None):
            yield name, function
        elif getattr(attribute, mark, None):
            yield name, attribute


def check_method(method: Any, where: str, *, generators: bool = False) -> None:
    """`ToolsetError`, beginning with `where`, for what cannot be a tool: an attribute that is no method, a
    generator (unless `generators` is set), a method without `self`."""
    if not inspect.isroutine(method):
        raise ToolsetError(f"{where}: @tool marks methods; this is a {type(method).__name__}.")
    function = inspect.unwrap(method)
    if not generators and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise ToolsetError(f"{where}: a tool returns one result; a generator cannot be a tool.")
    if inspect.ismethod(method):
        _check_receiver(method.__func__, where)


def _check_receiver(function: Callable[..., Any], where: str) -> None:
    """`ToolsetError` if `self` was forgotten: the plugin would be passed for the tool's first argument."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None or first.annotation is first.empty:
        return
    if first.name.strip("_") not in _RECEIVERS:
        raise ToolsetError(
            f"{where}: {first.name!r} would be the plugin itself: the first parameter of a method is self. "
            "A tool without it is marked @staticmethod."
        )


def scopes_of(plugin: object, tool: str) -> tuple[str, ...]:
    """The scopes with which a plugin acts for the user; empty if it has none.

    `ToolsetError` unless they are a collection of texts. A single text is refused, too: each of its letters
    would become a scope.
    """
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
    """The tool's name, `Plugin-function`. `ToolsetError` if it cannot be sent to a model."""
    name = f"{plugin}{TOOL_SEPARATOR}{function}"
    if not VALID_NAME.fullmatch(name):
        of_the_class = not VALID_NAME.fullmatch(f"{plugin}{TOOL_SEPARATOR}x")
        remedy = "Rename the class" if of_the_class else "Give the tool another one with @tool(name=…)"
        raise ToolsetError(f"{where}: the name {name!r} {NAME_RULE}. {remedy}.")
    return name
