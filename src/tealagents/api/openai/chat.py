"""Chat Completions, for front ends that know nothing else: one stretch of a request is one completion.

A client resends the whole history. It becomes a new conversation, or only its end is taken where the header
`X-Conversation-Id` names the conversation that it belongs to; each answer names its own.
"""

from typing import Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import bodies, stretches
from tealagents.api.decisions import asked
from tealagents.api.exchange import Exchange
from tealagents.api.http import json_response
from tealagents.api.openai import documents, errors, inputs, names, responses, sending
from tealagents.api.openai.documents import About
from tealagents.api.openai.fold import DONE, encode
from tealagents.api.openai.inputs import CallAnswer, CallAnswered, CreateResponse, Entry, Input
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
from tealagents.domain.models import Approval, Caller, Json, Usage

HEADER = "x-conversation-id"
#: parameters that would change what comes back, and what they may ask for; all others are ignored
_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("audio", "moderation", "web_search_options"), (None,)),
    **dict.fromkeys(("function_call", "tool_choice"), (None, "auto")),
    "functions": (None, []),
    "stop": (None, []),
    "logit_bias": (None, {}),
    "modalities": (None, ["text"]),
    "n": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "response_format": (None, {"type": "text"}),
}


async def create(exchange: Exchange, caller: Caller, request: Request) -> Response:
    value = await exchange.body(request)
    body, given = read(value, request.headers.get(HEADER))
    begun = await sending.send(exchange, caller, request, value, body, given)
    headers = {**begun.headers, HEADER: names.made("conv", begun.view.record.task_id)}
    about = documents.about(begun.stretch, exchange.agent.name)
    if body.stream:
        options = value.get("stream_options")
        chunks = Chunks(about, usage=isinstance(options, dict) and options.get("include_usage") is True)
        events = stretches.recorded(exchange, begun.stretch)
        return exchange.stream(begun.view, chunks, chunks.failed, headers=headers, events=events)
    stretch = await begun.ended(exchange, request)
    failure = stretch.record.error if responses.status_of(stretch) in ("failed", "cancelled") else None
    if failure is not None:
        return errors.respond_failure(failure, headers)
    chunks = Chunks(about)
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
        tools = [_flat(each) for each in tools]
    wanted = {"tools": tools, "conversation": conversation}
    kept = {name: value.get(name) for name in ("metadata", "stream")}
    body = bodies.validated(CreateResponse, {**wanted, **kept})
    return body, replace(given, earlier=()) if conversation is not None else given


def _entries(each: Json, where: str) -> list[Entry]:
    role, calls = each.get("role"), each.get("tool_calls") or []
    if role == "tool":
        output = inputs.output_of(each.get("content"), f"{where}.content")
        return [CallAnswered(str(each.get("tool_call_id")), CallAnswer(output=output), where)]
    said: list[Entry] = [] if calls and not each.get("content") else [inputs.message(each, where)]
    for call in calls if isinstance(calls, list) else [None]:
        if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
            raise InvalidRequest(f"{where}.tool_calls", "must be calls of functions")
        said.append(inputs.made(str(call.get("id")), call["function"]))
    return said


def _flat(tool: Any) -> Any:
    """A function tool, which holds in `function` what Responses say beside its type."""
    if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
        return {**tool["function"], "type": tool.get("type")}
    return tool


# --- what goes out -------------------------------------------------------------------------------


class Chunks:
    """The fold of one stretch: the chunks of its stream, and the completion that they add up to."""

    def __init__(self, about: About, *, usage: bool = False) -> None:
        self._about = about
        self._usage = usage
        self._frames: list[bytes] = []
        #: whether something was said since the last call of a tool
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
                self._say(text, refusal=refusal)
            case ToolCalled():
                self._said = False
            case Paused(approval) if approval is not None:
                self._paused(approval)
            case Completed(outcome) if outcome is not None:
                if outcome.output and not self._said:
                    self._say(outcome.output, refusal=outcome.finish_reason == "refusal")
                reason = outcome.finish_reason
                self._end(reason if reason in ("length", "content_filter") else "stop", outcome.usage)
            case Failed(failure) | Canceled(failure):
                self._frames += [b"data: %b\n\n" % encode(errors.of_failure(failure)), DONE]

    def failed(self, error: TealError) -> bytes:
        return b"data: %b\n\n%b" % (encode(errors.document(error)), DONE)

    def completion(self) -> Json:
        choice = {"index": 0, "message": self._message, "finish_reason": self._finish, "logprobs": None}
        return {**self._document("chat.completion"), "choices": [choice], "usage": self._spent}

    def _say(self, text: str, *, refusal: bool = False) -> None:
        """What is said behind a call of a tool stands apart from what was said before it."""
        where = "refusal" if refusal else "content"
        before = self._message[where] or ""
        shown = text if self._said or not before else f"\n\n{text}"
        self._said = True
        self._message[where] = before + shown
        self._chunk({where: shown})

    def _paused(self, approval: Approval) -> None:
        """Calls of the client's tools are its to make; what a person has to decide is reported."""
        items = [
            documents.client_call(approval, n) for n, call in enumerate(approval.calls) if call.by_client
        ]
        calls = [
            {
                "id": item["call_id"],
                "type": "function",
                "function": {"name": item["name"], "arguments": item["arguments"]},
            }
            for item in items
        ]
        if len(calls) < len(approval.calls):
            self._said = False
            self._say(asked(approval))
        if calls:
            self._message["tool_calls"] = calls
            self._chunk({"tool_calls": [{"index": n, **each} for n, each in enumerate(calls)]})
        self._end("tool_calls" if calls else "stop", approval.usage)

    def _end(self, finish: str, total: Usage) -> None:
        self._finish = finish
        spent = self._about.spent(total)
        self._spent = {name: getattr(spent, name) for name in spent.__struct_fields__}
        self._chunk({}, finish)
        if self._usage:
            self._send([], self._spent)
        self._frames.append(DONE)

    def _chunk(self, delta: Json, finish: str | None = None) -> None:
        self._send([{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}])

    def _send(self, choices: list[Json], usage: Json | None = None) -> None:
        chunk = {**self._document("chat.completion.chunk"), "choices": choices}
        self._frames.append(b"data: %b\n\n" % encode({**chunk, "usage": usage} if self._usage else chunk))

    def _document(self, kind: str) -> Json:
        about = self._about
        created, identifier = (
            int(about.created_at.timestamp()),
            names.made("chatcmpl", about.request_id, about.number),
        )
        return {"id": identifier, "object": kind, "created": created, "model": about.agent}
