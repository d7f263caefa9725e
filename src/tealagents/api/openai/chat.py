"""Chat Completions, for front ends that know nothing else: one stretch of a request is one completion.

A client resends the whole history. It becomes a new conversation, or only its end is taken where the header
`X-Conversation-Id` names the conversation that it belongs to; each answer names its own.
"""

from typing import Any

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from tealagents.api import bodies, items, replay, resent, sse, stretches
from tealagents.api.decisions import pause_text
from tealagents.api.exchange import Exchange, key_in
from tealagents.api.folding import EventFold
from tealagents.api.http import json_response
from tealagents.api.names import made, short
from tealagents.api.openai import errors, inputs, responses
from tealagents.api.openai.fold import DONE
from tealagents.api.openai.inputs import CreateResponse
from tealagents.api.resent import Entry, Resent
from tealagents.api.stretches import Stretch
from tealagents.domain.models import Approval, Caller, Failure, Json, Outcome, TokenUsage

HEADER = "X-Conversation-Id"
_SENT = {"text.format.type": "response_format.type", "text.format": "response_format.json_schema"}
_SENT |= {f"tools.*.{name}": f"tools.*.function.{name}" for name in ("name", "description", "parameters")}


@bodies.fields_as(**dict.fromkeys(("items", "earlier", "input"), "messages"), conversation=HEADER, **_SENT)
async def create(exchange: Exchange, caller: Caller, request: Request) -> Response:
    value = await exchange.body(request)
    body, given = read(value, conversation := request.headers.get(HEADER))
    key = key_in(caller, request, [value, conversation])
    stretch = await responses.send(exchange, caller, key, body, given)
    headers = {**responses.headers_of(stretch), HEADER: made("conv", stretch.record.task_id)}
    chunks = Chunks(stretch, exchange.agent.name)
    if body.stream:
        chunks.with_usage = bodies.flat({"": value.get("stream_options")}, "").get("include_usage") is True
        return replay.stream(exchange, stretch, chunks, headers, forgets=True)
    async with stretches.settled(exchange, stretch, request.receive) as stretch:
        if stretch.failure is not None:
            return errors.respond_failure(stretch.failure, headers)
        return json_response((await replay.folded(exchange, stretch, chunks)).completion, headers=headers)


def read(value: Any, conversation: str | None) -> tuple[CreateResponse, Resent]:
    """The body of a completion, as that of a response."""
    bodies.refuse_unless(value, inputs.ONLY)
    messages = bodies.objects(value.get("messages"), "messages")
    entries = [entry for n, each in enumerate(messages) for entry in _entries(each, f"messages.{n}")]
    given = resent.taken_apart(entries, "messages")
    wanted = {
        "tools": inputs.tools(value.get("tools")),
        "text": {"format": bodies.flat(value.get("response_format"), "json_schema")},
        "conversation": conversation,
        **{name: value.get(name) for name in ("metadata", "store", "stream", "tool_choice")},
    }
    body = bodies.validated(CreateResponse, wanted)
    return body, given.calls_only if conversation is not None else given


def _entries(each: Json, where: str) -> list[Entry]:
    if each.get("role") == "tool":
        return [inputs.returned(each, where, "tool_call_id", "content")]
    field, wanted = f"{where}.tool_calls", "calls of functions"
    calls = bodies.objects(each.get("tool_calls") or [], field, wanted)
    functions = bodies.objects([call.get("function") for call in calls], field, wanted)
    said: list[Entry] = [] if calls and not each.get("content") else [inputs.message(each, where)]
    return [*said, *(inputs.made(str(call.get("id")), of) for call, of in zip(calls, functions, strict=True))]


class Chunks(EventFold):
    """The fold of one stretch: the chunks of its stream, and the completion that they add up to."""

    def __init__(self, stretch: Stretch, agent: str) -> None:
        super().__init__()
        self._stretch = stretch
        #: whether the stream reports what was used
        self.with_usage = False
        identifier = made("chatcmpl", stretch.record.request_id, stretch.number)
        head: Json = {"id": identifier, "created": int(stretch.created_at.timestamp()), "model": agent}
        self._chunk_head: Json = {**head, "object": "chat.completion.chunk"}
        self._message: Json = {"role": "assistant", "content": None, "refusal": None}
        self._texts: dict[str, list[str]] = {}  # joined at the end: to add to a text copies it
        self._choice = {"index": 0, "message": self._message, "finish_reason": "stop", "logprobs": None}
        #: what the chunks add up to
        self.completion = {**head, "object": "chat.completion", "choices": [self._choice], "usage": None}

    def started(self, status: str) -> None:
        self._chunk({"role": "assistant", "content": None})  # an empty text would show before a call

    def text(self, text: str, *, refusal: bool) -> None:
        """What is said behind a call of a tool stands apart from what was said before it."""
        where = "refusal" if refusal else "content"
        texts = self._texts.setdefault(where, [])
        texts.append(text if self.said or not any(texts) else f"\n\n{text}")
        self._chunk({where: texts[-1]})

    def paused(self, approval: Approval) -> None:
        """Calls of the client's tools are its to make; what waits for human approval is reported."""
        calls = [  # OpenAI's names have up to 40 characters, and some clients rename what is longer
            items.function_call(short(made("call", approval.approval_id, n)), call)
            for n, call in enumerate(approval.calls)
            if call.by_client
        ]
        if len(calls) < len(approval.calls):
            self.say(pause_text(approval), refusal=self._stretch.typed)  # the SDKs parse no refusal
        for n, each in enumerate(calls):  # OpenAI sends one at a time, and some clients read but the first
            self._message.setdefault("tool_calls", []).append(each)
            self._chunk({"tool_calls": [{"index": n, **each}]})
        self._end("tool_calls" if calls else "stop", approval.usage)

    def completed(self, outcome: Outcome) -> None:
        if not self._texts:
            self.text("", refusal=False)
        reason = outcome.finish_reason
        self._end(reason if reason in ("length", "content_filter") else "stop", outcome.usage)

    def ended(self, failure: Failure, *, canceled: bool) -> None:
        self.frames += [sse.data(errors.of_failure(failure)), DONE]

    def _end(self, finish: str, total: TokenUsage) -> None:
        self._message |= {where: "".join(texts) for where, texts in self._texts.items()}
        self._choice["finish_reason"] = finish
        self.completion["usage"] = spent = asdict(self._stretch.spent(total))
        self._chunk({}, finish)
        if self.with_usage:
            self._send([], spent)
        self.frames.append(DONE)

    def _chunk(self, delta: Json, finish: str | None = None) -> None:
        self._send([{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}])

    def _send(self, choices: list[Json], usage: Json | None = None) -> None:
        chunk = {**self._chunk_head, "choices": choices}
        self.frames.append(sse.data({**chunk, "usage": usage} if self.with_usage else chunk))
