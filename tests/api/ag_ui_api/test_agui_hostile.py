"""What is no run on AG-UI's route."""

import sys

import httpx
import pytest
from agui_talk import WEATHER, Json, Page, refusal, run_input, serving, user
from talk import call

from tealagents.api.ag_ui import inputs
from tealagents.api.names import made
from tealagents.domain.ids import random_id
from tealagents.llm.offline import OfflineModel


def test_what_is_no_run_is_refused(ada: httpx.Client) -> None:
    """Other methods, other paths, other types, too much."""
    refusal(ada.get("/ag-ui"), 405, "method_not_allowed")
    refusal(ada.post("/ag-ui/runs", json={}), 404, "not_found")
    refusal(ada.post("/ag-ui", content=b"x", headers={"content-type": "text/plain"}), 422, "invalid_request")
    refusal(
        ada.post("/ag-ui", content=b"{", headers={"content-type": "application/json"}), 400, "invalid_request"
    )
    refusal(ada.post("/ag-ui", json=run_input("t", user("x" * 21_000_000))), 413, "too_large")
    for name in ("threadId", "runId"):
        for value in ("", "x" * 256, 1, None):
            refusal(
                ada.post("/ag-ui", json={**run_input("t", user("x")), name: value}), 422, "invalid_request"
            )
    image = {"type": "image", "source": {"type": "data", "value": "???", "mimeType": "image/png"}}
    sound = {"type": "audio", "source": {"type": "url", "value": "http://127.0.0.1:1/"}}
    for nothing in ("", [], [image], [sound], [{"type": "x.smell"}]):
        refusal(ada.post("/ag-ui", json=run_input("t", user(nothing))), 422, "invalid_request")


def test_parts_of_unknown_types_are_ignored(ada: httpx.Client, model: OfflineModel) -> None:
    """As are those of the protocol that the agent cannot use, whatever is in them; in outputs, too."""
    text = {"type": "text", "text": "hello"}
    others = [{"type": kind, "data": 1} for kind in ("x.smell", "binary", "audio", 5, None)]
    output = {"id": "t", "role": "tool", "toolCallId": "c", "content": others}
    answered = ada.post("/ag-ui", json=run_input("parts", output, user([*others, text])))
    assert answered.status_code == 200, answered.text
    assert model.requests[-1]["body"]["messages"][-1]["content"] == "hello"
    for wrong in ({"messages": 1}, {"messages": [1]}, {"messages": [user([1])]}):
        refusal(ada.post("/ag-ui", json={**run_input("parts"), **wrong}), 422, "invalid_request")


def test_what_only_a_newer_client_knows_is_ignored(ada: httpx.Client, model: OfflineModel) -> None:
    """Messages of other roles, and images from other sources; not what could not be of any version."""
    image = {"type": "image", "source": {"type": "x.cloud", "value": "f"}}
    alien = {"id": "1", "role": "x.alien", "content": "I come in peace", "more": 1}
    messages = [alien, user([{"type": "text", "text": "hello"}, image]), {**alien, "id": "2"}]
    given = run_input("newer", *messages, protocolVersion="1.7")
    answered = ada.post("/ag-ui", json=given)
    assert answered.status_code == 200, answered.text
    assert [m["content"] for m in model.requests[-1]["body"]["messages"][-1:]] == ["hello"]
    assert "peace" not in str(model.requests[-1]["body"])
    for wrong in ({**alien, "role": 5}, {"id": "1", "content": "x"}, user([{"type": "image", "source": {}}])):
        refusal(ada.post("/ag-ui", json=run_input("newer", wrong)), 422, "invalid_request")


UNUSABLE = (
    {"type": "data", "value": "JVBERi0=", "mimeType": "application/pdf"},
    {"type": "data", "value": "_-_-", "mimeType": "image/png"},
    {"type": "data", "value": "", "mimeType": "image/png"},
    {"type": "url", "value": "data:image/svg+xml;utf8,<svg/>"},
    {"type": "url", "value": "https://images.example/x.png"},
    {"type": "file", "value": "file-1", "provider": "openai"},
)


@pytest.mark.parametrize("source", UNUSABLE)
def test_an_image_that_cannot_be_used_is_ignored(page: Page, model: OfflineModel, source: Json) -> None:
    """What is said beside it is answered, and the output of a frontend tool is taken."""
    image = {"type": "image", "source": source}
    page.say([{"type": "text", "text": call("get_weather", place="Rome")}, image], tools=[WEATHER])
    (asked,) = page.messages[-1]["toolCalls"]
    returned = [{"type": "text", "text": "sunny"}, image]
    page.messages.append({"id": "t", "role": "tool", "toolCallId": asked["id"], "content": returned})
    assert page.run()[-1]["outcome"] == {"type": "success"}
    sent = model.requests[-1]["body"]["messages"]
    assert [m["content"] for m in sent if m["role"] == "tool"] == ["sunny"]
    assert "image" not in str(sent)


def test_the_parameters_of_an_images_type_are_left_out(page: Page, model: OfflineModel) -> None:
    """The image is used."""
    source = {"type": "data", "value": "iVBORw0KGgo=", "mimeType": "image/png; charset=binary"}
    page.say([{"type": "image", "source": source}])
    assert "data:image/png;base64,iVBORw0KGgo=" in str(model.requests[-1]["body"]["messages"])


def test_too_many_parts_are_refused_by_the_name_of_their_field() -> None:
    """As this protocol has it."""
    with serving(limits={"max_items": 3}) as (service, _), service.client() as client:
        many = user([{"type": "text", "text": "x"}] * 4)
        refused = refusal(client.post("/ag-ui", json=run_input("full", many)), 422, "invalid_request")
        assert refused["message"].startswith("messages: has 4 items")


def test_more_answers_than_a_pause_has_calls_are_refused_unread(ada: httpx.Client) -> None:
    """Each of them could name another pause, which would have to be looked up."""
    answers = [
        {"interruptId": made("int", random_id(), 0), "status": "resolved", "payload": {}} for _ in range(1001)
    ]
    body = {**run_input("answers", user("x")), "resume": answers}
    refused = refusal(ada.post("/ag-ui", json=body), 422, "invalid_request")
    assert refused["message"] == "resume: has 1001 items; at most 1000 are accepted"


def test_a_message_whose_id_has_endless_digits_is_one_that_is_not_ours(page: Page) -> None:
    page.say("hello", runId="r")
    answer = page.messages[-1]
    answer["id"] = "_".join(answer["id"].split("_")[:2]) + "_" + "1" * 5000
    assert page.run(runId="r")[-1]["type"] == "RUN_FINISHED"


@pytest.mark.parametrize(
    "kept", [{"messages": 5}, {"messages": [{}]}, {"repeats": {"a": 1}}, {"repeats": [1], "behind": "x"}]
)
def test_what_an_import_says_of_its_clients_is_believed_only_in_its_form(
    page: Page, ada: httpx.Client, kept: Json
) -> None:
    """The thread continues from there."""
    page.say("hello")
    task = f"/tasks/{page.thread}"
    document = ada.get(f"{task}/export").raise_for_status().json()
    for request in document["requests"]:
        request["client"] = kept
    ada.delete(task).raise_for_status()
    ada.post("/tasks/import", json=document).raise_for_status()
    given = run_input(page.thread, user("one"), {**user("two"), "id": "another"})
    answered = ada.post("/ag-ui", json=given)
    assert answered.status_code == 200, answered.text
    assert "RUN_FINISHED" in answered.text


def test_values_under_one_description_are_joined_once() -> None:
    """Each is not added to a copy of those before it, which would cost the square of their number."""

    def joins(count: int) -> int:
        made = 0
        context = [{"description": "page", "value": str(n)} for n in range(count)]
        sent = run_input("t", user("hi"), context=[*context, {"description": "page", "value": ""}])

        def noted(frame: object, event: str, of: object) -> None:
            nonlocal made
            made += event == "c_call" and getattr(of, "__name__", "") == "join"

        sys.setprofile(noted)
        try:
            read = inputs.read(sent)
        finally:
            sys.setprofile(None)
        assert read.message.setup.user_context == {"page": "\n".join(map(str, range(count)))}
        return made

    assert joins(100) == joins(10)
