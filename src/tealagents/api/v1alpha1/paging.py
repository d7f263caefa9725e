"""Pages of lists."""

from typing import Generic, TypeVar

from pydantic import ConfigDict, Field

from tealagents.api.v1alpha1.schemas import Schema

T = TypeVar("T")


class Page(Schema, Generic[T]):
    """Some items of a list; `next_cursor` is null on the last page. A filtered page may be short."""

    model_config = ConfigDict(json_schema_extra={"description": "A page of a list"})

    items: list[T]
    next_cursor: str | None = Field(description="Send it as `cursor` for the next page")
