"""The config of a service: one YAML file, and the variables `TA_…` over it.

`load` gives a `ServiceConfig`, or raises a `ConfigError` with everything that is wrong in file and variables.

===============  ==========================================================================================
`reading`        `load`: which file is read, and of which version it is
`file`           YAML, with the line of each key
`environment`    variables, `.env`, and each `${NAME}` of the file
`settings`       what each variable means; `models` and `auth`: what each key of the file means
`loading`        puts the variables over the file, and finds the mistakes in both
`problems`       a mistake with its place; its words come from `tealagents.mistakes`
`credentials`    none may be in the file
`urls`           of stores
`service`        the result, a `ServiceConfig`; `summary`: what would be served
`schema`         describes the file for editors; `documentation`: the texts below its keys
`skagents`       the files of the earlier platform; `earlier`: its variables
===============  ==========================================================================================

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
