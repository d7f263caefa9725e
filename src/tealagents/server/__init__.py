"""The server under the application: uvicorn, with limits of its own on each connection.

===========  ===============================================================
`http`       HTTP/1.1: the size of a request's head, and clients that stall
`websocket`  WebSockets: the size of a message, and clients that do not read
===========  ===============================================================
"""

from typing import Any

from tealagents.limits import Limits
from tealagents.server.http import BoundedProtocol
from tealagents.server.websocket import CountingProtocol

__all__ = ["BoundedProtocol", "CountingProtocol", "server_options"]


def server_options(limits: Limits) -> dict[str, Any]:
    """The arguments of uvicorn's `Config` for a service with these limits."""
    return {
        "access_log": False,
        "log_config": None,
        "lifespan": "on",
        "interface": "asgi3",
        "http": BoundedProtocol,
        "ws": CountingProtocol,
        "ws_max_size": limits.max_body_bytes,
        "ws_per_message_deflate": False,  # a kilobyte could unpack to a megabyte
        "timeout_keep_alive": limits.idle_connection_seconds,
    }
