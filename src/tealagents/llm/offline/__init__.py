"""An OpenAI-compatible model service on loopback: deterministic, scripted, without a key.

It speaks the real wire format, chat completions and responses, JSON and SSE, so that the real client path
runs against it: in tests, in demos, in benchmarks, and for trying an agent of one's own.
docs/offline-model.md is its manual.

What lives here, each using only what stands above it:

================================  ==========================================================================
`ids`, `errors`, `reading`        ids, refusals and types, in the real service's shape
`answer`                          an answer before it is written in the words of one API; its pace, its faults
`facts`, `prompt`                 what the model is asked, and the facts it was given
`shapes`                          structured output
`persona`                         the built-in answers
`script`, `playback`              scripts in YAML, and which rule answers
`delivery`                        bytes, pauses and the end of an answer on the wire
`chat`                            the chat completions API
`items`, `stored`                 what the responses API keeps
`responses`                       the responses API
`service`                         the routes
`journal`, `transmission`, `app`  HTTP, as an ASGI application
`server`                          the socket
================================  ==========================================================================

Used by tests, demos, benchmarks, the command line and by users' own tests; it imports nothing of the rest
of the project.
"""

from tealagents.llm.offline.app import create_app
from tealagents.llm.offline.script import Script, ScriptError
from tealagents.llm.offline.server import OfflineModel, serve

__all__ = ["OfflineModel", "Script", "ScriptError", "create_app", "serve"]
