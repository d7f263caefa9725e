"""What clients were answered survives a power cut, whatever the disk then lacks of what was not synced."""

import asyncio
import json
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import power_service
import pytest
from power_cuts import Disk, File, trace

from tealagents.domain.clock import SystemClock
from tealagents.domain.models import RequestRecord, User
from tealagents.state import keys
from tealagents.state.audit import verify
from tealagents.state.records import RecordStore
from tealagents.stores import open_store
from tealagents.testing.pytest_servers import missing

pytestmark = pytest.mark.soak

STORES = {"file": "file://{}/new/state", "sqlite": "sqlite:///{}/new/state.db"}
#: of the moments between two acknowledgements, every so manieth is looked at
STRIDES = {"file": 25, "sqlite": 1}


@pytest.mark.parametrize("store", STORES)
def test_what_was_answered_survives_a_power_cut(store: str, tmp_path: Path) -> None:
    """At each moment two disks are tried: one that keeps the least, and one that keeps more by chance."""
    if shutil.which("strace") is None:
        missing("strace")
    log, before, after = (tmp_path / name for name in ("calls", "before", "after"))
    before.mkdir()
    trace([sys.executable, power_service.__file__, STORES[store].format(before)], log)

    disk = Disk(before)
    acknowledged: list[Any] = []
    moments = 0
    for number, mark in enumerate(disk.replay(log)):
        if mark is not None:
            acknowledged.append(json.loads(bytes.fromhex(mark)))
        elif not acknowledged or number % STRIDES[store]:
            continue
        moments += 1
        for chance in (None, random.Random(number)):
            disk.cut(after, chance)
            assert asyncio.run(lost(STORES[store].format(after), acknowledged)) == [], f"moment {number}"
            shutil.rmtree(after)
    assert len(acknowledged) > len(power_service.USERS) * power_service.MESSAGES
    assert moments > 1.5 * len(acknowledged)
    assert differences(disk) == []


async def lost(url: str, acknowledged: Sequence[Any]) -> list[str]:
    """What is not there as it was acknowledged. A task whose deletion was intended may be gone or not."""
    found: list[str] = []
    doomed = {each["task"] for each in acknowledged if each["what"] == "intention"}
    async with open_store(url, env={}, dotenv=None) as store:
        records = RecordStore(store, "Tester", SystemClock())
        for each in acknowledged:
            task, partition = each["task"], records.partition(User("mock", each["user"]))
            verified = await verify(records, partition, task)
            if each["what"] == "deletion" and verified is not None:
                found.append(f"{task} is not deleted")
            if each["what"] != "answer" or task in doomed:
                continue
            if verified is None or verified.fault is not None:
                found.append(f"{task}: {verified and verified.fault}")
            request = await records.get(partition, keys.request(each["request"]), RequestRecord)
            if request is None or request.value.output != each["output"]:
                found.append(f"{each['request']} has no answer")
    return found


def differences(disk: Disk) -> list[str]:
    """What the model of the disk got wrong, as the real one shows. Shared memory (`-shm`) is no call's."""
    return [
        name
        for name, file in disk.names.items()
        if isinstance(file, File) and not name.endswith("-shm")
        if not Path(name).is_file() or Path(name).read_bytes() != file.content(file.since)
    ]
