"""What is wrong with options and files, and what to do. No value is quoted: it may be secret."""

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tealagents.options import kind_of

_WANTED = {
    "string_type": "must be text",
    "string_unicode": "is not valid text",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping (keys and values)",
    "model_type": "must be a mapping (keys and values)",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "greater_than": "must be greater than {gt:.15g}",
    "greater_than_equal": "must be at least {ge:.15g}",
    "less_than": "must be less than {lt:.15g}",
    "less_than_equal": "must be at most {le:.15g}",
}
_TYPES = {"string_type", "tuple_type", "list_type", "dict_type", "model_type"}


class Misconfigured(ValueError):
    """What a config names cannot be used as it is set. The text says what to do, and holds no secret."""


def explain(
    error: ErrorDetails,
    model: type[BaseModel],
    around: Mapping[str, Any] | None = None,
    taken: Container[str] = (),
) -> str:
    """One sentence for one error of `model`; `around` is the mapping in which a key is missing, and `taken`
    are keys that cannot be given."""
    kind, context = error["type"], error.get("ctx", {})
    match kind:
        case "missing":
            return "is missing" + (
                _misplaced(str(error["loc"][-1]), model_at(model, error["loc"]), around or {})
                or _misspelt(str(error["loc"][-1]), model_at(model, error["loc"][:-1]), around)
            )
        case "extra_forbidden":
            return _unknown_key(str(error["loc"][-1]), model_at(model, error["loc"][:-1]), taken)
        case "literal_error":
            return _not_one_of(error["input"], context["expected"])
        case "value_error":
            return str(context["error"])
    wanted = _WANTED.get(kind)
    if wanted is None:
        return error["msg"]
    if kind not in _TYPES:
        return wanted.format(**context)
    if kind == "string_type" and isinstance(error["input"], str):  # with half a character in it
        return "is not valid text"
    quotes = (
        "; write it in quotes" if kind == "string_type" and isinstance(error["input"], int | float) else ""
    )
    return f"{wanted}, not {kind_of(error['input'])}{quotes}"


def explained(error: ValidationError, model: type[BaseModel], given: Any, taken: Container[str] = ()) -> str:
    """All that is wrong with what was given, in one line. See `explain`."""
    return "; ".join(
        ": ".join(
            filter(None, (key_text(each["loc"]), explain(each, model, _around(given, each["loc"]), taken)))
        )
        for each in error.errors(include_url=False)
    )


def sentence(text: str) -> str:
    """The text with a mark at its end, which a question has already."""
    return text if text.endswith((".", "?")) else f"{text}."


def key_text(path: Iterable[str | int]) -> str:
    """The path as it is written in messages: spec.agent.mcp_servers[0].url, odd keys in quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[\w$-]+", part) else json.dumps(part)
            text += f".{name}" if text else name
    return text


def printable(text: str) -> str:
    """The text with escapes in place of what could control a terminal or forge a line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def file_reason(error: OSError | ValueError) -> str:
    """Why a file could not be read, without the path, which the message has already."""
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    return str(error)


def _around(given: Any, path: Sequence[str | int]) -> Mapping[str, Any]:
    """The mapping that holds, or lacks, what is at `path`."""
    try:
        for part in path[:-1]:
            given = given[part]
    except (LookupError, TypeError):  # a place that is no part of the file: a member of a union
        return {}
    return given if isinstance(given, Mapping) else {}


def _unknown_key(key: str, model: type[BaseModel] | None, taken: Container[str]) -> str:
    refused: Mapping[str, str] = getattr(model, "refused", {})
    if key in refused:
        return refused[key]
    known = [each for each in keys_of(model) if each not in taken] if model else []
    return "unknown key" + (did_you_mean(key, known) or f"; the keys here are {', '.join(known)}")


def _misplaced(section: str, model: type[BaseModel] | None, around: Mapping[str, Any]) -> str:
    """What to say where required keys of a missing section stand beside it."""
    fields = model.model_fields if model else {}
    if not any(field.is_required() and key_of(name, field) in around for name, field in fields.items()):
        return ""
    keys = [key for name, field in fields.items() if (key := key_of(name, field)) in around]
    return f"; write '{section}:' and indent below it: {', '.join(keys)}"


def _misspelt(key: str, model: type[BaseModel] | None, around: Mapping[str, Any] | None) -> str:
    known = keys_of(model) if model else []
    others = [name for name in around or () if name not in known]
    match = closest(key, others)
    return f"; is '{match}' a misspelling of it?" if match else ""


def _not_one_of(given: Any, expected: str) -> str:
    choices = [choice.strip("'") for choice in expected.replace(" or ", ", ").split(", ")]
    return f"must be {expected}" + (did_you_mean(given, choices) if isinstance(given, str) else "")


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys of a section as they are written in the file."""
    return [key_of(name, field) for name, field in model.model_fields.items()]


def key_of(name: str, field: FieldInfo) -> str:
    return field.alias or name


def model_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """The section that lies at `path` below `model`, if one lies there."""
    annotation: Any = model
    for part in path:
        annotation = _within(_bare(annotation), part)
    annotation = _bare(annotation)
    return annotation if _is_model(annotation) else None


def _within(annotation: Any, part: str | int) -> Any:
    if _is_model(annotation):
        fields: Mapping[str, FieldInfo] = annotation.model_fields
        return next((field.annotation for name, field in fields.items() if key_of(name, field) == part), None)
    if get_origin(annotation) in (tuple, list):
        return get_args(annotation)[0]
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    return None


def _bare(annotation: Any) -> Any:
    """The type without `| None` and what is annotated to it."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        declared = getattr(annotation, "__metadata__", ())
        if adapter := next((each for each in declared if hasattr(each, "model")), None):
            return adapter.model()
        annotation = next(part for part in get_args(annotation) if part is not NoneType)
    return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question to append to a message, or nothing when no known word comes close."""
    match = closest(word, known)
    return f"; did you mean '{match}'?" if match else ""


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, whatever its case and separators."""
    by_letters = {_letters(name): name for name in known}
    matches = get_close_matches(_letters(word), by_letters, n=1, cutoff=0.75)
    return by_letters[matches[0]] if matches else None


def _letters(word: str) -> str:
    return re.sub(r"[-_\s]", "", word).lower()
