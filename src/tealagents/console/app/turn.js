/** One request in a conversation. */
import {html, useRef} from "./html.js";
import {href, useApp, useAttempt} from "./context.js";
import {FRESH, useDecisions, useRead} from "./data.js";
import {duration} from "./format.js";
import {ran} from "./live.js";
import {Markdown} from "./markdown.js";
import {exact, Json, Plain, readable} from "./text.js";
import {Guard, Icon, IconButton, inView, inWords, Status, Time} from "./ui.js";

/** images a browser draws without running or loading anything */
const RASTER = /^data:image\/(?:png|jpeg|gif|webp|avif|bmp);base64,[a-z0-9+/=]+$/i;

function Image({source}) {
  if (RASTER.test(source)) return html`<img class="shown-image" src=${source} alt="Image of the message" />`;
  return html`<p class="muted">This image cannot be shown here: ${readable(source.slice(0, 60))}</p>`;
}

export function UserMessage({message, children}) {
  return html`
    <div class="said">
      <div class="bubble">
        <span class="visually-hidden">You said:</span>
        ${message.items.map((item, place) =>
          item.content_type === "text"
            ? html`<${Plain} key=${place} text=${item.content} />`
            : html`<${Image} key=${place} source=${item.content} />`,
        )}
      </div>
      ${children}
    </div>
  `;
}

/** calls that stay unfolded when their answer ends, or one comes back */
export const unfolded = new Set();

function Call({call, name, growing}) {
  const {result} = call;
  const outcome = result ? (call.rejected ? "rejected" : result.is_error ? "failed" : "done") : "open";
  const toggled = ({target}) => unfolded[target.open ? "add" : "delete"](name);
  return html`
    <details class="call" data-outcome=${outcome} open=${unfolded.has(name)} onToggle=${toggled}>
      <summary>
        <${Icon} name="tool" /> <code>${exact(call.tool)}</code>
        <span class="outcome">${outcome === "open" ? (growing ? "no result yet" : "no result") : outcome}${result?.duration_ms ? ` · ${duration(result.duration_ms)}` : ""}</span>
      </summary>
      <h4>Arguments${call.changed && ", as they were changed when the call was approved"}</h4>
      <${Json} value=${call.arguments} />
      ${result && html`<h4>${result.is_error && !call.rejected ? "Error" : "Result"}</h4><${Plain} text=${result.output} code />`}
    </details>
  `;
}

export function Parts({of, parts, growing = false}) {
  return parts.map((part, place) => {
    const name = `${location.hash} ${of} ${part.id}`;
    if (part.type === "call") return html`<${Call} key=${`${place} ${name}`} call=${part} name=${name} growing=${growing} />`;
    if (part.role) return html`<${UserMessage} key=${place} message=${part} />`;
    if (part.type === "image") return html`<${Image} key=${place} source=${part.content} />`;
    return html`<${Markdown} key=${place} text=${part.content} growing=${growing} />`;
  });
}

/** A request that has ended, from its messages; one whose answer is not all there is says how it ended. */
export function Turn({turn, task, actions}) {
  const place = useRef(null);
  const seen = ({id}) => ran.get(`${turn.requestId} ${id}`);
  // messages hold what the model asked for; that it was rejected, or changed, the trace, though not of copies
  const told = !turn.last.origin && turn.parts.some((part) => part.type === "call" && seen(part) === undefined);
  const decisionOf = useDecisions(told && task, (step) => step.request_id === turn.requestId, place);
  const parts = turn.parts.map((part) => {
    const decided = decisionOf(part.id);
    const given = seen(part) ?? decided?.arguments ?? part.arguments;
    return {...part, arguments: given, changed: given !== part.arguments, rejected: decided?.action === "reject"};
  });
  return html`
    <section class="turn" ref=${place} id=${`turn-${turn.requestId}`}>
      ${turn.user.map((message) => html`
        <${Guard} key=${message.message_id}><${UserMessage} message=${message}>${actions?.(message)}<//><//>
      `)}
      <div class="answer">
        <${Guard}><${Parts} of=${turn.requestId} parts=${parts} /><//>
        <${Ending} requestId=${turn.requestId} answered=${turn.answered} place=${place} />
        ${turn.answered && html`<${AnswerFooter} turn=${turn} task=${task} />`}
      </div>
    </section>
  `;
}

function AnswerFooter({turn, task}) {
  const {notify} = useApp();
  const copy = useAttempt()(async () => {
    try {
      await navigator.clipboard.writeText(turn.parts.filter((part) => part.type === "text").map((part) => part.content).join("\n\n"));
    } catch {
      throw new Error("Browsers copy only with permission, from pages over HTTPS. Select the text instead.");
    }
    notify("The answer is copied.");
  });
  return html`
    <footer class="turn-footer">
      <${Time} at=${turn.last.created_at} />
      <${IconButton} name="copy" size="small" label="Copy the answer" onClick=${copy} />
      ${!turn.last.origin && html`<${IconButton} name="trace" size="small" label="Trace of this answer"
        href=${href("tasks", task.task_id, "trace", turn.requestId)} />`}
    </footer>
  `;
}

const OVER = ["Completed", "Failed", "Canceled"];

/** How a request ended, and its answer, if its messages lack it: read in view until it has. */
function Ending({requestId, answered, place}) {
  const {client, requests} = useApp();
  const look = async (signal) => {
    if (requests.has(requestId)) return;
    await inView(place.current, signal);
    const found = await client.request(requestId, {signal});
    if (OVER.includes(found.status)) requests.set(requestId, found);
    return found;
  };
  const {data} = useRead(look, [client, requestId], FRESH);
  const request = requests.get(requestId) ?? data;
  if (answered) return html`<${Extra} content=${request?.content} />`;
  if (!request || request.status === "Completed") return null;
  const output = request.content?.output;
  return html`
    ${output && html`<${Markdown} text=${output} />`}
    <${Ended} status=${request.status} problem=${request.error} />
  `;
}

const CUT = new Map([
  ["length", "The answer was cut off: it reached the model's token limit."],
  ["content_filter", "The answer was stopped by the model service's content filter."],
]);

/** What an answer says besides its text: why it was cut off, and what tools added to it. */
export function Extra({content}) {
  const {finish_reason, ...data} = content?.extra_data ?? {};
  const why = CUT.get(finish_reason);
  return html`
    ${why && html`<div class="ended" role="status"><${Icon} name="warn" /><p>${why}</p></div>`}
    ${Object.keys(data).length > 0 && html`<details class="call"><summary>Data from tools<span class="outcome" /></summary><${Json} value=${data} /></details>`}
  `;
}

export function Ended({status, problem}) {
  if (!OVER.includes(status)) return html`<${Status} value=${status} />`;
  const canceled = status === "Canceled";
  const stopped = canceled && problem?.code !== "approval_expired";
  const words = problem ? inWords(problem) : {title: "It failed", detail: ""};
  return html`
    <div class="ended" data-status=${status} role="status">
      <${Icon} name=${canceled ? "stop" : "warn"} />
      <div>
        <strong>${stopped ? "Stopped" : words.title}</strong>
        <p>${stopped ? "Any text that was written by then is shown above." : readable(words.detail)}</p>
      </div>
    </div>
  `;
}
