"""Taking a token apart: every text is either one token, written in one way, or none."""

import base64
import json
from contextlib import suppress

import pytest
from hostile_tokens import b64
from hypothesis import given
from hypothesis import strategies as st

from tealagents.auth.compact import Malformed, take_apart

SEGMENT_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
OBJECTS = st.dictionaries(
    st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.text(), max_size=4
)


@given(st.text() | st.lists(st.text(SEGMENT_CHARACTERS + "+/= "), min_size=3, max_size=3).map(".".join))
def test_any_text_is_a_token_or_malformed(text: str) -> None:
    """No text makes taking it apart fail in another way than this one."""
    with suppress(Malformed):
        take_apart(text)


@given(OBJECTS, OBJECTS, st.binary(min_size=1))
def test_what_was_put_together_comes_apart(header: object, claims: object, signature: bytes) -> None:
    """Header, claims and signature come out as they went in, with exactly what was signed."""
    signed = ".".join(b64(json.dumps(part).encode()) for part in (header, claims))
    parts = take_apart(f"{signed}.{b64(signature)}")
    assert (parts.header, parts.claims) == (header, claims)
    assert (parts.signed, parts.signature) == (signed.encode(), signature)


@given(st.text(SEGMENT_CHARACTERS, min_size=1, max_size=40))
def test_a_segment_is_written_in_one_way(segment: str) -> None:
    """A signature's text that is taken is the one text that its bytes are encoded to."""
    try:
        parts = take_apart(f"e30.e30.{segment}")
    except Malformed:
        return
    assert base64.urlsafe_b64encode(parts.signature).rstrip(b"=").decode() == segment


def test_the_longest_token() -> None:
    """16,384 characters are taken, one more is not."""
    longest = "e30.e30." + "A" * (16_384 - 8)
    assert take_apart(longest).signature == bytes(12_282)
    with pytest.raises(Malformed, match="longer"):
        take_apart(longest + "A")
