"""`tealagents/v1alpha1`: AppV3 and its routes.

============  ==========================================================================
`app`         AppV3: puts the routes, the handlers of errors and the lifespan together
`context`     what every route works with
`messages`    sending a message and deciding a pause; JSON, SSE, background
`requests`    reading, following and canceling requests; pauses with their tools, prompts
`tasks`       tasks; `task_views`: what they hold; `time_travel`: rollback, fork, export, import
`sessions`    sessions       `approvals`   the inbox       `oauth`   the end of a consent
`tenant`      who is asking, and what auditors see
`health`      probes         `discovery`   what anyone may know
`schemas`, `documents`, `openapi`          what is said, and its description
============  ==========================================================================
"""
