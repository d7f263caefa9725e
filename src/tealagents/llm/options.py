"""The options of the model clients. Third-party clients subclass `ModelOptions`."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tealagents.options import HeaderKey, Headers
from tealagents.outbound.addresses import is_loopback

#: returns a bearer token that is valid now; if it raises anything, the call fails with `ModelFailed`
TokenProvider = Callable[[], Awaitable[str]]

OPENAI_URL = "https://api.openai.com/v1"

#: hosts of Azure OpenAI and Azure AI Foundry, in the public and the national clouds
_AZURE_HOSTS = (
    ".openai.azure.com",
    ".openai.azure.us",
    ".openai.azure.cn",
    ".cognitiveservices.azure.com",
    ".services.ai.azure.com",
)

Seconds = Annotated[float, Field(gt=0)]


class ModelOptions(BaseModel):
    """The options that every model client gets from the config file and the environment.

    A client of your own declares `class Options(ModelOptions)` with further options. An option that is not
    declared is an error that names it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: the model's name; for Azure, the deployment's name
    model: str = Field(min_length=1)
    #: sent as a bearer token, or as `api-key` to Azure; None if the service needs none
    api_key: HeaderKey | None = None
    #: the root of the API, including `/v1`; for Azure, the endpoint of the resource is enough
    base_url: str = OPENAI_URL
    #: None: not sent, so that the service's default applies (0 is sent)
    temperature: float | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, gt=0)
    reasoning_effort: str | None = None
    #: for the whole call, including its retries
    model_timeout_seconds: Seconds = 300
    #: until the first piece of the answer, including connecting, headers and retries; for an answer that is
    #: not streamed, until all of it has arrived
    first_piece_timeout_seconds: Seconds = 60
    #: between two pieces of the answer
    piece_timeout_seconds: Seconds = 60

    @field_validator("base_url", mode="before")
    @classmethod
    def _default_url(cls, url: object) -> object:
        return OPENAI_URL if url is None or url == "" else url

    @field_validator("base_url")
    @classmethod
    def _plain_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("must be an http:// or https:// URL, such as " + OPENAI_URL)
        if parts.username is not None or parts.password is not None:
            raise ValueError("must not contain credentials; set the key in TA_API_KEY")
        if parts.query or parts.fragment:
            raise ValueError("must have no query and no fragment; an Azure api-version has its own option")
        return url.rstrip("/")


class OpenAIOptions(ModelOptions):
    """The options of both clients that use the `openai` SDK."""

    organization: str | None = None
    project: str | None = None
    #: sent with every call, in addition to the SDK's headers
    headers: Headers = {}
    #: selects Azure's dated API (`/openai/deployments/…?api-version=…`); None: Azure's `/openai/v1/`
    azure_api_version: str | None = None
    #: the deployment, if its name differs from the model's; sent in place of the model's name
    azure_deployment: str | None = None
    #: called for a bearer token before each request, in place of a key; see `credentials`
    token_provider: TokenProvider | None = Field(default=None, repr=False)
    #: retries of one call, only before its first piece
    max_retries: int = Field(default=2, ge=0, le=10)
    #: the wait before the first retry if the service names none; doubled for each further retry
    retry_delay_seconds: float = Field(default=0.25, ge=0)
    #: the budget of retries that all calls of the process share grows by this number with each call…
    retry_ratio: float = Field(default=0.1, ge=0, le=1)
    #: …up to this number
    retry_burst: int = Field(default=10, ge=0)

    @model_validator(mode="after")
    def _at_azure(self) -> Self:
        if is_openai(self.base_url) and (self.azure_api_version or self.azure_deployment):
            raise ValueError(
                "TA_AZURE_API_VERSION and TA_AZURE_DEPLOYMENT need TA_BASE_URL, the address of the Azure "
                "resource"
            )
        return self

    @model_validator(mode="after")
    def _authorized(self) -> Self:
        if self.api_key is None and self.token_provider is None:
            if self.is_azure:
                raise ValueError("Azure needs a key (TA_API_KEY) or an identity (TA_AZURE_CREDENTIAL)")
            if self.base_url == OPENAI_URL:
                raise ValueError("OpenAI needs a key: set TA_API_KEY, or TA_BASE_URL to another service")
        if self.token_provider is not None and not is_private_connection(self.base_url):
            raise ValueError("tokens are only sent over https://, or to loopback")
        return self

    @property
    def is_azure(self) -> bool:
        host = urlsplit(self.base_url).hostname or ""
        return self.azure_api_version is not None or host.endswith(_AZURE_HOSTS)

    @property
    def provider(self) -> Literal["openai", "azure.ai.openai"]:
        """The value of `gen_ai.provider.name` in OpenTelemetry's semantic conventions."""
        return "azure.ai.openai" if self.is_azure else "openai"

    @property
    def called_model(self) -> str:
        """The model's name in the body and in Azure's dated paths: at Azure the deployment's."""
        return self.azure_deployment or self.model

    def secrets(self) -> tuple[str, ...]:
        """The secrets, which errors must not contain even if the service quotes them."""
        key = self.api_key.get_secret_value() if self.api_key is not None else ""
        return tuple(secret for secret in (key, *self.headers.values()) if len(secret) >= 8)


def is_openai(url: str) -> bool:
    """Whether a URL is of OpenAI's own service, and not of a resource at Azure or elsewhere."""
    return urlsplit(url).hostname == urlsplit(OPENAI_URL).hostname


def is_private_connection(url: str) -> bool:
    """Whether a connection to this URL cannot be read on the network: it uses TLS, or is on loopback."""
    return urlsplit(url).scheme == "https" or is_loopback(url)
