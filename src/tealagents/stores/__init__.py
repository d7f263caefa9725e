"""Where state is kept: adapters for the port `tealagents.domain.ports.Store`.

=============  =====================================================================================
`memory`       in this process; lost at exit                                  ``memory://``
`files`        JSON documents in folders, readable by humans                  ``file:///dir``
               (`file_folder`: a partition; `file_lock`: the lock on it; `file_documents`: a record)
`sqlite`       one file, one machine                                          ``sqlite:///state.db``
               (`sqlite_threads`: the threads that own a connection)
`postgres`     any number of machines                                         ``postgresql://…``
`redis`        any number of machines                                         ``redis://…``
               (`redis_nodes`: the nodes of a cluster)
`dynamodb`     any number of machines                                         ``dynamodb://table?…``
               (`dynamodb_service`: its calls and their outcomes)
`encrypted`    a wrapper that seals the values of any of them
`base`         what they share; a store of your own begins there (`docs/how-to-write-a-store.md`)
`sql`          named statements and numbered migrations, from the `.sql` files beside the stores
`pool`         connections to a server, lent one at a time
`watches`      the watches of an open store, woken by a commit or by a timer
`links`        wake-ups that come through a server, one connection per process (`local_link`: through a file
               on one machine; `postgres_link`; `redis_link`)
=============  =====================================================================================

A store module imports `tealagents.domain`, `tealagents.disk`, `base` and parts of this folder, but no other
store. It is itself imported only when a URL has its scheme, so that no store needs the drivers of another.
Third-party stores are found by the entry-point group `tealagents.stores` (one entry per scheme), or by
``module:Class`` in place of the scheme.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tealagents.domain.ports import Store
from tealagents.registry import Registry
from tealagents.stores.base import BaseStore, StoreConfigError, StoreUrl

__all__ = ["STORES", "StoreConfigError", "open_store", "plain_store", "sealed"]

#: by the URL's scheme
STORES = Registry(
    word="store",
    error=StoreConfigError,
    group="tealagents.stores",
    built_in={
        "memory": "tealagents.stores.memory:MemoryStore",
        "file": "tealagents.stores.files:FileStore",
        "sqlite": "tealagents.stores.sqlite:SqliteStore",
        "postgresql": "tealagents.stores.postgres:PostgresStore",
        "postgres": "tealagents.stores.postgres:PostgresStore",
        "redis": "tealagents.stores.redis:RedisStore",
        "rediss": "tealagents.stores.redis:RedisStore",
        "dynamodb": "tealagents.stores.dynamodb:DynamoStore",
    },
    extras={
        "asyncpg": "postgres",
        "redis": "redis",
        "hiredis": "redis",
        "aiobotocore": "dynamodb",
        "botocore": "dynamodb",
    },
)


def open_store(
    url: str,
    *,
    env: Mapping[str, str] | None = None,
    dotenv: Path | None = Path(".env"),
    relative_to: Path = Path(),
    **options: object,
) -> Store:
    """The store that `url` describes, encrypted if `TA_ENCRYPTION_KEY` is set; enter its async context to
    open it.

    The variables come from `env` (by default the environment), then from the file `dotenv`, as for an agent:
    an empty one counts as not set. `StoreConfigError` if a line of the file is wrong: it may be the key's,
    and what is saved would not be encrypted. For the rest see `plain_store`.
    """
    from tealagents.variables import read_variables

    file = Path(dotenv) if dotenv is not None else None  # a program may give its name
    read = read_variables(os.environ if env is None else env, file)
    if read.mistakes:
        line, wrong = read.mistakes[0]
        raise StoreConfigError(f"{dotenv}{'' if line is None else f':{line}'}: {wrong}.")
    key, old_keys = (read.values.get(f"TA_ENCRYPTION_{name}", "") for name in ("KEY", "OLD_KEYS"))
    return sealed(plain_store(url, relative_to=relative_to, **options), key or None, old_keys.split())


def sealed(store: Store, key: str | None, old_keys: Sequence[str] = ()) -> Store:
    """The store, its values encrypted if there is a `key`; `old_keys` only decrypt."""
    if key is None:
        return store
    from tealagents.stores.encrypted import EncryptedStore

    return EncryptedStore(store, key, old_keys)


def plain_store(url: str, *, relative_to: Path = Path(), **options: object) -> BaseStore:
    """The store that `url` describes, without encryption.

    Options are given in the URL's query or as keywords. A relative path in the URL is relative to
    `relative_to`, by default the working directory. `StoreConfigError` if the scheme is unknown, an option is
    wrong, or a driver is missing; the text says what to do.
    """
    location = StoreUrl.parse(url, relative_to)
    found = STORES.find(location.scheme)
    if not (isinstance(found, type) and issubclass(found, BaseStore)):
        raise StoreConfigError(
            f"{location.scheme!r} is not a store: it must extend tealagents.stores.base.BaseStore."
        )
    with STORES.making(location.scheme, found):
        store = found.from_url(location, **options)
        for attribute, value in (
            ("name", "a text"),
            ("shared", "True or False"),
            ("durable", "True or False"),
        ):
            if not hasattr(store, attribute):
                raise StoreConfigError(
                    f"The store {location.scheme!r} has no {attribute}: set it to {value}."
                )
        return store
