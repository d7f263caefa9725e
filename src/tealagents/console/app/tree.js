/** The tree of a task's completed requests: checkpoints name their parents, and messages say what was said. */
import {all} from "./data.js";
import {turnsOf} from "./messages.js";

/**
 * `{nodes, current}`: a node is `{id, parent, at, text, answer, current, onPath}`; parents come before children.
 *
 * A checkpoint's messages are those of its whole path. So one reading at the end of each branch gives what was
 * said in all of them.
 */
export async function readTree(client, taskId, signal) {
  const checkpoints = await all(client.checkpoints(taskId, {limit: 200, parents: true, signal}), signal);
  const said = new Map();
  for (const {checkpoint_id} of checkpoints) {
    if (said.has(checkpoint_id)) continue;
    const list = client.messages(taskId, {limit: 200, checkpoint_id, signal});
    for (const turn of turnsOf(await all(list, signal))) said.set(turn.requestId, wordsOf(turn));
  }
  return finished(checkpoints, said);
}

const textOf = (parts) => parts.find((part) => part.type === "text")?.text ?? "";

function wordsOf(turn) {
  const [first] = turn.user;
  const text = first?.items.find((item) => item.content_type === "text")?.content ?? (first ? "An image" : "");
  return {text, answer: textOf(turn.parts)};
}

/** The nodes in the order in which they were completed. An imported document may name any parent, even itself. */
function finished(checkpoints, said) {
  const current = checkpoints.find((checkpoint) => checkpoint.current)?.checkpoint_id ?? null;
  const parents = new Map(checkpoints.map(({checkpoint_id, parent_id}) => [checkpoint_id, parent_id]));
  const onPath = new Set();
  for (let id = current; parents.has(id) && !onPath.has(id); id = parents.get(id)) onPath.add(id);
  const nodes = [...checkpoints].reverse().map(({checkpoint_id: id, parent_id, created_at}) => ({
    ...(said.get(id) ?? {text: "", answer: ""}),
    id,
    parent: parents.has(parent_id) ? parent_id : null,
    at: created_at,
    current: id === current,
    onPath: onPath.has(id),
  }));
  return {nodes, current};
}

/**
 * A lane for each node, as in a drawing of commits. The first child continues in its parent's lane; another one
 * begins a lane of its own, or takes one whose branch had ended before the two parted.
 */
export function lanesOf(nodes) {
  const place = new Map(nodes.map((node, at) => [node.id, at]));
  const lanes = new Map();
  const newest = []; // lane → the newest node in it
  for (const node of nodes) {
    const parted = place.get(node.parent) ?? place.get(node.id);
    let lane = node.parent === null ? -1 : newest.indexOf(node.parent);
    if (lane < 0) lane = newest.findIndex((id) => place.get(id) < parted);
    if (lane < 0) lane = newest.length;
    lanes.set(node.id, lane);
    newest[lane] = node.id;
  }
  return {lanes, count: Math.max(1, newest.length)};
}
