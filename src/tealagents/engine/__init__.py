"""One request from message to answer, as one stream of events.

===============  ==========================================================================
`service`        the front that protocols talk to: send, start, follow, cancel, drain
`run`            one request in flight, owned by the app and not by a connection
`turn`           one turn of a conversation, the same for service and library
`conversations`  the conversations of tasks, and what is kept of them between turns
`recorder`       what a turn writes down: messages, steps, what its tools may have done
`publishing`     what a run shows: its events, to followers at once and to the log in batches
`loop`           model call, tool round, model call, … as one generator that persists nothing
`toolbox`        the tools one agent has, and how one call is made safely
`prompt`         what the model is sent
`reconstruction` what a model call was sent, reconstructed from what is stored
`approvals`      human decisions on pauses
`resuming`       what a request continues from: a decision, or the rounds of one that failed
`following`      the events of a request, from memory (`event_buffer`) or from the log
`admission`      how many requests at once, of how many bytes, and draining
`wait_queue`     requests that wait for their task
`observer`       what can be watched of requests, model calls and tool calls
`agent`          what a config file says an agent is
===============  ==========================================================================

What happens to a task is decided in `state.transitions` and stored in `state`; this connects them.
"""
