"""Writes down an exchange over HTTP so that it reads the same each time it takes place.

    recording = Recording(service)
    answer = recording.post("/tasks/…/fork", json={}, user="ada")   # as httpx has it; and it is written down
    recording.text                                                # all of it, as it stands in a file

What differs from one run to the next is masked (`Masks`). An id or a hash is numbered as it first appears, so
that it can be seen where it comes again.
"""

import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import httpx

from tealagents import __version__
from tealagents.testing.service import RunningService
from tealagents.testing.waits import until

Json = dict[str, Any]

#: seconds that anything may take
PATIENCE = 60.0
#: characters of a line of JSON, if it can be broken
WIDTH = 116
#: headers of the server rather than of the service, and of files: when those were installed
UNRECORDED = frozenset({"date", "server", "content-length", "last-modified", "etag"})
#: members whose value is a sentence for people, which may be worded anew
SENTENCES = ("detail", "title", "message")

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
#: comments keep a stream alive: where they come, and how many, depends on the machine
_COMMENT = re.compile(r"^:[^\n]*\n\n?", re.MULTILINE)
#: kind of mask → what it stands for; numbered as they appear
_NUMBERED = {
    "call": re.compile(r"\bcall_[0-9a-f]{24}\b"),
    "response": re.compile(r"\bresp_[0-9a-f]{24}\b"),
    "hash": re.compile(r"\b[0-9a-f]{64}\b"),
    "secret": re.compile(r"(?<=[?&]state=)[^&\"\s]+|(?<=[?&]code=)[^&\"\s]+"),
    "challenge": re.compile(r"(?<=[?&]code_challenge=)[^&\"\s]+"),
    "port": re.compile(r"(?:(?<=127\.0\.0\.1:)|(?<=127\.0\.0\.1%3A))\d+"),
}
#: what is replaced by one word
_PLAIN = (
    (re.compile(r'("(?:duration|first_piece)_ms": ?)\d+(?:\.\d+)?'), r'\1"<number>"'),
    (re.compile(r'("uptime": ?)\d+(?:\.\d+)?'), r'\1"<number>"'),
    (re.compile(r'("next_cursor": ?)"[^"]+"'), r'\1"<cursor>"'),
    (re.compile(r"(?<=[?&]cursor=)[^&\s]+"), "<cursor>"),
)


class Masks:
    """Replaces what no two runs have in common; the same thing is always replaced by the same word."""

    def __init__(self) -> None:
        #: text → what is written in its place
        self._literal = {f'"version":"{__version__}"': '"version":"<version>"'}
        self._words: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def hide(self, text: str, word: str) -> None:
        """From now on `word` stands in the place of `text`."""
        self._literal[text] = f"<{word}>"

    def apply(self, text: str) -> str:
        for found, word in self._literal.items():
            text = text.replace(found, word)
        text = _TIME.sub(_time, text)
        for pattern, word in _PLAIN:
            text = pattern.sub(word, text)
        for kind, pattern in _NUMBERED.items():
            text = pattern.sub(lambda match, kind=kind: self._word(kind, match[0]), text)  # type: ignore[misc]
        return _UUID.sub(lambda match: self._word("id", match[0]), text)

    def _word(self, kind: str, found: str) -> str:
        if not found.strip("0-"):
            return found
        if found not in self._words:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._words[found] = f"<{kind}-{self._counts[kind]}>"
        return self._words[found]


def _time(match: re.Match[str]) -> str:
    """A time of today or thereabouts is masked; one that a client has chosen stays."""
    distance = datetime.fromisoformat(match[0]) - datetime.now(UTC)
    return "<time>" if abs(distance.total_seconds()) < 3 * 86400 else match[0]


def sentences_masked(text: str, names: tuple[str, ...] = SENTENCES) -> str:
    """The JSON text without the values of these members, where they are texts."""
    pattern = rf'("(?:{"|".join(names)})": ?)"(?:[^"\\]|\\.)*"'
    return re.sub(pattern, r'\1"<text>"', text)


def readable(text: str) -> str:
    """JSON over several lines, if taking the breaks out again gives the same text: nothing is lost."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return _broken(value, 0) if _compact(value) == text else text


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _broken(value: Any, indent: int) -> str:
    line = _compact(value)
    if indent + len(line) <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        heads = [f"{_compact(name)}: " for name in value]
        parts = [head + _broken(each, indent + 2) for head, each in zip(heads, value.values(), strict=True)]
        opening, closing = "{}"
    else:
        parts = [_broken(each, indent + 2) for each in value]
        opening, closing = "[]"
    joined = ",\n".join(inner + part for part in parts)
    return f"{opening}\n{joined}\n{' ' * indent}{closing}"


class Pending:
    """A request that has been sent; it is written down when its answer is taken."""

    def __init__(
        self, ask: Callable[[bytearray], httpx.Response], write: Callable[[httpx.Response], None]
    ) -> None:
        #: what has come of the body so far
        self.came = bytearray()
        self._write = write
        self._answer: httpx.Response | None = None
        self._thread = threading.Thread(target=self._run, args=(ask,), daemon=True)
        self._thread.start()

    def _run(self, ask: Callable[[bytearray], httpx.Response]) -> None:
        self._answer = ask(self.came)

    def answered(self, seconds: float) -> bool:
        """Whether the answer has come; waits for it so long."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> httpx.Response:
        self._thread.join(PATIENCE)
        assert self._answer is not None, "no answer came"
        self._write(self._answer)
        return self._answer


class Recording:
    """The exchange with one service, as it takes place."""

    def __init__(self, service: RunningService) -> None:
        self.service = service
        self.masks = Masks()
        self._client = service.client(None, timeout=PATIENCE)
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        return "\n\n".join(self._parts) + "\n"

    def close(self) -> None:
        self._client.close()

    def note(self, words: str) -> None:
        """A heading."""
        self._parts.append(f"=== {words}")

    # --- calls ----------------------------------------------------------------------------------------

    def get(self, target: str, **options: Any) -> httpx.Response:
        return self.call("GET", target, **options)

    def post(self, target: str, **options: Any) -> httpx.Response:
        return self.call("POST", target, **options)

    def call(self, method: str, target: str, **options: Any) -> httpx.Response:
        """Sends a request and writes it down with its answer. For the options see `begin`."""
        return self.begin(method, target, **options).result()

    def begin(
        self,
        method: str,
        target: str,
        *,
        user: str | None = "ada",
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | list[tuple[str, str]] | None = None,
        at_root: bool = False,
        shown: str | None = None,
        only_head: bool = False,
        sentences: tuple[str, ...] = SENTENCES,
        edit: Callable[[str], str] = str,
    ) -> Pending:
        """Sends a request; it is written down when `result` is called.

        `target` begins at the agent's prefix, or with `at_root` at the root. `shown` is written in place of
        the body that is sent; with `only_head` the body of the answer is not written. `sentences` are the
        members of its JSON whose texts are not, and `edit` takes out what else is not.
        """
        path = target if at_root else self.service.prefix + target
        given = list(headers.items()) if isinstance(headers, Mapping) else list(headers or [])
        if user is not None:
            given.insert(0, ("authorization", f"Bearer {user}"))
        if json is not None:
            content = _compact(json).encode()
            given.append(("content-type", "application/json"))
        body = shown if shown is not None else (content or b"").decode(errors="backslashreplace")
        request = self._parts_of_request(method, path, given, body)

        def ask(came: bytearray) -> httpx.Response:
            url = self.service.root + path
            with self._client.stream(method, url, headers=given, content=content) as answer:
                for part in answer.iter_raw():
                    came.extend(part)
            return httpx.Response(
                answer.status_code, headers=answer.headers, content=bytes(came), extensions=answer.extensions
            )

        def write(answer: httpx.Response) -> None:
            body = "" if only_head else self._body(answer, sentences, edit)
            lines = [*map(self.masks.apply, request), *self._head(answer), *([body] if body else [])]
            self._parts.append("\n".join(lines))

        return Pending(ask, write)

    def quiet(self, target: str, user: str = "ada", method: str = "GET") -> Any:
        """The document at a path, without a trace in the recording."""
        headers = {"authorization": f"Bearer {user}"}
        return self._client.request(method, self.service.url + target, headers=headers).json()

    def quietly_until(self, request_id: str, event: str) -> None:
        """Follows a request until it has come to an event with this id."""
        target = f"{self.service.url}/requests/{request_id}/events"
        headers = {"authorization": "Bearer ada"}
        with self._client.stream("GET", target, headers=headers) as stream:
            next(line for line in stream.iter_lines() if line == f"id: {event}")

    def raw(self, sent: bytes, shown: str) -> None:
        """Sends bytes as they are and writes all that comes back until the connection ends."""
        with socket.create_connection(("127.0.0.1", self.service.port), timeout=PATIENCE) as link:
            link.sendall(sent)
            received = b""
            while part := link.recv(65536):
                received += part
        head, _, body = received.decode().partition("\r\n\r\n")
        status, *headers = head.split("\r\n")
        kept = [line for line in headers if line.partition(":")[0].lower() not in UNRECORDED]
        lines = [f"(bytes) {shown}", "", status, *kept, *([readable(sentences_masked(body))] if body else [])]
        self._parts.append("\n".join(lines))

    # --- waiting --------------------------------------------------------------------------------------

    def ended(self, request_id: str, user: str = "ada") -> None:
        """Waits until a request has ended."""
        until(lambda: self.quiet(f"/requests/{request_id}", user)["status"] not in ("Running", "Queued"))

    def calls_tool(self, request_id: str, user: str = "ada") -> None:
        """Waits until a request that runs has called its tool, as its events say."""
        headers = {"authorization": f"Bearer {user}"}
        url = f"{self.service.url}/requests/{request_id}/events"
        with self._client.stream("GET", url, headers=headers) as events:
            assert any(line == "event: tool-call" for line in events.iter_lines())

    def kept_alive(self, stream: Pending) -> None:
        """Waits until a stream has been kept alive by a comment."""
        until(lambda: b"\n: keepalive\n" in stream.came)

    def running(self, user: str = "ada", besides: tuple[str, ...] = ()) -> str:
        """The id of the user's request that runs, once it does."""
        found: list[str] = []

        def look() -> bool:
            tasks = self.quiet("/tasks?status=Running", user)["items"]
            found[:] = [task["request_id"] for task in tasks if task["request_id"] not in besides]
            return bool(found)

        until(look)
        return found[0]

    # --- writing --------------------------------------------------------------------------------------

    @staticmethod
    def _parts_of_request(method: str, path: str, headers: list[tuple[str, str]], body: str) -> list[str]:
        lines = [f"{method} {unquote(path)}", *(f"{name}: {value}" for name, value in headers)]
        return [*lines, *([readable(body)] if body else []), ""]

    def _head(self, answer: httpx.Response) -> list[str]:
        headers = [(name, value) for name, value in answer.headers.multi_items() if name not in UNRECORDED]
        return [str(answer.status_code), *(self.masks.apply(f"{name}: {value}") for name, value in headers)]

    def _body(self, answer: httpx.Response, sentences: tuple[str, ...], edit: Callable[[str], str]) -> str:
        kind = answer.headers.get("content-type", "")
        masked = self.masks.apply(edit(answer.content.decode()))
        if kind.startswith("text/event-stream"):
            return sentences_masked(_COMMENT.sub("", masked), sentences).removesuffix("\n\n")
        return readable(sentences_masked(masked, sentences)) if "json" in kind else masked
