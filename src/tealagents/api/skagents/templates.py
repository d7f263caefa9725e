"""The instructions of tasks: Jinja templates that fill in text, and can do nothing else.

A template is compiled when the service is checked or started. It may loop over what was sent, decide and
filter; what runs other code, reaches into objects, or makes text longer by a number is refused by name. While
it is rendered, its steps, its time and its output are bounded.
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

#: characters of a result, and of a text on the way to it; steps and seconds of making it
LONGEST, MOST_STEPS, MOST_SECONDS = 1_000_000, 100_000, 1.0

#: the most blanks that a level of JSON is indented by, and digits that a number is rounded to
WIDEST, MOST_DIGITS = 20, 30

#: integers beyond this are not counted with
LARGEST = 2**63 - 1

_FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby"),
    *("int", "items", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr"),
    *("reverse", "select", "selectattr", "sort", "string", "striptags", "sum", "title", "trim", "truncate"),
    *("unique", "upper", "wordcount"),
)
#: those that go through all that they are given, and take longer for more of it
_WALKING = frozenset(
    (
        *("dictsort", "groupby", "join", "list", "map", "max", "min", "reject", "rejectattr", "select"),
        *("selectattr", "sort", "sum", "unique"),
    )
)
#: filters and methods that work on a whole text
_WORKING = frozenset(
    (
        *("capitalize", "e", "escape", "isdigit", "lower", "lstrip", "rstrip", "split", "splitlines"),
        *("strip", "striptags", "title", "trim", "upper", "wordcount"),
    )
)
#: those that apply a filter or a test to each value, and which of their arguments names it
_APPLYING: Mapping[str, int] = {"map": 0, "select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}
#: those that compare what they are given without counting: what of each value, by their arguments
_COMPARED: Mapping[Callable[..., Any], Callable[[Mapping[str, Any]], Callable[[Any], Any]]] = {
    FILTERS["dictsort"]: lambda given: itemgetter(0 if given.get("by", "key") == "key" else 1),
    FILTERS["groupby"]: lambda given: make_attrgetter(_environment, given["attribute"]),
    FILTERS["sort"]: lambda given: _sorted_by(given.get("attribute")),
}
_METHODS = (
    *("get", "items", "keys", "values", "lower", "upper", "title", "capitalize", "strip", "lstrip"),
    *("rstrip", "split", "splitlines", "startswith", "endswith", "isdigit"),
)
#: tests and filters of what may not be there
_WITHOUT = ("defined", "undefined", "default", "d")
#: what a template may be made of; whatever else Jinja knows is refused
_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Assign, nodes.For, nodes.If, nodes.CondExpr),
    *(nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.Slice),
    *(nodes.Getattr, nodes.Getitem, nodes.Call, nodes.Filter, nodes.Test, nodes.Compare, nodes.Operand),
    *(nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Concat, nodes.Add, nodes.Sub),
    *(nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod),
    nodes.Scope,  # of what is refused itself
)
#: how templates write the rest, where that is not the node's name
_WRITTEN: Mapping[type[nodes.Node], str] = {
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
_CALLABLE = (
    f"only range() and these methods can be called here: {', '.join(_METHODS)}; replace and join are filters"
)


class TemplateRefused(ValueError):
    """A template that is not one, does what templates may not, or has taken too much."""


class ValuesUnfit(TemplateRefused):
    """A template that cannot be filled in with the values that were sent."""


class _Budget:
    """What one rendering may still take."""

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
        """Each value as a step, and each item of the lists in what is `compared` of it as one more."""
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


def _bounded(length: int) -> None:
    if length > LONGEST:
        raise TemplateRefused(f"makes more than {LONGEST:,} characters")


# --- what stands for Jinja's own -----------------------------------------------------------------


@pass_context
def _counted(context: Context, looped: Iterable[Any]) -> Iterator[Any]:
    budget: _Budget = context[_BUDGET]
    return budget.counted(looped)


def _walking(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that counts what it goes through one by one, also where `map` calls it: what it does with each
    value may take long."""
    wanted = getattr(function, "jinja_pass_arg", None)
    compares = _COMPARED.get(function)
    taken = _taken(function)

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


def _working(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that works on a text, which is measured before, also where `map` calls it."""

    @pass_context
    def work(context: Context, value: Any, *arguments: Any, **named: Any) -> Any:
        text = value if isinstance(value, str) else str(value)
        _measure(context, text, *arguments, *named.values())
        return function(text, *arguments, **named)

    return work


def _measure(context: Context, text: str, *arguments: Any) -> None:
    """Refuses to work on a text that could not be made; with another text it may take as long as both."""
    _bounded(len(text))
    lengths = [len(each) for each in (text, *arguments) if isinstance(each, str)]
    budget: _Budget = context[_BUDGET]
    budget.take(prod(lengths) // LONGEST)


def _sorted_by(attribute: Any) -> Callable[[Any], Any]:
    several = isinstance(attribute, str) and "," in attribute
    return (make_multi_attrgetter if several else make_attrgetter)(_environment, attribute)


def _kept(value: Any) -> Any:
    if isinstance(value, str):
        _bounded(len(value))
    return value


def _replaced(text: Any, old: str, new: str, count: int | None = None) -> str:
    whole, times = str(text), -1 if count is None else count
    _bounded(len(whole) + whole.count(old) * len(new))
    return whole.replace(old, new, times)


def _joined(joined: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    if attribute:
        joined = map(make_attrgetter(_environment, attribute), joined)
    parts = list(map(str, joined))
    _bounded(sum(map(len, parts)) + len(parts) * len(d))
    return d.join(parts)


def _rounded(value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > MOST_DIGITS:
        raise TemplateRefused(f"cannot round to more than {MOST_DIGITS} digits")
    rounded: float = FILTERS["round"](value, precision, method)
    return rounded


def _json(value: Any, indent: int | None = None) -> str:
    if indent is not None and indent > WIDEST:
        raise TemplateRefused(f"cannot indent by more than {WIDEST}")
    parts, length = list[str](), 0
    for part in json.JSONEncoder(ensure_ascii=False, indent=indent).iterencode(value):
        length += len(part)
        _bounded(length)
        parts.append(part)
    return "".join(parts)


def _as_it_is(value: Any) -> Any:
    """What `safe` comes to where nothing is escaped."""
    return value


def _taken(function: Callable[..., Any]) -> inspect.Signature:
    """The arguments that a template gives to a filter, without what Jinja adds and what is filtered."""
    added = 1 if hasattr(function, "jinja_pass_arg") else 0
    whole = inspect.signature(function)
    return whole.replace(parameters=list(whole.parameters.values())[added + 1 :])


class _Environment(SandboxedEnvironment):
    """Jinja's sandbox over plain data and `values`, with what templates may use named one by one."""

    intercepted_binops = frozenset({"+", "%", "*"})

    def __init__(self) -> None:
        super().__init__(autoescape=False)
        self.filters = {name: FILTERS[name] for name in _FILTERS}
        self.filters |= {"join": _joined, "replace": _replaced, "round": _rounded, "tojson": _json}
        self.filters["safe"] = _as_it_is
        self.arguments = {name: _taken(function) for name, function in self.filters.items()}
        self.filters |= {name: _walking(self.filters[name]) for name in _WALKING}
        self.filters |= {name: _working(self.filters[name]) for name in _WORKING.intersection(_FILTERS)}
        self.filters |= {_COUNTED: _counted, _KEPT: _kept}
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
        if isinstance(text, str) and method.__name__ in _WORKING:
            _measure(context, text, *arguments, *named.values())
        return super().call(context, method, *arguments, **named)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            _bounded(len(left) + len(right))
        elif isinstance(left, Undefined) or isinstance(right, Undefined):
            raise ValuesUnfit(f"{operator} needs two values")
        elif not _is_number(left) or not _is_number(right):
            raise TemplateRefused(f"{operator} is for numbers{' and texts' if operator == '+' else ''} only")
        return super().call_binop(context, operator, left, right)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= LARGEST)


#: names that no template can write
_COUNTED, _KEPT = "counted loop", "kept text"
_environment: _Environment = _Environment()


# --- compiling and rendering ---------------------------------------------------------------------


class Instructions:
    """One compiled template. `TemplateRefused` where it cannot be one."""

    def __init__(self, source: str) -> None:
        try:
            tree = _environment.parse(source)
            _check(tree)
            #: what it takes from the values, apart from what it says itself that it can do without
            self.names = find_undeclared_variables(tree) - _optional(tree)
            self._template: Template = _environment.from_string(_bound(tree))
        except TemplateSyntaxError as error:
            raise TemplateRefused(f"line {error.lineno}: {error.message}") from None
        except RecursionError:
            raise TemplateRefused("is nested too deeply") from None
        self._try()

    def render(self, given: Mapping[str, Any]) -> str:
        """The text for these values: plain data, or as `values` makes it. `TemplateRefused` where they do not
        fit it."""
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate({**given, _BUDGET: _Budget()}):
                length += len(part)
                _bounded(length)
                parts.append(part)
        except TemplateRefused:
            raise
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise ValuesUnfit(f"cannot be filled in with these values: {bodies.short(str(error))}") from None
        except RecursionError:
            raise TemplateRefused("is nested too deeply") from None
        return "".join(parts)

    def _try(self) -> None:
        """What takes too much whatever is sent is found before anyone sends anything."""
        with contextlib.suppress(ValuesUnfit):
            self.render({})


def _check(tree: nodes.Template) -> None:
    for node in tree.find_all(nodes.Node):
        if not isinstance(node, _NODES):
            written = _WRITTEN.get(type(node), type(node).__name__.lower())
            raise TemplateRefused(f"line {node.lineno}: {written} is not for templates here")
        if isinstance(node, nodes.For) and node.recursive:
            raise TemplateRefused(f"line {node.lineno}: a recursive loop is not for templates here")
        if isinstance(node, nodes.Assign) and any(map(node.find, (nodes.List, nodes.Tuple, nodes.Dict))):
            raise TemplateRefused(f"line {node.lineno}: a set of lists is not for templates here")
        if isinstance(node, nodes.Call) and not _is_known(node.node):
            raise TemplateRefused(f"line {node.lineno}: {_CALLABLE}")
        if _reached(node).startswith("__"):
            raise TemplateRefused(f"line {node.lineno}: {_reached(node)} cannot be reached here")
        if isinstance(node, nodes.Filter):
            _check_filter(node)
        if isinstance(node, _ARITHMETIC) and not _can_be_done(node):
            also = " and texts only" if isinstance(node, nodes.Add) else " only; ~ joins texts"
            raise TemplateRefused(f"line {node.lineno}: {node.operator} is for numbers{also}")


def _check_filter(node: nodes.Filter) -> None:
    taken = _environment.arguments.get(node.name)
    if taken is None:
        raise TemplateRefused(
            f"line {node.lineno}: the filter {node.name} is not for templates here; these are: "
            f"{', '.join(sorted(_environment.arguments))}"
        )
    if node.dyn_args is None and node.dyn_kwargs is None:
        try:
            taken.bind(*node.args, **{str(each.key): each.value for each in node.kwargs})
        except TypeError as error:
            raise TemplateRefused(f"line {node.lineno}: the filter {node.name}: {error}") from None
    _check_applied(node)


def _check_applied(node: nodes.Filter) -> None:
    """Jinja looks for it only when there is a value to apply it to."""
    given = node.args[_APPLYING[node.name] :] if node.name in _APPLYING else []
    if not given or not isinstance(given[0], nodes.Const):
        return
    name = str(given[0].value)
    if node.name == "map":
        applied = (name, given[1:], node.kwargs, node.dyn_args, node.dyn_kwargs)
        _check_filter(nodes.Filter(node.node, *applied, lineno=node.lineno))
    elif name not in _environment.tests:
        raise TemplateRefused(f"line {node.lineno}: the test {name} is not for templates here")


def _can_be_done(node: nodes.BinExpr) -> bool:
    """Whether there are values that can be sent for which this has a result."""
    kinds = {_kind(node.left), _kind(node.right)} - {None}
    return kinds <= {"number"} or (isinstance(node, nodes.Add) and kinds == {"text"})


def _kind(node: nodes.Node) -> str | None:
    """What a value is, where the template itself says so."""
    if isinstance(node, nodes.Concat):
        return "text"
    if isinstance(node, nodes.Const):
        kind = "text" if isinstance(node.value, str) else "other"
        return "number" if isinstance(node.value, int | float) else kind
    return "other" if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict) else None


def _reached(node: nodes.Node) -> str:
    """The attribute or key that a node names."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    key = node.arg if isinstance(node, nodes.Getitem) else None
    return str(key.value) if isinstance(key, nodes.Const) else ""


def _is_known(called: nodes.Node) -> bool:
    if isinstance(called, nodes.Getattr):
        return called.attr in _METHODS
    return isinstance(called, nodes.Name) and called.name == "range"


def _optional(tree: nodes.Template) -> set[str]:
    """The names that are tested or have a default."""
    uses = (each for each in tree.find_all((nodes.Test, nodes.Filter)) if each.name in _WITHOUT)
    return {use.node.name for use in uses if isinstance(use.node, nodes.Name)}


def _bound(tree: nodes.Template) -> nodes.Template:
    """The template with every loop counted, and every text that is put together measured."""
    for loop in tree.find_all(nodes.For):
        loop.iter = _filtered(loop.iter, _COUNTED)
    for assignment in tree.find_all(nodes.Assign):
        assignment.node = _filtered(assignment.node, _KEPT)
    return tree


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)
