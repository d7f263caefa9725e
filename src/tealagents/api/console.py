"""The console's files, under `…/console/`: pages that use the public API as any other client does.

They need no token, and hold nothing but what every client may know. `config.json` says how to sign in.
"""

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from tealagents.api.exchange import Exchange
from tealagents.api.protocols import Served
from tealagents.domain.models import Json
from tealagents.state.codec import encode_json

__all__ = ["Console", "SignIn"]

#: seconds for which a browser keeps the files under the path of a version without asking again
LASTING_SECONDS = 365 * 24 * 3600

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}

#: Everything is refused but what is named. Markup is made in one place only: by the sanitizer.
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "dompurify",
}


@dataclass(frozen=True)
class SignIn:
    """How users of the console prove who they are."""

    #: `mock` takes a name, `entra` signs in with the authority, `token` takes a bearer token as it is
    kind: str
    #: for `entra`: `authority`, `tenant_id`, `client_id` and `scopes`
    settings: Mapping[str, object] | None = None

    def document(self) -> Json:
        return {"kind": self.kind, **(self.settings or {})}

    @property
    def origins(self) -> tuple[str, ...]:
        """Where else than to the service the page has to talk to."""
        return (str(self.settings["authority"]),) if self.kind == "entra" and self.settings else ()


@dataclass(frozen=True)
class Console:
    """What the console is sent besides what every protocol says of the agent."""

    sign_in: SignIn
    #: messages to begin with, from the skills of the config
    examples: tuple[str, ...] = ()

    def served(self, exchange: Exchange, url: str) -> Served:
        """The console of an agent, at a path that ends in a slash."""
        settings = _File("config.json", encode_json(self._settings(exchange)))
        loaded = _static_files()
        written = loaded.pop("index.html")
        version = _version_of(loaded)
        page = _linked(written, version)
        unversioned = {**loaded, "": page, "index.html": page, "config.json": settings}
        headers = self._headers()
        lasting = {**headers, "cache-control": f"public, max-age={LASTING_SECONDS}, immutable"}
        path = url.rstrip("/")

        async def without_slash(request: Request) -> Response:
            return RedirectResponse(url, status_code=308)

        async def file(request: Request) -> Response:
            asked: str = request.path_params["path"]
            versioned = _VERSIONED.match(asked)
            found = loaded.get(asked[versioned.end() :]) if versioned else unversioned.get(asked)
            if found is None:
                text = f"The console has no file of that name. It begins at {url}."
                return PlainTextResponse(text, status_code=404, headers=headers)
            # a page that another version has sent gets these files, but does not keep them
            kept_long = versioned and versioned[1] == version
            return found.response(request, lasting if kept_long else headers)

        routes = [Route(path, without_slash), Route(url + "{path:path}", file)]
        return Served(app=Starlette(routes=routes), path=path)

    def _settings(self, exchange: Exchange) -> Json:
        return {
            "name": exchange.agent.name,
            "version": exchange.agent.version,
            "description": exchange.settings.description,
            "url": exchange.prefix,
            "sign_in": self.sign_in.document(),
            "examples": self.examples,
        }

    def _headers(self) -> dict[str, str]:
        policy = {**_POLICY, "connect-src": " ".join(("'self'", *self.sign_in.origins))}
        return {
            "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "permissions-policy": "camera=(), geolocation=(), microphone=()",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY",
            "cache-control": "no-cache",
            "vary": "accept-encoding",
        }


#: gzip, unless its weight is none (RFC 9110, section 12.5.3)
_TAKES_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", re.IGNORECASE)


class _File:
    """One file in memory, as it is and compressed."""

    def __init__(self, name: str, content: bytes) -> None:
        self.content = content
        self.media_type = _MEDIA_TYPES.get(PurePosixPath(name).suffix, "text/plain; charset=utf-8")
        self.tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.content, mtime=0)

    def response(self, request: Request, headers: Mapping[str, str]) -> Response:
        common = {**headers, "etag": f"W/{self.tag}"}  # a weak one: it is that of both encodings
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=common)
        if _TAKES_GZIP.search(request.headers.get("accept-encoding", "")):
            packed = {**common, "content-encoding": "gzip"}
            return Response(self.compressed, headers=packed, media_type=self.media_type)
        return Response(self.content, headers=common, media_type=self.media_type)


#: the path of a version, in front of what a page loads
_VERSIONED = re.compile(r"([0-9a-f]{16})/")
#: what a page loads by itself; modules name each other by relative paths
_LINKS = re.compile(r' (src|href)="(?=[a-z])')


def _version_of(files: Mapping[str, _File]) -> str:
    """Changes with any file."""
    tags = "".join(f"{name}{files[name].tag}" for name in sorted(files))
    return hashlib.sha256(tags.encode()).hexdigest()[:16]


def _linked(page: _File, version: str) -> _File:
    """The page, whose links lead to the files of a version."""
    return _File("index.html", _LINKS.sub(rf' \1="{version}/', page.content.decode()).encode())


def _static_files() -> dict[str, _File]:
    """All files of the package's folder, by their paths; nothing else can be asked for."""
    return {name: _File(name, entry.read_bytes()) for name, entry in _walk(files("tealagents") / "console")}


def _walk(folder: Traversable, before: str = "") -> list[tuple[str, Traversable]]:
    found = []
    for entry in folder.iterdir():
        name = before + entry.name
        found += _walk(entry, f"{name}/") if entry.is_dir() else [(name, entry)]
    return found
