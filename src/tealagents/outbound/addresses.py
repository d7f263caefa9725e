"""Addresses: whether they are loopback or public, and which proxy they are reached through."""

import asyncio
import re
import socket
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

Address = IPv4Address | IPv6Address

#: a host name: its last label begins with a letter; resolvers take 127.1, 2130706433 and 0x7f000001 for
#: addresses
_NAME = re.compile(r"(?:[a-z0-9._-]*\.)?[a-z][a-z0-9-]*")
#: gateways between IPv6 and IPv4 (NAT64): the prefix known everywhere (RFC 6052), and one for use within
#: networks (RFC 8215); prefixes of an operator's own cannot be told from other addresses
_NAT64, _LOCAL_NAT64 = IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48")


def host_of(url: str) -> str:
    """The host that a URL names; empty if it names none or is malformed."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port, by default that of the scheme. `ValueError` for a malformed URL."""
    parts = urlsplit(url)
    implied = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", parts.port or implied


def page_origin(url: str) -> str:
    """The origin of a URL as browsers send it: in lower case, without the port that the scheme implies."""
    scheme, _, rest = url.lower().partition("://")
    implied = {"http": ":80", "https": ":443"}.get(scheme, "")
    return f"{scheme}://{rest.partition('/')[0].removesuffix(implied)}"


def same_origin(one: str, other: str) -> bool:
    """Whether two URLs have the same origin; False if one of them is malformed."""
    try:
        return _origin(one) == _origin(other)
    except ValueError:
        return False


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine."""
    return is_loopback_host(host_of(url))


def is_loopback_host(host: str) -> bool:
    """Whether the host is `localhost` or a loopback address. Other names do not count, even
    `127.0.0.1.example`."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def shown(place: str) -> str:
    """A path or URL for display: without the parts of a URL that may be secret (user, query and fragment)."""
    if not is_http_url(place):
        return place
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


async def public_address(url: str) -> str | None:
    """The host to connect to for the URL if all addresses of its host are public; else None.

    It is an address, not the name, since the name could resolve to another address the next time. Behind a
    proxy, which resolves names itself, it is the name: there only an address in the URL can be checked, and
    one in an unusual notation is refused.
    """
    host = host_of(url)
    address = _address(host)
    if address is not None:
        return host if _is_public(address) else None
    if proxy_for(url) is not None:
        return host if _is_name(host) else None
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    texts = [str(entry[4][0]).partition("%")[0] for entry in found]
    if not all((one := _address(text)) is not None and _is_public(one) for text in texts):
        return None
    return texts[0] if texts else None


def _is_name(host: str) -> bool:
    """Whether a host is a name, and not `localhost` or below it (RFC 6761, section 6.3)."""
    try:
        name = host.encode("idna").decode().lower().rstrip(".")
    except UnicodeError:
        return False
    return bool(_NAME.fullmatch(name)) and name.rpartition(".")[2] != "localhost"


def _is_public(address: Address) -> bool:
    """Whether an address is public, and so is the IPv4 address that it may be translated to."""
    inner = address.sixtofour if isinstance(address, IPv6Address) else None
    if inner is not None:  # versions of Python differ in whether 6to4 is global
        return _is_public(inner)
    if not address.is_global or address.is_multicast:
        return False
    if isinstance(address, IPv4Address):
        return True
    if address in _NAT64 or int(address) < 2**32:  # the second: IPv4-compatible (RFC 4291, 2.5.5.1)
        inner = IPv4Address(int(address) % 2**32)
    return not (address.is_site_local or address in _LOCAL_NAT64) and (inner is None or _is_public(inner))


def _address(host: str) -> Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _holds(address: Address, network: str) -> bool:
    """Whether the address is in a network in CIDR notation, which urllib does not support in `NO_PROXY`."""
    try:
        return address in ip_network(network, strict=False)
    except ValueError:
        return False


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for the URL (`HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, …).

    None if there is none, and always for loopback. `OSError` for a proxy that is not an HTTP proxy.
    """
    scheme, host = urlsplit(url).scheme, host_of(url)
    proxies = getproxies()
    exempt = [name.strip().lower() for name in proxies.get("no", "").split(",")]
    below = tuple(name[1:] for name in exempt if name.startswith("*."))  # which urllib takes for a name
    place = urlsplit(url).netloc.rpartition("@")[2]  # an exemption may have a port, or brackets
    if is_loopback_host(host) or proxy_bypass(host) or proxy_bypass(place) or host.endswith(below):
        return None
    address = _address(host)
    if "*" in exempt or (address is not None and any(map(partial(_holds, address), exempt))):
        return None
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy:
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in {"http", "https"}:
        raise OSError(
            f"The proxy for {scheme}:// URLs must be an HTTP proxy, not {urlsplit(proxy).scheme}. Set "
            f"{scheme.upper()}_PROXY to one, or name {host} in NO_PROXY."
        )
    if not _has_place(proxy):  # not quoted: the reason is mostly a password
        raise OSError(
            f"The proxy for {scheme}:// URLs must be of the form http://user:password@host:port, with %2F"
            " for a slash in the password, and so on. "
            f"Correct {scheme.upper()}_PROXY, or name {host} in NO_PROXY."
        )
    return proxy


def _has_place(proxy: str) -> bool:
    """Whether a proxy's URL has a host, and no part of its credentials behind it."""
    try:
        parts = urlsplit(proxy)
        return bool(parts.hostname) and parts.port != 0 and "@" not in proxy.rpartition(parts.netloc)[2]
    except ValueError:
        return False
