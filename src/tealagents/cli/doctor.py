"""`tealagents doctor`: finds what keeps a service from working, and says what to do about it.

It checks the config, the store, the authority, the model service, the tools, the context providers, the
collector and the clocks as `serve` would use them, and a running service from outside. To do so, it writes
one record to the store (or one file where the store will be created) and deletes it, asks each agent's model
for one word, sends the collector an empty export, and starts the MCP servers that are commands.
"""

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlsplit

import httpx
import typer
from rich.markup import escape

from tealagents.cli.findings import find, placed_tools, unusable_metrics
from tealagents.cli.help import Config
from tealagents.cli.loading import absent, plain_console, unusable, warn
from tealagents.client.wire import DIRECT
from tealagents.config import ServiceConfig
from tealagents.config.environment import read_environment
from tealagents.config.problems import KeyPath
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import (
    CorruptState,
    PersistenceUnavailable,
    StoreError,
    TealError,
    ToolFailed,
    described,
)
from tealagents.domain.ports import Commit, Put, Store
from tealagents.mistakes import file_reason, key_text

if TYPE_CHECKING:
    from tealagents.state.audit import BadEntry
    from tealagents.state.inventory import Inventory
    from tealagents.state.records import RecordStore
    from tealagents.stores.base import BaseStore

#: the most seconds by which two clocks may differ; by default, tokens are checked with as much leeway
MOST_SKEW = 60.0
#: seconds; a shorter lease is lost by a busy process or with a slow store
SHORTEST_LEASE = 3.0
#: the number of tasks whose audits are verified
TASKS_VERIFIED = 5
#: seconds that a server gets to answer
ANSWER_SECONDS = 10.0
#: seconds that the collector of telemetry gets
COLLECTOR_SECONDS = 5.0
#: texts in the errors of a model service that did answer: a cut answer, and an error in place of one
_FAILED_MIDWAY = ("answer was cut", "failed while answering")
#: the size of the file that is written where a store will be created
_PROBE_BYTES = 65536
#: the stores that need no server
_FILE_STORES = ("sqlite", "files")


class Diagnosis(NamedTuple):
    """A problem, and what to do about it."""

    what: str
    remedy: str = ""


def doctor_command(
    url: Annotated[
        str | None, typer.Argument(help="A running service to examine, or one of its agents.")
    ] = None,
    config: Config = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", min=1, max=65535, help="Also check that this port is free.")
    ] = None,
) -> None:
    """Find problems with a service, and say how to fix them. Exit status 1 if there are any.

    It examines the config, the store, the authority, the model service, the tools, the context providers, the
    collector and the clocks, and with a URL also the running service. With a URL and no config, it examines
    only that service.
    """
    with _logged_as_warnings():
        found = asyncio.run(_examine(url, config, port))
    out = plain_console()
    for diagnosis in found:
        out.print(f"[red]✗[/] {escape(diagnosis.what)}")
        if diagnosis.remedy:
            out.print(f"  → {escape(diagnosis.remedy)}")
    if found:
        raise typer.Exit(1)
    out.print("[green]✓[/] no problems found")


class _Warnings(logging.Handler):
    """Prints what is logged as a command's warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        # the model client logs the errors that are found as well
        if not record.name.startswith("tealagents.llm"):
            warn(record.getMessage())


@contextmanager
def _logged_as_warnings() -> Iterator[None]:
    log, handler = logging.getLogger("tealagents"), _Warnings(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


async def _examine(url: str | None, path: Path | None, port: int | None) -> list[Diagnosis]:
    from tealagents.app import wiring

    found = list[Diagnosis]()
    config: ServiceConfig | None = None
    #: the config, unless something in it is wrong or not set
    whole: ServiceConfig | None = None
    named = path or read_environment(os.environ, Path(".env"), []).get("TA_SERVICE_CONFIG")
    if url is None or named:
        # outside of this event loop, as `check` does: `find` runs a loop of its own
        said = await asyncio.to_thread(find, path)
        config = said.config
        found += [Diagnosis(each) for each in (*said.wrong, *(need.problem for need in said.needed))]
        if config is not None:
            warn(*config.warnings)
            whole = None if said.wrong or config.document.unset else config
    if whole is not None and not whole.stateless:
        found += [each async for each in _check_store(whole)]
    if port is not None:
        found += _check_port(port)
        if config is not None and (metrics := unusable_metrics(config, port)):
            found.append(Diagnosis(metrics))
    if no_certificates := [*_check_certificates()]:
        return found + no_certificates  # no server can be called
    if whole is not None:
        for key, agent in () if said.needed else wiring(whole).agents(whole):
            # a problem of a model service that several agents share is reported once
            found += [each async for each in _check_model(agent, key) if each not in found]
            found += [each async for each in _check_tools(agent, key)]
            found += [each async for each in _check_providers(agent)]
        found += [each async for each in _check_authority(whole)]
        found += [each async for each in _check_collector(whole)]
    if url is not None:
        found += [each async for each in _check_service(url, config)]
    return found


def _check_certificates() -> Iterator[Diagnosis]:
    file = os.environ.get("SSL_CERT_FILE")
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        yield Diagnosis(
            f"SSL_CERT_FILE: {file}: no certificates can be read: {file_reason(error)}",
            "Name a file with the certificates of all authorities that are needed, in PEM, or unset the "
            "variable.",
        )


def _check_port(port: int) -> Iterator[Diagnosis]:
    """Tries the default of `serve --host`, and warns where all addresses cannot be listened on together."""
    if said := _unbindable("127.0.0.1", port):
        yield Diagnosis(said)
    elif said := _unbindable("0.0.0.0", port):  # noqa: S104 - bound for a moment only
        warn(f"{said}. Only `serve --host 0.0.0.0` needs it")


def _unbindable(host: str, port: int) -> str | None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            return unusable(host, port, error)
    return None


# --- the store ------------------------------------------------------------------------------------


async def _check_store(config: ServiceConfig) -> AsyncIterator[Diagnosis]:
    from tealagents.bootstrap import store_of
    from tealagents.stores import StoreConfigError, plain_store
    from tealagents.stores.base import AccessDenied

    plain = plain_store(config.persistence)
    try:
        if not await plain.exists():
            if obstacle := _obstacle(plain, await plain.obstacle()):
                yield obstacle
            else:
                warn(f"There is no store at {plain.where} yet: the next start creates one, without any tasks")
            return
        async with store_of(config) as store:
            async for diagnosis in _examine_store(config, store):
                yield diagnosis
    except (StoreConfigError, CorruptState, AccessDenied) as error:
        yield Diagnosis(f"the store cannot be used: {error}")
    except (PersistenceUnavailable, OSError) as error:
        yield _unreachable_store(plain, error)


def _unreachable_store(store: "BaseStore", error: Exception) -> Diagnosis:
    if store.name in _FILE_STORES:
        return Diagnosis(
            f"the store cannot be opened: {error}",
            "Run this as the service's user, let it write to the store and its folder, free space on its "
            "disk, or stop the process that locks it.",
        )
    return Diagnosis(
        f"the store cannot be reached: {error}",
        "Start it, or correct TA_PERSISTENCE or spec.persistence; check that this machine can connect to it, "
        "and that its user may read and write the store.",
    )


def _obstacle(store: "BaseStore", known: str | None) -> Diagnosis | None:
    """What keeps the first start from creating a store; `known` is what the store itself says. A mistyped
    path shows by its missing folder."""
    if known is not None:
        right = "" if store.name in _FILE_STORES else ", or grant its user that right"
        if right and hasattr(store, "migrate"):
            right += ", or run `tealagents migrate` as the owner of the database"
        return Diagnosis(
            f"the store cannot be created: {known}", f"Correct TA_PERSISTENCE or spec.persistence{right}."
        )
    if store.name not in _FILE_STORES:
        return None
    there = Path(store.where)
    folder = there if there.is_dir() else there.parent
    if not folder.is_dir():
        return Diagnosis(
            absent(store), "The service creates a new store and its folder when it first starts."
        )
    try:
        with TemporaryFile(dir=folder) as file:  # one that has no name
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Diagnosis(
            f"the store cannot be created: {folder} cannot be written to: {file_reason(error)}",
            "Grant this user the right to write to it, or free space on its disk.",
        )
    return None


async def _examine_store(config: ServiceConfig, store: Store) -> AsyncIterator[Diagnosis]:
    from tealagents.stores.base import AccessDenied

    seconds = 0.0
    try:
        seconds = await _write_probe(config, store)
    except AccessDenied as error:
        yield Diagnosis(f"the store cannot be written to: {error}")
        return  # reading may need the same right, and would only report the same problem again
    except (TealError, StoreError, OSError) as error:
        yield Diagnosis(
            f"the store cannot be written to: {error}",
            "Free space on its disk or memory, let this user write to it, or stop the "
            "process that locks its tables.",
        )
    if config.limits.lease_seconds < max(SHORTEST_LEASE, 20 * seconds):
        yield Diagnosis(
            f"limits.lease_seconds is {config.limits.lease_seconds:g}, and a write takes {seconds:.3f} s: a "
            "busy process loses its lease, and its requests with it",
            "Raise limits.lease_seconds; 15 is the default.",
        )
    if (skew := abs(await store.now() - time.time())) > MOST_SKEW:
        yield _skew_finding("the store", skew)
    async for diagnosis in _examine_content(config, store):
        yield diagnosis


async def _write_probe(config: ServiceConfig, store: Store) -> float:
    """Writes a record and deletes it. Returns the seconds that the quicker of the two commits took."""
    from tealagents.domain import ids

    partition, keys = _probe(config)
    began = time.perf_counter()
    put = dict.fromkeys(keys, Put(b"{}", 60))
    await store.commit(partition, Commit(operation=ids.operation_id(), put=put))
    written = time.perf_counter()
    await store.commit(partition, Commit(operation=ids.operation_id(), delete=keys))
    return min(written - began, time.perf_counter() - written)


def _probe(config: ServiceConfig) -> tuple[str, list[str]]:
    """The partition and the keys of the record that is written as a probe.

    The partition is one that every service writes to: a store of files keeps the folder of an empty one.
    """
    from tealagents.state import keys

    return keys.workers(config.name), ["probe"]


async def _examine_content(config: ServiceConfig, store: Store) -> AsyncIterator[Diagnosis]:
    """Checks whether stored records can be read, and audits verified, with the configured keys."""
    from tealagents.bootstrap import record_store_of
    from tealagents.state.inventory import Inventory

    # reading by key may need a right of its own, and an empty store would only be scanned
    await store.read(*_probe(config))
    records = record_store_of(config, store, SystemClock())
    inventory = Inventory(records)
    try:
        await inventory.check_key(keyed=config.encryption_key is not None)
    except CorruptState as error:
        yield _other_key(config, error)
        return
    try:
        fault = await _audit_fault(inventory, records)
    except CorruptState as error:
        inventory.damaged.append(str(error))
        fault = None
    for damage in inventory.damaged[:1]:
        remedy = "Restore a backup: `tealagents state export` names every damaged record that it exports."
        if "is sealed with the key" in damage:
            remedy = f"If that is an earlier key, add it to TA_ENCRYPTION_OLD_KEYS. Otherwise: {remedy}"
        yield Diagnosis(f"a stored record cannot be read: {damage}", remedy)
    if fault is not None:
        yield Diagnosis(
            f"an audit does not verify: {fault}",
            "If TA_AUDIT_KEY was changed, set the earlier one, or unset it if there was none; otherwise run "
            "`tealagents state verify-audit`.",
        )


def _other_key(config: ServiceConfig, error: CorruptState) -> Diagnosis:
    """The finding for a record that was stored with another encryption key, or without one."""
    remedy = (
        "Set TA_ENCRYPTION_KEY to the key that it was stored with, and list earlier keys in "
        "TA_ENCRYPTION_OLD_KEYS."
    )
    if config.encryption_key is None:
        return Diagnosis(
            f"the store is encrypted, and TA_ENCRYPTION_KEY is not set: the record {error.key!r} cannot be "
            "read",
            remedy,
        )
    if "is not encrypted" in error.reason:
        remedy = (
            "Unset TA_ENCRYPTION_KEY; or, to encrypt the state, run `tealagents state export` without the "
            "key, and `import` with it, into an empty store."
        )
    return Diagnosis(
        f"TA_ENCRYPTION_KEY is not the key of the store: the record {error.key!r} {error.reason}", remedy
    )


async def _audit_fault(inventory: "Inventory", records: "RecordStore") -> "BadEntry | None":
    """The first bad entry in the audits of the first `TASKS_VERIFIED` tasks, if there is one."""
    from tealagents.state.audit import verify

    left = TASKS_VERIFIED
    for owner in await inventory.owners():
        async with aclosing(inventory.tasks(owner)) as tasks:
            async for task in tasks:
                if task.damage is not None:
                    raise task.damage
                verified = await verify(records, task.partition, task.task_id)
                if verified is not None and verified.fault is not None:
                    return verified.fault
                left -= 1
                if not left:
                    return None
    return None


# --- what the agent uses, and the authority -----------------------------------------------------------


async def _check_model(config: ServiceConfig, place: KeyPath) -> AsyncIterator[Diagnosis]:
    """Asks the model of the config's agent for one word. `place` is the agent's key in the file."""
    from tealagents.bootstrap import START_ERRORS, credential_of, model_of
    from tealagents.domain.models import Item, Message
    from tealagents.domain.ports import ModelCall

    credential = credential_of(config)
    text = Message(
        message_id="doctor",
        request_id="doctor",
        role="user",
        created_at=datetime.now(UTC),
        items=(Item("text", "Answer with one word: ready"),),
    )
    try:
        async with model_of(config, credential) as model:
            call = ModelCall(prompt=[model.encode(text)])
            async with aclosing(model.stream(call)) as events:
                async for _ in events:
                    pass
    except START_ERRORS as error:
        how = "fails" if _was_reached(error) else "does not answer"
        yield Diagnosis(f"the model service {how}: {error}", _remedy_of_model(config, place, error))


def _was_reached(error: Exception) -> bool:
    """Whether the service was reached, so that the failure is its own."""
    return getattr(error, "http_status", None) is not None or any(
        each in str(error) for each in _FAILED_MIDWAY
    )


def _remedy_of_model(config: ServiceConfig, place: KeyPath, error: Exception) -> str:
    from tealagents.llm.credentials import NO_CREDENTIAL, AzureCredentialOptions
    from tealagents.llm.options import OPENAI_URL

    status, said = getattr(error, "http_status", None), str(error)
    url = config.base_url or OPENAI_URL
    proxy = _proxy_hint(url)
    identity = AzureCredentialOptions.from_environment(config.environment)
    if identity is not None and said.startswith(NO_CREDENTIAL):
        return _remedy_of_connection(
            said,
            None if identity.kind == "managed_identity" else identity.authority,
            "Correct the TA_AZURE_… variable that the error is about; check that this machine can connect to "
            "the authority, or that it has a managed identity.",
        )
    if status == 407:
        return f"A proxy asks for credentials.{proxy}"
    if status in (401, 403) and identity is not None:
        return (
            "The service refuses the identity: grant it its role at the resource (Cognitive Services OpenAI "
            f"User), and check TA_AZURE_SCOPE, TA_AZURE_TENANT_ID and TA_AZURE_CLIENT_ID.{proxy}"
        )
    if status in (401, 403):
        return f"The service refuses the key: set TA_API_KEY to one that is valid for it.{proxy}"
    if status == 404:
        key, model = key_text((*place, "model")), config.agent.model
        return f"Correct {key} ({model}) or TA_BASE_URL: the service has no such model."
    if status in (402, 429) or "insufficient_quota" in said:
        return "Wait, raise the limit at the service, or set TA_API_KEY to another key."
    if status is not None and status < 500:
        return "Correct what the service refuses, or TA_BASE_URL."
    if _was_reached(error):
        log = "the log of the service, or of the proxy in front of it"
        return f"Try again. If it persists, see {log}.{proxy}"
    return _remedy_of_connection(
        said,
        url,
        "Check that TA_BASE_URL is right, that the service is running, and that this machine can connect to "
        "it.",
    )


async def _check_tools(config: ServiceConfig, place: KeyPath) -> AsyncIterator[Diagnosis]:
    """Opens the tools of the config's agent, with their servers. `place` is the agent's key in the file."""
    from tealagents.bootstrap import START_ERRORS
    from tealagents.tooling import Tooling

    failed, reasons = list[Exception](), list[str]()
    try:
        tooling = Tooling(config, None, SystemClock())
        try:
            await tooling.open(lambda: None, failed)
        finally:
            await tooling.close()
    except ToolFailed as error:
        failed.append(error)
    except START_ERRORS as error:
        reasons.append(str(error))
    except Exception as error:  # noqa: BLE001 — a toolset may be third-party code
        reasons.append(described(error))
    reasons += (placed_tools(config, place, error) for error in failed)
    remedy = (
        "Correct the config, or start the server that it names; check that this machine can connect to it."
    )
    for why in reasons:
        yield Diagnosis(f"the tools cannot be opened: {why}", _remedy_of_connection(why, None, remedy))


async def _check_providers(config: ServiceConfig) -> AsyncIterator[Diagnosis]:
    from tealagents.bootstrap import START_ERRORS, providers_of

    try:
        async with providers_of(config):
            return
    except START_ERRORS as error:
        why = str(error)
    except Exception as error:  # noqa: BLE001 — a provider may be third-party code
        why = described(error)
    remedy = "Correct spec.thread.context_providers, or what it depends on."
    yield Diagnosis(f"the context providers cannot be opened: {why}", remedy)


async def _check_authority(config: ServiceConfig) -> AsyncIterator[Diagnosis]:
    entra = config.auth.entra
    if entra is None:
        return
    from httpx2 import HTTPError

    from tealagents.auth.jwks import KeysUnreadable, read_key_set
    from tealagents.auth.options import UUID
    from tealagents.outbound.reading import BoundedClient, fetch

    url = f"{entra.authority}/{entra.tenant_id}/v2.0/.well-known/openid-configuration"
    try:
        async with BoundedClient(entra.authority, seconds=ANSWER_SECONDS) as client:
            keys = await read_key_set(client, url)
            date = (await fetch(client, "GET", url)).headers.get("date", "")
    except (KeysUnreadable, HTTPError) as error:
        yield Diagnosis(
            f"the authority's keys cannot be read at {url}: {error}",
            _remedy_of_connection(
                str(error),
                url,
                "Correct TA_ENTRA_AUTHORITY or TA_ENTRA_TENANT_ID; check that this machine can connect to "
                "it.",
            ),
        )
        return
    if UUID.fullmatch(entra.tenant_id) and entra.tenant_id not in keys.issuer.split("/"):
        yield Diagnosis(
            f"the authority's issuer is {keys.issuer}, which is not tenant {entra.tenant_id}: every token "
            "will be refused",
            "Correct TA_ENTRA_TENANT_ID or TA_ENTRA_AUTHORITY.",
        )
    if skew := _skew(date):
        yield _skew_finding("the authority", skew)


async def _check_collector(config: ServiceConfig) -> AsyncIterator[Diagnosis]:
    if config.telemetry.endpoint is None:
        return
    from tealagents.outbound.addresses import shown
    from tealagents.telemetry.exporting import refused_export

    url = f"{config.telemetry.endpoint.rstrip('/')}/v1/traces"
    why = await asyncio.to_thread(refused_export, url, COLLECTOR_SECONDS)
    if why is not None:
        yield Diagnosis(
            f"the collector accepts no traces at {shown(url)}: {why}",
            _remedy_of_connection(
                why,
                url,
                "Start it, or set TA_OTEL_ENDPOINT to the address at which it accepts OTLP over HTTP, "
                "usually with port 4318. Set OTEL_EXPORTER_OTLP_HEADERS if it requires a key.",
                trust="OTEL_EXPORTER_OTLP_CERTIFICATE",
            ),
        )


# --- a running service ------------------------------------------------------------------------------


async def _check_service(url: str, config: ServiceConfig | None) -> AsyncIterator[Diagnosis]:
    from tealagents.cli.chat.finding import DEFAULT_URL, NoAgent, NotAUrl, find_agent

    try:
        prefix = await asyncio.to_thread(find_agent, url)
    except NotAUrl as error:
        yield Diagnosis(str(error), "To name a config file, use --config.")
        return
    except NoAgent as error:
        yield Diagnosis(str(error), _remedy_of_connection(str(error), url))
        return
    form = f"it is of the form {DEFAULT_URL}/Name/version"
    async with httpx.AsyncClient(mounts=DIRECT, timeout=ANSWER_SECONDS) as client:
        for probe in ("live", "ready"):
            try:
                answer = await client.get(f"{prefix}/health/{probe}")
            except httpx.HTTPError as error:
                yield Diagnosis(f"{prefix}/health/{probe} does not answer: {error}", "See the service's log.")
                return
            if answer.status_code == 404:
                its = f"the agent of this config is served at {config.prefix}" if config else form
                yield Diagnosis(f"there is no agent at {prefix}", f"Correct the address: {its}.")
                return
            if not answer.is_success:
                yield Diagnosis(
                    f"the service is not {probe}: {answer.status_code} {answer.text[:300]}",
                    "See the service's log, and run `tealagents doctor` with its config where it runs."
                    + _proxy_hint(prefix),
                )
        if skew := _skew(answer.headers.get("date", "")):
            yield _skew_finding("the service", skew)
    if config is not None and not prefix.endswith(config.prefix):
        yield Diagnosis(
            f"{prefix} is not the agent of this config, which is served at {config.prefix}",
            "Correct the address, or name the other config.",
        )


def _remedy_of_connection(
    said: str, url: str | None, otherwise: str = "", *, trust: str = "SSL_CERT_FILE"
) -> str:
    """What to do about the error `said` of a connection to `url`; `otherwise`, if it is not one of TLS.

    `trust`: the variable that names a file of certificates, which is used in place of the system's.
    """
    from tealagents.cli.chat.finding import NOT_TLS

    if any(each in said for each in NOT_TLS):
        return "It speaks no TLS there: write http:// in place of https://, or correct the port."
    if "certificate is not valid for" in said:
        return "Its certificate is for another name: correct the host in the address, or the certificate."
    if "certificate has expired" in said or "certificate is not yet valid" in said:
        return "Its certificate is not valid at this time: renew it, or correct the clock of this machine."
    if "CERTIFICATE_VERIFY_FAILED" in said:
        others = ", in a file with those of all others that are needed" if trust == "SSL_CERT_FILE" else ""
        return f"Its certificate is not trusted: set {trust} to the certificate of its CA{others}."
    return (otherwise + (_proxy_hint(url) if url is not None else "")).strip()


def _proxy_hint(url: str) -> str:
    """A hint that names the proxy for a URL, if there is one: the answer may be the proxy's."""
    from tealagents.outbound.addresses import host_of, proxy_for, shown

    try:
        proxy = proxy_for(url)
    except OSError as error:
        return f" {error}"
    if proxy is None:
        return ""
    names = (f"{urlsplit(url).scheme}_proxy", "all_proxy")
    variables = [name for wanted in names for name in (wanted, wanted.upper()) if os.environ.get(name)]
    variable = (*variables, names[0])[0]
    return (
        f" The call went through the proxy {shown(proxy)}, which {variable} names: if it is the proxy that "
        f"refuses, correct that variable, or name {host_of(url)} in NO_PROXY."
    )


def _skew(date: str) -> float | None:
    """Seconds between an HTTP date and this machine's clock; None if they are at most `MOST_SKEW`."""
    try:
        seconds = abs(parsedate_to_datetime(date).timestamp() - time.time())
    except ValueError:
        return None
    return seconds if seconds > MOST_SKEW else None


def _skew_finding(whose: str, seconds: float) -> Diagnosis:
    return Diagnosis(
        f"the clocks of this machine and of {whose} differ by {seconds:.0f} s",
        "Synchronize both with NTP: tokens, leases and expiries depend on it.",
    )
