"""Every route of a service, found in its applications: what is generated from them forgets none."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from starlette.routing import BaseRoute, Route, Router
from wire import NOBODYS

from tealagents.api import protocols
from tealagents.testing.service import ServiceThread

#: the protocols that are served beside v1alpha1
PROTOCOLS = tuple(name for name in protocols.PROTOCOLS if "/" not in name)
#: where each protocol is below the agent's prefix, v1alpha1 included
PATHS = tuple(path for path, _ in protocols.PROTOCOLS.values())
#: routes that need no token
PUBLIC = frozenset(
    {
        "GET /",
        "GET /docs",
        "GET /docs/{name}",
        "GET /openapi.json",
        "GET /health",
        "GET /health/live",
        "GET /health/ready",
        "GET /oauth/callback",
        "GET /a2a/.well-known/agent-card.json",
        "GET /.well-known/agent-card.json",
        *(f"GET /.well-known/oauth-protected-resource{path}" for path in (*PATHS, "/{path:path}")),
    }
)


class Place(NamedTuple):
    """A route: `POST /tasks/{task_id}/rollback`, and the path of the protocol that it belongs to."""

    name: str
    protocol: str

    @property
    def method(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def path(self) -> str:
        """Below the agent's prefix, with ids that nothing has."""
        path = self.name.partition(" ")[2].replace("/{path:path}", "")
        for name in ("{model}", "{push_id}"):
            path = path.replace(name, "x")
        head, *rest = path.split("{")
        return head + "".join(NOBODYS + part.partition("}")[2] for part in rest)


def places(service: ServiceThread) -> list[Place]:
    """The routes of every protocol, those of the root included."""
    found = []
    for served in (service.app.base, *service.app._others):
        below = served.path.removeprefix(service.prefix)
        for method, path in (*_of(served.app), *_listed(served.discovery)):
            found.append(Place(f"{method} {path.replace(service.prefix, '', 1)}", below))
    assert len(found) == len(set(found))
    return sorted(found)


def guarded_places(service: ServiceThread) -> list[Place]:
    """The routes that ask for a token."""
    return [place for place in places(service) if place.name not in PUBLIC]


def _of(app: Any) -> Iterator[tuple[str, str]]:
    """The routes of an application, whatever it is wrapped in."""
    if hasattr(app, "routes"):
        yield from _listed(app.routes)
        router = app if isinstance(app, Router) else app.router
        if router.default != router.not_found:
            yield from _of(router.default)
    elif inner := getattr(app, "app", None) or getattr(app, "_app", None):
        yield from _of(inner)


def _listed(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        assert isinstance(route, Route)
        # a route that takes every method is MCP's
        for method in sorted(route.methods or {"GET", "POST", "DELETE"}):
            if method != "HEAD":
                yield method, route.path
