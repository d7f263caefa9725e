"""Who calls: by the bearer token as everywhere, or as a gateway in front of the service has checked."""

import hmac

from starlette.requests import HTTPConnection

from tealagents.api.bearer import Bearer
from tealagents.domain.errors import NotFound, Unauthenticated
from tealagents.domain.models import Caller, User

#: what gateways send to the agents behind them
GATEWAY_KEY = "taAgwKey"
#: whom calls belong to that a gateway has let through
_BEHIND_GATEWAY = User("gateway", "gateway")


class Gateway:
    """Takes the word of a gateway, which proves itself by a secret where one is set."""

    def __init__(self, secret: str | None) -> None:
        self._secret = secret

    async def caller(self, connection: HTTPConnection) -> Caller:
        """The one caller there is, or `Unauthenticated`."""
        if self._secret is not None:
            given = connection.headers.getlist(GATEWAY_KEY)
            if len(given) != 1 or not hmac.compare_digest(given[0].encode(), self._secret.encode()):
                raise Unauthenticated(
                    f"Call this agent through its gateway: it sends the secret in {GATEWAY_KEY}.",
                    credentials_given=bool(given),
                )
        return Caller(_BEHIND_GATEWAY)


Identity = Bearer | Gateway


def check_origin(connection: HTTPConnection, allowed: frozenset[str]) -> None:
    """`NotFound` for web pages of other origins: a gateway's word must not be lent to them by a browser."""
    origin = connection.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    host = origin.partition("://")[2]
    if not host or host != connection.headers.get("host"):
        raise NotFound("Pages of this origin may not call; see spec.cors_origins.")
