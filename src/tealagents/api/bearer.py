"""Who is asking: the bearer token of a request (RFC 6750), and where to get one (RFC 9728)."""

import logging
import re
from collections.abc import Sequence
from inspect import isawaitable
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from tealagents.api.http import DocumentRoute, WrongMethod, json_response, retry_after
from tealagents.domain.errors import (
    InsufficientScope,
    InternalError,
    InvalidRequest,
    NotFound,
    TealError,
    Unauthenticated,
    ends_task,
)
from tealagents.domain.models import Caller, Json, User
from tealagents.domain.ports import Authenticator
from tealagents.domain.texts import check_user_id
from tealagents.outbound.addresses import host_of

log = logging.getLogger(__name__)

_HEADER = re.compile(rb"bearer +(\S+) *", re.IGNORECASE)
#: a Host header that can stand in a URL, and in a quoted string, as it is
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?", re.ASCII)
#: scopes as a challenge can name them (RFC 6750, 3)
_SCOPES = re.compile(r"[ !#-\[\]-~]+")
#: bytes of the longest token that is looked at
LONGEST = 16 * 1024

_NEEDED = "Send `Authorization: Bearer …` with an access token for this service."


class Bearer:
    """Reads the caller from a request."""

    def __init__(self, authenticator: Authenticator, forward_headers: Sequence[str] = ()) -> None:
        self._authenticator = authenticator
        self._forward = frozenset(name.lower() for name in forward_headers)

    async def caller(self, request: HTTPConnection) -> Caller:
        """The caller, or `Unauthenticated`, `InsufficientScope`, `AuthUnavailable`."""
        caller = await self._identified(self.token(request))
        if self._forward:
            kept = {k: v for k, v in request.headers.items() if k in self._forward}
            return Caller(caller.user, caller.approver, caller.auditor, caller.token, kept)
        return caller

    async def _identified(self, token: str) -> Caller:
        """The caller that the provider returns. `InternalError` if that is no valid caller: a provider may be
        third-party code, and records stored under an id that is not text could not be read again. Also if it
        raises; only the log has its exception, whose text may quote the token."""
        try:
            answer: object = self._authenticator.authenticate(token)
            if not isawaitable(answer):
                raise self._names_no_one("its authenticate is not async")
            caller = await answer
        except BaseException as error:
            if isinstance(error, TealError) or ends_task(error):
                raise
            log.error("the auth provider %s failed", type(self._authenticator).__name__, exc_info=error)
            raise self._names_no_one(f"its authenticate raised {type(error).__name__}") from error
        if not (isinstance(caller, Caller) and isinstance(caller.user, User)):
            raise self._names_no_one("its authenticate did not return a Caller with a User")
        try:
            check_user_id(caller.user.tid, "tid", empty=True)  # where there are no tenants
            check_user_id(caller.user.oid, "oid")
        except InvalidRequest as wrong:
            raise self._names_no_one(f"the user's {wrong.field} {wrong.reason}") from None
        return caller

    def _names_no_one(self, why: str) -> InternalError:
        provider = type(self._authenticator).__name__
        return InternalError(f"The auth provider {provider} is faulty: {why}. Contact the operator.")

    @staticmethod
    def token(request: HTTPConnection) -> str:
        """The token as it was sent, once and in the header."""
        found = [value for name, value in request.scope["headers"] if name == b"authorization"]
        if not found:
            raise Unauthenticated(_NEEDED, credentials_given=False)
        if len(found) > 1:
            raise Unauthenticated("There is more than one Authorization header. " + _NEEDED)
        match = _HEADER.fullmatch(found[0])
        if match is None:
            raise Unauthenticated("The Authorization header is not of the form `Bearer …`. " + _NEEDED)
        if len(match[1]) > LONGEST:
            raise Unauthenticated("The token is too long. " + _NEEDED)
        try:
            return match[1].decode("utf-8")
        except UnicodeDecodeError:
            raise Unauthenticated("The token is not text. " + _NEEDED) from None


def _www_authenticate(error: TealError, challenge: str) -> str:
    """The value of `WWW-Authenticate` for an error; `challenge` is its beginning.

    RFC 6750, section 3: no error code if no credentials were sent, or if they are not the cause. Schemes
    other than Bearer have no error codes. Scopes that a header cannot name, which a third party's provider
    may require, are left out: part of them would be other scopes.
    """
    if not challenge.startswith("Bearer"):
        return challenge
    parts = [challenge]
    separator = ", " if "=" in challenge else " "
    if isinstance(error, InsufficientScope):
        scope = f', scope="{error.scope}"' if _SCOPES.fullmatch(error.scope) else ""
        parts.append('error="insufficient_scope"' + scope)
    elif isinstance(error, Unauthenticated) and error.credentials_given:
        parts.append('error="invalid_token", error_description="The access token is not valid here"')
    return separator.join(parts)


def refusal_headers(error: TealError, challenge: str) -> dict[str, str]:
    """What a refusal says beside its body: when to come back, with which token, by which methods."""
    seconds = retry_after(error)
    headers = {} if seconds is None else {"retry-after": seconds}
    if isinstance(error, Unauthenticated | InsufficientScope):
        headers["www-authenticate"] = _www_authenticate(error, challenge)
    if isinstance(error, WrongMethod):
        headers["allow"] = error.allow
    return headers


def _is_host(header: str) -> bool:
    """Whether a Host can be believed: what looks like one may still be none, as `[::::]`."""
    return _HOST.fullmatch(header) is not None and host_of(f"//{header}") != ""


WELL_KNOWN = "/.well-known/oauth-protected-resource"


class ProtectedResource:
    """This service as clients see it that look for tokens.

    They see it at `public_url` where that is set, else at the address they called. The scheme is what the
    server makes of `X-Forwarded-Proto` from a proxy it trusts.
    """

    def __init__(self, authenticator: Authenticator, prefix: str, public_url: str | None) -> None:
        self._authenticator = authenticator
        self._prefix = prefix
        self._public_url = public_url

    def challenge(self, request: Request) -> str:
        """The beginning of `WWW-Authenticate`: where the authority's name is, if there is one."""
        resource = self.url(request)
        try:
            if self._authenticator.resource_metadata(resource) is None:
                return "Bearer"
        except (Exception, SystemExit):  # a refusal is answered, whatever a third party's provider does
            log.exception(
                "resource_metadata of the auth provider %s failed", type(self._authenticator).__name__
            )
            return "Bearer"
        parts = urlsplit(resource)
        return f'Bearer resource_metadata="{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path}"'

    def document(self, request: Request, path: str) -> Json:
        """The metadata at the well-known URL, behind which `path` names the resource; `NotFound`."""
        resource = self.url(request)
        if path in ("", self._prefix, urlsplit(resource).path):
            metadata = self._authenticator.resource_metadata(resource)
            if metadata is not None:
                return metadata
        raise NotFound("There is no such protected resource here.")

    def route(self) -> DocumentRoute:
        """Where the metadata of this resource is, for a protocol below the agent's own path."""

        async def document(request: Request) -> Response:
            return json_response(self.document(request, self._prefix))

        below = urlsplit(self._public_url or "").path
        return DocumentRoute(WELL_KNOWN + below + self._prefix, document)

    def url(self, request: Request) -> str:
        """Where this client sees the resource."""
        return (self._public_url or self._base(request)) + self._prefix

    @staticmethod
    def _base(request: Request) -> str:
        scope = request.scope
        host = request.headers.get("host", "")
        if not _is_host(host):
            name, port = scope.get("server") or ("localhost", None)
            host = f"{name}:{port}" if port else name
        return f"{scope['scheme']}://{host}{scope.get('root_path', '')}"
