"""The one error of opening tools, and the HTTP errors that leave open whether a call was carried out."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tealagents.domain.errors import ToolFailed, described

#: statuses that also come when the call has reached the service and its answer has not come back: a gateway
#: gave up waiting (those from 520 on are Cloudflare's and other proxies' own), or the service failed half-way
_BROKEN = frozenset({408, 500, 502, 504, 520, 522, 524, 598, 599})


class ToolsetError(ToolFailed):
    """Tools that cannot be offered: a file, a class, a document or a server is not as it should be.

    Raised at start only. The text names the file, the place in it, and what to do.
    """

    #: the key of `spec.agent` that the tools come from, or the variable; empty where it is no single one
    key: tuple[str | int, ...] = ()


@contextmanager
def tools_of(*key: str | int) -> Iterator[None]:
    """A `ToolsetError` from here on is one of this key, unless it has one."""
    try:
        yield
    except ToolsetError as error:
        error.key = error.key or key
        raise


@contextmanager
def blamed(said: str) -> Iterator[None]:
    """What a plugin's code raises from here on is a `ToolsetError`: `said`, which is the place, and why."""
    try:
        yield
    except (ToolsetError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ToolsetError(f"{said}: {in_short(error)}") from error


def in_short(error: BaseException) -> str:
    """Its class, and the first paragraph of its text in one line: pydantic adds advice for other uses."""
    return " ".join(described(error).partition("\n\n")[0].split())


def may_be_done(status: int, headers: Mapping[str, str]) -> bool:
    """Whether a call with this answer may have been carried out nonetheless.

    A service that turns calls away says when to come back; some gateways that gave up waiting say 503, too.
    """
    return status in _BROKEN or (status == 503 and "retry-after" not in headers)
