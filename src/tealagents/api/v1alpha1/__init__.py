"""`tealagents/v1alpha1`: AppV3 and its routes.

============  ==========================================================================
`app`         AppV3: puts the routes, the handlers of errors and the lifespan together
`routing`     routes: served by Starlette, described by FastAPI when the document is asked for
`context`     what every route works with
`messages`    sending a message and deciding a pause; JSON, SSE, background
`requests`    reading, following and canceling requests; pauses with their tools, prompts
`tasks`       tasks; `task_views`: what they hold; `time_travel`: rollback, fork, export, import
`sessions`    sessions       `approvals`   the inbox       `oauth`   the end of a consent
`tenant`      who is asking, and what auditors see
`health`      probes         `discovery`   what anyone may know
`schemas`, `documents`, `openapi`, `docs`  what is said, its description, and the page that shows it
============  ==========================================================================
"""
