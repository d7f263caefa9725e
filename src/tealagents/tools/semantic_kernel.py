"""Plugins written for the earlier platform: `BasePlugin` classes with `@kernel_function` methods.

Of the package `semantic_kernel`, only the attributes are used that its decorator sets on a method
(`__kernel_function__` and the like). Where that package, or the earlier platform itself (`sk_agents`), is not
installed, stand-in modules provide what plugins import from it.

As on that platform, each use makes an instance of the class, with the caller's authorization and a collector
of extra data. Here, a use is one call.
"""

import inspect
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin

from tealagents.domain.models import Json
from tealagents.domain.ports import Governance, Tool, ToolContext, ToolSpec
from tealagents.tools import input_types
from tealagents.tools.errors import ToolsetError
from tealagents.tools.methods import check_method, marked, method_name, run_method, scopes_of
from tealagents.tools.signature import Signature
from tealagents.tools.thread_pool import ThreadPool
from tealagents.tools.user_tokens import in_time

_MARK = "__kernel_function__"
#: parameters that the framework fills in; here they keep their defaults
_OWN_PARAMETERS = frozenset({"kernel", "service", "execution_settings", "arguments"})
#: the arguments of a plugin's constructor, in this order
_CONTEXT = ("authorization", "extra_data_collector")


def is_plugin_class(kind: type[Any]) -> bool:
    """Whether a class has kernel functions."""
    return any(True for _ in marked(kind, _MARK))


def tools_of(kind: type[Any], name: str, where: str, pool: ThreadPool) -> list[Tool]:
    """One tool for each kernel function of the class. `ToolsetError`, beginning with `where`, if one of them
    or the constructor cannot be called."""
    construct = _constructor(kind, where)
    return [
        _tool(kind, name, attribute, bearer, f"{where}.{attribute}", pool, construct)
        for attribute, bearer in marked(kind, _MARK)
    ]


class KernelFunctionTool:
    """One kernel function; an instance of its class is made for each call."""

    def __init__(
        self,
        spec: ToolSpec,
        kind: type[Any],
        attribute: str,
        signature: Signature,
        pool: ThreadPool,
        construct: Callable[[Any, Any], Any] | None,
    ) -> None:
        self.spec = spec
        self._kind = kind
        self._attribute = attribute
        self._signature = signature
        self._pool = pool
        #: makes an instance from authorization and collector; None: the constructor takes neither
        self._construct = construct
        self._scopes = scopes_of(kind, spec.name)

    def check(self, arguments: Json) -> None:
        """`ToolFailed` if a call with these arguments would be refused before the method runs."""
        self._signature.check(arguments)

    async def call(self, context: ToolContext, arguments: Json) -> str:
        checked = self._signature.check(arguments)
        make: Callable[[], Any] = self._kind
        if self._construct is not None:
            make = partial(self._construct, await self._authorization(context), ExtraDataCollector(context))

        def run(**checked: Any) -> Any:
            # the constructor runs where the method runs: it may block, or open what needs the event loop
            result = getattr(make(), self._attribute)(**checked)
            if inspect.isasyncgen(result):
                return _listed(result)
            return list(result) if inspect.isgenerator(result) else result

        async def run_on_loop(**checked: Any) -> Any:
            result = run(**checked)
            return await result if inspect.isawaitable(result) else result

        # unlike `methods.is_async`: a decorator that is not async may run the method in its own event loop
        function = getattr(self._kind, self._attribute)
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        method = run_on_loop if is_async else run
        return await run_method(
            method, checked, context, self._pool, self.spec.name, nothing=self._signature.nothing
        )

    async def _authorization(self, context: ToolContext) -> str | None:
        """An `Authorization` header's value: with a token for the declared scopes, or else the caller's own
        header, if the config passes it on to tools."""
        if self._scopes:
            return f"Bearer {await in_time(context.user_token(self._scopes))}"
        return next((value for key, value in context.headers.items() if key.lower() == "authorization"), None)


async def _listed(result: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in result]


class ExtraDataCollector:
    """The earlier platform's interface for adding to an answer's extra data. It returns only what this call
    has added."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._added: list[input_types.ExtraDataElement] = []

    def add_extra_data(self, key: str, value: Any) -> None:
        self._context.add_extra_data(key, value)
        # not validated, because here a value need not be text
        self._added.append(input_types.ExtraDataElement.model_construct(key=key, value=value))

    def add_extra_data_items(self, extra_data: Any) -> None:
        if extra_data and extra_data.items:
            for item in extra_data.items:
                self.add_extra_data(item.key, item.value)

    def num_items(self) -> int:
        return len(self._added)

    def is_empty(self) -> bool:
        return not self._added

    def get_extra_data(self) -> input_types.ExtraData | None:
        return input_types.ExtraData(items=self._added) if self._added else None


class BasePlugin:
    """The base class of the earlier platform's plugins."""

    def __init__(
        self, authorization: str | None = None, extra_data_collector: ExtraDataCollector | None = None
    ) -> None:
        self.authorization = authorization
        self.extra_data_collector = extra_data_collector


class Kernel:
    """Named by annotations of parameters that the framework would fill in; there are no instances here."""


def kernel_function(
    func: Callable[..., Any] | None = None, name: str | None = None, description: str | None = None
) -> Callable[..., Any]:
    """Stands in for the framework's decorator, and sets the attributes that the real one documents."""

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        marked: Any = func
        marked.__kernel_function__ = True
        marked.__kernel_function_name__ = name or func.__name__
        marked.__kernel_function_description__ = description or func.__doc__
        marked.__kernel_function_parameters__ = [
            _parameter(parameter)
            for parameter in inspect.signature(func, eval_str=True).parameters.values()
            if parameter.name != "self"
        ]
        return func

    return decorate(func) if func is not None else decorate


def _parameter(parameter: inspect.Parameter) -> Json:
    described: Json = {"name": parameter.name, "is_required": parameter.default is parameter.empty}
    if get_origin(parameter.annotation) is Annotated:
        for extra in get_args(parameter.annotation)[1:]:
            if isinstance(extra, str):
                described["description"] = extra
            elif isinstance(extra, dict) and "description" in extra:
                # the real decorator removes it from the annotation, too
                described["description"] = extra.pop("description")
    return described


#: module → name → what can be imported from it
_STAND_INS: dict[str, Mapping[str, Any]] = {
    "semantic_kernel": {"Kernel": Kernel},
    "semantic_kernel.functions": {"kernel_function": kernel_function},
    "semantic_kernel.functions.kernel_function_decorator": {"kernel_function": kernel_function},
    "semantic_kernel.kernel_pydantic": {"KernelBaseModel": input_types.KernelBaseModel},
    "sk_agents": {},
    "sk_agents.ska_types": {"BasePlugin": BasePlugin, **input_types.ALL},
    "sk_agents.extra_data_collector": {
        "ExtraDataCollector": ExtraDataCollector,
        **input_types.EXTRA_DATA,
    },
}


class _StandIns(MetaPathFinder, Loader):
    """Finds and fills the stand-in modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # only a real package has a path, and below it there are only its real modules
        if fullname not in _STAND_INS or path:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_STAND_INS[module.__name__])
        for name in _STAND_INS:
            if name.rpartition(".")[0] == module.__name__:
                import_module(name)  # as the real package does, which makes it an attribute


_FINDER = _StandIns()


def stand_in() -> None:
    """Makes the modules that plugins import from the earlier platform importable, until the process ends:
    a function of a plugin may import them as late as in a call.

    Each of the two packages has stand-ins only if the real one is not installed.
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)  # last, so that an installed package is found first


def missing_import(error: ImportError) -> str | None:
    """What to do about the failed import of a plugin file; None if it is not one of the earlier platform, or
    if an installed module lacks the name."""
    module = error.name or ""
    if module.partition(".")[0] not in ("semantic_kernel", "sk_agents") or error.path is not None:
        return None
    name = re.match("cannot import name '(.+?)'", str(error))
    return (
        f"it imports {f'{module}.{name[1]}' if name else module} of the earlier platform, of which only what "
        "plugins are made with is available here. Derive its plugins from tealagents.plugins.Plugin, or "
        "install the package semantic-kernel in an environment of its own without MCP servers: it needs an "
        "older version of the package mcp."
    )


def _constructor(kind: type[Any], where: str) -> Callable[[Any, Any], Any] | None:
    """A function that makes an instance from authorization and collector. It passes both in this order, or by
    name those that the constructor takes. None if the constructor takes neither.

    `ToolsetError` if the constructor needs other arguments.
    """
    signature = inspect.signature(kind)
    try:
        signature.bind(None, None)
    except TypeError:
        named = [name for name in _CONTEXT if name in signature.parameters]
    else:
        return kind
    try:
        signature.bind(**dict.fromkeys(named))
    except TypeError:
        raise ToolsetError(
            f"{where}: the constructor has to take ({', '.join(_CONTEXT)}), one of them by name, or nothing."
        ) from None

    def by_name(*given: Any) -> Any:
        return kind(**{name: each for name, each in zip(_CONTEXT, given, strict=True) if name in named})

    return by_name if named else None


def _tool(
    kind: type[Any],
    plugin_name: str,
    attribute: str,
    bearer: Any,
    where: str,
    pool: ThreadPool,
    construct: Callable[[Any, Any], Any] | None,
) -> KernelFunctionTool:
    function = getattr(kind, attribute)
    check_method(function, where, generators=True)
    hidden = {"self", *_hidden(function, where)}
    # the decorator removes from the annotations the descriptions that are in dictionaries
    texts = {one["name"]: one.get("description") or "" for one in bearer.__kernel_function_parameters__}
    signature = Signature(function, where, hidden=hidden, lenient=True, texts=texts)
    spec = ToolSpec(
        name=method_name(plugin_name, bearer.__kernel_function_name__, where),
        description=inspect.cleandoc(bearer.__kernel_function_description__ or ""),
        parameters=signature.schema,
        governance=Governance(),
    )
    return KernelFunctionTool(spec, kind, attribute, signature, pool, construct)


def _hidden(function: Any, where: str) -> Iterator[str]:
    """The names of the parameters that the model must not fill. `ToolsetError` if one has no default."""
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.name not in _OWN_PARAMETERS and not _is_left_out(parameter.annotation):
            continue
        if parameter.default is parameter.empty:
            raise ToolsetError(f"{where}: {parameter.name!r} is not for the model and has no default.")
        yield parameter.name


def _is_left_out(annotation: Any) -> bool:
    if get_origin(annotation) is not Annotated:
        return False
    extras = [extra for extra in get_args(annotation)[1:] if isinstance(extra, dict)]
    return any(extra.get("include_in_function_choices") is False for extra in extras)
