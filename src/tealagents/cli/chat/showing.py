"""What the terminal shows.

Everything that comes from the service passes `printable` or `exact` first: a model's words must not
move the cursor, and what is shown for approval must be what runs.
"""

import re
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from tealagents.client import Approval, ProblemError, Unauthenticated

#: whatever moves a cursor, changes a colour or reorders text, as its escape sequence in writing
_UNSAFE = [
    *(*range(0x20), *range(0x7F, 0xA0), 0x61C),
    *(0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)),
]
_WRITTEN = {code: chr(code).encode("unicode_escape").decode() for code in _UNSAFE if chr(code) not in "\n\t"}

#: what `str.isprintable` lets through and no terminal draws: Unicode's `Default_Ignorable_Code_Point`,
#: such as fillers and variation selectors, and the blank of Braille
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)

_FENCE = re.compile(r" {0,3}(```|~~~)")


def printable(text: str) -> str:
    """`text` with nothing in it that a terminal would obey but newlines and tabs."""
    return text.replace("\r\n", "\n").translate(_WRITTEN)


def exact(text: str) -> str:
    """`text` on one line with every invisible character written out, for what the user approves."""
    return "".join(
        c if c.isprintable() and not _UNSEEN.match(c) else c.encode("unicode_escape").decode() for c in text
    )


def markdown(text: str) -> Markdown:
    # without hyperlinks the address of a link is shown, so that its words cannot belie it
    return Markdown(printable(text), hyperlinks=False)


def shortened(text: str, length: int = 500) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def complain(console: Console, error: Exception) -> None:
    """Print an error, in the service's words where it answered."""
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
    """What is asked for, in full: nothing is approved unseen."""
    console.print(Text(printable(approval.message or "The agent asks for your approval."), "bold yellow"))
    for call in approval.tool_calls:
        console.print(Text(exact(f"  {call.tool} {call.arguments}"), "yellow"))
    for grant in approval.authorizations:
        scopes = " ".join(grant.scopes)
        console.print(Text(printable(f"  first authorize {grant.server} ({scopes}): {grant.url}"), "yellow"))
    if approval.expires_at is not None:
        console.print(Text(f"  until {approval.expires_at:%Y-%m-%d %H:%M:%S %Z}", "dim"))


class AnswerView:
    """Text that grows, rendered as markdown: finished blocks stay, the last one is drawn anew.

    Drawing only the last block keeps a long answer cheap, and within what a terminal can redraw.
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

    def add(self, piece: str) -> None:
        self._text += piece
        self._shown = True
        if not self._console.is_terminal:
            return
        if self._live is None:
            # parsed when it is drawn: a model's pieces come faster, and each would parse all of the block
            self._live = Live(
                console=self._console,
                refresh_per_second=12,
                transient=True,
                get_renderable=lambda: markdown(self._text),
            )
            self._live.start()
        if "\n" in piece and (end := finished_length(self._text)):
            finished, self._text = self._text[:end], self._text[end:]
            self._console.print(markdown(finished))
            self._console.print()

    def finish(self) -> bool:
        """Leave what there is on the screen. True if any text of this answer was shown."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._text:
            self._console.print(markdown(self._text))
            self._text = ""
        return self._shown


def finished_length(text: str) -> int:
    """Up to where markdown is complete: the last blank line outside a fence that a new block follows."""
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
