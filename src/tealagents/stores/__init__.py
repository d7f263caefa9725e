"""Where state is kept: adapters for the port `tealagents.domain.ports.Store`.

=============  =====================================================================================
`memory`       in this process; lost at exit                                  ``memory://``
`files`        JSON documents in folders, for a person to read                ``file:///dir``
`sqlite`       one file, one machine                                          ``sqlite:///state.db``
`postgres`     any number of machines                                         ``postgresql://…``
`redis`        any number of machines                                         ``redis://…``
`dynamodb`     any number of machines                                         ``dynamodb://table?…``
`encrypted`    a wrapper that seals the values of any of them
`base`         what they share; a store of your own begins there (`docs/how-to-write-a-store.md`)
`sql`          named statements and numbered migrations, from the `.sql` files beside the stores
`pool`         connections to a server, lent one at a time
=============  =====================================================================================

A store module imports `tealagents.domain` and `base`, and is itself imported only when its scheme is asked
for, so that nobody needs the drivers of the others. Stores of third parties come by the entry-point
group `tealagents.stores` (a scheme each), or as ``module:Class`` in the scheme's place.
"""

from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from tealagents.stores.base import BaseStore, StoreConfigError, StoreUrl

__all__ = ["SCHEMES", "StoreConfigError", "known_schemes", "open_store"]

#: the URL schemes of the stores that come with the project, and what fills them
SCHEMES = {
    "memory": "tealagents.stores.memory:MemoryStore",
    "file": "tealagents.stores.files:FileStore",
    "sqlite": "tealagents.stores.sqlite:SqliteStore",
    "postgresql": "tealagents.stores.postgres:PostgresStore",
    "postgres": "tealagents.stores.postgres:PostgresStore",
    "redis": "tealagents.stores.redis:RedisStore",
    "rediss": "tealagents.stores.redis:RedisStore",
    "dynamodb": "tealagents.stores.dynamodb:DynamoStore",
}

#: the drivers that the extras bring, by the name they are imported by
_EXTRAS = {
    "asyncpg": "postgres",
    "redis": "redis",
    "hiredis": "redis",
    "aiobotocore": "dynamodb",
    "botocore": "dynamodb",
}


def open_store(url: str, *, relative_to: Path = Path(), **options: object) -> BaseStore:
    """The store that `url` describes; enter its async context to open it.

    Options of the store come from the URL's query or as keywords. A relative path in the URL is relative to
    `relative_to`, by default the working directory. StoreConfigError where the scheme is unknown, an
    option is wrong, or a driver is missing; the text says what to do.
    """
    location = StoreUrl.parse(url, relative_to)
    return _store_class(location.scheme).from_url(location, **options)


def known_schemes() -> list[str]:
    return sorted({*SCHEMES, *(point.name for point in entry_points(group="tealagents.stores"))})


def _store_class(scheme: str) -> type[BaseStore]:
    reference = SCHEMES.get(scheme) or _third_party(scheme)
    module, _, name = reference.partition(":")
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        raise StoreConfigError(_missing(scheme, reference, missing)) from missing
    except AttributeError:
        raise StoreConfigError(f"The store {reference!r} does not exist: {module} has no {name!r}.") from None
    if not (isinstance(found, type) and issubclass(found, BaseStore)):
        raise StoreConfigError(f"{reference!r} is no store: it must extend tealagents.stores.base.BaseStore.")
    return found


def _third_party(scheme: str) -> str:
    for point in entry_points(group="tealagents.stores", name=scheme):
        return point.value
    if ":" in scheme:
        return scheme
    raise StoreConfigError(
        f"Unknown store {scheme!r}. Known: {', '.join(known_schemes())}; or name a class as module:Class."
    )


def _missing(scheme: str, reference: str, missing: ModuleNotFoundError) -> str:
    driver = (missing.name or "").partition(".")[0]
    if extra := _EXTRAS.get(driver):
        return f"The {scheme}:// store needs {driver}: pip install 'tealagents[{extra}]'"
    return f"The store {reference!r} cannot be imported: {missing}"
