/** Pauses: calls that wait, as they would run, the decisions on them, and the inbox. */
import {html, useEffect, useLayoutEffect, useMemo, useRef, useState} from "./html.js";
import {href, serviceTime, useApp} from "./context.js";
import {Shared, useDecisions, useInbox, usePages, useRead} from "./data.js";
import {Growing} from "./composer.js";
import {asObject, duration, longTime} from "./format.js";
import {collected, Fields} from "./fields.js";
import {Markdown} from "./markdown.js";
import {exact, Json, readable} from "./text.js";
import {Extra} from "./turn.js";
import {Back, Empty, Guard, Icon, inView, Loading, More, Problem, Status, Time, Words} from "./ui.js";

/** what was sent and not refused, by the pause's id: a card may come back before its pause is gone */
const sending = new Shared();

/**
 * A pause to decide, or its decisions. `onTaken` is given where another part shows the outcome, and called with the
 * pause's id once the service has the decision; `onDecided` is called once the outcome is known.
 */
export function Pause({pause, foreign = false, open, onTaken, onDecided}) {
  /** `{status, decisions}`, each call's decision by its id, and the outcome */
  const [known, setOutcome] = useState(null);
  const sent = sending.use(pause.approval_id);
  const outcome = known ?? sent ?? null;
  const decided = isTaken(outcome);
  const place = useRef(null);
  /** A card keeps its height when its form goes, so that no button below it moves. */
  const style = useMemo(() => ({minHeight: `${place.current?.getBoundingClientRect().height}px`}), [pause.gone || outcome]);
  if (pause.gone && !outcome) return html`<${Past} item=${pause} open=${open} style=${style} />`;
  return html`
    <section class="pause" ref=${place} style=${style} role=${open === undefined ? null : "group"} aria-label=${decided ? "Decided" : "A decision is needed"} tabindex="-1">
      <header>
        <${Icon} name="inbox" />
        <strong id=${pause.approval_id}>${decided ? "Decided" : readable(pause.message)}</strong>
        ${!decided && html`<${Countdown} until=${pause.expires_at} />`}
      </header>
      ${!outcome && html`<${Authorizations} of=${pause.authorizations} />`}
      ${foreign
        ? pause.tool_calls.map((call) => html`<${ShownCall} key=${call.id} call=${call} />`)
        : html`<${Decision} pause=${pause} outcome=${outcome} setOutcome=${setOutcome} onTaken=${onTaken} onDecided=${onDecided} />`}
    </section>
  `;
}

/** Whether a refusal says that nothing waits for the decision. */
const isOver = (error) => [404, 409].includes(error?.status);
const isTaken = (outcome) => outcome !== null && outcome.status !== "Sending";

function Countdown({until}) {
  const [left, setLeft] = useState(() => new Date(until) - serviceTime());
  useEffect(() => {
    const timer = setInterval(() => setLeft(new Date(until) - serviceTime()), 1000);
    return () => clearInterval(timer);
  }, [until]);
  if (left <= 0) return html`<time class="countdown late" datetime=${until}>The time to decide has run out</time>`;
  return html`<time class="countdown" datetime=${until} title=${longTime(until)} role="timer" aria-live="off">
    ${duration(left)} left
  </time>`;
}

/** Only addresses of the web are links, which say where they lead. */
function Authorizations({of}) {
  if (!of?.length) return null;
  return html`
    <div class="authorizations">
      <p>Your own authorization is needed. Give it on the provider's page, then approve here.</p>
      <ul>
        ${of.map(({server, url, scopes}) => html`<li key=${url}>
          ${/^https?:\/\//i.test(url) && URL.canParse(url)
            ? html`<a class="button" href=${url} target="_blank" rel="noopener noreferrer">Authorize ${readable(server)}</a> at <code>${new URL(url).host}</code>`
            : html`<code>${exact(url)}</code>`}
          ${scopes?.length > 0 && html`<span class="muted"> for ${readable(scopes.join(" "))}</span>`}
        </li>`)}
      </ul>
    </div>
  `;
}

/** A call without a plugin is the client's to run: here it can only be rejected. */
const nameOf = (call) => (call.plugin_name && `${call.plugin_name}-`) + call.function_name;

/**
 * A call, and its decision if known: `{action, arguments}`, with the changed ones. One that is `sent` has not arrived.
 */
function ShownCall({call, decision, sent}) {
  const changed = decision?.action === "approve" && decision.arguments !== undefined;
  return html`<div class="shown-call">
    <h3>
      <${Icon} name="tool" /> <code>${exact(nameOf(call))}</code>
      ${decision && !sent && html`<span class="status" data-status=${decision.action}>${DECIDED.get(decision.action)}${changed && ", with these arguments"}</span>`}
    </h3>
    <${Json} value=${changed ? decision.arguments : call.arguments} />
  </div>`;
}

const DECIDED = new Map([["approve", "Approved"], ["reject", "Rejected"]]);

/** `{action, drafts}` of each call, by its id; what was not touched follows the button that is pressed. */
function Decision({pause, outcome, setOutcome, onTaken, onDecided}) {
  const {client, patient, drafts, ended, notify} = useApp();
  const {reload: readInbox} = useInbox();
  // a call that waits for its owner comes back in another pause, however this one is decided
  const draft = `pause:${pause.authorizations?.[0] ? pause.request_id : pause.approval_id}`;
  const [{choices, reason}, setWritten] = useState(() => {
    const {choices, reason = ""} = asObject(drafts.get(draft)) ?? {};
    return {choices: Object.fromEntries(pause.tool_calls.map(({id}) => [id, choices?.[id] ?? {}])), reason};
  });
  const [error, setError] = useState(null);
  const left = useRef(new AbortController());
  useEffect(() => () => left.current.abort(), []);
  const several = pause.tool_calls.length > 1;
  /** Arguments that cannot be sent are of calls that would run; nothing is decided of what no longer waits. */
  const unfit = (action) => isOver(error) || Object.values(choices).some((choice) => editedIn(choice) instanceof Error && (choice.action ?? action) === "approve");
  const write = (change) => {
    const written = {choices, reason, ...change};
    drafts.set(draft, JSON.stringify(written));
    setWritten(written);
  };
  const choose = (id, change) => write({choices: {...choices, [id]: {...choices[id], ...change}}});
  const [editing, setEditing] = useState(() => Object.values(choices).some((choice) => choice.drafts));
  /** Schemas are read once they are needed; without them the form follows the values. */
  const look = async (signal) => editing && client.approval(pause, {signal}).catch(() => ({}));
  const {data: shown} = useRead(look, [client, editing]);
  const schemas = shown && new Map(shown.tool_calls?.map(({id, parameters}) => [id, parameters]));

  const decide = async (action) => {
    const sent = {decisions: new Map(pause.tool_calls.map(({id}) => [id, decisionOf(choices[id], action)]))};
    const {signal} = left.current;
    const show = (known) => setOutcome({...sent, ...known});
    const share = (known) => sending.set(pause.approval_id, known && {...sent, ...known});
    let taken = false;
    const arrived = () => {
      taken = true;
      onTaken?.(pause.approval_id);
      drafts.set(draft);
      show({status: "Running"});
      share({status: "Running", unfollowed: true});
      ended.addEventListener("abort", () => share());
      readInbox();
    };
    const onDelay = () => share({status: "Sending", delayed: true});
    share({status: "Sending"});
    const decision = {action, reason: reason || undefined, decisions: decisions(choices, action)};
    try {
      show(await outcomeOf(patient, pause, decision, {left: signal, ended, follows: !onTaken, onTaken: arrived, onDelay}));
      if (onTaken) return;
    } catch (failure) {
      if (!taken) share();
      // the outcome takes the place of what is wrong
      if (failure.name !== "AbortError" && (signal.aborted || isOver(failure))) notify(html`<${Words} error=${failure} />`);
      if (signal.aborted) return;
      setOutcome(null);
      setError(failure);
    }
    onDecided?.();
  };
  if (outcome)
    return html`
      ${pause.tool_calls.map((call) => html`<${ShownCall} key=${call.id} call=${call} decision=${outcome.decisions.get(call.id)} sent=${!isTaken(outcome)} />`)}
      <${Outcome} outcome=${outcome} />
    `;
  return html`
    ${pause.tool_calls.map((call) => html`
      <${DecidedCall} key=${call.id} call=${call} several=${several} choice=${choices[call.id]}
        schemas=${schemas} onEdit=${() => setEditing(true)} onChange=${(change) => choose(call.id, change)} />
    `)}
    <label>Reason <span class="muted">(kept in the trace; sent to the model if you reject)</span>
      <${Growing} maxlength="4000" value=${reason} onInput=${(event) => write({reason: event.target.value})} />
    </label>
    ${error && html`<${Problem} error=${error} />`}
    <${Buttons} calls=${pause.tool_calls} choices=${choices} unfit=${unfit} onDecide=${decide} />
  `;
}

/** The second click of two may fall on the next pause, which the style sheet keeps others from for a moment. */
const once = (event) => event.detail > 1 && event.stopPropagation();

function Buttons({calls, choices, unfit, onDecide}) {
  const chosen = calls.filter((call) => choices[call.id].action).length;
  if (chosen === calls.length)
    return html`<div class="actions" onClickCapture=${once}>
      <button class="primary" disabled=${unfit()} onClick=${() => onDecide()}><${Icon} name="check" /> Send the decisions</button>
    </div>`;
  const which = calls.length === 1 ? "" : chosen === 0 ? " all" : " the others";
  return html`
    <div class="actions" onClickCapture=${once}>
      ${calls[0].plugin_name &&
      html`<button class="primary" disabled=${unfit("approve")} onClick=${() => onDecide("approve")}>
        <${Icon} name="check" /> Approve${which}
      </button>`}
      <button class="danger" disabled=${unfit("reject")} onClick=${() => onDecide("reject")}>
        <${Icon} name="close" /> Reject${which}
      </button>
    </div>
  `;
}

/** What differs from the default, as the service takes it. Arguments are of use only to a call that runs. */
function decisions(choices, action) {
  const named = Object.entries(choices).map(([id, choice]) => ({id, ...decisionOf(choice, action), action: choice.action}));
  const decided = named.filter((each) => each.action || each.arguments);
  return decided.length ? decided : undefined;
}

const editedIn = ({drafts}) => drafts && collected(drafts);

const decisionOf = (choice, given) => {
  const {action = given} = choice;
  return {action, arguments: action === "approve" ? editedIn(choice) : undefined};
};

/** outcomes that are followed at once: each holds a connection, as in live.js */
const MOST_FOLLOWED = 3;
let followed = 0;

/**
 * Sends a decision, also after its view is `left`, until the session has `ended`; if it `follows` the request, it waits
 * for the outcome while the view is there. `onDelay` is called whenever the decision is sent again.
 */
async function outcomeOf(client, pause, decision, {left, ended, follows, onTaken, onDelay}) {
  const reading = new AbortController();
  const stop = () => reading.abort();
  ended.addEventListener("abort", stop);
  let last = null;
  const onReconnect = () => last || onDelay();
  try {
    for await (const {event, data} of client.resumeStream(pause, decision, {signal: reading.signal, onReconnect})) {
      if (!last) {
        last = {status: "Running"};
        onTaken();
        followed += 1;
        if (!follows) return last;
        if (left.aborted || followed > MOST_FOLLOWED) return {...last, unfollowed: true};
        left.addEventListener("abort", stop);
      }
      if (event === "final-response" || event === "approval-required") last = data;
      if (event === "error") last = {status: data.code === "request_canceled" ? "Canceled" : "Failed", problem: data};
    }
    return last;
  } finally {
    if (last) followed -= 1;
  }
}

function Outcome({outcome}) {
  const {status, content, problem, delayed, unfollowed} = outcome;
  if (status === "Sending")
    return html`<p class="muted" role="status">
      ${delayed ? "The decision has not arrived. Trying again; keep this page open." : "Sending the decision …"}
    </p>`;
  const going = unfollowed ? "Its conversation shows the outcome of the request." : "The request continues …";
  return html`
    <div class="outcome-of" role="status" tabindex="0">
      <p><${Icon} name="check" /> Decided. ${status === "Running" ? going : html`The request is <${Status} value=${status} />`}</p>
      ${content?.output && html`<${Markdown} text=${content.output} />`}
      <${Extra} content=${content} />
      ${problem && html`<${Problem} error=${problem} />`}
    </div>
  `;
}

function DecidedCall({call, several, choice, schemas, onEdit, onChange}) {
  // it may have been edited before
  const [editing, setEditing] = useState(choice.drafts !== undefined);
  const place = useRef(null);
  const opened = useRef(null);
  const isForm = editing && Boolean(schemas);
  // the form gets the focus, unless that is elsewhere by then
  useEffect(() => {
    if (isForm && opened.current === document.activeElement) place.current.querySelector("input, select, textarea")?.focus();
    opened.current = null;
  }, [isForm]);
  const name = nameOf(call);
  const edited = editedIn(choice);
  // what is no object is decided as it is
  const given = useMemo(() => (call.plugin_name ? asObject(call.arguments || "{}") : null), [call.arguments]);
  const edit = () => {
    opened.current = document.activeElement;
    setEditing(true);
    onEdit();
  };
  const stop = () => {
    setEditing(false);
    onChange({drafts: undefined});
  };
  return html`
    <fieldset class="shown-call" ref=${place}>
      <legend><${Icon} name="tool" /> <code>${exact(name)}</code></legend>
      ${isForm
        ? html`<${Fields} value=${given} drafts=${choice.drafts} schema=${schemas.get(call.id)} onChange=${(drafts) => onChange({drafts})} />`
        : !(edited instanceof Error) && html`<${Json} value=${edited ?? call.arguments} />`}
      <div class="row">
        ${given !== null &&
        html`<button class="quiet" onClick=${editing ? stop : edit}>
          <${Icon} name="edit" /> ${editing ? "Keep the original arguments" : "Edit the arguments"}
        </button>`}
        ${(several || choice.action) && call.plugin_name &&
        html`<div class="segments" role="group" aria-label=${`Decision on ${exact(name)}`}>
          ${[["approve", "Approve"], ["reject", "Reject"]].map(([action, label]) => html`
            <button key=${action} aria-pressed=${choice.action === action}
              onClick=${() => onChange({action: choice.action === action ? undefined : action})}>${label}</button>
          `)}
        </div>`}
      </div>
    </fieldset>
  `;
}

const TITLES = {decided: "Decided", expired: "Expired", canceled: "Canceled"};

function Past({item: known, open, style}) {
  const {client} = useApp();
  const place = useRef(null);
  const look = async (signal) => {
    if (!known.gone) return;
    await inView(place.current, signal);
    return client.approval(known, {signal});
  };
  const {data} = useRead(look, [client, known.approval_id]);
  const item = data ?? known;
  const {status, approval_id} = item;
  const decisionOf = useDecisions(open && status === "decided" && item, ({input}) => input?.approval_id === approval_id, place);
  return html`
    <section class="pause past" ref=${place} style=${style}>
      <header><${Icon} name="inbox" /><strong id=${approval_id}>${TITLES[status] ?? "No longer waiting"}</strong></header>
      ${item.tool_calls.map((call) => html`<${ShownCall} key=${call.id} call=${call} decision=${decisionOf(call.id)} />`)}
      <p role="status">${whatBecame(item, data !== null)} ${item.decided_at && html`<${Time} at=${item.decided_at} />`}</p>
    </section>
  `;
}

function whatBecame({status, decided_by}, lookedUp) {
  if (status === "decided") return `Decided by ${decided_by ? readable(decided_by.oid) : "the owner"}`;
  if (status === "pending")
    return lookedUp ? "It is no longer among the newest pending approvals." : "It was decided elsewhere, or the request ended.";
  return status === "expired" ? "No one decided in time: the request was canceled." : "The request was canceled.";
}

const FILTERS = Object.entries({pending: "To decide", ...TITLES});

export function Approvals() {
  const [status, setStatus] = useState("pending");
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
      ${status === "pending" ? html`<${Waiting} />` : html`<${Over} key=${status} status=${status} />`}
    </div>
  `;
}

function Waiting() {
  const {data, error, reload} = useInbox();
  return html`<${Feed} items=${useKept(data ?? [])} loaded=${data} error=${error} reload=${reload}>
    <${Empty} icon="inbox" title="Nothing is waiting for you">
      When the agent wants to call a tool that needs approval, the call is shown here before it runs. The list is live.
    <//>
  <//>`;
}

function Over({status}) {
  const {client} = useApp();
  return html`<${Feed} ...${usePages(client.approvals({status, limit: 50}), [client, status], 3000)}>
    <${Empty} icon="inbox" title="None">There are no approvals in this state.<//>
  <//>`;
}

/** Approvals, or the children where there are none. What comes later stands below: no button moves. */
function Feed({items, loaded, error, reload, more, children}) {
  const mayRead = useMayRead();
  return html`
    ${!loaded && !error && html`<${Loading} what="the inbox" />`}
    ${items.length > 0 &&
    html`<div role="feed" aria-label="Approvals" aria-busy=${!loaded}>
      ${items.map((item) => html`<${Guard} key=${item.approval_id}><${Item} item=${item} open=${mayRead(item.task_id)} onDecided=${reload} /><//>`)}
    </div>`}
    ${loaded && !error && !more && items.length === 0 && children}
    ${error && html`<${Problem} error=${error} onRetry=${reload} />`}
    ${more && html`<${More} onClick=${more} />`}
  `;
}

const MOST_GONE = 50;

/** What was to be decided stays, with its outcome, until one looks elsewhere. */
function useKept(items) {
  const [seen, setSeen] = useState(items);
  useLayoutEffect(() => {
    setSeen((known) => {
      const now = new Map(items.map((item) => [item.approval_id, item]));
      const kept = known.map((item) => now.get(item.approval_id) ?? {...item, gone: item.gone ?? Date.now()});
      const old = new Set(kept.filter((item) => item.gone).sort(lastGone).slice(MOST_GONE));
      const fresh = items.filter((item) => !known.some((each) => each.approval_id === item.approval_id));
      return [...kept.filter((item) => !old.has(item)), ...fresh];
    });
  }, [items.map((item) => item.approval_id + item.status).join()]);
  return seen;
}

/** The last to leave comes first: a card that was just decided stays. */
const lastGone = (one, other) => other.gone - one.gone || Date.parse(other.created_at) - Date.parse(one.created_at);

/** Whether the conversation of a task may be read: an approver decides for others, too. */
function useMayRead() {
  const {client, roles} = useApp();
  const any = roles && (!roles.includes("approver") || roles.includes("auditor"));
  const idsOf = ({items}) => items.map((task) => task.task_id).join();
  const look = async (signal) => (any ? "" : idsOf(await client.tasks({limit: 200, signal}).page()));
  const {data: own} = useRead(look, [client, any], 10_000);
  return (id) => any || (own ?? "").includes(id);
}

function Item({item, open, onDecided}) {
  if (item.error)
    return html`<article class="card">This approval is damaged: ${readable(item.error.detail)}</article>`;
  return html`
    <article class="card" tabindex="-1" aria-labelledby=${item.approval_id}>
      ${item.status === "pending"
        ? html`<${Pause} pause=${item} open=${open} onDecided=${onDecided} />`
        : html`<${Past} item=${item} open=${open} />`}
      <footer class="card-footer">
        <span>Asked <${Time} at=${item.created_at} /></span>
        ${open && html`<a href=${href("tasks", item.task_id)}>Conversation</a>`}
      </footer>
    </article>
  `;
}
