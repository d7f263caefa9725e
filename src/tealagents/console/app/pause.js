/** A pause: the calls that wait, exactly as they would run, and what is decided of them. */
import {html, useEffect, useMemo, useRef, useState} from "./html.js";
import {serviceTime, useApp} from "./context.js";
import {asObject, duration, longTime} from "./format.js";
import {Fields} from "./fields.js";
import {Markdown} from "./markdown.js";
import {exact, Json, readable} from "./text.js";
import {Cut} from "./turn.js";
import {Icon, Problem, Status} from "./ui.js";

export function Pause({pause, foreign = false, onDecided}) {
  /** what was sent and not refused: each call's decision, by its id */
  const [decided, setDecided] = useState(null);
  const over = decided ? "Decided" : pause.gone && "No longer waiting";
  return html`
    <section class="pause" aria-label=${over || "A decision is needed"} tabindex="-1">
      <header>
        <${Icon} name="inbox" />
        <strong>${over || readable(pause.message)}</strong>
        ${!over && html`<${Countdown} until=${pause.expires_at} />`}
      </header>
      ${!over && html`<${Authorizations} of=${pause.authorizations} />`}
      ${foreign
        ? pause.tool_calls.map((call) => html`<${ShownCall} key=${call.id} call=${call} />`)
        : html`<${Decision} pause=${pause} decided=${decided} setDecided=${setDecided} onDecided=${onDecided} />`}
    </section>
  `;
}

/** How long there is to decide, by the clock of the service. */
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

/** Where the user first has to allow something; only addresses of the web are links. */
function Authorizations({of}) {
  if (!of?.length) return null;
  return html`
    <div class="authorizations">
      <p>Your own authorization is needed. Give it on the provider's page, then approve here.</p>
      <ul>
        ${of.map(({server, url, scopes}) => html`<li key=${url}>
          ${/^https?:\/\//i.test(url)
            ? html`<a class="button" href=${url} target="_blank" rel="noopener noreferrer">Authorize ${readable(server)}</a>`
            : html`<code>${exact(url)}</code>`}
          ${scopes?.length > 0 && html`<span class="muted"> for ${readable(scopes.join(", "))}</span>`}
        </li>`)}
      </ul>
    </div>
  `;
}

const nameOf = (call) => `${call.plugin_name}-${call.function_name}`;

/** A call, and what was decided of it where that is known: `{action, arguments}`, with those that it was changed to. */
export function ShownCall({call, decision}) {
  const changed = decision?.action === "approve" && decision.arguments !== undefined;
  return html`<div class="shown-call">
    <h4>
      <${Icon} name="tool" /> <code>${exact(nameOf(call))}</code>
      ${decision && html`<span class="status" data-status=${decision.action}>${DECIDED.get(decision.action)}${changed && ", with these arguments"}</span>`}
    </h4>
    <${Json} value=${changed ? decision.arguments : call.arguments} />
  </div>`;
}

const DECIDED = new Map([["approve", "Approved"], ["reject", "Rejected"]]);

/** The schemas of the arguments, by the ids of calls; read once they are needed, as the tools were when shown. */
function useSchemas(client, pause) {
  const [schemas, setSchemas] = useState(null);
  const asked = useRef(false);
  const load = async () => {
    if (asked.current) return;
    asked.current = true;
    try {
      const {tool_calls} = await client.approval(pause);
      setSchemas(new Map(tool_calls.map(({id, parameters}) => [id, parameters])));
    } catch {
      setSchemas(new Map()); // the form follows the values; what is wrong with the pause is said when it is decided
    }
  };
  return [schemas, load];
}

/** `{action, edited}` of each call, by its id; what was not touched follows the button that is pressed. */
function Decision({pause, decided, setDecided, onDecided}) {
  const {client, patient, drafts} = useApp();
  const [schemas, loadSchemas] = useSchemas(client, pause);
  const draft = `pause:${pause.approval_id}`;
  const [{choices, reason}, setWritten] = useState(() => ({choices: {}, reason: "", ...asObject(drafts.get(draft) ?? "{}")}));
  const [outcome, setOutcome] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const several = pause.tool_calls.length > 1;
  /** Arguments that cannot be sent are of calls that would run. */
  const unfit = (action) => Object.values(choices).some((choice) => choice.edited instanceof Error && (choice.action ?? action) === "approve");
  const write = (change) => {
    const written = {choices, reason, ...change};
    drafts.set(draft, JSON.stringify(written, (_, value) => (value instanceof Error ? undefined : value)));
    setWritten(written);
  };
  const choose = (id, change) => write({choices: {...choices, [id]: {...choices[id], ...change}}});
  useEffect(() => void (Object.values(choices).some((choice) => choice.edited) && loadSchemas()), []);

  const decide = async (action) => {
    setBusy(true);
    setError(null);
    try {
      setOutcome({status: "Running"});
      setDecided(new Map(pause.tool_calls.map(({id}) => [id, decisionOf(choices[id], action)])));
      setOutcome(await outcomeOf(patient, pause, {action, reason: reason || undefined, decisions: decisions(choices, action)}));
      drafts.set(draft, "");
    } catch (failure) {
      setOutcome(null);
      setDecided(null);
      setError(failure);
    }
    setBusy(false);
    onDecided?.();
  };
  if (outcome)
    return html`
      ${pause.tool_calls.map((call) => html`<${ShownCall} key=${call.id} call=${call} decision=${decided?.get(call.id)} />`)}
      <${Outcome} outcome=${outcome} />
    `;
  if (pause.gone && !busy) return html`<p role="status">This is no longer waiting: it was decided elsewhere, or the request ended.</p>`;
  return html`
    ${pause.tool_calls.map((call) => html`
      <${DecidedCall} key=${call.id} call=${call} several=${several} choice=${choices[call.id] ?? {}}
        schemas=${schemas} onEdit=${loadSchemas} onChange=${(change) => choose(call.id, change)} />
    `)}
    <label>Reason <span class="muted">(sent to the model, kept in the trace)</span>
      <textarea rows="1" maxlength="4000" value=${reason} onInput=${(event) => write({reason: event.target.value})}></textarea>
    </label>
    ${error && html`<${Problem} error=${error} />`}
    <${Buttons} calls=${pause.tool_calls} choices=${choices} disabled=${busy} unfit=${unfit} onDecide=${decide} />
  `;
}

/** One button where each call has been decided above, else one for each way to decide the others. */
function Buttons({calls, choices, disabled, unfit, onDecide}) {
  const chosen = calls.filter((call) => choices[call.id]?.action).length;
  if (chosen === calls.length)
    return html`<div class="actions">
      <button class="primary" disabled=${disabled || unfit()} onClick=${() => onDecide()}><${Icon} name="check" /> Send the decisions</button>
    </div>`;
  const which = calls.length === 1 ? "" : chosen === 0 ? " all" : " the others";
  return html`
    <div class="actions">
      <button class="primary" disabled=${disabled || unfit("approve")} onClick=${() => onDecide("approve")}>
        <${Icon} name="check" /> Approve${which}
      </button>
      <button class="danger" disabled=${disabled || unfit("reject")} onClick=${() => onDecide("reject")}>
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

const decisionOf = ({action: own, edited} = {}, action) => ({
  action: own ?? action,
  arguments: (own ?? action) === "approve" ? edited : undefined,
});

/** Follows the request to what came of the decision. */
async function outcomeOf(client, pause, decision) {
  let last = {status: "Running"};
  for await (const {event, data} of client.resumeStream(pause, decision)) {
    if (event === "final-response" || event === "approval-required") last = data;
    if (event === "error") last = {status: data.code === "request_canceled" ? "Canceled" : "Failed", problem: data};
  }
  return last;
}

function Outcome({outcome}) {
  const {status, content, problem} = outcome;
  return html`
    <div class="outcome-of" role="status">
      <p><${Icon} name="check" /> Decided. ${status === "Running" ? "The request continues …" : html`The request is <${Status} value=${status} />`}</p>
      ${content?.output && html`<${Markdown} text=${content.output} />`}
      <${Cut} content=${content} />
      ${problem && html`<${Problem} error=${problem} />`}
    </div>
  `;
}

function DecidedCall({call, several, choice, schemas, onEdit, onChange}) {
  // it may have been edited before a decision that failed, or before the page was left
  const [editing, setEditing] = useState(choice.edited !== undefined);
  const name = nameOf(call);
  const given = useMemo(() => asObject(call.arguments || "{}"), [call.arguments]); // what is none is decided as it is
  const edit = () => {
    setEditing(true);
    onEdit();
  };
  const stop = () => {
    setEditing(false);
    onChange({edited: undefined});
  };
  return html`
    <fieldset class="shown-call">
      <legend><${Icon} name="tool" /> <code>${exact(name)}</code></legend>
      ${editing && schemas
        ? html`<${Fields} value=${choice.edited ?? given} schema=${schemas.get(call.id)} onChange=${(value) => onChange({edited: value})} />`
        : html`<${Json} value=${choice.edited ?? call.arguments} />`}
      <div class="row">
        ${given !== null &&
        html`<button class="quiet" onClick=${editing ? stop : edit}>
          <${Icon} name="edit" /> ${editing ? "Keep the original arguments" : "Edit the arguments"}
        </button>`}
        ${several &&
        html`<div class="segments" role="group" aria-label=${`Decision on ${exact(name)}`}>
          ${["approve", "reject"].map((action) => html`
            <button key=${action} aria-pressed=${choice.action === action}
              onClick=${() => onChange({action: choice.action === action ? undefined : action})}>
              ${action === "approve" ? "Approve" : "Reject"}
            </button>
          `)}
        </div>`}
      </div>
    </fieldset>
  `;
}
