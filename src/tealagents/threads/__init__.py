"""Conversations: the threads of the library, and the view of a conversation that a model is sent.

=================  =====================================================================================
`base`             what all threads have: checkpoints, a JSON form, one writer at a time
`local`            threads whose messages are kept here
`remote`           threads whose messages the model service keeps
`workflow`         a thread for each agent that takes part, and the state of execution
`message_stores`   where local threads keep their messages: memory, files, Redis
`stored`           whole threads, saved in any store
`views`            which part of a conversation the model is sent
`reducers`         the steps that shorten a view
`summaries`        the reducer that has the model write a summary
`tokens`           counting tokens, without a network
`windows`          the newest rounds of tasks, kept between turns: in parts for views, or encoded
`context`          context providers: they add to requests, and learn from them
`providers`        the built-in providers: `user_preferences`, `facts`
`mem0`             the provider that uses Mem0
`model_faults`     what a faulty model client raised, as an error of the request
`states`           what reducers and providers keep in a thread, as far as it can be stored
`components`       creates the reducers and providers that a config names; `errors`: why it cannot
=================  =====================================================================================

Imports `domain` and `state`, and the single modules `disk`, `opening`, `registry` and `unwinding`; used by
`engine`, and by `tealagents.agent`, the library's front. Tasks of the service keep their messages in the log
of `state`, and use the views and the providers from here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tealagents.threads.base import (
        AgentThread,
        NotForkable,
        RemoteUnsupported,
        ThreadCheckpoint,
        ThreadDeleted,
        ThreadMismatch,
    )
    from tealagents.threads.context import Context, ContextProvider, Invocation, ProviderOptions
    from tealagents.threads.local import LocalThread
    from tealagents.threads.message_stores import (
        FileMessages,
        MemoryMessages,
        MessageStore,
        RedisMessages,
    )
    from tealagents.threads.remote import RemoteThread
    from tealagents.threads.stored import ThreadStore
    from tealagents.threads.views import Part, Reducer, Upcoming, View
    from tealagents.threads.workflow import WorkflowThread

_FROM = {
    "base": (
        "AgentThread",
        "ThreadCheckpoint",
        "NotForkable",
        "RemoteUnsupported",
        "ThreadDeleted",
        "ThreadMismatch",
    ),
    "context": ("Context", "ContextProvider", "Invocation", "ProviderOptions"),
    "local": ("LocalThread",),
    "message_stores": ("FileMessages", "MemoryMessages", "MessageStore", "RedisMessages"),
    "remote": ("RemoteThread",),
    "stored": ("ThreadStore",),
    "views": ("Part", "Reducer", "Upcoming", "View"),
    "workflow": ("WorkflowThread",),
}
_MODULE = {name: module for module, names in _FROM.items() for name in names}

__all__ = [
    "AgentThread",
    "Context",
    "ContextProvider",
    "FileMessages",
    "Invocation",
    "LocalThread",
    "MemoryMessages",
    "MessageStore",
    "NotForkable",
    "Part",
    "ProviderOptions",
    "RedisMessages",
    "Reducer",
    "RemoteThread",
    "RemoteUnsupported",
    "ThreadCheckpoint",
    "ThreadDeleted",
    "ThreadMismatch",
    "ThreadStore",
    "Upcoming",
    "View",
    "WorkflowThread",
]


def __getattr__(name: str) -> Any:
    """Imports the module of a name when the name is first used."""
    module = _MODULE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    """All names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
