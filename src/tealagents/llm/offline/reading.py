"""Reads values of request bodies. A value of the wrong type is refused, with an error that names it."""

from typing import Any, TypeVar

from tealagents.llm.offline.errors import invalid

T = TypeVar("T")

_NAMES: dict[type, str] = {str: "a string", list: "an array", dict: "an object", int: "an integer"}


def optional(value: Any, kind: type[T], param: str) -> T | None:
    """The value, or None. Raises `ServiceError` if it has another type."""
    if value is None:
        return None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise invalid(
            f"Invalid type for '{param}': expected {_NAMES[kind]}, but got {_described(value)} instead.",
            param,
            "invalid_type",
        )
    return value


def required(value: Any, kind: type[T], param: str) -> T:
    """The value. Raises `ServiceError` if it is missing or has another type."""
    found = optional(value, kind, param)
    if found is None:
        raise missing(param)
    return found


def missing(param: str) -> Exception:
    return invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def text_or_parts(value: Any, param: str) -> str | list[dict[str, Any]]:
    """The content of a message: a text, or a list of parts, which are objects."""
    if isinstance(value, str):
        return value
    parts = required(value, list, param)
    return [required(part, dict, f"{param}[{position}]") for position, part in enumerate(parts)]


def one_of(value: Any, choices: tuple[str, ...], param: str) -> str:
    if value not in choices:
        raise invalid(
            f"Invalid value: {value!r}. Supported values are: {', '.join(map(repr, choices))}.",
            param,
            "invalid_value",
        )
    return str(value)


def _described(value: Any) -> str:
    return "a boolean" if isinstance(value, bool) else _NAMES.get(type(value), "a number")
