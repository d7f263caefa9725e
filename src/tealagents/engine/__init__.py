"""One request from message to answer, as one stream of events.

============  ==========================================================================
`service`     the front the api talks to: send, resume, cancel, follow
`run`         one request in flight, owned by the app and not by a connection
`recorder`    what a run writes down: messages, steps, what its tools may have done
`publishing`  what a run shows: its events, to followers at once and to the log in batches
`loop`        model call, tool round, model call, … as one generator that persists nothing
`toolbox`     the tools one agent has, and how one call is made safely
`turns`       a request's turn in its conversation: prompt, tools, context, what is remembered
`prompt`      what the model is sent; history encoded once
`approvals`   decisions on pauses
`following`   the events of a request, from memory or from the log
`admission`   how many requests at once, and draining
`wait_queue`  requests that wait for their task
`agent`       what a config file says an agent is
============  ==========================================================================

Deciding happens in `domain.lifecycle`, storing in `state`; this package only connects them.
"""
