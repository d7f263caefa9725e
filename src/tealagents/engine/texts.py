"""Texts from models and tools, made such that every store can keep them."""


def storable(text: str) -> str:
    """`text` with U+FFFD in the place of NUL, which not every store keeps, and of lone surrogates, which no
    encoding has."""
    text = text.replace("\0", "\ufffd")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
