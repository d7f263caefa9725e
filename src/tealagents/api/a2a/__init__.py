"""A2A 1.0 over JSON-RPC and HTTP+JSON: an A2A task is a request, its context the task it belongs to.

The SDK's dispatchers read the calls that the gate admits (`app`); `handler` answers them over the exchange.
`inputs` reads messages; `documents`, `fold`, `errors` and `card` are what is said.
"""
