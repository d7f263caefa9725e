/** The messages of a task, read once and kept up to date, and turns made of them. */
import {useCallback, useEffect, useRef, useState} from "./html.js";

const LIMIT = 200;

/**
 * The messages on a path, read to their end. When the task has moved on only the last page is read again, as long
 * as it still begins with the same message: after a rollback it does not, and all of them are.
 */
export function useMessages(client, task, checkpointId) {
  const [state, setState] = useState({items: null, error: null});
  const pages = useRef([]);
  const version = `${task.checkpoint_id} ${task.status} ${task.request_id}`;
  const under = useRef(Promise.resolve());

  const load = useCallback(
    async (signal) => {
      try {
        const read = await pagesFrom(client, task.task_id, checkpointId, pages.current, signal);
        if (signal.aborted) return;
        pages.current = read;
        setState({items: read.flatMap((page) => page.items), error: null});
      } catch (error) {
        if (!signal.aborted) setState((known) => ({...known, error}));
      }
    },
    [client, task.task_id, checkpointId],
  );
  const leaving = useRef(null);
  useEffect(() => {
    leaving.current = new AbortController();
    pages.current = [];
    setState({items: null, error: null});
    return () => leaving.current.abort();
  }, [load]);
  const reload = useCallback(() => {
    under.current = under.current.then(() => load(leaving.current.signal));
    return under.current;
  }, [load]);
  useEffect(() => void reload(), [reload, version]);
  return {...state, reload};
}

async function pagesFrom(client, taskId, checkpointId, known, signal) {
  const list = client.messages(taskId, {limit: LIMIT, checkpoint_id: checkpointId, signal});
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
 * their results, as a running request reports them.
 */
export function turnsOf(messages) {
  const turns = [];
  for (const message of messages) {
    if (turns.at(-1)?.requestId !== message.request_id)
      turns.push({requestId: message.request_id, user: [], parts: [], answered: false, last: message});
    add(turns.at(-1), message);
  }
  return turns;
}

function add(turn, message) {
  turn.last = message;
  if (message.role === "user") turn.user.push(message);
  else if (message.role === "tool") addResult(turn, message);
  else addAnswer(turn, message);
}

function addAnswer(turn, message) {
  for (const item of message.items) {
    if (item.content_type === "text") turn.parts.push({type: "text", text: item.content});
    else turn.parts.push({type: "image", source: item.content});
  }
  for (const call of message.tool_calls) turn.parts.push({type: "call", ...call, result: null});
  turn.answered = message.tool_calls.length === 0;
}

function addResult(turn, message) {
  const call = turn.parts.findLast((part) => part.type === "call" && part.id === message.tool_call_id);
  const output = message.items.map((item) => item.content).join("\n");
  if (call) call.result = {output, is_error: message.is_error};
}
