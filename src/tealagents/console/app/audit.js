/** The append-only record of a task, and whether its chain holds. */
import {html, useState} from "./html.js";
import {href, useApp} from "./context.js";
import {useRead} from "./data.js";
import {longTime, plural, shortId, timeOfDay} from "./format.js";
import {exact, Json} from "./text.js";
import {Icon, More, Pending} from "./ui.js";

/** entries that are drawn at once */
const DRAWN = 200;

export function Audit({task}) {
  const {client} = useApp();
  const read = (signal) => client.audit(task.task_id, {limit: 200, signal}).toArray();
  const {data: entries, error, reload} = useRead(read, [client, task.task_id, task.last_updated]);
  const [drawn, setDrawn] = useState(DRAWN);
  const {data: verdict} = useRead(async () => entries && verify(entries), [entries]);
  if (!entries) return html`<${Pending} what="the audit" error=${error} onRetry=${reload} />`;
  return html`
    <div class="page">
      <${Verdict} verdict=${verdict} count=${entries.length} />
      <div class="table" tabindex="0" role="region" aria-label="Entries">
        <table>
          <thead>
            <tr><th scope="col">No.</th><th scope="col">Time</th><th scope="col">Who</th><th scope="col">What</th><th scope="col">Hash</th></tr>
          </thead>
          <tbody>
            ${entries.slice(0, drawn).map((entry) => html`
              <${Entry} key=${entry.seq} entry=${entry} task=${task} bad=${verdict?.entry === entry} />
            `)}
          </tbody>
        </table>
      </div>
      ${entries.length > drawn && html`<${More} onClick=${() => setDrawn(drawn + DRAWN * 5)} />`}
    </div>
  `;
}

function Verdict({verdict, count}) {
  if (!verdict) return html`<p class="verdict" role="status">Recomputing ${plural(count, "hash", "hashes")} …</p>`;
  const [icon, title, text] = {
    verified: [
      "check",
      `Verified: ${plural(count, "entry", "entries")}`,
      "Every hash was recomputed in this browser, and each entry continues the one before it.",
    ],
    keyed: [
      "info",
      "The links hold; the hashes need the audit key",
      html`Each entry continues the one before it. The hashes are keyed (HMAC), so only someone with the audit key can
        check them, with <code>tealagents state verify-audit</code>.`,
    ],
    unchecked: [
      "info",
      "The links hold; the hashes were not recomputed",
      "Each entry continues the one before it. To check the hashes, open the console over HTTPS.",
    ],
    broken: ["warn", `Entry ${verdict.entry?.seq} is bad`, `It ${verdict.reason}. The entries after it prove nothing.`],
  }[verdict.state];
  return html`
    <div class="verdict" data-state=${verdict.state} role="status">
      <${Icon} name=${icon} />
      <div><strong>${title}</strong><p>${text}</p></div>
    </div>
  `;
}

function Entry({entry, task, bad}) {
  const [open, setOpen] = useState(false);
  return html`
    <tr data-bad=${bad}>
      <td>${entry.seq}</td>
      <td><time datetime=${entry.at} title=${longTime(entry.at)}>${timeOfDay(entry.at)}</time></td>
      <td>${exact(entry.actor)}</td>
      <td>
        <button class="link" aria-expanded=${open} onClick=${() => setOpen(!open)}>${exact(entry.action)}</button>
        ${open &&
        html`<div class="entry-details">
          <${Json} value=${entry.details} />
          ${entry.request_id && html`<p>Request <a href=${href("tasks", task.task_id, "trace", entry.request_id)}><code>${shortId(entry.request_id)}</code></a></p>`}
        </div>`}
      </td>
      <td><code title=${entry.hash}>${entry.hash.slice(0, 12)}</code></td>
    </tr>
  `;
}

const GENESIS = "0".repeat(64);

/** JSON with sorted keys and without spaces, as it was hashed. */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (Object(value) !== value) return JSON.stringify(value);
  const keys = Object.keys(value).sort((one, other) => (codePoints(one) < codePoints(other) ? -1 : 1));
  return `{${keys.map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
}

/** Sorts as the code points of the text do: its units sort differently. */
const codePoints = (text) => Array.from(text, (each) => each.codePointAt(0).toString(16).padStart(6, "0")).join();

async function sha256(text) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * `{state, entry, reason}`: `verified`; `broken` with the first bad entry and what is wrong with it; or `keyed`:
 * the links hold and no hash is a plain SHA-256, as it is with an audit key, which only the operator has; or
 * `unchecked`: the links hold, and the browser computes no hashes for this page.
 */
async function verify(entries) {
  const linked = brokenLink(entries);
  if (!linked && !crypto.subtle) return {state: "unchecked"};
  const sums = crypto.subtle ? entries : [];
  const matches = await Promise.all(sums.map(async ({hash, ...fields}) => (await sha256(canonical(fields))) === hash));
  const wrong = matches.indexOf(false);
  if (!linked && wrong < 0) return {state: "verified"};
  if (!linked && !matches.includes(true)) return {state: "keyed"};
  if (linked && (wrong < 0 || linked.place <= wrong)) return {state: "broken", entry: entries[linked.place], reason: linked.reason};
  return {state: "broken", entry: entries[wrong], reason: "does not match its hash: something in it was changed"};
}

function brokenLink(entries) {
  const place = entries.findIndex(({seq, prev_hash}, at) => seq !== at + 1 || prev_hash !== (entries[at - 1]?.hash ?? GENESIS));
  if (place < 0) return null;
  const {seq} = entries[place];
  if (seq !== place + 1) return {place, reason: `has the number ${seq} where ${place + 1} is due: an entry was dropped or moved`};
  return {place, reason: "does not continue the entry before it"};
}
