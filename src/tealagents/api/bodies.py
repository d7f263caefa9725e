"""Request bodies: their size, their JSON, and what no store could keep."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import islice
from typing import Annotated, Any, NoReturn

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    FailFast,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema
from starlette.requests import Request
from starlette.types import Scope
from typing_extensions import TypeVar

from tealagents.domain.errors import Draining, InvalidRequest, Overloaded, TooLarge
from tealagents.domain.json_limits import (
    MOST_EXTREMES,
    MOST_VALUES,
    TOO_SLOW,
    measured,
    places,
    too_many,
    too_slow,
)
from tealagents.domain.models import Json
from tealagents.domain.texts import TOO_DEEP, check_storable
from tealagents.domain.texts import short as short  # the protocols word their refusals with it, too
from tealagents.engine.admission import Admission, ByteBudget, counted

T = TypeVar("T", bound=BaseModel)
N = TypeVar("N")
E = TypeVar("E")
R = TypeVar("R")

_JSON_TYPE = re.compile(r"application/(?:[a-z0-9.+-]+\+)?json", re.IGNORECASE | re.ASCII)

#: a body past the limit is read on so far, unseen, so that the client gets to read the answer
DISCARDED = 64 * 1024 * 1024
#: who stops sending for this long is answered at once
DISCARD_SECONDS = 5.0
#: where the scope of a WebSocket has the server's function that takes `IncomingBody.resize`
MESSAGE_COUNTER = "tealagents.message_counter"
#: values that a body may hold, and one more for so many bytes of an exported task
VALUES, BYTES_PER_VALUE, BYTES_PER_EXTREME = MOST_VALUES, 20, 1000
#: a body with more bytes or JSON values is large: parsing it takes more than a few milliseconds
SMALL_BYTES, SMALL_VALUES = 256 * 1024, 1000
#: bytes of a request that stays in memory when its call has ended, and values of its body, or header lines
KEPT_BYTES, KEPT_VALUES = 16 * 1024, 300
#: mistakes that a refusal is made of, and entries of the longest list or object in which all are looked for:
#: each takes a kilobyte of memory
MISTAKES = 1000
#: the context of a validation that looks for the first mistake of each list or object
_FIRST = "first"


def _is_searched_in_parts(value: Any, info: ValidationInfo) -> bool:
    return info.context == _FIRST or len(value) > MISTAKES


class _FirstElement:
    """Of a list that is longer than `MISTAKES`, only the first wrong element is reported."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        failing_fast = TypeAdapter(Annotated[source, FailFast()])

        def check(value: Any, inner: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
            if isinstance(value, list) and _is_searched_in_parts(value, info):
                return failing_fast.validate_python(value, context=info.context)
            return inner(value)

        return core_schema.with_info_wrap_validator_function(check, handler(source))


def _first_entries(value: Any, inner: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Of an object with more entries than `MISTAKES`, only some of the first wrong ones are reported."""
    if isinstance(value, dict) and _is_searched_in_parts(value, info):
        entries = iter(value.items())
        while part := dict(islice(entries, 10)):
            inner(part)
    return inner(value)


def at_most(entries: int) -> BeforeValidator:
    """Refuses an object with more entries, without a look at them."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > entries:
            numbers = {"max_length": entries, "actual_length": len(value)}
            raise PydanticCustomError("too_long", "has too many entries", numbers)
        return value

    return BeforeValidator(check)


#: a list in a body, and an object whose names and values are of one kind each
Several = Annotated[list[E], _FirstElement()]
Entries = Annotated[dict[N, E], WrapValidator(_first_entries)]


class IncomingBody:
    """What one body takes of a budget while it is received."""

    def __init__(self, budget: ByteBudget, user: str) -> None:
        self._budget = budget
        self._user = user
        self._held = 0
        #: why it could not grow
        self.refused: Overloaded | None = None

    def resize(self, size: int) -> None:
        """So many bytes are in memory now. `Overloaded`."""
        held = counted(size)
        if held > self._held:
            try:
                self._budget.take(self._user, held - self._held)
            except Overloaded as error:
                self.refused = error
                raise
        else:
            self._budget.give_back(self._user, self._held - held)
        self._held = held


async def read(request: Request, limit: int, user: str, admission: Admission, use: Callable[[bytes], R]) -> R:
    """What `use` makes of the body, or `TooLarge` beyond `limit` bytes, or `Overloaded` beyond the budget.

    `Draining` where it is still arriving when the server ends what is left of a process that drains.
    """
    body = IncomingBody(admission.receiving, user)
    try:
        return await in_turn(await _read(request, limit, body.resize), user, admission, use)
    except asyncio.CancelledError:
        if not admission.draining:
            raise
        raise Draining from None
    finally:
        body.resize(0)


async def in_turn(body: bytes, user: str, admission: Admission, use: Callable[[bytes], R]) -> R:
    """What `use` makes of a body. A large one waits for others, so that small ones are not held up."""
    if len(body) <= SMALL_BYTES and places(body) <= SMALL_VALUES:
        return use(body)
    async with admission.large_bodies.turn(user):
        return use(body)


def count_message(scope: Scope, resize: Callable[[int], None]) -> None:
    """Has the server count what it holds of a WebSocket's message, which ASGI shows only once it is whole."""
    if (count_by := scope.get(MESSAGE_COUNTER)) is not None:
        count_by(resize)


async def _read(request: Request, limit: int, resize: Callable[[int], None]) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        if "expect" not in request.headers:  # a client that asks first is not asked for it
            await _discard(request)
        _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("body", "ended before it was complete", malformed=True)
        chunk = message.get("body", b"")
        size += len(chunk)
        more = message.get("more_body", False)
        if size > limit:
            if more:
                await _discard(request)
            _too_large(limit)
        try:
            resize(size)
        except Overloaded:
            chunks.clear()
            resize(0)
            if more:
                await _discard(request)
            raise
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _discard(request: Request) -> None:
    """Takes what is still to come, within bounds: who is still sending would not hear the answer."""
    size = 0
    with contextlib.suppress(TimeoutError):
        while size < DISCARDED:
            async with asyncio.timeout(DISCARD_SECONDS):
                message = await request.receive()
            if message["type"] != "http.request" or not message.get("more_body", False):
                return
            size += len(message.get("body", b""))


def _too_large(limit: int) -> NoReturn:
    raise TooLarge(f"The body is larger than {limit} bytes (`limits.max_body_bytes`). Send less.")


def require_json(request: Request) -> None:
    """Refuses a body that says it is something else than JSON, or packed."""
    given = request.headers.getlist("content-type")
    if len(given) != 1 or not _JSON_TYPE.fullmatch(given[0].partition(";")[0].strip()):
        said = short(", ".join(given))
        if not said:
            raise InvalidRequest("Content-Type", "is missing; it must be application/json")
        raise InvalidRequest("Content-Type", f"must be application/json, not {said}")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise InvalidRequest("Content-Encoding", "is not supported; send the body uncompressed")


def parse(body: bytes, *, around: int = 0) -> Any:
    """The JSON value of a body, free of what cannot be stored; `around`, of a task's document: see
    `check_storable`.
    """
    _check_values(body, VALUES + len(body) // BYTES_PER_VALUE if around else VALUES)
    if too_slow(body, MOST_EXTREMES + len(body) // BYTES_PER_EXTREME if around else MOST_EXTREMES):
        raise InvalidRequest("body", TOO_SLOW)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        _explain(body, error)
    check_storable(value, around)
    return value


def _check_values(body: bytes, most: int) -> None:
    """Refuses a body of too many values before any is made. Commas and brackets in texts are none."""
    if too_many(body, most):
        _too_many(most)


def _too_many(most: int) -> NoReturn:
    raise InvalidRequest("body", f"holds more than {most:,} JSON values; send less, or in several parts")


class Documents:
    """JSON documents within one body: all together have the limits of a body."""

    def __init__(self) -> None:
        self._values = self._extremes = 0

    def parse(self, document: bytes) -> Any:
        """As `parse`, for the next one."""
        values, extremes = measured(document)
        self._values += values
        self._extremes += extremes
        if self._values > VALUES:
            _too_many(VALUES)
        if self._extremes > MOST_EXTREMES:
            raise InvalidRequest("body", TOO_SLOW)
        return parse(document)


def identified(body: bytes) -> Json | None:
    """Which call it is whose body `parse` refuses, as far as that is JSON: its error is for that call."""
    with contextlib.suppress(ValueError, RecursionError, InvalidRequest):
        _check_values(body, VALUES)
        given = json.loads(body)  # which reads lone surrogates, too
        if isinstance(given, dict):
            found = {name: given.get(name) for name in ("id", "method")}
            check_storable(found)
            return found
    return None


def _explain(body: bytes, error: Exception) -> NoReturn:
    """Says where a body that could not be read goes wrong."""
    if isinstance(error, RecursionError) or "recursion" in str(error).lower():
        raise InvalidRequest("body", TOO_DEEP) from None
    if isinstance(error, UnicodeDecodeError):
        raise InvalidRequest("body", "is not UTF-8", malformed=True) from None
    if b"\\u" in body:
        with contextlib.suppress(ValueError, RecursionError):
            check_storable(json.loads(body))
    raise InvalidRequest("body", f"is not valid JSON: {error}", malformed=True) from None


def validated(kind: type[T], value: Any, **how: Any) -> T:
    """`value` as a model, or `InvalidRequest` naming the first field that is wrong and all the others.

    `how`: what else `model_validate` is called with.
    """
    _check_object(value)
    for context in (None, _FIRST):
        try:
            return kind.model_validate(value, context=context, **how)
        except ValidationError as error:
            count = error.error_count()
            if count <= MISTAKES:
                raise refusal(error.errors(include_url=False, include_input=False)) from None
    raise InvalidRequest("body", f"has {count:,} mistakes")


def check_count(given: Any, most: int, field: str, where: str = "") -> None:
    """Refuses a list or an object of more entries, without a look at them. `InvalidRequest`."""
    if isinstance(given, list | tuple | dict) and len(given) > most:
        raise InvalidRequest(field, f"has {where}{len(given)} items; at most {most} are accepted")


def check_kept(body: Any, size: int, scope: Scope) -> None:
    """Refuses a request that would hold much memory when its call has ended. `InvalidRequest`.

    `size`: bytes of the body as it came. The headers and the query of the `scope` count, too.
    """
    if size > KEPT_BYTES or too_many(msgspec.json.encode(body), KEPT_VALUES):
        raise InvalidRequest("body", f"may have at most {KEPT_BYTES:,} bytes and {KEPT_VALUES} JSON values")
    lines = scope["headers"]
    around = len(scope["query_string"]) + sum(len(name) + len(value) for name, value in lines)
    if size + around > KEPT_BYTES or len(lines) > KEPT_VALUES:
        most = f"{KEPT_BYTES:,} bytes together with the query and the body, and {KEPT_VALUES} lines"
        raise InvalidRequest("headers", f"may have at most {most}")


def string(of: Json, name: str, where: str) -> str:
    """A text that must be there. `InvalidRequest`."""
    value = of.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}.{name}", "must be a string")
    return value


def flag(of: Json, name: str, where: str) -> bool:
    """True or false, which must be there. `InvalidRequest`."""
    value = of.get(name)
    if not isinstance(value, bool):
        raise InvalidRequest(f"{where}.{name}", "must be true or false")
    return value


def objects(value: Any, field: str, wanted: str = "an array of objects") -> list[Json]:
    """A list of objects. `InvalidRequest`, naming the field and what is `wanted`, for anything else."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidRequest(field, f"must be {wanted}")
    return value


def _check_object(value: Any) -> None:
    if not isinstance(value, dict):
        raise InvalidRequest("body", f"must be a JSON object, not {_kind_of(value)}")


def flat(given: Any, name: str) -> Any:
    """An object together with the object that it holds under a name; anything else as it is."""
    held = given.get(name) if isinstance(given, dict) else None
    return {**held, **given} if isinstance(held, dict) else given


def refuse_unless(value: Any, possible: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuses fields that ask for what this service does not do, by name; `possible` is what they may say."""
    _check_object(value)
    for name, given in value.items():
        if name in possible and given not in possible[name]:
            raise InvalidRequest(name, "is not supported by this service")


@contextlib.asynccontextmanager
async def fields_as(**names: str) -> AsyncIterator[None]:
    """Reports what is wrong with a field, or within it, by the name it has in the protocol that answers.

    A `*` in both names stands for the same index.
    """
    try:
        yield
    except InvalidRequest as error:
        field, parts = error.field, error.field.split(".")
        for name, sent in names.items():
            wanted = name.split(".")
            pairs = list(zip(wanted, parts, strict=False))
            same = all(one == part or (one == "*" and part.isdecimal()) for one, part in pairs)
            if same and len(pairs) == len(wanted):
                index = next((part for one, part in pairs if one == "*"), "")
                field = ".".join([sent.replace("*", index), *parts[len(wanted) :]])
                break
        raise InvalidRequest(field, error.reason, malformed=error.malformed, **error.ids) from None


def refusal(errors: list[ErrorDetails]) -> InvalidRequest:
    """Pydantic's errors as one refusal."""
    first, *others = errors
    reason = _WORDS.get(first["type"]) or _counted(first) or _lowered(first["msg"])
    if others:
        listed = ", ".join(map(_field, others[:5]))
        reason += f" (and {len(others)} more: {listed}{', …' if len(others) > 5 else ''})"
    return InvalidRequest(_field(first), reason)


#: pydantic's words that read badly behind a field's name
_WORDS = {
    "missing": "is required",
    "extra_forbidden": "is not a field of this document",
    "dict_type": "must be an object",
    "list_type": "must be an array",
    "model_type": "must be an object",
    "string_type": "must be a string",
}


def _counted(error: ErrorDetails) -> str | None:
    """How many there must be of what came in another number."""
    given = error.get("ctx", {})
    if error["type"] == "too_short":
        return f"needs at least {given['min_length']}, and has {given['actual_length']}"
    if error["type"] == "too_long":
        return f"may have at most {given['max_length']}, and has {given['actual_length'] or 'more'}"
    return None


def _field(error: ErrorDetails) -> str:
    return short(".".join(map(str, error["loc"]))) or "body"


def _lowered(text: str) -> str:
    text = text.removeprefix("Value error, ")
    wanted = text.removeprefix("Input should ")
    return f"must {wanted}" if wanted != text else text[:1].lower() + text[1:]


def _kind_of(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
