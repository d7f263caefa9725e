"""The one error of opening tools, and the HTTP errors that leave open whether a call was carried out."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tealagents.domain.errors import ToolFailed, described

#: statuses that may mean that the call reached the service: a gateway gave up waiting for the answer (520 and
#: above are non-standard codes of Cloudflare and other proxies), or the service failed half-way
_BROKEN = frozenset({408, 500, 502, 504, 520, 522, 524, 598, 599})


#: a path in `spec.agent`, or a variable
Key = tuple[str | int, ...]


class ToolsetError(ToolFailed):
    """Tools that cannot be offered, because of a faulty file, class, document or server.

    Raised at start only. The text names the file, the place in it, and what to do.
    """

    #: where the tools come from; empty if there is no single place
    key: Key = ()


@contextmanager
def errors_at(*key: str | int) -> Iterator[None]:
    """Inside this context, a `ToolsetError` without a key gets this one."""
    try:
        yield
    except ToolsetError as error:
        error.key = error.key or key
        raise


@contextmanager
def blamed(said: str) -> Iterator[None]:
    """Inside this context, an exception from a plugin's code becomes a `ToolsetError` whose text is `said`
    (the place) and the cause."""
    try:
        yield
    except (ToolsetError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ToolsetError(f"{said}: {in_short(error)}") from error


def in_short(error: BaseException) -> str:
    """The error's class and the first paragraph of its text, in one line: pydantic's further paragraphs do
    not apply here."""
    return " ".join(described(error).partition("\n\n")[0].split())


def may_be_done(status: int, headers: Mapping[str, str]) -> bool:
    """Whether a call answered with this status and these headers may have been carried out all the same.

    A 503 with `Retry-After` means that the call was turned away; without it, a gateway may have timed out.
    """
    return status in _BROKEN or (status == 503 and "retry-after" not in headers)
