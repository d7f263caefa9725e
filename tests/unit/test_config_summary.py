"""What people and editors are shown: the summary and the JSON Schema."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_files import SMALLEST, read, with_agent, with_spec
from jsonschema import Draft202012Validator

from tealagents.config import json_schema, summary


def test_summary_says_what_would_be_served(tmp_path: Path) -> None:
    """The summary has the path, the model, the store and what is left at its default."""
    lines = dict(summary(read(tmp_path)))
    assert lines["serves"] == "/Wiki/0.10 (Agent, tealagents/v1alpha1)"
    assert lines["model"] == "gpt-4o-mini, by openai-chat"
    assert lines["store"] == "memory://"
    assert lines["tools"] == "none"
    assert lines["limits"] == "defaults"
    assert lines["auth"] == "mock (not chosen, so on loopback addresses only)"


def test_summary_says_what_differs(tmp_path: Path) -> None:
    """What was set is shown, secrets masked."""
    text = with_agent(
        """
        temperature: 0
        plugins: [Shell]
        mcp_servers:
          - {name: time, command: uvx}
          - {name: issues, transport: http, url: "https://${PERSON}@issues.example/mcp?key=${PERSON}#${PERSON}"}
        """
    )
    text += "  limits: {max_tool_rounds: 3, keepalive_seconds: 0.5}\n  thread: {kind: remote}\n"
    env = {
        "TA_PERSISTENCE": "postgresql://me:canary@db/state",
        "TA_API_KEY": "canary",
        "TA_BASE_URL": "https://me:canary@llm.example.com/v1?sig=canary",
        "PERSON": "canary",
        "TA_ENCRYPTION_KEY": "canary-1",
        "TA_TELEMETRY_ENABLED": "true",
        "TA_OTEL_ENDPOINT": "http://me:canary@collector:4318",
        "TA_ENTRA_TENANT_ID": "contoso.example.com",
        "TA_ENTRA_AUDIENCE": "api://app",
    }
    shown = summary(read(tmp_path, text, **env))
    lines = dict(reversed(shown))
    assert lines["model"] == "gpt-4o-mini, by openai-responses (temperature 0.0)"
    assert lines["store"] == "postgresql://me:***@db/state, encrypted"
    assert lines["model service"] == "https://llm.example.com/v1"
    assert lines["telemetry"] == "http://collector:4318"
    assert [value for label, value in shown if label == "MCP server"] == [
        "time: uvx (untrusted)",
        "issues: https://issues.example/mcp (untrusted)",
    ]
    assert lines["limits"] == "max_tool_rounds 3, keepalive_seconds 0.5; all others at their defaults"
    assert lines["auth"] == "entra, tenant contoso.example.com, audience api://app"
    assert "canary" not in str(shown)


def test_a_client_of_the_configs_own_is_not_said_to_call_openai(tmp_path: Path) -> None:
    """Only it knows what it calls, unless the config says where."""
    text = with_agent("client: parrot:Parrot")
    assert "model service" not in dict(summary(read(tmp_path, text)))
    lines = dict(summary(read(tmp_path, text, TA_BASE_URL="https://parrots.example")))
    assert lines["model service"] == "https://parrots.example"


def mistakes(text: str) -> list[str]:
    """Where an editor would show a red line."""
    data = yaml.safe_load(text)
    return sorted(
        ".".join(map(str, error.path)) for error in Draft202012Validator(json_schema()).iter_errors(data)
    )


def test_schema_is_one() -> None:
    """The schema is valid by its own dialect, and printable."""
    schema: dict[str, Any] = json.loads(json.dumps(json_schema()))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


def test_every_key_is_described() -> None:
    """An editor can show what each key means."""
    schema = json_schema()
    bare = [
        key
        for section in schema["$defs"].values()
        for key, each in section["properties"].items()
        if not each["description"]
    ]
    assert bare == []


@pytest.mark.parametrize(
    "text",
    [
        SMALLEST,
        with_spec("auth: mock"),
        with_spec("auth: {provider: entra, scopes: a b, audience: [c]}"),
        with_spec("thread: {reducers: [a, {name: b, max_messages: 4}]}"),
        with_spec('limits: {max_items: "${N}"}'),
        with_spec('limits: {max_items: "${N}000", max_queued_requests: 2000}'),
        with_spec("concurrency: ${MODE}"),
        with_spec('thread: {kind: "${KIND}"}'),
        SMALLEST.replace("tealagents/v1alpha1", "${VERSION}"),
        SMALLEST + "kind: ${KIND}\n",
        with_agent("reasoning_effort: ${EFFORT}"),
        with_agent('mcp_servers: [{name: a, command: b, trust_level: "${TRUST}"}]'),
        with_agent("mcp_servers: [{name: a, url: 'https://a.example', headers: {X: }}]"),
        with_agent("mcp_servers: [{name: a, command: b, env: {X: }, tool_governance_overrides: {t: }}]"),
        with_agent("plugins:\ntemperature:\nolder_key: 1"),
    ],
)
def test_schema_takes_what_is_right(text: str) -> None:
    """The editor shows no red line where the service starts."""
    assert mistakes(text) == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (with_spec("limits: {max_item: 1}"), "spec.limits"),
        (with_spec("limits: {max_items: 0}"), "spec.limits.max_items"),
        (with_spec("limits: {max_queued_requests: 2001}"), "spec.limits.max_queued_requests"),
        (with_spec("concurrency: $${MODE}"), "spec.concurrency"),
        (with_spec("concurrency: rejct"), "spec.concurrency"),
        (with_agent("temperature: hot"), "spec.agent.temperature"),
        (SMALLEST.replace("tealagents/", "skagents/"), "apiVersion"),
        (SMALLEST.replace("model:", "modle:"), "spec.agent"),
    ],
)
def test_schema_refuses_what_is_wrong(text: str, place: str) -> None:
    """The editor shows where the service would complain."""
    assert place in mistakes(text)
