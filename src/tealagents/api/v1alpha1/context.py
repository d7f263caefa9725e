"""What every route works with."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from starlette.requests import Request

from tealagents.api import bodies
from tealagents.api.bearer import Bearer, ProtectedResource
from tealagents.domain import ids
from tealagents.domain.errors import CorruptState, InvalidRequest
from tealagents.domain.models import Caller, Json
from tealagents.domain.ports import Authenticator
from tealagents.engine.approvals import Approvals
from tealagents.engine.service import Service
from tealagents.state import owner_directory
from tealagents.state.catalog import Catalog
from tealagents.state.changes import Changes
from tealagents.state.erasing import Eraser
from tealagents.state.owner_directory import Kind
from tealagents.state.transfer import Transfer

_INDEX_CURSOR = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z/[0-9a-f-]{36}", re.ASCII)
_INBOX = "inbox/"
_NUMBER = re.compile(r"\d{1,12}", re.ASCII)

T = TypeVar("T")
Probe = Callable[[], Awaitable[Json]]


class Consents(Protocol):
    """The authorizations that users were asked for, and what their browsers bring back."""

    async def complete(self, state: str, code: str, *, iss: str | None = None) -> str:
        """Turns a code into the owner's token; returns the name of the server it is for."""
        ...

    async def refuse(self, state: str) -> None:
        """The user, or the authorization server, said no."""
        ...


@dataclass(frozen=True, kw_only=True)
class ApiSettings:
    """What the wire shows besides the engine: bounds, names, and how to tell whether all is well."""

    prefix: str
    description: str
    max_body_bytes: int
    max_items: int
    keepalive_seconds: float
    cors_origins: Sequence[str] = ()
    #: where clients see the root of this service; None: where they call it
    public_url: str | None = None
    metadata: Json = field(default_factory=dict)
    dependencies: dict[str, Probe] = field(default_factory=dict)
    #: a span for each request but the probes, continuing the caller's trace
    traced: bool = False
    metered: bool = False
    #: where the console is; None where it is not served
    console: str | None = None
    #: None where no tool server can need the user's own authorization
    consents: Consents | None = None


class Api:
    """The engine and the state, as the routes use them."""

    def __init__(self, service: Service, authenticator: Authenticator, surface: ApiSettings) -> None:
        self.service = service
        self.surface = surface
        self.authenticator = authenticator
        self.tasks = service.tasks
        self.history = service.tasks.history
        self.approvals = Approvals(service)
        self.catalog = Catalog(service.records, service.tasks)
        self.changes = Changes(service.tasks)
        self.eraser = Eraser(service.records, service.tasks)
        self.transfer = Transfer(service.records, service.tasks)
        self.resource = ProtectedResource(authenticator, surface.prefix, surface.public_url)
        self._bearer = Bearer(authenticator, service.agent.forward_headers)

    @property
    def prefix(self) -> str:
        return self.surface.prefix

    async def caller(self, request: Request) -> Caller:
        return await self._bearer.caller(request)

    async def partition(self, caller: Caller, kind: Kind, identifier: str, *, reading: bool = False) -> str:
        """The partition of a record the caller may use; see `owner_directory.locate`."""
        return await owner_directory.locate(
            self.service.directory, self.service.records, caller, kind, identifier, reading=reading
        )

    async def place(
        self, request: Request, kind: Kind, parameter: str, *, reading: bool = False
    ) -> tuple[str, str]:
        """The partition and the id of what the path names, once it is known that the caller may use it."""
        caller = await self.caller(request)
        name = identifier(request, parameter)
        return await self.partition(caller, kind, name, reading=reading), name

    async def unless_deleted(self, partition: str, task_id: str, reading: Awaitable[T]) -> T:
        """What is read of a task's log; `NotFound` where the task went meanwhile, which is no damage."""
        try:
            return await reading
        except CorruptState:
            await self.tasks.head(partition, task_id)
            raise

    async def body(self, request: Request, *, empty: Any = None) -> Any:
        """The JSON value of the body, within the limits; `empty`, if given, where there is no body."""
        none = (
            request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers
        )
        if none and empty is not None:
            return empty
        bodies.require_json(request)
        return bodies.parse(await bodies.read(request, self.surface.max_body_bytes))


def identifier(request: Request, name: str) -> str:
    """An id from the path, in canonical form."""
    return ids.canonical(request.path_params[name], name)


def index_cursor(cursor: str | None, *, inbox: bool = False) -> str | None:
    """The cursor of a list by creation; that of a tenant's inbox has a prefix."""
    if cursor is None:
        return None
    if cursor.startswith(_INBOX) != inbox or not _INDEX_CURSOR.fullmatch(cursor.removeprefix(_INBOX)):
        raise InvalidRequest("cursor", "must be the next_cursor of an earlier page")
    return cursor


def number_cursor(cursor: str | None) -> int:
    """The cursor of a view of the log; 0 for the beginning."""
    if cursor is None:
        return 0
    if not _NUMBER.fullmatch(cursor):
        raise InvalidRequest("cursor", "must be the next_cursor of an earlier page")
    return int(cursor)
