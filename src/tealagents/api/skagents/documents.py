"""Answers, events and errors, as clients of the earlier platform read them."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from tealagents.api import sse
from tealagents.api.bearer import refusal_headers
from tealagents.api.http import problem_document, problem_response, status_of
from tealagents.domain.errors import TealError
from tealagents.domain.models import Json, TokenUsage

#: `session_id`, `source` and `request_id` of a call, the first fields of its documents
Call = Mapping[str, str]


def answer(
    call: Call, text: str, usage: TokenUsage, extra_data: Sequence[Json], *, typed: Any = None
) -> dict[str, Any]:
    """The document of an answer. `typed` is the output as JSON data; None without an `output_type`."""
    return {
        **call,
        "token_usage": {
            "completion_tokens": usage.completion_tokens,
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.total_tokens,
        },
        "extra_data": {"items": list(extra_data)} if extra_data else None,
        "output_raw": text,
        "output_pydantic": typed,
    }


def partial_response(call: Call, text: str) -> bytes:
    return sse.frame(None, "partial-response", {**call, "output_partial": text})


def intermediate_response(task_no: int, task_name: str, response: Json) -> bytes:
    document = {"task_no": task_no, "task_name": task_name, "response": response}
    return sse.frame(None, "intermediate-task-response", document)


def final_response(document: Json) -> bytes:
    return sse.frame(None, "final-response", document)


def error_event(error: TealError) -> bytes:
    return sse.frame(None, "error", problem(error))


def problem(error: TealError) -> Json:
    title = error.code.replace("_", " ").capitalize()
    return problem_document(error.code, title, error.detail, status_of(error))


def refusal(error: TealError, challenge: str) -> Response:
    """The response for an error."""
    return problem_response(problem(error), headers=refusal_headers(error, challenge))
