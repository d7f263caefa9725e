"""One call of the model service, from the encoded request to our events.

The clients differ in what they send (a path and a body) and in how an answer is read (a `Reading`, which does
no I/O); deadlines, retries and failures are the same, and live here.
"""

import asyncio
import importlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import count
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from tealagents.domain.errors import ModelFailed, ModelTimeout, RunFailure
from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.llm.adjustments import NO_ADJUSTMENTS, Adjustments
from tealagents.llm.deadlines import Deadlines
from tealagents.llm.failures import MAX_PAGE, AttemptFailed, Complaint, is_html, page, quoted, too_much
from tealagents.llm.options import OpenAIOptions, has_private_way
from tealagents.llm.retries import Retries
from tealagents.outbound.addresses import proxy_for

if TYPE_CHECKING:
    from tealagents.llm.wire import ServiceConnection

_log = logging.getLogger(__name__)

#: what ends a stream of chat completions
_END = b"[DONE]"
#: characters of an answer, those of its tool calls included, and tool calls in one
MAX_TEXT, MAX_CALLS = 4_000_000, 1_000


class Question(Struct):
    """What is posted."""

    path: str
    #: makes the body
    write: Callable[[Adjustments], bytes]
    headers: Mapping[str, str]
    #: a stream is asked for
    stream: bool
    #: the service keeps what it was sent also where it gives no answer: not to be sent again then
    kept: bool = False
    body: bytes = b""
    #: what the body was made with
    adjusted: Adjustments = NO_ADJUSTMENTS

    def reworded(self, said: Complaint) -> bool:
        """Puts otherwise what the service has refused; False where that is nothing, or changes nothing."""
        adjusted = self.adjusted.learned(said)
        if adjusted == self.adjusted:
            return False
        before, self.body = self.body, self.write(adjusted)
        if self.body == before:
            return False
        self.adjusted = adjusted
        return True


class Reading(Protocol):
    """Turns what the service sends for one attempt into events. No I/O; raises `AttemptFailed`."""

    #: something of the answer has come, if only a thought that is not shown
    begun: bool

    @property
    def called(self) -> int:
        """Characters of the tool calls that have come: their ids, names and arguments."""
        ...

    @property
    def finished(self) -> bool:
        """The service has said how the answer ended; what may still come is its accounts."""
        ...

    @property
    def ended(self) -> bool:
        """The accounts have come as well: there is nothing left to wait for."""
        ...

    def take(self, data: bytes) -> Iterable[TextDelta]:
        """The deltas in one event of a stream."""
        ...

    def whole(self, body: bytes) -> Iterable[TextDelta]:
        """The deltas in an answer that came in one."""
        ...

    def done(self) -> ModelDone:
        """To be called when nothing more comes."""
        ...


#: what a refusal means where it is no plain failure: an error to raise, or the end of an answer
Meaning = Callable[[Complaint], RunFailure | ModelDone | None]


class ModelService:
    """A model service, opened by entering its async context, one a process."""

    def __init__(self, options: OpenAIOptions, *, deployment: str | None = None) -> None:
        self._options = options
        self._deployment = deployment
        self._proxy = proxy_for(options.base_url)
        self._secrets = options.secrets()
        self._retries = Retries(
            limit=options.max_retries,
            delay=options.retry_delay_seconds,
            ratio=options.retry_ratio,
            burst=options.retry_burst,
        )
        self._adjusted = NO_ADJUSTMENTS
        self._connecting: asyncio.Task[ServiceConnection] | None = None

    async def __aenter__(self) -> "ModelService":
        if self._options.api_key is not None and not has_private_way(self._options.base_url):
            _log.warning("The model service's key is sent over plain http to %s.", self._options.base_url)
        self._connecting = asyncio.create_task(self._connect())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._connecting is not None:
            with suppress(ModelFailed):
                await (await self._connecting).aclose()

    async def connection(self) -> "ServiceConnection":
        assert self._connecting is not None, "the model client has not been entered"
        if self._connecting.done():
            return self._connecting.result()
        # several calls may wait here, and one that is canceled must not take the connection from the others
        return await asyncio.shield(self._connecting)

    def deadlines(self, *, stream: bool = True) -> Deadlines:
        return Deadlines(self._options, asyncio.get_running_loop().time(), stream=stream)

    async def events(
        self, question: Question, *, reading: Callable[[], Reading], meaning: Meaning
    ) -> AsyncGenerator[Sequence[ModelEvent], None]:
        """The events of one call, as `Model.stream` promises; tried again only before the first delta."""
        connection = await self.connection()
        deadlines = self.deadlines(stream=question.stream)
        self._retries.begin()
        question.adjusted = self._adjusted
        question.body = question.write(self._adjusted)
        retries = count(1)
        while True:
            attempt = self._attempt(connection, question, reading(), deadlines)
            try:
                async with aclosing(attempt) as events:
                    async for batch in events:
                        if question.adjusted is not self._adjusted:
                            self._remember(question)
                        yield batch
                return
            except AttemptFailed as failed:
                said = failed.complaint
                ending = said and meaning(said)
                if said and not ending and question.reworded(said):
                    continue  # at once, and not as a retry: the service is well
                following = ending or self._pause(question, failed, next(retries), deadlines)
            except ModelTimeout as overdue:
                _log.warning("A model call failed: %s", overdue.detail)
                raise
            if isinstance(following, ModelDone):
                yield [following]
                return
            if isinstance(following, RunFailure):
                raise following
            await asyncio.sleep(following)

    def _remember(self, question: Question) -> None:
        """The service has answered what was put otherwise: later calls are put so from the first."""
        known = self._adjusted | question.adjusted
        if known != self._adjusted:
            _log.info("The model service refuses %s; later calls leave it out.", known.named)
            self._adjusted = known
        question.adjusted = self._adjusted

    async def _attempt(
        self, connection: "ServiceConnection", question: Question, reading: Reading, deadlines: Deadlines
    ) -> AsyncGenerator[Sequence[ModelEvent], None]:
        answer = await connection.ask(question.path, question.body, question.headers, deadlines)
        text = 0
        try:
            if answer.is_stream(asked=question.stream):
                while True:
                    try:
                        frames = await answer.frames()
                    except (AttemptFailed, ModelTimeout):
                        if not reading.finished:
                            raise
                        break  # a service that says no more after the end of its answer is forgiven
                    if not frames:
                        break
                    ended = frames[-1] == _END
                    deltas: list[TextDelta] = []
                    try:
                        _take(frames, reading, deltas)
                    finally:  # what came before an event that cannot be read was said, too
                        if deltas:
                            yield deltas
                    text += sum(len(delta.text) for delta in deltas)
                    _check_length(text + reading.called)
                    deadlines.begun = reading.begun
                    if deadlines.begun:
                        question.body = b""  # not sent again; a long conversation is a long body
                    if ended or reading.ended:
                        break
                await answer.linger()
            else:
                if said := list(reading.whole(self._checked(await answer.whole(), answer.content_type))):
                    yield said
                _check_length(sum(len(delta.text) for delta in said) + reading.called)
            done = reading.done()
            if len(done.tool_calls) > MAX_CALLS:
                raise too_much(f"it calls more than {MAX_CALLS:,} tools")
            yield [done]
        finally:
            deadlines.begun = reading.begun
            answer.close()

    def _pause(
        self, question: Question, failed: AttemptFailed, retry: int, deadlines: Deadlines
    ) -> float | RunFailure:
        """Seconds until the next attempt, or the error that the call ends with."""
        now = asyncio.get_running_loop().time()
        pause = None
        repeatable = failed.not_taken or not question.kept
        if failed.passing and repeatable and not deadlines.begun:
            pause = self._retries.pause(retry, asked=failed.retry_after, remaining=deadlines.due(now) - now)
        cause = failed.cause(self._secrets)
        if pause is None:
            _log.warning("A model call failed: %s.", cause)
            return failed.error
        _log.info("Trying the model service again in %.2f s (%s).", pause, cause)
        return pause

    def _checked(self, body: bytes, content_type: str = "") -> bytes:
        """The body, unless it is a page of HTML, which is reported as one, not as broken JSON."""
        if is_html(body, content_type):
            what = quoted(page(body[:MAX_PAGE].decode("utf-8", "replace")), self._secrets)
            raise AttemptFailed(
                ModelFailed(
                    f"The model service at {self._options.base_url} answered with {what} instead of JSON; "
                    "check TA_BASE_URL."
                )
            )
        return body

    async def get(self, path: str) -> bytes:
        """The body of what is at the path; `AttemptFailed`, `ModelTimeout`. Not tried again."""
        return self._checked(await (await self.connection()).get(path, self.deadlines()))

    async def delete(self, path: str) -> bytes:
        """Deletes what is at the path; `AttemptFailed`, `ModelTimeout`. Not tried again."""
        return await (await self.connection()).delete(path, self.deadlines())

    async def _connect(self) -> "ServiceConnection":
        """Connects off the event loop's way: importing the SDK takes most of a second."""
        wire = await asyncio.to_thread(importlib.import_module, "tealagents.llm.wire")
        try:
            connection: ServiceConnection = wire.ServiceConnection(
                self._options, self._proxy, self._deployment
            )
        except OSError as error:
            _log.warning("The certificates for the model service cannot be read: %s.", error)
            raise ModelFailed(
                f"The certificates for the model service cannot be read ({error}). Check SSL_CERT_FILE."
            ) from error
        return connection


def _check_length(characters: int) -> None:
    if characters > MAX_TEXT:
        raise too_much(f"it is longer than {MAX_TEXT:,} characters")


def _take(frames: list[bytes], reading: Reading, deltas: list[TextDelta]) -> None:
    """Adds the deltas of text in events to `deltas`; the events are let go of."""
    for data in frames:
        if data != _END:
            deltas += reading.take(data)
    frames.clear()
