"""Finds the agent at an address."""

import getpass
import re
from urllib.parse import urlsplit

import httpx

from tealagents.client.errors import problem_from_body
from tealagents.client.wire import DIRECT

DEFAULT_URL = "http://127.0.0.1:8000"
#: seconds that a service gets to answer
ANSWER_SECONDS = 5.0
#: OpenSSL's errors for an answer that is not TLS; they depend on its version
NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


class NoAgent(Exception):
    """There is no agent at an address. The text says what to do."""


class NotAUrl(NoAgent):
    """The address does not begin with http:// or https://."""


def find_agent(url: str) -> str:
    """The URL of the agent at `url`: that of a service's only agent, or `url` itself.

    Raises:
        NoAgent: nothing answers there or it refuses, it is not an agent, there are several, or `url` has a
            query.
        NotAUrl: `url` does not begin with http:// or https://.
    """
    root, place = url.rstrip("/"), _shown(url)
    if re.search(r"[?#]", url):
        raise NoAgent(f"The address must be without a query and a fragment: write {place}.")
    try:
        with httpx.Client(mounts=DIRECT, timeout=ANSWER_SECONDS) as http:
            response = http.get(root + "/", headers={"Accept": "application/json"})
    except httpx.UnsupportedProtocol as error:
        raise NotAUrl(
            f"{place} is not a URL; it must begin with http:// or https://, such as {DEFAULT_URL}."
        ) from error
    except ImportError as error:  # a proxy in the environment needs a package that is not installed
        raise NoAgent(f"{place} cannot be called: {error} Or set NO_PROXY for its host.") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        if any(each in str(error) for each in NOT_TLS):
            plain = place.replace("https:", "http:", 1)
            raise NoAgent(f"{place} answers in plain http: write {plain}.") from error
        why = (
            "" if "@" in url and isinstance(error, httpx.InvalidURL) else f" ({error})"
        )  # it may quote a part
        raise NoAgent(f"Nothing answers at {place}{why}. Start one with `tealagents serve`.") from error
    agents = [agent["url"] for agent in _agents(response)]
    if len(agents) > 1:
        choices = "\n".join(f"  tealagents chat {_shown(joined(root, agent))}" for agent in agents)
        raise NoAgent(f"There are several agents at {place}:\n{choices}")
    if agents:
        return joined(root, agents[0])
    is_page = response.is_success and response.headers.get("content-type", "").startswith("text/html")
    if is_page or urlsplit(root).path.count("/") < 2:
        status = response.status_code
        if status in (502, 503, 504):
            raise NoAgent(f"{place} returned HTTP {status}: the service is unavailable. Try again.")
        if response.is_error and status not in (404, 405):
            refusal = problem_from_body(response.content, status=status)
            raise NoAgent(f"{place} answered with an error: {refusal.detail}")
        raise NoAgent(f"There is no agent at {place}. Its address is of the form {DEFAULT_URL}/Name/version.")
    return root


def _shown(url: str) -> str:
    """An address for display: without a user, a password, a query and a fragment, even if it is not a URL."""
    return re.split(r"[?#]", re.sub(r"^(\w*://)?.*@", r"\1", url), maxsplit=1)[0]


def _agents(response: httpx.Response) -> list[dict[str, str]]:
    try:
        listed = response.json()["agents"]
    except (ValueError, KeyError, TypeError):
        return []
    if not response.is_success or not isinstance(listed, list):
        return []
    return [each for each in listed if isinstance(each, dict) and str(each.get("url")).startswith("/")]


def joined(root: str, path: str) -> str:
    """The URL of `path` on the host of `root`.

    It is below the path of `root` if `path` does not include it: a proxy may have added a prefix.
    """
    parts = urlsplit(root)
    below = path if path.startswith(parts.path + "/") else parts.path + path
    return f"{parts.scheme}://{parts.netloc}{below}"


def login_name_for(url: str) -> str:
    """The token for the `mock` provider, which takes it for the user id. Empty unless `url` is loopback."""
    if urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
        return ""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user in the container's password file
        return "me"
