"""Outbound calls: the one way in which adapters call servers and read their answers.

=============  =======================================================================================
`addresses`    which addresses are this machine's, which are public, and where a proxy is in between
`reading`      HTTP clients with limits on the bytes, headers and time of answers
=============  =======================================================================================

For the adapters (`llm`, `auth`, `tools`), which never import each other. Imports nothing of the project but
the domain. The model client is on the hot path and uses `aiohttp` directly; it checks each answer with
`reading.refusal`, too.
"""
