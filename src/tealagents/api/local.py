"""Requests that must come from this machine: where no one checks who is asking, no browser is led here.

A web page can make a browser ask any address under the page's own name (DNS rebinding), and a proxy passes on
what others ask. So where authentication is off because nothing was chosen, a request comes in at a loopback
address, names a loopback host, and bears no mark of a proxy. (A proxy on this machine that leaves none, and
calls the service by a loopback name, looks like any other client.)
"""

from starlette.types import Receive, Scope, Send

from tealagents.api.http import problem_document, problem_response
from tealagents.outbound.addresses import host_of, is_loopback_host

#: what proxies and content delivery networks add to a request
_PASSED_ON = frozenset(
    {
        *(b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"),
        *(b"x-forwarded-port", b"x-forwarded-ssl", b"x-forwarded-scheme", b"x-forwarded-server"),
        *(b"x-forwarded-prefix", b"x-original-forwarded-for", b"x-original-host", b"x-real-ip"),
        *(b"x-client-ip", b"x-cluster-client-ip", b"x-envoy-external-address"),
        *(b"true-client-ip", b"cf-connecting-ip"),
    }
)


def refusal(scope: Scope) -> str | None:
    """Why this request is not answered; None where it is."""
    address, port = scope.get("server") or ("", None)
    if port is not None and not is_loopback_host(address):  # no client chooses where its connection comes in
        return "The service was called at an address that is not loopback"
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    hosts = [value for name, value in headers if name == b"host"]
    host = hosts[0] if len(hosts) == 1 else b""
    if not host.isascii() or not is_loopback_host(host_of(f"//{host.decode('ascii')}")):
        return "Host: must be a loopback address or localhost"
    if passed_on := sorted(name.decode("ascii") for name, _ in headers if name in _PASSED_ON):
        return f"{passed_on[0]}: requests that a proxy passes on are not answered"
    return None


async def refuse(reason: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the reason, and what to do."""
    detail = f"{reason}, because authentication is off and was not chosen. Set TA_AUTH on the service."
    document = problem_document("invalid_request", "The request is not valid", detail, 400)
    await problem_response(document)(scope, receive, send)
