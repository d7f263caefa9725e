import type {
  Accepted,
  Answer,
  Approval,
  ApprovalStatus,
  ApprovalWithTools,
  AuditEntry,
  Checkpoint,
  DamagedRecord,
  Health,
  Item,
  JsonObject,
  Me,
  Message,
  Page,
  Pause,
  Problem,
  RequestDocument,
  SentPart,
  SentPrompt,
  Session,
  Status,
  Step,
  StreamEvent,
  Task,
} from "./documents.js";

export type * from "./documents.js";

/**
 * A bearer token, or a function that gives one. The function is asked before every call, so that a stream
 * outlives a token; with `refused` when the service has just refused the token it gave: it is asked once
 * more, and should give a new one. An empty one is none; what is no string is a `TypeError`, and nothing is sent.
 */
export type Token = string | ((why: {refused: boolean}) => string | Promise<string>);

/** Limits on retries. With the defaults, an unavailable service is retried for about half a minute. */
export interface Retry {
  /** failures in a row, without progress between them, after which to give up; default 10; with `Infinity`, never */
  attempts?: number;
  /** wait before the first retry; each further one waits twice as long; default 200 */
  firstDelayMs?: number;
  /** default 8,000 */
  longestDelayMs?: number;
  /** longest `Retry-After` to wait for; default 60,000 */
  longestWaitMs?: number;
}

/**
 * After this long without a byte, a connection counts as dead; with `Infinity`, never. Sending a body has one more
 * millisecond for every 16 characters.
 */
export interface Timeouts {
  /** for the answer of a read or a small change; default 30,000 */
  callMs?: number;
  /** for the JSON answer of a message, which comes whole when the model is done; default 660,000 */
  answerMs?: number;
  /** for a stream; default 45,000: three keepalives of the service */
  silenceMs?: number;
}

export interface ClientOptions {
  token?: Token;
  /** used instead of the global `fetch` */
  fetch?: typeof fetch;
  retry?: Retry;
  timeouts?: Timeouts;
}

export interface CallOptions {
  /** aborts the call, or the stream; what the service has started continues (see `cancel`) */
  signal?: AbortSignal;
}

/** What a user says: text, or several items. */
export type Input = string | readonly Item[];

/** What goes with a message. Its fields have the names of the HTTP reference. */
export interface MessageOptions extends CallOptions {
  /** continue this session, or start it */
  session_id?: string;
  /** continue this task; without it a new one is created */
  task_id?: string;
  /** sent to the model in this request only */
  user_context?: {[name: string]: string};
  /** kept with a new task */
  metadata?: JsonObject;
  /** cancel the pause that the task waits in, instead of being refused because of it */
  supersede?: boolean;
  /** the same key with the same message gets the first one's outcome; generated for each message if absent */
  idempotencyKey?: string | null;
}

export interface Reconnection {
  /** failures in a row, from 1 */
  attempt: number;
  /** until the next attempt */
  delayMs: number;
  /** why the connection is not there */
  error: ConnectionLost | ProblemError;
}

export interface StreamOptions {
  /** called whenever the connection is lost, before the wait for the next attempt */
  onReconnect?: (reconnection: Reconnection) => void;
  /** called whenever a connection is open; the first event may come much later */
  onOpen?: () => void;
}

export interface FollowOptions extends CallOptions, StreamOptions {
  /** the last event seen; the stream begins after it; default 0 */
  after?: number;
}

export type Action = "approve" | "reject";

/** What is decided about one call. */
export interface CallDecision {
  /** the call's id, as the pause shows it */
  id: string;
  action?: Action;
  /** run with these instead of those shown */
  arguments?: JsonObject;
}

/** A decision: a default action, one for each call, or both. */
export interface Decision {
  /** for the calls that `decisions` omits */
  action?: Action;
  /** sent to the model for rejected calls, and kept in the trace */
  reason?: string;
  decisions?: readonly CallDecision[];
  /** which pause is meant; needed from a request's second one on, unless the pause itself is given */
  approval_id?: string;
}

/** A pause, as an answer or the inbox shows it, or the id of its request. */
export type PauseReference = string | Pick<Pause, "request_id" | "approval_id">;

export interface ListOptions extends CallOptions {
  /** items per page, 1 to 200; default 50 */
  limit?: number;
  /** where the first page begins: the `next_cursor` of another */
  cursor?: string;
}

export interface TaskFilter extends ListOptions {
  session_id?: string;
  status?: Status;
}

export interface TenantFilter extends ListOptions {
  /** only those of this user */
  oid?: string;
  status?: Status;
  /** only those with this value in their metadata: `team:north` */
  metadata?: string;
}

export interface TaskChanges {
  /** merged into what is there (RFC 7396): null removes a key, or all of it */
  metadata?: JsonObject | null;
  /** a time with an offset; null: never */
  expires_at?: string | Date | null;
}

/** A list of the service. Nothing is requested before it is read; each reading requests it again. */
export interface List<T, Paged = Page<T>> extends AsyncIterable<T> {
  /** one page: the first, or the one at `cursor` */
  page(cursor?: string | null): Promise<Paged>;
  /** all pages in one array */
  toArray(): Promise<T[]>;
}

/**
 * The events of a request, each once and in order, through any number of broken connections. The last one is
 * `final-response`, `approval-required` or `error`. Leaving the loop closes the connection and does not cancel
 * the request; another loop continues where the last one stopped. A second reader beside the first, be it a loop or
 * `answer`, would take events from it: it gets a `TypeError`.
 */
export interface EventStream extends AsyncIterable<StreamEvent> {
  /** known from the first event on */
  readonly sessionId: string | null;
  readonly taskId: string | null;
  readonly requestId: string | null;
  /** the last event seen: with `requestId` all that `follow` needs to continue from here */
  readonly lastEventId: number;
  /** read on to the end: the answer, or the request's failure as a `ProblemError` */
  answer(): Promise<Answer>;
  [Symbol.asyncIterator](): AsyncGenerator<StreamEvent, void, void>;
}

/**
 * One agent, seen by one user. Every failure of the network or the service is a `ClientError`, and a call that a
 * signal ended fails with the signal's reason. A URL, id, key, token or value that cannot be sent is a mistake in
 * the program: a `TypeError`, and nothing is sent. A call that could be executed twice is never repeated.
 */
export class Client {
  /** @param url the agent's prefix, `https://host/{name}/{version}` */
  constructor(url: string | URL, options?: ClientOptions);

  readonly url: string;

  /** Send a message and wait for its answer, which is the model's output or a pause. */
  send(input: Input, options?: MessageOptions): Promise<Answer>;
  /** Send a message and follow its answer. Nothing is sent before the first event is asked for. */
  stream(input: Input, options?: MessageOptions & StreamOptions): EventStream;
  /** Send a message and return as soon as the service has stored it. */
  background(input: Input, options?: MessageOptions): Promise<Accepted>;

  /** The request as it stands now. */
  request(request_id: string, options?: CallOptions): Promise<RequestDocument>;
  /** Wait until the request has ended or paused: its answer, or its failure as a `ProblemError`. */
  wait(request_id: string, options?: CallOptions): Promise<Answer>;
  /** The events of a request, to its end. */
  follow(request_id: string, options?: FollowOptions): EventStream;
  /** What the model was sent in one of the request's calls, oldest first; without `step_id`, in the last. */
  prompt(request_id: string, options?: ListOptions & {step_id?: string}): List<SentPart, SentPrompt>;
  /** End a running or paused request; one that has ended stays as it is. */
  cancel(request_id: string, options?: CallOptions): Promise<RequestDocument>;

  /** Decide a pause and wait for the outcome. */
  resume(of: PauseReference, decision: Action | Decision, options?: CallOptions): Promise<Answer>;
  /** Decide a pause and follow the request, from after the event `after`. */
  resumeStream(of: PauseReference, decision: Action | Decision, options?: FollowOptions): EventStream;
  /** The pauses that the caller may decide, newest first; with another `status` those, with null all of them. */
  approvals(options?: ListOptions & {status?: ApprovalStatus | null}): List<Approval | DamagedRecord>;
  /** One pause, with the tools of its calls. */
  approval(of: Pick<Pause, "request_id" | "approval_id">, options?: CallOptions): Promise<ApprovalWithTools>;

  /** The caller's sessions, newest first. */
  sessions(options?: ListOptions): List<Session | DamagedRecord>;
  /** A session with its newest tasks. */
  session(session_id: string, options?: CallOptions): Promise<Session>;
  /** Delete a session with all its tasks. This cannot be undone. */
  deleteSession(session_id: string, options?: CallOptions): Promise<void>;

  /** The caller's tasks, newest first. */
  tasks(options?: TaskFilter): List<Task | DamagedRecord>;
  task(task_id: string, options?: CallOptions): Promise<Task>;
  patchTask(task_id: string, changes: TaskChanges, options?: CallOptions): Promise<Task>;
  /** Delete a task with everything it holds. This cannot be undone. */
  deleteTask(task_id: string, options?: CallOptions): Promise<void>;

  /** The interaction history, oldest first, on the current path or that of `checkpoint_id`. */
  messages(task_id: string, options?: ListOptions & {checkpoint_id?: string}): List<Message>;
  /** The execution trace, oldest first. */
  trace(task_id: string, options?: ListOptions): List<Step>;
  /** The completed requests that you can go back to, newest first; with `parents` they make a tree. */
  checkpoints(task_id: string, options?: ListOptions & {parents?: boolean}): List<Checkpoint>;
  /** The record of who did what, oldest first. */
  audit(task_id: string, options?: ListOptions): List<AuditEntry>;

  /** Make another checkpoint the current one; nothing is erased. */
  rollback(task_id: string, checkpoint_id: string, options?: CallOptions): Promise<Task>;
  /** A new task with the history up to a checkpoint or a message; by default the last completed request. */
  fork(
    task_id: string,
    point?: {checkpoint_id?: string; message_id?: string},
    options?: CallOptions,
  ): Promise<Task>;
  /** The whole task as one document: JSON text, since `JSON.parse` would round its integers beyond 2^53. */
  exportTask(task_id: string, options?: CallOptions): Promise<string>;
  /** Import such a text. */
  importTask(document: string, options?: CallOptions): Promise<Task>;

  /** Who the caller is to the service. */
  me(options?: CallOptions): Promise<Me>;
  /** For auditors: the tasks of the tenant, owner by owner, each owner's newest first. */
  tenantTasks(options?: TenantFilter): List<Task | DamagedRecord>;
  /** The state of the process and of what it depends on: one attempt, without a token. */
  health(options?: CallOptions): Promise<Health>;
}

/** The base of all errors of this package. */
export class ClientError extends Error {
  /** of a message: to send the same message again without doing it twice */
  readonly idempotencyKey: string | null;
  /** of a fork, an import, a rollback or the deletion of a session: it may have been done, and is not repeated */
  readonly inDoubt: boolean;
}

/**
 * Neither an answer nor a refusal, after as many attempts as `Retry` allows; `cause` is the last failure.
 * What is known is here, to continue later: `requestId` and `lastEventId` for `follow`, and `idempotencyKey`.
 */
export class ConnectionLost extends ClientError {
  constructor(
    message?: string,
    known?: {
      cause?: unknown;
      inDoubt?: boolean;
      requestId?: string | null;
      lastEventId?: number;
    },
  );
  readonly requestId: string | null;
  readonly lastEventId: number;
}

/** An answer outside the contract: from another service, or from a proxy. */
export class UnexpectedAnswer extends ClientError {}

/**
 * A problem document: the service said no, or a request failed. Each code has a class of its own, below. An
 * unknown code, or an answer of a gateway, which has none of these, is a plain `ProblemError`.
 */
export class ProblemError extends ClientError {
  constructor(
    problem: Partial<Problem>,
    reply?: {status?: number; retryAfter?: number | null; replayed?: boolean; detail?: string},
  );
  readonly status: number;
  readonly code: string | null;
  readonly title: string | null;
  /** what went wrong, and what to do; also the `message` */
  readonly detail: string;
  /** seconds to wait before retrying */
  readonly retryAfter: number | null;
  readonly sessionId: string | null;
  readonly taskId: string | null;
  /** `task_busy`: the request that runs; `approval_pending`: the one to decide; else the failed one */
  readonly requestId: string | null;
  readonly approvalId: string | null;
  /** which input was wrong */
  readonly field: string | null;
  /** it is the recorded outcome of an earlier request under the same idempotency key */
  readonly replayed: boolean;
  /** the document as it came */
  readonly problem: Partial<Problem>;
}

/** The error that a problem document stands for: of an `error` event, of a request, of a damaged record. */
export function problemError(problem: Partial<Problem>): ProblemError;

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
