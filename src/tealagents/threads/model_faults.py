"""Faults of a model client, which may be third-party code: they fail the request with the client's name."""

import logging
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import iscoroutine

from tealagents.domain.errors import ModelFailed, TealError, ends_task
from tealagents.domain.events import ModelEvent
from tealagents.domain.ports import Model, ModelCall

log = logging.getLogger(__name__)


class Unusable(Exception):
    """What a model client has returned or yielded cannot be used."""


def faulty(model: Model, error: BaseException) -> ModelFailed:
    """For what a third party's client raised, whose text may quote its key: only the log has that."""
    if isinstance(error, RecursionError):
        return ModelFailed("The model service's reply is nested too deeply to be read.")
    name = type(model).__name__
    log.error("the model client %s failed", name, exc_info=error)
    why = str(error) if isinstance(error, Unusable) else f"it raised {type(error).__name__}"
    return ModelFailed(f"The model client {name} is faulty: {why}. Contact the operator.")


@contextmanager
def faults_of(model: Model) -> Iterator[None]:
    """What is raised within is the client's fault: for calls of its methods, and nothing else."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, TealError) or ends_task(error):
            raise
        raise faulty(model, error) from error


def stream_of(model: Model, call: ModelCall) -> AsyncGenerator[Sequence[ModelEvent], None]:
    """The stream of a call. `Unusable` if it is no async generator."""
    stream: object = model.stream(call)
    if isinstance(stream, AsyncIterable) and hasattr(stream, "aclose"):
        return stream  # type: ignore[return-value]
    if iscoroutine(stream):  # of a method without `yield`
        stream.close()
    raise Unusable(f"its stream returned {type(stream).__name__}, not an async generator")
