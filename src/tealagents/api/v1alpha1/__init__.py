"""The service's own protocol, `tealagents/v1alpha1`: its application and its routes.

============  ==========================================================================
`app`         `AppV3`, the application: puts routes and handlers of errors together
`routing`     routes: served by Starlette, described by FastAPI when the document is asked for
`context`     what every route works with; `parameters`, `preferences`: what several read
`messages`    sending a message and deciding a pause; JSON, SSE, background
`fold`        recorded events as server-sent events; `problems`: errors as documents (RFC 9457)
`requests`    reading, following and canceling requests; pauses with their tools, prompts
`tasks`       tasks; `task_views`: what they hold; `time_travel`: rollback, fork, export, import
`sessions`    sessions       `approvals`   the inbox       `oauth`   the end of a consent
`tenant`      who is asking, and what auditors see
`health`      probes         `discovery`   what anyone may know
`inputs`      what comes in   `documents`  what is answered
`schemas`, `openapi`, `docs`  the description of both, and the page that shows it
============  ==========================================================================
"""
