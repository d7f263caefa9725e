"""Every requirement is named by a test, as in `covers: STATE-3`, and no test names one that there is not."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
#: how many there are of each kind; those of sessions, tasks and requests are counted together
COUNTS = {
    "APP": 7,
    "SESSION TASK REQUEST": 8,
    "FLOW": 2,
    "MODEL": 4,
    "AUTH": 5,
    "STATE": 5,
    "HITL": 3,
    "THREAD": 10,
    "WORKFLOW": 3,
}
_ID = r"[A-Z]+-\d+"
_COVERS = re.compile(rf"covers: ({_ID}(?:,\s+{_ID})*)")


def test_every_requirement_is_named_by_a_test() -> None:
    """And each that is named is one."""
    text = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    named = {name for names in _COVERS.findall(text) for name in re.findall(_ID, names)}
    for kinds, count in COUNTS.items():
        for number in range(1, count + 1):
            ids = {f"{kind}-{number}" for kind in kinds.split()}
            assert ids & named, ids
            named -= ids
    assert not named
