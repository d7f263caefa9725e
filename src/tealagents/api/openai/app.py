"""The routes of OpenAI's API; what each path does is a function of its own."""

from starlette.requests import Request
from starlette.responses import Response

from tealagents.api.applications import Handler, application, routes
from tealagents.api.exchange import Exchange
from tealagents.api.http import json_response
from tealagents.api.names import unknown
from tealagents.api.openai import chat, conversations, errors, responses
from tealagents.api.protocols import Served
from tealagents.domain.models import Caller, Json

#: headers of answers that pages of other origins may see as well
_SHOWN = (chat.HEADER, "idempotent-replayed", "x-request-id", "x-should-retry")


async def _models(exchange: Exchange, _: Caller, __: Request, model: str | None = None) -> Response:
    """The agent is the one model there is."""
    name = exchange.agent.name
    found: Json = {"id": name, "object": "model", "created": 0, "owned_by": "tealagents"}
    if model not in (None, name):
        raise unknown("model", str(model))
    return json_response(found if model else {"object": "list", "data": [found]})


_RESPONSE, _CONVERSATION = "/responses/{response_id}", "/conversations/{conversation_id}"
_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/responses", responses.create),
    ("GET", _RESPONSE, responses.retrieve),
    ("DELETE", _RESPONSE, responses.delete),
    ("POST", _RESPONSE + "/cancel", responses.cancel),
    ("GET", _RESPONSE + "/input_items", responses.input_items),
    ("POST", "/conversations", conversations.create),
    ("GET", _CONVERSATION, conversations.retrieve),
    ("POST", _CONVERSATION, conversations.update),
    ("DELETE", _CONVERSATION, conversations.delete),
    ("GET", _CONVERSATION + "/items", conversations.list_items),
    ("POST", _CONVERSATION + "/items", conversations.add_items),
    ("GET", _CONVERSATION + "/items/{item_id}", conversations.retrieve_item),
    ("POST", "/chat/completions", chat.create),
    ("GET", "/models", _models),
    ("GET", "/models/{model}", _models),
)


def build(exchange: Exchange, path: str) -> Served:
    """OpenAI's API over an exchange, at `path`, which is what its clients take as `base_url`."""
    found, urls = routes(exchange, path, _ROUTES), {"base_url": path}
    unserved = [f"{path}/responses/{name}" for name in ("compact", "input_tokens")]
    return application(exchange, path, found, errors.respond, shown=_SHOWN, urls=urls, unserved=unserved)
