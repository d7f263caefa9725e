"""Variables of the earlier platform: those that are understood, and what takes the place of the others."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from tealagents.config.environment import Environment
from tealagents.config.problems import ConfigProblem
from tealagents.config.urls import masked

_STATE = "TA_STATE_MANAGEMENT"
_REDIS = "TA_REDIS_"
_PERSISTENCE = "TA_PERSISTENCE"
_TTL = "TA_REDIS_TTL"

#: the beginning of a variable's name → what to say where one is set
_INSTEAD = {
    "TA_A2A_": "has no effect: it does not serve this agent over A2A; serve it as tealagents/v1alpha1 with "
    "spec.protocols: [a2a]",
    "TA_AGENT_BASE_URL": "has no effect; set TA_PUBLIC_URL",
    "TA_CUSTOM_CHAT_COMPLETION_FACTORY_": "has no effect: the model is called at TA_BASE_URL with "
    "TA_API_KEY, or by the class that spec.agent.client names",
    "TA_ENV_STORE": "has no effect; set each of its variables in the environment or in .env",
    "TA_STRUCTURED_OUTPUT_TRANSFORMER_MODEL": "has no effect: the agent's own model is asked for the type",
}


def is_earlier(name: str) -> bool:
    """Whether a variable is one of theirs and none of ours."""
    return name == _STATE or name.startswith((_REDIS, *_INSTEAD))


def remarks(environment: Environment) -> Iterator[str]:
    """What each of their variables, other than those of the state, should be replaced by."""
    for name in sorted(environment.variables):
        if message := next((text for begins, text in _INSTEAD.items() if name.startswith(begins)), None):
            yield str(environment.problem(name, message))


def without_state(environment: Environment) -> Iterator[str]:
    """Those of the state, where none is kept."""
    for name in sorted(environment.variables):
        if name == _STATE or name.startswith(_REDIS):
            yield str(environment.problem(name, "has no effect: this version keeps no state"))


def translated(
    environment: Environment, persistence: Any, warnings: list[str], problems: list[ConfigProblem]
) -> Environment:
    """The environment with their choice of a store as ours, unless a store was chosen our way.

    `persistence` is the config file's.
    """
    kind = environment.get(_STATE)
    if kind is None:
        return environment
    if environment.get(_PERSISTENCE) is not None or persistence is not None:
        warnings.append(
            str(environment.problem(_STATE, f"has no effect beside spec.persistence or {_PERSISTENCE}"))
        )
        return environment
    if kind not in ("redis", "in-memory"):
        message = f"has no effect: known values are redis and in-memory; set {_PERSISTENCE}"
        warnings.append(str(environment.problem(_STATE, message)))
        return environment
    url = _redis(environment, problems) if kind == "redis" else "memory://"
    replaced = f"is understood; the line that replaces it: {_PERSISTENCE}={masked(url)}"
    warnings.append(str(environment.problem(_STATE, replaced)))
    if environment.get(_TTL) is not None:
        message = "has no effect: tasks are kept; give them an expires_at and run `tealagents state prune`"
        warnings.append(str(environment.problem(_TTL, message)))
    places = environment.places
    if _STATE in places:
        places = {**places, _PERSISTENCE: places[_STATE]}
    return replace(environment, variables={**environment.variables, _PERSISTENCE: url}, places=places)


def _redis(environment: Environment, problems: list[ConfigProblem]) -> str:
    def get(name: str, default: str = "") -> str:
        return environment.get(_REDIS + name) or default

    def number(name: str, default: int, least: int, most: int) -> int:
        said = get(name, str(default))
        if re.fullmatch(r"[0-9]{1,10}", said) and least <= int(said) <= most:
            return int(said)
        message = f"must be a whole number, {least} to {most}"
        problems.append(environment.problem(_REDIS + name, message))
        return default

    # as there, TLS is used unless it is turned off
    scheme = "redis" if get("SSL").strip().lower() in ("0", "false", "no", "off") else "rediss"
    password = f":{quote(get('PWD'), safe='')}@" if get("PWD") else ""
    host = get("HOST", "localhost")
    if host.count(":") > 1 and not host.startswith("["):  # an IPv6 address
        host = f"[{host}]"
    return f"{scheme}://{password}{host}:{number('PORT', 6379, 1, 65535)}/{number('DB', 0, 0, 2**31 - 1)}"
