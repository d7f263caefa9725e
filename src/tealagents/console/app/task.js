/** One task: what it is called, how it stands, and its views. */
import {html, useLayoutEffect, useRef, useState} from "./html.js";
import {href, isForeign, leave, serviceTime, useApp, useAttempt, useFork} from "./context.js";
import {FRESH, useChanges, useRead} from "./data.js";
import {asObject, isObject, longTime, shortId} from "./format.js";
import {Title, titleOf} from "./sidebar.js";
import {Audit} from "./audit.js";
import {Conversation} from "./conversation.js";
import {escapedJson, exact, Json, Plain, Unseen} from "./text.js";
import {Trace} from "./trace.js";
import {Travel} from "./travel.js";
import {Back, Dialog, Guard, Icon, inWords, Menu, Pending, Problem, Status} from "./ui.js";

const TABS = [
  ["conversation", "Conversation", "chat", Conversation],
  ["trace", "Trace", "trace", Trace],
  ["travel", "Time travel", "branch", Travel],
  ["audit", "Audit", "audit", Audit],
  ["details", "Details", "info", Details],
];

export function TaskView({taskId, tab}) {
  const {client, me, drafts} = useApp();
  const {data: task, error, reload} = useRead((signal) => client.task(taskId, {signal}), [client, taskId], FRESH);
  const gone = error?.code === "not_found";
  useChanges(gone ? reload : null); // it may be imported again
  /** where one was in the conversation, while one looks at another view of it */
  const left = useRef(null);
  const changed = async () => {
    dispatchEvent(new Event("tasks-changed"));
    await reload();
  };
  const written = gone && drafts.get(taskId);
  if (!task || gone)
    return html`<${Pending} what="the task" error=${error} onRetry=${error?.code ? undefined : reload}>
      <${Back} />${written && html`<section><h3>What you wrote</h3><${Plain} text=${written} /></section>`}
    <//>`;
  const foreign = isForeign(task, me);
  const [, , , View] = TABS.find(([name]) => name === tab) ?? TABS[0];
  return html`
    <article class="task-view">
      <${Header} task=${task} tab=${tab} foreign=${foreign} reload=${changed} />
      ${error && html`<div class="banner" role="status">${inBanner(error)}</div>`}
      ${foreign &&
      html`<div class="banner" role="status">
        <${Icon} name="info" /> This is another user's conversation (${exact(task.owner.oid)}). You can read it, but not
        change it.
      </div>`}
      <${Guard} key=${tab}><${View} task=${task} foreign=${foreign} reload=${changed} left=${left} /><//>
    </article>
  `;
}

const inBanner = (error) => (error.code ? error.detail : `${inWords(error).title}. This page will try again.`);

function Header({task, tab, foreign, reload}) {
  const tabs = useRef(null);
  useLayoutEffect(() => {
    tabs.current.querySelector("[aria-current]")?.scrollIntoView({block: "nearest", inline: "nearest"});
  }, [tab]);
  return html`
    <header class="task-header">
      <div class="headline">
        <${Back} />
        <h2><${Title} key=${task.task_id} task=${task} /></h2>
        <${Status} value=${task.status} />
        <${Actions} task=${task} foreign=${foreign} reload=${reload} />
      </div>
      <nav class="tabs" ref=${tabs} aria-label="Views of this conversation">
        ${TABS.map(([name, label, icon]) => html`
          <a key=${name} href=${href("tasks", task.task_id, name === "conversation" ? undefined : name)}
            aria-current=${name === tab ? "page" : undefined}><${Icon} name=${icon} /><span>${label}</span></a>
        `)}
      </nav>
    </header>
  `;
}

async function download(client, task) {
  const document_ = await client.exportTask(task.task_id);
  const url = URL.createObjectURL(new Blob([document_], {type: "application/json"}));
  const link = Object.assign(document.createElement("a"), {href: url, download: `task-${task.task_id}.json`});
  link.click();
  URL.revokeObjectURL(url);
}

function Actions({task, foreign, reload}) {
  const {client} = useApp();
  const [asking, setAsking] = useState(null);
  const attempt = useAttempt();
  const fork = useFork(task.task_id);
  return html`
    <${Menu} label="Actions">
      ${!foreign && html`<button onClick=${() => setAsking("title")}>Rename …</button><button onClick=${() => fork()}>Fork</button>`}
      <button onClick=${attempt(() => download(client, task))}>Export</button>
      ${!foreign && html`<button class="danger" onClick=${() => setAsking("delete")}>Delete …</button>`}
    <//>
    ${asking === "title" && html`<${Rename} task=${task} onClose=${() => setAsking(null)} reload=${reload} />`}
    ${asking === "delete" && html`<${Delete} task=${task} onClose=${() => setAsking(null)} />`}
  `;
}

function Delete({task, onClose}) {
  const {client, notify} = useApp();
  const [error, setError] = useState(null);
  const remove = useAttempt(setError)(async () => {
    await client.deleteTask(task.task_id);
    dispatchEvent(new Event("tasks-changed"));
    notify("The conversation is deleted.");
    await leave();
  });
  return html`
    <${Dialog} title="Delete this conversation?" onClose=${onClose}>
      <p>Its messages, trace and audit are erased. The service cannot undo this; an export can be imported again.</p>
      ${error && html`<${Problem} error=${error} />`}
      <div class="actions">
        <button onClick=${onClose}>Keep it</button>
        <button class="primary danger" onClick=${remove}>Delete</button>
      </div>
    <//>
  `;
}

function Rename({task, onClose, reload}) {
  const {client} = useApp();
  const [title, setTitle] = useState(titleOf(task));
  const [error, setError] = useState(null);
  const save = useAttempt(setError)(async () => {
    await client.patchTask(task.task_id, {metadata: {title: title.trim() || null}});
    await reload();
    onClose();
  });
  return html`
    <${Dialog} title="Rename" onClose=${onClose}>
      <form onSubmit=${(event) => (event.preventDefault(), save())}>
        <label for="title">Title</label>
        <input id="title" value=${title} maxlength="200" onInput=${(event) => setTitle(event.target.value)} autofocus />
        <p class="muted">It is stored in the task's metadata. Without a title, the first message is shown instead.</p>
        ${error && html`<${Problem} error=${error} />`}
        <div class="actions">
          <button type="button" onClick=${onClose}>Cancel</button>
          <button class="primary">Save</button>
        </div>
      </form>
    <//>
  `;
}

function Details({task, foreign, reload}) {
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

/** As JSON; what is left out is removed. Only changes are sent. */
function Metadata({task, reload}) {
  const {client, notify, drafts} = useApp();
  const draft = `metadata:${task.task_id}`;
  /** what is written, and the metadata that it began with */
  const [edit, setEdit] = useState(() => asObject(drafts.get(draft)));
  const write = (now) => {
    drafts.set(draft, now && JSON.stringify(now));
    setEdit(now);
  };
  const [error, setError] = useState(null);
  const before = edit?.before ?? task.metadata;
  const text = edit?.text ?? lines(before);
  const wanted = asObject(text);
  const save = useAttempt(setError)(async () => {
    await client.patchTask(task.task_id, {metadata: change(before, wanted)});
    notify("The metadata is saved.");
    await reload();
    write(null);
  });
  return html`
    <form onSubmit=${(event) => (event.preventDefault(), save())}>
      <label class="visually-hidden" for="metadata">Metadata as JSON</label>
      <textarea id="metadata" class="mono" rows=${Math.min(16, text.split("\n").length + 1)} spellcheck=${false} value=${text}
        aria-invalid=${wanted === null} aria-describedby="metadata-unseen" onInput=${(event) => write({text: event.target.value, before})}></textarea>
      <${Unseen} text=${text} id="metadata-unseen" />
      ${wanted === null && html`<p class="wrong" role="status">This is not a JSON object.</p>`}
      ${error && html`<${Problem} error=${error} />`}
      <div class="actions"><button class="primary" disabled=${wanted === null || text === lines(before)}>Save</button></div>
    </form>
  `;
}

const lines = (metadata) => escapedJson(JSON.stringify(metadata, null, 2) ?? "");

/** New values, and null for what is gone; likewise within objects. */
const changes = (before, wanted) =>
  Object.fromEntries(
    Object.keys({...before, ...wanted})
      .filter((name) => lines(before[name]) !== lines(wanted[name]))
      .map((name) => [name, change(before[name], wanted[name])]),
  );

const change = (before, wanted) =>
  isObject(before) && isObject(wanted) ? changes(bare(before), bare(wanted)) : (wanted ?? null);

/** without what it inherits, such as a `constructor` */
const bare = (from) => ({__proto__: null, ...from});

function Expiry({task, reload}) {
  const {client, notify} = useApp();
  const [when, setWhen] = useState("");
  const past = new Date(when) <= serviceTime(); // the API would take it, and the conversation would be gone
  const set = useAttempt()(async (expires_at) => {
    await client.patchTask(task.task_id, {expires_at});
    notify(expires_at ? `The conversation expires ${longTime(expires_at)}.` : "The conversation no longer expires.");
    await reload();
  });
  return html`
    <p class="muted">After this time the conversation can no longer be read, and the operator's next prune erases it.</p>
    <div class="row">
      <input type="datetime-local" max="9999-12-31T23:59" aria-label="Expires at" value=${when} onInput=${(event) => setWhen(event.target.value)} />
      <button disabled=${!when || past} onClick=${() => set(new Date(when))}>Set</button>
      ${task.expires_at && html`<button class="quiet" onClick=${() => set(null)}>Keep it</button>`}
    </div>
    ${past && html`<p class="wrong" role="status">This time is past. To erase the conversation now, delete it.</p>`}
  `;
}
