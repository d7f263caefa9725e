"""Tools that the client runs: `function_call` items, answered by `function_call_output`."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai_talk import WEATHER, create, kinds, raw, retrieved, said, serving, stream, streamed
from rich.console import Console
from talk import call

from tealagents.cli.chat import chat
from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceThread
from tealagents.testing.waits import until

ASK = call("get_weather", place="Rome")


def output(item: dict[str, Any], text: str = "sunny") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": item["call_id"], "output": text}


def test_a_call_is_answered_by_its_output(wire: httpx.Client) -> None:
    """The model gets what the client's tool returned; sent again, the output gets the same answer."""
    asked = create(wire, input=ASK, tools=[WEATHER])
    assert kinds(asked) == ["function_call"]
    (item,) = asked["output"]
    assert (item["name"], item["status"]) == ("get_weather", "completed")
    assert asked["tools"][0]["name"] == "get_weather"
    answer = create(wire, input=[output(item)], previous_response_id=asked["id"], tools=[WEATHER])
    assert "sunny" in said(answer)
    assert create(wire, input=[output(item)]) == answer
    assert wire.post("/responses", json={"input": [output(item, "rain")]}).status_code == 409
    assert retrieved(wire, asked["id"]) == asked
    (given,) = wire.get(f"/responses/{answer['id']}/input_items").json()["data"]
    assert (given["type"], given["output"]) == ("function_call_output", "sunny")


def test_a_call_is_streamed(wire: httpx.Client) -> None:
    """Its arguments come in events of their own."""
    events = stream(wire, input=ASK, tools=[WEATHER])
    names = [event["type"] for event in events]
    for name in ("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"):
        assert f"response.{name}" in names
    (done,) = (each for each in events if each["type"] == "response.function_call_arguments.done")
    assert done["name"] == "get_weather"
    final = events[-1]["response"]
    assert kinds(final) == ["function_call"]
    replay = wire.get(f"/responses/{final['id']}", params={"stream": "true"})
    assert streamed(replay.text) == events


def test_a_client_that_keeps_the_history(wire: httpx.Client) -> None:
    """It resends all with the output, and all with its next message: nothing is asked twice, all is known."""
    history: list[dict[str, Any]] = [{"role": "user", "content": ASK}]
    asked = create(wire, input=history, tools=[WEATHER])
    history += [*asked["output"], output(asked["output"][0], "sunny in Rome")]
    answer = create(wire, input=history, tools=[WEATHER])
    assert answer["conversation"] == asked["conversation"]
    history += [*answer["output"], {"role": "user", "content": "hello again"}]
    last = create(wire, input=history, tools=[WEATHER])
    assert last["status"] == "completed"
    assert last["conversation"] != asked["conversation"]


def test_each_output_may_stand_right_behind_its_call(wire: httpx.Client) -> None:
    """As a loop over the items writes them, also behind calls that were answered in other responses."""
    elsewhere = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"}
    asked = create(wire, input=f"{ASK} and {ASK}", tools=[WEATHER])
    history: list[dict[str, Any]] = [{"role": "user", "content": f"{ASK} and {ASK}"}]
    for item, text in ((elsewhere, "fog"), *zip(asked["output"], ("sunny", "rainy"), strict=True)):
        history += [item, output(item, text)]
    answer = create(wire, input=history, tools=[WEATHER])
    assert answer["conversation"] == asked["conversation"]
    given = wire.get(f"/responses/{answer['id']}/input_items").json()["data"]
    assert sorted(each["output"] for each in given) == ["rainy", "sunny"]


def test_a_call_for_which_the_model_wrote_no_arguments_has_none() -> None:
    """Clients parse them, whatever the model service sends for none."""
    calls = [{"name": "get_weather", "arguments": written} for written in ("", " ")]
    script = {"rules": [{"when": "go", "reply": {"tool_calls": calls}}]}
    with serving(script) as (service, model), raw(service) as wire:
        asked = create(wire, input="go", tools=[WEATHER])
        assert [item["arguments"] for item in asked["output"]] == ["{}", "{}"]
        create(wire, input=list(map(output, asked["output"])))
        (made,) = (each for each in model.requests[-1]["body"]["messages"] if each["role"] == "assistant")
        assert [each["function"]["arguments"] for each in made["tool_calls"]] == ["{}", "{}"]


def test_calls_that_were_made_elsewhere_are_history(wire: httpx.Client) -> None:
    """A message right behind an output begins a conversation, in which the call is known in words."""
    made = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    ask, more = ({"role": "user", "content": text} for text in (ASK, "hello again"))
    assert create(wire, input=[ask, made, output, more])["status"] == "completed"
    refused = wire.post("/responses", json={"input": [output, more]})
    assert refused.status_code == 400


def test_a_call_with_several_outputs_is_put_into_words_once(wire: httpx.Client, model: OfflineModel) -> None:
    """Once for each, a body of a megabyte would become a history of gigabytes."""
    made = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"}
    outputs = [
        {"type": "function_call_output", "call_id": "call_1", "output": day} for day in ("sun", "rain")
    ]
    ask, more = ({"role": "user", "content": text} for text in (ASK, "hello again"))
    create(wire, input=[ask, made, *outputs, more])
    said = [each["content"] for each in model.requests[-1]["body"]["messages"] if each["role"] == "assistant"]
    assert "\n".join(map(str, said)).count("get_weather({})") == 1
    assert "A call returned: rain" in str(said)


def test_calls_of_a_history_may_have_one_id_in_each_turn(wire: httpx.Client, model: OfflineModel) -> None:
    """As other model services name them: each output is that of the call before it."""
    history: list[dict[str, Any]] = []
    for city, weather in (("Rome", "sun"), ("Oslo", "snow")):
        made = {"type": "function_call", "call_id": "call_0", "name": "get_weather", "arguments": city}
        returned = {"type": "function_call_output", "call_id": "call_0", "output": weather}
        history += [{"role": "user", "content": city}, made, returned]
    create(wire, input=[*history, {"role": "user", "content": "hello"}])
    said = [each["content"] for each in model.requests[-1]["body"]["messages"] if each["role"] == "assistant"]
    assert said == ["get_weather(Rome) returned: sun", "get_weather(Oslo) returned: snow"]


def test_a_message_must_follow_calls_that_were_made_elsewhere(wire: httpx.Client, ada: OpenAI) -> None:
    """A history that ends in their outputs is refused; an unknown id of this service's form is not found."""

    def refused(call_id: str, **options: Any) -> tuple[int, str, str]:
        made = {"type": "function_call", "call_id": call_id, "name": "get_weather", "arguments": "{}"}
        history = [{"role": "user", "content": "hello"}, made, output(made)]
        answer = wire.post("/responses", json={"input": history, **options})
        return answer.status_code, answer.json()["error"]["param"], answer.json()["error"]["message"]

    first = create(wire, input="hello")
    for options in ({}, {"previous_response_id": first["id"]}):
        status, param, words = refused("call_1", **options)
        assert (status, param) == (400, "input.2")
        assert "a user message must follow" in words
    assert refused("call_01890000-0000-7000-8000-000000000000_0")[0] == 404
    made = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    history: Any = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    with pytest.raises(openai.BadRequestError) as unanswerable:
        ada.chat.completions.create(model="Tester", messages=history)
    assert unanswerable.value.param == "messages.2"
    history.append({"role": "user", "content": "hello again"})
    assert ada.chat.completions.create(model="Tester", messages=history).choices[0].message.content


def test_a_call_can_be_referred_to_behind_what_was_said_with_it() -> None:
    """A history of ids alone keeps its name."""
    calls = [{"name": "get_weather", "arguments": {}}]
    script = {"rules": [{"when": "go", "reply": {"text": "I look.", "tool_calls": calls}}]}
    with serving(script) as (service, model), raw(service) as wire:
        asked = create(wire, input="go", tools=[WEATHER])
        assert kinds(asked) == ["message", "function_call"]
        referred = [{"type": "item_reference", "id": item["id"]} for item in asked["output"]]
        ask, more = ({"role": "user", "content": text} for text in ("go", "hello again"))
        create(wire, input=[ask, *referred, output(asked["output"][1]), more])
        sent = model.requests[-1]["body"]["messages"]
        assert "get_weather({}) returned: sunny" in str(sent)


def test_a_call_alone_can_be_referred_to() -> None:
    """Behind it the model knows what was called; another's call, and one that there is not, are not found."""
    script = {"rules": [{"when": "go", "reply": {"tool_calls": [{"name": "get_weather", "arguments": {}}]}}]}
    ask, more = ({"role": "user", "content": text} for text in ("go", "hello again"))
    with serving(script) as (service, model), raw(service) as wire, raw(service, "eve") as eve:
        (made,) = create(wire, input=[ask], tools=[WEATHER])["output"]
        loop = [ask, {"type": "item_reference", "id": made["id"]}, output(made)]
        for behind in ([more], [{"role": "assistant", "content": "It is sunny."}, more]):
            create(wire, input=[*loop, *behind])
            sent = model.requests[-1]["body"]["messages"]
            assert "get_weather({}) returned: sunny" in [each["content"] for each in sent]
        missing = made["id"][:-1] + "1"
        for client, identifier in ((eve, made["id"]), (wire, missing), (wire, "fc_1")):
            referred = {"type": "item_reference", "id": identifier}
            unknown = client.post("/responses", json={"input": [ask, referred, output(made), more]})
            assert (unknown.status_code, identifier in unknown.text) == (404, True)
        assert kinds(create(wire, input=loop)) == ["message"]
        keyed: dict[str, Any] = {"json": {"input": [*loop, more]}, "headers": {"Idempotency-Key": "loop"}}
        first, again = (wire.post("/responses", **keyed).raise_for_status() for _ in range(2))
        assert (again.json(), again.headers["idempotent-replayed"]) == (first.json(), "true")


def test_a_call_that_has_expired_cannot_be_referred_to() -> None:
    """It is not found any more, as its response is not."""
    script = {"rules": [{"when": "go", "reply": {"tool_calls": [{"name": "get_weather", "arguments": {}}]}}]}
    ask, more = ({"role": "user", "content": text} for text in ("go", "hello again"))
    with serving(script) as (service, _), raw(service) as wire, service.client() as ada:
        asked = create(wire, input=[ask], tools=[WEATHER])
        (made,) = asked["output"]
        loop = [ask, {"type": "item_reference", "id": made["id"]}, output(made), more]
        task_id = ada.get(f"/requests/{asked['id'].split('_')[1]}").json()["task_id"]
        soon = datetime.now(UTC) + timedelta(seconds=0.5)
        ada.patch(f"/tasks/{task_id}", json={"expires_at": soon.isoformat()}).raise_for_status()
        until(lambda: wire.get(f"/responses/{asked['id']}").status_code == 404)
        assert wire.post("/responses", json={"input": loop}).status_code == 404


def test_some_answers_to_calls_that_were_decided_come_too_late(
    service: ServiceThread, wire: httpx.Client
) -> None:
    """The others wait no more; before, they are named."""
    asked = create(wire, input=f"{ASK} and {ASK}", tools=[WEATHER])
    answer = {"input": [output(asked["output"][0])]}
    assert "get_weather waits, too" in wire.post("/responses", json=answer).json()["error"]["message"]
    with service.client() as ada:
        request = asked["id"].split("_")[1]
        ada.post(f"/requests/{request}/resume", json={"action": "reject"}).raise_for_status()
    late = wire.post("/responses", json=answer)
    assert (late.status_code, late.json()["error"]["code"]) == (409, "already_decided")
    assert "add a user message" in late.json()["error"]["message"]


def test_a_call_that_is_left_out_of_a_history_was_not_made(wire: httpx.Client) -> None:
    """Without a history that it is missing in, it waits for its output. Later, any output may come alone."""
    asked = create(wire, input=f"{ASK} and {ASK}", tools=[WEATHER])
    first, second = asked["output"]
    elsewhere = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"}
    unknown = {**first, "call_id": first["call_id"][:-1] + "9"}
    for alone in (
        {"input": [output(first)]},
        {"input": [elsewhere, unknown, output(first)]},
        {"input": [first, output(first)], "previous_response_id": asked["id"]},
    ):
        refused = wire.post("/responses", json=alone)
        assert (refused.status_code, "waits, too" in refused.text) == (400, True)
    history = [{"role": "user", "content": f"{ASK} and {ASK}"}, first, output(first)]
    answer = create(wire, input=history, tools=[WEATHER])
    assert answer["conversation"] == asked["conversation"]
    given = wire.get(f"/responses/{answer['id']}/input_items").json()["data"]
    texts = {each["call_id"]: each["output"] for each in given}
    assert texts.pop(first["call_id"]) == "sunny"
    assert [text.partition(".")[0] for text in texts.values()] == ["The client did not make this call"]
    for again in ({"input": history}, {"input": [output(first)], "previous_response_id": asked["id"]}):
        assert create(wire, **again, tools=[WEATHER]) == answer
    late = wire.post("/responses", json={"input": [output(second)]})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "already_decided")


def test_one_of_several_outputs_may_be_sent_again(wire: httpx.Client) -> None:
    """With the others missing in the history, or without a history."""
    asked = create(wire, input=f"{ASK} and {ASK}", tools=[WEATHER])
    first, second = asked["output"]
    answer = create(wire, input=[output(first), output(second, "rain")])
    assert create(wire, input=[output(second, "rain")]) == answer
    history = [{"role": "user", "content": f"{ASK} and {ASK}"}, first, output(first)]
    assert create(wire, input=history) == answer
    assert wire.post("/responses", json={"input": [output(second, "snow")]}).status_code == 409


def test_the_items_say_that_a_call_was_rejected_elsewhere(service: ServiceThread, wire: httpx.Client) -> None:
    """Its output is what the model got; an output that is empty stays empty."""
    asked = create(wire, input=ASK, tools=[WEATHER])
    request, task = asked["id"].split("_")[1], asked["conversation"]["id"]
    with service.client() as ada:
        decision = {"action": "reject", "reason": "no net"}
        ada.post(f"/requests/{request}/resume", json=decision).raise_for_status()
    for path in (f"/responses/resp_{request}_2/input_items", f"/conversations/{task}/items"):
        shown = [each for each in wire.get(path).json()["data"] if each["type"] == "function_call_output"]
        assert [each["output"] for each in shown] == [
            "The user rejected this call; it was not made. The reason given: no net"
        ]
    again = create(wire, input=ASK, tools=[WEATHER])
    answer = create(wire, input=[output(again["output"][0], "")])
    (given,) = wire.get(f"/responses/{answer['id']}/input_items").json()["data"]
    assert given["output"] == ""


def test_what_is_no_answer_is_refused(ada: OpenAI) -> None:
    """An approval or an image for an output, other kinds of tools, a name that is taken."""
    asked = ada.responses.create(model="Tester", input=ASK, tools=[WEATHER])  # type: ignore[list-item]
    approval: Any = {
        "type": "mcp_approval_response",
        "approval_request_id": asked.output[0].id,
        "approve": True,
    }
    image: Any = {
        "type": "function_call_output",
        "call_id": asked.output[0].to_dict()["call_id"],
        "output": [{"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}],
    }
    for answer in (approval, image):
        with pytest.raises(openai.BadRequestError):
            ada.responses.create(model="Tester", input=[answer])
    for tool in ({"type": "web_search"}, {**WEATHER, "name": "Work-note"}, {**WEATHER, "name": "with space"}):
        given: Any = [tool]
        with pytest.raises(openai.BadRequestError):
            ada.responses.create(model="Tester", input="hi", tools=given)


@pytest.mark.parametrize("calls", [1, 2])
def test_in_a_terminal_a_call_that_the_client_runs_can_only_be_rejected(
    service: ServiceThread, wire: httpx.Client, calls: int
) -> None:
    """`tealagents chat` asks no question whose answer would be refused."""
    asked = create(wire, input=" ".join([ASK] * calls), tools=[WEATHER])
    task = asked["conversation"]["id"].removeprefix("conv_")
    screen, questions, answers = io.StringIO(), list[str](), ["R" if calls > 1 else "r", "not now"]

    def answer(question: str) -> str:
        questions.append(question)
        if not answers:
            raise EOFError
        return answers.pop(0)

    console = Console(file=screen, width=200)
    assert chat(service.url, "ada", None, task, console=console, input=answer) == 0, screen.getvalue()
    assert "approve" not in questions[0]
    with service.client("ada") as client:
        assert "The reason given: not now" in client.get(f"/tasks/{task}/messages").text
