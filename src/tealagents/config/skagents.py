"""The files of the earlier platform: `skagents/v2alpha1` and, by any other name, `skagents/v1`.

Both are served without state. What they share with our own files (the agent, limits, who may call) is
declared there; what is here is how they differ.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, SecretStr, model_validator

from tealagents.config.auth import AuthConfig, auth_of
from tealagents.config.earlier import without_state
from tealagents.config.file import Document
from tealagents.config.loading import Loading, unknown_keys
from tealagents.config.models import (
    AgentConfig,
    ConfigFile,
    ConsoleSection,
    LenientOptions,
    Metadata,
    Spec,
    contradiction,
)
from tealagents.config.problems import ConfigError, ConfigProblem, KeyPath
from tealagents.config.service import GATEWAY, ServiceConfig, beside, combined, with_programs_below
from tealagents.config.settings import overrides
from tealagents.limits import Limits
from tealagents.mistakes import did_you_mean
from tealagents.options import CountOrNone, Origins, Text, UrlSegment

V1, V2 = "skagents/v1", "skagents/v2alpha1"

#: keys of `spec` that are about state, or need it
_OF_STATE = ("persistence", "thread", "concurrency", "on_disconnect", "protocols", "console")
_A2A = "TA_A2A_ENABLED"
_KIND: KeyPath = ("kind",)
_AGENTS: KeyPath = ("spec", "agents")
_TASKS: KeyPath = ("spec", "tasks")


class EarlierTask(LenientOptions):
    """One step of a sequence."""

    name: Text
    """Name of the task; `_name` is its result in the instructions of later ones."""
    task_no: CountOrNone
    """Its place: tasks are done in the order of these numbers."""
    description: str = ""
    """What it is about."""
    instructions: str
    """What the agent is sent: a Jinja template over the fields of the input."""
    agent: Text
    """The agent that does it, by its name."""
    _place: int = PrivateAttr(0)

    @property
    def place(self) -> int:
        """Which of the file's tasks it is, from 0."""
        return self._place


class _Served(LenientOptions):
    """How a file without state is served."""

    auth: Any = None
    """Who may call. A plain text is the provider's name."""
    cors_origins: Origins = ()
    """Origins whose web pages may call, or `*` for all."""
    limits: Limits = Limits()
    """Limits on requests, users and processes."""


class ChatSpec(_Served):
    """One agent that is given a conversation."""

    agent: AgentConfig
    """The agent."""


class SequentialSpec(_Served):
    """Tasks that are done one after the other."""

    agents: Annotated[tuple[AgentConfig, ...], Field(min_length=1)]
    """The agents."""
    tasks: Annotated[tuple[EarlierTask, ...], Field(min_length=1)]
    """The tasks."""

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        agents = [agent.name for agent in self.agents]
        for n, task in enumerate(self.tasks):
            task._place = n
            if task.agent not in agents:
                known = did_you_mean(task.agent, agents) or f"; the agents are {', '.join(agents)}"
                raise contradiction(f"there is no such agent{known}", "tasks", n, "agent")
        return self


class _V1(LenientOptions):
    #: whatever version it names
    served_as: ClassVar[str] = V1
    metadata: ClassVar[Metadata] = Metadata()

    api_version: Annotated[str, Field(alias="apiVersion")]
    """Version of this structure."""
    kind: Literal["Sequential", "Chat"]
    """What is served."""
    name: Annotated[UrlSegment, Field(alias="service_name")]
    """Name of the agent, the first part of every path."""
    version: UrlSegment
    """Version of the agent, the second part of every path."""
    description: str = ""
    """What the agent does, for people and orchestrators that choose among agents."""
    input_type: Text
    """What it is sent: one of the standard types, or a class of the types' file."""
    output_type: Text | None = None
    """A class of the types' file that the answer is to be; if omitted, the answer is text."""


class ChatFile(_V1):
    """`skagents/v1`, kind `Chat`."""

    spec: ChatSpec
    """The agent and how it is served."""


class SequentialFile(_V1):
    """`skagents/v1`, kind `Sequential`."""

    spec: SequentialSpec
    """The agents, their tasks and how they are served."""


class AgentFile(LenientOptions):
    """`skagents/v2alpha1`."""

    served_as: ClassVar[str] = V2
    #: a conversation with images
    input_type: ClassVar[str] = "BaseMultiModalInputWithUserContext"
    output_type: ClassVar[None] = None

    api_version: Annotated[str, Field(alias="apiVersion")]
    """Version of this structure."""
    kind: Literal["Agent", "Chat"] = "Agent"
    """What is served."""
    name: UrlSegment
    """Name of the agent, the first part of every path."""
    version: UrlSegment
    """Version of the agent, the second part of every path."""
    description: str = ""
    """What the service does."""
    metadata: Metadata = Metadata()
    """What the agent says about itself."""
    spec: ChatSpec
    """The agent and how it is served."""


@dataclass(frozen=True, kw_only=True)
class EarlierConfig(ServiceConfig):
    """A config of the earlier platform, served without state. `agent` is the first of `agents`."""

    input_type: str
    output_type: str | None
    agents: tuple[AgentConfig, ...]
    #: in the order of `task_no`; empty where the agent is given the conversation
    tasks: tuple[EarlierTask, ...]
    types_module: Path | None
    gateway_secret: SecretStr | None
    #: the variables of `.env` that the environment does not set
    from_dotenv: Mapping[str, str] = field(repr=False)


def load(loading: Loading, unset: list[ConfigProblem] | None, *, upgrading: bool) -> EarlierConfig:
    """A config of the earlier platform. Raises ConfigError with everything that is wrong."""
    document, problems, warnings = loading.document, loading.problems, loading.warnings
    v2 = document.get(("apiVersion",)) == V2
    _refuse_orchestrators(loading)
    if not upgrading:
        problems += _refusals(loading, V2 if v2 else V1)
    warnings += without_state(loading.environment)
    loading.apply_environment(unset)
    for name, key in overrides(loading.environment).items():
        if key[1] in _OF_STATE:
            document.remove(key[:2])
            if key[1] != "console":  # `serve` itself sets it, for all versions
                warnings.append(f"{name}: has no effect: this version keeps no state")
    file, auth = _file(loading, v2), loading.judged(partial(auth_of, document))
    if file is None or auth is None or problems:
        raise loading.error()
    warnings += unknown_keys(file, document)
    warnings += map(str, _namesakes(file.spec, document))
    warnings += _warnings(auth, loading)
    config = _config(file, auth, loading)
    if problems:
        raise loading.error()
    return config


def _file(loading: Loading, v2: bool) -> ChatFile | SequentialFile | AgentFile | None:
    if v2:
        return loading.validated(AgentFile)
    _fill_in(loading.document)
    match loading.document.get(_KIND):
        case "Sequential":
            return loading.validated(SequentialFile)
        case "Chat":
            return loading.validated(ChatFile)
    loading.validated(_V1)  # what `spec` is to hold depends on the kind, which is wrong
    return None


def _fill_in(document: Document) -> None:
    """Where the kind or the name of an agent is a `${NAME}` that may stay unset: what fits the rest."""
    tasks, agents = (
        items if isinstance(items := document.get(key), list) else [] for key in (_TASKS, _AGENTS)
    )
    if _KIND in document.unset:
        document.replace(_KIND, "Sequential" if tasks else "Chat")
    names: list[KeyPath] = [(*_AGENTS, n, "name") for n in range(len(agents))]
    doers: list[KeyPath] = [(*_TASKS, n, "agent") for n in range(len(tasks))]

    def known() -> list[Any]:
        return [document.get(name) or "default" for name in names]

    nameless = [name for name in names if name in document.unset]
    for doer in doers:
        if nameless and doer not in document.unset and document.get(doer) not in known():
            document.replace(nameless.pop(0), document.get(doer))
    for doer in doers:
        if doer in document.unset and document.get(doer) not in known():
            document.replace(doer, next(iter(known()), "default"))


def _refuse_orchestrators(loading: Loading) -> None:
    """Nothing else of their files can be judged here."""
    if "orchestrator" in str(loading.document.get(_KIND)).lower():
        message = "is a program of its own, which calls agents; keep running it, and point it to them here"
        raise ConfigError([loading.document.problem(_KIND, message)])


def _refusals(loading: Loading, version: str) -> Iterator[ConfigProblem]:
    """What else is refused by name, with what to do."""
    document, environment = loading.document, loading.environment
    for key in _OF_STATE:
        if document.get(("spec", key)) is not None:
            upgrade = f"tealagents upgrade {document.name}"
            message = f"{version} keeps no state; remove this, or migrate the agent: {upgrade}"
            yield document.problem(("spec", key), message)
    if (environment.get(_A2A) or "").lower() in ("1", "true", "yes", "on"):
        message = (
            f"{version} is not served over A2A; unset it, or move the agent to tealagents/v1alpha1 with "
            "spec.protocols: [a2a]"
        )
        yield environment.problem(_A2A, message)


def _namesakes(spec: ChatSpec | SequentialSpec, document: Document) -> Iterator[ConfigProblem]:
    """Agents and tasks that have the name of another."""
    if isinstance(spec, ChatSpec):
        return
    agents, tasks = ([each.name for each in named] for named in (spec.agents, spec.tasks))
    for n, name in enumerate(agents):
        if (first := agents.index(name)) != n:
            message = f"agents[{first}] has this name, too, and is the one that is used"
            yield document.problem((*_AGENTS, n, "name"), message)
    for n, name in enumerate(tasks):
        if (first := tasks.index(name)) != n:
            message = f"tasks[{first}] has this name, too: _{name} is the result of the one that ran last"
            yield document.problem((*_TASKS, n, "name"), message)


def _warnings(auth: AuthConfig, loading: Loading) -> Iterator[str]:
    secret = loading.settings.gateway_secret
    if auth.provider == GATEWAY and secret is None:
        yield (
            "TA_AUTH=gateway: every caller is assumed to have been checked by a gateway, and the service "
            "checks none; set TA_GATEWAY_SECRET to what the gateway sends in taAgwKey, and let no one else "
            "connect"
        )
    elif auth.provider == GATEWAY:
        yield "TA_AUTH=gateway: a gateway checks the callers; it proves itself by the secret in taAgwKey"
    elif not auth.chosen and auth.provider == "mock":
        yield "callers need a bearer token; orchestrators behind a gateway send none: set TA_AUTH=gateway"
    if auth.provider != GATEWAY and secret is not None:
        yield "TA_GATEWAY_SECRET: has no effect without TA_AUTH=gateway"


def _config(file: ChatFile | SequentialFile | AgentFile, auth: AuthConfig, loading: Loading) -> EarlierConfig:
    spec, folder = file.spec, loading.document.directory
    if isinstance(spec, SequentialSpec):
        agents, tasks = spec.agents, tuple(sorted(spec.tasks, key=lambda task: task.task_no))
    else:
        agents, tasks = (spec.agent,), ()
    for index, agent in enumerate(agents):
        loading.check_remote_plugins(agent, (*_AGENTS, index) if tasks else ("spec", "agent"))
    base = combined(
        ConfigFile.model_construct(
            api_version="tealagents/v1alpha1",
            name=file.name,
            version=file.version,
            description=file.description,
            metadata=file.metadata,
            spec=Spec(
                agent=agents[0],
                limits=spec.limits,
                cors_origins=spec.cors_origins,
                console=ConsoleSection(enabled=False),
            ),
        ),
        auth,
        loading,
    )
    own = {each.name: getattr(base, each.name) for each in fields(base)}
    own |= {"api_version": file.served_as, "kind": file.kind}
    return EarlierConfig(
        **own,
        input_type=file.input_type,
        output_type=file.output_type,
        agents=tuple(with_programs_below(agent, folder) for agent in agents),
        tasks=tasks,
        types_module=loading.settings.types_module or beside(loading.document, "custom_types.py"),
        gateway_secret=loading.settings.gateway_secret,
        from_dotenv=loading.environment.from_dotenv(),
    )
