"""`mcp`: the agent as a server of the Model Context Protocol, for hosts of 2026-07-28 and of 2025-11-25.

===========  ===================================================================
`app`        puts the SDK's server together, behind the gate
`sessions`   which process has the session of an older host
`tools`      the tools `ask` and `decide`: as they are listed, and what was sent
`calls`      carries a call out: progress, pauses, cancellation
`pauses`     what a human is asked about a pause, and what the answers decide
`documents`  results of calls, and errors
===========  ===================================================================

A conversation is a task and shows its id; a call is a request of it.
"""
