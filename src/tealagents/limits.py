"""The bounds of a service: keys of the config file, variables, and what every part is given."""

from tealagents.options import Count, DrainSeconds, LeaseSeconds, Options, QueueLength, Seconds

__all__ = ["Limits"]


class Limits(Options):
    """Limits that keep one request, user or client from overloading the service. Each has a variable
    `TA_LIMITS__…`."""

    request_timeout_seconds: Seconds = 600
    """Seconds for a whole request, including waiting for its turn. They start again with each decision on a
    pause."""
    model_timeout_seconds: Seconds = 300
    """Seconds for one model call."""
    first_piece_timeout_seconds: Seconds = 60
    """Seconds until the first piece of the model's answer, including connecting and headers. For an answer
    that is not streamed, seconds for all of it."""
    piece_timeout_seconds: Seconds = 60
    """Seconds between two pieces of the model's answer."""
    max_tool_rounds: Count = 40
    """Rounds of tool calls that the model may request while answering one message."""
    tool_timeout_seconds: Seconds = 120
    """Seconds for one tool call."""
    max_body_bytes: Count = 20_000_000
    """Bytes of a request's body."""
    max_items: Count = 100
    """Items of one message."""
    max_concurrent_requests: Count = 1000
    """Requests that run at once in one process."""
    max_requests_per_user: Count = 100
    """Requests of one user that run at once in one process."""
    max_queued_requests: QueueLength = 1000
    """Requests that wait for their turn on one task (`concurrency: enqueue`); at most 2000."""
    keepalive_seconds: Seconds = 15
    """Seconds of silence on a stream after which a comment keeps it open."""
    idle_connection_seconds: Seconds = 75
    """Seconds that a connection stays open for its next request, or for the rest of one that stopped
    arriving. A client that reads nothing of an answer for that long, or of a stream for 60 seconds, is
    disconnected. Keep this longer than the proxy in front keeps idle connections open: 60 with nginx and
    AWS's load balancer."""
    drain_seconds: DrainSeconds = 20
    """Seconds that running requests get to finish after SIGTERM."""
    approval_expiry_seconds: Seconds = 86_400
    """Seconds that a tool call waits for approval."""
    lease_seconds: LeaseSeconds = 15
    """Seconds without a heartbeat after which a process counts as dead and its requests are released."""
