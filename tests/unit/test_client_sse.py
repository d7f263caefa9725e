"""The event stream parser, against the standard's own words and every way bytes can be cut."""

import itertools

import httpx
import pytest
from httpx_sse import EventSource
from hypothesis import given
from hypothesis import strategies as st

from tealagents.client.sse import EventParser, EventTooLong, ServerSentEvent

LINE_ENDS = ("\n", "\r", "\r\n")
#: text that no line end can be part of
TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
)
LINES = st.one_of(
    TEXT.map("data:{}".format),
    TEXT.map("data: {}".format),
    TEXT.map("event: {}".format),
    TEXT.map("id: {}".format),
    TEXT.map(": {}".format),
    TEXT.map("unknown: {}".format),
    st.sampled_from(["", "", "", "data", "event", "id", "retry: 25", "retry: soon"]),
)


@st.composite
def streams(draw: st.DrawFn) -> str:
    """A stream of lines, with any mixture of line ends."""
    lines = draw(st.lists(st.tuples(LINES, st.sampled_from(LINE_ENDS)), max_size=30))
    return "".join(line + end for line, end in lines)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in at), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def parsed(*chunks: bytes) -> list[ServerSentEvent]:
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def by_the_standard(stream: str) -> list[ServerSentEvent]:
    """The standard's algorithm, read off its page, over a whole stream."""
    events, name, data, last_id = [], "", "", ""
    lines = stream.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    for line in lines:
        if line == "":
            if data != "":
                events.append(
                    ServerSentEvent(name=name or "message", data=data.removesuffix("\n"), id=last_id)
                )
            name, data = "", ""
            continue
        field, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if colon and field == "":
            continue
        if field == "event":
            name = value
        elif field == "data":
            data += value + "\n"
        elif field == "id" and "\0" not in value:
            last_id = value
    return events


@given(streams(), st.lists(st.integers(0, 2000), max_size=12))
def test_any_cut_any_line_end(stream: str, places: list[int]) -> None:
    """However the bytes are cut, inside a character too, the events are those of the standard."""
    assert parsed(*cut(stream.encode(), places)) == by_the_standard(stream)


@given(streams())
def test_every_byte_alone(stream: str) -> None:
    """Byte by byte comes to the same as all at once."""
    data = stream.encode()
    assert parsed(*(data[at : at + 1] for at in range(len(data)))) == parsed(data)


@given(streams(), st.integers(0, 2000))
def test_an_unfinished_event_is_none(stream: str, length: int) -> None:
    """What a broken connection leaves is a prefix of the events, never half of one."""
    data = stream.encode()
    whole = parsed(data)
    partly = parsed(data[:length])
    assert partly == whole[: len(partly)]


@given(streams())
def test_as_others_read_it(stream: str) -> None:
    """An independent parser reads the same events, where the stream uses what it supports."""
    stream = stream.replace("\r\n", "\n").replace("\r", "\n")
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream.encode())
    others = [(event.event, event.data, event.id) for event in EventSource(response).iter_sse() if event.data]
    ours = [(event.name, event.data, event.id) for event in parsed(stream.encode()) if event.data]
    assert ours == others


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_byte_order_mark(size: int) -> None:
    """A byte order mark at the start is no part of the first field, even when it comes in pieces."""
    data = b"\xef\xbb\xbfdata: a\n\ndata: \xef\xbb\xbfb\n\n"
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert [event.data for event in parsed(*chunks)] == ["a", "\ufeffb"]


def test_fields() -> None:
    """Several data lines are joined, ids are inherited, an id with NUL and `retry` are ignored."""
    parser = EventParser()
    events = parser.feed(b"retry: 30\nid: 7\nevent: x\ndata: a\ndata:  b\n\nid: 8\0\ndata\n\nid\ndata: c\n\n")
    assert events == [
        ServerSentEvent(name="x", data="a\n b", id="7"),
        ServerSentEvent(name="message", data="", id="7"),
        ServerSentEvent(name="message", data="c", id=""),
    ]


def test_a_cr_and_its_lf_in_two_chunks() -> None:
    """The LF that follows in the next chunk ends no second line; the event is there at the CR."""
    parser = EventParser()
    assert parser.feed(b"data: a\r\n\r") == [ServerSentEvent(data="a")]
    assert parser.feed(b"\ndata: b\r") == []
    assert parser.feed(b"\n") == []
    assert parser.feed(b"\r\n") == [ServerSentEvent(data="b")]


@pytest.mark.parametrize("flood", [b"x" * 100, b"data: x\n" * 20])
def test_endless_event(flood: bytes) -> None:
    """An event that never ends is given up before it fills the memory; keepalives never add up."""
    parser = EventParser(max_event_bytes=1000)
    with pytest.raises(EventTooLong):
        any(parser.feed(flood) for _ in range(20))
    calm = EventParser(max_event_bytes=1000)
    assert [event for _ in range(1000) for event in calm.feed(b": keepalive\n\n")] == []
