"""The local authority and its two commands, as a person tries them."""

import base64
import hashlib
import os
import signal
import socket
import subprocess
import sys
from urllib.parse import parse_qs

import httpx
import jwt
import pytest
import typer
from auth_setup import ALICE, KEY, MachineClock
from typer.testing import CliRunner

from tealagents.auth import open_auth
from tealagents.cli.token import authority_command, token_command
from tealagents.llm.offline import OfflineModel
from tealagents.testing.authority import SERVICE_ID, TENANT, USER_CLIENT, LocalAuthority

app = typer.Typer()
app.command("authority")(authority_command)
app.command("token")(token_command)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TA_")]:
        monkeypatch.delenv(name)


async def test_a_printed_token_is_taken() -> None:
    """What `tealagents token` prints is a token that a service trusts, with its scope and roles."""
    with LocalAuthority(signing_key=KEY) as authority:
        asked = ["token", "--role", "Approver", "--authority", authority.url]
        printed = CliRunner().invoke(app, asked)
        assert printed.exit_code == 0
        options = authority.options(approver_role="Approver")
        async with open_auth("entra", options, MachineClock()) as service:
            caller = await service.authenticate(printed.stdout.strip())
    assert (caller.user, caller.approver) == (ALICE, True)


def test_a_tenant_may_be_written_in_upper_case() -> None:
    """Tokens have it in lower case, and a service trusts no other."""
    tenant = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
    with LocalAuthority(tenant=tenant, signing_key=KEY) as authority:
        asked = ["token", "--tenant", tenant.upper(), "--authority", authority.url]
        token = CliRunner().invoke(app, asked).stdout.strip()
    assert jwt.decode(token, options={"verify_signature": False})["tid"] == tenant


def test_no_authority_is_said_so() -> None:
    """Without a running authority the command fails and says what to start."""
    with LocalAuthority(signing_key=KEY) as authority:
        url = authority.url
    printed = CliRunner().invoke(app, ["token", "--authority", url])
    assert printed.exit_code == 2
    assert "start `tealagents authority`" in printed.stderr


def test_another_server_is_not_an_authority() -> None:
    """What answers there is said to be something else, in one line."""
    with OfflineModel() as model:
        printed = CliRunner().invoke(app, ["token", "--authority", model.base_url.removesuffix("/v1")])
    assert printed.exit_code == 2
    assert "is not `tealagents authority`" in printed.stderr


def test_a_tenant_that_no_token_may_name_is_refused() -> None:
    """Every token of it would be refused by the service. No authority is needed to say so."""
    for command in (["authority", "--port", "0"], ["token"]):
        for tenant in ("contoso.com", "a\nb"):
            printed = CliRunner().invoke(app, [*command, "--tenant", tenant])
            assert printed.exit_code == 2
            assert "--tenant must be the id of a tenant" in printed.stderr


def test_a_port_in_use_is_named() -> None:
    """As by every command that serves."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        printed = CliRunner().invoke(app, ["authority", "--port", str(port)])
    assert printed.exit_code == 2
    assert f"port {port} on 127.0.0.1 is in use by another process" in printed.stderr


def test_a_real_authority_is_not_asked() -> None:
    """Passwordless tokens are a local authority's; a real one is not even called."""
    printed = CliRunner().invoke(app, ["token", "--authority", "https://login.microsoftonline.com"])
    assert printed.exit_code == 2
    assert "is not a local authority" in printed.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:abc", "http://[::1"])
def test_what_is_no_url_is_no_authority(url: str) -> None:
    """Said in one line."""
    printed = CliRunner().invoke(app, ["token"], env={"TA_ENTRA_AUTHORITY": url})
    assert printed.exit_code == 2
    assert f"{url} is not a local authority" in printed.stderr


def test_the_authority_serves_until_it_is_stopped() -> None:
    """`tealagents authority` prints the settings, issues tokens, and ends with exit code 0."""
    code = "from test_local_authority import app; app()"
    tenant = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
    command = [sys.executable, "-c", code, "authority", "--port", "0", "--tenant", tenant.upper()]
    here = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=here
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        settings = dict(line.removeprefix("export ").strip().split("=", 1) for line in lines)
        url = settings["TA_ENTRA_AUTHORITY"].strip('"')
        printed = CliRunner().invoke(app, ["token"], env={"TA_ENTRA_AUTHORITY": url})
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert printed.exit_code == 0
    assert printed.stdout.count(".") == 2
    assert settings["TA_ENTRA_TENANT_ID"] == f'"{tenant}"'


@pytest.mark.parametrize("version", ["", "/v2.0"])
def test_the_metadata_are_those_of_openid_connect(version: str) -> None:
    """They have every field that its discovery requires: clients refuse them otherwise."""
    with LocalAuthority(signing_key=KEY) as authority:
        found = httpx.get(f"{authority.url}/{TENANT}{version}/.well-known/openid-configuration").json()
    places = {"authorization_endpoint", "token_endpoint", "jwks_uri"}
    assert all(found[place].startswith(f"{authority.url}/{TENANT}/") for place in places)
    assert found["response_types_supported"] == ["code"]
    assert found["subject_types_supported"] == ["pairwise"]
    assert found["id_token_signing_alg_values_supported"] == ["RS256"]
    assert "openid" in found["scopes_supported"]


@pytest.mark.parametrize(
    ("asked", "before", "mark"),
    [
        ({}, "https://app.example/back", "?"),
        ({"response_mode": "query"}, "https://app.example/back?from=here", "&"),
        ({"response_mode": "fragment"}, "https://app.example/back", "#"),
    ],
)
def test_a_code_is_where_the_client_asked_for_it(asked: dict[str, str], before: str, mark: str) -> None:
    """In the query, as Entra has it, unless the client wants it behind `#`; with the state as it was sent."""
    verifier = "v" * 43
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    form = {"client_id": USER_CLIENT, "redirect_uri": before, "code_challenge": challenge, "state": "a b"}
    with LocalAuthority(signing_key=KEY) as authority, httpx.Client(trust_env=False) as client:
        there = f"{authority.url}/{TENANT}/oauth2/v2.0"
        back = client.get(f"{there}/authorize", params={**form, **asked}).headers["location"]
        assert back.startswith(f"{before}{mark}code=")
        answer = parse_qs(back.removeprefix(f"{before}{mark}"))
        assert answer["state"] == ["a b"]
        redeemed = {**form, "grant_type": "authorization_code", "code": answer["code"][0]}
        issued = client.post(f"{there}/token", data={**redeemed, "code_verifier": verifier})
        assert issued.json()["token_type"] == "Bearer"
        del form["state"]
        assert "state" not in client.get(f"{there}/authorize", params=form).headers["location"]


def test_tokens_by_curl() -> None:
    """The token endpoint answers the forms that a person would post to Entra."""
    with LocalAuthority(signing_key=KEY) as authority, httpx.Client(trust_env=False) as client:
        endpoint = f"{authority.url}/{TENANT}/oauth2/v2.0/token"
        user = client.post(endpoint, data={"grant_type": "password", "username": "alice"})
        secret = {"client_id": SERVICE_ID, "client_secret": authority.client_secret}
        asked = {"grant_type": "client_credentials", "scope": "api://tealagents/.default", "roles": "Run"}
        app = client.post(endpoint, data=asked | secret)
        wrong = client.post(endpoint, data=asked | secret | {"client_secret": "no"})
        unknown = client.post(endpoint, data={"grant_type": "magic"} | secret)
        lost = client.get(f"{authority.url}/nothing/here")
    assert (user.status_code, app.status_code) == (200, 200)
    assert wrong.json()["error"] == "invalid_client"
    assert unknown.json()["error"] == "unsupported_grant_type"
    assert lost.status_code == 404


def test_an_unknown_mode_is_a_mistake() -> None:
    """A misspelled mode is not taken for good behaviour."""
    with pytest.raises(ValueError, match="unknown mode"):
        LocalAuthority(signing_key=KEY).behave("hang")  # type: ignore[arg-type]
