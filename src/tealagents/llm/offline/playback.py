"""Plays a script: chooses the rule that answers, and counts how often each was used."""

from dataclasses import replace

from tealagents.llm.offline.answer import (
    Fault,
    FunctionCall,
    ModelAnswer,
    Pacing,
    TokenCounts,
    in_pieces,
)
from tealagents.llm.offline.persona import built_in_answer
from tealagents.llm.offline.prompt import ModelPrompt
from tealagents.llm.offline.script import Rule, Script, ScriptedError, ScriptedFault, ScriptedReply, When


class Playback:
    def __init__(self, script: Script) -> None:
        self.script = script
        self._calls = 0
        self._used = [0] * len(script.rules)

    def reply_to(self, prompt: ModelPrompt) -> "ModelAnswer | RefusedCall":
        """The answer to a prompt. Counts as one use of the rule that gives it."""
        self._calls += 1
        reply = self._rule_reply(prompt) or self.script.otherwise
        return built_in_answer(prompt) if reply is None else scripted(reply, prompt)

    def _rule_reply(self, prompt: ModelPrompt) -> ScriptedReply | None:
        for position, rule in enumerate(self.script.rules):
            if self._is_left(position, rule) and holds(rule.when, prompt, self._calls):
                self._used[position] += 1
                return rule.reply
        return None

    def _is_left(self, position: int, rule: Rule) -> bool:
        return rule.times is None or self._used[position] < rule.times


class RefusedCall:
    """A scripted HTTP error in place of an answer."""

    __slots__ = ("delay", "error")

    def __init__(self, error: ScriptedError, delay: float) -> None:
        self.error = error
        self.delay = delay


def holds(when: When, prompt: ModelPrompt, call: int) -> bool:
    """Whether the conditions of a rule hold for the prompt of call number `call`."""
    if when.about_results is not None and when.about_results != bool(prompt.tool_results):
        return False
    return (
        (when.call is None or when.call == call)
        and (when.model is None or when.model == prompt.model)
        and (when.turn is None or when.turn == len(prompt.user_texts))
        and (when.text is None or _within(when.text, prompt.text))
        and (when.regex is None or when.regex.search(prompt.text) is not None)
        and (when.system is None or _within(when.system, prompt.system))
        and (when.system_regex is None or when.system_regex.search(prompt.system) is not None)
        and _results_hold(when, prompt)
    )


def _results_hold(when: When, prompt: ModelPrompt) -> bool:
    return (when.result_of is None or any(r.tool == when.result_of for r in prompt.tool_results)) and (
        when.result_text is None or any(_within(when.result_text, r.output) for r in prompt.tool_results)
    )


def _within(part: str, text: str) -> bool:
    return part.casefold() in text.casefold()


def scripted(reply: ScriptedReply, prompt: ModelPrompt) -> ModelAnswer | RefusedCall:
    if reply.error is not None:
        return RefusedCall(reply.error, reply.headers_delay_ms / 1000)
    base = built_in_answer(prompt) if reply.is_built_in else _content(reply)
    return replace(
        base,
        finish_reason=reply.finish_reason or base.finish_reason,
        usage=TokenCounts(**reply.usage.model_dump()) if reply.usage else None,
        reports_usage=reply.report_usage,
        pacing=_pacing(reply, base.pacing),
        fault=None if reply.fault is None else _fault(reply.fault),
    )


def _content(reply: ScriptedReply) -> ModelAnswer:
    pieces = in_pieces(reply.text or "") if reply.pieces is None else tuple(p.text for p in reply.pieces)
    calls = tuple(FunctionCall(call.id, call.name, call.arguments) for call in reply.tool_calls)
    return ModelAnswer(pieces=pieces, tool_calls=calls, refusal=reply.refusal)


def _pacing(reply: ScriptedReply, of_answer: Pacing) -> Pacing:
    """The delays of a reply; those that it does not set are the built-in answer's."""
    own = {
        position: piece.delay_ms / 1000
        for position, piece in enumerate(reply.pieces or ())
        if piece.delay_ms is not None
    }
    dribble = reply.dribble
    return Pacing(
        headers=reply.headers_delay_ms / 1000,
        first=reply.first_delay_ms / 1000 if "first_delay_ms" in reply.model_fields_set else of_answer.first,
        piece=reply.piece_delay_ms / 1000 if "piece_delay_ms" in reply.model_fields_set else of_answer.piece,
        own=own,
        dribble_bytes=dribble.bytes if dribble else 0,
        dribble_delay=dribble.delay_ms / 1000 if dribble else 0.0,
    )


def _fault(fault: ScriptedFault) -> Fault:
    given = {key: value for key, value in fault.model_dump().items() if value is not None}
    return Fault(**given)
