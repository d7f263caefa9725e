"""Probes. They answer whatever the load is, and need no token."""

import logging
import time

from starlette.requests import Request
from starlette.responses import Response

from tealagents import __version__
from tealagents.api.http import json_response
from tealagents.api.settings import Probe
from tealagents.api.v1alpha1 import schemas
from tealagents.api.v1alpha1.context import exchange_of
from tealagents.api.v1alpha1.routing import Routes
from tealagents.domain.errors import TealError
from tealagents.domain.models import Json

log = logging.getLogger(__name__)


routes = Routes(prefix="/health", tags=["health"])

_PUBLIC: Json = {"security": []}
_BEGAN = time.monotonic()


@routes.get(
    "",
    operation_id="health",
    summary="Status, version, uptime, dependencies",
    description="Always 200 while the process answers; `status` says how it is.",
    response_model=schemas.Health,
    openapi_extra=_PUBLIC,
)
async def health(request: Request) -> Response:
    return json_response(await _document(request))


@routes.get(
    "/live",
    operation_id="live",
    summary="Whether the process answers",
    description="200 as long as the process runs, even while it drains.",
    openapi_extra=_PUBLIC,
    responses={200: {"content": {"application/json": {"schema": {"type": "object"}}}}},
)
async def live(request: Request) -> Response:
    return json_response({"status": "ok"})


@routes.get(
    "/ready",
    operation_id="ready",
    summary="Whether the process takes messages",
    description=(
        "503 while the store cannot be reached or written, while the process cannot renew its lease, "
        "and while it drains."
    ),
    response_model=schemas.Health,
    responses={503: {"model": schemas.Health, "description": "Not ready"}},
    openapi_extra=_PUBLIC,
)
async def ready(request: Request) -> Response:
    body = await _document(request)
    store = body["dependencies"].get("store", {"status": "ok"})
    well = body["status"] != "draining" and store["status"] == "ok"
    return json_response(body, status=200 if well else 503)


async def _document(request: Request) -> Json:
    exchange = exchange_of(request)
    found = {name: await _probe(probe) for name, probe in exchange.settings.dependencies.items()}
    well = all(item["status"] == "ok" for item in found.values())
    status = "draining" if exchange.service.admission.draining else "ok" if well else "degraded"
    return {
        "status": status,
        "version": __version__,
        "uptime": round(time.monotonic() - _BEGAN, 3),
        "dependencies": found,
    }


async def _probe(probe: Probe) -> Json:
    try:
        details = await probe()
    except TealError as error:
        log.warning("health: %s", error)  # names hosts, which callers of this must not learn
        return {"status": "unavailable", "detail": "It cannot be used at present. See the service's log."}
    return {"status": "ok", **details}
