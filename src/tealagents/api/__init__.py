"""HTTP: what is said on the wire, and nothing else. Imports the engine and below, no adapter.

===============  ==========================================================================
`exchange`       what every protocol needs: who asks, limits, submit, decide, follow, cancel
`protocols`      the table of protocols; `host` hands each request to the one that owns its path
`v1alpha1`       the service's own protocol, `tealagents/v1alpha1`
`openai`         OpenAI's API: Responses, Conversations, Chat Completions
`a2a`            A2A, for agents that call other agents
`ag_ui`          AG-UI, for pages and front ends such as CopilotKit's
`mcp`            the agent as an MCP server
`skagents`       the earlier platform's routes, without the exchange
`applications`   the application of one protocol; `gate`: one whose library brings the routes
`bearer`         who is asking (RFC 6750), and the protected-resource document (RFC 9728)
`local`          calls from this machine alone; `origins`: pages of other origins
`bodies`         request bodies: size, JSON, and what no store could keep
`query`          what stands in the query of a request
`http`           an error's status, JSON responses, times
`sse`            events as frames, and the response that sends them
`settings`       what the config says of the wire
`pages`          the pages that show an OpenAPI document; `console`: the files of the console
===============  ==========================================================================

What protocols are made of. Most modules serve several of them; `unstored`, `sending` and `resent` are used by
OpenAI's alone, `open_calls` and `questions` by MCP's:

===============  ==========================================================================
`folding`        the fold they have in common: what each event means
`requests`       a caller's requests, by id alone; `unstored`: those that are not to be stored
`task_names`     a caller's tasks, by the names that clients give them
`open_calls`     calls that stay open while a request runs
`questions`      what such a call asks its user, and the answer, wherever it arrives
`stretches`      requests cut at their pauses, for protocols in which a pause ends what was asked for
`replay`         the events of a stretch: recorded ones, or made of the history
`sending`        a message, or answers to the calls of a pause; `resent`: histories sent again
`decisions`      the document that decides a pause
`setups`         what a client sets for its own request: tools, format, what has to be called
`transcripts`    the messages of a task, for pages that show a conversation
`items`, `names` the items of messages; ids as clients see them
===============  ==========================================================================
"""
