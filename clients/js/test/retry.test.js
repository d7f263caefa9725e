import assert from "node:assert/strict";
import {test} from "node:test";
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
