"""Turns the result of an MCP tool into the text that the model is given."""

import json
from typing import Any

import mcp_types as types

from tealagents.domain.texts import bounded
from tealagents.tools.results import DONE

_NO_REASON = "The tool failed and gave no reason."


def result_text(result: types.CallToolResult) -> str:
    """The result as one text, cut at `texts.LIMIT`: text and text resources as they are, everything else
    described, structured content as JSON.

    Many servers repeat structured content as text; the model is sent it only once. An empty result becomes
    `DONE`, or a sentence that the tool failed.
    """
    parts = [_block_text(block) for block in result.content]
    if result.structured_content is not None and not _is_repeated(result.structured_content, result.content):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    nothing = _NO_REASON if result.is_error else DONE
    return bounded("\n".join(part for part in parts if part) or nothing)


def _block_text(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return f"[{block.type}, {block.mime_type}, {_decoded_size(block.data):,} bytes: not shown]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return f"[resource {resource.uri}]\n{resource.text}"
        case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
            kind = resource.mime_type or "application/octet-stream"
            return f"[resource {resource.uri}, {kind}, {_decoded_size(resource.blob):,} bytes: not shown]"
        case types.ResourceLink():
            about = ": ".join(part for part in (block.title or block.name, block.description) if part)
            return f"[link to resource {block.uri}] {about}"
        case _:
            return f"[{type(block).__name__}: not shown]"


def _decoded_size(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")


def _is_repeated(structured: Any, content: list[types.ContentBlock]) -> bool:
    """Whether the blocks already contain the structured content: one of them, or all of them as a list.

    The SDK wraps a result that is not an object as `{"result": …}`; a tool's own object may look the same.
    """
    if not content:  # None has no blocks, and needs none; an empty list has none either, but is worth showing
        return bool(structured == {"result": None})
    forms = [structured]
    if isinstance(structured, dict) and list(structured) == ["result"]:
        forms.append(structured["result"])
    values = [_value(block.text) for block in content if isinstance(block, types.TextContent)]
    texts = [block.text for block in content if isinstance(block, types.TextContent)]
    return any(form in values or form in texts or form in (values, texts) for form in forms)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
