"""The routes of the model service, independent of an HTTP server.

`OfflineService.answer` takes a request and returns a `Delivery`. It raises `ServiceError` for what the real
service refuses.
"""

import re
import time
from typing import Any
from urllib.parse import parse_qsl

import orjson

from tealagents.llm.offline import chat, responses
from tealagents.llm.offline.answer import ModelAnswer
from tealagents.llm.offline.delivery import JSON_TYPE, Delivery, whole
from tealagents.llm.offline.errors import ServiceError, invalid, not_found
from tealagents.llm.offline.ids import IdSource
from tealagents.llm.offline.items import listing
from tealagents.llm.offline.playback import Playback, RefusedCall
from tealagents.llm.offline.prompt import ModelPrompt
from tealagents.llm.offline.script import Script, ScriptedError
from tealagents.llm.offline.stored import ResponsesStore, StoredConversation, new_items

_AZURE_DEPLOYMENT = re.compile(r"/openai/deployments/([^/]+)/(.*)", re.DOTALL)
_PREFIX = re.compile(r"(?:/openai)?(?:/v1)?/")
_MODEL = {"id": "offline", "object": "model", "created": 1735689600, "owned_by": "tealagents"}
_KNOWN_PATHS = ("chat", "responses", "conversations", "models")


class OfflineService:
    def __init__(self, script: Script) -> None:
        self._playback = Playback(script)
        self._stored = ResponsesStore()
        self.ids = IdSource()

    def play(self, script: Script) -> None:
        """Replaces the script, and starts the new one from its beginning."""
        self._playback = Playback(script)

    def answer(self, method: str, path: str, query: str, body: bytes) -> Delivery:
        asked, deployment = _canonical(path, query)
        match [method, *asked.split("/")]:
            case ["POST", "chat", "completions"]:
                return self._chat(_decoded(body), deployment)
            case ["POST", "responses"]:
                return self._respond(_decoded(body))
            case [_, "responses", response_id, *rest]:
                return self._kept_response(method, response_id, rest, dict(parse_qsl(query)))
            case ["POST", "conversations"]:
                return self._new_conversation(_decoded(body) if body else {})
            case [_, "conversations", conversation_id, *rest]:
                conversation = self._stored.conversation(conversation_id)
                return self._conversation(method, conversation, rest, dict(parse_qsl(query)), body)
            case ["GET", "models"]:
                return _json({"object": "list", "data": [_MODEL]})
            case ["GET", "models", model]:
                return _json({**_MODEL, "id": model})
        raise _no_route(method, path, asked)

    def _chat(self, body: dict[str, Any], deployment: str | None) -> Delivery:
        request = chat.read_request(body, deployment)
        reply = self._reply(request.prompt)
        if isinstance(reply, RefusedCall):
            return _refusal(reply)
        return chat.deliver(request, reply, self.ids, int(time.time()))

    def _respond(self, body: dict[str, Any]) -> Delivery:
        request = responses.read_request(body, self._stored, self.ids)
        reply = self._reply(request.prompt)
        if isinstance(reply, RefusedCall):
            return _refusal(reply)
        return responses.deliver(request, reply, self._stored, self.ids, int(time.time()))

    def _reply(self, prompt: ModelPrompt) -> ModelAnswer | RefusedCall:
        reply = self._playback.reply_to(prompt)
        return reply.within(prompt.max_tokens) if isinstance(reply, ModelAnswer) else reply

    def _kept_response(
        self, method: str, response_id: str, rest: list[str], query: dict[str, str]
    ) -> Delivery:
        kept = self._stored.response(response_id)
        match [method, *rest]:
            case ["GET"]:
                return _json(kept.body)
            case ["DELETE"]:
                self._stored.responses.remove(response_id)
                return _json({"id": response_id, "object": "response", "deleted": True})
            case ["GET", "input_items"]:
                return _json(listing(kept.context(), query))
            case ["POST", "cancel"]:
                raise invalid("Cannot cancel a synchronous response.")
        raise _no_route(method, f"/v1/responses/{response_id}/{'/'.join(rest)}", "responses")

    def _new_conversation(self, body: dict[str, Any]) -> Delivery:
        conversation = StoredConversation(
            {
                "id": self.ids.new("conv_"),
                "object": "conversation",
                "created_at": int(time.time()),
                "metadata": body.get("metadata") or {},
            },
            new_items(body.get("items") or [], self.ids),
        )
        self._stored.conversations.put(conversation.body["id"], conversation)
        return _json(conversation.body)

    def _conversation(
        self,
        method: str,
        conversation: StoredConversation,
        rest: list[str],
        query: dict[str, str],
        body: bytes,
    ) -> Delivery:
        conversation_id = conversation.body["id"]
        match [method, *rest]:
            case ["GET"]:
                return _json(conversation.body)
            case ["POST"]:
                conversation.body["metadata"] = _decoded(body).get("metadata") or {}
                return _json(conversation.body)
            case ["DELETE"]:
                self._stored.conversations.remove(conversation_id)
                return _json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})
            case ["GET", "items"]:
                return _json(listing(conversation.items, query))
            case ["POST", "items"]:
                added = conversation.add(_decoded(body).get("items") or [], self.ids)
                return _json(listing(added, {"order": "asc"}))
            case ["GET", "items", item_id]:
                return _json(conversation.item(item_id))
            case ["DELETE", "items", item_id]:
                conversation.items.remove(conversation.item(item_id))
                return _json(conversation.body)
        raise _no_route(method, f"/v1/conversations/{conversation_id}/{'/'.join(rest)}", "conversations")


def _canonical(path: str, query: str) -> tuple[str, str | None]:
    """The path without its prefix, and the deployment if it is a path of Azure's dated API."""
    azure = _AZURE_DEPLOYMENT.match(path)
    if azure is None:
        prefix = _PREFIX.match(path)
        return path[prefix.end() :] if prefix else path, None
    if "api-version=" not in query:
        raise ServiceError(404, "Resource not found", type="invalid_request_error", code="404")
    return azure[2], azure[1]


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        decoded = None
    if not isinstance(decoded, dict):
        raise invalid("We could not parse the JSON body of your request: a JSON object is expected.")
    return decoded


def _json(body: dict[str, Any]) -> Delivery:
    return whole(orjson.dumps(body))


def _refusal(refused: RefusedCall) -> Delivery:
    body, content_type = _error_body(refused.error)
    headers = {"content-type": content_type, **{k.lower(): v for k, v in refused.error.headers.items()}}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    delivery = whole(body, status=refused.error.status, headers=encoded)
    delivery.headers_delay = refused.delay
    return delivery


def _error_body(error: ScriptedError) -> tuple[bytes, str]:
    usual_type = JSON_TYPE[1].decode()
    if error.body is None:
        usual = ServiceError(error.status, error.message, type=error.type, code=error.code)
        return usual.encoded(), error.content_type or usual_type
    if isinstance(error.body, str):
        return error.body.encode(), error.content_type or "text/html; charset=utf-8"
    return orjson.dumps(error.body), error.content_type or usual_type


def _no_route(method: str, path: str, asked: str) -> ServiceError:
    if asked.split("/")[0] in _KNOWN_PATHS and method not in ("GET", "POST", "DELETE"):
        return ServiceError(
            405,
            f"Not allowed to {method} on {path}. (HINT: Perhaps you meant to use a different HTTP method?)",
            type="invalid_request_error",
            code="method_not_supported",
        )
    return not_found(
        f"Unknown request URL: {method} {path}. Please check the URL for typos.", code="unknown_url"
    )
