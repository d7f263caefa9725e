/**
 * Who is signed in. What proves it stays in this tab: in memory and in its session storage, never in an address;
 * and so does what they have written and not sent.
 *
 * A session is `{me, label, token}`; `token` is what the client is given, or a function that gives it, null where none
 * can be had for now.
 */
const KEPT = "tealagents.console.session";

/** Why a session is over that the user did not end. */
export const SIGNED_OUT = {code: "unauthenticated", detail: "The service no longer takes your token. Sign in again."};

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

/**
 * What a user, `{tid, oid}`, has not sent, by the names of the places where it was written. What is there of another
 * one is erased. Who is not known yet finds nothing, and what they write lasts as long as the page; so do images.
 * What the same session wrote `before` its user was known stays.
 */
export function drafts(user, before) {
  const owner = user && JSON.stringify([user.tid, user.oid]);
  const kept = JSON.parse(sessionStorage.getItem(DRAFTS) ?? "null");
  if (owner && kept && kept.owner !== owner) sessionStorage.removeItem(DRAFTS);
  const texts = new Map([...(owner && kept?.owner === owner ? kept.texts : []), ...(before?.texts ?? [])]);
  return {
    texts,
    images: before?.images ?? new Map(), // there is no room for them in a tab's storage
    get: (name) => texts.get(name),
    set(name, text) {
      if (text) texts.set(name, text);
      else texts.delete(name);
      if (!owner) return;
      try {
        sessionStorage.setItem(DRAFTS, JSON.stringify({owner, texts: [...texts]}));
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

/** After a refusal what was written stays, for the same user. */
export async function signOut(config, refusal) {
  sessionStorage.removeItem(KEPT);
  if (!refusal) sessionStorage.removeItem(DRAFTS);
  if (config.sign_in.kind === "entra") {
    const {signOutOfEntra} = await import("./entra.js");
    await signOutOfEntra(config.sign_in);
  }
}
