"""An agent, as its config file defines it, in the engine's terms."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tealagents.domain.models import ResponseFormat
from tealagents.domain.ports import Delegation, Model
from tealagents.engine.observer import Observer
from tealagents.engine.toolbox import Toolbox
from tealagents.limits import Limits
from tealagents.threads.context import Providers
from tealagents.threads.views import View


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """One agent: its name, prompt, model, tools and limits."""

    name: str
    version: str
    system_prompt: str
    model: Model
    toolbox: Toolbox
    limits: Limits = field(default_factory=Limits)
    thread_kind: Literal["local", "remote"] = "local"
    #: selects the messages of a local conversation that the model is sent; None: all
    view: View | None = None
    providers: Providers = field(default_factory=Providers)
    on_disconnect: Literal["continue", "cancel"] = "continue"
    delegation: Delegation | None = None
    #: lower-case names of the caller's headers that tools may see
    forward_headers: Sequence[str] = ()
    #: the shape of every answer; None: free text
    response_format: ResponseFormat | None = None
    observer: Observer = field(default_factory=Observer)

    @property
    def remembers(self) -> bool:
        """Whether its checkpoints keep a context: the state of reducers and context providers."""
        return self.view is not None or bool(self.providers)

    @property
    def source(self) -> str:
        """`name:version`, the `source` of every answer."""
        return f"{self.name}:{self.version}"
