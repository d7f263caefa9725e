/** One task: what it is called, how it stands, and its views. */
import {html, useCallback, useLayoutEffect, useRef, useState} from "./html.js";
import {isForeign, useApp, useAttempt, useFork} from "./context.js";
import {useRead} from "./data.js";
import {href, navigate} from "./router.js";
import {Title, titleOf} from "./sidebar.js";
import {Audit} from "./audit.js";
import {Conversation} from "./conversation.js";
import {Details} from "./details.js";
import {Trace} from "./trace.js";
import {Travel} from "./travel.js";
import {Back, Dialog, Guard, Icon, inWords, Loading, Menu, Problem, Status} from "./ui.js";

const TABS = [
  ["conversation", "Conversation", "chat", Conversation],
  ["trace", "Trace", "trace", Trace],
  ["travel", "Time travel", "branch", Travel],
  ["audit", "Audit", "audit", Audit],
  ["details", "Details", "info", Details],
];

/** milliseconds after which a task that is looked at is read again */
const FRESH = 2500;

export function TaskView({taskId, tab}) {
  const {client, me} = useApp();
  const {data: task, error, reload} = useRead((signal) => client.task(taskId, {signal}), [client, taskId], FRESH);
  const changed = useCallback(async () => {
    dispatchEvent(new Event("tasks-changed"));
    await reload();
  }, [reload]);
  if (error && (!task || error.code === "not_found"))
    return html`<div class="page">
      <${Back} />
      <${Problem} error=${error} onRetry=${error.code ? undefined : reload} />
    </div>`;
  if (!task) return html`<div class="page"><${Loading} what="the task" /></div>`;
  const foreign = isForeign(task, me);
  const [, , , View] = TABS.find(([name]) => name === tab) ?? TABS[0];
  return html`
    <article class="task-view">
      <${Header} task=${task} tab=${tab} foreign=${foreign} reload=${changed} />
      ${error && html`<div class="banner" role="status">${inBanner(error)}</div>`}
      ${foreign &&
      html`<div class="banner" role="status">
        <${Icon} name="info" /> This is another user's conversation (${task.owner.oid}). You can read it, but not
        change it.
      </div>`}
      <${Guard} key=${tab}><${View} task=${task} foreign=${foreign} reload=${changed} /><//>
    </article>
  `;
}

const inBanner = (error) => (error.code ? error.detail : `${inWords(error).title}. This page will try again.`);

function Header({task, tab, foreign, reload}) {
  const tabs = useRef(null);
  // on a phone there is no room for all of them
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

/** Writes a task's document into a file. */
async function download(client, task) {
  const document_ = await client.exportTask(task.task_id);
  const url = URL.createObjectURL(new Blob([document_], {type: "application/json"}));
  const link = Object.assign(document.createElement("a"), {href: url, download: `task-${task.task_id}.json`});
  link.click();
  URL.revokeObjectURL(url);
}

function Actions({task, foreign, reload}) {
  const {client, notify} = useApp();
  const [asking, setAsking] = useState(null);
  const attempt = useAttempt();
  const fork = useFork(task.task_id);
  const remove = attempt(async () => {
    await client.deleteTask(task.task_id);
    dispatchEvent(new Event("tasks-changed"));
    navigate("new");
    notify("The conversation is deleted.");
  });
  return html`
    <${Menu} label="Actions">
      ${!foreign && html`<button onClick=${() => setAsking("title")}>Rename …</button>`}
      ${!foreign && html`<button onClick=${() => fork()}>Fork</button>`}
      <button onClick=${attempt(() => download(client, task))}>Export</button>
      ${!foreign && html`<button class="danger" onClick=${() => setAsking("delete")}>Delete …</button>`}
    <//>
    ${asking === "title" && html`<${Rename} task=${task} onClose=${() => setAsking(null)} reload=${reload} />`}
    ${asking === "delete" &&
    html`<${Dialog} title="Delete this conversation?" onClose=${() => setAsking(null)}>
      <p>Its messages, trace and audit are erased. The service cannot undo this; an export can be imported again.</p>
      <div class="actions">
        <button onClick=${() => setAsking(null)}>Keep it</button>
        <button class="primary danger" onClick=${remove}>Delete</button>
      </div>
    <//>`}
  `;
}

function Rename({task, onClose, reload}) {
  const {client} = useApp();
  const [title, setTitle] = useState(titleOf(task));
  const save = useAttempt()(async () => {
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
        <div class="actions">
          <button type="button" onClick=${onClose}>Cancel</button>
          <button class="primary">Save</button>
        </div>
      </form>
    <//>
  `;
}
