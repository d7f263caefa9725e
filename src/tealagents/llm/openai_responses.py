"""The Responses API: `POST /responses`, and the conversations that the service keeps.

With `store` (the default), the service keeps the conversation: each call sends only what is new, and the id
of what it continues, a response (`resp_…`, with the chain of responses before it) or a conversation
(`conv_…`). Without `store`, each call sends the whole history, as with chat completions.

The system prompt is not part of a stored conversation. It is the first element of `ModelCall.prompt`
(`encode_system`), and is sent as `instructions` with every call. Later system messages are sent as messages.
"""

import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote

import orjson

from tealagents.domain.errors import ModelFailed, RemoteThreadLost, RunFailure
from tealagents.domain.events import ModelDone, ModelEvent
from tealagents.domain.models import Json, Message, ResponseFormat, ToolCall, ToolChoice
from tealagents.domain.ports import ModelCall, ToolSpec
from tealagents.llm.adjustments import NO_ADJUSTMENTS, Adjustments, joined
from tealagents.llm.encoding import (
    Shape,
    answer_text,
    arguments,
    call_id,
    compact,
    format_fields,
    other_id,
    to_json,
    user_text,
    valid_name,
)
from tealagents.llm.failures import AttemptFailed, Complaint, quoted, unusable
from tealagents.llm.native import returned, source_of
from tealagents.llm.options import OpenAIOptions
from tealagents.llm.responses_reading import (
    CALL,
    CONVERSATION,
    TEXT,
    ResponsesReading,
    StoredItem,
    messages_of,
    read_page,
    read_stored,
)
from tealagents.llm.service import ModelRequest, ModelService

#: the bytes of system and user messages before their content, by which they are recognized without parsing
_SYSTEM, _USER = (b'{"type":"message","role":"%s","content":' % role for role in (b"system", b"user"))

#: the service's error codes for a conversation that it no longer has
_LOST_CODES = frozenset({"previous_response_not_found", "conversation_not_found", "response_not_found"})
#: the refusal to delete a response without its conversation, as another agent of tealagents words it
_HELD = re.compile(r"It is part of (conv_[\w-]+)", re.ASCII)

#: names of reasoning models
_REASONING_FAMILY = re.compile(r"(?:.*/)?(?:o\d|gpt-5(?!.*-chat))", re.IGNORECASE)

#: the query for a page of a conversation; OpenAI omits the URLs of images unless they are asked for
_PAGE = "order=asc&limit=100&include%5B%5D=message.input_image.image_url"
#: the most items of a conversation that are listed, in case a service always says that there are more
_MOST_ITEMS = 100_000


class OpenAIResponsesOptions(OpenAIOptions):
    #: True if the service keeps conversations (`kind: remote`); False: each call sends the whole history
    store: bool = True


class OpenAIResponses:
    """A model with the Responses API. Implements the ports `Model` and `RemoteConversations`."""

    Options: ClassVar = OpenAIResponsesOptions

    def __init__(self, options: OpenAIResponsesOptions) -> None:
        self.name = options.model
        self.provider: str = options.provider
        self.supports_remote_threads = options.store
        self._source = source_of("openai-responses", options)
        self._secrets = options.secrets()
        self._service = ModelService(options)
        self._head = b'{"model":' + to_json(options.called_model)
        self._tail = _settings(options)

    def encode_system(self, text: str) -> bytes:
        return _SYSTEM + to_json(text) + b"}"

    def encode(self, message: Message) -> bytes:
        """The message as one item; as an array of items for an assistant message with tool calls."""
        items = list(_sent_items(message, self._source))
        return compact(to_json(items[0] if len(items) == 1 else items))

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        return compact(to_json([_tool(tool) for tool in tools])) if tools else b""

    def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        kept = call.remote_id is not None and call.remote_id.startswith(CONVERSATION)
        return self._service.events(
            ModelRequest("/responses", partial(self._body, call), call.headers, call.stream, kept),
            reading=lambda: ResponsesReading(self._secrets, call.remote_id, self._source, call.response_ids),
            meaning=lambda said: self._meaning(said, call.remote_id),
        )

    async def __aenter__(self) -> "OpenAIResponses":
        await self._service.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._service.__aexit__(*exc)

    def _body(self, call: ModelCall, adjusted: Adjustments = NO_ADJUSTMENTS) -> bytes:
        prompt: Sequence[bytes] = call.prompt
        if adjusted.order:
            continued = call.remote_id is not None
            prompt = joined(prompt, system=_SYSTEM, user=_USER, text="input_text", continued=continued)
        if adjusted.unsealed:
            prompt = list(map(_without_reasoning, prompt))
        if adjusted.other_ids and call.remote_id is None:  # a conversation at the service knows these ids
            prompt = list(map(_with_other_ids, prompt))
        prompt = [piece[1:-1] if piece.startswith(b"[") else piece for piece in prompt]
        instructions = b""
        if prompt and prompt[0].startswith(_SYSTEM):
            instructions = b',"instructions":' + prompt[0][len(_SYSTEM) : -1]
            del prompt[0]
        if call.remote_id is not None:
            prompt[:0] = [to_json(_unanswered(call_id)) for call_id in adjusted.unanswered]
        tools = b',"tools":' + call.tools if call.tools else b""
        follow = b',"stream":true' if call.stream else b""
        items = b",".join(filter(None, prompt))
        asked = (instructions, _continued(call.remote_id), b',"input":[', items, b"]", tools)
        wanted = _text_format(call.response_format) + _tool_choice(call.tool_choice)
        return b"".join((self._head, *asked, wanted, self._tail, follow, b"}"))

    def _meaning(self, said: Complaint, remote_id: str | None) -> ModelDone | RunFailure | None:
        if said.code == "content_filter":
            return ModelDone(finish_reason="content_filter", model=self.name, response_id=remote_id)
        if remote_id is not None and _is_lost(said, remote_id):
            return _lost(remote_id)
        return None

    # --- conversations that the service keeps ---

    async def list_remote(self, remote_id: str) -> list[Message]:
        """The messages of a conversation, oldest first, with the service's own ids.

        System messages and reasoning are omitted. Items have no times: a message has the time of its
        response, or of the conversation.

        Raises:
            RemoteThreadLost: the service no longer has the conversation.
            ModelFailed: it cannot be listed.
        """
        if remote_id.startswith(CONVERSATION):
            path = f"/conversations/{_safe(remote_id)}"
            about = await self._get(path, remote_id, read_stored)
            return messages_of(await self._items(f"{path}/items", remote_id), remote_id, about.created)
        return await self._chain(remote_id)

    async def delete_remote(self, remote_id: str) -> None:
        """Deletes a conversation, or a response and all responses before it. Missing ones are ignored.

        Where the service deletes responses only with their conversation, that of `remote_id` is deleted. It
        holds copies of what it has branched off from, which is left to those who continue that.

        Do not call it while another task continues one of these responses: forks share them.
        """
        if remote_id.startswith(CONVERSATION):
            await self._delete(f"/conversations/{_safe(remote_id)}", remote_id)
            return
        chain: dict[str, None] = {}
        following: str | None = remote_id
        while following is not None and following not in chain:
            try:
                kept = await self._get(f"/responses/{_safe(following)}", following, read_stored)
            except RemoteThreadLost:
                break
            chain[following] = None
            following = kept.previous_response_id
        held = None
        # the oldest first: if this is interrupted, the rest can still be found from the last response
        for response_id in reversed(chain):
            held = await self._delete(f"/responses/{_safe(response_id)}", response_id)
        if held is not None:
            await self._delete(f"/conversations/{_safe(held)}", held)

    async def _chain(self, remote_id: str) -> list[Message]:
        """The messages of a response and of all responses before it, oldest first.

        At some services the input items of a response also contain those of the responses before it. If items
        have ids, the known ones are skipped, and a response with only known output ends the chain. If they
        have none, a response is skipped if the input of the later one begins with all of its items.
        """
        turns: dict[str, tuple[list[StoredItem], datetime]] = {}
        seen: set[str] = set()
        later: list[StoredItem] = []
        following: str | None = remote_id
        while following is not None and following not in turns:
            path = f"/responses/{_safe(following)}"
            kept = await self._get(path, following, read_stored)
            output = kept.output or ()
            known = {item.id for item in output if item.id is not None}
            if known and known <= seen:
                break
            asked = await self._items(f"{path}/input_items", following)
            items = [*asked, *output]
            listed = len(items) < len(later) and items == later[: len(items)]
            later = asked
            new = [item for item in items if item.id not in seen and not listed]
            seen.update(item.id for item in new if item.id is not None)
            turns[following] = new, kept.created
            following = kept.previous_response_id
        tools: dict[str | None, str] = {}
        return [
            message
            for response_id, (items, created) in reversed(turns.items())
            for message in messages_of(items, response_id, created, tools)
        ]

    async def _items(self, path: str, remote_id: str) -> "list[StoredItem]":
        items: list[StoredItem] = []
        after = ""
        seen: set[str] = set()  # the last ids of the pages
        while True:
            page = await self._get(f"{path}?{_PAGE}{after}", remote_id, read_page)
            items += page.data
            if not (page.has_more and page.data):
                return items
            if len(items) > _MOST_ITEMS:
                raise ModelFailed(
                    f"The model service lists more than {_MOST_ITEMS:,} items of {quoted(remote_id)}."
                )
            last = page.data[-1].id
            if last is None or last in seen:
                raise ModelFailed(
                    f"The model service lists only {len(items)} items of {quoted(remote_id)}: the last one "
                    f"has {'no' if last is None else 'the same'} id to continue from."
                )
            seen.add(last)
            after = f"&after={_safe(last)}"

    async def _get(self, path: str, remote_id: str, read: Callable[[bytes], Shape]) -> Shape:
        try:
            body = await self._service.get(path)
        except AttemptFailed as failed:
            failure = _lost(remote_id) if _is_lost(failed.complaint, remote_id) else failed.error
        else:
            try:
                return read(body)
            except ValueError:
                failure = unusable("what is not a conversation", body, self._secrets).error
        raise failure

    async def _delete(self, path: str, remote_id: str) -> str | None:
        """The conversation without which the service does not delete a response; None if it is gone."""
        try:
            await self._service.delete(path)
        except AttemptFailed as failed:
            said = failed.complaint
            if _is_lost(said, remote_id):
                return None
            if said is not None and said.status == 409 and (held := _HELD.search(said.message)):
                return held[1]
            failure = failed.error
        else:
            return None
        raise failure


def _is_lost(said: Complaint | None, remote_id: str) -> bool:
    """Whether the conversation no longer exists. A 404 alone is no proof: a wrong URL returns it, too."""
    if said is None or said.status not in (400, 404):
        return False
    words = said.message.lower()
    named = remote_id in said.message and ("not found" in words or "there is no " in words)
    return named or said.code in _LOST_CODES


def _lost(remote_id: str) -> RemoteThreadLost:
    advice = "Start a new thread."
    if not remote_id.startswith(CONVERSATION):  # tasks of the service only continue responses
        again = "fork the task at its last message (`message_id`), which sends its messages again"
        advice = f"Start a new task or thread. Over the service's API you can also {again}."
    return RemoteThreadLost(
        f"The model service no longer has the conversation {quoted(remote_id)}: it was deleted there, or has "
        f"expired, or belongs to another project. {advice}"
    )


def _safe(remote_id: str) -> str:
    return quote(remote_id, safe="")


# --- the request -----------------------------------------------------------------------------------


def _settings(options: OpenAIResponsesOptions) -> bytes:
    """The end of every body: the settings that are configured."""
    effort = options.reasoning_effort
    reasons = effort is not None or _REASONING_FAMILY.match(options.model)
    settings = {
        "store": options.store,
        # reasoning that the service does not store is sent back; models without reasoning refuse this
        "include": ["reasoning.encrypted_content"] if reasons and not options.store else None,
        "temperature": options.temperature,
        "max_output_tokens": options.max_tokens,
        "reasoning": {"effort": effort} if effort is not None else None,
    }
    return b"," + to_json({name: value for name, value in settings.items() if value is not None})[1:-1]


def _text_format(wanted: ResponseFormat | None) -> bytes:
    if wanted is None:
        return b""
    shape = format_fields(wanted)
    kind = {"type": "json_schema", **shape} if shape else {"type": "json_object"}
    return b',"text":' + to_json({"format": kind})


def _tool_choice(wanted: ToolChoice | None) -> bytes:
    if wanted is None:
        return b""
    named = {"type": "function", "name": wanted.name}
    return b',"tool_choice":' + to_json(named if wanted.name else wanted.mode)


def _continued(remote_id: str | None) -> bytes:
    if remote_id is None:
        return b""
    name = b"conversation" if remote_id.startswith(CONVERSATION) else b"previous_response_id"
    return b',"' + name + b'":' + to_json(remote_id)


def _sent_items(message: Message, source: str) -> Iterator[Json]:
    match message.role:
        case "user":
            text = user_text(message)
            yield _said_by("user", text if text is not None else _parts(message))
        case "assistant" if not message.tool_calls:
            yield _said_by("assistant", answer_text(message))
        case "assistant":
            yield from _assistant_items(message, returned(message, source))
        case "tool":
            answered = call_id(message.tool_call_id, message.native_call_id)
            yield {"type": "function_call_output", "call_id": answered, "output": message.text}


def _assistant_items(message: Message, native: Json) -> Iterator[Json]:
    """The text, the calls and the reasoning items, in the order that `ResponsesReading` recorded."""
    order = native.get("order", [])
    phase = {"phase": native["phase"]} if native.get("phase") else {}
    # some services refuse a blank text
    said = [_said_by("assistant", message.text) | phase] if message.text.strip() else []
    calls = map(_call, message.tool_calls)
    for item in order if TEXT in order else (TEXT, *order):
        if item == TEXT:
            yield from said
            said = []
        elif item == CALL:
            yield next(calls)
        else:
            yield item
    yield from calls


def _without_reasoning(piece: bytes) -> bytes:
    items = orjson.loads(piece) if piece.startswith(b"[") else ()
    kept = [item for item in items if item.get("type") != "reasoning"]
    return to_json(kept) if len(kept) < len(items) else piece


def _with_other_ids(piece: bytes) -> bytes:
    if b'"call_id":' not in piece:
        return piece
    said = orjson.loads(piece)
    for item in said if isinstance(said, list) else [said]:
        if "call_id" in item:
            item["call_id"] = other_id(item["call_id"])
    return to_json(said)


def _unanswered(call_id: str) -> Json:
    """The output for a call whose request ended before it was answered: the conversation needs one."""
    said = "No result: the request ended before this call was answered. It may or may not have run."
    return {"type": "function_call_output", "call_id": call_id, "output": said}


def _said_by(role: str, content: Any) -> Json:
    return {"type": "message", "role": role, "content": content}


def _parts(message: Message) -> list[Json]:
    return [
        {"type": "input_text", "text": item.content}
        if item.content_type == "text"
        else {"type": "input_image", "image_url": item.content, "detail": "auto"}
        for item in message.items
    ]


def _call(call: ToolCall) -> Json:
    function = {"name": valid_name(call.tool), "arguments": arguments(call)}
    return {"type": "function_call", "call_id": call_id(call.id, call.native_id), **function}


def _tool(tool: ToolSpec) -> Json:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        # the default here is strict, which only takes schemas written for it
        "strict": False,
    }
