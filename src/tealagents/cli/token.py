"""`tealagents authority` and `tealagents token`: try real token validation without a tenant.

tealagents authority                       # in one terminal: prints settings, and serves
tealagents serve …                         # in another, with those settings
curl -H "Authorization: Bearer $(tealagents token --user alice)" …
"""

import signal
import threading
from typing import Annotated, Literal

import httpx
import typer

from tealagents.cli.loading import fail, unusable
from tealagents.cli.output import OutputLost
from tealagents.options import is_tenant_id
from tealagents.testing.authority import APP_ID_URI, SCOPE, SERVICE_ID, TENANT, LocalAuthority

__all__ = ["authority_command", "token_command"]

#: where the local authority listens by default
PORT = 8444
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def authority_command(
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port on 127.0.0.1; 0 for any free one.")
    ] = PORT,
    tenant: Annotated[str, typer.Option(metavar="ID", help="The id of its tenant.")] = TENANT,
    audience: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AUDIENCE",
            help="An audience of the tokens: a client id or an App ID URI. May be repeated.",
        ),
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help="A scope of the tokens. May be repeated.")
    ] = None,
) -> None:
    """Serve a local authority that issues a token for any user. For development, on this machine only."""
    # SIGTERM raises KeyboardInterrupt, like Ctrl-C, so that the authority is stopped in order
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tenant = _tenant_id(tenant)
    audiences = audience or [SERVICE_ID, APP_ID_URI]
    try:
        with LocalAuthority(
            tenant=tenant, audiences=audiences, scopes=scope or [SCOPE], port=port
        ) as authority:
            for name, value in authority.environment().items():
                typer.echo(f'export {name}="{value}"')
            typer.echo("Serving. Set these where `tealagents serve` and `tealagents token` run.", err=True)
            threading.Event().wait()
    except (OutputLost, BrokenPipeError):  # of what is printed, not of the port
        raise
    except OSError as error:
        raise fail(unusable("127.0.0.1", port, error)) from None
    except KeyboardInterrupt:
        return


def token_command(
    user: Annotated[str, typer.Option(metavar="NAME", help="The user's name or object id.")] = "alice",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCOPE",
            help="A scope of the token; by default those of the authority. May be repeated.",
        ),
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="A role of the token. May be repeated.")
    ] = None,
    version: Annotated[Literal["1.0", "2.0"], typer.Option(help="The version of the token.")] = "2.0",
    authority: Annotated[
        str,
        typer.Option(metavar="URL", envvar="TA_ENTRA_AUTHORITY", help="Where `tealagents authority` serves."),
    ] = f"http://127.0.0.1:{PORT}",
    tenant: Annotated[
        str, typer.Option(metavar="ID", envvar="TA_ENTRA_TENANT_ID", help="The id of the user's tenant.")
    ] = TENANT,
) -> None:
    """Print a user's access token from a running local authority."""
    tenant = _tenant_id(tenant)
    try:
        host = httpx.URL(authority).host
    except httpx.InvalidURL:
        host = ""
    if host not in _LOOPBACK:
        raise fail(
            f"{authority} is not a local authority, such as http://127.0.0.1:{PORT}; tokens of a real one "
            "come from signing in"
        )
    form = {
        "grant_type": "password",
        "username": user,
        "scope": " ".join(scope or ()),
        "roles": " ".join(role or ()),
        "ver": version,
    }
    typer.echo(_request_token(f"{authority.rstrip('/')}/{tenant}/oauth2/v2.0/token", form))


def _tenant_id(given: str) -> str:
    """The tenant as tokens have it."""
    if not is_tenant_id(tenant := given.lower()):
        raise fail(f"--tenant must be the id of a tenant, a UUID such as {TENANT}: tokens contain only ids")
    return tenant


def _request_token(url: str, form: dict[str, str]) -> str:
    """The access token from the token endpoint."""
    try:
        with httpx.Client(trust_env=False, timeout=10) as client:
            answer = client.post(url, data=form)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise fail(
            f"no local authority answers at {url}: {str(error).rstrip('.')}; start `tealagents authority`"
        ) from None
    try:
        return str(answer.raise_for_status().json()["access_token"])
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError):
        raise fail(
            f"the server at {url} is not `tealagents authority`: it returned HTTP {answer.status_code} "
            "without a token"
        ) from None
