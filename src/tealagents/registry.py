"""Names to adapters: what comes with the project, entry points of others, and `module:Class`.

An adapter is imported when it is asked for, so that none needs what the others need. Used by every package
of adapters and by `tealagents.threads`; imports nothing of them.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from msgspec import Struct
from pydantic import BaseModel, ValidationError

from tealagents.mistakes import explained

__all__ = ["Registry", "import_from"]


class Registry(Struct, frozen=True, kw_only=True):
    """The names of one kind of adapter."""

    #: what one is called in an error
    word: str
    #: raised with a text that says what to do
    error: type[Exception]
    #: the group of third parties' entry points; none where all there are come with the project
    group: str = ""
    #: name → `module:Class`
    built_in: Mapping[str, str] = {}
    #: package that an adapter may need → the extra that brings it
    extras: Mapping[str, str] = {}

    def known(self) -> list[str]:
        return sorted({*self.built_in, *(point.name for point in entry_points(group=self.group))})

    def find(self, name: str) -> Any:
        """What a name stands for."""
        module, colon, attribute = self._reference(name).partition(":")
        if not colon:
            known = ", ".join(self.known())
            choice = (
                f"Known: {known}; or name a class as module:Class." if known else "Name one as module:Class."
            )
            raise self.error(f"Unknown {self.word} {name!r}. {choice}")
        try:
            imported = import_module(module)
        except ModuleNotFoundError as missing:
            raise self.error(self._missing(name, missing.name or module)) from missing
        except (ImportError, SyntaxError) as wrong:
            raise self.error(f"The {self.word} {name!r} cannot be imported: {wrong}") from wrong
        try:
            return getattr(imported, attribute)
        except AttributeError:
            raise self.error(
                f"The {self.word} {name!r} does not exist: {module} has no {attribute!r}."
            ) from None

    def make(self, name: str, found: Any, given: Mapping[str, Any] | BaseModel, *more: Any) -> Any:
        """The adapter, which is called with its options."""
        options = self.options(name, found, given)
        try:
            return found(options, *more)
        except TypeError as wrong:
            if wrong.__traceback__ is None or wrong.__traceback__.tb_next is not None:  # not of this call
                raise
            raise self.error(f"The {self.word} {name!r} cannot be made with its options: {wrong}.") from None

    def options(self, name: str, found: Any, given: Mapping[str, Any] | BaseModel) -> Any:
        """The adapter's `Options`, a pydantic model, or without one a dictionary.

        What is wrong is reported without the values: a secret may be among them.
        """
        if isinstance(given, BaseModel):  # checked already
            return given
        if not hasattr(found, "Options"):
            return dict(given)
        try:
            return found.Options(**given)
        except ValidationError as wrong:
            reasons = explained(wrong, found.Options, given)
            raise self.error(f"The {self.word} {name!r} cannot be opened: {reasons}.") from None

    def _reference(self, name: str) -> str:
        if (reference := self.built_in.get(name)) is not None:
            return reference
        return next((point.value for point in entry_points(group=self.group, name=name)), name)

    def _missing(self, name: str, module: str) -> str:
        if extra := self.extras.get(module.partition(".")[0]):
            return f"The {self.word} {name!r} needs {module}: pip install 'tealagents[{extra}]'"
        return f"The {self.word} {name!r} cannot be imported: there is no module {module!r}."


def import_from(folder: Path) -> None:
    """Lets the modules of a folder be imported. They hide none of the same name elsewhere."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
