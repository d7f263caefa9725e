"""Spans and metrics of an agent, its model calls and its tools.

Names follow OpenTelemetry's semantic conventions for generative AI. Spans are called `invoke_agent {agent}`,
`chat {model}` and `execute_tool {tool}`; tokens and durations are histograms.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token
from typing import Self

from opentelemetry import context, metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from tealagents.domain.errors import ModelFailed, TealError, Unauthenticated
from tealagents.domain.events import ModelDone
from tealagents.domain.models import TOOL_SEPARATOR, RequestRecord, ToolCall
from tealagents.engine.observer import Load, ModelWatch, RequestWatch, ToolWatch, current_ids
from tealagents.telemetry.http import TRACE_CONTEXT
from tealagents.telemetry.logs import named_ids
from tealagents.telemetry.requests import LoggedRequests

#: seconds; as the conventions advise for model operations
_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
#: name, field of `Load`, unit and description
_GAUGES = (
    (
        "tealagents.requests.in_flight",
        "in_flight",
        "{request}",
        "Requests admitted, not yet ended or paused.",
    ),
    (
        "tealagents.requests.queued",
        "queued",
        "{request}",
        "Of these, those waiting for their turn on a task.",
    ),
    ("tealagents.followers", "followers", "{stream}", "Streams of events that are open."),
    (
        "tealagents.lease.used_ratio",
        "lease_used",
        "1",
        "Fraction of the lease used since the last heartbeat; 1: it is lost.",
    ),
)


class OpenTelemetryObserver(LoggedRequests):
    """Reports to OpenTelemetry. `content`: whether spans contain answers, and arguments and results of tools.

    Metrics have no label that a user, the model or a tool server could make up. For a tool, the label is its
    plugin if that is one of `plugins`, and otherwise `other`.
    """

    def __init__(self, agent: str, version: str, *, plugins: Iterable[str] = (), content: bool) -> None:
        self._agent = agent
        self._version = version
        self._plugins = tuple(plugins)
        self.content = content
        self._tracer = trace.get_tracer("tealagents")
        meter = metrics.get_meter("tealagents")
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "Model calls, until they end.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._first = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            "s",
            "From a streamed model call to the first piece of its answer.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Tokens of a model call.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._requests = meter.create_counter(
            "tealagents.requests", "{request}", "Requests that ended or paused."
        )
        self._request_duration = meter.create_histogram(
            "tealagents.request.duration",
            "s",
            "From the start of a run to its end or pause.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._tools = meter.create_histogram(
            "tealagents.tool.duration", "s", "Tool calls.", explicit_bucket_boundaries_advisory=_BUCKETS
        )
        self._refusals = meter.create_counter(
            "tealagents.refusals", "{request}", "HTTP requests that were answered with a problem."
        )

    def request(self, request: RequestRecord) -> RequestWatch:
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self._agent,
            "gen_ai.agent.version": self._version,
            "gen_ai.conversation.id": request.task_id,
            **named_ids(request.ids),
        }
        span = self._tracer.start_span(f"invoke_agent {self._agent}", attributes=attributes)
        return _RequestWatch(request, span, self, super().request(request))

    def ended_outside(self, request: RequestRecord) -> None:
        super().ended_outside(request)
        self._count(request.status, request.error.code if request.error else None)

    def count(self, status: str, code: str | None, seconds: float) -> None:
        """Counts a run that ended or paused, and records how long it took. `code` is that of its error."""
        self._count(status, code)
        self._request_duration.record(seconds, {"status": status})

    def _count(self, status: str, code: str | None) -> None:
        self._requests.add(1, {"status": status, "error.type": code or ""})

    def refused(self, error: TealError) -> None:
        super().refused(error)
        # a label of its own: anyone can call without a token, but a refused token may mean a wrong setting
        anonymous = isinstance(error, Unauthenticated) and not error.credentials_given
        credentials = {"tealagents.credentials": "none"} if anonymous else {}
        self._refusals.add(1, {"error.type": error.code, **credentials})

    def loaded(self, load: Callable[[], Load]) -> None:
        meter = metrics.get_meter("tealagents")

        def reported(name: str) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
            return [lambda _: [Observation(getattr(load(), name))]]

        for name, field, unit, about in _GAUGES:
            meter.create_observable_gauge(name, reported(field), unit, about)
        meter.create_observable_counter(
            "tealagents.leases.lost", reported("leases_lost"), "{lease}", "How often the lease was lost."
        )

    def model_call(self, model: str, provider: str, *, streamed: bool) -> ModelWatch:
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
        }
        about = {**attributes, **named_ids(current_ids.get())}
        span = self._tracer.start_span(f"chat {model}", kind=SpanKind.CLIENT, attributes=about)
        return _ModelWatch(span, self, attributes, streamed=streamed)

    def record_model(self, attributes: dict[str, str], seconds: float, done: ModelDone | None) -> None:
        """Records a model call's duration, and its tokens unless it failed (`done` is None)."""
        self._duration.record(seconds, attributes)
        if done is not None:
            usage = done.usage
            self._tokens.record(usage.prompt_tokens, {**attributes, "gen_ai.token.type": "input"})
            self._tokens.record(usage.completion_tokens, {**attributes, "gen_ai.token.type": "output"})

    def record_first(self, attributes: dict[str, str], seconds: float) -> None:
        """Records the seconds from a streamed model call to the first text of its answer."""
        self._first.record(seconds, attributes)

    @contextmanager
    def tool_call(self, call: ToolCall, *, known: bool) -> Iterator[ToolWatch]:
        name = call.tool if known or self.content else "unknown"
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call.id,
            **named_ids(current_ids.get()),
        }
        with self._tracer.start_as_current_span(f"execute_tool {name}", attributes=attributes) as span:
            if self.content:
                span.set_attribute("gen_ai.tool.call.arguments", call.arguments)
            yield _ToolWatch(span, self, call.tool)

    def record_tool(self, tool: str, outcome: str, seconds: float) -> None:
        """Records a tool call's duration. `outcome` is `done`, `error` or `deferred`."""
        known = (name for name in self._plugins if tool.startswith(name + TOOL_SEPARATOR))
        attributes = {"tealagents.plugin": max(known, key=len, default="other"), "outcome": outcome}
        self._tools.record(seconds, attributes)


class _RequestWatch(RequestWatch):
    def __init__(
        self, request: RequestRecord, span: Span, observer: OpenTelemetryObserver, logged: RequestWatch
    ) -> None:
        super().__init__(request)
        self._span = span
        self._observer = observer
        self._logged = logged
        self._began = time.perf_counter()
        self._attached: Token[context.Context] | None = None

    def __enter__(self) -> Self:
        self._attached = context.attach(trace.set_span_in_context(self._span))
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._span.end()
        if self._attached is not None:
            context.detach(self._attached)

    def ended(self, request: RequestRecord, *, here: bool = True) -> None:
        self._logged.ended(request, here=here)
        code = request.error.code if request.error else None
        self._span.set_attribute("tealagents.status", request.status)
        self._span.set_attribute("gen_ai.usage.input_tokens", request.usage.prompt_tokens)
        self._span.set_attribute("gen_ai.usage.output_tokens", request.usage.completion_tokens)
        if code is not None:
            _fail(self._span, code)
        if here:  # otherwise it is counted where its end was written
            self._observer.count(request.status, code, time.perf_counter() - self._began)

    def failed(self, error: TealError) -> None:
        self._logged.failed(error)
        _fail(self._span, error.code)
        self._observer.count("Unknown", error.code, time.perf_counter() - self._began)


class _ModelWatch(ModelWatch):
    def __init__(
        self, span: Span, observer: OpenTelemetryObserver, attributes: dict[str, str], *, streamed: bool
    ) -> None:
        self._span = span
        self._observer = observer
        self._attributes = attributes
        self._streamed = streamed
        self._began = time.perf_counter()

    def headers(self, sent: Mapping[str, str]) -> Mapping[str, str]:
        carrier = dict(sent)
        TRACE_CONTEXT.inject(carrier, trace.set_span_in_context(self._span))
        return carrier

    def first_piece(self) -> None:
        if self._streamed:  # otherwise the first is the whole answer
            self._observer.record_first(self._attributes, time.perf_counter() - self._began)

    def done(self, done: ModelDone, text: str) -> None:
        span = self._span
        span.set_attribute("gen_ai.response.model", done.model)
        span.set_attribute("gen_ai.response.finish_reasons", [done.finish_reason])
        span.set_attribute("gen_ai.usage.input_tokens", done.usage.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", done.usage.completion_tokens)
        if done.response_id:
            span.set_attribute("gen_ai.response.id", done.response_id)
        if self._observer.content:
            span.set_attribute("gen_ai.output.messages", text)
        self._end(done, None)

    def failed(self, error: BaseException) -> None:
        kind = error.code if isinstance(error, TealError) else type(error).__name__
        _fail(self._span, kind)
        if isinstance(error, ModelFailed) and error.http_status is not None:
            self._span.set_attribute("http.response.status_code", error.http_status)
        self._end(None, kind)

    def _end(self, done: ModelDone | None, kind: str | None) -> None:
        attributes = {**self._attributes, **({"error.type": kind} if kind else {})}
        self._observer.record_model(attributes, time.perf_counter() - self._began, done)
        self._span.end()


class _ToolWatch(ToolWatch):
    def __init__(self, span: Span, observer: OpenTelemetryObserver, tool: str) -> None:
        self._span = span
        self._observer = observer
        self._tool = tool
        self._began = time.perf_counter()

    def done(self, output: str, *, is_error: bool) -> None:
        self._record("error" if is_error else "done")
        if is_error:
            _fail(self._span, "tool_error")
        if self._observer.content:
            self._span.set_attribute("gen_ai.tool.call.result", output)

    def deferred(self) -> None:
        self._span.set_attribute("tealagents.deferred", True)
        self._record("deferred")

    def _record(self, outcome: str) -> None:
        self._observer.record_tool(self._tool, outcome, time.perf_counter() - self._began)


def _fail(span: Span, kind: str) -> None:
    """Marks a span as failed."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, kind))
