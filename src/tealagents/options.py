"""The kinds of values that options take, each defined once for the config file, the environment and adapters.

In the file a number is a number: `"7"` in quotes or `true` is a mistake. What a variable brought, whether as
`TA_LIMITS__…` or as `${NAME}`, is text by nature and is read as what the key wants.

The text below each field of an `Options` is its documentation, there, in the docs and in editors.
Imports nothing of the project but how addresses are read; every package that has options may import it.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from tealagents.outbound.addresses import is_loopback, page_origin

#: characters that an encryption key must have
SHORTEST_ENCRYPTION_KEY = 8


class Options(BaseModel):
    """Base of what is configured. An unknown key is a mistake; errors quote no value, which may be secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    #: keys that users might look for here, and what to say of them
    refused: ClassVar[Mapping[str, str]] = {}


class FromEnvironment(str):
    """Text that a variable brought. Where the config wants a number or a switch, it is read as one."""

    __slots__ = ()


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | FromEnvironment):
        raise ValueError(f"must be a number, not {kind_of(value)}")
    return value


def _flag(value: Any) -> Any:
    if not isinstance(value, bool | FromEnvironment):
        raise ValueError(f"must be true or false, not {kind_of(value)}")
    return value


def _words(value: Any) -> Any:
    """A list, or its items in one text, separated by spaces."""
    return tuple(value.split()) if isinstance(value, str) else value


def kind_of(value: Any) -> str:
    """What the user wrote, in the user's words."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case str():
            return "text"
        case int() | float():
            return "a number"
        case dict():
            return "a mapping"
    return "a list"


def _url_segment(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,99}", text):
        fitting = re.sub(r"[^A-Za-z0-9._~-]+", "-", text).strip("-._~")[:100]
        example = f", for example {fitting}" if fitting else ""
        raise ValueError(
            f"is part of the service's URL: use up to 100 letters, digits, '-', '_', '.' and '~'{example}"
        )
    return text


def _name_or_class(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w-]*|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text):
        raise ValueError("must be a name, or module:Class")
    return text


def _protocol(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][\w.-]*", text):
        raise ValueError("must be the names of protocols, separated by spaces, such as: openai mcp")
    return text


def _http_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or re.search(r"\s", text):
        raise ValueError("must be an http:// or https:// URL")
    return text


def _authority(text: str) -> str:
    parts = urlsplit(_http_url(text))
    if parts.username or parts.query or parts.fragment:
        raise ValueError("must not have credentials, a query or a fragment")
    if parts.scheme == "http" and not is_loopback(text):
        raise ValueError("must be https://; plain http is for loopback addresses only")
    return text.rstrip("/")


#: a URL that can be quoted in a header: RFC 3986, without credentials, query and fragment
_PLAIN_URL = r"https?://([\w.-]+|\[[0-9a-f:.]+\])(:[0-9]*)?(/[\w.~!$&'()*+,;=:@%/-]*)?"


def _public_url(text: str) -> str:
    _http_url(text)
    if re.search("[?#]", text) or "@" in urlsplit(text).netloc:
        raise ValueError("must not have credentials, a query or a fragment")
    if not re.fullmatch(_PLAIN_URL, text, re.ASCII | re.IGNORECASE):
        raise ValueError("must be a URL in ASCII: a host name in Punycode, other characters percent-encoded")
    return text


def _origin(text: str) -> str:
    if text != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\s@]+", text):
        raise ValueError("must be an origin such as https://app.example.com, without a path, or *")
    return text if text == "*" else page_origin(text)


def _tenant(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}", text):
        raise ValueError("must be a tenant's id, one of its domains, or organizations")
    return text.lower()


def is_tenant_id(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text.lower()) is not None


def _tenant_id(text: str) -> str:
    if not is_tenant_id(text):
        raise ValueError("must be the ids of tenants; their domains are not in tokens")
    return text.lower()


def _permission(text: str) -> str:
    if not re.fullmatch(r"[!#-\[\]-~]+", text):
        raise ValueError("must consist of ASCII characters other than spaces, double quotes and backslashes")
    return text


#: RFC 9110, 5.1 and 5.5
_HEADER_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_HEADER_VALUE = r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?"


def _header_name(text: str) -> str:
    if not re.fullmatch(_HEADER_NAME, text):
        raise ValueError("must be the names of headers, separated by spaces")
    return text.lower()


def _headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not re.fullmatch(_HEADER_NAME, name):
            raise ValueError(f"{name!r} cannot be the name of a header")
        if name.lower() in ("content-length", "transfer-encoding"):
            raise ValueError(f"{name} cannot be set here: each request gets its own; remove it")
        if not re.fullmatch(_HEADER_VALUE, value):
            raise ValueError(
                f"the value of {name} cannot be sent in a header: it must be one line of Latin-1 characters, "
                "without spaces at either end"
            )
    return headers


def _header_key(key: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[\x20-\x7e]*", key.get_secret_value()):
        raise ValueError("cannot be sent in a header: it must be one line of ASCII characters")
    return key


def _encryption_key(key: SecretStr) -> SecretStr:
    if len(key.get_secret_value().strip()) < SHORTEST_ENCRYPTION_KEY:
        raise ValueError(
            f"must have at least {SHORTEST_ENCRYPTION_KEY} characters; "
            "make one with `openssl rand -base64 32`"
        )
    return key


def _existing_file(path: Path) -> Path:
    absolute = Path(os.path.abspath(path))
    if not os.path.isfile(absolute):
        raise ValueError(f"there is no such file: {absolute}")
    return absolute


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


_LONGEST_QUEUE = 2000


def _queue_length(number: int) -> int:
    if number > _LONGEST_QUEUE:
        raise ValueError(
            f"must be at most {_LONGEST_QUEUE}: the task's record holds them, and each message rewrites it"
        )
    return number


_TEN_YEARS = 315_360_000

Flag = Annotated[bool, BeforeValidator(_flag)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1), BeforeValidator(_number)]
CountOrNone = Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(_number)]
QueueLength = Annotated[
    CountOrNone, AfterValidator(_queue_length), Field(json_schema_extra={"maximum": _LONGEST_QUEUE})
]
Port = Annotated[int, Field(ge=1, le=65_535), BeforeValidator(_number)]
Seconds = Annotated[float, Field(gt=0, le=_TEN_YEARS), BeforeValidator(_number)]
DrainSeconds = Annotated[float, Field(ge=0, le=86_400), BeforeValidator(_number)]
LeaseSeconds = Annotated[float, Field(ge=0.1, le=3600), BeforeValidator(_number)]
Leeway = Annotated[float, Field(ge=0, le=300), BeforeValidator(_number)]
Temperature = Annotated[float, Field(ge=0, le=2), BeforeValidator(_number)]

UrlSegment = Annotated[str, AfterValidator(_url_segment)]
NameOrClass = Annotated[str, AfterValidator(_name_or_class)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
#: what clients and users are shown, with paths added to it
PublicUrl = Annotated[str, AfterValidator(_public_url)]
Authority = Annotated[str, AfterValidator(_authority)]
Tenant = Annotated[str, AfterValidator(_tenant)]
Text = Annotated[str, Field(min_length=1)]

_SPLIT = BeforeValidator(_words, json_schema_input_type=str | tuple[str, ...])
Words = Annotated[tuple[Text, ...], _SPLIT]
#: a scope (RFC 6749, 3.3), or the value of an app role, which Entra makes of the same characters
Permission = Annotated[Text, AfterValidator(_permission)]
Permissions = Annotated[tuple[Permission, ...], _SPLIT]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], _SPLIT]
Protocols = Annotated[tuple[Annotated[str, AfterValidator(_protocol)], ...], _SPLIT]
TenantIds = Annotated[tuple[Annotated[str, AfterValidator(_tenant_id)], ...], _SPLIT]
#: sent with requests; name → value
Headers = Annotated[dict[str, str], AfterValidator(_headers)]
#: sent in a header
HeaderKey = Annotated[SecretStr, AfterValidator(_header_key)]
#: encrypts a store
EncryptionKey = Annotated[SecretStr, AfterValidator(_encryption_key)]
HeaderNames = Annotated[tuple[Annotated[str, AfterValidator(_header_name)], ...], _SPLIT]
ExistingFile = Annotated[Path, AfterValidator(_existing_file)]

OnDisconnect = Literal["continue", "cancel"]
ThreadKind = Literal["local", "remote"]
#: how the service gets tokens for Azure OpenAI
AzureIdentity = Literal["client_secret", "certificate", "managed_identity", "workload_identity"]
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)]
