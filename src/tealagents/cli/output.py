"""Standard output: a command whose output cannot be written says so and ends, whichever line it was."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, TextIO, cast


class OutputLost(OSError):
    """Standard output cannot be written."""


class _Output:
    """Standard output, whose errors have a class of their own; after one, nothing more is written."""

    def __init__(self, stream: Any) -> None:
        """`stream` is of text, or of bytes."""
        self._stream = stream
        self._lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> "_Output":
        return _Output(self._stream.buffer)

    def write(self, text: Any) -> int:
        if self._lost is None:
            self._trying(lambda: self._stream.write(text))
        if self._lost is not None:
            raise self._lost
        return len(text)

    def flush(self) -> None:
        if self._lost is None:
            self._trying(self._stream.flush)
            if self._lost is not None:
                raise self._lost

    def _trying(self, what: Callable[[], object]) -> None:
        try:
            what()
        except BrokenPipeError as error:  # its reader has enough: commands end silently
            self._lost = error
        except OSError as error:
            self._lost = OutputLost(error.errno, error.strerror)


@contextmanager
def checked_output() -> Iterator[None]:
    """Within, a failure of standard output ends the command with exit status 1."""
    if sys.stdout is None:  # closed before the start: nothing is printed
        yield
        return
    if isinstance(sys.stdout, TextIOWrapper):  # what its encoding lacks is shown as a question mark
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
        from tealagents.config.problems import reason

        fail(f"standard output cannot be written: {reason(error)}; free some space, or send it elsewhere")
        raise SystemExit(1) from None
