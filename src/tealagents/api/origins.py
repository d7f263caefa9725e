"""Which pages may call the service through the browsers of its users: a guard against DNS rebinding.

A page's origin must be known, and on loopback the name under which the service is called, too: else a page
anywhere could reach a service that only its user can reach.
"""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tealagents.api.http import rpc_refused
from tealagents.api.settings import ApiSettings
from tealagents.outbound.addresses import host_of, is_loopback, is_loopback_host, page_origin

_FOREIGN = "Pages of this origin may not call the service. The operator lists them in cors_origins."
_UNKNOWN = (
    "The service is not known under the name in Host. The operator sets it with TA_PUBLIC_URL; a proxy must "
    "pass on the client's Host."
)


class KnownOrigins:
    """Passes on requests that come from no page, or from a page of an allowed origin; refuses the others as
    JSON-RPC does."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._origins = set(settings.cors_origins)
        self._names: set[str] = set()
        if settings.public_url:
            self._origins.add(page_origin(settings.public_url))
            self._names.add(host_of(settings.public_url))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(Request(scope))
        await (refused or self._app)(scope, receive, send)

    def _refused(self, request: Request) -> Response | None:
        server, _ = request.scope.get("server") or ("", None)
        local = is_loopback_host(server)
        for origin in request.headers.getlist("origin"):
            if not self._origins & {origin, "*"} and not (local and is_loopback(origin)):
                return rpc_refused(403, _FOREIGN)
        name = host_of(f"//{request.headers.get('host', '')}")
        if local and not is_loopback_host(name) and name not in self._names:
            return rpc_refused(421, _UNKNOWN)
        return None


def with_cors(app: ASGIApp, settings: ApiSettings, *exposed: str, allowed: Sequence[str] = ("*",)) -> ASGIApp:
    """The application with CORS for the origins in the config.

    They see the headers `exposed`, besides those that every protocol has, and may send those `allowed`.
    """
    origins = list(settings.cors_origins)
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["*"],
        allow_headers=allowed,
        expose_headers=sorted(("retry-after", "www-authenticate", *exposed)),
    )
