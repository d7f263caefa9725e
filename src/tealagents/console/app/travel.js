/** Time travel: the tree of requests, and the comparison of two. */
import {html, useMemo, useState} from "./html.js";
import {href, useApp, useAttempt, useFork} from "./context.js";
import {FRESH, Shared, turnsOf, useMessages, usePages, useRead} from "./data.js";
import {plural, shortId} from "./format.js";
import {textIn, Title} from "./sidebar.js";
import {readable} from "./text.js";
import {Turn} from "./turn.js";
import {Back, Dialog, Empty, Icon, More, Pending, Status, Time} from "./ui.js";

/** one row, as high as `.node`, and one lane of the drawing, in fifteenths of its font size */
const ROW = 67.5;
const LANE = 22;
/** lanes with lines; the points of others stand beside them, to leave room for the text */
const MOST_LANES = 12;
/** nodes that are read and drawn at once */
const DRAWN = 500;

/** points to compare, by the id of their task, for when one comes back */
export const marks = new Shared();

export function Travel({task, foreign, reload, left}) {
  const {client} = useApp();
  const [drawn, setDrawn] = useState(DRAWN);
  const said = useMemo(() => new Map(), [client, task.task_id]);
  const read = (signal) => readTree(client, task.task_id, drawn, said, signal);
  const {data: nodes, error, reload: readAgain} = useRead(read, [client, task.task_id, task.checkpoint_id, task.status, drawn]);
  const shown = useMemo(() => nodes?.slice(-drawn), [nodes, drawn]);
  const [looked, setLooked] = useState(null);
  const marked = marks.use(task.task_id) ?? [];
  if (!nodes) return html`<${Pending} what="the tree" error=${error} onRetry=${readAgain} />`;
  if (nodes.length === 0)
    return html`<${Empty} icon="branch" title="Nothing to go back to yet">
      You can go back to every completed request. Once there are some, they appear here as a tree.
    <//>`;
  /** Where one was says nothing of a conversation that ends elsewhere. */
  const moved = () => ((left.current = null), reload());
  const mark = (id) => marks.set(task.task_id, marked.includes(id) ? marked.filter((each) => each !== id) : [...marked, id].slice(-2));
  return html`
    <div class="page">
      <${Toolbar} task=${task} nodes=${nodes} marked=${marked} />
      <${Tree} nodes=${shown} marked=${marked} onMark=${mark} onLook=${setLooked} task=${task} foreign=${foreign} reload=${moved} />
      ${nodes.length > drawn && html`<${More} onClick=${() => setDrawn(drawn + DRAWN)} />`}
      <${Forks} task=${task} />
      ${looked && html`<${Look} key=${looked.id} task=${task} node=${looked} onClose=${() => setLooked(null)} />`}
    </div>
  `;
}

function Toolbar({task, nodes, marked}) {
  const parents = new Set(nodes.map((node) => node.parent));
  const leaves = nodes.filter((node) => !parents.has(node.id));
  const pair = marked.length === 2 ? marked : leaves.length === 2 ? leaves.map((node) => node.id) : null;
  return html`
    <div class="toolbar">
      <span class="muted">${plural(nodes.length, "completed request")}, ${plural(leaves.length, "branch", "branches")}</span>
      ${pair
        ? html`<a class="button" href=${href("compare", task.task_id, pair[0], task.task_id, pair[1])}>
            <${Icon} name="branch" /> Compare ${marked.length === 2 ? "the marked two" : "the two branches"}
          </a>`
        : html`<span class="muted">Mark two points to compare them.</span>`}
    </div>
  `;
}

function Tree({nodes, marked, onMark, onLook, task, foreign, reload}) {
  const {lanes, count} = useMemo(() => lanesOf(nodes), [nodes]);
  const rows = [...nodes].reverse();
  const row = new Map(rows.map((node, place) => [node.id, place]));
  const x = (id) => LANE / 2 + Math.min(lanes.get(id), MOST_LANES) * LANE;
  const y = (id) => ROW / 2 + row.get(id) * ROW;
  const line = (node) => {
    if (!row.has(node.parent)) return `M${x(node.id)} ${height}V${y(node.id)}`;
    const [x1, y1, x2, y2] = [x(node.parent), y(node.parent), x(node.id), y(node.id)];
    return `M${x1} ${y1}C${x1} ${y1 - ROW * 0.6} ${x2} ${y1 - ROW * 0.2} ${x2} ${y1 - ROW}V${y2}`;
  };
  const width = Math.min(count, MOST_LANES + 1) * LANE;
  const height = rows.length * ROW;
  const lined = rows.filter((node) => node.parent && lanes.get(node.id) < MOST_LANES);
  return html`
    <div class="tree">
      <svg class="tree-lines" aria-hidden="true" width=${`${width / 15}rem`} height=${`${height / 15}rem`} viewBox=${`0 0 ${width} ${height}`}>
        ${lined.map((node) => html`<path key=${node.id} d=${line(node)} data-on-path=${node.onPath} />`)}
        ${rows.map((node) => html`<circle key=${node.id} cx=${x(node.id)} cy=${y(node.id)} r=${node.current ? 6 : 4.5}
          data-on-path=${node.onPath} data-current=${node.current} />`)}
      </svg>
      <ol reversed aria-label="Completed requests, newest first">
        ${rows.map((node) => html`
          <${Node} key=${node.id} node=${node} marked=${marked.includes(node.id)} task=${task} foreign=${foreign}
            onMark=${() => onMark(node.id)} onLook=${() => onLook(node)} reload=${reload} />
        `)}
      </ol>
    </div>
  `;
}

function Node({node, marked, task, foreign, onMark, onLook, reload}) {
  const {client, notify} = useApp();
  const rollback = useAttempt()(async () => {
    await client.rollback(task.task_id, node.id).finally(reload);
    notify("This is now the current point. Nothing is erased: you can return to later points.");
  });
  const fork = useFork(task.task_id);
  return html`
    <li class="node" tabindex="-1" data-current=${node.current} data-on-path=${node.onPath}>
      <label class="mark" title="Mark for comparing">
        <input type="checkbox" checked=${marked} onChange=${onMark} aria-label=${`Mark “${readable(node.text).slice(0, 40)}” for comparing`} />
      </label>
      <button class="node-text" onClick=${onLook} title="Look at this point">
        <span class="clip" dir="auto">${readable(node.text) || `Request ${shortId(node.id)}`}</span>
        <span class="clip muted" dir="auto">${readable(node.answer)}</span>
      </button>
      <span class="node-side">
        ${node.current ? html`<${Status} value="Current" />` : html`<${Time} at=${node.at} />`}
        ${!foreign && !node.current && html`<button class="quiet" onClick=${rollback}>${node.onPath ? "Roll back" : "Go here"}</button>`}
        ${!foreign && html`<button class="quiet" onClick=${() => fork({checkpoint_id: node.id})}>Fork</button>`}
      </span>
    </li>
  `;
}

const Turns = ({of, task}) => of.map((turn) => html`<${Turn} key=${turn.requestId} turn=${turn} task=${task} />`);

function Look({task, node, onClose}) {
  const {client} = useApp();
  const {items, error} = useMessages(client, task, node.id);
  return html`
    <${Dialog} title="The conversation at that point" onClose=${onClose}>
      <div class="look">
        <div>${items ? html`<${Turns} of=${turnsOf(items)} task=${task} />` : html`<${Pending} what="the messages" error=${error} />`}</div>
      </div>
      <div class="actions"><button class="primary" onClick=${onClose} autofocus>Close</button></div>
    <//>
  `;
}

function Forks({task}) {
  const {client} = useApp();
  const {items, more} = usePages(client.tasks({session_id: task.session_id, limit: 200}), [client, task.session_id]);
  const others = items.filter((other) => !other.error && other.task_id !== task.task_id);
  if (!others.length && !more) return null;
  return html`
    <section class="forks">
      <h3>Other conversations of this session</h3>
      <ul>
        ${others.map((other) => html`<li key=${other.task_id}>
          <${Icon} name=${other.origin?.task_id === task.task_id ? "branch" : "chat"} />
          <a href=${href("tasks", other.task_id)}><${Title} task=${other} /></a>
          <span class="muted">${relation(task, other)}</span>
          <a class="button" href=${href("compare", task.task_id, "current", other.task_id, "current")}>Compare</a>
        </li>`)}
      </ul>
      ${more && html`<${More} onClick=${more} />`}
    </section>
  `;
}

function relation(task, other) {
  if (other.origin?.task_id === task.task_id) return "forked from this one";
  return task.origin?.task_id === other.task_id ? "this one was forked from it" : "";
}

const SILENT = {text: "", answer: ""};

/**
 * Its nodes, each `{id, parent, at, text, answer, current, onPath}`; parents come before children. What was said is
 * looked up for those that are drawn and kept in `said`: once a branch, as a checkpoint has the messages of its path.
 */
async function readTree(client, taskId, drawn, said, signal) {
  const checkpoints = await client.checkpoints(taskId, {limit: 200, parents: true, signal}).toArray();
  for (const {checkpoint_id} of checkpoints.slice(0, drawn)) {
    if (said.has(checkpoint_id)) continue;
    const turns = turnsOf(await client.messages(taskId, {limit: 200, checkpoint_id, signal}).toArray());
    said.set(checkpoint_id, SILENT);
    for (const turn of turns) said.set(turn.requestId, wordsOf(turn));
  }
  return finished(checkpoints, said);
}

const wordsOf = ({user: [first], parts}) => ({
  text: first ? textIn(first.items) : "",
  answer: parts.find((part) => part.type === "text")?.content ?? "",
});

/** In the order of their completion. An imported document may name any parent, even itself. */
function finished(checkpoints, said) {
  const current = checkpoints.find((checkpoint) => checkpoint.current)?.checkpoint_id;
  const parents = new Map(checkpoints.map(({checkpoint_id, parent_id}) => [checkpoint_id, parent_id]));
  const onPath = new Set();
  for (let id = current; parents.has(id) && !onPath.has(id); id = parents.get(id)) onPath.add(id);
  return [...checkpoints].reverse().map(({checkpoint_id: id, parent_id, created_at}) => ({
    ...(said.get(id) ?? SILENT),
    id,
    parent: parents.has(parent_id) ? parent_id : null,
    at: created_at,
    current: id === current,
    onPath: onPath.has(id),
  }));
}

/**
 * A lane for each node, as in a drawing of commits. The first child continues in its parent's lane; another one begins
 * a lane, or takes one whose branch had ended before the two parted. A parent that is not there lies below all nodes.
 */
function lanesOf(nodes) {
  const place = new Map(nodes.map((node, at) => [node.id, at]));
  const lanes = new Map();
  /** by lane, the place of its newest node */
  const newest = [];
  for (const [now, {id, parent}] of nodes.entries()) {
    const parted = parent === null ? now : (place.get(parent) ?? -1);
    let lane = lanes.get(parent);
    if (newest[lane] !== parted) lane = newest.findIndex((last) => last < parted);
    if (lane < 0) lane = newest.length;
    lanes.set(id, lane);
    newest[lane] = now;
  }
  return {lanes, count: newest.length};
}

/** `sides`: task, checkpoint, task, checkpoint; a checkpoint is an id or `current` */
export function Compare({sides: [leftTask, leftPoint, rightTask, rightPoint]}) {
  const left = useSide(leftTask, leftPoint);
  const right = useSide(rightTask, rightPoint);
  const shared = useMemo(() => sharedTurns(left.turns, right.turns), [left.turns, right.turns]);
  const failed = left.error ?? right.error;
  const back = html`<${Back} label="Time travel" to=${href("tasks", leftTask, "travel")} />`;
  if (failed || !left.turns || !right.turns) return html`<${Pending} what="both branches" error=${failed}>${back}<//>`;
  return html`
    <div class="compare">
      <header class="page-header">
        ${back}
        <h2>Two branches</h2>
        <span class="muted">${plural(shared, "request")} in common</span>
      </header>
      <details class="common" open=${shared <= 3 && shared > 0} hidden=${shared === 0}>
        <summary>In common</summary>
        <${Turns} of=${left.turns.slice(0, shared)} task=${left.task} />
      </details>
      <div class="branches">
        <${Branch} name="One" side=${left} other=${right} shared=${shared} />
        <${Branch} name="The other" side=${right} other=${left} shared=${shared} />
      </div>
    </div>
  `;
}

function useSide(taskId, point) {
  const {client} = useApp();
  const {data: task, error} = useRead((signal) => client.task(taskId, {signal}), [client, taskId], FRESH);
  const checkpoint = point === "current" ? undefined : point;
  const {items, error: unread} = useMessages(client, task ?? {task_id: taskId}, checkpoint);
  const turns = useMemo(() => items && turnsOf(items), [items]);
  return {task, turns: task && turns, error: error ?? unread};
}

/** How many turns both begin with. A copy of a message, and a copy of that, keep what it says and when it was said. */
function sharedTurns(left, right) {
  if (!left || !right) return 0;
  const beginning = ({first}) => JSON.stringify([first.created_at, first.items]);
  let count = 0;
  while (count < Math.min(left.length, right.length) && beginning(left[count]) === beginning(right[count])) count += 1;
  return count;
}

function Branch({name, side, other, shared}) {
  const own = side.turns.slice(shared);
  const end = side.turns.length > 0 && wordsOf(side.turns.at(-1)).text;
  return html`
    <section class="branch" aria-label=${`${name} branch`}>
      <h3><a href=${href("tasks", side.task.task_id)}><${Title} task=${side.task} /></a>
        <small class="clip muted" dir="auto">${name} branch${end && `, up to “${readable(end).slice(0, 80)}”`}</small></h3>
      <${Turns} of=${own} task=${side.task} />
      ${own.length === 0 && html`<p class="muted">${other.turns.length > shared ? "It ends where the other one continues." : "The other one says the same."}</p>`}
    </section>
  `;
}
