"""Turns what went wrong at the model service into an error. No I/O.

The detail of an error quotes the service: its HTTP status, code, message and request id, on one line, cut,
and with all secrets masked. An HTML page is only named by its title. A reader should know whether to wait, to
correct a setting, or to change the message.
"""

import re
from collections.abc import Collection, Iterable
from html import unescape
from math import ceil
from typing import Any

import msgspec
from msgspec import Struct

from tealagents.domain.errors import ModelFailed, RunFailure
from tealagents.domain.json_limits import TOO_SLOW, too_slow
from tealagents.llm.encoding import MAX_EXTREMES, parsed
from tealagents.llm.retries import BUSY_CODES, PASSING, PASSING_CODES, can_help

#: the most characters of a quotation; a longer message is cut
MAX_QUOTE = 500
#: the most characters of a text that are searched for secrets, and of an HTML page for its title
MAX_SEARCHED, MAX_PAGE = 4 * MAX_QUOTE, 16 * 1024

#: OpenAI's code for messages that are longer than its model can read, which stands for what others send: the
#: type of llama.cpp's error, or only its words (vLLM, SGLang, LiteLLM) with one of the codes of a bad request
_TOO_LONG = "context_length_exceeded"
_TOO_LONG_TYPE = "exceed_context_size_error"
_TOO_LONG_WORDS = re.compile(
    r"maximum context length|\bexceeds? the (available )?context size|ContextWindowExceeded", re.IGNORECASE
)
_BAD_REQUEST = frozenset({"400", "413", "422", "invalid_request_error"})
_MASK = "***"
_SECRETS = (
    re.compile(r"\b(?:sk|rk|pk|sess)-[A-Za-z0-9_\-*.]{4,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*\.?[A-Za-z0-9_-]*"),
    re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(
        r"(?i)\b(api[-_]?key|client_secret|client_assertion|password)(\"?\s*[=:]\s*\"?)[^\s\"'&,;]{4,}"
    ),
)
#: a code or a request id of the service, which may be logged
_ID = re.compile(r"[\w.:/-]{1,100}", re.ASCII)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\s]+")


class AttemptFailed(Exception):
    """One attempt of a call failed with `error`. Raised between `wire` and `service` only."""

    def __init__(
        self,
        error: RunFailure,
        *,
        passing: bool = False,
        retry_after: float | None = None,
        complaint: "Complaint | None" = None,
        reason: str = "it sent something that is not an answer",
        not_taken: bool = False,
    ) -> None:
        super().__init__(error.detail)
        self.error = error
        #: True if a retry can help
        self.passing = passing
        #: seconds that the service asks to wait
        self.retry_after = retry_after
        #: what the service said, if it said anything
        self.complaint = complaint
        #: why, for the log, if there is no complaint; quotes nothing
        self.reason = reason
        #: True if the service refused the request, or never received it
        self.not_taken = not_taken

    def cause(self, secrets: Collection[str]) -> str:
        """The reason, for the log: without the service's message, which may quote the conversation."""
        said = self.complaint
        if said is None:
            return self.reason
        status = f"HTTP status {said.status}" if said.status is not None else "an error in its answer"
        named = {"code": quoted(said.code, secrets), "request id": quoted(said.request_id, secrets)}
        return ", ".join([status, *(f"{name} {text}" for name, text in named.items() if _ID.fullmatch(text))])


class Complaint(Struct, frozen=True, kw_only=True):
    """An error as the service words it. Its texts are not masked: use `quoted` before you show them."""

    status: int | None = None
    code: str = ""
    param: str = ""
    message: str = ""
    request_id: str = ""


def complaint(said: Any, *, status: int | None = None, request_id: str = "", fallback: str = "") -> Complaint:
    """The complaint in an error object: `{"error": {…}}`, `{"error": "text"}`, or the inner object alone.

    Gemini's compatible endpoint sends it as the only element of a list.
    """
    if isinstance(said, list) and said:
        said = said[0]
    error = said.get("error", said) if isinstance(said, dict) else said
    if not isinstance(error, dict):
        error = {"message": error} if isinstance(error, str) else {}
    message = error.get("message") or error.get("detail") or fallback
    message = (message if isinstance(message, str) else _compact(message)) + _upstream(error)
    kind = _word(error.get("type"))
    code = _word(error.get("code")) or kind
    bad_request = (str(status) if status is not None else code) in _BAD_REQUEST
    if kind == _TOO_LONG_TYPE or (bad_request and _TOO_LONG_WORDS.search(message[:MAX_SEARCHED])):
        code = _TOO_LONG
    return Complaint(
        status=status, code=code, param=_word(error.get("param")), message=message, request_id=request_id
    )


def _upstream(error: dict[str, Any]) -> str:
    """What OpenRouter adds about the provider that it called, whose own error it otherwise hides."""
    metadata = error.get("metadata")
    said = metadata if isinstance(metadata, dict) else {}
    found = [text for name in ("provider_name", "raw") if isinstance(text := said.get(name), str) and text]
    return f" ({': '.join(found)})" if found else ""


def complaint_of_body(
    body: bytes, *, status: int | None = None, content_type: str = "", request_id: str = ""
) -> Complaint:
    """The complaint in an error response, or in an error event of a stream: JSON, text or HTML."""
    try:
        said = parsed(body)
    except ValueError:
        return Complaint(status=status, message=_unparsed(body, content_type), request_id=request_id)
    return complaint(said, status=status, request_id=request_id, fallback=_compact(said))


def _unparsed(body: bytes, content_type: str) -> str:
    text = body.decode("utf-8", "replace")
    if is_html(body, content_type):
        return page(text)
    return text if text.strip() else "(an empty body)"


def is_html(body: bytes, content_type: str) -> bool:
    return "html" in content_type or body[:64].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def page(text: str) -> str:
    """Describes an HTML page by its title."""
    _, _, rest = text[:MAX_PAGE].partition("<title")
    title = rest.partition(">")[2].partition("</title")[0]
    return f"an HTML page titled {unescape(title).strip()!r}" if title else "an HTML page"


def quoted(text: str, secrets: Iterable[str] = ()) -> str:
    """The text on one line, cut to `MAX_QUOTE` characters, with secrets masked."""
    for secret in secrets:
        text = text.replace(secret, _MASK)
    text = text[:MAX_SEARCHED]
    for pattern in _SECRETS:
        text = pattern.sub(_MASK, text)
    text = _UNPRINTABLE.sub(" ", text).strip()
    return text if len(text) <= MAX_QUOTE else text[: MAX_QUOTE - 1] + "…"


def explained(said: Complaint, secrets: Collection[str], *, url: str, wait: float | None = None) -> str:
    """The detail of an error: what the service said, and what to do if that is known.

    `wait`: the seconds that the service asks to wait.
    """
    status = f" with HTTP {said.status}" if said.status is not None else ""
    code = f" ({quoted(said.code, secrets)})" if said.code else ""
    message = quoted(said.message, secrets)
    asked = f" [its request id: {quoted(said.request_id, secrets)}]" if said.request_id else ""
    # the format `g` is short for numbers of any size
    pause = f" (it asks to wait {ceil(wait):.10g} s)" if wait else ""
    return f"The model service answered{status}{code}: {message}{asked}{pause}{_advice(said, url)}"


def refused(
    said: Complaint,
    secrets: Collection[str],
    *,
    url: str,
    advice: str | None = None,
    retry_after: float | None = None,
) -> AttemptFailed:
    """A refusal with an HTTP status. `advice` is the header `x-should-retry`; `retry_after`: seconds."""
    detail = explained(said, secrets, url=url, wait=retry_after)
    if retry_after is None:
        retry_after = BUSY_CODES.get(said.code)
    return AttemptFailed(
        ModelFailed(
            detail, retry_after=retry_after, http_status=said.status, too_long=said.code == _TOO_LONG
        ),
        passing=can_help(said.status or 0, said.code, advice),
        retry_after=retry_after,
        complaint=said,
        # with these, a gateway may have forwarded the message and not waited for the answer
        not_taken=said.status not in (408, 502, 504),
    )


def _advice(said: Complaint, url: str) -> str:
    if said.code == _TOO_LONG:
        return (
            " — it exceeds the context window: send less, or begin a new conversation; a `token_budget` in "
            "the config's `spec.thread.reducers` keeps conversations within what the model can read."
        )
    match said.status:
        case 401:
            return (
                f" — {url} refuses this service's own credentials; check TA_BASE_URL, and TA_API_KEY or the "
                "role of the Azure identity."
            )
        case 403:
            return (
                f" — {url} does not allow this call: the message may have been flagged, or the key's rights "
                "or the network rules do not allow it."
            )
        case 404:
            return f" — check the model's name and TA_BASE_URL ({url})."
        case 429:
            return " — the model service's rate limit or quota is used up; try again later."
        case _:
            return ""


def failed_midway(said: Complaint, secrets: Collection[str]) -> AttemptFailed:
    """An error in place of an answer, or of the rest of one, although the status was 200."""
    code = f" ({quoted(said.code, secrets)})" if said.code else ""
    detail = f"The model service failed while answering{code}: {quoted(said.message, secrets)}"
    return AttemptFailed(
        ModelFailed(detail, too_long=said.code == _TOO_LONG),
        passing=said.code in PASSING_CODES or said.code in map(str, PASSING),
        complaint=said,
    )


def cut(what: str) -> AttemptFailed:
    """The answer ended before the service said that it was complete."""
    return AttemptFailed(
        ModelFailed(f"The model service's answer was cut: {what}. What arrived is not an answer; try again."),
        passing=True,
        reason="its answer was cut",
    )


def too_much(what: str) -> AttemptFailed:
    """The answer is longer than any model's answer, and is abandoned."""
    detail = f"The model service's answer was abandoned: {what}."
    return AttemptFailed(ModelFailed(detail), reason="its answer was too long")


def waiting(tool: str, secrets: Iterable[str]) -> AttemptFailed:
    """The service asks for the approval of a tool call of its own, which cannot be given here."""
    return AttemptFailed(
        ModelFailed(
            f"The model service waits for an approval to call {quoted(tool, secrets) or 'a tool'}, a tool of "
            "its own. It cannot be given here: decide it at that service, or configure the tool there to "
            "need none."
        ),
        reason="it waits for an approval",
    )


def unusable(what: str, body: bytes, secrets: Iterable[str] = ()) -> AttemptFailed:
    """The service sent something that cannot be parsed. `what` describes it."""
    said = quoted(body[:2000].decode("utf-8", "replace"), secrets)
    why = f" (it {TOO_SLOW})" if too_slow(body, MAX_EXTREMES) else ""
    return AttemptFailed(ModelFailed(f"The model service sent {what}{why}: {said}"))


def _word(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _compact(value: object) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")
