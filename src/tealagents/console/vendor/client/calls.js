import {ConnectionLost, NotFound, ProblemError, RequestInProgress, UnexpectedAnswer, isId, problemError} from "./errors.js";
import {Budget, sleep} from "./retry.js";
import {Lost, Wire, segment} from "./wire.js";

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
const answer = /** @type {any} */ (identified(reply.document()));
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
if (reply.ok) return idsAndStatus(/** @type {any} */ (identified(reply.document())));
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
if (reply.ok) return /** @type {any} */ (reply.document());
const problem = reply.problem();
if (!("dependencies" in problem.problem)) throw problem;
return /** @type {any} */ (problem.problem);
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
const {session_id, task_id, request_id} = /** @type {any} */ (document);
if ([session_id, task_id, request_id].every(isId)) return document;
throw new UnexpectedAnswer("an answer without the three ids: is this the URL of an agent?");
}

export function isGoingOn({status}) {
return status === "Running" || status === "Queued";
}

export function answerOf(request) {
const {session_id, task_id, request_id, status, content, error} = request;
if (error) throw problemError({session_id, task_id, request_id, ...error});
return /** @type {any} */ ({session_id, task_id, request_id, status, content});
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
