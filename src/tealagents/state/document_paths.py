"""Paths in a task's document: the path of a request that continues its parent's omits the parent's part.

With whole paths, the document of a task that was often rolled back would grow with the square of its turns:
each rollback adds a pair to the paths of all later requests.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from tealagents.domain import paths
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Path, RequestRecord

#: pairs in the cache of whole paths: a request's parent is mostly one of the last requests before it
REMEMBERED = 200_000
#: limits of a document: pairs in all its whole paths, and steps from requests to parents to restore them. If
#: each short path continued a long one, a document would take some hundred times its size in the store
MOST_PAIRS = 10_000_000
MOST_STEPS = 5_000_000


class Shortening:
    """Shortens the paths of requests, which must be given in the order in which they began."""

    def __init__(self) -> None:
        #: by request id, the end of its path and the path's hash: the paths themselves could take gigabytes
        self._known: dict[str, tuple[int, int]] = {}

    def shortened(self, request: RequestRecord) -> RequestRecord:
        """The request without its parent's part of the path, if that part has more than one pair."""
        if not request.path:
            return request
        self._known[request.request_id] = request.path[-1][1], hash(request.path)
        end, parents = self._known.get(request.parent or "", (0, 0))
        common, own = paths.split(request.path, end)
        return replace(request, path=own) if own and len(common) > 1 and hash(common) == parents else request


class WholePaths:
    """Restores the whole paths of a document's requests."""

    def __init__(self, requests: Iterable[RequestRecord]) -> None:
        self._requests = {request.request_id: request for request in requests}
        self._remembered: dict[str, Path] = {}
        self._pairs = self._steps = self._all = 0

    def whole(self, request: RequestRecord) -> Path:
        """A request's whole path. `InvalidRequest` once all paths exceed `MOST_PAIRS` or `MOST_STEPS`."""
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
        """The parent, if the request's path omits the parent's part."""
        parent, path = self._requests.get(request.parent or ""), request.path
        if parent is not None and parent.path and path and path[0][0] > parent.path[-1][1]:
            return parent
        return None
