"""Which request the code that runs now belongs to; every log line and span carries its ids."""

from collections.abc import Mapping
from contextvars import ContextVar

#: `session_id`, `task_id`, `request_id` of the request being worked on, as far as they are known
current_ids: ContextVar[Mapping[str, str]] = ContextVar("current_ids", default={})  # noqa: B039 - never changed
