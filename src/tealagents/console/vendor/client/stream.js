import {answerOf, attempt, identified, isGoingOn, mayRepeat} from "./calls.js";
import {NotFound, ProblemError, RequestInProgress, UnexpectedAnswer, isId, problemError} from "./errors.js";
import {EVENT_STREAM, Lost, parsed, segment} from "./wire.js";

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
const end = /** @type {StreamEvent} */ (this.#end);
if (end.event === "error") throw problemError(end.data);
return /** @type {Answer} */ (end.data);
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
const answer = /** @type {any} */ (identified(reply.document()));
this.#locate(answer);
if (!isGoingOn(answer)) yield this.#pass(ending(answer));
return null;
}
const problem = reply.problem();
if (problem instanceof RequestInProgress && problem.requestId) {
this.#locate(/** @type {any} */ (problem.problem));
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
const event = /** @type {StreamEvent} */ ({event: message.event, id, data: dataOf(message)});
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
if (document === null) throw new UnexpectedAnswer(`the data of a \`${event}\` event is no JSON object`);
return /** @type {any} */ (document);
}

function ending(answer) {
return {event: answer.status === "Paused" ? "approval-required" : "final-response", id: null, data: answer};
}

function endOf(request) {
if (!request.error) return ending(answerOf(request));
const {session_id, task_id, request_id, error} = request;
return {event: "error", id: null, data: {session_id, task_id, request_id, ...error}};
}
