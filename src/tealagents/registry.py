"""Names to adapters: what comes with the project, entry points of others, and `module:Class`.

An adapter is imported when it is asked for, so that none needs what the others need. Used by every package
of adapters and by `tealagents.threads`; imports nothing of them.
"""

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

from msgspec import Struct
from pydantic import BaseModel, ValidationError

from tealagents.mistakes import explained, sentence

__all__ = ["Registry", "import_from", "place_of", "raised"]

#: those of `import_from`, resolved
_folders: set[Path] = set()


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
    #: what a class must have
    methods: tuple[str, ...] = ()
    #: what its objects must have besides
    attributes: tuple[str, ...] = ()

    def known(self) -> list[str]:
        return sorted({*self.built_in, *(point.name for point in entry_points(group=self.group))})

    def find(self, name: str, folder: Path | None = None) -> Any:
        """What a name stands for. `folder` is that of the config file which names it: a module beside that
        file is meant, and not another one of its name."""
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
        except KeyboardInterrupt:
            raise
        except BaseException as wrong:
            reason = raised(wrong, module)
            raise self.error(f"The {self.word} {name!r} cannot be imported: {reason}") from wrong
        if folder is not None and (other := _hidden_by(folder, name)):
            raise self.error(
                f"The {self.word} {name!r} cannot be imported from {folder}: Python has the module {module} "
                f"from {other}. A program has one module of each name: rename this one."
            )
        try:
            return getattr(imported, attribute)
        except AttributeError:
            raise self.error(
                f"The {self.word} {name!r} does not exist: {module} has no {attribute!r}."
            ) from None

    def make(self, name: str, found: Any, given: Mapping[str, Any] | BaseModel, *more: Any) -> Any:
        """The adapter, an object of the class that was found, which is called with its options."""
        if not isinstance(found, type):
            raise self.error(f"The {self.word} {name!r} is not a class.")
        lacking = [each for each in self.methods if not callable(getattr(found, each, None))]
        if hasattr(found, "__getattr__"):  # its objects may have all others
            lacking = [each for each in lacking if each.startswith("__")]
        if lacking:
            raise self.error(f"The {self.word} {name!r} has no {', '.join(lacking)}.")
        with self.making(name, found):
            made = found(self.options(name, found, given), *more)
            if lacking := [each for each in self.attributes if not hasattr(made, each)]:
                raise self.error(f"The {self.word} {name!r} has no {', '.join(lacking)}.")
            return made

    @contextmanager
    def making(self, name: str, found: Any) -> Iterator[None]:
        """What the code of a class raises is an error with file and line: it may be the user's own."""
        try:
            yield
        except (self.error, KeyboardInterrupt):
            raise
        except BaseException as wrong:
            reason = raised(wrong, found.__module__)
            raise self.error(f"The {self.word} {name!r} cannot be made with its options: {reason}") from wrong

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
            raise self.error(sentence(f"The {self.word} {name!r} cannot be opened: {reasons}")) from None

    def _reference(self, name: str) -> str:
        if (reference := self.built_in.get(name)) is not None:
            return reference
        return next((point.value for point in entry_points(group=self.group, name=name)), name)

    def _missing(self, name: str, module: str) -> str:
        if extra := self.extras.get(module.partition(".")[0]):
            return f"The {self.word} {name!r} needs {module}: pip install 'tealagents[{extra}]'"
        return f"The {self.word} {name!r} cannot be imported: there is no module {module!r}."


def place_of(error: BaseException, file: str) -> str:
    """A file's name, and the last of its lines that led to an error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines.append(error.lineno)
    return f"{Path(file).name}, line {lines[-1]}" if lines else Path(file).name


def raised(error: BaseException, module: str) -> str:
    """What was raised, and where in the module."""
    place = ""
    parents = list(accumulate(module.split("."), "{}.{}".format))
    module = next((each for each in parents if each not in sys.modules), module)  # the one that raised
    with suppress(Exception):  # a module without a file
        if (spec := find_spec(module)) is not None and spec.has_location:
            place = place_of(error, spec.origin or "") + ": "
    if isinstance(error, ValidationError):  # its text quotes values, of which one may be secret
        said = "; ".join(each["msg"] for each in error.errors(include_url=False, include_input=False))
    else:
        said = str(error)
    return sentence(f"{place}{type(error).__name__}{said and ': '}{said}")


def _hidden_by(folder: Path, name: str) -> str | None:
    """The file of another config's folder that Python has imported in place of the folder's, for a name
    `module:Class`; None if there is none. What is installed may be a copy of the folder's, on purpose."""
    module = name.partition(":")[0].partition(".")[0]
    file = getattr(sys.modules.get(module), "__file__", None)
    own = [place.resolve() for place in _places(folder, module) if place.is_file()]
    if file is None or not own or (found := Path(file).resolve()) in own:
        return None
    others = (place.resolve() for other in _folders for place in _places(other, module))
    return file if found in others else None


def _places(folder: Path, module: str) -> tuple[Path, Path]:
    return folder / f"{module}.py", folder / module / "__init__.py"


def import_from(folder: Path) -> None:
    """Lets the modules of a folder be imported. They hide none of the same name elsewhere: `Registry.find`
    reports those that another such folder hides."""
    _folders.add(folder.resolve())
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
