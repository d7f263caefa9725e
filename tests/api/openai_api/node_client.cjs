// What a user of OpenAI's SDK for Node does with an agent: run with the folder of the SDK, `base_url`, two users.
const assert = require("node:assert/strict");

const [folder, baseURL, user, stranger, file] = process.argv.slice(2);
const {OpenAI} = require(require.resolve("openai", {paths: [folder]}));
const connect = (apiKey) => new OpenAI({baseURL, apiKey, maxRetries: 0});
const client = connect(user);
const ask = (input, options = {}) => client.responses.create({model: "Tester", input, ...options});

async function collected(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

async function main() {
  const first = await ask("My name is Ada.");
  assert.deepEqual(await client.responses.retrieve(first.id), first);
  const second = await ask("What is my name?", {previous_response_id: first.id});
  assert.match(second.output_text, /Ada/);
  const branch = await ask("What is my name?", {previous_response_id: first.id});
  assert.notEqual(branch.conversation.id, first.conversation.id);

  const live = await collected(await ask("tell me a story", {stream: true}));
  const {id} = live[0].response;
  const tail = await collected(await client.responses.retrieve(id, {stream: true, starting_after: 3}));
  assert.deepEqual(tail, live.slice(4));
  const helper = client.responses.stream({model: "Tester", input: "hello"});
  assert.ok((await helper.finalResponse()).output_text);

  const begun = await ask("for ever", {background: true});
  assert.equal(begun.status, "in_progress");
  assert.equal((await client.responses.cancel(begun.id)).status, "cancelled");

  const paused = await ask(`call Work-write ${JSON.stringify({file, line: "one"})}`);
  const answer = {type: "mcp_approval_response", approval_request_id: paused.output.at(-1).id, approve: true};
  assert.deepEqual(await ask([answer]), await ask([answer]));

  const conversation = await client.conversations.create({items: [{role: "user", content: "My cat is Tom."}]});
  assert.match((await ask("What is my cat?", {conversation: conversation.id})).output_text, /Tom/);
  const items = await collected(client.conversations.items.list(conversation.id, {order: "asc", limit: 1}));
  assert.equal(items.length, 3);
  assert.ok((await client.conversations.delete(conversation.id)).deleted);

  const chat = await client.chat.completions.create({model: "Tester", messages: [{role: "user", content: "hello"}]});
  assert.ok(chat.choices[0].message.content);

  await client.responses.delete((await ask("hello")).id);
  await assert.rejects(connect(stranger).responses.retrieve(first.id), OpenAI.NotFoundError);
  await assert.rejects(connect("two words").responses.retrieve(first.id), OpenAI.AuthenticationError);
  await assert.rejects(client.responses.delete(first.id), OpenAI.ConflictError);
}

main();
