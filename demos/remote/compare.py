"""Local and remote, with the library: python demos/remote/compare.py"""

import asyncio
from pathlib import Path

from tealagents import Agent
from tealagents.llm.offline import OfflineModel

HERE = Path(__file__).parent
SAID = ["My name is Ada.", "I live in Oslo.", "What is my name?"]


async def main() -> None:
    async with OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "any"}
        for kind in ("local", "remote"):
            async with Agent.from_config(HERE / f"{kind}.yaml", env=env) as agent:
                thread = agent.new_thread()
                print(f"{kind}:")
                for text in SAID:
                    answer = await agent.run(text, thread)
                    body = model.requests[-1]["body"]
                    sent = len(body.get("messages") or body["input"])
                    print(f"  {sent} sent, {text} -> {answer.text}")
                listed = await agent.list_messages(thread)
                print(f"  {len(listed)} messages can be listed; as JSON the thread says", end=" ")
                print("Ada" if "Ada" in thread.to_json() else "no word of it")

        # a local conversation is handed over: sent once, and from then on only what is new
        async with Agent.from_config(HERE / "remote.yaml", env=env) as agent:
            local = agent.get_local_thread()
            await agent.run("My name is Ada.", local)
            handed_over = agent.to_remote(local)
            print("handed over:")
            for text in SAID[1:]:
                answer = await agent.run(text, handed_over)
                print(f"  {len(model.requests[-1]['body']['input'])} sent, {text} -> {answer.text}")


asyncio.run(main())
