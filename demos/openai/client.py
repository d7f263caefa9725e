"""An unmodified client of OpenAI's API: python demos/openai/client.py BASE_URL"""

import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="ada")
model = client.models.list().data[0].id

first = client.responses.create(model=model, input="My name is Ada.")
second = client.responses.create(model=model, input="What is my name?", previous_response_id=first.id)
print(second.output_text)

# a stream that is cut, and read on
begun = client.responses.create(model=model, input="pieces-20, please", background=True)
for event in client.responses.retrieve(begun.id, stream=True):
    if event.sequence_number == 9:
        break
rest = list(client.responses.retrieve(begun.id, stream=True, starting_after=9))
print("read on at", rest[0].sequence_number, "to", rest[-1].type)

# a call that needs approval
paused = client.responses.create(model=model, input='call Files-delete {"path": "notes.txt"}')
request = paused.output[-1]
assert request.type == "mcp_approval_request"
print("asked for:", request.server_label, request.name, request.arguments)
done = client.responses.create(
    model=model,
    input=[{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}],
    previous_response_id=paused.id,
)
print([item.type for item in done.output], done.output_text)

# a front end that knows Chat Completions alone
answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}])
print(answer.choices[0].message.content)
