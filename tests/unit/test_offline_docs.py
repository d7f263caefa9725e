"""docs/offline-model.md is true: its scripts run, its transcripts are what is said, its keys are all keys."""

import re
from pathlib import Path
from typing import Any

import pytest
from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI

from tealagents.llm.offline import OfflineModel
from tealagents.llm.offline import script as scripts
from tealagents.testing.clock import overdue

PAGE = (Path(__file__).parents[2] / "docs" / "offline-model.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(yaml|transcript|python)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
DELETE = {"type": "function", "function": {"name": "Shell-delete", "parameters": {}}}


def examples() -> list[tuple[str, str]]:
    """Each transcript with the script above it, if there is one right above it."""
    found: list[tuple[str, str]] = []
    above = ""
    for kind, text in BLOCKS:
        if kind == "transcript":
            found.append((above, text))
        above = text if kind == "yaml" else ""
    return found


def turns(transcript: str) -> list[tuple[list[str], list[str]]]:
    """What is sent, a question or tool results, with the lines that answer it."""
    found: list[tuple[list[str], list[str]]] = []
    for line in transcript.splitlines():
        if line[:2] not in ("> ", "< "):
            found[-1][1].append(line)
        elif line[0] == "<" and found and found[-1][0][0][0] == "<" and not found[-1][1]:
            found[-1][0].append(line)
        else:
            found.append(([line], []))
    return found


class LoopState:
    """One conversation, streamed; the answers are written as the page writes them."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client
        self._messages: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []
        #: as much of an answer as has arrived
        self.heard = ""

    async def send(self, lines: list[str]) -> list[str]:
        before = len(self._messages)
        if lines[0][0] == ">":
            self._messages.append({"role": "user", "content": lines[0][2:]})
        for call, line in zip(self._calls, lines, strict=False):
            self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": line[2:]})
        text, mark = await self._heard()
        if mark:
            del self._messages[before:]
        said = [*text.splitlines(), *(_call_line(call) for call in self._calls)]
        if mark:
            said = [
                " ".join(filter(None, ["\n".join(said), mark])) if mark != "(refuses)" else f"{mark} {text}"
            ]
        return said

    async def _heard(self) -> tuple[str, str]:
        """The text, and how it ended where that is not the usual end."""
        self._calls, text, mark = [], "", "(no finish)"
        self.heard = ""
        try:
            create: Any = self._client.chat.completions.create
            async for chunk in await create(
                model="offline",
                messages=[{"role": "system", "content": "Speak as a pirate."}, *self._messages],
                tools=[DELETE],
                stream=True,
            ):
                choice = chunk.choices[0]
                self._add_calls(choice.delta.tool_calls or [])
                text += choice.delta.content or choice.delta.refusal or ""
                self.heard = text
                if choice.delta.refusal:
                    mark = "(refuses)"
                elif choice.finish_reason and mark != "(refuses)":
                    mark = (
                        "" if choice.finish_reason in ("stop", "tool_calls") else f"({choice.finish_reason})"
                    )
        except APIError as error:
            return text, _error_mark(error)
        self._messages.append(self._said(text))
        return text, mark

    def _said(self, text: str) -> dict[str, Any]:
        said: dict[str, Any] = {"role": "assistant", "content": text}
        return {**said, "tool_calls": self._calls} if self._calls else said

    def _add_calls(self, deltas: list[Any]) -> None:
        for delta in deltas:
            if delta.id:
                function = {"name": delta.function.name, "arguments": ""}
                self._calls.append({"id": delta.id, "type": "function", "function": function})
            self._calls[delta.index]["function"]["arguments"] += delta.function.arguments


def _call_line(call: dict[str, Any]) -> str:
    return f"(calls {call['function']['name']} {call['function']['arguments']})"


def _finish_mark(reason: str) -> str:
    return "" if reason in ("stop", "tool_calls") else f"({reason})"


def _error_mark(error: APIError) -> str:
    match error:
        case APIStatusError():
            body = error.response.text
            reported = error.body.get("message", body) if isinstance(error.body, dict) else body
            return f"(HTTP {error.status_code}: {reported})"
        case APITimeoutError():
            return "(silence)"
        case APIConnectionError():
            return "(connection lost)"
        case _:
            return f"({error.message})"


@pytest.mark.parametrize(("script", "transcript"), examples())
async def test_a_transcript_is_what_is_said(script: str, transcript: str) -> None:
    """Each example of the page, sent line by line, is answered as it says."""
    async with OfflineModel(script) as model:
        client = AsyncOpenAI(base_url=model.base_url, api_key="k", max_retries=0)
        async with client:
            talk = LoopState(client)
            for sent, answered in turns(transcript):
                said, mark, _ = answered[-1].partition("(silence)")
                calls = len(model.requests) + 1
                falls_silent = lambda: (  # noqa: E731
                    bool(mark) and len(model.requests) == calls and talk.heard == said.strip()  # noqa: B023
                )
                assert (sent, await overdue(talk.send(sent), 600, falls_silent)) == (sent, answered)


async def test_the_program_of_the_page_runs() -> None:
    """The test that the page shows passes."""
    program = next(text for kind, text in BLOCKS if kind == "python")
    names: dict[str, Any] = {}
    exec(compile(program, "offline-model.md", "exec"), names)
    await names["test_my_agent_asks_for_the_weather"]()


def test_every_key_is_shown_and_explained() -> None:
    """No key of a script is missing on the page, neither in its text nor in its examples."""
    parts = [part for part in vars(scripts).values() if isinstance(part, type)]
    keys = {key for part in parts if issubclass(part, scripts._Part) for key in part.model_fields}
    prose = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    words = {word for code in re.findall(r"`([^`]*)`", prose) for word in re.findall("[a-z_]+", code)}
    used = {word for kind, text in BLOCKS if kind == "yaml" for word in re.findall(r"\b([a-z_]+):", text)}
    assert {"rules", "when", "fault", "kind", "delay_ms"} <= keys
    assert keys - words == set()
    assert keys - used == set()
