"""Scripts in YAML, which define the model's answers. docs/offline-model.md explains the keys, with examples.

A script is an ordered list of rules. The first rule whose `when` applies and which is not used up gives the
reply. If there is none, `otherwise` is used, or the built-in answer.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from tealagents.llm.offline.answer import FaultKind, FinishReason
from tealagents.mistakes import did_you_mean, explain, key_text


class ScriptError(ValueError):
    """An invalid script. The text has the place and the reason of each mistake."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _pattern(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return re.compile(value, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error


def _short_for(key: str) -> BeforeValidator:
    """Accepts a string in place of a mapping with only this key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def _as_sent(value: Any) -> Any:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _header_value(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


HeaderValue = Annotated[str, BeforeValidator(_header_value)]
Pattern = Annotated[re.Pattern[str], BeforeValidator(_pattern)]
Milliseconds = Annotated[float, Field(ge=0, strict=False)]
Count = Annotated[int, Field(ge=0)]
Ordinal = Annotated[int, Field(ge=1)]


class When(_Part):
    """The conditions of a rule, all of which must hold. Texts are searched anywhere, in any case."""

    #: In the last user message; never while the model has to continue from tool results.
    text: str | None = None
    regex: Pattern | None = None
    #: In the system prompt: all system and developer messages, and the `instructions`.
    system: str | None = None
    system_regex: Pattern | None = None
    #: Whether the model has to continue from tool results.
    tool_result: bool | None = None
    #: The name of a tool with such a result.
    result_of: str | None = None
    #: In such a result.
    result_text: str | None = None
    #: The number of the model call since the script was set, from 1.
    call: Ordinal | None = None
    #: The number of the user message in the conversation, from 1.
    turn: Ordinal | None = None
    #: The model's exact name.
    model: str | None = None

    @property
    def about_results(self) -> bool | None:
        """True: only if the model has to continue from tool results; False: only if not; None: either."""
        if self.tool_result is not None:
            return self.tool_result
        if self.result_of is not None or self.result_text is not None:
            return True
        return False if self.text is not None or self.regex is not None else None


class ScriptedPiece(_Part):
    text: str
    delay_ms: Milliseconds | None = None


class ScriptedCall(_Part):
    name: str
    #: A mapping, or text that is sent as it is, valid or not.
    arguments: Annotated[str, BeforeValidator(_as_sent)] = "{}"
    id: str | None = None


class ScriptedUsage(_Part):
    prompt_tokens: Count
    completion_tokens: Count


class ScriptedError(_Part):
    """An HTTP error in place of an answer."""

    status: Annotated[int, Field(ge=200, le=599)] = 500
    message: str | None = None
    type: str | None = None
    code: str | None = None
    headers: dict[str, HeaderValue] = Field(default_factory=dict)
    #: In place of the default error object: a mapping, which is sent as JSON, or text.
    body: dict[str, Any] | str | None = None
    content_type: str | None = None


class ScriptedFault(_Part):
    kind: FaultKind
    after_pieces: Count | None = None
    after_bytes: Count | None = None
    message: str | None = None
    code: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.after_pieces is not None and self.after_bytes is not None:
            raise ValueError("after_pieces and after_bytes exclude each other")
        if self.kind != "error" and (self.message is not None or self.code is not None):
            raise ValueError(f"message and code belong to the kind 'error', not to {self.kind!r}")
        if self.kind == "error" and self.after_bytes is not None:
            raise ValueError("an error comes between pieces: use after_pieces")
        return self


class Dribble(_Part):
    bytes: Ordinal = 1
    delay_ms: Milliseconds = 0.0


class ScriptedReply(_Part):
    """A reply. Without text, pieces, tool calls, refusal and error, it is the built-in answer, with the
    delays and faults of this reply."""

    text: str | None = None
    #: Exactly these pieces, in place of `text`.
    pieces: list[Annotated[ScriptedPiece, _short_for("text")]] | None = None
    tool_calls: list[ScriptedCall] = Field(default_factory=list)
    refusal: str | None = None
    finish_reason: FinishReason | None = None
    #: In place of the counted usage.
    usage: ScriptedUsage | None = None
    report_usage: bool = True
    headers_delay_ms: Milliseconds = 0.0
    first_delay_ms: Milliseconds = 0.0
    piece_delay_ms: Milliseconds = 0.0
    dribble: Dribble | None = None
    fault: Annotated[ScriptedFault | None, _short_for("kind")] = None
    error: ScriptedError | None = None

    @property
    def is_built_in(self) -> bool:
        given = (self.text, self.pieces, self.refusal, self.error)
        return not self.tool_calls and all(part is None for part in given)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.text is not None and self.pieces is not None:
            raise ValueError("text and pieces exclude each other")
        if self.error is not None and not self.model_fields_set <= {"error", "headers_delay_ms"}:
            raise ValueError("an error is the whole reply: only headers_delay_ms goes with it")
        if self.refusal is not None and (self.text or self.pieces or self.tool_calls):
            raise ValueError("a refusal excludes text, pieces and tool_calls")
        return self


ReplyField = Annotated[ScriptedReply, _short_for("text")]


class Rule(_Part):
    when: Annotated[When, _short_for("text")] = Field(default_factory=When)
    reply: ReplyField
    #: How often the rule can be used; None: without limit.
    times: Ordinal | None = None


class Script(_Part):
    description: str = ""
    rules: list[Rule] = Field(default_factory=list)
    #: The reply if no rule applies; None: the built-in answer.
    otherwise: Annotated[ScriptedReply | None, _short_for("text")] = None

    @classmethod
    def from_yaml(cls, text_or_path: str | Path) -> "Script":
        """A script from YAML text or from a file. A single line that ends in `.yaml` or `.yml` is a path.

        Raises:
            ScriptError: the script is invalid.
            OSError: the file cannot be read.
        """
        if isinstance(text_or_path, str) and not _names_a_file(text_or_path):
            return cls.from_text(text_or_path)
        path = Path(text_or_path)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ScriptError(f"{path}: is not UTF-8 text") from None
        return _parse(text, str(path))

    @classmethod
    def from_text(cls, text: str) -> "Script":
        """A script from YAML or JSON text. Raises `ScriptError`."""
        return _parse(text, "script")

    @classmethod
    def of(cls, given: "Script | dict[str, Any] | Path | str | None") -> "Script":
        """A script from any accepted form; None is an empty script. Raises as `from_yaml`."""
        match given:
            case None:
                return cls()
            case Script():
                return given
            case dict():
                return _validated(given, "script", None)
            case _:
                return cls.from_yaml(given)


def _names_a_file(text: str) -> bool:
    return "\n" not in text and text.endswith((".yaml", ".yml"))


def _parse(text: str, source: str) -> Script:
    try:
        data = yaml.safe_load(text)
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{source}, line {mark.line + 1}" if mark is not None else source
        raise ScriptError(f"{place}: not YAML: {getattr(error, 'problem', None) or error}") from error
    except (ValueError, OverflowError, RecursionError) as error:  # such as an impossible date, or `!!int x`
        raise ScriptError(f"{source}: not YAML: {type(error).__name__}: {error}") from error
    return _validated({} if data is None else data, source, tree)


def _validated(data: Any, source: str, tree: yaml.Node | None) -> Script:
    try:
        return Script.model_validate(data)
    except ValidationError as error:
        raise ScriptError("\n".join(_complaint(e, source, tree) for e in error.errors())) from error


def _complaint(error: ErrorDetails, source: str, tree: yaml.Node | None) -> str:
    where = error["loc"]
    line = _line(tree, where)
    beginning = f"{source}, line {line}" if line else source
    path = key_text(where)
    if error["type"] == "extra_forbidden":
        key = str(where[-1])
        return f"{beginning}: {path}: there is no such key{did_you_mean(key, _all_keys() - {key})}"
    return ": ".join(filter(None, (beginning, path, explain(error, Script))))


def _all_keys() -> set[str]:
    parts = (Script, Rule, When, ScriptedReply, ScriptedPiece, ScriptedCall, ScriptedUsage, ScriptedError)
    return {key for part in (*parts, ScriptedFault, Dribble) for key in part.model_fields}


def _line(node: yaml.Node | None, where: tuple[int | str, ...]) -> int | None:
    """The line of the deepest existing node on a path."""
    if node is None:
        return None
    for part in where:
        child = _child(node, part)
        if child is None:
            break
        node = child
    return int(node.start_mark.line) + 1


def _child(node: yaml.Node, part: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return node.value[part] if part < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    return None
