"""The error of a config that cannot be used for threads."""

from tealagents.mistakes import Misconfigured


class ThreadConfigError(Misconfigured):
    """A config that cannot be used for threads. The text says what to do instead."""
