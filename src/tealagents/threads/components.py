"""Reducers and context providers of a config: a name each, and its options."""

from tealagents.domain.models import Json

#: a name and its options, as the config gives them
Component = tuple[str, Json]


class ThreadConfigError(ValueError):
    """What a config says of threads that cannot be done. The text says what to do instead."""
