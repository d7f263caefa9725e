"""An incremental parser of `text/event-stream`, after the WHATWG HTML standard, section 9.2.6.

Bytes go in however the network cut them, whole events come out. What a broken connection left
unfinished is never an event: an event exists once its blank line has arrived.
"""

from dataclasses import dataclass, field

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

#: a line or event longer than this is no answer of an agent but an attack on the reader's memory
MAX_EVENT_BYTES = 64 * 1024 * 1024


class EventTooLong(ValueError):
    """An event grew beyond the parser's limit without coming to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSentEvent:
    """One event as it was dispatched. `id` is the last id seen so far: an event without one inherits it."""

    name: str = "message"
    data: str = ""
    id: str = ""
    #: it brought the id itself
    own_id: bool = field(default=False, compare=False)


class EventParser:
    """Feed it bytes, take events. One parser reads one connection."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._unfinished: list[bytes] = []
        self._held_bytes = 0
        self._after_cr = False
        self._at_start = True
        self._name = ""
        self._data: list[str] = []
        self._last_id = ""
        self._own_id = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that `chunk` completes, in order.

        Raises:
            EventTooLong: the event now being read exceeds the limit.
        """
        events = []
        for line in self._lines(chunk):
            if line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                events.append(event)
        if self._held_bytes > self._max_event_bytes:
            raise EventTooLong(f"an event is longer than {self._max_event_bytes} bytes")
        return events

    def _lines(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            # the CR has already ended its line; its LF may be the first byte of the next chunk
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        lines = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._held_bytes += len(chunk)
        self._unfinished.append(lines[0])
        if len(lines) == 1:
            return []
        lines[0] = b"".join(self._unfinished)
        self._unfinished = [lines.pop()]
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        return lines

    def _field(self, line: bytes) -> None:
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "event":
                self._name = value
            case "id" if "\0" not in value:
                self._last_id, self._own_id = value, True
            case _:  # a comment (its name is empty), or a field that is not used here
                pass

    def _dispatch(self) -> ServerSentEvent | None:
        name, data, own_id = self._name, self._data, self._own_id
        self._name, self._data, self._own_id = "", [], False
        self._held_bytes = 0
        if not data:
            return None
        return ServerSentEvent(name=name or "message", data="\n".join(data), id=self._last_id, own_id=own_id)
