"""Context providers: they add to an agent's requests, and learn from them.

A provider is an object that all requests of an agent share, so it keeps nothing about a request on itself.
What it remembers is kept

- with the thread, in `invocation.state`: a rollback restores it;
- with the user, in `invocation.memory`: it is available in every later session. Erasing a task erases what
  was learned in it.

`invoking` is called before the model, `invoked` with the outcome. A provider's failure becomes a step of the
trace; the request continues without the provider, unless it is `required`.

The built-in providers are in `tealagents.threads.providers`; third parties add others by the entry-point
group `tealagents.context`, or as `module:Class`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from tealagents.domain.errors import ContextProviderFailed, described, ends_task
from tealagents.domain.models import Item, Json, Message, User
from tealagents.domain.ports import Model, Tool, ToolSpec
from tealagents.domain.texts import storable
from tealagents.domain.tool_specs import NAME_RULE, VALID_NAME, flaw
from tealagents.opening import Held
from tealagents.state.memories import Memory
from tealagents.state.new_message import message_of
from tealagents.threads.errors import ThreadConfigError
from tealagents.threads.states import restore_states
from tealagents.threads.views import Report, Stopwatch
from tealagents.unwinding import Overdue, unwound, within

log = logging.getLogger(__name__)

T = TypeVar("T")


class Invocation(Struct, frozen=True, kw_only=True):
    """One request, as one provider sees it."""

    #: what is new in this request: the user's message
    messages: tuple[Message, ...]
    user: User
    session_id: str
    #: the id of the task, or of the library's thread
    task_id: str
    request_id: str
    model: Model
    #: what this provider remembers about the user in all sessions: at most a few hundred short texts
    memory: Memory
    #: this provider's state in the thread, JSON; changes are kept when the request completes. It cannot be
    #: trusted: a user may have written it, in a document that was imported
    state: Json

    @property
    def text(self) -> str:
        """The text of the user's message."""
        return "\n".join(message.text for message in self.messages)

    def message(self, text: str) -> Message:
        """A message to add to this request."""
        return message_of(self.request_id, "user", (Item("text", text),), datetime.now(UTC))


class Context(Struct, frozen=True, kw_only=True):
    """What a provider adds to one request. The conversation does not keep it; but in a remote conversation,
    the model service keeps the messages, as it keeps everything that it is sent."""

    #: sent to the model like the system prompt
    instructions: str = ""
    #: sent before the user's message
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()


class ProviderOptions(BaseModel):
    """The options of every provider."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: whether its failure fails the request
    required: bool = False
    #: time limit of each call, in seconds
    timeout_seconds: float = Field(default=10, gt=0)


class ContextProvider:
    """Base class of providers. Its async context is entered once per process, before the first request."""

    Options: ClassVar[type[ProviderOptions]] = ProviderOptions
    #: its name in traces, and the name of its state and its memories; by default that of the class
    name: str = ""

    def __init__(self, options: ProviderOptions | None = None) -> None:
        self.options = options or self.Options()
        self.name = self.name or type(self).__name__

    async def invoking(self, invocation: Invocation) -> Context | None:
        """Called before the request's first model call, and again after a pause. Returns what to add to the
        request, or None."""
        return None

    async def invoked(
        self, invocation: Invocation, response: Sequence[Message], error: BaseException | None
    ) -> None:
        """Called with the outcome of the request: the messages that answer it, and the exception with which
        it failed, if any.

        Not called for a pause. The user sees the end of the answer only after this has returned.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class Gathered(Struct, kw_only=True):
    """What all providers add to one request, and their invocations by name."""

    invocations: dict[str, Invocation] = {}
    #: the providers' states before they were called
    before: Json = {}
    instructions: list[str] = []
    messages: list[Message] = []
    tools: list[Tool] = []
    reports: list[Report] = []

    @property
    def states(self) -> Json:
        """The providers' states in the thread, without empty ones."""
        # copies: a provider that ignored its cancellation may still change its own state
        return {name: deepcopy(each.state) for name, each in self.invocations.items() if each.state}


class Providers:
    """The context providers of an agent, called concurrently. `ThreadConfigError` for what is no provider,
    and for two of the same name."""

    def __init__(self, providers: Sequence[ContextProvider] = ()) -> None:
        for provider in providers:
            _check(provider)
        names = [provider.name for provider in providers]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ThreadConfigError(
                f"Two context providers are called {', '.join(repeated)}: they would share one state."
            )
        self._providers = tuple(providers)
        self._stack = AsyncExitStack()

    def __bool__(self) -> bool:
        return bool(self._providers)

    @property
    def names(self) -> list[str]:
        return [provider.name for provider in self._providers]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for provider in self._providers:
                await stack.enter_async_context(Held(provider, "context provider", ThreadConfigError))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def invoking(self, begin: Callable[[str, Json], Invocation], states: Json) -> Gathered:
        """Calls all of them. `begin` makes a provider's invocation from its name and its state in the thread;
        `states` are those of all providers, by name.

        `ContextProviderFailed` if a required one fails.
        """
        gathered = Gathered(
            invocations={each: begin(each, deepcopy(states.get(each) or {})) for each in self.names},
            before=states,
        )
        asked = [
            _watched(each, "invoking", partial(_storable_context, each, gathered.invocations[each.name]))
            for each in self._providers
        ]
        for context, report in await _concurrently(asked):
            if context is not None:
                gathered.instructions += [context.instructions] if context.instructions else []
                gathered.messages += context.messages
                gathered.tools += context.tools
            if report.is_error or context is not None:
                gathered.reports.append(_with_what_was_added(report, context))
        return gathered

    async def invoked(
        self,
        gathered: Gathered,
        response: Sequence[Message],
        error: BaseException | None,
        *,
        most_seconds: float | None = None,
    ) -> list[Report]:
        """Calls all of them, each for at most `most_seconds`, and reports those that failed.

        `ContextProviderFailed` if a required one fails, unless the request has already failed with `error`.
        """
        response = tuple(response)  # the turn continues with its own
        calls = [
            _watched(
                each,
                "invoked",
                partial(each.invoked, gathered.invocations[each.name], response, error),
                error,
                most_seconds,
            )
            for each in self._providers
        ]
        reports = [report for _, report in await _concurrently(calls) if report.is_error]
        states = {name: each.state for name, each in gathered.invocations.items()}
        return reports + restore_states(states, gathered.before)


def _check(provider: object) -> None:
    """`ThreadConfigError` unless this is a provider with a name and options."""
    if not isinstance(provider, ContextProvider):
        what = repr(provider) if isinstance(provider, type) else f"a {type(provider).__name__}"
        raise ThreadConfigError(
            f"A context provider is an object whose class extends ContextProvider, not {what}."
        )
    if not isinstance(getattr(provider, "options", None), ProviderOptions) or not isinstance(
        provider.name, str
    ):
        raise ThreadConfigError(
            f"The context provider {type(provider).__name__} lacks its options or a name: its Options must "
            "extend ProviderOptions, and its __init__ call super().__init__(options)."
        )


async def _concurrently(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs all concurrently; returns their results. If one fails, or the request is stopped, the others are
    canceled; one that ignores this keeps running, and is not waited for."""
    if not works:
        return []
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failures = [task.exception() for task in tasks if task in ended]
        for failure in filter(None, failures):
            raise failure
        return [task.result() for task in tasks]
    finally:
        await unwound(tasks)


async def _storable_context(provider: ContextProvider, invocation: Invocation) -> Context | None:
    """What a provider adds, made storable. `TypeError` or `ValueError` if that is no valid `Context`."""
    context: object = await provider.invoking(invocation)
    if context is None:
        return None
    if not isinstance(context, Context):
        raise TypeError(f"invoking returned {type(context).__name__}, not a Context or None")
    if not isinstance(context.instructions, str):
        raise TypeError("instructions must be a string")
    if not all(isinstance(message, Message) for message in context.messages):
        raise TypeError("messages must all be of the class Message")
    if not all(isinstance(getattr(tool, "spec", None), ToolSpec) for tool in context.tools):
        raise TypeError("tools must all have a ToolSpec")
    for spec in (tool.spec for tool in context.tools):
        if wrong := flaw(spec):
            raise TypeError(f"the ToolSpec of '{spec.name}' is wrong: {wrong}")
        if not VALID_NAME.fullmatch(spec.name):
            raise ValueError(f"the tool '{spec.name}' {NAME_RULE}")
    return replace(
        context,
        instructions=storable(context.instructions),
        messages=tuple(map(_storable_message, context.messages)),
    )


def _storable_message(message: Message) -> Message:
    items = tuple(replace(item, content=storable(item.content)) for item in message.items)
    return replace(message, items=items)


async def _watched(
    provider: ContextProvider,
    what: str,
    work: Callable[[], Awaitable[T]],
    earlier: BaseException | None = None,
    most_seconds: float | None = None,
) -> tuple[T | None, Report]:
    """The result of a provider's call (None if it failed), and its report.

    `ContextProviderFailed` if it fails and is required, unless the request has already failed (`earlier`).
    """
    watch = Stopwatch()
    seconds = provider.options.timeout_seconds
    seconds = seconds if most_seconds is None else min(seconds, most_seconds)
    failed = ""
    result: T | None = None
    try:
        result = await within(seconds, work)
    except BaseException as error:
        if ends_task(error):
            raise
        log.warning("context provider %s failed in %s", provider.name, what, exc_info=error)
        late = isinstance(error, Overdue)
        failed = f"took longer than {seconds:g} seconds" if late else storable(described(error))
    if failed and provider.options.required and earlier is None:
        raise ContextProviderFailed(
            f"The context provider {provider.name} failed in {what}: {failed.rstrip('.')}."
        )
    output: Json = {"error": failed} if failed else {}
    return result, Report(
        kind="context",
        name=provider.name,
        started_at=watch.started_at,
        duration_ms=watch.milliseconds,
        input={"call": what},
        output=output,
        is_error=bool(failed),
    )


def _with_what_was_added(report: Report, context: Context | None) -> Report:
    if context is None:
        return report
    added: Json = {
        "instructions": context.instructions,
        "messages": list(map(_recorded, context.messages)),
        "tools": [storable(tool.spec.name) for tool in context.tools],
    }
    return replace(report, output={name: value for name, value in added.items() if value})


def _recorded(message: Message) -> str | Json:
    """A message in the trace: its text, with its role if it is not the user's. `text_only`: it has more than
    one text, such as an image or tool calls, which would be stored again with every request."""
    kinds = [item.content_type for item in message.items]
    whole = kinds in ([], ["text"]) and not message.tool_calls and message.role != "tool"
    if whole and message.role == "user":
        return message.text
    return {"role": message.role, "text": message.text, **({} if whole else {"text_only": True})}
