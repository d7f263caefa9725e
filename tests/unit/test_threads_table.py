"""Every sentence of THREAD and WORKFLOW has a test that fails where the feature is off.

Each line is a mutation that was made by hand, and a part of the name of the test that noticed:

- THREAD-1: threads are saved without their document: `one_abstraction`
- THREAD-2: support is not asked of the client: `local_always_works`
- THREAD-3: a contradicting store is taken: `kind_decides`
- THREAD-4: the remote id is not kept: `remote_thread_is_only`
- THREAD-4: results from before a pause are not sent: `pause_continues`
- THREAD-5: messages of remote threads are not listed: `remote_thread_is_only`
- THREAD-6: a fork ends before its message: `prefix_up_to`
- THREAD-6: a fork may part call and result: `no_fork_between`
- THREAD-6: fingerprints are not compared: `another_configuration`
- THREAD-6: a deleted thread can be used: `deleting_is_for_ever`
- THREAD-7: a rollback leaves what is remembered: `survives_as_json`
- THREAD-7: a task does not go back: `another_way`
- THREAD-8: the running round does not count: `keeps_its_promises or last_messages`
- THREAD-8: a call is a part without its results: `keeps_its_promises`
- THREAD-8: the budget ignores what is sent in any case: `keeps_its_promises`
- THREAD-8: a summary is not kept: `takes_the_place`
- THREAD-8: triggers are ignored: `works_when_its_trigger`
- THREAD-8: what was left out is not reported: `left_out_is_reported`
- THREAD-8: the window is never shrunk and nothing stops the reading: `looks_at_no_more`
- THREAD-9: Redis separates calls from results: `never_separates`
- THREAD-9: Redis adds twice after a lost reply: `lost_reply`
- THREAD-9: remote threads take a store in silence: `no_message_store`
- THREAD-10: state is not kept with the checkpoint: `kept_in_the_thread`
- THREAD-10: a failing provider takes the request down: `reported_and_skipped`
- THREAD-10: a required provider does not: `takes_the_request_down`
- THREAD-10: `invoked` does not get the exception: `failed_request_leaves`
- THREAD-10: memories outlive their task: `goes_with_its_task`
- WORKFLOW-1: all keys are one thread: `side_by_side`
- WORKFLOW-2: the step that failed is forgotten: `resumes_where`
- WORKFLOW-3: a rollback leaves the execution: `back_and_forward`
"""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
REQUIREMENTS = [*(f"THREAD-{n}" for n in range(1, 11)), *(f"WORKFLOW-{n}" for n in range(1, 4))]


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_every_requirement_is_in_the_table(requirement: str) -> None:
    """With the test that noticed."""
    assert f"- {requirement}: " in (__doc__ or "")


def test_the_table_names_tests_that_are_there() -> None:
    """A test that is renamed is renamed in the table."""
    names = "\n".join(
        re.findall(r"def (test_\w+)", "\n".join(p.read_text() for p in TESTS.rglob("test_*.py")))
    )
    for named in re.findall(r"`(\w[\w ]*)`$", __doc__ or "", re.MULTILINE):
        assert any(part in names for part in named.split(" or ")), named
