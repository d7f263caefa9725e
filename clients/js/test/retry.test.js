import assert from "node:assert/strict";
import {test} from "node:test";
import {Client, NotOwner} from "../src/index.js";
import {mayRepeat} from "../src/calls.js";
import {problemError} from "../src/errors.js";
import {Budget} from "../src/retry.js";

test("each wait is up to twice as long as the one before, and at most the longest", () => {
  const budget = new Budget({firstDelayMs: 100, longestDelayMs: 400});
  for (const ceiling of [100, 200, 400, 400]) {
    const delay = budget.delayMs() ?? 0;
    assert(delay >= ceiling / 2 && delay <= ceiling);
  }
});

test("a `Retry-After` is waited for, unless it is too long", () => {
  assert((new Budget().delayMs(3) ?? 0) >= 3000);
  assert.equal(new Budget({longestWaitMs: 2000}).delayMs(3), null);
});

test("progress begins the count of failures anew", () => {
  const budget = new Budget({attempts: 1});
  assert.notEqual(budget.delayMs(), null);
  assert.equal(budget.delayMs(), null);
  budget.renew();
  assert.notEqual(budget.delayMs(), null);
});

test("nothing is tried again that could be done twice, or that would fail again", () => {
  const [read, once] = [{method: "GET", path: "/x", repeatable: true}, {method: "POST", path: "/x"}].map(
    (call) => /** @type {import("../src/wire.js").Call} */ (call),
  );
  assert(read && once);
  const repeated = (/** @type {typeof read} */ call, status = 503, code = "", replayed = false) =>
    mayRepeat(call, problemError(code ? {code} : {}, {status, replayed}));
  assert(repeated(once, 503, "draining"));
  assert(!repeated(once, 503, "persistence_unavailable"));
  assert(repeated(read, 503, "persistence_unavailable"));
  assert(!repeated(read, 503, "persistence_unavailable", true));
  assert(!repeated(read, 503, "interrupted"));
  assert(!repeated(read, 429, "overloaded"));
  assert(!repeated(read, 502, "model_error"));
  assert(repeated(read, 502));
  assert(!repeated(once, 502));
});

test("an approver decides again instead of following what they may not read", async () => {
  const [session_id, task_id, request_id] = ["s", "t", "r"];
  const event = (/** @type {number} */ id, /** @type {string} */ name, /** @type {string} */ status) =>
    `event: ${name}\nid: ${id}\ndata: ${JSON.stringify({session_id, task_id, request_id, status})}\n\n`;
  const begun = event(4, "request", "Running");
  const streams = [begun, begun + event(5, "final-response", "Completed")];
  /** @type {string[]} */
  const methods = [];
  const refusal = {status: 401, headers: {"Content-Type": "application/problem+json"}};
  /** @type {typeof fetch} */
  const answered = async (_, {method = "GET"} = {}) => {
    methods.push(method);
    const stream = method === "POST" && streams.shift();
    if (stream) return new Response(stream, {headers: {"Content-Type": "text/event-stream"}});
    return new Response(JSON.stringify({code: "not_owner", request_id}), refusal);
  };
  const agent = new Client("http://127.0.0.1:1/A/1", {retry: {firstDelayMs: 1}, fetch: answered});
  const ids = [];
  for await (const {id} of agent.resumeStream(request_id, "approve")) ids.push(id);
  assert.deepEqual([ids, methods], [[4, 5], ["POST", "GET", "POST"]]);
  await assert.rejects(agent.follow(request_id).answer(), NotOwner);
  await assert.rejects(agent.resumeStream(request_id, "approve").answer(), NotOwner);
  assert.equal(methods.length, 5);
});
