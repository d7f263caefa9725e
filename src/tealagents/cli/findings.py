"""Finds all mistakes in a config without starting anything, each with file, line and key.

Used by `check`, `serve` and `doctor`.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from tealagents.config import ConfigError, ServiceConfig, load
from tealagents.config.auth import AUTH
from tealagents.config.problems import ConfigProblem, KeyPath
from tealagents.config.settings import variables
from tealagents.domain.ports import ToolSpec
from tealagents.registry import import_from

if TYPE_CHECKING:
    from tealagents.app import Wiring
    from tealagents.llm.credentials import AzureCredential

#: what stands in for settings of the model service that are missing, or that may be wrong
_SOME_KEY = SecretStr("not set here")
_SOME_URL = "https://model.invalid/v1"


@dataclass(frozen=True)
class Need:
    """A setting that is missing in this environment, and that `serve` will need."""

    what: str
    #: the error without it
    problem: str
    #: whether the offline model does without it
    by_model: bool = False


@dataclass
class Findings:
    """A config, and what was found in it."""

    #: None if the file cannot be read
    config: ServiceConfig | None = None
    #: mistakes; each keeps the service from starting
    wrong: list[str] = field(default_factory=list)
    #: what works but was probably not meant
    warnings: Sequence[str] = ()
    needed: list[Need] = field(default_factory=list)
    tools: list[ToolSpec] = field(default_factory=list)


def find(path: Path | None) -> Findings:
    """Reads a config and makes each part of the service, without opening it."""
    found = Findings()
    unset: list[ConfigProblem] = []
    try:
        found.config = load(path, env=os.environ, unset=unset)
    except ConfigError as error:
        found.wrong += map(str, error.problems)
        found.warnings = error.warnings
    found.needed += _needs(map(str, unset))
    if found.config is not None:
        found.warnings = found.config.warnings
        import_from(found.config.source.parent)
        examine(found, found.config)
    return found


def examine(found: Findings, config: ServiceConfig) -> None:
    """Makes each part of the service separately, so that one mistake does not hide another."""
    from tealagents.app import wiring
    from tealagents.parts import START_ERRORS, credential_of

    wired = wiring(config)
    for key, make in wired.parts(config):
        # a provider's options are siblings of its name
        if config.document.is_open(AUTH if key[: len(AUTH)] == AUTH else key):
            continue  # it cannot be checked while its `${NAME}` is not set
        try:
            make()
        except START_ERRORS as error:
            found.wrong.append(_located(config, key, error))
    credential, with_key = None, config
    try:
        credential = credential_of(config)
    except START_ERRORS as error:
        found.wrong.append(str(error))  # it names the variables; that there is no key is not the mistake
        with_key = replace(config, api_key=config.api_key or _SOME_KEY)
    for key, each in wired.agents(with_key):
        _examine_model(found, each, key, credential)
        _examine_tools(found, each, key, wired)
    if not found.wrong:
        found.wrong += wired.problems_at_start(config, "127.0.0.1", workers=1)


def unusable_metrics(config: ServiceConfig, port: int) -> str | None:
    """Why a service on `port` cannot serve its metrics at the configured address; None if it can."""
    telemetry = config.telemetry
    if telemetry.metrics_port is None:
        return None
    if telemetry.metrics_port == port:
        return f"TA_METRICS_PORT: {port} is the port of the service; choose one that users do not reach"
    from tealagents.telemetry.scraping import check_address

    try:
        check_address(telemetry.metrics_host, telemetry.metrics_port)
    except OSError as error:
        return str(error)
    return None


def _examine_model(
    found: Findings, config: ServiceConfig, place: KeyPath, credential: "AzureCredential | None"
) -> None:
    """Makes the model client of the config's agent, whose key in the file is `place`."""
    from tealagents.parts import START_ERRORS, model_of

    def error_of(config: ServiceConfig) -> Exception | None:
        try:
            model_of(config, credential)
        except START_ERRORS as error:
            return error
        return None

    if config.document.is_open((*place, "client")) or (error := error_of(config)) is None:
        return
    lacks_key = config.api_key is None and credential is None
    with_key = replace(config, api_key=_SOME_KEY) if lacks_key else config
    if lacks_key and error_of(with_key) is None:
        found.needed.append(Need(_key_of(config), f"TA_API_KEY: {error}", by_model=True))
    elif config.base_url and error_of(replace(with_key, base_url=_SOME_URL)) is None:
        found.wrong.append(str(ConfigProblem(None, None, "TA_BASE_URL", str(error))))
    else:
        found.wrong.append(_located(config, (*place, "client"), error))


def _examine_tools(found: Findings, config: ServiceConfig, place: KeyPath, wired: "Wiring") -> None:
    """Makes the tools of the config's agent, whose key in the file is `place`."""
    from tealagents.parts import START_ERRORS
    from tealagents.tooling import offered

    unset: list[str] = []
    try:
        with _interrupted_by_ctrl_c():
            tools = asyncio.run(offered(_with_resolved_tools(config, place), unset))
        wired.check_tools(tools)
        found.tools += tools
    except START_ERRORS as error:
        found.wrong.append(placed_tools(config, place, error))
    # several agents may need the same variables
    found.needed += (each for each in _needs(dict.fromkeys(unset)) if each not in found.needed)


def _needs(problems: Iterable[str]) -> list[Need]:
    return [Need(each, each) for each in problems]


def _key_of(config: ServiceConfig) -> str:
    """The variables, of which the model client needs one."""
    if config.base_url or config.azure_api_version or ":" in (config.agent.client or ""):
        return "TA_API_KEY, or TA_AZURE_CREDENTIAL for an identity of Azure"
    return "TA_API_KEY, or TA_BASE_URL for a service without a key"


@contextmanager
def _interrupted_by_ctrl_c() -> Iterator[None]:
    """Within, the first Ctrl-C raises KeyboardInterrupt at once, even while a plugin is imported.

    asyncio's own handler only cancels a task, which the import would not notice.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *given: signal.default_int_handler(*given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _located(config: ServiceConfig, key: KeyPath, error: Exception) -> str:
    """The error with its file, line and key, or with the variable that sets that key."""
    return str(config.document.problem(key, str(error)))


def placed_tools(config: ServiceConfig, place: KeyPath, error: Exception) -> str:
    """The error with the key that it is about, of the agent at `place`."""
    from tealagents.tools import ToolsetError

    key = error.key if isinstance(error, ToolsetError) else ()
    if key and key[0] in variables():
        return str(ConfigProblem(None, None, str(key[0]), str(error)))
    match key:
        case (str(tools), int(index)):
            key = (tools, _resolved_entries(config, place, tools)[index])
    return _located(config, (*place, *key), error)


def _with_resolved_tools(config: ServiceConfig, place: KeyPath) -> ServiceConfig:
    """The config without the tools of its agent that contain a `${NAME}` that is not set."""
    resolved = {
        key: tuple(getattr(config.agent, key)[index] for index in _resolved_entries(config, place, key))
        for key in ("plugins", "remote_plugins", "toolsets")
    }
    return replace(config, agent=config.agent.model_copy(update=resolved))


def _resolved_entries(config: ServiceConfig, place: KeyPath, key: str) -> list[int]:
    """The indexes of the entries in a list of tools that contain no such `${NAME}`."""
    entries = range(len(getattr(config.agent, key)))
    return [index for index in entries if not config.document.is_open((*place, key, index))]
