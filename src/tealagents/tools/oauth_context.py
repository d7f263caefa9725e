"""The context of a call to a tool for which the catalogue demands the user's own authorization."""

from collections.abc import Mapping, Sequence
from typing import Any

from tealagents.domain.models import Json
from tealagents.domain.ports import ToolContext
from tealagents.tools.oauth import Consents
from tealagents.tools.oauth_servers import ProtectedServer


class AuthorizedContext:
    """A call's context with the owner's token for the catalogue's `auth`."""

    def __init__(
        self, context: ToolContext, consents: Consents, server: ProtectedServer, granted_token: str
    ) -> None:
        self._context = context
        self._consents = consents
        self._server = server
        self.granted_token = granted_token
        self.session_id = context.session_id
        self.task_id = context.task_id
        self.request_id = context.request_id
        self.user_id = context.user_id
        self.tenant_id = context.tenant_id

    @property
    def headers(self) -> Mapping[str, str]:
        return self._context.headers

    def add_extra_data(self, key: str, value: Any) -> None:
        self._context.add_extra_data(key, value)

    def require_owner(self) -> None:
        self._context.require_owner()

    async def user_token(self, scopes: Sequence[str] = ()) -> str:
        """The granted token if `scopes` are among those of the catalogue's `auth`; else the context's own."""
        if scopes and set(self._server.scopes).issuperset(scopes):
            return self.granted_token
        return await self._context.user_token(scopes)

    async def renew(self) -> None:
        """Replaces the granted token, which a service refused. Raises `NeedsAuthorization` if it cannot."""
        await self._consents.tokens.forget(self, self._server, self.granted_token)
        token = await self._consents.tokens.get(self, self._server)
        if token is None or token == self.granted_token:
            raise await self._consents.need(self, self._server)
        self.granted_token = token


async def authorized(
    context: ToolContext, consents: Consents, auth: Json, client_secret: str | None
) -> AuthorizedContext:
    """The context with the owner's token for the catalogue's `auth`. `NeedsAuthorization` if there is
    none."""
    server = ProtectedServer(
        name=str(auth["auth_server"]),
        issuer=str(auth["auth_server"]),
        scopes=tuple(auth.get("scopes", ())),
        client_id=auth.get("oauth_client_id"),
        client_secret=client_secret,
        # only MCP demands that metadata declare PKCE: the config names this server, and Entra does not
        # declare it
        assume_pkce=True,
    )
    token = await consents.tokens.get(context, server)
    if token is None:
        raise await consents.need(context, server)
    return AuthorizedContext(context, consents, server, token)
