"""A2A 1.0 over JSON-RPC and HTTP+JSON: an A2A task is a request, its context the task it belongs to.

The SDK reads what the gate admits (`app`); `handler` answers; `documents`, `fold`, `errors` word it.
"""
