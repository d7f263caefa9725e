"""Selects how a config is wired by its exact `apiVersion`; only that wiring is imported."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from starlette.types import ASGIApp

from tealagents.config import ServiceConfig
from tealagents.config.problems import KeyPath
from tealagents.domain.ports import ToolSpec


class Wiring(Protocol):
    """What a module that wires offers."""

    def application(self, config: ServiceConfig, **given: Any) -> ASGIApp:
        """The application of a config; what it needs is opened in its lifespan."""
        ...

    def problems_at_start(self, config: ServiceConfig, host: str, workers: int) -> Sequence[str]:
        """Why a config must not be served like this; empty where it may."""
        ...

    def parts(self, config: ServiceConfig) -> Iterable[tuple[KeyPath, Callable[[], object]]]:
        """What is made of a config before it is served, with the key that names it; all but its agents."""
        ...

    def check_tools(self, tools: Sequence[ToolSpec]) -> None:
        """`ToolFailed` where tools cannot be served."""
        ...

    def agents(self, config: ServiceConfig) -> Iterable[tuple[KeyPath, ServiceConfig]]:
        """The config for each of its agents, with the key that names it."""
        ...


#: version → the module that wires it
APPS: Mapping[str, str] = {
    "tealagents/v1alpha1": "tealagents.bootstrap",
    "skagents/v1": "tealagents.skagents",
    "skagents/v2alpha1": "tealagents.skagents",
}


def wiring(config: ServiceConfig) -> Wiring:
    """The wiring of a config; `config.load` has refused unknown versions."""
    return cast(Wiring, import_module(APPS[config.api_version]))


def create_app(config: ServiceConfig) -> ASGIApp:
    """The application for a config."""
    return wiring(config).application(config)
