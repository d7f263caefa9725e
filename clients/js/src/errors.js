/** @import {Problem} from "./index.js" */

export class ClientError extends Error {
  /** of a message
   * @type {string | null} */
  idempotencyKey = null;
  inDoubt = false;

  /** @override */
  get name() {
    return this.constructor.name;
  }
}

export class ConnectionLost extends ClientError {
  /**
   * @param {string} [message]
   * @param {{cause?: unknown, inDoubt?: boolean, requestId?: string | null, lastEventId?: number}} [known]
   */
  constructor(message, {cause, inDoubt = false, requestId = null, lastEventId = 0} = {}) {
    super(message, {cause});
    this.inDoubt = inDoubt;
    this.requestId = requestId;
    this.lastEventId = lastEventId;
  }
}

export class UnexpectedAnswer extends ClientError {}

/**
 * Whether it can be an id of the service, and so one segment of a path.
 *
 * @param {unknown} id
 * @returns {id is string}
 */
export function isId(id) {
  return typeof id === "string" && /^[\w-]{1,255}$/.test(id);
}

/** @param {unknown} id */
function idOrNull(id) {
  return isId(id) ? id : null;
}

/**
 * A server in between may send a document of another shape.
 *
 * @param {unknown} value
 */
function text(value) {
  return typeof value === "string" ? value : null;
}

export class ProblemError extends ClientError {
  /**
   * @param {Partial<Problem>} problem
   * @param {{status?: number, retryAfter?: number | null, replayed?: boolean, detail?: string}} [reply] what came with
   *   the document, and what is said where that says nothing
   */
  constructor(problem, {status = problem.status ?? 500, retryAfter = null, replayed = false, detail} = {}) {
    super(text(problem.detail) ?? text(problem.title) ?? detail ?? `the service answered with HTTP ${status}`);
    this.detail = this.message;
    this.status = status;
    this.code = text(problem.code);
    this.title = text(problem.title);
    this.retryAfter = retryAfter;
    this.sessionId = idOrNull(problem.session_id);
    this.taskId = idOrNull(problem.task_id);
    this.requestId = idOrNull(problem.request_id);
    this.approvalId = idOrNull(problem.approval_id);
    this.field = text(problem.field);
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

/** @type {Map<string | undefined, typeof ProblemError>} */
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

/**
 * @param {Partial<Problem>} problem
 * @param {ConstructorParameters<typeof ProblemError>[1]} [reply]
 */
export function problemError(problem, reply) {
  return new (CLASSES.get(problem.code) ?? ProblemError)(problem, reply);
}
