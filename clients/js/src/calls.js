/** @import {Accepted, Answer, ClientOptions, Health, Problem, Reconnection, RequestDocument} from "./index.js" */
/** @import {Call, Reply} from "./wire.js" */
import {
  ClientError,
  ConnectionLost,
  NotFound,
  NotOwner,
  ProblemError,
  RequestInProgress,
  UnexpectedAnswer,
  isId,
  problemError,
} from "./errors.js";
import {Budget, sleep} from "./retry.js";
import {Lost, Wire, read, segment} from "./wire.js";

export const IDEMPOTENCY_KEY = "Idempotency-Key";

/** Refused before anything happened, so that any call may be made again.
 * @type {Set<string | null>} */
const REFUSED = new Set(["overloaded", "draining", "auth_unavailable"]);

/** The ids in every document that belongs to a request. */
const IDS = ["session_id", "task_id", "request_id"];

const FIRST_POLL_MS = 100;
const LONGEST_POLL_MS = 2_000;

/** Makes calls again where that is safe, and knows what their answers mean. */
export class Calls {
  #wire;
  #retry;

  /**
   * @param {string} url
   * @param {ClientOptions} options
   */
  constructor(url, options) {
    this.#wire = new Wire(url, options);
    this.#retry = options.retry;
  }

  budget() {
    return new Budget(this.#retry);
  }

  /**
   * The document that answers `call`.
   *
   * @param {Call} call
   * @param {AbortSignal} [signal]
   * @param {string[]} [ids] see `identified`
   * @returns {Promise<any>}
   */
  async document(call, signal, ids) {
    return identified((await this.#answered(call, signal)).document(), ids);
  }

  /**
   * The same as text: numbers that are beyond those of JavaScript stay what they are.
   *
   * @param {Call} call
   * @param {AbortSignal} [signal]
   */
  async text(call, signal) {
    return (await this.#answered(call, signal)).text();
  }

  /**
   * @param {Call} call
   * @param {AbortSignal} [signal]
   */
  async #answered(call, signal) {
    const reply = await this.#exchange(call, signal);
    if (!reply.ok) throw reply.problem();
    return reply;
  }

  /**
   * The answer to a message or a decision, however long the way to it is.
   *
   * @param {Call} call
   * @param {AbortSignal} [signal]
   * @returns {Promise<Answer>}
   */
  async answer(call, signal) {
    try {
      const budget = this.budget();
      for (;;) {
        const reply = await this.#exchange(call, signal, budget);
        if (reply.ok) {
          const answer = /** @type {any} */ (identified(reply.document()));
          return isGoingOn(answer) ? await this.#outcome(call, answer.request_id, signal) : answer;
        }
        const problem = reply.problem();
        if (!(problem instanceof RequestInProgress)) throw problem;
        if (problem.requestId) return await this.#outcome(call, problem.requestId, signal);
        await this.holdOn(problem, budget, call, {signal});
      }
    } catch (error) {
      throw keyed(error, call);
    }
  }

  /**
   * The ids of a request that runs, or has run, under the call's idempotency key.
   *
   * @param {Call} call
   * @param {AbortSignal} [signal]
   * @returns {Promise<Accepted>}
   */
  async accepted(call, signal) {
    try {
      const reply = await this.#exchange(call, signal);
      if (reply.ok) return idsAndStatus(/** @type {any} */ (identified(reply.document())));
      const problem = reply.problem();
      if (!problem.requestId || !(problem.replayed || problem instanceof RequestInProgress)) throw problem;
      return idsAndStatus(await this.found(problem.requestId, signal));
    } catch (error) {
      throw keyed(error, call);
    }
  }

  /**
   * @param {string} requestId
   * @param {AbortSignal} [signal]
   * @returns {Promise<RequestDocument>}
   */
  found(requestId, signal) {
    return this.document(read(`/requests/${segment(requestId)}`), signal);
  }

  /**
   * Ask for the request until it has ended or paused.
   *
   * @param {string} requestId
   * @param {AbortSignal} [signal]
   */
  waited(requestId, signal) {
    return polled(async () => {
      const request = await this.found(requestId, signal);
      return isGoingOn(request) ? null : answerOf(request);
    }, signal);
  }

  /**
   * The answer of a request that runs, to the message or the decision that `call` is.
   *
   * @param {Call} call
   * @param {string} requestId
   * @param {AbortSignal} [signal]
   */
  async #outcome(call, requestId, signal) {
    try {
      return await this.waited(requestId, signal);
    } catch (error) {
      if (!(error instanceof NotOwner) || isMessage(call)) throw error;
    }
    // an approver may not read the request: the decision, made again, is answered with its outcome
    return polled(async () => {
      /** @type {Answer} */
      const answer = await this.document(call, signal);
      return isGoingOn(answer) ? null : answer;
    }, signal);
  }

  /**
   * @param {Call} call
   * @param {AbortSignal} [signal]
   */
  async erased(call, signal) {
    const budget = this.budget();
    const reply = await this.#exchange(call, signal, budget);
    if (reply.status === 204) return;
    if (reply.ok) throw new UnexpectedAnswer(`HTTP ${reply.status} in answer to a deletion`);
    const problem = reply.problem();
    // not found after a failure: the answer to an earlier attempt was lost, and that attempt may have done it
    if (!(problem instanceof NotFound && budget.inDoubt)) throw problem;
  }

  /**
   * As it is now: one attempt, and an answer of 503 that describes itself is an answer.
   *
   * @param {AbortSignal} [signal]
   * @returns {Promise<Health>}
   */
  async health(signal) {
    const call = {...read("/health"), anonymous: true};
    const reply = await this.attempt(call, signal);
    if (reply instanceof Lost) throw givenUp(reply, call);
    if (reply.ok) return /** @type {any} */ (reply.document());
    const problem = reply.problem();
    if (!("dependencies" in problem.problem)) throw problem;
    return /** @type {any} */ (problem.problem);
  }

  /**
   * One answer to `call`, or how the connection was lost.
   *
   * @param {Call} call
   * @param {AbortSignal} [signal]
   */
  attempt(call, signal) {
    return this.#wire.reply(call, signal).catch((error) => {
      if (error instanceof Lost) return error;
      throw error;
    });
  }

  /**
   * The service's answer to `call`, made again while that is safe and the budget lasts.
   *
   * @param {Call} call
   * @param {AbortSignal} [signal]
   * @returns {Promise<Reply>}
   */
  async #exchange(call, signal, budget = this.budget()) {
    for (;;) {
      const reply = await this.attempt(call, signal);
      if (!(reply instanceof Lost) && reply.ok) return reply;
      const trouble = reply instanceof Lost ? reply : reply.problem();
      if (!mayRepeat(call, trouble)) {
        if (trouble instanceof Lost) throw givenUp(trouble, call);
        trouble.inDoubt = !call.repeatable && ofGateway(trouble);
        if (trouble.inDoubt) throw trouble;
        return /** @type {Reply} */ (reply);
      }
      await this.holdOn(trouble, budget, call, {signal});
    }
  }

  /**
   * Wait before the next attempt; throws the trouble when there is none left.
   *
   * @param {Lost | ProblemError} trouble
   * @param {Budget} budget
   * @param {Call} call
   * @param {{signal?: AbortSignal | undefined, requestId?: string | null, lastEventId?: number,
   *   onReconnect?: ((reconnection: Reconnection) => void) | undefined}} around
   */
  async holdOn(trouble, budget, call, {signal, onReconnect, ...known}) {
    budget.inDoubt ||= !didNothing(trouble);
    const error = keyed(trouble instanceof Lost ? givenUp(trouble, call, known) : trouble, call);
    const delayMs = budget.delayMs(trouble instanceof Lost ? null : trouble.retryAfter);
    if (delayMs === null) throw error;
    onReconnect?.({attempt: budget.failures, delayMs, error});
    await sleep(delayMs, signal);
  }
}

/**
 * Whether making the call again can help, and cannot do its work twice.
 *
 * @param {Call} call
 * @param {Lost | ProblemError} trouble
 */
export function mayRepeat({repeatable}, trouble) {
  if (didNothing(trouble)) return true;
  if (trouble instanceof Lost || !repeatable) return repeatable;
  // a replayed failure is what the request came to, and stays so; `interrupted` is an end like it
  return !trouble.replayed && trouble.code !== "interrupted" && (trouble.status === 503 || ofGateway(trouble));
}

/**
 * Whether the call was not carried out: it did not arrive, or was refused before anything happened.
 *
 * @param {Lost | ProblemError} trouble
 */
function didNothing(trouble) {
  return trouble instanceof Lost ? !trouble.sent : trouble.status === 503 && REFUSED.has(trouble.code);
}

/**
 * Whether a gateway answered that the service is away: its status is 502, 503 or 504, and its code is none of ours.
 *
 * @param {ProblemError} problem
 */
function ofGateway({constructor, status}) {
  return constructor === ProblemError && status > 501 && status < 505;
}

/**
 * The document, checked for these ids: an answer from another service would lack them.
 *
 * @template {object} T
 * @param {T} document
 */
export function identified(document, ids = IDS) {
  if (ids.every((name) => isId(/** @type {any} */ (document)[name]))) return document;
  throw new UnexpectedAnswer("an answer without its ids: is this the URL of an agent?");
}

/**
 * The error, which knows the key of the message that it is about.
 *
 * @template E
 * @param {E} error
 * @param {Call} call
 */
export function keyed(error, {headers}) {
  if (error instanceof ClientError) error.idempotencyKey ??= headers?.[IDEMPOTENCY_KEY] ?? null;
  return error;
}

/**
 * Look until there is an answer.
 *
 * @param {() => Promise<Answer | null>} look
 * @param {AbortSignal} [signal]
 */
async function polled(look, signal) {
  for (let pauseMs = FIRST_POLL_MS; ; pauseMs = Math.min(LONGEST_POLL_MS, pauseMs * 1.5)) {
    const answer = await look();
    if (answer) return answer;
    await sleep(pauseMs, signal);
  }
}

/**
 * Whether the call sends a message. A message must not be sent again under another user's token: it would begin a
 * request of theirs.
 *
 * @param {Call} call
 */
export function isMessage({headers}) {
  return headers?.[IDEMPOTENCY_KEY] !== undefined;
}

/** @param {{status: string}} document */
export function isGoingOn({status}) {
  return status === "Running" || status === "Queued";
}

/**
 * The answer of a request that has ended or paused; its failure is thrown.
 *
 * @param {RequestDocument} request
 * @returns {Answer}
 */
export function answerOf(request) {
  if (request.error) throw problemError(failureOf(request));
  return /** @type {any} */ ({...idsAndStatus(request), content: request.content});
}

/** @param {RequestDocument} request */
export function failureOf({session_id, task_id, request_id, error}) {
  return /** @type {Problem} */ ({session_id, task_id, request_id, ...error});
}

/**
 * @param {Lost} lost
 * @param {Call} call
 * @param {{requestId?: string | null, lastEventId?: number}} [known]
 */
function givenUp({message, cause, sent}, {repeatable}, known) {
  const inDoubt = sent && !repeatable;
  const look = inDoubt ? "; what was asked may have been done: look before you repeat the call" : "";
  return new ConnectionLost(`no answer from the service: ${message}${look}`, {cause, inDoubt, ...known});
}

/** @param {Accepted} document */
function idsAndStatus({session_id, task_id, request_id, status}) {
  return {session_id, task_id, request_id, status};
}
