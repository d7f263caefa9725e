"""Parameters of paths and queries as the OpenAPI document describes them.

They are judged by `ids.canonical` and by the cursors' own checks, so that every refusal reads the same.
"""

from typing import Annotated, Any

from tealagents.api.v1alpha1.routing import RouteParameter
from tealagents.domain import ids

UUID: dict[str, Any] = {"format": "uuid", "pattern": ids.PATTERN}

SessionId = Annotated[str, RouteParameter("The session", schema=UUID, examples=[ids.EXAMPLE])]
TaskId = Annotated[str, RouteParameter("The task", schema=UUID, examples=[ids.EXAMPLE])]
RequestId = Annotated[str, RouteParameter("The request", schema=UUID, examples=[ids.EXAMPLE])]

ApprovalId = Annotated[str, RouteParameter("The pause", schema=UUID, examples=[ids.EXAMPLE])]

OfSession = Annotated[str | None, RouteParameter("Only those of this session", schema=UUID)]
OfCheckpoint = Annotated[str | None, RouteParameter("The path of this checkpoint", schema=UUID)]

OfStep = Annotated[str | None, RouteParameter("The model call; the last one if omitted", schema=UUID)]
WithParents = Annotated[bool, RouteParameter("Name the checkpoint that each one continued")]

_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z"
_CURSOR = "The `next_cursor` of the previous page"

Limit = Annotated[int, RouteParameter("The maximum number of items", at_least=1, at_most=200)]
#: of a list by creation
Cursor = Annotated[str | None, RouteParameter(_CURSOR, schema={"pattern": f"^{_TIME}/[0-9a-f-]{{36}}$"})]
#: of the inbox: approvers list that of their tenant
InboxCursor = Annotated[
    str | None, RouteParameter(_CURSOR, schema={"pattern": f"^(inbox/)?{_TIME}/[0-9a-f-]{{36}}$"})
]
#: of a view of the log
Position = Annotated[str | None, RouteParameter(_CURSOR, schema={"pattern": "^[0-9]{1,12}$"})]
