"""A whole task as one document, and the checks of one that is imported.

The sender may have written the document: it must not claim anything that messages could not have brought
about, nor contain anything that a later read would fail on.
"""

import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest, NotOwner, TealError
from tealagents.domain.images import image_problem
from tealagents.domain.json_limits import TOO_SLOW, too_slow
from tealagents.domain.models import (
    ENDED,
    Body,
    Head,
    Json,
    MessageBody,
    Path,
    RequestEnd,
    RequestRecord,
    StepBody,
    TokenUsage,
    ToolIntent,
    User,
)
from tealagents.state.changes import check_metadata
from tealagents.state.codec import encode_json

FORMAT: Literal["tealagents/task/v1"] = "tealagents/task/v1"
#: bytes of JSON that one checkpoint's context may have
MOST_CONTEXT = 256 * 1024
#: the sum of all requests' entries may be this many times the number of entries; an honest document has one
MOST_OVERLAP = 4
#: bytes of JSON of one path: each commit writes the head with its path, and holds 1 MB in all
MOST_PATH = 192 * 1024
#: the earliest and latest time: years in keys have four digits, and added durations must not overflow
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)
#: the latest expiry: nothing is added to it, and many clients send the year 9999 for never
LATEST_EXPIRY = datetime.max.replace(tzinfo=UTC)

#: the time of an entry, as a pattern
STAMP = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z"
#: the highest number of a stream event that fits into a key
_LAST_EVENT = 10**12 - 1


class ExportedEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the log, without its place in the chain."""

    seq: int
    at: str
    actor: str
    action: str
    request_id: str | None
    body: Body


class ExportedTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task as one document. The paths of its requests are shortened (`document_paths`)."""

    format: Literal["tealagents/task/v1"]
    agent: str
    task: Head
    requests: tuple[RequestRecord, ...]
    entries: tuple[ExportedEntry, ...]


def read(value: Any, owner: User) -> ExportedTask:
    """Parses the document of one of `owner`'s tasks and checks every id, time and number in it.

    `NotOwner` if it says that the task is another user's; `InvalidRequest` naming the wrong field.
    """
    _check_owned(value, owner)
    try:
        document = msgspec.convert(value, ExportedTask)
    except msgspec.ValidationError as error:
        raise _misread(str(error)) from None
    _check(document)
    return document


def _check_owned(value: Any, owner: User) -> None:
    """`NotOwner` if the document names another owner; checked before anything else in it."""
    try:
        said = msgspec.convert(value["task"]["owner"], User)
    except (KeyError, TypeError, msgspec.ValidationError):
        return
    if said != owner:
        try:
            task_id = ids.canonical(value["task"].get("task_id"), "task.task_id")
        except InvalidRequest:
            task_id = None
        raise NotOwner(
            "The document is of another user's task. Only its owner can import it.", task_id=task_id
        )


def _misread(message: str) -> InvalidRequest:
    """msgspec's error as ours, with its field: ``Expected `str`, got `int` - at `$.entries[0].at` ``."""
    reason, _, where = message.partition(" - at `$")
    path = re.sub(r"\[(\d+)\]", r".\1", where.rstrip("`")).lstrip(".")
    if about := re.fullmatch(r"Object (missing required|contains unknown) field `([^`]{1,200})`", reason):
        path = f"{path}.{about[2]}".lstrip(".")
        reason = "is required" if about[1].startswith("missing") else "is not a field of this document"
    return InvalidRequest(path or "body", reason[:1].lower() + reason[1:])


def _check(document: ExportedTask) -> None:
    _check_task(document.task, len(document.entries))
    known: set[str] = set()
    for n, request in enumerate(document.requests):
        if request.request_id in known:
            raise InvalidRequest(f"requests.{n}.request_id", "is listed twice")
        _check_request(f"requests.{n}", request, document.task)
        known.add(request.request_id)
    if document.task.checkpoint_id is not None and document.task.checkpoint_id not in known:
        raise InvalidRequest("task.checkpoint_id", "is not a request of the document")
    for n, entry in enumerate(document.entries):
        _check_entry(n, entry, known)
    logged = {entry.request_id for entry in document.entries}
    for n, request in enumerate(document.requests):
        if request.request_id not in logged:  # erasing a task finds its requests by its log
            raise InvalidRequest(f"requests.{n}", "is not named by any entry")
    parts = {"task": document.task, **{f"requests.{n}": each for n, each in enumerate(document.requests)}}
    for field, part in parts.items():
        if too_slow(encode_json(part)):
            raise InvalidRequest(field, TOO_SLOW)
    read = sum(max(0, each.last_seq - each.first_seq + 1) for each in document.requests if each.first_seq)
    if read > MOST_OVERLAP * len(document.entries):
        raise InvalidRequest("requests", "claim entries of each other: see their first_seq and last_seq")


def _check_task(task: Head, entries: int) -> None:
    _check_id(task.task_id, "task.task_id")
    _check_id(task.session_id, "task.session_id")
    if task.running or task.pending or task.queue or task.erased or task.status not in ENDED:
        raise InvalidRequest("task.status", "must be that of an ended request")
    if task.tail_seq != entries:
        raise InvalidRequest("task.tail_seq", "must be the number of entries")
    _check_path(task.path, task.tail_seq, "task.path")
    for name in ("created_at", "updated_at"):
        _check_time(getattr(task, name), f"task.{name}")
    _check_time(task.expires_at, "task.expires_at", LATEST_EXPIRY)
    for name in ("origin", "effects"):
        if len(encode_json(getattr(task, name))) > MOST_CONTEXT:
            raise InvalidRequest(f"task.{name}", f"is larger than {MOST_CONTEXT} bytes of JSON")
    try:
        check_metadata(task.metadata)
    except InvalidRequest as refusal:
        raise InvalidRequest("task.metadata", refusal.reason) from None


def _check_request(where: str, request: RequestRecord, task: Head) -> None:
    _check_id(request.request_id, f"{where}.request_id")
    for name in ("parent", "retries"):
        if (other := getattr(request, name)) is not None:
            _check_id(other, f"{where}.{name}")
    if request.task_id != task.task_id or request.session_id != task.session_id:
        raise InvalidRequest(where, "belongs to another task")
    if request.status not in ENDED or request.ended_at is None:
        raise InvalidRequest(f"{where}.status", "must be Completed, Failed or Canceled")
    for name in ("created_at", "started_at", "resumed_at", "ended_at"):
        _check_time(getattr(request, name), f"{where}.{name}")
    _check_path(request.path, task.tail_seq, f"{where}.path")
    for name in ("first_seq", "last_seq"):
        _check_number(getattr(request, name), f"{where}.{name}", most=task.tail_seq)
    _check_number(request.last_event, f"{where}.last_event", most=_LAST_EVENT)
    _check_usage(request.usage, f"{where}.usage")
    _check_context(where, request)
    _check_outcome(where, request)


def _check_context(where: str, request: RequestRecord) -> None:
    """Checks the context, which is read with every later turn."""
    context = request.context
    if context is None:
        return
    if why := context_problem(context):
        raise InvalidRequest(f"{where}.context", why)
    turn = context.get("turn", 0)
    if type(turn) is not int:
        raise InvalidRequest(f"{where}.context.turn", "must be a number")
    _check_number(turn, f"{where}.context.turn", most=_LAST_EVENT)
    if not isinstance(context.get("view", {}), dict):  # a reducer may keep any JSON
        raise InvalidRequest(f"{where}.context.view", "must be an object")
    states = context.get("providers", {})
    if not isinstance(states, dict) or not all(isinstance(each, dict) for each in states.values()):
        raise InvalidRequest(f"{where}.context.providers", "must be an object of objects")


def context_problem(context: Json) -> str | None:
    """Why a context cannot be stored, since it is read with every turn; None if it can."""
    encoded = encode_json(context)
    if len(encoded) > MOST_CONTEXT:
        return f"is larger than {MOST_CONTEXT} bytes of JSON"
    return TOO_SLOW if too_slow(encoded) else None


def _check_outcome(where: str, request: RequestRecord) -> None:
    """Checks the fields of the request's outcome, which clients are shown as they are."""
    if request.pause is not None or request.waiting is not None:
        raise InvalidRequest(where, "must have neither `pause` nor `waiting`: it has ended")
    if (request.error is None) != (request.status == "Completed"):
        needed = (
            "does not belong to a completed request"
            if request.error
            else "is required for a request without an answer"
        )
        raise InvalidRequest(f"{where}.error", needed)
    if request.error is not None and request.error.code not in set(_codes(TealError)):
        raise InvalidRequest(f"{where}.error.code", "is not the code of an error")


def _codes(kind: type[TealError]) -> Iterator[str]:
    yield kind.code
    for heir in kind.__subclasses__():
        yield from _codes(heir)


def check_size(path: Path, where: str) -> None:
    """`InvalidRequest` if a path does not fit into a head."""
    if len(encode_json(path)) > MOST_PATH:
        raise InvalidRequest(where, f"is larger than {MOST_PATH} bytes of JSON")


def _check_path(path: Path, tail: int, where: str) -> None:
    check_size(path, where)
    before = -1
    for first, last in path:
        if not before + 1 < first <= last <= tail:
            raise InvalidRequest(where, "must be rising pairs of entry numbers, with a gap between two pairs")
        before = last


def _check_entry(n: int, entry: ExportedEntry, known: Collection[str]) -> None:
    where = f"entries.{n}"
    if entry.seq != n + 1:
        raise InvalidRequest(f"{where}.seq", f"must be {n + 1}")
    if not re.fullmatch(STAMP, entry.at):
        raise InvalidRequest(f"{where}.at", "must be a time such as 2030-01-01T00:00:00.000000Z")
    if entry.request_id is not None and entry.request_id not in known:
        raise InvalidRequest(f"{where}.request_id", "is not a request of the document")
    _check_body(f"{where}.body", entry)


def _check_body(where: str, entry: ExportedEntry) -> None:
    body = entry.body
    if isinstance(body, RequestEnd):
        if not 1 <= body.first_seq <= entry.seq:
            raise InvalidRequest(f"{where}.first_seq", "must be an earlier entry")
        _check_owner(body.request_id, entry, f"{where}.request_id")
        _check_time(body.ended_at, f"{where}.ended_at")
    elif isinstance(body, ToolIntent):
        _check_owner(body.request_id, entry, f"{where}.request_id")
    elif isinstance(body, StepBody):
        _check_owner(body.step.request_id, entry, f"{where}.step.request_id")
        _check_time(body.step.started_at, f"{where}.step.started_at")
        _check_id(body.step.step_id, f"{where}.step.step_id")
    elif isinstance(body, MessageBody):
        message = body.message
        _check_owner(message.request_id, entry, f"{where}.message.request_id")
        _check_time(message.created_at, f"{where}.message.created_at")
        _check_id(message.message_id, f"{where}.message.message_id")
        if message.native:
            raise InvalidRequest(f"{where}.message.native", "is not a field of this document")
        for item in message.items:
            if item.content_type == "image" and (problem := image_problem(item.content)):
                raise InvalidRequest(f"{where}.message.items", f"an image {problem}")


def _check_owner(request_id: str, entry: ExportedEntry, where: str) -> None:
    if request_id != entry.request_id:
        raise InvalidRequest(where, "must be the request of its entry")


def _check_id(identifier: str, where: str) -> None:
    if ids.canonical(identifier, where) != identifier:
        raise InvalidRequest(where, "must be in lower case")


def _check_time(at: datetime | None, where: str, latest: datetime = LATEST) -> None:
    if at is not None and (at.tzinfo is None or not EARLIEST <= at <= latest):
        raise InvalidRequest(where, f"must have an offset and lie in {EARLIEST.year} to {latest.year}")


def _check_number(number: int, where: str, *, most: int) -> None:
    if not 0 <= number <= most:
        raise InvalidRequest(where, f"must be 0 to {most}")


def _check_usage(usage: TokenUsage, where: str) -> None:
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        _check_number(getattr(usage, name), f"{where}.{name}", most=2**53)
