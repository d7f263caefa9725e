"""The types of the earlier platform: the input that its agents take, and what type and plugin files import.

Names and fields are that platform's. Files import these types where the platform itself is not installed. An
input type that a config names without a file of its own is always one of `INPUTS`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

T = TypeVar("T")


class KernelBaseModel(BaseModel):
    """The base class of that platform's models."""

    model_config = ConfigDict(populate_by_name=True, arbitrary_types_allowed=True, validate_assignment=True)


class ExtraDataElement(BaseModel):
    """One entry of an answer's extra data."""

    key: str
    value: str


class ExtraData(BaseModel):
    """What plugins add to an answer."""

    items: list[ExtraDataElement] = []


class EmbeddedImage(BaseModel):
    """An image as base64; `format` is, for example, `png` or `image/png`."""

    format: str
    data: str


class ContentType(Enum):
    """The kind of an item in a message."""

    IMAGE = "image"
    TEXT = "text"


class MultiModalItem(BaseModel):
    """One item in a message: text, or an image as a data URI."""

    content_type: ContentType = ContentType.TEXT
    content: str


class HistoryMessage(BaseModel):
    """A message that is text alone."""

    role: Literal["user", "assistant"]
    content: str


class HistoryMultiModalMessage(BaseModel):
    """A message of texts and images. Orchestrators send text alone in the form of `HistoryMessage`, which is
    accepted as well."""

    role: Literal["user", "assistant"]
    items: list[MultiModalItem]

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("items") is None and "content" in given:
            return {**given, "items": [{"content": given["content"]}]}
        return given


class BaseInput(KernelBaseModel):
    """A conversation."""

    session_id: str | None = None
    chat_history: list[HistoryMessage] | None = None


class BaseInputWithUserContext(BaseInput):
    """A conversation, and what the application knows about the user."""

    user_context: dict[str, str] | None = None


class BaseMultiModalInput(KernelBaseModel):
    """A conversation with images."""

    session_id: str | None = None
    chat_history: list[HistoryMultiModalMessage] | None = None


class BaseMultiModalInputWithUserContext(BaseMultiModalInput):
    """A conversation with images, and what the application knows about the user."""

    user_context: dict[str, str] | None = None


class BaseEmbeddedImage(KernelBaseModel):
    """One image, which is shown to the model in the agent's first task."""

    embedded_image: EmbeddedImage


class AnswerUsage(BaseModel):
    """The tokens that an answer took. Files import it as `TokenUsage`, which in this project is the engine's
    class."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int


class InvokeResponse(BaseModel, Generic[T]):
    """An answer."""

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    session_id: str | None = None
    source: str | None = None
    request_id: str | None = None
    token_usage: AnswerUsage
    extra_data: ExtraData | None = None
    output_raw: str | None = None
    output_pydantic: T | None = None


def _named(*kinds: type[BaseModel]) -> Mapping[str, Any]:
    return {kind.__name__: kind for kind in kinds}


#: input types that a config may name without a file of its own
INPUTS: Mapping[str, type[BaseModel]] = _named(
    *(BaseInput, BaseInputWithUserContext, BaseEmbeddedImage),
    *(BaseMultiModalInput, BaseMultiModalInputWithUserContext),
)
#: what `sk_agents.extra_data_collector` has besides the collector
EXTRA_DATA = _named(ExtraData, ExtraDataElement)
#: what `sk_agents.ska_types` has besides the base class of plugins
ALL: Mapping[str, Any] = {
    **INPUTS,
    **EXTRA_DATA,
    **_named(EmbeddedImage, MultiModalItem, HistoryMessage, HistoryMultiModalMessage),
    **_named(InvokeResponse),
    "TokenUsage": AnswerUsage,
    "ContentType": ContentType,
}
