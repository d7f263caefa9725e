"""Paths in a task's document: a request's begins behind its parent's, where it continues that.

Whole paths would make the document of a task that was often rolled back grow with the square of its turns:
each of these is one more pair in the path of all that come after it.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from tealagents.domain import paths
from tealagents.domain.models import Path, RequestRecord

#: whole paths that are remembered: the parent of a request is mostly one of the last that were made
REMEMBERED = 16


class Shortening:
    """Takes the parents' paths out of those of requests, which come in the order in which they began."""

    def __init__(self) -> None:
        #: where the path of each request ends, and its hash: together, whole paths would need gigabytes
        self._known: dict[str, tuple[int, int]] = {}

    def shortened(self, request: RequestRecord) -> RequestRecord:
        """The request, with what its path holds behind its parent's where that has more than one pair."""
        if not request.path:
            return request
        self._known[request.request_id] = request.path[-1][1], hash(request.path)
        end, parents = self._known.get(request.parent or "", (0, 0))
        common, own = paths.split(request.path, end)
        return replace(request, path=own) if own and len(common) > 1 and hash(common) == parents else request


class WholePaths:
    """The paths of a document's requests as they were before they were shortened."""

    def __init__(self, requests: Iterable[RequestRecord]) -> None:
        self._requests = {request.request_id: request for request in requests}
        self._remembered: dict[str, Path] = {}

    def whole(self, request: RequestRecord) -> Path:
        parts = []
        each: RequestRecord | None = request
        while each is not None:
            known = self._remembered.get(each.request_id)
            parts.append(each.path if known is None else known)
            each = self._continued(each) if known is None else None
        path = paths.joined(reversed(parts))
        self._remembered[request.request_id] = path
        if len(self._remembered) > REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return path

    def _continued(self, request: RequestRecord) -> RequestRecord | None:
        """The parent whose path the request's continues."""
        parent, path = self._requests.get(request.parent or ""), request.path
        if parent is not None and parent.path and path and path[0][0] > parent.path[-1][1]:
            return parent
        return None
