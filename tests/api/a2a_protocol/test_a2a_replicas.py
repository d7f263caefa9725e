"""A2A on several processes that share a store: nothing depends on the one that was asked first."""

import threading
from pathlib import Path

from a2a_talk import RPC, Wire, answer, decision, message, state, streamed_text
from replicas import replicas
from talk import PLUGINS, call, lines
from wire import lapse

from tealagents.testing.forking import Nursery
from tealagents.testing.waits import until

AGENT = {"plugins": ["Work"]}
ENV = {"TA_PLUGIN_MODULE": str(PLUGINS)}


def at_once(words: str) -> dict[str, object]:
    return {"message": message(words), "configuration": {"returnImmediately": True}}


def test_a_task_is_followed_read_and_repeated_on_another_replica(nursery: Nursery, tmp_path: Path) -> None:
    """The stream is the same, the message id is known, and its end is waited for where it does not run."""
    with (
        replicas(nursery, tmp_path, protocols=["a2a"]) as pair,
        Wire(pair.first, RPC) as first,
        Wire(pair.second, RPC) as second,
    ):
        sent = {"message": message("dripping")}
        stream = first.stream("SendStreamingMessage", sent)
        task = next(stream)["task"]
        follower = second.stream("SubscribeToTask", {"id": task["id"]})
        next(follower)
        found: list[dict[str, object]] = []
        waiting = threading.Thread(target=lambda: found.append(second.result("SendMessage", sent)["task"]))
        second_wire = Wire(pair.second, RPC)
        waiting.start()
        for _ in range(3):
            next(follower)
        assert state(second_wire.get(task["id"])) == "WORKING"
        assert state(second_wire.result("CancelTask", {"id": task["id"]})) == "CANCELED"
        waiting.join(timeout=30)
        assert (found[0]["id"], state(found[0])) == (task["id"], "CANCELED")
        assert state(list(follower)[-1]["statusUpdate"]) == "CANCELED"
        assert state(list(stream)[-1]["statusUpdate"]) == "CANCELED"
        second_wire.client.close()


def test_a_pause_is_decided_on_another_replica(nursery: Nursery, tmp_path: Path) -> None:
    """A client subscribed on the first sees what the second runs."""
    file = tmp_path / "written"
    with (
        replicas(nursery, tmp_path, env=ENV, protocols=["a2a"], agent=AGENT) as pair,
        Wire(pair.first, RPC) as first,
        Wire(pair.second, RPC) as second,
    ):
        task = first.send(call("Work-write", file=str(file), line="one"))
        follower = first.stream("SubscribeToTask", {"id": task["id"]})
        next(follower)
        done = second.result("SendMessage", {"message": decision(task)})["task"]
        assert state(done) == "COMPLETED"
        events = list(follower)
        assert state(events[-1]["statusUpdate"]) == "COMPLETED"
        assert streamed_text(events) == answer(done)
        assert lines(file) == ["one"]


def test_a_task_of_a_killed_process_ends_for_everybody(nursery: Nursery, tmp_path: Path) -> None:
    """Followers elsewhere see its end, its message id answers with that end, and the context continues."""
    with (
        replicas(nursery, tmp_path, protocols=["a2a"]) as pair,
        Wire(pair.first, RPC) as first,
        Wire(pair.second, RPC) as second,
    ):
        sent = at_once("for ever")
        task = first.result("SendMessage", sent)["task"]
        follower = second.stream("SubscribeToTask", {"id": task["id"]})
        assert next(follower)["task"]["id"] == task["id"]
        pair.first.kill()
        lapse(f"sqlite:///{tmp_path}/state.db")
        assert state(list(follower)[-1]["statusUpdate"]) == "FAILED"
        until(lambda: state(second.get(task["id"])) == "FAILED" or None)
        again = second.result("SendMessage", sent)["task"]
        assert (again["id"], state(again)) == (task["id"], "FAILED")
        assert state(second.send(contextId=task["contextId"])) == "COMPLETED"
        listed = second.result("ListTasks", {"contextId": task["contextId"]})["tasks"]
        assert [state(each) for each in listed] == ["COMPLETED", "FAILED"]
