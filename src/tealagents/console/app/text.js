/**
 * Text that others wrote: users, models, tools, authors of metadata. It is only ever a text node. What reorders or hides
 * is shown as its code point, so that an approver reads what is there.
 */
import {html, useMemo, useState} from "./html.js";
import {prettyJson} from "./format.js";

/**
 * what reorders, what is not seen, blanks, of which one does not see which they are, and stacks of marks, which are drawn
 * over other lines: three of no script, or more than any script has
 */
const INVISIBLE = /[[\p{Cc}\p{Cf}\p{DI}\p{Z}\u2800]--[\t\n\r\x20]]|[[\p{M}&&\p{sc=Zinh}]--\p{DI}]{3,}|[\p{M}--\p{DI}]{7,}/gv;
/** what prose may have of it, besides blanks: what joins emoji, or belongs to the letter of a script without case */
const NEEDED =
  /[\p{ExtPict}\p{EMod}]\ufe0f?\u200d(?=\p{ExtPict})|\p{ExtPict}[\ufe0e\ufe0f]|\ufe0f(?=\u20e3)|🏴[\u{e0061}-\u{e007f}]{1,6}|[[\p{Lo}\p{M}]--\p{DI}][\u200b-\u200d\p{VS}]/v;
const OUT_OF_PLACE = new RegExp(`(?![\\p{Zs}\u2800])(?:${INVISIBLE.source})(?<!${NEEDED.source})`, "gv");

const codePoint = (characters) =>
  characters.replace(/./gsu, (each) => `⟨U+${each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

/** Prose: nothing in it reorders or hides. */
export const readable = (text) => String(text).replace(OUT_OF_PLACE, codePoint);
/** Code, arguments, names: nothing in it is hidden. */
export const exact = (text) => String(text).replace(INVISIBLE, codePoint);

/** JSON text that says the same and in which nothing is hidden. */
export const escapedJson = (text) => text.replace(INVISIBLE, (character) => character.split("").map(escaped).join(""));
const escaped = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;

/** characters of a text that are laid out without being asked for */
const SHOWN = 60_000;

/** Whether text would take seconds to be laid out with kerning. */
export const unbroken = (text) => /\S{500}/.test(text) || null;

const sizeOf = ({length}) => (length < 1e6 ? `${Math.round(length / 1000)} KB` : `${(length / 1e6).toFixed(1)} MB`);

/** Text as it is, in lines; of a long one the beginning, and the rest on demand. */
export function Plain({text, code, as = code ? exact : readable}) {
  const [whole, setWhole] = useState(false);
  const cut = !whole && text.length > SHOWN;
  const shown = useMemo(() => as(cut ? text.slice(0, SHOWN) : text), [text, cut, as]);
  return html`
    <${code ? "pre" : "div"} class=${code ? "code" : "plain"} data-unbroken=${unbroken(shown)} dir="auto" tabindex=${code && 0}>${shown}<//>
    ${cut &&
    html`<p class="cut">
      This is the beginning of ${sizeOf(text)} of text.${" "}
      <button class="link" onClick=${() => setWhole(true)}>Show all of it</button>
    </p>`}
  `;
}

/** Below a field, which shows a text as browsers lay it out: what it holds, where that is not what is seen. */
export function Unseen({text = "", id}) {
  const hides = useMemo(() => exact(text) !== text, [text]);
  if (!hides) return null;
  return html`<div class="unseen" id=${id}>
    <p>The field holds characters that hide or reorder text. This is what it holds:</p>
    <${Plain} text=${text} code />
  </div>`;
}

export function Json({value}) {
  const text = useMemo(() => (typeof value === "string" ? prettyJson(value) : JSON.stringify(value, null, 2)), [value]);
  return html`<${Plain} text=${text} code />`;
}
