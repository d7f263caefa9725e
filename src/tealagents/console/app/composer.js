/** Where a message is written: text, images, and a button that sends or stops. */
import {html, useEffect, useLayoutEffect, useRef, useState} from "./html.js";
import {useApp} from "./context.js";
import {Icon, IconButton, inWords, isAway, Problem} from "./ui.js";

const LARGEST_IMAGE = 10_000_000;
const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

// dropped beside it, a file may take the place of the page
window.ondragover = window.ondrop = ({dataTransfer}) => !dataTransfer.types.includes("Files");

/**
 * `onSend(items, key)` resolves when the service has taken the message, known by its key; a refused one stays.
 * `onStop` is there while an answer is on its way. What was not sent is kept under the name `draft`. A message
 * without a text needs an image, of its own or of the `others` that are added to it.
 */
export function Composer({onSend, onStop, placeholder, draft, initial = "", others = 0, autofocus = false}) {
  const {client, drafts, notify} = useApp();
  const [written, setWritten] = useState();
  const [, redraw] = useState();
  /** It may have been sent from a view that was left. */
  const now = () => ({text: drafts.get(draft) ?? (written ? "" : initial), images: drafts.images.get(draft) ?? []});
  const {text, images} = now();
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const field = useRef(null);
  const file = useRef(null);
  /** A device without a keyboard of its own: it would cover the answer with one, and has no Shift + Enter. */
  const touched = matchMedia("(pointer: coarse)").matches;
  const goOn = () => touched || field.current.focus();
  // the page has the focus where what had it is gone
  useLayoutEffect(() => {
    if (autofocus || document.activeElement?.id === "main") goOn();
  }, []);
  useEffect(() => {
    // what it had to wait for is over, and who says so can be reached
    if (!onStop) setError((known) => (!known?.code || ["task_busy", "approval_pending"].includes(known.code) ? null : known));
  }, [!onStop]);
  // until the service is back, which does not say what was done
  useEffect(() => {
    if (!error || error.inDoubt || !isAway(error)) return;
    const timer = setInterval(() => client.health().then(({status}) => status === "ok" && setError(null), () => {}), 3000);
    return () => clearInterval(timer);
  }, [error]);
  const empty = text.trim() === "" && images.length + others === 0;

  /** names the message where it is not known whether it was taken */
  const key = `key ${draft}`;
  const write = (text) => {
    drafts.set(draft, text);
    drafts.set(key);
    setError(null); // of another message
    setWritten({});
  };
  const keep = (change) => {
    drafts.set(key);
    drafts.images.set(draft, change(now().images));
    redraw({});
  };
  const submit = async (event) => {
    event?.preventDefault();
    if (busy || empty || now().text !== text || now().images.length < images.length) return redraw({});
    setBusy(true);
    setError(null);
    goOn();
    const items = images.map((image) => ({content_type: "image", content: image.source}));
    if (text.trim()) items.unshift({content_type: "text", content: text});
    const taken = () => {
      const known = now().text;
      write(known.startsWith(text) ? known.slice(text.length) : known);
      keep((known) => known.filter((image) => !images.includes(image)));
    };
    if (!drafts.get(key)) drafts.set(key, String(Math.random()));
    const timer = setTimeout(() => setBusy("slow"), 1000);
    // a reload loses the images
    await onSend(items, `${drafts.get(key)} ${images.length}`).then(taken, (refusal) => {
      if (field.current) setError(refusal);
      else notify(`Your message is still where you wrote it. ${inWords(refusal).detail}`);
    });
    clearTimeout(timer);
    setBusy(false);
  };
  const stop = (event) => {
    goOn();
    if (event.detail < 2) onStop(); // the second click of two was for what was there before: Send
  };
  const add = async (files) => {
    const known = [...files].filter((each) => IMAGES.includes(each.type));
    const chosen = known.filter((each) => each.size <= LARGEST_IMAGE);
    if (known.length < files.length) notify("You can add only images: PNG, JPEG, GIF or WebP.");
    else if (chosen.length < known.length) notify("You can add only images of up to 10 MB.");
    const read = (await Promise.all(chosen.map((each) => asImage(each).catch(() => {})))).filter(Boolean);
    if (read.length < chosen.length) notify("A damaged image cannot be added.");
    keep((known) => [...known, ...read]);
  };
  const pressed = (event) => {
    // 229: it ends a composition, which in Safari is over by then
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229 && !touched) submit(event);
  };
  // spreadsheets and word processors add a picture of the text
  const paste = (event) => {
    const {files} = event.clipboardData;
    if (files.length && !event.clipboardData.getData("text/plain")) (event.preventDefault(), add(files));
  };
  return html`
    ${error && html`<${Problem} error=${error} />`}
    <form class="composer" onSubmit=${submit} onDrop=${({dataTransfer: {files}}) => files.length && add(files)}>
      <${Images} images=${images} onRemove=${(gone) => keep((now) => now.filter((image) => image !== gone))} />
      <${Growing} at=${field} aria-label="Message" placeholder=${placeholder} value=${text} dir="auto" enterkeyhint=${touched ? "enter" : "send"}
        autofocus=${autofocus} onInput=${(event) => write(event.target.value)} onKeyDown=${pressed} onPaste=${paste} />
      <div class="composer-actions">
        <${IconButton} name="image" label="Add an image" onClick=${() => file.current.click()} />
        <input ref=${file} type="file" accept=${IMAGES.join()} multiple hidden
          aria-label="Images" onChange=${(event) => (add(event.target.files), (event.target.value = ""))} />
        ${busy === "slow"
          ? html`<span key="slow" class="hint" role="status">Sending …</span>`
          : html`<span class="hint">Enter sends, Shift + Enter starts a new line</span>`}
        ${onStop &&
        html`<button key="stop" type="button" class="send" onClick=${stop} aria-label="Stop the answer" title="Stop"><${Icon} name="stop" /></button>`}
        ${!(onStop && empty) &&
        html`<button key="send" class="send" disabled=${empty || busy} aria-label="Send" title="Send"><${Icon} name="send" /></button>`}
      </div>
    </form>
  `;
}

/** A field that is as high as its text, up to a third of the window; a ref to it is `at`. */
export function Growing({at, ...how}) {
  const own = useRef(null);
  const field = at ?? own;
  useLayoutEffect(() => {
    const {current} = field;
    const {style, parentElement: form} = current;
    const grow = () => {
      form.style.minHeight = `${form.offsetHeight}px`; // while it is measured, what is above it is not moved
      style.height = "auto";
      style.height = `${Math.min(current.scrollHeight + current.offsetHeight - current.clientHeight, innerHeight / 3)}px`;
      form.style.minHeight = "";
    };
    grow();
    addEventListener("resize", grow);
    return () => removeEventListener("resize", grow);
  }, [how.value]);
  return html`<textarea ref=${field} rows="1" ...${how}></textarea>`;
}

function Images({images, onRemove}) {
  if (!images.length) return null;
  return html`<ul class="images" aria-label="Images to send">
    ${images.map((image) => html`<li key=${image.key}>
      <img src=${image.source} alt=${image.name} />
      <${IconButton} name="close" size="small" label=${`Remove ${image.name}`} onClick=${() => onRemove(image)} />
    </li>`)}
  </ul>`;
}

/** Fails for what cannot be drawn. */
async function asImage(blob) {
  (await createImageBitmap(blob)).close();
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve({source: reader.result, name: blob.name || "Pasted image", key: Math.random()});
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
