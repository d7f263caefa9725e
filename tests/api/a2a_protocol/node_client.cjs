// The client of @a2a-js/sdk, as it comes, over one binding: node node_client.cjs TOOLS ORIGIN BINDING CALL
const { randomUUID } = require("node:crypto");
const [tools, origin, binding, call] = process.argv.slice(2);
const load = (name) => require(require.resolve(name, { paths: [tools] }));
const { ClientFactory, JsonRpcTransportFactory, RestTransportFactory, DefaultAgentCardResolver } =
  load("@a2a-js/sdk/client");
const { SendMessageRequest, Role, TaskState } = load("@a2a-js/sdk");

const authorized = (url, options = {}) => {
  const headers = new Headers(options.headers);
  headers.set("authorization", "Bearer ada");
  return fetch(url, { ...options, headers });
};
const message = (part, ids = {}) =>
  SendMessageRequest.fromJSON({ message: { messageId: randomUUID(), role: "ROLE_USER", parts: [part], ...ids } });

async function main() {
  const Transport = binding === "JSONRPC" ? JsonRpcTransportFactory : RestTransportFactory;
  const factory = new ClientFactory({
    transports: [new Transport({ fetchImpl: authorized })],
    cardResolver: new DefaultAgentCardResolver({ fetchImpl: authorized }),
    preferredTransports: [binding],
  });
  const client = await factory.createFromUrl(origin);
  const seen = {};

  // a message, a stream in the same context, a list
  const sent = await client.sendMessage(message({ text: "hello" }));
  const task = sent.payload?.value ?? sent;
  seen.answer = task.artifacts[0].parts[0].content.value;
  seen.streamed = "";
  for await (const event of client.sendMessageStream(message({ text: "hello" }, { contextId: task.contextId }))) {
    const { $case, value } = event.payload;
    if ($case !== "artifactUpdate") continue;
    const piece = value.artifact.parts[0].content.value;
    seen.streamed = value.append ? seen.streamed + piece : piece;
  }
  const listed = await client.listTasks({ contextId: task.contextId, pageSize: 10 });
  seen.listed = listed.tasks.length;
  seen.history = (await client.getTask({ id: task.id })).history.length;

  // a pause that is followed through its decision
  const paused = await client.sendMessage(message({ text: call }));
  const waits = paused.payload?.value ?? paused;
  seen.waits = waits.status.state === TaskState.TASK_STATE_INPUT_REQUIRED;
  const states = [];
  const following = (async () => {
    for await (const event of client.resubscribeTask({ id: waits.id })) {
      if (event.payload.$case === "statusUpdate") states.push(TaskState[event.payload.value.status.state]);
    }
  })();
  const done = await client.sendMessage(message({ data: { action: "approve" } }, { taskId: waits.id }));
  seen.done = TaskState[(done.payload?.value ?? done).status.state];
  await following;
  seen.followed = states.at(-1);

  // errors are the SDK's own classes
  seen.errors = [];
  for (const wrong of [
    () => client.getTask({ id: randomUUID() }),
    () => client.cancelTask({ id: task.id }),
    () => client.sendMessage(message({ text: "hi" }, { taskId: task.id })),
  ]) {
    await wrong().then(
      () => seen.errors.push("none"),
      (error) => seen.errors.push(error.name),
    );
  }
  console.log(JSON.stringify(seen));
}

main();
