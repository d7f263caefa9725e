"""Images in messages. They must be data URIs, so that the service never fetches an address from a message."""

import base64
import binascii
import re

#: characters of a data URI in which its media type must stand
LONGEST_HEAD = 200
_DATA_URI = re.compile(r"data:image/[a-z0-9.+-]+;base64,(?=.)", re.IGNORECASE | re.ASCII)


def lowered(uri: str) -> str:
    """A data URI with everything before its comma in lower case: not every model service accepts capitals."""
    end = uri.index(",")
    return uri if uri[:end].islower() else uri[:end].lower() + uri[end:]


def image_problem(content: str) -> str | None:
    """What is wrong with an image's content; None if it is a valid data URI."""
    head = _DATA_URI.match(content[:LONGEST_HEAD])
    if head is None:
        return "must be a data URI, data:image/png;base64,…, with the image in it"
    try:
        base64.b64decode(content[head.end() :], validate=True)
    except (binascii.Error, ValueError):
        return "is not valid base64 after the comma"
    return None
