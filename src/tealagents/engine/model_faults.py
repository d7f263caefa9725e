"""Faults of a model client, which may be third-party code: they fail the request with the client's name."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tealagents.domain.errors import ModelFailed, TealError, ends_task
from tealagents.domain.ports import Model

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
def encoding(model: Model) -> Iterator[None]:
    """What a client raises within is its fault: for its `encode` and `encode_system`, and nothing else."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, TealError) or ends_task(error):
            raise
        raise faulty(model, error) from error
