"""The floor: a bare, stateless handler around the model, as one would write it first."""

import json
from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel


class Message(BaseModel):
    text: str

    def messages(self) -> list[ChatCompletionMessageParam]:
        return [{"role": "user", "content": self.text}]


app, client = FastAPI(), AsyncOpenAI()


@app.post("/")
async def answer(message: Message) -> dict[str, str | None]:
    completion = await client.chat.completions.create(model="offline", messages=message.messages())
    return {"output": completion.choices[0].message.content}


@app.post("/sse")
async def stream(message: Message) -> StreamingResponse:
    chunks = await client.chat.completions.create(model="offline", messages=message.messages(), stream=True)

    async def pieces() -> AsyncIterator[str]:
        async for chunk in chunks:
            if piece := chunk.choices[0].delta.content:
                yield f"data: {json.dumps(piece)}\n\n"

    return StreamingResponse(pieces(), media_type="text/event-stream")
