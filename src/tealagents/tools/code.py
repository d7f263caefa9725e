"""Code plugins: the classes of one Python file whose methods are tools.

The file runs with the service's own rights; a person who may change it may do what the service may do.
"""

import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from hashlib import sha256
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from tealagents.domain.errors import described
from tealagents.domain.models import Json
from tealagents.domain.ports import Governance, Tool, ToolContext, ToolSpec
from tealagents.domain.tool_specs import flaw
from tealagents.opening import Held
from tealagents.plugins import TOOL_MARK, Plugin, ToolOptions
from tealagents.registry import import_from, place_of
from tealagents.tools import semantic_kernel
from tealagents.tools.errors import ToolsetError, blamed
from tealagents.tools.methods import check_method, marked, method_name, run_method, scopes_of
from tealagents.tools.naming import listed, suggestion
from tealagents.tools.signature import Signature
from tealagents.tools.thread_pool import ThreadPool
from tealagents.tools.user_tokens import in_time

logger = logging.getLogger(__name__)

#: blocking tools that may run at once, over all plugins of a file
MAX_THREADS = 64


def load_plugins(
    module_file: Path,
    names: Sequence[str],
    *,
    max_threads: int = MAX_THREADS,
    modules: dict[Path, ModuleType] | None = None,
) -> "CodePlugins":
    """The plugins `names` of a Python file, one instance of each, made now. `modules` is that of `imported`.

    Raises `ToolsetError` that names file, class, method and reason.
    """
    module = imported(module_file, modules)
    pool = ThreadPool(max_threads)
    plugins: list[Plugin] = []
    tools: list[Tool] = []
    for name in names:
        kind = _plugin_class(module, name, module_file)
        where = f"{module_file.name}: {name}"
        with blamed(where):
            if issubclass(kind, Plugin):
                with blamed(f"{where}: the plugin cannot be made without arguments"):
                    plugin = kind()
                plugins.append(plugin)
                tools += _tools_of(plugin, name, where, pool)
            else:
                tools += semantic_kernel.tools_of(kind, name, where, pool)
    return CodePlugins(plugins, tools)


class CodePlugins:
    """The tools of a plugin file. Entering it enters those plugins that are async context managers."""

    def __init__(self, plugins: Sequence[Plugin], tools: Sequence[Tool]) -> None:
        self._plugins = plugins
        self._tools = tuple(tools)
        self._entered = AsyncExitStack()

    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for plugin in self._plugins:
                if isinstance(plugin, AbstractAsyncContextManager):
                    await stack.enter_async_context(Held(plugin, "plugin", ToolsetError))
            self._entered = stack.pop_all()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._entered.__aexit__(*exc)


class CodeTool:
    """One decorated method of a plugin's instance."""

    def __init__(
        self,
        spec: ToolSpec,
        method: Callable[..., Any],
        signature: Signature,
        plugin: Plugin,
        pool: ThreadPool,
    ) -> None:
        self.spec = spec
        self._method = method
        self._signature = signature
        self._scopes = scopes_of(plugin, spec.name)
        self._pool = pool

    def check(self, arguments: Json) -> None:
        """`ToolFailed` if a call with these arguments would be refused before the method runs."""
        self._signature.check(arguments)

    async def call(self, context: ToolContext, arguments: Json) -> str:
        checked = self._signature.check(arguments)
        if self._scopes:
            # asked before the method runs, so that a missing consent cannot interrupt it halfway
            await in_time(context.user_token(self._scopes))
        if self._signature.context_parameter is not None:
            checked[self._signature.context_parameter] = context
        return await run_method(
            self._method, checked, context, self._pool, self.spec.name, nothing=self._signature.nothing
        )


# --- loading -------------------------------------------------------------------------------------


def imported(file: Path, modules: dict[Path, ModuleType] | None = None) -> ModuleType:
    """Imports the file as a module, under a name that no import statement can reach by accident.

    The file can import modules in the same folder. One that is in `modules` is not executed again, and one
    that was executed is added: what it holds at module level is shared.
    """
    file = file.resolve()
    if modules and file in modules:
        return modules[file]
    if not file.is_file():
        raise ToolsetError(
            f"The file {file} does not exist. Put custom_plugins.py (or custom_types.py) beside the config "
            "file, or name the file in TA_PLUGIN_MODULE (or TA_TYPES_MODULE)."
        )
    name = "tealagents_plugins_" + sha256(str(file).encode()).hexdigest()[:12]
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ToolsetError(f"The file {file} is not a Python file: its name must end in .py.")
    import_from(file.parent)
    module = module_from_spec(spec)
    # dataclasses and pydantic look their module up while it is still being run
    sys.modules[name] = module
    semantic_kernel.stand_in()
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ToolsetError(_import_failure(file, error)) from error
    if modules is not None:
        modules[file] = module
    return module


def make_importable(module: ModuleType) -> None:
    """Lets other files import an `imported` module by its file's name: they would execute the file again.

    If that name stands for another module, it keeps doing so.
    """
    file = Path(module.__file__ or "")
    with suppress(ImportError, ValueError):  # a name with dots, a module without a spec
        found = find_spec(file.stem)
        if found is not None and Path(found.origin or "").resolve() == file:
            sys.modules[file.stem] = module


def _import_failure(file: Path, error: BaseException) -> str:
    if isinstance(error, ImportError) and (hint := semantic_kernel.missing_import(error)):
        return f"{file.name}: {hint}"
    return f"{place_of(error, str(file))}: the file cannot be loaded: {described(error)}"


def _plugin_class(module: ModuleType, name: str, file: Path) -> type[Any]:
    found: dict[str, type[Any]] = {
        key: value for key, value in vars(module).items() if _is_plugin_class(value)
    }
    if name in found:
        return found[name]
    if inspect.isclass(getattr(module, name, None)):
        raise ToolsetError(
            f"{file.name}: the class {name} is not a plugin: derive it from tealagents.plugins.Plugin."
        )
    if hasattr(getattr(module, name, None), TOOL_MARK):
        raise ToolsetError(
            f"{file.name}: {name} is a function outside a class. Make it a method of a class that extends "
            "tealagents.plugins.Plugin, and list the class."
        )
    if hasattr(module, name):
        raise ToolsetError(
            f"{file.name}: {name} is not a class. A plugin that a function makes has to become a class whose "
            "constructor takes (authorization, extra_data_collector)."
        )
    there = sorted(found)
    raise ToolsetError(
        f"{file.name}: there is no plugin {name!r}; found: {listed(there)}.{suggestion(name, there)}"
    )


def _is_plugin_class(value: Any) -> bool:
    if not inspect.isclass(value):
        return False
    if issubclass(value, Plugin):
        return value is not Plugin
    return semantic_kernel.is_plugin_class(value)


def _tools_of(plugin: Plugin, name: str, where: str, pool: ThreadPool) -> list[Tool]:
    tools: list[Tool] = [
        _tool(plugin, name, attribute, options, where, pool)
        for attribute, bearer in marked(type(plugin), TOOL_MARK)
        if isinstance(options := getattr(bearer, TOOL_MARK), ToolOptions)
    ]
    if not tools:
        raise ToolsetError(f"{where}: the plugin has no tool: mark a method with @tool.")
    return tools


def _tool(
    plugin: Plugin, plugin_name: str, attribute: str, options: ToolOptions, where: str, pool: ThreadPool
) -> CodeTool:
    where = f"{where}.{attribute}"
    method = getattr(plugin, attribute)
    check_method(method, where)
    _check_options(options, where)
    signature = Signature(method, where)
    spec = ToolSpec(
        name=method_name(plugin_name, options.name or attribute, where),
        description=options.description or signature.description,
        parameters=signature.schema,
        governance=Governance(requires_hitl=options.requires_hitl),
        timeout=options.timeout,
    )
    if wrong := flaw(spec):
        raise ToolsetError(f"{where}: the tool cannot be sent to a model: {wrong}.")
    if not spec.description:
        logger.warning("%s: the tool has no docstring, so the model does not know what it does", where)
    return CodeTool(spec, method, signature, plugin, pool)


def _check_options(options: ToolOptions, where: str) -> None:
    """`ToolsetError` for options of `@tool(…)` that no call could be made with."""
    if not all(isinstance(text, str | None) for text in (options.name, options.description)):
        raise ToolsetError(f"{where}: name and description have to be text.")
    if not isinstance(options.requires_hitl, bool):  # a guess at what is meant would let calls through
        raise ToolsetError(f"{where}: requires_hitl has to be True or False.")
    seconds = options.timeout
    if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):  # or NaN
        raise ToolsetError(f"{where}: the timeout has to be a number of seconds, more than 0.")
