/**
 * Text that others wrote: users, models, tools, authors of metadata. It is only ever a text node.
 *
 * Characters that change the order or hide others are shown as their code point, so that what is read is what
 * is there: an approver decides on what stands here.
 */
import {html, useMemo, useState} from "./html.js";
import {bytes, prettyJson} from "./format.js";

/** embeddings, overrides and isolates: they reorder what follows, and have no use in prose */
const REORDERING = /[\u202a-\u202e\u2066-\u2069]/g;
/** besides those: marks, joiners, tags, controls; nothing of it is seen */
const INVISIBLE =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

const codePoint = (character) => `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

/** Prose: nothing in it reorders. */
export const readable = (text) => String(text).replace(REORDERING, codePoint);
/** Code, arguments, names: nothing in it is hidden. */
export const exact = (text) => String(text).replace(INVISIBLE, codePoint);

/** JSON text that says the same and in which nothing is hidden. */
export const escapedJson = (text) => text.replace(INVISIBLE, (character) => character.split("").map(escaped).join(""));
const escaped = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;

/** characters of a text that are laid out without being asked for */
const SHOWN = 60_000;

/** Text as it is, in lines; of a long one the beginning, and the rest on demand. */
export function Plain({text, code = false}) {
  const [whole, setWhole] = useState(false);
  const cut = !whole && text.length > SHOWN;
  const shown = useMemo(() => (code ? exact : readable)(cut ? text.slice(0, SHOWN) : text), [text, cut, code]);
  return html`
    <${code ? "pre" : "div"} class=${code ? "code" : "plain"} dir="auto" tabindex=${code ? 0 : undefined}>${shown}<//>
    ${cut &&
    html`<p class="cut">
      This is the beginning of ${bytes(text.length)} of text.
      <button class="link" onClick=${() => setWhole(true)}>Show all of it</button>
    </p>`}
  `;
}

/** Below a field, which shows a text as browsers lay it out: what it holds, where that is not what is seen. */
export function Unseen({text, id}) {
  const hides = useMemo(() => exact(text) !== text, [text]);
  if (!hides) return null;
  return html`<div class="unseen" id=${id}>
    <p>The field holds characters that hide or reorder text. This is what it holds:</p>
    <${Plain} text=${text} code />
  </div>`;
}

/** A value, or JSON text, indented. */
export function Json({value}) {
  const text = useMemo(
    () => (typeof value === "string" ? prettyJson(value) : JSON.stringify(value, null, 2)),
    [value],
  );
  return html`<${Plain} text=${text} code />`;
}
