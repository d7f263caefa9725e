/**
 * What models write, as markdown. Raw HTML but `<br>` is text, images are their addresses, links lead to the web or to
 * mail: nothing runs or is loaded. Marked makes HTML, DOMPurify nodes, and the policy would stop what either let through.
 */
import {html, useLayoutEffect, useMemo, useRef} from "./html.js";
import {prettyJson} from "./format.js";
import {exact, Plain, readable, unbroken} from "./text.js";
import {Lexer, Marked} from "../vendor/marked.js";
import "../vendor/dompurify.js";

const purify = globalThis.DOMPurify;

const escaped = (text) => new Option(text).innerHTML;

const marked = new Marked({
  gfm: true,
  breaks: true,
  // a footnote is no address
  tokenizer: {def: (text) => (/^ *\[\^/.test(text) ? undefined : false)},
  renderer: {
    html: ({raw, block}) => (/^<br ?\/?>\s*$/i.test(raw) ? "<br>" : block ? `<div>${escaped(raw.trimEnd())}</div>` : escaped(raw)),
    image: ({raw}) => escaped(raw),
    checkbox: ({checked}) => (checked ? "☑ " : "☐ "),
  },
});

const ALLOWED = {
  ALLOWED_TAGS: [
    "div", "p", "br", "hr", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "a",
    "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td",
  ],
  ALLOWED_ATTR: ["href", "start", "align"],
  ADD_URI_SAFE_ATTR: ["start", "align"], // others have to be addresses
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

// here, because characters can be written as entities
purify.addHook("uponSanitizeElement", (node) => {
  if (node.nodeType === Node.TEXT_NODE) node.data = (node.parentNode.closest("code") ? exact : readable)(node.data);
});

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A" || !node.hasAttribute("href")) return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

/** beyond these a text is shown as it is, without a wait */
const LONGEST_TEXT = 200_000;
/** of blocks without a blank line */
const COSTLIEST_BLOCKS = 1.5e8;
/** of items of lists without a blank line: an item is copied with each of its lines */
const COSTLIEST_ITEMS = 1e7;
/** of texts within blocks, each parsed in a time quadratic in its length, and in its markers */
const COSTLIEST_TEXTS = 3e8;
/** cells of tables, whose rows are filled up to the width of the header, items and paragraphs */
const MOST_TEXTS = 10_000;
const DEEPEST_LINE = /^[ \t]*(?:(?:>|(?:[-*+]|\d+[.)])(?=[ \t]))[ \t]*){24}/m;
const TANGLED = /[[*_~`<!(\\]{200}|(?:[[*_~`<!(\\][^\s[*_~`<!(\\]{0,2}){400}/;

const ENDS_OF_BLOCKS = /\n[ \t]*\n/;
const ENDS_OF_ITEMS = /\n[ \t>]*\n|\n(?=[ \t>]*(?:[-*+]|\d+[.)])\s)/;
const IN_ITEM = /^[ \t>]*(?:[-*+]|\d+[.)])\s|^>?[ \t]{2}/;

const sum = (all, costOf) => all.reduce((sofar, each) => sofar + costOf(each), 0);

/** length × lines */
const area = (part) => part.length * part.split("\n").length;

const DIVIDER = /^[ \t>|:-]*$/;

/** at most: those of the widest header in each of its lines */
function cells(part) {
  const lines = part.split("\n");
  const widths = lines.map((line) => (DIVIDER.test(line) ? line.replace(/^[ \t>]*\||\|[ \t]*$/g, "").split("|").length : 1));
  const widest = widths.reduce((most, each) => Math.max(most, each));
  return widest > 1 ? widest * lines.length : 0;
}

/** Blocks that can be rendered each on its own, or null where the text is better shown as it is. */
function blocksOf(text) {
  if (text.length > LONGEST_TEXT || DEEPEST_LINE.test(text) || TANGLED.test(text)) return null;
  const blocks = text.split(ENDS_OF_BLOCKS);
  if (sum(blocks, area) > COSTLIEST_BLOCKS || sum(blocks, cells) > MOST_TEXTS) return null;
  if (sum(text.split(ENDS_OF_ITEMS), (part) => (IN_ITEM.test(part) ? area(part) : 0)) > COSTLIEST_ITEMS) return null;
  try {
    const lexer = new Lexer(marked.defaults);
    lexer.blockTokens(text, lexer.tokens);
    if (lexer.inlineQueue.length > MOST_TEXTS) return null;
    const inTexts = sum(lexer.inlineQueue, ({src}) => src.length ** 2 + 16 * (src.match(/[*_~]/g)?.length ?? 0) ** 2);
    if (inTexts > COSTLIEST_TEXTS) return null;
    for (const {src, tokens} of lexer.inlineQueue) lexer.inlineTokens(src, tokens);
    return lexer.tokens;
  } catch {
    return null; // it can be read as it stands
  }
}

/** characters of a growing text from which on its blocks settle, but for the last tokens, which what comes may join */
const MOST_UNSETTLED = 2000;
const LAST = 4;

const group = (tokens) => html`<div class="markdown">
  ${tokens
    .filter(({type}) => type !== "space" && type !== "def")
    .map((token, place) => html`<${Made} key=${place} tokens=${[token]} raw=${token.type + token.raw} name="block" />`)}
</div>`;

/** A text that grows, in groups of blocks. Those that have settled are neither parsed nor compared again. */
function grown(text, known) {
  if (!text.startsWith(known.settled)) Object.assign(known, {settled: "", groups: []});
  const {settled, groups} = known;
  let tokens = text.length > LONGEST_TEXT ? null : blocksOf(text.slice(settled.length));
  // links may be defined in another part
  if (tokens?.length > LAST && text.length - settled.length > MOST_UNSETTLED && !text.includes("]:")) {
    const last = tokens.splice(-LAST);
    groups.push(group(tokens));
    known.settled = text.slice(0, text.length - sum(last, ({raw}) => raw.length));
    tokens = last;
  }
  return tokens && [...groups, group(tokens)];
}

/** Text as markdown, or as JSON if it begins so. */
export function Markdown({text, growing = false}) {
  const known = useRef({settled: "", groups: []});
  const shown = useMemo(() => {
    if (/^\s*[[{][\s[{]*"/.test(text)) return prettyJson(text);
    const lines = text.replace(/\r\n?/g, "\n");
    return growing ? grown(lines, known.current) : blocksOf(lines);
  }, [text, growing]);
  if (!Array.isArray(shown)) return html`<${Plain} text=${shown ?? text} code=${shown} as=${readable} />`;
  return growing ? html`<div class="markdown">${shown}</div>` : html`<${Made} tokens=${shown} raw=${text} name="markdown" />`;
}

/** What tokens stand for, which is anew only if `raw` is. */
function Made({tokens, raw, name}) {
  const place = useRef(null);
  useLayoutEffect(() => {
    const nodes = purify.sanitize(marked.parser(tokens), ALLOWED);
    // what leads nowhere does not look as if it did
    for (const dead of nodes.querySelectorAll("a:not([href])")) dead.replaceWith(...dead.childNodes);
    for (const wide of nodes.querySelectorAll("pre, table")) wide.tabIndex = 0;
    // with its marks: all that is in a list or a quote reads as its beginning does
    for (const said of nodes.children) said.dir = "auto";
    place.current.replaceChildren(nodes);
    // what has a direction of its own, as cells have, does not count for what it is in
    for (const said of place.current.children) if (said.querySelector("th")) said.dir = getComputedStyle(said).direction;
    for (const cell of place.current.querySelectorAll("th, td")) cell.dir = "auto";
  }, [raw]);
  return html`<div class=${name} data-unbroken=${unbroken(raw)} ref=${place}></div>`;
}
