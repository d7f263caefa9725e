"""The protocols that an agent can be served over: one entry and one folder each.

A protocol is given the exchange and a path of its own. It imports nothing of another, and nothing outside its
folder knows of it but this table.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from msgspec import Struct
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from tealagents.api.exchange import Exchange
from tealagents.mistakes import Misconfigured
from tealagents.registry import Registry


class Served(Struct, frozen=True, kw_only=True):
    """A protocol as it is served."""

    #: answers at and below `path`; its routes are written with the whole path
    app: ASGIApp
    path: str
    #: documents that clients look for at the root of a service
    discovery: Sequence[BaseRoute] = ()
    #: what `GET /` says of it: names and paths
    urls: Mapping[str, str] = {}
    #: what it keeps open while it is served: entered before the agent is, left after it
    lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = None


#: builds a protocol over an exchange, at a path
Build = Callable[[Exchange, str], Served]

#: name → where it is below the agent's prefix, and `module:function` that builds it
PROTOCOLS: dict[str, tuple[str, str]] = {
    "tealagents/v1alpha1": ("", "tealagents.api.v1alpha1.app:build"),
    "openai": ("/openai/v1", "tealagents.api.openai.app:build"),
    "a2a": ("/a2a", "tealagents.api.a2a.app:build"),
    "ag-ui": ("/ag-ui", "tealagents.api.ag_ui.app:build"),
    "mcp": ("/mcp", "tealagents.api.mcp.app:build"),
}


class ProtocolConfigError(Misconfigured):
    """A protocol that is unknown, or whose library is not installed. The text says what to do."""


def path_of(name: str) -> str:
    """Where a protocol is below the agent's prefix. `ProtocolConfigError`."""
    if name not in PROTOCOLS:
        known = ", ".join(sorted(each for each in PROTOCOLS if "/" not in each))
        raise ProtocolConfigError(f"Unknown protocol {name!r}. Known: {known}.")
    return PROTOCOLS[name][0]


def builder(name: str) -> Build:
    """What builds a protocol; only then is it imported. `ProtocolConfigError`."""
    path_of(name)
    found: Build = Registry(
        word="protocol",
        error=ProtocolConfigError,
        built_in={each: where for each, (_, where) in PROTOCOLS.items()},
        extras={"a2a": "a2a", "google": "a2a", "ag_ui": "ag-ui", "mcp": "mcp", "mcp_types": "mcp"},
    ).find(name)
    return found


def build(name: str, exchange: Exchange) -> Served:
    """A protocol by its name, over an exchange. `ProtocolConfigError`."""
    served = builder(name)(exchange, exchange.prefix + path_of(name))
    exchange.urls[name] = served.urls
    return served
