"""Standard output: a command ends with an error as soon as its output cannot be written."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, TextIO, cast


class OutputLost(OSError):
    """Standard output cannot be written."""


class _Output:
    """Standard output that raises `OutputLost` instead of OSError. After an error, it writes nothing more."""

    def __init__(self, stream: Any) -> None:
        """`stream` is a text or a binary stream."""
        self._stream = stream
        self._lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> "_Output":
        return _Output(self._stream.buffer)

    def write(self, text: Any) -> int:
        if self._lost is None:
            self._attempt(lambda: self._stream.write(text))
        if self._lost is not None:
            raise self._lost
        return len(text)

    def flush(self) -> None:
        if self._lost is None:
            self._attempt(self._stream.flush)
            if self._lost is not None:
                raise self._lost

    def _attempt(self, operation: Callable[[], object]) -> None:
        try:
            operation()
        except BrokenPipeError as error:  # the reader has closed the pipe (`| head`): commands end silently
            self._lost = error
        except OSError as error:
            self._lost = OutputLost(error.errno, error.strerror)


@contextmanager
def checked_output() -> Iterator[None]:
    """Within, a failure of standard output ends the command with exit status 1."""
    if sys.stdout is None:  # closed before the start: what is printed fails as in a shell, with EBADF
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if isinstance(sys.stdout, TextIOWrapper):  # a character that its encoding lacks becomes `?`
        sys.stdout.reconfigure(errors="replace")
    output = sys.stdout = cast(TextIO, _Output(sys.stdout))
    try:
        try:
            yield
        finally:
            output.flush()
    except BrokenPipeError:
        raise SystemExit(1) from None
    except OutputLost as error:
        from tealagents.cli.loading import fail
        from tealagents.mistakes import file_reason

        fail(
            f"standard output cannot be written: {file_reason(error)}; free some space, or send it elsewhere"
        )
        raise SystemExit(1) from None
