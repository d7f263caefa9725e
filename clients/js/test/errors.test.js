import assert from "node:assert/strict";
import {test} from "node:test";
import {Client, ClientError, UnexpectedAnswer} from "../src/index.js";

const URL_OF_AN_AGENT = "http://127.0.0.1:1/A/1";
const IDS = {session_id: "s", task_id: "t", request_id: "r"};
const STREAM = {headers: {"Content-Type": "text/event-stream"}};

/**
 * A client of a server that answers everything with this.
 *
 * @param {string | null} body
 * @param {ResponseInit} [init]
 */
function answeredWith(body, init) {
  return new Client(URL_OF_AN_AGENT, {retry: {attempts: 0}, fetch: async () => new Response(body, init)});
}

test("whatever a server sends is a ClientError", async () => {
  const inProgress = JSON.stringify({...IDS, code: "request_in_progress", request_id: "../me"});
  for (const [body, status] of /** @type {[string, number][]} */ ([
    ["null", 200],
    ["{}", 200],
    [JSON.stringify({...IDS, status: "Running", request_id: "../me"}), 200],
    ["null", 500],
    [inProgress, 409],
  ])) {
    await assert.rejects(answeredWith(body, {status}).send("hello"), ClientError, body);
    await assert.rejects(answeredWith(body, {status}).stream("hello").answer(), ClientError, body);
  }
});

test("what a gateway says in JSON of its own is quoted", async () => {
  for (const body of [
    '{"error": {"message": "RBAC: access denied"}}',
    '{"detail": [{"msg": "RBAC: access denied"}]}',
    '{"message": "RBAC: access denied", "title": 7}',
  ]) {
    const error = await answeredWith(body, {status: 403}).me().catch((error) => error);
    assert.equal(error.detail, `HTTP 403 without a problem document, body: ${body}`);
    assert.deepEqual(error.problem, JSON.parse(body));
  }
});

test("a document without its ids did not come from this service", async () => {
  for (const body of ["{}", '{"status": "ok"}', '{"task_id": "../me", "user": {"oid": ""}}']) {
    const agent = answeredWith(body);
    const [id, pause] = ["r", {request_id: "r", approval_id: "a"}];
    for (const call of [
      agent.request(id), agent.wait(id), agent.cancel(id), agent.background("hello"), agent.approval(pause),
      agent.session(id), agent.task(id), agent.patchTask(id, {}), agent.rollback(id, "c"), agent.fork(id),
      agent.importTask("{}"), agent.me(),
    ]) await assert.rejects(call, UnexpectedAnswer, body);
  }
});

test("the error of a message knows the key that the message was sent with, and no other does", async () => {
  /** @type {(string | null)[]} */
  const sent = [];
  /** @type {(() => Response)[]} */
  const answers = [
    () => new Response("<html>", {status: 504}),
    () => new Response("<html>"),
    () => new Response(`event: error\nid: 1\ndata: ${JSON.stringify({...IDS, code: "model_error"})}\n\n`, STREAM),
    () => assert.fail(new TypeError("network")),
  ];
  for (const answer of answers) {
    /** @type {typeof fetch} */
    const answered = async (_, {headers} = {}) => (sent.push(new Headers(headers).get("Idempotency-Key")), answer());
    const agent = new Client(URL_OF_AN_AGENT, {retry: {attempts: 0}, fetch: answered});
    for (const call of [
      () => agent.send("hello"), () => agent.background("hello"), () => agent.stream("hello").answer(),
      () => agent.send("hello", {idempotencyKey: "mine"}), () => agent.task("t"), () => agent.follow("r").answer(),
    ]) {
      sent.length = 0;
      const error = await call().catch((error) => error);
      assert(error instanceof ClientError, error);
      assert.equal(error.idempotencyKey, sent[0]);
    }
  }
});

test("a failure is known to be replayed, also where it comes as a stream that breaks off", async () => {
  for (const replayed of [true, false]) {
    const headers = {...STREAM.headers, ...(replayed ? {"Idempotent-Replayed": "true"} : {})};
    const begun = `event: request\nid: 1\ndata: ${JSON.stringify(IDS)}\n\n`;
    const end = `event: error\nid: 2\ndata: ${JSON.stringify({...IDS, code: "model_error"})}\n\n`;
    for (const streams of [[begun + end], [begun, end]]) {
      const answers = streams.map((body, index) => new Response(body, index ? STREAM : {headers}));
      const answered = async () => answers.shift() ?? assert.fail("it was asked again");
      const agent = new Client(URL_OF_AN_AGENT, {retry: {firstDelayMs: 1}, fetch: answered});
      const error = await agent.stream("hello").answer().catch((error) => error);
      assert.deepEqual([error.name, error.replayed], ["ModelError", replayed]);
    }
  }
});

test("every attempt sends the same message, whatever the program changes meanwhile", async () => {
  /** @type {{key: string | null, body: unknown}[]} */
  const sent = [];
  const text = () => ({content_type: /** @type {const} */ ("text"), content: "one"});
  let [item, metadata] = [text(), {channel: "one"}];
  /** @type {typeof fetch} */
  const answered = async (_, {headers, body} = {}) => {
    sent.push({key: new Headers(headers).get("Idempotency-Key"), body});
    item.content = metadata.channel = "two";
    return sent.length === 1 ? assert.fail(new TypeError("network")) : new Response(JSON.stringify(IDS));
  };
  const agent = new Client(URL_OF_AN_AGENT, {retry: {firstDelayMs: 1}, fetch: answered});
  for (const call of [
    () => agent.send([item], {metadata}), () => agent.background([item], {metadata}),
    () => agent.stream([item], {metadata})[Symbol.asyncIterator]().next(),
    () => agent.resume("r", {decisions: [{id: "c", arguments: metadata}]}),
  ]) {
    sent.length = 0;
    [item, metadata] = [text(), {channel: "one"}];
    await call();
    assert.deepEqual(sent[0], sent[1]);
    assert.doesNotMatch(String(sent[0]?.body), /two/);
  }
});

test("an idempotency key that is null is made anew, as one that is absent", async () => {
  const sent = new Set();
  /** @type {typeof fetch} */
  const answered = async (_, {headers} = {}) => {
    sent.add(new Headers(headers).get("Idempotency-Key"));
    return new Response("{}");
  };
  const agent = new Client(URL_OF_AN_AGENT, {retry: {attempts: 0}, fetch: answered});
  for (const idempotencyKey of [null, null, undefined]) {
    await assert.rejects(agent.send("hello", {idempotencyKey}), UnexpectedAnswer);
  }
  assert.equal(sent.size, 3);
  assert(!sent.has("null"));
});

test("the message of a problem is text, whatever the document holds", async () => {
  const detail = {why: "no room"};
  await assert.rejects(answeredWith(JSON.stringify({title: "Too large", detail}), {status: 413}).send("hello"), {
    message: "Too large",
    detail: "Too large",
  });
  await assert.rejects(answeredWith(JSON.stringify({title: 3, detail}), {status: 413}).send("hello"), {
    message: 'HTTP 413 without a problem document, body: {"title":3,"detail":{"why":"no room"}}',
  });
});

test("whatever a stream brings is an event or a ClientError", async () => {
  for (const data of ["null", "3", "[]", "{", JSON.stringify({...IDS, request_id: "../me"})]) {
    for (const event of ["request", "partial-response", "approval-required", "error"]) {
      const client = answeredWith(`event: ${event}\ndata: ${data}\n\n`, STREAM);
      const wait = client.stream("hello").answer();
      if (event !== "approval-required" || !data.startsWith('{"')) await assert.rejects(wait, ClientError, data);
    }
  }
  await assert.rejects(answeredWith(null, STREAM).stream("hello").answer(), ClientError);
});

test("the lines of a stream end as a server likes", async () => {
  const events = [["request", IDS], ["final-response", {...IDS, status: "Completed", content: null}]];
  for (const end of ["\n", "\r\n", "\r"]) {
    const lines = events.flatMap(([event, data], id) => [`event: ${event}`, `id: ${id}`, `data: ${JSON.stringify(data)}`, ""]);
    const stream = answeredWith(lines.map((line) => line + end).join(""), STREAM).stream("hello");
    assert.equal((await stream.answer()).status, "Completed", JSON.stringify(end));
  }
});

test("a message that is answered with nothing is an unexpected answer", async () => {
  await assert.rejects(answeredWith(null, {status: 204}).stream("hello").answer(), {name: "UnexpectedAnswer"});
});

test("a method that returns a promise rejects it, also where the program is mistaken", async () => {
  const unsent = /** @type {any} */ (new Client(URL_OF_AN_AGENT, {fetch: () => assert.fail("it was sent")}));
  const [id, pause] = ["a/b", {request_id: "a/b", approval_id: "a"}];
  for (const call of [
    () => unsent.send("hello", {taskId: "t"}), () => unsent.background("hello", {taskId: "t"}),
    () => unsent.request(id), () => unsent.wait(id), () => unsent.cancel(id), () => unsent.resume(id, "approve"),
    () => unsent.approval(pause), () => unsent.session(id), () => unsent.deleteSession(id), () => unsent.task(id),
    () => unsent.patchTask(id, {}), () => unsent.deleteTask(id), () => unsent.rollback(id, "c"), () => unsent.fork(id),
    () => unsent.exportTask(id), () => unsent.health(null),
  ]) await assert.rejects(call(), TypeError, String(call));
});

test("a mistake in the program is said before anything is sent", async () => {
  const secret = "http://user:secret@host/A/1";
  for (const url of ["A/1", "ftp://host/A/1", secret, "http://host/A/1?b=c", "http://host/A/1?", "http://host/A/1#"]) {
    assert.throws(() => new Client(url), (error) => error instanceof TypeError && !error.message.includes("secret"), url);
  }
  const unsent = new Client(URL_OF_AN_AGENT, {fetch: () => assert.fail("it was sent")});
  for (const idempotencyKey of /** @type {any[]} */ (["n\u00e9", "a\nb", "", " ", " a", "a ", 5, false, {}])) {
    await assert.rejects(async () => unsent.send("hello", {idempotencyKey}), TypeError);
  }
  for (const send of ["send", "stream", "background"]) {
    await assert.rejects(async () => /** @type {any} */ (unsent)[send]("hello", {taskId: "t"}), /no option taskId/);
  }
  /** @type {((options: any) => unknown)[]} */
  const lists = [
    (options) => unsent.tasks({session_id: "s", status: "Paused", ...options}),
    (options) => unsent.sessions({limit: 1, cursor: "c", signal: undefined, ...options}),
    (options) => unsent.approvals({status: "decided", ...options}),
    (options) => unsent.tenantTasks({oid: "o", status: "Paused", metadata: "a:b", ...options}),
    (options) => unsent.messages("t", {checkpoint_id: "c", ...options}),
    (options) => unsent.checkpoints("t", {parents: true, ...options}),
    (options) => unsent.trace("t", options),
    (options) => unsent.audit("t", options),
    (options) => unsent.prompt("r", {step_id: "s", ...options}),
  ];
  for (const list of lists) {
    list({});
    assert.throws(() => list({sessionId: "s"}), {name: "TypeError", message: /has no option sessionId/});
  }
  for (const given of /** @type {any[]} */ ([undefined, null, 5, {}])) {
    for (const token of [() => given, async () => given]) {
      const without = new Client(URL_OF_AN_AGENT, {token, fetch: () => assert.fail("it was sent")});
      await assert.rejects(without.me(), /TypeError: the token is not one line of printable ASCII/);
    }
  }
  for (const id of [undefined, null, 5, "a/b"]) {
    await assert.rejects(async () => unsent.task(/** @type {any} */ (id)), TypeError);
  }
  for (const after of /** @type {any[]} */ ([NaN, -1, 1.5, 2 ** 53, Infinity, "two", {}])) {
    assert.throws(() => unsent.follow("r", {after}), /TypeError: `after` is not the number of an event/);
    assert.throws(() => unsent.resumeStream("r", "approve", {after}), TypeError);
  }
  for (const after of /** @type {any[]} */ (["2", 2, undefined, null])) {
    assert.equal(unsent.follow("r", {after}).lastEventId, Number(after ?? 0));
  }
  // JSON would say null, which stands for a task that never expires, or for a key that is to be removed
  await assert.rejects(unsent.patchTask("t", {expires_at: new Date("tomorrow")}), /expires_at/);
  await assert.rejects(unsent.send("hello", {metadata: {price: NaN}}), /price/);
  for (const list of /** @type {any[]} */ ([[undefined], [() => 1], [Symbol("s")], [1, , 2], new Map([["a", 1]]), new Set()])) {
    await assert.rejects(unsent.send("hello", {metadata: {list}}), /TypeError: .*, which JSON cannot hold/);
    await assert.rejects(unsent.patchTask("t", {metadata: list}), /TypeError: .*, which JSON cannot hold/);
  }
});
