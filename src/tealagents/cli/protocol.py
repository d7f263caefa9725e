"""HTTP/1.1 as uvicorn reads it with httptools, with a bound on what comes before a body.

httptools keeps a request line and headers of any size in memory before the application sees any of it.
"""

import json
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["MOST_HEAD", "BoundedProtocol"]

#: bytes of a request's line and headers together
MOST_HEAD: Final = 64 * 1024

_PROBLEM: Final = json.dumps(
    {
        "type": "urn:tealagents:problem:too_large",
        "title": "Too large",
        "status": 431,
        "detail": f"The request line and the headers may have {MOST_HEAD} bytes together. Send less.",
        "code": "too_large",
    }
).encode()
_ANSWER: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: application/problem+json\r\n"
    b"content-length: %d\r\n"
    b"connection: close\r\n\r\n%b" % (len(_PROBLEM), _PROBLEM)
)


class BoundedProtocol(HttpToolsProtocol):
    """Answers 431 to a request whose line and headers are too large, and closes the connection."""

    # beyond 30 attributes in its dictionary an instance no longer shares the keys: a kilobyte a connection
    __slots__ = ("_head", "_heads", "_in_head", "_too_large")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        #: bytes of the head that is being received, but for those that came with the end of another request
        self._head = 0
        self._heads = 0
        self._too_large = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head = 0
        self._heads += 1

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST_HEAD:
            self._too_large = True
            raise ValueError("the head is too large")  # which ends the parser, and comes back as a 400
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        before = self._heads if self._in_head else None
        super().data_received(data)
        if self._in_head and self._heads == before:
            self._head += len(data)
            if self._head > MOST_HEAD and not self.transport.is_closing():
                self._too_large = True
                self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        if not self._too_large:
            super().send_400_response(msg)
        elif not self.transport.is_closing():
            self.transport.write(_ANSWER)
            self.transport.close()
