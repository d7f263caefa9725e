"""What a head holds of its task's history: the path through the log, and the tool calls on it. No I/O."""

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from tealagents.domain.models import Effects, Head, Json, Path, ToolOutcome

#: the number of unanswered requests whose tool calls a head remembers; older ones are only in the log
MAX_EFFECTS = 100
#: bytes of such calls in a head, which is written with every turn
MAX_EFFECTS_BYTES = 96 * 1024
#: characters of a call's arguments that are kept when the calls have to be shortened
FEW_CHARACTERS = 40


def remembering(known: tuple[Effects, ...], latest: Effects) -> tuple[Effects, ...]:
    """`known` and `latest` in their order, without the oldest calls if there is no room for all.

    If calls are dropped, the first one that stays has `cut` set.
    """
    kept: list[Effects] = []
    room = MAX_EFFECTS_BYTES
    every = (*known, latest)
    for effects in reversed(every[-MAX_EFFECTS:]):
        tools, size = effects.tools, sum(map(_size, effects.tools))
        if size > room:
            tools = _newest(tools, room)
            size = sum(map(_size, tools))
        if tools or not kept:
            kept.append(replace(effects, tools=tools))
        room -= size
        if len(tools) < len(effects.tools):
            break
    oldest = every[0]
    if oldest.cut or _count(kept) < _count(every):
        kept[-1] = replace(kept[-1], cut=oldest.cut or oldest.first_seq)
    return tuple(reversed(kept))


def _count(remembered: Iterable[Effects]) -> int:
    return sum(len(effects.tools) for effects in remembered)


def _newest(tools: tuple[ToolOutcome, ...], room: int) -> tuple[ToolOutcome, ...]:
    """The last calls that fit into `room` bytes, each with its arguments cut to `FEW_CHARACTERS`."""
    kept: list[ToolOutcome] = []
    for tool in reversed(tools):
        shortened = replace(tool, arguments=tool.arguments[:FEW_CHARACTERS])
        room -= _size(shortened)
        if room < 0:
            break
        kept.append(shortened)
    return tuple(reversed(kept))


def _size(tool: ToolOutcome) -> int:
    return len(msgspec.json.encode(tool))


def effects_on_path(head: Head) -> tuple[ToolOutcome, ...]:
    """The tool calls of unanswered requests that are part of the current history."""
    return tuple(
        tool for effects in head.effects if holds(head.path, effects.first_seq) for tool in effects.tools
    )


def effects_cut(head: Head) -> bool:
    """Whether the current history may have more such calls, which were dropped for lack of room."""
    return any(
        first <= effects.first_seq and effects.cut <= last
        for effects in head.effects
        if effects.cut
        for first, last in head.path
    )


def extended_by_note(head: Head) -> Head:
    """The head before an entry is appended that belongs to no request, such as a note.

    If its path ends at the log's tail, the path is extended over the new entry.
    """
    if head.occupant is None and head.path and head.path[-1][1] == head.tail_seq:
        return replace(head, path=extend(head.path, head.tail_seq + 1, head.tail_seq + 1))
    return head


def count_rounds(context: Json | None, rounds: int = 1) -> Json | None:
    """A checkpoint's context with its round counter (`turn`) raised, for rounds without the agent's answer:
    added messages, or a part of a round. Summaries refer to rounds by this number."""
    return context and {**context, "turn": context.get("turn", 0) + rounds}


def extend(path: Path, first: int, last: int) -> Path:
    """The path with the entries from `first` to `last` appended; adjacent pairs are merged."""
    if path and path[-1][1] + 1 == first:
        return (*path[:-1], (path[-1][0], last))
    return (*path, (first, last))


def holds(path: Path, seq: int) -> bool:
    """Whether an entry is on a path."""
    return any(first <= seq <= last for first, last in path)


def split(path: Path, last: int) -> tuple[Path, Path]:
    """The part of a path up to and including the entry `last`, and the part after it."""
    n = bisect_right(path, last, key=itemgetter(0))
    if n and path[n - 1][1] > last:
        first, end = path[n - 1]
        return (*path[: n - 1], (first, last)), ((last + 1, end), *path[n:])
    return path[:n], path[n:]


def joined(parts: Iterable[Path]) -> Path:
    """Consecutive paths as one; adjacent pairs are merged."""
    whole: list[tuple[int, int]] = []
    for part in parts:
        if whole and part and whole[-1][1] + 1 == part[0][0]:
            whole[-1] = (whole[-1][0], part[0][1])
            part = part[1:]
        whole.extend(part)
    return tuple(whole)


def current_path(head: Head) -> Path:
    """The head's path, extended over the request that runs or waits for a human."""
    occupant = head.occupant
    if occupant is None or head.tail_seq < occupant.first_seq:
        return head.path
    return extend(head.path, occupant.first_seq, head.tail_seq)
