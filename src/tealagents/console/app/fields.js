/**
 * A form for the arguments of a call, made from the schema of its tool, or else from the values. It gives the drafts of
 * its fields: texts, which stay what they are while a value is wrong.
 */
import {html, useId, useLayoutEffect, useRef, useState} from "./html.js";
import {Growing} from "./composer.js";
import {exactJson} from "./format.js";
import {escapedJson, exact, readable, Unseen} from "./text.js";

export function Fields({value, drafts: written, schema, onChange}) {
  const known = propertiesOf(schema);
  const required = new Set(schema?.required ?? []);
  const drafts = written ?? begun(value, known, required);
  const box = useRef(null);
  /** what was added or left out, or its button, gets the focus */
  const moved = useRef();
  useLayoutEffect(() => {
    // what is missing cannot be approved, even before it is edited
    if (!written && collected(drafts) instanceof Error) onChange(drafts);
    if (moved.current === undefined) return;
    (box.current.closest("fieldset").elements.namedItem(moved.current) ?? box.current.querySelector("[placeholder]"))?.focus();
    moved.current = undefined;
  });
  // what is longer than its field is read from its beginning
  useLayoutEffect(() => box.current.querySelectorAll("textarea").forEach((field) => field.setSelectionRange(0, 0)), []);
  const put = (changed, name) => {
    moved.current = name;
    onChange(changed);
  };
  const set = (name, text) => put(drafts.map((draft) => (draft.name === name ? {...draft, text, touched: true} : draft)));
  const add = (name) => drafts.some((draft) => draft.name === name) || put([...drafts, {text: "", ...draftOf(name, undefined, known[name])}], name);
  const absent = Object.keys(known).filter((name) => !drafts.some((draft) => draft.name === name));
  return html`
    <div class="fields" ref=${box}>
      ${drafts.map((draft) => html`
        <${Field} key=${draft.name} draft=${draft} required=${required.has(draft.name)} onInput=${(text) => set(draft.name, text)}
          onRemove=${() => put(drafts.filter((each) => each !== draft), draft.name)} />
      `)}
      ${absent.length > 0 &&
      html`<div class="row">
        ${absent.map((name) => html`<button key=${name} name=${name} type="button" class="quiet" onClick=${() => add(name)}>Add ${exact(name)}</button>`)}
      </div>`}
      ${schema?.properties === undefined && schema?.additionalProperties !== false && html`<${Another} onAdd=${add} />`}
    </div>
  `;
}

function Another({onAdd}) {
  const [name, setName] = useState("");
  const add = () => (onAdd(name), setName(""));
  return html`<div class="row">
    <input aria-label="Name of another argument" placeholder="Another argument" value=${name}
      onInput=${(event) => setName(event.target.value)} />
    <button type="button" class="quiet" disabled=${!name} onClick=${add}>Add</button>
  </div>`;
}

function Field({draft, required, onInput, onRemove}) {
  const id = useId();
  const {name, kind, about} = draft;
  /** what is added is not wrong before one has left it */
  const [left, setLeft] = useState(draft.touched);
  const error = read(draft);
  const wrong = (left || draft.text !== "") && error instanceof Error;
  return html`
    <div class="field" onFocusOut=${() => setLeft(true)}>
      <label for=${id}>${exact(name)} <span class="muted">${kind === "json" && "JSON "}${required && "required"}</span></label>
      <${Input} id=${id} draft=${draft} wrong=${wrong} about=${`${id}-unseen ${id}-about ${id}-wrong`} onInput=${onInput} />
      ${!required && html`<button type="button" class="quiet" onClick=${onRemove} aria-label=${`Leave out ${exact(name)}`}>Leave out</button>`}
      ${(kind === "text" || kind === "json") && html`<${Unseen} id=${`${id}-unseen`} text=${draft.text} />`}
      ${about && html`<p id=${`${id}-about`} class="about muted">${readable(about)}</p>`}
      ${wrong && html`<p id=${`${id}-wrong`} class="wrong" role="status">${error.message}</p>`}
    </div>
  `;
}

function Input({id, draft: {name, kind, text, options}, wrong, about, onInput}) {
  const common = {id, name, "aria-invalid": wrong, "aria-describedby": about};
  const typed = (event) => onInput(event.target.value);
  if (kind === "switch")
    return html`<input ...${common} type="checkbox" checked=${text === "true"} onChange=${(event) => onInput(String(event.target.checked))} />`;
  if (kind === "choice")
    return html`<select ...${common} value=${text} onChange=${typed}>
      ${!options.includes(text) && html`<option value=${text}>${exact(text)}</option>`}
      ${options.map((option) => html`<option key=${option} value=${option}>${exact(JSON.parse(option))}</option>`)}
    </select>`;
  if (kind === "number" || kind === "integer")
    return html`<input ...${common} value=${text} onInput=${typed} />`; // the wheel would change one of type number
  return html`<${Growing} ...${common} class=${kind === "json" ? "mono" : ""} spellcheck=${false} value=${text} onInput=${typed} />`;
}

/** What is given, and what has to be, in the order of the schema; then what it does not name. */
function begun(value, known, required) {
  const named = Object.keys(known).filter((name) => Object.hasOwn(value, name) || required.has(name));
  const others = Object.keys(value).filter((name) => !Object.hasOwn(known, name));
  return [...named, ...others].map((name) => ({touched: true, ...draftOf(name, Object.hasOwn(value, name) ? value[name] : undefined, known[name])}));
}

const SCALARS = {boolean: "switch", integer: "integer", number: "number", string: "text"};

/** `{name, kind, text, options, about}`: what is missing has no text, and what does not fit its schema is JSON. */
function draftOf(name, value, schema) {
  if (value === undefined) value = schema?.default ?? undefined;
  const about = typeof schema?.description === "string" ? schema.description : "";
  const wanted = schema && (SCALARS[[schema.type].flat().filter((type) => type !== "null")] ?? "json");
  const choices = wanted === "switch" && value === undefined ? [true, false] : schema?.enum;
  if (Array.isArray(choices) && choices.every((each) => typeof each !== "object")) {
    const options = choices.map((each) => JSON.stringify(each));
    return {name, about, kind: "choice", options, text: JSON.stringify(value) ?? ""};
  }
  const given = value === undefined ? wanted ?? "text" : kindOf(value);
  const fits = wanted === given || (wanted === "number" && given === "integer");
  const kind = wanted === undefined ? given.replace("integer", "number") : fits ? wanted : "json";
  return {name, about, kind, ...(value !== undefined && {text: written(kind, value)})};
}

/** Each property by its name. Of what may be null, what it is otherwise: null is given by leaving it out. */
const propertiesOf = (schema) =>
  Object.fromEntries(
    Object.entries(schema?.properties ?? {}).map(([name, property]) => {
      const found = followed(property, schema);
      const others = found.anyOf?.map((each) => followed(each, schema)).filter((each) => each.type !== "null");
      return [name, others?.length === 1 ? {...others[0], ...found} : found];
    }),
  );

/** What is referred to within the whole, and what is added to it; a reference may lead to itself. */
const followed = ({$ref, ...own}, whole, most = 9) =>
  most && /^#/.test($ref)
    ? followed({...$ref.split("/").slice(1).reduce((at, name) => at?.[name], whole), ...own}, whole, most - 1)
    : own;

function kindOf(value) {
  const number = JSON.isRawJSON?.(value) ? Number(value.rawJSON) : value;
  if (typeof number === "number") return Number.isInteger(number) ? "integer" : "number";
  if (typeof value === "string" && value.includes("\r")) return "json"; // a field for text would change it
  return SCALARS[typeof value] ?? "json";
}

const written = (kind, value) =>
  kind === "json" ? escapedJson(JSON.stringify(value, null, 2)) : String(value.rawJSON ?? value);

function read({kind, text}) {
  if (text === undefined) return new Error("This is missing.");
  if (kind === "text") return text;
  if (kind === "number" || kind === "integer") return numberIn(text, kind);
  if (kind === "choice" && text === "") return new Error("Choose one.");
  try {
    return exactJson(text);
  } catch {
    return new Error("This is not JSON.");
  }
}

function numberIn(text, kind) {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value)) return new Error("This is not a number.");
  if (kind === "integer" && !Number.isInteger(value)) return new Error("This is not a whole number.");
  try {
    return Number.isSafeInteger(value) ? value : exactJson(text);
  } catch {
    return value; // such as .5
  }
}

/** The arguments that drafts say, or an Error while one of them is wrong. */
export function collected(drafts) {
  const entries = drafts.map((draft) => [draft.name, read(draft)]);
  return entries.find(([, value]) => value instanceof Error)?.[1] ?? Object.fromEntries(entries);
}
