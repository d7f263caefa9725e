/** @import {ClientOptions, JsonObject, Timeouts, Token} from "./index.js" */
import {UnexpectedAnswer, isId, problemError} from "./errors.js";
import {readMessages, readText} from "./sse.js";

export const EVENT_STREAM = "text/event-stream";

/**
 * The failures of Node.js after which the service cannot have seen the call, by their code, name and system call: no
 * address, no connection to one or to several (AggregateError), a certificate that is not trusted. The code alone does
 * not say, because EHOSTUNREACH may also end a connection. A browser says nothing.
 */
const UNSENT = /connect|addr|CONNECT_|CERT|LEAF|Agg/;

/** The slowest upload that is waited for. `fetch` does not say how far a body is, so that it has a time of its own. */
const UPLOADED_PER_MS = 16;

/**
 * One HTTP request below the agent's prefix.
 *
 * @typedef {object} Call
 * @property {"GET" | "POST" | "PATCH" | "DELETE"} method
 * @property {string} path
 * @property {object | undefined} [query] values that are null or undefined are left out
 * @property {string} [body] JSON
 * @property {Record<string, string>} [headers]
 * @property {keyof Timeouts} [timeout] which timeout bounds the wait for bytes; `callMs` if absent
 * @property {boolean} [repeatable] making it again does no harm even if the first one was carried out
 * @property {boolean} [anonymous] goes without a token
 */

/** No answer, or no end of one. `sent` is false where the service cannot have seen the call. */
export class Lost extends Error {
  /** @param {unknown} cause */
  constructor(cause) {
    super(reason(cause), {cause});
    const {code, name, syscall} = /** @type {any} */ (cause)?.cause ?? {};
    this.sent = !UNSENT.test(code + name + syscall);
  }
}

/** Bounds the silence on one connection, and closes it at the caller's signal. */
export class Watch {
  #controller = new AbortController();
  #outer;
  #ms;
  /** a byte of the body has come, be it of a keepalive */
  hasBegun = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /**
   * @param {number} ms
   * @param {AbortSignal} [outer]
   */
  constructor(ms, outer) {
    outer?.throwIfAborted();
    outer?.addEventListener("abort", this.end);
    this.#ms = ms;
    this.#outer = outer;
  }

  get signal() {
    return this.#controller.signal;
  }

  /**
   * The connection lives: the time begins anew.
   *
   * @param {number} uploadMs until the first byte, on top
   */
  touch(uploadMs = 0) {
    clearTimeout(this.#timer);
    const ms = this.#ms + uploadMs;
    const silent = () => this.#controller.abort(new Error(`no byte within ${ms} ms`));
    // setTimeout takes at most 2³¹ - 1 ms, and fires at once for more
    if (ms < 2 ** 31) this.#timer = setTimeout(silent, ms);
  }

  /** No one waits for a byte: no time runs. */
  rest() {
    clearTimeout(this.#timer);
  }

  /** Close the connection. */
  end = () => {
    clearTimeout(this.#timer);
    this.#outer?.removeEventListener("abort", this.end);
    this.#controller.abort(this.#outer?.reason);
  };

  /**
   * What `io` gives, which uses the connection.
   *
   * @template T
   * @param {() => Promise<T>} io
   * @throws {Lost} the connection broke; or whatever the caller's signal was aborted with
   */
  async over(io) {
    try {
      // once a whole answer has come, Node.js leaves a read unsettled that is aborted
      return await this.race(io);
    } catch (error) {
      this.#outer?.throwIfAborted();
      throw new Lost(error);
    }
  }

  /**
   * What `io` gives, unless the connection is closed first.
   *
   * @template T
   * @param {() => T | Promise<T>} io
   */
  async race(io) {
    const {signal} = this;
    let abort = () => {};
    try {
      signal.throwIfAborted();
      const aborted = new Promise((_, reject) => {
        abort = () => reject(signal.reason);
        signal.addEventListener("abort", abort);
      });
      aborted.catch(() => {}); // `io` itself may abort, and throw before any one waits for it
      return /** @type {T} */ (await Promise.race([io(), aborted]));
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }
}

/** An HTTP answer. The body of an event stream is still to be read, by `messages`. */
export class Reply {
  #response;
  #text;

  /**
   * @param {Response} response
   * @param {Watch} watch
   * @param {string} [text]
   */
  constructor(response, watch, text = "") {
    this.#response = response;
    this.watch = watch;
    this.#text = text;
    this.status = response.status;
    this.ok = response.ok;
    this.isStream = isStream(response);
    this.replayed = response.headers.get("idempotent-replayed") === "true";
  }

  /** @param {() => void} [onOpen] */
  messages(onOpen) {
    return readMessages(this.#response, this.watch, onOpen);
  }

  /** The JSON object of a 2xx answer, as it came. */
  text() {
    this.document();
    return this.#text;
  }

  /** The JSON object of a 2xx answer. */
  document() {
    const document = parsed(this.#text);
    if (document === null) throw new UnexpectedAnswer(`HTTP ${this.status} with a body that is not a JSON object`);
    return document;
  }

  /** The error that an answer outside 2xx stands for, also where a proxy wrote its body. */
  problem() {
    const {status, headers} = this.#response;
    const said = this.#text.replace(/\s+/g, " ").slice(0, 200);
    const detail = `HTTP ${status} without a problem document, ${said ? `body: ${said}` : "no body"}`;
    return problemError(parsed(this.#text) ?? {}, {
      status,
      detail,
      retryAfter: seconds(headers.get("retry-after"), headers.get("date")),
      replayed: this.replayed,
    });
  }
}

/** Makes calls, one attempt each. */
export class Wire {
  #token;
  #fetch;
  #timeouts;

  /**
   * @param {string} url
   * @param {ClientOptions} options
   */
  constructor(url, {token = "", fetch = globalThis.fetch, timeouts = {}}) {
    const {callMs = 30_000, answerMs = 660_000, silenceMs = 45_000} = timeouts;
    this.url = url;
    this.#token = token;
    // a browser's own `fetch` refuses to be called as a method of something else
    this.#fetch = fetch.bind(globalThis);
    this.#timeouts = {callMs, answerMs, silenceMs};
  }

  /**
   * @param {Call} call
   * @param {AbortSignal} [signal]
   * @param {boolean} [refused] this is the second attempt, after the service refused the token of the first
   * @returns {Promise<Reply>}
   * @throws {Lost}
   */
  async reply(call, signal, refused = false) {
    const {method, path, query, body} = call;
    const watch = new Watch(this.#timeouts[call.timeout ?? "callMs"], signal);
    let open = false;
    try {
      const headers = await this.#headers(call, refused, watch);
      watch.touch(Math.ceil((body?.length ?? 0) / UPLOADED_PER_MS));
      const response = await watch.over(() => this.#fetch(this.url + path + queryString(query), {
        method,
        headers,
        body: body ?? null,
        signal: watch.signal,
        // a redirected POST would arrive as a GET, and a token at an address that it was not meant for
        redirect: "manual",
        cache: "no-store",
      }));
      watch.touch();
      // a browser gives a redirection the status 0
      if (!response.status || (response.status >= 300 && response.status < 400)) {
        throw new UnexpectedAnswer(`${this.url}${path} redirects elsewhere; use the address it redirects to`);
      }
      if (!refused && isRefused(response) && typeof this.#token === "function") return this.reply(call, signal, true);
      const stream = isStream(response);
      open = stream && headers.get("accept") === EVENT_STREAM;
      let said = "";
      if (!stream) for await (const chunk of readText(response, watch)) said += chunk;
      return new Reply(response, watch, said);
    } finally {
      if (!open) watch.end();
    }
  }

  /**
   * @param {Call} call
   * @param {boolean} refused
   * @param {Watch} watch
   */
  async #headers({headers, body, anonymous}, refused, watch) {
    const all = new Headers({Accept: "application/json", ...headers});
    if (body !== undefined) all.set("Content-Type", "application/json");
    const token = anonymous ? "" : await watch.race(() => tokenOf(this.#token, refused));
    if (token !== "") all.set("Authorization", bearer(token));
    return all;
  }
}

/**
 * @param {string} path
 * @param {object} [query]
 * @returns {Call}
 */
export function read(path, query) {
  return {method: "GET", path, query, repeatable: true};
}

/**
 * `id` as one segment of a path; what could be read as more than one is refused.
 *
 * @param {string} id
 */
export function segment(id) {
  if (!isId(id)) throw new TypeError(`${JSON.stringify(id)} is not an id of this service`);
  return id;
}

/**
 * @param {Token} token
 * @param {boolean} refused
 */
function tokenOf(token, refused) {
  return typeof token === "function" ? token({refused}) : token;
}

/**
 * Refused here where no header can hold it, because the error of `Headers` would show the token.
 *
 * @param {string} token
 */
function bearer(token) {
  return `Bearer ${printable(token?.trim?.(), "the token")}`;
}

/**
 * @param {string} text
 * @param {string} what
 */
export function printable(text, what) {
  if (typeof text === "string" && /^(?! )[ -~]*[!-~]$/.test(text)) return text;
  throw new TypeError(`${what} is not one line of printable ASCII characters`);
}

/**
 * The call with its body as JSON, written once: each attempt sends the same, whatever the program changes meanwhile.
 *
 * @param {Omit<Call, "body"> & {body?: object | string | undefined}} call whose body, as a string, is JSON already
 * @returns {Call}
 */
export function written({body, ...call}) {
  return {...call, body: typeof body === "string" ? body : JSON.stringify(body, sendable)};
}

/**
 * A replacer that refuses what JSON would turn into null: NaN, infinities and invalid dates, and in arrays what is no
 * value of JSON; and what it would turn into {}: a Map or a Set.
 *
 * @this {any}
 * @param {string} name
 * @param {unknown} value
 */
function sendable(name, value) {
  const given = this[name];
  const lost = value === null ? given !== null
    : typeof value === "number" ? !Number.isFinite(value)
    : typeof value === "object" ? value instanceof Map || value instanceof Set
    : Array.isArray(this) && JSON.stringify(value) === undefined;
  if (lost) throw new TypeError(`${name} is ${String(given)}, which JSON cannot hold`);
  return value;
}

/** @param {object} [query] */
function queryString(query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/**
 * Whether the token was refused, so that a new one may help. (A 401 for another user's task has no `invalid_token`.)
 *
 * @param {Response} response
 */
function isRefused(response) {
  return response.status === 401 && /error="?invalid_token/.test(response.headers.get("www-authenticate") ?? "");
}

/** @param {Response} response */
function isStream({status, headers}) {
  return status === 200 && /^text\/event-stream\s*(;|$)/i.test(headers.get("content-type") ?? "");
}

/**
 * @param {string} text
 * @returns {JsonObject | null} null: it is not a JSON object
 */
export function parsed(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

/**
 * What a `Retry-After` means in seconds: it is a number, or a time, measured from the answer's `Date`.
 *
 * @param {string | null} retryAfter
 * @param {string | null} date
 */
function seconds(retryAfter, date) {
  if (!retryAfter) return null;
  // `Date.parse` would take a negative number for a year
  const wait = /[a-z]/i.test(retryAfter)
    ? (Date.parse(retryAfter) - (date ? Date.parse(date) : Date.now())) / 1000
    : Number(retryAfter);
  return wait < 0 ? 0 : isNaN(wait) ? null : wait;
}

/** @param {unknown} error */
function reason(error) {
  const {message = String(error), cause} = /** @type {{message?: string, cause?: any}} */ (error);
  return cause?.message ? `${message}: ${cause.message}` : message;
}
