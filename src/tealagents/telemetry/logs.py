"""Log lines: one per record, with the ids of its request; no content unless it is allowed."""

import json
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from tealagents.engine.observer import current_ids
from tealagents.mistakes import printable

_encoded = msgspec.json.Encoder(enc_hook=str).encode
#: facts of a request that the record's message contains already
_NAMED = ("route", "status")
#: facts of a request → the attributes of its spans for them
_ON_SPANS = {
    "code": "error.type",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
}

#: libraries whose debug output holds messages or headers
_TALKATIVE = (
    "openai",
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
    "aiohttp",
    "urllib3",
    "mcp",
    "sse_starlette",
    "asyncpg",
    "redis",
    "python_multipart",
)
#: libraries whose warnings and errors quote messages, too
_QUOTING = ("mem0",)
#: libraries whose debug output holds credentials
_CREDENTIALS = ("msal", "botocore", "aiobotocore")
#: loggers that at DEBUG log the handshake of each WebSocket, with its credentials, and every frame
_WEBSOCKETS = ("uvicorn.error", "websockets")


def named_ids(ids: Mapping[str, str]) -> dict[str, str]:
    """Ids as attributes of exported spans and log records."""
    return {f"tealagents.{name}": value for name, value in ids.items()}


def named_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A request's facts as attributes of exported log records."""
    numeric = {"status": "http.response.status_code"} if isinstance(facts.get("status"), int) else {}
    names = _ON_SPANS | numeric
    return {names.get(name, f"tealagents.{name}"): value for name, value in facts.items()}


def _no_handshake(record: logging.LogRecord) -> bool:
    """False for uvicorn's lines about WebSockets: their query may hold a token, and we log each request."""
    return not (isinstance(record.msg, str) and '"WebSocket %s"' in record.msg)


def said(record: logging.LogRecord, *, content: bool) -> str:
    """The record's message. Unless `content` is allowed, of asyncio's messages only the first line: the
    others may quote the text of an exception that no one retrieved."""
    message = record.getMessage()
    return message if content or record.name != "asyncio" else message.partition("\n")[0]


class _Lines(logging.Formatter):
    """Logs exceptions without their texts, which may quote a message or a tool's argument, unless `content`
    is allowed: only type and traceback."""

    def __init__(self, *, content: bool) -> None:
        super().__init__()
        self._content = content

    def formatException(self, ei: Any) -> str:
        return super().formatException(ei) if self._content else "".join(_raised(ei[1])).rstrip()


class JsonLines(_Lines):
    """A record as one line of JSON, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": said(record, content=self._content),
            **current_ids.get(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return _encoded(line).decode()
        except UnicodeEncodeError:  # a text that is not valid Unicode, such as some file names
            return json.dumps(line, default=str)


class Readable(_Lines):
    """A record as a readable line, for a terminal.

    Control characters are escaped and tracebacks indented, so that a name chosen by a tool server can neither
    forge a line nor control the terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        ids = current_ids.get()
        about = f"  [{ids['request_id']}]" if "request_id" in ids else ""
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        facts = getattr(record, "facts", {}).items()
        message = said(record, content=self._content)
        message += "".join(f" {name}={value}" for name, value in facts if name not in _NAMED)
        line = f"{at} {record.levelname:<7} {printable(message)}{about}"
        if not record.exc_info:
            return line
        raised = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"  {printable(each)}" for each in raised)])


def _raised(error: BaseException | None, known: frozenset[int] = frozenset()) -> Iterator[str]:
    """The traceback lines of an exception, after those of its causes, without the exceptions' texts."""
    if error is None or id(error) in known:
        return
    known |= {id(error)}
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield from _raised(before, known)
        yield "which led to\n"
    yield from traceback.format_tb(error.__traceback__)
    yield f"{type(error).__module__}.{type(error).__qualname__}\n".removeprefix("builtins.")
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield "of which one is\n"
            yield from _raised(each, known)


def configure_logs(level: str, *, content: bool) -> None:
    """Sends the log to standard error: readable on a terminal, JSON lines elsewhere.

    Unless `content` is allowed, libraries that would log messages are kept at WARNING, or above. Those that
    would log credentials always are, and WebSockets are never logged at DEBUG: allowing content allows no
    credentials.
    """
    # these facts would be looked up for each record, and none of our lines uses them
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    if not any(isinstance(handler.formatter, JsonLines | Readable) for handler in root.handlers):
        handler = logging.StreamHandler(sys.stderr)
        # None if standard error is closed: the handler writes nothing then
        on_terminal = sys.stderr is not None and sys.stderr.isatty()
        handler.setFormatter((Readable if on_terminal else JsonLines)(content=content))
        root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger("uvicorn.error").addFilter(_no_handshake)
    logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)  # it quotes what any caller sent
    # `--reload` may watch the folder with the log: each change that it logged would be another change
    logging.getLogger("watchfiles").setLevel(max(logging.WARNING, root.level))
    for name in _WEBSOCKETS:
        logging.getLogger(name).setLevel(max(logging.INFO, root.level))
    for name in _CREDENTIALS if content else _CREDENTIALS + _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    for name in () if content else _QUOTING:
        logging.getLogger(name).setLevel(logging.CRITICAL)
