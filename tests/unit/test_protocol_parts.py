"""What protocols share to read what was sent: names, pages of lists, resent histories, parts of messages."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from tealagents.api import items, names, query
from tealagents.api.decisions import CallAnswer
from tealagents.api.resent import AnsweredCall, Entry, Instruction, Made, in_words, taken_apart
from tealagents.api.sending import _set_anew
from tealagents.api.v1alpha1.inputs import ItemIn
from tealagents.domain.errors import InvalidRequest, NotFound, NotOwner
from tealagents.domain.images import image_problem
from tealagents.domain.models import AS_CONFIGURED, Item, RequestSetup
from tealagents.state.new_message import Earlier

UUIDS = st.uuids().map(str)


def asked(text: str) -> Request:
    return Request({"type": "http", "query_string": text.encode(), "headers": []})


def said(role: Any, text: str) -> Earlier:
    return Earlier(role, (Item("text", text),))


@given(UUIDS, st.one_of(st.none(), st.integers(0, 99), st.text("abc_-1", min_size=1)))
def test_a_name_shows_what_it_is_made_of(uuid: str, place: object) -> None:
    """And one of another kind shows nothing."""
    name = names.made("msg", uuid, *([] if place is None else [place]))
    assert names.parsed(name, "res", "msg") == (uuid, "" if place is None else str(place))
    assert names.parsed(name, "res") == (None, "")


@pytest.mark.parametrize("error", [NotFound("gone"), NotOwner("another user's")])
def test_what_is_another_users_is_as_unknown_as_what_is_not_there(error: Exception) -> None:
    """Both are reported by the name that the client has used, and nothing else."""
    with pytest.raises(NotFound, match="no thing with id 'it'"), names.unknown_as("thing", "it"):
        raise error


@given(st.integers(0, 30), st.integers(1, 10), st.sampled_from(["asc", "desc"]))
async def test_pages_make_up_the_list(size: int, limit: int, order: str) -> None:
    """Each begins behind the last of the one before; only the last has nothing behind it."""
    listed, found, after, more = [f"n{n}" for n in range(size)], list[str](), "", True
    while more:
        newest_first = query.backwards([{"id": each} for each in listed])
        page, more = await query.window(asked(f"limit={limit}&order={order}{after}"), newest_first)
        found += [each["id"] for each in page]
        assert not more or len(page) == limit
        after = f"&after={found[-1]}" if found else ""
    assert found == (listed if order == "asc" else listed[::-1])


@pytest.mark.parametrize(("text", "error"), [("order=up", InvalidRequest), ("after=other", NotFound)])
async def test_a_page_that_there_is_not_is_refused(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await query.window(asked(text), query.backwards([{"id": "one"}]))


def test_what_is_new_in_a_history_stands_behind_the_assistants_last_words() -> None:
    """Messages count wherever they stand; the outcome of a call is kept in words."""
    returned = AnsweredCall("c", CallAnswer(output="5"))
    before: list[Entry] = [said("user", "1"), Made("c", "add(2, 3)"), returned, said("assistant", "2")]
    given = taken_apart(
        [Instruction("a"), *before, said("user", "3"), Instruction("b"), said("user", "4")], "input"
    )
    assert given.instructions == "a\n\nb"
    assert [item.content for item in given.items] == ["3", "4"]
    assert in_words(given.before) == [
        said("user", "1"),
        said("assistant", "add(2, 3) returned: 5"),
        said("assistant", "2"),
    ]
    assert taken_apart([*before[:2], returned], "input").answers == [returned]


@pytest.mark.parametrize(
    "new",
    [[], [said("assistant", "1")], [AnsweredCall("c", CallAnswer(action="approve")), said("user", "1")]],
)
def test_a_history_ends_in_a_message_or_in_answers(new: list[Any]) -> None:
    """Neither and both are refused, by the name of the field."""
    with pytest.raises(InvalidRequest) as refused:
        taken_apart(new, "messages")
    assert refused.value.field == "messages"


def test_parts_of_a_message_are_its_items() -> None:
    """Those that hold nothing, or that the protocol passes over, are left out."""
    parts = {"text": Item("text", "hi"), "empty": Item("text", ""), "sound": None}
    found = items.read(["text", "empty", "sound"], "content", lambda part, _: parts[part])
    assert found == items.read("hi", "content", lambda part, _: None) == (Item("text", "hi"),)
    with pytest.raises(InvalidRequest):
        items.read(None, "content", lambda part, _: None)


@pytest.mark.parametrize("head", ["data:image/png;base64", "DATA:image/png;BASE64"])
def test_an_image_is_shown_by_its_type_and_its_bytes(head: str) -> None:
    """However its client has written the scheme."""
    assert items.media(items.image(f"{head},aGVsbG8=", "url")) == ("image/png", "aGVsbG8=")


@pytest.mark.parametrize("head", ["data:image/png;base64", "DATA:Image/PNG;base64", "data:text/png;base64"])
def test_the_schema_takes_the_images_that_the_service_takes(head: str) -> None:
    """A client that checks what it sends can send each of them."""
    image = ItemIn.model_json_schema()["oneOf"][1]["properties"]["content"]
    uri = f"{head},aGVsbG8="
    assert bool(re.search(image["pattern"], uri)) == (image_problem(uri) is None)


def test_a_decision_over_openais_api_replaces_no_field_that_its_api_lacks() -> None:
    """What another protocol has set stays when a client sets anew all that it can."""
    fields: dict[str, Any] = {name: name for name in RequestSetup.__struct_fields__}
    kept = _set_anew(RequestSetup(**fields), AS_CONFIGURED, resets=True)
    replaced = {name for name in fields if getattr(kept, name) != name}
    assert replaced == {"instructions", "client_tools", "response_format", "tool_choice"}
