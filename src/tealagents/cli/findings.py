"""What is wrong with a config before anything is started, with its place. For `check`, `serve`, `doctor`."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pydantic import SecretStr

from tealagents.config import ConfigError, ServiceConfig, load
from tealagents.config.problems import KeyPath, Problem
from tealagents.domain.ports import ToolSpec
from tealagents.registry import import_from


@dataclass
class Findings:
    """What a config says, and what is wrong with it."""

    config: ServiceConfig | None = None
    #: each keeps the service from starting
    wrong: list[str] = field(default_factory=list)
    #: secrets that are not set here, and without which the service does not start
    needed: list[str] = field(default_factory=list)
    tools: list[ToolSpec] = field(default_factory=list)


def find(path: Path | None, env: Mapping[str, str] | None = None) -> Findings:
    """Reads a config and makes each part of the service, without opening any."""
    found = Findings()
    unset: list[Problem] = []
    try:
        config = load(path, env=os.environ if env is None else env, unset=unset)
    except ConfigError as error:
        found.wrong += map(str, error.problems)
        found.needed += map(str, unset)
        return found
    found.needed += map(str, unset)
    import_from(config.source.parent)
    found.config = config
    examine(found, config)
    return found


def examine(found: Findings, config: ServiceConfig) -> None:
    """Makes each part of the service by itself, so that one mistake hides no other."""
    from tealagents.bootstrap import START_ERRORS, model_of, problems_at_start
    from tealagents.tooling import offered

    for key, make in _parts(config):
        try:
            make()
        except START_ERRORS as error:
            found.wrong.append(_placed(config, key, error))
    try:
        _model(config)
    except START_ERRORS as error:
        try:
            model_of(replace(config, api_key=config.api_key or SecretStr("not set here")))
        except START_ERRORS:
            found.wrong.append(_placed(config, ("spec", "agent", "client"), error))
        else:
            found.needed.append(f"TA_API_KEY: {error}")
    try:
        found.tools = asyncio.run(offered(config))
    except START_ERRORS as error:
        found.wrong.append(_placed(config, _key_of_tools(config, str(error)), error))
    if not found.wrong:
        found.wrong += problems_at_start(config, "127.0.0.1", workers=1)


def _placed(config: ServiceConfig, key: KeyPath, error: Exception) -> str:
    """The error with file, line and key, or with the variable that sets it."""
    return str(config.document.problem(key, str(error)))


def _model(config: ServiceConfig) -> None:
    from tealagents.bootstrap import credential_of, model_of

    model_of(config, credential_of(config))


def _parts(config: ServiceConfig) -> Iterator[tuple[KeyPath, Callable[[], object]]]:
    """Each part that a config names, with the key that names it."""
    from tealagents.auth import open_auth
    from tealagents.bootstrap import store_of
    from tealagents.state.records import SystemClock
    from tealagents.threads.components import open_provider, open_reducer

    auth = config.auth
    yield ("spec", "persistence"), partial(store_of, config)
    yield ("spec", "auth", "provider"), partial(open_auth, auth.provider, auth.options, SystemClock())
    for index, reducer in enumerate(config.thread.reducers):
        key = ("spec", "thread", "reducers", index)
        yield key, partial(open_reducer, reducer.name, reducer.options)
    for index, provider in enumerate(config.thread.context_providers):
        key = ("spec", "thread", "context_providers", index)
        yield key, partial(open_provider, provider.name, provider.options)


def _key_of_tools(config: ServiceConfig, error: str) -> KeyPath:
    """The key whose tools an error is about, as far as its words name one."""
    for index, toolset in enumerate(config.agent.toolsets):
        if repr(toolset.name) in error:
            return ("spec", "agent", "toolsets", index)
    return ("spec", "agent", "remote_plugins" if "remote plugin" in error else "plugins")
