import assert from "node:assert/strict";
import {test} from "node:test";
import {Client, ConnectionLost} from "../src/index.js";
import {afterEvent, faultyProxy} from "./proxy.js";
import {ada, agentOf, service} from "./running.js";
import {QUICK} from "./service.js";

/** its request, its pieces and its end: so many events */
const PIECES = 6;
const LAST = PIECES + 2;

/**
 * The events of an answer that comes through a proxy, and as the service itself gives them.
 *
 * @param {import("./proxy.js").Fault} fault
 * @param {{hold?: boolean, silenceMs?: number}} [how]
 */
async function through(fault, {silenceMs = 30_000, ...how} = {}) {
  const proxy = await faultyProxy(service.url, fault, how);
  const agent = new Client(proxy.url, {token: "ada", retry: QUICK, timeouts: {silenceMs}});
  try {
    const events = [];
    const stream = agent.stream(`pieces-${PIECES}@5ms`);
    for await (const event of stream) events.push(event);
    const followed = [];
    for await (const event of ada.follow(stream.requestId ?? "")) followed.push(event);
    return {events, followed, connections: proxy.connections()};
  } finally {
    proxy.close();
  }
}

/** @param {Awaited<ReturnType<typeof through>>} seen */
function assertNothingLost({events, followed}) {
  assert.deepEqual(events, followed);
  assert.deepEqual(events.map(({id}) => id), Array.from({length: LAST}, (_, index) => index + 1));
}

test("a stream that is cut behind any event, or within it, gives every event once and in order", async () => {
  const ids = Array.from({length: LAST}, (_, index) => index + 1);
  const faults = ids.flatMap((id) => [{id, within: false}, {id, within: true}]);
  await Promise.all(faults.map(async ({id, within}) => {
    const fault = afterEvent(id, {within});
    const seen = await through((sent, connection) => (connection === 0 ? fault(sent) : null));
    assertNothingLost(seen);
    if (id < LAST || within) assert(seen.connections > 1);
  }));
});

test("a stream of which every connection brings one event gives every event once and in order", async () => {
  const seen = await through((sent) => {
    const id = /\nid: (\d+)\n/.exec(sent)?.[1];
    return id && Number(id) < LAST ? afterEvent(Number(id))(sent) : null;
  });
  assertNothingLost(seen);
  assert(seen.connections >= LAST);
});

test("a message whose answer never began is sent again, and not done twice", async () => {
  assertNothingLost(await through((_, connection) => (connection < 2 ? 0 : null)));
});

test("a connection that has fallen silent is given up, and the stream continues", async () => {
  const third = afterEvent(3);
  const how = {hold: true, silenceMs: 300};
  assertNothingLost(await through((sent, connection) => (connection === 0 ? third(sent) : null), how));
});

test("a stream that was left continues where it was left", async () => {
  const stream = ada.stream("pieces-4@20ms");
  /** @type {(number | null)[]} */
  const seen = [];
  for await (const {id} of stream) if (seen.push(id) === 3) break;
  assert.equal(stream.lastEventId, 3);
  for await (const {id} of stream) seen.push(id);
  assert.deepEqual(seen, [1, 2, 3, 4, 5, 6]);
  for await (const _ of stream) assert.fail("it has ended");
  const behind = [];
  for await (const {id} of ada.follow(stream.requestId ?? "", {after: 4})) behind.push(id);
  assert.deepEqual(behind, [5, 6]);
});

test("a log that was read to its end shows how the request has ended", async () => {
  const {request_id} = await ada.send("hello");
  const ends = [];
  for await (const {event, id} of ada.follow(request_id, {after: 1000})) ends.push([event, id]);
  assert.deepEqual(ends, [["final-response", null]]);
});

test("when the attempts are used up, what is known is reported", async () => {
  const proxy = await faultyProxy(service.url, (sent, number) => (number === 0 ? afterEvent(3)(sent) : 0));
  const agent = new Client(proxy.url, {token: "ada", retry: {attempts: 2, firstDelayMs: 1}});
  /** @type {number[]} */
  const attempts = [];
  let opened = 0;
  const onOpen = () => (opened += 1);
  const stream = agent.stream("pieces-4@5ms", {onReconnect: ({attempt}) => attempts.push(attempt), onOpen});
  const lost = await stream.answer().catch((error) => error);
  proxy.close();
  assert(lost instanceof ConnectionLost);
  assert.deepEqual(attempts, [1, 2]);
  assert.equal(opened, 1);
  assert.deepEqual([lost.requestId, lost.lastEventId], [stream.requestId, 3]);
  assert.equal(typeof lost.idempotencyKey, "string");
  const rest = agentOf("ada").follow(lost.requestId ?? "", {after: lost.lastEventId});
  assert.equal((await rest.answer()).status, "Completed");
});

test("a fork whose answer was lost is not made again", async () => {
  const {task_id} = await ada.send("hello");
  const proxy = await faultyProxy(service.url, () => 0);
  const agent = agentOf("ada", proxy.url);
  const lost = await agent.fork(task_id).catch((error) => error);
  assert(lost instanceof ConnectionLost);
  assert.equal(lost.inDoubt, true);
  assert.match(lost.message, /may have been done: look before you repeat the call$/);
  assert.equal(proxy.connections(), 1);
  const unsure = await agent.health().catch((error) => error);
  assert.deepEqual([unsure.name, unsure.inDoubt], ["ConnectionLost", false]);
  proxy.close();
});

test("a fork to which a gateway answers that the service is away may have been made", async () => {
  for (const [status, inDoubt] of /** @type {const} */ ([[502, true], [503, true], [504, true], [500, false]])) {
    let calls = 0;
    const answers = async () => ((calls += 1), new Response("<html>", {status}));
    const agent = new Client("http://gateway/Janitor/0.1", {fetch: answers, retry: {attempts: 1, firstDelayMs: 1}});
    const error = await agent.fork("t").catch((error) => error);
    assert.deepEqual([error.status, error.inDoubt, calls], [status, inDoubt, 1]);
    const read = await agent.task("t").catch((error) => error);
    assert.deepEqual([read.status, read.inDoubt], [status, false]);
  }
});
