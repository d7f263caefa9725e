"""What comes from outside: the one way in which servers are called and their answers are read.

=============  =======================================================================================
`addresses`    which addresses are this machine's, which are public, and where a proxy is in between
`reading`      HTTP clients whose answers are bounded in bytes, headers and time, and never unfolded
=============  =======================================================================================

For the adapters (`llm`, `auth`, `tools`), which never import each other. Imports nothing of the project but
the domain. The model client drives `aiohttp` itself, on the hot path; it asks `reading.refusal` the same
question of each answer.
"""
