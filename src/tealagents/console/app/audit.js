/** The append-only record of a task, and whether its chain holds. */
import {html, useEffect, useState} from "./html.js";
import {useApp} from "./context.js";
import {all, useRead} from "./data.js";
import {verify} from "./chain.js";
import {longTime, plural, shortId, timeOfDay} from "./format.js";
import {href} from "./router.js";
import {exact, Json} from "./text.js";
import {Icon, Loading, Problem} from "./ui.js";

/** entries that are drawn at once */
const DRAWN = 200;

export function Audit({task}) {
  const {client} = useApp();
  const read = (signal) => all(client.audit(task.task_id, {limit: 200, signal}), signal);
  const {data: entries, error, reload} = useRead(read, [client, task.task_id, task.last_updated]);
  const [drawn, setDrawn] = useState(DRAWN);
  const verdict = useVerdict(entries);
  if (error && !entries) return html`<div class="page"><${Problem} error=${error} onRetry=${reload} /></div>`;
  if (!entries) return html`<div class="page"><${Loading} what="the audit" /></div>`;
  return html`
    <div class="page audit">
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
      ${entries.length > drawn && html`<button class="quiet wide" onClick=${() => setDrawn(drawn + DRAWN * 5)}>Show more</button>`}
    </div>
  `;
}

function useVerdict(entries) {
  const [verdict, setVerdict] = useState(null);
  useEffect(() => {
    let current = true;
    if (entries) verify(entries).then((found) => current && setVerdict(found));
    return () => (current = false);
  }, [entries]);
  return verdict;
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
      "Each entry continues the one before it. The hashes are keyed (HMAC), so only someone with the audit key can " +
        "check them: the service does, each time it reads them.",
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
