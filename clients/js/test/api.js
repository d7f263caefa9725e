import assert from "node:assert/strict";
import {test} from "node:test";
import * as api from "../src/index.js";
import {ada, agentOf, service} from "./running.js";

const DELETE = 'call Files-delete {"path": "draft.md"}';
const NOWHERE = "00000000-0000-4000-8000-000000000000";

/**
 * @param {api.Answer} answer
 * @returns {string}
 */
function output({content}) {
  assert(content && "output" in content);
  return content.output;
}

/**
 * @param {api.Answer} answer
 * @returns {api.Pause}
 */
function pause({content}) {
  assert(content && "approval_id" in content);
  return content;
}

test("a follow-up message knows what was said", async () => {
  const options = {metadata: {channel: "test"}, user_context: {timezone: "UTC"}};
  const first = await ada.send("My name is Ada.", options);
  const second = await ada.send([{content_type: "text", content: "What is my name?"}], {task_id: first.task_id});
  assert.equal(output(second), "Your name is Ada.");
  assert.deepEqual((await ada.task(first.task_id)).metadata, {channel: "test"});
});

test("the same key gets the first outcome, without a second request", async () => {
  const first = await ada.send("hello", {idempotencyKey: "k"});
  const second = await ada.send("hello", {idempotencyKey: "k"});
  assert.equal(first.request_id, second.request_id);
  await assert.rejects(ada.send("bye", {idempotencyKey: "k"}), api.IdempotencyKeyReused);
});

test("a request in the background is acknowledged, waited for, and read", async () => {
  const {request_id, status} = await ada.background("pieces-4@20ms");
  assert.equal(status, "Running");
  assert.equal(output(await ada.wait(request_id)), "1 2 3 4");
  assert.equal((await ada.request(request_id)).status, "Completed");
});

test("an acknowledgement that was lost is found again under its key", async () => {
  const options = {idempotencyKey: "acknowledged"};
  const first = await ada.background("pieces-4@20ms", options);
  assert.equal((await ada.background("pieces-4@20ms", options)).request_id, first.request_id);
  assert.equal(output(await ada.send("pieces-4@20ms", options)), "1 2 3 4");
});

test("a canceled request fails for callers that wait for it", async () => {
  const {request_id, task_id} = await ada.background("pieces-1000@50ms");
  const busy = await ada.send("me too", {task_id}).catch((error) => error);
  assert(busy instanceof api.TaskBusy);
  assert.equal(busy.requestId, request_id);
  assert.equal(typeof busy.retryAfter, "number");
  const waiting = assert.rejects(ada.wait(request_id), api.RequestCanceled);
  assert.equal((await ada.cancel(request_id)).status, "Canceled");
  await waiting;
  await assert.rejects(ada.follow(request_id).answer(), api.RequestCanceled);
});

test("a pause is approved", async () => {
  const shown = pause(await ada.send(DELETE));
  assert.equal(shown.tool_calls[0]?.function_name, "delete");
  assert.equal(output(await ada.resume(shown, "approve")), "Files-delete said: draft.md is deleted");
  await assert.rejects(ada.resume(shown, "reject"), api.AlreadyDecided);
});

test("a pause that was decided is no longer among `approvals()`", async () => {
  const dora = agentOf("dora");
  const [first, second] = [pause(await dora.send(DELETE)), pause(await dora.send(DELETE))];
  await dora.resume(first, "reject");
  const ids = async (/** @type {ReturnType<typeof dora.approvals>} */ list) =>
    (await list.toArray()).map(({approval_id}) => approval_id);
  assert.deepEqual(await ids(dora.approvals()), [second.approval_id]);
  assert.deepEqual(await ids(dora.approvals({status: null})), [second.approval_id, first.approval_id]);
});

test("a pause is decided call by call, and followed from where its stream had ended", async () => {
  const stream = ada.stream(DELETE);
  const shown = pause(await stream.answer());
  const [inbox] = (await ada.approvals({status: "pending"}).page()).items;
  assert(inbox && "approval_id" in inbox);
  assert.equal(inbox.approval_id, shown.approval_id);
  const id = shown.tool_calls[0]?.id ?? "";
  const decisions = [{id, action: /** @type {const} */ ("approve"), arguments: {path: "notes.txt"}}];
  const events = [];
  const decision = {action: /** @type {const} */ ("reject"), reason: "no", decisions};
  const rest = ada.resumeStream(shown.request_id, decision, {after: stream.lastEventId});
  for await (const event of rest) events.push(event);
  assert.equal(events[0]?.id, stream.lastEventId + 1);
  assert.equal(output(await rest.answer()), "Files-delete said: notes.txt is deleted");
});

test("a message supersedes a pause", async () => {
  const {task_id, request_id} = await ada.send(DELETE);
  const refused = await ada.send("never mind", {task_id}).catch((error) => error);
  assert(refused instanceof api.ApprovalPending);
  assert.equal(refused.requestId, request_id);
  assert.equal((await ada.send("never mind", {task_id, supersede: true})).status, "Completed");
});

test("a task travels in time", async () => {
  const {task_id, session_id} = await ada.send("one");
  await ada.send("two", {task_id});
  const [newest, oldest] = await ada.checkpoints(task_id).toArray();
  assert(newest?.current && oldest);
  const said = async (/** @type {string} */ task_id, checkpoint_id = "") => {
    const messages = await ada.messages(task_id, checkpoint_id ? {checkpoint_id} : {}).toArray();
    return messages.filter(({role}) => role === "user").map(({items}) => items[0]?.content);
  };
  assert.equal((await ada.rollback(task_id, oldest.checkpoint_id)).checkpoint_id, oldest.checkpoint_id);
  assert.deepEqual(await said(task_id), ["one"]);
  assert.deepEqual(await said(task_id, newest.checkpoint_id), ["one", "two"]);

  const fork = await ada.fork(task_id, {checkpoint_id: newest.checkpoint_id});
  assert.equal(fork.session_id, session_id);
  assert.deepEqual(await said(fork.task_id), ["one", "two"]);
  assert((await ada.trace(task_id).toArray()).some(({kind}) => kind === "model"));
  assert.equal((await ada.audit(task_id).toArray())[0]?.seq, 1);
});

test("checkpoints make a tree", async () => {
  const {task_id} = await ada.send("one");
  await ada.send("two", {task_id});
  const [two, one] = await ada.checkpoints(task_id, {parents: true, limit: 1}).toArray();
  assert.deepEqual([two?.parent_id, one?.parent_id], [one?.checkpoint_id, null]);
  assert.equal((await ada.checkpoints(task_id).page()).items[0]?.parent_id, undefined);
});

test("a pause comes with the schema of its tool", async () => {
  const shown = pause(await ada.send(DELETE));
  const [call] = (await ada.approval(shown)).tool_calls;
  assert.deepEqual(call?.parameters?.required, ["path"]);
  await ada.cancel(shown.request_id);
});

test("what the model was sent is read page by page", async () => {
  const {task_id} = await ada.send("My name is Ada.");
  const {request_id} = await ada.send("What is my name?", {task_id});
  const list = ada.prompt(request_id, {limit: 1});
  const page = await list.page();
  const parts = await list.toArray();
  assert.equal(page.parts_sent, parts.length);
  assert.deepEqual(page.gaps, []);
  assert.deepEqual(parts.slice(-3).map(({origin}) => origin), ["history", "history", "request"]);
  await assert.rejects(ada.prompt(request_id, {step_id: NOWHERE}).page(), api.NotFound);
});

test("the service says who is asking, and shows the tenant to auditors only", async () => {
  assert.deepEqual(await ada.me(), {user: {tid: "mock", oid: "ada"}, roles: []});
  await assert.rejects(ada.tenantTasks({status: "Completed"}).page(), api.InsufficientScope);
});

test("a task is changed, exported, deleted and imported", async () => {
  const {task_id} = await ada.send("hello", {metadata: {a: 1, b: 2}});
  const changed = await ada.patchTask(task_id, {metadata: {a: null}, expires_at: new Date("2100-01-01")});
  assert.deepEqual(changed.metadata, {b: 2});
  assert.match(changed.expires_at ?? "", /^2100/);
  const document = await ada.exportTask(task_id);
  await assert.rejects(ada.importTask(document), api.AlreadyExists);
  await ada.deleteTask(task_id);
  await assert.rejects(ada.task(task_id), api.NotFound);
  assert.equal((await ada.importTask(document)).task_id, task_id);
});

test("a task is exported and imported as it is, numbers included that JavaScript has not", async () => {
  const {task_id} = await ada.send("hello", {metadata: {order: 1}});
  const document = (await ada.exportTask(task_id)).replace(/"order": *1\b/, '"order":9007199254740993');
  await ada.deleteTask(task_id);
  await ada.importTask(document);
  assert.match(await ada.exportTask(task_id), /"order": *9007199254740993\b/);
});

test("lists are read page by page", async () => {
  const cleo = agentOf("cleo");
  const {session_id} = await cleo.send("1");
  for (const text of ["2", "3", "4", "5"]) await cleo.send(text, {session_id});
  const all = await cleo.tasks({session_id, limit: 2}).toArray();
  assert.equal(new Set(all.map(({task_id}) => task_id)).size, 5);
  const first = await cleo.tasks({limit: 2}).page();
  const second = await cleo.tasks({limit: 2}).page(first.next_cursor);
  assert.deepEqual([...first.items, ...second.items], all.slice(0, 4));
  assert.deepEqual(await cleo.tasks({status: "Failed"}).toArray(), []);

  assert.deepEqual((await cleo.sessions().toArray()).map((session) => session.session_id), [session_id]);
  assert.equal((await cleo.session(session_id)).tasks?.length, 5);
  await cleo.deleteSession(session_id);
  assert.deepEqual(await cleo.tasks().toArray(), []);
});

test("errors have a class for each code", async () => {
  const {task_id} = await ada.send("mine");
  await assert.rejects(agentOf("bob").task(task_id), api.NotOwner);
  await assert.rejects(ada.task(NOWHERE), api.NotFound);
  await assert.rejects(agentOf("").task(task_id), api.Unauthenticated);
  const invalid = await ada.send([]).catch((error) => error);
  assert(invalid instanceof api.InvalidRequest);
  assert.deepEqual([invalid.name, invalid.status, invalid.field], ["InvalidRequest", 422, "items"]);
  await assert.rejects(async () => ada.task("../tasks"), TypeError);
  await assert.rejects(new api.Client(service.url.replace("Janitor", "Nobody")).health(), api.NotFound);
});

test("a token that no header can hold is not shown", async () => {
  for (const token of ["hunter\n2", "hunter2∑"]) {
    await assert.rejects(agentOf(token).me(), ({name, message}) => name === "TypeError" && !message.includes("hunter"));
  }
  assert.equal((await agentOf("hunter2\n").me()).user.oid, "hunter2");
});

test("a token that the service refuses is asked for once more", async () => {
  /** @type {boolean[]} */
  const asked = [];
  const renewing = agentOf(async ({refused}) => (asked.push(refused), refused ? "ada" : "x".repeat(300)));
  assert.equal((await renewing.send("hello")).status, "Completed");
  assert.deepEqual(asked, [false, true]);
  const stubborn = agentOf(() => "x".repeat(300));
  await assert.rejects(stubborn.send("hello"), api.Unauthenticated);
});

test("a call ends at its signal, and so does a stream; the request continues", async () => {
  await assert.rejects(ada.send("hello", {signal: AbortSignal.abort(new Error("enough"))}), /enough/);
  const controller = new AbortController();
  const stream = ada.stream("pieces-5@20ms", {signal: controller.signal});
  await assert.rejects(async () => {
    for await (const {event} of stream) if (event === "partial-response") controller.abort(new Error("enough"));
  }, /enough/);
  assert.equal(output(await ada.wait(stream.requestId ?? "")), "1 2 3 4 5");
});

test("the service reports its health", async () => {
  assert.equal((await ada.health()).status, "ok");
});
