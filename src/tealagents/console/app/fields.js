/**
 * A form for the arguments of a call, with a field for each: a switch, a number, a line or several, or JSON for
 * what holds more than one value. Its value is an object, or an Error while something in it is no JSON.
 */
import {html, useId, useState} from "./html.js";
import {exact} from "./text.js";

export function Fields({value, onChange}) {
  const [drafts, setDrafts] = useState(() => Object.entries(value).map(([name, of]) => draftOf(name, of)));
  const [adding, setAdding] = useState("");
  const put = (changed) => {
    setDrafts(changed);
    onChange(collected(changed));
  };
  const set = (name, text) => put(drafts.map((draft) => (draft.name === name ? {...draft, text} : draft)));
  const add = () => {
    if (!adding || drafts.some((draft) => draft.name === adding)) return;
    put([...drafts, {name: adding, kind: "text", text: ""}]);
    setAdding("");
  };
  return html`
    <div class="fields">
      ${drafts.map((draft) => html`
        <${Field} key=${draft.name} draft=${draft} onInput=${(text) => set(draft.name, text)}
          onRemove=${() => put(drafts.filter((each) => each !== draft))} />
      `)}
      <div class="row">
        <input aria-label="Name of another argument" placeholder="Another argument" value=${adding}
          onInput=${(event) => setAdding(event.target.value)} />
        <button type="button" class="quiet" disabled=${!adding} onClick=${add}>Add</button>
      </div>
    </div>
  `;
}

function Field({draft, onInput, onRemove}) {
  const id = useId();
  const wrong = read(draft) instanceof Error;
  const {kind, name, text} = draft;
  const common = {id, "aria-invalid": wrong};
  return html`
    <div class="field">
      <label for=${id}>${exact(name)} ${kind === "json" && html`<span class="muted">JSON</span>`}</label>
      ${kind === "switch"
        ? html`<input ...${common} type="checkbox" checked=${text === "true"} onChange=${(event) => onInput(String(event.target.checked))} />`
        : kind === "number"
          ? html`<input ...${common} type="number" step="any" value=${text} onInput=${(event) => onInput(event.target.value)} />`
          : html`<textarea ...${common} class=${kind === "json" ? "mono" : ""} spellcheck=${false} value=${text}
              rows=${Math.min(8, text.split("\n").length)} onInput=${(event) => onInput(event.target.value)}></textarea>`}
      <button type="button" class="quiet" onClick=${onRemove} aria-label=${`Leave out ${exact(name)}`}>Leave out</button>
      ${wrong && html`<p class="wrong">${kind === "number" ? "This is no number." : "This is no JSON."}</p>`}
    </div>
  `;
}

function draftOf(name, value) {
  if (typeof value === "boolean") return {name, kind: "switch", text: String(value)};
  if (typeof value === "number") return {name, kind: "number", text: String(value)};
  if (typeof value === "string") return {name, kind: "text", text: value};
  return {name, kind: "json", text: JSON.stringify(value, null, 2)};
}

function read({kind, text}) {
  if (kind === "text") return text;
  if (kind === "number") return text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : new Error(text);
  try {
    return JSON.parse(text);
  } catch (error) {
    return error;
  }
}

function collected(drafts) {
  const entries = drafts.map((draft) => [draft.name, read(draft)]);
  return entries.find(([, value]) => value instanceof Error)?.[1] ?? Object.fromEntries(entries);
}
