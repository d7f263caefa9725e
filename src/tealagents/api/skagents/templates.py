"""The instructions of tasks: Jinja templates that can produce text, and do nothing else.

A template is compiled when the service is checked or started. It may use loops, conditions and filters on the
values of the call. Anything that runs other code, reads attributes of objects, or repeats text a given number
of times is refused with an error that names it. Rendering is limited in steps, time and length.
"""

import contextlib
import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import prod
from operator import itemgetter
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.filters import FILTERS, make_attrgetter, make_multi_attrgetter
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import SandboxedEnvironment

from tealagents.api import bodies
from tealagents.api.skagents import values

#: limits of one rendering: characters of the result and of each text on the way to it, steps, seconds
LONGEST, MOST_STEPS, MOST_SECONDS = 1_000_000, 100_000, 1.0

#: the most spaces per level of indented JSON, and the most digits to round to
WIDEST, MOST_DIGITS = 20, 30

#: the largest integer, positive or negative, that arithmetic accepts
LARGEST = 2**63 - 1

_FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby"),
    *("int", "items", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr"),
    *("reverse", "select", "selectattr", "sort", "string", "striptags", "sum", "title", "trim", "truncate"),
    *("unique", "upper", "wordcount"),
)
#: filters that iterate over their input; each item costs a step
_ITERATING = frozenset(
    (
        *("dictsort", "groupby", "join", "list", "map", "max", "min", "reject", "rejectattr", "select"),
        *("selectattr", "sort", "sum", "unique"),
    )
)
#: filters and methods that process a whole text, whose length is checked first
_ON_TEXT = frozenset(
    (
        *("capitalize", "e", "escape", "isdigit", "lower", "lstrip", "rstrip", "split", "splitlines"),
        *("strip", "striptags", "title", "trim", "upper", "wordcount"),
    )
)
#: filters that apply a filter or a test to each item → the position of the argument that names it
_APPLIED_AT: Mapping[str, int] = {"map": 0, "select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}
#: filters that compare items → by their arguments, the part of an item that is compared; comparing lists
#: takes time that the steps of the loop do not count
_COMPARED_PARTS: Mapping[Callable[..., Any], Callable[[Mapping[str, Any]], Callable[[Any], Any]]] = {
    FILTERS["dictsort"]: lambda given: itemgetter(0 if given.get("by", "key") == "key" else 1),
    FILTERS["groupby"]: lambda given: make_attrgetter(_environment, given["attribute"]),
    FILTERS["sort"]: lambda given: _sort_key(given.get("attribute")),
}
_METHODS = (
    *("get", "items", "keys", "values", "lower", "upper", "title", "capitalize", "strip", "lstrip"),
    *("rstrip", "split", "splitlines", "startswith", "endswith", "isdigit"),
)
#: tests and filters that accept a value that was not sent
_HANDLE_UNDEFINED = ("defined", "undefined", "default", "d")
#: the syntax that templates may use; all other syntax of Jinja is refused
_ALLOWED_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Assign, nodes.For, nodes.If, nodes.CondExpr),
    *(nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.Slice),
    *(nodes.Getattr, nodes.Getitem, nodes.Call, nodes.Filter, nodes.Test, nodes.Compare, nodes.Operand),
    *(nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Concat, nodes.Add, nodes.Sub),
    *(nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod),
    nodes.Scope,  # only within syntax that is refused anyway
)
#: the names of refused syntax in errors, if they differ from the node's class
_SYNTAX: Mapping[type[nodes.Node], str] = {
    nodes.AssignBlock: "set with endset",
    nodes.CallBlock: "call",
    nodes.FilterBlock: "filter with endfilter",
    nodes.FromImport: "from",
    nodes.NSRef: "set of an attribute",
    nodes.Pos: "+ before a value",
    nodes.Pow: "**",
    nodes.ScopedEvalContextModifier: "autoescape",
}
_ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod)
_BUDGET = "budget of the rendering"
_CALL_REFUSED = (
    f"only range() and these methods can be called: {', '.join(_METHODS)}; replace and join are filters"
)


class TemplateRefused(ValueError):
    """A template that is invalid, uses what is not allowed, or exceeded a limit. The text says which."""


class RenderingFailed(TemplateRefused):
    """The template cannot be rendered with these values; with others it may."""


class _Budget:
    """The steps and the time that one rendering has left."""

    def __init__(self) -> None:
        self._steps = MOST_STEPS
        self._until = time.monotonic() + MOST_SECONDS

    def take(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0 or time.monotonic() > self._until:
            raise TemplateRefused(f"takes more than {MOST_STEPS:,} steps or {MOST_SECONDS:g} s")

    def counted(
        self, looped: Iterable[Any], compared: Callable[[Any], Any] = lambda _: None
    ) -> Iterator[Any]:
        """The values of a loop: a step for each, and for each list item in its part that is `compared`."""
        for value in looped:
            self.take(1)
            self._take_lists(compared(value))
            yield value

    def _take_lists(self, value: Any) -> None:
        if isinstance(value, list | tuple):
            self.take(len(value))
        elif isinstance(value, dict):
            value = value.values()
        else:
            return
        for each in value:
            self._take_lists(each)


def _check_length(length: int) -> None:
    if length > LONGEST:
        raise TemplateRefused(f"produces more than {LONGEST:,} characters")


def _text(value: Any) -> str:
    """A value as text. What a list or mapping holds is measured first: it may hold one text many times."""
    if not isinstance(value, str):
        length = 0
        for number, each in enumerate(_within(value)):
            length += len(each) if isinstance(each, str) else 0
            _check_length(max(number, length))
    return str(value)


def _within(value: Any) -> Iterator[Any]:
    """A value, and what it holds."""
    yield value
    if isinstance(value, dict):
        value = [*value, *value.values()]
    for each in value if isinstance(value, list | tuple) else ():
        yield from _within(each)


# --- filters in place of Jinja's own --------------------------------------------------------------


@pass_context
def _counted_loop(context: Context, looped: Iterable[Any]) -> Iterator[Any]:
    budget: _Budget = context[_BUDGET]
    return budget.counted(looped)


def _with_steps(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter with a step for each item that it iterates over, also if `map` calls it: the work for one item
    may take long."""
    wanted = getattr(function, "jinja_pass_arg", None)
    compares = _COMPARED_PARTS.get(function)
    taken = _arguments_of(function)

    @pass_context
    def walk(context: Context, value: Any, *arguments: Any, **named: Any) -> Any:
        budget: _Budget = context[_BUDGET]
        counted = budget.counted
        if compares is not None:
            counted = partial(counted, compared=compares(taken.bind(*arguments, **named).arguments))
        if function is FILTERS["dictsort"]:
            value = dict(counted(value.items()))
        elif isinstance(value, Iterable):
            value = counted(value)
        passed = {"context": context, "environment": context.environment, "eval_context": context.eval_ctx}
        return function(*([passed[wanted.name]] if wanted else []), value, *arguments, **named)

    return walk


def _with_length_check(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter on a text whose length is checked first, also if `map` calls it."""

    @pass_context
    def work(context: Context, value: Any, *arguments: Any, **named: Any) -> Any:
        text = value if isinstance(value, str) else _text(value)
        _measure(context, text, *arguments, *named.values())
        return function(text, *arguments, **named)

    return work


def _measure(context: Context, text: str, *arguments: Any) -> None:
    """Checks a text's length. Takes steps for text arguments: a search takes the product of the lengths."""
    _check_length(len(text))
    lengths = [len(each) for each in (text, *arguments) if isinstance(each, str)]
    budget: _Budget = context[_BUDGET]
    budget.take(prod(lengths) // LONGEST)


def _sort_key(attribute: Any) -> Callable[[Any], Any]:
    several = isinstance(attribute, str) and "," in attribute
    return (make_multi_attrgetter if several else make_attrgetter)(_environment, attribute)


def _checked_text(value: Any) -> Any:
    if isinstance(value, str):
        _check_length(len(value))
    return value


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    whole, times = _text(text), -1 if count is None else count
    _check_length(len(whole) + whole.count(old) * len(new))
    return whole.replace(old, new, times)


def _join(joined: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    if attribute:
        joined = map(make_attrgetter(_environment, attribute), joined)
    parts = list(map(_text, joined))
    _check_length(sum(map(len, parts)) + len(parts) * len(d))
    return d.join(parts)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > MOST_DIGITS:
        raise TemplateRefused(f"cannot round to more than {MOST_DIGITS} digits")
    rounded: float = FILTERS["round"](value, precision, method)
    return rounded


def _to_json(value: Any, indent: int | None = None) -> str:
    if indent is not None and indent > WIDEST:
        raise TemplateRefused(f"cannot indent by more than {WIDEST}")
    parts, length = list[str](), 0
    for part in json.JSONEncoder(ensure_ascii=False, indent=indent).iterencode(value):
        length += len(part)
        _check_length(length)
        parts.append(part)
    return "".join(parts)


def _safe(value: Any) -> Any:
    """The filter `safe`: nothing is escaped here, so there is nothing to do."""
    return value


def _arguments_of(function: Callable[..., Any]) -> inspect.Signature:
    """The arguments of a filter in a template: without the filtered value and what Jinja passes."""
    added = 1 if hasattr(function, "jinja_pass_arg") else 0
    whole = inspect.signature(function)
    return whole.replace(parameters=list(whole.parameters.values())[added + 1 :])


class _Environment(SandboxedEnvironment):
    """Jinja's sandbox, reduced to an explicit list of filters and methods, for plain data and `values`."""

    intercepted_binops = frozenset({"+", "%", "*"})

    def __init__(self) -> None:
        super().__init__(autoescape=False, finalize=_text)
        self.filters = {name: FILTERS[name] for name in _FILTERS}
        self.filters |= {"join": _join, "replace": _replace, "round": _round, "tojson": _to_json}
        self.filters |= {"safe": _safe, "string": _text}
        self.arguments = {name: _arguments_of(function) for name, function in self.filters.items()}
        self.filters |= {name: _with_steps(self.filters[name]) for name in _ITERATING}
        self.filters |= {
            name: _with_length_check(self.filters[name]) for name in _ON_TEXT.intersection(_FILTERS)
        }
        self.filters |= {_STEPS: _counted_loop, _CHECKED: _checked_text}
        self.globals = {"range": self.globals["range"]}

    def getattr(self, obj: Any, attribute: str) -> Any:
        found = values.attribute(obj, attribute) if isinstance(obj, values.Typed) else values.MISSING
        return super().getattr(obj, attribute) if found is values.MISSING else found

    def getitem(self, obj: Any, argument: Any) -> Any:
        typed = isinstance(obj, values.Typed) and isinstance(argument, str)
        found = values.part(obj, argument) if typed else values.MISSING
        return super().getitem(obj, argument) if found is values.MISSING else found

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and (attr in _METHODS or not callable(value))

    def call(self, context: Context, method: Any, /, *arguments: Any, **named: Any) -> Any:
        text = getattr(method, "__self__", None)
        if isinstance(text, str) and method.__name__ in _ON_TEXT:
            _measure(context, text, *arguments, *named.values())
        return super().call(context, method, *arguments, **named)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            _check_length(len(left) + len(right))
        elif isinstance(left, Undefined) or isinstance(right, Undefined):
            raise RenderingFailed(f"{operator} needs two values")
        elif not _is_number(left) or not _is_number(right):
            raise TemplateRefused(f"{operator} is for numbers{' and texts' if operator == '+' else ''} only")
        return super().call_binop(context, operator, left, right)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= LARGEST)


#: names of internal filters, which are not valid identifiers, so no template can use them
_STEPS, _CHECKED = "counted loop", "checked text"
_environment: _Environment = _Environment()


# --- compiling and rendering ---------------------------------------------------------------------


class Instructions:
    """A compiled template. Raises `TemplateRefused` if the source is not an allowed template."""

    def __init__(self, source: str) -> None:
        try:
            tree = _environment.parse(source)
            _check(tree)
            #: the names of the values that it needs, without those that it marks as optional
            self.names = find_undeclared_variables(tree) - _optional(tree)
            self._template: Template = _environment.from_string(_with_limits(tree))
        except TemplateSyntaxError as error:
            raise TemplateRefused(f"line {error.lineno}: {error.message}") from None
        except RecursionError:
            raise TemplateRefused("is nested too deeply") from None
        self._check_rendering()

    def render(self, given: Mapping[str, Any]) -> str:
        """The text for these values, which are plain data or from `values.template_value`.

        Raises `TemplateRefused` if it exceeds a limit, and `RenderingFailed` if the values do not fit.
        """
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate({**given, _BUDGET: _Budget()}):
                length += len(part)
                _check_length(length)
                parts.append(part)
        except TemplateRefused:
            raise
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise RenderingFailed(
                f"cannot be rendered with these values: {bodies.short(str(error))}"
            ) from None
        except RecursionError:
            raise TemplateRefused("is nested too deeply") from None
        return "".join(parts)

    def _check_rendering(self) -> None:
        """Finds, when the service starts, what exceeds a limit with any values."""
        with contextlib.suppress(RenderingFailed):
            self.render({})


def _check(tree: nodes.Template) -> None:
    for node in tree.find_all(nodes.Node):
        if not isinstance(node, _ALLOWED_NODES):
            written = _SYNTAX.get(type(node), type(node).__name__.lower())
            raise TemplateRefused(f"line {node.lineno}: {written} is not allowed in templates")
        if isinstance(node, nodes.For) and node.recursive:
            raise TemplateRefused(f"line {node.lineno}: a recursive loop is not allowed in templates")
        if isinstance(node, nodes.Assign) and any(map(node.find, (nodes.List, nodes.Tuple, nodes.Dict))):
            raise TemplateRefused(f"line {node.lineno}: set of lists or mappings is not allowed in templates")
        if isinstance(node, nodes.Call) and not _is_allowed_call(node.node):
            raise TemplateRefused(f"line {node.lineno}: {_CALL_REFUSED}")
        if _attribute_name(node).startswith("__"):
            raise TemplateRefused(f"line {node.lineno}: {_attribute_name(node)} cannot be read in templates")
        if isinstance(node, nodes.Filter):
            _check_filter(node)
        if isinstance(node, _ARITHMETIC) and not _has_possible_operands(node):
            also = " and texts only" if isinstance(node, nodes.Add) else " only; ~ joins texts"
            raise TemplateRefused(f"line {node.lineno}: {node.operator} is for numbers{also}")


def _check_filter(node: nodes.Filter) -> None:
    taken = _environment.arguments.get(node.name)
    if taken is None:
        raise TemplateRefused(
            f"line {node.lineno}: the filter {node.name} is not allowed in templates; these are: "
            f"{', '.join(sorted(_environment.arguments))}"
        )
    if node.dyn_args is None and node.dyn_kwargs is None:
        try:
            taken.bind(*node.args, **{str(each.key): each.value for each in node.kwargs})
        except TypeError as error:
            raise TemplateRefused(f"line {node.lineno}: the filter {node.name}: {error}") from None
    _check_applied(node)


def _check_applied(node: nodes.Filter) -> None:
    """Checks the filter or test that a filter applies: Jinja would look for it only once there is an item."""
    given = node.args[_APPLIED_AT[node.name] :] if node.name in _APPLIED_AT else []
    if not given or not isinstance(given[0], nodes.Const):
        return
    name = str(given[0].value)
    if node.name == "map":
        applied = (name, given[1:], node.kwargs, node.dyn_args, node.dyn_kwargs)
        _check_filter(nodes.Filter(node.node, *applied, lineno=node.lineno))
    elif name not in _environment.tests:
        raise TemplateRefused(f"line {node.lineno}: the test {name} is not allowed in templates")


def _has_possible_operands(node: nodes.BinExpr) -> bool:
    """Whether the operator has a result for some values, as far as the template's literals show."""
    kinds = {_literal_kind(node.left), _literal_kind(node.right)} - {None}
    return kinds <= {"number"} or (isinstance(node, nodes.Add) and kinds == {"text"})


def _literal_kind(node: nodes.Node) -> str | None:
    """`number`, `text` or `other` for a literal, None for anything else."""
    if isinstance(node, nodes.Concat):
        return "text"
    if isinstance(node, nodes.Const):
        kind = "text" if isinstance(node.value, str) else "other"
        return "number" if isinstance(node.value, int | float) else kind
    return "other" if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict) else None


def _attribute_name(node: nodes.Node) -> str:
    """The attribute or constant key that a node reads, or an empty text."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    key = node.arg if isinstance(node, nodes.Getitem) else None
    return str(key.value) if isinstance(key, nodes.Const) else ""


def _is_allowed_call(called: nodes.Node) -> bool:
    if isinstance(called, nodes.Getattr):
        return called.attr in _METHODS
    return isinstance(called, nodes.Name) and called.name == "range"


def _optional(tree: nodes.Template) -> set[str]:
    """The names that are tested or have a default, so that they need not be sent."""
    uses = (each for each in tree.find_all((nodes.Test, nodes.Filter)) if each.name in _HANDLE_UNDEFINED)
    return {use.node.name for use in uses if isinstance(use.node, nodes.Name)}


def _with_limits(tree: nodes.Template) -> nodes.Template:
    """The template with steps counted in every loop and `~`, and the length of every assigned or joined text
    checked."""
    for loop in tree.find_all(nodes.For):
        loop.iter = _filter_node(loop.iter, _STEPS)
    for assignment in tree.find_all(nodes.Assign):
        assignment.node = _filter_node(assignment.node, _CHECKED)
    for joined in tree.find_all(nodes.Concat):
        parts = nodes.List(joined.nodes, lineno=joined.lineno, environment=joined.environment)
        joined.nodes = [_filter_node(parts, "join")]
    return tree


def _filter_node(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)
