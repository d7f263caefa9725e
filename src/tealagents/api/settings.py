"""What the config says of the wire: bounds, names, and how to see whether all is well."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tealagents.api.items import IMAGES
from tealagents.domain.models import Json

Probe = Callable[[], Awaitable[Json]]

#: kinds of content, as the config may call them → their media types
_KINDS = {"text": ("text/plain",), "image": IMAGES}


class ConsentCallbacks(Protocol):
    """The authorizations that users were asked for, and what their browsers bring back."""

    async def complete(self, state: str, code: str, *, iss: str | None = None, server: str = "") -> str:
        """Turns a code into the owner's token; returns the name of the server it is for."""
        ...

    async def refuse(
        self, state: str, error: str, description: str, *, iss: str | None = None, server: str = ""
    ) -> str:
        """The user, or the authorization server, said no; returns what the user is shown of it."""
        ...


@dataclass(frozen=True, kw_only=True)
class ApiSettings:
    """What every protocol shows of one agent, and the bounds it keeps."""

    #: `/{name}/{version}`: everything of the agent is served under it
    prefix: str
    description: str
    max_body_bytes: int
    max_items: int
    keepalive_seconds: float
    idle_connection_seconds: float
    cors_origins: Sequence[str] = ()
    #: what the role of those who may read everything in their tenant is called
    auditor_role: str = "auditor"
    #: where clients see the root of this service; None: where they call it
    public_url: str | None = None
    #: whether only requests from this machine are answered (`local`)
    local_only: bool = False
    metadata: Json = field(default_factory=dict)
    dependencies: dict[str, Probe] = field(default_factory=dict)
    #: where the console is; None where it is not served
    console: str | None = None
    #: None where no tool server can need the user's own authorization
    consents: ConsentCallbacks | None = None

    @property
    def skills(self) -> list[Json]:
        """The skills of the metadata, as cards of agents have them: what was left out is not there."""
        return [_skill(each) for each in self.metadata.get("skills", ())]


def _skill(said: Json) -> Json:
    found = {
        "id": said.get("id") or said.get("name"),
        **{key: said.get(key) for key in ("name", "description", "tags", "examples")},
        "inputModes": _media_types(said.get("input_modes", ())),
        "outputModes": _media_types(said.get("output_modes", ())),
    }
    return {key: value for key, value in found.items() if value}


def _media_types(kinds: Sequence[str]) -> list[str]:
    return [each for kind in kinds for each in _KINDS.get(kind, (kind,))]
