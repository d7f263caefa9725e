"""An OpenAI-compatible model service on loopback: deterministic, scriptable, without a key.

It has the real wire format: chat completions and responses, JSON and SSE. So the real client code runs
against it in tests, demos and benchmarks, and while you develop an agent. docs/offline-model.md is its
manual.

Each module uses only those above it:

================================  ==========================================================================
`ids`, `errors`, `reading`        ids, error responses, and type checks like the real service's
`answer`                          an answer independent of the API, with its delays and faults
`facts`, `prompt`                 the facts that users have stated; the messages that the model is sent
`shapes`                          structured output
`persona`                         the built-in answers
`script`, `playback`              scripts in YAML; the choice of the rule that answers
`delivery`                        the bytes of an answer, with its pauses and its end
`chat`                            the chat completions API
`items`, `stored`                 the items, responses and conversations of the responses API
`responses`                       the responses API
`service`                         the routes
`received`, `transmission`, `app` the ASGI application: the received requests, sending answers
`server`                          the HTTP server
================================  ==========================================================================

Used by tests, demos, benchmarks, the command line and users' own tests. Imports only `mistakes` of the
project.
"""

from tealagents.llm.offline.app import create_app
from tealagents.llm.offline.script import Script, ScriptError
from tealagents.llm.offline.server import OfflineModel, serve

__all__ = ["OfflineModel", "Script", "ScriptError", "create_app", "serve"]
