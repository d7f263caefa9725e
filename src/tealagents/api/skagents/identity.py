"""Identifies the caller: by a bearer token, or as the gateway in front of the service, which checks users."""

import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from tealagents.api.bearer import Bearer
from tealagents.domain.errors import NotFound, Unauthenticated
from tealagents.domain.models import Caller, User

#: the header in which a gateway sends its secret
GATEWAY_KEY = "taAgwKey"
#: the user of all calls that come through a gateway
_BEHIND_GATEWAY = User("gateway", "gateway")


class Gateway:
    """Accepts calls of a gateway, which proves its identity by a secret if one is set."""

    def __init__(self, secret: str | None) -> None:
        self._secret = secret

    @property
    def believes_all(self) -> bool:
        """True if no secret is set: any caller is taken for the gateway."""
        return self._secret is None

    async def caller(self, connection: HTTPConnection) -> Caller:
        """The gateway's user, who is the same for all calls. Raises `Unauthenticated`."""
        if self._secret is not None:
            # whitespace around a value is not part of it (RFC 9110, 5.5), and not every server strips it
            given = [each.strip(" \t") for each in connection.headers.getlist(GATEWAY_KEY)]
            if len(given) != 1 or not hmac.compare_digest(given[0].encode(), self._secret.encode()):
                raise Unauthenticated(
                    f"Call this agent through its gateway: it sends the secret in {GATEWAY_KEY}.",
                    credentials_given=bool(given),
                )
        return Caller(_BEHIND_GATEWAY)


Identity = Bearer | Gateway


def check_origin(connection: HTTPConnection, identity: Identity, allowed: frozenset[str]) -> None:
    """Raises `NotFound` for web pages of other origins: a browser in a trusted network could call for them.

    A page can also make its own host name resolve to this service (DNS rebinding). So without a secret, an
    origin equal to the Host header proves nothing, and only addresses and `localhost` are accepted.
    """
    origin = connection.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    host = origin.partition("://")[2]
    own = bool(host) and host == connection.headers.get("host")
    if not own or (isinstance(identity, Gateway) and identity.believes_all and not _is_address(host)):
        raise NotFound("Pages of this origin may not call this agent; see spec.cors_origins.")


def _is_address(host: str) -> bool:
    """Whether this is an IP address, or `localhost`, which DNS does not resolve; with or without a port."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False
