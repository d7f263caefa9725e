"""One request from message to answer, as one stream of events.

===============  ==========================================================================
`service`        the front that protocols call: send, start, follow, cancel, drain
`run`            one request in flight, owned by the app and not by a connection
`turn`           one turn of a conversation, the same for service and library
`conversations`  the conversations of tasks, and the cache that keeps them between turns
`recorder`       records a turn: its messages, its steps, the outcomes of its tool calls
`publishing`     a run's events: shown to followers at once, written to the log in batches
`loop`           model call, tool round, model call, … as one generator that persists nothing
`toolbox`        an agent's tools, and how one call is made safely
`prompt`         what the model is sent
`reconstruction` the prompt of an earlier model call, reconstructed from stored records
`approvals`      human decisions on pauses
`resuming`       where a request continues: after a decision, or after a failed request's rounds
`following`      the events of a request, from memory (`event_buffer`) or from the log
`admission`      limits on requests and bytes in flight, and draining
`wait_queue`     requests that wait for their task
`observer`       hooks that observe requests, model calls and tool calls
`agent`          an agent, as its config file defines it
===============  ==========================================================================

Changes to a task are decided in `state.transitions` and committed by `state.head_commits`.
"""
