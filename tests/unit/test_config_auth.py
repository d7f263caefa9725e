"""Who may call: the file's `auth` and the variables resolve into one set of options."""

from pathlib import Path

import pytest
from config_files import complaints, read, with_spec

from tealagents.auth.options import EntraOptions, MockOptions

TENANT = "11111111-2222-3333-4444-555555555555"
ENTRA = {"TA_ENTRA_TENANT_ID": TENANT, "TA_ENTRA_AUDIENCE": "api://app", "TA_ENTRA_SCOPES": "access_as_user"}


def test_without_a_choice_mock_is_not_chosen(tmp_path: Path) -> None:
    """Nothing said is mock, but not by choice, and with a warning. covers: AUTH-4"""
    config = read(tmp_path)
    assert (config.auth.provider, config.auth.chosen) == ("mock", False)
    assert any("loopback" in warning for warning in config.warnings)


@pytest.mark.parametrize("text", ["auth: mock", "auth: {provider: mock}"])
def test_mock_is_chosen_in_either_form(tmp_path: Path, text: str) -> None:
    """`auth: mock` and `auth: {provider: mock}` are the same, and a choice without a warning."""
    config = read(tmp_path, with_spec(text))
    assert (config.auth.provider, config.auth.chosen) == ("mock", True)
    assert config.warnings == ()


def test_a_tenant_makes_it_entra(tmp_path: Path) -> None:
    """A tenant alone says that tokens are checked for real. covers: AUTH-2"""
    config = read(tmp_path, **ENTRA)
    assert (config.auth.provider, config.auth.chosen) == ("entra", False)
    assert config.warnings == ()


def test_entra_of_the_file(tmp_path: Path) -> None:
    """The file's section is complete by itself; audience and scopes take one text or a list."""
    auth = read(
        tmp_path,
        with_spec(
            f"""
            auth:
              provider: entra
              tenant_id: {TENANT}
              audience: api://app
              scopes: [access_as_user]
              allowed_clients: one two
              approver_role: Approver
              auditor_role: Auditor
              allow_app_tokens: true
              app_roles: [Task.Run]
              authority: https://login.microsoftonline.us/
            """
        ),
    ).auth.entra
    assert auth is not None
    assert (auth.audience, auth.scopes, auth.allowed_clients) == (
        ("api://app",),
        ("access_as_user",),
        ("one", "two"),
    )
    assert auth.authority == "https://login.microsoftonline.us"
    assert (auth.approver_role, auth.auditor_role, auth.app_roles) == ("Approver", "Auditor", ("Task.Run",))


def test_the_providers_take_what_the_config_gives(tmp_path: Path) -> None:
    """What the config resolves is what each provider is opened with."""
    options = read(tmp_path, TA_ENTRA_CLIENT_ID="app", TA_ENTRA_CLIENT_SECRET="s", **ENTRA).auth.options
    assert isinstance(options, EntraOptions)
    assert (options.tenant_id, options.audience, options.client_id) == (TENANT, ("api://app",), "app")
    mock = read(tmp_path, with_spec("auth: {provider: mock, options: {approver_users: [ann]}}")).auth
    assert isinstance(mock.options, dict)
    assert MockOptions(**mock.options).approver_users == ("ann",)


@pytest.mark.parametrize("provider", ["mock", "badges:Badges"])
def test_options_are_those_of_the_provider_beside_them(tmp_path: Path, provider: str) -> None:
    """A provider that a variable chooses instead gets none of them, whatever they contain."""
    text = f"auth: {{provider: '{provider}', options: {{approver_users: ['${{UNSET}}']}}}}"
    auth = read(tmp_path, with_spec(text), TA_AUTH="entra", **ENTRA).auth
    assert auth.entra is not None
    assert read(tmp_path, with_spec(text), TA_AUTH="other:Provider").auth.options == {}
    chosen = read(tmp_path, with_spec(text), TA_AUTH=provider, UNSET="ann").auth
    assert chosen.options == {"approver_users": ["ann"]}


def test_options_go_with_the_provider_that_a_variable_names_in_the_file(tmp_path: Path) -> None:
    """Another provider is not given them. Where the variable is not set, the provider may be the same."""
    text = with_spec("auth: {provider: '${PROVIDER}', options: {colour: red}}")
    assert read(tmp_path, text, PROVIDER="badges:Badges", TA_AUTH="mock").auth.options == {}
    assert read(tmp_path, text, PROVIDER="badges:Badges", TA_AUTH="badges:Badges").auth.options == {
        "colour": "red"
    }
    assert read(tmp_path, text, TA_AUTH="badges:Badges").auth.options == {"colour": "red"}


def test_options_of_entra_are_named_where_they_are(tmp_path: Path) -> None:
    """A variable wins over them, too."""
    assert complaints(
        tmp_path, with_spec("auth: {options: {aprover_role: x}}"), TA_AUTH="entra", **ENTRA
    ) == ["8: spec.auth.options.aprover_role: unknown key; did you mean 'approver_role'?"]
    text = with_spec("auth: {provider: entra, options: {approver_role: Boss, audience: another}}")
    auth = read(tmp_path, text, **ENTRA).auth.entra
    assert auth is not None
    assert (auth.approver_role, auth.audience) == ("Boss", ("api://app",))


def test_entra_says_what_it_lacks(tmp_path: Path) -> None:
    """Entra without a tenant or an audience does not start. covers: AUTH-2"""
    assert complaints(tmp_path, with_spec("auth: entra")) == [
        "8: spec.auth.tenant_id: entra needs it; set it here, or TA_ENTRA_TENANT_ID in the environment",
        "8: spec.auth.audience: entra needs it; set it here, or TA_ENTRA_AUDIENCE in the environment",
    ]


def test_entra_without_scopes_is_a_warning(tmp_path: Path) -> None:
    """Requiring no scope is possible, and pointed out."""
    env = {name: value for name, value in ENTRA.items() if name != "TA_ENTRA_SCOPES"}
    [warning] = read(tmp_path, **env).warnings
    assert "TA_ENTRA_SCOPES" in warning


@pytest.mark.parametrize("env", [{}, {"TA_AUTH": "entra", **ENTRA}, {"TA_AUTH": "gateway"}])
@pytest.mark.parametrize("section", ["off", "no", "0", "0.0", "false", "[]", "[entra]", "[{}]", "true"])
def test_what_is_no_section_switches_nothing_off(tmp_path: Path, section: str, env: dict[str, str]) -> None:
    """What is neither a mapping nor text is wrong, whatever the variables say. covers: AUTH-2"""
    [text] = complaints(tmp_path, with_spec(f"auth: {section}"), **env)
    assert text == "8: spec.auth: must be a mapping (keys and values), or a provider's name"
    earlier = "apiVersion: skagents/v2alpha1\n" + with_spec(f"auth: {section}").partition("\n")[2]
    assert complaints(tmp_path, earlier, **env) == [text]


@pytest.mark.parametrize("provider", ["entra", "mock", "module:Class"])
@pytest.mark.parametrize("options", ["off", "0", "[]", "[a]", "text"])
def test_options_are_a_mapping(tmp_path: Path, provider: str, options: str) -> None:
    """Options that are no mapping are wrong for every provider."""
    section = with_spec(f"auth: {{provider: '{provider}', options: {options}}}")
    entra = {name: value for name, value in ENTRA.items() if provider == "entra"}
    [text] = complaints(tmp_path, section, **entra)
    assert text.startswith("8: spec.auth.options: must be a mapping (keys and values), not ")


@pytest.mark.parametrize("provider", ["off", "0", "[]", "{}", "''"])
def test_a_provider_is_named_by_text(tmp_path: Path, provider: str) -> None:
    """A provider that no text names is wrong, rather than not chosen."""
    [text] = complaints(tmp_path, with_spec(f"auth: {{provider: {provider}}}"))
    assert text.startswith("8: spec.auth.provider: must be ")


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("{allow_app_tokens: true}", "allow_app_tokens needs app_roles"),
        ("{tenant_id: organizations, audience: a}", "list those whose users may call in allowed_tenants"),
        ("{allowed_tenants: example.com}", "must be the ids of tenants"),
        ("{authority: 'http://login.example.com'}", "must be https://"),
        ("{provider: 'en tra'}", "must be a name, or module:Class"),
        (
            "{certificate: x.pem, client_id: a, client_secret: '${S}'}",
            "give either client_secret or certificate",
        ),
        ("{client_secret: '${S}'}", "need client_id"),
    ],
)
def test_what_would_be_unsafe_is_refused(tmp_path: Path, section: str, complaint: str) -> None:
    """A section that opens the door wider than meant does not start. covers: AUTH-2"""
    (tmp_path / "x.pem").touch()
    [text] = complaints(tmp_path, with_spec(f"auth: {section}"), S="secret")
    assert complaint in text


@pytest.mark.parametrize("name", ["scopes", "approver_role", "auditor_role", "app_roles"])
@pytest.mark.parametrize("wrong", ["zugriff_ł", "Prüfer", "Роль", 'a"b', "a\\b", "a\x7fb"])
def test_a_scope_or_role_that_cannot_be_sent_is_refused(tmp_path: Path, name: str, wrong: str) -> None:
    """A refusal names what a token lacks in a header, and Entra has no such scopes and roles."""
    variable = f"TA_ENTRA_{name.upper()}"
    [text] = complaints(tmp_path, **{"TA_AUTH": "entra", **ENTRA, variable: wrong})
    form = "must consist of ASCII characters other than spaces, double quotes and backslashes"
    assert text == f"{variable}: {form}"


def test_every_character_of_a_scope_or_role_is_taken(tmp_path: Path) -> None:
    """All that RFC 6749 and Entra allow."""
    odd = "".join(chr(n) for n in range(0x21, 0x7F) if chr(n) not in '"\\')
    roles = {"TA_ENTRA_AUDITOR_ROLE": odd, "TA_ENTRA_APP_ROLES": f"Run {odd}"}
    auth = read(tmp_path, **{**ENTRA, "TA_ENTRA_SCOPES": odd, **roles}).auth.entra
    assert auth is not None
    assert (auth.scopes, auth.auditor_role, auth.app_roles) == ((odd,), odd, ("Run", odd))


def test_loopback_authority_may_be_plain(tmp_path: Path) -> None:
    """A local authority for tests needs no certificate."""
    auth = read(tmp_path, TA_ENTRA_AUTHORITY="http://127.0.0.1:9000/", **ENTRA).auth.entra
    assert auth is not None
    assert auth.authority == "http://127.0.0.1:9000"
