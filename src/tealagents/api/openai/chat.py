"""Chat Completions, for front ends that know nothing else: one stretch of a request is one completion.

A client resends the whole history. It becomes a new conversation, or only its end is taken where the header
`X-Conversation-Id` names the conversation that it belongs to; each answer names its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tealagents.api import bodies
from tealagents.api.exchange import Exchange
from tealagents.api.http import json_response
from tealagents.api.openai import documents, errors, inputs, names, responses, sending, stretches
from tealagents.api.openai.documents import About
from tealagents.api.openai.fold import DONE
from tealagents.api.openai.inputs import Answer, Answered, CreateResponse, Entry, Input
from tealagents.domain.errors import InvalidRequest, TealError
from tealagents.domain.events import (
    Canceled,
    Completed,
    Event,
    Failed,
    Paused,
    Recorded,
    Started,
    TextDelta,
    ToolCalled,
)
from tealagents.domain.models import Approval, Json, Usage

HEADER = "x-conversation-id"
#: parameters that would change what comes back, and what they may ask for; all others are ignored
_ONLY: Mapping[str, Sequence[Any]] = {
    "audio": (None,),
    "function_call": (None, "auto"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "n": (None, 1),
    "response_format": (None, {"type": "text"}),
    "stop": (None, []),
    "tool_choice": (None, "auto"),
    "top_logprobs": (None, 0),
    "web_search_options": (None,),
}
_FINISHED = {"length": "length", "content_filter": "content_filter"}
_encode = msgspec.json.Encoder().encode


def routes(exchange: Exchange, path: str) -> list[Route]:
    async def create(request: Request) -> Response:
        return await complete(exchange, request)

    return [Route(f"{path}/chat/completions", create, methods=["POST"])]


async def complete(exchange: Exchange, request: Request) -> Response:
    caller = await exchange.identify(request)
    value = await exchange.body(request)
    body, given = read(value, request.headers.get(HEADER))
    way = sending.Way(streamed=bool(body.stream), key=sending.key(request, value))
    begun = await sending.send(exchange, caller, body, given, way)
    stretch = await stretches.cut(exchange, begun.view, begun.number)
    headers = {
        **responses.answer_headers(stretch),
        HEADER: names.conversation(begun.view.record.task_id),
    }
    if body.stream:
        options = value.get("stream_options") or {}
        chunks = Chunks(stretch.about(exchange), usage=bool(options.get("include_usage")))
        recorded = stretches.recorded(exchange, stretch)
        return exchange.stream(begun.view, chunks, chunks.failed, headers=headers, events=recorded)
    record = await exchange.outcome(begun.view, request.receive)
    stretch = await stretches.cut(exchange, replace(begun.view, record=record), begun.number)
    if record.error is not None and stretch.pause is None:
        return errors.respond_failure(record.error, headers)
    chunks = Chunks(stretch.about(exchange))
    for event in await stretches.told(exchange, stretch):
        chunks.take(event)
    return json_response(chunks.completion(), headers=headers)


# --- what comes in -------------------------------------------------------------------------------


def read(value: Any, conversation: str | None) -> tuple[CreateResponse, Input]:
    """The body of a completion, as that of a response."""
    if not isinstance(value, dict):
        raise InvalidRequest("body", "must be a JSON object")
    inputs.check_only(value, _ONLY)
    messages = value.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise InvalidRequest("messages", "must be an array of messages")
    entries = [entry for n, each in enumerate(messages) for entry in _entries(each, f"messages.{n}")]
    given = inputs.combine(entries, "messages")
    tools = value.get("tools")
    if isinstance(tools, list):
        tools = [_tool(each) for each in tools]
    wanted = {"tools": tools, **{name: value.get(name) for name in ("metadata", "stream")}}
    body = bodies.validated(CreateResponse, {**wanted, "conversation": conversation})
    return body, replace(given, earlier=()) if conversation is not None else given


def _entries(each: Json, where: str) -> list[Entry]:
    role = each.get("role")
    if role == "tool":
        output = inputs.output_of(each.get("content"), f"{where}.content")
        return [Answered(str(each.get("tool_call_id")), Answer(output=output), where)]
    if role != "assistant":
        return [inputs.message(each, where)]
    said: list[Entry] = [] if not each.get("content") else [inputs.message(each, where)]
    for call in each.get("tool_calls") or []:
        if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
            raise InvalidRequest(f"{where}.tool_calls", "must be calls of functions")
        said.append(inputs.made(str(call.get("id")), call["function"]))
    return said


def _tool(given: Any) -> Any:
    """A function tool, which holds in `function` what Responses say flat."""
    if isinstance(given, dict) and isinstance(given.get("function"), dict):
        return {**given["function"], "type": given.get("type")}
    return given


# --- what goes out -------------------------------------------------------------------------------


class Chunks:
    """The fold of one stretch: the chunks of its stream, and the completion that they add up to."""

    def __init__(self, about: About, *, usage: bool = False) -> None:
        self._about = about
        self._usage = usage
        self._frames: list[bytes] = []
        #: what is said next stands apart from what was said before a call
        self._apart = False
        self._said = False
        self._message: Json = {"role": "assistant", "content": None, "refusal": None}
        self._finish = "stop"
        self._spent: Json | None = None

    def __call__(self, recorded: Recorded) -> bytes:
        self._frames = []
        self.take(recorded.event)
        return b"".join(self._frames)

    def take(self, event: Event) -> None:
        match event:
            case Started():
                self._chunk({"role": "assistant", "content": ""})
            case TextDelta(text, refusal):
                self._say(text, "refusal" if refusal else "content")
            case ToolCalled():
                self._apart, self._said = self._message["content"] is not None, False
            case Paused(approval) if approval is not None:
                self._paused(approval)
            case Completed(outcome) if outcome is not None:
                if not self._said and outcome.output:
                    self._say(outcome.output, "refusal" if outcome.finish_reason == "refusal" else "content")
                self._end(_FINISHED.get(outcome.finish_reason or "", "stop"), outcome.usage)
            case Failed(failure) | Canceled(failure):
                self._frames += [b"data: %b\n\n" % _encode(errors.of_failure(failure)), DONE]

    def failed(self, error: TealError) -> bytes:
        return b"data: %b\n\n" % _encode(errors.document(error)) + DONE

    def completion(self) -> Json:
        return {
            **self._document("chat.completion"),
            "choices": [
                {"index": 0, "message": self._message, "finish_reason": self._finish, "logprobs": None}
            ],
            "usage": self._spent,
        }

    def _say(self, text: str, where: str) -> None:
        if self._apart:
            text, self._apart = "\n\n" + text, False
        self._said = True
        self._message[where] = (self._message[where] or "") + text
        self._chunk({where: text})

    def _paused(self, approval: Approval) -> None:
        """Calls of the client's tools are its to make; what a person has to decide is told."""
        calls = [
            {"id": item["call_id"], "type": "function", "function": function(item)}
            for n, call in enumerate(approval.calls)
            if call.by_client
            for item in [documents.client_call(approval, n)]
        ]
        if len(calls) < len(approval.calls):
            links = [f"{each['server']}: {each['url']}" for each in approval.authorizations]
            self._apart = self._message["content"] is not None
            self._say("\n".join([approval.message, *links]), "content")
        if calls:
            self._message["tool_calls"] = calls
            self._chunk({"tool_calls": [{"index": n, **each} for n, each in enumerate(calls)]})
        self._end("tool_calls" if calls else "stop", approval.usage)

    def _end(self, finish: str, total: Usage) -> None:
        self._finish = finish
        spent = self._about.spent(total)
        self._spent = {
            "prompt_tokens": spent.prompt_tokens,
            "completion_tokens": spent.completion_tokens,
            "total_tokens": spent.total_tokens,
        }
        self._chunk({}, finish)
        if self._usage:
            self._send([], self._spent)
        self._frames.append(DONE)

    def _chunk(self, delta: Json, finish: str | None = None) -> None:
        self._send([{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}], None)

    def _send(self, choices: list[Json], usage: Json | None) -> None:
        chunk = {**self._document("chat.completion.chunk"), "choices": choices}
        self._frames.append(b"data: %b\n\n" % _encode({**chunk, "usage": usage} if self._usage else chunk))

    def _document(self, kind: str) -> Json:
        about = self._about
        return {
            "id": names.item("chatcmpl", about.request_id, about.number),
            "object": kind,
            "created": int(about.created_at.timestamp()),
            "model": about.agent,
        }


def function(item: Json) -> Json:
    return {"name": item["name"], "arguments": item["arguments"]}
