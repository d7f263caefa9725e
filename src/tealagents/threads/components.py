"""Reducers and context providers by their names: built in, from an entry point, or `module:Class`."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from msgspec import Struct
from pydantic import ValidationError

from tealagents.domain.models import Json

#: a name and its options, as the config gives them
Component = tuple[str, Json]


class ThreadConfigError(ValueError):
    """What a config says of threads that cannot be done. The text says what to do instead."""


class Kind(Struct, frozen=True):
    """One kind of component."""

    #: what it is called in an error
    word: str
    #: name → `module:Class`
    built_in: Mapping[str, str]
    #: the group of third parties' entry points
    group: str

    def known(self) -> list[str]:
        return sorted({*self.built_in, *(point.name for point in entry_points(group=self.group))})

    def find(self, name: str) -> Any:
        """What a name stands for; `ThreadConfigError` where it is unknown or cannot be imported."""
        reference = self.built_in.get(name) or next(
            (point.value for point in entry_points(group=self.group, name=name)), name
        )
        module, colon, attribute = reference.partition(":")
        if not colon:
            known = ", ".join(self.known())
            raise ThreadConfigError(
                f"Unknown {self.word} {name!r}. Known: {known}; or name a class as module:Class."
            )
        try:
            return getattr(import_module(module), attribute)
        except ModuleNotFoundError as missing:
            raise ThreadConfigError(
                f"The {self.word} {name!r} cannot be imported: there is no module {missing.name!r}."
            ) from missing
        except AttributeError:
            raise ThreadConfigError(
                f"The {self.word} {name!r} does not exist: {module} has no {attribute!r}."
            ) from None

    def options(self, name: str, found: Any, given: Json) -> Any:
        """The component's `Options`; what is wrong is told without the values, which may be secret."""
        try:
            return found.Options(**given)
        except ValidationError as wrong:
            raise ThreadConfigError(
                f"The {self.word} {name!r} cannot be opened: {'; '.join(_problems(wrong))}."
            ) from None


def _problems(wrong: ValidationError) -> Sequence[str]:
    return [
        ": ".join(filter(None, (".".join(map(str, error["loc"])), error["msg"]))) for error in wrong.errors()
    ]
