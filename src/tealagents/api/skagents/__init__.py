"""The protocol of the earlier platform, `skagents/v1` and `skagents/v2alpha1`: one turn per call, no state.

- `app`: the routes: JSON, server-sent events, a WebSocket, health, the OpenAPI document
- `turns`: answers a call, task by task, over the engine's loop; nothing is stored
- `templates`: the instructions of tasks; `inputs`: what was sent, as messages and values; `values`: what
  templates reach of a value
- `documents`: answers, events and errors as their clients read them; `openapi`: the document; `identity`: who
  calls

Built by `tealagents.skagents`. Imports the engine and what protocols share; no other protocol.
"""
