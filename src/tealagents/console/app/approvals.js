/** The inbox: everything that the caller may decide, and the outcome. */
import {html, useEffect, useRef, useState} from "./html.js";
import {useApp} from "./context.js";
import {useDecisions, usePages, useRead} from "./data.js";
import {Pause, ShownCall} from "./pause.js";
import {href} from "./router.js";
import {readable} from "./text.js";
import {Back, Empty, Guard, Icon, Loading, Problem, Time} from "./ui.js";

const FILTERS = [
  ["pending", "To decide"],
  ["decided", "Decided"],
  ["expired", "Expired"],
  ["canceled", "Canceled"],
];

export function Approvals() {
  const {client} = useApp();
  const [status, setStatus] = useState("pending");
  const {items: read, loaded, error, reload, more} = usePages(client.approvals({status, limit: 50}), [client, status], 3000);
  const items = useKept(read, status);
  const mayRead = useMayRead();
  return html`
    <div class="page inbox">
      <header class="page-header">
        <${Back} />
        <h2>Approvals</h2>
        <div class="segments" role="group" aria-label="Which">
          ${FILTERS.map(([value, label]) => html`
            <button key=${value} aria-pressed=${value === status} onClick=${() => setStatus(value)}>${label}</button>
          `)}
        </div>
      </header>
      ${error && html`<${Problem} error=${error} onRetry=${reload} />`}
      ${!loaded && !error && html`<${Loading} what="the inbox" />`}
      <div role="feed" aria-label="Approvals" aria-busy=${!loaded}>
        ${items.map((item) => html`<${Guard} key=${item.approval_id}><${Item} item=${item} open=${mayRead(item.task_id)} onDecided=${reload} /><//>`)}
      </div>
      ${loaded && items.length === 0 && html`<${Nothing} status=${status} />`}
      ${more && html`<button class="quiet wide" onClick=${more}>Show more</button>`}
    </div>
  `;
}

/** What was to be decided stays, with what came of it, until one looks elsewhere. */
function useKept(items, status) {
  const [seen, setSeen] = useState({status, items: []});
  useEffect(() => {
    setSeen((known) => {
      if (known.status !== status) return {status, items};
      const now = new Map(items.map((item) => [item.approval_id, item]));
      const kept = known.items.map((item) => now.get(item.approval_id) ?? {...item, gone: true});
      const fresh = items.filter((item) => !known.items.some((old) => old.approval_id === item.approval_id));
      return {status, items: [...fresh, ...kept]};
    });
  }, [items.map((item) => item.approval_id + item.status).join(), status]);
  return seen.status === status ? seen.items : items;
}

/** Whether the conversation of a task may be read. Approvers decide for others too, and their newest own ones are known. */
function useMayRead() {
  const {client, roles} = useApp();
  const any = !roles.includes("approver") || roles.includes("auditor");
  const {data: own} = useRead(async (signal) => (any ? null : client.tasks({limit: 200, signal}).page()), [client, any], 10_000);
  const ids = new Set(own?.items.map((task) => task.task_id));
  return (id) => any || ids.has(id);
}

function Nothing({status}) {
  if (status === "pending")
    return html`<${Empty} icon="inbox" title="Nothing is waiting for you">
      When the agent wants to call a tool that needs approval, the call is shown here before it runs. The list is live.
    <//>`;
  return html`<${Empty} icon="inbox" title="None">There are no approvals in this state.<//>`;
}

function Item({item, open, onDecided}) {
  if (item.error)
    return html`<article class="card">This approval is damaged: ${readable(item.error.detail)}</article>`;
  return html`
    <article class="card" tabindex="-1" aria-label=${TITLES[item.status] ?? readable(item.message)}>
      ${item.status === "pending"
        ? html`<${Pause} pause=${item} onDecided=${onDecided} />`
        : html`<${Past} item=${item} open=${open} />`}
      <footer class="card-footer">
        <span>Asked <${Time} at=${item.created_at} /></span>
        ${open && html`<a href=${href("tasks", item.task_id)}>Conversation</a>`}
      </footer>
    </article>
  `;
}

const TITLES = {decided: "Decided", expired: "Expired", canceled: "Canceled"};

function Past({item, open}) {
  const place = useRef(null);
  const {status, task_id, approval_id} = item;
  const decisions = useDecisions(open && status === "decided" && task_id, ({input}) => input?.approval_id === approval_id, place);
  return html`
    <section class="pause past" ref=${place}>
      <header><${Icon} name="inbox" /><strong>${TITLES[item.status]}</strong></header>
      ${item.tool_calls.map((call) => html`<${ShownCall} key=${call.id} call=${call} decision=${decisions.get(call.id)} />`)}
      <p>${whatBecame(item)} ${item.decided_at && html`<${Time} at=${item.decided_at} />`}</p>
    </section>
  `;
}

function whatBecame({status, decided_by}) {
  if (status === "decided") return `Decided by ${decided_by ? readable(decided_by.oid) : "the owner"}`;
  return status === "expired" ? "No one decided in time: the request was canceled." : "The request was canceled.";
}
