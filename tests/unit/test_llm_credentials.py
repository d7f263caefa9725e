"""Azure OpenAI without a key: tokens of the identity that the service runs as, in time and not too often."""

import asyncio
import datetime
import json
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from llm_setup import RawConnection, RawService, answer_whole, client, events

from tealagents.domain.errors import ModelFailed
from tealagents.llm import ModelConfigError
from tealagents.llm.credentials import (
    RENEW_BEFORE,
    RETRY_AFTER,
    AzureCredential,
    AzureCredentialOptions,
    Token,
    TokenRefused,
)
from tealagents.llm.offline import OfflineModel
from tealagents.testing.authority import LocalAuthority
from tealagents.testing.waits import eventually

SECRET = "canary~secret~of~the~client"
APP = {"TA_AZURE_TENANT_ID": "tenant", "TA_AZURE_CLIENT_ID": "app"}


def options(kind: str = "client_secret", **more: str) -> AzureCredentialOptions:
    environment = {"TA_AZURE_CREDENTIAL": kind, **APP, "TA_AZURE_CLIENT_SECRET": SECRET, **more}
    found = AzureCredentialOptions.from_environment(environment)
    assert found is not None
    return found


# --- settings -------------------------------------------------------------------------------------------


def test_without_a_choice_there_is_no_identity() -> None:
    """Other variables alone choose nothing."""
    assert AzureCredentialOptions.from_environment(APP) is None


def test_a_secret_is_not_quoted() -> None:
    """Where something else is missing, what was given is not shown."""
    given = {
        "TA_AZURE_CREDENTIAL": "client_secret",
        "TA_AZURE_CLIENT_SECRET": "hunter2",
        "AZURE_CLIENT_ID": "x",
    }
    with pytest.raises(ModelConfigError, match="TA_AZURE_TENANT_ID") as raised:
        AzureCredentialOptions.from_environment(given)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        ("client_secret", "TA_AZURE_CLIENT_SECRET"),
        ("certificate", "TA_AZURE_CLIENT_CERTIFICATE"),
        ("workload_identity", "TA_AZURE_FEDERATED_TOKEN_FILE"),
    ],
)
def test_what_is_missing_is_named(kind: str, missing: str) -> None:
    """Each kind needs its own settings."""
    with pytest.raises(ModelConfigError, match=missing):
        AzureCredentialOptions.from_environment({"TA_AZURE_CREDENTIAL": kind, **APP})


@pytest.mark.parametrize("authority", ["http://login.example.com", "ftp://127.0.0.1", "login.example.com"])
def test_a_secret_is_only_sent_over_tls(authority: str) -> None:
    """Plain http is for loopback."""
    with pytest.raises(ModelConfigError, match="https"):
        options(TA_AZURE_AUTHORITY=authority)
    assert options(TA_AZURE_AUTHORITY="http://127.0.0.1:1/").authority == "http://127.0.0.1:1"


def test_what_the_platform_sets_is_taken() -> None:
    """Kubernetes names the workload's identity itself; our own names win."""
    platform = {
        "TA_AZURE_CREDENTIAL": "workload_identity",
        "AZURE_TENANT_ID": "theirs",
        "AZURE_CLIENT_ID": "app",
        "AZURE_FEDERATED_TOKEN_FILE": "/token",
        "AZURE_AUTHORITY_HOST": "https://login.microsoftonline.us/",
    }
    found = AzureCredentialOptions.from_environment({**platform, "TA_AZURE_TENANT_ID": "ours"})
    assert found is not None
    assert (found.tenant_id, found.client_id) == ("ours", "app")
    assert found.authority == "https://login.microsoftonline.us"


def test_a_secret_is_not_shown() -> None:
    """Neither by repr nor as text."""
    assert SECRET not in repr(options())
    assert SECRET not in str(options())


# --- asking -----------------------------------------------------------------------------------------------


async def test_a_client_secret_gets_a_token() -> None:
    """The client credentials grant, for the scope of Azure OpenAI."""
    with LocalAuthority(client_secret=SECRET) as authority:
        async with AzureCredential(options(TA_AZURE_AUTHORITY=authority.url)) as credential:
            assert (await credential()).count(".") == 2
        (form,) = authority.forms
    assert form["path"] == "/tenant/oauth2/v2.0/token"
    assert form["grant_type"] == "client_credentials"
    assert form["scope"] == "https://cognitiveservices.azure.com/.default"


async def test_a_certificate_gets_a_token(tmp_path: Path) -> None:
    """Its key signs the assertion, which the authority verifies."""
    key, pem = certificate(tmp_path)
    with LocalAuthority() as authority:
        authority.client_certificate_key = key.public_key()
        settings = {"TA_AZURE_AUTHORITY": authority.url, "TA_AZURE_CLIENT_CERTIFICATE": str(pem)}
        async with AzureCredential(options("certificate", **settings)) as credential:
            assert await credential()
        assert "client_secret" not in authority.forms[0]


def certificate(folder: Path) -> tuple[rsa.RSAPrivateKey, Path]:
    """A certificate and its key, in one PEM file."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "service")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    pem = folder / "service.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem.write_bytes(private + made.public_bytes(Encoding.PEM))
    return key, pem


class Asked:
    """An endpoint that gives a token to every caller, and keeps the requests."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer
        self.heads: list[str] = []
        self.forms: list[dict[str, str]] = []

    async def __call__(self, connection: RawConnection) -> None:
        while True:
            head, body = await connection.request_with_body()
            self.heads.append(head.decode())
            self.forms.append(dict(parse_qsl(body.decode())))
            said = json.dumps(self.answer).encode()
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(said), said))


async def test_a_workloads_token_is_read_each_time(tmp_path: Path) -> None:
    """Kubernetes replaces the file, so what was in it at the start does not matter."""
    file = tmp_path / "token"
    asked = Asked(access_token="a-token", expires_in=1)
    async with RawService(asked).running() as authority:
        settings = {"TA_AZURE_AUTHORITY": root(authority), "TA_AZURE_FEDERATED_TOKEN_FILE": str(file)}
        now = [0.0]
        credential = AzureCredential(options("workload_identity", **settings), now=lambda: now[0])
        async with credential:
            for assertion in ("first", "second"):
                file.write_text(f"{assertion}\n")
                assert await credential() == "a-token"
                now[0] = 4e9
    assert [form["client_assertion"] for form in asked.forms] == ["first", "second"]
    assert asked.forms[0]["client_assertion_type"].endswith("jwt-bearer")


async def test_a_virtual_machines_identity_gets_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the machine's own endpoint, for the user-assigned identity that is named, by no proxy."""
    asked = Asked(access_token="a-token", expires_in="3600", token_type="Bearer")
    async with RawService(asked).running() as machine:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", root(machine))
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        async with AzureCredential(options("managed_identity")) as credential:
            assert await credential() == "a-token"
    target = urlsplit(asked.heads[0].split()[1])
    assert target.path == "/metadata/identity/oauth2/token"
    assert parse_qs(target.query)["resource"] == ["https://cognitiveservices.azure.com"]
    assert parse_qs(target.query)["client_id"] == ["app"]
    assert "metadata: true" in asked.heads[0].lower()


async def test_an_app_services_identity_gets_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the endpoint that the platform names."""
    asked = Asked(access_token="a-token", expires_on="4000000000", token_type="Bearer")
    async with RawService(asked).running() as platform:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{root(platform)}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "a header")
        async with AzureCredential(options("managed_identity")) as credential:
            assert await credential() == "a-token"
    assert asked.heads[0].startswith("GET /msi/token?")
    assert "x-identity-header: a header" in asked.heads[0].lower()


def root(service: RawService) -> str:
    return service.base_url.removesuffix("/v1")


@pytest.mark.parametrize(
    "answer",
    [
        {"error": "invalid_client", "error_description": f"AADSTS7000215: wrong secret {SECRET}"},
        {"access_token": ""},
        {"access_token": "a-token", "expires_in": "soon"},
        {"access_token": "a-token", "expires_in": "nan"},
        {"nothing": 1},
    ],
)
async def test_a_refusal_is_an_error_without_the_secret(answer: dict[str, str]) -> None:
    """What the authority said, what to check, and nothing to steal."""
    async with RawService(Asked(**answer)).running() as authority:
        credential = AzureCredential(options(TA_AZURE_AUTHORITY=root(authority)))
        with pytest.raises(ModelFailed, match="TA_AZURE_") as failed:
            await credential()
    assert SECRET not in failed.value.detail
    assert failed.value.__cause__ is None


async def test_an_authority_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """No server listens, or the certificate's file is missing: each error says so."""
    nowhere = "http://127.0.0.1:1"
    async with AzureCredential(options(TA_AZURE_AUTHORITY=nowhere)) as credential:
        with pytest.raises(ModelFailed, match="cannot be reached"):
            await credential()
    missing = {"TA_AZURE_CLIENT_CERTIFICATE": str(tmp_path / "no.pem")}
    async with AzureCredential(options("certificate", **missing)) as credential:
        with pytest.raises(ModelFailed, match="cannot be read"):
            await credential()


@pytest.mark.parametrize(
    ("key", "cipher", "why"),
    [
        (rsa.generate_private_key(65537, 2048), BestAvailableEncryption(b"secret"), "key is encrypted"),
        (ec.generate_private_key(ec.SECP256R1()), NoEncryption(), "is not an RSA key"),
    ],
)
async def test_a_key_that_cannot_sign_is_an_error(
    tmp_path: Path, key: Any, cipher: KeySerializationEncryption, why: str
) -> None:
    """It wants a password, or is of another kind: the error says which, and is none of the service itself."""
    pem = tmp_path / "service.pem"
    pem.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, cipher))
    settings = {"TA_AZURE_CLIENT_CERTIFICATE": str(pem)}
    async with AzureCredential(options("certificate", **settings)) as credential:
        with pytest.raises(ModelFailed, match=why):
            await credential()


# --- keeping ----------------------------------------------------------------------------------------------


class Source:
    """Gives `token-1`, `token-2`, …, each for an hour of a clock that the test moves, or fails."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked = 0
        self.fails = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> Token:
        self.asked += 1
        number = self.asked
        await self.gate.wait()
        if self.fails:
            raise TokenRefused("the authority is down.")
        return Token(f"token-{number}", self.now + 3600)

    def credential(self) -> AzureCredential:
        return AzureCredential(options(), acquire=self, now=lambda: self.now)


async def test_a_token_is_kept() -> None:
    """One request serves an hour."""
    source = Source()
    async with source.credential() as credential:
        assert {await credential() for _ in range(100)} == {"token-1"}
        source.now += 3600 - RENEW_BEFORE - 1
        assert await credential() == "token-1"
    assert source.asked == 1


async def test_an_acquirer_without_tokens_yet_is_asked() -> None:
    """Its length, or what else it counts as, says nothing of whether it can be called."""

    class Kept(list[Token]):
        async def __call__(self) -> Token:
            self.append(Token("mine", 4600))
            return self[-1]

    async with AzureCredential(options(), acquire=Kept(), now=lambda: 1000.0) as credential:
        assert await credential() == "mine"


async def test_a_token_is_renewed_before_its_end_and_no_one_waits() -> None:
    """While the new one is fetched the old one is used; from then on the new one."""
    source = Source()
    async with source.credential() as credential:
        await credential()
        source.now += 3600 - RENEW_BEFORE + 1
        source.gate.clear()
        assert {await credential() for _ in range(10)} == {"token-1"}
        source.gate.set()

        async def is_renewed() -> bool:
            return await credential() == "token-2"

        await eventually(is_renewed, every=0)
    assert source.asked == 2


async def test_a_hundred_calls_ask_once() -> None:
    """Without a token, all wait for the same request."""
    source = Source()
    async with source.credential() as credential:
        assert set(await asyncio.gather(*(credential() for _ in range(100)))) == {"token-1"}
    assert source.asked == 1


async def test_a_canceled_call_does_not_take_the_token_from_the_others() -> None:
    """The request for it continues."""
    source = Source()
    source.gate.clear()
    async with source.credential() as credential:
        canceled, kept = (asyncio.create_task(credential()) for _ in range(2))
        await asyncio.sleep(0)
        canceled.cancel()
        await asyncio.sleep(0)
        source.gate.set()
        assert await kept == "token-1"
    assert source.asked == 1


async def test_a_token_is_used_to_its_end_when_the_authority_is_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The authority is asked now and then, not for each call; after the end there is an error."""
    source = Source()
    async with source.credential() as credential:
        await credential()
        source.fails = True
        source.now += 3600 - RENEW_BEFORE + 1
        for _ in range(50):
            assert await credential() == "token-1"
            await asyncio.sleep(0)
        assert source.asked == 2
        source.now += RETRY_AFTER
        assert await credential() == "token-1"
        await asyncio.sleep(0)
        assert source.asked == 3
        source.now += RENEW_BEFORE
        with pytest.raises(ModelFailed, match="the authority is down"):
            await credential()
        source.fails = False
        assert await credential() == "token-5"
    assert "could not be renewed" in caplog.text


# --- in use -----------------------------------------------------------------------------------------------


async def test_the_model_is_called_with_the_token() -> None:
    """As a bearer token, asked for anew before each request; a failure to get one is the call's."""
    source = Source()
    heads: list[bytes] = []

    async def handler(connection: RawConnection) -> None:
        connection.heads = heads
        await connection.request()

    async with source.credential() as credential, RawService(handler).running() as service:
        for more in ({}, {"azure_api_version": "2024-10-21"}):
            given: dict[str, Any] = {"api_key": None, "token_provider": credential, "max_retries": 0, **more}
            async with client(service.base_url, **given) as model:
                with pytest.raises(ModelFailed):
                    await events(model)
    assert len(heads) == 2
    assert all(b"authorization: bearer token-1" in head.lower() for head in heads)
    assert not any(b"api-key" in head.lower() for head in heads)


@pytest.mark.parametrize("dated", [{}, {"azure_api_version": "2024-10-21"}])
async def test_each_request_asks_for_the_token_that_is_valid_then(dated: dict[str, str]) -> None:
    """A token that was good for one request is not kept for the next."""
    heads: list[bytes] = []
    numbers = count(1)

    async def token() -> str:
        return f"token-{next(numbers)}"

    async def handler(connection: RawConnection) -> None:
        connection.heads = heads
        await answer_whole(connection)

    given: dict[str, Any] = {"api_key": None, "token_provider": token, **dated}
    async with RawService(handler).running() as service, client(service.base_url, **given) as model:
        for _ in range(3):
            await events(model, stream=False)
    for number, head in enumerate(heads, start=1):
        assert f"authorization: bearer token-{number}\r\n".encode() in head.lower()
    assert len(heads) == 3


@pytest.mark.parametrize("dated", [{}, {"azure_api_version": "2024-10-21"}])
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            RuntimeError("vault is sealed; client_secret=abc123"),
            "RuntimeError: vault is sealed; ***",
        ),
        *((token, "cannot be sent") for token in (None, "", "abc\ndef", "tök")),
    ],
)
async def test_a_provider_that_gives_no_token_fails_the_call(
    given: Any, reason: str, dated: dict[str, str]
) -> None:
    """However it fails: the model is not called, and the error speaks of the token."""

    async def token() -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    async with OfflineModel() as service:
        async with client(service.base_url, api_key=None, token_provider=token, **dated) as model:
            with pytest.raises(ModelFailed, match="No token for the model service") as failed:
                await events(model)
        assert reason in failed.value.detail
        assert service.requests == []


async def test_without_a_token_the_model_is_not_called() -> None:
    """The error says why, and is not retried."""
    source = Source()
    source.fails = True
    async with OfflineModel() as service, source.credential() as credential:
        async with client(service.base_url, api_key=None, token_provider=credential) as model:
            with pytest.raises(ModelFailed, match="No token for the model service"):
                await events(model)
        assert service.requests == []
    assert source.asked == 1
