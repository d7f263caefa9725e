"""The protocol of the earlier platform, `skagents/v1` and `skagents/v2alpha1`. No state between calls.

- `app`: the routes: JSON, server-sent events, a WebSocket, health, the OpenAPI document
- `turns`: runs the tasks of a call one after the other, each as one turn of the engine's loop
- `templates`: the instructions of tasks, which are sandboxed Jinja templates
- `inputs`: the body of a call, as messages, template values and images
- `values`: what a template can read of a value
- `documents`: answers, events and errors, as clients of the earlier platform read them
- `openapi`: the OpenAPI document; `identity`: identifies the caller

Built by `tealagents.skagents`. Imports the engine and the modules that protocols share; no other protocol.
"""
