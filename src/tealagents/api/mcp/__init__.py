"""`mcp`: the agent as a server of the Model Context Protocol, for hosts of 2026-07-28 and of 2025-11-25.

===========  ===================================================================
`app`        puts the SDK's server together, behind the gate; sessions
`tools`      the tools `ask` and `decide`: as they are listed, and what was sent
`calls`      carries a call out: progress, pauses, cancellation
`documents`  results of calls, what a human is asked about a pause, and errors
===========  ===================================================================
"""
