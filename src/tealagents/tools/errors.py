"""The one error of opening tools."""

from tealagents.domain.errors import ToolFailed


class ToolsetError(ToolFailed):
    """Tools that cannot be offered: a file, a class, a document or a server is not as it should be.

    Raised at start only. The text names the file, the place in it, and what to do.
    """
