"""The agent card: what the config says of the agent, where it answers, and how to authenticate."""

from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict

from tealagents.api.a2a.documents import INPUT_MODES
from tealagents.api.exchange import Exchange
from tealagents.domain.models import Json

#: bindings and versions, the preferred one first
_INTERFACES = (("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"))
_OF_SKILL = ("id", "name", "description", "tags", "examples")


def agent_card(exchange: Exchange, url: str) -> pb.AgentCard:
    """The card of an agent that clients see at `url`, where this protocol is."""
    said = {"name": exchange.agent.name, "description": exchange.settings.description}
    # an agent that names no skill has one, which is to answer
    skill = {**said, "id": exchange.agent.name, "tags": [exchange.agent.name]}
    given = exchange.settings.metadata.get("skills") or [{}]
    skills = [{**skill, **{key: each[key] for key in _OF_SKILL if each.get(key)}} for each in given]
    name, scheme, scopes = _security(exchange.authenticator.resource_metadata(url))
    document: Json = {
        **said,
        "version": exchange.agent.version,
        "documentationUrl": f"{url.rpartition('/')[0]}/docs",
        "supportedInterfaces": [
            {"url": url, "protocolBinding": kind, "protocolVersion": version} for kind, version in _INTERFACES
        ],
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
        "securitySchemes": {name: scheme},
        "securityRequirements": [{"schemes": {name: {"list": scopes}}}],
        "defaultInputModes": INPUT_MODES,
        "defaultOutputModes": ["text/plain"],
        "skills": skills,
    }
    return ParseDict(document, pb.AgentCard())


def _security(metadata: Json | None) -> tuple[str, Json, list[str]]:
    """Whose tokens are taken, by OpenID Connect, and with which scopes; any, where nothing checks them."""
    if metadata is None:
        return "bearer", {"httpAuthSecurityScheme": {"scheme": "Bearer"}}, []
    [issuer] = metadata["authorization_servers"]
    found = {"openIdConnectUrl": f"{issuer}/.well-known/openid-configuration"}
    return "openIdConnect", {"openIdConnectSecurityScheme": found}, metadata["scopes_supported"]
