"""The servers that an agent calls, and a running service, from outside."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from urllib.parse import urlsplit

import httpx

from tealagents.cli.doctor.diagnosis import Diagnosis, date_skew
from tealagents.cli.findings import placed_tools
from tealagents.client.wire import DIRECT
from tealagents.config import ServiceConfig
from tealagents.config.problems import KeyPath
from tealagents.domain.clock import SystemClock
from tealagents.domain.errors import ToolFailed, described
from tealagents.mistakes import key_text

#: seconds that a server gets to answer
ANSWER_SECONDS = 10.0
#: seconds that the collector of telemetry gets
COLLECTOR_SECONDS = 5.0
#: texts in the errors of a model service that did answer: a cut answer, and an error in place of one
_FAILED_MIDWAY = ("answer was cut", "failed while answering")


async def check_model(config: ServiceConfig, place: KeyPath) -> AsyncIterator[Diagnosis]:
    """Asks the model of the config's agent for one word. `place` is the agent's key in the file."""
    from tealagents.domain.models import Item, Message
    from tealagents.domain.ports import ModelCall
    from tealagents.parts import START_ERRORS, credential_of, model_of

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


async def check_tools(config: ServiceConfig, place: KeyPath) -> AsyncIterator[Diagnosis]:
    """Opens the tools of the config's agent, with their servers. `place` is the agent's key in the file."""
    from tealagents.parts import START_ERRORS
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


async def check_providers(config: ServiceConfig) -> AsyncIterator[Diagnosis]:
    from tealagents.parts import START_ERRORS, providers_of

    try:
        async with providers_of(config):
            return
    except START_ERRORS as error:
        why = str(error)
    except Exception as error:  # noqa: BLE001 — a provider may be third-party code
        why = described(error)
    remedy = "Correct spec.thread.context_providers, or what it depends on."
    yield Diagnosis(f"the context providers cannot be opened: {why}", remedy)


async def check_authority(config: ServiceConfig) -> AsyncIterator[Diagnosis]:
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
    if skew := date_skew("the authority", date):
        yield skew


async def check_collector(config: ServiceConfig) -> AsyncIterator[Diagnosis]:
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


async def check_service(url: str, config: ServiceConfig | None) -> AsyncIterator[Diagnosis]:
    from tealagents.cli.chat.finding import DEFAULT_URL, NoAgent, NotAUrl, find_agent
    from tealagents.outbound.addresses import shown

    try:
        prefix = await asyncio.to_thread(find_agent, url)
    except NotAUrl as error:
        yield Diagnosis(str(error), "To name a config file, use --config.")
        return
    except NoAgent as error:
        yield Diagnosis(str(error), _remedy_of_connection(str(error), url))
        return
    place = shown(prefix)
    form = f"it is of the form {DEFAULT_URL}/Name/version"
    async with httpx.AsyncClient(mounts=DIRECT, timeout=ANSWER_SECONDS) as client:
        for probe in ("live", "ready"):
            try:
                answer = await client.get(f"{prefix}/health/{probe}")
            except httpx.HTTPError as error:
                yield Diagnosis(f"{place}/health/{probe} does not answer: {error}", "See the service's log.")
                return
            if answer.status_code == 404:
                its = f"the agent of this config is served at {config.prefix}" if config else form
                yield Diagnosis(f"there is no agent at {place}", f"Correct the address: {its}.")
                return
            if not answer.is_success:
                what, remedy = _said_of_health(answer)
                yield Diagnosis(f"the service is not {probe}: {what}", remedy + _proxy_hint(prefix))
        if skew := date_skew("the service", answer.headers.get("date", "")):
            yield skew
    if config is not None and not prefix.endswith(config.prefix):
        yield Diagnosis(
            f"{place} is not the agent of this config, which is served at {config.prefix}",
            "Correct the address, or name the other config.",
        )


def _said_of_health(answer: httpx.Response) -> tuple[str, str]:
    """What an answer without success says, and what to do. Services answer with JSON, proxies with pages."""
    here = "run `tealagents doctor` with its config where it runs."
    if "json" in answer.headers.get("content-type", ""):
        return f"{answer.status_code} {answer.text[:300]}", f"See the service's log, and {here}"
    what = f"{answer.status_code} {answer.reason_phrase}, which a proxy in front of it answers"
    return what, f"See whether the service runs, and the log of the proxy; {here}"


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
    from tealagents.outbound.addresses import host_of, is_http_url, proxy_for, shown

    if not is_http_url(url):  # it has no host
        return ""
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
