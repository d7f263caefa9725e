"""Selects the application by the config's exact `apiVersion`.

Another version is one more entry and one more folder under `api/`; it touches nothing of this one.
"""

from collections.abc import Callable, Mapping

from fastapi import FastAPI

from tealagents import bootstrap
from tealagents.config import ServiceConfig

APPS: Mapping[str, Callable[[ServiceConfig], FastAPI]] = {
    "tealagents/v1alpha1": bootstrap.application,
}


def create_app(config: ServiceConfig) -> FastAPI:
    """The application for a config; `config.load` has refused unknown versions."""
    return APPS[config.api_version](config)
