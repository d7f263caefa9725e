"""The names of partitions and records.

A user's partition holds everything that the user owns with one agent. Other partitions hold the index
(`owners`, `locators`, `inbox`, `erasing`), which is written before the commit that it serves, and believed
only if the record that it points to exists; the leases and signals of processes; and the threads that
programs keep.
"""

import hashlib
import re
from datetime import datetime

from tealagents.domain.models import Head
from tealagents.state.codec import stamp

#: seconds for which a pause stays in its tenant's inbox after it has expired
INBOX_SECONDS = 7 * 86400.0

#: the last segments of the partitions of `owners` and of `locators`
DIGITS = "0123456789abcdef"

_PLAIN = re.compile(r"[A-Za-z0-9._@-]{1,120}", re.ASCII)


def plain(text: str) -> str:
    """`text` if it can be part of a key, else its digest."""
    if _PLAIN.fullmatch(text):
        return text
    return "~" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def user(agent: str, owner: str) -> str:
    """The partition of one owner with one agent."""
    return f"{plain(agent)}/user/{plain(owner)}"


def users(agent: str) -> str:
    """The prefix of the partitions of all owners."""
    return f"{plain(agent)}/user/"


def threads(agent: str) -> str:
    """The partition of the threads that programs keep (`threads.stored`)."""
    return f"{plain(agent)}/threads"


def owners(agent: str, tag: str) -> str:
    """One of sixteen partitions that list the owners; its keys are `owner/{tag}`."""
    return f"{plain(agent)}/owners/{tag[0]}"


def locators(agent: str, identifier: str) -> str:
    """One of sixteen partitions that name the owners of ids that were not made here (`locator/{id}`)."""
    return f"{plain(agent)}/locators/{identifier[0]}"


def workers(agent: str) -> str:
    """The partition of the leases, `worker/{id}`, of `signals`, and of `KEY_CHECK`."""
    return f"{plain(agent)}/workers"


def inbox(agent: str, tid: str) -> str:
    """The partition of a tenant's pauses, `inbox/{created}/{approval_id}`."""
    return f"{plain(agent)}/inbox/{plain(tid)}"


def erasing(agent: str) -> str:
    """The partition of the notes on pending deletions (`task/{id}/{log_id}`, `sessions/{created}/{id}`) and
    on tasks being created (`task/{id}/{log_id}/making`)."""
    return f"{plain(agent)}/erasing"


def owner(tag: str) -> str:
    return f"owner/{tag}"


def locator(identifier: str) -> str:
    return f"locator/{identifier}"


def worker(worker_id: str) -> str:
    return f"worker/{worker_id}"


def signals(worker_id: str) -> str:
    """The prefix of the signals that other processes leave for a worker, `signal/{id}/{request_id}`.

    They are in the partition of the leases because a dead worker does not take its signals: once they have
    expired, the next beat of any other worker lets the store erase them.
    """
    return f"signal/{worker_id}/"


def in_inbox(at: datetime, approval_id: str) -> str:
    """The key of a pause in its tenant's inbox."""
    return f"inbox/{stamp(at)}/{approval_id}"


def task(task_id: str) -> str:
    return f"task/{task_id}"


def importing(task_id: str) -> str:
    """Names the worker that is writing an imported task, which no one can see yet."""
    return f"importing/{task_id}"


def request(request_id: str) -> str:
    return f"request/{request_id}"


#: names the sessions of an owner that are being erased
DELETING = "deleting"


def session(session_id: str) -> str:
    return f"session/{session_id}"


def approval(approval_id: str) -> str:
    return f"approval/{approval_id}"


def answers(approval_id: str) -> str:
    """The prefix of the answers to questions about a pause."""
    return f"answer/{approval_id}/"


def answer(approval_id: str, question: str) -> str:
    """A user's answer to a question about a pause, until the call that asked takes it."""
    return f"{answers(approval_id)}{question}"


#: in the partition of the workers: shows with which key the store is encrypted while it is otherwise empty
KEY_CHECK = "key-check"

#: the prefix of all tasks' logs
LOGS = "log/"


def logs(task_id: str) -> str:
    """The prefix of a task's log."""
    return f"{LOGS}{task_id}/"


def log(task_id: str, seq: int) -> str:
    """The key of the log record whose first entry is `seq`."""
    return f"log/{task_id}/{seq:012d}"


#: the prefix of chunks stored out of line
BLOBS = "blob/"
#: what the keys of the threads that programs keep begin with
THREADS = "thread/"


def blobs(task_id: str) -> str:
    return f"{BLOBS}{task_id}/"


def blob(task_id: str, digest: str, piece: int) -> str:
    return f"blob/{task_id}/{digest}/{piece:04d}"


def streams(request_id: str) -> str:
    return f"events/{request_id}/"


def stream(request_id: str, first_id: int) -> str:
    """The batch of stream events that begins with `first_id`."""
    return f"events/{request_id}/{first_id:012d}"


def stream_parts(request_id: str) -> str:
    """The prefix of the parts of a request's large stream events."""
    return f"event-parts/{request_id}/"


def stream_part(request_id: str, event_id: int, part: int) -> str:
    return f"event-parts/{request_id}/{event_id:012d}/{part:04d}"


def idempotency(digest: str) -> str:
    return f"key/{digest}"


#: the prefix of context providers' memories of a user
MEMORIES = "memory/"


def memory(provider: str) -> str:
    return MEMORIES + plain(provider)


def tasks_of_session(session_id: str) -> str:
    """The prefix of the index of one session's tasks."""
    return f"session-tasks/{session_id}/"


def listings(head: Head) -> list[str]:
    """The keys of a task in the lists of its owner's tasks and of its session's tasks."""
    at, task_id = stamp(head.created_at), head.task_id
    return [f"tasks/{at}/{task_id}", f"{tasks_of_session(head.session_id)}{at}/{task_id}"]


#: the prefix of the list of one user's sessions, and of the notes on deletions of sessions
SESSIONS = "sessions/"


def session_by_creation(at: datetime, session_id: str) -> str:
    return f"{SESSIONS}{stamp(at)}/{session_id}"


def approval_by_creation(at: datetime, approval_id: str) -> str:
    return f"approvals/{stamp(at)}/{approval_id}"


def last_segment(key: str) -> str:
    return key.rsplit("/", 1)[1]
