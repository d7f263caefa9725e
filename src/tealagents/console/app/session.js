/**
 * Signing in, and who is signed in. The proof stays in this tab, never in an address; so does what was not sent.
 *
 * A session is `{me, label, token}`; `token` is a text, or a function that gives one, or null for now.
 */
import {html, useState} from "./html.js";
import {readable} from "./text.js";
import {Icon, Problem} from "./ui.js";

const AGENT = new URL("../..", location).pathname; // of any version: others may have the same origin
const KEPT = `tealagents.console.session ${AGENT}`;

/** Why a session is over that the user did not end. */
export const SIGNED_OUT = {code: "unauthenticated", detail: "The service no longer accepts your token. Sign in again."};

const DRAFT = `tealagents.console.draft ${AGENT} `;

/** By a name, for `mock`, or by a token from elsewhere. */
function signIn(session) {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(session));
  } catch {} // no room: a reload forgets it
  return made(session);
}

function made({kind, name, token}) {
  return kind === "mock"
    ? {me: {tid: "mock", oid: name}, label: name, token: name}
    : {me: null, label: "Signed in", token};
}

/** Erases what is stored of all but one user. */
function forget(kept) {
  for (const key of Object.keys(sessionStorage))
    if (key.startsWith(DRAFT) && !key.startsWith(kept)) sessionStorage.removeItem(key);
}

/** what the storage has no room for: images and long texts, of the last known user */
let unstored = {};

/**
 * What a user, `{tid, oid}`, has not sent, by the names of the places where it was written. Another user's is erased.
 * What was written `before` the user was known stays.
 */
export function drafts(user, before) {
  const owner = user && JSON.stringify([user.tid, user.oid]);
  const mine = `${DRAFT}${owner} `;
  const none = {owner, texts: new Map(), images: new Map()};
  if (owner && unstored.owner !== owner) {
    forget(mine);
    unstored = none;
  }
  const {texts, images} = owner ? unstored : none;
  const set = (name, text) => {
    texts.delete(name);
    sessionStorage.removeItem(mine + name);
    if (!text) return;
    try {
      if (owner) return sessionStorage.setItem(mine + name, text);
    } catch {} // too long
    texts.set(name, text);
  };
  for (const [name, text] of [...(before?.texts ?? [])]) set(name, text);
  for (const [name, added] of before?.images ?? []) images.set(name, added);
  return {texts, images, set, get: (name) => texts.get(name) ?? sessionStorage.getItem(mine + name)};
}

/** The session of this tab, if it is of the kind that the service takes. */
export async function restored(config) {
  if (config.sign_in.kind === "entra") {
    const {restoredFromEntra} = await import("./entra.js");
    return restoredFromEntra(config.sign_in);
  }
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  return kept?.kind === config.sign_in.kind ? made(kept) : null;
}

/** After a refusal what was written stays, for the same user. */
export async function signOut(config, refusal) {
  sessionStorage.removeItem(KEPT);
  if (!refusal) {
    forget();
    unstored = {};
    history.replaceState(null, "", "#/"); // the next user begins elsewhere
  }
  if (config.sign_in.kind === "entra") {
    const {signOutOfEntra} = await import("./entra.js");
    await signOutOfEntra(config.sign_in);
  }
}

const NAME = /^[\x21-\x7e]{1,200}$/;

/** The first page: who are you? */
export function SignIn({config, onSignedIn, error}) {
  const Form = {mock: NameForm, entra: EntraForm}[config.sign_in.kind] ?? TokenForm;
  return html`
    <main class="signin">
      <img src="icon.svg" alt="" width="44" height="44" />
      <h1>${readable(config.name)} <small>${readable(config.version)}</small></h1>
      <p class="muted">${readable(config.description)}</p>
      ${error && html`<${Problem} error=${error} />`}
      <${Form} config=${config} onSignedIn=${onSignedIn} />
    </main>
  `;
}

function NameForm({onSignedIn}) {
  const [name, setName] = useState("");
  const wrong = name !== "" && !NAME.test(name);
  return html`
    <form onSubmit=${(event) => (event.preventDefault(), onSignedIn(signIn({kind: "mock", name})))}>
      <label for="name">Your name</label>
      <input id="name" value=${name} onInput=${(event) => setName(event.target.value)} autocomplete="username"
        autofocus spellcheck=${false} aria-describedby="name-help" aria-invalid=${wrong} />
      <p id="name-help" class=${wrong ? "wrong" : "muted"}>
        ${wrong
          ? "Up to 200 letters from A to Z, digits and symbols, without accents or spaces."
          : "This service checks no passwords: you are who you say you are. Everything you create belongs to this name."}
      </p>
      <button class="primary" disabled=${!NAME.test(name)}>Continue</button>
    </form>
  `;
}

function TokenForm({onSignedIn}) {
  const [text, setText] = useState("");
  const token = text.trim().replace(/^Bearer +/i, ""); // as it is copied from a header
  return html`
    <form onSubmit=${(event) => (event.preventDefault(), onSignedIn(signIn({kind: "token", token})))}>
      <label for="token">Bearer token</label>
      <input id="token" type="password" value=${text} onInput=${(event) => setText(event.target.value)}
        autocomplete="off" autofocus aria-describedby="token-help" />
      <p id="token-help" class="muted">An access token for this service. It stays in this tab.</p>
      <button class="primary" disabled=${!/^[\x21-\x7e]+$/.test(token)}>Continue</button>
    </form>
  `;
}

function EntraForm({config}) {
  const [error, setError] = useState(null);
  const [leaving, setLeaving] = useState(false);
  const start = async () => {
    setLeaving(true);
    try {
      const {signInWithEntra} = await import("./entra.js");
      await signInWithEntra(config.sign_in);
    } catch (failure) {
      if (failure.errorCode !== "user_cancelled") setError(failure);
      setLeaving(false);
    }
  };
  return html`
    ${error && html`<${Problem} error=${error} />`}
    <button class="primary" disabled=${leaving} onClick=${start} autofocus>
      <${Icon} name="check" /> ${leaving ? "Going to the sign-in page …" : "Sign in with Microsoft"}
    </button>
  `;
}
