"""Parses server-sent events from the bytes of a response. No I/O.

The format: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation.
Only `data` is used: model services repeat the event's name in their JSON. Errors are an exception. Some
services mark one only by the event's name, `error`, or by a field `error` in place of `data`; others send its
JSON bare.
"""

#: far above the size of real events; limits the memory for an event that never ends
MAX_FRAME_BYTES = 8 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_ERROR_NAMES = frozenset({b"event: error", b"event:error"})


class FrameTooLong(Exception):
    """An event that grows beyond `MAX_FRAME_BYTES`."""


class ErrorData(bytes):
    """The data of an event that its name or its field marks as an error."""


class EventFrames:
    """An incremental parser: takes chunks of bytes, and returns the data of the events that are complete."""

    def __init__(self) -> None:
        #: the chunks of the incomplete event, which contain no empty line
        self._parts: list[bytes] = []
        self._size = 0
        #: the bytes so far end with CR, so that a LF which follows belongs to it
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that these bytes complete. Raises `FrameTooLong`."""
        if self._after_cr or b"\r" in data:
            data = self._with_plain_newlines(data)
        if self._parts:
            if b"\n\n" not in self._parts[-1][-1:] + data:
                self._keep(data)
                return []
            data = b"".join(self._parts) + data
            self._parts.clear()
            self._size = 0
        *blocks, rest = data.split(b"\n\n")
        if rest:
            self._keep(rest)
        return [*filter(None, map(_payload, blocks))]

    def rest(self) -> list[bytes]:
        """The bare JSON that a stream ended in. An event that it ended in is incomplete, and is not given."""
        block = b"".join(self._parts)
        self._parts.clear()
        return [block] if _is_bare(block) else []

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        self._size += len(data)
        if self._size > MAX_FRAME_BYTES:
            raise FrameTooLong
        self._parts.append(data)

    def _with_plain_newlines(self, data: bytes) -> bytes:
        if not data:
            return data
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _payload(block: bytes) -> bytes:
    """The data of an event; empty if it has none (a comment, an additional empty line)."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    parts = []
    failed = False
    for line in block.removeprefix(_BOM).split(b"\n"):
        if line.startswith(b"data:"):
            parts.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"error:"):  # llama.cpp
            parts.append(line[6:])
            failed = True
        elif line in _ERROR_NAMES:
            failed = True
    data = b"\n".join(parts) or (block if _is_bare(block) else b"")
    return ErrorData(data) if failed else data


def _is_bare(block: bytes) -> bool:
    """Whether this is JSON without a field."""
    return block.lstrip().startswith((b"{", b"["))
