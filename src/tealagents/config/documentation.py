"""The texts below the keys and variables, for editors and the reference.

They are read from the source when asked for. pydantic could do it (`use_attribute_docstrings`), but at every
start, which would cost the service 80 ms.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache

from pydantic import BaseModel


def meaning(section: type[BaseModel], name: str) -> str:
    """What the field called `name` means, on one line; empty if it has no text."""
    for model in section.__mro__:
        if text := _texts(model.__module__).get((model.__name__, name)):
            return text
    return ""


@cache
def _texts(module: str) -> Mapping[tuple[str, str], str]:
    """All texts of a module, by the names of class and field."""
    return dict(_fields(ast.parse(inspect.getsource(sys.modules[module])))) if module in _MODULES else {}


#: where options are declared; the bases of pydantic are none of ours
_MODULES = (
    *(f"{__package__}.{name}" for name in ("auth", "models", "settings")),
    *(f"tealagents.{name}" for name in ("limits", "auth.options", "tools.options", "tools.catalogue")),
)


def _fields(module: ast.Module) -> Iterator[tuple[tuple[str, str], str]]:
    for section in module.body:
        if isinstance(section, ast.ClassDef):
            for field, text in zip(section.body, section.body[1:], strict=False):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(meaning))):
                        yield (section.name, name), " ".join(meaning.split())
