/** Reading from the service: once, again, and page by page; the messages of a task, and turns made of them. */
import {createContext, html, useCallback, useContext, useEffect, useMemo, useRef, useState} from "./html.js";
import {useApp, useAttempt} from "./context.js";
import {inView} from "./ui.js";

/** how long until what could not be read is read again */
const AGAIN_MS = 5000;

/** Whether an error may pass, unlike damage; one without a code is not the service's. */
const passes = ({code, status}) => !code || status === 429 || (status >= 500 && code !== "corrupt_state");

/**
 * `read(signal)`'s result, read again when `keys` change or `reload()` is called, and, while the page is visible, every
 * `everyMs` unless it is gone, or after an error that may pass. What was read stays until there is something newer.
 */
export function useRead(read, keys, everyMs) {
  const [state, setState] = useState({data: null, error: null});
  const run = useRef(null);
  const reload = useCallback(async () => run.current?.(true), []);
  useEffect(() => {
    const leaving = new AbortController();
    let under = null;
    let failed = false;
    let gone = false;
    // a reading that is under way is no new one
    run.current = (anew = false) => {
      if (under && anew) return under.then(() => run.current?.());
      under ??= read(leaving.signal)
        .then((data) => {
          failed = gone = false;
          // the same is not drawn anew
          if (!leaving.signal.aborted && data !== undefined)
            setState((known) => (known.data === data && !known.error ? known : {data, error: null}));
        })
        .catch((error) => {
          failed = passes(error);
          gone = error.code === "not_found";
          if (!leaving.signal.aborted) setState((known) => ({...known, error}));
        })
        .finally(() => (under = null))
        // a caller waits for what takes its place
        .then(() => leaving.signal.aborted && run.current?.());
      return under;
    };
    run.current();
    const looked = () => (everyMs || failed) && document.visibilityState === "visible" && run.current?.();
    const timer = setInterval(() => gone || looked(), everyMs ?? AGAIN_MS);
    document.addEventListener("visibilitychange", looked);
    return () => {
      leaving.abort();
      run.current = null;
      clearInterval(timer);
      document.removeEventListener("visibilitychange", looked);
    };
  }, keys);
  return {...state, reload};
}

/** how often a task in view is read again */
export const FRESH = 2500;

/** Calls `reload`, unless it is null, when a task was made or changed in this page. */
export function useChanges(reload) {
  useEffect(() => {
    addEventListener("tasks-changed", reload);
    return () => removeEventListener("tasks-changed", reload);
  }, [reload]);
}

/** pages in which nothing was found that are read for one that holds something */
const MOST_EMPTY = 20;

/**
 * Adds pages, if there are any: up to as many as are shown by then, and until one from `from` on holds something. The
 * service looks through a number of items for each page, and may find none.
 */
async function goOn(list, pages, shown, from) {
  const isFound = () => pages.slice(from).some((page) => page.items.length) || pages.length - from >= MOST_EMPTY;
  while (pages.at(-1).next_cursor !== null && (pages.length < shown.pages.length || !isFound()))
    pages.push(await list.page(pages.at(-1).next_cursor));
  return pages;
}

/** how long what follows the first page is kept while that one holds the same */
const SAME_MS = 30_000;

/**
 * A list, page by page. The first is read again every `everyMs`, the others with it if it has changed, after a while, or
 * on `reload()`. `more()` adds the next one; null at the end.
 */
export function usePages(list, keys, everyMs) {
  const shown = useMemo(() => ({pages: [], asked: 0, read: 0, since: 0}), keys);
  const [, redraw] = useState(0);
  const read = async () => {
    const {asked} = shown;
    const pages = [await list.page()];
    const kept = asked === shown.read && Date.now() - shown.since < SAME_MS && sameItems(pages[0], shown.pages[0]);
    if (kept) pages.push(...shown.pages.slice(1));
    await goOn(list, pages, shown, 0);
    if (!kept) Object.assign(shown, {read: asked, since: Date.now()});
    return (shown.pages = pages);
  };
  const {error, reload} = useRead(read, keys, everyMs);
  const again = useCallback(() => ((shown.asked += 1), reload()), [shown]);
  const next = () => shown.pages.at(-1)?.next_cursor ?? null;
  const more = useAttempt()(async () => {
    const cursor = next();
    const known = shown.pages.length;
    const pages = await goOn(list, [...shown.pages], shown, known);
    if (cursor === next()) shown.pages = [...shown.pages, ...pages.slice(known)]; // else they were read again
    redraw((n) => n + 1);
  });
  const items = useMemo(() => shown.pages.flatMap((page) => page.items), [shown.pages]);
  return {items, loaded: shown.pages.length > 0, error, reload: again, more: next() && more};
}

const sameItems = (one, other) => keysOf(one) === keysOf(other);
const keysOf = (page) => page?.items.map((item) => item.approval_id ?? item.task_id).join();

const InboxContext = createContext(null);

/** What waits, of the newest 2,000 pauses, as `useRead` gives it; read once for all parts. */
export const useInbox = () => useContext(InboxContext);

export function Inbox({children}) {
  const {client} = useApp();
  const known = useRef(null);
  const read = async (signal) => {
    const list = client.approvals({status: "pending", limit: 200, signal});
    const own = (known.current ??= {}); // one that is thrown away meanwhile keeps nothing
    const first = await list.page();
    if (!own.first || !sameItems(own.first, first) || Date.now() - own.since > SAME_MS) {
      const pages = [first];
      while (pages.at(-1).next_cursor !== null && pages.length < 10)
        pages.push(await list.page(pages.at(-1).next_cursor));
      Object.assign(own, {first, items: pages.flatMap((page) => page.items), since: Date.now()});
    }
    return own.items;
  };
  const {reload, ...state} = useRead(read, [client], 4000);
  const again = useCallback(() => ((known.current = null), reload()), [reload]);
  return html`<${InboxContext.Provider} value=${{...state, reload: again}}>${children}<//>`;
}

/** task id → `{version, steps}`: the traces of the last tasks, each read once for a version of it */
export const traces = new Map();

function traceOf({task_id: id, last_updated, decided_at: version = last_updated}, client, signal) {
  if (traces.get(id)?.version !== version) {
    traces.set(id, {version, steps: client.trace(id, {limit: 200, signal}).toArray()});
    traces.get(id).steps.catch(() => traces.delete(id));
    if (traces.size > 9) traces.delete(traces.keys().next().value);
  }
  return traces.get(id).steps;
}

/**
 * The decision on a call, by its id, from the matching steps of the trace of a task, or a pause's, once `place` can be
 * seen.
 */
export function useDecisions(task, matches, place) {
  const {client, ended} = useApp();
  const look = async (signal) => {
    if (!task) return;
    await inView(place.current, signal);
    const steps = await traceOf(task, client, ended);
    const decided = steps.filter((step) => step.kind === "approval" && step.name === "decided" && matches(step));
    return new Map(decided.flatMap(({output}) => output.decisions.map((decision) => [decision.id, decision])));
  };
  const {data} = useRead(look, [client, task && task.task_id]);
  return (id) => data?.get(id);
}

/** Values that all parts of the page share, such as titles that were looked up. */
export class Shared {
  #listeners = new Set();
  values = new Map();

  set(key, value) {
    if (this.values.get(key) === value) return;
    this.values.set(key, value);
    for (const listener of this.#listeners) listener(key);
  }

  /** The value of `key`, and from then on each of its changes. */
  use(key) {
    const [, again] = useState(0);
    const value = this.values.get(key);
    useEffect(() => {
      const listener = (changed) => changed === key && again((n) => n + 1);
      this.#listeners.add(listener);
      if (this.values.get(key) !== value) listener(key); // it was set before anyone listened
      return () => this.#listeners.delete(listener);
    }, [key]);
    return value;
  }
}

/**
 * The messages on a path, read to their end, and the request that ran then. When the task changes, the last page is read
 * again, and all pages if it does not begin with the same message any more, as after a rollback.
 */
export function useMessages(client, task, checkpointId) {
  const path = [client, task.task_id, checkpointId];
  const known = useMemo(() => ({pages: []}), path);
  const read = async (signal) => {
    known.pages = await pagesFrom(client, task.task_id, checkpointId, known.pages, signal);
    return {items: known.pages.flatMap((page) => page.items), request_id: task.request_id};
  };
  const state = useRead(read, [...path, task.checkpoint_id, task.status, task.request_id ?? task.last_updated]);
  return {...state, ...state.data};
}

async function pagesFrom(client, taskId, checkpointId, known, signal) {
  const list = client.messages(taskId, {limit: 200, checkpoint_id: checkpointId, signal});
  const last = known.at(-1);
  const read = known.slice(0, -1);
  let cursor = last?.cursor ?? null;
  do {
    const {items, next_cursor} = await list.page(cursor);
    if (read.length < known.length && items[0]?.message_id !== last.items[0]?.message_id)
      return pagesFrom(client, taskId, checkpointId, [], signal);
    read.push({cursor, items});
    cursor = next_cursor;
  } while (cursor !== null);
  return read;
}

/**
 * Messages as turns, one a request: `{requestId, user: [message], parts}`, where parts are texts and calls with
 * their results, as a running request reports them, and what the user said later: a client's history is one request.
 */
export function turnsOf(messages) {
  const turns = [];
  for (const message of messages) {
    if (turns.at(-1)?.requestId !== message.request_id)
      turns.push({requestId: message.request_id, user: [], parts: [], answered: false, first: message, last: message});
    add(turns.at(-1), message);
  }
  return turns;
}

function add(turn, message) {
  turn.last = message;
  if (message.role === "user") (message === turn.first ? turn.user : turn.parts).push(message);
  else if (message.role === "tool") addResult(turn, message);
  else addAnswer(turn, message);
}

function addAnswer(turn, message) {
  for (const {content_type: type, content} of message.items) turn.parts.push({type, content});
  for (const call of message.tool_calls) turn.parts.push({type: "call", ...call, result: null});
  turn.answered = message.tool_calls.length === 0;
}

function addResult(turn, message) {
  const call = turn.parts.findLast((part) => part.type === "call" && part.id === message.tool_call_id);
  const output = message.items.map((item) => item.content).join("\n");
  if (call) call.result = {output, is_error: message.is_error};
}
