"""Server-sent events, in whatever pieces their bytes come."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tealagents.llm import frames
from tealagents.llm.frames import ErrorData, EventFrames, FrameTooLong

#: what can stand in a stream of ours, and the data it carries
BLOCKS = st.sampled_from(
    [
        (b'data: {"a":1}', b'{"a":1}'),
        (b'data:{"b":"\xc3\xa9"}', b'{"b":"\xc3\xa9"}'),
        (b"data: [DONE]", b"[DONE]"),
        (b"event: response.created\ndata: {}", b"{}"),
        (b"data: one\ndata: two", b"one\ntwo"),
        (b"id: 7\nretry: 10\ndata: x\nunknown: y", b"x"),
        (b'event: error\ndata: {"c":1}', b'{"c":1}'),
        (b"error:broken", b"broken"),
        (b'{\n"d":1}', b'{\n"d":1}'),
        (b": keep-alive", None),
        (b"event: ping", None),
        (b"data:", None),
        (b"", None),
    ]
)


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


def fed(pieces: list[bytes]) -> list[bytes]:
    parser = EventFrames()
    return [frame for piece in pieces for frame in parser.feed(piece)]


@settings(max_examples=500)
@given(
    blocks=st.lists(BLOCKS, max_size=8),
    newline=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    places=st.lists(st.integers(0, 400), max_size=12),
)
def test_the_same_events_come_however_the_bytes_are_cut(
    blocks: list[tuple[bytes, bytes | None]], newline: bytes, places: list[int]
) -> None:
    """A stream gives the same events in one piece and in any other pieces, with any of the line ends."""
    stream = b"".join(block + b"\n\n" for block, _ in blocks).replace(b"\n", newline)
    assert fed(cut_at(stream, places)) == [data for _, data in blocks if data is not None]


def test_one_byte_at_a_time_is_enough() -> None:
    """The smallest pieces there are give the same events."""
    stream = b'\xef\xbb\xbfdata: {"a":1}\r\n\r\n: comment\r\n\r\ndata: two\r\ndata: lines\r\n\r\n'
    assert fed([stream[place : place + 1] for place in range(len(stream))]) == [b'{"a":1}', b"two\nlines"]


def test_what_is_not_complete_is_no_event() -> None:
    """An event that the stream ends in is not given."""
    assert fed([b"data: whole\n\n", b"data: ha"]) == [b"whole"]


def test_json_without_a_field_needs_no_end() -> None:
    """Some gateways end a stream with the body of an error."""
    parser = EventFrames()
    assert parser.feed(b"data: whole\n\n") + parser.feed(b'{\n "error":') + parser.feed(b"1}\n") == [b"whole"]
    assert parser.rest() == [b'{\n "error":1}\n']
    for left in (b"", b"data: {}", b"event: error\ndata: {}"):
        parser = EventFrames()
        assert parser.feed(left) + parser.rest() == []


@pytest.mark.parametrize(
    ("block", "is_error"),
    [
        (b"event: error\ndata: x", True),
        (b"id: 1\ndata: x\nevent:error", True),
        (b"error: x", True),
        (b"event: errors\ndata: x", False),
        (b"data: error: x", False),
        (b"data: x\n: error", False),
    ],
)
def test_an_event_is_an_error_by_its_name_or_by_its_field(block: bytes, is_error: bool) -> None:
    """Not by what is in it."""
    [data] = fed([block + b"\n\n"])
    assert isinstance(data, ErrorData) is is_error


def test_an_event_without_an_end_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bound the parser gives up."""
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1000)
    parser = EventFrames()
    for _ in range(10):
        parser.feed(b"x" * 100)
    with pytest.raises(FrameTooLong):
        parser.feed(b"x")
