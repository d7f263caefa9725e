"""The config of a service: one YAML file, and the variables `TA_…` over it.

- `load` reads both and gives a `ServiceConfig`, or raises a `ConfigError` with everything that is wrong
- `summary` says what would be served; `json_schema` (in `schema`) describes the file for editors
- within: `file` (YAML with line numbers), `environment` (variables, `.env`, `${NAME}`), `credentials` (none
  may be in the file), `models` and `auth` (the file's keys), `settings` (the variables), `urls` (of
  stores), `problems` (errors with their places; their words come from `tealagents.mistakes`),
  `documentation` (what each key means), `service` (file and environment put together),
  `reading` (which file, and of which version), `skagents` and `earlier` (files and variables of the earlier
  platform)

Read by what puts a service or the library's agent together, by `telemetry`, and by the command line; neither
a layer nor an adapter imports it. Imports what says which values may be set (`options`, `limits`, the options
of adapters, `domain.models`), `mistakes`, and `outbound.addresses`.
"""

from tealagents.config.models import (
    API_VERSIONS,
    AgentConfig,
    ConfigFile,
    ConsoleSection,
    ThreadConfig,
)
from tealagents.config.problems import ConfigError, ConfigProblem
from tealagents.config.reading import load
from tealagents.config.schema import json_schema
from tealagents.config.service import ServiceConfig, TelemetryOptions
from tealagents.config.summary import summary
from tealagents.config.urls import masked

__all__ = [
    "API_VERSIONS",
    "AgentConfig",
    "ConfigError",
    "ConfigFile",
    "ConfigProblem",
    "ConsoleSection",
    "ServiceConfig",
    "TelemetryOptions",
    "ThreadConfig",
    "json_schema",
    "load",
    "masked",
    "summary",
]
