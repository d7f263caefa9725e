"""`tealagents/v1alpha1`: AppV3 and its routes.

============  ==========================================================================
`app`         AppV3: puts the routes, the handlers of errors and the lifespan together
`context`     what every route works with
`messages`    sending a message and deciding a pause; JSON, SSE, background
`requests`    reading, following and canceling requests
`sessions`    sessions       `tasks`   tasks and their views       `approvals`  the inbox
`health`      probes         `schemas`, `documents`, `openapi`     what is said, and its description
============  ==========================================================================
"""
