import assert from "node:assert/strict";
import {once} from "node:events";
import {createServer} from "node:http";
import {test} from "node:test";
import {setTimeout as pass} from "node:timers/promises";
import {Client, ConnectionLost, NotFound, NotOwner, UnexpectedAnswer} from "../src/index.js";
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

test("a limit that is left undefined is the one that holds by default", async (t) => {
  const none = {attempts: undefined, firstDelayMs: undefined, longestDelayMs: undefined, longestWaitMs: undefined};
  for (const retry of [none, undefined]) {
    const budget = new Budget(retry);
    assert.equal(budget.longestDelayMs, 8_000);
    for (let failures = 0; failures < 10; failures++) assert((budget.delayMs() ?? 0) >= 100);
    assert.equal(budget.delayMs(), null);
    assert.equal(new Budget(retry).delayMs(61), null);
  }
  t.mock.timers.enable({apis: ["setTimeout"]});
  /** @type {typeof fetch} */
  const silent = async (_, {signal} = {}) => (t.mock.timers.tick(30_000), signal?.throwIfAborted(), new Response("{}"));
  const agent = new Client(URL_OF_AN_AGENT, {retry: {attempts: 0}, timeouts: {callMs: undefined}, fetch: silent});
  await assert.rejects(agent.me(), /no byte within 30000 ms/);
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

test("what others did in between is not undone by a repetition", async () => {
  const calls = [
    (/** @type {Client} */ agent) => agent.deleteSession("s"),
    (/** @type {Client} */ agent) => agent.rollback("t", "c"),
  ];
  /** @type {[() => Response, object, number][]} */
  const troubles = [
    [() => assert.fail(new TypeError("network")), ConnectionLost, 1],
    [() => new Response("<html>", {status: 502}), {status: 502}, 1],
    [() => new Response('{"code": "draining"}', {status: 503}), NotFound, 2],
  ];
  for (const call of calls) {
    for (const [trouble, error, times] of troubles) {
      let sent = 0;
      const answered = async () =>
        ++sent === 1 ? trouble() : new Response('{"code": "not_found"}', {status: 404});
      const agent = new Client(URL_OF_AN_AGENT, {retry: {firstDelayMs: 1}, fetch: answered});
      await assert.rejects(call(agent), error);
      assert.equal(sent, times);
    }
  }
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

test("an approver decides again instead of waiting for what they may not read", async () => {
  const statuses = ["Running", "Running", "Running", "Completed"];
  /** @type {string[]} */
  const methods = [];
  /** @type {typeof fetch} */
  const answered = async (_, {method = "GET"} = {}) => {
    methods.push(method);
    if (method === "GET") return new Response('{"code": "not_owner"}', {status: 401});
    return new Response(JSON.stringify({...IDS, status: statuses.shift() ?? "Running", content: null}));
  };
  const agent = new Client(URL_OF_AN_AGENT, {retry: {firstDelayMs: 1}, fetch: answered});
  assert.equal((await agent.resume("r", "approve")).status, "Completed");
  assert.deepEqual(methods.splice(0), ["POST", "GET", "POST", "POST", "POST"]);
  await assert.rejects(agent.send("Hi"), NotOwner);
  assert.deepEqual(methods, ["POST", "GET"]);
});

test("a message whose stream may not be followed is not sent again, under whatever token", async () => {
  /** @type {string[]} */
  const methods = [];
  const refusal = {status: 401, headers: {"Content-Type": "application/problem+json"}};
  /** @type {typeof fetch} */
  const answered = async (_, {method = "GET"} = {}) => {
    methods.push(method);
    return method === "POST" ? new Response(BEGUN, STREAM) : new Response('{"code": "not_owner"}', refusal);
  };
  const agent = new Client(URL_OF_AN_AGENT, {retry: {firstDelayMs: 1}, fetch: answered});
  await assert.rejects(agent.stream("Hi").answer(), NotOwner);
  assert.deepEqual(methods, ["POST", "GET"]);
});

const URL_OF_AN_AGENT = "http://127.0.0.1:1/A/1";
const STREAM = {headers: {"Content-Type": "text/event-stream"}};
const IDS = {session_id: "s", task_id: "t", request_id: "r"};
const BEGUN = `event: request\nid: 1\ndata: ${JSON.stringify({...IDS, status: "Running"})}\n\n`;
const END = `event: final-response\nid: 2\ndata: ${JSON.stringify({...IDS, status: "Completed"})}\n\n`;

const unsent = () => assert.fail("it was sent");

/**
 * A body that comes in these chunks, and breaks when its connection is given up.
 *
 * @param {AbortSignal | null | undefined} signal
 * @param {Iterable<string>} chunks
 * @param {() => void} [before] called before each of them
 */
function body(signal, chunks, before = () => {}) {
  const left = chunks[Symbol.iterator]();
  return new ReadableStream({
    pull(controller) {
      const {done, value = ""} = left.next();
      if (done) return controller.close();
      before();
      if (signal?.aborted) return controller.error(signal.reason);
      controller.enqueue(new TextEncoder().encode(value));
    },
  }, {highWaterMark: 0});
}

test("an answer that takes longer than the timeout to arrive is no silence while its bytes flow", async (t) => {
  t.mock.timers.enable({apis: ["setTimeout"]});
  const document = JSON.stringify({task_id: "t", text: "€"});
  /** @type {typeof fetch} */
  const slowly = async (_, {signal} = {}) => new Response(body(signal, document, () => t.mock.timers.tick(80)));
  const agent = new Client(URL_OF_AN_AGENT, {retry: {attempts: 0}, timeouts: {callMs: 100}, fetch: slowly});
  assert.equal(await agent.exportTask("t"), document);
});

test("a body that takes longer than the timeout to be sent is no silence; what follows it may be", async (t) => {
  t.mock.timers.enable({apis: ["setTimeout"]});
  const waits = [1000, 120];
  /** @type {typeof fetch} */
  const answered = async (_, {signal} = {}) => {
    t.mock.timers.tick(waits.shift() ?? 0);
    signal?.throwIfAborted();
    return new Response(body(signal, [END], () => t.mock.timers.tick(waits.shift() ?? 0)), STREAM);
  };
  const agent = new Client(URL_OF_AN_AGENT, {retry: {attempts: 0}, timeouts: {silenceMs: 100}, fetch: answered});
  await assert.rejects(agent.stream("x".repeat(16_000)).answer(), /no byte within 100 ms/);
  assert.deepEqual(waits, []);
});

test("the time that a token takes is no silence", async (t) => {
  t.mock.timers.enable({apis: ["setTimeout"]});
  const token = async () => (t.mock.timers.tick(1000), "ada");
  /** @type {typeof fetch} */
  const answered = async (_, {signal} = {}) => (signal?.throwIfAborted(), new Response('{"task_id": "t"}'));
  const agent = new Client(URL_OF_AN_AGENT, {token, retry: {attempts: 0}, timeouts: {callMs: 100}, fetch: answered});
  assert.equal((await agent.task("t")).task_id, "t");
});

test("a timeout of Infinity is none", async () => {
  /** @type {typeof fetch} */
  const answered = async (_, {signal} = {}) => {
    // a timer that does not take such a time ends after one millisecond, and so before this one
    await pass(5, undefined, signal ? {signal} : {});
    return new Response('{"task_id": "t"}');
  };
  const agent = new Client(URL_OF_AN_AGENT, {retry: {attempts: 0}, timeouts: {callMs: Infinity}, fetch: answered});
  assert.equal((await agent.task("t")).task_id, "t");
});

test("a stream whose connections last is followed however often they are closed", async (t) => {
  t.mock.timers.enable({apis: ["Date"]});
  const begun = `event: request\nid: 1\ndata: ${JSON.stringify({...IDS, status: "Queued"})}\n\n`;
  const connections = [begun, ...Array(20).fill(": keepalive\n\n"), END];
  /** @type {typeof fetch} */
  const answered = async (_, {signal} = {}) =>
    new Response(body(signal, [connections.shift() ?? ""], () => t.mock.timers.tick(100)), STREAM);
  const agent = new Client(URL_OF_AN_AGENT, {retry: {attempts: 2, firstDelayMs: 1, longestDelayMs: 5}, fetch: answered});
  assert.equal((await agent.stream("hello").answer()).status, "Completed");
});

test("a connection without a byte is no progress, however long it lasts", async (t) => {
  t.mock.timers.enable({apis: ["Date"]});
  let connections = 0;
  /** @type {typeof fetch} */
  const answered = async (_, {signal} = {}) => {
    if (++connections > 20) assert.fail("it is not given up");
    return new Response(body(signal, {*[Symbol.iterator]() { t.mock.timers.tick(100); }}), STREAM);
  };
  const agent = new Client(URL_OF_AN_AGENT, {retry: {attempts: 2, firstDelayMs: 1, longestDelayMs: 5}, fetch: answered});
  await assert.rejects(agent.stream("hello").answer(), ConnectionLost);
  assert.equal(connections, 3);
});

test("a gateway's 502 whose document has a code of its own is overcome like any other", async () => {
  const answers = [502, "UPSTREAM_DOWN"].map((code) => new Response(JSON.stringify({code}), {status: 502}));
  answers.push(new Response('{"task_id": "t"}'));
  const answered = async () => answers.shift() ?? assert.fail("it was asked again");
  const agent = new Client(URL_OF_AN_AGENT, {retry: {firstDelayMs: 1}, fetch: answered});
  assert.equal((await agent.task("t")).task_id, "t");
});

test("a stream that is not read is closed: none was asked for, or its caller failed", async () => {
  /** @type {(AbortSignal | null | undefined)[]} */
  const signals = [];
  /** @type {typeof fetch} */
  const answered = async (_, {signal} = {}) => (signals.push(signal), new Response(body(signal, [END]), STREAM));
  const agent = new Client(URL_OF_AN_AGENT, {fetch: answered});
  await assert.rejects(agent.send("hello"), UnexpectedAnswer);
  const onOpen = () => assert.fail("in the caller");
  await assert.rejects(agent.stream("hello", {onOpen}).answer(), /in the caller/);
  assert.deepEqual(signals.map((signal) => signal?.aborted), [true, true]);
});

/**
 * An agent whose stream has one event until a test asks for the rest, which comes whole; the time of the timeouts
 * passes only where a test lets it.
 *
 * @param {import("node:test").TestContext} t
 */
async function inTwoParts(t) {
  t.mock.timers.enable({apis: ["setTimeout"]});
  let rest = async () => {};
  const server = createServer((request, response) => {
    request.resume();
    response.writeHead(200, STREAM.headers);
    response.write(`event: request\nid: 1\ndata: ${JSON.stringify(IDS)}\n\n`);
    rest = async () => {
      const closed = once(response, "close");
      response.end(END);
      await closed;
    };
  }).listen(0, "127.0.0.1");
  t.after(() => (server.closeAllConnections(), server.close()));
  await once(server, "listening");
  const {port} = /** @type {import("node:net").AddressInfo} */ (server.address());
  const url = `http://127.0.0.1:${port}/A/1`;
  return {agent: new Client(url, {retry: {attempts: 0}, timeouts: {silenceMs: 100}}), rest: () => rest()};
}

test("the time that a reader takes for an event is no silence", async (t) => {
  const {agent, rest} = await inTwoParts(t);
  const seen = [];
  for await (const {event} of agent.stream("hello")) {
    seen.push(event);
    if (event === "request") {
      await rest();
      t.mock.timers.tick(400);
    }
  }
  assert.deepEqual(seen, ["request", "final-response"]);
});

test("a stream that is aborted once all of it has come ends with the signal's reason", async (t) => {
  const {agent, rest} = await inTwoParts(t);
  const controller = new AbortController();
  await assert.rejects(async () => {
    for await (const _ of agent.stream("hello", {signal: controller.signal})) {
      await rest();
      for (let round = 0; round < 100; round++) await new Promise(setImmediate); // it is read from the socket
      controller.abort(new Error("enough"));
    }
  }, /enough/);
});

test("a second reader of a stream is refused, and takes no event from the first", async () => {
  /** @type {typeof fetch} */
  const answered = async (_, {signal} = {}) => new Response(body(signal, [BEGUN, END]), STREAM);
  const stream = new Client(URL_OF_AN_AGENT, {fetch: answered}).stream("hello");
  const seen = [];
  for await (const {event} of stream) {
    seen.push(event);
    if (event !== "request") continue;
    for (const read of [() => stream.answer(), () => stream[Symbol.asyncIterator]().next()]) {
      await assert.rejects(read(), {name: "TypeError", message: /one reader/});
    }
  }
  assert.deepEqual(seen, ["request", "final-response"]);
  assert.equal((await stream.answer()).status, "Completed");
});

test("a stream whose reader has failed can be read on", async () => {
  /** @type {typeof fetch} */
  const answered = async (_, {signal} = {}) => new Response(body(signal, [BEGUN, END]), STREAM);
  const stream = new Client(URL_OF_AN_AGENT, {fetch: answered}).stream("hello");
  await assert.rejects(async () => {
    for await (const _ of stream) throw new Error("enough");
  }, /enough/);
  assert.equal((await stream.answer()).status, "Completed");
});

test("a stream that is aborted gives no further event, even if it has come already", async () => {
  const more = `event: partial-response\nid: 2\ndata: ${JSON.stringify({...IDS, output_partial: "a"})}\n\n`;
  /** @type {typeof fetch} */
  const answered = async (_, {signal} = {}) => new Response(body(signal, [BEGUN + more, END.replace("2", "3")]), STREAM);
  const agent = new Client(URL_OF_AN_AGENT, {fetch: answered});
  const controller = new AbortController();
  /** @type {string[]} */
  const seen = [];
  await assert.rejects(async () => {
    for await (const {event} of agent.stream("hello", {signal: controller.signal})) {
      seen.push(event);
      controller.abort(new Error("enough"));
    }
  }, /enough/);
  assert.deepEqual(seen, ["request"]);
});

test("a signal also ends the wait for a token, and one that is aborted asks for none", async () => {
  let asked = 0;
  const controller = new AbortController();
  const token = () => {
    asked += 1;
    setImmediate(() => controller.abort(new Error("enough")));
    return /** @type {Promise<string>} */ (new Promise(() => {}));
  };
  const agent = new Client(URL_OF_AN_AGENT, {token, fetch: unsent});
  const options = {signal: controller.signal};
  for (const call of [
    () => agent.me(options), () => agent.send("hello", options), () => agent.stream("hello", options).answer(),
  ]) await assert.rejects(call(), /enough/);
  assert.equal(asked, 1);
});

test("what a token function throws is thrown unchanged", async () => {
  const agent = new Client(URL_OF_AN_AGENT, {token: () => assert.fail(new RangeError("signed out")), fetch: unsent});
  await assert.rejects(agent.me({signal: new AbortController().signal}), {name: "RangeError", message: "signed out"});
});

test("what aborts the call and throws at once leaves no rejection that is unhandled, which would end Node.js", async (t) => {
  const unhandled = t.mock.fn();
  process.on("unhandledRejection", unhandled);
  t.after(() => process.off("unhandledRejection", unhandled));
  for (const name of ["token", "fetch"]) {
    const leave = new AbortController();
    const thrower = () => (leave.abort(new Error("left")), assert.fail(new RangeError("signed out")));
    const agent = new Client(URL_OF_AN_AGENT, {fetch: unsent, [name]: thrower});
    await assert.rejects(agent.me({signal: leave.signal}), name === "token" ? /signed out/ : /left/);
  }
  await pass(0); // until Node.js has looked for such rejections
  assert.equal(unhandled.mock.callCount(), 0);
});

test("a call for which no connection was made is not in doubt", async () => {
  /** @type {[object, boolean][]} */
  const causes = [
    [{code: "ECONNREFUSED", syscall: "connect"}, false],
    [{code: "EHOSTUNREACH", syscall: "connect"}, false],
    [{code: "ENETUNREACH", syscall: "connect"}, false],
    [{code: "EADDRNOTAVAIL", syscall: "connect"}, false],
    [{code: "ENETUNREACH", name: "AggregateError"}, false],
    [{code: "ENOTFOUND", syscall: "getaddrinfo"}, false],
    [{code: "EAI_AGAIN", syscall: "getaddrinfo"}, false],
    [{code: "UND_ERR_CONNECT_TIMEOUT", name: "ConnectTimeoutError"}, false],
    [{code: "CERT_HAS_EXPIRED"}, false],
    [{code: "DEPTH_ZERO_SELF_SIGNED_CERT"}, false],
    [{code: "UNABLE_TO_VERIFY_LEAF_SIGNATURE"}, false],
    [{code: "ERR_TLS_CERT_ALTNAME_INVALID"}, false],
    [{code: "EHOSTUNREACH", syscall: "read"}, true],
    [{code: "ECONNRESET", syscall: "read"}, true],
    [{code: "UND_ERR_SOCKET", name: "SocketError"}, true],
    [{code: "HPE_CLOSED_CONNECTION", name: "HTTPParserError"}, true],
    [{}, true],
  ];
  for (const [known, inDoubt] of causes) {
    const cause = Object.assign(new Error("no answer"), known);
    const lost = () => assert.fail(new TypeError("fetch failed", {cause}));
    const agent = new Client(URL_OF_AN_AGENT, {fetch: lost, retry: {attempts: 0}});
    const error = await agent.fork("t").catch((error) => error);
    assert.deepEqual([error.name, error.inDoubt], ["ConnectionLost", inDoubt], JSON.stringify(known));
  }
});

test("a page in answer to a deletion has deleted nothing", async () => {
  const agent = new Client(URL_OF_AN_AGENT, {fetch: async () => new Response("<html>sign in</html>")});
  await assert.rejects(agent.deleteTask("t"), UnexpectedAnswer);
});

test("what only a refused attempt could have deleted is not found", async () => {
  const [draining, gone] = ['{"code": "draining"}', '{"code": "not_found"}'];
  for (const lost of [false, true]) {
    const answers = [() => new Response(draining, {status: 503}), () => new Response(gone, {status: 404})];
    if (lost) answers.unshift(() => assert.fail(new TypeError("network")));
    const answered = async () => /** @type {() => Response} */ (answers.shift())();
    const agent = new Client(URL_OF_AN_AGENT, {retry: {firstDelayMs: 1}, fetch: answered});
    if (lost) await agent.deleteTask("t");
    else await assert.rejects(agent.deleteTask("t"), NotFound);
  }
});

test("a list that is aborted gives no further item, even if its page has come already", async () => {
  const leave = new AbortController();
  const page = '{"items": [{"task_id": "1"}, {"task_id": "2"}], "next_cursor": null}';
  const agent = new Client(URL_OF_AN_AGENT, {fetch: async () => new Response(page)});
  let seen = 0;
  await assert.rejects(async () => {
    for await (const _ of agent.tasks({signal: leave.signal})) {
      seen += 1;
      leave.abort(new Error("enough"));
    }
  }, /enough/);
  assert.equal(seen, 1);
});

test("a pause that an event of a later version follows is no end", async () => {
  const ids = {session_id: "s", task_id: "t", request_id: "r"};
  const event = (/** @type {string} */ name, /** @type {number} */ id, content = {}) =>
    `event: ${name}\nid: ${id}\ndata: ${JSON.stringify({...ids, content})}\n\n`;
  const logs = [
    event("request", 1) + event("approval-required", 2) + event("decided", 3),
    event("final-response", 4, {output: "done"}),
  ];
  /** @type {(string | null)[]} */
  const after = [];
  /** @type {typeof fetch} */
  const answered = async (_, {headers} = {}) => {
    after.push(new Headers(headers).get("Last-Event-ID"));
    return new Response(logs.shift() ?? "", {headers: {"Content-Type": "text/event-stream"}});
  };
  const agent = new Client(URL_OF_AN_AGENT, {retry: {firstDelayMs: 1}, fetch: answered});
  const names = [];
  for await (const {event} of agent.stream("hello")) names.push(event);
  assert.deepEqual(names, ["request", "final-response"]);
  assert.deepEqual(after, [null, "3"]);
});

test("a `Retry-After` is a number or a date, and a negative number is no year", async () => {
  const date = "Thu, 01 Jan 1970 00:00:00 GMT";
  for (const [said, seconds] of /** @type {[string, number | null][]} */ ([
    ["7", 7], ["-3600", 0], ["Thu, 01 Jan 1970 00:00:09 GMT", 9], [date, 0], ["soon", null],
  ])) {
    const headers = {"Retry-After": said, Date: date};
    const agent = new Client(URL_OF_AN_AGENT, {fetch: async () => new Response("{}", {status: 429, headers})});
    await assert.rejects(agent.me(), {retryAfter: seconds}, said);
  }
});
