"""Parameters of paths and queries as the OpenAPI document describes them.

They are judged by `ids.canonical` and by the cursors' own checks, so that every refusal reads the same.
"""

from typing import Annotated, Any

from fastapi import Path, Query

from tealagents.domain import ids

UUID: dict[str, Any] = {"format": "uuid", "pattern": ids.PATTERN}

SessionId = Annotated[str, Path(description="The session", json_schema_extra=UUID, examples=[ids.EXAMPLE])]
TaskId = Annotated[str, Path(description="The task", json_schema_extra=UUID, examples=[ids.EXAMPLE])]
RequestId = Annotated[str, Path(description="The request", json_schema_extra=UUID, examples=[ids.EXAMPLE])]

ApprovalId = Annotated[str, Path(description="The pause", json_schema_extra=UUID, examples=[ids.EXAMPLE])]

OfSession = Annotated[str | None, Query(description="Only those of this session", json_schema_extra=UUID)]
OfCheckpoint = Annotated[str | None, Query(description="The path of this checkpoint", json_schema_extra=UUID)]

OfStep = Annotated[
    str | None, Query(description="The model call; the last one when left out", json_schema_extra=UUID)
]
WithParents = Annotated[bool, Query(description="Name the checkpoint that each one continued")]

_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z"
_CURSOR = "The `next_cursor` of the page before"

Limit = Annotated[int, Query(ge=1, le=200, description="How many items at most")]
#: of a list by creation
Cursor = Annotated[
    str | None, Query(description=_CURSOR, json_schema_extra={"pattern": f"^{_TIME}/[0-9a-f-]{{36}}$"})
]
#: of a view of the log
Position = Annotated[str | None, Query(description=_CURSOR, json_schema_extra={"pattern": "^[0-9]{1,12}$"})]
