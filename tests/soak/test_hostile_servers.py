"""The hostile servers of the suite, with the figures that hold on a machine that does nothing else."""

import json
import subprocess
import sys

import outbound_places
import pytest
from hostile_server import HostileServer
from outbound_places import Ending
from test_outbound import MANNERS, MEMORY

pytestmark = pytest.mark.soak

#: seconds in which the event loop answers a health probe, whatever is read meanwhile
HEALTH = 0.1


@pytest.mark.parametrize("manner", MANNERS)
def test_health_answers_while_a_hostile_server_is_read(manner: str) -> None:
    """In each place, at its second attempt: the first pays for imports and connections."""
    with HostileServer("html") as elsewhere, HostileServer(manner, elsewhere.url) as server:
        output = subprocess.run(
            [sys.executable, outbound_places.__file__, "apart", server.url, server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=600,
            check=True,
        ).stdout
    _, second = output.splitlines()
    endings = [Ending(*ending) for ending in json.loads(second)]
    assert [ending for ending in endings if ending.longest > HEALTH or ending.peak > MEMORY] == []
