/** The messages of a task, read once and kept up to date, and turns made of them. */
import {useMemo} from "./html.js";
import {useRead} from "./data.js";

const LIMIT = 200;

/**
 * The messages on a path, read to their end. When the task has moved on only the last page is read again, as long
 * as it still begins with the same message: after a rollback it does not, and all of them are.
 */
export function useMessages(client, task, checkpointId) {
  const path = [client, task.task_id, checkpointId];
  const known = useMemo(() => ({pages: []}), path);
  const read = async (signal) => {
    known.pages = await pagesFrom(client, task.task_id, checkpointId, known.pages, signal);
    return known.pages.flatMap((page) => page.items);
  };
  const {data: items, ...state} = useRead(read, [...path, task.checkpoint_id, task.status, task.request_id]);
  return {items, ...state};
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
  for (const {content_type: type, content} of message.items)
    turn.parts.push(type === "text" ? {type, text: content} : {type, source: content});
  for (const call of message.tool_calls) turn.parts.push({type: "call", ...call, result: null});
  turn.answered = message.tool_calls.length === 0;
}

function addResult(turn, message) {
  const call = turn.parts.findLast((part) => part.type === "call" && part.id === message.tool_call_id);
  const output = message.items.map((item) => item.content).join("\n");
  if (call) call.result = {output, is_error: message.is_error};
}
