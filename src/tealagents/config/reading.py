"""Reads the config file that is named, and the variables over it, as a config of its version."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tealagents.config.auth import auth_of
from tealagents.config.earlier import translated
from tealagents.config.environment import read_environment
from tealagents.config.file import Document, read_document
from tealagents.config.loading import PERSISTENCE, PROVIDER, Loading, unknown_keys
from tealagents.config.models import API_VERSIONS, ConfigFile
from tealagents.config.problems import ConfigError, ConfigProblem
from tealagents.config.service import EARLIER, GATEWAY, ServiceConfig, combined
from tealagents.config.settings import read_settings
from tealagents.mistakes import did_you_mean, file_reason

#: characters of a value that an error repeats
_MOST_REPEATED = 60
_NO_GATEWAY = "gateway is for skagents files only: tasks have owners, who are identified by their tokens"


def load(
    path: Path | None = None,
    *,
    env: Mapping[str, str] | None = None,
    dotenv: Path | None = Path(".env"),
    unset: list[ConfigProblem] | None = None,
    upgrading: bool = False,
) -> ServiceConfig:
    """Reads the config file at `path`, by default the one that TA_SERVICE_CONFIG names.

    Variables come from `env`, by default the process's environment, and below it from the file `dotenv`.
    Raises ConfigError with everything that is wrong, in the file and in the environment. A `${NAME}` of the
    file that is not set is wrong, too, unless `unset` is given, a list that takes such problems. What a file
    of the earlier platform may say only once it has been upgraded is not wrong where it is `upgrading`.
    """
    warnings: list[str] = []
    try:
        loading = _read(path, os.environ if env is None else env, dotenv, warnings)
        return _config_of(loading, unset, upgrading=upgrading)
    except ConfigError as error:
        for warning in warnings:
            error.add_note(warning)
        raise


def _config_of(loading: Loading, unset: list[ConfigProblem] | None, *, upgrading: bool) -> ServiceConfig:
    """What was read, checked and put together."""
    document, problems, warnings = loading.document, loading.problems, loading.warnings
    if str(document.data.get("apiVersion")).startswith(EARLIER):
        from tealagents.config import skagents

        return skagents.load(loading, unset, upgrading=upgrading)
    loading.environment = translated(loading.environment, document.get(PERSISTENCE), warnings, problems)
    loading.apply_environment(unset)
    if not _is_of_this_version(document, problems):
        raise loading.error()
    file, auth = loading.validated(ConfigFile), loading.judged(partial(auth_of, document))
    if file is None or auth is None:
        raise loading.error()
    if auth.provider == GATEWAY:
        problems.append(document.problem(PROVIDER, _NO_GATEWAY))
    for name in ("types_module", "gateway_secret"):
        if getattr(loading.settings, name) is not None:
            warnings.append(f"TA_{name.upper()}: has no effect: it is for skagents files only")
    warnings += unknown_keys(file, document)
    loading.check_remote_plugins(file.spec.agent, ("spec", "agent"))
    loading.check_names(file)
    config = combined(file, auth, loading)
    if problems:
        raise loading.error()
    return config


def _read(path: Path | None, env: Mapping[str, str], dotenv: Path | None, warnings: list[str]) -> Loading:
    """The environment, and the file that it or `path` names."""
    problems: list[ConfigProblem] = []
    try:
        os.getcwd()
    except OSError as error:  # it has been deleted; relative paths and `.env` are looked for there
        message = f"the working directory cannot be used: {file_reason(error)}; start in another one"
        raise ConfigError([ConfigProblem(None, None, "", message)]) from None
    environment = read_environment(env, dotenv, problems)
    settings = read_settings(environment, problems, warnings)
    path = path or settings.service_config
    if path is None:
        message = "is not set, and no config file was named; `tealagents new NAME` creates one"
        raise ConfigError([*problems, ConfigProblem(None, None, "TA_SERVICE_CONFIG", message)])
    try:
        document = read_document(path, problems)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    loading = Loading(document, settings, environment, problems, warnings)
    loading.expand_version()
    return loading


def _is_of_this_version(document: Document, problems: list[ConfigProblem]) -> bool:
    """Whether the file can be judged by this structure; if its version is another, that is a problem."""
    version = document.data.get("apiVersion")
    if version is None or version in API_VERSIONS:
        return True
    known = ", ".join((*API_VERSIONS, f"{EARLIER}v1", f"{EARLIER}v2alpha1"))
    message = f"{_short(version)} is not known; known: {known}{did_you_mean(str(version), API_VERSIONS)}"
    problems.append(document.problem(("apiVersion",), message))
    return False


def _short(value: Any) -> str:
    text = str(value)
    return repr(text if len(text) <= _MOST_REPEATED else f"{text[:_MOST_REPEATED]}…")
