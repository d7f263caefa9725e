import {Calls, IDEMPOTENCY_KEY} from "./calls.js";
import {List} from "./list.js";
import {EventStream} from "./stream.js";
import {EVENT_STREAM, printable, segment} from "./wire.js";

export class Client {
#calls;

constructor(url, options = {}) {
this.url = prefix(new URL(url));
this.#calls = new Calls(this.url, options);
}


send(input, options = {}) {
return this.#calls.answer(message(input, options), options.signal);
}

stream(input, options = {}) {
const {signal, onReconnect} = options;
return new EventStream(this.#calls, asStream(message(input, options)), {signal, onReconnect});
}

background(input, options = {}) {
return this.#calls.accepted(inBackground(message(input, options)), options.signal);
}

request(request_id, {signal} = {}) {
return this.#calls.found(request_id, signal);
}

wait(request_id, {signal} = {}) {
return this.#calls.waited(request_id, signal);
}

follow(request_id, options = {}) {
return new EventStream(this.#calls, request_id, options);
}

prompt(request_id, options = {}) {
return new List(this.#calls, `/requests/${segment(request_id)}/prompt`, options);
}

cancel(request_id, {signal} = {}) {
return this.#calls.document(change("POST", `/requests/${segment(request_id)}/cancel`), signal);
}


resume(of, decision, {signal} = {}) {
return this.#calls.answer(resumption(of, decision), signal);
}

resumeStream(of, decision, options = {}) {
return new EventStream(this.#calls, asStream(resumption(of, decision)), options);
}

approvals(options = {}) {
return new List(this.#calls, "/approvals", options);
}

approval({request_id, approval_id}, {signal} = {}) {
return this.#calls.document(read(`/requests/${segment(request_id)}/approvals/${segment(approval_id)}`), signal);
}


sessions(options = {}) {
return new List(this.#calls, "/sessions", options);
}

session(session_id, {signal} = {}) {
return this.#calls.document(read(`/sessions/${segment(session_id)}`), signal);
}

deleteSession(session_id, {signal} = {}) {
return this.#calls.erased(`/sessions/${segment(session_id)}`, signal);
}

tasks(options = {}) {
return new List(this.#calls, "/tasks", options);
}

task(task_id, {signal} = {}) {
return this.#calls.document(read(pathOf(task_id)), signal);
}

patchTask(task_id, changes, {signal} = {}) {
return this.#calls.document(change("PATCH", pathOf(task_id), changes), signal);
}

deleteTask(task_id, {signal} = {}) {
return this.#calls.erased(pathOf(task_id), signal);
}


messages(task_id, options = {}) {
return new List(this.#calls, pathOf(task_id, "/messages"), options);
}

trace(task_id, options = {}) {
return new List(this.#calls, pathOf(task_id, "/trace"), options);
}

checkpoints(task_id, options = {}) {
return new List(this.#calls, pathOf(task_id, "/checkpoints"), options);
}

audit(task_id, options = {}) {
return new List(this.#calls, pathOf(task_id, "/audit"), options);
}

rollback(task_id, checkpoint_id, {signal} = {}) {
return this.#calls.document(change("POST", pathOf(task_id, "/rollback"), {checkpoint_id}), signal);
}

fork(task_id, point = {}, {signal} = {}) {
return this.#calls.document(once(pathOf(task_id, "/fork"), point), signal);
}

exportTask(task_id, {signal} = {}) {
return this.#calls.text(read(pathOf(task_id, "/export")), signal);
}

importTask(document, {signal} = {}) {
return this.#calls.document(once("/tasks/import", document), signal);
}


me({signal} = {}) {
return this.#calls.document(read("/me"), signal);
}

tenantTasks(options = {}) {
return new List(this.#calls, "/tenant/tasks", options);
}

health({signal} = {}) {
return this.#calls.health(signal);
}
}

function prefix({protocol, username, password, search, hash, href}) {
if (!/^https?:$/.test(protocol) || username || password || search || hash) {
throw new TypeError("the URL of an agent is http(s)://host/name/version, without a user, a query or a fragment");
}
return href.replace(/\/+$/, "");
}

function message(input, {session_id, task_id, user_context, metadata, supersede, idempotencyKey = newKey()}) {
const items = typeof input === "string" ? [{content_type: "text", content: input}] : input;
return {
method: "POST",
path: "",
body: {items, session_id, task_id, user_context, metadata, supersede},
headers: {[IDEMPOTENCY_KEY]: printable(idempotencyKey, "the idempotency key")},
patience: "answerMs",
repeatable: true,
};
}

function resumption(of, decision) {
const pause = typeof of === "string" ? {request_id: of, approval_id: undefined} : of;
const decided = typeof decision === "string" ? {action: decision} : decision;
const {approval_id = pause.approval_id, ...body} = decided;
return {
method: "POST",
path: `/requests/${segment(pause.request_id)}/resume`,
query: {approval_id},
body,
patience: "answerMs",
repeatable: true,
};
}

function asStream(call) {
const headers = {...call.headers, Accept: EVENT_STREAM};
return {...call, path: `${call.path}/sse`, headers, patience: "silenceMs"};
}

function inBackground(call) {
return {...call, headers: {...call.headers, Prefer: "respond-async"}, patience: "callMs"};
}

function read(path) {
return {method: "GET", path, repeatable: true};
}

function change(method, path, body) {
return {method, path, body, repeatable: true};
}

function once(path, body) {
return {method: "POST", path, body};
}

function pathOf(task_id, below = "") {
return `/tasks/${segment(task_id)}${below}`;
}

function newKey() {
const bytes = crypto.getRandomValues(new Uint8Array(16));
return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
