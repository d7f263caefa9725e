"""One call of a model service, from the encoded request to events.

The clients differ in what they send (a path and a body) and in how an answer is read (a `Reading`, which does
no I/O). Deadlines, retries and failures are the same for all, and are handled here.
"""

import asyncio
import importlib
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import count
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from tealagents.domain.errors import ModelFailed, ModelTimeout, RunFailure
from tealagents.domain.events import ModelDone, ModelEvent, TextDelta
from tealagents.llm.adjustments import MAX_CALLS, NO_ADJUSTMENTS, Adjustments
from tealagents.llm.deadlines import Deadlines
from tealagents.llm.failures import (
    MAX_PAGE,
    AttemptFailed,
    Complaint,
    complaint_of_body,
    failed_midway,
    is_html,
    page,
    quoted,
    too_much,
)
from tealagents.llm.frames import ErrorData
from tealagents.llm.options import OpenAIOptions, is_private_connection
from tealagents.llm.retries import Retries
from tealagents.outbound.addresses import proxy_for

if TYPE_CHECKING:
    from tealagents.llm.wire import ServiceConnection

_log = logging.getLogger(__name__)

#: the last event of a stream of chat completions
_END = b"[DONE]"
#: the most characters of an answer, including its tool calls
MAX_TEXT = 4_000_000


class ModelRequest(Struct):
    """The request of one call."""

    path: str
    #: makes the body
    write: Callable[[Adjustments], bytes]
    headers: Mapping[str, str]
    #: True to ask for a stream
    stream: bool
    #: True if the service stores the messages even if it then fails, so that they must not be sent again
    kept: bool = False
    body: bytes = b""
    #: the adjustments that the body was made with
    adjusted: Adjustments = NO_ADJUSTMENTS

    def adjust(self, said: Complaint) -> bool:
        """Makes the body anew with the adjustment for a complaint. False if there is none, or if it changes
        nothing."""
        adjusted = self.adjusted.learned(said)
        if adjusted == self.adjusted:
            return False
        before, self.body = self.body, self.write(adjusted)
        if self.body == before:
            return False
        self.adjusted = adjusted
        return True


class Reading(Protocol):
    """Reads the answer to one attempt. No I/O. Methods raise `AttemptFailed`."""

    #: True once a part of the answer has arrived, even if it is only reasoning that is not shown
    begun: bool

    @property
    def called(self) -> int:
        """The number of characters in the tool calls so far: ids, names and arguments."""
        ...

    @property
    def finished(self) -> bool:
        """True once the service has said how the answer ended; the usage may follow."""
        ...

    @property
    def ended(self) -> bool:
        """True once the usage has arrived as well, so that nothing more is expected."""
        ...

    def take(self, data: bytes) -> Iterable[TextDelta]:
        """The deltas in one event of a stream."""
        ...

    def whole(self, body: bytes) -> Iterable[TextDelta]:
        """The deltas in a whole answer."""
        ...

    def done(self) -> ModelDone:
        """The end of the answer. Call it when the response has ended."""
        ...


#: interprets a complaint: an error to raise, the end of the answer, or None for an ordinary failure
Meaning = Callable[[Complaint], RunFailure | ModelDone | None]


class ModelService:
    """A connection to a model service, one per client. Enter its async context to open it."""

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
        if self._options.api_key is not None and not is_private_connection(self._options.base_url):
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
        # several calls may wait here: canceling one of them must not cancel the connection of the others
        return await asyncio.shield(self._connecting)

    def deadlines(self, *, stream: bool = True) -> Deadlines:
        return Deadlines(self._options, asyncio.get_running_loop().time(), stream=stream)

    async def events(
        self, request: ModelRequest, *, reading: Callable[[], Reading], meaning: Meaning
    ) -> AsyncGenerator[Sequence[ModelEvent], None]:
        """The events of one call, as `Model.stream` promises. Retries only before the first delta.

        Raises the `RunFailure` of a failed call: `ModelFailed`, `ModelTimeout`, or what `meaning` returns.
        """
        connection = await self.connection()
        deadlines = self.deadlines(stream=request.stream)
        self._retries.begin()
        request.adjusted = self._adjusted
        request.body = request.write(self._adjusted)
        retries = count(1)
        while True:
            attempt = self._attempt(connection, request, reading(), deadlines)
            try:
                async with aclosing(attempt) as events:
                    async for batch in events:
                        if request.adjusted is not self._adjusted:
                            self._remember(request)
                        yield batch
                return
            except AttemptFailed as failed:
                said = failed.complaint
                ending = said and meaning(said)
                if said and not ending and request.adjust(said):
                    continue  # at once; it does not count as a retry, because the service works
                following = ending or self._pause(request, failed, next(retries), deadlines)
            except ModelTimeout as overdue:
                _log.warning("A model call failed: %s", overdue.detail)
                raise
            if isinstance(following, ModelDone):
                yield [following]
                return
            if isinstance(following, RunFailure):
                try:
                    raise following
                finally:  # its traceback refers to this frame, and by it to the messages
                    del following, ending
            await asyncio.sleep(following)

    def _remember(self, request: ModelRequest) -> None:
        """The service has answered the adjusted request: later calls are adjusted from the start."""
        known = self._adjusted | request.adjusted
        if known != self._adjusted:
            _log.info("The model service refuses %s; later calls leave it out.", known.named)
            self._adjusted = known
        request.adjusted = self._adjusted

    async def _attempt(
        self, connection: "ServiceConnection", request: ModelRequest, reading: Reading, deadlines: Deadlines
    ) -> AsyncGenerator[Sequence[ModelEvent], None]:
        answer = await connection.ask(request.path, request.body, request.headers, deadlines)
        text = 0
        try:
            if answer.is_stream(asked=request.stream):
                while True:
                    try:
                        frames = await answer.frames()
                    except (AttemptFailed, ModelTimeout):
                        if not reading.finished:
                            raise
                        break  # the answer itself is complete
                    if not frames:
                        break
                    if ended := _END in frames:
                        del frames[frames.index(_END) :]
                    deltas: list[TextDelta] = []
                    try:
                        _take(frames, reading, deltas, self._secrets)
                    finally:  # deltas before an unreadable event are part of the answer, too
                        if deltas:
                            yield deltas
                    for delta in deltas:
                        text += len(delta.text)
                    _check_length(text + reading.called)
                    deadlines.begun = reading.begun
                    if deadlines.begun:
                        request.body = b""  # it is not sent again, and may be large
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
        self, request: ModelRequest, failed: AttemptFailed, retry: int, deadlines: Deadlines
    ) -> float | RunFailure:
        """The seconds until the next attempt, or the error with which the call ends."""
        now = asyncio.get_running_loop().time()
        pause = None
        repeatable = failed.not_taken or not request.kept
        if failed.passing and repeatable and not deadlines.begun:
            pause = self._retries.pause(retry, asked=failed.retry_after, remaining=deadlines.due(now) - now)
        cause = failed.cause(self._secrets)
        if pause is None:
            _log.warning("A model call failed: %s.", cause)
            return failed.error
        _log.info("Trying the model service again in %.2f s (%s).", pause, cause)
        return pause

    def _checked(self, body: bytes, content_type: str = "") -> bytes:
        """Returns the body. Raises `AttemptFailed` for an HTML page, which is not reported as broken JSON."""
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
        """The body at the path. Raises `AttemptFailed` or `ModelTimeout`. Not retried."""
        return self._checked(await (await self.connection()).get(path, self.deadlines()))

    async def delete(self, path: str) -> bytes:
        """Deletes the resource at the path. Raises `AttemptFailed` or `ModelTimeout`. Not retried."""
        return await (await self.connection()).delete(path, self.deadlines())

    async def _connect(self) -> "ServiceConnection":
        """Makes the connection. Imports the SDK in a thread, because that takes most of a second."""
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


def _take(frames: list[bytes], reading: Reading, deltas: list[TextDelta], secrets: Collection[str]) -> None:
    """Adds the deltas in the events to `deltas`, and clears the list of events."""
    for data in frames:
        if type(data) is ErrorData:
            raise failed_midway(complaint_of_body(data), secrets)
        deltas += reading.take(data)
    frames.clear()
