"""The common base of all stores: URL and options, the port's limits, watches, shielded commits.

`BaseStore` implements the port `tealagents.domain.ports.Store` except its three primitives, `read`, `scan`
and `commit`. `docs/how-to-write-a-store.md` builds a store on it, line by line.
"""

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tealagents.domain.errors import PersistenceUnavailable, Unknown
from tealagents.domain.ids import operation_id
from tealagents.domain.ports import COMMIT_RECORDS, NAME, NAME_RULE, Commit, Put, Record, Watch
from tealagents.mistakes import Misconfigured, explained, sentence
from tealagents.stores.watches import Watches

__all__ = [
    "ADVICE_ON_FILES",
    "MAX_BYTES",
    "MAX_TOPICS",
    "AccessDenied",
    "BaseStore",
    "ReadableFile",
    "StoreConfigError",
    "StoreOptions",
    "StoreUrl",
    "check_commit",
    "check_key",
    "check_keys",
    "check_scan",
    "in_a_line",
    "is_address",
    "scan_bounds",
]

#: topics that one commit may notify
MAX_TOPICS = 8
#: bytes of all values in one commit: the port's `COMMIT_BYTES`, and room for what a wrapper adds
MAX_BYTES = 1 << 20

#: what to do where a store of files is unavailable
ADVICE_ON_FILES: Final = (
    "Check that TA_PERSISTENCE or spec.persistence names it, that this user may write to it, and that its "
    "disk has space."
)

#: the value that `ping` writes, about as large as a message and its answer, and its ttl in seconds
PROBE: Final = bytes(16_384)
PROBE_SECONDS: Final = 60.0

#: the scheme of a store, or `module:Class`
_SCHEME = re.compile(r"[\w.+-]+(?::\w+)?")
_OPERATION = re.compile(r"[0-9a-f]{24}", re.ASCII)

T = TypeVar("T")


class StoreConfigError(Misconfigured):
    """A store's URL or options cannot be used. The text says what to do and holds no credentials."""


class AccessDenied(PersistenceUnavailable):
    """The store refuses the login, its user lacks a right, or it has no such database. `str()` says which,
    and what to correct or grant."""


# --- URLs and options -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StoreUrl:
    """The parts of `scheme://user:password@host:port/path?option=value`."""

    text: str
    scheme: str
    #: `user:password@host:port`, as written
    netloc: str
    #: with its leading slash, percent-decoded
    path: str
    query: Mapping[str, str]
    #: the folder for relative paths in the URL
    relative_to: Path = Path()

    @classmethod
    def parse(cls, text: str, relative_to: Path = Path()) -> "StoreUrl":
        # `module:Class` and `module:Class?option=value` need no location
        scheme, separator, _ = text.partition("?")[0].partition("://")
        if "@" in text and not _SCHEME.fullmatch(scheme):
            raise without_slashes(scheme)
        # `urlsplit` does not accept every scheme, such as `module:Class`, so it gets another one
        rest = text[len(scheme) :] if separator else "://" + text[len(scheme) :]
        try:
            parts = urlsplit("store" + rest, allow_fragments=False)
        except ValueError:
            raise unreadable_host(scheme) from None
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        query = dict(pairs)
        if any("@" in name for name in query):  # the rest of a password with a ? in it
            raise unreadable_host(scheme)
        if len(query) < len(pairs):
            raise StoreConfigError(f"{scheme}://…: an option is given twice in the query; leave one of them.")
        return cls(
            text=text,
            scheme=scheme,
            netloc=parts.netloc,
            path=unquote(parts.path),
            query=query,
            relative_to=relative_to,
        )

    def __repr__(self) -> str:
        return f"StoreUrl({self.safe!r})"

    @property
    def safe(self) -> str:
        """The URL without credentials and without its query: for logs and errors."""
        if ":" in self.netloc and "@" in self.path:  # of a password with a / or # that is not percent-encoded
            return f"{self.scheme}://…"
        return f"{self.scheme}://{self.netloc.rpartition('@')[2]}{self.path}"


def without_slashes(scheme: str) -> StoreConfigError:
    """For `postgres:user:password@host`: all of it looks like a scheme, which other errors quote."""
    name = re.split(r"\W", scheme)[0]
    return StoreConfigError(f"{name}:…: write {name}://…, with two slashes after the colon.")


def unreadable_host(scheme: str) -> StoreConfigError:
    """For a host or port that cannot be parsed. Quotes nothing, since it may be part of a password."""
    return StoreConfigError(
        f"{scheme}://…: its host or port cannot be read. Write the characters / # ? @ [ ] of a password as "
        "%2F %23 %3F %40 %5B %5D."
    )


def is_address(netloc: str) -> bool:
    """Whether `host:port`, with or without credentials before it, can be a server's address.

    Not every driver raises an error of its own for an invalid one, and some take port 0 for no port.
    """
    try:
        parts = urlsplit(f"//{netloc}")
        (parts.hostname or "").encode("idna")
        return parts.port != 0
    except ValueError:  # also a UnicodeError, of `a..b`
        return False


def _readable(path: str) -> str:
    try:
        Path(path).open("rb").close()
    except OSError as error:  # a driver would report that the server cannot be reached
        raise ValueError(f"names a file that cannot be read: {error.strerror}") from None
    return path


#: an option that names a file, such as a certificate
ReadableFile = Annotated[str, AfterValidator(_readable)]


class StoreOptions(BaseModel):
    """The options of a store, from its URL's query or keywords. Each store adds its own fields.

    Errors never quote the input, which might be a password.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)

    #: the first pause, in seconds, of a watch that waits by a timer
    watch_seconds: float = Field(default=0.25, gt=0, le=0.5)

    @classmethod
    def location(cls, url: StoreUrl) -> dict[str, Any]:
        """The options in the URL's host and path; stores with a location override this."""
        if url.netloc or url.path.strip("/"):
            raise StoreConfigError(f"{url.scheme}:// takes no host or path; end it after the slashes.")
        return {}

    @classmethod
    def from_url(cls, url: StoreUrl, **options: object) -> Self:
        place = cls.location(url)
        if doubled := (place.keys() & url.query.keys()) | (url.query.keys() & options.keys()):
            raise StoreConfigError(
                f"{url.safe}: {', '.join(sorted(doubled))} is given twice; leave one of them."
            )
        try:
            return cls.model_validate({**place, **url.query, **options})
        except ValidationError as error:
            raise StoreConfigError(f"{url.safe}: {sentence(explained(error, cls, options, place))}") from None


# --- the port's limits ------------------------------------------------------------------------------


def check_key(name: str) -> None:
    """`ValueError` unless `name` can be a partition or a key."""
    if not NAME.fullmatch(name):
        raise ValueError(f"partitions and keys have {NAME_RULE}")


def check_keys(partition: str, keys: Collection[str]) -> None:
    check_key(partition)
    if not all(map(NAME.fullmatch, keys)):
        raise ValueError(f"keys have {NAME_RULE}")


def check_scan(partition: str, prefix: str, after: str | None, limit: int) -> None:
    check_key(partition)
    if prefix:
        check_key(prefix)
    if after is not None:
        check_key(after)
    if limit < 1:
        raise ValueError(f"the limit of a scan is at least 1, not {limit}")


def check_commit(partition: str, commit: Commit) -> None:
    """`ValueError` if the port does not allow `commit`: the caller's mistake, not the store's."""
    check_key(partition)
    if not _OPERATION.fullmatch(commit.operation):
        raise ValueError("an operation id is 24 hexadecimal digits in lower case")
    put, delete = commit.put, commit.delete
    keys = {*commit.expect, *put, *delete}
    if len(keys) > COMMIT_RECORDS:
        raise ValueError(f"{len(keys)} records in one commit; at most {COMMIT_RECORDS}")
    if not all(map(NAME.fullmatch, keys)):
        raise ValueError(f"keys have {NAME_RULE}")
    if delete and not put.keys().isdisjoint(delete):
        raise ValueError("a key is both put and deleted")
    if commit.notify and (len(commit.notify) > MAX_TOPICS or not all(map(NAME.fullmatch, commit.notify))):
        raise ValueError(f"a commit notifies at most {MAX_TOPICS} topics, which have {NAME_RULE}")
    total = 0
    for value, ttl in put.values():
        total += len(value)
        if ttl is not None and ttl <= 0:
            raise ValueError("a ttl is more than 0 seconds")
    if total > MAX_BYTES:
        raise ValueError(f"the values of one commit sum to {total} bytes; at most {MAX_BYTES}")


def scan_bounds(prefix: str, after: str | None, reverse: bool) -> tuple[str, str]:
    """The range of keys that a scan covers: from the first text (inclusive) to the second (exclusive).

    These are bounds, not keys: a space sorts before, and DEL after, every character that a key may have.
    """
    low, high = prefix, prefix + "\x7f"
    if after is not None and reverse:
        high = min(high, after)
    elif after is not None:
        low = max(low, after + " ")
    return low, high


def in_a_line(error: BaseException, text: object = None) -> str:
    """The class of a driver's error, and the first line, if any, of its text or of a given `text`."""
    lines = str(error if text is None else text).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


# --- the base ---------------------------------------------------------------------------------------


class BaseStore(ABC):
    """A store in terms of `read`, `scan` and `commit`. Implements `tealagents.domain.ports.Store`."""

    name: str
    shared: bool
    durable: bool
    pushes: bool = False
    #: what to do where it is unavailable, as a sentence
    advice: ClassVar[str] = "Check that it is running and that TA_PERSISTENCE or spec.persistence names it."
    options_type: ClassVar[type[StoreOptions]] = StoreOptions

    def __init__(
        self, options: StoreOptions | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.options = options if options is not None else self.options_type()
        #: seconds since the epoch, for a store that has no clock of its own
        self.clock = clock
        #: the store was unavailable, and `ping` has not written to it since
        self._has_failed = False
        self._under_way: set[asyncio.Future[Any]] = set()
        #: a store that pushes replaces these, or calls `notify` on them
        self._watches = Watches(self.options.watch_seconds, live=self.pushes)

    @classmethod
    def from_url(cls, url: StoreUrl, **options: object) -> Self:
        """The store that a URL describes, not yet opened. `StoreConfigError` if the URL is wrong."""
        return cls(cls.options_type.from_url(url, **options))

    @property
    def where(self) -> str:
        """The location of the state, without credentials, for error messages."""
        return ""

    # the primitives

    @abstractmethod
    async def read(self, partition: str, keys: Sequence[str]) -> list[Record | None]: ...

    @abstractmethod
    async def scan(
        self,
        partition: str,
        prefix: str,
        *,
        after: str | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[tuple[str, Record]]: ...

    @abstractmethod
    async def commit(self, partition: str, commit: Commit) -> None: ...

    # may be overridden

    async def expired(self, partition: str, *, limit: int = 100) -> list[str]:
        """Empty, which is right for stores that erase records as soon as they expire. See `Store.expired`."""
        return []

    async def now(self) -> float:
        """This machine's clock: right for stores on one machine, or if all clocks are synchronized."""
        return self.clock()

    def watch(self, partition: str, topic: str) -> AbstractAsyncContextManager[Watch]:
        """See `Store.watch`. Waits by a timer, unless the store pushes."""
        check_key(partition)
        check_key(topic)
        return self._watches.watch(partition, topic)

    async def ping(self) -> None:
        """Asks for an answer; after a failure also writes, as a full disk still answers. See `Store.ping`."""
        await self.answer()
        if self._has_failed:
            probe = Commit(operation=operation_id(), put={"ping": Put(PROBE, PROBE_SECONDS)})
            try:
                await self.commit("ping", probe)
            except Unknown as error:
                raise self.unavailable(error) from None
            self._has_failed = False

    async def answer(self) -> None:
        """Reads a record that never exists; stores with a cheaper check override this."""
        await self.read("ping", ["answer"])

    async def exists(self) -> bool:
        """Whether what `open` would create exists already. May be called before `open`."""
        return True

    async def obstacle(self) -> str | None:
        """Why `open` could not create what is missing; None if it could, or that is unknown. May be called
        before `open`."""
        return None

    async def open(self) -> None:  # noqa: B027 — some stores have nothing to open
        """Connects, and creates the schema, table or folder if there is none."""

    async def close(self) -> None:  # noqa: B027
        """Closes what `open` opened. Called once, after every commit under way has ended."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._under_way:  # `gather` would cancel them if this is canceled
            await asyncio.wait(self._under_way)
        await self.close()

    # for subclasses

    async def shielded(self, work: Awaitable[T]) -> T:
        """Awaits `work`, which continues if the caller is canceled; closing the store waits for it."""
        future = asyncio.ensure_future(work)
        self._under_way.add(future)
        future.add_done_callback(self._ended)
        await asyncio.wait([future])  # newer versions of `asyncio.shield` log an error whose caller has left
        try:
            return future.result()
        finally:  # its error refers to this frame by its traceback
            del future

    def _ended(self, work: asyncio.Future[Any]) -> None:
        self._under_way.discard(work)
        if not work.cancelled():
            work.exception()  # otherwise asyncio logs it as never retrieved

    def unavailable(self, reason: object, advice: str | None = None) -> PersistenceUnavailable:
        """The error for a store that cannot be reached or refuses. `reason` must hold no credentials.

        `advice` says what to do instead of checking that the store is running.
        """
        self._has_failed = True
        place = f" at {self.where}" if self.where else ""
        said = str(reason).rstrip(".")
        text = f"The {self.name} store{place} is unavailable: {said}. {advice or self.advice}"
        return PersistenceUnavailable(text)

    def denied(self, reason: object, remedy: str) -> AccessDenied:
        """The error for a login that the store refuses, or that lacks a right. `reason` must hold no
        password; `remedy` says what to correct or grant, as sentences."""
        self._has_failed = True
        said = str(reason).rstrip(".")
        return AccessDenied(f"The {self.name} store at {self.where} denies access: {said}. {remedy}")
