"""One line a record, with the ids of the request it belongs to; never content."""

import json
import logging
import sys
from datetime import UTC, datetime

from tealagents.domain.current import current_ids

#: libraries whose debug output holds messages, headers or tokens
_TALKATIVE = (
    "openai",
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
    "aiohttp",
    "msal",
    "urllib3",
    "botocore",
    "aiobotocore",
    "mcp",
    "asyncpg",
    "redis",
    "multipart",
)


class Ids(logging.Filter):
    """Puts the ids of the current request on a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.ids = dict(current_ids.get())
        return True


class JsonLines(logging.Formatter):
    """A record as one line of JSON, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "ids", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class Readable(logging.Formatter):
    """A record as a line for a person."""

    def format(self, record: logging.LogRecord) -> str:
        ids = getattr(record, "ids", {})
        about = f"  [{ids['request_id']}]" if "request_id" in ids else ""
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        line = f"{at} {record.levelname:<7} {record.getMessage()}{about}"
        return line + "\n" + self.formatException(record.exc_info) if record.exc_info else line


def configure_logs(level: str, *, content: bool) -> None:
    """Sends the log to standard error: readable on a terminal, JSON lines elsewhere.

    Unless `content` is allowed, libraries that would log messages or tokens are kept at WARNING.
    """
    root = logging.getLogger()
    if not any(isinstance(handler.formatter, JsonLines | Readable) for handler in root.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(Readable() if sys.stderr.isatty() else JsonLines())
        handler.addFilter(Ids())
        root.addHandler(handler)
    root.setLevel(level)
    if not content:
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
