"""Calls DynamoDB and reports the outcome of each call: done, refused, never sent, or unknown.

By default, aiobotocore repeats calls whose replies were lost, even writes, and raises the same error for a
failure to connect and a connection that broke during a call. Here a write is sent once.
"""

import asyncio
import io
import logging
import math
import random
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, Final

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    LoginError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as ConnectingError
from botocore.parsers import ResponseParserError

from tealagents.domain.errors import PersistenceUnavailable, Unknown
from tealagents.stores.base import StoreConfigError, in_a_line

__all__ = [
    "ATTEMPTS",
    "BUSY",
    "DynamoService",
    "ServiceClock",
    "codes",
    "is_about_credentials",
    "may_have_run",
    "pause",
    "reason",
]

log = logging.getLogger(__name__)

#: how often a call is tried while the service is busy
ATTEMPTS: Final = 8
#: the longest first pause between two attempts, in seconds; it doubles with each attempt
PAUSE: Final = 0.05

#: states of a table that can be read and written: its capacity or indexes may be changed meanwhile
_USABLE: Final = ("ACTIVE", "UPDATING")

#: errors after which the service has done nothing, and a retry may succeed
BUSY: Final = frozenset(
    {
        "LimitExceededException",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingError",
        "ThrottlingException",
        "TransactionConflict",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)

#: errors of a service that does not accept the credentials
_NOT_ACCEPTED: Final = frozenset(
    {
        "ExpiredTokenException",
        "IncompleteSignatureException",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    }
)
#: errors of the library, which finds no credentials: the last three where the program or the file that should
#: give new ones is missing or may not be used, or gives expired ones
_NOT_FOUND: Final = (
    CredentialRetrievalError,
    LoginError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
    FileNotFoundError,
    PermissionError,
    RuntimeError,
)

#: causes of a connection error that mean that nothing was sent
_UNSENT: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientHttpProxyError,
    aiohttp.ClientSSLError,
    aiohttp.ServerTimeoutError,
    socket.gaierror,
)


class DynamoService:
    """A client of DynamoDB, for one table."""

    def __init__(
        self,
        table: str,
        unavailable: Callable[[object], PersistenceUnavailable],
        refusal: Callable[[Exception], PersistenceUnavailable],
        *,
        region: str | None,
        endpoint: str | None,
        size: int,
        connect_timeout: float,
        command_timeout: float,
    ) -> None:
        self.clock = ServiceClock()
        self._table = table
        self._unavailable = unavailable
        #: the error for a call that the service does not run, or that cannot be signed
        self._refusal = refusal
        self._deadline = command_timeout
        config = AioConfig(
            connect_timeout=connect_timeout,
            read_timeout=command_timeout + 5,  # the deadline is set around the call
            max_pool_connections=size,
            parameter_validation=False,
            retries={"total_max_attempts": 1, "mode": "standard"},
        )
        self._arguments = {"region_name": region, "endpoint_url": endpoint, "config": config}
        self._opened = AsyncExitStack()
        self._client: Any = None

    async def connect(self) -> None:
        try:
            session = get_session()
            session.register_component("data_loader", _loader())
            client = session.create_client("dynamodb", **self._arguments)
            self._client = await self._opened.enter_async_context(client)
            self._client.meta.events.register("before-send.dynamodb", _send_in_parts)
        except NoRegionError:
            raise StoreConfigError(f"dynamodb://{self._table}: say where it is, with ?region=…") from None
        except ValueError as error:  # of a region, or a host that no DNS has, such as `dynamodb_local`
            raise StoreConfigError(f"dynamodb://{self._table}: {str(error).rstrip('.')}.") from None
        except (BotoCoreError, OSError, RuntimeError) as error:
            raise self._refusal(error) from None

    async def close(self) -> None:
        await self._opened.aclose()

    # --- calls ------------------------------------------------------------------------------------

    async def ask(self, operation: str, request: Mapping[str, Any], *, none_for: str = "") -> Any:
        """A call that may be repeated; it is, while the service is busy or replies are lost.

        None if it is refused with the error code `none_for`.
        """
        problem: object = ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self.call(operation, request)
            except ClientError as error:
                if none_for in codes(error):
                    return None
                if BUSY.isdisjoint(codes(error)) and not may_have_run(error):
                    raise self._refusal(error) from None
                problem = reason(error)
            except _Late as error:
                raise self._unavailable(error) from None
            except Unknown as error:
                problem = error
            await pause(attempt)
        raise self._unavailable(problem)

    async def call(self, operation: str, request: Mapping[str, Any]) -> Any:
        """One call, sent once. `ClientError` if the service refuses, `Unknown` if the reply was lost,
        `PersistenceUnavailable` if the request was never sent.
        """
        before = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline):
                reply = await getattr(self._client, operation)(**request)
        except TimeoutError:
            raise _Late("no answer in time") from None
        except ConnectingError as error:
            if isinstance(error.kwargs.get("error"), _UNSENT):
                raise self._unavailable(reason(error)) from None
            raise Unknown(reason(error)) from None
        except (HTTPClientError, ResponseParserError) as error:
            raise Unknown(reason(error)) from None
        except (BotoCoreError, OSError, RuntimeError) as error:  # before anything was sent
            raise self._refusal(error) from None
        self.clock.observe(before, reply["ResponseMetadata"]["HTTPHeaders"].get("date"))
        return reply

    # --- the table --------------------------------------------------------------------------------

    async def make_table(self) -> None:
        """Creates the table if it is missing, and waits until it can be used."""
        made = waited = False
        deadline = time.monotonic() + 120
        while (table := await self.description()) is None or table["TableStatus"] not in _USABLE:
            if time.monotonic() > deadline:
                raise self._unavailable("the table does not become active")
            if table is None:
                made = await self._create_table() or made
            waited = True
            await asyncio.sleep(0.2)
        types = {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}
        keys = {each["KeyType"]: each["AttributeName"] for each in table["KeySchema"]}
        if keys != {"HASH": "p", "RANGE": "k"} or types["p"] != "S" or types["k"] != "S":
            raise StoreConfigError(
                f"dynamodb://{self._table}: the table is not this service's: its keys are not p and k, "
                "both strings."
            )
        if made:
            expiry = {"Enabled": True, "AttributeName": "t"}
            request = {"TableName": self._table, "TimeToLiveSpecification": expiry}
            # `ValidationException`: it is enabled already
            await self.ask("update_time_to_live", request, none_for="ValidationException")
        elif not waited:
            await self._check_expiry()

    async def _check_expiry(self) -> None:
        """Warns if the table's expiry is off, as on one made by hand, or goes by another attribute."""
        try:
            reply = await self.call("describe_time_to_live", {"TableName": self._table})
        except (ClientError, Unknown):
            return  # the call is optional: its permission may be missing
        expiry = reply.get("TimeToLiveDescription", {})
        off = expiry.get("TimeToLiveStatus", "").startswith("DISABL")
        attribute = expiry.get("AttributeName", "t")
        if not off and attribute == "t":
            return
        command = f"aws dynamodb update-time-to-live --table-name {self._table} --time-to-live-specification"
        remedy = f"`{command} Enabled=true,AttributeName=t`"
        if not off:  # a table has one attribute for it, and changes it at most once an hour
            remedy = f"`{command} Enabled=false,AttributeName={attribute}`, and an hour later {remedy}"
        log.warning(
            "the table %s erases nothing that has expired: event logs and idempotency keys stay. Run %s.",
            self._table,
            remedy,
        )

    async def description(self) -> Mapping[str, Any] | None:
        """The service's description of the table; None if there is no table."""
        request = {"TableName": self._table}
        reply = await self.ask("describe_table", request, none_for="ResourceNotFoundException")
        if reply is not None and "Table" not in reply:  # of a web server, or of a proxy
            raise self._unavailable("what is there does not answer as DynamoDB does")
        description: Mapping[str, Any] | None = reply and reply["Table"]
        return description

    async def _create_table(self) -> bool:
        """Creates the table; returns whether this process may have been the one that did."""
        attributes = [{"AttributeName": name, "AttributeType": "S"} for name in ("p", "k")]
        schema = [{"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": "k", "KeyType": "RANGE"}]
        request = {
            "TableName": self._table,
            "AttributeDefinitions": attributes,
            "KeySchema": schema,
            "BillingMode": "PAY_PER_REQUEST",
        }
        try:
            await self.call("create_table", request)
        except ClientError as error:
            if error.response["Error"]["Code"] == "ResourceInUseException":
                return False
            raise self._refusal(error) from None
        except Unknown:
            pass  # the caller looks whether the table exists, and tries again if not
        return True


def _send_in_parts(request: Any, **_: object) -> None:
    """Lets aiohttp write a large body in parts: in one piece, it would block the event loop."""
    if isinstance(request.body, bytes) and len(request.body) > aiohttp.payload.TOO_LARGE_BYTES_BODY:
        request.body = io.BytesIO(request.body)


async def pause(attempt: int) -> None:
    """Pauses before another attempt, for a random time, so that conflicting commits do not collide again."""
    await asyncio.sleep(random.uniform(0, PAUSE * 2 ** (attempt - 1)))


class _Late(Unknown):
    """No reply in time; a retry would probably take as long."""


@cache
def _loader() -> Any:
    """The library's data about AWS, loaded once for all clients of this process."""
    return get_session().get_component("data_loader")


class ServiceClock:
    """The service's clock, derived from the `Date` header of its replies and the monotonic clock.

    The header has whole seconds. Each reply bounds the difference of the two clocks, and over many replies
    the bounds narrow to the time of a round trip. Within the bounds, this machine's own clock is used.
    """

    def __init__(self) -> None:
        self._low, self._high = -math.inf, math.inf
        self._apart = time.time() - time.monotonic()
        self._seen = -math.inf

    def now(self) -> float:
        return time.monotonic() + self._apart

    def age(self) -> float:
        """Seconds since the service last reported its time."""
        return time.monotonic() - self._seen

    def observe(self, before: float, date: str | None) -> None:
        """Notes a reply whose `Date` header is `date`, to a request sent at `before` (monotonic)."""
        after = time.monotonic()
        try:
            second = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        low, high = second - after, second + 1 - before
        self._low, self._high = max(self._low, low), min(self._high, high)
        if self._low > self._high:  # one of the clocks was set, or they drifted
            self._low, self._high = low, high
        self._apart = min(max(self._apart, self._low), self._high)
        self._seen = after


def codes(error: ClientError) -> list[str]:
    """The error codes of a refused call: one per action of a canceled transaction, otherwise one."""
    code = str(error.response["Error"]["Code"])
    if code == "TransactionCanceledException":
        return [str(reason.get("Code")) for reason in error.response.get("CancellationReasons", [])]
    return [code]


def is_about_credentials(error: Exception) -> bool:
    """Whether the service does not accept the credentials, or there are none to sign the call with."""
    if isinstance(error, ClientError):
        return not _NOT_ACCEPTED.isdisjoint(codes(error))
    return isinstance(error, _NOT_FOUND)


def may_have_run(error: ClientError) -> bool:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"]) >= 500


def reason(error: BaseException) -> str:
    """What went wrong, in a line. Neither the library nor the service quotes a secret key."""
    if isinstance(error, ClientError):
        details = error.response["Error"]
        return f"{details.get('Code')}: {details.get('Message')}"
    return in_a_line(error)
