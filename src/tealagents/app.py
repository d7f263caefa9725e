"""Selects the application by the config's exact `apiVersion`: one entry for each way of wiring."""

from collections.abc import Callable, Mapping

from starlette.types import ASGIApp

from tealagents import bootstrap
from tealagents.config import ServiceConfig

APPS: Mapping[str, Callable[[ServiceConfig], ASGIApp]] = {
    "tealagents/v1alpha1": bootstrap.application,
}


def create_app(config: ServiceConfig) -> ASGIApp:
    """The application for a config; `config.load` has refused unknown versions."""
    return APPS[config.api_version](config)
