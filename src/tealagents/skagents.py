"""Wires the earlier platform's files (`skagents/v1`, `skagents/v2alpha1`): agents without state.

What `bootstrap` does for our own files. Settings of the API that both have are made there.
"""

import dataclasses
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from copy import deepcopy
from functools import partial
from types import ModuleType
from typing import Any

from pydantic import BaseModel, RootModel
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from tealagents import telemetry
from tealagents.api.bearer import Bearer
from tealagents.api.skagents.app import ServedConfig, StatelessApp
from tealagents.api.skagents.identity import Gateway
from tealagents.api.skagents.templates import Instructions, TemplateRefused
from tealagents.api.skagents.turns import Plan, TaskStep, Turns
from tealagents.auth import AuthConfigError, open_auth
from tealagents.bootstrap import identity_problems, observing, settings_of
from tealagents.config.problems import KeyPath
from tealagents.config.service import GATEWAY
from tealagents.config.skagents import EarlierConfig, EarlierTask
from tealagents.domain.clock import SystemClock
from tealagents.domain.models import Json, ResponseFormat
from tealagents.domain.ports import Clock, ToolSpec
from tealagents.engine.observer import Observer
from tealagents.limits import Limits
from tealagents.llm import ModelConfigError
from tealagents.llm.encoding import valid_name
from tealagents.mistakes import did_you_mean
from tealagents.opening import Held
from tealagents.parts import agent_of, credential_of, model_of, observer_of
from tealagents.registry import import_from
from tealagents.serving import drained_by_signals
from tealagents.tooling import Tooling
from tealagents.tools.code import imported, make_importable
from tealagents.tools.errors import ToolsetError
from tealagents.tools.input_types import INPUTS

log = logging.getLogger(__name__)


def application(config: EarlierConfig, *, clock: Clock | None = None) -> StatelessApp:
    """The application of one config. What it needs is opened when it starts."""
    import_from(config.source.parent)
    _export(config)
    return _Wiring(config, clock or SystemClock()).app()


def problems_at_start(config: EarlierConfig, host: str, workers: int) -> Sequence[str]:
    """Why a config must not be served like this; any number of workers may, they share nothing."""
    return identity_problems(config, host)


def parts(config: EarlierConfig) -> Iterator[tuple[KeyPath, Callable[[], object]]]:
    """What is made of a config before it is served, with the key that names it; all but its agents."""
    _export(config)
    auth = config.auth
    if auth.provider != GATEWAY:
        yield ("spec", "auth", "provider"), partial(open_auth, auth.provider, auth.options, SystemClock())
    yield from _types(config)
    for task in config.tasks:
        yield ("spec", "tasks", task.place, "instructions"), partial(instructions_of, task)


def _export(config: EarlierConfig) -> None:
    """Puts the variables of `.env` into the process's environment: as there, plugins and types find them.
    Those of the service are not for them: some are secret."""
    for name, value in config.from_dotenv.items():
        if not name.startswith("TA_"):
            os.environ.setdefault(name, value)


def _types(config: EarlierConfig) -> Iterator[tuple[KeyPath, Callable[[], object]]]:
    """Each type under the key that names it; under the first alone, what is wrong with the file of both."""
    try:
        module = _module_of(config)
    except ToolsetError as error:
        yield ("input_type",), partial(_refuse, error)
        return
    yield ("input_type",), partial(_input_of, config, module)
    yield ("output_type",), partial(_output_of, config, module)
    yield ("spec", "tasks"), partial(_look_for_unknown_names, config, module)


def _refuse(error: ToolsetError) -> None:
    raise error


def agents(config: EarlierConfig) -> Iterator[tuple[KeyPath, EarlierConfig]]:
    """The config for each of its agents, with the key that names it."""
    for index, agent in enumerate(config.agents):
        key: KeyPath = ("spec", "agents", index) if config.tasks else ("spec", "agent")
        yield key, dataclasses.replace(config, agent=agent, public_url=None)


def check_tools(tools: Sequence[ToolSpec]) -> None:
    """`ToolsetError` for tools that wait for someone: nothing waits for a decision here."""
    _refuse_tools(
        [tool.name for tool in tools if tool.governance.requires_hitl],
        "need an approval, which skagents files cannot wait for: exempt them in the catalogue",
    )
    _refuse_tools(
        [tool.name for tool in tools if tool.auth is not None],
        "need the user's own authorization (auth), which skagents files cannot wait for: give the service "
        "credentials of its own (headers) and remove auth from the catalogue, or auth_server from their "
        "mcp_servers entry",
    )


def _refuse_tools(names: Sequence[str], why: str) -> None:
    if names:
        raise ToolsetError(
            f"The tools {', '.join(names)} {why}, or migrate the agent with `tealagents upgrade`."
        )


# --- types and templates -------------------------------------------------------------------------


def _module_of(config: EarlierConfig) -> ModuleType | None:
    if config.types_module is None:
        return None
    module = imported(config.types_module, config.modules)
    make_importable(module)  # as there: plugins import it
    return module


def _input_of(config: EarlierConfig, module: ModuleType | None) -> type[BaseModel]:
    """What the agent is sent: a class of the config's file of types, else a standard one."""
    given = _named(config.input_type, config, module)
    if _schema_of(given, "input_type").get("type", "object") != "object":
        raise ToolsetError(f"the input_type {given.__name__} is no object, which the body of each call is")
    if not config.tasks and not _may_have(given, "chat_history"):
        raise ToolsetError(
            f"the input_type {given.__name__} has no chat_history, which is all that a Chat answers"
        )
    return given


def _may_have(kind: type[BaseModel], name: str) -> bool:
    """Whether values of a type can have something by a name."""
    written = kind.__pydantic_decorators__.model_serializers  # by code of its own
    if issubclass(kind, RootModel) or kind.model_config.get("extra") == "allow" or written:
        return True
    return name in kind.model_fields or name in kind.model_computed_fields


def _output_of(config: EarlierConfig, module: ModuleType | None) -> type[BaseModel] | None:
    """What it answers with; None: text."""
    if not config.output_type:
        return None
    wanted = _named(config.output_type, config, module)
    format_of(wanted)
    return wanted


def _named(name: str, config: EarlierConfig, module: ModuleType | None) -> type[BaseModel]:
    found = getattr(module, name, None) or INPUTS.get(name)
    if isinstance(found, type) and issubclass(found, BaseModel):
        return found
    where = config.types_module or "custom_types.py beside the config file, or what TA_TYPES_MODULE names"
    raise ToolsetError(
        f"there is no type {name}: {where} has no pydantic model of this name, and the standard "
        f"types are {', '.join(INPUTS)}"
    )


def instructions_of(task: EarlierTask) -> Instructions:
    """The template of a task, compiled."""
    try:
        return Instructions(task.instructions)
    except TemplateRefused as error:
        raise ToolsetError(f"the instructions of the task {task.name} are refused: {error}") from None


def _look_for_unknown_names(config: EarlierConfig, module: ModuleType | None) -> None:
    with suppress(ToolsetError):  # what is wrong with the type or a template is said of that
        templates = [instructions_of(task) for task in config.tasks]
        _warn_of_unknown_names(config, _input_of(config, module), templates)


def _warn_of_unknown_names(
    config: EarlierConfig, given: type[BaseModel], templates: Sequence[Instructions]
) -> None:
    """Logs what templates name that no call can bring."""
    known = [*given.model_fields, *given.model_computed_fields]
    for task, template in zip(config.tasks, templates, strict=True):
        for name in sorted(template.names.difference(known)):
            if not _may_have(given, name):
                message = (
                    f"{name} is neither a field of {given.__name__} nor the result of an earlier task, and "
                    f"has no value{did_you_mean(name, known)}"
                )
                log.warning(config.document.problem(("spec", "tasks", task.place, "instructions"), message))
        known.append(f"_{task.name}")


def format_of(kind: type[BaseModel]) -> ResponseFormat:
    """A type as the model service is asked for it. `ToolsetError` where it cannot be asked for."""
    schema = _schema_of(kind, "output_type")
    closed: Json = deepcopy(schema)
    strict = _close(closed)
    name = valid_name(kind.__name__)  # the class of a generic type has brackets in its name
    return ResponseFormat(name=name, schema=closed if strict else schema, strict=strict)


def _schema_of(kind: type[BaseModel], key: str) -> Json:
    """The JSON schema of a type that `key` names. `ToolsetError` where it has none."""
    try:
        schema = kind.model_json_schema()
    except (PydanticInvalidForJsonSchema, PydanticUserError) as error:
        reason = str(error).partition("\n")[0]
        raise ToolsetError(f"the {key} {kind.__name__} has no JSON schema: {reason}") from error
    if root := schema.pop("$ref", None):  # of a type that holds its own kind; services want an object here
        schema |= schema["$defs"][root.rpartition("/")[2]]
    return schema


def _close(node: Any) -> bool:
    """Closes every object of a schema and requires all its keys; False where services hold no model to it: it
    has keys of any name, a set or a tuple."""
    if isinstance(node, list):
        return all(map(_close, node))
    if not isinstance(node, dict):
        return True
    node.pop("default", None)
    if "oneOf" in node:  # of a union with a discriminator, of which one fits at most
        node["anyOf"] = node.pop("oneOf")
        node.pop("discriminator", None)
    if "$ref" in node:
        node.pop("description", None)
    if "uniqueItems" in node or "prefixItems" in node:
        return False
    if node.get("type") == "object":
        if "properties" not in node:
            return False
        node["additionalProperties"] = False
        node["required"] = list(node["properties"])
    return all(
        _close(list(value.values()) if key in ("properties", "$defs") else value)
        for key, value in node.items()
    )


# --- wiring --------------------------------------------------------------------------------------


class _Wiring:
    """Makes the parts of one application, and opens them."""

    def __init__(self, config: EarlierConfig, clock: Clock) -> None:
        self.config = config
        self.credential = credential_of(config)
        self.auth = None
        if config.auth.provider != GATEWAY:
            self.auth = open_auth(config.auth.provider, config.auth.options, clock)
        self.observer: Observer = observer_of(config, config.agents)
        module = _module_of(config)
        self.input_type, self.output_type = _input_of(config, module), _output_of(config, module)
        each = [one for _, one in agents(config)]
        # of two with one name the first counts
        self.agents = {one.agent.name: _AgentWiring(one, self, clock) for one in reversed(each)}
        self.turns = Turns(self._plan(), clock, users=self.auth is not None)
        self.observer.loaded(self.turns.load)

    def app(self) -> StatelessApp:
        config = self.config
        secret = config.gateway_secret.get_secret_value() if config.gateway_secret else None
        bearer = Bearer(self.auth, config.forward_headers) if self.auth is not None else None
        front = ServedConfig(
            name=config.name,
            version=config.version,
            settings=settings_of(config),
            input_type=self.input_type,
            output_type=self.output_type,
            turns=self.turns,
            identity=bearer or Gateway(secret),
            challenge="Bearer" if bearer else "taAgwKey",
            forward_headers=frozenset(config.forward_headers),
            observer=self.observer,
        )
        return StatelessApp(front, self._lifespan, observing(config))

    def _plan(self) -> Plan:
        config, wanted = self.config, self.output_type
        if config.tasks:
            templates = [instructions_of(task) for task in config.tasks]
            _warn_of_unknown_names(config, self.input_type, templates)
            steps = [
                TaskStep(agent=self.agents[task.agent].agent, name=task.name, instructions=template)
                for task, template in zip(config.tasks, templates, strict=True)
            ]
        else:
            steps = [TaskStep(agent=self.agents[config.agent.name].agent)]
        if wanted is not None:
            last = steps[-1]
            typed = dataclasses.replace(last.agent, response_format=format_of(wanted))
            steps[-1] = TaskStep(agent=typed, name=last.name, instructions=last.instructions)
        source = f"{config.name}:{config.version}"
        return Plan(source=source, steps=steps, limits=self._limits(), output_type=wanted)

    def _limits(self) -> Limits:
        """The config's. All that a gateway lets through is one caller here, and not bounded as one user."""
        limits = self.config.limits
        if self.config.auth.provider != GATEWAY:
            return limits
        # more than the process takes, so that its bound is met first
        most = limits.max_concurrent_requests + 1
        return limits.model_copy(update={"max_requests_per_user": most})

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncIterator[None]:
        config = self.config
        async with AsyncExitStack() as stack:
            stack.enter_context(telemetry.configured(config.telemetry, config.name, config.version))
            if self.credential is not None:
                await stack.enter_async_context(self.credential)
            if self.auth is not None:
                await stack.enter_async_context(Held(self.auth, "auth provider", AuthConfigError, vital=True))
            for agent in self.agents.values():
                await agent.open(stack)
            stack.push_async_callback(self.turns.drain, 0)
            stack.enter_context(drained_by_signals(self.turns, config.limits.drain_seconds))
            for warning in config.warnings:
                log.warning(warning)
            log.info("%s serves %s, without state", config.agent.model, config.prefix)
            yield


class _AgentWiring:
    """One agent of a config: its model and its tools."""

    def __init__(self, config: EarlierConfig, wiring: _Wiring, clock: Clock) -> None:
        self._tooling = Tooling(config, None, clock)
        self.agent = dataclasses.replace(
            agent_of(config, model_of(config, wiring.credential), self._tooling.govern),
            delegation=self._tooling.delegation,
            forward_headers=config.forward_headers,
            observer=wiring.observer,
        )

    async def open(self, stack: AsyncExitStack) -> None:
        toolbox = self.agent.toolbox
        model = Held(self.agent.model, "model client", ModelConfigError, vital=True)
        await stack.enter_async_context(model)
        stack.push_async_callback(self._tooling.close)
        toolbox.load(await self._tooling.open(toolbox.reload))
        check_tools([tool.spec for tool in toolbox.tools])
