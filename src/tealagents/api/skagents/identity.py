"""Who calls: by the bearer token as everywhere, or as a gateway in front of the service has checked."""

import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

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

    @property
    def believes_all(self) -> bool:
        """Nothing shows that it is the gateway that calls."""
        return self._secret is None

    async def caller(self, connection: HTTPConnection) -> Caller:
        """The one caller there is, or `Unauthenticated`."""
        if self._secret is not None:
            # a server may leave on a value the blanks that are no part of it (RFC 9110, 5.5)
            given = [each.strip(" \t") for each in connection.headers.getlist(GATEWAY_KEY)]
            if len(given) != 1 or not hmac.compare_digest(given[0].encode(), self._secret.encode()):
                raise Unauthenticated(
                    f"Call this agent through its gateway: it sends the secret in {GATEWAY_KEY}.",
                    credentials_given=bool(given),
                )
        return Caller(_BEHIND_GATEWAY)


Identity = Bearer | Gateway


def check_origin(connection: HTTPConnection, identity: Identity, allowed: frozenset[str]) -> None:
    """`NotFound` for web pages of other origins: a gateway's word must not be lent to them by a browser.

    A page can make its own name lead here (DNS rebinding). Where everyone is believed, no name is our own.
    """
    origin = connection.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    host = origin.partition("://")[2]
    own = bool(host) and host == connection.headers.get("host")
    if not own or (isinstance(identity, Gateway) and identity.believes_all and not _is_address(host)):
        raise NotFound("Pages of this origin may not call; see spec.cors_origins.")


def _is_address(host: str) -> bool:
    """An address, or the one name that no DNS server is asked for; with or without a port."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False
