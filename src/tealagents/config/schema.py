"""The JSON Schema of the config file, for editors."""

from typing import Any

from pydantic import BaseModel

from tealagents.config.auth import entra_section
from tealagents.config.documentation import meaning
from tealagents.config.models import (
    AgentConfig,
    Component,
    ConfigFile,
    ConsoleSection,
    Metadata,
    Skill,
    Spec,
    ThreadConfig,
)
from tealagents.limits import Limits
from tealagents.mistakes import key_of

_NUMBERS_AND_SWITCHES = ("integer", "number", "boolean")
_CHOICES = {"enum", "const"}
#: a text in which a variable is replaced
_VARIABLE = {"type": "string", "pattern": r"(^|[^$])\$\{[A-Za-z_][A-Za-z0-9_]*\}"}
_EMPTY = {"type": "null"}


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a config file as it is written, before `${NAME}` is expanded."""
    from tealagents.tools.options import GovernanceOverride, MCPServerOptions

    schema = ConfigFile.model_json_schema()
    sections = schema["$defs"]
    auth = entra_section()
    entry = _defined(sections, MCPServerOptions)
    sections["AgentConfig"]["properties"]["mcp_servers"]["items"] = entry
    sections["Spec"]["properties"]["auth"] = {"anyOf": [_defined(sections, auth), {"type": "string"}]}
    sections[auth.__name__]["required"] = []
    _complete(schema, ConfigFile)
    models: list[type[BaseModel]] = [Skill, Metadata, AgentConfig, Component, ThreadConfig, ConsoleSection]
    models += [Spec, Limits, MCPServerOptions, GovernanceOverride, auth]
    for model in models:
        _complete(sections[model.__name__], model)
    schema["$defs"]["Component"]["additionalProperties"] = True
    schema["properties"]["version"] |= {"type": ["string", "number"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _defined(sections: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Adds the options of an adapter to the sections, and refers to them."""
    made = model.model_json_schema()
    sections.update(made.pop("$defs", {}))
    sections[model.__name__] = made
    return {"$ref": f"#/$defs/{model.__name__}"}


def _complete(section: dict[str, Any], model: type[BaseModel]) -> None:
    names = {key_of(name, field): name for name, field in model.model_fields.items()}
    required = section.get("required", ())
    section["properties"] = {
        key: {"description": meaning(model, names[key])} | _as_written(about, optional=key not in required)
        for key, about in section["properties"].items()
    }


def _as_written(key: dict[str, Any], *, optional: bool) -> dict[str, Any]:
    """The key's schema, which also takes variables for numbers, switches and choices, and keys left empty.

    Not so for whole sections: editors would then complain about the section, not about what is wrong in it.
    """
    about = {"default": key["default"]} if "default" in key else {}
    rest = {name: value for name, value in key.items() if name not in ("default", "title")}
    choices = list(rest.pop("anyOf", ())) or [rest]
    if any(choice.get("type") in _NUMBERS_AND_SWITCHES or choice.keys() & _CHOICES for choice in choices):
        choices.append(_VARIABLE)
    for choice in choices:
        if isinstance(values := choice.get("additionalProperties"), dict):
            choice["additionalProperties"] = {"anyOf": [values, _EMPTY]}
    if optional and _EMPTY not in choices and "$ref" not in rest:
        choices.append(_EMPTY)
    return about | (choices[0] if len(choices) == 1 else {"anyOf": choices})
