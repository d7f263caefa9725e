import assert from "node:assert/strict";
import {after, test} from "node:test";
import {Client, ConnectionLost, Draining} from "../src/index.js";
import {QUICK, Service} from "./service.js";

// Short, since what a killed process ran ends when its lease has lapsed; a busy machine misses beats of a
// shorter one.
const service = await Service.serve({TA_LIMITS__LEASE_SECONDS: "3"});
after(() => service.stop());
const agent = new Client(service.url, {token: "ada", retry: QUICK});

test("a service that drains ends its streams in order; a message waits for the next one", async () => {
  /** @type {Promise<import("../src/index.js").Answer> | undefined} */
  let second;
  const stream = agent.stream("pieces-20@20ms");
  for await (const {id} of stream) {
    if (id !== 3) continue;
    service.signal("SIGTERM");
    await refused();
    second = agent.send("hello");
  }
  assert.equal((await stream.answer()).status, "Completed");
  await service.ended();
  await service.start();
  assert.equal((await second)?.status, "Completed");
});

test("a service that is killed and started again says how the answer ended", async () => {
  /** @type {unknown[]} */
  const troubles = [];
  const stream = agent.stream("pieces-1000@50ms", {onReconnect: ({error}) => troubles.push(error)});
  const ids = [];
  let last;
  for await (const event of stream) {
    last = event;
    ids.push(event.id ?? 0);
    if (ids.length !== 3) continue;
    service.signal("SIGKILL");
    await service.ended();
    service.start();
  }
  assert(troubles[0] instanceof ConnectionLost);
  assert.deepEqual(ids, [...new Set(ids)].sort((a, b) => a - b));
  assert(last?.event === "error");
  assert.equal(last.data.code, "interrupted");
  assert.equal((await agent.send("hello", {task_id: stream.taskId ?? ""})).status, "Completed");
});

/** Until new messages are refused. */
async function refused() {
  const once = new Client(service.url, {token: "ada", retry: {attempts: 0}});
  for (;;) {
    const answer = await once.send("hello").catch((error) => error);
    if (answer instanceof Draining) return;
  }
}
