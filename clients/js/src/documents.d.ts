/**
 * The JSON documents of `tealagents/v1alpha1`, as the service sends them: nothing is renamed or converted.
 * Times are RFC 3339 text, ids are UUIDs. A newer service may send more fields.
 */

export type Json = null | boolean | number | string | Json[] | {[name: string]: Json};
export type JsonObject = {[name: string]: Json};

export type Status = "Queued" | "Running" | "Paused" | "Completed" | "Failed" | "Canceled";

export interface Ids {
  session_id: string;
  task_id: string;
  request_id: string;
}

/** One part of a message: text, or an image as a data URI (`data:image/png;base64,…`). */
export interface Item {
  content_type: "text" | "image";
  content: string;
}

/** Tokens, summed over all model calls of a request. */
export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
}

/** The answer of a request that has completed, or as much of it as a failed one had produced. */
export interface Content extends Ids {
  output: string;
  source: string;
  token_usage: Usage;
  extra_data: JsonObject | null;
}

/** A tool call that waits for a decision. `arguments` is JSON text, exactly as it would run. */
export interface PendingCall {
  id: string;
  plugin_name: string;
  function_name: string;
  arguments: string;
}

/** An address at which the user grants a tool what it needs. */
export interface Authorization {
  server: string;
  url: string;
  scopes: string[];
}

/** The pause of a request, in an answer. */
export interface Pause extends Ids {
  approval_id: string;
  message: string;
  approval_url: string;
  rejection_url: string;
  expires_at: string;
  authorizations: Authorization[];
  tool_calls: PendingCall[];
}

export type ApprovalStatus = "pending" | "decided" | "expired" | "canceled";

/** A pause in the inbox, and what was decided. */
export interface Approval extends Pause {
  status: ApprovalStatus;
  created_at: string;
  decided_at: string | null;
  decided_by: Owner | null;
}

/** A call that waits, with its tool as it was when the call was shown; null where that is not known. */
export interface CallWithTool extends PendingCall {
  description: string | null;
  /** JSON Schema of the arguments */
  parameters: JsonObject | null;
}

/** A pause, with the tools of its calls. */
export interface ApprovalWithTools extends Approval {
  tool_calls: CallWithTool[];
}

export interface CompletedAnswer extends Ids {
  status: "Completed";
  /** null for an approver who does not own the task */
  content: Content | null;
}

export interface PausedAnswer extends Ids {
  status: "Paused";
  /** null for an approver who does not own the task */
  content: Pause | null;
}

/** A request that ended in another way, as reported to an approver who decides after the end. */
export interface EndedAnswer extends Ids {
  status: "Failed" | "Canceled";
  content: Content | null;
}

/** The outcome of a message or a decision; see `status`. */
export type Answer = CompletedAnswer | PausedAnswer | EndedAnswer;

/** What a request in the background is acknowledged with. */
export interface Accepted extends Ids {
  /** other than `Queued` and `Running` only if the message had been sent before, under the same key */
  status: Status;
}

/** A problem document (RFC 9457): how the service says no, and how a failed request is recorded. */
export interface Problem extends Partial<Ids> {
  type: string;
  title: string;
  status: number;
  /** What went wrong, and what to do. */
  detail: string;
  code: string;
  approval_id?: string;
  /** Which input was wrong. */
  field?: string;
}

export interface RequestDocument extends Ids {
  status: Status;
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
  token_usage: Usage;
  content: Content | Pause | null;
  error: Problem | null;
}

export interface Owner {
  tid: string;
  oid: string;
}

export interface Task {
  task_id: string;
  session_id: string;
  status: Status;
  created_at: string;
  last_updated: string;
  expires_at: string | null;
  metadata: JsonObject;
  owner: Owner;
  /** the current checkpoint */
  checkpoint_id: string | null;
  /** the request that runs, or waits for a decision */
  request_id: string | null;
  /** the pending approval of a paused task */
  approval_id: string | null;
  /** the requests that wait their turn, in order */
  queued: string[];
  /** where a forked or imported task came from */
  origin: JsonObject | null;
}

/** What a list contains in place of a record that cannot be read: its id, and what is wrong with it. */
export interface DamagedRecord {
  task_id?: string;
  session_id?: string;
  approval_id?: string;
  error: Problem;
}

export interface Session {
  session_id: string;
  created_at: string;
  owner: Owner;
  /** the newest tasks, up to 200; only where one session is read */
  tasks?: (Task | DamagedRecord)[] | null;
}

export interface ToolCall {
  id: string;
  tool: string;
  /** JSON text */
  arguments: string;
}

/** One message of the interaction history. */
export interface Message {
  message_id: string;
  request_id: string;
  role: "user" | "assistant" | "tool";
  items: Item[];
  tool_calls: ToolCall[];
  tool_call_id: string | null;
  tool: string | null;
  is_error: boolean;
  created_at: string;
  /** the message that this one was copied from, in a fork */
  origin: JsonObject | null;
}

/** One entry of the execution trace. `kind` is `model`, `tool`, `approval`, `error` or a reduction's. */
export interface Step {
  step_id: string;
  request_id: string;
  kind: string;
  name: string;
  started_at: string;
  duration_ms: number;
  input: JsonObject | null;
  output: JsonObject | null;
  usage: Usage | null;
  is_error: boolean;
  outcome: string | null;
  imported: boolean;
}

/** The state of a task after a request has completed. */
export interface Checkpoint {
  checkpoint_id: string;
  request_id: string;
  created_at: string;
  current: boolean;
  /** the checkpoint that it continued; null for the first one. With `parents` only */
  parent_id?: string | null;
}

/** A part of what the model was sent: a message, or a text in the place of one. */
export interface SentPart {
  origin: "system_prompt" | "summary" | "note" | "context" | "history" | "request";
  role: "system" | "user" | "assistant" | "tool";
  /** the stored message; null for a text */
  message_id: string | null;
  request_id: string | null;
  items: Item[];
  tool_calls: ToolCall[];
  tool_call_id: string | null;
  tool: string | null;
  /** it was sent in a different form from the one stored and shown */
  altered: boolean;
  /** its text is not shown: the system prompt of a service without the console */
  withheld: boolean;
}

/** A page of what a model call was sent, reconstructed from stored state. */
export interface SentPrompt extends Page<SentPart> {
  request_id: string;
  step_id: string;
  model: string;
  /** how many parts were sent, according to the trace */
  parts_sent: number;
  /** known differences between these parts and what was sent */
  gaps: ("altered" | "agent" | "path" | "count")[];
}

/** Who the caller is to the service, and the caller's roles. */
export interface Me {
  user: Owner;
  roles: ("approver" | "auditor")[];
}

/** One entry of the append-only record. */
export interface AuditEntry {
  seq: number;
  at: string;
  actor: string;
  action: string;
  request_id: string | null;
  details: JsonObject;
  prev_hash: string;
  hash: string;
}

export interface Health {
  status: "ok" | "degraded" | "draining";
  version: string;
  /** seconds since the start */
  uptime: number;
  dependencies: {[name: string]: JsonObject};
}

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}

interface StreamEventOf<Name extends string, Data> {
  event: Name;
  /** the number within the request; null where the end was read from the request itself, not from its log */
  id: number | null;
  data: Data;
}

/**
 * The service has stored the message. `Queued` while it waits its turn. Comes again when a resumed request
 * continues.
 */
export type RequestEvent = StreamEventOf<"request", Ids & {status: "Queued" | "Running"}>;
/** Some text of the answer, as the model service sent it. */
export type PartialResponseEvent = StreamEventOf<
  "partial-response",
  Ids & {source: string; output_partial: string}
>;
export type ToolCallEvent = StreamEventOf<"tool-call", Ids & {call_id: string; tool: string; arguments: string}>;
export type ToolResultEvent = StreamEventOf<
  "tool-result",
  Ids & {call_id: string; tool: string; output: string; is_error: boolean; duration_ms: number}
>;
/** The request waits for a decision. The last event of its stream. */
export type ApprovalRequiredEvent = StreamEventOf<"approval-required", PausedAnswer>;
/** The whole answer. The last event of its stream. */
export type FinalResponseEvent = StreamEventOf<"final-response", CompletedAnswer>;
/** The request has failed or was canceled. The last event of its stream. */
export type ErrorEvent = StreamEventOf<"error", Problem>;

export type StreamEvent =
  | RequestEvent
  | PartialResponseEvent
  | ToolCallEvent
  | ToolResultEvent
  | ApprovalRequiredEvent
  | FinalResponseEvent
  | ErrorEvent;
