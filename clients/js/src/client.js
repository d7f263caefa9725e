/** @import * as api from "./index.js" */
/** @import {Call} from "./wire.js" */
import {Calls, IDEMPOTENCY_KEY} from "./calls.js";
import {UnexpectedAnswer} from "./errors.js";
import {List} from "./list.js";
import {EventStream} from "./stream.js";
import {EVENT_STREAM, printable, read, segment, written} from "./wire.js";

const TASK = ["task_id"];

export class Client {
  #calls;

  /**
   * @param {string | URL} url
   * @param {api.ClientOptions} [options]
   */
  constructor(url, options = {}) {
    this.url = prefix(new URL(url));
    this.#calls = new Calls(this.url, options);
  }

  // --- messages and requests ---------------------------------------------------------------------------

  /** @param {api.Input} input @param {api.MessageOptions} [options] */
  async send(input, options = {}) {
    return this.#calls.answer(message(input, options), options.signal);
  }

  /** @param {api.Input} input @param {api.MessageOptions & api.StreamOptions} [options] */
  stream(input, options = {}) {
    return new EventStream(this.#calls, asStream(message(input, options)), options);
  }

  /** @param {api.Input} input @param {api.MessageOptions} [options] */
  async background(input, options = {}) {
    return this.#calls.accepted(inBackground(message(input, options)), options.signal);
  }

  /** @param {string} request_id @param {api.CallOptions} [options] */
  async request(request_id, {signal} = {}) {
    return this.#calls.found(request_id, signal);
  }

  /** @param {string} request_id @param {api.CallOptions} [options] */
  async wait(request_id, {signal} = {}) {
    return this.#calls.waited(request_id, signal);
  }

  /** @param {string} request_id @param {api.FollowOptions} [options] */
  follow(request_id, options = {}) {
    return new EventStream(this.#calls, request_id, options);
  }

  /**
   * @param {string} request_id
   * @param {api.ListOptions & {step_id?: string}} [options]
   * @returns {List<api.SentPart, api.SentPrompt>}
   */
  prompt(request_id, options = {}) {
    return new List(this.#calls, `/requests/${segment(request_id)}/prompt`, options, ["step_id"]);
  }

  /** @param {string} request_id @param {api.CallOptions} [options] @returns {Promise<api.RequestDocument>} */
  async cancel(request_id, {signal} = {}) {
    return this.#calls.document(change("POST", `/requests/${segment(request_id)}/cancel`), signal);
  }

  // --- approvals ---------------------------------------------------------------------------------------

  /**
   * @param {api.PauseReference} of
   * @param {api.Action | api.Decision} decision
   * @param {api.CallOptions} [options]
   */
  async resume(of, decision, {signal} = {}) {
    return this.#calls.answer(resumption(of, decision), signal);
  }

  /**
   * @param {api.PauseReference} of
   * @param {api.Action | api.Decision} decision
   * @param {api.FollowOptions} [options]
   */
  resumeStream(of, decision, options = {}) {
    return new EventStream(this.#calls, asStream(resumption(of, decision)), options);
  }

  /**
   * @param {api.ListOptions & {status?: api.ApprovalStatus | null}} [options]
   * @returns {List<api.Approval | api.DamagedRecord>}
   */
  approvals({status = "pending", ...options} = {}) {
    const query = {status, ...options};
    return new List(this.#calls, "/approvals", query, ["status"]);
  }

  /**
   * @param {Pick<api.Pause, "request_id" | "approval_id">} of
   * @param {api.CallOptions} [options]
   * @returns {Promise<api.ApprovalWithTools>}
   */
  async approval({request_id, approval_id}, {signal} = {}) {
    const path = `/requests/${segment(request_id)}/approvals/${segment(approval_id)}`;
    return this.#calls.document(read(path), signal, ["approval_id"]);
  }

  // --- sessions and tasks ------------------------------------------------------------------------------

  /** @param {api.ListOptions} [options] @returns {List<api.Session | api.DamagedRecord>} */
  sessions(options = {}) {
    return new List(this.#calls, "/sessions", options);
  }

  /** @param {string} session_id @param {api.CallOptions} [options] @returns {Promise<api.Session>} */
  async session(session_id, {signal} = {}) {
    return this.#calls.document(read(`/sessions/${segment(session_id)}`), signal, ["session_id"]);
  }

  /** @param {string} session_id @param {api.CallOptions} [options] */
  async deleteSession(session_id, {signal} = {}) {
    return this.#calls.erased(once("DELETE", `/sessions/${segment(session_id)}`), signal);
  }

  /** @param {api.TaskFilter} [options] @returns {List<api.Task | api.DamagedRecord>} */
  tasks(options = {}) {
    return new List(this.#calls, "/tasks", options, ["session_id", "status"]);
  }

  /** @param {string} task_id @param {api.CallOptions} [options] @returns {Promise<api.Task>} */
  async task(task_id, {signal} = {}) {
    return this.#calls.document(read(pathOf(task_id)), signal, TASK);
  }

  /**
   * @param {string} task_id
   * @param {api.TaskChanges} changes
   * @param {api.CallOptions} [options]
   * @returns {Promise<api.Task>}
   */
  async patchTask(task_id, changes, {signal} = {}) {
    return this.#calls.document(change("PATCH", pathOf(task_id), changes), signal, TASK);
  }

  /** @param {string} task_id @param {api.CallOptions} [options] */
  async deleteTask(task_id, {signal} = {}) {
    return this.#calls.erased(change("DELETE", pathOf(task_id)), signal);
  }

  // --- what a task holds -------------------------------------------------------------------------------

  /**
   * @param {string} task_id
   * @param {api.ListOptions & {checkpoint_id?: string}} [options]
   * @returns {List<api.Message>}
   */
  messages(task_id, options = {}) {
    return new List(this.#calls, pathOf(task_id, "/messages"), options, ["checkpoint_id"]);
  }

  /** @param {string} task_id @param {api.ListOptions} [options] @returns {List<api.Step>} */
  trace(task_id, options = {}) {
    return new List(this.#calls, pathOf(task_id, "/trace"), options);
  }

  /**
   * @param {string} task_id
   * @param {api.ListOptions & {parents?: boolean}} [options]
   * @returns {List<api.Checkpoint>}
   */
  checkpoints(task_id, options = {}) {
    return new List(this.#calls, pathOf(task_id, "/checkpoints"), options, ["parents"]);
  }

  /** @param {string} task_id @param {api.ListOptions} [options] @returns {List<api.AuditEntry>} */
  audit(task_id, options = {}) {
    return new List(this.#calls, pathOf(task_id, "/audit"), options);
  }

  /**
   * @param {string} task_id
   * @param {string} checkpoint_id
   * @param {api.CallOptions} [options]
   * @returns {Promise<api.Task>}
   */
  async rollback(task_id, checkpoint_id, {signal} = {}) {
    return this.#calls.document(once("POST", pathOf(task_id, "/rollback"), {checkpoint_id}), signal, TASK);
  }

  /**
   * @param {string} task_id
   * @param {{checkpoint_id?: string, message_id?: string}} [point]
   * @param {api.CallOptions} [options]
   * @returns {Promise<api.Task>}
   */
  async fork(task_id, point = {}, {signal} = {}) {
    return this.#calls.document(once("POST", pathOf(task_id, "/fork"), point), signal, TASK);
  }

  /** @param {string} task_id @param {api.CallOptions} [options] @returns {Promise<string>} */
  async exportTask(task_id, {signal} = {}) {
    return this.#calls.text(read(pathOf(task_id, "/export")), signal);
  }

  /** @param {string} document @param {api.CallOptions} [options] @returns {Promise<api.Task>} */
  async importTask(document, {signal} = {}) {
    return this.#calls.document(once("POST", "/tasks/import", document), signal, TASK);
  }

  // --- who is asking -----------------------------------------------------------------------------------

  /** @param {api.CallOptions} [options] @returns {Promise<api.Me>} */
  async me({signal} = {}) {
    const me = await this.#calls.document(read("/me"), signal, []);
    if (!me.user?.oid) throw new UnexpectedAnswer("an answer without its user: is this the URL of an agent?");
    return me;
  }

  /** @param {api.TenantFilter} [options] @returns {List<api.Task | api.DamagedRecord>} */
  tenantTasks(options = {}) {
    return new List(this.#calls, "/tenant/tasks", options, ["oid", "status", "metadata"]);
  }

  /** @param {api.CallOptions} [options] */
  async health({signal} = {}) {
    return this.#calls.health(signal);
  }
}

/**
 * The agent's prefix, without a slash at its end. What is wrong is not quoted: it may hold a password.
 *
 * @param {URL} url
 */
function prefix({protocol, username, password, href}) {
  if (!/^https?:$/.test(protocol) || username || password || /[?#]/.test(href)) {
    throw new TypeError("the URL of an agent is http(s)://host/name/version, without a user, a query or a fragment");
  }
  return href.replace(/\/+$/, "");
}

/**
 * @param {api.Input} input
 * @param {api.MessageOptions} options
 * @returns {Call}
 */
function message(input, options) {
  const {session_id, task_id, user_context, metadata, supersede, idempotencyKey, ...others} = options;
  for (const name in others) {
    // one that is misspelt, such as `taskId`, would begin a new task
    if (!/^(signal|on(Open|Reconnect))$/.test(name)) throw new TypeError(`a message has no option ${name}`);
  }
  const items = typeof input === "string" ? [{content_type: "text", content: input}] : input;
  return written({
    method: "POST",
    path: "",
    body: {items, session_id, task_id, user_context, metadata, supersede},
    headers: {[IDEMPOTENCY_KEY]: printable(idempotencyKey ?? newKey(), "the idempotency key")},
    timeout: "answerMs",
    repeatable: true,
  });
}

/**
 * The same decision made again gets the outcome of the first, so that it may be repeated.
 *
 * @param {api.PauseReference} of
 * @param {api.Action | api.Decision} decision
 * @returns {Call}
 */
function resumption(of, decision) {
  const pause = typeof of === "string" ? {request_id: of, approval_id: undefined} : of;
  const decided = typeof decision === "string" ? {action: decision} : decision;
  const {approval_id = pause.approval_id, ...body} = decided;
  return written({
    method: "POST",
    path: `/requests/${segment(pause.request_id)}/resume`,
    query: {approval_id},
    body,
    timeout: "answerMs",
    repeatable: true,
  });
}

/** @param {Call} call @returns {Call} */
function asStream(call) {
  return {...call, path: `${call.path}/sse`, headers: {...call.headers, Accept: EVENT_STREAM}, timeout: "silenceMs"};
}

/** @param {Call} call @returns {Call} */
function inBackground(call) {
  return {...call, headers: {...call.headers, Prefer: "respond-async"}, timeout: "callMs"};
}

/**
 * A change that sets something, and so does the same when it comes twice.
 *
 * @param {"POST" | "PATCH" | "DELETE"} method
 * @param {string} path
 * @param {object} [body]
 * @returns {Call}
 */
function change(method, path, body) {
  return written({method, path, body, repeatable: true});
}

/**
 * A change that would be made twice if its call came twice, or would undo what others did in between.
 *
 * @param {"POST" | "DELETE"} method
 * @param {string} path
 * @param {object | string} [body]
 * @returns {Call}
 */
function once(method, path, body) {
  return written({method, path, body});
}

/** @param {string} task_id */
function pathOf(task_id, below = "") {
  return `/tasks/${segment(task_id)}${below}`;
}

/** Not `randomUUID`, which a page has only where it was served securely. */
function newKey() {
  return crypto.getRandomValues(new Uint32Array(4)).join("-");
}
