"""The states that reducers and context providers keep in a thread: what cannot be stored is undone.

They may be third-party code, and what they keep is written with every turn.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime
from typing import Literal

from tealagents.domain.errors import InvalidRequest
from tealagents.domain.json_limits import TOO_SLOW, too_slow
from tealagents.domain.models import Json
from tealagents.domain.texts import check_storable, storable
from tealagents.state.codec import encode_json
from tealagents.state.task_document import context_problem
from tealagents.threads.views import Report

#: bytes of JSON that one provider may keep in a thread
MOST_STATE = 16_384
#: section of what a conversation remembers → who keeps it, as the kind of their steps in the trace
_SECTIONS: dict[str, Literal["reduction", "context"]] = {"view": "reduction", "providers": "context"}


def restore_states(states: Mapping[str, Json], before: Json) -> list[Report]:
    """Undoes what made a provider's state in `states` too large, or something else than JSON; reports each
    change."""
    reports = []
    for name, state in states.items():
        if why := _not_json(state) or _too_large(state):
            state.clear()
            state.update(deepcopy(before.get(name) or {}))
            reports.append(_unchanged("context", name, why))
    return reports


def restore_memory(memory: Json, before: Json) -> list[Report]:
    """Undoes, in `memory`, what made a reducer's state something else than JSON; reports each change."""
    reports = []
    for name, value in list(memory.items()):
        if name in before and value == before[name]:
            continue
        if why := _not_json({name: value}):
            _restore(name, memory, before)
            reports.append(_unchanged("reduction", str(name), why))
    return reports


def restore_context(context: Json, before: Json) -> list[Report]:
    """Undoes, in `context`, what has grown most of what reducers and context providers keep, one after the
    other, until all of it can be read and written with every turn; reports each change."""
    reports: list[Report] = []
    while (why := context_problem(context)) and (worst := _worst(context, before, slow=why == TOO_SLOW)):
        section, name = worst
        _restore(name, context[section], before.get(section) or {})
        reports.append(_unchanged(_SECTIONS[section], name, f"what the thread remembers {why}"))
    return reports


def _worst(context: Json, before: Json, *, slow: bool) -> tuple[str, str] | None:
    """Section and name of what has grown most, or most of those with numbers that are `slow` to read."""
    found = []
    for section in _SECTIONS:
        earlier = before.get(section) or {}
        for name, value in context[section].items():
            if name in earlier and value == earlier[name]:
                continue
            encoded = encode_json(value)
            growth = len(encoded) - len(encode_json(earlier.get(name, "")))
            if too_slow(encoded, most=0) if slow else growth > 0:
                found.append((growth, section, name))
    return max(found)[1:] if found else None


def _restore(name: str, kept: Json, before: Json) -> None:
    del kept[name]
    if name in before:
        kept[name] = deepcopy(before[name])


def _not_json(value: object) -> str | None:
    """Why a value cannot be stored in a thread, and imported again with its task; None if it can."""
    try:
        encoded = encode_json(value)
        json.dumps(value, allow_nan=False)  # msgspec writes null for NaN, and text for a date
        check_storable(value)
    except InvalidRequest as refusal:
        return f"{'it' if refusal.field == 'body' else refusal.field} {refusal.reason}"
    except (TypeError, ValueError, RecursionError) as error:
        return f"it is not JSON ({error})"
    return f"it {TOO_SLOW}" if too_slow(encoded) else None


def _too_large(state: Json) -> str | None:
    size = len(encode_json(state))
    return f"it has {size} bytes, more than {MOST_STATE}" if size > MOST_STATE else None


def _unchanged(kind: Literal["reduction", "context"], name: str, why: str) -> Report:
    """The report of a state that could not be kept, and stays as it was."""
    output: Json = {"error": f"its state in the thread was not changed: {why}"}
    return Report(kind=kind, name=storable(name), started_at=datetime.now(UTC), output=output, is_error=True)
