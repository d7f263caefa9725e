"""Writes the synchronous client, `client/sync.py`, from the asynchronous one, `client/aio.py`.

    python scripts/generate_sync_client.py            write it
    python scripts/generate_sync_client.py --check    fail where it is not current

`async` and `await` go, names become those of their synchronous counterparts (`client/backends.py` has both),
and ruff sorts and formats the rest.
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "src/tealagents/client"
SOURCE, TARGET = CLIENT / "aio.py", CLIENT / "sync.py"

HEADER = "# Generated from aio.py by scripts/generate_sync_client.py: edit that one, and run the script.\n\n"

#: applied in this order, to code, strings and comments
RULES = (
    (r"\b(async|await) ", ""),
    (r"\bAsynchronous|\basynchronous", "synchronous"),
    (r"\b(_?)Async(?=[A-Z])", r"\1"),  # AsyncClient, _AsyncWire
    (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\ba(close|read|iter_bytes|next)\b", r"\1"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
)


def generated() -> str:
    """The synchronous client's source."""
    text = SOURCE.read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    if left := re.findall(r"\w*(?i:async|await)\w*", text):
        raise SystemExit(f"no rule for {', '.join(sorted(set(left)))}")
    return _formatted(HEADER + text)


def _formatted(text: str) -> str:
    ruff = (sys.executable, "-m", "ruff")
    for command in (("check", "--select=I", "--fix-only", "--quiet"), ("format", "--quiet")):
        done = subprocess.run(
            [*ruff, *command, f"--stdin-filename={TARGET}", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def main() -> None:
    text = generated()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        raise SystemExit(f"{TARGET.name} is not current: python scripts/generate_sync_client.py")


if __name__ == "__main__":
    main()
