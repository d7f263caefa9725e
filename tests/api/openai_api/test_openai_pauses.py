"""Pauses over OpenAI's API: approvals and consents, decided once; each stretch is a response of its own."""

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai_talk import WEATHER, Json, create, kinds, raw, retrieved, said, serving, stream, streamed
from talk import call, lines
from wire import NOBODYS

from tealagents.testing.service import ServiceThread


def approval(request: Json, *, approve: bool = True) -> list[Any]:
    return [{"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}]


def test_an_approval_is_executed_once(wire: httpx.Client, file: Path) -> None:
    """The pause is a completed response with a request for approval; however often answered, it runs once."""
    paused = create(wire, input=call("Work-write", file=str(file), line="one"))
    assert paused["status"] == "completed"
    assert kinds(paused) == ["message", "mcp_approval_request"]
    assert said(paused) == "Approval is needed before Work-write can run."
    request = paused["output"][-1]
    assert (request["server_label"], request["name"]) == ("Work", "write")
    answers = [
        create(wire, input=approval(request), previous_response_id=paused["id"]),
        create(wire, input=approval(request)),
    ]
    assert lines(file) == ["one"]
    first, again = answers
    assert first == again
    assert kinds(first) == ["mcp_call", "message"]
    assert first["output"][0]["approval_request_id"] == request["id"]
    assert first["previous_response_id"] == paused["id"]
    assert retrieved(wire, first["id"]) == first
    assert retrieved(wire, paused["id"]) == paused


def test_a_client_may_name_the_agents_own_tools(wire: httpx.Client, file: Path) -> None:
    """Some ask for approval only of calls to servers that they have named; an address is never taken."""
    named: Any = {"type": "mcp", "server_label": "Work"}
    words = call("Work-write", file=str(file), line="one")
    paused = create(wire, input=words, tools=[named])
    # the config decides what needs it, whatever a client says
    for stated in ("never", "always", {"never": {"tool_names": ["write"]}}):
        create(wire, input="hello", tools=[{**named, "require_approval": stated, "server_url": None}])
    named["require_approval"] = "never"
    done = create(
        wire, input=approval(paused["output"][-1]), tools=[named], previous_response_id=paused["id"]
    )
    assert (kinds(done), lines(file)) == (["mcp_call", "message"], ["one"])


def test_what_would_name_another_server_or_tool_is_refused(wire: httpx.Client) -> None:
    """By the field that does, and with the reason: they are those of the config."""
    server: Json = {"type": "mcp", "server_label": "Work"}
    for tool, field in (
        ({**server, "server_url": "https://example.com"}, "server_url"),
        ({**server, "allowed_tools": ["write"]}, "allowed_tools"),
        ({**server, "authorization": "x"}, "authorization"),
        ({"search_context_size": "low", "type": "web_search"}, "type"),
    ):
        refused = wire.post("/responses", json={"input": "hi", "tools": [tool]})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, f"tools.0.{field}")
        assert "those of its config" in error["message"]


def test_the_stretches_of_a_request_are_replayed_apart(wire: httpx.Client, file: Path) -> None:
    """Each is numbered from 0 and ends as it did, also when the pause is long decided."""
    before = stream(wire, input=call("Work-write", file=str(file), line="one"))
    paused = before[-1]["response"]
    assert before[-1]["type"] == "response.completed"
    after = stream(wire, input=approval(paused["output"][-1]))
    assert after[0]["response"]["id"] != paused["id"]
    for events in (before, after):
        identifier = events[0]["response"]["id"]
        for n in range(-1, len(events)):
            query = {"stream": "true", **({"starting_after": str(n)} if n >= 0 else {})}
            assert streamed(wire.get(f"/responses/{identifier}", params=query).text) == events[n + 1 :]
        final = events[-1]["response"]
        assert retrieved(wire, identifier) == final


def test_what_paused_is_one_response_once_it_is_imported(
    service: ServiceThread, wire: httpx.Client, file: Path
) -> None:
    """It holds all that was done and said, under the ids of each of its responses, and is continued."""
    paused = create(wire, input=call("Work-write", file=str(file), line="one"))
    done = create(wire, input=approval(paused["output"][-1]))
    conversation = done["conversation"]["id"]
    task = f"/tasks/{conversation.removeprefix('conv_')}"
    with service.client() as ada:
        document = ada.get(f"{task}/export").raise_for_status().json()
        ada.delete(task).raise_for_status()
        ada.post("/tasks/import", json=document).raise_for_status()
    whole = retrieved(wire, done["id"])
    assert (kinds(whole), said(whole)) == (["mcp_call", "message"], said(done))
    assert retrieved(wire, paused["id"]) == whole
    assert wire.get(f"/responses/{done['id'][:-1]}3").status_code == 404
    items = wire.get(f"/conversations/{conversation}/items", params={"order": "asc"}).json()["data"]
    assert items[1:] == whole["output"]
    following = create(wire, input="hello", previous_response_id=done["id"])
    assert following["conversation"]["id"] == conversation


@pytest.mark.parametrize("tool", ["Work-write", "get_weather"])
def test_what_was_said_before_a_pause_and_after_it_stays_apart(file: Path, tool: str) -> None:
    """In a branch and after an import, too, which keep neither a rejected call nor one of the client's."""
    asked = {"name": tool, "arguments": {"file": str(file), "line": "one"}}
    rules = [
        {"when": {"text": "go"}, "reply": {"text": "Let me see.", "tool_calls": [asked]}},
        {"when": {"tool_result": True}, "reply": {"text": "Done."}},
    ]
    with serving({"rules": rules}) as (service, _), raw(service) as wire, service.client() as ada:
        paused = create(wire, input="go", tools=[WEATHER])
        waiting = paused["output"][-1]
        output = {"type": "function_call_output", "call_id": waiting.get("call_id"), "output": "sunny"}
        done = create(wire, input=[output] if "call_id" in waiting else approval(waiting, approve=False))
        conversations = [done["conversation"]["id"]]
        for words in ("on", "and on"):  # of which the second branches
            following = create(wire, input=words, previous_response_id=done["id"])
            conversations.append(following["conversation"]["id"])
        task = f"/tasks/{conversations[0].removeprefix('conv_')}"
        document = ada.get(f"{task}/export").raise_for_status().json()
        ada.delete(task).raise_for_status()
        ada.post("/tasks/import", json=document).raise_for_status()
        for conversation in dict.fromkeys(conversations):
            path = f"/conversations/{conversation}/items"
            messages = wire.get(path, params={"order": "asc"}).raise_for_status().json()["data"][1:3]
            assert [each["content"][0]["text"] for each in messages] == ["Let me see.", "Done."]
            answer = retrieved(wire, f"resp_{messages[0]['id'].split('_')[1]}_1")
            assert answer["output"] == messages
            replay = wire.get(f"/responses/{answer['id']}", params={"stream": "true"})
            assert streamed(replay.text)[-1]["response"] == answer


def test_a_fork_shows_calls_as_they_were_made(service: ServiceThread, wire: httpx.Client, file: Path) -> None:
    """None that was rejected, and edited ones as edited. Forks and imports of the fork do so, too."""
    paused = create(wire, input=call("Work-write", file=str(file), line="no"))
    create(wire, input=approval(paused["output"][-1], approve=False))
    task = paused["conversation"]["id"].removeprefix("conv_")

    def calls() -> list[Json]:
        path, whole = f"/conversations/conv_{task}/items", {"order": "asc"}
        listed = wire.get(path, params=whole).raise_for_status().json()["data"]
        return [
            {**item, "id": "", "approval_request_id": None} for item in listed if item["type"] == "mcp_call"
        ]

    with service.client() as ada:
        item = {"content_type": "text", "content": call("Work-write", file=str(file), line="one")}
        asked = ada.post("", json={"task_id": task, "items": [item]}).raise_for_status().json()
        decision = {"id": asked["content"]["tool_calls"][0]["id"], "action": "approve"}
        decision["arguments"] = {"file": str(file), "line": "edited"}
        resume = f"/requests/{asked['request_id']}/resume"
        ada.post(resume, json={"decisions": [decision]}).raise_for_status()
        made = calls()
        assert [json.loads(item["arguments"])["line"] for item in made] == lines(file) == ["edited"]
        for _ in range(2):
            fork = ada.post(f"/tasks/{task}/fork", json={}).raise_for_status().json()
            task = fork["task_id"]
            assert calls() == made
            events = ada.get(f"/requests/{fork['checkpoint_id']}/events").text.splitlines()
            assert [line for line in events if line.startswith("id:")] == ["id: 1", "id: 2"]
        document = ada.get(f"/tasks/{task}/export").raise_for_status().json()
        ada.delete(f"/tasks/{task}").raise_for_status()
        ada.post("/tasks/import", json=document).raise_for_status()
        assert calls() == made


def test_the_use_of_a_request_is_that_of_its_responses(wire: httpx.Client, file: Path) -> None:
    """Tokens are counted for the response that used them."""
    paused = create(wire, input=call("Work-write", file=str(file), line="one"))
    ended = create(wire, input=approval(paused["output"][-1]))
    request = httpx.get(
        f"{str(wire.base_url).removesuffix('/openai/v1/')}/requests/{paused['id'].split('_')[1]}",
        headers={"authorization": "Bearer ada"},
    ).json()
    total = request["token_usage"]["total_tokens"]
    assert paused["usage"]["total_tokens"] + ended["usage"]["total_tokens"] == total


def test_a_rejection_is_reported_to_the_model(wire: httpx.Client, file: Path) -> None:
    """Nothing runs, and the model answers."""
    paused = create(wire, input=call("Work-write", file=str(file), line="one"))
    answer = [{**approval(paused["output"][-1], approve=False)[0], "reason": "not today"}]
    ended = create(wire, input=answer, previous_response_id=paused["id"])
    assert lines(file) == []
    assert "not today" in said(ended)
    (item,) = wire.get(f"/responses/{ended['id']}/input_items").json()["data"]
    assert (item["approve"], item["reason"]) == (False, "not today")


def test_an_output_beside_a_rejection_is_passed_over_where_it_is_of_no_call(
    wire: httpx.Client, file: Path
) -> None:
    """Some clients add one for the rejected call, under an id of their own; it says nothing new.

    With and without the history; one of a call that waits for it, or was made elsewhere, is none of these.
    """
    for resends in (True, False):
        words = {"role": "user", "content": call("Work-write", file=str(file), line="one")}
        paused = create(wire, input=[words])
        request = paused["output"][-1]
        shown = [{"type": "item_reference", "id": item["id"]} for item in paused["output"]]
        own = {"type": "function_call_output", "call_id": "30T8NEeen3094NO5", "output": "no"}
        rejected = [*approval(request, approve=False), own]
        history = [words, *shown] if resends else []
        elsewhere = {"type": "function_call", "name": "own", "arguments": "{}", "call_id": own["call_id"]}
        for refused in (
            [*history, own],
            [*history, *approval(request), own],
            [*history, elsewhere, *rejected],
            [*history, *approval(request, approve=False), {**own, "call_id": request["id"]}],
            [*history, *approval(request, approve=False), {**own, "call_id": f"call_{NOBODYS}_0"}],
        ):
            assert wire.post("/responses", json={"input": refused}).status_code in (400, 404), refused
        ended = create(wire, input=[*history, *rejected])
        assert ended["id"] == create(wire, input=[*history, *reversed(rejected)])["id"]
        assert (lines(file), kinds(ended)) == ([], ["message"])
        answer = {"type": "item_reference", "id": ended["output"][-1]["id"]}
        asked = {"role": "user", "content": "What did I say first?"}
        assert "Work-write" in said(create(wire, input=[words, *shown, *rejected, answer, asked]))


def test_each_call_has_its_own_reason(wire: httpx.Client, file: Path) -> None:
    """The model is sent that of the call that was rejected, and each answer is read as it was sent."""
    words = [call("Work-write", file=str(file), line=line) for line in ("one", "two")]
    paused = create(wire, input=" and ".join(words))
    (first, second) = [item for item in paused["output"] if item["type"] == "mcp_approval_request"]
    answers = [
        {**approval(first)[0], "reason": "fine"},
        {**approval(second, approve=False)[0], "reason": "wrong file"},
    ]
    ended = create(wire, input=answers)
    assert lines(file) == ["one"]
    assert "wrong file" in said(ended)
    assert "fine" not in said(ended)
    items = wire.get(f"/responses/{ended['id']}/input_items", params={"order": "asc"}).json()["data"]
    assert [(item["approve"], item["reason"]) for item in items] == [(True, "fine"), (False, "wrong file")]
    otherwise = [{**each, "reason": "for another"} for each in answers]
    assert create(wire, input=otherwise)["id"] == ended["id"]


@pytest.mark.parametrize("reason", ["x" * 4001, {"because": "I say so"}])
def test_a_reason_that_cannot_be_taken_is_refused(wire: httpx.Client, file: Path, reason: Any) -> None:
    """It is named, and the pause stays: the model is sent reasons in every round from then on."""
    paused = create(wire, input=call("Work-write", file=str(file), line="one"))
    answer = approval(paused["output"][-1], approve=False)[0]
    refused = wire.post("/responses", json={"input": [{**answer, "reason": reason}]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input.0.reason")
    assert "reason given: xxx" in said(create(wire, input=[{**answer, "reason": "x" * 4000}]))


def test_a_long_reason_right_behind_its_request_is_refused(wire: httpx.Client, file: Path) -> None:
    """Each answer may stand behind the request that it answers, in a history that the client keeps."""
    words = " and ".join(call("Work-write", file=str(file), line=line) for line in ("one", "two"))
    first, second = create(wire, input=words)["output"][-2:]
    answers = [approval(each)[0] for each in (first, second)]
    history = [{"role": "user", "content": words}, first, {**answers[0], "reason": "x" * 4001}, second]
    refused = wire.post("/responses", json={"input": [*history, answers[1]]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input.2.reason")
    assert lines(file) == []


def test_a_long_reason_in_a_resent_history_is_no_reason_to_refuse_what_follows(wire: httpx.Client) -> None:
    """It decided long ago, or elsewhere."""
    decided = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    history = [
        {"role": "user", "content": "hi"},
        {**decided, "reason": "x" * 5000},
        {"role": "assistant", "content": "Done."},
    ]
    assert create(wire, input=[*history, {"role": "user", "content": "and now?"}])["status"] == "completed"


def test_what_does_not_answer_a_pause_is_refused(ada: OpenAI, eve: OpenAI, file: Path) -> None:
    """Another message, another answer, another's answer, one for another call."""
    words = call("Work-write", file=str(file), line="one")
    paused = ada.responses.create(model="Tester", input=words)
    with pytest.raises(openai.ConflictError) as pending:
        ada.responses.create(model="Tester", input="go on", previous_response_id=paused.id)
    assert pending.value.code == "approval_pending"
    request = paused.output[-1].to_dict()
    with pytest.raises(openai.NotFoundError):
        eve.responses.create(model="Tester", input=approval(request))
    output: Any = {"type": "function_call_output", "call_id": request["id"], "output": "no"}
    for answer in (
        [output],
        approval(request) * 2,
        [*approval(request), {"role": "user", "content": "x"}],
    ):
        with pytest.raises(openai.BadRequestError):
            ada.responses.create(model="Tester", input=answer)
    assert lines(file) == []
    elsewhere = ada.responses.create(model="Tester", input="hello")
    foreign = eve.responses.create(model="Tester", input="hello")
    for about in (
        {"previous_response_id": "resp_nope"},
        {"previous_response_id": foreign.id},
        {"previous_response_id": elsewhere.id},
        {"conversation": "conv_nope"},
        {"conversation": foreign.conversation and foreign.conversation.id},
    ):
        with pytest.raises(openai.NotFoundError):
            ada.responses.create(model="Tester", input=approval(request), extra_body=about)
    with pytest.raises(openai.BadRequestError) as stored:
        ada.responses.create(model="Tester", input=approval(request), store=False)
    assert stored.value.param == "store"
    assert lines(file) == []
    ended = ada.responses.create(model="Tester", input=approval(request))
    with pytest.raises(openai.ConflictError) as decided:
        ada.responses.create(model="Tester", input=approval(request, approve=False))
    assert decided.value.code == "already_decided"
    with pytest.raises(openai.BadRequestError):
        ada.responses.create(model="Tester", input="go on", previous_response_id=paused.id)
    assert ada.responses.create(model="Tester", input="go on", previous_response_id=ended.id).output_text


@pytest.mark.parametrize("made", ["1", f"{NOBODYS}_0"])
def test_an_answer_to_a_call_that_nobody_made_is_not_found_whatever_its_id_looks_like(
    ada: OpenAI, made: str
) -> None:
    """Of this service's form, or another's: as any id that is unknown."""
    approved: Any = {"type": "mcp_approval_response", "approval_request_id": f"mcpr_{made}", "approve": True}
    returned: Any = {"type": "function_call_output", "call_id": f"call_{made}", "output": "x"}
    for answer in (approved, returned):
        with pytest.raises(openai.NotFoundError) as unknown:
            ada.responses.create(model="Tester", input=[answer])
        assert unknown.value.code == "not_found"
    told: Any = {"role": "tool", "tool_call_id": f"call_{made}", "content": "x"}
    with pytest.raises(openai.NotFoundError):
        ada.chat.completions.create(model="Tester", messages=[told])


def test_a_pause_that_is_not_stored_is_answered(ada: OpenAI, file: Path) -> None:
    """With `store: false` throughout, nothing is left behind the last response."""
    words = call("Work-write", file=str(file), line="one")
    paused = ada.responses.create(model="Tester", input=words, store=False)
    request = paused.output[-1].to_dict()
    ended = ada.responses.create(model="Tester", input=approval(request), store=False)
    assert lines(file) == ["one"]
    for each in (paused, ended):
        with pytest.raises(openai.NotFoundError):
            ada.responses.retrieve(each.id)


def test_a_request_has_no_response_before_its_first(ada: OpenAI, file: Path) -> None:
    """Responses of a request are numbered from 1; the number before is no way around its pause."""
    paused = ada.responses.create(model="Tester", input=call("Work-write", file=str(file), line="one"))
    assert paused.id.endswith("_1")
    for act in (ada.responses.retrieve, ada.responses.cancel, ada.responses.delete):
        with pytest.raises(openai.NotFoundError):
            act(paused.id[:-1] + "0")


def test_a_consent_is_a_link_in_the_text(wire: httpx.Client, file: Path, tmp_path: Path) -> None:
    """Where the user's own consent is needed, its address is cited; approved again, the call runs."""
    consent = tmp_path / "consent"
    words = call("Work-enter", file=str(file), consent=str(consent))
    asked = create(wire, input=words)
    paused = create(wire, input=approval(asked["output"][-1]))
    assert kinds(paused) == ["mcp_call", "message", "mcp_approval_request"]
    assert paused["output"][0]["status"] == "incomplete"
    (part,) = paused["output"][1]["content"]
    (citation,) = part["annotations"]
    assert citation["url"] == "https://secrets.example/consent"
    assert part["text"][citation["start_index"] : citation["end_index"]] == citation["url"]
    consent.touch()
    ended = create(wire, input=approval(paused["output"][-1]))
    assert kinds(ended) == ["mcp_call", "message"]
    assert lines(file) == ["entered"]
    identifier = paused["id"]
    events = streamed(wire.get(f"/responses/{identifier}", params={"stream": "true"}).text)
    assert retrieved(wire, identifier) == events[-1]["response"]


def test_a_cancelled_pause(wire: httpx.Client, file: Path) -> None:
    """Cancelling the response that waits ends its request; its calls can be answered no more."""
    paused = create(wire, input=call("Work-write", file=str(file), line="one"))
    cancelled = wire.post(f"/responses/{paused['id']}/cancel").json()
    assert (cancelled["status"], cancelled["usage"]) == ("cancelled", paused["usage"])
    assert retrieved(wire, paused["id"]) == cancelled
    answer = wire.post("/responses", json={"input": approval(paused["output"][-1])})
    assert answer.status_code == 409
    following = create(wire, input="hello again", previous_response_id=paused["id"])
    assert following["status"] == "completed"
