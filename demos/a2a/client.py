"""The client of `a2a-sdk`, as it comes, talks to the agent: python demos/a2a/client.py ORIGIN"""

import asyncio
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, SendMessageRequest, TaskState
from google.protobuf.json_format import ParseDict


def message(part: dict[str, object], **ids: str) -> SendMessageRequest:
    parts = [ParseDict(part, Part())]
    sent = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=parts, **ids)
    return SendMessageRequest(message=sent)


async def main(origin: str) -> None:
    async with httpx.AsyncClient(headers={"authorization": "Bearer ada"}, timeout=60) as http:
        card = await A2ACardResolver(http, origin).get_agent_card()
        print(card.name, "-", card.description, [skill.name for skill in card.skills])
        client = ClientFactory(ClientConfig(httpx_client=http)).create(card)

        async for event in client.send_message(message({"text": 'call Garden-water {"plant": "rose"}'})):
            if event.HasField("artifact_update") and not event.artifact_update.last_chunk:
                print("delta:", event.artifact_update.artifact.parts[0].text)
            if event.HasField("task"):
                context = event.task.context_id

        # a call that needs approval: the task waits, and is decided by a data part
        cut = message({"text": 'call Garden-cut {"plant": "rose"}'}, context_id=context)
        async for event in client.send_message(cut):
            status = event.status_update.status
            if status.state == TaskState.TASK_STATE_INPUT_REQUIRED:
                print("waits:", status.message.parts[0].text)
                task = event.status_update.task_id
        async for event in client.send_message(message({"data": {"action": "approve"}}, task_id=task)):
            if event.artifact_update.last_chunk:  # the whole answer, which replaces its deltas
                print("done:", event.artifact_update.artifact.parts[0].text)


asyncio.run(main(sys.argv[1]))
