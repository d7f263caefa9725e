/** What a task says of itself: ids, times, where it came from, and metadata that can be changed. */
import {html, useState} from "./html.js";
import {useApp, useAttempt} from "./context.js";
import {asObject, longTime, shortId} from "./format.js";
import {href} from "./router.js";
import {escapedJson, exact, Json, Unseen} from "./text.js";
import {Problem, Status} from "./ui.js";

export function Details({task, foreign, reload}) {
  const from = task.origin?.task_id;
  const facts = [
    ["Status", html`<${Status} value=${task.status} />`],
    ["Task", html`<code>${task.task_id}</code>`],
    ["Session", html`<code>${task.session_id}</code>`],
    ["Owner", html`<code>${exact(task.owner.oid)}</code> of <code>${exact(task.owner.tid)}</code>`],
    ["Created", longTime(task.created_at)],
    ["Last change", longTime(task.last_updated)],
    ["Expires", task.expires_at ? longTime(task.expires_at) : "never"],
    ["Checkpoint", task.checkpoint_id ? html`<code>${task.checkpoint_id}</code>` : "none yet"],
    from && ["Forked from", html`<a href=${href("tasks", from)}><code>${shortId(from)}</code></a>`],
  ].filter(Boolean);
  return html`
    <div class="page details">
      <section class="card">
        <h3>This conversation</h3>
        <dl class="facts rows">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
      </section>
      <section class="card">
        <h3>Metadata</h3>
        ${foreign ? html`<${Json} value=${task.metadata} />` : html`<${Metadata} task=${task} reload=${reload} />`}
      </section>
      ${!foreign && html`<section class="card"><h3>Expiry</h3><${Expiry} task=${task} reload=${reload} /></section>`}
    </div>
  `;
}

/** The whole of it as JSON; what is left out of it is removed. Only what was changed is sent. */
function Metadata({task, reload}) {
  const {client, notify, drafts} = useApp();
  const draft = `metadata:${task.task_id}`;
  /** what is written, and the metadata that it began with */
  const [edit, setEdit] = useState(() => asObject(drafts.get(draft) ?? ""));
  const write = (now) => {
    drafts.set(draft, now && JSON.stringify(now));
    setEdit(now);
  };
  const [error, setError] = useState(null);
  const before = edit?.before ?? task.metadata;
  const text = edit?.text ?? lines(before);
  const wanted = asObject(text);
  const save = async (event) => {
    event.preventDefault();
    try {
      await client.patchTask(task.task_id, {metadata: changes(before, wanted)});
      notify("The metadata is saved.");
      await reload();
      write(null);
      setError(null);
    } catch (failure) {
      setError(failure);
    }
  };
  return html`
    <form onSubmit=${save}>
      <label class="visually-hidden" for="metadata">Metadata as JSON</label>
      <textarea id="metadata" class="mono" rows=${Math.min(16, text.split("\n").length + 1)} spellcheck=${false} value=${text}
        aria-invalid=${wanted === null} aria-describedby="metadata-unseen" onInput=${(event) => write({text: event.target.value, before})}></textarea>
      <${Unseen} text=${text} id="metadata-unseen" />
      ${wanted === null && html`<p class="wrong">This is not a JSON object.</p>`}
      ${error && html`<${Problem} error=${error} />`}
      <div class="actions"><button class="primary" disabled=${wanted === null || text === lines(before)}>Save</button></div>
    </form>
  `;
}

const lines = (metadata) => escapedJson(JSON.stringify(metadata, null, 2) ?? "");

/** New values, and null for what is gone. */
const changes = (before, wanted) =>
  Object.fromEntries(
    Object.keys({...before, ...wanted})
      .filter((name) => lines(before[name]) !== lines(wanted[name]))
      .map((name) => [name, wanted[name] ?? null]),
  );

function Expiry({task, reload}) {
  const {client} = useApp();
  const [when, setWhen] = useState("");
  const set = useAttempt()(async (expires_at) => {
    await client.patchTask(task.task_id, {expires_at});
    await reload();
  });
  return html`
    <p class="muted">After this time the conversation can no longer be read, and the operator's next prune erases it.</p>
    <div class="row">
      <input type="datetime-local" aria-label="Expires at" value=${when} onInput=${(event) => setWhen(event.target.value)} />
      <button disabled=${!when} onClick=${() => set(new Date(when))}>Set</button>
      ${task.expires_at && html`<button class="quiet" onClick=${() => set(null)}>Keep it</button>`}
    </div>
  `;
}
