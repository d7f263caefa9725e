"""Creates the reducers and context providers that a config names, each with its options."""

from collections.abc import Sequence
from pathlib import Path

from tealagents.domain.models import Json
from tealagents.registry import Registry
from tealagents.threads.context import ContextProvider, Providers
from tealagents.threads.errors import ThreadConfigError
from tealagents.threads.views import Preparable, Reducer, View

#: a name and its options, as the config gives them
Component = tuple[str, Json]


REDUCERS = Registry(
    word="reducer",
    error=ThreadConfigError,
    group="tealagents.reducers",
    built_in={
        "message_count": "tealagents.threads.reducers:MessageCount",
        "sliding_window": "tealagents.threads.reducers:SlidingWindow",
        "token_budget": "tealagents.threads.reducers:TokenBudget",
        "trim_tool_results": "tealagents.threads.reducers:TrimToolResults",
        "summarize": "tealagents.threads.summaries:Summarize",
    },
)

PROVIDERS = Registry(
    word="context provider",
    error=ThreadConfigError,
    group="tealagents.context",
    built_in={
        "user_preferences": "tealagents.threads.providers:UserPreferences",
        "facts": "tealagents.threads.providers:Facts",
        "mem0": "tealagents.threads.mem0:Mem0Provider",
    },
)


def open_view(components: Sequence[Component], model: str, folder: Path | None = None) -> View | None:
    """A view of the reducers that a config names, for the model called `model`; None if it names none.
    `folder` is the config's, as in all functions of this module.

    `ThreadConfigError` if one cannot be created or does not fit the model.
    """
    return prepared_view([open_reducer(*each, folder) for each in components], model)


def prepared_view(reducers: Sequence[Reducer], model: str) -> View | None:
    """A view of these reducers, prepared for the model called `model`; None if there are none.

    `ThreadConfigError` if they are no list, or if one is not callable or does not fit the model.
    """
    if not isinstance(reducers, Sequence):
        raise ThreadConfigError(f"reducers must be a list of reducers, not a {type(reducers).__name__}.")
    for reducer in reducers:
        if isinstance(reducer, type) or not callable(reducer):
            raise ThreadConfigError(
                f"{reducer!r} is not a reducer: give a function, or an object with __call__."
            )
        if isinstance(reducer, Preparable):
            reducer.prepare(model)
    return View(reducers) if reducers else None


def open_reducer(name: str, options: Json, folder: Path | None = None) -> Reducer:
    """The reducer called `name`: one of `REDUCERS.known()`, `module:Class` or `module:function`.

    `ThreadConfigError` if it does not exist or does not take these options.
    """
    found = REDUCERS.find(name, folder)
    made: Reducer = REDUCERS.make(name, found, options) if isinstance(found, type) else found
    if not callable(made):
        raise ThreadConfigError(f"The reducer {name!r} is neither a function nor a class with __call__.")
    if made is found and options:
        raise ThreadConfigError(f"The reducer {name!r} is a function and takes no options.")
    return made


def open_providers(components: Sequence[Component], folder: Path | None = None) -> Providers:
    """The providers that a config names, not entered yet. `ThreadConfigError` if one cannot be created."""
    return Providers([open_provider(*each, folder) for each in components])


def open_provider(name: str, options: Json, folder: Path | None = None) -> ContextProvider:
    """The provider called `name`: one of `PROVIDERS.known()`, or `module:Class`.

    `ThreadConfigError` if it does not exist or does not take these options.
    """
    found = PROVIDERS.find(name, folder)
    if not (isinstance(found, type) and issubclass(found, ContextProvider)):
        raise ThreadConfigError(f"{name!r} is not a context provider: it must extend ContextProvider.")
    made: ContextProvider = PROVIDERS.make(name, found, options)
    return made
