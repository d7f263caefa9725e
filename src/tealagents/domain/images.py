"""Images of messages: data URIs, so that nothing is fetched that a message names."""

import base64
import binascii
import re

#: characters of a data URI in which its media type must stand
LONGEST_HEAD = 200
_DATA_URI = re.compile(r"data:image/[a-z0-9.+-]+;base64,(?=.)", re.IGNORECASE | re.ASCII)


def lowered(uri: str) -> str:
    """An image with what says its kind in lower case, which not every model service reads in capitals."""
    end = uri.index(",")
    return uri if uri[:end].islower() else uri[:end].lower() + uri[end:]


def image_problem(content: str) -> str | None:
    """What is wrong with an image, which must come as a data URI; None: nothing."""
    head = _DATA_URI.match(content[:LONGEST_HEAD])
    if head is None:
        return "must be a data URI, data:image/png;base64,…, with the image in it"
    try:
        base64.b64decode(content[head.end() :], validate=True)
    except (binascii.Error, ValueError):
        return "is not valid base64 after the comma"
    return None
