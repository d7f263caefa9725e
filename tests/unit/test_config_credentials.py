"""Credentials are read from the environment only; one in the file is an error that never quotes it."""

from pathlib import Path

import pytest
from config_files import complaints, problems, read, with_agent, with_spec

SECRET = "canary-Xy7"
MCP = "mcp_servers: [{name: a, url: 'https://a.example.com/mcp', %s}]"


@pytest.mark.parametrize(
    "key",
    [
        *("api_key", "apiKey", "API_KEY", "password", "secret", "client_secret", "token", "github_token"),
        *("Authorization", "X-Api-Key", "Ocp-Apim-Subscription-Key", "private_key", "accessKey", "db-passwd"),
    ],
)
def test_keys_that_name_credentials(tmp_path: Path, key: str) -> None:
    """Whatever the key's style, a credential under it is refused, and a variable proposed."""
    for text in (with_agent(f"{key}: {SECRET}"), with_agent(MCP % f"headers: {{{key}: {SECRET}}}")):
        [problem] = problems(tmp_path, text)
        assert problem.line == 8
        assert problem.key.endswith(key) or key in problem.key
        assert "credentials are never read from the file" in problem.message
        assert SECRET not in str(problem)


@pytest.mark.parametrize(
    "key", ["max_tokens", "token_budget", "tokenizer", "keys", "passive", "secretary", "author"]
)
def test_keys_that_only_sound_like_it(tmp_path: Path, key: str) -> None:
    """Keys that merely resemble those of credentials are left alone."""
    thread = read(tmp_path, with_spec(f"thread: {{reducers: [{{name: x, {key}: 12}}]}}")).thread
    assert thread.reducers[0].options == {key: 12}


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{SECRET}@db.example.com/state",
        f"redis://:{SECRET}@cache.example.com:6379/0",
        f"postgresql://${{USER}}:{SECRET}@db.example.com",
        f"dynamodb://table?region=eu-west-1&aws_secret_access_key={SECRET}",
        f"postgresql://db.example.com/state?password={SECRET}",
        f"'postgresql://user:a {SECRET}@db.example.com/state'",
        f"'postgresql://user:{SECRET}@db.example.com/state?application_name=my agent'",
    ],
)
def test_store_urls_with_passwords(tmp_path: Path, url: str) -> None:
    """A password within the store's URL is refused, and TA_PERSISTENCE proposed."""
    [complaint] = complaints(tmp_path, with_spec(f"persistence: {url}"), USER="me")
    assert complaint == (
        "8: spec.persistence: credentials are never read from the file; "
        "set TA_PERSISTENCE in the environment instead"
    )


@pytest.mark.parametrize(
    "entry",
    [
        f"headers: {{X-Custom: Bearer {SECRET}}}",
        f"args: ['--api-key={SECRET}']",
        f"args: ['--api-key', '{SECRET}']",
        f"args: ['run', '-e', 'GITHUB_PERSONAL_ACCESS_TOKEN={SECRET}']",
        f"args: ['--header', 'Authorization:Bearer {SECRET}']",
        f"env: {{PGPASSWORD: {SECRET}}}",
        f"env: {{LLM_API_KEY: {SECRET}}}",
        f"auth_server: 'https://user:{SECRET}@auth.example.com'",
        f"auth_server: 'https://user:a {SECRET}@auth.example.com'",
        f"args: ['postgresql://user:a {SECRET}@db.example.com/state']",
        f"env: {{STATE: 'postgresql://user:a {SECRET}@db.example.com/state'}}",
        "args: ['sk-proj-canary-Xy7abcdefghijklmnop']",
        "env: {X: eyJhbGciOiJub25lIn0.eyJzdWIiOiJjYW5hcnktWHk3In0.canary-Xy7}",
    ],
)
def test_tool_servers_with_credentials(tmp_path: Path, entry: str) -> None:
    """Headers, arguments and environments of tool servers are searched, too."""
    [problem] = problems(tmp_path, with_agent(MCP % entry))
    assert "credentials are never read from the file; write ${" in problem.message
    assert "canary" not in str(problem)


def test_a_variable_of_the_service_is_proposed_for_its_own_settings_only(tmp_path: Path) -> None:
    """Elsewhere the same key is another secret."""
    for text in (with_spec(f"api_key: {SECRET}"), with_agent(f"api_key: {SECRET}")):
        [problem] = problems(tmp_path, text)
        assert "; set TA_API_KEY in the environment instead" in problem.message
    for text in (
        with_agent(MCP % f"headers: {{api_key: {SECRET}}}"),
        with_spec(f"thread: {{context_providers: [{{name: mem0, api_key: {SECRET}}}]}}"),
        with_spec(f"auth: {{name: 'mine:Auth', api_key: {SECRET}}}"),
    ):
        found = " ".join(complaints(tmp_path, text))
        assert "; write ${API_KEY} and set API_KEY in the environment" in found
        assert "TA_API_KEY" not in found


@pytest.mark.parametrize(
    "entry",
    [
        'headers: {Authorization: "Bearer ${STREAM_TOKEN}", Content-Type: application/json}',
        'args: ["--api-key=${STREAM_TOKEN}", "--token", "${STREAM_TOKEN}", "--token", "--verbose"]',
        'env: {API_KEY: "${STREAM_TOKEN}", NODE_ENV: production}',
    ],
)
def test_variables_are_the_way(tmp_path: Path, entry: str) -> None:
    """The same places take variables."""
    read(tmp_path, with_agent(MCP % entry), STREAM_TOKEN="secret")


def test_passwords_of_urls_from_variables(tmp_path: Path) -> None:
    """The password of a URL may be a variable, and a user's name needs none."""
    text = with_spec("persistence: postgresql://me:${PW}@db.example.com/state")
    assert read(tmp_path, text, PW="x").persistence == "postgresql://me:x@db.example.com/state"
    assert read(tmp_path, with_spec("persistence: postgresql://me@db.example.com/state"))


@pytest.mark.parametrize("key", ["connection_string", "jdbc", "link", "base_url"])
def test_a_url_under_a_key_that_says_so_may_have_spaces_in_its_password(tmp_path: Path, key: str) -> None:
    provider = f"context_providers: [{{name: x, {key}: 'postgresql://user:a {SECRET}@db.example.com/state'}}]"
    [problem] = problems(tmp_path, with_spec(f"thread: {{{provider}}}"))
    assert "credentials are never read from the file" in problem.message


def test_prose_may_speak_of_secrets(tmp_path: Path) -> None:
    """Instructions that mention passwords, tokens or URLs are no credentials."""
    prompt = (
        "Never reveal a password, token or api_key. Basic arithmetic: use https://host:80/@scope/x?token="
    )
    assert read(tmp_path, with_agent(f"role: '{prompt}'")).agent.role == prompt
    for prompt in (
        "https://shop.example.com: answer for ada@shop.example.com",
        "http://intranet:8080 is our wiki; ask ops@example.com",
        "http://intranet:<port> is our wiki; ask ops@example.com",
    ):
        assert read(tmp_path, with_agent(f"role: '{prompt}'")).agent.role == prompt


def test_escaped_variable_is_a_literal(tmp_path: Path) -> None:
    """`$${NAME}` under a credential's key is text, hence a credential."""
    assert len(complaints(tmp_path, with_agent("api_key: $${NAME}"))) == 1
