"""The names of tools as models see them: `Plugin-function`, matching ``[A-Za-z0-9_-]{1,64}``."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches

from tealagents.domain.models import TOOL_SEPARATOR

#: characters of the longest name that model services accept
MAX_NAME = 64
#: characters of a foreign text that an error message quotes
MAX_EXCERPT = 100
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)


def tool_names(plugin: str, functions: Sequence[str]) -> list[str]:
    """The tools' names, in the order of `functions`. If all `functions` differ, so do all names.

    Characters that are not allowed become `_`. A name that had to be cut, or that equals another only because
    of such a replacement, ends in a digest of the original: so no name depends on the order.
    """
    plain = [_sanitised(plugin, function) for function in functions]
    count = Counter(plain)
    return [
        name if _is_free(name, plugin, function, count) else _with_digest(name, f"{plugin}\0{function}")
        for name, function in zip(plain, functions, strict=True)
    ]


def _is_free(name: str, plugin: str, function: str, count: Counter[str]) -> bool:
    untouched = name == f"{plugin}{TOOL_SEPARATOR}{function}"
    return len(name) <= MAX_NAME and (untouched or count[name] == 1)


def plugin_of(plugin: str) -> str:
    """A plugin's name as it appears in the names of its tools."""
    return _FORBIDDEN.sub("_", plugin)


def prefix_of(plugin: str) -> str:
    """What the names of a plugin's tools begin with."""
    return plugin_of(plugin) + TOOL_SEPARATOR


def _sanitised(plugin: str, function: str) -> str:
    return prefix_of(plugin) + (_FORBIDDEN.sub("_", function) or "_")


def _with_digest(name: str, original: str) -> str:
    digest = hashlib.sha256(original.encode()).hexdigest()[:8]
    return f"{name[: MAX_NAME - 9]}_{digest}"


def excerpt(text: str, most: int = MAX_EXCERPT) -> str:
    """As much of a foreign text as an error message quotes: `most` characters, and `…` if there are more."""
    return text if len(text) <= most else text[:most] + "…"


def listed(names: Sequence[str], most: int = 20) -> str:
    """The first `most` names for an error message, with the number of the others; `none` without names."""
    more = [f"and {len(names) - most:,} more"] if len(names) > most else []
    return ", ".join([*map(excerpt, names[:most]), *more]) or "none"


def suggestion(wrong: str, known: Sequence[str]) -> str:
    """` Did you mean …?` with the most similar name, or an empty text if none is similar.

    A text too long to be a typing error gets no suggestion: comparing it could take minutes.
    """
    if len(wrong) > MAX_EXCERPT:
        return ""
    close = get_close_matches(wrong, known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
