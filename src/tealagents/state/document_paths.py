"""Paths in a task's document: a request's begins behind its parent's, where it continues that.

Whole paths would make the document of a task that was often rolled back grow with the square of its turns:
each of these is one more pair in the path of all that come after it.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from tealagents.domain import paths
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Path, RequestRecord

#: pairs of whole paths that are remembered: the parent of a request is mostly one of the last that were made
REMEMBERED = 200_000
#: pairs in the paths of all requests of a document, and parents that may be looked at to find them: if each
#: of its short paths continued a long one, a document would store some hundred times its size
MOST_PAIRS = 10_000_000
MOST_STEPS = 5_000_000


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
        self._pairs = self._steps = self._all = 0

    def whole(self, request: RequestRecord) -> Path:
        """That of one. `InvalidRequest` if those of all are longer, or take more to find, than a task's."""
        parts = []
        each: RequestRecord | None = request
        while each is not None:
            known = self._remembered.get(each.request_id)
            parts.append(each.path if known is None else known)
            each = self._continued(each) if known is None else None
        path = paths.joined(reversed(parts))
        self._steps += len(parts)
        self._all += len(path)
        if self._steps > MOST_STEPS or self._all > MOST_PAIRS:
            raise InvalidRequest("requests", f"have paths of more than {MOST_PAIRS} pairs in all")
        self._remember(request.request_id, path)
        return path

    def _remember(self, request_id: str, path: Path) -> None:
        self._remembered[request_id] = path
        self._pairs += len(path)
        while self._pairs > REMEMBERED:
            self._pairs -= len(self._remembered.pop(next(iter(self._remembered))))

    def _continued(self, request: RequestRecord) -> RequestRecord | None:
        """The parent whose path the request's continues."""
        parent, path = self._requests.get(request.parent or ""), request.path
        if parent is not None and parent.path and path and path[0][0] > parent.path[-1][1]:
            return parent
        return None
