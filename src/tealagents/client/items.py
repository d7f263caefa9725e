"""What a message is made of."""

import base64
import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

Action = Literal["approve", "reject"]


@dataclass(frozen=True, slots=True)
class Text:
    content: str

    def as_json(self) -> dict[str, str]:
        return {"content_type": "text", "content": self.content}


@dataclass(frozen=True, slots=True)
class Image:
    """An image as a data URI. The service fetches nothing, so an address of one is no image."""

    content: str

    @classmethod
    def of_bytes(cls, data: bytes, media_type: str = "image/png") -> "Image":
        return cls(f"data:{media_type};base64,{base64.b64encode(data).decode()}")

    @classmethod
    def of_file(cls, path: str | PathLike[str]) -> "Image":
        """Reads the file now; the media type follows from its name."""
        media_type, _ = mimetypes.guess_type(path)
        if media_type is None or not media_type.startswith("image/"):
            raise ValueError(f"{path}: the name does not say which kind of image it is; use Image.of_bytes")
        return cls.of_bytes(Path(path).read_bytes(), media_type)

    def as_json(self) -> dict[str, str]:
        return {"content_type": "image", "content": self.content}


#: a message: one text, or items in order (a mapping is sent as it is)
Content = str | Sequence[Text | Image | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is decided of one tool call. `arguments` replace those the model chose."""

    id: str
    action: Action
    arguments: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        decision: dict[str, Any] = {"id": self.id, "action": self.action}
        if self.arguments is not None:
            decision["arguments"] = dict(self.arguments)
        return decision


def items_of(content: Content) -> list[dict[str, Any]]:
    """The `items` of a message's body."""
    if isinstance(content, str):
        return [Text(content).as_json()]
    return [_as_json(item) for item in content]


def _as_json(item: Text | Image | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(item, Text | Image):
        return item.as_json()
    if isinstance(item, Mapping):
        return dict(item)
    raise TypeError(
        f"a message is one string, or a list of Text, Image or mappings, not {type(item).__name__}"
    )
