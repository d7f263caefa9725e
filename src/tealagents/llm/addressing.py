"""The URL of a service and the authorization of calls: for OpenAI, and for both APIs of Azure."""

from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import openai

from tealagents.llm.options import OpenAIOptions


def sdk_client(
    options: OpenAIOptions, wire: httpx2.AsyncClient, deployment: str | None
) -> openai.AsyncOpenAI:
    """The SDK's client for the service, without its retries, its timeouts and its settings from the
    environment: this package has its own."""
    key = options.api_key.get_secret_value() if options.api_key is not None else None
    ours: dict[str, Any] = {"http_client": wire, "max_retries": 0, "timeout": None}
    client: openai.AsyncOpenAI
    if options.azure_api_version is not None:
        client = openai.AsyncAzureOpenAI(
            base_url=dated_azure_url(options.base_url, deployment),
            api_version=options.azure_api_version,
            api_key=None if options.token_provider is not None else key,
            azure_ad_token_provider=options.token_provider,
            **ours,
        )
    else:
        client = openai.AsyncOpenAI(
            base_url=azure_url(options.base_url) if options.is_azure else options.base_url,
            # never None: the SDK would take OPENAI_API_KEY from the environment, for any service
            api_key=options.token_provider or key or "none",
            **ours,
        )
    # in place of OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS: it would send them to any
    # service, and an `Authorization` among them would replace the configured one
    client.organization, client.project = options.organization, options.project
    client._custom_headers = options.headers
    return client


def own_authorization(options: OpenAIOptions) -> dict[str, str | openai.Omit]:
    """The authorization headers to send instead of the SDK's own; empty if those are right."""
    if options.azure_api_version is not None or options.token_provider is not None:
        return {}
    if options.api_key is None:
        return {"Authorization": openai.Omit()}
    if options.is_azure:
        return {"Authorization": openai.Omit(), "api-key": options.api_key.get_secret_value()}
    return {}


def azure_url(endpoint: str) -> str:
    """The root of Azure's undated API (https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle)."""
    return endpoint if urlsplit(endpoint).path.strip("/") else f"{endpoint}/openai/v1"


def dated_azure_url(endpoint: str, deployment: str | None) -> str:
    if urlsplit(endpoint).path.strip("/"):
        return endpoint
    return (
        f"{endpoint}/openai/deployments/{quote(deployment, safe='')}" if deployment else f"{endpoint}/openai"
    )
