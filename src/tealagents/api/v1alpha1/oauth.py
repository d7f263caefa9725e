"""Where an authorization server sends the browser of a user who was asked for consent."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tealagents.api import sse
from tealagents.api.v1alpha1.context import exchange_of
from tealagents.api.v1alpha1.routing import Routes
from tealagents.domain.errors import NotFound

routes = Routes(include_in_schema=False)


@routes.get("/oauth/callback")
async def oauth_callback(request: Request) -> Response:
    consents, given = exchange_of(request).settings.consents, request.query_params
    state, code = given.get("state"), given.get("code")
    if consents is None or not state or not (code or given.get("error")):
        raise NotFound("No authorization is in progress for this state. Resume the request for a new link.")
    if sse.HEAD in request.scope:  # a preview of the link must not spend it
        return PlainTextResponse()
    iss, server = given.get("iss"), given.get("server", "")
    if not code:
        why = given.get("error_description", "")
        said = await consents.refuse(state, given["error"], why, iss=iss, server=server)
        return PlainTextResponse(
            f"{said} Go back to the conversation and reject the request, or resume it for a new link."
        )
    name = await consents.complete(state, code, iss=iss, server=server)
    return PlainTextResponse(f"{name} is authorized. Go back to the conversation and approve the request.")
