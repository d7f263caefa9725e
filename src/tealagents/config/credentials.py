"""Finding credentials in the file. They belong in the environment."""

import re
from collections.abc import Iterator
from typing import Any

from tealagents.config.environment import is_literal
from tealagents.config.file import Document
from tealagents.config.problems import ConfigProblem, KeyPath
from tealagents.config.urls import names_credential, names_url, secrets_of

#: Keys of services by their shape, wherever they stand.
_SHAPES = re.compile(
    r"""\b sk-[A-Za-z0-9_-]{20,} | \b gh[pousr]_[A-Za-z0-9]{30,} | \b github_pat_\w{30,}
      | \b xox[abpr]-[A-Za-z0-9-]{10,} | \b AKIA[0-9A-Z]{16} \b | \b AIza[\w-]{35}
      | \b (?:Account|SharedAccess)Key=[A-Za-z0-9+/]{20,}
      | \b eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+ | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----""",
    re.VERBOSE,
)
_SCHEME = re.compile(r"(?i)(?:bearer|basic)\s+\S{8,}")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.+)", re.DOTALL)
_HEADER = re.compile(r"(?i)[\w-]*authorization\s*:\s*\S.{7,}")
_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.+))?", re.DOTALL)

#: Settings that the service itself reads, by the last part of the key, and the sections they may stand in.
_OWN_VARIABLES = {
    "persistence": "TA_PERSISTENCE",
    "api_key": "TA_API_KEY",
    "encryption_key": "TA_ENCRYPTION_KEY",
    "audit_key": "TA_AUDIT_KEY",
}
_OWN_SECTIONS = {"spec", "agent", "model"}


def credentials(document: Document) -> Iterator[ConfigProblem]:
    """A problem for each credential in the file. The credential itself is never quoted."""
    previous: Any = None
    for path, value in document.values():
        if _is_credential(path, value, previous):
            yield document.problem(path, _advice(path))
        previous = value if isinstance(path[-1], int) else None


def _is_credential(path: KeyPath, value: Any, previous: Any) -> bool:
    if value is None or isinstance(value, bool):
        return False
    text = str(value)
    found = secrets_of(text, prose=_may_be_prose(path))
    if _SHAPES.search(text) or any(is_literal(secret) for secret in found):
        return True
    return bool(text) and is_literal(text) and _is_meant_as_credential(path, text, previous)


def _may_be_prose(path: KeyPath) -> bool:
    """As a prompt is; no URL, and nothing that a program is given."""
    return not (names_url(_last_name(path)) or {"args", "env", "headers"} & set(path))


def _is_meant_as_credential(path: KeyPath, text: str, previous: Any) -> bool:
    return (
        names_credential(_last_name(path))
        or ("headers" in path and _SCHEME.fullmatch(text) is not None)
        or _is_option_of_credential(text, previous)
        or ("args" in path and _is_passed_on(text))
    )


def _last_name(path: KeyPath) -> str:
    return next((part for part in reversed(path) if isinstance(part, str)), "")


def _is_option_of_credential(text: str, previous: Any) -> bool:
    """`--api-key=abc`, or `abc` after `--api-key`, in the arguments of a command."""
    option = _OPTION.fullmatch(text)
    if option and option["value"]:
        return names_credential(option["name"])
    before = _OPTION.fullmatch(previous) if isinstance(previous, str) else None
    return bool(before and not before["value"] and names_credential(before["name"]) and not option)


def _is_passed_on(text: str) -> bool:
    """`API_KEY=abc` or `Authorization: Bearer abc`, as programs pass to others."""
    given = _ASSIGNMENT.fullmatch(text)
    return bool(given and names_credential(given["name"])) or _HEADER.fullmatch(text) is not None


def _advice(path: KeyPath) -> str:
    key = _last_name(path)
    if (own := _OWN_VARIABLES.get(key)) and _OWN_SECTIONS.issuperset(path[:-1]):
        return f"credentials are never read from the file; set {own} in the environment instead"
    name = re.sub(r"\W+", "_", key).upper().strip("_")
    if not (names_credential(key) and re.fullmatch(r"[A-Z_][A-Z0-9_]*", name)):
        name = f"{name}_SECRET" if re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) else "SECRET"
    return f"credentials are never read from the file; write ${{{name}}} and set {name} in the environment"
