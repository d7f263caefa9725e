"""Calls DynamoDB and reports the outcome of each call: done, refused, never sent, or unknown.

The library under it, aiobotocore, would repeat calls whose replies were lost, writes too, and calls a failure
to connect and a connection that broke in the middle by the same name. Here a write is sent once.
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
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoRegionError
from botocore.exceptions import ConnectionError as ConnectingError
from botocore.parsers import ResponseParserError

from tealagents.domain.errors import PersistenceUnavailable, Unknown
from tealagents.stores.base import StoreConfigError, in_a_line

__all__ = ["ATTEMPTS", "BUSY", "DynamoService", "ServiceClock", "codes", "may_have_run", "pause", "reason"]

log = logging.getLogger(__name__)

#: how often something is tried that the service was too busy to do
ATTEMPTS: Final = 8
#: seconds that the first pause between two attempts lasts at most; each next one twice that
PAUSE: Final = 0.05

#: the service did nothing, and may do it if asked again
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

#: causes of a "connection error" before anything was sent
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
        except BotoCoreError as error:
            raise self._unavailable(reason(error)) from None

    async def close(self) -> None:
        await self._opened.aclose()

    # --- calls ------------------------------------------------------------------------------------

    async def ask(self, operation: str, request: Mapping[str, Any], *, none_for: str = "") -> Any:
        """A call that may be repeated: it is, while the service is busy or the reply was lost.

        None where it is refused with the code `none_for`.
        """
        problem: object = ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self.call(operation, request)
            except ClientError as error:
                if none_for in codes(error):
                    return None
                if BUSY.isdisjoint(codes(error)) and not may_have_run(error):
                    raise self._unavailable(reason(error)) from None
                problem = reason(error)
            except _Late as error:
                raise self._unavailable(error) from None
            except Unknown as error:
                problem = error
            await pause(attempt)
        raise self._unavailable(problem)

    async def call(self, operation: str, request: Mapping[str, Any]) -> Any:
        """One call, sent once. ClientError where the service refuses, Unknown where its reply was lost,
        PersistenceUnavailable where the request was never sent.
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
        except BotoCoreError as error:  # no credentials, …: before anything was sent
            raise self._unavailable(reason(error)) from None
        self.clock.observe(before, reply["ResponseMetadata"]["HTTPHeaders"].get("date"))
        return reply

    # --- the table --------------------------------------------------------------------------------

    async def make_table(self) -> None:
        """Makes the table where it is missing, and waits until it can be used."""
        made = waited = False
        deadline = time.monotonic() + 120
        while (table := await self.description()) is None or table["TableStatus"] != "ACTIVE":
            if time.monotonic() > deadline:
                raise self._unavailable("the table does not become active")
            if table is None:
                made = await self._create_table() or made
            waited = True
            await asyncio.sleep(0.2)
        keys = {key["KeyType"]: key["AttributeName"] for key in table["KeySchema"]}
        if keys != {"HASH": "p", "RANGE": "k"}:
            raise StoreConfigError(
                f"dynamodb://{self._table}: the table is not this service's: its keys are not p and k."
            )
        if made:
            expiry = {"Enabled": True, "AttributeName": "t"}
            request = {"TableName": self._table, "TimeToLiveSpecification": expiry}
            # refused so where it is enabled already
            await self.ask("update_time_to_live", request, none_for="ValidationException")
        elif not waited:
            await self._check_expiry()

    async def _check_expiry(self) -> None:
        """Warns if the table's expiry is off, as on one that was made by hand."""
        try:
            reply = await self.call("describe_time_to_live", {"TableName": self._table})
        except (ClientError, Unknown):
            return  # the call is optional: its permission may be missing
        if reply.get("TimeToLiveDescription", {}).get("TimeToLiveStatus", "").startswith("DISABL"):
            log.warning(
                "the table %s erases nothing that has expired: event logs and idempotency keys stay. "
                "Run `aws dynamodb update-time-to-live --table-name %s --time-to-live-specification "
                "Enabled=true,AttributeName=t`.",
                self._table,
                self._table,
            )

    async def description(self) -> Mapping[str, Any] | None:
        """What the service says of the table; None where there is none."""
        request = {"TableName": self._table}
        reply = await self.ask("describe_table", request, none_for="ResourceNotFoundException")
        description: Mapping[str, Any] | None = reply and reply["Table"]
        return description

    async def _create_table(self) -> bool:
        """Whether it may have been this process that made it."""
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
            raise self._unavailable(reason(error)) from None
        except Unknown:
            pass  # it is seen whether it is there, and if not it is made again
        return True


def _send_in_parts(request: Any, **_: object) -> None:
    """aiohttp warns of a large body given as bytes: writing it in one go would hold the event loop."""
    if isinstance(request.body, bytes) and len(request.body) > aiohttp.payload.TOO_LARGE_BYTES_BODY:
        request.body = io.BytesIO(request.body)


async def pause(attempt: int) -> None:
    """Before another attempt, for a random time, so that those in each other's way do not meet again."""
    await asyncio.sleep(random.uniform(0, PAUSE * 2 ** (attempt - 1)))


class _Late(Unknown):
    """No reply in time: asking again would take as long."""


@cache
def _loader() -> Any:
    """What the library knows of AWS, read and parsed once for all clients of this process."""
    return get_session().get_component("data_loader")


class ServiceClock:
    """The service's clock, by the `Date` of its replies and our monotonic one.

    The header has seconds. Each reply bounds how far the two clocks are apart, and the bounds of many
    replies narrow to what a round trip takes. Within them this machine's own clock is believed.
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
        """A reply, to a request made at `before`, says that its second was `date`."""
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
    """Why a call was refused: a reason for each action of a canceled transaction, else one."""
    code = str(error.response["Error"]["Code"])
    if code == "TransactionCanceledException":
        return [str(reason.get("Code")) for reason in error.response.get("CancellationReasons", [])]
    return [code]


def may_have_run(error: ClientError) -> bool:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"]) >= 500


def reason(error: BaseException) -> str:
    """What went wrong, in a line. Neither the library nor the service quotes a secret key."""
    if isinstance(error, ClientError):
        details = error.response["Error"]
        return f"{details.get('Code')}: {details.get('Message')}"
    return in_a_line(error)
