"""Views and reducers: what of a conversation the model is sent."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from threads_setup import (
    SYSTEM,
    conversations,
    exchange,
    parts,
    prompt_of,
    said,
    tool_round,
)

from tealagents.domain.errors import ModelFailed, ViewFailed
from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.domain.models import FinishReason, Json, Message, TokenUsage
from tealagents.domain.ports import ModelCall
from tealagents.testing.models import ScriptedModel
from tealagents.threads import LocalThread
from tealagents.threads.components import open_reducer, open_view
from tealagents.threads.errors import ThreadConfigError
from tealagents.threads.states import restore_context
from tealagents.threads.tokens import counter_for, message_tokens
from tealagents.threads.views import Part, Reducer, Upcoming, View, newest_first, parts_of


def reducer(name: str, **options: Any) -> Reducer:
    return open_reducer(name, options)


async def sent(view: View, rounds: Any, running: Any, **fields: Any) -> list[Json]:
    composed = await prompt_of(view, rounds, running, **fields).compose()
    return [msgspec.json.decode(part) for part in composed.parts]


def contents(messages: list[Json]) -> list[str]:
    return [str(message["content"]) for message in messages]


HELLOS = [exchange(f"q{n}", f"a{n}") for n in range(5)]


# --- each reducer ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "shown"),
    [
        (1, ["now"]),
        (2, ["a4", "now"]),
        (4, ["a3", "q4", "a4", "now"]),
        (11, ["q0", "a0", "q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4", "now"]),
    ],
)
async def test_message_count_sends_the_last_messages(most: int, shown: list[str]) -> None:
    """As many as `max_messages` says, the new one included, the system prompt not counted.

    covers: THREAD-8
    """
    view = View([reducer("message_count", max_messages=most)])
    assert contents(await sent(view, HELLOS, [said("user", "now")])) == [SYSTEM, *shown]


async def test_a_call_goes_only_together_with_its_results() -> None:
    """Where a call with two results does not fit whole, all three are left out. covers: THREAD-8"""
    history = [[said("user", "q"), *tool_round("r1", "r2"), said("assistant", "a")]]
    for most in (1, 2, 3, 4):
        view = View([reducer("message_count", max_messages=most)])
        shown = await sent(view, history, [said("user", "now")])
        assert contents(shown)[1:] == (["a", "now"] if most > 1 else ["now"])
    view = View([reducer("message_count", max_messages=5)])
    assert contents(await sent(view, history, [said("user", "now")]))[1:] == ["", "r1", "r2", "a", "now"]


async def test_the_running_round_is_kept_whole() -> None:
    """However many messages it has; then nothing of the history is left."""
    running = [said("user", "now"), *tool_round("r1", "r2"), *tool_round("r3")]
    view = View([reducer("message_count", max_messages=2)])
    assert contents(await sent(view, HELLOS, running))[1:] == ["now", "", "r1", "r2", "", "r3"]


async def test_the_view_narrows_as_the_running_round_grows() -> None:
    """Each call of the model keeps to the count, with the results that have come in. covers: THREAD-8"""
    prompt = prompt_of(View([reducer("message_count", max_messages=4)]), HELLOS, [said("user", "now")])
    assert len((await prompt.compose()).parts) == 5
    for message in tool_round("result"):
        prompt.add(message)
    shown = [msgspec.json.decode(part) for part in (await prompt.compose()).parts]
    assert contents(shown) == [SYSTEM, "a4", "now", "", "result"]


@pytest.mark.parametrize(("most", "first"), [(1, "now"), (2, "q4"), (4, "q2"), (6, "q0"), (99, "q0")])
async def test_sliding_window_sends_whole_rounds(most: int, first: str) -> None:
    """The view begins with what the user said. covers: THREAD-8"""
    view = View([reducer("sliding_window", max_rounds=most)])
    assert contents(await sent(view, HELLOS, [said("user", "now")]))[1] == first


async def test_token_budget_sends_what_fits() -> None:
    """System prompt, tools and the running round are paid for first. covers: THREAD-8"""
    running = [said("user", "now")]
    count = counter_for("gpt-4o", "estimate").count
    weight = {n: sum(message_tokens(each, count, 0) for each in HELLOS[n]) for n in range(5)}
    fixed = 4 + count(SYSTEM) + message_tokens(running[0], count, 0)
    for rounds in range(6):
        budget = fixed + sum(weight[n] for n in range(5 - rounds, 5))
        view = open_view([("token_budget", {"max_tokens": budget, "tokenizer": "estimate"})], "any")
        assert view is not None
        assert len(await sent(view, HELLOS, running)) == 2 + 2 * rounds


class Reasoning(ScriptedModel):
    """A model that is sent native data."""

    def encode(self, message: Message) -> bytes:
        return msgspec.json.encode([msgspec.Raw(super().encode(message)), message.native])


@pytest.mark.parametrize(("model", "shown"), [(ScriptedModel(), True), (Reasoning(), False)])
async def test_native_data_counts_if_the_model_is_sent_it(model: ScriptedModel, shown: bool) -> None:
    """That of another model, or of another client, is not. covers: THREAD-8"""
    asked, result = tool_round("done")
    earlier = [[said("user", "look"), replace(asked, native="reasoning " * 100), result]]
    view = View([reducer("token_budget", max_tokens=100, tokenizer="estimate")])
    composed = await prompt_of(view, earlier, [said("user", "now")], model=model).compose()
    assert (len(composed.parts) == 5) is shown


@pytest.mark.parametrize(
    ("options", "model", "budget"),
    [
        ({"max_tokens": 1000}, "unheard-of", 1000),
        ({"max_tokens": 1000, "reserve": 300}, "unheard-of", 700),
        ({}, "gpt-4o-mini-2024-07-18", 128_000 - 4096),
        ({}, "openai/gpt-4o", 128_000 - 4096),
        ({"reserve": 0}, "gpt-4", 8192),
        ({"windows": {"mine": 5000}}, "mine-large", 904),
        ({"windows": {"gpt-4o": 5000, "gpt-4o-mini": 6000}, "reserve": 1000}, "gpt-4o-mini", 5000),
    ],
)
async def test_the_budget_is_the_models_window(options: Json, model: str, budget: int) -> None:
    """Or what the operator says; of a window something is reserved for the answer."""
    view = open_view([("token_budget", {**options, "tokenizer": "estimate"})], model)
    assert view is not None
    assert view.reducers[0]._budget == budget  # type: ignore[attr-defined]


async def test_results_of_tools_are_cut_but_the_newest() -> None:
    """Calls stay; a cut result says how much is missing; the running round is not touched.

    covers: THREAD-8
    """
    history = [[said("user", "q"), *tool_round("x" * 30, "y" * 30), said("assistant", "a")]]
    running = [said("user", "now"), *tool_round("z" * 30)]
    view = View([reducer("trim_tool_results", max_characters=5)])
    shown = contents(await sent(view, history, running))
    assert shown[3:5] == ["xxxxx… [25 characters left out]", "yyyyy… [25 characters left out]"]
    assert shown[-1] == "z" * 30
    view = View([reducer("trim_tool_results", max_characters=5, keep_last=2)])
    assert contents(await sent(view, history, running))[3:5] == ["xxxxx… [25 characters left out]", "y" * 30]
    assert history[0][2].text == "x" * 30


async def test_reducers_are_applied_in_their_order() -> None:
    """The second works on what the first has left. covers: THREAD-8"""
    history = [[said("user", "q"), *tool_round("word " * 200), said("assistant", "a")]]
    trim = ("trim_tool_results", {"max_characters": 10})
    budget = ("token_budget", {"max_tokens": 100, "tokenizer": "estimate"})
    running = [said("user", "now")]
    cut_first, cut_last = open_view([trim, budget], "m"), open_view([budget, trim], "m")
    assert cut_first is not None
    assert cut_last is not None
    assert len(await sent(cut_first, history, running)) == 6
    assert contents(await sent(cut_last, history, running)) == [SYSTEM, "a", "now"]


async def test_a_budget_holds_wherever_it_stands() -> None:
    """A remark on what was cut may be longer than that: the budget has the last word. covers: THREAD-8"""
    history = [[said("user", "q"), *tool_round("xx"), said("assistant", "a")] for _ in range(4)]
    running = [said("user", "now")]
    budget, trim = {"max_tokens": 100, "tokenizer": "estimate"}, {"max_characters": 1}
    view = open_view([("token_budget", budget), ("trim_tool_results", trim)], "any")
    assert view is not None
    shown = await sent(view, history, running)
    count = counter_for("any", "estimate").count
    assert sum(_tokens(message, count) for message in shown) <= 100


# --- summaries ------------------------------------------------------------------------------------


def summarising(text: str = "They talked.") -> ScriptedModel:
    return ScriptedModel(lambda messages: text if "Summarise" in messages[-1]["content"] else "ok")


async def test_a_summary_takes_the_place_of_what_lies_further_back() -> None:
    """It is made once, sent after the system prompt, and reused until enough has come together.

    covers: THREAD-8
    """
    view = View([reducer("summarize", max_messages=6, keep_messages=2)])
    model = summarising()
    memory: dict[str, Json] = {}
    history = list(HELLOS)
    shown = contents(await sent(view, history, [said("user", "now")], model=model, memory=memory))
    assert shown[0] == SYSTEM
    assert shown[1].endswith("They talked.")
    assert shown[2:] == ["q4", "a4", "now"]
    assert len(model.calls) == 1
    for n in range(5, 7):
        history.append(exchange(f"q{n}", f"a{n}"))
        await sent(view, history, [said("user", "now")], model=model, memory=memory)
    assert len(model.calls) == 1
    history.append(exchange("q7", "a7"))
    await sent(view, history, [said("user", "now")], model=model, memory=memory)
    assert len(model.calls) == 2
    asked = contents(model.calls[-1].messages)
    assert "They talked." in asked[0]
    assert "q3" not in asked[1]
    assert "q4" in asked[1]


async def test_a_summary_is_made_storable() -> None:
    """The task that it is kept in can be exported and imported. covers: THREAD-8, TASK-5"""
    view = View([reducer("summarize", max_messages=6, keep_messages=2)])
    memory: dict[str, Json] = {}
    model = ScriptedModel(lambda _: "They\0 talked \ud83d")
    composed = await prompt_of(view, HELLOS, [said("user", "now")], model=model, memory=memory).compose()
    assert memory["summarize"]["text"] == "They\ufffd talked \ufffd"
    assert composed.reports[0].output == {"summary": "They\ufffd talked \ufffd"}


async def test_a_summary_is_not_read_behind() -> None:
    """What it covers is not asked for again."""
    view = View([reducer("summarize", max_messages=6, keep_messages=2)])
    memory: dict[str, Json] = {"summarize": {"upto": 3, "text": "before"}}
    looked: list[Part] = []
    await sent(view, HELLOS, [said("user", "now")], memory=memory, looked=looked)
    assert [part.turn for part in looked] == [4, 4]


async def test_without_a_summary_the_messages_stay() -> None:
    """A model that fails costs the summary, not the request; the trace says so. covers: THREAD-8"""
    view = View([reducer("summarize", max_messages=6, keep_messages=2)])
    model = ScriptedModel(lambda _: ModelFailed("The model service is away."))
    prompt = prompt_of(view, HELLOS, [said("user", "now")], model=model)
    composed = await prompt.compose()
    assert len(composed.parts) == 12
    (report,) = composed.reports
    assert report.is_error
    assert report.output == {"error": "The model service is away."}


class Leaking(ScriptedModel):
    """A client whose errors quote its key."""

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        raise ValueError("GET https://api.example?key=4711 failed")
        yield


class Textless(ScriptedModel):
    """A client whose pieces hold no text."""

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        yield [TextDelta(None)]  # type: ignore[arg-type]
        yield [ModelDone(finish_reason="stop")]


class Returning(ScriptedModel):
    """A client whose stream is a list."""

    def stream(self, call: ModelCall) -> Any:
        return []


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Leaking(), "it raised ValueError"),
        (Textless(), "it raised TypeError"),
        (Returning(), "its stream returned list, not an async generator"),
    ],
)
async def test_a_faulty_model_client_costs_the_summary_alone(
    model: ScriptedModel, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises. The trace names the client; only the log has what it said. covers: THREAD-8"""
    view = View([reducer("summarize", max_messages=6, keep_messages=2)])
    composed = await prompt_of(view, HELLOS, [said("user", "now")], model=model).compose()
    name = type(model).__name__
    assert len(composed.parts) == 12
    (report,) = composed.reports
    assert report.output == {"error": f"The model client {name} is faulty: {why}. Contact the operator."}
    (record,) = caplog.records
    assert (record.getMessage(), bool(record.exc_info)) == (f"the model client {name} failed", True)


class Stopping(ScriptedModel):
    """Ends all that it says with the same reason."""

    def __init__(self, reason: FinishReason) -> None:
        super().__init__()
        self._reason = reason

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
        yield [TextDelta("I cannot"), ModelDone(finish_reason=self._reason, usage=TokenUsage(9, 2, 11))]


@pytest.mark.parametrize("reason", ["refusal", "content_filter", "length"])
async def test_what_is_no_summary_replaces_no_messages(reason: FinishReason) -> None:
    """A refusal, or a summary that was cut, is not kept; its tokens count, and the trace says why.
    covers: THREAD-8"""
    view = View([reducer("summarize", max_messages=6, keep_messages=2)])
    memory: dict[str, Json] = {}
    prompt = prompt_of(view, HELLOS, [said("user", "now")], model=Stopping(reason), memory=memory)
    composed = await prompt.compose()
    assert (len(composed.parts), memory) == (12, {})
    (report,) = composed.reports
    assert (report.is_error, report.usage) == (True, TokenUsage(9, 2, 11))
    assert report.output == {"error": f"the model ended with {reason}"}


@pytest.mark.parametrize("trigger", ["before_retrieval", "after_message_added"])
async def test_a_reducer_works_when_its_trigger_says(trigger: str) -> None:
    """Before messages are retrieved, or after one was added: either makes the same view. covers: THREAD-8"""
    view = View([reducer("summarize", max_messages=6, keep_messages=2, trigger=trigger)])
    model = summarising()
    memory: dict[str, Json] = {}
    prompt = prompt_of(view, HELLOS, [said("user", "now")], model=model, memory=memory)
    await prompt.compose()
    assert len(model.calls) == (1 if trigger == "before_retrieval" else 0)
    await prompt.finish(said("assistant", "then"))
    assert len(model.calls) == 1
    assert memory["summarize"]["text"] == "They talked."


# --- what is promised of every view ---------------------------------------------------------------

trigger = st.sampled_from(["before_retrieval", "after_message_added"])
any_reducer = st.one_of(
    st.builds(lambda n, t: ("message_count", {"max_messages": n, "trigger": t}), st.integers(1, 20), trigger),
    st.builds(lambda n, t: ("sliding_window", {"max_rounds": n, "trigger": t}), st.integers(1, 8), trigger),
    st.builds(
        lambda n, t: ("token_budget", {"max_tokens": n, "tokenizer": "estimate", "trigger": t}),
        st.integers(1, 400),
        trigger,
    ),
    st.builds(
        lambda n, k, t: ("trim_tool_results", {"max_characters": n, "keep_last": k, "trigger": t}),
        st.integers(0, 50),
        st.integers(0, 4),
        trigger,
    ),
    st.builds(
        lambda n, k, t: ("summarize", {"max_messages": n + k, "keep_messages": k, "trigger": t}),
        st.integers(2, 8),
        st.integers(0, 4),
        trigger,
    ),
)


@settings(max_examples=300)
@given(conversation=conversations, components=st.lists(any_reducer, min_size=1, max_size=3))
async def test_every_view_keeps_its_promises(
    conversation: tuple[list[list[Message]], list[Message]], components: list[tuple[str, Json]]
) -> None:
    """No orphaned call or result, the system prompt first, within the budgets, what is stored untouched, for
    random conversations with tool calls under every reducer. covers: THREAD-8"""
    rounds, running = conversation
    before = deepcopy(rounds)
    view = open_view(components, "any")
    assert view is not None
    shown = await sent(view, rounds, running, model=summarising())
    assert contents(shown)[0] == SYSTEM
    standing = [message for message in shown[1:] if message["role"] == "system"]
    spoken = [message for message in shown if message["role"] != "system"]
    _calls_and_results_match(spoken)
    _ends_with(spoken, running)
    _within(dict(components), spoken, standing, running)
    assert rounds == before


def _calls_and_results_match(messages: list[Json]) -> None:
    """Every result directly behind its call, every call with its result."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert open_calls.pop(0) == message["tool_call_id"]
        else:
            assert not open_calls
            open_calls = [each["id"] for each in message.get("tool_calls", ())]
    assert not open_calls


def _ends_with(messages: list[Json], running: list[Message]) -> None:
    assert contents(messages)[-len(running) :] == [message.text for message in running]


def _within(
    options: dict[str, Json], spoken: list[Json], standing: list[Json], running: list[Message]
) -> None:
    """The limits hold, but for what is sent in any case."""
    if "message_count" in options:
        assert len(spoken) <= max(options["message_count"]["max_messages"], len(running))
    if "sliding_window" in options:
        users = sum(message["role"] == "user" for message in spoken)
        assert users <= options["sliding_window"]["max_rounds"]
    if "token_budget" in options and not standing:
        count = counter_for("any", "estimate").count
        tokens = 4 + count(SYSTEM) + sum(_tokens(message, count) for message in spoken)
        least = 4 + count(SYSTEM) + sum(message_tokens(message, count, 0) for message in running)
        assert tokens <= max(options["token_budget"]["max_tokens"], least)


def _tokens(message: Json, count: Any) -> int:
    calls = message.get("tool_calls", ())
    return int(
        4
        + count(message["content"])
        + sum(8 + count(each["tool"]) + count(each["arguments"]) for each in calls)
    )


@settings(max_examples=100)
@given(conversation=conversations, most=st.integers(1, 20))
async def test_a_view_looks_at_no_more_than_it_shows(
    conversation: tuple[list[list[Message]], list[Message]], most: int
) -> None:
    """At most one part is asked for that does not fit. covers: THREAD-8"""
    rounds, running = conversation
    for name, options in (
        ("message_count", {"max_messages": most}),
        ("sliding_window", {"max_rounds": most}),
        ("token_budget", {"max_tokens": most * 20, "tokenizer": "estimate"}),
    ):
        looked: list[Part] = []
        view = View([open_reducer(name, options)])
        shown = await view.show(
            _recorded(parts(rounds), looked), Upcoming(model=ScriptedModel(), running=parts_of(running))
        )
        assert len(looked) <= len(shown.parts) + 1


async def _recorded(all_parts: list[Part], looked: list[Part]) -> AsyncIterator[Part]:
    async for part in newest_first(all_parts):
        looked.append(part)
        yield part


# --- what is reported -----------------------------------------------------------------------------


async def test_what_was_left_out_is_reported() -> None:
    """Everything before a message, and each that is shown otherwise; once, while it stays so.

    covers: THREAD-8
    """
    history = [*HELLOS, [said("user", "q"), *tool_round("x" * 50), said("assistant", "a")]]
    view = View([reducer("trim_tool_results", max_characters=5), reducer("message_count", max_messages=5)])
    prompt = prompt_of(view, history, [said("user", "now")])
    (report,) = (await prompt.compose()).reports
    assert report.kind == "reduction"
    assert report.input == {"reducers": ["trim_tool_results", "message_count"]}
    assert report.output == {
        "kept_messages": 4,
        "everything_before": history[-1][0].message_id,
        "altered": [history[-1][2].message_id],
    }
    assert not (await prompt.compose()).reports


async def test_it_is_reported_once_that_everything_is_shown_again() -> None:
    """The last report holds for every later call of the request. covers: THREAD-8"""

    async def hesitant(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
        async for part in parts:
            if len(upcoming.running) == 1:
                return
            yield part

    prompt = prompt_of(View([hesitant]), HELLOS, [said("user", "now")])
    (omitted,) = (await prompt.compose()).reports
    assert omitted.output is not None
    assert omitted.output["kept_messages"] == 0
    for message in tool_round("done"):
        prompt.add(message)
    (whole,) = (await prompt.compose()).reports
    assert whole.output == {"kept_messages": sum(map(len, HELLOS))}
    assert not (await prompt.compose()).reports


async def test_nothing_is_reported_where_everything_is_sent() -> None:
    """A view that leaves nothing out is no step of the trace."""
    for view in (
        View([reducer("message_count", max_messages=11)]),
        View([reducer("sliding_window", max_rounds=6)]),
        View([reducer("token_budget", max_tokens=10_000)]),
        View([reducer("trim_tool_results")]),
        View([reducer("summarize")]),
    ):
        assert not (await prompt_of(view, HELLOS, [said("user", "now")]).compose()).reports


# --- a reducer of one's own -----------------------------------------------------------------------


async def every_other(found: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    """Shows every other round."""
    async for part in found:
        if part.turn % 2 == 0:
            yield part


async def tearing(found: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    """Keeps calls and drops their results."""
    async for part in found:
        yield part.changed(part.messages[:1])


async def failing(found: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    async for part in found:
        raise RuntimeError(f"cannot bear {part.turn}")
        yield part


async def failing_in_a_group(found: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    raise ExceptionGroup("one task", [LookupError("no such part")])
    yield


async def without_yield(found: AsyncIterator[Part], upcoming: Upcoming) -> list[Part]:
    return [part async for part in found]


def raising(found: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    raise RuntimeError("cannot begin")


async def texts_within(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    async for part in parts:
        yield part.changed(["hello"])  # type: ignore[list-item]


async def numbers_within(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    async for part in parts:
        yield part.changed([msgspec.structs.replace(each, items=(5,)) for each in part.messages])


async def leaving(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    raise SystemExit("no such part")
    yield


async def canceled(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    raise asyncio.CancelledError("no such part")
    yield


async def no_messages(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    yield Part(messages=5)  # type: ignore[arg-type]


async def reporting_text(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    upcoming.reports.append("text")  # type: ignore[arg-type]
    async for part in parts:
        yield part


async def numbered(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    yield Part(standing=5)  # type: ignore[arg-type]


async def texts_only(found: AsyncIterator[Any], upcoming: Upcoming) -> AsyncIterator[Any]:
    async for part in found:
        yield part.messages[0].text


async def test_a_plain_function_is_a_reducer() -> None:
    """Named `module:function`, or given as it is. covers: THREAD-8"""
    for view in (View([every_other]), open_view([(f"{__name__}:every_other", {})], "any")):
        assert view is not None
        assert contents(await sent(view, HELLOS, [said("user", "now")]))[1:] == [
            "q0",
            "a0",
            "q2",
            "a2",
            "q4",
            "a4",
            "now",
        ]


async def test_a_reducer_that_tears_a_call_from_its_result_is_stopped() -> None:
    """Nothing is sent: the model service would refuse it. covers: THREAD-8"""
    history = [[said("user", "q"), *tool_round("r"), said("assistant", "a")]]
    with pytest.raises(ViewFailed, match="separated a tool call from its result"):
        await sent(View([tearing]), history, [said("user", "now")])
    with pytest.raises(ViewFailed, match=r"failing failed .*cannot bear 0"):
        await sent(View([failing]), history, [said("user", "now")])


async def test_what_a_reducer_raises_is_made_storable(caplog: pytest.LogCaptureFixture) -> None:
    """It is the error of the request. covers: THREAD-8"""
    caplog.set_level("CRITICAL", "tealagents.threads")  # pytest could not report what it captured

    async def failing(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
        raise LookupError("caf\udce9\0")
        yield

    with pytest.raises(ViewFailed) as failed:
        await sent(View([failing]), HELLOS, [said("user", "now")])
    assert "LookupError: caf\ufffd\ufffd" in failed.value.detail


@pytest.mark.parametrize(
    ("reducers", "why"),
    [
        ([without_yield], "coroutine"),
        ([raising], "cannot begin"),
        ([every_other, raising], "cannot begin"),
        ([failing_in_a_group], "LookupError: no such part"),
        ([leaving], "SystemExit: no such part"),
        ([canceled], "CancelledError: no such part"),
        ([numbers_within], "yielded a Message whose items are not all of the class Item"),
        ([texts_only], "yielded str, not a Part"),
        ([texts_within], "yielded a Part with a str in place of a Message"),
        ([no_messages], "not iterable"),
        ([numbered], "yielded a Part whose standing text is int"),
        ([reporting_text], "reported str, not a Report"),
    ],
)
async def test_a_reducer_that_is_none_is_named(reducers: Any, why: str) -> None:
    """One without `yield`, one that raises when it is called or in a task group, one that yields no parts.

    covers: THREAD-8
    """
    which = "The reducer" if len(reducers) == 1 else "One of the reducers every_other,"
    with pytest.raises(ViewFailed, match=rf"{which} {reducers[-1].__name__} failed .*{why}"):
        await sent(View(reducers), HELLOS, [said("user", "now")])


async def passing(parts: AsyncIterator[Part], upcoming: Upcoming) -> AsyncIterator[Part]:
    async for part in parts:
        yield part


def listing(parts: AsyncIterator[Part], upcoming: Upcoming) -> list[Part]:
    return []


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (failing, "RuntimeError: cannot bear 4"),
        (raising, "RuntimeError: cannot begin"),
        (texts_only, "TypeError: it yielded str, not a Part"),
        (
            without_yield,
            "TypeError: it must be an async generator of (parts, upcoming), but returned coroutine",
        ),
        (listing, "TypeError: it must be an async generator of (parts, upcoming), but returned list"),
    ],
)
async def test_of_several_reducers_the_one_that_failed_is_named(
    broken: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the request's error and in the log, which also has the traceback. covers: THREAD-8"""
    with pytest.raises(ViewFailed) as failed:
        await sent(View([every_other, broken, passing]), HELLOS, [said("user", "now")])
    names = f"every_other, {broken.__name__}, passing"
    assert failed.value.detail == f"One of the reducers {names} failed ({broken.__name__}: {why})."
    (record,) = (each for each in caplog.records if each.name == "tealagents.threads.views")
    assert record.getMessage() == f"the reducer {broken.__name__} failed"
    assert record.exc_info is not None
    assert record.exc_info[1] is failed.value.__cause__


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("mesage_count", {}, "Unknown reducer 'mesage_count'. Known: message_count, .*module:Class"),
        ("message_count", {}, "max_messages: is missing"),
        ("message_count", {"max_messages": 0}, "must be at least 1"),
        (
            "message_count",
            {"max_messages": 3, "keep": 1},
            "keep: unknown key; the keys here are trigger, max_messages",
        ),
        ("message_count", {"max_messages": 3, "trigger": "never"}, "trigger"),
        ("summarize", {"max_messages": 5, "keep_messages": 5}, "keep_messages must be less"),
        ("summarize", {"max_messages": 400}, "max_messages must be less than max_read"),
        ("token_budget", {}, "context window of the model 'mine' is not known.*windows: {mine: 128000}"),
        ("token_budget", {"max_tokens": 10, "reserve": 10}, "leaves nothing"),
        ("token_budget", {"max_tokens": 10, "tokenizer": "base64"}, "Unknown tokenizer 'base64'"),
        ("token_budget", {"max_tokens": 10, "tokenizer": "no.such:count"}, "cannot be imported"),
        ("no.such:Reducer", {}, "there is no module 'no'"),
        ("tealagents.threads.reducers:Nothing", {}, "has no 'Nothing'"),
        (f"{__name__}:every_other", {"n": 1}, "is a function and takes no options"),
        (f"{__name__}:HELLOS", {}, "is neither a function nor a class with __call__"),
        ("builtins:dict", {}, "is neither a function nor a class with __call__"),
    ],
)
def test_what_cannot_be_opened_says_why(name: str, options: Json, complaint: str) -> None:
    """In one sentence, with what to do."""
    with pytest.raises(ThreadConfigError, match=complaint):
        open_view([(name, options)], "mine")


# --- parts ----------------------------------------------------------------------------------------


def test_orphans_are_no_parts() -> None:
    """A call without a result, and a result without a call, which no service takes, are passed over."""
    asked, first, second = tool_round("r1", "r2")
    stray = said("tool", "stray", tool_call_id="nobody", tool="x")
    (only,) = parts_of([asked, stray, second])
    assert [call.id for call in only.messages[0].tool_calls] == [asked.tool_calls[1].id]
    assert only.messages[1:] == (second,)
    assert parts_of([asked]) == []
    assert parts_of([first, stray]) == []
    (spoken,) = parts_of([tool_round("r", text="Let me see.")[0]])
    assert spoken.messages[0].text == "Let me see."
    assert not spoken.messages[0].tool_calls


async def test_rounds_keep_their_numbers_in_a_fork() -> None:
    """Also where it ends within a round, and where messages were added by hand: what a view remembers of
    rounds, as a summary does, is of the same ones. covers: THREAD-8"""
    thread = LocalThread()
    for number in range(1, 7):
        await thread.on_new_messages(exchange(f"q{number}", f"a{number}"))
        thread.checkpoint()
    numbers = {part.messages[0].text: part.turn for part in thread.parts()}
    assert [numbers[f"q{number}"] for number in range(1, 7)] == [1, 2, 3, 4, 5, 6]
    fork = thread.fork(thread.messages[10].message_id)
    numbers = {part.messages[0].text: part.turn for part in fork.parts()}
    assert [numbers[f"q{number}"] for number in range(1, 7)] == [1, 2, 3, 4, 5, 6]


def test_what_has_not_grown_is_kept_where_a_thread_remembers_too_much() -> None:
    """What has grown made it too large, and not what is large. covers: THREAD-10"""
    before = {"view": {"large": ["x" * 200_000, 8]}, "providers": {"small": {"n": 1}}}
    context = {"view": {"large": ["x" * 200_000, 9], "new": "y" * 80_000}, "providers": {"small": {"n": 2}}}
    reports = restore_context(context, before)
    assert [report.name for report in reports] == ["new"]
    assert context == {"view": {"large": ["x" * 200_000, 9]}, "providers": {"small": {"n": 2}}}


def test_a_thread_that_remembered_too_much_before_may_shrink() -> None:
    """It stays too large for a while, and what does not add to it is kept. covers: THREAD-10"""
    before = {"view": {"large": "x" * 300_000}, "providers": {"small": {"n": 1}}}
    context = {"view": {"large": "x" * 290_000}, "providers": {"small": {"n": 2}}}
    assert restore_context(context, before) == []
    assert context == {"view": {"large": "x" * 290_000}, "providers": {"small": {"n": 2}}}


def test_numbers_that_take_long_to_read_are_undone_and_no_text_is() -> None:
    """Each has few of them, and together they have too many. covers: THREAD-10"""
    context = {"view": {"text": "x" * 50_000, "one": [1e300] * 60, "two": [1e300] * 70}, "providers": {}}
    (report,) = restore_context(context, {})
    assert report.name == "two"
    assert "numbers" in str(report.output)
    assert sorted(context["view"]) == ["one", "text"]
