"""Wires the service: makes an application from a checked config.

What `parts` makes is put together here, opened in the application's lifespan in the order of need, and closed
in reverse order. (`skagents` wires the earlier platform's files.)
"""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tealagents import telemetry
from tealagents.api import protocols
from tealagents.api.console import Console, SignIn
from tealagents.api.exchange import Exchange
from tealagents.api.host import Host, Wrap
from tealagents.api.settings import ApiSettings
from tealagents.auth import AuthConfigError, open_auth
from tealagents.config import ServiceConfig
from tealagents.config.problems import KeyPath
from tealagents.config.summary import model_service
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import NotFound, PersistenceUnavailable
from tealagents.domain.models import Json
from tealagents.domain.ports import Authenticator, Clock, Store, ToolSpec
from tealagents.engine.agent import AgentSpec
from tealagents.engine.service import Service
from tealagents.llm import ModelConfigError
from tealagents.opening import Held
from tealagents.outbound.addresses import is_loopback_host
from tealagents.parts import (
    agent_of,
    check_key,
    credential_of,
    model_of,
    observer_of,
    providers_of,
    record_store_of,
    rules_of,
    store_of,
    view_of,
    weak_keys,
)
from tealagents.registry import import_from
from tealagents.serving import background, drained_by_signals
from tealagents.state import keys
from tealagents.state.tasks import Tasks
from tealagents.state.workers import Lease
from tealagents.stores import StoreConfigError, plain_store
from tealagents.stores.base import BaseStore
from tealagents.threads.components import open_provider, open_reducer, open_view
from tealagents.threads.context import ContextProvider, Providers
from tealagents.tooling import Tooling

log = logging.getLogger(__name__)

#: seconds that the store has to answer a probe
PROBE_SECONDS = 2
#: messages that the console offers to begin with
EXAMPLES_SHOWN = 4


def application(config: ServiceConfig, *, clock: Clock | None = None) -> Host:
    """The application of one config. What it needs is opened when it starts.

    What the config names as `module:Class` may be next to its file.
    """
    import_from(config.source.parent)
    return ServiceWiring(config, clock or SystemClock()).app()


def _measured(store: Store) -> Store:
    from tealagents.telemetry.stores import MeasuredStore

    return MeasuredStore(store)


def observing(config: ServiceConfig) -> Wrap:
    """The middleware that observes each HTTP request."""
    if not config.telemetry.metered:
        return lambda app: app
    from tealagents.telemetry.http import HttpRequests

    return partial(HttpRequests, probes=f"{config.prefix}/health", traced=config.telemetry.traced)


def console_of(config: ServiceConfig) -> Console:
    examples = tuple(text for skill in config.metadata.skills for text in skill.examples)
    return Console(_sign_in(config), examples[:EXAMPLES_SHOWN])


def _sign_in(config: ServiceConfig) -> SignIn:
    auth = config.auth.entra
    if auth is None or not config.console.client_id:
        return SignIn("mock" if config.auth.provider == "mock" else "token")
    resource = next((name for name in auth.audience if name.startswith("api://")), auth.audience[0])
    return SignIn(
        "entra",
        {
            "authority": auth.authority,
            "tenant_id": auth.tenant_id,
            "client_id": config.console.client_id,
            "scopes": [f"{resource}/{scope}" for scope in auth.scopes or (".default",)],
        },
    )


def settings_of(config: ServiceConfig) -> ApiSettings:
    """The API's settings, whatever the agent is served by."""
    return ApiSettings(
        prefix=config.prefix,
        description=config.description or config.metadata.description or config.name,
        max_body_bytes=config.limits.max_body_bytes,
        max_items=config.limits.max_items,
        keepalive_seconds=config.limits.keepalive_seconds,
        idle_connection_seconds=config.limits.idle_connection_seconds,
        cors_origins=config.cors_origins,
        auditor_role=(config.auth.entra and config.auth.entra.auditor_role) or "auditor",
        local_only=is_open(config),
    )


def once_at_a_time(probe: Callable[[], Coroutine[Any, Any, Json]]) -> Callable[[], Coroutine[Any, Any, Json]]:
    """The probe, run once for all who ask at the same time: they need no token, and the store is for users.

    They are answered in time, however long the store takes.
    """
    running: asyncio.Task[Json] | None = None

    async def answer() -> Json:
        nonlocal running
        if running is None or running.done():
            running = asyncio.create_task(probe())
            running.add_done_callback(lambda probed: probed.cancelled() or probed.exception())
        mine = running  # before this continues, the next one may have begun
        done, _ = await asyncio.wait([mine], timeout=PROBE_SECONDS)
        if not done:
            raise PersistenceUnavailable(f"The store has not answered for {PROBE_SECONDS} seconds.")
        return mine.result()

    return answer


async def _is_there(store: BaseStore) -> bool:
    """Whether there is a store; a folder that cannot be read is reported when it is opened."""
    try:
        return await store.exists()
    except OSError:
        return True


async def _still_asks(tasks: Tasks, user_key: str, request_id: str) -> bool:
    """Whether a user's request may still need what it asked the user to authorize: it is neither over nor too
    late. What it shows now does not say so: an approver may have decided the pause with the link."""
    with suppress(NotFound):
        request = (await tasks.request(keys.user(tasks.records.agent, user_key), request_id)).value
        pause = request.pause
        return request.status == "Running" or (
            request.status == "Paused" and pause is not None and pause.expires_at > tasks.records.clock.now()
        )
    return False


class ServiceWiring:
    """Makes the parts of one application, and opens them."""

    def __init__(self, config: ServiceConfig, clock: Clock) -> None:
        self.config = config
        self.store = _measured(store_of(config)) if config.telemetry.metered else store_of(config)
        self.credential = credential_of(config)
        self.model = model_of(config, self.credential)
        self.auth: Authenticator = open_auth(config.auth.provider, config.auth.options, clock)
        records = record_store_of(config, self.store, clock)
        self.tooling = Tooling(config, records, clock)
        self.providers = providers_of(config)
        self.lease = Lease(records, config.limits.lease_seconds)
        agent = self._agent()
        tasks = Tasks(records, self.lease, rules_of(config), agent.source, agent.observer.ended_outside)
        self.tooling.consents.still_asks = partial(_still_asks, tasks)
        self.service = Service(agent, tasks)
        agent.observer.loaded(self.service.load)
        self.exchange = Exchange(self.service, self.auth, self._settings())

    def app(self) -> Host:
        names = (self.config.api_version, *self.config.protocols)
        served = [protocols.build(name, self.exchange) for name in names]
        if (url := self.exchange.settings.console) is not None:
            served.append(console_of(self.config).served(self.exchange, url))
        return Host(self.exchange, served, self._lifespan, observing(self.config))

    def _agent(self) -> AgentSpec:
        config = self.config
        return dataclasses.replace(
            agent_of(config, self.model, self.tooling.govern),
            thread_kind=config.thread.kind,
            view=view_of(config),
            providers=self.providers,
            on_disconnect=config.on_disconnect,
            delegation=self.tooling.delegation,
            forward_headers=config.forward_headers,
            observer=observer_of(config, [config.agent]),
        )

    def _settings(self) -> ApiSettings:
        config = self.config
        return dataclasses.replace(
            settings_of(config),
            public_url=config.public_url,
            metadata=config.metadata.model_dump(mode="json", exclude_none=True),
            dependencies={"store": once_at_a_time(self._store_probe)},
            console=f"{config.prefix}/console/" if config.console.enabled else None,
            consents=self.tooling.consents,
        )

    async def _store_probe(self) -> Json:
        """Whether messages are taken: the store answers and can be written, and the lease is held."""
        await self.store.ping()
        await self.lease.ensure()
        return {"name": self.store.name}

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncIterator[None]:
        config = self.config
        async with AsyncExitStack() as stack:
            stack.enter_context(telemetry.configured(config.telemetry, config.name, config.version))
            plain = plain_store(config.persistence)
            existed = await _is_there(plain)
            is_ours = type(plain).__module__.startswith("tealagents.")  # it may be told to wait for longer
            store = Held(
                self.store, "store", StoreConfigError, wrapped=plain, vital=True, bounded=not is_ours
            )
            await stack.enter_async_context(store)
            if not existed:
                log.warning(
                    "there was no store at %s: a new one was created; check TA_PERSISTENCE or "
                    "spec.persistence",
                    plain.where,
                )
            await check_key(self.config, self.service.records)
            if self.credential is not None:
                await stack.enter_async_context(self.credential)
            await stack.enter_async_context(Held(self.model, "model client", ModelConfigError, vital=True))
            await stack.enter_async_context(Held(self.auth, "auth provider", AuthConfigError, vital=True))
            stack.push_async_callback(self.tooling.close)
            toolbox = self.service.agent.toolbox
            toolbox.load(await self.tooling.open(toolbox.reload))
            await stack.enter_async_context(self.providers)
            await self.lease.start()
            stack.push_async_callback(self.lease.stop)
            await stack.enter_async_context(background(self.service.attend))
            stack.push_async_callback(self.service.drain, 0)
            stack.enter_context(drained_by_signals(self.service, config.limits.drain_seconds))
            self._say_hello(plain.where)
            async with background(self.exchange.eraser.sweep):
                yield

    def _say_hello(self, place: str) -> None:
        config = self.config
        for warning in config.warnings:
            log.warning(warning)
        if not self.store.durable:
            log.warning(
                "state is kept in memory and lost at exit; set TA_PERSISTENCE=sqlite:///state.db to keep it"
            )
        if config.auth.provider == "mock" and config.auth.chosen:
            log.warning(
                "authentication is mock: the bearer token is the user id; set TA_AUTH=entra for real "
                "authentication"
            )
        service = model_service(config)
        where = f"at {service}" if service else f"by {config.agent.client}"
        model, store = config.agent.model, self.store.name + (f" at {place}" if place else "")
        log.info("serving %s: model %s %s, state in %s", config.prefix, model, where, store)


def problems_at_start(config: ServiceConfig, host: str, workers: int) -> Sequence[str]:
    """Why a config must not be served like this; empty if it may."""
    found = identity_problems(config, host)
    if workers > 1 and not (store := store_of(config)).shared:
        found.append(
            f"{workers} workers cannot share the store {store.name!r}: it is for one process only. Set "
            "TA_PERSISTENCE to another (sqlite:///state.db is enough on one machine), or use one worker"
        )
    return [*found, *weak_keys(config)]


def parts(config: ServiceConfig) -> Iterator[tuple[KeyPath, Callable[[], object]]]:
    """What can be made of a config before it is served, under the key that names it; all but its agent."""
    auth = config.auth
    yield ("spec", "persistence"), partial(store_of, config)
    yield ("spec", "auth", "provider"), partial(open_auth, auth.provider, auth.options, SystemClock())
    for index, name in enumerate(config.protocols):
        yield ("spec", "protocols", index), partial(protocols.builder, name)
    model = None if config.document.is_open(("spec", "agent", "model")) else config.agent.model
    for index, reducer in enumerate(config.thread.reducers):
        key = ("spec", "thread", "reducers", index)
        choice = (reducer.name, reducer.options)
        # some need to know how much the model takes, by its name
        one = partial(open_reducer, *choice) if model is None else partial(open_view, [choice], model)
        yield key, partial(one, folder=config.source.parent)
    made: list[ContextProvider] = []
    for index, provider in enumerate(config.thread.context_providers):
        key = ("spec", "thread", "context_providers", index)
        yield key, partial(_add, made, provider.name, provider.options, config.source.parent)


def _add(made: list[ContextProvider], name: str, options: Json, folder: Path) -> None:
    """Makes a provider, and checks it together with those that were made before."""
    provider = open_provider(name, options, folder)
    Providers([*made, provider])
    made.append(provider)


def agents(config: ServiceConfig) -> Iterator[tuple[KeyPath, ServiceConfig]]:
    """The config for each of its agents, with the key that names it."""
    yield ("spec", "agent"), config


def check_tools(tools: Sequence[ToolSpec]) -> None:
    """Any tool can be served: one that needs an approval pauses its request."""


def identity_problems(config: ServiceConfig, host: str) -> list[str]:
    """Why the identity of callers cannot be trusted at this address; empty if it can."""
    if not is_open(config) or is_loopback_host(host):
        return []
    return [
        f"authentication was not chosen, and mock authentication is not served on {host}: set "
        "TA_ENTRA_TENANT_ID and TA_ENTRA_AUDIENCE, or TA_AUTH=mock if any client may claim any id"
    ]


def is_open(config: ServiceConfig) -> bool:
    """Whether any caller may claim any user id, without the operator having chosen that."""
    return config.auth.provider == "mock" and not config.auth.chosen
