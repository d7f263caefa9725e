"""HTTP: what is said on the wire, and nothing else. Imports the engine and below, no adapter.

=============  ==========================================================================
`v1alpha1`     AppV3: the routes of `tealagents/v1alpha1` and their documents
`openai`       OpenAI's API: Responses, Conversations, Chat Completions
`ag_ui`        AG-UI, for pages and front ends such as CopilotKit's
`stretches`    requests cut at their pauses, for protocols in which a pause ends what was asked for
`transcripts`  the messages of a task, for pages that show a conversation
`query`        what stands in the query of a request
`bearer`       who is asking (RFC 6750), and the protected-resource document (RFC 9728)
`bodies`       request bodies: size, JSON, and what no store could keep
`sse`          events as frames, and the response that sends them
=============  ==========================================================================
"""
