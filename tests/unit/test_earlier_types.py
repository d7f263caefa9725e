"""Types of the earlier platform's files: as the model service is asked for them, and as inputs are read."""

import contextlib
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import jsonschema
import pytest
from earlier_agents import IMAGE, PIXEL
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_serializer,
)
from pydantic.alias_generators import to_camel

from tealagents.api.skagents import inputs, openapi
from tealagents.api.skagents.templates import Instructions, TemplateRefused
from tealagents.domain.errors import InvalidRequest
from tealagents.llm.offline.shapes import fitting
from tealagents.skagents import format_of
from tealagents.tools.input_types import INPUTS, EmbeddedImage, MultiModalItem


class Kind(Enum):
    TEA = "tea"


class Cup(BaseModel):
    default: int = 3
    type: str = Field(description="which")


class Order(BaseModel):
    kind: Kind = Field(Kind.TEA, description="what")
    cups: list[Cup] = []
    properties: Cup | None = None


class Free(BaseModel):
    notes: dict[str, str] = {}


def test_objects_are_closed_and_all_their_keys_required() -> None:
    """So services hold the model to it, whatever the fields are called."""
    wanted = format_of(Order)
    assert (wanted.name, wanted.strict) == ("Order", True)
    schema: dict[str, Any] = wanted.schema
    jsonschema.Draft202012Validator.check_schema(schema)
    cup = schema["$defs"]["Cup"]
    assert (cup["required"], cup["additionalProperties"]) == (["default", "type"], False)
    assert set(cup["properties"]) == {"default", "type"}
    assert schema["required"] == ["kind", "cups", "properties"]
    assert "'default':" not in str({**schema, "$defs": {}})
    order = {"kind": "tea", "cups": [{"default": 1, "type": "x"}], "properties": None}
    jsonschema.validate(order, schema)
    assert Order.model_validate(order).cups[0].default == 1


class Tree(BaseModel):
    name: str
    branches: "list[Tree]" = []
    root: "Tree | None" = None
    seen: datetime
    height: float = Field(ge=2)


def test_a_type_that_holds_its_own_kind_is_an_object() -> None:
    """Services take no reference at the top of a schema, and the OpenAPI document describes the type."""
    wanted = format_of(Tree)
    jsonschema.Draft202012Validator.check_schema(wanted.schema)
    assert (wanted.schema["type"], "$ref" in wanted.schema) == ("object", False)
    document = openapi.document(
        name="A", version="1", prefix="/A/1", description="", input_type=Tree, output_type=Tree
    )
    assert "name" in document["components"]["schemas"]["Tree"]["properties"]


class Written(BaseModel):
    day: date

    @field_serializer("day")
    def _year(self, day: date) -> int:
        return day.year


class Asked(BaseModel):
    written: Written


class Answered(BaseModel):
    written: Written


def test_a_type_that_is_sent_otherwise_than_it_is_written_is_described_twice() -> None:
    """In the document, the one that callers send has the type's name."""
    document = openapi.document(
        name="A", version="1", prefix="/A/1", description="", input_type=Asked, output_type=Answered
    )
    schemas = document["components"]["schemas"]
    days = {
        name: schemas[schemas[name]["properties"]["written"]["$ref"].rpartition("/")[2]]["properties"]["day"]
        for name in ("Asked", "Answered")
    }
    assert {name: day["type"] for name, day in days.items()} == {"Asked": "string", "Answered": "integer"}
    assert schemas["Written"]["properties"]["day"] is days["Asked"]


@pytest.mark.parametrize("kind", [Order, Cup, Tree, Free])
def test_offline_model_answers_by_type(kind: type[BaseModel]) -> None:
    """What the built-in model says fits the type, so that any agent can be tried with it."""
    wanted = format_of(kind)
    value = fitting(wanted.schema, "It rains.")
    jsonschema.validate(value, wanted.schema)
    assert kind.model_validate(value)


class Tags(BaseModel):
    tags: set[str]


class Place(BaseModel):
    at: tuple[float, float]


@pytest.mark.parametrize("kind", [Free, Tags, Place])
def test_what_no_service_holds_a_model_to_is_asked_for_loosely(kind: type[BaseModel]) -> None:
    """Keys of any name, which cannot be closed, sets and tuples: such a type is asked for as it is."""
    wanted = format_of(kind)
    assert wanted.strict is False
    assert wanted.schema == kind.model_json_schema()


class Tea(BaseModel):
    leaf: Literal["tea"]
    minutes: int


class Coffee(BaseModel):
    leaf: Literal["coffee"]


class Drink(BaseModel):
    what: Tea | Coffee = Field(discriminator="leaf")


def test_a_union_with_a_discriminator_is_asked_for_as_one_without() -> None:
    """Services that hold a model to a schema take no `oneOf`."""
    wanted = format_of(Drink)
    assert wanted.strict
    assert "oneOf" not in str(wanted.schema)
    assert "discriminator" not in str(wanted.schema)
    jsonschema.validate({"what": {"leaf": "coffee"}}, wanted.schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"what": {"leaf": "coffee", "minutes": 3}}, wanted.schema)


Inner = TypeVar("Inner")


class Page(BaseModel, Generic[Inner]):
    entries: list[Inner]


def test_the_name_of_a_type_is_one_that_services_take() -> None:
    """A generic class has brackets in its name."""
    assert format_of(Page[int]).name == "Page_int_"


class Loose(BaseModel):
    chat_history: Any = None
    user_context: Any = None
    picture: EmbeddedImage | list[EmbeddedImage] | None = None


_KEYS = st.sampled_from(
    [
        "chat_history",
        "role",
        "content",
        "items",
        "content_type",
        "user_context",
        "session_id",
        "picture",
        "data",
    ]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["user", "assistant", "text", "image", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from([*INPUTS.values(), Loose]), st.dictionaries(_KEYS, _VALUES) | _VALUES)
def test_any_body_is_an_input_or_refused(kind: type[BaseModel], body: Any) -> None:
    """Whatever JSON comes, for whatever type: it is taken, or refused with a field."""
    with contextlib.suppress(InvalidRequest):
        said = inputs.read(kind, body, 2).messages
        assert all(item.content_type in ("text", "image") for each in said for item in each.items)


class Either(BaseModel):
    role: Literal["user", "assistant"]
    content: str | None = None
    items: list[MultiModalItem] | None = None


class Conversation(BaseModel):
    chat_history: list[Either] | None = None


@pytest.mark.parametrize("kind", [Conversation, INPUTS["BaseMultiModalInput"]])
@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": "Hi", "items": None},
        {"role": "user", "items": [{"content": "Hi"}]},
        {"role": "user", "content": "not this", "items": [{"content": "Hi"}]},
    ],
)
def test_messages_with_items_may_have_a_content_instead(kind: type[BaseModel], message: Any) -> None:
    """Orchestrators send items only where there is an image; where both come, the items count."""
    [said] = inputs.read(kind, {"chat_history": [message]}, 2).messages
    assert [item.content for item in said.items] == ["Hi"]


def test_a_message_has_a_content_or_items() -> None:
    """One with neither is refused under the name that the type gives them."""
    with pytest.raises(InvalidRequest, match=r"chat_history\.0\.items: is required"):
        inputs.read(INPUTS["BaseMultiModalInput"], {"chat_history": [{"role": "user"}]}, 2)


def test_images_are_the_users() -> None:
    """Models are sent none as their own, so that one would be lost without a word."""
    items = [{"content": "Look:"}, {"content_type": "image", "content": IMAGE}]
    body = {"chat_history": [{"role": "assistant", "items": items}]}
    with pytest.raises(InvalidRequest, match=r"chat_history\.0\.items\.1: is an image, which only a user"):
        inputs.read(INPUTS["BaseMultiModalInput"], body, 2)


class Album(BaseModel):
    cover: EmbeddedImage
    pages: list[EmbeddedImage] = []


def test_embedded_images_are_items_of_one_message_with_the_text() -> None:
    """A message may have so many items, and the first task's text is one of them."""
    picture = {"format": "png", "data": PIXEL}
    body = {"cover": picture, "pages": [picture]}
    assert len(inputs.read(Album, body, 3).images) == 2
    with pytest.raises(InvalidRequest, match=r"pages: has too many images: at most 1 are accepted in all"):
        inputs.read(Album, body, 2)


class Mood(StrEnum):
    GOOD = "good"


class Size(Enum):
    SMALL = 1

    @property
    def letter(self) -> str:
        return self.name[0]


class Note(BaseModel):
    text: str
    items: list[str] = []
    _secret: str = "hidden"

    @property
    def label(self) -> str:
        return f"<{self.text}>"

    @property
    def written(self) -> date:
        return date(2024, 2, 29)

    @property
    def failing(self) -> str:
        raise RuntimeError("hidden")

    def method(self) -> str:
        return "hidden"


class Diary(BaseModel):
    day: date
    at: datetime | None = None
    lasts: timedelta = timedelta(hours=25)
    number: UUID = UUID(int=10)
    price: Decimal = Decimal("1.50")
    home: AnyUrl = AnyUrl("https://example.com/x")
    mood: Mood = Mood.GOOD
    size: Size = Size.SMALL
    notes: list[Note] = []
    named: dict[str, Note] = {}
    name: str = "label"

    @field_serializer("at")
    def _minutes(self, at: datetime | None) -> str | None:
        return at.isoformat(" ", "minutes") if at else None


DIARY = {
    "day": "2024-05-06",
    "at": "2024-05-07T08:09:10Z",
    "notes": [{"text": "tea", "items": ["hot"]}, {"text": "cup"}],
    "named": {"first": {"text": "one"}},
}


CUP = "{'text': 'cup', 'items': []}"


def _filled(template: str, body: Any) -> str:
    return Instructions(template).render(inputs.read(Diary, body, 2).values)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ day }} {{ at }} {{ price }} {{ mood }}", "2024-05-06 2024-05-07 08:09+00:00 1.50 good"),
        ("{{ size }} {{ notes[1].items }} {{ notes[1]|tojson }}", '1 [] {"text": "cup", "items": []}'),
        ("{{ day.year }}-{{ day.month }}-{{ day.day + 1 }}", "2024-5-7"),
        ("{{ at.year }} {{ at.hour }}:{{ at.minute }} {{ at|upper }}", "2024 8:9 2024-05-07 08:09+00:00"),
        ("{{ lasts.days }} {{ lasts.seconds }} {{ number.hex[-2:] }}", "1 3600 0a"),
        ("{{ mood.name }} {{ mood.value }} {{ mood.upper() }} {{ mood == 'good' }}", "GOOD good GOOD True"),
        ("{{ size.name }} {{ size.value }} {{ size + 1 }} {{ size.letter }}", "SMALL 1 2 S"),
        ("{% for note in notes %}{{ note.label }}{{ note.written.day }}{% endfor %}", "<tea>29<cup>29"),
        ("{% for item in notes[0].items %}{{ item }}{% endfor %}", "hot"),
        (
            "{{ named.first.label }} {{ named.first['text'] }} {{ notes[1] }}",
            "<one> one {'text': 'cup', 'items': []}",
        ),
        ("{{ day['_of'] }}{{ notes|join(attribute='_of') }}", ""),
        ("{{ notes|join(',', attribute='text') }} {{ notes|sort(attribute='text')|length }}", "tea,cup 2"),
        ("{{ [day]|map(attribute='year')|first }} {{ day['year'] }}", "2024 2024"),
        ("{{ day.missing }}{{ notes[0].missing }}{{ notes[0]._secret }}{{ name.missing }}", ""),
    ],
)
def test_what_templates_reach_of_typed_values(template: str, text: str) -> None:
    """They are written as JSON has them, and have the parts and the properties that Python gives them."""
    assert _filled(template, DIARY) == text


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ home.host }}", "host of AnyUrl cannot be read in templates"),
        ("{{ day.strftime }}", "strftime of date cannot be read in templates"),
        ("{{ notes[0].method }}", "method of Note cannot be read in templates"),
        ("{{ notes[0].failing }}", "failing of Note raised RuntimeError"),
        ("{{ notes[0][name] }}", "label of Note cannot be read in templates"),
        ("{{ notes|map(attribute='label')|list }}", "label of Note cannot be read in templates"),
        ("{{ price * 2 }}", "numbers only"),
    ],
)
def test_what_templates_do_not_reach_is_said(template: str, why: str) -> None:
    """What Python has and templates do not is an error, not an empty text; no name that is sent runs code."""
    with pytest.raises(TemplateRefused, match=why) as refused:
        _filled(template, DIARY)
    assert "hidden" not in str(refused.value)


class Point(NamedTuple):
    x: int
    count: Note | None = None  # type: ignore[assignment]  # a list has a method of this name

    @property
    def label(self) -> str:
        return f"at {self.x}"


class Notes(RootModel[list[Note]]):
    @property
    def first(self) -> Note:
        return self.root[0]


class NotesByName(RootModel[dict[str, Note]]):
    pass


class Day(RootModel[date]):
    pass


class Map(BaseModel):
    point: Point
    points: list[Point] = []
    pair: tuple[Note, int]
    notes: Notes
    named: NotesByName
    day: Day


_NOTE = {"text": "tea"}
MAP = {
    "point": [7, _NOTE],
    "points": [{"x": 8}],
    "pair": [_NOTE, 2],
    "notes": [_NOTE, {"text": "cup"}],
    "named": {"first": _NOTE},
    "day": "2024-05-06",
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ point.x + 1 }} {{ point['x'] }} {{ point[0] }} {{ point.label }}", "8 7 7 at 7"),
        ("{{ point.count.label }} {{ points[0].x }} {{ points[0].count }}", "<tea> 8 None"),
        (
            "{{ points|map(attribute='x')|first }} {{ points }} {{ points|tojson }}",
            "8 [[8, None]] [[8, null]]",
        ),
        (
            "{{ pair[0].label }} {{ pair|length }} {% for each in pair %}{{ loop.index }}{% endfor %}",
            "<tea> 2 12",
        ),
        ("{{ notes[1].label }} {{ notes.root[1].label }} {{ notes.root|length }}", "<cup> <cup> 2"),
        ("{{ notes.first.label }} {{ notes|join(',', attribute='text') }}", "<tea> tea,cup"),
        ("{{ named.first.label }} {{ named.root.first.label }}", "<tea> <tea>"),
        ("{{ day }} {{ day.root }} {{ day.root.year }}", "2024-05-06 2024-05-06 2024"),
        ("{{ point.missing }}{{ pair.missing }}{{ notes.missing }}{{ point._fields }}", ""),
    ],
)
def test_named_tuples_and_root_models_have_their_fields(template: str, text: str) -> None:
    """A template reads what Python would, also where the JSON is a list without names."""
    assert Instructions(template).render(inputs.read(Map, MAP, 2).values) == text


class Counted(RootModel[dict[str, int]]):
    @model_serializer(mode="wrap")
    def written(self, write: SerializerFunctionWrapHandler) -> Any:
        return {**write(self), "total": sum(self.root.values())}


class Sorted(RootModel[dict[str, Note]]):
    @model_serializer(mode="wrap")
    def written(self, write: SerializerFunctionWrapHandler) -> Any:
        return dict(sorted(write(self).items()))


class Rewritten(BaseModel):
    counted: Counted
    sorted: Sorted


def test_a_root_that_a_serializer_writes_otherwise_is_its_json() -> None:
    """An item by its place would be another one."""
    given = {"counted": {"a": 1}, "sorted": {"b": {"text": "B"}, "a": {"text": "A"}}}
    template = "{{ counted.root.total }} {{ sorted.a.text }}{{ sorted.a.label }}"
    assert Instructions(template).render(inputs.read(Rewritten, given, 2).values) == "1 A"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ notes.model_dump }}", "model_dump of Notes cannot be read in templates"),
        ("{{ notes['first'] }}", "first of Notes cannot be read in templates"),
        ("{{ points|map(attribute='label')|list }}", "label of Point cannot be read in templates"),
    ],
)
def test_what_a_list_has_beside_its_items_is_said(template: str, why: str) -> None:
    """An attribute of its Python object is an error there, too, not an empty text."""
    with pytest.raises(TemplateRefused, match=why):
        Instructions(template).render(inputs.read(Map, MAP, 2).values)


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, serialize_by_alias=True)
    user_context: dict[str, str] = {}


def test_fields_have_their_own_names_whatever_they_are_sent_as() -> None:
    """A template, and the service, read the fields of a type; its aliases are for those who send it."""
    given = inputs.read(Camel, {"userContext": {"City": "Oslo"}}, 2)
    assert given.values == {"user_context": {"City": "Oslo"}}
    assert given.context is not None


class Named(BaseModel):
    session_id: str = Field("the default", validation_alias="session")


def test_the_session_is_that_of_the_type() -> None:
    """Its default and its alias count; without such a field, what was sent does."""
    assert inputs.read(Named, {}, 2).session_id == "the default"
    assert inputs.read(Named, {"session": "mine"}, 2).session_id == "mine"
    assert inputs.read(Diary, {**DIARY, "session_id": "sent"}, 2).session_id == "sent"
