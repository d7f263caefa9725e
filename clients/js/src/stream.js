/** @import {Answer, FollowOptions, Ids, RequestDocument, StreamEvent} from "./index.js" */
/** @import {EventSourceMessage} from "eventsource-parser" */
/** @import {Calls} from "./calls.js" */
/** @import {Budget} from "./retry.js" */
/** @import {Call, Reply} from "./wire.js" */
import {answerOf, failureOf, identified, isGoingOn, isMessage, keyed, mayRepeat} from "./calls.js";
import {NotFound, NotOwner, ProblemError, RequestInProgress, UnexpectedAnswer, isId, problemError} from "./errors.js";
import {EVENT_STREAM, Lost, parsed, read, segment} from "./wire.js";

const ENDS = new Set(["approval-required", "final-response", "error"]);
/** @type {Set<string | undefined>} */
const KNOWN = new Set([...ENDS, "request", "partial-response", "tool-call", "tool-result"]);

/** The events of a request: what `EventStream` of the types says, and how far they have been read. */
export class EventStream {
  #calls;
  #start;
  #signal;
  #onReconnect;
  #onOpen;
  /** the service is known to have the message, so that its events can be followed */
  #located = false;
  /** a pause ends the stream, unless more follows because it has been decided meanwhile
   * @type {StreamEvent | null} */
  #pause = null;
  /** @type {StreamEvent | null} */
  #end = null;
  #isRead = false;
  /** the events are those of an earlier request under the same idempotency key */
  #replayed = false;

  /** @type {string | null} */
  sessionId = null;
  /** @type {string | null} */
  taskId = null;
  /** @type {string | null} */
  requestId = null;
  lastEventId = 0;

  /**
   * @param {Calls} calls
   * @param {Call | string} start the call that begins the request, or the id of a request that the service has
   * @param {FollowOptions} options
   */
  constructor(calls, start, {signal, onReconnect, onOpen, after}) {
    this.#calls = calls;
    this.#signal = signal;
    this.#onReconnect = onReconnect;
    this.#onOpen = onOpen;
    const seen = numberOf({id: String(after ?? 0)});
    if (seen === null) throw new TypeError("`after` is not the number of an event");
    this.lastEventId = seen;
    if (typeof start === "string") {
      this.requestId = start;
      this.#located = true;
      start = follow(start, seen);
    }
    this.#start = start;
  }

  /**
   * The call that begins the request is made until the service is known to have it; from then on the request's
   * log is followed from where reading ended.
   *
   * @returns {AsyncGenerator<StreamEvent, void, void>}
   */
  async *[Symbol.asyncIterator]() {
    if (this.#end) return;
    // two readers would each miss the events that the other receives
    if (this.#isRead) throw new TypeError("a stream has one reader at a time");
    this.#isRead = true;
    try {
      const budget = this.#calls.budget();
      while (!this.#end) {
        const call = this.#located && this.requestId ? follow(this.requestId, this.lastEventId) : this.#start;
        const reply = await this.#calls.attempt(call, this.#signal);
        const trouble = reply instanceof Lost ? reply
          : reply.isStream ? yield* this.#read(reply, budget)
          : yield* this.#withoutStream(call, reply);
        if (!trouble) continue;
        await this.#calls.holdOn(trouble, budget, this.#start, {
          ...this, // its public fields
          signal: this.#signal,
          onReconnect: this.#onReconnect,
        });
      }
    } catch (error) {
      throw keyed(error, this.#start);
    } finally {
      this.#isRead = false;
    }
  }

  /** @returns {Promise<Answer>} */
  async answer() {
    for await (const _ of this);
    const end = /** @type {StreamEvent} */ (this.#end);
    if (end.event === "error") throw keyed(problemError(end.data, {replayed: this.#replayed}), this.#start);
    return /** @type {Answer} */ (end.data);
  }

  /**
   * Hand on what the connection brings. Returns null where the stream has ended, else why it broke.
   *
   * @param {Reply} reply
   * @param {Budget} budget
   * @returns {AsyncGenerator<StreamEvent, Lost | ProblemError | null, void>}
   */
  async *#read(reply, budget) {
    const opened = Date.now();
    this.#pause = null;
    this.#replayed ||= reply.replayed;
    let lost = null;
    try {
      for await (const message of reply.messages(this.#onOpen)) {
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
      lost = error;
    }
    // a connection that lasted, perhaps with nothing but keepalives, is progress too
    if (reply.watch.hasBegun && Date.now() - opened > budget.longestDelayMs) budget.renew();
    if (lost) return lost;
    if (!this.#pause) return new Lost(new Error("the stream broke off before its last event"));
    yield this.#pass(this.#pause);
    return null;
  }

  /**
   * What an answer means that is no stream. Returns null where there is no trouble: follow, or it has ended.
   *
   * @param {Call} call
   * @param {Reply} reply
   * @returns {AsyncGenerator<StreamEvent, ProblemError | null, void>}
   */
  async *#withoutStream(call, reply) {
    if (reply.status === 204 && this.requestId) return yield* this.#settle();
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
    if (problem instanceof NotOwner && call.method !== this.#start.method && !isMessage(this.#start)) {
      // an approver may not follow a request: the decision, made again, is answered with the same stream
      this.#located = false;
      return problem;
    }
    if (problem instanceof RequestInProgress || mayRepeat(call, problem)) return problem;
    throw problem;
  }

  /**
   * The log has nothing more: the request itself shows its end.
   *
   * @returns {AsyncGenerator<StreamEvent, ProblemError | null, void>}
   */
  async *#settle() {
    const request = await this.#calls.found(this.requestId ?? "", this.#signal);
    if (isGoingOn(request)) {
      return new RequestInProgress({detail: "the request is still running, but its event log has ended"}, {status: 409});
    }
    yield this.#pass(endOf(request));
    return null;
  }

  /**
   * The event to hand on, if any: nothing unknown, nothing twice, and no pause before its end is sure.
   *
   * @param {EventSourceMessage} message
   */
  #take(message) {
    const id = numberOf(message);
    if (id !== null && id <= this.lastEventId) return null;
    this.#pause = null;
    if (!KNOWN.has(message.event)) {
      this.lastEventId = id ?? this.lastEventId;
      return null;
    }
    const event = /** @type {StreamEvent} */ ({event: message.event, id, data: dataOf(message)});
    if (event.event !== "approval-required") return event;
    this.#pause = event;
    return null;
  }

  /**
   * @template {StreamEvent} E
   * @param {E} event
   */
  #pass(event) {
    this.lastEventId = Math.max(this.lastEventId, event.id ?? 0);
    this.#locate(event.data);
    if (ENDS.has(event.event)) this.#end = event;
    return event;
  }

  /** @param {Partial<Ids>} ids */
  #locate({session_id, task_id, request_id}) {
    this.sessionId = isId(session_id) ? session_id : this.sessionId;
    this.taskId = isId(task_id) ? task_id : this.taskId;
    this.requestId = isId(request_id) ? request_id : this.requestId;
    this.#located = this.requestId !== null;
  }
}

/**
 * @param {string} requestId
 * @param {number} after
 * @returns {Call}
 */
function follow(requestId, after) {
  return {
    ...read(`/requests/${segment(requestId)}/events`),
    headers: {Accept: EVENT_STREAM, ...(after ? {"Last-Event-ID": String(after)} : {})},
    timeout: "silenceMs",
  };
}

/**
 * Whether this is an error of reading the log (it has no id), rather than the end of the request.
 *
 * @param {StreamEvent} event
 * @returns {event is import("./index.js").ErrorEvent}
 */
function isOfTheWay(event) {
  return event.event === "error" && event.id === null && event.data.status === 503;
}

/**
 * The event's number in its request's log; null where it is no part of it.
 *
 * @param {{id?: string | undefined}} message
 */
function numberOf({id}) {
  return /^\d{1,15}$/.test(id ?? "") ? Number(id) : null;
}

/** @param {EventSourceMessage} message */
function dataOf({event, data}) {
  const document = parsed(data);
  if (document === null) throw new UnexpectedAnswer(`the data of a \`${event}\` event is not a JSON object`);
  return /** @type {any} */ (document);
}

/**
 * The last event that stands for an answer that came without a stream.
 *
 * @param {any} answer
 * @returns {StreamEvent}
 */
function ending(answer) {
  return {event: answer.status === "Paused" ? "approval-required" : "final-response", id: null, data: answer};
}

/**
 * @param {RequestDocument} request
 * @returns {StreamEvent}
 */
function endOf(request) {
  return request.error ? {event: "error", id: null, data: failureOf(request)} : ending(answerOf(request));
}
