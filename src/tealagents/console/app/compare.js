/** Two branches side by side: what they share once, then what differs. */
import {html, useMemo} from "./html.js";
import {useApp} from "./context.js";
import {useRead} from "./data.js";
import {plural} from "./format.js";
import {turnsOf, useMessages} from "./messages.js";
import {href} from "./router.js";
import {Title} from "./sidebar.js";
import {readable} from "./text.js";
import {Turn} from "./turn.js";
import {Back, Loading, Problem} from "./ui.js";

/** `sides`: task, checkpoint, task, checkpoint; a checkpoint is an id or `current` */
export function Compare({sides: [leftTask, leftPoint, rightTask, rightPoint]}) {
  const left = useSide(leftTask, leftPoint);
  const right = useSide(rightTask, rightPoint);
  const shared = useMemo(() => sharedTurns(left.turns, right.turns), [left.turns, right.turns]);
  const failed = left.error ?? right.error;
  if (failed) return html`<div class="page"><${Problem} error=${failed} /></div>`;
  if (!left.turns || !right.turns) return html`<div class="page"><${Loading} what="both branches" /></div>`;
  return html`
    <div class="compare">
      <header class="page-header">
        <${Back} label="Time travel" to=${href("tasks", leftTask, "travel")} />
        <h2>Two branches</h2>
        <span class="muted">${plural(shared, "request")} in common</span>
      </header>
      <details class="common" open=${shared <= 3 && shared > 0} hidden=${shared === 0}>
        <summary>In common</summary>
        ${left.turns.slice(0, shared).map((turn) => html`<${Turn} key=${turn.requestId} turn=${turn} task=${left.task} />`)}
      </details>
      <div class="branches">
        <${Branch} name="One" side=${left} shared=${shared} />
        <${Branch} name="The other" side=${right} shared=${shared} />
      </div>
    </div>
  `;
}

function useSide(taskId, point) {
  const {client} = useApp();
  const {data: task, error} = useRead((signal) => client.task(taskId, {signal}), [client, taskId]);
  const checkpoint = point === "current" ? undefined : point;
  const {items, error: unread} = useMessages(client, task ?? {task_id: taskId}, checkpoint);
  const turns = useMemo(() => items && turnsOf(items), [items]);
  return {task, turns: task && turns, error: error ?? unread};
}

/** How many turns both begin with. A fork's messages are copies, which name what they were copied from. */
function sharedTurns(left, right) {
  if (!left || !right) return 0;
  const names = (turn) => new Set(turn.user.concat(turn.last).flatMap((message) => [message.message_id, message.origin?.message_id].filter(Boolean)));
  let count = 0;
  while (count < Math.min(left.length, right.length) && !names(left[count]).isDisjointFrom(names(right[count]))) count += 1;
  return count;
}

function Branch({name, side, shared}) {
  const own = side.turns.slice(shared);
  const end = side.turns.at(-1)?.user[0]?.items.find((item) => item.content_type === "text")?.content;
  return html`
    <section class="branch" aria-label=${`${name} branch`}>
      <h3><a href=${href("tasks", side.task.task_id)}><${Title} task=${side.task} /></a>
        <small class="clip muted" dir="auto">${name} branch${end && `, up to “${readable(end).slice(0, 80)}”`}</small></h3>
      ${own.map((turn) => html`<${Turn} key=${turn.requestId} turn=${turn} task=${side.task} />`)}
      ${own.length === 0 && html`<p class="muted">It ends where the other one goes on.</p>`}
    </section>
  `;
}
