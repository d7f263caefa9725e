"""Prints to the terminal.

Everything that comes from the service passes `printable` or `exact` first: a model's text must not control
the terminal, and a call that is shown for approval must look exactly like the one that will run.
"""

import re
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from tealagents.client import Approval, ProblemError, Unauthenticated

#: code points that control a terminal or reorder text
_UNSAFE = [
    *(*range(0x20), *range(0x7F, 0xA0), 0x61C),
    *(0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)),
]
#: code point → its escape sequence as visible text
_ESCAPES = {code: chr(code).encode("unicode_escape").decode() for code in _UNSAFE if chr(code) not in "\n\t"}

#: characters that `str.isprintable` accepts and terminals do not show: Unicode's
#: `Default_Ignorable_Code_Point`, such as fillers and variation selectors, and the blank Braille pattern
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)

_FENCE = re.compile(r" {0,3}(```|~~~)")


def printable(text: str) -> str:
    """`text` with all control characters escaped, except newlines and tabs."""
    return text.replace("\r\n", "\n").translate(_ESCAPES)


def exact(text: str) -> str:
    """`text` on one line, with every invisible character escaped: for what the user approves."""
    return "".join(
        c if c.isprintable() and not _UNSEEN.match(c) else c.encode("unicode_escape").decode() for c in text
    )


def markdown(text: str) -> Markdown:
    # without hyperlinks, the address of a link is shown next to its text, which could be misleading
    return Markdown(printable(text), hyperlinks=False)


def shortened(text: str, length: int = 500) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def complain(console: Console, error: Exception) -> None:
    """Print an error: the problem's detail, code and ids if it came from the service."""
    if not isinstance(error, ProblemError):
        console.print(Text(printable(str(error)), "red"))
        return
    console.print(Text(printable(error.detail), "red"))
    known = {"": error.code or f"HTTP {error.status}", "task ": error.task_id, "request ": error.request_id}
    details = "  ".join(f"{name}{value}" for name, value in known.items() if value)
    console.print(Text(printable(details), "dim"))
    if isinstance(error, Unauthenticated):
        console.print(Text("Pass a token with --token or TA_TOKEN.", "dim"))


def show_approval(console: Console, approval: Approval) -> None:
    """Print everything that the approval covers, without shortening it."""
    console.print(Text(printable(approval.message or "The agent asks for your approval."), "bold yellow"))
    for call in approval.tool_calls:
        console.print(Text(exact(f"  {call.tool} {call.arguments}"), "yellow"))
    for grant in approval.authorizations:
        scopes = " ".join(grant.scopes)
        console.print(Text(printable(f"  first authorize {grant.server} ({scopes}): {grant.url}"), "yellow"))
    if approval.expires_at is not None:
        console.print(Text(f"  until {approval.expires_at:%Y-%m-%d %H:%M:%S %Z}", "dim"))


class AnswerView:
    """An answer that grows, rendered as markdown: complete blocks are printed once, the last one is redrawn.

    Redrawing only the last block keeps a long answer cheap, and a terminal cannot redraw more than it shows.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text = ""
        self._shown = False
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def add(self, delta: str) -> None:
        """Append a text delta."""
        self._text += delta
        self._shown = True
        if not self._console.is_terminal:
            return
        if self._live is None:
            # parsed when it is drawn, because deltas come faster, and each would parse the whole block
            self._live = Live(
                console=self._console,
                refresh_per_second=12,
                transient=True,
                get_renderable=lambda: markdown(self._text),
            )
            self._live.start()
        if "\n" in delta and (end := finished_length(self._text)):
            finished, self._text = self._text[:end], self._text[end:]
            self._console.print(markdown(finished))
            self._console.print()

    def finish(self) -> bool:
        """Print the rest of the answer. Returns whether any text of it was shown."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._text:
            self._console.print(markdown(self._text))
            self._text = ""
        return self._shown


def finished_length(text: str) -> int:
    """The length of the complete blocks: up to the last blank line outside a fence that a block follows."""
    end = position = 0
    fence, after_blank = None, False
    for line in text.splitlines(keepends=True):
        if after_blank and fence is None and not line[:1].isspace():
            end = position
        marker = _FENCE.match(line)
        if marker is not None and fence in (None, marker[1]):
            fence = marker[1] if fence is None else None
        after_blank = line.isspace() and line.endswith("\n")
        position += len(line)
    return end
