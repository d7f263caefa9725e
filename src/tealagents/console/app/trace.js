/** The trace: the steps of each request as bars in time, with what went in and out. */
import {html, useEffect, useMemo, useRef, useState} from "./html.js";
import {useApp, useAttempt, useRoute} from "./context.js";
import {useRead} from "./data.js";
import {duration, exactJson, longTime, number, plural, shortId, timeOfDay} from "./format.js";
import {exact, Json, Plain} from "./text.js";
import {Empty, Loading, More, Pending, Problem} from "./ui.js";

const KINDS = {model: "Model", tool: "Tool", approval: "Approval", error: "Error", context: "Context", reduction: "Reduction"};

/** steps that are drawn at once */
const DRAWN = 1000;

export function Trace({task}) {
  const {client} = useApp();
  const wanted = useRoute().path[3];
  const read = (signal) => client.trace(task.task_id, {limit: 200, signal}).toArray();
  const {data, error, reload} = useRead(read, [client, task.task_id, task.last_updated, task.status]);
  const [drawn, setDrawn] = useState(DRAWN);
  const requests = useMemo(() => byRequest(data ?? []), [data]);
  if (!data) return html`<${Pending} what="the trace" error=${error} onRetry=${reload} />`;
  if (requests.length === 0)
    return html`<${Empty} icon="trace" title="Nothing has happened yet">
      Each model call, tool call, approval and error of a request will appear here, with its times.
    <//>`;
  return html`
    <div class="page">
      <${Legend} />
      ${cut(requests, drawn, wanted).map((request) => html`<${Waterfall} key=${request.id} request=${request} wanted=${request.id === wanted} />`)}
      ${data.length > drawn && html`<${More} onClick=${() => setDrawn(drawn + DRAWN)} />`}
    </div>
  `;
}

const Legend = () => html`
  <ul class="legend" aria-label="Kinds of steps">
    ${Object.entries(KINDS).map(([kind, name]) => html`<li key=${kind}><i class="key" data-kind=${kind}></i>${name}</li>`)}
    <li><i class="key first-piece"></i>First delta</li>
  </ul>
`;

/** Requests, newest first, with their steps in the order of their beginning, and the time they span. */
function byRequest(steps) {
  const timed = steps.map((step) => ({...step, began: timeOf(step.started_at)}));
  return [...Map.groupBy(timed, (step) => step.request_id)].map(([id, of]) => spanOf(id, waits(of))).reverse();
}

/** In milliseconds, with the microseconds that a Date leaves out. */
const timeOf = (text) => Date.parse(text) + (/\.\d{3}(\d{1,3})/.exec(text)?.[1] ?? 0) / 1000;

function waits(steps) {
  const decided = new Map(steps.filter((step) => step.name === "decided").map((step) => [step.input?.approval_id, step]));
  return steps.map((step) => {
    const end = step.kind === "approval" && step.name === "requested" && decided.get(step.input?.approval_id);
    return end ? {...step, duration_ms: end.began - step.began} : step;
  });
}

function spanOf(id, steps) {
  steps.sort((one, other) => one.began - other.began);
  const from = steps[0].began;
  const last = Math.max(...steps.map((step) => step.began + step.duration_ms));
  const tokens = steps.reduce((sum, step) => sum + (step.usage?.total_tokens ?? 0), 0);
  return {id, steps, from, last, span: Math.max(last - from, 0.1), tokens};
}

/** The newest requests, with their steps that are `shown`, and the wanted one, however old. */
function cut(requests, most, wanted) {
  let left = most;
  return requests.flatMap((request) => {
    const count = Math.max(left, request.id === wanted ? DRAWN : 0);
    left -= request.steps.length;
    return count > 0 ? {...request, shown: request.steps.slice(-count)} : [];
  });
}

function Waterfall({request, wanted}) {
  const place = useRef(null);
  const {steps, shown, from, last, span, tokens} = request;
  useEffect(() => wanted && place.current.scrollIntoView({block: "start"}), [wanted]);
  return html`
    <section class="waterfall card" ref=${place} data-wanted=${wanted} aria-label=${`Request ${shortId(request.id)}`}>
      <header>
        <h3>${timeOfDay(steps[0].started_at)}</h3>
        <span class="muted">${duration(last - from)} · ${plural(tokens, "token")} · ${plural(steps.length, "step")}</span>
        <code class="muted" title=${request.id}>${shortId(request.id)}</code>
      </header>
      ${last > from && html`<${Scale} span=${span} />`}
      <ol>
        ${shown.map((step) => html`<${Step} key=${step.step_id} step=${step} from=${from} span=${span} />`)}
      </ol>
    </section>
  `;
}

const Scale = ({span}) => html`
  <div class="scale" aria-hidden="true">
    ${[0, 0.25, 0.5, 0.75, 1].map((part) => html`<span key=${part}>${duration(span * part)}</span>`)}
  </div>
`;

function Step({step, from, span}) {
  const [open, setOpen] = useState(false);
  const left = Math.min(((step.began - from) / span) * 100, 99.6);
  const width = Math.min(Math.max((step.duration_ms / span) * 100, 0.4), 100 - left);
  const firstPiece = step.output?.first_piece_ms;
  return html`
    <li class="step" data-kind=${step.kind} data-failed=${step.is_error || step.kind === "error"}>
      <button class="step-line" aria-expanded=${open} onClick=${() => setOpen(!open)}>
        <span class="step-name">
          <i class="key" data-kind=${step.kind}></i>
          <span class="visually-hidden">${KINDS[step.kind] ?? step.kind}:</span><span class="clip">${step.kind === "approval" && "Approval "}${exact(step.name)}</span>
        </span>
        <span class="bar-place">
          <i class="bar" style=${{left: `${left}%`, width: `${width}%`}}>
            ${firstPiece > 0 && html`<i class="first-piece" style=${{left: `${Math.min(100, (firstPiece / step.duration_ms) * 100)}%`}}></i>`}
          </i>
        </span>
        <span class="step-time">${step.duration_ms > 0 && duration(step.duration_ms)}</span>
      </button>
      ${open && html`<${StepDetails} step=${step} />`}
    </li>
  `;
}

function opened(input) {
  try {
    return {...input, arguments: exactJson(input.arguments)};
  } catch {
    return input; // it has none, or they are no JSON
  }
}

function StepDetails({step}) {
  const facts = [
    ["Began", longTime(step.started_at)],
    step.duration_ms > 0 && ["Took", duration(step.duration_ms)],
    step.output?.first_piece_ms !== undefined && ["First delta after", duration(step.output.first_piece_ms)],
    step.usage && ["Tokens", `${number(step.usage.prompt_tokens)} in, ${number(step.usage.completion_tokens)} out`],
    step.outcome && ["Ended", exact(step.outcome)],
    step.imported && ["Origin", "imported"],
  ].filter(Boolean);
  return html`
    <div class="step-details">
      <dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
      ${step.kind === "model"
        ? html`<h4>What the model was sent</h4><${Sent} step=${step} />`
        : step.input && html`<h4>Input</h4><${Json} value=${opened(step.input)} />`}
      ${step.output && html`<h4>Output</h4><${Json} value=${step.output} />`}
    </div>
  `;
}

const ORIGINS = {
  system_prompt: "System prompt",
  summary: "Summary of earlier messages",
  note: "Note",
  context: "Context",
  history: "History",
  request: "This request",
};
const GAPS = {
  altered: "The marked messages were sent in another form, shortened by a reducer or with more than their text.",
  agent: "Another version of the agent answered; its system prompt may have been different.",
  path: "It is no longer known which failures preceded this request, or whether the model saw them.",
  count: "The trace recorded a different number of parts than is shown here.",
};

function Sent({step}) {
  const {client} = useApp();
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const read = useAttempt(setError)(async () => {
    setBusy(true);
    const list = client.prompt(step.request_id, {step_id: step.step_id, limit: 100});
    const page = await list.page(found?.next_cursor).finally(() => setBusy(false));
    setFound({...page, items: [...(found?.items ?? []), ...page.items]});
  });
  const {messages, tools} = step.input ?? {};
  return html`
    <div class="sent">
      <p class="muted">${plural(Number(messages) || 0, "part")}, and the descriptions of ${plural(Number(tools) || 0, "tool")}.
        ${!found && !busy && html` <button class="quiet" onClick=${read}>Show it</button>`}</p>
      ${found && html`<${Parts} found=${found} />`}
      ${busy && html`<${Loading} what="what was sent" />`}
      ${error && html`<${Problem} error=${error} onRetry=${read} />`}
      ${found?.next_cursor && !busy && html`<${More} onClick=${read} />`}
    </div>
  `;
}

function Parts({found}) {
  return html`
    <ul class="gaps muted">
      <li>The system prompt is that of the agent as it is configured now; the descriptions of its tools are left out.</li>
      ${found.gaps.map((gap) => html`<li key=${gap}>${GAPS[gap] ?? exact(gap)}</li>`)}
    </ul>
    <ol class="sent-parts" aria-label="Parts of the prompt, oldest first">
      ${found.items.map((part, place) => html`<${Part} key=${place} part=${part} />`)}
    </ol>
  `;
}

function Part({part}) {
  const {origin, role, items, tool, tool_calls: calls, altered, withheld} = part;
  return html`
    <li class="sent-part" data-origin=${origin}>
      <header>
        <strong>${tool ? exact(tool) : role}</strong>
        <span class="muted">${ORIGINS[origin] ?? exact(origin)}${altered ? ", sent in another form" : ""}</span>
      </header>
      ${withheld && html`<p class="muted">The operator has hidden it.</p>`}
      ${items.map((item, place) =>
        item.content_type === "text" ? html`<${Plain} key=${place} text=${item.content} />` : html`<p key=${place} class="muted">An image</p>`,
      )}
      ${calls.map((call) => html`<div key=${call.id}><code>${exact(call.tool)}</code><${Json} value=${call.arguments} /></div>`)}
    </li>
  `;
}
