/** The tree of a task's completed requests, from what the API shows: checkpoints, and the messages of each path. */
import {all} from "./data.js";
import {turnsOf} from "./messages.js";

/**
 * `{nodes, current}`: a node is `{id, parent, at, text, answer, current, onPath}`; parents come before children.
 *
 * A checkpoint's messages name the requests that lead to it. So one reading of the newest checkpoint of each
 * branch gives all parents: of a task without branches, one.
 */
export async function readTree(client, taskId, signal) {
  const checkpoints = await all(client.checkpoints(taskId, {limit: 200, signal}), signal);
  const known = new Map();
  for (const checkpoint of checkpoints) {
    if (known.has(checkpoint.checkpoint_id)) continue;
    const list = client.messages(taskId, {limit: 200, checkpoint_id: checkpoint.checkpoint_id, signal});
    addPath(known, turnsOf(await all(list, signal)), checkpoint);
  }
  return finished(known, checkpoints);
}

/** The turns of one path, each the child of the one before. */
function addPath(known, turns, checkpoint) {
  let parent = null;
  for (const turn of turns) {
    if (!turn.answered && turn.requestId !== checkpoint.checkpoint_id) continue;
    if (!known.has(turn.requestId)) known.set(turn.requestId, nodeOf(turn, parent));
    parent = turn.requestId;
  }
  if (!known.has(checkpoint.checkpoint_id))
    known.set(checkpoint.checkpoint_id, {id: checkpoint.checkpoint_id, parent, at: checkpoint.created_at, text: "", answer: ""});
}

const textOf = (parts) => parts.find((part) => part.type === "text")?.text ?? "";

function nodeOf(turn, parent) {
  const [first] = turn.user;
  const said = first?.items.find((item) => item.content_type === "text")?.content ?? (first ? "An image" : "");
  return {id: turn.requestId, parent, at: turn.last.created_at, text: said, answer: textOf(turn.parts)};
}

function finished(known, checkpoints) {
  const current = checkpoints.find((checkpoint) => checkpoint.current)?.checkpoint_id ?? null;
  const onPath = new Set();
  for (let id = current; id !== null && known.has(id); id = known.get(id).parent) onPath.add(id);
  const nodes = [...known.values()]
    .map((node) => ({...node, current: node.id === current, onPath: onPath.has(node.id)}))
    .sort((one, other) => (one.at < other.at ? -1 : 1));
  return {nodes, current};
}

/**
 * A lane for each node, as in a drawing of commits. The first child goes on in its parent's lane; another one
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
