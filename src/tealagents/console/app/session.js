/**
 * Who is signed in. What proves it stays in this tab: in memory and in its session storage, never in an address;
 * and so does what they have written and not sent.
 *
 * A session is `{me, label, token}`; `token` is what the client is given.
 */
const KEPT = "tealagents.console.session";

const DRAFTS = "tealagents.console.drafts";

export const NAME = /^[\x21-\x7e]{1,200}$/;

/** A name, for the service's provider `mock`: the token is the user. */
export function asUser(name) {
  return keep({kind: "mock", name});
}

/** A bearer token from elsewhere, for providers that this page cannot sign in with. */
export function withToken(token) {
  return keep({kind: "token", token});
}

function keep(session) {
  sessionStorage.setItem(KEPT, JSON.stringify(session));
  return made(session);
}

function made({kind, name, token}) {
  return kind === "mock"
    ? {me: {tid: "mock", oid: name}, label: name, token: name}
    : {me: null, label: "Signed in", token};
}

/** What was not sent, by the names of the places where it was written. */
export function drafts() {
  const texts = new Map(JSON.parse(sessionStorage.getItem(DRAFTS) ?? "[]"));
  return {
    get: (name) => texts.get(name),
    set(name, text) {
      if (text) texts.set(name, text);
      else texts.delete(name);
      try {
        sessionStorage.setItem(DRAFTS, JSON.stringify([...texts]));
      } catch (error) {
        if (error.name !== "QuotaExceededError") throw error; // so long a text lasts as long as the page
      }
    },
  };
}

/** The session of this tab, if there is one, and if it is of the kind that the service takes. */
export async function restored(config) {
  if (config.sign_in.kind === "entra") {
    const {restoredFromEntra} = await import("./entra.js");
    return restoredFromEntra(config.sign_in);
  }
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  return kept?.kind === config.sign_in.kind ? made(kept) : null;
}

/** After a refusal what was written stays. */
export async function signOut(config, refusal) {
  sessionStorage.removeItem(KEPT);
  if (!refusal) sessionStorage.removeItem(DRAFTS);
  if (config.sign_in.kind === "entra") {
    const {signOutOfEntra} = await import("./entra.js");
    await signOutOfEntra(config.sign_in);
  }
}
