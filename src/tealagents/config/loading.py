"""A config while it is read: the file with the variables over it, and every mistake with its place."""

import os
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tealagents.config.auth import AUTH
from tealagents.config.credentials import credentials
from tealagents.config.environment import Environment, Unset, expand, expand_all
from tealagents.config.file import Document
from tealagents.config.models import AgentConfig, ConfigFile
from tealagents.config.problems import ConfigError, ConfigProblem, KeyPath, Mistake
from tealagents.config.settings import Settings, overrides
from tealagents.config.urls import absolute_store
from tealagents.mistakes import did_you_mean, explain, key_of, key_text, keys_of, model_at
from tealagents.options import FromEnvironment

_Structure = TypeVar("_Structure", bound=BaseModel)
_Judged = TypeVar("_Judged")
#: what stands in for a `${NAME}` that is not set, where that text itself does not fit: the first that fits
_STAND_INS = ("unset", "https://unset.invalid", "00000000-0000-0000-0000-000000000000")
#: where there must be something, and no text fits
_STAND_IN_NUMBER = FromEnvironment("1")
_CERTIFICATE: KeyPath = (*AUTH, "certificate")
PROVIDER: KeyPath = (*AUTH, "provider")
PERSISTENCE: KeyPath = ("spec", "persistence")
_NO_REMOTE_PLUGINS = "needs the file that describes them; set TA_REMOTE_PLUGIN_PATH"


@dataclass
class Loading:
    """A config while it is read: what there is to read, and what was found wrong so far."""

    document: Document
    settings: Settings
    environment: Environment
    problems: list[ConfigProblem]
    warnings: list[str]

    def expand_version(self) -> None:
        """Replaces each `${NAME}` in the file's version, which says how the file is read.

        Raises ConfigError where that is wrong, also if the variable is merely not set.
        """
        version = self.document.data.get("apiVersion")
        if isinstance(version, str):
            try:
                self.document.data["apiVersion"] = expand(version, self.environment)
            except ValueError as error:
                self.problems.append(self.document.problem(("apiVersion",), str(error)))
                raise self.error() from None

    def apply_environment(self, unset: list[ConfigProblem] | None) -> None:
        """Puts what the environment says over the file, and makes the paths of both absolute."""
        document, environment, problems = self.document, self.environment, self.problems
        problems += credentials(document)
        if isinstance(provider := document.get(AUTH), str):  # so that variables can say more of it
            document.put(AUTH, {"provider": provider})
        wins = overrides(environment)
        named, chosen = document.get(PROVIDER), environment.get("TA_AUTH")
        with suppress(ValueError):  # which provider the file names is not known
            if chosen and named is not None and expand(str(named), environment) != chosen:
                document.remove((*AUTH, "options"))  # they are those of the provider that the file names
        for key in wins.values():
            document.remove(key)
        for path, error in expand_all(document.data, environment):
            if isinstance(error, Unset) and unset is not None:
                unset.append(document.problem(path, str(error)))
                document.unset.add(path)
            else:
                problems.append(document.problem(path, str(error)))
        _resolve_paths(document, document.directory, problems)
        for name, key in wins.items():
            document.put(key, environment.get(name))
            document.overridden[key] = environment.problem(name, "")
        _resolve_paths(document, Path.cwd(), problems, only=document.overridden)

    def validated(self, structure: type[_Structure]) -> _Structure | None:
        """The file by its structure; None where it is wrong."""

        def judge(mistakes: list[Mistake]) -> _Structure | None:
            try:
                return structure.model_validate(self.document.data)
            except ValidationError as error:
                own = (each for each in error.errors() if not _is_short_of_valid_items(each))
                mistakes += (_mistake(self.document, each, structure) for each in own)
                return None

        return self.judged(judge)

    def judged(self, judge: Callable[[list[Mistake]], _Judged | None]) -> _Judged | None:
        """What `judge` makes of the document; None where it lists mistakes instead, which become problems.

        A `${NAME}` that may stay unset is no mistake: something that fits takes its place, or nothing does.
        """
        for stand_in in (*_STAND_INS, None, _STAND_IN_NUMBER, None):
            mistakes: list[Mistake] = []
            if (made := judge(mistakes)) is not None:
                return made
            found = [each for each in mistakes if self.document.unset_around(each[0]) is None]
            if found:
                break
            for path, _ in mistakes:
                self.document.replace(self.document.unset_around(path) or path, stand_in)
        self.problems += (self.document.problem(*each) for each in found or mistakes)
        return None

    def check_remote_plugins(self, agent: AgentConfig, place: KeyPath) -> None:
        """Adds a problem where the agent that stands at `place` names some, and nothing describes them."""
        # a variable that names no file is a problem already
        if agent.remote_plugins and self.environment.get("TA_REMOTE_PLUGIN_PATH") is None:
            self.problems.append(self.document.problem((*place, "remote_plugins"), _NO_REMOTE_PLUGINS))

    def check_names(self, file: ConfigFile) -> None:
        """Adds a problem where a protocol is listed again, or a skill has the id of an earlier one."""
        protocols = ((("spec", "protocols", n), name) for n, name in enumerate(file.spec.protocols))
        self._check_unique(protocols, "is listed twice")
        skills = (
            (("metadata", "skills", n, "name" if each.id is None else "id"), each.id or each.name)
            for n, each in enumerate(file.metadata.skills)
        )
        self._check_unique(skills, "another skill has this id; by default, it is the skill's name")

    def _check_unique(self, names: Iterable[tuple[KeyPath, str | None]], message: str) -> None:
        known = set[str]()
        for place, name in names:
            if name is None or self.document.unset_around(place) is not None:
                continue
            if name in known:
                self.problems.append(self.document.problem(place, message))
            known.add(name)

    def error(self) -> ConfigError:
        """Everything that is wrong."""
        return ConfigError(_ordered(self.problems))


def _is_short_of_valid_items(error: ErrorDetails) -> bool:
    """Whether a list is called too short only because what is in it is wrong, which is reported by itself."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def _resolve_paths(
    document: Document, base: Path, problems: list[ConfigProblem], only: Container[KeyPath] | None = None
) -> None:
    """Makes paths independent of the working directory: all, or those of some keys only."""
    url, certificate = document.get(PERSISTENCE), document.get(_CERTIFICATE)
    if isinstance(url, str) and (only is None or PERSISTENCE in only):
        try:
            document.put(PERSISTENCE, absolute_store(url, base))
        except ValueError as error:
            if PERSISTENCE not in document.unset:
                problems.append(document.problem(PERSISTENCE, str(error)))
    if isinstance(certificate, str) and (only is None or _CERTIFICATE in only):
        path = os.path.normpath(base / certificate)
        document.put(_CERTIFICATE, path)
        if not os.path.isfile(path) and _CERTIFICATE not in document.unset:
            problems.append(document.problem(_CERTIFICATE, f"there is no such file: {path}"))


def _mistake(document: Document, error: ErrorDetails, structure: type[BaseModel]) -> Mistake:
    path = (*error["loc"], *error.get("ctx", {}).get("path", ()))
    around = document.get(path[:-1])
    return path, explain(error, structure, around if isinstance(around, dict) else {})


def _ordered(problems: list[ConfigProblem]) -> list[ConfigProblem]:
    """In the order of the files, one for each key: the first, of which the others are consequences."""
    first: dict[tuple[str | None, str], ConfigProblem] = {}
    for problem in problems:
        first.setdefault((problem.file, problem.key or str(problem)), problem)
    return sorted(first.values(), key=lambda each: (each.file is None, each.file or "", each.line or 0))


def unknown_keys(file: BaseModel, document: Document) -> Iterator[str]:
    """At most one warning, which lists all of them."""
    listed = []
    for path in _extras(file, ()):
        section = model_at(type(file), path[:-1])
        hint = did_you_mean(str(path[-1]), keys_of(section) if section else ())
        listed.append(f"{key_text(path)} (line {document.line(path)}{hint})")
    if listed:
        yield f"{document.name}: unknown keys are ignored: {', '.join(listed)}"


def _extras(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _extras(item, (*path, index))
    elif isinstance(value, BaseModel):
        yield from ((*path, key) for key in value.model_extra or ())
        for name, each in type(value).model_fields.items():
            yield from _extras(getattr(value, name), (*path, key_of(name, each)))
