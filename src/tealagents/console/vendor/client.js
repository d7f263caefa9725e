export class ClientError extends Error {
get name() {
return this.constructor.name;
}
}
export class ConnectionLost extends ClientError {
constructor(message, {cause, requestId = null, lastEventId = 0, idempotencyKey = null} = {}) {
super(message, {cause});
this.requestId = requestId;
this.lastEventId = lastEventId;
this.idempotencyKey = idempotencyKey;
}
}
export class UnexpectedAnswer extends ClientError {}
export function isId(id) {
return typeof id === "string" && /^[\w-]{1,255}$/.test(id);
}
function idOrNull(id) {
return isId(id) ? id : null;
}
function text(value) {
return typeof value === "string" ? value : null;
}
export class ProblemError extends ClientError {
constructor(problem, {status = problem.status ?? 500, retryAfter = null, replayed = false} = {}) {
super(text(problem.detail) ?? text(problem.title) ?? `the service answered with HTTP ${status}`);
this.detail = this.message;
this.status = status;
this.code = problem.code ?? null;
this.title = problem.title ?? null;
this.retryAfter = retryAfter;
this.sessionId = idOrNull(problem.session_id);
this.taskId = idOrNull(problem.task_id);
this.requestId = idOrNull(problem.request_id);
this.approvalId = idOrNull(problem.approval_id);
this.field = problem.field ?? null;
this.replayed = replayed;
this.problem = problem;
}
}
export class InvalidRequest extends ProblemError {}
export class IdempotencyKeyReused extends ProblemError {}
export class TooLarge extends ProblemError {}
export class Unauthenticated extends ProblemError {}
export class NotOwner extends ProblemError {}
export class InsufficientScope extends ProblemError {}
export class NotFound extends ProblemError {}
export class MethodNotAllowed extends ProblemError {}
export class AlreadyExists extends ProblemError {}
export class SessionMismatch extends ProblemError {}
export class TaskBusy extends ProblemError {}
export class ApprovalPending extends ProblemError {}
export class AlreadyDecided extends ProblemError {}
export class ApprovalExpired extends ProblemError {}
export class RequestCanceled extends ProblemError {}
export class RequestInProgress extends ProblemError {}
export class Overloaded extends ProblemError {}
export class Draining extends ProblemError {}
export class AuthUnavailable extends ProblemError {}
export class PersistenceUnavailable extends ProblemError {}
export class Interrupted extends ProblemError {}
export class CorruptState extends ProblemError {}
export class InternalError extends ProblemError {}
export class ModelError extends ProblemError {}
export class ModelTimeout extends ProblemError {}
export class ToolRoundsExceeded extends ProblemError {}
export class RemoteThreadLost extends ProblemError {}
export class RequestTimeout extends ProblemError {}
const CLASSES = new Map(
Object.entries({
invalid_request: InvalidRequest,
idempotency_key_reused: IdempotencyKeyReused,
too_large: TooLarge,
unauthenticated: Unauthenticated,
not_owner: NotOwner,
insufficient_scope: InsufficientScope,
not_found: NotFound,
method_not_allowed: MethodNotAllowed,
already_exists: AlreadyExists,
session_mismatch: SessionMismatch,
task_busy: TaskBusy,
approval_pending: ApprovalPending,
already_decided: AlreadyDecided,
approval_expired: ApprovalExpired,
request_canceled: RequestCanceled,
request_in_progress: RequestInProgress,
overloaded: Overloaded,
draining: Draining,
auth_unavailable: AuthUnavailable,
persistence_unavailable: PersistenceUnavailable,
interrupted: Interrupted,
corrupt_state: CorruptState,
internal_error: InternalError,
model_error: ModelError,
model_timeout: ModelTimeout,
tool_rounds_exceeded: ToolRoundsExceeded,
remote_thread_lost: RemoteThreadLost,
request_timeout: RequestTimeout,
}),
);
export function problemError(problem, reply) {
return new (CLASSES.get(problem.code) ?? ProblemError)(problem, reply);
}
export class Budget {
#bounds;
failures = 0;
constructor(retry) {
this.#bounds = {attempts: 10, firstDelayMs: 200, longestDelayMs: 8_000, longestWaitMs: 60_000, ...retry};
}
get longestDelayMs() {
return this.#bounds.longestDelayMs;
}
renew() {
this.failures = 0;
}
delayMs(retryAfter = null) {
const {attempts, firstDelayMs, longestDelayMs, longestWaitMs} = this.#bounds;
const asked = (retryAfter ?? 0) * 1000;
const ceiling = Math.min(longestDelayMs, firstDelayMs * 2 ** this.failures);
this.failures += 1;
if (this.failures > attempts || asked > longestWaitMs) return null;
return asked + ceiling * (0.5 + 0.5 * Math.random());
}
}
export function sleep(ms, signal) {
return new Promise((resolve, reject) => {
signal?.throwIfAborted();
const timer = setTimeout(end, ms);
globalThis.addEventListener?.("online", end);
signal?.addEventListener("abort", end);
function end() {
clearTimeout(timer);
globalThis.removeEventListener?.("online", end);
signal?.removeEventListener("abort", end);
if (signal?.aborted) reject(signal.reason);
else resolve();
}
});
}
import {createParser} from "./eventsource-parser.js";
const LONGEST_EVENT = 64 * 1024 * 1024;
export async function* readMessages(response, watch) {
const messages = [];
const parser = createParser({
onEvent: (message) => messages.push(message),
onError: ({type, message}) => {
if (type === "max-buffer-size-exceeded") throw new UnexpectedAnswer(message);
},
maxBufferSize: LONGEST_EVENT,
});
const decoder = new TextDecoder();
try {
if (response.body === null) return;
const reader = response.body.getReader();
for (;;) {
const {done, value} = await watch.over(() => reader.read());
if (done) return;
watch.touch();
parser.feed(decoder.decode(value, {stream: true}));
yield* messages.splice(0);
}
} finally {
watch.end();
}
}
export class List {
#calls;
#path;
#signal;
#query;
constructor(calls, path, {signal, ...query}) {
this.#calls = calls;
this.#path = path;
this.#signal = signal;
this.#query = query;
}
async page(cursor = this.#query.cursor) {
const call = ({
method: "GET",
path: this.#path,
query: {...this.#query, cursor},
repeatable: true,
});
const document = (await this.#calls.document(call, this.#signal));
if (!Array.isArray(document.items)) throw new UnexpectedAnswer(`the list ${this.#path} has no \`items\``);
return document;
}
async *[Symbol.asyncIterator]() {
let cursor = this.#query.cursor;
do {
const {items, next_cursor} = (await this.page(cursor));
yield* items;
if (next_cursor && next_cursor === cursor) {
throw new UnexpectedAnswer(`the list ${this.#path} names the same page as its next one`);
}
cursor = next_cursor;
} while (cursor);
}
async toArray() {
const all = [];
for await (const item of this) all.push(item);
return all;
}
}
export const EVENT_STREAM = "text/event-stream";
const UNSENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"]);
export class Lost extends Error {
constructor(cause) {
super(reason(cause), {cause});
this.sent = !UNSENT.has((cause)?.cause?.code);
}
}
export class Watch {
#controller = new AbortController();
#outer;
#ms;
#timer;
constructor(ms, outer) {
outer?.throwIfAborted();
outer?.addEventListener("abort", this.end);
this.#ms = ms;
this.#outer = outer;
this.touch();
}
get signal() {
return this.#controller.signal;
}
touch() {
clearTimeout(this.#timer);
const silent = () => this.#controller.abort(new Error(`no byte within ${this.#ms} ms`));
this.#timer = setTimeout(silent, this.#ms);
}
end = () => {
clearTimeout(this.#timer);
this.#outer?.removeEventListener("abort", this.end);
this.#controller.abort();
};
async over(io) {
try {
return await io();
} catch (error) {
this.#outer?.throwIfAborted();
throw new Lost(error);
}
}
}
export class Reply {
#response;
#watch;
#text;
constructor(response, watch, text = "") {
this.#response = response;
this.#watch = watch;
this.#text = text;
}
get status() {
return this.#response.status;
}
get ok() {
return this.#response.ok;
}
get isStream() {
return isStream(this.#response);
}
messages() {
return readMessages(this.#response, this.#watch);
}
text() {
this.document();
return this.#text;
}
document() {
const document = parsed(this.#text);
if (document === null) throw new UnexpectedAnswer(`HTTP ${this.status} with a body that is not a JSON object`);
return document;
}
problem() {
const {status, headers} = this.#response;
const said = this.#text.replace(/\s+/g, " ").slice(0, 200);
const detail = `something answered with HTTP ${status} and said ${said || "nothing"}`;
return problemError(parsed(this.#text) ?? {detail}, {
status,
retryAfter: seconds(headers.get("retry-after"), headers.get("date")),
replayed: headers.get("idempotent-replayed") === "true",
});
}
}
export class Wire {
#token;
#fetch;
#timeouts;
constructor(url, {token = "", fetch = globalThis.fetch, timeouts}) {
this.url = url;
this.#token = token;
this.#fetch = fetch.bind(globalThis);
this.#timeouts = {callMs: 30_000, answerMs: 660_000, silenceMs: 45_000, ...timeouts};
}
async reply(call, signal) {
const watch = new Watch(this.#timeouts[call.patience ?? "callMs"], signal);
let open = false;
try {
let response = await this.#respond(call, watch, false);
if (isRefused(response) && typeof this.#token === "function") {
response = await this.#respond(call, watch, true);
}
open = isStream(response);
return new Reply(response, watch, open ? "" : await watch.over(() => response.text()));
} finally {
if (!open) watch.end();
}
}
async #respond(call, watch, refused) {
const {method, path, query, body} = call;
const init = {
method,
headers: await this.#headers(call, refused),
signal: watch.signal,
redirect: "manual",
cache: "no-store",
};
if (body !== undefined) init.body = typeof body === "string" ? body : JSON.stringify(body, sendable);
const response = await watch.over(() => this.#fetch(this.url + path + queryString(query), init));
if (response.type === "opaqueredirect" || (response.status >= 300 && response.status < 400)) {
throw new UnexpectedAnswer(`${this.url}${path} redirects elsewhere; use the address it redirects to`);
}
return response;
}
async #headers({headers, body, anonymous}, refused) {
const all = new Headers({Accept: "application/json", ...headers});
if (body !== undefined) all.set("Content-Type", "application/json");
const token = anonymous ? "" : await tokenOf(this.#token, refused);
if (token) all.set("Authorization", bearer(token));
return all;
}
}
export function segment(id) {
if (!isId(id)) throw new TypeError(`${JSON.stringify(id)} is not an id of this service`);
return id;
}
function tokenOf(token, refused) {
return typeof token === "function" ? token({refused}) : token;
}
function bearer(token) {
return `Bearer ${printable(token.trim(), "the token")}`;
}
export function printable(text, what) {
if (!/^[ -~]*$/.test(text)) throw new TypeError(`${what} is not one line of printable ASCII characters`);
return text;
}
function sendable(name, value) {
const lost = typeof value === "number" ? !Number.isFinite(value) : value === null && this[name] !== null;
if (lost) throw new TypeError(`${name} is ${this[name]}, which JSON cannot hold`);
return value;
}
function queryString(query = {}) {
const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
return given.length ? `?${new URLSearchParams(given)}` : "";
}
function isRefused(response) {
return response.status === 401 && /error="?invalid_token/.test(response.headers.get("www-authenticate") ?? "");
}
function isStream({status, headers}) {
return status === 200 && headers.get("content-type")?.split(";")[0]?.trim().toLowerCase() === EVENT_STREAM;
}
export function parsed(text) {
try {
const value = JSON.parse(text);
return typeof value === "object" && !Array.isArray(value) ? value : null;
} catch {
return null;
}
}
function seconds(retryAfter, date) {
if (!retryAfter) return null;
if (/^\d+$/.test(retryAfter)) return Number(retryAfter);
const wait = Date.parse(retryAfter) - (date ? Date.parse(date) : Date.now());
return Number.isNaN(wait) ? null : Math.max(0, wait / 1000);
}
function reason(error) {
const {message = String(error), cause} = (error);
return cause instanceof Error && cause.message ? `${message}: ${cause.message}` : message;
}
export const IDEMPOTENCY_KEY = "Idempotency-Key";
const REFUSED = new Set(["overloaded", "draining", "auth_unavailable"]);
const GATEWAY = new Set([502, 503, 504]);
const FIRST_POLL_MS = 100;
const LONGEST_POLL_MS = 2_000;
export class Calls {
#retry;
constructor(url, options) {
this.wire = new Wire(url, options);
this.#retry = options.retry;
}
budget() {
return new Budget(this.#retry);
}
async document(call, signal) {
return (await this.#answered(call, signal)).document();
}
async text(call, signal) {
return (await this.#answered(call, signal)).text();
}
async #answered(call, signal) {
const reply = await this.#exchange(call, signal);
if (!reply.ok) throw reply.problem();
return reply;
}
async answer(call, signal) {
const budget = this.budget();
for (;;) {
const reply = await this.#exchange(call, signal, budget);
if (reply.ok) {
const answer = (identified(reply.document()));
return isGoingOn(answer) ? this.waited(answer.request_id, signal) : answer;
}
const problem = reply.problem();
if (!(problem instanceof RequestInProgress)) throw problem;
if (problem.requestId) return this.waited(problem.requestId, signal);
await this.holdOn(problem, budget, call, {signal});
}
}
async accepted(call, signal) {
const reply = await this.#exchange(call, signal);
if (reply.ok) return idsAndStatus((identified(reply.document())));
const problem = reply.problem();
if (!problem.requestId || !(problem.replayed || problem instanceof RequestInProgress)) throw problem;
return idsAndStatus(await this.found(problem.requestId, signal));
}
found(requestId, signal) {
return this.document({method: "GET", path: `/requests/${segment(requestId)}`, repeatable: true}, signal);
}
async waited(requestId, signal) {
for (let pauseMs = FIRST_POLL_MS; ; pauseMs = Math.min(LONGEST_POLL_MS, pauseMs * 1.5)) {
const request = await this.found(requestId, signal);
if (!isGoingOn(request)) return answerOf(request);
await sleep(pauseMs, signal);
}
}
async erased(path, signal) {
const budget = this.budget();
const reply = await this.#exchange({method: "DELETE", path, repeatable: true}, signal, budget);
if (reply.ok) return;
const problem = reply.problem();
if (!(problem instanceof NotFound && budget.failures)) throw problem;
}
async health(signal) {
const call = {method: "GET", path: "/health", anonymous: true};
const reply = await this.wire.reply(call, signal).catch((error) => {
throw error instanceof Lost ? givenUp(error, call) : error;
});
if (reply.ok) return (reply.document());
const problem = reply.problem();
if (!("dependencies" in problem.problem)) throw problem;
return (problem.problem);
}
async #exchange(call, signal, budget = this.budget()) {
for (;;) {
const trouble = await attempt(() => this.wire.reply(call, signal));
if (!(trouble instanceof Lost)) {
if (trouble.ok || !mayRepeat(call, trouble.problem())) return trouble;
} else if (!mayRepeat(call, trouble)) {
throw givenUp(trouble, call);
}
await this.holdOn(trouble instanceof Lost ? trouble : trouble.problem(), budget, call, {signal});
}
}
async holdOn(trouble, budget, call, {signal, onReconnect, ...known}) {
const error = trouble instanceof Lost ? givenUp(trouble, call, known) : trouble;
const delayMs = budget.delayMs(trouble instanceof Lost ? null : trouble.retryAfter);
if (delayMs === null) throw error;
onReconnect?.({attempt: budget.failures, delayMs, error});
await sleep(delayMs, signal);
}
}
export function mayRepeat(call, trouble) {
const repeatable = call.repeatable ?? false;
if (trouble instanceof Lost) return repeatable || !trouble.sent;
if (trouble.status === 503 && REFUSED.has(trouble.code ?? "")) return true;
if (!repeatable || trouble.replayed || trouble.code === "interrupted") return false;
return trouble.status === 503 || (trouble.code === null && GATEWAY.has(trouble.status));
}
export async function attempt(io) {
try {
return await io();
} catch (error) {
if (error instanceof Lost) return error;
throw error;
}
}
export function identified(document) {
const {session_id, task_id, request_id} = (document);
if ([session_id, task_id, request_id].every(isId)) return document;
throw new UnexpectedAnswer("an answer without the three ids: is this the URL of an agent?");
}
export function isGoingOn({status}) {
return status === "Running" || status === "Queued";
}
export function answerOf(request) {
const {session_id, task_id, request_id, status, content, error} = request;
if (error) throw problemError({session_id, task_id, request_id, ...error});
return ({session_id, task_id, request_id, status, content});
}
function givenUp(lost, call, known) {
return new ConnectionLost(`no answer from the service: ${lost.message}`, {
cause: lost.cause,
idempotencyKey: call.headers?.[IDEMPOTENCY_KEY] ?? null,
...known,
});
}
function idsAndStatus({session_id, task_id, request_id, status}) {
return {session_id, task_id, request_id, status};
}
const ENDS = new Set(["approval-required", "final-response", "error"]);
const KNOWN = new Set([...ENDS, "request", "partial-response", "tool-call", "tool-result"]);
export class EventStream {
#calls;
#start;
#signal;
#onReconnect;
#located = false;
#pause = null;
#end = null;
sessionId = null;
taskId = null;
requestId = null;
lastEventId = 0;
constructor(calls, start, {signal, onReconnect, after = 0}) {
this.#calls = calls;
this.#signal = signal;
this.#onReconnect = onReconnect;
this.lastEventId = after;
if (typeof start === "string") {
this.requestId = start;
this.#located = true;
}
this.#start = typeof start === "string" ? follow(start, after) : start;
}
async *[Symbol.asyncIterator]() {
const budget = this.#calls.budget();
while (!this.#end) {
const call = this.#located && this.requestId ? follow(this.requestId, this.lastEventId) : this.#start;
const reply = await attempt(() => this.#calls.wire.reply(call, this.#signal));
const trouble = reply instanceof Lost ? reply
: reply.isStream ? yield* this.#read(reply, budget)
: yield* this.#withoutStream(call, reply);
if (trouble) await this.#holdOn(trouble, budget);
}
}
async answer() {
for await (const _ of this);
const end = (this.#end);
if (end.event === "error") throw problemError(end.data);
return (end.data);
}
async *#read(reply, budget) {
const opened = Date.now();
this.#pause = null;
try {
for await (const message of reply.messages()) {
const event = this.#take(message);
if (!event) continue;
if (isOfTheWay(event)) return problemError(event.data);
budget.renew();
this.#pass(event);
yield event;
if (this.#end) return null;
}
} catch (error) {
if (!(error instanceof Lost)) throw error;
if (Date.now() - opened > budget.longestDelayMs) budget.renew();
return error;
}
if (!this.#pause) return new Lost(new Error("the stream broke off before its last event"));
yield this.#pass(this.#pause);
return null;
}
async *#withoutStream(call, reply) {
if (reply.status === 204) return yield* this.#settle();
if (reply.ok) {
const answer = (identified(reply.document()));
this.#locate(answer);
if (!isGoingOn(answer)) yield this.#pass(ending(answer));
return null;
}
const problem = reply.problem();
if (problem instanceof RequestInProgress && problem.requestId) {
this.#locate((problem.problem));
return null;
}
if (this.#located && problem instanceof NotFound) return yield* this.#settle();
if (problem instanceof RequestInProgress || mayRepeat(call, problem)) return problem;
throw problem;
}
async *#settle() {
const request = await this.#calls.found(this.requestId ?? "", this.#signal);
if (isGoingOn(request)) {
return new RequestInProgress({detail: "the request is still running, but its event log has ended"}, {status: 409});
}
yield this.#pass(endOf(request));
return null;
}
#take(message) {
const id = numberOf(message);
if ((id !== null && id <= this.lastEventId) || !KNOWN.has(message.event ?? "")) return null;
const event = ({event: message.event, id, data: dataOf(message)});
this.#pause = event.event === "approval-required" ? event : null;
return this.#pause ? null : event;
}
#pass(event) {
this.lastEventId = Math.max(this.lastEventId, event.id ?? 0);
this.#locate(event.data);
if (ENDS.has(event.event)) this.#end = event;
return event;
}
#locate({session_id, task_id, request_id}) {
this.sessionId = isId(session_id) ? session_id : this.sessionId;
this.taskId = isId(task_id) ? task_id : this.taskId;
this.requestId = isId(request_id) ? request_id : this.requestId;
this.#located = this.requestId !== null;
}
#holdOn(trouble, budget) {
const {requestId, lastEventId} = this;
const around = {requestId, lastEventId, signal: this.#signal, onReconnect: this.#onReconnect};
return this.#calls.holdOn(trouble, budget, this.#start, around);
}
}
function follow(requestId, after) {
return {
method: "GET",
path: `/requests/${segment(requestId)}/events`,
headers: {Accept: EVENT_STREAM, ...(after ? {"Last-Event-ID": String(after)} : {})},
patience: "silenceMs",
repeatable: true,
};
}
function isOfTheWay(event) {
return event.event === "error" && event.id === null && event.data.status === 503;
}
function numberOf({id}) {
return id !== undefined && /^\d{1,15}$/.test(id) ? Number(id) : null;
}
function dataOf({event, data}) {
const document = parsed(data);
if (document === null) throw new UnexpectedAnswer(`the data of a \`${event}\` event is not a JSON object`);
return (document);
}
function ending(answer) {
return {event: answer.status === "Paused" ? "approval-required" : "final-response", id: null, data: answer};
}
function endOf(request) {
if (!request.error) return ending(answerOf(request));
const {session_id, task_id, request_id, error} = request;
return {event: "error", id: null, data: {session_id, task_id, request_id, ...error}};
}
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
