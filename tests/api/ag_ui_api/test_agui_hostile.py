"""What is no run on AG-UI's route."""

import httpx
from agui_talk import refusal, run_input, serving, user


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
    refusal(ada.post("/ag-ui", json=run_input("t", user([image]))), 422, "invalid_request")
    sound = {"type": "audio", "source": {"type": "url", "value": "http://127.0.0.1:1/"}}
    for nothing in ("", [], [sound]):
        refusal(ada.post("/ag-ui", json=run_input("t", user(nothing))), 422, "invalid_request")


def test_too_many_parts_are_refused_by_the_name_of_their_field() -> None:
    """As this protocol has it."""
    with serving(limits={"max_items": 3}) as (service, _), service.client() as client:
        many = user([{"type": "text", "text": "x"}] * 4)
        refused = refusal(client.post("/ag-ui", json=run_input("full", many)), 422, "invalid_request")
        assert refused["message"].startswith("messages: has 4 items")
