import {UnexpectedAnswer, isId, problemError} from "./errors.js";
import {readMessages} from "./sse.js";

export const EVENT_STREAM = "text/event-stream";

const UNSENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"]);


export class Lost extends Error {
constructor(cause) {
super(reason(cause), {cause});
this.sent = !UNSENT.has(/** @type {any} */ (cause)?.cause?.code);
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
if (document === null) throw new UnexpectedAnswer(`HTTP ${this.status} with a body that is no JSON object`);
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
if (body !== undefined) init.body = typeof body === "string" ? body : JSON.stringify(body);
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
const {message = String(error), cause} = /** @type {Error} */ (error);
return cause instanceof Error && cause.message ? `${message}: ${cause.message}` : message;
}
