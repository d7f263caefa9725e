/** What there is: conversations by session, the inbox, and who is signed in. */
import {html, useEffect, useMemo, useRef, useState} from "./html.js";
import {href, isForeign, leave, navigate, useApp, useAttempt, useShow} from "./context.js";
import {Shared, useChanges, useInbox, usePages, useRead} from "./data.js";
import {asObject, plural, shortId} from "./format.js";
import {readable} from "./text.js";
import {Dialog, Icon, IconButton, inView, Menu, Problem, Status, Time} from "./ui.js";

const STATUSES = ["Queued", "Running", "Paused", "Completed", "Failed", "Canceled"];

/** task id → its title, where the task itself has none */
export const titles = new Shared();

export const titleOf = (task) => (typeof task.metadata?.title === "string" ? task.metadata.title.trim() : "");

export function Sidebar({route, label, onSignOut}) {
  const {config} = useApp();
  const [place, id] = route.path;
  const [dark, setDark] = useState(applyTheme);
  const look = () => setDark(applyTheme());
  useEffect(() => void (system.onchange = window.onstorage = look), []); // changed elsewhere
  return html`
    <nav class="sidebar" tabindex="-1" aria-label="Console">
      <header class="brand">
        <img src="icon.svg" alt="" width="28" height="28" />
        <h1><span class="clip">${readable(config.name)}</span> <small>${readable(config.version)}</small></h1>
      </header>
      <div class="places">
        <a class="place" href=${href("new")} aria-current=${place === "new" ? "page" : undefined}>
          <${Icon} name="plus" /> New conversation
        </a>
        <${InboxLink} current=${place === "approvals"} />
      </div>
      <${TaskList} current=${place === "tasks" ? id : null} />
      <footer class="who">
        <span class="name" title=${`Signed in as ${readable(label)}`}>${readable(label)}</span>
        <${IconButton} name=${dark ? "sun" : "moon"} label=${dark ? "Use light colours" : "Use dark colours"}
          onClick=${() => setDark(switchTheme(!dark))} />
        <button class="quiet" onClick=${onSignOut}>Sign out</button>
      </footer>
    </nav>
  `;
}

/** Dark or light: the system's choice, until the user has made another. */
const THEME = "tealagents.console.theme";

const system = matchMedia("(prefers-color-scheme: dark)");

/** Gives whether it is dark. */
export function applyTheme(kept = localStorage.getItem(THEME)) {
  document.documentElement.dataset.theme = kept ?? "";
  return kept ? kept === "dark" : system.matches;
}

/** The system's is not kept. */
function switchTheme(dark) {
  const chosen = dark === system.matches ? "" : dark ? "dark" : "light";
  try {
    localStorage.setItem(THEME, chosen);
  } catch {} // no room
  return applyTheme(chosen);
}

function InboxLink({current}) {
  const {data} = useInbox();
  const count = data?.filter((item) => !item.error).length;
  return html`
    <a class="place" href=${href("approvals")} aria-current=${current ? "page" : undefined}>
      <${Icon} name="inbox" /> Approvals
      ${count > 0 && html`<span class="badge" aria-label=${plural(count, "decision")}>${count}</span>`}
    </a>
  `;
}

function useTasks(client, status, ofTenant) {
  const filter = {status: status || undefined, limit: 50};
  const list = ofTenant ? client.tenantTasks(filter) : client.tasks(filter);
  const tasks = usePages(list, [client, status, ofTenant], 4000);
  useChanges(tasks.reload);
  return tasks;
}

/** `word` in the title or in a value of the metadata; `key:value` at that key. */
function matches(task, filter) {
  const wanted = filter.toLowerCase();
  const [, key, value] = /^([\w.-]+):(.*)$/.exec(wanted) ?? [];
  const {task_id: id, metadata = {}} = task;
  if (Object.entries(metadata).some(([name, of]) => name.toLowerCase() === key && textOf(of).includes(value.trim()))) return true;
  return id.startsWith(wanted) || textOf([titles.values.get(id) ?? "", metadata]).includes(wanted);
}

/** The values in it, without what JSON adds. */
const textOf = (of) => (Object(of) === of ? Object.values(of).map(textOf).join("\n") : String(of).toLowerCase());

async function lookUp(client, {task_id}) {
  const {items} = await client.messages(task_id, {limit: 1}).page();
  titles.set(task_id, items.length ? titleFrom(items[0].items) : "");
}

/** How many titles a filter lacks, which are looked up a few at a time. */
function useTitles(items, filter) {
  const {client} = useApp();
  const lacking = items.filter((task) => filter && !task.error && !titleOf(task) && !titles.values.has(task.task_id));
  // one that cannot be read holds up no other, and is looked up again once it is in view
  const look = () => Promise.all(lacking.slice(0, 3).map((task) => lookUp(client, task).catch(() => titles.set(task.task_id, ""))));
  useRead(look, [client, lacking[0]?.task_id]);
  return lacking.length;
}

function TaskList({current}) {
  const {client, roles} = useApp();
  const [status, setStatus] = useState("");
  const [filter, setFilter] = useState("");
  const [ofTenant, setOfTenant] = useState(false);
  const {items, loaded, error, reload, more} = useTasks(client, status, ofTenant);
  const lacking = useTitles(items, filter);
  const groups = useMemo(() => bySession(items.filter((task) => matches(task, filter))), [items, filter, lacking]);
  return html`
    <section class="tasks" aria-label="Conversations">
      ${roles?.includes("auditor") && html`<${Whose} ofTenant=${ofTenant} onChange=${setOfTenant} />`}
      <div class="filter">
        <input type="search" placeholder="Filter" aria-label="Filter by title or metadata, such as team:north"
          title="A word in the title or metadata, or key:value" value=${filter}
          onInput=${(event) => setFilter(event.target.value)} />
        <select aria-label="Status" value=${status} onChange=${(event) => setStatus(event.target.value)}>
          <option value="">All</option>
          ${STATUSES.map((name) => html`<option key=${name}>${name}</option>`)}
        </select>
        <${ListMenu} />
      </div>
      ${error && html`<${Problem} error=${error} onRetry=${reload} />`}
      <div class="scroll">
        ${groups.map(([session, tasks]) => html`
          <${SessionGroup} key=${session} session=${session} tasks=${tasks} current=${current} reload=${reload} />
        `)}
        ${lacking > 0
          ? html`<p class="nothing">Looking up titles …</p>`
          : loaded && groups.length === 0 && html`<p class="nothing">${nothing(status || filter, more)}</p>`}
        ${more && html`<button class="quiet wide" onClick=${more}>Older conversations</button>`}
      </div>
    </section>
  `;
}

const Whose = ({ofTenant, onChange}) => html`
  <div class="segments whose" role="group" aria-label="Whose conversations">
    <button aria-pressed=${!ofTenant} onClick=${() => onChange(false)}>Mine</button>
    <button aria-pressed=${ofTenant} onClick=${() => onChange(true)}>Whole tenant</button>
  </div>
`;

const nothing = (filtered, more) =>
  more ? "No match among those loaded so far. Load older ones."
    : filtered ? "No match. Try another filter." : "Nothing yet. Your conversations will appear here.";

const bySession = (tasks) => [...Map.groupBy(tasks, (task) => task.session_id ?? task.task_id)];

function SessionGroup({session, tasks, current, reload}) {
  const {client, me, notify} = useApp();
  const [asking, setAsking] = useState(false);
  const remove = useAttempt()(async (erased) => {
    setAsking(false);
    await client.deleteSession(session).finally(reload);
    if (erased.some((task) => task.task_id === current)) leave();
    notify("The session is deleted.");
  });
  if (tasks.length === 1) return html`<${TaskLink} task=${tasks[0]} current=${current} />`;
  return html`
    <section class="session" aria-label=${`Session ${shortId(session)}`}>
      <header>
        <span>Session ${shortId(session)}</span>
        ${!tasks.some((task) => !task.error && isForeign(task, me)) &&
        html`<${Menu} label="Session">
          <button onClick=${() => (location.hash = `#/new?session=${session}`)}>New conversation in this session</button>
          <button class="danger" onClick=${() => setAsking(true)}>Delete session</button>
        <//>`}
      </header>
      ${asking &&
      html`<${DeleteSession} session=${session} listed=${tasks.length} onDelete=${remove} onClose=${() => setAsking(false)} />`}
      ${tasks.map((task) => html`<${TaskLink} key=${task.task_id} task=${task} current=${current} />`)}
    </section>
  `;
}

function DeleteSession({session, listed, onDelete, onClose}) {
  const {client} = useApp();
  const list = (signal) => client.tasks({session_id: session, limit: 200, signal}).toArray();
  const {data: erased, error, reload} = useRead(list, [client, session]);
  const hidden = Math.max(0, (erased?.length ?? 0) - listed);
  return html`
    <${Dialog} title="Delete this session?" onClose=${onClose}>
      ${error && html`<${Problem} error=${error} onRetry=${reload} />`}
      ${!erased && !error && html`<p role="status">Counting its conversations …</p>`}
      ${erased &&
      html`<p>
        Its ${plural(erased.length, "conversation")} ${hidden > 0 && `(${hidden} of them not in the list now)`} will be erased with
        their traces and audits. The service cannot undo this.
      </p>`}
      <div class="actions">
        <button onClick=${onClose} autofocus>Keep it</button>
        <button class="primary danger" disabled=${!erased} onClick=${() => onDelete(erased)}>Delete</button>
      </div>
    <//>
  `;
}

function TaskLink({task, current}) {
  const {me} = useApp();
  if (task.error) return html`<div class="task damaged">${task.task_id ? shortId(task.task_id) : "A user's conversation"} is damaged: ${readable(task.error.detail)}</div>`;
  return html`
    <a class="task" href=${href("tasks", task.task_id)} aria-current=${task.task_id === current ? "page" : undefined}>
      <span class="title"><${Title} task=${task} /></span>
      <span class="below">
        ${task.origin && html`<span class="forked" title="Forked or imported"><${Icon} name="branch" /></span>`}
        ${isForeign(task, me) && html`<span class="owner clip" title="Its owner">${readable(task.owner.oid)}</span>`}
        <${Time} at=${task.created_at} />
        ${task.status !== "Completed" && html`<${Status} value=${task.status} />`}
      </span>
    </a>
  `;
}

/** A task's title, or how it begins, which is looked up once it can be seen. */
export function Title({task}) {
  const {client} = useApp();
  const place = useRef(null);
  const found = titles.use(task.task_id);
  const given = titleOf(task);
  const look = async (signal) => {
    if (given || titles.values.get(task.task_id)) return;
    await inView(place.current, signal);
    await lookUp(client, task);
  };
  useRead(look, [task.task_id, given]); // where it fails it is gone, or the list shows what is wrong
  const title = readable(given || found || `Task ${shortId(task.task_id)}`);
  return html`<span ref=${place} dir="auto" title=${title}>${title}</span>`;
}

const LONGEST_TITLE = 80;

export const textIn = (items) => items.find((item) => item.content_type === "text")?.content ?? "An image";

export function titleFrom(items) {
  const [line] = textIn(items).trim().split("\n");
  return line.length > LONGEST_TITLE ? `${line.slice(0, LONGEST_TITLE).replace(/[\ud800-\udbff]$/, "")}…` : line;
}

function ListMenu() {
  const {client} = useApp();
  const show = useShow();
  const [asking, setAsking] = useState(false);
  const input = useRef(null);
  const take = useAttempt()(async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    const document_ = await file.text();
    if (!asObject(document_)?.format) throw new Error("This is not an exported conversation.");
    await show(client.importTask(document_));
  });
  return html`
    <${Menu} label="More">
      <button onClick=${() => input.current.click()}>Import …</button>
      <button onClick=${() => setAsking(true)}>Open by id …</button>
    <//>
    ${asking && html`<${OpenById} onClose=${() => setAsking(false)} />`}
    <input ref=${input} type="file" accept="application/json,.json" hidden onChange=${take} aria-label="A task to import" />
  `;
}

function OpenById({onClose}) {
  const open = (event) => {
    event.preventDefault();
    const id = new FormData(event.target).get("id").trim();
    if (!id) return;
    onClose();
    navigate("tasks", ...id.split("#/tasks/").at(-1).split("/"));
  };
  return html`<${Dialog} title="Open a conversation" onClose=${onClose}>
    <form onSubmit=${open}>
      <label>The id of a conversation you may read, or a link to it <input name="id" required autocomplete="off" autofocus /></label>
      <div class="actions">
        <button type="button" onClick=${onClose}>Cancel</button>
        <button class="primary">Open</button>
      </div>
    </form>
  <//>`;
}
