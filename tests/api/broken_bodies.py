"""Bodies that were right and are broken: parts replaced, removed, doubled, cut off; or no JSON at all."""

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

#: values that are wrong nearly everywhere
JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    1e308,
    2**63,
    "",
    "x",
    "\0",
    "\ud800",
    [],
    {},
    [[]],
    {"a": []},
    "é" * 300,
]
NOT_JSON = [b"", b"[]", b"null", b"\xff\xfe", b"[" * 5000, b'"x"', b"{}"]


def broken(rng: random.Random, right: Any, words: Sequence[str] = ()) -> bytes:
    """A body made of a right one; `words` are texts that mean something somewhere in such bodies."""
    body = copy.deepcopy(right)
    for _ in range(rng.randint(1, 3)):
        _change(rng, body, words)
    written = json.dumps(body).encode()
    match rng.randrange(12):
        case 0:
            return written[: rng.randrange(len(written))]
        case 1:
            place = rng.randrange(len(written))
            return written[:place] + bytes([rng.randrange(256)]) + written[place + 1 :]
        case 2:
            return rng.choice(NOT_JSON)
    return written


def _change(rng: random.Random, value: Any, words: Sequence[str]) -> None:
    """Changes one place within an object or an array."""
    places = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not places:
        return
    place = rng.choice(places)
    inner = value[place]
    if isinstance(inner, dict | list) and inner and rng.random() < 0.75:
        _change(rng, inner, words)
    elif rng.random() < 0.2:
        del value[place]
    elif rng.random() < 0.2 and isinstance(value, list):
        value.append(copy.deepcopy(inner))
    else:
        value[place] = copy.deepcopy(rng.choice([*JUNK, *words]))
