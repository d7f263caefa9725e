"""Store URLs: relative paths made absolute, passwords hidden."""

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl

#: also of a store as `module:Class`; with spaces only where prose that begins with a URL rarely has them
_URL = re.compile(
    r"""(?P<start> [A-Za-z][A-Za-z0-9+.-]*:// | [A-Za-z_][\w.]*:[A-Za-z_]\w* (?: :// | (?=\?) ) )
        (?: (?P<user> [^/?#\s]*? ) (?P<password> : (?: [^/?#\s] [^/?#\n]* )? )? @ )?
        (?P<host> [^/?#\s@]* )
        (?P<path> (?: / [^?#\n]* )? )
        (?: \? (?P<query> [^#\n]* ) )?
        (?: \# .* )?""",
    re.VERBOSE,
)
_STORE = re.compile(r"[A-Za-z_][A-Za-z0-9_+.-]*:\S.*")
_CREDENTIAL_WORDS = {
    *("password", "passwd", "passphrase", "pwd", "pass", "secret", "token", "credential", "credentials"),
    *("authorization", "cookie", "apikey", "bearer"),
}
_CREDENTIAL_PAIRS = {
    f"{kind} key"
    for kind in ("api", "access", "private", "secret", "account", "signing", "encryption", "audit")
} | {"subscription key", "master key", "shared key"}
_URL_WORDS = {
    *("url", "urls", "uri", "uris", "dsn", "server", "servers", "endpoint", "host", "address"),
    *(
        "connection",
        "string",
        "link",
        "persistence",
        "store",
        "database",
        "db",
        "jdbc",
        "mongo",
        "broker",
        "proxy",
    ),
}


def names_credential(key: str) -> bool:
    """Whether a value under this key is meant to be secret: api_key, clientSecret, X-Auth-Token."""
    words = _words(key)
    return (
        bool(words)
        and (
            words[-1] in _CREDENTIAL_WORDS
            or words[-1].endswith(("password", "secret"))  # PGPASSWORD
            or " ".join(words[-2:]) in _CREDENTIAL_PAIRS
        )
    )


def names_url(key: str) -> bool:
    """Whether a value under this key is meant to be a URL: base_url, persistence, auth_server."""
    words = _words(key)
    return bool(words) and words[-1] in _URL_WORDS


def _words(key: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", key)]


def secrets_of(url: str, *, prose: bool = False) -> list[str]:
    """The passwords and keys that a URL carries: after the user's name, or as query parameters.

    Where it may be `prose` that begins with a URL, its password has no spaces.
    """
    match = _URL.fullmatch(url)
    if match is None:
        return []
    password = (match["password"] or "").removeprefix(":")
    if prose and re.search(r"\s", password):
        password = ""
    parameters = parse_qsl(match["query"] or "")
    return [secret for secret in (password, *(v for k, v in parameters if names_credential(k))) if secret]


def masked(url: str) -> str:
    """The URL with `***` where its secrets are, to be printed.

    Only the scheme where its password cannot be told apart: it names a user and is not a valid URL, or the
    `@` after the password comes behind a / ? or # that is not percent-encoded.
    """
    match = _URL.fullmatch(url)
    if match is None:
        scheme = re.match(r"[\w.+-]+:(?://)?", url)
        return f"{scheme[0] if scheme else ''}…" if "@" in url else url
    if "@" in url[match.end("host") :] and (match["password"] or ":" in match["host"]):
        return f"{match['start']}…"
    query = "&".join(_masked_parameter(part) for part in (match["query"] or "").split("&"))
    password = match["password"] and ":***"
    user = f"{match['user']}{password or ''}@" if match["user"] or password else ""
    return f"{match['start']}{user}{match['host']}{match['path']}{f'?{query}' if query else ''}"


def _masked_parameter(part: str) -> str:
    name, equals, _ = part.partition("=")
    return f"{name}=***" if equals and names_credential(name) else part


def absolute_store(url: str, base: Path) -> str:
    """The same store, independent of the working directory.

    sqlite:///state.db is relative and sqlite:////var/state.db absolute, as SQLAlchemy has it. For files
    it is as file URLs have it: file:///var/state is absolute; file:state and file://./state are relative.
    Characters of `base` that mean something in a URL are percent-encoded. Raises ValueError.
    """
    if not _STORE.fullmatch(url):
        raise ValueError("must be the URL of a store, such as sqlite:///state.db")
    if url.startswith("sqlite:"):
        return _absolute_sqlite(url, base)
    if url.startswith("file:"):
        return _absolute_file(url, base)
    return url


def _absolute_sqlite(url: str, base: Path) -> str:
    path, question, query = url.removeprefix("sqlite:").partition("?")
    if path in ("", "//", "///", "///:memory:"):
        return url
    if not path.startswith("///"):
        raise ValueError(
            "an SQLite database is sqlite:///relative.db, with three slashes, or sqlite:////absolute.db"
        )
    return f"sqlite:///{_join(base, path[3:])}{question}{query}"


def _absolute_file(url: str, base: Path) -> str:
    path, question, query = url.removeprefix("file:").partition("?")
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        if host not in ("", ".", "..", "localhost"):
            raise ValueError(
                "a directory is file:///absolute or file:relative; after two slashes comes a host"
            )
        path = slash + rest if host in ("", "localhost") else host + slash + rest
    if path.rstrip("/") == "":
        raise ValueError("names no directory; write file:///absolute or file:relative")
    return f"file://{_join(base, path)}{question}{query}"


def _join(base: Path, path: str) -> str:
    prefix = re.sub(r"[%?#]", lambda match: f"%{ord(match[0]):02X}", str(base))
    return os.path.normpath(os.path.join(prefix, path))
