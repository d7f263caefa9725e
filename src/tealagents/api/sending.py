"""What a client sends where a pause ends a response: a message, or answers to the calls of a pause.

The client may keep the history itself, and resend it; it may answer again, and change between two answers
what it tells the model and which tools it runs.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from tealagents.api import bodies, names, requests, stretches
from tealagents.api.decisions import CallAnswer, check_reason
from tealagents.api.exchange import Exchange, RequestView, key_of
from tealagents.api.resent import ADDS_A_MESSAGE, AnsweredCall, Resent, in_words
from tealagents.api.stretches import Stretch
from tealagents.domain.errors import InvalidRequest, NotFound, RequestInProgress
from tealagents.domain.models import AS_CONFIGURED, ENDED, Approval, Caller, Decision, Head, RequestSetup
from tealagents.state.new_message import MOST_EARLIER, Key, NewMessage

#: the kinds of names that calls have: of those that wait for approval, and of the client's own
_CALLS = ("mcpr", "fc", "call")
#: how often a request that failed behind answers is tried again with them; then its last failure stays
MOST_ATTEMPTS = 20
#: what remains as the first response had it, in a request that is tried again too
SET_FIRST = ("background", "metadata")
#: the output of a call that a client has left out of the history that it keeps
_NOT_MADE = CallAnswer(output="The client did not make this call. Repeat it if it is still needed.")
#: what a message continues: a stretch, or a task at its end, as its partition and its head
Continued = Stretch | tuple[str, Head] | None


async def send(
    exchange: Exchange,
    caller: Caller,
    given: Resent,
    message: NewMessage,
    key: Key | None,
    behind: Continued,
    *,
    declared: Collection[int] | None,
    shaped: bool,
    streamed: bool,
) -> Stretch:
    """Begins a request with a message, or continues one with answers to its calls.

    `message` is what a client sends, `given` the history that it is of, `behind` what it continues;
    `declared`: the indexes of the client's own tools in its list; None: it has sent no list; `shaped`: it has
    sent a format of the answer, if only the usual one. Raises what
    `stretches.decided` and `continued` do; `InvalidRequest` where the answers are not those to the calls of
    one request.
    """
    if message.expires_at is not None and message.client.get("background"):
        raise InvalidRequest("background", "needs the response to be stored: leave `store` out")
    fields = {f"tools.{n}": f"tools.{index}" for n, index in enumerate(declared or ())}
    async with bodies.fields_as(**fields):
        if given.answers:
            # a client that resends its history, or sets anything anew, says all that is to hold
            brings = replace(message.setup, tool_choice=None) != AS_CONFIGURED
            resets = given.holds_calls or brings or shaped or declared is not None
            return await _answered(exchange, caller, given, message, behind, resets=resets, streamed=streamed)
        message = replace(message, earlier=tuple(in_words(given.before)[-MOST_EARLIER:]))
        try:
            view = await _begun(exchange, caller, message, key, behind, streamed=streamed)
        except RequestInProgress as begun:
            if not message.client.get("background"):
                raise
            view = await requests.own(exchange, caller, begun.ids["request_id"])
        return await stretches.cut(exchange, view, 1)


async def _begun(
    exchange: Exchange,
    caller: Caller,
    message: NewMessage,
    key: Key | None,
    behind: Continued,
    *,
    streamed: bool,
) -> RequestView:
    if isinstance(behind, Stretch):
        field = "previous_response_id"
        return await stretches.continued(exchange, behind, message, key, field=field, streamed=streamed)
    if behind is not None:
        if message.expires_at is not None:
            raise InvalidRequest("store", "cannot be false in a conversation, which keeps what is said")
        message = await stretches.added(exchange, *behind, message, "conversation")
    return await exchange.submit(caller, message, key, streamed=streamed)


async def _answered(
    exchange: Exchange,
    caller: Caller,
    given: Resent,
    message: NewMessage,
    behind: Continued,
    *,
    resets: bool,
    streamed: bool,
) -> Stretch:
    """Decides a pause with answers to its calls; those to earlier pauses of its request are history.

    What the user says in `message` is what the request began with. Where the request failed behind the same
    answers before, it is tried again.

    `InvalidRequest` where they are not the answers to one request, add a message, are not to be stored though
    its request is, or are to be in the background though it is not. `NotFound` where nothing of that name
    waits, in the task that is named.
    """
    meant = _meant(given)
    answers, earlier = _by_index(given, meant)
    named = behind.record if isinstance(behind, Stretch) else behind[1] if behind else None
    last = meant[-1].call_id
    waiting, _ = await requests.find_call(exchange, caller, "call", last, *_CALLS)
    if max(answers) >= len(waiting.calls) or (named is not None and named.task_id != waiting.task_id):
        raise names.unknown("call", last)
    view = await exchange.request(caller, waiting.request_id)
    await _check_earlier(exchange, view, earlier)
    await _check_message(exchange, view, message)
    answers = _completed(waiting, answers, given if not isinstance(behind, Stretch) else None)
    setup = _set_anew(view.record.setup, message.setup, resets=resets)
    stretch = await stretches.decided(exchange, caller, waiting, answers, setup=setup, streamed=streamed)
    for _ in range(MOST_ATTEMPTS):
        if not stretch.view.replayed or stretch.status != "Failed":
            break
        stretch = await _retried(exchange, stretch, message, setup, streamed=streamed)
    return stretch


def _set_anew(held: RequestSetup, asked: RequestSetup, *, resets: bool) -> RequestSetup | None:
    """The setup from here on; None if unchanged. `user_context`, which only other protocols set, stays."""
    if resets:
        return replace(asked, user_context=held.user_context)
    return replace(held, tool_choice=asked.tool_choice) if asked.tool_choice is not None else None


def _meant(given: Resent) -> list[AnsweredCall]:
    """The answers, without outputs that belong to no call if a call is rejected.

    For a rejected call, some clients add an output under an id of their own. It says nothing new.
    """
    answers, made = given.answers, given.calls
    if all(each.answer.action != "reject" for each in answers):
        return answers
    return [each for each in answers if each.answer.output is None or each.call_id in made or _is_named(each)]


def _is_named(answered: AnsweredCall) -> bool:
    """Whether the call that is answered has a name that calls have here."""
    return names.parsed(answered.call_id, *_CALLS)[0] is not None


def _by_index(given: Resent, meant: Sequence[AnsweredCall]) -> tuple[dict[int, CallAnswer], dict[str, str]]:
    """The answers to the last pause, by the index of the call; and earlier pauses, each with the field of
    its answer."""
    answers, named, earlier = dict[int, CallAnswer](), "", dict[str, str]()
    made = given.calls
    for each in reversed(meant):
        if each.call_id in made and not _is_named(each):
            raise InvalidRequest(
                each.answer.field, "answers a call that was made elsewhere: a user message must follow"
            )
        approval_id, index = names.read("call", each.call_id, *_CALLS)
        check_reason(each.answer)
        named = named or approval_id
        if approval_id != named:
            earlier[approval_id] = each.answer.field
        elif index in answers:
            raise InvalidRequest(each.answer.field, "answers a call twice")
        else:
            answers[index] = each.answer
    for each in reversed(given.answered):
        with suppress(NotFound):  # what answers others is history
            approval_id, index = names.read("call", each.call_id, *_CALLS)
            if approval_id == named and index not in answers:
                check_reason(each.answer)
                answers[index] = each.answer
    return answers, earlier


async def _check_earlier(exchange: Exchange, view: RequestView, answered: Mapping[str, str]) -> None:
    """`InvalidRequest` unless pauses are of this request, or of those that failed and that it stands for."""
    record, known, passed = view.record, set(view.record.approvals), set[str]()
    while (before := record.retries) is not None and before not in passed and not known.issuperset(answered):
        passed.add(before)
        try:
            record = (await exchange.request(view.caller, before)).record
        except NotFound:
            break
        known.update(record.approvals)
    for approval_id, where in answered.items():
        if approval_id not in known:
            raise InvalidRequest(where, "answers a call of another response")


async def _check_message(exchange: Exchange, view: RequestView, message: NewMessage) -> None:
    """`InvalidRequest` where a message does not go with answers to calls of this request."""
    is_stored = not view.record.is_unstored
    if message.expires_at is not None and is_stored:
        raise InvalidRequest("store", "cannot be false: what the calls belong to is stored")
    if message.client.get("background") and not is_stored:
        raise InvalidRequest("background", "is not possible: what the calls belong to is not stored")
    if message.items:
        said = await requests.user_message(exchange, view.partition, view.record)
        if said is None or said.items != message.items:
            raise InvalidRequest("input", ADDS_A_MESSAGE)


async def _retried(
    exchange: Exchange, failed: Stretch, sent: NewMessage, setup: RequestSetup | None, *, streamed: bool
) -> Stretch:
    """The request in the place of one that failed: it continues from the results of its tools.

    There is one for each failure, so that answers that come again, then or later, get its outcome.
    """
    record, caller = failed.record, failed.view.caller
    key = key_of(caller, f"retry\0{record.request_id}", None)  # no header can hold it
    view = await requests.under(exchange, caller, key)
    if view is not None:
        view = replace(view, replayed=view.record.status in ENDED)
        return await stretches.cut(exchange, view, 1)
    said = await requests.user_message(exchange, failed.view.partition, record)
    first = {name: record.client[name] for name in SET_FIRST if name in record.client}
    later = {name: value for name, value in sent.client.items() if name not in SET_FIRST}
    anew = {
        "setup": setup or record.setup,
        "client": later | first,
        "retries": record.request_id,
    }
    message = replace(sent, items=said.items if said is not None else (), **record.per_request | anew)
    try:
        view = await stretches.continued(exchange, failed, message, key, field="input", streamed=streamed)
    except RequestInProgress as quicker:  # the same answers, sent at the same time
        view = await requests.own(exchange, caller, quicker.ids["request_id"])
    return await stretches.cut(exchange, view, 1)


def _left_out(waiting: Approval, history: Resent) -> list[int]:
    """The indexes of calls that are missing in the history that a client keeps, where others of the pause are
    there: some clients make only one call at a time."""
    kept = set[int]()
    for each in history.calls:
        with suppress(NotFound):  # a call that was made elsewhere
            approval_id, index = names.read("call", each, *_CALLS)
            if approval_id == waiting.approval_id and index < len(waiting.calls):
                kept.add(index)
    return [n for n, call in enumerate(waiting.calls) if kept and call.by_client and n not in kept]


def _as_decided(of: Decision) -> CallAnswer:
    """The answer that led to a decision."""
    action = of.action if of.output is None else None
    arguments = bodies.parse(of.arguments.encode()) if of.arguments is not None else None
    return CallAnswer(action=action, arguments=arguments, output=of.output, is_error=of.is_error)


def _completed(
    waiting: Approval, answers: Mapping[int, CallAnswer], kept: Resent | None
) -> dict[int, CallAnswer]:
    """The answers, with those that need not be sent: what was decided before, and that a call was not made
    which is missing in the history that the client has `kept`.

    `InvalidRequest` unless each call of a pause that waits has an answer of its kind.
    """
    if waiting.status == "decided":
        return {**dict(enumerate(map(_as_decided, waiting.decisions))), **answers}
    left_out = _left_out(waiting, kept) if kept is not None else []
    answers = {**dict.fromkeys(left_out, _NOT_MADE), **answers}
    for n, call in enumerate(waiting.calls if waiting.status == "pending" else ()):
        if n not in answers:
            raise InvalidRequest("input", f"answers only some of the calls that wait: {call.tool} waits, too")
        if call.by_client is not (answers[n].output is not None):
            wanted = (
                "say what {} returned, which the client runs" if call.by_client else "approve or reject {}"
            )
            raise InvalidRequest("input", f"must {wanted.format(call.tool)}")
    return answers
