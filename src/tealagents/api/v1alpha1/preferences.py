"""How a client wants its answer: as JSON, as a stream, or in the background."""

import re
from typing import Literal

from starlette.requests import Request

Way = Literal["json", "sse", "background"]

#: a preference of its own, not a parameter of another one (RFC 7240, section 2)
_RESPOND_ASYNC = re.compile(r"(?:^|,)\s*respond-async\s*(?:$|[,;])", re.IGNORECASE)
#: a quoted value, which may contain what looks like another preference. An unterminated one extends to the
#: end of the header: searching for its end again after each quote would take seconds
_QUOTED = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def way_of(request: Request) -> Way:
    """How the client wants the answer, from `Accept` and `Prefer`."""
    accept = ",".join(request.headers.getlist("accept"))
    if "text/event-stream" in accept.lower() and _prefers_events(accept):
        return "sse"
    prefer = ",".join(request.headers.getlist("prefer"))
    if _RESPOND_ASYNC.search(_QUOTED.sub("", prefer)):
        return "background"
    return "json"


def _prefers_events(accept: str) -> bool:
    """Whether `text/event-stream` is named at least as high as JSON."""
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, _, parameters = part.partition(";")
        weights[name.strip()] = _weight(parameters)
    events = weights.get("text/event-stream", 0.0)
    plain = next(
        (weights[name] for name in ("application/json", "application/*", "*/*") if name in weights), 0.0
    )
    return events > 0 and events >= plain


def _weight(parameters: str) -> float:
    match = re.search(r"(?:^|;)\s*q\s*=\s*([0-9.]+)", parameters)
    try:
        return float(match[1]) if match else 1.0
    except ValueError:
        return 0.0
