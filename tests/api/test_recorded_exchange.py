"""The wire of `tealagents/v1alpha1`, byte for byte: a recorded exchange of every route takes place again.

A file of `recorded/` is what one scenario of a module `recorded_….py` sent and was answered: requests,
statuses, all headers, bodies and streams as raw text. JSON that is too long for a line is broken into lines;
nothing is lost by it: without the breaks it is the very text that came.

Masked is what no two runs have in common (ids, times, durations, hashes, ports, cursors: see `recorder.py`),
and sentences for people, which may be worded anew: `detail`, `title` and `message`, in the OpenAPI document
`description` and `summary`. Left out are `Date`, `Server`, `Content-Length`, comments within streams, and the
document of an export, whose form is the project's own affair.

A change of the wire is a change of these files. To record anew, and read the difference before keeping it::

    RECORD=1 .venv/bin/python -m pytest tests/api/test_recorded_exchange.py; git diff tests/api/recorded
"""

import difflib
import json
import os
import re
from pathlib import Path

import pytest
import recorded_failures
import recorded_pauses
import recorded_refusals
import recorded_turns
from recorded_stage import HERE, SCENARIOS
from recorder import Json

#: every scenario is defined in one of these
MODULES = (recorded_turns, recorded_pauses, recorded_refusals, recorded_failures)
#: what only a fault of the service itself, or hours of waiting, would show
UNRECORDED = {"internal_error"}


def path_of(name: str) -> Path:
    return HERE / f"{name}.txt"


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_exchange_is_what_it_was(name: str) -> None:
    """Requests, answers, headers and streams of one scenario are those of the recording."""
    said = SCENARIOS[name]()
    if os.environ.get("RECORD") == "1":
        path_of(name).write_text(said)
    recorded = path_of(name).read_text()
    if said != recorded:
        lines = difflib.unified_diff(
            recorded.splitlines(), said.splitlines(), "recorded", "said", n=12, lineterm=""
        )
        pytest.fail("\n".join(lines), pytrace=False)


def test_every_route_and_every_error_is_recorded() -> None:
    """Of each operation that the recorded OpenAPI document names there is a call, of each code an answer."""
    recorded = {path.stem: path.read_text() for path in sorted(HERE.glob("*.txt"))}
    assert recorded.keys() == SCENARIOS.keys()
    everything = "\n".join(recorded.values())
    called = set(re.findall(r"^([A-Z]+) (/[^?\s]*)", everything, re.MULTILINE))
    document = described(recorded["discovery"])
    missing = [
        f"{method} {path}"
        for path, operations in document["paths"].items()
        for method in operations
        if not any(method.upper() == verb and matches(path, target) for verb, target in called)
    ]
    assert not missing
    codes = set(re.findall(r"urn:tealagents:problem:(\w+)", recorded["discovery"]))
    answered = set(re.findall(r'"code": ?"(\w+)"', everything.replace(recorded["discovery"], "")))
    assert codes - answered <= UNRECORDED


def described(discovery: str) -> Json:
    """The OpenAPI document as it was recorded."""
    document: Json = json.JSONDecoder().raw_decode(discovery, discovery.index('{\n  "openapi"'))[0]
    return document


def matches(template: str, path: str) -> bool:
    pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
    return re.fullmatch(pattern, path) is not None
